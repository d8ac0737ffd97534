"""What of the data can be used: read once, before anything is made from them, and told in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from regard.data.corpora import BLANKS, BadKind, BadLine, Example, Files, OnBad, read_examples
from regard.data.labels import number
from regard.data.pictures import check_picture
from regard.errors import ConfigError, DataError
from regard.parts import HeadKind
from regard.settings import Data

SHOWN = 3  # lines of each kind that are told one by one


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
        return (
            f"{self.name}: left out {self._counted}: {self._kinds}; data.bad_lines=error stops instead{self._examples}"
        )

    def check(self, data: Data) -> None:
        """An error if there is nothing left to use, or more is left out than the settings allow."""
        if self.bad >= self.lines:
            raise DataError(f"{self.name} has no line that can be used: {self._kinds}{self._examples}")
        if self.bad and data.bad_lines == "error":
            raise DataError(
                f"{self.name}: {self._counted} cannot be used: {self._kinds}; mend or remove them, or set "
                f"data.bad_lines=skip{self._examples}"
            )
        if self.bad > data.bad_limit * self.lines:
            long = self.counts.most_common(1)[0][0] == "long"
            advice = "raise data.max_length or data.bad_limit" if long else "check data.columns or raise data.bad_limit"
            raise DataError(
                f"{self.name}: {self._counted} cannot be used, more than data.bad_limit={data.bad_limit:g} of them: "
                f"{self._kinds}; {advice}{self._examples}"
            )

    @property
    def _counted(self) -> str:
        return f"{self.bad:,} of {self.lines:,} lines"

    @property
    def _kinds(self) -> str:
        return ", ".join(f"{count:,} {KINDS[kind]}" for kind, count in self.counts.most_common())

    @property
    def _examples(self) -> str:
        return "".join(f"\n  {bad}" for shown in self.first.values() for bad in shown)


KINDS: dict[BadKind, str] = {
    "blank": "blank", "malformed": "malformed", "undecodable": "not UTF-8", "long": "too long",
    "picture": "with a picture that cannot be read",
}  # fmt: skip


def scan(data: Data, split: str, head: HeadKind) -> Report:
    """Read a whole split and tell what of it cannot be used."""
    files: Files | None = getattr(data, split)
    if files is None:
        raise ConfigError(f"the config names no data.{split}")
    report = Report(files if isinstance(files, str) else " + ".join(files))
    usable = sum(1 for _ in usable_examples(data, split, head, report.add))
    report.lines = usable + report.bad
    return report


def usable_examples(data: Data, split: str, head: HeadKind, on_bad: OnBad) -> Iterator[Example]:
    """The examples of a split that have what they need; each line that gives none is handed to `on_bad`."""
    checked_picture = lru_cache(maxsize=1024)(_picture_problem)  # captions of one picture stand together
    text, picture, is_number = data.source == "text", data.source == "picture", head == "number"
    for example in read_examples(data, split, on_bad):
        problem: tuple[BadKind, str] | None = None
        if not example.target.strip(BLANKS):
            problem = "blank", "has an empty target"
        elif text and not example.source.strip(BLANKS):
            problem = "blank", "has an empty source"
        elif is_number:
            problem = _number_problem(example.target)
        if picture and problem is None and (what := checked_picture(example.source)):
            problem = "picture", f"names what is no picture: {what}"
        if problem is None:
            yield example
        else:
            on_bad(BadLine(example.place, *problem))


def _number_problem(target: str) -> tuple[BadKind, str] | None:
    try:
        number(target, "it")
    except DataError as error:
        return "malformed", f"has a target that is no number: {error}"
    return None


def _picture_problem(path: str) -> str | None:
    try:
        check_picture(path)
    except DataError as error:
        return str(error)
    return None
