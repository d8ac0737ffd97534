"""Batch norm, and the statistics it gathers: what a model learns without a gradient."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """Ioffe and Szegedy 2015, over `(rows, channels, …)`: `(x - mean) / √(variance + ε) · γ + β`, with the mean and
    variance of the batch while it trains, and with their moving means in use.

    Where it is frozen (`training.freeze`) it uses the moving means in training too, and leaves them as they are.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.weight.requires_grad and x.numel() > x.shape[1]:  # one number has no variance
            running = (self.running_mean, self.running_var)
            return F.batch_norm(x, *running, self.weight, self.bias, True, self.momentum, self.epsilon)
        scale = self.weight * torch.rsqrt(self.running_var.to(self.weight.dtype) + self.epsilon)
        shift = self.bias - self.running_mean.to(scale.dtype) * scale
        shape = (-1, *[1] * (x.dim() - 2))
        return x * scale.to(x.dtype).view(shape) + shift.to(x.dtype).view(shape)


def statistics(model: nn.Module, *, every_name: bool = False) -> Iterator[tuple[str, Tensor]]:
    """The real numbers that a model gathers in its buffers, which are saved with its weights, by name; with
    `every_name`, those of a shared part under each of its names."""
    for where, module in model.named_modules(remove_duplicate=not every_name):
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set and buffer.is_floating_point():  # not what counts batches
                yield f"{where}.{name}" if where else name, buffer
