"""Operators for training on a GPU: attention over packed rows, and the loss with its gradient in place. What stands
around the products, norms, activations and dropout, is in `fused.py`.

The kernels are in `triton_kernels.py`, which is imported when the first tensor for them arrives. Each is a custom
operator for `torch.compile`, and none waits for the device, so that all can be captured in a CUDA graph. With
`TRITON_INTERPRET=1` they run on a CPU, slowly: that is how they are tested.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ragged import Ragged

IGNORED = -100  # the target of a position that does not count, as in torch
WIDEST = 128  # head that attention takes
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_INSTALLED = importlib.util.find_spec("triton") is not None


class Spans(NamedTuple):
    """Which packed queries see which keys: query `m` sees keys `[key_begin[m], key_end[m])`, and key `n` is seen by
    queries `[query_begin[n], query_end[n])`, which are the same pairs. An empty interval sees nothing. All int32."""

    key_begin: Tensor  # (Tq,)
    key_end: Tensor  # (Tq,)
    query_begin: Tensor  # (Tk,)
    query_end: Tensor  # (Tk,)


def available(device: torch.device) -> bool:
    """Whether the kernels run there: on a GPU, where triton is installed."""
    return _INSTALLED and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")


def usable(x: Tensor) -> bool:
    """Whether the kernels take this tensor: where they run, in single or half precision."""
    return x.dtype in DTYPES and available(x.device)


def dense(x: Tensor) -> Tensor:
    """With the numbers of a head side by side, as the kernels read them. Tokens and heads may lie anywhere."""
    return x if x.stride(-1) == 1 else x.contiguous()


def spans(q: Ragged, k: Ragged, causal: bool) -> Spans:
    """Each row of queries sees its row of keys, in causal self-attention as far as the query itself; values that belong
    to no row see nothing."""
    (key_begin, key_end), (query_begin, query_end) = _bounds(q.row, k.offsets), _bounds(k.row, q.offsets)
    if causal:
        query_begin = torch.arange(k.row.shape[0], dtype=torch.int32, device=k.row.device)
        key_end = torch.minimum(query_begin + 1, key_end)
    return Spans(key_begin, key_end, query_begin, query_end)


def _bounds(row: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Where rows begin and end."""
    return offsets[row], offsets[(row + 1).clamp(max=offsets.shape[0] - 1)]


# Attention over packed rows: forward, backward, and their shapes for tracing.


def attend_spans(
    x: Tensor, memory: Tensor | None, key_begin: Tensor, key_end: Tensor, query_begin: Tensor, query_end: Tensor
) -> Tensor:
    """`softmax(q kᵀ / √d_head) v` over each query's interval of keys (Vaswani et al. 2017, eq. 1).

    Rows lie end to end: `x` `(Tq, 3, heads, d_head)` holds queries, keys and values, as one projection gives them; or
    with a `memory` `(Tk, 2, heads, d_head)` of keys and values it is `(Tq, 1, heads, d_head)`. The intervals are those
    of `Spans`. A query without keys yields zeros and zero gradients. Contexts are `(Tq, heads, d_head)`. Sums are in
    float32, memory grows with the tokens and not with their pairs, and every run gives the same bits.
    """
    return _attend(x, memory, key_begin, key_end, query_begin, query_end)[0]


@torch.library.custom_op("regard::attend_spans", mutates_args=())
def _attend(
    x: Tensor, memory: Tensor | None, key_begin: Tensor, key_end: Tensor, query_begin: Tensor, query_end: Tensor
) -> tuple[Tensor, Tensor]:
    _check(x, memory, Spans(key_begin, key_end, query_begin, query_end))
    from regard.nn import triton_kernels

    return triton_kernels.attend(*_parts(x, memory), key_begin, key_end)


