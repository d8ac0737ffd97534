"""Exact match where a model is told how long each output is: what of its errors is when to stop, and what is the rest.

    python recipes/given_length.py runs/scan recipes/scan/length-test.tsv

Models that end an output themselves learn at which positions outputs end, and so stop too early where they should write
more than they were trained on (Newman et al. 2020). Here `search.min_length` and `search.max_length` are the length of
the reference, greedily; texts are words between blanks.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import regard


def main(run: str, path: str) -> None:
    system = regard.load(run)
    by_length = defaultdict[int, list[tuple[str, str]]](list)
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        source, target = line.split("\t")
        by_length[len(target.split())].append((source, target))
    right = total = 0
    for length, pairs in sorted(by_length.items()):
        found = system.generate([source for source, _ in pairs], beam=1, min_length=length, max_length=length)
        hits = sum(output == target for output, (_, target) in zip(found, pairs, strict=True))
        print(f"{length:4} words: {hits:6,} of {len(pairs):6,}")
        right, total = right + hits, total + len(pairs)
    print(f"exact match {100 * right / total:.2f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
