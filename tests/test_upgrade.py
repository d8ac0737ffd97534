"""What an earlier Regard wrote, with other names for settings and weights, is still read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import regard
from regard.config import load, parse
from regard.data.synthetic import scenes
from regard.errors import ConfigError, ModelError
from regard.fingerprint import Fingerprint, defaults_of, settings_of
from regard.training.checkpoint import WEIGHTS, load_tensors, save_tensors
from regard.training.watcher import Watcher
from regard.upgrade import upgraded, upgraded_names
from tests.toy import toy_config, write_corpus

CONVOLUTION = {"kind": "convolution", "halvings": 2, "channels": 4}
OWN = {"kind": "word", "size": 99}
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # how it was written, how it is now
    "nothing": ({}, {}),
    "text": ({"data": {"source": "text"}}, {}),
    "columns": (
        {"data": {"columns": [3, 2], "train": "x.tsv"}},
        {"source": {"column": 3}, "target": {"column": 2}, "data": {"alignment": False, "train": "x.tsv"}},
    ),
    "columns and gold": (
        {"data": {"columns": [2, 3, 1]}},
        {"source": {"column": 2}, "target": {"column": 3}, "data": {"alignment": 1}},
    ),
    "keys": (
        {"data": {"columns": [["premise", "hypothesis"], "label"]}, "model": {"head": "label", "decoder": "none"}},
        {
            "source": {"column": ["premise", "hypothesis"]}, "target": {"kind": "label", "column": "label"},
            "data": {"alignment": False}, "model": {"decoder": "none"},
        },
    ),
    "a search that is exact": ({"search": {"exact": True, "beam": 3}}, {"search": {"stop": "exact", "beam": 3}}),
    "a search that is not": ({"search": {"exact": False}}, {"search": {}}),
    "a search that is no more": ({"search": {"exact": False, "stop": "exact"}}, {"search": {"stop": "heuristic"}}),
    "length": ({"data": {"max_length": 20}}, {"source": {"max_length": 20}, "target": {"max_length": 20}}),
    "length of a label's text": (
        {"data": {"max_length": 20}, "model": {"head": "label", "decoder": "none"}},
        {"source": {"max_length": 20}, "target": {"kind": "label"}, "model": {"decoder": "none"}},
    ),
    "lines of text": (
        {"data": {"source": "none", "columns": [2], "max_length": 20}, "model": {"encoder": "none"}},
        {"source": "none", "target": {"column": 2, "max_length": 20}, "model": {"encoder": "none"}},
    ),
    "pictures": (
        {"data": {"source": "picture", "picture": 32, "max_length": 20}, "model": {"encoder": CONVOLUTION}},
        {
            "source": {"kind": "image", "size": 32}, "target": {"max_length": 20},
            "model": {"encoder": {"kind": "stem", "stem": CONVOLUTION}},
        },
    ),
    "pictures of a preset": (
        {"preset": "xu2015", "data": {"picture": 32}, "model": {"encoder": {"channels": 4, "coordinates": False}}},
        {
            "preset": "xu2015", "source": {"size": 32},
            "model": {"encoder": {"stem": {"channels": 4, "coordinates": False}}},
        },
    ),
    "a size of pictures where there are none": ({"data": {"picture": 32}}, {}),
    "vocabularies": (
        {"tokens": {**OWN, "shared": False}},
        {"tokens": OWN, "source": {"tokens": OWN}, "target": {"tokens": OWN}},
    ),
    "one vocabulary": ({"tokens": {**OWN, "shared": True}}, {"tokens": OWN}),
    "one side of text has one vocabulary": (
        {"tokens": {**OWN, "shared": False}, "model": {"head": "label", "decoder": "none"}},
        {"tokens": OWN, "target": "label", "model": {"decoder": "none"}},
    ),
    "blanks": (
        {"preset": "bert-mini", "training": {"objective": {"blanks": 0.3}}},
        {"preset": "bert-mini", "training": {"objective": {"masked": 0.3}}},
    ),
    "another head on a preset": (
        {"preset": "bert-mini-label", "model": {"head": "tags"}}, {"preset": "bert-mini-label", "target": "tags"},
    ),
    "old and new side by side": (
        {"data": {"max_length": 20}, "source": "text", "target": {"kind": "text", "metrics": ["exact"]}},
        {"source": {"max_length": 20}, "target": {"max_length": 20, "metrics": ["exact"]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PAIRS)
def test_settings_mean_what_they_meant(case: str, tmp_path: Path) -> None:
    old, new = PAIRS[case]
    before = json.dumps(old)
    assert parse(old) == parse(new)
    assert json.dumps(old) == before  # what a program gave is left as it was
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(old or {"run": "runs/model"}))
    (tmp_path / "new.yaml").write_text(yaml.safe_dump(new or {"run": "runs/model"}))
    assert load(tmp_path / "old.yaml") == load(tmp_path / "new.yaml")
    assert upgraded(upgraded(old)) == upgraded(old)


def test_overrides_mean_what_they_meant(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("preset: xu2015\n")
    old = load(tmp_path / "c.yaml", ["data.picture=32", "model.encoder.channels=4", "data.columns=[file, text]"])
    new = load(
        tmp_path / "c.yaml",
        ["source.size=32", "model.encoder.stem.channels=4", "source.column=file", "target.column=text",
         "data.alignment=false"],
    )  # fmt: skip
    assert old == new


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"source": "sound"}}, "[source] no source of kind 'sound'"),
        ({"model": {"head": "lable"}}, "[target] no target of kind 'lable'; did you mean 'label'?"),
        ({"data": {"max_length": 0}}, "'max_length' in [source] is 0"),
        ({"source": ["text", "text"], "data": {"columns": [1, 2]}}, "unknown setting 'columns' in [data]"),
        ({"source": ["text", "text"], "data": {"max_length": 9}}, "unknown setting 'max_length' in [data]"),
        ({"model": {"encoder": {"kind": "lstm", "channels": 4}}}, "unknown setting 'channels' in [model.encoder]"),
        ({"model": {"encoder": {"channels": 4}}}, "unknown setting 'channels' in [model.encoder]"),
        ({"target": 3, "data": {"max_length": 9}}, "'target' in the top level is 3"),
        ({"data": 3, "source": "text"}, "'data' in the top level is 3"),
    ],
)  # fmt: skip
def test_what_was_wrong_is_still_wrong(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(settings)
    assert message in str(error.value)


# Models


def old_names(name: str) -> str:
    """As weights were called: embeddings beside the encoder's layers, convolutions in their place."""
    name = re.sub(r"^encoder\.stem\.embedding\.", "encoder.embedding.", name)
    return re.sub(r"^encoder\.stem\.(layers|norm)\.", r"encoder.\1.", name)


