"""The Transformer's blocks: attention and feed-forward, each with its norm and residual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.attention import MultiHeadAttention
from regard.nn.dropout import Dropout
from regard.nn.fused import add_and_norm, add_dropout, add_norm, linear_activate_dropout, norm
from regard.nn.kernels import Spans
from regard.nn.linear import linear_relu
from regard.nn.positions import Relative
from regard.nn.rows import Grouping
from regard.nn.slots import Slots
from regard.ragged import Ragged

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "gelu": nn.GELU, "gelu_tanh": partial(nn.GELU, approximate="tanh"), "silu": nn.SiLU,
}  # fmt: skip


def make_norm(kind: str, d_model: int, epsilon: float = 1e-5) -> nn.LayerNorm | nn.RMSNorm:
    """`layer` (Ba et al. 2016), or `rms` (Zhang and Sennrich 2019, eq. 4), which neither centres nor shifts."""
    return nn.RMSNorm(d_model, eps=epsilon) if kind == "rms" else nn.LayerNorm(d_model, eps=epsilon)


class FeedForward(nn.Module):
    """Vaswani et al. 2017, 3.3: `W₂ f(W₁ x + b₁) + b₂` at each position alone.

    Gated (Shazeer 2020, eq. 6): `W₂ (f(W₁ x) ⊙ V x)`, without biases as published.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: str, dropout: float, *, gated: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        bias = bias and not gated
        self.inner, self.outer = nn.Linear(d_model, d_ff, bias=bias), nn.Linear(d_ff, d_model, bias=bias)
        self.gate = nn.Linear(d_model, d_ff, bias=False) if gated else None
        self.activation, self.dropout = ACTIVATIONS[activation](), Dropout(dropout)
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            return self.outer(self.dropout(self.activation(self.inner(x)) * self.gate(x)))
        if isinstance(self.activation, nn.ReLU) and not self.training:
            return self.outer(linear_relu(self.inner, x))
        return self.outer(linear_activate_dropout(self.inner, x, self.activation, self.dropout))


