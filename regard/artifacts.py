"""Everything Regard leaves on disk: whole or absent, marked as its own, locked while in use, checked when read.

A *file* is written beside its place, synced, and moved in, so that a kill or a full disk at any moment leaves the old
one or the new one. JSON and tensors carry a checksum of what they hold; a file that does not agree with its own is
refused by name (`DamagedError`).

A *folder* (a run, a model, an export, a comparison, a corpus, an unfinished output) has a mark, `regard.json`, which
says what it is and in which format. Only a marked folder is ever removed or replaced, and its mark goes last.

A *lock* belongs to a process: a second one is refused with the first one's pid, and the lock of one that died is free.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import socket
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regard.errors import DamagedError, OutputError

FORMAT = 1  # of everything written here; raised when an older Regard could not read it
MARK = "regard.json"
LOCK = ".lock"


# Files


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write a file under, which is synced and moved to `path`, or to what that links to, at the end; on an
    error `path` stays."""
    path = path.resolve() if path.is_symlink() else path
    temporary = beside(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def beside(path: Path) -> Path:
    """Where a file is written before it is moved in: a kill may leave it there, and the next writer replaces it."""
    return path.with_name(f".{path.name}.tmp")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or none."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none, in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write an object with its checksum and format, which are no names of its own."""
    assert not {"format", "checksum"} & content.keys(), "these are added here"
    whole = {"format": FORMAT, **content}
    write_text(path, json.dumps({**whole, "checksum": _checksum_of(whole)}, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote; a missing file is a FileNotFoundError, a damaged one a DamagedError."""
    try:
        content = json.loads(path.read_bytes())
        expected, number = content.pop("checksum"), int(content["format"])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IsADirectoryError):
        raise DamagedError(f"{path} is damaged: it is not the JSON that Regard wrote") from None
    if expected != _checksum_of(content):
        raise DamagedError(f"{path} is damaged: its checksum differs")
    if number > FORMAT:
        raise OutputError(
            f"{path} was written by a later Regard (format {number}; this one reads {FORMAT}); update Regard"
        )
    del content["format"]
    return dict(content)


def _checksum_of(content: dict[str, Any]) -> str:
    return checksum([json.dumps(content, sort_keys=True).encode()])


def distinct_texts(content: Any) -> list[str]:
    """A list out of a file, if it holds different texts and nothing else."""
    if not isinstance(content, list) or not all(isinstance(text, str) and text for text in content):
        raise ValueError("it should hold a list of texts")
    if len(set(content)) < len(content):
        raise ValueError("it holds a text twice")
    "".join(content).encode()  # half a character is an error
    return content


def checksum(parts: Iterable[bytes | memoryview], before: str = "00000000") -> str:
    """A CRC-32 over all parts, which any flipped bit changes; `before` is that of what came earlier."""
    value = int(before, 16)
    for part in parts:
        value = zlib.crc32(part, value)
    return f"{value:08x}"


def file_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return checksum(iter(lambda: file.read(1 << 20), b""))


def file_digest(path: Path) -> str:
    """A digest of a file's content, which tells it from every other."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Have a file or a folder on disk, and not only in memory. Some file systems cannot sync a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Have a folder and all in it on disk."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


# Folders


def mark(folder: Path, kind: str, **facts: Any) -> None:
    """Say that a folder is Regard's own, and what it is."""
    write_json(folder / MARK, {"kind": kind, **facts})


def read_mark(folder: Path) -> dict[str, Any] | None:
    """The mark of a folder, or None if it has none."""
    try:
        found = read_json(folder / MARK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(found.get("kind"), str):
        raise DamagedError(f"{folder / MARK} is damaged: it does not say of what kind the folder is")
    return found


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but what a kill may leave before its mark is written."""
    return {path.name for path in folder.iterdir()} <= {LOCK, beside(folder / MARK).name}


def discard(folder: Path) -> None:
    """Remove a folder that is empty or marked; the mark goes last, so that a kill leaves it marked."""
    if not folder.exists():
        return
    if folder.is_symlink() or not (is_empty(folder) or (folder / MARK).is_file()):
        raise OutputError(f"{folder} was not made by Regard, so it is not removed; move it away, or give another name")
    for path in sorted(folder.iterdir(), key=lambda path: path.name == MARK):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.rmdir()


@contextmanager
def new_folder(place: Path, kind: str, *, force: bool = False, **facts: Any) -> Iterator[Path]:
    """A folder to fill, which is marked, synced and moved to `place` at the end; on an error it goes away again.

    What is there already stays, unless `force` is given and it is a marked folder of this `kind` that holds nothing
    else: that one stays until the new one is whole.
    """
    place = place.resolve()
    _check_place(place, kind, force=force)
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f".{place.name}.new")
    with locked(place.with_name(f".{place.name}.lock"), place):
        discard(new)
        new.mkdir()
        try:
            mark(new, kind, **facts)
            yield new
            known = read_mark(new) or {}
            mark(new, **{**known, "files": sorted(path.name for path in new.iterdir())})
            sync_tree(new)
            _check_place(place, kind, force=force)  # again: it may have come to be meanwhile
            _move_in(new, place)
        finally:
            discard(new)


def _check_place(place: Path, kind: str, *, force: bool) -> None:
    """Refuse a place where something is that may not be replaced."""
    if not place.exists() or (place.is_dir() and is_empty(place)):
        return
    if not force:
        raise OutputError(f"{place} exists; give another name, or --force to replace it")
    found = read_mark(place) if place.is_dir() else None
    if found is None or found["kind"] != kind:
        raise OutputError(
            f"{place} is no {kind} that Regard has marked as its own, so it is not replaced; remove it by hand, or "
            "give another name"
        )
    own = {*found.get("files", ()), MARK, LOCK, "scores.json"}
    for path in sorted(place.iterdir()):
        inside = list(path.iterdir()) if path.is_dir() else [path]
        if path.name not in own and not all((inner / MARK).is_file() for inner in inside):
            raise OutputError(f"{path} was not put there by Regard, so {place} is not replaced; move it away")


def _move_in(new: Path, place: Path) -> None:
    """Put a folder where another may be, which is then where the new one was. One step, where the system has it."""
    if not place.exists():
        new.replace(place)
    elif not _exchange(new, place):
        old = place.with_name(f".{place.name}.old")
        discard(old)
        place.replace(old)
        new.replace(place)
        discard(old)
    sync(place.parent)


def _exchange(a: Path, b: Path) -> bool:
    """Let two paths change places at once (Linux's renameat2); False where that cannot be done."""
    if sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None, use_errno=True), "renameat2"):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return not libc.renameat2(here, os.fsencode(a), here, os.fsencode(b), exchange)


# Locks


class Lock:
    """A lock that is held. A note left in it outlives its owner: `before` is that of one that died."""

    def __init__(self, descriptor: int, before: str) -> None:
        self.descriptor, self.before = descriptor, before

    def note(self, text: str) -> None:
        """Leave a note for who comes after a kill."""
        content = f"process {os.getpid()} on {socket.gethostname()}\n{text}\n".encode()
        os.pwrite(self.descriptor, content, 0)
        os.ftruncate(self.descriptor, len(content))


@contextmanager
def locked(path: Path, what: Path | str) -> Iterator[Lock]:
    """Hold the lock file `path` for as long as `what` is worked on; a second process is refused. The system releases
    the lock when its process dies."""
    lock = _acquire(path, what)
    try:
        yield lock
    finally:
        try:
            path.unlink(missing_ok=True)  # while it is held: who opened it before looks again
        finally:
            os.close(lock.descriptor)


def _acquire(path: Path, what: Path | str) -> Lock:
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        owner, _, note = os.pread(descriptor, 4096, 0).decode("utf-8", "replace").partition("\n")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise OutputError(
                f"{what} is in use by {owner or 'another process'}; wait until that has ended, or give another name"
            ) from None
        except OSError as error:  # a file system without locks
            if error.errno not in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS):
                os.close(descriptor)
                raise
        try:
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                lock = Lock(descriptor, note.strip())
                lock.note("")
                return lock
        except FileNotFoundError:
            pass  # its owner removed it in between: look again
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(descriptor)
