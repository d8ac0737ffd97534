"""Training: it learns, it resumes exactly where it was stopped, it stops, averages, and keeps what is best."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.config import parse, resolve_paths
from regard.data.lines import BadLine
from regard.errors import ConfigError, DataError, ModelError, OutputError, TrainingError
from regard.runs import Stopped, prepare
from regard.tasks.generating import TextGeneration
from regard.tasks.results import Encoded
from regard.tasks.task import Task
from regard.training.checkpoint import (
    Progress,
    average,
    checkpoints,
    load_checkpoint,
    load_tensors,
    save_checkpoint,
    save_tensors,
)
from regard.training.losses import cross_entropy
from regard.training.objectives import make_objective
from regard.training.update import Updater, learning_rate, make_optimizer
from regard.training.watcher import Update, Watcher
from regard.training_settings import Training
from tests.conftest import FULL, crossed, whole
from tests.toy import WORDS, toy_config, toy_pairs, toy_settings, write_corpus

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


@pytest.mark.parametrize(
    ("name", "tokens"), crossed([*ENCODER_DECODERS], [{"kind": "word"}, {"kind": "bpe", "size": 320, "sampling": 0.1}])
)
def test_a_stopped_run_resumes_exactly(folder: Path, name: str, tokens: dict[str, Any]) -> None:
    """Weights, optimiser, schedule, data position and dropout's randomness: the last weights are the same bits."""
    training = {"steps": 20, "validate_every": 10, "save_every": 6, "accumulate": 2}
    config = toy_config(folder, model=ENCODER_DECODERS[name], tokens=tokens, training=training)
    regard.train(config)
    whole, log = final(folder), (folder / "run" / "log.jsonl").read_text()
    shutil.rmtree(folder / "run")
    for step in (5, 14):  # neither is where checkpoints are due
        with pytest.raises(Stopped):
            regard.train(config, StopAt(step))
    watcher = StopAt(0)
    regard.train(config, watcher)
    assert "resuming from update 14" in watcher.messages
    cut = final(folder)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert records((folder / "run" / "log.jsonl").read_text()) == records(log)


def records(log: str) -> list[dict[str, Any]]:
    """All that a log says, apart from what a clock said."""
    timed = ("seconds", "tokens_per_second")
    return [{name: x for name, x in json.loads(line).items() if name not in timed} for line in log.splitlines()]


@pytest.mark.parametrize(("name", "steps"), {"attentive": 200, **({"transformer": 400} if FULL else {})}.items())
def test_it_learns_and_saves_what_it_learnt(folder: Path, name: str, steps: int) -> None:
    system = regard.train(toy_config(folder, model=ENCODER_DECODERS[name], training={"steps": steps}))
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
    validated = system.task.validate(valid_examples(folder, system.task))
    assert validated["loss"] == pytest.approx(min(losses.values()), rel=1e-4)


def test_of_models_that_score_alike_the_one_of_least_loss_is_kept(folder: Path) -> None:
    """BLEU counts up to four words, so that it is 0 of any outputs of one."""
    words = [word for _ in range(20) for word in WORDS]
    for split in ("train", "valid", "test"):
        (folder / f"{split}.tsv").write_text("".join(f"{word}\t{word.upper()}\n" for word in words))
    regard.train(toy_config(folder, training={"steps": 40, "validate_every": 10}))
    records = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    losses = {x["step"]: x["valid_loss"] for x in records if "valid_loss" in x}
    assert {x["valid_bleu"] for x in records if "valid_loss" in x} == {0.0}
    assert losses[10] > min(losses.values())
    assert json.loads((folder / "run" / "scores.json").read_text())["step"] == min(losses, key=losses.__getitem__)


def valid_examples(folder: Path, task: Task) -> Encoded:
    """All validation examples, of which 20 are decoded."""
    examples = toy_pairs(folder / "valid.tsv")
    sources = task.source.encode_many([x.source for x in examples])
    return Encoded(sources, task.target.encode_many([x.target for x in examples]), examples[:20])


def test_checkpoints_are_pruned_and_averaged(folder: Path) -> None:
    watcher = StopAt(-1)
    regard.train(toy_config(folder, training={"steps": 20, "save_every": 5, "keep_last": 3, "average": 3}), watcher)
    found = checkpoints(folder / "run" / "checkpoints")
    assert [path.name for path in found] == ["00000010", "00000015", "00000020"]
    assert any("mean of the latest 3 checkpoints" in message for message in watcher.messages)
    files = [path / "model.safetensors" for path in found]
    mean, parts = average(files), [load_tensors(file) for file in files]
    for name in mean:
        torch.testing.assert_close(mean[name], (parts[0][name] + parts[1][name] + parts[2][name]) / 3)


