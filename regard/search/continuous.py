"""Continuous batching: searches that began at different times share each step of the network.

Rows join between two steps and leave when their search is over. What a search finds is what it would find alone: rows
see nothing of each other, and each search keeps its own length, limits and draws.

On a GPU a step of the network is recorded as a CUDA graph and replayed, and so is the choice of each kind of search
that can be. For that the batch has one of few shapes: sources are filled up to one of few numbers by repeating one of
them, whose searches nobody reads, and caches have room for tokens to come. What joins such a batch is written over
what has left it, in place, so that most joins copy no cache; when there is no place or the caches are full, all is laid
out anew. Where states have no `static_shapes`, such as those of recurrent decoders over a source and of CTC, the step
runs as it is, and so does every choice that `IncrementalSearch.fixed` leaves as it is: by sampling, and under phrases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.nn.graphs import Graphs, Recording, copy_into
from regard.nn.rows import Grouping
from regard.ragged import bucket
from regard.search.incremental import IncrementalSearch
from regard.search.limits import Hypothesis
from regard.search.stepper import Step
from regard.search.transfer import to_device

M = TypeVar("M")  # what stands for a source to the caller
IDLE = 4  # when one row in so many idles, rows are laid out anew without those
ROOM = 32  # tokens that caches of a recorded step have room for, before rows are laid out anew
LEAST = 8  # sources that a recorded step has; more are a power of two


@dataclass(eq=False)
class Group(Generic[M]):
    """A search, and what its sources stand for."""

    search: IncrementalSearch
    members: list[M]
    gone: set[int] = field(default_factory=set)  # sources that are over or dropped, and idle along
    sources: int = field(init=False)  # of the search: those behind the members are nobody's
    each: int = field(init=False)  # rows of a source, from turn to turn

    def __post_init__(self) -> None:
        self.sources = len(self.members)
        self.each = len(self.search.token) // self.sources

    @property
    def rows(self) -> int:
        """Hypotheses, without those that idle along."""
        return (len(self.members) - len(self.gone)) * self.each

    def stay(self, row: int, has: int, source: int, device: torch.device) -> _Stay[M]:
        """Without what is gone. The group stands in all states from these on, and there has so many rows for a source:
        as many as in the search or, in a state before the first token, one."""
        left = [i for i in range(len(self.members)) if i not in self.gone]
        stay = to_device(left, device)
        column = torch.arange(self.each, device=device) % has
        if left and len(left) < self.sources:
            self.search.keep(stay)
            self.members, self.gone, self.sources = [self.members[i] for i in left], set(), len(left)
        return _Stay(self, (row + stay[:, None] * has + column).view(-1, self.each), source + stay)

    @property
    def free(self) -> list[int]:
        """Sources that are nobody's."""
        return [*sorted(self.gone), *range(len(self.members), self.sources)]

    @property
    def shrinks(self) -> bool:
        """Whether it would have at most a quarter of its sources if it was laid out anew. (At half, one that comes and
        goes would have all laid out anew each time.)"""
        return 4 * bucket(max(len(self.members) - len(self.gone), 1), 2, LEAST) <= self.sources

    def take(self, places: Sequence[int], other: Group[M]) -> None:
        """Take in what the sources of another stand for, in `places`, which are the first of those that are free."""
        self.gone.difference_update(places)
        self.gone.update(places[i] for i in other.gone)
        for place, member in zip(places, other.members, strict=True):
            self.members[place : place + 1] = [member]

    def join(self, others: Sequence[Group[M]]) -> None:
        """Take in the sources of others of its kind, behind its own."""
        if others:
            self.search.join([other.search for other in others])
            self.members = [member for group in (self, *others) for member in group.members]
            self.sources = len(self.members)

    def fill(self, device: torch.device, graphs: Graphs) -> Tensor:
        """Bring its sources up to one of few numbers; returns which of them each is."""
        index = _filled(torch.arange(len(self.members), device=device))
        self.sources = len(index)
        self.search.fixed(index, graphs)
        return index


class _Stay(NamedTuple, Generic[M]):
    """What a new layout takes over of a group: these rows and sources of all states, counted through."""

    group: Group[M]
    rows: Tensor  # (sources, rows of one)
    sources: Tensor


