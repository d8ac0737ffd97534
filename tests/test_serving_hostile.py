"""What a server must stand: slow clients, long requests beside short ones, bodies that were never meant well."""

from __future__ import annotations

import json
import random
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

import httpx
import pytest

from regard.config import merge
from tests.conftest import FULL, whole
from tests.served import PICTURES, TEXT, Running, resident, running, save_model

CONNECTIONS, SECONDS = 30, 3.0  # at most so many, and so long for headers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("hostile")
    save_model(folder / "toy", {**TEXT, "model": {**TEXT["model"], "max_positions": 1100}})
    save_model(folder / "pictures", PICTURES)
    save_model(folder / "lm", merge(TEXT, {"source": {"kind": "none"}, "model": {"encoder": {"kind": "none"}}}))
    models = [{"folder": "toy", "languages": ["en:de"]}, {"folder": "pictures"}, {"folder": "lm"}]
    limits = {"connections": CONNECTIONS, "header_timeout": SECONDS, "send_timeout": SECONDS, "timeout": 20}
    with running(folder, models=models, limits=limits) as found:
        yield found


# Clients that are slow


def connect(server: Running) -> socket.socket:
    line = socket.create_connection((server.client.base_url.host, server.client.base_url.port or 0), timeout=10.0)
    line.settimeout(10.0)
    return line


def is_closed(line: socket.socket) -> bool:
    """Whether the other side has closed a connection, at which nothing else is read."""
    line.setblocking(False)
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def drip(lines: list[socket.socket]) -> None:
    """One more byte of headers on each."""
    for line in lines:
        try:
            line.send(b"x")
        except OSError:
            continue  # which the server has closed


def test_slow_clients_keep_nobody_out_and_are_closed(server: Running) -> None:
    """Twice as many as there may be: some say nothing, some a byte now and then; those over the number go at once, the
    oldest first, and all of them in time, however much they go on."""
    begun = time.monotonic()
    with ExitStack() as stack:
        lines = [stack.enter_context(connect(server)) for _ in range(2 * CONNECTIONS)]
        talking = [line for i, line in enumerate(lines) if i % 3]
        for line in talking:
            line.sendall(b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        for _ in range(5):
            body = {"input": "alpha", "search": {"beam": 1}}
            answer = httpx.post(server.client.base_url.join("/v1/generate"), json=body, timeout=20.0)
            assert answer.status_code == 200, answer.text
            drip(talking)
        if time.monotonic() - begun < SECONDS:  # else the machine is too slow to tell
            assert sum(map(is_closed, lines[:CONNECTIONS])) >= CONNECTIONS - 1
            assert not is_closed(lines[-1])
        while not all(map(is_closed, lines)):
            drip(talking)
            time.sleep(0.1)
            assert time.monotonic() - begun < SECONDS + 20.0


def test_a_connection_may_be_kept_and_used_again(server: Running) -> None:
    """Time counts while headers come, not while a request is worked on nor between two."""
    with httpx.Client(base_url=server.client.base_url, timeout=30.0) as client:
        assert client.get("/v1/models").status_code == 200
        time.sleep(SECONDS + 0.5)
        (line,) = client._transport._pool.connections  # type: ignore[attr-defined]
        assert client.get("/v1/models").status_code == 200
        assert client._transport._pool.connections == [line]  # type: ignore[attr-defined]
    head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
    with connect(server) as again:
        again.sendall(head + b"\r\n")
        while b'"object"' not in again.recv(2**16):
            pass
        again.sendall(head)  # a second one that never ends
        assert again.recv(2**16) == b""  # or this times out


@pytest.mark.parametrize("part", [b"X-Long: " + b"x" * 2**18, b"X-Many: x\r\n" * 2**15])
def test_headers_without_end_are_refused(server: Running, part: bytes) -> None:
    with connect(server) as line:
        answer = b""
        try:
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + part)
            answer = line.recv(2**16)
        except ConnectionError:  # closed while there was more to send
            pass
        assert answer[:12] in (b"", b"HTTP/1.1 400")
    assert server.client.get("/health").status_code == 200


LARGE = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


