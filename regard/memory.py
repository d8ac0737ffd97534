"""Memory of the CPU: what is retained while work lasts, what is not cached for good, and what is never collected.

glibc gives large blocks back to the system as soon as they are free, and the system clears them again, page by page,
when the next tensor of that size is made. Where the same sizes come and go for hours that is time for nothing.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of malloc.h
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}
# glibc moves its thresholds up with what it sees freed, and these are the furthest that they go; there they stay then.
_USUAL = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 * 2**20, _TRIM_THRESHOLD: 64 * 2**20}
PRIMITIVES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # how many are cached, by oneDNN and by torch
_lock = Lock()
_inside = 0


@contextmanager
def retain_memory() -> Iterator[None]:
    """Inside this, freed memory is retained for what comes next; where the C library is not glibc nothing changes."""
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _set(_KEEP)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _set(_USUAL)


def bound_primitives() -> None:
    """Let oneDNN cache few primitives, unless the environment says how many.

    In bfloat16 it makes a primitive for each number of rows that it multiplies, of some megabytes. It caches 1,024 of
    them, and torch as many again; the rows of packed batches differ, so that training came to hold 10 GB. Both read
    their limit when they are first used, and making a primitive anew takes no time that could be measured.
    """
    for name in PRIMITIVES:
        os.environ.setdefault(name, "64")


def freeze_objects() -> None:
    """Leave all objects that there are out of garbage collection, and collect less often; for a process that has loaded
    what it needs and answers requests from now on.

    A full collection of all that torch and a model consist of takes tens of milliseconds, in which nobody is answered.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def give_back() -> None:
    """Give the system what is free."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _set(options: dict[int, int]) -> None:
    if (libc := _glibc()) is not None:
        for name, value in options.items():
            libc.mallopt(name, value)


@cache
def _glibc() -> Any:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None