def test_a_stop_between_checkpoints_changes_nothing_that_is_averaged(folder: Path) -> None:
    config = toy_config(folder, training={"steps": 20, "save_every": 5, "keep_last": 3, "average": 3})
    regard.train(config)
    whole = load_tensors(folder / "run" / "model.safetensors")
    shutil.rmtree(folder / "run")
    with pytest.raises(Stopped):
        regard.train(config, StopAt(12))
    assert [path.name for path in checkpoints(folder / "run" / "checkpoints")][-1] == "00000012"
    regard.train(config)
    assert [path.name for path in checkpoints(folder / "run" / "checkpoints")] == ["00000010", "00000015", "00000020"]
    found = load_tensors(folder / "run" / "model.safetensors")
    assert all(torch.equal(whole[name], found[name]) for name in whole)


def test_a_copy_of_a_checkpoint_is_not_taken_for_one(folder: Path) -> None:
    training = {"save_every": 5, "keep_last": 1}
    regard.train(toy_config(folder, training={**training, "steps": 10}))
    place = folder / "run" / "checkpoints" / "00000010"
    shutil.copytree(place, place.with_name("00000010-mine"))
    watcher = StopAt(-1)
    regard.train(toy_config(folder, training={**training, "steps": 20}), watcher)
    assert "resuming from update 10" in watcher.messages
    assert {path.name for path in place.parent.iterdir()} == {"00000010-mine", "00000020"}


def test_checkpoints_of_a_run_that_begins_anew_are_not_older_than_damaged_ones(folder: Path) -> None:
    config = toy_config(folder, training={"steps": 20, "save_every": 5, "keep_last": 1})
    with pytest.raises(Stopped):
        regard.train(config, StopAt(15))
    place = folder / "run" / "checkpoints" / "00000015"
    (place / "optimizer.safetensors").write_bytes(b"")
    watcher = StopAt(7)
    with pytest.raises(Stopped):
        regard.train(config, watcher)
    assert "no checkpoint is whole: training begins anew" in watcher.messages
    watcher = StopAt(-1)
    regard.train(config, watcher)
    assert "resuming from update 7" in watcher.messages
    assert [path.name for path in checkpoints(place.parent)] == ["00000020"]


