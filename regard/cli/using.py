"""Commands that use a model: generate, score, evaluate, explain, space, import, export."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.checks import check_input, check_model, check_output
from regard.cli.options import Beam, Device, Force, Json, ModelFolder, Output, Quantization, Settings
from regard.cli.shared import (
    app,
    dash,
    files_of,
    report_json,
    say,
    search_settings,
    source_settings,
    talk,
    warn,
    writing,
)
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.system import System
    from regard.tasks.results import Evaluation


Engine = Literal["regard", "ctranslate2"]


@app.command(short_help="Write the output for each line of a file. Also as `translate`.")
def generate(
    model: ModelFolder,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="A text a line (- or nothing: standard input); of a .tsv or .jsonl file, its source column.",
        ),
    ] = None,
    output: Output = None,
    beam: Beam = None,
    nbest: Annotated[int | None, typer.Option(help="Outputs for each line, separated by tabs.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw instead of searching.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Of sampling.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the K likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling: total probability kept.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of sampling.")] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="MODEL", help="Another model to write with; may be given several times."),
    ] = None,
    prefixes: Annotated[Path | None, typer.Option(metavar="FILE", help="How each output begins, a line each.")] = None,
    phrases: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What each output must hold, a line each, separated by tabs.")
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where outputs are pictures: draw them here, and name each in its line."),
    ] = None,
    settings: Settings = None,
    scores: Annotated[bool, typer.Option("--scores", help="Add the score after each output.")] = False,
    align: Annotated[bool, typer.Option("--align", help="Add the word alignment (Pharaoh) after each output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line, with all of it.")] = False,
    engine: Annotated[
        Engine, typer.Option(help="What computes; ctranslate2 also takes a folder of an export.")
    ] = "regard",
    quantization: Quantization = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Write the output for each line of a file, a line each, in order. Also as `translate`.

    A line is a text to translate, the path of a picture, how a language model's output begins (an empty line: from
    nothing), or a text with <mask> where a token is to be filled in: whatever the model was trained on.
    """
    file, output = dash(file), dash(output)
    given = {"beam": beam, "nbest": nbest, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    search = {**search_settings(settings), **{name: value for name, value in given.items() if value is not None}}
    if sample:
        search["sample"] = True
    folders = [model, *(others or [])]
    if engine == "regard" and quantization is not None:
        raise ConfigError("--quantization goes with --engine ctranslate2; here, --set precision=int8")
    if engine == "ctranslate2" and len(folders) > 1:
        raise ConfigError("--with goes with --engine regard; CTranslate2 writes with one model")
    for folder in folders:
        check_model(folder, exported=engine == "ctranslate2")
    check_input(file, *(path for path in (prefixes, phrases) if path is not None))
    with _lines_to(output, (file, prefixes, phrases), force=force):
        from regard.generation import Form, generate_lines

        generate_lines(
            _loaded(folders, engine, quantization, device), folders, file, output, search,
            Form(scores=scores, align=align, json=as_json), prefixes=prefixes, phrases=phrases, pictures=pictures,
            force=force, warn=warn, quiet=talk.quiet,
        )  # fmt: skip


def _lines_to(output: Path | None, read: Sequence[Path | None], *, force: bool) -> AbstractContextManager[None]:
    """Refuse a file that may not be replaced; where a job has left something, whoever writes the lines decides."""
    if output is None:
        return nullcontext()
    left = output.with_name(f"{output.name}.partial").exists() or output.with_name(f".{output.name}.lock").exists()
    check_output(output, force=force or left, read=read)
    return writing(output)


def _loaded(folders: list[Path], engine: Engine, quantization: str | None, device: str) -> System:
    """The model to write with, in the engine that is asked for."""
    import regard

    if engine == "regard":
        return regard.load(folders[0], *folders[1:], device=device)
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
        typer.Argument(metavar="DATA", help="One .tsv or .jsonl file, or two text files (a language model: one)."),
    ],
    output: Output = None,
    perplexity: Annotated[bool, typer.Option("--perplexity", help="Add the perplexity of each line.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Add log p of each token.")] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="One long text: a language model reads each line after all before it.")
    ] = False,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Write log p(target given source) of each pair, a line each; of a language model, log p(text)."""
    if stream and len(pairs) != 1:
        raise ConfigError(f"--stream reads one long text, not {len(pairs)} files")
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
                model, files_of(pairs), output, tokens=tokens, perplexity=perplexity, device=device, force=force,
                warn=warn, quiet=talk.quiet,
            )  # fmt: skip


@app.command(short_help="Score outputs: BLEU, chrF, TER, exact match, perplexity, AER.")
def evaluate(
    model: ModelFolder,
    data: Annotated[
        list[Path] | None, typer.Argument(metavar="DATA", help="Pairs as for score (the config's test or valid data).")
    ] = None,
    references: Annotated[
        list[Path] | None,
        typer.Option("--reference", metavar="FILE", help="Further references, a line each; may come several times."),
    ] = None,
    tokenize: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tokenizer of BLEU, as in sacrebleu: 13a, none, char, zh, …")
    ] = None,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="95 % confidence intervals, by bootstrap resampling.")
    ] = False,
    judge: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Of pictures: a captioner, whose captions are held against the texts."),
    ] = None,
    last_word: Annotated[
        bool, typer.Option("--last-word", help="Of a language model: how well it tells the last word of each text.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write scores and signatures here, as JSON.")] = None,
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the outputs here, a line each.")] = None,
    beam: Beam = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any other setting of [search], or of [source], such as source.size=96."
        ),
    ] = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """BLEU, chrF, TER, exact match, perplexity, and AER where there are gold alignments; with signatures."""
    check_model(model)
    if judge is not None:
        check_model(judge)
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
    system = regard.load(model, device=device, settings=read_as)
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


@app.command(short_help="Draw what the model attends to, as a page or a picture.")
def explain(
    model: ModelFolder,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="What to explain; several sources are separated by a tab."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Explain this output of the (one) text, not the model's own.")
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(help="Explain the first examples of this file, with what it says of which words belong where."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many of them.")] = 1,
    output: Annotated[Path, typer.Option("--output", "-o", help=".html, .png, .svg, .pdf or .json.")] = Path(
        "attention.html"
    ),
    source: Annotated[int | None, typer.Option(help="Of several sources, show only this one (from 1).")] = None,
    layer: Annotated[
        str | None,
        typer.Option(help="Which attention a picture shows, or rollout through an encoder's; a wrong name lists all."),
    ] = None,
    head: Annotated[int | None, typer.Option(help="Which head a picture shows, from 0 (their mean).")] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="A picture with each head of the layer beside the others.")
    ] = False,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="Also what each token depends on by gradient or by erasure, and how faithful."),
    ] = None,
    off: Annotated[
        list[str] | None, typer.Option("--off", metavar="LAYER:HEAD", help="With this head switched off.")
    ] = None,
    beam: Beam = None,
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Draw what the model attends to: a page for any number of texts, or a picture for one."""
    texts = texts or []
    if bool(texts) == (examples is not None):
        raise ConfigError("give either texts to explain or --examples FILE")
    if target is not None and len(texts) != 1:
        raise ConfigError(f"--target goes with one text, not {len(texts)}")
    check_model(model)
    if examples is not None:
        check_input(examples, folders=True)
    check_output(output, force=force)
    import regard
    from regard.data.examples import read_files
    from regard.explain.trace import save
    from regard.nn.edits import Edits

    system = regard.load(model, device=device)
    how: dict[str, Any] = {"methods": methods or [], "edits": Edits.off(off or [])}
    how |= {} if beam is None else {"beam": beam}
    form = system.task.sides.judged_form
    explained = [system.explain(form.line(text, f"text {i}"), target, **how) for i, text in enumerate(texts, 1)]
    if examples is not None:
        written = system.config.target.written  # what is predicted is the model's own
        some = islice(read_files(str(examples), form), count)
        explained = [system.explain(x, x.target if written else None, **how) for x in some]
    for faithful in (x.faithfulness for x in explained if x.faithfulness):
        ranked = sorted(faithful.items(), key=lambda one: -one[1])
        say("faithfulness: " + ", ".join(f"{name} {value:.2f}" for name, value in ranked))
    if source is not None:
        explained = [x.part(source) for x in explained]
    check_output(output, force=force)  # again: it may be there by now
    with writing(output):
        save(explained, output, layer=layer, head=head, grid=grid)
    say(f"wrote {output}")


