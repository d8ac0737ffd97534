"""Examples to batches: shuffled from a seed, sorted into like lengths, packed to a budget of tokens.

An epoch is a permutation that is computed, not stored; it is cut into windows, and within a window examples are
sorted by length, packed, and the batches shuffled. So any position of any epoch can be reached again from the seed,
and memory holds one window.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.bundle import Bundle, Source, parts_of
from regard.data.modality import Modality
from regard.data.noise import Noise, choose_spans, choose_words, word_spans
from regard.data.side import Item
from regard.data.sides import Sides
from regard.data.store import ExampleStore
from regard.data.target import HeadTarget, Target
from regard.data.tokens import NATIVE, Frame, Marks
from regard.errors import ConfigError
from regard.ragged import Ragged, Slices, round_up

IGNORED = -100  # an output that does not count, as in torch
FILLED = 10  # so many times as much may a side become that is filled up for the sake of one of pictures
WINDOW_BYTES = 2**26  # of text that is tokenised at once
Index = NDArray[np.int64]
Tokens = Sequence[int] | NDArray[Any]


@dataclass(frozen=True)
class Room:
    """What a batch holds at most: elements of the source, tokens of the target, rows, tokens of one target (0: nobody
    asks), and elements of one of each source."""

    source: int
    target: int
    rows: int
    longest: int
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Examples ready for a model, which says of each of `inputs` what it should be followed by (`outputs`)."""

    source: Source
    inputs: Ragged
    outputs: Ragged
    filler: int = 0  # how many of the outputs do not count: they fill up, or are forced
    goes_on: bool = False  # its rows go on where those of the batch before it ended

    @property
    def tokens(self) -> int:
        """How many target tokens are learnt from."""
        return self.outputs.values.shape[0] - self.filler

    def to(self, device: torch.device) -> Batch:
        source, inputs, outputs = (x.to(device, non_blocking=True) for x in (self.source, self.inputs, self.outputs))
        return replace(self, source=source, inputs=inputs, outputs=outputs)

    def filled(self, room: Room) -> Batch | None:
        """With each side filled up to what there is room for, so that all batches are of one shape.

        None if there is more than that. What fills up belongs to no sequence, and its outputs do not count.
        """
        source, inputs, outputs = self.source, self.inputs, self.outputs
        fits = source.values.shape[0] <= room.source and inputs.values.shape[0] <= room.target
        if not fits or len(inputs) > room.rows or inputs.longest > (room.longest or inputs.longest):
            return None
        more = room.target - outputs.values.shape[0]
        source = source.filled(room.source, room.rows)
        inputs, outputs = (
            side.filled(room.target, room.rows, fill, room.longest) for side, fill in ((inputs, 0), (outputs, IGNORED))
        )
        return Batch(source, inputs, outputs, self.filler + more)

    def evened(self, room: Room, *, written: bool) -> Batch | None:
        """Where a source has all rows of one length, such as pictures: with the others, and with a target that is
        `written`, filled up to what as many rows have at most, so that all batches of as many rows are of one shape.

        None if no source is such, if there is more than that, or if nearly all would be there to fill up.
        """
        rows, parts = len(self.inputs), parts_of(self.source)
        longest = [*room.sources, *[room.longest] * written]
        totals = [round_up(rows * each, 64) for each in longest]
        sides = [*parts, *[self.outputs] * written]
        own = [len(side.values) for side in sides]
        fits = [
            side.uniform or (count <= total <= FILLED * count and side.longest <= each)
            for side, count, total, each in zip(sides, own, totals, longest, strict=True)
        ]
        if not all(fits) or not any(part.uniform for part in parts):
            return None
        made = tuple(
            part if part.uniform else part.filled(total, rows, longest=each)
            for part, total, each in zip(parts, totals, longest, strict=False)
        )
        inputs, outputs, filler = self.inputs, self.outputs, self.filler
        if written:
            filler += totals[-1] - own[-1]
            inputs, outputs = (
                side.filled(totals[-1], rows, fill, room.longest) for side, fill in ((inputs, 0), (outputs, IGNORED))
            )
        return Batch(Bundle(made) if isinstance(self.source, Bundle) else made[0], inputs, outputs, filler)

    def pinned(self) -> Batch:
        """In memory from which a GPU can fetch it by itself."""
        source, inputs, outputs = (x.pinned() for x in (self.source, self.inputs, self.outputs))
        return replace(self, source=source, inputs=inputs, outputs=outputs)


def make_batch(
    source: Source, targets: Sequence[Tokens], marks: Marks = NATIVE, first: Sequence[int] | None = None
) -> Batch:
    """Put the marks of the target in place and pack; `first` is what the first token is written after (that of the
    marks). Where these are several, all but one are forced, and do not count."""
    first = marks.first if first is None else first
    forced = [IGNORED] * (len(first) - 1)
    inputs, outputs = Ragged.of(targets, before=first), Ragged.of(targets, before=forced, after=[marks.end])
    return Batch(source, inputs, outputs, len(forced) * len(targets))


class Layout(ABC):
    """How examples are laid out for a model; what it draws at random comes from `draw`."""

    added = 1  # how many marks each target gets

    @abstractmethod
    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        """A batch of these examples."""

    def room(self, room: Room) -> Room:
        """What its batches hold at most, where sources, and targets with their marks, take so much `room`."""
        return room


@dataclass(frozen=True)
class Pairs(Layout):
    """A source, and a target to write a token at a time."""

    source: Modality
    marks: Marks = NATIVE
    first: Sequence[int] | None = None  # what the first token is written after, if not what the marks say

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        return make_batch(self.source.pack(sources), targets, self.marks, self.first)


