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

from regard.models.encoders import Embedding, Memory, place
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
    """Any decoder. `bounded` is True where it looks back at what it has read, and so only so far."""

    bounded: bool

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


@dataclass(frozen=True)
class View:
    """What a recurrent decoder sees of the source: the summary, or states to attend to."""

    summary: Tensor  # (sources, d_model)
    values: Tensor  # (sources, heads, source, d_head)
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
    view: View | None  # None: a language model

    def select(self, rows: Tensor, sources: Tensor | None = None) -> RecurrentState:
        view = self.view if sources is None or self.view is None else self.view.select(sources)
        return RecurrentState(self.carry[rows], self.fed[rows], view)


class RecurrentDecoder(nn.Module):
    """`s_t = f(x_t, s_{t-1})`, and an output of it, under one of six ways to look at the source:

    - `none`: a language model; `x_t = y_{t-1}`, the output is `s_t`
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
        self.bounded = False
        self.way, self.embedding, self.attention = way, embedding, attention
        d_input = d_model if way in ("none", "last", "output") else 2 * d_model
        self.recurrence = Recurrence(cell, d_input, d_model, layers, dropout)
        self.carry_shape = (layers, self.recurrence.parts, d_model)
        dense = bridge == "dense" and way != "none"
        self.bridge = nn.Linear(d_model, layers * self.recurrence.parts * d_model) if dense else None
        self.join = nn.Linear(2 * d_model, d_model, bias=False) if way not in ("none", "last") else None
        self.dropout = nn.Dropout(dropout)

    def start(self, memory: Memory) -> RecurrentState:
        if self.bridge is not None:
            carry = torch.tanh(self.bridge(memory.summary)).unflatten(-1, self.carry_shape)
        else:
            assert memory.carry is not None, "bridge: copy needs a recurrent encoder"
            carry = memory.carry
        states = memory.states.padded()
        keys = values = states.unsqueeze(1)
        if self.attention is not None:
            keys, values = self.attention.keys(states), self.attention.values(states)
        number = torch.arange(len(values), device=values.device)
        view = View(memory.summary, values, keys, memory.states.mask, number)
        return RecurrentState(carry, torch.zeros_like(memory.summary), view)

    def alone(self, rows: int) -> RecurrentState:
        weight = self.embedding.table.weight
        return RecurrentState(self.recurrence.start(rows, weight), weight.new_zeros(rows, 0), None)

    def read(self, tokens: Ragged, state: RecurrentState) -> tuple[Ragged, RecurrentState]:
        y = tokens.like(self.embedding(tokens.values))
        states, carry = self.recurrence(y, state.carry)
        return y.like(self.dropout(states.values)), replace(state, carry=carry)

    def forward(self, tokens: Ragged, memory: Memory | None) -> Ragged:
        if memory is None:
            return self.read(tokens, self.alone(len(tokens)))[0]
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
                assert state.view is not None, "attention needs an encoder"
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
        if self.way in ("none", "last"):
            s, carry = self.recurrence.step(y, carry)
            output = self.dropout(s)
            return output, replace(state, carry=carry)
        assert view is not None, "this way of looking at the source needs an encoder"
        width = len(y) // len(view.summary)  # rows of one source
        match self.way:
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
    """A Transformer decoder between two tokens: what each block keeps of the target so far and of the source.

    Where rows began with texts of different lengths, the shorter have empty slots before them (`real` is False there).
    """

    past: tuple[KeysValues, ...]  # a row's
    source: tuple[KeysValues | None, ...]  # a source's; None: a language model
    mask: Tensor | None  # (sources, source)
    length: int  # slots of the past
    real: Tensor | None = None  # (rows, length); None: all are

    def select(self, rows: Tensor, sources: Tensor | None = None) -> TransformerState:
        state = replace(self, past=_pick(self.past, rows), real=None if self.real is None else self.real[rows])
        if sources is None or self.mask is None:
            return state
        return replace(state, source=_pick(self.source, sources), mask=self.mask[sources])


def _pick(blocks: Sequence[KeysValues | None], index: Tensor) -> tuple[KeysValues, ...]:
    return tuple(KeysValues(both.keys[index], both.values[index]) for both in blocks if both is not None)


def _flush_right(
    blocks: Sequence[DecoderBlock], past: list[KeysValues], real: Tensor, by: Tensor
) -> tuple[list[KeysValues], Tensor]:
    """The past of each row, moved `by` `(rows,)` slots, which are empty at its end; keys keep their distances."""
    slots = real.shape[1]
    index = (torch.arange(slots, device=by.device) - by[:, None]) % slots  # (rows, slots)
    moved = []
    for block, both in zip(blocks, past, strict=True):
        where = index[:, None, :, None].expand_as(both.keys)
        keys, values = both.keys.gather(2, where), both.values.gather(2, where)
        if (relative := block.self_attention.relative) is not None:
            turned = keys.permute(2, 0, 1, 3)  # (slots, rows, heads, d_head): each row by its own distance
            keys = relative.turn(turned, turned, by)[1].permute(1, 2, 0, 3)
        moved.append(KeysValues(keys, values))
    return moved, real.gather(1, index)


class TransformerDecoder(nn.Module):
    """Blocks of causal self-attention and attention over the source (Vaswani et al. 2017).

    Without a source it is a language model (GPT, Radford et al. 2018): its blocks then have no attention over one.
    """

    def __init__(
        self, embedding: Embedding, positions: nn.Module | None, blocks: list[DecoderBlock], final: nn.Module
    ) -> None:
        super().__init__()
        self.bounded = True
        self.embedding, self.positions, self.final = embedding, positions, final
        self.blocks: Sequence[DecoderBlock] = nn.ModuleList(blocks)  # type: ignore[assignment]

    def forward(self, tokens: Ragged, memory: Memory | None) -> Ragged:
        x = tokens.like(self.embedding(tokens.values, place(self.positions, tokens.position)))
        for block in self.blocks:
            x = block(x, None if memory is None else memory.states)
        return x.like(self.final(x.values))

    def start(self, memory: Memory) -> TransformerState:
        past, source = [], []
        for block in self.blocks:
            made = block.cross_attention.keys_values(memory.states.values)
            padded = KeysValues(*(memory.states.like(x).padded().transpose(1, 2) for x in made))
            source.append(padded)
            past.append(KeysValues(*(x[:, :, :0] for x in padded)))
        return TransformerState(tuple(past), tuple(source), allowed(memory.states)[:, 0, 0, :], 0)

    def alone(self, rows: int) -> TransformerState:
        past = tuple(block.start(rows) for block in self.blocks)
        return TransformerState(past, (None,) * len(past), None, 0)

    def read(self, tokens: Ragged, state: TransformerState) -> tuple[Ragged, TransformerState]:
        """Rows are set flush right, so that what comes next has the same slot in all of them."""
        if not tokens.longest:
            return tokens.like(self.embedding(tokens.values)), state
        before = state.length if state.real is None else state.real.sum(1)[tokens.row]
        x = tokens.like(self.embedding(tokens.values, place(self.positions, tokens.position + before)))
        padded, after = x.padded(), []
        old = tokens.mask.new_ones(len(tokens), state.length) if state.real is None else state.real
        real = torch.cat((old, tokens.mask), dim=1)
        for block, past in zip(self.blocks, state.past, strict=True):
            padded, past = block.extend(padded, past, real)
            after.append(past)
        if len(tokens.values) < tokens.mask.numel():
            after, real = _flush_right(self.blocks, after, real, tokens.longest - tokens.lengths)
        outputs = tokens.unpadded(self.final(padded))
        return outputs, replace(state, past=tuple(after), length=real.shape[1], real=real)

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        if state.real is None:
            real, position = None, torch.full_like(tokens, state.length)
        else:
            real, position = torch.cat((state.real, state.real.new_ones(len(tokens), 1)), dim=1), state.real.sum(1)
        x = self.embedding(tokens, place(self.positions, position))  # (rows, d_model)
        after = []
        for block, past, source in zip(self.blocks, state.past, state.source, strict=True):
            x, past = block.step(x, past, source, state.mask, real=real)
            after.append(past)
        return self.final(x), replace(state, past=tuple(after), length=state.length + 1, real=real)
