"""Paired bootstrap resampling (Koehn 2004): would a difference between two models hold on other test sentences?

Both models are scored on the same resamples of the test sentences, drawn with replacement. A score of a resample comes
from the sums of its sentences' sufficient statistics: n-gram counts and lengths for BLEU and chrF, hits and how many
there could be for exact match and accuracy. A model's seeds are scored one by one on each resample and averaged, so
that this test is about sentences alone; what seeds change is another test (`Measure.differs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from regard.compare.results import Group, Numbers, Pair

METRICS = ("bleu", "chrf", "exact", "accuracy")  # whose statistics add up
RESAMPLES = 1000
SEED = 12345  # sacrebleu's


def statistics(
    metric: str, outputs: Sequence[str], references: Sequence[str], labels: Callable[[str], Sequence[Any]]
) -> Numbers:
    """Sufficient statistics of each sentence, `(sentences, statistics)`; `labels` cuts a text into what accuracy is
    counted in."""
    if metric in ("bleu", "chrf"):
        return np.array(_sacrebleu(metric)._extract_corpus_statistics(outputs, [references]), dtype=np.float64)
    cut = labels if metric == "accuracy" else lambda text: [text]
    pairs = [(cut(output), cut(reference)) for output, reference in zip(outputs, references, strict=True)]
    hits = [(sum(a == b for a, b in zip(x, y, strict=False)), len(y)) for x, y in pairs]
    return np.array(hits, dtype=np.float64)


def scorer(metric: str) -> Callable[[Numbers], float]:
    """The function from the sum of sentences' statistics to their score, in percent."""
    if metric not in ("bleu", "chrf"):
        return lambda sums: 100.0 * float(sums[0] / max(sums[1], 1.0))
    compute = _sacrebleu(metric)._compute_score_from_stats
    return lambda sums: float(compute(sums.tolist()).score)


def _sacrebleu(metric: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return BLEU(force=True) if metric == "bleu" else CHRF()


def resampled(metric: str, systems: Sequence[Numbers], resamples: int = RESAMPLES) -> Numbers:
    """Scores of each system on the test set and on resamples of it, `(1 + resamples, systems)`."""
    generator, compute = np.random.default_rng(SEED), scorer(metric)
    together = np.stack(systems, axis=1)  # (sentences, systems, statistics)
    count, flat = len(together), together.reshape(len(together), -1)
    draws = (np.bincount(generator.integers(count, size=count), minlength=count) for _ in range(resamples))
    sums = [flat.sum(0), *(draw @ flat for draw in draws)]
    return np.array([[compute(system) for system in row.reshape(together.shape[1:])] for row in sums])


def paired_tests(metric: str, found: Mapping[str, Sequence[Numbers]], group: Group | None) -> Iterator[Pair]:
    """A two-sided test of each pair of models, given the statistics of each of a model's seeds on one test set.

    As in sacrebleu the resampled differences, centred, stand for what chance gives where there is no difference.
    """
    scores = resampled(metric, [rows for seeds in found.values() for rows in seeds])
    ends = np.cumsum([len(seeds) for seeds in found.values()])[:-1]
    means = dict(zip(found, (part.mean(1) for part in np.split(scores, ends, axis=1)), strict=True))
    for one, other in combinations(found, 2):
        (real, *_), drawn = (difference := means[one] - means[other]), difference[1:]
        beyond = np.abs(drawn - drawn.mean()) >= abs(real)
        low, high = np.percentile(drawn, (2.5, 97.5))
        yield Pair(one=one, other=other, group=group, difference=float(real), low=float(low), high=float(high),
                   p=float((beyond.sum() + 1) / (len(drawn) + 1)))  # fmt: skip
