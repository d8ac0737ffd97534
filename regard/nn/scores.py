"""The attention scores `e_ij = score(s_i, h_j)`: how well a decoder state and an encoder state fit.

A score has two parts, so that what depends on the source alone is computed once and not at every step:
`keys = score.keys(states)`, then `score(queries, keys)`. Both take and give a heads axis.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from regard import registry
from regard.nn.deferred import deferred_apply, deferred_linear
from regard.registry import register


class AttentionScore(nn.Module, ABC):
    """`(batch, heads, target, d_model)` and `(batch, heads, source, …)` to `(batch, heads, target, source)`."""

    family = registry.SCORES
    looks_back = False  # whether it is also given the weights of the step before: `score(queries, keys, past)`

    def __init__(self, d_model: int) -> None:
        super().__init__()

    def keys(self, states: Tensor) -> Tensor:
        """What the score needs of the encoder states `h`, computed once."""
        return states

    @abstractmethod
    def forward(self, queries: Tensor, keys: Tensor, past: Tensor | None = None) -> Tensor:
        """How well each query fits each key; `past` `(batch, heads, target, source)` is given where it is asked for."""


class Multiplied(AttentionScore):
    """A score that is the product of a key and something made of the query."""

    def query(self, queries: Tensor) -> Tensor:
        """What is multiplied by the keys."""
        return queries

    def forward(self, queries: Tensor, keys: Tensor, past: Tensor | None = None) -> Tensor:
        return deferred_linear(self.query(queries), keys)  # (batch, heads, target, source)


class Dot(Multiplied):
    """Luong et al. 2015: `e = hᵀ s`."""


class Bilinear(Multiplied):
    """Luong et al. 2015, "general": `e = hᵀ W s`."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.weight = nn.Linear(d_model, d_model, bias=False)

    def keys(self, states: Tensor) -> Tensor:
        return self.weight(states)  # h W


class Additive(AttentionScore):
    """Bahdanau et al. 2015: `e = vᵀ tanh(W [h; s])`, with `W [h; s] = W_h h + W_s s`."""

    deep = False

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.from_state = nn.Linear(d_model, d_model)
        self.from_query = nn.Linear(d_model, d_model, bias=False)
        if self.deep:
            self.hidden = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, 1, bias=False)

    def keys(self, states: Tensor) -> Tensor:
        return self.from_state(states)

    def pairs(self, queries: Tensor, keys: Tensor) -> Tensor:
        """`W [h; s]` of each query with each key, `(batch, heads, target, source, d_model)`."""
        return deferred_apply(self.from_query, queries).unsqueeze(-2) + keys.unsqueeze(-3)

    def forward(self, queries: Tensor, keys: Tensor, past: Tensor | None = None) -> Tensor:
        pairs = self.pairs(queries, keys)
        pairs = self.hidden(torch.relu(pairs)) if self.deep else pairs
        return self.v(torch.tanh(pairs)).squeeze(-1)  # (batch, heads, target, source)


class Perceptron(Additive):
    """A multi-layer perceptron on the pair: `e = vᵀ tanh(W₂ relu(W₁ [h; s] + b₁) + b₂)`."""

    deep = True


class Location(Additive):
    """Chorowski et al. 2015, eq. 8 and 9: `e = vᵀ tanh(W s + V h_j + U f_j + b)`, with `f = F * α` a convolution over
    the weights of the step before, so that attention can tell how far it has come."""

    looks_back = True

    def __init__(self, d_model: int, filters: int = 10, width: int = 101) -> None:
        super().__init__(d_model)
        self.filters = nn.Conv1d(1, filters, width, padding=width // 2, bias=False)
        self.from_location = nn.Linear(filters, d_model, bias=False)

    def forward(self, queries: Tensor, keys: Tensor, past: Tensor | None = None) -> Tensor:
        pairs = self.pairs(queries, keys)
        pairs = pairs if past is None else pairs + self.located(past)
        return self.v(torch.tanh(pairs)).squeeze(-1)

    def located(self, past: Tensor) -> Tensor:
        """`U f_j`: what the weights of the step before add."""
        found = self.filters(past.flatten(0, 2).unsqueeze(1).to(self.filters.weight.dtype))  # (…, filters, source)
        return self.from_location(found.mT).unflatten(0, past.shape[:3])  # (batch, heads, target, source, d_model)


class ScaledDot(Multiplied):
    """Vaswani et al. 2017: `e = (W h)ᵀ (U s) / √d`."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.from_state = nn.Linear(d_model, d_model, bias=False)
        self.from_query = nn.Linear(d_model, d_model, bias=False)

    def keys(self, states: Tensor) -> Tensor:
        return self.from_state(states)

    def query(self, queries: Tensor) -> Tensor:
        return deferred_apply(self.from_query, queries) / math.sqrt(queries.shape[-1])


SCORES: dict[str, type[AttentionScore]] = {
    "dot": Dot, "bilinear": Bilinear, "additive": Additive, "mlp": Perceptron, "scaled_dot": ScaledDot,
    "location": Location,
}  # fmt: skip
for _kind, _score in SCORES.items():
    register(_kind, _score)
