"""Loops that are recorded give what they give step by step, forward and back.

On a CPU a recording runs its function anew each time, on tensors of its own, as a replay on a GPU does.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

from benchmarks.peers.ours import make_task, make_update
from benchmarks.workload import Shape
from regard.models.encoders import Memory
from regard.models.model import EncoderDecoder
from regard.models.recurrent import RecurrentDecoder
from regard.nn.deferred import column_sums, defer_gradients, deferred_apply, deferred_linear, deferred_matmul
from regard.nn.graphs import Graphs, Looped
from regard.ragged import Ragged, bucket
from tests.conftest import (
    CELLS,
    DECODER_KINDS,
    DECODERS,
    FULL,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    batch,
    draw,
    gpu,
    tiny,
)  # fmt: skip

LOOPS = [
    name
    for kind in ("recurrence", "feeding", "heads", "hard")
    for name in DECODER_KINDS[kind]
    if DECODERS[name]["place"] != "output"
]
SOFT = [name for name in LOOPS if not DECODERS[name].get("hard")]
CPU = torch.device("cpu")
Found = tuple[Tensor, dict[str, Tensor]]


def model_of(name: str, **settings: Any) -> tuple[EncoderDecoder, RecurrentDecoder]:
    model = deepcopy(tiny((f"{DECODERS[name]['kind']}-bi", name), **settings))
    decoder: Any = model.decoder
    return model, decoder


class Recorders:
    """The caches of a model's loops, those of the encoder first."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [module for module in model.modules() if isinstance(module, Looped)]
        self.all = [Graphs(next(module.parameters()).device) for module in self.modules]

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside this, loops are recorded."""
        for module, graphs in zip(self.modules, self.all, strict=True):
            module.graphs = graphs
        yield
        for module in self.modules:
            module.graphs = None

    def __len__(self) -> int:
        return sum(len(graphs.recordings) for graphs in self.all)

    @property
    def seen(self) -> list[int]:
        return [count for graphs in self.all for count in graphs.seen.values()]

    def busy(self) -> list[bool]:
        """Of each whether a replay waits for its backward pass."""
        return [graphs.busy() for graphs in self.all]

    def captured(self) -> int:
        """Graphs that were captured, on a GPU."""
        return sum(graphs.captured for graphs in self.all)


def loops_of(name: str) -> int:
    """How many are recorded: the decoder's, and that of an encoder of LSTMs."""
    return 1 + (DECODERS[name]["kind"] == "lstm")


def by_hand(decoder: RecurrentDecoder, target: Ragged, memory: Memory) -> Ragged:
    """The decoder's own single steps, each row going on after its end, where nobody looks."""
    state, outputs = decoder.start(memory), []
    for tokens in target.padded().unbind(1):
        output, state = decoder.step(tokens, state)
        outputs.append(output)
    return target.unpadded(torch.stack(outputs, 1))


