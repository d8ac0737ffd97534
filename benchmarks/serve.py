"""Serving: many clients over HTTP, against Regard's server and against servers as people write them around the same
weights."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import numpy as np
import torch

from benchmarks.clients import Answer, Asked
from benchmarks.peers.base import Job, need, quiet
from benchmarks.peers.ctranslate import exported
from benchmarks.peers.ours import fixed_search, liven, make_task
from benchmarks.race import Case, Contender, UnavailableError, Work
from benchmarks.workload import SHAPES, Shape, draw_lengths, sentences
from regard.data.marks import EOS
from regard.errors import ModelError, RegardError
from regard.serving.engine import new_engine
from regard.serving.work import Work as Input
from regard.system import System, load
from regard.tasks.results import Output

SHORTEST, LONGEST = 4, 64
ROOM = 11  # tokens that an output has more than its source, where `max_ratio` is 1 and nothing ends it before
TOKENS = {"cuda": 2**17, "cpu": None}  # that the server may work on at once: 256 beams of 4; None: its default
OFFLINE = {"cuda": 2**15, "cpu": 8192}  # of sources, times the beam, that are searched for at once without a server
OFFLINE_NAME = "Regard offline"
ENGINE_NAME = "the engine without a server"
PEERS = {
    "marian": ("FastAPI and HF generate", "a request a thread, as plain examples have it"),
    "ctranslate2": ("one at a time, CTranslate2", "the way of LibreTranslate: requests one after the other"),
}
WORKLOAD = (
    "Each client sends a request, waits for its answer and sends the next. Weights are random, and the same on every "
    f"side; texts are of {SHORTEST} to {LONGEST} tokens, drawn as lengths of a translation corpus, with outputs as "
    f"long, or on a GPU {ROOM} tokens longer, so that all requests have the same settings. Clients and server share "
    "the machine. Output tokens of all answers, by the time from the first request to the last answer. Offline is "
    "`System.generate` on the same texts at once, in the process of the benchmark; the engine without a server, there "
    "too, takes in as many texts at once as the clients send."
)


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of serving."""
    parser.add_argument("--model", choices=SHAPES, help="size of model")
    parser.add_argument(
        "--peers", nargs="+", choices=[*PEERS, "none"], metavar="PEER", help=f"{', '.join(PEERS)}; or none"
    )
    parser.add_argument("--clients", type=int, help="at once (64; on a GPU 256)")
    parser.add_argument("--requests", type=int, help="of each client in a turn (4)")
    parser.add_argument("--inputs", type=int, default=1, help="texts of a request (1)")
    parser.add_argument("--processes", type=int, help="that clients are shared out among (1; on a GPU 4)")
    parser.add_argument("--batch-tokens", type=int, help="that the server works on at once (on a GPU 131072)")
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
    free: bool = False  # whether its length follows from that of the text, and not from settings of its own

    @property
    def search(self) -> dict[str, Any]:
        """The settings that Regard is asked with."""
        own = {"max_ratio": 1.0} if self.free else {"min_length": self.length, "max_length": self.length}
        return {"beam": self.beam, **own}

    def body(self, *, stream: bool) -> dict[str, Any]:
        """What Regard is asked."""
        return {"input": self.text, "search": self.search, **({"stream": True} if stream else {})}


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
    crew: list[subprocess.Popen[str]] = field(default_factory=list)  # processes of clients

    def __enter__(self) -> Server:
        # Clients take their share of the cores, so threads that spin while they wait would stand in everybody's way.
        patient = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=self.log, env=patient)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None, "it was started"
        for helper in self.crew:
            helper.communicate()  # there is no more for it to do
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

    def ask(self, asked: Sequence[Asked]) -> list[list[Answer]]:
        """What came of each task, worked on in a process of its own, which stays for the next."""
        while len(self.crew) < len(asked):
            command = [sys.executable, "-m", "benchmarks.clients", str(self.port)]
            pipe = subprocess.PIPE
            self.crew.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        used = self.crew[: len(asked)]
        for helper, one in zip(used, asked, strict=True):
            assert helper.stdin is not None, "it has a pipe"
            helper.stdin.write(json.dumps(one) + "\n")
            helper.stdin.flush()
        lines = [helper.stdout.readline() for helper in used if helper.stdout is not None]
        if not all(lines):
            raise ModelError("a process of clients ended: the server closed a connection")
        return [[Answer(*answer) for answer in json.loads(line)] for line in lines]

    def wait(self, seconds: float = 180.0) -> Server:
        """Until it is ready."""
        assert self.process is not None, "it was started"
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                self.log.seek(0)
                said = self.log.read().decode(errors="replace").strip().splitlines()
                raise UnavailableError(f"the server ended at once: {said[-1] if said else 'it said nothing'}")
            with suppress(OSError), urlopen(f"{self.address}/ready", timeout=5.0) as response:  # 503 is one too
                if response.status == 200:
                    return self
            time.sleep(0.2)
        raise UnavailableError(f"the server was not ready after {seconds:.0f} s")


