"""Output layers that compute a part of a vocabulary: adaptive softmax against torch's own and its equation, sampled
softmax against its equation; models with either write, score and are resumed like others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import regard
from regard.config import merge
from regard.data.marks import BOS
from regard.errors import ConfigError
from regard.model_settings import ModelSettings
from regard.models.build import build
from regard.models.model import DecoderOnly
from regard.nn.adaptive import AdaptiveHead, log_included, log_uniform, sampled_loss, unigram
from regard.ragged import Ragged
from regard.training.checkpoint import WEIGHTS, load_tensors
from regard.training.losses import output_loss

D_MODEL, VOCABULARY, CUTOFFS = 16, 20, [5, 11]


def adaptive(counts: torch.Tensor | None = None) -> AdaptiveHead:
    torch.manual_seed(0)
    head = AdaptiveHead(D_MODEL, VOCABULARY, CUTOFFS, 4.0).double()
    if counts is not None:
        head.rank(counts)
    return head


def states(count: int) -> torch.Tensor:
    return torch.randn(count, D_MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("ranked", [False, True])
def test_an_adaptive_softmax_is_that_of_torch(ranked: bool) -> None:
    counts = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(2)) if ranked else None
    head = adaptive(counts)
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(D_MODEL, VOCABULARY, CUTOFFS, div_value=4.0).double()
    with torch.no_grad():
        theirs.head.weight.copy_(head.first.weight)
        for own, number in zip(head.tails, range(2), strict=True):
            theirs.get_submodule(f"tail.{number}.0").weight.copy_(own.narrow.weight)  # type: ignore[operator]
            theirs.get_submodule(f"tail.{number}.1").weight.copy_(own.wide.weight)  # type: ignore[operator]
    x = states(30).requires_grad_(True)
    rank = head.ranks
    log_p = head(x)
    torch.testing.assert_close(log_p, theirs.log_prob(x)[:, rank])
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(30, dtype=torch.float64))
    targets = torch.arange(30) % VOCABULARY
    loss, expected = output_loss(head, x, targets), theirs(x, rank[targets]).loss * 30
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(loss, -log_p.gather(1, targets[:, None]).sum())
    (ours,), (right,) = (torch.autograd.grad(y, x, retain_graph=True) for y in (loss, expected))
    torch.testing.assert_close(ours, right)
    ignored = torch.where(torch.arange(30) < 10, targets, -100)
    torch.testing.assert_close(output_loss(head, x, ignored), output_loss(head, x[:10], targets[:10]))
    if counts is not None:
        assert rank[counts.argmax()] == 0
        assert head.order[0] == counts.argmax()


def test_a_token_of_a_cluster_is_predicted_in_two_steps() -> None:
    head, x = adaptive(), states(1)
    first = np.exp(x[0].numpy() @ head.first.weight.detach().numpy().T)
    first /= first.sum()
    narrow, wide = (layer.weight.detach().numpy() for layer in (head.tails[1].narrow, head.tails[1].wide))
    inside = np.exp(wide @ (narrow @ x[0].numpy()))
    inside /= inside.sum()
    log_p = head(x).detach()[0].numpy()
    np.testing.assert_allclose(log_p[:5], np.log(first[:5]))
    np.testing.assert_allclose(log_p[11:], np.log(first[6] * inside))


def test_sampled_softmax_by_its_equation() -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(VOCABULARY, D_MODEL, dtype=torch.float64, generator=generator)
    bias = torch.randn(VOCABULARY, dtype=torch.float64, generator=generator)
    x, targets, drawn = states(4), torch.tensor([3, 0, 7, -100]), torch.tensor([7, 2, 11, 0])
    counts = torch.arange(VOCABULARY, 0, -1)
    log_q = log_uniform(counts).double()
    expected = 0.0
    for row, y in enumerate([3, 0, 7]):
        score = [float(weight[k] @ x[row] + bias[k] - log_q[k]) for k in (y, *(k for k in drawn.tolist() if k != y))]
        expected -= score[0] - math.log(math.fsum(map(math.exp, score)))
    assert float(sampled_loss(x, weight, bias, targets, log_q, drawn)) == pytest.approx(expected, rel=1e-12)
    assert float(log_q.exp().sum()) == pytest.approx(1.0, abs=1e-6)
    assert float(unigram(counts).exp().sum()) == pytest.approx(1.0, abs=1e-6)
    assert float(log_uniform(counts.flip(0))[-1]) == pytest.approx(math.log(math.log(2) / math.log(VOCABULARY + 1)))


def test_where_all_tokens_are_drawn_it_is_the_whole_softmax() -> None:
    weight = torch.randn(VOCABULARY, D_MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x, targets = states(4).requires_grad_(True), torch.tensor([3, 0, 7, 19])
    log_q = log_included(unigram(torch.ones(VOCABULARY)).double(), 10_000)
    drawn = torch.arange(VOCABULARY)
    (ours,) = torch.autograd.grad(sampled_loss(x, weight, None, targets, log_q, drawn), x)
    (right,) = torch.autograd.grad(cross_entropy(x @ weight.T, targets, reduction="sum"), x)
    torch.testing.assert_close(ours, right)
    q = log_uniform(torch.arange(VOCABULARY)).double()
    torch.testing.assert_close(log_included(q, 3).exp(), 1 - (1 - q.exp()) ** 3)


SMALL: dict[str, Any] = {"d_model": 16, "dropout": 0.0, "tie_output": False, "output": "adaptive", "cutoffs": [4, 8]}
BODY = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 16}


@pytest.mark.parametrize("kind", [BODY, {"kind": "lstm"}], ids=["transformer", "lstm"])
def test_steps_of_a_language_model_are_those_of_the_whole_text(kind: dict[str, Any]) -> None:
    torch.manual_seed(0)
    settings = ModelSettings.model_validate({**SMALL, "encoder": {"kind": "none"}, "decoder": kind})
    model = build(settings, 20, 20, longest=16).double().eval()
    assert isinstance(model, DecoderOnly)
    text = Ragged.of([[BOS, 7, 12, 9]])
    full = model(Ragged.of([[]]), text).values
    state = model.decoder.alone(1)
    for place, token in enumerate([BOS, 7, 12, 9]):
        log_p, state = model.step(torch.tensor([token]), state)
        torch.testing.assert_close(log_p[0].double(), full[place], rtol=1e-5, atol=1e-6)


def config(folder: Path, name: str, **more: Any) -> regard.Config:
    folder.mkdir(exist_ok=True)
    words = [f"w{i}" for i in range(30)]
    draw = np.random.default_rng(0)
    for split, count in (("train", 200), ("valid", 20)):
        lines = [" ".join(words[min(int(draw.zipf(1.3)), 30) - 1] for _ in range(6)) for _ in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    settings = {
        "run": str(folder / name), "data": {x: str(folder / f"{x}.txt") for x in ("train", "valid")},
        "source": "none", "tokens": {"kind": "char"},
        "model": {"d_model": 16, "encoder": {"kind": "none"}, "decoder": BODY},
        "training": {"steps": 6, "batch_tokens": 400, "learning_rate": 3e-3, "warmup": 2, "validate_every": 3,
                     "save_every": 3, "tensorboard": False, "device": "cpu", "schedule": "constant"},
    }  # fmt: skip
    return regard.Config.parse(merge(settings, more))


CHEAPER: dict[str, dict[str, Any]] = {
    "adaptive": {"model": {"output": "adaptive", "tie_output": False, "cutoffs": [6, 10]}},
    "sampled": {"training": {"objective": {"sampled": 8}, "precision": "bfloat16"}},
    "unigram": {"training": {"objective": {"sampled": 8, "proposal": "unigram"}}},
}


@pytest.mark.parametrize("kind", ["adaptive", "sampled"])
def test_a_cheaper_output_layer_is_resumed_and_used_like_any(kind: str, tmp_path: Path) -> None:
    whole = regard.train(config(tmp_path, "whole", **CHEAPER[kind]))
    half = merge(CHEAPER[kind], {"training": {"steps": 3}})
    regard.train(config(tmp_path, "part", **half))
    part = regard.train(config(tmp_path, "part", **CHEAPER[kind]))
    one, other = (load_tensors(x.folder / WEIGHTS) for x in (whole, part))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    again = regard.load(part.folder, device="cpu")
    (found,) = again.outputs(["w1"], beam=3, max_length=8)
    assert found[0].text == whole.outputs(["w1"], beam=3, max_length=8)[0][0].text
    text = "w1 w2 w3"
    total = again.score([text])[0].log_prob
    assert total == pytest.approx(part.score([text])[0].log_prob, abs=1e-4)
    assert math.fsum(x for line in again.stream([text]) for x in line) == pytest.approx(total, abs=1e-3)
    if kind == "adaptive":  # what is frequent stands first, and in the weights
        order = one["head.order"].long().tolist()
        assert order != sorted(order)
        symbols = again.tokenizers["tokens"].pieces(order[:3])
        assert set(symbols) <= {"w", "1", "2", "▁", "</s>"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"output": "adaptive"}}, "set tie_output: false"),
        ({"model": {"cutoffs": [3]}}, "cutoffs ([3]) are for output: adaptive"),
        ({"model": {"output": "adaptive", "tie_output": False, "cutoffs": [8, 3]}}, "rise from one to the next"),
        ({"training": {"objective": {"sampled": 5, "agreement": 1.0}}}, "agreement compares softmaxes over all tokens"),
        ({"training": {"objective": {"sampled": 5, "kind": "minimum_risk"}}}, "sampled is for model.output full"),
        ({"target": "label", "model": {"decoder": "none"}, "training": {"objective": {"sampled": 5}}},
         "sampled is for many tokens that are written; target.kind is 'label'"),
    ],
)  # fmt: skip
def test_settings_that_clash_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        regard.Config.parse(settings)
    assert message in str(error.value)


def test_clusters_without_tokens_and_exports_are_refused(tmp_path: Path) -> None:
    settings = ModelSettings.model_validate({**SMALL, "encoder": {"kind": "none"}, "decoder": BODY, "cutoffs": [4, 50]})
    with pytest.raises(ConfigError, match="cutoffs ends at 50, and there are 20 tokens"):
        build(settings, 20, 20, longest=16)
