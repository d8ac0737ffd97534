"""Bootstrap resampling (Koehn 2004): what would a score, or a difference between two models, be on other test
sentences?

Test sentences are drawn with replacement, the same ones for all models. A score of a resample comes
from the sums of its sentences' sufficient statistics: n-gram counts and lengths for BLEU and chrF, hits and how many
there could be for exact match and accuracy, edits and words for error rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from regard.evaluation.metrics import Additive, Bleu, Chrf, Numbers, References, sacrebleu_statistics
from regard.registry import METRICS

ADDITIVE = (
    "bleu1", "bleu2", "bleu3", "bleu4", "wer", "cer", "per", "sequence_error", "squad_em", "squad_f1", "rouge1",
    "rouge2", "rougel", "rouge1_unstemmed", "rouge2_unstemmed", "rougel_unstemmed", "parses", "conala_bleu",
)  # fmt: skip
BOOTSTRAPPED = ("bleu", "chrf", "exact", "accuracy", *ADDITIVE)  # metrics whose statistics add up
RESAMPLES = 1000
SEED = 12345  # sacrebleu's


def is_resampled(metric: str) -> bool:
    """Whether the score of one system can be resampled; those of several together only if it is `BOOTSTRAPPED`, as what
    others count may depend on the outputs."""
    return metric in BOOTSTRAPPED or _additive(metric) is not None


def _additive(metric: str) -> Additive | None:
    cls = METRICS.get(metric) if metric in METRICS.kinds else None
    return cls() if cls is not None and issubclass(cls, Additive) else None


def statistics(
    metric: str, outputs: Sequence[str], references: Sequence[References],
    labels: Callable[[str], Sequence[Any]] = str.split, tokenize: str | None = None,
) -> Numbers:  # fmt: skip
    """Sufficient statistics of each sentence, `(sentences, statistics)`; `references` is a list of lists, and `labels`
    cuts a text into what accuracy is counted in."""
    if additive := _additive(metric):
        return additive.statistics(outputs, references)
    if metric in ("bleu", "chrf"):
        made = Bleu(tokenize).make() if metric == "bleu" else Chrf().make()
        return sacrebleu_statistics(made, outputs, references)
    if metric == "exact":
        right = [output in wanted for output, *wanted in zip(outputs, *references, strict=True)]
        return np.array([(hit, 1) for hit in right], dtype=np.float64)
    pairs = [(labels(output), labels(right or "")) for output, right in zip(outputs, references[0], strict=True)]
    hits = [(sum(a == b for a, b in zip(x, y, strict=False)), len(y)) for x, y in pairs]
    return np.array(hits, dtype=np.float64)


def scorer(metric: str) -> Callable[[Numbers], float]:
    """The function from the sum of sentences' statistics to their score, in percent."""
    if additive := _additive(metric):
        return additive.value
    if metric not in ("bleu", "chrf"):
        return lambda sums: 100.0 * float(sums[0] / max(sums[1], 1.0))
    compute = (Bleu() if metric == "bleu" else Chrf()).make()._compute_score_from_stats
    return lambda sums: float(compute(sums.tolist()).score)


def resampled(metric: str, systems: Sequence[Numbers], resamples: int = RESAMPLES) -> Numbers:
    """Scores of each system on the test set and on resamples of it, `(1 + resamples, systems)`."""
    generator, compute = np.random.default_rng(SEED), scorer(metric)
    together = np.stack(systems, axis=1)  # (sentences, systems, statistics)
    count, flat = len(together), together.reshape(len(together), -1)
    draws = (np.bincount(generator.integers(count, size=count), minlength=count) for _ in range(resamples))
    sums = [flat.sum(0), *(draw @ flat for draw in draws)]
    return np.array([[compute(system) for system in row.reshape(together.shape[1:])] for row in sums])


def interval(metric: str, rows: Numbers, resamples: int = RESAMPLES) -> tuple[float, float]:
    """95 % of resampled test sets score between these."""
    low, high = np.percentile(resampled(metric, [rows], resamples)[1:, 0], (2.5, 97.5))
    return float(low), float(high)
