"""Stems for recordings and the Conformer against their equations, written out again in plain NumPy."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from regard.config import parse
from regard.data.modalities.audio import SoundAugmentation
from regard.encoder_settings import ConformerSettings
from regard.errors import ConfigError, ModelError
from regard.models.build import build
from regard.models.speech import (
    ConformerBlock,
    ConformerEncoder,
    ConvolutionModule,
    LogMelStem,
    PyramidStem,
    SubsamplingStem,
)
from regard.models.stems import Elements, Stem
from regard.nn.positions import Relative, Rotary
from regard.nn.spectrogram import AlteredSound
from regard.nn.statistics import BatchNorm, statistics
from regard.ragged import Ragged
from regard.stem_settings import LogMelSettings, PyramidSettings, StemSettings, SubsamplingSettings
from regard.training.checkpoint import average, load_tensors, save_tensors, set_weights, weights
from tests import equations as eq
from tests.conftest import D_MODEL, HOP, TARGET_VOCABULARY, batch_of, recordings, redrawn, rows_of, settings, whole
from tests.equations import Array, Weights
from tests.test_equations import agree, ragged

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

HEADS = 2


def numbers(module: nn.Module, seed: int = 1) -> Weights:
    """Every weight drawn in float64, the statistics of norms too, and read out."""
    return {name: tensor.numpy() for name, tensor in weights(redrawn(module, seed)).items()}


# The Conformer


def convolution_module(w: Weights, xs: list[Array], kernel: int, norm: str) -> list[Array]:
    """Gulati et al. 2020, fig. 2: layer norm, pointwise, GLU, depthwise over time, norm, swish, pointwise."""
    d = len(xs[0])
    gated = []
    for x in xs:
        both = eq.affine(w, "gated", eq.layer_norm(eq.under(w, "norm"), x))
        gated.append(both[:d] * eq.sigmoid(both[d:]))
    found = []
    for t in range(len(xs)):
        y = w["depthwise.bias"].copy()
        for i in range(kernel):
            at = t + i - kernel // 2
            if 0 <= at < len(xs):
                y = y + w["depthwise.weight"][:, 0, i] * gated[at]
        if norm == "batch":  # Ioffe and Szegedy 2015, alg. 2, with what was gathered in training
            spread = np.sqrt(w["after.running_var"] + 1e-5)
            y = (y - w["after.running_mean"]) / spread * w["after.weight"] + w["after.bias"]
        else:
            y = eq.layer_norm(eq.under(w, "after"), y)
        found.append(eq.affine(w, "output", eq.activate("silu", y)))
    return found


def conformer_block(w: Weights, xs: list[Array], kernel: int, norm: str) -> list[Array]:
    """Gulati et al. 2020, eq. 1, each part behind a norm of its own."""

    def halved(xs: list[Array], part: int, before: int) -> list[Array]:
        ff = eq.under(w, f"feed_forwards.{part}")
        return [x + 0.5 * eq.feed_forward(ff, eq.layer_norm(eq.under(w, f"norms.{before}"), x), "silu") for x in xs]

    xs = halved(xs, 0, 0)
    normed = [eq.layer_norm(eq.under(w, "norms.1"), x) for x in xs]
    attended = eq.multi_head(eq.under(w, "self_attention"), HEADS, normed, normed)
    xs = [x + y for x, y in zip(xs, attended, strict=True)]
    convolved = convolution_module(eq.under(w, "convolution"), xs, kernel, norm)
    xs = halved([x + y for x, y in zip(xs, convolved, strict=True)], 1, 2)
    return [eq.layer_norm(eq.under(w, "norms.3"), x) for x in xs]


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("kernel", [1, 3, 7])  # the last is wider than some rows
def test_the_convolution_module(norm: str, kernel: int) -> None:
    module = ConvolutionModule(D_MODEL, kernel, norm, dropout=0.5)
    w = numbers(module)
    assert ("after.running_mean" in w) == (norm == "batch")
    x, rows = ragged([4, 1, 0, 6], seed=3)
    for found, row in zip(module(x).split([4, 1, 0, 6]), rows, strict=True):
        if row:
            agree(found, convolution_module(w, row, kernel, norm))


@whole
@pytest.mark.parametrize("relative", [None, Rotary(D_MODEL // 2)], ids=["none", "rotary"])
def test_a_block_on_kernels_is_compiled_whole_and_once_for_all_lengths(kernel: None, relative: Relative | None) -> None:
    block = ConformerBlock(D_MODEL, 2, 8, kernel=3, normalize="layer", dropout=0.0, relative=relative).to(DEVICE)
    counter = CompileCounter()
    compiled = torch.compile(block.train().run, backend=counter, dynamic=True, fullgraph=True)
    for lengths in ([5, 1, 4], [3, 8], [1, 2, 1, 9]):  # in all not as many as `d_model`, which never changes
        rows = ragged(lengths, seed=1)[0].to(DEVICE)
        x = rows.like(rows.values.float()).indexed()
        seen = block.self_attention.spans(x)
        assert seen is not None
        torch.testing.assert_close(compiled(x, seen).values, block.run(x, seen).values, rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_a_conformer_block(norm: str) -> None:
    block = ConformerBlock(D_MODEL, HEADS, 12, kernel=5, normalize=norm, dropout=0.5, relative=None)
    w = numbers(block)
    x, rows = ragged([4, 1, 0, 6], seed=3)
    for found, row in zip(rows_of(block(x)), rows, strict=True):
        if row:
            agree(found, conformer_block(w, row, 5, norm))


def test_the_encoder_is_its_blocks_and_its_summary_their_mean() -> None:
    stem = LogMelStem(LogMelSettings(mels=6), Elements(shape=(HOP,)), D_MODEL, 0.0)
    given = ConformerSettings(layers=2, heads=HEADS, d_ff=12, kernel=3, positions="sinusoidal")
    encoder = ConformerEncoder(given, stem, D_MODEL, 0.0, 50)
    w = numbers(encoder)
    source = recordings([5, 2])
    memory, vectors = encoder(source), stem.vectors(source)
    for row, (found, given_row) in enumerate(zip(rows_of(memory.states), rows_of(vectors), strict=True)):
        xs = []
        for t, x in enumerate(given_row):  # Vaswani et al. 2017, 3.5
            angles = [t / 10000 ** (2 * (i // 2) / D_MODEL) for i in range(D_MODEL)]
            xs.append(x.detach().numpy() + [(math.cos if i % 2 else math.sin)(a) for i, a in enumerate(angles)])
        for block in range(2):
            xs = conformer_block(eq.under(w, f"blocks.{block}"), xs, 3, "batch")
        agree(found, xs, 1e-8)  # angles are made in float32
        agree(memory.summary[row], list(np.mean(xs, 0)), 1e-8)


def test_batch_norm_in_training_is_over_all_vectors_and_over_no_padding() -> None:
    module = redrawn(ConvolutionModule(D_MODEL, 3, "batch", dropout=0.0)).train()
    x, rows = ragged([4, 1, 0, 6], seed=3)
    before = {name: tensor.clone() for name, tensor in statistics(module)}
    module(x)
    w = {name: tensor.numpy() for name, tensor in weights(module).items()}
    depthwise = []
    for row in rows:
        gated = []
        for vector in row:
            both = eq.affine(w, "gated", eq.layer_norm(eq.under(w, "norm"), vector))
            gated.append(both[:D_MODEL] * eq.sigmoid(both[D_MODEL:]))
        for t in range(len(row)):
            near = [(i, t + i - 1) for i in range(3) if 0 <= t + i - 1 < len(row)]
            depthwise.append(w["depthwise.bias"] + sum(w["depthwise.weight"][:, 0, i] * gated[at] for i, at in near))
    mean, variance = np.mean(depthwise, 0), np.var(depthwise, 0, ddof=1)
    for name, right in (("mean", mean), ("var", variance)):
        moved = 0.9 * before[f"after.running_{name}"].numpy() + 0.1 * right
        np.testing.assert_allclose(w[f"after.running_{name}"], moved, atol=1e-12)


def test_one_vector_alone_trains_too() -> None:
    """It has no variance: batch norm then takes what it has gathered."""
    module = redrawn(ConvolutionModule(D_MODEL, 3, "batch", dropout=0.0)).train()
    x, _ = ragged([1], seed=3)
    found = module(x)
    assert torch.equal(found, module.eval()(x))
    assert isinstance(module.after, BatchNorm)
    empty, _ = ragged([0, 0], seed=3)
    assert module.train()(empty).shape == (0, D_MODEL)
    assert all(tensor.isfinite().all() for _, tensor in statistics(module))


# Stems


def subsample(w: Weights, frames: Array, halvings: int) -> list[Array]:
    """Kernels of 3 x 3 at every other moment and band, silence around, cut off below 0; then a dense layer."""
    x = frames[None]  # (channels, time, bands)
    for number in range(halvings):
        kernel, bias = w[f"convolutions.{number}.weight"], w[f"convolutions.{number}.bias"]
        y = np.zeros((len(kernel), -(-x.shape[1] // 2), -(-x.shape[2] // 2)))
        for o, t, band in np.ndindex(*y.shape):
            total = bias[o]
            for c, i, j in np.ndindex(len(x), 3, 3):
                at = 2 * t + i - 1, 2 * band + j - 1
                if 0 <= at[0] < x.shape[1] and 0 <= at[1] < x.shape[2]:
                    total += kernel[o, c, i, j] * x[c, at[0], at[1]]
            y[o, t, band] = max(total, 0.0)
        x = y
    return [eq.affine(w, "output", x[:, t].reshape(-1)) for t in range(x.shape[1])]


def listen(w: Weights, frames: Array, halvings: int) -> list[Array]:
    """Chan et al. 2016, eq. 3 to 5: both ways, and from the second layer on two states at a time."""
    xs = list(frames)
    for layer in range(halvings + 1):
        if layer:
            xs = [*xs, np.zeros_like(xs[0])] if len(xs) % 2 else xs
            xs = [np.concatenate(xs[i : i + 2]) for i in range(0, len(xs), 2)]
        ways = []
        for way, order in (("forwards", xs), ("backwards", xs[::-1])):
            own = {name.rpartition(".")[2]: tensor for name, tensor in eq.under(w, f"{way}.{layer}").items()}
            carry, states = eq.zeros("lstm", D_MODEL // 2), []
            for x in order:
                carry = eq.cell("lstm", own, x, carry)
                states.append(carry[0])
            ways.append(states if way == "forwards" else states[::-1])
        xs = [np.concatenate(pair) for pair in zip(*ways, strict=True)]
    return xs


STEMS: dict[str, tuple[type[Stem], LogMelSettings]] = {
    "log_mel": (LogMelStem, LogMelSettings(mels=5)),
    "subsampling-1": (SubsamplingStem, SubsamplingSettings(mels=5, channels=2, halvings=1)),
    "subsampling-2": (SubsamplingStem, SubsamplingSettings(mels=6, channels=2, halvings=2)),
    "subsampling-3": (SubsamplingStem, SubsamplingSettings(mels=5, channels=2, halvings=3)),
    "pyramid-1": (PyramidStem, PyramidSettings(mels=5, halvings=1)),
    "pyramid-3": (PyramidStem, PyramidSettings(mels=5, halvings=3)),
}


def stem_of(name: str, augmentation: nn.Module | None = None, **changes: Any) -> Any:
    kind, given = STEMS[name]
    elements = Elements(shape=(HOP,), augmentation=augmentation)
    return kind(given.model_copy(update=changes), elements, D_MODEL, 0.0)


@pytest.mark.parametrize("name", STEMS)
def test_a_stem_follows_its_equations(name: str) -> None:
    stem = stem_of(name)
    w, given = numbers(stem), STEMS[name][1]
    source = recordings([7, 1, 0, 4])
    frames = rows_of(stem.normalize(stem.log_mel(source)))
    for found, x in zip(rows_of(stem(source)), frames, strict=True):
        if not len(x):
            continue
        if isinstance(given, SubsamplingSettings):
            right = subsample(w, x.numpy(), given.halvings)
        elif isinstance(given, PyramidSettings):
            right = listen(w, x.numpy(), given.halvings)
        else:
            right = [eq.affine(w, "output", frame) for frame in x.numpy()]
        agree(found, right)


@pytest.mark.parametrize("name", STEMS)
def test_a_stem_makes_as_many_vectors_as_its_settings_say(name: str) -> None:
    stem, given = redrawn(stem_of(name)), STEMS[name][1]
    lengths = list(range(21))
    made = stem(recordings(lengths))
    assert isinstance(given, StemSettings)
    assert made.lengths.tolist() == made.known.tolist() == [given.vectors(length) for length in lengths]
    assert made.longest == given.vectors(20)
    assert made.values.shape == (sum(given.vectors(length) for length in lengths), D_MODEL)
    halvings = getattr(given, "halvings", 0)
    assert [given.vectors(n) for n in lengths] == [math.ceil(n / 2**halvings) for n in lengths]
    for none in ([], [0], [0, 0]):
        assert stem(recordings(none)).values.shape == (0, D_MODEL)
        assert stem(recordings(none)).lengths.tolist() == none


@pytest.mark.parametrize("name", STEMS)
def test_a_recording_is_read_alike_whatever_stands_beside_it(name: str) -> None:
    stem, lengths = redrawn(stem_of(name)), [3, 20, 0, 1, 8, 5]
    source = recordings(lengths)
    for found, alone in zip(rows_of(stem(source)), rows_of(source), strict=True):
        own = stem(Ragged.from_lengths(alone, [len(alone)])).values
        torch.testing.assert_close(found, own, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["log_mel", "subsampling-2", "pyramid-1"])
def test_frames_are_hidden_and_speeds_changed_in_training_alone(name: str) -> None:
    altered = AlteredSound(SoundAugmentation(speed=[0.8], frequency_masks=1, frequency_width=5, noise=1.0))
    stem, source = redrawn(stem_of(name, altered)), recordings([8, 0, 4])
    plain = stem(source)
    assert torch.equal(plain.values, redrawn(stem_of(name))(source).values)
    stem.train()
    torch.manual_seed(1)
    made = stem(source)
    given = STEMS[name][1]
    assert made.lengths.tolist() == [given.vectors(10), 0, given.vectors(5)]
    assert made.values.isfinite().all()
    torch.manual_seed(1)
    assert torch.equal(made.values, stem(source).values)
    assert not torch.equal(made.values, stem(source).values)


# Statistics on disk


@pytest.mark.parametrize("encoder", ["audio-log_mel-gru", "audio-subsampling-conformer"])
def test_statistics_are_saved_loaded_and_averaged_with_the_weights(encoder: str, tmp_path: Path) -> None:
    pair = (encoder, "gru-every")
    made = [redrawn(build(settings(pair), [Elements(shape=(HOP,))], TARGET_VOCABULARY, 50), seed) for seed in (1, 2)]
    own = [name for name, _ in statistics(made[0])]
    assert own
    assert all(name.endswith(("mean", "square", "seen", "running_var")) for name in own)
    for number, model in enumerate(made):
        save_tensors(tmp_path / f"{number}.safetensors", weights(model))
    expected = made[0](*batch_of(encoder)).values
    other = deepcopy(made[1])
    set_weights(other, load_tensors(tmp_path / "0.safetensors"), tmp_path)
    assert torch.equal(other(*batch_of(encoder)).values, expected)
    mean = average([tmp_path / "0.safetensors", tmp_path / "1.safetensors"])
    for name in own:
        both = [dict(statistics(model))[name] for model in made]
        torch.testing.assert_close(mean[name], (both[0] + both[1]) / 2)
    lacking = {name: tensor for name, tensor in weights(made[0]).items() if name != own[0]}
    with pytest.raises(ModelError, match=f"lacks {own[0]}"):
        set_weights(other, lacking, tmp_path)


# Settings


SPEECH: dict[str, Any] = {"source": {"kind": "audio"}}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            {"encoder": {"kind": "conformer", "kernel": 4}},
            "kernel (4) should be odd, so that it looks as far back as ahead; try 5",
        ),
        ({"d_model": 30, "encoder": {"kind": "conformer", "heads": 4}}, "d_model (30)"),
        ({"d_model": 12, "encoder": {"kind": "conformer", "heads": 4, "positions": "rotary"}}, "is 3"),
        ({"encoder": {"kind": "conformer", "normalize_convolution": "group"}}, "normalize_convolution"),
        ({"encoder": {"kind": "conformer", "stem": {"kind": "tokens"}}}, "stem"),
        ({"encoder": {"kind": "lstm", "stem": {"kind": "pyramid", "halvings": 0}}}, "halvings"),
        ({"encoder": {"kind": "lstm", "stem": {"kind": "pyramid"}}, "d_model": 15}, "d_model"),
        (
            {"encoder": {"kind": "stem", "stem": {"kind": "pyramid"}}, "d_model": 15},
            "a pyramid reads both ways and so needs an even d_model, not 15",
        ),
        (
            {"encoder": {"kind": "lstm", "stem": {"kind": "subsampling", "normalise": "none"}}},
            "did you mean 'normalize'?",
        ),
        (
            {"decoder": {"kind": "none"}},
            "model.decoder.kind none needs source.kind none (lines of text), not audio; or model.ctc: true",
        ),
        (
            {"encoder": {"kind": "none"}, "ctc": True, "decoder": {"kind": "transformer"}},
            "ctc reads off an encoder's states, but encoder.kind is none",
        ),
    ],
)
def test_models_that_cannot_be_are_named(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse({**SPEECH, "model": changes})
    assert what in str(error.value)


def test_a_stem_for_sound_reads_no_text() -> None:
    with pytest.raises(ConfigError, match="log_mel"):
        parse({"model": {"encoder": {"kind": "lstm", "stem": {"kind": "log_mel"}}}})
