"""The CTC loss over packed rows, as one operator for training on a GPU: torch's own wants padded rows, and their
lengths on the CPU.

The kernels are in `triton_ctc.py`. As with those of `kernels.py`, nothing waits for the device and every launch follows
from shapes and Python numbers, so that a CUDA graph of it stays right when rows and values change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.nn.kernels import usable

MOST = 1023  # tokens of a row: 2,047 states, which one program holds


def takes(x: Tensor, longest: int) -> bool:
    """Whether the operator takes logits made of `x`, for rows of so many tokens."""
    return usable(x) and longest <= MOST


def ctc_loss(
    logits: Tensor, times: Tensor, targets: Tensor, labels: Tensor, longest: int, blank: int, ends: int = 1
) -> Tensor:
    """`Σ -log p(y given x)` over all rows of `ctc_loss_`, with a gradient. The logits give way to theirs, so nothing
    else may read them; there is no second derivative."""
    loss, _ = _Sum.apply(logits, times, targets, labels, longest, blank, ends)
    return loss


class _Sum(torch.autograd.Function):
    """An operator that writes into what it is given cannot have a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        losses = ctc_loss_(logits, *given)
        ctx.mark_dirty(logits)
        ctx.save_for_backward(logits)
        ctx.set_materialize_grads(False)
        return losses.sum(), logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (None if grad is None else gradient * grad, *[None] * 6)


@torch.library.custom_op("regard::ctc_loss_", mutates_args=("logits",))
def ctc_loss_(
    logits: Tensor, times: Tensor, targets: Tensor, labels: Tensor, longest: int, blank: int, ends: int = 1
) -> Tensor:
    """`-log p(y given x)` of each row `(rows,)` in float32 (Graves et al. 2006, eq. 14); `logits` `(total, vocabulary)`
    GIVE WAY TO ITS GRADIENT, `softmax - share of the token in all paths` (eq. 16), in their dtype.

    Row `i` has times `[times[i], times[i + 1])` of the logits and tokens `[labels[i], labels[i + 1])` of the targets,
    without the last `ends`: those of Regard end with `</s>`, which no path names. What no path may name has a logit of
    -1e30 or less. A row without tokens is all blanks. One that no path reads, as it is too long for its times, costs
    nothing and has no gradient, nor have times behind the last row. `longest` is a bound on the tokens of a row; a row
    with more of them, and one with a token that is a blank or outside of the vocabulary, shows as a loss that is NaN.

    Every run gives the same bits. Beside the logits it takes 4 bytes for each time and state, where states are twice
    the power of 2 above `longest`: 16 MB for 64,000 hops, of which 4 are a time, and 256 states.
    """
    _check(logits, times, targets, labels, longest, blank)
    from regard.nn import triton_ctc

    return triton_ctc.ctc_losses_(logits, times, targets.contiguous(), labels, longest, blank, ends)


@ctc_loss_.register_fake
def _(logits: Tensor, times: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(times.shape[0] - 1, dtype=torch.float32)


def _check(logits: Tensor, times: Tensor, targets: Tensor, labels: Tensor, longest: int, blank: int) -> None:
    """Kernels read past the end of what does not fit, so it has to be said before."""
    kind = f"{logits.dtype} on {logits.device}"
    assert usable(logits), f"ctc_loss_ needs triton and a GPU in single or half precision, got {kind}"
    assert logits.dim() == 2, f"logits should be (total, vocabulary), got {tuple(logits.shape)}"
    assert logits.is_contiguous(), f"logits should be contiguous, got strides {logits.stride()}"
    assert targets.dim() == 1, f"targets should be (tokens,), got {tuple(targets.shape)}"
    for name, offsets in (("times", times), ("labels", labels)):
        assert offsets.dim() == 1, f"{name} should be (rows + 1,), got {tuple(offsets.shape)}"
        assert offsets.dtype == torch.int32, f"{name} should be int32, got {offsets.dtype}"
        assert offsets.is_contiguous(), f"{name} should be contiguous"
    rows = times.shape[0] - 1
    assert labels.shape == times.shape, f"times are of {rows} rows, but labels of {labels.shape[0] - 1}"
    assert 0 <= longest <= MOST, f"longest ({longest}) should be from 0 to {MOST}"
    assert 0 <= blank < logits.shape[1], f"blank ({blank}) should be below the vocabulary ({logits.shape[1]})"
