"""A server as its clients meet it: real processes, real HTTP."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from PIL import Image
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from regard.system import System
from tests.conftest import FULL, whole
from tests.served import PICTURES, TEXT, Running, resident, running, save_model

SLOW = {"search": {"beam": 2, "min_length": 900, "max_length": 1000, "max_ratio": 1000}}  # takes seconds
WHILE = {"search": {**SLOW["search"], "min_length": 250, "max_length": 300}}  # takes a while


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def system(folder: Path) -> System:
    long = {"model": {"max_positions": 1100}}
    return save_model(folder / "toy", {**TEXT, "model": {**TEXT["model"], **long["model"]}})


@pytest.fixture(scope="module")
def server(folder: Path, system: System) -> Iterator[Running]:
    save_model(folder / "pictures", PICTURES)
    models = [{"folder": "toy", "languages": ["en:de"]}, {"folder": "pictures", "name": "captions"}]
    with running(folder, models=models) as found:
        yield found


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that happens in another process."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def told(response: httpx.Response, status: int, code: str) -> str:
    """What a request that is refused is told."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    return str(error["message"])


# What it answers


def test_outputs_are_those_of_the_model(server: Running, system: System) -> None:
    texts = ["alpha beta", "gamma delta epsilon", "zeta"]
    answer = server.post("/v1/generate", {"input": texts, "search": {"beam": 3, "nbest": 2}}).json()
    found = [[(one["text"], one["score"]) for one in some] for some in answer["outputs"]]
    for ours, theirs in zip(found, system.outputs(texts, beam=3, nbest=2), strict=True):
        assert [text for text, _ in ours] == [output.text for output in theirs]
        assert [score for _, score in ours] == pytest.approx([output.score for output in theirs], abs=1e-4)
    written = sum(one["output_tokens"] for some in answer["outputs"] for one in some)
    assert answer["usage"] == {"source_tokens": 6, "output_tokens": written}
    assert answer["model"] == "toy"


def test_samples_do_not_depend_on_what_else_runs(server: Running) -> None:
    body = {"input": ["alpha beta", "alpha beta"], "search": {"sample": True, "seed": 7}}
    first = server.post("/v1/generate", body).json()["outputs"]
    with ThreadPoolExecutor(4) as pool:
        others = list(pool.map(lambda _: server.post("/v1/generate", body).json()["outputs"], range(4)))
    assert [[one["text"] for one in some] for some in first] == [
        [one["text"] for one in some] for some in others[0]
    ]  # fmt: skip
    assert first[0][0]["text"] != first[1][0]["text"]


def test_details_of_an_output(server: Running, system: System) -> None:
    body = {"input": "alpha beta gamma", "tokens": True, "alternatives": 3, "alignment": True, "trace": True}
    (written,) = server.post("/v1/generate", body).json()["outputs"][0]
    (score,) = system.score(["alpha beta gamma"], [written["text"]])
    assert [x["log_prob"] for x in written["tokens"]] == pytest.approx(score.tokens, abs=1e-4)
    assert written["tokens"][-1]["text"] == "</s>"
    for token in written["tokens"]:
        best = token["alternatives"]
        assert len(best) == 3
        assert best[0]["log_prob"] >= best[1]["log_prob"] >= best[2]["log_prob"]
        assert token["id"] not in [x["id"] for x in best] or token["log_prob"] <= best[0]["log_prob"] + 1e-6
    words = written["text"].split()
    assert [word["text"] for word in written["words"]] == words
    assert all(0 < word["confidence"] <= 1 for word in written["words"])
    assert written["alignment"] == [list(link) for link in system.align(["alpha beta gamma"], [written["text"]])[0]]
    assert len(written["coverage"]) == 3
    (doubt,) = system.doubts(["alpha beta gamma"], [written["text"]])
    assert doubt is not None
    told_doubt = {"value": doubt.doubt, "unattended": len(doubt.unattended), "repetition": doubt.repetition}
    assert written["doubt"] == pytest.approx(told_doubt, abs=1e-4)
    assert written["trace"]["source"] == ["alpha", "beta", "gamma", "</s>"]


