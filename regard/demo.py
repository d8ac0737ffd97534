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

from regard.artifacts import file_digest
from regard.config import merge, override_settings, parse, resolve_paths
from regard.data.synthetic import corpus as corpora
from regard.display import counting, score_table, show, side_by_side
from regard.errors import ConfigError, require
from regard.explain.trace import save
from regard.presets import PRESETS
from regard.registry import TARGETS
from regard.settings import Config
from regard.system import System
from regard.tasks.results import Evaluation

WORDS = (5, 16)  # in an English sentence
SHOWN = 10  # outputs to show and draw
OTHERWISE = "give another --run, beside which a corpus can be"

_DATA: dict[str, Any] = yaml.safe_load(files("regard").joinpath("demo.yaml").read_text(encoding="utf-8"))
TASKS: dict[str, tuple[str, ...]] = {corpus: tuple(tasks) for corpus, tasks in _DATA["corpora"].items()}
# Examples to train on, for the first task of each corpus.
PAIRS: dict[str, int] = {corpus: _DATA["corpora"][corpus][tasks[0]]["train"] for corpus, tasks in TASKS.items()}

Train = Callable[[Config], System]


def corpus_settings(corpus: str, task: str | None = None, preset: str | None = None) -> dict[str, Any]:
    """The settings of the default model on a corpus, which lies beside the config (`demo.yaml`), or of a `preset`.
    Without a `task`, of the first one that the corpus is for."""
    facts = _facts(corpus, task)
    own = dict(facts["settings"])
    if preset is not None:
        if "preset" not in own:  # its model is one by itself, of which nothing should be left in another
            own.pop("model", None)
        own["preset"] = preset
        if "label" in facts and not _writes(preset):
            training = {name: value for name, value in own["training"].items() if name != "metric"}
            own |= {"target": {"kind": "label", "column": facts["label"]}, "training": training}
    return merge(merge({"data": _files(facts)}, _DATA["shared"]), own)


def _writes(preset: str) -> bool:
    """Whether a preset's target is written, and not predicted by a head; of an unknown one, that is said later."""
    target = PRESETS[preset].settings.get("target", "text") if preset in PRESETS else "text"
    return bool(TARGETS.settings(target["kind"] if isinstance(target, dict) else target).written)


def corpus_size(corpus: str, task: str) -> int:
    """How many examples to train on a corpus has by default."""
    return int(_facts(corpus, task)["train"])


def _facts(corpus: str, task: str | None) -> dict[str, Any]:
    """What `demo.yaml` says of a corpus and a task."""
    if corpus not in TASKS:
        raise ConfigError(f"unknown corpus '{corpus}'; there are: {', '.join(TASKS)}")
    if task is not None and task not in TASKS[corpus]:
        there = "; ".join(f"{name} for {', '.join(tasks)}" for name, tasks in TASKS.items())
        raise ConfigError(f"the corpus {corpus} is not for the task '{task}'; there are: {there}")
    facts: dict[str, Any] = _DATA["corpora"][corpus][task or TASKS[corpus][0]]
    return facts


def _files(facts: dict[str, Any]) -> dict[str, str]:
    return {split: f"{split}.{facts['ending']}" for split in ("train", "valid", "test")}


