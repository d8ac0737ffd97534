"""`regard demo`: the whole way on a corpus that Regard makes by itself."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.rule import Rule

from regard.config import Config, merge, override_settings, parse, resolve_paths
from regard.data.synthetic import phrasebook
from regard.display import counting, score_table, show, side_by_side
from regard.errors import ConfigError
from regard.explain.trace import save
from regard.system import System
from regard.training.checkpoint import write_text

PAIRS = 20000  # to train on
WORDS = (5, 16)  # in an English sentence
SHOWN = 10  # translations to show and draw


def demo_settings() -> dict[str, Any]:
    """The settings of the default model on the phrasebook corpus."""
    return {
        "preset": "transformer-mini",
        "tokens": {"kind": "unigram", "size": 3500},
        "model": {"dropout": 0.0},  # three minutes are a few epochs: there is nothing to hold back from yet
        "training": {"steps": 1500, "batch_tokens": 1024, "learning_rate": 4e-3, "warmup": 200, "schedule": "cosine",
                     "validate_every": 500, "validate_sentences": 100, "save_every": 250},
    }  # fmt: skip


def make_phrasebook(folder: Path, language: str, train: int, words: tuple[int, int], seed: int) -> dict[str, str]:
    """The corpus in `folder`, made if it is not there already; which file is which split."""
    facts = {"language": language, "train": train, "words": list(words), "seed": seed}
    note = folder / "phrasebook.json"
    files = {split: str(folder / f"{split}.tsv") for split in ("train", "valid", "test")}
    if note.exists() and json.loads(note.read_text()) == facts and all(Path(file).exists() for file in files.values()):
        return files
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with counting("making the corpus", train + 1000) as progress:
            phrasebook.write(
                folder, language=language, train=train, words=words, seed=seed,
                progress=lambda count: progress.update(progress.task_ids[0], completed=count),
            )  # fmt: skip
    except ValueError as error:
        raise ConfigError(str(error)) from None
    write_text(note, json.dumps(facts))
    return files


def run_demo(run: Path, language: str, overrides: list[str], train: Callable[[Config], System]) -> None:
    """Make the corpus, train, score, show translations, draw attention, and say what to try next."""
    corpus = run.with_name(f"phrasebook-{language}")
    show(Rule("1. a corpus with known word alignments", align="left"))
    data = make_phrasebook(corpus, language, PAIRS, WORDS, seed=1)
    typer.echo(f"{corpus}: English to {phrasebook.LANGUAGES[language]}, sentences of {WORDS[0]} to {WORDS[1]} words")
    show(Rule("2. training", align="left"))
    here = Path.cwd()
    settings = merge(demo_settings(), {"run": str(run), "data": {k: str(Path(v).absolute()) for k, v in data.items()}})
    system = train(resolve_paths(parse(merge(settings, override_settings(overrides)), "the demo's settings"), here))
    show(Rule("3. scores on sentences it has not seen", align="left"))
    result = system.test()
    show(score_table(result.scores, f"{len(result.examples)} test pairs"))
    show(Rule("4. translations", align="left"))
    rows = [(x.source, output, x.target) for x, output in zip(result.examples, result.outputs, strict=True)][:SHOWN]
    show(side_by_side(rows))
    show(Rule("5. what it attended to", align="left"))
    if system.task.best_layer is not None:
        explained = [system.explain(source) for source, _, _ in rows]
        pictures = [save([x], run / "attention" / f"{i}.png") for i, x in enumerate(explained, 1)]
        page = save(explained, run / "attention.html")
        typer.echo(f"{len(pictures)} pictures in {pictures[0].parent}, and a page to look around in: {page}")
    show(Rule("next", align="left"))
    regard = _program()
    other = "tr" if language == "de" else "de"
    typer.echo(f"  echo {shlex.quote(rows[0][0])} | {regard} translate {run} --nbest 3 --scores")
    typer.echo(f"  {regard} explain {run} {shlex.quote(rows[1][0])} -o attention.html")
    typer.echo(
        f"  {regard} new runs/mine --corpus phrasebook --language {other} && {regard} train runs/mine/config.yaml"
    )


def _program() -> str:
    """How to call this program from here: by name if that finds it, else by its path."""
    if shutil.which("regard"):
        return "regard"
    path = Path(sys.argv[0]).absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
