"""Training what a config says, in its folder: claim it, prepare, begin from trained weights, train, resume."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from regard.data.batches import Batches
from regard.data.sides import Sides
from regard.fingerprint import Fingerprint
from regard.loading import choose_device, new_task
from regard.memory import bound_primitives
from regard.nn.adaptive import AdaptiveHead
from regard.runs.examples import (
    store_examples,
    token_counts,
    validate_each,
    validate_watched,
    validation_examples,
    watched_examples,
)
from regard.runs.folder import claim, mark_ended
from regard.runs.start import make_adapters, start_from
from regard.runs.tokens import learn_tokens
from regard.settings import Config
from regard.system import System
from regard.tasks.task import Task
from regard.training.checkpoint import WEIGHTS, Progress, load_tensors, set_weights
from regard.training.objectives import make_objective
from regard.training.trainer import Trainer
from regard.training.watcher import Watcher


class Stopped(Exception):  # noqa: N818 - not an error: the user asked
    """Training was asked to stop by a signal, and can be resumed from its last checkpoint."""

    def __init__(self, progress: Progress, signal: int | None) -> None:
        super().__init__(progress, signal)  # what it is made of again when it comes out of another process
        self.progress, self.signal = progress, signal

    def __str__(self) -> str:
        return f"stopped at update {self.progress.step}"


def train(config: Config | str | Path, watcher: Watcher | None = None) -> System:
    """Train what a config, or a file of one, says, in its `run` folder; resumes an earlier run of the same settings."""
    if not isinstance(config, Config):
        if not isinstance(config, str | Path):
            raise TypeError(f"train takes a Config or the path of a config file, not {type(config).__name__}")
        config = Config.load(config)
    watcher = watcher or Watcher()
    with claim(config, watcher) as (claimed, made_from):
        return _train(claimed, made_from, watcher)


def _train(config: Config, made_from: Fingerprint, watcher: Watcher) -> System:
    task, batches = _prepared(config, made_from, watcher)
    folder, settings = Path(config.run), config.training
    valid, watched = validation_examples(task, made_from, watcher), watched_examples(task, watcher)
    names = [corpus.name for corpus in config.data.split("valid")]
    system = System(task, folder)
    what = "vocabulary" if config.target.written else config.target.kind
    watcher.message(
        f"{len(batches.examples):,} examples to train on, {sum(len(x.targets) for x in valid):,} to validate; {what} "
        f"of {task.target.size:,}; {system.parameters():,} parameters on {task.device}"
    )
    if config.data.corpora is not None:
        drawn = zip(config.data.split("train"), batches.examples.sizes, batches.quotas, strict=True)
        each = ", ".join(f"{quota:,} of {corpus.name} ({size:,} examples)" for corpus, size, quota in drawn)
        watcher.message(f"an epoch draws {each}")
    adapters = make_adapters(task, watcher)
    objective = make_objective(
        task.model, settings.objective, settings.label_smoothing, task.first, task.longest, task.target
    )
    if settings.objective.sampled:
        objective.use_counts(token_counts(task, batches.examples))
    trainer = Trainer(
        task.model, objective, batches, settings, folder, task.device,
        lambda: {**validate_each(task, names, valid), **validate_watched(task, watched)}, config.metric, watcher,
        lower=task.lower_is_better(config.metric, valid[0].some), adapters=adapters, watched=[*watched],
    )  # fmt: skip
    if not trainer.resume() and adapters is None:
        start_from(task, watcher)
    _say_what_learns(trainer, watcher)
    progress = trainer.run()
    if not progress.finished:
        raise Stopped(progress, trainer.stop)
    mark_ended(folder)
    if adapters is not None:
        adapters.merge()
    set_weights(task.model, load_tensors(folder / WEIGHTS), folder / WEIGHTS)
    task.model.eval()
    return system


def prepare(config: Config, watcher: Watcher | None = None) -> tuple[Task, Batches]:
    """All that training needs, in `config.run`: tokens, a model of fresh weights, and batches of the training data."""
    watcher = watcher or Watcher()
    with claim(config, watcher) as (claimed, made_from):
        return _prepared(claimed, made_from, watcher)


def _prepared(config: Config, made_from: Fingerprint, watcher: Watcher) -> tuple[Task, Batches]:
    folder, settings = Path(config.run), config.training
    torch.manual_seed(settings.seed)
    sides, device = Sides.of(config), choose_device(settings.device)
    if device.type == "cpu" and settings.precision == "bfloat16":
        bound_primitives()
    sides.target.to(device)
    learn_tokens(sides, folder, watcher)
    torch.manual_seed(settings.seed)  # again: fresh weights are the same, whether tokens were learnt now or are read
    task = new_task(sides, device)
    store = store_examples(task, "train", made_from, watcher)
    if config.model.output == "adaptive" or settings.objective.sampled:
        counts = token_counts(task, store)
        for module in task.model.modules():
            if isinstance(module, AdaptiveHead):
                module.rank(counts)
    budgets = [side.batch_tokens or settings.batch_tokens for side in (*config.sources, config.target)]
    return task, task.training_batches(store, budgets, settings.seed)


def _say_what_learns(trainer: Trainer, watcher: Watcher) -> None:
    """Of how many parameters training changes some, where it is not all."""
    every = sum(parameter.numel() for parameter in trainer.model.parameters())
    learning = {weight: pace for weight, pace in trainer.updater.paces.items() if math.isfinite(pace.since)}
    count = sum(weight.numel() for weight in learning)
    if count < every:
        at_first = sum(weight.numel() for weight, pace in learning.items() if not pace.since)
        later = f", {at_first:,} of them from the start" if at_first < count else ""
        watcher.message(f"{count:,} of {every:,} parameters learn ({100 * count / every:.2g} %){later}")
