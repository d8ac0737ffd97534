"""Several sequences a row, of different kinds: what models of several sources read where others read a `Ragged`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Bundle:
    """Row `i` of each of the parts belongs to source `i`."""

    parts: tuple[Ragged, ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def longest(self) -> int:
        return max(part.longest for part in self.parts)

    @property
    def lengths(self) -> Tensor:
        """How many elements each row has in all, `(rows,)`."""
        return torch.stack([part.lengths for part in self.parts]).sum(0)

    @property
    def stacked(self) -> Ragged:
        """The rows of all parts as one: those of the first, then those of the second, and so on."""
        values, offsets = self.parts[0].values, self.parts[0].offsets
        for part in self.parts[1:]:
            offsets = torch.cat((offsets, part.offsets[1:] + values.shape[0]))
            values = torch.cat((values, part.values))
        return Ragged(values, offsets, self.longest)

    def select(self, rows: Tensor) -> Bundle:
        return Bundle(tuple(part.select(rows) for part in self.parts))

    def twice(self) -> Bundle:
        return Bundle(tuple(part.twice() for part in self.parts))

    def pinned(self) -> Bundle:
        return Bundle(tuple(part.pinned() for part in self.parts))

    def to(self, device: torch.device | str | None, non_blocking: bool = False) -> Bundle:
        return Bundle(tuple(part.to(device, non_blocking) for part in self.parts))


Source = Any  # what a model reads: a `Ragged` or, of several sources, a `Bundle`


def parts_of(source: Source) -> tuple[Ragged, ...]:
    """Of several sources each, of one itself."""
    return source.parts if isinstance(source, Bundle) else (source,)
