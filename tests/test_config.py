"""Settings: what is refused, how it is said, and what a config becomes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from regard.config import commented, dump, load, missing_files, override_settings, parse
from regard.errors import ConfigError
from regard.presets import PRESETS
from regard.settings import Config

BOMB = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else '{}'] * 9)}]" for i in range(9))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"dropuot": 0.1}}, "unknown setting 'dropuot' in [model]; did you mean 'dropout'?"),
        (
            {"data": {"source": "none"}, "model": {"encoder": {"bidirectional": False}, "decoder": {"kind": "none"}}},
            "[model] decoder.kind none fills in blanks from both sides; set encoder.bidirectional: true",
        ),
        (
            {"preset": "gpt-mini", "training": {"objective": {"kind": "minimum_risk"}}},
            "training.objective.kind 'minimum_risk' compares outputs with targets, so it needs a source",
        ),
        ({"trainign": {}}, "unknown setting 'trainign' in the top level; did you mean 'training'?"),
        ({"training": {"steps": "many"}}, "'steps' in [training] is 'many'"),
        ({"training": {"steps": 0}}, "'steps' in [training] is 0: input should be greater than or equal to 1"),
        ({"training": {"average": 9}}, "average (9) needs keep_last at least as large (now 3)"),
        (
            {"model": {"decoder": {"kind": "lstm", "context": "last", "score": "dot"}}},
            "'score' needs context: attention",
        ),
        ({"model": {"decoder": {"context": "every", "place": "feeding"}}}, "'place' needs context: attention"),
        (
            {"model": {"encoder": {"kind": "cnn"}}},
            "[model.encoder] needs a kind; there are: rnn, lstm, gru, transformer",
        ),
        (
            {"model": {"d_model": 512, "encoder": {"kind": "transformer", "heads": 7}}},
            "d_model (512) is not divisible by encoder.heads (7); try 8",
        ),
        (
            {"model": {"encoder": {"kind": "transformer", "bidirectional": True}}},
            "unknown setting 'bidirectional' in [model.encoder]; there are: kind, layers, heads",
        ),
        ({"model": {"d_model": 7}}, "a bidirectional encoder needs an even d_model, not 7"),
        (
            {"model": {"encoder": {"kind": "gru"}, "decoder": {"kind": "lstm", "bridge": "copy"}}},
            "decoder.bridge 'copy' needs an encoder of the same kind and layers (here gru x 1 to lstm x 1)",
        ),
        (
            {"tokens": {"shared": False}, "model": {"share_embeddings": True}},
            "model.share_embeddings needs tokens.shared: true",
        ),
        ({"tokens": {"kind": "char", "sampling": 0.1}}, "tokens.sampling needs kind unigram or bpe, not char"),
        (
            {"model": {"decoder": {"hard": True}}, "training": {"objective": {"agreement": 5.0}}},
            "training.objective.agreement compares soft passes; decoder.hard draws, so set it to 0",
        ),
        (
            {"training": {"objective": {"kind": "minimum_risk", "agreement": 5.0}}},
            "training.objective.agreement goes with kind 'likelihood'; with 'minimum_risk' set it to 0",
        ),
        ({"search": {"beam": 2, "nbest": 3}}, "[search] nbest (3) is more than beam (2)"),
        ({"search": {"min_length": 9, "max_length": 3}}, "min_length (9) is more than max_length (3)"),
        ({"preset": "luong"}, "unknown preset 'luong' in the settings; did you mean 'luong2015'?"),
        ({"model": 3}, "'model' in the top level is 3"),
        ({"preset": ["gpt"]}, "unknown preset ['gpt'] in the settings"),
        ({"data": {"train": 3}}, "'train' in [data] is 3: input should be a valid string"),
        ({"model": {"encoder": {"kind": []}}}, "[model.encoder] needs a kind"),
        (
            {"model": {"d_model": 10**9}},
            "'d_model' in [model] is 1000000000: input should be less than or equal to 65536",
        ),
        ({"model": {"encoder": {"layers": 2000}}}, "'layers' in [model.encoder] is 2000: input should be less than"),
        ({"search": {"beam": 10**6}}, "'beam' in [search] is 1000000: input should be less than or equal to 1000"),
        (
            {"training": {"learning_rate": float("nan")}},
            "'learning_rate' in [training] is nan: input should be a finite",
        ),
        ({"training": {"seconds": float("inf")}}, "'seconds' in [training] is inf: input should be a finite"),
        ({"training": {"betas": [0.9, 1.0]}}, "'betas' in [training] is 1.0: input should be less than 1"),
        ({"data": {"bad_limit": 1.5}}, "'bad_limit' in [data] is 1.5: input should be less than or equal to 1"),
        (
            {
                "data": {"source": "picture", "picture": 16},
                "model": {"encoder": {"kind": "convolution", "halvings": 5}},
            },
            "model.encoder.halvings (5) leaves nothing of pictures of 16 pixels a side (data.picture); use at most 4",
        ),
        (
            {"data": {"source": "picture"}, "model": {"encoder": {"kind": "convolution", "channels": 40_000}}},
            "channels (40000), doubled with each of 3 halvings, come to 160,000; at most 65,536 will do",
        ),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(settings)
    assert message in str(error.value)


def test_all_errors_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        parse({"model": {"dropuot": 1}, "training": {"steps": 0}, "nonsense": 1})
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"model: [1", "line 2 is not valid YAML"),
        (b"- a\n- b\n", "should hold settings as 'name: value', not a list"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"run: x\ntraining: {steps: !!timestamp 2020-01-01}", "line 2 is not valid YAML: could not determine a const"),
        (b"run: !!python/object/apply:os.getcwd []", "line 1 is not valid YAML: could not determine a constructor"),
        (b"run: !!map x", "line 1 is not valid YAML: expected a mapping node"),
        (b"training:\n  steps: " + b"9" * 5000, "line 2 is not valid YAML: '9999"),
        (b"training:\n  steps: 0x" + b"f" * 5000, "line 2 is not valid YAML: '0xffff"),
        (b"training: {steps: 0b_}", "line 1 is not valid YAML: '0b_' is no number that can be read"),
        (b"training: {seconds: " + b"1:" * 400 + b"1.5}", "is no number that can be read"),
        (b"model: " + b"[" * 60 + b"]" * 60, "line 1 is not valid YAML: values nested more than 50 deep"),
        (b"model:\n " + b"- " * 10_000, "line 2 is not valid YAML: values nested more than 50 deep"),
        (b"model: " + b"[" * 100_000, "line 1 is not valid YAML: values nested more than 50 deep"),
        (b"a: [" + b"1," * 5000 + b"1]", "line 1 is not valid YAML: more than 5,000 values"),
        (BOMB.encode(), "line 4 is not valid YAML: more than 5,000 values"),
        (BOMB.replace("[", "{<<: [").replace("]", "]}").encode(), "line 4 is not valid YAML: more than 5,000 values"),
        (b"data: &a {columns: [*a]}", "line 1 is not valid YAML: a value that holds itself"),
        (b"run: x\n7: 8", "line 2 is not valid YAML: the name of a setting should be text"),
        (b"run: x\n[a, b]: 8", "line 2 is not valid YAML: the name of a setting should be text"),
        (b"run: x\nmodel: {d_model: 8}\nrun: y", "line 3 is not valid YAML: 'run' is set a second time"),
        (b"<<: 3", "line 1 is not valid YAML: expected a mapping"),
        (b"run: x\0y", "is not valid YAML: special characters are not allowed"),
        (b'run: "x\\0y"', "'x\\x00y' holds what no path can hold"),
        (b'data: {train: "\\ud800"}', "'\\ud800' holds what no path can hold"),
        (b"run: x #" + b"x" * 2**20, "is larger than 1 MiB"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "c.yaml").write_bytes(content + (b"\n" if content else b""))
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "c.yaml")
    assert message in str(error.value)
    assert "c.yaml" in str(error.value) or "path can hold" in message


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="regard new"):
        load(tmp_path / "c.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load(tmp_path)


def test_a_config_is_a_file_that_can_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for name in (str(tmp_path / "pipe.yaml"), "/dev/zero"):
        with pytest.raises(ConfigError, match="is a pipe or a device; a config is a file"):
            load(name)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for name in ("loop.yaml", "x" * 300, "a\0b"):
        with pytest.raises(ConfigError, match="cannot be read: "):
            load(tmp_path / name)


def test_what_is_written_once_may_be_used_twice(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "model:\n  encoder: &part {kind: gru, layers: 3}\n  decoder: {<<: *part, layers: 2}\nrun: 2020-01-01\n"
    )
    config = load(tmp_path / "c.yaml")
    assert config.model.encoder.model_dump()["layers"] == 3
    assert config.model.decoder.model_dump()["layers"] == 2
    assert config.run == str(tmp_path / "2020-01-01")


@pytest.mark.parametrize(
    "override",
    ["=", "=1", "a..b=1", ".a=1", "a.=1", "a b=1", ".".join("a" * 500) + "=1", "a=[", "a=" + "9" * 5000,
     "a=" + "[" * 5000],
)  # fmt: skip
def test_overrides_that_cannot_be_read_are_named(override: str) -> None:
    with pytest.raises(ConfigError, match="cannot read") as error:
        override_settings([override])
    assert len(str(error.value)) < 300


def test_missing_files_are_known_before_anything_heavy_is(tmp_path: Path) -> None:
    (tmp_path / "there.tsv").write_text("a\tb\n")
    (tmp_path / "c.yaml").write_text(
        f"data: {{train: there.tsv, valid: [there.tsv, gone.de], test: {'x' * 300}}}\nstart: {{encoder: before}}\n"
    )
    lines = missing_files(load(tmp_path / "c.yaml"))
    relative = "(paths are relative to the config file)"
    assert lines == [
        f"no file {tmp_path / 'gone.de'}; check data.valid in the config {relative}",
        f"data.test: {tmp_path / ('x' * 300)} cannot be read: File name too long",
        f"no folder {tmp_path / 'before'}; check start.encoder in the config {relative}",
    ]


def test_overrides_reach_nested_settings() -> None:
    overrides = override_settings(["training.steps=7", "model.encoder.layers=2", "data.train=[a, b]"])
    config = parse(overrides)
    assert config.training.steps == 7
    assert config.model.encoder.model_dump()["layers"] == 2
    assert config.data.train == ["a", "b"]
    with pytest.raises(ConfigError, match=r"section\.setting=value"):
        override_settings(["steps"])


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("data: {train: a.tsv, valid: [v.en, v.de]}\nrun: there\n")
    config = load(tmp_path / "c.yaml")
    assert config.data.train == str(tmp_path / "a.tsv")
    assert config.data.valid == [str(tmp_path / "v.en"), str(tmp_path / "v.de")]
    assert config.run == str(tmp_path / "there")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_saving(name: str) -> None:
    config = parse({"preset": name})
    assert parse(yaml.safe_load(dump(config))) == config
    assert parse(yaml.safe_load(commented({"preset": name}))) == config


@pytest.mark.parametrize("path", sorted((Path(__file__).parent.parent / "recipes").glob("*.yaml")), ids=str)
def test_recipes_are_configs(path: Path) -> None:
    assert load(path).data.test


def test_a_setting_beats_its_preset() -> None:
    config = parse({"preset": "transformer-base", "model": {"d_model": 64, "decoder": {"kind": "gru"}}})
    assert config.model.d_model == 64
    assert config.model.encoder.kind == "transformer"
    assert config.model.decoder.kind == "gru"


def test_the_commented_file_documents_every_setting() -> None:
    text = commented({"preset": "transformer-tiny"})
    for section in (
        Config,
        *(f.annotation for f in Config.model_fields.values() if hasattr(f.annotation, "model_fields")),
    ):
        for name, field in section.model_fields.items():  # type: ignore[union-attr]
            assert f"{name}:" in text
            assert field.description is None or field.description in text


@pytest.mark.parametrize("given", [None, "training.steps=1", []])
def test_settings_that_are_no_settings_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=f"settings should be a dict of sections, not {type(given).__name__}"):
        Config.parse(given)


def test_a_temperature_at_which_numbers_overflow_is_refused() -> None:
    """Divided by it, log-probabilities would be infinite, and every output empty."""
    with pytest.raises(ConfigError, match=r"'temperature' in \[search\] is 1e-38"):
        Config.parse({"search": {"sample": True, "temperature": 1e-38}})
