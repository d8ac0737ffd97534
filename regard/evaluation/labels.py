"""How well labels and numbers are predicted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.evaluation.metrics import Additive, Metric, Numbers, References, Score
from regard.registry import register

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class ClassScore:
    """How well one label is predicted, in percent, and how often it is right (`support`)."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the label."""
        shares = {name: round(getattr(self, name), 4) for name in ("precision", "recall", "f1")}
        return {**shares, "support": self.support}


@register("vqa")
class VqaAccuracy(Metric):
    """Accuracy of answers that several people gave (Antol et al. 2015), as the evaluation code of VQA v2 has it, in
    percent: `1/N Σ_i min(n_i / 3, 1)`, where `n_i` of all `N` people but the i-th said what is to be scored. So of ten
    people one who said it is worth 30 %, two are 60, three 90, four 100.

    Where fewer than three others are known, their number stands for the three: of up to four people it is the share
    that said it, and with one it is accuracy. Case and blanks do not count; articles, numerals and punctuation do,
    which that code brings to one form.
    """

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        total = 0.0
        for output, *right in zip(outputs, references, *more, strict=True):
            given = [_answer(text) for text in right if text is not None]
            total += _agreement(given.count(_answer(output)), len(given))
        value = 100.0 * total / max(len(outputs), 1)
        return Score("VQA accuracy", value, f"percent|answers:{1 + len(more)}|min(n/3,1)|mean:leave-one-out|case:lower")


def _agreement(said: int, people: int) -> float:
    """How right an answer is that so many of all people gave: the mean over those who are left out."""
    if people == 1:
        return float(said)
    enough = min(people - 1, 3)
    without_one_of_them, without_another = min((said - 1) / enough, 1.0), min(said / enough, 1.0)
    return (said * without_one_of_them + (people - said) * without_another) / people


def _answer(text: str) -> str:
    return " ".join(text.lower().split())


@register("matthews")
class Matthews(Additive):
    """Matthews correlation (1975), for any number of labels (Gorodkin 2004), from -1 to 1: of `s` examples of which `c`
    are right, where label `k` is said `p_k` times and true `t_k` times,
    `(c s - Σ_k p_k t_k) / √((s² - Σ_k p_k²) (s² - Σ_k t_k²))`; 0 where a side does not vary."""

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        value = self.value(self.statistics(outputs, [references]).sum(0))
        return Score("Matthews", value, f"n:{len(outputs)}|labels:{len({*outputs, *references})} predicted or right")

    def statistics(self, outputs: Sequence[str], references: Sequence[References]) -> Numbers:
        """Whether each is right, 1, and which label is said and which is true, each as a row with a 1 in it."""
        right = references[0]
        places = {label: i for i, label in enumerate(dict.fromkeys([*outputs, *right]))}
        rows = np.zeros((len(outputs), 2 + 2 * len(places)))
        for row, said, true in zip(rows, outputs, right, strict=True):
            row[:2] = said == true, 1.0
            row[2 + places[said]] = row[2 + len(places) + places[true]] = 1.0
        return rows

    def value(self, sums: Numbers) -> float:
        right, total = sums[:2]
        said, true = sums[2:].reshape(2, -1)
        spread = (total**2 - said @ said) * (total**2 - true @ true)
        return float((right * total - said @ true) / math.sqrt(spread)) if spread > 0 else 0.0


@register("f1")
class BinaryF1(Additive):
    """F1 of one label, `positive`, in percent, as GLUE has it for paraphrases (Wang et al. 2018): of two labels, that
    which says yes. 0 where it is neither said nor true."""

    def __init__(self, positive: str = "1") -> None:
        self.positive = positive

    def __call__(self, outputs: Sequence[str], references: Sequence[str], *more: References) -> Score:
        value = self.value(self.statistics(outputs, [references]).sum(0))
        return Score("F1", value, f"percent|label:{self.positive}")

    def statistics(self, outputs: Sequence[str], references: Sequence[References]) -> Numbers:
        """Whether the label is said and true, and how often either."""
        rows = [[x == self.positive for x in pair] for pair in zip(outputs, references[0], strict=True)]
        return np.array([(all(row), sum(row)) for row in rows], np.float64).reshape(-1, 2)

    def value(self, sums: Numbers) -> float:
        return 200.0 * float(sums[0]) / max(float(sums[1]), 1.0)


