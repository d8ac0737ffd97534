"""What targets share that are predicted from several texts of one line, each read by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from regard.data.modality import Modality
from regard.data.side import Item
from regard.data.target import HeadTarget


class RowsTarget(HeadTarget):
    """A target whose items hold several sequences: how many there are, the length of each, and then all of them."""

    wrapped = True
    paired = True

    def rows(self, item: Item) -> list[Item]:
        count = int(item[0])
        bounds = accumulate((int(length) for length in item[1 : count + 1]), initial=count + 1)
        return [item[start:end] for start, end in pairwise(bounds)]

    def positions(self, source: Modality, item: Item, *, last: bool) -> list[int]:
        return [0] * int(item[0])


def bind(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Several sequences as one item."""
    return [len(rows), *map(len, rows), *(token for row in rows for token in row)]