def made_old(system: regard.System, folder: Path, settings: dict[str, Any]) -> Path:
    """The model as an earlier Regard would have written it, without checksums; `settings` are those of then."""
    system.save(folder)
    now = load_tensors(folder / WEIGHTS)
    before = {old_names(name): tensor for name, tensor in now.items()}
    assert before.keys() != now.keys()
    save_tensors(folder / WEIGHTS, before)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "regard.json").unlink()
    return folder


BLOCKS = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 16}
SHORT = {"steps": 3, "validate_every": 3, "validate_sentences": 2, "batch_tokens": 200}


@pytest.mark.parametrize(
    ("kind", "now", "then"),
    [
        (
            "recurrent",
            {"source": {"tokens": {"kind": "word"}}, "target": {"tokens": {"kind": "char"}}, "model": {"d_model": 16}},
            {"preset": "attentive-small", "tokens": {"kind": "word", "shared": False}, "model": {"d_model": 16}},
        ),
        (
            "transformer",
            {"source": {"max_length": 30}, "target": {"max_length": 30},
             "model": {"d_model": 16, "share_embeddings": True, "encoder": BLOCKS, "decoder": BLOCKS}},
            {"tokens": {"kind": "word", "shared": True}, "data": {"max_length": 30},
             "model": {"d_model": 16, "dropout": 0.2, "share_embeddings": True, "encoder": BLOCKS, "decoder": BLOCKS}},
        ),
        (
            "tags",
            {"target": "tags", "model": {"d_model": 16, "encoder": BLOCKS, "decoder": "none"}},
            {"tokens": {"kind": "word"}, "data": {"columns": [1, 2]},
             "model": {"d_model": 16, "head": "tags", "encoder": BLOCKS, "decoder": {"kind": "none"}}},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_models_of_text_load_as_they_were(tmp_path: Path, kind: str, now: dict[str, Any], then: dict[str, Any]) -> None:
    write_corpus(tmp_path, count=40)
    system = regard.train(toy_config(tmp_path, **now, training=SHORT))
    old = regard.load(made_old(system, tmp_path / "old", then), device="cpu")
    texts = ["alpha beta gamma", "delta"]
    found, expected = old.outputs(texts, beam=2, nbest=1), system.outputs(texts, beam=2, nbest=1)
    assert [(x.text, x.log_prob) for row in found for x in row] == [
        (x.text, x.log_prob) for row in expected for x in row
    ]
    test = str(tmp_path / "test.tsv")
    assert old.evaluate(test, beam=1).outputs == system.evaluate(test, beam=1).outputs
    old.save(tmp_path / "again")
    assert regard.load(tmp_path / "again", device="cpu").generate(texts, beam=1) == system.generate(texts, beam=1)
    assert (tmp_path / "again" / "regard.json").exists()


def test_models_of_pictures_load_as_they_were(tmp_path: Path) -> None:
    scenes.write(tmp_path, train=12, valid=2, test=2, picture=48)
    files = {split: f"{split}.jsonl" for split in ("train", "valid", "test")}
    now = {
        "preset": "xu2015", "run": "run", "data": files, "source": {"kind": "image", "size": 48},
        "tokens": {"kind": "word"}, "model": {"d_model": 16, "encoder": {"stem": {"channels": 4, "halvings": 4}}},
        "training": {**SHORT, "tensorboard": False, "device": "cpu"},
    }  # fmt: skip
    system = regard.train(regard.Config.parse(now, tmp_path))
    then = {
        "preset": "xu2015", "data": {"source": "picture", "picture": 48}, "tokens": {"kind": "word", "shared": False},
        "model": {"d_model": 16, "encoder": {"kind": "convolution", "channels": 4, "halvings": 4, "coordinates": True}},
    }  # fmt: skip
    old = regard.load(made_old(system, tmp_path / "old", then), device="cpu")
    picture = str(tmp_path / "pictures" / "test" / "000001.png")
    assert old.score([picture], ["a big red ring"]) == system.score([picture], ["a big red ring"])
    more: dict[str, Any] = {"start": {"model": str(tmp_path / "old")}, "run": "more"}
    heard: list[str] = []

    class Heard(Watcher):
        def message(self, text: str) -> None:
            heard.append(text)

    regard.train(regard.Config.parse({**now, **more}, tmp_path), Heard())
    assert any(re.match(r"start\.model: \d+ tensors from .*; 0 begin anew", text) for text in heard)


def test_masked_language_models_and_decoders_load_as_they_were(tmp_path: Path) -> None:
    lines = [f"alpha beta gamma {word}\n" for word in ("delta", "eta", "zeta")] * 4
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("".join(lines))
    files = {split: f"{split}.txt" for split in ("train", "valid", "test")}
    now = toy_config(
        tmp_path, preset=None, data=files, source="none", model={"d_model": 16, "encoder": BLOCKS, "decoder": "none"},
        training={**SHORT, "objective": {"masked": 0.3}},
    )  # fmt: skip
    system = regard.train(now)
    then = {
        "data": {"source": "none"}, "tokens": {"kind": "word"}, "training": {"objective": {"blanks": 0.3}},
        "model": {"d_model": 16, "encoder": BLOCKS, "decoder": {"kind": "none"}},
    }  # fmt: skip
    old = regard.load(made_old(system, tmp_path / "old", then), device="cpu")
    assert old.config.training.objective.model_dump()["masked"] == 0.3
    assert old.generate(["alpha <mask> gamma"]) == system.generate(["alpha <mask> gamma"])


def test_names_of_today_stay_as_they_are(tmp_path: Path) -> None:
    names = {
        "encoder.embedding.table.weight": "encoder.stem.embedding.table.weight",
        "encoder.layers.0.weight": "encoder.stem.layers.0.weight",
        "encoder.norm.bias": "encoder.stem.norm.bias",
        "encoder.stem.norm.bias": "encoder.stem.norm.bias",
        "encoder.blocks.0.norm.weight": "encoder.blocks.0.norm.weight",
        "decoder.embedding.table.weight": "decoder.embedding.table.weight",
        "encoder.encoders.1.stem.embedding.table.weight": "encoder.encoders.1.stem.embedding.table.weight",
        "norm.weight": "norm.weight",
    }
    for before, after in names.items():
        assert upgraded_names({before: 1}) == {after: 1}


def test_weights_that_do_not_fit_are_named_as_they_are_called_now(tmp_path: Path) -> None:
    write_corpus(tmp_path, count=40)
    system = regard.train(toy_config(tmp_path, model={"d_model": 16}, training=SHORT))
    then = {"preset": "attentive-small", "tokens": {"kind": "word"}, "model": {"d_model": 24}}
    made_old(system, tmp_path / "old", then)
    with pytest.raises(
        ModelError, match=r"model\.safetensors does not fit its config: encoder\.stem\.embedding.* is \("
    ):
        regard.load(tmp_path / "old", device="cpu")


@pytest.mark.parametrize("exact", [False, True])
def test_work_that_was_begun_before_settings_moved_goes_on(exact: bool) -> None:
    """A run, and an output, which has the settings of its search alone."""
    config = parse({"search": {"stop": "exact" if exact else "heuristic", "beam": 3}})
    for section in (config, config.search):
        now = Fingerprint(settings_of(section), defaults_of(section))
        prefix = "" if section is config.search else "search."
        later = ("stop", "at_limit", "prefix_scored", "repetition_penalty")
        before = {name: value for name, value in now.parts.items() if name not in {f"{prefix}{one}" for one in later}}
        assert not now.differences({**before, f"{prefix}exact": exact})
        (clash,) = now.differences({**before, f"{prefix}exact": not exact})
        assert clash.startswith(f"{prefix}stop (")
