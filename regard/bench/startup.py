"""Start-up: how long until something happens, each time in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from regard.bench import joey
from regard.bench.marian import make_marian
from regard.bench.measure import Case, Entry, Race, Role, Work
from regard.bench.peers import need, quiet
from regard.bench.regard_side import make_task
from regard.bench.report import Report
from regard.bench.workload import Shape
from regard.errors import ModelError
from regard.system import System

TEXT = " ".join(f"w{i}" for i in range(10, 30))
WORDS = (
    "Each turn is a new process, timed from its start to its end, on files that have been read before. A first "
    "translation loads a small saved model with random weights and writes 24 tokens at most, greedily, for one line. "
    "HF Marian is given token numbers, so it loads no tokenizer."
)
MARIAN = """
import sys, torch
from transformers import MarianMTModel
model = MarianMTModel.from_pretrained(sys.argv[1])
print(model.generate(torch.tensor([[*range(10, 30), 3]]), num_beams=1, max_new_tokens=24))
"""
REGARD_NOTE = "a first translation is `regard generate` on a line of standard input"
JOEY_NOTE = "a first translation is `python -m joeynmt translate` on a line of standard input"


@dataclass(frozen=True)
class Plan:
    """What to run."""

    shape: Shape
    peers: Sequence[str]
    seed: int = 1


def run(plan: Plan, report: Report, race: Race) -> None:
    """Import, help, first translation."""
    peers = plan.peers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        imports = [python("Regard", "ours", "import regard")]
        imports += [python("torch alone", "beside", "import torch")] if peers else []
        imports += (
            [python("HF transformers", "peer", "import transformers", "transformers")] if "marian" in peers else []
        )
        imports += [python("JoeyNMT", "peer", "import joeynmt.model", "joeynmt")] if "joeynmt" in peers else []
        helps = [entry("Regard", "ours", lambda: [sys.executable, "-m", "regard", "--help"])]
        if "joeynmt" in peers:
            helps.append(entry("JoeyNMT", "peer", lambda: _with("joeynmt", "-m", "joeynmt", "--help")))
        firsts = [entry("Regard", "ours", lambda: save_regard(plan, folder / "regard"), REGARD_NOTE, TEXT)]
        if "marian" in peers:
            firsts.append(entry("HF Marian", "peer", lambda: save_marian(plan, folder / "marian")))
        if "joeynmt" in peers:
            firsts.append(entry("JoeyNMT", "peer", lambda: save_joey(plan, folder / "joeynmt"), JOEY_NOTE, TEXT))
        for title, entries in (("import", imports), ("--help", helps), ("first translation", firsts)):
            case = Case(title, "seconds", more=False)
            report.cases.append(case)
            race.run(case, entries)


def python(name: str, role: Role, code: str, package: str = "") -> Entry:
    """A line of Python."""
    return entry(name, role, lambda: _with(package, "-c", code))


def _with(package: str, *arguments: str) -> list[str]:
    """A call of Python, once the package it needs is known to be there."""
    if package:
        need(package)
    return [sys.executable, *arguments]


def entry(name: str, role: Role, make: Callable[[], list[str]], note: str = "", given: str = "") -> Entry:
    """A contestant whose turn is one process; `make` gives its command, `given` is its standard input."""

    def ready() -> Work:
        command = make()
        threads = str(torch.get_num_threads())
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}

        def turn() -> float:
            done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True)
            if done.returncode:
                last = done.stderr.strip().splitlines()[-1:]
                raise ModelError(f"{name} left with {done.returncode}: {' '.join(last)}")
            return 1.0

        return Work(turn, turn, note)

    return Entry(name, role, ready)


def save_regard(plan: Plan, folder: Path) -> list[str]:
    task = make_task(plan.shape, torch.device("cpu"), plan.seed)
    System(task, folder).save(folder)
    return [sys.executable, "-m", "regard", "generate", str(folder), "--beam", "1", "--set", "max_length=24"]


def save_marian(plan: Plan, folder: Path) -> list[str]:
    with quiet():
        make_marian(plan.shape).save_pretrained(folder)
    return [sys.executable, "-c", MARIAN, str(folder)]


def save_joey(plan: Plan, folder: Path) -> list[str]:
    """A model folder as its trainer leaves one."""
    need("joeynmt.prediction")
    folder.mkdir()
    model = joey.make_joey(plan.shape)
    torch.save({"model_state": model.state_dict()}, folder / "best.ckpt")
    joey.vocabulary(plan.shape.vocabulary).to_file(folder / "words.txt")
    side = {"level": "word", "voc_file": str(folder / "words.txt"), "max_length": 256}
    config = {
        "name": "small", "model_dir": str(folder), "use_cuda": False,
        "data": {"dataset_type": "plain", "test": "none", "src": {"lang": "a", **side}, "trg": {"lang": "b", **side}},
        "testing": {"load_model": str(folder / "best.ckpt"), "beam_size": 1, "max_output_length": 24},
        "training": {"batch_size": 1},
        "model": joey.settings(plan.shape),
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return [sys.executable, "-m", "joeynmt", "translate", str(folder / "config.yaml")]
