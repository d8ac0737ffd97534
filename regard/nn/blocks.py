"""The Transformer's blocks: attention and feed-forward, each with its norm and residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.nn.attention import MultiHeadAttention
from regard.ragged import Ragged

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}


class KeysValues(NamedTuple):
    """Keys and values to attend to, each `(rows or sources, heads, length, d_head)`."""

    keys: Tensor
    values: Tensor


class FeedForward(nn.Module):
    """Vaswani et al. 2017, 3.3: `W₂ f(W₁ x + b₁) + b₂` at each position alone."""

    def __init__(self, d_model: int, d_ff: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.activation, self.dropout = ACTIVATIONS[activation](), nn.Dropout(dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.dropout(self.activation(self.inner(x))))


class Residual(nn.Module):
    """Post-norm as published: `norm(x + f(x))`; pre-norm (Xiong et al. 2020): `x + f(norm(x))`."""

    def __init__(self, d_model: int, norm: str, dropout: float) -> None:
        super().__init__()
        self.pre, self.norm, self.dropout = norm == "pre", nn.LayerNorm(d_model), nn.Dropout(dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.dropout(f(self.norm(x)))
        return self.norm(x + self.dropout(f(x)))


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, d_model: int, heads: int, d_ff: int, *, norm: str, activation: str, dropout: float) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads)
        self.feed_forward = FeedForward(d_model, d_ff, activation, dropout)
        self.around_attention = Residual(d_model, norm, dropout)
        self.around_feed_forward = Residual(d_model, norm, dropout)

    def forward(self, x: Ragged) -> Ragged:
        def attend(values: Tensor) -> Tensor:
            return self.self_attention(x.like(values), x.like(values)).values

        return x.like(self.around_feed_forward(self.around_attention(x.values, attend), self.feed_forward))


class DecoderBlock(nn.Module):
    """Causal self-attention, attention over the encoder's states, then feed-forward."""

    def __init__(self, d_model: int, heads: int, d_ff: int, *, norm: str, activation: str, dropout: float) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads, causal=True)
        self.cross_attention = MultiHeadAttention(d_model, heads)
        self.feed_forward = FeedForward(d_model, d_ff, activation, dropout)
        self.around_self = Residual(d_model, norm, dropout)
        self.around_cross = Residual(d_model, norm, dropout)
        self.around_feed_forward = Residual(d_model, norm, dropout)

    def forward(self, x: Ragged, memory: Ragged) -> Ragged:
        def look_back(values: Tensor) -> Tensor:
            return self.self_attention(x.like(values), x.like(values)).values

        def look_across(values: Tensor) -> Tensor:
            return self.cross_attention(x.like(values), memory).values

        values = self.around_cross(self.around_self(x.values, look_back), look_across)
        return x.like(self.around_feed_forward(values, self.feed_forward))

    def step(self, x: Tensor, past: KeysValues, source: KeysValues, mask: Tensor) -> tuple[Tensor, KeysValues]:
        """One position a row, `(rows, d_model)`, with what is kept of the positions before; adds itself to it.

        Rows of one source stand together, so they are so many queries to the same keys.
        """

        def look_back(x: Tensor) -> Tensor:
            nonlocal past
            new = self.self_attention.keys_values(x)  # each (rows, heads, d_head)
            past = KeysValues(*(torch.cat((old, now.unsqueeze(2)), dim=2) for old, now in zip(past, new, strict=True)))
            return self.self_attention.step(x.unsqueeze(1), *past).squeeze(1)

        def look_across(x: Tensor) -> Tensor:
            return self.cross_attention.step(x.unflatten(0, (len(mask), -1)), *source, mask).flatten(0, 1)

        x = self.around_cross(self.around_self(x, look_back), look_across)
        return self.around_feed_forward(x, self.feed_forward), past
