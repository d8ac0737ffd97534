"""Linear layers: as they are trained, and as they decode fastest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.ragged import bucket

PARTS = 32  # numbers of rows up to each power of 2 (see `bucket`): at most a sixteenth more than there are


class Linear(nn.Linear):
    """`W x + b`, of which some rows can be asked for alone. `heights` are the rows of each matrix, where `W` is several
    of them, one above the other."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, heights: Sequence[int] | None = None
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.heights = tuple(heights or (out_features,))
        self.bounds = list(accumulate(self.heights, initial=0))  # where each matrix begins, and where the last ends

    def forward(self, x: Tensor) -> Tensor:
        half = x.is_cuda and (torch.is_autocast_enabled("cuda") or x.element_size() == 2)
        if self.bias is None or not half or not (self.bias.requires_grad and torch.is_grad_enabled()):
            return F.linear(x, self.weight, self.bias)
        return BiasGradient.apply(F.linear(x, self.weight, self.bias.detach()), self.bias)

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of the output, which is the last axis here."""
        return F.linear(x, self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


class BiasGradient(torch.autograd.Function):
    """Hands a bias that has been added its gradient, the sum over all rows, as a product with ones: what torch adds up
    at half of a GPU's bandwidth, a product reads at nearly all of it."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor) -> Tensor:
        ctx.dtype = bias.dtype
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = gradients
        flat = gradient.flatten(0, -2)
        return gradient, (flat.new_ones(1, flat.shape[0]) @ flat)[0].to(ctx.dtype)


def linear_relu(linear: nn.Module, x: Tensor) -> Tensor:
    """`relu(W x + b)`; on a GPU in one kernel, where there is no gradient to come."""
    plain = type(linear) is nn.Linear and linear.bias is not None and linear.weight.dtype == x.dtype
    if not plain or not x.is_cuda or torch.is_grad_enabled():
        return torch.relu(linear(x))
    assert isinstance(linear, nn.Linear), "what is plain is linear"
    found = torch._addmm_activation(linear.bias, x.flatten(0, -2), linear.weight.t())
    return found.view(*x.shape[:-1], len(linear.weight))


class Packed(nn.Module):
    """`W x + b` with `W` laid out as oneDNN multiplies it fastest: for a few rows on a CPU in half the time or less.

    oneDNN compiles code for each number of rows that it meets, up to half a megabyte, and keeps it for good, whatever
    its cache is set to. In a search that number falls from step to step; so rows are filled up to one of few numbers.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach(), requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)
        self.packed: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Packed:
        """Itself: it only decodes, and its layouts take as much memory as its weights."""
        return self

    @staticmethod
    def available(dtype: torch.dtype) -> bool:
        """Whether torch has it, and for weights of this type: it is there for torch's own compiler and not promised to
        others, and oneDNN takes bfloat16 only on CPUs with instructions for it, and float64 nowhere."""
        if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
            return False
        if dtype == torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        return dtype == torch.float32

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x, 0, len(self.weight))

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of the output."""
        if (start, stop) not in self.packed:
            with torch.inference_mode(False), torch.no_grad():
                part = self.weight.detach()[start:stop].clone()
                laid_out = torch.ops.mkldnn._reorder_linear_weight(part, 16)  # for some 16 rows
                self.packed[start, stop] = laid_out, None if self.bias is None else self.bias.detach()[start:stop]
        weight, bias = self.packed[start, stop]
        count = x.shape[:-1].numel()
        more = bucket(count, PARTS) - count if count else 0
        rows = F.pad(x.reshape(count, -1), (0, 0, 0, more)) if more else x
        found = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
        return found[:count].view(*x.shape[:-1], stop - start) if more else found


class Quantised(nn.Module):
    """`W x + b` in whole numbers of 8 bits: `W` with a scale for each output, `x` rounded with one of its own."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(1).clamp(min=1e-12) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", torch.zeros_like(scale) if linear.bias is None else linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x, 0, len(self.bias))

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of the output."""
        flat = x.reshape(-1, x.shape[-1])
        scale = flat.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        rounded = (flat / scale).round_().to(torch.int8)
        products = torch._int_mm(rounded, self.weight[start:stop].t()).to(x.dtype)
        found = torch.addcmul(self.bias[start:stop], products.mul_(scale), self.scale[start:stop])
        return found.view(*x.shape[:-1], stop - start)
