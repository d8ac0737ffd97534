"""Pretraining on plain text, end to end: masked spans, denoising, replaced tokens, and what begins from them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.config import merge, parse, resolve_paths
from regard.data.batch import Batch
from regard.errors import ConfigError
from regard.model_settings import ModelSettings
from regard.models.build import build
from regard.models.electra import ReplacedTokenModel, draw_tokens
from regard.ragged import Ragged
from regard.runs import Stopped
from regard.tasks.denoising import Denoising
from regard.tasks.replaced import ReplacedTokenDetection
from regard.tasks.results import Encoded
from regard.training.checkpoint import checkpoints, load_tensors
from regard.training.objectives import ReplacedTokens, make_objective
from regard.training_settings import ObjectiveSettings
from tests.conftest import FULL, redrawn
from tests.equations import sigmoid
from tests.test_cli import good, refused
from tests.test_training import StopAt

LINES = """\
the cat sat on the mat and slept all day .
a small dog ran over the hill to the sea .
my old friend reads long books in the garden !
do you know where the red train goes at night ?
we saw seven white birds above the quiet lake .
she never drinks cold tea without some sugar .
their blue boat left the harbour before dawn !
nobody heard the heavy rain fall on our roof .
"""
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 64}
BOTH = {"encoder": TRANSFORMER, "decoder": TRANSFORMER, "share_embeddings": True}
ALONE = {"encoder": TRANSFORMER, "decoder": {"kind": "none"}}
MODELS: dict[str, dict[str, Any]] = {
    "spans": {"model": ALONE, "training": {"steps": 80, "objective": {"masking": "spans", "masked": 0.3}}},
    "bart": {"model": BOTH, "training": {"objective": {"kind": "denoising", "permute": True}}},
    "t5": {
        "model": BOTH,
        "tokens": {"sentinels": 8},
        "training": {"steps": 80, "objective": {"kind": "span_corruption", "corrupted": 0.3}},
    },
    "electra": {"model": {**ALONE, "generator": 0.5}, "training": {"steps": 130, "objective": {"masked": 0.3}}},
}
EACH = pytest.mark.parametrize("name", MODELS)


def settings(name: str, **changes: Any) -> dict[str, Any]:
    base = {
        "run": name,
        "data": {"train": "text.txt", "valid": "text.txt", "test": "text.txt"},
        "source": {"kind": "none"},
        "tokens": {"kind": "word"},
        "model": {"d_model": 32, "dropout": 0.0},
        "training": {
            "steps": 150, "batch_tokens": 120, "learning_rate": 0.01, "warmup": 10, "schedule": "linear",
            "validate_every": 1000, "save_every": 1000, "label_smoothing": 0.0, "tensorboard": False, "device": "cpu",
        },
        "search": {"max_length": 20, "beam": 2},
    }  # fmt: skip
    return merge(merge(base, MODELS.get(name, {})), changes)


def config(folder: Path, name: str, **changes: Any) -> regard.Config:
    return resolve_paths(parse(settings(name, **changes)), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight sentences, and each model trained on them."""
    place = tmp_path_factory.mktemp("plain")
    (place / "text.txt").write_text(LINES)
    for name in MODELS:
        regard.train(config(place, name))
    return place


@EACH
def test_eight_sentences_are_learnt_and_scored(folder: Path, name: str) -> None:
    good("evaluate", folder / name, "--report", folder / f"{name}.json")
    scores = json.loads((folder / f"{name}.json").read_text())["scores"]
    assert scores["accuracy"]["score"] > {"spans": 20, "electra": 20, "t5": 60}.get(name, 85)
    if name == "electra":
        assert scores["detection_f1"]["score"] > 15
        assert scores["detection"]["signature"] == "percent|per:token|masked:0.3|seed:0"
    if name in ("bart", "t5"):
        kind = MODELS[name]["training"]["objective"]["kind"]
        assert scores["perplexity"]["score"] < (1.5 if name == "bart" else 3.5)
        assert f"noise:{kind}|seed:0" in scores["perplexity"]["signature"]
    if name == "spans":
        assert scores["accuracy"]["signature"] == "percent|masked:0.3 spans|seed:0"


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_missing_words_are_written(folder: Path, name: str) -> None:
    """One mask stands for any number of words."""
    system = regard.load(folder / name, device="cpu")
    assert isinstance(system.task, Denoising)
    asked = ["the cat sat <mask> and slept all day .", "nobody heard the <mask> fall <mask> our roof ."]
    found = system.generate(asked)
    if name == "bart":
        assert found[0] == "the cat sat on the mat and slept all day ."
        assert found[1] == "nobody heard the heavy rain fall on our roof ."
    assert found[0].startswith("the cat sat ")
    assert found[0].endswith(" and slept all day .")
    written = system.outputs(asked[:1])[0][0].tokens
    if name == "t5":
        assert [token for token in written if token in system.tokenizers["tokens"].marks.sentinels] == [6, 7]
    shown = system.explain(asked[0])
    assert shown.source[-1] == "</s>"
    assert shown.source[3] == ("<extra_id_0>" if name == "t5" else "<mask>")
    assert shown.best == "decoder.blocks.0.cross_attention"


