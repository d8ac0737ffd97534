"""Error rates of transcripts and pronunciations, by jiwer."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import ClassVar

import numpy as np

from regard.errors import require
from regard.evaluation.metrics import Additive, Numbers, References, Score
from regard.registry import register

NORMALISED = "lower,nopunct"  # and blanks collapsed
AS_THEY_ARE = "none"


class ErrorRate(Additive):
    """Substitutions, deletions and insertions over the whole corpus, in percent of what its references hold. Of several
    references that counts which an output is nearest to."""

    unit: ClassVar[str]
    norm: ClassVar[str] = NORMALISED

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        value = self.value(self.statistics(outputs, [references, *more]).sum(0))
        signature = f"{self.unit[0]}er|norm:{self.norm}|jiwer:{version('jiwer')}"
        return Score(f"{self.unit[0].upper()}ER", value, signature, higher_is_better=False)

    def statistics(self, outputs: Sequence[str], references: Sequence[References]) -> Numbers:
        return error_counts(outputs, references, self.unit, self.norm)

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


@register("per")
class PhoneErrorRate(ErrorRate):
    """Of phones, which stand between blanks, as they are: stress and case count."""

    unit, norm = "phone", AS_THEY_ARE


@register("sequence_error")
class SequenceError(Additive):
    """Percent of outputs that equal none of their references, blanks apart: what papers on letters to sounds call the
    word error rate, as each line is a word."""

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        value = self.value(self.statistics(outputs, [references, *more]).sum(0))
        return Score("sequence error", value, "percent|per:line|norm:none|blanks:single", higher_is_better=False)

    def statistics(self, outputs: Sequence[str], references: Sequence[References]) -> Numbers:
        rows = [
            (output.split() not in [text.split() for text in right if text is not None], 1)
            for output, *right in zip(outputs, *references, strict=True)
        ]
        return np.array(rows, np.float64).reshape(-1, 2)

    def value(self, sums: Numbers) -> float:
        return 100.0 * float(sums[0]) / max(float(sums[1]), 1.0)


def error_counts(
    outputs: Sequence[str], references: Sequence[References], unit: str, norm: str = NORMALISED
) -> Numbers:
    """Errors of each output, and how many words, phones or characters its reference has: `(outputs, 2)`. Where a
    reference is empty, each word of the output is an error."""
    require("jiwer")
    import jiwer

    same = [jiwer.SubstituteRegexes({r"\s+": " "}), jiwer.Strip()]
    normal = jiwer.Compose([*([jiwer.ToLowerCase(), jiwer.RemovePunctuation()] if norm == NORMALISED else []), *same])
    count = jiwer.process_characters if unit == "character" else jiwer.process_words
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
