"""Small models in folders, and a server of them as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
import yaml

from regard.config import merge, parse
from regard.data.tokenizers.symbols import Symbols
from regard.system import System
from regard.tasks.task import Task
from tests.toy import WORDS, untrained

TOKENS = Symbols("word", [*WORDS, *(word.upper() for word in WORDS)])
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 16}
TEXT: dict[str, Any] = {
    "run": ".", "tokens": {"kind": "word"}, "model": {"d_model": 16, "encoder": TRANSFORMER, "decoder": TRANSFORMER},
    "search": {"beam": 2, "max_length": 40, "max_ratio": 30.0},
}  # fmt: skip
PICTURES = merge(TEXT, {"source": {"kind": "image", "size": 16}, "model": {"encoder": {"kind": "stem"}}})
PICTURES = merge(PICTURES, {"model": {"encoder": {"stem": {"kind": "convolution", "halvings": 2, "channels": 2}}}})
PROMPTED = merge(TEXT, {"source": {"kind": "none"}, "model": {"encoder": {"kind": "none"}}})
PAINTING = merge(TEXT, {
    "target": {"kind": "image", "size": 16, "halvings": 2, "codes": 24, "channels": 4, "code_width": 4},
})  # fmt: skip


def with_codebook(task: Task) -> Task:
    """A task whose outputs are pictures gets codes of random weights."""
    if task.target.pixels:
        task.target.codebook = task.target._new().eval()  # type: ignore[attr-defined]
    return task


def save_model(folder: Path, settings: dict[str, Any], seed: int = 1) -> System:
    """A model of random weights."""
    torch.manual_seed(seed)
    system = System(with_codebook(untrained(parse(settings), TOKENS)), folder)
    system.save(folder, force=True)
    return system


@dataclass
class Running:
    """A server, and a client of it."""

    process: subprocess.Popen[str]
    client: httpx.Client
    log: Path

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.client.post(path, json=body, **more) if body is not None else self.client.post(path, **more)

    def events(self) -> list[dict[str, Any]]:
        """What the log says."""
        return [yaml.safe_load(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def workers(self) -> dict[str, int]:
        """The last process of each model, by name."""
        return {event["model"]: event["pid"] for event in self.events() if event["event"] == "loaded"}

    def hammer(self, count: int, clients: int = 8) -> None:
        """So many requests of different kinds, of several clients at once."""

        def ask(first: int) -> None:
            with httpx.Client(base_url=self.client.base_url, timeout=60.0) as client:
                for number in range(first, count, clients):
                    text = " ".join(WORDS[(number + i) % len(WORDS)] for i in range(1 + number % 5))
                    body = {"input": text, "search": {"beam": 1 + number % 3}, "tokens": number % 7 == 0}
                    body["stream"] = number % 11 == 0
                    response = client.post("/v1/generate", json=body)
                    assert response.status_code == 200, response.text

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(ask, range(clients)))

    def metric(self, name: str) -> float:
        """The value of one, of all labels together."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}(\{{|\s)", line))


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def running(folder: Path, *arguments: str, **settings: Any) -> Iterator[Running]:
    """`regard serve`, at any port that is free, until the block ends."""
    config, log = folder / "serve.yaml", folder / "serve.log"
    config.write_text(yaml.safe_dump({"port": 0, **settings}))
    command = [sys.executable, "-m", "regard", "serve", "--config", str(config), *arguments]
    (folder / "tmp").mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://[\w.:]+\d", line)
        assert found, log.read_text()
        with httpx.Client(base_url=found[0], timeout=30.0) as client:
            yield Running(process, client, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()