def test_masks_are_filled_by_the_generator(folder: Path) -> None:
    system = regard.load(folder / "electra", device="cpu")
    assert isinstance(system.task, ReplacedTokenDetection)
    (found,) = system.generate(["the cat <mask> on the mat"])
    assert found.startswith("the cat ")
    assert len(found.split()) == 6
    assert [layer.name for layer in system.explain("the <mask> sat").layers] == [
        "generator.encoder.blocks.0.self_attention"
    ]
    embedded = system.sentence_embeddings(["the cat sat"])
    assert embedded.shape == (1, 32)  # of the discriminator, and as wide
    with torch.inference_mode():
        states = system.task.model.encoder(Ragged.of([[2, *system.task.target.encode("the cat sat"), 3]])).summary
    assert np.allclose(embedded, states.numpy(), atol=1e-6)


def test_what_a_denoising_model_cannot_do_is_told(folder: Path) -> None:
    system = regard.load(folder / "bart", device="cpu")
    with pytest.raises(ConfigError, match="has a probability for a text given what noise leaves of it"):
        system.score(["the cat sat"])
    problems: list[str] = []
    assert system.generate([""], on_problem=lambda number, what: problems.append(what)) == [""]
    assert problems == ["is empty"]
    t5 = regard.load(folder / "t5", device="cpu")
    t5.generate(["a <mask> " * 9], on_problem=lambda number, what: problems.append(what))
    assert problems[-1] == "cannot be used: it has more than 7 blanks, for which there are sentinels"
    for kind in ("onnx", "ctranslate2"):
        said = refused("export", folder / "bart", "-o", folder / kind, "--to", kind)
        assert "learnt to undo noise alone; export the model of a task that begins from it" in said


@pytest.mark.parametrize("name", MODELS if FULL else ["t5", "electra"])
def test_a_stopped_run_resumes_exactly(folder: Path, name: str, tmp_path: Path) -> None:
    """Noise is drawn from the batch's seed, and replaced tokens from torch's generator."""
    shutil.copy(folder / "text.txt", tmp_path)
    made = config(tmp_path, name, model={"dropout": 0.1}, training={"steps": 8, "validate_every": 4, "save_every": 3})

    def final() -> dict[str, Tensor]:
        return load_tensors(checkpoints(tmp_path / name / "checkpoints")[-1] / "model.safetensors")

    regard.train(made)
    whole = final()
    shutil.rmtree(tmp_path / name)
    with pytest.raises(Stopped):
        regard.train(made, StopAt(5))
    regard.train(made)
    assert all(torch.equal(whole[x], tensor) for x, tensor in final().items())


@EACH
def test_validation_has_the_same_noise_each_time(folder: Path, name: str) -> None:
    task = regard.load(folder / name, device="cpu").task
    targets = task.target.encode_many(LINES.splitlines())
    first = task.validate(Encoded([[]] * 8, targets, []))
    torch.manual_seed(5)
    assert task.validate(Encoded([[]] * 8, targets, [])) == first


def test_the_loss_of_denoising_is_that_of_its_pairs(folder: Path) -> None:
    """`-log p` of each token of the text, given what noise left of it."""
    system = regard.load(folder / "bart", device="cpu")
    task = system.task
    assert isinstance(task, Denoising)
    targets = task.target.encode_many(LINES.splitlines())
    total, count = 0.0, 0
    for group, batch in task.fixed(targets):
        for row, i in enumerate(group):
            (pair,) = task.score_items([batch.source.tolist()[row][:-1]], [targets[i]])
            total, count = total - pair.log_prob, count + len(targets[i]) + 1
    assert task.validate(Encoded([[]] * 8, targets, []))["loss"] == pytest.approx(total / count, rel=1e-5)


# What begins from them


def write_pairs(folder: Path) -> None:
    lines = LINES.splitlines()
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{' '.join(line.split()[::-1])}\n" for line in lines))
    (folder / "labels.tsv").write_text("".join(f"{line}\t{line[-1] == '.'}\n" for line in lines))


