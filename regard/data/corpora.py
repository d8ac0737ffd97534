"""Files to examples, a line at a time; what cannot be read is named by file and line.

What is wrong with a line is a `BadLine`, which a reader raises or hands to whoever asked for it (`on_bad`) and reads
on. What is wrong with a whole file is always raised.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, cast

from regard.errors import ConfigError, DataError
from regard.settings import Data

Files = str | Sequence[str]
BETWEEN = " <sep> "  # texts that make up one source
BLANKS = " \t\r\n\f\v"  # what `tokens.clean` takes for blank
LONGEST = 64 * 2**20  # bytes of a line; a file whose line goes on after that is not read further
WORDS = 10_000  # a word that gold links and boxes name has a smaller number
Columns = Sequence[int | str | list[int | str]]
Links = frozenset[tuple[int, int]]
BadKind = Literal["blank", "malformed", "undecodable", "long", "picture"]
T = TypeVar("T")


class BadLine(DataError):  # noqa: N818 - it is raised only where nobody asked for it
    """A line that cannot be used: where it stands (`place`, file:line), of what kind the fault is, and what it is."""

    def __init__(self, place: str, kind: BadKind, what: str) -> None:
        super().__init__(f"{place} {what}")
        self.place, self.kind, self.what = place, kind, what


OnBad = Callable[[BadLine], None]


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
            match = re.fullmatch(r"([0-9]{1,9})([-p?])([0-9]{1,9})", link)
            pair = (int(match[1]), int(match[3])) if match else (WORDS, WORDS)
            if not match or max(pair) >= WORDS:
                raise ValueError(
                    f"'{_short(link)}' is no link; write source-target word numbers from 0, such as 0-0 1-2 3p4"
                )
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


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of input: its number, its bytes as they stood, and its source, which is empty where the line is bad."""

    number: int
    raw: bytes
    text: str
    bad: BadLine | None = None


def read_examples(data: Data, split: str, on_bad: OnBad | None = None) -> Iterator[Example]:
    """The examples of one split, as the settings say how to read them. The first bad line is raised; with `on_bad` it
    is handed over, as are all others."""
    files: Files | None = getattr(data, split)
    if files is None:
        raise ConfigError(f"the config names no data.{split}")
    for path in [files] if isinstance(files, str) else files:
        with _named(Path(path)):
            mode = Path(path).stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise DataError(
                f"{path} is a pipe or a device, and data.{split} is read more than once; write it to a file first"
            )
    return read_files(files, data, on_bad)


def read_files(files: Files, data: Data, on_bad: OnBad | None = None) -> Iterator[Example]:
    """The examples of some other files of the same form."""
    match data.source:
        case "none":
            return read_texts(files, data.columns, on_bad)
        case "picture":
            return _beside(read_pairs(files, data.columns, on_bad), files, on_bad)
        case _:
            return read_pairs(files, data.columns, on_bad)


def read_texts(files: Files, columns: Columns | None = None, on_bad: OnBad | None = None) -> Iterator[Example]:
    """Plain text, a line each, or one field of a .tsv or .jsonl file."""
    if not isinstance(files, str):
        raise DataError(f"data.source none needs one file of text, not {len(files)}: {list(files)}")
    path, lines = Path(files), _numbered(Path(files))
    parse = _source_parser(path, lines, columns, "text")
    yield from _each(path, lines, lambda line, place: Example("", parse(line, place), place), on_bad)


def _beside(examples: Iterator[Example], files: Files, on_bad: OnBad | None) -> Iterator[Example]:
    """The path of a picture is relative to the file that names it."""
    folder = Path(files if isinstance(files, str) else files[0]).parent
    for example in examples:
        if example.source.strip(BLANKS):
            yield replace(example, source=str(folder / example.source))
        else:
            tell(BadLine(example.place, "blank", "names no picture"), on_bad)