@torch.library.custom_op("regard::attend_spans_backward", mutates_args=())
def _attend_backward(
    grad: Tensor, x: Tensor, memory: Tensor | None, context: Tensor, lse: Tensor,
    key_begin: Tensor, key_end: Tensor, query_begin: Tensor, query_end: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from regard.nn import triton_kernels

    dx, dmemory = _empty_gradients(x, memory)
    into = _parts(dx, None if memory is None else dmemory)
    intervals = (key_begin, key_end, query_begin, query_end)
    triton_kernels.attend_backward(
        dense(grad), *_parts(x, memory), context.contiguous(), lse.contiguous(), *intervals, *into
    )
    return dx, dmemory


def _parts(x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, `(total, heads, d_head)` each."""
    q, k, v = (*dense(x).unbind(1), *(() if memory is None else dense(memory).unbind(1)))
    return q, k, v


def _empty_gradients(x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0) if memory is None else memory.new_empty(memory.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, memory, *intervals = inputs
    ctx.save_for_backward(x, memory, *output, *intervals)
    ctx.set_materialize_grads(False)  # nothing asks for the gradient of the log-sum-exp


def _differentiate(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 6
    dx, dmemory = _attend_backward(grad, *ctx.saved_tensors)
    return (dx, None if ctx.saved_tensors[1] is None else dmemory, None, None, None, None)


_attend.register_autograd(_differentiate, setup_context=_save)
_attend.register_fake(  # no `len(x)`: that is a number, and what is compiled would be for it alone
    lambda x, *_: (x.new_empty(x[:, 0].shape), x.new_empty(x.shape[2], x.shape[0], dtype=torch.float32))
)
_attend_backward.register_fake(lambda grad, x, memory, *_: _empty_gradients(x, memory))


def _check(x: Tensor, memory: Tensor | None, intervals: Spans) -> None:
    """Kernels read past the end of what does not fit, so it has to be said before."""
    assert usable(x), f"attend_spans needs triton and a GPU in single or half precision, got {x.dtype} on {x.device}"
    parts, keys = (3, x) if memory is None else (1, memory)
    fits = x.dim() == 4 and x.shape[1] == parts
    assert fits, f"x should be (total, {parts}, heads, d_head), got {tuple(x.shape)}"
    if memory is not None:
        assert x.dtype == memory.dtype, f"queries and memory differ: {x.dtype}, {memory.dtype}"
        expected = (memory.shape[0], 2, *x.shape[2:])
        assert memory.shape == expected, f"memory should be {expected}, got {tuple(memory.shape)}"
    assert x.shape[3] <= WIDEST, f"d_head ({x.shape[3]}) should be at most {WIDEST}"
    for name, interval in intervals._asdict().items():
        total = (x if name.startswith("key") else keys).shape[0]
        assert interval.shape == (total,), f"{name} {tuple(interval.shape)} should be ({total},)"
        assert interval.dtype == torch.int32, f"{name} should be int32, got {interval.dtype}"
        assert interval.is_contiguous(), f"{name} should be contiguous"


# The loss, with its gradient in place of the logits


@torch.library.custom_op("regard::softmax_cross_entropy_", mutates_args=("logits",))
def softmax_cross_entropy_(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """The loss of each row `(tokens,)` in float32; `logits` `(tokens, vocabulary)` GIVE WAY TO ITS GRADIENT.

    `-(1 - ε) log p(target) - ε/V Σ_v log p(v)` with label smoothing ε (Szegedy et al. 2016), and in place of the logits
    `p - (1 - ε) onehot - ε/V`, in their dtype. A target of -100 does not count: loss and gradient are 0.
    """
    assert logits.dim() == 2, f"logits should be (tokens, vocabulary), got {tuple(logits.shape)}"
    assert logits.is_contiguous(), f"logits should be contiguous, got strides {logits.stride()}"
    assert targets.shape == logits.shape[:1], f"{logits.shape[0]} rows of logits, but targets {tuple(targets.shape)}"
    if not usable(logits):
        return _softmax_cross_entropy_plain_(logits, targets, smoothing)
    from regard.nn import triton_kernels

    return triton_kernels.softmax_losses_(logits, targets.contiguous(), smoothing, IGNORED)


@torch.library.custom_op("regard::softmax_agreement_", mutates_args=("logits",))
def softmax_agreement_(logits: Tensor, targets: Tensor, smoothing: float, agreement: float) -> Tensor:
    """The loss of each token in two passes `(2, tokens, vocabulary)` that should agree (R-Drop, Liang et al. 2021).

    It is the mean of both, and `α/4 (KL(p, q) + KL(q, p))` with α the `agreement`: `α/4 Σ_v (p - q) log p/q`. In place
    of the logits of `p` is half of their gradient, and `α/4 (p (log p/q - KL(p, q)) + p - q)`; so with `q`.
    """
    fits = logits.dim() == 3 and logits.shape[0] == 2
    assert fits, f"logits should be (2, tokens, vocabulary), got {tuple(logits.shape)}"
    assert logits.is_contiguous(), f"logits should be contiguous, got strides {logits.stride()}"
    assert targets.shape == logits.shape[1:2], f"{logits.shape[1]} rows of logits, but targets {tuple(targets.shape)}"
    if not usable(logits):
        return _softmax_agreement_plain_(logits, targets, smoothing, agreement)
    from regard.nn import triton_kernels

    return triton_kernels.softmax_losses_(logits, targets.contiguous(), smoothing, IGNORED, agreement)


for _loss in (softmax_cross_entropy_, softmax_agreement_):
    _loss.register_fake(
        lambda logits, *_: logits.new_empty(logits.shape[-2], dtype=torch.promote_types(logits.dtype, torch.float32))
    )


def _softmax_cross_entropy_plain_(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """`softmax_cross_entropy_` in torch: in place in full precision, with one wider copy in half."""
    counts = targets != IGNORED
    picked = targets.where(counts, 0)[:, None]
    kept, spread = 1.0 - smoothing, smoothing / logits.shape[1]
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))  # itself, if it is wide enough
    x -= x.amax(1, keepdim=True)
    losses = -kept * x.gather(1, picked).squeeze(1)
    if smoothing:
        losses -= spread * x.sum(1)
    total = x.exp_().sum(1)
    losses += total.log()
    x /= total[:, None]
    if smoothing:
        x -= spread
    x.scatter_add_(1, picked, x.new_full((), -kept).expand_as(picked))
    ignored = (~counts).nonzero().flatten()
    logits.copy_(x.index_fill_(0, ignored, 0))
    return losses.index_fill_(0, ignored, 0)


def _softmax_agreement_plain_(logits: Tensor, targets: Tensor, smoothing: float, agreement: float) -> Tensor:
    """`softmax_agreement_` in torch."""
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))  # itself, if it is wide enough
    log_p, log_q = x.log_softmax(-1)
    losses = _softmax_cross_entropy_plain_(x.flatten(0, 1), targets.repeat(2), smoothing).unflatten(0, (2, -1)).mean(0)
    p, q = log_p.exp(), log_q.exp()
    ratio = log_p.sub_(log_q).masked_fill_((p == 0) & (q == 0), 0)
    ahead, back = (p * ratio).sum(1, keepdim=True), (q * -ratio).sum(1, keepdim=True)  # KL(p, q), KL(q, p)
    further = torch.stack((p * (ratio - ahead) + p - q, q - p - q * (ratio + back)))
    ignored = targets == IGNORED
    logits.copy_(x.mul_(0.5).add_(further.masked_fill_(ignored[:, None], 0), alpha=agreement / 4))
    return losses.add_((ahead + back).squeeze(1).masked_fill_(ignored, 0), alpha=agreement / 4)
