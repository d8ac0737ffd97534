"""Texts as one stream: blocks without padding, rows whose state is carried on, perplexity as it is published."""

from __future__ import annotations

import json
import math
import os
import random
import signal
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.config import merge, parse, resolve_paths
from regard.data.batch import Batch
from regard.data.batches import Position
from regard.data.layouts import Continued
from regard.data.marks import EOS, UNK
from regard.data.sides import Sides
from regard.data.store import ExampleStore, Store
from regard.data.stream import BlockBatches, RowBatches, Stream
from regard.errors import ConfigError, DataError
from regard.exchange.onnx import export as export_onnx
from regard.models.model import DecoderOnly
from regard.nn.graphs import Graphs
from regard.nn.mogrifier import MogrifierLSTM, _flat
from regard.ragged import Ragged
from regard.runs import Stopped, prepare
from regard.tasks.language_model import LanguageModeling
from regard.training.checkpoint import load_tensors
from regard.training.ema import MovingMean
from regard.training.losses import _MixtureCrossEntropy, output_loss
from regard.training.objectives import Likelihood, TruncatedLikelihood, make_objective
from regard.training.watcher import Update, Watcher
from regard.training_settings import ObjectiveSettings
from tests import equations as eq
from tests.conftest import gpu, redrawn
from tests.test_equations import agree
from tests.test_models import NETWORKS, made

AWD = {"kind": "awd_lstm", "layers": 2, "hidden": 12, "input_dropout": 0.1, "weight_dropout": 0.2}
DECODERS: dict[str, dict[str, Any]] = {
    "lstm": {"kind": "lstm"},
    "mogrifier": {**AWD, "rounds": 2, "rank": 3, "project": True},
    "gpt": {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 16, "positions": "rotary"},
}


def write_corpus(folder: Path) -> None:
    """Sentences whose first word is the last of the one before them, which only a carried state can know; some lines
    are blank, and some words unknown."""
    draw = random.Random(0)
    for split, count in (("train", 250), ("valid", 40), ("test", 40)):
        lines, word = [], "a"
        for number in range(count):
            words = [word, *draw.choices("abcdef", k=draw.randint(1, 5))]
            word = words[-1]
            lines.append(" ".join(words) + (" <unk>" if number % 7 == 0 else "") if number % 5 else " ")
        (folder / f"{split}.txt").write_text("".join(line + "\n" for line in lines))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stream")
    write_corpus(place)
    return place


def settings(name: str, **changes: Any) -> dict[str, Any]:
    base = {
        "run": name,
        "data": {"train": "train.txt", "valid": "valid.txt", "test": "test.txt"},
        "source": {"kind": "none"},
        "target": {"stream": 7},
        "tokens": {"kind": "word"},
        "model": {"d_model": 8, "dropout": 0.1, "encoder": {"kind": "none"}, "decoder": DECODERS.get(name)},
        "training": {
            "steps": 24, "batch_tokens": 60, "learning_rate": 0.01, "warmup": 2, "schedule": "constant",
            "validate_every": 12, "save_every": 6, "label_smoothing": 0.0, "tensorboard": False, "device": "cpu",
        },
    }  # fmt: skip
    return merge(base, changes)


def trained(corpus: Path, name: str, watcher: Watcher | None = None, **changes: Any) -> regard.System:
    return regard.train(resolve_paths(parse(settings(name, **changes)), corpus), watcher)


MEAN: dict[str, Any] = {"training": {"ema": 0.9}}


def finished(corpus: Path, name: str) -> Path:
    """A run with a moving mean of the weights, trained when it is first asked for."""
    folder = corpus / f"{name}-whole"
    if not folder.exists():
        trained(corpus, name, run=folder.name, **MEAN)
    return folder


def stored(tmp_path: Path, texts: list[list[int]]) -> Store:
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    ends.tofile(tmp_path / "target.offsets")
    np.array([token for text in texts for token in text], np.uint16).tofile(tmp_path / "target.values")
    return Store(tmp_path / "target", "uint16")


