"""Questions with candidates to choose from, and solved examples to put before them, out of files.

A line of a .jsonl file is `{"context": …, "candidates": […], "gold": …}`, where `gold` is the number of the right one
from 0, or its text. A line of a .tsv file has the context and then the candidates, with the number of the right one
between them where that is given. A solved example may have its `answer` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.lines import BLANKS, BadLine, read_lines
from regard.data.records import ending, read_record, record_text
from regard.errors import DataError


@dataclass(frozen=True)
class Question:
    """What is given, what there is to choose from, and which of these is right, if that is known."""

    context: str
    candidates: tuple[str, ...]
    gold: int | None = None
    place: str = ""  # file:line

    def __post_init__(self) -> None:
        if not self.candidates:
            raise DataError(f"{self.place or 'a question'} has no candidates to choose from")
        if empty := [i for i, text in enumerate(self.candidates) if not text.strip(BLANKS)]:
            raise DataError(f"{self.place or 'a question'} has a candidate (number {empty[0]}) that is empty")
        if self.gold is not None and not 0 <= self.gold < len(self.candidates):
            known = f"but has {len(self.candidates)}; the first is 0"
            raise DataError(f"{self.place or 'a question'} says that candidate {self.gold} is right, {known}")


def read_questions(path: Path, *, gold: bool = False) -> Iterator[Question]:
    """The questions of a .jsonl or .tsv file; with `gold`, the second column of a .tsv says which is right."""
    parse = _parser(path)
    for number, line in read_lines(path):
        yield parse(line, f"{path}:{number}", gold)


def read_solved(path: Path, *, gold: bool = False) -> list[tuple[str, str]]:
    """The contexts and right answers of a file of questions, or of one that has the answers alone."""
    found = []
    for number, line in read_lines(path):
        place = f"{path}:{number}"
        if ending(path) == "jsonl" and "answer" in (record := read_record(line, place, "context")):
            found.append((record_text(record, "context", place), record_text(record, "answer", place)))
            continue
        cells = line.split("\t")
        if ending(path) != "jsonl" and not gold and len(cells) == 2:
            found.append((cells[0], cells[1]))
            continue
        question = _parser(path)(line, place, gold)
        if question.gold is None:
            raise BadLine(place, "malformed", "does not say which candidate is right; give an answer, or gold")
        found.append((question.context, question.candidates[question.gold]))
    return found


def _parser(path: Path) -> Any:
    if ending(path) not in ("jsonl", "tsv"):
        raise DataError(f"cannot tell how to read {path}; questions stand in a .jsonl or .tsv file")
    return _from_record if ending(path) == "jsonl" else _from_cells


def _from_record(line: str, place: str, gold: bool) -> Question:
    record = read_record(line, place, "context")
    context, candidates, right = record_text(record, "context", place), record.get("candidates"), record.get("gold")
    if not isinstance(candidates, list) or not all(isinstance(text, str) for text in candidates):
        raise BadLine(place, "malformed", "should have 'candidates', a list of texts")
    if isinstance(right, str):
        if right not in candidates:
            raise BadLine(place, "malformed", f"has gold '{right[:60]}', which is none of its candidates")
        right = candidates.index(right)
    if right is not None and (not isinstance(right, int) or isinstance(right, bool)):
        raise BadLine(place, "malformed", "has gold that is neither the number of a candidate nor its text")
    return Question(context, tuple(candidates), right, place)


def _from_cells(line: str, place: str, gold: bool) -> Question:
    context, *cells = line.split("\t")
    if not gold:
        return Question(context, tuple(cells), None, place)
    if not cells or not cells[0].isdecimal():
        what = "should have the number of the right candidate (from 0) as its second column"
        raise BadLine(place, "malformed", what)
    return Question(context, tuple(cells[1:]), int(cells[0]), place)
