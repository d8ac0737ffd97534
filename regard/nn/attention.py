"""Attention: weights, contexts, many heads, and `capture`, which shows the weights. The only room with fused kernels.

`α = softmax(e)`, `c_i = Σ_j α_ij v_j`. Weights lie in [0, 1] and sum to 1; padding gets exactly 0; a query that may
attend nowhere gets a context of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.scores import Score
from regard.ragged import Ragged


@dataclass
class Trace:
    """What was attended to while `capture` was on, by the name of the module that attended and the row of the batch."""

    names: dict[nn.Module, str]
    found: dict[str, dict[int, list[Tensor]]] = field(default_factory=dict)

    def record(self, module: nn.Module, weights: Callable[[], Tensor], rows: Sequence[int] | None = None) -> None:
        """Keep `weights()`, `(rows, heads, target, source)`; what comes later for a row is further along its target."""
        if module not in self.names:
            return
        with torch.no_grad():
            kept = weights().detach().float().cpu()
        by_row = self.found.setdefault(self.names[module], {})
        for row, matrix in zip(range(len(kept)) if rows is None else rows, kept, strict=True):
            by_row.setdefault(row, []).append(matrix)

    def weights(self, name: str, row: int) -> Tensor:
        """What one row of the batch attended to in one module, `(heads, target, source)`, padding included."""
        return torch.cat(self.found[name][row], dim=1)


_trace: ContextVar[Trace | None] = ContextVar("trace", default=None)


@contextmanager
def capture(model: nn.Module) -> Iterator[Trace]:
    """Inside this, every attention in `model` also leaves its weights in the trace; outputs do not change."""
    trace = Trace(names={module: name for name, module in model.named_modules()})
    token = _trace.set(trace)
    try:
        yield trace
    finally:
        _trace.reset(token)


def attention_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """`softmax(scores)` over the last axis where `mask` is True; 0 elsewhere, and 0 throughout where all is False."""
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)


class Attention(nn.Module):
    """Attention of a recurrent decoder over encoder states, with any score. Bahdanau et al. 2015, eq. 5 and 6."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def keys(self, states: Tensor) -> Tensor:
        """What the score needs of `(rows, source, d_model)`, once for a source."""
        return self.score.keys(states).unsqueeze(1)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        """Contexts `(rows, target, d_model)` for queries of that shape, from `(rows, source, d_model)` values.

        `rows` says which rows of the batch these are, for `capture`.
        """
        scores = self.score(queries.unsqueeze(1), keys)  # (rows, 1, target, source)
        weights = attention_weights(scores, mask[:, None, None, :])
        if (trace := _trace.get()) is not None:
            trace.record(self, lambda: weights, rows.tolist())
        return (weights @ values.unsqueeze(1)).squeeze(1)


class MultiHeadAttention(nn.Module):
    """Vaswani et al. 2017, 3.2.2: `concat(softmax(Q_h K_hᵀ / √d_head) V_h) W_O` over heads `h`."""

    def __init__(self, d_model: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Ragged, memory: Ragged) -> Ragged:
        """Every position of `x` attends to its row of `memory` (to itself and before, if causal)."""
        q, k, v = self._split(self.query(x.values)), *self.keys_values(memory.values)  # (total, heads, d_head)
        if (trace := _trace.get()) is not None:
            trace.record(self, lambda: self._weights(x.like(q), memory.like(k)))
        context = attend(x.like(q), memory.like(k), memory.like(v), causal=self.causal)
        return x.like(self.output(context.values.flatten(1)))

    def keys_values(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of packed or padded memory, `(…, heads, d_head)`."""
        return self._split(self.key(values)), self._split(self.value(values))

    def step(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """`(groups, queries, d_model)` attends to `(groups, heads, source, d_head)`; all of it where mask is None."""
        q = self._split(self.query(x)).transpose(1, 2)  # (groups, heads, queries, d_head)
        allowed = None if mask is None else mask[:, None, None, :]
        context = F.scaled_dot_product_attention(q, keys, values, attn_mask=allowed)
        return self.output(context.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))

    def _weights(self, q: Ragged, k: Ragged) -> Tensor:
        query, key = q.padded().transpose(1, 2), k.padded().transpose(1, 2)  # (rows, heads, length, d_head)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        mask = k.mask[:, None, None, :] & q.mask[:, None, :, None]
        if self.causal:
            mask = mask & torch.ones(scores.shape[-2:], dtype=torch.bool, device=mask.device).tril()
        return attention_weights(scores, mask)


def attend(q: Ragged, k: Ragged, v: Ragged, *, causal: bool = False) -> Ragged:
    """`softmax(q kᵀ / √d_head) v` within each row; `(total, heads, d_head)` in and out.

    In half precision on a GPU the variable-length flash kernel reads the packed form as it is. Elsewhere the rows are
    padded with zeros, so a row that may attend nowhere attends to one zero and yields zeros.
    """
    if q.values.is_cuda and q.values.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        window = (-1, 0) if causal else (-1, -1)
        packed = varlen_attn(
            q.values, k.values, v.values, q.offsets, k.offsets, max(q.longest, 1), max(k.longest, 1), window_size=window
        )
        assert isinstance(packed, Tensor)
        return q.like(packed)
    # On a CPU the half-precision kernel's backward pass takes four times as long as that in full precision.
    kind = q.values.dtype if q.values.is_cuda else torch.promote_types(q.values.dtype, torch.float32)
    query, key, value = (x.like(x.values.to(kind)).padded().transpose(1, 2) for x in (q, k, v))  # (rows, heads, …)
    if causal:  # padding stands after every real position, so the causal rule hides it
        padded = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    else:
        padded = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed(k))
    return q.unpadded(padded.transpose(1, 2).to(q.values.dtype))


def allowed(k: Ragged) -> Tensor:
    """`(rows, 1, 1, source)`, True where a key is; an empty row keeps its first slot, where the value is zero."""
    mask = k.mask.clone()
    mask[:, 0] = True
    return mask[:, None, None, :]
