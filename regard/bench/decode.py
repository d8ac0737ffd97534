"""Decoding speed: outputs of one length from sources of one length, with the same weights on every side."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from regard.bench.ctranslate import Translator
from regard.bench.marian import give_weights, make_marian, marian_decode
from regard.bench.measure import Case, Entry, NotThereError, Race, Work
from regard.bench.peers import need, quiet
from regard.bench.regard_side import Decode, liven, make_decode, make_task
from regard.bench.report import Report
from regard.bench.workload import Shape, sentences
from regard.errors import ModelError
from regard.exchange.ct2_engine import load_engine
from regard.exchange.ctranslate2 import Report as Export
from regard.exchange.ctranslate2 import export
from regard.memory import kept
from regard.system import System
from regard.tasks.writing import Writing

CHECKED = 16  # outputs that are compared
SAME = "% same"
WORDS = (
    "Weights are random, and the same on every side. The closing mark is forbidden until the length is reached, and "
    "then all else is; it takes a step, and is not counted among output tokens. Tokens go in and come out as numbers. "
    "On a CPU a turn begins with a call that is not timed, and Regard, as where it writes files, keeps memory that is "
    "free at hand. "
    f"'{SAME}' is the share of outputs that equal Regard's in float32 token by token, of the first {CHECKED} or fewer."
)
NAMES = {"marian": "HF Marian", "marian-static": "HF Marian, static cache"}
ENGINES = {  # by `same`
    True: "load_engine(exact=True); every output is cut off here, and what is cut off is scored once more, with its "
    "closing mark",
    False: "--engine ctranslate2; it writes no closing mark either",
}


@dataclass(frozen=True)
class Plan:
    """What to run."""

    shape: Shape
    device: torch.device
    peers: Sequence[str]
    precision: str
    beside: Sequence[str]  # other precisions, of Regard and of CTranslate2
    batches: Sequence[int]
    beams: Sequence[int]
    length: int
    calls: int  # batches decoded in a turn; of single sentences four times as many
    seed: int = 1

    def sources(self, batch: int) -> list[list[list[int]]]:
        """Batches of sources for one turn."""
        calls = self.calls * (4 if batch == 1 else 1)
        found = sentences(batch * calls, self.length, self.shape.vocabulary, self.seed)
        return [found[i : i + batch] for i in range(0, len(found), batch)]


class Sides:
    """One set of weights, in Regard, in Marian and exported to `folder`; and what Regard writes with it in float32."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.exports: dict[str, Export] = {}
        self.references: dict[tuple[int, int], list[list[int]]] = {}

    @cached_property
    def task(self) -> Writing:
        task = make_task(self.plan.shape, self.plan.device, self.plan.seed, dropout=0.0)
        liven(task, self.plan.shape)
        return task

    @cached_property
    def marian(self) -> Any:
        model = make_marian(self.plan.shape, dropout=0.0).to(self.plan.device)
        give_weights(self.task, model, self.plan.shape)
        return model

    def exported(self, precision: str) -> Export:
        """What was exported for CTranslate2, as `regard export` does it."""
        need("ctranslate2")
        if precision not in self.exports:
            with quiet():
                folder = self.folder / precision
                self.exports[precision] = export(System(self.task, self.folder), folder, precision, lines=1)
        return self.exports[precision]

    def reference(self, batch: int, beam: int) -> list[list[int]]:
        """Regard's outputs in float32, at most `CHECKED`."""
        if (batch, beam) not in self.references:
            some = [x for group in self.plan.sources(batch) for x in group][:CHECKED]
            decode = make_decode(self.task, "float32", beam=beam, length=self.plan.length)
            self.references[batch, beam] = decode(some)
        return self.references[batch, beam]


def run(plan: Plan, report: Report, race: Race) -> None:
    """A case for each size of batch and each beam."""
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(plan, Path(folder))
        for batch in plan.batches:
            for beam in plan.beams:
                search = "greedy" if beam == 1 else f"beam {beam}"
                words = (
                    f"{plan.shape.words}; {batch} at once, {plan.length} tokens and the closing mark in, as many out"
                )
                case = Case(f"batch {batch}, {search}", "output tokens/s", words)
                report.cases.append(case)
                case.notes += check(sides, batch, beam) if "marian" in plan.peers else []
                race.run(case, entries(sides, batch, beam))


