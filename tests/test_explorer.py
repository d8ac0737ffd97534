"""The page that an explanation is saved as, in a real browser: what it shows, how it is walked through, who can use
it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest

from regard.explain.modules import text
from regard.explain.page import page as page_of
from regard.explain.trace import Explanation, Layer, Part
from tests.browser import launched, opened, scroll_width, until
from tests.conftest import whole
from tests.test_explain_canvas import filmed, heard, labelled
from tests.test_explain_output import continued, explanation, predicted

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SOURCE = ["▁the", "▁cat", "▁sat", "s", "</s>"]
TARGET = ["▁die", "▁Kat", "ze", "▁saß", "</s>"]


def sentence(source: list[str] = SOURCE, target: list[str] = TARGET, heads: int = 2) -> Explanation:
    """Three layers over these pieces, in which a piece that begins no word belongs to the one before."""

    def words(pieces: list[str]) -> list[int]:
        return [-1 if piece == "</s>" else sum("▁" in x for x in pieces[: i + 1]) - 1 for i, piece in enumerate(pieces)]

    made = explanation(source, target, heads=heads, kinds=("cross", "encoder", "decoder"))
    return replace(made, source_word=words(source), target_word=words(target))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


def saved(folder: Path, *explanations: Explanation) -> Path:
    path = folder / "page.html"
    path.write_text(page_of(list(explanations)), encoding="utf-8")
    return path


def token(page: Page, line: str, number: int) -> Any:
    """One of the tokens of a line, which its label names."""
    return page.get_by_role("listbox", name=line).get_by_role("option").nth(number)


def choose(page: Page, legend: str, name: str) -> None:
    page.get_by_role("group", name=legend).get_by_text(name, exact=True).click()


# What it shows


def test_lines_and_heat_map_light_up_on_both_sides(browser: Browser, tmp_path: Path) -> None:
    one = sentence()
    with opened(browser, saved(tmp_path, one)) as page:
        token(page, "target, attending", 1).hover()
        assert page.locator("#tip").inner_text().startswith("Kat\n")
        weights = one.weights()[1]
        assert f"{weights.max():.0%} " in page.locator("#tip").inner_text()
        lit = page.get_by_role("listbox", name="source, attended to").locator(".lit")
        assert lit.count() == len(one.source)
        found = [float(x) for x in lit.evaluate_all("all => all.map((x) => x.style.getPropertyValue('--w'))")]
        assert found == pytest.approx(np.sqrt(weights).tolist(), abs=1e-2)
        assert page.locator(".links path.on").count() == (weights >= 0.02).sum()
        assert page.locator(".written .here").inner_text().strip() == "␣Kat", "the output is marked as well"
        choose(page, "Drawn as", "Heat map")
        cells = page.locator(".map .cells rect")
        assert cells.count() == (one.weights() >= 0.004).sum()
        page.locator(".map").hover(position={"x": 100, "y": 120})
        told = re.fullmatch(r"(\S+) attends to (\S+)\nweight 0\.\d{3}\n.*", page.locator("#tip").inner_text())
        assert told is not None
        assert [x.strip("␣") for x in page.locator(".map text.here").all_text_contents()] == [told[1], told[2]]
        page.get_by_text("As a table").click()
        page.get_by_role("table").wait_for()
        rows = page.get_by_role("table").get_by_role("row")
        assert rows.count() == 1 + len(one.target)
        best = one.source[int(one.weights()[0].argmax())].strip("▁")
        assert rows.nth(1).get_by_role("cell").first.inner_text().startswith(best)


def test_layers_heads_and_words(browser: Browser, tmp_path: Path) -> None:
    one = sentence()
    with opened(browser, saved(tmp_path, one)) as page:
        choose(page, "Drawn as", "Every head")
        maps = page.locator(".multiples").get_by_role("button")
        assert maps.count() == sum(len(layer.weights) for layer in one.layers)
        page.get_by_role("button", name="layer 1, head 1").last.click()
        assert page.get_by_role("combobox", name="Layer").input_value() == "model.decoder"
        assert page.get_by_role("group", name="Heads").get_by_role("radio", checked=True).input_value() == "3"
        page.get_by_role("combobox", name="Layer").select_option("rollout")
        assert page.get_by_role("listbox", name="source, attending").get_by_role("option").count() == len(one.source)
        page.get_by_role("combobox", name="Layer").select_option("model.cross")
        choose(page, "Tokens", "words")
        words = page.get_by_role("listbox", name="target, attending").get_by_role("option").all_inner_texts()
        assert [word.strip() for word in words] == ["die", "Katze", "saß", "</s>"]


def test_predictions_prompts_and_models_without_attention(browser: Browser, tmp_path: Path) -> None:
    bare = Explanation(["a"], ["b", "</s>"], [0], [0, -1], [-0.25, -0.5], [], None)
    with opened(browser, saved(tmp_path, predicted(), continued(), bare)) as page:
        assert "cat 90%" in page.get_by_label("candidates for each blank").inner_text()
        assert page.locator(".links .predicted").all_inner_texts() == ["→cat", "→sat"]
        sentences = page.get_by_role("navigation").get_by_role("radio")
        sentences.nth(0).focus()
        page.keyboard.press("ArrowDown")
        assert page.locator(".links .given").count() > 0
        assert page.locator(".links .boundary").count() == 2
        page.keyboard.press("ArrowDown")
        assert page.get_by_text("This model has no attention").is_visible()
    with opened(browser, saved(tmp_path)) as page:
        assert page.get_by_text("There are no sentences to show.").is_visible()


def test_light_on_a_picture_word_by_word_and_layer_by_layer(browser: Browser, tmp_path: Path) -> None:
    grid = [f"{i},{j}" for i in range(1, 5) for j in range(1, 5)]
    weights = np.eye(16, dtype=np.float32)[[5, 0]][None]
    seen = replace(labelled(marked=False), source=grid, target=["red", "</s>"], target_word=[0, -1],
                   log_probs=[-0.1, 0.0], layers=[Layer("cross", "cross", weights)], best="cross", places=[],
                   inputs=["<s>", "red"])  # fmt: skip
    with opened(browser, saved(tmp_path, seen, labelled())) as page:
        bright = """([x, y]) => { const c = document.querySelector('canvas.main');
            return c.getContext('2d').getImageData(x * c.width, y * c.height, 1, 1).data[0]; }"""
        assert page.evaluate(bright, [0.1, 0.9]) == 140, "the picture as it is"
        token(page, "target, attending", 0).hover()
        assert page.evaluate(bright, [0.375, 0.375]) > 140 > page.evaluate(bright, [0.1, 0.9])
        assert "most of all at 2,2 (row, column): 100%" in page.locator("figcaption").inner_text()
        page.keyboard.press("Escape")
        assert page.locator("figcaption").inner_text() == "The picture as it is."
        page.get_by_role("navigation").get_by_role("radio").nth(1).check(force=True)
        layers = page.get_by_role("group", name="Layers").get_by_role("radio")
        assert layers.count() == 4
        assert layers.last.is_checked(), "rollout comes first under a label"
        page.locator("canvas.main").hover(position={"x": 10, "y": 10})
        assert page.locator("figcaption b").inner_text() == "1,1"
        page.locator("canvas.main").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("figcaption b").inner_text() == "1,2"
        assert "Escape goes back" in page.locator(".how").inner_text()
        page.keyboard.press("Escape")
        assert page.locator("figcaption b").inner_text() == "<class>"


def test_of_several_sources_the_picture_is_seen_by_itself(browser: Browser, tmp_path: Path) -> None:
    cells, weights = [f"{i},{j}" for i in range(1, 5) for j in range(1, 5)], np.zeros((1, 2, 18), np.float32)
    weights[0, 0, 5] = weights[0, 1, 17] = 1.0
    whole = Explanation(
        [*cells, "how", "many"], ["two", "</s>"], [*range(18)], [0, -1], [-0.1, 0.0],
        [Layer("cross", "cross", weights)], "cross",
        parts=[Part("1: image", 0, 16, labelled().canvas), Part("2: text", 16, 18)],
    )  # fmt: skip
    with opened(browser, saved(tmp_path, whole)) as page:
        assert not page.get_by_role("navigation").is_visible(), "it is one explanation"
        sources = page.get_by_role("group", name="Source")
        assert sources.get_by_role("radio", name="1: image").is_checked()
        token(page, "target, attending", 0).hover()
        assert "most of all at 2,2 (row, column): 100%" in page.locator("figcaption").inner_text()
        choose(page, "Source", "all")
        assert page.locator("canvas.main").is_hidden()
        assert token(page, "attended to", 17).inner_text() == "many"
        assert "source=all" in page.url
        assert page.locator("p.source img").count() == 1
        assert page.locator("p.source").inner_text().strip() == "how many"
    text = replace(whole, parts=[Part("1: text", 0, 16), Part("2: text", 16, 18)])
    with opened(browser, saved(tmp_path, text)) as page:
        assert page.get_by_role("group", name="Source").is_hidden()


def test_a_picture_that_was_written_is_shown(browser: Browser, tmp_path: Path) -> None:
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    one = Explanation(["a", "dog"], ["1,1", "</s>"], [0, 1], [0, -1], [-0.25, -0.5], [], None, drawn=pixels)
    again = Explanation.from_json(one.to_json()).drawn
    assert again is not None
    assert np.array_equal(again, pixels)
    with opened(browser, saved(tmp_path, one, sentence())) as page:
        picture = page.get_by_role("img", name="the picture that the model wrote for a dog")
        assert picture.evaluate("x => [x.naturalWidth, x.naturalHeight]") == [8, 8]
        assert picture.evaluate("x => x.clientHeight") > 100
        page.get_by_role("navigation").get_by_role("radio").nth(1).check(force=True)
        picture.wait_for(state="detached")


def test_a_sound_plays_with_a_cursor_and_frames_are_shown_large(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path, heard(), filmed(2))) as page:
        words = page.get_by_role("listbox", name="target, attending").get_by_role("option")
        assert [word.strip() for word in words.all_inner_texts()] == ["a", "long", "</s>"]
        until(page, "document.querySelector('audio').duration > 1.9")
        words.nth(1).focus()
        assert "spoken from" in page.locator("figcaption").inner_text()
        page.keyboard.press("Enter")
        until(page, "document.querySelector('audio').currentTime > 0.05")
        until(page, "parseFloat(document.querySelector('.cursor').style.left) > 1")
        assert page.locator(".words .heard").count() >= 1
        page.get_by_role("navigation").get_by_role("radio").nth(1).check(force=True)
        assert page.locator("audio").is_hidden()
        assert page.evaluate("document.querySelector('audio').paused")
        token(page, "target, attending", 0).hover()
        assert "most of all in frame 2 of 3: 100%" in page.locator("figcaption").inner_text()
        assert page.get_by_label("the frame attended to most").is_visible()


# What is taken away from it


def test_a_link_brings_back_what_was_shown(browser: Browser, tmp_path: Path) -> None:
    path = saved(tmp_path, sentence(), sentence(["▁a", "</s>"], ["▁b", "▁c", "</s>"]))
    with opened(browser, path) as page:
        page.get_by_role("navigation").get_by_role("radio").nth(1).check(force=True)
        choose(page, "Drawn as", "Heat map")
        page.get_by_role("combobox", name="Layer").select_option("model.decoder")
        choose(page, "Heads", "1")
        address = page.url
    assert "#" in address
    with opened(browser, address) as page:
        assert page.get_by_role("navigation").get_by_role("radio").nth(1).is_checked()
        assert page.get_by_role("combobox", name="Layer").input_value() == "model.decoder"
        assert page.get_by_role("group", name="Heads").get_by_role("radio").nth(3).is_checked()
        assert page.get_by_role("application", name="Heat map, 3 rows").is_visible()
    with opened(browser, path.as_uri() + "#sentence=7&head=%7B&layer=no&view=none") as page:
        assert page.get_by_role("listbox", name="target, attending").is_visible(), "a broken link shows what is there"


def test_another_link_in_the_same_tab_is_followed(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path, sentence())) as page:
        choose(page, "Heads", "max")
        heads = page.get_by_role("group", name="Heads").get_by_role("radio")
        with opened(browser, page.url) as other:
            assert other.get_by_role("group", name="Heads").get_by_role("radio").nth(1).is_checked()
        page.evaluate("location.hash = 'head=1&view=map'")
        page.get_by_role("application", name="Heat map").wait_for()
        assert heads.nth(3).is_checked()


def test_pictures_and_data_are_saved(browser: Browser, tmp_path: Path) -> None:
    one = sentence()
    with opened(browser, saved(tmp_path, one)) as page:
        found = {}
        for kind in ("SVG", "PNG", "JSON"):
            page.get_by_text("Save", exact=True).click()
            with page.expect_download() as download:
                page.get_by_role("button", name=kind).click()
            found[kind] = Path(download.value.path()).read_bytes()
        choose(page, "Drawn as", "Heat map")
        page.get_by_text("Save", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("button", name="SVG").click()
        heat = ElementTree.fromstring(Path(download.value.path()).read_text())
    root = ElementTree.fromstring(found["SVG"])
    texts = [x.text for x in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "".join(x or "" for x in texts).count("</s>") == 2
    paths = list(root.iter("{http://www.w3.org/2000/svg}path"))
    assert len(paths) == (one.weights() >= 0.02).sum()
    assert all(path.get("stroke", "").startswith("rgb") for path in paths), "colours are in the file"
    assert found["PNG"].startswith(b"\x89PNG")
    again = Explanation.from_json(json.loads(found["JSON"]))
    assert again.target == one.target
    np.testing.assert_allclose(again.weights(), one.weights(), atol=1e-3)
    assert len([x for x in heat.iter("{http://www.w3.org/2000/svg}rect") if x.get("fill-opacity") != "1"]) > 4


def saved_svg(page: Page) -> ElementTree.Element:
    page.get_by_text("Save", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG").click()
    return ElementTree.fromstring(Path(download.value.path()).read_text())


def test_what_is_saved_does_not_depend_on_what_is_in_sight(browser: Browser, tmp_path: Path) -> None:
    name = "{http://www.w3.org/2000/svg}"
    words = [f"▁{i}" for i in range(40)]
    path, small = saved(tmp_path, sentence(words, words, heads=8)), {"width": 360, "height": 740}
    with opened(browser, path, viewport=small) as page:
        unscrolled = saved_svg(page)
        page.locator(".links.columns").evaluate("x => x.scrollTo(0, 400)")
        scrolled = saved_svg(page)
        for found in (unscrolled, scrolled):
            texts = {(x.text or "").strip("␣"): float(x.get("y", "")) for x in found.iter(f"{name}text")}
            assert texts.keys() == {str(i) for i in range(40)}
            assert 0 < texts["0"] < texts["39"] < float(found.get("height", ""))
            (drawn,) = found.findall(f"{name}g")
            ends = [float(y) for x in drawn.iter(f"{name}path") for y in re.findall(r"^M\S+ (\S+)C", x.get("d", ""))]
            assert min(abs(y - texts["39"]) for y in ends) < 8, "lines end at their tokens"
        choose(page, "Drawn as", "Every head")
        maps = saved_svg(page)
        shown = list(maps.iter(f"{name}image"))
        assert len(shown) == 24
        assert {x.get("image-rendering") for x in shown} == {"pixelated"}
        assert max(float(x.get("x", "")) + float(x.get("width", "")) for x in shown) <= float(maps.get("width", ""))


def test_any_token_can_be_saved(browser: Browser, tmp_path: Path) -> None:
    odd = ["\ufffe", "😀" * 30, "x" + "😀" * 30, "</s>"]
    with opened(browser, saved(tmp_path, sentence(odd, odd))) as page:
        for view in ("Lines", "Heat map"):
            choose(page, "Drawn as", view)
            assert "\ufffd" in "".join(saved_svg(page).itertext())
            page.get_by_text("Save", exact=True).click()
            with page.expect_download() as download:
                page.get_by_role("button", name="PNG").click()
            assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_of_a_long_text_what_is_in_sight_is_saved(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path, long_one(600, 600))) as page:
        page.locator(".links.columns").evaluate("x => x.scrollTo(0, 9000)")
        page.locator(".links [data-index='300']").first.wait_for()
        found = saved_svg(page)
        texts = {x.text for x in found.iter("{http://www.w3.org/2000/svg}text")}
        assert "s300" in texts
        assert float(found.get("height", "")) < 40 * len(texts)


# Long, right to left, small, dark


def long_one(source: int, target: int) -> Explanation:
    """Weights near a diagonal, as those of a translation are."""
    centre = np.linspace(0, source - 1, target)[:, None]
    weights = np.exp(-0.5 * (np.arange(source)[None] - centre) ** 2).astype(np.float32)
    layer = Layer("cross", "cross", (weights / weights.sum(-1, keepdims=True))[None])
    return Explanation([f"s{i}" for i in range(source)], [f"t{i}" for i in range(target)], [*range(source)],
                       [*range(target)], [-0.1] * target, [layer], "cross")  # fmt: skip


@pytest.mark.parametrize(
    ("source", "target"), [(2000, 400), pytest.param(2000, 2000, marks=whole)], ids=["2000 to 400", "2000 to 2000"]
)
def test_two_thousand_tokens_are_drawn_where_they_are_seen(
    source: int, target: int, browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, saved(tmp_path, long_one(source, target))) as page:
        count = "document.querySelectorAll('*').length"
        assert page.evaluate(count) < 3 * target + 1500, "a token of the output, and what is in sight"
        line = page.get_by_role("listbox", name="target, attending")
        line.get_by_role("option").first.focus()
        page.keyboard.press("End")
        last = page.locator(f"ol[aria-label='target, attending'] [data-index='{target - 1}']")
        assert last.evaluate("x => x === document.activeElement")
        assert f"s{source - 1}" in page.locator("#tip").inner_text()
        assert last.is_visible()
        choose(page, "Drawn as", "Heat map")
        assert page.evaluate(count) < 3 * target + 3000
        page.get_by_role("application").focus()
        page.keyboard.press("ArrowRight")
        scroll = page.locator(".heat > .scroll")
        scroll.evaluate("x => x.scrollTo(1e6, 1e6)")
        until(page, f"document.querySelector('.map').textContent.includes('s{source - 1}')")
        assert page.locator(".map .cells rect").count() > 0
        assert page.evaluate(count) < 3 * target + 3000


def test_right_to_left_and_without_spaces(browser: Browser, tmp_path: Path) -> None:
    one = explanation(["猫", "は", "寝る", "</s>"], ["القطة", "تنام", "</s>"])
    with opened(browser, saved(tmp_path, one)) as page:
        line = page.get_by_role("listbox", name="target, attending")
        assert line.evaluate("x => getComputedStyle(x).direction") == "rtl"
        first, second = (token(page, "target, attending", i) for i in (0, 1))
        assert first.bounding_box()["x"] > second.bounding_box()["x"]
        first.focus()
        page.keyboard.press("ArrowLeft")
        assert second.evaluate("x => x === document.activeElement"), "the next one stands to the left"
        other = page.get_by_role("listbox", name="source, attended to")
        assert other.evaluate("x => getComputedStyle(x).direction") == "ltr"
        assert page.locator(".source").inner_text() == "猫 は 寝る"


def test_bytes_of_a_word_are_its_letters(browser: Browser, tmp_path: Path) -> None:
    pieces = ["▁", "<0xE7>", "<0x8C>", "<0xAB>", "▁<0xE7>", "</s>"]
    one = replace(explanation(pieces, pieces), source_word=[0, 0, 0, 0, 1, -1], target_word=[0, 0, 0, 0, 1, -1])
    with opened(browser, saved(tmp_path, one)) as page:
        choose(page, "Tokens", "words")
        words = page.get_by_role("listbox", name="target, attending").get_by_role("option").all_inner_texts()
        assert [word.strip() for word in words] == ["猫", "<0xE7>", "</s>"], "half a character stays as it is"


def test_a_phone_needs_no_sideways_scrolling(browser: Browser, tmp_path: Path) -> None:
    long = sentence([f"▁word{i}" for i in range(30)] + ["</s>"], [f"▁Wort{i}" for i in range(30)] + ["</s>"])
    small = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
    with opened(browser, saved(tmp_path, long, heard(), labelled(), filmed(2)), **small) as page:
        for number in range(4):
            page.get_by_role("navigation").get_by_role("radio").nth(number).check(force=True)
            assert scroll_width(page) <= 360, number
        page.get_by_role("navigation").get_by_role("radio").nth(0).check(force=True)
        for view in ("Heat map", "Every head"):
            choose(page, "Drawn as", view)
            assert scroll_width(page) <= 360, view


def test_dark_as_the_system_has_it_or_as_was_chosen(browser: Browser, tmp_path: Path) -> None:
    path, ground = saved(tmp_path, sentence()), "getComputedStyle(document.body).backgroundColor"
    with opened(browser, path, color_scheme="dark") as page:
        dark = page.evaluate(ground)
    with opened(browser, path, color_scheme="light") as page:
        light = page.evaluate(ground)
        button = page.get_by_role("button", name="Colours")
        button.click()
        assert (button.inner_text(), page.evaluate(ground)) == ("○ Light", light)
        button.click()
        assert (button.inner_text(), page.evaluate(ground)) == ("● Dark", dark)
        page.reload()
        assert page.evaluate(ground) == dark, "it is remembered"
    assert light != dark


# Who can use it


def colours() -> dict[str, tuple[str, str]]:
    """The palette of the style sheet: of each name, the light and the dark colour."""
    return {name: (light, dark) for name, light, dark in
            re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", text("style.css"))}  # fmt: skip


def contrast(one: str, other: str) -> float:
    """Of two colours, as the Web Content Accessibility Guidelines 2 compute it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_told_apart() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    palette = colours()
    for theme in (0, 1):
        grounds = [palette[name][theme] for name in ("paper", "card")]
        for name in ("ink", "quiet", "accent", "warn", "good", "bad"):
            assert min(contrast(palette[name][theme], ground) for ground in grounds) >= 4.5, name
        assert contrast(palette["on-accent"][theme], palette["accent"][theme]) >= 4.5
        assert contrast(palette["doubt"][theme], palette["accent"][theme]) >= 1.5, "two bars side by side"


