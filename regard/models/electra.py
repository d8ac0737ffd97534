"""Replaced-token detection (ELECTRA, Clark et al. 2020): a small masked language model, and an encoder that tells its
tokens from those of the text."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.encoders import Memory
from regard.models.model import Head, MaskedLanguageModel, placed
from regard.models.stems import Elements, Stem, TokenStem
from regard.ragged import Ragged


class NarrowStem(Stem):
    """The vectors of another stem, which is shared, brought to another width by a linear layer."""

    fills = 1

    def __init__(self, wide: TokenStem, d_model: int, width: int) -> None:
        super().__init__(None, Elements(), width, 0.0)
        self.wide, self.linear = wide, nn.Linear(d_model, width)

    def vectors(self, source: Ragged) -> Ragged:
        return source.like(self.linear(self.wide.vectors(source).values))


class ReplacedTokenModel(nn.Module):
    """Clark et al. 2020, 2. A generator says what stood at `<mask>`, as a masked language model does; tokens that are
    drawn from it go into the text, and the discriminator, `D(x, t) = σ(w · gelu(W h_t))`, says of every token whether
    it is another than the text had.

    The discriminator's encoder is `encoder`, so that other models begin from it. Both share the embedding of tokens.
    """

    def __init__(self, encoder: nn.Module, generator: MaskedLanguageModel, d_model: int) -> None:
        super().__init__()
        self.encoder, self.generator = encoder, generator
        self.transform, self.detector = nn.Linear(d_model, d_model), nn.Linear(d_model, 1)

    @property
    def packed(self) -> bool:
        """Whether only attention relates positions to each other, and nothing waits for the device."""
        return self.generator.packed and bool(self.encoder.packed)

    @property
    def head(self) -> Head:
        """The generator's output layer."""
        return self.generator.head

    def forward(self, source: Ragged, inputs: Ragged) -> Ragged:
        """The generator's logits `(total, vocabulary)` for the token at each of the positions `inputs`."""
        return self.generator(source, inputs)

    def states(self, source: Ragged, inputs: Ragged) -> Ragged:
        """Vectors `(total, d_model)` from which the generator's output layer predicts."""
        return self.generator.states(source, inputs)

    def encode(self, source: Ragged) -> Memory:
        return self.encoder(source)

    def replaced(self, source: Ragged, inputs: Ragged, tokens: Tensor) -> Ragged:
        """The texts with these tokens at the positions `inputs`; what fills these up changes none."""
        place = torch.where(inputs.row < inputs.rows, placed(source, inputs), source.values.shape[0])
        return source.like(F.pad(source.values, (0, 1)).index_copy(0, place, tokens)[:-1])

    def detect(self, source: Ragged) -> Tensor:
        """The logit of each token of a text, `(total,)`, that it is not the text's own."""
        states: Any = self.encode(source).states.values
        found: Tensor = self.detector(F.gelu(self.transform(states))).squeeze(-1)
        return found


def draw_tokens(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A token of each row of `(total, vocabulary)`, drawn from `softmax`; from torch's own generator if there is no
    other, whose state is saved with a run. The numbers are those of `torch.multinomial`, which would wait for the
    device: the token of the greatest `p / e`, with `e` drawn from an exponential distribution (Yellott 1977)."""
    odds = logits.float().softmax(-1)
    return odds.div_(torch.empty_like(odds).exponential_(generator=generator)).argmax(-1)
