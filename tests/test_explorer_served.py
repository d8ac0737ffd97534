"""The explorer of a server, in a real browser with real models: what is typed, forced, edited, compared and
corrected."""

from __future__ import annotations

import base64
import io
import json
import re
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from regard.explain.page import POLICY, served_page, web_folder
from regard.nn.edits import Edits
from regard.system import System
from tests.browser import launched, opened, scroll_width, until
from tests.conftest import FULL, whole
from tests.scripts import node, run_module
from tests.served import PAINTING, PICTURES, PROMPTED, TEXT, Running, running, save_model
from tests.test_explorer import NAMELESS, axe, choose, token

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

SENTENCE = "alpha beta gamma"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explored")


@pytest.fixture(scope="module")
def system(folder: Path) -> System:
    return save_model(folder / "one", TEXT, seed=5)


@pytest.fixture(scope="module")
def server(browser: Browser, folder: Path, system: System) -> Iterator[Running]:
    """A model of text; where all is tested also another one, one that reads pictures, two that write them, and a
    language model."""
    names = ["one"]
    if FULL:
        save_model(folder / "two", TEXT, seed=2)
        save_model(folder / "pictures", PICTURES)
        save_model(folder / "painting", PAINTING)
        save_model(folder / "other", PAINTING, seed=2)
        save_model(folder / "prompted", PROMPTED)
        names += ["two", "pictures", "painting", "other", "prompted"]
    with running(folder, models=[{"folder": str(folder / name), "device": "cpu"} for name in names]) as found:
        yield found


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    with opened(browser, str(server.client.base_url)) as found:
        found.get_by_role("textbox", name="Text").wait_for()
        yield found


def write(page: Page, text: str = SENTENCE, *, beam: int | None = None) -> None:
    """Type a sentence, and wait for all that is shown of it."""
    if beam is not None:
        page.get_by_role("spinbutton", name="Beam").fill(str(beam))
    page.locator("textarea:visible").fill(text)
    with answered(page, "inspect"):
        page.keyboard.press("Enter")
    page.locator(".written .token").first.wait_for()


def answered(page: Page, path: str) -> Any:
    return page.expect_response(re.compile(f"/v1/{path}$"))


def output(page: Page) -> list[str]:
    return [x.strip() for x in page.locator(".written:visible .token").all_inner_texts()]


