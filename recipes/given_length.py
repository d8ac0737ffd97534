"""Exact match where a model is told how long each output is: what of its errors is when to stop, and what is the rest.

    python recipes/given_length.py runs/scan recipes/scan/length-test.tsv

Models that end an output themselves learn at which positions outputs end, and so stop too early where they should write
more than they were trained on (Newman et al. 2020). Here `search.min_length` and `search.max_length` are the length of
the reference, greedily, so that it does not matter how likely an end is; texts are words between blanks. Without a file
of pairs, the run's test data are scored.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import regard


def counts(run: str, path: str | None = None) -> dict[int, tuple[int, int]]:
    """How many outputs of each length are right, and how many there are."""
    system = regard.load(run)
    by_length = defaultdict[int, list[tuple[str, str]]](list)
    for line in Path(path or str(system.config.data.test)).read_text(encoding="utf-8").splitlines():
        source, target = line.split("\t")
        by_length[len(target.split())].append((source, target))
    found = {}
    for length, pairs in sorted(by_length.items()):
        outputs = system.generate([source for source, _ in pairs], beam=1, min_length=length, max_length=length)
        right = sum(output == target for output, (_, target) in zip(outputs, pairs, strict=True))
        found[length] = right, len(pairs)
    return found


def exact(found: dict[int, tuple[int, int]]) -> float:
    """Percent of all outputs that are right."""
    right, total = map(sum, zip(*found.values(), strict=True))
    return 100 * right / total


def main(run: str, path: str | None = None) -> None:
    found = counts(run, path)
    for length, (right, total) in found.items():
        print(f"{length:4} words: {right:6,} of {total:6,}")
    print(f"exact match {exact(found):.2f}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
