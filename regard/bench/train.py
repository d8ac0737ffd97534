"""Training speed: updates over batches whose shapes vary as in life, Regard and its peers turn by turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.bench.joey import joey_batch, joey_step
from regard.bench.marian import marian_step
from regard.bench.measure import Case, Entry, Race, Work
from regard.bench.operations import floor_seconds, operations
from regard.bench.plain import torch_step
from regard.bench.regard_side import make_task, make_update
from regard.bench.report import Report
from regard.bench.workload import DROPOUT, LONGEST, MEAN, SIGMA, SMOOTHING, STRETCH, WINDOW, Shape, Window, pad
from regard.data.batches import Index
from regard.errors import TrainingError
from regard.memory import retain_memory
from regard.models.build import count_parameters
from regard.parts import Model

UNIT = "target tokens/s"
WORDS = (
    f"A step is forward, loss with label smoothing {SMOOTHING}, backward, clipping, AdamW (fused) and clearing of "
    f"gradients, with dropout {DROPOUT} everywhere but in attention. Source lengths are log-normal with mean {MEAN:g} "
    f"(sigma {SIGMA}), targets a log-normal stretch of them (sigma {STRETCH}), both cut to {LONGEST}. Counted are real "
    "target tokens with their closing mark. Each batch has so many tokens a side at most: Regard's hold no padding, "
    "and for those who pad, padding counts. Batches are cut from sentences sorted by length, for those who pad in the "
    "way of two that pads less (by target and source, or by the longer side), and taken at even distances; who is "
    "called unsorted takes sentences as they come, as the trainer of transformers does unless it is told otherwise. "
    "Making batches is not timed; bringing them to the device is. On a CPU a turn begins with a step that is not "
    "timed, and Regard, as in its trainer, keeps memory that is free at hand; the others do what they do by themselves."
)
NAMES = {
    "transformer": {"marian": "HF Marian", "marian-compiled": "HF Marian, compiled",
                    "marian-unsorted": "HF Marian, unsorted",
                    "marian-unsorted-compiled": "HF Marian, unsorted, compiled", "torch": "nn.Transformer",
                    "torch-compiled": "nn.Transformer, compiled", "joeynmt": "JoeyNMT"},
    "lstm": {"torch": "plain loop in torch", "joeynmt": "JoeyNMT"},
}  # fmt: skip
NOTES = {
    "marian": "MarianMTModel with SDPA",
    "marian-compiled": "forward and loss under torch.compile(dynamic=True)",
    "marian-unsorted": "MarianMTModel with SDPA",
    "marian-unsorted-compiled": "forward and loss under torch.compile(dynamic=True)",
    "torch": "",
    "torch-compiled": "each layer, and the loss, under torch.compile(dynamic=True)",
    "joeynmt": "Model(return_type='loss') with its own loss and batch, unpatched; AdamW and clipping are torch's; its "
    "trainer's loop around the step is left out",
}


@dataclass(frozen=True)
class Plan:
    """What to run."""

    shapes: Sequence[Shape]
    device: torch.device
    peers: Sequence[str] | None  # None: the usual ones of the device
    precision: str
    beside: Sequence[str]  # other precisions of Regard's to show
    budget: int
    batches: int
    seed: int = 1
    peak: float | None = None  # operations a second
    bandwidth: float | None = None  # bytes a second
    window: int = WINDOW  # sentences that batches are cut from
    usual: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by kind of model

    def peers_of(self, shape: Shape) -> list[str]:
        wanted = self.usual.get(shape.kind, ()) if self.peers is None else self.peers
        return [name for name in wanted if name in NAMES[shape.kind]]


@dataclass(frozen=True)
class Load:
    """The batches of one shape, as lists of tokens."""

    shape: Shape
    plan: Plan
    window: Window

    @cached_property
    def packed(self) -> list[Index]:
        return self.window.packed(self.plan.budget, self.plan.batches)

    @cached_property
    def padded(self) -> list[Index]:
        return self.window.padded(self.plan.budget, self.plan.batches)

    @cached_property
    def unsorted(self) -> list[Index]:
        return self.window.unsorted(self.plan.budget, self.plan.batches)

    def tokens(self, packs: Sequence[Index]) -> int:
        """Real target tokens, with closing marks."""
        return sum(int((self.window.target[x] + 1).sum()) for x in packs)

    def extra(self, packs: Sequence[Index]) -> Callable[[float], dict[str, float]]:
        """What a rate of tokens a second means: time of a step, share of the peak, distance from the floor."""
        tokens, plan = self.tokens(packs), self.plan
        lengths = [(self.window.source[x] + 1, self.window.target[x] + 1) for x in packs]
        count = sum(operations(self.shape, *both) for both in lengths)
        least = None
        if plan.peak and plan.bandwidth:
            parameters = count_parameters(Model(**self.shape.settings()), self.shape.vocabulary)
            least = sum(floor_seconds(self.shape, *both, parameters, plan.peak, plan.bandwidth) for both in lengths)

        def found(rate: float) -> dict[str, float]:
            seconds = tokens / rate
            values = {"ms a step": 1000 * seconds / len(packs)}
            if plan.peak:
                values["% of peak"] = 100 * count / seconds / plan.peak
            if least:
                values["times the floor"] = seconds / least
            return values

        return found


def run(plan: Plan, report: Report, race: Race) -> None:
    """A case for each shape."""
    for shape in plan.shapes:
        case = Case(shape.name, UNIT, words(shape, plan))
        report.cases.append(case)
        race.run(case, entries(plan, shape))
        torch.compiler.reset()


def words(shape: Shape, plan: Plan) -> str:
    """The workload of a case."""
    cut = f"{plan.batches} batches of {plan.budget:,} tokens out of {plan.window:,} sentences"
    return f"{shape.words}; {cut}"


def entries(plan: Plan, shape: Shape) -> list[Entry]:
    """Regard, its peers, and Regard in other precisions."""
    load = Load(shape, plan, Window.draw(shape.vocabulary, plan.seed, plan.window))
    found = [Entry(f"Regard {plan.precision}", "ours", lambda: regard_work(load, plan.precision))]
    for name in plan.peers_of(shape):
        found.append(Entry(NAMES[shape.kind][name], "peer", lambda name=name: peer_work(load, name)))  # type: ignore[misc]
    for precision in plan.beside:
        found.append(Entry(f"Regard {precision}", "beside", lambda p=precision: regard_work(load, p)))  # type: ignore[misc]
    return found


def regard_work(load: Load, precision: str) -> Work:
    """Regard's updates."""
    plan = load.plan
    task = make_task(load.shape, plan.device, plan.seed, precision=precision, batch_tokens=plan.budget)
    prepare, update = make_update(task)
    batches = [prepare(task.batch(*load.window.pairs(x))) for x in load.packed]
    return replace(work(update, batches, load, load.packed), inside=retain_memory)  # as in the trainer


