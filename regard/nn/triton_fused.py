"""Residuals, norms and activations of `regard.nn.fused` in Triton, imported only when a tensor for it arrives.

All of them are bound by memory: each reads and writes every number once. Which numbers dropout drops is worked out from
their places and two seeds, in the backward pass again, so that no mask is kept.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.triton_kernels import on_device

PROGRAMS = 1056  # of the backward pass of a norm: each sums the gradients of weight and bias over its share of the rows
TILE = 1024  # numbers that a program of a norm holds at a time, if that is two rows or more
BLOCK = 2048  # and one of a sum with dropout
# Rows of an activation that a program goes over, and what it holds of them at a time.
STRIPE = {"share": 64, "rows": 4, "columns": 256, "num_warps": 4}
BELL: tl.constexpr = tl.constexpr(-0.7213475204444817)  # `exp(-x²/2)` is 2 to this times `x²`
# GELU by the hyperbolic tangent (Hendrycks and Gimpel 2016) is `x σ(u)`, with `u = 2 √(2/π) (x + 0.044715 x³)`.
TANH_1: tl.constexpr = tl.constexpr(1.5957691216057308)
TANH_3: tl.constexpr = tl.constexpr(0.07135481627260025)


def add_norm(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None, seed: Tensor | None, p: float, eps: float,
    centred: bool, dtype: torch.dtype, summed: torch.dtype | None = None, factor: float = 1.0,
    shape: dict[str, int] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The sum `x + factor · dropout(added)`, `(total, width)`, in the dtype `summed` (None: it is not kept); its norm;
    and the mean and the inverse deviation of each row."""
    total, width = x.shape
    y, sums = x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape if summed else 0, dtype=summed or x.dtype)
    mean, inverse = (x.new_empty(total, dtype=torch.float32) for _ in range(2))
    shape = shape or _shape(width)
    with on_device(x):
        _add_norm[(max(triton.cdiv(total, shape["rows"]), 1),)](
            x, x if added is None else added, weight, weight if bias is None else bias, x if seed is None else seed,
            sums, y, mean, inverse, total, _threshold(p), factor * _scale(p), eps, width=width, added=added is not None,
            summed=summed is not None, shifted=bias is not None, dropped=seed is not None, centred=centred, **shape,
        )  # fmt: skip
    return sums, y, mean, inverse


