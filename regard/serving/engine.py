"""Engines: requests in, outputs out, a turn at a time.

An engine has one thread, and no queue but its own: whoever drives it submits work, calls `turn` while there is some,
and hears of what was written through listeners. `ContinuousEngine` lets requests join and leave between two steps of
the network (see `regard/search/continuous.py`); `BatchEngine` works on a batch from its beginning to its end.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count

from regard.errors import ConfigError, DataError
from regard.memory import retain_memory
from regard.models.decoding import for_decoding
from regard.nn.graphs import Graphs
from regard.search.continuous import Group, SharedBatch
from regard.search.stepper import LazyStart, begun, recorded_start, started
from regard.search_settings import Search
from regard.serving.work import Job, Listener, Size, Work, as_told, checked
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Given, Request
from regard.tasks.task import Task, inference

GATHERED = 4  # requests join at once if they are one for so many that run
PATIENCE = 4  # turns after which they join however few they are
# Settings in which requests may differ that begin as one search: each keeps its own limits and draws.
LENGTHS = ("min_length", "max_length", "max_ratio", "max_source")
OWN = {name: Search.model_fields[name].default for name in (*LENGTHS, "seed")}


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
        size = Size.of(self.task, request, search)
        large = Size.fitting([size], [size], self.budget) == 0
        job = Job(next(self.tickets), work, listener, request, size, large)
        (self.large if large else self.queue).append(job)
        return job.ticket

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
        if self.large and not any(job.large for job in self.jobs.values()):
            self._take([self.large.popleft()])
        if not self.queue:
            self.patience = PATIENCE
            return
        running = [job.size for job in self.jobs.values() if not job.large]
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
            shared = self.task.ctc_weight(search), bool(search.contrastive), job.large
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
                    if job.ticket in self.jobs:  # a listener may have cancelled it as it heard of another
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
        now = time.monotonic()
        wanted = {ticket for ticket in self.streams if self.jobs[ticket].listener.wants(now)}
        members = batch.members  # those that were over as something failed among them
        try:
            finding = batch.collect()
            settling = batch.settled(wanted) if wanted else list
            batch.launch()
            finished, settled = finding(), settling()
        except Exception as error:
            for ticket in members:
                if ticket in self.jobs:  # another listener may have cancelled it as it heard of this
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


def _requests(jobs: Sequence[Job]) -> Iterator[Request]:
    return (job.request for job in jobs if job.request is not None)


def new_engine(task: Task, *, budget: int, precision: str | None = None) -> Engine:
    """An engine for a task, whose batch holds at most so many tokens. It decodes in the precision of the task's
    settings, unless another is given."""
    if isinstance(task, TextGeneration) and task.continuous:
        return ContinuousEngine(task, budget, precision)
    return BatchEngine(task, budget)
