"""Start-up: how long until something happens, each time in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.peers import START_UP, add_peers
from benchmarks.peers.base import Peer
from benchmarks.peers.ours import Regard
from benchmarks.peers.plain import Torch
from benchmarks.race import Case, Contender, Work
from benchmarks.workload import SHAPES, Shape
from regard.errors import ModelError

CASES = ("import", "--help", "first translation")
TEXT = " ".join(f"w{i}" for i in range(10, 30))
WORKLOAD = (
    "Each turn is a new process, timed from its start to its end, on files that have been read before. A first "
    "translation loads a small saved model with random weights and writes at most 24 tokens, greedily, for one line of "
    "standard input, by `regard generate` and `python -m joeynmt translate`. HF Marian is given token ids, so it loads "
    "no tokenizer."
)


def add_options(parser: ArgumentParser, command: str) -> None:
    """The options of start-up."""
    parser.add_argument("--model", choices=SHAPES, help="size of model")
    add_peers(parser, START_UP)


def cases(options: Namespace, device: torch.device) -> Iterator[Case]:
    """Import, help, first translation."""
    shape = SHAPES[options.model or ("tiny" if options.quick else "small")]
    peers = [START_UP[name] for name in options.peers or START_UP if name != "none"]
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            beside = [Torch("torch alone", role="beside")] if case == "import" and peers else []
            contenders = [
                Contender(peer.title, peer.role, partial(_work, peer, case, shape, Path(folder) / peer.title))
                for peer in (Regard(), *beside, *peers)
            ]
            yield Case(case, "seconds", contenders, more=False)


def _work(peer: Peer, case: str, shape: Shape, folder: Path) -> Work:
    """A turn is one process of Python."""
    command, threads = [sys.executable, *peer.start_up(case, shape, folder)], str(torch.get_num_threads())
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}

    def turn() -> float:
        done = subprocess.run(command, input=TEXT, env=environment, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            raise ModelError(f"{peer.title} exited with {done.returncode}: {' '.join(last)}")
        return 1.0

    return Work(turn, turn, warm_again=False)