class SharedBatch(Generic[M]):
    """Searches over one state. Those of one kind are one search, so that its bookkeeping is done for all at once."""

    def __init__(self, step: Step, device: torch.device, graphs: Graphs | None = None) -> None:
        """Steps are recorded in `graphs`, which no other batch may use meanwhile; None: they are not."""
        self.step, self.device, self.graphs = step, device, graphs
        self.groups: list[Group[M]] = []
        self.state: Any = None
        self.recorded = False  # whether the step is
        self.recording: Recording[tuple[Tensor, Any]] | None = None  # of the step, for the state that there is now
        self.room = 0  # tokens that are still to be read before the state of a recorded step is full
        self.spare = (0, 0)  # rows and sources behind those of all groups, which fill the state up
        self.new: list[tuple[Any, Sequence[Group[M]]]] = []

    @property
    def rows(self) -> int:
        """Hypotheses in the batch, without those that idle along."""
        return sum(group.rows for group in self.groups)

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
        self.groups, self.state, self.new, self.spare = [], None, [], (0, 0)
        self.recorded, self.recording, self.room = False, None, 0

    def turn(self) -> list[tuple[M, list[Hypothesis]]]:
        """One more token for every row; gives what was found for the sources that are now over."""
        self.launch()
        return self.collect()()

    def launch(self) -> None:
        """Begin with one more token for every row. A GPU works on it while the host does other things."""
        while self.recorded and self.new and self._put(*self.new[0]):
            del self.new[0]
        if self.new or self._outgrown:
            self._lay_out()
        if not self.groups:
            return
        tokens = [group.search.token for group in self.groups]
        given, state = self._step(torch.cat([*tokens, tokens[0].new_zeros(self.spare[0])]))
        moved, begin = list[tuple[int, int, Tensor | None]](), 0
        for group, own in zip(self.groups, tokens, strict=True):
            end = begin + len(own)
            rows = group.search.advance(given[begin:end])
            moved.append((begin, end, None if rows is None else rows + begin))  # the next replay may write over `rows`
            begin = end
        if any(rows is not None for _, _, rows in moved):
            moved.append((begin, begin + self.spare[0], None))
            every = [torch.arange(i, j, device=self.device) if rows is None else rows for i, j, rows in moved]
            state = state.select(torch.cat(every))
        self.state = state

    def collect(self) -> Callable[[], list[tuple[M, list[Hypothesis]]]]:
        """As soon as what was launched is done: what was found for the sources that are over since the last time, on
        its way from the device. What is given back waits for it, and may be called when the next turn is launched."""
        found = list(self._finished())
        if not self.members:
            self.clear()
        return lambda: [pair for members, wait in found for pair in zip(members, wait(), strict=True)]

    def settled(self, wanted: Collection[M] | None = None) -> Callable[[], list[tuple[M, list[int]]]]:
        """Like `collect`, for each source that is not over, or for those of them that are `wanted`, the tokens that its
        best output surely begins with."""
        found = list[tuple[list[M], Callable[[], list[list[int]]]]]()
        for group in self.groups:
            here = [i for i, x in enumerate(group.members) if i not in group.gone and (wanted is None or x in wanted)]
            if here:
                members = [group.members[i] for i in here]
                found.append((members, group.search.settled(to_device(here, self.device))))
        return lambda: [pair for members, wait in found for pair in zip(members, wait(), strict=True)]

    def _step(self, tokens: Tensor) -> tuple[Tensor, Any]:
        """One step of the network, by a recording where there are any."""
        if not self.recorded:
            return self.step(tokens, self.state)
        self.room -= 1
        if self.recording is None:
            assert self.graphs is not None, "there is nowhere to record"
            key, inputs = ("step", self.step), (tokens, self.state)
            self.recording = self.graphs.recording(key, partial(_step_in_place, self.step), inputs, often=True)
        else:
            self.recording.take((tokens, self.state))
        given = self.recording()
        # The choice of one of several groups is a replay too, which may write over what the step gave.
        return given if len(self.groups) == 1 else given.clone(), self.recording.inputs[1]

    def _finished(self) -> Iterator[tuple[list[M], Callable[[], list[list[Hypothesis]]]]]:
        """The sources of each group that are over since the last time, and what was found for them."""
        every = torch.cat([group.search.over for group in self.groups]).tolist() if self.groups else []  # one wait
        begin = 0
        for group in self.groups:
            own, begin = every[begin : begin + len(group.members)], begin + group.sources
            over = [i for i, ends in enumerate(own) if ends and i not in group.gone]
            if over:
                group.gone.update(over)
                yield [group.members[i] for i in over], group.search.results(to_device(over, self.device))

    def _put(self, state: Any, groups: Sequence[Group[M]]) -> bool:
        """Put the searches over a state in the places of others of their kinds; False: some of them have none."""
        own, row, source = dict[Hashable, tuple[Group[M], list[int], int, int]](), 0, 0
        for group in self.groups:
            if (kind := group.search.kind) is not None:
                own[kind] = group, group.free, row, source
            row, source = row + group.sources * group.each, source + group.sources
        found = list[tuple[Group[M], list[int], Group[M]]]()
        rows, whose, sources, begun = list[Tensor](), list[Tensor](), list[Tensor](), 0
        for new in groups:
            count = len(new.members)
            if new.search.kind not in own or len(own[new.search.kind][1]) < count:
                return False
            group, free, row, source = own[new.search.kind]
            places, column = to_device(free[:count], self.device), torch.arange(group.each, device=self.device)
            if not group.search.put(places, new.search):
                return False
            rows.append((row + places[:, None] * group.each + column).flatten())
            whose.append(torch.arange(begun, begun + count, device=self.device).repeat_interleave(group.each))
            sources.append(source + places)
            found.append((group, free[:count], new))
            del free[:count]
            begun += count
        if not self.state.put(state, torch.cat(rows), torch.cat(whose), torch.cat(sources), self.room):
            return False
        for group, taken, new in found:
            group.take(taken, new)
        return True

    @property
    def _outgrown(self) -> bool:
        """Whether too much idles, or the state of a recorded step is full."""
        if self.recorded:
            return not self.room or any(group.shrinks for group in self.groups)
        idle = sum(len(group.gone) * group.each for group in self.groups)
        return bool(idle) and idle * IDLE >= self.rows

    def _lay_out(self) -> None:
        """Without the rows that idle, and with those that are new; searches of one kind become one."""
        states = [] if self.state is None else [self.state]
        states += [state for state, _ in self.new]
        graphs = self.graphs if all(state.static_shapes for state in states) else None
        parts: list[tuple[Sequence[Group[M]], bool, tuple[int, int]]] = [(self.groups, False, self.spare)]
        parts += [(groups, True, (0, 0)) for _, groups in self.new]
        by_kind: dict[Hashable, list[_Stay[M]]] = {}
        row = source = 0
        for groups, new, spare in parts:
            for group in groups:
                has, count = 1 if new else group.each, group.sources
                stay = group.stay(row, has, source, self.device)
                if len(stay.sources):
                    kind = group.search.kind
                    by_kind.setdefault(id(group) if kind is None else kind, []).append(stay)
                row, source = row + count * has, source + count
            row, source = row + spare[0], source + spare[1]
        self.clear()
        rows, sources = list[Tensor](), list[Tensor]()
        for same in by_kind.values():
            group = same[0].group
            group.join([stay.group for stay in same[1:]])
            self.groups.append(group)
            index = slice(None) if graphs is None else group.fill(self.device, graphs)
            rows.append(torch.cat([stay.rows for stay in same])[index].flatten())
            sources.append(torch.cat([stay.sources for stay in same])[index])
        if not by_kind:
            return
        if graphs is not None:
            self.recorded, self.room = True, ROOM
        counts = [group.each for group in self.groups for _ in range(group.sources)]
        grouping = Grouping.of(counts, self.device, bucket(max(counts), 2) if self.room else 0)
        own, whose = torch.cat(rows), torch.cat(sources)
        if self.room:  # that of several groups is one of few numbers too
            whose = _filled(whose)
            own = _filled(own, len(whose) * counts[0] if grouping is None else 0)
            grouping = None if grouping is None else grouping.filled(len(own), len(whose))
        self.spare = (len(own) - sum(counts), len(whose) - len(counts))
        self.state = states[0].join(states[1:], own, whose, self.room).grouped(grouping)


def _filled(index: Tensor, size: int = 0) -> Tensor:
    """So many of these, or one of few numbers of them; behind them the first stands again and again."""
    size = size or bucket(len(index), 2, LEAST)
    return torch.cat((index, index[:1].expand(size - len(index))))


def _step_in_place(step: Step, given: tuple[Tensor, Any]) -> Tensor:
    """A step that writes the state after it over the one before; returns what the model says of the next token."""
    tokens, state = given
    found, after = step(tokens, state)
    copy_into(state, after)
    return found
