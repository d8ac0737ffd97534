"""Threads that use one model at the same time get what they would get one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from threading import Barrier, Thread
from typing import Any, TypeVar

import pytest
import torch

import regard
from regard.config import parse
from regard.data.tokenizers.symbols import Symbols
from regard.models.decoding import for_decoding
from regard.nn.attention import capture
from regard.nn.graphs import Graphs
from regard.search.beam import beam_search
from regard.search.limits import Limits
from regard.system import System
from regard.tasks.results import Output
from tests.conftest import LONGEST, SOURCE_VOCABULARY, batch, draw, gpu, tiny
from tests.toy import untrained

T = TypeVar("T")
THREADS = 4
WORDS = [f"w{i}" for i in range(20)]
DECODERS: dict[str, dict[str, Any]] = {
    "transformer": {"kind": "transformer", "layers": 2, "heads": 2, "d_ff": 64},
    "recurrent": {"kind": "lstm", "layers": 1},
}
SEARCHES: list[dict[str, Any]] = [
    {"beam": 1}, {"beam": 4, "nbest": 3}, {"sample": True, "nbest": 2, "seed": 7}, {"beam": 3, "groups": 3},
    {"beam": 2, "length_penalty": "average"}, {"contrastive": 0.5, "beam": 1},
]  # fmt: skip


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Let threads take turns far more often than they do."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What each call gives, four at a time, of which the first begin together."""
    barrier = Barrier(THREADS)

    def run(number: int) -> T:
        if number < THREADS:
            barrier.wait(timeout=60)
        return calls[number]()

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(len(calls))))


def system(kind: str, device: str, dropout: float = 0.0) -> System:
    """A model of random weights, the same each time, that was never used."""
    encoder = DECODERS[kind] if kind == "transformer" else {**DECODERS[kind], "bidirectional": True}
    settings = {
        "model": {"d_model": 32, "dropout": dropout, "encoder": encoder, "decoder": DECODERS[kind]},
        "tokens": {"kind": "word"},
    }
    torch.manual_seed(1)
    task = untrained(parse(settings), Symbols("word", WORDS), device=device)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(2.0)
    return System(task, Path("nowhere"))


def texts(count: int) -> list[str]:
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(20, (n,), generator=generator)) for n in lengths]


def same(found: list[list[Output]], expected: list[list[Output]]) -> None:
    assert [[x.tokens for x in outputs] for outputs in found] == [[x.tokens for x in outputs] for outputs in expected]
    for one, other in zip(found, expected, strict=True):
        assert [x.score for x in one] == pytest.approx([x.score for x in other], abs=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
@pytest.mark.parametrize("kind", DECODERS)
def test_threads_that_generate_with_one_model(kind: str, device: str) -> None:
    """Batches of many shapes, in every kind of search, from a model that no one has copied or recorded before."""
    jobs = [(texts(1 + (5 * i) % 13), SEARCHES[i % len(SEARCHES)]) for i in range(24)]
    alone, shared = system(kind, device), system(kind, device)

    def outputs(model: System, number: int) -> list[list[Output]]:
        lines, search = jobs[number]
        return model.outputs(lines, max_length=12, **search)

    expected = [outputs(alone, i) for i in range(len(jobs))]
    found = at_once([lambda i=i: outputs(shared, i) for i in range(len(jobs))])  # type: ignore[misc]
    for one, other in zip(found, expected, strict=True):
        same(one, other)
    assert len({tuple(x.tokens) for outputs in expected for row in outputs for x in row}) > 20


def test_threads_that_score_with_a_loaded_model(tmp_path: Path) -> None:
    """A loaded model is in evaluation mode, so that no thread meets the dropout of another's."""
    shared = regard.load(system("transformer", "cpu", dropout=0.5).save(tmp_path / "model"), device="cpu")
    assert not shared.model.training
    sources, targets = texts(9), texts(9)[::-1]
    expected = shared.score(sources, targets)
    assert at_once([lambda: shared.score(sources, targets)] * 12) == [expected] * 12


def test_threads_share_one_copy_for_decoding() -> None:
    for seed in range(5):
        model = deepcopy(tiny(("lstm-bi", "transformer-rotary"), seed=seed)).float()
        copies = at_once([lambda model=model: for_decoding(model, "float32")] * THREADS)  # type: ignore[misc]
        assert len({id(copied) for copied in copies}) == 1


def test_threads_that_replay_one_recording() -> None:
    """On a CPU a recording has inputs of its own as well, which two searches must not share."""
    model = deepcopy(tiny(("transformer-post-learned", "transformer-post-learned")))
    sources = [draw([3, 1, 4, 2 + i % 3], SOURCE_VOCABULARY, seed=i) for i in range(12)]

    def search(number: int) -> list[list[list[int]]]:
        limits = Limits(torch.tensor([LONGEST - 1] * 4), 1, 2, forbidden=(0, 1))
        with torch.inference_mode():
            found = beam_search(model, model.start(sources[number]), limits=limits, width=2, nbest=2)
        return [[x.tokens for x in row] for row in found]

    expected = [search(i) for i in range(len(sources))]
    model.graphs = Graphs(torch.device("cpu"))
    assert at_once([lambda i=i: search(i) for i in range(len(sources))]) == expected  # type: ignore[misc]
    assert len(model.graphs.recordings) < 6


def test_capture_shows_what_its_own_thread_does() -> None:
    model = tiny(("transformer-post-learned", "lstm-additive-feeding"))
    with capture(model) as trace:
        other = Thread(target=model, args=batch())
        other.start()
        other.join()
        assert not trace.found
        model(*batch())
    assert trace.found.keys() >= {"decoder.attention", "encoder.blocks.0.self_attention"}
