"""Sequences on disk: laid end to end in one file, with their offsets in another, read by memory map.

What training holds in memory therefore does not grow with the corpus. A store is written once, and kept as long as
what it was made from is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.corpora import Example
from regard.data.tokens import Tokenizer, clean
from regard.errors import DataError

Ids = NDArray[np.integer[Any]]
CHUNK = 4096


class Store:
    """`store[i]` is sequence `i`: token ids, or the bytes of a text."""

    def __init__(self, stem: Path, dtype: str) -> None:
        self.offsets: NDArray[np.int64] = np.memmap(stem.with_suffix(".offsets"), dtype=np.int64, mode="r")
        values = stem.with_suffix(".values")
        self.values: Ids = np.memmap(values, dtype=dtype, mode="r") if values.stat().st_size else np.zeros(0, dtype)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lengths of some sequences."""
        return np.asarray(self.offsets[index + 1] - self.offsets[index])


@dataclass
class Skipped:
    """Pairs left out, and where the first of them stood."""

    empty: int = 0
    long: int = 0
    first: dict[str, str] = field(default_factory=dict)

    def note(self, kind: str, place: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        self.first.setdefault(kind, place)

    def describe(self, kept: int, max_length: int) -> str | None:
        """One line for the user, or None if all were kept."""
        if not self.empty + self.long:
            return None
        parts = []
        if self.empty:
            parts.append(f"{self.empty} with an empty side (first: {self.first['empty']})")
        if self.long:
            parts.append(f"{self.long} longer than data.max_length={max_length} tokens (first: {self.first['long']})")
        out = self.empty + self.long
        return f"left out {out} of {kept + out} pairs: {', '.join(parts)}; data.bad_lines=error stops instead"


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
    folder: Path, examples: Iterable[Example], source: Tokenizer, target: Tokenizer, *, max_length: int, bad_lines: str,
    text: bool, made_from: dict[str, Any],
) -> PairStore:  # fmt: skip
    """Tokenise examples into `folder`, or take what is there if it was made from the same things."""
    facts = folder / "facts.json"
    dtype = "uint8" if text else "uint16" if max(source.size, target.size) <= 2**16 else "uint32"
    made_from = {**made_from, "max_length": max_length, "bad_lines": bad_lines, "text": text, "dtype": dtype}
    if facts.exists():
        known = json.loads(facts.read_text())
        if known["made_from"] == made_from:
            return PairStore(Store(folder / "source", dtype), Store(folder / "target", dtype), text, known["report"])
        facts.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    skipped, kept = Skipped(), 0
    with _Writer(folder / "source", dtype) as left, _Writer(folder / "target", dtype) as right:
        for chunk in _chunks(examples, CHUNK):
            sources = source.encode_many([x.source for x in chunk])
            targets = target.encode_many([x.target for x in chunk])
            for example, x, y in zip(chunk, sources, targets, strict=True):
                if problem := _problem(x, y, max_length):
                    if bad_lines == "error":
                        raise DataError(f"{example.place}: {_say(problem, len(x), len(y), max_length)}")
                    skipped.note(problem, example.place)
                    continue
                kept += 1
                left.write(list(clean(example.source).encode()) if text else x)
                right.write(list(clean(example.target).encode()) if text else y)
    report = skipped.describe(kept, max_length)
    if not kept:
        raise DataError(f"no pairs left to use: {report or 'the files hold none'}")
    facts.write_text(json.dumps({"made_from": made_from, "report": report}))
    return PairStore(Store(folder / "source", dtype), Store(folder / "target", dtype), text, report)


def _problem(source: list[int], target: list[int], max_length: int) -> str | None:
    if not source or not target:
        return "empty"
    return "long" if max(len(source), len(target)) > max_length else None


def _say(problem: str, source: int, target: int, max_length: int) -> str:
    if problem == "empty":
        return f"the {'source' if not source else 'target'} is empty; remove the pair, or set data.bad_lines=skip"
    return (
        f"the {'source' if source > max_length else 'target'} has {max(source, target)} tokens, more than "
        f"data.max_length={max_length}; split it, raise max_length, or set data.bad_lines=skip"
    )


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
    """Appends sequences to the two files of a store."""

    def __init__(self, stem: Path, dtype: str) -> None:
        self.dtype, self.end = dtype, 0
        self.values, self.offsets = stem.with_suffix(".values").open("wb"), stem.with_suffix(".offsets").open("wb")

    def __enter__(self) -> _Writer:
        self.offsets.write(np.int64(0).tobytes())
        return self

    def write(self, sequence: Sequence[int]) -> None:
        self.values.write(np.asarray(sequence, dtype=self.dtype).tobytes())
        self.end += len(sequence)
        self.offsets.write(np.int64(self.end).tobytes())

    def __exit__(self, *error: object) -> None:
        self.values.close()
        self.offsets.close()
