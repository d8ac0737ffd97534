"""Decoders: the target so far and a `Memory` in, a vector for the next token out.

Each can run over a whole target at once (`forward`, teacher forced) or a token at a time (`start`, `step`); both give
the same numbers. What is carried between steps is a frozen state. In a search several rows belong to one source, so a
state keeps what is a row's (`select` reorders it) apart from what is a source's, which is never copied for a beam:
rows of one source stand together, as many for each.
"""

from __future__ import annotations

from typing import Protocol, Self

from torch import Tensor

from regard.models.encoders import Memory
from regard.ragged import Ragged


class State(Protocol):
    """What a decoder carries between steps. A step may write into the state it is given, which is then used up."""

    def select(self, rows: Tensor, sources: Tensor | None = None) -> Self:
        """The state of these rows, in this order. `sources`: which sources stay, where some have left."""
        ...

    def fixed(self, tokens: int) -> Self:
        """With room for so many more tokens, so that no shape changes from step to step; more, if it had some.

        Room in which nothing stands yet may be one number spread out, and is there when the state has been cloned.
        """
        ...


class Decoder(Protocol):
    """Any decoder. `bounded` is True where it looks back at what it has read, and so only so far; `packed` where only
    attention relates positions to each other, and nothing waits for the device."""

    bounded: bool
    packed: bool

    def __call__(self, tokens: Ragged, memory: Memory | None) -> Ragged:
        """All steps at once: `(total,)` tokens to `(total, d_model)`."""
        ...

    def start(self, memory: Memory) -> State:
        """The state before the first token."""
        ...

    def alone(self, rows: int) -> State:
        """The state before the first token, where there is nothing to look at."""
        ...

    def read(self, tokens: Ragged, state: State) -> tuple[Ragged, State]:
        """Some more tokens at once, where there is nothing to look at; `(total, d_model)` and the state after them."""
        ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """One token a row, `(rows,)`, to `(rows, d_model)` and the state after it."""
        ...
