"""Searches that are advanced a token at a time by whoever has the model and its state.

A search holds its bookkeeping alone: it says what the model should read next, is handed log-probabilities, and answers
which rows of the state go on. So one search can run to its end over a state of its own (`drive`), and many that began
at different times can share one step of the network (`continuous.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from regard.nn.graphs import Graphs
from regard.search.limits import Hypothesis
from regard.search.stepper import Step


class IncrementalSearch(ABC):
    """The search for the outputs of some sources. The rows of a source stand together, as many for each."""

    @property
    @abstractmethod
    def token(self) -> Tensor:
        """What the model reads next, `(rows,)`."""

    @property
    @abstractmethod
    def over(self) -> Tensor:
        """`(sources,)`: whose search is over. Such a source may idle along until it is dropped."""

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """Searches of one kind can be joined; None: this one cannot."""

    @abstractmethod
    def advance(self, given: Tensor) -> Tensor | None:
        """Take in what the model says of the next token, `(rows, vocabulary)`, which may be written into. Gives the row
        that each row of the next turn goes on from, which need not be as many; None: each goes on from itself."""

    @abstractmethod
    def results(self, sources: Tensor) -> Callable[[], list[list[Hypothesis]]]:
        """Send what was found for each of these sources on its way from the device, before another turn overwrites it.
        What is given back waits for it; the best come first."""

    @abstractmethod
    def settled(self, sources: Tensor) -> Callable[[], list[list[int]]]:
        """Like `results`, for each of these sources the tokens that its best output surely begins with."""

    @abstractmethod
    def keep(self, stay: Tensor) -> None:
        """Only these sources go on, in this order."""

    @abstractmethod
    def join(self, others: Sequence[Self]) -> None:
        """Take in the sources of others of this kind, behind its own."""

    def put(self, places: Tensor, other: Self) -> bool:
        """Write the sources of another of this kind over these, in place, if there is room for them, so that what is
        recorded stays. False: what these places hold is nothing any more."""
        return False

    def fixed(self, sources: Tensor, graphs: Graphs) -> None:
        """Only these sources go on, some of them several times over, so that they are one of few numbers. Turns until
        others join may be recorded."""
        self.keep(sources)

    def rows(self, sources: Tensor) -> Tensor:
        """The rows that belong to some sources."""
        each = len(self.token) // len(self.over)
        return (sources[:, None] * each + torch.arange(each, device=sources.device)).flatten()


def drive(step: Step, state: Any, search: IncrementalSearch) -> list[list[Hypothesis]]:
    """Turn after turn, over a state of its own; a source leaves as soon as its search is over."""
    left = torch.arange(len(search.over))
    found: list[list[Hypothesis]] = [[] for _ in left]
    while len(left):
        given, state = step(search.token, state)
        rows = search.advance(given)
        over = search.over
        if over.any():
            done = over.nonzero().flatten()
            for number, hypotheses in zip(left[done.cpu()].tolist(), search.results(done)(), strict=True):
                found[number] = hypotheses
            stay = (~over).nonzero().flatten()
            left = left[stay.cpu()]
            if not len(left):
                break
            own = search.rows(stay)
            search.keep(stay)
            state = state.select(own if rows is None else rows[own], stay)
        elif rows is not None:
            state = state.select(rows)
    return found
