"""Products with one matrix at every step of a loop, with deferred gradients.

Taken step by step, the gradient of such a matrix is as many small products and as many sums of its size. Here the
backward pass of a step only stores the step's input and the gradient of its output; after the last of them both are
concatenated and multiplied once. Under autocast the matrix is converted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.kernels import dense, usable

WIDEST = 1024  # head that `fused_step_attention` takes
CHUNKS = 16  # into which a long sum is divided
Pending = list[tuple[Tensor, Tensor]]  # of each step its input, and the gradient of its output


class _Shared(NamedTuple):
    """A matrix and a bias that all steps use: they compute `x Mᵀ + b`. Holding what was given keeps its `id` taken."""

    given: tuple[Tensor, Tensor | None]
    matrix: Tensor
    bias: Tensor | None
    pending: Pending


_loop: ContextVar[dict[tuple[int, bool], _Shared] | None] = ContextVar("loop", default=None)


@contextmanager
def defer_gradients() -> Iterator[None]:
    """Inside this, gradients of the matrices of this module's products wait for the last step of the backward pass."""
    token = _loop.set({})
    try:
        yield
    finally:
        _loop.reset(token)


def _deferring() -> bool:
    return _loop.get() is not None and torch.is_grad_enabled()


def deferred_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x Wᵀ + b` of `(…, d_input)`; the leading axes of `W` are those of `x`, or none. A bias needs a `W` without."""
    return _product(x, _share(weight, bias, transpose=False)) if _deferring() else _linear(x, weight, bias)


def deferred_matmul(x: Tensor, matrix: Tensor) -> Tensor:
    """`x M` of `(…, d_input)`; the leading axes of `M` are those of `x`, or none."""
    return _product(x, _share(matrix, None, transpose=True)) if _deferring() else x @ matrix


def deferred_apply(linear: nn.Module, x: Tensor) -> Tensor:
    """`linear(x)`, with deferred gradients inside `defer_gradients`; else, or if it is no plain layer, by a call."""
    if type(linear) is nn.Linear and _deferring():
        return deferred_linear(x, linear.weight, linear.bias)
    return linear(x)


def step_attention_fuses(q: Tensor) -> bool:
    """Whether `fused_step_attention` takes queries `(rows, heads, target, d_head)`: in a loop on a GPU, one a row."""
    return _deferring() and q.shape[2] == 1 and q.shape[3] <= WIDEST and usable(q)


def fused_step_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """`softmax(q kᵀ) v` of queries `(rows, heads, 1, d_head)` over the places where `mask` `(rows, source)` is True, in
    one kernel; gradients of keys and values are deferred. A query that may attend nowhere gets zeros."""
    k, v = _share(keys, None, transpose=False), _share(values, None, transpose=True)
    return _StepAttention.apply(q.to(k.matrix.dtype), k.matrix, v.matrix, mask, k.pending, v.pending)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which `x` is multiplied under the autocast that is on, if one is."""
    on = torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
    return torch.get_autocast_dtype(x.device.type) if on else x.dtype


def column_sums(x: Tensor) -> Tensor:
    """The sums over the last axis but one, in full precision; on a GPU numbers of half precision are added up by
    products with ones, chunk by chunk, of which each is rounded once."""
    full = torch.promote_types(x.dtype, torch.float32)
    if not x.is_cuda or x.element_size() > 2 or x.shape[-2] % CHUNKS:
        return x.sum(-2, dtype=full)
    chunks = x.unflatten(-2, (CHUNKS, -1)).flatten(0, -3)  # (all chunks, length, width)
    ones = x.new_ones(1, 16, chunks.shape[1]).expand(len(chunks), -1, -1)  # 16: the least that is multiplied at once
    return torch.bmm(ones, chunks)[:, 0].view(*x.shape[:-2], CHUNKS, -1).sum(-2, dtype=full)


def _linear(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, matrix, bias) if matrix.dim() == 2 else x @ matrix.mT


def _product(x: Tensor, shared: _Shared) -> Tensor:
    return _Product.apply(x.to(shared.matrix.dtype), shared.matrix, shared.bias, shared.pending)


def _share(matrix: Tensor, bias: Tensor | None, *, transpose: bool) -> _Shared:
    """What the steps use in place of these, the same for all steps of a loop."""
    steps = _loop.get()
    assert steps is not None, "gradients are deferred inside `defer_gradients`"
    key = (id(matrix), transpose)
    if key not in steps:
        pending: Pending = []
        own, own_bias = _Share.apply(matrix, bias, transpose, pending)
        steps[key] = _Shared((matrix, bias), own, own_bias, pending)
    return steps[key]


class _Share(torch.autograd.Function):
    """Its backward pass comes after those of all products with what it gives."""

    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, bias: Tensor | None, transpose: bool, pending: Pending
    ) -> tuple[Tensor, Tensor | None]:
        ctx.pending, ctx.transpose, dtype = pending, transpose, autocast_dtype(matrix)
        ctx.dtypes = matrix.dtype, None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        own = matrix.view_as(matrix).to(dtype)
        return own.mT if transpose else own, None if bias is None else bias.view_as(bias).to(dtype)

    @staticmethod
    def backward(ctx: Any, *_: None) -> tuple[Tensor | None, ...]:
        if not ctx.pending:
            return None, None, None, None
        x, gradient = (torch.cat(each, -2) if len(each) > 1 else each[0] for each in zip(*ctx.pending, strict=True))
        ctx.pending.clear()
        matrix = x.mT @ gradient if ctx.transpose else gradient.mT @ x
        bias = None if ctx.dtypes[1] is None else column_sums(gradient).to(ctx.dtypes[1])
        return matrix.to(ctx.dtypes[0]), bias, None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None, pending: Pending) -> Tensor:
        ctx.pending = pending
        ctx.save_for_backward(x, matrix)
        return _linear(x, matrix, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix = ctx.saved_tensors
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            flat = matrix.dim() == 2
            ctx.pending.append((x.flatten(0, -2), gradient.flatten(0, -2)) if flat else (x, gradient))
        return gradient @ matrix if ctx.needs_input_grad[0] else None, None, None, None


class _StepAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *pending: Pending) -> Tensor:
        from regard.nn import triton_steps

        q, keys, values = map(dense, (q, keys, values.mT))
        context, scores, sums = triton_steps.step_attention(q, keys, values, mask.contiguous())
        ctx.pending = pending
        ctx.save_for_backward(q, keys, values, context, scores, sums)
        return context

    @staticmethod
    def backward(ctx: Any, dcontext: Tensor) -> tuple[Tensor | None, ...]:
        from regard.nn import triton_steps

        q, keys, values, context, scores, sums = ctx.saved_tensors
        dcontext = dense(dcontext)
        dq, dscores, weights = triton_steps.step_attention_backward(keys, values, context, scores, sums, dcontext)
        steps = ((q, dscores), (weights, dcontext))
        for needed, pending, step in zip(ctx.needs_input_grad[1:3], ctx.pending, steps, strict=True):
            if needed:
                pending.append(step)
        return dq, *[None] * 5
