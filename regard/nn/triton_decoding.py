"""A step of decoding in Triton: one query a row over a cache whose slots lie anywhere, and a few over a source. Needs
triton, so it is imported only when a tensor for it arrives."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels import dense
from regard.nn.triton_kernels import on_device, padded_width


def embed(tokens: Tensor, table: Tensor, scale: float, position: Tensor, frequencies: Tensor) -> Tensor:
    """`scale · table[token] + P_position` with sinusoidal positions (Vaswani et al. 2017, 3.5), `(tokens, d_model)`,
    without a gradient. `position` is `(tokens,)`, or `(1,)` where all stand at the same."""
    width, step = table.shape[1], position.stride(0) if len(position) > 1 else 0
    vectors = table.new_empty(len(tokens), width)
    with on_device(table):
        _embed[(len(tokens),)](
            tokens, table, position, frequencies, vectors, tokens.stride(0), table.stride(0), step,
            scale=scale, width=width, tile=int(triton.next_power_of_2(width)), num_warps=1,
        )  # fmt: skip
    return vectors


@triton.jit(do_not_specialize=["token_row", "table_row", "position_row"])
def _embed(
    tokens, table, position, frequencies, vectors, token_row, table_row, position_row,
    scale: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """One token."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, tile)
    inside = columns < width
    token = tl.load(tokens + row * token_row).to(tl.int64)
    angle = tl.load(position + row * position_row).to(tl.float32) * tl.load(
        frequencies + columns // 2, mask=inside, other=0.0
    )
    x = tl.load(table + token * table_row + columns, mask=inside, other=0.0).to(tl.float32) * scale
    x += tl.where(columns % 2 == 0, tl.sin(angle), tl.cos(angle))
    tl.store(vectors + row * width + columns, x.to(vectors.dtype.element_ty), mask=inside)


def cached_self_attention(
    q: Tensor, k: Tensor, v: Tensor, cache: Tensor, origin: Tensor, seen: Tensor | None, at: Tensor, warps: int = 1
) -> Tensor:
    """`softmax(q kᵀ / √d_head) v` of one new position a row, `(rows, heads, d_head)`, over itself and its past.

    `cache` `(rows, slots, 2, heads, d_head)` holds keys and values of the past; those of the new position are put into
    slot `at` `(1,)` of its own row. `origin` `(rows, slots)` says in whose cache each slot before that lies; the new is
    put down there too. `seen` `(rows, slots)` says which a row sees, if not all. There is no gradient.
    """
    assert cache.is_contiguous(), f"the cache should be contiguous, got strides {cache.stride()}"
    q, k, v = dense(q), dense(k), dense(v)
    rows, heads, d_head = q.shape
    context = q.new_empty(q.shape)
    with on_device(q):
        _self_attention[(rows * heads,)](
            q, k, v, cache, origin, origin if seen is None else seen, at, context,
            heads, cache.shape[1], origin.stride(0), 0 if seen is None else seen.stride(0),
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            scale=d_head**-0.5, masked=seen is not None, d_head=d_head, d_tile=padded_width(d_head), tile=16,
            num_warps=warps,
        )  # fmt: skip
    return context


