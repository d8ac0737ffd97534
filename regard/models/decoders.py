"""Decoders: the target so far and a `Memory` in, a vector for the next token out.

Each can run over a whole target at once (`forward`, teacher forced) or a token at a time (`start`, `step`); both give
the same numbers. What is carried between steps is a frozen state. In a search several rows belong to one source, so a
state keeps what is a row's (`select` reorders it) apart from what is a source's, which is never copied for a beam:
rows of one source stand together, as many for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.encoders import Embedding, Memory, rounded
from regard.nn.attention import Attention, Slots, allowed, sight
from regard.nn.blocks import DecoderBlock
from regard.nn.dropout import Dropout
from regard.nn.graphed import Graphs, few, recorder
from regard.nn.recurrence import Recurrence, Steps
from regard.nn.repeated import applied, kind_of, loop
from regard.ragged import Ragged, gathered


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
    """Any decoder. `bounded` is True where it looks back at what it has read, and so only so far; `packed` where
    `__call__` takes values that belong to no sequence, on a GPU."""

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


@dataclass(frozen=True)
class View:
    """What a recurrent decoder sees of the source: the summary, or states to attend to."""

    summary: Tensor  # (sources, d_model)
    values: Tensor  # (sources, heads, source, d_head)
    keys: Tensor  # (sources, heads, source, d_key)
    mask: Tensor  # (sources, source)
    number: Tensor  # (sources,): which row of the batch each is

    def select(self, sources: Tensor | slice) -> View:
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

    def fixed(self, tokens: int) -> RecurrentState:
        return self


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
        self.bounded = self.packed = False
        self.way, self.embedding, self.attention = way, embedding, attention
        d_input = d_model if way in ("none", "last", "output") else 2 * d_model
        self.recurrence = Recurrence(cell, d_input, d_model, layers, dropout)
        self.carry_shape = (layers, self.recurrence.parts, d_model)
        dense = bridge == "dense" and way != "none"
        self.bridge = nn.Linear(d_model, layers * self.recurrence.parts * d_model) if dense else None
        self.join = nn.Linear(2 * d_model, d_model, bias=False) if way not in ("none", "last") else None
        self.dropout = Dropout(dropout)

    def start(self, memory: Memory) -> RecurrentState:
        carry = self._bridged(self._bank(memory))
        states = memory.states.padded()
        keys = values = states.unsqueeze(1)
        if self.attention is not None:
            keys, values = self.attention.keys(states), self.attention.values(states)
        number = torch.arange(values.shape[0], device=values.device)
        view = View(memory.summary, values, keys, memory.states.mask, number)
        return RecurrentState(carry, torch.zeros_like(memory.summary), view)

    def _bank(self, memory: Memory) -> Tensor:
        """Where the bridge from the source begins."""
        if self.bridge is not None:
            return memory.summary
        assert memory.carry is not None, "bridge: copy needs a recurrent encoder"
        return memory.carry

    def _bridged(self, bank: Tensor) -> Tensor:
        """The carry before the first token."""
        return bank if self.bridge is None else torch.tanh(self.bridge(bank)).unflatten(-1, self.carry_shape)

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
        y = tokens.like(self.embedding(tokens.values))
        graphs = recorder() if self.way in ("recurrence", "feeding") and y.longest else None
        if graphs is not None and self.attention is not None and not self.attention.draws:
            return self._replay(y, memory, graphs)
        state = self.start(memory)
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
        assert state.view is not None, "attention needs an encoder"
        if not y.longest:
            return y
        index, going, rows = y.by_step
        first = gathered(y.values, index, y.in_steps)
        flat = self._loop(first, going.tolist(), state.carry[rows], state.view.select(rows))
        return y.like(gathered(flat, y.in_steps, index))

    def _replay(self, y: Ragged, memory: Memory, graphs: Graphs) -> Ragged:
        """The same as a recording, in one of few shapes: rows, steps and places are added that nobody looks at."""
        (rows, source), kind = rounded(memory.states), kind_of(y.values)
        grid = y.grid(rows, few(y.longest, 16, 2), by_step=True)
        states = memory.grid
        if states is None:
            flat = memory.states.grid(rows, source).padded(memory.states.values.to(kind))
            states = flat.unflatten(0, (rows, source))
        bank, more = self._bank(memory), rows - len(y)
        bank = torch.cat((bank, bank.new_zeros(more, *bank.shape[1:]))) if more else bank
        lengths = F.pad(memory.states.lengths, (0, more))
        used = [weight for name, weight in self.named_parameters() if not name.startswith("embedding.")]
        inputs = (grid.padded(y.values.to(kind)), bank, states.to(kind), lengths)
        (found,) = graphs("decoder", self._all_rows, inputs, used)
        return y.like(grid.cut(found))

    def _all_rows(self, y: Tensor, bank: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor]:
        """The loop over steps that all have the same rows."""
        assert self.attention is not None, "only what attends needs the step before"
        keys, values, carry = self.attention.keys(states), self.attention.values(states), self._bridged(bank)
        mask = torch.arange(states.shape[1], device=y.device) < lengths[:, None]
        view = View(carry, values, keys, mask, torch.arange(len(carry), device=y.device))
        return (self._loop(y, [len(carry)] * (len(y) // len(carry)), carry, view),)

    def _loop(self, y: Tensor, going: Sequence[int], carry: Tensor, view: View) -> Tensor:
        """From embedded tokens `(total, d_model)`, all first ones, then all second ones, and so on: `going` says how
        many rows there still are at each. Outputs are in the same order."""
        view = replace(view, keys=view.keys.to(kind_of(view.keys)), values=view.values.to(kind_of(view.values)))
        outputs, contexts = [], []
        with loop():
            steps = Steps(self.recurrence, y)
            parts, fed = steps.start(carry), carry.new_zeros(carry.shape[0], carry.shape[-1])
            for ahead in steps.ahead.split(going):
                if (count := len(ahead)) < len(fed):
                    parts, fed = [tuple(part[:count] for part in layer) for layer in parts], fed[:count]
                    view = view.select(slice(count))
                if self.way == "recurrence":
                    contexts.append(self._attend_rows(parts[-1][0], view))
                    s, parts = steps(ahead, contexts[-1], parts)
                    outputs.append(s)
                else:
                    s, parts = steps(ahead, fed, parts)
                    fed = self._output(s, self._attend_rows(s, view))
                    outputs.append(fed)
        return self._output(torch.cat(outputs), torch.cat(contexts)) if contexts else torch.cat(outputs)

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
        width = y.shape[0] // view.summary.shape[0]  # rows of one source
        match self.way:
            case "every":
                c = view.summary.unsqueeze(1).expand(-1, width, -1).flatten(0, 1)
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
        grouped = queries.unflatten(0, (view.summary.shape[0], -1))  # (sources, rows of one, d_model)
        return self._attend(grouped, view).flatten(0, 1)

    def _attend(self, queries: Tensor, view: View) -> Tensor:
        assert self.attention is not None, "this way of looking at the source needs attention"
        return self.attention(queries.to(view.values.dtype), view.keys, view.values, view.mask, view.number)

    def _output(self, s: Tensor, c: Tensor) -> Tensor:
        assert self.join is not None, "this way of looking at the source has nothing to join"
        return self.dropout(torch.tanh(applied(self.join, torch.cat((s, c.to(s.dtype)), dim=-1))))


@dataclass(frozen=True)
class TransformerState:
    """A Transformer decoder between two tokens: what each block keeps of the target so far and of the source.

    Rows of a beam change places at every step, and their caches do not: `origin` tells in whose cache each slot of a
    row lies. Where rows began with texts of different lengths, the shorter have empty slots before them (`real` is
    False there).
    """

    caches: tuple[Tensor, ...]  # for each block (rows, slots, 2, heads, d_head): keys and values of the target so far
    source: tuple[Tensor, ...]  # for each block (sources, source, 2, heads, d_head); none: a language model
    mask: Tensor | None  # (sources, 1, 1, source)
    at: int | Tensor  # slots that are taken; a tensor `(1,)` in a state that is `fixed`
    origin: Tensor | None = None  # (rows, slots); None: its own cache
    real: Tensor | None = None  # (rows, slots); None: all are

    def select(self, rows: Tensor, sources: Tensor | None = None) -> TransformerState:
        state = replace(self, real=None if self.real is None else self.real[rows])
        if len(rows) == len(self.caches[0]):
            origin = self._own() if self.origin is None else self.origin
            state = replace(state, origin=origin.index_select(0, rows))
        else:
            state = replace(state, caches=tuple(self._gathered(cache, rows) for cache in self.caches), origin=None)
            state = replace(state, origin=None if isinstance(self.at, int) else state._own())
        if sources is None or self.mask is None:
            return state
        return replace(state, source=tuple(both[sources] for both in self.source), mask=self.mask[sources])

    def fixed(self, tokens: int) -> TransformerState:
        slots = self.caches[0].shape[1]
        if isinstance(self.at, Tensor):
            return self._grown(slots + tokens)
        window = max(slots, -(-(self.at + tokens) // 32) * 32)  # in few sizes
        if slots:
            grown = self._grown(window)
        else:
            caches = tuple(x.new_zeros(()).expand(len(x), window, *x.shape[2:]) for x in self.caches)
            grown = replace(self, caches=caches, origin=None)
        origin = grown._own() if grown.origin is None else grown.origin
        return replace(grown, at=torch.full((1,), self.at, device=origin.device), origin=origin)

    def ready(self, new: int, real: Tensor | None = None) -> tuple[TransformerState, Slots]:
        """With room for `new` more positions, and where they go. `real` `(rows, new)`: which of them are no padding."""
        state, device = self, self.caches[0].device
        if isinstance(self.at, int):
            slots = torch.arange(self.at, self.at + new, device=device)
            most, window = self.caches[0].shape[1], self.at + new
            if most < window:
                state = self._grown(max(window, most + min(most, 64) + 8))
        else:
            slots = self.at if new == 1 else torch.arange(new, device=device) + self.at
            window = self.caches[0].shape[1]
        if real is not None and state.real is None:
            before = torch.arange(state.caches[0].shape[1], device=device) < self.at
            state = replace(state, real=before.repeat(state.caches[0].shape[0], 1))
        if state.real is not None:
            state.real.index_copy_(1, slots, torch.ones_like(state.real[:, :new]) if real is None else real)
        marks = None if state.real is None else state.real[:, :window]
        return state, Slots(slots, window, state.origin, marks, None if isinstance(self.at, int) else self.at)

    def _grown(self, slots: int) -> TransformerState:
        caches = tuple(_wider(cache, slots) for cache in self.caches)
        origin, real = (None if x is None else _wider(x, slots) for x in (self.origin, self.real))
        return replace(self, caches=caches, origin=origin, real=real)

    def _own(self) -> Tensor:
        """Each row's own number, `(rows, slots)`."""
        cache = self.caches[0]
        return torch.arange(len(cache), device=cache.device)[:, None].repeat(1, cache.shape[1])

    def _gathered(self, cache: Tensor, rows: Tensor) -> Tensor:
        """The caches of some rows as they would be had rows never changed places."""
        if self.origin is None:
            return cache[rows]
        return cache[self.origin[rows], torch.arange(cache.shape[1], device=cache.device)]


