"""Pictures and the page: they are written, they show the right thing, and no token can break them."""

from __future__ import annotations

import json
import re
import resource
import struct
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
import pytest

from regard.errors import ConfigError
from regard.explain.drawing import QUIET, fonts_for
from regard.explain.modules import one_script, text
from regard.explain.page import page, web_folder
from regard.explain.plots import head_grid, heat_map
from regard.explain.space import space_plot
from regard.explain.trace import Explanation, Layer
from tests.conftest import whole
from tests.scripts import node, run_module

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--",
    "-->",
    "]]>",
    "{{data}}",
    "{{title}}",
    r"\u003c",
    '"',
    "&lt;",
]
SCRIPTS = ["猫は", "القطة", "नमस्ते", "🐱", "▁die", "$x_1$", "a$b", "\n", "\x00", " ", "\ud800", "", "x" * 500]
Draw = Callable[..., None]
Kind = Literal["cross", "encoder", "decoder"]


def explanation(
    source: list[str], target: list[str], *, heads: int = 2, kinds: tuple[Kind, ...] = ("cross",)
) -> Explanation:
    """Random weights over the given pieces, one layer for each kind."""
    random = np.random.default_rng(0)
    lengths = {"cross": (len(target), len(source)), "encoder": (len(source),) * 2, "decoder": (len(target),) * 2}
    layers = []
    for kind in kinds:
        scores = random.normal(size=(heads, *lengths[kind])).astype(np.float32)
        layers.append(Layer(f"model.{kind}", kind, np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)))
    words = list(range(len(source) - 1)), list(range(len(target) - 1))
    best = "model.cross" if "cross" in kinds else None
    return Explanation(source, target, [*words[0], -1], [*words[1], -1], [-0.5] * len(target), layers, best)