def class_scores(predicted: Rows, right: Rows) -> tuple[ClassScore, ...]:
    """Each label that is predicted or right somewhere, by name. A share of nothing is 0, as in scikit-learn."""
    pairs = [pair for a, b in zip(predicted, right, strict=True) for pair in zip(a, b, strict=True)]
    said, true = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    both = Counter(a for a, b in pairs if a == b)
    return tuple(
        ClassScore(
            label,
            precision=100.0 * both[label] / max(said[label], 1),
            recall=100.0 * both[label] / max(true[label], 1),
            f1=200.0 * both[label] / (said[label] + true[label]),
            support=true[label],
        )
        for label in sorted(said | true)
    )


def label_scores(predicted: Rows, right: Rows, *, per: str) -> dict[str, Score]:
    """Accuracy, the mean of each label's F1, and, where tags say where spans begin (`B-X I-X O`), F1 of whole spans.

    The mean is over every label that is predicted or right, so that one which is only ever predicted in error counts
    as 0.
    """
    pairs = [pair for a, b in zip(predicted, right, strict=True) for pair in zip(a, b, strict=True)]
    hits = sum(a == b for a, b in pairs)
    classes = class_scores(predicted, right)
    macro = math.fsum(x.f1 for x in classes) / max(len(classes), 1)
    found = {
        "accuracy": Score("accuracy", 100.0 * hits / max(len(pairs), 1), f"percent|per:{per}"),
        "macro_f1": Score("macro F1", macro, f"percent|labels:{len(classes)} predicted or right"),
    }
    if any(x.label.startswith("B-") for x in classes):
        ours, gold = ([spans(row) for row in rows] for rows in (predicted, right))
        both = sum(len(a & b) for a, b in zip(ours, gold, strict=True))
        total = sum(map(len, ours)) + sum(map(len, gold))
        found["span_f1"] = Score("span F1", 200.0 * both / max(total, 1), "percent|scheme:BIO|micro")
    return found


def ranked_accuracy(ranked: Rows, right: Sequence[str], count: int) -> Score:
    """How often what is right is among the best `count` answers, in percent."""
    hits = sum(label in answers[:count] for answers, label in zip(ranked, right, strict=True))
    return Score(f"top-{count} accuracy", 100.0 * hits / max(len(right), 1), "percent|per:example")


def spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Kind, first and last word of each span: `B-X` begins one, `I-X` goes on with it, or begins one where none is."""
    found, kind, first = set(), "", 0
    for i, tag in enumerate([*tags, "O"]):
        begins, _, name = tag.partition("-")
        if kind and (begins != "I" or name != kind):
            found.add((kind, first, i - 1))
            kind = ""
        if not kind and begins in ("B", "I") and name:
            kind, first = name, i
    return found


def number_scores(predicted: Sequence[float], right: Sequence[float]) -> dict[str, Score]:
    """Pearson's and Spearman's correlation, and the root of the mean squared error."""
    error = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(predicted, right, strict=True)) / max(len(predicted), 1))
    return {
        "pearson": Score("Pearson", pearson(predicted, right), f"n:{len(predicted)}"),
        "spearman": Score("Spearman", pearson(ranks(predicted), ranks(right)), f"n:{len(predicted)}|ties:mean"),
        "rmse": Score("RMSE", error, f"n:{len(predicted)}", higher_is_better=False),
    }


def pearson(a: Sequence[float], b: Sequence[float]) -> float:
    """Correlation; 0 where one side does not vary."""
    mean_a, mean_b = math.fsum(a) / max(len(a), 1), math.fsum(b) / max(len(b), 1)
    spread = math.sqrt(math.fsum((x - mean_a) ** 2 for x in a) * math.fsum((y - mean_b) ** 2 for y in b))
    return math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True)) / spread if spread else 0.0


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each when sorted; equal ones share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    places: list[float] = (counts.cumsum() - (counts + 1) / 2)[which].tolist()
    return places
