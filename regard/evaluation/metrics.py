"""Quality of outputs against references; every score carries the signature that makes it comparable."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.errors import ConfigError
from regard.registry import METRICS, Family, register

Numbers = NDArray[np.float64]
References = Sequence[str | None]  # one for each output, or None where it has no further one
HELD = 2000  # sentences whose n-grams are held at once


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
    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        """The score of all outputs, with the signature that makes it comparable. `more` are further references, each as
        long as the outputs, with None where an output has no more of them."""


class Additive(Metric):
    """A metric of sums: what is counted of each output adds up, and the score is made of the sums. Test sets can
    therefore be resampled without scoring them anew."""

    @abstractmethod
    def statistics(self, outputs: Sequence[str], references: Sequence[References]) -> Numbers:
        """What is counted, `(outputs, statistics)`."""

    @abstractmethod
    def value(self, sums: Numbers) -> float:
        """The score of the sums over some outputs."""


class BestReference(Additive):
    """Each output held against each of its references, from 0 to 1: that of the best one counts, and the score is the
    mean over outputs, in percent."""

    name: ClassVar[str]
    detail: ClassVar[str]  # what its signature says of how two texts are compared

    @abstractmethod
    def compare(self, output: str, reference: str) -> float:
        """How good an output is beside one reference."""

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        value = self.value(self.statistics(outputs, [references, *more]).sum(0))
        return Score(self.name, value, f"percent|refs:best of {1 + len(more)}|{self.detail}")

    def statistics(self, outputs: Sequence[str], references: Sequence[References]) -> Numbers:
        rows = [
            (max(self.compare(output, text) for text in right if text is not None), 1.0)
            for output, *right in zip(outputs, *references, strict=True)
        ]
        return np.array(rows, np.float64).reshape(-1, 2)

    def value(self, sums: Numbers) -> float:
        return 100.0 * float(sums[0]) / max(float(sums[1]), 1.0)


class _Sacrebleu(Metric):
    """A metric of sacrebleu (Post 2018), with its signature."""

    name: ClassVar[str]
    higher_is_better: ClassVar[bool] = True
    options: Mapping[str, Any] = {}

    def make(self) -> Any:
        """Sacrebleu's own object."""
        from sacrebleu import metrics

        return getattr(metrics, self.name.upper())(**self.options)

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        metric = self.make()
        sums = sacrebleu_statistics(metric, outputs, [references, *more]).sum(0)
        value = metric._compute_score_from_stats(sums.tolist()).score
        return Score(self.name, value, str(metric.get_signature()), self.higher_is_better)


def sacrebleu_statistics(metric: Any, outputs: Sequence[str], references: Sequence[References]) -> Numbers:
    """Sufficient statistics of each sentence, `(sentences, statistics)`. Sacrebleu holds the n-grams of all references
    that it is given; so it is given some at a time."""
    parts = [
        metric._extract_corpus_statistics(list(outputs[i : i + HELD]), [list(x[i : i + HELD]) for x in references])
        for i in range(0, len(outputs), HELD)
    ]
    return np.concatenate([np.array(part, np.float64) for part in parts])


@register("bleu")
class Bleu(_Sacrebleu):
    """Papineni et al. 2002. `tokenize` is sacrebleu's tokenizer (13a by default; `none` for text that is tokenised)."""

    name = "BLEU"

    def __init__(self, tokenize: str | None = None) -> None:
        self.options = {"tokenize": tokenize, "force": True}

    def make(self) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        name = self.options["tokenize"]
        if name not in (None, *BLEU.TOKENIZERS):
            raise ConfigError(f"no BLEU tokenizer '{name}'; there are: {', '.join(BLEU.TOKENIZERS)}")
        try:
            return super().make()
        except (RuntimeError, OSError) as error:  # it needs a library, or a download
            raise ConfigError(f"the BLEU tokenizer '{name}' cannot be used: {' '.join(str(error).split())}") from None


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

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        same = sum(output in right for output, *right in zip(outputs, references, *more, strict=True))
        return Score("exact match", 100.0 * same / max(len(references), 1), "percent|case:mixed|blanks:single")
