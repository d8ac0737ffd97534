"""Commands that make models: new, train, compare, average, merge, models, demo."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.checks import check_config, check_folder, check_input, check_model, check_output
from regard.cli.options import Force, Json, Language, Overrides
from regard.cli.shared import app, files_of, report_json, say, talk, train_shown, warn, word_range, writing
from regard.errors import ConfigError, ModelError, OutputError, require


@app.command(short_help="Write a config for your own data or a synthetic corpus.")
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the config (and the corpus).")],
    preset: Annotated[
        str | None, typer.Option(help="Preset of the model; see `regard models` (transformer-tiny, or the demo's).")
    ] = None,
    train: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Your training data: a .tsv or .jsonl file, or two parallel text files (--train twice).",
        ),
    ] = None,
    valid: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Your validation data, in the same form.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="Make a synthetic corpus: phrasebook, text, tags, scenes or spoken.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Task of the corpus: scenes for caption, classify, vqa, video or paint; spoken for transcribe, "
            "commands or translate (default: the first of them)."
        ),
    ] = None,
    language: Language = "de",
    pairs: Annotated[int | None, typer.Option(min=1, help="Number of training examples in the corpus.")] = None,
    words: Annotated[
        str | None, typer.Option(help="Shortest and longest sentence of the corpus, in words (5-16, spoken 3-10).")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --corpus spoken: say the lines of this UTF-8 file. --seed draws an eighth of them for "
            "validation and another for test; with more --pairs than lines, lines recur in other voices. For --task "
            "translate: text, tab, translation.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the corpus.")] = 1,
    force: Force = False,
) -> None:
    """Write a commented config for your own data, or with a synthetic corpus."""
    from regard.artifacts import write_text
    from regard.config import commented, merge

    path = folder / "config.yaml"
    if path.exists() and not force:
        raise OutputError(f"{path} exists; give another folder, or --force to replace it")
    check_folder(folder)
    own = {"train": train or [], "valid": valid or []}
    if corpus is not None and (train or valid):
        raise ConfigError("--corpus makes data, and --train and --valid name your own; give one or the other")
    if task is not None and corpus is None:
        raise ConfigError(f"--task '{task}' is for a corpus that Regard makes; give --corpus too")
    if text is not None:
        if corpus != "spoken":
            there = f"--corpus {corpus} has texts of its own" if corpus else "there is no --corpus"
            raise ConfigError(f"--text gives what the corpus 'spoken' says, and {there}; give --corpus spoken")
        if words:
            raise ConfigError(
                f"--words {words} chooses among sentences that Regard makes, and the lines of --text are said as they "
                "are; give one or the other"
            )
        check_input(text)
    if words and corpus == "scenes":
        raise ConfigError(f"--words {words} chooses among sentences, and what scenes show says how long theirs are")
    check_input(*own["train"], *own["valid"], folders=True)
    settings: dict[str, Any] = {"preset": preset or "transformer-tiny", "run": "run"}
    # Paths in a config are relative to it, so that a folder can be moved with the data beside it.
    settings["data"] = {
        split: files_of([Path(os.path.relpath(file, folder)) for file in files])
        for split, files in own.items()
        if files
    }
    if corpus is not None:
        from regard.demo import corpus_settings

        settings = merge(corpus_settings(corpus, task, preset), {"run": "run"})
    config = commented(settings)
    with writing(folder):
        if corpus is not None:
            from regard.demo import make_corpus

            make_corpus(
                corpus, folder, language, pairs, word_range(words) if words else None, seed, task=task, text=text,
                force=force,
            )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, config)
    unset = [] if corpus else [f"data.{split}" for split, files in own.items() if not files]
    say(f"wrote {path}")
    first = f"set {' and '.join(unset)} in it, then " if unset else ""
    say(f"next: {first}regard train {path}")


@app.command(short_help="Train a model; rerun the command to resume.")
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML config; `regard new` writes one.")],
    overrides: Overrides = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Like NAME=VALUE, as in other commands.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model. To resume after an interruption, rerun the command."""
    from regard.config import load

    loaded = load(config, [*(overrides or []), *(settings or [])])
    check_config(loaded)
    system = train_shown(loaded)
    # Scored before anything is said: standard output may have lost its reader (`regard train … | head`).
    with writing(system.folder):
        result = system.test(warn) if system.config.data.split("test") else None
    if as_json:
        scores = {} if result is None else {name: score.to_json() for name, score in result.scores.items()}
        report_json({"model": str(system.folder), "parameters": system.parameters(), "test": scores})
        return
    say(f"trained: {system.folder}")
    if result is not None:
        from regard.display import score_table, show

        show(score_table(result.scores, f"{len(result.examples)} test examples"))
        for name, own in result.corpora.items():
            show(score_table(own, name))
    say(f"next: regard {'generate' if system.task.generates else 'evaluate'} {system.folder} FILE")


