"""Quality of outputs against references; every score carries the signature that makes it comparable."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from regard.registry import METRICS, Family, register


@dataclass(frozen=True)
class Score:
    """A number, how it was computed, and which way is better."""

    name: str
    value: float
    signature: str
    higher_is_better: bool = True
    interval: tuple[float, float] | None = None  # 95 % of resampled test sets score between these

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the name."""
        interval = {} if self.interval is None else {"interval": [round(x, 4) for x in self.interval]}
        return {"score": round(self.value, 4), "signature": self.signature, **interval}


def perplexity(loss: float) -> float:
    """`exp` of the mean of `-log p`; infinity where that is more than a float can hold."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class Metric(ABC):
    """How good outputs are, held against references: made without arguments and called with both."""

    family: ClassVar[Family] = METRICS

    @abstractmethod
    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: Sequence[str]) -> Score:
        """The score of all outputs, with the signature that makes it comparable; `more` are further references."""


class _Sacrebleu(Metric):
    """A metric of sacrebleu (Post 2018), with its signature."""

    name: ClassVar[str]
    higher_is_better: ClassVar[bool] = True
    options: Mapping[str, Any] = {}

    def make(self) -> Any:
        """Sacrebleu's own object."""
        from sacrebleu import metrics

        return getattr(metrics, self.name.upper())(**self.options)

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: Sequence[str]) -> Score:
        metric = self.make()
        value = metric.corpus_score(list(outputs), [list(references), *map(list, more)]).score
        return Score(self.name, value, str(metric.get_signature()), self.higher_is_better)


@register("bleu")
class Bleu(_Sacrebleu):
    """Papineni et al. 2002. `tokenize` is sacrebleu's tokenizer (13a by default; `none` for text that is tokenised)."""

    name = "BLEU"

    def __init__(self, tokenize: str | None = None) -> None:
        self.options = {"tokenize": tokenize, "force": True}


@register("chrf")
class Chrf(_Sacrebleu):
    """Popović 2015."""

    name = "chrF"


@register("ter")
class Ter(_Sacrebleu):
    """Snover et al. 2006."""

    name, higher_is_better = "TER", False


@register("exact")
class Exact(Metric):
    """Percent of outputs equal to a reference."""

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: Sequence[str]) -> Score:
        same = sum(output in right for output, *right in zip(outputs, references, *more, strict=True))
        return Score("exact match", 100.0 * same / max(len(references), 1), "percent|case:mixed|blanks:single")
