"""Rows of a search: whose they are, where sources have different numbers of them, and how those of several searches are
laid together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Grouping:
    """Which source each row belongs to, where sources have different numbers of rows; those of one stand together.

    Only attention over the source asks for it: its queries are padded to the most rows that a source has.
    """

    source: Tensor  # (rows,)
    place: Tensor  # (sources, most rows of one): which row stands there; any, where there is none
    slot: Tensor  # (rows,): where each row stands in the flattened padded form

    @staticmethod
    def of(counts: Sequence[int], device: torch.device, most: int = 0) -> Grouping | None:
        """Of sources with so many rows; None: all have as many, which needs no saying. There is room for `most` rows of
        a source, or for as many as one has."""
        if len(set(counts)) < 2:
            return None
        count, most = torch.tensor(counts, device=device), max(most, *counts)
        begin, column = count.cumsum(0) - count, torch.arange(most, device=device)
        source = torch.arange(len(counts), device=device).repeat_interleave(count)
        slot = source * most + torch.arange(len(source), device=device) - begin[source]
        return Grouping(source, begin[:, None] + column.minimum(count[:, None] - 1), slot)

    def filled(self, rows: int, sources: int) -> Grouping:
        """With rows and sources behind these that are nobody's, so many in all: what becomes of them is no matter."""
        more, below = rows - len(self.source), sources - len(self.place)
        return Grouping(F.pad(self.source, (0, more)), F.pad(self.place, (0, 0, 0, below)), F.pad(self.slot, (0, more)))

    def padded(self, x: Tensor) -> Tensor:
        """`(sources, most rows of one, …)` of `(rows, …)`."""
        return x.index_select(0, self.place.flatten()).unflatten(0, self.place.shape)

    def unpadded(self, x: Tensor) -> Tensor:
        """The inverse of `padded`."""
        return x.flatten(0, 1).index_select(0, self.slot)


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows `(rows, slots, …)` that are to be laid together with others: how many they are, where in the new slots
    their first comes to stand (below 0: what is before is dropped), and, if they lie in each other's, in whose."""

    rows: int
    slots: int
    first: int = 0
    origin: Tensor | None = None  # (rows, slots)


class Together:
    """Rows of several tensors, whose slots are different in number, in one tensor of as many `slots` for each.

    Slots that nothing stands in hold anything that is a number, or, `cleared`, 0. Where to take what from is worked out
    once, for all tensors that are laid out alike.
    """

    def __init__(self, parts: Sequence[Part], rows: Tensor, slots: int, *, cleared: bool = False) -> None:
        """`rows` of the result are these of all parts, counted through."""
        self.shape, self.moves, begin = (len(rows), slots), list[tuple[int, Tensor, Tensor | None]](), 0
        self.parts, self.cleared = parts, cleared
        column = torch.arange(slots, device=rows.device)
        for number, part in enumerate(parts):
            inside = ((rows >= begin) & (rows < begin + part.rows)).nonzero().flatten()
            if len(inside) and part.slots:
                own, old = rows[inside] - begin, (column - part.first).clamp(0, part.slots - 1)
                table = own[:, None] if part.origin is None else part.origin[own][:, old]
                where = None if len(inside) == len(rows) else inside
                self.moves.append((number, (table * part.slots + old).flatten(), where))
            begin += part.rows

    def __call__(self, parts: Sequence[Tensor]) -> Tensor:
        """`(rows, slots, …)` of those of each part."""
        rest = parts[0].shape[2:]
        found: Tensor | None = None
        for number, index, where in self.moves:
            moved = parts[number].flatten(0, 1).index_select(0, index).unflatten(0, (-1, self.shape[1]))
            if self.cleared:
                part = self.parts[number]
                moved[:, : max(part.first, 0)] = 0
                moved[:, max(part.first + part.slots, 0) :] = 0
            if where is None:
                return moved
            if found is None:
                found = parts[0].new_zeros(*self.shape, *rest)
            found.index_copy_(0, where, moved)
        return parts[0].new_zeros(*self.shape, *rest) if found is None else found


def rows_of_heads(rows: Tensor, heads: int) -> Tensor:
    """Where `rows` of `(rows, heads, …)` lie once these two axes are one."""
    return (rows[:, None] * heads + torch.arange(heads, device=rows.device)).flatten()