def read_sources(path: Path | None, data: Data) -> Iterator[SourceLine]:
    """The inputs in a file, or in standard input: the sources of a .tsv or .jsonl file as in training data, the lines
    of any other. Every line yields one, a bad one too; but not the line that names a table's columns."""
    lines = _numbered(path) if path else _from_standard_input()
    name = path or Path("standard input")
    parse: Callable[[str, str], str] = lambda line, place: line  # noqa: E731
    if _ending(name) in ("tsv", "jsonl"):
        parse = _source_parser(name, lines, data.columns, "text" if data.source == "none" else "source")
        if data.source == "picture":
            parse = partial(_picture_beside, parse, name.parent)
    for number, raw in lines:
        place = f"{name}:{number}"
        try:
            line = SourceLine(number, raw, parse(decode(raw, place), place))
        except BadLine as bad:
            line = SourceLine(number, raw, "", bad)
        yield line


def _picture_beside(parse: Callable[[str, str], str], folder: Path, line: str, place: str) -> str:
    text = parse(line, place)
    if not text.strip(BLANKS):
        raise BadLine(place, "blank", "names no picture")
    return str(folder / text)


def _source_parser(
    path: Path, lines: Iterator[tuple[int, bytes]], columns: Columns | None, key: str
) -> Callable[[str, str], str]:
    """How the source (or the one text) is found in a line; `key` is its usual name in .jsonl."""
    match _ending(path):
        case "tsv":
            parts, _ = _several(columns or [1])
            numbers = _column_numbers(path, parts, lines)

            def from_table(line: str, place: str) -> str:
                cells = line.split("\t")
                if len(cells) < max(numbers):
                    raise _too_few(cells, place, numbers, [key] * len(numbers))
                return BETWEEN.join([cells[number - 1] for number in numbers])

            return from_table
        case "jsonl":
            keys = [str(part) for part in _several(columns or [key])[0]]
            if not keys:
                raise DataError(f"data.columns for {path} should name a key, such as [{key}]; not {columns}")

            def from_record(line: str, place: str) -> str:
                record = _record(line, place, keys[0])
                return BETWEEN.join([_text(record, name, place) for name in keys])

            return from_record
        case _:
            return lambda line, place: line


def read_pairs(files: Files, columns: Columns | None = None, on_bad: OnBad | None = None) -> Iterator[Example]:
    """Examples of one .tsv or .jsonl file, or of two text files in a list; any may be gzipped."""
    if not isinstance(files, str):
        if len(files) != 2:
            raise DataError(f"data needs one .tsv or .jsonl file, or two text files; got {len(files)}: {list(files)}")
        return _read_two(Path(files[0]), Path(files[1]), on_bad)
    path = Path(files)
    match _ending(path):
        case "tsv":
            return _read_tsv(path, columns, on_bad)
        case "jsonl":
            return _read_jsonl(path, columns, on_bad)
        case _:
            raise DataError(
                f"cannot tell how to read {path}; it should end in .tsv or .jsonl (or .gz after that), or be two text "
                "files in a list: [source.txt, target.txt]"
            )


