"""Several models on the same data under the same budget, with several seeds; cut off, it goes on where it was."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import regard
from regard.artifacts import write_text
from regard.compare.cost import Cost, count_cost
from regard.compare.results import Length, Point, Results, Run
from regard.data.batches import Position
from regard.data.corpora import Example, read_examples, read_files
from regard.data.tokens import clean
from regard.errors import ConfigError, OutputError
from regard.evaluation.metrics import bleu_score, chrf_score, exact_match
from regard.runs import prepare
from regard.settings import Config
from regard.system import System, choose_device
from regard.tasks.task import Task

VALIDATIONS = 12  # points of a learning curve
PROBES = 4  # batches that costs are counted on
GROUPS = 6  # of test sentences by length, where none are given

Train = Callable[[Config], System]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Budget:
    """What each model may use to train: one of the three."""

    tokens: int = 0
    seconds: float = 0.0
    flops: float = 0.0

    def __post_init__(self) -> None:
        if sum(bool(part) for part in (self.tokens, self.seconds, self.flops)) != 1:
            raise ConfigError("give one budget: --tokens, --seconds or --flops")
        if min(self.tokens, self.seconds, self.flops) < 0:
            raise ConfigError(f"a budget has to be above 0, not {min(self.tokens, self.seconds, self.flops):g}")

    def __str__(self) -> str:
        if self.tokens:
            return f"{self.tokens:,} target tokens"
        return f"{self.seconds:,g} seconds of training" if self.seconds else f"{self.flops:.2e} FLOPs of training"


@dataclass(frozen=True)
class Entry:
    """A model to compare: its name, what it is in a line, and its config."""

    name: str
    idea: str
    config: Config


@dataclass(frozen=True)
class Plan:
    """What is compared, how, and where it is kept."""

    title: str
    entries: Sequence[Entry]
    budget: Budget
    seeds: Sequence[int]
    folder: Path
    command: str
    data: str
    lengths: str | None = None  # a file of test sentences of many lengths; the test data if None
    groups: Sequence[tuple[int, int]] | None = None  # source words, from and to
    trained: tuple[int, int] | None = None  # source words in training


def compare(plan: Plan, train: Train, say: Say) -> Results:
    """Train and score every model with every seed; what is done already is taken as it is."""
    _check(plan.entries)
    runs: list[Run] = []
    places: list[dict[str, Any]] = []
    budget = asdict(plan.budget)
    made_from = {
        "budget": budget, "groups": [list(group) for group in plan.groups or ()],
        "lengths": hashlib.sha256(Path(plan.lengths).read_bytes()).hexdigest() if plan.lengths else None,
    }  # fmt: skip
    for entry in plan.entries:
        cost: Cost | None = None
        settings = entry.config.model_dump(mode="json", include={"tokens", "model", "start", "training", "search"})
        for seed in plan.seeds:
            folder = plan.folder / _folder_name(entry.name) / f"seed-{seed}"
            report = folder / "compared.json"
            known = json.loads(report.read_text()) if report.exists() else {}
            if known and (known["made_from"]["budget"], known.get("settings", settings)) != (budget, settings):
                raise OutputError(
                    f"{folder} holds a run under another budget or with other settings; give another --folder, "
                    "or remove it"
                )
            if known.get("made_from") != made_from:
                config = _seeded(entry.config, seed, folder)
                cost = cost or _count(config)
                config = _within(config, plan.budget, cost)
                say(f"{entry.name}, seed {seed}: {cost.parameters:,} parameters, {plan.budget}")
                run = _score(plan, entry, seed, train(config), cost)
                known = {"made_from": made_from, "settings": settings, "where": _where(config), "run": run.to_json()}
                write_text(report, json.dumps(known))
            else:
                say(f"{entry.name}, seed {seed}: done before")
            runs.append(Run.from_json(known["run"]))
            places.append(known["where"])
    return Results(
        title=plan.title, budget=str(plan.budget), data=plan.data, command=plan.command, trained=plan.trained,
        hardware="; ".join(dict.fromkeys(place["hardware"] for place in places)),
        versions="; ".join(dict.fromkeys(place["versions"] for place in places)),
        date=max(place["date"] for place in places), gpu=all(place["gpu"] for place in places),
        metric=plan.entries[0].config.metric, ideas={entry.name: entry.idea for entry in plan.entries},
        runs=tuple(runs),
    )  # fmt: skip


def _where(config: Config) -> dict[str, Any]:
    device = choose_device(config.training.device)
    return {
        "hardware": _hardware(device),
        "versions": f"regard {regard.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "gpu": device.type == "cuda",
    }


def _check(entries: Sequence[Entry]) -> None:
    first = entries[0].config
    for entry in entries:
        for section in ("data", "tokens"):
            if getattr(entry.config, section) != getattr(first, section):
                raise ConfigError(
                    f"{entry.name} and {entries[0].name} differ in [{section}]; models are compared on the same data"
                )
        if entry.config.data.test is None:
            raise ConfigError(f"{entry.name} names no data.test to compare on")
        if entry.config.data.source == "none":
            raise ConfigError(f"{entry.name} is a model of text alone; `regard evaluate` gives its perplexity")
        if entry.config.metric == "loss":
            raise ConfigError("training.metric loss says nothing of outputs; compare by bleu, chrf or exact")
    names = [_folder_name(entry.name) for entry in entries]
    if len(set(names)) < len(names):
        raise ConfigError(f"two models have the same name: {', '.join(names)}")


def _folder_name(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


def _seeded(config: Config, seed: int, folder: Path) -> Config:
    training = config.training.model_copy(update={"seed": seed, "patience": 0})
    return config.model_copy(update={"training": training, "run": str(folder)})


def _count(config: Config) -> Cost:
    """What a target token costs, counted on a few batches of the training data."""
    task, batches = prepare(config)
    some = [batch for batch, _ in islice(batches.since(Position()), PROBES)]
    return count_cost(task, some, config.training)


def _within(config: Config, budget: Budget, cost: Cost) -> Config:
    """The config with the budget as its end, and a dozen validations on the way."""
    tokens = budget.tokens or math.ceil(budget.flops / cost.flops_per_token)
    every = config.training.validate_every
    if tokens:
        every = max(1, math.ceil(tokens / cost.tokens_per_batch / config.training.accumulate / VALIDATIONS))
    changes = {
        "steps": 10**9, "tokens": tokens, "seconds": budget.seconds, "validate_every": every,
        "save_every": min(config.training.save_every, every),
    }  # fmt: skip
    return config.model_copy(update={"training": config.training.model_copy(update=changes)})


def _score(plan: Plan, entry: Entry, seed: int, system: System, cost: Cost) -> Run:
    task, data = system.task, system.config.data
    scores = {name: score.value for name, score in system.test().scores.items()}
    many = list(read_files(plan.lengths, data) if plan.lengths else read_examples(data, "test"))
    began = time.perf_counter()
    lengths, written = _by_length(task, many, plan.groups or _even_groups(many))
    seconds = time.perf_counter() - began
    progress = json.loads(max((system.folder / "checkpoints").glob("[0-9]*/progress.json")).read_text())
    return Run(
        model=entry.name, seed=seed, parameters=cost.parameters, tokens=progress["tokens"], steps=progress["step"],
        seconds=progress["seconds"], flops=cost.flops_per_token * progress["tokens"], memory=cost.memory,
        decode_speed=written / seconds, scores=scores,
        lengths=tuple(lengths),
        curve=tuple(_curve(system.folder / "log.jsonl", cost, system.config.metric)),
    )  # fmt: skip


def _outputs(task: Task, examples: Sequence[Example]) -> list[str]:
    found = task.outputs([x.source for x in examples], task.config.search, lambda *_: None)
    return [clean(best[0].text) if best else "" for best in found]


def _by_length(task: Task, examples: Sequence[Example], groups: Sequence[tuple[int, int]]) -> tuple[list[Length], int]:
    """Scores of each group of lengths, and how many tokens were written for them in all."""
    found, written = [], 0
    for shortest, longest in groups:
        members = [x for x in examples if shortest <= _words(x) <= longest]
        if not members:
            continue
        outputs, references = _outputs(task, members), [clean(x.target) for x in members]
        written += sum(len(tokens) + 1 for tokens in task.target.encode_many(outputs))
        scores = {
            name: metric(outputs, references).value
            for name, metric in (("bleu", bleu_score), ("chrf", chrf_score), ("exact", exact_match))
        }
        found.append(Length(shortest, longest, len(members), scores))
    return found, written


def _words(example: Example) -> int:
    """Words of the source, punctuation not counted."""
    return sum(any(c.isalnum() for c in word) for word in example.source.split())


def _even_groups(examples: Sequence[Example]) -> list[tuple[int, int]]:
    """Ranges of lengths that hold about as many sentences each."""
    lengths = sorted(_words(x) for x in examples)
    edges = sorted({lengths[(i * len(lengths)) // GROUPS] for i in range(GROUPS)})
    return [(low, high - 1) for low, high in zip(edges, [*edges[1:], lengths[-1] + 1], strict=True)]


def _curve(log: Path, cost: Cost, metric: str) -> Iterator[Point]:
    for line in log.read_text().splitlines():
        record: dict[str, Any] = json.loads(line)
        if f"valid_{metric}" in record:
            yield Point(
                step=record["step"], tokens=record["tokens"], flops=record["tokens"] * cost.flops_per_token,
                seconds=record["seconds"], loss=record["valid_loss"], quality=record[f"valid_{metric}"],
            )  # fmt: skip


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{torch.get_num_threads()} threads of a CPU ({model})"
