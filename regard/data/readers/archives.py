"""Archives of encoded files, read where they lie: tar files, and `.npz` shards."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError

TABLE = 2**30  # bytes of an array that says something of all files of a shard
BYTES = ("data", "jpeg")  # what the array of all files, end to end, is called


@contextmanager
def readable(archive: Path) -> Iterator[None]:
    """Whatever is wrong with an archive is an error that names it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"no archive {archive}; check the path") from None
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read ({error}); make or download it again") from None
    except OSError as error:
        raise DataError(f"{archive} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise DataError(f"{archive} cannot be read: {error}") from None


def members_of(archive: Path) -> Members:
    """Where the members of an archive lie. It is read once, for as long as the file stays the same."""
    facts = archive.stat()
    return _members(archive, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@dataclass(frozen=True)
class Members:
    """Where each member of an archive lies, by name."""

    places: Mapping[str, int]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    several: Collection[str] = ()  # names that more than one of them has

    @staticmethod
    def of(names: Iterable[str], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Members:
        """Members in order, with their names."""
        places, several = dict[str, int](), set[str]()
        for number, name in enumerate(map(plain, names)):
            if places.setdefault(name, number) != number:
                several.add(name)
        return Members(places, starts, sizes, several)

    def __len__(self) -> int:
        return len(self.starts)

    def find(self, name: str) -> tuple[int, int] | None:
        """Where a member starts, and how many bytes it has."""
        number = self.places.get(plain(name))
        if plain(name) in self.several:
            raise ValueError(
                f"several files in it are called '{name[:200]}', so that the name does not say which is meant; write "
                "it anew with a name for each (an .npz may leave 'names' out)"
            )
        if number is None and not self.places and re.fullmatch("[0-9]{1,12}", name) and int(name) < len(self):
            number = int(name)  # members without names are numbered
        return None if number is None else (int(self.starts[number]), int(self.sizes[number]))


def plain(name: str) -> str:
    """A member's name as paths write it, without what changes nothing: `./a//b` is `a/b`."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


@lru_cache(maxsize=16)
def _members(archive: Path, *changes: int) -> Members:
    if archive.suffix == ".npz":
        return Shard(archive).members
    names, starts, sizes = list[str](), list[int](), list[int]()
    for member in tar_members(archive):
        if member.isfile():
            names.append(member.name)
            starts.append(member.offset_data)
            sizes.append(member.size)
    return Members.of(names, np.array(starts, np.int64), np.array(sizes, np.int64))


def tar_members(archive: Path) -> Iterator[tarfile.TarInfo]:
    """The members of a tar file, one after the other, with what they hold left unread."""
    try:
        opened = tarfile.open(archive, "r:")  # noqa: SIM115 - opened below, where its own errors are told apart
    except tarfile.ReadError as error:
        if tarfile.is_tarfile(archive):
            raise DataError(f"{archive} is compressed; gunzip it first, so that members can be found") from None
        raise DataError(f"{archive} cannot be read as a tar file ({error}); make or download it again") from None
    with opened:
        while (member := opened.next()) is not None:
            opened.members = []  # type: ignore[attr-defined]  # else it remembers all of them
            yield member
        with archive.open("rb") as file:  # at a damaged header it ends as if the file did
            file.seek(opened.offset)
            if any(file.read(tarfile.BLOCKSIZE)):
                raise DataError(f"{archive} is damaged at byte {opened.offset:,}; make or download it again")


class Shard:
    """An `.npz` of encoded files, as `np.savez` writes it: `data` (or `jpeg`) their bytes end to end, `offsets` where
    each begins and the last ends; `names`, `labels`, `classes` and `captions` if there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path), zipfile.ZipFile(path) as archive:
            self.arrays = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            self._bytes = next((name for name in BYTES if name in self.arrays), None)
            if self._bytes is None or "offsets" not in self.arrays:
                raise DataError(
                    f"{path} has the arrays {', '.join(sorted(self.arrays)[:10]) or 'none'}; a shard needs 'data' (the "
                    "bytes of all files, end to end) and 'offsets' (where each begins, and the last ends)"
                )

    def array(self, name: str) -> NDArray[Any] | None:
        """One of the arrays, or None; never a pickled one."""
        if name not in self.arrays:
            return None
        with readable(self.path), zipfile.ZipFile(self.path) as archive, archive.open(self.arrays[name]) as file:
            shape, _, dtype = _header(file)
        if dtype.hasobject:
            raise DataError(f"{self.path} has '{name}' as Python objects, which are not read; write plain strings")
        if int(np.prod(shape, dtype=object)) * dtype.itemsize > TABLE:
            raise DataError(f"{self.path} has '{name}' of more than {TABLE:,} bytes; split the shard")
        with readable(self.path), np.load(self.path, allow_pickle=False) as opened:
            found = np.asarray(opened[name])
            return np.char.decode(found, "utf-8") if found.dtype.kind == "S" else found

    @property
    def members(self) -> Members:
        """Where each file lies."""
        start, total = self._data()
        offsets, names = self.array("offsets"), self.array("names")
        if offsets is None or offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
            raise DataError(f"{self.path} has 'offsets' that should be whole numbers in a row, one more than files")
        bounds = offsets.astype(np.int64)
        if bounds[0] < 0 or bounds[-1] > total or (np.diff(bounds) < 0).any():
            raise DataError(f"{self.path} has 'offsets' that should rise from 0 to {total}, the size of its data")
        if names is not None and len(names) != len(bounds) - 1:
            raise DataError(f"{self.path} has {len(names)} names for {len(bounds) - 1} files")
        return Members.of(() if names is None else map(str, names), start + bounds[:-1], np.diff(bounds))

    def _data(self) -> tuple[int, int]:
        """Where in the file the bytes begin, and how many they are."""
        info = self.arrays[self._bytes or ""]
        if info.compress_type != zipfile.ZIP_STORED:
            raise DataError(
                f"{self.path} is compressed, so that no file in it can be found; write it with np.savez (pictures are "
                "compressed by themselves)"
            )
        with readable(self.path), self.path.open("rb") as file:
            file.seek(info.header_offset)
            local = file.read(30)  # of a member's own header, in which its name and more follow
            if len(local) < 30 or local[:4] != b"PK\3\4":
                raise DataError(f"{self.path} is damaged; make or download it again")
            file.seek(int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little"), io.SEEK_CUR)
            shape, _, dtype = _header(file)
            start = file.tell()
            if dtype != np.uint8 or len(shape) != 1 or start + shape[0] > self.path.stat().st_size:
                raise DataError(f"{self.path} has '{self._bytes}' that should be bytes in a row (uint8)")
            return start, shape[0]


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype of an array, as its file begins."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        return read(file)
    except Exception as error:  # it parses whatever it finds there
        raise ValueError(f"an array in it has no header that could be read ({error})") from None
