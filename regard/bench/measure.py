"""Timing: contestants take turns, round by round, so that whatever slows the machine slows them all.

A round gives each contestant one turn, and the first turn goes round too. Ratios are taken within a round, and what is
reported is the median over rounds with the least and the greatest.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch

from regard.errors import RegardError
from regard.memory import give_back

Role = Literal["ours", "peer", "beside"]  # what ratios are of, what they are to, and what is shown along with them
Say = Callable[[str], None]
GIB = 2**30


class NotThereError(RegardError):
    """A contestant that cannot take part, and why."""


@dataclass(frozen=True)
class Spread:
    """A median over rounds, with the least and the greatest."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(median(values), min(values), max(values))


@dataclass
class Work:
    """A contestant that is ready: `turn` does one turn's work and says how much that was; `warm` prepares it.

    On a CPU each turn comes after a `lead` that is not timed, both `inside` of something: memory is then as it is in
    the middle of a long run.
    """

    turn: Callable[[], float]
    warm: Callable[[], object]
    note: str = ""
    extra: Callable[[float], dict[str, float]] = lambda rate: {}  # more to report, from the median
    lead: Callable[[], object] = lambda: None
    inside: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Entry:
    """A contestant by name; `make` sets it up, or raises `NotThereError`."""

    name: str
    role: Role
    make: Callable[[], Work]
    beside: str = ""  # the contestant that it is held against too


@dataclass
class Result:
    """What one contestant did: a value for each round, in the case's unit."""

    name: str
    role: Role
    values: list[float] = field(default_factory=list)
    note: str = ""
    extra: dict[str, float] = field(default_factory=dict)
    beside: str = ""  # the contestant that it is held against too

    @property
    def spread(self) -> Spread:
        return Spread.of(self.values)


@dataclass
class Case:
    """One race: who took part, what came of it, who could not."""

    name: str
    unit: str
    words: str = ""  # the workload
    more: bool = True  # more is better; else less
    results: list[Result] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # by name, why
    notes: list[str] = field(default_factory=list)

    @property
    def ours(self) -> Result | None:
        """What ratios are of."""
        return next((x for x in self.results if x.role == "ours" and x.values), None)

    @property
    def best_peer(self) -> Result | None:
        """The peer with the best median."""
        peers = [x for x in self.results if x.role == "peer" and x.values]
        return max(peers, key=lambda x: x.spread.median * (1 if self.more else -1), default=None)

    @property
    def pairs(self) -> list[tuple[Result, Result]]:
        """Contestants with the ones that they are held against, where both took a turn."""
        by_name = {x.name: x for x in self.results if x.values}
        return [(x, by_name[x.beside]) for x in by_name.values() if x.beside in by_name]

    def ratio(self, other: Result, mine: Result | None = None) -> Spread | None:
        """How many times as good Regard (or `mine`) is as `other`, round by round."""
        mine = mine or self.ours
        if mine is None or not mine.values or not other.values:
            return None
        pairs = zip(mine.values, other.values, strict=False)  # a limit may cut the last round short
        return Spread.of([one / two if self.more else two / one for one, two in pairs])


class Memory:
    """The most memory that a contestant held at once, while it was set up and warmed and in its turns.

    Both count: what is recorded while warming and then replayed gives memory out but once. On a GPU it is torch that
    counts; elsewhere it is Linux, by the resident size of the process, where what was freed may stay.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = self._now()
        self.own = 0  # held between turns
        self.most = 0
        self._reset()

    def settled(self) -> None:
        """The contestant is set up and warm: what is there more than before is its own."""
        self.own, self.most = self._now() - self.before, self._highest() - self.before

    def watch(self, turn: Callable[[], object]) -> None:
        """Run a turn, and take note of its peak."""
        start = self._now()
        self._reset()
        turn()
        self.most = max(self.most, self._highest() - start + self.own)

    def _now(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        return _status("VmRSS")

    def _reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back to what is resident now
        except OSError:
            return

    def _highest(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _status("VmHWM")


def _status(name: str) -> int:
    """Bytes, of this process; 0 where there is no telling."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), 0)


