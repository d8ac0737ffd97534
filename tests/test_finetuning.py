"""Fine-tuning: low-rank adapters, rates by part and by layer, gradual unfreezing, and what is forgotten meanwhile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import regard
from regard.artifacts import read_json
from regard.cli import app
from regard.config import merge
from regard.errors import ConfigError, ModelError
from regard.model_settings import ModelSettings
from regard.models.build import build
from regard.models.decoding import for_decoding
from regard.models.recurrent import RecurrentDecoder
from regard.nn.linear import Linear
from regard.nn.lora import Adapted, merge_adapters
from regard.ragged import Ragged
from regard.training.checkpoint import OPTIMIZER, WEIGHTS, checkpoints, load_tensors, weights
from regard.training.lora import ADAPTER, Adapters, adaptable
from regard.training.parts import Pace, depths, paces
from regard.training.update import make_optimizer
from regard.training.watcher import Watcher
from regard.training_settings import LoraSettings, Training
from tests import equations as eq
from tests.conftest import whole
from tests.toy import toy_settings, write_corpus

BLOCKS = {"kind": "transformer", "layers": 2, "heads": 2, "d_ff": 24}
TRANSFORMER: dict[str, Any] = {"d_model": 16, "dropout": 0.1, "encoder": BLOCKS, "decoder": BLOCKS}
ATTENTIVE: dict[str, Any] = {
    "d_model": 16, "dropout": 0.0, "encoder": {"kind": "lstm", "layers": 2},
    "decoder": {"kind": "lstm", "layers": 2, "score": "bilinear", "place": "feeding"},
}  # fmt: skip


def small(settings: dict[str, Any], vocabulary: int = 20) -> nn.Module:
    torch.manual_seed(0)
    return build(ModelSettings.model_validate(settings), vocabulary, vocabulary, longest=16)


def texts(*lengths: int) -> Ragged:
    draw = np.random.default_rng(1)
    return Ragged.of([draw.integers(6, 20, length) for length in lengths])


def stirred(model: nn.Module) -> None:
    """Give every adapter a `B` other than zero, as if it had learnt."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, Adapted):
            nn.init.normal_(module.up, std=0.3)


# Adapters, by their equation


