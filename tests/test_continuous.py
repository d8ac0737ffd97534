"""Continuous batching: requests that join and leave a running batch find what each finds alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.bundle import Source
from regard.config import merge, parse
from regard.data.tokenizers.symbols import Symbols
from regard.errors import ConfigError, DataError, RegardError
from regard.models.build import build
from regard.models.ctc import JointStepper
from regard.models.decoding import for_decoding
from regard.models.stems import Elements
from regard.nn import graphs as graphs_module
from regard.nn.graphs import Graphs, tensors
from regard.nn.rows import Grouping, Part, Together
from regard.search import continuous
from regard.search.beam import BeamSearch, beam_search, new_beam_search
from regard.search.continuous import Group, SharedBatch
from regard.search.ensemble import Ensemble
from regard.search.incremental import IncrementalSearch
from regard.search.limits import Hypothesis, Limits
from regard.search.sample import Sampling, line_keys, sample
from regard.search.stepper import LazyStart, recorded_start
from regard.serving.engine import PATIENCE, BatchEngine, ContinuousEngine, Engine, new_engine
from regard.serving.work import Size, Work
from regard.system import System, load
from regard.tasks.results import Output
from tests.conftest import (
    FULL,
    HOP,
    LONGEST,
    TARGET_VOCABULARY,
    Pair,
    crossed,
    draw,
    every_model,
    gpu,
    recordings,
    redrawn,
    settings,
    sources,
    tiny,
)
from tests.test_models import NETWORKS, network
from tests.toy import WORDS, untrained

CPU = torch.device("cpu")
BEGIN, END = 1, 2
PHRASES = [[[5, 6]], [[7], [9]], [[4, 4]]]


@dataclass(frozen=True)
class Asked:
    """What is asked for a source: how it is searched, under which limits."""

    kind: str
    longest: int
    prefix: tuple[int, ...]
    number: int

    @property
    def limits(self) -> Limits:
        rules: dict[str, Any] = {"no_repeat": 2, "banned": ((4, 5), (3, 7, 4))} if self.kind == "exact" else {}
        if self.kind == "early":
            rules = {"at_limit": ("scored", "forced", "cut")[self.number % 3], "repetition": 1.3, "opening": (4,)}
        longest, shortest = torch.tensor([self.longest]), min(self.number % 4, self.longest)
        return Limits(longest, BEGIN, END, forbidden=(0, 1), shortest=shortest, prefix=[self.prefix], **rules)

    @property
    def options(self) -> dict[str, Any]:
        usual = {"width": 1, "nbest": 1, "penalty": "average", "alpha": 1.0, "stop": "heuristic", "counted": 0}
        own: dict[str, dict[str, Any]] = {
            "greedy": {},
            "beam": {"width": 3, "nbest": 2},
            "early": {"width": 3, "nbest": 3, "stop": "early"},
            "exact": {"width": 4, "nbest": 4, "penalty": "gnmt", "alpha": 0.7, "stop": "exact"},
            "phrase": {"width": 3, "penalty": "none", "constraints": [PHRASES[self.number % len(PHRASES)]]},
        }
        return {**usual, **own[self.kind]}

    def alone(self, model: Any, source: Source) -> list[Hypothesis]:
        state = model.start(source)
        if self.kind == "sample":
            return sample(model, state, limits=self.limits, keys=self._keys, count=2, top_k=5)[0]
        return beam_search(model, state, limits=self.limits, **self.options)[0]

    def search(self) -> IncrementalSearch:
        if self.kind == "sample":
            return Sampling(self.limits, self._keys, 2, top_k=5, rows=2)
        return new_beam_search(self.limits, **self.options)

    @property
    def _keys(self) -> Tensor:
        return line_keys(3, [self.number])


KINDS = ("greedy", "early", "beam", "sample", "exact", "phrase")


def asked(count: int, choice: random.Random, kinds: Sequence[str] = KINDS, longest: int = LONGEST - 2) -> list[Asked]:
    """One of each kind after the other, with limits that are drawn."""
    found = []
    for i in range(count):
        kind = kinds[i % len(kinds)]
        prefix = choice.choice([(), (), (4,), (3, 7)]) if kind != "phrase" else ()
        found.append(Asked(kind, choice.randint(2, longest), prefix, i))
    return found


def check_schedule(model: Any, source: Source, given: Sequence[Asked], choice: random.Random) -> None:
    """Requests join a few at a time, in between turns; each finds what it finds alone, and what was told settled stays
    so. Turn by turn, and where turns are recorded."""
    with torch.inference_mode():
        alone = [one.alone(model, source.select(torch.tensor([i]))) for i, one in enumerate(given)]
        for graphs in (None, Pool()):
            check_batch(SharedBatch(model.step, CPU, graphs), model, source, given, choice, alone)


def check_batch(
    batch: SharedBatch[int], model: Any, source: Source, given: Sequence[Asked], choice: random.Random,
    alone: Sequence[list[Hypothesis]],
) -> None:  # fmt: skip
    """Like `check_schedule`, in this batch."""
    waiting, found, told = list(range(len(given))), dict[int, list[Hypothesis]](), dict[int, list[int]]()
    while len(found) < len(given):
        some = [waiting.pop(0) for _ in range(choice.randint(0, 2)) if waiting]
        if some:
            groups = [Group(given[i].search(), [i]) for i in some]
            batch.add(model.start(source.select(torch.tensor(some))), groups)
        found |= batch.turn()
        for i, tokens in batch.settled()():
            assert tokens[: len(told.get(i, []))] == told.get(i, [])
            told[i] = tokens
    assert not batch.groups
    for i, expected in enumerate(alone):
        assert [h.tokens for h in found[i]] == [h.tokens for h in expected], given[i]
        for one, other in zip(found[i], expected, strict=True):
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
            assert one.score == pytest.approx(other.score, abs=1e-4)
        assert found[i][0].tokens[: len(told.get(i, []))] == told.get(i, [])


class Pool(Graphs):
    """On a CPU a recording runs its function anew. Here, as on a GPU, a replay writes over what the others gave."""

    def __init__(self, *, filled: bool = False) -> None:
        super().__init__(CPU, filled=filled)
        self.given: list[Tensor] = []

    def capture(self, function: Callable[[], Any]) -> Callable[[], Any]:
        def replay() -> Any:
            for given in self.given:
                given.fill_(10**6)
            found = function()
            self.given = tensors(found)
            return found

        self.captured += 1
        return replay

    def like(self) -> Graphs:
        return Pool(filled=self.filled)


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded outgrows the room that it has, and is recorded at once."""
    monkeypatch.setattr(continuous, "ROOM", 3)
    monkeypatch.setattr(graphs_module, "FIRST", 1)


