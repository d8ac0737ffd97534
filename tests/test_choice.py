"""One of several candidates, and vectors of sentences by contrast: losses by their equations, data in all forms, and
models that learn, are saved and loaded."""

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
from regard.data.examples import read_examples, read_files
from regard.data.targets.choice import Choice, ChoiceSettings
from regard.data.targets.contrast import Contrast, ContrastSettings
from regard.data.targets.rows import bind
from regard.errors import ConfigError, DataError
from regard.evaluation.labels import pearson, ranks
from regard.ragged import Ragged
from tests.conftest import FULL
from tests.test_targets import BODIES, DECODER, ENCODER
from tests.toy import sides_of

WORDS = ["red", "green", "blue", "cat", "dog", "fish", "sun", "moon"]


def settings(folder: Path, body: dict[str, Any], **more: Any) -> regard.Config:
    plain = {
        "run": str(folder / "run"), "tokens": {"kind": "word"}, "model": {"d_model": 32, "dropout": 0.0, **body},
        "training": {"steps": 2, "batch_tokens": 600, "learning_rate": 3e-3, "warmup": 10, "validate_every": 200,
                     "save_every": 200, "tensorboard": False, "device": "cpu"},
    }  # fmt: skip
    return regard.Config.parse(merge(plain, more))


# Multiple choice


def choices(folder: Path, train: int = 200) -> dict[str, str]:
    """What is asked for is among two to four candidates."""
    draw, files = random.Random(0), {}
    for split, count in (("train", train), ("valid", 30)):
        lines = []
        for _ in range(count):
            right = draw.choice(WORDS)
            others = draw.sample([word for word in WORDS if word != right], draw.randint(1, 3))
            place = draw.randint(0, len(others))
            ends = [f"it is {word}" for word in (*others[:place], right, *others[place:])]
            lines.append(json.dumps({"context": f"which is {right} ?", "ends": ends, "label": str(place)}) + "\n")
        files[split] = str(folder / f"{split}.jsonl")
        Path(files[split]).write_text("".join(lines))
    return files


CHOICE = {"source": {"column": ["context", "ends"]}, "target": {"kind": "choice", "column": "label"}}


def test_the_loss_of_a_choice_is_a_softmax_over_its_candidates() -> None:
    target, found = Choice(ChoiceSettings()), torch.tensor([[1.0], [2.0], [0.5], [3.0], [1.5]])
    rows, right = Ragged.from_lengths(found, [2, 3]), Ragged.of([[0], [1]])
    e = np.exp(found.numpy()[:, 0])
    first, second = e[:2] / e[:2].sum(), e[2:] / e[2:].sum()
    expected = -math.log(first[0]) - math.log(second[1])
    assert float(target.loss(rows, right, 0.0)) == pytest.approx(expected, rel=1e-6)
    smooth = 0.8 * expected - 0.2 * (np.log(first).mean() + np.log(second).mean())
    assert float(target.loss(rows, right, 0.2)) == pytest.approx(smooth, rel=1e-6)
    assert target.hits(rows, right) == 1.0
    assert [x.values for x in target.predictions(found[2:], 5)] == [[1], [2], [0]]
    assert target.log_probs(found[2:], [1]) == pytest.approx([math.log(second[1])])


@pytest.mark.parametrize("body", ["transformer", *(["lstm", "transformer-alone"] if FULL else [])])
def test_a_choice_is_learnt_and_loaded(body: str, tmp_path: Path) -> None:
    more = {"training": {"steps": 100 if FULL else 2, "objective": {"language": 0.5 if "alone" in body else 0.0}}}
    system = regard.train(settings(tmp_path, BODIES[body], data=choices(tmp_path), **CHOICE, **more))
    valid = str(tmp_path / "valid.jsonl")
    assert system.evaluate(valid).scores["accuracy"].value > (80 if FULL else 0)
    again = regard.load(system.folder, device="cpu")
    given = ["which is sun ?\tit is red\tit is sun\tit is cat", "which is cat ?\tit is cat\tit is dog"]
    (three, two) = again.outputs(given, nbest=5)
    assert [x.text for x in three] == [x.text for x in system.outputs(given[:1], nbest=5)[0]]
    assert sorted(x.text for x in three) == ["0", "1", "2"]
    assert math.fsum(math.exp(x.log_prob) for x in three) == pytest.approx(1.0, abs=1e-5)
    assert again.outputs(given[1:])[0][0].log_prob == pytest.approx(two[0].log_prob, abs=1e-5)  # whatever is beside it
    assert again.score(given[:1], [three[1].text])[0].log_prob == pytest.approx(three[1].log_prob, abs=1e-5)
    with pytest.raises(ConfigError, match="'choice' is predicted from several texts, each read by itself"):
        again.explain(given[0])


