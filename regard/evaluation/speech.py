"""Error rates of transcripts, by jiwer."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import ClassVar

import numpy as np

from regard.errors import require
from regard.evaluation.metrics import Additive, Numbers, References, Score
from regard.registry import register

NORMALISED = "lower,nopunct"  # and blanks collapsed


class ErrorRate(Additive):
    """Substitutions, deletions and insertions over the whole corpus, in percent of what its references hold. Of several
    references that counts which an output is nearest to."""

    unit: ClassVar[str]

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        value = self.value(self.statistics(outputs, [references, *more]).sum(0))
        signature = f"{self.unit[0]}er|norm:{NORMALISED}|jiwer:{version('jiwer')}"
        return Score(f"{self.unit[0].upper()}ER", value, signature, higher_is_better=False)

    def statistics(self, outputs: Sequence[str], references: Sequence[References]) -> Numbers:
        return error_counts(outputs, references, self.unit)

    def value(self, sums: Numbers) -> float:
        return 100.0 * float(sums[0]) / max(float(sums[1]), 1.0)


@register("wer")
class WordErrorRate(ErrorRate):
    """Of words, between blanks."""

    unit = "word"


@register("cer")
class CharacterErrorRate(ErrorRate):
    """Of characters, blanks included."""

    unit = "character"


def error_counts(outputs: Sequence[str], references: Sequence[References], unit: str) -> Numbers:
    """Errors of each output, and how many words or characters its reference has: `(outputs, 2)`. Where a reference is
    empty, each word of the output is an error."""
    require("jiwer")
    import jiwer

    normal = jiwer.Compose(
        [jiwer.ToLowerCase(), jiwer.RemovePunctuation(), jiwer.SubstituteRegexes({r"\s+": " "}), jiwer.Strip()]
    )
    count = jiwer.process_words if unit == "word" else jiwer.process_characters
    rows = []
    for output, *right in zip(outputs, *references, strict=True):
        pairs = []
        for text in right:
            if text is not None:
                found = count(normal(text), normal(output))
                length = found.hits + found.substitutions + found.deletions
                pairs.append((found.substitutions + found.deletions + found.insertions, length))
        rows.append(min(pairs, key=lambda pair: (pair[0] / max(pair[1], 1), pair)))
    return np.array(rows, np.float64).reshape(-1, 2)
