"""Searches whose turns are recorded and replayed give what they give turn by turn.

On a CPU a recording runs its function anew each time, on tensors of its own, as a replay on a GPU does.
"""

from __future__ import annotations

import gc
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

from regard.models.model import AutoregressiveModel
from regard.nn import graphs as graphs_module
from regard.nn.attention import takes_filled
from regard.nn.graphs import Graphs, Recording, cloned, copy_into, signature, tensors
from regard.ragged import Ragged, bucket, round_up
from regard.search import beam
from regard.search.beam import _Turn, beam_search
from regard.search.board import Board
from regard.search.choice import Chooser, likeliest_by_parts
from regard.search.ensemble import Ensemble
from regard.search.limits import Hypothesis, Limits
from regard.search.stepper import LazyStart
from tests.conftest import FULL, LONGEST, SOURCE_VOCABULARY, Pair, tiny

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where the kernels run
PAIRS: list[Pair] = [
    ("transformer-post-learned", "transformer-post-learned"),
    ("transformer-pre-sinusoidal", "transformer-rotary"),
    ("transformer-shaw", "transformer-t5"),
    ("lstm-bi", "lstm-additive-feeding"),
    ("gru-uni", "gru-last"),
]


def found(model: AutoregressiveModel, sources: int, **options: Any) -> list[list[Hypothesis]]:
    """What a search finds for sources of lengths that differ, with limits that do."""
    device, generator = next(model.parameters()).device, torch.Generator().manual_seed(3)
    rows = [torch.randint(SOURCE_VOCABULARY, (1 + i % 4,), generator=generator).tolist() for i in range(sources)]
    longest = torch.tensor([1 + i * 5 % (LONGEST - 1) for i in range(sources)], device=device)
    longest = longest.clamp(max=options.pop("most", LONGEST))
    prefix = options.pop("prefix", None)
    limits = Limits(longest, 1, 2, forbidden=(0, 1), prefix=prefix, **options.pop("rules", {}))
    with torch.inference_mode():
        if options.pop("begins", False):
            state = LazyStart(model.start, Ragged.of(rows), device, LONGEST)
            return beam_search(model, state, limits=limits, **options)
        return beam_search(model, model.start(Ragged.of(rows)), limits=limits, **options)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for so few tokens that searches outgrow it."""
    monkeypatch.setattr(beam, "WINDOW", 3)


def recorded(model: AutoregressiveModel) -> Graphs:
    """Where the searches of a model are recorded from now on."""
    device = next(model.parameters()).device
    model.graphs = Graphs(device, filled=takes_filled(model, device))
    return model.graphs


def begins(graphs: Graphs) -> int:
    """How many beginnings are recorded."""
    return sum(key[0][0] == "begin" for key in graphs.recordings)  # type: ignore[index]


def same(one: list[list[Hypothesis]], other: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in row] for row in one] == [[h.tokens for h in row] for row in other]
    apart = 1e-5 if DEVICE.type == "cpu" else 1e-4
    for a, b in zip((h for row in one for h in row), (h for row in other for h in row), strict=True):
        assert a.score == pytest.approx(b.score, abs=apart)
        assert a.log_prob == pytest.approx(b.log_prob, abs=apart)


OPTIONS: list[dict[str, Any]] = [
    {"width": 1},
    {"width": 3, "nbest": 3, "penalty": "average"},
    {"width": 4, "nbest": 2, "penalty": "gnmt", "alpha": 0.6, "rules": {"shortest": 2, "no_repeat": 1}},
    {"width": 2, "stop": "exact", "penalty": "average", "rules": {"no_repeat": 2}},
    {"width": 2, "penalty": "average", "rules": {"banned": ((4, 5), (6, 4, 4), (5, 5))}},
    {"width": 2, "prefix": [[i % 5 + 3] if i % 2 and i * 5 % 7 else [] for i in range(11)]},
    {"width": 3, "stop": "early", "rules": {"repetition": 1.3, "at_limit": "cut", "opening": (4,)}},
    {"width": 1, "rules": {"repetition": 1.5, "at_limit": "forced", "before": (5,)}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_replayed_search_finds_the_same(pair: Pair, options: dict[str, Any], small_windows: None) -> None:
    model = deepcopy(tiny(pair))
    turn_by_turn = found(model, 11, **options)
    graphs = recorded(model)
    for _ in range(2):  # the second time from what was recorded
        same(found(model, 11, **options), turn_by_turn)
    assert len({tuple(row[0].tokens) for row in turn_by_turn}) > 2
    assert len(graphs.recordings) > 1  # some sources were over long before others


def test_an_ensemble_is_replayed(small_windows: None) -> None:
    model = Ensemble([tiny(PAIRS[0]), tiny(PAIRS[3])])
    turn_by_turn = found(model, 5, width=3)
    graphs = recorded(model)
    same(found(model, 5, width=3), turn_by_turn)
    assert graphs.recordings


RULES: list[dict[str, Any]] = [
    {},
    {"forbidden": (0, 1), "shortest": 3},
    {"forbidden": (0, 2)},  # of which nothing can close
    {"prefix": [[4, 5], [], [6], [5, 5, 5]]},
    {"forbidden": (0, 1), "at_limit": "forced"},
    {"prefix": [[4, 5], [], [6], [5, 5, 5]], "at_limit": "cut"},
]
# On a GPU, or with `FULL`, each rule with each shape; in the interpreter, which takes seconds for a case, one of them,
# and fewer turns of a search.
ALL = FULL or DEVICE.type == "cuda"
LARGE = 5000 if ALL else 2100  # in several parts
SHAPES = [
    (1, "none", "heuristic", 40), (3, "average", "exact", 7), (3, "average", "early", LARGE),
    (3, "average", "heuristic", LARGE), (4, "gnmt", "early", 7),
]  # fmt: skip
TURNS = [
    (rules, *shape)
    for (i, rules), (j, shape) in product(enumerate(RULES), enumerate(SHAPES))
    if ALL or (i, j) == (5, 4)
]


@pytest.mark.parametrize(("rules", "width", "penalty", "stop", "vocabulary"), TURNS, ids=str)
def test_a_turn_by_the_kernel_is_a_turn(
    kernel: None, rules: dict[str, Any], width: int, penalty: str, stop: str, vocabulary: int
) -> None:
    """Turn after turn, from boards that are the same, to boards that are; what nobody reads may differ."""
    from regard.search import triton_beam

    longest = [6, 3, 1, 5] if ALL else [3, 2, 1, 3]
    limits = Limits(torch.tensor(longest, device=DEVICE), 1, 2, **rules).filled(5)
    turn = _Turn(Chooser(width, 2), penalty, 0.7, stop, max(longest), False, 0)
    board = Board.new(limits, 1, width, width, 8)
    generator = torch.Generator().manual_seed(5)
    for _ in range(max(longest) + 1):
        logits = 3 * torch.randn(5, width, vocabulary, generator=generator).to(DEVICE)
        logits[..., 2] += 2.0  # some close
        assert turn._has_kernel(board, logits)
        expected, rows = turn._choose(cloned(board), logits.log_softmax(-1))
        found = triton_beam.turn(logits, board, penalty, 0.7, stop, turn._mildest(board))
        board.length.add_(1)

        assert torch.equal(board.over, expected.over)
        torch.testing.assert_close(board.log_prob, expected.log_prob, atol=1e-5, rtol=1e-5)
        open_ = board.log_prob > -torch.inf
        assert torch.equal(found.view_as(open_)[open_], rows.view_as(open_)[open_])
        assert torch.equal(board.token[open_], expected.token[open_])
        now = int(board.length)
        assert torch.equal(board.written[open_][:, :now], expected.written[open_][:, :now])
        torch.testing.assert_close(board.closed_score, expected.closed_score, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(board.closed_log_prob, expected.closed_log_prob, atol=1e-5, rtol=1e-5)
        for i, j in (board.closed_score > -torch.inf).nonzero().tolist():
            end = int(board.closed_length[i, j])
            assert end == int(expected.closed_length[i, j])
            assert torch.equal(board.closed[i, j, :end], expected.closed[i, j, :end])
        for i in board.over[:4].nonzero().flatten().tolist():
            end = int(board.last_length[i]) + 1
            assert end == int(expected.last_length[i]) + 1
            assert torch.equal(board.last[i, :end], expected.last[i, :end])
        assert board.token.min() >= 0
        assert board.token.max() < vocabulary
        board = replace(expected, last=board.last, last_length=board.last_length)
    assert board.over.all()


SEARCHES = [
    (pair, 8, options)
    for (i, pair), (j, options) in product(
        enumerate([PAIRS[1], PAIRS[3]]),
        enumerate([{**OPTIONS[1], "most": 4}, {"width": 2, "prefix": [[4], [], [], [5], []], "most": 5}]),
    )
    if ALL
]
SEARCHES.append((PAIRS[0], 260, {"width": 1, "most": 3}))  # heads that the kernels of attention are too narrow for


@pytest.mark.parametrize(("pair", "d_model", "options"), SEARCHES, ids=str)
def test_a_search_by_the_kernels_finds_the_same(
    kernel: None, small_windows: None, pair: Pair, d_model: int, options: dict[str, Any]
) -> None:
    """From sources that are filled up, where the model can read them so."""
    model = deepcopy(tiny(pair, d_model=d_model)).float()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        turn_by_turn = found(model, 5, **options)
    graphs = recorded(model.to(DEVICE))
    with torch.backends.cudnn.flags(enabled=False):  # it multiplies in TF32
        for _ in range(2 if ALL else 1):
            same(found(model, 5, begins=True, **options), turn_by_turn)
    assert begins(graphs) == (pair[0].startswith("transformer") and d_model == 8)


@pytest.mark.skipif(not ALL, reason="takes long; make test-all")
def test_searches_of_like_shape_share_what_is_recorded_of_their_beginning(kernel: None, small_windows: None) -> None:
    model = deepcopy(tiny(PAIRS[0])).float().to(DEVICE)
    graphs = recorded(model)
    for sources, count in ((10, 1), (9, 1), (4, 2)):
        found(model, sources, begins=True, width=1, most=0)
        assert begins(graphs) == count


@dataclass(frozen=True)
class Tree:
    values: Tensor
    more: tuple[Tensor | None, int]


def test_a_recording_goes_on_from_what_it_is_given() -> None:
    def function(tree: Tree) -> Tree:
        assert tree.more[0] is not None
        tree.more[0].add_(1)  # in place
        copy_into(tree, Tree(tree.values * 2, tree.more))
        return tree

    tree = Tree(torch.tensor([1, 2]), (torch.zeros(()), 5))
    recording = Recording(function, tree, Graphs(CPU))
    assert [x.tolist() for x in tensors(recording())] == [[2, 4], 1.0]
    assert [x.tolist() for x in tensors(recording())] == [[4, 8], 2.0]
    assert [x.tolist() for x in tensors(tree)] == [[1, 2], 0.0]
    recording.take(tree)
    assert [x.tolist() for x in tensors(recording())] == [[2, 4], 1.0]


def test_trees_of_one_shape_share_a_recording() -> None:
    tree = Tree(torch.zeros(2), (None, 5))
    assert signature(tree) == signature(cloned(tree))
    hash(signature(tree))
    for other in (Tree(torch.zeros(3), (None, 5)), Tree(torch.zeros(2), (None, 6)), Tree(tree.values.int(), (None, 5))):
        assert signature(other) != signature(tree)


def test_the_least_recently_used_goes_first() -> None:
    graphs = Graphs(CPU, limit=2)

    def record(size: int) -> Recording[Tree]:
        return graphs.recording("sum", lambda tree: tree.values.sum(), Tree(torch.ones(size), (None, 1)))

    one, two = record(1), record(2)
    assert record(1) is one
    record(3)
    assert record(1) is one
    assert record(2) is not two
    assert len(graphs.recordings) == 2
    graphs.room = 12.0  # bytes: not enough for three numbers beside others
    assert [float(record(size)()) for size in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert [recording.size for recording in graphs.recordings.values()] == [12]


def test_caches_share_the_room_on_a_device() -> None:
    def record(graphs: Graphs, size: int) -> None:
        graphs.recording("sum", lambda tree: tree.values.sum(), Tree(torch.ones(size), (None, 1)))

    gc.collect()  # what other tests recorded
    one, other = Graphs(DEVICE), Graphs(DEVICE)
    one.room = other.room = one.held + 4 * 100.0
    record(one, 60)
    record(other, 20)
    record(other, 10)
    assert [len(graphs.recordings) for graphs in (one, other)] == [1, 2]
    record(other, 30)
    assert [one.inputs.values.numel() for one in other.recordings.values()] == [10, 30]
    del one
    gc.collect()
    record(other, 50)
    assert [one.inputs.values.numel() for one in other.recordings.values()] == [10, 30, 50]


def test_what_there_is_no_memory_to_record_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once; what comes after it is recorded."""
    graphs, tries = Graphs(DEVICE), list[int]()

    def work(tree: Tree) -> Tensor:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            tries.append(1)
            torch.empty(2**50, device=DEVICE)
        return tree.values.sum()

    def without_memory(self: Graphs, function: Any) -> Any:
        tries.append(1)
        raise torch.OutOfMemoryError

    tree = Tree(torch.ones(3, device=DEVICE), (None, 1))
    graphs.recording("plain", lambda tree: tree.values.sum(), tree)
    with monkeypatch.context() as patch:
        if DEVICE.type == "cpu":
            patch.setattr(Graphs, "capture", without_memory)
        for _ in range(3):
            assert float(graphs.recording("large", work, tree)()) == 3.0
    assert len(tries) == 1
    assert graphs.recordings == {}
    assert float(graphs.recording("plain", lambda tree: tree.values.sum(), tree)()) == 3.0
    assert len(graphs.recordings) == 1