def test_candidates_from_columns_from_lists_and_by_letter_or_text(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("q\ta a\tb\tc\tB\nq\ta\tb\t\tA\n")
    sides = sides_of({"column": [1, 2, 3, 4]}, {"kind": "choice", "column": 5, "answer": "letter"})
    first, second = read_files(str(tmp_path / "a.tsv"), sides.form)
    target = sides.target
    assert isinstance(target, Choice)
    assert target.candidates(first.source) == (["q"], ["a a", "b", "c"])
    assert target.candidates(second.source) == (["q"], ["a", "b"])  # empty ones at the end are none
    assert target.index("B", ["a a", "b", "c"]) == 1
    assert target.text(sides.source, first.source, [2]) == "C"
    (tmp_path / "a.jsonl").write_text('{"p": "x", "q": "y", "ends": ["a", "b"], "label": "b"}\n')
    both = {"kind": "choice", "column": "label", "answer": "text", "context": 2}
    sides = sides_of({"column": ["p", "q", "ends"]}, both)
    (found,) = read_files(str(tmp_path / "a.jsonl"), sides.form)
    (tmp_path / "b.jsonl").write_text('{"context": "x", "candidates": ["a", "b"], "gold": 1}\n')
    (usual,) = read_files(str(tmp_path / "b.jsonl"), sides_of({}, {"kind": "choice"}).form)
    assert (usual.source, usual.target) == ("x <sep> a <sep> b", "1")
    target = sides.target
    assert isinstance(target, Choice)
    assert target.candidates(found.source) == (["x", "y"], ["a", "b"])
    assert target.reference(sides.source, found.source, "b") == "b"
    assert target.rows(bind([[7, 8], [9]])) == [[7, 8], [9]]
    assert target.mismatch(sides.source, found.source, "c") == ("has the answer 'c', which is none of its 2 candidates")


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [("q\ta", "0", "has 1 candidate after 1 other text; at least 2 are needed"),
     ("q\ta\t\tb", "0", "has an empty candidate 2"),
     ("q\ta\tb", "2", "has the answer '2', but candidates are named by a number from 0 up to 1"),
     ("q\ta\tb", "x", "has the answer 'x', but candidates are named by a number")],
)  # fmt: skip
def test_choices_that_are_none_are_told(field: str, text: str, message: str) -> None:
    what = Choice(ChoiceSettings()).mismatch(None, field, text)  # type: ignore[arg-type]
    assert what is not None
    assert message in what