def check(sides: Sides, batch: int, beam: int) -> list[str]:
    """Whether Marian in float32 writes what Regard writes in float32."""
    plan = sides.plan
    try:
        model = sides.marian
    except NotThereError:
        return []  # the race says so
    reference = sides.reference(batch, beam)
    some = [x for group in plan.sources(batch) for x in group][: len(reference)]
    found = marian_decode(model, plan.device, beam=beam, length=plan.length)(some)
    same = sum(mine == theirs for mine, theirs in zip(reference, found, strict=True))
    different = len({token for tokens in reference for token in tokens})
    return [f"float32 check: {same} of {len(found)} outputs of HF Marian equal Regard's ({different} different tokens)"]


def entries(sides: Sides, batch: int, beam: int) -> list[Entry]:
    """Regard, its peers, and both in other precisions."""
    plan = sides.plan

    def regard(precision: str) -> Work:
        decode = make_decode(sides.task, precision, beam=beam, length=plan.length)
        return replace(work(sides, decode, batch, beam), inside=kept)  # as where a task writes its outputs

    def marian(name: str) -> Work:
        model = sides.marian
        if plan.precision != "float32":
            model = copy.deepcopy(model).to(getattr(torch, plan.precision))
        cache = "static" if name == "marian-static" else None
        decode = marian_decode(model, plan.device, beam=beam, length=plan.length, cache=cache)
        return work(sides, decode, batch, beam, "generate() of MarianMTModel with SDPA")

    def ctranslate(precision: str) -> Work:
        folder, size = Path(sides.exported(precision).folder), plan.length
        translator = Translator(
            folder, precision, sides.task, beam_size=beam, min_decoding_length=size, max_decoding_length=size
        )
        translator.tune(plan.sources(batch)[0])
        return work(sides, translator, batch, beam, f"{translator.note}; it writes no closing mark")

    def engine(precision: str, *, same: bool) -> Work:
        exported = sides.exported(precision)
        if not exported.computed_in.startswith(precision):
            raise NotThereError(f"CTranslate2 computes in {exported.computed_in} here")
        made = make_decode(load_engine(exported.folder, exact=same), "float32", beam=beam, length=plan.length)
        return work(sides, made, batch, beam, ENGINES[same])

    found = [Entry(f"Regard {plan.precision}", "ours", partial(regard, plan.precision))]
    precisions = list(dict.fromkeys((plan.precision, *plan.beside)))
    for name in plan.peers:
        if name in ("marian", "marian-static"):
            found.append(Entry(f"{NAMES[name]} {plan.precision}", "peer", partial(marian, name)))
    if {"ctranslate2", "engine"} & set(plan.peers):
        for precision in precisions:
            found.append(Entry(f"CTranslate2 {precision}", "beside", partial(ctranslate, precision)))
    if "engine" in plan.peers:
        for precision in precisions:
            # What was quantised writes something else anyway.
            for same in (True, False) if precision == "float32" else (False,):
                label = f"Regard through CTranslate2 {precision}, {'same' if same else 'fastest'}"
                found.append(Entry(label, "beside", partial(engine, precision, same=same), f"CTranslate2 {precision}"))
    for precision in plan.beside:
        found.append(Entry(f"Regard {precision}", "beside", partial(regard, precision)))
    return found


def work(sides: Sides, decode: Decode, batch: int, beam: int, note: str = "") -> Work:
    """Turns that decode every batch once, and check that each output has its length."""
    plan, written = sides.plan, list[list[int]]()
    groups = plan.sources(batch)

    def turn(some: Sequence[Sequence[Sequence[int]]] = groups) -> float:
        outputs = [tokens for group in some for tokens in decode(group)]
        if wrong := [len(tokens) for tokens in outputs if len(tokens) != plan.length]:
            raise ModelError(
                f"an output has {wrong[0]} tokens instead of {plan.length}: what was timed is another task"
            )
        written[:] = outputs
        return float(len(outputs) * plan.length)

    def extra(rate: float) -> dict[str, float]:
        reference = sides.reference(batch, beam)
        same = sum(mine == theirs for mine, theirs in zip(reference, written, strict=False))
        return {SAME: 100 * same / len(reference)}

    # Warm after two: a GPU may record the first.
    return Work(turn, lambda: turn([groups[0], groups[0]]), note, extra, lead=lambda: turn(groups[:1]))
