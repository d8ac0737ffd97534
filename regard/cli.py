"""The command line. What is heavy is imported inside the command that needs it, so that `--help` is quick."""

from __future__ import annotations

import json
import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.settings import Config
    from regard.system import System

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Models that turn one thing into another: train them, use them, see what they attend to.",
)


class Language(StrEnum):
    de = "de"
    tr = "tr"


ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of [search], such as no_repeat=3."),
]
Beam = Annotated[int | None, typer.Option(help="Hypotheses kept at each step (1: greedy).")]


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    if version:
        import regard

        typer.echo(f"regard {regard.__version__}")
        raise typer.Exit


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the config (and corpus).")],
    preset: Annotated[
        str | None, typer.Option(help="Model to start from; see `regard models` (transformer-tiny, or the demo's).")
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Also make a corpus: phrasebook, text or scenes.")] = None,
    language: Annotated[Language, typer.Option(help="Target language of the corpus.")] = Language.de,
    pairs: Annotated[int | None, typer.Option(help="Training examples of the corpus.")] = None,
    words: Annotated[str, typer.Option(help="Shortest and longest sentence of the corpus.")] = "5-16",
    seed: Annotated[int, typer.Option(help="Seed of the corpus.")] = 1,
    force: Force = False,
) -> None:
    """Write a commented config for your own data, or with a corpus that Regard makes by itself."""
    from regard.config import commented, merge
    from regard.errors import OutputError
    from regard.training.checkpoint import write_text

    path = folder / "config.yaml"
    if path.exists() and not force:
        raise OutputError(f"{path} exists; give another folder, or --force to replace it")
    settings: dict[str, Any] = {"preset": preset or "transformer-tiny", "run": "run"}
    if corpus is not None:
        from regard.demo import corpus_settings

        settings = merge(corpus_settings(corpus), {"run": "run"})
        settings["preset"] = preset or settings["preset"]
    text = commented(settings)
    folder.mkdir(parents=True, exist_ok=True)
    if corpus is not None:
        from regard.demo import make_corpus

        make_corpus(corpus, folder, language.value, pairs, _range(words), seed)
    write_text(path, text)
    typer.echo(f"wrote {path}")
    typer.echo(f"next: {'' if corpus else 'set data.train and data.valid in it, then '}regard train {path}")


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML config; `regard new` writes one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]…", help="Such as training.steps=500.")
    ] = None,
) -> None:
    """Train a model. Run it again to go on where it was cut off."""
    from regard.config import load

    system = _train(load(config, overrides))
    typer.echo(f"trained: {system.folder}")
    if system.config.data.test is not None:
        from regard.display import score_table, show

        result = system.test(_warn)
        show(score_table(result.scores, f"{len(result.examples)} test examples"))
    typer.echo(f"next: regard generate {system.folder} FILE")


@app.command()
def generate(
    model: ModelFolder,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A text a line (standard input if not given).")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here; cut off, it goes on.")] = None,
    beam: Beam = None,
    nbest: Annotated[int | None, typer.Option(help="Outputs for each line, parted by tabs.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw instead of searching.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Of sampling.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the K likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample among tokens that hold this share.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of sampling.")] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="MODEL", help="Another model to write with; may be given several times."),
    ] = None,
    prefixes: Annotated[Path | None, typer.Option(metavar="FILE", help="How each output begins, a line each.")] = None,
    phrases: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What each output must hold, a line each, parted by tabs.")
    ] = None,
    settings: Settings = None,
    scores: Annotated[bool, typer.Option("--scores", help="Add the score after each output.")] = False,
    align: Annotated[bool, typer.Option("--align", help="Add the word alignment (Pharaoh) after each output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line, with all of it.")] = False,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Write the output for each line of a file, a line each, in order. Also as `translate`.

    A line is a text to translate, the path of a picture, how a language model's output begins (an empty line: from
    nothing), or a text with <mask> where a token is to be filled in: whatever the model was trained on.
    """
    from regard.generation import Form, generate_lines

    given = {"beam": beam, "nbest": nbest, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    search = {**_search(settings), **{name: value for name, value in given.items() if value is not None}}
    if sample:
        search["sample"] = True
    form = Form(scores=scores, align=align, json=as_json)
    generate_lines(
        [model, *(others or [])], file, output, search, form, prefixes=prefixes, phrases=phrases, device=device,
        force=force, warn=_warn,
    )  # fmt: skip


app.command("translate", hidden=True, help="The same as generate.")(generate)


@app.command()
def score(
    model: ModelFolder,
    pairs: Annotated[
        list[Path],
        typer.Argument(metavar="DATA", help="One .tsv or .jsonl file, or two text files (a language model: one)."),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here.")] = None,
    perplexity: Annotated[bool, typer.Option("--perplexity", help="Add the perplexity of each line.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Add log p of each token.")] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="One long text: a language model reads each line after all before it.")
    ] = False,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Write log p(target given source) of each pair, a line each; of a language model, log p(text)."""
    from regard.errors import ConfigError
    from regard.generation import score_lines, stream_lines

    if stream and len(pairs) != 1:
        raise ConfigError(f"--stream reads one long text, not {len(pairs)} files")
    if stream:
        stream_lines(model, pairs[0], output, tokens=tokens, perplexity=perplexity, device=device, force=force)
    else:
        score_lines(
            model, _files(pairs), output, tokens=tokens, perplexity=perplexity, device=device, force=force, warn=_warn
        )


