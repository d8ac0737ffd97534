"""Attention over a picture: each word has its panel, bright where it looked; in print and on the page."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from regard.data.modality import Canvas
from regard.data.synthetic.scenes import scenes
from regard.errors import DataError
from regard.explain import sheet
from regard.explain.looks import Look
from regard.explain.modules import text
from regard.explain.page import page, web_folder
from regard.explain.sheet import light
from regard.explain.trace import Explanation, Layer, save
from tests.conftest import crossed
from tests.scripts import node, run_module

GRID = 4
CELLS = [f"{row + 1},{column + 1}" for row in range(GRID) for column in range(GRID)]
SCENE = next(scenes(1)).render()
GREY = np.full((64, 64, 3), 140, dtype=np.uint8)
CROSS, OTHERS = "decoder.cross", ("encoder.self", "decoder.self")


def hard(cells: Sequence[int]) -> NDArray[np.float32]:
    """Attention that looks at one cell at a time."""
    return np.eye(GRID**2, dtype=np.float32)[list(cells)]


def seen(
    heads: Sequence[Sequence[int]], target: Sequence[str], words: Sequence[int], picture: Any = GREY
) -> Explanation:
    """Heads that look at one cell for each piece."""
    n = len(target)
    layers = [
        Layer(OTHERS[0], "encoder", np.full((1, GRID**2, GRID**2), GRID**-2, dtype=np.float32)),
        Layer(OTHERS[1], "decoder", np.full((1, n, n), 1 / n, dtype=np.float32)),
        Layer(CROSS, "cross", np.stack([hard(cells) for cells in heads])),
    ]
    numbers = list(range(GRID**2))
    return Explanation(
        CELLS, list(target), numbers, list(words), [-0.5] * n, layers, CROSS, canvas=Canvas(picture, GRID, GRID)
    )


# "ring" is in two pieces, and they look at two cells.
SMALL = seen([[5, 0, 3, 15], [5, 0, 3, 15]], ["red", "r", "·ing", "</s>"], [0, 1, 1, -1])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written, in place of their files."""
    kept: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    return kept


def pixels(axes: Axes) -> NDArray[np.float64]:
    (image,) = axes.get_images()
    return np.asarray(image.get_array(), dtype=np.float64)


