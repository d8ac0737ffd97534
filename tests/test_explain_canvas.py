"""Attention drawn on pictures, sounds and frames, in print and on the page: layers, rollout, lanes of words, gold."""

from __future__ import annotations

import io
import json
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch
from numpy.typing import NDArray

from regard.data.modality import Canvas
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import median_place
from regard.explain import page as page_module
from regard.explain.page import page
from regard.explain.trace import Explanation, Layer, Part
from tests import equations
from tests.conftest import crossed
from tests.scripts import node, run_module
from tests.test_explain_output import Reader
from tests.test_explain_picture import brightest, pixels, titles

GRID, MOMENTS, SECONDS = 4, 10, 2.0
BLOCKS = [f"encoder.blocks.{i}.self_attention" for i in range(3)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written, in place of their files."""
    kept: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    return kept


def soft(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Random attention, whose rows sum to one."""
    scores = np.exp(3 * np.random.default_rng(seed).normal(size=shape))
    return (scores / scores.sum(-1, keepdims=True)).astype(np.float32)


def labelled(*, marked: bool = True, layers: int = 3) -> Explanation:
    """A picture of cells under a label, with a class token before them or without."""
    cells = [f"{i // GRID + 1},{i % GRID + 1}" for i in range(GRID**2)]
    n = GRID**2 + marked
    picture = np.full((32, 32, 3), 140, dtype=np.uint8)
    return Explanation(
        ["<class>"] * marked + cells, ["ring"], [-1] * marked + [*range(GRID**2)], [0], [-0.25],
        [Layer(BLOCKS[i], "encoder", soft(2, n, n, seed=i)) for i in range(layers)], None,
        canvas=Canvas(picture, GRID, GRID), places=[-1],
    )  # fmt: skip


def wav() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(bytes(int(2 * 8000 * SECONDS)))
    return file.getvalue()


def heard(gold: Any = ((1, 0), (2, 0), (6, 1), (7, 1), (8, 1), (12, 1))) -> Explanation:
    """Three pieces, two words and an end, that listen to a sound of ten moments; the second ends later than that."""
    spectrogram = np.random.default_rng(0).integers(256, size=(8, 40, 3)).astype(np.uint8)
    return Explanation(
        [str(i) for i in range(MOMENTS)], ["▁a", "▁lo", "ng", "</s>"], [*range(MOMENTS)], [0, 1, 1, -1], [-0.5] * 4,
        [Layer(BLOCKS[0], "encoder", soft(2, MOMENTS, MOMENTS)), Layer("cross", "cross", soft(2, 4, MOMENTS, seed=1))],
        "cross", canvas=Canvas(spectrogram, 1, MOMENTS, "sound", SECONDS, wav()), gold=list(gold),
    )  # fmt: skip


def filmed(cell: int, *, frames: int = 3, gold: Any = ()) -> Explanation:
    """Frames of 2 x 2 cells in a strip, and a word that looks at one cell of all."""
    strip = np.full((16, 16 * frames, 3), 140, dtype=np.uint8)
    weights = np.eye(4 * frames, dtype=np.float32)[[cell]][None]
    return Explanation(
        [str(i) for i in range(4 * frames)], ["red"], [*range(4 * frames)], [0], [-0.5],
        [Layer("cross", "cross", weights)], "cross", canvas=Canvas(strip, 2, 2 * frames, "frames", 1.5),
        gold=list(gold),
    )  # fmt: skip


# Rollout


def test_rollout_is_the_published_product() -> None:
    one = labelled()
    expected = equations.rollout([layer.weights.astype(np.float64) for layer in one.layers])
    np.testing.assert_allclose(one.rollout(), expected, rtol=1e-6)
    np.testing.assert_allclose(one.rollout().sum(-1), 1.0, rtol=1e-6)
    backwards = replace(one, layers=one.layers[::-1])
    assert not np.allclose(backwards.rollout(), expected), "the order of layers matters"
    np.testing.assert_array_equal(one.layer("rollout").weights[0], one.rollout())
    np.testing.assert_array_equal(one.weights("rollout"), one.rollout())


def test_rollout_over_several_sources_mixes_them_only_where_a_joint_layer_does() -> None:
    """Written as layers over all pieces, in which a source that attends to itself leaves the others as they are."""
    own, other, joint = soft(2, 3, 3), soft(2, 2, 2, seed=1), soft(2, 5, 5, seed=2)
    layers = [
        Layer("encoder.encoders.0.x", "encoder", own, part=1),
        Layer("encoder.encoders.1.x", "encoder", other, part=2),
        Layer("encoder.joint.x", "encoder", joint),
    ]
    parts = [Part("1: image", 0, 3, Canvas(np.zeros((4, 12, 3), np.uint8), 1, 3)), Part("2: text", 3, 5)]
    one = Explanation(
        ["1", "2", "3", "what", "</s>"], ["ring"], [0, 1, 2, 3, -1], [0], [-0.5], layers, None, parts=parts,
        places=[-1], gold=[(2, 0), (3, 0)],
    )  # fmt: skip
    wide = np.tile(np.eye(5), (2, 1, 1))
    wide[:, :3, :3], wide[:, 3:, 3:] = own, other
    expected = np.asarray(equations.rollout([wide, joint.astype(np.float64)]), dtype=np.float64)
    np.testing.assert_allclose(one.rollout(), expected, rtol=1e-6)
    apart = replace(one, layers=layers[:2]).rollout()
    assert (apart[:3, 3:] == 0).all()
    assert (apart[3:, :3] == 0).all()
    # What is predicted of all is shown on the picture by itself, by what came of each cell.
    seen = one.part(1)
    assert seen.best == "rollout"
    np.testing.assert_allclose(seen.weights()[0], expected.mean(0)[:3], rtol=1e-6)
    assert (seen.gold, one.part(2).gold) == ([(2, 0)], [(0, 0)])
    (whole,) = Reader(page([one])).data
    assert len(Explanation.from_json(whole).parts) == 2
    (alone,) = map(Explanation.from_json, whole["by_source"])
    assert (alone.canvas is not None, alone.source, alone.best) == (True, ["1", "2", "3"], "rollout")


def test_rollout_needs_layers_that_follow_one_another(tmp_path: Path) -> None:
    words = Explanation(["a"], ["b"], [0], [0], [0.0], [Layer("x", "cross", soft(1, 1, 1))], "x")
    with pytest.raises(ConfigError, match="rollout needs an encoder with self-attention, such as kind: transformer"):
        words.save(tmp_path / "a.png", layer="rollout")
    one = labelled()
    shorter = replace(one, layers=[*one.layers[:1], Layer("encoder.late", "encoder", soft(1, 3, 3))])
    with pytest.raises(ConfigError, match=r"same 17 pieces; encoder\.late attends from 3 to 3"):
        shorter.rollout()
    with pytest.raises(ConfigError, match=r"no attention 'x'.*blocks\.2\.self_attention, rollout$"):
        one.layer("x")
    assert not list(tmp_path.iterdir())


# Pictures


@pytest.mark.parametrize("marked", [True, False], ids=["class token", "mean"])
def test_under_a_label_each_layer_and_their_rollout_are_shown(
    marked: bool, drawn: list[Figure], tmp_path: Path
) -> None:  # fmt: skip
    one = labelled(marked=marked)
    one.save(tmp_path / "a.png")
    (figure,) = drawn
    assert titles(figure) == ["", "layer 1", "layer 2", "layer 3", "rollout"]
    maps = [*(layer.weights.mean(0) for layer in one.layers), one.rollout()]
    rows = [weights[0, 1:] if marked else weights.mean(0) for weights in maps]
    assert [brightest(axes) for axes in figure.axes[1:]] == [int(row.argmax()) for row in rows]
    place = "the class token" if marked else "the mean of all cells"
    assert figure.texts[0].get_text() == f"predicted: ring 78%; 3 layers, mean of heads, from {place}"
    shares = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert shares == [f"{row.max():.0%}" for row in rows]
    least = pixels(figure.axes[-1]).min()  # of rollout, what all cells have is dark
    assert least < 0.3 * 140


def test_heads_by_layers_and_one_layer_by_itself(drawn: list[Figure], tmp_path: Path) -> None:
    one = labelled()
    one.save(tmp_path / "a.png", grid=True)
    one.save(tmp_path / "a.png", layer=BLOCKS[1], head=1)
    one.save(tmp_path / "a.png", layer=BLOCKS[1], grid=True)
    one.save(tmp_path / "a.png", layer="rollout")
    one.save(tmp_path / "a.png", head=1)
    table, head, heads, rolled, first = drawn
    assert titles(table) == ["", "layer 1", "layer 2", "layer 3", "rollout", "", "", ""]
    cells = [brightest(axes) for axes in table.axes[5:]]
    assert cells == [int(layer.weights[1, 0, 1:].argmax()) for layer in one.layers]
    (panel,) = head.axes[1:]
    assert brightest(panel) == int(one.layers[1].weights[1, 0, 1:].argmax())
    assert head.texts[0].get_text() == f"predicted: ring 78%; {BLOCKS[1]}, head 1, from the class token"
    assert [axes.get_ylabel() for axes in heads.axes[1:]] == ["head 0", "head 1"]
    assert brightest(rolled.axes[1]) == int(one.rollout()[0, 1:].argmax())
    assert [brightest(axes) for axes in first.axes[1:4]] == cells
    assert first.texts[0].get_text().endswith("3 layers, head 1, from the class token")


def test_what_a_word_names_is_outlined(drawn: list[Figure], tmp_path: Path) -> None:
    """Cells 5, 6 and 9 of a grid of four make a corner: eight sides of cells have nothing of it beyond them."""
    picture = np.full((32, 32, 3), 140, dtype=np.uint8)
    one = Explanation(
        [str(i) for i in range(16)], ["red", "r", "·ing"], [*range(16)], [0, 1, 1], [-0.5] * 3,
        [Layer("cross", "cross", soft(1, 3, 16))], "cross", canvas=Canvas(picture, GRID, GRID),
        gold=[(5, 1), (6, 1), (9, 1)],
    )  # fmt: skip
    one.save(tmp_path / "a.png")
    (figure,) = drawn
    _, red, ring = figure.axes
    assert not red.lines
    side = np.asarray(ring.get_images()[0].get_array()).shape[0] / GRID
    found = {
        tuple(np.round((np.array(line.get_xydata()) + 0.5) / side).astype(int).ravel().tolist()) for line in ring.lines
    }
    # (column, row) of both ends
    assert found == {
        (1, 1, 2, 1), (2, 1, 3, 1), (3, 1, 3, 2), (2, 2, 3, 2), (2, 2, 2, 3), (1, 3, 2, 3), (1, 2, 1, 3), (1, 1, 1, 2)
    }  # fmt: skip
    assert figure.texts[1].get_text().endswith("Outlined: where the thing is that the word names.")
    replace(one, gold=[]).save(tmp_path / "a.png")
    assert "Outlined" not in drawn[1].texts[1].get_text()


@pytest.mark.parametrize("cell", [0, 3, 11])
def test_frames_are_lit_each_by_itself(cell: int, drawn: list[Figure], tmp_path: Path) -> None:
    filmed(cell, gold=[(cell, 0)]).save(tmp_path / "a.png")
    filmed(cell).save(tmp_path / "a.png", grid=True)
    for figure in drawn:
        lit = pixels(figure.axes[1]).mean(-1)
        assert lit.shape[1] == 3 * lit.shape[0]
        frames = np.split(lit, 3, axis=1)
        row, column = divmod(cell, 6)
        frame = column // 2
        assert frames[frame].max() > 140
        assert all(other.max() < 0.5 * 140 for i, other in enumerate(frames) if i != frame)
        quarter = [x.mean() for half in np.split(frames[frame], 2) for x in np.split(half, 2, axis=1)]
        assert int(np.argmax(quarter)) == 2 * row + column % 2
    assert titles(drawn[0]) == ["", "red"]
    assert len(drawn[0].axes[1].lines) == 4
    for axes in drawn[0].axes:  # a line between frames
        (between,) = axes.collections
        assert [x for (x, _), _ in between.get_segments()] == pytest.approx(  # type: ignore[attr-defined]
            [pixels(axes).shape[1] * i / 3 - 0.5 for i in (1, 2)]
        )
    assert drawn[0].axes[0].get_position().width == pytest.approx(3 * drawn[0].axes[0].get_position().height)


# Sound


def test_a_lane_for_each_word_on_the_time_of_the_sound(drawn: list[Figure], tmp_path: Path) -> None:
    one = heard()
    one.save(tmp_path / "a.png")
    (figure,) = drawn
    sound, *lanes = figure.axes
    assert [axes.get_ylabel() for axes in lanes] == ["a", "long", "</s>"]
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, SECONDS)}
    assert len({(axes.get_position().x0, axes.get_position().x1) for axes in figure.axes}) == 1
    assert [axes.get_xlabel() for axes in lanes] == ["", "", "seconds"]
    weights = one.weights()
    for axes, expected in zip(lanes, [weights[0], weights[1:3].mean(0), weights[3]], strict=True):
        (steps,) = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
        values, edges, _ = steps.get_data()
        np.testing.assert_allclose(values, expected / expected.max(), rtol=1e-5)
        np.testing.assert_allclose(edges, np.linspace(0, SECONDS, MOMENTS + 1))
    spans = [[x for x in axes.patches if isinstance(x, Rectangle)] for axes in lanes]
    assert [(round(x.get_x(), 6), round(x.get_x() + x.get_width(), 6)) for some in spans for x in some] == [
        (0.2, 0.6), (1.2, 1.8),
    ]  # fmt: skip
    assert sorted(round(float(np.asarray(line.get_xdata())[0]), 6) for line in sound.lines) == [0.2, 0.6, 1.2, 1.8]
    assert {text.get_text(): round(text.get_position()[0], 6) for text in sound.texts} == {"a": 0.4, "long": 1.5}


