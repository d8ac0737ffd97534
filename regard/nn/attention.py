"""Attention: weights, contexts, many heads, and `capture`, which records the weights.

`α = softmax(e)`, `c_i = Σ_j α_ij v_j`. Weights lie in [0, 1] and sum to 1; padding gets exactly 0; a query that may
attend nowhere gets a context of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn import kernels
from regard.nn.deferred import deferred_apply, deferred_matmul, fused_step_attention, step_attention_fuses
from regard.nn.edits import Editable
from regard.nn.kernels import Spans, attend_spans
from regard.nn.linear import Linear
from regard.nn.positions import Relative, distances
from regard.nn.rows import Grouping
from regard.nn.scores import AttentionScore, Multiplied
from regard.nn.slots import Slots
from regard.ragged import Ragged


def takes_filled(model: nn.Module, device: torch.device) -> bool:
    """Whether a model reads batches that are filled up with values of no sequence (`Batch.filled`), on a device: if
    only attention relates positions to each other (`packed`), and all of it in Triton kernels."""
    return bool(getattr(model, "packed", False)) and all_kernels(model, device)


def all_kernels(model: nn.Module, device: torch.device) -> bool:
    """Whether all self- and cross-attention of Transformers in a model is in Triton kernels on a device."""
    dtype = next(model.parameters()).dtype
    layers = (module for module in model.modules() if isinstance(module, MultiHeadAttention))
    return all(layer.has_kernels(device, dtype) for layer in layers)


@dataclass
class Trace:
    """Weights recorded by `capture`, by the name of the module that attended and the row of the batch."""

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
def capture(model: Any, layers: Collection[str] | None = None) -> Iterator[Trace]:
    """Inside this, every attention in `model`, a network or what `regard.load` gives, also leaves its weights in the
    trace; or only those in `layers`. Outputs do not change."""
    network: nn.Module = model if isinstance(model, nn.Module) else model.model
    names = {x: name for name, x in network.named_modules() if isinstance(x, Attention | MultiHeadAttention | Aligner)}
    if unknown := set(layers or ()) - set(names.values()):
        raise ConfigError(f"no attention '{min(unknown)}' in this model; there are: {', '.join(names.values())}")
    trace = Trace({module: name for module, name in names.items() if layers is None or name in layers})
    token = _trace.set(trace)
    try:
        yield trace
    finally:
        _trace.reset(token)


def _tracing() -> Trace | None:
    return None if torch.compiler.is_compiling() else _trace.get()  # what is compiled is there to train, not to look at


class Aligner(nn.Module):
    """What relates the target to the source in another way, and is captured beside attention."""

    def record(self, weights: Callable[[], Tensor]) -> None:
        """Leave `weights()`, `(rows, heads, target, source)`, in the trace, if there is one."""
        if (trace := _tracing()) is not None:
            trace.record(self, weights)


def attention_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """`softmax(scores)` over the last axis where `mask` is True; 0 elsewhere, and 0 throughout where all is False."""
    hidden = ~mask
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)


class Attention(Editable):
    """Attention of a recurrent decoder over encoder states, with any score. Bahdanau et al. 2015, eq. 5 and 6.

    The states themselves are keys and values. With `heads`, projections of them are, as in Vaswani et al. 2017, 3.2.2:
    every head has the same score, of a query and a key of `d_model / heads`.
    """

    draws = False  # whether it leaves to chance where to look, while training
    looked: list[tuple[Tensor, Tensor, Tensor]] | None = None  # where to leave weights for a loss (`coverage.py`)

    def __init__(self, score: AttentionScore, heads: int | None = None, d_model: int | None = None) -> None:
        super().__init__()
        self.score, self.heads = score, heads
        if heads is not None:
            assert d_model is not None, "heads need a d_model to split"
            assert d_model % heads == 0, f"d_model ({d_model}) is not divisible by heads ({heads})"
            self.query, self.key, self.value = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
            for linear in (self.query, self.key, self.value):
                nn.init.xavier_uniform_(linear.weight)

    @property
    def head_count(self) -> int:
        return self.heads or 1

    def keys(self, states: Tensor) -> Tensor:
        """What the score needs of `(rows, source, d_model)`, once for a source: `(rows, heads, source, …)`."""
        return self.score.keys(self._split(states if self.heads is None else self.key(states)))

    def values(self, states: Tensor) -> Tensor:
        """What contexts are made of, `(rows, heads, source, d_head)`, once for a source."""
        return self._split(states if self.heads is None else self.value(states))

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rows: Tensor, past: Tensor | None = None,
        position: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Contexts `(rows, target, d_model)` for queries of that shape, which are these `rows` of the batch; and the
        weights, `(rows, heads, target, source)`, where the score wants them at the next step as `past`. Edits ask for
        the `position` of each query, `(rows, target)`."""
        queries = self._split(queries if self.heads is None else deferred_apply(self.query, queries))
        trace = _tracing()
        plain = not self.draws and trace is None and self.looked is None and self.edits is None
        if isinstance(self.score, Multiplied) and plain and step_attention_fuses(queries):
            return fused_step_attention(self.score.query(queries), keys, values, mask).transpose(1, 2).flatten(2), None
        # (rows, heads, target, source)
        scores = self.score(queries, keys) if past is None else self.score(queries, keys, past)
        weights = self.choose(attention_weights(scores, mask[:, None, None, :]), rows)
        if self.edits is not None:
            assert position is not None, "edits go by position"
            weights = self.edits(weights, mask[:, None, None, :], position)
        if trace is not None:
            trace.record(self, lambda: weights, rows.tolist())
        if self.looked is not None:
            self.looked.append((rows, weights.mean(1), mask))
        return deferred_matmul(weights, values).transpose(1, 2).flatten(2), weights

    def choose(self, weights: Tensor, rows: Tensor) -> Tensor:
        """The weights that are used; soft attention uses all of them."""
        return weights

    def _split(self, x: Tensor) -> Tensor:
        """`(rows, length, d_model)` to `(rows, heads, length, d_head)`."""
        return x.unflatten(-1, (self.heads or 1, -1)).transpose(1, 2)


