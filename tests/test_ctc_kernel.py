"""The CTC loss over packed rows against all paths and against torch's: on a GPU where there is one, else in Triton's
interpreter."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.marks import EOS, MASK, PAD
from regard.models.ctc import CTCHead
from regard.nn.ctc_loss import MOST, ctc_loss, ctc_loss_, takes
from regard.ragged import Ragged
from tests.conftest import FULL, gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = {torch.float16: 2**-10, torch.bfloat16: 2**-7}  # the interpreter cuts off where a GPU rounds
HIDDEN = 2  # a token that no path names, and that ends targets
Rows = list[list[int]]

# Tokens that repeat side by side and apart, no tokens, one time, one time too few, no times, and neither.
TIMES = [5, 3, 1, 2, 2, 0, 0, 6]
TARGETS: Rows = [[3, 4], [5, 5], [5], [], [5, 5], [3], [], [3, 4, 3, 3]]


def logits_of(times: list[int], vocabulary: int, behind: int = 0, seed: int = 1) -> Tensor:
    """Random logits in float32, and so many behind the last row."""
    found = 3 * torch.randn(sum(times) + behind, vocabulary, generator=torch.Generator().manual_seed(seed))
    found[:, HIDDEN] = -1e30
    return found.to(DEVICE)


def packed(times: list[int], targets: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets of times, targets with an end each, and offsets of those."""
    outputs = Ragged.of([[*target, HIDDEN] for target in targets], DEVICE)
    return Ragged.from_lengths(torch.zeros(sum(times)), times).offsets.to(DEVICE), outputs.values, outputs.offsets


def by_torch(logits: Tensor, times: list[int], targets: Rows) -> tuple[Tensor, Tensor]:
    """Losses and gradients of torch's own in float64 on the CPU, row by row; a row of no times costs nothing."""
    wide = logits.detach().double().cpu().clamp(min=-1e30).requires_grad_()  # of -inf torch's gradient is no number
    losses = []
    for part, target in zip(wide[: sum(times)].split(times), targets, strict=True):
        ends = (torch.tensor([len(part)]), torch.tensor([len(target)]))
        given = (part.log_softmax(-1).unsqueeze(1), torch.tensor([target], dtype=torch.long), *ends)
        loss = F.ctc_loss(*given, reduction="sum", zero_infinity=True) if len(part) else part.sum()
        losses.append(loss)
    total = torch.stack(losses)
    return total.detach().to(DEVICE), torch.autograd.grad(total.sum(), wide)[0].to(DEVICE)


def agree(found: Tensor, right: Tensor, tolerance: float) -> None:
    """Within `tolerance` of the greatest number that is right."""
    torch.testing.assert_close(found.double(), right.double(), rtol=0, atol=tolerance * float(right.abs().max()))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_losses_and_gradients_are_those_of_torch(dtype: torch.dtype) -> None:
    logits = logits_of(TIMES, 9, behind=2).to(dtype)
    logits[-1] = math.nan  # whatever is behind the last row
    losses, gradients = by_torch(logits[:-2], TIMES, TARGETS)
    found = ctc_loss_(logits, *packed(TIMES, TARGETS), 4, PAD)
    assert found.dtype == torch.float32
    assert logits.dtype == dtype
    agree(found, losses, 1e-6)
    agree(logits[:-2], gradients, HALF.get(dtype, 2e-6))
    assert not found[4:7].any()
    assert not logits[-2:].any()
    begin = sum(TIMES[:4])
    assert not logits[begin : begin + TIMES[4]].any()  # no path reads two that are alike in two times


def all_paths(logits: Tensor, target: list[int]) -> tuple[float, np.ndarray[Any, Any]]:
    """Eqs. 3 and 16 of Graves et al. 2006 written out: the loss and its gradient by going over every path."""
    y = np.exp(logits.double().cpu().numpy())
    y /= y.sum(1, keepdims=True)
    whole, through = 0.0, np.zeros_like(y)
    for path in product(range(y.shape[1]), repeat=len(y)):
        kept = [k for i, k in enumerate(path) if (i == 0 or k != path[i - 1]) and k != PAD]
        if kept == target:
            p = math.prod(y[t, k] for t, k in enumerate(path))
            whole += p
            for t, k in enumerate(path):
                through[t, k] += p
    return -math.log(whole), y - through / whole


@pytest.mark.usefixtures("kernel")
def test_losses_and_gradients_are_those_of_all_paths() -> None:
    times, targets = [4, 1, 5, 3], [[1, 3], [], [3, 3], [3, 1, 3]]
    logits = logits_of(times, 4, seed=2)
    right = [all_paths(part, target) for part, target in zip(logits.split(times), targets, strict=True)]
    found = ctc_loss_(logits, *packed(times, targets), 3, PAD)
    agree(found, torch.tensor([loss for loss, _ in right], device=DEVICE), 1e-6)
    agree(logits, torch.from_numpy(np.concatenate([gradient for _, gradient in right])).to(DEVICE), 2e-6)