def test_without_gold_a_word_stands_where_it_was_listened_for(drawn: list[Figure], tmp_path: Path) -> None:
    one = heard(gold=())
    assert one.canvas is not None
    one.save(tmp_path / "a.png")
    replace(one, canvas=replace(one.canvas, seconds=0.0)).save(tmp_path / "a.png")
    sound = drawn[0].axes[0]
    attended = median_place(one.words()[0])
    assert attended is not None
    assert sound.texts[0].get_position()[0] == pytest.approx(attended * SECONDS / MOMENTS)
    assert [text.get_text() for text in sound.texts] == ["a", "long", "</s>"]
    assert not sound.lines
    assert drawn[1].axes[-1].get_xlabel() == "moments"
    assert drawn[1].axes[0].get_xlim() == (0.0, MOMENTS)


def test_each_head_of_a_sound_and_layers_over_it(drawn: list[Figure], tmp_path: Path) -> None:
    one = heard()
    one.save(tmp_path / "a.png", grid=True)
    one.save(tmp_path / "a.png", layer=BLOCKS[0])
    one.save(tmp_path / "a.png", layer="rollout")
    alone = replace(one, layers=one.layers[:1], best=None, gold=[])
    replace(alone, target=["ring"], target_word=[0], places=[-1]).save(tmp_path / "a.png")
    heads, mapped, rolled, label = drawn
    assert [[text.get_text() for text in axes.texts] for axes in heads.axes[1:]] == [["head 0"], ["head 1"]]
    for axes, weights in zip(heads.axes[1:], one.layer("cross").weights, strict=True):
        (mesh,) = axes.collections
        values = np.asarray(mesh.get_array()).reshape(3, MOMENTS)
        np.testing.assert_allclose(values[1], weights[1:3].mean(0), rtol=1e-5)
        assert len(axes.lines) == 4  # the borders of two words
    assert len(mapped.axes[0].collections[0].get_paths()) > MOMENTS, "moments by moments, as a map"
    assert [axes.get_ylabel() for axes in rolled.axes[1:]] == ["rollout"]
    assert [text.get_text() for text in rolled.axes[0].texts] == ["a", "long"]  # when they are spoken is known
    assert [axes.get_ylabel() for axes in label.axes[1:]] == ["layer 1", "rollout"]
    assert not label.axes[0].texts


