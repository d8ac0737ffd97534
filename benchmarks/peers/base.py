"""What is asked of Regard and of each peer, and what peers share: lazy imports, the loss and the training step."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.race import Role, UnavailableError, Work
from benchmarks.workload import SMOOTHING, Padded, Shape, Tokens, Window, pad
from regard.data.marks import PAD
from regard.errors import TrainingError
from regard.search.limits import Hypothesis
from regard.search_settings import Search
from regard.tasks.generating import TextGeneration

INSTALL = {
    "transformers": "pip install transformers",
    "ctranslate2": "pip install ctranslate2",
    "httpx": "pip install httpx",
    # It pins libraries that are years old. Without the pins it runs beside a new torch as it is.
    "joeynmt": "pip install --no-deps joeynmt==2.3.0 && pip install importlib_metadata packaging pandas plotly seaborn "
    "subword-nmt tensorboard tqdm",
}
Batches = Callable[[Tokens, Tokens], Any]  # a batch in a peer's own form, from sources and targets
Step = Callable[[Any], Tensor]  # trains on such a batch; returns the loss, a mean per token, still on its device
Decode = Callable[[Tokens], list[Hypothesis]]  # the best output of each source


class Placed(Protocol):
    """Where something is trained, and in which precision."""

    @property
    def device(self) -> torch.device: ...

    @property
    def precision(self) -> str: ...


@dataclass(frozen=True)
class Load:
    """What is trained on what."""

    shape: Shape
    window: Window
    device: torch.device
    precision: str
    budget: int  # tokens a side in a batch
    count: int  # batches


@dataclass(frozen=True)
class Job:
    """What is decoded, with Regard's own weights, and how."""

    task: TextGeneration
    search: Search
    sample: Tokens  # sources to tune on
    folder: Path  # for a peer's files
    shape: Shape | None = None  # unless the model was trained
    at_once: bool = False  # what is decoded together is one batch


@dataclass(frozen=True)
class Peer:
    """A program that is measured. An adapter overrides what its program can do.

    Each method sets one thing up, or raises `UnavailableError` with the reason; a peer is imported only then.
    """

    title: str
    note: str = ""
    role: Role = "peer"
    against: str = ""  # the title of another, that it is compared with
    packed: bool = False  # whether its batches hold no padding
    by_length: bool = True  # whether it trains on sentences sorted by length
    every_precision: bool = False  # whether it decodes in all precisions that are asked for, or in the first alone
    inside: Callable[[], AbstractContextManager[None]] = nullcontext  # turns are taken within this

    def training(self, load: Load) -> tuple[Batches, Step]:
        """How batches are made, and a step of training."""
        raise UnavailableError(f"{self.title} is not measured in training")

    def decoding(self, job: Job) -> tuple[Decode, str]:
        """Decoding, and what is to be noted of it."""
        raise UnavailableError(f"{self.title} is not measured in decoding")

    def start_up(self, case: str, shape: Shape, folder: Path) -> list[str]:
        """Python's arguments for "import", "--help" or "first translation", for which a model is saved in `folder`."""
        raise UnavailableError(f"{self.title} is not measured in starting up")


def need(name: str) -> Any:
    """A peer's module, imported now; `UnavailableError` says how to install what is missing."""
    package = name.partition(".")[0]
    try:
        with quiet():
            return import_module(name)
    except ImportError as error:
        missing = "" if error.name in (None, package) else f" (it lacks {error.name})"
        raise UnavailableError(f"not installed{missing}; {INSTALL[package]}") from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence what peers print and warn of while they are imported and set up."""
    before, hidden = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(hidden), contextlib.redirect_stderr(hidden):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def smoothed(logits: Tensor, batch: Padded) -> Tensor:
    """The loss of padded rows, a mean per real token."""
    outputs = batch.outputs.flatten()
    found = F.cross_entropy(logits.flatten(0, 1), outputs, label_smoothing=SMOOTHING, ignore_index=PAD, reduction="sum")
    return found / batch.tokens


def stepper(model: nn.Module, loss_of: Callable[[Any], Tensor], load: Placed) -> Step:
    """A step of training from a loss: forward, backward, clipping, AdamW, as in Regard's update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    model.train()

    def step(batch: Any) -> Tensor:
        if isinstance(batch, Padded):
            batch = batch.each(lambda x: x.to(load.device, non_blocking=True))
        with torch.autocast(load.device.type, torch.bfloat16, enabled=load.precision == "bfloat16"):
            loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def training_work(
    step: Step, batches: Sequence[Any], amount: float, device: torch.device, *, note: str = "",
    extra: Callable[[float], dict[str, float]] = lambda rate: {},
    inside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Work:  # fmt: skip
    """Turns that train on all batches once, which is so much work. A GPU is warm after two of them, a CPU after a
    step."""

    def turn(some: Sequence[Any] = batches) -> float:
        loss = torch.zeros(())
        for batch in some:
            loss = step(batch)
        if not math.isfinite(float(loss)):
            raise TrainingError(f"the loss became {float(loss)}: what was timed is no training")
        return amount

    warm = [*batches, *batches] if device.type == "cuda" else batches[:1]
    return Work(turn, lambda: turn(warm), note, extra, inside)


def padded_batches(load: Load) -> Batches:
    """Padded batches, for a GPU in memory from which it can fetch by itself."""
    return lambda x, y: pad(x, y).each(Tensor.pin_memory) if load.device.type == "cuda" else pad(x, y)
