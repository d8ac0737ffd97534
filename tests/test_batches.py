"""Stores and batches: nothing lost, nothing over budget, any position reached again, memory that does not grow."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.bundle import parts_of
from regard.data.batch import Batch, make_batch
from regard.data.batches import Batches, Position, pack, permute
from regard.data.examples import Example
from regard.data.layouts import Pairs
from regard.data.lines import BadLine
from regard.data.marks import BOS, EOS
from regard.data.modality import Modality
from regard.data.scan import Report
from regard.data.side import Array, Field
from regard.data.sides import Sides
from regard.data.store import ExampleStore, item_bytes, usable, write_examples
from regard.data.tokenizers.kinds import train_tokenizer
from regard.data.tokenizers.symbols import Bytes
from regard.data.tokens import Tokenizer
from regard.data_settings import Data
from regard.errors import DataError
from regard.fingerprint import Fingerprint
from regard.section import SideSettings
from regard.settings import Config

BYTES = Bytes()


def sides_of(tokenizer: Tokenizer = BYTES, *, sampling: float = 0.0, longest: int = 100, sources: int = 1) -> Sides:
    """Texts in and a text out, all of them in the same tokens."""
    source = {"max_length": longest}
    settings = {
        "source": source if sources == 1 else [source] * sources,
        "target": {"max_length": longest},
        "tokens": {"kind": "bpe", "sampling": sampling},
    }
    sides = Sides.of(Config.parse(settings))
    sides.use({"tokens": tokenizer})
    return sides


def batches_of(
    store: ExampleStore, sides: Sides, *, budget: int | list[int], seed: int, window: int = 100_000
) -> Batches:
    budgets = [budget] * len(store.stores) if isinstance(budget, int) else budget
    return Batches(store, sides, Pairs(sides.source), budgets, seed, window)


def examples(count: int) -> list[Example]:
    return [Example("a" * (1 + i % 17), "b" * (1 + i * 7 % 23), f"f:{i + 1}") for i in range(count)]


def stored(
    folder: Path, some: list[Example], sides: Sides, data: Data | None = None, facts: dict[str, int] | None = None
) -> ExampleStore:
    return write_examples(
        folder, some, sides, data=data or Data(), report=Report("files"), made_from=Fingerprint(facts or {})
    )


def plain(folder: Path, count: int, sides: Sides | None = None, **facts: int) -> ExampleStore:
    return stored(folder, examples(count), sides or sides_of(), facts=facts)


@pytest.fixture(scope="module")
def subwords() -> Tokenizer:
    return train_tokenizer([f"{x.source} {x.target}" for x in examples(300)], "bpe", 300)


def epoch(batches: Batches, number: int = 0) -> list[tuple[Batch, Position]]:
    found = []
    for batch, position in batches.since(Position(number)):
        if position.epoch > number:
            break
        found.append((batch, position))
    return found


def test_marks_are_where_they_belong() -> None:
    batch = make_batch(sides_of().source.pack([[7, 8], []]), [[9], [6, 6, 6]])
    assert batch.source.tolist() == [[7, 8, EOS], [EOS]]
    assert batch.inputs.tolist() == [[BOS, 9], [BOS, 6, 6, 6]]
    assert batch.outputs.tolist() == [[9, EOS], [6, 6, 6, EOS]]
    assert batch.tokens == 6


@pytest.mark.parametrize("window", [10, 64, 100_000])
def test_an_epoch_holds_every_pair_once_within_budget(tmp_path: Path, window: int) -> None:
    batches = batches_of(plain(tmp_path, 300), sides_of(), budget=120, seed=3, window=window)
    seen: Counter[tuple[int, ...]] = Counter()
    for batch, _ in epoch(batches):
        assert max(batch.source.values.numel(), batch.outputs.values.numel()) <= 120
        for x, y in zip(batch.source.tolist(), batch.outputs.tolist(), strict=True):
            seen[(len(x), len(y))] += 1
    assert seen == Counter((len(x.source) + 1, len(x.target) + 1) for x in examples(300))


def test_epochs_and_seeds_differ_and_repeat(tmp_path: Path) -> None:
    store = plain(tmp_path, 300)

    def order(seed: int, number: int) -> list[list[list[int]]]:
        return [b.source.tolist() for b, _ in epoch(batches_of(store, sides_of(), budget=120, seed=seed), number)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


@pytest.mark.parametrize("sampling", [0.0, 0.2])
def test_any_position_can_be_reached_again(tmp_path: Path, subwords: Tokenizer, sampling: float) -> None:
    sides = sides_of(subwords, sampling=sampling)
    batches = batches_of(plain(tmp_path, 300, sides), sides, budget=120, seed=1, window=100)
    whole = list(islice(batches.since(Position()), 120))
    assert whole[-1][1].epoch >= 1
    for start in (0, 3, 50, 99):
        for (a, at), (b, again) in zip(whole[start + 1 :], batches.since(whole[start][1]), strict=False):
            assert (a.source.tolist(), a.outputs.tolist(), at) == (b.source.tolist(), b.outputs.tolist(), again)


def test_sampling_draws_anew_each_epoch(tmp_path: Path, subwords: Tokenizer) -> None:
    sides = sides_of(subwords, sampling=0.3)
    batches = batches_of(plain(tmp_path, 50, sides), sides, budget=100, seed=1)
    drawn = [Counter(tuple(x) for b, _ in epoch(batches, number) for x in b.source.tolist()) for number in (0, 1)]
    assert drawn[0] != drawn[1]


def test_what_is_drawn_too_long_falls_back_to_the_usual_tokens(tmp_path: Path, subwords: Tokenizer) -> None:
    """On either side; all else stays as it was drawn."""
    usual = [
        Counter(map(tuple, subwords.encode_many(texts)))
        for texts in ([x.source for x in examples(60)], [x.target for x in examples(60)])
    ]
    most = max(map(len, usual[0] | usual[1]))
    lengths: list[list[int]] = []
    both: list[list[Counter[tuple[int, ...]]]] = []
    for longest in (10**6, most):
        sides = sides_of(subwords, sampling=0.5, longest=longest)
        store = plain(tmp_path, 60, sides)
        rows = [
            (tuple(x[:-1]), tuple(y[:-1]))
            for batch, _ in epoch(batches_of(store, sides, budget=100, seed=1))
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
    batches = batches_of(plain(tmp_path, 2000), sides_of(), budget=400, seed=3)
    padded = sum(len(b.outputs) * b.outputs.longest for b, _ in epoch(batches))
    assert padded < 1.1 * sum(b.tokens for b, _ in epoch(batches))


@given(
    st.integers(1, 3).flatmap(
        lambda sides: st.tuples(
            st.lists(st.tuples(*[st.integers(1, 30)] * sides), min_size=1), st.tuples(*[st.integers(1, 80)] * sides)
        )
    )
)
def test_packs_hold_all_and_keep_the_budget_of_every_side(
    given: tuple[list[tuple[int, ...]], tuple[int, ...]],
) -> None:
    rows, budgets = given
    costs = [np.array(side) for side in zip(*rows, strict=True)]
    packs = pack(costs, budgets)
    assert sorted(np.concatenate(packs).tolist()) == list(range(len(rows)))
    for members in packs:
        within = [cost[members].sum() <= budget for cost, budget in zip(costs, budgets, strict=True)]
        assert all(within) or len(members) == 1


def test_packs_are_as_large_as_the_budgets_allow() -> None:
    """One more example, and some side would be over its budget."""
    costs = [np.array([2, 2, 3, 3, 9, 9]), np.array([5, 5, 5, 5, 5, 5])]
    assert [members.tolist() for members in pack(costs, [10, 100])] == [[0, 1, 2, 3], [4], [5]]
    assert [members.tolist() for members in pack(costs, [100, 10])] == [[0, 1], [2, 3], [4, 5]]
    assert [members.tolist() for members in pack(costs, [100, 100])] == [[0, 1, 2, 3, 4, 5]]


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
        batches = batches_of(plain(tmp_path / str(count), count), sides_of(), budget=200, seed=1, window=1000)
        tracemalloc.start()
        for _ in islice(batches.since(Position()), 200):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_a_store_is_made_anew_only_if_it_must(tmp_path: Path) -> None:
    plain(tmp_path, 10, size=1)
    before = (tmp_path / "source.values").stat().st_mtime_ns
    plain(tmp_path, 10, size=1)
    assert (tmp_path / "source.values").stat().st_mtime_ns == before
    assert len(plain(tmp_path, 20, size=2)) == 20


def write(folder: Path, some: list[Example], bad_lines: str, sides: Sides | None = None) -> ExampleStore:
    data = Data.model_validate({"bad_lines": bad_lines, "bad_limit": 0.8})
    return stored(folder, some, sides or sides_of(longest=5), data)


def test_bad_pairs_are_left_out_and_named(tmp_path: Path) -> None:
    mixed = [Example("a", "b", "f:1"), Example("", "b", "f:2"), Example("a", "bbbbbb", "f:3"), Example("a", " ", "f:4")]
    store = write(tmp_path, mixed, "skip")
    assert len(store) == 1
    assert store.report is not None
    assert "left out 3 of 4 lines: 2 blank, 1 too long" in store.report
    assert "f:3 has a target of 6 tokens, longer than target.max_length=5" in store.report


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            Example("a", "", "f:9"),
            r"1 of 2 lines cannot be used: 1 blank; mend or remove them, .*\n  f:9 has an empty target",
        ),
        (
            Example("aaaaaa", "b", "f:9"),
            r"1 too long; .*\n  f:9 has a source of 6 tokens, longer than source\.max_length=5",
        ),
    ],
)
def test_bad_pairs_can_stop_training(tmp_path: Path, bad: Example, message: str) -> None:
    with pytest.raises(DataError, match=message):
        write(tmp_path, [Example("a", "b", "f:1"), bad], "error")


def test_nothing_left(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"files has no line that can be used: 1 blank\n  f:1 has an empty source"):
        write(tmp_path, [Example("", "b", "f:1")], "skip")


# Several sources


def test_an_epoch_of_several_sources_keeps_the_budget_of_each(tmp_path: Path) -> None:
    sides = sides_of(sources=2)
    some = [Example(("a" * (1 + i % 17), "c" * (1 + i % 5)), "b" * (1 + i * 7 % 23), f"f:{i}") for i in range(300)]
    store = stored(tmp_path, some, sides)
    assert [path.name for path in sorted(tmp_path.glob("*.values"))] == [
        "source.values",
        "source1.values",
        "target.values",
    ]
    budgets = [200, 30, 90]
    seen: Counter[tuple[int, ...]] = Counter()
    full = [False, False, False]
    for batch, _ in epoch(batches_of(store, sides, budget=budgets, seed=3, window=64)):
        parts = (*batch.source.parts, batch.outputs)
        totals = [len(part.values) for part in parts]
        assert all(total <= budget for total, budget in zip(totals, budgets, strict=True))
        full = [was or budget - total < 10 for was, total, budget in zip(full, totals, budgets, strict=True)]
        seen.update(zip(*(part.lengths.tolist() for part in parts), strict=True))
    assert seen == Counter((len(x.source[0]) + 1, len(x.source[1]) + 1, len(x.target) + 1) for x in some)
    assert full == [False, True, True]  # 200 is never what stops a batch


def test_a_side_of_several_that_is_drawn_anew_leaves_the_others_as_they_are(
    tmp_path: Path, subwords: Tokenizer
) -> None:
    own = {"kind": "bpe", "sampling": 0.5}
    sides = Sides.of(Config.parse({"source": [{}, {"tokens": own}], "tokens": {"kind": "byte"}}))
    sides.use({"tokens": BYTES, "source2": subwords})
    some = [Example(("a" * (1 + i % 17), "b" * (1 + i % 13)), "c", f"f:{i}") for i in range(40)]
    batches = batches_of(stored(tmp_path, some, sides), sides, budget=100, seed=1)
    rows = [
        [Counter(tuple(row) for batch, _ in epoch(batches, number) for row in batch.source.parts[part].tolist())
         for number in (0, 1)] for part in (0, 1)
    ]  # fmt: skip
    assert rows[0][0] == rows[0][1] == Counter((*BYTES.encode(x.source[0]), EOS) for x in some)
    assert rows[1][0] != rows[1][1]
    for number in (0, 1):
        texts = Counter(subwords.decode(row[:-1]) for row in rows[1][number].elements())
        assert texts == Counter(x.source[1] for x in some)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (("a", ""), "f:1 has an empty source 2"),
        (("aaaaaa", "a"), "f:1 has a source 1 of 6 tokens, longer than source[0].max_length=5"),
    ],
)
def test_which_of_several_sources_is_bad_is_said(tmp_path: Path, source: tuple[str, str], message: str) -> None:
    some = [Example(source, "b", "f:1"), Example(("a", "a"), "b", "f:2")]
    store = write(tmp_path, some, "skip", sides_of(longest=5, sources=2))
    assert len(store) == 1
    assert message in str(store.report)


# Chunks


class Heavy(Modality):
    """Items of as many bytes as their field says, and how many were asked for at once."""

    Settings = SideSettings
    dtype = "uint8"

    def __init__(self) -> None:
        super().__init__(SideSettings())
        self.asked: list[int] = []

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[Array]:
        self.asked.append(len(fields))
        if "bad" in fields:
            raise DataError("it is bad")
        return [np.zeros(int(field), np.uint8) for field in fields]


def chunks(sizes: list[str], chunk_bytes: int | None = None) -> tuple[list[int], list[str], list[BadLine]]:
    """How many items were encoded at once, the examples that came, and those that did not."""
    sides, source = sides_of(), Heavy()
    told: list[BadLine] = []
    some = [Example(size, "b", f"f:{i}") for i, size in enumerate(sizes, 1)]
    limit = {} if chunk_bytes is None else {"chunk_bytes": chunk_bytes}
    found = usable(some, Sides(sides.config, source, sides.target), told.append, **limit)
    places = [example.place for example, x, y in found if len(x) == int(example.source) and y]
    return source.asked, places, told


def test_chunks_are_bounded_by_bytes() -> None:
    asked, places, told = chunks(["1000"] * 100, chunk_bytes=8500)
    assert places == [f"f:{i}" for i in range(1, 101)]
    assert not told
    assert max(asked) == 8
    assert sum(asked) == 100
    asked, _, _ = chunks(["1000"] * 20, chunk_bytes=10)  # one is more than that
    assert set(asked) == {1}
    asked, _, _ = chunks(["1"] * 20_000)
    assert max(asked) == 4096


def test_chunks_shrink_where_items_grow() -> None:
    """What comes after large items is taken in small chunks, and in larger ones when items are small again."""
    asked, places, _ = chunks(["10"] * 400 + ["2000"] * 600 + ["10"] * 400, chunk_bytes=4000)
    assert len(places) == 1400
    ends = np.cumsum(asked).tolist()
    before, within, after = ([n for n, end in zip(asked, ends, strict=True) if low < end <= high]
                             for low, high in ((0, 400), (700, 1000), (1010, 1400)))  # fmt: skip
    assert max(before) > 100
    assert set(within) == {2}
    assert max(after) > 100


def test_a_bad_one_among_many_is_found_by_itself() -> None:
    asked, places, told = chunks(["5", "5", "5", "bad", "5"])
    assert places == ["f:1", "f:2", "f:3", "f:5"]
    assert [(bad.place, bad.kind) for bad in told] == [("f:4", "unreadable")]
    assert "cannot be used: it is bad" in str(told[0])
    assert sum(asked) > 5


@pytest.mark.parametrize("begins", [False, True])
def test_there_is_room_for_the_longest_source_with_its_marks_and_for_no_more(tmp_path: Path, begins: bool) -> None:
    """A learnt position more would be one too many for a model that has as many as its data need."""
    sides = sides_of(sources=2)
    store = stored(
        tmp_path / "store", [Example(("a" * (i % 7 + 1), "b" * (i % 5 + 1)), "c", "f:1") for i in range(40)], sides
    )
    for part in sides.source.parts:
        part.begins = begins  # type: ignore[attr-defined]
    batches = batches_of(store, sides, budget=100, seed=1)
    sources = [parts_of(batch.source) for batch, _ in epoch(batches)]
    longest = tuple(max(part.longest for part in some) for some in zip(*sources, strict=True))
    assert batches.room.sources == longest == (8 + begins, 6 + begins)


def test_how_much_memory_items_take() -> None:
    assert item_bytes(np.zeros((3, 5), np.float32)) == 60
    assert item_bytes([1, 2, 3]) == 24
    assert item_bytes((np.zeros(7, np.uint8), [1, 2])) == 23