@pytest.mark.parametrize(("name", "suffix"), crossed(["heard", "filmed", "labelled"], [".svg", ".png", ".pdf"]))
def test_figures_are_the_same_each_time(name: str, suffix: str, tmp_path: Path) -> None:
    one = {"heard": heard(), "filmed": filmed(3), "labelled": labelled(layers=1)}[name]
    first, second = (one.save(tmp_path / f"{i}{suffix}") for i in range(2))
    assert first.read_bytes() == second.read_bytes()


# Text


def test_words_that_belong_together_are_framed_in_a_heat_map(drawn: list[Figure], tmp_path: Path) -> None:
    one = Explanation(
        ["a", "b", "</s>"], ["x", "y", "z", "</s>"], [0, 1, -1], [0, 1, 1, -1], [-0.5] * 4,
        [Layer("cross", "cross", soft(2, 4, 3)), Layer("decoder", "decoder", soft(2, 4, 4))], "cross",
        gold=[(1, 1), (0, 2)],
    )  # fmt: skip
    one.save(tmp_path / "a.png")
    one.save(tmp_path / "a.png", grid=True)
    one.save(tmp_path / "a.png", layer="decoder")
    frames = [
        [[x.get_xy() for x in axes.patches if isinstance(x, Rectangle)] for axes in figure.axes[:2]] for figure in drawn
    ]
    assert frames[0][0] == frames[1][0] == frames[1][1] == [(1, 1), (1, 2)]  # column, row: both pieces of word 1
    assert frames[2][0] == []


