"""How different outputs are from one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from regard.evaluation.metrics import Metric, References, Score
from regard.registry import register


class Distinct(Metric):
    """Li et al. 2016 (arXiv 1510.03055, 5.1): how many different n-grams all outputs hold together, over how many words
    they are, in percent. References count for nothing."""

    order: ClassVar[int]

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        rows = [output.split() for output in outputs]
        found = {tuple(row[i : i + self.order]) for row in rows for i in range(len(row) - self.order + 1)}
        value = 100.0 * len(found) / max(sum(map(len, rows)), 1)
        return Score(f"distinct-{self.order}", value, f"percent|n:{self.order}|per:word|words:blanks|case:mixed")


@register("distinct1")
class Distinct1(Distinct):
    """Different words."""

    order = 1


@register("distinct2")
class Distinct2(Distinct):
    """Different pairs of neighbours."""

    order = 2
