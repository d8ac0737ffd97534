"""The kernels of `regard.nn.kernels` in Triton. Needs triton, so it is imported only when a tensor for it arrives.

Attention works tile by tile and never holds all scores, as in Dao (2023), "FlashAttention-2". What differs is the mask:
each query brings the interval of its keys. A tile of queries may then hold several sentences, and reads the keys from
the first to the last that any of its queries sees. Sentences much shorter than a tile so share one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)  # exp2 is one instruction, so scores are brought to base 2


class Tiles(NamedTuple):
    """How an attention kernel is cut: queries and keys of a tile, warps of a program, depth of the loop's pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


class Plan(NamedTuple):
    """Tiles of the three attention kernels."""

    forward: Tiles
    dq: Tiles
    dkv: Tiles


# By bytes of a number and the greatest padded width of a head. A tile's longer side is 64, which fills a tensor core
# instruction of Hopper; the side of the loop is 32, which keeps registers free for more programs at a time and wastes
# less at the ends of short sentences. Of those that `python -m benchmarks kernels` tries, these were the best on an
# H200 for heads of 64, for sentences of 24 tokens as for rows of 8,192 (where others came within 7 %). In full
# precision tensor cores are not used, and tiles have to be small.
PLANS = {
    (2, 64): Plan(forward=Tiles(64, 32, 4, 3), dq=Tiles(64, 32, 4, 3), dkv=Tiles(32, 64, 4, 3)),
    (2, 128): Plan(forward=Tiles(64, 32, 4, 2), dq=Tiles(64, 32, 4, 2), dkv=Tiles(32, 64, 4, 2)),
    (4, 64): Plan(forward=Tiles(32, 32, 8, 1), dq=Tiles(32, 32, 8, 1), dkv=Tiles(32, 32, 8, 1)),
    (4, 128): Plan(forward=Tiles(32, 16, 8, 1), dq=Tiles(32, 16, 8, 1), dkv=Tiles(32, 32, 8, 1)),
}


def plan(q: Tensor) -> Plan:
    """The tiles for these queries `(total, heads, d_head)`."""
    return PLANS[q.element_size(), 64 if padded_width(q.shape[2]) <= 64 else 128]


def attend(
    q: Tensor, k: Tensor, v: Tensor, key_begin: Tensor, key_end: Tensor, tiles: Tiles | None = None
) -> tuple[Tensor, Tensor]:
    """Contexts `(Tq, heads, d_head)`, and the log-sum-exp of each query's scaled scores in base 2, `(heads, Tq)`."""
    total, heads, d_head = q.shape
    context, lse = q.new_empty(q.shape), q.new_empty((heads, total), dtype=torch.float32)
    cut = tiles or plan(q).forward
    with on_device(q):
        _attend[_grid(total, cut.queries, heads)](
            q, k, v, key_begin, key_end, context, lse, total, heads,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), **_shape(d_head, cut),
        )  # fmt: skip
    return context, lse


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Tensor, lse: Tensor,
    key_begin: Tensor, key_end: Tensor, query_begin: Tensor, query_end: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    tiles: Plan | None = None,
) -> None:  # fmt: skip
    """Put the gradients of queries, keys and values into `dq`, `dk` and `dv`, where tokens may lie anywhere, and heads
    side by side. Every run gives the same."""
    total, heads, d_head = q.shape
    delta = torch.empty_like(lse)
    cuts = tiles or plan(q)
    strides = [x.stride(axis) for x in (q, k, v, grad) for axis in (0, 1)]
    with on_device(q):
        _backward_queries[_grid(total, cuts.dq.queries, heads)](
            q, k, v, context, grad, lse, delta, key_begin, key_end, dq, total, heads, *strides, dq.stride(0),
            **_shape(d_head, cuts.dq),
        )  # fmt: skip
        _backward_keys[_grid(k.shape[0], cuts.dkv.keys, heads)](
            q, k, v, grad, lse, delta, query_begin, query_end, dk, dv, total, k.shape[0], heads, *strides,
            dk.stride(0), dv.stride(0), **_shape(d_head, cuts.dkv),
        )  # fmt: skip


