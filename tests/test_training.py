"""Training: it learns, it goes on exactly where it was cut off, it stops, averages, and keeps what is best."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.data.batches import Position
from regard.errors import DataError, ModelError, OutputError, TrainingError
from regard.runs import Stopped
from regard.settings import Training
from regard.training.checkpoint import average, checkpoints, load_tensors, save_tensors
from regard.training.losses import cross_entropy
from regard.training.objectives import make_objective
from regard.training.optim import learning_rate, make_optimizer
from regard.training.trainer import Trainer, Update, Watcher
from tests.toy import toy_config, toy_settings, write_corpus

ENCODER_DECODERS = {
    "attentive": {},
    "transformer": {
        "encoder": {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 64},
        "decoder": {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 64},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_corpus(tmp_path)
    return tmp_path


class StopAt(Watcher):
    """Asks the process to stop, as Ctrl-C does, after some update."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.messages: list[str] = []

    def update(self, update: Update) -> None:
        if update.step == self.step:
            os.kill(os.getpid(), signal.SIGINT)

    def message(self, text: str) -> None:
        self.messages.append(text)


def final(folder: Path) -> dict[str, Tensor]:
    return load_tensors(checkpoints(folder / "run" / "checkpoints")[-1] / "model.safetensors")


@pytest.mark.parametrize("name", ENCODER_DECODERS)
@pytest.mark.parametrize("tokens", [{"kind": "word"}, {"kind": "bpe", "size": 320, "sampling": 0.1}])
def test_a_cut_run_goes_on_exactly(folder: Path, name: str, tokens: dict[str, Any]) -> None:
    """Weights, optimiser, schedule, data position and dropout's randomness: the last weights are the same bits."""
    training = {"steps": 30, "validate_every": 15, "save_every": 10, "accumulate": 2}
    config = toy_config(folder, model=ENCODER_DECODERS[name], tokens=tokens, training=training)
    regard.train(config)
    whole, log = final(folder), (folder / "run" / "log.jsonl").read_text()
    shutil.rmtree(folder / "run")
    for step in (7, 18):  # neither is where checkpoints are due
        with pytest.raises(Stopped):
            regard.train(config, StopAt(step))
    watcher = StopAt(0)
    regard.train(config, watcher)
    assert "going on from update 18" in watcher.messages
    cut = final(folder)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert steps_and_losses((folder / "run" / "log.jsonl").read_text()) == steps_and_losses(log)


def steps_and_losses(log: str) -> list[tuple[int, float | None]]:
    """Where a run was cut, the mean loss since the last record covers fewer updates: compare what validation says."""
    records = [json.loads(line) for line in log.splitlines()]
    return [(record["step"], record.get("valid_loss")) for record in records]