# The stream and its blocks


def test_a_stream_is_a_ring_of_texts_with_marks_between(tmp_path: Path) -> None:
    texts = [[7, 8, 9], [], [6], [], [], [7, 7]]
    stream = Stream(stored(tmp_path, texts), EOS)
    ring = [token for text in texts for token in [*text, EOS]]
    assert len(stream) == len(ring)
    for start in range(-2, 2 * len(ring)):
        for count in (1, 2, 5, len(ring), 2 * len(ring) + 1):
            assert stream.read(start, count).tolist() == [ring[(start + i) % len(ring)] for i in range(count)]
    assert [block.tolist() for block in stream.blocks(5)] == [ring[i : i + 5] for i in range(0, len(ring), 5)]


def batches(tmp_path: Path, kind: type[BlockBatches], texts: list[list[int]], budget: int, block: int) -> BlockBatches:
    config = parse(settings("lstm"))
    store = ExampleStore([stored(tmp_path, texts)], None)
    return kind(store, Sides.of(config), Continued(), [budget], 1, block=block, lead=1)


def texts_of(count: int) -> list[list[int]]:
    """Texts of different lengths in which no token comes twice."""
    numbers = iter(range(10, 10_000))
    return [list(islice(numbers, length % 5)) for length in range(count)]


@pytest.mark.parametrize("kind", [BlockBatches, RowBatches])
def test_an_epoch_predicts_each_token_once_and_begins_elsewhere_than_the_one_before(
    tmp_path: Path, kind: type[BlockBatches]
) -> None:
    texts = texts_of(31)
    ring = [token for text in texts for token in [*text, EOS]]
    made = batches(tmp_path, kind, texts, budget=28, block=7)
    epochs: dict[int, list[Batch]] = {}
    for batch, position in islice(made.since(Position()), 12):
        epochs.setdefault(position.epoch, []).append(batch)
    for one in (epochs[0], epochs[1]):
        found = [token for batch in one for token in batch.outputs.values.tolist()]
        assert all(batch.inputs.longest <= 7 and len(batch.inputs) <= 4 for batch in one)
        if kind is BlockBatches:
            assert sorted(found) == sorted(ring)
        else:  # rows are equally long
            assert len(ring) - 4 < len(found) <= len(ring)
            assert len(set(found) - {EOS}) == len([token for token in found if token != EOS])
        for batch in one:
            after = {token: next_ for token, next_ in pairwise([*ring, ring[0]]) if token != EOS}
            for token, next_ in zip(batch.inputs.values.tolist(), batch.outputs.values.tolist(), strict=True):
                assert token == EOS or after[token] == next_
    assert epochs[0][0].outputs.tolist() != epochs[1][0].outputs.tolist()


def test_rows_go_on_where_they_ended(tmp_path: Path) -> None:
    made = batches(tmp_path, RowBatches, texts_of(40), budget=20, block=5)
    epoch = list(made.epoch(3))
    assert [batch.goes_on for batch in epoch] == [False] + [True] * (len(epoch) - 1)
    for before, after in pairwise(epoch):
        assert [row[-1] for row in before.outputs.tolist()] == [row[0] for row in after.inputs.tolist()]
    assert all(batch.inputs.uniform and batch.outputs.uniform for batch in epoch)


@pytest.mark.parametrize("kind", [BlockBatches, RowBatches])
def test_batches_are_reached_from_any_position(tmp_path: Path, kind: type[BlockBatches]) -> None:
    made = batches(tmp_path, kind, texts_of(31), budget=21, block=7)
    whole = list(islice(made.since(Position()), 9))
    for number, (_, position) in enumerate(whole[:-1]):
        later, _ = next(made.since(position))
        assert later.inputs.tolist() == whole[number + 1][0].inputs.tolist()
        assert later.goes_on == whole[number + 1][0].goes_on


# Truncated backpropagation through time