def _wider(x: Tensor, slots: int) -> Tensor:
    """`(rows, more slots, …)`, the new ones empty."""
    wider = x.new_zeros(len(x), slots, *x.shape[2:])
    wider[:, : x.shape[1]] = x
    return wider


def _flush_right(blocks: Sequence[DecoderBlock], state: TransformerState, by: Tensor) -> TransformerState:
    """The past of each row, moved `by` `(rows,)` slots, which are empty at its end; keys keep their distances."""
    assert isinstance(state.at, int), "slots are moved where shapes may change"
    assert state.real is not None, "all rows are flush"
    at, rows = state.at, torch.arange(len(by), device=by.device)[:, None]
    index = (torch.arange(at, device=by.device) - by[:, None]) % at  # (rows, slots that are taken)
    caches = []
    for block, cache in zip(blocks, state.caches, strict=True):
        cache = cache[rows, index]
        if (relative := block.self_attention.relative) is not None:
            keys = cache[:, :, 0].transpose(0, 1)  # (slots, rows, heads, d_head): each row by its own distance
            cache[:, :, 0] = relative.turn(keys, keys, by)[1].transpose(0, 1)
        caches.append(cache)
    return replace(state, caches=tuple(caches), real=state.real[rows, index])


class TransformerDecoder(nn.Module):
    """Blocks of causal self-attention and attention over the source (Vaswani et al. 2017).

    Without a source it is a language model (GPT, Radford et al. 2018): its blocks then have no attention over one.
    """

    def __init__(
        self, embedding: Embedding, positions: nn.Module | None, blocks: list[DecoderBlock], final: nn.Module
    ) -> None:
        super().__init__()
        self.bounded = True
        self.packed = not any(getattr(block.self_attention.relative, "adds", False) for block in blocks)
        self.embedding, self.positions, self.final = embedding, positions, final
        self.blocks: Sequence[DecoderBlock] = nn.ModuleList(blocks)  # type: ignore[assignment]

    def forward(self, tokens: Ragged, memory: Memory | None) -> Ragged:
        x = tokens.like(self.embedding(tokens.values, self.positions, tokens.position, tokens.longest))
        source = None if memory is None else memory.states
        seen = sight(x, x, causal=True, relative=self.blocks[0].self_attention.relative)
        across = None if source is None else sight(x, source, causal=False)
        for block in self.blocks:
            x = block(x, source, seen, across)
        return x.like(self.final(x.values))

    def start(self, memory: Memory) -> TransformerState:
        made = (block.cross_attention.keys_values(memory.states.values) for block in self.blocks)
        source = tuple(memory.states.like(both).padded() for both in made)
        return replace(self.alone(memory.states.rows), source=source, mask=allowed(memory.states))

    def alone(self, rows: int) -> TransformerState:
        attention, weight = self.blocks[0].self_attention, self.embedding.table.weight
        shape = (2, attention.heads, attention.d_model // attention.heads)
        return TransformerState(tuple(weight.new_zeros(rows, 0, *shape) for _ in self.blocks), (), None, 0)

    def read(self, tokens: Ragged, state: TransformerState) -> tuple[Ragged, TransformerState]:
        """Rows are set flush right, so that what comes next has the same slot in all of them."""
        if not tokens.longest:
            return tokens.like(self.embedding(tokens.values)), state
        at, new = state.at, tokens.longest
        assert isinstance(at, int), "several tokens are read where shapes may change"
        before = at if state.real is None else state.real.sum(1)[tokens.row]
        longest = at + new
        x = tokens.like(self.embedding(tokens.values, self.positions, tokens.position + before, longest))
        padded = x.padded()
        state, slots = state.ready(new, tokens.mask)
        for block, cache in zip(self.blocks, state.caches, strict=True):
            padded = block.step(padded, cache, slots, None, None)
        state = replace(state, at=longest)
        if tokens.values.shape[0] < tokens.mask.numel():
            state = _flush_right(self.blocks, state, new - tokens.lengths)
        return tokens.unpadded(self.final(padded)), state

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        state, slots = state.ready(1)
        # Those of all rows are one, but where rows began with texts of different lengths.
        position = slots.new if state.real is None else state.real.sum(1) - 1
        # Empty slots are no positions, and how many a row has of them, or where it is, only the device may know.
        longest = slots.window if isinstance(state.at, int) and state.real is None else 0
        x = self.embedding(tokens, self.positions, position, longest).unsqueeze(1)  # (rows, 1, d_model)
        for block, cache, source in zip(self.blocks, state.caches, state.source or repeat(None), strict=False):
            x = block.step(x, cache, slots, source, state.mask)
        # A tensor is counted up in place: the state that was given is used up.
        at = state.at + 1 if isinstance(state.at, int) else state.at.add_(1)
        return self.final(x.squeeze(1)), replace(state, at=at)
