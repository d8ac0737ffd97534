"""The kernels of a recurrent decoder's step against torch in float64: on a GPU, else in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from regard.nn.attention import Attention, attention_weights
from regard.nn.deferred import defer_gradients, fused_step_attention, step_attention_fuses
from regard.nn.mogrifier import MogrifierLSTM, gated
from regard.nn.recurrence import lstm, lstm_layer
from regard.nn.scores import Bilinear, Dot, ScaledDot
from regard.ragged import Ragged

pytestmark = pytest.mark.usefixtures("kernel")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = {torch.float32: 2e-6, torch.bfloat16: 2**-6}


def randn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype).requires_grad_()


def agree(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        worst = float((a.detach().double() - b.detach().double()).abs().max())
        assert worst <= tolerance * max(1.0, float(b.detach().abs().max())), f"number {i} is off by {worst:.2e}"


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(1, 4), (7, 24), (40, 64)])
@pytest.mark.parametrize("ahead", [False, True], ids=["alone", "ahead"])
def test_an_lstm_cell(rows: int, width: int, ahead: bool, dtype: torch.dtype) -> None:
    gates, cell = randn(rows, 4 * width, dtype=dtype), randn(rows, width, seed=2)
    added = randn(rows, 4 * width, seed=3, dtype=dtype) if ahead else None
    given = [x for x in (gates, added, cell) if x is not None]
    double = [x.detach().double().requires_grad_() for x in given]
    found = lstm(gates, added, cell)
    assert (found[0].dtype, found[1].dtype) == (dtype, torch.float32)
    expected = lstm(double[0], double[1] if ahead else None, double[-1])
    weights = [randn(2 * rows, 2 * width, seed=4 + i)[:rows, :width].detach() for i in range(2)]  # not contiguous
    agree(found, expected, KINDS[dtype])
    back = torch.autograd.grad(found, given, [w.to(x.dtype) for w, x in zip(weights, found, strict=True)])
    agree(back, torch.autograd.grad(expected, double, [w.double() for w in weights]), KINDS[dtype])


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(1, 4), (40, 50)])
def test_a_gate_of_a_mogrifier(rows: int, width: int, dtype: torch.dtype) -> None:
    given = [randn(rows, width, seed=i, dtype=dtype) for i in range(2)]
    double = [x.detach().double().requires_grad_() for x in given]
    found, expected = gated(given[0], given[1]), gated(double[0], double[1])
    weight = randn(2 * rows, 2 * width, seed=3)[:rows, :width].detach()  # not contiguous
    agree([found], [expected], KINDS[dtype])
    back = torch.autograd.grad(found, given, weight.to(dtype))
    agree(back, torch.autograd.grad(expected, double, weight.to(dtype).double()), KINDS[dtype])


def test_a_layer_of_a_mogrifier() -> None:
    layer = MogrifierLSTM(5, 4, rounds=3, rank=2).to(DEVICE)
    values, results = randn(6, 5), []
    for kind in (torch.float32, torch.float64):
        x = Ragged.of([[], []]).to(DEVICE).even(values.to(kind), 3)
        found, (h, c) = layer.to(kind)(x, (values[:2, :4].to(kind), values[2:4, 1:].to(kind)))
        back = torch.autograd.grad(found.values.square().sum() + (h * c).sum(), [values, *layer.parameters()])
        results.append([found.values, h, c, *back])
    agree(results[0], results[1], 2e-6)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("ways", "width"), [(1, 24), (2, 8), (2, 64)])
def test_a_layer_of_lstms(ways: int, width: int, dtype: torch.dtype) -> None:
    """Rows that are empty, of one position, and as long as may be; nothing comes from behind the end of a row."""
    lengths, steps, d_input = torch.tensor([5, 0, 1, 3, 2], device=DEVICE), 5, 12
    rows, step = len(lengths), torch.arange(steps, device=DEVICE)[:, None]
    back = torch.where(step < lengths, lengths - 1 - step, step)
    reverse = (back * rows + torch.arange(rows, device=DEVICE)).flatten()
    shapes = ((steps * rows, d_input), (ways, 4 * width, d_input), (ways, 4 * width, width), (ways, 4 * width))
    given = [(0.4 * randn(*shape, seed=i)).detach().to(dtype).requires_grad_() for i, shape in enumerate(shapes)]
    double = [x.detach().double().requires_grad_() for x in given]
    found, expected = (
        lstm_layer(x, w_x, w_h, bias, lengths, reverse) for x, w_x, w_h, bias in (given, double)
    )  # fmt: skip
    real = (step < lengths).flatten()[:, None]
    assert found[1].dtype == torch.float32
    assert not found[1][:, :, 1].any()
    agree([x * real if x.dim() == 2 else x for x in found], [expected[0] * real, expected[1]], 2 * KINDS[dtype])
    weights = [randn(*found[0].shape, seed=8).detach() * real, randn(*found[1].shape, seed=9).detach()]
    gradients = torch.autograd.grad(found, given, [w.to(x.dtype) for w, x in zip(weights, found, strict=True)])
    expected_gradients = torch.autograd.grad(expected, double, [w.double() for w in weights])
    agree(gradients, expected_gradients, 4 * KINDS[dtype])
    assert not gradients[0].view(steps, rows, -1)[:, 1].any()


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("heads", "source", "d_head"), [(1, 5, 8), (2, 33, 24), (1, 70, 512), (1, 9, 1024)])
def test_fused_step_attention(heads: int, source: int, d_head: int, dtype: torch.dtype) -> None:
    """Several steps in a loop, over rows of which one may attend nowhere."""
    rows, steps = 3, 2
    keys, values = (randn(rows, source, heads, d_head, seed=i, dtype=dtype) for i in (1, 2))
    queries = [randn(rows, heads, 1, d_head, seed=3 + i, dtype=dtype) for i in range(steps)]
    mask = torch.arange(source, device=DEVICE) < torch.tensor([source, 0, 3], device=DEVICE)[:, None]
    laid_keys, laid_values = keys.transpose(1, 2), values.transpose(1, 2)
    scale = d_head**-0.5
    with defer_gradients():
        assert step_attention_fuses(queries[0])
        found = [fused_step_attention(q * scale, laid_keys, laid_values, mask) for q in queries]
    double = [x.detach().double().requires_grad_() for x in (keys, values, *queries)]
    k, v = (x.transpose(1, 2) for x in double[:2])
    expected = [attention_weights(q * scale @ k.mT, mask[:, None, None]) @ v for q in double[2:]]
    assert not found[0][1].any()
    agree(found, expected, KINDS[dtype])
    weights = [randn(*x.shape, seed=9).detach() for x in found]
    back = torch.autograd.grad(found, (keys, values, *queries), [w.to(dtype) for w in weights])
    agree(back, torch.autograd.grad(expected, double, [w.double() for w in weights]), KINDS[dtype])


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("score", [Dot, Bilinear, ScaledDot])
def test_attention_is_fused_in_a_loop(score: type[Dot | Bilinear | ScaledDot], heads: int | None) -> None:
    torch.manual_seed(1)
    attention = Attention(score(8 // (heads or 1)), heads, 8).to(DEVICE)
    states, queries, rows = randn(3, 5, 8), randn(3, 1, 8, seed=2), torch.arange(3, device=DEVICE)
    mask = torch.arange(5, device=DEVICE) < torch.tensor([5, 0, 3], device=DEVICE)[:, None]
    given = (states, queries, *attention.parameters())

    def contexts() -> Tensor:
        return attention(queries, attention.keys(states), attention.values(states), mask, rows)[0]

    expected = contexts()
    with defer_gradients():
        found = contexts()
    agree([found], [expected], 1e-5)
    weights = randn(*found.shape, seed=9).detach()
    agree(torch.autograd.grad(found, given, weights), torch.autograd.grad(expected, given, weights), 1e-5)
