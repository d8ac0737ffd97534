"""The three recurrent cells, stacked: a whole sequence at once, or one step.

What a stack carries between steps is one tensor `(rows, layers, parts, d_model)`: an LSTM has a hidden vector and a
cell (two parts), an RNN and a GRU a hidden vector alone. Whole sequences run in torch's fused kernels, which read a
packed form that is a permutation of `Ragged`: no padding is made or computed on. Where a step needs what was made of
the one before it, a loop takes `UnrolledRecurrence`. On a GPU an LSTM cell is one kernel of `triton_steps.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from regard.nn.deferred import autocast_dtype, column_sums, deferred_linear
from regard.nn.dropout import Dropout
from regard.nn.kernels import dense, usable
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
        for layer in self.layers:
            initialize(layer)

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.layers[0].all_weights[0][0].dtype

    def start(self, rows: int, like: Tensor) -> Tensor:
        """A carry of zeros."""
        return like.new_zeros(rows, len(self.layers), self.parts, self.d_model)

    def forward(self, x: Ragged, carry: Tensor) -> tuple[Ragged, Tensor]:
        """All states of the top layer, `(total, d_model)`, and the carry at the end of each sequence."""
        if x.uniform and x.longest:
            return self._rectangle(x, carry)
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

    def _rectangle(self, x: Ragged, carry: Tensor) -> tuple[Ragged, Tensor]:
        """Rows of one length, which torch's kernels read as `(steps, rows, d_input)`."""
        with torch.autocast(x.values.device.type, enabled=False):
            values = x.padded().to(self.dtype).transpose(0, 1)
            begin = carry.to(values.dtype).permute(1, 2, 0, 3).unsqueeze(2).contiguous()
            ends = []
            for i, layer in enumerate(self.layers):
                hidden = (begin[i, 0], begin[i, 1]) if self.cell == "lstm" else begin[i, 0]
                values, end = layer(self.dropout(values) if i else values, hidden)
                ends.append(torch.cat(end) if self.cell == "lstm" else end)
        return x.like(values.transpose(0, 1).flatten(0, 1)), torch.stack(ends).permute(2, 0, 1, 3)

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


def initialize(layer: nn.RNNBase) -> None:
    """Draw the weights of a layer: orthogonal from state to state."""
    width = layer.hidden_size
    for name, parameter in layer.named_parameters():
        if "weight_hh" in name:
            for gate in parameter.data.chunk(parameter.shape[0] // width):
                nn.init.orthogonal_(gate)
        elif "weight_ih" in name:
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)
            if isinstance(layer, nn.LSTM) and "bias_ih" in name:  # remember by default (Gers et al. 2000)
                parameter.data[width : 2 * width] = 1.0


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

    def __call__(self, ahead: Tensor, carry: Carry, x: Tensor | None) -> tuple[Tensor, Carry]:
        """One step: a part of `self.ahead` and the input only known now, if there is any, to the top layer's state and
        the new carry."""
        after: Carry = []
        x = ahead[:, :0] if x is None else x
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


