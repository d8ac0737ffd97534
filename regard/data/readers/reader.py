"""What every layout of data has, and which one some files have."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import ClassVar

from regard.data.examples import Example, Form
from regard.data.lines import BadLine, OnBad, named
from regard.data.readers.members import BETWEEN
from regard.data.records import ending
from regard.errors import DataError

# In the order in which they are tried; each is a module here with a class `Layout`.
FORMATS = ("kaldi", "webdataset", "npz", "librispeech", "folders", "coco", "flickr", "squad")
TRIED = 50  # names by which the folder of pictures is found


class Reader(ABC):
    """A layout of data on disk: how it is recognised, and how its examples are read, some at a time."""

    name: ClassVar[str]
    names_files: ClassVar[bool] = True  # its source is a file, so that a text cannot be
    most: ClassVar[int | None] = 1  # paths that it takes; None: any number

    def __init__(self, paths: Sequence[Path], form: Form) -> None:
        self.paths, self.form = list(paths), form
        self.path = self.paths[0]
        self.folder = self.path if self.path.is_dir() else self.path.parent
        if self.most is not None and len(paths) > self.most:
            raise DataError(f"data.format '{self.name}' is read from one path, not {len(paths)}: {[*map(str, paths)]}")
        if self.names_files and (len(form.given) != 1 or form.given[0].settings.text):
            kinds = " and ".join(part.settings.kind for part in form.given) or "none"
            raise DataError(
                f"{self.path} ({self.name}) has one source, a picture or a recording, and source.kind is {kinds}; set "
                "source.kind (or take a preset that reads it: `regard models`), or write a .jsonl file"
            )

    @classmethod
    @abstractmethod
    def recognises(cls, paths: Sequence[Path]) -> bool:
        """Whether these look like data of this layout."""

    @property
    @abstractmethod
    def files(self) -> Iterable[Path]:
        """The files that say what the examples are, apart from those that hold their sources."""

    @abstractmethod
    def examples(self, on_bad: OnBad | None) -> Iterator[Example]:
        """All examples; a bad record is raised, or handed to `on_bad`."""

    def example(self, source: str, target: str, place: str) -> Example:
        """An example of one source, whose path is relative to what is read."""
        try:
            target.encode()
        except UnicodeEncodeError:  # the name of a folder, for one
            what = f"has the target {target[:60]!a}, which is not UTF-8 text; rename it"
            raise BadLine(place, "undecodable", what) from None
        return Example(self.form.fields([source], self.folder, place), target, place)


class JsonFile(Reader):
    """A layout of one .json file."""

    @classmethod
    def recognises(cls, paths: Sequence[Path]) -> bool:
        return len(paths) == 1 and ending(paths[0]) == "json" and paths[0].is_file()

    @property
    def files(self) -> Iterable[Path]:
        return self.paths


def find_reader(files: Sequence[Path], form: Form) -> Reader | None:
    """What reads these files, if they are not tables, records or texts."""
    if form.format is not None:
        return _layout(form.format)(files, form)
    if ending(files[0]) in ("tsv", "jsonl"):
        return None
    with named(files[0]):
        folder = files[0].is_dir()
        for layout in map(_layout, FORMATS):
            if layout.names_files and form.given[0].settings.text and not folder:
                continue
            if layout.recognises(files):
                return layout(files, form)
    return None


def _layout(name: str) -> type[Reader]:
    found: type[Reader] = import_module(f"regard.data.readers.{name}").Layout
    return found


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a folder is a folder, or a link to one; a link that leads nowhere, or to itself, is none."""
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and Path(entry).is_dir())


def find_pictures(path: Path, form: Form, names: Iterable[str], usual: Sequence[str]) -> Callable[[str], str]:
    """Where the pictures are that a file of captions names: `data.root` (a folder, or an archive that holds them), the
    file's folder, or a folder beside it with one of the `usual` names; of these, the one that has most of them. What
    makes a path of a name is returned."""
    some = list(islice(names, TRIED))
    if form.root is not None:
        folders = [form.root, *(form.root / name for name in usual)]
    else:
        here = path.parent
        folders = [here, *(here / name for name in usual), *(here.parent / name for name in usual)]
    if folders[0].suffix in (".tar", ".npz") and folders[0].is_file():
        return f"{folders[0].absolute()}{BETWEEN}".__add__
    held = [sum((folder / name).is_file() for name in some) for folder in folders]
    if any(held):
        return partial(os.path.join, folders[held.index(max(held))].absolute())
    looked = ", ".join(str(folder) for folder in folders if folder.is_dir()) or "no folder"
    raise DataError(
        f"{path} names pictures such as {some[0] if some else 'none'}, and they are not in {looked}; set data.root to "
        "the folder (or the .tar or .npz) that holds them"
    )
