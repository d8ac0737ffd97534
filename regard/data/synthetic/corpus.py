"""A folder with a corpus that Regard made: whole, told from what is the user's, and never mixed with it.

What was written is recorded in the folder's `corpus.json` by its digest. What is there with another digest is the
user's, and then nothing is written. All is made in `.corpus.new` first and then moved in, so that a kill leaves the
corpus that was there, or the new one, or one that is recorded as unfinished, which the next call makes whole.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.artifacts import discard, file_digest, locked, mark, read_json, replacing, write_json
from regard.errors import DamagedError, OutputError
from regard.fingerprint import Fingerprint

NOTE = "corpus.json"
POLL = 0.1  # seconds from one look at a lock to the next


# How many eighths of all examples of a corpus each split owns.
SPLITS: dict[str, range] = {"train": range(6), "valid": range(6, 7), "test": range(7, 8)}
REPORT_EVERY = 500


def check_split(size: int, split: str, corpus: str, examples: str) -> None:
    """A ValueError if there is no such split, or none of this size."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; {corpus} {' and '.join(map(repr, SPLITS))}")
    if size < 0:
        raise ValueError(f"size ({size}) of {split} is negative; ask for 0 {examples} or more")


def write_splits(
    folder: Path, ending: str, lines: Mapping[str, Iterable[str]], progress: Callable[[int], None] | None
) -> dict[str, Path]:
    """Write the lines of each split into a file of `folder`; returns where each is.

    Each file appears when it is complete, never half written, and none that is there is replaced. `progress` is called
    now and then with the number of lines so far, of all splits together.
    """
    paths = {split: folder / f"{split}.{ending}" for split in lines}
    for path in paths.values():
        if path.exists():
            raise OutputError(f"{path} exists; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    done = 0
    for split, path in paths.items():
        with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
            for line in lines[split]:
                file.write(f"{line}\n")
                done += 1
                if progress is not None and done % REPORT_EVERY == 0:
                    progress(done)
    if progress is not None:
        progress(done)
    return paths


@dataclass(frozen=True)
class _Note:
    """What `corpus.json` says: which corpus it is, and the digests of its files and of those that they replace."""

    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    finished: bool = False

    def is_ours(self, name: str, digest: str) -> bool:
        return digest in (self.files.get(name), self.before.get(name))


def make(
    folder: Path, facts: Mapping[str, Any], names: Sequence[str], write: Callable[[Path], object], *,
    force: bool | None = None, otherwise: str = "give another folder",
) -> None:  # fmt: skip
    """See that `folder` holds the corpus that the `facts` tell of, in files (or folders) of these `names`.

    If it does not yet, `write` writes them into another folder, from where they are moved in. `force` replaces an
    earlier corpus of Regard's, and never a file that is not as Regard wrote it; None if there is no such option to
    advise. `otherwise` is what else an error advises.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; {otherwise}")
    if _is_whole(folder, facts, names, otherwise):
        return
    _leaving(folder, facts, names, force=force, otherwise=otherwise)  # before the work, what forbids it
    folder.mkdir(parents=True, exist_ok=True)
    with in_turn(folder / ".corpus.lock", folder):
        if _is_whole(folder, facts, names, otherwise):  # another process made it meanwhile
            return
        new = folder / ".corpus.new"
        discard(new)
        new.mkdir()
        try:
            mark(new, "corpus")
            write(new)
            if any((new / name).is_dir() for name in names):
                os.sync()  # pictures by the thousand, at once
            leaving = _leaving(folder, facts, names, force=force, otherwise=otherwise)
            _move_in(folder, new, _Note(dict(facts), {name: _digest(new / name) for name in names}, leaving))
        finally:
            discard(new)


def _move_in(folder: Path, new: Path, note: _Note) -> None:
    """Set aside what is replaced, all of it, and only then move in what replaces it: no two corpora are mixed."""
    record = {"corpus": note.facts, "files": note.files}
    write_json(folder / NOTE, {**record, "before": note.before, "finished": False})
    (new / "before").mkdir()
    for name in note.before:
        (folder / name).rename(new / "before" / name)
    for name in note.files:
        (new / name).rename(folder / name)
    write_json(folder / NOTE, {**record, "before": {}, "finished": True})


def _is_whole(folder: Path, facts: Mapping[str, Any], names: Sequence[str], otherwise: str) -> bool:
    """Whether this very corpus is there. Its files have to be as they were written; of folders, being there will do."""
    note = _read(folder, otherwise)
    if not note.finished or note.facts != dict(facts) or not all((folder / name).exists() for name in names):
        return False
    for name in names:
        if (folder / name).is_file() and not note.is_ours(name, _digest(folder / name)):
            raise OutputError(f"{folder / name} was changed since Regard made it; {otherwise}")
    return True


def _leaving(
    folder: Path, facts: Mapping[str, Any], names: Sequence[str], *, force: bool | None, otherwise: str
) -> dict[str, str]:
    """What is there and is to be replaced, with its digest; an error if any of it may not be."""
    note = _read(folder, otherwise)
    found = {
        name: _digest(folder / name) for name in dict.fromkeys([*names, *note.files]) if os.path.lexists(folder / name)
    }
    for name in names:
        if name in found and not note.is_ours(name, found[name]):
            raise OutputError(f"{folder / name} exists and was not made by Regard; {otherwise}")
    ours = {name: digest for name, digest in found.items() if note.is_ours(name, digest)}
    if ours and note.finished and not force and (differing := Fingerprint(facts).differences(note.facts)):
        what = ", ".join(map(str, differing))
        or_force = ", or --force to replace it" if force is not None else ""
        raise OutputError(f"{folder} holds another corpus that Regard made: {what}; {otherwise}{or_force}")
    return ours


def _read(folder: Path, otherwise: str) -> _Note:
    try:
        raw = read_json(folder / NOTE)
        return _Note(raw["corpus"], raw["files"], raw["before"], raw["finished"])
    except FileNotFoundError:
        return _Note()
    except (DamagedError, KeyError, IsADirectoryError):
        raise OutputError(
            f"{folder / NOTE} is damaged, or is not Regard's, and so cannot say what in {folder} is; remove it and the "
            f"corpus, or {otherwise}"
        ) from None


def _digest(path: Path) -> str:
    """Of a file, or of all names and files in a folder. A link is never Regard's."""
    if path.is_symlink():
        return "a link"
    if not path.is_dir():
        return file_digest(path)
    found = hashlib.sha256()
    for inner in sorted(path.rglob("*")):
        found.update(f"{inner.relative_to(path).as_posix()}\n".encode("utf-8", "surrogateescape"))
        found.update(b"" if inner.is_dir() and not inner.is_symlink() else _digest(inner).encode())
    return found.hexdigest()


@contextmanager
def in_turn(path: Path, what: Path) -> Iterator[None]:
    """Hold the lock file `path` as `locked` does, but wait for another process that holds it."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(path, what))
                break
            except OutputError:
                time.sleep(POLL)
        yield
