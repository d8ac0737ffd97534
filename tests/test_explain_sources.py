"""What one of several sources attends to, and what of it is looked at, is told apart: cut and shown by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.config import parse
from regard.data.sides import SHARED, Sides
from regard.data.tokenizers.kinds import train_tokenizer
from regard.explain.page import page
from regard.explain.plots import heat_map
from regard.explain.trace import Explanation
from regard.loading import new_task
from regard.system import System
from tests.conftest import redrawn
from tests.scripts import node, run_module
from tests.test_explain_output import texts
from tests.toy import WORDS

TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 64}


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
    assert seen.canvas is not None
    assert (seen.canvas.columns, read.picture) == (4, None)
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


@node
def test_the_page_shows_one_of_several_sources_with_its_own_pieces() -> None:
    program = """
for (const layer of given.layers) say(sides(given, layer, "words").map((side) => side.map((p) => p.text)));
"""
    whole = untrained(["text", "text"], encoder=TRANSFORMER).explain(("alpha beta", "gamma"), "delta")
    first, second, _, cross = run_module({"places": ["sides"]}, program, whole.to_json())
    assert first == [["alpha", "beta", "</s>"]] * 2
    assert second == [["gamma", "</s>"]] * 2
    assert cross == [["delta", "</s>"], ["alpha", "beta", "</s>", "gamma", "</s>"]]
