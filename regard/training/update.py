"""One update of the weights: forward, backward, clipping, step. On a GPU blocks are compiled, and where all batches can
be filled up to one shape, with tokens that do not count, the whole update is recorded once and replayed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.bundle import parts_of
from regard.data.batch import IGNORED, Batch, Room
from regard.models.decoding import changed
from regard.models.encoders import SeveralEncoders, steady
from regard.models.model import EncoderDecoder
from regard.models.stems import Stem
from regard.nn import ctc_loss
from regard.nn.adaptive import AdaptiveHead
from regard.nn.attention import all_kernels, takes_filled
from regard.nn.blocks import Block
from regard.nn.graphs import Graphs, Looped, Recording, cloned, exclusive, signature
from regard.nn.statistics import statistics
from regard.ragged import round_up
from regard.training.objectives import HeadLoss, Likelihood, Objective, ReplacedTokens
from regard.training.parts import Pace, paces
from regard.training_settings import Training

WARM = 3  # updates before the recording: kernels are compiled and chosen, and the optimiser has its state
LOOPS = 256  # recordings of a module's loop, of which there is one for each shape


@dataclass(frozen=True)
class Updated:
    """What an update gave, on the device; it may be overwritten by the next update."""

    loss: Tensor  # summed over the batch; 0 if the update was skipped
    norm: Tensor  # of the gradient, before clipping
    skipped: Tensor  # 1.0 if loss or gradient was not finite, so that weights, statistics and optimiser stayed


class Updater:
    """Brings `model` nearer to `objective`, some batches at a time. An update whose loss or gradient is not finite is
    skipped on the device, without waiting for it: the optimiser gets the answer as a tensor, as in torch's
    GradScaler."""

    def __init__(
        self, model: nn.Module, objective: Objective, settings: Training, device: torch.device,
        room: Room | None = None,
    ) -> None:  # fmt: skip
        self.model, self.objective, self.settings, self.device = model, objective, settings, device
        self.paces = paces(model, settings)
        self.optimizer = make_optimizer(model, settings, device, self.paces)
        self.frozen = {parameter: pace.since for parameter, pace in self.paces.items() if pace.since > 0}
        for parameter in self.frozen:
            parameter.requires_grad_(False)
        self.statistics = [buffer for _, buffer in statistics(model)]
        self.room = filled_room(model, objective, settings, device, room)
        self.even, self.most = takes_even(model, objective, settings, device), room
        self.written = not isinstance(objective, HeadLoss)
        self.forget()
        if device.type == "cuda" and settings.compile:
            for module in model.modules():
                if isinstance(module, Block):
                    module.compile_for_training()
                elif isinstance(module, Looped):
                    module.graphs = Graphs(device, LOOPS)

    def prepare(self, batch: Batch) -> Batch:
        """What can be done to a batch before its turn, in another thread."""
        if self.room is not None:
            batch = batch.filled(self.room) or batch
        elif self.even and self.most is not None:
            batch = batch.evened(self.most, written=self.written) or batch
        return batch.pinned() if self.device.type == "cuda" else batch

    def forget(self) -> None:
        """Drop the recording: what it works on (the optimiser's state, or which weights learn) is no longer that."""
        self.warm, self.recording = Counter[Hashable](), None  # type: Counter[Hashable], Recording[Batch] | None
        self.recorded: Hashable = None  # which batches the recording is of
        self.graphs = Graphs(self.device) if self.even or self.room is not None else None

    def close(self) -> None:
        """Give back the memory of all recordings, at the end of training."""
        self.room, self.even = None, False
        self.forget()
        for module in self.model.modules():
            if isinstance(module, Looped):
                module.graphs = None

    def __call__(self, batches: Sequence[Batch], step: int, done: float) -> Updated:
        """Update once; `step` is its number, from 1, and `done` is the share of training that is behind."""
        with exclusive(self.device) if self.device.type == "cuda" else nullcontext():
            return self._next(batches, step, done)

    def _next(self, batches: Sequence[Batch], step: int, done: float) -> Updated:
        self.objective.at(done)
        rate = learning_rate(step, self.settings, done)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * group["factor"])
            else:
                group["lr"] = rate * group["factor"]
        if not self.model.training:
            self.model.train()
        changed(self.model)
        if thawed := [parameter for parameter, since in self.frozen.items() if since < step]:
            for parameter in thawed:
                parameter.requires_grad_(True)
                del self.frozen[parameter]
            self.forget()
        kind = self._kind(batches[0])
        if self.graphs is None or kind is None or (self.recording is not None and kind != self.recorded):
            return self._update([batch.to(self.device) for batch in batches], done)
        if self.recording is not None:
            self.recording.take(batches[0])
            return self.recording()
        if self.warm[kind] < WARM:
            self.warm[kind] += 1
            # Cloned as the recording's own inputs are: what is compiled depends on what a batch has worked out so far.
            return self.graphs.warm(lambda: self._update([cloned(batches[0], self.device)], done))
        self.recorded = kind
        self.recording = Recording(lambda batch: self._update([batch], done), batches[0], self.graphs, warm=False)
        return self.recording()

    def _kind(self, batch: Batch) -> Hashable:
        """What batches have in common that one recording serves; None: there is none for such a batch."""
        if self.room is not None:
            return "filled" if batch.inputs.spare else None
        parts = parts_of(batch.source)
        shaped = all(part.uniform or part.spare for part in parts) and any(part.uniform for part in parts)
        if not self.even or not shaped or (self.written and not batch.outputs.spare):
            return None
        return signature((*parts, batch.inputs, batch.outputs))

    def _update(self, batches: Sequence[Batch], done: float) -> Updated:
        settings = self.settings
        before = [(buffer, buffer.clone()) for buffer in self.statistics]
        total = torch.zeros((), device=self.device)
        count: Tensor | int = sum(batch.tokens for batch in batches)
        if batches[0].outputs.spare:  # a number would be the same in every replay
            count = (batches[0].outputs.values != IGNORED).sum()
        for batch in batches:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
                loss = self.objective(batch, done)
            (loss / count).backward()
            total = total + loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
        finite = torch.isfinite(total) & torch.isfinite(norm)
        skipped = (~finite).float()
        for buffer, old in before:
            buffer.copy_(torch.where(finite, buffer, old))
        self.optimizer.found_inf = skipped  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Updated(torch.where(finite, total, 0.0), norm, skipped)


