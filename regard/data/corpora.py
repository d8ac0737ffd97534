"""Files to examples, a line at a time; what cannot be read is named by file and line."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import ConfigError, DataError
from regard.settings import Data

Files = str | Sequence[str]
BETWEEN = " <sep> "  # texts that make up one source
Columns = Sequence[int | str | list[int | str]]
Links = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Alignment:
    """Gold links (source word, target word). A careful reader is sure of some; others are possible."""

    sure: Links
    possible: Links  # includes the sure ones

    @staticmethod
    def parse(text: str) -> Alignment:
        """From Pharaoh's form: `0-0 1-2 3p4`, `i-j` sure and `ipj` (or `i?j`) possible."""
        sure, possible = set(), set()
        for link in text.split():
            match = re.fullmatch(r"(\d+)([-p?])(\d+)", link)
            if not match:
                raise ValueError(f"'{link}' is no link; write source-target word numbers from 0, such as 0-0 1-2 3p4")
            pair = (int(match[1]), int(match[3]))
            possible.add(pair)
            if match[2] == "-":
                sure.add(pair)
        return Alignment(frozenset(sure), frozenset(possible))


@dataclass(frozen=True, slots=True)
class Box:
    """Where in a picture the thing is that some words name: words `first` to `last` of the target, and corners as
    shares of the picture's width and height."""

    first: int
    last: int
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Example:
    """A source and its target, and where they stood. The source is a text, the path of a picture, or empty."""

    source: str
    target: str
    place: str = ""  # file:line
    alignment: Alignment | None = None
    boxes: tuple[Box, ...] = ()


def read_examples(data: Data, split: str) -> Iterator[Example]:
    """The examples of one split, as the settings say how to read them."""
    files: Files | None = getattr(data, split)
    if files is None:
        raise ConfigError(f"the config names no data.{split}")
    return read_files(files, data)


def read_files(files: Files, data: Data) -> Iterator[Example]:
    """The examples of some other files of the same form."""
    match data.source:
        case "none":
            return read_texts(files, data.columns)
        case "picture":
            return (_beside(example, files) for example in read_pairs(files, data.columns))
        case _:
            return read_pairs(files, data.columns)


def read_texts(files: Files, columns: Columns | None = None) -> Iterator[Example]:
    """Plain text, a line each, or one field of a .tsv or .jsonl file."""
    if not isinstance(files, str):
        raise DataError(f"data.source none needs one file of text, not {len(files)}: {list(files)}")
    path = Path(files)
    match _ending(path):
        case "tsv":
            chosen = str((columns or [1])[0])
            column = int(chosen) if chosen.isdigit() else 0
            if not column:
                raise DataError(
                    f"data.columns for {path} should be a column number from 1, such as [1]; not [{chosen}]"
                )
            for number, line in read_lines(path):
                cells = line.split("\t")
                if column > len(cells):
                    raise DataError(f"{path}:{number} has {len(cells)} columns, so no column {column}")
                yield Example("", cells[column - 1], f"{path}:{number}")
        case "jsonl":
            key = str((columns or ["text"])[0])
            for place, record in _records(path, key):
                yield Example("", _text(record, key, place), place)
        case _:
            for number, line in read_lines(path):
                yield Example("", line, f"{path}:{number}")


def _beside(example: Example, files: Files) -> Example:
    """The path of a picture is relative to the file that names it."""
    folder = Path(files if isinstance(files, str) else files[0]).parent
    return replace(example, source=str(folder / example.source))


def read_pairs(files: Files, columns: Columns | None = None) -> Iterator[Example]:
    """Examples of one .tsv or .jsonl file, or of two text files in a list; any may be gzipped."""
    if not isinstance(files, str):
        if len(files) != 2:
            raise DataError(f"data needs one .tsv or .jsonl file, or two text files; got {len(files)}: {list(files)}")
        return _read_two(Path(files[0]), Path(files[1]))
    path = Path(files)
    match _ending(path):
        case "tsv":
            return _read_tsv(path, columns)
        case "jsonl":
            return _read_jsonl(path, columns)
        case _:
            raise DataError(
                f"cannot tell how to read {path}; it should end in .tsv or .jsonl (or .gz after that), or be two text "
                "files in a list: [source.txt, target.txt]"
            )