@triton.jit(do_not_specialize=["heads", "slots", "origin_row", "seen_row"])
def _self_attention(
    q, k, v, cache, origin, seen, at, context, heads, slots, origin_row, seen_row,
    q_row, q_head, k_row, k_head, v_row, v_head,
    scale: tl.constexpr, masked: tl.constexpr, d_head: tl.constexpr, d_tile: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """One row of one head: itself, and the slots that were taken before."""
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    columns = tl.arange(0, d_tile)
    inside = columns < d_head
    kind = cache.dtype.element_ty
    query = tl.load(q + row * q_row + head * q_head + columns, mask=inside, other=0.0).to(tl.float32)
    key = tl.load(k + row * k_row + head * k_head + columns, mask=inside, other=0.0).to(kind)
    value = tl.load(v + row * v_row + head * v_head + columns, mask=inside, other=0.0).to(kind)
    count = tl.load(at).to(tl.int32)
    own = cache + ((row * slots + count) * 2 * heads + head) * d_head + columns
    tl.store(own, key, mask=inside)
    tl.store(own + heads * d_head, value, mask=inside)
    tl.store(origin + row * origin_row + count, row)  # by each head of each layer the same

    # The new slot is what this program has just written, and no other program reads it.
    top = tl.sum(query * key.to(tl.float32), axis=0) * scale
    weight = 1.0
    mixed = value.to(tl.float32)
    for first in range(0, count, tile):
        slot = first + tl.arange(0, tile)
        taken = slot < count
        there = taken
        if masked:
            there = there & (tl.load(seen + row * seen_row + slot, mask=taken, other=0) != 0)
        place = tl.load(origin + row * origin_row + slot, mask=taken, other=0).to(tl.int64) * slots + slot
        begin = cache + (place * 2 * heads + head) * d_head
        mask = there[:, None] & inside[None, :]
        keys = tl.load(begin[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        values = tl.load(begin[:, None] + heads * d_head + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(there, tl.sum(keys * query[None, :], axis=1) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=0))
        p = tl.exp(scores - higher)
        shrink = tl.exp(top - higher)
        weight = weight * shrink + tl.sum(p, axis=0)
        mixed = mixed * shrink + tl.sum(p[:, None] * values, axis=0)
        top = higher
    mixed = mixed / weight
    tl.store(context + (row * heads + head) * d_head + columns, mixed.to(context.dtype.element_ty), mask=inside)


def cached_cross_attention(q: Tensor, memory: Tensor, mask: Tensor, warps: int | None = None) -> Tensor:
    """`softmax(q kᵀ / √d_head) v` of queries `(groups, queries, heads, d_head)`, all of a group over the same source.

    `memory` `(groups, source, 2, heads, d_head)` holds keys and values, of which those are seen where `mask`
    `(groups, 1, 1, source)` is True; a query that sees none gives zeros. There is no gradient.
    """
    q, memory = dense(q), dense(memory)
    groups, queries, heads, d_head = q.shape
    context = q.new_empty(q.shape)
    tile_q = 16  # the least that a tensor core takes
    with on_device(q):
        _cross_attention[(groups * heads, triton.cdiv(queries, tile_q))](
            q, memory, mask, context, queries, heads, memory.shape[1], q.stride(0), q.stride(1), q.stride(2),
            memory.stride(0), memory.stride(1), memory.stride(2), memory.stride(3), mask.stride(0), mask.stride(-1),
            scale=d_head**-0.5, d_head=d_head, d_tile=padded_width(d_head), tile_q=tile_q, tile_k=32,
            num_warps=warps or (1 if q.element_size() == 2 else 4),
        )  # fmt: skip
    return context


@triton.jit(do_not_specialize=["queries", "heads", "source", "mask_group"])
def _cross_attention(
    q, memory, mask, context, queries, heads, source, q_group, q_query, q_head,
    m_group, m_source, m_kind, m_head, mask_group, mask_source,
    scale: tl.constexpr, d_head: tl.constexpr, d_tile: tl.constexpr, tile_q: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """Some queries of one group and one head, over all of their source."""
    group = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    query = tl.program_id(1) * tile_q + tl.arange(0, tile_q)
    columns = tl.arange(0, d_tile)
    inside = columns < d_head
    asked = (query < queries)[:, None] & inside[None, :]
    place = q + group * q_group + head * q_head
    x = tl.load(place + query[:, None] * q_query + columns[None, :], mask=asked, other=0.0)
    keys = memory + group * m_group + head * m_head
    top = tl.full((tile_q,), float("-inf"), tl.float32)
    weight = tl.zeros((tile_q,), tl.float32)
    mixed = tl.zeros((tile_q, d_tile), tl.float32)
    for first in range(0, source, tile_k):
        slot = first + tl.arange(0, tile_k)
        real = tl.load(mask + group * mask_group + slot * mask_source, mask=slot < source, other=0) != 0
        there = real[:, None] & inside[None, :]
        begin = keys + slot[:, None].to(tl.int64) * m_source + columns[None, :]
        k = tl.load(begin, mask=there, other=0.0)
        v = tl.load(begin + m_kind, mask=there, other=0.0)
        scores = tl.dot(x, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(real[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp(scores - finite[:, None])
        shrink = tl.exp(top - finite)
        weight = weight * shrink + tl.sum(p, axis=1)
        mixed = mixed * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = higher
    mixed = mixed / tl.where(weight == 0.0, 1.0, weight)[:, None]
    out = context + ((group * queries + query[:, None]) * heads + head) * d_head + columns[None, :]
    tl.store(out, mixed.to(context.dtype.element_ty), mask=asked)
