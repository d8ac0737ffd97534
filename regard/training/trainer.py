"""The training loop: updates, validation, checkpoints, and going on exactly where a run was cut off."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from regard.artifacts import write_text
from regard.data.ahead import ahead
from regard.data.batches import Batch, Batches, Position
from regard.errors import TrainingError
from regard.memory import kept
from regard.settings import Training
from regard.training.checkpoint import (
    WEIGHTS,
    Progress,
    average,
    checkpoints,
    load_checkpoint,
    save_checkpoint,
    save_tensors,
    set_weights,
    weights,
)
from regard.training.objectives import Objective
from regard.training.optim import learning_rate
from regard.training.update import Updater


@dataclass(frozen=True)
class Update:
    """What a display is told after each update."""

    step: int
    done: float  # the share of training that is behind
    loss: float | None  # a mean per token, every `log_every` updates
    tokens_per_second: float


class Watcher:
    """Hears of updates and messages; this one keeps silent."""

    def update(self, update: Update) -> None:
        """After each update."""

    def message(self, text: str) -> None:
        """Something worth a line."""


class Trainer:
    """Trains `model` on `batches` towards `objective` and leaves everything in `folder`.

    `validate` gives scores of the model as it is; `metric` names the one that decides.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, batches: Batches, settings: Training, folder: Path,
        device: torch.device, validate: Callable[[], dict[str, float]], metric: str, watcher: Watcher,
    ) -> None:  # fmt: skip
        self.model, self.objective, self.batches, self.settings = model, objective, batches, settings
        self.folder, self.device, self.validate, self.metric, self.watcher = folder, device, validate, metric, watcher
        self.updater = Updater(model, objective, settings, device)
        self.progress = Progress()
        self.stop = False

    def run(self) -> Progress:
        """Train to the end, or to a request to stop (Ctrl-C, SIGTERM), which ends after a checkpoint."""
        self._resume()
        progress = self.progress
        if not progress.finished:
            with _Log(self.folder, progress.step, self.settings.tensorboard) as log, _stop_on_signal(self), kept():
                self._loop(log)
                if not self.stop:
                    self._average()
                    progress.finished = True
                    self._save()
        return progress

    def _loop(self, log: _Log) -> None:
        settings, progress = self.settings, self.progress
        position = Position(progress.epoch, progress.window, progress.batch)
        stream = ahead(self._prepared(position)) if self.device.type == "cuda" else self._prepared(position)
        began, pace = time.monotonic() - progress.seconds, _Pace()
        losses, tokens = torch.zeros((), device=self.device), 0
        while self._done() < 1.0 and not progress.early and not self.stop:
            loss, count, norm, position = self._update(stream)
            progress.step, progress.tokens = progress.step + 1, progress.tokens + count
            progress.epoch, progress.window, progress.batch = position.epoch, position.window, position.batch
            progress.seconds = time.monotonic() - began
            losses, tokens = losses + loss, tokens + count
            speed, mean = pace.add(count), None
            if progress.step % settings.log_every == 0:
                mean = float(losses) / tokens
                self._check(mean)
                log.write(step=progress.step, loss=mean, gradient_norm=float(norm), tokens=progress.tokens,
                          learning_rate=learning_rate(progress.step, settings, self._done()), tokens_per_second=speed,
                          epoch=progress.epoch, seconds=progress.seconds)  # fmt: skip
                losses, tokens = torch.zeros((), device=self.device), 0
            done = self._done()
            self.watcher.update(Update(progress.step, done, mean, speed))
            if progress.step % settings.validate_every == 0 or done >= 1.0:
                paused = time.monotonic()
                scores = self._validated()
                began += time.monotonic() - paused  # only training counts as training
                log.write(step=progress.step, tokens=progress.tokens, seconds=progress.seconds,
                          **{f"valid_{name}": score for name, score in scores.items()})  # fmt: skip
                progress.early = 0 < settings.patience <= progress.worse
                if progress.early:
                    self.watcher.message(f"validation got no better {progress.worse} times: stopping early")
                pace = _Pace()
            if progress.step % settings.save_every == 0 or done >= 1.0 or progress.early or self.stop:
                self._save()

    def _prepared(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        return ((self.updater.prepare(batch), after) for batch, after in self.batches.since(position))

    def _done(self) -> float:
        """The share of training that is behind: of updates, tokens or seconds, whichever comes first."""
        settings, progress = self.settings, self.progress
        shares = [progress.step / settings.steps]
        shares += [progress.tokens / settings.tokens] if settings.tokens else []
        shares += [progress.seconds / settings.seconds] if settings.seconds else []
        return max(shares)

    def _check(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at update {self.progress.step}; lower training.learning_rate "
                f"({self.settings.learning_rate}) or raise training.warmup ({self.settings.warmup})"
            )

    def _save(self) -> None:
        self.progress.memory = dict(self.objective.memory)
        save_checkpoint(
            self.folder / "checkpoints", self.model, self.updater.optimizer, self.progress, keep=self.settings.keep_last
        )

    def _update(self, stream: Iterator[tuple[Batch, Position]]) -> tuple[torch.Tensor, int, torch.Tensor, Position]:
        """One update over `accumulate` batches: summed loss, tokens, gradient norm, position after."""
        taken = [next(stream) for _ in range(self.settings.accumulate)]
        loss, norm = self.updater([batch for batch, _ in taken], self.progress.step + 1, self._done())
        return loss, sum(batch.tokens for batch, _ in taken), norm, taken[-1][1]

    def _resume(self) -> None:
        found = checkpoints(self.folder / "checkpoints")
        if not found:
            return
        self.progress = load_checkpoint(found[-1], self.model, self.updater.optimizer)
        self.objective.memory.update(self.progress.memory)
        if self._done() < 1.0 and not self.progress.early:
            self.progress.finished = False  # more updates are asked for now than then
        if not self.progress.finished:
            self.watcher.message(f"going on from update {self.progress.step}")

    def _validated(self) -> dict[str, float]:
        """Score the model, and keep its weights if they are the best so far."""
        scores = self.validate()
        value = scores[self.metric]
        better = -value if self.metric == "loss" else value
        shown = ", ".join(f"{name} {score:.4g}" for name, score in scores.items())
        progress = self.progress
        if progress.best is None or better > progress.best:
            progress.best, progress.best_step, progress.worse, progress.scores = better, progress.step, 0, scores
            self._keep(weights(self.model))
            shown += "  (best so far)"
        else:
            progress.worse += 1
        self.watcher.message(f"update {progress.step}: {shown}")
        return scores

    def _average(self) -> None:
        """Try the mean of the latest checkpoints, and keep it if it is better than the best."""
        recent = checkpoints(self.folder / "checkpoints")[-self.settings.average :]
        if len(recent) < 2:
            return
        own = {name: tensor.clone() for name, tensor in weights(self.model).items()}
        set_weights(self.model, average(path / WEIGHTS for path in recent), self.folder)
        self.watcher.message(f"trying the mean of the latest {len(recent)} checkpoints")
        self._validated()
        set_weights(self.model, own, self.folder)

    def _keep(self, tensors: dict[str, torch.Tensor]) -> None:
        save_tensors(self.folder / WEIGHTS, tensors, {"step": str(self.progress.step)})
        report = {"step": self.progress.step, "valid": self.progress.scores}
        write_text(self.folder / "scores.json", json.dumps(report, indent=1) + "\n")


class _Pace:
    """Tokens per second, over the last few seconds."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def add(self, tokens: int) -> float:
        self.marks.append((time.monotonic(), self.marks[-1][1] + tokens))
        self.marks = self.marks[-100:]
        (start, before), (end, after) = self.marks[0], self.marks[-1]
        return (after - before) / max(end - start, 1e-9)


class _Log:
    """`log.jsonl`, a record a line, and TensorBoard events beside it. What lies past `step` is written again."""

    def __init__(self, folder: Path, step: int, tensorboard: bool) -> None:
        path = folder / "log.jsonl"
        if path.exists():
            whole = (line for line in path.read_text().splitlines() if line.endswith("}"))  # a kill may cut the last
            write_text(path, "".join(line + "\n" for line in whole if json.loads(line)["step"] <= step))
        self.file = path.open("a", encoding="utf-8")
        self.events: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            self.events = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, **values: float) -> None:
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()
        if self.events is not None:
            for name, value in values.items():
                self.events.add_scalar(name, value, step)

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
        if self.events is not None:
            self.events.close()


@contextmanager
def _stop_on_signal(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C and SIGTERM let the update finish and a checkpoint be written; a second Ctrl-C does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if trainer.stop:
            raise KeyboardInterrupt
        trainer.stop = True
        trainer.watcher.message("stopping after this update; once more to stop at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
