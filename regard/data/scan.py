"""What of the data can be used: read once, before anything is made from them, and reported in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import cast

from regard.data.examples import Example, Paths, read_corpus, read_examples
from regard.data.lines import BadKind, BadLine, OnBad
from regard.data.sides import Sides
from regard.data_settings import Data
from regard.errors import DataError

SHOWN = 3  # lines of each kind that are named one by one


@dataclass
class Report:
    """The lines of some files that cannot be used: how many of each kind, and the first few."""

    name: str  # of the files
    lines: int = 0  # all that were seen
    counts: Counter[BadKind] = field(default_factory=Counter)
    first: dict[BadKind, list[BadLine]] = field(default_factory=dict)

    @property
    def bad(self) -> int:
        """How many lines cannot be used."""
        return self.counts.total()

    def add(self, bad: BadLine) -> None:
        """Count a bad line; `lines` is counted by whoever reads them."""
        self.counts[bad.kind] += 1
        shown = self.first.setdefault(bad.kind, [])
        if len(shown) < SHOWN:
            shown.append(bad)

    def describe(self) -> str | None:
        """What was left out, in a line and one for each of the first few; None if nothing was."""
        if not self.bad:
            return None
        return self._message(f"{self.name}: left out {self._counted}", "; data.bad_lines=error stops instead")

    def check(self, data: Data) -> None:
        """An error if there is nothing left to use, or more is left out than the settings allow."""
        if not self.lines:
            raise DataError(f"{self.name} holds no example")
        if self.bad >= self.lines:
            raise DataError(self._message(f"{self.name} has no line that can be used", ""))
        if self.bad and data.bad_lines == "error":
            raise DataError(
                self._message(
                    f"{self.name}: {self._counted} cannot be used", "; mend or remove them, or set data.bad_lines=skip"
                )
            )
        if self.bad > data.bad_limit * self.lines:
            advice = "; check source.column and target.column, or raise data.bad_limit"
            if self.counts.most_common(1)[0][0] == "long":
                advice = "; raise max_length of source and target, or data.bad_limit"
            many = f"{self._counted} cannot be used, more than data.bad_limit={data.bad_limit:g} of them"
            raise DataError(self._message(f"{self.name}: {many}", advice))

    @property
    def _counted(self) -> str:
        return f"{self.bad:,} of {self.lines:,} lines"

    def _message(self, what: str, advice: str) -> str:
        """A message with how many lines of each kind there are, and the first few of them."""
        kinds = ", ".join(f"{count:,} {KINDS[kind]}" for kind, count in self.counts.most_common())
        return f"{what}: {kinds}{advice}" + "".join(f"\n  {bad}" for shown in self.first.values() for bad in shown)


KINDS: dict[BadKind, str] = {
    "blank": "blank", "malformed": "malformed", "undecodable": "not UTF-8", "long": "too long",
    "unreadable": "with a file that cannot be read",
}  # fmt: skip


def scan(data: Data, split: str, sides: Sides) -> Report:
    """Read a whole split and tell what of it cannot be used."""
    report = Report(split_names(data, split))
    return _counted(report, read_examples(data, split, sides.form_of(split), report.add), sides)


def scan_each(data: Data, split: str, sides: Sides) -> Iterator[Report]:
    """Read a whole split and tell of each of its corpora what cannot be used."""
    for corpus in data.split(split):
        report = Report(file_names(corpus.files))
        yield _counted(report, read_corpus(corpus, sides.form_of(split), report.add), sides)


def _counted(report: Report, examples: Iterable[Example], sides: Sides) -> Report:
    kept = sum(1 for _ in _usable(examples, sides, report.add))
    report.lines = kept + report.bad
    return report


def usable_examples(data: Data, split: str, sides: Sides, on_bad: OnBad) -> Iterator[Example]:
    """The examples of a split that have what they need; each line that gives none is handed to `on_bad`."""
    return _usable(read_examples(data, split, sides.form_of(split), on_bad), sides, on_bad)


def _usable(examples: Iterable[Example], sides: Sides, on_bad: OnBad) -> Iterator[Example]:
    for example in examples:
        if fault := sides.find_fault(example):
            on_bad(BadLine(example.place, cast(BadKind, fault[0]), fault[1]))
        else:
            yield example


def split_names(data: Data, split: str) -> str:
    """The files of a split, of all corpora, in a few letters."""
    return " + ".join(file_names(corpus.files) for corpus in data.split(split))


def file_names(files: Paths | None) -> str:
    """Some files in a few letters."""
    return str(files) if isinstance(files, str | PathLike) else " + ".join(map(str, files or ()))
