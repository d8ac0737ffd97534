"""Residual, dropout and norm in one kernel, and an activation with its dropout, against torch in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from regard.nn.blocks import FeedForward, Residual, make_norm
from regard.nn.dropout import Dropout
from regard.nn.kernels import add_norm, norm, relu_dropout

pytestmark = pytest.mark.usefixtures("kernel")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = 2**-6  # of bfloat16, in what was rounded several times


def randn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def make(kind: str, width: int) -> nn.LayerNorm | nn.RMSNorm:
    module = make_norm(kind, width).to(DEVICE)
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.add_(0.3 * randn(width, seed=5 + i))
    return module


def gradients(y: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y, inputs, randn(*y.shape, seed=9).to(y.dtype))


def agree(found: Tensor, expected: Tensor, tolerance: float) -> None:
    worst = float((found.detach().double() - expected.detach().double()).abs().max())
    assert worst <= tolerance * max(1.0, float(expected.detach().abs().max())), worst


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize(("total", "width"), [(1, 1), (7, 24), (9, 512), (3, 2100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_residual_is_summed_and_normed(kind: str, total: int, width: int, dtype: torch.dtype) -> None:
    module = make(kind, width)
    x = (randn(total, width) + 2).requires_grad_()  # the mean should matter
    added = randn(total, width, seed=2, dtype=dtype).requires_grad_()
    y = add_norm(x, added, module, Dropout(0.5).eval())
    assert y.dtype == dtype
    inputs = [x, added, *module.parameters()]
    double = make(kind, width).double()
    x64, added64 = (tensor.detach().double().requires_grad_() for tensor in (x, added))
    expected = double(x64 + added64)
    tolerance = 1e-4 if dtype == torch.float32 else HALF
    agree(y, expected, tolerance)
    for found, wanted in zip(
        gradients(y, inputs), gradients(expected, [x64, added64, *double.parameters()]), strict=True
    ):
        agree(found, wanted, tolerance)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_norm_alone(kind: str) -> None:
    module = make(kind, 40)
    x = (randn(2, 3, 40) + 1).requires_grad_()
    y, expected = norm(x, module), module(x)
    agree(y, expected, 1e-5)
    inputs = [x, *module.parameters()]
    for found, wanted in zip(gradients(y, inputs), gradients(expected, inputs), strict=True):
        agree(found, wanted, 1e-4)
    with torch.autocast(DEVICE, torch.bfloat16):
        half = norm(x, module)
    assert half.dtype == torch.bfloat16
    agree(half, expected, HALF)


def test_many_rows_add_up_in_the_gradients_of_a_norm() -> None:
    module, x = make("layer", 16), randn(3001, 16)
    inputs = list(module.parameters())
    for found, wanted in zip(gradients(norm(x, module), inputs), gradients(module(x), inputs), strict=True):
        agree(found, wanted, 1e-4)


def test_what_is_dropped_is_dropped_in_both_passes() -> None:
    module = nn.LayerNorm(64, elementwise_affine=True).to(DEVICE)
    dropout = Dropout(0.25)
    x, added = torch.zeros(50, 64, device=DEVICE), (3 + randn(50, 64).abs()).requires_grad_()
    torch.manual_seed(3)
    y = add_norm(x, added, module, dropout)
    (gradient,) = gradients(y, [added])
    dropped = gradient == 0.0  # nothing else makes it exactly 0
    assert 0.2 < float(dropped.float().mean()) < 0.3
    agree(y, module(torch.where(dropped, 0.0, added / 0.75)), 1e-4)
    torch.manual_seed(3)
    assert torch.equal(add_norm(x, added, module, dropout), y)
    assert not torch.equal(add_norm(x, added, module, dropout), y)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_an_activation_with_its_dropout(p: float) -> None:
    x = randn(300, 100).requires_grad_()
    torch.manual_seed(1)
    y = relu_dropout(x, Dropout(p))
    went = y > 0
    assert not went[x <= 0].any()
    agree(y[went], x[went] / (1 - p), 1e-5)
    count = int((x > 0).sum())
    spread = math.sqrt(p * (1 - p) / count)
    assert abs(float(went.sum()) / count - (1 - p)) < 4 * spread
    (gradient,) = torch.autograd.grad(y.sum(), x)
    agree(gradient, went / (1 - p), 1e-5)


def test_masks_of_different_seeds_and_places_have_nothing_in_common() -> None:
    dropout, x = Dropout(0.5), torch.ones(20_000, device=DEVICE)
    torch.manual_seed(1)
    masks = torch.stack([relu_dropout(x, dropout) > 0 for _ in range(5)]).float() - 0.5
    limit = 5 * 0.25 / math.sqrt(x.numel())
    for shift in (0, 1, 2, 64, 512, 4096):
        together = masks[:, shift:] @ masks[:, : x.numel() - shift].T / x.numel()
        if not shift:
            together.fill_diagonal_(0.0)
        assert float(together.abs().max()) < limit, shift


def test_without_dropout_it_is_the_plain_activation() -> None:
    x = randn(5, 6)
    for dropout in (Dropout(0.5).eval(), Dropout(0.0)):
        assert torch.equal(relu_dropout(x, dropout), torch.relu(x))
    assert not relu_dropout(x, Dropout(1.0)).any()


@pytest.mark.parametrize("place", ["pre", "post"])
def test_blocks_use_them_and_compile_as_one_graph(place: str) -> None:
    torch.manual_seed(1)
    around, inside = Residual(16, place, 0.0).to(DEVICE), FeedForward(16, 32, "relu", 0.3).to(DEVICE)

    def run(x: Tensor) -> Tensor:
        return around(x, inside)

    x = randn(7, 16).requires_grad_()
    torch.manual_seed(2)
    y = run(x)
    torch.manual_seed(2)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    agree(compiled, y, 1e-5)
    for found, wanted in zip(
        torch.autograd.grad(compiled.square().sum(), [x, *inside.parameters()]),
        torch.autograd.grad(y.square().sum(), [x, *inside.parameters()]),
        strict=True,
    ):
        agree(found, wanted, 1e-4)