def peer_work(load: Load, name: str) -> Work:
    """A peer's steps over the same window of sentences."""
    plan, shape = load.plan, load.shape
    torch.manual_seed(plan.seed)
    batches: list[Any]
    packs = load.unsorted if "unsorted" in name else load.padded
    if name == "joeynmt":
        step = joey_step(shape, plan.device, plan.precision)
        batches = [joey_batch(*load.window.pairs(x), plan.device) for x in packs]
    else:
        make = torch_step if name.startswith("torch") else marian_step
        step = make(shape, plan.device, plan.precision, compiled=name.endswith("-compiled"))
        batches = [pad(*load.window.pairs(x)) for x in packs]
        batches = [batch.pinned() for batch in batches] if plan.device.type == "cuda" else batches
        # What is compiled on two sides of one width is compiled again as soon as they differ.
        batches.sort(key=lambda batch: batch.source.shape[1] == batch.inputs.shape[1])
    slots = sum(len(x) * int(load.window.target[x].max() + 1) for x in packs)
    padding = f"{100 - 100 * load.tokens(packs) / slots:.1f} % of its target positions are padding"
    return work(step, batches, load, packs, "; ".join(filter(None, (NOTES[name], padding))))


def work(
    step: Callable[[Any], Tensor], batches: Sequence[Any], load: Load, packs: Sequence[Index], note: str = ""
) -> Work:
    """Turns that go through all batches once. A GPU is warm after two of them, a CPU after a step."""
    tokens = load.tokens(packs)

    def turn(some: Sequence[Any] = batches) -> float:
        loss = torch.zeros(())
        for batch in some:
            loss = step(batch)
        if not math.isfinite(float(loss)):
            raise TrainingError(f"the loss became {float(loss)}: what was timed is no training")
        return float(tokens)

    warm = [*batches, *batches] if load.plan.device.type == "cuda" else batches[:1]
    return Work(turn, lambda: turn(warm), note, load.extra(packs), lead=lambda: turn(batches[:1]))
