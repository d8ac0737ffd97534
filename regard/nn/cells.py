"""What a recurrent cell does with its gates. On a GPU that of an LSTM is one kernel, in `triton_steps.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.nn.kernels import usable


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
