"""Encoders: a source in, a `Memory` out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.attention import sight
from regard.nn.blocks import EncoderBlock
from regard.nn.cells import lstm_layer
from regard.nn.dropout import Dropout
from regard.nn.graphed import Graphs, few, recorder
from regard.nn.kernels import embed, usable
from regard.nn.positions import Sinusoidal
from regard.nn.recurrence import Recurrence
from regard.nn.repeated import kind_of
from regard.ragged import Ragged, gathered


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


class Embedding(nn.Module):
    """Token vectors, scaled by `√d_model` so that they weigh as much as positions (Vaswani et al. 2017, 3.4)."""

    def __init__(self, vocabulary: int, d_model: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, d_model)
        self.scale = math.sqrt(d_model)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)

    def forward(
        self, tokens: Tensor, positions: nn.Module | None = None, position: Tensor | None = None, longest: int = 0
    ) -> Tensor:
        """With `positions`, if order is not told inside attention; a token stands at a `position` below `longest`."""
        if isinstance(positions, Sinusoidal) and position is not None and self._only_read():
            return embed(tokens, self.table.weight, self.scale, position, positions.frequencies)
        x = self.table(tokens) * self.scale
        return self.dropout(x if positions is None else x + positions(position, longest).to(x.dtype))

    def _only_read(self) -> bool:
        return not torch.is_grad_enabled() and not self.dropout.training and usable(self.table.weight)


def rounded(source: Ragged) -> tuple[int, int]:
    """Rows and places of a source in a recording of a decoder, which does not mind empty places."""
    return few(len(source), 16, 16), few(max(source.longest, 1), 8, 8)


class RecurrentEncoder(nn.Module):
    """A stack of recurrent layers, each reading one way or both (Schuster and Paliwal 1997).

    Both ways, each direction has half of `d_model` and the joined states go to the next layer. The summary is the last
    state of each direction, joined: `h_T`. LSTMs can be recorded, both directions at once.
    """

    def __init__(
        self,
        embedding: Embedding,
        cell: str,
        d_model: int,
        layers: int,
        *,
        bidirectional: bool,
        reverse: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.packed = False
        self.embedding, self.reverse, self.cell = embedding, reverse, cell
        width = d_model // 2 if bidirectional else d_model
        ways = [[Recurrence(cell, d_model, width, 1) for _ in range(layers)] for _ in range(1 + bidirectional)]
        self.forwards: Sequence[Recurrence] = nn.ModuleList(ways[0])  # type: ignore[assignment]
        self.backwards: Sequence[Recurrence] = nn.ModuleList(ways[1] if bidirectional else [])  # type: ignore[assignment]
        self.dropout = Dropout(dropout)

    def forward(self, source: Ragged) -> Memory:
        x = source.like(self.embedding(source.values))
        if (graphs := recorder()) is not None and self.cell == "lstm" and source.longest:
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
        """The same as a recording, in one of few shapes: rows and steps are added that nobody looks at."""
        (rows, places), steps = rounded(x), few(x.longest, 16, 2)
        kind = x.values.dtype if x.values.device.type == "cpu" else kind_of(x.values)
        inputs = x.grid(rows, steps, by_step=True).padded(x.values.to(kind))
        lengths = F.pad(x.lengths, (0, rows - len(x)))
        used = [weight for name, weight in self.named_parameters() if not name.startswith("embedding.")]
        states, end, carry = graphs("encoder", self._all_rows, (inputs, lengths), used)
        values = x.grid(rows, places).cut(states.flatten(0, 1))
        return Memory(x.like(values), end[: len(x)], carry[: len(x)], states)

    def _all_rows(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From `(steps · rows, d_model)`, all first positions, then all second ones, and so on.

        To states `(rows, places, d_model)`, the end and the carry.
        """
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
        more = few(steps, 8, 8) - steps  # as many places as `rounded` says
        states = F.pad(x.view(steps, rows, -1).transpose(0, 1), (0, 0, 0, more))
        return states, self.dropout(carry[:, -1, 0]), carry


class ConvolutionEncoder(nn.Module):
    """Convolutions over pictures, to a grid of vectors, as Show, Attend and Tell reads them (Xu et al. 2015, 3.1.1).

    A source is a sequence of scanlines `(height, 3 width)` of bytes. Each halving is a convolution of stride 2; one
    more, of stride 1, looks around at the end. With `coordinates` two more channels say where a pixel is. The states
    are the cells of the grid, row by row; the summary is their mean.
    """

    def __init__(self, d_model: int, halvings: int, channels: int, *, coordinates: bool, dropout: float) -> None:
        super().__init__()
        self.packed = False
        self.coordinates, self.dropout = coordinates, Dropout(dropout)
        widths = [3 + 2 * coordinates, *(channels * 2**i for i in range(halvings))]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(1, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], d_model, 3, padding=1))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, source: Ragged) -> Memory:
        kind = self.norm.weight.dtype
        pixels = source.values.view(source.rows, source.longest, -1, 3).to(kind) / 127.5 - 1.0
        x = pixels.permute(0, 3, 1, 2)  # (rows, channels, height, width)
        if self.coordinates:
            height, width = (torch.linspace(-1, 1, n, device=x.device, dtype=kind) for n in x.shape[-2:])
            where = torch.stack(torch.meshgrid(height, width, indexing="ij"))
            x = torch.cat((x, where.expand(x.shape[0], -1, -1, -1)), dim=1)
        grid = self.layers(x).flatten(2).mT  # (rows, cells, d_model)
        cells = self.dropout(self.norm(grid.flatten(0, 1)))
        return Memory(source.even(cells, grid.shape[1]))


class TransformerEncoder(nn.Module):
    """Blocks of self-attention (Vaswani et al. 2017). The summary is the mean of the states.

    It is `packed`, and takes values that belong to no sequence, where its attention can.
    """

    def __init__(
        self, embedding: Embedding, positions: nn.Module | None, blocks: list[EncoderBlock], final: nn.Module
    ) -> None:
        super().__init__()
        self.embedding, self.positions = embedding, positions
        self.blocks: Sequence[EncoderBlock] = nn.ModuleList(blocks)  # type: ignore[assignment]
        self.final = final
        self.packed = not any(getattr(block.self_attention.relative, "adds", False) for block in blocks)

    def forward(self, source: Ragged) -> Memory:
        x = source.like(self.embedding(source.values, self.positions, source.position, source.longest))
        seen = sight(x, x, causal=False, relative=self.blocks[0].self_attention.relative)
        for block in self.blocks:
            x = block(x, seen)
        return Memory(x.like(self.final(x.values)))