def test_what_looks_odd_is_flagged(server: Running) -> None:
    (written,) = server.post("/v1/generate", {"input": "alpha", "search": {"max_length": 2}}).json()["outputs"][0]
    assert "truncated" in written["flags"]
    (written,) = server.post("/v1/generate", {"input": "alpha beta", "prefix": "beta beta beta beta"}).json()[
        "outputs"
    ][0]
    assert "repetition" in written["flags"]
    source = "alpha beta gamma delta"
    (written,) = server.post("/v1/generate", {"input": source, "prefix": source}).json()["outputs"][0]
    assert "untranslated" in written["flags"]


def test_prefixes_and_phrases(server: Running) -> None:
    body = {"input": ["alpha", "beta"], "prefix": ["GAMMA", "DELTA"], "phrases": [["ZETA"], ["ETA THETA"]]}
    first, second = (some[0]["text"] for some in server.post("/v1/generate", body).json()["outputs"])
    assert first.startswith("GAMMA")
    assert "ZETA" in first
    assert second.startswith("DELTA")
    assert "ETA THETA" in second
    for one in ("alpha", ["alpha"]):  # an input of several sources is a list of these
        answer = server.post("/v1/generate", {"input": [one], "glossary": {"alpha": "ZETA"}}).json()
        assert "ZETA" in answer["outputs"][0][0]["text"].split()


@pytest.mark.parametrize("stream", [False, True])
def test_terms_are_not_looked_for_in_a_text_that_is_too_long(server: Running, stream: bool) -> None:
    """A minute, in which nobody else would be served."""
    terms = {("a " * 100)[:length] + "q": "ZETA" for length in range(199)}
    answer = server.post("/v1/generate", {"input": "a " * 1_500_000, "glossary": terms, "stream": stream})
    assert answer.status_code == 413, answer.text


