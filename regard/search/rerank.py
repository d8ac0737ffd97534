"""Choosing again among finished hypotheses, by more than their probability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError


def coverage_penalty(weights: Tensor, beta: float) -> float:
    """Wu et al. 2016, eq. 14: `β Σ_j log(min(Σ_i α_ij, 1))` for attention `(target, source)`; 0 if all was covered."""
    covered = weights.sum(0).clamp(max=1.0, min=torch.finfo(weights.dtype).tiny)
    return float(beta * covered.log().sum())


def minimum_bayes_risk(samples: Sequence[str], utility: str = "chrf") -> list[float]:
    """The expected utility of each sample, from 0 to 100; the highest is of least risk (Kumar and Byrne 2004).

    As in Eikema and Aziz 2020 the expectation is over samples of the model: all the others, each as often as it was
    drawn, in the place of the reference. A sample that is the only one is held against itself.
    """
    if utility not in UTILITIES:
        raise ConfigError(f"unknown utility {utility!r}; use one of {', '.join(UTILITIES)}")
    drawn = Counter(samples)
    utilities = UTILITIES[utility](list(drawn))  # (outputs, references)
    expected = utilities @ torch.tensor(list(drawn.values()), dtype=utilities.dtype)
    if len(samples) > 1:
        expected = (expected - utilities.diagonal()) / (len(samples) - 1)
    by_text = dict(zip(drawn, expected.tolist(), strict=True))
    return [by_text[text] for text in samples]


def _chrf(texts: list[str]) -> Tensor:
    """Sentence chrF (Popović 2015) of each text against each, as sacrebleu defines it: six orders, those left out for
    which either text is too short, and recall twice as important as precision (β = 2)."""
    common, count = _common(["".join(text.split()) for text in texts], 6)
    ours, theirs = count.unsqueeze(2), count.unsqueeze(1)
    orders = ((ours > 0) & (theirs > 0)).sum(0)
    precision, recall = ((common / n.clamp(min=1)).sum(0) / orders.clamp(min=1) for n in (ours, theirs))
    score = 5 * precision * recall / (4 * precision + recall)
    return 100 * score.nan_to_num(0.0)


def _bleu(texts: list[str]) -> Tensor:
    """Sentence BLEU (Papineni et al. 2002) of each text against each, tokenised, smoothed and scored by sacrebleu; only
    the counting is done here, for all pairs at once."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(effective_order=True)
    common, count = _common([tuple(metric.tokenizer(text.rstrip()).split()) for text in texts], 4)
    lengths = count[0].long().tolist()
    rows = [
        [
            metric.compute_bleu(correct, total, ours, theirs, smooth_method="exp", effective_order=True).score
            for correct, theirs in zip(row, lengths, strict=True)
        ]
        for row, total, ours in zip(
            common.permute(1, 2, 0).long().tolist(), count.mT.long().tolist(), lengths, strict=True
        )
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _common(texts: Sequence[Sequence[str]], order: int) -> tuple[Tensor, Tensor]:
    """Clipped counts of the n-grams that two texts share, `(order, texts, texts)`, and of all, `(order, texts)`.

    With the first, second, … time that a text has a gram as features of their own, a clipped count is the size of an
    intersection, and those of all pairs are one product of matrices.
    """
    common, count = [], []
    for n in range(1, order + 1):
        features: dict[tuple[Any, int], int] = {}
        rows = []
        for text in texts:
            times: Counter[Any] = Counter()
            row = []
            for i in range(len(text) - n + 1):
                gram = text[i : i + n]
                row.append(features.setdefault((gram, times[gram]), len(features)))
                times[gram] += 1
            rows.append(row)
        has = torch.zeros(len(texts), len(features), dtype=torch.float64)
        for i, row in enumerate(rows):
            has[i, row] = 1.0
        common.append(has @ has.mT)
        count.append(has.sum(1))
    return torch.stack(common), torch.stack(count)


# By name: the utility of each of these texts, which differ, with each as the reference, `(outputs, references)`.
UTILITIES: dict[str, Callable[[list[str]], Tensor]] = {
    "chrf": _chrf, "bleu": _bleu, "exact": lambda texts: 100 * torch.eye(len(texts), dtype=torch.float64),
}  # fmt: skip