def timed(turn: Callable[[], float], device: torch.device) -> tuple[float, float]:
    """How much a turn did, and in how many seconds."""
    wait(device)
    began = time.perf_counter()
    done = turn()
    wait(device)
    return done, time.perf_counter() - began


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def clear(device: torch.device) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        give_back()


@dataclass(frozen=True)
class Race:
    """How a case is run."""

    device: torch.device
    rounds: int
    say: Say
    deadline: float = float("inf")  # of `time.monotonic`: no case and no second round begins after it
    save: Callable[[], None] = lambda: None  # called after each round
    threads: int = field(default_factory=torch.get_num_threads)  # set again for each turn: CTranslate2 changes them

    def run(self, case: Case, entries: Sequence[Entry]) -> Case:
        """Set every contestant up, warm it, and let them take turns; fills `case` as it goes."""
        if time.monotonic() > self.deadline:
            case.notes.append("not begun: the time limit was reached before")
            return case
        ready = [found for entry in entries if (found := self._set_up(case, entry)) is not None]
        case.results += [result for result, _, _ in ready]
        for number in range(self.rounds):
            if number and time.monotonic() > self.deadline:
                case.notes.append(f"the time limit ended it after {number} of {self.rounds} rounds")
                break
            first = number % max(len(ready), 1)
            for one in [*ready[first:], *ready[:first]]:
                if not self._turn(case, *one):
                    ready.remove(one)
            for result, work, _ in ready:
                result.extra |= work.extra(result.spread.median)
            shown = ", ".join(f"{result.name} {result.values[-1]:,.4g}" for result, _, _ in ready)
            self.say(f"{case.name}: round {number + 1} of {self.rounds}: {shown} {case.unit}")
            self.save()
        return case

    def _set_up(self, case: Case, entry: Entry) -> tuple[Result, Work, Memory] | None:
        clear(self.device)
        torch.set_num_threads(self.threads)
        memory, began = Memory(self.device), time.perf_counter()
        try:
            work = entry.make()
            work.warm()
            wait(self.device)
        except Exception as error:
            self._broken(case, entry.name, entry.role, error)
            return None
        memory.settled()
        self.say(f"{case.name}: {entry.name} is ready after {time.perf_counter() - began:.1f} s")
        return Result(entry.name, entry.role, note=work.note, beside=entry.beside), work, memory

    def _broken(self, case: Case, name: str, role: Role, error: Exception) -> None:
        """Go on without a peer that is not there or breaks, as one that will not compile; but not without Regard."""
        if role == "ours":
            raise error
        first = next(iter(str(error).strip().splitlines()), "")
        why = first if isinstance(error, RegardError) else f"failed with {type(error).__name__}: {first}"
        case.absent[name] = why
        self.say(f"{case.name}: without {name}: {why}")

    def _turn(self, case: Case, result: Result, work: Work, memory: Memory) -> bool:
        """Whether it went well."""
        measured: list[tuple[float, float]] = []
        torch.set_num_threads(self.threads)
        try:
            with work.inside():
                if self.device.type == "cpu":
                    work.lead()
                memory.watch(lambda: measured.append(timed(work.turn, self.device)))
        except Exception as error:
            self._broken(case, result.name, result.role, error)
            return False
        done, seconds = measured[0]
        result.values.append(done / seconds if case.more else seconds / done)
        if self.device.type == "cuda":
            result.extra["peak GiB"] = memory.most / GIB
        return True


def plain(value: Any) -> Any:
    """A dataclass of this room as JSON wants it."""
    if isinstance(value, Case):
        best = value.best_peer
        held = {mine.name: {"to": other.name, **vars(spread)} for mine, other in value.pairs
                if (spread := value.ratio(other, mine))}  # fmt: skip
        return {
            "name": value.name, "unit": value.unit, "workload": value.words, "more_is_better": value.more,
            "results": [
                {**vars(x), **(vars(x.spread) if x.values else {}), "regard_is_times": plain(value.ratio(x))}
                for x in value.results
            ],
            "best_peer": None if best is None else best.name, "absent": value.absent, "notes": value.notes,
            "ratios": held,
        }  # fmt: skip
    return vars(value) if isinstance(value, Spread) else value
