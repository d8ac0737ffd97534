"""Stores and batches: nothing lost, nothing over budget, any position reached again, memory that does not grow."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches import Batch, Batches, Pairs, Position, make_batch, pack, permute
from regard.data.corpora import Example
from regard.data.scan import Report
from regard.data.sources import Text
from regard.data.store import PairStore, write_pairs
from regard.data.tokens import BOS, EOS, Bytes, Tokenizer, train_tokenizer
from regard.errors import DataError
from regard.fingerprint import Fingerprint
from regard.settings import Data

BYTES = Bytes()


def batches_of(
    pairs: PairStore,
    tokenizer: Tokenizer = BYTES,
    *,
    budget: int,
    seed: int,
    sampling: float = 0.0,
    window: int = 100_000,
    longest: int | None = None,
) -> Batches:
    source = Text(tokenizer)
    return Batches(pairs, source, tokenizer, Pairs(source), budget, seed, sampling, window, longest)


def examples(count: int) -> list[Example]:
    return [Example("a" * (1 + i % 17), "b" * (1 + i * 7 % 23), f"f:{i + 1}") for i in range(count)]


def store(folder: Path, count: int, tokenizer: Tokenizer = BYTES, *, text: bool = False, **facts: int) -> PairStore:
    return write_pairs(
        folder,
        examples(count),
        Text(tokenizer),
        tokenizer,
        data=Data(max_length=100, bad_lines="skip"),
        report=Report("files"),
        text=text,
        made_from=Fingerprint(dict(facts)),
    )


def epoch(batches: Batches, number: int = 0) -> list[tuple[Batch, Position]]:
    found = []
    for batch, position in batches.since(Position(number)):
        if position.epoch > number:
            break
        found.append((batch, position))
    return found


def test_marks_are_where_they_belong() -> None:
    batch = make_batch(Text(BYTES).pack([[7, 8], []]), [[9], [6, 6, 6]])
    assert batch.source.tolist() == [[7, 8, EOS], [EOS]]
    assert batch.inputs.tolist() == [[BOS, 9], [BOS, 6, 6, 6]]
    assert batch.outputs.tolist() == [[9, EOS], [6, 6, 6, EOS]]
    assert batch.tokens == 6


@pytest.mark.parametrize("window", [10, 64, 100_000])
def test_an_epoch_holds_every_pair_once_within_budget(tmp_path: Path, window: int) -> None:
    batches = batches_of(store(tmp_path, 300), budget=120, seed=3, window=window)
    seen: Counter[tuple[int, ...]] = Counter()
    for batch, _ in epoch(batches):
        assert max(batch.source.values.numel(), batch.outputs.values.numel()) <= 120
        for x, y in zip(batch.source.tolist(), batch.outputs.tolist(), strict=True):
            seen[(len(x), len(y))] += 1
    assert seen == Counter((len(x.source) + 1, len(x.target) + 1) for x in examples(300))


def test_epochs_and_seeds_differ_and_repeat(tmp_path: Path) -> None:
    pairs = store(tmp_path, 300)

    def order(seed: int, number: int) -> list[list[list[int]]]:
        return [b.source.tolist() for b, _ in epoch(batches_of(pairs, budget=120, seed=seed), number)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_any_position_can_be_reached_again(tmp_path: Path, sampling: float) -> None:
    tokenizer = train_tokenizer([f"{x.source} {x.target}" for x in examples(300)], "bpe", 300)
    pairs = store(tmp_path, 300, tokenizer, text=sampling > 0)
    batches = batches_of(pairs, tokenizer, budget=120, seed=1, sampling=sampling, window=100)
    whole = list(islice(batches.since(Position()), 120))
    assert whole[-1][1].epoch >= 1
    for start in (0, 3, 50, 99):
        for (a, at), (b, again) in zip(whole[start + 1 :], batches.since(whole[start][1]), strict=False):
            assert (a.source.tolist(), a.outputs.tolist(), at) == (b.source.tolist(), b.outputs.tolist(), again)


def test_sampling_draws_anew_each_epoch(tmp_path: Path) -> None:
    tokenizer = train_tokenizer([f"{x.source} {x.target}" for x in examples(300)], "bpe", 300)
    batches = batches_of(store(tmp_path, 50, tokenizer, text=True), tokenizer, budget=100, seed=1, sampling=0.3)
    drawn = [Counter(tuple(x) for b, _ in epoch(batches, number) for x in b.source.tolist()) for number in (0, 1)]
    assert drawn[0] != drawn[1]


def test_what_is_drawn_too_long_falls_back_to_the_usual_tokens(tmp_path: Path) -> None:
    """On either side; all else stays as it was drawn."""
    tokenizer = train_tokenizer([f"{x.source} {x.target}" for x in examples(300)], "bpe", 300)
    usual = [
        Counter(map(tuple, tokenizer.encode_many(texts)))
        for texts in ([x.source for x in examples(60)], [x.target for x in examples(60)])
    ]
    most = max(map(len, usual[0] | usual[1]))
    drawn, kept = (
        batches_of(
            store(tmp_path, 60, tokenizer, text=True), tokenizer, budget=100, seed=1, sampling=0.5, longest=longest
        )
        for longest in (None, most)
    )
    lengths, both = [], []
    for batches in (drawn, kept):
        rows = [
            (tuple(x[:-1]), tuple(y[:-1]))
            for batch, _ in epoch(batches)
            for x, y in zip(batch.source.tolist(), batch.outputs.tolist(), strict=True)
        ]
        lengths.append([max(map(len, side)) for side in zip(*rows, strict=True)])
        both.append([Counter(side) for side in zip(*rows, strict=True)])
    assert min(lengths[0]) > most >= max(lengths[1])
    for whole, cut, ever in zip(*both, usual, strict=True):
        short = Counter({row: count for row, count in whole.items() if len(row) <= most})
        assert not short - cut
        assert 0 < (cut - short).total() == (whole - short).total()
        assert not (cut - short) - ever


def test_batches_are_of_like_lengths(tmp_path: Path) -> None:
    batches = batches_of(store(tmp_path, 2000), budget=400, seed=3)
    padded = sum(len(b.outputs) * b.outputs.longest for b, _ in epoch(batches))
    assert padded < 1.1 * sum(b.tokens for b, _ in epoch(batches))


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1), st.integers(1, 80))
def test_packs_hold_all_and_keep_the_budget(lengths: list[tuple[int, int]], budget: int) -> None:
    source, target = (np.array(side) for side in zip(*lengths, strict=True))
    packs = pack(source, target, budget)
    assert sorted(np.concatenate(packs).tolist()) == list(range(len(lengths)))
    for members in packs:
        total = max((source[members] + 1).sum(), (target[members] + 1).sum())
        assert total <= budget or len(members) == 1


@given(st.integers(1, 3000), st.integers(0, 100))
def test_permute_is_a_permutation(size: int, seed: int) -> None:
    assert sorted(permute(np.arange(size), size, seed).tolist()) == list(range(size))


def test_permute_looks_random() -> None:
    size = 100_000
    numbers = permute(np.arange(size), size, 5)
    assert abs(np.corrcoef(numbers, np.arange(size))[0, 1]) < 0.02
    assert abs(np.abs(np.diff(numbers)).mean() / size - 1 / 3) < 0.01


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    peaks = []
    for count in (2_000, 20_000):
        batches = batches_of(store(tmp_path / str(count), count), budget=200, seed=1, window=1000)
        tracemalloc.start()
        for _ in islice(batches.since(Position()), 200):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_a_store_is_made_anew_only_if_it_must(tmp_path: Path) -> None:
    store(tmp_path, 10, size=1)
    before = (tmp_path / "source.values").stat().st_mtime_ns
    store(tmp_path, 10, size=1)
    assert (tmp_path / "source.values").stat().st_mtime_ns == before
    assert len(store(tmp_path, 20, size=2)) == 20


def write(folder: Path, pairs: list[Example], bad_lines: str) -> PairStore:
    return write_pairs(
        folder,
        pairs,
        Text(BYTES),
        BYTES,
        data=Data.model_validate({"max_length": 5, "bad_lines": bad_lines, "bad_limit": 0.8}),
        report=Report("files"),
        text=False,
        made_from=Fingerprint({}),
    )


def test_bad_pairs_are_left_out_and_named(tmp_path: Path) -> None:
    mixed = [Example("a", "b", "f:1"), Example("", "b", "f:2"), Example("a", "bbbbbb", "f:3"), Example("a", " ", "f:4")]
    pairs = write(tmp_path, mixed, "skip")
    assert len(pairs) == 1
    assert pairs.report is not None
    assert "left out 3 of 4 lines: 2 blank, 1 too long" in pairs.report
    assert "f:3 has a target of 6 tokens, longer than data.max_length=5" in pairs.report


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            Example("a", "", "f:9"),
            r"1 of 2 lines cannot be used: 1 blank; mend or remove them, .*\n  f:9 has an empty target",
        ),
        (
            Example("aaaaaa", "b", "f:9"),
            r"1 too long; .*\n  f:9 has a source of 6 tokens, longer than data\.max_length=5",
        ),
    ],
)
def test_bad_pairs_can_stop_training(tmp_path: Path, bad: Example, message: str) -> None:
    with pytest.raises(DataError, match=message):
        write(tmp_path, [Example("a", "b", "f:1"), bad], "error")


def test_nothing_left(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"files has no line that can be used: 1 blank\n  f:1 has an empty source"):
        write(tmp_path, [Example("", "b", "f:1")], "skip")
