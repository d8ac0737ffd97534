"""Exposure bias: a model learns after true prefixes, and in use writes after its own. How much does that cost?

Quality after true prefixes (teacher forced) is the share of reference tokens that the model would write next; quality
in free running is the share of reference tokens that its greedy output holds, in order. Both by position in the
reference: where errors breed errors, the gap between them grows along the sentence (Ranzato et al. 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

EDGES = (0, 5, 10, 15, 20, 30, 40, 60, 80, 120, 10**9)  # positions are counted in groups between these


@dataclass(frozen=True)
class Stretch:
    """Positions `first` to `last` of the references: how many tokens, and the shares in percent."""

    first: int
    last: int
    tokens: int
    teacher_forced: float
    free_running: float


@dataclass(frozen=True)
class Exposure:
    """Both qualities by position, and over all."""

    stretches: tuple[Stretch, ...]
    teacher_forced: float
    free_running: float

    @property
    def gap(self) -> float:
        """Percent of tokens that are lost to free running."""
        return self.teacher_forced - self.free_running

    def to_json(self) -> dict[str, Any]:
        shares = {name: getattr(self, name) for name in ("teacher_forced", "free_running", "gap")}
        return {**shares, "positions": [vars(stretch) for stretch in self.stretches]}


@dataclass
class ExposureCounts:
    """Token ids counted sentence by sentence: tokens, right when forced, right when free, for each group of
    positions."""

    counts: list[list[int]] = field(default_factory=lambda: [[0, 0, 0] for _ in EDGES[1:]])
    longest: int = 0

    def add(self, reference: Sequence[int], forced: Sequence[int], output: Sequence[int]) -> None:
        """Count a reference, what the model would write after each true prefix, and its greedy output."""
        kept = common(reference, output)
        self.longest = max(self.longest, len(reference))
        bucket = 0
        for position, (token, said) in enumerate(zip(reference, forced, strict=True)):
            while position >= EDGES[bucket + 1]:
                bucket += 1
            count = self.counts[bucket]
            count[0], count[1], count[2] = count[0] + 1, count[1] + (token == said), count[2] + kept[position]

    def result(self) -> Exposure:
        """Shares of what was counted."""
        stretches = [
            Stretch(EDGES[i] + 1, min(EDGES[i + 1], self.longest), n, 100.0 * right / n, 100.0 * free / n)
            for i, (n, right, free) in enumerate(self.counts)
            if n
        ]
        total, right, free = (sum(count[i] for count in self.counts) for i in range(3))
        return Exposure(tuple(stretches), 100.0 * right / max(total, 1), 100.0 * free / max(total, 1))


def common(reference: Sequence[int], output: Sequence[int]) -> list[bool]:
    """Which reference tokens are in a longest common subsequence with the output."""
    rows, columns = len(reference), len(output)
    length = [[0] * (columns + 1) for _ in range(rows + 1)]  # of what is left from i and j on
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            if reference[i] == output[j]:
                length[i][j] = length[i + 1][j + 1] + 1
            else:
                length[i][j] = max(length[i + 1][j], length[i][j + 1])
    kept, i, j = [False] * rows, 0, 0
    while i < rows and j < columns:
        if reference[i] == output[j]:
            kept[i] = True
            i, j = i + 1, j + 1
        elif length[i + 1][j] >= length[i][j + 1]:
            i += 1
        else:
            j += 1
    return kept
