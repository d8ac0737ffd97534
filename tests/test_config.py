"""Settings: what is refused, how it is said, and what a config becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from regard.config import commented, dump, load, override_settings, parse
from regard.errors import ConfigError
from regard.presets import PRESETS
from regard.settings import Config


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
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "c.yaml").write_bytes(content + (b"\n" if content else b""))
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "c.yaml")
    assert message in str(error.value)
    assert "c.yaml" in str(error.value)


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="regard new"):
        load(tmp_path / "c.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load(tmp_path)


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