@app.command()
def evaluate(
    model: ModelFolder,
    data: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DATA]", help="Pairs as for score (the config's test or valid data)."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write scores and signatures here, as JSON.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the outputs here, a line each.")] = None,
    beam: Beam = None,
    settings: Settings = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """BLEU, chrF, TER, exact match, perplexity, and AER where there are gold alignments; with signatures."""
    import regard
    from regard.display import counting, exposure_table, score_table, show
    from regard.errors import OutputError
    from regard.training.checkpoint import write_text

    for path in (report, output):
        if path is not None and path.exists() and not force:
            raise OutputError(f"{path} exists; give another name, or --force to replace it")
    system = regard.load(model, device=device)
    files = _files(data) if data else system.config.data.test or system.config.data.valid
    search = {**_search(settings), **({} if beam is None else {"beam": beam})}
    with counting("evaluating", None) as progress:
        result = system.evaluate(
            files, warn=_warn, advance=lambda count: progress.advance(progress.task_ids[0], count), **search
        )
    if output is not None:
        write_text(output, "".join(line + "\n" for line in result.outputs))
    if report is not None:
        content = {
            "model": str(model),
            "data": files,
            "examples": len(result.examples),
            "search": system.search(**search).model_dump(),
            "scores": {name: score.to_json() for name, score in result.scores.items()},
            "exposure": result.exposure.to_json() if result.exposure else None,
            "regard": regard.__version__,
        }
        write_text(report, json.dumps(content, indent=1) + "\n")
    show(score_table(result.scores, f"{len(result.examples)} examples"))
    if result.exposure is not None:
        show(exposure_table(result.exposure))


@app.command()
def explain(
    model: ModelFolder,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT…", help="What to explain.")],
    target: Annotated[
        str | None, typer.Option(help="Explain this output of the (one) text, not the model's own.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help=".html, .png, .svg, .pdf or .json.")] = Path(
        "attention.html"
    ),
    layer: Annotated[str | None, typer.Option(help="Which attention a picture shows; a wrong name lists all.")] = None,
    head: Annotated[int | None, typer.Option(help="Which head a picture shows, from 0 (their mean).")] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="A picture with each head of the layer beside the others.")
    ] = False,
    beam: Beam = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Draw what the model attends to: a page for any number of texts, or a picture for one."""
    import regard
    from regard.errors import ConfigError
    from regard.explain.trace import save

    if target is not None and len(texts) != 1:
        raise ConfigError(f"--target goes with one text, not {len(texts)}")
    system = regard.load(model, device=device)
    search = {} if beam is None else {"beam": beam}
    explained = [system.explain(text, target, **search) for text in texts]
    typer.echo(f"wrote {save(explained, output, layer=layer, head=head, grid=grid, overwrite=force)}")


@app.command()
def compare(
    configs: Annotated[
        list[Path] | None, typer.Argument(metavar="[CONFIG]…", help="Configs of the models, on the same data.")
    ] = None,
    lecture: Annotated[
        bool, typer.Option("--lecture", help="The standing experiment: from the last state to the Transformer.")
    ] = False,
    folder: Annotated[Path, typer.Option(help="Where runs are kept; the same command goes on there.")] = Path(
        "runs/compare"
    ),
    tokens: Annotated[int, typer.Option(help="Budget: target tokens to train on.")] = 0,
    seconds: Annotated[float, typer.Option(help="Budget: seconds of training.")] = 0.0,
    flops: Annotated[float, typer.Option(help="Budget: floating-point operations of training.")] = 0.0,
    seeds: Annotated[int, typer.Option(min=1, help="Train each model with seeds 1 to this.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="With --lecture: some of its models; a wrong name lists all."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Markdown page to write, with figures beside it (FOLDER/compare.md).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting for all models, such as tokens.size=4000."),
    ] = None,
) -> None:
    """Train several models on the same data under the same budget, and show what each gives for it."""
    from regard.compare.command import make_plan, run_plan
    from regard.compare.runner import Budget

    plan = make_plan(
        configs or [], standing=lecture, only=only or [], seeds=seeds, folder=folder, settings=settings or [],
        budget=Budget(tokens, seconds, flops) if tokens or seconds or flops else None,
        command=shlex.join(["regard", *sys.argv[1:]]),
    )  # fmt: skip
    run_plan(plan, page or folder / "compare.md", _train)


@app.command()
def space(
    model: ModelFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A text a line; after a tab, the group it belongs to.")],
    output: Annotated[Path, typer.Option("--output", "-o", help=".png, .svg, .pdf or .json.")] = Path("space.png"),
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Draw sentences where the encoder puts them: its summaries, projected to the plane."""
    import regard
    from regard.data.corpora import read_lines
    from regard.errors import OutputError
    from regard.explain.space import space_plot

    if output.exists() and not force:
        raise OutputError(f"{output} exists; give another name, or --force to replace it")
    cells = [line.split("\t") for _, line in read_lines(file) if line.strip()]
    texts = [row[0] for row in cells]
    groups = [row[1] if len(row) > 1 else "" for row in cells]
    vectors = regard.load(model, device=device).summaries(texts)
    typer.echo(f"wrote {space_plot(vectors, texts, groups if any(groups) else None, output)}")


@app.command()
def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the averaged model.")],
    last: Annotated[int, typer.Option(min=1, help="How many latest checkpoints.")] = 5,
    force: Force = False,
) -> None:
    """Average the weights of the latest checkpoints into a new model."""
    import regard
    from regard.errors import ModelError, OutputError
    from regard.training.checkpoint import WEIGHTS, checkpoints, set_weights
    from regard.training.checkpoint import average as mean

    if output.exists() and not force:
        raise OutputError(f"{output} exists; give another folder, or --force to replace it")
    found = checkpoints(run / "checkpoints")[-last:]
    if not found:
        raise ModelError(f"no checkpoints in {run / 'checkpoints'}; give the folder of a training run")
    system = regard.load(run, device="cpu")
    set_weights(system.task.model, mean(path / WEIGHTS for path in found), run)
    system.save(output)
    typer.echo(f"wrote {output}: the mean of {', '.join(path.name for path in found)}")


