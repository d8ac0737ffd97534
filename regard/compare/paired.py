"""Paired bootstrap resampling (Koehn 2004): would a difference between two models hold on other test sentences?

A model's seeds are scored one by one on each resample and averaged, so that this test is about sentences alone; what
seeds change is another test (`Measure.differs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from regard.compare.results import Group, Pair
from regard.evaluation.bootstrap import Numbers, resampled


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
