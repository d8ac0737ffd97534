"""A moving mean of the weights, to validate and to keep in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

SAVED = "ema/"  # how the names of its tensors begin in a checkpoint


class MovingMean:
    """`θ̄ ← d θ̄ + (1 - d) θ` after every update (Polyak and Juditsky 1992, with exponential weights). In the first
    updates the decay is less, `(1 + t) / (10 + t)`, so that little is left of where the weights began."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.weights, self.decay = dict(model.named_parameters()), decay
        self.mean: dict[str, Tensor] = {}

    def update(self, step: int) -> None:
        """Take in the weights after update `step`, from 1."""
        if not self.mean:
            self.mean = {name: weight.detach().clone() for name, weight in self.weights.items()}
            return
        decay = min(self.decay, (1 + step) / (10 + step))
        own = [self.mean[name] for name in self.weights]
        torch._foreach_lerp_(own, [weight.detach() for weight in self.weights.values()], 1.0 - decay)

    def saved(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""
        return {SAVED + name: tensor for name, tensor in self.mean.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `saved` gave."""
        self.mean = {name.removeprefix(SAVED): tensor for name, tensor in tensors.items() if name.startswith(SAVED)}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside this the model has the mean for its weights."""
        if not self.mean:
            yield
            return
        own = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self._put(self.mean)
        try:
            yield
        finally:
            self._put(own)

    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(tensors[name])
