"""Attention as a word alignment: weights of pieces to weights of words, to links, to an error rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.corpora import Alignment

Weights = NDArray[np.float32]
Kind = Literal["cross", "encoder", "decoder"]  # what attends: target to source, source to itself, target to itself
Link = tuple[int, int]  # source word, target word


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


def pharaoh(found: Iterable[Link]) -> str:
    """`0-0 1-2`, sorted."""
    return " ".join(f"{i}-{j}" for i, j in sorted(found))


def alignment_error_rate(found: Sequence[Iterable[Link]], gold: Sequence[Alignment]) -> float:
    """Och and Ney 2003: `1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)` over all sentences, S the sure links, P all."""
    hits, total = 0, 0
    for links_found, truth in zip(found, gold, strict=True):
        guess = set(links_found)
        hits += len(guess & truth.sure) + len(guess & truth.possible)
        total += len(guess) + len(truth.sure)
    return 1.0 - hits / total if total else 0.0


def pointing(found: Sequence[Iterable[Link]], gold: Sequence[Alignment], places: Sequence[int]) -> tuple[float, float]:
    """How often a target word that has gold links is linked to one of them, in percent; and how often by chance.

    `places` says how many words (or cells of a picture) each source has. Zhang et al. 2018 call it the pointing game.
    """
    hits, total, luck = 0, 0, 0.0
    for links_found, truth, size in zip(found, gold, places, strict=True):
        wanted: dict[int, set[int]] = {}
        for source, target in truth.possible:
            wanted.setdefault(target, set()).add(source)
        hits += sum(source in wanted.get(target, ()) for source, target in links_found)
        total += len(wanted)
        luck += sum(len(sources) for sources in wanted.values()) / max(size, 1)
    return (100.0 * hits / total, 100.0 * luck / total) if total else (0.0, 0.0)
