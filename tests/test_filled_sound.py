"""Recordings in batches that are filled up: what fills them changes nothing, and shapes follow from shapes alone."""

from typing import Any

import pytest
import torch

from regard.config import parse
from regard.data.batch import Batch, Room
from regard.data.marks import MARKS
from regard.data.modalities.audio import SoundAugmentation
from regard.data.sides import SHARED, Sides
from regard.data.tokenizers.symbols import Symbols
from regard.loading import new_task
from regard.models.speech import LogMelStem, SubsamplingStem
from regard.models.stems import Elements
from regard.nn.spectrogram import AlteredSound
from regard.ragged import Ragged
from regard.stem_settings import LogMelSettings, SubsamplingSettings
from regard.training.objectives import Likelihood, make_objective
from regard.training.update import Updater
from tests.conftest import compiles, gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS = [5, 1, 9, 0, 4, 13, 2]
HOP = 80


def recordings(lengths: list[int] = LENGTHS) -> Ragged:
    draw = torch.Generator().manual_seed(3)
    samples = torch.randint(-3000, 3000, (sum(lengths), HOP), dtype=torch.int16, generator=draw)
    return Ragged.from_lengths(samples, lengths)


def stem(halvings: int, normalize: str = "utterance", augmentation: AlteredSound | None = None) -> LogMelStem:
    torch.manual_seed(1)
    elements = Elements(shape=(HOP,), augmentation=augmentation)
    common = {"mels": 7, "normalize": normalize}
    if not halvings:
        return LogMelStem(LogMelSettings(**common), elements, 6, 0.0).double()
    return SubsamplingStem(SubsamplingSettings(halvings=halvings, channels=5, **common), elements, 6, 0.0).double()


@pytest.mark.parametrize(("halvings", "normalize"), [(0, "utterance"), (1, "none"), (2, "utterance"), (3, "global")])
def test_vectors_and_gradients_are_those_of_recordings_that_are_padded(halvings: int, normalize: str) -> None:
    source, found = recordings(), []
    for given in (source, source.filled(64, 12, longest=16)):
        model = stem(halvings, normalize)
        made = model.vectors(given)
        end = int(made.offsets[-1])
        weights = torch.linspace(-1, 1, end * 6, dtype=torch.float64).view(end, 6)
        (made.values[:end] * weights).sum().backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        found.append((made, made.values[:end], torch.cat([gradient.flatten() for gradient in gradients])))
        assert len(gradients) == 2 + 2 * halvings
    (padded, values, mine), (filled, others, theirs) = found
    torch.testing.assert_close(others, values, rtol=0, atol=1e-12)
    torch.testing.assert_close(theirs, mine, rtol=0, atol=1e-12)
    assert torch.equal(filled.offsets[: len(source) + 1], padded.offsets)
    assert filled.spare
    assert filled.longest >= padded.longest
    assert not filled.lengths[len(source) :].any()


def test_shapes_do_not_follow_from_lengths() -> None:
    model = stem(2)
    shapes = {
        model.vectors(recordings(x).filled(64, 12, longest=16)).values.shape for x in (LENGTHS, [30, 30], [1] * 12)
    }
    assert len(shapes) == 1


def test_speeds_and_masks_are_drawn_alike() -> None:
    settings = SoundAugmentation(speed=[0.5, 1.0, 1.3], noise=0.0, frequency_masks=2, time_masks=2)
    found = []
    for given in (recordings(), recordings().filled(64, len(LENGTHS))):
        model = stem(2, augmentation=AlteredSound(settings)).train()
        torch.manual_seed(7)
        made = model(given)
        found.append((made.offsets, made.values[: int(made.offsets[-1])]))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=1e-5)


def task(decoder: str, dropout: float = 0.0, **training: Any) -> tuple[Any, Likelihood]:
    """A small Conformer with CTC, under a decoder or none, and what its training minimises."""
    model = {
        "d_model": 16, "dropout": dropout, "ctc": True,
        "decoder": {"kind": decoder, "layers": 1, "heads": 2, "d_ff": 16},
        "encoder": {"kind": "conformer", "layers": 1, "heads": 2, "d_ff": 16, "kernel": 3,
                    "normalize_convolution": "layer", "stem": {"kind": "subsampling", "mels": 7, "channels": 3}},
    }  # fmt: skip
    model["decoder"] = model["decoder"] if decoder != "none" else {"kind": "none"}
    settings = {
        "source": {"kind": "audio", "rate": 100 * HOP}, "tokens": {"kind": "word", "size": 9}, "model": model,
        "training": {"device": DEVICE.type, "warmup": 0, "schedule": "constant", **training},
    }  # fmt: skip
    sides = Sides.of(parse(settings, "a test"))
    sides.use({SHARED: Symbols("word", [f"w{i}" for i in range(len(MARKS), 9)])})
    torch.manual_seed(5)
    made = new_task(sides, DEVICE)
    objective = make_objective(made.model, made.config.training.objective, 0.0, made.first)
    assert isinstance(objective, Likelihood)
    return made, objective


def some(made: Any, lengths: list[int]) -> Batch:
    source = recordings(lengths)
    hops = [source.values[begin:end].numpy() for begin, end in zip(source.offsets, source.offsets[1:], strict=False)]
    batch: Batch = made.batch(hops, [[len(MARKS) + i % 3 for i in range(1 + n // 8)] for n in lengths])
    return batch


@pytest.mark.parametrize("decoder", ["none", "transformer"])
def test_what_fills_a_batch_up_costs_nothing(kernel: None, decoder: str) -> None:
    (made, objective), found = task(decoder), []
    batch = some(made, [9, 21, 5])
    filled = batch.filled(Room(64, 64, 8, 6))
    assert filled is not None
    for one in (batch, filled):
        made.model.zero_grad()
        loss = objective(one.to(DEVICE), 0.0)
        loss.backward()
        gradients = [weight.grad.flatten() for weight in made.model.parameters()]
        found.append((loss.detach(), torch.cat(gradients)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-3, atol=1e-4)


@gpu
@compiles
@pytest.mark.parametrize("decoder", ["none", "transformer"])
def test_updates_that_are_recorded(decoder: str) -> None:
    losses = []
    for compiled in (False, True):
        made, objective = task(decoder, compile=compiled)
        updater = Updater(made.model, objective, made.config.training, DEVICE, Room(64, 64, 64, 6))
        batches = [some(made, [9, 21, 5]), some(made, [30, 30]), some(made, [5] * 6)]
        found = [updater([updater.prepare(batch)], step, 0.0).loss.item() for step, batch in enumerate(3 * batches, 1)]
        assert (updater.recording is not None) == compiled
        losses.append(found)
    assert losses[0][-1] < 0.9 * losses[0][2]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@gpu
@compiles
def test_each_replay_drops_out_other_numbers() -> None:
    """A model that does not learn finds other losses of the same recordings, around what it finds without dropout."""
    (_, objective), (made, dropping) = task("transformer"), task("transformer", 0.3, learning_rate=1e-12)
    updater = Updater(made.model, dropping, made.config.training, DEVICE, Room(64, 64, 64, 6))
    batch = some(made, [9, 21, 5])
    losses = [updater([updater.prepare(batch)], step, 0.0).loss.item() for step in range(1, 13)]
    assert updater.recording is not None
    assert len({round(loss, 5) for loss in losses[-8:]}) == 8
    with torch.no_grad():
        expected = objective(batch.to(DEVICE), 0.0).item()
    assert sum(losses) / len(losses) == pytest.approx(expected, rel=0.2)