@pytest.mark.usefixtures("kernel")
def test_great_logits_a_loose_bound_a_whole_row_and_another_blank() -> None:
    """Logits of 1,000 and more, which only differences tell apart; room for more tokens than there are; targets without
    ends; a blank that is the last of the vocabulary, as torch has it after a swap."""
    times, targets = [5], [[3, 1, 3]]
    logits = 30 * logits_of(times, 5).clamp(min=-10)
    losses, gradients = by_torch(logits, times, targets)
    moved = logits.roll(-1, 1) + 1000.0
    offsets, values, _ = packed(times, targets)
    labels = torch.tensor([0, 3], dtype=torch.int32, device=DEVICE)
    found = ctc_loss_(moved, offsets, values[:-1] - 1, labels, 40, 4, 0)
    agree(found, losses, 1e-5)  # 1,000.0 has so many digits
    agree(moved, gradients.roll(-1, 1), 1e-4)


@pytest.mark.usefixtures("kernel")
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")  # by the interpreter
def test_what_is_wrong_with_a_row_shows_in_its_loss() -> None:
    """A blank and a token outside of the vocabulary in a target, too many tokens, and a logit that is no number."""
    times, targets = [2, 2, 3, 1, 2], [[PAD], [4], [1, 3, 1], [3], [1]]
    logits = logits_of(times, 4)
    logits[-3] = math.nan
    found = ctc_loss_(logits, *packed(times, targets), 2, PAD)
    assert found.isnan().tolist() == [True, True, True, True, False]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("times", "targets"), [([], []), ([0], [[3]]), ([0, 0], [[], [1]])])
def test_rows_without_times(times: list[int], targets: Rows) -> None:
    for behind in (0, 1):
        logits = logits_of(times, 4, behind)
        found = ctc_loss_(logits, *packed(times, targets), 1, PAD)
        assert found.tolist() == [0.0] * len(times)
        assert not logits.any()


def heads() -> tuple[CTCHead, Ragged, Ragged, CTCHead, Ragged]:
    """An output layer with states and targets, rows of nothing behind them; and all in float64, without those rows."""
    lengths, vocabulary = [5, 2, 3], MASK + 4
    wide = CTCHead(4, vocabulary).double().requires_grad_()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    values = torch.randn(sum(lengths), 4, generator=generator)
    first = MASK + 1
    outputs = Ragged.of([[first, first + 1, EOS], [EOS], [first, first, EOS]], DEVICE).filled(12, 5, -100)
    exact = Ragged.from_lengths(values.double().requires_grad_(), lengths)
    states = Ragged.from_lengths(values.to(DEVICE), lengths).filled(12, 5)
    states = states.like(states.values.requires_grad_())
    return deepcopy(wide).float().to(DEVICE), states, outputs, wide, exact


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("half", [False, True])
def test_the_output_layer_takes_it_with_rows_of_nothing_behind(half: bool) -> None:
    """Under bfloat16 logits and their gradients are rounded, as those of any layer are."""
    ctc, states, outputs, wide, exact = heads()
    with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        loss = ctc.loss(states, outputs)
    right = wide.loss(exact, Ragged(outputs.values[:7].cpu(), outputs.offsets[:4].cpu(), 3))
    agree(loss, right.detach().to(DEVICE), 2**-6 if half else 1e-6)
    found = torch.autograd.grad(loss / 3, (states.values, *ctc.parameters()))
    expected = torch.autograd.grad(right / 3, (exact.values, *wide.parameters()))
    agree(found[0][:10], expected[0].to(DEVICE), 2**-5 if half else 2e-6)
    assert not found[0][10:].any()
    for some, others in zip(found[1:], expected[1:], strict=True):
        agree(some, others.to(DEVICE), 2**-5 if half else 2e-6)


def test_the_output_layer_does_without_where_it_is_not_to_be_had() -> None:
    assert not takes(torch.zeros(1, dtype=torch.float64, device=DEVICE), 3)
    assert not takes(torch.zeros(1, device=DEVICE), MOST + 1)
    ctc, _, outputs, wide, exact = heads()
    outputs = Ragged(outputs.values[:7].cpu(), outputs.offsets[:4].cpu(), 3)
    plain = ctc.cpu().loss(exact.like(exact.values.float()), outputs)
    agree(plain, wide.loss(exact, outputs).detach(), 1e-6)


