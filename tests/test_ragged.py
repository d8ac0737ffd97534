"""Ragged against plain lists."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.ragged import Ragged, Slices
from tests.conftest import rows_of

lists = st.lists(st.lists(st.integers(1, 99), max_size=6), max_size=6)
filled = st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=6)


def vectors(rows: list[list[int]]) -> Ragged:
    """Each number as a vector `(n, -n)` in float64."""
    x = Ragged.of(rows)
    return x.like(torch.stack((x.values, -x.values), dim=-1).double())


@given(lists)
def test_lists_come_back_as_they_went_in(rows: list[list[int]]) -> None:
    x = Ragged.of(rows)
    assert x.tolist() == rows
    assert len(x) == len(rows)
    assert x.longest == max(map(len, rows), default=0)
    assert x.lengths.tolist() == [len(row) for row in rows]
    assert x.values.shape == (sum(map(len, rows)),)
    assert (x.values.dtype, x.offsets.dtype) == (torch.long, torch.int32)


@given(lists)
def test_row_position_and_slot_say_where_each_value_stands(rows: list[list[int]]) -> None:
    x = Ragged.of(rows)
    places = [(i, t) for i, row in enumerate(rows) for t in range(len(row))]
    assert x.row.tolist() == [i for i, _ in places]
    assert x.position.tolist() == [t for _, t in places]
    assert x.slot.tolist() == [i * max(x.longest, 1) + t for i, t in places]


@given(lists, st.integers(-3, 0))
def test_padding_fills_up_and_is_cut_off_again(rows: list[list[int]], fill: int) -> None:
    x = Ragged.of(rows)
    width = max(x.longest, 1)
    padded = x.padded(fill)
    assert padded.shape == (len(rows), width)
    assert padded.tolist() == [row + [fill] * (width - len(row)) for row in rows]
    assert x.mask.shape == (len(rows), width)
    assert x.mask.tolist() == [[t < len(row) for t in range(width)] for row in rows]
    assert x.unpadded(padded).tolist() == rows
    assert x.unpadded(padded + 1).tolist() == [[n + 1 for n in row] for row in rows]
    assert Ragged.from_padded(padded, x.lengths.tolist()).tolist() == rows
    wider = torch.cat((padded, padded), dim=1)
    assert Ragged.from_padded(wider, x.lengths.tolist()).tolist() == rows


@given(lists)
def test_vectors_pad_and_unpad_like_numbers(rows: list[list[int]]) -> None:
    x = vectors(rows)
    assert x.padded().shape == (len(rows), max(x.longest, 1), 2)
    assert torch.equal(x.padded()[..., 0], Ragged.of(rows).padded().double())
    assert torch.equal(x.unpadded(x.padded()).values, x.values)


@given(lists)
def test_reversed_turns_each_row_and_twice_is_as_before(rows: list[list[int]]) -> None:
    x = Ragged.of(rows)
    assert x.reversed().tolist() == [row[::-1] for row in rows]
    assert x.reversed().reversed().tolist() == rows
    assert torch.equal(vectors(rows).reversed().values[:, 1], -x.reversed().values.double())


@given(lists)
def test_like_keeps_the_lengths_and_shares_what_is_known_of_them(rows: list[list[int]]) -> None:
    x = Ragged.of(rows)
    before = x.mask, x.slot
    other = x.like(x.values * 2)
    assert other.tolist() == [[2 * n for n in row] for row in rows]
    assert other.mask is before[0]
    assert other.slot is before[1]
    assert x.tolist() == rows


@given(filled)
def test_last_and_mean_are_of_each_row_and_zero_for_an_empty_one(rows: list[list[int]]) -> None:
    x = Ragged.of(rows)
    assert x.last().tolist() == [row[-1] if row else 0 for row in rows]
    means = [sum(row) / len(row) if row else 0.0 for row in rows]
    assert x.mean().tolist() == pytest.approx(means)
    pairs = vectors(rows)
    assert pairs.last().tolist() == [[row[-1], -row[-1]] if row else [0, 0] for row in rows]
    assert pairs.mean().flatten().tolist() == pytest.approx([sign * m for m in means for sign in (1, -1)])


@given(filled)
def test_a_weighted_mean_follows_scores_within_each_row(rows: list[list[int]]) -> None:
    x = vectors(rows)
    scores = (x.values[:, 0] / 10).requires_grad_()
    found = x.weighted(scores)
    for row, mean in zip(rows, found.tolist(), strict=True):
        weights = [math.exp(number / 10) for number in row]
        expected = sum(w * number for w, number in zip(weights, row, strict=True)) / sum(weights) if row else 0.0
        assert mean == pytest.approx([expected, -expected], rel=1e-4, abs=1e-6)
    more = x.filled(len(x.values) + 2, len(rows) + 1, fill=7)
    spare = more.weighted(torch.cat((scores, torch.tensor([90.0, 99.0]))))
    torch.testing.assert_close(spare[: len(rows)], found)
    found[:, 0].sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@given(filled)
def test_an_empty_row_takes_no_gradient_from_its_neighbour(rows: list[list[int]]) -> None:
    x = vectors(rows)
    values = x.values.requires_grad_()
    empty = torch.tensor([not row for row in rows])
    (x.like(values).last()[empty].sum() + x.like(values).mean()[empty].sum()).backward()
    assert values.grad is not None
    assert values.grad.eq(0).all()


@given(lists)
def test_by_step_takes_all_first_values_then_all_second_ones(rows: list[list[int]]) -> None:
    x = Ragged.of(rows)
    index, going, order = x.by_step
    assert sorted(index.tolist()) == list(range(len(x.values)))
    ranked = sorted((i for i, row in enumerate(rows) if row), key=lambda i: -len(rows[i]))
    assert order.tolist() == ranked
    assert going.tolist() == [sum(len(row) > t for row in rows) for t in range(x.longest)]
    assert x.values[index].tolist() == [rows[i][t] for t in range(x.longest) for i in ranked if t < len(rows[i])]


@given(filled)
def test_by_step_is_what_torch_packs(rows: list[list[int]]) -> None:
    """The kernels' own packing, from the padded form."""
    x = Ragged.of(rows)
    index, going, order = x.by_step
    if not len(order):
        return
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        x.padded()[order], x.lengths[order], batch_first=True, enforce_sorted=True
    )
    assert torch.equal(x.values[index], packed.data)
    assert torch.equal(going, packed.batch_sizes)


