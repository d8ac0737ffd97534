"""Regard's own kernels against equations in float64: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.batch import Room, make_batch
from regard.models.stems import Embedding
from regard.nn import kernels
from regard.nn.attention import MultiHeadAttention, attend, capture, takes_filled
from regard.nn.blocks import Block
from regard.nn.graphs import cloned
from regard.nn.kernels import (
    Spans,
    attend_spans,
    softmax_agreement_,
    softmax_cross_entropy_,
    spans,
)
from regard.nn.positions import Alibi, Sinusoidal
from regard.ragged import Ragged
from regard.training.losses import _linear_cross_entropy, linear_cross_entropy
from regard.training.objectives import Likelihood
from regard.training.update import filled_room
from regard.training_settings import ObjectiveSettings as Settings
from regard.training_settings import Training
from tests.conftest import FULL, Pair, crossed, tiny

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALL = FULL or DEVICE == "cuda"  # in the interpreter a case takes seconds
HALF = {torch.bfloat16: 2**-7, torch.float16: 2**-10}  # the interpreter cuts off where a GPU rounds
DTYPES = [torch.float32, *HALF]


def randn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def rows(lengths: list[int], *shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Ragged:
    return Ragged.from_lengths(randn(sum(lengths), *shape, seed=seed, dtype=dtype).requires_grad_(), lengths)


def intervals(q: Ragged, k: Ragged, causal: bool) -> Spans:
    return spans(q, k, causal)


def written_out(q: Ragged, k: Ragged, v: Ragged, causal: bool) -> Tensor:
    """Attention row by row in float64."""
    parts = []
    ends = [x.offsets.tolist() for x in (q, k)]
    for i in range(len(q)):
        query = q.values[ends[0][i] : ends[0][i + 1]].double().transpose(0, 1)  # (heads, target, d_head)
        key, value = (x.values[ends[1][i] : ends[1][i + 1]].double().transpose(0, 1) for x in (k, v))
        scores = query @ key.mT / math.sqrt(q.values.shape[2])
        if causal:
            scores = scores.masked_fill(~torch.ones_like(scores).tril().bool(), -torch.inf)
        weights = torch.softmax(scores, -1)  # over no keys at all it is empty, and gives zeros below
        parts.append((weights @ value).transpose(0, 1))
    return torch.cat(parts)


def agree(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> None:
    """Within `tolerance` of the greatest number expected."""
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape
        a, b = a.detach().double(), b.detach().double()
        limit = tolerance * float(b.abs().max()) if b.numel() else 0.0
        worst = float((a - b).abs().max()) if b.numel() else 0.0
        assert worst <= limit, f"number {i} is off by {worst:.2e}, {worst / limit * tolerance:.2e} of the greatest"


def attended(q: Tensor, k: Tensor, v: Tensor, *between: Tensor) -> Tensor:
    return attend_spans(q.unsqueeze(1), torch.stack((k, v), 1), *between)


def check(q: Ragged, k: Ragged, v: Ragged, causal: bool, tolerance: float) -> None:
    """Forward and backward of the operator against autograd of the equation."""
    inputs = (q.values, k.values, v.values)
    expected = written_out(q, k, v, causal)
    found = attended(*inputs, *intervals(q, k, causal))
    weights = randn(*found.shape, seed=7, dtype=found.dtype)
    agree((found,), (expected,), tolerance)
    agree(
        torch.autograd.grad(found, inputs, weights), torch.autograd.grad(expected, inputs, weights.double()), tolerance
    )


SELF = [5, 0, 1, 30, 17, 70, 0, 9]  # a row longer than several tiles, empty ones, a total that fills no tile
OTHER = [3, 4, 0, 11, 66, 20, 0, 2]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("kind", "shape"), crossed(["self", "causal", "cross"], [(2, 8), (3, 24), (1, 64)]))
def test_attention_in_float32(kind: str, shape: tuple[int, int]) -> None:
    heads, d_head = shape
    q = rows(SELF, heads, d_head)
    k, v = (rows(OTHER if kind == "cross" else SELF, heads, d_head, seed=seed) for seed in (2, 3))
    check(q, k, v, kind == "causal", 2e-6)


@pytest.mark.usefixtures("kernel")
def test_the_widest_head() -> None:
    q, k, v = (rows([3, 40], 1, 128, seed=seed) for seed in (1, 2, 3))
    check(q, k, v, True, 2e-6)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", ["causal", "cross"])
def test_attention_in_half_precision(kind: str, dtype: torch.dtype) -> None:
    q = rows(SELF, 2, 64, dtype=dtype)
    k, v = (rows(OTHER if kind == "cross" else SELF, 2, 64, seed=seed, dtype=dtype) for seed in (2, 3))
    check(q, k, v, kind == "causal", 3 * HALF[dtype])


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (16, 64), (64, 16), (128, 32)])
def test_tiles_of_every_size_agree(queries: int, keys: int) -> None:
    from regard.nn import triton_kernels

    q, k, v = (rows(SELF, 1, 16, seed=seed) for seed in (1, 2, 3))
    inputs, between = (q.values, k.values, v.values), intervals(q, k, True)
    expected = written_out(q, k, v, True)
    weights = randn(*expected.shape, seed=7)
    tiles = triton_kernels.Tiles(queries, keys, 4, 1)
    found, lse = triton_kernels.attend(*inputs, *between[:2], tiles=tiles)
    agree((found,), (expected,), 2e-6)
    plan = triton_kernels.Plan(tiles, tiles, tiles)
    dq, dk, dv = (torch.empty_like(x) for x in inputs)
    triton_kernels.attend_backward(weights, *inputs, found, lse, *between, dq, dk, dv, tiles=plan)
    agree((dq, dk, dv), torch.autograd.grad(expected, inputs, weights.double()), 2e-6)


@pytest.mark.usefixtures("kernel")
def test_queries_keys_and_values_may_be_slices_of_one_projection() -> None:
    fused = rows([20, 41], 2 * 3 * 8)
    q, k, v = (fused.like(x.unflatten(-1, (2, 8))) for x in fused.values.chunk(3, dim=-1))
    expected = written_out(q, k, v, True)
    found = attend_spans(fused.values.unflatten(-1, (3, 2, 8)), None, *intervals(q, k, True))
    assert found.is_contiguous()
    agree((found,), (expected,), 2e-6)
    # The gradient of a sum is one number, spread without memory of its own.
    agree(torch.autograd.grad(found.sum(), fused.values), torch.autograd.grad(expected.sum(), fused.values), 2e-6)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("targets", "sources"), [([3, 2], [0, 0]), ([0, 0], [3, 2]), ([], []), ([40, 3, 40], [9, 0, 2])]
)
def test_what_sees_nothing_is_zero_and_stays_so(targets: list[int], sources: list[int]) -> None:
    q, k, v = rows(targets, 2, 8), rows(sources, 2, 8, seed=2), rows(sources, 2, 8, seed=3)
    found = attended(q.values, k.values, v.values, *intervals(q, k, False))
    grads = torch.autograd.grad(found.sum(), (q.values, k.values, v.values))
    blind = torch.tensor(sources, device=DEVICE).long()[q.row] == 0
    for x in (found, *grads):
        assert x.isfinite().all()
    assert not found[blind].any()
    assert not grads[0][blind].any()


@pytest.mark.usefixtures("kernel")
def test_a_tail_that_sees_nothing_changes_nothing() -> None:
    """Buffers of a fixed size, as a CUDA graph has them, end in tokens that take no part: their intervals are empty."""
    long = [rows([41, 30, 59], 1, 16, seed=seed).values for seed in (1, 2, 3)]
    short = [x[:71].detach().requires_grad_() for x in long]
    q = rows([41, 30], 1, 16)
    between = intervals(q, q, True)
    padded = Spans(*(torch.cat((x, x.new_zeros(59))) for x in between))
    found = attended(long[0], long[1], long[2], *padded)
    expected = attended(short[0], short[1], short[2], *between)
    grads = torch.autograd.grad(found.square().sum(), long)
    wanted = torch.autograd.grad(expected.square().sum(), short)
    agree((found[:71], *(x[:71] for x in grads)), (expected, *wanted), 1e-6)
    assert not any(x[71:].any() for x in (found, *grads))


@pytest.mark.usefixtures("kernel")
def test_great_scores_do_not_overflow() -> None:
    q, k, v = (rows([40, 30], 1, 16, seed=seed) for seed in (1, 2, 3))
    q = q.like(q.values.detach() * 300)
    found = attended(q.values, k.values, v.values, *intervals(q, k, False))
    agree((found,), (written_out(q, k, v, False),), 1e-3)


@pytest.mark.usefixtures("kernel")
def test_the_kernel_agrees_with_attend() -> None:
    q, k, v = (rows([9, 0, 4], 2, 16, seed=seed) for seed in (1, 2, 3))
    found = attended(q.values, k.values, v.values, *intervals(q, k, False))
    torch.testing.assert_close(found, attend(q, k, v).values, rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_spans_say_the_same_from_both_sides(causal: bool) -> None:
    q = rows([2, 0, 3], 1, 8)
    k = q if causal else rows([1, 2, 2], 1, 8)
    found = intervals(q, k, causal)
    assert all(x.dtype == torch.int32 for x in found)
    a, b, c, d = (x.tolist() for x in found)
    pairs = {(m, n) for m in range(len(a)) for n in range(a[m], b[m])}
    assert pairs == {(m, n) for n in range(len(c)) for m in range(c[n], d[n])}
    own = {(m, n) for m, n in product(range(len(a)), range(len(c))) if q.row[m] == k.row[n]}
    assert pairs == ({(m, n) for m, n in own if n <= m} if causal else own)


@pytest.mark.skipif(not ALL, reason="takes long; make test-all")
@pytest.mark.usefixtures("kernel")
def test_attention_compiles_as_one_operator() -> None:
    q, k, v = (rows([9, 4], 2, 8, seed=seed) for seed in (1, 2, 3))
    between = intervals(q, k, True)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attended(q * 2, k, v, *between).square().sum()

    inputs = (q.values, k.values, v.values)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    agree(torch.autograd.grad(compiled(*inputs), inputs), torch.autograd.grad(run(*inputs), inputs), 1e-6)
    both = torch.stack((k.values, v.values), 1).detach().requires_grad_()
    torch.library.opcheck(kernels._attend, (q.values.detach().unsqueeze(1).requires_grad_(), both, *between))
    three = torch.cat((q.values.unsqueeze(1), both), 1).detach().requires_grad_()
    torch.library.opcheck(kernels._attend, (three, None, *between))


@pytest.mark.usefixtures("kernel")
def test_what_does_not_fit_is_named() -> None:
    q, k, v = (rows([9, 4], 2, 8, seed=seed) for seed in (1, 2, 3))
    between = intervals(q, k, True)
    with pytest.raises(AssertionError, match="key_begin should be int32"):
        attended(q.values, k.values, v.values, between[0].long(), *between[1:])
    with pytest.raises(AssertionError, match=r"query_end \(5,\) should be \(13,\)"):
        attended(q.values, k.values, v.values, *between[:3], between[3][:5])
    with pytest.raises(AssertionError, match=r"d_head \(160\) should be at most 128"):
        attend_spans(randn(13, 3, 1, 160), None, *between)
    with pytest.raises(AssertionError, match=r"x should be \(total, 1, heads, d_head\), got \(13, 3, 2, 8\)"):
        attend_spans(randn(13, 3, 2, 8), randn(13, 2, 2, 8), *between)
    with pytest.raises(AssertionError, match=r"memory should be \(13, 2, 2, 8\), got \(13, 3, 2, 8\)"):
        attend_spans(randn(13, 1, 2, 8), randn(13, 3, 2, 8), *between)
    with pytest.raises(AssertionError, match="needs triton and a GPU in single or half precision"):
        attended(q.values.double(), k.values.double(), v.values.double(), *between)


def drawn(tokens: int, vocabulary: int) -> Tensor:
    """Targets, of which the second and the last do not count."""
    targets = torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(4))
    targets[[1, -1]] = kernels.IGNORED
    return targets.to(DEVICE)


def both(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Losses and gradients by torch in float64."""
    wide = logits.double().requires_grad_()
    losses = F.cross_entropy(wide, targets, label_smoothing=smoothing, reduction="none")
    return losses.detach(), torch.autograd.grad(losses.sum(), wide)[0]


