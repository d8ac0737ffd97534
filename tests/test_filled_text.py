"""Updates of models of plain text in batches that are filled up: what fills them changes nothing, all batches of a run
are of one shape, and one recording serves them all.

On a CPU a recording runs its function anew each time, on tensors of its own and with the plain numbers of the batch
that it was made from, as a replay on a GPU does.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.config import parse
from regard.data.batch import Batch, Room
from regard.data.batches import Batches, Position
from regard.data.marks import MARKS
from regard.data.sides import SHARED, Sides
from regard.data.store import ExampleStore, HeldStore
from regard.data.tokenizers.symbols import Symbols
from regard.loading import new_task
from regard.nn.graphs import Graphs, Recording, cloned, signature, tensors
from regard.training.objectives import make_objective
from regard.training.update import Updated, Updater, filled_room
from tests.conftest import compiles, gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GPU = torch.device("cuda")  # none is needed to ask what would be recorded there
SIZE = 20
BODY = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 16, "positions": "learned"}
DEEP = {**BODY, "layers": 2, "stochastic_depth": 0.4}
GPT = {"encoder": {"kind": "none"}, "decoder": {**BODY, "norm": "pre", "activation": "gelu_tanh"},
       "scale_embeddings": False, "output_bias": False}  # fmt: skip
BERT: dict[str, Any] = {
    "encoder": {**BODY, "norm": "post", "activation": "gelu", "embedding_norm": True,
                "stem": {"kind": "tokens", "segments": 2}},
    "decoder": {"kind": "none"}, "scale_embeddings": False,
}  # fmt: skip
NONE, TEXT = {"kind": "none"}, {"kind": "text"}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"source": NONE, "model": GPT},
    "gpt stream": {"source": NONE, "target": {"stream": 7}, "model": GPT},
    "gpt with a source": {"source": {"kind": "text"}, "model": GPT},
    "bert": {"source": NONE, "model": BERT},
    "bert stream": {"source": NONE, "target": {"stream": 7}, "model": BERT},
    "bert, agreeing": {"source": NONE, "model": BERT, "objective": {"agreement": 1.0}},
    "electra": {"source": NONE, "model": {**BERT, "generator": 0.5}},
    "bart": {"source": NONE, "model": {"encoder": BODY, "decoder": BODY}, "objective": {"kind": "denoising"}},
    "without ends": {"source": TEXT, "model": {"encoder": BODY, "decoder": BODY}, "objective": {"ends": False}},
    # Only what is drawn first does not depend on how many rows there are.
    "of stochastic depth": {"source": TEXT, "model": {"encoder": DEEP, "decoder": BODY}},
}
EACH = pytest.mark.parametrize("name", list(MODELS))


def made_task(name: str, **training: Any) -> tuple[Any, Any]:
    given = dict(MODELS[name])
    chosen = {"objective": given.pop("objective", {}), "device": DEVICE.type, "warmup": 0, "schedule": "constant",
              "batch_tokens": 60, "learning_rate": 0.01, **training}  # fmt: skip
    settings = {
        "tokens": {"kind": "word", "size": SIZE}, **given, "model": {"d_model": 16, "dropout": 0.0, **given["model"]},
        "training": chosen,
    }  # fmt: skip
    sides = Sides.of(parse(settings, "a test"))
    sides.use({SHARED: Symbols("word", [f"w{i}" for i in range(len(MARKS), SIZE)])})
    torch.manual_seed(5)
    task = new_task(sides, DEVICE)
    own = task.config.training
    return task, make_objective(task.model, own.objective, 0.0, task.first, task.longest, task.target)


def texts(count: int = 60, seed: int = 3) -> list[list[int]]:
    """Texts of 4 to 13 tokens, each of which is followed by the next number."""
    draw = np.random.default_rng(seed)
    begins, lengths = draw.integers(0, 100, count), draw.integers(4, 14, count)
    return [
        [len(MARKS) + int(begin + i) % (SIZE - len(MARKS)) for i in range(n)]
        for begin, n in zip(begins, lengths, strict=True)
    ]


def batches_of(task: Any) -> Batches:
    """The batches of a run."""
    targets = texts()
    sources = [text[::-1] for text in targets] if task.source.has_tokens and task.config.source.kind == "text" else []
    stores = [HeldStore(sources or [[] for _ in targets]), HeldStore(targets)]
    budget = task.config.training.batch_tokens
    found: Batches = task.training_batches(ExampleStore(stores, None), [budget, budget], 1)
    return found


def some(batches: Batches, count: int) -> list[Batch]:
    return [batch for batch, _ in islice(batches.since(Position()), count)]


def recording(name: str, **training: Any) -> tuple[Updater, list[Batch], Room]:
    """An updater that records as it would on a GPU, and batches."""
    task, objective = made_task(name, compile=False, **training)
    batches = batches_of(task)
    updater = Updater(task.model, objective, task.config.training, DEVICE, batches.room)
    compiled = task.config.training.model_copy(update={"compile": True})
    room = filled_room(task.model, objective, compiled, GPU, batches.room)
    assert room is not None
    updater.room = room
    updater.forget()
    return updater, some(batches, 12), room


@EACH
def test_all_batches_of_a_run_are_of_one_shape(kernel: None, name: str) -> None:
    updater, batches, room = recording(name)
    shapes, lengths = set(), set()
    for batch in batches:
        filled = batch.filled(room)
        assert filled is not None
        assert filled.tokens == batch.tokens
        assert len(filled.inputs) > len(batch.inputs), "what fills up stands behind an empty row"
        shapes.add(signature(tuple(tensors(filled))))
        lengths.add(len(batch.inputs.values))
    assert len(shapes) == 1
    assert len(lengths) > 1
    assert (room.source == 0) == (name in ("gpt", "gpt stream")), "there is no room for what is not there"
    assert updater.prepare(batches[0]).outputs.spare


@pytest.mark.parametrize("budget", [400, 4000])
@pytest.mark.parametrize("masking", ["tokens", "words", "spans"])
def test_room_for_what_is_masked_is_a_share_of_the_room_for_texts(kernel: None, masking: str, budget: int) -> None:
    objective = {"masking": masking, "masked": 0.15}
    task, _ = made_task("bert", batch_tokens=budget, objective=objective)
    batches = batches_of(task)
    room = batches.room
    assert (room.source, room.rows, room.longest) == (budget, budget, 2)
    assert 0.15 * budget < room.target < 0.17 * budget + 1
    for batch in some(batches, 12):
        assert len(batch.source.values) <= budget, "both marks of a text count"
        assert len(batch.inputs.values) <= room.target
        assert batch.inputs.longest <= room.longest
    task, _ = made_task("bert stream", batch_tokens=budget, objective=objective)
    rows = budget // 7
    assert batches_of(task).room == Room(9 * rows, rows, rows, 1, (9,))


def gradients(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


@EACH
def test_what_fills_a_batch_up_costs_nothing(kernel: None, name: str) -> None:
    updater, batches, room = recording(name)
    found = []
    for one in (batches[0], batches[0].filled(room)):
        assert one is not None
        updater.model.zero_grad()
        loss = objective_loss(updater, one)
        loss.backward()
        found.append((loss.detach(), gradients(updater.model)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-3, atol=1e-4)


def objective_loss(updater: Updater, batch: Batch) -> torch.Tensor:
    """The loss of a batch; where an objective draws, the draws of a token do not depend on how many there are."""
    torch.manual_seed(1)
    return updater.objective(batch.to(DEVICE), 0.0)


class Waits(TorchDispatchMode):
    """Hears of operators for whose result, or its shape, Python would wait for a GPU."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim",
             "repeat_interleave", "bincount", "multinomial")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition("::")[2].partition(".")[0]
        by_mask = name == "index" and any(x is not None and x.dtype == torch.bool for x in args[1])
        if name in self.NAMES or by_mask:
            self.heard.append(name)
        return func(*args, **(kwargs or {}))


