"""Quality of outputs against references; every score carries the signature that makes it comparable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Score:
    """A number, how it was computed, and which way is better."""

    name: str
    value: float
    signature: str
    higher_is_better: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"score": round(self.value, 4), "signature": self.signature}


def perplexity(loss: float) -> float:
    """`exp` of the mean of `-log p`; infinity where that is more than a float can hold."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def text_scores(outputs: Sequence[str], references: Sequence[str], *, tokenize: str | None = None) -> dict[str, Score]:
    """BLEU, chrF and TER by sacrebleu, and the share of outputs that are the reference to the letter.

    `tokenize` is sacrebleu's BLEU tokenizer (13a by default; `none` for text that is tokenised already).
    """
    bleu, chrf = bleu_score(outputs, references, tokenize), chrf_score(outputs, references)
    from sacrebleu.metrics.ter import TER

    ter = TER()
    value = ter.corpus_score(list(outputs), [list(references)])
    ter_score = Score("TER", value.score, str(ter.get_signature()), higher_is_better=False)
    return {"bleu": bleu, "chrf": chrf, "ter": ter_score, "exact": exact_match(outputs, references)}


def bleu_score(outputs: Sequence[str], references: Sequence[str], tokenize: str | None = None) -> Score:
    """Papineni et al. 2002."""
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(tokenize=tokenize, force=True)
    return Score("BLEU", bleu.corpus_score(list(outputs), [list(references)]).score, str(bleu.get_signature()))


def chrf_score(outputs: Sequence[str], references: Sequence[str]) -> Score:
    """Popović 2015."""
    from sacrebleu.metrics.chrf import CHRF

    chrf = CHRF()
    return Score("chrF", chrf.corpus_score(list(outputs), [list(references)]).score, str(chrf.get_signature()))


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> Score:
    """Percent of outputs equal to the reference."""
    same = sum(output == reference for output, reference in zip(outputs, references, strict=True))
    return Score("exact match", 100.0 * same / max(len(references), 1), "percent|case:mixed|blanks:single")
