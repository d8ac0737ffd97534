"""Settings of different pieces in one config: what works together, what is refused, and runs of an earlier Regard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import regard
from regard.artifacts import mark, read_mark
from regard.cli import app
from regard.compare import Budget, compare
from regard.config import merge, parse
from regard.data.layouts import Masked
from regard.data.marks import NATIVE
from regard.errors import ConfigError, DataError, OutputError
from regard.exchange.huggingface.exporting import export
from regard.fingerprint import Fingerprint, defaults_of, settings_of
from regard.presets import PRESETS
from regard.settings import Config
from regard.tasks.replaced import ReplacedTokenDetection
from regard.training.objectives import make_objective
from regard.training.watcher import Watcher
from tests.toy import WORDS

BODY = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 8}
TRAINING = {"steps": 2, "validate_every": 1, "save_every": 1, "batch_tokens": 60, "device": "cpu", "tensorboard": False}
NONE = {"kind": "none"}


def lines(count: int, form: str = "{}") -> str:
    draw = np.random.default_rng(0)
    rows = [[WORDS[i] for i in draw.integers(len(WORDS), size=5)] for _ in range(count)]
    return "".join(form.format(" ".join(row), a=row[0], b=row[1], label=int("alpha" in row)) + "\n" for row in rows)


def tiny(folder: Path, text: str, name: str = "data.tsv", **sections: Any) -> Config:
    """A small encoder on lines of text, each of which stands for training, validation and test."""
    (folder / name).write_text(text)
    settings: dict[str, Any] = {
        "run": "run", "data": dict.fromkeys(("train", "valid", "test"), name), "tokens": {"kind": "word"},
        "model": {"d_model": 8, "encoder": BODY, "decoder": NONE}, "training": TRAINING,
    }  # fmt: skip
    return Config.parse(merge(settings, sections), folder)


class Notes(Watcher):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


# Runs of an earlier Regard


@pytest.mark.parametrize("preset", ["transformer-mini", "electra-mini", "bilstm-crf", "t5-mini"])
def test_every_setting_of_a_fingerprint_has_its_default(preset: str) -> None:
    assert preset in PRESETS
    config = parse({"preset": preset})
    assert settings_of(config).keys() <= defaults_of(config).keys()
    assert settings_of(Config()) == {name: defaults_of(Config())[name] for name in settings_of(Config())}


def test_a_setting_that_was_not_there_yet_is_as_by_default() -> None:
    now = Fingerprint({"seed": 1, "ema": 0.0, "output": "adaptive"}, {"seed": 7, "ema": 0.0, "output": "full"})
    assert now.differences({"seed": 1, "output": "adaptive"}) == []
    assert now.differences({"seed": 1}) == ['output (null before, "adaptive" now)']
    assert now.differences({"seed": 1, "output": "adaptive", "ema": 0.5}) == ["ema (0.5 before, 0.0 now)"]


def test_a_run_begun_before_there_were_these_settings_goes_on(tmp_path: Path) -> None:
    config = tiny(tmp_path, lines(12), source=NONE)
    regard.train(config)
    found = read_mark(tmp_path / "run")
    assert found is not None
    new = ("training.ema", "training.lora", "model.output", "model.softmaxes", "tokens.sentinels")
    old = {name: value for name, value in found["fingerprint"].items() if name not in new}
    assert len(old) == len(found["fingerprint"]) - len(new)
    mark(tmp_path / "run", "run", fingerprint=old, tokens=found["tokens"])
    longer, notes = config.training.model_copy(update={"steps": 3}), Notes()
    regard.train(config.model_copy(update={"training": longer}), notes)
    assert "resuming from update 2" in notes.messages
    mark(tmp_path / "run", "run", fingerprint=old, tokens=found["tokens"])
    with pytest.raises(OutputError, match=r"training\.ema \(null before, 0\.9 now\)"):
        regard.train(config.model_copy(update={"training": longer.model_copy(update={"ema": 0.9})}))


# Heads


def test_a_head_is_steered_by_what_its_data_are_scored_by(tmp_path: Path) -> None:
    config = tiny(tmp_path, lines(12, "{}\t{label}"), target={"kind": "label"}, training={"metric": "matthews"})
    regard.train(config)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())["valid"]
    assert -1.0 <= scores["matthews"] <= 1.0


@pytest.mark.parametrize(("metric", "lower"), [("rmse", True), ("pearson", False)])
def test_less_of_an_error_is_better(metric: str, lower: bool, tmp_path: Path) -> None:
    config = tiny(tmp_path, lines(12, "{}\t{label}"), target={"kind": "number"}, training={"metric": metric})
    regard.train(config)
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    each = [x[f"valid_{metric}"] for x in log if f"valid_{metric}" in x]
    best = json.loads((tmp_path / "run" / "scores.json").read_text())["valid"][metric]
    assert best == (min(each) if lower else max(each))


def test_a_metric_that_the_data_do_not_give_is_refused_before_training(tmp_path: Path) -> None:
    text = lines(12, "{}\t{a}")
    config = tiny(tmp_path, text, target={"kind": "label"}, training={"metric": "f1"})
    with pytest.raises(ConfigError, match=r"training\.metric 'f1' cannot be had of these data, which give loss"):
        regard.train(config)
    assert not (tmp_path / "run" / "checkpoints").exists()
    with pytest.raises(ConfigError, match=r"takes: accuracy, macro_f1, .*matthews, loss"):
        tiny(tmp_path, text, target={"kind": "label"}, training={"metric": "bleu"})


SPAN = ("question\t{}\t{a}", {"target": {"kind": "span"}})
CHOICE = (
    "x\t{a}\t{}\t{a}",
    {"source": {"column": [1, 2, 3]}, "target": {"kind": "choice", "column": 4, "answer": "text"}},
)


@pytest.mark.parametrize(("form", "sections"), [SPAN, CHOICE], ids=["span", "choice"])
def test_models_are_compared_on_what_depends_on_its_source(form: str, sections: Any, tmp_path: Path) -> None:
    config = tiny(tmp_path, lines(12, form), **sections)
    results = compare({"one": config}, tmp_path / "compared", Budget(tokens=30), seeds=(1,))
    run, metric = results.runs[0], results.metric
    by_length = sum(x.sentences * x.scores[metric] for x in run.lengths) / sum(x.sentences for x in run.lengths)
    assert by_length == pytest.approx(run.scores[metric])


def test_models_that_learn_from_drawn_tokens_and_watch_other_data_are_compared(tmp_path: Path) -> None:
    model = {"encoder": {"kind": "rnn"}, "decoder": {"kind": "rnn", "context": "last", "score": None, "place": None}}
    (tmp_path / "data.tsv").write_text(lines(12, "{}\t{a} {b}"))
    config = Config.parse(
        {
            "data": {**dict.fromkeys(("train", "valid", "test"), "data.tsv"), "watch": {"old": "data.tsv"}},
            "tokens": {"kind": "word"}, "model": {"d_model": 8, **model},
            "training": {**TRAINING, "objective": {"sampled": 3}},
        },
        tmp_path,
    )  # fmt: skip
    run = compare({"one": config}, tmp_path / "compared", Budget(tokens=30), seeds=(1,)).runs[0]
    assert [point.step for point in run.curve] == list(range(1, run.steps + 1))


# Prefixes and forms


def test_a_prefix_is_no_word() -> None:
    corpora = [{"train": "tags.tsv", "valid": "valid.tsv", "prefix": "<a>"}]
    with pytest.raises(ConfigError, match=r"prefix \(<a>\), which stands before a source of text"):
        parse({"preset": "elmo-mini-tags", "data": {"corpora": corpora}})


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"source": {"case": "lower"}}, "source.case are Regard's own"),
        ({"target": {"case": "recase"}}, "target.case are Regard's own"),
        ({"data": {"corpora": [{"train": "data.tsv", "valid": "data.tsv", "prefix": "<a>"}]}}, "have prefixes"),
    ],
)
def test_what_others_would_read_otherwise_is_not_exported(changes: Any, what: str, tmp_path: Path) -> None:
    (tmp_path / "data.tsv").write_text(lines(8, "{}\t{a} {b}"))
    body = {**BODY, "norm": "post", "positions": "learned", "first_position": 2, "embedding_norm": True}
    settings: dict[str, Any] = {
        "run": "run", "data": {"train": "data.tsv", "valid": "data.tsv"}, "tokens": {"kind": "word"},
        "model": {
            "d_model": 8, "share_embeddings": True, "scale_embeddings": False, "encoder": body, "decoder": body,
        },
        "training": {**TRAINING, "steps": 1},
    }  # fmt: skip
    if "data" in changes:
        del settings["data"]
    system = regard.train(Config.parse(merge(settings, changes), tmp_path))
    with pytest.raises(ConfigError, match=what):
        export(system, tmp_path / "export")
    assert not (tmp_path / "export").exists()


# Adapters


def test_adapters_are_not_averaged() -> None:
    with pytest.raises(ConfigError, match=r"training\.average takes means of weights, and with training\.lora"):
        parse({"start": {"model": "trained"}, "training": {"lora": {"rank": 2}, "average": 2}})


# What would do nothing


@pytest.mark.parametrize(
    ("preset", "objective", "what"),
    [
        ("gpt-mini", {"masking": "spans"}, "masking 'spans' is for masked language models"),
        ("bert-mini-label", {"masking": "words"}, "masking 'words' is for masked language models"),
        ("elmo-mini", {"masking": "words"}, "masking 'words' is for masked language models"),
        ("electra-mini", {"sampled": 5}, "sampled has no part in what model.generator is for"),
        ("electra-mini", {"agreement": 5}, "agreement has no part in what model.generator is for"),
    ],
)
def test_what_would_change_nothing_is_refused(preset: str, objective: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=f"training.objective.{what}"):
        parse({"preset": preset, "training": {"objective": objective}})


# Masks in a stream


def test_the_end_of_a_text_in_a_stream_is_never_masked() -> None:
    layout, draw, end = Masked(0.9, 30), np.random.default_rng(0), NATIVE.end
    blocks = [[7, end, 8, 9, end], [end, 11, 12], [end, end]]
    batch = layout([[]] * len(blocks), blocks, draw)
    assert end not in batch.outputs.values.tolist()
    assert [len(row) for row in batch.outputs.tolist()] == [3, 2, 0]
    plain = layout([[]], [[7, 8, 9, 10]], np.random.default_rng(3))
    assert plain.outputs.tolist() == [[7, 8, 9, 10]]


@pytest.mark.parametrize("generator", [None, 0.5])
def test_a_masked_stream_is_validated_watched_and_evaluated_in_blocks(generator: float | None, tmp_path: Path) -> None:
    text = lines(6) + "\n" + lines(6)  # a blank text is one too
    config = tiny(
        tmp_path, text, "data.txt", source=NONE, target={"stream": 7}, model={"generator": generator},
        data={"watch": {"same": "data.txt"}},
    )  # fmt: skip
    system = regard.train(config)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())["valid"]
    assert all(scores[name] == scores[f"{name}/same"] for name in ("loss", "accuracy"))
    tested = system.test().scores
    assert tested["accuracy"].value == pytest.approx(scores["accuracy"])
    if generator is not None:
        assert tested["detection"].value == pytest.approx(scores["detection"])


def test_a_stream_of_a_language_model_is_watched_too(tmp_path: Path) -> None:
    model = {"encoder": NONE, "decoder": {"kind": "lstm"}}
    config = tiny(
        tmp_path, lines(12), "data.txt", source=NONE, target={"stream": 7}, data={"watch": {"same": "data.txt"}},
        model=model,
    )  # fmt: skip
    regard.train(config)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())["valid"]
    assert scores["loss"] == scores["loss/same"]


@pytest.mark.parametrize(
    "model", [{"softmaxes": 2}, {"output": "adaptive", "tie_output": False}], ids=["mixture", "adaptive"]
)
def test_a_generator_learns_by_the_output_layer_that_it_has(model: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(
        tmp_path, lines(12), "data.txt", source=NONE, model={"generator": 0.5, "dropout": 0.0, **model},
        training={"label_smoothing": 0.0, "objective": {"detection": 0.0}},
    )  # fmt: skip
    task = regard.train(config).task
    assert isinstance(task, ReplacedTokenDetection)
    (batch,) = task.fixed_batches(task.target.encode_many(["alpha beta gamma delta", "eta theta"]))
    objective = make_objective(task.model, config.training.objective, 0.0, None, None, task.target)
    with task.inference():
        log_p = task.model(batch.source, batch.inputs).values.log_softmax(-1)
        found = objective(batch, 0.0)
    assert float(found) == pytest.approx(-float(log_p.gather(1, batch.outputs.values[:, None]).sum()), rel=1e-5)


# What comes after training


def test_what_writes_nothing_is_not_said_to(tmp_path: Path) -> None:
    stem = {"kind": "characters", "characters": 8, "widths": [1], "filters": [8], "highways": 1}
    encoder = {"kind": "elmo", "layers": 1, "units": 8, "stem": stem}
    (tmp_path / "data.txt").write_text(lines(12))
    settings = {
        "run": str(tmp_path / "run"), "data": {"train": "data.txt", "valid": "data.txt"}, "source": NONE,
        "tokens": {"kind": "word"}, "model": {"d_model": 8, "decoder": NONE, "encoder": encoder}, "training": TRAINING,
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    result = CliRunner().invoke(app, ["train", str(tmp_path / "config.yaml")])
    assert result.exit_code == 0
    assert f"next: regard evaluate {tmp_path / 'run'} FILE" in result.output


# What is wrong is said early


def test_watched_data_are_looked_at_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "other.tsv").write_text("one column\n" * 4)
    config = tiny(tmp_path, lines(12, "{}\t{label}"), target={"kind": "label"}, data={"watch": {"old": "other.tsv"}})
    with pytest.raises(DataError, match="other"):
        regard.train(config)
    assert not (tmp_path / "run").exists()


def test_a_decoder_of_another_kind_does_not_fit(tmp_path: Path) -> None:
    recurrent = {"encoder": NONE, "decoder": {"kind": "lstm"}}
    regard.train(tiny(tmp_path, lines(12), "data.txt", run="lm", source=NONE, model=recurrent))
    settings = {
        "run": "run", "data": {"train": "pairs.tsv", "valid": "pairs.tsv"}, "start": {"decoder": "lm"},
        "model": {"d_model": 8, "encoder": NONE, "decoder": BODY}, "training": TRAINING, "tokens": {"kind": "word"},
    }  # fmt: skip
    (tmp_path / "pairs.tsv").write_text(lines(12, "{}\t{a}"))
    with pytest.raises(ConfigError, match=r"start\.decoder: .*lm does not fit .*: it has no decoder"):
        regard.train(Config.parse(settings, tmp_path))
