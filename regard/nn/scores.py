"""The attention scores `e_ij = score(s_i, h_j)`: how well a decoder state and an encoder state fit.

A score has two parts, so that what depends on the source alone is computed once and not at every step:
`keys = score.keys(states)`, then `score(queries, keys)`. Both take and give a heads axis.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

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

    def parts(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """What of `W [h; s]` is the query's, `(batch, heads, target, 1, d_model)`, and what is the key's, `(batch,
        heads, 1, source, d_model)`."""
        return deferred_apply(self.from_query, queries).unsqueeze(-2), keys.unsqueeze(-3)

    def forward(self, queries: Tensor, keys: Tensor, past: Tensor | None = None) -> Tensor:
        query, key = self.parts(queries, keys)
        if self.deep:
            return self.v(torch.tanh(self.hidden(torch.relu(query + key)))).squeeze(-1)
        return tanh_score(query, key, self.v)  # (batch, heads, target, source)


def tanh_score(query: Tensor, key: Tensor, v: nn.Module) -> Tensor:
    """`vᵀ tanh(query + key)` over the last axis, of tensors that spread to one shape."""
    weight = v.weight.squeeze(0) if type(v) is nn.Linear and key.device.type == "cpu" else None
    if weight is None or not query.dtype == key.dtype == weight.dtype in (torch.float32, torch.float64):
        found: Tensor = v(torch.tanh(query + key)).squeeze(-1)
        return found
    if not torch.is_grad_enabled():
        return _sigma(query, key) @ (2.0 * weight) - weight.sum()
    return _TanhScore.apply(query, key, weight)


def _sigma(query: Tensor, key: Tensor) -> Tensor:
    """`σ(2 (query + key))`, `(…, target, source, d_model)`."""
    return torch.add(2.0 * query, key, alpha=2.0).sigmoid_()


class _TanhScore(torch.autograd.Function):
    """As `tanh x = 2 σ(2x) - 1`: a CPU takes a quarter of the time for σ, which is nearly all of such a score. One
    tensor of the pairs is held for the backward pass, and none is made but in place."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, v: Tensor) -> Tensor:
        sigma = _sigma(query, key)
        ctx.save_for_backward(sigma, v)
        ctx.shapes = query.shape, key.shape
        return sigma @ (2.0 * v) - v.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sigma, v = ctx.saved_tensors
        dv = 2.0 * (gradient.unsqueeze(-2) @ sigma).flatten(0, -2).sum(0) - gradient.sum()
        dx = torch.addcmul(sigma, sigma, sigma, value=-1.0)  # σ' = σ - σ²
        dx.mul_(gradient.unsqueeze(-1)).mul_(4.0 * v)
        return dx.sum_to_size(ctx.shapes[0]), dx.sum_to_size(ctx.shapes[1]), dv


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
        query, key = self.parts(queries, keys)
        return tanh_score(query if past is None else query + self.located(past), key, self.v)

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
