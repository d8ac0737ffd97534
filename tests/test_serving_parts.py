"""Parts of the server by themselves: what is sent of a text, who may ask, what is allowed, what looks odd."""

from __future__ import annotations

import asyncio
import io
import socket
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard.config import parse
from regard.data.forms import Casing, TextForm, formed
from regard.data.modalities.sounds import wav
from regard.data.tokenizers.subwords import Subwords
from regard.data.tokenizers.symbols import Bytes
from regard.errors import ConfigError, DataError, OutputError
from regard.search_settings import Search
from regard.serving.access import Access, new_key, read_keys
from regard.serving.connections import MOST_HELD, Gathered
from regard.serving.details import Finding, describe
from regard.serving.limits import Limits
from regard.serving.messages import Blob, Generation, Refused
from regard.serving.server import listen
from regard.serving.settings import Served, ServerSettings, read_settings
from regard.serving.stable import StableText
from regard.serving.supervisor import Worker
from regard.serving.uploads import Uploads, check_source, remove
from regard.serving.wire import Answer, Embed, Failed, Frames, Started, frame
from regard.tasks.results import Output
from tests.served import TEXT, TOKENS
from tests.test_cli import refused
from tests.toy import sides_of, untrained

# Streams


TEXTS = [
    "Ein Haus am See.",
    "zwölf Äpfel – naïve café",
    "我想要一个苹果。",
    "ฉันอยากได้แอปเปิ้ล",
    "두 개의 사과",
    "👩‍🚀 fliegt 🚀🚀",
    "a",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "form", [TextForm(), TextForm("jamo"), TextForm("nfd"), TextForm(lower=True, casing=Casing(first=True, inner=True))]
)
def test_what_is_sent_joins_to_the_whole(text: str, form: TextForm) -> None:
    tokenizer = formed(Bytes(), form)
    ids, stable = tokenizer.encode(text), StableText()
    sent = [stable.settled(tokenizer.decode(ids[:end])) for end in range(len(ids) + 1)]
    sent.append(stable.rest(tokenizer.decode(ids)))
    assert "".join(sent) == tokenizer.decode(ids)
    assert "\ufffd" not in "".join(sent)


def test_text_is_sent_word_by_word() -> None:
    stable = StableText()
    assert [stable.settled(text) for text in ("Ha", "Haus", "Haus am", "Haus am S", "Haus am See")] == [
        "", "", "Haus", " am", ""
    ]  # fmt: skip
    assert stable.rest("Haus am See") == " See"
    stable = StableText()
    assert [stable.settled(text) for text in ("我", "我想", "我想要", "我想要\ufffd")] == ["", "我", "想", ""]


@given(st.text(alphabet="ab äé\u0301我想"))
def test_any_text_joins(text: str) -> None:
    stable, tokenizer = StableText(), Bytes()
    ids = tokenizer.encode(text)
    sent = "".join(stable.settled(tokenizer.decode(ids[:end])) for end in range(len(ids) + 1))
    assert sent + stable.rest(tokenizer.decode(ids)) == tokenizer.decode(ids)


def test_pieces_of_subwords_join() -> None:
    texts = ["unbelievable houses", "believable house", "unhoused 我想"] * 20
    tokenizer = Subwords.train(texts, "bpe", 300)
    for text in texts[:3]:
        ids, stable = tokenizer.encode(text), StableText()
        sent = [stable.settled(tokenizer.decode(ids[:end])) for end in range(len(ids) + 1)]
        assert "".join(sent) + stable.rest(tokenizer.decode(ids)) == text
        assert all(text.startswith("".join(sent[:i])) for i in range(len(sent)))


# Who may ask


