"""Regard's own turns: an update as the trainer makes it, a search as the writing task makes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.bench.workload import DROPOUT, SMOOTHING, Shape
from regard.config import parse
from regard.data.batches import Batch
from regard.data.tokens import BOS, MARKS, MASK, PAD, SEP, UNK, Symbols
from regard.models.model import EncoderDecoder
from regard.system import new_task
from regard.tasks.writing import Writing
from regard.training.objectives import make_objective
from regard.training.update import Updater

Update = Callable[[Batch], Tensor]  # gives the loss, a mean per token, still on its device
Decode = Callable[[Sequence[Sequence[int]]], list[list[int]]]


def make_task(shape: Shape, device: torch.device, seed: int, dropout: float = DROPOUT, **training: Any) -> Writing:
    """A task with random weights, over words that are called by their numbers."""
    words = Symbols("word", [f"w{i}" for i in range(len(MARKS), shape.vocabulary)])
    fixed = {"learning_rate": 1e-4, "warmup": 0, "schedule": "constant", "label_smoothing": SMOOTHING, "clip": 1.0}
    settings = {
        "model": shape.settings(dropout),
        "tokens": {"kind": "word", "size": shape.vocabulary},
        "training": {**fixed, "device": device.type, "tensorboard": False, **training},
    }
    torch.manual_seed(seed)
    task = new_task(parse(settings, "the benchmark's settings"), (words, words), device)
    assert isinstance(task, Writing), "the benchmarks write"
    return task


def make_update(task: Writing) -> tuple[Callable[[Batch], Batch], Update]:
    """The trainer's own update over one batch, and what it does to a batch ahead of it."""
    settings, model = task.config.training, task.model
    assert isinstance(model, EncoderDecoder), "the benchmarks train an encoder and a decoder"
    objective = make_objective(model, settings.objective, settings.label_smoothing, task.first)
    updater = Updater(model, objective, settings, task.device)

    def update(batch: Batch) -> Tensor:
        loss = updater([batch], step=1, done=0.0).loss
        return loss / batch.tokens

    return updater.prepare, update


def make_decode(task: Writing, precision: str, *, beam: int, length: int) -> Decode:
    """Search for outputs of exactly `length` tokens each, by the task's own search."""
    settings = parse({"search": {"beam": beam, "min_length": length, "max_length": length, "precision": precision}})

    def decode(sources: Sequence[Sequence[int]]) -> list[list[int]]:
        return [found[0].tokens for found in task.search(sources, settings.search)]

    return decode


def named_weights(task: Writing) -> dict[str, Tensor]:
    """All weights by their parts' names, with the matrices of queries, keys and values apart."""
    found: dict[str, Tensor] = {}
    for name, weight in task.model.state_dict().items():
        if ".inputs." in name:
            for word, part in zip(("query", "key", "value"), weight.chunk(3), strict=True):
                found[name.replace(".inputs.", f".{word}.")] = part
        else:
            found[name] = weight
    return found


def liven(task: Writing, shape: Shape) -> None:
    """Make a Transformer of random weights write texts that differ from source to source and from step to step.

    As they are drawn, such weights write one token over and over whatever the source, and two programs that agree on
    that agree on little. So attention is made sharper, what it and the feed-forward parts add is made less, the last
    feed-forward part does most of the choosing, and logits are large, so that different roundings seldom change a
    choice. Marks, which Regard never writes, get no probability worth the name: peers then need no rule against them.
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
