"""Stems: the elements of a source to vectors of width `d_model`, for any encoder body to work on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.dropout import Dropout
from regard.nn.kernels import usable
from regard.nn.positions import Sinusoidal
from regard.ragged import Ragged
from regard.registry import STEMS, Family, register
from regard.stem_settings import SplitStemSettings, StemSettings


@dataclass(frozen=True)
class Elements:
    """What a source is made of: token ids below `vocabulary` (which may be its own, and no other side's), or arrays of
    this `shape`; the stem that usually reads them; the embedding of tokens, where the target shares it; and what alters
    them while a model trains. `separator` is the token that stands between the texts of a source."""

    vocabulary: int = 0
    shape: tuple[int, ...] = ()
    stem: StemSettings | None = None
    embedding: Embedding | None = None
    own_tokens: bool = False
    augmentation: nn.Module | None = None
    separator: int | None = None
    scaled: bool = True  # whether token vectors are multiplied by √d_model


class Stem(nn.Module, ABC):
    """Elements to vectors. Positions, where an encoder has some beside them, are added before dropout; a norm over
    both, where it has one, comes between.

    A subclass is made as `Stem(settings, elements, d_model, dropout)`, and says in `vectors` what it computes.
    """

    family: ClassVar[Family] = STEMS
    # Reads sources that are filled up (`Ragged.spare`), if their rows have this many elements on average; 0: not.
    fills = 0
    steady = False  # on a GPU nothing waits for the device, where all rows are of one length

    def __init__(self, settings: Any, elements: Elements, d_model: int, dropout: float) -> None:
        super().__init__()
        self.dropout, self.augmentation = Dropout(dropout), elements.augmentation

    @abstractmethod
    def vectors(self, source: Ragged) -> Ragged:
        """`(total, …)` elements to `(total', d_model)`, as many a row as `Settings.vectors` says."""

    def take_augmentation(self) -> nn.Module | None:
        """Hand over what alters elements in training, to an objective that alters them itself, and more."""
        taken, self.augmentation = self.augmentation, None
        return taken

    def forward(self, source: Ragged, positions: nn.Module | None = None, norm: nn.Module | None = None) -> Ragged:
        if self.training and self.augmentation is not None:
            source = self.augmentation(source)
        x = self.vectors(source)
        values = x.values if positions is None else x.values + positions(x.position, x.longest).to(x.values.dtype)
        return x.like(self.dropout(values if norm is None else norm(values)))


class VectorStem(Stem):
    """Vectors of width `d_model` as they are, for a body over what other encoders made."""

    fills = 1
    steady = True

    def vectors(self, source: Ragged) -> Ragged:
        return source


class Embedding(nn.Module):
    """Token vectors, scaled by `√d_model` so that they weigh as much as positions (Vaswani et al. 2017, 3.4), unless
    they are to stay as they are (`scaled`)."""

    def __init__(self, vocabulary: int, d_model: int, dropout: float, *, scaled: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, d_model)
        self.scale = math.sqrt(d_model) if scaled else 1.0
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)

    def forward(
        self, tokens: Tensor, positions: nn.Module | None = None, position: Tensor | None = None, longest: int = 0,
        norm: nn.Module | None = None, added: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """With `positions`, if attention itself has none; a token stands at a `position` below `longest`. With what is
        `added` besides, and a `norm` over all of it."""
        weight, reads = self.table.weight, not torch.is_grad_enabled() and not self.dropout.training
        plain = norm is None and added is None
        if isinstance(positions, Sinusoidal) and position is not None and reads and plain and usable(weight):
            from regard.nn import triton_decoding

            return triton_decoding.embed(tokens, weight, self.scale, position, positions.frequencies)
        x = self.table(tokens)
        x = x if self.scale == 1.0 else x * self.scale
        x = x if added is None else x + added
        x = x if positions is None else x + positions(position, longest).to(x.dtype)
        return self.dropout(x if norm is None else norm(x))


@register("tokens")
class TokenStem(Stem):
    """An embedding for each token; with `segments` also one for the text that it is of (BERT, Devlin et al. 2019, 3):
    `x_t = E[w_t] + S[s_t]`, where `s_t` counts the separators before `t`, up to the last segment there is."""

    fills = 1

    def __init__(self, settings: Any, elements: Elements, d_model: int, dropout: float) -> None:
        super().__init__(settings, elements, d_model, dropout)
        made = elements.embedding or Embedding(elements.vocabulary, d_model, dropout, scaled=elements.scaled)
        self.embedding, self.separator = made, elements.separator
        self.segments: nn.Embedding | None = None
        if settings is not None and settings.segments:
            self.segments = nn.Embedding(settings.segments, d_model)
            nn.init.normal_(self.segments.weight, std=0.02)

    def vectors(self, source: Ragged) -> Ragged:
        return source.like(self.embedding(source.values, added=self._segments(source)))

    def forward(self, source: Ragged, positions: nn.Module | None = None, norm: nn.Module | None = None) -> Ragged:
        position, added = None if positions is None else source.position, self._segments(source)
        return source.like(self.embedding(source.values, positions, position, source.longest, norm, added))

    def _segments(self, source: Ragged) -> Tensor | None:
        """The vector of the segment that each token is of, if they have some."""
        if self.segments is None:
            return None
        if self.separator is None:
            return self.segments.weight[0]
        before = F.pad((source.values == self.separator).cumsum(0), (1, 0))  # separators before each token
        number = before[:-1] - source.spread(before[source.offsets[:-1].long()])
        return self.segments(number.clamp(0, self.segments.num_embeddings - 1))


@register("split")
class SplitStem(Stem):
    """State splitting (Libovický and Helcl 2018, 3): `h_{k i + j} = (W x_i + b)_j` for `j` in `0 … k - 1`, so that CTC,
    which writes a token at most for each vector, can write more tokens than it reads. They split what the encoder
    makes, here the embedding is split: the body, recurrent or not, then works on all of the vectors."""

    def __init__(self, settings: SplitStemSettings, elements: Elements, d_model: int, dropout: float) -> None:
        super().__init__(settings, elements, d_model, dropout)
        self.times, self.embedding = settings.times, elements.embedding or Embedding(elements.vocabulary, d_model, 0.0)
        self.linear = nn.Linear(d_model, settings.times * d_model)

    def vectors(self, source: Ragged) -> Ragged:
        x = self.linear(self.embedding(source.values))  # (total, times · d_model)
        values = x.view(x.shape[0] * self.times, -1)
        made = Ragged(values, source.offsets * self.times, source.longest * self.times, source.uniform)
        if "known" in source.__dict__:
            made.__dict__["known"] = source.known * self.times
        return made


@register("convolution")
class ConvolutionStem(Stem):
    """Convolutions over images, to a grid of vectors, as Show, Attend and Tell reads them (Xu et al. 2015, 3.1.1).

    A source is a sequence of scanlines `(height, 3 width)` of bytes. Each halving is a convolution of stride 2, or, if
    `pooled`, one of stride 1 and a max-pooling of stride 2 (Hassani et al. 2021, eq. 2); one more convolution looks
    around at the end. With `coordinates` two more channels say where a pixel is. The vectors are the cells of the grid,
    row by row.
    """

    steady = True

    def __init__(self, settings: Any, elements: Elements, d_model: int, dropout: float) -> None:
        super().__init__(settings, elements, d_model, dropout)
        self.coordinates = settings.coordinates
        widths = [3 + 2 * settings.coordinates, *(settings.channels * 2**i for i in range(settings.halvings))]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            stride = 1 if settings.pooled else 2
            layers += [nn.Conv2d(before, after, 3, stride, padding=1), nn.GroupNorm(1, after), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(3, stride=2, padding=1)] if settings.pooled else []
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], d_model, 3, padding=1))
        self.norm = nn.LayerNorm(d_model)

    def vectors(self, source: Ragged) -> Ragged:
        kind = self.norm.weight.dtype
        pixels = source.values.view(source.rows, source.longest, -1, 3).to(kind) / 127.5 - 1.0
        x = pixels.permute(0, 3, 1, 2)  # (rows, channels, height, width)
        if self.coordinates:
            height, width = (torch.linspace(-1, 1, n, device=x.device, dtype=kind) for n in x.shape[-2:])
            where = torch.stack(torch.meshgrid(height, width, indexing="ij"))
            x = torch.cat((x, where.expand(x.shape[0], -1, -1, -1)), dim=1)
        if not x.is_cuda:  # where convolutions of 3 x 3 are fastest with channels side by side
            x = x.contiguous(memory_format=torch.channels_last)
        grid = self.layers(x).flatten(2).mT  # (rows, cells, d_model)
        return source.even(self.norm(grid.flatten(0, 1)), grid.shape[1])
