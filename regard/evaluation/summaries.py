"""How summaries are scored: ROUGE (Lin 2004), by rouge-score, as published summarisers report it.

The F1 of each output with the reference that it is nearest to, averaged over outputs. `rouge_l` in `captions.py` is
another: COCO's, which counts recall more and cuts words in another way.
"""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from typing import Any, ClassVar

from regard.errors import require
from regard.evaluation.metrics import BestReference
from regard.registry import register


class Rouge(BestReference):
    """F1 of n-grams (`ROUGE-N`), or of the longest common subsequence (`ROUGE-L`), over lower-case ASCII words and
    numbers; with `stem`, of their stems (Porter 1980)."""

    kind: ClassVar[str]  # as rouge-score calls it
    stem: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"ROUGE-{self.kind.removeprefix('rouge')}"

    @property
    def detail(self) -> str:  # type: ignore[override]
        stem = "porter" if self.stem else "none"
        return f"F1|words:[a-z0-9]+|case:lower|stem:{stem}|rouge-score:{version('rouge-score')}"

    @cached_property
    def scorer(self) -> Any:
        """What rouge-score has for this."""
        require("rouge_score")
        from rouge_score import rouge_scorer

        return rouge_scorer.RougeScorer([self.kind], use_stemmer=self.stem)

    def compare(self, output: str, reference: str) -> float:
        return float(self.scorer.score(reference, output)[self.kind].fmeasure)


@register("rouge1")
class Rouge1(Rouge):
    """ROUGE-1 of stems."""

    kind = "rouge1"


@register("rouge2")
class Rouge2(Rouge):
    """ROUGE-2 of stems."""

    kind = "rouge2"


@register("rougel")
class RougeL(Rouge):
    """ROUGE-L of stems, over the whole text (no sentence ends are sought)."""

    kind = "rougeL"


@register("rouge1_unstemmed")
class Rouge1Unstemmed(Rouge1):
    """ROUGE-1 of words."""

    stem = False


@register("rouge2_unstemmed")
class Rouge2Unstemmed(Rouge2):
    """ROUGE-2 of words."""

    stem = False


@register("rougel_unstemmed")
class RougeLUnstemmed(RougeL):
    """ROUGE-L of words, over the whole text."""

    stem = False
