"""What a training step takes at least, counted: FLOP of all matrix products, and bytes that have to be moved.

Forward and backward count as three times forward. Attention counts the pairs that attend to each other: no padding and
nothing ahead. Norms, dropout, softmax and loss are left out, so nothing can be faster than this bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.workload import Shape
from regard.data.batches import Index

BYTES = 2  # of a number that a matrix product reads or writes, in bfloat16
UPDATE_BYTES = 4 * (4 + 3 + 1)  # of a weight: AdamW reads four numbers and writes three, clipping reads one, in float32


class Cost(NamedTuple):
    """Of an operation: multiplications and additions, and numbers read or written."""

    flop: float
    numbers: float


def product(rows: float, inner: int, columns: float, times: int = 1) -> Cost:
    """`times` products of `(rows, inner)` and `(inner, columns)`."""
    numbers = rows * inner + inner * columns + rows * columns
    return Cost(2.0 * rows * inner * columns * times, numbers * times)


def attention(pairs: float, positions: float, width: int, times: int = 1) -> Cost:
    """Scores and contexts of so many pairs in `times` layers.

    A fused kernel writes no scores, so it moves only the `positions` of queries, keys, values and contexts.
    """
    return Cost(4.0 * pairs * width * times, 2.0 * positions * width * times)


def forward(shape: Shape, source: Index, target: Index, *, square: bool = False) -> Iterator[Cost]:
    """All of one forward pass. Lengths include special tokens; `square` counts pairs ahead in the target too."""
    n, d, f = shape.layers, shape.d_model, shape.d_ff
    s, t = int(source.sum()), int(target.sum())
    across = float((source * target).sum())
    if shape.kind == "lstm":
        yield product(s, d + d // 2, 2 * d, 2 * n)  # four gates of half the width, in both directions
        yield product(len(source), d, 2 * n * d)  # from the summary to the decoder's first state
        yield product(t, 3 * d, 4 * d)  # token, fed-back output and state
        yield product(t, 2 * d, 4 * d, n - 1)
        yield product(s, d, d)  # keys of the bilinear score
        yield attention(across, s + t, d)
        yield product(t, 2 * d, d)
    else:
        around = float((source * source).sum())
        back = float((target * target).sum() if square else (target * (target + 1)).sum() / 2)
        yield product(s, d, d, 4 * n)  # the encoder's queries, keys, values, outputs
        yield attention(around, 2 * s, d, n)
        yield product(s, d, f, 2 * n)
        yield product(t, d, d, 6 * n)  # the decoder's own four, and queries and outputs of cross-attention
        yield product(s, d, d, 2 * n)  # keys and values of cross-attention
        yield attention(back, 2 * t, d, n)
        yield attention(across, s + t, d, n)
        yield product(t, d, f, 2 * n)
    yield product(t, d, shape.vocabulary)


def step_flop(shape: Shape, source: Index, target: Index, *, square: bool = False) -> float:
    """Multiplications and additions of a training step."""
    return 3.0 * sum(cost.flop for cost in forward(shape, source, target, square=square))


def floor_seconds(shape: Shape, source: Index, target: Index, parameters: int, peak: float, bandwidth: float) -> float:
    """The least a step can take: each product at `peak` FLOP/s or `bandwidth` bytes/s, then the update."""
    each = (max(cost.flop / peak, cost.numbers * BYTES / bandwidth) for cost in forward(shape, source, target))
    return 3.0 * sum(each) + parameters * UPDATE_BYTES / bandwidth