@pytest.mark.parametrize("name", ["lstm", "awd-lstm", "awd-lstm-mogrified"])
def test_the_loss_of_blocks_is_that_of_the_whole_and_has_no_gradient_beyond_a_block(name: str) -> None:
    model = made(encoder={"kind": "none"}, decoder=NETWORKS[name])
    assert isinstance(model, DecoderOnly)
    tokens = torch.randint(13, (3, 13), generator=torch.Generator().manual_seed(1))

    def batch(start: int, stop: int) -> Batch:
        nothing = Ragged.of([[]] * 3)
        inputs, outputs = (
            nothing.even(tokens[:, a:b].flatten(), stop - start) for a, b in ((start, stop), (start + 1, stop + 1))
        )
        return Batch(nothing, inputs, outputs, goes_on=start > 0)

    objective = TruncatedLikelihood(model, ObjectiveSettings())
    whole = objective(batch(0, 12), 0.0)
    parts = [objective(batch(start, start + 4), 0.0) for start in (0, 4, 8)]
    assert sum(part.item() for part in parts) == pytest.approx(whole.item(), rel=1e-9)
    assert not objective.carried["carry"].requires_grad
    again = objective(batch(0, 12), 0.0)  # a batch that does not go on begins from zeros
    assert again.item() == whole.item()


def test_activation_and_slowness_are_as_published() -> None:
    model = made(encoder={"kind": "none"}, decoder=NETWORKS["awd-lstm"])
    assert isinstance(model, DecoderOnly)
    inputs = Ragged.of([[]] * 2).even(torch.arange(2, 12), 5)
    batch = Batch(Ragged.of([[]] * 2), inputs, inputs)
    plain, both = (
        TruncatedLikelihood(model, ObjectiveSettings(activation=alpha, slowness=beta))(batch, 0.0).item()
        for alpha, beta in ((0.0, 0.0), (2.0, 1.0))
    )
    h = model.decoder(inputs, None).values.detach().numpy().reshape(2, 5, -1)
    penalty = 2.0 * (h**2).mean() + 1.0 * ((h[:, 1:] - h[:, :-1]) ** 2).mean()
    assert both - plain == pytest.approx(10 * penalty, rel=1e-9)


class _Stop(Watcher):
    """Asks to stop after an update."""

    def __init__(self, step: int) -> None:
        self.step = step

    def update(self, update: Update) -> None:
        if update.step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("name", DECODERS)
def test_a_run_on_a_stream_resumes_exactly(corpus: Path, name: str) -> None:
    """Stopped in the middle of an epoch, between two checkpoints, with a moving mean of the weights beside."""
    whole, stopped = finished(corpus, name), corpus / f"{name}-stopped"
    with pytest.raises(Stopped):
        trained(corpus, name, _Stop(9), run=stopped.name, **MEAN)
    trained(corpus, name, run=stopped.name, **MEAN)
    for file in ("model.safetensors", "checkpoints/00000024/model.safetensors"):
        one, other = (load_tensors(run / file) for run in (whole, stopped))
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_what_is_kept_is_the_moving_mean(corpus: Path) -> None:
    folder = finished(corpus, "lstm")
    carried = load_tensors(folder / "checkpoints/00000024/carried.safetensors")
    kept, last = (
        load_tensors(folder / "model.safetensors"),
        load_tensors(folder / "checkpoints/00000024/model.safetensors"),
    )
    name = "decoder.embedding.table.weight"
    assert torch.equal(kept[name], carried["ema/" + name])
    assert not torch.equal(kept[name], last[name])


def test_a_moving_mean_is_one() -> None:
    layer = torch.nn.Linear(2, 1, bias=False).double()
    mean, expected = MovingMean(layer, 0.5), None
    for step in range(1, 30):
        value = float(step)
        torch.nn.init.constant_(layer.weight, value)
        mean.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = value if expected is None else decay * expected + (1 - decay) * value
    with mean.applied():
        assert layer.weight[0, 0].item() == pytest.approx(expected)
    assert layer.weight[0, 0].item() == 29.0


# Perplexity