def test_a_run_that_patience_ended_stays_ended_where_the_mean_is_best(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([3.0, 4.0, 4.0, 2.0])
    monkeypatch.setattr(TextGeneration, "validate", lambda *given: {"loss": next(losses)})
    training = {
        "steps": 50, "validate_every": 5, "save_every": 5, "patience": 2, "average": 2, "metric": "loss",
    }  # fmt: skip
    regard.train(toy_config(folder, training=training))
    regard.train(toy_config(folder, training=training))
    assert [path.name for path in checkpoints(folder / "run" / "checkpoints")][-1] == "00000015"
    assert json.loads((folder / "run" / "scores.json").read_text())["valid"] == {"loss": 2.0}


def test_a_damaged_checkpoint_does_not_keep_a_run_from_its_end(folder: Path) -> None:
    training = {"steps": 15, "save_every": 5, "keep_last": 3, "average": 3}
    with pytest.raises(Stopped):
        regard.train(toy_config(folder, training=training), StopAt(12))
    (folder / "run" / "checkpoints" / "00000010" / "model.safetensors").write_bytes(b"")
    watcher = StopAt(-1)
    regard.train(toy_config(folder, training=training), watcher)
    assert any("00000010/model.safetensors" in x and "no mean of checkpoints" in x for x in watcher.messages)


@whole
def test_bfloat16_trains(folder: Path) -> None:
    system = regard.train(toy_config(folder, training={"steps": 100, "precision": "bfloat16", "learning_rate": 0.02}))
    assert next(system.task.model.parameters()).dtype == torch.float32
    assert system.task.validate(valid_examples(folder, system.task))["loss"] < 1.0


def test_tensorboard_events_are_written(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    regard.train(toy_config(folder, training={"steps": 10, "tensorboard": True}))
    assert list((folder / "run" / "tensorboard").glob("events.*"))


TRANSFORMER = ENCODER_DECODERS["transformer"]


def test_a_wild_rate_ends_with_a_clear_stop_and_saves_nothing_broken(folder: Path) -> None:
    wild = {"learning_rate": 1e30, "warmup": 0, "clip": 0.0, "weight_decay": 0.0, "save_every": 5}
    message = r"update 50: the last \d+ updates were not finite; lower training\.learning_rate \(1e\+30\)"
    with pytest.raises(TrainingError, match=message):
        regard.train(toy_config(folder, model=TRANSFORMER, training=wild))
    assert not (folder / "run" / "model.safetensors").exists()
    for place in checkpoints(folder / "run" / "checkpoints"):
        assert all(tensor.isfinite().all() for tensor in load_tensors(place / "model.safetensors").values())


class Breaking(Watcher):
    """Lets some updates go wrong, as a spike of the loss would: the gradients of these updates are infinite."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken: range) -> None:
        self.messages: list[str] = []
        self.step = 0
        clip = nn.utils.clip_grad_norm_

        def clipped(parameters: Any, most: float) -> Tensor:
            norm = clip(parameters, most)
            return norm * float("nan") if self.step + 1 in broken else norm

        monkeypatch.setattr(nn.utils, "clip_grad_norm_", clipped)

    def update(self, update: Update) -> None:
        self.step = update.step

    def message(self, text: str) -> None:
        self.messages.append(text)


def test_an_update_that_is_not_finite_is_skipped_and_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Breaking(monkeypatch, range(12, 14))
    seen: list[dict[str, Tensor]] = []
    make = Updater.__call__

    def watched(updater: Updater, *given: Any) -> Any:
        seen.append({name: x.detach().clone() for name, x in updater.model.named_parameters()})
        return make(updater, *given)

    monkeypatch.setattr(Updater, "__call__", watched)
    regard.train(toy_config(folder, training={"steps": 50, "log_every": 10}), watcher)
    assert [all(torch.equal(a[name], b[name]) for name in a) for a, b in pairwise(seen[9:16])] == [
        False, False, True, True, False, False,
    ]  # fmt: skip
    assert any("not finite in 2 updates, which were skipped (2 in all)" in text for text in watcher.messages)
    log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["skipped"] for line in log if "skipped" in line] == [0, 2, 2, 2, 2]
    assert all(torch.isfinite(torch.tensor(line["loss"])) for line in log if "loss" in line)


@whole
def test_many_in_a_row_go_back_to_a_checkpoint_and_then_stop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = {"steps": 70, "save_every": 30, "validate_every": 1000, "batch_tokens": 30}
    quick = {"d_model": 8, "encoder": {"kind": "rnn"}}
    watcher = Breaking(monkeypatch, range(35, 61))
    regard.train(toy_config(folder, model=quick, training=training), watcher)
    assert any("back to the weights of update 30, and on from here" in text for text in watcher.messages)
    places = [place.name for place in checkpoints(folder / "run" / "checkpoints")]
    assert "00000060" not in places, "that one would have been in the middle of it"
    watcher = Breaking(monkeypatch, range(35, 1000))
    with pytest.raises(TrainingError, match=r"update 200: .* after 3 returns to a checkpoint; lower training"):
        regard.train(toy_config(folder, run="other", model=quick, training={**training, "steps": 1000}), watcher)
    first, *later = (load_tensors(x / "model.safetensors") for x in checkpoints(folder / "other" / "checkpoints"))
    assert all(torch.equal(first[name], other[name]) for other in later for name in first)


@whole
def test_a_validation_that_is_no_number_is_never_best(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BLEU of a broken model is a number, 0, but its loss is not."""
    real, nan = TextGeneration.validate, iter([float("nan")])

    def validate(self: TextGeneration, *arguments: Any) -> dict[str, float]:
        scores = real(self, *arguments)
        return {**scores, "loss": next(nan, scores["loss"])}

    monkeypatch.setattr(TextGeneration, "validate", validate)
    regard.train(toy_config(folder, training={"steps": 60, "validate_every": 30}))
    assert json.loads((folder / "run" / "scores.json").read_text())["step"] == 60
    nan = iter([float("nan")] * 2)
    with pytest.raises(TrainingError, match="no validation gave a finite bleu, so there is no model to use"):
        regard.train(toy_config(folder, run="never", training={"steps": 60, "validate_every": 30}))
    assert not (folder / "never" / "model.safetensors").exists()


def test_more_patience_or_more_updates_resume_a_run_that_has_ended(folder: Path) -> None:
    """A rate of next to nothing gets no better, so patience runs out."""
    training = {"steps": 400, "validate_every": 10, "learning_rate": 1e-12, "patience": 2}
    regard.train(toy_config(folder, training=training))
    assert [path.name for path in checkpoints(folder / "run" / "checkpoints")][-1] == "00000030"
    watcher = StopAt(-1)
    regard.train(toy_config(folder, training={**training, "patience": 3}), watcher)
    assert "resuming with training.patience (2 before, 3 now)" in watcher.messages
    assert [path.name for path in checkpoints(folder / "run" / "checkpoints")][-1] == "00000040"
    regard.train(toy_config(folder, training={**training, "steps": 20}))  # fewer: it has ended, and stays as it is
    assert [path.name for path in checkpoints(folder / "run" / "checkpoints")][-1] == "00000040"


def test_what_stops_work_in_another_process_comes_back_from_there() -> None:
    stopped, bad = Stopped(Progress(), signal.SIGINT), BadLine("a.tsv:3", "malformed", "has no tab")
    for error in (stopped, bad):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    assert (str(stopped), str(bad)) == ("stopped at update 0", "a.tsv:3 has no tab")


def test_a_run_is_not_overwritten(folder: Path) -> None:
    regard.train(toy_config(folder, training={"steps": 5}))
    before = (folder / "run" / "config.yaml").read_text()
    with pytest.raises(OutputError, match=r"differs in model\.d_model \(48 before, 16 now\); give another run=FOLDER"):
        regard.train(toy_config(folder, training={"steps": 5}, model={"d_model": 16}))
    with pytest.raises(OutputError, match=r"differs in training\.seed \(1 before, 9 now\)"):
        regard.train(toy_config(folder, training={"steps": 5, "seed": 9}))
    with (folder / "train.tsv").open("a") as file:
        file.write("alpha\tALPHA\t0-0\n")
    with pytest.raises(OutputError, match=r"differs in the content of data\.train; give another"):
        regard.train(toy_config(folder, training={"steps": 5}))
    assert (folder / "run" / "config.yaml").read_text() == before
    (folder / "full").mkdir()
    (folder / "full" / "thesis.txt").write_text("precious")
    with pytest.raises(OutputError, match="is not empty and holds no run"):
        regard.train(toy_config(folder, run="full"))
    with pytest.raises(OutputError, match="is not empty and holds no run"):
        regard.train(toy_config(folder, run="."))
    assert {path.name for path in folder.iterdir()} == {"full", "run", "test.tsv", "train.tsv", "valid.tsv"}


def test_a_model_without_checkpoints_is_not_trained_anew(folder: Path) -> None:
    """They are large, and may be removed when training has ended."""
    regard.train(toy_config(folder, training={"steps": 10}))
    before = (folder / "run" / "model.safetensors").read_bytes()
    shutil.rmtree(folder / "run" / "checkpoints")
    for steps in (10, 20):
        with pytest.raises(OutputError, match="training has ended, and no checkpoint to go on from; use it as it is"):
            regard.train(toy_config(folder, training={"steps": steps}))
    assert (folder / "run" / "model.safetensors").read_bytes() == before


def test_an_attempt_that_never_trained_begins_anew(folder: Path) -> None:
    """Other data, tokens and lengths: what was prepared for the first settings is not taken for the second."""
    search = {"max_source": 4, "max_length": 4}
    short: Any = {"source": {"max_length": 4}, "target": {"max_length": 4}}
    prepare(toy_config(folder, data={"bad_limit": 0.9}, search=search, **short))
    (folder / "run" / "notes.txt").write_text("mine")
    watcher = StopAt(-1)
    longer: Any = {"source": {"max_length": 9}, "target": {"max_length": 9}}
    changes: Any = {"tokens": {"size": 20}, "search": search, **longer}
    system = regard.train(toy_config(folder, training={"steps": 2}, **changes), watcher)
    (said,) = [x for x in watcher.messages if "never trained: it begins anew" in x]
    assert "source.max_length (4 before, 9 now), target.max_length (4 before, 9 now)" in said
    assert system.config.model.max_positions == 10
    assert (folder / "run" / "notes.txt").read_text() == "mine"


def test_a_shipped_model_is_no_run(folder: Path) -> None:
    regard.train(toy_config(folder, training={"steps": 5})).save(folder / "shipped")
    before = {path.name: path.read_bytes() for path in (folder / "shipped").iterdir()}
    with pytest.raises(OutputError, match="holds a model, not a run; give another run=FOLDER"):
        regard.train(toy_config(folder, run="shipped", model={"d_model": 16}))
    (folder / "shipped" / "regard.json").unlink()  # as folders were written before they were marked
    with pytest.raises(OutputError, match="trained by an earlier Regard and cannot be resumed"):
        regard.train(toy_config(folder, run="shipped"))
    assert regard.load(folder / "shipped", device="cpu").config.model.d_model == 48
    after = {path.name: path.read_bytes() for path in (folder / "shipped").iterdir()}
    assert after == {name: content for name, content in before.items() if name != "regard.json"}


def test_positions_belong_to_the_model(folder: Path) -> None:
    """Other limits of search than in training change what is searched, not the table of positions."""
    learned = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 64, "positions": "learned"}
    model = {"encoder": learned, "decoder": learned}
    limits = {"max_source": 300, "max_length": 280}
    regard.train(toy_config(folder, model=model, training={"steps": 4}, search=limits))
    again = toy_config(folder, model=model, training={"steps": 6}, search={"max_source": 500, "max_length": 20})
    watcher = StopAt(-1)
    assert regard.train(again, watcher).generate(["alpha"])
    assert any("search.max_source (300 before, 500 now)" in text for text in watcher.messages)
    assert regard.load(folder / "run", device="cpu").config.model.max_positions == 301
    with pytest.raises(ConfigError, match=r"\(9\) is less than max_length of source and target need \(257\)"):
        regard.train(toy_config(folder, run="short", model={**model, "max_positions": 9}))


def test_a_config_file_can_be_trained_from_python(folder: Path) -> None:
    (folder / "config.yaml").write_text(json.dumps(toy_settings(training={"steps": 2})))  # JSON is YAML
    system = regard.train(str(folder / "config.yaml"))
    assert system.folder == folder / "run"
    before = torch.get_rng_state()
    loaded = regard.load(folder / "run", device="cpu")
    assert [system.model.training, loaded.model.training] == [False, False]
    assert torch.equal(torch.get_rng_state(), before)
    loaded.model.train()
    frozen = next(module for name, module in loaded.model.named_modules() if name == "encoder").eval()
    loaded.score(["alpha"], ["ALPHA"])
    assert [loaded.model.training, frozen.training] == [True, False]  # a part that its user keeps in evaluation mode
    with pytest.raises(TypeError, match="takes a Config or the path of a config file, not dict"):
        regard.train({})  # type: ignore[arg-type]


def test_bad_lines_are_told(folder: Path) -> None:
    with (folder / "train.tsv").open("a") as file:
        file.write("\tX\nalpha\t\n")
    with (folder / "valid.tsv").open("a") as file:
        file.write("\tX\n")
    watcher = StopAt(-1)
    regard.train(toy_config(folder, training={"steps": 2}), watcher)
    assert any("left out 2 of 402 lines: 2 blank" in m and "train.tsv:401" in m for m in watcher.messages)
    assert any("valid.tsv:41 has an empty source" in m for m in watcher.messages)
    with pytest.raises(DataError, match=r"cannot be used: 2 blank; .*\n.*train\.tsv:401 has an empty source"):
        regard.train(toy_config(folder, run="other", data={"bad_lines": "error"}))
    assert not (folder / "other").exists(), "it is said before anything is written"


@pytest.mark.parametrize(
    ("tokens", "line"),
    crossed(
        [{"kind": "unigram", "size": 400}, {"kind": "word"}],
        [
            (b"\n", "is blank"),
            (b"alpha\n", "has 1 column, so no column 2 for the target"),
            (b"alpha\tALPH\xc4\n", "is not UTF-8"),
            (b"alpha\t \n", "has an empty target"),
        ],
    ),
)
def test_any_bad_line_is_told_for_what_it_is(folder: Path, tokens: dict[str, Any], line: tuple[bytes, str]) -> None:
    """And not as a vocabulary that is too small, with whatever tokens."""
    added, message = line
    with (folder / "train.tsv").open("ab") as file:
        file.write(added)
    with pytest.raises(DataError, match=rf"train\.tsv:401 {message}"):
        regard.train(toy_config(folder, tokens=tokens, data={"bad_lines": "error"}))
    watcher = StopAt(-1)
    regard.train(toy_config(folder, tokens=tokens, training={"steps": 1}), watcher)
    assert any("left out 1 of 401 lines" in text and message in text for text in watcher.messages)


def test_a_label_that_training_never_saw_is_told(tmp_path: Path) -> None:
    for name, labels in (("train", "xy"), ("valid", "xz")):
        (tmp_path / f"{name}.tsv").write_text("".join(f"alpha {label}\t{label}\n" * 4 for label in labels))
    model = {"encoder": {"kind": "rnn"}, "decoder": {"kind": "none"}}
    watcher = StopAt(-1)
    given = toy_settings(target={"kind": "label"}, model=model, training={"steps": 1})
    given["model"]["decoder"] = {"kind": "none"}
    given["data"] = {"train": "train.tsv", "valid": "valid.tsv"}
    regard.train(resolve_paths(parse(given), tmp_path), watcher)
    told = (
        "valid.tsv has 1 label that training never saw: z; their examples count as wrong, and the model knows 2: x, y"
    )
    assert any(text.endswith(told) for text in watcher.messages)
    (tmp_path / "valid.tsv").write_text("alpha x\t0\nalpha y\t1\n")
    with pytest.raises(
        DataError, match=r"valid\.tsv has no label that training saw, .*: it has 0, 1, and the model knows 2"
    ):
        regard.train(resolve_paths(parse({**given, "run": "other"}), tmp_path))


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


def test_the_rate_in_the_log_is_that_of_the_update(folder: Path) -> None:
    """Where tokens limit training, the share that is behind before it."""
    training = {"tokens": 1000, "steps": 1000, "warmup": 0, "log_every": 1, "learning_rate": 1.0}
    regard.train(toy_config(folder, training=training))
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    found = [line for line in lines if "learning_rate" in line]
    behind = [0.0, *(line["tokens"] / 1000 for line in found[:-1])]
    expected = [1.0 - max(share, line["step"] / 1000) for share, line in zip(behind, found, strict=True)]
    assert [line["learning_rate"] for line in found] == pytest.approx(expected)


def test_decay_spares_biases_norms_and_embeddings() -> None:
    model = nn.ModuleDict({"e": nn.Embedding(3, 4), "n": nn.LayerNorm(4), "l": nn.Linear(4, 4)})
    groups = make_optimizer(model, Training(weight_decay=0.5), torch.device("cpu")).param_groups
    assert [len(group["params"]) for group in groups] == [1, 4]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]