@dataclass(frozen=True)
class Clients:
    """So many clients at once, and what they ask."""

    server: Server
    count: int
    ours: bool
    stream: bool = False
    inputs: int = 1  # texts of a request, to Regard alone
    processes: int = 1
    replies: list[Reply] = field(default_factory=list)

    def ask(self, questions: Sequence[Question]) -> float:
        """Ask all of them; returns how many output tokens came back."""
        groups = [questions[i : i + self.inputs] for i in range(0, len(questions), self.inputs)]
        shares = [groups[i :: self.processes] for i in range(self.processes)]
        shares = [share for share in shares if share]
        counts = [min(len(range(i, self.count, len(shares))), len(share)) for i, share in enumerate(shares)]
        path = "/v1/generate" if self.ours else "/generate"
        asked = [Asked(n, path, [*map(self._body, share)]) for n, share in zip(counts, shares, strict=True)]
        found = [
            self._reply(share[answer.number], answer)
            for share, answers in zip(shares, self.server.ask(asked), strict=True)
            for answer in answers
        ]
        self.replies.extend(found)
        return float(sum(reply.tokens for reply in found))

    def _body(self, group: Sequence[Question]) -> dict[str, Any]:
        first = group[0]
        if not self.ours:
            return {"text": first.text, "length": first.length, "beam": first.beam}
        return {**first.body(stream=self.stream), **({"input": [x.text for x in group]} if len(group) > 1 else {})}

    def _reply(self, group: Sequence[Question], answer: Answer) -> Reply:
        tokens = sum(question.length for question in group)
        if answer.status != 200:
            raise ModelError(f"the server answered {answer.status}: {answer.text[:200]}")
        if answer.text.count("w") < tokens:
            raise ModelError(f"{tokens} output tokens were asked for, and what came back is {answer.text[:200]}")
        return Reply(tokens, answer.seconds, answer.first)

    def latency(self, rate: float) -> dict[str, float]:
        """Over all turns so far."""
        seconds = [reply.seconds for reply in self.replies]
        found = {f"p{n} s": float(np.percentile(seconds, n)) for n in (50, 95, 99)}
        if self.stream:
            found["first token p50 s"] = float(np.median([reply.first for reply in self.replies]))
        return found


