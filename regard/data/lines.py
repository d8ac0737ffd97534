"""Lines of files: gunzipped, decoded, numbered; what cannot be read is named by file and line.

What is wrong with a line is a `BadLine`, which a reader raises or hands to whoever asked for it (`on_bad`) and reads
on. What is wrong with a whole file is always raised.
"""

from __future__ import annotations

import codecs
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, cast

from regard.errors import DataError

BLANKS = " \t\r\n\f\v"  # what `tokens.clean` takes for blank
LONGEST = 64 * 2**20  # bytes of a line; a file whose line goes on after that is not read further
BadKind = Literal["blank", "malformed", "undecodable", "long", "unreadable"]
T = TypeVar("T")


class BadLine(DataError):  # noqa: N818 - it is raised only where nobody asked for it
    """A line that cannot be used: where it stands (`place`, file:line), of what kind the fault is, and what it is."""

    def __init__(self, place: str, kind: BadKind, what: str) -> None:
        super().__init__(place, kind, what)  # what it is made of again when it comes out of another process
        self.place, self.kind, self.what = place, kind, what

    def __str__(self) -> str:
        return f"{self.place} {self.what}"


OnBad = Callable[[BadLine], None]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file (gunzipped if it ends in .gz), numbered from 1."""
    for number, raw in numbered(path):
        yield number, decode(raw, f"{path}:{number}")


def decode(raw: bytes, place: str) -> str:
    """One line of UTF-8, without its end and without a byte order mark."""
    try:
        return raw.decode("utf-8").rstrip("\r\n").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1}: 0x{raw[error.start]:02x}"
        what = f"is not UTF-8 ({byte}); convert the file, e.g. iconv -f latin1 -t utf-8"
        raise BadLine(place, "undecodable", what) from None


def numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """The undecoded lines of a file (gunzipped if it ends in .gz, `-` is standard input), numbered from 1."""
    if str(path) == "-":
        yield from from_standard_input()
        return
    number = 0
    with named(path), path.open("rb") as file:
        opened = io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=file))) if path.suffix == ".gz" else file
        for number, raw in _bounded(opened, str(path)):
            yield number, raw
    if not number:
        raise DataError(f"{path} is empty; it should hold a sentence a line")


def from_standard_input() -> Iterator[tuple[int, bytes]]:
    """The undecoded lines of standard input, numbered from 1."""
    if sys.stdin is None or sys.stdin.closed:
        raise DataError("standard input is closed; name a file to read")
    with named(Path("standard input")):
        yield from _bounded(sys.stdin.buffer, "standard input")


def _bounded(file: BinaryIO | io.BufferedReader, name: str) -> Iterator[tuple[int, bytes]]:
    """The lines of an open file, numbered, if none is too long to be one."""
    for number, raw in enumerate(iter(partial(file.readline, LONGEST + 1), b""), 1):
        if len(raw) > LONGEST:
            raise DataError(f"{name}:{number} goes on after {LONGEST // 2**20} MiB; is it a file of lines?")
        if number == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{name} is UTF-16; convert the file, e.g. iconv -f utf-16 -t utf-8")
        yield number, raw


@contextmanager
def named(path: Path) -> Iterator[None]:
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


def each_line(
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
