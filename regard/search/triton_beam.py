"""A turn of plain beam search in two kernels: what `_Turn` says in torch, which a GPU takes ten times as long for.

The first goes over the vocabulary once, for the likeliest tokens of each part of it and for the sum that makes logits
probabilities. The second has a program for each beam, which does all the rest where it stands.

Numbers are chosen by keys: a number so written that whole numbers are in the same order, above where it stands, so that
the greatest key is the first of the greatest numbers. Needs triton, so it is imported when the first turn is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.triton_kernels import on_device

if TYPE_CHECKING:
    from regard.search.board import Board

NONE: tl.constexpr = tl.constexpr(-(2**63))  # a key below all
PARTS = 16  # of the vocabulary, at most
LEAST = 2048  # tokens of a part, which one warp looks through: several would wait for each other at every choice
LOT = 16  # tokens that one thread looks through


@triton.jit
def _keyed(x, place):
    """Keys of float32 numbers that stand at these places."""
    bits = x.to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # of negative numbers the greater has the smaller bits
    return (order.to(tl.int64) << 32) | (place ^ 0x7FFFFFFF).to(tl.int64)


@triton.jit
def _number(key):
    order = (key >> 32).to(tl.int32)
    number = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.where(key == NONE, float("-inf"), number)


@triton.jit
def _place(key):
    return ((key & 0x7FFFFFFF) ^ 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _survey(
    logits, forbidden, length, keys, top, total, stride, vocabulary, shortest, eos,
    banned: tl.constexpr, count: tl.constexpr, wide: tl.constexpr, part: tl.constexpr, lot: tl.constexpr,
):  # fmt: skip
    """One part of one row: of its lots the likeliest, and of their tokens the keys of the `count` likeliest that the
    rules allow; the greatest logit of all, and the sum of `exp(logit - greatest)`."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits += row * stride
    first = number * part
    lots = tl.arange(0, part // lot)
    member = tl.arange(0, lot)
    token = first + lots[:, None] * lot + member[None, :]
    x = tl.load(logits + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    greatest = tl.max(tl.max(x, axis=1), axis=0)
    finite = tl.where(greatest == float("-inf"), 0.0, greatest)
    place = row * tl.num_programs(1) + number
    tl.store(top + place, greatest)
    tl.store(total + place, tl.sum(tl.sum(tl.exp(x - finite), axis=1), axis=0))

    early = tl.load(length).to(tl.int32) <= shortest  # `length` counts the closing mark
    for i in range(banned):
        ban = tl.load(forbidden + i).to(tl.int32)
        if (ban >= first) & (ban < first + part):
            x = tl.where(token == ban, float("-inf"), x)
    if early & (eos >= first) & (eos < first + part):
        x = tl.where(token == eos, float("-inf"), x)
    key = _keyed(tl.max(x, axis=1), lots)
    slot = tl.arange(0, wide)
    chosen = tl.full((wide,), -1, tl.int32)
    for i in range(count):
        best = tl.max(key, axis=0)
        chosen = tl.where((slot == i) & (best != NONE), _place(best), chosen)
        key = tl.where(key == best, NONE, key)

    token = first + chosen[:, None] * lot + member[None, :]
    inside = (chosen >= 0)[:, None] & (token < vocabulary)
    x = tl.load(logits + token, mask=inside, other=float("-inf")).to(tl.float32)
    for i in range(banned):
        x = tl.where(token == tl.load(forbidden + i).to(tl.int32), float("-inf"), x)
    x = tl.where((token == eos) & early, float("-inf"), x)
    some = tl.where(inside, _keyed(x, token), NONE)
    for i in range(count):
        best = tl.max(tl.max(some, axis=1), axis=0)
        tl.store(keys + place * count + i, best)
        some = tl.where(some == best, NONE, some)


def turn(logits: Tensor, board: Board, penalty: str, alpha: float, stop: str, mildest: float) -> Tensor:
    """One more token for every beam, from logits `(beams, width, vocabulary)` or log-probabilities.

    The board is written in place, but for its `length`. Gives the row of the model's state that each open hypothesis
    goes on from, `(beams * width,)`. `mildest` is the penalty that a search which stops when it is exact holds open
    hypotheses against.
    """
    beams, width, vocabulary = logits.shape
    limits, flat, count = board.limits, logits.flatten(0, 1), min(2 * width, vocabulary)
    part = max(LEAST, triton.next_power_of_2(triton.cdiv(vocabulary, PARTS)))
    parts = triton.cdiv(vocabulary, part)
    keys = logits.new_empty(len(flat), parts, count, dtype=torch.int64)
    top, total = logits.new_empty(2, len(flat), parts, dtype=torch.float32)
    rows = torch.empty_like(board.token)
    wide, tile = triton.next_power_of_2(width), triton.next_power_of_2(parts * count)
    with on_device(logits):
        _survey[(len(flat), parts)](
            flat, limits._forbidden, board.length, keys, top, total, flat.stride(0), vocabulary, limits.shortest,
            limits.eos, banned=len(limits._forbidden), count=count, wide=triton.next_power_of_2(count), part=part,
            lot=LOT, num_warps=max(1, min(8, part // LEAST)),
        )  # fmt: skip
        _turn[(beams,)](
            flat, keys, top, total, board.length, limits.longest, limits._prefix, board.log_prob, board.token,
            board.written, board.over, board.last, board.last_length, board.closed, board.closed_length,
            board.closed_log_prob, board.closed_score, rows, flat.stride(0), parts, board.written.shape[2],
            board.closed.shape[2], limits._prefix.shape[1], limits.shortest, limits.eos, alpha, mildest,
            penalty=penalty, stop=stop, at_limit=limits.at_limit, closable=limits.eos not in limits.forbidden,
            width=width, wide=wide, count=count, tile=tile, parts_tile=triton.next_power_of_2(parts), columns=64,
            num_warps=1 if wide * tile <= 512 else 4,
        )  # fmt: skip
    return rows.flatten()


@triton.jit
def _turn(
    logits, keys, top, total, length, longest, prefix, log_prob, token, written, over, last, last_length, closed,
    closed_length, closed_log_prob, closed_score, rows, stride, parts, written_row, closed_row, prefix_row, shortest,
    eos, alpha, mildest, penalty: tl.constexpr, stop: tl.constexpr, at_limit: tl.constexpr, closable: tl.constexpr,
    width: tl.constexpr, wide: tl.constexpr, count: tl.constexpr, tile: tl.constexpr, parts_tile: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    """One beam: `Chooser.choose`, `Board.close`, and what `_Turn` does after them."""
    beam = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, wide)
    real = slot < width
    row = beam * width + slot
    now = tl.load(length).to(tl.int32)  # tokens of a hypothesis that closes now, its closing mark counted
    most = tl.load(longest + beam).to(tl.int32)

    # The only way on, where there is but one.
    forced = tl.where(most < now, eos, -1)
    if prefix_row > 0:
        due = tl.load(prefix + beam * prefix_row + now - 1, mask=now <= prefix_row, other=-1).to(tl.int32)
        forced = tl.where(due >= 0, due, forced)

    # log p of all candidates, (wide, tile): log_softmax of the logits, and what was there before.
    part = tl.arange(0, parts_tile)
    there = real[:, None] & (part < parts)[None, :]
    tops = tl.load(top + row[:, None] * parts + part[None, :], mask=there, other=float("-inf"))
    sums = tl.load(total + row[:, None] * parts + part[None, :], mask=there, other=0.0)
    greatest = tl.max(tops, axis=1)
    greatest = tl.where(greatest == float("-inf"), 0.0, greatest)
    whole = tl.sum(sums * tl.exp(tops - greatest[:, None]), axis=1)
    whole = tl.log(tl.where(whole == 0.0, 1.0, whole))
    before = tl.load(log_prob + row, mask=real, other=float("-inf"))
    candidate = tl.arange(0, tile)
    there = real[:, None] & (candidate < parts * count)[None, :]
    key = tl.load(keys + row[:, None] * parts * count + candidate[None, :], mask=there, other=NONE)
    there = there & (key != NONE)
    value = before[:, None] + (_number(key) - greatest[:, None] - whole[:, None])
    tokens = _place(key)
    if forced >= 0:
        only = tl.load(logits + row * stride + forced, mask=real, other=float("-inf")).to(tl.float32)
        only = only - greatest - whole
        if forced == eos:  # which no prefix holds
            barred = now <= shortest
            if not closable:
                barred = now > 0
            if at_limit != "scored":
                only = tl.where(only > float("-inf"), 0.0, only)
            only = tl.where(barred, float("-inf"), only)
        value = tl.where((candidate == 0)[None, :], (before + only)[:, None], float("-inf"))
        tokens = tl.where(candidate[None, :] < 0, tokens, forced)
        there = real[:, None] & (candidate < count)[None, :]
    place = slot[:, None] * tile + candidate[None, :]
    key = tl.where(there, _keyed(value, place), NONE)

    # Twice the width of candidates, the likeliest first: those among the first half that close, and those that do not.
    closing = tl.full((wide,), float("-inf"), tl.float32)
    closing_parent = tl.zeros((wide,), tl.int32)
    opened = tl.full((wide,), float("-inf"), tl.float32)
    parent = tl.zeros((wide,), tl.int32)
    chosen = tl.zeros((wide,), tl.int32)
    chosen += eos
    going = 0
    for i in range(2 * width):
        best = tl.max(tl.max(key, axis=1), axis=0)
        here = key == best
        number = _number(best)
        from_ = tl.minimum(_place(best) // tile, width - 1)
        which = tl.max(tl.max(tl.where(here, tokens, -1), axis=1), axis=0)
        key = tl.where(here, NONE, key)
        ends = which == eos
        put = (slot == i) & ends
        closing = tl.where(put, number, closing)
        closing_parent = tl.where(put, from_, closing_parent)
        put = (slot == going) & (which >= 0) & (which != eos)
        opened = tl.where(put, number, opened)
        parent = tl.where(put, from_, parent)
        chosen = tl.where(put, which, chosen)
        going += tl.where(ends, 0, 1)

    # The best that are closed, of those that were and those that close now.
    counted = now  # in the length
    if at_limit == "cut":
        counted = tl.minimum(now, tl.maximum(most, 1))
    divisor = 1.0
    if penalty == "gnmt":
        divisor = tl.exp(alpha * tl.log((5.0 + counted) / 6.0))
    if penalty == "average":
        divisor = tl.exp(alpha * tl.log(counted.to(tl.float32)))
    old = tl.load(closed_score + row, mask=real, other=float("-inf"))
    old_log_prob = tl.load(closed_log_prob + row, mask=real, other=float("-inf"))
    old_length = tl.load(closed_length + row, mask=real, other=0).to(tl.int32)
    old_key = tl.where(real, _keyed(old, slot), NONE)
    new_key = tl.where(real, _keyed(closing / divisor, width + slot), NONE)
    score, best_log_prob = old, old_log_prob
    best_length = old_length
    source = slot
    worst = float("-inf")
    for i in range(width):
        best = tl.maximum(tl.max(old_key, axis=0), tl.max(new_key, axis=0))
        from_ = _place(best)
        worst = _number(best)
        old_key = tl.where(old_key == best, NONE, old_key)
        new_key = tl.where(new_key == best, NONE, new_key)
        was, is_ = slot == from_, slot + width == from_
        number = tl.max(tl.where(was, old_log_prob, tl.where(is_, closing, float("-inf"))), axis=0)
        tokens_ = tl.max(tl.where(was, old_length, tl.where(is_, now - 1, 0)), axis=0)
        kept = tl.where(is_, closing_parent + width, tl.where(was, slot, -1))
        put = slot == i
        score = tl.where(put, worst, score)
        best_log_prob = tl.where(put, number, best_log_prob)
        best_length = tl.where(put, tokens_, best_length)
        source = tl.where(put, tl.max(kept, axis=0), source)
    new = source >= width
    if tl.max((new & real).to(tl.int32), axis=0) > 0:
        tl.store(closed_score + row, score, mask=real)
        tl.store(closed_log_prob + row, best_log_prob, mask=real)
        tl.store(closed_length + row, best_length, mask=real)
        for first in range(0, now - 1, columns):
            column = first + tl.arange(0, columns)
            mask = real[:, None] & (column < now - 1)[None, :]
            was = beam * width + tl.where(new, 0, source)
            is_ = beam * width + tl.where(new, source - width, 0)
            kept = tl.load(closed + was[:, None] * closed_row + column[None, :], mask=mask, other=0)
            made = tl.load(written + is_[:, None] * written_row + column[None, :] + 1, mask=mask, other=0)
            tl.debug_barrier()  # all is read before any is written
            tl.store(
                closed + row[:, None] * closed_row + column[None, :], tl.where(new[:, None], made, kept), mask=mask
            )
            tl.debug_barrier()

    # Whether the search is over; then the best open one before this turn is what was left.
    hope = tl.max(opened, axis=0)
    hope = hope / (mildest if stop == "exact" else divisor)
    if stop == "early":
        enough = worst > float("-inf")
        if at_limit == "cut":
            enough = enough & (most != now)
        hope = tl.where(enough, float("-inf"), hope)
    past = tl.load(over + beam) != 0
    done = past | (hope <= worst) | (most < now)
    ends = done & (past == 0)
    if ends:
        tl.store(last_length + beam, (now - 1).to(tl.int64))
    for first in range(0, now, columns):
        column = first + tl.arange(0, columns)
        mask = real[:, None] & (column < now)[None, :]
        if ends:
            one = tl.load(written + beam * width * written_row + column, mask=column < now, other=0)
            tl.store(last + beam * written_row + column, one, mask=column < now)
        from_ = beam * width + parent
        moved = tl.load(written + from_[:, None] * written_row + column[None, :], mask=mask, other=0)
        tl.debug_barrier()
        tl.store(written + row[:, None] * written_row + column[None, :], moved, mask=mask)
        tl.debug_barrier()
    tl.store(written + row * written_row + now, chosen.to(tl.int64), mask=real)
    tl.store(token + row, chosen.to(tl.int64), mask=real)
    tl.store(rows + row, beam * width + parent, mask=real)
    tl.store(log_prob + row, tl.where(done, float("-inf"), opened), mask=real)
    tl.store(over + beam, done)
