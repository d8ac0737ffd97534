"""Decoders: the target so far and a `Memory` in, a vector for the next token out.

Each can run over a whole target at once (`forward`, teacher forced) or a token at a time (`start`, `step`); both give
the same numbers. What is carried between steps is a frozen state. In a search several rows belong to one source, so a
state keeps what is a row's (`select` reorders it) apart from what is a source's, which is never copied for a beam:
rows of one source stand together, as many for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from regard.models.encoders import Embedding, Memory
from regard.nn.attention import Attention, allowed
from regard.nn.blocks import DecoderBlock, KeysValues
from regard.nn.recurrence import Recurrence
from regard.ragged import Ragged


class State(Protocol):
    """What a decoder carries between steps."""

    def select(self, rows: Tensor, sources: Tensor | None = None) -> Self:
        """The state of these rows, in this order. `sources`: which sources stay, where some have left."""
        ...


class Decoder(Protocol):
    """Any decoder."""

    def __call__(self, tokens: Ragged, memory: Memory) -> Ragged:
        """All steps at once: `(total,)` tokens to `(total, d_model)`."""
        ...

    def start(self, memory: Memory) -> State:
        """The state before the first token."""
        ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """One token a row, `(rows,)`, to `(rows, d_model)` and the state after it."""
        ...


@dataclass(frozen=True)
class View:
    """What a recurrent decoder sees of the source: the summary, or states to attend to."""

    summary: Tensor  # (sources, d_model)
    values: Tensor  # (sources, source, d_model)
    keys: Tensor  # (sources, heads, source, d_key)
    mask: Tensor  # (sources, source)
    number: Tensor  # (sources,): which row of the batch each is

    def select(self, sources: Tensor) -> View:
        return View(*(getattr(self, field.name)[sources] for field in fields(self)))


@dataclass(frozen=True)
class RecurrentState:
    """A recurrent decoder between two tokens."""

    carry: Tensor  # (rows, layers, parts, d_model)
    fed: Tensor  # (rows, d_model): the last output, for input feeding
    view: View

    def select(self, rows: Tensor, sources: Tensor | None = None) -> RecurrentState:
        view = self.view if sources is None else self.view.select(sources)
        return RecurrentState(self.carry[rows], self.fed[rows], view)


class RecurrentDecoder(nn.Module):
    """`s_t = f(x_t, s_{t-1})`, and an output of it, under one of five ways to look at the source:

    - `last` (Sutskever et al. 2014): `x_t = y_{t-1}`; only `s_0` knows the source; the output is `s_t`
    - `every` (Cho et al. 2014): `x_t = [y_{t-1}; c]`, output `tanh(W [s_t; c])`, `c` the summary
    - `recurrence` (Bahdanau et al. 2015): `c_t` attended to from `s_{t-1}`; `x_t = [y_{t-1}; c_t]`, output
      `tanh(W [s_t; c_t])`
    - `output` (Luong et al. 2015): `x_t = y_{t-1}`; `c_t` attended to from `s_t`; output `o_t = tanh(W [s_t; c_t])`
    - `feeding` (Luong et al. 2015, 3.3): the same with `x_t = [y_{t-1}; o_{t-1}]`
    """

    def __init__(
        self, embedding: Embedding, cell: str, d_model: int, layers: int, *, way: str, attention: Attention | None,
        bridge: str, dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.way, self.embedding, self.attention = way, embedding, attention
        d_input = d_model if way in ("last", "output") else 2 * d_model
        self.recurrence = Recurrence(cell, d_input, d_model, layers, dropout)
        self.carry_shape = (layers, self.recurrence.parts, d_model)
        self.bridge = nn.Linear(d_model, layers * self.recurrence.parts * d_model) if bridge == "dense" else None
        self.join = nn.Linear(2 * d_model, d_model, bias=False) if way != "last" else None
        self.dropout = nn.Dropout(dropout)

    def start(self, memory: Memory) -> RecurrentState:
        if self.bridge is not None:
            carry = torch.tanh(self.bridge(memory.summary)).unflatten(-1, self.carry_shape)
        else:
            assert memory.carry is not None, "bridge: copy needs a recurrent encoder"
            carry = memory.carry
        values = memory.states.padded()
        keys = self.attention.keys(values) if self.attention is not None else values.unsqueeze(1)
        number = torch.arange(len(values), device=values.device)
        view = View(memory.summary, values, keys, memory.states.mask, number)
        return RecurrentState(carry, torch.zeros_like(memory.summary), view)

    def forward(self, tokens: Ragged, memory: Memory) -> Ragged:
        state = self.start(memory)
        y = tokens.like(self.embedding(tokens.values))
        match self.way:
            case "last":
                states, _ = self.recurrence(y, state.carry)
                return y.like(self.dropout(states.values))
            case "every":
                c = memory.summary[y.row]
                states, _ = self.recurrence(y.like(torch.cat((y.values, c), dim=-1)), state.carry)
                return y.like(self._output(states.values, c))
            case "output":
                states, _ = self.recurrence(y, state.carry)
                contexts = self._attend(states.padded(), state.view)
                return y.like(self._output(states.values, y.unpadded(contexts).values))
            case _:
                return self._unroll(y, state)

    def _unroll(self, y: Ragged, state: RecurrentState) -> Ragged:
        """A step at a time, where a step needs the one before it; rows that have ended drop out."""
        index, going, rows = y.by_step
        values, outputs = y.values[index], []
        state = state.select(rows, rows)
        position = 0
        for count in going.tolist():
            if count < len(state.carry):
                still = torch.arange(count, device=index.device)
                state = state.select(still, still)
            output, state = self._advance(values[position : position + count], state)
            outputs.append(output)
            position += count
        if not outputs:
            return y.like(y.values)
        flat = torch.cat(outputs)
        return y.like(torch.empty_like(flat).index_copy(0, index, flat))

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        return self._advance(self.embedding(tokens), state)

    def _advance(self, y: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """One step from `(rows, d_model)` embedded tokens."""
        view, carry = state.view, state.carry
        width = len(y) // len(view.summary)  # rows of one source
        match self.way:
            case "last":
                s, carry = self.recurrence.step(y, carry)
                output = self.dropout(s)
            case "every":
                c = view.summary.repeat_interleave(width, dim=0)
                s, carry = self.recurrence.step(torch.cat((y, c), dim=-1), carry)
                output = self._output(s, c)
            case "recurrence":
                c = self._attend_rows(carry[:, -1, 0], view)
                s, carry = self.recurrence.step(torch.cat((y, c), dim=-1), carry)
                output = self._output(s, c)
            case "output":
                s, carry = self.recurrence.step(y, carry)
                output = self._output(s, self._attend_rows(s, view))
            case _:
                s, carry = self.recurrence.step(torch.cat((y, state.fed), dim=-1), carry)
                output = self._output(s, self._attend_rows(s, view))
        return output, replace(state, carry=carry, fed=output)

    def _attend_rows(self, queries: Tensor, view: View) -> Tensor:
        grouped = queries.unflatten(0, (len(view.summary), -1))  # (sources, rows of one, d_model)
        return self._attend(grouped, view).flatten(0, 1)

    def _attend(self, queries: Tensor, view: View) -> Tensor:
        assert self.attention is not None, "this way of looking at the source needs attention"
        return self.attention(queries.to(view.values.dtype), view.keys, view.values, view.mask, view.number)

    def _output(self, s: Tensor, c: Tensor) -> Tensor:
        assert self.join is not None, "this way of looking at the source has nothing to join"
        return self.dropout(torch.tanh(self.join(torch.cat((s, c.to(s.dtype)), dim=-1))))


@dataclass(frozen=True)
class TransformerState:
    """A Transformer decoder between two tokens: what each block keeps of the target so far and of the source."""

    past: tuple[KeysValues, ...]  # a row's
    source: tuple[KeysValues, ...]  # a source's
    mask: Tensor  # (sources, source)
    length: int

    def select(self, rows: Tensor, sources: Tensor | None = None) -> TransformerState:
        state = replace(self, past=_pick(self.past, rows))
        return state if sources is None else replace(state, source=_pick(self.source, sources), mask=self.mask[sources])


def _pick(blocks: tuple[KeysValues, ...], index: Tensor) -> tuple[KeysValues, ...]:
    return tuple(KeysValues(keys[index], values[index]) for keys, values in blocks)


class TransformerDecoder(nn.Module):
    """Blocks of causal self-attention and attention over the source (Vaswani et al. 2017)."""

    def __init__(
        self, embedding: Embedding, positions: nn.Module, blocks: list[DecoderBlock], final: nn.Module
    ) -> None:
        super().__init__()
        self.embedding, self.positions, self.final = embedding, positions, final
        self.blocks: Sequence[DecoderBlock] = nn.ModuleList(blocks)  # type: ignore[assignment]

    def forward(self, tokens: Ragged, memory: Memory) -> Ragged:
        x = tokens.like(self.embedding(tokens.values, self.positions(tokens.position)))
        for block in self.blocks:
            x = block(x, memory.states)
        return x.like(self.final(x.values))

    def start(self, memory: Memory) -> TransformerState:
        past, source = [], []
        for block in self.blocks:
            made = block.cross_attention.keys_values(memory.states.values)
            padded = KeysValues(*(memory.states.like(x).padded().transpose(1, 2) for x in made))
            source.append(padded)
            past.append(KeysValues(*(x[:, :, :0] for x in padded)))
        return TransformerState(tuple(past), tuple(source), allowed(memory.states)[:, 0, 0, :], 0)

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        x = self.embedding(tokens, self.positions(torch.full_like(tokens, state.length)))  # (rows, d_model)
        after = []
        for block, past, source in zip(self.blocks, state.past, state.source, strict=True):
            x, past = block.step(x, past, source, state.mask)
            after.append(past)
        return self.final(x), replace(state, past=tuple(after), length=state.length + 1)
