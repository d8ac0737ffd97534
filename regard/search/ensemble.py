"""Several models that write one output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.encoders import Memory
from regard.models.model import Writer
from regard.ragged import Ragged
from regard.search.stepper import Step


@dataclass(frozen=True)
class EnsembleState:
    """The state of each model, whatever it is."""

    states: tuple[Any, ...]

    def select(self, rows: Tensor, sources: Tensor | None = None) -> EnsembleState:
        return EnsembleState(tuple(state.select(rows, sources) for state in self.states))

    def fixed(self, tokens: int) -> EnsembleState:
        return EnsembleState(tuple(state.fixed(tokens) for state in self.states))


def ensemble(
    steps: Sequence[Step], states: Sequence[Any], weights: Sequence[float] | None = None
) -> tuple[Step, EnsembleState]:
    """One step and one state of several models over the same tokens: `p = Σ_k w_k p_k`, the weights made to sum to 1.

    Averaging networks is of Hansen and Salamon 1990; Sutskever et al. 2014 translate with it.
    """
    weights = [1.0] * len(steps) if weights is None else weights
    if not len(steps) == len(states) == len(weights) > 0:
        raise ConfigError(f"an ensemble of {len(steps)} models has {len(states)} states and {len(weights)} weights")
    if min(weights) <= 0:
        raise ConfigError(f"the weights of an ensemble have to be above 0, and one is {min(weights)}")
    shares = [math.log(weight / sum(weights)) for weight in weights]

    def step(tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        found = [one(tokens, part) for one, part in zip(steps, state.states, strict=True)]
        log_probs = torch.stack([x + share for (x, _), share in zip(found, shares, strict=True)])
        return log_probs.logsumexp(0), EnsembleState(tuple(part for _, part in found))

    return step, EnsembleState(tuple(states))


class Ensemble(Writer):
    """Several models that write as one."""

    def __init__(self, models: Sequence[Writer]) -> None:
        super().__init__()
        self.models: Sequence[Writer] = nn.ModuleList(models)  # type: ignore[assignment]

    def forward(self, source: Ragged, inputs: Ragged) -> Ragged:
        """`log p`, `(total, vocabulary)`, of the token after each of `inputs`."""
        found = [model(source, inputs).values.float().log_softmax(-1) for model in self.models]
        return inputs.like(torch.stack(found).logsumexp(0) - math.log(len(found)))

    def states(self, source: Ragged, inputs: Ragged) -> Ragged:
        raise ConfigError("several models have no states in common; train each by itself")

    def encode(self, source: Ragged) -> Memory:
        raise ConfigError("several models have no encoding in common; load one of them")

    def start(self, source: Ragged) -> EnsembleState:
        return EnsembleState(tuple(model.start(source) for model in self.models))

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:  # type: ignore[override]
        together, _ = ensemble([model.step for model in self.models], state.states)
        return together(tokens, state)

    def logits(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:  # type: ignore[override]
        return self.step(tokens, state)  # what is normalised already stays as it is

    def advance(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        raise ConfigError("contrastive search compares the states of one model; load one of them")
