"""The parts of a model that are not traced into an ONNX graph as they are, in a form that is.

In a graph no shape may depend on a value. So sequences keep their padding (`Padded`), a cache grows by concatenation
instead of being written into (`GrowingCache`), and recurrence over a whole source is ONNX's own operator, which takes
the length of each row (`GraphRecurrence`). Everything else is the model's own code.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.recurrence import Recurrence
from regard.ragged import Ragged

M = TypeVar("M", bound=nn.Module)
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}  # ONNX's order: iofc of torch's ifco, zrh of rzh


class Padded(Ragged):
    """Sequences with their padding among the values, `(rows * longest, …)`: it is computed on and never attended to."""

    @staticmethod
    def of_rows(values: Tensor, lengths: Tensor, longest: int, *, flush_right: bool = False) -> Padded:
        """From values with padding behind each sequence, or before it."""
        made = Padded(values, F.pad(lengths.cumsum(0), (1, 0)), longest)
        before = longest - lengths if flush_right else torch.zeros_like(lengths)
        position = torch.arange(longest) - before[:, None]  # (rows, longest)
        mask = (position >= 0) & (position < lengths[:, None])
        made.__dict__.update(lengths=lengths, mask=mask, position=position.clamp(min=0).flatten())
        return made

    def like(self, values: Tensor) -> Padded:
        other = Padded(values, self.offsets, self.longest)
        other.__dict__.update({name: self.__dict__[name] for name in ("lengths", "mask", "position")})
        return other

    def even(self, values: Tensor, length: int) -> Padded:
        return Padded.of_rows(values, torch.full_like(self.lengths, length), length)

    def padded(self, fill: float = 0) -> Tensor:
        values = self.values.unflatten(0, (self.rows, self.longest))
        return values.masked_fill(~self.mask.view(*self.mask.shape, *[1] * (values.dim() - 2)), fill)

    def unpadded(self, padded: Tensor) -> Padded:
        return self.like(padded.flatten(0, 1))

    def along(self, f: Callable[[Tensor], Tensor], reach: int) -> Padded:
        return self.unpadded(f(self.padded().mT).mT)

    def reversed(self) -> Padded:
        slot = torch.arange(self.longest)
        index = torch.where(self.mask, self.lengths[:, None] - 1 - slot, slot)
        first = torch.arange(self.rows)[:, None] * self.longest
        return self.like(self.values[(first + index).flatten()])

    def mean(self) -> Tensor:
        return self.padded().sum(1) / self.lengths.clamp(min=1)[:, None]


class GrowingCache:
    """Stands for the tensor of a decoder's cache: writing into it makes it longer."""

    def __init__(self, past: Tensor, new: int) -> None:
        self.grown, self.device, self.dtype = past, past.device, past.dtype
        self.shape = (past.shape[0], past.shape[1] + new, *past.shape[2:])

    def index_copy_(self, dim: int, index: Tensor, new: Tensor) -> None:
        """Add what is new at the end, which is where the index points."""
        self.grown = torch.cat((self.grown, new), dim)

    def __getitem__(self, window: Any) -> Tensor:
        return self.grown


class GraphRecurrence(nn.Module):
    """A `Recurrence` whose whole sequences are one ONNX operator a layer; its steps stay as they are.

    The weights are those of torch with gates in ONNX's order, both biases in one, and an axis of directions before all.
    The operator wants lengths of at least 1, so what it makes of an empty row is thrown away.
    """

    def __init__(self, plain: Recurrence) -> None:
        super().__init__()
        self.plain, order = plain, GATES[plain.cell]
        for i, layer in enumerate(plain.layers):
            gates = [weight.detach().chunk(len(order)) for weight in layer.all_weights[0]]
            w_x, w_h, *biases = (torch.cat([parts[gate] for gate in order]) for parts in gates)
            for name, tensor in {"input": w_x, "hidden": w_h, "bias": torch.cat(biases)}.items():
                self.register_buffer(f"{name}_{i}", tensor[None])

    def start(self, rows: int, like: Tensor) -> Tensor:
        """A carry of zeros."""
        return self.plain.start(rows, like)

    def step(self, x: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        """One step for `(rows, d_input)`: the top layer's `(rows, d_model)`, and the new carry."""
        return self.plain.step(x, carry)

    def forward(self, x: Padded, carry: Tensor) -> tuple[Padded, Tensor]:
        """All states of the top layer, and the carry at the end of each sequence."""
        cell, parts, width = self.plain.cell, self.plain.parts, self.plain.d_model
        attributes: dict[str, Any] = {"hidden_size": width}
        if cell == "gru":
            attributes["linear_before_reset"] = 1  # as torch does it
        lengths, ends = x.lengths.clamp(min=1).to(torch.int32), []
        y = x.padded().transpose(0, 1)  # (longest, rows, d_input)
        for i in range(len(self.plain.layers)):
            weights = [self.get_buffer(f"{name}_{i}") for name in ("input", "hidden", "bias")]
            begin = [part.unsqueeze(0).contiguous() for part in carry[:, i].unbind(1)]  # (1, rows, d_model)
            y, *end = torch.onnx.ops.symbolic_multi_out(
                cell.upper(), [y, *weights, lengths, *begin], attributes, dtypes=[torch.float32] * (1 + parts),
                shapes=[[x.longest, 1, x.rows, width], *[[1, x.rows, width]] * parts],
            )  # fmt: skip
            y = y.squeeze(1)
            ends.append(torch.cat(end).transpose(0, 1))  # (rows, parts, d_model)
        after = torch.where((x.lengths > 0)[:, None, None, None], torch.stack(ends, dim=1), carry)
        return x.like(y.transpose(0, 1).flatten(0, 1)), after


def exportable(model: M, recurrence: Callable[[Recurrence], nn.Module] = GraphRecurrence) -> M:
    """A copy of a model with the same weights, to be traced: `recurrence` is what takes the place of each stack."""
    copied = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()}).eval()
    for module in list(copied.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Recurrence):
                setattr(module, name, recurrence(child))
    return copied


@contextmanager
def quiet() -> Iterator[None]:
    """Inside this the exporter says nothing of what is none of the user's business."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.__trace", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
