"""Sequences on one track, thinned out by convolutions of stride 2, where shapes may not follow from lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.ragged import Ragged, round_up


@dataclass(frozen=True)
class Track:
    """Sequences on one track, each beginning at a multiple of `step` and with at least `step - 1` free places behind
    it, so that convolutions of 3 places which halve it up to `step` never see two sequences at once."""

    frame: Tensor  # (track,): which value stands at a place; any, where there is none
    empty: Tensor  # (track,): True where there is none
    begin: Tensor  # (rows,): where a sequence begins
    lengths: Tensor  # (rows,)
    made: Ragged  # (total', 0): the layout of what comes out
    slot: Tensor  # (total',): where on the thinned track each of these stands
    place: Tensor  # (track / step,): and which of them stands there; any, where there is none
    none: Tensor  # (track / step,): True where there is none

    @staticmethod
    def of(x: Ragged, step: int) -> Track:
        """All sizes follow from the shapes of `x`."""
        total, rows, device = x.values.shape[0], x.rows, x.offsets.device
        taken = (x.lengths + 2 * step - 2) // step * step
        ends, size = taken.cumsum(0), round_up(total + rows * (2 * step - 2), step)
        begin, fewer = ends - taken, (x.lengths + step - 1) // step
        place = torch.arange(size, device=device)
        row = torch.searchsorted(ends, place, right=True).clamp(max=rows - 1)
        at = place - begin[row]
        frame = (x.offsets.long()[row] + at).clamp(max=total - 1)
        made = Ragged(
            x.values.new_empty((total // step + rows, 0)), F.pad(fewer.cumsum(0), (1, 0)).to(x.offsets.dtype),
            -(-x.longest // step), spare=True,
        )  # fmt: skip
        thin, row = place[: size // step], row[::step]
        out = thin - begin[row] // step
        slot = (made.spread(begin // step) + made.position).clamp(max=size // step - 1)
        index = (made.offsets.long()[row] + out).clamp(max=made.values.shape[0] - 1)
        return Track(
            frame, at >= x.lengths[row.repeat_interleave(step)], begin, x.lengths, made, slot, index, out >= fewer[row]
        )

    def around(self, halved: int) -> Tensor:
        """The places before and behind each sequence on the track thinned out so far, which convolutions see."""
        begin, behind = self.begin // halved, (self.begin + self.lengths + halved - 1) // halved
        return torch.cat((torch.where(begin > 0, begin - 1, behind), behind))


def convolved(x: Tensor, convolution: nn.Conv2d) -> Tensor:
    """A convolution over `(1, time, bands, channels)` to the same layout. Of one channel it is a product with the 9
    values around each place, for which a GPU has no good convolution."""
    weight, bias = convolution.weight, convolution.bias
    if weight.shape[1] > 1:
        return convolution(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    around = F.pad(x[0, :, :, 0], (1, 1, 1, 1))
    time, bands = (-(-number // 2) for number in x.shape[1:3])
    near = [around[i : i + 2 * time : 2, j : j + 2 * bands : 2][:time, :bands] for i in range(3) for j in range(3)]
    return F.linear(torch.stack(near, -1), weight.flatten(1), bias).unsqueeze(0)


class ReluApart(torch.autograd.Function):
    """`relu`, in place, and 0 at some places of time: `(1, time, …)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        y = x.relu_().index_fill_(1, places, 0.0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradient, y, 0), None