def make_corpus(
    corpus: str, folder: Path, language: str, size: int | None, words: tuple[int, int] | None, seed: int, *,
    task: str | None = None, text: Path | None = None, force: bool | None = None,
    otherwise: str = "give another folder",
) -> dict[str, str]:  # fmt: skip
    """Make a corpus for a `task` (None: its first) in `folder` if it is not there already; returns the file of each
    split.

    `size` and `words` are as in `demo.yaml` where they are None. `text` is a file whose lines `spoken` says instead of
    its own, each once at least where `size` is None. `force` replaces another corpus that Regard made there
    (None: there is no such option); `otherwise` is what an error advises.
    """
    known = _facts(corpus, task)
    if task in (None, TASKS[corpus][0]):
        task, usual = TASKS[corpus][0], PAIRS[corpus]
    else:
        usual = known["train"]
    whole = size is None
    size, words = usual if size is None else size, words or tuple(known.get("words", WORDS))
    facts = {"corpus": corpus, "language": language, "train": size, "words": list(words), "seed": seed}
    facts |= {} if task == TASKS[corpus][0] else {"task": task}
    names = _files(known)
    write_corpus = _WRITERS[corpus](task, language, words, known["ending"])
    if text is not None:
        from regard.data.synthetic import script

        lines = script.split(script.read(text, translated=task == "translate"), seed)
        facts["train"] = size = max(size, len(lines["train"])) if whole else size
        facts["text"] = file_digest(text)
        write_corpus = partial(write_corpus, script=lines)

    def write(new: Path) -> None:
        with counting("making the corpus", size + 1000) as progress:
            show_count = partial(progress.update, progress.task_ids[0])
            write_corpus(new, train=size, seed=seed, progress=lambda count: show_count(completed=count))

    all_names = [*names.values(), *([known["folder"]] if "folder" in known else [])]
    try:
        corpora.make(folder, facts, all_names, write, force=force, otherwise=otherwise)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return {split: str(folder / name) for split, name in names.items()}


# What writes a corpus, given a task, a language, the range of words and the ending of its files. Libraries that are not
# there are named before the work.


def _pairs_writer(corpus: str, task: str, language: str, words: tuple[int, int], ending: str) -> Callable[..., object]:
    from regard.data.synthetic import phrasebook, tagged

    # Both sides, or the English side alone, as plain text, or with a tag for each word.
    lines: dict[str, Callable[[phrasebook.Pair], str]] = {
        "phrasebook": attrgetter("line"),
        "text": attrgetter("source"),
        "tags": lambda pair: tagged.line(pair.source),
    }
    return partial(phrasebook.write, language=language, words=words, line=lines[corpus], ending=ending)


def _scenes_writer(task: str, language: str, words: tuple[int, int], ending: str) -> Callable[..., object]:
    require("PIL")
    from regard.data.synthetic import clips, questions, scenes

    writers: dict[str, Callable[..., object]] = {
        "caption": scenes.write,
        "paint": scenes.write,
        "classify": partial(scenes.write, labels=True),
        "vqa": questions.write,
        "video": clips.write,
    }
    return writers[task]


def _spoken_writer(task: str, language: str, words: tuple[int, int], ending: str) -> Callable[..., object]:
    require("espeakng_loader", "num2words", "babel")
    from regard.data.synthetic import spoken

    return partial(spoken.write, task=task, language=language, words=words)


_WRITERS: dict[str, Callable[[str, str, tuple[int, int], str], Callable[..., object]]] = {
    **{corpus: partial(_pairs_writer, corpus) for corpus in ("phrasebook", "text", "tags")},
    "scenes": _scenes_writer,
    "spoken": _spoken_writer,
}


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


def run_speech(run: Path, overrides: list[str], train: Train) -> None:
    """Make recordings, train, score on voices it has not heard, show transcripts, draw when each word was heard."""
    require("matplotlib", "espeakng_loader", "soundfile", "jiwer")  # before the work
    corpus = run.with_name("spoken")
    show(Rule("1. recordings of commands, digits and dates, with the time of each word", align="left"))
    made = make_corpus("spoken", corpus, "de", None, None, seed=1, task="commands", otherwise=OTHERWISE)
    typer.echo(
        f"{corpus}: {corpus_size('spoken', 'commands'):,} recordings to train on, and voices of their own to test on"
    )
    result = _train_and_show("spoken", "transcripts", made, run, overrides, train, task="commands")
    first = result.examples[0].source
    _advise(run, "generate", first, first, "runs/sentences", "--corpus spoken --task transcribe")


def _train_and_show(
    corpus: str, outputs: str, made: dict[str, str], run: Path, overrides: list[str], train: Train,
    task: str | None = None,
) -> Evaluation:  # fmt: skip
    """Train, score, show some outputs, and draw what was attended to."""
    show(Rule("2. training", align="left"))
    data = {split: str(Path(file).absolute()) for split, file in made.items()}
    settings = merge(corpus_settings(corpus, task), {"run": str(run), "data": data})
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
    typer.echo(f"  {regard} serve {run}    # then open http://127.0.0.1:8000, where it can be seen thinking")
