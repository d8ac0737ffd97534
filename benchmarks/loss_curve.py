"""Does the fast way of training learn what the plain way learns? One model, three ways, several seeds, on a phrasebook.

    python benchmarks/loss_curve.py --folder runs/loss-curve --plot docs/loss-curve.svg

`plain, float32` and `plain, bfloat16` are torch's own operators, one by one; `fast, bfloat16` is what `regard train`
does on a GPU: compiled blocks, Regard's kernels, the whole update recorded and replayed. A seed has the same first
weights and the same batches in the same order in every way; which numbers dropout drops differs, so there is a spread.
What is done already in the folder is not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import regard
from regard.config import merge
from regard.data.synthetic import phrasebook
from regard.nn import kernels

EVERY = 50  # updates that a mean loss is over
BASE: dict[str, Any] = {
    "tokens": {"kind": "unigram", "size": 3500},
    "model": {"d_model": 256, "dropout": 0.1, "share_embeddings": True,
              "encoder": {"kind": "transformer", "layers": 3, "heads": 4, "d_ff": 1024, "norm": "post"},
              "decoder": {"kind": "transformer", "layers": 3, "heads": 4, "d_ff": 1024, "norm": "post"}},
    "training": {"steps": 1000, "batch_tokens": 4096, "learning_rate": 1e-3, "warmup": 200, "schedule": "inverse_sqrt",
                 "label_smoothing": 0.1, "validate_every": 1000, "validate_sentences": 200, "save_every": 1000,
                 "log_every": EVERY, "tensorboard": False},
}  # fmt: skip
WAYS = {
    "plain, float32": {"compile": False, "precision": "float32"},
    "plain, bfloat16": {"compile": False, "precision": "bfloat16"},
    "fast, bfloat16": {"compile": True, "precision": "bfloat16"},
}


def losses(folder: Path, way: str, seed: int, steps: int) -> list[float]:
    """The mean training loss of each `EVERY` updates."""
    run = folder / f"{way.replace(', ', '-')}-{seed}"
    if not (run / "done").exists():
        data = {split: str((folder / f"{split}.tsv").absolute()) for split in phrasebook.SPLITS}
        own = {"run": str(run), "data": data, "training": {**WAYS[way], "seed": seed, "steps": steps}}
        with patch.object(kernels, "_INSTALLED", kernels._INSTALLED and way.startswith("fast")):
            regard.train(regard.Config.parse(merge(BASE, own)))
        (run / "done").touch()
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def table(found: dict[str, list[list[float]]]) -> str:
    """Mean and spread over the seeds at some updates, as Markdown."""
    count = len(next(iter(found.values()))[0])
    shown = sorted({max(1, round(count * part)) - 1 for part in (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)})
    lines = [
        ["mean loss of the updates up to", *(str((i + 1) * EVERY) for i in shown)],
        ["---", *["---:"] * len(shown)],
    ]
    for way, curves in found.items():
        values = [[curve[i] for curve in curves] for i in shown]
        lines.append([way, *(f"{statistics.fmean(x):.3f} ± {statistics.pstdev(x):.3f}" for x in values)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot(found: dict[str, list[list[float]]], path: Path) -> None:
    """Every curve of every way."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for number, (way, curves) in enumerate(found.items()):
        for i, curve in enumerate(curves):
            steps = [EVERY * (k + 1) for k in range(len(curve))]
            axes.plot(steps, curve, color=f"C{number}", alpha=0.7, linewidth=1, label=None if i else way)
    axes.set(xlabel="updates", ylabel="training loss", yscale="log")
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/loss-curve"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=BASE["training"]["steps"])
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here, and without one all three ways are one")
    if not (arguments.folder / "train.tsv").exists():
        phrasebook.write(arguments.folder)
    found = {way: [losses(arguments.folder, way, x, arguments.steps) for x in arguments.seeds] for way in WAYS}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {len(arguments.seeds)} seeds")
    print(table(found))
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
