"""The CTC loss of `regard.nn.ctc_loss` in Triton, imported only when a tensor for it arrives.

A row of `n` tokens has `2 n + 1` states, blanks and tokens in turn (Graves et al. 2006, 4.1). They are held as two
vectors: blank `j` stands before token `j`, so that of a step only the tokens have to be moved by one place. Read from
its end with its states in reverse, the backward variable β follows the equation of the forward variable α: one kernel
walks both ways at once. First each walks to the middle of its row and leaves what it found; then each walks on over
what the other left, and puts the share of each state in all paths there instead. So there is one buffer, `(times, 2,
block)`, and the steps one after the other are as many as the times.

Logarithms are to base 2, and at each step from the greatest of the states on, so that float32 has digits enough for
rows of any length; what was subtracted is summed in float64. All sums have an order, so every run gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.triton_kernels import LOG2E, _erase, on_device

NEVER: tl.constexpr = tl.constexpr(-1e30)  # log p of what cannot be, of which differences are numbers
DEAD: tl.constexpr = tl.constexpr(-1e20)  # below it, whatever was added to it
CHUNK: tl.constexpr = tl.constexpr(16)  # tokens that are compared with all others at a time


def ctc_losses_(
    logits: Tensor, times: Tensor, targets: Tensor, labels: Tensor, longest: int, blank: int, ends: int
) -> Tensor:
    """Losses `(rows,)`; the logits `(total, vocabulary)` give way to their gradient."""
    total, vocabulary = logits.shape
    rows = times.shape[0] - 1
    block = max(32, int(triton.next_power_of_2(longest + 1)))  # as many blanks as that, and one token fewer
    shape = {"block": block, "num_warps": max(1, block // 128), "num_stages": 1}
    wide = min(8192, int(triton.next_power_of_2(vocabulary)))
    measures = logits.new_empty((total, 2), dtype=torch.float32)
    owner = logits.new_empty(total, dtype=torch.int32)
    walked = logits.new_empty((total, 2, block), dtype=torch.float32)
    middle = logits.new_empty((rows, 2, 2, block), dtype=torch.float32)
    scales = logits.new_empty((rows, 2), dtype=torch.float64)
    order = logits.new_empty((2, targets.shape[0]), dtype=torch.int32)
    losses = logits.new_empty(rows, dtype=torch.float32)
    with on_device(logits):
        if total:
            _measure[(total,)](logits, measures, owner, vocabulary, wide=wide, num_warps=max(1, min(8, wide // 256)))
        if rows:
            _sort[(rows,)](targets, labels, *order, longest, ends=ends, **shape)
            for second in (False, True):
                _walk[(2 * rows,)](
                    logits, measures, times, targets, labels, order[1], walked, middle, scales, owner, losses,
                    vocabulary, longest, blank=blank, ends=ends, second=second, **shape,
                )  # fmt: skip
        if total:
            warps = max(1, min(8, max(wide, block) // 256))
            _differentiate[(total,)](
                logits, measures, labels, order, walked, owner, vocabulary, longest, blank=blank, ends=ends,
                block=block, wide=wide, num_warps=warps, num_stages=1,
            )  # fmt: skip
    return losses


@triton.jit
def _tokens(labels, row, longest, ends: tl.constexpr):
    """Where the tokens of a row begin, and how many they are: never more than there is room for, and not below 0."""
    begin = tl.load(labels + row)
    count = tl.load(labels + row + 1) - begin - ends
    return begin, tl.minimum(tl.maximum(count, 0), longest)


@triton.jit
def _measure(logits, measures, owner, vocabulary, wide: tl.constexpr):
    """The greatest logit of a time, and log2 of `Σ exp(x - top)`. No row has claimed it yet."""
    time = tl.program_id(0)
    logits += time.to(tl.int64) * vocabulary
    columns = tl.arange(0, wide)
    top = float("-inf")
    total = 0.0
    for at in range(0, vocabulary, wide):
        x = tl.load(logits + at + columns, mask=at + columns < vocabulary, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=0))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp2((top - finite) * LOG2E) + tl.sum(tl.exp2((x - finite) * LOG2E), axis=0)
        top = higher
    tl.store(measures + 2 * time, top)
    tl.store(measures + 2 * time + 1, tl.log2(total))
    tl.store(owner + time, -1)


@triton.jit(do_not_specialize=["longest"])
def _sort(targets, labels, ordered, rank, longest, ends: tl.constexpr, block: tl.constexpr):
    """The tokens of a row in ascending order, and where each of them went: those that are alike stand side by side."""
    begin, count = _tokens(labels, tl.program_id(0), longest, ends)
    j = tl.arange(0, block)
    label = tl.load(targets + begin + j, mask=j < count, other=0).to(tl.int32)
    place = tl.zeros((block,), tl.int32)
    for at in range(0, count, CHUNK):
        k = at + tl.arange(0, CHUNK)
        other = tl.load(targets + begin + k, mask=k < count, other=2147483647).to(tl.int32)
        same = (other[None, :] == label[:, None]) & (k[None, :] < j[:, None])
        place += tl.sum(((other[None, :] < label[:, None]) | same).to(tl.int32), axis=1)
    tl.store(rank + begin + j, place, mask=j < count)
    tl.store(ordered + begin + place, label, mask=j < count)


@triton.jit
def _named(logits, measures, time, label, there, any_time, vocabulary, blank: tl.constexpr):
    """log2 p of the tokens at a time, and of a blank."""
    logits += time.to(tl.int64) * vocabulary
    top = tl.load(measures + 2 * time, mask=any_time, other=0.0)
    size = tl.load(measures + 2 * time + 1, mask=any_time, other=0.0)
    token = tl.load(logits + label, mask=there & any_time, other=float("-inf")).to(tl.float32)
    none = tl.load(logits + blank, mask=any_time, other=float("-inf")).to(tl.float32)
    token = (token - top) * LOG2E - size
    none = (none - top) * LOG2E - size
    return tl.where(token < NEVER, NEVER, token), tl.where(none < NEVER, NEVER, none)  # what is no number stays so


@triton.jit(do_not_specialize=["longest"])
def _walk(
    logits, measures, times, targets, labels, rank, walked, middle, scales, owner, losses, vocabulary, longest,
    blank: tl.constexpr, ends: tl.constexpr, second: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One row from one end to its middle, or from there on; eqs. 6 and 10 of Graves et al. 2006.

    Before the first time all is in the first blank. Then `blank_j = y(blank) (blank_j + token_{j-1})` and `token_j =
    y(j) (token_j + blank_j + token_{j-1})`, the last if both tokens differ. On the way from the end, step, blank and
    token `j` are the `j`th from there.
    """
    row = tl.program_id(0) // 2
    back = tl.program_id(0) % 2  # 1: from the end; both are next to each other, before the rows that fill a batch up
    sign = 1 - 2 * back
    first = tl.load(times + row)
    steps = tl.load(times + row + 1) - first
    begin, count = _tokens(labels, row, longest, ends)
    j = tl.arange(0, block)
    is_token = j < count
    is_blank = j <= count
    token_at = back * (count - 1) + sign * j
    blank_at = back * count + sign * j
    label = tl.load(targets + begin + token_at, mask=is_token, other=-1).to(tl.int32)
    previous = tl.load(targets + begin + token_at - sign, mask=is_token & (j > 0), other=-1).to(tl.int32)
    differs = label != previous
    there = is_token & (label >= 0) & (label < vocabulary)

    half = (steps + 1 - back) // 2
    saved = middle + (2 * row + back).to(tl.int64) * (2 * block)
    if second:
        start = half
        stop = steps
        none = tl.load(saved + j)
        token = tl.load(saved + block + j)
        scale = tl.load(scales + 2 * row + back)
    else:
        start = half * 0
        stop = half
        none = tl.where(j == 0, 0.0, NEVER)
        token = tl.full((block,), NEVER, tl.float32)
        scale = tl.full((), 0.0, tl.float64)

    some = start < stop
    time = first + back * (steps - 1) + sign * start
    y_token, y_none = _named(logits, measures, time, label, there, some, vocabulary, blank)
    for i in range(start, stop):
        # Those of the next step are on their way while this one is worked out.
        following = tl.minimum(i + 1, stop - 1)
        next_time = first + back * (steps - 1) + sign * following
        next_token, next_none = _named(logits, measures, next_time, label, there, some, vocabulary, blank)

        moved = tl.where(j == 0, NEVER, tl.gather(token, tl.maximum(j - 1, 0), axis=0))
        top = tl.maximum(none, moved)
        new_none = y_none + top + tl.log2(tl.exp2(none - top) + tl.exp2(moved - top))
        skipped = tl.where(differs, moved, NEVER)
        top = tl.maximum(tl.maximum(token, none), skipped)
        sums = tl.exp2(token - top) + tl.exp2(none - top) + tl.exp2(skipped - top)
        new_token = y_token + top + tl.log2(sums)
        peak = tl.max(tl.maximum(new_none, new_token), axis=0)
        peak = tl.where(peak > DEAD, peak, 0.0)
        scale += peak.to(tl.float64)
        none = new_none - peak
        token = new_token - peak
        none = tl.where(none < NEVER, NEVER, none)
        token = tl.where(token < NEVER, NEVER, token)

        at = walked + time.to(tl.int64) * (2 * block)
        if second:
            # `α β / y` summed over all states is p(y given x) at every time (eq. 14): the shares need no other sum.
            whole_none = none + tl.load(at + blank_at, mask=is_blank, other=NEVER) - y_none
            whole_token = token + tl.load(at + block + token_at, mask=is_token, other=NEVER) - y_token
            top = tl.max(tl.maximum(whole_none, whole_token), axis=0)
            whole_none = tl.exp2(whole_none - top)
            whole_token = tl.exp2(whole_token - top)
            blanks = tl.sum(whole_none, axis=0)
            total = blanks + tl.sum(whole_token, axis=0)
            place = tl.load(rank + begin + token_at, mask=is_token, other=0)
            tl.debug_barrier()  # all is read before any is written
            tl.store(at, blanks / total)
            tl.store(at + block + place, whole_token / total, mask=is_token)
            tl.store(owner + time, tl.where(top < DEAD, -1, row))
        else:
            tl.store(at + blank_at, none, mask=is_blank)
            tl.store(at + block + token_at, token, mask=is_token)
        time = next_time
        y_token = next_token
        y_none = next_none

    if second:
        if back == 0:
            last_none = tl.sum(tl.where(j == count, none, 0.0), axis=0)
            last_token = tl.where(count > 0, tl.sum(tl.where(j == count - 1, token, 0.0), axis=0), NEVER)
            top = tl.maximum(last_none, last_token)
            found = top + tl.log2(tl.exp2(last_none - top) + tl.exp2(last_token - top))
            loss = (-(scale + found.to(tl.float64)) / LOG2E).to(tl.float32)
            loss = tl.where(found < DEAD, 0.0, loss)
            # A token outside of the vocabulary, or a row with more of them than it has room for, has to show.
            foreign = tl.max((is_token & (~there | (label == blank))).to(tl.int32), axis=0)
            held = tl.load(labels + row + 1) - begin - ends
            tl.store(losses + row, tl.where((foreign > 0) | (held > longest), float("nan"), loss))
    else:
        tl.store(saved + j, none)
        tl.store(saved + block + j, token)
        tl.store(scales + 2 * row + back, scale)


