"""Sequences on disk: laid end to end in one file, with their offsets in another, read by memory map.

What training holds in memory therefore does not grow with the corpus. A store is written once, and used for as long as
what it was made from is the same and its files are what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.artifacts import checksum, file_checksum, read_json, sync_tree, write_json
from regard.data.corpora import BadLine, Example, OnBad
from regard.data.scan import Report
from regard.data.sources import Item, Source
from regard.data.tokens import Tokenizer, clean
from regard.errors import DamagedError, DataError
from regard.fingerprint import Fingerprint
from regard.ragged import Slices
from regard.settings import Data

Ids = NDArray[np.integer[Any]]
CHUNK = 4096
FACTS = "facts.json"


class Store:
    """`store[i]` is sequence `i`: token ids, the bytes of a text, or elements of some `shape`."""

    def __init__(self, stem: Path, dtype: str, shape: tuple[int, ...] = ()) -> None:
        # As plain arrays: a slice of a memory map takes several times as long to make.
        self.offsets: NDArray[np.int64] = np.asarray(np.memmap(stem.with_suffix(".offsets"), np.int64, mode="r"))
        values = stem.with_suffix(".values")
        flat: Ids = np.asarray(np.memmap(values, dtype, mode="r")) if values.stat().st_size else np.zeros(0, dtype)
        self.values = flat.reshape(-1, *shape)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def some(self, index: NDArray[np.int64]) -> Slices:
        """These sequences, in this order."""
        return Slices(self.values, self.offsets[index], self.offsets[index + 1])


@dataclass(frozen=True)
class PairStore:
    """Sources and targets on disk, either as ids or, when subwords are drawn anew each time, as text."""

    source: Store
    target: Store
    text: bool
    report: str | None

    def __len__(self) -> int:
        return len(self.source)


def write_pairs(
    folder: Path, examples: Iterable[Example], source: Source, target: Tokenizer, *, data: Data, report: Report,
    text: bool, made_from: Fingerprint, say: Callable[[str], None] = lambda text: None,
) -> PairStore:  # fmt: skip
    """Put examples as numbers into `folder`, or take what is there if it was made from the same and is whole.

    Examples that cannot be used are added to `report`, where those are that gave no example.
    """
    as_text = text and source.drawn
    forms = ("uint8" if as_text else source.dtype), ("uint8" if text else target.dtype)

    def opened(told: str | None) -> PairStore:
        left = Store(folder / "source", forms[0], () if as_text else source.shape)
        return PairStore(left, Store(folder / "target", forms[1]), text, told)

    try:
        known = read_json(folder / FACTS)
        if known["made_from"] == made_from.digest:
            for name, value in known["files"].items():
                if file_checksum(folder / name) != value:
                    raise DamagedError(f"{folder / name} is damaged: its checksum differs")
            return opened(known["report"])
    except FileNotFoundError:
        pass
    except DamagedError as error:
        say(f"{error}; it is made anew")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS).unlink(missing_ok=True)  # first, as it is written last: a store without it is not whole
    kept = 0
    with _Writer(folder / "source", forms[0]) as left, _Writer(folder / "target", forms[1]) as right:
        for chunk in _chunks(examples, CHUNK):
            for example, x, y in usable(chunk, source, target, data.max_length, report.add):
                kept += 1
                left.write(list(clean(example.source).encode()) if as_text else x)
                right.write(list(clean(example.target).encode()) if text else y)
    report.lines = kept + report.bad
    report.check(data)
    sync_tree(folder)
    write_json(
        folder / FACTS, {"made_from": made_from.digest, "report": report.describe(), "files": left.sums | right.sums}
    )
    return opened(report.describe())


def usable(
    examples: Sequence[Example], source: Source, target: Tokenizer, max_length: int, on_bad: OnBad
) -> Iterator[tuple[Example, Item, Sequence[int]]]:
    """Examples with both sides as numbers; each that cannot be used is handed to `on_bad`."""
    items: Sequence[Item | BadLine]
    try:
        items = source.encode_many([x.source for x in examples])
    except DataError:  # which one it is, they say one by one
        items = [_encoded(source, x) for x in examples]
    for example, x, y in zip(examples, items, target.encode_many([x.target for x in examples]), strict=True):
        if isinstance(x, BadLine):
            on_bad(x)
        elif problem := find_problem(source, x, y, max_length):
            on_bad(BadLine(example.place, "blank" if "empty" in problem else "long", problem))
        else:
            yield example, x, y


def _encoded(source: Source, example: Example) -> Item | BadLine:
    try:
        return source.encode_many([example.source])[0]
    except DataError as error:
        return BadLine(example.place, "picture", f"cannot be used: {error}")


def find_problem(source: Source, x: Item, y: Sequence[int], max_length: int) -> str | None:
    """Why an example cannot be trained on, or None."""
    if not y:
        return "has an empty target"
    if len(y) > max_length:
        return f"has a target of {len(y)} tokens, longer than data.max_length={max_length}"
    if source.problem(x, max_length) is None:
        return None
    if not len(x):
        return "has an empty source"
    return f"has a source of {len(x)} tokens, longer than data.max_length={max_length}"


def _chunks(examples: Iterable[Example], size: int) -> Iterator[list[Example]]:
    chunk: list[Example] = []
    for example in examples:
        chunk.append(example)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class _Writer:
    """Appends sequences to the two files of a store, and sums up their bytes."""

    def __init__(self, stem: Path, dtype: str) -> None:
        self.dtype, self.end = dtype, 0
        self.paths = stem.with_suffix(".values"), stem.with_suffix(".offsets")
        self.files = [path.open("wb") for path in self.paths]
        self.sums = {path.name: checksum([]) for path in self.paths}

    def __enter__(self) -> _Writer:
        self._write(1, np.int64(0).tobytes())
        return self

    def write(self, sequence: Item) -> None:
        self.end += len(sequence)
        self._write(0, np.asarray(sequence, dtype=self.dtype).tobytes())
        self._write(1, np.int64(self.end).tobytes())

    def _write(self, which: int, content: bytes) -> None:
        self.files[which].write(content)
        name = self.paths[which].name
        self.sums[name] = checksum([content], self.sums[name])

    def __exit__(self, *error: object) -> None:
        for file in self.files:
            file.close()
