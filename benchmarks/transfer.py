"""What is a body worth that was trained before? Tags for the words of a few sentences, with it and without.

    python benchmarks/transfer.py --folder runs/transfer --page docs/transfer.md

A BERT (filling in blanks) and a GPT (a language model) learn from plain English sentences of the phrasebook. Then each
gets a head that tells what every word is (a person, a thing, a name, an action, a quality, or nothing of these) and
learns from few sentences with tags: from the start (`from scratch`), with the trained body as it is (`body frozen`), or
with all of it going on to learn (`fine-tuned`), a GPT also with its language model's loss beside (`with LM loss`). What
is done already in the folder is not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from datetime import date
from pathlib import Path
from typing import Any

import torch

import regard
from regard.bench.report import hardware
from regard.config import merge
from regard.demo import corpus_settings, make_corpus
from regard.system import choose_device
from regard.training.checkpoint import write_text

BODIES = {"BERT": ("bert-mini", "encoder"), "GPT": ("gpt-mini", "decoder")}
WORDS = (5, 16)
BODY = {"steps": 1500, "batch_tokens": 2048, "learning_rate": 2e-3, "validate_every": 500, "tensorboard": False}
HEAD = {
    "steps": 200, "batch_tokens": 512, "learning_rate": 1e-3, "warmup": 20, "validate_every": 200, "save_every": 200,
    "log_every": 50, "label_smoothing": 0.0, "schedule": "cosine", "tensorboard": False,
}  # fmt: skip


def body(folder: Path, name: str, *, trained: bool = True) -> Path:
    """A body in its run; one that is not trained has the same tokens, and weights as they were drawn."""
    run = folder / (f"body-{name}" if trained else f"nobody-{name}")
    if not (run / "done").exists():
        files = make_corpus("text", folder / "text", "de", None, WORDS, 1)
        training = BODY if trained else {**BODY, "steps": 1, "learning_rate": 1e-30}
        settings = merge(corpus_settings("text"), {"preset": BODIES[name][0], "run": str(run), "training": training})
        settings["data"] = {"source": "none", **_absolute(files)}
        settings["tokens"] = {"kind": "word", "size": 4000}
        regard.train(regard.Config.parse(settings))
        (run / "done").touch()
    return run


def accuracy(folder: Path, name: str, way: str, size: int, seed: int, more: dict[str, Any]) -> float:
    """Percent of the words of the test set that are told right."""
    run = folder / "heads" / f"{name}-{way}-{size}-{seed}".replace(" ", "-")
    if not (run / "done").exists():
        # Sentences of other seeds than the body's; the test set is never trained on, by body or head.
        files = make_corpus("tags", folder / f"tags-{size}-{seed}", "de", size, WORDS, 10 + seed)
        files["test"] = make_corpus("tags", folder / f"tags-{size}-1", "de", size, WORDS, 11)["test"]
        preset, part = BODIES[name]
        settings = {
            "preset": preset,
            "run": str(run),
            "data": {"source": "text", **_absolute(files)},
            "tokens": {"kind": "word", "size": 4000},
            "model": {"dropout": 0.1, "head": "tags"},
            "start": {part: str(body(folder, name, trained=way != "from scratch").absolute())},
            "training": {**HEAD, "seed": seed},
        }
        system = regard.train(regard.Config.parse(merge(settings, more)))
        score = system.test().scores["accuracy"].value
        write_text(run / "done", json.dumps(score))
    return float(json.loads((run / "done").read_text()))


def ways(name: str) -> dict[str, dict[str, Any]]:
    part = BODIES[name][1]
    found: dict[str, dict[str, Any]] = {
        "from scratch": {},
        "body frozen": {"training": {"freeze": [part]}},
        "fine-tuned": {},
    }
    return found | ({"with LM loss": {"training": {"objective": {"language": 0.5}}}} if name == "GPT" else {})


def page(folder: Path, sizes: list[int], seeds: int) -> str:
    """The table, and how it was made."""
    rows = []
    for name in BODIES:
        for way, more in ways(name).items():
            cells = []
            for size in sizes:
                found = [accuracy(folder, name, way, size, seed, more) for seed in range(1, seeds + 1)]
                cells.append(f"{statistics.fmean(found):.1f} ± {statistics.pstdev(found):.1f}")
            rows.append(f"| {name}, {way} | {' | '.join(cells)} |")
    heads = " | ".join(f"{size:,} sentences" for size in sizes)
    made = f"{hardware(choose_device('auto'))}, torch {torch.__version__}, {date.today()}"
    return f"""# What a trained body is worth

A BERT and a GPT (`bert-mini`, `gpt-mini`: three blocks of 128) read 20,000 English sentences of the phrasebook, without
any tags. Then each gets a head that tells what every word is: a person, a thing, a name, an action, a quality, or none
of these. Percent of the words of 500 fresh sentences told right, after {HEAD["steps"]} updates on few sentences with
tags; mean ± standard deviation over {seeds} seeds, each with training sentences of its own.
On {made}.

```
python benchmarks/transfer.py --page docs/transfer.md
```

| | {heads} |
| --- |{" ---: |" * len(sizes)}
{chr(10).join(rows)}

The same with a config: `start.encoder` (of a GPT, `start.decoder`) names the trained body, `model.head` the head,
`training.freeze` what does not learn, `training.thaw` the update after which it does, and
`training.objective.language` the weight of the language model's loss (Radford et al. 2018 take 0.5).
"""


def _absolute(files: dict[str, str]) -> dict[str, str]:
    return {split: str(Path(file).absolute()) for split, file in files.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 100, 500])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", type=Path, help="write the page there")
    arguments = parser.parse_args()
    text = page(arguments.folder, arguments.sizes, arguments.seeds)
    print(text)
    if arguments.page:
        write_text(arguments.page, text)


if __name__ == "__main__":
    main()