def test_a_killed_run_goes_on(folder: Path) -> None:
    """SIGKILL, at whatever moment: what is on disk is whole, and the same command ends as if nothing had been."""
    path = folder / "config.json"  # JSON is YAML
    path.write_text(json.dumps(toy_settings(training={"steps": 60, "save_every": 5, "validate_every": 30})))
    command = [sys.executable, "-m", "regard", "train", str(path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=env)
    until = time.monotonic() + 60
    while not checkpoints(folder / "run" / "checkpoints") and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert subprocess.run(command, capture_output=True, check=True, env=env)
    cut = final(folder)
    shutil.rmtree(folder / "run")
    subprocess.run(command, capture_output=True, check=True, env=env)
    whole = final(folder)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_it_learns_and_saves_what_it_learnt(folder: Path, name: str) -> None:
    system = regard.train(toy_config(folder, model=ENCODER_DECODERS[name], training={"steps": 600}))
    assert system.generate(["alpha beta gamma"]) == ["GAMMA BETA ALPHA"]
    loaded = regard.load(folder / "run", device="cpu")
    sources = ["alpha beta", "eta theta zeta alpha"]
    assert loaded.outputs(sources, nbest=2, beam=3) == system.outputs(sources, nbest=2, beam=3)
    moved = folder / "elsewhere"
    shutil.move(folder / "run", moved)
    assert regard.load(moved, device="cpu").generate(sources) == system.generate(sources)


def test_more_steps_and_finished_runs(folder: Path) -> None:
    regard.train(toy_config(folder, training={"steps": 20}))
    before = final(folder)
    watcher = StopAt(-1)
    regard.train(toy_config(folder, training={"steps": 20}), watcher)
    assert all(torch.equal(before[name], tensor) for name, tensor in final(folder).items())
    regard.train(toy_config(folder, training={"steps": 30}), watcher)
    assert checkpoints(folder / "run" / "checkpoints")[-1].name == "00000030"


def test_early_stopping_and_best(folder: Path) -> None:
    """A rate far too high after a few updates makes validation worse, and the best model is what is kept."""
    settings = {
        "steps": 500,
        "validate_every": 10,
        "patience": 2,
        "metric": "loss",
        "learning_rate": 3.0,
        "warmup": 400,
    }
    watcher = StopAt(-1)
    system = regard.train(toy_config(folder, training=settings), watcher)
    assert any("stopping early" in message for message in watcher.messages)
    records = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    losses = {record["step"]: record["valid_loss"] for record in records if "valid_loss" in record}
    scores = json.loads((folder / "run" / "scores.json").read_text())
    assert len(losses) < 50
    assert losses[scores["step"]] == min(losses.values()) < list(losses.values())[-1]
    assert system.task.validate(valid_examples(folder), 20)["loss"] == pytest.approx(min(losses.values()), rel=1e-4)


def valid_examples(folder: Path) -> list[Any]:
    from regard.data.corpora import read_pairs

    return list(read_pairs(str(folder / "valid.tsv")))


def test_checkpoints_are_pruned_and_averaged(folder: Path) -> None:
    watcher = StopAt(-1)
    regard.train(toy_config(folder, training={"steps": 100, "keep_last": 3, "average": 3}), watcher)
    found = checkpoints(folder / "run" / "checkpoints")
    assert [path.name for path in found] == ["00000050", "00000075", "00000100"]
    assert any("mean of the latest 3 checkpoints" in message for message in watcher.messages)
    files = [path / "model.safetensors" for path in found]
    mean, parts = average(files), [load_tensors(file) for file in files]
    for name in mean:
        torch.testing.assert_close(mean[name], (parts[0][name] + parts[1][name] + parts[2][name]) / 3)


def test_bfloat16_trains(folder: Path) -> None:
    system = regard.train(toy_config(folder, training={"steps": 200, "precision": "bfloat16", "learning_rate": 0.02}))
    assert next(system.task.model.parameters()).dtype == torch.float32
    assert system.task.validate(valid_examples(folder), 20)["loss"] < 1.0


def test_tensorboard_events_are_written(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    regard.train(toy_config(folder, training={"steps": 10, "tensorboard": True}))
    assert list((folder / "run" / "tensorboard").glob("events.*"))


def test_a_loss_that_is_no_number_stops_training(folder: Path) -> None:
    wild = {"learning_rate": 1e30, "warmup": 0, "clip": 0.0, "weight_decay": 0.0}
    with pytest.raises(TrainingError, match=r"the loss is .* at update 10; lower training\.learning_rate"):
        regard.train(toy_config(folder, model=ENCODER_DECODERS["transformer"], training=wild))


def test_a_run_is_not_overwritten(folder: Path) -> None:
    regard.train(toy_config(folder, training={"steps": 5}))
    with pytest.raises(OutputError, match=r"other settings \(model\.d_model\); give another run=FOLDER"):
        regard.train(toy_config(folder, model={"d_model": 16}))
    (folder / "full").mkdir()
    (folder / "full" / "thesis.txt").write_text("precious")
    with pytest.raises(OutputError, match="is not empty and holds no run"):
        regard.train(toy_config(folder, run="full"))


def test_bad_lines_are_told(folder: Path) -> None:
    with (folder / "train.tsv").open("a") as file:
        file.write("\tX\nalpha\t\n")
    with (folder / "valid.tsv").open("a") as file:
        file.write("\tX\n")
    watcher = StopAt(-1)
    regard.train(toy_config(folder, training={"steps": 2}), watcher)
    assert any("left out 2 of 1202 examples" in m and "train.tsv:1201" in m for m in watcher.messages)
    assert any("valid.tsv:61 has an empty source: left out" in m for m in watcher.messages)
    with pytest.raises(DataError, match=r"train\.tsv:1201 has an empty source"):
        regard.train(toy_config(folder, run="other", data={"bad_lines": "error"}))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 0.5, 0.0]),
        ("cosine", [0.5, 1.0, 0.5, 0.0]),
        ("inverse_sqrt", [0.5, 1.0, (10 / 55) ** 0.5, 0.1**0.5]),
    ],
)
def test_schedules(schedule: Any, rates: list[float]) -> None:
    settings = Training(learning_rate=1.0, warmup=10, steps=100, schedule=schedule)
    assert [learning_rate(step, settings) for step in (5, 10, 55, 100)] == pytest.approx(rates)


