"""Recordings in batches that are filled up: what fills them changes nothing, and shapes follow from shapes alone."""

import pytest
import torch

from regard.data.modalities.audio import SoundAugmentation
from regard.model_settings import LogMelSettings, SubsamplingSettings
from regard.models.speech import LogMelStem, SubsamplingStem
from regard.models.stems import Elements
from regard.nn.spectrogram import AlteredSound
from regard.ragged import Ragged

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