def test_keys_are_stored_as_hashes(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key, other = new_key(path, "alice"), new_key(path, "root", admin=True)
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    access = Access(read_keys(path), Limits())
    access.admit(key, "1.2.3.4")
    for wrong in (None, "", key[:-1], key + "x", "\ud800", key.upper()):
        with pytest.raises(Refused, match="API key") as error:
            access.admit(wrong, "1.2.3.4")
        assert error.value.status == 401
    access.admit_admin(other)
    for wrong in (key, None):
        with pytest.raises(Refused):
            access.admit_admin(wrong)
    with pytest.raises(ConfigError, match="has a key called 'alice'"):
        new_key(path, "alice")
    path.write_text("not a key\n")
    with pytest.raises(ConfigError, match="keys:1 is no key"):
        read_keys(path)


def test_a_bucket_for_each_caller() -> None:
    access = Access(None, Limits(per_minute=1, burst=3))
    for _ in range(3):
        access.admit(None, "1.2.3.4")
    with pytest.raises(Refused, match="more than 1 requests a minute") as error:
        access.admit(None, "1.2.3.4")
    assert error.value.status == 429
    assert 0 < (error.value.retry_after or 0) <= 60
    access.admit(None, "1.2.3.5")


# What is allowed


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"beam": 17}, "search.beam=17 is more than 16"),
        ({"mbr": 500}, "search.mbr=500"),
        ({"max_length": 10**6}, "search.max_length=1000000 is more than 1024"),
        ({"contrastive": 0.6, "top_k": 10**7}, "search.top_k"),
        ({"batch_tokens": 1}, "search.batch_tokens is set by the server"),
        ({"max_length": "1000000"}, "search.max_length should be a number"),
        ({"sample": True, "nbest": "1_000"}, "search.nbest should be a number"),
    ],
)
def test_limits_of_a_search(search: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        Limits().check_search(search)
    Limits().check_search({"beam": 16, "top_k": 1000})
    with pytest.raises(Refused, match="top_k"):
        Limits().check_search({"top_k": 1000}, contrastive=True)


def test_a_source_is_what_a_model_reads() -> None:
    check_source("a text", [])
    check_source(["a text", Blob(data=b"a picture")], ["text", "image"])
    for given_, media in (("/etc/passwd", "image"), (Blob(data=b""), "text"), ("x", "file"), (["x", "y"], "text")):
        with pytest.raises(Refused):
            check_source(given_, [media])  # type: ignore[arg-type, list-item]


def uploads(folder: Path, kind: str, **limits: Any) -> Uploads:
    return Uploads(sides_of(kind).source, Limits.model_validate(limits), folder)


def npz(frames: int, side: int) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, frames=np.zeros((frames, side, side, 3), np.uint8))
    return file.getvalue()


def test_files_are_measured_before_they_are_decoded(tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (300, 200)).save(picture, "PNG")
    narrow = io.BytesIO()
    Image.new("RGB", (1, 20_000)).save(narrow, "PNG")
    large = io.BytesIO()
    Image.new("1", (5000, 5000)).save(large, "PNG")
    blob, sound, clip = (
        Blob(data=picture.getvalue()),
        Blob(data=wav(np.zeros(32000, np.int16), 16000)),
        Blob(data=npz(50, 20)),
    )
    for kind, given_ in (("image", blob), ("audio", sound), ("video", clip)):
        field, files = uploads(tmp_path, kind).field(given_)
        assert field == str(files[0])
        assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
        assert len(sides_of(kind).source.encode_many([field])[0])
        remove(files)
    for kind, given_, limits, message in (
        ("image", blob, {"pixels": 59_999}, "the image has 60,000 pixels, more than 59,999"),
        ("image", Blob(data=narrow.getvalue()), {"pixels": 25_000}, "pixels, more than 25,000"),
        ("audio", sound, {"seconds": 1.5}, "the audio has 2 seconds, more than 1.5"),
        ("video", clip, {"seconds": 1.5}, "the video has 2 seconds, more than 1.5"),
        ("video", clip, {"clip_pixels": 19_999}, "pixels in all frames"),
        ("image", Blob(data=large.getvalue()), {}, "the image has 25,000,000 pixels, more than 20,000,000"),
    ):
        with pytest.raises(Refused, match=message) as error:
            uploads(tmp_path, kind, **limits).field(given_)
        assert error.value.status == 413
    for kind in ("image", "audio", "video"):
        with pytest.raises(DataError):
            uploads(tmp_path, kind).field(Blob(data=b"nothing of the kind"))
    assert not list(tmp_path.iterdir())


