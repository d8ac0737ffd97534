"""OpenAI's API, by its own Python client and by hand, against a real server with real models."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx
import numpy as np
import openai
import pytest
import torch
from libretranslatepy import LibreTranslateAPI
from PIL import Image

import regard
from regard.config import parse
from regard.data.tokenizers.symbols import Symbols
from regard.serving.messages import Alternative, TokenInfo
from regard.serving.openai_answers import Completion
from regard.serving.openai_requests import CompletionRequest
from regard.serving.openai_texts import Ending, TokenUsage, WrittenText, spelled
from regard.serving.transcripts import Segment, TimedWord, segments, subrip, webvtt
from regard.system import System
from tests.serving import served
from tests.test_transcribe import TONES, settings, sing
from tests.toy import WORDS, untrained

LSTM = {"kind": "lstm", "layers": 1}


def make_recogniser(place: Path) -> None:
    draw = np.random.default_rng(1)
    for split, count in (("train", 100), ("valid", 4)):
        lines = []
        for number in range(count):
            words = [list(TONES)[i] for i in draw.integers(0, 4, draw.integers(1, 4))]
            sing(place / f"{split}{number}.wav", words, draw)
            lines.append(json.dumps({"source": f"{split}{number}.wav", "target": " ".join(words)}))
        (place / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    steps = {"steps": 80, "validate_every": 80}
    regard.train(regard.Config.parse(settings("speech", training=steps), place))


def make_untrained(place: Path) -> None:
    """A language model and a captioner: what they write means nothing, but they write it."""
    torch.manual_seed(1)
    words = Symbols.train([" ".join(WORDS)], "word", 100)
    for name, source in (("lm", {"kind": "none"}), ("captions", {"kind": "image", "size": 16})):
        model = {"d_model": 16, "encoder": {"kind": "none" if name == "lm" else "stem"}, "decoder": LSTM}
        config = parse({"source": source, "tokens": {"kind": "word"}, "model": model, "search": {"max_length": 12}})
        System(untrained(config, words), place).save(place / name)


@pytest.fixture(scope="module")
def place(learnt: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    shutil.copytree(learnt, place / "demo")
    make_recogniser(place)
    make_untrained(place)
    return place


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    models = [{"folder": str(place / name)} for name in ("demo", "lm", "captions", "speech")]
    models[0]["languages"] = ["en:de"]  # type: ignore[assignment]
    with served(models) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def hello(text: str) -> list[Any]:
    return [{"role": "system", "content": "You translate."}, {"role": "user", "content": text}]


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [x.id for x in client.models.list()] == ["demo", "lm", "captions", "speech"]
    assert client.models.retrieve("lm").object == "model"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
        client.models.retrieve("gpt")


# Chat


def test_a_message_is_translated(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model="demo", messages=hello("alpha beta gamma"))
    assert found.choices[0].message.content == "GAMMA BETA ALPHA"
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].finish_reason == "stop"
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens > 4
    again = client.chat.completions.create(model="demo", messages=hello("alpha beta gamma"), temperature=0, seed=4)
    assert again.choices[0].message.content == "GAMMA BETA ALPHA"
    text = "alpha beta\n\neta"
    assert (
        client.chat.completions.create(model="demo", messages=hello(text)).choices[0].message.content
        == "BETA ALPHA\n\nETA"
    )
    page = client.chat.completions.create(
        model="demo",
        messages=hello("<p>alpha <i>beta</i></p>"),
        extra_body={"format": "html", "glossary": {"alpha": "ETA"}},
    )
    assert (page.choices[0].message.content or "").startswith("<p>")
    assert "ETA" in (page.choices[0].message.content or "")
    answer = again.choices[0].message.model_dump()  # with all of its fields
    used = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function"}]}
    before: list[Any] = [answer, used, {"role": "tool", "tool_call_id": "1", "content": "x"}]
    more = client.chat.completions.create(model="demo", messages=[*hello("alpha"), *before, *hello("alpha beta")])
    assert more.choices[0].message.content == "BETA ALPHA"
    parts = [{"role": "user", "content": [{"type": "text", "text": "alpha beta"}]}]
    assert client.chat.completions.create(model="demo", messages=parts).choices[0].message.content == "BETA ALPHA"  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["alpha beta gamma", " alpha beta\n\neta theta\n", "", "alpha! Beta"])
def test_a_stream_is_the_answer_in_parts(client: openai.OpenAI, text: str) -> None:
    whole = client.chat.completions.create(model="demo", messages=hello(text)).choices[0]
    stream = client.chat.completions.create(
        model="demo", messages=hello(text), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [x.choices[0].delta.content or "" for x in chunks if x.choices]
    assert "".join(deltas) == whole.message.content
    assert [x.choices[0].finish_reason for x in chunks if x.choices][-1] == whole.finish_reason
    assert chunks[-1].usage is not None
    assert len({x.id for x in chunks}) == 1


def test_a_stream_keeps_to_a_glossary(client: openai.OpenAI) -> None:
    """And comes in parts all the same."""
    given: Any = {
        "model": "demo", "messages": hello("alpha beta gamma"),
        "extra_body": {"glossary": {"beta": "ETA"}, "search": {"beam": 1}},
    }  # fmt: skip
    whole = client.chat.completions.create(**given).choices[0].message.content or ""
    assert "ETA" in whole.split()
    deltas = [x.choices[0].delta.content or "" for x in client.chat.completions.create(**given, stream=True)]
    assert "".join(deltas) == whole
    assert len([delta for delta in deltas if delta]) > 1


def test_samples_and_several_answers(client: openai.OpenAI) -> None:
    def ask(**how: Any) -> list[str]:
        found = client.chat.completions.create(model="demo", messages=hello("alpha beta gamma"), **how)
        assert [x.index for x in found.choices] == list(range(how.get("n", 1)))
        return [x.message.content or "" for x in found.choices]

    assert len(set(ask(n=3))) == 3  # of the beam
    drawn = ask(n=8, temperature=2.0, seed=1)
    assert drawn == ask(n=8, temperature=2.0, seed=1) != ask(n=8, temperature=2.0, seed=2)
    for least in ({"temperature": 2.0, "top_p": 0}, {"temperature": 1e-12}, {"top_p": 1e-320}):  # as OpenAI allows
        assert ask(**least) == ["GAMMA BETA ALPHA"]
    streamed = client.chat.completions.create(model="demo", messages=hello("alpha beta gamma"), n=3, stream=True)
    texts = ["", "", ""]
    for chunk in streamed:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == ask(n=3)


def test_limits_and_stops(client: openai.OpenAI) -> None:
    def ask(stream: bool, **how: Any) -> tuple[str, str]:
        if not stream:
            found = client.chat.completions.create(model="demo", messages=hello("alpha beta gamma"), **how).choices[0]
            return found.message.content or "", found.finish_reason
        chunks = list(
            client.chat.completions.create(model="demo", messages=hello("alpha beta gamma"), stream=True, **how)
        )
        text = "".join(x.choices[0].delta.content or "" for x in chunks)
        return text, chunks[-1].choices[0].finish_reason or ""

    for stream in (False, True):
        assert ask(stream, max_tokens=2)[1] == "length"
        assert len(ask(stream, max_completion_tokens=2)[0].split()) == 2
        assert ask(stream, stop=["XX", " ALP"]) == ("GAMMA BETA", "stop")
        assert ask(stream, stop="GAMMA") == ("", "stop")
        assert ask(stream, stop="ETA", logprobs=True) == ("GAMMA B", "stop")


@pytest.mark.parametrize("asked", [{"stop": " BETA"}, {"stop": " BETA", "extra_body": {"search": {"beam": 1}}}])
def test_usage_is_known_of_a_stream_that_stops(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    given: dict[str, Any] = {"model": "demo", "messages": hello("alpha beta gamma"), **asked}
    whole = client.chat.completions.create(**given)
    chunks = list(client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True}))
    assert "".join(x.choices[0].delta.content or "" for x in chunks if x.choices) == "GAMMA"
    assert whole.usage is not None
    assert chunks[-1].usage == whole.usage
    written: dict[str, Any] = {"model": "lm", "prompt": "alpha", "max_tokens": 5, "stop": [" "]}
    several = list(client.completions.create(**written, stream=True, stream_options={"include_usage": True}))
    assert several[-1].usage == client.completions.create(**written).usage


def test_log_probabilities_of_tokens(client: openai.OpenAI) -> None:
    how: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    found = client.chat.completions.create(model="demo", messages=hello("alpha beta gamma"), **how).choices[0]
    assert found.logprobs is not None
    tokens = found.logprobs.content or []
    assert "".join(x.token for x in tokens) == found.message.content
    assert all(x.logprob <= 0 and len(x.top_logprobs) == 2 for x in tokens)
    assert all(x.logprob <= x.top_logprobs[0].logprob + 1e-6 for x in tokens)
    assert bytes(tokens[0].bytes or []).decode() == tokens[0].token
    assert [x.top_logprobs[0].token for x in tokens] == [x.token for x in tokens], "the likeliest, spelled as it is"
    chunks = list(client.chat.completions.create(model="demo", messages=hello("alpha beta gamma"), stream=True, **how))
    streamed = [y.token for x in chunks if x.choices[0].logprobs for y in x.choices[0].logprobs.content or []]
    assert streamed == [x.token for x in tokens]


def picture() -> str:
    content = io.BytesIO()
    Image.new("RGB", (20, 20), (200, 30, 40)).save(content, "png")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def test_pictures_and_recordings_in_messages(client: openai.OpenAI, place: Path) -> None:
    def part(kind: str, **content: str) -> list[Any]:
        return [{"role": "user", "content": [{"type": kind, kind: content}, {"type": "text", "text": "What is it?"}]}]

    found = client.chat.completions.create(model="captions", messages=part("image_url", url=picture()))
    assert set((found.choices[0].message.content or "").split()) <= set(WORDS)
    sound = base64.b64encode((place / "valid0.wav").read_bytes()).decode()
    found = client.chat.completions.create(model="speech", messages=part("input_audio", data=sound, format="wav"))
    assert found.choices[0].message.content == json.loads((place / "valid.jsonl").read_text().splitlines()[0])["target"]
    wrong: list[tuple[str, list[Any], str]] = [
        ("captions", part("image_url", url="https://example.org/a.png"), "nothing is fetched"),
        ("captions", part("image_url", url="data:image/png;base64,@"), "not base64"),
        ("captions", part("image_url", url="data:image/png;base64,aaaa"), "upload"),
        ("captions", hello("a text"), "reads one image"),
        ("demo", part("image_url", url=picture()), "reads text"),
        ("demo", part("file", file_id="x"), "is not read here"),
        ("demo", [{"role": "assistant", "content": "x"}], "role should be user"),
    ]
    for model, messages, said in wrong:
        with pytest.raises(openai.BadRequestError, match=said):
            client.chat.completions.create(model=model, messages=messages)


# Completions


def test_completions_of_a_language_model(client: openai.OpenAI) -> None:
    def ask(prompt: Any = "alpha  beta", **how: Any) -> Any:
        return client.completions.create(model="lm", prompt=prompt, **how)

    found = ask(max_tokens=3)
    text = found.choices[0].text
    assert len(text.split()) == 3
    assert text.startswith(" ")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (2, 3)
    assert found.choices[0].finish_reason == "length"
    assert ask(max_tokens=3, echo=True).choices[0].text == f"alpha  beta{text}"
    streamed = list(ask(max_tokens=3, stream=True))
    assert "".join(x.choices[0].text for x in streamed) == text
    assert streamed[-1].choices[0].finish_reason == "length"
    several = ask(["alpha", "beta gamma delta", ""], max_tokens=2, temperature=1.0, n=2, seed=3)
    assert [x.index for x in several.choices] == list(range(6))
    assert all(len(x.text.split()) <= 2 for x in several.choices)
    known = ask(max_tokens=3, logprobs=2).choices[0].logprobs
    assert "".join(known.tokens) == text
    assert known.text_offset == [0, len(known.tokens[0]), len(known.tokens[0] + known.tokens[1])]
    assert all(len(x) == 2 for x in known.top_logprobs)
    assert all(name.startswith(" ") for x in known.top_logprobs for name in x)
    drawn = ask(max_tokens=4, temperature=1.5, n=1, best_of=8, seed=1).choices
    assert len(drawn) == 1
    strange = ask("alpha unheard-of", max_tokens=3)  # a word that it does not know
    assert len(strange.choices[0].text.split()) == 3
    assert (
        "".join(x.choices[0].text for x in ask("alpha unheard-of", max_tokens=3, stream=True))
        == strange.choices[0].text
    )
    assert len(ask(max_tokens=10**6).choices[0].text) > 0  # as much as the server allows


def test_completions_of_a_translator(client: openai.OpenAI) -> None:
    found = client.completions.create(model="demo", prompt=["alpha beta", "eta theta zeta"], best_of=7)
    assert [x.text for x in found.choices] == ["BETA ALPHA", "ZETA THETA ETA"]
    known = client.completions.create(model="demo", prompt="alpha beta", logprobs=0).choices[0].logprobs
    assert known is not None
    assert known.tokens == ["BETA", " ALPHA"]
    assert known.top_logprobs == [{}, {}]


# The page on clients


def test_what_the_page_shows_runs(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[1] / "docs" / "howto" / "clients.md"
    monkeypatch.chdir(tmp_path)
    recording(tmp_path / "recording.wav")
    (tmp_path / "report.html").write_text("<h1>alpha</h1>")
    codes = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    shown = [code.replace("http://localhost:8000", url) for code in codes if "localhost:8000" in code]
    assert len(shown) == 4
    for code in shown:
        exec(compile(code, str(page), "exec"), {})
    said = capsys.readouterr().out
    assert "<h1>ALPHA</h1>" in said
    assert re.search(r"^ 0\.\d\d  0\.\d\d so$", said, re.MULTILINE)


def test_what_the_schema_shows_is_accepted(url: str) -> None:
    """Each route that takes JSON has examples of all that it requires, and answers them."""
    api = httpx.get(f"{url}/openapi.json").json()
    asked = 0
    for path, operations in api["paths"].items():
        body = operations.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json")
        if body is None:
            continue
        schema = body["schema"]
        if "$ref" in schema:
            schema = api["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        shown = {name: x["examples"][0] for name, x in schema["properties"].items() if "examples" in x}
        assert set(schema["required"]) <= set(shown), path
        answer = httpx.post(url + path, json=shown)
        assert answer.status_code == 200, (path, answer.text)
        asked += 1
    assert asked >= 10


def test_of_alternatives_that_read_the_same_the_likeliest_is_told() -> None:
    others = [Alternative(text=text, id=i, log_prob=-i) for i, text in enumerate(("·a", "a", "b"), 1)]
    tokens = spelled([TokenInfo(text="·a", id=1, log_prob=-1.0, alternatives=others)], "a")
    form = Completion("lm", CompletionRequest(model="lm", prompt="x", logprobs=3))
    (choice,) = form.whole([WrittenText("a", "stop", tokens)], TokenUsage(1, 1))["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"a": -1.0, "b": -3.0}]


# What is not done


@pytest.mark.parametrize(
    ("path", "given", "param"),
    [
        ("chat/completions", {"messages": hello("a"), "tools": [{"type": "function"}]}, "tools"),
        ("chat/completions", {"messages": hello("a"), "frequency_penalty": 0.5}, "frequency_penalty"),
        ("chat/completions", {"messages": hello("a"), "response_format": {"type": "json_object"}}, "response_format"),
        ("chat/completions", {"messages": hello("a"), "top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {"messages": hello("a"), "temperature": 3}, "temperature"),
        ("chat/completions", {"messages": hello("a"), "stop": [""]}, "stop"),
        ("chat/completions", {"messages": hello("a"), "n": 2, "split": True}, "split"),
        ("chat/completions", {"messages": [{"role": "boss", "content": "a"}]}, "messages.0.role"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": hello("a"), "stream_options": {}}, "stream_options"),
        ("chat/completions", {"messages": hello("a"), "colour": 1}, "colour"),
        ("completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": [], "stream": True}, "prompt"),
        ("completions", {"prompt": [1, 2]}, "prompt"),
        ("completions", {"prompt": "a", "n": 3, "best_of": 2}, "best_of"),
        ("completions", {"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ("embeddings", {"input": "a", "dimensions": 3}, "dimensions"),
        ("embeddings", {"input": []}, "input"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(url: str, path: str, given: dict[str, Any], param: str) -> None:
    answer = httpx.post(f"{url}/v1/{path}", json={"model": "demo", **given})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_what_changes_nothing_is_ignored(url: str) -> None:
    harmless = {"user": "me", "metadata": {"a": "b"}, "store": False, "tools": None, "presence_penalty": 0.0, "n": None,
                "logit_bias": {}, "tool_choice": "none", "response_format": {"type": "text"}}  # fmt: skip
    given = {"model": "demo", "messages": hello("alpha beta"), **harmless}
    answer = httpx.post(f"{url}/v1/chat/completions", json=given)
    assert answer.json()["choices"][0]["message"]["content"] == "BETA ALPHA"


def test_errors_are_those_that_the_client_knows(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4o", messages=hello("a"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="beam"):
        client.chat.completions.create(model="demo", messages=hello("alpha"), extra_body={"search": {"beam": 1000}})
    for stream in (False, True):
        how: dict[str, Any] = {"messages": hello("alpha"), "stream": stream, "extra_body": {"search": {"bean": 1}}}
        with pytest.raises(openai.BadRequestError, match="did you mean 'beam'"):
            client.chat.completions.create(model="demo", **how)
    with pytest.raises(openai.BadRequestError, match="reads image"):
        client.completions.create(model="captions", prompt="a")
    for content in (b"{", b"[]"):
        answer = httpx.post(f"{url}/v1/completions", content=content)
        assert answer.status_code == 400
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_keys_are_asked_for(place: Path, tmp_path: Path) -> None:
    from regard.serving.access import new_key

    key = new_key(tmp_path / "keys", "someone")
    with served([{"folder": str(place / "lm")}], keys=str(tmp_path / "keys")) as address:
        with openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                client.completions.create(model="lm", prompt="alpha")
            assert refused.value.code == "invalid_api_key"
            assert client.with_options(api_key=key).completions.create(model="lm", prompt="alpha").choices
        form = {"q": "alpha", "source": "en", "target": "de"}
        assert httpx.post(f"{address}/translate", data=form).status_code == 401
        known = httpx.post(f"{address}/translate", data={**form, "api_key": key})
        assert "is not supported" in known.json()["error"]
        assert LibreTranslateAPI(address, api_key=key).languages() == []
        with pytest.raises(HTTPError, match="401"):
            LibreTranslateAPI(address, api_key="wrong").languages()


# Embeddings


def test_embeddings_in_both_forms(client: openai.OpenAI, place: Path) -> None:
    texts = ["alpha beta", "eta"]
    packed = client.embeddings.create(model="demo", input=texts)  # the client asks for base64
    plain = client.embeddings.create(model="demo", input=texts, encoding_format="float")
    own = regard.load(place / "demo").sentence_embeddings(texts)
    for found in (packed, plain):
        assert [x.index for x in found.data] == [0, 1]
        np.testing.assert_allclose([x.embedding for x in found.data], own, atol=2e-6)
    with pytest.raises(openai.APIStatusError):
        client.embeddings.create(model="demo", input=[[1, 2]])


# Transcripts


def recording(path: Path) -> list[list[float]]:
    return sing(path, ["so", "ti", "do"], np.random.default_rng(7))


def test_recordings_are_written_down(client: openai.OpenAI, tmp_path: Path) -> None:
    spoken = recording(tmp_path / "a.wav")
    with (tmp_path / "a.wav").open("rb") as file:
        plain = client.audio.transcriptions.create(model="speech", file=file)
    assert plain.text == "so ti do"

    def ask(**how: Any) -> Any:
        return client.audio.transcriptions.create(model="speech", file=tmp_path / "a.wav", **how)

    assert ask(response_format="text") == "so ti do\n"
    assert ask(extra_body={"search": {"beam": 2, "stop": "early"}}).text == "so ti do"
    found = ask(response_format="verbose_json", timestamp_granularities=["word", "segment"])
    assert [x.word for x in found.words] == ["so", "ti", "do"]
    for word, (_, _, start, end) in zip(found.words, spoken, strict=True):
        assert word.start < (start + end) / 2 < word.end + 0.06
    assert found.duration == pytest.approx(spoken[-1][3], abs=0.1)
    assert [x.text for x in found.segments] == ["so ti do"]
    assert found.segments[0].end == found.words[-1].end
    only = ask(response_format="verbose_json")
    assert only.words is None
    assert ask(response_format="srt").startswith("1\n00:00:0")
    assert ask(response_format="vtt").startswith("WEBVTT\n\n00:00:0")
    events = list(ask(stream=True))
    assert "".join(x.delta for x in events if x.type == "transcript.text.delta") == "so ti do"
    assert events[-1].text == "so ti do"


def test_recordings_that_are_none(client: openai.OpenAI, tmp_path: Path) -> None:
    recording(tmp_path / "a.wav")
    (tmp_path / "b.wav").write_bytes(b"no sound")
    for model, name, how, said in (
        ("demo", "a.wav", {}, "reads no recordings"),
        ("speech", "b.wav", {}, "upload"),
        ("speech", "a.wav", {"timestamp_granularities": ["word"]}, "verbose_json"),
        ("speech", "a.wav", {"prompt": "Say it well."}, "prompt is not supported"),
        ("speech", "a.wav", {"response_format": "verbose_json", "stream": True}, "leave out stream"),
    ):
        with pytest.raises(openai.BadRequestError, match=said):
            client.audio.transcriptions.create(model=model, file=tmp_path / name, **how)


def test_segments_end_at_pauses_and_sentences() -> None:
    words = [
        TimedWord("One", 0.0, 0.4),
        TimedWord("two.", 0.4, 0.9),
        TimedWord("Three", 1.0, 1.5),
        TimedWord("4", 3.0, 3.2),
    ]
    parts = segments(words, "", 4.0)
    assert parts == [Segment("One two.", 0.0, 0.9), Segment("Three", 1.0, 1.5), Segment("4", 3.0, 3.2)]
    assert segments(None, "all of it", 61.5) == [Segment("all of it", 0.0, 61.5)]
    long = [TimedWord("word", i / 2, i / 2 + 0.5) for i in range(40)]
    assert all(x.end - x.start <= 7 for x in segments(long, "", 20.0))
    assert subrip([Segment("a", 3661.5, 3662.0)]) == "1\n01:01:01,500 --> 01:01:02,000\na\n\n"
    assert webvtt([Segment("a < b", 0.0, 1.0)]) == "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\na &lt; b\n\n"


# Parts


def test_what_might_be_a_stop_is_held_back() -> None:
    ending = Ending(["end", "x"])
    assert [ending.add(part) for part in ("a e", "n", "e", "nd of it")] == ["a ", "", "en", ""]
    assert ending.stopped
    assert ending.rest() == ""
    open_end = Ending(["end"])
    assert open_end.add("tend") == "t"
    other = Ending(["end"])
    assert other.add("ten") + other.rest() == "ten"


@pytest.mark.parametrize(
    ("pieces", "text", "found"),
    [
        (["Ha", "·llo", "Welt", "</s>"], "Hallo Welt", ["Ha", "llo", " Welt", ""]),
        (["a", "▁", "b"], "a b", ["a", " ", "b"]),
        (["<C3>", "<A4>", "b"], "äb", ["", "", ""]),
        (["·", "x"], "·x", ["·", "x"]),
    ],
)  # fmt: skip
def test_tokens_spell_the_text(pieces: list[str], text: str, found: list[str]) -> None:
    infos = [TokenInfo(text=piece, id=0, log_prob=0.0) for piece in pieces]
    assert [x.text for x in spelled(infos, text)] == found


@pytest.mark.parametrize(
    ("pieces", "others", "text", "found"),
    [
        (["Ha", "·llo", "Welt"], ["Hu", "Tag", "·tag"], "Hallo Welt", ["Hu", " Tag", "tag"]),
        (["a", "▁", "b"], ["b", "c", "▁"], "a b", ["b", "c", " "]),
        (["我", "想"], ["你", "爱"], "我想", ["你", "爱"]),
    ],
)  # fmt: skip
def test_alternatives_are_spelled_as_they_would_stand_there(
    pieces: list[str], others: list[str], text: str, found: list[str]
) -> None:
    both = zip(pieces, others, strict=True)
    infos = [
        TokenInfo(text=x, id=0, log_prob=0.0, alternatives=[Alternative(text=y, id=1, log_prob=0.0)]) for x, y in both
    ]
    assert [x.alternatives for x in spelled(infos, text)] == [[one] for one in found]
