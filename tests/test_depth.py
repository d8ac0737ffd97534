"""Stochastic depth (Huang et al. 2016): sublayers that are left out of whole sequences while a model trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.model_settings import ModelSettings
from regard.models.build import build
from regard.nn.blocks import DecoderBlock, EncoderBlock, StochasticDepth, run_blocks
from regard.ragged import Ragged
from tests.conftest import redrawn

LENGTHS = [3, 1, 4]


def model_with(**options: float) -> Any:
    """A Transformer encoder-decoder in float64, both of its parts with these settings."""
    part = {"kind": "transformer", "layers": 2, "heads": 2, "d_ff": 8, **options}
    settings = ModelSettings.model_validate({"d_model": 8, "dropout": 0.0, "encoder": part, "decoder": part})
    return redrawn(build(settings, 9, 9, longest=16))


def texts(width: int = 8) -> Ragged:
    torch.manual_seed(2)
    return Ragged.from_lengths(torch.randn(sum(LENGTHS), width, dtype=torch.float64), LENGTHS)


def encoder_blocks(norm: str, count: int = 2) -> list[EncoderBlock]:
    torch.manual_seed(3)
    return [EncoderBlock(8, 2, 16, norm=norm, activation="gelu", dropout=0.0).double() for _ in range(count)]


def test_sublayers_are_left_out_as_often_as_the_equation_says() -> None:
    """Eq. 4 with `p = 1 - p_L`: `p_l = p l / L`; a whole sequence at once, and each sublayer by itself."""
    depth = StochasticDepth(0.6, 3, 2)
    x = Ragged.from_lengths(torch.zeros(8000, 1), [2] * 4000)
    torch.manual_seed(1)
    found = depth(x)
    for number, factors in enumerate(found, 1):
        assert factors is not None
        assert factors.shape == (2, 8000, 1)
        share = 0.6 * number / 3
        rows = factors[:, :, 0].unflatten(1, (4000, 2))
        assert torch.equal(rows[:, :, 0], rows[:, :, 1])
        dropped = rows[:, :, 0] == 0
        assert torch.allclose(rows[:, :, 0][~dropped], torch.tensor(1 / (1 - share)))
        assert dropped.double().mean(1).tolist() == pytest.approx([share] * 2, abs=0.03)
        both = (dropped[0] & dropped[1]).double().mean()
        assert float(both) == pytest.approx(share**2, abs=0.03)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_stack_in_training_is_that_of_the_equation(norm: str) -> None:
    """`x + b f(norm(x)) / (1 - p_l)`, or `norm(x + b f(x) / (1 - p_l))`, one sublayer after the other."""
    blocks, x, depth = encoder_blocks(norm), texts(), StochasticDepth(0.5, 2, 2)
    torch.manual_seed(5)
    expected = x.values
    drawn = depth(x)
    assert {0.0} < {float(value) for each in drawn for value in each.flatten()}
    for block, factors in zip(blocks, drawn, strict=True):
        assert factors is not None

        def attend(y: Tensor, block: EncoderBlock = block) -> Tensor:
            return block.self_attention(x.like(y)).values

        for around, f, factor in (
            (block.around_attention, attend, factors[0]),
            (block.around_feed_forward, block.feed_forward, factors[1]),
        ):
            if norm == "pre":
                expected = expected + factor * f(around.norm(expected))
            else:
                expected = around.norm(expected + factor * f(expected))
    torch.manual_seed(5)
    assert torch.allclose(run_blocks(blocks, x, depth=depth).values, expected, rtol=0, atol=1e-6)


def test_a_decoder_has_it_for_each_of_its_three_parts() -> None:
    torch.manual_seed(3)
    block = DecoderBlock(8, 2, 16, norm="pre", activation="relu", dropout=0.0).double()
    x, memory, depth = texts(), texts(), StochasticDepth(0.5, 1, block.sublayers)
    found = set()
    for seed in range(20):
        torch.manual_seed(seed)
        factors = depth(x)[0]
        assert factors is not None
        torch.manual_seed(seed)
        y = run_blocks([block], x, memory, depth=depth).values
        untouched = (factors == 0).all(0).squeeze(-1)
        assert torch.equal(y[untouched], x.values[untouched])
        assert not torch.isclose(y[~untouched], x.values[~untouched]).all(1).any()
        found.add(tuple((factors[:, 0, 0] > 0).tolist()))
    assert len(found) > 4  # of eight ways


def test_in_use_nothing_is_left_out_and_nothing_drawn() -> None:
    plain, thin = model_with(), model_with(stochastic_depth=0.5)
    source, target = Ragged.of([[4, 5, 6], [7]]), Ragged.of([[1, 4], [1, 5, 6]])

    def states(model: Any) -> Tensor:
        found: Tensor = model.decoder(target, model.encoder(source)).values
        return found

    before = torch.get_rng_state()
    expected = states(plain)
    assert torch.equal(states(thin), expected)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert not torch.equal(states(thin.train()), expected)
