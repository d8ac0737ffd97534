"""Examples to batches: shuffled from a seed, sorted into like lengths, packed to a budget of tokens.

An epoch is a permutation that is computed, not stored; it is cut into windows, and within a window examples are
sorted by length, packed, and the batches shuffled. So any position of any epoch can be reached again from the seed,
and memory holds one window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.store import PairStore
from regard.data.tokens import BOS, EOS, Tokenizer
from regard.ragged import Ragged

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Pairs ready for a model: sources end in `</s>`, inputs start with `<s>`, outputs end in `</s>`."""

    source: Ragged
    inputs: Ragged
    outputs: Ragged

    @property
    def tokens(self) -> int:
        """How many target tokens are learnt from."""
        return self.outputs.values.shape[0]

    def to(self, device: torch.device) -> Batch:
        return Batch(*(x.to(device, non_blocking=True) for x in (self.source, self.inputs, self.outputs)))


def make_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Batch:
    """Put the marks in place and pack."""
    return Batch(
        Ragged.of([[*x, EOS] for x in sources]),
        Ragged.of([[BOS, *y] for y in targets]),
        Ragged.of([[*y, EOS] for y in targets]),
    )


@dataclass(frozen=True)
class Position:
    """How far training has read: `batch` batches of `window` of `epoch` are done."""

    epoch: int = 0
    window: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Batches:
    """The batches of a corpus, for ever, from any position on."""

    pairs: PairStore
    tokenizers: tuple[Tokenizer, Tokenizer]
    budget: int
    seed: int
    sampling: float = 0.0
    window: int = 100_000

    def since(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        """Each batch with the position after it."""
        windows = -(-len(self.pairs) // self.window)
        epoch, window, skip = position.epoch, position.window, position.batch
        while True:
            members = np.arange(window * self.window, min((window + 1) * self.window, len(self.pairs)))
            index = permute(members, len(self.pairs), self.seed * 1_000_003 + epoch)
            for number, batch in enumerate(self._window(index, epoch, window, skip), skip + 1):
                yield batch, Position(epoch, window, number)
            window, skip = window + 1, 0
            if window == windows:
                epoch, window = epoch + 1, 0

    def _window(self, index: Index, epoch: int, window: int, skip: int) -> Iterator[Batch]:
        drawn = self._draw(index, epoch, window) if self.pairs.text else None
        if drawn is None:
            lengths = [store.lengths(index) for store in (self.pairs.source, self.pairs.target)]
        else:
            lengths = [np.array([len(ids) for ids in side]) for side in drawn]
        packs = pack(lengths[0], lengths[1], self.budget)
        order = np.random.default_rng((self.seed, epoch, window)).permutation(len(packs))
        for number in order[skip:]:
            members = packs[number]
            if drawn is None:
                sources = [self.pairs.source[i].tolist() for i in index[members]]
                targets = [self.pairs.target[i].tolist() for i in index[members]]
            else:
                sources, targets = ([side[i] for i in members] for side in drawn)
            yield make_batch(sources, targets)

    def _draw(self, index: Index, epoch: int, window: int) -> tuple[list[list[int]], list[list[int]]]:
        sides = []
        for side, (store, tokenizer) in enumerate(
            zip((self.pairs.source, self.pairs.target), self.tokenizers, strict=True)
        ):
            texts = [store[i].tobytes().decode() for i in index]
            seed = int(np.random.default_rng((self.seed, epoch, window, side)).integers(2**31))
            sides.append(tokenizer.encode_many(texts, sampling=self.sampling, seed=seed))
        return sides[0], sides[1]


def pack(source: Index, target: Index, budget: int) -> list[Index]:
    """Groups of examples of like length, each within `budget` tokens a side (with marks) unless one alone is over."""
    order = np.lexsort((source, target))
    ends = [np.cumsum(lengths[order] + 1) for lengths in (source, target)]
    packs, start = [], 0
    while start < len(order):
        room = [int(np.searchsorted(end, (end[start - 1] if start else 0) + budget, side="right")) for end in ends]
        stop = max(min(room), start + 1)
        packs.append(order[start:stop])
        start = stop
    return packs


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
