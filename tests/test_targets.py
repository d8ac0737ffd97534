"""Labels, tags and numbers: what is predicted by a head, how it is learnt, decoded and scored; bodies that are kept
while the head is changed, frozen or not."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.config import merge
from regard.data.batch import IGNORED, Batch
from regard.data.examples import Example, read_files
from regard.data.layouts import Predicted
from regard.data.marks import BOS, EOS, SEP
from regard.data.modalities.text import Text
from regard.data.synthetic import scenes
from regard.data.target import Scoring
from regard.data.targets.label import Label, LabelSettings
from regard.data.targets.number import Number, NumberSettings
from regard.data.targets.tags import Tags, TagsSettings
from regard.data.targets.text import TextTarget, TextTargetSettings
from regard.data.tokenizers.symbols import Symbols
from regard.display import class_table, show
from regard.errors import ConfigError, DataError, ModelError
from regard.evaluation.labels import class_scores, label_scores, number_scores, pearson, ranks, spans
from regard.model_settings import ModelSettings
from regard.models.build import build
from regard.models.model import EncoderWithHead
from regard.ragged import Ragged
from regard.registry import TARGETS
from regard.tasks.predicting import HeadPrediction
from regard.training.checkpoint import WEIGHTS, checkpoints, load_tensors
from regard.training.objectives import make_objective
from regard.training_settings import ObjectiveSettings
from tests.conftest import FULL
from tests.toy import sides_of

GOOD, BAD = ["good", "great", "fine"], ["bad", "dull", "poor"]
OTHERS = ["the", "a", "film", "story", "was", "very", "and", "quite", "it", "this"]
BLOCKS = {"kind": "transformer", "layers": 2, "heads": 2, "d_ff": 32}
ENCODER: dict[str, Any] = {"encoder": BLOCKS, "decoder": {"kind": "none"}}
DECODER: dict[str, Any] = {"encoder": {"kind": "none"}, "decoder": BLOCKS}
BODIES = {
    "transformer": ENCODER,
    "lstm": {"encoder": {"kind": "lstm"}, "decoder": {"kind": "none"}},
    "gru-one-way": {"encoder": {"kind": "gru", "bidirectional": False}, "decoder": {"kind": "none"}},
    "transformer-alone": DECODER,
    "lstm-alone": {"encoder": {"kind": "none"}, "decoder": {"kind": "lstm"}},
}
Rows = list[tuple[str, str]]


def sentences(count: int, seed: int) -> list[tuple[list[str], bool]]:
    """Words of which one is good or bad, and which."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        words = [draw.choice(OTHERS) for _ in range(draw.randint(4, 9))]
        well = draw.random() < 0.5
        words[draw.randrange(len(words))] = draw.choice(GOOD if well else BAD)
        found.append((words, well))
    return found


def label_rows(count: int, seed: int) -> Rows:
    return [(" ".join(words), "well done" if well else "not so") for words, well in sentences(count, seed)]


def tag_rows(count: int, seed: int) -> Rows:
    kinds = {**dict.fromkeys(GOOD, "B-GOOD"), **dict.fromkeys(BAD, "B-BAD")}
    return [(" ".join(words), " ".join(kinds.get(x, "O") for x in words)) for words, _ in sentences(count, seed)]


def number_rows(count: int, seed: int) -> Rows:
    return [(" ".join(words), f"{1000 + 50 * well + sum(x == 'very' for x in words)}")
            for words, well in sentences(count, seed)]  # fmt: skip


def pair_rows(count: int, seed: int) -> Rows:
    both = zip(sentences(count, seed), sentences(count, seed + 1), strict=True)
    return [(f"{' '.join(a)}\t{' '.join(b)}", "same" if x == y else "other") for (a, x), (b, y) in both]


MAKERS: dict[str, Callable[[int, int], Rows]] = {
    "label": label_rows, "tags": tag_rows, "number": number_rows, "pairs": pair_rows
}  # fmt: skip


def write(folder: Path, kind: str, train: int = 400) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for seed, (split, count) in enumerate({"train": train, "valid": 60, "test": 60}.items()):
        rows = MAKERS[kind](count, 10 * seed + 1)
        files[split] = str(folder / f"{kind}-{split}.tsv")
        Path(files[split]).write_text("".join(f"{x}\t{y}\n" for x, y in rows))
    return files


def config(folder: Path, kind: str, body: dict[str, Any] = ENCODER, **more: Any) -> regard.Config:
    pairs = kind == "pairs"
    settings = {
        "run": str(folder / f"run-{kind}"),
        "data": write(folder, kind),
        "source": {"column": [1, 2]} if pairs else {},
        "target": {"kind": "label", "column": 3} if pairs else {"kind": kind},
        "tokens": {"kind": "word"},
        "model": {"d_model": 32, "dropout": 0.0, **body},
        "training": {"steps": 80, "batch_tokens": 400, "learning_rate": 3e-3, "warmup": 10, "validate_every": 40,
                     "save_every": 40, "log_every": 10, "tensorboard": False, "device": "cpu", "label_smoothing": 0.0},
    }  # fmt: skip
    return regard.Config.parse(merge(settings, more))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> regard.System:
    return regard.train(config(tmp_path_factory.mktemp("labelled"), "label"))


# What is predicted, by its equation