NAMELESS = """() => [...document.querySelectorAll(
    'button, select, input, textarea, audio, [tabindex="0"], canvas[role]')]
  .filter((x) => x.checkVisibility() && !(x.ariaLabel || x.labels?.length || x.textContent.trim()))
  .map((x) => x.outerHTML.slice(0, 100))"""


def test_all_is_named_in_landmarks_and_reached_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path, sentence(), heard())) as page:
        page.get_by_role("navigation").wait_for()  # pictures are read first
        for role in ("banner", "navigation", "main", "contentinfo"):
            assert page.get_by_role(role).count() == 1, role
        assert page.locator("h1").count() == 1
        assert page.evaluate(NAMELESS) == []
        stops, last = [], None
        for _ in range(40):
            page.keyboard.press("Tab")
            here = page.evaluate("""() => { const x = document.activeElement, style = getComputedStyle(x),
                box = getComputedStyle(x.closest('.choice') ?? x);
                return [x.tagName, x.getAttribute('role') ?? x.type ?? '', style.outlineStyle !== 'none' ||
                  box.outlineStyle !== 'none']; }""")
            if here[0] == "BODY":
                break
            assert here[2], f"{here[:2]} does not show that it has the focus"
            stops.append(tuple(here[:2]))
            last = here
        assert last is not None
        for wanted in (("BUTTON", "button"), ("INPUT", "radio"), ("LI", "option"), ("SELECT", "select-one")):
            assert wanted in stops, wanted
        assert len([x for x in stops if x[0] == "LI"]) == 3, "one stop for each line of tokens"
        assert page.locator("#live").get_attribute("aria-live") == "polite"


