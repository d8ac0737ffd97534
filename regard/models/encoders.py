"""Encoders: a source in, a `Memory` out. Each is a body over the vectors of a stem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.bundle import Bundle
from regard.encoder_settings import RecurrentEncoderSettings, TransformerEncoderSettings
from regard.models.stems import Stem
from regard.nn.blocks import Block, EncoderBlock, StochasticDepth, make_norm, run_blocks
from regard.nn.deferred import autocast_dtype
from regard.nn.dropout import Dropout
from regard.nn.graphs import Graphs, Looped
from regard.nn.positions import (
    Alibi,
    Learned,
    Relative,
    Rotary,
    Shaw,
    Sinusoidal,
    SinusoidalHalves,
    T5Bias,
    TransformerXL,
)
from regard.nn.recurrence import Recurrence, lstm_layer
from regard.ragged import Ragged, bucket, gathered
from regard.registry import BODIES, Family, register
from regard.transformer_settings import TransformerSettings

B = TypeVar("B", bound=Block)


@dataclass(frozen=True)
class Memory:
    """What an encoder hands a decoder."""

    states: Ragged  # (total, d_model): one vector a source position
    end: Tensor | None = None  # (rows, d_model): where the encoder has one, the state at the end of the source
    carry: Tensor | None = None  # (rows, layers, parts, d_model): a recurrent encoder's end, for `bridge: copy`
    grid: Tensor | None = None  # the states as a recording gave them, `(rows, source, d_model)`, both rounded up

    @cached_property
    def summary(self) -> Tensor:
        """The whole source in one vector, `(rows, d_model)`: its end, or else the mean of its states."""
        return self.states.mean() if self.end is None else self.end


def source_bucket(source: Ragged) -> tuple[int, int]:
    """Rows and places of a source in a recording of a decoder, which does not mind empty places."""
    return bucket(len(source), 16, 16), bucket(max(source.longest, 1), 8, 8)


class Body(nn.Module, ABC):
    """What works on the vectors of a stem. Made as `Body(settings, stem, d_model, dropout, longest)`, where no
    sequence is longer than `longest`."""

    family: ClassVar[Family] = BODIES
    packed = False  # only attention relates positions to each other, and on a GPU nothing waits for the device
    steady = False  # on a GPU nothing waits for the device, where all rows are of one length

    def __init__(self, settings: Any, stem: Stem, d_model: int, dropout: float, longest: int) -> None:
        super().__init__()
        self.stem = stem

    @property
    def begun(self) -> tuple[str, ...]:
        """How the names of those parts begin that a pretrained body brings along; the others may begin anew."""
        return ("",)

    @property
    def levels(self) -> list[Sequence[nn.Module]]:
        """What it is made of, from the source up; what is not among it counts as of the top level."""
        return [[self.stem], []]

    @abstractmethod
    def forward(self, source: Ragged) -> Memory:
        """A source to a vector for each of its places, and to one for the whole."""


@register("stem")
class StemEncoder(Body):
    """The stem's vectors as they are. The summary is their mean."""

    steady = True

    def forward(self, source: Ragged) -> Memory:
        return Memory(self.stem(source))