def unreading(server: Running) -> socket.socket:
    """A connection that has asked for some 20 MB, far more than the kernel buffers, with little room of its own."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)
    line.connect((server.client.base_url.host, server.client.base_url.port))
    line.sendall(400 * LARGE)
    return line


@pytest.mark.parametrize("read", [0, 1])
def test_an_answer_has_to_be_read_in_time(server: Running, read: int) -> None:
    """Not at all, or a byte now and then: the connection is reset, although there is more to send."""
    begun = time.monotonic()
    with unreading(server) as line:
        poll = select.poll()
        poll.register(line, 0)  # it tells of errors alone
        while not poll.poll(100):
            if read:
                line.recv(read)
            assert time.monotonic() - begun < SECONDS + 20.0
    assert server.client.get("/health").status_code == 200


def test_an_answer_that_is_read_steadily_comes_to_its_end(server: Running) -> None:
    """However long that takes: time counts for each answer."""
    begun, missing = time.monotonic(), 400
    with unreading(server) as line:
        line.settimeout(10.0)
        rest = b""
        while missing:
            part = line.recv(2**18)
            assert part, "closed before the end"
            missing -= (rest + part).count(b"HTTP/1.1 200")
            rest = part[-len(b"HTTP/1.1 200") + 1 :]
            if time.monotonic() - begun < SECONDS + 1.0:
                time.sleep(0.01)


# Requests that are long


LONG: list[dict[str, Any]] = [
    {"mbr": 16}, {"mbr": 3}, {"contrastive": 0.5, "beam": 1}, {"beam": 4, "groups": 2}, {"coverage": 0.5}, {"beam": 16},
]  # fmt: skip


@pytest.mark.parametrize("search", LONG, ids=str)
def test_short_requests_are_answered_beside_a_long_one(server: Running, search: dict[str, Any]) -> None:
    long = {"min_length": 1000, "max_length": 1024, "max_ratio": 2000, **search}
    body = json.dumps({"input": "alpha beta", "search": long}).encode()
    head = (
        b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with connect(server) as line:
        line.sendall(head % len(body) + body)
        end = time.monotonic() + 20.0
        while not server.metric("regard_running_size"):
            assert time.monotonic() < end
            time.sleep(0.01)
        for _ in range(3):
            short = server.post("/v1/generate", {"input": "alpha", "search": {"beam": 1, "max_length": 4}})
            assert short.status_code == 200
        line.setblocking(False)
        with pytest.raises(BlockingIOError):  # there is no answer yet
            line.recv(1)
    while server.metric("regard_running_size"):  # its client has gone
        assert time.monotonic() < end + 20.0
        time.sleep(0.01)


# Bodies

SEARCH = {"beam": 2, "max_length": 9}
LAYER = "decoder.blocks.0.cross_attention"
CHAT: dict[str, Any] = {
    "model": "toy", "max_tokens": 5,
    "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "alpha beta. eta"}],
    "n": 2, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["x"], "stream": False, "split": False,
    "logprobs": True, "top_logprobs": 2, "search": SEARCH, "format": "text",
}  # fmt: skip
BLACK = (  # a picture
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAEElEQVR42mNgGAWjYBTAAAADEAAB1y2EYwAAAABJRU5ErkJggg=="
)
IMAGE = {"type": "image_url", "image_url": {"url": BLACK}}
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/inspect", {
        "model": "toy", "input": "alpha beta", "forced": [7, 8], "alternatives": 3, "tree": True, "search": SEARCH,
        "edits": {
            "heads_off": [[LAYER, 0]], "rows": [{"layer": LAYER, "head": 1, "position": 0, "weights": [1, 2, 1]}],
        }, "timeout": 5,
    }),
    *(
        ("/v1/explain", {"model": "toy", "input": "alpha", "target": "ALPHA BETA", "method": method, "search": SEARCH})
        for method in ("attention", "gradient", "erasure")
    ),
    ("/v1/generate", {
        "input": ["alpha", "beta"], "prefix": ["ALPHA", ""], "phrases": [["BETA"], ["ETA"]], "glossary": {"alpha": "X"},
        "search": SEARCH, "tokens": True, "alternatives": 2, "alignment": True, "trace": True, "timeout": 5,
    }),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {
        "model": "toy", "messages": CHAT["messages"], "stream": True, "stream_options": {"include_usage": True},
        "search": SEARCH, "glossary": {"alpha": "ETA"},
    }),
    ("/v1/chat/completions", {"model": "pictures", "messages": [{"role": "user", "content": [IMAGE]}]}),
    ("/v1/completions", {
        "model": "lm", "prompt": ["alpha", "beta"], "max_tokens": 4, "echo": False, "best_of": 2, "n": 1,
        "logprobs": 1, "stop": "x", "temperature": 0.0, "top_p": 1.0, "seed": 1, "stream": False, "search": SEARCH,
    }),
    ("/translate", {
        "q": ["alpha. beta", "<p>eta</p>"], "source": "auto", "target": "de", "format": "html", "alternatives": 1,
        "api_key": "",
    }),
]  # fmt: skip


def nested(levels: int, many: bool) -> Any:
    """Lists in lists, or objects in objects."""
    found: Any = [] if many else {}
    for _ in range(levels):
        found = [found] if many else {"a": found}
    return found


ODD: list[Any] = [
    None, True, -1, 0, -(10**18), 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), -float("inf"), 0.5, 1e-320,
    99, "", " ", "\x00", "\ud800", "alpha \udfff", "a" * 30_000, "\u202e\u0300" * 200, "<s> </s>", "-1", "nan", [], {},
    [[]], [None], [""] * 50, nested(50, True), nested(60, False), nested(90, True), {str(i): i for i in range(10_000)},
    {str(i): "x" for i in range(900)}, {"": ""}, [-1] * 20, [1e308] * 10, [0] * 2000, list(range(100)), {"data": "!!"},
    {"data": "UklGRv////9XQVZF"}, "data:image/png;base64,AAAA", "http://127.0.0.1:1/",
    "decoder.blocks.99.cross_attention", [[0.0] * 5] * 5, {"\ud800": "x"}, ["\ud800"], "RAW1e999",
]  # fmt: skip
SETTINGS = (
    "alpha", "temperature", "epsilon", "top_p", "top_k", "mbr", "contrastive", "groups", "diversity", "coverage", "ctc",
    "no_repeat", "min_length", "max_length", "max_ratio", "exact", "sample", "seed", "length_penalty", "utility",
    "nbest",
)  # fmt: skip


def places(content: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Ways to everything within a body."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, value in inner:
        yield (*here, name)
        yield from places(value, (*here, name))


def spoilt(body: dict[str, Any], choice: random.Random) -> bytes:
    """A body with odd things in one to three places."""
    body = deepcopy(body)
    for _ in range(choice.choice([1, 1, 2, 3])):
        *way, name = choice.choice(list(places(body)) or [("input",)])
        holder: Any = body
        for part in way:
            holder = holder[part]
        value, how = deepcopy(choice.choice(ODD)), choice.random()
        if name == "search" and how < 0.6 and isinstance(holder[name], dict):
            holder[name] = {**holder[name], choice.choice(SETTINGS): value}
        elif how < 0.1 and isinstance(holder, dict):
            del holder[name]
        elif how < 0.2 and isinstance(holder, list):
            holder.append(value)
        else:
            holder[name] = value
    return json.dumps(body).replace('"RAW1e999"', "1e999").encode()


def check_answered(server: Running, response: httpx.Response, asked: Any) -> None:
    """An answer, or what is wrong: no bug, nothing of our code, within the time that a request may take."""
    assert response.status_code < 500, (asked, response.text)
    assert response.elapsed.total_seconds() < 15.0, asked
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    assert "decoding failed" not in response.text, (asked, response.text)
    if response.status_code >= 400:
        assert "error" in response.json(), asked


@pytest.mark.parametrize(("path", "body"), GOOD, ids=[path for path, _ in GOOD])
def test_odd_bodies_are_refused_or_answered(server: Running, path: str, body: dict[str, Any]) -> None:
    choice, kinds = random.Random(path), {"Content-Type": "application/json"}
    assert server.post(path, body).status_code == 200
    for _ in range(300 if FULL else 15):
        content = spoilt(body, choice)
        check_answered(server, server.client.post(path, content=content, headers=kinds), content[:500])


FORM = {"Content-Type": "multipart/form-data; boundary=x"}
FIELDS = b"".join(
    b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % pair
    for pair in ((b"source", b"en"), (b"target", b"de"))
)  # fmt: skip


def part(name: bytes, content: bytes, kind: bytes = b"text/plain") -> bytes:
    """A file within a form."""
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\nContent-Type: %s\r\n\r\n'
    return head % (name, kind) + content + b"\r\n"


END = b"--x--\r\n"
FILES: dict[str, tuple[bytes, int]] = {
    "as it should be": (FIELDS + part(b"a.txt", b"alpha beta") + END, 200),
    "another type than it says": (FIELDS + part(b"a.html", b"alpha", b"image/png") + END, 200),
    "a way out of a folder": (FIELDS + part(b"../../etc/a.txt", b"alpha") + END, 200),
    "a name of controls": (FIELDS + part(b"a\x01\x7f\xff.txt", b"alpha") + END, 200),
    "an image called text": (FIELDS + part(b"a.txt", b"\x89PNG\r\n\x1a\n\x00\xff") + END, 400),
    "a zip called text": (FIELDS + part(b"a.txt", b"PK\x03\x04\x00") + END, 200),
    "a program": (FIELDS + part(b"a.exe", b"MZ") + END, 400),
    "two endings": (FIELDS + part(b"a.txt.exe", b"alpha") + END, 400),
    "no name": (FIELDS + part(b"", b"alpha") + END, 400),
    "a long name": (FIELDS + part(b"a" * 50_000 + b".txt", b"alpha") + END, 400),
    "empty": (FIELDS + part(b"a.txt", b"") + END, 200),
    "broken times": (FIELDS + part(b"a.srt", b"1\n00:00:00,000 --> x\nalpha\n\n" * 50) + END, 200),
    "tags without end": (FIELDS + part(b"a.html", b"<b>" * 5000 + b"alpha") + END, 200),
    "cut off": ((FIELDS + part(b"a.txt", b"alpha"))[:-20], 400),
    "cut off in a head": (FIELDS + b'--x\r\nContent-Disposition: form-data; name="fi', 400),
    "another boundary": (FIELDS.replace(b"--x", b"--y"), 400),
    "nothing": (b"", 400),
    "many fields": (b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n" * 5000 + END, 400),
    "a field of a megabyte": (FIELDS.replace(b"en", b"e" * 2**20) + part(b"a.txt", b"alpha") + END, 400),
    "a text for a file": (FIELDS + b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n' + END, 400),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_odd_files_are_refused_or_translated(server: Running, case: str) -> None:
    body, status = FILES[case]
    answer = server.client.post("/translate_file", content=body, headers=FORM)
    check_answered(server, answer, case)
    assert answer.status_code == status, answer.text[:300]
    if status == 200:
        url = answer.json()["translatedFileUrl"]
        file = server.client.get(url)
        assert file.status_code == 200
        assert ".." not in file.headers["content-disposition"]


@whole
def test_memory_stays_bounded_under_odd_bodies(server: Running) -> None:
    """What large and odd requests bring is let go again."""
    kinds, processes = {"Content-Type": "application/json"}, [server.process.pid, server.workers()["toy"]]

    def press(rounds: int) -> list[int]:
        for number in range(rounds):
            large = json.dumps({"input": "alpha " * 15_000, "search": {str(i): i for i in range(10_000 + number)}})
            assert server.client.post("/v1/inspect", content=large, headers=kinds).status_code == 422
            wide = FIELDS + part(b"a.txt", b"alpha " * 20_000) + END
            assert server.client.post("/translate_file", content=wide, headers=FORM).status_code == 413
        return [resident(pid) for pid in processes]

    before = press(20)
    for held, now in zip(before, press(60), strict=True):
        assert now < held + 2**25


def test_it_still_works(server: Running) -> None:
    """After all of it, in the processes that there were at first."""
    assert server.post("/v1/generate", {"input": "alpha"}).status_code == 200
    assert not [event for event in server.events() if event["event"] in ("bug", "died")]
    assert "a bug in a worker" not in server.log.read_text()