def cases(options: Namespace, device: torch.device) -> Iterator[Case]:
    """A case for each beam."""
    gpu, quick = options.command == "serve-gpu", options.quick
    shape = SHAPES[options.model or ("tiny" if quick else "base")]
    count = options.clients or (4 if quick else 256 if gpu else 64)
    precision = options.precision or ("bfloat16" if device.type == "cuda" else "float32")
    processes = min(options.processes or (4 if gpu and not quick else 1), count)
    peers = [name for name in options.peers or PEERS if name != "none"]
    tokens = options.batch_tokens or TOKENS[device.type]
    with tempfile.TemporaryDirectory() as folder:
        save_model(shape, Path(folder) / "model", options.seed)
        for beam in options.beam or ([1] if quick else [1, 4] if gpu else [1, 5]):
            total = count * (options.requests or (1 if quick else 4)) * options.inputs
            asked = questions(total, shape, beam, options.seed, free=gpu)
            few, some = asked[: max(len(asked) // 16, 4)], asked[: max(len(asked) // 4, 4)]  # what is slow gets fewer
            with ExitStack() as servers:
                queue = max(2 * count * options.inputs, 512)
                server = start_regard(servers, Path(folder), device, precision, options.engine, tokens, queue)
                name = f"Regard, {count} clients"
                clients = partial(Clients, server, ours=True)
                every = clients(count, inputs=options.inputs, processes=processes)
                streaming = clients(count, stream=True, processes=processes)
                warm = asked if gpu else asked[: min(count, 4)]  # all, so that what can be recorded is
                contenders = [
                    Contender(name, "ours", partial(_work, every, asked, warm), OFFLINE_NAME if gpu else ""),
                    Contender(f"{name}, streaming", "beside", partial(_work, streaming, asked, warm)),
                    Contender("Regard, one client", "beside", partial(_work, clients(1), few, few[:4])),
                ]
                if options.engine == "regard":
                    alone = partial(_engine, Path(folder), device, precision, asked, count * options.inputs, tokens)
                    contenders.append(Contender(ENGINE_NAME, "beside", alone))
                if gpu:
                    offline = partial(_offline, Path(folder), device, precision, asked)
                    contenders.append(Contender(OFFLINE_NAME, "beside", offline))
                for peer in peers:
                    title, note = PEERS[peer]
                    run = partial(_peer, servers, peer, Path(folder), precision)
                    work = partial(_late_work, run, count, some, note)
                    contenders.append(Contender(f"{title}, {count} clients", "peer", work))
                words = f"{shape}; {'greedy' if beam == 1 else f'beam {beam}'}, {precision}, engine {options.engine}"
                words += f"; {options.inputs} texts a request" if options.inputs > 1 else ""
                yield Case("greedy" if beam == 1 else f"beam {beam}", "output tokens/s", contenders, words)


def save_model(shape: Shape, folder: Path, seed: int) -> None:
    """A model of random weights that writes texts which differ, and as long as they may be."""
    task = make_task(shape, torch.device("cpu"), seed, dropout=0.0)
    liven(task, shape)
    with torch.no_grad():
        task.model.head.linear.bias[EOS] = -50.0
    System(task, folder).save(folder)


def questions(count: int, shape: Shape, beam: int, seed: int, *, free: bool = False) -> list[Question]:
    """Texts of different lengths, with outputs as long; or, `free`, with those that `max_ratio` leaves room for."""
    more = ROOM if free else 0
    lengths = draw_lengths(count, seed)[0].clip(SHORTEST, LONGEST).tolist()
    words = sentences(count, LONGEST, shape.vocabulary, seed)
    return [
        Question(" ".join(f"w{i}" for i in row[:n]), n + more, beam, free)
        for row, n in zip(words, lengths, strict=True)
    ]


def start_regard(
    servers: ExitStack, folder: Path, device: torch.device, precision: str, engine: str, tokens: int | None = None,
    queue: int = 512,
) -> Server:  # fmt: skip
    """Regard's own, as its command starts it."""
    port, model = free_port(), folder / "model"
    if engine == "ctranslate2":
        task = make_task(SHAPES["tiny"], torch.device("cpu"), 1)  # its place is taken by what was saved
        with quiet():
            model = exported(Job(task, fixed_search(1, 8, precision), [], folder))
    served = {"name": "bench", "folder": str(model), "device": device.type, "engine": engine, "batch_tokens": tokens}
    served["quantization" if engine == "ctranslate2" else "precision"] = precision
    settings = folder / "serve.yaml"  # of which JSON is a part
    settings.write_text(json.dumps({"models": [served], "limits": {"queue": queue, "connections": 2000}}))
    command = [sys.executable, "-m", "regard", "-q", "serve", "--config", str(settings), "--port", str(port)]
    return servers.enter_context(Server(command, port)).wait()


def _offline(folder: Path, device: torch.device, precision: str, asked: Sequence[Question]) -> Work:
    """All texts at once, without a server."""
    system, texts = load(folder / "model", device=device.type), [question.text for question in asked]
    settings = {**asked[0].search, "precision": precision, "batch_tokens": OFFLINE[device.type]}

    def turn() -> float:
        lengths = [len(text.split()) for text in system.generate(texts, **settings)]
        if lengths != [question.length for question in asked]:
            raise ModelError("outputs have other lengths than was asked for: what was timed is another task")
        return float(sum(lengths))

    return Work(turn, lambda: (turn(), turn()))  # the first may be recorded


@dataclass
class _Client:
    """Who hears of one text, and then sends the next."""

    question: Question
    send_next: Callable[[], None]

    def begun(self) -> None:
        """Nothing follows from that."""

    def wants(self, now: float) -> bool:
        """It does not."""
        return False

    def wrote(self, tokens: Sequence[int]) -> None:
        """Nor from that."""

    def done(self, outputs: list[Output]) -> None:
        if len(outputs[0].text.split()) != self.question.length:
            raise ModelError("an output has another length than was asked for: what is timed is another task")
        self.send_next()

    def failed(self, error: RegardError) -> None:
        raise error


def _engine(
    folder: Path, device: torch.device, precision: str, asked: Sequence[Question], count: int, tokens: int | None
) -> Work:
    """So many texts at once, the next as soon as one is over."""
    system = load(folder / "model", device=device.type)
    settings = [system.search_settings(**question.search, precision=precision) for question in asked]
    engine = new_engine(system.task, budget=tokens or settings[0].batch_tokens, precision=precision)

    def turn() -> float:
        left = zip(asked, settings, strict=True)

        def send_next() -> None:
            for question, search in islice(left, 1):
                engine.submit(Input(question.text, search, stream=False), _Client(question, send_next))

        for _ in range(count):
            send_next()
        while engine.turn():
            pass
        return float(sum(question.length for question in asked))

    return Work(turn, turn)


def _peer(servers: ExitStack, name: str, folder: Path, precision: str) -> Server:
    need({"marian": "transformers"}.get(name, name))
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.peers.servers", name, str(folder / "model"), str(port), precision]
    return servers.enter_context(Server(command, port)).wait()


def _late_work(run: Any, count: int, asked: Sequence[Question], note: str) -> Work:
    return _work(Clients(run(), count, ours=False), asked, asked[: min(count, 4)], note)


def _work(clients: Clients, asked: Sequence[Question], warm: Sequence[Question], note: str = "") -> Work:
    """Turns in which all questions are asked once."""
    before = replace(clients, replies=[])
    return Work(lambda: clients.ask(asked), lambda: before.ask(warm), note, clients.latency)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
