"""The Transformer's blocks: attention and feed-forward, each with its norm and residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from regard.nn.attention import MultiHeadAttention
from regard.nn.positions import Relative
from regard.ragged import Ragged

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class KeysValues(NamedTuple):
    """Keys and values to attend to, each `(rows or sources, heads, length, d_head)`."""

    keys: Tensor
    values: Tensor


def make_norm(kind: str, d_model: int) -> nn.Module:
    """`layer` (Ba et al. 2016), or `rms` (Zhang and Sennrich 2019, eq. 4), which neither centres nor shifts."""
    return nn.RMSNorm(d_model, eps=1e-5) if kind == "rms" else nn.LayerNorm(d_model)


class FeedForward(nn.Module):
    """Vaswani et al. 2017, 3.3: `W₂ f(W₁ x + b₁) + b₂` at each position alone.

    Gated (Shazeer 2020, eq. 6): `W₂ (f(W₁ x) ⊙ V x)`, without biases as published.
    """

    def __init__(self, d_model: int, d_ff: int, activation: str, dropout: float, *, gated: bool = False) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(d_model, d_ff, bias=not gated), nn.Linear(d_ff, d_model, bias=not gated)
        self.gate = nn.Linear(d_model, d_ff, bias=False) if gated else None
        self.activation, self.dropout = ACTIVATIONS[activation](), nn.Dropout(dropout)
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.inner(x))
        return self.outer(self.dropout(inner if self.gate is None else inner * self.gate(x)))


class Residual(nn.Module):
    """Post-norm as published: `norm(x + f(x))`; pre-norm (Xiong et al. 2020): `x + f(norm(x))`."""

    def __init__(self, d_model: int, norm: str, dropout: float, *, normalize: str = "layer") -> None:
        super().__init__()
        self.pre, self.norm, self.dropout = norm == "pre", make_norm(normalize, d_model), nn.Dropout(dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.dropout(f(self.norm(x)))
        return self.norm(x + self.dropout(f(x)))


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(
        self, d_model: int, heads: int, d_ff: int, *, norm: str, activation: str, dropout: float,
        normalize: str = "layer", gated: bool = False, relative: Relative | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads, relative=relative)
        self.feed_forward = FeedForward(d_model, d_ff, activation, dropout, gated=gated)
        self.around_attention = Residual(d_model, norm, dropout, normalize=normalize)
        self.around_feed_forward = Residual(d_model, norm, dropout, normalize=normalize)

    def forward(self, x: Ragged) -> Ragged:
        def attend(values: Tensor) -> Tensor:
            return self.self_attention(x.like(values), x.like(values)).values

        return x.like(self.around_feed_forward(self.around_attention(x.values, attend), self.feed_forward))


class DecoderBlock(nn.Module):
    """Causal self-attention, attention over the encoder's states, then feed-forward.

    Without `cross` there is no encoder to attend to: the block of a decoder alone (Radford et al. 2018).
    """

    def __init__(
        self, d_model: int, heads: int, d_ff: int, *, norm: str, activation: str, dropout: float,
        normalize: str = "layer", gated: bool = False, relative: Relative | None = None, cross: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.cross = cross
        self.self_attention = MultiHeadAttention(d_model, heads, causal=True, relative=relative)
        if cross:
            self.cross_attention = MultiHeadAttention(d_model, heads)
        self.feed_forward = FeedForward(d_model, d_ff, activation, dropout, gated=gated)
        self.around_self = Residual(d_model, norm, dropout, normalize=normalize)
        if cross:
            self.around_cross = Residual(d_model, norm, dropout, normalize=normalize)
        self.around_feed_forward = Residual(d_model, norm, dropout, normalize=normalize)

    def forward(self, x: Ragged, memory: Ragged | None) -> Ragged:
        def look_back(values: Tensor) -> Tensor:
            return self.self_attention(x.like(values), x.like(values)).values

        def look_across(values: Tensor) -> Tensor:
            return self.cross_attention(x.like(values), memory).values

        values = self.around_self(x.values, look_back)
        if self.cross:
            values = self.around_cross(values, look_across)
        return x.like(self.around_feed_forward(values, self.feed_forward))

    def start(self, rows: int) -> KeysValues:
        """A past of no positions."""
        weight, heads = self.self_attention.key.weight, self.self_attention.heads
        nothing = weight.new_zeros(rows, heads, 0, len(weight) // heads)
        return KeysValues(nothing, nothing)

    def step(
        self, x: Tensor, past: KeysValues, source: KeysValues | None, mask: Tensor | None, *, real: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """One position a row, `(rows, d_model)`, with what is kept of the positions before; adds itself to it.

        `real` `(rows, length + 1)` is True where a slot of the target so far, this one included, is no padding. Rows of
        one source stand together, so they are so many queries to the same keys.
        """

        def look_across(x: Tensor) -> Tensor:
            assert source is not None, "this block attends to a source"
            assert mask is not None, "this block attends to a source"
            return self.cross_attention.step(x.unflatten(0, (len(mask), -1)), *source, mask).flatten(0, 1)

        values, past = self._look_back(x.unsqueeze(1), past, real)
        x = values.squeeze(1)
        if self.cross:
            x = self.around_cross(x, look_across)
        return self.around_feed_forward(x, self.feed_forward), past

    def extend(self, x: Tensor, past: KeysValues, mask: Tensor | None = None) -> tuple[Tensor, KeysValues]:
        """Several positions a row, `(rows, new, d_model)`, after those of the past, in a block without `cross`.

        `mask` `(rows, length + new)` is True where a slot is no padding.
        """
        assert not self.cross, "a block that attends to a source goes on a step at a time"
        x, past = self._look_back(x, past, mask)
        return self.around_feed_forward(x, self.feed_forward), past

    def _look_back(self, x: Tensor, past: KeysValues, real: Tensor | None) -> tuple[Tensor, KeysValues]:
        def extend(x: Tensor) -> Tensor:
            nonlocal past
            x, *after = self.self_attention.extend(x, *past, real)
            past = KeysValues(*after)
            return x

        return self.around_self(x, extend), past