# Data


def test_json_keeps_sound_time_frames_and_gold() -> None:
    strip = filmed(3, gold=[(3, 0)])
    assert strip.canvas is not None
    for before in (heard(), strip, replace(strip, canvas=replace(strip.canvas, frames=2)), labelled()):
        data = json.loads(json.dumps(before.to_json()))
        after = Explanation.from_json(data)
        assert before.canvas is not None
        assert after.canvas is not None
        np.testing.assert_array_equal(after.canvas.pixels, before.canvas.pixels)
        assert {**vars(after.canvas), "pixels": None} == {**vars(before.canvas), "pixels": None}
        assert after.gold == before.gold
        assert after.to_json() == data
    canvas = heard().to_json()["canvas"]
    assert canvas["sound"].startswith("data:audio/wav;base64,UklGR")
    assert "sound" not in filmed(3).to_json()["canvas"]
    with pytest.raises(DataError, match=r"the sound of a saved explanation cannot be read .*data:audio/wav;base64"):
        Explanation.from_json({**heard().to_json(), "canvas": {**canvas, "sound": "data:audio/wav;base64,!"}})


def test_the_page_holds_the_sound_and_of_many_weights_the_mean_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    document = page([heard(), filmed(3)])
    assert document.count("data:audio/wav;base64,") == 1
    (sound, _) = Reader(document).data
    assert "averaged" not in sound
    assert 'make("audio"' in Reader(document).scripts[None]
    monkeypatch.setattr(page_module, "MOST", 2 * MOMENTS**2 - 1)
    (sound, _) = Reader(page([heard(), filmed(3)])).data
    assert sound["averaged"]
    encoder, cross = sound["layers"]
    np.testing.assert_allclose(encoder["weights"], heard().layers[0].weights.mean(0, keepdims=True), atol=1e-4)
    assert len(cross["weights"]) == 2
    np.testing.assert_allclose(Explanation.from_json(sound).rollout(), heard().rollout(), atol=1e-3)


