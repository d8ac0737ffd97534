"""A step of decoding in Triton: one query a row over a cache whose slots lie anywhere.

Needs triton, so it is imported only when a tensor for it arrives.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor


def recall(q: Tensor, cache: Tensor, places: Tensor, seen: Tensor | None, taken: Tensor, warps: int = 1) -> Tensor:
    """Contexts `(rows, heads, d_head)`; see `kernels.recall`."""
    rows, heads, d_head = q.shape
    context = q.new_empty(q.shape)
    window = places.shape[1]
    with torch.cuda.device(q.device) if q.is_cuda else nullcontext():
        _recall[(rows * heads,)](
            q, cache, places, places if seen is None else seen, taken, context, heads, window, q.stride(0), q.stride(1),
            scale=d_head**-0.5, masked=seen is not None, d_head=d_head,
            d_tile=max(16, int(triton.next_power_of_2(d_head))), tile=16, num_warps=warps,
        )  # fmt: skip
    return context


@triton.jit(do_not_specialize=["heads", "window"])
def _recall(
    q, cache, places, seen, taken, context, heads, window, q_row, q_head,
    scale: tl.constexpr, masked: tl.constexpr, d_head: tl.constexpr, d_tile: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """One row of one head, over the slots that are taken."""
    row = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    columns = tl.arange(0, d_tile)
    inside = columns < d_head
    query = tl.load(q + row.to(tl.int64) * q_row + head * q_head + columns, mask=inside, other=0.0).to(tl.float32)
    count = tl.load(taken).to(tl.int32)
    top = float("-inf")
    weight = 0.0
    mixed = tl.zeros((d_tile,), tl.float32)
    for first in range(0, count, tile):
        slots = first + tl.arange(0, tile)
        there = slots < count
        if masked:
            there = there & (tl.load(seen + row * window + slots, mask=there, other=0) != 0)
        place = tl.load(places + row * window + slots, mask=slots < count, other=0).to(tl.int64)
        begin = cache + (place * 2 * heads + head) * d_head
        mask = there[:, None] & inside[None, :]
        key = tl.load(begin[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.load(begin[:, None] + heads * d_head + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(there, tl.sum(key * query[None, :], axis=1) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=0))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp(scores - finite)
        shrink = tl.exp(top - finite)
        weight = weight * shrink + tl.sum(p, axis=0)
        mixed = mixed * shrink + tl.sum(p[:, None] * value, axis=0)
        top = higher
    mixed = mixed / tl.where(weight == 0.0, 1.0, weight)
    tl.store(
        context + (row.to(tl.int64) * heads + head) * d_head + columns, mixed.to(context.dtype.element_ty), mask=inside
    )
