"""What a step of a recurrent decoder does around its products, in Triton: a cell, and attention to the source.

Needs triton, so it is imported only when a tensor for it arrives. The kernels are bound by memory: each reads and
writes every number once. What the backward pass needs of a cell is worked out again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.triton_kernels import on_device, padded_width

BLOCK = 1024  # numbers of a state that a program makes
TILE = 8192  # numbers of keys, and as many of values, that a program holds at a time


def lstm(gates: Tensor, ahead: Tensor | None, cell: Tensor, hidden: Tensor, after: Tensor) -> None:
    """`recurrence.lstm` into `hidden` and `after` `(directions, rows, d_model)`, which lie as `cell` does."""
    _, rows, width = cell.shape
    with on_device(gates):
        _lstm[(triton.cdiv(cell.numel(), BLOCK),)](
            gates, gates if ahead is None else ahead, cell, hidden, after, cell.numel(), rows, gates.stride(0),
            cell.stride(0), width=width, added=ahead is not None, block=BLOCK,
        )  # fmt: skip


def lstm_backward(
    gates: Tensor, ahead: Tensor | None, cell: Tensor, dhidden: Tensor, dafter: Tensor, dgates: Tensor, dcell: Tensor,
    end: tuple[Tensor, Tensor, int] | None = None,
) -> None:  # fmt: skip
    """The gradients of gates, which lie as these do, and of the old cell, contiguous as `dafter` is.

    `end` is for rows that end with this step: the gradients of states and cells at the ends
    `(2, directions, rows, d_model)`, the rows' lengths, and this step's number from 1.
    """
    _, rows, width = cell.shape
    dend, lengths, step = (dafter, dafter, 0) if end is None else end
    with on_device(gates):
        _lstm_backward[(triton.cdiv(cell.numel(), BLOCK),)](
            gates, gates if ahead is None else ahead, cell, dhidden, dafter, dgates, dcell, dend, lengths, cell.numel(),
            rows, step, gates.stride(0), cell.stride(0), *dhidden.stride()[:2], width=width, added=ahead is not None,
            ending=end is not None, block=BLOCK,
        )  # fmt: skip


def gate(by: Tensor, x: Tensor, out: Tensor) -> None:
    """`mogrifier.gated` into `out`; all of one shape and contiguous."""
    with on_device(x):
        _gate_by[(triton.cdiv(x.numel(), BLOCK),)](by, x, out, x.numel(), block=BLOCK)


def gate_backward(by: Tensor, x: Tensor, dout: Tensor, dby: Tensor, dx: Tensor) -> None:
    """The gradients of both; all of one shape and contiguous."""
    with on_device(x):
        _gate_by_backward[(triton.cdiv(x.numel(), BLOCK),)](by, x, dout, dby, dx, x.numel(), block=BLOCK)


def step_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Contexts `(rows, heads, 1, d_head)`, and for the backward pass scores and their log-sum-exp."""
    rows, heads, source, d_head = keys.shape
    context = q.new_empty((rows, heads, 1, d_head))
    scores, sums = (q.new_empty((rows, heads, 1, size), dtype=torch.float32) for size in (source, 1))
    with on_device(q):
        _step_attention[(rows * heads,)](
            q, keys, values, mask, context, scores, sums, heads, source, *q.stride()[:2], *keys.stride()[:3],
            *values.stride()[:3], mask.stride(0), d_head=d_head, **_shape(d_head),
        )  # fmt: skip
    return context, scores, sums


