"""The depthwise convolution of `regard.nn.depthwise` in Triton, imported only when a tensor for it arrives.

Rows lie end to end and are read as they lie: a neighbour counts where it is of the same row. Each vector is read once
for each tap, and found in the cache by all taps but the first. The gradient of the weights is the same loop with times
and taps in each other's place, so that nothing is summed across threads.
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
    """How a kernel is cut: times of a tile, or taps for the gradient of the weights; its channels; warps of a program.
    Of each there should be fewer than threads: then Triton reads what is one number a time or a channel straight into
    the registers that want it, and else by way of shared memory, with a barrier at every turn of the loop."""

    rows: int
    channels: int
    warps: int


CONVOLVE, CORRELATE = Tile(64, 64, 4), Tile(32, 64, 4)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, row: Tensor, tile: Tile = CONVOLVE, *, backward: bool = False
) -> Tensor:
    """`(total, width)` for a `weight` `(kernel, width)`; backward, from the gradient of that the gradient of `x`: the
    same convolution with its weights turned around."""
    (total, width), channels = x.shape, _channels(x.shape[1], tile)
    y = torch.empty_like(x)
    with on_device(x):
        _convolve[(max(triton.cdiv(total, tile.rows), 1), triton.cdiv(width, channels))](
            x, weight, weight if bias is None else bias, row, y, total, width=width, kernel=weight.shape[0],
            backward=backward, shifted=bias is not None, times=tile.rows, channels=channels, num_warps=tile.warps,
        )  # fmt: skip
    return y


def correlate(
    grad: Tensor, x: Tensor, row: Tensor, kernel: int, tile: Tile = CORRELATE, shares: int = SHARES
) -> Tensor:
    """Gradients of the weights and, below them, of the bias, `(kernel + 1, width)` in float32; every run gives the
    same."""
    (total, width), channels = x.shape, _channels(x.shape[1], tile)
    taps = min(tile.rows, int(triton.next_power_of_2(kernel + 1)))
    share = max(LEAST, triton.cdiv(total, shares))
    programs = max(triton.cdiv(total, share), 1)
    sums = x.new_empty((programs, kernel + 1, width), dtype=torch.float32)
    with on_device(x):
        _correlate[(programs, triton.cdiv(width, channels), triton.cdiv(kernel + 1, taps))](
            grad, x, row, sums, total, share, width=width, kernel=kernel, taps=taps, channels=channels,
            num_warps=tile.warps,
        )  # fmt: skip
    return sums.sum(0)


def _channels(width: int, tile: Tile) -> int:
    return max(16, min(tile.channels, int(triton.next_power_of_2(width))))


@triton.jit(do_not_specialize=["total"])
def _convolve(
    x, weight, bias, row, y, total, width: tl.constexpr, kernel: tl.constexpr, backward: tl.constexpr,
    shifted: tl.constexpr, times: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """`y_t = b + Σ_i w_i x_{t + i - k//2}` of some times and channels; backward, `Σ_i w_i x_{t - i + k//2}`."""
    gap: tl.constexpr = kernel // 2
    first = tl.program_id(0) * times
    time = first + tl.arange(0, times)
    there = time < total
    own = tl.load(row + time, mask=there, other=-1)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    inside = channel < width
    begin = first.to(tl.int64) * width
    place = tl.arange(0, times)[:, None] * width + channel[None, :]
    sums = tl.zeros((times, channels), tl.float32)
    if shifted:
        sums += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    for i in range(kernel):
        shift = gap - i if backward else i - gap
        at = time + shift
        seen = own == tl.load(row + at, mask=(at >= 0) & (at < total), other=-2)
        near = tl.load(x + begin + shift * width + place, mask=seen[:, None] & inside[None, :], other=0.0)
        scale = tl.load(weight + i * width + channel, mask=inside, other=0.0)
        sums += near.to(tl.float32) * scale.to(tl.float32)[None, :]
    tl.store(y + begin + place, sums.to(y.dtype.element_ty), mask=there[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["total", "share"])
def _correlate(
    grad, x, row, sums, total, share, width: tl.constexpr, kernel: tl.constexpr, taps: tl.constexpr,
    channels: tl.constexpr,
):  # fmt: skip
    """`dw_i = Σ_t dy_t x_{t + i - k//2}` and `db = Σ_t dy_t` of a share of the times, some taps and channels."""
    tap = tl.program_id(2) * taps + tl.arange(0, taps)
    shift = tap - kernel // 2
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    inside = channel < width
    place = shift[:, None] * width + channel[None, :]
    # The bias is one tap more, which sees nothing: where nothing is seen stands 0, and for it 1.
    blank = tl.zeros((taps, channels), tl.float32) + tl.where(tap == kernel, 1.0, 0.0)[:, None]
    blank = blank.to(x.dtype.element_ty)
    found = tl.zeros((taps, channels), tl.float32)
    start = tl.program_id(0) * share
    for time in tl.range(start, tl.minimum(start + share, total), loop_unroll_factor=4):
        begin = tl.cast(time, tl.int64) * width
        at = time + shift
        seen = tl.load(row + at, mask=(tap < kernel) & (at >= 0) & (at < total), other=-1) == tl.load(row + time)
        dy = tl.load(grad + begin + channel, mask=inside, other=0.0).to(tl.float32)
        near = tl.load(x + begin + place, mask=seen[:, None] & inside[None, :], other=blank)
        found += dy[None, :] * near.to(tl.float32)
    at = sums + (tl.program_id(0).to(tl.int64) * (kernel + 1) + tap[:, None]) * width + channel[None, :]
    tl.store(at, found, mask=(tap <= kernel)[:, None] & inside[None, :])
