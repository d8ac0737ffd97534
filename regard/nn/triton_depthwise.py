"""The depthwise convolution of `regard.nn.depthwise` in Triton, imported only when a tensor for it arrives.

Rows lie end to end and are read as they lie. How many vectors of its own row stand before and after each (as far as the
convolution reaches) is worked out on the way forward: with it, whether a neighbour counts is two comparisons. Each
vector is read once for each tap, of which all but one find it in the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.triton_kernels import on_device

SHARES = 128  # into which the times are cut for the gradient of the weights: each program sums over one of them
LEAST = 16  # times of a share


class Tile(NamedTuple):
    """How a kernel is cut: times (of the convolution) or taps (of the gradient of the weights) and channels of a tile,
    and warps of a program. Channels are fewer than its threads: then Triton reads what all times share, the weights of
    a tap, straight into the registers that want it, and else by way of shared memory."""

    rows: int
    channels: int
    warps: int


CONVOLVE, CORRELATE = Tile(64, 64, 4), Tile(32, 64, 4)


def convolve(x: Tensor, weight: Tensor, bias: Tensor, row: Tensor, tile: Tile = CONVOLVE) -> tuple[Tensor, Tensor]:
    """`(total, width)` for a `weight` `(kernel, width)`; and `(2, total)`, how many vectors of the same row stand
    before and after each."""
    y, reach = torch.empty_like(x), row.new_empty((2, x.shape[0]), dtype=torch.int32)
    _launch(x, weight, bias, row, reach, y, tile, backward=False)
    return y, reach


def convolve_backward(grad: Tensor, weight: Tensor, reach: Tensor, tile: Tile = CONVOLVE) -> Tensor:
    """The gradient of `x`: the same convolution, with the weights turned around and without a bias."""
    dx = torch.empty_like(grad)
    _launch(grad, weight, weight, reach, reach, dx, tile, backward=True)
    return dx


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor, row: Tensor, reach: Tensor, y: Tensor, tile: Tile, *, backward: bool
) -> None:
    total, width = x.shape
    channels = _channels(width, tile)
    with on_device(x):
        _convolve[(max(triton.cdiv(total, tile.rows), 1), triton.cdiv(width, channels))](
            x, weight, bias, row, reach, y, total, width=width, kernel=weight.shape[0], backward=backward,
            times=tile.rows, channels=channels, num_warps=tile.warps,
        )  # fmt: skip


def correlate(
    grad: Tensor, x: Tensor, reach: Tensor, kernel: int, tile: Tile = CORRELATE, shares: int = SHARES
) -> Tensor:
    """Gradients of the weights and, below them, of the bias, `(kernel + 1, width)` in float32; every run gives the
    same."""
    total, width = x.shape
    share = max(LEAST, triton.cdiv(total, shares))
    programs = max(triton.cdiv(total, share), 1)
    sums = x.new_empty((programs, kernel + 1, width), dtype=torch.float32)
    taps, channels = min(tile.rows, int(triton.next_power_of_2(kernel + 1))), _channels(width, tile)
    with on_device(x):
        _correlate[(programs, triton.cdiv(width, channels), triton.cdiv(kernel + 1, taps))](
            grad, x, reach, sums, total, share, width=width, kernel=kernel, taps=taps, channels=channels,
            num_warps=tile.warps,
        )  # fmt: skip
    return sums.sum(0)


def _channels(width: int, tile: Tile) -> int:
    return max(16, min(tile.channels, int(triton.next_power_of_2(width))))


@triton.jit(do_not_specialize=["total"])
def _convolve(
    x, weight, bias, row, reach, y, total, width: tl.constexpr, kernel: tl.constexpr, backward: tl.constexpr,
    times: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """`y_t = b + Σ_i w_i x_{t + i - k//2}` of some times and channels; backward, `Σ_i w_i x_{t - i + k//2}`."""
    gap: tl.constexpr = kernel // 2
    first = tl.program_id(0) * times
    time = first + tl.arange(0, times)
    there = time < total
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    inside = channel < width
    if backward:
        before = tl.load(reach + time, mask=there, other=-1)
        after = tl.load(reach + total + time, mask=there, other=0)
    else:
        before, after = _reach(row, time, there, total, gap, times)
        if tl.program_id(1) == 0:
            tl.store(reach + time, before, mask=there)
            tl.store(reach + total + time, after, mask=there)
    begin = first.to(tl.int64) * width
    place = tl.arange(0, times)[:, None] * width + channel[None, :]
    sums = tl.zeros((times, channels), tl.float32)
    if not backward:
        sums += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    for i in range(kernel):
        shift = gap - i if backward else i - gap
        seen = (shift >= -before) & (shift <= after)
        near = tl.load(x + begin + shift * width + place, mask=seen[:, None] & inside[None, :], other=0.0)
        sums += near.to(tl.float32) * tl.load(weight + i * width + channel, mask=inside, other=0.0).to(tl.float32)[None]
    tl.store(y + begin + place, sums.to(y.dtype.element_ty), mask=there[:, None] & inside[None, :])


@triton.jit
def _reach(row, time, there, total, gap: tl.constexpr, times: tl.constexpr):
    """How many vectors of its row stand before and after each, up to `gap`; before what is not there, -1: not even
    itself."""
    own = tl.load(row + time, mask=there, other=-1)
    before = tl.where(there, 0, -1)
    after = tl.zeros((times,), tl.int32)
    for some in range(0, gap, 16):
        away = some + 1 + tl.arange(0, 16)[None, :]
        near = away <= gap
        left = time[:, None] - away
        right = time[:, None] + away
        in_left = tl.load(row + left, mask=near & (left >= 0) & (left < total), other=-2) == own[:, None]
        in_right = tl.load(row + right, mask=near & (right < total), other=-2) == own[:, None]
        before += tl.sum(in_left.to(tl.int32), axis=1)
        after += tl.sum(in_right.to(tl.int32), axis=1)
    return before, after


@triton.jit(do_not_specialize=["total", "share"])
def _correlate(
    grad, x, reach, sums, total, share, width: tl.constexpr, kernel: tl.constexpr, taps: tl.constexpr,
    channels: tl.constexpr,
):  # fmt: skip
    """`dw_i = Σ_t dy_t x_{t + i - k//2}` and `db = Σ_t dy_t` of a share of the times, some taps and channels."""
    tap = tl.program_id(2) * taps + tl.arange(0, taps)
    shift = tap - kernel // 2
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    inside = channel < width
    weighs = tap < kernel
    place = shift[:, None] * width + channel[None, :]
    # The bias is one tap more, which sees nothing: where nothing is seen stands 0, and for it 1.
    blank = tl.zeros((taps, channels), tl.float32) + tl.where(tap == kernel, 1.0, 0.0)[:, None]
    blank = blank.to(x.dtype.element_ty)
    found = tl.zeros((taps, channels), tl.float32)
    start = tl.program_id(0) * share
    for time in tl.range(start, tl.minimum(start + share, total), loop_unroll_factor=4):
        begin = tl.cast(time, tl.int64) * width
        seen = weighs & (shift >= -tl.load(reach + time)) & (shift <= tl.load(reach + total + time))
        dy = tl.load(grad + begin + channel, mask=inside, other=0.0).to(tl.float32)
        near = tl.load(x + begin + place, mask=seen[:, None] & inside[None, :], other=blank)
        found += dy[None, :] * near.to(tl.float32)
    at = sums + (tl.program_id(0).to(tl.int64) * (kernel + 1) + tap[:, None]) * width + channel[None, :]
    tl.store(at, found, mask=(tap <= kernel)[:, None] & inside[None, :])
