"""An LSTM layer for language models: dropout on its recurrent weights, and rounds of gating before its cell."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.deferred import autocast_dtype, defer_gradients, deferred_linear
from regard.nn.dropout import Dropout
from regard.nn.graphs import Looped
from regard.nn.kernels import usable
from regard.nn.recurrence import initialize, lstm
from regard.ragged import Ragged, gathered

Pair = tuple[Tensor, Tensor]  # hidden vector and cell, each (rows, width)


class Gate(nn.Module):
    """`x ← 2σ(Q h) ∘ x`, one round of a Mogrifier; with a rank, `Q` is a product of two matrices."""

    def __init__(self, d_input: int, d_output: int, rank: int) -> None:
        super().__init__()
        widths = [d_input, rank, d_output] if rank else [d_input, d_output]
        layers = [nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]
        self.layers = nn.ModuleList(layers)
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, by: Tensor, x: Tensor) -> Tensor:
        for layer in self.layers:
            by = deferred_linear(by, layer.weight)  # type: ignore[arg-type]
        return gated(by, x)


def gated(by: Tensor, x: Tensor) -> Tensor:
    """`2σ(by) ∘ x`, in the precision of `x`."""
    if usable(by) and usable(x):
        return _Gated.apply(by, x)
    return (2.0 * torch.sigmoid(by) * x).to(x.dtype)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, by: Tensor, x: Tensor) -> Tensor:
        from regard.nn import triton_steps

        by, x = by.contiguous(), x.contiguous()
        ctx.save_for_backward(by, x)
        out = torch.empty_like(x)
        triton_steps.gate(by, x, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        from regard.nn import triton_steps

        by, x = ctx.saved_tensors
        dby, dx = torch.empty_like(by), torch.empty_like(x)
        triton_steps.gate_backward(by, x, gradients[0].contiguous(), dby, dx)
        return dby, dx


class MogrifierLSTM(Looped):
    """An LSTM (Hochreiter and Schmidhuber 1997) before each of whose steps input and state gate one another (Melis et
    al. 2020, eq. 1 and 2), in `rounds`: `x ← 2σ(Q_i h) ∘ x` in the odd ones, `h ← 2σ(R_i x) ∘ h` in the even ones.

    In training a share of the weights from state to state is 0, the same for all steps of a call (DropConnect, Merity
    et al. 2018, 4.1). Without rounds it runs in torch's kernels; with them it is a loop, which a GPU records. In full
    precision, but for the products of the loop on a GPU under autocast.
    """

    def __init__(self, d_input: int, width: int, rounds: int = 0, rank: int = 0, weight_dropout: float = 0.0) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.LSTM(d_input, width)
        initialize(self.cell)
        sizes = [(width, d_input), (d_input, width)]
        self.gates = nn.ModuleList(Gate(*sizes[i % 2], rank) for i in range(rounds))
        self.dropout = Dropout(weight_dropout)

    def forward(self, x: Ragged, state: Pair) -> tuple[Ragged, Pair]:
        """All states, `(total, width)`, and the state at the end of each sequence."""
        if not x.longest:
            return x.like(x.values.new_zeros(0, self.width)), state
        w_x, w_h, b_x, b_h = self.cell.all_weights[0]
        dropped = self.dropout(w_h)
        if self.gates:
            return self._mogrified(x, state, dropped)
        with torch.autocast(x.values.device.type, enabled=False):
            weights = [w_x, dropped, b_x, b_h]
            if dropped is not w_h and x.values.is_cuda:
                weights = _flat(weights)
            x = x.like(x.values.to(w_x.dtype))
            if x.uniform:
                begin = [part.to(w_x.dtype).unsqueeze(0).contiguous() for part in state]
                values, *end = torch.lstm(
                    x.padded().transpose(0, 1), begin, weights, True, 1, 0.0, self.training, False, False
                )
                return x.like(values.transpose(0, 1).flatten(0, 1)), (end[0][0], end[1][0])
            index, going, rows = x.by_step
            begin = [part[rows].to(w_x.dtype).unsqueeze(0).contiguous() for part in state]
            steps = gathered(x.values, index, x.in_steps)
            values, *end = torch.lstm(steps, going, begin, weights, True, 1, 0.0, self.training, False)
            h, c = (old.to(new.dtype).index_copy(0, rows, new[0]) for old, new in zip(state, end, strict=True))
            return x.like(gathered(values, x.in_steps, index)), (h, c)

    def _mogrified(self, x: Ragged, state: Pair, w_h: Tensor) -> tuple[Ragged, Pair]:
        """The loop over padded steps: a row that has ended stays as it is."""
        steps, rows = x.longest, len(x)
        kind = x.values.dtype if x.values.device.type == "cpu" else autocast_dtype(x.values)
        values = x.padded().transpose(0, 1).to(kind).contiguous()  # (steps, rows, d_input)
        graphs = self.recorder
        if graphs is not None and x.uniform:
            used = [weight for name, weight in self.named_parameters() if "weight_hh" not in name]
            found, h, c = graphs.loop(self._loop, (values, *state, w_h), used)
        else:
            going = None if x.uniform else (x.mask.T.unsqueeze(-1))  # (steps, rows, 1)
            found, h, c = self._loop(values, *state, w_h, going)
        found = found.view(steps, rows, -1).transpose(0, 1)
        return (x.like(found.flatten(0, 1)) if x.uniform else x.unpadded(found)), (h, c)

    def _loop(
        self, x: Tensor, h: Tensor, c: Tensor, w_h: Tensor, going: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """From `(steps, rows, d_input)` and the state before them to states `(steps, rows, width)` and the last one."""
        w_x, _, b_x, b_h = self.cell.all_weights[0]
        found, full = [], w_x.dtype
        h, c = h.to(x.dtype), c.to(full)  # states are rounded as the products that they come from
        with torch.autocast("cpu", enabled=False), defer_gradients():
            weight, bias = torch.cat((w_x, w_h), 1), b_x + b_h
            for t, now in enumerate(x.unbind(0)):
                given, state = self._gated(now, h)
                gates = deferred_linear(torch.cat((given, state), -1), weight, bias)
                new, cell = lstm(gates, None, c)
                h, c = (new, cell) if going is None else (h.where(~going[t], new), c.where(~going[t], cell))
                found.append(new)
        return torch.stack(found), h.to(full), c

    def _gated(self, x: Tensor, h: Tensor) -> Pair:
        for i, gate in enumerate(self.gates):
            if i % 2:
                h = gate(x, h)
            else:
                x = gate(h, x)
        return x, h

    def step(self, x: Tensor, state: Pair) -> Pair:
        """One step for `(rows, d_input)`: the state after it."""
        weights = self.cell.all_weights[0]
        with torch.autocast(x.device.type, enabled=False):
            h, c = (part.to(weights[0].dtype) for part in state)
            x, h = self._gated(x.to(h.dtype), h)
            new: Pair = torch.lstm_cell(x, (h, c), weights[0], self.dropout(weights[1]), *weights[2:])
        return new


def _flat(weights: list[Tensor]) -> list[Tensor]:
    """The weights of a layer as views of one tensor, in the order in which cuDNN wants them."""
    flat = torch.cat([weight.flatten() for weight in weights])
    return [
        part.view(weight.shape)
        for part, weight in zip(flat.split([weight.numel() for weight in weights]), weights, strict=True)
    ]