@pytest.mark.skipif(not (FULL or DEVICE == "cuda"), reason="takes long; make test-all")
@pytest.mark.usefixtures("kernel")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch's own tracer
def test_it_compiles() -> None:
    def run(logits: Tensor, times: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
        return ctc_loss(logits * 2, times, targets, labels, 1, PAD)

    logits, given = logits_of([2], 4).requires_grad_(), packed([2], [[3]])
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    found, right = (torch.autograd.grad(way(logits, *given), logits)[0] for way in (compiled, run))
    agree(found, right, 1e-6)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(ctc_loss_, (logits.detach(), *given, 1, PAD), test_utils=tests)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"logits": torch.zeros(4, 6).double()},
            "needs triton and a GPU in single or half precision, got torch.float64",
        ),
        ({"logits": torch.zeros(6, 4).T}, r"logits should be contiguous, got strides \(1, 4\)"),
        ({"times": torch.tensor([0, 4])}, "times should be int32, got torch.int64"),
        ({"labels": torch.tensor([0, 1, 2]).int()}, "times are of 1 rows, but labels of 2"),
        ({"longest": 1024}, r"longest \(1024\) should be from 0 to 1023"),
        ({"blank": 6}, r"blank \(6\) should be below the vocabulary \(6\)"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    times, targets, labels = packed([4], [[3]])
    given: dict[str, Any] = {"times": times, "targets": targets, "labels": labels}
    given |= {"logits": torch.zeros(4, 6, device=DEVICE)}
    given |= {"longest": 1, "blank": 0} | {k: v.to(DEVICE) if isinstance(v, Tensor) else v for k, v in change.items()}
    with pytest.raises(AssertionError, match=message):
        ctc_loss_(**given)


def drawn(rows: int, longest: int, vocabulary: int, seed: int) -> tuple[list[int], Rows]:
    """Times and targets of a batch: as many tokens as `longest` and fewer, with two to five times for each."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(longest // 2, longest + 1, (rows,), generator=generator).tolist()
    counts[0] = longest
    targets = [torch.randint(3, vocabulary, (count,), generator=generator).tolist() for count in counts]
    repeats = [sum(a == b for a, b in pairwise(target)) for target in targets]
    more = torch.randint(1, 5, (rows,), generator=generator).tolist()
    return [(1 + m) * count + again for m, count, again in zip(more, counts, repeats, strict=True)], targets


@gpu
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("longest", [1, 31, 32, 63, 100, 127, 128, 255, 300, 511, 1000, MOST])
def test_rows_of_every_length_on_a_gpu(longest: int) -> None:
    """Every size of a block, its last state too; a small vocabulary has many tokens that are alike. Two runs agree to
    the bit."""
    times, targets = drawn(5, longest, 40, seed=longest)
    logits = logits_of(times, 40, behind=3)
    again = logits.clone()
    losses, gradients = by_torch(logits[:-3], times, targets)
    given = packed(times, targets)
    found = ctc_loss_(logits, *given, longest, PAD)
    agree(found, losses, 2e-6)
    agree(logits[:-3], gradients, 1e-4 if longest < 1000 else 4e-4)  # of single precision, over so many states
    assert torch.equal(ctc_loss_(again, *given, longest, PAD), found)
    assert torch.equal(again, logits)


@gpu
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replay_on_a_gpu_is_right_for_other_rows(dtype: torch.dtype) -> None:
    """Rows, times and tokens are filled up to one size; the recorded loss and its gradient follow what is put there."""
    total, rows, tokens, longest, vocabulary = 1200, 8, 200, 20, 300
    x = torch.zeros(total, vocabulary, device=DEVICE, dtype=dtype)
    times, labels = (torch.zeros(rows + 1, device=DEVICE, dtype=torch.int32) for _ in range(2))
    values = torch.zeros(tokens, device=DEVICE, dtype=torch.long)

    def run() -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        loss = ctc_loss(leaf * 1, times, values, labels, longest, PAD)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, gradient = run()
    for seed, count in ((1, 8), (2, 3), (3, 7)):
        lengths, targets = drawn(count, longest, vocabulary, seed)
        logits = logits_of(lengths, vocabulary, total - sum(lengths), seed).to(dtype)
        given = packed(lengths, targets)
        for into, these in ((times, given[0]), (labels, given[2])):
            into.copy_(F.pad(these, (0, rows + 1 - these.shape[0]), value=int(these[-1])))
        values.copy_(F.pad(given[1], (0, tokens - given[1].shape[0]), value=-100))
        x.copy_(logits)
        graph.replay()
        losses, gradients = by_torch(logits[: sum(lengths)], lengths, targets)
        agree(loss, losses.sum(), 1e-6)
        agree(gradient[: sum(lengths)], gradients, HALF.get(dtype, 2e-5))
        assert not gradient[sum(lengths) :].any()
