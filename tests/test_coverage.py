"""The doubly stochastic penalty (Xu et al. 2015, eq. 14), from the weights that `capture` sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.models.model import EncoderDecoder
from regard.nn.attention import Attention, capture
from regard.nn.coverage import looking
from regard.training.objectives import Likelihood
from regard.training_settings import ObjectiveSettings
from tests.conftest import batch_of, tiny

DECODERS = (
    "lstm-additive-recurrence", "gru-dot-feeding", "rnn-bilinear-output", "lstm-additive-recurrence-heads2",
    "lstm-additive-recurrence-gate",
)  # fmt: skip


def loss_of(model: EncoderDecoder, batch: Batch, weight: float) -> Tensor:
    return Likelihood(model, ObjectiveSettings(doubly_stochastic=weight))(batch, 0.0)


def penalty(model: EncoderDecoder, batch: Batch) -> Tensor:
    with looking(model) as looked:
        model.states(batch.source, batch.inputs)
    return looked.penalty(batch.inputs)


def batch(encoder: str) -> Batch:
    source, inputs = batch_of(encoder)
    return Batch(source, inputs, inputs.like(inputs.values.roll(1)))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("encoder", ["image-stem", "gru-uni"])
def test_the_penalty_is_that_of_the_equation(encoder: str, decoder: str) -> None:
    """Summed over captions: `λ Σ_i (1 - Σ_t α_ti)²`, places that are not there and steps after the end left out."""
    model, some = tiny((encoder, decoder)), batch(encoder)
    with torch.no_grad():
        plain, found = loss_of(model, some, 0.0), loss_of(model, some, 1.5)
        with capture(model) as trace:
            states = model.states(some.source, some.inputs)
    lengths = model.encode(some.source).states.lengths.tolist()
    expected = 0.0
    for row, (places, steps) in enumerate(zip(lengths, some.inputs.lengths.tolist(), strict=True)):
        alpha = trace.weights("decoder.attention", row)[:, :steps, :places].mean(0).double().numpy()
        expected += 1.5 * float(np.square(1.0 - alpha.sum(0)).sum())
    assert float(found - plain) == pytest.approx(expected, rel=1e-5)
    assert torch.equal(states.values, model.states(some.source, some.inputs).values)
    assert all(module.looked is None for module in model.modules() if isinstance(module, Attention))


@pytest.mark.parametrize("decoder", ["lstm-additive-recurrence", "gru-dot-feeding"])
def test_its_gradient_is_that_of_small_steps(decoder: str) -> None:
    """Also of matrices whose gradient is taken after the last step of the loop."""
    model, some = tiny(("image-stem", decoder), seed=7), batch("image-stem")
    weights = [model.encoder.stem.norm.weight, model.decoder.recurrence.layers[0].weight_hh_l0]  # type: ignore[attr-defined, union-attr]
    gradients = torch.autograd.grad(penalty(model, some), weights)
    for weight, gradient in zip(weights, gradients, strict=True):
        direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        sides = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                weight.add_(step * direction)
                sides.append(float(penalty(model, some)))
                weight.sub_(step * direction)
        slope = (sides[0] - sides[1]) / 2e-5
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-4, abs=1e-6)
        assert abs(slope) > 1e-4