def test_settings_of_the_server(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("models: [{folder: runs/demo, languages: [en:de]}]\nlimits: {beam: 3}\nkeys: keys.txt\n")
    found = read_settings(path, {"port": 9000})
    assert (found.models[0].name, found.models[0].folder) == ("demo", str(tmp_path / "runs/demo"))
    assert (found.limits.beam, found.port, found.keys) == (3, 9000, str(tmp_path / "keys.txt"))
    path.write_text("limits: {bean: 3}\nhost: [1]\nmodels: [{folder: a, langages: [x]}]\n")
    with pytest.raises(ConfigError) as error:
        read_settings(path, {})
    message = str(error.value)
    assert "unknown setting 'bean' in [limits]; did you mean 'beam'?" in message
    assert "unknown setting 'langages' in [models[0]]; did you mean 'languages'?" in message
    assert "'host' in the top level is [1]" in message
    with pytest.raises(ConfigError, match="would both be called 'demo'; write NAME=b/demo"):
        read_settings(None, {"models": [{"folder": "a/demo"}, {"folder": "b/demo"}]})
    with pytest.raises(ConfigError, match="'english-german' names no two languages; write them as en:de"):
        read_settings(None, {"models": [{"folder": "a", "languages": ["english-german"]}]})
    assert ServerSettings().is_local


def test_what_the_command_refuses(tmp_path: Path) -> None:
    assert "there is no model to serve" in refused("serve")
    assert "no model folder gone" in refused("serve", "gone")
    (tmp_path / "config.yaml").touch()
    assert "no file of keys" in refused("serve", tmp_path, "--keys", tmp_path / "keys", "--port", "0")
    assert "--new-key adds to a file" in refused("serve", "--new-key", "alice")
    assert "say of which model, such as a=en:de" in refused("serve", "a=x", "b=y", "--languages", "en:de")
    assert "names no model that is served: c" in refused("serve", "a=x", "--languages", "c=en:de")
    assert "quantization goes with engine ctranslate2" in refused("serve", "x", "--quantization", "int8")


def test_what_is_answered_is_sent_at_once() -> None:
    """asyncio switches off Nagle's algorithm where a socket says that it is TCP."""
    with listen(ServerSettings(port=0)) as line:
        assert line.proto == socket.IPPROTO_TCP
        with pytest.raises(OutputError, match="cannot listen at"):
            listen(ServerSettings(host="192.0.2.1", port=0))


# What looks odd


def flags(source: str, text: str, tokens: int | None = None) -> list[str]:
    task = untrained(parse(TEXT), TOKENS)
    ids = TOKENS.encode(text) if tokens is None else [10] * tokens
    finding = Finding(source, task.item(source), Search(max_length=40, max_ratio=30), Generation(inputs=[source]), [
        Output(text, -1.0, -1.0, ids)
    ])  # fmt: skip
    return list(describe(task, [finding])[0][0].flags)


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("alpha beta", "ALPHA BETA", []),
        ("alpha beta", "ALPHA ALPHA ALPHA", ["repetition"]),
        ("alpha alpha alpha", "ALPHA ALPHA ALPHA", []),
        ("alpha beta", "ALPHA BETA GAMMA ALPHA BETA GAMMA ALPHA BETA GAMMA", ["repetition"]),
        ("alpha beta", "好好好好", ["repetition"]),
        ("alpha beta gamma delta", "so alpha beta gamma delta", ["untranslated"]),
        ("1 2 3 4 5", "1 2 3 4 5", []),
    ],
)
def test_flags(source: str, text: str, expected: list[str]) -> None:
    assert flags(source, text) == expected