def test_what_comes_seldom_is_not_recorded() -> None:
    """It runs as it is, on tensors of its own, and takes nobody's place."""
    graphs = Graphs(CPU, limit=1)
    tree = Tree(torch.ones(3), (None, 1))
    for count in range(3):
        recording = graphs.recording("sum", lambda tree: tree.values.sum(), tree, often=True)
        assert float(recording()) == 3.0
        assert recording.inputs.values is not tree.values
        assert len(graphs.recordings) == (count > 0)
    graphs.recording("sum", lambda tree: tree.values.sum(), Tree(torch.ones(4), (None, 1)), often=True)
    assert [one.inputs.values.shape for one in graphs.recordings.values()] == [(3,)]


def test_shapes_that_never_come_again_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may be asked for ever new settings."""
    monkeypatch.setattr(graphs_module, "SEEN", 10)
    graphs, tree = Graphs(CPU, limit=2), Tree(torch.ones(3), (None, 1))
    for number in range(50):
        for key in (("usual",), ("odd", number)):
            graphs.recording(key, lambda tree: tree.values.sum(), tree, often=True)
        assert len(graphs.seen) <= 11
    assert [key[0] for key in graphs.recordings] == [("usual",)]  # type: ignore[index]
    assert max(graphs.seen.values()) == 50


def test_recordings_go_with_their_model() -> None:
    model = deepcopy(tiny(PAIRS[0]))
    recording = ref(recorded(model))
    found(model, 3, width=2)
    assert recording() is not None
    assert deepcopy(model).graphs is None
    del model
    gc.collect()
    assert recording() is None


def test_sizes() -> None:
    assert [bucket(n) for n in (1, 2, 7, 8, 9, 11, 16, 17, 33, 64, 65, 500)] == [
        1, 2, 7, 8, 10, 12, 16, 20, 40, 64, 80, 512,
    ]  # fmt: skip
    assert all(n <= bucket(n) <= n * 1.25 + 0.75 for n in range(1, 3000))
    assert [round_up(n, 32) for n in (1, 32, 33)] == [32, 32, 64]


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
