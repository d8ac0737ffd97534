"""Serving: many clients over HTTP, against Regard's server and against servers as people write them around the same
weights."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from benchmarks.peers.base import Job, need, quiet
from benchmarks.peers.ctranslate import exported
from benchmarks.peers.ours import fixed_search, liven, make_task
from benchmarks.race import Case, Contender, UnavailableError, Work
from benchmarks.workload import SHAPES, Shape, draw_lengths, sentences
from regard.errors import ModelError
from regard.system import System

SHORTEST, LONGEST = 4, 64
PEERS = {
    "marian": ("FastAPI and HF generate", "a request a thread, as plain examples have it"),
    "ctranslate2": ("one at a time, CTranslate2", "the way of LibreTranslate: requests one after the other"),
}
WORKLOAD = (
    "Each client sends a request, waits for its answer and sends the next. Weights are random, and the same on every "
    f"side; texts are of {SHORTEST} to {LONGEST} tokens, drawn as lengths of a translation corpus, with outputs as "
    "long. Clients and server share the machine. Output tokens of all answers, by the time from the first request to "
    "the last answer."
)


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of serving."""
    parser.add_argument("--model", choices=SHAPES, help="size of model")
    parser.add_argument(
        "--peers", nargs="+", choices=[*PEERS, "none"], metavar="PEER", help=f"{', '.join(PEERS)}; or none"
    )
    parser.add_argument("--clients", type=int, help="at once (64; on a GPU 256)")
    parser.add_argument("--requests", type=int, help="of each client in a turn (4)")
    parser.add_argument("--beam", type=int, nargs="+", help="each a case; 1 is greedy")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16", "int8"), help="of Regard; peers have float32 or bfloat16"
    )
    parser.add_argument("--engine", choices=("regard", "ctranslate2"), default="regard", help="that Regard serves with")


@dataclass(frozen=True)
class Question:
    """A text of words that are tokens, and how many tokens its output has."""

    text: str
    length: int
    beam: int

    def body(self, *, stream: bool) -> dict[str, Any]:
        """What Regard is asked."""
        limits = {"beam": self.beam, "min_length": self.length, "max_length": self.length}
        return {"input": self.text, "search": limits, **({"stream": True} if stream else {})}


@dataclass(frozen=True)
class Reply:
    """When a request was answered."""

    tokens: int
    seconds: float
    first: float  # seconds until the first text


@dataclass
class Server:
    """A server in a process of its own."""

    command: Sequence[str]
    port: int
    process: subprocess.Popen[bytes] | None = None
    log: IO[bytes] = field(default_factory=tempfile.TemporaryFile)  # a pipe that nobody reads would fill up

    def __enter__(self) -> Server:
        # Clients take their share of the cores, so threads that spin while they wait would stand in everybody's way.
        patient = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=self.log, env=patient)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None, "it was started"
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def wait(self, seconds: float = 180.0) -> Server:
        """Until it is ready."""
        httpx = _httpx()
        assert self.process is not None, "it was started"
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                self.log.seek(0)
                said = self.log.read().decode(errors="replace").strip().splitlines()
                raise UnavailableError(f"the server ended at once: {said[-1] if said else 'it said nothing'}")
            try:
                if httpx.get(f"{self.address}/ready").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise UnavailableError(f"the server was not ready after {seconds:.0f} s")


@dataclass(frozen=True)
class Clients:
    """So many clients at once, and what they ask."""

    server: Server
    count: int
    ours: bool
    stream: bool = False
    replies: list[Reply] = field(default_factory=list)

    def ask(self, questions: Sequence[Question]) -> float:
        """Ask all of them; returns how many output tokens came back."""
        found = asyncio.run(self._all(questions))
        self.replies.extend(found)
        return float(sum(reply.tokens for reply in found))

    async def _all(self, questions: Sequence[Question]) -> list[Reply]:
        httpx, rest, found = _httpx(), iter(questions), list[Reply]()
        limits = httpx.Limits(max_connections=self.count, max_keepalive_connections=self.count)
        async with httpx.AsyncClient(base_url=self.server.address, timeout=600.0, limits=limits) as client:

            async def one() -> None:
                for question in rest:
                    found.append(await self._reply(client, question))

            await asyncio.gather(*(one() for _ in range(min(self.count, len(questions)))))
        return found

    async def _reply(self, client: Any, question: Question) -> Reply:
        began, first = time.perf_counter(), 0.0
        if self.stream:
            async with client.stream("POST", "/v1/generate", json=question.body(stream=True)) as response:
                lines = [line async for line in _timed(response) if line[1].startswith("data:")]
            first = lines[0][0] - began
            tokens = question.length
            status, text = response.status_code, lines[-2][1] if len(lines) > 1 else ""
        else:
            path, body = ("/v1/generate", question.body(stream=False)) if self.ours else ("/generate", vars(question))
            response = await client.post(path, json=body)
            status, text = response.status_code, response.text
            tokens = question.length
        if status != 200:
            raise ModelError(f"the server answered {status}: {text[:200]}")
        if text.count("w") < question.length:
            raise ModelError(f"an output of {question.length} tokens was asked for, and came back as {text[:200]}")
        return Reply(tokens, time.perf_counter() - began, first)

    def latency(self, rate: float) -> dict[str, float]:
        """Over all turns so far."""
        seconds = [reply.seconds for reply in self.replies]
        found = {f"p{n} s": float(np.percentile(seconds, n)) for n in (50, 95, 99)}
        if self.stream:
            found["first token p50 s"] = float(np.median([reply.first for reply in self.replies]))
        return found


