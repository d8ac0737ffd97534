"""ELMo (Peters et al. 2018): words by their characters, two language models over them, a learnt mix of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from regard.encoder_settings import ElmoSettings
from regard.models.encoders import Body, Memory
from regard.models.model import Head
from regard.models.stems import Elements, Stem, VectorStem
from regard.nn.dropout import Dropout
from regard.ragged import Ragged, gathered
from regard.registry import BODIES, register
from regard.stem_settings import CharacterStemSettings

BYTES = 256  # of which some stand for marks, as no text in UTF-8 holds them


class Highway(nn.Module):
    """Srivastava et al. 2015: `g ⊙ relu(W x + b) + (1 - g) ⊙ x` with `g = σ(W_g x + b_g)`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)  # at first it mostly carries

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * F.relu(self.linear(x)) + (1.0 - gate) * x


@register("characters")
class CharacterStem(Stem):
    """A vector for each word, from its characters (Kim et al. 2016; Peters et al. 2018, 3.4).

    `x_w = max_i relu(W_w c_i:i+w + b_w)` over the vectors `c` of a word's characters, for each width `w` of some
    filters; all of them side by side go through highway layers, and a linear layer brings them to the width that is
    wanted. An element of the source is a word, `(characters,)` bytes.
    """

    def __init__(self, settings: CharacterStemSettings, elements: Elements, d_model: int, dropout: float) -> None:
        super().__init__(settings, elements, d_model, dropout)
        self.table = nn.Embedding(BYTES, settings.d_character)
        each = zip(settings.widths, settings.filters, strict=True)
        self.convolutions = nn.ModuleList(nn.Conv1d(settings.d_character, count, width) for width, count in each)
        total = sum(settings.filters)
        self.highways = nn.Sequential(*(Highway(total) for _ in range(settings.highways)))
        self.linear = nn.Linear(total, d_model)

    def vectors(self, source: Ragged) -> Ragged:
        characters = self.table(source.values.long()).mT  # (words, d_character, characters)
        if not len(characters):
            return source.like(self.linear.weight.new_zeros(0, len(self.linear.weight)))
        found = torch.cat([F.relu(convolve(characters).amax(-1)) for convolve in self.convolutions], dim=-1)
        return source.like(self.linear(self.highways(found)))


