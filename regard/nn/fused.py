"""Operators for what stands around the products of a Transformer in training on a GPU: residuals, norms, activations,
each with its dropout.

The kernels are in `triton_fused.py`, which is imported when the first tensor for them arrives. As in `kernels.py`, each
is a custom operator for `torch.compile`, and none waits for the device. Elsewhere it is torch's own modules that run.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.dropout import Dropout
from regard.nn.kernels import usable

WIDEST_ROW = 8192  # that is normed
Norm = nn.LayerNorm | nn.RMSNorm


def norm(x: Tensor, module: Norm) -> Tensor:
    """`module(x)`; on a GPU in autocast's precision, if that is on, as the product that follows would have it."""
    if not usable(x) or x.shape[-1] > WIDEST_ROW:
        return module(x)
    return _normed(x, None, module, 0.0, _precision(x))


def add_norm(x: Tensor, added: Tensor, module: Norm, dropout: Dropout) -> Tensor:
    """`module(x + dropout(added))`; on a GPU in the precision of what is added."""
    if not usable(x) or x.shape[-1] > WIDEST_ROW:
        return module(x + dropout(added))
    return _normed(x, added, module, dropout.p if dropout.training else 0.0, added.dtype)


def add_and_norm(
    x: Tensor, added: Tensor, module: Norm, dropout: Dropout, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`x + factor · dropout(added)`, and the `norm` of that: between two sublayers with pre-norm, where both go on. In
    training on a GPU they are one kernel, and so are the gradients that come back for both."""
    fits = usable(x) and usable(added) and x.shape[-1] <= WIDEST_ROW
    if not fits or not dropout.training or dropout.p >= 1.0:
        summed = _plain_sum(x, added, dropout, factor)
        return summed, norm(summed, module)
    flat, more = (part.reshape(-1, x.shape[-1]) for part in (x, added))
    bias, eps, centred = _terms(module)
    seed = _seed(x) if dropout.p else None
    terms = (module.weight, bias, seed, dropout.p, factor, eps, centred, _precision(x))
    summed, y, *_ = _add_and_norm(flat, more, *terms)
    return summed.view(x.shape), y.view(x.shape)


def add_dropout(x: Tensor, added: Tensor, dropout: Dropout, factor: float = 1.0) -> Tensor:
    """`x + factor · dropout(added)`."""
    if not (usable(x) and usable(added)) or not dropout.training or not 0.0 < dropout.p < 1.0:
        return _plain_sum(x, added, dropout, factor)
    return _add_dropout(x, added, _seed(x), dropout.p, factor)


def _plain_sum(x: Tensor, added: Tensor, dropout: Dropout, factor: float) -> Tensor:
    return x + dropout(added) if factor == 1.0 else x + factor * dropout(added)


def linear_activate_dropout(linear: nn.Linear, x: Tensor, activation: nn.Module, dropout: Dropout) -> Tensor:
    """`dropout(f(W x + b))`. In training on a GPU, with ReLU, GELU (either form) or SiLU, all that follows
    `W x` is one kernel; so is its gradient, and that of `b` is summed on the way."""
    kind = _kind(activation) if type(linear) is nn.Linear else None
    if kind is None or linear.bias is None or not usable(x) or not dropout.training or not 0.0 < dropout.p < 1.0:
        return dropout(activation(linear(x)))
    product = F.linear(x, linear.weight)
    flat = product.reshape(-1, product.shape[-1])
    return _activate_dropout(flat, linear.bias, _seed(x), dropout.p, kind).view(product.shape)


def _kind(activation: nn.Module) -> str | None:
    """The activation's name, if there is a kernel for it."""
    if isinstance(activation, nn.GELU):
        return "gelu" if activation.approximate == "none" else "gelu_tanh"
    return "relu" if isinstance(activation, nn.ReLU) else "silu" if isinstance(activation, nn.SiLU) else None


def _precision(x: Tensor) -> torch.dtype:
    """Of what is normed: autocast's, if that is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _terms(module: Norm) -> tuple[Tensor | None, float, bool]:
    """What norms differ in: the bias, the epsilon, and whether they centre."""
    assert module.eps is not None, "norms are made with an eps"
    centred = isinstance(module, nn.LayerNorm)
    return module.bias if isinstance(module, nn.LayerNorm) else None, module.eps, centred


def _normed(x: Tensor, added: Tensor | None, module: Norm, p: float, dtype: torch.dtype) -> Tensor:
    bias, eps, centred = _terms(module)
    flat = None if added is None else added.reshape(-1, x.shape[-1])
    seed = _seed(x) if p else None
    y, *_ = _add_norm(x.reshape(-1, x.shape[-1]), flat, module.weight, bias, seed, p, eps, centred, dtype)
    return y.view(x.shape)


def _seed(x: Tensor) -> Tensor:
    """Two random numbers of 32 bits from torch's own generator: a recorded graph draws them anew in every replay."""
    return torch.randint(-(2**31), 2**31 - 1, (2,), device=x.device, dtype=torch.int32)


def _check_sum(x: Tensor, added: Tensor | None) -> None:
    """Kernels read past the end of what does not fit."""
    assert added is None or added.shape == x.shape, f"{tuple(x.shape)} and {tuple(added.shape)} cannot be added"


# Norms, of a sum or of one tensor: forward, backward, and their shapes for tracing (no `len(x)`, which is a number, and
# what is compiled would be for it alone).


@torch.library.custom_op("regard::add_norm", mutates_args=())
def _add_norm(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None, seed: Tensor | None, p: float, eps: float,
    centred: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    _check_sum(x, added)
    from regard.nn import triton_fused

    added = None if added is None else added.contiguous()
    return triton_fused.add_norm(x.contiguous(), added, weight, bias, seed, p, eps, centred, dtype)[1:]


@torch.library.custom_op("regard::add_and_norm", mutates_args=())
def _add_and_norm(
    x: Tensor, added: Tensor, weight: Tensor, bias: Tensor | None, seed: Tensor | None, p: float, factor: float,
    eps: float, centred: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    _check_sum(x, added)
    from regard.nn import triton_fused

    given = (x.contiguous(), added.contiguous(), weight, bias, seed)
    return triton_fused.add_norm(*given, p, eps, centred, dtype, torch.promote_types(x.dtype, added.dtype), factor)


@torch.library.custom_op("regard::add_norm_backward", mutates_args=())
def _add_norm_backward(
    grad: Tensor, through: Tensor | None, x: Tensor, added: Tensor | None, weight: Tensor, seed: Tensor | None,
    mean: Tensor, inverse: Tensor, p: float, factor: float, centred: bool, kind: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of `x`, of what was added (of dtype `kind`; None: nothing was), and of weight and bias. What was normed
    is `x + dropout(added)`, or `x` where that is the sum already; `through` is the gradient it has from elsewhere."""
    from regard.nn import triton_fused

    through, added = (None if part is None else part.contiguous() for part in (through, added))
    given = (grad.contiguous(), through, x.contiguous(), added, weight, seed, mean, inverse)
    return triton_fused.add_norm_backward(*given, p, centred, kind, factor)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], dtype=torch.float32), x.new_empty(x.shape[0], dtype=torch.float32)


@_add_norm.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (x.new_empty(x.shape, dtype=rest[-1]), *_statistics(x))


@_add_and_norm.register_fake
def _(x: Tensor, added: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    summed = x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, added.dtype))
    return (summed, x.new_empty(x.shape, dtype=rest[-1]), *_statistics(x))


@_add_norm_backward.register_fake
def _(grad: Tensor, through: Tensor | None, x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    dadded = x.new_empty(0) if rest[-1] is None else x.new_empty(x.shape, dtype=rest[-1])
    return x.new_empty(x.shape), dadded, x.new_empty((2, x.shape[1]), dtype=torch.float32)


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, added, weight, bias, seed, ctx.p, _, ctx.centred, _ = inputs
    ctx.save_for_backward(x, added, weight, seed, *output[1:])
    ctx.kind, ctx.dtype, ctx.shifted = None if added is None else added.dtype, weight.dtype, bias is not None
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate_norm(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 9
    dx, dadded, both = _add_norm_backward(grad, None, *ctx.saved_tensors, ctx.p, 1.0, ctx.centred, ctx.kind)
    dweight, dbias = both.to(ctx.dtype).unbind()
    return (dx, None if ctx.kind is None else dadded, dweight, dbias if ctx.shifted else None, *[None] * 5)


def _save_both(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x, added, weight, bias, seed, ctx.p, ctx.factor, _, ctx.centred, _ = inputs
    ctx.save_for_backward(output[0], weight, seed, *output[2:])
    ctx.kinds, ctx.dtype, ctx.shifted = (x.dtype, added.dtype), weight.dtype, bias is not None
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)


def _differentiate_both(ctx: Any, through: Tensor | None, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    summed, weight, seed, mean, inverse = ctx.saved_tensors
    of_x, of_added = ctx.kinds
    if grad is None:  # what was normed went nowhere
        if through is None:
            return (None,) * 10
        dropped = through * ctx.factor if seed is None else _drop(through, seed, ctx.p, ctx.factor, of_added)
        return (through.to(of_x), dropped.to(of_added), *[None] * 8)
    rest = (summed, None, weight, seed, mean, inverse, ctx.p, ctx.factor, ctx.centred, of_added)
    dx, dadded, both = _add_norm_backward(grad, through, *rest)
    dweight, dbias = both.to(ctx.dtype).unbind()
    return (dx.to(of_x), dadded, dweight, dbias if ctx.shifted else None, *[None] * 6)


_add_norm.register_autograd(_differentiate_norm, setup_context=_save_norm)
_add_and_norm.register_autograd(_differentiate_both, setup_context=_save_both)


# A sum with dropout


@torch.library.custom_op("regard::add_dropout", mutates_args=())
def _add_dropout(x: Tensor, added: Tensor, seed: Tensor, p: float, factor: float) -> Tensor:
    _check_sum(x, added)
    from regard.nn import triton_fused

    wider = torch.promote_types(x.dtype, added.dtype)
    return triton_fused.add_dropout(x.contiguous(), added.contiguous(), seed, p, factor, wider)


@torch.library.custom_op("regard::drop", mutates_args=())
def _drop(added: Tensor, seed: Tensor, p: float, factor: float, dtype: torch.dtype) -> Tensor:
    """What `_add_dropout` adds: also the gradient of what was added, from that of the sum."""
    from regard.nn import triton_fused

    return triton_fused.add_dropout(None, added.contiguous(), seed, p, factor, dtype)


def _save_sum(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float, float], output: Tensor) -> None:
    x, added, seed, ctx.p, ctx.factor = inputs
    ctx.save_for_backward(seed)
    ctx.kinds = x.dtype, added.dtype


def _differentiate_sum(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    of_x, of_added = ctx.kinds
    return grad.to(of_x), _drop(grad, *ctx.saved_tensors, ctx.p, ctx.factor, of_added), None, None, None


_add_dropout.register_autograd(_differentiate_sum, setup_context=_save_sum)
_add_dropout.register_fake(lambda x, added, *_: x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, added.dtype)))
_drop.register_fake(lambda added, *rest: added.new_empty(added.shape, dtype=rest[-1]))


# An activation of a sum with a bias, with dropout


@torch.library.custom_op("regard::activate_dropout", mutates_args=())
def _activate_dropout(x: Tensor, bias: Tensor, seed: Tensor, p: float, kind: str) -> Tensor:
    from regard.nn import triton_fused

    return triton_fused.activate_dropout(x.contiguous(), bias, seed, p, kind)


@torch.library.custom_op("regard::activate_dropout_backward", mutates_args=())
def _activate_dropout_backward(
    grad: Tensor, saved: Tensor, bias: Tensor, seed: Tensor, p: float, kind: str
) -> tuple[Tensor, Tensor]:
    """Gradients of `x` and of the bias."""
    from regard.nn import triton_fused

    return triton_fused.activate_dropout_backward(grad.contiguous(), saved.contiguous(), bias, seed, p, kind)


def _save_activation(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float, str], output: Tensor) -> None:
    x, bias, seed, ctx.p, ctx.activation = inputs
    # Of ReLU the output says all, and the product that follows keeps it anyway.
    ctx.save_for_backward(output if ctx.activation == "relu" else x, bias, seed)


def _differentiate_activation(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    saved, bias, seed = ctx.saved_tensors
    dx, dbias = _activate_dropout_backward(grad, saved, bias, seed, ctx.p, ctx.activation)
    return dx, dbias.to(bias.dtype), None, None, None


@_activate_dropout_backward.register_fake
def _(grad: Tensor, saved: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return saved.new_empty(saved.shape), saved.new_empty(saved.shape[1], dtype=torch.float32)


_activate_dropout.register_autograd(_differentiate_activation, setup_context=_save_activation)
_activate_dropout.register_fake(lambda x, *_: x.new_empty(x.shape))
