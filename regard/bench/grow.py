"""Growth: Regard's training speed and memory as sentences, batches, vocabulary and model grow, one thing at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from regard.bench import train
from regard.bench.measure import GIB, Case, Entry, Memory, Race, Work, clear
from regard.bench.report import Report
from regard.bench.train import Load
from regard.bench.workload import Shape, Window

WHAT = ("length", "batch", "vocabulary", "size")
WORDS = (
    "Regard alone, steps as in the benchmark of training. Length: all sentences have so many tokens, and batches as "
    "many as elsewhere. Batch, vocabulary and size: lengths as in a translation corpus. Peak memory is what torch has "
    "given out on a GPU; on a CPU it is by how much the process grew, which is less exact."
)


@dataclass(frozen=True)
class Plan:
    """What to run: each list is grown along, with everything else as in `train`."""

    train: train.Plan
    shape: Shape
    lengths: Sequence[int]
    budgets: Sequence[int]
    vocabularies: Sequence[int]
    shapes: Sequence[Shape]
    what: Sequence[str] = WHAT

    def points(self) -> list[tuple[str, Load]]:
        """The name and the load of each point."""
        plan = self.train
        found: list[tuple[str, Load]] = []
        if "length" in self.what:
            for length in self.lengths:
                rows = max(plan.budget // length, 1) * plan.batches
                window = Window.even(self.shape.vocabulary, plan.seed, rows, length)
                found.append((f"length {length}", Load(self.shape, plan, window)))
        drawn: list[tuple[str, Shape, int]] = []
        if "batch" in self.what:
            drawn += [(f"batch {budget}", self.shape, budget) for budget in self.budgets]
        if "vocabulary" in self.what:
            shapes = [self.shape.like(vocabulary=size) for size in self.vocabularies]
            drawn += [(f"vocabulary {shape.vocabulary}", shape, plan.budget) for shape in shapes]
        if "size" in self.what:
            drawn += [(f"size {shape.name}", shape, plan.budget) for shape in self.shapes]
        for name, shape, budget in drawn:
            window = Window.draw(shape.vocabulary, plan.seed, plan.window)
            found.append((name, Load(shape, replace(plan, budget=budget), window)))
        return found


def run(plan: Plan, report: Report, race: Race) -> None:
    """A case for each point; what is held in memory at a time is one model."""
    points, before = plan.points(), plan.shape
    if points and plan.train.device.type == "cpu":
        train.regard_work(points[0][1], plan.train.precision).warm()  # libraries take their memory now, not at a point
    for name, load in points:
        if load.shape.like(vocabulary=0) != before.like(vocabulary=0):
            torch.compiler.reset()  # torch keeps but a few compilations of one function
            before = load.shape
        case = Case(name, train.UNIT, f"{load.shape.words}; batches of {load.plan.budget:,} tokens")
        report.cases.append(case)
        race.run(case, [Entry(f"Regard {load.plan.precision}", "ours", lambda load=load: measured(load))])  # type: ignore[misc]


def measured(load: Load) -> Work:
    """Regard's updates; on a CPU with the peak of one turn beside, which a GPU counts by itself."""
    clear(load.plan.device)
    memory = Memory(load.plan.device)
    work = train.regard_work(load, load.plan.precision)
    if load.plan.device.type == "cuda":
        return work
    work.warm()
    memory.settled()
    memory.watch(work.turn)
    extra = work.extra
    return replace(work, warm=lambda: None, extra=lambda rate: {**extra(rate), "peak GiB": memory.most / GIB})
