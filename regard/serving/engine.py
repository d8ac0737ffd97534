"""Requests worked on together: whatever comes in while others run joins them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from regard.data.side import Field
from regard.errors import DataError, RegardError
from regard.search_settings import Search
from regard.tasks.results import Given, Output
from regard.tasks.task import Task


@dataclass(frozen=True)
class Work:
    """An input, and how its outputs are to be found."""

    field: Field
    search: Search
    prefix: str = ""
    phrases: tuple[str, ...] = ()
    number: int = 0
    prefix_tokens: tuple[int, ...] | None = None


class Listener(Protocol):
    """Who is told of the outputs."""

    def wrote(self, tokens: Sequence[int]) -> None: ...

    def done(self, outputs: list[Output]) -> None: ...

    def failed(self, error: RegardError) -> None: ...


class Engine(ABC):
    """Works on all that was submitted, a step at each turn."""

    waiting: int = 0
    running: int = 0
    rows: int = 0

    @abstractmethod
    def submit(self, work: Work, listener: Listener) -> int: ...

    @abstractmethod
    def cancel(self, ticket: int) -> None: ...

    @abstractmethod
    def turn(self) -> bool: ...


@dataclass
class BatchEngine(Engine):
    """One request after the other."""

    task: Task
    queue: dict[int, tuple[Work, Listener]] = field(default_factory=dict)
    last: int = 0

    @property
    def waiting(self) -> int:  # type: ignore[override]
        return len(self.queue)

    def submit(self, work: Work, listener: Listener) -> int:
        self.last += 1
        self.queue[self.last] = work, listener
        return self.last

    def cancel(self, ticket: int) -> None:
        self.queue.pop(ticket, None)

    def turn(self) -> bool:
        if not self.queue:
            return False
        work, listener = self.queue.pop(next(iter(self.queue)))

        def problem(index: int, what: str) -> None:
            raise DataError(f"the input {what}")

        given = Given([work.prefix] if work.prefix else None, [work.phrases] if work.phrases else None, work.number)
        try:
            listener.done(self.task.outputs([work.field], work.search, problem, given=given)[0])
        except RegardError as error:
            listener.failed(error)
        return True


def new_engine(task: Task, *, budget: int) -> Engine:
    return BatchEngine(task)