async def _timed(response: Any) -> Any:
    async for line in response.aiter_lines():
        yield time.perf_counter(), line


def cases(options: Namespace, device: torch.device) -> Iterator[Case]:
    """A case for each beam."""
    gpu, quick = options.command == "serve-gpu", options.quick
    shape = SHAPES[options.model or ("tiny" if quick else "base")]
    clients = options.clients or (4 if quick else 256 if gpu else 64)
    precision = options.precision or ("bfloat16" if device.type == "cuda" else "float32")
    peers = [name for name in options.peers or PEERS if name != "none"]
    with tempfile.TemporaryDirectory() as folder:
        save_model(shape, Path(folder) / "model", options.seed)
        for beam in options.beam or ([1] if quick else [1, 5]):
            asked = questions(clients * (options.requests or (1 if quick else 4)), shape, beam, options.seed)
            few, some = asked[: max(len(asked) // 16, 4)], asked[: max(len(asked) // 4, 4)]  # what is slow gets fewer
            with ExitStack() as servers:
                ours = partial(start_regard, servers, Path(folder), device, precision, options.engine)
                server = ours()
                contenders = [
                    Contender(f"Regard, {clients} clients", "ours", partial(_work, server, clients, asked, ours=True)),
                    Contender(
                        f"Regard, {clients} clients, streaming", "beside",
                        partial(_work, server, clients, asked, ours=True, stream=True),
                    ),
                    Contender("Regard, one client", "beside", partial(_work, server, 1, few, ours=True)),
                ]  # fmt: skip
                for name in peers:
                    title, note = PEERS[name]
                    run = partial(_peer, servers, name, Path(folder), precision)
                    work = partial(_late_work, run, clients, some, note)
                    contenders.append(Contender(f"{title}, {clients} clients", "peer", work))
                words = f"{shape}; {'greedy' if beam == 1 else f'beam {beam}'}, {precision}, engine {options.engine}"
                yield Case("greedy" if beam == 1 else f"beam {beam}", "output tokens/s", contenders, words)


def save_model(shape: Shape, folder: Path, seed: int) -> None:
    """A model of random weights that writes texts which differ."""
    task = make_task(shape, torch.device("cpu"), seed, dropout=0.0)
    liven(task, shape)
    System(task, folder).save(folder)


def questions(count: int, shape: Shape, beam: int, seed: int) -> list[Question]:
    """Texts of different lengths."""
    lengths = draw_lengths(count, seed)[0].clip(SHORTEST, LONGEST).tolist()
    words = sentences(count, LONGEST, shape.vocabulary, seed)
    return [Question(" ".join(f"w{i}" for i in row[:n]), n, beam) for row, n in zip(words, lengths, strict=True)]


def start_regard(servers: ExitStack, folder: Path, device: torch.device, precision: str, engine: str) -> Server:
    """Regard's own, as its command starts it."""
    port, model = free_port(), folder / "model"
    if engine == "ctranslate2":
        task = make_task(SHAPES["tiny"], torch.device("cpu"), 1)  # its place is taken by what was saved
        with quiet():
            model = exported(Job(task, fixed_search(1, 8, precision), [], folder))
    command = [sys.executable, "-m", "regard", "-q", "serve", f"bench={model}", "--port", str(port)]
    command += ["--device", device.type, "--engine", engine]
    command += ["--quantization" if engine == "ctranslate2" else "--precision", precision]
    return servers.enter_context(Server(command, port)).wait()


def _peer(servers: ExitStack, name: str, folder: Path, precision: str) -> Server:
    need({"marian": "transformers"}.get(name, name))
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.peers.servers", name, str(folder / "model"), str(port), precision]
    return servers.enter_context(Server(command, port)).wait()


def _late_work(run: Any, count: int, asked: Sequence[Question], note: str) -> Work:
    return _work(run(), count, asked, note=note)


def _work(
    server: Server, count: int, asked: Sequence[Question], *, ours: bool = False, stream: bool = False, note: str = ""
) -> Work:
    """Turns in which all questions are asked once."""
    clients = Clients(server, count, ours, stream)
    warm = Clients(server, count, ours, stream)
    return Work(lambda: clients.ask(asked), lambda: warm.ask(asked[: min(count, 4)]), note, clients.latency)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _httpx() -> Any:
    return need("httpx")
