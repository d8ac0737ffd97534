"""What stands in for what cannot be traced into an ONNX graph.

Sequences come with their padding (`Rectangle`), since in a graph no shape may depend on a number. A cache is one longer
after each step (`Growing`) instead of written into. And recurrence over a whole source becomes ONNX's own operator,
which knows where each row ends.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models import encoders, transformer
from regard.models import model as models
from regard.models.encoders import ConvolutionEncoder, Memory
from regard.nn import blocks
from regard.nn.positions import T5Bias
from regard.nn.recurrence import Recurrence
from regard.ragged import Ragged

WEIGHTS = ("onnx_input", "onnx_hidden", "onnx_bias")  # of a recurrent layer, as ONNX wants them


class Rectangle(Ragged):
    """Sequences with their padding among their values, `(rows * longest, …)`, which is computed on but never seen."""

    @staticmethod
    def lay(values: Tensor, lengths: Tensor, longest: int, *, flush_right: bool = False) -> Rectangle:
        """From values that are padded behind each sequence, or before it."""
        made = Rectangle(values, F.pad(lengths.cumsum(0), (1, 0)), longest)
        before = longest - lengths if flush_right else torch.zeros_like(lengths)
        position = torch.arange(longest) - before[:, None]  # (rows, longest)
        mask = (position >= 0) & (position < lengths[:, None])
        made.__dict__.update(lengths=lengths, mask=mask, position=position.clamp(min=0).flatten())
        return made

    def like(self, values: Tensor) -> Rectangle:
        other = Rectangle(values, self.offsets, self.longest)
        other.__dict__.update({name: self.__dict__[name] for name in ("lengths", "mask", "position")})
        return other

    def padded(self, fill: float = 0) -> Tensor:
        values = self.values.unflatten(0, (self.mask.shape[0], self.longest))
        return values.masked_fill(~self.mask.view(*self.mask.shape, *[1] * (values.dim() - 2)), fill)

    def unpadded(self, padded: Tensor) -> Rectangle:
        return self.like(padded.flatten(0, 1))

    def reversed(self) -> Rectangle:
        slot = torch.arange(self.longest)
        index = torch.where(self.mask, self.lengths[:, None] - 1 - slot, slot)
        first = torch.arange(self.mask.shape[0])[:, None] * self.longest
        return self.like(self.values[(first + index).flatten()])

    def mean(self) -> Tensor:
        return self.padded().sum(1) / self.lengths.clamp(min=1)[:, None]


class Growing:
    """A cache that is longer after a step, by what would be written into it."""

    def __init__(self, past: Tensor, new: int) -> None:
        self.grown, self.device, self.dtype = past, past.device, past.dtype
        self.shape = (past.shape[0], past.shape[1] + new, *past.shape[2:])

    def index_copy_(self, dim: int, index: Tensor, new: Tensor) -> None:
        """What is new goes to the end, whatever the index; it is the same place."""
        self.grown = torch.cat((self.grown, new), dim)

    def __getitem__(self, window: Any) -> Tensor:
        return self.grown

    def __len__(self) -> int:
        return self.shape[0]


def recur(self: Recurrence, x: Rectangle, carry: Tensor) -> tuple[Rectangle, Tensor]:
    """`Recurrence.forward` in ONNX's operators, with weights from `prepare`. They want lengths of at least 1, so what
    they make of an empty row is thrown away."""
    attributes: dict[str, Any] = {"hidden_size": self.d_model}
    if self.cell == "gru":
        attributes["linear_before_reset"] = 1  # as torch does it
    rows, longest = x.mask.shape
    lengths, ends = x.lengths.clamp(min=1).to(torch.int32), []
    y = x.padded().transpose(0, 1)  # (longest, rows, d_input)
    for i, layer in enumerate(self.layers):
        begin = [part.unsqueeze(0).contiguous() for part in carry[:, i].unbind(1)]  # (1, rows, d_model)
        state = [1, rows, self.d_model]
        y, *end = torch.onnx.ops.symbolic_multi_out(
            self.cell.upper(),
            [y, *(layer.get_buffer(name) for name in WEIGHTS), lengths, *begin],
            attributes,
            dtypes=[torch.float32] * (1 + self.parts),
            shapes=[[longest, 1, rows, self.d_model], *[state] * self.parts],
        )
        y = y.squeeze(1)
        ends.append(torch.cat(end).transpose(0, 1))  # (rows, parts, d_model)
    after = torch.where((x.lengths > 0)[:, None, None, None], torch.stack(ends, dim=1), carry)
    return x.like(y.transpose(0, 1).flatten(0, 1)), after


def look(self: ConvolutionEncoder, source: Rectangle) -> Memory:
    """`ConvolutionEncoder.forward`, written again since it makes a list of its rows, which fixes their number."""
    pixels = source.values.unflatten(0, (-1, source.longest)).unflatten(-1, (-1, 3)).float() / 127.5 - 1.0
    x = pixels.permute(0, 3, 1, 2)  # (rows, channels, height, width)
    if self.coordinates:
        where = torch.stack(torch.meshgrid(*(torch.linspace(-1, 1, n) for n in x.shape[-2:]), indexing="ij"))
        x = torch.cat((x, where.expand(x.shape[0], -1, -1, -1)), dim=1)
    cells = self.norm(self.layers(x).flatten(2).mT)  # (rows, cells, d_model)
    count = cells.shape[1]
    return Memory(Rectangle.lay(cells.flatten(0, 1), torch.full_like(source.lengths, count), count))


def prepare(model: nn.Module) -> None:
    """Add the weights of recurrent layers as ONNX wants them: gates in the order `iofc` for torch's `ifco`, `zrh` for
    `rzh`, both biases in one, and an axis of directions before all. The model still does what it did."""
    for module in model.modules():
        if isinstance(module, T5Bias):  # the exporter has no product of a truth and a number, but of two tensors
            module.side = torch.as_tensor(module.side)  # type: ignore[assignment]
        if isinstance(module, Recurrence):
            order = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}[module.cell]
            for layer in module.layers:
                of_input, of_hidden, *biases = (
                    torch.cat([gates.detach().chunk(len(order))[k] for k in order]) for gates in layer.all_weights[0]
                )
                for name, tensor in zip(WEIGHTS, (of_input, of_hidden, torch.cat(biases)), strict=True):
                    layer.register_buffer(name, tensor[None])


def _length(x: Any) -> Any:
    """`len`, of which the tracer sees nothing, as a size, which it follows."""
    return x.shape[0] if isinstance(x, Tensor) else x.__len__()


@contextmanager
def traceable() -> Iterator[None]:
    """Inside this, modules can be traced, and the exporter is silent about what is none of the user's business."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.__trace", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with ExitStack() as stack:
        for module in (transformer, encoders, models, blocks):
            stack.enter_context(patch.object(module, "len", _length, create=True))
        stack.enter_context(patch.object(Recurrence, "forward", recur))
        stack.enter_context(patch.object(ConvolutionEncoder, "forward", look))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.no_grad())
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