def _ending(path: Path) -> str:
    return "".join(path.suffixes[-2:]).removesuffix(".gz").rpartition(".")[2]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file (gunzipped if it ends in .gz), numbered from 1."""
    for number, raw in _numbered(path):
        yield number, decode(raw, f"{path}:{number}")


def decode(raw: bytes, place: str) -> str:
    """One line of UTF-8, without its end and without a byte order mark."""
    try:
        return raw.decode("utf-8").rstrip("\r\n").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise BadLine(
            place, "undecodable",
            f"is not UTF-8 (byte {error.start + 1}: 0x{raw[error.start]:02x}); "
            "convert the file, e.g. iconv -f latin1 -t utf-8",
        ) from None  # fmt: skip


def raw_lines(path: Path) -> Iterator[bytes]:
    """The undecoded lines of a file, gunzipped if it ends in .gz."""
    with _named(path), path.open("rb") as file:
        opened = io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=file))) if path.suffix == ".gz" else file
        yield from _bounded(opened, str(path))


def _bounded(file: BinaryIO | io.BufferedReader, name: str) -> Iterator[bytes]:
    """The lines of an open file, if none is too long to be one."""
    for number, raw in enumerate(iter(partial(file.readline, LONGEST + 1), b""), 1):
        if len(raw) > LONGEST:
            raise DataError(f"{name}:{number} goes on after {LONGEST // 2**20} MiB; is it a file of lines?")
        yield raw


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """The undecoded lines of a file, numbered from 1."""
    number = 0
    for number, raw in enumerate(raw_lines(path), 1):
        yield number, raw
    if not number:
        raise DataError(f"{path} is empty; it should hold a sentence a line")


def _from_standard_input() -> Iterator[tuple[int, bytes]]:
    if sys.stdin is None or sys.stdin.closed:
        raise DataError("standard input is closed; name a file to read")
    with _named(Path("standard input")):
        yield from enumerate(_bounded(sys.stdin.buffer, "standard input"), 1)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What the system says of a file, as an error that names it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"no file {path}; check the path (in a config it is relative to that file)") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; name a file in it") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); make or download it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have
        raise DataError(f"{str(path)!r} cannot be read: {error}") from None


def tell(bad: BadLine, on_bad: OnBad | None) -> None:
    """Hand a bad line over, or raise it where nobody asked for it."""
    if on_bad is None:
        raise bad
    on_bad(bad)


def _each(
    path: Path, lines: Iterator[tuple[int, bytes]], parse: Callable[[str, str], T], on_bad: OnBad | None
) -> Iterator[T]:
    """What a parser, which is given a line and its place, makes of each line."""
    name = str(path)
    for number, raw in lines:
        place = f"{name}:{number}"
        try:
            found = parse(decode(raw, place), place)
        except BadLine as bad:
            tell(bad, on_bad)
        else:
            yield found


def _read_two(source: Path, target: Path, on_bad: OnBad | None) -> Iterator[Example]:
    number = 0
    for left, right in zip_longest(_numbered(source), _numbered(target)):
        if left is None or right is None:
            short, long = (source, target) if left is None else (target, source)
            raise DataError(
                f"{short} ends after line {number} but {long} goes on; line i of one must be the pair of line i of the "
                "other, so find where they part"
            )
        number, place = left[0], f"{source}:{left[0]}"
        try:
            example = Example(decode(left[1], place), decode(right[1], f"{target}:{number}"), place)
        except BadLine as bad:
            tell(bad, on_bad)
        else:
            yield example


def _read_tsv(path: Path, columns: Columns | None, on_bad: OnBad | None) -> Iterator[Example]:
    """Columns may be named where the first line names them; that line is then no example."""
    parts, others = _several(columns or (1, 2, 3))
    if not parts or not others:
        raise _odd_columns(path, columns or [])
    lines = _numbered(path)
    numbers = _column_numbers(path, [*parts, *others], lines)
    source, (target, *more) = numbers[: len(parts)], numbers[len(parts) :]
    most, gold = max(*source, target), more[0] if more else sys.maxsize

    def parse(line: str, place: str) -> Example:
        cells = line.split("\t")
        if len(cells) < most:
            raise _too_few(cells, place, [*source, target], [*["source"] * len(source), "target"])
        text = BETWEEN.join([cells[number - 1] for number in source])
        links = _alignment(cells[gold - 1], place) if gold <= len(cells) else None
        return Example(text, cells[target - 1], place, links)

    yield from _each(path, lines, parse, on_bad)


def _column_numbers(path: Path, columns: Sequence[int | str], lines: Iterator[tuple[int, bytes]]) -> list[int]:
    """The numbers of columns, of which some may be named by the first line; that is then taken from `lines`."""
    wanted, names = [str(name) for name in columns], [""]
    digits = [re.fullmatch("[0-9]{1,9}", name) is not None for name in wanted]
    if not wanted or any(is_number and not int(name) for name, is_number in zip(wanted, digits, strict=True)):
        raise _odd_columns(path, columns)
    if not all(digits):
        names = decode(next(lines)[1], f"{path}:1").split("\t")
    for name, is_number in zip(wanted, digits, strict=True):
        if not is_number and name not in names:
            raise DataError(f"{path}:1 names no column '{_short(name)}'; it names: {_listed(names)}")
    return [int(n) if is_number else names.index(n) + 1 for n, is_number in zip(wanted, digits, strict=True)]


def _odd_columns(path: Path, columns: Columns) -> DataError:
    return DataError(
        f"data.columns for {path} should be column numbers from 1, such as [1, 2], or names that its first line holds; "
        f"not {list(columns)}"
    )


def _too_few(cells: list[str], place: str, numbers: list[int], sides: list[str]) -> BadLine:
    """What to say of a line that lacks some of these columns; `sides` says what each is."""
    if len(cells) == 1 and not cells[0].strip(BLANKS):
        return BadLine(place, "blank", "is blank; leave the line out")
    number, side = next(both for both in zip(numbers, sides, strict=True) if both[0] > len(cells))
    return BadLine(
        place, "malformed",
        f"has {len(cells)} column{'s' * (len(cells) != 1)}, so no column {number} for the {side}; columns are parted "
        "by tabs",
    )  # fmt: skip


def _read_jsonl(path: Path, columns: Columns | None, on_bad: OnBad | None) -> Iterator[Example]:
    parts, others = _several(columns or ("source", "target", "alignment"))
    keys, more = [str(c) for c in parts], [str(c) for c in others]
    if not keys or not more:
        raise DataError(f"data.columns for {path} should name the keys of source and target, such as [source, target]")

    def parse(line: str, place: str) -> Example:
        record = _record(line, place, keys[0])
        source = BETWEEN.join([_text(record, key, place) for key in keys])
        gold = record.get(more[1]) if len(more) > 1 else None
        return Example(source, _text(record, more[0], place), place, _alignment(gold, place), _boxes(record, place))

    yield from _each(path, _numbered(path), parse, on_bad)


def _several(columns: Columns) -> tuple[list[int | str], list[int | str]]:
    """The columns of the source, which may be several, and all others."""
    first, *others = columns
    flat = [other for other in others if not isinstance(other, list)]
    return (first if isinstance(first, list) else [first]), (flat if len(flat) == len(others) else [])


def _record(line: str, place: str, key: str) -> dict[str, Any]:
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
        raise BadLine(
            place, "malformed", f'should be an object such as {{"{key}": …}}, not {type(record).__name__}'
        )  # fmt: skip
    return record


def _boxes(record: dict[str, Any], place: str) -> tuple[Box, ...]:
    """`boxes`, if there: lists of first word, last word, left, top, right, bottom in pixels of `width` x `height`."""
    if "boxes" not in record:
        return ()
    try:
        width, height = float(record["width"]), float(record["height"])
        boxes = tuple(
            Box(int(first), int(last), x0 / width, y0 / height, x1 / width, y1 / height)
            for first, last, x0, y0, x1, y1 in record["boxes"]
        )
        sound = all(
            0 <= box.first <= box.last < WORDS and all(map(math.isfinite, (box.left, box.top, box.right, box.bottom)))
            for box in boxes
        )
    except (KeyError, TypeError, ValueError, ArithmeticError):
        sound = False
    if not (sound and 0 < width < math.inf and 0 < height < math.inf):
        raise BadLine(
            place, "malformed",
            "has 'boxes' that should be lists [first word, last word, left, top, right, bottom] in pixels, with the "
            "picture's 'width' and 'height' beside them",
        )  # fmt: skip
    return boxes


def _text(record: dict[str, Any], key: str, place: str) -> str:
    if key not in record:
        what = f"has no '{key}' (it has: {_listed(record)}); set data.columns to the right keys"
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


def _alignment(text: object, place: str) -> Alignment | None:
    if text is None or text == "":
        return None
    try:
        if not isinstance(text, str):
            raise ValueError(f"an alignment should be text such as 0-0 1-2, not {type(text).__name__}")
        return Alignment.parse(text)
    except ValueError as error:
        raise BadLine(
            place, "malformed", f"has an odd alignment: {error}; or leave the column out with data.columns"
        ) from None  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


def _listed(names: Iterable[str]) -> str:
    """A few names."""
    several = [_short(name) for name in islice(names, 11)]
    return ", ".join([*several[:10], *["…"] * (len(several) > 10)])
