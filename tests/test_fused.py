"""Residuals, norms and activations with their dropout, each in one kernel, against their equations in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from regard.nn.blocks import ACTIVATIONS, FeedForward, Residual, make_norm, sublayers
from regard.nn.dropout import Dropout
from regard.nn.fused import add_and_norm, add_dropout, add_norm, linear_activate_dropout, norm
from regard.nn.linear import BiasGradient, Linear
from tests.conftest import FULL, compiles, whole

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
    assert found.shape == expected.shape
    if found.numel():
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


@pytest.mark.skipif(not (FULL or torch.cuda.is_available()), reason="takes long; make test-all")
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


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize(("total", "width"), [(0, 8), (1, 1), (7, 24), (9, 512), (3, 2100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_and_its_norm_both_go_on(kind: str, total: int, width: int, dtype: torch.dtype) -> None:
    module, dropout, factor = make(kind, width), Dropout(0.3), 1.0 if kind == "layer" else 0.5
    x = (randn(total, width) + 2).requires_grad_()
    added = (4 + randn(total, width, seed=2, dtype=dtype)).requires_grad_()
    with torch.autocast(DEVICE, dtype, enabled=dtype == torch.bfloat16):
        summed, normed = add_and_norm(x, added, module, dropout, factor)
    assert summed.dtype == x.dtype
    assert normed.dtype == (torch.bfloat16 if dtype == torch.bfloat16 else x.dtype)
    kept = (summed - x).detach() != 0.0  # nothing else makes it exactly 0
    x64, added64 = (tensor.detach().double().requires_grad_() for tensor in (x, added))
    double = make(kind, width).double()
    expected = x64 + factor * torch.where(kept, added64 / 0.7, 0.0)
    tolerance = 1e-4 if dtype == torch.float32 else HALF
    agree(summed, expected, 1e-5)
    agree(normed, written_out(expected, double), tolerance)
    outputs, found = [expected, written_out(expected, double)], [summed, normed]
    for seeds in [(3, 4), (3, None), (None, 4)]:  # both gradients come back, or one of them
        chosen = [i for i, seed in enumerate(seeds) if seed is not None]
        backs = [randn(width, total, seed=seeds[i] or 0).T for i in chosen]  # which lie in another order
        ours = torch.autograd.grad(
            [found[i] for i in chosen], [x, added, *module.parameters()],
            [back.to(found[i].dtype) for i, back in zip(chosen, backs, strict=True)], True, allow_unused=True,
        )  # fmt: skip
        theirs = torch.autograd.grad(
            [outputs[i] for i in chosen], [x64, added64, *double.parameters()],
            [back.to(found[i].dtype).double() for i, back in zip(chosen, backs, strict=True)], True, allow_unused=True,
        )  # fmt: skip
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                agree(one, other, tolerance)


def written_out(x: Tensor, module: nn.LayerNorm | nn.RMSNorm) -> Tensor:
    """`(x - μ) / σ · w + b` (Ba et al. 2016), or `x / rms · w` (Zhang and Sennrich 2019)."""
    if isinstance(module, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    y = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.weight
    return y + module.bias if isinstance(module, nn.LayerNorm) else y


def test_a_sum_in_half_precision_is_normed_as_it_is_rounded() -> None:
    x, added = (randn(5, 48, seed=seed, dtype=torch.bfloat16) for seed in (1, 2))
    module = make("layer", 48)
    summed, normed = add_and_norm(x, added, module, Dropout(0.0))
    assert summed.dtype == normed.dtype == torch.bfloat16
    agree(summed, x + added, HALF)
    assert torch.equal(normed, norm(summed, module))


def test_where_nothing_is_trained_sums_are_those_of_torch() -> None:
    x, added, module = randn(4, 2, 24), randn(4, 2, 24, seed=2), make("layer", 24)
    for dropout in (Dropout(0.5).eval(), Dropout(0.0)):
        assert torch.equal(add_dropout(x, added, dropout), x + added)
        summed, normed = add_and_norm(x, added, module, dropout)
        assert torch.equal(summed, x + added)
        assert torch.equal(normed, norm(x + added, module))
        assert torch.equal(add_dropout(x, added, dropout, 0.5), x + 0.5 * added)
        agree(add_and_norm(x, added, module, dropout, 0.5)[0], x + 0.5 * added, 1e-6)
    for result in (add_dropout(x, added, Dropout(1.0)), add_and_norm(x, added, module, Dropout(1.0))[0]):
        assert torch.equal(result, x)
    wide = randn(2, 8200)
    assert torch.equal(add_and_norm(wide, wide, nn.RMSNorm(8200).to(DEVICE), Dropout(0.0))[0], wide + wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1,), (0, 4), (3, 5, 7), (50, 90)])
def test_a_sum_with_dropout(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = randn(*shape).requires_grad_()
    added = (3 + randn(*shape, seed=2).abs()).to(dtype).requires_grad_()
    torch.manual_seed(4)
    y = add_dropout(x, added, Dropout(0.375), 0.5)
    kept = (y - x).detach() > 1.0
    assert y.dtype == x.dtype
    agree(y, x.double() + 0.5 * torch.where(kept, added.double() / 0.625, 0.0), 1e-5)
    if y.numel() > 1000:
        assert abs(float(kept.float().mean()) - 0.625) < 4 * math.sqrt(0.234 / y.numel())
    for_x, for_added = gradients(y, [x, added])
    back = randn(*shape, seed=9)
    assert torch.equal(for_x, back)
    assert for_added.dtype == dtype
    agree(for_added, 0.5 * torch.where(kept, back / 0.625, 0.0), 1e-6 if dtype == torch.float32 else HALF)


def test_dropout_of_nearly_everything_keeps_nearly_nothing() -> None:
    """A share is rounded to the nearest of 65,536, of which the last is not passed; what is kept grows by as much."""
    zeros = torch.zeros(200_000, device=DEVICE)
    torch.manual_seed(1)
    kept = [value for value in add_dropout(zeros, zeros + 1, Dropout(1 - 1e-7)).tolist() if value]
    assert 0 < len(kept) < 20
    assert set(kept) == {65536.0}


EQUATIONS = {  # in float64: of GELU (Hendrycks and Gimpel 2016) `x Φ(x)`, of SiLU (Elfwing et al. 2018) `x / (1 + e⁻ˣ)`
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


def activated(x: Tensor, activation: nn.Module, dropout: Dropout, bias: nn.Parameter | None = None) -> Tensor:
    """After a product that changes nothing."""
    width = x.shape[-1]
    linear = nn.Linear(width, width, device="meta")  # which draws nothing
    linear.weight = nn.Parameter(torch.eye(width, device=DEVICE, dtype=x.dtype))
    linear.bias = nn.Parameter(torch.zeros_like(linear.weight[0])) if bias is None else bias
    return linear_activate_dropout(linear, x, activation, dropout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.125, pytest.param(0.5, marks=whole), 0.875])
@pytest.mark.parametrize("kind", list(EQUATIONS))
def test_an_activation_with_its_bias_and_dropout(kind: str, p: float, dtype: torch.dtype) -> None:
    x, bias = (3 * randn(17, 421)).to(dtype).requires_grad_(), nn.Parameter(randn(421, seed=2, dtype=dtype))
    torch.manual_seed(1)
    y = activated(x, ACTIVATIONS[kind](), Dropout(p), bias)
    x64 = (x.detach().double() + bias.detach().double()).requires_grad_()
    expected = EQUATIONS[kind](x64) / (1 - p)
    counted = expected.detach().abs() > 1e-3  # nothing of that size is rounded to 0
    went, count = (y != 0)[counted], int(counted.sum())
    assert y.dtype == dtype
    assert abs(float(went.float().mean()) - (1 - p)) < 4 * math.sqrt(p * (1 - p) / count)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    agree(y[counted], torch.where(went, expected[counted], 0.0), tolerance)
    back = randn(421, 17, seed=9).to(dtype).T  # which lies in another order
    gradient, for_bias = torch.autograd.grad(y, [x, bias], back)
    (wanted,) = torch.autograd.grad(expected, x64, back.double())
    agree(gradient[counted], torch.where(went, wanted[counted], 0.0), tolerance)
    assert for_bias.dtype == dtype
    agree(for_bias, gradient.double().sum(0), tolerance)


def test_a_bias_in_single_precision_under_a_product_in_half() -> None:
    layer, x = FeedForward(6, 40, "gelu", 1e-7).to(DEVICE), randn(50, 6)
    with torch.no_grad():
        layer.inner.bias.add_(randn(40))
    expected = copy.deepcopy(layer).double()(x.double())
    with torch.autocast(DEVICE, torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    agree(y, expected, 2**-6)
    assert torch.autograd.grad(y.float().sum(), layer.inner.bias)[0].dtype == torch.float32


@pytest.mark.parametrize("kind", list(EQUATIONS))
@pytest.mark.parametrize(("total", "d_ff"), [(1, 1), (67, 259)])  # or more rows and columns than a program has
def test_gradients_of_a_feed_forward_layer_are_those_of_autograd(kind: str, total: int, d_ff: int) -> None:
    torch.manual_seed(1)
    layer = FeedForward(6, d_ff, kind, 1e-7).to(DEVICE)  # so little dropout is none
    with torch.no_grad():
        layer.inner.bias.add_(randn(d_ff))
    double, x = copy.deepcopy(layer).double(), randn(total, 6)
    y, expected = layer(x), double(x.double())  # for which there are no kernels
    agree(y, expected, 1e-5)
    for found, wanted in zip(
        gradients(y, list(layer.parameters())), gradients(expected, list(double.parameters())), strict=True
    ):
        agree(found, wanted, 1e-5)


@pytest.mark.parametrize("kind", list(EQUATIONS))
def test_nothing_and_much_is_activated_too(kind: str) -> None:
    activation, dropout = ACTIVATIONS[kind](), Dropout(0.5)
    assert activated(randn(0, 4), activation, dropout).shape == (0, 4)
    x = torch.tensor([-80.0, -0.0, 0.0, 80.0], device=DEVICE).repeat(20, 1).requires_grad_()
    y = activated(x, activation, dropout)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    kept = y[:, 3] > 0
    assert 0 < int(kept.sum()) < 20
    agree(y, torch.where(kept[:, None] & (x > 1), 160.0, 0.0), 1e-6)
    agree(gradient[:, [0, 3]], torch.stack((torch.zeros_like(kept), 2.0 * kept), 1), 1e-6)


@pytest.mark.parametrize("draw", [
    lambda x, dropout: activated(x, nn.ReLU(), dropout),
    lambda x, dropout: activated(x, nn.GELU(), dropout),
    lambda x, dropout: add_dropout(torch.zeros_like(x), x, dropout),
    lambda x, dropout: add_and_norm(torch.zeros_like(x), x, make("rms", 250), dropout)[0],
])  # fmt: skip
def test_masks_of_different_seeds_and_places_have_nothing_in_common(draw: Callable[[Tensor, Dropout], Tensor]) -> None:
    dropout, x = Dropout(0.5), torch.ones(80, 250, device=DEVICE)
    torch.manual_seed(1)
    masks = torch.stack([draw(x, dropout).flatten() > 0 for _ in range(5)]).float() - 0.5
    limit = 5 * 0.25 / math.sqrt(x.numel())
    for shift in (0, 1, 2, 64, 250, 512, 4096):
        together = masks[:, shift:] @ masks[:, : x.numel() - shift].T / x.numel()
        if not shift:
            together.fill_diagonal_(0.0)
        assert float(together.abs().max()) < limit, shift


def test_without_dropout_it_is_the_plain_activation() -> None:
    x = randn(5, 6)
    for activation in (nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU()):
        for dropout in (Dropout(0.5).eval(), Dropout(0.0)):
            assert torch.equal(activated(x, activation, dropout), activation(x))
        assert not activated(x, activation, Dropout(1.0)).any()


def test_an_activation_without_a_kernel_is_torchs_own() -> None:
    x = randn(40, 50)
    torch.manual_seed(1)
    found = activated(x, nn.Tanh(), Dropout(0.5))
    torch.manual_seed(1)
    assert torch.equal(found, Dropout(0.5)(torch.tanh(x)))


@compiles
@pytest.mark.skipif(not (FULL or torch.cuda.is_available()), reason="takes long; make test-all")
@pytest.mark.parametrize(
    ("place", "activation", "blocks"), [("pre", "gelu", 1), ("post", "relu", 2), ("pre", "gelu", 2)]
)
def test_sublayers_use_them_and_compile_as_one_graph(place: str, activation: str, blocks: int) -> None:
    torch.manual_seed(1)
    around = [Residual(16, place, 0.3).to(DEVICE) for _ in range(2)]
    within = [FeedForward(16, 32, activation, 0.3).to(DEVICE) for _ in range(2)]
    weights = [weight for module in (*around, *within) for weight in module.parameters()]

    def block(x: Tensor, pending: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return sublayers(x, pending, *zip(around, within, strict=True))

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=True)
    for total in (7, 9):
        x, drawn = randn(total, 16).requires_grad_(), []
        for way in (block, compiled):
            torch.manual_seed(2)
            y, pending = way(x, None)
            for _ in range(blocks - 1):
                y, pending = way(y, pending)
            y = y if pending is None else add_dropout(y, pending, around[-1].dropout)
            drawn.append((y, *torch.autograd.grad(y.square().sum(), [x, *weights])))
        for found, wanted in zip(*drawn, strict=True):
            agree(found, wanted, 1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_pre_norm_sublayers_are_their_residuals_one_after_another(dropout: float) -> None:
    torch.manual_seed(1)
    around = [Residual(16, "pre", dropout).to(DEVICE) for _ in range(3)]
    within = [FeedForward(16, 24, "gelu", 0.0).to(DEVICE) for _ in range(3)]
    x, parts = randn(7, 16).requires_grad_(), list(zip(around, within, strict=True))
    inputs = [x, *(weight for module in (*around, *within) for weight in module.parameters())]
    torch.manual_seed(2)
    fused, pending = sublayers(x, None, *parts[:2])  # in one block, and in another
    fused, pending = sublayers(fused, pending, *parts[2:])
    assert pending is not None
    fused = add_dropout(fused, pending, around[-1].dropout)
    torch.manual_seed(2)
    plain = x
    for residual, f in parts:
        plain = residual(plain, f)
    agree(fused, plain, 1e-6)
    for found, wanted in zip(gradients(fused, inputs), gradients(plain, inputs), strict=True):
        agree(found, wanted, 1e-5)


def test_the_gradient_of_a_bias_is_a_sum_over_rows() -> None:
    y, bias = randn(3, 5, 7).double().requires_grad_(), randn(7, seed=2).double().requires_grad_()
    given = randn(3, 5, 7, seed=3).double()
    found = torch.autograd.grad(BiasGradient.apply(y + bias.detach(), bias), (y, bias), given)
    torch.testing.assert_close(found, torch.autograd.grad(y + bias, (y, bias), given))


@pytest.mark.skipif(DEVICE == "cpu", reason="in half precision on a GPU")
def test_a_linear_layer_in_half_precision_has_the_gradients_of_torchs_own() -> None:
    layer, x = Linear(48, 96, heights=[32] * 3).to(DEVICE), randn(1000, 48)
    found = []
    for forward in (layer, lambda x: torch.nn.functional.linear(x, layer.weight, layer.bias)):
        with torch.autocast(DEVICE, torch.bfloat16):
            found.append((y := forward(x), gradients(y, (layer.weight, layer.bias))))
    assert torch.equal(found[0][0], found[1][0])
    for one, other in zip(found[0][1], found[1][1], strict=True):
        agree(one, other, 2**-7)
