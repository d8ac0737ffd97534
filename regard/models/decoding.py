"""A model laid out for decoding: the same mathematics in the form and precision that writes fastest."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from regard.errors import ConfigError
from regard.models.stems import Stem
from regard.nn.attention import takes_filled
from regard.nn.edits import edited, origin_of
from regard.nn.graphs import Graphs, exclusive
from regard.nn.linear import Packed, Quantised
from regard.nn.lora import merge_adapters

M = TypeVar("M", bound=nn.Module)


class _Copy(NamedTuple):
    """A copy, and what it was made of."""

    model: nn.Module
    weights: tuple[nn.Parameter, ...]  # asking a model for them takes longer than a step; none: they are its own
    version: tuple[int, int]


_copies: WeakKeyDictionary[nn.Module, dict[str, _Copy]] = WeakKeyDictionary()  # of each model, by precision


def changed(model: nn.Module) -> None:
    """Drop copies whose weights were changed without a trace in their version, as a fused optimiser does."""
    copies = _copies.get(model, {})
    for precision in [name for name, one in copies.items() if one.weights]:
        copies.pop(precision, None)


def for_decoding(model: M, precision: str) -> M:
    """A copy of the model to decode with; made once, and again when weights have changed (see `changed`).

    On a CPU linear layers are kept the way a few rows are multiplied fastest. `bfloat16` halves what is read, `int8`
    quarters it; both round, so outputs may differ from those in `float32`. On a GPU a copy in `float32` has the weights
    of the model itself. It never trains, and has `graphs`, so that searches are recorded; not so one that is edited,
    which shares the copy of what it was made of.
    """
    if (origin := origin_of(model)) is not None:
        return edited(for_decoding(origin.model, precision), origin.edits)  # type: ignore[return-value]
    first = next(model.parameters())
    if precision == "int8" and first.is_cuda:
        raise ConfigError("search.precision int8 is for CPUs; on a GPU use bfloat16")
    with exclusive(first.device):  # several threads share one copy
        copies = _copies.setdefault(model, {})
        known = copies.get(precision)
        if known is None or known.version != _version(first, known.weights):
            weights = () if first.is_cuda and precision == "float32" else tuple(model.parameters())
            known = copies[precision] = _Copy(_copy(model, precision, first), weights, _version(first, weights))
        return known.model  # type: ignore[return-value]


def _version(first: nn.Parameter, weights: Sequence[nn.Parameter]) -> tuple[int, int]:
    """Where weights lie, which recorded graphs go by, and how often they were changed."""
    return first.data_ptr(), sum(weight._version for weight in weights)


def _copy(model: M, precision: str, first: nn.Parameter) -> M:
    with torch.inference_mode(False), torch.no_grad():
        shares = first.is_cuda and precision == "float32"
        own = [*model.parameters(), *model.buffers()]
        copied = copy.deepcopy(model, {id(tensor): tensor for tensor in own} if shares else {}).eval()
        if not shares:
            merge_adapters(copied)
            copied.requires_grad_(False)
        if precision == "bfloat16":
            for parameter in copied.parameters():  # buffers stay: frequencies of positions need all their digits
                parameter.data = parameter.data.to(torch.bfloat16)
        if first.is_cuda:
            # Sources of sound could be filled up as well, and those that a decoder reads itself; what a search then
            # records has not been tried on a GPU.
            tokens = all(module.fills <= 1 for module in copied.modules() if isinstance(module, Stem))
            apart = not getattr(copied, "reads_source_first", False)
            filled = tokens and apart and takes_filled(copied, first.device)
            copied.graphs = Graphs(first.device, filled=filled)  # type: ignore[assignment]
            return copied
        for module in list(copied.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear) and precision == "int8":
                    setattr(module, name, Quantised(child))
                elif isinstance(child, nn.Linear) and Packed.available(child.weight.dtype):
                    setattr(module, name, Packed(child))
    return copied
