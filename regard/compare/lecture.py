"""The experiment of `regard compare --lecture`: from the last state alone, to the encoding at every step, to attention
with each score, to the Transformer (`lecture.yaml`).

They learn the phrasebook, whose sentences can be of any length, and are tested far beyond the lengths of training too.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from regard.artifacts import write_text
from regard.compare.runner import claim
from regard.config import merge, override_settings, parse, resolve_paths
from regard.data.synthetic import corpus as corpora
from regard.data.synthetic import phrasebook
from regard.errors import ConfigError

PAIRS = 20000
WORDS = (5, 16)  # of an English sentence in training
GROUPS = ((5, 8), (9, 12), (13, 16), (17, 20), (21, 28), (29, 40))
SENTENCES = 100  # of each group
TOKENS = 2_000_000  # the budget, if none is given
_DATA: dict[str, Any] = yaml.safe_load(files("regard.compare").joinpath("lecture.yaml").read_text(encoding="utf-8"))
MODELS: dict[str, dict[str, Any]] = _DATA["models"]


def lecture(folder: Path, overrides: list[str], only: list[str]) -> dict[str, Any]:
    """The arguments of `compare`, for all models or `only` some; makes the corpus in `folder` if it is not there."""
    for name in only:
        if name not in MODELS:
            raise ConfigError(f"no model '{name}' in the lecture; there are: {'; '.join(MODELS)}")
    paths = {split: folder / "corpus" / f"{split}.tsv" for split in (*phrasebook.SPLITS, "lengths")}
    data = {split: str(paths[split].absolute()) for split in phrasebook.SPLITS}
    shared, given = merge(_DATA["shared"], {"data": data}), override_settings(overrides)
    ideas = {name: known["idea"] for name, known in MODELS.items() if not only or name in only}
    settings = {name: merge(merge(shared, {"model": MODELS[name]["model"]}), given) for name in ideas}
    models = {name: resolve_paths(parse(own, name), folder) for name, own in settings.items()}
    claim(folder)
    facts = {"corpus": "lecture", "train": PAIRS, "words": [*WORDS], "groups": [[*x] for x in GROUPS],
             "sentences": SENTENCES}  # fmt: skip
    names, otherwise = [path.name for path in paths.values()], "give another --folder"
    corpora.make(folder / "corpus", facts, names, _write_corpus, otherwise=otherwise)
    return {
        "models": models, "folder": folder / "runs", "title": "From the last state to the Transformer", "ideas": ideas,
        "data": f"The synthetic phrasebook, English to German: {PAIRS:,} training pairs of {WORDS[0]} to {WORDS[1]} "
                f"English words, 500 test pairs of these lengths, and {SENTENCES} of each of the length groups below.",
        "lengths": str(paths["lengths"].absolute()), "groups": GROUPS, "trained": WORDS,
    }  # fmt: skip


def _write_corpus(folder: Path) -> None:
    """Write the training corpus, and test sentences of all lengths."""
    phrasebook.write(folder, train=PAIRS, words=WORDS)
    pairs = [pair for group in GROUPS for pair in phrasebook.pairs(SENTENCES, split="test", words=group, seed=2)]
    write_text(folder / "lengths.tsv", "".join(f"{pair.line}\n" for pair in pairs))
