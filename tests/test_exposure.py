"""Exposure bias, the pointing game and the alignment error rate, by hand."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.evaluation.alignment import Alignment, AlignmentCounts, Link
from regard.evaluation.exposure import EDGES, Exposure, ExposureCounts, common

words = st.lists(st.integers(0, 3), max_size=7)


def is_in(part: list[int], whole: list[int]) -> bool:
    """Whether `part` is `whole` with some left out."""
    rest = iter(whole)
    return all(token in rest for token in part)


@given(words, words)
def test_common_is_a_longest_common_subsequence(reference: list[int], output: list[int]) -> None:
    kept = common(reference, output)
    assert len(kept) == len(reference)
    found = [token for token, keep in zip(reference, kept, strict=True) if keep]
    assert is_in(found, output)
    longest = next(
        size
        for size in range(len(reference), -1, -1)
        if any(is_in(list(part), output) for part in combinations(reference, size))
    )
    assert len(found) == longest


def test_common_by_hand() -> None:
    assert common([1, 2, 3, 4], [1, 9, 3, 4]) == [True, False, True, True]
    assert common([1, 2, 3], [3, 1, 2]) == [True, True, False]
    assert common([1, 2], []) == [False, False]
    assert common([], [1]) == []


def exposure(references: list[list[int]], forced: list[list[int]], outputs: list[list[int]]) -> Exposure:
    counts = ExposureCounts()
    for sentence in zip(references, forced, outputs, strict=True):
        counts.add(*sentence)
    return counts.result()


def test_exposure_by_hand() -> None:
    """Seven tokens and two: positions 1 to 5 hold seven of them, 6 and 7 two."""
    references = [[1, 2, 3, 4, 5, 6, 7], [8, 9]]
    forced = [[1, 2, 3, 4, 0, 6, 7], [8, 9]]
    outputs = [[1, 2, 0, 0, 5], [9]]
    found = exposure(references, forced, outputs)
    assert EDGES[:3] == (0, 5, 10)
    first, second = found.stretches
    assert (first.first, first.last, first.tokens) == (1, 5, 7)
    assert first.teacher_forced == pytest.approx(100 * 6 / 7)
    assert first.free_running == pytest.approx(100 * 4 / 7)
    assert (second.first, second.last, second.tokens) == (6, 7, 2)
    assert (second.teacher_forced, second.free_running) == (100.0, 0.0)
    assert found.teacher_forced == pytest.approx(100 * 8 / 9)
    assert found.free_running == pytest.approx(100 * 4 / 9)
    assert found.gap == pytest.approx(100 * 4 / 9)
    plain = found.to_json()
    assert plain["gap"] == found.gap
    assert plain["positions"][1] == {
        "first": 6, "last": 7, "tokens": 2, "teacher_forced": 100.0, "free_running": 0.0,
    }  # fmt: skip


def test_a_position_belongs_to_one_stretch() -> None:
    long = list(range(130))
    found = exposure([long], [long], [long])
    assert [(s.first, s.last) for s in found.stretches] == [
        (1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, 40), (41, 60), (61, 80), (81, 120), (121, 130),
    ]  # fmt: skip
    assert [s.tokens for s in found.stretches] == [5, 5, 5, 5, 10, 10, 20, 20, 40, 10]
    assert found.gap == 0
    assert found.free_running == 100


def test_exposure_of_nothing() -> None:
    found = exposure([], [], [])
    assert (found.stretches, found.teacher_forced, found.free_running) == ((), 0.0, 0.0)
    with pytest.raises(ValueError, match="zip"):
        ExposureCounts().add([1, 2], [1], [])


def gold(*links: tuple[int, int]) -> Alignment:
    return Alignment(frozenset(), frozenset(links))


def counted(found: list[list[Link]], truth: list[Alignment], places: list[int]) -> AlignmentCounts:
    counts = AlignmentCounts()
    for sentence in zip(found, truth, places, strict=True):
        counts.add(*sentence)
    return counts


def test_pointing_by_hand() -> None:
    """Of three words with gold links one is pointed right; chance: 2/4 and 1/4 of four places, 3/6 of six."""
    truth = [gold((0, 0), (1, 0), (3, 2)), gold((0, 1), (1, 1), (2, 1))]
    found = [[(1, 0), (2, 1), (2, 2)], [(5, 1)]]  # word 1 of the first has no gold, so its link counts for nothing
    counts = counted(found, truth, [4, 6])
    hits, chance = counts.pointing
    assert hits == pytest.approx(100 / 3)
    assert chance == pytest.approx(100 * (2 / 4 + 1 / 4 + 3 / 6) / 3)
    (score,) = counts.scores("layer:x").values()  # where no link is sure, there is no error rate
    assert (score.name, score.value, score.higher_is_better) == ("pointing", hits, True)
    assert score.signature == "layer:x|percent|chance:41.7"


def test_a_word_without_a_link_is_a_miss() -> None:
    assert counted([[]], [gold((0, 0))], [2]).pointing == (0.0, 50.0)
    assert counted([[(0, 0)]], [gold((0, 0))], [2]).pointing == (100.0, 50.0)
    assert counted([[(0, 0)]], [gold()], [2]).pointing == (0.0, 0.0)
    assert counted([], [], []).pointing == (0.0, 0.0)
    assert counted([], [], []).scores("") == {}


def test_alignment_error_rate_by_hand() -> None:
    """Och and Ney 2003: of five links found two are sure and three possible, of three sure ones."""
    truth = [Alignment.parse("0-0 1-1 1p2"), Alignment.parse("0-0")]
    found = [[(0, 0), (2, 1), (1, 2)], [(0, 0), (0, 1)]]
    counts = counted(found, truth, [3, 2])
    assert counts.error_rate == pytest.approx(1 - (2 + 3) / (5 + 3))
    scores = counts.scores("layer:x")
    assert list(scores) == ["pointing", "aer"]
    assert (scores["aer"].value, scores["aer"].higher_is_better) == (counts.error_rate, False)
    assert counted([], [], []).error_rate == 0.0
