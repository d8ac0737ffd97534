"""Dropout whose masks are drawn fast on a CPU, where torch draws them one number at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Srivastava et al. 2014: while training, each number is 0 with probability `p`, and the others grow to make up.

    On a CPU 16 random bits decide for each number, which come four at a time from a generator that torch's
    own has seeded. So `p` is kept to the nearest of 65,536, and a seed still gives the same masks.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        return _Drop.apply(x, round(self.p * 65536))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        ctx.scale = 65536 / (65536 - threshold) if threshold < 65536 else 0.0
        kept = drawn(x.numel(), threshold).view(x.shape)
        ctx.save_for_backward(kept)
        return (x * kept).mul_(ctx.scale)  # torch fills by a mask far more slowly than it multiplies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return (gradients[0] * kept).mul_(ctx.scale), None


def drawn(count: int, threshold: int) -> Tensor:
    """`(count,)` bytes, each 0 with probability `threshold / 65536`, else 1."""
    seed = int(torch.randint(2**62, ()))
    bits = np.asarray(np.random.SFC64(seed).random_raw(-(-count // 4))).view(np.uint16)[:count]
    return torch.from_numpy((bits >= threshold).view(np.uint8))
