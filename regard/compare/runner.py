"""Trains and scores several models on the same data under the same budget, with several seeds. Rerun, it resumes."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

import regard
from regard.artifacts import LOCK, is_empty, locked, mark, read_json, read_mark, write_json
from regard.compare.cost import Cost, count_cost
from regard.compare.results import Group, Length, Pair, Point, Record, Results, Run, paired_tests
from regard.data.batches import Position
from regard.data.examples import Example, Files, data_content, read_examples, read_files
from regard.data.sides import Sides
from regard.data.synthetic.corpus import in_turn
from regard.data.tokens import clean
from regard.errors import ConfigError, DamagedError, OutputError
from regard.evaluation.bootstrap import BOOTSTRAPPED, RESAMPLES, scorer, statistics
from regard.evaluation.metrics import Numbers
from regard.fingerprint import CONTENT, Fingerprint, content_of, defaults_of, settings_of
from regard.runs import prepare
from regard.settings import Config
from regard.system import System
from regard.tasks.results import Inputs, columns
from regard.training.checkpoint import WEIGHTS, checkpoints, read_progress

COMPARED = "compared.json"  # in a run's folder
# Settings that make no difference here: where things are, what is only shown, and what the budget takes the place of.
FREE = ("run", "preset", "data.train", "data.valid", "data.test", "data.root", "start.", "training.seed",
        "training.log_every", "training.tensorboard", "training.steps", "training.tokens", "training.seconds",
        "training.patience")  # fmt: skip
VALIDATIONS = 12  # points of a learning curve
PROBES = 4  # batches that costs are counted on
GROUPS = 6  # of test sentences by length, where none are given

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


class Sentences(Record):
    """Sufficient statistics of the metric for each sentence of the test set, or of a length group of test sentences."""

    group: Group | None
    rows: list[list[float]]


class Compared(Record):
    """A finished run: what it was made from, where and when, its scores, and the statistics that paired tests need."""

    made_from: dict[str, Any]
    hardware: str
    versions: str
    date: str
    gpu: bool
    run: Run
    sentences: tuple[Sentences, ...]


def compare(
    models: Mapping[str, Config], folder: str | Path, budget: Budget, *, seeds: Sequence[int] = (1, 2, 3),
    title: str = "A comparison", ideas: Mapping[str, str] | None = None, data: str = "", command: str = "",
    lengths: str | None = None, groups: Sequence[Group] = (), trained: Group | None = None,
    train: Callable[[Config], System] = regard.train, say: Say = lambda text: None,
) -> Results:  # fmt: skip
    """Train and score every model with every seed on the same data under the same budget, and test what differs.

    Runs are stored in `folder`: called again, this resumes, and finished runs of the same settings and data are reused.
    Several processes may work in one folder, on different models or seeds. `train` trains one config, `say` receives
    progress messages. `write_page` makes a page of what this returns.

    Test sentences of many lengths are read from the file `lengths`, or else are the test data, and are scored by
    `groups` of source words, from and to. For the page alone: `title`, a line for each model (`ideas`), what the `data`
    are, the source words in training (`trained`), and the `command` that makes it.
    """
    _check(models)
    first = next(iter(models.values()))
    contents = _contents(first, lengths)
    claim(folder := Path(folder))
    done: dict[str, list[Compared]] = {}
    for name, own in models.items():
        made_from, cost = _made_from(own, budget, groups, contents), None
        done[name] = []
        for seed in seeds:
            place = folder / folder_name(name) / f"seed-{seed}"
            place.parent.mkdir(parents=True, exist_ok=True)
            with locked(place.with_name(f".{place.name}.lock"), place):
                known = _known(place, made_from, say)
                if known is not None:
                    say(f"{name}, seed {seed}: done before")
                else:
                    config = _changed(own, seed=seed, patience=0).model_copy(update={"run": str(place)})
                    if cost is None:  # of a target token, counted on a few batches of the training data
                        task, batches = prepare(config)
                        some = [batch for batch, _ in islice(batches.since(Position()), PROBES)]
                        cost = count_cost(task, some, config.training)
                        say(_announced(name, own, budget, cost))
                    say(f"{name}, seed {seed}: {cost.parameters:,} parameters, {budget}")
                    system = train(_changed(config, **_limits(own, budget, cost)))
                    known = _score(name, system, cost, first.metric, lengths, groups, made_from)
                    write_json(place / COMPARED, known.model_dump(mode="json"))
            done[name].append(known)
    runs, pairs = [x for found in done.values() for x in found], list[Pair]()
    for i, sentences in enumerate(runs[0].sentences):
        rows = {name: [np.array(x.sentences[i].rows) for x in found] for name, found in done.items()}
        pairs += paired_tests(first.metric, rows, sentences.group)
    return Results(
        title=title, budget=str(budget), data=data, command=command, trained=trained, metric=first.metric,
        ideas=dict(ideas or {}), date=max(x.date for x in runs), gpu=all(x.gpu for x in runs),
        hardware="; ".join(dict.fromkeys(x.hardware for x in runs)),
        versions="; ".join(dict.fromkeys(x.versions for x in runs)), runs=tuple(x.run for x in runs),
        pairs=tuple(pairs), resamples=RESAMPLES,
    )  # fmt: skip


def claim(folder: Path) -> None:
    """Make a comparison's folder, or check that it is one."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; give another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    with in_turn(folder / LOCK, folder):
        found = read_mark(folder)
        if found is not None and found["kind"] != "comparison":
            raise OutputError(f"{folder} is a {found['kind']} and no comparison; give another --folder")
        if found is None:
            if not is_empty(folder):
                raise OutputError(f"{folder} is not empty and is no comparison of Regard's; give another --folder")
            mark(folder, "comparison")