def test_decay_spares_biases_norms_and_embeddings() -> None:
    model = nn.ModuleDict({"e": nn.Embedding(3, 4), "n": nn.LayerNorm(4), "l": nn.Linear(4, 4)})
    groups = make_optimizer(model, Training(weight_decay=0.5), torch.device("cpu")).param_groups
    assert [len(group["params"]) for group in groups] == [1, 4]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]


def test_accumulation_is_one_large_batch(folder: Path) -> None:
    """Two batches to an update give the gradient of both as one: the loss is a mean over all their tokens."""
    config = toy_config(folder, model={"dropout": 0.0}, training={"steps": 1, "accumulate": 2, "label_smoothing": 0.0})
    task = regard.train(config).task
    pair = [
        (task.batch(sources, targets), Position())
        for sources, targets in (([[6, 7]], [[8]]), ([[6], [7, 8, 9]], [[6, 7, 8], [9]]))
    ]
    total = torch.zeros(())
    for batch, _ in pair:
        total = total + cross_entropy(task.model(batch.source, batch.inputs).values, batch.outputs.values)
    (total / sum(batch.tokens for batch, _ in pair)).backward()
    norm = nn.utils.clip_grad_norm_(task.model.parameters(), float("inf"))
    task.model.zero_grad()
    unused: Any = None
    objective = make_objective(task.model, config.training.objective, 0.0, task.first)
    trainer = Trainer(task.model, objective, unused, config.training, folder, task.device, unused, "bleu", Watcher())
    loss, tokens, accumulated, _ = trainer._update(iter(pair))
    assert tokens == 2 + 4 + 2
    torch.testing.assert_close((loss, accumulated), (total.detach(), norm))


def test_weights_that_do_not_fit(folder: Path) -> None:
    system = regard.train(toy_config(folder, training={"steps": 2}))
    path = folder / "run" / "model.safetensors"
    good = load_tensors(path)
    save_tensors(path, {**good, "extra": torch.zeros(1)})
    with pytest.raises(ModelError, match="has extra, which the model does not"):
        regard.load(folder / "run")
    first = next(iter(good))
    save_tensors(path, {name: tensor for name, tensor in good.items() if name != first})
    with pytest.raises(ModelError, match=f"lacks {first}"):
        regard.load(folder / "run")
    save_tensors(path, {**good, first: torch.zeros(1, 1)})
    with pytest.raises(ModelError, match=r"is \(1, 1\), expected"):
        regard.load(folder / "run")
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ModelError, match="cannot be read"):
        regard.load(folder / "run")
    path.unlink()
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        regard.load(folder / "run")
    assert system.parameters() == sum(tensor.numel() for tensor in good.values())
