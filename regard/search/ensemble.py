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
from regard.models.model import AutoregressiveModel
from regard.nn.graphs import Graphs
from regard.nn.rows import Grouping
from regard.ragged import Ragged
from regard.search.stepper import Step


@dataclass(frozen=True)
class EnsembleState:
    """The state of each model."""

    states: tuple[Any, ...]

    @property
    def static_shapes(self) -> bool:
        return all(state.static_shapes for state in self.states)

    def select(self, rows: Tensor, sources: Tensor | None = None) -> EnsembleState:
        return EnsembleState(tuple(state.select(rows, sources) for state in self.states))

    def fixed(self, tokens: int) -> EnsembleState:
        return EnsembleState(tuple(state.fixed(tokens) for state in self.states))

    def grouped(self, grouping: Grouping | None) -> EnsembleState:
        return EnsembleState(tuple(state.grouped(grouping) for state in self.states))

    def join(self, others: Sequence[EnsembleState], rows: Tensor, sources: Tensor, room: int = 0) -> EnsembleState:
        parts = zip(*(state.states for state in (self, *others)), strict=True)
        return EnsembleState(tuple(own.join(rest, rows, sources, room) for own, *rest in parts))

    def put(self, other: EnsembleState, rows: Tensor, whose: Tensor, sources: Tensor, room: int) -> bool:
        pairs = zip(self.states, other.states, strict=True)
        return all(own.put(given, rows, whose, sources, room) for own, given in pairs)


def mean_step(steps: Sequence[Step], tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
    """One step of several models over the same tokens, `p = 1/K Σ_k p_k`. Averaging networks is of Hansen and Salamon
    1990; Sutskever et al. 2014 translate with it."""
    found = [step(tokens, part) for step, part in zip(steps, state.states, strict=True)]
    log_probs = torch.stack([x for x, _ in found]).logsumexp(0) - math.log(len(found))
    return log_probs, EnsembleState(tuple(part for _, part in found))


class Together:
    """Several steppers as one, which begin with the same source."""

    graphs: Graphs | None = None
    logits = None

    def __init__(self, steppers: Sequence[Any]) -> None:
        self.steppers = steppers

    def start(self, source: Any) -> EnsembleState:
        """The state before the first token."""
        return EnsembleState(tuple(stepper.start(source) for stepper in self.steppers))

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        return mean_step([stepper.step for stepper in self.steppers], tokens, state)


class Ensemble(AutoregressiveModel):
    """Several models that write as one."""

    def __init__(self, models: Sequence[AutoregressiveModel]) -> None:
        super().__init__()
        self.models: Sequence[AutoregressiveModel] = nn.ModuleList(models)  # type: ignore[assignment]

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
        return mean_step([model.step for model in self.models], tokens, state)

    def logits(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:  # type: ignore[override]
        return self.step(tokens, state)  # what is normalised already stays as it is

    def advance(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        raise ConfigError("contrastive search compares the states of one model; load one of them")
