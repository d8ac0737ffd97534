"""Sequences of different lengths laid end to end, without padding.

Everything that treats each position alone (embedding, norm, feed-forward, output layer, loss) runs on `values` and
never touches padding. Only attention and recurrence ask where a sequence ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


def round_up(number: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-number // step) * step


def bucket(number: int, parts: int = 8, least: int = 1) -> int:
    """The next of few sizes: `parts` (or half as many) up to each power of 2, and `least` apart or more. By 8 parts
    they are 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, …: at most a quarter more."""
    return round_up(number, max(least, 2 ** (number - 1).bit_length() // parts))


@dataclass(frozen=True)
class Grid:
    """A padded form with more rows and steps than there are, flattened: values go in and out of it by gathers alone,
    also in the backward pass."""

    place: Tensor  # (slots,): which value stands in each; any, where it holds none
    empty: Tensor  # (slots,): True where it holds none
    slot: Tensor  # (total,): where each value stands

    def padded(self, values: Tensor) -> Tensor:
        """`(slots, …)`, with anything where there is no value: no gradient comes back from there."""
        if not len(values):
            return values.new_zeros(len(self.place), *values.shape[1:])
        return gathered(values, self.place, self.slot)

    def cut(self, flat: Tensor) -> Tensor:
        """The values alone, `(total, …)`."""
        return gathered(flat, self.slot, self.place, self.empty)


@dataclass(frozen=True, eq=False)
class Slices(Sequence[NDArray[Any]]):
    """Sequences that are slices of one array, so that many are laid end to end at once."""

    values: NDArray[Any]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> Any:
        return self.values[self.starts[index] : self.ends[index]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.asarray(self.ends - self.starts)

    def some(self, index: NDArray[np.int64]) -> Slices:
        """These of them, in this order."""
        return Slices(self.values, self.starts[index], self.ends[index])

    def joined(self) -> NDArray[Any]:
        """All, end to end."""
        lengths = self.lengths
        before = np.cumsum(lengths) - lengths
        return np.asarray(self.values[np.repeat(self.starts - before, lengths) + np.arange(int(lengths.sum()))])


@dataclass(frozen=True, eq=False)
class Ragged:
    """`values[offsets[i]:offsets[i + 1]]` is sequence `i`; `longest` is the greatest length.

    `longest` is a Python number so that shapes never wait for the device. Values behind the last sequence belong to
    none (`row` is then `len(self)`): they fill a batch up to a size that stays the same.
    """

    values: Tensor  # (total, …)
    offsets: Tensor  # (rows + 1,), int32 as the variable-length kernels want it
    longest: int
    uniform: bool = False  # every sequence has `longest` values, and there are no others
    spare: bool = False  # shapes do not follow from lengths: there may be values of none, and `longest` is a bound

    @staticmethod
    def of(
        sequences: Sequence[Sequence[int] | NDArray[Any]], device: torch.device | str | None = None, *,
        before: Sequence[int] = (), after: Sequence[int] = (),
    ) -> Ragged:  # fmt: skip
        """From lists or arrays of token ids, each with marks `before` and `after` it."""
        marks = len(before) + len(after)
        flat = sequences if isinstance(sequences, Slices) else None
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences)) if flat is None else flat.lengths
        ends = np.cumsum(lengths + marks)
        offsets = np.concatenate(([0], ends))
        values, own = np.empty(offsets[-1], np.int64), np.ones(offsets[-1], bool)
        for places in (
            *((offsets[:-1] + i, mark) for i, mark in enumerate(before)),
            *((ends - len(after) + i, mark) for i, mark in enumerate(after)),
        ):
            values[places[0]], own[places[0]] = places[1], False
        if flat is not None:
            values[own] = flat.joined()
        elif all(isinstance(sequence, np.ndarray) for sequence in sequences):
            values[own] = np.concatenate([*sequences, np.zeros(0, np.int64)])
        else:
            values[own] = np.fromiter(chain.from_iterable(sequences), np.int64)
        longest = int(np.diff(offsets).max(initial=0))
        return Ragged(torch.from_numpy(values), torch.from_numpy(offsets.astype(np.int32)), longest).to(device)

    @staticmethod
    def from_lengths(values: Tensor, lengths: Sequence[int]) -> Ragged:
        """From values laid end to end and the length of each sequence."""
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        torch.cumsum(torch.tensor(lengths, dtype=torch.int32), 0, out=offsets[1:])
        return Ragged(values, offsets.to(values.device), max(lengths, default=0))

    @staticmethod
    def from_padded(padded: Tensor, lengths: Sequence[int]) -> Ragged:
        """From `(rows, longest, …)`, keeping the first `lengths[i]` positions of row `i`."""
        mask = torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None]
        return Ragged.from_lengths(padded[mask.to(padded.device)], lengths)

    def __len__(self) -> int:
        return self.rows

    @property
    def rows(self) -> int:
        """How many sequences there are: `len(self)`, which a tracer would take for a constant."""
        return self.offsets.shape[0] - 1

    @cached_property
    def lengths(self) -> Tensor:
        """Length of each sequence, `(rows,)`."""
        return (self.offsets[1:] - self.offsets[:-1]).long()

    @cached_property
    def known(self) -> Tensor:
        """The lengths on the CPU, where some kernels want them; sequences that came from there wait for no device."""
        return self.lengths.cpu()

    @cached_property
    def row(self) -> Tensor:
        """Which sequence each value belongs to, `(total,)`."""
        place = torch.arange(self.values.shape[0], dtype=torch.int32, device=self.offsets.device)
        return torch.searchsorted(self.offsets[1:].contiguous(), place, right=True)

    @cached_property
    def position(self) -> Tensor:
        """Where in its sequence each value stands, from 0, `(total,)`."""
        return torch.arange(self.values.shape[0], device=self.offsets.device) - self.offsets.long()[self.row]

    def indexed(self) -> Ragged:
        """With `row` and `position` worked out, for compiled layers: Python 3.11 works out a `cached_property` under a
        lock, which `torch.compile` cannot enter."""
        for name in ("row", "position"):
            getattr(self, name)
        return self

    @cached_property
    def slot(self) -> Tensor:
        """Where each value stands in the flattened padded form, `(total,)`."""
        return self.row * max(self.longest, 1) + self.position

    @cached_property
    def place(self) -> Tensor:
        """Which value stands in each slot of the padded form, `(rows, longest)`; any, where it holds none."""
        slot = torch.arange(max(self.longest, 1), device=self.offsets.device)
        return (self.offsets[:-1, None] + slot).clamp(max=self.values.shape[0] - 1)

    @cached_property
    def mask(self) -> Tensor:
        """True where the padded form holds a value, `(rows, longest)`; at least one column wide."""
        return torch.arange(max(self.longest, 1), device=self.offsets.device) < self.lengths[:, None]

    @cached_property
    def by_step(self) -> tuple[Tensor, Tensor, Tensor]:
        """The order in which recurrent kernels want values: all first positions, then all second ones, and so on.

        Rows go from long to short. Gives the index of the values `(total,)`, how many rows are still going at each
        position (on the CPU, as the kernels want it), and the rows that are not empty in their new order.
        """
        rank = self.lengths.argsort(descending=True, stable=True)
        place = torch.empty_like(rank)
        place[rank] = torch.arange(len(self), device=rank.device)
        index = (self.position * len(self) + place[self.row]).argsort()
        going = (self.known[:, None] > torch.arange(self.longest)).sum(0)
        return index, going, rank[: int(going[0])] if self.longest else rank[:0]

    @cached_property
    def in_steps(self) -> Tensor:
        """Where each value stands in the order of `by_step`, `(total,)`."""
        index = self.by_step[0]
        return torch.empty_like(index).index_copy_(0, index, torch.arange(len(index), device=index.device))

    def grid(self, rows: int, steps: int, *, by_step: bool = False) -> Grid:
        """Room for so many rows and steps: row after row, or all first positions, then all second ones, and so on."""
        more, step = rows - len(self), torch.arange(steps, device=self.offsets.device)
        begin, lengths = F.pad(self.offsets[:-1].long(), (0, more)), F.pad(self.lengths, (0, more))
        place = (begin[:, None] + step).clamp(max=self.values.shape[0] - 1)
        empty = step >= lengths[:, None]
        if by_step:
            return Grid(place.mT.flatten(), empty.mT.flatten(), self.position * rows + self.row)
        return Grid(place.flatten(), empty.flatten(), self.row * steps + self.position)

    def padded(self, fill: float = 0) -> Tensor:
        """`(rows, longest, …)` with `fill` past the end of each sequence; at least one position wide. With gradients
        all values must belong to a sequence."""
        shape = self.values.shape[1:]
        if self.uniform:
            return self.values.view(self.rows, self.longest, *shape)
        if not torch.is_grad_enabled() and self.values.shape[0]:
            found = self.values.index_select(0, self.place.flatten()).view(*self.place.shape, *shape)
            return found.masked_fill_(~self.mask.view(*self.mask.shape, *[1] * len(shape)), fill)
        flat = self.values.new_full((len(self) * max(self.longest, 1), *shape), fill)
        flat = flat.index_copy(0, self.slot, self.values)
        return flat.view(len(self), max(self.longest, 1), *shape)

    def unpadded(self, padded: Tensor) -> Ragged:
        """The inverse of `padded()`: another tensor `(rows, longest, …)` cut to these lengths."""
        flat = padded.flatten(0, 1)
        return self.like(flat if self.uniform else flat.index_select(0, self.slot))

    def along(self, f: Callable[[Tensor], Tensor], reach: int) -> Ragged:
        """What `f`, from `(batch, width, time)` to as many times, makes of `(total, width)` values where it looks no
        further than `reach`: sequences lie end to end, with so many zeros between that none sees another."""
        total, width = self.values.shape
        place = torch.arange(total, device=self.values.device) + self.row * reach
        apart = self.values.new_zeros(total + self.rows * reach, width).index_copy(0, place, self.values)
        return self.like(f(apart.mT.unsqueeze(0)).squeeze(0).mT.index_select(0, place))

    def like(self, values: Tensor) -> Ragged:
        """Other values under the same lengths; what was worked out about the layout is shared."""
        other = Ragged(values, self.offsets, self.longest, self.uniform, self.spare)
        for name in ("lengths", "known", "row", "position", "slot", "place", "mask", "by_step", "in_steps"):
            if name in self.__dict__:
                other.__dict__[name] = self.__dict__[name]
        return other

    def even(self, values: Tensor, length: int) -> Ragged:
        """As many sequences as here, of `length` values each, at least one."""
        offsets = torch.arange(self.rows + 1, dtype=torch.int32, device=self.offsets.device) * length
        return Ragged(values, offsets, length, uniform=True)

    def select(self, rows: Tensor) -> Ragged:
        """Some of the sequences, in this order; one may come several times. Waits for the device."""
        lengths = self.lengths[rows]
        start = (self.offsets[:-1].long()[rows] - lengths.cumsum(0) + lengths).repeat_interleave(lengths)
        values = self.values[start + torch.arange(len(start), device=start.device)]
        return Ragged.from_lengths(values, lengths.tolist())

    def twice(self) -> Ragged:
        """All sequences, and then all again. What fills up behind them goes to the last of the first: an empty one."""
        values, offsets = torch.cat((self.values, self.values)), self.offsets
        offsets = torch.cat((offsets[:-1], offsets + self.values.shape[0]))
        both = Ragged(values, offsets, self.longest, spare=self.spare)
        if "known" in self.__dict__:
            both.__dict__["known"] = self.known.repeat(2)
        return both

    def joined(self, other: Ragged) -> tuple[Ragged, Tensor]:
        """Each sequence with that of `other` after it, and where the values of `other` now stand. What fills either of
        them up comes last. Where shapes do not follow from lengths, nothing waits for the device."""
        total = self.values.shape[0] + other.values.shape[0]
        ends = F.pad(self.offsets[1:], (0, 1), value=self.values.shape[0])  # the last is that of all values
        own = self.offsets.long()[self.row] + other.offsets.long()[self.row] + self.position
        new = other.offsets.long()[other.row] + ends.long()[other.row] + other.position
        values = self.values.new_empty((total, *self.values.shape[1:]))
        values = values.index_copy(0, own, self.values).index_copy(0, new, other.values)
        spare = self.spare or other.spare
        uniform = self.uniform and other.uniform
        if spare or uniform:
            longest = self.longest + other.longest
        else:
            longest = int((self.lengths + other.lengths).max()) if len(self) else 0
        return Ragged(values, self.offsets + other.offsets, longest, uniform, spare), new

    def reversed(self) -> Ragged:
        """Each sequence back to front."""
        index = self.offsets[1:].long()[self.row] - 1 - self.position
        return self.like(gathered(self.values, index, index))

    def last(self) -> Tensor:
        """The last value of each sequence, `(rows, …)`; zeros for an empty one."""
        if self.values.shape[0] == 0:
            return self.values.new_zeros((len(self), *self.values.shape[1:]))
        picked = self.values[(self.offsets[1:].long() - 1).clamp(min=0)]
        return picked.masked_fill((self.lengths == 0).view(-1, *[1] * (picked.dim() - 1)), 0)

    def mean(self) -> Tensor:
        """The mean over each sequence, `(rows, …)`; zeros for an empty one."""
        dtype = self.values.dtype if self.values.is_floating_point() else torch.float32
        kind = torch.promote_types(dtype, torch.float32)  # in half precision a sum would lose its end
        total = self.values.new_zeros((self.rows + 1, *self.values.shape[1:]), dtype=kind)
        total = total.index_add(0, self.row, self.values.to(kind))
        found = total[:-1] / self.lengths.clamp(min=1).view(-1, *[1] * (total.dim() - 1))
        return found.to(dtype)

    def weighted(self, scores: Tensor) -> Tensor:
        """`Σ softmax(scores) values` over each sequence, of a score for each value, `(rows, …)`; zeros for an empty
        one."""
        scores, kind = scores.float(), self.values.dtype
        top = scores.new_full((self.rows + 1,), -math.inf).scatter_reduce(0, self.row, scores.detach(), "amax")
        share = (scores - top[self.row]).exp()
        share = share / share.new_zeros(self.rows + 1).index_add(0, self.row, share)[self.row]
        weighed = share.view(-1, *[1] * (self.values.dim() - 1)) * self.values
        total = weighed.new_zeros((self.rows + 1, *self.values.shape[1:])).index_add(0, self.row, weighed)
        return total[:-1].to(kind)

    def spread(self, of_row: Tensor) -> Tensor:
        """What each sequence has, `(rows, …)`, for each of its values, `(total, …)`; anything for a value of none."""
        return of_row[self.row.clamp(max=max(self.rows - 1, 0))]

    def tolist(self) -> list[list[int]]:
        """Back to lists, one a sequence."""
        flat = self.values.tolist()
        return [flat[start:end] for start, end in pairwise(self.offsets.tolist())]

    def filled(self, total: int, rows: int, fill: int = 0, longest: int = 0) -> Ragged:
        """With empty sequences added, `rows` in all, `fill` behind them up to `total` values, and at least this
        `longest`."""
        more, last = total - self.values.shape[0], self.offsets[-1:]
        values = torch.cat((self.values, self.values.new_full((more, *self.values.shape[1:]), fill)))
        offsets = torch.cat((self.offsets, last.expand(rows - len(self))))
        return Ragged(values, offsets, max(self.longest, longest), spare=True)

    def pinned(self) -> Ragged:
        """In memory from which a GPU can fetch it by itself."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory(), self.longest, self.uniform, self.spare)

    def to(self, device: torch.device | str | None, non_blocking: bool = False) -> Ragged:
        """On another device."""
        if device is None:
            return self
        values, offsets = (x.to(device, non_blocking=non_blocking) for x in (self.values, self.offsets))
        moved = Ragged(values, offsets, self.longest, self.uniform, self.spare)
        if self.offsets.device.type == "cpu":
            moved.__dict__["known"] = self.known
        return moved


def gathered(x: Tensor, index: Tensor, back: Tensor, empty: Tensor | None = None) -> Tensor:
    """`x[index]`, whose gradient is that of `back`, 0 where it is `empty`: a gather too, and no sum of many places. For
    indices that take each value once, and to some places that nobody reads: `back` is where a value went."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x.index_select(0, index)
    return _Gathered.apply(x, index, back, empty)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, back: Tensor, empty: Tensor | None) -> Tensor:
        ctx.save_for_backward(back, empty)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        back, empty = ctx.saved_tensors
        found = gradient.index_select(0, back)
        if empty is not None:
            found.masked_fill_(empty.view(-1, *[1] * (found.dim() - 1)), 0)
        return found, None, None, None
