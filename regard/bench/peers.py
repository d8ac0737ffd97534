"""Peers: which there are, how to get them, and the loss and step of training that they share."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.bench.measure import NotThereError
from regard.bench.workload import SMOOTHING, Padded
from regard.data.tokens import PAD

INSTALL = {
    "transformers": "pip install transformers",
    "ctranslate2": "pip install ctranslate2",
    # It pins libraries that are years old. Without the pins it runs beside a new torch as it is.
    "joeynmt": "pip install --no-deps joeynmt==2.3.0 && pip install importlib_metadata packaging pandas plotly seaborn "
    "subword-nmt tensorboard tqdm",
}
Step = Callable[[Padded], Tensor]  # gives the loss, a mean per token, still on its device


def need(name: str) -> Any:
    """A peer's module, imported now; `NotThereError` says how to install what is missing."""
    package = name.partition(".")[0]
    try:
        with quiet():
            return import_module(name)
    except ImportError as error:
        missing = "" if error.name in (None, package) else f" (it lacks {error.name})"
        raise NotThereError(f"not installed{missing}; {INSTALL[package]}") from None


@contextlib.contextmanager
def quiet() -> Any:
    """What peers say and warn of while they are imported and set up is theirs to say elsewhere."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def smoothed(logits: Tensor, batch: Padded) -> Tensor:
    """The loss of padded rows, a mean per real token."""
    outputs = batch.outputs.flatten()
    found = F.cross_entropy(logits.flatten(0, 1), outputs, label_smoothing=SMOOTHING, ignore_index=PAD, reduction="sum")
    return found / batch.tokens


def stepper(model: nn.Module, loss_of: Callable[[Any], Tensor], device: torch.device, precision: str) -> Any:
    """A step of training from what gives the loss of a batch: then backward, clipping, AdamW, as in Regard's update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    model.train()

    def step(batch: Any) -> Tensor:
        if isinstance(batch, Padded):
            batch = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
