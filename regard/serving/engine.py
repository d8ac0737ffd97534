"""Engines: requests in, outputs out, a turn at a time.

An engine has one thread, and no queue but its own: whoever drives it submits work, calls `turn` while there is some,
and hears of what was written through listeners. `ContinuousEngine` lets requests join and leave between two steps of
the network (see `regard/search/continuous.py`); `BatchEngine` works on a batch from its beginning to its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from regard.data.side import Field
from regard.errors import ConfigError, DataError, RegardError
from regard.memory import retain_memory
from regard.models.decoding import for_decoding
from regard.nn.graphs import Graphs
from regard.search.continuous import Group, SharedBatch
from regard.search.stepper import LazyStart, begun, recorded_start, started
from regard.search_settings import Search
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Given, Output, Request
from regard.tasks.task import Task, inference

GATHERED = 4  # requests join at once if they are one for so many that run
PATIENCE = 4  # turns after which they join however few they are
# Settings in which requests may differ that begin as one search: each keeps its own limits and draws.
LENGTHS = ("min_length", "max_length", "max_ratio", "max_source")
OWN = {name: Search.model_fields[name].default for name in (*LENGTHS, "seed")}


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
    def fitting(sizes: Iterable[Size], among: Iterable[Size], budget: int) -> int:
        """How many of `sizes`, the first first, fit into a batch with others; if there are none, at least one does.

        A batch holds tokens of its sources and of its rows, all padded to the longest of them."""
        rows = target = source = count = fitting = 0

        def held(size: Size) -> int:
            nonlocal rows, target, source, count
            rows, target, source = rows + size.rows, max(target, size.target), max(source, size.source)
            count += 1
            return rows * target + count * source

        for size in among:
            held(size)
        for size in sizes:
            if held(size) > budget and count > 1:
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
    told: int = 0  # settled tokens that the listener has heard of
    waits: bool = True

    def start(self) -> None:
        """Say that work on it begins, once."""
        if self.waits:
            self.waits = False
            self.listener.begun()


class Engine(ABC):
    """Where requests are worked on."""

    def __init__(self, budget: int) -> None:
        self.budget, self.tickets = budget, count(1)

    @abstractmethod
    def submit(self, work: Work, listener: Listener) -> int:
        """Take in a request, and give its ticket; one that cannot be worked on is refused by an error."""

    @abstractmethod
    def cancel(self, ticket: int) -> None:
        """Work on a request no more, and free its place. Its listener hears nothing. One that is over is no matter."""

    @abstractmethod
    def turn(self) -> bool:
        """Take in what waits and fits, and one step of all that runs; False: there is nothing left to do."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Requests that are still to be begun."""

    @property
    @abstractmethod
    def running(self) -> int:
        """Requests that have been begun."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Hypotheses in the batch."""


class BatchEngine(Engine):
    """Requests of equal settings in batches, each from its beginning to its end, within one turn."""

    def __init__(self, task: Task, budget: int) -> None:
        super().__init__(budget)
        self.task, self.queue = task, deque[Job]()

    def submit(self, work: Work, listener: Listener) -> int:
        request, size = None, Size()
        if isinstance(self.task, TextGeneration):
            request = checked(self.task, work)
            size = Size.of(self.task, request, work.search)
        job = Job(next(self.tickets), work, listener, request, size)
        self.queue.append(job)
        return job.ticket

    def cancel(self, ticket: int) -> None:
        self.queue = deque(job for job in self.queue if job.ticket != ticket)

    def turn(self) -> bool:
        if self.queue:
            self._work(self._next())
        return bool(self.queue)

    def _next(self) -> list[Job]:
        """The first that waits, and others that go with it, within the budget."""
        first = self.queue[0].work
        alike = [
            job
            for job in self.queue
            if job.work.search == first.search and bool(job.work.phrases) == bool(first.phrases)
        ]
        jobs = alike[: Size.fitting((job.size for job in alike), (), self.budget)]
        self.queue = deque(job for job in self.queue if job not in jobs)
        return jobs

    def _work(self, jobs: Sequence[Job]) -> None:
        """All outputs of some requests of equal settings."""
        wrong: dict[int, str] = {}
        works = [job.work for job in jobs]
        for job in jobs:
            job.start()
        given = Given(
            prefixes=[work.prefix for work in works] if any(work.prefix for work in works) else None,
            phrases=[work.phrases for work in works] if works[0].phrases else None,
            numbers=[work.number for work in works],
            prefix_tokens=[work.prefix_tokens for work in works] if any(x.prefix_tokens for x in works) else None,
        )
        try:
            found = self.task.outputs([x.field for x in works], works[0].search, wrong.__setitem__, given=given)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].listener.failed(as_told(error))
            else:  # which of them it was shows when each is by itself
                for job in jobs:
                    self._work([job])
            return
        for i, (job, outputs) in enumerate(zip(jobs, found, strict=True)):
            if i in wrong:
                job.listener.failed(DataError(f"the source {wrong[i]}"))
            else:
                job.listener.done(outputs)

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def running(self) -> int:
        return 0

    @property
    def rows(self) -> int:
        return 0


