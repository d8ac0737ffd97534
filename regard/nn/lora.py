"""Low-rank adapters of linear layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.dropout import Dropout
from regard.nn.linear import Linear


class Adapted(Linear):
    """LoRA, Hu et al. 2022: `W x + b + (α / r) B A dropout(x)`, with `W` and `b` as they were and `B` zero at first.

    Where `W` is several matrices one above the other (`Linear.heights`), such as those of queries, keys and values,
    each has an `A` and a `B` of its own, of rank `r`. All `A` lie in `down` `(matrices · r, d_input)`, all `B` in `up`
    `(d_output, r)`, in the same order.
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        heights = linear.heights if isinstance(linear, Linear) else (linear.out_features,)
        with torch.device("meta"):
            super().__init__(linear.in_features, linear.out_features, linear.bias is not None, heights=heights)
        self.weight, self.bias = linear.weight, linear.bias
        self.rank, self.scale, self.dropout = rank, alpha / rank, Dropout(dropout)
        self.down = nn.Parameter(linear.weight.new_empty(len(heights) * rank, linear.in_features))
        self.up = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)  # as published: as torch begins any linear layer

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x, 0, self.out_features)

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of the output, which begin and end where one of the matrices does."""
        bounds = self.bounds
        first, last = bounds.index(start), bounds.index(stop)
        low = F.linear(self.dropout(x), self.down[first * self.rank : last * self.rank])  # (…, matrices · r)
        each = [
            F.linear(part, self.up[bounds[number] : bounds[number + 1]])
            for number, part in enumerate(low.split(self.rank, -1), first)
        ]
        added = each[0] if len(each) == 1 else torch.cat(each, -1)
        return torch.add(super().part(x, start, stop), added, alpha=self.scale)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """`W + (α / r) B A`, added up in double precision."""
        downs, ups = self.down.double().split(self.rank), self.up.double().split(self.heights)
        added = torch.cat([up @ down for up, down in zip(ups, downs, strict=True)])
        return (self.weight.double() + self.scale * added).to(self.weight.dtype)

    def plain(self) -> Linear:
        """A linear layer that computes the same, without dropout."""
        with torch.device("meta"):
            made = Linear(self.in_features, self.out_features, self.bias is not None, heights=self.heights)
        made.weight = nn.Parameter(self.merged(), requires_grad=self.weight.requires_grad)
        made.bias = self.bias
        return made.train(self.training)


def merge_adapters(model: nn.Module) -> None:
    """Put a plain layer in the place of each that is adapted."""
    replace_layers(model, {module: module.plain() for module in model.modules() if isinstance(module, Adapted)})


def replace_layers(model: nn.Module, others: Mapping[nn.Module, nn.Module]) -> None:
    """Put another layer in every place where one of these stands."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in others:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, others[module])