@app.command(short_help="Draw sentences where the encoder puts them.")
def space(
    model: ModelFolder,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A text a line (several sources separated by tabs); after a tab, its group."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help=".png, .svg, .pdf or .json.")] = Path("space.png"),
    device: Device = "auto",
    force: Force = False,
) -> None:
    """Draw sentences where the encoder puts them: its sentence embeddings, projected to the plane."""
    check_model(model)
    check_input(file)
    check_output(output, force=force)
    import regard
    from regard.data.lines import read_lines
    from regard.explain.space import space_plot

    system = regard.load(model, device=device)
    count = len(system.config.sources)
    cells = [line.split("\t") for _, line in read_lines(file) if line.strip()]
    groups = [row[count] if len(row) > count else "" for row in cells]
    vectors = system.sentence_embeddings([tuple(row[:count]) if count > 1 else row[0] for row in cells])
    texts = [" | ".join(row[:count]) for row in cells]
    check_output(output, force=force)  # again: it may be there by now
    with writing(output):
        space_plot(vectors, texts, groups if any(groups) else None, output)
    say(f"wrote {output}")


@app.command("import", short_help="Make a model folder of one that Hugging Face's transformers wrote.")
def import_(
    place: Annotated[
        str, typer.Argument(metavar="FOLDER_OR_NAME", help="A folder, or a name on the Hugging Face Hub.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model.")],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make a model folder of one that Hugging Face's transformers wrote, with its own tokens.

    Marian, BART, mBART, T5, GPT-2, BERT, RoBERTa, DistilBERT and others like them; what one needs and Regard lacks is
    said by name. Nothing in the folder is run. A name is downloaded, if no folder has it. Also a folder of JoeyNMT, and
    a checkpoint (.pt) of a Transformer of fairseq or OpenNMT-py, with the lists of its tokens beside it.
    """
    check_output(output, force=force, folder=True)
    import regard

    with writing(output):
        system = regard.import_model(place, output, force=force, warn=warn)
    if as_json:
        report_json({"model": str(output), "parameters": system.parameters()})
    else:
        say(str(system))


@app.command(short_help="Write a model for CTranslate2, ONNX or transformers, and check it there.")
def export(
    model: ModelFolder,
    to: Annotated[Literal["ctranslate2", "onnx", "huggingface"], typer.Option(help="What for.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the export.")],
    quantization: Quantization = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a model in the form of another program, and check that it writes the same there.

    CTranslate2 takes Transformers with encoder and decoder; ONNX takes every model that writes text, and its folder
    carries a runner that needs no torch (python FOLDER/runner.pyz < input.txt). For huggingface a model has to have the
    form of one that transformers knows, as one that was imported has.
    """
    if to != "ctranslate2" and quantization is not None:
        raise ConfigError("--quantization goes with --to ctranslate2; ONNX graphs are in float32")
    check_model(model)
    check_output(output, force=force, folder=True)
    import regard

    system = regard.load(model, device="cpu")
    with writing(output):
        report = regard.export(system, output, to=to, quantization=quantization, force=force)
    if as_json:
        report_json({"format": to, **asdict(report)})
    else:
        say(str(report))
