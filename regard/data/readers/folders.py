"""One folder a label: `train/cat/1.jpg`, as ImageNet and torchvision's ImageFolder have it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from regard.data.examples import Example
from regard.data.lines import BadLine, OnBad, named, tell
from regard.data.readers.reader import Reader, is_folder
from regard.errors import DataError


class Layout(Reader):
    """Each entry of a label's folder is an example: a file or, for clips that are folders of frames, a folder. Names
    that begin with a dot are left alone."""

    name = "folders"

    @classmethod
    def recognises(cls, paths: Sequence[Path]) -> bool:
        return len(paths) == 1 and paths[0].is_dir() and any(_entries(paths[0], folders=True))

    @property
    def files(self) -> Iterable[Path]:
        return ()

    def examples(self, on_bad: OnBad | None) -> Iterator[Example]:
        labels = _entries(self.path, folders=True)
        if not labels:
            raise DataError(f"{self.path} holds no folders; each label needs one, such as {self.path / 'cat'}")
        for label in labels:
            for name in _entries(self.path / label):
                place = f"{self.path}/{label}/{name}"
                try:
                    example = self.example(f"{label}/{name}", label, place)
                except BadLine as bad:
                    tell(bad, on_bad)
                else:
                    yield example


def _entries(folder: Path, *, folders: bool = False) -> list[str]:
    """What a folder holds (`folders`: which folders), by name, so that the order is the same everywhere."""
    with named(folder), os.scandir(folder) as entries:
        return sorted(x.name for x in entries if not x.name.startswith(".") and (not folders or is_folder(x)))