def step_attention_backward(
    keys: Tensor, values: Tensor, context: Tensor, scores: Tensor, sums: Tensor, dcontext: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries and of scores, and the weights."""
    rows, heads, source, d_head = keys.shape
    dq, dscores, weights = (context.new_empty(like.shape) for like in (context, scores, scores))
    with on_device(keys):
        _step_attention_backward[(rows * heads,)](
            keys, values, context, scores, sums, dcontext, dq, dscores, weights, heads, source, *keys.stride()[:3],
            *values.stride()[:3], *dcontext.stride()[:2], d_head=d_head, **_shape(d_head),
        )  # fmt: skip
    return dq, dscores, weights


def _shape(d_head: int) -> dict[str, int]:
    d_tile = padded_width(d_head)
    return {"d_tile": d_tile, "tile": max(4, min(64, TILE // d_tile)), "num_warps": 4}


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _gate_by(by, x, out, total, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < total
    s = 2.0 * tl.sigmoid(tl.load(by + place, mask=inside, other=0.0).to(tl.float32))
    found = s * tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gate_by_backward(by, x, dout, dby, dx, total, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < total
    s = tl.sigmoid(tl.load(by + place, mask=inside, other=0.0).to(tl.float32))
    given = 2.0 * s * tl.load(dout + place, mask=inside, other=0.0).to(tl.float32)
    back = given * (1.0 - s) * tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx + place, given.to(dx.dtype.element_ty), mask=inside)
    tl.store(dby + place, back.to(dby.dtype.element_ty), mask=inside)


@triton.jit
def _gate(gates, ahead, first, inside, added: tl.constexpr):
    x = tl.load(gates + first, mask=inside, other=0.0).to(tl.float32)
    if added:
        x += tl.load(ahead + first, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _gates(gates, ahead, first, inside, width: tl.constexpr, added: tl.constexpr):
    i = tl.sigmoid(_gate(gates, ahead, first, inside, added))
    f = tl.sigmoid(_gate(gates, ahead, first + width, inside, added))
    g = _tanh(_gate(gates, ahead, first + 2 * width, inside, added))
    o = tl.sigmoid(_gate(gates, ahead, first + 3 * width, inside, added))
    return i, f, g, o


@triton.jit(do_not_specialize=["total", "rows"])
def _lstm(
    gates, ahead, cell, hidden, after, total, rows, gates_way, cell_way,
    width: tl.constexpr, added: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < total
    row, column = place // width, place % width
    way, row = (row // rows).to(tl.int64), row % rows
    first, own = way * gates_way + row * (4 * width) + column, way * cell_way + row * width + column
    i, f, g, o = _gates(gates, ahead, first, inside, width, added)
    c = f * tl.load(cell + own, mask=inside, other=0.0).to(tl.float32) + i * g
    tl.store(after + own, c.to(after.dtype.element_ty), mask=inside)
    tl.store(hidden + own, (o * _tanh(c)).to(hidden.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["total", "rows", "step"])
def _lstm_backward(
    gates, ahead, cell, dhidden, dafter, dgates, dcell, dend, lengths, total, rows, step, gates_way, cell_way,
    dhidden_way, dhidden_row, width: tl.constexpr, added: tl.constexpr, ending: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < total
    row, column = place // width, place % width
    way, row = (row // rows).to(tl.int64), row % rows
    first, own = way * gates_way + row * (4 * width) + column, way * cell_way + row * width + column
    i, f, g, o = _gates(gates, ahead, first, inside, width, added)
    before = tl.load(cell + own, mask=inside, other=0.0).to(tl.float32)
    c = _tanh(f * before + i * g)
    dh = tl.load(dhidden + way * dhidden_way + row * dhidden_row + column, mask=inside, other=0.0).to(tl.float32)
    dc = tl.load(dafter + place, mask=inside, other=0.0).to(tl.float32)
    if ending:
        last = inside & (tl.load(lengths + row, mask=inside, other=0) == step)
        dh += tl.load(dend + place, mask=last, other=0.0).to(tl.float32)
        dc += tl.load(dend + total + place, mask=last, other=0.0).to(tl.float32)
    dc += dh * o * (1.0 - c * c)
    kind = dgates.dtype.element_ty
    tl.store(dgates + first, (dc * g * i * (1.0 - i)).to(kind), mask=inside)
    tl.store(dgates + first + width, (dc * before * f * (1.0 - f)).to(kind), mask=inside)
    tl.store(dgates + first + 2 * width, (dc * i * (1.0 - g * g)).to(kind), mask=inside)
    tl.store(dgates + first + 3 * width, (dh * c * o * (1.0 - o)).to(kind), mask=inside)
    tl.store(dcell + place, (dc * f).to(dcell.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["heads", "source"])
def _step_attention(
    q, keys, values, mask, context, scores, sums, heads, source, q_row, q_head, k_row, k_head, k_place,
    v_row, v_head, v_place, mask_row, d_head: tl.constexpr, d_tile: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """One row of one head, a tile of places at a time."""
    number = tl.program_id(0).to(tl.int64)
    row, head = number // heads, number % heads
    columns = tl.arange(0, d_tile)
    wide = columns < d_head
    query = tl.load(q + row * q_row + head * q_head + columns, mask=wide, other=0.0).to(tl.float32)
    key_at, value_at = keys + row * k_row + head * k_head, values + row * v_row + head * v_head
    top = float("-inf")
    weight = 0.0
    mixed = tl.zeros((d_tile,), tl.float32)
    for first in range(0, source, tile):
        places = first + tl.arange(0, tile)
        there = tl.load(mask + row * mask_row + places, mask=places < source, other=0) != 0
        both = there[:, None] & wide[None, :]
        key = tl.load(key_at + places[:, None] * k_place + columns[None, :], mask=both, other=0.0).to(tl.float32)
        value = tl.load(value_at + places[:, None] * v_place + columns[None, :], mask=both, other=0.0).to(tl.float32)
        score = tl.where(there, tl.sum(key * query[None, :], axis=1), float("-inf"))
        tl.store(scores + number * source + places, score, mask=places < source)
        higher = tl.maximum(top, tl.max(score, axis=0))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp(score - finite)
        shrink = tl.exp(top - finite)
        weight = weight * shrink + tl.sum(p, axis=0)
        mixed = mixed * shrink + tl.sum(p[:, None] * value, axis=0)
        top = higher
    nowhere = weight == 0.0  # what may look nowhere sees zeros
    weight = tl.where(nowhere, 1.0, weight)
    tl.store(sums + number, tl.where(nowhere, 0.0, top + tl.log(weight)))
    tl.store(context + number * d_head + columns, (mixed / weight).to(context.dtype.element_ty), mask=wide)


@triton.jit(do_not_specialize=["heads", "source"])
def _step_attention_backward(
    keys, values, context, scores, sums, dcontext, dq, dscores, weights, heads, source, k_row, k_head, k_place,
    v_row, v_head, v_place, dc_row, dc_head, d_head: tl.constexpr, d_tile: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """`ds = w (dw - Σ w dw)`, where the sum is the product of the context and its gradient."""
    number = tl.program_id(0).to(tl.int64)
    row, head = number // heads, number % heads
    columns = tl.arange(0, d_tile)
    wide = columns < d_head
    key_at, value_at = keys + row * k_row + head * k_head, values + row * v_row + head * v_head
    mixed = tl.load(context + number * d_head + columns, mask=wide, other=0.0).to(tl.float32)
    grad = tl.load(dcontext + row * dc_row + head * dc_head + columns, mask=wide, other=0.0).to(tl.float32)
    mean, total = tl.sum(mixed * grad, axis=0), tl.load(sums + number)
    back = tl.zeros((d_tile,), tl.float32)
    for first in range(0, source, tile):
        places = first + tl.arange(0, tile)
        own = number * source + places
        score = tl.load(scores + own, mask=places < source, other=float("-inf"))
        weight = tl.exp(score - total)
        both = (score > float("-inf"))[:, None] & wide[None, :]
        key = tl.load(key_at + places[:, None] * k_place + columns[None, :], mask=both, other=0.0).to(tl.float32)
        value = tl.load(value_at + places[:, None] * v_place + columns[None, :], mask=both, other=0.0).to(tl.float32)
        ds = weight * (tl.sum(value * grad[None, :], axis=1) - mean)
        tl.store(dscores + own, ds.to(dscores.dtype.element_ty), mask=places < source)
        tl.store(weights + own, weight.to(weights.dtype.element_ty), mask=places < source)
        back += tl.sum(ds[:, None] * key, axis=0)
    tl.store(dq + number * d_head + columns, back.to(dq.dtype.element_ty), mask=wide)
