"""LibriSpeech's layout (Panayotov et al. 2015): `84/121123/84-121123.trans.txt` beside the `.flac` of each line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from regard.data.examples import Example
from regard.data.lines import BadLine, OnBad, each_line, named, numbered
from regard.data.readers.reader import Reader, is_folder
from regard.errors import DataError

ENDING = ".trans.txt"
SOUNDS = (".flac", ".wav", ".ogg", ".mp3")
DEPTH = 4  # folders above a transcript: a corpus, its parts, their speakers, their chapters


class Layout(Reader):
    """Lines of transcripts are examples: the name of a recording beside it, and what is said."""

    name = "librispeech"

    @classmethod
    def recognises(cls, paths: Sequence[Path]) -> bool:
        """One chapter is looked at: the layout is a regular one, and other folders may hold millions of files."""
        folder: Path | None = paths[0]
        for _ in range(DEPTH if len(paths) == 1 else 0):
            if folder is None or not folder.is_dir():
                return False
            with named(folder), os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
            if any(entry.name.endswith(ENDING) for entry in found):
                return True
            folder = next((Path(entry.path) for entry in found if is_folder(entry)), None)
        return False

    @property
    def files(self) -> Iterable[Path]:
        for folder, below, names in os.walk(self.path):
            below.sort()
            yield from (Path(folder, name) for name in sorted(names) if name.endswith(ENDING))

    def examples(self, on_bad: OnBad | None) -> Iterator[Example]:
        found = False
        for path in self.files:
            found = True
            yield from each_line(path, numbered(path), partial(self._example, path.parent), on_bad)
        if not found:
            raise DataError(f"{self.path} holds no {ENDING} files, as LibriSpeech does")

    def _example(self, folder: Path, line: str, place: str) -> Example:
        name, _, words = line.strip().partition(" ")
        if not name or "/" in name:
            raise BadLine(place, "malformed" if name else "blank", "should be a recording's name and its words")
        sounds = (folder / f"{name}{ending}" for ending in SOUNDS)
        path = next((sound for sound in sounds if sound.is_file()), folder / f"{name}{SOUNDS[0]}")
        return self.example(str(path.absolute()), words, place)