class ContinuousEngine(Engine):
    """Requests that join and leave between two steps of the network, each with its own settings.

    The batch holds at most `budget` tokens: its rows (the beam or the samples of each request) times the most that any
    of them may come to write, and its sources times the longest, as they are padded; without an encoder the source is
    counted in every row. Requests are taken in first come, first served: one that does not fit waits until enough have
    left, and those behind it wait too, so that none starves.

    One that by itself fills more than half of the budget would keep others waiting, or wait long for its place. Such
    requests are searched for one at a time in a batch of their own, beside the other and a step for each of its
    steps; what they hold is not part of the budget.
    """

    def __init__(self, task: TextGeneration, budget: int, precision: str | None = None) -> None:
        super().__init__(budget)
        self.task, self.precision = task, precision or task.config.search.precision
        self.network = for_decoding(task.model, self.precision)
        self.queue, self.large, self.jobs = deque[Job](), deque[Job](), dict[int, Job]()
        # Recordings of each batch, whose turns go on side by side, and of how requests begin (None).
        self.graphs: dict[Hashable, Graphs] = {}
        self.batches: dict[Hashable, SharedBatch[int]] = {}  # by what makes a state or a step another
        self.streams: set[int] = set()  # tickets of requests that run whose listeners want to hear of each token
        self.memory, self.patience = ExitStack(), PATIENCE

    def submit(self, work: Work, listener: Listener) -> int:
        search = work.search
        if search.precision != self.precision:
            raise ConfigError(f"this model decodes in {self.precision}; leave out search.precision={search.precision}")
        request = checked(self.task, work)
        if work.phrases and (search.sample or search.mbr or search.contrastive):
            raise ConfigError("phrases that must appear need beam search; leave out sample, mbr and contrastive")
        job = Job(next(self.tickets), work, listener, request, Size.of(self.task, request, search))
        (self.large if self._is_large(job) else self.queue).append(job)
        return job.ticket

    def _is_large(self, job: Job) -> bool:
        return Size.fitting([job.size], [job.size], self.budget) == 0

    def cancel(self, ticket: int) -> None:
        self.queue, self.large = (
            deque(job for job in queue if job.ticket != ticket) for queue in (self.queue, self.large)
        )
        if self._remove(ticket) is not None:
            with inference(self.network):  # in which its tensors were made
                for batch in self.batches.values():
                    batch.drop(ticket)

    def turn(self) -> bool:
        if self.waiting and not self.jobs:
            self.memory.enter_context(retain_memory())
        with inference(self.network):
            self._admit()
            for batch in self.batches.values():
                self._step(batch)
        if not self.waiting and not self.jobs:
            self.batches.clear()
            self.memory.close()
        return bool(self.waiting or self.running)

    @property
    def waiting(self) -> int:
        return len(self.queue) + len(self.large)

    @property
    def running(self) -> int:
        return len(self.jobs)

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches.values())

    def _admit(self) -> None:
        """Take in what waits and fits, unless it is few beside what runs and has not waited long: to encode and to lay
        out a batch anew takes about as long for some as for one."""
        if self.large and not any(map(self._is_large, self.jobs.values())):
            self._take([self.large.popleft()])
        if not self.queue:
            self.patience = PATIENCE
            return
        running = [job.size for job in self.jobs.values() if not self._is_large(job)]
        fitting = Size.fitting((job.size for job in self.queue), running, self.budget)
        self.patience = self.patience - 1 if fitting else PATIENCE
        if fitting * GATHERED < len(running) and self.patience > 0:
            return
        self.patience = PATIENCE
        self._take([self.queue.popleft() for _ in range(fitting)])

    def _take(self, jobs: Sequence[Job]) -> None:
        """Begin with some requests, those that can share a batch together."""
        new = dict[Hashable, list[Job]]()
        for job in jobs:
            self.jobs[job.ticket] = job
            job.start()
            search = job.work.search
            if job.work.stream and not search.coverage:  # which ranks anew at the end
                self.streams.add(job.ticket)
            shared = self.task.ctc_weight(search), bool(search.contrastive), self._is_large(job)
            new.setdefault(shared, []).append(job)
        for key, some in new.items():
            self._begin(key, some)

    def _begin(self, key: Hashable, jobs: Sequence[Job]) -> None:
        """Encode what some requests were given, in one batch, and let their searches join."""
        task, search = self.task, jobs[0].work.search
        alike = dict[tuple[Search, bool], list[Job]]()
        for job in jobs:
            alike.setdefault((job.work.search.model_copy(update=OWN), bool(job.work.phrases)), []).append(job)
        order = [job for some in alike.values() for job in some]
        try:
            searches = [
                task.incremental(list(_requests(some)), [job.work.search for job in some]) for some in alike.values()
            ]
            source = task.source.pack([request.item for request in _requests(order)])
            start = LazyStart(begun(stepper := task.stepper(search), task.first), source, task.device, task.longest)
            graphs = self._recorded(None)
            state = started(start) if graphs is None else recorded_start(start, graphs, (stepper, task.first))
            step = task.step_of(search)
        except Exception as error:
            if len(jobs) == 1:
                self._fail(jobs[0], error)
            else:  # which of them it was shows when each is by itself
                for job in jobs:
                    self._begin(key, [job])
            return
        graphs = None if search.contrastive else self._recorded(key)
        batch = self.batches.setdefault(key, SharedBatch(step, task.device, graphs))
        groups = zip(searches, alike.values(), strict=True)
        batch.add(state, [Group(search, [job.ticket for job in some]) for search, some in groups])

    def _recorded(self, key: Hashable) -> Graphs | None:
        """Where work of this kind is recorded; None: nothing is."""
        if self.network.graphs is None:
            return None
        if key not in self.graphs:
            self.graphs[key] = self.network.graphs.like()
        return self.graphs[key]

    def _step(self, batch: SharedBatch[int]) -> None:
        """Take in what the last turn gave, and begin with the next before anybody hears of it."""
        members = batch.members  # those that were over as something failed among them
        try:
            finished = batch.collect()
            settled = list(batch.settled(self.streams)) if self.streams else []
            batch.launch()
        except Exception as error:
            for ticket in members:
                self._fail(self.jobs[ticket], error)
            batch.clear()
            return
        for ticket, found in finished:
            job = self._remove(ticket)
            if job is None or job.request is None:  # another listener has just cancelled it
                continue
            try:
                outputs = self.task.found(job.request, found, job.work.search)
            except Exception as error:
                job.listener.failed(as_told(error))
            else:
                job.listener.done(outputs)
        for ticket, tokens in settled:
            job = self.jobs.get(ticket)
            if job is not None and len(tokens) > job.told:
                job.told = len(tokens)
                job.listener.wrote(tokens)

    def _remove(self, ticket: int) -> Job | None:
        """Forget a request that runs; None: it does not."""
        self.streams.discard(ticket)
        return self.jobs.pop(ticket, None)

    def _fail(self, job: Job, error: Exception) -> None:
        self._remove(job.ticket)
        job.listener.failed(as_told(error))


def checked(task: TextGeneration, work: Work) -> Request:
    """A request as numbers; one for which nothing can be written is refused."""

    def refuse(_: int, what: str) -> None:
        raise DataError(f"the source {what}")

    return task.requests([work.field], work.search, refuse, work.given)[0]


def as_told(error: Exception) -> RegardError:
    """An error as a listener hears of it."""
    if isinstance(error, RegardError):
        return error
    return RegardError(f"decoding failed ({type(error).__name__}: {error})")


def _requests(jobs: Sequence[Job]) -> Iterator[Request]:
    return (job.request for job in jobs if job.request is not None)


def new_engine(task: Task, *, budget: int, precision: str | None = None) -> Engine:
    """An engine for a task, whose batch holds at most so many tokens. It decodes in the precision of the task's
    settings, unless another is given."""
    if isinstance(task, TextGeneration) and task.continuous:
        return ContinuousEngine(task, budget, precision)
    return BatchEngine(task, budget)
