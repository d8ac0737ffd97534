"""The Transformer decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.encoders import Memory, Parts
from regard.models.stems import Embedding
from regard.nn.attention import allowed
from regard.nn.blocks import DecoderBlock, run_blocks
from regard.nn.rows import Grouping, Part, Together
from regard.nn.slots import Slots
from regard.ragged import Ragged, bucket, round_up

SPARE = 8  # empty slots that joined rows have room for, before their caches grow
LEAST = 16  # positions of a source, the fewest that a joined state of static shapes has room for


@dataclass(frozen=True)
class TransformerState:
    """A Transformer decoder between two tokens: what each block keeps of the target so far and of the source.

    Rows of a beam change places at every step, and their caches do not: `origin` says in whose cache each slot of a
    row lies. Where rows began with texts of different lengths, `real` is False in the empty slots before the shorter.
    """

    caches: tuple[Tensor, ...]  # for each block (rows, slots, 2, heads, d_head): keys and values of the target so far
    source: tuple[Tensor, ...]  # for each block (sources, source, 2, heads, d_head); none: a language model
    mask: Tensor | None  # (sources, 1, 1, source)
    at: int | Tensor  # slots that are taken; a tensor `(1,)` in a state that is `fixed`
    origin: Tensor | None = None  # (rows, slots); None: its own cache
    real: Tensor | None = None  # (rows, slots); None: all are
    grouping: Grouping | None = None  # of rows by sources; None: as many for each

    @property
    def static_shapes(self) -> bool:
        return True

    def select(self, rows: Tensor, sources: Tensor | None = None) -> TransformerState:
        state = replace(self, real=None if self.real is None else self.real[rows])
        if len(rows) == len(self.caches[0]):
            origin = self._own() if self.origin is None else self.origin
            state = replace(state, origin=origin.index_select(0, rows))
        else:  # as caches would be had rows never changed places
            index: tuple[Tensor, ...] = (rows,)
            if self.origin is not None:
                index = (self.origin[rows], torch.arange(self.origin.shape[1], device=rows.device))
            state = replace(state, caches=tuple(cache[index] for cache in self.caches), origin=None)
            state = replace(state, origin=None if isinstance(self.at, int) else state._own())
        if sources is None or self.mask is None:
            return state
        return replace(state, source=tuple(both[sources] for both in self.source), mask=self.mask[sources])

    def fixed(self, tokens: int) -> TransformerState:
        slots = self.caches[0].shape[1]
        if isinstance(self.at, Tensor):
            return self._grown(slots + tokens)
        window = max(slots, round_up(self.at + tokens, 32))  # in few sizes
        if slots:
            grown = self._grown(window)
        else:
            caches = tuple(x.new_zeros(()).expand(len(x), window, *x.shape[2:]) for x in self.caches)
            grown = replace(self, caches=caches, origin=None)
        origin = grown._own() if grown.origin is None else grown.origin
        return replace(grown, at=torch.full((1,), self.at, device=origin.device), origin=origin)

    def grouped(self, grouping: Grouping | None) -> TransformerState:
        return replace(self, grouping=grouping)

    def join(
        self, others: Sequence[TransformerState], rows: Tensor, sources: Tensor, room: int = 0
    ) -> TransformerState:  # fmt: skip
        """Rows end in one slot. Those that are shorter have empty slots before them, and what is before all is cut."""
        states = (self, *others)
        counts = torch.cat([state._counts for state in states])[rows]
        at = int(counts.max())
        slots = round_up(at + room, 32) if room else at + SPARE
        at = slots - room if room else at  # which is known later on without asking the device
        ends, real = [int(state.at) for state in states], None
        parts = [
            Part(len(state.caches[0]), state.caches[0].shape[1], at - end, state.origin)
            for state, end in zip(states, ends, strict=True)
        ]
        laid = Together(parts, rows, slots)
        if room or not bool((counts == at).all()):
            slot = torch.arange(slots, device=rows.device)
            real = (slot >= at - counts[:, None]) & (slot < at)
        caches = tuple(laid(blocks) for blocks in zip(*(state.caches for state in states), strict=True))
        joined = TransformerState(caches, (), None, at, real=real)
        joined = joined.fixed(room) if room else joined
        if self.mask is None:
            return joined
        masks = [state.mask for state in states if state.mask is not None]
        lengths = torch.cat([mask.sum(-1).flatten() for mask in masks])[sources]
        most = int(lengths.max())
        most = bucket(most, 2, LEAST) if room else most
        laid = Together([Part(len(mask), mask.shape[-1]) for mask in masks], sources, most)
        source = tuple(laid(blocks) for blocks in zip(*(state.source for state in states), strict=True))
        mask = torch.arange(most, device=rows.device) < lengths[:, None]
        return replace(joined, source=source, mask=mask[:, None, None, :])

    def put(self, other: TransformerState, rows: Tensor, whose: Tensor, sources: Tensor, room: int) -> bool:
        slots, read = self.caches[0].shape[1], other.at
        at = slots - room  # where rows end now
        assert self.real is not None, "rows of a state with room are of different lengths"
        assert self.origin is not None, "they may have changed places"
        if isinstance(read, Tensor) or read > at or other.origin is not None:
            return False
        if self.mask is not None and other.mask is not None:
            length = other.mask.shape[-1]
            if length > self.mask.shape[-1]:
                return False
            for own, given in zip(self.source, other.source, strict=True):
                own[:, :length].index_copy_(0, sources, given)
            self.mask.index_copy_(0, sources, F.pad(other.mask, (0, self.mask.shape[-1] - length)))
        self.origin.index_copy_(0, rows, rows[:, None].expand(-1, slots))
        self.real.index_fill_(0, rows, False)
        if read:
            taken = slice(at - read, at)
            for own, given in zip(self.caches, other.caches, strict=True):
                own[:, taken].index_copy_(0, rows, given[whose, :read])
            real = self.real.new_ones(len(rows), read) if other.real is None else other.real[whose, :read]
            self.real[:, taken].index_copy_(0, rows, real)
        return True

    @property
    def _counts(self) -> Tensor:
        """Slots that each row has taken, `(rows,)`."""
        if self.real is not None:
            return self.real.sum(1)
        return torch.full((len(self.caches[0]),), int(self.at), device=self.caches[0].device)

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


def _wider(x: Tensor, slots: int) -> Tensor:
    """`(rows, more slots, …)`, the new ones empty; itself, if it is as wide."""
    if x.shape[1] == slots:
        return x
    wider = x.new_zeros(len(x), slots, *x.shape[2:])
    wider[:, : x.shape[1]] = x
    return wider


def _flush_right(state: TransformerState, by: Tensor) -> TransformerState:
    """The past of each row, moved `by` `(rows,)` slots, which are empty at its end."""
    assert isinstance(state.at, int), "slots are moved where shapes may change"
    assert state.real is not None, "all rows are flush"
    at, rows = state.at, torch.arange(len(by), device=by.device)[:, None]
    index = (torch.arange(at, device=by.device) - by[:, None]) % at  # (rows, slots that are taken)
    return replace(state, caches=tuple(cache[rows, index] for cache in state.caches), real=state.real[rows, index])


class TransformerDecoder(nn.Module):
    """Blocks of causal self-attention and attention over the source (Vaswani et al. 2017).

    Without a source it is a language model (GPT, Radford et al. 2018): its blocks then have no attention over one.
    """

    def __init__(self, embedding: Embedding, parts: Parts[DecoderBlock], scale: float | None = None) -> None:
        super().__init__()
        self.bounded = self.packed = True
        self.embedding, self.scale = embedding, scale  # of the output, where it has one
        self.positions, self.embedding_norm, self.final = parts.positions, parts.embedding_norm, parts.final
        self.depth = parts.depth
        self.blocks: Sequence[DecoderBlock] = nn.ModuleList(parts.blocks)  # type: ignore[assignment]

    def _scaled(self, x: Tensor) -> Tensor:
        """What the output layer gets of what the final norm gave."""
        return x if self.scale is None else x * self.scale

    def _embed(self, tokens: Tensor, position: Tensor, longest: int) -> Tensor:
        return self.embedding(tokens, self.positions, position, longest, self.embedding_norm)

    @property
    def levels(self) -> list[Sequence[nn.Module]]:
        """What it is made of, from the tokens up; what is not among it counts as of the top level."""
        below = [part for part in (self.embedding, self.positions, self.embedding_norm) if part is not None]
        return [below, *([block] for block in self.blocks)]

    def forward(self, tokens: Ragged, memory: Memory | None) -> Ragged:
        x = tokens.like(self._embed(tokens.values, tokens.position, tokens.longest))
        source = None if memory is None else memory.states
        first = self.blocks[0]
        seen, across = first.self_attention.spans(x), None if source is None else first.cross_attention.spans(x, source)
        x = run_blocks(self.blocks, x, source, seen, across, final=self.final, depth=self.depth)
        return x.like(self._scaled(x.values))

    def start(self, memory: Memory) -> TransformerState:
        made = (block.cross_attention.keys_values(memory.states.values) for block in self.blocks)
        source = tuple(memory.states.like(both).padded() for both in made)
        return replace(self.alone(memory.states.rows), source=source, mask=allowed(memory.states))

    def alone(self, rows: int) -> TransformerState:
        attention, weight = self.blocks[0].self_attention, self.embedding.table.weight
        shape = (2, attention.heads, attention.d_head)
        return TransformerState(tuple(weight.new_zeros(rows, 0, *shape) for _ in self.blocks), (), None, 0)

    def read(self, tokens: Ragged, state: TransformerState) -> tuple[Ragged, TransformerState]:
        """Rows are set flush right, so that what comes next has the same slot in all of them."""
        if not tokens.longest:
            return tokens.like(self.embedding(tokens.values)), state
        at, new = state.at, tokens.longest
        assert isinstance(at, int), "several tokens are read where shapes may change"
        before = at if state.real is None else state.real.sum(1)[tokens.row]
        longest = at + new
        x = tokens.like(self._embed(tokens.values, tokens.position + before, longest))
        padded = x.padded()
        position = None
        if state.real is not None:
            position = state.real.sum(1)[:, None] + torch.arange(new, device=padded.device)
        state, slots = state.ready(new, tokens.mask)
        slots = replace(slots, position=position)
        for block, cache in zip(self.blocks, state.caches, strict=True):
            padded = block.step(padded, cache, slots, None, None)
        state = replace(state, at=longest)
        if tokens.values.shape[0] < tokens.mask.numel():
            state = _flush_right(state, new - tokens.lengths)
        return tokens.unpadded(self._scaled(self.final(padded))), state

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        state, slots = state.ready(1)
        # Those of all rows are one, but where rows began with texts of different lengths.
        position = slots.new
        if state.real is not None:
            position = state.real.sum(1) - 1
            slots = replace(slots, position=position[:, None])
        # Empty slots are no positions, and how many a row has of them, or where it is, only the device may know.
        longest = slots.window if isinstance(state.at, int) and state.real is None else 0
        x = self._embed(tokens, position, longest).unsqueeze(1)  # (rows, 1, d_model)
        for block, cache, source in zip(self.blocks, state.caches, state.source or repeat(None), strict=False):
            x = block.step(x, cache, slots, source, state.mask, state.grouping)
        # A tensor is counted up in place: the state that was given is used up.
        at = state.at + 1 if isinstance(state.at, int) else state.at.add_(1)
        return self._scaled(self.final(x.squeeze(1))), replace(state, at=at)