def reader(head: str, body: dict[str, Any], outputs: int = 3, dropout: float = 0.0) -> EncoderWithHead:
    torch.manual_seed(0)
    settings = ModelSettings.model_validate({"d_model": 16, "dropout": dropout, **body})
    outputs = 1 if head == "number" else outputs
    model = build(settings, 20, outputs, longest=32, target=TARGETS.settings(head)()).double()
    assert isinstance(model, EncoderWithHead)
    return model


def texts(*lengths: int) -> Ragged:
    draw = np.random.default_rng(1)
    return Ragged.of([draw.integers(6, 20, n) for n in lengths], before=[BOS], after=[EOS])


def whole(model: EncoderWithHead, source: Ragged, row: int) -> Tensor:
    """The vector that stands for a row, as the paper of its body says."""
    one = Ragged.of([source.tolist()[row]])
    if model.causal:
        assert model.decoder is not None
        return model.decoder(one, None).values[-1]
    assert model.encoder is not None
    memory = model.encoder(one)
    return memory.states.values[0] if model.transform is not None else memory.end[0]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("head", ["label", "number"])
def test_of_the_whole_one_vector_predicts(head: str, body: str) -> None:
    model, source = reader(head, BODIES[body]).eval(), texts(5, 1, 9)
    found = model(source, Ragged.of([[0]] * 3)).values
    for row in range(3):
        h = whole(model, source, row)
        if body == "transformer":  # Devlin et al. 2019: the first vector, by way of a dense layer
            assert model.transform is not None
            h = torch.tanh(model.transform.weight @ h + model.transform.bias)
        expected = model.head.linear.weight @ h + model.head.linear.bias
        torch.testing.assert_close(found[row], expected, rtol=1e-9, atol=1e-12)
    assert found.shape == (3, 1 if head == "number" else 3)


@pytest.mark.parametrize("body", BODIES)
def test_of_a_word_the_vector_at_its_place_predicts(body: str) -> None:
    model, source = reader("tags", BODIES[body]).eval(), texts(5, 1, 9)
    places = Ragged.of([[1, 4], [1], [2, 3, 9]])
    found = model(source, places).values
    states = model.encode(source).states
    index = 0
    for row, some in enumerate(places.tolist()):
        for place in some:
            h = states.values[int(states.offsets[row]) + place]
            expected = model.head.linear.weight @ h + model.head.linear.bias
            torch.testing.assert_close(found[index], expected, rtol=1e-9, atol=1e-12)
            index += 1
    assert index == len(found)


def test_a_decoder_that_reads_predicts_a_word_from_what_it_has_read() -> None:
    model = reader("tags", DECODER).eval()
    short, long = Ragged.of([[BOS, 7, 8]]), Ragged.of([[BOS, 7, 8, 9, 10]])
    a, b = (model(x, Ragged.of([[1, 2]])).values for x in (short, long))
    torch.testing.assert_close(a, b)
    both = reader("tags", ENCODER).eval()
    a, b = (both(x, Ragged.of([[1, 2]])).values for x in (short, long))
    assert not torch.allclose(a, b)


@torch.no_grad()
def test_the_loss_of_a_label_of_a_number_and_of_the_language_model_beside_it() -> None:
    model, source = reader("label", DECODER), texts(5, 3)
    inputs, outputs = Ragged.of([[0], [0]]), Ragged.of([[2], [0]])
    batch, labels = Batch(source, inputs, outputs), Label(LabelSettings())
    plain = make_objective(model, ObjectiveSettings(), 0.0, (BOS,), target=labels)(batch, 0.0)
    logits = model(source, inputs).values
    expected = -logits.log_softmax(-1)[[0, 1], [2, 0]].sum()
    torch.testing.assert_close(plain, expected.float(), rtol=1e-5, atol=1e-6)
    # Radford et al. 2018, eq. 5: L + λ L_lm, each a mean
    both = make_objective(model, ObjectiveSettings(language=0.5), 0.0, (BOS,), target=labels)(batch, 0.0)
    assert model.decoder is not None
    table: Tensor = model.decoder.embedding.table.weight  # type: ignore[union-attr, assignment]
    losses = []
    for row in source.tolist():
        states = model.decoder(Ragged.of([row]), None).values
        log_p = (states @ table.T).log_softmax(-1)
        losses += [-float(log_p[i, token]) for i, token in enumerate(row[1:])]
    assert float(both) == pytest.approx(float(expected) + 2 * 0.5 * math.fsum(losses) / len(losses), rel=1e-5)
    number = reader("number", DECODER)
    right = Ragged.from_lengths(torch.tensor([0.5, -1.0]), [1, 1])
    error = number(source, inputs).values.squeeze(1) - right.values
    objective = make_objective(number, ObjectiveSettings(), 0.0, (BOS,), target=Number(NumberSettings()))
    found = objective(Batch(source, inputs, right), 0.0)
    assert float(found) == pytest.approx(0.5 * float((error**2).sum()), rel=1e-5)


@pytest.mark.parametrize("kind", [Label, Tags])
def test_a_label_that_was_never_met_costs_nothing_and_is_predicted_by_nobody(kind: type[Label]) -> None:
    target = kind(kind.Settings())
    target.labels = ["a", "b"]
    right = target.pack(target.encode_many(["a", "never", "b"]))
    assert right.values.tolist() == [0, IGNORED, 1]
    found = right.like(torch.tensor([[2.0, 1.0], [5.0, 0.0], [0.0, 3.0]]))
    log_p = found.values.log_softmax(-1)
    assert float(target.loss(found, right, 0.0)) == pytest.approx(-float(log_p[0, 0] + log_p[2, 1]))
    smooth = -float(0.8 * log_p[0, 0] + 0.2 * log_p[0].mean() + 0.8 * log_p[2, 1] + 0.2 * log_p[2].mean())
    assert float(target.loss(found, right, 0.2)) == pytest.approx(smooth)
    assert target.hits(found, right) == 2.0
    assert target.log_probs(found.values, [0, 2, 1])[1] == -math.inf
    assert target.decode([0, 2]) == "a <unk>"
    assert target.unseen(["a", "never", "b"]) == ["never"]


