"""What a search drives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.nn.graphs import Graphs, cloned
from regard.ragged import Ragged, bucket

# Token ids `(rows,)` and a state to a number for each token that may come next, `(rows, vocabulary)`, and the state
# after. Both are the search's own to write into. A state is opaque but for its `select(rows, sources)`, by which rows
# change places and sources leave, and, where turns are recorded, its `fixed(tokens)`.
Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


class Stepper(Protocol):
    """A model to a search. Beside `step` it may have more to offer, or None."""

    @property
    def graphs(self) -> Graphs | None:
        """Where the turns of a search are recorded; None: they are not."""

    @property
    def logits(self) -> Step | None:
        """Like `step`, but returns logits."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """`Step` to log-probabilities."""


@dataclass(frozen=True)
class LazyStart:
    """The state before the first token, still to be made of a source, which may lie elsewhere than the model."""

    start: Callable[[Ragged], Any]
    source: Ragged
    device: torch.device
    longest: int  # most positions of a source that the model has room for

    def filled(self, sources: int, parts: int = 32) -> Ragged:
        """The source in one of few shapes, with rows and values that are nobody's; of `parts`, see `bucket`."""
        total = bucket(self.source.values.shape[0], parts, 64)
        longest = max(min(bucket(self.source.longest, parts, 16), self.longest), self.source.longest)
        return self.source.filled(total, sources, longest=longest)


def begun(model: Any, first: Sequence[int]) -> Callable[[Any], Any]:
    """A model's `start` which has read all but the last of `first` too: what every output begins with."""

    def start(source: Any) -> Any:
        state = model.start(source)
        for token in first[:-1]:
            _, state = model.step(torch.full((len(source),), token, device=source.values.device), state)
        return state

    return model.start if len(first) == 1 else start


def scoring(model: Stepper) -> tuple[Step, bool]:
    """The step of a model to logits, or to log-probabilities where it offers nothing else; and whether it is those."""
    return model.logits or model.step, model.logits is None


def started(state: Any) -> Any:
    """The state, made now if it was not."""
    return state.start(state.source.to(state.device, non_blocking=True)) if isinstance(state, LazyStart) else state


def recorded_start(lazy: LazyStart, graphs: Graphs, key: Hashable) -> Any:
    """Like `started`, by a recording of what `key` identifies where sources may be filled up to few shapes."""
    if not graphs.filled:
        return started(lazy)
    rows = torch.arange(len(lazy.source), device=lazy.device)
    source = lazy.filled(bucket(len(rows), 2, 8), 2)

    def start(own: Ragged) -> Any:
        return lazy.start(replace(own))  # of which nothing is worked out yet

    state = cloned(graphs.recording(("start", key), start, source, often=True)())
    return state if len(source) == len(rows) else state.select(rows, rows)
