"""Lines written to a file so that an interrupted job resumes, and nothing that exists is lost."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from regard.artifacts import MARK, beside, checksum, is_empty, locked, mark, read_mark, sync
from regard.errors import DamagedError, OutputError
from regard.fingerprint import Fingerprint

UNFINISHED = "unfinished output"  # the kind of folder
KEY, RECORD = 8, 12  # bytes that stand for an input, and with a checksum of its line of output
T = TypeVar("T")


class Sink:
    """Where lines go, in order: standard output. `written` are there already, from an earlier process."""

    written = 0

    def __enter__(self) -> Self:
        if sys.stdout is None:
            raise OutputError("standard output is closed; give a file with --output")
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        pass

    def take_up(self, items: Iterator[T], content: Callable[[T], bytes], name: str) -> Iterator[T]:
        """The items, found at `name`, whose lines are not there yet; of those before them `content` has to be what it
        was when their lines were written."""
        return items

    def write(self, lines: Sequence[str], inputs: Sequence[bytes]) -> None:
        """Add lines and what they were made from, and hand them to the system at once."""
        sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode())
        sys.stdout.buffer.flush()


class LineFile(Sink):
    """Collects lines in the folder `PATH.partial` and moves them to `PATH` when all are there.

    The folder holds what the lines are made from and a key of each input: the same job over the same inputs resumes,
    another one is refused. Lines are worked on in windows, of which only whole ones count as `written`. `complete`: an
    earlier process was killed just after its last line.
    """

    def __init__(self, path: Path, made_from: Fingerprint, *, window: int = 1, force: bool = False) -> None:
        self.path, self.partial, self.made_from, self.window = (
            path,
            path.with_name(f"{path.name}.partial"),
            made_from,
            window,
        )
        self.force, self.complete = force, False
        self.files: dict[str, BinaryIO] = {}
        self.held = ExitStack()

    def __enter__(self) -> Self:
        path = self.path
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is no file; give the name of one")
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self.lock = stack.enter_context(locked(path.with_name(f".{path.name}.lock"), path))
            self._open()
            self.held = stack.pop_all()
        return self

    def _open(self) -> None:
        known = self._known()
        mine = known is not None and not self.made_from.differences(known["fingerprint"])
        moved = not (self.partial / "lines").exists() and self.path.exists()
        self.complete = moved and self.lock.before == self.made_from.digest
        if self.path.exists() and not (self.force or self.complete):
            raise OutputError(f"{self.path} exists; give another name, or --force to replace it")
        if self.complete:
            return
        if known is not None and not mine and not self.force:
            named = ", ".join(self.made_from.differences(known["fingerprint"]))
            raise OutputError(f"{self.partial} is of another job ({named}); remove it, or --force to start anew")
        if not mine:
            self._clear()
        self.partial.mkdir(exist_ok=True)
        mark(self.partial, UNFINISHED, fingerprint=dict(self.made_from.parts))
        for name in ("lines", "keys"):
            (self.partial / name).touch()
        self.written = self._whole_lines()
        self.files = {name: (self.partial / name).open("ab") for name in ("lines", "keys")}

    def _known(self) -> dict[str, Any] | None:
        """What is said of an unfinished output, if there is one."""
        if not self.partial.exists():
            return None
        try:
            known = read_mark(self.partial) if self.partial.is_dir() else None
        except DamagedError as error:
            if not self.force:
                raise OutputError(f"{error}; remove {self.partial}, or --force to start anew") from None
            return None
        if known is None and not (self.partial.is_dir() and is_empty(self.partial)):
            raise OutputError(f"{self.partial} was not made by Regard; move it away, or give another name")
        return known

    def _whole_lines(self) -> int:
        """Cut both files to the windows that are whole and undamaged, and say how many lines that is."""
        lines, keys = self.partial / "lines", self.partial / "keys"
        count = end = size = 0
        with lines.open("rb") as file, keys.open("rb") as known:
            for number, line in enumerate(file, 1):
                if known.read(RECORD)[KEY:] != _sum(line) or not line.endswith(b"\n"):
                    break
                size += len(line)
                if number % self.window == 0:
                    count, end = number, size
        os.truncate(lines, end)
        os.truncate(keys, count * RECORD)
        return count

    def take_up(self, items: Iterator[T], content: Callable[[T], bytes], name: str) -> Iterator[T]:
        if self.complete:
            return iter(())
        passed: list[T] = []  # kept only for a new start
        with (self.partial / "keys").open("rb") as file:
            for number in range(1, self.written + 1):
                item = next(items, None)
                if self.force and item is not None:
                    passed.append(item)
                if item is not None and file.read(RECORD)[:KEY] == _key(content(item)):
                    continue
                if self.force:
                    self.written = 0
                    for kept in self.files.values():
                        kept.truncate(0)
                    return chain(passed, items)
                raise OutputError(
                    f"{name}:{number} is not the line that {self.partial} was made from; give the same input, "
                    "remove that folder, or --force to start anew"
                )
        return items

    def write(self, lines: Sequence[str], inputs: Sequence[bytes]) -> None:
        ready = [f"{line}\n".encode() for line in lines]
        records = [_key(given) + _sum(line) for line, given in zip(ready, inputs, strict=True)]
        for name, content in (("keys", records), ("lines", ready)):
            self.files[name].write(b"".join(content))
            self.files[name].flush()

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        with self.held:
            for file in self.files.values():
                file.close()
            if error is not None:
                return
            if not self.complete:
                lines = self.partial / "lines"
                sync(lines)
                self.lock.note(self.made_from.digest)  # so that a kill after the move leaves no doubt that all is there
                lines.replace(self.path)
                sync(self.path.parent)
            self._clear()

    def _clear(self) -> None:
        """Remove what is ours of the folder, the mark last, and the folder too unless someone put something there."""
        for name in ("lines", "keys", beside(self.partial / MARK).name, MARK):
            (self.partial / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.partial.rmdir()


def _key(content: bytes) -> bytes:
    """What stands for an input, so that another one is noticed."""
    return hashlib.blake2b(content, digest_size=KEY).digest()


def _sum(line: bytes) -> bytes:
    """A checksum of a line of output."""
    return bytes.fromhex(checksum([line]))