def test_predictions_are_the_likeliest_first_and_of_words_one() -> None:
    found = torch.tensor([[1.0, 3.0, 2.0]])
    labels, tags, number = Label(LabelSettings()), Tags(TagsSettings()), Number(NumberSettings())
    labels.labels = tags.labels = ["x", "y", "z"]
    log_p = found.log_softmax(-1)[0].tolist()
    assert [x.values for x in labels.predictions(found, 5)] == [[1], [2], [0]]
    assert [x.log_prob for x in labels.predictions(found, 2)] == pytest.approx([log_p[1], log_p[2]])
    (answer,) = tags.predictions(torch.tensor([[1.0, 3.0, 2.0], [4.0, 0.0, 0.0]]), 5)
    assert answer.values == [1, 0]
    second = torch.tensor([4.0, 0.0, 0.0]).log_softmax(-1)[0].item()
    assert answer.log_prob == pytest.approx(log_p[1] + second)
    number.mean, number.spread = 10.0, 4.0
    (answer,) = number.predictions(torch.tensor([[0.5]]), 5)
    assert number.decode(answer.values) == "12"
    assert number.hits(Ragged.from_lengths(found, [1]), Ragged.from_lengths(found, [1])) is None
    assert number.log_probs(torch.tensor([[0.5]]), [0.25]) == pytest.approx(
        [-0.5 * 0.25**2 - 0.5 * math.log(2 * math.pi)]
    )


# Training


@pytest.mark.parametrize(("kind", "steps"), [("tags", 80), ("number", 120), *([("pairs", 400)] if FULL else [])])
def test_heads_learn(tmp_path: Path, kind: str, steps: int) -> None:
    system = regard.train(config(tmp_path, kind, training={"steps": steps, "validate_every": steps}))
    scores = system.test().scores
    if kind == "number":
        assert scores["pearson"].value > 0.95
        assert scores["rmse"].value < 15
    else:
        assert scores["accuracy"].value > 95
    if kind == "tags":
        assert scores["span_f1"].value > 90


@pytest.mark.parametrize("body", ["lstm", "transformer-alone", "lstm-alone"])
def test_any_body_learns(tmp_path: Path, body: str) -> None:
    system = regard.train(config(tmp_path, "label", BODIES[body], training={"steps": 120, "validate_every": 120}))
    assert system.test().scores["accuracy"].value > 90


def test_an_image_gets_a_label(tmp_path: Path) -> None:
    scenes.write(tmp_path, train=24, valid=8, test=8)
    for split in ("train", "valid", "test"):
        records = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()]
        rows = [{"source": x["source"], "target": "big" if " big " in x["target"] else "small"} for x in records]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "valid")}
    settings = {
        "run": str(tmp_path / "run"), "data": files, "source": "image", "target": "label",
        "model": {"d_model": 16, "encoder": {"kind": "stem", "stem": {"kind": "convolution", "channels": 4}},
                  "decoder": "none"},
        "training": {"steps": 3, "batch_tokens": 512, "tensorboard": False, "device": "cpu"},
    }  # fmt: skip
    system = regard.train(regard.Config.parse(settings))
    picture = str(tmp_path / records[0]["source"])
    assert regard.load(tmp_path / "run", device="cpu").generate([picture]) == system.generate([picture])
    assert system.generate([picture])[0] in ("big", "small")


def test_a_loaded_model_predicts_the_same_and_its_labels_have_scores(labelled: regard.System) -> None:
    again = regard.load(labelled.folder, device="cpu")
    given = ["the film was good", "dull", "it was very poor and this"]
    outputs = again.outputs(given, nbest=2)
    assert [x.text for row in outputs for x in row] == [x.text for row in labelled.outputs(given, nbest=2) for x in row]
    assert [row[0].text for row in outputs] == ["well done", "not so", "not so"]
    for text, row in zip(given, outputs, strict=True):
        assert sum(math.exp(x.log_prob) for x in row) == pytest.approx(1.0, abs=1e-5)
        assert again.score([text], [row[1].text])[0].log_prob == pytest.approx(row[1].log_prob, abs=1e-5)
        alone = again.outputs([text])[0][0]
        assert alone.log_prob == pytest.approx(row[0].log_prob, abs=1e-5)  # whatever stands beside it
    assert again.score(["a film"], ["never seen"])[0].log_prob == -math.inf


def test_what_a_head_attends_to_can_be_shown(labelled: regard.System, tmp_path: Path) -> None:
    found = labelled.explain("the film was good")
    share = math.exp(labelled.outputs(["the film was good"])[0][0].log_prob)
    assert found.places == [-1]
    assert found.notes() == [f"predicted: well done {share:.0%}"]
    assert found.source == ["<s>", "the", "film", "was", "good", "</s>"]
    assert found.target == ["well done"]
    assert found.log_probs == [pytest.approx(labelled.outputs(["the film was good"])[0][0].log_prob, abs=1e-5)]
    assert [layer.weights.shape for layer in found.layers] == [(2, 6, 6)] * 2
    found.save(tmp_path / "attention.png")
    assert (tmp_path / "attention.png").stat().st_size > 1000


