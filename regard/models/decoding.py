"""A model laid out for decoding: the same mathematics in the form and precision that writes fastest."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from regard.errors import ConfigError
from regard.nn.linear import Packed, Quantised

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class _Kept:
    """A copy, and what it was made of."""

    model: nn.Module
    weights: tuple[nn.Parameter, ...]  # asking a model for them takes longer than a step; none: they are its own
    version: int

    @property
    def valid(self) -> bool:
        return self.version == _version(self.weights)


_kept: WeakKeyDictionary[nn.Module, dict[str, _Kept]] = WeakKeyDictionary()  # the copies of each model, by precision


def changed(model: nn.Module) -> None:
    """To be told where weights change in a way that does not show: a fused optimiser leaves no trace in them."""
    kept = _kept.get(model, {})
    for precision in [name for name, one in kept.items() if one.weights]:
        del kept[precision]


def for_decoding(model: M, precision: str) -> M:
    """A copy of the model to decode with; made once, and again when weights have changed (see `changed`).

    On a CPU linear layers are kept the way a few rows are multiplied fastest. `bfloat16` halves what is read, `int8`
    quarters it; both round, so outputs may differ from those in `float32`. On a GPU a copy in `float32` has the weights
    of the model itself, and is there because it never trains.
    """
    gpu = next(model.parameters()).is_cuda
    if precision == "int8" and gpu:
        raise ConfigError("search.precision int8 is for CPUs; on a GPU use bfloat16")
    kept = _kept.setdefault(model, {})
    if precision not in kept or not kept[precision].valid:
        weights = () if gpu and precision == "float32" else tuple(model.parameters())
        kept[precision] = _Kept(_copy(model, precision, gpu), weights, _version(weights))
    return kept[precision].model  # type: ignore[return-value]


def _version(weights: Sequence[nn.Parameter]) -> int:
    return sum(weight._version for weight in weights)


def _copy(model: M, precision: str, gpu: bool) -> M:
    with torch.inference_mode(False), torch.no_grad():
        if precision == "float32" and gpu:
            return copy.deepcopy(model, {id(weight): weight for weight in model.parameters()}).eval()
        copied = copy.deepcopy(model).eval().requires_grad_(False)
        if precision == "bfloat16":
            for parameter in copied.parameters():  # buffers stay: frequencies of positions need all their digits
                parameter.data = parameter.data.to(torch.bfloat16)
        for module in list(copied.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear) and not gpu:
                    setattr(module, name, _laid_out(child, precision))
    return copied


def _laid_out(linear: nn.Linear, precision: str) -> nn.Module:
    if precision == "int8":
        return Quantised(linear)
    return Packed(linear) if Packed.available(linear.weight.dtype) else linear