@register("rnn")
@register("lstm")
@register("gru")
class RecurrentEncoder(Body, Looped):
    """A stack of recurrent layers, each reading one way or both (Schuster and Paliwal 1997).

    Both ways, each direction has half of `d_model` and the joined states go to the next layer. The summary is the last
    state of each direction, joined: `h_T`. LSTMs can be recorded, both directions at once.
    """

    def __init__(
        self, settings: RecurrentEncoderSettings, stem: Stem, d_model: int, dropout: float, longest: int
    ) -> None:
        super().__init__(settings, stem, d_model, dropout, longest)
        both, layers = settings.bidirectional, settings.layers
        self.reverse, self.cell = settings.reverse, settings.kind
        width = d_model // 2 if both else d_model
        directions = [[Recurrence(self.cell, d_model, width, 1) for _ in range(layers)] for _ in range(1 + both)]
        self.forwards: Sequence[Recurrence] = nn.ModuleList(directions[0])  # type: ignore[assignment]
        self.backwards: Sequence[Recurrence] = nn.ModuleList(directions[1] if both else [])  # type: ignore[assignment]
        self.dropout = Dropout(dropout)

    @property
    def levels(self) -> list[Sequence[nn.Module]]:
        return [[self.stem], *zip(self.forwards, *([self.backwards] if self.backwards else []), strict=True)]

    def forward(self, source: Ragged) -> Memory:
        x = self.stem(source)
        if (graphs := self.recorder) is not None and self.cell == "lstm" and x.longest:
            return self._replay(x, graphs)
        x = x.reversed() if self.reverse else x
        ends = []
        for i, forwards in enumerate(self.forwards):
            start = forwards.start(x.rows, x.values)
            inputs = x if i == 0 else x.like(self.dropout(x.values))
            x, end = forwards(inputs, start)
            if self.backwards:
                other, other_end = self.backwards[i](inputs.reversed(), start)
                x = x.like(torch.cat((x.values, other.reversed().values), dim=-1))
                end = torch.cat((end, other_end), dim=-1)
            ends.append(end)
        carry = torch.cat(ends, dim=1)  # (rows, layers, parts, d_model)
        x = x.reversed() if self.reverse else x  # state j stands where source token j stands
        return Memory(x.like(self.dropout(x.values)), self.dropout(carry[:, -1, 0]), carry)

    def _replay(self, x: Ragged, graphs: Graphs) -> Memory:
        """Like `forward`, from a recording in one of few shapes: rows and steps are added that nobody looks at."""
        (rows, places), steps = source_bucket(x), bucket(x.longest, 16, 2)
        kind = x.values.dtype if x.values.device.type == "cpu" else autocast_dtype(x.values)
        inputs = x.grid(rows, steps, by_step=True).padded(x.values.to(kind))
        lengths = F.pad(x.lengths, (0, rows - len(x)))
        used = [weight for name, weight in self.named_parameters() if not name.startswith("stem.")]
        states, end, carry = graphs.loop(self._all_rows, (inputs, lengths), used)
        values = x.grid(rows, places).cut(states.flatten(0, 1))
        return Memory(x.like(values), end[: len(x)], carry[: len(x)], states)

    def _all_rows(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From `(steps · rows, d_model)`, all first positions, then all second ones, and so on, to states
        `(rows, places, d_model)`, the end and the carry."""
        rows, steps = len(lengths), len(x) // len(lengths)
        step = torch.arange(steps, device=x.device)[:, None]
        back = torch.where(step < lengths, lengths - 1 - step, step)
        reverse = (back * rows + torch.arange(rows, device=x.device)).flatten()
        x = gathered(x, reverse, reverse) if self.reverse else x
        ends = []
        with torch.autocast(x.device.type, enabled=False):
            for i, ways in enumerate(zip(self.forwards, self.backwards or self.forwards, strict=True)):
                layers = [way.layers[0].all_weights[0] for way in ways[: 2 if self.backwards else 1]]
                w_x, w_h, b_x, b_h = (torch.stack(each) for each in zip(*layers, strict=True))
                w_x, w_h, bias = (each.to(x.dtype) for each in (w_x, w_h, b_x + b_h))
                x, end = lstm_layer(self.dropout(x) if i else x, w_x, w_h, bias, lengths, reverse)
                ends.append(end.permute(2, 0, 1, 3).flatten(2))  # (rows, parts, d_model)
        carry = torch.stack(ends, dim=1)
        x = self.dropout(gathered(x, reverse, reverse) if self.reverse else x)
        more = bucket(steps, 8, 8) - steps  # as many places as `source_bucket` says
        states = F.pad(x.view(steps, rows, -1).transpose(0, 1), (0, 0, 0, more))
        return states, self.dropout(carry[:, -1, 0]), carry


@register("transformer")
class TransformerEncoder(Body):
    """Blocks of self-attention (Vaswani et al. 2017). The summary is the mean of the states."""

    steady = True

    def __init__(
        self, settings: TransformerEncoderSettings, stem: Stem, d_model: int, dropout: float, longest: int
    ) -> None:
        super().__init__(settings, stem, d_model, dropout, longest)
        width = settings.width or d_model
        parts = transformer_parts(settings, width, dropout, longest, EncoderBlock)
        self.positions, self.embedding_norm = parts.positions, parts.embedding_norm
        self.blocks: Sequence[EncoderBlock] = nn.ModuleList(parts.blocks)  # type: ignore[assignment]
        self.final, self.depth = parts.final, parts.depth
        self.project = None if width == d_model else nn.Linear(width, d_model)
        self.packed = stem.fills > 0

    @property
    def levels(self) -> list[Sequence[nn.Module]]:
        below = [part for part in (self.stem, self.positions, self.embedding_norm) if part is not None]
        return [below, *([block] for block in self.blocks)]

    def forward(self, source: Ragged) -> Memory:
        x = self.stem(source, self.positions, self.embedding_norm)
        seen = self.blocks[0].self_attention.spans(x)
        x = run_blocks(self.blocks, x, seen, final=self.final, depth=self.depth)
        return Memory(x if self.project is None else x.like(self.project(x.values)))


class SeveralEncoders(nn.Module):
    """An encoder for each of several sources, or one for all; their states stand end to end, so that a decoder attends
    over all of them. The summary is the mean of theirs, the carry that of the first.

    With a `joint` body these states, to each of which a vector for its source is added, are what that reads; memory
    and summary are then its own. One encoder for all reads all sources as one batch: row `i` of source `n` (from 0) is
    its row `n · rows + i`.
    """

    packed = False

    def __init__(self, encoders: Sequence[nn.Module], joint: nn.Module | None = None, d_model: int = 0) -> None:
        super().__init__()
        self.encoders, self.joint = nn.ModuleList(encoders), joint
        if joint is not None:
            self.source_vectors = nn.Parameter(torch.empty(len(encoders), d_model).normal_().mul_(d_model**-0.5))

    def forward(self, source: Bundle) -> Memory:
        shared = all(encoder is self.encoders[0] for encoder in self.encoders)
        memory = self._shared(source) if shared else self._each(source)
        return memory if self.joint is None else self.joint(memory.states)

    def _each(self, source: Bundle) -> Memory:
        memories: list[Memory] = [encode(part) for encode, part in zip(self.encoders, source.parts, strict=True)]
        if self.joint is not None:
            memories = [
                replace(memory, states=memory.states.like(memory.states.values + vector))
                for memory, vector in zip(memories, self.source_vectors, strict=True)
            ]
        states = memories[0].states
        for memory in memories[1:]:
            states, _ = states.joined(memory.states)
        summary = torch.stack([memory.summary for memory in memories]).mean(0)
        return Memory(states, summary, memories[0].carry)

    def _shared(self, source: Bundle) -> Memory:
        rows, count = len(source), len(source.parts)
        memory: Memory = self.encoders[0](source.stacked)
        if self.joint is not None:
            number = memory.states.row.clamp(max=rows * count - 1) // max(rows, 1)
            added = memory.states.like(memory.states.values + self.source_vectors[number])
            memory = replace(memory, states=added)
        by_row = torch.arange(rows * count, device=memory.states.offsets.device).view(count, rows).mT.flatten()
        states = memory.states.select(by_row)
        longest = int(memory.states.lengths.view(count, rows).sum(0).max()) if rows else 0
        summary = memory.summary.view(count, rows, -1).mean(0)
        carry = None if memory.carry is None else memory.carry[:rows]
        return Memory(Ragged(states.values, states.offsets[::count].contiguous(), longest), summary, carry)


def steady(encoder: nn.Module) -> bool:
    """Whether on a GPU nothing in an encoder waits for the device, where each source has all rows of one length or is
    filled up, and one at least the former."""
    match encoder:
        case Body():
            return encoder.steady and encoder.stem.steady
        case SeveralEncoders():
            each, joint = list(encoder.encoders), encoder.joint
            one_each = len({id(part) for part in each}) == len(each)
            own = all(isinstance(part, Body) and (part.packed or steady(part)) for part in each)
            return one_each and own and (joint is None or bool(joint.packed))
        case _:
            return False


class Parts(NamedTuple, Generic[B]):
    """What a Transformer's encoder or decoder is made of."""

    positions: nn.Module | None  # that are added to token vectors, unless attention itself has some
    embedding_norm: nn.Module | None  # over both, before the first block
    blocks: list[B]
    final: nn.Module  # the last norm, which pre-norm needs because it leaves the residual stream unnormed
    depth: StochasticDepth


def transformer_parts(
    part: TransformerSettings, d_model: int, dropout: float, longest: int, block: Callable[..., B], causal: bool = False
) -> Parts[B]:
    """The parts that settings ask for."""
    heads, width = part.heads, part.d_head or d_model // part.heads
    if part.positions == "learned":
        absolute: nn.Module | None = Learned(d_model, longest, part.first_position)
        each: list[Relative | None] = [None] * part.layers
    elif part.positions == "t5":
        bias = T5Bias(heads, part.buckets, part.bucket_distance, bidirectional=not causal)
        absolute, each = None, [bias] * part.layers
    else:
        absolute, each = make_positions(part.positions, d_model, heads, part.layers, longest, causal, width)
    blocks = [
        block(
            d_model, heads, part.d_ff, norm=part.norm, normalize=part.normalize, gated=part.gated,
            activation=part.activation, dropout=dropout, relative=own, epsilon=part.norm_epsilon, d_head=part.d_head,
            bias=part.biases, scaled=part.scale_scores,
        )
        for own in each
    ]  # fmt: skip
    first, final = (
        make_norm(part.normalize, d_model, part.norm_epsilon) if wanted else None
        for wanted in (part.embedding_norm, part.norm == "pre")
    )
    depth = StochasticDepth(part.stochastic_depth, part.layers, blocks[0].sublayers)
    return Parts(absolute, first, blocks, final or nn.Identity(), depth)


def make_positions(
    kind: str, d_model: int, heads: int, layers: int, longest: int, causal: bool = False, d_head: int | None = None
) -> tuple[nn.Module | None, list[Relative | None]]:
    """Positions that are added to vectors, and those inside the attention of each layer, of which one may serve all."""
    shared: Relative | None = None
    d_head = d_head or d_model // heads
    absolute: nn.Module | None = None
    match kind:
        case "rotary":
            shared = Rotary(d_head)
        case "alibi":
            shared = Alibi(heads)
        case "t5":
            shared = T5Bias(heads, bidirectional=not causal)
        case "learned":
            absolute = Learned(d_model, longest)
        case "sinusoidal":
            absolute = Sinusoidal(d_model)
        case "sinusoidal_halves":
            absolute = SinusoidalHalves(d_model)
    each: list[Relative | None] = [shared] * layers
    if kind == "shaw":
        each = [Shaw(d_head) for _ in range(layers)]
    elif kind == "xl":
        each = [TransformerXL(heads, d_head) for _ in range(layers)]
    return absolute, each
