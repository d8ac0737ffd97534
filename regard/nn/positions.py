"""Positional encodings: how a model without recurrence knows the order."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.errors import DataError


class Sinusoidal(nn.Module):
    """Vaswani et al. 2017, 3.5: `P_{t,2i} = sin(t / 10000^{2i/d})`, `P_{t,2i+1} = cos(t / 10000^{2i/d})`.

    A shift is linear, `P_{t+τ} = M_τ P_t` with `M_τ` a rotation in each pair of dimensions. There is no last position.
    """

    frequencies: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        self.register_buffer("frequencies", torch.exp(-math.log(10000.0) * exponent).float(), persistent=False)

    def forward(self, position: Tensor) -> Tensor:
        """`(…,)` whole numbers to `(…, d_model)`."""
        angle = position.unsqueeze(-1) * self.frequencies
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


class Learned(nn.Module):
    """Gehring et al. 2017: one free vector a position, up to a longest."""

    def __init__(self, d_model: int, longest: int) -> None:
        super().__init__()
        self.table = nn.Embedding(longest, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)

    def forward(self, position: Tensor) -> Tensor:
        if position.numel() and int(position.max()) >= self.table.num_embeddings:
            raise DataError(
                f"a sequence of {int(position.max()) + 1} tokens is longer than the {self.table.num_embeddings} "
                "learned positions; shorten it, or train with positions: sinusoidal or a larger data.max_length"
            )
        return self.table(position)
