"""Linear layers: as they are trained, and as they decode fastest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """`W x + b`, of which some rows can be asked for alone."""

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of the output, which is the last axis here."""
        return F.linear(x, self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


class Upright(nn.Module):
    """`W x + b` with `W` kept as its transpose, which a CPU reads twice as fast for a single `x`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().t().contiguous(), requires_grad=False)
        bias = linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias.detach().clone()
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x, 0, len(self.bias))

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of the output."""
        flat = torch.addmm(self.bias[start:stop], x.reshape(-1, x.shape[-1]), self.weight[:, start:stop])
        return flat.view(*x.shape[:-1], stop - start)


class Quantised(nn.Module):
    """`W x + b` in whole numbers of 8 bits: `W` with a scale for each output, `x` rounded with one of its own."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(1).clamp(min=1e-12) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", torch.zeros_like(scale) if linear.bias is None else linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x, 0, len(self.bias))

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of the output."""
        flat = x.reshape(-1, x.shape[-1])
        scale = flat.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        rounded = (flat / scale).round_().to(torch.int8)
        products = torch._int_mm(rounded, self.weight[start:stop].t()).to(x.dtype)
        found = torch.addcmul(self.bias[start:stop], products.mul_(scale), self.scale[start:stop])
        return found.view(*x.shape[:-1], stop - start)
