"""Batches of pictures beside texts that are filled up: what fills them changes nothing, and all are of one shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from regard.bundle import Bundle, parts_of
from regard.config import parse
from regard.data.batch import Batch, Room
from regard.data.marks import MARKS
from regard.data.sides import SHARED, Sides
from regard.data.targets.label import Label
from regard.data.tokenizers.symbols import Symbols
from regard.loading import new_task
from regard.nn.graphs import signature
from regard.ragged import Ragged
from regard.training.objectives import make_objective
from regard.training.update import Updater, takes_even
from tests.conftest import compiles, gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PICTURE = {"kind": "stem", "stem": {"kind": "convolution", "halvings": 2, "channels": 4}}
TEXT = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 16}
BOTH = [{"kind": "image", "size": 8, "column": 1}, {"kind": "text", "column": 2}]
MODELS: dict[str, dict[str, Any]] = {
    "captioner": {"source": BOTH[0], "model": {"encoder": PICTURE, "decoder": TEXT}},
    "vit captioner": {
        "source": BOTH[0],
        "model": {"encoder": {**TEXT, "stem": {"kind": "patches", "size": 4}}, "decoder": TEXT},
    },
    "aided translation": {"source": BOTH, "model": {"encoder": [PICTURE, TEXT], "decoder": TEXT}},
    "joint": {"source": BOTH, "model": {"encoder": [PICTURE, TEXT], "joint": TEXT, "decoder": TEXT}},
    "question": {
        "source": BOTH, "target": {"kind": "label", "column": 3},
        "model": {"encoder": [PICTURE, TEXT], "joint": TEXT, "decoder": {"kind": "none"}},
    },
    "question without a joint body": {
        "source": BOTH, "target": {"kind": "label", "column": 3},
        "model": {"encoder": [PICTURE, TEXT], "decoder": {"kind": "none"}},
    },
}  # fmt: skip
ROOM = Room(1000, 1000, 1000, 9, (10, 9))


def made_task(name: str, **training: Any) -> tuple[Any, Any]:
    given = MODELS[name]
    settings = {
        "tokens": {"kind": "word", "size": 9},
        **given,
        "model": {"d_model": 16, "dropout": 0.0, **given["model"]},
        "training": {"device": DEVICE.type, "warmup": 0, "schedule": "constant", **training},
    }
    sides = Sides.of(parse(settings, "a test"))
    sides.use({SHARED: Symbols("word", [f"w{i}" for i in range(len(MARKS), 9)])})
    if isinstance(sides.target, Label):
        sides.target.labels = ["a", "b", "c"]
    torch.manual_seed(5)
    task = new_task(sides, DEVICE)
    chosen = task.config.training
    return task, make_objective(task.model, chosen.objective, 0.0, task.first, target=sides.target)


def some(task: Any, lengths: list[int], seed: int = 3) -> Batch:
    """As many pictures, with questions and targets of such lengths."""
    draw = np.random.default_rng(seed)
    pictures = list(draw.integers(0, 256, (len(lengths), 8, 24), dtype=np.uint8))
    texts = [[len(MARKS) + int(draw.integers(3)) for _ in range(n)] for n in lengths]
    sources: list[Any] = list(zip(pictures, texts, strict=True)) if len(task.source.parts) > 1 else pictures
    written = not isinstance(task.target, Label)
    batch: Batch = task.batch(sources, [text[::-1] for text in texts] if written else [[n % 3] for n in lengths])
    return batch


def room(task: Any) -> Room:
    return Room(1000, 1000, 1000, 9, (10, 9)[: len(task.source.parts)])


@pytest.mark.parametrize("name", list(MODELS))
def test_what_fills_a_batch_up_costs_nothing(kernel: None, name: str) -> None:
    (task, objective), found = made_task(name), []
    batch = some(task, [3, 1, 7, 2])
    evened = batch.evened(room(task), written=not isinstance(task.target, Label))
    assert evened is not None
    assert evened.tokens == batch.tokens
    for one in (batch, evened):
        task.model.zero_grad()
        loss = objective(one.to(DEVICE), 0.0)
        loss.backward()
        gradients = [weight.grad.flatten() for weight in task.model.parameters() if weight.grad is not None]
        found.append((loss.detach(), torch.cat(gradients)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-3, atol=1e-5)


def test_as_many_rows_are_of_one_shape() -> None:
    task, _ = made_task("aided translation")
    shapes = set()
    for seed, lengths in enumerate(([3, 1, 7, 2], [8, 8, 8, 8], [1, 1, 2, 1])):
        evened = some(task, lengths, seed).evened(room(task), written=True)
        assert evened is not None
        shapes.add(signature((*parts_of(evened.source), evened.inputs, evened.outputs)))
    assert len(shapes) == 1


def test_what_cannot_be_filled_up_stays_as_it_is() -> None:
    task, _ = made_task("aided translation")
    batch = some(task, [3, 1, 7, 2])
    assert batch.evened(Room(1000, 1000, 1000, 9, (10, 3)), written=True) is None, "more than there is room for"
    assert batch.evened(Room(1000, 1000, 1000, 3, (10, 9)), written=True) is None
    assert batch.evened(Room(1000, 1000, 1000, 900, (10, 9)), written=True) is None, "nearly all would be filler"
    texts = Batch(Bundle(batch.source.parts[1:]), batch.inputs, batch.outputs)
    assert texts.evened(Room(1000, 1000, 1000, 9, (9,)), written=True) is None, "no pictures"


@pytest.mark.parametrize("uniform", [False, True])
def test_sequences_joined_with_filled_ones(uniform: bool) -> None:
    first = [[1, 2, 3], [4, 5, 6], [7, 8, 9]] if uniform else [[1], [], [2, 3]]
    second = [[11, 12], [13], []]
    one = Ragged.of(first)
    one = one.even(one.values, 3) if uniform else one.filled(7, 3, 90, longest=4)
    both, place = one.joined(Ragged.of(second).filled(8, 3, 99, longest=4))
    assert both.spare
    assert both.tolist() == [a + b for a, b in zip(first, second, strict=True)]
    assert both.longest >= 5
    assert both.values[place].tolist() == [11, 12, 13, 99, 99, 99, 99, 99]
    behind = both.values[int(both.offsets[-1]) :].tolist()
    assert behind == [90] * (0 if uniform else 4) + [99] * 5


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        *((name, {}, True) for name in MODELS),
        ("captioner", {"objective": {"agreement": 1.0}}, False),
        ("captioner", {"objective": {"kind": "scheduled_sampling"}}, False),
        ("question", {"accumulate": 2}, False),
    ],
)
def test_which_updates_may_be_recorded(kernel: None, name: str, changed: dict[str, Any], expected: bool) -> None:
    task, objective = made_task(name, **changed)
    assert takes_even(task.model, objective, task.config.training, torch.device("cuda")) is expected


def test_encoders_that_wait_for_the_device_are_not_recorded(kernel: None) -> None:
    for encoder in ([PICTURE, {"kind": "lstm"}], [PICTURE, {"kind": "stem"}], [{**PICTURE, "kind": "gru"}, TEXT]):
        MODELS["other"] = {"source": BOTH, "model": {"encoder": encoder, "decoder": TEXT}}
        task, objective = made_task("other")
        del MODELS["other"]
        assert not takes_even(task.model, objective, task.config.training, torch.device("cuda"))


@gpu
@compiles
@pytest.mark.parametrize("name", list(MODELS))
def test_updates_that_are_recorded(name: str) -> None:
    losses = []
    for compiled in (False, True):
        task, objective = made_task(name, compile=compiled)
        updater = Updater(task.model, objective, task.config.training, DEVICE, room(task))
        batches = [
            some(task, [3, 1, 7, 2]),
            some(task, [8, 4, 4, 4], 4),
            some(task, [5, 5]),
            some(task, [1, 2, 2, 1], 5),
        ]
        found = [updater([updater.prepare(x)], i, 0.0).loss.item() / x.tokens for i, x in enumerate(4 * batches, 1)]
        assert (updater.recording is not None) == compiled
        losses.append(found)
    assert losses[0][-1] < losses[0][3]
    assert losses[1] == pytest.approx(losses[0], rel=0.02, abs=0.01)
