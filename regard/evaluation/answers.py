"""How answers to questions about a text are scored: SQuAD's exact match and F1 (Rajpurkar et al. 2016, 6.1)."""

from __future__ import annotations

import re
import string
from collections import Counter

from regard.evaluation.metrics import BestReference
from regard.registry import register

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
NORMALISED = "norm:lower,nopunct,noarticles"


def normalize_answer(text: str) -> str:
    """An answer as SQuAD compares it: lower case, without ASCII punctuation and English articles, single blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


@register("squad_em")
class SquadExactMatch(BestReference):
    """Percent of answers that equal one of the references, both as `normalize_answer` has them."""

    name, detail = "SQuAD EM", NORMALISED

    def compare(self, output: str, reference: str) -> float:
        return float(normalize_answer(output) == normalize_answer(reference))


@register("squad_f1")
class SquadF1(BestReference):
    """`2 P R / (P + R)` over the words that an answer and a reference share, as bags; the best reference counts. Where
    one of them has no words (no answer, as in SQuAD 2.0), both must have none."""

    name, detail = "SQuAD F1", f"{NORMALISED}|bag of words"

    def compare(self, output: str, reference: str) -> float:
        ours, theirs = normalize_answer(output).split(), normalize_answer(reference).split()
        if not ours or not theirs:
            return float(ours == theirs)
        return 2.0 * (Counter(ours) & Counter(theirs)).total() / (len(ours) + len(theirs))
