"""What a step of training takes at least, counted: operations of all matrix products, and bytes that must be moved.

Forward and backward are counted as three times forward. Attention counts the pairs that see each other, no padding and
nothing ahead. Norms, dropout, the loss and the softmax are left out, so the floor is one that nothing can go below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from regard.bench.workload import Shape
from regard.data.batches import Index

BYTES = 2  # of a number that a matrix product reads or writes, in bfloat16
UPDATE_BYTES = 4 * (4 + 3 + 1)  # of a weight: AdamW reads four numbers and writes three, clipping reads one, in float32


@dataclass(frozen=True)
class Product:
    """`times` products of `(rows, inner)` and `(inner, columns)`."""

    rows: float
    inner: int
    columns: float
    times: int = 1

    @property
    def operations(self) -> float:
        return 2.0 * self.rows * self.inner * self.columns * self.times

    @property
    def numbers(self) -> float:
        """Read and written, each once."""
        return (self.rows * self.inner + self.inner * self.columns + self.rows * self.columns) * self.times


@dataclass(frozen=True)
class Pairs:
    """Scores and contexts of attention: so many pairs of positions, each `width` numbers wide, in `times` layers.

    A fused kernel writes no scores, so it moves no more than `positions` of queries, keys, values and contexts.
    """

    pairs: float
    positions: float
    width: int
    times: int = 1

    @property
    def operations(self) -> float:
        return 4.0 * self.pairs * self.width * self.times

    @property
    def numbers(self) -> float:
        return 2.0 * self.positions * self.width * self.times


def products(shape: Shape, source: Index, target: Index, *, square: bool = False) -> Iterator[Product | Pairs]:
    """All of one forward pass. Lengths have their marks counted; `square` counts pairs ahead in the target too."""
    s, t, d = int(source.sum()), int(target.sum()), shape.d_model
    across = float((source * target).sum())
    if shape.kind == "lstm":
        yield from _recurrent(shape, s, t, len(source), across)
    else:
        n, f = shape.layers, shape.d_ff
        around = float((source * source).sum())
        back = float((target * target).sum() if square else (target * (target + 1)).sum() / 2)
        yield Product(s, d, d, 4 * n)  # the encoder's queries, keys, values, outputs
        yield Pairs(around, 2 * s, d, n)
        yield Product(s, d, f, 2 * n)
        yield Product(t, d, d, 6 * n)  # the decoder's own four, and queries and outputs across
        yield Product(s, d, d, 2 * n)  # keys and values across
        yield Pairs(back, 2 * t, d, n)
        yield Pairs(across, s + t, d, n)
        yield Product(t, d, f, 2 * n)
    yield Product(t, d, shape.vocabulary)


def _recurrent(shape: Shape, s: int, t: int, rows: int, across: float) -> Iterator[Product | Pairs]:
    n, d = shape.layers, shape.d_model
    yield Product(s, d + d // 2, 2 * d, 2 * n)  # four gates of half the width, both ways
    yield Product(rows, d, 2 * n * d)  # from the summary to the decoder's first state
    yield Product(t, 3 * d, 4 * d)  # token, fed-back output and state
    yield Product(t, 2 * d, 4 * d, n - 1)
    yield Product(s, d, d)  # keys of the bilinear score
    yield Pairs(across, s + t, d)
    yield Product(t, 2 * d, d)


def operations(shape: Shape, source: Index, target: Index, *, square: bool = False) -> float:
    """Multiplications and additions of a step."""
    return 3.0 * sum(x.operations for x in products(shape, source, target, square=square))


def floor_seconds(shape: Shape, source: Index, target: Index, parameters: int, peak: float, bandwidth: float) -> float:
    """The least a step can take: each product at `peak` operations or `bandwidth` bytes a second, then the update."""
    each = (max(x.operations / peak, x.numbers * BYTES / bandwidth) for x in products(shape, source, target))
    return 3.0 * sum(each) + parameters * UPDATE_BYTES / bandwidth