class Residual(nn.Module):
    """Post-norm as published: `norm(x + f(x))`; pre-norm (Xiong et al. 2020): `x + f(norm(x))`."""

    def __init__(
        self, d_model: int, norm: str, dropout: float, *, normalize: str = "layer", epsilon: float = 1e-5
    ) -> None:
        super().__init__()
        self.pre, self.norm, self.dropout = norm == "pre", make_norm(normalize, d_model, epsilon), Dropout(dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return add_dropout(x, f(norm(x, self.norm)), self.dropout)
        return add_norm(x, f(x), self.norm, self.dropout)


Sublayer = tuple[Residual, Callable[[Tensor], Tensor]]


def sublayers(x: Tensor, pending: Tensor | None, *each: Sublayer) -> tuple[Tensor, Tensor | None]:
    """One after the other, each inside its residual. With pre-norm the sum after one and the norm before the next are
    one operator, in the next block too: so what the last sublayer adds is left to be added, and `pending` is what the
    block before has left. All residuals of a stack have one dropout."""
    if not each[0][0].pre:
        for around, f in each:
            x = around(x, f)
        return x, None
    for around, f in each:
        if pending is None:
            normed = norm(x, around.norm)
        else:
            x, normed = add_and_norm(x, pending, around.norm, around.dropout)
        pending = f(normed)
    return x, pending


class StochasticDepth(nn.Module):
    """Huang et al. 2016: while training, the sublayers of block `l` of `L` are each left out of a sequence with
    probability `p l / L` (their eq. 4 for `p = 1 - p_L`). What stays is divided by the probability that it stays, so
    that nothing changes in use (eq. 5)."""

    def __init__(self, p: float, layers: int, sublayers: int) -> None:
        super().__init__()
        self.p, self.layers, self.sublayers = p, layers, sublayers

    def forward(self, x: Ragged) -> Sequence[Tensor | None]:
        """For each block `(sublayers, total, 1)`, what each position's sublayers are multiplied by; None: by 1."""
        if not self.training or self.p == 0.0:
            return [None] * self.layers
        rate = torch.arange(1, self.layers + 1, device=x.values.device)[:, None] * (self.p / self.layers)
        drawn = torch.rand(x.rows, self.layers, self.sublayers, device=x.values.device)
        factors = (drawn >= rate) / (1.0 - rate)  # (rows, layers, sublayers)
        return x.spread(factors).permute(1, 2, 0).unsqueeze(-1).unbind()


def thinned(f: Callable[[Tensor], Tensor], kept: Tensor | None, number: int) -> Callable[[Tensor], Tensor]:
    """Sublayer `number` of a block, under what `StochasticDepth` gave for that."""
    if kept is None:
        return f
    factor = kept[number]  # (total, 1), in float32

    def thin(x: Tensor) -> Tensor:
        y = f(x)
        return (y * factor).to(y.dtype)

    return thin


class Block(nn.Module):
    """A block of a stack, which subclasses define in `run`; it can be compiled, for training alone."""

    run: Callable[..., Any]
    sublayers = 0  # how many stochastic depth can leave out
    compiled: Callable[..., Any] | None = None

    def compile_for_training(self) -> None:
        """Compile `run`; blocks of a stack share what is compiled. With pre-norm the first, to which nothing is left to
        add, is compiled by itself."""
        self.compiled = torch.compile(self.run)

    def forward(self, *given: Any) -> Any:
        return self.run(*given) if self.compiled is None or not self.training else self.compiled(*given)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has; what was compiled is bound to this block."""
        return {name: value for name, value in super().__getstate__().items() if name != "compiled"}


class EncoderBlock(Block):
    """Self-attention, then feed-forward."""

    sublayers = 2

    def __init__(
        self, d_model: int, heads: int, d_ff: int, *, norm: str, activation: str, dropout: float,
        normalize: str = "layer", gated: bool = False, relative: Relative | None = None, epsilon: float = 1e-5,
        d_head: int | None = None, bias: bool = True, scaled: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attention = MultiHeadAttention(
            d_model, heads, relative=relative, d_head=d_head, bias=bias, scaled=scaled
        )
        self.feed_forward = FeedForward(d_model, d_ff, activation, dropout, gated=gated, bias=bias)
        self.around_attention = Residual(d_model, norm, dropout, normalize=normalize, epsilon=epsilon)
        self.around_feed_forward = Residual(d_model, norm, dropout, normalize=normalize, epsilon=epsilon)

    def run(
        self, x: Ragged, pending: Tensor | None, kept: Tensor | None, seen: Spans | None = None
    ) -> tuple[Ragged, Tensor | None]:
        """`pending`, here and in what is returned, is yet to be added (`sublayers`); `kept` is of `StochasticDepth`,
        `seen` what `self_attention.spans` gave for the rows."""

        def attend(y: Tensor) -> Tensor:
            return self.self_attention(x.like(y), seen=seen).values

        within = (
            (self.around_attention, thinned(attend, kept, 0)),
            (self.around_feed_forward, thinned(self.feed_forward, kept, 1)),
        )
        values, pending = sublayers(x.values, pending, *within)
        return x.like(values), pending


class DecoderBlock(Block):
    """Causal self-attention, attention over the encoder's states, then feed-forward.

    Without `cross` there is no encoder to attend to: the block of a decoder alone (Radford et al. 2018).
    """

    def __init__(
        self, d_model: int, heads: int, d_ff: int, *, norm: str, activation: str, dropout: float,
        normalize: str = "layer", gated: bool = False, relative: Relative | None = None, cross: bool = True,
        epsilon: float = 1e-5, d_head: int | None = None, bias: bool = True, scaled: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.cross, self.sublayers = cross, 2 + cross
        self.self_attention = MultiHeadAttention(
            d_model, heads, causal=True, relative=relative, d_head=d_head, bias=bias, scaled=scaled
        )
        if cross:
            self.cross_attention = MultiHeadAttention(d_model, heads, d_head=d_head, bias=bias, scaled=scaled)
        self.feed_forward = FeedForward(d_model, d_ff, activation, dropout, gated=gated, bias=bias)
        self.around_self = Residual(d_model, norm, dropout, normalize=normalize, epsilon=epsilon)
        if cross:
            self.around_cross = Residual(d_model, norm, dropout, normalize=normalize, epsilon=epsilon)
        self.around_feed_forward = Residual(d_model, norm, dropout, normalize=normalize, epsilon=epsilon)

    def run(
        self, x: Ragged, pending: Tensor | None, kept: Tensor | None, memory: Ragged | None,
        seen: Spans | None = None, across: Spans | None = None,
    ) -> tuple[Ragged, Tensor | None]:  # fmt: skip
        """`pending`, here and in what is returned, is yet to be added (`sublayers`); `kept` is of `StochasticDepth`,
        `seen` and `across` what `spans` of both attentions gave, for the target and for target and source."""

        def attend(y: Tensor) -> Tensor:
            return self.self_attention(x.like(y), seen=seen).values

        def attend_source(y: Tensor) -> Tensor:
            return self.cross_attention(x.like(y), memory, across).values

        within: list[Sublayer] = [(self.around_self, thinned(attend, kept, 0))]
        if self.cross:
            within.append((self.around_cross, thinned(attend_source, kept, 1)))
        within.append((self.around_feed_forward, thinned(self.feed_forward, kept, len(within))))
        values, pending = sublayers(x.values, pending, *within)
        return x.like(values), pending

    def step(
        self, x: Tensor, cache: Tensor, slots: Slots, source: Tensor | None, mask: Tensor | None,
        grouping: Grouping | None = None,
    ) -> Tensor:  # fmt: skip
        """New positions of each row, `(rows, new, d_model)`, whose keys and values are added to the cache. `source`
        holds those of the source, `(sources, source, 2, heads, d_head)`; rows of one source stand together, as many for
        each, unless a `grouping` says otherwise."""

        def attend_source(x: Tensor) -> Tensor:
            assert source is not None, "this block attends to a source"
            assert mask is not None, "this block attends to a source"
            if grouping is not None:
                return self.cross_attention.cached_cross_attention(x, source, mask, slots, grouping)
            queries = x.unflatten(0, (mask.shape[0], -1)).flatten(1, 2)  # (sources, rows of one, d_model)
            return self.cross_attention.cached_cross_attention(queries, source, mask, slots).view_as(x)

        x = self.around_self(x, lambda x: self.self_attention.cached_self_attention(x, cache, slots))
        if self.cross:
            x = self.around_cross(x, attend_source)
        return self.around_feed_forward(x, self.feed_forward)


def run_blocks(
    blocks: Sequence[EncoderBlock | DecoderBlock], x: Ragged, *given: Any, final: nn.Module | None = None,
    depth: StochasticDepth | None = None,
) -> Ragged:  # fmt: skip
    """A stack of blocks, one after the other, then the `final` norm, if there is one; `given` is what each block takes
    besides. With stochastic `depth` some of their sublayers are left out in training."""
    pending = None
    for block, kept in zip(blocks, [None] * len(blocks) if depth is None else depth(x), strict=True):
        x, pending = block(x, pending, kept, *given)
    if pending is None:
        return x if final is None else x.like(final(x.values))
    dropout = blocks[-1].around_feed_forward.dropout
    if isinstance(final, nn.LayerNorm | nn.RMSNorm):  # and the last sum as one operator
        return x.like(add_norm(x.values, pending, final, dropout))
    values = add_dropout(x.values, pending, dropout)
    return x.like(values if final is None else final(values))
