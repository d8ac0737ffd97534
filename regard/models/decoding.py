"""A model laid out for decoding: the same mathematics in the form and precision that writes fastest."""

from __future__ import annotations

import copy
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from regard.errors import ConfigError
from regard.nn.linear import Packed, Quantised

M = TypeVar("M", bound=nn.Module)
# Of each model, its copies by precision, with the state of the weights that each was made of.
_kept: WeakKeyDictionary[nn.Module, dict[str, tuple[int, nn.Module]]] = WeakKeyDictionary()


def changed(model: nn.Module) -> None:
    """To be told where weights change in a way that does not show: a fused optimiser leaves no trace in them."""
    _kept.pop(model, None)


def for_decoding(model: M, precision: str) -> M:
    """A copy of the model to decode with, or the model itself where nothing would be gained; made once, and again when
    weights have changed (see `changed`). It has no gradients.

    On a CPU linear layers are kept the way a few rows are multiplied fastest. `bfloat16` halves what is read, `int8`
    quarters it; both round, so outputs may differ from those in `float32`.
    """
    gpu = next(model.parameters()).is_cuda
    if precision == "int8" and gpu:
        raise ConfigError("search.precision int8 is for CPUs; on a GPU use bfloat16")
    if precision == "float32" and gpu:
        return model
    version = sum(parameter._version for parameter in model.parameters())
    kept = _kept.setdefault(model, {})
    if precision not in kept or kept[precision][0] != version:
        kept[precision] = (version, _copy(model, precision, gpu))
    return kept[precision][1]  # type: ignore[return-value]


def _copy(model: M, precision: str, gpu: bool) -> M:
    with torch.inference_mode(False), torch.no_grad():
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
    return Packed(linear) if Packed.available() else linear
