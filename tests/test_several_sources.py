"""Several sources, end to end: they are read, learnt from, resumed and decoded together, and what attends to which of
them is told apart. The laws of their models are in `test_laws.py`."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.config import merge, parse
from regard.data.sides import SHARED, Sides
from regard.data.tokens import train_tokenizer
from regard.errors import ConfigError
from regard.explain.page import page
from regard.explain.plots import heat_map
from regard.explain.trace import Explanation
from regard.runs import Stopped
from regard.system import System, new_task
from tests.conftest import redrawn
from tests.test_cli import good, run
from tests.test_explain_output import texts
from tests.test_tasks import TRANSFORMER, report
from tests.test_training import StopAt, final
from tests.toy import WORDS, toy_config, toy_settings

BOTH_SOURCES: dict[str, Any] = {
    "run": "two",
    "data": {"train": "train2.tsv", "valid": "test2.tsv", "test": "test2.tsv"},
    "source": [{"max_length": 20}, {"max_length": 10, "tokens": {"kind": "char"}}],
    "model": {"encoder": [TRANSFORMER, {"kind": "lstm"}], "decoder": TRANSFORMER},
}


def write_two_sources(folder: Path) -> None:
    """Two words, and a third in letters of its own: the target is the second, the third and the first in capitals."""
    lines = [(WORDS[i % 8], WORDS[i // 8 % 8], WORDS[i // 64 % 8]) for i in range(512)]
    random.Random(0).shuffle(lines)
    table = [f"{a} {b}\t{c}\t{b.upper()} {c.upper()} {a.upper()}\t1-0 0-2\n" for a, b, c in lines]
    (folder / "train2.tsv").write_text("".join(table[60:]))
    (folder / "test2.tsv").write_text("".join(table[:60]))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two sources."""
    folder = tmp_path_factory.mktemp("two")
    write_two_sources(folder)
    quiet = {"model": {"dropout": 0.0}, "training": {"steps": 350, "validate_every": 1000, "save_every": 1000}}
    regard.train(regard.Config.parse(merge(merge(toy_settings(), quiet), BOTH_SOURCES), folder))
    return folder / "two"


def test_two_sources_are_learnt_together(two: Path, tmp_path: Path) -> None:
    scores = report(two)["scores"]
    assert scores["exact"]["score"] > 80
    assert scores["pointing"]["score"] > 60  # gold links are of the first source, whose words come first
    assert {path.name for path in two.glob("*.json")} >= {"tokens.json", "source2.json"}
    assert "left out" not in good("evaluate", two, two.parent / "test2.tsv")
    table = "alpha beta\tgamma\n"
    assert good("generate", two, text=table) == "BETA GAMMA ALPHA\n"
    (tmp_path / "in.tsv").write_text(table)
    assert good("generate", two, tmp_path / "in.tsv", "--align") == "BETA GAMMA ALPHA\t0-2 1-0 2-1\n"
    done = run("generate", two, text=f"alpha beta\n{table}")
    assert done.stdout == "\nBETA GAMMA ALPHA\n"
    assert "standard input:1 has 1 of 2 sources; they are parted by tabs" in done.stderr
    system = regard.load(two)
    assert repr(system).startswith(f"System('{two}': text + text to text, encoder transformer + lstm, decoder transf")
    assert system.generate([("alpha beta", "gamma"), ["eta zeta", "beta"]]) == ["BETA GAMMA ALPHA", "ZETA BETA ETA"]
    for given, told in (
        ([("alpha", "beta", "gamma")], "texts: number 0 should be 2 strings, one for each source, not ('alpha',"),
        (["alpha"], "texts: number 0 should be 2 strings, one for each source, not 'alpha' (str)"),
        ([("alpha", 3)], "texts: number 0 should be strings, but number 1 is 3 (int)"),
    ):
        with pytest.raises(TypeError, match=re.escape(told)):
            system.generate(given)
    assert system.sentence_embeddings([("alpha", "beta")]).shape == (1, 48)
    assert system.token_embeddings([("alpha", "beta")])[0].shape == (2 + 5, 48)  # a word, four letters, and their ends
    (tmp_path / "in.txt").write_text("alpha\tbeta\tx\nbeta\tbeta\ty\nbeta eta\teta\ty\n")
    good("space", two, tmp_path / "in.txt", "-o", tmp_path / "space.json")
    found = json.loads((tmp_path / "space.json").read_text())
    assert (found["groups"], found["labels"][0]) == (["x", "y", "y"], "alpha | beta")


