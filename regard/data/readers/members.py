"""What a field of a record names: a file, a file inside an archive, or a span of a recording.

- `photos/1.jpg`: a file.
- `shard.tar::000001.jpg`, `shard.npz::17`: a member of an archive, which is read where it lies and never unpacked: its
  name is looked up in the archive, and no file of that name is ever opened.
- `talk.flac#t=1.5,4.25`: a recording from second 1.5 to second 4.25, as media fragments of the web are written.
"""

from __future__ import annotations

import io
import re
import time
from functools import lru_cache
from pathlib import Path

from regard.artifacts import file_digest
from regard.data.readers.archives import members_of, readable
from regard.errors import DataError

BETWEEN = "::"  # an archive and the name of a member
INSIDE = re.compile(r"(.+?\.(?:tar|npz))::(.+)", re.DOTALL)
SPAN = re.compile(r"(.+)#t=([0-9]{1,9}(?:\.[0-9]{1,9})?),([0-9]{1,9}(?:\.[0-9]{1,9})?)", re.DOTALL)
LARGEST = 2**28  # bytes of a member
RACY = 2.0  # seconds: a file that changed less than that ago may change again without a trace in its time


def open_field(field: str | Path) -> Path | io.BytesIO:
    """What a library that takes a path or an open file can read a field from."""
    inside = split_member(str(field))
    return Path(field) if inside is None else io.BytesIO(read_member(*inside))


def split_member(field: str) -> tuple[Path, str] | None:
    """The archive and the member that a field names; None if it names a file."""
    match = INSIDE.fullmatch(field)
    return (Path(match[1]), match[2]) if match else None


def split_span(field: str) -> tuple[str, float, float | None]:
    """What a field names, and from which second to which; 0 and None where it is the whole."""
    match = SPAN.fullmatch(field)
    return (match[1], float(match[2]), float(match[3])) if match else (field, 0.0, None)


def read_member(archive: Path, name: str) -> bytes:
    """The content of a member of an archive."""
    with readable(archive):
        members = members_of(archive)
        found = members.find(name)
        if found is None:
            raise DataError(f"{archive} holds no '{name[:200]}'; it has {len(members):,} members")
        start, size = found
        if size > LARGEST:
            raise DataError(f"{archive}{BETWEEN}{name[:200]} has {size:,} bytes, more than {LARGEST:,}")
        with archive.open("rb") as file:
            file.seek(start)
            content = file.read(size)
        if len(content) < size:
            raise DataError(f"{archive} is cut off in '{name[:200]}'; make or download it again")
        return content


def field_digest(field: str) -> str:
    """What tells the content apart of what a field names: that of a file, of a whole archive with the member's
    name. `missing` if there is no such file: a folder may hold anything, and is neither a picture nor a recording."""
    try:
        if inside := split_member(field):
            return f"{_digest(inside[0])}{BETWEEN}{inside[1]}"
        whole, start, end = split_span(field)
        if end is not None:
            return f"{_digest(Path(whole))}#{start},{end}"
        path = Path(field)
        return file_digest(path) if path.is_file() else "missing"
    except (OSError, ValueError):  # it is not there, or no file can have that name
        return "missing"


@lru_cache(maxsize=256)
def _known_digest(path: Path, *changes: int) -> str:
    return file_digest(path)


def _digest(path: Path) -> str:
    """The digest of a file that many fields name; it is taken once, for as long as the file stays the same."""
    facts = path.stat()
    if time.time() - facts.st_mtime < RACY:
        return file_digest(path)
    return _known_digest(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)
