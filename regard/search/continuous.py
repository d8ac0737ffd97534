"""Continuous batching: searches that began at different times share each step of the network.

Rows join between two steps and leave when their search is over. What a search finds is what it would find alone: rows
see nothing of each other, and each search keeps its own length, limits and draws.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.nn.rows import Grouping
from regard.search.incremental import IncrementalSearch
from regard.search.limits import Hypothesis
from regard.search.stepper import Step

M = TypeVar("M")  # what stands for a source to the caller
IDLE = 4  # when one row in so many idles, rows are laid out anew without those


@dataclass(eq=False)
class Group(Generic[M]):
    """A search, and what its sources stand for."""

    search: IncrementalSearch
    members: list[M]
    gone: set[int] = field(default_factory=set)  # sources that are over or dropped, and idle along

    @property
    def each(self) -> int:
        """Rows of a source."""
        return len(self.search.token) // len(self.members)

    def stay(self, row: int, has: int, source: int, device: torch.device) -> _Stay[M]:
        """Without what is gone. The group stands in all states from these on, and there has so many rows for a source:
        as many as in the search or, in a state before the first token, one."""
        left = [i for i in range(len(self.members)) if i not in self.gone]
        stay, each = torch.tensor(left, dtype=torch.long, device=device), self.each
        column = torch.arange(each, device=device) % has
        if self.gone and left:
            self.search.keep(stay)
            self.members, self.gone = [self.members[i] for i in left], set()
        return _Stay(self, (row + stay[:, None] * has + column).flatten(), source + stay)

    def join(self, others: Sequence[Group[M]]) -> None:
        """Take in the sources of others of its kind, behind its own."""
        if others:
            self.search.join([other.search for other in others])
            self.members = [member for group in (self, *others) for member in group.members]


class _Stay(NamedTuple, Generic[M]):
    """What a new layout takes over of a group: these rows and sources of all states, counted through."""

    group: Group[M]
    rows: Tensor
    sources: Tensor


class SharedBatch(Generic[M]):
    """Searches over one state. Those of one kind are one search, so that its bookkeeping is done for all at once."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self.step, self.device = step, device
        self.groups: list[Group[M]] = []
        self.state: Any = None
        self.new: list[tuple[Any, Sequence[Group[M]]]] = []

    @property
    def rows(self) -> int:
        """Hypotheses in the batch, without those that idle along."""
        return sum((len(group.members) - len(group.gone)) * group.each for group in self.groups)

    @property
    def members(self) -> list[M]:
        """What is searched for, and not over."""
        return [member for group in self._every for i, member in enumerate(group.members) if i not in group.gone]

    @property
    def _every(self) -> list[Group[M]]:
        return [*self.groups, *(group for _, groups in self.new for group in groups)]

    def add(self, state: Any, groups: Sequence[Group[M]]) -> None:
        """Take in more searches at the next turn. The state has a row for each source, in the order of the groups."""
        self.new.append((state, groups))

    def drop(self, member: M) -> None:
        """End the search for a source. Its rows are nobody's, until rows are laid out anew."""
        for group in self._every:
            group.gone.update(source for source, other in enumerate(group.members) if other == member)

    def clear(self) -> None:
        """End all searches."""
        self.groups, self.state, self.new = [], None, []

    def turn(self) -> list[tuple[M, list[Hypothesis]]]:
        """One more token for every row; gives what was found for the sources that are now over."""
        idle = sum(len(group.gone) * group.each for group in self.groups)
        if self.new or (idle and idle * IDLE >= self.rows):
            self._lay_out()
        if not self.groups:
            return []
        given, state = self.step(torch.cat([group.search.token for group in self.groups]), self.state)
        moved, begin, stay = list[Tensor](), 0, True
        for group in self.groups:
            count = len(group.search.token)
            rows = group.search.advance(given[begin : begin + count])
            stay = stay and rows is None
            rows = torch.arange(count, device=self.device) if rows is None else rows
            moved.append(rows + begin)
            begin += count
        self.state = state if stay else state.select(torch.cat(moved))
        found = [found for group in self.groups for found in self._finished(group)]
        if not self.members:
            self.clear()
        return found

    def settled(self) -> Iterator[tuple[M, list[int]]]:
        """For each source that is not over the tokens that its best output surely begins with."""
        for group in self.groups:
            for source, (member, tokens) in enumerate(zip(group.members, group.search.settled(), strict=True)):
                if source not in group.gone:
                    yield member, tokens

    def _finished(self, group: Group[M]) -> Iterator[tuple[M, list[Hypothesis]]]:
        over = [i for i, over in enumerate(group.search.over.tolist()) if over and i not in group.gone]
        if over:
            group.gone.update(over)
            found = group.search.results(torch.tensor(over, device=self.device))
            yield from zip([group.members[i] for i in over], found, strict=True)

    def _lay_out(self) -> None:
        """Without the rows that idle, and with those that are new; searches of one kind become one."""
        states = [] if self.state is None else [self.state]
        states += [state for state, _ in self.new]
        old = [(group, group.each) for group in self.groups]
        by_kind: dict[Hashable, list[_Stay[M]]] = {}
        row = source = 0
        for group, has in (*old, *((group, 1) for _, groups in self.new for group in groups)):
            count = len(group.members)
            stay = group.stay(row, has, source, self.device)
            if len(stay.sources):
                kind = group.search.kind
                by_kind.setdefault(id(group) if kind is None else kind, []).append(stay)
            row, source = row + count * has, source + count
        self.clear()
        if not by_kind:
            return
        order = [stay for same in by_kind.values() for stay in same]
        for first, *others in by_kind.values():
            first.group.join([stay.group for stay in others])
            self.groups.append(first.group)
        rows, sources = (torch.cat([getattr(stay, name) for stay in order]) for name in ("rows", "sources"))
        counts = [group.each for group in self.groups for _ in group.members]
        self.state = states[0].join(states[1:], rows, sources).grouped(Grouping.of(counts, self.device))
