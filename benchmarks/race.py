"""Timing: contenders take turns, round by round, so that whatever slows the machine slows them all.

In a round each contender has one turn, and each round begins with another one. Ratios are taken within a round; what is
reported is the median over rounds, with the range.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

import torch

from regard.errors import RegardError
from regard.memory import give_back

Role = Literal["ours", "peer", "beside"]  # what ratios are of, what they are to, and what is shown along with them


class UnavailableError(RegardError):
    """A peer that cannot run here, and why."""


class Spread(NamedTuple):
    """A median over rounds, with the range."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of one value a round."""
        return Spread(median(values), min(values), max(values))


@dataclass
class Work:
    """A contender that is set up: `turn` does the work of one turn and returns how much that was.

    On a CPU each turn comes after an untimed `warm`, both within `inside`: memory is then as in a long run.
    """

    turn: Callable[[], float]
    warm: Callable[[], object]
    note: str = ""
    extra: Callable[[float], dict[str, float]] = lambda rate: {}  # more to report, from the median
    inside: Callable[[], AbstractContextManager[None]] = nullcontext
    warm_again: bool = True  # before each turn on a CPU


@dataclass
class Contender:
    """One of those who take turns, with a value for each round in the unit of its case."""

    name: str
    role: Role
    make: Callable[[], Work]  # sets it up, or raises `UnavailableError`
    against: str = ""  # another contender that it is compared with, beside Regard
    values: list[float] = field(default_factory=list)
    note: str = ""
    extra: dict[str, float] = field(default_factory=dict)
    missing: str = ""  # why it did not run, or not to the end


@dataclass
class Case:
    """One race: who takes part and what came of it."""

    name: str
    unit: str
    contenders: list[Contender]
    workload: str = ""
    more: bool = True  # more is better, as of throughput; else less, as of time
    notes: list[str] = field(default_factory=list)

    @property
    def ran(self) -> list[Contender]:
        """Who took a turn."""
        return [x for x in self.contenders if x.values]

    @property
    def ours(self) -> Contender | None:
        """What ratios are of."""
        return next((x for x in self.ran if x.role == "ours"), None)

    @property
    def best_peer(self) -> Contender | None:
        """The peer with the best median."""
        peers = [x for x in self.ran if x.role == "peer"]
        return max(peers, key=lambda x: median(x.values) * (1 if self.more else -1), default=None)

    @property
    def pairs(self) -> list[tuple[Contender, Contender]]:
        """Contenders with the ones that they are compared with, where both ran."""
        by_name = {x.name: x for x in self.ran}
        return [(x, by_name[x.against]) for x in self.ran if x.against in by_name]

    def ratio(self, other: Contender, mine: Contender | None = None) -> Spread | None:
        """How many times as fast Regard (or `mine`) is as `other`, round by round."""
        mine = mine or self.ours
        if mine is None or not mine.values or not other.values:
            return None
        pairs = zip(mine.values, other.values, strict=False)  # who failed has fewer rounds
        return Spread.of([one / two if self.more else two / one for one, two in pairs])


@dataclass(frozen=True)
class Race:
    """How a case is run."""

    device: torch.device
    rounds: int
    say: Callable[[str], None]
    deadline: float = float("inf")  # of `time.monotonic`: no case and no second round begins after it
    save: Callable[[], None] = lambda: None  # called after each round
    threads: int = field(default_factory=torch.get_num_threads)  # set again for each turn: CTranslate2 changes them

    def run(self, case: Case) -> Case:
        """Set every contender up, warm it, and let them take turns."""
        if time.monotonic() > self.deadline:
            case.notes.append("not begun: the time limit was reached before")
            return case
        ready = [(x, work) for x in case.contenders if (work := self._set_up(case, x)) is not None]
        for number in range(self.rounds):
            if number and time.monotonic() > self.deadline:
                case.notes.append(f"the time limit ended it after {number} of {self.rounds} rounds")
                break
            first = number % max(len(ready), 1)
            for contender, work in [*ready[first:], *ready[:first]]:
                if not self._turn(case, contender, work):
                    ready.remove((contender, work))
            for contender, work in ready:
                contender.extra |= work.extra(median(contender.values))
            shown = ", ".join(f"{contender.name} {contender.values[-1]:,.4g}" for contender, _ in ready)
            self.say(f"{case.name}: round {number + 1} of {self.rounds}: {shown} {case.unit}")
            self.save()
        return case

    def _set_up(self, case: Case, contender: Contender) -> Work | None:
        self._clear()
        began, before = time.perf_counter(), self._peak()
        try:
            work = contender.make()
            work.warm()
            self._wait()
        except Exception as error:
            self._failed(case, contender, error)
            return None
        if allocated := self._peak() - before:  # what is not allocated by torch is not counted
            contender.extra["peak GiB"] = allocated / 2**30
        contender.note = work.note
        self.say(f"{case.name}: {contender.name} is ready after {time.perf_counter() - began:.1f} s")
        return work

    def _turn(self, case: Case, contender: Contender, work: Work) -> bool:
        """Whether it went well."""
        torch.set_num_threads(self.threads)
        try:
            with work.inside():
                if self.device.type == "cpu" and work.warm_again:
                    work.warm()
                self._wait()
                began = time.perf_counter()
                done = work.turn()
                self._wait()
                seconds = time.perf_counter() - began
        except Exception as error:
            self._failed(case, contender, error)
            return False
        contender.values.append(done / seconds if case.more else seconds / done)
        return True

    def _failed(self, case: Case, contender: Contender, error: Exception) -> None:
        """Go on without a peer that is missing or fails, for instance to compile; but not without Regard."""
        if contender.role == "ours":
            raise error
        first = next(iter(str(error).strip().splitlines()), "")
        contender.missing = first if isinstance(error, RegardError) else f"failed with {type(error).__name__}: {first}"
        self.say(f"{case.name}: without {contender.name}: {contender.missing}")

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _clear(self) -> None:
        """Free memory that nothing refers to any more."""
        torch.set_num_threads(self.threads)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            give_back()

    def _peak(self) -> int:
        """The most memory of a GPU that torch held since `_clear`; a CPU's is not counted."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
