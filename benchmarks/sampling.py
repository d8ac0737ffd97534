"""What do ways to search and to draw write? BLEU and chrF of each, side by side, over one model.

    python benchmarks/sampling.py runs/demo runs/phrasebook-de/test.tsv

Beam and greedy search, sampling from all of the model's distribution and from a part of it, and minimum Bayes risk over
16 and 64 samples, from all of the distribution and from what epsilon leaves. What is drawn is drawn under several
seeds: the mean, and in brackets the lowest and the highest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

import regard
from regard.bench.report import hardware
from regard.data.corpora import read_files
from regard.data.tokens import clean
from regard.evaluation.metrics import Score, bleu_score, chrf_score

WAYS: dict[str, dict[str, Any]] = {
    "beam (5)": {"beam": 5},
    "greedy": {"beam": 1},
    "sampling": {"sample": True},
    "sampling, top-p 0.9": {"sample": True, "top_p": 0.9},
    "sampling, epsilon 0.02": {"sample": True, "epsilon": 0.02},
    "MBR (16), epsilon 0": {"mbr": 16, "epsilon": 0.0},
    "MBR (16), epsilon 0.02": {"mbr": 16, "epsilon": 0.02},
    "MBR (64), epsilon 0": {"mbr": 64, "epsilon": 0.0},
    "MBR (64), epsilon 0.02": {"mbr": 64, "epsilon": 0.02},
}


def table(system: regard.System, sources: list[str], references: list[str], seeds: int) -> str:
    """A row for each way, and the signatures."""
    rows, signatures = [], set()
    for name, options in WAYS.items():
        drawn = "sample" in options or "mbr" in options
        found: list[tuple[Score, Score]] = []
        start = time.perf_counter()
        for seed in range(1, (seeds if drawn else 1) + 1):
            outputs = [clean(text) for text in system.generate(sources, **options, seed=seed)]
            found.append((bleu_score(outputs, references), chrf_score(outputs, references)))
        seconds = (time.perf_counter() - start) / len(found)
        cells = [_cell([score.value for score in scores]) for scores in zip(*found, strict=True)]
        signatures |= {f"{score.name}: `{score.signature}`" for scores in found for score in scores}
        rows.append(f"| {name} | {' | '.join(cells)} | {seconds:.0f} |")
        print(rows[-1], flush=True)
    head = "| | BLEU | chrF | seconds |\n| --- | ---: | ---: | ---: |"
    return "\n".join([head, *rows, "", *sorted(signatures)])


def _cell(values: list[float]) -> str:
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} [{min(values):.1f}, {max(values):.1f}]" if len(values) > 1 else mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a model that writes")
    parser.add_argument("data", nargs="+", help="pairs, as for `regard evaluate`")
    parser.add_argument("--sentences", type=int, default=500, help="the first so many of the data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    system = regard.load(arguments.model, device=arguments.device)
    files = arguments.data[0] if len(arguments.data) == 1 else arguments.data
    examples = list(read_files(files, system.config.data))[: arguments.sentences]
    text = table(system, [x.source for x in examples], [clean(x.target) for x in examples], arguments.seeds)
    made = f"{hardware(system.task.device)}, torch {torch.__version__}, {date.today()}"
    print(f"\n{len(examples)} sentences, {arguments.seeds} seeds of what is drawn; {made}\n\n{text}")


if __name__ == "__main__":
    main()