def test_an_explanation_says_which_piece_is_of_which_source(two: Path, tmp_path: Path) -> None:
    system = regard.load(two)
    whole = system.explain(("alpha beta", "eta"))
    assert whole.source == ["alpha", "beta", "</s>", "e", "t", "a", "</s>"]
    assert whole.source_word == [0, 1, -1, 2, 2, 2, -1]
    assert [(part.name, part.start, part.end) for part in whole.parts] == [("1: text", 0, 3), ("2: text", 3, 7)]
    cross = "decoder.blocks.0.cross_attention"
    assert [(layer.name, layer.kind, layer.part, layer.weights.shape) for layer in whole.layers] == [
        ("encoder.encoders.0.blocks.0.self_attention", "encoder", 1, (2, 3, 3)),
        ("decoder.blocks.0.self_attention", "decoder", 0, (2, 4, 4)),
        (cross, "cross", 0, (2, 4, 7)),
    ]
    first, second = whole.part(1), whole.part(2)
    assert (first.source, first.source_word) == (["alpha", "beta", "</s>"], [0, 1, -1])
    assert (second.source, second.source_word) == (["e", "t", "a", "</s>"], [0, 0, 0, -1])
    assert [layer.name for layer in first.layers] == ["encoder.encoders.0.blocks.0.self_attention", cross]
    assert [layer.name for layer in second.layers] == [cross]
    both = np.concatenate((first.weights(cross), second.weights(cross)), axis=1)
    np.testing.assert_array_equal(both, whole.weights(cross))
    np.testing.assert_allclose(both.sum(-1), 1.0, atol=1e-5)
    assert (0, 2) in first.alignment()
    assert second.weights()[1, :3].sum() > 0.5  # ETA is written from its letters
    for number in (0, 3):
        with pytest.raises(ConfigError, match=f"no source {number} in this explanation; it has 2, counted from 1"):
            whole.part(number)
    good("explain", two, "alpha beta\teta", "-o", tmp_path / "a.json")
    (found,) = map(Explanation.from_json, json.loads((tmp_path / "a.json").read_text()))
    assert (found.parts, [layer.part for layer in found.layers]) == (whole.parts, [1, 0, 0])
    good("explain", two, "alpha beta\teta", "-o", tmp_path / "a.html")


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_training_on_several_sources_resumes_exactly(tmp_path: Path, shared: bool) -> None:
    """Also where the tokens of each are drawn anew."""
    write_two_sources(tmp_path)
    drawn = {"kind": "bpe", "size": 320, "sampling": 0.3}
    change: dict[str, Any] = {
        **BOTH_SOURCES, "run": "run", "tokens": drawn, "training": {"steps": 16, "validate_every": 8, "save_every": 5},
    }  # fmt: skip
    change["source"] = ["text", "text"] if shared else [{}, {"tokens": {**drawn, "kind": "unigram"}}]
    if shared:
        change["model"] = {"encoder": TRANSFORMER, "decoder": TRANSFORMER, "share_encoder": True}
    config = toy_config(tmp_path, **change)
    regard.train(config)
    whole = final(tmp_path)
    assert any(name.startswith("encoder.encoders.1.") for name in whole) != shared
    shutil.rmtree(tmp_path / "run")
    for step in (4, 9):
        with pytest.raises(Stopped):
            regard.train(config, StopAt(step))
    regard.train(config)
    assert all(torch.equal(whole[x], tensor) for x, tensor in final(tmp_path).items())


# Models of weights drawn at random


def untrained(sources: list[Any], **model: Any) -> System:
    """A model of these sources."""
    settings = {
        "source": sources,
        "tokens": {"kind": "word"},
        "model": {"d_model": 16, "decoder": TRANSFORMER, **model},
    }
    sides = Sides.of(parse(settings))
    sides.use({SHARED: train_tokenizer(WORDS, "word", 100)})
    made = System(new_task(sides, torch.device("cpu")), Path())
    redrawn(made.model).float()
    return made