def test_what_was_frozen_at_a_checkpoint_has_no_moments_after_it(tmp_path: Path) -> None:
    below, above = nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.Sequential(below, above)
    optimizer = make_optimizer(model, Training(), torch.device("cpu"))
    for thawed in (False, True):
        above.requires_grad_(thawed)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if not thawed:
            place = save_checkpoint(tmp_path, model, optimizer, Progress(), keep=1)
    assert optimizer.state[above.weight]
    load_checkpoint(place, model, optimizer)
    assert not optimizer.state[above.weight]
    assert optimizer.state[below.weight]["step"] == 1


def test_accumulation_is_one_large_batch(folder: Path) -> None:
    """Two batches to an update give the gradient of both as one: the loss is a mean over all their tokens."""
    config = toy_config(folder, model={"dropout": 0.0}, training={"steps": 1, "accumulate": 2, "label_smoothing": 0.0})
    task = regard.train(config).task
    pair = [
        task.batch(sources, targets) for sources, targets in (([[6, 7]], [[8]]), ([[6], [7, 8, 9]], [[6, 7, 8], [9]]))
    ]
    assert sum(batch.tokens for batch in pair) == 2 + 4 + 2
    total = torch.zeros(())
    for batch in pair:
        total = total + cross_entropy(task.model(batch.source, batch.inputs).values, batch.outputs.values)
    (total / (2 + 4 + 2)).backward()
    norm = nn.utils.clip_grad_norm_(task.model.parameters(), float("inf"))
    task.model.zero_grad()
    objective = make_objective(task.model, config.training.objective, 0.0, task.first)
    updated = Updater(task.model, objective, config.training, task.device)(pair, 1, 0.0)
    torch.testing.assert_close((updated.loss, updated.norm), (total.detach(), norm))


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
