"""Noise for pretraining: which tokens of a text are hidden, and what is left of it.

All of it works on lists of token ids and draws from a NumPy generator, so that a batch that is made again, from the
seed of its place in an epoch, has the same noise. A span is `(start, end)`, and spans stand in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain, groupby
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.data.tokens import Tokenizer
from regard.errors import ConfigError, DataError
from regard.training_settings import DenoisingSettings, SpanCorruptionSettings

Span = tuple[int, int]
Ids = Sequence[int] | NDArray[Any]
STOP = 0.2  # of a span of words: the chance that it ends after each word (Joshi et al. 2020, 3.1)
MOST_WORDS = 10  # of such a span
SENTENCE_END = re.compile(r"[.!?…。！？]['\"”’)\]]*$")


def word_spans(words: Sequence[int]) -> list[Span]:
    """The tokens of each word, by the number of the word that each token belongs to; those of none are left out."""
    found, place = [], 0
    for number, some in groupby(words):
        end = place + len(list(some))
        if number >= 0:
            found.append((place, end))
        place = end
    return found


def choose_words(words: Sequence[Span], budget: int, draw: np.random.Generator) -> list[Span]:
    """Whole words, drawn one after the other, of `budget` tokens at most; but one word at least."""
    order = draw.permutation(len(words)).tolist()
    chosen, left = [], budget
    for number in order:
        start, end = words[number]
        if end - start <= left:
            chosen.append(words[number])
            left -= end - start
    return sorted(chosen or [words[number] for number in order[:1]])


def choose_spans(words: Sequence[Span], budget: int, draw: np.random.Generator) -> list[Span]:
    """Spans of whole words, of `budget` tokens at most, but of one word at least (SpanBERT, Joshi et al. 2020, 3.1).

    How many words a span has is drawn from `p(l) ∝ (1 - p)^(l-1) p` with p = 0.2, up to 10 of them (3.8 on average),
    and where it begins from all words that are left. It ends early where another begins, or where the budget does.
    """
    lengths = np.arange(1, MOST_WORDS + 1)
    odds = STOP * (1.0 - STOP) ** (lengths - 1)
    odds /= odds.sum()
    free, candidates, chosen, left = [True] * len(words), list(range(len(words))), list[Span](), budget
    while candidates and (left > 0 or not chosen):
        length, first = int(draw.choice(lengths, p=odds)), candidates[int(draw.integers(len(candidates)))]
        taken: list[int] = []
        for number in range(first, min(first + length, len(words))):
            start, end = words[number]
            apart = taken and words[number - 1][1] != start  # a mark stands between
            if not free[number] or apart or (end - start > left and (taken or chosen)):
                break
            taken.append(number)
            left -= end - start
        for number in taken:
            free[number] = False
        if taken:
            chosen.append((words[taken[0]][0], words[taken[-1]][1]))
        candidates = [number for number in candidates if free[number] and (taken or number != first)]
    return sorted(chosen)


class Noise(Protocol):
    """What a denoising encoder-decoder learns to undo: a text to what the encoder reads and the decoder writes."""

    def __call__(self, tokens: Ids, draw: np.random.Generator) -> tuple[list[int], list[int]]:
        """Source and target, both without marks around them; neither has more than one token more than the text."""
        ...

    def blank(self, number: int) -> int:
        """The token that stands for what is missing at the blank of this number, from 0, of a source."""
        ...

    def restored(self, source: Ids, target: Ids) -> list[int]:
        """The whole text, of a source and what was written of it."""
        ...


class Corruption:
    """The noise of BART (Lewis et al. 2020, 2.2): the decoder writes the whole text.

    Text infilling takes spans out, of lengths drawn from a Poisson distribution, until a share of the tokens is gone,
    and puts one mask in place of each; a span of length 0 is a mask where nothing is missing. Masking puts a mask in
    place of single tokens, deletion puts nothing there. Before that, sentences may be put into any order.
    """

    def __init__(self, settings: DenoisingSettings, tokenizer: Tokenizer) -> None:
        self.settings, self.tokenizer = settings, tokenizer
        mask = tokenizer.marks.mask
        if mask is None:
            raise ConfigError(
                "training.objective.kind 'denoising' needs a vocabulary with a mark for what is missing, and this one "
                "has none; use span_corruption"
            )
        self.mask = mask

    @cached_property
    def _ends(self) -> frozenset[int]:
        """The tokens that end a sentence."""
        shown = (self.tokenizer.pieces([token])[0] for token in range(self.tokenizer.size))
        return frozenset(token for token, piece in enumerate(shown) if SENTENCE_END.search(piece))

    def __call__(self, tokens: Ids, draw: np.random.Generator) -> tuple[list[int], list[int]]:
        target, settings = [int(token) for token in tokens], self.settings
        source = permuted(target, self._ends, draw) if settings.permute else target
        count = round(settings.noised * len(target))
        match settings.noise:
            case "infilling":
                source = infilled(source, count, settings.span, self.mask, draw)
            case "masking":
                hidden = set(draw.choice(len(source), count, replace=False).tolist())
                source = [self.mask if place in hidden else token for place, token in enumerate(source)]
            case "deletion":  # one token at least is left to read
                hidden = set(draw.choice(len(source), min(count, len(source) - 1), replace=False).tolist())
                source = [token for place, token in enumerate(source) if place not in hidden]
        return source, target

    def blank(self, number: int) -> int:
        return self.mask

    def restored(self, source: Ids, target: Ids) -> list[int]:
        return [int(token) for token in target]


class SpanCorruption:
    """The noise of T5 (Raffel et al. 2020, 3.1.4): the decoder writes what is missing.

    Spans of 3 tokens on average, 15 % of all, are taken out of a text, and a sentinel, each of them another, stands in
    place of each: `a b c d e f` is read as `a <0> d <1> f`, of which is written `<0> b c <1> e <2>`. No two of them
    touch, and all ways to lay them out are as likely; T5's own code always has one at the end.
    """

    def __init__(self, settings: SpanCorruptionSettings, tokenizer: Tokenizer) -> None:
        self.settings, self.sentinels = settings, tokenizer.marks.sentinels
        if len(self.sentinels) < 2:
            raise ConfigError(
                f"training.objective.kind 'span_corruption' needs sentinels, and this vocabulary has "
                f"{len(self.sentinels)}; set tokens.sentinels to 100, as T5 has"
            )

    def __call__(self, tokens: Ids, draw: np.random.Generator) -> tuple[list[int], list[int]]:
        ids, settings = [int(token) for token in tokens], self.settings
        missing = min(max(round(settings.corrupted * len(ids)), 1), len(ids) - 1)
        most = min(missing, len(ids) - missing, len(self.sentinels) - 1)  # the last one closes
        count = min(max(round(missing / settings.span), 1), most)
        gaps = np.sort(draw.choice(len(ids) - missing + 1, count, replace=False)).tolist()  # kept tokens before each
        source, target, place, before = list[int](), list[int](), 0, 0
        for sentinel, gap, length in zip(self.sentinels, gaps, parted(missing, count, draw), strict=False):
            start = place + gap - before
            source += [*ids[place:start], sentinel]
            target += [sentinel, *ids[start : start + length]]
            place, before = start + length, gap
        return source + ids[place:], [*target, self.sentinels[count]]

    def blank(self, number: int) -> int:
        if number >= len(self.sentinels) - 1:
            raise DataError(f"it has more than {len(self.sentinels) - 1} blanks, for which there are sentinels")
        return self.sentinels[number]

    def restored(self, source: Ids, target: Ids) -> list[int]:
        found: dict[int, list[int]] = {}
        current: list[int] = []
        for token in map(int, target):
            if token in self.sentinels:
                current = found.setdefault(token, [])
            else:
                current.append(token)
        return list(chain.from_iterable(found.get(int(token), [int(token)]) for token in source))


NOISES: dict[str, Callable[[Any, Tokenizer], Noise]] = {"denoising": Corruption, "span_corruption": SpanCorruption}


def infilled(tokens: list[int], count: int, mean: float, mask: int, draw: np.random.Generator) -> list[int]:
    """`count` tokens taken out in spans of Poisson lengths, with one mask for each; no two of them touch."""
    lengths, left = list[int](), count
    while left > 0 and len(lengths) < count:  # so that no more masks come in than tokens go out
        lengths.append(min(int(draw.poisson(mean)), left))
        left -= lengths[-1]
    kept = len(tokens) - sum(lengths)
    lengths = lengths[: kept + 1]
    gaps = np.sort(draw.choice(kept + 1, len(lengths), replace=False)).tolist()  # kept tokens before each
    found, place, before = list[int](), 0, 0
    for gap, length in zip(gaps, lengths, strict=True):
        found += [*tokens[place : place + gap - before], mask]
        place, before = place + gap - before + length, gap
    return found + tokens[place:]


def parted(total: int, count: int, draw: np.random.Generator) -> list[int]:
    """A whole number as a sum of so many, none of them 0, all ways being as likely."""
    if count < 1:
        return []
    cuts = np.sort(draw.choice(total - 1, count - 1, replace=False)) + 1
    return np.diff([0, *cuts.tolist(), total]).tolist()


def permuted(tokens: list[int], ends: frozenset[int], draw: np.random.Generator) -> list[int]:
    """The sentences of a text in another order; each goes up to a token of `ends`, the last as far as the text."""
    bounds = [0, *(place + 1 for place, token in enumerate(tokens[:-1]) if token in ends), len(tokens)]
    order = draw.permutation(len(bounds) - 1).tolist()
    return [token for number in order for token in tokens[bounds[number] : bounds[number + 1]]]
