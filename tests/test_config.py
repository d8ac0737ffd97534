"""Settings: what is refused, how it is said, and what a config becomes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from regard.config import commented, dump, load, missing_files, override_settings, parse
from regard.errors import ConfigError
from regard.presets import PRESETS
from regard.section import Section
from regard.settings import Config

BOMB = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else '{}'] * 9)}]" for i in range(9))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"dropuot": 0.1}}, "unknown setting 'dropuot' in [model]; did you mean 'dropout'?"),
        (
            {"source": "none", "model": {"encoder": {"bidirectional": False}, "decoder": {"kind": "none"}}},
            "a masked language model (decoder.kind none) reads from both sides; set encoder.bidirectional: true",
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
            "[model.encoder] no encoder of kind 'cnn'; did you mean 'rnn'?",
        ),
        (
            {"model": {"encoder": {"kind": "perceptron"}}},
            "[model.encoder] no encoder of kind 'perceptron'; there are: rnn, lstm, gru, transformer, stem, none",
        ),
        (
            {"model": {"decoder": {"kind": "perceptron"}}},
            "[model.decoder] no decoder of kind 'perceptron'; there are: rnn, lstm, gru, awd_lstm, transformer, none",
        ),
        (
            {"model": {"d_model": 512, "encoder": {"kind": "transformer", "heads": 7}}},
            "d_model (512) is not divisible by encoder.heads (7); try 8",
        ),
        (
            {"model": {"encoder": {"kind": "transformer", "bidirectional": True}}},
            "unknown setting 'bidirectional' in [model.encoder]; there are: kind, stem, layers, heads",
        ),
        ({"model": {"d_model": 7}}, "a bidirectional encoder needs an even d_model, not 7"),
        (
            {"model": {"encoder": {"kind": "gru"}, "decoder": {"kind": "lstm", "bridge": "copy"}}},
            "decoder.bridge 'copy' needs an encoder of the same kind and layers (here gru x 1 to lstm x 1)",
        ),
        (
            {"source": {"tokens": {"kind": "word"}}, "model": {"share_embeddings": True}},
            "model.share_embeddings needs a text as source and as target, and one vocabulary for both; set it to false",
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
        ({"model": {"encoder": {"kind": []}}}, "[model.encoder] no encoder of kind []; there are: rnn"),
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
        ({"training": {"betas": [0.9, 1.0]}}, "'betas[1]' in [training] is 1.0: input should be less than 1"),
        ({"data": {"bad_limit": 1.5}}, "'bad_limit' in [data] is 1.5: input should be less than or equal to 1"),
        (
            {
                "source": {"kind": "image", "size": 16},
                "model": {"encoder": {"kind": "stem", "stem": {"kind": "convolution", "halvings": 5}}},
            },
            "model.encoder.stem.halvings (5) leaves nothing of images of 16 pixels a side (source.size); use at most 4",
        ),
        (
            {
                "source": "image",
                "model": {"encoder": {"kind": "stem", "stem": {"kind": "convolution", "channels": 40_000}}},
            },
            "[model.encoder.stem] channels (40000), doubled with each of 3 halvings, come to 160,000; at most 65,536",
        ),
        ({"source": "imgae"}, "[source] no source of kind 'imgae'; did you mean 'image'? (--import brings in"),
        ({"source": {"kind": "sound"}}, "[source] no source of kind 'sound'; there are: text, none, image"),
        ({"source": ["text", "imgae"]}, "[source[1]] no source of kind 'imgae'; did you mean 'image'?"),
        (
            {"source": ["text", {"kind": "image", "szie": 8}]},
            "unknown setting 'szie' in [source[1]]; did you mean 'size'?",
        ),
        (
            {"source": ["text", {"kind": "image", "size": 3}]},
            "'size' in [source[1]] is 3: input should be greater than",
        ),
        (
            {"source": [{"tokens": {"kidn": "word"}}, "text"]},
            "unknown setting 'kidn' in [source[0].tokens]; did you mean",
        ),
        ({"source": ["text", 3]}, "'source[1]' in the top level is 3: should be a section such as {kind: text}"),
        ({"source": 3}, "'source' in the top level is 3: should be a section such as {kind: text}"),
        ({"source": []}, "source is an empty list; for none write source: {kind: none}"),
        ({"source": {"column": []}}, "[source] column is []; name one, or several in a list, or leave it out"),
        (
            {"source": ["text", {"kind": "image", "column": [1, 2]}]},
            "[source[1]] column is [1, 2]; name one, or leave it",
        ),
        ({"target": {"column": [1, 2]}}, "[target] column is [1, 2]; name one, or leave it out"),
        (
            {"source": {"kind": "none", "column": 2}, "model": {"encoder": "none"}},
            "[source] column is 2, but there is no source; the text is the target (target.column)",
        ),
        ({"target": "lable"}, "[target] no target of kind 'lable'; did you mean 'label'?"),
        ({"target": ["text"]}, "'target' in the top level is ['text']: should be a section such as {kind: text}"),
        ({"target": {"metrics": ["blue"]}}, "no metric of kind 'blue'; did you mean 'bleu'?"),
        (
            {"training": {"metric": "blue"}},
            "training.metric 'blue' is not among the metrics of target.kind 'text' that a validation takes: bleu, ch",
        ),
        (
            {"training": {"objective": "likelihod"}},
            "[training.objective] no objective of kind 'likelihod'; did you mean",
        ),
        (
            {"model": {"encoder": {"stem": "tokns"}}},
            "[model.encoder.stem] no stem of kind 'tokns'; did you mean 'tokens'?",
        ),
        (
            {"model": {"encoder": {"stem": {"channels": 8}}}},
            "unknown setting 'channels' in [model.encoder.stem]; add kind: convolution, which has it (without a kind",
        ),
        (
            {"source": ["text", {"size": 8}]},
            "unknown setting 'size' in [source[1]]; add kind: image, which has it (without a kind it is text)",
        ),
        (
            {"model": {"decoder": {"d_ff": 64}}},
            "unknown setting 'd_ff' in [model.decoder]; add kind: transformer, which has it",
        ),
        (
            {"model": {"decoder": {"score": "addditive"}}},
            "no attention score of kind 'addditive'; did you mean 'additive'?",
        ),
        (
            {"source": ["text", "text"], "model": {"encoder": ["lstm", "gur"]}},
            "[model.encoder[1]] no encoder of kind 'gur'; did you mean 'gru'?",
        ),
        (
            {"source": ["text", "text"], "model": {"encoder": [{"kind": "lstm", "layrs": 2}, "gru"]}},
            "unknown setting 'layrs' in [model.encoder[0]]; did you mean 'layers'?",
        ),
        (
            {"source": ["text", "text"], "model": {"encoder": ["lstm", "gru", "rnn"]}},
            "model.encoder lists 3 encoders for 2 sources; give one each",
        ),
        (
            {"model": {"encoder": ["lstm"]}},
            "[model] encoder lists one for each of several sources; for one source write",
        ),
        ({"source": ["text", "none"]}, "of several sources none can be of kind none; leave it out"),
        (
            {"source": ["text", "text"], "model": {"encoder": "none"}},
            "several sources need an encoder (model.encoder.kind), and",
        ),
        (
            {"source": ["text", "text"], "target": "tags", "model": {"decoder": "none"}},
            "several sources need an encoder (model.encoder.kind), and",
        ),
        (
            {"source": ["text", "image"], "model": {"encoder": {"kind": "lstm", "stem": "tokens"}}},
            "source.kind 'image' and model.encoder.stem.kind 'tokens' clash: that stem reads text",
        ),
        (
            {"source": ["text", "image"], "model": {"share_encoder": True}},
            "model.share_encoder needs sources of the same settings; set it to false",
        ),
        (
            {"model": {"share_encoder": True}},
            "model.share_encoder is for several sources and one encoder; set it to false",
        ),
        (
            {
                "source": ["text", "text"],
                "model": {"encoder": "transformer", "decoder": "transformer", "share_layers": True},
            },
            "model.share_layers is for one source, whose encoder the decoder shares; set it to false",
        ),
        (
            {"source": ["text", {"tokens": {"kind": "char", "sampling": 0.1}}]},
            "tokens.sampling needs kind unigram or bpe, not char",
        ),
        (
            {"source": {"tokens": {"kind": "word"}}, "model": {"encoder": "none"}},
            "model.encoder.kind none reads source and target as one text, so both need one vocabulary; leave out",
        ),
        (
            {"source": "image", "model": {"encoder": "none"}},
            "model.encoder.kind none reads text, not source.kind 'image'",
        ),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(settings)
    assert message in str(error.value)


def test_all_errors_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        parse({
            "model": {"dropuot": 1}, "training": {"steps": 0}, "nonsense": 1,
            "source": ["txet", {"kind": "image", "size": 1, "sice": 2}],
        })  # fmt: skip
    lines = str(error.value).splitlines()
    assert len(lines) == 6
    assert sum("[source[1]]" in line for line in lines) == 2


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
        (b"data: &a {train: [*a]}", "line 1 is not valid YAML: a value that holds itself"),
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
    assert config.model.encoders[0].model_dump()["layers"] == 3
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
    relative = "(paths in a config are relative to it, paths on the command line to the working directory)"
    assert lines == [
        f"no file {tmp_path / 'gone.de'}; check data.valid {relative}",
        f"data.test: {tmp_path / ('x' * 300)} cannot be read: File name too long",
        f"no model folder {tmp_path / 'before'}; check start.encoder {relative}",
    ]


def test_overrides_reach_nested_settings() -> None:
    overrides = override_settings(["training.steps=7", "model.encoder.layers=2", "data.train=[a, b]"])
    config = parse(overrides)
    assert config.training.steps == 7
    assert config.model.encoders[0].model_dump()["layers"] == 2
    assert config.data.train == ["a", "b"]
    with pytest.raises(ConfigError, match=r"section\.setting=value"):
        override_settings(["steps"])


def test_overrides_reach_settings_of_one_source_among_several(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("source: [text, image, {kind: text, max_length: 9}]\n")
    config = load(tmp_path / "c.yaml", ["source.1.size=32", "source.2.max_length=7", "source.0=image"])
    assert [side.kind for side in config.sources] == ["image", "image", "text"]
    assert config.sources[1].model_dump()["size"] == 32
    assert config.sources[2].model_dump()["max_length"] == 7
    for number in ("3", "01", "²", "9" * 5000):
        with pytest.raises(ConfigError, match=r"there is no source\..{1,100}: source lists 3, numbered from 0"):
            load(tmp_path / "c.yaml", [f"source.{number}.size=32"])
    with pytest.raises(ConfigError, match=r"unknown setting 'x' in \[source\[1\]\]"):
        load(tmp_path / "c.yaml", ["source.1.x=32"])


def test_paths_lead_straight_to_their_files(tmp_path: Path) -> None:
    """So configs in two folders name the same file by the same path; a link to a folder is still followed."""
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "three").symlink_to(tmp_path / "one" / "two")
    for folder, file in (("one", tmp_path / "a.tsv"), ("three", tmp_path / "three" / ".." / "a.tsv")):
        path = tmp_path / folder / "config.yaml"
        path.write_text("data: {train: ../a.tsv}\n")
        assert load(path).data.train == str(file)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("data: {train: a.tsv, valid: [v.en, v.de]}\nrun: there\n")
    config = load(tmp_path / "c.yaml")
    assert config.data.train == str(tmp_path / "a.tsv")
    assert config.data.valid == [str(tmp_path / "v.en"), str(tmp_path / "v.de")]
    assert config.run == str(tmp_path / "there")
    config = load(tmp_path / "c.yaml", ["data.train=~/a.tsv", "run=~mine"])  # which a shell leaves as it is after a =
    assert config.data.train == str(Path.home() / "a.tsv")
    assert config.run == str(Path.cwd() / "~mine")


def test_a_name_alone_stands_for_a_section_of_that_kind() -> None:
    short = parse({"source": "image", "target": "label", "model": {"encoder": "stem", "decoder": "none"}})
    assert short == parse({
        "source": {"kind": "image"}, "target": {"kind": "label"},
        "model": {"encoder": {"kind": "stem"}, "decoder": {"kind": "none"}},
    })  # fmt: skip
    assert parse({"source": ["image", "text"]}).sources == parse({"source": [{"kind": "image"}, {}]}).sources
    assert parse({"source": ["text"]}) == parse({"source": "text"}) == parse({})
    assert parse({"model": {"decoder": "gru"}}).model.decoder.kind == "gru"
    assert parse({"training": {"objective": "minimum_risk"}}).training.objective.kind == "minimum_risk"


def test_a_name_alone_can_be_laid_on_a_section_and_a_section_on_a_name(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("source: image\nmodel: {encoder: stem, decoder: {kind: gru, layers: 2}}\n")
    config = load(tmp_path / "c.yaml", ["source.size=32", "model.decoder=lstm"])
    assert config.sources[0].model_dump()["size"] == 32
    assert config.model.decoder.model_dump()["layers"] == 2  # cells are of one family
    config = load(tmp_path / "c.yaml", ["model.decoder=transformer"])
    assert config.model.decoder.model_dump()["layers"] == 3
    config = parse({"preset": "xu2015", "source": "image", "model": {"encoder": {"stem": {"channels": 8}}}})
    assert config.stem(0).model_dump() == {
        "kind": "convolution",
        "halvings": 3,
        "channels": 8,
        "coordinates": True,
        "pooled": False,
    }


def test_every_source_has_the_stem_that_reads_it() -> None:
    config = parse({"source": ["image", "text"], "model": {"encoder": "transformer"}})
    assert [config.stem(number).kind for number in (0, 1)] == ["convolution", "tokens"]
    own = {"kind": "stem", "stem": {"kind": "convolution", "halvings": 2}}
    config = parse({"source": ["text", "image"], "model": {"encoder": ["gru", own]}})
    assert [config.stem(number).kind for number in (0, 1)] == ["tokens", "convolution"]
    assert config.stem(1).vectors(64) == 256


@pytest.mark.parametrize(
    "settings",
    [
        {"source": ["text", {"kind": "image", "size": 32, "column": "file"}], "model": {"encoder": ["gru", "stem"]}},
        {"source": [{"column": [1, 2], "tokens": {"kind": "word"}}, "text"], "target": {"tokens": {"size": 99}}},
        {"source": ["text", "text"], "model": {"share_encoder": True}, "data": {"alignment": False}},
        {"source": {"batch_tokens": 99}, "data": {"alignment": 1}, "target": {"metrics": ["exact", "ter"]}},
    ],
)
def test_sides_survive_saving(settings: dict[str, Any]) -> None:
    config = parse(settings)
    assert parse(yaml.safe_load(dump(config))) == config
    assert parse(yaml.safe_load(commented(settings))) == config
    assert parse(config.model_dump()) == config


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_saving(name: str) -> None:
    config = parse({"preset": name})
    assert parse(yaml.safe_load(dump(config))) == config
    assert parse(yaml.safe_load(commented({"preset": name}))) == config


@pytest.mark.parametrize("path", sorted((Path(__file__).parent.parent / "recipes").glob("*.yaml")), ids=str)
def test_recipes_are_configs(path: Path) -> None:
    assert load(path).data.split("test")


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"steps": 4}, "unknown setting 'steps' in the top level; did you mean target.steps or training.steps?"),
        ({"train": "a.tsv"}, "did you mean data.train?"),
        ({"model": {"layers": 3}}, "'layers' in [model]; did you mean model.encoder.layers or model.joint.layers or"),
        ({"source": {"kind": "text", "tokens": {"kin": 3}}}, "did you mean 'kind'?"),
    ],
)
def test_a_setting_that_is_a_section_too_high_is_found(settings: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(settings)
    assert hint in str(error.value)


def test_a_preset_that_a_whole_config_leaves_nothing_of_is_refused(tmp_path: Path) -> None:
    whole, short = tmp_path / "whole.yaml", tmp_path / "short.yaml"
    whole.write_text(commented({"preset": "transformer-tiny"}))
    short.write_text("preset: transformer-tiny\n")
    with pytest.raises(ConfigError, match=r"preset=gpt-mini would change nothing: .*whole.yaml sets all that a preset"):
        load(whole, ["preset=gpt-mini", "training.steps=3"])
    assert load(short, ["preset=gpt-mini"]).model == parse({"preset": "gpt-mini"}).model
    assert load(whole, ["preset=transformer-tiny"]) == load(whole)
    assert load(whole, ["preset=null"]).preset is None
    short.write_text("preset: transformer-tiny\nmodel: {d_model: 24}\n")
    assert load(short, ["preset=transformer-tiny"]) == load(short)  # its own, of which it changes something
    short.write_text("target: {stream: 20}\n")
    assert load(short, ["preset=awd-lstm"]).model == parse({"preset": "awd-lstm"}).model


def test_a_setting_beats_its_preset() -> None:
    config = parse({"preset": "transformer-base", "model": {"d_model": 64, "decoder": {"kind": "gru"}}})
    assert config.model.d_model == 64
    assert config.model.encoders[0].kind == "transformer"
    assert config.model.decoder.kind == "gru"


def sections(section: Section) -> Iterator[Section]:
    """A section and all that are inside it."""
    yield section
    for name in type(section).model_fields:
        value = getattr(section, name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Section):
                yield from sections(inner)


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "transformer-tiny"},
        {"preset": "xu2015-hard"},
        {"preset": "bert-mini-label"},
        {"source": ["image", {"tokens": {"kind": "word"}}], "model": {"encoder": ["stem", "gru"]}},
    ],
)
def test_the_commented_file_documents_every_setting(settings: dict[str, Any]) -> None:
    text, found = commented(settings), list(sections(parse(settings)))
    kinds = {type(section).__name__ for section in found}
    assert {"Config", "Data", "TokenSettings", "ModelSettings", "Training", "ObjectiveSettings", "Search"} < kinds
    assert len(kinds) >= 11
    for section in found:
        for name, field in type(section).model_fields.items():
            assert re.search(rf"^\s*(- )?{name}:", text, re.MULTILINE)
            assert field.description is None or field.description in text


def test_the_commented_file_lists_sources_one_by_one() -> None:
    lines = commented({"source": ["image", {"tokens": {"kind": "word"}}]}).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("source:"))
    own = [line.partition("  #")[0].rstrip() for line in lines[start + 1 : lines.index("", start)]]
    assert own == [
        "  - kind: image", "    column: null", "    batch_tokens: null", "    size: 64", "    resample: lanczos",
        "    augment: null",
        "  - kind: text", "    column: null", "    batch_tokens: null", "    tokens:", "      kind: word",
        "      size: 8000", "      sampling: 0.0", "      sentinels: 0", "    max_length: 256", "    normalize: null",
        "    case: null",
    ]  # fmt: skip


@pytest.mark.parametrize("given", [None, "training.steps=1", []])
def test_settings_that_are_no_settings_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=f"settings should be a dict of sections, not {type(given).__name__}"):
        Config.parse(given)


def test_a_temperature_at_which_numbers_overflow_is_refused() -> None:
    """Divided by it, log-probabilities would be infinite, and every output empty."""
    with pytest.raises(ConfigError, match=r"'temperature' in \[search\] is 1e-38"):
        Config.parse({"search": {"sample": True, "temperature": 1e-38}})