@dataclass(frozen=True)
class Continued(Layout):
    """Blocks of a stream, each with the token before it: every token is to follow the one before."""

    added = 0

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        inputs, outputs = (Ragged.of([block[part] for block in targets]) for part in (slice(-1), slice(1, None)))
        return Batch(Ragged.of(sources), inputs, outputs)


@dataclass(frozen=True)
class Masked(Layout):
    """Devlin et al. 2019, 3.1: a share of the tokens is to be predicted from the others.

    Of these 80 % are replaced by `<mask>`, 10 % by any token, 10 % stay. A model is told where they are (`inputs` holds
    positions) and should say what they were (`outputs`). Texts stand between `<s>` and `</s>`. They are drawn one by
    one, as whole words, or as spans of words, each of which has one fate (Joshi et al. 2020): `words` says which word
    each token of a text belongs to.
    """

    share: float
    vocabulary: int
    marks: Marks = NATIVE
    masking: str = "tokens"
    words: Callable[[Any], Sequence[int]] = field(default=lambda tokens: range(len(tokens)))
    always: bool = False  # `<mask>` in place of all of them

    @property
    def added(self) -> int:  # type: ignore[override]
        return len(self._frame)

    def room(self, room: Room) -> Room:
        """The whole of each text is read, and a share of it predicted.

        That is one token at least, and a rounded number of them: an eighth more than the share, in a batch, of texts of
        four tokens or more where it is 15 %. A batch of shorter ones may have more than there is room for.
        """
        each = self._count(room.longest - self.added) if room.longest else room.target
        predicted = min(room.rows * each, math.ceil(room.target * self.share * 9 / 8), room.target)
        return Room(room.target, predicted, room.rows, each if room.longest else 0, (room.longest,))

    @cached_property
    def _frame(self) -> Frame:
        return self.marks.frame(begins=True, ends=True)

    def _count(self, length: int) -> int:
        """How many tokens of a text of this length are predicted."""
        return max(1, round(self.share * length))

    @cached_property
    def _others(self) -> NDArray[np.int64]:
        """The tokens that may stand in the place of another."""
        return self.marks.text_ids(self.vocabulary)

    def _chosen(self, target: Tokens, draw: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Which tokens are to be predicted, and a number for each from which follows what is done to it."""
        count = self._count(len(target))
        words = word_spans(self.words(target)) if self.masking != "tokens" else []
        if not words:
            inside = np.flatnonzero(np.asarray(target) != self.marks.end)  # in a stream texts end within a block
            if not len(inside):
                return inside, np.zeros(0)
            count = min(count, len(inside))
            return inside[np.sort(draw.choice(len(inside), count, replace=False))], draw.random(count)
        spans = (choose_words if self.masking == "words" else choose_spans)(words, count, draw)
        places = np.concatenate([np.arange(*span) for span in spans])
        if self.masking == "words":
            return places, draw.random(len(places))
        return places, np.repeat(draw.random(len(spans)), [end - start for start, end in spans])

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        texts, places, answers = [], [], []
        frame, mask = self._frame, self.marks.mask
        if mask is None:
            raise ConfigError("this vocabulary has no mark for a token to be filled in, so nothing can be masked")
        for target in targets:
            chosen, fates = self._chosen(target, draw)
            text = list(target)
            for place, fate in zip(chosen.tolist(), fates.tolist(), strict=True):
                if self.always or fate < 0.8:
                    text[place] = mask
                elif fate < 0.9:
                    text[place] = int(self._others[draw.integers(len(self._others))])
            texts.append(text)
            places.append((chosen + len(frame.before)).tolist())
            answers.append([target[place] for place in chosen.tolist()])
        source = Ragged.of(texts, before=frame.before, after=frame.after)
        return Batch(source, Ragged.of(places), Ragged.of(answers))


@dataclass(frozen=True)
class Denoised(Layout):
    """What noise leaves of a text as the source, and what it should become as the target."""

    source: Modality
    noise: Noise
    marks: Marks = NATIVE

    def room(self, room: Room) -> Room:
        return replace(room, source=room.target, sources=(room.longest + 1,))

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        pairs = [self.noise(target, draw) for target in targets]
        return make_batch(self.source.pack([read for read, _ in pairs]), [written for _, written in pairs], self.marks)


@dataclass(frozen=True)
class BothWays(Layout):
    """Words, each of which is to be predicted from those before it and from those after it.

    A source of `n` words, its marks counted, gives `2 (n - 1)` outputs: those from the second on after each position
    `k` (`inputs` holds `k`), and those up to the last but one before each (`n + k`).
    """

    source: Modality
    marks: Marks = NATIVE

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        frame = self.marks.frame(begins=True, ends=True)
        texts = [frame.around(list(target)) for target in targets]
        places = [[*range(len(text) - 1), *range(len(text) + 1, 2 * len(text))] for text in texts]
        outputs = [[*text[1:], *text[:-1]] for text in texts]
        return Batch(self.source.pack(sources), Ragged.of(places), Ragged.of(outputs))


@dataclass(frozen=True)
class Predicted(Layout):
    """A source, and what a head is to predict: of the whole (`inputs` then say nothing), or at some of its positions.

    Of a word that is its first piece or, where the body sees no further than it has read, its `last`.
    """

    source: Modality
    target: HeadTarget
    last: bool = False

    def __call__(self, sources: Sequence[Item], targets: Sequence[Tokens], draw: np.random.Generator) -> Batch:
        places = [self.target.positions(self.source, item, last=self.last) for item in sources]
        read = [row for item in sources for row in self.target.rows(item)] if self.target.wrapped else sources
        return Batch(self.source.pack(read), Ragged.of(places), self.target.pack(targets))


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
