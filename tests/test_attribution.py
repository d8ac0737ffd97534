"""What an output depends on by gradients and by leaving parts of the source out, in every kind of model."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import ConfigError
from regard.explain.trace import Explanation, Layer
from regard.inspection.attribution import GatedPair, attributed, faithfulness
from regard.inspection.explaining import explained
from regard.system import System
from regard.tasks.generating import TextGeneration
from tests.test_inspection import MODELS, picture, source_of, system

__all__ = ["picture"]
EVERY = pytest.mark.parametrize("name", MODELS)
TARGET = "BETA GAMMA ALPHA"


def gated(name: str, where: str) -> tuple[GatedPair, System, Explanation]:
    """A pair of a model in double precision."""
    made, source = system(name), source_of(name, where)
    task: TextGeneration = replace(made.task, model=deepcopy(made.task.model).double())  # type: ignore[assignment]
    target = f"{source} {TARGET}" if name == "text" else TARGET
    item, tokens = task.item(source), task.forced(source, target)
    explanation = explained(task, source, item, tokens)
    return GatedPair(task, item, tokens, explanation), System(task, made.folder), explanation


@EVERY
def test_with_all_gates_open_log_p_is_that_of_the_score(name: str, picture: str) -> None:
    pair, _, explanation = gated(name, picture)
    assert pair.own().tolist() == pytest.approx(explanation.log_probs, abs=1e-5)
    assert len(pair.own()) == len(explanation.target) == 4


@EVERY
def test_the_gradient_is_that_of_finite_differences(name: str, picture: str) -> None:
    pair, _, _ = gated(name, picture)
    found, little = pair.gradient(), 1e-4
    assert found.shape == (pair.tokens, pair.pieces)
    for place in {0, 1, pair.pieces - 1}:
        gates = pair.ones(2)
        gates[0, place], gates[1, place] = 1 + little, 1 - little
        up, down = pair.log_probs(gates).detach()
        coarse = 0.02 if name == "alone" else 1e-6  # CTC gives log p in single precision
        expected = ((up - down) / (2 * little)).to(found.dtype)
        torch.testing.assert_close(found[:, place], expected, atol=coarse, rtol=coarse)
    assert found.abs().max() > 1e-3


@EVERY
def test_erasure_is_what_is_lost_without_each_piece(name: str, picture: str) -> None:
    pair, _, _ = gated(name, picture)
    found = pair.erasure()
    for place in (0, pair.pieces - 1):
        gates = pair.ones(1)
        gates[0, place] = 0.0
        torch.testing.assert_close(found[:, place], pair.own() - pair.log_probs(gates)[0].detach())


def test_a_piece_that_is_left_out_is_as_if_its_vector_were_zeros() -> None:
    pair, made, explanation = gated("recurrent", "")
    model: Any = made.task.model
    with torch.no_grad():
        model.encoder.stem.embedding.table.weight[made.task.target.encode("beta")] = 0.0
    place = explanation.source.index("beta")
    zeroed = made.score(["alpha beta gamma"], [TARGET])[0].tokens
    assert pair.without(torch.arange(pair.pieces)[None] == place)[0].tolist() == pytest.approx(zeroed, abs=1e-5)


@EVERY
def test_methods_are_layers_of_the_explanation(name: str, picture: str) -> None:
    made, source = system(name), source_of(name, picture)
    target = f"{source} {TARGET}" if name == "text" else TARGET
    plain = made.explain(source, target)
    found = made.explain(source, target, methods=("erasure", "gradient"))
    assert [layer.name for layer in found.layers] == [*(x.name for x in plain.layers), "erasure", "gradient"]
    assert found.best == "erasure"
    assert plain.faithfulness == {}
    over_source = {layer.name for layer in plain.layers if layer.kind == "cross"}
    assert set(found.faithfulness) == {*over_source, "erasure", "gradient", "random"}
    for layer in found.layers[-2:]:
        assert layer.weights.shape == (1, len(found.target), len(found.source))
        assert (layer.weights >= 0).all()
        sums = layer.weights.sum(-1)
        np.testing.assert_allclose(sums[sums > 0], 1.0, atol=1e-5)
    again = Explanation.from_json(found.to_json())
    assert again.faithfulness == pytest.approx(found.faithfulness, abs=1e-5)
    assert made.explain(source, target).log_probs == plain.log_probs  # the model itself has no gates


def test_gradients_are_taken_where_the_caller_takes_none() -> None:
    made = system("transformer")
    expected = made.explain("alpha beta", TARGET, methods=["gradient"]).weights("gradient")
    with torch.inference_mode():
        found = made.explain("alpha beta", TARGET, methods=["gradient"]).weights("gradient")
    np.testing.assert_array_equal(found, expected)


def test_faithful_is_what_points_at_what_matters() -> None:
    """Of what each token depends on most, or least, by erasure."""
    pair, _, _ = gated("transformer", "")
    erased = pair.erasure().float().numpy()
    first, last = (Layer(name, "cross", weights[None]) for name, weights in (("most", erased), ("least", -erased)))
    found = faithfulness(pair, [first, last])
    assert set(found) == {"most", "least", "random"}
    assert found["most"] == pytest.approx(float(erased.max(1).mean()), abs=1e-5)  # a fifth of four pieces is one
    assert found["least"] == pytest.approx(float(erased.min(1).mean()), abs=1e-5)
    assert found["least"] < found["random"] < found["most"]


def test_an_unknown_method_and_a_model_without_a_reader_of_its_own_are_refused() -> None:
    made = system("transformer")
    explanation = made.explain("alpha", "BETA")
    with pytest.raises(ConfigError, match="no method 'magic'; there are: gradient, erasure"):
        attributed(made.task, [], [], explanation, ["magic"])  # type: ignore[list-item]
