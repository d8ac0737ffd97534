"""Texts end to end, as one stream of tokens that is cut into blocks without padding.

Every text is followed by `</s>`, a blank one too, and the stream is a ring: before its first token stands the `</s>` of
its last text. So a pass may begin anywhere, and where it does is drawn anew for each epoch: a token stands at another
place of its block every time, which is what drawing the lengths of blocks is for (Merity et al. 2018, 4.1), while all
blocks keep one length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batch import Batch, Room
from regard.data.batches import Batches, Position, permute
from regard.data.store import Store
from regard.ragged import Ragged, Slices

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Stream:
    """The texts of a store as a ring of tokens, each text with a mark after it; nothing of it is held in memory."""

    texts: Store
    mark: int

    def __len__(self) -> int:
        return len(self.texts.values) + len(self.texts)

    def read(self, start: int, count: int) -> Tokens:
        """So many tokens from a place on, round the ring."""
        start %= len(self)
        found = self._read(start, min(start + count, len(self)))
        while len(found) < count:
            found = np.concatenate((found, self._read(0, min(count - len(found), len(self)))))
        return found

    def blocks(self, size: int) -> Slices:
        """All of it, in blocks of a size; the last may be shorter."""
        starts = np.arange(0, len(self), size)
        return Slices(self.read(0, len(self)), starts, np.minimum(starts + size, len(self)))

    def _read(self, start: int, end: int) -> Tokens:
        """Those from one place to another: before text `i` there are `i` marks."""
        offsets = self.texts.offsets
        first, last = (
            bisect_right(range(len(offsets)), place, key=lambda i: int(offsets[i]) + i) - 1
            for place in (start, end - 1)
        )
        begin, stop = start - first, min(end - last, int(offsets[last + 1]))
        marks = offsets[first + 1 : last + 1 + (end - 1 - last == offsets[last + 1])]
        return np.insert(self.texts.values[begin:stop].astype(np.int64), marks - begin, self.mark)


@dataclass(frozen=True)
class BlockBatches(Batches):
    """Blocks of a stream, each an example of its own, as a Transformer reads them. A block may hold several texts and
    parts of texts, and attention looks across `</s>`, as in GPT-2 (Radford et al. 2019). Before each block stand `lead`
    more tokens, where its layout wants them."""

    block: int = 1
    lead: int = 0

    @property
    def stream(self) -> Stream:
        return Stream(self.examples.stores[-1], self.sides.target.marks.end)

    @property
    def room(self) -> Room:
        rows, most = self._rows(), self.block + self.layout.added
        return self.layout.room(Room(0, rows * most, rows, most, (0,)))

    def since(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        epoch, skip = position.epoch, position.batch
        while True:
            start = int(np.random.default_rng((self.seed, epoch)).integers(len(self.stream)))
            for number, batch in enumerate(self.epoch(start, epoch, skip), skip + 1):
                yield batch, Position(epoch, 0, number)
            epoch, skip = epoch + 1, 0

    def epoch(self, start: int = 0, epoch: int | None = None, skip: int = 0) -> Iterator[Batch]:
        """One pass from a place of the ring on, but for the first batches; without a number, blocks in their order."""
        stream, rows = self.stream, self._rows()
        count = -(-len(stream) // self.block)
        for number, first in enumerate(range(0, count, rows)):
            if number < skip:
                continue
            members = np.arange(first, min(first + rows, count))
            if epoch is not None:
                members = permute(members, count, self.seed * 1_000_003 + epoch)
            blocks = [self._block(stream, start, int(member)) for member in members]
            yield self.layout([[]] * len(blocks), blocks, np.random.default_rng((self.seed, epoch or 0, number, 0)))

    def _block(self, stream: Stream, start: int, number: int) -> Tokens:
        begin = number * self.block
        return stream.read(start + begin - self.lead, min(self.block, len(stream) - begin) + self.lead)

    def _rows(self) -> int:
        return max(1, self.budgets[-1] // self.block)


@dataclass(frozen=True)
class RowBatches(BlockBatches):
    """The stream as so many long rows side by side, which are read a block at a time, for truncated backpropagation
    through time (Williams and Peng 1990): each batch goes on where the one before it ended. What is left when the rows
    are equally long, fewer tokens than rows, is another part of the stream in each epoch."""

    def epoch(self, start: int = 0, epoch: int | None = None, skip: int = 0) -> Iterator[Batch]:
        stream = self.stream
        rows = max(1, min(self._rows(), len(stream) // self.block))
        length = len(stream) // rows
        for number, begin in enumerate(range(0, length, self.block)):
            if number < skip:
                continue
            steps, nothing = min(self.block, length - begin), Ragged.of([[]] * rows)
            read = np.stack([stream.read(start + row * length + begin - 1, steps + 1) for row in range(rows)])
            inputs, outputs = (
                nothing.even(torch.from_numpy(part.flatten()), steps) for part in (read[:, :-1], read[:, 1:])
            )
            yield Batch(nothing, inputs, outputs, goes_on=number > 0)
