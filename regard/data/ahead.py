"""What is needed next, made by another thread before it is asked for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")
GRACE = 0.02  # seconds to wait for more of what arrives


@contextmanager
def _line(items: Iterator[Any], depth: int, *, wait: bool = True) -> Iterator[queue.Queue[Any]]:
    """Where items that another thread takes from an iterator arrive, up to `depth` of them, each as `(item, error)`.

    The last is an error, be it the end.
    """
    stop = threading.Event()
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)

    def put(item: Any, error: BaseException | None = None) -> None:
        while not stop.is_set():
            with suppress(queue.Full):
                ready.put((item, error), timeout=0.1)
                break

    def work() -> None:
        try:
            for item in items:
                put(item)
                if stop.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # which the reader should see
            put(None, error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield ready
    finally:
        stop.set()
        if wait:
            thread.join()


def ahead(items: Iterator[T], depth: int = 8) -> Iterator[T]:
    """Items as they come, made by another thread before they are asked for, up to `depth` of them."""
    with _line(items, depth) as ready:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item


def arriving(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Items in lists of at most `size`: as many as are there, so that the first does not wait for others to come."""
    with _line(items, size, wait=False) as ready:  # which may be waiting for a line that never comes
        error: BaseException | None = None
        while error is None:
            found = list[T]()
            with suppress(queue.Empty):
                item, error = ready.get()
                while error is None:
                    found.append(item)
                    if len(found) == size:
                        break
                    item, error = ready.get(timeout=GRACE)
            if found:
                yield found
        if not isinstance(error, StopIteration):
            raise error
