"""Metrics of captions held against COCO's own code; error rates, answers, and several references."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from regard.data.target import Scoring, measure
from regard.data.targets.label import Label, LabelSettings
from regard.evaluation.bootstrap import ADDITIVE, BOOTSTRAPPED, resampled, scorer, statistics
from regard.evaluation.captions import tokens
from regard.evaluation.metrics import Additive
from regard.registry import METRICS
from regard.tasks.results import columns

WORDS = ["a", "the", "cat", "dog", "sits", "on", "mat", "red", "blue", "house", "'s", "n't"]
ODD = ["", ".", "A", "a a a a a a", "The cat's on the mat!", "x" * 50, "…", "Ein Hündchen; isn't it?", "two  blanks"]


def drawn(seed: int, count: int, most: int) -> tuple[list[str], list[list[str]]]:
    """Outputs, and from 1 to `most` references of each: some alike, some odd."""
    draw = random.Random(seed)

    def sentence() -> str:
        if draw.random() < 0.15:
            return draw.choice(ODD)
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 12)))

    rows = [[sentence() for _ in range(draw.randint(1, most))] for _ in range(count)]
    return [draw.choice(row) if draw.random() < 0.3 else sentence() for row in rows], rows


def score(name: str, outputs: Sequence[str], rows: Sequence[Sequence[str]]) -> float:
    first, more = columns(rows)
    return measure(name, outputs, first, Scoring(references=more)).value


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("seed", range(6))
def test_caption_metrics_are_cocos(seed: int, most: int) -> None:
    outputs, rows = drawn(seed, 1 if seed == 5 else 40, most)
    outputs, rows = [*outputs, *ODD], [*rows, *([[x] * most for x in ODD])]
    ours = {i: [" ".join(tokens(x))] for i, x in enumerate(outputs)}
    right = {i: [" ".join(tokens(x)) for x in row] for i, row in enumerate(rows)}
    bleus, _ = Bleu(4).compute_score(right, ours, verbose=0)
    for n, wanted in enumerate(bleus, 1):
        assert score(f"bleu{n}", outputs, rows) == pytest.approx(100 * wanted, abs=1e-6)
    assert score("rouge_l", outputs, rows) == pytest.approx(100 * Rouge().compute_score(right, ours)[0], abs=1e-6)
    assert score("cider", outputs, rows) == pytest.approx(100 * Cider().compute_score(right, ours)[0], abs=1e-6)


def test_captions_by_hand() -> None:
    """One of three words right, none in a row; the longest common subsequence is one word of three and of two."""
    outputs, rows = ["a red cat", "dogs run"], [["a dog"], ["dogs run", "dogs"]]
    assert score("bleu1", outputs, rows) == pytest.approx(100 * 3 / 5)
    assert score("bleu2", outputs, rows) == pytest.approx(100 * (3 / 5 * 1 / 3) ** 0.5)
    first = (1 + 1.44) * (1 / 3) * (1 / 2) / (1 / 2 + 1.44 / 3)
    assert score("rouge_l", outputs, rows) == pytest.approx(50 * (first + 1))
    assert score("bleu1", ["a"], [["a b c"]]) == pytest.approx(100 * np.exp(1 - 3))
    assert score("cider", ["a b", "c d"], [["a b"], ["c d"]]) == pytest.approx(500)  # of n-grams up to two of four
    assert score("cider", ["a b"], [["a b"]]) == 0  # what is in every document says nothing
    assert measure("bleu4", ["a"], ["a"], Scoring(references=[["b"], [None]])).signature == (
        "percent|refs:up to 3|length:closest|tok:ptb-like|case:lower|punct:removed"
    )


def test_tokens_of_captions() -> None:
    text = "A man's T-shirt, isn't \"red\"; it costs 3.50 at 5 o'clock (really). Don't they'll dogs' ..."
    assert tokens(text) == [
        "a", "man", "'s", "t-shirt", "is", "n't", "red", "it", "costs", "3.50", "at", "5", "o'clock", "really", "do",
        "n't", "they", "'ll", "dogs",
    ]  # fmt: skip
    assert tokens("") == tokens(" . ! ") == []


def test_error_rates() -> None:
    """Over the whole corpus: an empty reference has no words, and what is said instead is an error."""
    assert measure("wer", ["the cat sat", "x y", ""], ["The cat, sat!", "x", "a b"]).value == pytest.approx(100 * 3 / 6)
    assert measure("wer", ["a\u00a0 b\tc"], ["A b C."]).value == 0
    assert measure("wer", ["a b"], [""]).value == 200
    assert measure("wer", [""], [""]).value == 0
    assert measure("cer", ["abd", "x"], ["abc", ""]).value == pytest.approx(100 * 2 / 3)
    assert measure("cer", ["a b"], ["ab"]).value == 50  # blanks are characters
    nearest = Scoring(references=[["a b c", None]])
    assert measure("wer", ["a b c", "x"], ["z z", "x"], nearest).value == 0
    found = measure("wer", ["a"], ["b"])
    assert found.signature.startswith("wer|norm:lower,nopunct|jiwer:4.")
    assert (found.name, found.higher_is_better) == ("WER", False)
    draw = random.Random(0)
    outputs, references = (
        [" ".join(draw.choice("abcd") for _ in range(draw.randint(0, 8))) for _ in range(50)] for _ in "12"
    )
    errors = sum(_edits(a.split(), b.split()) for a, b in zip(outputs, references, strict=True))
    words = sum(len(b.split()) for b in references)
    assert measure("wer", outputs, references).value == pytest.approx(100 * errors / words)


def _edits(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Levenshtein's distance, from its recursion."""
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    table[:, 0], table[0] = range(len(a) + 1), range(len(b) + 1)
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (x != y))
    return int(table[-1, -1])


