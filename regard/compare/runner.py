"""Several models on the same data under the same budget, with several seeds; cut off, it goes on where it was."""

from __future__ import annotations

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
from regard.artifacts import LOCK, is_empty, locked, mark, read_json, read_mark, write_json
from regard.compare.cost import Cost, count_cost
from regard.compare.results import Length, Point, Results, Run
from regard.data.batches import Position
from regard.data.content import data_content
from regard.data.examples import Example, Files, read_examples, read_files
from regard.data.synthetic.corpus import in_turn
from regard.data.tokens import clean
from regard.errors import ConfigError, DamagedError, OutputError
from regard.evaluation.metrics import bleu_score, chrf_score, exact_match
from regard.fingerprint import CONTENT, Fingerprint, content_of, settings_of
from regard.runs import prepare
from regard.settings import Config
from regard.system import System, choose_device
from regard.tasks.task import Task
from regard.training.checkpoint import WEIGHTS, checkpoints, read_progress

COMPARED = "compared.json"  # in a run's folder: what it was made from, where, and its scores
# Settings that make no difference here: where things are, what is only shown, and what the budget takes the place of.
FREE = ("run", "preset", "data.train", "data.valid", "data.test", "start.", "training.seed", "training.log_every",
        "training.tensorboard", "training.steps", "training.tokens", "training.seconds",
        "training.patience")  # fmt: skip
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
    """Train and score every model with every seed; what is done already, from the very same, is taken as it is.

    Of several processes in one folder each can work on other models or seeds.
    """
    _check(plan.entries)
    contents = _contents(plan)
    claim(plan.folder)
    runs: list[Run] = []
    places: list[dict[str, Any]] = []
    for entry in plan.entries:
        made_from, cost = _made_from(plan, entry, contents), None
        for seed in plan.seeds:
            folder = plan.folder / folder_name(entry.name) / f"seed-{seed}"
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locked(folder.with_name(f".{folder.name}.lock"), folder):
                known = _known(folder, made_from, say)
                if known is not None:
                    say(f"{entry.name}, seed {seed}: done before")
                else:
                    config = _seeded(entry.config, seed, folder)
                    if cost is None:
                        cost = _count(config)
                        for line in _announced(entry, plan.budget, _within(config, plan.budget, cost)):
                            say(line)
                    config = _within(config, plan.budget, cost)
                    say(f"{entry.name}, seed {seed}: {cost.parameters:,} parameters, {plan.budget}")
                    run = _score(plan, entry, seed, train(config), cost)
                    known = {"made_from": dict(made_from.parts), "where": _where(config), "run": run.to_json()}
                    write_json(folder / COMPARED, known)
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


def claim(folder: Path) -> None:
    """Make a comparison's folder, or see that it is one."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; give another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    with in_turn(folder / LOCK, folder):
        found = read_mark(folder)
        if found is None and not is_empty(folder):
            raise OutputError(f"{folder} is not empty and is no comparison of Regard's; give another --folder")
        if found is not None and found["kind"] != "comparison":
            raise OutputError(f"{folder} is a {found['kind']} and no comparison; give another --folder")
        if found is None:
            mark(folder, "comparison")


def _known(folder: Path, made_from: Fingerprint, say: Say) -> dict[str, Any] | None:
    """What was found out before, if it was made from the same; None if there is nothing yet."""
    try:
        known = read_json(folder / COMPARED)
        before = known["made_from"]
    except FileNotFoundError:
        return None
    except (DamagedError, KeyError):
        say(f"{folder / COMPARED} is damaged, and is made anew")
        return None
    if differing := made_from.differences(before):
        what = ", ".join(map(str, differing))
        raise OutputError(f"{folder} holds a run made from something else: {what}; give another --folder")
    return known


def _made_from(plan: Plan, entry: Entry, contents: dict[str, str]) -> Fingerprint:
    """All that the scores of a model come from, whatever its seed."""
    config = entry.config
    free = FREE if plan.budget.seconds else (*FREE, "training.validate_every")
    parts = settings_of(config, without=free)
    for part in ("model", "encoder", "decoder"):
        if (start := getattr(config.start, part)) is not None:
            parts[f"{CONTENT}start.{part}"] = content_of([Path(start) / WEIGHTS])
    budget = {f"budget.{name}": value for name, value in asdict(plan.budget).items() if value}
    return Fingerprint({**parts, **contents, **budget, "groups": [list(group) for group in plan.groups or ()]})


def _contents(plan: Plan) -> dict[str, str]:
    """Digests of the data that all models are compared on, with the pictures that they name."""
    data = plan.entries[0].config.data
    given: dict[str, Files | None] = {f"data.{split}": getattr(data, split) for split in ("train", "valid", "test")}
    given["the lengths"] = plan.lengths
    return {f"{CONTENT}{name}": data_content(files, data) for name, files in given.items() if files is not None}


def _announced(entry: Entry, budget: Budget, config: Config) -> Iterator[str]:
    """What of an entry's own settings does not hold here, in a line."""
    own, now = entry.config.training, config.training
    said = []
    if now.validate_every != own.validate_every:
        said.append(
            f"validating every {now.validate_every} updates (config says {own.validate_every}), so that each curve has "
            f"{VALIDATIONS} points"
        )
    if now.save_every != own.save_every:
        said.append(f"saving every {now.save_every} updates (config says {own.save_every})")
    ends = [f"training.steps={own.steps}"]
    ends += [f"training.patience={own.patience}"] * bool(own.patience)
    ends += [f"training.{name}={value:g}" for name in ("tokens", "seconds") if (value := getattr(own, name))]
    said.append(f"training ends after {budget}, whatever {' and '.join(ends)} {'say' if ends[1:] else 'says'}")
    yield f"{entry.name}: {'; '.join(said)}"


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
    names = [folder_name(entry.name) for entry in entries]
    if len(set(names)) < len(names):
        raise ConfigError(f"two models have the same name: {', '.join(names)}")


def folder_name(name: str) -> str:
    """What the folder of a model's runs is called."""
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
    progress = read_progress(checkpoints(system.folder / "checkpoints")[-1])
    return Run(
        model=entry.name, seed=seed, parameters=cost.parameters, tokens=progress.tokens, steps=progress.step,
        seconds=progress.seconds, flops=cost.flops_per_token * progress.tokens, memory=cost.memory,
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