@EACH
def test_nothing_waits_for_the_device(kernel: None, name: str) -> None:
    updater, batches, room = recording(name)
    filled = batches[0].filled(room)
    assert filled is not None
    filled = filled.to(DEVICE)
    with Waits() as waits:
        updater.objective(filled, 0.0).backward()
    assert not waits.heard
    with waits:  # it would be heard
        filled.inputs.values[filled.inputs.values > 0].max().item()
    assert {"index", "_local_scalar_dense"} <= {*waits.heard}


def afresh(updater: Updater, batch: Batch) -> Updated:
    """An update in which, as in a graph, what a batch keeps of its layout is worked out anew."""
    return updater._update([cloned(batch)], 0.0)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a graph of its own is warmed by updates; see the last test")
@EACH
def test_updates_of_filled_batches_are_those_of_the_batches(kernel: None, name: str) -> None:
    """One after the other, from a recording that was made of another batch."""
    ends = []
    for filled in (False, True):
        updater, batches, room = recording(name)
        first = batches[-1].filled(room)
        assert first is not None
        replay = Recording(partial(afresh, updater), first, Graphs(DEVICE))
        losses = []
        for step, batch in enumerate(batches[:2], 1):
            torch.manual_seed(step)
            if filled:
                replay.take(updater.prepare(batch))
            updated = replay() if filled else updater._update([batch.to(DEVICE)], 0.0)
            losses.append(float(updated.loss) / batch.tokens)
        ends.append((losses, {name: weight.detach() for name, weight in updater.model.named_parameters()}))
    assert ends[1][0] == pytest.approx(ends[0][0], rel=1e-4)
    for name, weight in ends[1][1].items():
        if not name.endswith("attention.inputs.bias"):  # a key's has no gradient but rounding: Adam makes a step of it
            torch.testing.assert_close(weight, ends[0][1][name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("gpt", {"accumulate": 2}),
        ("bert", {"compile": False}),
        ("gpt", {"objective": {"kind": "scheduled_sampling"}}),
        ("gpt", {"objective": {"sampled": 5}}),
        ("bert", {"model": {**BERT, "encoder": {"kind": "lstm"}}}),
        ("electra", {"model": {**BERT, "encoder": {**BERT["encoder"], "positions": "t5"}, "generator": 0.5}}),
        ("gpt", {"model": {**GPT, "decoder": {"kind": "lstm"}}}),
        ("gpt stream", {"model": {**GPT, "decoder": {"kind": "lstm"}}}),
    ],
)
def test_what_waits_for_the_device_or_looks_elsewhere_is_not_recorded(
    kernel: None, monkeypatch: pytest.MonkeyPatch, name: str, changed: dict[str, Any]
) -> None:
    changed = dict(changed)
    if model := changed.pop("model", None):
        monkeypatch.setitem(MODELS, name, {**MODELS[name], "model": model})
    if objective := changed.pop("objective", None):
        monkeypatch.setitem(MODELS, name, {**MODELS[name], "objective": objective})
    task, objective = made_task(name, **changed)
    assert filled_room(task.model, objective, task.config.training, GPU, batches_of(task).room) is None


@gpu
@compiles
@EACH
def test_updates_that_are_recorded(name: str) -> None:
    losses = []
    for compiled in (False, True):
        task, objective = made_task(name, compile=compiled)
        batches = batches_of(task)
        updater = Updater(task.model, objective, task.config.training, DEVICE, batches.room)
        found = [
            updater([updater.prepare(batch)], step, 0.0).loss.item() / batch.tokens
            for step, batch in enumerate(some(batches, 40), 1)
        ]
        assert (updater.recording is not None) == compiled
        losses.append(found)
    first, last = (sum(found) / len(found) for found in (losses[0][:8], losses[0][-8:]))
    assert last < 0.97 * first
    if name == "electra":  # what is drawn from its generator depends on how many draws there are
        losses = [[sum(found[i : i + 10]) / 10 for i in range(0, 40, 10)] for found in losses]
    assert losses[1] == pytest.approx(losses[0], rel=0.05 if name == "electra" else 0.02, abs=0.02)