class LayerMix(nn.Module):
    """Peters et al. 2018, eq. 1: `γ Σ_k softmax(s)_k h_k`, over all layers of a body."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.scores, self.scale = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        shares = self.scores.softmax(0)
        return self.scale * torch.stack([share * layer for share, layer in zip(shares, layers, strict=True)]).sum(0)


class OneWay(nn.Module):
    """A stack of LSTMs that reads one way, from the second layer on with a residual connection around each (Peters et
    al. 2018, 3.4). With `units` the cells are wider, and what a layer hands on and back is projected (Sak et al. 2014).
    """

    def __init__(self, width: int, layers: int, units: int | None, dropout: float) -> None:
        super().__init__()
        one = {"hidden_size": width} if units is None else {"hidden_size": units, "proj_size": width}
        self.width = width
        self.layers: Sequence[nn.LSTM] = nn.ModuleList(nn.LSTM(width, **one) for _ in range(layers))  # type: ignore[assignment]
        self.dropout = Dropout(dropout)
        for name, parameter in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
                if "bias_ih" in name:  # remember by default (Gers et al. 2000)
                    parameter.data[len(parameter) // 4 : len(parameter) // 2] = 1.0
            else:
                nn.init.xavier_uniform_(parameter)

    def forward(self, x: Ragged) -> list[Ragged]:
        """The states of each layer, `(total, width)`."""
        found: list[Ragged] = []
        for number, layer in enumerate(self.layers):
            after = self._run(layer, x.like(self.dropout(x.values)))
            x = x.like(after + x.values) if number else x.like(after)
            found.append(x)
        return found

    def _run(self, layer: nn.LSTM, x: Ragged) -> Tensor:
        index, going, rows = x.by_step
        if not len(rows):
            return x.values.new_zeros(0, self.width)
        with torch.autocast(x.values.device.type, enabled=False):
            values = gathered(x.values.to(layer.all_weights[0][0].dtype), index, x.in_steps)
            packed, _ = layer(PackedSequence(values, going))
        return gathered(packed.data, x.in_steps, index)


@register("elmo")
class Elmo(Body):
    """Two language models over the same words, one that reads on and one that reads back (Peters et al. 2018, 3.1).

    Each has half of `d_model`: `h_k = [h→_k; h←_k]`, and what the stem makes of a word is `h_0 = [x; x]`. The states
    are those of the top layer or, with `mix`, `γ Σ_k softmax(s)_k h_k`. A body `over` them reads them as the paper's
    task models do; with `beside` a vector of the task's own, `x'`, stands beside them: `W [x'; ELMo]`.
    """

    def __init__(self, settings: ElmoSettings, stem: Stem, d_model: int, dropout: float, longest: int) -> None:
        super().__init__(settings, stem, d_model, dropout, longest)
        half, layers = d_model // 2, settings.layers
        self.width = half
        self.lm = nn.ModuleList(OneWay(half, layers, settings.units, dropout) for _ in range(2))
        self.mix = LayerMix(layers + 1) if settings.mix else None
        self.dropout = Dropout(dropout)
        self.beside: Stem | None = None
        if settings.beside is not None:
            self.beside = CharacterStem(settings.beside, Elements(), d_model, dropout)
            self.join = nn.Linear(2 * d_model, d_model)
        self.over: Any = None
        if settings.over is not None:
            vectors = VectorStem(None, Elements(), d_model, 0.0)
            self.over = BODIES.get(settings.over.kind)(settings.over, vectors, d_model, dropout, longest)

    @property
    def begun(self) -> tuple[str, ...]:
        return ("stem.", "lm.")

    def directions(self, source: Ragged) -> tuple[Ragged, list[Ragged], list[Ragged]]:
        """What the stem makes of words, and the states of each layer of either language model, all `(total, half)`."""
        x = self.stem(source)
        back = [states.reversed() for states in self.lm[1](x.reversed())]
        return x, self.lm[0](x), back

    def forward(self, source: Ragged) -> Memory:
        x, on, back = self.directions(source)
        pairs = [(x, x), *zip(on, back, strict=True)]
        layers = [torch.cat((one.values, other.values), dim=-1) for one, other in pairs]  # (total, d_model) each
        states = x.like(self.dropout(layers[-1] if self.mix is None else self.mix(layers)))
        if self.beside is not None:
            states = x.like(self.join(torch.cat((self.beside(source).values, states.values), dim=-1)))
        if self.over is not None:
            memory: Memory = self.over(states)
            return memory
        end = torch.cat((states.last()[:, : self.width], states.reversed().last()[:, self.width :]), dim=-1)
        return Memory(states, end)


class BidirectionalLanguageModel(nn.Module):
    """Peters et al. 2018, 3.1: `Σ_k log p(t_k given t_1 … t_k-1) + log p(t_k given t_k+1 … t_N)`, with one stem and one
    softmax for both directions."""

    def __init__(self, encoder: Elmo, head: Head) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.packed = False

    def forward(self, source: Ragged, inputs: Ragged) -> Ragged:
        """Logits `(total, vocabulary)`: of the word after a position `k` of the source of `n`, where an input is `k`,
        of the word before it, where it is `n + k`."""
        return inputs.like(self.head(self.states(source, inputs).values))

    def states(self, source: Ragged, inputs: Ragged) -> Ragged:
        """Vectors `(total, d_model / 2)` from which the output layer predicts."""
        _, on, back = self.encoder.directions(source)
        both = torch.cat((on[-1].values, back[-1].values))
        length, place = source.lengths[inputs.row], inputs.values
        other = place >= length
        index = source.offsets.long()[inputs.row] + place + other * (source.values.shape[0] - length)
        return inputs.like(self.encoder.dropout(both[index]))

    def encode(self, source: Ragged) -> Memory:
        memory: Memory = self.encoder(source)
        return memory