def folder_name(name: str) -> str:
    """The folder of a model's runs, by the model's name."""
    return "".join(c if c.isalnum() else "-" for c in name.lower())


def _check(models: Mapping[str, Config]) -> None:
    if not models:
        raise ConfigError("there are no models to compare")
    (first, given), *_ = models.items()
    for name, config in models.items():
        for section in ("data", "source", "target", "tokens"):
            if getattr(config, section) != getattr(given, section):
                raise ConfigError(f"{name} and {first} differ in [{section}]; models are compared on the same data")
        if not config.data.split("test"):
            raise ConfigError(f"{name} names no data.test to compare on")
        if config.metric == "loss":
            raise ConfigError(
                f"{name} is measured by its loss, which says nothing of outputs; set training.metric to bleu, chrf, "
                "exact or accuracy (of a language model, `regard evaluate` gives the perplexity)"
            )
    names = [folder_name(name) for name in models]
    if len(set(names)) < len(names):
        raise ConfigError(f"two models have the same name: {', '.join(names)}")


def _known(folder: Path, made_from: Fingerprint, say: Say) -> Compared | None:
    """The finished run in a folder, which has to be made from the same; None if there is none yet."""
    try:
        known = Compared.model_validate(read_json(folder / COMPARED))
    except FileNotFoundError:
        return None
    except (DamagedError, ValidationError):
        say(f"{folder / COMPARED} is damaged, and is made anew")
        return None
    if differing := made_from.differences(known.made_from):
        what = ", ".join(map(str, differing))
        raise OutputError(f"{folder} holds a run made from something else: {what}; give another --folder")
    return known


def _made_from(config: Config, budget: Budget, groups: Sequence[Group], contents: dict[str, str]) -> Fingerprint:
    """Fingerprint of all that the scores of a model come from, apart from its seed."""
    parts = settings_of(config, without=FREE if budget.seconds else (*FREE, "training.validate_every"))
    for part in ("model", "encoder", "decoder"):
        if (start := getattr(config.start, part)) is not None:
            parts[f"{CONTENT}start.{part}"] = content_of([Path(start) / WEIGHTS])
    limits = {f"budget.{name}": value for name, value in asdict(budget).items() if value}
    parts |= {**contents, **limits, "groups": [list(group) for group in groups]}
    return Fingerprint(parts, defaults_of(config))


def _contents(config: Config, lengths: str | None) -> dict[str, str]:
    """Digests of the data that all models are compared on, with the files that they name."""
    data, form = config.data, Sides.of(config).form
    given: dict[str, Files | None] = {f"data.{split}": getattr(data, split) for split in ("train", "valid", "test")}
    given["the lengths"] = lengths
    return {f"{CONTENT}{name}": data_content(files, form) for name, files in given.items() if files is not None}


def _changed(config: Config, **changes: Any) -> Config:
    """The config with other training settings."""
    return config.model_copy(update={"training": config.training.model_copy(update=changes)})


def _limits(config: Config, budget: Budget, cost: Cost) -> dict[str, Any]:
    """Training settings that end at the budget, with a dozen validations on the way."""
    tokens = budget.tokens or math.ceil(budget.flops / cost.flops_per_token)
    every = config.training.validate_every
    if tokens:
        every = max(1, math.ceil(tokens / cost.tokens_per_batch / config.training.accumulate / VALIDATIONS))
    return {"steps": 10**9, "tokens": tokens, "seconds": budget.seconds, "validate_every": every,
            "save_every": min(config.training.save_every, every)}  # fmt: skip


