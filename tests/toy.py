"""A language pair that a tiny model learns in seconds: words in capitals, back to front, with its alignment."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from regard.config import merge, parse, resolve_paths
from regard.data.examples import Example, read_files
from regard.data.sides import Sides
from regard.data.tokens import Tokenizer
from regard.loading import new_task
from regard.registry import TARGETS
from regard.settings import Config
from regard.tasks.task import Task

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def write_corpus(folder: Path, count: int = 400) -> None:
    draw = random.Random(0)
    for split, size in (("train", count), ("valid", max(count // 10, 2)), ("test", max(count // 10, 2))):
        lines = []
        for _ in range(size):
            words = [draw.choice(WORDS) for _ in range(draw.randint(2, 6))]
            target = " ".join(word.upper() for word in reversed(words))
            links = " ".join(f"{i}-{len(words) - 1 - i}" for i in range(len(words)))
            lines.append(f"{' '.join(words)}\t{target}\t{links}\n")
        (folder / f"{split}.tsv").write_text("".join(lines))


def toy_settings(**changes: Any) -> dict[str, Any]:
    return merge(
        {
            "preset": "attentive-small",
            "run": "run",
            "data": {"train": "train.tsv", "valid": "valid.tsv", "test": "test.tsv"},
            "tokens": {"kind": "word"},
            "model": {"d_model": 48},
            "training": {
                "steps": 150, "batch_tokens": 300, "learning_rate": 0.01, "warmup": 20, "schedule": "linear",
                "validate_every": 50, "validate_sentences": 20, "save_every": 25, "log_every": 10,
                "tensorboard": False, "device": "cpu",
            },
        },
        changes,
    )  # fmt: skip


def toy_config(folder: Path, **changes: Any) -> Config:
    return resolve_paths(parse(toy_settings(**changes)), folder)


def sides_of(source: Any = "text", target: Any = "text", **sections: Any) -> Sides:
    """The sides of a config whose model can read and write them."""
    kinds = [one.get("kind", "text") if isinstance(one, dict) else one
             for one in (source if isinstance(source, list) else [source])]  # fmt: skip
    written = TARGETS.settings(target.get("kind", "text") if isinstance(target, dict) else target).written
    model: dict[str, Any] = {"encoder": {"kind": "none" if kinds == ["none"] else "stem"}}
    if not written:
        model["decoder"] = {"kind": "none"}
    return Sides.of(parse(merge({"source": source, "target": target, "model": model}, sections)))


def toy_pairs(path: Path) -> list[Example]:
    """The examples of one of the corpus's files."""
    return list(read_files(str(path), Sides.of(Config()).form))


def untrained(config: Config, source: Tokenizer, target: Tokenizer | None = None, device: str = "cpu") -> Task:
    """A task of fresh weights with these tokens, and with those of the source where there are no others."""
    sides = Sides.of(config)
    sides.use(
        {name: target or source if "target" in sharers else source for name, sharers in sides.vocabularies.items()}
    )
    return new_task(sides, torch.device(device))
