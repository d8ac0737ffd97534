"""The depthwise convolution over packed rows, against its equation in float64 and torch's own on each row alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import EagerAndRecordGraphs

from regard.models.speech import ConvolutionModule
from regard.nn.depthwise import depthwise
from regard.ragged import Ragged
from tests.conftest import FULL
from tests.equations import Array

pytestmark = pytest.mark.usefixtures("kernel")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = 2**-6  # of bfloat16, in what was rounded several times
LENGTHS = [9, 1, 0, 40, 2, 0, 17, 1]  # some shorter than a kernel; several in a tile, and one in two


def randn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def rows(lengths: list[int], width: int, *, filled: int = 0, dtype: torch.dtype = torch.float32) -> Ragged:
    """Packed rows, with so many vectors behind them that belong to none."""
    x = Ragged.from_lengths(randn(sum(lengths), width, dtype=dtype), lengths)
    return x.filled(sum(lengths) + filled, len(lengths), fill=7)


def parameters(width: int, kernel: int) -> tuple[Tensor, Tensor]:
    return randn(width, kernel, seed=2).requires_grad_(), randn(width, seed=3).requires_grad_()


def agree(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape
    worst = float((found.detach().double() - expected.detach().double()).abs().max())
    assert worst <= tolerance * max(1.0, float(expected.detach().abs().max())), worst


def equation(x: Array, weight: Array, bias: Array, row: list[int]) -> Array:
    """`y_t = b + Σ_i w_i x_{t + i - k//2}` over those of the same row."""
    kernel, found = weight.shape[1], np.empty_like(x)
    for t in range(len(x)):
        found[t] = bias
        for i in range(kernel):
            at = t + i - kernel // 2
            if 0 <= at < len(x) and row[at] == row[t]:
                found[t] += weight[:, i] * x[at]
    return found


def row_by_row(x: Ragged, weight: Tensor, bias: Tensor) -> Tensor:
    """What torch makes of each row alone, and at last of what belongs to none."""
    parts = []
    for part in x.values.split([*x.lengths.tolist(), len(x.values) - int(x.offsets[-1])]):
        if len(part):
            made = F.conv1d(part.T[None], weight[:, None], bias, padding=weight.shape[1] // 2, groups=len(bias))
            parts.append(made[0].T)
    return torch.cat(parts)


@pytest.mark.parametrize("taps", [31, 1, 3, 4, 15])
def test_it_is_the_equation(taps: int) -> None:
    x, (weight, bias) = rows(LENGTHS, 20, filled=5), parameters(20, taps)
    inputs, scales, shifts = (given.detach().cpu().double().numpy() for given in (x.values, weight, bias))
    expected = equation(inputs, scales, shifts, x.row.tolist())
    assert x.row[-1] == len(LENGTHS)
    agree(depthwise(x.values, weight, bias, x.row), torch.from_numpy(expected).to(DEVICE), 1e-5)


@pytest.mark.parametrize(
    ("taps", "width", "filled", "dtype"),
    [
        (31, 40, 3, torch.float32),
        (15, 24, 0, torch.float32),
        (15, 70, 9, torch.bfloat16),
        (31, 64, 0, torch.bfloat16),
        (3, 1, 4, torch.float32),
        (3, 130, 0, torch.float16),
        (1, 24, 3, torch.float32),
        (45, 24, 3, torch.float32),  # more taps than a tile has
    ],
)
def test_values_and_gradients_are_those_of_each_row_alone(
    taps: int, width: int, filled: int, dtype: torch.dtype
) -> None:
    x, (weight, bias) = rows(LENGTHS, width, filled=filled, dtype=dtype), parameters(width, taps)
    given = [x.values.requires_grad_(), weight, bias]
    y = depthwise(x.values, weight, bias, x.row)
    assert y.dtype == dtype
    doubles = [each.detach().double().requires_grad_() for each in given]
    expected = row_by_row(x.like(doubles[0]), *doubles[1:])
    gradient = randn(*y.shape, seed=9, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else HALF
    agree(y, expected, tolerance)
    found = torch.autograd.grad(y, given, gradient)
    assert [each.dtype for each in found] == [dtype, torch.float32, torch.float32]
    for one, other in zip(found, torch.autograd.grad(expected, doubles, gradient.double()), strict=True):
        agree(one, other, tolerance)


def test_many_shares_of_the_times_add_up() -> None:
    """Those of the gradient of the weights, more than one of which has its end inside a row."""
    x, (weight, bias) = rows([150, 3, 50], 5), parameters(5, 7)
    given = [x.values.requires_grad_(), weight, bias]
    doubles = [each.detach().double().requires_grad_() for each in given]
    found = torch.autograd.grad(depthwise(x.values, weight, bias, x.row).square().sum(), given)
    expected = torch.autograd.grad(row_by_row(x.like(doubles[0]), *doubles[1:]).square().sum(), doubles)
    for one, other in zip(found, expected, strict=True):
        agree(one, other, 1e-5)


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_no_vectors(lengths: list[int]) -> None:
    x, (weight, bias) = rows(lengths, 6), parameters(6, 3)
    y = depthwise(x.values.requires_grad_(), weight, bias, x.row)
    assert y.shape == (0, 6)
    for gradient in torch.autograd.grad(y.sum(), [weight, bias]):
        assert not gradient.any()


def test_under_autocast_it_has_its_precision_and_parameters_keep_theirs() -> None:
    x, (weight, bias) = rows([9, 4], 12), parameters(12, 3)
    x.values.requires_grad_()
    with torch.autocast(DEVICE, torch.bfloat16):
        y = depthwise(x.values, weight, bias, x.row)
    assert y.dtype == torch.bfloat16
    agree(y, row_by_row(x, weight, bias), HALF)
    gradients = torch.autograd.grad(y.float().square().sum(), [x.values, weight, bias])
    assert {gradient.dtype for gradient in gradients} == {torch.float32}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weight": (3, 5)}, r"weight should be \(4, kernel\), got \(3, 5\)"),
        ({"bias": (3,)}, r"bias should be \(4,\), got \(3,\)"),
        ({"row": (6,)}, r"row should be \(7,\), got \(6,\)"),
        ({"x": (7, 2, 2)}, r"x should be \(total, width\), got \(7, 2, 2\)"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, tuple[int, ...]], message: str) -> None:
    shapes = {"x": (7, 4), "weight": (4, 3), "bias": (4,), "row": (7,)} | changed
    given = {name: torch.zeros(shape, device=DEVICE) for name, shape in shapes.items()}
    given["row"] = given["row"].long()
    with pytest.raises(AssertionError, match=message):
        depthwise(**given)


@pytest.mark.skipif(not (FULL or DEVICE == "cuda"), reason="takes long; make test-all")
@pytest.mark.parametrize("taps", [5, 1])
def test_the_module_uses_it_and_is_compiled_whole_and_once_for_all_lengths(taps: int) -> None:
    torch.manual_seed(1)
    module, backend = ConvolutionModule(6, taps, "layer", dropout=0.0).to(DEVICE).train(), EagerAndRecordGraphs()
    plain = ConvolutionModule(6, taps, "layer", dropout=0.0).to(DEVICE, torch.float64)  # for which there are no kernels
    plain.load_state_dict(module.state_dict())
    compiled = torch.compile(module.forward, backend=backend, dynamic=True, fullgraph=True)
    for lengths in ([3, 0, 1, 9], [4, 2, 8], [2, 7, 1, 1, 5]):
        x, gradients = rows(lengths, 6).indexed(), []
        for run, of in ((module.forward, module), (compiled, module), (plain.forward, plain)):
            values = x.values.detach().to(next(of.parameters()).dtype).requires_grad_()
            y = run(x.like(values))
            gradients.append((y, *torch.autograd.grad(y.square().sum(), (values, *of.parameters()))))
        for ours, through_compiler, expected in zip(*gradients, strict=True):
            agree(ours, expected, 1e-4)
            agree(through_compiler, expected, 1e-4)
    (graph,) = backend.graphs
    assert any(node.target is torch.ops.regard.depthwise.default for node in graph.graph.nodes)
