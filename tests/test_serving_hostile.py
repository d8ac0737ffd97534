"""What a server must stand: slow clients, long requests beside short ones, bodies that were never meant well."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.served import PICTURES, TEXT, Running, running, save_model

CONNECTIONS, SECONDS = 30, 3.0  # at most so many, and so long for headers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("hostile")
    save_model(folder / "toy", {**TEXT, "model": {**TEXT["model"], "max_positions": 1100}})
    save_model(folder / "pictures", PICTURES)
    models = [{"folder": "toy", "languages": ["en:de"]}, {"folder": "pictures"}]
    limits = {"connections": CONNECTIONS, "header_timeout": SECONDS, "timeout": 20}
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
        begun = time.monotonic()
        assert again.recv(2**16) == b""
        assert time.monotonic() - begun < SECONDS + 5.0


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