def published(task: LanguageModeling, path: Path) -> tuple[float, int]:
    """`-log p` and tokens of a file, every line of which has an end, read at once from a state of zeros."""
    stream = [EOS]
    for line in path.read_text().splitlines():
        stream += [*task.target.encode(line), EOS]
    with task.inference():
        states, _ = task.model.read(Ragged.of([stream[:-1]]), task.model.decoder.alone(1))
        log_p = task.model.head(states.values).double().log_softmax(-1)
    return -log_p[torch.arange(len(stream) - 1), torch.tensor(stream[1:])].sum().item(), len(stream) - 1


@pytest.mark.parametrize("name", ["lstm", "mogrifier"])
def test_evaluation_carries_the_state_and_counts_every_end_and_unknown_word(corpus: Path, name: str) -> None:
    system = regard.load(finished(corpus, name), device="cpu")
    task = system.task
    assert isinstance(task, LanguageModeling)
    total, tokens = published(task, corpus / "test.txt")
    text = (corpus / "test.txt").read_text()
    assert tokens == len(text.split()) + len(text.splitlines())
    assert task.target.encode("a <unk> b")[1] == UNK
    found = system.evaluate(str(corpus / "test.txt")).scores["word_perplexity"]
    assert found.value == pytest.approx(math.exp(total / tokens), rel=1e-5)
    assert found.signature == "per:word|words:blanks|end:counted|stream|state:carried"
    assert len(system.evaluate(str(corpus / "test.txt")).examples) == 40  # blank ones too
    scores = json.loads((finished(corpus, name) / "scores.json").read_text())
    rows = scores["valid"]["perplexity"]  # from a state of zeros in each row, so near it and not the same
    assert rows == pytest.approx(system.evaluate(str(corpus / "valid.txt")).scores["perplexity"].value, rel=0.1)


def test_a_transformer_slides_over_a_stream(corpus: Path) -> None:
    """Each token after as many before it as fit into a block, when the window moves on by one."""
    system = regard.load(finished(corpus, "gpt"), device="cpu")
    task = system.task
    assert isinstance(task, LanguageModeling)
    assert task.context == 7
    stream = [EOS]
    for line in (corpus / "test.txt").read_text().splitlines():
        stream += [*task.target.encode(line), EOS]
    total = 0.0
    with task.inference():
        for t in range(1, len(stream)):
            states = task.model.decoder(Ragged.of([stream[max(0, t - 7) : t]]), None)
            total -= task.model.predict(states.values[-1:])[0, stream[t]].item()
    found = system.evaluate(str(corpus / "test.txt"), stride=1).scores["perplexity"]
    assert found.value == pytest.approx(math.exp(total / (len(stream) - 1)), rel=1e-4)
    assert found.signature.endswith("|stream|context:7|stride:1")
    wider = system.evaluate(str(corpus / "test.txt")).scores["perplexity"]
    assert wider.signature.endswith("|stride:3")
    assert wider.value == pytest.approx(found.value, rel=0.2)


def test_a_masked_language_model_learns_from_blocks(corpus: Path) -> None:
    encoder = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 16}
    model = {"encoder": encoder, "decoder": {"kind": "none"}}
    _, feed = prepare(resolve_paths(parse(settings("bert", model=model)), corpus))
    batch, _ = next(feed.since(Position()))
    assert [len(row) for row in batch.source.tolist()] == [9] * 8  # a block between marks
    found = trained(corpus, "bert", model=model, training={"steps": 12})
    assert found.generate(["a <mask> b"])
    (corpus / "blank.txt").write_text("\n\n")
    with pytest.raises(DataError, match="hold no token that could be masked"):
        trained(corpus, "blank", model=model, data={"valid": "blank.txt"}, training={"steps": 1})
    with pytest.raises(DataError, match="hold no token that could be masked"):
        found.evaluate(str(corpus / "blank.txt"))


# The layer


