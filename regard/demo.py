"""`regard demo`: the whole way on a corpus that Regard makes by itself."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any

import typer
import yaml
from rich.rule import Rule

from regard.config import merge, override_settings, parse, resolve_paths
from regard.data.synthetic import corpus as corpora
from regard.display import counting, score_table, show, side_by_side
from regard.errors import ConfigError, require
from regard.explain.trace import save
from regard.settings import Config
from regard.system import System
from regard.tasks.results import Evaluation

WORDS = (5, 16)  # in an English sentence
SHOWN = 10  # outputs to show and draw
OTHERWISE = "give another --run, beside which a corpus can be"

_DATA: dict[str, Any] = yaml.safe_load(files("regard").joinpath("demo.yaml").read_text(encoding="utf-8"))
PAIRS: dict[str, int] = {name: corpus["train"] for name, corpus in _DATA["corpora"].items()}  # examples to train on

Train = Callable[[Config], System]


def corpus_settings(corpus: str) -> dict[str, Any]:
    """The settings of the default model on a corpus, which lies beside the config (`demo.yaml`)."""
    if corpus not in _DATA["corpora"]:
        raise ConfigError(f"unknown corpus '{corpus}'; there are: {', '.join(_DATA['corpora'])}")
    return merge(merge({"data": _files(corpus)}, _DATA["shared"]), _DATA["corpora"][corpus]["settings"])


def _files(corpus: str) -> dict[str, str]:
    return {split: f"{split}.{_DATA['corpora'][corpus]['ending']}" for split in ("train", "valid", "test")}


def make_corpus(
    corpus: str, folder: Path, language: str, size: int | None, words: tuple[int, int], seed: int, *,
    force: bool | None = None, otherwise: str = "give another folder",
) -> dict[str, str]:  # fmt: skip
    """Make a corpus in `folder` if it is not there already; returns the file of each split.

    `force` replaces another one that Regard made there (None: there is no such option); `otherwise` is what an error
    advises.
    """
    size = PAIRS[corpus] if size is None else size
    facts = {"corpus": corpus, "language": language, "train": size, "words": list(words), "seed": seed}
    names = _files(corpus)
    write_corpus: Callable[..., object]
    if corpus == "scenes":
        require("PIL")  # before the work
        from regard.data.synthetic import scenes

        write_corpus = partial(scenes.write, train=size, seed=seed)
    else:
        from regard.data.synthetic import phrasebook, tagged

        # Both sides, or the English side alone, as plain text, or with a tag for each word.
        lines: dict[str, Callable[[phrasebook.Pair], str]] = {
            "phrasebook": attrgetter("line"),
            "text": attrgetter("source"),
            "tags": lambda pair: tagged.line(pair.source),
        }
        write_corpus = partial(
            phrasebook.write, language=language, train=size, words=words, seed=seed, line=lines[corpus],
            ending=_DATA["corpora"][corpus]["ending"],
        )  # fmt: skip

    def write(new: Path) -> None:
        with counting("making the corpus", size + 1000) as progress:
            write_corpus(new, progress=lambda count: progress.update(progress.task_ids[0], completed=count))

    all_names = [*names.values(), *(["pictures"] if corpus == "scenes" else [])]
    try:
        corpora.make(folder, facts, all_names, write, force=force, otherwise=otherwise)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return {split: str(folder / name) for split, name in names.items()}


def run_demo(run: Path, language: str, overrides: list[str], train: Train) -> None:
    """Make the phrasebook, train, score, show translations, draw attention, and say what to try next."""
    require("matplotlib", "babel", "num2words")  # before the work
    from regard.data.synthetic import phrasebook

    corpus = run.with_name(f"phrasebook-{language}")
    about = f"English to {phrasebook.LANGUAGES[language]}, sentences of {WORDS[0]} to {WORDS[1]} words"
    other = "tr" if language == "de" else "de"
    show(Rule("1. a corpus with known word alignments", align="left"))
    made = make_corpus("phrasebook", corpus, language, None, WORDS, seed=1, otherwise=OTHERWISE)
    typer.echo(f"{corpus}: {about}")
    result = _train_and_show("phrasebook", "translations", made, run, overrides, train)
    first, second = (example.source for example in result.examples[:2])
    _advise(run, "translate", first, second, "runs/mine", f"--corpus phrasebook --language {other}")


def run_captions(run: Path, overrides: list[str], train: Train) -> None:
    """Make the scenes, train, score, show captions, draw where each word looked."""
    require("matplotlib", "PIL")  # before the work
    corpus = run.with_name("scenes")
    show(Rule("1. pictures of things, with captions and the box of each thing named", align="left"))
    made = make_corpus("scenes", corpus, "de", None, WORDS, seed=1, otherwise=OTHERWISE)
    typer.echo(f"{corpus}: {PAIRS['scenes']:,} pictures to train on")
    first = _train_and_show("scenes", "captions", made, run, overrides, train).examples[0].source
    _advise(run, "generate", first, first, "runs/hard", "--corpus scenes --preset xu2015-hard")


def _train_and_show(
    corpus: str, outputs: str, made: dict[str, str], run: Path, overrides: list[str], train: Train
) -> Evaluation:
    """Train, score, show some outputs, and draw what was attended to."""
    show(Rule("2. training", align="left"))
    data = {split: str(Path(file).absolute()) for split, file in made.items()}
    settings = merge(corpus_settings(corpus), {"run": str(run), "data": data})
    config = parse(merge(settings, override_settings(overrides)), "the demo's settings")
    system = train(resolve_paths(config, Path.cwd()))
    show(Rule("3. scores on what it has not seen", align="left"))
    result = system.test()
    show(score_table(result.scores, f"{len(result.examples)} test examples"))
    show(Rule(f"4. {outputs}", align="left"))
    rows = [(x.source, output, x.target) for x, output in zip(result.examples, result.outputs, strict=True)][:SHOWN]
    show(side_by_side(rows))
    show(Rule("5. what it attended to", align="left"))
    if system.task.best_layer is not None:
        explained = [system.explain(example) for example in result.examples[:SHOWN]]
        pictures = [save([x], run / "attention" / f"{i}.png") for i, x in enumerate(explained, 1)]
        page = save(explained, run / "attention.html")
        typer.echo(f"{len(pictures)} pictures in {pictures[0].parent}, and a page to look around in: {page}")
    return result


def _advise(run: Path, command: str, first: str, second: str, new: str, options: str) -> None:
    """Show commands to try next, with the program as it can be called from here: by name, or else by its path."""
    path = Path(sys.argv[0]).absolute()
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    regard = "regard" if shutil.which("regard") else str(near)
    show(Rule("next", align="left"))
    typer.echo(f"  echo {shlex.quote(first)} | {regard} {command} {run} --nbest 3 --scores")
    typer.echo(f"  {regard} explain {run} {shlex.quote(second)} -o attention.html")
    typer.echo(f"  {regard} new {new} {options} && {regard} train {new}/config.yaml")
