"""The training loop: updates, validation, checkpoints, and exact resumption."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn

from regard.artifacts import read_json, write_json
from regard.data.ahead import ahead
from regard.data.batches import Batches, Position
from regard.errors import DamagedError, ModelError, TrainingError
from regard.memory import retain_memory
from regard.training.checkpoint import (
    WEIGHTS,
    Progress,
    average,
    checkpoints,
    load_carried,
    load_checkpoint,
    load_tensors,
    prune,
    save_checkpoint,
    save_progress,
    save_tensors,
    set_weights,
    weights,
)
from regard.training.ema import SAVED, MovingMean
from regard.training.log import TrainingLog
from regard.training.lora import ADAPTER, Adapters
from regard.training.objectives import Objective
from regard.training.tally import Tally, Throughput
from regard.training.update import Updater, learning_rate
from regard.training.watcher import Update, Watcher
from regard.training_settings import Training

WATCHED = 50  # updates after which the device is asked how many were skipped
IN_A_ROW = 10  # skipped updates after which weights go back to the last checkpoint
RETURNS = 3  # to a checkpoint, before training gives up
SCORES = "scores.json"


class Trainer:
    """Trains `model` on `batches` towards `objective` and leaves everything in `folder`.

    `validate` gives scores of the model; `metric` names the one that decides, less of it being better with `lower`.
    With `adapters` they are what checkpoints hold, and the model that is left in `folder` has them in its weights.
    Scores whose names end like `bleu/NAME`, with one of the names `watched`, are of other data: they are also taken
    before the first update.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, batches: Batches, settings: Training, folder: Path,
        device: torch.device, validate: Callable[[], dict[str, float]], metric: str, watcher: Watcher, *,
        lower: bool = False, adapters: Adapters | None = None, watched: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.model, self.objective, self.batches, self.settings = model, objective, batches, settings
        self.folder, self.device, self.validate, self.metric, self.watcher = folder, device, validate, metric, watcher
        self.lower = lower or metric == "loss"
        self.adapters, self.watched = adapters, watched
        self.constant = frozenset[str]() if adapters is None else adapters.base.keys()  # weights in no checkpoint
        self.updater = Updater(model, objective, settings, device, batches.room)
        self.mean = MovingMean(model, settings.ema) if settings.ema else None
        self.progress = Progress()
        self.tally = Tally(self.progress, device)
        self.reported = 0  # skipped updates that the watcher knows of
        self.stop: int | None = None  # the signal that asked for it
        self.checkpoints = folder / "checkpoints"

    def resume(self) -> bool:
        """Load the latest checkpoint that is whole; False if there is none, and training begins."""
        for place in reversed(checkpoints(self.checkpoints)):
            try:
                carried = load_carried(place, self.device)
                self.progress = load_checkpoint(place, self.model, self.updater.optimizer, self.constant)
            except DamagedError as error:
                self.watcher.message(f"{error}; the checkpoint before it is used")
                continue
            progress = self.progress
            self.objective.memory.update(progress.memory)
            self._take(carried)
            self.tally, self.reported = Tally(progress, self.device), progress.skipped
            progress.early = 0 < self.settings.patience <= progress.worse
            if self._done() < 1.0 and not progress.early:
                progress.finished = False  # more updates, or more patience, are asked for now than then
            if not progress.finished:
                self.watcher.message(f"resuming from update {progress.step}")
                self._check_best()
            return True
        if checkpoints(self.checkpoints):
            self.watcher.message("no checkpoint is whole: training begins anew")
        return False

    @property
    def _carried(self) -> dict[str, Tensor]:
        """All that is kept from update to update beside weights, optimiser and random state."""
        return {**self.objective.carried, **({} if self.mean is None else self.mean.saved())}

    def _take(self, carried: Mapping[str, Tensor]) -> None:
        """Go on from what was carried."""
        self.objective.carried.update({name: x for name, x in carried.items() if not name.startswith(SAVED)})
        if self.mean is not None:
            self.mean.load(carried)

    def _check_best(self) -> None:
        """See that the best weights so far, and their scores, are what was written."""
        if self.progress.best is None:
            return
        try:
            load_tensors(self.folder / WEIGHTS)
        except ModelError as error:
            self.watcher.message(f"{error}; the best model so far is lost, and the next validation takes its place")
            self.progress.best, self.progress.worse = None, 0
        try:
            read_json(self.folder / SCORES)
        except (FileNotFoundError, DamagedError):
            self._write_scores()

    def run(self) -> Progress:
        """Train to the end, or to a request to stop (Ctrl-C, SIGTERM, SIGHUP), which ends after a checkpoint."""
        progress = self.progress
        prune(self.checkpoints, self.settings.keep_last, progress.step)
        if not progress.finished:
            log = TrainingLog(self.folder, progress, self.settings.tensorboard, self.watcher)
            with closing(log), _stop_on_signal(self), retain_memory(), closing(self.updater):
                if self.watched and not progress.step:
                    self._look_before(log)
                self._loop(log)
                if self.stop is None:
                    self._average()
                    self._finish(log)
                    self._compare_watched()
        return progress

    def _loop(self, log: TrainingLog) -> None:
        settings, progress = self.settings, self.progress
        batches = self.batches.since(Position(progress.epoch, progress.window, progress.batch))
        prepared = ((self.updater.prepare(batch), after) for batch, after in batches)
        stream = ahead(prepared) if self.device.type == "cuda" else prepared
        began, throughput = time.monotonic() - progress.seconds, Throughput()
        while self._done() < 1.0 and not progress.early and self.stop is None:
            taken, behind = [next(stream) for _ in range(settings.accumulate)], self._done()
            updated = self.updater([batch for batch, _ in taken], progress.step + 1, behind)
            if self.mean is not None:
                self.mean.update(progress.step + 1)
            count, position = sum(batch.tokens for batch, _ in taken), taken[-1][1]
            progress.step, progress.tokens = progress.step + 1, progress.tokens + count
            progress.epoch, progress.window, progress.batch = position.epoch, position.window, position.batch
            progress.seconds = time.monotonic() - began
            self.tally.add(updated, count)
            speed, mean = throughput.add(count), None
            if progress.step % WATCHED == 0:
                self._watch()
            if progress.step % settings.log_every == 0:
                mean = self.tally.mean()
                log.write(step=progress.step, loss=mean, gradient_norm=float(updated.norm), tokens=progress.tokens,
                          learning_rate=learning_rate(progress.step, settings, behind), tokens_per_second=speed,
                          epoch=progress.epoch, seconds=progress.seconds, skipped=int(self.tally.skipped)
                          )  # fmt: skip
            done = self._done()
            self.watcher.update(Update(progress.step, done, mean, speed))
            if progress.step % settings.validate_every == 0 or done >= 1.0:
                self._watch()
                paused = time.monotonic()
                scores = self._validated()
                began += time.monotonic() - paused  # only training counts as training
                log.write(step=progress.step, tokens=progress.tokens, seconds=progress.seconds,
                          **{f"valid_{name}": score for name, score in scores.items()})  # fmt: skip
                progress.early = 0 < settings.patience <= progress.worse
                if progress.early:
                    self.watcher.message(f"validation got no better {progress.worse} times: stopping early")
                throughput = Throughput()
            ends = done >= 1.0 or progress.early
            if progress.step % settings.save_every == 0 or ends or self.stop is not None:
                self._save(log, ends=ends)

    def _look_before(self, log: TrainingLog) -> None:
        """Score the weights that training begins from, so that what they knew can be held against what they know."""
        self.progress.before = self.validate()
        self.watcher.message(f"update 0: {_shown(self.progress.before)}")
        log.write(step=0, **{f"valid_{name}": score for name, score in self.progress.before.items()})

    def _compare_watched(self) -> None:
        """Say what became of the scores on other data between the first update and the best weights."""
        before, now = self.progress.before, self.progress.scores
        for name, score in now.items():
            if name in before and name.partition("/")[2] in self.watched:
                self.watcher.message(
                    f"{name}: {before[name]:.4g} before, {score:.4g} now ({score - before[name]:+.4g})"
                )

    def _done(self) -> float:
        """The share of training that is behind: of updates, tokens or seconds, whichever comes first."""
        settings, progress = self.settings, self.progress
        shares = [progress.step / settings.steps]
        shares += [progress.tokens / settings.tokens] if settings.tokens else []
        shares += [progress.seconds / settings.seconds] if settings.seconds else []
        return max(shares)

    def _watch(self) -> None:
        """See that updates are finite. A few that are not are skipped; too many in a row, and weights go back to the
        last checkpoint while the batches that broke them stay behind; too often, and training ends."""
        progress = self.progress
        self.tally.read(progress)
        broken = not _finite(self.model)
        if progress.skipped > self.reported:
            self.watcher.message(
                f"update {progress.step}: loss or gradient was not finite in {progress.skipped - self.reported} "
                f"updates, which were skipped ({progress.skipped} in all)"
            )
            self.reported = progress.skipped
        if progress.in_a_row < IN_A_ROW and not broken:
            return
        settings = self.settings
        what = "weights are not finite" if broken else f"the last {progress.in_a_row} updates were not finite"
        advice = (
            f"lower training.learning_rate ({settings.learning_rate:g}) or raise training.warmup ({settings.warmup}), "
            "in another run=FOLDER (start.model=FOLDER begins with the weights of this one)"
        )
        places = checkpoints(self.checkpoints, progress.step)
        if progress.returns == RETURNS or not places:
            again = f", after {progress.returns} returns to a checkpoint" if progress.returns else ""
            raise TrainingError(f"update {progress.step}: {what}{again}; {advice}")
        try:
            self._take(load_carried(places[-1], self.device))
            load_checkpoint(places[-1], self.model, self.updater.optimizer, self.constant)
        except DamagedError as error:
            raise TrainingError(f"update {progress.step}: {what}, and {error}; {advice}") from None
        progress.returns, progress.in_a_row = progress.returns + 1, 0
        self.tally = Tally(progress, self.device)
        self.updater.forget()
        self.watcher.message(
            f"update {progress.step}: {what}; back to the weights of update {int(places[-1].name)}, and on from here"
        )

    def _save(self, log: TrainingLog, *, ends: bool) -> None:
        """Write a checkpoint, but none to go back to while updates are not finite: what broke them may be in it."""
        self.tally.read(self.progress)
        if not _finite(self.model):
            self._watch()
        elif self.progress.in_a_row and not ends:
            return
        self._record(log)
        self.progress.between = not ends and self.progress.step % self.settings.save_every != 0
        save_checkpoint(
            self.checkpoints, self.model, self.updater.optimizer, self.progress, keep=self.settings.keep_last,
            carried=self._carried, without=self.constant,
        )  # fmt: skip

    def _record(self, log: TrainingLog) -> None:
        self.progress.memory = dict(self.objective.memory)
        self.progress.log = log.sync()

    def _finish(self, log: TrainingLog) -> None:
        """Say in the last checkpoint that training has ended; its tensors are what they were."""
        if self.progress.best is None:
            raise TrainingError(
                f"training ended at update {self.progress.step}, but no validation gave a finite {self.metric}, so "
                f"there is no model to use; lower training.learning_rate ({self.settings.learning_rate:g}), in another "
                "run=FOLDER"
            )
        self.progress.finished = True
        self._record(log)
        save_progress(checkpoints(self.checkpoints, self.progress.step)[-1], self.progress)

    def _validated(self) -> dict[str, float]:
        """Score the model, or the moving mean of its weights, and keep what was scored if it is the best so far."""
        with nullcontext() if self.mean is None else self.mean.applied():
            return self._score()

    def _score(self) -> dict[str, float]:
        scores = self.validate()
        value = scores[self.metric]
        better = -value if self.lower else value
        shown, progress = _shown(scores), self.progress
        usable = math.isfinite(value) and math.isfinite(scores["loss"])
        # Of two that score alike, the one of less loss: BLEU is 0 of all answers of one word, right or wrong.
        if usable and (progress.best is None or (better, -scores["loss"]) > (progress.best, -progress.scores["loss"])):
            progress.best, progress.best_step, progress.worse, progress.scores = better, progress.step, 0, scores
            self._write_model()
            self._write_scores()
            shown += "  (best so far)"
        else:
            progress.worse += 1
        self.watcher.message(f"update {progress.step}: {shown}")
        return scores

    def _average(self) -> None:
        """Try the mean of the latest checkpoints, and keep it if it is better than the best."""
        recent = checkpoints(self.checkpoints, self.progress.step)[-self.settings.average :]
        if len(recent) < 2:
            return
        try:
            mean = average(path / WEIGHTS for path in recent)
        except DamagedError as error:
            self.watcher.message(f"{error}; no mean of checkpoints is tried")
            return
        own, worse = {n: x.clone() for n, x in weights(self.model, self.constant).items()}, self.progress.worse
        set_weights(self.model, mean, self.folder, self.constant)
        self.watcher.message(f"trying the mean of the latest {len(recent)} checkpoints")
        self._validated()
        self.progress.worse = worse  # else a run that patience ended would go on, were it started again
        set_weights(self.model, own, self.folder, self.constant)

    def _write_model(self) -> None:
        """Leave the weights as they are now in the folder, adapters merged into them and also by themselves."""
        found = weights(self.model) if self.adapters is None else self.adapters.merged()
        save_tensors(self.folder / WEIGHTS, found, {"step": self.progress.step})
        if self.adapters is not None:
            self.adapters.save(self.folder / ADAPTER)

    def _write_scores(self) -> None:
        before = {"before": self.progress.before} if self.progress.before else {}
        write_json(self.folder / SCORES, {"step": self.progress.best_step, "valid": self.progress.scores, **before})


def _shown(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {score:.4g}" for name, score in scores.items())


def _finite(model: nn.Module) -> bool:
    """Whether every weight is a number: a norm is not finite if one of its parts is not."""
    norms = torch._foreach_norm([parameter.detach() for parameter in model.parameters()], math.inf)
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())


@contextmanager
def _stop_on_signal(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP let the update finish and a checkpoint be written; a second one does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if trainer.stop is not None:
            raise KeyboardInterrupt
        trainer.stop = number
        trainer.watcher.message("stopping after this update; once more to stop at once")

    before = {
        number: signal.signal(number, ask)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # what is ignored, as under nohup, stays so
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
