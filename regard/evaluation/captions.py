"""How captions are scored: BLEU-1 to 4, ROUGE-L and CIDEr-D, as the evaluation code of COCO has them (Chen et al. 2015,
arXiv 1504.00325). All are over tokens of COCO's kind, all are in percent of that code's numbers, and all take several
references."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np

from regard.evaluation.metrics import Additive, Metric, Numbers, References, Score
from regard.registry import register

Gram = tuple[str, ...]
LONGEST = 4  # words of an n-gram
# Words with what they hold inside (t-shirt, 3.5, o'clock), cut before 's and n't as in the Penn Treebank; everything
# else that is not blank stands alone, and is left out if it is punctuation.
SHORT = r"['’](?:s|m|d|re|ve|ll)\b"
TOKEN = re.compile(rf"\w+?(?=n['’]t\b)|n['’]t\b|{SHORT}|\w+(?:(?!{SHORT})[-.,:/'’]\w+)*|\S")
PUNCTUATION = frozenset("'`\".?!,:;-–—…‘’“”()[]{}")
TOKENS = "tok:ptb-like|case:lower|punct:removed"


def tokens(text: str) -> list[str]:
    """A caption in lower-case words, without punctuation: close to what COCO's code gets from a Penn Treebank tokenizer
    in Java, which knows more of abbreviations."""
    return [token for token in TOKEN.findall(text.lower()) if token not in PUNCTUATION]


def ngrams(words: Sequence[str]) -> Counter[Gram]:
    """How often each n-gram of up to four words is there."""
    return Counter(tuple(words[i : i + n]) for n in range(1, LONGEST + 1) for i in range(len(words) - n + 1))


def tokenized(outputs: Sequence[str], references: Sequence[References]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """The words of each output, and of its references."""
    for output, *right in zip(outputs, *references, strict=True):
        yield tokens(output), [tokens(text) for text in right if text is not None]


class CaptionBleu(Additive):
    """BLEU (Papineni et al. 2002) of a corpus with n-grams of up to `order` words, held against the reference whose
    length is closest: `BP · (p_1 · … · p_n)^(1/n)`, `BP = min(1, exp(1 - r/c))`."""

    order: ClassVar[int]

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        value = self.value(self.statistics(outputs, [references, *more]).sum(0))
        return Score(f"BLEU-{self.order}", value, f"percent|refs:{_most(more)}|length:closest|{TOKENS}")

    def statistics(self, outputs: Sequence[str], references: Sequence[References]) -> Numbers:
        """Words of the output and of the closest reference; of each length, n-grams found and those that are right."""
        rows = []
        for words, right in tokenized(outputs, references):
            most: Counter[Gram] = Counter()
            for reference in right:
                most |= ngrams(reference)
            hits = [0] * LONGEST
            for gram, count in ngrams(words).items():
                hits[len(gram) - 1] += min(count, most[gram])
            _, closest = min((abs(len(x) - len(words)), len(x)) for x in right)
            rows.append([len(words), closest, *(max(0, len(words) - n) for n in range(LONGEST)), *hits])
        return np.array(rows, np.float64).reshape(-1, 2 + 2 * LONGEST)

    def value(self, sums: Numbers) -> float:
        length, wanted, *counts = (float(x) for x in sums)
        small, tiny = 1e-9, 1e-15  # as in COCO's code: nothing found is 0, and not undefined
        precisions = ((counts[LONGEST + n] + tiny) / (counts[n] + small) for n in range(self.order))
        ratio = (length + tiny) / (wanted + small)
        shortness = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
        return 100.0 * shortness * math.prod(precisions) ** (1 / self.order)


@register("bleu1")
class CaptionBleu1(CaptionBleu):
    """Caption BLEU of words."""

    order = 1


@register("bleu2")
class CaptionBleu2(CaptionBleu):
    """Caption BLEU of up to two words."""

    order = 2


@register("bleu3")
class CaptionBleu3(CaptionBleu):
    """Caption BLEU of up to three words."""

    order = 3


@register("bleu4")
class CaptionBleu4(CaptionBleu):
    """Caption BLEU of up to four words."""

    order = 4


@register("rouge_l")
class CaptionRougeL(Metric):
    """ROUGE-L (Lin 2004): of the longest common subsequence, best precision P and best recall R over the references
    make `(1 + β²) P R / (R + β² P)`, β = 1.2; the mean over outputs."""

    beta = 1.2

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        values = []
        for words, right in tokenized(outputs, [references, *more]):
            words = words or [""]  # COCO's code has one empty word where there is none
            common = [common_length(words, x or [""]) for x in right]
            precision = max(common) / len(words)
            recall = max(n / max(len(x), 1) for n, x in zip(common, right, strict=True))
            weight = self.beta**2
            total = recall + weight * precision
            values.append((1 + weight) * precision * recall / total if precision and recall else 0.0)
        value = 100.0 * math.fsum(values) / max(len(values), 1)
        return Score("ROUGE-L", value, f"percent|refs:{_most(more)}|beta:{self.beta}|{TOKENS}")


def common_length(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of a longest common subsequence."""
    row = [0] * (len(b) + 1)
    for word in a:
        above, row = row, [0]
        for j, (diagonal, up) in enumerate(pairwise(above)):
            row.append(diagonal + 1 if word == b[j] else max(up, row[-1]))
    return row[-1]


@register("cider")
class Cider(Metric):
    """CIDEr-D (Vedantam et al. 2015): clipped cosine of TF-IDF vectors of n-grams, with a penalty on the difference in
    length, over n = 1 to 4, references and outputs on average, times 10:

        `exp(-(l(c) - l(s))² / 2σ²) · min(g_n(c), g_n(s)) · g_n(s) / (|g_n(c)| |g_n(s)|)`, σ = 6

    A document is what is captioned, with all its references. With one of them every weight, and so the score, is 0.
    """

    sigma = 6.0

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        cooked = [
            (ngrams(words), [ngrams(x) for x in right]) for words, right in tokenized(outputs, [references, *more])
        ]
        documents = Counter(gram for _, right in cooked for gram in set().union(*right))
        whole = math.log(max(len(cooked), 1))

        def vector(counts: Counter[Gram]) -> tuple[list[dict[Gram, float]], list[float], int]:
            weights: list[dict[Gram, float]] = [{} for _ in range(LONGEST)]
            for gram, count in counts.items():
                weights[len(gram) - 1][gram] = count * (whole - math.log(max(1, documents[gram])))
            norms = [math.sqrt(sum(x * x for x in part.values())) for part in weights]
            return weights, norms, sum(count for gram, count in counts.items() if len(gram) == 2)

        total = 0.0
        for counts, right in cooked:
            ours, our_norms, our_length = vector(counts)
            similar = 0.0
            for reference in right:
                theirs, their_norms, their_length = vector(reference)
                penalty = math.exp(-((our_length - their_length) ** 2) / (2 * self.sigma**2))
                for n in range(LONGEST):
                    both = ((x, theirs[n].get(gram, 0.0)) for gram, x in ours[n].items())
                    dot = sum(min(x, y) * y for x, y in both)
                    similar += penalty * dot / ((our_norms[n] * their_norms[n]) or 1.0)
            total += 10.0 * similar / LONGEST / len(right)
        value = 100.0 * total / max(len(cooked), 1)
        return Score("CIDEr-D", value, f"x100|refs:{_most(more)}|sigma:{self.sigma:g}|idf:references|{TOKENS}")


def _most(more: Sequence[References]) -> str:
    """How many references an output has at most, and whether some have fewer."""
    fewer = any(text is None for column in more for text in column)
    return f"{'up to ' * fewer}{1 + len(more)}"
