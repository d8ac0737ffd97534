"""Candidates chosen by their likelihood: against what `score` says of whole texts, with and without solved examples."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import parse
from regard.data.candidates import Question, read_questions, read_solved
from regard.data.tokenizers.kinds import train_tokenizer
from regard.data.tokens import Tokenizer
from regard.errors import ConfigError, DataError
from regard.system import System
from regard.tasks.choosing import Choice, Choosing, choice_accuracy
from tests.test_cli import good, refused
from tests.toy import untrained

WORDS = "alpha beta gamma delta Q: A: Answer:"
BODY = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 32}
LM: dict[str, Any] = {
    "source": "none", "tokens": {"kind": "word"}, "target": {"max_length": 60},
    "model": {"d_model": 16, "encoder": "none", "decoder": BODY},
}  # fmt: skip
BLANKS: dict[str, Any] = {**LM, "model": {"d_model": 16, "encoder": BODY, "decoder": "none"}}
PAIRS: dict[str, Any] = {
    "tokens": {"kind": "word"},
    "model": {"d_model": 16, "encoder": {"kind": "gru"}, "decoder": {"kind": "gru"}},
}


def tokens(kind: str = "word") -> Tokenizer:
    return train_tokenizer([WORDS] * 3, kind, 300)


def system(settings: dict[str, Any] = LM, kind: str = "word") -> System:
    torch.manual_seed(1)
    return System(untrained(parse(settings), tokens(kind)), Path())


@pytest.mark.parametrize("kind", ["word", "char", "bpe"])
def test_a_language_model_scores_what_goes_on_with_the_context(kind: str) -> None:
    """log p of the whole text less that of the context, neither with its end."""
    model = system(kind=kind)
    context, candidates = "alpha beta", ["gamma", "delta alpha beta"]
    (choice,) = model.choose([(context, candidates)])
    assert isinstance(choice, Choice)
    for candidate, found in zip(candidates, choice.log_probs, strict=True):
        whole, start = model.score([f"{context} {candidate}"])[0], model.score([context])[0]
        assert found == pytest.approx(math.fsum(whole.tokens[:-1]) - math.fsum(start.tokens[:-1]), abs=1e-5)
    assert (choice.index, choice.text) == (0, "gamma")  # untrained, the shorter is likelier
    assert choice.scores == choice.log_probs


def test_scores_are_normalised_as_is_asked() -> None:
    model = system()
    question = ("alpha", ["gamma", "delta alpha beta"])
    plain, by_token, by_byte, prior = (model.choose([question], by=by)[0] for by in ("sum", "token", "byte", "prior"))
    assert plain is not None
    assert by_token is not None
    assert by_byte is not None
    assert prior is not None
    assert by_token.scores == pytest.approx([plain.scores[0], plain.scores[1] / 3])
    assert by_byte.scores == pytest.approx([plain.scores[0] / 5, plain.scores[1] / 16])
    (alone,) = model.choose([("Answer:", question[1])])
    assert alone is not None
    assert prior.scores == pytest.approx([a - b for a, b in zip(plain.scores, alone.scores, strict=True)])
    assert prior.log_probs == plain.log_probs


def test_an_encoder_decoder_scores_targets_of_the_context() -> None:
    model = system(PAIRS)
    (choice,) = model.choose([("alpha beta", ["gamma", "delta"])], by="token")
    assert choice is not None
    right = model.score(["alpha beta"] * 2, ["gamma", "delta"])
    assert choice.log_probs == pytest.approx([pair.log_prob for pair in right])
    assert choice.scores == pytest.approx([pair.log_prob / 2 for pair in right])  # the end counts


def test_many_questions_at_once_are_scored_as_one_by_one() -> None:
    model = system()
    questions = [(f"alpha {'beta ' * (i % 5)}", ["gamma", "delta alpha", "beta"][: 1 + i % 3]) for i in range(12)]
    together = model.choose(questions)
    for question, found in zip(questions, together, strict=True):
        (alone,) = model.choose([question])
        assert found is not None
        assert alone is not None
        assert found.log_probs == pytest.approx(alone.log_probs, abs=1e-5)


def test_solved_examples_stand_before_the_question() -> None:
    shots = [("one", "1"), ("two", "2"), ("three", "3")]
    how = Choosing(template="Q: {context} A: {answer}.", shots=shots, count=2, separator=" / ")
    asked = how.prompt(Question("two", ("a", "b")), 0)
    assert asked in ("Q: one A: 1. / Q: three A: 3. / Q: two A: ", "Q: three A: 3. / Q: one A: 1. / Q: two A: ")
    assert asked == how.prompt(Question("two", ("a", "b")), 0)
    drawn = {how.prompt(Question("x", ("a",)), number) for number in range(20)}
    assert len(drawn) == 6  # every ordered pair of three
    assert Choosing().prompt(Question("x", ("a",)), 0) == "x "
    model = system()
    with_shots = model.choose([("alpha", ["beta", "gamma"])], shots=[("delta", "beta")], count=1, separator=" ")
    (plain,) = model.choose([("delta beta alpha", ["beta", "gamma"])])
    assert with_shots[0] is not None
    assert plain is not None
    assert with_shots[0].log_probs == pytest.approx(plain.log_probs)


def test_what_cannot_be_asked_is_said() -> None:
    for template in ("{context}", "{answer} {context}", "{context} {answer} {answer}"):
        with pytest.raises(ConfigError, match=r"the template .* should h"):
            Choosing(template=template)
    with pytest.raises(ConfigError, match="3 examples are to stand before each question, and there are 1"):
        Choosing(shots=[("a", "b")], count=3)
    with pytest.raises(ConfigError, match="not scored by 'bytes'; did you mean 'byte'"):
        Choosing(by="bytes")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="f:1 says that candidate 2 is right, but has 2; the first is 0"):
        Question("a", ("b", "c"), 2, "f:1")
    with pytest.raises(DataError, match="has no candidates"):
        Question("a", ())
    with pytest.raises(DataError, match=r"a candidate \(number 1\) that is empty"):
        Question("a", ("b", " "))
    with pytest.raises(ConfigError, match="choosing needs a model that writes text after text"):
        system(BLANKS).choose([("alpha", ["beta"])])
    told = list[str]()
    long = system().choose([("alpha " * 500, ["beta"])], on_problem=lambda i, what: told.append(f"{i} {what}"))
    assert long == [None]
    assert "0 has 501 tokens, more than a model of" in told[0]


def test_files_of_questions(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = [{"context": "a", "candidates": ["b", "c"], "gold": 1}, {"context": "d", "candidates": ["e"], "gold": "e"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"context": "f", "candidates": ["g"]}]))
    found = list(read_questions(path))
    assert [(q.context, q.candidates, q.gold) for q in found] == [
        ("a", ("b", "c"), 1),
        ("d", ("e",), 0),
        ("f", ("g",), None),
    ]
    assert found[2].place == f"{path}:3"
    table = tmp_path / "x.tsv"
    table.write_text("a\t1\tb\tc\n")
    assert list(read_questions(table, gold=True)) == [Question("a", ("b", "c"), 1, f"{table}:1")]
    assert next(read_questions(table)).candidates == ("1", "b", "c")
    assert read_solved(table, gold=True) == [("a", "c")]
    table.write_text("a\tb\n")
    assert read_solved(table) == [("a", "b")]
    with pytest.raises(DataError, match=r"x\.tsv:1 should have the number of the right candidate"):
        list(read_questions(table, gold=True))
    with pytest.raises(DataError, match=r"x\.jsonl:3 does not say which candidate is right"):
        read_solved(path)
    for line, message in (
        ('{"context": "a", "candidates": "b"}', "a list of texts"),
        ('{"context": "a", "candidates": ["b"], "gold": "c"}', "has gold 'c', which is none of its candidates"),
        ('{"context": "a", "candidates": ["b"], "gold": true}', "neither the number of a candidate nor its text"),
        ("[]", "should be an object such as"),
    ):
        path.write_text(line + "\n")
        with pytest.raises(DataError, match=message):
            list(read_questions(path))
    with pytest.raises(DataError, match=r"questions stand in a \.jsonl or \.tsv file"):
        list(read_questions(tmp_path / "x.txt"))


def test_accuracy_counts_questions_that_say_what_is_right() -> None:
    questions = [Question("a", ("b", "c"), 1), Question("a", ("b",)), Question("a", ("b", "c"), 0)]
    choices = [Choice(1, "c", [], []), Choice(0, "b", [], []), None]
    score = choice_accuracy(choices, questions, Choosing(by="byte"))
    assert score is not None
    assert score.value == 50
    assert score.signature == "percent|n:2|by:byte|shots:0|seed:1|template:{context} {answer}"
    assert choice_accuracy(choices[1:2], questions[1:2], Choosing()) is None


def test_the_command_and_last_words(tmp_path: Path) -> None:
    model = str(system().save(tmp_path / "model"))
    path = tmp_path / "x.tsv"
    path.write_text("alpha\t0\tbeta\tgamma delta\ngamma\t1\tbeta\talpha beta delta\n")
    assert good("choose", model, path, "--gold").splitlines()[:2] == ["0\tbeta", "0\tbeta"]
    told = json.loads(good("choose", model, path, "--gold", "--json", "--by", "prior"))
    assert [row["gold"] for row in told["choices"]] == [0, 1]
    assert len(told["choices"][0]["scores"]) == 2
    assert told["accuracy"]["signature"].startswith("percent|n:2|by:prior|null:Answer:|shots:0")
    out = tmp_path / "out"
    good("choose", model, path, "--gold", "--shots", path, "--count", "1", "-o", out)
    assert len(out.read_text().splitlines()) == 2
    assert "exists" in refused("choose", model, path, "-o", out)
    texts = tmp_path / "texts.txt"
    texts.write_text("alpha beta gamma\nalpha\ndelta alpha\n")
    report = json.loads(good("evaluate", model, texts, "--last-word", "--json"))
    assert report["examples"] == 2
    lm = system()
    rows = [lm.score([text])[0].tokens for text in ("alpha beta gamma", "delta alpha")]
    expected = math.exp(-(rows[0][2] + rows[1][1]) / 2)
    assert report["scores"]["last_word_perplexity"]["score"] == pytest.approx(expected, abs=1e-3)
    assert report["scores"]["last_word"]["signature"] == "percent|n:2|words:blanks|greedy tokens|end:not counted"
    greedy = [lm.generate([text], beam=1, max_length=len(text.split()) + 1)[0] for text in ("alpha beta", "delta")]
    right = [
        a.split()[: b.count(" ") + 1] == b.split()
        for a, b in zip(greedy, ("alpha beta gamma", "delta alpha"), strict=True)
    ]
    assert report["scores"]["last_word"]["score"] == 50 * sum(right)


def test_only_positions_bound_the_texts_whose_last_words_are_told(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("alpha beta\n" + "alpha beta gamma delta " * 3 + "alpha\n")
    short = {**LM, "target": {**LM.get("target", {}), "max_length": 4}, "search": {"max_length": 4}}
    for kind, expected in (("lstm", 2), ("transformer", 1)):
        warned: list[str] = []
        model = {**LM["model"], "decoder": {"kind": kind}}
        found = system({**short, "model": model}).last_words(texts, warn=warned.append)
        assert len(found.examples) == expected
        assert len(warned) == 2 - expected
