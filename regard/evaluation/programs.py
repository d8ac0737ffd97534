"""How programs are scored that a model writes: read, compared, and never run."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from regard.evaluation.metrics import Additive, BestReference, Numbers, References, Score, sacrebleu_statistics
from regard.registry import register


@register("parses")
class Parses(BestReference):
    """Percent of outputs that Python's own parser takes for a program, whatever that does."""

    name, detail = "parses", "language:python|run:never"

    def compare(self, output: str, reference: str) -> float:
        return float(parses(output))


def parses(text: str) -> bool:
    """Whether a text is a Python program, by its syntax alone. One without anything in it is none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # such as of odd escapes
            return bool(ast.parse(text.strip()).body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last three: zero bytes, nested too deeply
        return False


@register("conala_bleu")
class ConalaBleu(Additive):
    """BLEU of code as the baseline of CoNaLa computes it (Yin et al. 2018): n-grams of up to four tokens of the whole
    corpus, not smoothed, over the tokens of Ling et al. (2016); see `code_tokens`."""

    def make(self) -> Any:
        """Sacrebleu's own object, for text that is tokenised."""
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(tokenize="none", smooth_method="none", force=True)

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        value = self.value(self.statistics(outputs, [references, *more]).sum(0))
        how = "nrefs:{}|case:mixed|tok:ling2016|order:4|smooth:none|sacrebleu:{}"
        return Score("CoNaLa BLEU", value, how.format(1 + len(more), version("sacrebleu")))

    def statistics(self, outputs: Sequence[str], references: Sequence[References]) -> Numbers:
        right = [[None if text is None else " ".join(code_tokens(text)) for text in column] for column in references]
        return sacrebleu_statistics(self.make(), [" ".join(code_tokens(text)) for text in outputs], right)

    def value(self, sums: Numbers) -> float:
        return float(self.make()._compute_score_from_stats(sums.tolist()).score)


def code_tokens(code: str) -> list[str]:
    """Ling et al. 2016: names and numbers whole, but cut between a small and a capital letter; every other character
    alone; and both kinds of quotation marks as one."""
    cut = re.sub("([a-z])(?=[A-Z])", r"\1 ", re.sub("([^A-Za-z0-9_])", r" \1 ", code))
    return re.sub("[\"']", "`", cut).split()
