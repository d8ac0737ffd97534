"""LibreTranslate's API, by its own Python client and by hand, against a real server with a real model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from regard.serving.glossary import Glossary
from regard.serving.languages import detect, name_of
from regard.serving.libretranslate import Downloads
from regard.serving.messages import Refused
from regard.serving.settings import ServerSettings
from regard.serving.translating import Translated, Translating, translate, translate_streaming
from tests.serving import ThreadService, served


@pytest.fixture(scope="module")
def url(learnt: Path) -> Iterator[str]:
    with served([{"folder": str(learnt), "name": "toy", "languages": ["en:de"]}]) as address:
        yield address


def test_its_own_client_works_unchanged(url: str) -> None:
    client = LibreTranslateAPI(url)
    assert client.translate("alpha beta gamma", "en", "de") == "GAMMA BETA ALPHA"
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": ["de"]}, {"code": "en", "name": "English", "targets": ["en", "de"]}
    ]  # fmt: skip
    assert httpx.get(f"{url}/languages", headers={"Content-Type": "application/json"}).json() == client.languages()
    assert client.detect("This is how we do it.")[0]["language"] == "en"
    assert client.translate("eta\n\n alpha beta ", "en", "de") == "ETA\n\n BETA ALPHA "


def ask(url: str, path: str = "/translate", status: int = 200, **given: Any) -> Any:
    answer = httpx.post(url + path, json=given)
    assert answer.status_code == status, answer.text
    return answer.json()


TEXT: dict[str, Any] = {"source": "en", "target": "de"}


def test_texts_in_every_form(url: str) -> None:
    """As JSON, as a form, as a list, with blanks and paragraphs, empty."""
    assert ask(url, q="alpha beta", **TEXT) == {"translatedText": "BETA ALPHA"}
    form = httpx.post(f"{url}/translate", data={"q": "alpha beta", **TEXT})
    assert form.json() == {"translatedText": "BETA ALPHA"}
    assert ask(url, q=["alpha beta", "", "eta"], **TEXT) == {"translatedText": ["BETA ALPHA", "", "ETA"]}
    assert ask(url, q="  \n", **TEXT) == {"translatedText": "  \n"}
    # A sentence at a time: the second begins behind a mark that ends one.
    assert ask(url, q="alpha beta! Alpha\n\teta zeta\n", **TEXT)["translatedText"].endswith("\n\tZETA ETA\n")
    assert ask(url, q="alpha beta", source="de", target="de") == {"translatedText": "alpha beta"}


def test_html_keeps_its_tags(url: str) -> None:
    page = '<p class="a">alpha <b>beta</b> gamma</p><script>alpha beta</script><p translate="no">eta zeta</p>'
    found = ask(url, q=page, format="html", **TEXT)["translatedText"]
    assert found == page.replace("alpha <b>beta</b> gamma", "GAMMA <b>BETA</b> ALPHA")


def test_alternatives_differ(url: str) -> None:
    found = ask(url, q="alpha beta gamma", alternatives=3, **TEXT)
    assert found["translatedText"] == "GAMMA BETA ALPHA"
    assert len({found["translatedText"], *found["alternatives"]}) == 4
    several = ask(url, q=["alpha beta gamma", "eta"], alternatives=1, **TEXT)
    assert [len(some) for some in several["alternatives"]] == [1, 1]


def test_languages_are_detected(url: str) -> None:
    found = ask(url, q="alpha beta gamma", source="auto", target="de")
    assert found["translatedText"] == "GAMMA BETA ALPHA"
    assert found["detectedLanguage"]["language"] == "en"  # the only one that there is a model for
    both = ask(url, "/detect", q="Das ist ein kurzer Satz auf Deutsch, den jeder versteht.")
    assert both[0]["language"] == "de"
    assert both[0]["confidence"] > 90
    assert [x.language for x in detect("Où est la bibliothèque de la ville ?", ["en", "de"])] != []
    assert detect("Où est la bibliothèque de la ville ?", ["en", "fr", "de"])[0].language == "fr"
    assert max(x.confidence for x in detect("Où est la bibliothèque de la ville ?", ["en", "de"])) < 0.1
    assert (name_of("pt-BR"), name_of("de"), name_of("xx")) == ("Portuguese (BR)", "German", "xx")


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"source": "en", "target": "de"}, 400, "missing q"),
        ({"q": "alpha", "source": "en"}, 400, "missing target"),
        ({"q": "alpha", "source": "en", "target": "fr"}, 400, "en to fr is not supported; pairs here: en to de"),
        ({"q": "alpha", "source": "auto", "target": "fr"}, 400, "is not supported"),
        ({"q": 3, **TEXT}, 400, "q is a text"),
        ({"q": "alpha", "format": "pdf", **TEXT}, 400, "format is text or html"),
        ({"q": "alpha", "alternatives": "many", **TEXT}, 400, "alternatives is a whole number"),
        ({"q": "alpha", "alternatives": 99, **TEXT}, 400, "0 to 15"),
        ({"q": "a" * 100_001, **TEXT}, 413, "more than 100,000"),
        ({"q": [""] * 257, **TEXT}, 413, "more than 256"),
    ],
)  # fmt: skip
def test_errors_have_its_form(url: str, given: dict[str, Any], status: int, said: str) -> None:
    found = ask(url, status=status, **given)
    assert list(found) == ["error"]
    assert said in found["error"]


def test_bodies_that_are_none(url: str) -> None:
    whole = b'{"q": "alpha", "source": "en", "target": "de"'
    halves = (
        b'{"q": "\\ud800", "source": "en", "target": "en"}', b'{"q": "alpha", "source": "en", "target": "\\uD800"}'
    )  # fmt: skip
    for content in (b"{", b"[1]", b"\xff", b'{"q": NaN}', *halves, whole + b', "alternatives": 1e999}'):
        answer = httpx.post(f"{url}/translate", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert list(answer.json()) == ["error"]
    assert httpx.post(f"{url}/translate", content=b"\xff\xfe").json()["error"] == "Invalid request: missing q parameter"
    assert list(httpx.get(f"{url}/download_file/none").json()) == ["error"]


@pytest.mark.parametrize(
    ("name", "text", "out"),
    [
        ("a.txt", "\ufeffalpha beta\r\n\r\neta", "\ufeffBETA ALPHA\r\n\r\nETA"),
        ("ä b.html", "<h1>alpha beta</h1>", "<h1>BETA ALPHA</h1>"),
        ("c.SRT", "1\n00:00:01,000 --> 00:00:02,000\nalpha beta\n", "1\n00:00:01,000 --> 00:00:02,000\nBETA ALPHA\n"),
        ("d.md", "# alpha beta\n\n```\nalpha\n```\n- eta\n", "# BETA ALPHA\n\n```\nalpha\n```\n- ETA\n"),
    ],
)  # fmt: skip
def test_files_are_translated(url: str, name: str, text: str, out: str) -> None:
    answer = httpx.post(f"{url}/translate_file", data=TEXT, files={"file": (name, text.encode())})
    assert answer.status_code == 200, answer.text
    found = httpx.get(answer.json()["translatedFileUrl"])
    assert found.content.decode() == out
    assert re.fullmatch(r'attachment; filename="[\w ]+_translated\.\w+"', found.headers["content-disposition"])


def test_files_that_are_none(url: str) -> None:
    for name, content in (("a.exe", b"x"), ("a.txt", b"\xff"), ("", b"x")):
        answer = httpx.post(f"{url}/translate_file", data=TEXT, files={"file": (name, content)} if name else None)
        assert answer.status_code == 400
        assert list(answer.json()) == ["error"]


def test_files_are_kept_for_a_while() -> None:
    kept = Downloads(most=10)
    first, second = kept.put("a.txt", "text/plain", b"12345678"), kept.put("b.txt", "text/plain", b"abc")
    assert kept.get(first) is None
    assert (file := kept.get(second)) is not None
    assert file.content == b"abc"
    gone = Downloads(seconds=-1.0)
    assert gone.get(gone.put("a.txt", "text/plain", b"1")) is None


def test_what_its_page_asks_for(url: str) -> None:
    found = httpx.get(f"{url}/frontend/settings").json()
    assert found["language"]["target"] == {"code": "de", "name": "German"}
    assert not found["keyRequired"]
    assert ".html" in found["supportedFilesFormat"]
    assert "/translate" in httpx.get(f"{url}/spec").json()["paths"]


# What it is made of


def test_sentences_are_translated_with_what_is_known_of_each(learnt: Path) -> None:
    async def ask() -> tuple[Translated, list[str | Translated], Translated]:
        settings = {"models": [{"folder": str(learnt), "languages": ["en:de"]}], "limits": {"inputs": 2, "queue": 3}}
        service = ThreadService(ServerSettings.model_validate(settings))
        await service.start()
        try:
            text = " alpha beta\n\neta\nalpha beta\ntheta zeta  eta "
            whole = await translate(service, text)
            streamed = [part async for part in translate_streaming(service, text)]
            page = "<p>alpha <i>beta</i> &amp; eta</p> <p>eta</p><p>&lt;</p>"
            pages = [part async for part in translate_streaming(service, page, Translating(form="html"))]
            assert "".join(part for part in pages if isinstance(part, str)) == pages[-1].text  # type: ignore[union-attr]
            assert len(pages) == 4, "each sentence, what stands after the last, and all of it"
            fixed = await translate(service, "alpha beta", Translating(glossary={"beta": "THETA", "bet": "ETA"}))
        finally:
            await service.end()
        return whole, streamed, fixed

    whole, streamed, fixed = asyncio.run(ask())
    assert whole.text == " BETA ALPHA\n\nETA\nBETA ALPHA\nETA ZETA THETA "
    assert [x.source for x in whole.sentences] == ["alpha beta", "eta", "alpha beta", "theta zeta  eta"]
    assert all(0.2 < x.confidence <= 1 for x in whole.sentences)
    assert whole.source_tokens > 0 < whole.output_tokens
    assert isinstance(last := streamed[-1], Translated)
    assert [x.text for x in last.sentences] == [x.text for x in whole.sentences]
    assert "".join(part for part in streamed if isinstance(part, str)) == whole.text
    assert "THETA" in fixed.text.split()
    assert "ETA" not in fixed.text.split()


def test_terms_are_found_between_the_ends_of_words() -> None:
    glossary = Glossary(
        {"apple": "Apfel", "apple pie": "Apfelkuchen", "苹果": "Apfel", "Regard": "Regard", "C++": "Cpp"}
    )
    for text, found in {
        "an apple  pie and apples": ["Apfelkuchen"], "apple, apple pie": ["Apfel", "Apfelkuchen"], "Apple": [],
        "我吃苹果了": ["Apfel"], "用Regard翻译": ["Regard"], "in C++ or": ["Cpp"], "apple apple": ["Apfel"], "": [],
    }.items():  # fmt: skip
        assert glossary.phrases(text) == found
    assert Glossary({}).phrases("apple") == []
    alike = {"a " * 98 + f"q{i:x}": "x" for i in range(256)} | {"b": "y"}  # a pattern tries each of them in every place
    assert Glossary(alike).phrases("a " * 20_000 + "b") == ["y"]
    for wrong in ({" ": "x"}, {"x": ""}, {"x" * 201: "y"}, {str(i): "x" for i in range(1001)}):
        with pytest.raises(Refused):
            Glossary(wrong)