@given(lists)
def test_rows_split_where_the_offsets_say(rows: list[list[int]]) -> None:
    x = Ragged.from_lengths(torch.tensor([n for row in rows for n in row], dtype=torch.long), [len(r) for r in rows])
    assert x.offsets.tolist() == [sum(map(len, rows[:i])) for i in range(len(rows) + 1)]
    assert [row.tolist() for row in rows_of(x)] == rows


def test_to_a_device_keeps_all() -> None:
    x = Ragged.of([[1, 2], [], [3]])
    assert x.to(None) is x
    moved = x.to("meta")
    assert (moved.values.device.type, moved.offsets.device.type, moved.longest) == ("meta", "meta", 2)
    assert x.to("cpu").tolist() == x.tolist()
    assert Ragged.of([[1, 2]], device="meta").values.device.type == "meta"


@given(filled, st.data())
def test_select_takes_rows_in_any_order_and_several_times(rows: list[list[int]], data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    picked = Ragged.of(rows).select(torch.tensor(order, dtype=torch.long))
    assert picked.tolist() == [rows[i] for i in order]
    assert picked.longest == max((len(rows[i]) for i in order), default=0)
    assert (picked.values.dtype, picked.offsets.dtype) == (torch.long, torch.int32)
    pairs = vectors(rows).select(torch.tensor(order, dtype=torch.long))
    assert pairs.values[:, 1].tolist() == [-n for i in order for n in rows[i]]


@given(filled)
def test_twice_gives_all_rows_and_all_again(rows: list[list[int]]) -> None:
    x = Ragged.of(rows)
    lengths = x.known.tolist()
    both = x.twice()
    assert (both.tolist(), both.longest, both.known.tolist()) == (rows + rows, x.longest, lengths + lengths)
    total, count = x.values.shape[0] + 3, len(rows) + 2
    more = x.filled(total, count, fill=7).twice()
    assert (more.values.shape[0], len(more)) == (2 * total, 2 * count)
    assert more.tolist() == [*rows, [], [7, 7, 7], *rows, [], []]


@given(st.lists(st.tuples(*[st.lists(st.integers(1, 99), max_size=5)] * 2), max_size=6))
def test_joined_puts_one_row_after_the_other_and_says_where(pairs: list[tuple[list[int], list[int]]]) -> None:
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    x, y = Ragged.of(left), Ragged.of(right)
    both, place = x.joined(y)
    assert both.tolist() == [a + b for a, b in pairs]
    assert both.longest == max((len(a) + len(b) for a, b in pairs), default=0)
    assert both.offsets.dtype == torch.int32
    assert both.values[place].tolist() == y.values.tolist()
    assert place.shape == y.values.shape
    assert (x.tolist(), y.tolist()) == (left, right)
    assert vectors(left).joined(vectors(right))[0].values[:, 1].tolist() == [-n for a, b in pairs for n in a + b]


def test_joined_passes_gradients_to_both() -> None:
    x, y = (Ragged.from_lengths(torch.ones(3, requires_grad=True), [1, 2]) for _ in range(2))
    both, place = x.joined(y)
    (both.values * torch.arange(6.0)).sum().backward()
    assert x.values.grad is not None
    assert y.values.grad is not None
    assert x.values.grad.tolist() == [0, 2, 3]
    assert y.values.grad.tolist() == [1, 4, 5]
    assert place.tolist() == [1, 4, 5]


def test_slices_are_laid_end_to_end_as_sequences_are() -> None:
    values = np.arange(20, dtype=np.uint16)
    slices = Slices(values, np.array([3, 0, 9, 5]), np.array([7, 0, 12, 6])).some(np.array([2, 1, 0]))
    assert [part.tolist() for part in slices] == [[9, 10, 11], [], [3, 4, 5, 6]]
    every: list[dict[str, Any]] = [{}, {"before": [1]}, {"after": [2]}, {"before": [1, 3], "after": [2, 4]}]
    for marks in every:
        one, other = Ragged.of(slices, **marks), Ragged.of([part.tolist() for part in slices], **marks)
        assert one.tolist() == other.tolist()
        assert torch.equal(one.offsets, other.offsets)
        assert one.longest == other.longest


def test_rows_of_one_length_are_padded_as_they_lie() -> None:
    rows = Ragged.from_lengths(torch.arange(3), [2, 1])
    x = rows.even(torch.arange(12.0).view(6, 2).requires_grad_(), 3)
    assert x.uniform
    assert not rows.uniform
    assert not x.select(torch.tensor([1, 0])).uniform
    assert x.like(x.values + 1).uniform
    assert x.to("cpu").uniform
    plain = Ragged(x.values, x.offsets, x.longest)
    assert torch.equal(x.padded(), plain.padded())
    assert x.padded().data_ptr() == x.values.data_ptr()
    assert torch.equal(x.unpadded(x.padded() * 2).values, plain.unpadded(plain.padded() * 2).values)
    empty = rows.select(torch.tensor([], dtype=torch.long)).even(torch.zeros(0, 2), 3)
    assert empty.padded().shape == (0, 3, 2)