def test_an_image_among_the_sources_is_shown_as_one(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(16, 16, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    halved = {"kind": "convolution", "halvings": 2, "channels": 4}
    image: dict[str, Any] = {"kind": "image", "size": 16}
    made = untrained([image, "text"], encoder=[{**TRANSFORMER, "stem": halved}, TRANSFORMER])
    whole = made.explain((str(tmp_path / "a.png"), "alpha beta"), "GAMMA")
    assert whole.source[:5] == ["1,1", "1,2", "1,3", "1,4", "2,1"]
    assert whole.source[16:] == ["alpha", "beta", "</s>"]
    assert whole.source_word == [*range(16), 16, 17, -1]
    assert whole.picture is None  # it is not all there is to look at
    assert [(part.name, part.start, part.end) for part in whole.parts] == [("1: image", 0, 16), ("2: text", 16, 19)]
    shapes = {layer.name: (layer.part, layer.weights.shape[1:]) for layer in whole.layers}
    assert shapes == {
        "encoder.encoders.0.blocks.0.self_attention": (1, (16, 16)),
        "encoder.encoders.1.blocks.0.self_attention": (2, (3, 3)),
        "decoder.blocks.0.self_attention": (0, (2, 2)),
        "decoder.blocks.0.cross_attention": (0, (2, 19)),
    }
    seen, read = whole.part(1), whole.part(2)
    np.testing.assert_array_equal(seen.picture, pixels)
    assert (seen.side, read.picture) == (4, None)
    assert read.source_word == [0, 1, -1]
    assert whole.part(1).part(1) is not None  # which has but one
    (again,) = [Explanation.from_json(json.loads(json.dumps(whole.to_json())))]
    np.testing.assert_array_equal(again.part(1).picture, pixels)
    seen.save(tmp_path / "seen.png")
    whole.save(tmp_path / "whole.html")


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_attention_is_cut_to_each_example_and_each_source(shared: bool) -> None:
    """In a batch as by itself; a source that shares its encoder attends to itself as it would in another's place."""
    made = untrained(["text", "text"], encoder=TRANSFORMER, share_encoder=shared)
    pairs = [("alpha", "beta gamma delta"), ("alpha beta gamma delta eta", "zeta"), ("eta eta", "theta zeta")]
    items, targets = made.task.source.encode_many(pairs), [[7, 8], [9], [7, 9, 8]]
    together = dict(made.task.attention(items, targets))
    for i, pair in enumerate(pairs):
        ((_, alone),) = made.task.attention([items[i]], [targets[i]])
        own = [len(text.split()) + 1 for text in pair]
        sizes = {name: matrix.shape[1:] for name, matrix in alone.items()}
        assert sizes == {
            "encoder.encoders.0.blocks.0.self_attention": (own[0], own[0]),
            "encoder.encoders.1.blocks.0.self_attention": (own[1], own[1]),
            "decoder.blocks.0.self_attention": (len(targets[i]) + 1,) * 2,
            "decoder.blocks.0.cross_attention": (len(targets[i]) + 1, sum(own)),
        }
        for name, matrix in alone.items():
            np.testing.assert_allclose(together[i][name], matrix, atol=1e-5)
            np.testing.assert_allclose(matrix.sum(-1), 1.0, atol=1e-5)
        ((_, swapped),) = made.task.attention([items[i][::-1]], [targets[i]])
        close = np.allclose(
            swapped["encoder.encoders.0.blocks.0.self_attention"], alone["encoder.encoders.1.blocks.0.self_attention"],
            atol=1e-5,
        )  # fmt: skip
        assert close == shared


def test_one_of_several_sources_is_drawn_with_its_own_pieces(tmp_path: Path) -> None:
    made = untrained(["text", "text"], encoder=TRANSFORMER)
    whole = made.explain(("alpha beta", "gamma"), "delta")
    for number, pieces in ((0, ["alpha", "beta", "</s>"]), (1, ["gamma", "</s>"])):
        layer = whole.layers[number]
        assert whole.axes(layer) == (pieces, pieces)
        heat_map(whole, tmp_path / "a.svg", layer=layer.name)
        drawn = texts(tmp_path / "a.svg")
        assert all(drawn[piece] == 2 for piece in pieces)
        assert not {"alpha", "beta", "gamma"} - set(pieces) & drawn.keys()
    assert whole.axes(whole.layer()) == (["delta", "</s>"], [*whole.source])
    assert '"part":2' in page([whole])


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the script, and is not here")
def test_the_page_shows_one_of_several_sources_with_its_own_pieces() -> None:
    script = files("regard.explain").joinpath("page.js").read_text(encoding="utf-8")
    parts = [r"^const sum = .*?;$", r"^const spoken = .*?;$", r"^function places\(.*?^}", r"^function sides\(.*?^}"]
    found = [re.search(part, script, re.MULTILINE | re.DOTALL) for part in parts]
    program = "\n".join(match[0] for match in found if match) + """
const x = JSON.parse(require("fs").readFileSync(0));
for (const layer of x.layers)
  console.log(JSON.stringify(sides(x, layer, "words").map((side) => side.map((p) => p.text))));
"""  # fmt: skip
    whole = untrained(["text", "text"], encoder=TRANSFORMER).explain(("alpha beta", "gamma"), "delta")
    data = json.dumps(whole.to_json())
    done = subprocess.run(["node", "-e", program], input=data, capture_output=True, text=True, check=True)
    first, second, _, cross = map(json.loads, done.stdout.splitlines())
    assert first == [["alpha", "beta", "</s>"]] * 2
    assert second == [["gamma", "</s>"]] * 2
    assert cross == [["delta", "</s>"], ["alpha", "beta", "</s>", "gamma", "</s>"]]
