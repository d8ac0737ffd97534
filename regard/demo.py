"""`regard demo`: the whole way on a corpus that Regard makes by itself."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import typer
from rich.rule import Rule

from regard.config import merge, override_settings, parse, resolve_paths
from regard.data.synthetic import corpus as corpora
from regard.display import counting, score_table, show, side_by_side
from regard.errors import ConfigError, require
from regard.explain.trace import save
from regard.settings import Config
from regard.system import System
from regard.tasks.task import Evaluation

PAIRS = {"phrasebook": 20000, "text": 20000, "tags": 20000, "scenes": 16000}  # examples to train on
WORDS = (5, 16)  # in an English sentence
SHOWN = 10  # outputs to show and draw
ENDINGS = {"phrasebook": "tsv", "text": "txt", "tags": "tsv", "scenes": "jsonl"}
OTHERWISE = "give another --run, beside which a corpus can be"

Train = Callable[[Config], System]


def corpus_settings(corpus: str) -> dict[str, Any]:
    """The settings of the default model on a corpus, which lies beside the config."""
    if corpus not in ENDINGS:
        raise ConfigError(f"unknown corpus '{corpus}'; there are: {', '.join(ENDINGS)}")
    training = {
        "steps": 1500, "batch_tokens": 1024, "learning_rate": 4e-3, "warmup": 200, "schedule": "cosine",
        "validate_every": 500, "validate_sentences": 100, "save_every": 250,
    }  # fmt: skip
    settings: dict[str, Any] = {
        "data": {split: f"{split}.{ENDINGS[corpus]}" for split in ("train", "valid", "test")},
        "model": {"dropout": 0.0},  # minutes are a few epochs: there is nothing to hold back from yet
        "training": training,
    }
    match corpus:
        case "phrasebook":
            own = {"preset": "transformer-mini", "tokens": {"kind": "unigram", "size": 3500}}
        case "text":
            own = {"preset": "gpt-mini", "source": {"kind": "none"}, "tokens": {"kind": "unigram", "size": 2000}}
        case "tags":
            own = {
                "preset": "bert-mini",
                "source": {"kind": "text"},
                "target": {"kind": "tags"},
                "tokens": {"kind": "unigram", "size": 2000},
                "training": {"steps": 300, "validate_every": 100, "warmup": 50, "learning_rate": 2e-3},
            }
        case _:
            own = {
                "preset": "xu2015",
                "source": {"kind": "image"},
                "tokens": {"kind": "word"},
                "model": {"d_model": 128},
                "training": {"batch_tokens": 2048, "learning_rate": 2e-3, "warmup": 100, "steps": 3600,
                             "validate_every": 600, "metric": "exact", "label_smoothing": 0.0},
            }  # fmt: skip
    return merge(settings, own)


def make_corpus(
    corpus: str, folder: Path, language: str, size: int | None, words: tuple[int, int], seed: int, *,
    force: bool | None = None, otherwise: str = "give another folder",
) -> dict[str, str]:  # fmt: skip
    """The corpus in `folder`, made if it is not there already; which file is which split.

    `force` replaces another one that Regard made there (None: there is no such option); `otherwise` is what an error
    advises.
    """
    size = PAIRS[corpus] if size is None else size
    facts = {"corpus": corpus, "language": language, "train": size, "words": list(words), "seed": seed}
    names = {split: f"{split}.{ENDINGS[corpus]}" for split in ("train", "valid", "test")}
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
            ending=ENDINGS[corpus],
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
    show(Rule("1. a corpus with known word alignments", align="left"))
    made = make_corpus("phrasebook", corpus, language, None, WORDS, seed=1, otherwise=OTHERWISE)
    typer.echo(f"{corpus}: English to {phrasebook.LANGUAGES[language]}, sentences of {WORDS[0]} to {WORDS[1]} words")
    system, result = _train_and_score("phrasebook", made, run, overrides, train)
    _show_outputs("translations", run, system, result)
    regard = _program()
    other = "tr" if language == "de" else "de"
    first, second = (shlex.quote(example.source) for example in result.examples[:2])
    typer.echo(f"  echo {first} | {regard} translate {run} --nbest 3 --scores")
    typer.echo(f"  {regard} explain {run} {second} -o attention.html")
    typer.echo(
        f"  {regard} new runs/mine --corpus phrasebook --language {other} && {regard} train runs/mine/config.yaml"
    )


def run_captions(run: Path, overrides: list[str], train: Train) -> None:
    """Make the scenes, train, score, show captions, draw where each word looked."""
    require("matplotlib", "PIL")  # before the work
    corpus = run.with_name("scenes")
    show(Rule("1. pictures of things, with captions and the box of each thing named", align="left"))
    made = make_corpus("scenes", corpus, "de", None, WORDS, seed=1, otherwise=OTHERWISE)
    typer.echo(f"{corpus}: {PAIRS['scenes']:,} pictures to train on")
    system, result = _train_and_score("scenes", made, run, overrides, train)
    _show_outputs("captions", run, system, result)
    regard = _program()
    first = shlex.quote(result.examples[0].source)
    typer.echo(f"  echo {first} | {regard} generate {run} --nbest 3 --scores")
    typer.echo(f"  {regard} explain {run} {first} -o attention.html")
    typer.echo(f"  {regard} new runs/hard --corpus scenes --preset xu2015-hard && {regard} train runs/hard/config.yaml")


def _train_and_score(
    corpus: str, made: dict[str, str], run: Path, overrides: list[str], train: Train
) -> tuple[System, Evaluation]:
    show(Rule("2. training", align="left"))
    data = {split: str(Path(file).absolute()) for split, file in made.items()}
    settings = merge(corpus_settings(corpus), {"run": str(run), "data": data})
    config = parse(merge(settings, override_settings(overrides)), "the demo's settings")
    system = train(resolve_paths(config, Path.cwd()))
    show(Rule("3. scores on what it has not seen", align="left"))
    result = system.test()
    show(score_table(result.scores, f"{len(result.examples)} test examples"))
    return system, result


def _show_outputs(what: str, run: Path, system: System, result: Evaluation) -> None:
    show(Rule(f"4. {what}", align="left"))
    rows = [(x.source, output, x.target) for x, output in zip(result.examples, result.outputs, strict=True)][:SHOWN]
    show(side_by_side(rows))
    show(Rule("5. what it attended to", align="left"))
    if system.task.best_layer is not None:
        explained = [system.explain(source) for source, _, _ in rows]
        pictures = [save([x], run / "attention" / f"{i}.png") for i, x in enumerate(explained, 1)]
        page = save(explained, run / "attention.html")
        typer.echo(f"{len(pictures)} pictures in {pictures[0].parent}, and a page to look around in: {page}")
    show(Rule("next", align="left"))


def _program() -> str:
    """How to call this program from here: by name if that finds it, else by its path."""
    if shutil.which("regard"):
        return "regard"
    path = Path(sys.argv[0]).absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
