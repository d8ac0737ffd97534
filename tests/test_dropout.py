"""Dropout on a CPU: how much is dropped, what becomes of the rest, and that a seed decides."""

from __future__ import annotations

import math

import pytest
import torch

from regard.nn.dropout import Dropout, drawn


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_the_mean_stays(p: float) -> None:
    torch.manual_seed(1)
    x = torch.full((301, 1001), 2.0, requires_grad=True)
    y = Dropout(p)(x)
    share, spread = float((y == 0).double().mean()), math.sqrt(p * (1 - p) / x.numel())
    assert abs(share - p) < 5 * spread + 1e-5
    kept = y.detach()[y.detach() != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 2.0 / (1 - p)), rtol=1e-3, atol=0)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, y.detach() / 2.0)


def test_places_are_dropped_independently() -> None:
    torch.manual_seed(1)
    mask = drawn(400_000, 65536 // 2).double() - 0.5
    for shift in (1, 2, 3, 4, 5, 64):
        assert abs(float((mask[shift:] * mask[:-shift]).mean())) < 5 * 0.25 / math.sqrt(len(mask))


def test_a_seed_decides() -> None:
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        dropout = Dropout(0.5)
        found.append([dropout(torch.ones(7, 3)), dropout(torch.ones(7, 3))])
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[0][1])
    assert not torch.equal(found[0][0], found[2][0])


def test_without_training_nothing_is_dropped() -> None:
    x = torch.randn(5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert Dropout(1.0)(x).eq(0).all()
    assert Dropout(0.5)(x.bfloat16()).dtype == torch.bfloat16
    assert Dropout(0.5)(torch.zeros(0, 4)).shape == (0, 4)
