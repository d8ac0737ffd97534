"""Depthwise convolution over packed rows, in the way of `regard.nn.kernels`: a custom operator for `torch.compile` that
never waits for the device. The kernels are in `triton_depthwise.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.nn.kernels import usable


def depthwise(x: Tensor, weight: Tensor, bias: Tensor, row: Tensor) -> Tensor:
    """`y_t = b + Σ_i w_i x_{t + i - k//2}` for each channel alone, over the `t + i - k//2` of the same row: a depthwise
    convolution over time (Gulati et al. 2020, 2.2) with zeros around each row.

    `x` is `(total, width)`, rows laid end to end; `weight` `(width, kernel)`; `bias` `(width,)`; `row` `(total,)` int64
    says which sequence each vector belongs to, and never falls. Under autocast it is in its precision, as `nn.Conv1d`
    would be. Sums are in float32, and every run gives the same bits.
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return _depthwise(x, weight, bias, row)[0]


@torch.library.custom_op("regard::depthwise", mutates_args=())
def _depthwise(x: Tensor, weight: Tensor, bias: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and the weights as the kernels read them, `(kernel, width)`."""
    _check(x, weight, bias, row)
    from regard.nn import triton_depthwise

    laid_out = x.new_empty((weight.shape[1], weight.shape[0])).copy_(weight.t())
    return triton_depthwise.convolve(x.contiguous(), laid_out, bias.contiguous(), row.contiguous()), laid_out


@torch.library.custom_op("regard::depthwise_backward", mutates_args=())
def _depthwise_backward(grad: Tensor, x: Tensor, laid_out: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `x`, and of weights and bias, `(kernel + 1, width)`."""
    from regard.nn import triton_depthwise

    grad, row = grad.contiguous(), row.contiguous()
    dx = triton_depthwise.convolve(grad, laid_out, None, row, backward=True)
    return dx, triton_depthwise.correlate(grad, x.contiguous(), row, laid_out.shape[0])


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, row = inputs
    ctx.save_for_backward(x, output[1], row)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.dtypes = weight.dtype, bias.dtype


def _differentiate(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 4
    dx, both = _depthwise_backward(grad, *ctx.saved_tensors)
    return dx, both[:-1].t().to(ctx.dtypes[0]), both[-1].to(ctx.dtypes[1]), None


_depthwise.register_autograd(_differentiate, setup_context=_save)
_depthwise.register_fake(lambda x, weight, *_: (x.new_empty(x.shape), x.new_empty((weight.shape[1], weight.shape[0]))))
_depthwise_backward.register_fake(
    lambda grad, x, laid_out, *_: (
        grad.new_empty(grad.shape), x.new_empty((laid_out.shape[0] + 1, x.shape[1]), dtype=torch.float32)
    )
)  # fmt: skip


def _check(x: Tensor, weight: Tensor, bias: Tensor, row: Tensor) -> None:
    """Kernels read past the end of what does not fit, so it has to be said before."""
    assert usable(x), f"depthwise needs triton and a GPU in single or half precision, got {x.dtype} on {x.device}"
    assert x.dim() == 2, f"x should be (total, width), got {tuple(x.shape)}"
    total, width = x.shape
    fits = weight.dim() == 2 and weight.shape[0] == width and weight.shape[1] > 0
    assert fits, f"weight should be ({width}, kernel), got {tuple(weight.shape)}"
    assert bias.shape == (width,), f"bias should be ({width},), got {tuple(bias.shape)}"
    assert row.shape == (total,), f"row should be ({total},), got {tuple(row.shape)}"
    assert row.dtype == torch.int64, f"row should be int64, got {row.dtype}"
