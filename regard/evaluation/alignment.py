"""Attention as a word alignment: weights of pieces to weights of words, to links, to an error rate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regard.evaluation.metrics import Score

WORDS = 10_000  # a word that gold links and boxes name has a smaller number
Weights = NDArray[np.float32]
Kind = Literal["cross", "encoder", "decoder"]  # what attends: target to source, source to itself, target to itself
Link = tuple[int, int]  # source word, target word


@dataclass(frozen=True, slots=True)
class Alignment:
    """Gold links (source word, target word). A careful reader is sure of some; others are possible."""

    sure: frozenset[Link]
    possible: frozenset[Link]  # includes the sure ones

    @staticmethod
    def parse(text: str) -> Alignment:
        """From Pharaoh's form: `0-0 1-2 3p4`, `i-j` sure and `ipj` (or `i?j`) possible."""
        sure, possible = set(), set()
        for link in text.split():
            match = re.fullmatch(r"([0-9]{1,9})([-p?])([0-9]{1,9})", link)
            pair = (int(match[1]), int(match[3])) if match else (WORDS, WORDS)
            if not match or max(pair) >= WORDS:
                raise ValueError(
                    f"'{link[:60]}' is no link; write source-target word numbers from 0, such as 0-0 1-2 3p4"
                )
            possible.add(pair)
            if match[2] == "-":
                sure.add(pair)
        return Alignment(frozenset(sure), frozenset(possible))


def merge_words(weights: Weights, target_word: Sequence[int], source_word: Sequence[int]) -> Weights:
    """`(target pieces, source pieces)` to `(target words, source words)`; -1 marks a piece of no word.

    A source word has the sum of what its pieces got; a target word looks where its pieces look on average.
    """
    target, source = np.asarray(target_word, dtype=int), np.asarray(source_word, dtype=int)
    rows, columns = target.max(initial=-1) + 1, source.max(initial=-1) + 1
    to_rows = (target == np.arange(rows)[:, None]).astype(np.float32)  # (target words, target pieces)
    to_columns = (source[:, None] == np.arange(columns)).astype(np.float32)  # (source pieces, source words)
    merged: Weights = (to_rows / to_rows.sum(1, keepdims=True).clip(min=1)) @ weights @ to_columns
    return merged


def links(words: Weights) -> list[Link]:
    """Each target word with the source word that has most of its attention; none if more went to no word at all."""
    if not words.size:
        return []
    best = words.argmax(axis=1)
    return sorted(
        (int(column), row) for row, column in enumerate(best) if words[row, column] > 1.0 - words[row].sum() + 1e-6
    )


def median_place(weights: Weights) -> float | None:
    """Where half of the attention over words (or moments) in a row lies before, counted in words from the start of the
    first: 2.5 is the middle of word 2. Within a word attention is taken as even; None where there is none at all."""
    mass = np.cumsum(np.nan_to_num(weights).astype(np.float64))
    if not mass.size or mass[-1] <= 0:
        return None
    half = mass[-1] / 2
    word = int(np.searchsorted(mass, half))
    before = mass[word - 1] if word else 0.0
    return float(word + (half - before) / (mass[word] - before))


def pharaoh(found: Iterable[Link]) -> str:
    """`0-0 1-2`, sorted."""
    return " ".join(f"{i}-{j}" for i, j in sorted(found))


@dataclass
class AlignmentCounts:
    """Links that were found, counted against gold ones, sentence by sentence."""

    found: int = 0
    sure: int = 0
    hits: int = 0  # found links that are sure, and found links that are possible
    pointed: int = 0  # target words that are linked to one of their gold words
    linked: int = 0  # target words that have gold links
    luck: float = 0.0

    def add(self, links_found: Iterable[Link], gold: Alignment, places: int) -> None:
        """Count a sentence whose source has so many words (or cells of a picture)."""
        guess = set(links_found)
        self.hits += len(guess & gold.sure) + len(guess & gold.possible)
        self.found, self.sure = self.found + len(guess), self.sure + len(gold.sure)
        wanted: dict[int, set[int]] = {}
        for source, target in gold.possible:
            wanted.setdefault(target, set()).add(source)
        self.pointed += sum(source in wanted.get(target, ()) for source, target in guess)
        self.linked += len(wanted)
        self.luck += sum(len(sources) for sources in wanted.values()) / max(places, 1)

    @property
    def error_rate(self) -> float:
        """Och and Ney 2003: `1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)` over all sentences, S the sure links, P all."""
        total = self.found + self.sure
        return 1.0 - self.hits / total if total else 0.0

    @property
    def pointing(self) -> tuple[float, float]:
        """How often a target word that has gold links is linked to one of them, in percent; and how often by chance.

        Zhang et al. 2018 call it the pointing game.
        """
        return (100.0 * self.pointed / self.linked, 100.0 * self.luck / self.linked) if self.linked else (0.0, 0.0)

    def scores(self, signature: str) -> dict[str, Score]:
        """Pointing and, where some links are sure, the alignment error rate; nothing where no sentence had gold
        links."""
        if not self.linked and not self.sure:
            return {}
        rate, luck = self.pointing
        scores = {"pointing": Score("pointing", rate, f"{signature}|percent|chance:{luck:.1f}")}
        if self.sure:
            scores["aer"] = Score("AER", self.error_rate, signature, higher_is_better=False)
        return scores


@dataclass
class TimeErrors:
    """How far in time attention is from where each word is spoken, word by word."""

    milliseconds: list[float] = field(default_factory=list)

    def add(self, words: Weights, gold: Alignment, seconds: float) -> None:
        """Take in a sentence: `words` are weights `(target words, moments)`, a moment lasts so many `seconds`, and gold
        links say in which moments a target word is spoken.

        A word is attended to at the median of its attention, and spoken in the middle between the first and the last
        moment of its own. One that attends to no moment is as far off as the recording is long.
        """
        spoken: dict[int, list[int]] = {}
        for moment, word in gold.possible:
            spoken.setdefault(word, []).append(moment)
        for word, moments in sorted(spoken.items()):
            true = (min(moments) + max(moments) + 1) / 2
            attended = median_place(words[word]) if word < len(words) else None
            away = words.shape[1] if attended is None else abs(attended - true)
            self.milliseconds.append(1000.0 * seconds * away)

    def scores(self, signature: str, seconds: float) -> dict[str, Score]:
        """The median over words, in milliseconds; nothing where no sentence had gold links."""
        if not self.milliseconds:
            return {}
        how = f"{signature}|milliseconds|attended:median|spoken:middle|words:median|moment:{1000 * seconds:g}"
        value = float(np.median(self.milliseconds))
        return {"word_time": Score("word_time", value, how, higher_is_better=False)}
