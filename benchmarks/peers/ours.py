"""Regard's side: an update as the trainer makes it, a search as the writing task makes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.base import Batches, Decode, Job, Load, Peer, Step
from benchmarks.race import Role
from benchmarks.workload import DROPOUT, SMOOTHING, Shape, Tokens
from regard.config import parse
from regard.data.batch import Batch
from regard.data.marks import BOS, MARKS, MASK, PAD, SEP, UNK
from regard.data.sides import SHARED, Sides
from regard.data.tokenizers.symbols import Symbols
from regard.loading import new_task
from regard.memory import retain_memory
from regard.models.model import EncoderDecoder
from regard.search.limits import Hypothesis
from regard.search_settings import Search
from regard.system import System
from regard.tasks.generating import TextGeneration
from regard.training.objectives import make_objective
from regard.training.update import Updater


@dataclass(frozen=True)
class Regard(Peer):
    """Regard as its trainer and its tasks run it: they too have freed memory retained."""

    title: str = "Regard"
    role: Role = "ours"
    packed: bool = True
    every_precision: bool = True
    inside: Callable[[], AbstractContextManager[None]] = retain_memory

    def training(self, load: Load) -> tuple[Batches, Step]:
        seed, settings = load.window.seed, {"batch_tokens": load.budget, "precision": load.precision}
        task = make_task(load.shape, load.device, seed, training=settings)
        prepare, update = make_update(task)
        return lambda sources, targets: prepare(task.batch(sources, targets)), update

    def decoding(self, job: Job) -> tuple[Decode, str]:
        return make_decode(job.task, job), ""

    def start_up(self, case: str, shape: Shape, folder: Path) -> list[str]:
        if case == "import":
            return ["-c", "import regard"]
        if case == "--help":
            return ["-m", "regard", "--help"]
        System(make_task(shape, torch.device("cpu"), 1), folder).save(folder)
        return ["-m", "regard", "generate", str(folder), "--beam", "1", "--set", "max_length=24"]


def make_task(
    shape: Shape, device: torch.device, seed: int, dropout: float = DROPOUT, training: dict[str, Any] | None = None
) -> TextGeneration:
    """A task with random weights, over words that are called by their numbers."""
    words = Symbols("word", [f"w{i}" for i in range(len(MARKS), shape.vocabulary)])
    fixed = {"learning_rate": 1e-4, "warmup": 0, "schedule": "constant", "label_smoothing": SMOOTHING, "clip": 1.0}
    settings = {
        "model": shape.settings(dropout),
        "tokens": {"kind": "word", "size": shape.vocabulary},
        "training": {**fixed, "device": device.type, "tensorboard": False, **(training or {})},
    }
    torch.manual_seed(seed)
    sides = Sides.of(parse(settings, "the benchmark's settings"))
    sides.use({SHARED: words})
    task = new_task(sides, device)
    assert isinstance(task, TextGeneration), "the benchmarks write"
    return task


def make_update(task: TextGeneration) -> tuple[Callable[[Batch], Batch], Callable[[Batch], Tensor]]:
    """What the trainer does to a batch ahead of its update, and the update, which returns the loss per token."""
    settings, model = task.config.training, task.model
    assert isinstance(model, EncoderDecoder), "the benchmarks train an encoder and a decoder"
    objective = make_objective(model, settings.objective, settings.label_smoothing, task.first)
    updater = Updater(model, objective, settings, task.device)
    return updater.prepare, lambda batch: updater([batch], step=1, done=0.0).loss / batch.tokens


def fixed_search(beam: int, length: int, precision: str) -> Search:
    """Search for outputs of exactly `length` tokens."""
    limits = {"beam": beam, "min_length": length, "max_length": length}
    return parse({"search": {**limits, "precision": precision}}).search


def make_decode(task: TextGeneration, job: Job) -> Decode:
    """The search of a task, which need not be the job's own, in batches as it makes them."""
    search = job.search

    def decode(sources: Tokens) -> list[Hypothesis]:
        if job.at_once:
            return [best[0] for best in task.search(sources, search)]
        found: dict[int, Hypothesis] = {}
        for group in task.groups(sources, search.batch_tokens // search.beam):
            some = task.search([sources[i] for i in group], search)
            found |= {i: best[0] for i, best in zip(group, some, strict=True)}
        return [found[i] for i in range(len(sources))]

    return decode


def liven(task: TextGeneration, shape: Shape) -> None:
    """Make a Transformer of random weights write texts that differ from source to source and from step to step.

    As they are drawn, such weights write one token over and over whatever the source, and two programs that agree on
    that agree on little. So attention is made sharper, what it and the feed-forward layers add is made less, the last
    feed-forward layer does most of the choosing, and logits are large, so that different roundings seldom change a
    choice. Special tokens, which Regard never writes, get almost no probability: peers then need no rule against them.
    """
    last = f"decoder.blocks.{shape.layers - 1}."
    middle = math.sqrt(shape.d_model / (math.pi * (shape.d_model + shape.d_ff)))  # the mean of relu(inner(x))
    with torch.no_grad():
        for name, weight in task.model.named_parameters():
            if name.endswith("attention.inputs.weight"):
                weight[: shape.d_model].mul_(3.0)  # of queries
            elif name.endswith("attention.output.weight"):
                weight.mul_(0.4)
            elif name.endswith("feed_forward.outer.weight"):
                weight.mul_(16.0 if name.startswith(last) else 0.25)
        weights = task.model.state_dict()
        weights[f"{last}feed_forward.outer.bias"].copy_(-middle * weights[f"{last}feed_forward.outer.weight"].sum(1))
        weights[f"{last}around_feed_forward.norm.weight"].mul_(4.0)
        weights["head.linear.bias"][[PAD, UNK, BOS, SEP, MASK]] = -1e4
