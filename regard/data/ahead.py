"""What is needed next, made by another thread before it is asked for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], depth: int = 8) -> Iterator[T]:
    """The same, made by another thread before they are asked for, up to `depth` of them."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: T | None, error: BaseException | None = None) -> None:
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
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None, "an item or an error"
            yield item
    finally:
        stop.set()
        thread.join()