def test_an_output_that_was_cut_off() -> None:
    assert flags("alpha", "BETA", tokens=40) == ["truncated"]
    assert flags("alpha", "BETA", tokens=39) == []


def test_alternatives_are_shown_as_tokens_are() -> None:
    """One that goes on a word has a dot before it, as the token has that stands there."""
    tokenizer = Subwords.train(["unbelievable houses", "believable house", "unhoused"] * 20, "bpe", 290)
    task = untrained(parse({**TEXT, "tokens": {"kind": "bpe", "size": 290}}), tokenizer)
    request = Generation(inputs=["houses"], tokens=True, alternatives=tokenizer.size)
    output = Output("unhoused", -1.0, -1.0, tokenizer.encode("unhoused"))
    ((written,),) = describe(task, [Finding("houses", task.item("houses"), Search(), request, [output])])
    assert written.tokens is not None
    assert len(written.tokens) > 3
    for token in written.tokens:
        assert [x.text for x in token.alternatives if x.id == token.id] == [token.text]


# What goes to and fro


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(1, 40), min_size=1))
def test_frames_are_whole_however_they_come(contents: list[bytes], sizes: list[int]) -> None:
    data, frames, found, start = b"".join(map(frame, contents)), Frames(), list[bytes](), 0
    while start < len(data):
        size = sizes[start % len(sizes)]
        found += frames.take(data[start : start + size])
        start += size
    assert found == contents
    assert not frames.buffer


def test_a_call_hears_what_its_worker_says() -> None:
    """Without a process: replies are put by hand."""

    async def ask() -> None:
        worker, waited = Worker(Served(name="a", folder="a"), Limits(), []), list[float]()
        worker.gone.set()  # nothing is sent
        call = worker.ask(lambda i: Embed(id=i, sources=["alpha"]), waited.append)
        call.replies.clear()
        loop = asyncio.get_running_loop()
        loop.call_soon(call.put, Started(id=1, waited=0.5))
        loop.call_soon(call.put, Answer(id=1, content="[]"))
        loop.call_soon(call.put, Answer(id=1, content="[1]"))
        assert await call.next(loop.time() + 60) == Answer(id=1, content="[]")
        assert waited == [0.5]
        assert await call.next(loop.time() + 60) == Answer(id=1, content="[1]")
        for until in (loop.time() - 1, loop.time() + 0.01):
            with pytest.raises(Refused, match="took too long"):
                await call.next(until)
        call.put(Failed(id=1, status=422, code="unprocessable", message="no"))
        call.put(None)
        with pytest.raises(Refused, match="no"):
            await call.next(loop.time() + 60)
        with pytest.raises(Refused, match="ended before it answered"):
            await call.next(loop.time() + 60)

    asyncio.run(ask())


class Sent(asyncio.Transport):
    """A transport that notes what it is told to send."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.ended = list[bytes](), ""

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


def test_head_and_body_of_an_answer_are_sent_at_once() -> None:
    async def answer() -> None:
        loop, line = asyncio.get_running_loop(), Sent()
        gathered = Gathered(line, loop)
        for _ in range(2):
            gathered.write(b"head")
            gathered.write(b"body")
            assert not line.sent
            await asyncio.sleep(0)
            assert line.sent == [b"headbody"]
            line.sent.clear()
        gathered.write(b"a" * MOST_HELD)
        gathered.write(b"b")
        gathered.write(b"c")
        assert line.sent == [b"a" * MOST_HELD + b"b"]
        gathered.close()
        assert (line.sent[1:], line.ended) == ([b"c"], "closed")
        gathered = Gathered(line := Sent(), loop)
        gathered.write(b"a")
        gathered.abort()
        await asyncio.sleep(0)
        assert (b"".join(line.sent), line.ended) == (b"", "aborted")

    asyncio.run(answer())