def softmax_losses_(
    logits: Tensor, targets: Tensor, smoothing: float, ignored: int, agreement: float | None = None, block: int = 8192,
    warps: int | None = None,
) -> Tensor:  # fmt: skip
    """Losses `(tokens,)`; the logits `(tokens, vocabulary)`, or with an `agreement` those of two passes `(2, tokens,
    vocabulary)`, give way to their gradients. Programs are large so that few rows are on the way at a time: the second
    pass then finds them in the cache."""
    kernel, more = (_cross_entropy, ()) if agreement is None else (_agreement, (agreement / 4,))
    warps = warps or (8 if agreement is None else 16)
    tokens, vocabulary = logits.shape[-2:]
    losses = logits.new_empty(tokens, dtype=torch.float32)
    if tokens:
        block = min(block, triton.next_power_of_2(vocabulary))
        with on_device(logits):
            kernel[(tokens,)](
                logits, targets, losses, vocabulary, 1.0 - smoothing, smoothing / vocabulary, *more,
                smoothed=smoothing > 0, ignored=ignored, block=block, num_warps=max(1, min(warps, block // 256)),
            )  # fmt: skip
    return losses


def padded_width(d_head: int) -> int:
    """The power of 2 that holds a head; a tensor core takes at least 16."""
    return max(16, int(triton.next_power_of_2(d_head)))


def _shape(d_head: int, cut: Tiles) -> dict[str, Any]:
    """Compile-time arguments of an attention kernel."""
    return {
        "scale": d_head**-0.5, "d_head": d_head, "d_tile": padded_width(d_head), "tile_q": cut.queries,
        "tile_k": cut.keys, "num_warps": cut.warps, "num_stages": cut.stages,
    }  # fmt: skip


def _grid(total: int, tile: int, heads: int) -> tuple[int]:
    """One program for each tile and head; at least one, for a grid cannot be empty."""
    return (max(triton.cdiv(total, tile), 1) * heads,)


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@triton.jit
def _load(base, rows, stride, there, d_head: tl.constexpr, d_tile: tl.constexpr):
    """Rows of a head, `(rows, d_tile)`; zeros where a row is not there, and past the head's width."""
    columns = tl.arange(0, d_tile)
    mask = there[:, None]
    if d_head < d_tile:
        mask = mask & (columns < d_head)[None, :]
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _store(base, rows, stride, there, tile, d_head: tl.constexpr, d_tile: tl.constexpr):
    """The inverse of `_load`, rounded to what is stored."""
    columns = tl.arange(0, d_tile)
    mask = there[:, None]
    if d_head < d_tile:
        mask = mask & (columns < d_head)[None, :]
    tl.store(base + rows[:, None] * stride + columns[None, :], tile.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _reach(begin, end):
    """The first place that any interval of a tile holds, and the place after the last; empty intervals do not count.
    Where all are empty both are 0: a great number as the beginning would wrap around in the loop's prefetches."""
    high = tl.max(tl.where(end > begin, end, 0), axis=0)
    low = tl.min(tl.where(end > begin, begin, 2147483647), axis=0)
    return tl.minimum(low, high), high


@triton.jit(do_not_specialize=["total", "heads"])
def _attend(
    q, k, v, begin, end, context, lse, total, heads, q_token, q_head, k_token, k_head, v_token, v_head,
    scale: tl.constexpr, d_head: tl.constexpr, d_tile: tl.constexpr, tile_q: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head; heads of the same tokens run side by side, as they lie in memory."""
    head = tl.program_id(0) % heads
    first = (tl.program_id(0) // heads) * tile_q
    rows = tl.arange(0, tile_q)
    columns = tl.arange(0, tile_k)
    there = first + rows < total
    start = tl.load(begin + first + rows, mask=there, other=0)
    stop = tl.load(end + first + rows, mask=there, other=0)
    low, high = _reach(start, stop)
    # Offsets of whole tensors are in 64 bits, those within a tile in 32.
    place = first.to(tl.int64)
    query = _load(q + place * q_token + head * q_head, rows, q_token, there, d_head, d_tile)
    key_at = k + low.to(tl.int64) * k_token + head * k_head
    value_at = v + low.to(tl.int64) * v_token + head * v_head

    top = tl.full((tile_q,), float("-inf"), tl.float32)  # greatest score so far
    weight = tl.zeros((tile_q,), tl.float32)  # Σ exp(score - top) so far
    mixed = tl.zeros((tile_q, d_tile), tl.float32)  # Σ exp(score - top) value so far
    for at in range(low, high, tile_k):
        keys = at + columns
        key = _load(key_at, columns, k_token, keys < high, d_head, d_tile)
        value = _load(value_at, columns, v_token, keys < high, d_head, d_tile)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")  # (tile_q, tile_k)
        seen = (keys[None, :] >= start[:, None]) & (keys[None, :] < stop[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # a query that has seen nothing yet: -inf - -inf is NaN
        p = tl.exp2(scores * (scale * LOG2E) - (finite * (scale * LOG2E))[:, None])
        shrink = tl.exp2((top - finite) * (scale * LOG2E))
        weight = weight * shrink + tl.sum(p, axis=1)
        mixed = tl.dot(p.to(value.dtype), value, mixed * shrink[:, None], input_precision="ieee")
        top = higher
        key_at += tile_k * k_token
        value_at += tile_k * v_token

    empty = weight == 0.0
    weight = tl.where(empty, 1.0, weight)
    _store(
        context + (place * heads + head) * d_head, rows, heads * d_head, there, mixed / weight[:, None], d_head, d_tile
    )
    # Infinity for a query without keys: exp2(score - inf) is a weight of 0 in the backward pass.
    total_score = tl.where(empty, float("inf"), top * (scale * LOG2E) + tl.log2(weight))
    tl.store(lse + head * total + first + rows, total_score, mask=there)


@triton.jit(do_not_specialize=["total", "heads"])
def _backward_queries(
    q, k, v, context, grad, lse, delta, begin, end, dq, total, heads,
    q_token, q_head, k_token, k_head, v_token, v_head, g_token, g_head, dq_token,
    scale: tl.constexpr, d_head: tl.constexpr, d_tile: tl.constexpr, tile_q: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """`dq = scale Σ_n ds k`, with `ds = p (do·v - δ)` and `δ = do·o`, which it keeps for `_backward_keys`."""
    head = tl.program_id(0) % heads
    first = (tl.program_id(0) // heads) * tile_q
    rows = tl.arange(0, tile_q)
    columns = tl.arange(0, tile_k)
    there = first + rows < total
    start = tl.load(begin + first + rows, mask=there, other=0)
    stop = tl.load(end + first + rows, mask=there, other=0)
    low, high = _reach(start, stop)
    place = first.to(tl.int64)
    query = _load(q + place * q_token + head * q_head, rows, q_token, there, d_head, d_tile)
    grads = _load(grad + place * g_token + head * g_head, rows, g_token, there, d_head, d_tile)
    mixed = _load(context + (place * heads + head) * d_head, rows, heads * d_head, there, d_head, d_tile)
    total_score = tl.load(lse + head * total + first + rows, mask=there, other=0.0)
    along = tl.sum(grads.to(tl.float32) * mixed.to(tl.float32), axis=1)  # δ
    tl.store(delta + head * total + first + rows, along, mask=there)

    key_at = k + low.to(tl.int64) * k_token + head * k_head
    value_at = v + low.to(tl.int64) * v_token + head * v_head
    result = tl.zeros((tile_q, d_tile), tl.float32)
    for at in range(low, high, tile_k):
        keys = at + columns
        key = _load(key_at, columns, k_token, keys < high, d_head, d_tile)
        value = _load(value_at, columns, v_token, keys < high, d_head, d_tile)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")  # (tile_q, tile_k)
        seen = (keys[None, :] >= start[:, None]) & (keys[None, :] < stop[:, None])
        p = tl.exp2(tl.where(seen, scores * (scale * LOG2E) - total_score[:, None], float("-inf")))
        dp = tl.dot(grads, tl.trans(value), input_precision="ieee")
        ds = p * (dp - along[:, None])
        result = tl.dot(ds.to(key.dtype), key, result, input_precision="ieee")
        key_at += tile_k * k_token
        value_at += tile_k * v_token
    _store(dq + place * dq_token + head * d_head, rows, dq_token, there, result * scale, d_head, d_tile)


@triton.jit(do_not_specialize=["total_q", "total_k", "heads"])
def _backward_keys(
    q, k, v, grad, lse, delta, begin, end, dk, dv, total_q, total_k, heads,
    q_token, q_head, k_token, k_head, v_token, v_head, g_token, g_head, dk_token, dv_token,
    scale: tl.constexpr, d_head: tl.constexpr, d_tile: tl.constexpr, tile_q: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """`dv = Σ_m p do` and `dk = scale Σ_m ds q`: one tile of keys of one head, over the queries that see it."""
    head = tl.program_id(0) % heads
    first = (tl.program_id(0) // heads) * tile_k
    rows = tl.arange(0, tile_k)
    columns = tl.arange(0, tile_q)
    there = first + rows < total_k
    start = tl.load(begin + first + rows, mask=there, other=0)
    stop = tl.load(end + first + rows, mask=there, other=0)
    low, high = _reach(start, stop)
    place = first.to(tl.int64)
    key = _load(k + place * k_token + head * k_head, rows, k_token, there, d_head, d_tile)
    value = _load(v + place * v_token + head * v_head, rows, v_token, there, d_head, d_tile)

    query_at = q + low.to(tl.int64) * q_token + head * q_head
    grad_at = grad + low.to(tl.int64) * g_token + head * g_head
    key_sum = tl.zeros((tile_k, d_tile), tl.float32)
    value_sum = tl.zeros((tile_k, d_tile), tl.float32)
    for at in range(low, high, tile_q):
        queries = at + columns
        query = _load(query_at, columns, q_token, queries < high, d_head, d_tile)
        grads = _load(grad_at, columns, g_token, queries < high, d_head, d_tile)
        total_score = tl.load(lse + head * total_q + queries, mask=queries < high, other=0.0)
        along = tl.load(delta + head * total_q + queries, mask=queries < high, other=0.0)
        scores = tl.dot(key, tl.trans(query), input_precision="ieee")  # (tile_k, tile_q)
        seen = (queries[None, :] >= start[:, None]) & (queries[None, :] < stop[:, None])
        p = tl.exp2(tl.where(seen, scores * (scale * LOG2E) - total_score[None, :], float("-inf")))
        value_sum = tl.dot(p.to(grads.dtype), grads, value_sum, input_precision="ieee")
        dp = tl.dot(value, tl.trans(grads), input_precision="ieee")
        ds = p * (dp - along[None, :])
        key_sum = tl.dot(ds.to(query.dtype), query, key_sum, input_precision="ieee")
        query_at += tile_q * q_token
        grad_at += tile_q * g_token
    _store(dk + place * dk_token + head * d_head, rows, dk_token, there, key_sum * scale, d_head, d_tile)
    _store(dv + place * dv_token + head * d_head, rows, dv_token, there, value_sum, d_head, d_tile)


@triton.jit
def _erase(logits, vocabulary, block: tl.constexpr):
    """Zeros over a row."""
    columns = tl.arange(0, block)
    for at in range(0, vocabulary, block):
        zeros = tl.zeros((block,), tl.float32).to(logits.dtype.element_ty)
        tl.store(logits + at + columns, zeros, mask=at + columns < vocabulary)


@triton.jit
def _measure(logits, target, vocabulary, kept, spread, smoothed: tl.constexpr, block: tl.constexpr):
    """Of a row its loss, its greatest logit, and log2 of `Σ exp(x - top)`."""
    columns = tl.arange(0, block)
    # Read before anything is overwritten. A target outside of the vocabulary shows as a loss that is not a number.
    inside = (target >= 0) & (target < vocabulary)
    wanted = tl.load(logits + target, mask=inside, other=float("nan")).to(tl.float32)
    top = float("-inf")
    total = 0.0  # Σ exp(x - top)
    plain = 0.0  # Σ x
    for at in range(0, vocabulary, block):
        here = at + columns < vocabulary
        x = tl.load(logits + at + columns, mask=here, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=0))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp2((top - finite) * LOG2E) + tl.sum(tl.exp2((x - finite) * LOG2E), axis=0)
        if smoothed:
            plain += tl.sum(tl.where(here, x, 0.0), axis=0)
        top = higher
    # All from the greatest logit on: rounded sums of great numbers would show in small differences.
    size = tl.log2(total)
    loss = size / LOG2E + kept * (top - wanted)
    if smoothed:
        loss += spread * (vocabulary * top - plain)
    return loss, top, size


@triton.jit
def _cross_entropy(
    logits, targets, losses, vocabulary, kept, spread,
    smoothed: tl.constexpr, ignored: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One row: its sum of exponentials and its loss in a first pass, its gradient over the logits in a second. The
    target is worth `kept`, and every word of the vocabulary `spread`."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocabulary
    target = tl.load(targets + row).to(tl.int32)
    if target == ignored:
        tl.store(losses + row, 0.0)
        _erase(logits, vocabulary, block)
    else:
        loss, top, size = _measure(logits, target, vocabulary, kept, spread, smoothed, block)
        tl.store(losses + row, loss)
        columns = tl.arange(0, block)
        for at in range(0, vocabulary, block):
            here = at + columns < vocabulary
            x = tl.load(logits + at + columns, mask=here, other=float("-inf")).to(tl.float32)
            p = tl.exp2((x - top) * LOG2E - size)
            gradient = tl.where(at + columns == target, p - kept, p) - spread
            tl.store(logits + at + columns, gradient.to(logits.dtype.element_ty), mask=here)


@triton.jit
def _compare(one, other, here, top_p, size_p, top_q, size_q, shift):
    """What two passes say of a block of words: `p`, `q` and `log p/q`, which is some number where both are 0. `shift`
    is how much greater `log Σ exp` of the logits of `p` is than that of `q`."""
    x = tl.load(one, mask=here, other=float("-inf")).to(tl.float32)
    y = tl.load(other, mask=here, other=float("-inf")).to(tl.float32)
    p = tl.exp2((x - top_p) * LOG2E - size_p)
    q = tl.exp2((y - top_q) * LOG2E - size_q)
    never = (p == 0.0) & (q == 0.0)
    return p, q, tl.where(never, 0.0, x) - tl.where(never, 0.0, y) - shift


@triton.jit
def _agreement(
    logits, targets, losses, vocabulary, kept, spread, weight,
    smoothed: tl.constexpr, ignored: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The two rows of a token: their sums of exponentials in a first pass, how far they are apart in a second, their
    gradients over the logits in a third.

    As in `_cross_entropy`, half for each row; and `weight` for `KL(p, q) + KL(q, p)`.
    """
    row = tl.program_id(0)
    one = logits + row.to(tl.int64) * vocabulary
    other = logits + (row + tl.num_programs(0)).to(tl.int64) * vocabulary  # all of the first pass lies before
    target = tl.load(targets + row).to(tl.int32)
    if target == ignored:
        tl.store(losses + row, 0.0)
        _erase(one, vocabulary, block)
        _erase(other, vocabulary, block)
    else:
        loss_p, top_p, size_p = _measure(one, target, vocabulary, kept, spread, smoothed, block)
        loss_q, top_q, size_q = _measure(other, target, vocabulary, kept, spread, smoothed, block)
        shift = top_p - top_q + (size_p - size_q) / LOG2E
        columns = tl.arange(0, block)
        apart = 0.0  # KL(p, q) + KL(q, p), of which no part is below 0
        ahead = 0.0  # KL(p, q)
        for at in range(0, vocabulary, block):
            here = at + columns < vocabulary
            p, q, ratio = _compare(one + at + columns, other + at + columns, here, top_p, size_p, top_q, size_q, shift)
            apart += tl.sum((p - q) * ratio, axis=0)
            ahead += tl.sum(p * ratio, axis=0)
        tl.store(losses + row, 0.5 * (loss_p + loss_q) + weight * apart)
        back = apart - ahead  # KL(q, p)
        for at in range(0, vocabulary, block):
            here = at + columns < vocabulary
            p, q, ratio = _compare(one + at + columns, other + at + columns, here, top_p, size_p, top_q, size_q, shift)
            aim = tl.where(at + columns == target, kept, 0.0) + spread
            dp = 0.5 * (p - aim) + weight * (p * (ratio - ahead) + p - q)
            dq = 0.5 * (q - aim) + weight * (q - p - q * (ratio + back))
            tl.store(one + at + columns, dp.to(logits.dtype.element_ty), mask=here)
            tl.store(other + at + columns, dq.to(logits.dtype.element_ty), mask=here)
