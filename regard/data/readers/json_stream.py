"""A long list in a JSON file, an element at a time."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.data.lines import named
from regard.errors import DataError

CHUNK = 2**20  # characters that are read at once
LONGEST = 2**24  # characters of one element
BLANKS = " \t\r\n"
ENDS = (*BLANKS, ",", "]", "}")  # what a number ends before


def elements(path: Path, key: str) -> Iterator[tuple[int, Any]]:
    """The elements, numbered from 0, of the list under this key of the object that a file (gzipped or not) holds."""
    with named(path), path.open("rb") as file:
        opened = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        text = _Text(io.TextIOWrapper(opened, "utf-8-sig"), path)
        try:
            yield from _elements(text, key)
        except RecursionError:
            raise DataError(f"{path} is nested too deeply to be read") from None


def _elements(text: _Text, key: str) -> Iterator[tuple[int, Any]]:
    text.take("{")
    while not text.has("}"):
        name = text.value()
        text.take(":")
        if text.has("["):
            for found in _list(text):
                if name == key:
                    yield found
            if name == key:
                return
        else:
            text.value()
        if not text.has(","):
            text.take("}")
            return


def _list(text: _Text) -> Iterator[tuple[int, Any]]:
    number = 0
    while not text.has("]"):
        yield number, text.value()
        number += 1
        if not text.has(","):
            text.take("]")
            return


class _Text:
    """Text of which a part is held, and what was read is dropped."""

    def __init__(self, file: io.TextIOWrapper, path: Path) -> None:
        self.file, self.path = file, path
        self.held, self.at = "", 0
        self.decoder = json.JSONDecoder()

    def has(self, mark: str) -> bool:
        """Whether this mark is next, after blanks; if so, it is taken."""
        self._skip_blanks()
        found = self.held.startswith(mark, self.at)
        self.at += found
        return found

    def take(self, mark: str) -> None:
        if not self.has(mark):
            after = self.held[self.at : self.at + 20]
            raise DataError(f"{self.path} is not the JSON it should be: '{mark}' is wanted before '{after}'")

    def value(self) -> Any:
        """The next value; a number may go on after what is held, so what ends it has to follow."""
        self._skip_blanks()
        while True:
            try:
                found, end = self.decoder.raw_decode(self.held, self.at)
                ended = not isinstance(found, int | float) or self.held[end : end + 1] in ENDS
                if (ended and end < len(self.held)) or not self._more():
                    self.at = end
                    return found
            except json.JSONDecodeError as error:
                if not self._more():
                    raise DataError(f"{self.path} is not JSON ({error.msg})") from None
            except ValueError as error:  # a number of thousands of digits
                raise DataError(f"{self.path} cannot be read as JSON ({error})") from None

    def _skip_blanks(self) -> None:
        while True:
            while self.at < len(self.held) and self.held[self.at] in BLANKS:
                self.at += 1
            if self.at < len(self.held) or not self._more():
                return

    def _more(self) -> bool:
        """Hold more, at least as much again as there is; False at the end."""
        rest = self.held[self.at :]
        if len(rest) > LONGEST:
            what = f"from '{rest[:40]}' on it is no JSON, or a value of more than {LONGEST:,} characters"
            raise DataError(f"{self.path} cannot be read: {what}")
        try:
            new = self.file.read(max(CHUNK, len(rest)))
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path} is not UTF-8 ({error.reason})") from None
        self.held, self.at = rest + new, 0
        return bool(new)