def test_embeddings_of_a_text_and_of_its_tokens(labelled: regard.System) -> None:
    short, long = labelled.token_embeddings(["the film", "the film was good"])
    assert short.shape == (4, 32)
    assert long.shape == (6, 32)
    np.testing.assert_allclose(labelled.sentence_embeddings(["the film"])[0], short.mean(0), atol=1e-5)
    assert np.abs(short[1] - long[1]).max() > 1e-3  # the same word in other company


def test_the_command_line_predicts_too(labelled: regard.System, tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("the film was good\n\nso very dull\n")
    run = CliRunner().invoke(app, ["generate", str(labelled.folder), str(tmp_path / "input.txt"), "--device", "cpu"])
    assert run.stdout.splitlines() == ["well done", "", "not so"]
    assert "input.txt:2 is empty" in run.stderr
    report = tmp_path / "report.json"
    run = CliRunner().invoke(app, ["evaluate", str(labelled.folder), "--device", "cpu", "--report", str(report)])
    assert "accuracy" in run.stdout
    assert "macro F1" in run.stdout
    classes = json.loads(report.read_text())["classes"]
    assert list(classes) == ["not so", "well done"]
    assert sum(x["support"] for x in classes.values()) == 60
    lines = [line.split() for line in run.stdout.splitlines()]
    assert ["label", "precision", "recall", "F1", "support"] in lines
    for label, row in classes.items():
        shares = [f"{row[name]:.2f}" for name in ("precision", "recall", "f1")]
        assert [*label.split(), *shares, str(row["support"])] in lines
    for to in ("onnx", "ctranslate2"):
        run = CliRunner().invoke(app, ["export", str(labelled.folder), "--to", to, "-o", str(tmp_path / to)])
        assert run.exit_code != 0
        assert not (tmp_path / to).exists()


def test_what_a_decoder_reads_is_shown_as_what_it_reads(tmp_path: Path) -> None:
    system = regard.train(config(tmp_path, "label", DECODER, training={"steps": 2, "validate_every": 2}))
    found = system.explain("the film")
    assert found.inputs == found.source == ["<s>", "the", "film", "</s>"]
    assert found.target[0] in ("well done", "not so")
    assert [layer.kind for layer in found.layers] == ["decoder", "decoder"]
    assert all(np.triu(head, 1).max() == 0 for layer in found.layers for head in layer.weights)


@pytest.mark.parametrize("body", [ENCODER, DECODER], ids=["encoder", "decoder"])
@pytest.mark.parametrize("kind", ["tags", "number"])
def test_explain_shows_what_is_predicted_of_a_text(tmp_path: Path, kind: str, body: dict[str, Any]) -> None:
    system = regard.train(config(tmp_path, kind, body, training={"steps": 2, "validate_every": 2}))
    text = "the film was good"
    found, predicted = system.explain(text), system.outputs([text])[0][0]
    assert found.source == ["<s>", "the", "film", "was", "good", "</s>"]
    assert found.inputs == (found.source if body is DECODER else [])
    found.save(tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    if kind == "tags":
        assert found.target == predicted.text.split()
        assert found.predicted == dict(enumerate(found.target, 1))  # each beside its word
        assert sum(found.log_probs) == pytest.approx(predicted.log_prob, abs=1e-5)
        assert f">good → {found.target[3]}<" in drawn
        assert system.explain(text, "O O O B-BAD").target == ["O", "O", "O", "B-BAD"]
    else:
        assert found.target == [predicted.text]
        assert found.log_probs == []  # a number has no probability
        assert found.notes() == [f"predicted: {predicted.text}"]
        assert f">predicted: {predicted.text}<" in drawn
        with pytest.raises(ConfigError, match="a number that is predicted has no probability"):
            system.explain(text, "3")


def test_a_source_that_cannot_be_read_leaves_the_others_their_labels(tmp_path: Path) -> None:
    scenes.write(tmp_path, train=8, valid=4, test=4)
    for split in ("train", "valid"):
        records = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()]
        rows = [{"source": x["source"], "target": "ab"[i % 2]} for i, x in enumerate(records)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "run": str(tmp_path / "run"),
        "data": {x: str(tmp_path / f"{x}.jsonl") for x in ("train", "valid")},
        "source": "image", "target": "label",
        "model": {"d_model": 16, "encoder": {"kind": "stem", "stem": {"kind": "convolution", "channels": 4}},
                  "decoder": "none"},
        "training": {"steps": 2, "batch_tokens": 512, "tensorboard": False, "device": "cpu"},
    }  # fmt: skip
    system = regard.train(regard.Config.parse(settings))
    good, gone, broken = str(tmp_path / rows[0]["source"]), tmp_path / "gone.png", tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    heard: list[tuple[int, str]] = []
    found = system.generate([str(gone), good, str(broken), good], on_problem=lambda i, what: heard.append((i, what)))
    assert found == ["", *system.generate([good]), "", *system.generate([good])]
    assert [i for i, _ in heard] == [0, 2]
    assert f"cannot be used: no picture {gone}" in heard[0][1]
    assert f"{broken} cannot be read as a picture" in heard[1][1]
    (tmp_path / "some.jsonl").write_text(
        "".join(json.dumps({"source": x, "target": y}) + "\n" for x, y in ((str(gone), "a"), (good, "a"), (good, "")))
    )
    said: list[str] = []
    result = system.evaluate(str(tmp_path / "some.jsonl"), warn=said.append)
    assert result.outputs == system.generate([good])
    assert [example.source for example in result.examples] == [good]
    assert [line.partition(" ")[0] for line in said] == [f"{tmp_path}/some.jsonl:{i}" for i in (1, 3)]
    assert "no picture" in said[0]
    assert said[1].endswith("has an empty target; left out")


def test_labels_that_a_model_does_not_know_are_told_when_it_is_evaluated(tmp_path: Path) -> None:
    system = regard.train(config(tmp_path, "label", training={"steps": 2, "validate_every": 2}))
    assert isinstance(system.task.target, Label)
    known = system.task.target.labels

    def told(*labels: str) -> list[str]:
        (tmp_path / "x.tsv").write_text("".join(f"the film\t{label}\n" for label in labels))
        said: list[str] = []
        scores = system.evaluate(tmp_path / "x.tsv", warn=said.append).scores
        assert scores["accuracy"].value == 0 or set(labels) & set(known)
        return said

    names = f"the model knows {len(known)}: {', '.join(known)}"
    assert told(*known) == []
    assert told("new", known[0], "new") == [
        f"{tmp_path}/x.tsv has 1 label that training never saw: new; their examples count as wrong, and {names}"
    ]
    assert told("1", "0") == [
        f"{tmp_path}/x.tsv has no label that training saw, so that no example of it can be right: it has 0, 1, and "
        f"{names}; write labels as in the training data"
    ]


def test_lines_that_give_no_example_are_left_out_of_an_evaluation_or_stop_it(tmp_path: Path) -> None:
    system = regard.train(config(tmp_path, "label", training={"steps": 2, "validate_every": 2}))
    label = system.task.target.decode([0])
    path = tmp_path / "x.tsv"
    path.write_text(f"the film\t{label}\n" * 4 + "one column\n")
    said: list[str] = []
    assert len(system.evaluate(path, warn=said.append).outputs) == 4
    (what,) = said
    assert what.startswith(f"{path}: left out 1 of 5 lines: 1 malformed; data.bad_lines=error stops instead")
    with pytest.raises(DataError, match=r"x\.tsv:5 has 1 column"):  # lines of references go with those of the file
        system.evaluate(path, scoring=Scoring(references=[[label] * 5]))
    path.write_text(f"the film\t{label}\n" + "one column\n" * 4)
    with pytest.raises(DataError, match=r"4 of 5 lines cannot be used, more than data\.bad_limit"):
        system.evaluate(path, warn=said.append)
    settings = system.folder / "config.yaml"
    settings.write_text(settings.read_text().replace("bad_lines: skip", "bad_lines: error"))
    system = regard.load(system.folder, device="cpu")
    for line, message in (("one column", "x.tsv:2 has 1 column"), ("the film\t", "x.tsv:2 has an empty target")):
        path.write_text(f"the film\t{label}\n{line}\n")
        with pytest.raises(DataError, match=message):
            system.evaluate(path, warn=said.append)


def test_pairs_that_do_not_fit_are_named_by_score(tmp_path: Path) -> None:
    system = regard.train(config(tmp_path, "tags", training={"steps": 2, "validate_every": 2}))
    (tmp_path / "odd.tsv").write_text("the film\tO O\nthe film\tO\n")
    run = CliRunner().invoke(app, ["score", str(system.folder), str(tmp_path / "odd.tsv"), "--device", "cpu"])
    assert run.exit_code != 0
    assert "odd.tsv:2 has words and tags, but 2 and 1" in str(run.exception) + run.stderr


def test_a_body_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model folder .*nowhere"):
        regard.train(config(tmp_path, "label", start={"encoder": str(tmp_path / "nowhere")}))


# Keeping the body, changing the head


def pretrained(folder: Path, body: dict[str, Any]) -> Path:
    """A body of a masked language model, or a language model."""
    files = write(folder, "label")
    for split, file in files.items():
        rows = Path(file).read_text().splitlines()
        (folder / f"{split}.txt").write_text("".join(row.partition("\t")[0] + "\n" for row in rows))
    settings = {
        "run": str(folder / "body"), "tokens": {"kind": "word"},
        "data": {"train": str(folder / "train.txt"), "valid": str(folder / "valid.txt")}, "source": "none",
        "model": {"d_model": 32, "dropout": 0.0, **body},
        "training": {"steps": 10, "batch_tokens": 400, "warmup": 5, "tensorboard": False, "device": "cpu"},
    }  # fmt: skip
    regard.train(regard.Config.parse(settings))
    return folder / "body"


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_a_frozen_body_stays_as_it_was_and_thaws_when_told(tmp_path: Path, part: str) -> None:
    body = ENCODER if part == "encoder" else DECODER
    before = load_tensors(pretrained(tmp_path, body) / WEIGHTS)
    start = {"start": {part: str(tmp_path / "body")}}
    short = {"steps": 20, "validate_every": 20, "save_every": 10}
    for thaw, run in ((0, "never"), (12, "later")):
        more = {**start, "run": str(tmp_path / run), "training": {**short, "freeze": [part], "thaw": thaw}}
        regard.train(config(tmp_path, "label", body, **more))
        after = load_tensors(tmp_path / run / WEIGHTS)
        kept = [name for name in before if name.startswith(f"{part}.")]
        assert kept
        same = [torch.equal(before[name], after[name]) for name in kept if name in after]
        assert all(same) if thaw == 0 else not any(same)
    assert (tmp_path / "never" / "tokens.json").read_bytes() == (tmp_path / "body" / "tokens.json").read_bytes()


def test_a_run_that_thaws_goes_on_to_the_bit(tmp_path: Path) -> None:
    frozen = {"freeze": ["encoder.stem.embedding", "encoder.blocks.0"], "thaw": 7}
    short = {**frozen, "validate_every": 5, "save_every": 5, "schedule": "constant"}
    ends = []
    for run, cuts in (("whole", [20]), ("cut", [5, 15, 20])):
        for steps in cuts:
            more: dict[str, Any] = {
                "run": str(tmp_path / run),
                "training": {**short, "steps": steps},
            }
            regard.train(config(tmp_path, "label", **more))
        ends.append(load_tensors(checkpoints(tmp_path / run / "checkpoints")[-1] / WEIGHTS))
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_decoder_that_wrote_one_vocabulary_reads_it(tmp_path: Path) -> None:
    rows = [("A B C", "the film was good"), ("C A", "it was dull")] * 4
    for split in ("train", "valid"):
        (tmp_path / f"{split}.tsv").write_text("".join(f"{x}\t{y}\n" for x, y in rows))
    settings = {
        "run": str(tmp_path / "writer"), "source": {"tokens": {"kind": "word"}}, "target": {"tokens": {"kind": "word"}},
        "data": {split: str(tmp_path / f"{split}.tsv") for split in ("train", "valid")},
        "model": {"d_model": 32, "encoder": BLOCKS, "decoder": BLOCKS},
        "training": {"steps": 2, "batch_tokens": 200, "tensorboard": False, "device": "cpu"},
    }  # fmt: skip
    regard.train(regard.Config.parse(settings))
    more: dict[str, Any] = {"training": {"steps": 2, "validate_every": 2}}
    for part, body, known in (("decoder", DECODER, "film"), ("encoder", ENCODER, "A")):
        start = {"run": str(tmp_path / part), "start": {part: str(tmp_path / "writer")}}
        tokenizer = regard.train(config(tmp_path, "label", body, **start, **more)).task.source.tokenizer
        assert isinstance(tokenizer, Symbols)
        assert known in tokenizer.ids


def test_a_body_goes_from_head_to_head(labelled: regard.System, tmp_path: Path) -> None:
    start: dict[str, Any] = {
        "start": {"encoder": str(labelled.folder)},
        "training": {"steps": 40, "validate_every": 40},
    }
    system = regard.train(config(tmp_path, "tags", **start))
    assert system.test().scores["accuracy"].value > 90


# Data


def test_positions_of_words_are_their_first_pieces_or_their_last() -> None:
    tokenizer = Symbols("char", list(" abcd"))
    sides = sides_of("text", "tags")
    sides.use({"tokens": tokenizer})
    source, tags = sides.source, sides.target
    assert isinstance(source, Text)
    assert isinstance(tags, Tags)
    tags.labels = ["X", "Y"]
    item = source.encode_many(["ab c", "a\tb c"])
    assert tags.positions(source, item[0], last=False) == [1, 3]
    assert tags.positions(source, item[0], last=True) == [2, 4]
    assert source.words(item[1]) == [-1, 0, -1, 1, 2, 2, -1]
    batch = Predicted(source, tags)(item, [[0, 1], [1, 2, 0]], np.random.default_rng(0))
    assert batch.source.tolist()[1] == [BOS, tokenizer.ids["a"], SEP, *tokenizer.encode("b c"), EOS]
    assert batch.inputs.tolist() == [[1, 3], [1, 3, 4]]
    assert batch.outputs.tolist() == [[0, 1], [1, IGNORED, 0]]  # a label that was never met teaches nothing
    batch = Predicted(source, tags, last=True)(item, [[0, 1], [1, 2, 0]], np.random.default_rng(0))
    assert batch.inputs.tolist() == [[2, 4], [1, 3, 5]]
    assert tags.mismatch(source, "ab c", "X Y") is None
    assert tags.mismatch(source, "ab c", "X") == "has words and tags, but 2 and 1; each word needs one"
    assert Label(LabelSettings()).positions(source, item[0], last=True) == [0]


def read_pairs(path: Path, source: Any, target: Any) -> list[Example]:
    return list(read_files(str(path), sides_of({"column": source}, {"kind": "label", "column": target}).form))


def test_several_texts_make_a_source(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\tx\ttwo\n")
    (tmp_path / "a.jsonl").write_text('{"premise": "one", "hypothesis": "two", "label": "x"}\n')
    for name, columns in (("a.tsv", ([1, 3], 2)), ("a.jsonl", (["premise", "hypothesis"], "label"))):
        (found,) = read_pairs(tmp_path / name, *columns)
        assert (found.source, found.target) == ("one <sep> two", "x")
    (tmp_path / "glue.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tone\ttwo\tx\n")
    (found,) = read_pairs(tmp_path / "glue.tsv", ["sentence1", "sentence2"], "label")
    assert (found.source, found.target, found.place) == ("one <sep> two", "x", f"{tmp_path}/glue.tsv:2")
    with pytest.raises(DataError, match="names no column 'sentence'; it names: index, sentence1, sentence2, label"):
        read_pairs(tmp_path / "glue.tsv", "sentence", "label")
    with pytest.raises(DataError, match="no column 9 for the source"):
        read_pairs(tmp_path / "a.tsv", [1, 9], 2)


def test_labels_are_the_most_frequent_first(tmp_path: Path) -> None:
    labels = Label(LabelSettings())
    labels.learn([Example("", text) for text in ("b", "a", " b", "c c", "c  c")])
    assert labels.labels == ["b", "c c", "a"]
    assert labels.encode_many(["c c", " a ", "new"]) == [[1], [2], [3]]
    assert (labels.size, labels.dtype) == (3, "uint16")
    tags = Tags(TagsSettings())
    tags.learn([Example("", "O O B"), Example("", "B O")])
    assert tags.labels == ["O", "B"]
    assert tags.encode_many(["B O X"]) == [[1, 0, 2]]
    for target in (labels, tags):
        target.save(tmp_path)
        again = type(target)(type(target).Settings())
        again.load(tmp_path)
        assert again.labels == target.labels


def test_numbers_are_predicted_as_they_were_given(tmp_path: Path) -> None:
    numbers = Number(NumberSettings())
    numbers.learn([Example("", text) for text in ("10", "20", " 30 ")])
    assert numbers.mean == 20
    assert numbers.spread == pytest.approx(math.sqrt(200 / 3))
    assert numbers.decode(numbers.encode("12.5")) == "12.5"
    with pytest.raises(DataError, match=r"a target should be a number, but 'ten' is none; write it as 3, -0\.5 or"):
        numbers.encode("ten")
    numbers.save(tmp_path)
    again = Number(NumberSettings())
    again.load(tmp_path)
    assert (again.mean, again.spread) == (numbers.mean, numbers.spread)
    numbers.learn([Example("", "7"), Example("", "7")])
    assert (numbers.mean, numbers.spread) == (7.0, 1.0)  # all alike: nothing to divide by
    with pytest.raises(DataError, match="the training data hold no number"):
        numbers.learn([Example("", " ")])


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        ("tags", "the film\tO\n", r"train.tsv:401 has words and tags, but 2 and 1; each word needs one"),
        ("number", "the film\tten\n", r"train.tsv:401 has a target that is no number"),
    ],
)
def test_data_that_cannot_be_predicted_are_named(tmp_path: Path, kind: str, line: str, message: str) -> None:
    made = config(tmp_path, kind)
    assert isinstance(made.data.train, str)
    with Path(made.data.train).open("a") as file:
        file.write(line)
    strict = made.model_copy(update={"data": made.data.model_copy(update={"bad_lines": "error"})})
    with pytest.raises(DataError, match=message):
        regard.train(strict)