def _announced(name: str, config: Config, budget: Budget, cost: Cost) -> str:
    """Which of a config's own settings are overridden."""
    own, now = dict(config.training), _limits(config, budget, cost)
    unused = [f"{x}={own[x]:g}" for x in ("steps", "tokens", "seconds", "patience") if own[x]]
    unused += [f"{x}={own[x]} (here {now[x]})" for x in ("validate_every", "save_every") if own[x] != now[x]]
    listed = ", ".join(f"training.{x}" for x in unused)
    return f"{name}: training ends after {budget}; of its config these do not hold: {listed}"


def _score(
    name: str, system: System, cost: Cost, metric: str, lengths: str | None, groups: Sequence[Group],
    made_from: Fingerprint,
) -> Compared:  # fmt: skip
    """Decode, and score on the test data and by length."""
    task, form = system.task, system.task.sides.judged_form
    tested, test = system.test(), list(read_examples(system.config.data, "test", form))
    many = list(read_files(lengths, form)) if lengths else test
    began = time.perf_counter()
    found = task.outputs([x.source for x in many], system.config.search, lambda *_: None)
    seconds = time.perf_counter() - began
    outputs = [clean(best[0].text) if best else "" for best in found]

    def rows(metric: str, outputs: Sequence[str], references: Iterable[Sequence[str]]) -> Numbers:
        first, more = columns([clean(text) for text in own] for own in references)
        return statistics(metric, outputs, [first, *more], task.target.counted)

    sentences, by_length = [], []
    if metric in BOOTSTRAPPED:
        # An example that was left out counts for nothing, so that those of all models still go together.
        scored = rows(metric, tested.outputs, tested.references).tolist()
        known = {x.place: row for x, row in zip(tested.examples, scored, strict=True)}
        inputs = Inputs(test, together=task.several_references).examples
        everything = [known.get(x.place, [0.0] * len(scored[0])) for x in inputs]
        sentences.append(Sentences(group=None, rows=everything))
    for low, high in (groups or _even_groups(many)) if task.source.tokenizer is not None else ():  # lengths of texts
        members = [(output, x) for output, x in zip(outputs, many, strict=True) if low <= _words(x) <= high]
        names = [x for x in dict.fromkeys((metric, "bleu", "chrf", "exact")) if x in BOOTSTRAPPED and members]
        here = {
            name: rows(name, [output for output, _ in members], [[task.reference(x)] for _, x in members])
            for name in names
        }
        scores = {x: scorer(x)(here[x].sum(0)) for x in names}
        by_length.append(Length(shortest=low, longest=high, sentences=len(members), scores=scores))
        if metric in names:
            sentences.append(Sentences(group=(low, high), rows=here[metric].tolist()))
    progress = read_progress(checkpoints(system.folder / "checkpoints")[-1])
    written = sum(len(task.target.counted(text)) + 1 for text in outputs)
    log = map(json.loads, (system.folder / "log.jsonl").read_text().splitlines())
    run = Run(
        model=name, seed=system.config.training.seed, parameters=cost.parameters, tokens=progress.tokens,
        steps=progress.step, seconds=progress.seconds, flops=cost.flops_per_token * progress.tokens, memory=cost.memory,
        decode_speed=written / seconds, scores={x: score.value for x, score in tested.scores.items()},
        lengths=tuple(by_length), curve=tuple(
            Point(step=x["step"], tokens=x["tokens"], flops=x["tokens"] * cost.flops_per_token, seconds=x["seconds"],
                  loss=x["valid_loss"], quality=x[f"valid_{metric}"])
            for x in log if f"valid_{metric}" in x and x["step"]  # what is watched is also scored before
        ),
    )  # fmt: skip
    return Compared(
        made_from=dict(made_from.parts), run=run, sentences=tuple(sentences), gpu=task.device.type == "cuda",
        hardware=hardware(task.device), date=datetime.now(UTC).strftime("%Y-%m-%d"),
        versions=f"regard {regard.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    )  # fmt: skip


def _words(example: Example) -> int:
    """Words of the source, punctuation not counted."""
    return sum(any(c.isalnum() for c in word) for word in example.source.split())


def _even_groups(examples: Sequence[Example]) -> list[Group]:
    """Ranges of lengths that hold about as many sentences each."""
    lengths = sorted(_words(x) for x in examples)
    edges = sorted({lengths[(i * len(lengths)) // GROUPS] for i in range(GROUPS)})
    return [(low, high - 1) for low, high in zip(edges, [*edges[1:], lengths[-1] + 1], strict=True)]


def hardware(device: torch.device) -> str:
    """Processor and threads, and the GPU where one is used."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text() if info.exists() else "")
    model = names[0] if names else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu = f"{torch.get_num_threads()} threads on {cores} cores of a CPU ({model})"
    return f"one {torch.cuda.get_device_name(device)}, {cpu}" if device.type == "cuda" else cpu
