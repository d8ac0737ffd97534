"""Sequences on disk: laid end to end in one file, with their offsets in another, read by memory map.

What training holds in memory therefore does not grow with the corpus. A store is written once, and used for as long as
what it was made from is the same and its files are what was written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.artifacts import checksum, file_checksum, read_json, sync_tree, write_json
from regard.data.examples import Example
from regard.data.lines import BadLine, OnBad
from regard.data.scan import Report
from regard.data.side import Field, Item, Side
from regard.data.sides import Sides
from regard.data.tokens import clean
from regard.data_settings import Data
from regard.errors import DamagedError, DataError
from regard.fingerprint import Fingerprint
from regard.ragged import Slices

Ids = NDArray[np.integer[Any]]
CHUNK = 4096  # most examples that are encoded at once
CHUNK_BYTES = 2**25  # of numbers that are held at once
FACTS = "facts.json"


class Store(Sequence[Ids]):
    """`store[i]` is sequence `i`: token ids, the bytes of a text, or elements of some `shape`."""

    def __init__(self, stem: Path, dtype: str, shape: tuple[int, ...] = ()) -> None:
        # As plain arrays: a slice of a memory map takes several times as long to make.
        self.offsets: NDArray[np.int64] = np.asarray(np.memmap(stem.with_suffix(".offsets"), np.int64, mode="r"))
        values = stem.with_suffix(".values")
        flat: Ids = np.asarray(np.memmap(values, dtype, mode="r")) if values.stat().st_size else np.zeros(0, dtype)
        self.values = flat.reshape(-1, *shape)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def longest(self, chunk: int = 2**20) -> int:
        """The length of the longest sequence."""
        parts = (self.offsets[i : i + chunk + 1] for i in range(0, len(self), chunk))
        return max((int(np.diff(part).max()) for part in parts), default=0)

    def some(self, index: NDArray[np.int64]) -> Slices:
        """These sequences, in this order."""
        return Slices(self.values, self.offsets[index], self.offsets[index + 1])


class HeldStore(Store):
    """Sequences of numbers that are in memory already, as a store."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.offsets = np.cumsum([0, *(len(one) for one in sequences)], dtype=np.int64)
        self.values = np.fromiter((x for one in sequences for x in one), np.int64, int(self.offsets[-1]))


@dataclass(frozen=True)
class ExampleStore:
    """Examples on disk, a store for each source and one for the target; text whose tokens are drawn anew each time is
    stored as it is."""

    stores: Sequence[Store]  # of each source, and of the target
    report: str | None
    sizes: tuple[int, ...] = ()  # how many examples of each corpus there are, one corpus after the other; (): one

    def __len__(self) -> int:
        return len(self.stores[-1])


def write_examples(
    folder: Path, examples: Iterable[Example], sides: Sides, *, data: Data, report: Report, made_from: Fingerprint,
    drawn: bool = True, say: Callable[[str], None] = lambda text: None,
) -> ExampleStore:  # fmt: skip
    """Put examples as numbers into `folder`, or take what is there if it was made from the same and is whole.

    Examples that cannot be used are added to `report`, where those are that gave no example. With `drawn`, text whose
    tokens are drawn anew each time is stored as it is.
    """
    parts = [*sides.source.parts, sides.target]
    names = [*(f"source{i or ''}" for i in range(len(parts) - 1)), "target"]

    as_text = [drawn and part.sampled > 0 for part in parts]
    forms = [("uint8", ()) if plain else (part.dtype, part.shape) for part, plain in zip(parts, as_text, strict=True)]

    def opened(report: str | None, sizes: Sequence[int]) -> ExampleStore:
        stores = [Store(folder / name, *form) for name, form in zip(names, forms, strict=True)]
        return ExampleStore(stores, report, tuple(sizes))

    try:
        known = read_json(folder / FACTS)
        if known["made_from"] == made_from.digest:
            for name, value in known["files"].items():
                if file_checksum(folder / name) != value:
                    raise DamagedError(f"{folder / name} is damaged: its checksum differs")
            return opened(known["report"], known["sizes"])
    except FileNotFoundError:
        pass
    except DamagedError as error:
        say(f"{error}; it is made anew")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS).unlink(missing_ok=True)  # first, as it is written last: a store without it is not whole
    kept, sums = [0] * len(data.corpora or (0,)), dict[str, str]()
    with ExitStack() as stack:
        writers = [
            stack.enter_context(_Writer(folder / name, form[0])) for name, form in zip(names, forms, strict=True)
        ]
        for example, x, y in usable(examples, sides, report.add):
            kept[example.corpus] += 1
            fields = [*(example.source if len(sides.source.parts) > 1 else (example.source,)), example.target]
            items = [*(x if len(sides.source.parts) > 1 else (x,)), y]
            for writer, plain, field, item in zip(writers, as_text, fields, items, strict=True):
                writer.write(list(clean(field, compose=False).encode()) if plain else item)
        for writer in writers:
            sums |= writer.sums
    report.lines = sum(kept) + report.bad
    report.check(data)
    sync_tree(folder)
    said = report.describe()
    write_json(folder / FACTS, {"made_from": made_from.digest, "report": said, "files": sums, "sizes": kept})
    return opened(said, kept)