def drawn(name: object) -> random.Random:
    return random.Random(str(name))


# Every kind of model


@every_model
def test_searches_that_share_a_batch_find_what_each_finds_alone(pair: Pair) -> None:
    choice = drawn(pair)
    lengths = [choice.choice([0, 1, 3, 6]) for _ in range(5)]
    check_schedule(tiny(pair), sources(pair[0], lengths, seed=4), asked(5, choice), choice)


@pytest.mark.parametrize("name", NETWORKS)
def test_so_do_those_of_decoders_alone(name: str) -> None:
    """Sources stand before the targets, and are of different lengths: some rows begin with empty slots."""
    choice = drawn(name)
    check_schedule(network(name), draw([3, 1, 0, 6, 4, 2], 13, seed=2), asked(6, choice), choice)


def test_so_do_those_of_several_models() -> None:
    choice, pairs = drawn("several"), (("lstm-bi", "lstm-location-feeding"), ("transformer-rotary", "transformer-xl"))
    check_schedule(Ensemble([tiny(pair) for pair in pairs]), draw([3, 1, 5, 2, 6], 11, 2), asked(5, choice), choice)


@pytest.mark.parametrize("decoder", ["none", "gru-location-output", "transformer-rotary"])
def test_so_do_those_of_ctc_alone_and_beside_a_decoder(decoder: str) -> None:
    choice, alone = drawn(decoder), {"decoder": {"kind": "none"}} if decoder == "none" else {}
    given = settings(("audio-subsampling-lstm", "gru-every" if alone else decoder), ctc=True, **alone)
    model: Any = redrawn(build(given, [Elements(shape=(HOP,))], TARGET_VOCABULARY, 20), 2)
    kinds = ("greedy", "beam", "sample", "exact")  # marks of these are its own: `<s>` is 1, `</s>` 2
    model = model if alone else JointStepper(model, 0.4)
    check_schedule(model, recordings([20, 9, 31, 14, 26, 12]), asked(6, choice, kinds), choice)


@pytest.mark.parametrize("pair", [("lstm-uni", "gru-mlp-feeding"), ("transformer-t5", "transformer-pre-learned")])
def test_so_do_those_of_different_phrases_and_of_one_kind(pair: Pair) -> None:
    choice = drawn(pair)
    for kinds in (["phrase"], ["exact"], ["sample"]):
        check_schedule(tiny(pair), draw([3, 1, 0, 6, 4, 2], 11, seed=2), asked(6, choice, kinds), choice)


@pytest.mark.parametrize("kind", ["greedy", "beam", "sample"])
def test_searches_that_differ_in_their_lengths_alone_are_one(kind: str) -> None:
    model: Any = tiny(("lstm-bi", "lstm-additive-feeding"))
    given = [Asked(kind, 4 + i, (), i) for i in range(4)]
    source, batch = draw([3, 1, 4, 2], 11, seed=2), SharedBatch[int](model.step, CPU)
    with torch.inference_mode():
        batch.add(model.start(source), [Group(one.search(), [i]) for i, one in enumerate(given)])
        batch.turn()
    assert len(batch.groups) == 1
    check_schedule(model, source, given, drawn(kind))