@triton.jit
def _add_alike(sum_a, starts_a, sum_b, starts_b):
    """Two stretches of sorted tokens one after the other: sums since the last place where a new token starts."""
    return tl.where(starts_b > 0, sum_b, sum_a + sum_b), starts_a | starts_b


@triton.jit(do_not_specialize=["longest"])
def _differentiate(
    logits, measures, labels, ordered, walked, owner, vocabulary, longest,
    blank: tl.constexpr, ends: tl.constexpr, block: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """The gradient of one time over its logits: `softmax(x)`, less at each token its share in all paths (eq. 16)."""
    time = tl.program_id(0)
    logits += time.to(tl.int64) * vocabulary
    row = tl.load(owner + time)
    if row < 0:
        _erase(logits, vocabulary, wide)
    else:
        begin, count = _tokens(labels, row, longest, ends)
        top = tl.load(measures + 2 * time)
        size = tl.load(measures + 2 * time + 1)
        walked += time.to(tl.int64) * (2 * block)
        j = tl.arange(0, block)
        is_token = j < count
        label = tl.load(ordered + begin + j, mask=is_token, other=-1)
        starts = label != tl.load(ordered + begin + j - 1, mask=is_token & (j > 0), other=-1)
        is_last = label != tl.load(ordered + begin + j + 1, mask=j + 1 < count, other=-1)
        share = tl.load(walked + block + j, mask=is_token, other=0.0)
        share, _ = tl.associative_scan((share, starts.to(tl.int32)), 0, _add_alike)
        # Of tokens that are alike the last has the sum. It is rounded once, with the probability it is taken from.
        of_token = tl.load(logits + label, mask=is_token, other=float("-inf")).to(tl.float32)
        of_blank = tl.load(logits + blank).to(tl.float32)
        at_token = tl.exp2((of_token - top) * LOG2E - size) - share
        at_blank = tl.exp2((of_blank - top) * LOG2E - size) - tl.load(walked)
        columns = tl.arange(0, wide)
        tl.debug_barrier()  # all is read before any is written
        for at in range(0, vocabulary, wide):
            here = at + columns < vocabulary
            x = tl.load(logits + at + columns, mask=here, other=float("-inf")).to(tl.float32)
            p = tl.exp2((x - top) * LOG2E - size)
            tl.store(logits + at + columns, p.to(logits.dtype.element_ty), mask=here)
        tl.debug_barrier()
        tl.store(logits + label, at_token.to(logits.dtype.element_ty), mask=is_token & is_last)
        tl.store(logits + blank, at_blank.to(logits.dtype.element_ty))
