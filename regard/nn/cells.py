"""What a recurrent cell does with its gates, and a whole layer of LSTMs. On a GPU a cell of these is one kernel, in
`triton_steps.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.nn.kernels import usable
from regard.nn.repeated import column_sums


def lstm(gates: Tensor, ahead: Tensor | None, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hochreiter and Schmidhuber 1997: the new state, in the precision of the gates, and the new cell in its own.

    `ahead` is added to the gates, `(rows, 4 d_model)`.
    """
    if usable(gates) and (ahead is None or ahead.dtype == gates.dtype):
        hidden, after = _Lstm.apply(gates, ahead, cell)
        return hidden, after
    kind = gates.dtype
    gates = gates.to(cell.dtype)
    i, f, g, o = (gates if ahead is None else gates + ahead).chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return (torch.sigmoid(o) * torch.tanh(cell)).to(kind), cell


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
        return triton_steps.lstm(gates, ahead, cell)

    @staticmethod
    def backward(ctx: Any, dhidden: Tensor, dafter: Tensor) -> tuple[Tensor | None, ...]:
        from regard.nn import triton_steps

        gates, ahead, cell = ctx.saved_tensors
        dhidden = dhidden if dhidden.stride(-1) == 1 else dhidden.contiguous()
        dgates, dcell = triton_steps.lstm_backward(gates, ahead, cell, dhidden, dafter.contiguous())
        return dgates, None if ahead is None else dgates, dcell


def lstm_layer(
    x: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor, lengths: Tensor, reverse: Tensor
) -> tuple[Tensor, Tensor]:
    """A layer that reads all rows at once, one way or both (Schuster and Paliwal 1997).

    From `(steps · rows, d_input)`, all first positions, then all second ones, and so on, to states of that shape, those
    of both ways joined, and the last state and cell of each row, `(2, ways, rows, d_model)`. Weights have an axis of
    ways before them. `reverse` says where in that order each position lies when its row is read back to front. What
    is behind the end of a row is anything, and its gradient has to be 0.

    The product with the input is taken ahead of the loop, into the memory where the gates come to stand: a step adds to
    it, and is but two kernels, forward as well as back.
    """
    states, ends = _LstmLayer.apply(x, w_x, w_h, bias, lengths, reverse)
    return states, ends


class _LstmLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor, lengths: Tensor, reverse: Tensor
    ) -> tuple[Tensor, Tensor]:
        ways, _, width = w_h.shape
        rows, full = len(lengths), torch.promote_types(x.dtype, torch.float32)
        steps = len(x) // rows
        inputs = [x, x.index_select(0, reverse)][:ways]
        gates = x.new_empty(ways, steps, rows, 4 * width)
        for way, given in enumerate(inputs):
            torch.addmm(bias[way], given, w_x[way].mT, out=gates[way].flatten(0, 1))
        states = x.new_empty(ways, steps + 1, rows, width)
        cells = torch.empty_like(states, dtype=full)
        states[:, 0], cells[:, 0] = 0.0, 0.0
        for t in range(steps):
            gates[:, t].baddbmm_(states[:, t], w_h.mT)
            _forward(gates[:, t], cells[:, t], states[:, t + 1], cells[:, t + 1])
        ctx.save_for_backward(*inputs, w_x, w_h, gates, states, cells, lengths, reverse)
        number = torch.arange(rows, device=x.device)
        ends = torch.stack((states[:, lengths, number].to(full), cells[:, lengths, number]))
        found = states[:, 1:].flatten(1, 2)  # (ways, steps · rows, d_model)
        if ways == 1:
            return found[0].clone(), ends
        return torch.cat((found[0], found[1].index_select(0, reverse)), -1), ends

    @staticmethod
    def backward(ctx: Any, dfound: Tensor, dends: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, w_x, w_h, gates, states, cells, lengths, reverse = ctx.saved_tensors
        ways, steps = gates.shape[:2]
        dstates, dgates = states.new_empty(ways, steps, *states.shape[2:]), torch.empty_like(gates)
        for way, part in enumerate(dfound.chunk(ways, -1)):
            dstates[way].flatten(0, 1).copy_(part.index_select(0, reverse) if way else part)
        dends = dends.contiguous()
        dcell = torch.zeros_like(dends[1])
        for t in reversed(range(steps)):
            _backward(gates[:, t], cells[:, t], dstates[:, t], dgates[:, t], dcell, dends, lengths, t + 1)
            if t:
                dstates[:, t - 1].baddbmm_(dgates[:, t], w_h)
        flat = dgates.flatten(1, 2)  # (ways, steps · rows, gates)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = flat[0] @ w_x[0]
            if ways == 2:
                dx += (flat[1] @ w_x[1]).index_select(0, reverse)
        dw_x = torch.stack([gradient.mT @ given for gradient, given in zip(flat, inputs, strict=True)])
        return dx, dw_x, flat.mT @ states[:, :-1].flatten(1, 2), column_sums(flat), None, None


def _forward(gates: Tensor, cell: Tensor, hidden: Tensor, after: Tensor) -> None:
    """One step of all ways, `(ways, rows, …)`, into `hidden` and `after`."""
    if usable(gates):
        from regard.nn import triton_steps

        triton_steps.lstm_into(gates, None, cell, hidden, after)
    else:
        for own, new in zip((hidden, after), lstm(gates, None, cell), strict=True):
            own.copy_(new)


def _backward(
    gates: Tensor, cell: Tensor, dhidden: Tensor, dgates: Tensor, dcell: Tensor, dends: Tensor, lengths: Tensor,
    step: int,
) -> None:  # fmt: skip
    """Back into `dgates`, and in place from the gradient of the new cell to that of the old one."""
    if usable(gates):
        from regard.nn import triton_steps

        end = (dends, lengths, step)
        triton_steps.lstm_backward_into(gates, None, cell, dhidden, dcell, dgates, dcell, end)
        return
    last = (lengths == step)[:, None]
    with torch.enable_grad():
        given = gates.detach().requires_grad_(), cell.detach().requires_grad_()
        found = lstm(given[0], None, given[1])
    new = torch.autograd.grad(found, given, ((dhidden + dends[0] * last).to(gates.dtype), dcell + dends[1] * last))
    for own, gradient in zip((dgates, dcell), new, strict=True):
        own.copy_(gradient)