def test_a_page_leaves_out_layers_that_no_browser_could_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [Layer(f"cross.{i}", "cross", soft(2, 3, 5, seed=i)) for i in range(6)]
    layers += [Layer(f"encoder.{i}", "encoder", soft(2, 5, 5, seed=i)) for i in range(2)]
    long = Explanation(list("abcde"), list("xyz"), [*range(5)], [*range(3)], [-0.1] * 3, layers, "cross.1")
    monkeypatch.setattr(page_module, "MOST", 40)
    (data,) = Reader(page([long])).data
    assert [(layer["name"], len(layer["weights"])) for layer in data["layers"]] == [
        ("cross.1", 1), ("encoder.0", 1), ("encoder.1", 1),
    ]  # fmt: skip
    assert (data["averaged"], data["left_out"]) == (True, 5)
    np.testing.assert_allclose(data["layers"][0]["weights"][0], long.weights("cross.1"), atol=1e-4)
    monkeypatch.setattr(page_module, "MOST", 200)
    assert not {"averaged", "left_out"} & Reader(page([long])).data[0].keys()


@node
def test_the_page_computes_what_print_does() -> None:
    needed = {"numbers": ["rollout", "median", "shares", "frameTotals", "playing"]}
    program = """
const [label, sound, strip] = given;
say(rollout(label).weights[0]);
say(rollout({ ...label, layers: [...label.layers, { kind: "encoder", weights: [[[1]]] }] }));
const rows = sound.layers[1].weights[0];
say(rows.map(median));
say(median([0, 0, 0]));
say([shares([0.1, 0.3, 0.2], false), shares([0.1, 0.3, 0.2], true), shares([0.5, 0.5], true)]);
say([0, 5].map((cell) => playing([[0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0.4, 0.6], [0.2, 0.8, 0, 0, 0, 0]], cell)));
say(frameTotals(strip.canvas, [1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60]));
"""
    one, sound = labelled(), heard()
    rolled, unlike, medians, none, scaled, marked, totals = run_module(
        needed, program, [one.to_json(), sound.to_json(), filmed(0).to_json()]
    )
    np.testing.assert_allclose(rolled, one.rollout(), atol=1e-4)
    assert unlike is None
    assert medians == pytest.approx([median_place(row) for row in sound.layers[1].weights[0]], abs=1e-3)
    assert none is None
    np.testing.assert_allclose(scaled[0], [1 / 3, 1, 2 / 3])
    np.testing.assert_allclose(scaled[1], [0, 1, 0.5])
    assert scaled[2] == [1, 1]
    assert marked == [[False, True, False], [True, True, False]]
    assert totals == [33, 77, 121]