@pytest.mark.parametrize("search", [{"beam": 1}, {"beam": 4}, {"sample": True}, {"mbr": 3}])
def test_a_stream_joins_to_the_whole(server: Running, search: dict[str, Any]) -> None:
    body = {"input": "alpha beta gamma delta", "search": {**search, "min_length": 8}, "stream": True}
    with server.client.stream("POST", "/v1/generate", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    *deltas, last = map(json.loads, events[:-1])
    text = last["outputs"][0][0]["text"]
    assert "".join(delta["delta"] for delta in deltas) == text
    assert [delta["text"] for delta in deltas] == [
        "".join(x["delta"] for x in deltas[: i + 1]) for i in range(len(deltas))
    ]
    assert text == server.post("/v1/generate", {**body, "stream": False}).json()["outputs"][0][0]["text"]
    if search.get("beam") == 1 or "sample" in search:
        assert len(deltas) > 1  # the first token at once; those that are written within `PACE` come together


def near(given: Any) -> Any:
    """What equals `given` but for the rounding of its numbers, which depends on what shares a batch."""
    if isinstance(given, dict):
        return {name: near(value) for name, value in given.items()}
    if isinstance(given, list):
        return [near(value) for value in given]
    return pytest.approx(given, abs=1e-4) if isinstance(given, float) else given


@pytest.mark.parametrize(
    "given",
    [
        {"input": "\n alpha beta. Gamma\n\ndelta ", "split": True},
        {"input": "<h1>alpha &amp; beta</h1><p>gamma <b>delta</b></p> ", "format": "html"},
        {"input": " ", "split": True},
    ],
)  # fmt: skip
def test_a_text_streams_sentence_by_sentence(server: Running, given: dict[str, Any]) -> None:
    whole = server.post("/v1/generate", given).json()
    with server.client.stream("POST", "/v1/generate", json={**given, "stream": True}) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    *deltas, last = map(json.loads, events[:-1])
    assert last == near({name: whole[name] for name in ("outputs", "usage", "sentences")})
    assert "".join(delta["delta"] for delta in deltas) == deltas[-1]["text"] == whole["outputs"][0][0]["text"]
    assert len(deltas) >= len(whole["sentences"][0])
    refused = server.post("/v1/generate", {**given, "stream": True, "search": {"beam": 1000}})
    assert refused.status_code == 422 or not whole["sentences"][0]
    assert server.post("/v1/generate", {**given, "stream": True, "input": ["a", "b"]}).status_code == 422


def test_scores_embeddings_explanations(server: Running, system: System) -> None:
    pairs = [{"source": "alpha beta", "target": "BETA ALPHA"}, {"source": "gamma", "target": "GAMMA"}]
    scores = server.post("/v1/score", {"pairs": pairs * 20}).json()["scores"]
    for score, pair in zip(scores, system.score(["alpha beta", "gamma"], ["BETA ALPHA", "GAMMA"]), strict=False):
        assert score["log_prob"] == pytest.approx(pair.log_prob, abs=1e-4)
        assert score["perplexity"] == pytest.approx(pair.perplexity, rel=1e-3)
    assert [token["text"] for token in scores[0]["tokens"]] == ["BETA", "ALPHA", "</s>"]
    assert len(scores) == 40
    answer = server.post("/v1/embed", {"input": ["alpha beta", "gamma"]}).json()
    vectors = system.sentence_embeddings(["alpha beta", "gamma"])
    assert np.allclose(answer["embeddings"], vectors, atol=1e-5)
    explained = server.post("/v1/explain", {"input": "alpha beta", "target": "BETA"}).json()
    assert explained["target"] == ["BETA", "</s>"]
    body = {"input": "alpha beta", "method": "gradient"}
    assert server.post("/v1/explain", body).json()["best"] == "gradient"
    told(server.post("/v1/explain", {**body, "method": "magic"}), 422, "unprocessable")
    inspected = server.post("/v1/inspect", {"input": "alpha", "tree": True, "forced": [10]}).json()
    assert inspected["outputs"][0]["tokens"][0]["id"] == 10
    assert inspected["tree"]["nodes"]


def test_a_target_that_is_too_long_is_not_explained(server: Running) -> None:
    target = "ALPHA " * 1025
    message = told(server.post("/v1/explain", {"input": "alpha", "target": target}), 422, "unprocessable")
    assert message == "the target has 1,025 tokens, more than 1,024, the limit here"
    for method in ("gradient", "erasure"):  # a pass for each token, in which the worker does nothing else
        told(
            server.post("/v1/explain", {"input": "alpha", "target": "ALPHA " * 49, "method": method}),
            422,
            "unprocessable",
        )
    told(server.post("/v1/explain", {"input": "alpha " * 49, "method": "gradient"}), 422, "unprocessable")


def test_models_and_their_api(server: Running) -> None:
    first, second = server.client.get("/v1/models").json()["data"]
    assert (first["id"], first["sources"], first["aligns"]) == ("toy", ["text"], True)
    assert first["languages"] == [{"source": "en", "target": "de", "prefix": ""}]
    assert (second["id"], second["sources"]) == ("captions", ["image"])
    told(server.post("/v1/generate", {"model": "toi", "input": "alpha"}), 404, "unknown_model")
    schema = server.client.get("/openapi.json").json()
    assert schema["paths"]["/v1/generate"]["post"]["requestBody"]
    assert server.client.get("/docs").status_code == 404
    assert server.client.get("/ready").json() == {"ready": True, "models": {"toy": True, "captions": True}}


def test_what_the_docs_ask(server: Running) -> None:
    page = (Path(__file__).parents[1] / "docs/howto/serving.md").read_text()
    asked = re.findall(r"^curl (?:-N )?localhost:8000(\S+)(?: --json '(.*)')?$", page, re.MULTILINE)
    assert len(asked) >= 10
    for path, body in asked:
        response = server.post(path, json.loads(body)) if body else server.client.get(path)
        assert response.status_code == 200, response.text


# Files


def picture(side: int = 20, form: str = "PNG") -> dict[str, str]:
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), 128, np.uint8)).save(file, form)
    return {"data": base64.b64encode(file.getvalue()).decode()}


def test_a_picture_comes_with_its_request_and_leaves_with_it(server: Running, folder: Path) -> None:
    body = {"model": "captions", "input": [picture(), picture(30, "JPEG")], "alignment": True}
    answer = server.post("/v1/generate", body).json()
    assert len(answer["outputs"]) == 2
    assert server.post("/v1/explain", {"model": "captions", "input": picture()}).json()["canvas"]
    told(server.post("/v1/generate", {"model": "captions", "input": {"data": "aGVsbG8="}}), 422, "unprocessable")
    assert len(list((folder / "tmp").iterdir())) == 2, "one of each worker"
    assert not list((folder / "tmp").rglob("*/*"))


