"""What a recurrent cell does with its gates, and a whole layer of LSTMs. On a GPU an LSTM cell is one kernel of
`triton_steps.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.nn.deferred import column_sums
from regard.nn.kernels import dense, usable


def lstm(gates: Tensor, ahead: Tensor | None, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hochreiter and Schmidhuber 1997: the new state, in the precision of the gates, and the new cell in its own.

    `ahead` is added to the gates, `(rows, 4 d_model)`.
    """
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

    The product with the input is taken ahead of the loop, into the memory where the gates come to stand: a step adds to
    it, and is but two kernels, forward and backward alike.
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
            _forward(gates[:, t], cells[:, t], states[:, t + 1], cells[:, t + 1])
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
            _backward(gates[:, t], cells[:, t], dstates[:, t], dgates[:, t], dcell, dends, lengths, t + 1)
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


def _forward(gates: Tensor, cell: Tensor, hidden: Tensor, after: Tensor) -> None:
    """One step of all directions, `(directions, rows, …)`, into `hidden` and `after`."""
    if usable(gates):
        from regard.nn import triton_steps

        triton_steps.lstm(gates, None, cell, hidden, after)
    else:
        for own, new in zip((hidden, after), lstm(gates, None, cell), strict=True):
            own.copy_(new)


def _backward(
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