@node
def test_the_page_puts_pieces_into_cells() -> None:
    needed = {"places": ["cellSides", "attends", "belong"]}
    program = """
const [label, mean, sound] = given;
for (const x of [label, mean]) {
  const [query, key] = cellSides(x, x.layers[0], "pieces");
  say([query.map((p) => p.text), key.map((p) => p.text), attends(x.layers[0], query[0], key)]);
}
const [query, key] = cellSides(sound, sound.layers[1], "words");
say(key.map((to) => belong(sound, query[0], to)));
for (const unit of ["pieces", "words"]) say(cellSides(sound, sound.layers[1], unit)[0].map((p) => [p.text, p.gold]));
"""
    one, other = labelled(), labelled(marked=False)
    label, mean, linked, pieces, words = run_module(needed, program, [x.to_json() for x in (one, other, heard())])
    cells = other.source
    assert label[0] == ["<class>", *cells]
    assert label[1] == mean[1] == cells
    assert mean[0] == ["mean", *cells]
    np.testing.assert_allclose(label[2], one.layers[0].weights.mean(0)[0, 1:], atol=1e-4)
    np.testing.assert_allclose(mean[2], other.layers[0].weights.mean(0).mean(0), atol=1e-4)
    assert linked == [i in (1, 2) for i in range(MOMENTS)]
    assert pieces == [["▁a", [1, 2]], ["▁lo", [6, 7, 8]], ["ng", [6, 7, 8]], ["</s>", []]]
    assert words == [["a", [1, 2]], ["long", [6, 7, 8]], ["</s>", []]]
