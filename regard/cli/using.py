"""Commands that use a model: generate, score, evaluate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.checks import check_input, check_model, check_output
from regard.cli.options import Beam, Device, Force, Json, ModelFolder, Others, Output, Quantization, Settings
from regard.cli.shared import app, dash, files_of, report_json, search_settings, source_settings, talk, warn, writing
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.system import System
    from regard.tasks.results import Evaluation


Engine = Literal["regard", "ctranslate2"]


@app.command(short_help="Decode each line of a file. Also as `translate`.")
def generate(
    model: ModelFolder,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="One input per line (- or nothing: standard input); of a .tsv or .jsonl file, its source column.",
        ),
    ] = None,
    output: Output = None,
    beam: Beam = None,
    nbest: Annotated[int | None, typer.Option(help="Outputs per line, separated by tabs.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of searching.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the K likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling: total probability kept.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of sampling.")] = None,
    others: Others = None,
    prefixes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Forced beginning of each output, one per line.")
    ] = None,
    phrases: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Phrases that each output must contain: a line per input, separated by tabs."
        ),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="For text to image: write the images here; each output line names its image."
        ),
    ] = None,
    settings: Settings = None,
    scores: Annotated[bool, typer.Option("--scores", help="Add the score after each output.")] = False,
    align: Annotated[bool, typer.Option("--align", help="Add the word alignment (Pharaoh) after each output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON object per line, with all details.")] = False,
    engine: Annotated[
        Engine, typer.Option(help="Decoding engine; ctranslate2 also takes an exported folder.")
    ] = "regard",
    quantization: Quantization = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Decode each line of a file, one output line per input line, in order. Also as `translate`.

    An input line is what the model was trained on: a text to translate, the path of an image or a recording, a language
    model's prompt (an empty line: from nothing), or a text with <mask> for missing tokens.
    """
    file, output = dash(file), dash(output)
    given = {"beam": beam, "nbest": nbest, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    settings, read_as = source_settings(settings)
    search = {**search_settings(settings), **{name: value for name, value in given.items() if value is not None}}
    if sample:
        search["sample"] = True
    folders = [model, *(others or [])]
    if engine == "regard" and quantization is not None:
        raise ConfigError("--quantization goes with --engine ctranslate2; here, --set precision=int8")
    if engine == "ctranslate2" and len(folders) > 1:
        raise ConfigError("--with goes with --engine regard; CTranslate2 writes with one model")
    if engine == "ctranslate2" and read_as:
        raise ConfigError("--set source.… goes with --engine regard; CTranslate2 reads texts as in training")
    for folder in folders:
        check_model(folder, exported=engine == "ctranslate2")
    check_input(file, *(path for path in (prefixes, phrases) if path is not None))
    with _lines_to(output, (file, prefixes, phrases), force=force):
        from regard.generation import Form, generate_lines

        generate_lines(
            _loaded(folders, engine, quantization, device, read_as), folders, file, output, search,
            Form(scores=scores, align=align, json=as_json), prefixes=prefixes, phrases=phrases, pictures=pictures,
            read_as=read_as, force=force, warn=warn, quiet=talk.quiet,
        )  # fmt: skip


def _lines_to(output: Path | None, read: Sequence[Path | None], *, force: bool) -> AbstractContextManager[None]:
    """Refuse a file that may not be replaced; where a job has left something, whoever writes the lines decides."""
    if output is None:
        return nullcontext()
    left = output.with_name(f"{output.name}.partial").exists() or output.with_name(f".{output.name}.lock").exists()
    check_output(output, force=force or left, read=read)
    return writing(output)


def _loaded(
    folders: list[Path], engine: Engine, quantization: str | None, device: str, read_as: dict[str, Any]
) -> System:
    """The model to write with, in the engine that is asked for."""
    import regard

    if engine == "regard":
        return regard.load(folders[0], *folders[1:], device=device, settings=read_as)
    from regard.exchange.ctranslate2 import open_engine
    from regard.system import System

    place = "cuda" if device.startswith("cuda") else "cpu"
    return System(open_engine(folders[0], quantization, place), folders[0])


app.command("translate", hidden=True, help="Like generate.")(generate)


@app.command(short_help="Write log p(target given source) of each pair.")
def score(
    model: ModelFolder,
    pairs: Annotated[
        list[Path],
        typer.Argument(metavar="DATA", help="One .tsv or .jsonl file, or two text files (for a language model: one)."),
    ],
    output: Output = None,
    perplexity: Annotated[bool, typer.Option("--perplexity", help="Add the perplexity of each line.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Add log p of each token.")] = False,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Read the file as one long text, with the language model's state carried from line to line.",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of [source], such as source.size=96."),
    ] = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Write log p(target given source) of each pair, one per line; for a language model, log p(text)."""
    if stream and len(pairs) != 1:
        raise ConfigError(f"--stream reads one long text, not {len(pairs)} files")
    others, read_as = source_settings(settings)
    if others or (stream and read_as):
        what = "nothing, as with --stream there is no source" if stream else "settings of [source]"
        raise ConfigError(f"--set {(settings or [])[0]}: score takes {what}")
    output = dash(output)
    check_model(model)
    check_input(*map(dash, pairs), folders=True)
    with _lines_to(output, pairs, force=force):
        from regard.generation import score_lines, stream_lines

        if stream:
            stream_lines(
                model, dash(pairs[0]), output, tokens=tokens, perplexity=perplexity, device=device, force=force,
                quiet=talk.quiet,
            )  # fmt: skip
        else:
            score_lines(
                model, files_of(pairs), output, tokens=tokens, perplexity=perplexity, read_as=read_as,
                device=device, force=force, warn=warn, quiet=talk.quiet,
            )  # fmt: skip


@app.command(short_help="Score outputs: BLEU, chrF, TER, exact match, perplexity, AER.")
def evaluate(
    model: ModelFolder,
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DATA", help="Pairs as for score (default: the config's test data, or its validation data)."
        ),
    ] = None,
    references: Annotated[
        list[Path] | None,
        typer.Option("--reference", metavar="FILE", help="Further references, one per line; may be repeated."),
    ] = None,
    tokenize: Annotated[
        str | None, typer.Option(metavar="NAME", help="BLEU tokenizer, as in sacrebleu: 13a, none, char, zh, …")
    ] = None,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="95 % confidence intervals, by bootstrap resampling.")
    ] = False,
    judge: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL", help="For text to image: a captioner, whose captions are compared with the texts."
        ),
    ] = None,
    last_word: Annotated[
        bool,
        typer.Option(
            "--last-word", help="For a language model: accuracy and perplexity of the last word of each text."
        ),
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write scores and signatures here, as JSON.")] = None,
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the outputs here, one per line.")] = None,
    others: Others = None,
    beam: Beam = None,
    settings: Settings = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Score a model's outputs: BLEU, chrF, TER, exact match, perplexity, and AER if there are gold alignments. Each
    score has a signature."""
    for folder in (model, *(others or []), *([] if judge is None else [judge])):
        check_model(folder)
    check_input(*map(dash, data or []), folders=True)
    check_input(*(references or []))
    for path in (report, output):
        if path is not None:
            check_output(path, force=force)
    import regard
    from regard.artifacts import write_text
    from regard.data.lines import read_lines
    from regard.data.target import Scoring
    from regard.display import class_table, counting, exposure_table, score_table, show

    settings, read_as = source_settings(settings)
    system = regard.load(model, *(others or []), device=device, settings=read_as)
    judging = None if judge is None else regard.load(judge, device=device)
    files = files_of(data) if data else None
    own = [corpus.files for corpus in system.config.data.split("test") or system.config.data.split("valid")]
    search = {**search_settings(settings), **({} if beam is None else {"beam": beam})}
    further = [[line for _, line in read_lines(path)] for path in references or []]
    scoring = Scoring(tokenize, further, confidence)
    with counting("evaluating", None, quiet=talk.quiet) as progress:
        if last_word:
            result = system.last_words(files if files is not None else own[0], warn=warn)
        else:
            result = system.evaluate(
                files, warn=warn, advance=lambda count: progress.advance(progress.task_ids[0], count), scoring=scoring,
                judge=judging, **search,
            )  # fmt: skip
    content = {
        "model": str(model),
        **({"with": [str(folder) for folder in others]} if others else {}),
        **({} if judge is None else {"judge": str(judge)}),
        "data": files if files is not None else own[0] if len(own) == 1 else own,
        "examples": len(result.examples),
        "search": system.search_settings(**search).model_dump(),
        **({"source": read_as["source"]} if read_as else {}),
        "scores": {name: score.to_json() for name, score in result.scores.items()},
        **({"corpora": _scores_of_each(result)} if result.corpora else {}),
        "exposure": result.exposure.to_json() if result.exposure else None,
        "classes": {x.label: x.to_json() for x in result.classes},
        "regard": regard.__version__,
    }
    lines = "".join(line + "\n" for line in result.outputs)
    for path, text in ((output, lines), (report, json.dumps(content, indent=1) + "\n")):
        if path is not None:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, text)
    if as_json:
        report_json(content)
        return
    show(score_table(result.scores, f"{len(result.examples)} examples"))
    for name, scores in result.corpora.items():
        show(score_table(scores, name))
    if result.classes:
        show(class_table(result.classes))
    if result.exposure is not None:
        show(exposure_table(result.exposure))


def _scores_of_each(result: Evaluation) -> dict[str, Any]:
    """The scores of each corpus, as plain data."""
    return {name: {x: score.to_json() for x, score in own.items()} for name, own in result.corpora.items()}
