"""How well labels and numbers are told."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regard.evaluation.metrics import Score

Rows = Sequence[Sequence[str]]


def label_scores(told: Rows, right: Rows, *, per: str) -> dict[str, Score]:
    """Accuracy, the mean of each label's F1, and, where tags say where spans begin (`B-X I-X O`), F1 of whole spans."""
    pairs = [pair for a, b in zip(told, right, strict=True) for pair in zip(a, b, strict=True)]
    hits = sum(a == b for a, b in pairs)
    labels = sorted({b for _, b in pairs})
    found = {
        "accuracy": Score("accuracy", 100.0 * hits / max(len(pairs), 1), f"percent|per:{per}"),
        "macro_f1": Score("macro F1", _macro(pairs, labels), f"percent|labels:{len(labels)}"),
    }
    if any(label.startswith("B-") for label in labels):
        ours, gold = ([spans(row) for row in rows] for rows in (told, right))
        both = sum(len(a & b) for a, b in zip(ours, gold, strict=True))
        total = sum(map(len, ours)) + sum(map(len, gold))
        found["span_f1"] = Score("span F1", 200.0 * both / max(total, 1), "percent|scheme:BIO|micro")
    return found


def _macro(pairs: Sequence[tuple[str, str]], labels: Sequence[str]) -> float:
    scores = []
    for label in labels:
        both = sum(a == b == label for a, b in pairs)
        scores.append(200.0 * both / (sum(a == label for a, _ in pairs) + sum(b == label for _, b in pairs)))
    return math.fsum(scores) / max(len(scores), 1)


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


def number_scores(told: Sequence[float], right: Sequence[float]) -> dict[str, Score]:
    """Pearson's and Spearman's correlation, and the root of the mean squared error."""
    error = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(told, right, strict=True)) / max(len(told), 1))
    return {
        "pearson": Score("Pearson", pearson(told, right), f"n:{len(told)}"),
        "spearman": Score("Spearman", pearson(ranks(told), ranks(right)), f"n:{len(told)}|ties:mean"),
        "rmse": Score("RMSE", error, f"n:{len(told)}", higher_is_better=False),
    }


def pearson(a: Sequence[float], b: Sequence[float]) -> float:
    """Correlation; 0 where one side does not vary."""
    mean_a, mean_b = math.fsum(a) / max(len(a), 1), math.fsum(b) / max(len(b), 1)
    spread = math.sqrt(math.fsum((x - mean_a) ** 2 for x in a) * math.fsum((y - mean_b) ** 2 for y in b))
    return math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True)) / spread if spread else 0.0


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each when sorted; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, start = [0.0] * len(values), 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            found[place] = (start + end) / 2
        start = end + 1
    return found