class MultiHeadAttention(Editable):
    """Vaswani et al. 2017, 3.2.2: `concat(softmax(Q_h K_hᵀ / √d_head) V_h) W_O` over heads `h`.

    The matrices of queries, keys and values lie one above the other in one, so that self-attention multiplies once.
    `relative` is for self-attention, where query and key are counted on the same slots. Without `scaled` (T5, Raffel
    et al. 2020) queries are multiplied by the `√d_head` that all kernels divide by.
    """

    pads_uniform = False  # rows of one length go through `scaled_dot_product_attention`, though there are kernels

    def __init__(
        self, d_model: int, heads: int, *, causal: bool = False, relative: Relative | None = None,
        d_head: int | None = None, bias: bool = True, scaled: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.causal, self.d_head = heads, causal, d_head or d_model // heads
        self.width = heads * self.d_head  # of all heads; d_model, unless d_head says otherwise
        self.stretch = None if scaled else self.d_head**0.5
        self.inputs = Linear(d_model, 3 * self.width, bias, heights=[self.width] * 3)  # of queries, keys, values
        self.output = nn.Linear(self.width, d_model, bias=bias)
        self.relative = relative
        for weight in (*self.inputs.weight.data.chunk(3), self.output.weight):
            nn.init.xavier_uniform_(weight)
        if bias:
            for linear in (self.inputs, self.output):
                nn.init.zeros_(linear.bias)

    @property
    def head_count(self) -> int:
        return self.heads

    def forward(self, x: Ragged, memory: Ragged | None = None, seen: Spans | None = None) -> Ragged:
        """Every position of `x` attends to its row of `memory`, or of `x` (to itself and before, if causal). `seen` is
        what `spans` gave for these rows."""
        packed = self.project(x.values) if memory is None else self.queries(x.values).unsqueeze(1)
        source = None if memory is None else self.keys_values(memory.values)
        q, k, v = (*packed.unbind(1), *(() if source is None else source.unbind(1)))  # (total, heads, d_head)
        memory = x if memory is None else memory
        if self.relative is not None:
            q, k = self.relative.turn(q, k, x.position)
        if (trace := _tracing()) is not None:
            trace.record(self, lambda: self._weights(x.like(q), memory.like(k)))
        if self.edits is not None:
            weights = self._weights(x.like(q), memory.like(k))
            weighed = weigh(weights, memory.like(v).padded().transpose(1, 2), self.relative)
            return x.like(self.output(x.unpadded(weighed.transpose(1, 2)).values.flatten(1)))
        if seen is not None:
            packed = packed if self.relative is None else torch.stack((q, k, v), dim=1)
            return x.like(self.output(attend_spans(packed, source, *seen).flatten(1)))
        context = attend(x.like(q), memory.like(k), memory.like(v), causal=self.causal, relative=self.relative)
        return x.like(self.output(context.values.flatten(1)))

    def has_kernels(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether this layer is computed by Triton kernels, which read packed rows and caches as they lie; else by
        `scaled_dot_product_attention` on rows that are padded with zeros. This alone decides it."""
        fits = self.d_head <= kernels.WIDEST and not (self.relative is not None and self.relative.adds)
        return fits and self.edits is None and dtype in kernels.DTYPES and kernels.available(device)

    def spans(self, x: Ragged, memory: Ragged | None = None) -> Spans | None:
        """Who sees whom, as the packed kernel wants it; None where rows are padded. Layers of a stack can share it."""
        if not self.has_kernels(x.values.device, x.values.dtype) or (self.pads_uniform and x.uniform):
            return None
        return kernels.spans(x, x if memory is None else memory, self.causal)

    def project(self, x: Tensor) -> Tensor:
        """Queries, keys and values of the same positions, `(…, 3, heads, d_head)`."""
        three = self.inputs(x).unflatten(-1, (3, self.heads, -1))
        if self.stretch is None:
            return three
        return torch.cat((three[..., :1, :, :] * self.stretch, three[..., 1:, :, :]), dim=-3)

    def queries(self, x: Tensor) -> Tensor:
        """`(…, heads, d_head)`."""
        queries = self.inputs.part(x, 0, self.width).unflatten(-1, (self.heads, -1))
        return queries if self.stretch is None else queries * self.stretch

    def keys_values(self, memory: Tensor) -> Tensor:
        """Keys and values of packed or padded memory, `(…, 2, heads, d_head)`."""
        return self.inputs.part(memory, self.width, 3 * self.width).unflatten(-1, (2, self.heads, -1))

    def cached_cross_attention(
        self, x: Tensor, memory: Tensor, mask: Tensor, slots: Slots, grouping: Grouping | None = None
    ) -> Tensor:
        """`(groups, queries, d_model)` attends to keys and values `(groups, source, 2, heads, d_head)`, where `mask`
        `(groups, 1, 1, source)` is True; so do single queries `(rows, 1, d_model)` that are grouped in another way.
        Each query is one of the new positions of `slots`."""
        at = None
        if self.edits is not None:
            at = slots.held[:, slots.new].expand(x.shape[:2].numel() // len(slots.new), -1)
        if grouping is None:
            at = None if at is None else at.reshape(x.shape[:2])
            return self.output(self._cross_attention(self.queries(x), memory, mask, at))
        at = None if at is None else grouping.padded(at.squeeze(1))
        queries = grouping.padded(self.queries(x).squeeze(1))  # (groups, queries, heads, d_head)
        return self.output(grouping.unpadded(self._cross_attention(queries, memory, mask, at)).unsqueeze(1))

    def _cross_attention(self, queries: Tensor, memory: Tensor, mask: Tensor, at: Tensor | None) -> Tensor:
        """Contexts `(groups, queries, width)` of queries, whose positions `(groups, queries)` edits ask for."""
        alike = queries.dtype == memory.dtype and not queries.requires_grad
        if alike and self.has_kernels(queries.device, queries.dtype):
            from regard.nn import triton_decoding

            return triton_decoding.cached_cross_attention(queries, memory, mask).flatten(2)
        keys, values = (kind.transpose(1, 2) for kind in memory.unbind(2))  # (groups, heads, source, d_head)
        if self.edits is None:
            context = F.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, attn_mask=mask)
        else:
            assert at is not None, "edits go by position"
            weights = padded_weights(queries.transpose(1, 2), keys, mask, None)
            context = weigh(self.edits(weights, mask, at), values, None)
        return context.transpose(1, 2).flatten(2)

    def cached_self_attention(self, x: Tensor, cache: Tensor, slots: Slots) -> Tensor:
        """Causal attention of `(rows, new, d_model)` to itself and the positions before, of which `cache`
        `(rows, slots, 2, heads, d_head)` holds keys and values; those of the new positions are written into it."""
        assert self.causal, "only what looks back can go on from a past"
        q, k, v = (three := self.project(x)).unbind(-3)  # (rows, new, heads, d_head)
        if self.relative is not None:
            q, k = self.relative.turn(q, k, slots.new if slots.position is None else slots.position)
        if slots.at is not None and x.shape[1] == 1 and self.has_kernels(q.device, q.dtype):
            assert slots.origin is not None, "a state of fixed shape says where its slots lie"
            from regard.nn import triton_decoding

            one = (q.squeeze(1), k.squeeze(1), v.squeeze(1))
            context = triton_decoding.cached_self_attention(*one, cache, slots.origin, slots.real, slots.at)
            return self.output(context.flatten(1).unsqueeze(1))
        both = three[..., 1:, :, :] if self.relative is None else torch.stack((k, v), dim=-3)
        cache.index_copy_(1, slots.new, both.to(cache.dtype))
        past = cache[:, : slots.window]
        if slots.places is not None:
            past = cache.flatten(0, 1).index_select(0, slots.places.flatten()).unflatten(0, slots.places.shape)
        keys, values = (kind.transpose(1, 2) for kind in past.unbind(2))  # (rows, heads, window, d_head)
        if self.edits is not None:
            seen = slots.visible
            weights = padded_weights(q.transpose(1, 2), keys, seen, self.relative, slots.distance)
            weights = self.edits(weights, seen, slots.held[:, slots.new], slots.held)
            context = weigh(weights, values, self.relative, slots.distance)
            return self.output(context.transpose(1, 2).flatten(2))
        context = attend_padded(q.transpose(1, 2), keys, values, slots.seen, self.relative, slots.distance)
        if slots.nowhere is not None:
            context = context.masked_fill(slots.nowhere, 0.0)
        return self.output(context.transpose(1, 2).flatten(2))

    def _weights(self, q: Ragged, k: Ragged) -> Tensor:
        query, key = q.padded().transpose(1, 2), k.padded().transpose(1, 2)  # (rows, heads, length, d_head)
        seen = k.mask[:, None, None, :] & q.mask[:, None, :, None]
        if self.causal:
            seen = seen & (distances(query.shape[2], key.shape[2], seen.device) <= 0)
        weights = padded_weights(query, key, seen, self.relative)
        if self.edits is None:
            return weights
        return self.edits(weights, seen, torch.arange(query.shape[2], device=seen.device)[None])


def attend(q: Ragged, k: Ragged, v: Ragged, *, causal: bool = False, relative: Relative | None = None) -> Ragged:
    """`softmax(q kᵀ / √d_head) v` within each row, with what `relative` adds; `(total, heads, d_head)` in and out. The
    rows are padded with zeros, so a row that may attend nowhere attends to one zero and yields zeros."""
    # On a CPU the half-precision kernel's backward pass takes four times as long as that in full precision.
    kind = q.values.dtype if q.values.is_cuda else torch.promote_types(q.values.dtype, torch.float32)
    query, key, value = (x.like(x.values.to(kind)).padded().transpose(1, 2) for x in (q, k, v))  # (rows, heads, …)
    with torch.autocast(q.values.device.type, enabled=False):  # which would go back to half precision
        if k.uniform and not causal and (relative is None or not relative.adds):
            padded = F.scaled_dot_product_attention(query, key, value)  # nothing is hidden
        else:
            seen = None if causal else allowed(k)  # padding stands after all that is real: the causal rule hides it
            padded = attend_padded(query, key, value, seen, relative)
    return q.unpadded(padded.transpose(1, 2).to(q.values.dtype))


def attend_padded(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, relative: Relative | None, distance: Tensor | None = None
) -> Tensor:
    """`attend` on padded rows, `(rows, heads, length, d_head)`: a query sees the keys for which `seen` is True.

    `seen` spreads to `(rows, heads, target, source)` and leaves every query something to see; None is causal. The last
    query stands where the last key does, unless `distance` `(target, source)` says how far keys stand from queries.
    """
    targets, sources = q.shape[2], k.shape[2]
    if relative is None or not relative.adds:
        if seen is None and targets in (1, sources):  # a single query is the last and sees all
            return F.scaled_dot_product_attention(q, k, v, is_causal=targets == sources)
        seen = distances(targets, sources, q.device) <= 0 if seen is None else seen
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    distance = distances(targets, sources, q.device) if distance is None else distance
    seen = distance <= 0 if seen is None else seen
    if relative.values(distance) is None:
        added = relative.scores(q, distance).masked_fill(~seen, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=added)
    return weigh(padded_weights(q, k, seen, relative, distance), v, relative, distance)


def weigh(weights: Tensor, v: Tensor, relative: Relative | None, distance: Tensor | None = None) -> Tensor:
    """Contexts `(rows, heads, target, d_head)`: values by their weights `(rows, heads, target, source)`, with what
    `relative` adds to values."""
    weights = weights.to(v.dtype)
    values = None
    if relative is not None and relative.adds:
        distance = distances(weights.shape[2], weights.shape[3], v.device) if distance is None else distance
        values = relative.values(distance)
    if values is None:
        return weights @ v
    return weights @ v + torch.einsum("rhts,tsd->rhtd", weights, values.to(v.dtype))


def padded_weights(
    q: Tensor, k: Tensor, seen: Tensor, relative: Relative | None, distance: Tensor | None = None
) -> Tensor:
    """`softmax(q kᵀ / √d_head)` of `(rows, heads, length, d_head)` with what `relative` adds, in full precision."""
    scores = q @ k.mT / q.shape[-1] ** 0.5  # (rows, heads, target, source)
    if relative is not None and relative.adds:
        distance = distances(q.shape[2], k.shape[2], q.device) if distance is None else distance
        scores = scores + relative.scores(q, distance)
    return attention_weights(scores.to(torch.promote_types(scores.dtype, torch.float32)), seen)


def allowed(k: Ragged) -> Tensor:
    """`(rows, 1, 1, source)`, True where a key is; an empty row keeps its first slot, where the value is zero."""
    mask = k.mask.clone()
    mask[:, 0] = True
    return mask[:, None, None, :]