def fixed(weights: list[list[float]]) -> Explanation:
    """One head with the given weights."""
    rows, columns = len(weights), len(weights[0])
    layer = Layer("attention", "cross", np.array([weights], dtype=np.float32))
    source, target = [f"s{i}" for i in range(columns)], [f"t{i}" for i in range(rows)]
    return Explanation(source, target, list(range(columns)), list(range(rows)), [0.0] * rows, [layer], "attention")


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its header."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def texts(path: Path) -> Counter[str]:
    """The words drawn in an SVG and how often."""
    return Counter(x.text or "" for x in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text"))


SMALL = explanation(
    ["▁the", "▁cat", "</s>"], ["▁die", "▁Kat", "ze", "</s>"], heads=3, kinds=("cross", "encoder", "decoder")
)


KINDS_OF_FILE = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
PICTURES = [(heat_map, ".png"), (heat_map, ".svg"), (heat_map, ".pdf"), (head_grid, ".png"), (head_grid, ".svg")]


@pytest.mark.parametrize(("draw", "suffix"), PICTURES)
def test_a_picture_is_written_and_the_same_each_time(draw: Draw, suffix: str, tmp_path: Path) -> None:
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    draw(SMALL, first)
    draw(SMALL, second)
    assert first.read_bytes().startswith(KINDS_OF_FILE[suffix])
    assert first.read_bytes() == second.read_bytes()
    if suffix == ".png":
        assert all(300 < side < 3000 for side in size(first))


def test_labels_and_title(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    heat_map(SMALL, path)
    drawn = texts(path)
    assert {"model.cross, mean of 3 heads", "source", "target", "␣cat", "␣Kat", "ze", "0.0", "1.0"} <= drawn.keys()
    assert drawn["</s>"] == 2
    heat_map(SMALL, path, layer="model.decoder", head=1)
    drawn = texts(path)
    assert "model.decoder, head 1" in drawn
    assert drawn["<s>"] == drawn["␣die"] == 2
    heat_map(fixed([[1.0]]), path)
    assert "attention" in texts(path)


def test_the_grid_shows_every_head_and_labels_each_side_once(tmp_path: Path) -> None:
    head_grid(explanation(["a", "b", "</s>"], ["x", "</s>"], heads=6), tmp_path / "a.svg")
    drawn = texts(tmp_path / "a.svg")
    assert {f"head {i}" for i in range(6)} <= drawn.keys()
    assert drawn["a"] * drawn["x"] == 6
    assert "model.cross, 6 heads" in drawn


def test_strong_is_dark_and_stands_in_its_row_and_column(tmp_path: Path) -> None:
    import matplotlib
    from matplotlib.image import imread

    weights = [[0.1, 0.0, 0.9], [0.4, 0.6, 0.0]]
    heat_map(fixed(weights), tmp_path / "a.png")
    pixels = (imread(tmp_path / "a.png")[..., :3] * 255).round().astype(int)

    def place(weight: float) -> tuple[float, float]:
        color = (np.array(matplotlib.colormaps["Blues"](weight)[:3]) * 255).round()
        # The median: a cell has thousands of pixels of its colour, the colour bar a few.
        y, x = np.nonzero(np.abs(pixels - color).max(-1) <= 1)
        return float(np.median(y)), float(np.median(x))

    first, second = [place(x)[0] for x in (0.1, 0.9)], [place(x)[0] for x in (0.4, 0.6)]
    assert max(first) < min(second)
    assert place(0.4)[1] < place(0.6)[1] < place(0.9)[1]
    assert place(0.1)[1] == pytest.approx(place(0.4)[1], abs=2)
    brightness = [pixels[tuple(map(int, place(x)))].sum() for x in (0.1, 0.4, 0.6, 0.9)]
    assert brightness == sorted(brightness, reverse=True)


@whole
def test_a_long_sentence_has_room_for_every_label_and_a_page_of_text_still_ends(tmp_path: Path) -> None:
    long = explanation([f"w{i}" for i in range(99)] + ["</s>"], ["x", "</s>"], heads=1)
    heat_map(long, tmp_path / "a.png")
    heat_map(long, tmp_path / "a.svg")
    assert size(tmp_path / "a.png")[0] > 100 * 0.2 * 150
    assert {f"w{i}" for i in range(99)} <= texts(tmp_path / "a.svg").keys()
    heat_map(explanation(["s"] * 600, ["x"], heads=1), tmp_path / "b.png")
    assert size(tmp_path / "b.png")[0] < 7000


@pytest.mark.parametrize(("draw", "suffix"), PICTURES)
def test_any_script_can_be_drawn(draw: Draw, suffix: str, tmp_path: Path) -> None:
    """Whatever fonts there are, nothing is heard but one warning, and in SVG not even that."""
    path = tmp_path / f"a{suffix}"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        draw(explanation([*SCRIPTS, "</s>"], [*HOSTILE, *SCRIPTS, "</s>"]), path)
    assert len(heard) <= (suffix != ".svg")
    assert all(str(x.message).startswith("no installed font has ") for x in heard)
    assert path.read_bytes().startswith(KINDS_OF_FILE[suffix])
    if suffix == ".svg":
        assert {"猫は", "القطة", "🐱", "␣die", "$x_1$", r"\n", "x" * 23 + "…", HOSTILE[1]} <= texts(path).keys()


def write_font(path: Path, character: str) -> None:
    """A font of one letter, a square."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 800), (800, 800), (800, 0)):
        pen.lineTo(corner)
    pen.closePath()
    font, names = FontBuilder(1000, isTTF=True), [".notdef", "square"]
    font.setupGlyphOrder(names)
    font.setupCharacterMap({ord(character): "square"})
    font.setupGlyf(dict.fromkeys(names, pen.glyph()))
    font.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "One Square", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(path)


def test_a_character_that_no_font_has_is_named_once_and_an_installed_font_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import font_manager

    strange, other = "\U0010fff0", "\U0010fff1"  # for private use: no one has designed them
    mixed = explanation([strange, "b"], [strange, "c"], heads=1)
    with pytest.warns(
        UserWarning, match=f"^no installed font has {strange}, so a.png shows boxes there; install"
    ) as heard:
        heat_map(mixed, tmp_path / "a.png")
    assert len(heard) == 1
    assert size(tmp_path / "a.png") > (100, 100)
    with pytest.warns(UserWarning, match=f"no installed font has {strange}, {other}, so"):
        head_grid(explanation([strange, other], ["c"], heads=1), tmp_path / "b.png")
    heat_map(mixed, tmp_path / "a.svg")  # the reader's own fonts draw it, so nothing is said
    assert texts(tmp_path / "a.svg")[strange] == 2
    write_font(tmp_path / "square.ttf", strange)
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [*font_manager.fontManager.ttflist])
    font_manager.fontManager.addfont(tmp_path / "square.ttf")
    assert fonts_for(f"a{strange}{other}") == (["DejaVu Sans", "One Square", "sans-serif"], {other})
    heat_map(mixed, tmp_path / "found.png")  # warnings are errors
    assert (tmp_path / "found.png").read_bytes() != (tmp_path / "a.png").read_bytes()


@pytest.mark.parametrize("name", ["a.png", "a.pdf", "a.html", "a.json", "space.json"])
def test_a_full_disk_leaves_the_file_that_was_there(name: str, tmp_path: Path) -> None:
    """A file that may not grow is what a full disk comes to: the write fails in its middle."""
    (tmp_path / name).write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write() -> None:
        if name.startswith("space"):
            space_plot(np.eye(4), ["a sentence " * 20] * 4, None, tmp_path / name)
        else:
            SMALL.save(tmp_path / name)

    resource.setrlimit(resource.RLIMIT_FSIZE, (400, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "before"}
    write()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).stat().st_size > 400


def predicted() -> Explanation:
    """A text with a blank and a tag, as a masked model or a tagger predicts them."""
    layer = Layer("encoder.self", "encoder", np.full((1, 4, 4), 0.25, dtype=np.float32))
    candidates = [[("cat", 0.9), ("d<o>g", 0.0123)], [("sat", 0.6)]]
    return Explanation(
        ["<s>", "<mask>", "<mask>", "</s>"], ["cat", "sat"], [-1, -1, -1, -1], [0, 1], [-0.1, -0.5], [layer], None,
        places=[1, 2], candidates=candidates,
    )  # fmt: skip


def continued() -> Explanation:
    """A prompt of two pieces, and two more."""
    weights = np.tril(np.ones((1, 5, 5), dtype=np.float32))
    layer = Layer("decoder.self_attention", "decoder", weights / weights.sum(-1, keepdims=True))
    return Explanation(
        ["<s>", "▁a", "b"], ["c", "▁d", "</s>"], [-1, 0, 0], [0, 1, -1], [-0.1, -0.2, -0.3], [layer], None,
        inputs=["<s>", "▁a", "b", "c", "▁d"], given=3,
    )  # fmt: skip


def test_predictions_stand_beside_their_pieces_and_candidates_above(tmp_path: Path) -> None:
    heat_map(predicted(), tmp_path / "a.svg")
    drawn = texts(tmp_path / "a.svg")
    assert drawn["<mask> → cat"] == drawn["<mask> → sat"] == 1  # where it looks
    assert drawn["<mask>"] == 2  # where it is looked at
    assert {"<mask> 1: cat 90%, d<o>g 1.2%", "<mask> 2: sat 60%"} <= drawn.keys()
    head_grid(predicted(), tmp_path / "a.svg")
    assert {"<mask> → cat", "<mask> 2: sat 60%"} <= texts(tmp_path / "a.svg").keys()


def test_what_was_given_and_what_was_written_look_different(tmp_path: Path) -> None:
    heat_map(continued(), tmp_path / "a.svg")
    labels = {
        x.text: x.get("style", "")
        for x in ElementTree.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")
    }
    assert QUIET in labels["␣a"]
    assert QUIET not in labels["c"]
    assert "text so far (grey: given)" in labels
    heat_map(replace(continued(), given=0), tmp_path / "b.svg")
    lines = [(tmp_path / name).read_text().count("stroke-width: 1.2") for name in ("a.svg", "b.svg")]
    assert lines[0] - lines[1] == 2  # between rows and between columns


def test_new_fields_are_read_back_and_old_files_have_none() -> None:
    for before in (predicted(), continued()):
        after = Explanation.from_json(json.loads(json.dumps(before.to_json())))
        for name in ("given", "places", "candidates", "inputs"):
            assert getattr(after, name) == getattr(before, name), name
        (data,) = Reader(page([before])).data
        assert Explanation.from_json(data).candidates == before.candidates
    assert not {"given", "places", "candidates"} & SMALL.to_json().keys()
    old = Explanation.from_json(SMALL.to_json())
    assert (old.given, old.places, old.candidates, old.notes()) == (0, [], [], [])


@node
def test_the_page_puts_probabilities_and_predictions_in_their_places() -> None:
    program = """
for (const x of given)
  for (const unit of ["pieces", "words"]) {
    const [query, key] = sides(x, x.layers[0], unit);
    const label = (p) => p.predicted?.text ?? null;
    say([query.map((p) => [p.text, p.log ?? null, label(p), p.given, p.boundary]), key.map(label)]);
  }
"""
    single = replace(continued(), source=["▁a", "b"], source_word=[0, 0], inputs=["▁a", "b", "<sep>", "c", "▁d"])
    data = [x.to_json() for x in (predicted(), continued(), single)]
    blanks, _, pieces, words, _, one = run_module({"places": ["sides"]}, program, data)
    assert [row[1:3] for row in blanks[0]] == [[None, None], [-0.1, "cat"], [-0.5, "sat"], [None, None]]
    assert blanks[1] == [None] * 4
    assert pieces[0] == [
        ["<s>", None, None, True, False], ["▁a", None, None, True, False], ["b", None, None, True, False],
        ["c", -0.1, None, False, True], ["▁d", -0.2, None, False, False],
    ]  # fmt: skip
    # A piece that goes on the prompt's last word was written all the same.
    assert [row[0] for row in words[0]] == ["<s>", "ab", "c", "d"]
    assert [row[0] for row in one[0]] == ["ab", "<sep>", "c", "d"]
    assert [row[3] for row in one[0]] == [True, True, False, False]


def test_drawing_leaves_matplotlib_as_it_was_and_importing_does_not_load_it(tmp_path: Path) -> None:
    script = f"""
import sys
import regard.explain.page, regard.explain.plots
assert "matplotlib" not in sys.modules
import matplotlib, numpy, pathlib
from regard.explain.trace import Explanation, Layer
chosen = "svg.fonttype", "pdf.fonttype", "font.family"
before = [matplotlib.rcParams[x] for x in chosen]
one = Explanation(["a"], ["b"], [0], [0], [0.0], [Layer("x", "cross", numpy.ones((1, 1, 1), dtype="f"))], "x")
regard.explain.plots.heat_map(one, pathlib.Path({str(tmp_path / "a.png")!r}))
assert [matplotlib.rcParams[x] for x in chosen] == before
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("draw", [heat_map, head_grid])
def test_what_is_not_there_is_named_with_what_is(draw: Draw, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'decoder\.9'.*model\.cross, model\.encoder, model\.decoder"):
        draw(SMALL, tmp_path / "a.png", layer="decoder.9")
    with pytest.raises(ConfigError, match="no attention"):
        draw(Explanation(["a"], ["b"], [0], [0], [0.0], [], None), tmp_path / "a.png")
    with pytest.raises(ConfigError, match=r"'\.bmp'.*\.png, \.svg or \.pdf"):
        draw(SMALL, tmp_path / "a.bmp")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("head", [3, -1])
def test_a_head_that_is_not_there(head: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"no head {head} in model\.cross; there are 3"):
        heat_map(SMALL, tmp_path / "a.png", head=head)


class Reader(HTMLParser):
    """Reads a page as a browser would: its elements, their attributes and the text in each script."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.scripts: dict[str | None, str] = {}
        self.titles: list[str] = []
        self.inside: tuple[str, str | None] | None = None
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.inside = (tag, dict(attrs).get("id"))

    def handle_endtag(self, tag: str) -> None:
        self.inside = None

    def handle_data(self, data: str) -> None:
        match self.inside:
            case ("script", name):
                self.scripts[name] = self.scripts.get(name, "") + data
            case ("title" | "h1", _):
                self.titles.append(data)

    @property
    def data(self) -> Any:
        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        return json.loads(self.scripts["data"], parse_constant=refuse)


def test_the_page_needs_no_network() -> None:
    document = page([SMALL]).replace('"http://www.w3.org/2000/svg"', "")
    for reference in ("http:", "https:", "//cdn", "src=", "href=", "@import", "url(", "fetch(", "import(", "<link"):
        assert reference not in document, reference
    assert "default-src 'none'" in document


def test_the_page_never_reads_a_token_as_html() -> None:
    scripts = {path.name: path.read_text(encoding="utf-8") for path in web_folder().glob("*.js")}
    assert len(scripts) > 10
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "srcdoc"):
        assert way not in page([SMALL]), way
        assert not [name for name, script in scripts.items() if way in script], way


@pytest.mark.parametrize("tokens", [HOSTILE, SCRIPTS])
def test_the_data_survives_the_page(tokens: list[str]) -> None:
    given = [SMALL, explanation([*tokens, "</s>"], [*reversed(tokens), "</s>"], heads=4, kinds=("cross", "decoder"))]
    reader = Reader(page(given))
    assert reader.elements == Reader(page([])).elements  # nothing broke out
    assert not {x for x in reader.attributes if x.startswith("on")}
    for before, data in zip(given, reader.data, strict=True):
        after = Explanation.from_json(data)
        for name in ("source", "target", "source_word", "target_word", "log_probs", "best"):
            assert getattr(after, name) == getattr(before, name), name
        for one, other in zip(before.layers, after.layers, strict=True):
            assert (one.name, one.kind) == (other.name, other.kind)
            np.testing.assert_allclose(other.weights, one.weights, atol=1e-4)


def test_what_the_decoder_read_is_the_target_one_place_late_unless_given(tmp_path: Path) -> None:
    assert SMALL.inputs == ["<s>", "▁die", "▁Kat", "ze"]
    layer = Layer("x", "decoder", np.full((1, 4, 4), 0.25, dtype=np.float32))
    single = Explanation(
        ["a", "b"], ["c", "</s>"], [0, 1], [0, -1], [-0.5, 0.0], [layer], None, inputs=["a", "b", "<sep>", "c"]
    )
    heat_map(single, tmp_path / "a.svg")
    assert texts(tmp_path / "a.svg")["<sep>"] == 2
    assert Explanation.from_json(single.to_json()).inputs == ["a", "b", "<sep>", "c"]
    old = {name: value for name, value in SMALL.to_json().items() if name != "inputs"}
    assert Explanation.from_json(old).inputs == SMALL.inputs


def test_the_title_is_text() -> None:
    hostile = "</title><script>alert(1)</script> & {{data}}"
    reader = Reader(page([SMALL], hostile))
    assert reader.titles == [hostile, hostile]
    assert reader.elements == Reader(page([])).elements


def test_weights_take_little_room() -> None:
    some = explanation(["a"] * 40, ["b"] * 40, heads=8)
    assert len(page([some])) - len(page([])) < 8 * 40 * 40 * 8


def test_without_attention_the_page_has_the_text_and_says_so() -> None:
    bare = Explanation(["a"], ["b", "</s>"], [0], [0, -1], [-0.25, -0.5], [], None)
    reader = Reader(page([bare]))
    assert reader.data[0]["layers"] == []
    assert reader.data[0]["log_probs"] == [-0.25, -0.5]
    assert "This model has no attention, so there is none to show." in page([bare])
    assert Reader(page([])).data == []


def test_impossible_tokens_and_broken_weights_are_still_json() -> None:
    layer = Layer("x", "cross", np.array([[[np.nan]]], dtype=np.float32))
    (data,) = Reader(page([Explanation(["a"], ["b"], [0], [0], [float("-inf")], [layer], "x")])).data
    assert data["log_probs"] == [None]
    assert data["layers"][0]["weights"] == [[[0.0]]]


@node
def test_the_script_is_javascript(tmp_path: Path) -> None:
    scripts = {path.stem: path.read_text(encoding="utf-8") for path in web_folder().glob("*.js")}
    for name, script in {**scripts, "one": one_script("page")}.items():
        (tmp_path / f"{name}.mjs").write_text(script, encoding="utf-8")
        subprocess.run(["node", "--check", tmp_path / f"{name}.mjs"], check=True)


def test_modules_become_one_script_after_what_they_import() -> None:
    script = one_script("page")
    assert not re.findall(r"^(?:import|export)\b", script, re.MULTILINE)
    order = re.findall(r"^const module_(\w+) = ", script, re.MULTILINE)
    assert order[-1] == "page"
    assert len(set(order)) == len(order)
    for name in order:
        needed = re.findall(r'from "\./(\w+)\.js"', text(f"{name}.js"))
        assert all(order.index(other) < order.index(name) for other in needed), name
    assert "explorer" not in order, "what needs a model has no place in a page without one"


def test_save_writes_them_by_their_ending(tmp_path: Path) -> None:
    SMALL.save(tmp_path / "new" / "a.html")
    assert "What the model attends to" in (tmp_path / "new" / "a.html").read_text(encoding="utf-8")
    SMALL.save(tmp_path / "a.png", layer="model.encoder", head=2)
    assert size(tmp_path / "a.png") > (100, 100)
