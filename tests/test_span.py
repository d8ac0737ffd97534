"""Answers as spans of a text: where tokens stand in it, windows of long contexts, the loss and the best span against
all spans written out, SQuAD's JSON, and models that learn, are saved and loaded."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.config import merge
from regard.data.examples import read_files
from regard.data.marks import Frame, Marks
from regard.data.modalities.text import Text
from regard.data.targets.span import Span, SpanSettings, token_places
from regard.data.tokenizers.kinds import train_tokenizer
from regard.data.tokenizers.published import FileTokens
from regard.data.tokenizers.subwords import Subwords
from regard.data.tokenizers.symbols import Bytes, Symbols
from regard.data.tokens import Tokenizer, clean
from regard.errors import ConfigError, DataError
from regard.ragged import Ragged
from tests.conftest import FULL
from tests.test_targets import BODIES, ENCODER
from tests.toy import sides_of

ODD = "  Zoë (née\tSmith),  born in Zu\u0308rich\n(1990). 😀 ok "  # two blanks, a tab, a letter that is composed
LINES = ["born in (1990). ok", "Smith was born in Paris", "née Smith born again", "in the (1990) ok then"] * 9


@pytest.fixture(scope="module")
def subwords() -> Tokenizer:
    return train_tokenizer(LINES, "unigram", 330)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word", "byte"])
def test_tokens_know_where_they_stand(kind: str) -> None:
    tokenizer = train_tokenizer([*LINES, clean(ODD)], kind, 330)
    for text in (ODD, "ok", "  (1990)."):
        places, ids = token_places(tokenizer, text), tokenizer.encode(text)
        assert len(places) == len(ids)
        offsets = tokenizer.offsets(clean(text))
        assert all(0 <= a <= b <= len(clean(text)) for a, b in offsets)
        if kind != "word":  # all characters but blanks are some token's
            covered = {i for a, b in offsets for i in range(a, b)}
            assert {i for i, x in enumerate(clean(text)) if x != " "} <= covered
        for (start, end), token in zip(places, ids, strict=True):
            own = tokenizer.decode([token]).strip()
            if own and kind in ("unigram", "bpe", "char") and "�" not in own and "ü" not in own:
                assert text[start:end].strip() in (own, "Zu\u0308rich")
    # a word that the clean text composes counts as a whole
    place = next(i for i, word in enumerate(tokenizer.words(tokenizer.encode(ODD))) if word == 5)
    start, end = token_places(tokenizer, ODD)[place]
    assert ODD[start:end].strip() in ("Zu\u0308rich", "")


def test_unknown_ways_to_cut_fall_back_to_words() -> None:
    class Plain(Symbols):
        def offsets(self, text: str) -> list[tuple[int, int]]:
            return Tokenizer.offsets(self, text)

    tokenizer = Plain("char", list(" abc"))
    assert tokenizer.offsets("ab c") == [(0, 2), (0, 2), (3, 4), (3, 4)]  # a blank is of the word after it
    assert Bytes().offsets("é!") == [(0, 1), (0, 1), (1, 2)]


def sides(tokenizer: Tokenizer, longest: int = 20, **target: Any) -> tuple[Text, Span]:
    made = sides_of({"max_length": longest}, {"kind": "span", **target})
    made.use({"tokens": tokenizer})
    assert isinstance(made.source, Text)
    assert isinstance(made.target, Span)
    return made.source, made.target


def test_a_long_context_is_read_in_windows_which_hold_the_answer_or_say_that_they_do_not() -> None:
    words = [f"w{i}" for i in range(30)]
    source, target = sides(Symbols("word", words), stride=7)
    field = f"w1 w2\t{' '.join(words)}"
    windows = target.numbers(source, field, [], "w12 w13")
    room = 20 - 3  # a question of two tokens, and <sep>
    assert [len(window) for window, _ in windows] == [1 + 20, 1 + 20, 1 + 3 + 16]
    for number, (window, (first, last)) in enumerate(windows):
        assert window[0] == 3
        (row,) = target.rows(window)
        context = row[3:]
        assert source.tokenizer.decode(context) == " ".join(words[7 * number : 7 * number + room])
        if first:
            assert source.tokenizer.decode(context[first - 1 : last]) == "w12 w13"
        else:
            assert number == 2  # which begins after it
        places = target.positions(source, window, last=False)
        framed = [2, *row, 3]
        assert places[0] == 0
        assert [framed[i] for i in places[1:]] == list(context)
        assert target.positions(source, window, last=True)[0] == len(framed) - 1
    assert windows[0][1] == [13, 14]
    assert windows[1][1] == [6, 7]
    # what is found in a window is a span of the whole context
    found = [torch.zeros(len(window) - 3, 2) for window, _ in windows]
    found[1][6, 0] = found[1][7, 1] = 5.0
    parts = [window for window, _ in windows]
    (best, *_) = target.answers(parts, found, 3)
    assert best.values == [13, 14]
    assert target.text(source, field, best.values) == "w12 w13"
    each = target.log_probs_of(found, [y for _, y in windows])
    assert math.fsum(each) == pytest.approx(best.log_prob, abs=1e-5)


@pytest.mark.parametrize("no_answer", [False, True])
def test_the_best_span_is_that_of_all_spans_written_out(no_answer: bool) -> None:
    target = Span(SpanSettings(max_answer=3, no_answer=no_answer, threshold=0.5))
    found = torch.from_numpy(np.random.default_rng(5).normal(size=(9, 2)))
    x = found.numpy()
    every = {(i, j): x[i, 0] + x[j, 1] for i in range(1, 9) for j in range(i, min(i + 3, 9))}
    ranked = sorted(every, key=lambda span: -every[span])
    if no_answer:
        none = x[0].sum()
        ranked.insert(sum(none - every[span] <= 0.5 for span in ranked), (0, 0))
        every[0, 0] = none
    total = np.log(np.exp(x).sum(0)).sum()
    answers = target.predictions(found, 4)
    assert [tuple(answer.values) for answer in answers] == ranked[:4]
    assert [answer.log_prob for answer in answers] == pytest.approx([every[s] - total for s in ranked[:4]], abs=1e-5)


def test_the_loss_of_a_span_is_that_of_both_its_ends() -> None:
    target, x = Span(SpanSettings()), np.random.default_rng(0).normal(size=(7, 2))
    found, right = Ragged.from_lengths(torch.from_numpy(x), [4, 3]), Ragged.of([[1, 3], [0, 0]])
    log_p = [part - np.log(np.exp(part).sum(0)) for part in (x[:4], x[4:])]
    expected = -(log_p[0][1, 0] + log_p[0][3, 1] + log_p[1][0].sum())
    assert float(target.loss(found, right, 0.1)) == pytest.approx(expected, rel=1e-5)  # smoothing does not apply
    assert target.hits(found, Ragged.of([x[:4].argmax(0).tolist(), x[4:].argmax(0).tolist()])) == 4.0


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [("only one", "one", "has 1 text, where a question and a context are read"),
     ("q\tin Rome", "Paris", "has the answer 'Paris', which its context does not hold"),
     ("q\tin Rome", "Rome <sep> 1", "has the answer 'Rome' at character 1, where its context has 'n Ro'"),
     ("q\tin Rome", "Rome <sep> x", "has the answer 'Rome' at 'x', which is no character's number")],
)  # fmt: skip
def test_answers_that_do_not_stand_in_their_context_are_told(field: str, text: str, message: str) -> None:
    what = Span(SpanSettings()).mismatch(None, field, text)  # type: ignore[arg-type]
    assert what is not None
    assert message in what


def test_a_question_that_leaves_no_room_is_told(subwords: Tokenizer) -> None:
    source, target = sides(subwords, longest=10)
    with pytest.raises(DataError, match=r"has a question of 8 tokens, .* source.max_length=10; raise it"):
        target.parts(source, "ok ok ok ok ok ok ok ok\tborn in (1990).", [])


NAMES, PLACES = ["Ann", "Bob", "Eve", "Zoë", "Max"], ["Rome", "Paris", "Oslo", "Lima", "Bern"]


def paragraph(draw: random.Random) -> dict[str, Any]:
    """Where two people live, and questions after them and after one of whom nothing is said."""
    first, second, third = draw.sample(NAMES, 3)
    context, questions = "", list[dict[str, Any]]()
    for name in (first, second):
        place = draw.choice(PLACES)
        context += f"{name}  lives in ("
        answer = {"text": place, "answer_start": len(context)}
        context += f"{place}). "
        questions.append({"question": f"{name} ?", "answers": [answer, answer], "id": "1"})
    questions.append({"question": f"{third} ?", "answers": [], "is_impossible": True, "id": "2"})
    return {"context": context, "qas": questions}


def squad(path: Path, count: int, seed: int) -> str:
    draw = random.Random(seed)
    data = [{"title": "t", "paragraphs": [paragraph(draw), paragraph(draw)]} for _ in range(count)]
    path.write_text(json.dumps({"version": "2.0", "data": data}))
    return str(path)


def test_squad_is_read_as_it_is(tmp_path: Path) -> None:
    path = squad(tmp_path / "dev.json", 2, 0)
    form = sides_of("text", {"kind": "span", "no_answer": True}).form
    found = list(read_files(path, form))
    assert len(found) == 2 * 2 * 3  # people who said the same are one
    assert found[0].place == f"{path}:data[0].paragraphs[0].qas[0]"
    answer, start = found[0].target.split(" <sep> ")
    question, context = found[0].source.split(" <sep> ")
    assert question.endswith(" ?")
    assert context[int(start) : int(start) + len(answer)] == answer
    assert found[2].target == ""
    written = list(read_files(path, sides_of("text", "text").form))  # what writes answers has no use for places
    assert written[0].target == answer
    (tmp_path / "odd.json").write_text('{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": 3}]}, 7]}, 1]}')
    heard: list[str] = []
    assert list(read_files(str(tmp_path / "odd.json"), form, lambda bad: heard.append(str(bad)))) == []
    assert ".qas[0] has 'question' that should be text, not int" in heard[0]
    assert "paragraphs[1] should be an object, as SQuAD has it, not int" in heard[1]
    assert "data[1] should be an object" in heard[2]
    (tmp_path / "none.json").write_text('{"version": 2}')
    with pytest.raises(DataError, match="has no 'data', as SQuAD has"):
        list(read_files(str(tmp_path / "none.json"), form))


def test_answers_in_columns(tmp_path: Path) -> None:
    made: tuple[Any, Any] = {"column": ["question", "context"]}, {"kind": "span", "column": ["answer", "start"]}
    (tmp_path / "a.jsonl").write_text('{"question": "q", "context": "in Rome, Rome", "answer": "Rome", "start": 9}\n')
    (found,) = read_files(str(tmp_path / "a.jsonl"), sides_of(*made).form)
    assert found.target == "Rome <sep> 9"
    (tmp_path / "a.tsv").write_text("q\tin Rome\tRome\n")
    (found,) = read_files(str(tmp_path / "a.tsv"), sides_of("text", "span").form)
    assert found.source == "q <sep> in Rome"
    assert Span(SpanSettings()).mismatch(None, found.source, found.target) is None  # type: ignore[arg-type]


def config(folder: Path, body: dict[str, Any], **more: Any) -> regard.Config:
    plain = {
        "run": str(folder / "run"),
        "data": {"train": squad(folder / "train.json", 60, 1), "valid": squad(folder / "valid.json", 8, 2)},
        "source": {"max_length": 14}, "target": {"kind": "span", "no_answer": True, "stride": 4},
        "tokens": {"kind": "word"}, "model": {"d_model": 32, "dropout": 0.0, **body},
        "training": {"steps": 2, "batch_tokens": 800, "learning_rate": 5e-3, "warmup": 10, "validate_every": 200,
                     "save_every": 200, "tensorboard": False, "device": "cpu"},
    }  # fmt: skip
    return regard.Config.parse(merge(plain, more))


@pytest.mark.parametrize("body", ["transformer", *(["lstm", "transformer-alone"] if FULL else [])])
def test_answers_are_learnt_and_loaded(body: str, tmp_path: Path) -> None:
    system = regard.train(config(tmp_path, BODIES[body], training={"steps": 300 if FULL else 2}))
    result = system.evaluate(str(tmp_path / "valid.json"))
    assert len(result.outputs) == 8 * 2 * 3
    assert result.scores["squad_f1"].value > (60 if FULL else -1)
    for output, example in zip(result.outputs, result.examples, strict=True):
        assert output in example.source  # as it stands there
    again = regard.load(system.folder, device="cpu")
    given = ["Ann ?\tAnn  lives in (Rome). Bob lives in (Oslo).", "Bob ?\tBob lives in (Lima)."]
    first, second = again.outputs(given, nbest=3)
    assert [x.text for x in first] == [x.text for x in system.outputs(given[:1], nbest=3)[0]]
    assert again.outputs(given[1:])[0][0].log_prob == pytest.approx(second[0].log_prob, abs=1e-5)
    assert again.score(given[:1], [first[0].text])[0].log_prob == pytest.approx(first[0].log_prob, abs=1e-4)
    found = again.explain(given[1])
    assert found.target == [second[0].text]
    assert found.log_probs == [pytest.approx(second[0].log_prob, abs=1e-4)]
    assert found.source[1] == "Bob"
    long = "Ann ?\t" + "Bob lives in (Oslo). " * 9
    assert again.generate([long])[0] in long
    with pytest.raises(DataError, match=r"read in \d+ windows; give one that fits into source.max_length"):
        again.explain(long)


def test_settings_that_clash() -> None:
    with pytest.raises(ConfigError, match=r"set tokens\.sampling to 0"):
        regard.Config.parse({"target": "span", "model": ENCODER, "tokens": {"sampling": 0.2}})


def test_subwords_that_are_bytes_are_counted_by_character(subwords: Tokenizer) -> None:
    assert isinstance(subwords, Subwords)
    text = "née ✓ok"
    offsets = subwords.offsets(text)
    assert [text[a:b] for a, b in offsets].count("✓") == 3  # its bytes
    assert offsets[-1][1] == len(text)


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_tokens_of_other_programs_know_where_they_stand(kind: str) -> None:
    """BERT's, which has no capitals and no accents, and those of GPT-2, which keep blanks."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.BertWordPieceTokenizer() if kind == "words" else tokenizers.ByteLevelBPETokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(LINES, vocab_size=300, show_progress=False, special_tokens=special)
    begin, separator = made.token_to_id("[CLS]"), made.token_to_id("[SEP]")
    marks = Marks(
        dict(enumerate(special)), end=separator, begin=begin, unknown=1, separator=separator,
        source=Frame((begin,), (separator,), (separator,)),
    )  # fmt: skip
    source, target = sides(FileTokens(made.to_str(), made.get_vocab_size(), marks), 40)
    context = "Née  Smith\u0301 was born in (Paris)."
    for between in ("\t", " <sep> ", "[SEP]"):  # a pair is a pair, however it is written
        assert list(source.encode_many([f"who ?{between}born"])[0]).count(separator) == 1
    ((window, (first, last)),) = target.numbers(source, f"who ?\t{context}", [], "Paris")
    assert target.text(source, f"who ?\t{context}", [first, last]) == "Paris"
    places = target.positions(source, window, last=False)
    framed = source.frame.around(target.rows(window)[0])
    assert "paris" in source.tokenizer.decode([framed[i] for i in places[first : last + 1]]).lower()
    ((_, ends),) = target.numbers(source, f"who ?\t{context}", [], "Née  Smith\u0301")
    assert target.text(source, f"who ?\t{context}", ends) == "Née  Smith\u0301"
