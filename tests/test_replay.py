"""Searches whose turns are recorded and replayed give what they give turn by turn.

On a CPU a recording runs its function anew each time, on tensors of its own, as a replay on a GPU does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.models.model import Writer
from regard.ragged import Ragged
from regard.search import beam
from regard.search.beam import beam_search
from regard.search.choice import likeliest_by_parts
from regard.search.ensemble import Ensemble
from regard.search.limits import Hypothesis, Limits
from regard.search.replay import Recorder, Recording, cloned, few, plain, tensors, upward
from tests.conftest import LONGEST, SOURCE_VOCABULARY, Pair, tiny

PAIRS: list[Pair] = [
    ("transformer-post-learned", "transformer-post-learned"),
    ("transformer-pre-sinusoidal", "transformer-rotary"),
    ("transformer-shaw", "transformer-t5"),
    ("lstm-bi", "lstm-additive-feeding"),
    ("gru-uni", "gru-last"),
]


def found(model: Writer, sources: int, **options: Any) -> list[list[Hypothesis]]:
    """What a search finds for sources of lengths that differ, with limits that do."""
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(SOURCE_VOCABULARY, (1 + i % 4,), generator=generator).tolist() for i in range(sources)]
    longest = torch.tensor([1 + i * 5 % (LONGEST - 1) for i in range(sources)])
    prefix = options.pop("prefix", None)
    limits = Limits(longest, 1, 2, forbidden=(0, 1), prefix=prefix, **options.pop("rules", {}))
    with torch.inference_mode():
        return beam_search(model.step, model.start(Ragged.of(rows)), limits=limits, **options)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Every search is replayed, in small windows, so that it outgrows them; the recordings it made."""
    recorder = Recorder()
    monkeypatch.setattr(beam, "records", lambda device: True)
    monkeypatch.setattr(beam, "recorded", recorder)
    monkeypatch.setattr(beam, "WINDOW", 3)
    monkeypatch.setattr(beam, "LOOK", 2)
    return recorder


def same(one: list[list[Hypothesis]], other: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in row] for row in one] == [[h.tokens for h in row] for row in other]
    for a, b in zip((h for row in one for h in row), (h for row in other for h in row), strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-5)
        assert a.log_prob == pytest.approx(b.log_prob, abs=1e-5)


OPTIONS: list[dict[str, Any]] = [
    {"width": 1},
    {"width": 3, "nbest": 3, "penalty": "average"},
    {"width": 4, "nbest": 2, "penalty": "gnmt", "alpha": 0.6, "rules": {"shortest": 2, "no_repeat": 1}},
    {"width": 2, "exact": True, "penalty": "average", "rules": {"no_repeat": 2}},
    {"width": 2, "prefix": [[i % 5 + 3] if i % 2 and i * 5 % 7 else [] for i in range(11)]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_replayed_search_finds_the_same(pair: Pair, options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    model = tiny(pair)
    turn_by_turn = found(model, 11, **options)
    recorder: Recorder = request.getfixturevalue("replayed")
    for _ in range(2):  # the second time from what was recorded
        same(found(model, 11, **options), turn_by_turn)
    assert len({tuple(row[0].tokens) for row in turn_by_turn}) > 2
    assert len(recorder.of(model)) > 1  # some sources were over long before others


def test_an_ensemble_is_replayed(request: pytest.FixtureRequest) -> None:
    model = Ensemble([tiny(PAIRS[0]), tiny(PAIRS[3])])
    turn_by_turn = found(model, 5, width=3)
    request.getfixturevalue("replayed")
    same(found(model, 5, width=3), turn_by_turn)


@dataclass(frozen=True)
class Tree:
    values: Tensor
    more: tuple[Tensor | None, int]


def test_a_recording_goes_on_from_what_it_is_given() -> None:
    def function(tree: Tree) -> Tree:
        assert tree.more[0] is not None
        tree.more[0].add_(1)  # in place
        return Tree(tree.values * 2, tree.more)

    tree = Tree(torch.tensor([1, 2]), (torch.zeros(()), 5))
    recording = Recording(function, tree)
    assert [x.tolist() for x in tensors(recording())] == [[2, 4], 1.0]
    assert [x.tolist() for x in tensors(recording())] == [[4, 8], 2.0]
    assert [x.tolist() for x in tensors(tree)] == [[1, 2], 0.0]
    recording.take(tree)
    assert [x.tolist() for x in tensors(recording())] == [[2, 4], 1.0]


def test_trees_of_one_shape_share_a_recording() -> None:
    tree = Tree(torch.zeros(2), (None, 5))
    assert plain(tree) == plain(cloned(tree))
    hash(plain(tree))
    for other in (Tree(torch.zeros(3), (None, 5)), Tree(torch.zeros(2), (None, 6)), Tree(tree.values.int(), (None, 5))):
        assert plain(other) != plain(tree)


def test_sizes() -> None:
    assert [few(n) for n in (1, 2, 7, 8, 9, 11, 16, 17, 33, 64, 65, 500)] == [
        1, 2, 7, 8, 10, 12, 16, 20, 40, 64, 80, 512,
    ]  # fmt: skip
    assert all(n <= few(n) <= n * 1.25 + 0.75 for n in range(1, 3000))
    assert [upward(n, 32) for n in (1, 32, 33)] == [32, 32, 64]


@pytest.mark.parametrize("size", [4, 5, 128])
@pytest.mark.parametrize("vocabulary", [7, 8, 300])
def test_the_likeliest_by_parts(vocabulary: int, size: int) -> None:
    log_probs = torch.rand(3, 2, vocabulary, generator=torch.Generator().manual_seed(1))
    log_probs[0, 0, 3:] = -torch.inf
    best, place = likeliest_by_parts(log_probs, 6, size)
    expected = log_probs.topk(6, dim=-1)
    assert torch.equal(best, expected.values)
    known = best > -torch.inf
    assert torch.equal(log_probs.gather(-1, place)[known], best[known])
    assert (place < vocabulary).all()
