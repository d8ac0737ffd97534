"""What is needed next, made by another thread before it is asked for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")
GRACE = 0.02  # seconds to wait for more of what arrives


class _Line:
    """Items that another thread takes from an iterator, up to `depth` of them."""

    def __init__(self, items: Iterator[Any], depth: int) -> None:
        self.items, self.stop = items, threading.Event()
        self.ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _put(self, item: Any, error: BaseException | None = None) -> None:
        while not self.stop.is_set():
            with suppress(queue.Full):
                self.ready.put((item, error), timeout=0.1)
                break

    def _work(self) -> None:
        try:
            for item in self.items:
                self._put(item)
                if self.stop.is_set():
                    return
            self._put(None, StopIteration())
        except BaseException as error:  # which the reader should see
            self._put(None, error)


@contextmanager
def _line(items: Iterator[Any], depth: int, *, wait: bool = True) -> Iterator[queue.Queue[Any]]:
    """Where items arrive, each as `(item, error)`; the last is an error, be it the end."""
    line = _Line(items, depth)
    line.thread.start()
    try:
        yield line.ready
    finally:
        line.stop.set()
        if wait:
            line.thread.join()


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
