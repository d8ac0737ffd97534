"""One update of the weights: forward, backward, clipping, step.

On a GPU blocks are compiled, and where all batches can be of one shape the whole update is recorded once and replayed:
a batch is then filled up with tokens that belong to no sequence and do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import IGNORED, Batch
from regard.errors import ConfigError
from regard.models.decoding import changed
from regard.nn.attention import takes_filled
from regard.nn.blocks import DecoderBlock, EncoderBlock
from regard.nn.graphed import Graphs, recording
from regard.settings import Training
from regard.training.objectives import Likelihood, Objective
from regard.training.optim import learning_rate, make_optimizer

WARM = 3  # updates before the recording: kernels are compiled and chosen, and the optimiser has its state


@dataclass(frozen=True)
class Updated:
    """What an update gave, on the device; it may be overwritten by the next update."""

    loss: Tensor  # summed over the batch; 0 if the update was skipped
    norm: Tensor  # of the gradient, before clipping
    skipped: Tensor  # 1.0 if loss or gradient was not finite, so that weights and optimiser stayed as they were


class Updater:
    """Brings `model` nearer to `objective`, some batches at a time.

    An update whose loss or gradient is not finite is skipped. Whether it is, only the device knows: nothing waits for
    it (the optimiser is handed the answer as a tensor, as torch's GradScaler does).
    """

    def __init__(self, model: nn.Module, objective: Objective, settings: Training, device: torch.device) -> None:
        self.model, self.objective, self.settings, self.device = model, objective, settings, device
        self.optimizer = make_optimizer(model, settings, device)
        self.frozen = _frozen(model, settings.freeze)
        fast = device.type == "cuda" and settings.compile
        self.size = filled_size(model, objective, settings, device)
        self.compiled = _compiled(model) if fast else []
        self.graphs = Graphs() if fast else None
        self.warm, self.recording = 0, None  # type: int, _Recording | None
        self.stream = None if self.size is None else torch.cuda.Stream()  # for the updates before the recording

    def prepare(self, batch: Batch) -> Batch:
        """What can be done to a batch before its turn, in another thread."""
        if self.size is not None:
            batch = batch.filled(self.size) or batch
        return batch.pinned() if self.device.type == "cuda" else batch

    def forget(self) -> None:
        """Drop the recording: what it works on (the optimiser's state, or which weights learn) is no longer that."""
        self.warm, self.recording = 0, None

    def __call__(self, batches: Sequence[Batch], step: int, done: float) -> Updated:
        """Update once; `step` is its number, from 1, and `done` is the share of training that is behind."""
        rate = learning_rate(step, self.settings, done)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if not self.model.training:
            self.model.train()
        changed(self.model)
        if self.frozen and 0 < self.settings.thaw < step:
            for parameter in self.frozen:
                parameter.requires_grad_(True)
            self.frozen = []
            self.forget()
        if self.size is None or batches[0].inputs.values.shape[0] != self.size:
            return self._update([batch.to(self.device) for batch in batches], done)
        if self.recording is None and self.warm == WARM:
            self.recording = _Recording(lambda batch: self._update([batch], done), batches[0].to(self.device))
        if self.recording is not None:
            return self.recording(batches[0])
        self.warm += 1
        assert self.stream is not None, "what has a size has a stream"
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):  # as torch asks of what runs before a recording
            found = self._update([batches[0].to(self.device)], done)
        torch.cuda.current_stream().wait_stream(self.stream)
        return found

    def _update(self, batches: Sequence[Batch], done: float) -> Updated:
        settings = self.settings
        total = torch.zeros((), device=self.device)
        count: Tensor | int = sum(batch.tokens for batch in batches)
        if self.size is not None and len(batches) == 1:  # a number would be the same in every replay
            count = (batches[0].outputs.values != IGNORED).sum()
        for batch in batches:
            with _in_place(self.compiled), self._precision(), recording(self.graphs):
                loss = self.objective(batch, done)
            (loss / count).backward()
            total = total + loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
        finite = torch.isfinite(total) & torch.isfinite(norm)
        skipped = (~finite).float()
        self.optimizer.found_inf = skipped  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Updated(torch.where(finite, total, 0.0), norm, skipped)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16")


def filled_size(model: nn.Module, objective: Objective, settings: Training, device: torch.device) -> int | None:
    """How many tokens a side of every batch is filled up to, so that a whole update is recorded; None: it is not."""
    alike = type(objective) is Likelihood and settings.accumulate == 1 and settings.compile and device.type == "cuda"
    return -(-settings.batch_tokens // 64) * 64 if alike and takes_filled(model, device) else None


def _frozen(model: nn.Module, parts: Sequence[str]) -> list[nn.Parameter]:
    """The weights of these parts, which from now on do not learn."""
    own = dict(model.named_parameters(remove_duplicate=False))
    found: list[nn.Parameter] = []
    for part in parts:
        weights = [parameter for name, parameter in own.items() if name == part or name.startswith(f"{part}.")]
        if not weights:
            raise ConfigError(
                f"training.freeze: this model has no part '{part}'; there are: "
                f"{', '.join(dict.fromkeys(name.partition('.')[0] for name in own))} and what is in them"
            )
        found += weights
    if found and not {id(x) for x in own.values()} - {id(x) for x in found}:
        raise ConfigError("training.freeze names every part, so nothing would learn; leave one out")
    for parameter in found:
        parameter.requires_grad_(False)
    return found


class _Recording:
    """An update as a graph of kernels, with a batch of its own that each one is copied to."""

    def __init__(self, update: Callable[[Batch], Updated], batch: Batch) -> None:
        self.batch = batch
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # a recording has memory of its own, so what updates before it had is given back
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # another thread makes batches ready
            self.found = update(batch)

    def __call__(self, batch: Batch) -> Updated:
        for own, given in zip(_tensors(self.batch), _tensors(batch), strict=True):
            own.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.found


def _tensors(batch: Batch) -> Iterator[Tensor]:
    for side in (batch.source, batch.inputs, batch.outputs):
        yield from (side.values, side.offsets)


def _compiled(model: nn.Module) -> list[tuple[nn.Module, Any]]:
    """The blocks of a Transformer, compiled: those of a stack are alike, so that it is done but once for each stack."""
    blocks = [module for module in model.modules() if isinstance(module, EncoderBlock | DecoderBlock)]
    return [(block, torch.compile(block.forward)) for block in blocks]


@contextmanager
def _in_place(compiled: Sequence[tuple[nn.Module, Any]]) -> Iterator[None]:
    """Inside this the compiled blocks stand in for those they were made of, which validation goes on to use."""
    for block, forward in compiled:
        block.forward = forward
    try:
        yield
    finally:
        for block, _ in compiled:
            del block.forward