def add_norm_backward(
    grad: Tensor, through: Tensor | None, x: Tensor, added: Tensor | None, weight: Tensor, seed: Tensor | None,
    mean: Tensor, inverse: Tensor, p: float, centred: bool, kind: torch.dtype | None,
    factor: float = 1.0, shape: dict[str, int] | None = None, programs: int = PROGRAMS,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of `x`, of what was added (of dtype `kind`; None: nothing was), and of weight and bias `(2, width)`;
    every run gives the same. What was normed is `x + dropout(added)`, or `x` where that is the sum already; `through`
    is the gradient it has from elsewhere."""
    total, width = x.shape
    dx, dadded = torch.empty_like(x), x.new_empty(0 if kind is None else x.shape, dtype=kind or x.dtype)
    shape = shape or {**_shape(width, 512), "stages": 1}
    programs = min(programs, max(triton.cdiv(total, shape["rows"]), 1))
    sums = x.new_empty((programs, 2, width), dtype=torch.float32)
    with on_device(x):
        _add_norm_backward[(programs,)](
            grad, x if through is None else through, x, x if added is None else added, weight,
            x if seed is None else seed, mean, inverse, dx, dadded, sums, total, _threshold(p), factor * _scale(p),
            width=width, passed=through is not None, added=added is not None, split=kind is not None,
            dropped=seed is not None, centred=centred, **shape,
        )  # fmt: skip
    return dx, dadded, sums.sum(0)


def add_dropout(
    x: Tensor | None, added: Tensor, seed: Tensor, p: float, factor: float, dtype: torch.dtype,
    block: int = BLOCK, warps: int = 8,
) -> Tensor:  # fmt: skip
    """`x + factor · dropout(added)`; without `x`, what is added alone."""
    y, count = torch.empty_like(added, dtype=dtype), added.numel()
    with on_device(added):
        _add_dropout[(max(triton.cdiv(count, block), 1),)](
            added if x is None else x, added, seed, y, count, _threshold(p), factor * _scale(p), summed=x is not None,
            block=block, num_warps=warps,
        )  # fmt: skip
    return y


def activate_dropout(
    x: Tensor, bias: Tensor, seed: Tensor, p: float, kind: str, shape: dict[str, int] = STRIPE
) -> Tensor:
    """`dropout(f(x + bias))` with `x` of `(total, width)` and `f` one of `relu`, `gelu`, `gelu_tanh` and `silu`."""
    (total, width), y = x.shape, torch.empty_like(x)
    shares = max(triton.cdiv(total, shape["share"]), 1)
    with on_device(x):
        _activate_dropout[(shares * triton.cdiv(width, shape["columns"]),)](
            x, bias, seed, y, total, _threshold(p), _scale(p), width=width, kind=kind, **shape
        )
    return y


def activate_dropout_backward(
    grad: Tensor, saved: Tensor, bias: Tensor, seed: Tensor, p: float, kind: str, shape: dict[str, int] = STRIPE
) -> tuple[Tensor, Tensor]:
    """Gradients of `x`, which is what was saved (of `relu` that is the output), and of the bias, `(width,)`, which is
    summed over each program's share of the rows, then over those: every run gives the same."""
    (total, width), dx = saved.shape, torch.empty_like(saved)
    shares = max(triton.cdiv(total, shape["share"]), 1)
    sums = saved.new_empty((shares, width), dtype=torch.float32)
    with on_device(saved):
        _activate_dropout_backward[(shares * triton.cdiv(width, shape["columns"]),)](
            grad, saved, bias, seed, dx, sums, total, _threshold(p), _scale(p), width=width, kind=kind, **shape
        )
    return dx, sums.sum(0)


def _dropped(p: float) -> int:
    """Of 65,536 numbers how many are dropped."""
    return min(round(p * 2**16), 2**16 - 1)


def _threshold(p: float) -> int:
    """Of 2³² numbers those below it are dropped; as the 32-bit integer of the same bits, of which the last 16 are 0."""
    threshold = _dropped(p) << 16
    return threshold - 2**32 if threshold >= 2**31 else threshold


def _scale(p: float) -> float:
    """What is kept grows by this, so that the mean stays."""
    return 2**16 / (2**16 - _dropped(p))


def _shape(width: int, share: int = 1024) -> dict[str, int]:
    """Rows at a time, the power of 2 that holds a row, and warps, each with its share of the numbers: in the backward
    pass half as many, or registers run out."""
    tile = int(triton.next_power_of_2(width))
    rows = max(2 if tile <= TILE else 1, TILE // tile)
    return {"rows": rows, "tile": tile, "num_warps": max(2, min(8, rows * tile // share))}


@triton.jit
def _kept(seed, first, place, threshold):
    """Whether dropout keeps the numbers at these places. Multiplications and shifts spread each bit of a place over all
    others (the constants are those of Wellons's `lowbias32`); the second seed comes in between, lest one seed's mask be
    another's in a different order. Two neighbours share 32 bits, one takes the first 16 of them and the other the last:
    that they are the same the compiler sees by itself, where rows have an even number of columns."""
    place = first.to(tl.uint32) + place.to(tl.uint32)
    mixed = (place >> 1) + tl.load(seed).to(tl.uint32)
    mixed ^= mixed >> 16
    mixed *= 0x7FEB352D
    mixed += tl.load(seed + 1).to(tl.uint32)
    mixed ^= mixed >> 15
    mixed *= 0x846CA68B
    mixed ^= mixed >> 16
    return (mixed << ((place & 1) * 16)) >= threshold.to(tl.uint32, bitcast=True)


@triton.jit(do_not_specialize=["total", "threshold", "scale"])
def _add_norm(
    x, f, weight, bias, seed, s, y, mean, inverse, total, threshold, scale, eps,
    width: tl.constexpr, added: tl.constexpr, summed: tl.constexpr, shifted: tl.constexpr, dropped: tl.constexpr,
    centred: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Some rows at once, each as wide as the tile."""
    first = tl.program_id(0) * rows
    begin = first.to(tl.int64) * width
    row = tl.arange(0, rows)
    column = tl.arange(0, tile)
    there = first + row < total
    inside = there[:, None] & (column < width)[None, :]
    place = row[:, None] * width + column[None, :]
    sums = tl.load(x + begin + place, mask=inside, other=0.0).to(tl.float32)
    if added:
        more = tl.load(f + begin + place, mask=inside, other=0.0).to(tl.float32) * scale
        if dropped:
            more = tl.where(_kept(seed, begin, place, threshold), more, 0.0)
        sums += more
    if summed:
        rounded = sums.to(s.dtype.element_ty)
        tl.store(s + begin + place, rounded, mask=inside)
        sums = rounded.to(tl.float32)  # what is normed is what others get to see
    if centred:
        middle = tl.sum(sums, axis=1) / width
        tl.store(mean + first + row, middle, mask=there)
        sums = tl.where(inside, sums - middle[:, None], 0.0)
    steepness = tl.rsqrt(tl.sum(sums * sums, axis=1) / width + eps)
    tl.store(inverse + first + row, steepness, mask=there)
    result = (
        sums * steepness[:, None] * tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    )
    if shifted:
        result += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    tl.store(y + begin + place, result.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["total", "threshold", "scale"])
def _add_norm_backward(
    grad, through, x, f, weight, seed, mean, inverse, dx, df, sums, total, threshold, scale,
    width: tl.constexpr, passed: tl.constexpr, added: tl.constexpr, split: tl.constexpr, dropped: tl.constexpr,
    centred: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """With `n` the normed rows and `g = w dy`: `dx = (g - mean(g) - n mean(g n)) / σ`, `dw = Σ dy n`, `db = Σ dy`; and
    what the sum that was normed has of gradient from elsewhere comes to `dx`."""
    row = tl.arange(0, rows)
    column = tl.arange(0, tile)
    place = row[:, None] * width + column[None, :]
    scales = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    for_weight = tl.zeros((rows, tile), tl.float32)
    for_bias = tl.zeros((rows, tile), tl.float32)
    for first in tl.range(tl.program_id(0) * rows, total, tl.num_programs(0) * rows, num_stages=stages):
        begin = tl.cast(first, tl.int64) * width
        there = first + row < total
        inside = there[:, None] & (column < width)[None, :]
        dy = tl.load(grad + begin + place, mask=inside, other=0.0).to(tl.float32)
        normed = tl.load(x + begin + place, mask=inside, other=0.0).to(tl.float32)
        if passed:
            straight = tl.load(through + begin + place, mask=inside, other=0.0)
        if dropped:
            kept = _kept(seed, begin, place, threshold)
        if added:
            more = tl.load(f + begin + place, mask=inside, other=0.0).to(tl.float32) * scale
            if dropped:
                more = tl.where(kept, more, 0.0)
            normed += more
        steepness = tl.load(inverse + first + row, mask=there, other=0.0)[:, None]
        if centred:
            normed -= tl.load(mean + first + row, mask=there, other=0.0)[:, None]
        normed = tl.where(inside, normed * steepness, 0.0)
        for_weight += dy * normed
        for_bias += dy
        dy *= scales
        along = tl.sum(dy * normed, axis=1) / width
        result = dy - normed * along[:, None]
        if centred:
            result -= (tl.sum(dy, axis=1) / width)[:, None]
        result *= steepness
        if passed:
            result += straight.to(tl.float32)
        tl.store(dx + begin + place, result.to(dx.dtype.element_ty), mask=inside)
        if split:
            result *= scale
            if dropped:
                result = tl.where(kept, result, 0.0)
            tl.store(df + begin + place, result.to(df.dtype.element_ty), mask=inside)
    at = sums + tl.program_id(0) * 2 * width + column
    tl.store(at, tl.sum(for_weight, axis=0), mask=column < width)
    tl.store(at + width, tl.sum(for_bias, axis=0), mask=column < width)


@triton.jit(do_not_specialize=["threshold", "scale"])
def _add_dropout(x, f, seed, y, count, threshold, scale, summed: tl.constexpr, block: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * block
    place = tl.arange(0, block)
    inside = begin + place < count
    value = tl.load(f + begin + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(_kept(seed, begin, place, threshold), value * scale, 0.0)
    if summed:
        value += tl.load(x + begin + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + begin + place, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["total", "threshold", "scale"])
def _activate_dropout(
    x, bias, seed, y, total, threshold, scale, width: tl.constexpr, kind: tl.constexpr, share: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """A share of the rows, some of the columns."""
    across: tl.constexpr = (width + columns - 1) // columns
    start = tl.program_id(0) // across * share
    column = tl.program_id(0) % across * columns + tl.arange(0, columns)
    row = tl.arange(0, rows)
    place = row[:, None] * width + column[None, :]
    shift = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    for first in range(start, min(start + share, total), rows):
        begin = tl.cast(first, tl.int64) * width
        inside = (first + row < total)[:, None] & (column < width)[None, :]
        value = tl.load(x + begin + place, mask=inside, other=0.0).to(tl.float32) + shift
        kept = _kept(seed, begin, place, threshold)
        if kind == "gelu":
            value *= _normal_below(value, tl.exp2(value * value * BELL))
        elif kind == "gelu_tanh":
            value *= _below_by_tanh(value)
        elif kind == "silu":
            value *= tl.sigmoid(value)
        else:
            kept &= value > 0.0
        tl.store(y + begin + place, tl.where(kept, value * scale, 0.0).to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["total", "threshold", "scale"])
def _activate_dropout_backward(
    grad, saved, bias, seed, dx, sums, total, threshold, scale, width: tl.constexpr, kind: tl.constexpr,
    share: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """GELU is `x Φ(x)`, so its slope is `Φ(x) + x φ(x)`; SiLU is `x σ(x)`, with `σ(x) (1 + x (1 - σ(x)))`. GELU by the
    hyperbolic tangent is `x σ(u)`, with `σ(u) (1 + x u' (1 - σ(u)))`. Of ReLU what was saved is the output: only what
    is above 0 was neither cut off nor dropped."""
    across: tl.constexpr = (width + columns - 1) // columns
    start = tl.program_id(0) // across * share
    column = tl.program_id(0) % across * columns + tl.arange(0, columns)
    row = tl.arange(0, rows)
    place = row[:, None] * width + column[None, :]
    if kind != "relu":
        shift = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    for_bias = tl.zeros((rows, columns), tl.float32)
    for first in range(start, min(start + share, total), rows):
        begin = tl.cast(first, tl.int64) * width
        inside = (first + row < total)[:, None] & (column < width)[None, :]
        value = tl.load(saved + begin + place, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(grad + begin + place, mask=inside, other=0.0).to(tl.float32) * scale
        if kind == "relu":
            kept = value > 0.0
        else:
            kept = _kept(seed, begin, place, threshold)
            value += shift
        if kind == "gelu":
            fall = tl.exp2(value * value * BELL)
            slope *= _normal_below(value, fall) + value * fall * 0.3989422804014327  # 1/√(2π)
        elif kind == "gelu_tanh":
            portion = _below_by_tanh(value)
            steepness = TANH_1 + 3.0 * TANH_3 * value * value
            slope *= portion * (1.0 + value * steepness * (1.0 - portion))
        elif kind == "silu":
            portion = tl.sigmoid(value)
            slope *= portion * (1.0 + value * (1.0 - portion))
        slope = tl.where(kept, slope, 0.0)
        tl.store(dx + begin + place, slope.to(dx.dtype.element_ty), mask=inside)
        for_bias += slope
    at = sums + tl.program_id(0) // across * width + column
    tl.store(at, tl.sum(for_bias, axis=0), mask=column < width)


@triton.jit
def _normal_below(x, fall):
    """Φ(x), the share of a normal distribution that is below, given `exp(-x²/2)`: the error function to 1.5e-7
    (Abramowitz and Stegun 1964, 7.1.26, for their `x` here `x/√2`). In GELU its errors are those of float32, and
    `tl.erf` becomes half as many instructions again, which these kernels, near the limit of both, would wait for."""
    t = 1.0 + 0.2316418883 * tl.abs(x)
    t = tl.rsqrt(t * t)  # 1/t in two instructions; a division is eight
    above = 0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    above *= t * fall  # the share above |x|
    return tl.where(x > 0.0, 1.0 - above, above)


@triton.jit
def _below_by_tanh(x):
    """`σ(u)`, which is nearly Φ(x). Of what is far below 0 the exponential would be infinite."""
    return tl.sigmoid(tl.maximum(x * (TANH_1 + TANH_3 * x * x), -80.0))
