"""Products with one matrix at every step of a loop, whose gradient is one product over all steps.

Step by step that gradient is as many small products and as many sums of the size of the matrix. Here each step only
keeps what it was given and the gradient of what it gave; when the last step is reached on the way back, both are laid
end to end and multiplied once. Under autocast the matrix is converted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.kernels import usable

WIDEST = 1024  # of a head that `look` takes
PARTS = 16  # into which a long sum is divided


@dataclass
class _Kept:
    """What the steps keep for the gradient of a matrix, and whether they multiply by it as it is (`turned`)."""

    turned: bool
    inputs: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    def collect(self) -> tuple[Tensor, Tensor]:
        """What was given to all steps, and the gradients of what they gave."""
        both = _joined(self.inputs), _joined(self.gradients)
        self.inputs.clear()
        self.gradients.clear()
        return both


def _joined(steps: list[Tensor]) -> Tensor:
    return torch.cat(steps, -2) if len(steps) > 1 else steps[0]


@dataclass
class _Shared:
    """A matrix that all steps multiply by, and a bias; holding them, no other tensor takes their place in memory."""

    given: tuple[Tensor, Tensor | None]
    matrix: Tensor  # what stands in for those given
    bias: Tensor | None
    kept: _Kept

    @staticmethod
    def of(matrix: Tensor, bias: Tensor | None, turned: bool) -> _Shared:
        kept = _Kept(turned)
        own, own_bias = _Share.apply(matrix, bias, kind_of(matrix), kept)
        return _Shared((matrix, bias), own, own_bias, kept)


_loop: ContextVar[dict[tuple[int, bool], _Shared] | None] = ContextVar("loop", default=None)


@contextmanager
def loop() -> Iterator[None]:
    """Inside this, gradients of the matrices of `product` are put off to the last step back."""
    token = _loop.set({})
    try:
        yield
    finally:
        _loop.reset(token)


def product(x: Tensor, matrix: Tensor, bias: Tensor | None = None, *, turned: bool = False) -> Tensor:
    """`x Mᵀ + b` of `(…, d_input)`, or `x M` if it is `turned`; the leading axes of `M` are those of `x`, or none."""
    steps = _loop.get()
    if steps is None or not torch.is_grad_enabled():
        return x @ matrix if turned else F.linear(x, matrix, bias) if matrix.dim() == 2 else x @ matrix.mT
    shared = _share(steps, matrix, bias, turned)
    found: Tensor = _Product.apply(x.to(shared.matrix.dtype), shared.matrix, shared.bias, shared.kept)
    return found


def looks(q: Tensor) -> bool:
    """Whether `look` takes queries `(rows, heads, target, d_head)`: in a loop on a GPU, one for each row."""
    inside = _loop.get() is not None and torch.is_grad_enabled()
    return inside and q.shape[2] == 1 and q.shape[3] <= WIDEST and usable(q)


def look(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """`softmax(q kᵀ) v` of queries `(rows, heads, 1, d_head)` over the places where `mask` `(rows, source)` is True.

    One kernel, for which the softmax and what goes with it are many; like those of a `product`, the gradients of keys
    and values are put off. What may look nowhere sees zeros.
    """
    steps = _loop.get()
    assert steps is not None, "looks are for loops"
    shared = _share(steps, keys, None, False), _share(steps, values, None, True)
    matrices, kept = (each.matrix for each in shared), (each.kept for each in shared)
    found: Tensor = _Look.apply(q.to(shared[0].matrix.dtype), *matrices, mask, *kept)
    return found


def _share(steps: dict[tuple[int, bool], _Shared], matrix: Tensor, bias: Tensor | None, turned: bool) -> _Shared:
    key = (id(matrix), turned)
    if key not in steps:
        steps[key] = _Shared.of(matrix, bias, turned)
    return steps[key]


def applied(linear: nn.Module, x: Tensor) -> Tensor:
    """`linear(x)`, by way of `product` inside a loop that has gradients."""
    if _loop.get() is None or not torch.is_grad_enabled():
        return linear(x)
    return product(x, linear.weight, linear.bias)  # type: ignore[arg-type]


def kind_of(x: Tensor) -> torch.dtype:
    """What autocast would multiply in."""
    on = torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
    return torch.get_autocast_dtype(x.device.type) if on else x.dtype


def column_sums(x: Tensor) -> Tensor:
    """The sums over the last axis but one, in full precision; on a GPU numbers of half precision are added up by
    products with ones, part by part, of which each is rounded once."""
    full = torch.promote_types(x.dtype, torch.float32)
    if not x.is_cuda or x.element_size() > 2 or x.shape[-2] % PARTS:
        return x.sum(-2, dtype=full)
    parts = x.unflatten(-2, (PARTS, -1)).flatten(0, -3)  # (all parts, length, width)
    ones = x.new_ones(1, 16, parts.shape[1]).expand(len(parts), -1, -1)  # 16: the least that is multiplied at once
    return torch.bmm(ones, parts)[:, 0].view(*x.shape[:-2], PARTS, -1).sum(-2, dtype=full)


class _Share(torch.autograd.Function):
    """Gives what stands in for a matrix and a bias; on the way back it comes after all products with them."""

    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, bias: Tensor | None, kind: torch.dtype, kept: _Kept
    ) -> tuple[Tensor, Tensor | None]:
        ctx.kept, ctx.kinds = kept, (matrix.dtype, None if bias is None else bias.dtype)
        ctx.set_materialize_grads(False)
        return matrix.view_as(matrix).to(kind), None if bias is None else bias.view_as(bias).to(kind)

    @staticmethod
    def backward(ctx: Any, *_: None) -> tuple[Tensor | None, ...]:
        if not ctx.kept.inputs:
            return None, None, None, None
        x, gradient = ctx.kept.collect()
        matrix = x.mT @ gradient if ctx.kept.turned else gradient.mT @ x
        bias = None if ctx.kinds[1] is None else column_sums(gradient).to(ctx.kinds[1])
        return matrix.to(ctx.kinds[0]), bias, None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None, kept: _Kept) -> Tensor:
        ctx.kept = kept
        ctx.save_for_backward(x, matrix)
        if kept.turned:
            return x @ matrix
        return F.linear(x, matrix, bias) if matrix.dim() == 2 else x @ matrix.mT

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix = ctx.saved_tensors
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            flat = matrix.dim() == 2
            ctx.kept.inputs.append(x.flatten(0, -2) if flat else x)
            ctx.kept.gradients.append(gradient.flatten(0, -2) if flat else gradient)
        back = None
        if ctx.needs_input_grad[0]:
            back = gradient @ matrix.mT if ctx.kept.turned else gradient @ matrix
        return back, None, None, None


class _Look(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, of_keys: _Kept, of_values: _Kept
    ) -> Tensor:
        from regard.nn import triton_steps

        q, keys, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, keys, values))
        context, scores, sums = triton_steps.look(q, keys, values, mask.contiguous())
        ctx.kept = of_keys, of_values
        ctx.save_for_backward(q, keys, values, context, scores, sums)
        return context

    @staticmethod
    def backward(ctx: Any, dcontext: Tensor) -> tuple[Tensor | None, ...]:
        from regard.nn import triton_steps

        q, keys, values, context, scores, sums = ctx.saved_tensors
        dcontext = dcontext if dcontext.stride(-1) == 1 else dcontext.contiguous()
        dq, dscores, weights = triton_steps.look_backward(keys, values, context, scores, sums, dcontext)
        for needed, kept, x, gradient in zip(
            ctx.needs_input_grad[1:3], ctx.kept, (q, weights), (dscores, dcontext), strict=True
        ):
            if needed:
                kept.inputs.append(x)
                kept.gradients.append(gradient)
        return dq, *[None] * 5