def axe() -> str | None:
    """axe-core's script, where it is installed: AXE=PATH names it, or a node_modules folder above has it."""
    places = [Path(os.environ.get("AXE", "")), *(folder / "node_modules/axe-core/axe.min.js" for folder in
              (Path(__file__).parent, *Path(__file__).parents))]  # fmt: skip
    return next((path.read_text(encoding="utf-8") for path in places if path.is_file()), None)


@pytest.mark.skipif(axe() is None, reason="axe-core is not installed (AXE=PATH/axe.min.js names it)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, browser: Browser, tmp_path: Path) -> None:
    script = axe()
    assert script is not None
    path = saved(tmp_path, sentence(), heard(), labelled())
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", f"<script>{script}</script></body>"))
    with opened(browser, path, color_scheme=scheme) as page:
        for number in range(3):
            page.get_by_role("navigation").get_by_role("radio").nth(number).check(force=True)
            for view in ("Lines", "Heat map", "Every head")[: 3 if number == 0 else 1]:
                if number == 0:
                    choose(page, "Drawn as", view)
                found = page.evaluate("async () => (await axe.run()).violations.map((x) => [x.id, x.nodes[0].html])")
                assert found == [], (number, view)


def test_a_notebook_shows_it_in_a_frame(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "cell.html").write_text(f"<!doctype html>{sentence()._repr_html_()}", encoding="utf-8")
    with opened(browser, tmp_path / "cell.html") as page:
        frame = page.frame_locator("iframe")
        frame.get_by_role("listbox", name="target, attending").get_by_role("option").nth(1).hover()
        assert frame.locator("#tip").inner_text().startswith("Kat\n")
        frame.get_by_role("button", name="Colours").click()  # in a sandbox nothing can be remembered


def test_a_token_cannot_break_out(browser: Browser, tmp_path: Path) -> None:
    hostile = ["</script><img src=x onerror=alert(1)>", "{{data}}", "\x00", "<b>", "</s>"]
    with opened(browser, saved(tmp_path, sentence(hostile, hostile))) as page:
        assert page.locator("main img, main b").count() == 0
        assert token(page, "target, attending", 0).inner_text().startswith("</script><img")