def test_settings_of_a_choice_that_clash() -> None:
    for changes, message in (
        ({"source": "image", "model": {"encoder": "stem", "decoder": "none"}}, "predicted from texts of one source"),
        ({"model": ENCODER, "tokens": {"sampling": 0.1}}, "set tokens.sampling to 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            regard.Config.parse({"target": "choice", **changes})


# Vectors by contrast


@pytest.mark.parametrize("negatives", [False, True])
def test_the_loss_of_contrast_is_that_of_its_equation(negatives: bool) -> None:
    h = np.random.default_rng(0).normal(size=(8, 5))
    lengths = [3, 2, 3] if negatives else [2, 2, 2, 2]
    found = Ragged.from_lengths(torch.from_numpy(h), lengths)
    starts = np.cumsum([0, *lengths[:-1]])

    def cos(a: int, b: int) -> float:
        return float(h[a] @ h[b] / np.linalg.norm(h[a]) / np.linalg.norm(h[b]))

    expected = 0.0
    for i in starts:
        others = [j + 1 for j in starts] + [j + 2 for j, n in zip(starts, lengths, strict=True) if n == 3]
        total = math.fsum(math.exp(cos(i, j) / 0.05) for j in others)
        expected -= cos(i, i + 1) / 0.05 - math.log(total)
    right = Ragged.from_lengths(torch.zeros(len(lengths)), [1] * len(lengths))
    assert float(Contrast(ContrastSettings()).loss(found, right, 0.0)) == pytest.approx(expected, rel=1e-5)


def sentences(folder: Path, positives: bool) -> dict[str, str]:
    draw = random.Random(0)

    def some() -> str:
        return " ".join(draw.choice(WORDS) for _ in range(5))

    lines = [some() for _ in range(200)]
    train = folder / ("train.tsv" if positives else "train.txt")
    rows = [f"{x}\t{' '.join(reversed(x.split()))}\t{some() if i % 2 else ''}" for i, x in enumerate(lines)]
    train.write_text("\n".join(rows if positives else lines) + "\n")
    pairs = []
    for _ in range(40):
        a, k = some().split(), draw.randint(0, 5)
        b = [*a[:k], *some().split()[k:]]
        pairs.append(f"{' '.join(a)}\t{' '.join(b)}\t{len(set(a) & set(b))}\n")
    (folder / "sts.tsv").write_text("".join(pairs))
    return {"train": str(train), "valid": str(folder / "sts.tsv"), "test": str(folder / "sts.tsv")}


@pytest.mark.parametrize("positives", [False, True])
def test_vectors_are_learnt_by_contrast(positives: bool, tmp_path: Path) -> None:
    more: dict[str, Any] = {"target": {"kind": "contrast", "projected": positives}, "model": {"dropout": 0.1}}
    if positives:
        more["source"] = {"column": [1, 2, 3]}
    made = settings(tmp_path, ENCODER, data=sentences(tmp_path, positives), **more, training={"steps": 20})
    system = regard.train(made)
    tested = system.test()
    again = regard.load(system.folder, device="cpu")
    a, b = "red cat sun", "cat red moon"
    x, y, z = again.sentence_embeddings([a, b, "dog"])
    np.testing.assert_allclose(x, system.sentence_embeddings([a])[0], atol=1e-5)
    cosine = float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert float(again.generate([f"{a}\t{b}"])[0]) == pytest.approx(cosine, abs=1e-4)
    assert z.shape == (32,)
    gold = [float(example.target) for example in tested.examples]
    expected = 100 * pearson(ranks([float(text) for text in tested.outputs]), ranks(gold))
    assert tested.scores["spearman"].value == pytest.approx(expected, abs=1e-6)
    assert tested.scores["spearman"].value > 20
    assert tested.scores["spearman"].signature.startswith("percent|cosine|n:40")
    # in use the dense layer is left out, unless it is kept (Gao et al. 2021)
    first = again.token_embeddings([a])[0][0]
    assert np.allclose(first, x, atol=1e-5) != positives
    with pytest.raises(DataError, match="has no probability"):
        again.score([f"{a}\t{b}"], ["1"])


def test_a_sentence_alone_in_its_batch_has_no_loss_and_is_refused(tmp_path: Path) -> None:
    more: dict[str, Any] = {"target": {"kind": "contrast"}, "training": {"steps": 2, "batch_tokens": 8}}
    made = settings(tmp_path, ENCODER, data=sentences(tmp_path, False), **more)
    with pytest.raises(ConfigError, match=r"alone in its batch of 8 tokens.* raise training.batch_tokens, to"):
        regard.train(made)
    (tmp_path / "one.txt").write_text("alone\n")
    made = settings(tmp_path, ENCODER, data={**sentences(tmp_path, False), "train": str(tmp_path / "one.txt")}, **more)
    with pytest.raises(DataError, match="there is one sentence to train on"):
        regard.train(made)


def test_training_data_are_sentences_and_others_are_pairs_with_a_number(tmp_path: Path) -> None:
    files = sentences(tmp_path, False)
    sides = sides_of("text", "contrast", data=files)
    first = next(iter(read_examples(sides.config.data, "train", sides.form)))
    assert first.target == ""
    assert len(first.source.split()) == 5
    pair = next(iter(read_files(files["valid"], sides.judged_form)))
    assert " <sep> " in pair.source
    assert float(pair.target) >= 0
    (tmp_path / "x.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "score": "high"}\n')
    with pytest.raises(DataError, match=r"x.jsonl:1 cannot be used: how alike they are should be a number"):
        list(read_files(str(tmp_path / "x.jsonl"), sides.judged_form))
    target = Contrast(ContrastSettings())
    with pytest.raises(DataError, match="has 1 texts, of which none may be empty; what is read is a pair of sentences"):
        target.parts(sides.source, "alone", [])
    with pytest.raises(ConfigError, match=r"target\.pooling first is for encoders"):
        regard.Config.parse({"target": {"kind": "contrast", "pooling": "first"}, "model": DECODER})