def test_vqa_accuracy_is_what_three_other_people_said() -> None:
    people = ["two"] * 1 + ["2"] * 2 + ["none"] * 3 + ["three"] * 4
    for answer, wanted in (("three", 100), ("none", 90), ("2", 60), ("Two ", 30), ("no", 0)):
        assert score("vqa", [answer], [people]) == pytest.approx(wanted)
    assert measure("vqa", ["a"], ["a"]).signature == "percent|answers:1|min(n/3,1)|mean:leave-one-out|case:lower"
    assert score("vqa", ["a", "b", "a"], [["a"], ["a"], ["a", "b"]]) == pytest.approx(100 * (1 + 0 + 0.5) / 3)


def test_vqa_accuracy_is_the_mean_over_all_that_leave_one_person_out() -> None:
    """Antol et al. 2015: `min(humans that said it / 3, 1)`, averaged over all sets of all but one of the humans."""
    draw = random.Random(1)
    for count in (*range(2, 13), 10, 10, 10):
        people = [draw.choice("aaabbc") for _ in range(count)]
        for answer in "abcd":
            subsets = list(combinations(people, count - 1))
            each = [min(sum(x == answer for x in some) / min(len(some), 3), 1) for some in subsets]
            assert score("vqa", [answer], [people]) == pytest.approx(100 * sum(each) / len(subsets))


def test_labels_are_also_scored_by_the_best_five_and_by_what_people_said() -> None:
    target = Label(LabelSettings())
    target.labels = list("abcdefg")
    ranked = [list("abcde"), list("bcdef"), list("cdefg")]
    plain = target.scores(["a", "b", "c"], ["a", "f", "a"])
    assert "top5" not in plain
    found = target.scores(["a", "b", "c"], ["a", "f", "a"], Scoring(ranked=ranked))
    assert found["accuracy"].value == pytest.approx(100 / 3)
    assert found["top5"].value == pytest.approx(200 / 3)
    assert (found["top5"].name, "vqa" in found) == ("top-5 accuracy", False)
    several = target.scores(["a", "b", "c"], ["a", "f", "a"], Scoring(references=[["b", None, "c"]]))
    assert several["vqa"].value == pytest.approx(100 * (0.5 + 0 + 0.5) / 3)
    target.labels = list("abcde")  # all of them are among the best five
    assert "top5" not in target.scores(["a"], ["a"], Scoring(ranked=[list("abcde")]))


def test_what_adds_up_is_the_score_of_the_sums() -> None:
    outputs, rows = drawn(3, 30, 3)
    first, more = columns(rows)
    for name in ADDITIVE:
        assert isinstance(METRICS.get(name)(), Additive)
        counts = statistics(name, outputs, [first, *more])
        assert len(counts) == 30
        assert scorer(name)(counts.sum(0)) == pytest.approx(score(name, outputs, rows))
        half = score(name, outputs[:15], rows[:15])
        assert scorer(name)(counts[:15].sum(0)) == pytest.approx(half)
        assert resampled(name, [counts], 5).shape == (6, 1)
    assert set(ADDITIVE) < set(BOOTSTRAPPED)
    found = measure("wer", outputs, first, Scoring(references=more, confidence=True))
    assert found.interval is not None
    assert found.interval[0] <= found.value <= found.interval[1]


def test_references_may_be_missing() -> None:
    """An output with fewer references has the score that it has with them alone."""
    outputs, rows = ["a cat sat on the mat", "two dogs run there"], [["a cat sat", "a cat on a mat"], ["two dogs run"]]
    for name in ("bleu", "chrf", "ter", "exact", "bleu4", "rouge_l", "wer", "cer", "vqa"):
        filled = [rows[0], [rows[1][0]] * 2]  # a reference twice is one
        if name != "vqa":
            assert score(name, outputs, rows) == pytest.approx(score(name, outputs, filled))
    assert columns([["a"], ["b", "c"]]) == (["a", "b"], [[None, "c"]])
    assert columns([]) == ([], [])