def test_a_step_and_each_choice_are_recorded_in_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Transformer, whose searches come and go; of a recurrent decoder over a source there is none."""
    monkeypatch.setattr(continuous, "ROOM", 32)
    choice, graphs = drawn("recorded"), Pool()
    given = asked(24, choice, ("greedy", "beam", "exact", "sample", "phrase"))
    source = draw([1 + i % 6 for i in range(24)], 11, seed=5)
    with torch.inference_mode():
        for pair, recorded in ((("lstm-uni", "transformer-rotary"), True), (("lstm-uni", "lstm-last"), False)):
            model: Any = tiny(pair)
            alone = [one.alone(model, source.select(torch.tensor([i]))) for i, one in enumerate(given)]
            batch = SharedBatch[int](model.step, CPU, graphs)
            check_batch(batch, model, source, given, choice, alone)
            assert bool(graphs.recordings) == recorded
            kinds = {key[0][0] for key in graphs.recordings}  # type: ignore[index]
            assert kinds == ({"step", "choice"} if recorded else set())
            assert graphs.captured < 20  # of 24 requests of five kinds
            graphs.recordings.clear()


@pytest.mark.parametrize("name", ["transformer-rotary", "transformer-t5", "awd-lstm"])
def test_what_joins_a_recorded_batch_takes_the_places_of_what_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place, so that the batch is laid out anew but seldom: for a source that is longer than all before it, say. One
    that was dropped before it joined is nobody's."""
    monkeypatch.setattr(continuous, "ROOM", 32)
    model: Any = tiny(("lstm-uni", name)) if name == "transformer-rotary" else network(name)
    choice, laid_out, found = drawn(name), 0, dict[int, list[Hypothesis]]()
    given = asked(60, choice, ("greedy", "beam", "sample"))
    source, batch = (
        draw([1 + i % 6 + i // 10 for i in range(60)], 11, seed=5),
        SharedBatch[int](model.step, CPU, Pool()),
    )
    dropped = {i for i in range(60) if i % 7 == 5}
    with torch.inference_mode():
        for i, one in enumerate(given):
            batch.add(model.start(source.select(torch.tensor([i]))), [Group(one.search(), [i])])
            if i in dropped:
                batch.drop(i)
            for _ in range(1 if i < 59 else 2 * LONGEST):
                found |= batch.turn()
                laid_out += batch.room == 31  # a turn after that
        assert set(found) == set(range(60)) - dropped
        for i, hypotheses in found.items():
            expected = given[i].alone(model, source.select(torch.tensor([i])))
            assert [h.tokens for h in hypotheses] == [h.tokens for h in expected]
            assert [h.log_prob for h in hypotheses] == pytest.approx([h.log_prob for h in expected], abs=1e-4)
    assert not batch.groups
    assert laid_out < 20  # for 60 joins


def test_prompts_of_different_lengths_join_a_recorded_batch_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shorter of them begin with empty slots in their places too."""
    monkeypatch.setattr(continuous, "ROOM", 32)
    model, choice, found = network("transformer-rotary"), drawn("prompts"), dict[int, list[Hypothesis]]()
    given, joined = asked(12, choice, ("greedy",)), list[bool]()
    source, batch = draw([6, 1, 3, 0] * 3, 11, seed=5), SharedBatch[int](model.step, CPU, Pool())
    with torch.inference_mode():
        for i in range(0, 12, 4):
            some = list(range(i, i + 4))
            state = model.start(source.select(torch.tensor(some)))
            batch.add(state, [Group(given[j].search(), [j]) for j in some])
            room = batch.room
            found |= batch.turn()
            joined.append(batch.room == room - 1)
        while batch.members:
            found |= batch.turn()
        for i, one in enumerate(given):
            expected = one.alone(model, source.select(torch.tensor([i])))
            assert [h.tokens for h in found[i]] == [h.tokens for h in expected]
            assert [h.log_prob for h in found[i]] == pytest.approx([h.log_prob for h in expected], abs=1e-4)
    assert any(joined)  # in place


def test_samples_have_no_more_room_than_the_longest_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many have come one after the other in the places of those that left."""
    monkeypatch.setattr(continuous, "ROOM", 8)
    model, joined, wide = network("transformer-rotary"), 0, list[int]()
    source, batch = draw([3] * 4, 11, seed=5), SharedBatch[int](model.step, CPU, Pool())
    with torch.inference_mode():
        for _ in range(120):
            while len(batch.members) < 6:
                one = Asked("sample", 5 + joined % 3, (), joined)
                state = model.start(source.select(torch.tensor([joined % 4])))
                batch.add(state, [Group(one.search(), [joined])])
                joined += 1
            batch.launch()
            (group,) = batch.groups
            assert isinstance(group.search, Sampling)
            wide.append(group.search.written.shape[2])
            batch.collect()()
    assert joined > 60
    assert max(wide) < 60


def test_what_is_over_may_idle_for_longer_than_its_board_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sequences are banned too, for which the last tokens are looked up."""
    monkeypatch.setattr(continuous, "ROOM", 32)
    model, found = network("transformer-rotary"), dict[int, list[Hypothesis]]()
    source, batch = draw([3] * 7, 11, seed=5), SharedBatch[int](model.step, CPU, Pool())

    def group(i: int) -> Group[int]:
        limits = Limits(torch.tensor([64]), BEGIN, END, forbidden=(0, 1), shortest=64, banned=((4, 5),))
        options: dict[str, Any] = {"penalty": "none", "alpha": 1.0, "stop": "heuristic", "counted": 0}
        return Group(new_beam_search(limits, width=1, nbest=1, **options), [i])

    with torch.inference_mode():
        batch.add(model.start(source.select(torch.tensor([0]))), [group(0)])
        for _ in range(30):
            batch.turn()
        batch.add(model.start(source), [group(i) for i in range(1, 8)])
        while batch.members:
            found |= batch.turn()
    assert [h.tokens for h in found[0]] == [h.tokens for h in found[1]]


def test_a_state_begun_by_a_recording_can_be_put_in_place() -> None:
    """Whether its sources were filled up to one of few numbers or are as many."""
    model = network("transformer-rotary")
    for count in (7, 8):
        lazy = LazyStart(lambda source: model.decoder.alone(len(source)), draw([1] * count, 11, seed=5), CPU, 64)
        state = recorded_start(lazy, Pool(filled=True), "start")
        assert len(state.caches[0]) == count
        assert state.origin is None


def test_a_recorded_batch_of_which_most_has_left_is_laid_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous, "ROOM", 32)
    model, batch = network("transformer-rotary"), SharedBatch[int](network("transformer-rotary").step, CPU, Pool())
    source = draw([3] * 32, 11, seed=5)
    with torch.inference_mode():
        batch.add(
            model.start(source), [Group(Asked("greedy", 9 if i < 3 else 2, (), 3 * i).search(), [i]) for i in range(32)]
        )
        rows = list[int]()
        while batch.members:
            batch.launch()
            rows.append(len(batch.state.caches[0]))
            batch.collect()()
    assert rows[0] == 32
    assert rows[-1] == 8
    assert len(rows) < 12


def test_a_cache_is_no_longer_than_the_longest_row() -> None:
    """Requests come and go for as long as many of them take; slots that no row uses any more are dropped."""
    model: Any = tiny(("lstm-uni", "transformer-rotary"))
    choice, batch, slots, done = drawn("cache"), SharedBatch[int](model.step, CPU), list[int](), 0
    given = asked(40, choice, ("greedy", "beam"))
    source = draw([1 + i % 5 for i in range(40)], 11, seed=5)
    with torch.inference_mode():
        for i, one in enumerate(given):
            batch.add(model.start(source.select(torch.tensor([i]))), [Group(one.search(), [i])])
            for _ in range(2):
                done += len(batch.turn())
            if batch.groups:
                slots.append(batch.state.at)
    assert done > 30
    assert sum(slots) > 3 * LONGEST
    assert max(slots) <= LONGEST + 1


# Rows


def test_rows_are_grouped_by_source_and_back() -> None:
    grouping = Grouping.of([1, 3, 2], CPU)
    assert grouping is not None
    rows = torch.arange(12.0).view(6, 2)
    padded = grouping.padded(rows)
    assert padded.shape == (3, 3, 2)
    assert [padded[0, 0, 0].item(), padded[1, 2, 0].item(), padded[2, 1, 0].item()] == [0.0, 6.0, 10.0]
    assert torch.equal(grouping.unpadded(padded), rows)
    assert Grouping.of([4, 4], CPU) is None
    filled = Grouping.of([1, 3, 2], CPU, most=4)
    assert filled is not None
    filled = filled.filled(8, 4)
    more = torch.cat((rows, torch.full((2, 2), torch.nan)))  # nobody's, behind those that are somebody's
    assert filled.padded(more).shape == (4, 4, 2)
    assert torch.equal(filled.unpadded(filled.padded(more))[:6], rows)


def test_rows_of_several_tensors_are_laid_together() -> None:
    """Shifted, cut in front, and taken from where they lie."""
    one, other = torch.arange(1.0, 7.0).view(2, 3), torch.arange(10.0, 12.0).view(2, 1)
    parts = [Part(2, 3, -1), Part(2, 1, 1)]
    laid = Together(parts, torch.tensor([3, 0, 1]), 2, cleared=True)
    assert laid([one, other]).tolist() == [[0.0, 11.0], [2.0, 3.0], [5.0, 6.0]]
    moved = Together([Part(2, 3, 0, torch.tensor([[1, 0, 1], [0, 0, 0]]))], torch.tensor([0]), 3)
    assert moved([one]).tolist() == [[4.0, 2.0, 6.0]]


# The engine

VOCABULARY = Symbols("word", WORDS)
TEXTS = ["alpha beta", "gamma", "delta epsilon zeta eta theta", "beta beta alpha", "eta theta gamma delta"]
SEARCHES: list[dict[str, Any]] = [
    {"beam": 1}, {"beam": 4, "nbest": 3}, {"sample": True, "nbest": 2, "seed": 7}, {"beam": 3, "no_repeat": 2},
    {"beam": 2, "length_penalty": "gnmt", "stop": "exact", "min_length": 2}, {"sample": True, "temperature": 0.7},
    {"beam": 3, "stop": "early", "at_limit": "forced", "repetition_penalty": 1.2},
    {"beam": 1, "repetition_penalty": 1.5}, {"sample": True, "nbest": 2, "repetition_penalty": 1.5},
]  # fmt: skip
WHOLE: list[dict[str, Any]] = [{"mbr": 4}, {"contrastive": 0.5, "beam": 1}, {"beam": 4, "groups": 2}]
LOOKING_BACK: list[dict[str, Any]] = [*WHOLE, {"beam": 4, "coverage": 0.4}, {"beam": 20}]
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"encoder": {"kind": "transformer"}, "decoder": {"kind": "transformer"}},
    "recurrent": {"encoder": {"kind": "lstm", "bidirectional": True}, "decoder": {"kind": "lstm"}},
    "decoder-only": {"encoder": {"kind": "none"}, "decoder": {"kind": "transformer", "positions": "rotary"}},
}


def system(name: str = "transformer", vocabulary: Symbols = VOCABULARY, **sections: Any) -> System:
    """A model of random weights, the same each time."""
    small = {"layers": 1, "heads": 2, "d_ff": 32}
    model: dict[str, Any] = {"d_model": 16, "dropout": 0.0, **MODELS[name]}
    for side in ("encoder", "decoder"):
        if model[side]["kind"] == "transformer":
            model[side] = {**small, **model[side]}
    torch.manual_seed(1)
    given = {"model": model, "tokens": {"kind": "word"}, "search": {"max_length": 12}}
    task = untrained(parse(merge(given, sections)), vocabulary)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(2.0)
    return System(task, Path("nowhere"))


def on(device: str, model: System, folder: Path) -> System:
    """The model, from a new folder if it should be elsewhere than on the CPU."""
    if device == "cpu":
        return model
    model.save(folder / "model")
    return load(folder / "model", device=device)


@dataclass
class Heard:
    """A listener that remembers."""

    written: list[int] = field(default_factory=list)
    outputs: list[Output] | None = None
    error: RegardError | None = None
    times: int = 0
    started: bool = False

    def begun(self) -> None:
        assert not self.started
        self.started = True

    def wants(self, now: float) -> bool:
        return True

    def wrote(self, tokens: Sequence[int]) -> None:
        assert self.started
        assert self.outputs is None
        assert len(tokens) > len(self.written)
        assert list(tokens[: len(self.written)]) == self.written
        self.written, self.times = list(tokens), self.times + 1

    def done(self, outputs: list[Output]) -> None:
        assert self.outputs is None
        assert outputs[0].tokens[: len(self.written)] == self.written
        self.outputs = outputs

    def failed(self, error: RegardError) -> None:
        assert self.outputs is None
        assert self.error is None
        self.error = error


def drive(engine: Engine, works: Sequence[Work], seed: int = 1, most: float = math.inf) -> list[Heard]:
    """Submit requests at random between turns, until all are done."""
    choice, heard, left = random.Random(seed), [Heard() for _ in works], list(range(len(works)))
    while left or engine.waiting or engine.running:
        for _ in range(choice.randint(0, 3)):
            if left:
                i = left.pop(0)
                engine.submit(works[i], heard[i])
        busy = engine.turn()
        assert busy == bool(engine.waiting or engine.running)
        assert engine.rows <= most
    assert not engine.turn()
    assert engine.rows == 0
    return heard


def same(found: list[Output] | None, expected: list[Output]) -> None:
    assert found is not None
    assert [(x.text, x.tokens) for x in found] == [(x.text, x.tokens) for x in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-3)
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)


def alone(model: System, work: Work) -> list[Output]:
    return model.task.outputs([work.field], work.search, refuse, given=work.given)[0]


def refuse(_: int, what: str) -> None:
    raise DataError(f"the source {what}")


def recorded_kinds(engine: ContinuousEngine) -> set[str]:
    """What an engine has recorded."""
    return {key[0][0] for graphs in engine.graphs.values() for key in graphs.recordings}  # type: ignore[index]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
@pytest.mark.parametrize(("name", "records"), crossed([*MODELS], [False, True]))
@pytest.mark.parametrize("seed", range(10) if FULL else [1])
def test_requests_of_all_settings_get_what_they_get_alone(
    name: str, seed: int, records: bool, device: str, tmp_path: Path
) -> None:
    model = on(device, system(name), tmp_path)
    for_decoding(model.task.model, "float32").graphs = Graphs(torch.device(device)) if records else None
    works = [
        Work(text, model.search_settings(**search), prefix="zeta alpha" if i % 3 else "", number=i)
        for i, (text, search) in enumerate(zip(TEXTS * 3, SEARCHES + WHOLE, strict=False))
    ]
    works.append(Work(TEXTS[0], model.search_settings(beam=3), phrases=("zeta eta", "gamma")))
    works.append(Work(TEXTS[1], model.search_settings(beam=1), prefix_tokens=(7, 8)))
    works.append(Work(TEXTS[1], model.search_settings(beam=1), prefix="zeta", phrases=("eta",)))
    engine = new_engine(model.task, budget=600)
    assert isinstance(engine, ContinuousEngine)
    for work, heard in zip(works, drive(engine, works, seed), strict=True):
        same(heard.outputs, alone(model, work))
    assert bool(recorded_kinds(engine)) == (records and name != "recurrent")


def test_requests_that_differ_in_lengths_and_seed_alone_begin_as_one_search() -> None:
    model = system()
    changes = [{"min_length": i, "max_length": 6 + i, "max_ratio": 2.0 + i} for i in range(4)]
    works = [Work(TEXTS[i], model.search_settings(beam=2, **one)) for i, one in enumerate(changes)]
    drawn_ = [{"sample": True, "nbest": 2, "seed": i} for i in range(3)]
    works += [Work(TEXTS[i], model.search_settings(**one), number=i) for i, one in enumerate(drawn_)]
    engine, heard = new_engine(model.task, budget=10**4), [Heard() for _ in works]
    assert isinstance(engine, ContinuousEngine)
    for work, listener in zip(works, heard, strict=True):
        engine.submit(work, listener)
    engine.turn()
    (batch,) = engine.batches.values()
    assert sorted(len(group.members) for group in batch.groups) == [3, 4]
    while engine.turn():
        pass
    for work, listener in zip(works, heard, strict=True):
        same(listener.outputs, alone(model, work))


def test_only_who_wants_to_hear_of_each_token_does() -> None:
    model = system()
    plain = model.search_settings(beam=1, min_length=5)
    works = [Work(text, plain, stream=i % 2 == 0) for i, text in enumerate(TEXTS)]
    heard = drive(new_engine(model.task, budget=10**4), works)
    assert [bool(one.times) for one in heard] == [True, False, True, False, True]


def test_the_beginning_of_requests_is_recorded_too(kernel: None, tmp_path: Path) -> None:
    """From sources that are filled up, which the kernels can read so."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = on(device.type, system(), tmp_path)
    works = [Work(TEXTS[i], model.search_settings(beam=1 + i, max_length=2)) for i in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        expected = [alone(model, work) for work in works]
    for_decoding(model.task.model, "float32").graphs = Graphs(device, filled=True)
    engine = new_engine(model.task, budget=10**4)
    assert isinstance(engine, ContinuousEngine)
    for heard, outputs in zip(drive(engine, works), expected, strict=True):
        same(heard.outputs, outputs)
    assert "start" in recorded_kinds(engine)


@gpu
@pytest.mark.parametrize("name", MODELS)
def test_turns_that_are_recorded_on_a_gpu_are_turns(name: str, tmp_path: Path) -> None:
    """Requests that come and go find the same, with graphs and without; few shapes are recorded."""
    system(name).save(tmp_path / "model")
    model = load(tmp_path / "model", device="cuda")
    works = [
        Work(text, model.search_settings(**search), prefix="zeta alpha" if i % 3 else "", number=i)
        for i, (text, search) in enumerate(zip(TEXTS * 12, cycle(SEARCHES), strict=False))
    ]
    works.append(Work(TEXTS[0], model.search_settings(beam=3), phrases=("zeta eta", "gamma")))
    plain = new_engine(model.task, budget=10**4)
    assert isinstance(plain, ContinuousEngine)
    graphs, plain.network.graphs = plain.network.graphs, None
    expected = drive(plain, works)
    plain.network.graphs = graphs
    for seed in range(3):
        engine = new_engine(model.task, budget=10**4)
        assert isinstance(engine, ContinuousEngine)
        for heard, other in zip(drive(engine, works, seed), expected, strict=True):
            assert other.outputs is not None
            same(heard.outputs, other.outputs)
        assert (sum(graphs.captured for graphs in engine.graphs.values()) > 0) == (name != "recurrent")
        assert all(len(graphs.recordings) <= graphs.limit for graphs in engine.graphs.values())


@gpu
def test_many_requests_on_a_gpu_find_what_is_found_offline(tmp_path: Path) -> None:
    """Of one kind, as clients of a server ask: beginnings, steps and choices are all recorded."""
    system("transformer").save(tmp_path / "model")
    model = load(tmp_path / "model", device="cuda")
    texts = [" ".join(TEXTS[j % 5] for j in range(i % 3 + 1)) for i in range(300)]
    for beam in (1, 4):
        search = model.search_settings(beam=beam)
        engine = new_engine(model.task, budget=10**6)
        assert isinstance(engine, ContinuousEngine)
        found = drive(engine, [Work(text, search, stream=i % 2 == 0) for i, text in enumerate(texts)])
        for heard, outputs in zip(found, model.outputs(texts, beam=beam), strict=True):
            same(heard.outputs, outputs)
        assert recorded_kinds(engine) == {"start", "step", "choice"}


@gpu
@pytest.mark.parametrize("search", [{"beam": 1}, {"beam": 4}, {"sample": True}])
def test_who_joins_does_not_wait_for_the_gpu(
    search: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the host works on requests while the GPU works on a turn: once recorded, joining asks it for nothing."""
    system("transformer").save(tmp_path / "model")
    model = load(tmp_path / "model", device="cuda")
    engine = new_engine(model.task, budget=10**6)
    assert isinstance(engine, ContinuousEngine)
    works = [Work(text, model.search_settings(**search, max_length=4 + i % 8)) for i, text in enumerate(TEXTS * 8)]

    def unasked(join: Callable[..., Any]) -> Callable[..., Any]:
        def joined(*given: Any) -> Any:
            torch.cuda.set_sync_debug_mode("error")
            try:
                return join(*given)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return joined

    for turn in range(4):  # the same each time
        if turn == 3:
            monkeypatch.setattr(ContinuousEngine, "_begin", unasked(ContinuousEngine._begin))
            monkeypatch.setattr(SharedBatch, "_put", unasked(SharedBatch._put))
        left, heard = list(zip(works, [Heard() for _ in works], strict=True)), list[Heard]()
        while left or engine.waiting or engine.running:
            for work, listener in left[:2]:
                engine.submit(work, listener)
                heard.append(listener)
            del left[:2]
            engine.turn()
    for work, listener in zip(works, heard, strict=True):
        same(listener.outputs, alone(model, work))


def test_a_language_model_goes_on_from_prompts_and_streams() -> None:
    model = system("decoder-only", source={"kind": "none"})
    works = [
        Work(text, model.search_settings(**search), number=i)
        for i, (text, search) in enumerate(zip(["", *TEXTS] * 3, SEARCHES * 2, strict=True))
    ]
    found = drive(new_engine(model.task, budget=10**4), works)
    for work, heard in zip(works, found, strict=True):
        same(heard.outputs, alone(model, work))
        if work.search.beam == 1 and not work.search.sample:  # each token as it is found
            assert heard.outputs is not None
            assert heard.times >= len(heard.outputs[0].tokens) - 1


@pytest.mark.parametrize("engine", [ContinuousEngine, BatchEngine])
def test_what_is_refused_is_refused_at_once_in_the_same_words(engine: Any) -> None:
    model = system()
    made, plain = engine(model.task, 1000), model.search_settings(beam=2)
    bad = [
        Work("alpha " * 20, model.search_settings(max_source=10)),
        Work("alpha", plain, prefix="alpha " * 14),
        Work("alpha", plain, phrases=("beta " * 20,)),
        Work("", plain),
    ]
    for work in bad:
        with pytest.raises(DataError) as expected:
            alone(model, work)
        with pytest.raises(DataError) as found:
            made.submit(work, Heard())
        assert str(found.value) == str(expected.value)
    assert made.waiting == 0


def test_an_engine_has_one_precision_and_phrases_need_a_beam() -> None:
    model = system()
    engine = new_engine(model.task, budget=1000)
    with pytest.raises(ConfigError, match="this model decodes in float32; leave out search"):
        engine.submit(Work("alpha", model.search_settings(precision="int8")), Heard())
    with pytest.raises(ConfigError, match="phrases that must appear need beam search"):
        engine.submit(Work("alpha", model.search_settings(sample=True), phrases=("beta",)), Heard())


def test_a_cancelled_request_frees_its_place_and_changes_no_other() -> None:
    model = system()
    plain = model.search_settings(beam=3, min_length=8)
    engine = new_engine(model.task, budget=10**4)
    heard = [Heard() for _ in range(5)]
    tickets = [engine.submit(Work(TEXTS[i], plain), heard[i]) for i in range(4)]
    engine.turn()
    assert (engine.running, engine.rows) == (4, 12)
    tickets.append(engine.submit(Work(TEXTS[4], plain), heard[4]))
    engine.cancel(tickets[1])
    engine.cancel(tickets[4])  # while it waits
    assert (engine.waiting, engine.running, engine.rows) == (0, 3, 9)
    engine.cancel(99)
    while engine.turn():
        pass
    engine.cancel(tickets[0])  # which is over
    for i in (0, 2, 3):
        same(heard[i].outputs, alone(model, Work(TEXTS[i], plain)))
    for i in (1, 4):
        assert heard[i].outputs is None
        assert heard[i].error is None


def test_a_listener_may_cancel_others_while_it_hears() -> None:
    """As one does whose caller has gone, in the midst of a turn."""
    model = system()
    plain, engine = model.search_settings(beam=1, min_length=4), new_engine(model.task, budget=10**4)

    class Selfish(Heard):
        def wrote(self, tokens: Sequence[int]) -> None:
            super().wrote(tokens)
            engine.cancel(other)

        def done(self, outputs: list[Output]) -> None:
            super().done(outputs)
            engine.cancel(equal)

    first, second, third = Selfish(), Heard(), Heard()
    engine.submit(Work(TEXTS[0], plain), first)
    other = engine.submit(Work(TEXTS[1], plain), second)
    equal = engine.submit(Work(TEXTS[0], plain), third)  # is over in the same turn as the first
    while engine.turn():
        pass
    same(first.outputs, alone(model, Work(TEXTS[0], plain)))
    assert second.outputs is None
    assert third.outputs is None


@pytest.mark.parametrize(
    ("batch", "search"), crossed([*product(["transformer", "recurrent"], [40, 10**4])], LOOKING_BACK), ids=str
)
def test_a_long_request_keeps_no_short_one_waiting(batch: tuple[str, int], search: dict[str, Any]) -> None:
    """Whether it shares the batch or is too large for that. Both get what they get alone."""
    name, budget = batch
    model = system(name, search={"max_length": 60, "max_ratio": 30.0})
    long = Work("alpha beta", model.search_settings(**search, min_length=50))
    short = Work("alpha beta", model.search_settings(beam=1, max_length=3))
    engine, slow, quick = new_engine(model.task, budget=budget), Heard(), Heard()
    engine.submit(long, slow)
    for _ in range(3):
        engine.turn()
    engine.submit(short, quick)
    for _ in range(3 + 1 + PATIENCE):
        engine.turn()
    assert quick.outputs is not None
    assert slow.outputs is None
    while engine.turn():
        pass
    same(quick.outputs, alone(model, short))
    same(slow.outputs, alone(model, long))


def test_large_requests_take_turns() -> None:
    model = system()
    large = [Work(text, model.search_settings(mbr=9, seed=i)) for i, text in enumerate(TEXTS[:3])]
    engine, heard = new_engine(model.task, budget=40), [Heard() for _ in range(3)]
    assert isinstance(engine, ContinuousEngine)
    tickets = [engine.submit(work, one) for work, one in zip(large, heard, strict=True)]
    engine.turn()
    assert (engine.waiting, engine.running, engine.rows) == (2, 1, 9)
    engine.cancel(tickets[1])
    engine.cancel(tickets[0])
    while engine.turn():
        assert engine.rows <= 9
    assert [one.started for one in heard] == [True, False, True]
    assert heard[0].outputs is None
    same(heard[2].outputs, alone(model, large[2]))


def test_what_cannot_be_done_with_an_output_fails_that_request_alone() -> None:
    model = system("decoder-only")
    engine, wrong, good = new_engine(model.task, budget=10**4), Heard(), Heard()
    engine.submit(Work("alpha", model.search_settings(beam=2, coverage=0.2)), wrong)
    engine.submit(Work("alpha", model.search_settings(beam=2)), good)
    while engine.turn():
        pass
    assert "search.coverage needs a model with attention over its source" in str(wrong.error)
    same(good.outputs, alone(model, Work("alpha", model.search_settings(beam=2))))


def test_a_budget_is_kept_and_none_starves() -> None:
    """First come, first served: one that does not fit waits for its place, and those behind it wait too; one that is
    too large to share the budget runs beside the others."""
    model = system()
    greedy, wide = model.search_settings(beam=1, min_length=6, max_length=9), model.search_settings(beam=20)
    half = model.search_settings(beam=2, min_length=6, max_length=9)
    engine = new_engine(model.task, budget=65)
    assert isinstance(engine, ContinuousEngine)
    heard = [Heard() for _ in range(9)]
    for i in range(9):
        engine.submit(Work("alpha beta", {6: wide, 7: half}.get(i, greedy)), heard[i])
    most, order = 0, list[int]()
    while engine.waiting or engine.running:
        engine.turn()
        sizes = [job.size for job in engine.jobs.values() if job.size.rows < 20]
        if sizes:
            held = sum(size.rows for size in sizes) * max(size.target for size in sizes)
            held += len(sizes) * max(size.source for size in sizes)
            assert held <= 65
            most = max(most, len(sizes))
        order += [i for i in range(9) if heard[i].outputs is not None and i not in order]
    assert most == 5  # of 10 positions for a row and 3 for a source each
    assert order.index(7) < order.index(8)
    assert order.index(6) < order.index(8)
    assert Size.fitting([Size(2, 5, 3)] * 4, [Size(1, 5, 4)], 40) == 2
    assert Size.fitting([Size(100, 5, 3)], [], 40) == 1
    assert Size.fitting([Size(100, 5, 3)], [Size()], 40) == 0


class _Broken:
    """A step that fails at a certain call."""

    def __init__(self, step: Any, at: int) -> None:
        self.step, self.left = step, at

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.left -= 1
        if not self.left:
            raise RuntimeError("the device is gone")
        found: tuple[Tensor, Any] = self.step(tokens, state)
        return found


def test_an_error_of_the_network_fails_those_it_concerns_and_the_engine_goes_on() -> None:
    model = system()
    engine = new_engine(model.task, budget=10**4)
    assert isinstance(engine, ContinuousEngine)
    first, second = Heard(), Heard()
    plain = model.search_settings(beam=2, min_length=6)
    engine.submit(Work("alpha", plain), first)
    engine.turn()
    (batch,) = engine.batches.values()
    batch.step = _Broken(batch.step, 2)
    engine.turn()
    assert not engine.turn()
    assert str(first.error) == "decoding failed (RuntimeError: the device is gone)"
    engine.submit(Work("alpha", plain), second)
    while engine.turn():
        pass
    same(second.outputs, alone(model, Work("alpha", plain)))


def test_an_error_in_what_arrives_fails_those_it_concerns_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = system()
    engine, first, second = new_engine(model.task, budget=10**4), Heard(), Heard()
    plain = model.search_settings(beam=2)

    def gone() -> Any:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(BeamSearch, "results", lambda search, sources: gone)
        engine.submit(Work("alpha", plain), first)
        while engine.turn():
            pass
    assert str(first.error) == "decoding failed (RuntimeError: the device is gone)"
    engine.submit(Work("alpha", plain), second)
    while engine.turn():
        pass
    same(second.outputs, alone(model, Work("alpha", plain)))


@pytest.mark.parametrize("begun", [False, True])
def test_a_listener_may_cancel_others_as_it_hears_of_a_failure(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker does with the other inputs of a request, of which one has failed."""
    model = system()
    engine, plain = new_engine(model.task, budget=10**4), model.search_settings(beam=2, min_length=6)
    assert isinstance(engine, ContinuousEngine)
    tickets = list[int]()

    class Selfish(Heard):
        def failed(self, error: RegardError) -> None:
            super().failed(error)
            for ticket in tickets:
                engine.cancel(ticket)

    def gone(*_: Any) -> Any:
        raise RuntimeError("the device is gone")

    heard, last = [Selfish(), Selfish()], Heard()
    tickets += [engine.submit(Work("alpha", plain), one) for one in heard]
    with monkeypatch.context() as patch:
        if begun:
            engine.turn()
            (batch,) = engine.batches.values()
            batch.step = gone
        else:
            patch.setattr(type(model.task), "incremental", gone)
        while engine.turn():
            pass
    assert [one.error is None for one in heard] == [False, True]
    engine.submit(Work("alpha", plain), last)
    while engine.turn():
        pass
    same(last.outputs, alone(model, Work("alpha", plain)))


def test_a_request_that_cannot_be_begun_disturbs_no_other() -> None:
    model = system()
    engine = new_engine(model.task, budget=10**4)
    assert isinstance(engine, ContinuousEngine)
    plain, good, bad = model.search_settings(beam=2), Heard(), Heard()
    engine.submit(Work("alpha beta", plain), good)
    engine.submit(Work("gamma", plain), bad)
    request = engine.queue[1].request
    assert request is not None
    object.__setattr__(request, "item", [10**6])  # a token that no embedding has
    while engine.turn():
        pass
    assert isinstance(bad.error, RegardError)
    same(good.outputs, alone(model, Work("alpha beta", plain)))


def test_a_head_goes_through_batches() -> None:
    model = system("recurrent", target={"kind": "number"}, model={"decoder": {"kind": "none"}})
    engine = new_engine(model.task, budget=100)
    assert isinstance(engine, BatchEngine)
    works = [Work(text, model.search_settings(), number=i) for i, text in enumerate(TEXTS)]
    for work, heard in zip(works, drive(engine, works), strict=True):
        assert heard.outputs is not None
        (found,), (expected,) = heard.outputs, alone(model, work)
        assert float(found.text) == pytest.approx(float(expected.text), abs=1e-4)


def test_an_engine_that_is_idle_holds_nothing() -> None:
    model = system()
    engine = new_engine(model.task, budget=10**4)
    assert isinstance(engine, ContinuousEngine)
    for _ in range(3):
        drive(engine, [Work(text, model.search_settings(beam=2)) for text in TEXTS])
        assert not engine.batches
        assert not engine.jobs
        assert not engine.queue


# Searches on tables


def test_settled_tokens_are_those_of_all_that_can_still_win() -> None:
    """Two ways that part at their second token: nothing but the first is settled until one of them is shut out."""
    a, b, c = 3, 4, 5
    table = torch.zeros(6, 6)
    table[BEGIN, a] = 1.0
    table[a, b], table[a, c] = 0.55, 0.45
    table[b, b], table[b, END], table[c, END] = 0.9, 0.1, 1.0
    search = new_beam_search(
        Limits(torch.tensor([4]), BEGIN, END), width=2, nbest=1, penalty="none", alpha=1.0, stop="heuristic", counted=0
    )
    told = []
    while not search.over.all():
        search.advance(table.log()[search.token])
        told.append(search.settled(torch.tensor([0]))()[0])
    assert told[:4] == [[a], [a], [a], [a]]  # open: b and c; then c has closed and leads, and b goes on
    assert search.results(torch.tensor([0]))()[0][0].tokens == [a, c]
