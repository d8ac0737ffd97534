"""Commands that bring in models of other programs, and write models for them: import, export."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.cli.checks import check_model, check_output
from regard.cli.options import Force, Json, ModelFolder, Quantization
from regard.cli.shared import app, report_json, say, warn, writing
from regard.errors import ConfigError


@app.command("import", short_help="Import a model from Hugging Face or another toolkit.")
def import_(
    place: Annotated[
        str, typer.Argument(metavar="FOLDER_OR_NAME", help="A folder, or a name on the Hugging Face Hub.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model.")],
    language: Annotated[
        str | None, typer.Option(help="What a Whisper of several languages hears, such as de or german.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Import a model from Hugging Face's transformers or another toolkit, with its own tokens.

    Marian, BART, mBART, T5, GPT-2, BERT, RoBERTa, DistilBERT, ViT, Whisper and others like them. If a model needs
    something that Regard lacks, the message names it. No code in the folder is run. A name that is no local folder is
    downloaded. Also a folder of JoeyNMT or eole, or a checkpoint (.pt) of a Transformer of fairseq or OpenNMT-py, with
    its vocabulary files beside it.
    """
    check_output(output, force=force, folder=True)
    import regard

    with writing(output):
        system = regard.import_model(place, output, language=language, force=force, warn=warn)
    if as_json:
        report_json({"model": str(output), "parameters": system.parameters()})
    else:
        say(str(system))


@app.command(short_help="Export a model to CTranslate2, ONNX or Hugging Face, and check it.")
def export(
    model: ModelFolder,
    to: Annotated[Literal["ctranslate2", "onnx", "huggingface"], typer.Option(help="Format of the export.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the export.")],
    quantization: Quantization = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Export a model for another program, and check that it gives the same outputs there.

    CTranslate2 takes encoder-decoder Transformers. ONNX takes every model that writes text; its folder carries a runner
    that needs no torch (python FOLDER/runner.pyz < input.txt). For huggingface a model must have the form of one in
    transformers, as imported models have.
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
