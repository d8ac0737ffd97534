"""The three recurrent cells, stacked: a whole sequence at once, or one step.

What a stack carries between steps is one tensor `(rows, layers, parts, d_model)`: an LSTM has a hidden vector and a
cell (two parts), an RNN and a GRU a hidden vector alone. Whole sequences run in torch's fused kernels, which read a
packed form that is a permutation of `Ragged`: no padding is made or computed on. Where a step needs what was made of
the one before it, a loop takes `UnrolledRecurrence`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from regard.nn.cells import gru, lstm
from regard.nn.deferred import autocast_dtype, deferred_linear
from regard.nn.dropout import Dropout
from regard.ragged import Ragged, gathered

PARTS = {"rnn": 1, "gru": 1, "lstm": 2}
Carry = list[tuple[Tensor, ...]]  # for each layer its parts, each (rows, d_model)
_LAYERS: dict[str, Callable[[int, int], nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
_CELLS: dict[str, Callable[..., Any]] = {"rnn": torch.rnn_tanh_cell, "gru": torch.gru_cell, "lstm": torch.lstm_cell}


class Recurrence(nn.Module):
    """`s_t = f(x_t, s_{t-1})` in each layer, the output of one the input of the next.

    Elman 1990; Hochreiter and Schmidhuber 1997; Cho et al. 2014. In full precision, for small roundings add up over a
    long sequence; but see `UnrolledRecurrence`.
    """

    def __init__(self, cell: str, d_input: int, d_model: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.cell, self.d_model, self.parts = cell, d_model, PARTS[cell]
        stack = [_LAYERS[cell](d_input if i == 0 else d_model, d_model) for i in range(layers)]
        self.layers: Sequence[nn.RNNBase] = nn.ModuleList(stack)  # type: ignore[assignment]
        self.dropout = Dropout(dropout)
        for name, parameter in self.named_parameters():
            if "weight_hh" in name:
                for gate in parameter.data.chunk(parameter.shape[0] // d_model):
                    nn.init.orthogonal_(gate)
            elif "weight_ih" in name:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)
                if cell == "lstm" and "bias_ih" in name:  # remember by default (Gers et al. 2000)
                    parameter.data[d_model : 2 * d_model] = 1.0

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.layers[0].all_weights[0][0].dtype

    def start(self, rows: int, like: Tensor) -> Tensor:
        """A carry of zeros."""
        return like.new_zeros(rows, len(self.layers), self.parts, self.d_model)

    def forward(self, x: Ragged, carry: Tensor) -> tuple[Ragged, Tensor]:
        """All states of the top layer, `(total, d_model)`, and the carry at the end of each sequence."""
        index, going, rows = x.by_step
        if not len(rows):
            return x.like(x.values.new_zeros(0, self.d_model)), carry
        with torch.autocast(x.values.device.type, enabled=False):
            values = gathered(x.values.to(self.dtype), index, x.in_steps)
            begin = carry[rows].to(values.dtype).permute(1, 2, 0, 3).unsqueeze(2).contiguous()
            ends = []  # for each layer (parts, rows, d_model)
            for i, layer in enumerate(self.layers):
                hidden = (begin[i, 0], begin[i, 1]) if self.cell == "lstm" else begin[i, 0]
                packed, end = layer(PackedSequence(self.dropout(values) if i else values, going), hidden)
                values = packed.data
                ends.append(torch.cat(end) if self.cell == "lstm" else end)
        states = gathered(values, x.in_steps, index)
        return x.like(states), carry.to(values.dtype).index_copy(0, rows, torch.stack(ends).permute(2, 0, 1, 3))

    def step(self, x: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        """One step for `(rows, d_input)`: the top layer's `(rows, d_model)`, and the new carry."""
        after = []
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.dtype)
            carry = carry.to(x.dtype)
            for i, layer in enumerate(self.layers):
                hidden = (carry[:, i, 0], carry[:, i, 1]) if self.cell == "lstm" else carry[:, i, 0]
                new = _CELLS[self.cell](self.dropout(x) if i else x, hidden, *layer.all_weights[0])
                parts = new if self.cell == "lstm" else (new,)
                x = parts[0]
                after.append(torch.stack(parts, dim=1))
        return x, torch.stack(after, dim=1)


class UnrolledRecurrence:
    """A stack that runs a step at a time inside `defer_gradients`, with a part `y` of all inputs known beforehand.

    What `y` adds to the gates of the first layer is one product for all steps: `W [y; x] = W_y y + W_x x`. The rest of
    the input and the state are then multiplied at once: `[W_x W_h] [x; h]`. On a GPU under autocast these products are
    in half precision; gates, and what an LSTM or a GRU carries on, are not. On a CPU all is in full precision.
    """

    def __init__(self, recurrence: Recurrence, y: Tensor) -> None:
        self.cell, self.dropout, self.dtype = recurrence.cell, recurrence.dropout, recurrence.dtype
        self.layers: list[list[tuple[Tensor, Tensor | None]]] = []  # matrices and biases
        with torch.autocast("cpu", enabled=False):
            self.product_dtype = autocast_dtype(y.to(self.dtype))
            for i, layer in enumerate(recurrence.layers):
                weights, w_h, b_x, b_h = layer.all_weights[0]
                apart = self.cell == "gru"  # whose candidate takes input and state in different ways
                bias: Tensor | None = b_x if apart else b_x + b_h
                known = 0 if i else y.shape[-1]
                w_x = weights[:, known:]
                if i == 0:
                    self.ahead = deferred_linear(y.to(self.product_dtype), weights[:, :known], bias)  # (total, gates)
                    bias = None
                self.layers.append([(w_x, bias), (w_h, b_h)] if apart else [(torch.cat((w_x, w_h), 1), bias)])

    def start(self, carry: Tensor) -> Carry:
        """From what a stack carries, `(rows, layers, parts, d_model)`."""
        return [tuple(layer.to(self.dtype).unbind(1)) for layer in carry.unbind(1)]

    def __call__(self, ahead: Tensor, carry: Carry, x: Tensor) -> tuple[Tensor, Carry]:
        """One step: a part of `self.ahead` and the input only known now, to the top layer's state and the new carry."""
        after: Carry = []
        with torch.autocast("cpu", enabled=False):
            for i, (layer, (h, *cell)) in enumerate(zip(self.layers, carry, strict=True)):
                x = (self.dropout(x) if i else x).to(self.product_dtype)
                if self.cell == "gru":
                    given, back = deferred_linear(x, *layer[0]), deferred_linear(h, *layer[1])
                    after.append((gru(given if i else given + ahead, back, h),))
                else:
                    gates = deferred_linear(torch.cat((x, h.to(self.product_dtype)), -1), *layer[0])
                    if self.cell == "lstm":
                        after.append(lstm(gates, None if i else ahead, *cell))
                    else:
                        after.append((torch.tanh(gates if i else gates + ahead),))
                x = after[-1][0]
        return x, after