def test_no_path_reaches_the_file_system(server: Running, folder: Path) -> None:
    path = folder / "there.png"
    Image.new("RGB", (20, 20)).save(path)
    for name in (str(path), "/etc/passwd", f"{folder}/x.tar::1.png", [str(path)], [[str(path)]]):
        body = {"model": "captions", "input": name}
        message = told(server.post("/v1/generate", body), 422, "unprocessable")
        assert "root:" not in message
    told(server.post("/v1/explain", {"model": "captions", "input": str(path)}), 422, "unprocessable")
    told(server.post("/v1/embed", {"model": "captions", "input": str(path)}), 422, "unprocessable")
    pair = {"source": str(path), "target": "ALPHA"}
    told(server.post("/v1/score", {"model": "captions", "pairs": [pair]}), 422, "unprocessable")
    told(server.post("/v1/generate", {"model": "toy", "input": picture()}), 422, "unprocessable")
    message = told(
        server.post("/v1/generate", {"model": "captions", "input": {"data": "aGVsbG8="}}), 422, "unprocessable"
    )
    assert "upload " in message
    assert "/" not in message


# What is not answered


HOSTILE: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 422),
    "no JSON": (b"{", 400),
    "not UTF-8": (b'{"input": "\xff"}', 400),
    "NaN": (b'{"input": "alpha", "timeout": NaN}', 400),
    "infinity": (b'{"input": "alpha", "search": {"alpha": Infinity}}', 400),
    "too large a number": (b'{"input": "alpha", "timeout": 1e999}', 422),
    "digits": (b'{"input": "alpha", "timeout": ' + b"9" * 10_000 + b"}", 400),
    "deep lists": (b'{"input": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400),
    "deep settings": (b'{"input": "alpha", "search": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", 400),
    "deeper than the worker reads": (b'{"input": "alpha", "search": {"beam": ' + b"[" * 240 + b"]" * 240 + b"}}", 400),
    "name of an argument": (b'{"input": "alpha", "search": {"self": 1}}', 422),
    "half a name": (b'{"input": "alpha", "model": "\\ud800"}', 422),
    "half a character": (b'{"input": "\\ud800"}', 422),
    "a list": (b"[]", 422),
    "null": (b"null", 422),
    "unknown name": (b'{"input": "alpha", "beam": 3}', 422),
    "no text": (b'{"input": 3}', 422),
    "base64 that is none": (b'{"input": {"data": "!"}}', 422),
    "empty": (b'{"input": ""}', 422),
    "unknown setting": (b'{"input": "alpha", "search": {"beem": 3}}', 422),
    "wide beam": (b'{"input": "alpha", "search": {"beam": 1000}}', 422),
    "wide beam as a text": (b'{"input": "alpha", "search": {"beam": "1000"}}', 422),
    "not our setting": (b'{"input": "alpha", "search": {"precision": "int8"}}', 422),
    "list for a number": (b'{"input": "alpha", "search": {"beam": [1]}}', 422),
    "many alternatives": (b'{"input": "alpha", "tokens": true, "alternatives": 100000}', 422),
    "fewer prefixes": (b'{"input": ["alpha", "beta"], "prefix": ["ALPHA"]}', 422),
    "phrases of another kind": (b'{"input": "alpha", "phrases": [["A"], "B"]}', 422),
    "long phrases": (b'{"input": "alpha", "phrases": ["' + b"A " * 200 + b'"]}', 422),
    "many inputs": (b'{"input": [' + b'"alpha",' * 300 + b'"alpha"]}', 413),
    "many texts to split": (b'{"input": [' + b'"",' * 300 + b'""], "split": true}', 413),
    "many characters": (b'{"input": "' + b"alpha " * 20_000 + b'"}', 413),
    "marks": (b'{"input": "<s> </s> <pad> \\u0000"}', 200),
    "NUL": (b'{"input": "alpha \\u0000 beta"}', 200),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_bodies(server: Running, case: str) -> None:
    body, status = HOSTILE[case]
    response = server.client.post("/v1/generate", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text
    if status >= 400:
        assert response.json()["error"]["message"]


NATIVE = {
    f"/v1/{name}" for name in ("generate", "score", "explain", "inspect", "embed", "models", "models/{name}/reload")
}
CONFORMANCE = [content_type_conformance, response_schema_conformance]


def answers_for_itself(context: Any, response: Any, case: Any) -> None:
    """Nothing is a bug; a request that asks for no time at all is told that it took too long (504)."""
    assert response.status_code < 500 or response.status_code == 504, response.text


def test_the_api_is_what_its_schema_says(server: Running) -> None:
    quick = settings(
        max_examples=300 if FULL else 8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=not FULL,
        database=None,
    )  # fmt: skip
    api = schemathesis.openapi.from_url(f"{server.client.base_url}/openapi.json")
    operations: list[Any] = [cast(Any, result).ok() for result in api.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/v1/generate", "/v1/score", "/v1/models", "/health"}
    for operation in operations:
        own = [status_code_conformance] if operation.path in NATIVE else []

        def answered(case: Any) -> None:
            case.call_and_validate(checks=[answers_for_itself, *CONFORMANCE, *own])  # noqa: B023 - called at once

        quick(given(case=operation.as_strategy())(answered))()


def test_bodies_that_are_no_json_are_not_read(server: Running) -> None:
    post = server.client.post
    body = b'{"input": "alpha"}'
    told(post("/v1/generate", content=body, headers={"Content-Type": "text/plain"}), 415, "unsupported_media_type")
    told(post("/v1/generate", content=body), 415, "unsupported_media_type")
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    told(post("/v1/generate", content=body, headers=headers), 415, "unsupported_media_type")
    headers = {"Content-Type": "application/json"}
    for body, problem in ((b"", "body: Field required"), (b"null", "body: Input should be"), (b"[]", "body: Input")):
        response = post("/v1/generate", content=body, headers=headers)
        told(response, 422, "unprocessable")
        assert response.json()["error"]["message"].startswith(problem)
    told(server.client.get("/v1/generate"), 405, "method_not_allowed")
    told(server.client.get("/v1/nothing"), 404, "not_found")


def raw(server: Running, content: bytes) -> bytes:
    """What comes back for bytes that no client would send."""
    with socket.create_connection((server.client.base_url.host, server.client.base_url.port or 0), 20) as line:
        line.sendall(content)
        found = b""
        while data := line.recv(65536):
            found += data
        return found


def test_a_body_that_is_too_large_is_refused_before_it_comes(server: Running) -> None:
    head = b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    found = raw(server, head + b"Content-Length: 99999999999\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in found.lower()
    chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    assert raw(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 32 + b"1\r\n \r\n").startswith(
        b"HTTP/1.1 413 "
    )
    assert raw(server, head + b"Content-Length: -1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(server, b"\x16\x03\x01 nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_other_names_are_not_ours(server: Running) -> None:
    response = server.client.get("/v1/models", headers={"Host": "evil.example"})
    assert response.status_code == 421


def test_headers(server: Running) -> None:
    response = server.client.get("/v1/models", headers={"X-Request-ID": "a-b.1", "Origin": "https://evil.example"})
    assert response.headers["x-request-id"] == "a-b.1"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in response.headers["content-security-policy"]
    assert "access-control-allow-origin" not in response.headers
    assert "server" not in response.headers
    odd = server.client.get("/v1/models", headers={"X-Request-ID": 'a"b\\c'}).headers["x-request-id"]
    assert odd.isalnum()


def test_the_log_holds_no_texts(server: Running) -> None:
    server.post("/v1/generate", {"input": "theta theta secretword"}, headers={"X-Request-ID": "of-the-log"})
    until(lambda: any(event.get("request_id") == "of-the-log" for event in server.events()))
    (event,) = (event for event in server.events() if event.get("request_id") == "of-the-log")
    assert event["status"] == 200
    assert "secretword" not in server.log.read_text()


# Limits of time and place


def test_a_deadline_stops_the_work(server: Running) -> None:
    told(server.post("/v1/generate", {"input": "alpha", "timeout": 0.2, **SLOW}), 504, "deadline")
    until(lambda: server.metric("regard_running_size") == 0)
    assert server.post("/v1/generate", {"input": "alpha"}).status_code == 200


def test_a_client_that_leaves_frees_its_place(server: Running) -> None:
    with pytest.raises(httpx.ReadTimeout):
        server.post("/v1/generate", {"input": ["alpha beta"] * 200, **SLOW}, timeout=0.5)
    until(lambda: server.metric("regard_queue_size") + server.metric("regard_running_size") == 0)
    assert server.metric("regard_requests_total") > 0
    with server.client.stream("POST", "/v1/generate", json={"input": "alpha", "stream": True, **SLOW}) as response:
        next(response.iter_lines())
    until(lambda: server.metric("regard_queue_size") + server.metric("regard_running_size") == 0)


def test_metrics(server: Running) -> None:
    before = server.metric("regard_generated_tokens_total"), server.metric("regard_inputs_total")
    outputs = server.post("/v1/generate", {"input": ["alpha", "beta"]}).json()["outputs"]
    written = sum(some[0]["output_tokens"] for some in outputs)
    assert server.metric("regard_generated_tokens_total") == before[0] + written
    assert server.metric("regard_inputs_total") == before[1] + 2
    assert server.metric("regard_time_in_queue_seconds_count") >= 2
    assert server.metric("regard_request_duration_seconds_count") >= 1


# Processes that die, and those that are exchanged


def test_a_worker_that_dies_is_started_again(server: Running) -> None:
    pid = server.workers()["captions"]
    body = {
        "model": "captions",
        "input": [picture()] * 200,
        "search": {"beam": 4, "min_length": 200, "max_length": 200},
    }
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, "/v1/generate", body)
        until(lambda: server.metric("regard_queue_size") + server.metric("regard_running_size") > 0)
        os.kill(pid, signal.SIGKILL)
        told(asked.result(), 503, "worker_died")
    assert server.post("/v1/generate", {"model": "toy", "input": "alpha"}).status_code == 200
    until(lambda: server.client.get("/ready").status_code == 200)
    assert server.post("/v1/generate", {"model": "captions", "input": picture()}).status_code == 200
    assert server.metric("regard_worker_restarts") == 1
    told(server.post("/v1/models/toy/reload"), 403, "forbidden")


@whole
def test_a_signal_reads_folders_anew(server: Running) -> None:
    before = server.workers()
    server.process.send_signal(signal.SIGHUP)
    until(lambda: all(server.workers()[name] != pid for name, pid in before.items()))
    assert server.post("/v1/generate", {"input": "alpha"}).status_code == 200
    until(lambda: sum(event["event"] == "retired" for event in server.events()) == 2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in before.values())


@whole
def test_memory_stays_flat(server: Running) -> None:
    server.hammer(4000)
    processes = [server.process.pid, server.workers()["toy"]]
    before = [resident(pid) for pid in processes]
    server.hammer(20_000)
    for pid, held in zip(processes, before, strict=True):
        assert resident(pid) < held + 2**24


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Running]:
    """A server with keys, and room for few."""
    from regard.serving.access import new_key

    save_model(tmp_path / "toy", {**TEXT, "model": {**TEXT["model"], "max_positions": 1100}})
    keys = {name: new_key(tmp_path / "keys", name, admin=name == "admin") for name in ("alice", "bob", "admin")}
    limits = {"queue": 2, "inputs": 2, "per_minute": 12, "burst": 40, "body_timeout": 0.5}
    more = {"cors": ["https://good.example"], "hosts": ["127.0.0.1", "localhost", "Other.Example"]}
    with running(tmp_path, models=[{"folder": "toy"}], keys="keys", limits=limits, **more) as found:
        found.client.headers["Authorization"] = f"Bearer {keys['alice']}"
        found.client.headers["X-Admin"] = keys["admin"]
        yield found


def ended_while_it_works(
    server: Running, body: dict[str, Any], headers: dict[str, str]
) -> tuple[threading.Thread, list[httpx.Response]]:
    """Tell a server to end while it works on a request; returns who waits for that, and where its answer will be."""
    results = list[httpx.Response]()
    asking = threading.Thread(
        target=lambda: results.append(server.post("/v1/generate", {"input": "alpha", **body}, headers=headers))
    )
    asking.start()
    until(lambda: server.metric("regard_queue_size") + server.metric("regard_running_size") > 0)
    server.process.send_signal(signal.SIGTERM)
    until(lambda: server.client.get("/ready").status_code == 503)
    return asking, results


def test_keys_queues_reloads_and_the_end(strict: Running, tmp_path: Path) -> None:
    # Keys
    admin = {"Authorization": f"Bearer {strict.client.headers.pop('X-Admin')}"}
    wrong = strict.post("/v1/generate", {"input": "alpha"}, headers={"Authorization": "Bearer rg-wrong"})
    assert "unknown" in told(wrong, 401, "unauthorized")
    assert wrong.headers["www-authenticate"] == "Bearer"
    assert "missing" in told(httpx.get(strict.client.base_url.join("/v1/models")), 401, "unauthorized")
    for name, status in (("other.example", 200), ("OTHER.EXAMPLE:80", 200), ("third.example", 421)):
        assert httpx.get(strict.client.base_url.join("/health"), headers={"Host": name}).status_code == status
    before = strict.post("/v1/generate", {"input": "alpha"}).json()["outputs"][0][0]["text"]
    allowed = strict.client.get("/v1/models", headers={"Origin": "https://good.example"}).headers
    assert allowed["access-control-allow-origin"] == "https://good.example"
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}
    for origin, status in (("https://good.example", 200), ("https://evil.example", 400)):  # OpenAI's client in a page
        assert strict.client.options("/v1/completions", headers={"Origin": origin, **wanted}).status_code == status
    told(strict.post("/v1/models/toy/reload"), 403, "forbidden")

    # A body that never comes
    head = b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert raw(strict, head + b'Content-Length: 100\r\n\r\n{"input"').startswith(b"HTTP/1.1 408 ")

    # A full queue
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(strict.post, "/v1/generate", {"input": ["alpha", "beta"], **SLOW})
        until(lambda: strict.metric("regard_queue_size") + strict.metric("regard_running_size") == 2)
        refused = strict.post("/v1/generate", {"input": "gamma"})
        told(refused, 429, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1

        # Another model in the same folder, while the first still answers
        save_model(tmp_path / "toy", {**TEXT, "model": {**TEXT["model"], "max_positions": 1100}}, seed=2)
        assert strict.post("/v1/models/toy/reload", headers=admin).status_code == 200
        assert slow.result().status_code == 200
    assert strict.post("/v1/generate", {"input": "alpha"}).json()["outputs"][0][0]["text"] != before
    (tmp_path / "toy" / "config.yaml").rename(tmp_path / "config.yaml")
    told(strict.post("/v1/models/toy/reload", headers=admin), 422, "unprocessable")
    assert strict.post("/v1/generate", {"input": "alpha"}).status_code == 200

    # Too many requests of one caller
    answers = (strict.client.get("/v1/models") for _ in range(1000))
    refused = next(answer for answer in answers if answer.status_code != 200)
    told(refused, 429, "rate_limited")
    assert int(refused.headers["retry-after"]) >= 1

    # The end: what was asked is answered, nothing else is
    text = {"input": "alpha\nbeta\ngamma\ndelta\nepsilon", "split": True}  # more than one question to the model
    asking, results = ended_while_it_works(strict, {**WHILE, **text}, admin)
    last = strict.post("/v1/generate", {"input": "alpha"}, headers=admin)
    told(last, 503, "draining")
    assert last.headers["connection"] == "close"
    asking.join()
    assert results[0].status_code == 200
    assert strict.process.wait(20) == 0


@whole
def test_a_second_signal_answers_what_is_left_with_an_error(strict: Running) -> None:
    admin = {"Authorization": f"Bearer {strict.client.headers.pop('X-Admin')}"}
    asking, results = ended_while_it_works(strict, SLOW, admin)
    strict.process.send_signal(signal.SIGTERM)
    asking.join()
    told(results[0], 503, "worker_died")
    assert strict.process.wait(20) == 0