def test_an_adapter_is_its_equation_for_each_of_the_matrices_in_one() -> None:
    torch.manual_seed(0)
    base = Linear(6, 9, heights=[4, 3, 2]).double()
    layer = Adapted(base, rank=2, alpha=5.0, dropout=0.0)
    x = torch.randn(7, 6, dtype=torch.float64)
    assert torch.equal(layer(x), base(x))  # B is zero at first
    stirred(layer)
    w = {name: tensor.detach().numpy() for name, tensor in layer.named_parameters()}
    parts = [(slice(0, 4), slice(0, 2)), (slice(4, 7), slice(2, 4)), (slice(7, 9), slice(4, 6))]
    expected = np.concatenate(
        [eq.lora(x.numpy(), w["weight"][rows], w["bias"][rows], w["down"][low], w["up"][rows], 5.0)
         for rows, low in parts], axis=-1,
    )  # fmt: skip
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(layer.part(x, 4, 9).detach().numpy(), expected[:, 4:], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(layer.plain()(x).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_dropout_is_on_what_the_adapter_reads_alone() -> None:
    torch.manual_seed(0)
    layer = Adapted(nn.Linear(200, 3), rank=200, alpha=200.0, dropout=0.5)
    with torch.no_grad():
        layer.weight.zero_()
        layer.down.copy_(torch.eye(200))
        layer.up.fill_(1.0)
    x = torch.ones(1, 200)
    found = (layer(x) - layer.bias)[0].tolist()
    assert found[0] == found[1] == found[2]
    assert found[0] % 2 == 0
    assert 120 < found[0] < 280
    assert (layer.eval()(x) - layer.bias)[0].tolist() == pytest.approx([200.0] * 3)


@pytest.mark.parametrize("settings", [TRANSFORMER, ATTENTIVE], ids=["transformer", "recurrent"])
def test_merged_adapters_compute_what_they_did(settings: dict[str, Any]) -> None:
    model = small(settings).double().eval()
    source, target = texts(5, 3, 1), texts(4, 2, 6)
    before = model(source, target).values
    base = {name: tensor.clone() for name, tensor in weights(model).items()}
    adapters = Adapters(model, LoraSettings(rank=3, parts=["*attention*", "*feed_forward*", "*join"]))
    assert torch.equal(model(source, target).values, before)
    stirred(model)
    adapted = model(source, target).values
    assert not torch.allclose(adapted, before)
    merged = adapters.merged()
    assert merged.keys() == base.keys()
    with torch.no_grad():
        torch.testing.assert_close(for_decoding(model.float(), "float32")(source, target).values.double(), adapted,
                                   rtol=1e-4, atol=1e-4)  # fmt: skip
        model.double()
    adapters.merge()
    assert {type(module) for module in model.modules()}.isdisjoint({Adapted})
    torch.testing.assert_close(model(source, target).values, adapted, rtol=1e-6, atol=1e-6)


def test_a_loop_with_deferred_gradients_takes_adapters() -> None:
    model = small(ATTENTIVE).double()
    assert isinstance(model.decoder, RecurrentDecoder)
    assert model.decoder.loops
    source, target = texts(5, 3), texts(4, 2)
    adapters = Adapters(model, LoraSettings(rank=2, parts=["decoder.*"]))
    stirred(model)
    model(source, target).values.square().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert found
    assert all(grad is not None for grad in found.values())
    assert all(weight.grad is None for weight in adapters.base.values())
    name = next(name for name in found if name.endswith("join.up"))
    parameter = model.get_parameter(name)
    losses = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            parameter[1, 1] += step
            losses.append(float(model(source, target).values.square().sum()))
            parameter[1, 1] -= step
    grad = found[name]
    assert grad is not None
    assert float(grad[1, 1]) == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-5)


def test_layers_that_are_shared_have_one_adapter_and_tied_ones_none() -> None:
    model = small({**TRANSFORMER, "share_layers": True, "share_embeddings": True})
    layers = adaptable(model)
    assert not any(name.startswith("head") for name in layers)
    assert not any("self_attention" in name for name in layers)  # one matrix, and a layer for it on each side
    twice = nn.ModuleList([nn.Linear(4, 4)] * 2)
    Adapters(twice, LoraSettings(parts=["*"]))
    assert isinstance(twice[0], Adapted)
    assert twice[0] is twice[1]
    merge_adapters(twice)
    assert twice[0] is twice[1]
    assert type(twice[0]) is Linear


# Rates and unfreezing


def test_paces_follow_parts_and_layers() -> None:
    model = small(TRANSFORMER)
    settings = Training(
        rates={"encoder": 0.1, "encoder.blocks.1": 0.5}, layer_decay=0.5, unfreeze_every=100,
        freeze=["decoder.blocks.1"], thaw=40,
    )  # fmt: skip
    found = {name: paces(model, settings)[weight] for name, weight in model.named_parameters()}
    assert found["encoder.blocks.1.feed_forward.inner.weight"] == Pace(0.5, 0)
    assert found["encoder.blocks.0.feed_forward.inner.weight"] == Pace(0.1 * 0.5, 100)
    assert found["encoder.stem.embedding.table.weight"] == Pace(0.1 * 0.25, 200)
    assert found["decoder.blocks.1.self_attention.inputs.weight"] == Pace(1.0, 40)
    assert found["decoder.blocks.0.self_attention.inputs.weight"] == Pace(0.5, 100)
    assert found["head.linear.bias"] == Pace(1.0, 0)


def test_depths_of_a_recurrent_model_count_both_directions() -> None:
    model = small(ATTENTIVE)
    own, found = dict(model.named_parameters()), depths(model)
    shown = {name: found.get(weight, 0) for name, weight in own.items() if "weight_ih" in name or "table" in name}
    assert shown == {
        "encoder.stem.embedding.table.weight": 2, "encoder.forwards.0.layers.0.weight_ih_l0": 1,
        "encoder.forwards.1.layers.0.weight_ih_l0": 0, "encoder.backwards.0.layers.0.weight_ih_l0": 1,
        "encoder.backwards.1.layers.0.weight_ih_l0": 0, "decoder.embedding.table.weight": 2,
        "decoder.recurrence.layers.0.weight_ih_l0": 1, "decoder.recurrence.layers.1.weight_ih_l0": 0,
    }  # fmt: skip


def test_a_step_of_the_optimiser_is_as_long_as_the_rate_of_its_layer() -> None:
    """Adam's first step is the rate, whatever the gradient: so rates by layer can be read off the weights."""
    model = small(TRANSFORMER)
    settings = Training(learning_rate=0.01, weight_decay=0.0, layer_decay=0.5, rates={"decoder": 0.1})
    before = {name: tensor.clone() for name, tensor in weights(model).items()}
    optimizer = make_optimizer(model, settings, torch.device("cpu"))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    moved = {name: float((before[name] - tensor).abs().mean()) for name, tensor in weights(model).items()}
    assert moved["encoder.blocks.1.feed_forward.outer.weight"] == pytest.approx(0.01, rel=1e-3)
    assert moved["encoder.blocks.0.feed_forward.outer.weight"] == pytest.approx(0.005, rel=1e-3)
    assert moved["decoder.blocks.0.feed_forward.outer.weight"] == pytest.approx(0.0005, rel=1e-3)


# Runs


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, another of other words, and a model trained on the first."""
    folder = tmp_path_factory.mktemp("begun")
    write_corpus(folder, 400)
    (folder / "new").mkdir()
    for split in ("train", "valid"):
        lines = [line.split("\t") for line in (folder / f"{split}.tsv").read_text().splitlines()]
        new = [f"{x}\t{' '.join(reversed(y.split()))}\n" for x, y, _ in lines]
        (folder / "new" / f"{split}.tsv").write_text("".join(new))
    regard.train(
        tuned(folder, "base", {"start": {"model": None}, "data": {"train": "train.tsv", "valid": "valid.tsv"}})
    )
    return folder


def tuned(folder: Path, run: str, changes: dict[str, Any]) -> regard.Config:
    settings = toy_settings(
        preset="transformer-tiny", run=run, model={**TRANSFORMER, "d_model": 16},
        data={"train": "new/train.tsv", "valid": "new/valid.tsv", "test": None},
        training={"steps": 20, "validate_every": 10, "save_every": 10, "schedule": "constant", "log_every": 5},
        start={"model": "base"},
    )  # fmt: skip
    return regard.Config.parse(merge(settings, changes), folder)


class Notes(Watcher):
    """Keeps all messages; stops after some update."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


LORA = {"training": {"lora": {"rank": 2, "dropout": 0.2}}}


def test_a_run_with_adapters_leaves_a_plain_model_and_a_small_adapter(begun: Path) -> None:
    notes = Notes()
    system = regard.train(tuned(begun, "adapted", LORA), notes)
    base, found = load_tensors(begun / "base" / WEIGHTS), load_tensors(begun / "adapted" / WEIGHTS)
    assert found.keys() == base.keys()
    changed = {name for name in base if not torch.equal(base[name], found[name])}
    assert changed == {name for name in base if name.endswith(("attention.inputs.weight", "attention.output.weight"))}
    place = checkpoints(begun / "adapted" / "checkpoints")[-1]
    kept, states = load_tensors(place / WEIGHTS), load_tensors(place / OPTIMIZER)
    assert all(name.endswith((".up", ".down")) for name in kept)
    assert {name.partition("/")[0] for name in states} == kept.keys()
    assert load_tensors(begun / "adapted" / ADAPTER).keys() == kept.keys()
    count = sum(tensor.numel() for tensor in kept.values())
    assert any(f"{count:,} of " in text and "parameters learn" in text for text in notes.messages)
    assert all(parameter.requires_grad for parameter in system.model.parameters())
    again = regard.load(begun / "adapted", device="cpu")
    assert again.generate(["alpha beta"]) == system.generate(["alpha beta"])


def test_a_run_with_adapters_goes_on_to_the_bit(begun: Path) -> None:
    ends = []
    for run, cuts in (("lora-whole", [20]), ("lora-cut", [7, 20])):
        for steps in cuts:
            regard.train(tuned(begun, run, merge(LORA, {"training": {"steps": steps}})))
        ends.append(load_tensors(checkpoints(begun / run / "checkpoints")[-1] / WEIGHTS))
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_an_adapter_is_merged_into_its_own_base_alone(begun: Path, tmp_path: Path) -> None:
    regard.train(tuned(begun, "to-merge", LORA))
    command = ["merge", str(begun / "base"), str(begun / "to-merge"), "-o"]
    assert CliRunner().invoke(app, [*command, str(tmp_path / "merged")]).exit_code == 0
    merged, found = load_tensors(tmp_path / "merged" / WEIGHTS), load_tensors(begun / "to-merge" / WEIGHTS)
    assert all(torch.equal(merged[name], found[name]) for name in found)
    result = CliRunner().invoke(app, ["merge", *([str(begun / "to-merge")] * 2), "-o", str(tmp_path / "other")])
    assert isinstance(result.exception, ModelError)
    assert "belongs to another model" in str(result.exception)
    result = CliRunner().invoke(app, ["merge", *([str(begun / "base")] * 2), "-o", str(tmp_path / "other")])
    assert isinstance(result.exception, ModelError)
    assert "no adapter" in str(result.exception)
    bare = begun / "base" / WEIGHTS
    result = CliRunner().invoke(app, ["merge", str(begun / "base"), str(bare), "-o", str(tmp_path / "other")])
    assert isinstance(result.exception, ModelError)
    assert "holds no adapter" in str(result.exception)
    result = CliRunner().invoke(app, ["average", str(begun / "to-merge"), "-o", str(tmp_path / "other")])
    assert isinstance(result.exception, ConfigError)
    assert "mean of adapters is no adapter" in str(result.exception)


@whole
def test_bfloat16_and_unfreezing_go_with_adapters(begun: Path) -> None:
    more = {"training": {"precision": "bfloat16", "unfreeze_every": 8, "layer_decay": 0.5, "lora": {"also": ["head"]}}}
    regard.train(tuned(begun, "half", merge(LORA, more)))
    place = checkpoints(begun / "half" / "checkpoints")[-1]
    assert "head.linear.bias" in load_tensors(place / WEIGHTS)


def test_gradual_unfreezing_goes_from_the_top_down_and_on_to_the_bit(begun: Path) -> None:
    base, gradual = load_tensors(begun / "base" / WEIGHTS), {"unfreeze_every": 6, "layer_decay": 0.4, "save_every": 5}
    ends = []
    for run, cuts in (("gradual-whole", [5, 10, 15]), ("gradual-cut", [15])):
        for steps in cuts:
            regard.train(tuned(begun, run, {"training": {**gradual, "steps": steps}}))
        places = checkpoints(begun / run / "checkpoints")
        ends.append([load_tensors(place / WEIGHTS) for place in places])
        moved = [{name for name in base if not torch.equal(base[name], found[name])} for found in ends[-1]]
        parts = ("blocks.1", "blocks.0", "embedding.table")
        learnt = [{part for part in parts if any(f".{part}." in name for name in names)} for names in moved]
        assert learnt == [{"blocks.1"}, {"blocks.1", "blocks.0"}, {"blocks.1", "blocks.0", "embedding.table"}]
    assert all(torch.equal(ends[0][-1][name], ends[1][-1][name]) for name in base)


def test_what_is_forgotten_is_seen(begun: Path) -> None:
    notes = Notes()
    more = {"data": {"watch": {"old": "valid.tsv"}}, "training": {"learning_rate": 0.01}}
    regard.train(tuned(begun, "watched", more), notes)
    lines = [json.loads(line) for line in (begun / "watched" / "log.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["step"] == 0)
    known = regard.load(begun / "base", device="cpu").task
    assert first["valid_bleu/old"] == pytest.approx(read_json(begun / "base" / "scores.json")["valid"]["bleu"])
    scores = read_json(begun / "watched" / "scores.json")
    assert scores["before"]["loss/old"] == pytest.approx(first["valid_loss/old"])
    assert {"loss/old", "bleu/old", "loss", "bleu"} <= scores["valid"].keys()
    said = next(text for text in notes.messages if text.startswith("loss/old: "))
    assert "before" in said
    assert "now (" in said
    assert known.config.data.watch == {}
    again = Notes()
    regard.train(tuned(begun, "watched", merge(more, {"data": {"watch": {"more": "valid.tsv"}}})), again)  # finished


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": {"model": None}, **LORA}, "training.lora adapts trained weights, and [start] names none"),
        ({"training": {"rates": {"encoder": 0}}}, "name encoder in freeze"),
        ({"training": {"rates": {"encoder": -1}}}, "give a factor above 0"),
        ({"data": {"watch": {"old/": "valid.tsv"}}}, "write it in letters, digits"),
        ({"training": {"layer_decay": 1.5}}, "layer_decay"),
    ],
)  # fmt: skip
def test_settings_that_clash_are_refused(begun: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        tuned(begun, "refused", changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"rates": {"encodr": 0.5}}}, "training.rates: this model has no part 'encodr'"),
        ({"training": {"lora": {"parts": ["*atention*"]}}}, r"fits no linear layer of this model; there are: "),
        ({"training": {"lora": {"also": ["haed"]}}}, "training.lora.also: this model has no part 'haed'"),
        ({"training": {"lora": {"also": ["encoder"]}}}, "has an adapter and learns in full"),
        ({"start": {"model": None, "encoder": "base"}, "training": {"lora": {"parts": ["encoder.*"]}}},
         r"begins anew, for \[start\] has none, and would never learn; name its part in training.lora.also: \[decoder"),
    ],
)  # fmt: skip
def test_parts_that_are_not_there_are_named(begun: Path, changes: dict[str, Any], message: str) -> None:
    shutil.rmtree(begun / "unfit", ignore_errors=True)
    with pytest.raises(ConfigError, match=message):
        regard.train(tuned(begun, "unfit", changes))