def test_one_label_is_none(tmp_path: Path) -> None:
    made = config(tmp_path, "label")
    assert isinstance(made.data.train, str)
    Path(made.data.train).write_text("a\tx\nb\tx\n")
    with pytest.raises(DataError, match="hold 1 label; at least 2 are needed"):
        regard.train(made)


def test_a_folder_without_labels_is_not_whole(labelled: regard.System, tmp_path: Path) -> None:
    labelled.save(tmp_path / "copy")
    assert regard.load(tmp_path / "copy", device="cpu").generate(["dull"]) == ["not so"]
    (tmp_path / "copy" / "labels.json").unlink()
    with pytest.raises(ModelError, match=r"has no labels\.json"):
        regard.load(tmp_path / "copy", device="cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "label"}, "target.kind 'label' stands on one body"),
        ({"target": "tags", "source": "image", "model": {"encoder": "stem", "decoder": "none"}},
         "target.kind 'tags' says something of each word, and source.kind 'image' has none; use label or number"),
        ({"target": "label", "model": ENCODER, "source": "none"},
         "target.kind 'label' says something of a source, but source.kind is none"),
        ({"target": "label", "model": ENCODER, "training": {"metric": "bleu"}},
         "'bleu' is not among the metrics of target.kind 'label' that a validation takes: accuracy, macro_f1, "),
        ({"target": "number", "model": ENCODER, "training": {"metric": "accuracy"}},
         "'accuracy' is not among the metrics of target.kind 'number' that a validation takes: pearson, spearman, "),
        ({"training": {"metric": "accuracy"}},
         "not among the metrics of target.kind 'text' that a validation takes: bleu, chrf, exact, loss"),
        ({"training": {"objective": {"language": 0.5}}}, "goes with another target.kind than text"),
        ({"target": "label", "model": ENCODER, "training": {"objective": {"language": 0.5}}}, "needs a decoder alone"),
        ({"target": "label", "model": ENCODER, "training": {"objective": {"agreement": 1.0}}}, "agreement is for what"),
        ({"target": "label", "model": ENCODER, "training": {"objective": {"kind": "minimum_risk"}}},
         "kind 'minimum_risk' is for what writes"),
    ],
)  # fmt: skip
def test_settings_that_clash_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        regard.Config.parse(settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("freeze", "thaw", "message"),
    [(["encodr"], 0, "no part 'encodr'; there are: encoder, transform, head and"),
     (["encoder", "transform", "head"], 0, "nothing would learn; leave one out"),
     (["encoder", "transform", "head"], 3, "nothing would learn in the first 3 updates; leave one out")],
)  # fmt: skip
def test_what_cannot_be_frozen_is_said(tmp_path: Path, freeze: list[str], thaw: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        regard.train(config(tmp_path, "label", training={"freeze": freeze, "thaw": thaw}))


def test_prefixes_do_not_go_with_labels(labelled: regard.System) -> None:
    assert isinstance(labelled.task, HeadPrediction)
    with pytest.raises(ConfigError, match="takes no prefixes"):
        labelled.generate(["a"], prefixes=["b"])


def test_a_head_needs_a_target_that_it_can_predict(labelled: regard.System) -> None:
    task = labelled.task
    assert isinstance(task, HeadPrediction)
    written = replace(task.sides, target=TextTarget(TextTargetSettings()))
    with pytest.raises(ConfigError, match=r"'text' is predicted by a head, so its class \(TextTarget\) has to derive"):
        replace(task, sides=written)


# Scores


def test_the_metrics_that_are_named_are_reported() -> None:
    """Of a usual one that means nothing for these outputs, nothing is said."""
    right, wrong = ["a b", "c"], ["a b", "d"]
    for metrics, expected in (
        (None, ["accuracy", "macro_f1"]), (["macro_f1", "span_f1", "exact"], ["macro_f1", "exact"]), ([], []),
    ):  # fmt: skip
        labels = Label(LabelSettings(metrics=metrics))
        assert list(labels.scores(wrong, right)) == expected
    for metrics, expected in ((None, ["bleu", "chrf", "ter", "exact"]), (["ter", "exact"], ["ter", "exact"]), ([], [])):
        text = TextTarget(TextTargetSettings(metrics=metrics))
        assert list(text.scores(wrong, right)) == expected
    assert text.scores(wrong, right) == {}
    assert TextTarget(TextTargetSettings(metrics=["exact"])).scores(["a  b", "d"], right)["exact"].value == 50.0
    number = Number(NumberSettings(metrics=["rmse"]))
    assert {name: score.value for name, score in number.scores(["1", "2"], ["1", "4"]).items()} == {
        "rmse": pytest.approx(math.sqrt(2))
    }


def test_spans() -> None:
    assert spans(["O", "B-A", "I-A", "O", "I-B", "B-B", "I-A"]) == {("A", 1, 2), ("B", 4, 4), ("B", 5, 5), ("A", 6, 6)}
    assert spans([]) == set()
    predicted, right = [["B-A", "I-A", "O"], ["O", "B-B"]], [["B-A", "I-A", "O"], ["B-B", "I-B"]]
    scores = label_scores(predicted, right, per="word")
    assert scores["accuracy"].value == pytest.approx(60.0)
    assert scores["span_f1"].value == pytest.approx(50.0)  # one of two predicted, one of two there


def test_mean_f1_counts_every_label_alike() -> None:
    predicted, right = [["a"], ["a"], ["a"], ["b"]], [["a"], ["a"], ["b"], ["b"]]
    assert label_scores(predicted, right, per="example")["macro_f1"].value == pytest.approx((80.0 + 200 / 3) / 2)


def draws(labels: list[str], seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """Rows of labels that are predicted and right, as often by chance as not."""
    draw = random.Random(seed)
    right = [[draw.choice(labels) for _ in range(draw.randint(1, 7))] for _ in range(draw.randint(1, 9))]
    # Some labels are only ever predicted, some only ever right.
    others = [*draw.sample(labels, draw.randint(1, len(labels))), "unheard of"]
    return [[x if draw.random() < 0.5 else draw.choice(others) for x in row] for row in right], right


@pytest.mark.parametrize("seed", range(20))
def test_scores_of_labels_are_those_of_scikit_learn(seed: int) -> None:
    from sklearn.metrics import accuracy_score, classification_report, f1_score

    predicted, right = draws(["a", "b", "c", "[d]", "e f"], seed)
    flat, true = ([label for row in rows for label in row] for rows in (predicted, right))
    scores, classes = label_scores(predicted, right, per="word"), class_scores(predicted, right)
    assert scores["accuracy"].value == pytest.approx(100 * accuracy_score(true, flat))
    assert scores["macro_f1"].value == pytest.approx(100 * f1_score(true, flat, average="macro", zero_division=0.0))
    report = classification_report(true, flat, output_dict=True, zero_division=0.0)
    assert [x.label for x in classes] == sorted({*flat, *true})
    for x in classes:
        theirs = report[x.label]
        assert [x.precision, x.recall, x.f1] == pytest.approx(
            [100 * theirs[name] for name in ("precision", "recall", "f1-score")]
        )
        assert x.support == theirs["support"]
        assert x.to_json()["f1"] == round(x.f1, 4)


@pytest.mark.parametrize("seed", range(20))
def test_f1_of_spans_is_that_of_seqeval(seed: int) -> None:
    from seqeval.metrics import f1_score

    predicted, right = ([["O" if x == "unheard of" else x for x in row] for row in rows]
                   for rows in draws(["O", "B-A", "I-A", "B-B", "I-B"], seed))  # fmt: skip
    right.append(["B-A"])  # there is at least one span
    predicted.append(["B-A"])
    assert label_scores(predicted, right, per="word")["span_f1"].value == pytest.approx(
        100 * f1_score(right, predicted)
    )


def test_a_table_of_labels_reads_none_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show(class_table(class_scores([["[red]"], ["b"]], [["[red]"], ["[red]"]])))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [["[red]", "100.00", "50.00", "66.67", "2"], ["b", "0.00", "0.00", "0.00", "0"]]


def test_correlations() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [2.5, 0.0, 2.5, 1.0]
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert pearson([1, 2, 3], [5, 5, 5]) == 0.0
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=50), draw.normal(size=50)
    assert pearson(a.tolist(), b.tolist()) == pytest.approx(float(np.corrcoef(a, b)[0, 1]))
    scores = number_scores([1.0, 8.0, 27.0], [1.0, 2.0, 3.0])
    assert scores["spearman"].value == pytest.approx(1.0)
    assert scores["rmse"].value == pytest.approx(math.sqrt((36 + 576) / 3))