@app.command(short_help="Train several models under the same budget and compare them.")
def compare(
    configs: Annotated[
        list[Path] | None, typer.Argument(metavar="CONFIG", help="Configs of the models, on the same data.")
    ] = None,
    lecture: Annotated[
        bool,
        typer.Option(
            "--lecture", help="The standing experiment with ten models, from the last encoder state to the Transformer."
        ),
    ] = False,
    folder: Annotated[Path, typer.Option(help="Folder of the runs; rerun the command to resume there.")] = Path(
        "runs/compare"
    ),
    tokens: Annotated[int, typer.Option(help="Budget: target tokens to train on.")] = 0,
    seconds: Annotated[float, typer.Option(help="Budget: seconds of training.")] = 0.0,
    flops: Annotated[float, typer.Option(help="Budget: floating-point operations of training.")] = 0.0,
    seeds: Annotated[int, typer.Option(min=1, help="Train each model with seeds 1 to this.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL", help="With --lecture: only this model; may be repeated, and a wrong name lists all."
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Markdown page to write, with figures beside it (FOLDER/compare.md).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting for all models, such as tokens.size=4000."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train several models on the same data under the same budget, and write a page with scores, tests and figures."""
    from regard.config import load

    if lecture == bool(configs):
        raise ConfigError("give configs to compare, or --lecture")
    if only and not lecture:
        raise ConfigError("--only chooses among the models of --lecture; of configs, give those you want")
    models: dict[str, Any] = {}
    for path in configs or []:
        name = path.absolute().parent.name if path.stem == "config" else path.stem
        if name in models:
            raise ConfigError(f"two models have the same name: {name}")
        models[name] = load(path, settings)
        check_config(models[name])
    check_folder(folder)
    require("matplotlib")  # before the work
    from regard.compare.page import check_place, write_page
    from regard.compare.runner import Budget, folder_name
    from regard.compare.runner import compare as compare_models
    from regard.compare.tables import table
    from regard.data.scan import split_names
    from regard.display import show

    page = page or folder / "compare.md"
    check_place(page)  # before the work
    if lecture:
        from regard.compare import lecture as standing

        tokens = tokens if tokens or seconds or flops else standing.TOKENS
    budget = Budget(tokens, seconds, flops)
    for name in models:
        if folder.absolute() / folder_name(name) == page.with_suffix("").absolute():
            raise ConfigError(f"runs of the model '{name}' go where figures should; give it, or --page, another name")
    with writing(folder):
        if lecture:
            what = standing.lecture(folder, settings or [], only or [])
        else:
            trained = next(iter(models.values())).data
            data = f"trained on {trained.train if trained.corpora is None else split_names(trained, 'train')}"
            what = {"models": models, "folder": folder, "ideas": {}, "data": data}
        results = compare_models(
            **what, budget=budget, seeds=range(1, seeds + 1), command=shlex.join(["regard", *sys.argv[1:]]),
            train=train_shown, say=lambda text: None if talk.quiet else typer.echo(text, err=True),
        )  # fmt: skip
        write_page(results, page)
        if as_json:
            report_json(results.model_dump(mode="json"))
            return
        show(table(results))
        say(f"wrote {page}, with figures and results.json in {page.with_suffix('')}")


@app.command(short_help="Average the latest checkpoints into a new model.")
def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the averaged model.")],
    last: Annotated[int, typer.Option(min=1, help="Number of latest checkpoints.")] = 5,
    force: Force = False,
) -> None:
    """Average the weights of the latest checkpoints into a new model."""
    check_output(output, force=force, folder=True)
    check_model(run)
    import regard
    from regard.training.checkpoint import WEIGHTS, checkpoints, set_weights
    from regard.training.checkpoint import average as mean

    found = checkpoints(run / "checkpoints")[-last:]
    if not found:
        raise ModelError(f"no checkpoints in {run / 'checkpoints'}; give the folder of a training run")
    system = regard.load(run, device="cpu")
    if system.config.training.lora is not None:
        raise ConfigError(
            f"{run} was trained with training.lora, so its checkpoints hold adapters and not weights, and the mean of "
            "adapters is no adapter; give a run that trained all weights"
        )
    set_weights(system.task.model, mean(path / WEIGHTS for path in found), run)
    with writing(output):
        system.save(output, force=force)
    say(f"wrote {output}: the mean of {', '.join(path.name for path in found)}")


@app.command(short_help="Merge a LoRA adapter into the model that it was trained on.")
def merge(
    base: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model that the adapter was trained on.")],
    adapter: Annotated[
        Path, typer.Argument(metavar="ADAPTER", help="adapter.safetensors, or the folder of the run that wrote it.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the merged model.")],
    force: Force = False,
) -> None:
    """Merge a LoRA adapter (training.lora) into the model that its run started from (start.model)."""
    file = adapter / "adapter.safetensors" if adapter.is_dir() else adapter
    check_output(output, force=force, folder=True)
    check_model(base)
    if not file.exists():
        raise ModelError(f"no adapter {file}; a run with training.lora writes adapter.safetensors into its folder")
    import regard
    from regard.training.lora import put_adapter

    system = regard.load(base, device="cpu")
    put_adapter(system.task.model, file)
    with writing(output):
        system.save(output, force=force)
    say(f"wrote {output}: {base} with {file}")


@app.command()
def models(
    as_json: Json = False,
    vocabulary: Annotated[int, typer.Option(help="Vocabulary size to count parameters with.")] = 8000,
) -> None:
    """List the presets: published models, with their papers."""
    from regard.config import parse
    from regard.data.sides import Sides
    from regard.display import model_table, show
    from regard.loading import elements
    from regard.models.build import count_parameters
    from regard.presets import PRESETS

    rows = []
    for name, preset in PRESETS.items():
        config = parse({"preset": name})
        parameters = count_parameters(config.model, vocabulary, config.target, elements(Sides.of(config), vocabulary))
        rows.append({"name": name, "idea": preset.idea, "paper": preset.paper, "parameters": parameters})
    if as_json:
        report_json(rows)
        return
    show(model_table(rows))


@app.command(short_help="Demo: make a corpus, train, decode, score, draw attention.")
def demo(
    run: Annotated[Path | None, typer.Option(help="Folder for the model (runs/demo, captions or speech).")] = None,
    captions: Annotated[bool, typer.Option("--captions", help="Caption images instead of translating.")] = False,
    speech: Annotated[bool, typer.Option("--speech", help="Transcribe speech instead of translating.")] = False,
    language: Language = "de",
    overrides: Overrides = None,
) -> None:
    """Make a corpus, train the default model, decode, score, and draw its attention."""
    if captions and speech:
        raise ConfigError("--captions and --speech are two demos; give one of them")
    run = run or Path("runs/captions" if captions else "runs/speech" if speech else "runs/demo")
    check_folder(run)
    from regard.demo import run_captions, run_demo, run_speech

    with writing(run):
        if captions:
            run_captions(run, overrides or [], train_shown)
        elif speech:
            run_speech(run, overrides or [], train_shown)
        else:
            run_demo(run, language, overrides or [], train_shown)