def test_a_recorded_loop_is_the_loop() -> None:
    """On a CPU a recording runs its function anew; gradients and all."""
    layer = redrawn(MogrifierLSTM(5, 4, rounds=3, rank=2)).train()
    x = Ragged.of([[]] * 3).even(torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), 4)
    state = (torch.ones(3, 4, dtype=torch.float64), -torch.ones(3, 4, dtype=torch.float64))
    results = []
    for graphs in (None, Graphs(torch.device("cpu"))):
        layer.graphs = graphs
        for _ in range(3):  # the first time nothing is recorded
            layer.zero_grad()
            found, (h, c) = layer(x, state)
            (found.values.square().sum() + (h * c).sum()).backward()
            results.append([found.values, h, c, *(weight.grad for weight in layer.parameters())])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert one is not None
            torch.testing.assert_close(one, two)


def test_weights_for_cudnn_lie_one_behind_the_other() -> None:
    weights = MogrifierLSTM(3, 4).cell.all_weights[0]
    flat = _flat([weight * 1.0 for weight in weights])
    assert all(torch.equal(one, other) for one, other in zip(flat, weights, strict=True))
    ends = [part.data_ptr() + part.nbytes for part in flat]
    assert [part.data_ptr() for part in flat[1:]] == ends[:-1]


