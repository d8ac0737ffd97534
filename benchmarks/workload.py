"""What is measured: models of a stated size, and sentences as long as those of a translation corpus.

Tokens are drawn evenly from the vocabulary; only how many there are matters for throughput. All comes from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batches import Index, pack
from regard.data.marks import BOS, EOS, MARKS, PAD

MEAN, SIGMA, STRETCH, LONGEST = 24.0, 0.6, 0.15, 256
WINDOW = 100_000  # sentences that are sorted by length, as in training
DROPOUT, SMOOTHING = 0.1, 0.1
Tokens = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Shape:
    """How large a model is: encoder and decoder alike, one embedding for both sides and the output."""

    name: str
    layers: int
    d_model: int
    d_ff: int
    heads: int
    vocabulary: int = 32_000
    kind: Literal["transformer", "lstm"] = "transformer"

    def __str__(self) -> str:
        if self.kind == "lstm":
            kind, more = "attentive LSTM, bidirectional and with input feeding", "bilinear score"
        else:
            kind, more = "Transformer", f"d_ff {self.d_ff}, {self.heads} heads, post-norm"
        sizes = f"{self.layers}+{self.layers} layers, d_model {self.d_model}"
        return f"{kind}, {sizes}, {more}, vocabulary {self.vocabulary:,}"

    def settings(self, dropout: float = DROPOUT) -> dict[str, Any]:
        """Regard's [model] section."""
        both = {"d_model": self.d_model, "dropout": dropout, "share_embeddings": True}
        if self.kind == "lstm":
            encoder = {"kind": "lstm", "layers": self.layers, "bidirectional": True}
            decoder = {"kind": "lstm", "layers": self.layers, "score": "bilinear", "place": "feeding"}
            return {**both, "encoder": encoder, "decoder": decoder}
        part = {"kind": "transformer", "layers": self.layers, "heads": self.heads, "d_ff": self.d_ff, "norm": "post"}
        return {**both, "encoder": part, "decoder": part}

    def like(self, **changes: Any) -> Shape:
        """A copy with some fields changed."""
        return replace(self, **changes)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("tiny", 1, 32, 64, 2, 200),
        Shape("tiny-lstm", 1, 32, 64, 1, 200, "lstm"),
        Shape("small", 3, 256, 1024, 4, 8_000),
        Shape("base", 6, 512, 2048, 8),
        Shape("big", 6, 1024, 4096, 16),
        Shape("lstm", 2, 512, 2048, 1, kind="lstm"),
    )
}


def draw_lengths(count: int, seed: int) -> tuple[Index, Index]:
    """Lengths without special tokens: the source's log-normal, the target's a log-normal stretch of them."""
    draw = np.random.default_rng((seed, 1))
    raw = draw.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, count)
    source = np.clip(np.rint(raw), 1, LONGEST).astype(np.int64)
    target = np.clip(np.rint(source * draw.lognormal(0.0, STRETCH, count)), 1, LONGEST).astype(np.int64)
    return source, target


@dataclass(frozen=True)
class Window:
    """Sentence pairs that batches are cut from."""

    source: Index  # lengths, without special tokens
    target: Index
    vocabulary: int
    seed: int

    @staticmethod
    def draw(vocabulary: int, seed: int, sentences: int = WINDOW) -> Window:
        """Lengths as in a translation corpus."""
        return Window(*draw_lengths(sentences, seed), vocabulary, seed)

    @staticmethod
    def even(vocabulary: int, seed: int, sentences: int, length: int) -> Window:
        """All of one length, special tokens counted."""
        lengths = np.full(sentences, max(length - 1, 1))
        return Window(lengths, lengths, vocabulary, seed)

    def packed(self, budget: int, count: int) -> list[Index]:
        """`count` of Regard's batches at even distances: at most `budget` tokens a side, none of them padding."""
        return spaced(pack([self.source + 1, self.target + 1], [budget, budget]), count)

    def padded(self, budget: int, count: int, *, by_length: bool = True) -> list[Index]:
        """`count` padded batches at even distances: rows times the longest of both sides is at most `budget`.

        Sentences are sorted in the way that pads less (by target and then source length, or by the longer of the two);
        unless `by_length`, they come as they are.
        """
        longer = np.maximum(self.source, self.target)
        orders = [np.lexsort((self.source, self.target)), np.lexsort((self.source + self.target, longer))]
        tries = [self._pack(order, budget) for order in (orders if by_length else [np.arange(len(longer))])]
        return spaced(min(tries, key=self._positions), count)

    def _pack(self, order: Index, budget: int) -> list[Index]:
        """Batches in this order, each within the budget (EOS and padding counted) unless one sentence alone is over."""
        longer = np.maximum(self.source, self.target)[order] + 1
        packs, start = [], 0
        while start < len(order):
            width = np.maximum.accumulate(longer[start : start + budget])
            fits = int((np.arange(1, len(width) + 1) * width <= budget).sum())
            stop = start + max(fits, 1)
            packs.append(order[start:stop])
            start = stop
        return packs

    def _positions(self, packs: Sequence[Index]) -> int:
        """Positions of both sides, padding counted."""
        return sum(len(x) * int(self.source[x].max() + self.target[x].max() + 2) for x in packs)

    def pairs(self, index: Index) -> tuple[list[list[int]], list[list[int]]]:
        """The tokens of some sentences, without special tokens; each sentence has the same ones every time."""
        low, high = len(MARKS), self.vocabulary
        sides: tuple[list[list[int]], list[list[int]]] = ([], [])
        for i in index.tolist():
            draw = np.random.default_rng((self.seed, 2, i))
            for side, lengths in zip(sides, (self.source, self.target), strict=True):
                side.append(draw.integers(low, high, int(lengths[i])).tolist())
        return sides


def spaced(packs: Sequence[Index], count: int) -> list[Index]:
    """`count` of them at even distances; all if there are fewer."""
    if count >= len(packs):
        return list(packs)
    return [packs[int((i + 0.5) * len(packs) / count)] for i in range(count)]


class Padded(NamedTuple):
    """A padded batch, as peers take it."""

    source: Tensor  # (rows, source), each closed by </s>
    source_mask: Tensor  # True where real
    inputs: Tensor  # (rows, target), each begun by <s>
    outputs: Tensor  # (rows, target), each closed by </s>
    tokens: int  # real target tokens, </s> counted

    def each(self, change: Callable[[Tensor], Tensor]) -> Padded:
        """Change all tensors, as to move them."""
        source, mask, inputs, outputs = map(change, self[:4])
        return Padded(source, mask, inputs, outputs, self.tokens)


def pad(sources: Tokens, targets: Tokens, fill: int = PAD) -> Padded:
    """Add <s> and </s>, and pad."""

    def padded(rows: Tokens) -> Tensor:
        return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)

    source, outputs = padded([[*x, EOS] for x in sources]), padded([[*y, EOS] for y in targets])
    inputs = padded([[BOS, *y] for y in targets])
    return Padded(source, source != fill, inputs, outputs, sum(len(y) + 1 for y in targets))


def sentences(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Sources to decode, each of `length` tokens."""
    draw = np.random.default_rng((seed, 3))
    return draw.integers(len(MARKS), vocabulary, (count, length)).tolist()
