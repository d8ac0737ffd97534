"""A stack of regularised LSTMs as a decoder alone: AWD-LSTM, and the Mogrifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.decoder_settings import AwdLstmSettings
from regard.models.encoders import Memory
from regard.models.stems import Embedding
from regard.nn.mogrifier import MogrifierLSTM, Pair
from regard.nn.rows import Grouping
from regard.ragged import Ragged


@dataclass(frozen=True)
class LSTMState:
    """A stack of LSTMs between two tokens: the hidden vectors and cells of all layers, one after the other."""

    carry: Tensor  # (rows, 2 · all widths)

    @property
    def static_shapes(self) -> bool:
        return True

    def select(self, rows: Tensor, sources: Tensor | None = None) -> LSTMState:
        return LSTMState(self.carry[rows])

    def fixed(self, tokens: int) -> LSTMState:
        return self

    def grouped(self, grouping: Grouping | None) -> LSTMState:
        return self

    def join(self, others: Sequence[LSTMState], rows: Tensor, sources: Tensor, room: int = 0) -> LSTMState:
        return LSTMState(torch.cat([state.carry for state in (self, *others)])[rows])

    def put(self, other: LSTMState, rows: Tensor, whose: Tensor, sources: Tensor, room: int) -> bool:
        self.carry.index_copy_(0, rows, other.carry[whose])
        return True


@dataclass(frozen=True)
class Read:
    """What was made of some text: what goes to the output layer, `(total, d_model)`, the states of the top layer before
    their dropout, `(total, width)`, and the state after it."""

    outputs: Ragged
    states: Ragged
    state: LSTMState


class AwdLstmDecoder(nn.Module):
    """AWD-LSTM (Merity et al. 2018, sections 2 to 4): `h^l = LSTM(m^l ∘ h^{l-1})` with `h^0` the embeddings, and
    `m ∘ h^L` to the output layer. A mask `m` is one for all positions of a sequence (variational dropout, Gal and
    Ghahramani 2016), of embeddings whole words drop out, and of the weights from state to state a share.

    The last layer is as wide as the embedding, or, with `project`, as the others, and `W (m ∘ h^L)` is what goes to the
    output layer (Melis et al. 2020). Embeddings are not scaled.
    """

    def __init__(self, embedding: Embedding, settings: AwdLstmSettings, d_model: int) -> None:
        super().__init__()
        self.bounded = self.packed = False
        self.embedding, self.settings = embedding, settings
        hidden = settings.hidden or d_model
        self.widths = [*[hidden] * (settings.layers - 1), hidden if settings.project else d_model]
        inputs = [d_model, *self.widths[:-1]]
        layers = [
            MogrifierLSTM(before, width, settings.rounds, settings.rank, settings.weight_dropout)
            for before, width in zip(inputs, self.widths, strict=True)
        ]
        self.layers: Sequence[MogrifierLSTM] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.project = nn.Linear(hidden, d_model) if settings.project else None
        if self.project is not None:
            nn.init.xavier_uniform_(self.project.weight)
            nn.init.zeros_(self.project.bias)

    def start(self, memory: Memory) -> LSTMState:
        raise AssertionError("it has no encoder to look at")

    def alone(self, rows: int) -> LSTMState:
        return LSTMState(self.embedding.table.weight.new_zeros(rows, 2 * sum(self.widths)))

    def run(self, tokens: Ragged, state: LSTMState) -> Read:
        """Like `read`, and tells more of it."""
        settings, ends = self.settings, []
        x = self._locked(self._embedded(tokens), settings.input_dropout)
        for i, (layer, before) in enumerate(zip(self.layers, self._parts(state), strict=True)):
            x, end = layer(self._locked(x, settings.layer_dropout) if i else x, before)
            ends.append(end)
        top = x
        if self.project is not None:
            x = x.like(self.project(self._locked(x, settings.layer_dropout).values))
        return Read(self._locked(x, settings.output_dropout), top, _joined(ends))

    def read(self, tokens: Ragged, state: LSTMState) -> tuple[Ragged, LSTMState]:
        found = self.run(tokens, state)
        return found.outputs, found.state

    def forward(self, tokens: Ragged, memory: Memory | None) -> Ragged:
        return self.read(tokens, self.alone(len(tokens)))[0]

    def step(self, tokens: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        x, ends = self.embedding.table(tokens), []
        for layer, before in zip(self.layers, self._parts(state), strict=True):
            end = layer.step(x, before)
            x = end[0]
            ends.append(end)
        return x if self.project is None else self.project(x), _joined(ends)

    def _embedded(self, tokens: Ragged) -> Ragged:
        """Embeddings, of which in training some words have none."""
        table, share = self.embedding.table, self.settings.word_dropout
        x = table(tokens.values)
        if self.training and share:
            x = x * _mask(table.weight, table.num_embeddings, 1, share)[tokens.values]
        return tokens.like(x)

    def _locked(self, x: Ragged, share: float) -> Ragged:
        """Dropout with one mask for all positions of a sequence."""
        if not self.training or not share:
            return x
        mask = _mask(x.values, len(x), x.values.shape[-1], share)
        if x.uniform:
            return x.like((x.padded() * mask.unsqueeze(1)).flatten(0, 1))
        return x.like(x.values * x.spread(mask))

    def _parts(self, state: LSTMState) -> list[Pair]:
        """The hidden vector and the cell of each layer."""
        parts = state.carry.split([width for width in self.widths for _ in range(2)], -1)
        return list(zip(parts[::2], parts[1::2], strict=True))


def _joined(ends: Sequence[Pair]) -> LSTMState:
    return LSTMState(torch.cat([part for end in ends for part in end], -1))


def _mask(like: Tensor, rows: int, width: int, share: float) -> Tensor:
    """`(rows, width)`: 0 with this probability, and else what makes up for it."""
    return like.new_empty(rows, width).bernoulli_(1.0 - share).div_(1.0 - share)