def brightest(axes: Axes) -> int:
    """The cell of the panel that is brightest on the whole."""
    grey = pixels(axes).mean(axis=-1)
    height, width = (x // GRID for x in grey.shape)
    return int(grey.reshape(GRID, height, GRID, width).mean(axis=(1, 3)).argmax())


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def texts(path: Path) -> set[str]:
    return {x.text or "" for x in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}


def test_a_panel_for_the_picture_and_one_for_each_word(drawn: list[Figure], tmp_path: Path) -> None:
    SMALL.save(tmp_path / "a.png")
    (figure,) = drawn
    assert titles(figure) == ["", "red", "ring", "</s>"]
    assert (pixels(figure.axes[0]) == 140).all()
    assert [brightest(axes) for axes in figure.axes[1::2]] == [5, 15]
    ring = pixels(figure.axes[2]).mean(axis=-1)
    lit = ring[:: len(ring) - 1, :: len(ring) - 1]  # its pieces looked at the two upper corners, and that is even
    assert lit[0, 0] == pytest.approx(lit[0, 1])
    assert lit[0].min() > 2 * lit[1].max()
    shares = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert shares == ["100%", "50%", "100%"]
    boxes = [axes.get_position() for axes in figure.axes]
    assert all(
        one.x1 <= two.x0 or two.x1 <= one.x0 or one.y1 <= two.y0 or two.y1 <= one.y0
        for i, one in enumerate(boxes) for two in boxes[:i]
    )  # fmt: skip


def test_a_long_caption_takes_several_lines(drawn: list[Figure], tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(17)]
    seen([[i % 16 for i in range(17)]], words, range(17)).save(tmp_path / "a.png")
    (figure,) = drawn
    assert titles(figure) == ["", *words]
    assert [brightest(axes) for axes in figure.axes[1:]] == [i % 16 for i in range(17)]
    places = [axes.get_position() for axes in figure.axes]
    lines = sorted({round(box.y0, 6) for box in places})
    assert 3 <= len(lines) <= 6
    # They read like a text: from left to right, then down.
    assert places == sorted(places, key=lambda box: (-round(box.y0, 6), box.x0))


def test_one_head_or_their_mean(drawn: list[Figure], tmp_path: Path) -> None:
    two = seen([[0, 0], [10, 0]], ["a", "</s>"], [0, -1])
    for head in (None, 0, 1):
        two.save(tmp_path / "a.png", head=head)
    mean, first, second = drawn
    assert [brightest(figure.axes[1]) for figure in (first, second)] == [0, 10]
    assert {brightest(mean.axes[1])} <= {0, 10}
    assert [axes.texts[0].get_text() for axes in mean.axes[1:]] == ["50%", "100%"]
    assert [figure.texts[0].get_text() for figure in drawn] == [
        f"{CROSS}, mean of 2 heads", f"{CROSS}, head 0", f"{CROSS}, head 1",
    ]  # fmt: skip


def test_the_grid_has_a_row_for_each_head_and_a_column_for_each_word(drawn: list[Figure], tmp_path: Path) -> None:
    seen([[1, 2], [3, 4], [5, 6]], ["a", "</s>"], [0, -1]).save(tmp_path / "a.png", grid=True)
    (figure,) = drawn
    whole, *panels = figure.axes
    assert (pixels(whole) == 140).all()
    assert [brightest(axes) for axes in panels] == [1, 2, 3, 4, 5, 6]
    assert titles(figure) == ["", "a", "</s>", "", "", "", ""]
    assert [axes.get_ylabel() for axes in panels] == ["head 0", "", "head 1", "", "head 2", ""]
    assert len({axes.get_position().x0 for axes in panels}) == 2
    assert len({axes.get_position().y0 for axes in panels}) == 3


@pytest.mark.parametrize("grid", [False, True])
def test_what_does_not_look_at_the_picture_stays_a_heat_map(grid: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    SMALL.save(path, layer=OTHERS[1], grid=grid)
    assert {"<s>", "·ing"} <= texts(path)
    SMALL.save(path, grid=grid)
    assert {"red", "ring", "</s>"} <= texts(path)
    assert not {"2,3", "·ing"} & texts(path)


def test_light_is_smooth_and_keeps_the_picture_in_sight() -> None:
    for cell in (0, 5, 15):
        lit = light(GREY, hard([cell])[0].reshape(GRID, GRID)).astype(int)
        row, column = (16 * x + 8 for x in divmod(cell, GRID))
        assert lit[row, column].min() > 140  # brighter than the picture itself
        assert lit[row, column].min() >= 0.97 * lit.max()  # a corner is no brighter than the cell it belongs to
        assert lit[63 - row, 63 - column].max() < 0.5 * 140
        assert lit.min() > 10  # and elsewhere one still sees what was not looked at
        assert np.abs(np.diff(lit[..., 0], axis=0)).max() < 25
    even = light(SCENE, Look("", np.full(GRID**2, GRID**-2, dtype=np.float32)).share.reshape(GRID, GRID))
    assert (even.astype(int) >= SCENE).all()
    assert (light(SCENE, np.zeros((GRID, GRID), dtype=np.float32)) < SCENE).all()


def test_a_black_thing_that_is_looked_at_shines() -> None:
    lit = light(np.zeros((64, 64, 3), dtype=np.uint8), hard([5])[0].reshape(GRID, GRID))
    assert lit[24, 24].min() > 50
    assert lit[60, 60].max() == 0


@pytest.mark.filterwarnings("ignore:no installed font has")  # it depends on the machine
@pytest.mark.parametrize(("grid", "suffix"), crossed([False, True], [".png", ".svg", ".pdf"]))
def test_a_sheet_is_written_and_the_same_each_time(suffix: str, grid: bool, tmp_path: Path) -> None:
    hostile = ["<b>", "$x_1$", "猫は", "\x00", "\ud800", "", "x" * 500, "</s>"]
    wide = np.asarray(Image.fromarray(SCENE).resize((90, 30)))
    one = seen([range(8), range(8)], hostile, [*range(7), -1], wide)
    first, second = one.save(tmp_path / f"a{suffix}", grid=grid), one.save(tmp_path / f"b{suffix}", grid=grid)
    assert first.read_bytes() == second.read_bytes()
    if suffix == ".svg":
        assert {"<b>", "$x_1$", "猫は", r"\x00", "x" * 23 + "…"} <= texts(first)
    if suffix == ".png":
        with Image.open(first) as image:
            assert all(200 < side < 3000 for side in image.size)


def test_a_picture_keeps_its_shape(drawn: list[Figure], tmp_path: Path) -> None:
    seen([[0]], ["a"], [0], np.full((30, 90, 3), 9, dtype=np.uint8)).save(tmp_path / "a.png")
    for axes in drawn[0].axes:
        assert axes.get_position().width == pytest.approx(3 * axes.get_position().height)


def test_json_keeps_the_picture_and_only_where_there_is_one() -> None:
    one = seen([[0, 1]], ["a", "</s>"], [0, -1], SCENE)
    data = json.loads(json.dumps(one.to_json()))
    with Image.open(io.BytesIO(base64.b64decode(data["canvas"]["pixels"].split(",")[1]))) as image:
        assert np.array_equal(np.asarray(image), SCENE)
    after = Explanation.from_json(data)
    assert after.picture is not None
    assert after.picture.dtype == np.uint8
    assert np.array_equal(after.picture, SCENE)
    assert after.to_json() == data
    bare = Explanation(["a"], ["b"], [0], [0], [0.0], [], None)
    assert "canvas" not in bare.to_json()
    assert Explanation.from_json(bare.to_json()).picture is None


@pytest.mark.parametrize(
    "broken", ["", "data:image/png;base64,AAAA", "data:image/png;base64,!", "https://example.com/a.png"]
)
def test_a_broken_picture_is_an_error_that_says_so(broken: str) -> None:
    with pytest.raises(DataError, match=r"picture of a saved explanation.*data:image/png;base64"):
        Explanation.from_json({**SMALL.to_json(), "canvas": {**SMALL.to_json()["canvas"], "pixels": broken}})
    with pytest.raises(DataError, match=r"picture of a saved explanation"):
        Explanation.from_json({**SMALL.to_json(), "picture": broken})  # as an earlier Regard wrote it


def test_a_file_of_an_earlier_version_is_read_with_a_square_grid() -> None:
    data = seen([[0, 1]], ["a", "</s>"], [0, -1], SCENE).to_json()
    canvas = data.pop("canvas")
    after = Explanation.from_json({**data, "picture": canvas["pixels"]})
    assert after.canvas is not None
    assert (after.canvas.rows, after.canvas.columns, after.canvas.kind) == (GRID, GRID, "picture")
    assert np.array_equal(after.canvas.pixels, SCENE)
    part = {"name": "1: image", "start": 0, "end": GRID**2, "picture": canvas["pixels"]}
    several = Explanation.from_json({**data, "parts": [part]})
    assert several.parts[0].canvas is not None
    assert several.parts[0].canvas.rows == GRID


def test_each_word_of_the_source_is_a_cell() -> None:
    with pytest.raises(DataError, match=r"source has 15 words, but its canvas 4 x 4 cells; each word should be a cell"):
        Explanation(CELLS[1:], ["a"], list(range(15)), [0], [0.0], [], None, canvas=Canvas(GREY, GRID, GRID))
    marked = Explanation(["<class>", *CELLS], ["a"], [-1, *range(16)], [0], [0.0], [], None,
                         canvas=Canvas(GREY, GRID, GRID))  # fmt: skip
    assert "picture, 4 by 4 cells" in repr(marked)


def test_words_are_put_together_from_their_pieces() -> None:
    texts, numbers = seen(
        [range(7)], ["▁the", "▁r", "ing", "·s", "<unk>", "</s>", "</s>"], [0, 1, 1, 1, 2, -1, -1]
    ).steps()
    assert texts == ["the", "rings", "<unk>", "</s>", "</s>"]
    assert numbers == [0, 1, 1, 1, 2, 3, 4]


def test_the_page_has_the_picture_in_it_and_fetches_nothing(tmp_path: Path) -> None:
    words = Explanation(
        ["a", "</s>"], ["b"], [0, -1], [0], [0.0], [Layer("x", "cross", np.full((1, 1, 2), 0.5, dtype=np.float32))], "x"
    )
    path = save([seen([[5, 0]], ["red", "</s>"], [0, -1], SCENE), words], tmp_path / "a.html")
    document = path.read_text(encoding="utf-8")
    assert document.count("data:image/png;base64,") == 1
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    assert found is not None
    first, second = map(Explanation.from_json, json.loads(found[1]))
    assert first.picture is not None
    assert np.array_equal(first.picture, SCENE)
    assert second.picture is None
    assert np.array_equal(first.layer(CROSS).weights[0], hard([5, 0]))
    for reference in ("http:", "https:", "src=", "href=", "url(", "fetch("):
        assert reference not in document.replace('"http://www.w3.org/2000/svg"', ""), reference
    (policy,) = re.findall(r'content="(default-src[^"]*)"', document)
    # A picture and a sound may only come from the page.
    assert policy.split("; ")[:3] == ["default-src 'none'", "img-src data:", "media-src data:"]
    assert not re.findall(r"(?:img|media)-src[^;]*(?:\*|https?)", document)


def test_the_script_and_the_page_agree_on_names_and_the_script_with_print_on_light() -> None:
    document, scripts = page([]), "".join(path.read_text(encoding="utf-8") for path in web_folder().glob("*.js"))
    asked = set(re.findall(r'\$\("(\w+)"\)', scripts))
    assert {"main", "tip", "data"} <= asked <= set(re.findall(r'id="(\w+)"', document))
    assert f"DARK = {sheet.DARK}, GLOW = {sheet.GLOW};" in text("numbers.js")


@node
def test_the_page_lights_the_picture_as_print_does() -> None:
    look = np.array([0, 0, 0, 1, 0, 0, 0, 0, 0.5], dtype=np.float32)
    program = 'say([...veil(shares(given, false), { rows: 3, columns: 3, kind: "picture" })]);'
    (veil,) = run_module({"numbers": ["veil", "shares"]}, program, look.tolist())
    red, _, _, opaque = np.array(veil).reshape(9, 4).T
    on_grey = 140 * (1 - opaque / 255) + red * opaque / 255
    # One pixel a cell, so that nothing lies between them.
    expected = light(np.full((3, 3, 3), 140, dtype=np.uint8), look.reshape(3, 3))[..., 0].ravel()
    np.testing.assert_allclose(on_grey, expected, atol=1.01)  # a screen's colours are whole numbers
