"""Regard's server at twice the load that it can take: what it answers, what memory it takes, how soon it recovers.

Capacity is measured first, by clients that wait for their answers. Then requests come at random times, independent of
answers (a Poisson process), for so many minutes; each is answered, or refused with 429. Then the load ends, and single
requests show when answers come as quickly as before it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.base import need
from benchmarks.serve import Clients, Question, Server, questions, save_model, start_regard
from benchmarks.workload import SHAPES

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of overload."""
    parser.add_argument("--model", choices=SHAPES, default="small", help="size of model")
    parser.add_argument("--minutes", type=float, default=10.0, help="of overload")
    parser.add_argument("--times", type=float, default=2.0, help="the capacity")
    parser.add_argument("--clients", type=int, default=64, help="that capacity is measured with")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--precision", choices=("float32", "bfloat16", "int8"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=1)


@dataclass
class Storm:
    """What came of requests that waited for nobody."""

    statuses: Counter[int | str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of answers
    refusals: list[float] = field(default_factory=list)  # seconds until a 429
    without_advice: int = 0  # a 429 that does not say when to come again
    memory: list[int] = field(default_factory=list)  # bytes of the server and its workers, a second apart


def run(options: Namespace) -> dict[str, Any]:
    """Measure, overload, watch, and print what was found."""
    shape = SHAPES[options.model]
    asked = questions(512, shape, options.beam, options.seed)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        save_model(shape, Path(folder) / "model", options.seed)
        server = start_regard(servers, Path(folder), torch.device(options.device), options.precision, "regard")
        Clients(server, options.clients, ours=True).ask(asked[: options.clients])
        began = time.perf_counter()
        Clients(server, options.clients, ours=True).ask(asked)
        capacity = len(asked) / (time.perf_counter() - began)
        idle = alone(server, asked)
        print(f"capacity {capacity:.1f} requests/s with {options.clients} clients", flush=True)
        storm = asyncio.run(_storm(server, asked, capacity * options.times, options.minutes * 60, options.seed))
        recovered = recovery(server, asked[0], idle)
        found = {
            "command": options.line, "capacity": capacity, "seconds alone": idle, "statuses": dict(storm.statuses),
            "429 without Retry-After": storm.without_advice,
            "answered a second": storm.statuses[200] / (options.minutes * 60),
            **{f"answers p{n} s": _percentile(storm.seconds, n) for n in (50, 95, 99)},
            "refusals p99 s": _percentile(storm.refusals, 99), "recovered after s": recovered,
            "memory MiB": [x >> 20 for x in storm.memory[:: max(len(storm.memory) // 20, 1)]],
        }  # fmt: skip
    print(json.dumps(found, indent=1))
    return found


def alone(server: Server, asked: Sequence[Question]) -> float:
    """The median time of an answer when nobody else asks."""
    one = Clients(server, 1, ours=True)
    one.ask(asked[:8])
    return float(np.median([reply.seconds for reply in one.replies]))


async def _storm(server: Server, asked: Sequence[Question], rate: float, seconds: float, seed: int) -> Storm:
    httpx, draw, storm, tasks = need("httpx"), random.Random(seed), Storm(), set[asyncio.Task[None]]()
    limits = httpx.Limits(max_connections=2000, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=server.address, timeout=300.0, limits=limits) as client:

        async def one(question: Question) -> None:
            began = time.perf_counter()
            try:
                response = await client.post("/v1/generate", json=question.body(stream=False))
            except httpx.HTTPError as error:
                storm.statuses[type(error).__name__] += 1
                return
            storm.statuses[response.status_code] += 1
            took = time.perf_counter() - began
            (storm.refusals if response.status_code == 429 else storm.seconds).append(took)
            storm.without_advice += response.status_code == 429 and "retry-after" not in response.headers

        async def watch() -> None:
            while True:
                storm.memory.append(resident(server))
                await asyncio.sleep(1.0)

        watcher, until = asyncio.create_task(watch()), time.perf_counter() + seconds
        due = time.perf_counter()
        for question in cycle(asked):
            due += draw.expovariate(rate)
            if due > until:
                break
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            task = asyncio.create_task(one(question))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        watcher.cancel()
    return storm


def recovery(server: Server, question: Question, idle: float) -> float:
    """Seconds until an answer takes no more than twice as long as without load."""
    began = time.perf_counter()
    while True:
        one = Clients(server, 1, ours=True)
        one.ask([question])
        if one.replies[0].seconds <= 2 * idle:
            return time.perf_counter() - began


def resident(server: Server) -> int:
    """Bytes in memory of the server's process and all that come of it; 0 where the system does not tell."""
    assert server.process is not None, "it was started"
    first = server.process.pid
    parents, sizes = dict[int, int](), dict[int, int]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            sizes[int(folder.name)] = int((folder / "statm").read_text().split()[1]) * PAGE
        except (OSError, ValueError, IndexError):  # it ended meanwhile
            continue

    def belongs(process: int) -> bool:
        while process in parents and process != first:
            process = parents[process]
        return process == first

    return sum(size for process, size in sizes.items() if belongs(process))


def _percentile(values: Sequence[float], share: int) -> float:
    return float(np.percentile(values, share)) if values else float("nan")