def plain(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return kernels._softmax_cross_entropy_plain_(logits, targets, smoothing)


def in_blocks(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    from regard.nn import triton_kernels

    return triton_kernels.softmax_losses_(logits, targets, smoothing, kernels.IGNORED, block=64, warps=1)


Way = Callable[[Tensor, Tensor, float], Tensor]


@pytest.fixture(params=[softmax_cross_entropy_, in_blocks, plain])
def way(request: pytest.FixtureRequest) -> Way:
    """The loss by the kernel, by the kernel in several blocks, and without it, for which triton need not be there."""
    if request.param is not plain:
        request.getfixturevalue("kernel")
    chosen: Way = request.param
    return chosen


@pytest.mark.parametrize(("smoothing", "vocabulary", "dtype"), crossed([0.0, 0.1], [300, 64, 13], DTYPES))
def test_loss_and_gradient_in_place(way: Way, smoothing: float, vocabulary: int, dtype: torch.dtype) -> None:
    logits, targets = 4 * randn(7, vocabulary, dtype=dtype), drawn(7, vocabulary)
    losses, gradients = both(logits, targets, smoothing)
    found = way(logits, targets, smoothing)
    assert found.dtype == torch.float32
    assert logits.dtype == dtype
    agree((found, logits), (losses, gradients), 2e-6 if dtype == torch.float32 else HALF[dtype])
    assert not found[[1, -1]].any()
    assert not logits[[1, -1]].any()


def test_a_word_that_cannot_come_costs_nothing(way: Way) -> None:
    logits, targets = randn(4, 200), torch.tensor([70, 199, 71, 150], device=DEVICE)
    logits[:, :70] = -torch.inf  # a whole block of them, and the first
    losses, gradients = both(logits, targets, 0.0)
    agree((way(logits, targets, 0.0), logits), (losses, gradients), 1e-6)


@pytest.mark.usefixtures("kernel")
def test_a_target_outside_of_the_vocabulary_shows() -> None:
    assert softmax_cross_entropy_(randn(2, 9), torch.tensor([3, 9], device=DEVICE)).isnan().tolist() == [False, True]


def test_the_loss_in_place_compiles() -> None:
    def run(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits * 2
        return softmax_cross_entropy_(logits, targets, 0.1), logits

    given = (randn(7, 13), drawn(7, 13))
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    agree(compiled(*given), run(*given), 1e-6)
    torch.library.opcheck(kernels.softmax_cross_entropy_, (*given, 0.1))


def whole(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """What `linear_cross_entropy` stands for."""
    logits = F.linear(x, weight, bias)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, targets, label_smoothing=smoothing, reduction="sum")


def layer(dtype: torch.dtype = torch.float64, tokens: int = 11) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, weight and bias of an output layer, and targets."""
    shapes = ((tokens, 6), (13, 6), (13,))
    x, weight, bias = (randn(*shape, seed=i, dtype=dtype).requires_grad_() for i, shape in enumerate(shapes))
    return x, weight, bias, drawn(tokens, 13)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
def test_linear_cross_entropy_in_chunks(chunk: int, smoothing: float) -> None:
    *inputs, targets = layer()
    x, weight, bias = inputs
    found = linear_cross_entropy(x, weight, bias, targets, smoothing, chunk)
    expected = whole(x, weight, bias, targets, smoothing)
    agree((found,), (expected,), 1e-13)
    agree(torch.autograd.grad(found / 7, inputs), torch.autograd.grad(expected / 7, inputs), 1e-13)


def test_linear_cross_entropy_passes_gradcheck() -> None:
    x, weight, bias, targets = layer()

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_cross_entropy(x, weight, bias, targets, 0.1, 4)

    assert torch.autograd.gradcheck(run, (x, weight, bias))


def test_linear_cross_entropy_without_a_bias_or_without_tokens() -> None:
    x, weight, _, targets = layer()
    found, expected = linear_cross_entropy(x, weight, None, targets, 0.1, 4), whole(x, weight, None, targets, 0.1)
    agree(torch.autograd.grad(found, (x, weight)), torch.autograd.grad(expected, (x, weight)), 1e-13)
    nothing = linear_cross_entropy(x[:0], weight, None, targets[:0])
    assert float(nothing.detach()) == 0
    assert not torch.autograd.grad(nothing, weight)[0].any()


def test_a_weight_shared_with_an_embedding_gets_both_gradients() -> None:
    _, weight, bias, targets = layer()
    tokens = torch.arange(11, device=DEVICE)

    def of(loss: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(F.embedding(tokens, weight).tanh(), weight, bias, targets), (weight, bias))

    agree(of(linear_cross_entropy), of(whole), 1e-13)


def test_only_what_is_wanted_is_computed() -> None:
    x, weight, bias, targets = layer()
    with torch.no_grad():
        assert not linear_cross_entropy(x, weight, bias, targets).requires_grad
    found = linear_cross_entropy(x.detach(), weight.detach(), bias, targets, chunk=4)
    kept = cast(Any, found.grad_fn).saved_tensors
    assert [tensor.numel() for tensor in kept] == [0, 0, 13]
    agree(torch.autograd.grad(found, bias), torch.autograd.grad(whole(x, weight, bias, targets), bias), 1e-13)


def test_linear_cross_entropy_under_autocast() -> None:
    *inputs, targets = layer(torch.float32, tokens=300)
    x, weight, bias = inputs
    with torch.autocast(DEVICE, torch.bfloat16):
        found, rounded = (
            linear_cross_entropy(x, weight, bias, targets, 0.1, 64),
            whole(x, weight, bias, targets, 0.1),
        )
    exact = whole(x.double(), weight.double(), bias.double(), targets, 0.1)
    agree((found,), (rounded,), 1e-5)  # the same logits
    assert found.dtype == torch.float32
    gradients = torch.autograd.grad(found, inputs)
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    agree(gradients, torch.autograd.grad(exact, inputs), 2**-6)


def test_many_chunks_in_bfloat16_add_up_in_float32() -> None:
    """Each token adds the same: a sum in bfloat16 would stop growing at 256 times its parts."""
    x, weight, _, _ = layer(torch.bfloat16)
    x, targets = x[:1].detach().expand(2048, -1), torch.zeros(2048, dtype=torch.long, device=DEVICE)
    one, many = (linear_cross_entropy(x[:n], weight, None, targets[:n], chunk=2) for n in (2, 2048))
    first, last = (torch.autograd.grad(y, weight)[0].float() for y in (one, many))
    agree((last,), (first * 1024,), 2**-7)


@pytest.mark.parametrize("autocast", [False, True] if ALL else [True])
def test_linear_cross_entropy_compiles(autocast: bool) -> None:
    x, weight, bias, targets = layer(torch.float32)

    def run(x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            return linear_cross_entropy(x * 2, weight, bias, targets, 0.1, 4) / 3

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (11, 7):
        inputs = (x[:tokens].detach().requires_grad_(), weight, bias)
        found, expected = compiled(*inputs, targets[:tokens]), run(*inputs, targets[:tokens])
        agree((found,), (expected,), 1e-6)
        agree(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), 1e-6)
    torch.library.opcheck(
        _linear_cross_entropy, (x, weight, bias, targets, 0.1, 0.0, 4, torch.float32, True, True, True)
    )


# The loss of two passes that should agree


def divergence(logits: Tensor, targets: Tensor, smoothing: float, agreement: float) -> Tensor:
    """The loss of each token of two passes `(2, tokens, vocabulary)`, as Liang et al. 2021 (eq. 2 to 4) write it."""
    p, q = logits.softmax(-1)
    there, back = (F.kl_div(b.log(), a, reduction="none").sum(-1) for a, b in ((p, q), (q, p)))
    one, other = (F.cross_entropy(x, targets, label_smoothing=smoothing, reduction="none") for x in logits)
    return ((one + other) / 2 + agreement / 4 * (there + back)).where(targets != kernels.IGNORED, 0)


def agreeing_plain(logits: Tensor, targets: Tensor, smoothing: float, agreement: float) -> Tensor:
    return kernels._softmax_agreement_plain_(logits, targets, smoothing, agreement)


def agreeing_in_blocks(logits: Tensor, targets: Tensor, smoothing: float, agreement: float) -> Tensor:
    from regard.nn import triton_kernels

    return triton_kernels.softmax_losses_(logits, targets, smoothing, kernels.IGNORED, agreement, block=64, warps=1)


Agreeing = Callable[[Tensor, Tensor, float, float], Tensor]


@pytest.fixture(params=[softmax_agreement_, agreeing_in_blocks, agreeing_plain])
def agreeing(request: pytest.FixtureRequest) -> Agreeing:
    """As `way`, of two passes."""
    if request.param is not agreeing_plain:
        request.getfixturevalue("kernel")
    chosen: Agreeing = request.param
    return chosen


@pytest.mark.parametrize(("smoothing", "vocabulary", "dtype"), crossed([0.0, 0.1], [300, 64, 13], DTYPES))
def test_two_passes_that_should_agree_in_place(
    agreeing: Agreeing, smoothing: float, vocabulary: int, dtype: torch.dtype
) -> None:
    logits, targets = 4 * randn(2, 7, vocabulary, dtype=dtype), drawn(7, vocabulary)
    wide = logits.double().requires_grad_()
    losses = divergence(wide, targets, smoothing, 3.0)
    (gradients,) = torch.autograd.grad(losses.sum(), wide)
    found = agreeing(logits, targets, smoothing, 3.0)
    assert found.dtype == torch.float32
    assert logits.dtype == dtype
    agree((found, logits), (losses, gradients), 2e-6 if dtype == torch.float32 else HALF[dtype])
    assert not found[[1, -1]].any()
    assert not logits[:, [1, -1]].any()


def test_what_two_passes_say_alike_costs_what_one_does(agreeing: Agreeing) -> None:
    """Exactly, however great the weight; and a gradient that is half of it, twice."""
    logits, targets = 4 * randn(7, 200), drawn(7, 200)
    twice = torch.stack((logits, logits))
    found, losses = agreeing(twice, targets, 0.1, 1e6), plain(logits, targets, 0.1)
    agree((found, twice[0], twice[1]), (losses, logits / 2, logits / 2), 1e-6)


def test_a_word_that_cannot_come_is_no_disagreement(agreeing: Agreeing) -> None:
    logits, targets = randn(2, 4, 200), torch.tensor([70, 199, 71, 150], device=DEVICE)
    wide = logits[..., 70:].double().requires_grad_()
    losses = divergence(wide, targets - 70, 0.0, 3.0)
    (gradients,) = torch.autograd.grad(losses.sum(), wide)
    logits[..., :70] = -torch.inf
    agree((agreeing(logits, targets, 0.0, 3.0), logits[..., 70:]), (losses, gradients), 1e-6)
    assert not logits[..., :70].any()


@pytest.mark.usefixtures("kernel")
def test_a_target_outside_of_the_vocabulary_shows_in_both_passes() -> None:
    found = softmax_agreement_(randn(2, 2, 9), torch.tensor([3, 9], device=DEVICE), 0.0, 3.0)
    assert found.isnan().tolist() == [False, True]


def test_two_passes_that_do_not_fit_are_refused() -> None:
    for shape in ((3, 7, 13), (7, 13)):
        with pytest.raises(AssertionError, match=r"logits should be \(2, tokens, vocabulary\), got "):
            softmax_agreement_(randn(*shape), drawn(7, 13), 0.0, 3.0)
    with pytest.raises(AssertionError, match=r"7 rows of logits, but targets \(6,\)"):
        softmax_agreement_(randn(2, 7, 13), drawn(6, 13), 0.0, 3.0)


def test_two_passes_in_place_compile() -> None:
    def run(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits * 2
        return softmax_agreement_(logits, targets, 0.1, 3.0), logits

    given = (randn(2, 7, 13), drawn(7, 13))
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    agree(compiled(*given), run(*given), 1e-6)
    torch.library.opcheck(kernels.softmax_agreement_, (*given, 0.1, 3.0))


def two_passes(dtype: torch.dtype = torch.float64, tokens: int = 11) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `layer`, with states of two passes."""
    _, weight, bias, targets = layer(dtype, tokens)
    return randn(2, tokens, 6, seed=5, dtype=dtype).requires_grad_(), weight, bias, targets


def whole_agreement(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float) -> Tensor:
    logits = F.linear(x, weight, bias)
    return divergence(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, smoothing, 3.0).sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 4, 11, None])
def test_two_passes_in_chunks(chunk: int | None, smoothing: float) -> None:
    *inputs, targets = two_passes()
    x, weight, bias = inputs
    found = linear_cross_entropy(x, weight, bias, targets, smoothing, chunk, 3.0)
    expected = whole_agreement(x, weight, bias, targets, smoothing)
    agree((found,), (expected,), 1e-13)
    agree(torch.autograd.grad(found / 7, inputs), torch.autograd.grad(expected / 7, inputs), 1e-13)


def test_two_passes_pass_gradcheck() -> None:
    x, weight, bias, targets = two_passes()

    def run(one: Tensor, other: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_cross_entropy(torch.stack((one, other)), weight, bias, targets, 0.1, 4, 3.0)

    one, other = (state.detach().requires_grad_() for state in x)
    assert torch.autograd.gradcheck(run, (one, other, weight, bias))


def test_two_passes_without_a_bias_or_without_tokens() -> None:
    x, weight, bias, targets = two_passes()
    found, expected = (
        linear_cross_entropy(x, weight, None, targets, 0.1, 4, 3.0),
        whole_agreement(x, weight, None, targets, 0.1),
    )
    agree(torch.autograd.grad(found, (x, weight)), torch.autograd.grad(expected, (x, weight)), 1e-13)
    nothing = linear_cross_entropy(x[:, :0], weight, None, targets[:0], agreement=3.0)
    assert float(nothing.detach()) == 0
    assert not torch.autograd.grad(nothing, weight)[0].any()
    found = linear_cross_entropy(x.detach(), weight.detach(), bias, targets, chunk=4, agreement=3.0)
    assert [tensor.numel() for tensor in cast(Any, found.grad_fn).saved_tensors] == [0, 0, 13]


@pytest.mark.parametrize("by_kernel", [False, True] if ALL else [False])
def test_two_passes_under_autocast(by_kernel: bool, request: pytest.FixtureRequest) -> None:
    if by_kernel:
        request.getfixturevalue("kernel")
    *inputs, targets = two_passes(torch.float32, tokens=150)
    x, weight, bias = inputs
    with torch.autocast(DEVICE, torch.bfloat16):
        found = linear_cross_entropy(x, weight, bias, targets, 0.1, 64, 3.0)
        rounded = whole_agreement(x, weight, bias, targets, 0.1)
    exact = whole_agreement(x.double(), weight.double(), bias.double(), targets, 0.1)
    agree((found,), (rounded,), 1e-5)  # the same logits
    assert found.dtype == torch.float32
    gradients = torch.autograd.grad(found, inputs)
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    agree(gradients, torch.autograd.grad(exact, inputs), 2**-6)


@pytest.mark.skipif(not ALL, reason="takes long; make test-all")
def test_the_loss_of_two_passes_compiles() -> None:
    x, weight, bias, targets = two_passes(torch.float32)

    def run(x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(x * 2, weight, bias, targets, 0.1, 4, 3.0) / 3

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (11, 7):
        inputs = (x[:, :tokens].detach().requires_grad_(), weight, bias)
        found, expected = compiled(*inputs, targets[:tokens]), run(*inputs, targets[:tokens])
        agree((found,), (expected,), 1e-6)
        agree(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), 1e-6)
    torch.library.opcheck(
        _linear_cross_entropy, (x, weight, bias, targets, 0.1, 3.0, 4, torch.float32, True, True, True)
    )


# Decoding


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(("rows_", "heads", "d_head", "taken"), [(3, 2, 8, 0), (4, 1, 24, 17), (2, 3, 16, 39)])
def test_a_query_recalls_its_own_past(
    kernel: None, rows_: int, heads: int, d_head: int, taken: int, real: bool
) -> None:
    """Slots of a row lie in the caches of others, beyond those that are taken there is rubbish, and the new one is kept
    where it belongs."""
    from regard.nn.triton_decoding import cached_self_attention

    window = 40
    q, k, v = randn(rows_, 3, heads, d_head, seed=2).unbind(1)
    cache = randn(rows_, window, 2, heads, d_head, seed=3)
    cache[:, taken:] = torch.nan
    generator = torch.Generator().manual_seed(4)
    origin = torch.randint(rows_, (rows_, window), generator=generator).to(DEVICE)
    seen = (torch.rand(rows_, window, generator=generator) < 0.5).to(DEVICE) if real else None
    if seen is not None:
        seen[0] = False  # sees nothing but itself
    before, lies = cache.clone(), origin.clone()
    found = cached_self_attention(q, k, v, cache, origin, seen, torch.tensor([taken], device=DEVICE))
    assert torch.equal(cache[:, taken], torch.stack((k, v), dim=1))
    before[:, taken], lies[:, taken] = cache[:, taken], torch.arange(rows_)
    assert torch.equal(origin, lies)
    torch.testing.assert_close(cache, before, rtol=0, atol=0, equal_nan=True)
    for row in range(rows_):
        past = cache[origin[row], torch.arange(window, device=DEVICE)][:taken]
        past = past if seen is None else past[seen[row, :taken]]
        past = torch.cat((past, cache[row, taken : taken + 1]))
        keys, values = past.double().unbind(1)  # (slots, heads, d_head)
        weights = (torch.einsum("hd,shd->hs", q[row].double(), keys) / math.sqrt(d_head)).softmax(-1)
        expected = torch.einsum("hs,shd->hd", weights, values)
        torch.testing.assert_close(found[row].double(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("groups", "queries", "heads", "d_head", "source"), [(3, 4, 2, 8, 5), (2, 1, 1, 24, 33), (1, 19, 3, 16, 70)]
)
def test_queries_consult_the_source_of_their_group(
    kernel: None, groups: int, queries: int, heads: int, d_head: int, source: int, dtype: torch.dtype
) -> None:
    from regard.nn.triton_decoding import cached_cross_attention

    q = randn(groups, queries, 2, heads, d_head, seed=2, dtype=dtype)[:, :, 1]
    memory = randn(groups, source, 2, heads, d_head, seed=3, dtype=dtype)
    mask = (torch.rand(groups, 1, 1, source, generator=torch.Generator().manual_seed(4)) < 0.5).to(DEVICE)
    mask[0, ..., 0] = True
    if groups > 1:
        mask[1] = False  # sees nothing
    memory[~mask[:, 0, 0]] = torch.nan
    found = cached_cross_attention(q, memory, mask)
    keys, values = memory.double().nan_to_num(0.0).unbind(2)  # (groups, source, heads, d_head)
    scores = torch.einsum("gqhd,gshd->ghqs", q.double(), keys) / math.sqrt(d_head)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
    expected = torch.einsum("ghqs,gshd->gqhd", weights, values)
    agree((found,), (expected,), 2e-6 if dtype == torch.float32 else 2 * HALF[dtype])


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("width", [6, 64])
def test_tokens_are_read_with_their_positions(kernel: None, width: int, same: bool) -> None:
    embedding, positions = Embedding(9, width, 0.5).to(DEVICE), Sinusoidal(width).to(DEVICE)
    tokens = torch.tensor([[3, 1], [8, 1], [0, 1], [3, 1]], device=DEVICE)[:, 0]  # as a search takes them
    position = torch.tensor([700] if same else [0, 1, 2, 5000], device=DEVICE)
    with torch.no_grad():
        found = embedding.eval()(tokens, positions, position)
        expected = embedding.table(tokens) * width**0.5 + positions(position)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
        assert not torch.equal(embedding.train()(tokens, positions, position), found)  # which drops some


@pytest.mark.parametrize("kind", [None, "rotary"] if ALL else ["rotary"])
def test_a_fixed_state_steps_through_the_kernel_as_a_growing_one_does(kernel: None, kind: str | None) -> None:
    positions = "transformer-rotary" if kind else "transformer-pre-sinusoidal"
    model = deepcopy(tiny((positions, positions))).float().to(DEVICE)
    source = Ragged.of([[3, 4, 5], [6]], DEVICE)
    tokens = torch.randint(3, 11, (4, 4), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    swaps = torch.tensor([[0, 0, 2, 3], [1, 0, 3, 3], [0, 1, 2, 2]], device=DEVICE)
    found = []
    for fixed in (False, True):
        with torch.inference_mode():
            state: Any = model.start(source).select(torch.tensor([0, 0, 1, 1], device=DEVICE))
            state = cloned(state.fixed(8)) if fixed else state
            outputs = []
            for t in range(4):
                state = state.select(swaps[t - 1]) if t else state
                log_probs, state = model.step(tokens[t], state)
                outputs.append(log_probs)
        found.append(torch.stack(outputs))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=0)


# A batch that is filled up


@pytest.mark.skipif(not ALL, reason="takes long; make test-all")
@pytest.mark.parametrize(("norm", "agreement"), crossed(["pre", "post"], [0.0, 3.0]))
def test_what_fills_a_batch_up_costs_nothing(kernel: None, norm: str, agreement: float) -> None:
    name = f"transformer-{norm}-learned"
    model = deepcopy(tiny((name, name))).float().to(DEVICE)
    assert model.packed
    batch = make_batch(Ragged.of([[3, 4, 5], [6], [], [7, 8]]), [[5, 6], [7], [8, 9, 3, 4], [4]])
    filled = batch.filled(Room(40, 40, 40, 0))
    assert filled is not None
    assert batch.filled(Room(5, 40, 40, 0)) is None
    assert batch.filled(Room(40, 9, 40, 0)) is None
    assert batch.filled(Room(40, 40, 40, 4)) is None
    assert filled.tokens == batch.tokens == 12
    assert {x.values.shape[0] for x in (filled.source, filled.inputs, filled.outputs)} == {40}
    objective, found = Likelihood(model, Settings(agreement=agreement), 0.1), []
    for one in (batch, filled):
        model.zero_grad()
        loss = objective(one.to(torch.device(DEVICE)), 0.0)
        loss.backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found.append((loss.detach(), gradients))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-4, atol=1e-5)


# Which backend


GPU = torch.device("cuda")  # none is needed to ask what would be used there
needs_triton = pytest.mark.skipif(not kernels.available(GPU), reason="triton is not installed")
ALIKE = [f"transformer-{name}" for name in ("pre-sinusoidal", "post-learned", "rotary", "alibi", "t5", "shaw")]
MIXED = [("transformer-rotary", "transformer-t5"), ("transformer-shaw", "transformer-rotary"),
         ("lstm-bi", "transformer-rotary"), ("transformer-rotary", "lstm-additive-feeding")]  # fmt: skip


@needs_triton
@pytest.mark.parametrize(
    ("device", "dtype", "d_head", "adds", "expected"),
    [
        ("cuda", torch.float32, 64, False, True),
        ("cuda", torch.bfloat16, 128, False, True),
        ("cuda", torch.bfloat16, 129, False, False),
        ("cuda", torch.float32, 192, False, False),
        ("cuda", torch.float64, 64, False, False),
        ("cuda", torch.bfloat16, 64, True, False),
        ("cpu", torch.float32, 64, False, False),
    ],
)
def test_the_backend_of_attention(device: str, dtype: torch.dtype, d_head: int, adds: bool, expected: bool) -> None:
    layer = MultiHeadAttention(2 * d_head, 2, relative=Alibi(2) if adds else None)
    assert layer.has_kernels(torch.device(device), dtype) is expected


@needs_triton
@pytest.mark.parametrize("d_model", [256, 260])
@pytest.mark.parametrize(("encoder", "decoder"), [*zip(ALIKE, ALIKE, strict=True), *MIXED])
def test_one_answer_to_whether_batches_may_be_filled_up(kernel: None, encoder: str, decoder: str, d_model: int) -> None:
    """The model's layers, an update and a batch go by the same: heads of 130, or anything that adds to scores, pad."""
    model = deepcopy(tiny((encoder, decoder), d_model=d_model)).float()
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    packs = all(layer.has_kernels(GPU, torch.float32) for layer in layers)
    expected = packs and "lstm" not in encoder + decoder
    assert takes_filled(model, GPU) == expected
    objective, settings = Likelihood(model, Settings(), 0.1), Training(batch_tokens=100)
    assert filled_room(model, objective, settings, GPU, None) == (Room(128, 128, 128, 0) if expected else None)
    assert filled_room(model, objective, settings, torch.device("cpu"), None) is None
    x = rows([3, 2], d_model)
    assert [layer.spans(x) is not None for layer in layers] == [
        layer.has_kernels(GPU, torch.float32) for layer in layers
    ]


WIDE: list[Pair] = [(name, name) for name in ("transformer-pre-sinusoidal", "transformer-rotary")]


@pytest.mark.parametrize("pair", WIDE, ids="-".join)
def test_heads_that_are_too_wide_for_the_kernels_are_padded(pair: Pair, request: pytest.FixtureRequest) -> None:
    """Teacher forced and step by step, as without kernels."""
    model = deepcopy(tiny(pair, d_model=260)).float().to(DEVICE)
    source, target = Ragged.of([[3, 4, 5], [6]], DEVICE), Ragged.of([[1, 4], [1, 5, 7]], DEVICE)

    def outputs() -> tuple[Tensor, ...]:
        found = model(source, target).values
        gradients = torch.autograd.grad(found.square().sum(), list(model.parameters()), allow_unused=True)
        with torch.inference_mode():
            state: Any = model.start(source).fixed(8)
            steps = []
            for tokens in target.padded().mT:
                log_probs, state = model.step(tokens, cloned(state))
                steps.append(log_probs)
        return (found, torch.stack(steps), *(x for x in gradients if x is not None))

    expected = outputs() if DEVICE == "cpu" else None
    request.getfixturevalue("kernel")
    found = outputs()
    if expected is not None:
        agree(found, expected, 1e-4)
    assert all(x.isfinite().all() for x in found)


def test_blocks_compiled_for_training_run_as_written_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In validation and under `capture`; and a copy is not compiled, for that would be with the weights of another."""
    ran: list[Callable[..., Ragged]] = []

    def compiled(run: Callable[..., Ragged]) -> Callable[..., Ragged]:
        return lambda *given: ran.append(run) or run(*given)  # type: ignore[func-returns-value]

    monkeypatch.setattr(torch, "compile", compiled)
    model = deepcopy(tiny(("transformer-rotary", "transformer-rotary"), dropout=0.0))
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for block in blocks:
        block.compile_for_training()
    source, target = Ragged.of([[3, 4, 5], [6]]), Ragged.of([[1, 4], [1, 5, 7]])
    expected = model(source, target).values
    with capture(model) as trace:
        model(source, target)
    assert trace.found.keys() >= {"encoder.blocks.0.self_attention", "decoder.blocks.1.cross_attention"}
    assert not ran
    torch.testing.assert_close(deepcopy(model).train()(source, target).values, expected)
    assert not ran
    torch.testing.assert_close(model.train()(source, target).values, expected)
    assert ran == [block.run for block in blocks]


@pytest.mark.parametrize("pads", [False, True])
def test_rows_of_one_length_go_by_the_kernel_unless_the_layer_is_to_pad(kernel: None, pads: bool) -> None:
    torch.manual_seed(1)
    layer = MultiHeadAttention(8, 2).to(DEVICE)
    rows = Ragged.from_lengths(torch.zeros(5), [2, 3]).to(DEVICE)
    x = rows.even(torch.randn(8, 8, device=DEVICE), 4)
    layer.pads_uniform = pads
    seen = layer.spans(x)
    assert (seen is None) == pads
    assert layer.spans(Ragged(x.values, x.offsets, 4)) is not None
    plain = layer(Ragged(x.values, x.offsets, 4))
    torch.testing.assert_close(layer(x, seen=seen).values, plain.values, rtol=1e-5, atol=1e-5)
