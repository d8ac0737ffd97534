"""Whether an Ogg file (RFC 3533) is whole: its decoders read what is there, and say nothing of what is not."""

from __future__ import annotations

import zlib
from typing import IO

FIRST, LAST = 2, 4  # flags of a stream's pages
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def ogg_fault(file: IO[bytes]) -> str | None:
    """What is wrong with the pages of a file, or None. Each page has a checksum and its number, and the last one of a
    stream a flag; what follows the last page of all is left alone."""
    following = dict[int, int]()  # of each stream that has not ended, the number of its next page
    while True:
        at = file.tell()
        header = file.read(27)
        if header[:4] != b"OggS" and (not header or not following):
            break
        table = file.read(header[26]) if len(header) == 27 else b""
        body = file.read(sum(table))
        if len(header) < 27 or len(table) < header[26] or len(body) < sum(table):
            return f"is cut off in the page at byte {at:,}"
        flags, stream, number, checksum = (
            header[5], *(int.from_bytes(header[i : i + 4], "little") for i in (14, 18, 22)),
        )  # fmt: skip
        if header[:4] != b"OggS" or checksum != page_checksum(header[:22] + bytes(4) + header[26:] + table + body):
            return f"is damaged at byte {at:,}"
        if not flags & FIRST and following.get(stream, number) != number:
            return f"has a page missing at byte {at:,}"
        following[stream] = number + 1
        if flags & LAST:
            del following[stream]
    return "is cut off: its last page is not marked as one" if following else None


def page_checksum(page: bytes) -> int:
    """CRC-32 as Ogg has it, with the highest bit first: that of zlib in a mirror, and neither inverted before nor
    after."""
    mirrored = zlib.crc32(page.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)
