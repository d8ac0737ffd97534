"""Captions as Flickr8k and Flickr30k have them: `1000268201_693b08cb0e.jpg#0<TAB>A child in a pink dress .`"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from regard.data.examples import Example
from regard.data.lines import BadLine, OnBad, each_line, numbered, read_lines
from regard.data.readers.reader import TRIED, Reader, find_pictures
from regard.data.records import ending
from regard.errors import DataError

CAPTION = re.compile(r"([^\t]+?)#([0-9]+)\t(.*)", re.DOTALL)
# Folders that the pictures come in, as they are distributed.
USUAL = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images")


class Layout(Reader):
    """A token file and, if not all of it is meant, a second file with the names of pictures, a line each:
    `[Flickr8k.token.txt, Flickr_8k.trainImages.txt]`."""

    name = "flickr"
    most = 2

    @classmethod
    def recognises(cls, paths: Sequence[Path]) -> bool:
        first = paths[0]
        if len(paths) > 2 or not first.is_file() or ending(first) in ("tsv", "jsonl"):
            return False
        try:
            _, raw = next(numbered(first))
            return CAPTION.match(raw.decode("utf-8")) is not None
        except (DataError, UnicodeDecodeError, StopIteration):
            return False

    @property
    def files(self) -> Iterable[Path]:
        return self.paths

    def examples(self, on_bad: OnBad | None) -> Iterator[Example]:
        wanted = {line.strip() for _, line in read_lines(self.paths[1])} - {""} if len(self.paths) > 1 else None
        matches = (CAPTION.match(raw.decode("utf-8", "replace")) for _, raw in numbered(self.path))
        names = (match[1] for match in matches if match and (wanted is None or match[1] in wanted))
        some = list(islice(names, TRIED))
        if not some:
            named = "" if wanted is None else f" of a picture that {self.paths[1]} names"
            raise DataError(f"{self.path} has no line such as 'name.jpg#0', a tab and a sentence{named}")
        place_of = find_pictures(self.path, self.form, some, USUAL)

        def parse(line: str, place: str) -> Example | None:
            match = CAPTION.fullmatch(line)
            if match is None:
                what = "is no caption such as 'name.jpg#0', a tab and a sentence" if line.strip() else "is blank"
                raise BadLine(place, "malformed" if line.strip() else "blank", what)
            if wanted is not None and match[1] not in wanted:
                return None
            return self.example(place_of(match[1]), match[3], place)

        yield from (x for x in each_line(self.path, numbered(self.path), parse, on_bad) if x is not None)