@gpu
@pytest.mark.parametrize("name", ["awd-lstm", "awd-lstm-mogrified"])
def test_a_gpu_gives_what_a_cpu_gives(name: str) -> None:
    """Also recorded, and with weights dropped, of which cuDNN would warn if they lay apart."""
    none = dict.fromkeys(("input_dropout", "layer_dropout", "output_dropout", "word_dropout", "weight_dropout"), 0.0)
    nothing = Ragged.of([[]] * 3)
    inputs, found = nothing.even(torch.arange(12), 4), []
    for device in ("cpu", "cuda"):
        model = made(encoder={"kind": "none"}, decoder={**NETWORKS[name], **none}).float().to(device).train()
        for layer in model.modules():
            if isinstance(layer, MogrifierLSTM) and device == "cuda":
                layer.graphs = Graphs(torch.device(device))
        for _ in range(3):
            model.zero_grad()
            made_here = model(nothing.to(device), inputs.to(device)).values
            made_here.square().sum().backward()
            values = made_here.detach().cpu()
            del made_here  # the nodes of its graph are of the stream that it ran on
        found.append([values, *(gradient(weight).cpu() for weight in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * float(one.abs().max()))
    dropped = made(encoder={"kind": "none"}, decoder=NETWORKS[name]).float().to("cuda").train()
    with torch.autocast("cuda", torch.bfloat16):
        values = dropped(nothing.to("cuda"), inputs.to("cuda")).values
    values.float().sum().backward()
    assert all(gradient(weight).isfinite().all() for weight in dropped.parameters())


def gradient(weight: torch.nn.Parameter) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


def test_dropout_of_weights_and_masks_are_one_for_all_steps() -> None:
    part = {**AWD, "word_dropout": 0.0, "weight_dropout": 0.0, "layer_dropout": 0.0, "output_dropout": 0.5}
    model = made(encoder={"kind": "none"}, decoder={**part, "input_dropout": 0.0})
    assert isinstance(model, DecoderOnly)
    inputs = Ragged.of([[]] * 2).even(torch.arange(2, 12), 5)
    plain = model.decoder(inputs, None).values
    model.train()
    ratio = (model.decoder(inputs, None).values / plain).reshape(2, 5, -1)
    assert set(ratio.round(decimals=6).unique().tolist()) == {0.0, 2.0}
    assert torch.allclose(ratio, ratio[:, :1].expand_as(ratio))
    assert not torch.allclose(ratio[0], ratio[1])
    ragged = Ragged.of([[2, 3, 4], [5]])
    with torch.no_grad():
        assert model.decoder(ragged, None).values.shape == (4, 8)

    dropped = made(seed=2, encoder={"kind": "none"}, decoder={**AWD, "word_dropout": 0.5, "input_dropout": 0.0})
    assert isinstance(dropped, DecoderOnly)
    dropped.train()
    same_word = Ragged.of([[]]).even(torch.full((6,), 3), 6)
    embedded = dropped.decoder._embedded(same_word).values  # type: ignore[attr-defined]
    assert torch.equal(embedded, embedded[:1].expand_as(embedded))


# Mixtures of softmaxes


def test_a_mixture_of_softmaxes_follows_its_equation_and_so_does_its_loss() -> None:
    model = made(encoder={"kind": "none"}, decoder=NETWORKS["lstm"], softmaxes=3)
    assert isinstance(model, DecoderOnly)
    x = torch.randn(7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    targets = torch.tensor([3, 1, -100, 12, 0, 5, 5])
    w = {name: weight.detach().numpy() for name, weight in model.head.named_parameters()}
    logits = model.head(x)
    agree(logits, [eq.mixture_of_softmaxes(w, h, 3) for h in x.detach().numpy()])
    wanted = [x, *model.head.parameters()]
    plain = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    expected = torch.autograd.grad(plain, wanted)
    for chunk in (100, 3):
        latent, prior = model.head.mixed(x) or (x, x)
        weight, bias = model.head.linear.weight, model.head.linear.bias
        found = _MixtureCrossEntropy.apply(latent, prior, weight, bias, targets, chunk, torch.float64)
        assert found.item() == pytest.approx(plain.item(), rel=1e-6)  # a loss of each row is in float32
        for one, other in zip(torch.autograd.grad(found, wanted), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert output_loss(model.head, x, targets).item() == pytest.approx(plain.item(), rel=1e-6)


def test_a_model_with_a_mixture_trains_and_writes(corpus: Path) -> None:
    model = {"decoder": DECODERS["mogrifier"], "softmaxes": 2}
    system = trained(corpus, "mixture", model=model, training={"steps": 6, "validate_every": 6})
    assert system.generate(["a b"], max_length=6)[0].startswith("a b")
    with pytest.raises(ConfigError, match="kind awd_lstm cannot be exported to ONNX"):
        export_onnx(system, corpus / "exported")


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": {"kind": "text"}, "model": {"decoder": {"kind": "lstm"}, "encoder": {"kind": "lstm"}}},
         "target.stream joins texts that have no source"),
        ({"tokens": {"kind": "bpe", "sampling": 0.1}}, "target.stream needs the same tokens each time"),
        ({"training": {"objective": {"agreement": 1}}}, "does not go with target.stream and a recurrent decoder"),
        ({"training": {"objective": {"kind": "scheduled_sampling"}}},
         "training.objective.kind 'scheduled_sampling' does not go with target.stream"),
        ({"training": {"objective": {"slowness": 1}}}, "training.objective.slowness needs decoder.kind awd_lstm"),
        ({"model": {"encoder": {"kind": "lstm"}, "decoder": {"kind": "awd_lstm"}}},
         "decoder.kind awd_lstm looks at no encoder"),
        ({"model": {"decoder": {"kind": "awd_lstm", "rank": 4}}}, "decoder.rank .4. is of the gates"),
        ({"training": {"ema": 0.9, "average": 2}}, "are two ways to one end"),
        ({"model": {"softmaxes": 2}, "training": {"label_smoothing": 0.1}}, "a loss without label smoothing"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(settings("lstm", **changes))


def test_the_objective_follows_the_stream() -> None:
    model, target = made(encoder={"kind": "none"}, decoder=NETWORKS["lstm"]), Sides.of(parse(settings("lstm"))).target
    assert type(make_objective(model, ObjectiveSettings(), 0.0, [EOS])) is Likelihood
    assert type(make_objective(model, ObjectiveSettings(), 0.0, [EOS], target=target)) is TruncatedLikelihood
    transformer = made(encoder={"kind": "none"}, decoder=DECODERS["gpt"])
    assert type(make_objective(transformer, ObjectiveSettings(), 0.0, [EOS], target=target)) is Likelihood
