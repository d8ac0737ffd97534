"""Metrics of single fields, held against the libraries of the field and against cases worked by hand."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.examples import Example
from regard.data.target import Scoring, measure
from regard.data.targets.label import Label, LabelSettings
from regard.data.targets.tags import Tags, TagsSettings
from regard.errors import DataError
from regard.evaluation.answers import normalize_answer
from regard.evaluation.labels import BinaryF1, number_scores
from regard.evaluation.programs import code_tokens, parses

LABELS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=40)


@given(LABELS)
def test_correlation_and_f1_of_labels_are_those_of_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    from sklearn.metrics import f1_score, matthews_corrcoef

    said, true = zip(*pairs, strict=True)
    if len({*said, *true}) > 1:  # scikit-learn warns of one label alone
        assert measure("matthews", said, true).value == pytest.approx(matthews_corrcoef(true, said), abs=1e-12)
    ours = BinaryF1("a")(said, true).value
    assert ours == pytest.approx(100 * f1_score(true, said, average=None, labels=["a"], zero_division=0.0)[0])


def test_matthews_by_hand() -> None:
    """Two true positives, one false positive, one true negative: (2 · 1 - 1 · 0) / √(3 · 2 · 2 · 1)."""
    found = measure("matthews", ["1", "1", "1", "0"], ["1", "1", "0", "0"])
    assert found.value == pytest.approx(2 / math.sqrt(12))
    assert found.signature == "n:4|labels:2 predicted or right"
    assert measure("matthews", ["1", "1"], ["1", "1"]).value == 0
    assert measure("f1", ["1", "1", "1", "0"], ["1", "1", "0", "0"]).value == pytest.approx(80)


def test_correlations_are_those_of_scipy() -> None:
    from scipy import stats

    draw = np.random.default_rng(0)
    a, b = draw.integers(0, 6, size=(2, 50)).tolist()
    found = number_scores(a, b)
    assert found["pearson"].value == pytest.approx(stats.pearsonr(a, b)[0])
    assert found["spearman"].value == pytest.approx(stats.spearmanr(a, b)[0])


def test_two_labels_are_scored_by_correlation_and_by_the_positive_one() -> None:
    target = Label(LabelSettings())
    target.learn(Example("x", label) for label in ("0", "1", "0"))
    found = target.scores(["1", "0", "0"], ["1", "0", "1"], Scoring(confidence=True))
    assert found["f1"].value == pytest.approx(200 / 3)
    assert found["f1"].signature == "percent|label:1"
    assert found["matthews"].value == pytest.approx(0.5)
    assert found["matthews"].interval is not None
    assert found["f1"].interval is not None
    named = Label(LabelSettings(positive="yes", metrics=["f1"]))
    named.learn(Example("x", label) for label in ("no", "yes", "perhaps"))
    assert {name: x.value for name, x in named.scores(["yes", "no"], ["yes", "yes"]).items()} == {
        "f1": pytest.approx(200 / 3)
    }
    with pytest.raises(DataError, match=r"target.positive is 'yes', but the training data hold no, nope"):
        Label(LabelSettings(positive="yes")).learn(Example("x", label) for label in ("no", "nope"))
    with pytest.raises(DataError, match=r"f1 is of one label .* target.positive names, such as nope; macro_f1 is of"):
        Label(LabelSettings(metrics=["f1"])).learn(Example("x", label) for label in ("no", "nope"))
    tags = Tags(TagsSettings())
    tags.learn([Example("x y", "0 1")])
    assert "f1" not in tags.scores(["0 1"], ["0 1"])


def test_answers_are_compared_as_squad_does() -> None:
    assert normalize_answer("The  U.S.A., an 'Area' a day!") == "usa area day"
    assert measure("squad_em", ["the Cat.", "dog"], ["cat", "a dog house"]).value == 50
    # `dog` is all of the answer and half of the reference: 2 · 1 · ½ / (1 + ½)
    assert measure("squad_f1", ["the Cat.", "dog"], ["cat", "a dog house"]).value == pytest.approx(50 * (1 + 2 / 3))
    assert measure("squad_f1", ["a b b"], ["b b c"]).value == pytest.approx(100 * 4 / 5)  # the article is none
    several = Scoring(references=[["dog house", None]])
    assert measure("squad_em", ["dog house", "x"], ["house", "x"], several).value == 100
    for output, right, wanted in (("", "", 100), ("x", "", 0), ("", "x", 0), ("the", "an", 100)):
        assert measure("squad_f1", [output], [right]).value == wanted
        assert measure("squad_em", [output], [right]).value == wanted
    assert measure("squad_f1", ["a"], ["a"]).signature == (
        "percent|refs:best of 1|norm:lower,nopunct,noarticles|bag of words"
    )


def test_rouge_is_that_of_rouge_score() -> None:
    from rouge_score import rouge_scorer

    draw = random.Random(0)
    words = ["running", "runs", "ran", "the", "Cats", "cat", "quickly", "3", "sees", "seeing", "x-ray", "é"]
    outputs, first, second = ([" ".join(draw.choices(words, k=draw.randint(0, 9))) for _ in range(20)] for _ in "123")
    for kind, theirs in (("rouge1", "rouge1"), ("rouge2", "rouge2"), ("rougel", "rougeL")):
        for name, stem in ((kind, True), (f"{kind}_unstemmed", False)):
            scorer = rouge_scorer.RougeScorer([theirs], use_stemmer=stem)
            each = [
                scorer.score_multi([a, b], output)[theirs].fmeasure
                for output, a, b in zip(outputs, first, second, strict=True)
            ]
            found = measure(name, outputs, first, Scoring(references=[second]))
            assert found.value == pytest.approx(100 * np.mean(each))
            assert f"stem:{'porter' if stem else 'none'}|rouge-score:0." in found.signature
    assert measure("rouge1", ["cats run"], ["the cat runs"]).value == pytest.approx(80)
    assert measure("rouge1_unstemmed", ["cats run"], ["the cat runs"]).value == 0
    assert measure("rouge2", ["a b c"], ["a b d"]).value == pytest.approx(50)
    assert measure("rougel", ["a x b c"], ["a b c"]).value == pytest.approx(600 / 7)
    assert measure("rougel", ["a"], ["a"]).name == "ROUGE-L"


def test_distinct_n_grams_are_counted_over_all_outputs() -> None:
    """Five words, of which three differ; of the pairs `a b`, `b a` and `a b` two differ."""
    outputs = ["a b a", "a b c"]
    assert measure("distinct1", outputs, ["", ""]).value == pytest.approx(100 * 3 / 6)
    assert measure("distinct2", outputs, ["", ""]).value == pytest.approx(100 * 3 / 6)
    assert measure("distinct2", ["a", ""], ["", ""]).value == 0
    assert measure("distinct1", [], []).value == 0
    assert measure("distinct2", ["a"], ["a"]).signature == "percent|n:2|per:word|words:blanks|case:mixed"


def test_programs_are_parsed_and_never_run() -> None:
    good = ["x = [i ** 2 for i in range(3)]", "import os; os.abort()", "print('\\d')", "  lambda: 0  "]
    bad = ["x = = 3", "", "#", "print 3", "\0", "(" * 10**5, "x" + "+x" * 10**5, "def f():"]
    assert all(map(parses, good))
    assert not any(map(parses, bad))
    assert measure("parses", good + bad, [""] * 12).value == pytest.approx(100 / 3)
    assert measure("parses", ["x"], ["y"]).signature == "percent|refs:best of 1|language:python|run:never"


def test_conala_bleu_is_its_equation() -> None:
    """n-grams of a corpus, clipped by those of the reference, not smoothed, `BP = exp(1 - r / c)` where it is short."""
    assert code_tokens("df.groupBy(\"a_b\")['x1']") == [
        "df", ".", "group", "By", "(", "`", "a_b", "`", ")", "[", "`", "x1", "`", "]"
    ]  # fmt: skip
    outputs = ["sorted(xs, key=lambda x: x[0])", "print('a b')", "os.listDir(path)"]
    right = ["sorted(ys, key=lambda y: y[1], reverse=True)", 'print("a c")', "os.listdir(path)"]
    rows = [(code_tokens(a), code_tokens(b)) for a, b in zip(outputs, right, strict=True)]
    logs = 0.0
    for n in range(1, 5):
        hits = total = 0
        for a, b in rows:
            ours, theirs = (Counter(zip(*(x[i:] for i in range(n)), strict=False)) for x in (a, b))
            hits, total = hits + (ours & theirs).total(), total + ours.total()
        logs += math.log(hits / total) / 4
    c, r = (sum(len(row[i]) for row in rows) for i in (0, 1))
    assert c < r
    found = measure("conala_bleu", outputs, right)
    assert found.value == pytest.approx(100 * math.exp(1 - r / c + logs))
    assert found.signature.startswith("nrefs:1|case:mixed|tok:ling2016|order:4|smooth:none|sacrebleu:2.")
    assert measure("conala_bleu", ["x"], ["y"]).value == 0


def test_phones_and_whole_pronunciations() -> None:
    """One substitution in seven phones; one of two lines wrong."""
    outputs, right = ["K AE1 T", "D  AO0 G Z"], ["K AE1 T", "D AO1 G Z"]
    assert measure("per", outputs, right).value == pytest.approx(100 / 7)
    assert measure("sequence_error", outputs, right).value == 50
    either = Scoring(references=[[None, "D AO0 G Z"]])
    assert measure("per", outputs, right, either).value == 0
    assert measure("sequence_error", outputs, right, either).value == 0
    assert measure("per", ["a"], ["A"]).value == 100  # in X-SAMPA case makes another phone
    assert measure("per", ["a"], ["a ,"]).value == 50
    assert measure("per", ["a"], ["a"]).signature.startswith("per|norm:none|jiwer:")
    assert (measure("per", ["a"], ["a"]).name, measure("per", ["a"], ["a"]).higher_is_better) == ("PER", False)
    assert not measure("sequence_error", ["a"], ["a"]).higher_is_better