def with_gradients(
    model: EncoderDecoder, source: Ragged, target: Ragged, decoder: Callable[[Ragged, Memory], Ragged]
) -> Found:
    """What a decoder gives, and the gradients of all weights."""
    model.zero_grad()
    found = decoder(target, model.encode(source)).values
    found.backward(torch.linspace(-1, 1, found.numel(), dtype=found.dtype, device=found.device).view_as(found))
    return found.detach(), {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def same(one: Found, other: Found, relative: float = 1e-9, absolute: float = 1e-11) -> None:
    assert one[1].keys() == other[1].keys()
    for found, expected in zip((one[0], *one[1].values()), (other[0], *other[1].values()), strict=True):
        torch.testing.assert_close(found, expected, rtol=relative, atol=absolute)


def plain() -> Any:
    """Without cuDNN, which multiplies in TF32 where torch does not."""
    return torch.backends.cudnn.flags(enabled=False)


def near(one: Found, other: Found, half: bool) -> None:
    """On a GPU, against the greatest number of each tensor."""
    assert one[1].keys() == other[1].keys()
    for found, expected in zip((one[0], *one[1].values()), (other[0], *other[1].values()), strict=True):
        most = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(found, expected, rtol=0.0, atol=(0.06 if half else 1e-4) * most)


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_its_steps(name: str) -> None:
    """Outputs and the gradients of all weights, in float64: every cell, score and mode that needs the step before."""
    model, decoder = model_of(name)
    source, target = batch()
    stepwise = with_gradients(model, source, target, partial(by_hand, decoder))
    whole = with_gradients(model, source, target, decoder)
    same(whole, stepwise)
    assert any("recurrence" in name for name in whole[1])


@pytest.mark.parametrize("name", SOFT if FULL else SOFT[::4])
def test_a_recording_is_its_loop(name: str) -> None:
    """With rows, steps and places that nobody looks at; the first time as it is, then recorded, then replayed."""
    model, decoder = model_of(name)
    graphs = Recorders(model)
    for turn in range(4):
        source = draw([3, 1, 0, 6, 4 + turn % 2], SOURCE_VOCABULARY, seed=turn)
        target = draw([4, 2, 3, 1, 5], TARGET_VOCABULARY, seed=turn + 9)
        whole = with_gradients(model, source, target, decoder)
        with graphs.on():
            replayed = with_gradients(model, source, target, decoder)
        same(replayed, whole)
        assert len(graphs) == (turn > 0) * loops_of(name)
    assert graphs.seen == [4] * loops_of(name)


ENDS = ("uni", "bi", "uni-reversed", "bi-reversed")


def encoded(model: EncoderDecoder, source: Ragged) -> Found:
    """States, ends and carry of an encoder, and the gradients of all weights."""
    model.zero_grad()
    memory = model.encode(source)
    assert memory.end is not None
    assert memory.carry is not None
    found = torch.cat([x.flatten() for x in (memory.states.values, memory.end, memory.carry)])
    found.backward(torch.linspace(-1, 1, found.numel(), dtype=found.dtype, device=found.device))
    return found.detach(), {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


@pytest.mark.parametrize("ways", ENDS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_recorded_encoder_is_its_layers(cell: str, ways: str) -> None:
    """In float64, with rows that are empty or of one token; rows and steps are added, or there are none to add."""
    model = deepcopy(tiny((f"{cell}-{ways}", f"{cell}-last")))
    graphs = Recorders(model)
    for turn in range(3):
        for lengths in ([3, 1, 0, 6, 4, 2], [8, 0, *[1] * 14], [9] * 17):
            source = draw(lengths, SOURCE_VOCABULARY, seed=turn)
            whole = encoded(model, source)
            with graphs.on():
                same(encoded(model, source), whole)
    assert len(graphs) == (3 if cell == "lstm" else 0)


def test_places_of_an_encoder_are_those_of_a_decoder() -> None:
    assert all(bucket(bucket(n, 16, 2), 8, 8) == bucket(n, 8, 8) for n in range(1, 3000))


def test_an_encoder_of_empty_rows() -> None:
    model = deepcopy(tiny(("lstm-bi", "lstm-bilinear-feeding")))
    source, target = draw([0, 0], SOURCE_VOCABULARY, seed=1), draw([2, 2], TARGET_VOCABULARY, seed=2)
    whole = with_gradients(model, source, target, model.decoder)
    with Recorders(model).on():
        same(with_gradients(model, source, target, model.decoder), whole)


def test_a_carry_that_is_copied() -> None:
    """Cells at the ends have gradients too, and a decoder that is not recorded takes what a recorded encoder gives."""
    model = deepcopy(tiny(("lstm-bi", "lstm-copy")))
    source, target = batch()
    whole = with_gradients(model, source, target, model.decoder)
    graphs = Recorders(model)
    for _ in range(3):
        with graphs.on():
            same(with_gradients(model, source, target, model.decoder), whole)
    assert len(graphs) == 1


def test_two_ways_back_at_once() -> None:
    """An encoder waits for its own way back while a decoder goes forward, each in memory of its own."""
    model, decoder = model_of("lstm-bilinear-feeding")
    graphs = Recorders(model)
    for _ in range(3):
        with graphs.on():
            with_gradients(model, *batch(), decoder)
    with graphs.on():
        memory = model.encode(batch()[0])
        found = decoder(batch()[1], memory)
    assert memory.grid is not None
    assert graphs.busy() == [True, True]
    found.values.sum().backward()
    assert graphs.busy() == [False, False]


def test_what_draws_is_not_recorded() -> None:
    model, decoder = model_of("lstm-additive-feeding-hard")
    graphs = Recorders(model)
    memory = model.encode(batch()[0])
    with graphs.on():
        decoder.train()(batch()[1], memory)
    assert not graphs.seen


def test_only_what_has_a_gradient_is_recorded() -> None:
    model, decoder = model_of("lstm-bilinear-feeding")
    graphs, records = Recorders(model), []
    with graphs.on():
        records.append(decoder.recorder is not None)
        with torch.no_grad():
            records.append(decoder.recorder is not None)
            decoder(batch()[1], model.encode(batch()[0]))
        records.append(deepcopy(decoder).recorder is not None)  # recordings are of one module's weights
    assert [*records, decoder.recorder is not None] == [True, False, False, False]
    assert not graphs.seen


def test_half_precision_on_a_cpu() -> None:
    """Cells stay in full precision there, and what attends and joins does not."""
    model, decoder = model_of("lstm-bilinear-feeding")
    model.float()
    source, target = batch()
    whole = with_gradients(model, source, target, decoder)
    with torch.autocast("cpu", torch.bfloat16):
        half = with_gradients(model, source, target, decoder)
        stepwise = with_gradients(model, source, target, partial(by_hand, decoder))
    assert half[0].dtype == torch.bfloat16
    same((half[0].float(), half[1]), whole, 0.1, 0.1)
    same(half, stepwise, 0.05, 0.05)


def scaled(weight: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor]]:
    return lambda x, y: (torch.tanh(x * weight) + y,)


def test_two_forwards_before_a_way_back() -> None:
    """What the first kept would be overwritten: the second is not replayed, and both have their gradients."""
    weight, graphs = torch.tensor([2.0, 3.0], requires_grad=True), Graphs(CPU)
    x, y = torch.tensor([0.1, 0.2], requires_grad=True), torch.tensor([1.0, 1.0])
    function = scaled(weight)

    def run(scale: float) -> Tensor:
        return graphs.loop(function, (x * scale, y), [weight])[0]

    for _ in range(3):
        run(1.0).sum().backward()
    assert len(graphs.recordings) == 1
    x.grad = weight.grad = None
    one, other = run(1.0), run(2.0)
    assert "Replay" in type(one.grad_fn).__name__
    assert "Replay" not in type(other.grad_fn).__name__
    (one + other).sum().backward()
    found = (x.grad, weight.grad)
    x.grad = weight.grad = None
    (function(x, y)[0] + function(2 * x, y)[0]).sum().backward()
    torch.testing.assert_close(found, (x.grad, weight.grad))
    assert "Replay" in type(run(1.0).grad_fn).__name__  # which nobody keeps, so that it has no way back
    gc.collect()
    assert "Replay" in type(run(1.0).grad_fn).__name__


def test_one_way_back() -> None:
    weight, graphs = torch.tensor([2.0], requires_grad=True), Graphs(CPU)
    for _ in range(2):
        (found,) = graphs.loop(scaled(weight), (torch.ones(1), torch.ones(1)), [weight])
        found.sum().backward(retain_graph=True)
    with pytest.raises(AssertionError, match="one backward pass"):
        found.sum().backward()


def test_what_is_handed_out_stays_as_it_is() -> None:
    """Outputs and gradients of one replay are not overwritten by the next; gradients add up."""
    weight, unused, graphs = torch.tensor([2.0], requires_grad=True), torch.ones(1, requires_grad=True), Graphs(CPU)
    outputs: list[Tensor] = []
    for i in range(4):
        outputs += graphs.loop(scaled(weight), (torch.full((1,), float(i)), torch.zeros(1)), [weight, unused])
        outputs[-1].sum().backward()
    torch.testing.assert_close(torch.cat(outputs).detach(), torch.tanh(2.0 * torch.arange(4.0)))
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, sum(i * (1 - torch.tanh(torch.tensor([2.0 * i])) ** 2) for i in range(4)))
    assert unused.grad is None


def test_dropout_differs_from_replay_to_replay() -> None:
    weight, graphs = torch.ones(1000, requires_grad=True), Graphs(CPU)
    found = []
    for _ in range(4):
        (made,) = graphs.loop(lambda x: (nn.functional.dropout(x * weight, 0.5),), (torch.ones(1000),), [weight])
        made.sum().backward()
        found.append(made.detach())
    assert all(not torch.equal(one, other) for i, one in enumerate(found) for other in found[:i])


def test_loops_are_as_many_as_may_be() -> None:
    """A shape that comes often takes the place of one that has not come for longest, and far more seldom; none is
    recorded over and over."""
    weight, graphs = torch.ones(1, requires_grad=True), Graphs(CPU, limit=2)

    def come(size: int, times: int) -> None:
        for _ in range(times):
            graphs.loop(scaled(weight), (torch.ones(size), torch.ones(size)), [weight])[0].sum().backward()

    def sizes() -> list[int]:
        return [recording.inputs[0].shape[0] for recording in graphs.recordings.values()]

    come(2, 1)
    assert sizes() == []
    come(2, 1)
    come(1, 4)
    assert sizes() == [2, 1]
    come(3, 4)
    assert sizes() == [2, 1]
    come(3, 1)
    assert sizes() == [1, 3]
    come(2, 2)
    assert sizes() == [1, 3]
    come(1, 1)
    assert sizes() == [3, 1]


def test_recordings_share_memory() -> None:
    weight, graphs = torch.ones(1, requires_grad=True), Graphs(CPU)
    for size in (100, 90, 110, 120):
        for _ in range(2):
            graphs.loop(scaled(weight), (torch.ones(size), torch.ones(size)), [weight])[0].sum().backward()
    assert len(graphs.recordings) == 4
    assert len({recording.inputs[0].data_ptr() for recording in graphs.recordings.values()}) == 1
    assert len({recording.outputs[0].data_ptr() for recording in graphs.recordings.values()}) == 1


def test_sizes() -> None:
    assert [bucket(n, 16, 2) for n in (1, 2, 3, 17, 33, 35, 63, 65, 100)] == [2, 2, 4, 18, 36, 36, 64, 72, 104]
    assert all(n <= bucket(n, 16, 16) <= max(n * 1.125 + 1, 16 * -(-n // 16)) for n in range(1, 3000))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (3, 2)], ids=str)
def test_products_in_a_loop(shape: tuple[int, ...], transposed: bool) -> None:
    """One gradient for all steps is the sum of the gradients of each."""
    generator = torch.Generator().manual_seed(1)

    def randn(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()

    matrix = randn(*shape, 4, 5)
    bias = randn(4) if not shape and transposed else None
    steps = [randn(*(shape or (1,)), 2, 5 if transposed else 4) for _ in range(3)]
    given: Sequence[Tensor] = [x for x in (matrix, bias, *steps) if x is not None]

    def gradients() -> Sequence[Tensor]:
        made = (deferred_linear(x, matrix, bias) if transposed else deferred_matmul(x, matrix) for x in steps)
        found = sum(x.tanh().sum() for x in made)
        assert isinstance(found, Tensor)
        return torch.autograd.grad(found, given)

    expected = gradients()
    with defer_gradients():
        found = gradients()
    torch.testing.assert_close(found, expected)


def test_a_loop_leaves_nothing_behind() -> None:
    """What is kept for a gradient goes with what asks for it."""
    linear, alive = nn.Linear(64, 64), []
    for _ in range(3):
        with defer_gradients():
            x = torch.ones(2, 64)
            for _ in range(5):
                x = deferred_apply(linear, x)
        alive.append(ref(x.grad_fn))
        x.sum().backward()
        del x
    assert all(node() is None for node in alive)


@gpu
@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_a_replay_on_a_gpu_is_its_loop(name: str, half: bool) -> None:
    model, decoder = model_of(name, dropout=0.0)
    model.float().cuda().train()
    graphs = Recorders(model)
    for turn in range(4):
        source = draw([3, 1, 0, 6, 4], SOURCE_VOCABULARY, seed=turn).to("cuda")
        target = draw([4, 2, 3, 1, 5], TARGET_VOCABULARY, seed=turn + 9).to("cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=half), plain():
            whole = with_gradients(model, source, target, decoder)
            with graphs.on():
                replayed = with_gradients(model, source, target, decoder)
        near(replayed, whole, half)
    assert len(graphs) == loops_of(name)
    assert graphs.captured() == 2 * loops_of(name)


@gpu
@pytest.mark.parametrize("ways", ENDS)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_a_replayed_encoder_on_a_gpu_is_its_layers(ways: str, half: bool) -> None:
    model = deepcopy(tiny((f"lstm-{ways}", "lstm-last"), dropout=0.0)).float().cuda().train()
    graphs = Recorders(model)
    for turn in range(4):
        for lengths in ([3, 1, 0, 6, 4, 2], [8, 0, *[1] * 14], [9] * 17):
            source = draw(lengths, SOURCE_VOCABULARY, seed=turn).to("cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=half), plain():
                whole = encoded(model, source)
                with graphs.on():
                    replayed = encoded(model, source)
            near(replayed, whole, half)
    assert len(graphs) == 3
    assert graphs.captured() == 6


@gpu
@pytest.mark.parametrize("shape", [(64, 24), (2, 160, 24), (2, 5, 24)])
def test_sums_by_products(shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(column_sums(x), x.double().sum(-2).float(), rtol=0.01, atol=0.1)


@gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_updates_on_a_gpu_recorded_and_not(precision: str) -> None:
    """Batches of different shapes in turn; without dropout the losses are the same."""
    losses = []
    for compiled in (False, True):
        shape = Shape("test", 2, 64, 64, 1, 200, "lstm")
        task = make_task(shape, torch.device("cuda"), 1, 0.0, {"precision": precision, "compile": compiled})
        prepare, update = make_update(task)
        batches = []
        for longest in (4, 9, 17):
            sides = [[[7 + i % 9] * (least + i % longest) for i in range(40)] for least in (3, 2)]
            batches.append(prepare(task.batch(*sides)))
        losses.append(torch.stack([update(batches[i % 3]) for i in range(12)]))
    torch.testing.assert_close(*losses, rtol=1e-2 if precision == "bfloat16" else 1e-3, atol=1e-3)


@gpu
def test_masks_on_a_gpu_differ_from_replay_to_replay() -> None:
    model, decoder = model_of("lstm-bilinear-feeding", dropout=0.5)
    model.float().cuda()
    source, target = (x.to("cuda") for x in batch())
    with torch.no_grad():
        memory = model.encode(source)  # without dropout, as long as it is not training
    decoder.train()
    decoder.embedding.eval()
    graphs, found = Recorders(model), []
    with graphs.on():
        for _ in range(5):
            output = decoder(target, memory).values
            output.sum().backward()
            found.append(output.detach())
            del output  # what holds on to a way back holds up the recording of another
    assert len(graphs) == 1
    assert all(not torch.equal(one, other) for i, one in enumerate(found) for other in found[:i])
