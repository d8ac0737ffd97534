"""Models laid out for decoding: the same outputs in full precision, near ones in less."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.decoding import changed, for_decoding
from regard.models.model import EncoderDecoder
from regard.nn.linear import Linear, Packed, Quantised
from regard.ragged import Ragged
from regard.search.ensemble import Ensemble
from tests.conftest import SOURCE_VOCABULARY, TARGET_VOCABULARY, Pair, tiny

PAIRS: list[Pair] = [
    ("transformer-post-learned", "transformer-post-learned"),
    ("transformer-pre-sinusoidal", "transformer-rotary"),
    ("transformer-shaw", "transformer-t5"),
    ("lstm-bi", "lstm-additive-feeding"),
    ("gru-uni", "gru-bilinear-output"),
]
EXACT = {"float32": 1e-5, "bfloat16": 0.2, "int8": 0.2}


def single(pair: Pair) -> EncoderDecoder:
    """One of the tests' models in single precision."""
    return copy.deepcopy(tiny(pair)).float()


def stepped(model: EncoderDecoder | Ensemble) -> Tensor:
    """Log-probabilities `(steps, rows, vocabulary)` of three steps."""
    generator = torch.Generator().manual_seed(2)
    source = Ragged.of([torch.randint(SOURCE_VOCABULARY, (n,), generator=generator).tolist() for n in (3, 1, 4)])
    found = []
    with torch.inference_mode():
        state: Any = model.start(source)
        for _ in range(3):
            log_probs, state = model.step(torch.randint(TARGET_VOCABULARY, (3,), generator=generator), state)
            found.append(log_probs)
    return torch.stack(found)


@pytest.mark.parametrize("precision", EXACT)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_copy_for_decoding_says_the_same(pair: Pair, precision: str) -> None:
    model = single(pair)
    expected, found = stepped(model), stepped(for_decoding(model, precision))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=EXACT[precision], rtol=EXACT[precision])
    assert (found != expected).any() or precision == "float32"
    torch.testing.assert_close(stepped(model), expected, rtol=0, atol=0)  # the model itself is as it was


def test_a_copy_is_made_once_and_anew_for_new_weights() -> None:
    model = single(PAIRS[0])
    first = for_decoding(model, "float32")
    assert for_decoding(model, "float32") is first
    with torch.no_grad():
        model.head.linear.bias.add_(torch.arange(TARGET_VOCABULARY))
    second = for_decoding(model, "float32")
    assert second is not first
    torch.testing.assert_close(stepped(second), stepped(model))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_model_of_another_precision_is_copied_too(dtype: torch.dtype) -> None:
    model = copy.deepcopy(tiny(PAIRS[0])).to(dtype)
    torch.testing.assert_close(stepped(for_decoding(model, "float32")), stepped(model))


def test_an_ensemble_is_laid_out_as_well() -> None:
    model = Ensemble([single(PAIRS[0]), single(PAIRS[3])])
    torch.testing.assert_close(stepped(for_decoding(model, "float32")), stepped(model))


def test_frequencies_keep_their_digits() -> None:
    copied = for_decoding(single(PAIRS[1]), "bfloat16")
    buffers = dict(copied.named_buffers())
    assert buffers["encoder.positions.frequencies"].dtype == torch.float32
    assert copied.encoder.stem.embedding.table.weight.dtype == torch.bfloat16  # type: ignore[union-attr]


def test_a_gpu_takes_no_eight_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = single(PAIRS[0])
    parameter = next(model.parameters())
    monkeypatch.setattr(type(parameter), "is_cuda", True, raising=False)
    with pytest.raises(ConfigError, match="int8 is for CPUs; on a GPU use bfloat16"):
        for_decoding(model, "int8")


def test_on_a_gpu_a_copy_in_full_precision_shares_the_weights_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = single(PAIRS[0]).train()
    monkeypatch.setattr(type(next(model.parameters())), "is_cuda", True, raising=False)
    copied = for_decoding(model, "float32")
    assert not copied.training
    assert model.training
    assert all(a is b for a, b in zip(copied.parameters(), model.parameters(), strict=True))
    with torch.no_grad():
        model.head.linear.bias.add_(1.0)
    half = for_decoding(model, "bfloat16")
    changed(model)
    assert for_decoding(model, "float32") is copied
    assert for_decoding(model, "bfloat16") is not half


@pytest.mark.parametrize("kind", [Packed, Quantised])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers(kind: type[Packed | Quantised], bias: bool) -> None:
    torch.manual_seed(1)
    linear = Linear(24, 40, bias=bias)
    nn.init.normal_(linear.weight)
    linear.requires_grad_(False)
    other = cast(Packed, kind(linear))
    x = torch.randn(2, 3, 24)
    bound = 1e-5 if kind is Packed else 0.03 * float(linear(x).abs().max())
    assert (other(x) - linear(x)).abs().max() < bound
    assert other(x).shape == (2, 3, 40)
    assert (other.part(x, 8, 31) - linear.part(x, 8, 31)).abs().max() < bound
    torch.testing.assert_close(linear.part(x, 8, 31), linear(x)[..., 8:31])
    assert other(torch.zeros(0, 24)).shape == (0, 40)
