"""What is in the file of a SentencePiece model, a protocol buffer: its pieces, how it normalises and how it cuts."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The numbered fields of a message: whole numbers, or bytes."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        match key & 7:
            case 0:
                yield key >> 3, number()
            case 1 | 5 as wire:
                size = 8 if wire == 1 else 4
                yield key >> 3, data[at : at + size]
                at += size
            case 2:
                size = number()
                if at + size > len(data):
                    raise ValueError("the SentencePiece model is cut off")
                yield key >> 3, data[at : at + size]
                at += size
            case wire:
                raise ValueError(f"the SentencePiece model has a field of kind {wire}")


def read_pieces(model: bytes) -> Iterator[tuple[str, float]]:
    """Each piece of a SentencePiece model, with its score."""
    for number, message in _fields(model):
        if number == 1:
            parts = dict(_fields(message))
            yield parts[1].decode(), struct.unpack("<f", parts.get(2, b"\0\0\0\0"))[0]


def read_charsmap(model: bytes) -> bytes:
    """How a SentencePiece model normalises, as it stores it; empty if it does not."""
    for number, message in _fields(model):
        if number == 3:
            return bytes(dict(_fields(message)).get(2, b""))
    return b""


def read_kind(model: bytes) -> int:
    """How a SentencePiece model cuts: 1 is Unigram, 2 BPE."""
    for number, message in _fields(model):
        if number == 2:
            return int(dict(_fields(message)).get(3, 1))
    return 1
