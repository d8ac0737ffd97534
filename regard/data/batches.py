"""The batches of a corpus: shuffled from a seed, sorted into like lengths, packed to a budget of tokens.

An epoch is a permutation that is computed, not stored; it is cut into windows, and within a window examples are
sorted by length, packed, and the batches shuffled. So any position of any epoch can be reached again from the seed,
and memory holds one window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from regard.data.batch import Batch, Room
from regard.data.layouts import Layout
from regard.data.modality import Modality
from regard.data.side import Item
from regard.data.sides import Sides
from regard.data.store import ExampleStore
from regard.data.target import Target
from regard.ragged import Slices

WINDOW_BYTES = 2**26  # of text that is tokenised at once
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Position:
    """How far training has read: `batch` batches of `window` of `epoch` are done."""

    epoch: int = 0
    window: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Batches:
    """The batches of a corpus, for ever, from any position on."""

    examples: ExampleStore
    sides: Sides
    layout: Layout
    budgets: Sequence[int]  # of each source, and of the target
    seed: int
    window: int = 100_000  # examples that are sorted together, if what is drawn anew of them is not too much

    def since(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        """Each batch with the position after it."""
        size = self._window_size()
        windows = -(-len(self.examples) // size)
        epoch, window, skip = position.epoch, position.window, position.batch
        while True:
            members = np.arange(window * size, min((window + 1) * size, len(self.examples)))
            index = self._drawn(permute(members, len(self.examples), self.seed * 1_000_003 + epoch), epoch)
            for number, batch in enumerate(self._window(index, epoch, window, skip), skip + 1):
                yield batch, Position(epoch, window, number)
            window, skip = window + 1, 0
            if window == windows:
                epoch, window = epoch + 1, 0

    def _drawn(self, places: Index, epoch: int) -> Index:
        """The example at each place of an epoch, before it is shuffled.

        Of several corpora each has a stretch of it, `quotas[i]` places long, and goes on there where it was at the end
        of the epoch before: through its examples in order, as they are shuffled anyway, where an epoch takes them all;
        in an order of its own, where it takes fewer, so that an epoch is no stretch of a file.
        """
        sizes, quotas = self.examples.sizes or (len(self.examples),), self.quotas
        if quotas == sizes:
            return places
        found = np.empty_like(places)
        first = starts = 0
        for number, (size, quota) in enumerate(zip(sizes, quotas, strict=True)):
            own = (places >= starts) & (places < starts + quota)
            draws = epoch * quota + places[own] - starts
            rounds, members = np.divmod(draws, size) if size else (draws, draws)
            if quota < size:
                for one in np.unique(rounds):
                    seed = int(np.random.default_rng((self.seed, number, one)).integers(2**62))
                    members[rounds == one] = permute(members[rounds == one], size, seed)
            found[own] = first + members
            first, starts = first + size, starts + quota
        return found

    @cached_property
    def quotas(self) -> tuple[int, ...]:
        """How many examples of each corpus an epoch has; as many in all as there are examples."""
        sizes = self.examples.sizes or (len(self.examples),)
        return apportion(self.sides.config.data.shares(sizes), sum(sizes))

    @property
    def room(self) -> Room:
        """What each of them holds at most, unless one example alone is more."""
        each = [
            part.longest if part.sampled else store.longest()
            for store, part in zip(self.examples.stores, self._parts, strict=True)
        ]
        parts, target = self.sides.source.parts, each[-1] or 0
        marked = tuple(part.framed(longest) if longest else 0 for part, longest in zip(parts, each, strict=False))
        source = 0 if each[0] == 0 else self.budgets[0]
        bound = target + self.layout.added if target else 0
        return self.layout.room(Room(source, self.budgets[-1], self.budgets[-1], bound, marked))

    @property
    def _parts(self) -> list[Modality | Target]:
        return [*self.sides.source.parts, self.sides.target]

    def _window_size(self) -> int:
        """Tokens that are drawn anew are held for a window."""
        drawn = [x for x, part in zip(self.examples.stores, self._parts, strict=True) if part.sampled]
        taken = sum(len(store.values) for store in drawn) / max(len(self.examples), 1)
        return max(1, min(self.window, int(WINDOW_BYTES / max(taken, 1))))

    def _window(self, index: Index, epoch: int, window: int, skip: int) -> Iterator[Batch]:
        sides = [self._side(number, index, epoch, window) for number in range(len(self._parts))]
        costs = [part.cost(side.lengths) for part, side in zip(self._parts, sides, strict=True)]
        costs[-1] = costs[-1] + self.layout.added - 1  # of which one is in the cost
        packs = pack(costs, self.budgets)
        order = np.random.default_rng((self.seed, epoch, window)).permutation(len(packs))
        for place in range(skip, len(order)):
            members = packs[order[place]]
            draw = np.random.default_rng((self.seed, epoch, window, place, 0))
            *sources, target = [side.some(members) for side in sides]
            given = sources[0] if len(sources) == 1 else list(zip(*sources, strict=True))
            yield self.layout(given, target, draw)

    def _side(self, number: int, index: Index, epoch: int, window: int) -> Slices:
        """One side of a window; what is stored as text is tokenised anew from a seed."""
        store, part = self.examples.stores[number], self._parts[number]
        if not part.sampled:
            return store.some(index)
        texts = [store[i].tobytes().decode() for i in index]
        seed = int(np.random.default_rng((self.seed, epoch, window, number)).integers(2**31))
        tokens = _within(part, texts, part.encode_many(texts, sampling=part.sampled, seed=seed))
        ends = np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)))
        flat = np.fromiter(chain.from_iterable(tokens), part.dtype, int(ends[-1]))
        return Slices(flat, np.concatenate(([0], ends[:-1])), ends)


def _within(part: Modality | Target, texts: list[str], drawn: Sequence[Item]) -> list[Item]:
    """What was drawn, but where that is longer than may be, the tokens that a text always has.

    These are the ones that were counted when the corpus was read; a draw may have many more, up to its characters.
    """
    kept = list(drawn)
    long = [i for i, tokens in enumerate(kept) if part.longest is not None and len(tokens) > part.longest]
    for i, tokens in zip(long, part.encode_many([texts[i] for i in long]), strict=True):
        kept[i] = tokens
    return kept


def pack(costs: Sequence[Index], budgets: Sequence[int]) -> list[Index]:
    """Groups of examples of like cost, each within the budget of every side unless one example alone is over."""
    order = np.lexsort(costs)
    ends = [np.cumsum(cost[order]) for cost in costs]
    packs, start = [], 0
    while start < len(order):
        room = [
            int(np.searchsorted(end, (end[start - 1] if start else 0) + budget, side="right"))
            for end, budget in zip(ends, budgets, strict=True)
        ]
        stop = max(min(room), start + 1)
        packs.append(order[start:stop])
        start = stop
    return packs


def apportion(shares: Sequence[float], total: int) -> tuple[int, ...]:
    """Whole numbers that add up to `total`, each nearest to its share of it (largest remainders first)."""
    exact = np.array(shares, np.float64) * total
    found = np.floor(exact).astype(np.int64)
    missing = total - int(found.sum())
    found[np.argsort(found - exact, kind="stable")[:missing]] += 1
    return tuple(found.tolist())


def permute(numbers: Index, size: int, seed: int) -> Index:
    """Where a seeded permutation of `range(size)` sends each of `numbers`, without holding the permutation.

    A four-round Feistel network permutes the smallest square of a power of two that holds `size`; numbers that land
    outside are sent on until they land inside (Black and Rogaway 2002).
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = np.uint64(2**half - 1)
    keys = np.random.default_rng(seed).integers(2**63, size=4, dtype=np.uint64) | np.uint64(1)
    values = numbers.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> np.uint64(half), values[outside] & mask
        for key in keys:
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= (mixed >> np.uint64(29)) + key
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        values[outside] = (left << np.uint64(half)) | right
        outside = values >= np.uint64(size)
    return values.astype(np.int64)