def begun(folder: Path, name: str, **changes: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of a run that began from another and hardly learnt, and those of the other, every name of them."""
    still = {"steps": 1, "learning_rate": 1e-12, "weight_decay": 0.0, "warmup": 0, "validate_sentences": 2}
    run = f"from-{name}-{'-'.join(changes['start'])}"
    system = regard.train(config(folder, "new", run=run, training=still, **changes))
    other = regard.load(folder / name, device="cpu")
    return tuple(  # type: ignore[return-value]
        dict(one.task.model.named_parameters(remove_duplicate=False)) for one in (system, other)
    )


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_a_translator_begins_from_a_denoising_model(folder: Path, name: str) -> None:
    write_pairs(folder)
    data = {"data": {"train": "pairs.tsv", "valid": "pairs.tsv", "test": None}, "source": {"kind": "text"}}
    own, other = begun(folder, name, start={"model": name}, target={"kind": "text"}, model=BOTH, **data)
    assert own.keys() == other.keys()
    assert all(torch.allclose(own[x], other[x], atol=1e-6) for x in own)
    if name == "t5":  # or with one of its parts
        alone = {"encoder": {"kind": "lstm"}, "decoder": TRANSFORMER}
        own, other = begun(folder, name, start={"decoder": name}, target={"kind": "text"}, model=alone, **data)
        same = [x for x in own if x.startswith("decoder.")]
        assert same
        assert all(torch.allclose(own[x], other[x], atol=1e-6) for x in same)


@pytest.mark.parametrize("name", ["electra", "spans", "bart"])
def test_a_head_begins_from_the_encoder(folder: Path, name: str) -> None:
    write_pairs(folder)
    own, other = begun(
        folder, name, start={"encoder": name}, source={"kind": "text"}, target={"kind": "label"}, model=ALONE,
        data={"train": "labels.tsv", "valid": "labels.tsv", "test": None},
    )  # fmt: skip
    shared = [x for x in other if x.startswith("encoder.")]
    assert shared
    assert all(torch.allclose(own[x], other[x], atol=1e-6) for x in shared)


# Replaced tokens


def electra(tie: bool = True) -> ReplacedTokenModel:
    part = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 12, "positions": "learned", "activation": "gelu"}
    made = ModelSettings.model_validate(
        {"d_model": 8, "generator": 0.5, "encoder": part, "decoder": {"kind": "none"}, "tie_output": tie}
    )
    model = redrawn(build(made, 0, 13, 9))
    assert isinstance(model, ReplacedTokenModel)
    return model


def asked() -> Batch:
    source = Ragged.of([[2, 7, 5, 9, 5, 3], [2, 5, 3], [2, 8, 8, 5, 3]])
    return Batch(source, Ragged.of([[2, 4], [1], [3]]), Ragged.of([[8, 12], [6], [11]]))


def log_softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))


def test_the_loss_is_that_of_clark_et_al() -> None:
    """`L_MLM + λ L_Disc`, from states of both encoders, a token at a time."""
    model, batch, weight = electra(), asked(), 7.0
    objective = make_objective(model, ObjectiveSettings(detection=weight), 0.0, None)
    assert isinstance(objective, ReplacedTokens)
    torch.manual_seed(3)
    loss = float(objective(batch, 0.0).detach()) / batch.tokens
    torch.manual_seed(3)
    drawn = draw_tokens(model(batch.source, batch.inputs).values).tolist()
    w = {name: x.detach().numpy() for name, x in model.named_parameters(remove_duplicate=False)}
    texts, places, right = batch.source.tolist(), batch.inputs.tolist(), batch.outputs.tolist()
    hidden = model.generator.encode(batch.source).states.padded().detach().numpy()
    generator, detector, count = 0.0, 0.0, 0
    odd = [[0.0] * len(text) for text in texts]
    for row, text in enumerate(texts):
        for place, token in zip(places[row], right[row], strict=True):
            x = w["generator.transform.weight"] @ hidden[row, place] + w["generator.transform.bias"]
            x = 0.5 * x * (1.0 + np.array([math.erf(a / math.sqrt(2)) for a in x]))
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w["generator.norm.weight"] + w["generator.norm.bias"]
            logits = w["generator.head.linear.weight"] @ x + w["generator.head.linear.bias"]
            generator -= log_softmax(logits)[token] / 4
            new = drawn.pop(0)
            text[place], odd[row][place] = new, float(new != token)
    states = model.encode(Ragged.of(texts)).states.padded().detach().numpy()
    for row, text in enumerate(texts):
        for place in range(len(text)):
            x = w["transform.weight"] @ states[row, place] + w["transform.bias"]
            x = 0.5 * x * (1.0 + np.array([math.erf(a / math.sqrt(2)) for a in x]))
            d = sigmoid(w["detector.weight"] @ x + w["detector.bias"])[0]
            detector -= math.log(d if odd[row][place] else 1.0 - d)
            count += 1
    assert count == 14
    assert loss == pytest.approx(generator + weight * detector / count, rel=1e-12)


def test_the_discriminator_teaches_the_generator_nothing_but_the_embedding() -> None:
    """No gradient goes through what is drawn."""
    found = {}
    for weight in (0.0, 50.0):
        model = electra()
        torch.manual_seed(3)
        make_objective(model, ObjectiveSettings(detection=weight), 0.0, None)(asked(), 0.0).backward()
        found[weight] = {name: x.grad for name, x in model.named_parameters()}
    for name, gradient in found[0.0].items():
        other = found[50.0][name]
        if name.startswith("generator.") and "embedding" not in name:
            assert gradient is not None
            assert torch.equal(gradient, other if other is not None else torch.empty(0)), name
    table = "encoder.stem.embedding.table.weight"
    assert not torch.equal(found[0.0][table], found[50.0][table])  # type: ignore[arg-type]


def test_generator_and_discriminator_share_the_embedding() -> None:
    model = electra()
    table = model.encoder.get_submodule("stem.embedding.table").weight
    assert model.head.linear.weight is table
    assert model.generator.get_submodule("encoder.stem.wide.embedding.table").weight is table
    assert model.generator.get_submodule("encoder.stem.linear").weight.shape == (4, 8)
    assert electra(tie=False).head.linear.weight is not table


def test_a_token_that_is_guessed_right_is_the_texts_own() -> None:
    model, batch = electra(), asked()
    right = model.replaced(batch.source, batch.inputs, batch.outputs.values)
    assert right.tolist() == [[2, 7, 8, 9, 12, 3], [2, 6, 3], [2, 8, 8, 11, 3]]
    assert model.detect(right).shape == (14,)
    with torch.no_grad():  # a generator that is always right leaves nothing to detect
        model.head.linear.bias[8] = 1e6
    one = Batch(batch.source, batch.inputs, Ragged.of([[8, 8], [8], [8]]))
    loss = make_objective(model, ObjectiveSettings(detection=1.0), 0.0, None)(one, 0.0)
    text = model.replaced(batch.source, batch.inputs, one.outputs.values)
    none = F.binary_cross_entropy_with_logits(model.detect(text), torch.zeros(14, dtype=torch.float64))
    assert float(loss.detach()) == pytest.approx(4 * float(none.detach()), rel=1e-12)


# What is refused

PLAIN = {"source": {"kind": "none"}}
WORD = {"kind": "word"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**PLAIN}, "or training.objective.kind denoising or span_corruption (both, over a text with noise in it)"),
        (
            {"training": {"objective": {"kind": "denoising"}}},
            "'denoising' makes the source from the text itself; set source.kind none, not text",
        ),
        (
            {**PLAIN, "model": {"encoder": {"kind": "none"}}, "training": {"objective": {"kind": "denoising"}}},
            "for an encoder and a decoder, but model.encoder.kind is none",
        ),
        (
            {**PLAIN, "model": ALONE, "training": {"objective": {"kind": "span_corruption"}}},
            "for an encoder and a decoder, but model.decoder.kind is none",
        ),
        (
            {**PLAIN, "training": {"objective": {"kind": "span_corruption"}}},
            "needs sentinels for what is missing, and tokens.sentinels is 0; set it to 100, as T5 has",
        ),
        (
            {**PLAIN, "training": {"objective": {"kind": "denoising", "corrupted": 0.1}}},
            "'corrupted'",
        ),
        ({**PLAIN, "training": {"objective": {"masking": "phrases"}}}, "'masking' in [training.objective]"),
        (
            {**PLAIN, "model": {"encoder": {"kind": "none"}, "generator": 0.25}},
            "generator is for an encoder alone that reads plain text; set decoder.kind none",
        ),
        (
            {"model": {**ALONE, "generator": 0.25, "ctc": False}},
            "model.generator reads plain text; set source.kind none, not text",
        ),
        (
            {"target": {"kind": "label"}, "model": {**ALONE, "generator": 0.25}},
            "model.generator is for plain text, but target.kind is 'label'; leave it out",
        ),
        (
            {**PLAIN, "model": {**ALONE, "d_model": 10, "encoder": {"kind": "lstm"}, "generator": 0.5}},
            "generator (0.5) leaves a generator of width 5: a bidirectional encoder needs an even d_model, not 5",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(settings)
    assert message in str(error.value)
