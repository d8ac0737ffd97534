"""Where a decoder's cache of keys and values takes in new positions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slots:
    """Where in a cache new positions go, and what they see of it."""

    new: Tensor  # (new,): the slots of new positions
    window: int  # slots to look at, from the first on
    origin: Tensor | None = None  # (rows, slots): in whose cache each slot of a row lies, the new ones to be put down
    real: Tensor | None = None  # (rows, window): True where a slot holds something; None: all before the new do
    at: Tensor | None = None  # (1,): slots that are taken before the new, where only the device knows
    position: Tensor | None = None  # (rows, new): where in its row each new one stands; None: where its slot does

    @cached_property
    def distance(self) -> Tensor:
        """From a new position to a slot, `(new, window)`."""
        return torch.arange(self.window, device=self.new.device) - self.new[:, None]

    @cached_property
    def places(self) -> Tensor | None:
        """Where in all caches, laid end to end, each slot lies, `(rows, window)`; None: in its own. The new slots are
        written into `origin`, as each row's own."""
        if self.origin is None:
            return None
        rows = torch.arange(len(self.origin), device=self.origin.device)
        self.origin.index_copy_(1, self.new, rows[:, None].expand(-1, len(self.new)))
        slot = torch.arange(self.window, device=self.new.device)
        return self.origin[:, : self.window] * self.origin.shape[1] + slot

    @cached_property
    def held(self) -> Tensor:
        """Which position of its row each slot holds, `(rows or 1, window)`; -1 before the first."""
        if self.real is None:
            return torch.arange(self.window, device=self.new.device)[None]
        return self.real.long().cumsum(1) - 1

    @cached_property
    def nowhere(self) -> Tensor | None:
        """`(rows, 1, new, 1)`: True where a new position sees nothing, of which kernels make different things."""
        return None if self.real is None else ~self.visible.any(-1, keepdim=True)

    @cached_property
    def seen(self) -> Tensor | None:
        """`(rows or 1, 1, new, window)`: True where a new position sees a slot, or sees nothing; None: all before."""
        if self.nowhere is not None:
            return self.visible | self.nowhere
        return None if self.at is None else self.distance <= 0

    @cached_property
    def visible(self) -> Tensor:
        """True where a new position sees a slot, `(new, window)`, or `(rows, 1, new, window)` where some are empty."""
        before = self.distance <= 0
        return before if self.real is None else self.real[:, None, None, :] & before