def usable(
    examples: Iterable[Example], sides: Sides, on_bad: OnBad, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[Example, Item, Item]]:
    """Examples with both sides as numbers; each that cannot be used is handed to `on_bad`.

    They are encoded some at a time, at first one: as many as take about `chunk_bytes`, by the size of those before.
    """
    source, target = sides.source, sides.target
    waiting, size = iter(examples), 1
    while chunk := list(islice(waiting, size)):
        items = _encoded(source, [(sides.given(x), x.place) for x in chunk])
        targets = items if target.paired else _encoded(target, [(x.target, x.place) for x in chunk])
        taken = sum(map(item_bytes, items))
        size = max(1, min(CHUNK, 2 * size, int(chunk_bytes * len(chunk) / max(taken, 1))))
        for example, x, y in zip(chunk, items, targets, strict=True):
            if isinstance(x, BadLine) or isinstance(y, BadLine):
                on_bad(x if isinstance(x, BadLine) else y)
                continue
            try:
                pairs = target.numbers(source, example.source, x, example.target) or [(x, y)]
            except DataError as error:
                on_bad(BadLine(example.place, "malformed", str(error)))
                continue
            for item, numbers in pairs:
                if problem := find_problem(sides, item, numbers):
                    on_bad(BadLine(example.place, "blank" if "empty" in problem else "long", problem))
                else:
                    yield example, item, numbers


def item_bytes(item: Any) -> int:
    """How much memory an item takes, about."""
    if isinstance(item, tuple):
        return sum(map(item_bytes, item))
    return int(item.nbytes) if isinstance(item, np.ndarray) else 8 * len(item) if isinstance(item, list) else 0


def _encoded(side: Side, fields: Sequence[tuple[Field, str]]) -> Sequence[Item | BadLine]:
    """The numbers of fields, each with its place; what is wrong with it, where a field has none."""
    try:
        return side.encode_many([field for field, _ in fields])
    except DataError as error:  # which one it is, they say one by one
        if len(fields) > 1:
            return [_encoded(side, [one])[0] for one in fields]
        return [BadLine(fields[0][1], "unreadable", f"cannot be used: {error}")]


def find_problem(sides: Sides, x: Item, y: Item) -> str | None:
    """Why an example cannot be trained on, or None."""
    limit = sides.target.longest
    if not len(y) and sides.target.block is None:
        return "has an empty target"
    if limit is not None and len(y) > limit:
        return f"has a target of {len(y)} tokens, longer than target.max_length={limit}"
    several = len(sides.source.parts) > 1
    read = zip(sides.source.parts, x, strict=True) if several else ((sides.source, row) for row in sides.target.rows(x))
    for number, (part, item) in enumerate(read, 1):
        if part.problem(item, sys.maxsize if part.longest is None else part.longest) is None:
            continue
        name, setting = (f"source {number}", f"source[{number - 1}]") if several else ("source", "source")
        if not len(item):
            return f"has an empty {name}"
        return f"has a {name} of {len(item)} tokens, longer than {setting}.max_length={part.longest}"
    return None


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