def _ending(path: Path) -> str:
    return "".join(path.suffixes[-2:]).removesuffix(".gz").rpartition(".")[2]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file (gunzipped if it ends in .gz), numbered from 1."""
    empty = True
    for number, raw in enumerate(raw_lines(path), 1):
        empty = False
        yield number, decode(raw, f"{path}:{number}")
    if empty:
        raise DataError(f"{path} is empty; it should hold a sentence a line")


def decode(raw: bytes, place: str) -> str:
    """One line of UTF-8, without its end and without a byte order mark."""
    try:
        return raw.decode("utf-8").rstrip("\r\n").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place} is not UTF-8 (byte {error.start + 1}: 0x{raw[error.start]:02x}); "
            "convert the file, e.g. iconv -f latin1 -t utf-8"
        ) from None


def raw_lines(path: Path) -> Iterator[bytes]:
    """The undecoded lines of a file, gunzipped if it ends in .gz."""
    try:
        file: BinaryIO
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:  # type: ignore[assignment]
            yield from file
    except FileNotFoundError:
        raise DataError(f"no file {path}; check the path (in a config it is relative to that file)") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; name a file in it") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); make or download it again") from None


def _read_two(source: Path, target: Path) -> Iterator[Example]:
    number = 0
    for left, right in zip_longest(read_lines(source), read_lines(target)):
        if left is None or right is None:
            short, long = (source, target) if left is None else (target, source)
            raise DataError(
                f"{short} ends after line {number} but {long} goes on; line i of one must be the pair of line i of the "
                "other, so find where they part"
            )
        number = left[0]
        yield Example(left[1], right[1], f"{source}:{number}")


def _read_tsv(path: Path, columns: Columns | None) -> Iterator[Example]:
    """Columns may be named where the first line names them; that line is then no example."""
    parts, others = _several(columns or (1, 2, 3))
    chosen, lines = [str(name) for name in (*parts, *others)], read_lines(path)
    if not parts or not others or "0" in chosen:
        raise DataError(
            f"data.columns for {path} should be column numbers from 1, such as [1, 2], or names that its first line "
            f"holds; not {list(columns or [])}"
        )
    if not all(name.isdigit() for name in chosen):
        names = next(lines)[1].split("\t")
        for name in chosen:
            if not name.isdigit() and name not in names:
                raise DataError(f"{path}:1 names no column '{name}'; it names: {', '.join(names)}")
        chosen = [name if name.isdigit() else str(names.index(name) + 1) for name in chosen]
    numbers = [int(name) for name in chosen]
    for number, line in lines:
        place = f"{path}:{number}"
        cells = line.split("\t")
        for name, column in zip([*["source"] * len(parts), "target"], numbers, strict=False):
            if column > len(cells):
                raise DataError(
                    f"{place} has {len(cells)} column{'s' * (len(cells) != 1)}, so no column {column} for the {name}; "
                    "columns are parted by tabs"
                )
        source = BETWEEN.join(cells[column - 1] for column in numbers[: len(parts)])
        target, *more = numbers[len(parts) :]
        gold = cells[more[0] - 1] if more and more[0] <= len(cells) else None
        yield Example(source, cells[target - 1], place, _alignment(gold, place))


def _read_jsonl(path: Path, columns: Columns | None) -> Iterator[Example]:
    parts, others = _several(columns or ("source", "target", "alignment"))
    keys, more = [str(c) for c in parts], [str(c) for c in others]
    if not keys or not more:
        raise DataError(f"data.columns for {path} should name the keys of source and target, such as [source, target]")
    for place, record in _records(path, keys[0]):
        source = BETWEEN.join(_text(record, key, place) for key in keys)
        gold = record.get(more[1]) if len(more) > 1 else None
        yield Example(source, _text(record, more[0], place), place, _alignment(gold, place), _boxes(record, place))


def _several(columns: Columns) -> tuple[list[int | str], list[int | str]]:
    """The columns of the source, which may be several, and all others."""
    first, *others = columns
    flat = [other for other in others if not isinstance(other, list)]
    return (first if isinstance(first, list) else [first]), (flat if len(flat) == len(others) else [])


def _records(path: Path, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a .jsonl file, with where they stood."""
    for number, line in read_lines(path):
        place = f"{path}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{place} is not JSON ({error.msg} at character {error.pos + 1})") from None
        if not isinstance(record, dict):
            raise DataError(f'{place} should be an object such as {{"{key}": …}}, not {type(record).__name__}')
        yield place, record


def _boxes(record: dict[str, Any], place: str) -> tuple[Box, ...]:
    """`boxes`, if there: lists of first word, last word, left, top, right, bottom in pixels of `width` x `height`."""
    if "boxes" not in record:
        return ()
    try:
        width, height = float(record["width"]), float(record["height"])
        return tuple(
            Box(int(first), int(last), x0 / width, y0 / height, x1 / width, y1 / height)
            for first, last, x0, y0, x1, y1 in record["boxes"]
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise DataError(
            f"{place}: 'boxes' should be lists [first word, last word, left, top, right, bottom] in pixels, with the "
            "picture's 'width' and 'height' beside them"
        ) from None


def _text(record: dict[str, Any], key: str, place: str) -> str:
    if key not in record:
        raise DataError(f"{place} has no '{key}' (it has: {', '.join(record)}); set data.columns to the right keys")
    if not isinstance(record[key], str):
        raise DataError(f"{place}: '{key}' should be text, not {type(record[key]).__name__}")
    return str(record[key]).replace("\n", " ")


def _alignment(text: object, place: str) -> Alignment | None:
    if text is None or text == "":
        return None
    try:
        return Alignment.parse(str(text))
    except ValueError as error:
        raise DataError(f"{place}: {error}; or leave the column out with data.columns") from None
