"""What published networks have besides, against its equations, read anew in plain NumPy (`equations.py`)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from regard.data.modalities.sounds import mel_filters
from regard.decoder_settings import TransformerDecoderSettings
from regard.model_settings import ModelSettings
from regard.models.build import build, build_decoder
from regard.models.encoders import Memory
from regard.models.stems import Elements, Embedding
from regard.nn.attention import MultiHeadAttention
from regard.nn.blocks import FeedForward
from regard.nn.positions import SinusoidalHalves, T5Bias
from regard.nn.spectrogram import WhisperLogMel
from regard.ragged import Ragged
from regard.section import TargetSettings
from tests import equations as eq
from tests.conftest import D_MODEL, draw, redrawn
from tests.equations import Array
from tests.test_equations import agree, ragged, randomised, vectors


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_heads_of_any_width_without_biases_or_scale(causal: bool) -> None:
    """Raffel et al. 2020: `softmax(q kᵀ) v`, here with heads that are narrower than d_model / heads."""
    attention = MultiHeadAttention(D_MODEL, 2, causal=causal, d_head=3, bias=False, scaled=False)
    w = randomised(attention)
    assert {name: part.shape for name, part in w.items()} == {"inputs.weight": (18, 8), "output.weight": (8, 6)}
    x, xs = ragged([3, 1, 4], seed=3)
    memory, memories = (x, xs) if causal else ragged([2, 5, 1], seed=4)
    rows = zip(xs, memories, strict=True)
    agree(
        attention(x, memory).values,
        [y for a, b in rows for y in eq.multi_head(w, 2, a, b, causal=causal, scaled=False)],
    )


def test_the_bias_of_distances_has_its_own_buckets() -> None:
    relative = T5Bias(2, 8, 12, bidirectional=True)
    attention = MultiHeadAttention(D_MODEL, 2, relative=relative, d_head=5, bias=False, scaled=False)
    w = randomised(attention)
    x, (xs, _) = ragged([15, 2], seed=3)
    how = {"causal": False, "buckets": 8, "longest": 12, "clip": 0, "scaled": False}
    agree(attention(x).values[:15], eq.relative_attention("t5", w, 2, xs, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_by_way_of_tanh(gated: bool) -> None:
    part = FeedForward(D_MODEL, 12, "gelu_tanh", 0.0, gated=gated, bias=False)
    w, x = randomised(part), vectors(5, D_MODEL)
    assert not any(name.endswith("bias") for name in w)
    feed = eq.gated_feed_forward if gated else eq.feed_forward
    agree(part(x), [feed(w, row.numpy(), "gelu_tanh") for row in x])


def test_sines_then_cosines() -> None:
    found = SinusoidalHalves(D_MODEL).double()(torch.arange(9))
    wanted = [eq.sinusoid(t, D_MODEL) for t in range(9)]
    agree(found, [np.concatenate((row[0::2], row[1::2])) for row in wanted], 1e-6)


def test_tokens_segments_and_positions_are_summed_and_normed() -> None:
    """BERT (Devlin et al. 2019, fig. 2): `norm(E[w_t] + S[s_t] + P[t + first])`, nothing scaled; a segment ends with
    its separator, and what comes after the last is of the last."""
    part = {
        "kind": "transformer", "layers": 1, "heads": 2, "d_ff": 12, "norm": "post", "positions": "learned",
        "first_position": 2, "embedding_norm": True, "stem": {"kind": "tokens", "segments": 2},
    }  # fmt: skip
    settings = {"d_model": D_MODEL, "encoder": part, "decoder": {"kind": "none"}, "scale_embeddings": False}
    model = build(ModelSettings.model_validate(settings), [Elements(11, separator=3)], 11, 8)
    w = {name: x.detach().numpy() for name, x in redrawn(model).named_parameters()}
    assert w["encoder.positions.table.weight"].shape == (10, D_MODEL)
    rows = [[3, 5, 3, 6, 3, 7], [], [9, 8], [4, 3]]
    source = Ragged.from_lengths(torch.tensor([x for row in rows for x in row]), [len(row) for row in rows])
    encoder = model.encoder
    found = encoder.stem(source, encoder.positions, encoder.embedding_norm).values  # type: ignore[union-attr, operator]
    norm = eq.under(w, "encoder.embedding_norm")
    wanted = [
        eq.layer_norm(
            norm,
            w["encoder.stem.embedding.table.weight"][token]
            + w["encoder.stem.segments.weight"][min(row[:t].count(3), 1)]
            + w["encoder.positions.table.weight"][t + 2],
        )
        for row in rows
        for t, token in enumerate(row)
    ]
    agree(found, wanted)


def test_what_goes_to_a_tied_output_layer_is_scaled() -> None:
    parts = [TransformerDecoderSettings(layers=1, heads=2, d_ff=12, scale_output=scaled) for scaled in (False, True)]
    settings = [ModelSettings(d_model=D_MODEL, decoder=part) for part in parts]
    plain, scaled = (redrawn(build_decoder(one, Embedding(13, D_MODEL, 0.0), 8)) for one in settings)
    memory, tokens = Memory(Ragged.from_lengths(vectors(7, D_MODEL), [4, 3])), draw([3, 5], 13, 2)
    agree(scaled(tokens, memory).values * math.sqrt(D_MODEL), list(plain(tokens, memory).values.detach().numpy()))


def test_a_pooler_may_have_a_relu() -> None:
    part = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 12}
    given = {"d_model": D_MODEL, "encoder": part, "decoder": {"kind": "none"}, "pooler": "relu", "output_bias": False}
    model = redrawn(build(ModelSettings.model_validate(given), 11, 3, 8, TargetSettings(kind="label")))
    source, w = draw([3, 5], 11, 2), {name: x.detach().numpy() for name, x in model.named_parameters()}
    assert "head.linear.bias" not in w
    first = model.encode(source).states.values[[0, 3]].detach().numpy()
    wanted = [w["head.linear.weight"] @ np.maximum(eq.affine(w, "transform", row), 0.0) for row in first]
    one_each = Ragged.from_lengths(torch.zeros(2, dtype=torch.long), [1, 1])
    agree(model(source, one_each).values, wanted)


def test_whispers_frames_are_those_of_its_equation() -> None:
    """Radford et al. 2023, 2.2, one window at a time, by the sum that a Fourier transform is."""
    rate, mels, frames = 1600, 6, 9
    hop, size = rate // 100, rate // 40
    samples: Array = vectors(frames * hop).numpy()
    found = WhisperLogMel(rate, mels).double()(torch.from_numpy(samples)[None])[0]
    mirrored = np.concatenate((samples[size // 2 : 0 : -1], samples, samples[-2 : -2 - size // 2 : -1]))
    window = np.array([0.5 - 0.5 * math.cos(2 * math.pi * n / size) for n in range(size)])
    level = np.zeros((mels, frames))
    for t in range(frames):
        part = mirrored[t * hop : t * hop + size] * window
        turns = np.exp(-2j * np.pi * np.outer(np.arange(size // 2 + 1), np.arange(size)) / size)
        level[:, t] = np.log10(np.maximum(mel_filters(rate, size, mels) @ np.abs(turns @ part) ** 2, 1e-10))
    assert found.shape == (mels, frames)
    agree(found, list((np.maximum(level, level.max() - 8.0) + 4.0) / 4.0), 1e-6)
    quiet = WhisperLogMel(rate, mels)(torch.zeros(1, frames * hop))
    assert quiet.eq((math.log10(1e-10) + 4.0) / 4.0).all()


def test_settings_that_clash_are_told() -> None:
    part = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 12}
    for more, message in (
        ({"encoder": {**part, "first_position": 2}, "decoder": part}, "first_position is 2, for learned positions"),
        ({"encoder": {**part, "positions": "t5", "bucket_distance": 16}, "decoder": part}, "more than half of buckets"),
        (
            {"encoder": {**part, "width": 6}, "decoder": part, "share_embeddings": True},
            "encoder.width is for an encoder",
        ),
        ({"encoder": {**part, "width": 7}, "decoder": part}, r"d_model \(7\) is not divisible by encoder.heads \(2\)"),
        ({"encoder": {**part, "positions": "rotary", "d_head": 3}, "decoder": part}, "d_head must be even, not 3"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelSettings.model_validate({"d_model": D_MODEL, **more})