@app.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    vocabulary: Annotated[int, typer.Option(help="Vocabulary to count parameters with.")] = 8000,
) -> None:
    """The models there are, with their papers."""
    from regard.config import parse
    from regard.display import model_table, show
    from regard.models.build import count_parameters
    from regard.presets import PRESETS

    rows = []
    for name, preset in PRESETS.items():
        parameters = count_parameters(parse({"preset": name}).model, vocabulary)
        rows.append({"name": name, "idea": preset.idea, "paper": preset.paper, "parameters": parameters})
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    show(model_table(rows))


@app.command()
def demo(
    run: Annotated[Path | None, typer.Option(help="Folder for the model (runs/demo, runs/captions).")] = None,
    captions: Annotated[bool, typer.Option("--captions", help="Pictures to captions instead of translation.")] = False,
    language: Annotated[Language, typer.Option(help="Target language.")] = Language.de,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]…", help="Such as training.steps=500.")
    ] = None,
) -> None:
    """Make a corpus, train the default model, translate, score, and draw its attention."""
    from regard.demo import run_captions, run_demo

    if captions:
        run_captions(run or Path("runs/captions"), overrides or [], _train)
    else:
        run_demo(run or Path("runs/demo"), language.value, overrides or [], _train)


def _train(config: Config) -> System:
    """Train with a display; a request to stop leaves with how to go on."""
    from regard.display import TrainingDisplay
    from regard.runs import Stopped
    from regard.runs import train as train_model

    try:
        with TrainingDisplay() as display:
            return train_model(config, display)
    except Stopped as stopped:
        typer.echo(f"{stopped}; the same command goes on from there", err=True)
        raise typer.Exit(130) from None


def _files(paths: list[Path]) -> str | list[str]:
    return str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]


def _search(settings: list[str] | None) -> dict[str, Any]:
    from regard.config import override_settings

    return override_settings(settings or [])


def _range(words: str) -> tuple[int, int]:
    from regard.errors import ConfigError

    low, dash, high = words.partition("-")
    if not (dash and low.isdigit() and high.isdigit()):
        raise ConfigError(f"cannot read --words '{words}'; write shortest-longest, such as 5-20")
    return int(low), int(high)


def _warn(text: str) -> None:
    typer.echo(f"regard: {text}", err=True)


def main() -> None:
    """The entry point: runs a command, and says what went wrong in a line."""
    try:
        app()
    except RegardError as error:
        for line in str(error).splitlines():
            typer.echo(f"regard: {line}", err=True)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has left; nothing more to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
