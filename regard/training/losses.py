"""What training makes small; the output layer and its loss in one, without ever holding the logits of all tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.kernels import softmax_agreement_, softmax_cross_entropy_


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """`Σ -log p(y_t)` of packed `(total, vocabulary)` logits, with label smoothing (Szegedy et al. 2016)."""
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing, reduction="sum")


def output_loss(head: Any, x: Tensor, targets: Tensor, smoothing: float = 0.0, agreement: float = 0.0) -> Tensor:
    """`Σ -log p(y_t)` of an output layer over packed `(tokens, d_model)`, without holding all logits: of a mixture of
    softmaxes, or by each of its softmaxes, smoothed within it; see `linear_cross_entropy`."""
    if (mixed := head.mixed(x)) is not None:
        latent, prior = mixed
        return _mixture_loss(latent, prior, head.linear, targets)
    first, *more = [
        linear_cross_entropy(one.x, one.weight, one.bias, one.targets, smoothing, agreement=agreement)
        for one in head.softmaxes(x, targets)
    ]
    return sum(more, first)


def _mixture_loss(latent: Tensor, prior: Tensor, output: nn.Linear, targets: Tensor) -> Tensor:
    kind, weight = latent.device.type, output.weight
    cast = latent.dtype != torch.float64 and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if cast else latent.dtype
    rows = max(256, (2**31 if kind == "cuda" else 2**25) // (len(weight) * prior.shape[-1]) // 64 * 64)
    found: Tensor = _MixtureCrossEntropy.apply(latent, prior, weight, output.bias, targets, rows, dtype)
    return found


class _MixtureCrossEntropy(torch.autograd.Function):
    """`Σ_t -log Σ_k π_k p_k(y_t)` with `p_k = softmax(W h_k + b)` (Yang et al. 2018), from `h` `(tokens, softmaxes,
    d_model)` and `log π` `(tokens, softmaxes)`, a chunk of tokens at a time.

    Its gradient is that of `-log p_k(y_t)` for each softmax, weighted by `r_k = π_k p_k(y_t) / p(y_t)`, which is also
    the negative gradient of `log π_k`; so logits give way to it as in `linear_cross_entropy`.
    """

    @staticmethod
    def forward(
        ctx: Any, latent: Tensor, prior: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, chunk: int,
        dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        wide, count = torch.promote_types(dtype, torch.float32), prior.shape[-1]
        dlatent, dprior = torch.empty_like(latent), torch.empty_like(prior)
        dweight, dbias = weight.new_zeros(weight.shape, dtype=wide), bias.new_zeros(bias.shape, dtype=wide)
        total = prior.new_zeros((), dtype=wide)
        with torch.autocast(latent.device.type, enabled=False):
            matrix, offset = weight.to(dtype), bias.to(dtype)
            for begin in range(0, len(targets), chunk):
                part = slice(begin, begin + chunk)
                taken = latent[part].to(dtype).flatten(0, 1)  # (tokens · softmaxes, d_model)
                gradient = F.linear(taken, matrix, offset)
                losses = softmax_cross_entropy_(gradient, targets[part].repeat_interleave(count))
                joint = prior[part] - losses.view(-1, count)  # log π_k p_k(y)
                total -= joint.logsumexp(-1).sum()
                share = joint.softmax(-1)
                gradient *= share.flatten().unsqueeze(-1).to(dtype)
                dprior[part] = -share
                dlatent[part] = _product(gradient, matrix, latent.dtype).unflatten(0, (-1, count))
                dweight += _product(gradient.T, taken, wide)
                dbias += gradient.sum(0, dtype=wide)
        ctx.save_for_backward(dlatent, dprior, dweight, dbias)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return *((gradient * grad).to(gradient.dtype) for gradient in ctx.saved_tensors), None, None, None


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0, chunk: int | None = None,
    agreement: float = 0.0,
) -> Tensor:  # fmt: skip
    """`Σ -log p(y_t)` with `p = softmax(x Wᵀ + b)`, over packed tokens, smoothed as `softmax_cross_entropy_` says.

    `x` is `(tokens, d_model)`, `weight` `(vocabulary, d_model)`, `targets` `(tokens,)` with -100 where none counts.
    Logits are made for `chunk` tokens at a time and give way to their gradient at once, from which those of `x`,
    `weight` and `bias` are summed: the backward pass only has to multiply. Under autocast the products are in its
    dtype, as those of `F.linear` are; sums over tokens are in float32. There is no second derivative.

    Or `x` is `(2, tokens, d_model)`, of two passes that should agree, and the loss is that of `softmax_agreement_`.
    """
    kind = x.device.type
    # On a CPU what is in the cache is soonest done; on a GPU great products are, and a GiB of logits is great enough.
    rows = max(1024, 2**29 // len(weight) // 128 * 128) if kind == "cuda" else 1024
    chunk = chunk or (rows if x.dim() == 2 else rows // 2)
    cast = x.dtype != torch.float64 and torch.is_autocast_enabled(kind)
    wanted = [torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in (x, weight, bias)]
    dtype = torch.get_autocast_dtype(kind) if cast else x.dtype
    loss, *_ = _linear_cross_entropy(x, weight, bias, targets, smoothing, agreement, chunk, dtype, *wanted)
    return loss


# One operator, so that a compiled model takes the loop over chunks as it is, and not unrolled for a count of tokens.
@torch.library.custom_op("regard::linear_cross_entropy", mutates_args=())
def _linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, agreement: float,
    chunk: int, dtype: torch.dtype, for_x: bool, for_weight: bool, for_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss, and the gradients that are wanted; the others have no elements. `x` is `(…, tokens, d_model)`."""
    tokens = x.shape[-2]
    wide = torch.promote_types(dtype, torch.float32)
    dx = x.new_empty(x.shape if for_x else 0)
    dweight = weight.new_zeros(weight.shape if for_weight and not tokens else 0, dtype=wide)  # the first product else
    dbias = weight.new_zeros(weight.shape[0] if for_bias else 0, dtype=wide)
    losses = x.new_empty(tokens, dtype=wide)
    with torch.autocast(x.device.type, enabled=False):
        matrix, offset = weight.to(dtype), None if bias is None else bias.to(dtype)
        for begin in range(0, tokens, chunk):
            part = slice(begin, begin + chunk)
            taken = x[..., part, :].to(dtype).flatten(0, -2)  # the chunk of one pass, or of both, one after the other
            gradient = F.linear(taken, matrix, offset)  # (rows, vocabulary); logits until the loss has been taken
            if x.dim() == 2:
                losses[part] = softmax_cross_entropy_(gradient, targets[part], smoothing)
            else:
                losses[part] = softmax_agreement_(gradient.unflatten(0, (2, -1)), targets[part], smoothing, agreement)
            if for_x:
                dx[..., part, :] = _product(gradient, matrix, x.dtype).unflatten(0, (*x.shape[:-2], -1))
            if for_weight:
                product = _product(gradient.T, taken, wide)
                dweight = dweight.add_(product) if begin else product
            if for_bias:
                dbias += gradient.sum(0, dtype=wide)
            del gradient  # before the next one is made
    return losses.sum(), dx, dweight, dbias