def part(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def test_only_what_the_page_needs_is_served(server: Running) -> None:
    assert "<script>" not in served_page(), "its policy lets no script into the document"
    answer = server.client.get("/")
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    for path in web_folder().glob("*.[jc]s*"):
        found = server.client.get(f"/web/{path.name}")
        assert found.text == path.read_text(encoding="utf-8")
        assert found.headers["content-type"].startswith("text/javascript" if path.suffix == ".js" else "text/css")
    for name in ("index.html", "no.js", "..%2Fpage.py", "%2e%2e/page.py"):
        assert server.client.get(f"/web/{name}").status_code == 404, name


def test_the_output_appears_as_it_is_written(page: Page, system: System) -> None:
    page.evaluate("""() => { window.seen = []; const live = document.querySelector('.live');
        new MutationObserver(() => seen.push(live.textContent)).observe(live, { childList: true, subtree: true,
          characterData: true }); }""")
    write(page, beam=1)
    best = system.outputs([SENTENCE], beam=1)[0][0]
    assert output(page) == [*best.text.split(), "</s>"][: len(output(page))]
    seen = [text for text in page.evaluate("seen") if text]
    assert len(set(seen)) > 2, "word by word"
    assert all(best.text.startswith(text) for text in seen)
    assert f"log p {best.log_prob:.2f}".replace("-", "−") in part(page, "Output").inner_text()


def test_another_token_is_chosen_and_the_rest_changes(page: Page, system: System) -> None:
    write(page)
    before, found = output(page), system.inspect(SENTENCE, alternatives=8)
    page.locator(".written .token").nth(1).click()
    panel = page.get_by_role("group", name="Alternatives")
    shown = [text.split("\n")[0] for text in panel.get_by_role("button").all_inner_texts()]
    assert shown == [one.text for one in found.outputs[0].tokens[1].alternatives]
    assert panel.locator("[aria-current=true]").evaluate("x => x === document.activeElement")
    page.keyboard.press("ArrowDown")
    with answered(page, "inspect") as told:
        page.keyboard.press("Enter")
    forced = json.loads(told.value.request.post_data or "")["forced"]
    assert forced == [found.outputs[0].tokens[0].id, found.outputs[0].tokens[1].alternatives[1].id]
    page.get_by_text("begins as you chose (2 tokens)").wait_for()
    again = system.inspect(SENTENCE, forced=forced)
    assert output(page) == [token.text for token in again.outputs[0].tokens]
    assert output(page) != before
    assert page.locator(".written .forced").count() == 2
    assert "Without that:" in part(page, "Output").inner_text()
    assert "edit its weights" in part(page, "Attention").inner_text()
    with answered(page, "inspect"):
        page.get_by_role("button", name="Reset").click()
    page.get_by_text("begins as you chose").wait_for(state="detached")
    assert output(page) == before


def test_the_beam_is_a_tree_that_can_be_walked(page: Page, system: System) -> None:
    write(page, beam=2)
    tree = system.inspect(SENTENCE, tree=True, beam=2).tree
    assert tree is not None
    assert f"{len(tree.nodes)} hypotheses in {tree.steps + 1} steps" in part(page, "Beam search").inner_text()
    best = page.locator(".tree .node.best")
    assert 3 < best.count() <= sum(node.state == "best" for node in tree.nodes)
    assert page.locator(".tree .node.pruned").count() > 0
    page.get_by_role("application", name="Tree of hypotheses").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    way = [node for node in tree.nodes if node.state == "best"]
    assert page.locator("#tip b").inner_text() == way[2].text
    assert "on the best path" in page.locator("#tip").inner_text()
    page.keyboard.press("ArrowDown")
    assert "on the best path" not in page.locator("#tip").inner_text()
    with answered(page, "inspect") as told:
        page.keyboard.press("Enter")
    forced = json.loads(told.value.request.post_data or "")["forced"]
    others = [node for node in tree.nodes if node.step == 2 and node.state != "best"]
    assert forced in [[tree.nodes[node.parent or 0].token, node.token] for node in others]


@whole
def test_a_branch_of_a_continuation_begins_after_the_prompt(page: Page) -> None:
    page.get_by_role("combobox", name="Model").select_option("prompted")
    write(page)
    tree = page.get_by_role("application", name="Tree of hypotheses")
    tree.focus()
    for _ in range(2 + len(SENTENCE.split())):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    chosen = page.locator("#tip b").inner_text()
    with answered(page, "inspect"):
        tree.press("Enter")
    page.get_by_text("begins as you chose (1 token)").wait_for()
    assert output(page)[0] == chosen


def test_long_tokens_are_cut_off_where_their_box_ends(page: Page) -> None:
    texts = ["Donaudampfschifffahrt", "猫は寝る彼女は知っている", "WWWWWWWWWWWW", "short"]
    nodes = [{"id": 0, "step": 0, "parent": None, "text": "<s>"}]
    nodes += [{"id": i, "step": 1, "parent": 0, "text": text} for i, text in enumerate(texts, 1)]
    rest = {"token": 1, "log_prob": -1, "score": -1, "state": "open"}
    found = page.evaluate(
        """async (nodes) => { const { treeView } = await import("/web/tree.js"), view = treeView(() => {});
        document.querySelector("main").append(view.element);
        view.show({ width: 4, nodes });
        return [...view.element.querySelectorAll(".node")].map((node) => [node.textContent,
          ...["text", "rect"].map((name) => node.querySelector(name).getBoundingClientRect().width)]); }""",
        [{**node, **rest} for node in nodes],
    )
    assert all(width < room for _, width, room in found)
    assert {text for text, *_ in found} >= {"<s>", "short"}
    assert sum(text.endswith("…") for text, *_ in found) == 3


def test_heads_are_switched_off_and_weights_edited(page: Page, system: System) -> None:
    write(page)
    before, layer = output(page), page.get_by_role("combobox", name="Layer").first.input_value()
    choose(page, "Heads", "0")
    page.locator(".written .token").nth(1).click()
    assert page.get_by_role("group", name="Alternatives").is_visible()
    with answered(page, "inspect"):
        page.get_by_role("button", name="Switch head 0 off").click()
    page.get_by_text("edited", exact=True).wait_for()
    off = system.inspect(SENTENCE, edits=Edits(heads_off=((layer, 0),)))
    assert output(page) == [token.text for token in off.outputs[0].tokens]
    assert page.get_by_role("button", name="Switch head 0 on again").is_visible()
    assert page.get_by_role("group", name="Alternatives").is_hidden(), "they were those of another output"
    with answered(page, "inspect"):
        page.get_by_role("button", name="Reset").click()
    page.get_by_text("edited", exact=True).wait_for(state="detached")
    assert output(page) == before
    choose(page, "Heads", "mean")
    token(page, "target, attending", 0).click()
    bars = page.get_by_role("group", name="Edit a row of weights").get_by_role("slider")
    assert bars.count() == len(SENTENCE.split()) + 1
    bars.nth(2).focus()
    with answered(page, "inspect") as told:
        page.keyboard.press("End")
    (row,) = json.loads(told.value.request.post_data or "")["edits"]["rows"]
    assert (row["layer"], row["head"], row["position"]) == (layer, None, 0)
    assert row["weights"] == [0, 0, 1, 0]
    page.get_by_text("edited", exact=True).wait_for()
    edited = system.inspect(SENTENCE, edits=Edits.from_json({"rows": [row]}))
    assert output(page) == [token.text for token in edited.outputs[0].tokens]
    token(page, "target, attending", 0).hover()
    assert "100% gamma" in page.locator("#tip").inner_text()
    page.get_by_role("button", name="Close").click()
    choose(page, "Drawn as", "Heat map")
    cells = page.get_by_role("application", name="Heat map")
    cells.hover(position={"x": 100, "y": 120})
    cells.click(position={"x": 8, "y": 120})
    assert bars.first.is_hidden(), "a label is no cell"


@whole
def test_other_methods_explain_the_same_output(page: Page) -> None:
    write(page)
    before = output(page)
    with answered(page, "explain"):
        page.get_by_role("combobox", name="Explained by").select_option("erasure")
    page.locator(".attention:visible option[value=erasure]").wait_for(state="attached")
    assert page.get_by_role("combobox", name="Layer").input_value() == "erasure"
    assert output(page) == before
    assert page.get_by_role("button", name="Switch head").is_hidden(), "it is no layer of the network"


def test_other_methods_explain_the_edited_model(page: Page, server: Running, system: System) -> None:
    write(page)
    layer = page.get_by_role("combobox", name="Layer").first.input_value()
    choose(page, "Heads", "0")
    with answered(page, "inspect"):
        page.get_by_role("button", name="Switch head 0 off").click()
    page.get_by_text("edited", exact=True).wait_for()
    with answered(page, "explain") as told:
        page.get_by_role("combobox", name="Explained by").select_option("gradient")
    edits = Edits(heads_off=((layer, 0),))
    expected = system.inspect(SENTENCE, edits=edits).outputs[0]
    assert told.value.json()["log_probs"] == pytest.approx([token.log_prob for token in expected.tokens], abs=1e-3)
    asked = {"input": SENTENCE, "method": "gradient", "edits": {"heads_off": [[layer, 0]]}}
    answer = server.post("/v1/explain", asked)
    assert (answer.status_code, "needs a target" in answer.text) == (422, True)


@whole
def test_a_link_to_what_was_changed(page: Page, browser: Browser) -> None:
    write(page)
    page.locator(".written .token").nth(0).click()
    with answered(page, "inspect"):
        page.get_by_role("group", name="Alternatives").get_by_role("button").nth(2).click()
    page.get_by_text("begins as you chose").wait_for()
    choose(page, "Drawn as", "Heat map")
    expected, address = output(page), page.url
    with opened(browser, address) as other:
        other.get_by_text("begins as you chose").wait_for()
        assert output(other) == expected
        assert other.get_by_role("application", name="Heat map").is_visible()
        assert other.locator("textarea:visible").input_value() == SENTENCE


@whole
def test_two_models_side_by_side(page: Page) -> None:
    page.get_by_role("group", name="View").get_by_text("Compare").click()
    page.locator("textarea:visible").fill(SENTENCE)
    page.get_by_role("button", name="Compare").click()
    page.get_by_text(re.compile("that the other output lacks|Both write the same")).wait_for()
    one, two = part(page, "Model 1"), part(page, "Model 2")
    texts = [[x.strip() for x in each.locator(".token").all_inner_texts()] for each in (one, two)]
    assert texts[0] != texts[1]
    differ = [[x.strip() for x in each.locator(".differs").all_inner_texts()] for each in (one, two)]
    kept = [list(mine) for mine in texts]
    for mine, gone in zip(kept, differ, strict=True):
        for word in gone:
            mine.remove(word)
    assert sorted(kept[0]) == sorted(kept[1]), "what is not marked stands in both"
    assert page.locator(".links:visible").count() == 2


def test_what_if_a_word_were_another(page: Page, system: System) -> None:
    write(page, beam=1)
    words = page.get_by_role("group", name="Words of the source").get_by_role("button")
    assert words.all_inner_texts() == SENTENCE.split()
    words.nth(1).click()
    page.get_by_role("textbox", name="Instead of beta").fill("zeta")
    with page.expect_request("**/v1/generate") as asked:
        page.keyboard.press("Enter")
    assert json.loads(asked.value.post_data or "")["search"] == {"beam": 1}, "as the output was searched for"
    row = page.locator(".variants tbody tr").first
    row.wait_for()
    (expected,) = system.counterfactual(SENTENCE, ["alpha zeta gamma"], beam=1)
    cells = row.get_by_role("cell").all_inner_texts()
    assert cells[:2] == ["alpha zeta gamma", expected.text]
    assert cells[3].startswith(f"{expected.log_prob_of_original:.2f}".replace("-", "−"))
    assert row.locator("ins").first.inner_text() == "zeta"
    page.get_by_role("button", name="Leave out each word").click()
    page.locator(".source-word.weighed").nth(2).wait_for()
    assert page.locator(".variants tbody tr").count() == 4
    page.set_viewport_size({"width": 360, "height": 740})
    assert scroll_width(page) <= 360
    losses = [-one.change for one in system.counterfactual(SENTENCE, beam=1)]
    shown = [float(x) for x in words.evaluate_all("all => all.map((x) => x.style.getPropertyValue('--w'))")]
    assert shown.index(max(shown)) == losses.index(max(losses))


def test_a_word_of_any_length_stays_on_the_screen(page: Page) -> None:
    write(page, f"alpha https://example.org/{'a' * 300}")
    page.get_by_role("button", name="Leave out each word").click()
    page.locator(".source-word.weighed").nth(1).wait_for()
    assert scroll_width(page) <= 1280
    assert page.locator(".variants").evaluate("x => x.scrollWidth <= x.parentElement.clientWidth")


def test_a_document_is_ranked_by_doubt_corrected_and_saved(page: Page, system: System) -> None:
    sentences = ["alpha beta", "gamma delta epsilon zeta", "eta", "theta alpha theta alpha theta"]
    page.get_by_role("group", name="View").get_by_text("Document").click()
    page.locator("textarea:visible").fill("\n".join(sentences) + "\n\n")
    page.get_by_role("button", name="Translate").click()
    page.get_by_text(re.compile(r"4 sentences, \d of them doubtful")).first.wait_for()
    rows = page.locator(".document tbody tr")
    expected = {one: found for one, found in zip(sentences, system.doubts(sentences), strict=True) if found}
    ranked = sorted(sentences, key=lambda one: -expected[one].doubt)
    assert [row.get_by_role("cell").nth(1).inner_text() for row in rows.all()] == ranked
    told = [int(row.get_by_role("cell").first.inner_text().rstrip("%")) for row in rows.all()]
    assert told == [pytest.approx(100 * expected[one].doubt, abs=1.01) for one in ranked]
    rows.first.get_by_role("button", name="Correct").click()
    page.get_by_role("textbox", name="Output of sentence").fill("CORRECT\tTEXT ")
    rows.first.get_by_role("button", name="Done").click()
    assert rows.first.get_by_text("corrected").is_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Corrected as TSV").click()
    assert Path(download.value.path()).read_text() == f"{ranked[0]}\tCORRECT TEXT\n"
    with page.expect_download() as download:
        page.get_by_role("button", name="All as JSONL").click()
    pairs = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
    assert [pair["source"] for pair in pairs] == sentences
    assert {pair["source"]: pair["target"] for pair in pairs} == {
        one: "CORRECT TEXT" if one == ranked[0] else expected[one].text for one in sentences
    }
    choose(page, "Order", "as in the text")
    assert [row.get_by_role("cell").nth(1).inner_text() for row in rows.all()] == sentences
    with answered(page, "inspect"):
        rows.nth(1).get_by_role("button", name="Look into it").click()
    assert page.locator("textarea:visible").input_value() == sentences[1]


def test_refusals_are_told(page: Page) -> None:
    with answered(page, "generate"):
        page.locator("textarea:visible").fill("alpha " * 2000)
        page.keyboard.press("Enter")
    told = page.locator(".told.error")
    told.wait_for()
    assert "tokens" in told.inner_text()
    assert not part(page, "Output").is_visible(), "there is none"


@pytest.mark.parametrize(
    "said",
    [
        "show=constructor",
        "text=alpha&view=constructor&head=%22length%22&edits=%7B%22heads_off%22%3A5%2C%22rows%22%3A%5Bnull%5D%7D",
    ],
)
def test_a_link_may_say_anything(browser: Browser, server: Running, said: str) -> None:
    with opened(browser, f"{server.client.base_url}#{said}") as page:
        page.get_by_role("textbox", name="Text").wait_for()
        write(page)
        page.get_by_text("Choose a token").wait_for()
        assert page.locator(".told").first.inner_text() == ""


def test_what_a_link_forces_in_vain_can_be_taken_back(browser: Browser, server: Running) -> None:
    with opened(browser, f"{server.client.base_url}#text=alpha&forced=[99999]") as page:
        page.get_by_text("there is no token 99999").wait_for()
        assert output(page), "as it is"
        with answered(page, "inspect"):
            page.get_by_role("button", name="Take back: begins as you chose (1 token)").click()
        page.get_by_text("there is no token 99999").wait_for(state="detached")
        assert "forced" not in page.url


def test_words_of_a_text_that_is_read_from_the_right(page: Page) -> None:
    write(page, "القطة تنام")
    first, second = page.locator(".source-word").all()
    assert first.bounding_box()["x"] > second.bounding_box()["x"]  # type: ignore[index]
    words = [{"text": text, "confidence": 0.3} for text in ("القطة", "تنام")]
    signs = {"value": 0.9, "unattended": 0, "repetition": 0}
    answer = {"outputs": [[{"text": "القطة تنام", "words": words, "doubt": signs}]]}
    page.route("**/v1/generate", lambda route: route.fulfill(json=answer))
    choose(page, "View", "Document")
    page.get_by_role("textbox", name="Document").fill("one")
    page.get_by_role("button", name="Translate").click()
    page.locator(".document .unsure").first.wait_for()
    first, second = page.locator(".document .unsure").all()
    assert first.bounding_box()["x"] > second.bounding_box()["x"]  # type: ignore[index]


def test_a_correction_goes_on_while_more_is_translated(page: Page) -> None:
    choose(page, "View", "Document")
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "omega" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.route("**/v1/generate", hold)
    page.get_by_role("textbox", name="Document").fill("alpha\n" * 8 + "omega")
    page.get_by_role("button", name="Translate").click()
    page.get_by_role("button", name="Correct", exact=True).first.click()
    page.keyboard.type("one ")
    until(page, "document.querySelector('.document-view [role=status]').textContent.startsWith('8 of 9')")
    held.pop().continue_()
    page.get_by_text(re.compile(r"9 sentences, \d of them doubtful")).first.wait_for()
    page.keyboard.type("two")
    assert page.locator(".document textarea:visible").input_value().endswith("one two")


def test_corrections_outlast_another_translation(page: Page) -> None:
    choose(page, "View", "Document")
    page.get_by_role("textbox", name="Document").fill("alpha\nbeta")
    for corrected in (0, 1):
        page.get_by_role("button", name="Translate").click()
        until(page, "document.querySelectorAll('.document tbody tr').length === 2")
        assert page.locator(".document .chip:visible").count() == corrected
        if not corrected:
            row = page.get_by_role("row").filter(has_text="beta")
            row.get_by_role("button", name="Correct", exact=True).click()
            row.get_by_role("textbox").fill("mine")
    page.get_by_role("row").filter(has_text="beta").get_by_text("mine", exact=True).wait_for()


COMPOSER = """async (kinds) => { const { composer } = await import("/web/compose.js");
    window.input = composer(() => {});
    input.show(kinds);
    document.querySelector(".compose").replaceChildren(input.element); }"""


def test_texts_of_several_sources_are_in_a_link(page: Page) -> None:
    for kinds, expected in ((["text", "text"], ["a", "[b]"]), (["image", "text"], [None, "[b]"])):
        page.evaluate(COMPOSER, kinds)
        areas = page.get_by_role("textbox", name="Text")
        for area, text in zip(areas.all(), (x for x in expected if x), strict=True):
            area.fill(text)
        found = page.evaluate("input.text")
        assert json.loads(found) == expected
        page.evaluate("for (const area of input.element.querySelectorAll('textarea')) area.value = ''")
        page.evaluate("text => input.set(text)", found)
        assert [area.input_value() for area in areas.all()] == [x for x in expected if x]
        page.evaluate("input.set('no list')")


def test_the_later_of_two_files_counts(page: Page, tmp_path: Path) -> None:
    for name, seconds in (("long", 120), ("short", 1)):
        with wave.open(str(tmp_path / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(bytes(32000 * seconds))
    page.evaluate(COMPOSER, ["audio"])
    chooser = page.get_by_label("Choose a recording").last
    chooser.set_input_files(tmp_path / "long.wav")
    chooser.set_input_files(tmp_path / "short.wav")
    page.get_by_label("the recording that was chosen").wait_for()
    page.wait_for_timeout(500)
    assert len(base64.b64decode(page.evaluate("input.get().data"))) == 32044
    Image.new("RGB", (5000, 1)).save(tmp_path / "thin.png")
    page.evaluate(COMPOSER, ["image"])
    page.get_by_label("Choose a picture").last.set_input_files(tmp_path / "thin.png")
    picture = page.get_by_alt_text("the picture that was chosen")
    assert picture.evaluate("async (x) => { await x.decode(); return [x.naturalWidth, x.naturalHeight]; }") == [1024, 1]


def test_one_recording_at_a_time_and_none_when_another_kind_is_asked_for(page: Page) -> None:
    page.evaluate(COMPOSER, ["audio"])
    page.evaluate("""() => { const media = navigator.mediaDevices, ask = media.getUserMedia.bind(media);
        window.streams = [];
        media.getUserMedia = async (what) => { streams.push(await ask(what)); return streams.at(-1); }; }""")
    page.get_by_role("button", name="Record", exact=True).dblclick()
    page.get_by_role("button", name="Stop").wait_for()
    page.wait_for_timeout(200)
    assert page.evaluate("streams.length") == 1
    page.evaluate("input.show(['text'])")
    until(page, "streams[0].getTracks().every((track) => track.readyState === 'ended')")
    page.evaluate("input.show(['audio'])")
    page.evaluate("document.querySelector('.drop button:nth-of-type(2)').click(); input.show(['text'])")
    until(page, "streams[1]?.getTracks().every((track) => track.readyState === 'ended')")  # allowed too late


@whole
def test_what_is_asked_for_counts_and_not_what_was(browser: Browser, server: Running) -> None:
    """A link to a forced output is followed while another sentence is typed, and another model chosen."""
    with opened(browser, str(server.client.base_url)) as page:
        page.get_by_role("textbox", name="Text").wait_for()
        page.get_by_label("Explained by").select_option("gradient")  # of nothing, so far
        held: list[Route] = []
        page.route("**/v1/generate", lambda route: held.append(route), times=1)
        page.goto("about:blank")
        page.goto(f"{server.client.base_url}#text=alpha&forced=[7]")
        until(page, "document.querySelector('[aria-busy=true]') !== null")
        write(page)
        held.pop().continue_()
        page.get_by_text("Choose a token").wait_for()
        assert not page.get_by_text("begins as you chose").count()
        page.route("**/v1/generate", lambda route: held.append(route), times=1)
        page.keyboard.press("Enter")
        until(page, "document.querySelector('[aria-busy=true]') !== null")
        page.get_by_role("combobox", name="Model").select_option("two")
        held.pop().continue_()
        page.wait_for_timeout(100)
        assert page.locator(".told").first.inner_text() == ""
        assert not page.get_by_role("region", name="Output").count()


def test_a_sentence_that_is_refused_does_not_end_a_document(page: Page) -> None:
    page.get_by_role("group", name="View").get_by_text("Document").click()
    page.locator("textarea:visible").fill("alpha beta\n" + "alpha " * 2000 + "\n<b>gamma</b>")
    page.get_by_role("button", name="Translate").click()
    page.get_by_text(re.compile(r"3 sentences, \d of them doubtful")).first.wait_for()
    rows = page.locator(".document tbody tr")
    assert "the source has" in rows.first.get_by_role("cell").nth(2).inner_text()
    assert "<b>gamma</b>" in [row.get_by_role("cell").nth(1).inner_text() for row in rows.all()]


@whole
def test_served_pages_are_named_and_narrow(page: Page) -> None:
    write(page)
    page.locator(".written .token").nth(0).click()
    assert page.evaluate(NAMELESS) == []
    for role in ("banner", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1, role
    page.set_viewport_size({"width": 360, "height": 740})
    for view in ("Explore", "Compare", "Document"):
        page.get_by_role("group", name="View").get_by_text(view).click()
        assert scroll_width(page) <= 360, view


@whole
@pytest.mark.skipif(axe() is None, reason="axe-core is not installed (AXE=PATH/axe.min.js names it)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view(scheme: str, browser: Browser, server: Running) -> None:
    with opened(browser, str(server.client.base_url), color_scheme=scheme) as page:

        def check(view: str) -> None:
            found = page.evaluate("async () => (await axe.run()).violations.map((x) => [x.id, x.nodes[0].html])")
            assert found == [], view

        page.get_by_role("textbox", name="Text").wait_for()
        page.evaluate(f"{axe()};0")
        write(page)
        page.locator(".written .token").nth(1).click()
        page.get_by_role("button", name="Leave out each word").click()
        page.locator(".source-word.weighed").nth(2).wait_for()
        check("explore")
        choose(page, "View", "Compare")
        page.locator("textarea:visible").fill(SENTENCE)
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("region", name="Attention of model 2").wait_for()
        check("compare")
        choose(page, "View", "Document")
        page.get_by_role("textbox", name="Document").fill(SENTENCE)
        page.get_by_role("button", name="Translate").click()
        page.get_by_role("button", name="Correct", exact=True).click()
        check("document")


@whole
def test_what_is_spoken_becomes_a_wav_file(page: Page) -> None:
    """The browser's microphone is one that beeps."""
    found = page.evaluate("""async () => { const { record, base64 } = await import("/web/sound.js");
        const stop = await record();
        await new Promise((done) => setTimeout(done, 400));
        return base64(await stop()); }""")
    with wave.open(io.BytesIO(base64.b64decode(found))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
    assert len(samples) > 1600


def test_a_recording_that_was_chosen_can_be_played(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(32000))
    page.evaluate("""async () => { const { composer } = await import("/web/compose.js");
        const input = composer(() => {});
        input.show(["audio"]);
        document.querySelector(".compose").replaceChildren(input.element); }""")
    page.get_by_label("Choose a recording").last.set_input_files(path)
    player = page.get_by_label("the recording that was chosen")
    assert player.evaluate("x => x.clientWidth") > 200


@node
def test_samples_are_written_as_they_are() -> None:
    (found,) = run_module({"sound": ["wav", "base64"]}, "say(base64(wav(given, 8000)));", [0, 0.5, -1, 1, 2])
    with wave.open(io.BytesIO(base64.b64decode(found))) as file:
        assert file.getframerate() == 8000
        assert np.frombuffer(file.readframes(5), dtype=np.int16).tolist() == [0, 16384, -32767, 32767, 32767]


@node
def test_why_an_output_is_doubtful() -> None:
    """How much so is what the server says."""
    sure = {"words": [{"text": "A", "confidence": 0.9}], "coverage": [0.9, 1.1], "flags": []}
    signs = {"value": 0.125, "unattended": 0, "repetition": 0}
    unsure = {
        "words": [{"text": "A", "confidence": 0.9}, {"text": "B", "confidence": 0.2}],
        "coverage": [0.1, 1.0, 1.0],
    }
    given = [
        {**sure, "doubt": signs},
        {**sure, **unsure, "flags": ["truncated"], "doubt": {"value": 0.75, "unattended": 1, "repetition": 0.5}},
        {"flags": ["repetition"], "doubt": {"value": 1, "unattended": 0, "repetition": 0.5}},
    ]
    found = run_module({"doubt": ["doubt"]}, "for (const one of given) say(doubt(one));", given)
    assert [one["value"] for one in found] == [0.125, 0.75, 1]
    assert found[0]["reasons"] == []
    assert found[1]["reasons"] == [
        "unsure of “B”",
        "1 of 3 source words hardly attended to",
        "repeats itself",
        "cut off",
    ]
    assert found[2]["reasons"] == ["repeats itself"]


@node
def test_a_file_dropped_beside_its_place_does_not_take_the_page_away() -> None:
    """Text that is dropped goes where it is dropped, and a file into its place, which has taken it before."""
    program = """
for (const [types, taken] of given) {
  const event = { defaultPrevented: taken, refused: false, dataTransfer: types && { types, dropEffect: "copy" },
    preventDefault() { this.refused = true; } };
  refuseFile(event);
  say([event.refused, event.dataTransfer?.dropEffect ?? null]);
}
"""
    given = [[["Files"], False], [["Files"], True], [["text/plain"], False], [None, False]]
    found = run_module({"dom": ["refuseFile"]}, program, given)
    assert found == [[True, "none"], [False, "copy"], [False, "copy"], [False, None]]


@whole
def test_a_dropped_file_is_refused_by_the_page(page: Page) -> None:
    refused = page.evaluate("""() => ["dragover", "drop"].map((kind) => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File(["x"], "x.txt"));
      const event = new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true });
      return !document.body.dispatchEvent(event);
    })""")
    assert refused == [True, True]


@node
def test_what_two_texts_share_and_what_is_a_word() -> None:
    program = """
say(common(given[0].split(" "), given[1].split(" ")));
say([words("eins  zwei "), words("猫は寝る").join("|"),
  sentences("One. Two!\\n\\nThree", true), sentences("a b\\nc", false)]);
"""
    same, (spaced, unspaced, split, lines) = run_module(
        {"numbers": ["common"], "words": ["words", "sentences"]}, program, ["a b c d", "a x c c d"]
    )
    assert same == [[True, False, True, True], [True, False, True, False, True]]
    assert spaced == ["eins", "zwei"]
    assert unspaced.replace("|", "") == "猫は寝る"
    assert "|" in unspaced
    assert split == ["One.", "Two!", "Three"]
    assert lines == ["a b", "c"]


@whole
def test_a_picture_is_dropped(page: Page, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(16, 16, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    page.get_by_role("combobox", name="Model").select_option("pictures")
    with answered(page, "inspect"):
        page.get_by_label("Choose a picture").last.set_input_files(tmp_path / "a.png")
    page.locator("canvas.main:visible").wait_for()
    assert page.locator(".written .token").count() > 0


@whole
def test_a_picture_is_written(page: Page) -> None:
    page.get_by_role("combobox", name="Model").select_option("painting")
    write(page)
    drawn = page.locator("img.drawn:visible")
    before = drawn.get_attribute("src")
    page.locator(".written .token").nth(1).click()
    others = page.get_by_role("group", name="Alternatives").get_by_role("button")
    assert len(set(others.all_inner_texts())) == others.count() > 3
    with answered(page, "inspect"):
        others.nth(2).click()
    page.get_by_text("begins as you chose (2 tokens)").wait_for()
    assert drawn.get_attribute("src") != before
    assert page.locator("p img").get_attribute("src") == before, "what it was without that"
    assert page.locator(".written .differs").count() > 0
    page.get_by_role("button", name="Leave out each word").click()
    page.locator(".variants tbody img").nth(2).wait_for()


@whole
def test_of_two_models_nothing_is_left_that_another_wrote(page: Page) -> None:
    page.get_by_role("group", name="View").get_by_text("Compare").click()
    page.get_by_role("combobox", name="Model 1").select_option("painting")
    page.get_by_role("combobox", name="Model 2").select_option("other")
    page.locator("textarea:visible").fill(SENTENCE)
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("The pictures differ.").wait_for()
    assert page.locator("img.drawn:visible").count() == 2
    page.get_by_role("combobox", name="Model 1").select_option("pictures")
    page.get_by_text("These models read different kinds of input.").wait_for()
    assert page.locator("img.drawn:visible, .written:visible").count() == 0