def lstm(gates: Tensor, ahead: Tensor | None, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hochreiter and Schmidhuber 1997: the new state, in the precision of the gates `(rows, 4 d_model)`, to which
    `ahead` is added, and the new cell in its own."""
    if usable(gates) and (ahead is None or ahead.dtype == gates.dtype):
        return _Lstm.apply(gates, ahead, cell)
    dtype = gates.dtype
    gates = gates.to(cell.dtype)
    i, f, g, o = (gates if ahead is None else gates + ahead).chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return (torch.sigmoid(o) * torch.tanh(cell)).to(dtype), cell


def gru(given: Tensor, back: Tensor, h: Tensor) -> Tensor:
    """Cho et al. 2014, with the reset after the product, as torch does it: the new state, from gates `(rows,
    3 d_model)` of the input and of the old state."""
    width = 2 * h.shape[-1]
    given, back = given.to(h.dtype), back.to(h.dtype)
    r, z = torch.sigmoid(given[:, :width] + back[:, :width]).chunk(2, -1)
    n = torch.tanh(given[:, width:] + r * back[:, width:])
    return n + z * (h - n)


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, ahead: Tensor | None, cell: Tensor) -> tuple[Tensor, Tensor]:
        from regard.nn import triton_steps

        gates, cell = gates.contiguous(), cell.contiguous()
        ahead = None if ahead is None else ahead.contiguous()
        ctx.save_for_backward(gates, ahead, cell)
        hidden, after = gates.new_empty(cell.shape), torch.empty_like(cell)
        triton_steps.lstm(gates[None], ahead, cell[None], hidden[None], after[None])
        return hidden, after

    @staticmethod
    def backward(ctx: Any, dhidden: Tensor, dafter: Tensor) -> tuple[Tensor | None, ...]:
        from regard.nn import triton_steps

        gates, ahead, cell = ctx.saved_tensors
        dgates, dcell, dafter = torch.empty_like(gates), torch.empty_like(cell), dafter.contiguous()
        triton_steps.lstm_backward(gates[None], ahead, cell[None], dense(dhidden)[None], dafter, dgates[None], dcell)
        return dgates, None if ahead is None else dgates, dcell


def lstm_layer(
    x: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor, lengths: Tensor, reverse: Tensor
) -> tuple[Tensor, Tensor]:
    """A layer that reads all rows at once, in one direction or both (Schuster and Paliwal 1997).

    From `(steps · rows, d_input)`, all first positions, then all second ones, and so on, to states of that shape, those
    of both directions concatenated, and the last state and cell of each row, `(2, directions, rows, d_model)`. Weights
    have an axis of directions before them. `reverse` says where in that order each position lies when its row is read
    from its end. Outputs past the end of a row are undefined, and their gradient has to be 0.

    The product with the input is taken ahead of the loop, so that a step is but two kernels, forward and backward.
    """
    return _LstmLayer.apply(x, w_x, w_h, bias, lengths, reverse)


class _LstmLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor, lengths: Tensor, reverse: Tensor
    ) -> tuple[Tensor, Tensor]:
        directions, _, width = w_h.shape
        rows, full = len(lengths), torch.promote_types(x.dtype, torch.float32)
        steps = len(x) // rows
        inputs = [x, x.index_select(0, reverse)][:directions]
        gates = x.new_empty(directions, steps, rows, 4 * width)
        for i, given in enumerate(inputs):
            torch.addmm(bias[i], given, w_x[i].mT, out=gates[i].flatten(0, 1))
        states = x.new_empty(directions, steps + 1, rows, width)
        cells = torch.empty_like(states, dtype=full)
        states[:, 0], cells[:, 0] = 0.0, 0.0
        for t in range(steps):
            gates[:, t].baddbmm_(states[:, t], w_h.mT)
            now, into = (gates[:, t], None, cells[:, t]), (states[:, t + 1], cells[:, t + 1])
            if usable(gates):
                from regard.nn import triton_steps

                triton_steps.lstm(*now, *into)
            else:
                for own, new in zip(into, lstm(*now), strict=True):
                    own.copy_(new)
        ctx.save_for_backward(*inputs, w_x, w_h, gates, states, cells, lengths, reverse)
        number = torch.arange(rows, device=x.device)
        ends = torch.stack((states[:, lengths, number].to(full), cells[:, lengths, number]))
        found = states[:, 1:].flatten(1, 2)  # (directions, steps · rows, d_model)
        if directions == 1:
            return found[0].clone(), ends
        return torch.cat((found[0], found[1].index_select(0, reverse)), -1), ends

    @staticmethod
    def backward(ctx: Any, dfound: Tensor, dends: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, w_x, w_h, gates, states, cells, lengths, reverse = ctx.saved_tensors
        directions, steps = gates.shape[:2]
        dstates, dgates = states.new_empty(directions, steps, *states.shape[2:]), torch.empty_like(gates)
        for i, part in enumerate(dfound.chunk(directions, -1)):
            dstates[i].flatten(0, 1).copy_(part.index_select(0, reverse) if i else part)
        dends = dends.contiguous()
        dcell = torch.zeros_like(dends[1])
        for t in reversed(range(steps)):
            _step_backward(gates[:, t], cells[:, t], dstates[:, t], dgates[:, t], dcell, dends, lengths, t + 1)
            if t:
                dstates[:, t - 1].baddbmm_(dgates[:, t], w_h)
        flat = dgates.flatten(1, 2)  # (directions, steps · rows, gates)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = flat[0] @ w_x[0]
            if directions == 2:
                dx += (flat[1] @ w_x[1]).index_select(0, reverse)
        dw_x = torch.stack([gradient.mT @ given for gradient, given in zip(flat, inputs, strict=True)])
        return dx, dw_x, flat.mT @ states[:, :-1].flatten(1, 2), column_sums(flat), None, None


def _step_backward(
    gates: Tensor, cell: Tensor, dhidden: Tensor, dgates: Tensor, dcell: Tensor, dends: Tensor, lengths: Tensor,
    step: int,
) -> None:  # fmt: skip
    """The gradient of one step's gates into `dgates`; in place, that of the new cell becomes that of the old one."""
    if usable(gates):
        from regard.nn import triton_steps

        triton_steps.lstm_backward(gates, None, cell, dhidden, dcell, dgates, dcell, (dends, lengths, step))
        return
    last = (lengths == step)[:, None]
    with torch.enable_grad():
        given = gates.detach().requires_grad_(), cell.detach().requires_grad_()
        found = lstm(given[0], None, given[1])
    new = torch.autograd.grad(found, given, ((dhidden + dends[0] * last).to(gates.dtype), dcell + dends[1] * last))
    for own, gradient in zip((dgates, dcell), new, strict=True):
        own.copy_(gradient)