@_linear_cross_entropy.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, agreement: float,
    chunk: int, dtype: torch.dtype, for_x: bool, for_weight: bool, for_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    wide = torch.promote_types(dtype, torch.float32)
    return (
        x.new_empty((), dtype=wide),
        x.new_empty(x.shape if for_x else 0),
        weight.new_empty(weight.shape if for_weight else 0, dtype=wide),
        weight.new_empty(weight.shape[0] if for_bias else 0, dtype=wide),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, *_ = inputs
    ctx.save_for_backward(*output[1:])
    ctx.kinds = [None if tensor is None else tensor.dtype for tensor in (x, weight, bias)]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # zeros as large as the weight


def _scale(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    found: list[Tensor | None] = [None] * 11
    if grad is not None:
        for i, (gradient, kind) in enumerate(zip(ctx.saved_tensors, ctx.kinds, strict=True)):
            if ctx.needs_input_grad[i]:
                found[i] = (gradient * grad).to(kind)
    return tuple(found)


_linear_cross_entropy.register_autograd(_scale, setup_context=_keep)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """`a b` as `dtype`: a wider one keeps what the product's own sum has, which a rounded product would lose."""
    if a.dtype == dtype or torch.promote_types(a.dtype, dtype) != dtype:
        return (a @ b).to(dtype)
    if a.is_cuda and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=dtype)
    return a.to(dtype) @ b.to(dtype)
