"""The recurrent decoder, and its context modes: the ways in which it uses the source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.encoders import Memory, source_bucket
from regard.models.stems import Embedding
from regard.nn.attention import Attention
from regard.nn.deferred import autocast_dtype, defer_gradients, deferred_apply
from regard.nn.dropout import Dropout
from regard.nn.graphs import Graphs, Looped
from regard.nn.recurrence import Recurrence, UnrolledRecurrence
from regard.nn.rows import Grouping, Part, Together, rows_of_heads
from regard.ragged import Ragged, bucket, gathered


@dataclass(frozen=True)
class ContextMode:
    """How a recurrent decoder uses the source at step `t`: what enters the cell beside the embedded token `y_{t-1}`,
    what the context `c_t` is, and which output `o_t` leaves. Full pass, loop and single step are made from this."""

    enters: Literal["context", "output"] | None  # `c_t`, or `o_{t-1}`
    context: Literal["summary", "previous", "current"] | None  # the encoder's, or attended to from `s_{t-1}` or `s_t`
    leaves: Literal["state", "joined"]  # `s_t`, or `tanh(W [s_t; c_t])`

    @property
    def loops(self) -> bool:
        """Whether a step needs what was made of the one before it, beyond what the cell itself carries."""
        return self.enters == "output" or self.context == "previous"


CONTEXT_MODES = {
    "none": ContextMode(None, None, "state"),  # a language model: there is no source
    "last": ContextMode(None, None, "state"),  # Sutskever et al. 2014: only `s_0` knows the source
    "every": ContextMode("context", "summary", "joined"),  # Cho et al. 2014
    "recurrence": ContextMode("context", "previous", "joined"),  # Bahdanau et al. 2015
    "output": ContextMode(None, "current", "joined"),  # Luong et al. 2015, eq. 5
    "feeding": ContextMode("output", "current", "joined"),  # Luong et al. 2015, 3.3: input feeding
}


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

    def join(self, others: Sequence[View], sources: Tensor) -> View:
        """These sources of all, counted through."""
        views = (self, *others)
        lengths = torch.cat([view.mask.sum(1) for view in views])[sources]
        most = max(int(lengths.max()), 1)
        values, keys = (
            _joined_heads([getattr(view, name) for view in views], sources, most) for name in ("values", "keys")
        )
        mask = torch.arange(most, device=sources.device) < lengths[:, None]
        summary = torch.cat([view.summary for view in views])[sources]
        return View(summary, values, keys, mask, torch.arange(len(mask), device=sources.device))


def _joined_heads(parts: Sequence[Tensor], rows: Tensor, most: int) -> Tensor:
    """These rows of `(rows, heads, source, …)`, counted through all parts, with `most` source positions; 0 where a part
    has none."""
    heads = parts[0].shape[1]
    own = [Part(len(x) * heads, x.shape[2]) for x in parts]
    laid = Together(own, rows_of_heads(rows, heads), most, cleared=True)
    return laid([x.flatten(0, 1) for x in parts]).unflatten(0, (-1, heads))


@dataclass(frozen=True)
class RecurrentState:
    """A recurrent decoder between two tokens."""

    carry: Tensor  # (rows, layers, parts, d_model)
    fed: Tensor  # (rows, d_model): the last output, where it enters; else (rows, 0)
    past: Tensor  # (rows, heads, source): the last weights, where attention asks for them; else (rows, 0, 0)
    view: View | None  # None: a language model
    grouping: Grouping | None = None  # of rows by sources; None: as many for each
    at: Tensor | None = None  # (rows,): tokens read so far, where attention is edited, which goes by position

    @property
    def static_shapes(self) -> bool:
        return self.view is None  # else they go with the longest source

    def select(self, rows: Tensor, sources: Tensor | None = None) -> RecurrentState:
        view = self.view if sources is None or self.view is None else self.view.select(sources)
        at = None if self.at is None else self.at[rows]
        return RecurrentState(self.carry[rows], self.fed[rows], self.past[rows], view, self.grouping, at)

    def fixed(self, tokens: int) -> RecurrentState:
        return self

    def grouped(self, grouping: Grouping | None) -> RecurrentState:
        return replace(self, grouping=grouping)

    def join(self, others: Sequence[RecurrentState], rows: Tensor, sources: Tensor, room: int = 0) -> RecurrentState:
        states = (self, *others)
        carry, fed = (torch.cat([getattr(state, name) for state in states])[rows] for name in ("carry", "fed"))
        view = None
        if self.view is not None:
            view = self.view.join([state.view for state in others if state.view is not None], sources)
        if self.past.numel() and view is not None:
            past = _joined_heads([state.past for state in states], rows, view.mask.shape[1])
        else:
            past = torch.cat([state.past[:, :0, :0] for state in states])[rows]
        read = [state.at for state in states if state.at is not None]
        return RecurrentState(carry, fed, past, view, at=torch.cat(read)[rows] if read else None)

    def put(self, other: RecurrentState, rows: Tensor, whose: Tensor, sources: Tensor, room: int) -> bool:
        if self.view is not None:
            return False
        for own, given in ((self.carry, other.carry), (self.fed, other.fed)):
            own.index_copy_(0, rows, given[whose])
        return True


class RecurrentDecoder(Looped):
    """`s_t = f(x_t, s_{t-1})`, and an output of it, in one of the `CONTEXT_MODES`.

    With a gate the context is `β_t Σ_i α_ti h_i`, `β_t = σ(w s + b)` of the state that attends (Xu et al. 2015, 4.2.1).

    The bridge from the source makes `s_0`: `tanh(W c + b)` of the summary `c`, or a copy of a recurrent encoder's end.
    """

    def __init__(
        self, embedding: Embedding, cell: str, d_model: int, layers: int, *, mode: str, attention: Attention | None,
        bridge: str, dropout: float, gate: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.bounded = self.packed = False
        self.mode, self.embedding, self.attention = CONTEXT_MODES[mode], embedding, attention
        self.feeds = self.mode.enters == "output"
        self.looks_back = attention is not None and attention.score.looks_back
        self.loops = self.mode.loops or self.looks_back
        self.recurrence = Recurrence(cell, 2 * d_model if self.mode.enters else d_model, d_model, layers, dropout)
        self.carry_shape = (layers, self.recurrence.parts, d_model)
        dense = bridge == "dense" and mode != "none"
        self.bridge = nn.Linear(d_model, layers * self.recurrence.parts * d_model) if dense else None
        self.join = nn.Linear(2 * d_model, d_model, bias=False) if self.mode.leaves == "joined" else None
        self.gate = nn.Linear(d_model, 1) if gate else None
        self.dropout = Dropout(dropout)

    @property
    def _edited(self) -> bool:
        """Whether its attention is edited, and asks for the position of each query."""
        return self.attention is not None and self.attention.edits is not None

    @property
    def levels(self) -> list[Sequence[nn.Module]]:
        """What it is made of, from the tokens up; what is not among it counts as of the top level."""
        return [[self.embedding], *([layer] for layer in self.recurrence.layers)]

    def start(self, memory: Memory) -> RecurrentState:
        states = memory.states
        return self._start(self._bridge_input(memory), memory.summary, states.padded(), states.mask)

    def _start(self, bridge_input: Tensor, summary: Tensor, states: Tensor, mask: Tensor) -> RecurrentState:
        """From padded states `(sources, source, d_model)`."""
        carry, keys, values = bridge_input, states.unsqueeze(1), states.unsqueeze(1)
        if self.bridge is not None:
            carry = torch.tanh(self.bridge(bridge_input)).unflatten(-1, self.carry_shape)
        if self.attention is not None:
            keys, values = self.attention.keys(states), self.attention.values(states)
        view = View(summary, values, keys, mask, torch.arange(mask.shape[0], device=mask.device))
        past = values.new_zeros(
            (mask.shape[0], values.shape[1], mask.shape[1]) if self.looks_back else (mask.shape[0], 0, 0)
        )
        at = torch.zeros_like(view.number) if self._edited else None
        return RecurrentState(carry, torch.zeros_like(summary if self.feeds else summary[:, :0]), past, view, at=at)

    def _bridge_input(self, memory: Memory) -> Tensor:
        if self.bridge is not None:
            return memory.summary
        assert memory.carry is not None, "bridge: copy needs a recurrent encoder"
        return memory.carry

    def alone(self, rows: int) -> RecurrentState:
        weight = self.embedding.table.weight
        nothing = weight.new_zeros(rows, 0)
        return RecurrentState(self.recurrence.start(rows, weight), nothing, nothing.unsqueeze(-1), None)

    def read(self, tokens: Ragged, state: RecurrentState) -> tuple[Ragged, RecurrentState]:
        outputs, carry = self._full(tokens.like(self.embedding(tokens.values)), state)
        return outputs, replace(state, carry=carry)

    def forward(self, tokens: Ragged, memory: Memory | None) -> Ragged:
        if memory is None:
            return self.read(tokens, self.alone(len(tokens)))[0]
        y = tokens.like(self.embedding(tokens.values))
        if not self.loops:
            return self._full(y, self.start(memory))[0]
        if not y.longest:
            return y
        graphs = self.recorder
        if self.attention is not None and (self.attention.draws or self.attention.looked is not None or self._edited):
            graphs = None  # what is left for the loss is no part of a recording, nor are edits
        if graphs is not None and self.attention is not None:
            return self._replay(y, memory, graphs)
        index, going, rows = y.by_step
        state = self.start(memory).select(rows, rows)
        flat = self._loop(gathered(y.values, index, y.in_steps), going.tolist(), state)
        return y.like(gathered(flat, y.in_steps, index))

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        y, carry = self.embedding(tokens), state.carry

        def cell(x: Tensor | None) -> tuple[Tensor, Tensor]:
            return self.recurrence.step(y if x is None else torch.cat((y, x), dim=-1), carry)

        begin = (state.view, carry[:, -1, 0], state.fed, state.past)
        s, c, after, past = self._advance(cell, *begin, state.grouping, state.at)
        output, at = self._output(s, c), None if state.at is None else state.at + 1
        return output, replace(state, carry=after, fed=output if self.feeds else state.fed, past=past, at=at)

    def _advance(
        self, cell: Callable[[Any], tuple[Tensor, Any]], view: View | None, previous: Tensor, fed: Tensor, past: Tensor,
        grouping: Grouping | None = None, at: Tensor | None = None,
    ) -> tuple[Tensor, Any, Any, Tensor]:  # fmt: skip
        """`s_t`, `c_t`, what the cell carries on and the weights, from `s_{t-1}`, `o_{t-1}` and the weights before;
        `cell` takes what enters, and `at` `(rows,)` is `t`, where it is asked for."""
        mode, c = self.mode, None
        if mode.context in ("summary", "previous"):
            c, past = self._context(view, previous, past, grouping, at)
        s, carry = cell(c if mode.enters == "context" else fed if mode.enters == "output" else None)
        if mode.context == "current":
            c, past = self._context(view, s, past, grouping, at)
        return s, c, carry, past

    def _full(self, y: Ragged, state: RecurrentState) -> tuple[Ragged, Tensor]:
        """All steps at once, where none needs the one before it: outputs, and the carry at the end of each row."""
        c, x = None, y
        if self.mode.context == "summary" and state.view is not None:
            c = state.view.summary[y.row]
            x = y.like(torch.cat((y.values, c), dim=-1)) if self.mode.enters == "context" else y
        states, carry = self.recurrence(x, state.carry)
        if self.mode.context == "current":
            padded = states.padded()
            at = torch.arange(padded.shape[1], device=padded.device).expand(padded.shape[:2]) if self._edited else None
            c = y.unpadded(self._context(state.view, padded, state.past, None, at)[0]).values
        return y.like(self._output(states.values, c)), carry

    def _loop(self, y: Tensor, going: Sequence[int], state: RecurrentState) -> Tensor:
        """A step at a time, from embedded tokens `(total, d_model)`, all first ones, then all second ones, and so on,
        to outputs in that order. `going` says how many rows there still are at each step."""
        assert state.view is not None, "what loops attends to an encoder's states"
        keys, values = (x.to(autocast_dtype(x)) for x in (state.view.keys, state.view.values))
        view, fed, past, at = replace(state.view, keys=keys, values=values), state.fed, state.past, state.at
        states, contexts = [], []  # outputs that are fed stand in place of the states
        with defer_gradients():
            unrolled = UnrolledRecurrence(self.recurrence, y)
            parts = unrolled.start(state.carry)
            for ahead in unrolled.ahead.split(going):
                if (count := len(ahead)) < len(fed):  # rows that have ended drop out
                    parts, fed = [tuple(part[:count] for part in layer) for layer in parts], fed[:count]
                    view, past = view.select(slice(count)), past[:count]
                    at = None if at is None else at[:count]
                s, c, parts, past = self._advance(partial(unrolled, ahead, parts), view, parts[-1][0], fed, past, at=at)
                at = None if at is None else at + 1
                if self.feeds:
                    s = fed = self._output(s, c)
                states.append(s)
                contexts.append(c)
        return torch.cat(states) if self.feeds else self._output(torch.cat(states), torch.cat(contexts))

    def _output(self, s: Tensor, c: Tensor | None) -> Tensor:
        if self.join is None or c is None:
            return self.dropout(s)
        return self.dropout(torch.tanh(deferred_apply(self.join, torch.cat((s, c.to(s.dtype)), dim=-1))))

    def _context(
        self, view: View | None, queries: Tensor, past: Tensor, grouping: Grouping | None, at: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """That of `(rows, d_model)`, the rows of one source together, or of `(sources, target, d_model)`; and the
        weights, where the next step asks for them. `at` `(rows,)` or `(sources, target)` are positions of queries."""
        assert view is not None, "this context mode needs an encoder"
        if grouping is not None:
            return self._grouped_context(view, queries, past, grouping, at)
        grouped = queries.unflatten(0, (view.summary.shape[0], -1)) if queries.dim() == 2 else queries
        before = past.unflatten(0, (grouped.shape[0], -1)) if self.looks_back else None
        found, weights = self._attended(view, grouped, before, None if at is None else at.reshape(grouped.shape[:2]))
        return found.reshape(queries.shape), past if weights is None else weights.flatten(0, 1)

    def _grouped_context(
        self, view: View, queries: Tensor, past: Tensor, grouping: Grouping, at: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """That of `(rows, d_model)`, where sources have different numbers of rows."""
        before = grouping.padded(past) if self.looks_back else None
        position = None if at is None else grouping.padded(at)
        found, weights = self._attended(view, grouping.padded(queries), before, position)
        return grouping.unpadded(found), past if weights is None else grouping.unpadded(weights)

    def _attended(
        self, view: View, queries: Tensor, past: Tensor | None, at: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The contexts of `(sources, target, d_model)` at positions `(sources, target)`, and the weights `(sources,
        target, heads, source)` where the next step asks for them."""
        if self.attention is None:
            return view.summary.unsqueeze(1).expand_as(queries), None
        before = None if past is None else past.transpose(1, 2)
        queries = queries.to(view.values.dtype)
        found, weights = self.attention(queries, view.keys, view.values, view.mask, view.number, before, at)
        if self.gate is not None:
            found = found * torch.sigmoid(deferred_apply(self.gate, queries)).to(found.dtype)
        return found, weights.transpose(1, 2) if self.looks_back and weights is not None else None

    def _replay(self, y: Ragged, memory: Memory, graphs: Graphs) -> Ragged:
        """The loop as a recorded CUDA graph, in one of few shapes: rows, steps and source positions are padded, and
        what comes of the padding is cut off."""
        (rows, source), dtype = source_bucket(memory.states), autocast_dtype(y.values)
        grid = y.grid(rows, bucket(y.longest, 16, 2), by_step=True)
        states = memory.grid
        if states is None:
            flat = memory.states.grid(rows, source).padded(memory.states.values.to(dtype))
            states = flat.unflatten(0, (rows, source))
        begin, more = self._bridge_input(memory), rows - len(y)
        begin = torch.cat((begin, begin.new_zeros(more, *begin.shape[1:]))) if more else begin
        lengths = F.pad(memory.states.lengths, (0, more))
        used = [weight for name, weight in self.named_parameters() if not name.startswith("embedding.")]
        inputs = (grid.padded(y.values.to(dtype)), begin, states.to(dtype), lengths)
        (found,) = graphs.loop(self._padded_loop, inputs, used)
        return y.like(grid.cut(found))

    def _padded_loop(self, y: Tensor, bridge_input: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor]:
        """The loop over steps that all have the same rows, from tensors alone."""
        rows, mask = len(lengths), torch.arange(states.shape[1], device=y.device) < lengths[:, None]
        state = self._start(bridge_input, states[:, 0], states, mask)  # what loops uses no summary
        return (self._loop(y, [rows] * (len(y) // rows), state),)
