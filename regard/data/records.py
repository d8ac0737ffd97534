"""Lines of tables (.tsv) and of records (.jsonl): which text stands where, and what is wrong with those that have
none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard.data.lines import BLANKS, BadLine, decode
from regard.errors import DataError
from regard.evaluation.alignment import Alignment

Name = int | str  # of a column: its number from 1, or what the first line calls it; in .jsonl a key
SEPARATOR = "<sep>"  # between texts that make up one source, whatever mark the vocabulary has for it
BETWEEN = f" {SEPARATOR} "


def ending(path: Path) -> str:
    """The ending of a file's name, that of gzip apart; `-`, standard input, is a table."""
    if str(path) == "-":
        return "tsv"
    return "".join(path.suffixes[-2:]).removesuffix(".gz").rpartition(".")[2]


def record_reader(
    path: Path, lines: Iterator[tuple[int, bytes]], groups: list[list[Name]], sides: list[str],
    gold: Name | None = None, bare: tuple[type, ...] = (),
) -> Callable[[str, str], tuple[list[str], object, dict[str, Any]]]:  # fmt: skip
    """What reads a line: the text of each group of columns, the gold alignment, and the record it stands in, if any.

    `sides` says what each group is, `bare` which numbers the target may be in a record.
    """
    names = [name for group in groups for name in group]

    def from_record(line: str, place: str) -> tuple[list[str], object, dict[str, Any]]:
        record = read_record(line, place, str(names[0]))
        texts = []
        for group, side in zip(groups, sides, strict=True):
            numbers = (*(bare if side == "target" else ()), *((int,) if len(group) > 1 else ()))
            own = (record_texts(record, str(name), place, len(group) > 1, numbers) for name in group)
            texts.append(BETWEEN.join(chain.from_iterable(own)))
        return texts, record.get(str(gold)) if gold is not None else None, record

    if ending(path) == "jsonl":
        return from_record
    numbers = _column_numbers(path, [*names, *([] if gold is None else [gold])], lines)
    aligned = numbers.pop() if gold is not None else None
    wanted, most = iter(numbers), max(numbers)
    columns = [list(islice(wanted, len(group))) for group in groups]

    def from_table(line: str, place: str) -> tuple[list[str], object, dict[str, Any]]:
        cells = line.split("\t")
        if len(cells) < most:
            raise _too_few(cells, place, columns, sides)
        texts = [BETWEEN.join([cells[number - 1] for number in own]) for own in columns]
        return texts, cells[aligned - 1] if aligned is not None and aligned <= len(cells) else None, {}

    return from_table


def _column_numbers(path: Path, columns: Sequence[Name], lines: Iterator[tuple[int, bytes]]) -> list[int]:
    """The numbers of columns, of which some may be named by the first line; that is then taken from `lines`."""
    wanted, names = [str(name) for name in columns], [""]
    digits = [re.fullmatch("[0-9]{1,9}", name) is not None for name in wanted]
    if not wanted or any(is_number and not int(name) for name, is_number in zip(wanted, digits, strict=True)):
        raise DataError(
            f"columns of {path} should be numbers from 1, or names that its first line holds; not {list(columns)}"
        )
    if not all(digits):
        names = decode(next(lines)[1], f"{path}:1").split("\t")
    for name, is_number in zip(wanted, digits, strict=True):
        if not is_number and name not in names:
            raise DataError(f"{path}:1 names no column '{_short(name)}'; it names: {_listed(names)}")
    return [int(n) if is_number else names.index(n) + 1 for n, is_number in zip(wanted, digits, strict=True)]


def _too_few(cells: list[str], place: str, columns: list[list[int]], sides: list[str]) -> BadLine:
    """What to say of a line that lacks some of these columns; `sides` says what each group of them is."""
    if len(cells) == 1 and not cells[0].strip(BLANKS):
        return BadLine(place, "blank", "is blank; leave the line out")
    grouped = zip(columns, sides, strict=True)
    number, side = next((n, side) for own, side in grouped for n in own if n > len(cells))
    count = f"{len(cells)} column{'s' * (len(cells) != 1)}"
    return BadLine(
        place, "malformed", f"has {count}, so no column {number} for the {side}; columns are separated by tabs"
    )


def read_record(line: str, place: str, key: str) -> dict[str, Any]:
    """The object in a line of a .jsonl file."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        if not line.strip(BLANKS):
            raise BadLine(place, "blank", "is blank; leave the line out") from None
        raise BadLine(place, "malformed", f"is not JSON ({error.msg} at character {error.pos + 1})") from None
    except RecursionError:
        raise BadLine(place, "malformed", "is nested too deeply to be read") from None
    except ValueError as error:  # a number of thousands of digits
        raise BadLine(place, "malformed", f"cannot be read as JSON ({error})") from None
    if not isinstance(record, dict):
        what = f'should be an object such as {{"{key}": …}}, not {type(record).__name__}'
        raise BadLine(place, "malformed", what)
    return record


def record_text(record: dict[str, Any], key: str, place: str) -> str:
    """The text under a key of a record."""
    if key not in record:
        what = f"has no '{key}' (it has: {_listed(record)}); set source.column or target.column to the right key"
        raise BadLine(place, "malformed", what)
    text = record[key]
    if not isinstance(text, str):
        number = isinstance(text, int | float) and not isinstance(text, bool)
        mend = f'; write it in quotes: "{_short(str(text))}"' if number else ""
        raise BadLine(place, "malformed", f"has '{key}' that should be text, not {type(text).__name__}{mend}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise BadLine(place, "malformed", f"has '{key}' with {half}, which is half a character") from None
    return text.replace("\n", " ")


def record_texts(record: dict[str, Any], key: str, place: str, several: bool, numbers: tuple[type, ...]) -> list[str]:
    """The text under a key of a record, or a number of these types; where `several` may be one source, also a list."""
    found = record.get(key)
    if type(found) in numbers:
        return [str(found)]
    if not several or not isinstance(found, list):
        return [record_text(record, key, place)]
    return [record_text({f"{key}[{i}]": text}, f"{key}[{i}]", place) for i, text in enumerate(found)]


def read_alignment(text: object, place: str) -> Alignment | None:
    if text is None or text == "":
        return None
    try:
        if not isinstance(text, str):
            raise ValueError(f"an alignment should be text such as 0-0 1-2, not {type(text).__name__}")
        return Alignment.parse(text)
    except ValueError as error:
        what = f"has an odd alignment: {error}; or leave the column out with data.alignment=false"
        raise BadLine(place, "malformed", what) from None


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


def _listed(names: Iterable[str]) -> str:
    """A few names."""
    several = [_short(name) for name in islice(names, 11)]
    return ", ".join([*several[:10], *["…"] * (len(several) > 10)])