def takes_even(model: nn.Module, objective: Objective, settings: Training, device: torch.device) -> bool:
    """Whether an update is recorded for batches in which some sources are all of one length, such as pictures, and
    others, and a target that is written, are filled up (`Batch.evened`): where nothing in the model waits for the
    device."""
    alike = settings.accumulate == 1 and settings.compile and device.type == "cuda"
    if not alike or not steady(getattr(model, "encoder", model)):
        return False
    if isinstance(objective, HeadLoss):
        filled = isinstance(model.encoder, SeveralEncoders)
        return not objective.settings.language and (not filled or all_kernels(model, device))
    # Two passes that should agree want an empty row at the end of each.
    plain = type(objective) is Likelihood and not objective.settings.agreement and not _waits(model, objective)
    written = isinstance(model, EncoderDecoder) and model.decoder.packed and model.ctc is None
    return plain and written and all_kernels(model, device)


def filled_room(
    model: nn.Module, objective: Objective, settings: Training, device: torch.device, room: Room | None
) -> Room | None:
    """What every batch is filled up to, so that a whole update is recorded; None: it is not. `room` is what batches
    have at most, by default tokens as `settings` say."""
    known = type(objective) in (Likelihood, ReplacedTokens)  # others wait for the device
    alike = known and settings.accumulate == 1 and settings.compile and device.type == "cuda"
    if not alike or not takes_filled(model, device) or _waits(model, objective):
        return None
    tokens = settings.batch_tokens
    room = room or Room(tokens, tokens, tokens, 0)
    if getattr(model, "ctc", None) is not None and not 0 < room.longest <= ctc_loss.MOST:
        return None
    fills = [module.fills for module in model.modules() if isinstance(module, Stem)] or [1]
    # One row more than there may be, so that what fills up stands behind an empty one (`Ragged.twice`).
    source, target, rows = (round_up(number, 64) for number in (room.source, room.target, room.rows + 1))
    if source:  # a language model has none
        rows = min(rows, round_up(-(-source // max(fills)), 64))
    return Room(source, target, min(rows, target), room.longest, room.sources)


def _waits(model: nn.Module, objective: Objective) -> bool:
    """Whether the output layer asks the device which tokens it has to do with, or draws some."""
    return bool(objective.settings.sampled) or any(isinstance(module, AdaptiveHead) for module in model.modules())


def make_optimizer(
    model: nn.Module, settings: Training, device: torch.device, learning: Mapping[nn.Parameter, Pace] | None = None
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019) of the weights that learn, each at its pace; weight decay pulls on matrices,
    not on biases, norms and embeddings."""
    gpu = device.type == "cuda"  # where a step may be recorded, so that its rate has to be a tensor
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, pace in (paces(model, settings) if learning is None else learning).items():
        decay = settings.weight_decay if parameter.dim() > 1 and parameter not in embeddings else 0.0
        groups.setdefault((decay, pace.factor), []).append(parameter)
    rate = settings.learning_rate
    return torch.optim.AdamW(
        [{"params": weights, "weight_decay": decay, "factor": factor,
          "lr": torch.tensor(rate * factor, device=device) if gpu else rate * factor}
         for (decay, factor), weights in sorted(groups.items(), reverse=True)],
        betas=settings.betas, eps=1e-9, fused=True, capturable=gpu,
    )  # fmt: skip


def learning_rate(step: int, settings: Training, done: float = 0.0) -> float:
    """The rate of update `step`, from 1: a straight rise over the warm-up, then the schedule's fall. `done` is the
    share of training that is behind, where tokens or seconds limit it."""
    peak, warmup, steps = settings.learning_rate, settings.warmup, settings.steps
    if step <= warmup:
        return peak * step / warmup
    past = min(max((step - warmup) / max(steps - warmup, 1), done if settings.tokens or settings.seconds else 0.0), 1.0)
    match settings.schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1.0 - past)
        case "cosine":
            return peak * 0.5 * (1.0 + math.cos(math.pi * past))
        case "inverse_sqrt":
            return peak * math.sqrt(max(warmup, 1) / step)
