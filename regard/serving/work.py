"""What engines work on: requests with all that is asked of them, who hears of each, and how much room they take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from regard.data.side import Field
from regard.errors import DataError, RegardError
from regard.search_settings import Search
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Given, Output, Request


@dataclass(frozen=True)
class Work:
    """One input, and all that is asked of its outputs."""

    field: Field  # the source, as `System.generate` takes it
    search: Search  # all settings, resolved
    prefix: str = ""  # how the output begins
    phrases: tuple[str, ...] = ()  # what it must hold
    number: int = 0  # what is drawn at random depends on `search.seed` and on this
    prefix_tokens: tuple[int, ...] | None = None  # like `prefix`, as token ids
    stream: bool = True  # whether its listener wants to hear what is written before all of it is
    request: Request | None = None  # all this as numbers, where that is known (`checked`)

    @property
    def given(self) -> Given:
        """What goes with the input, to a task."""
        return Given(
            prefixes=[self.prefix] if self.prefix else None,
            phrases=[self.phrases] if self.phrases else None,
            numbers=[self.number],
            prefix_tokens=None if self.prefix_tokens is None else [self.prefix_tokens],
        )


class Listener(Protocol):
    """Who hears of what becomes of a request. After `done` or `failed` it hears no more."""

    def begun(self) -> None:
        """Work on it begins."""

    def wants(self, now: float) -> bool:
        """Whether it wants to hear, at this time of `time.monotonic`, of what is written."""

    def wrote(self, tokens: Sequence[int]) -> None:
        """All tokens so far that the best output surely begins with; there are more of them each time."""

    def done(self, outputs: list[Output]) -> None:
        """The outputs, best first."""

    def failed(self, error: RegardError) -> None:
        """There are none."""


@dataclass(frozen=True)
class Size:
    """What a request may come to need room for in a batch."""

    rows: int = 1  # its beam, or its samples
    target: int = 1  # positions of a row
    source: int = 0  # positions of its source, which all rows share

    @staticmethod
    def of(task: TextGeneration, request: Request, search: Search) -> Size:
        """That of a request: as many tokens as it may write and, without an encoder, its source before them."""
        places, (room,) = task.source.places(request.item), task.room([request.item], search)
        if task.together:
            return Size(task.width(search), places + room + 1)
        return Size(task.width(search), room + 1, places)

    @staticmethod
    def fitting(sizes: Iterable[Size], among: Collection[Size], budget: int) -> int:
        """How many of `sizes`, the first first, fit into a batch with others; if there are none, at least one does.

        A batch holds tokens of its sources and of its rows, all padded to the longest of them."""
        rows, count, fitting = sum(size.rows for size in among), len(among), 0
        target = max((size.target for size in among), default=0)
        source = max((size.source for size in among), default=0)
        for size in sizes:
            rows, count = rows + size.rows, count + 1
            target, source = max(target, size.target), max(source, size.source)
            if rows * target + count * source > budget and count > 1:
                break
            fitting += 1
        return fitting


@dataclass(eq=False)
class Job:
    """A request in an engine."""

    ticket: int
    work: Work
    listener: Listener
    request: Request | None  # as numbers, where a decoder writes a token at a time
    size: Size
    large: bool = False  # by itself it fills more than half of a batch
    told: int = 0  # settled tokens that the listener has heard of
    waits: bool = True

    def start(self) -> None:
        """Say that work on it begins, once."""
        if self.waits:
            self.waits = False
            self.listener.begun()


def checked(task: TextGeneration, work: Work) -> Request:
    """A request as numbers; one for which nothing can be written is refused."""
    if work.request is not None:
        return work.request

    def refuse(_: int, what: str) -> None:
        raise DataError(f"the source {what}")

    return task.requests([work.field], work.search, refuse, work.given)[0]


def as_told(error: Exception) -> RegardError:
    """An error as a listener hears of it."""
    if isinstance(error, RegardError):
        return error
    return RegardError(f"decoding failed ({type(error).__name__}: {error})")
