"""What stands around the products of a Transformer, each as one kernel on a GPU: a residual with its dropout and norm,
an activation with its dropout.

As in `regard.nn.kernels`, this is the way in, and each is a custom operator; the kernels are in `triton_fused.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.dropout import Dropout
from regard.nn.kernels import usable

WIDEST = 8192  # row that is normed


def norm(x: Tensor, module: nn.LayerNorm | nn.RMSNorm) -> Tensor:
    """`module(x)`; on a GPU in autocast's precision, if that is on, as the product that follows would have it."""
    if not usable(x) or x.shape[-1] > WIDEST:
        return module(x)
    cast = torch.is_autocast_enabled(x.device.type)
    return _normed(x, None, module, 0.0, torch.get_autocast_dtype(x.device.type) if cast else x.dtype)


def add_norm(x: Tensor, added: Tensor, module: nn.LayerNorm | nn.RMSNorm, dropout: Dropout) -> Tensor:
    """`module(x + dropout(added))`; on a GPU in the precision of what is added."""
    if not usable(x) or x.shape[-1] > WIDEST:
        return module(x + dropout(added))
    return _normed(x, added, module, dropout.p if dropout.training else 0.0, added.dtype)


def relu_dropout(x: Tensor, dropout: Dropout) -> Tensor:
    """`dropout(relu(x))`."""
    if not usable(x) or not dropout.training or not 0.0 < dropout.p < 1.0:
        return dropout(torch.relu(x))
    return _relu_dropout(x, _seed(x), dropout.p)


def _normed(x: Tensor, added: Tensor | None, module: nn.LayerNorm | nn.RMSNorm, p: float, dtype: torch.dtype) -> Tensor:
    centred = isinstance(module, nn.LayerNorm)
    bias = module.bias if isinstance(module, nn.LayerNorm) else None
    assert module.eps is not None, "norms are made with an eps"
    flat = None if added is None else added.reshape(-1, x.shape[-1])
    seed = _seed(x) if p else None
    y, *_ = _add_norm(x.reshape(-1, x.shape[-1]), flat, module.weight, bias, seed, p, module.eps, centred, dtype)
    return y.view(x.shape)


def _seed(x: Tensor) -> Tensor:
    """Two random numbers of 32 bits from torch's own generator: a recorded graph draws them anew in every replay."""
    return torch.randint(-(2**31), 2**31 - 1, (2,), device=x.device, dtype=torch.int32)


# What follows are the operators: forward, backward, and their shapes for tracing.


@torch.library.custom_op("regard::add_norm", mutates_args=())
def _add_norm(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None, seed: Tensor | None, p: float, eps: float,
    centred: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    assert added is None or added.shape == x.shape, f"{tuple(x.shape)} and {tuple(added.shape)} cannot be added"
    from regard.nn import triton_fused

    added = None if added is None else added.contiguous()
    return triton_fused.add_norm(x.contiguous(), added, weight, bias, seed, p, eps, centred, dtype)


@_add_norm.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    mean, inverse = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape, dtype=rest[-1]), mean, inverse


@torch.library.custom_op("regard::add_norm_backward", mutates_args=())
def _add_norm_backward(
    grad: Tensor, x: Tensor, added: Tensor | None, weight: Tensor, seed: Tensor | None, mean: Tensor, inverse: Tensor,
    p: float, centred: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from regard.nn import triton_fused

    added = None if added is None else added.contiguous()
    given = (grad.contiguous(), x.contiguous(), added, weight, seed, mean, inverse)
    return triton_fused.add_norm_backward(*given, p, centred)


@_add_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, added: Tensor | None, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    dadded = x.new_empty(0) if added is None else added.new_empty(added.shape)
    return x.new_empty(x.shape), dadded, x.new_empty((2, x.shape[1]), dtype=torch.float32)


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, added, weight, bias, seed, ctx.p, _, ctx.centred, _ = inputs
    ctx.save_for_backward(x, added, weight, seed, *output[1:])
    ctx.added, ctx.dtype, ctx.shifted = added is not None, weight.dtype, bias is not None
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate_norm(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 9
    dx, dadded, both = _add_norm_backward(grad, *ctx.saved_tensors, ctx.p, ctx.centred)
    dweight, dbias = both.to(ctx.dtype).unbind()
    return (dx, dadded if ctx.added else None, dweight, dbias if ctx.shifted else None, *[None] * 5)


_add_norm.register_autograd(_differentiate_norm, setup_context=_save_norm)


@torch.library.custom_op("regard::relu_dropout", mutates_args=())
def _relu_dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    from regard.nn import triton_fused

    return triton_fused.relu_dropout(x.contiguous(), seed, p)


@torch.library.custom_op("regard::relu_dropout_backward", mutates_args=())
def _relu_dropout_backward(grad: Tensor, y: Tensor, p: float) -> Tensor:
    from regard.nn import triton_fused

    return triton_fused.relu_dropout_backward(grad.contiguous(), y.contiguous(), p)


def _save_relu(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.p = inputs[2]


def _differentiate_relu(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _relu_dropout_backward(grad, *ctx.saved_tensors, ctx.p), None, None


_relu_dropout.register_autograd(_differentiate_relu, setup_context=_save_relu)
_relu_dropout.register_fake(lambda x, *_: x.new_empty(x.shape))
_relu_dropout_backward.register_fake(lambda grad, y, *_: y.new_empty(y.shape))
