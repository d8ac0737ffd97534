"""How much of the source a recurrent decoder has looked at when it has written all, for a loss of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard.nn.attention import Attention
from regard.ragged import Ragged


@dataclass
class Looked:
    """The weights `α` of soft attention inside `looking`, with their gradient, as means over heads: of each call its
    rows, weights `(rows, steps, source)`, and which places there are, `(rows, source)`."""

    found: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def penalty(self, like: Ragged) -> Tensor:
        """Xu et al. 2015, eq. 14, without its weight: `Σ_i (1 - Σ_t α_ti)²` over places `i` and steps `t` of each
        target (`like`), summed over the batch."""
        rows, weights, mask = self.found[0]  # at the first step every row is still there
        coverage = weights.new_zeros(
            len(like), weights.shape[-1], dtype=torch.promote_types(weights.dtype, torch.float32)
        )
        there = torch.zeros_like(coverage).index_copy(0, rows, mask.to(coverage.dtype))
        step = 0
        for rows, weights, _ in self.found:
            real = like.mask[rows, step : step + weights.shape[1]]
            coverage = coverage.index_add(0, rows, (weights * real.unsqueeze(-1)).sum(1, dtype=coverage.dtype))
            step += weights.shape[1]
        return (there * (1.0 - coverage)).square().sum()


@contextmanager
def looking(model: nn.Module) -> Iterator[Looked]:
    """Inside this, attention of recurrent decoders leaves the weights that it uses; loops are then not recorded."""
    made = Looked()
    soft = [module for module in model.modules() if isinstance(module, Attention)]
    for module in soft:
        module.looked = made.found
    try:
        yield made
    finally:
        for module in soft:
            module.looked = None
