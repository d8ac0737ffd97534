"""Commands that take a model elsewhere: export."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.shared import (
    Force,
    Json,
    ModelFolder,
    Quantization,
    app,
    check_model,
    check_output,
    report_json,
    say,
    writing,
)
from regard.errors import ConfigError


class Format(StrEnum):
    ctranslate2 = "ctranslate2"
    onnx = "onnx"


@app.command(short_help="Write a model for CTranslate2 or ONNX, and check it there.")
def export(
    model: ModelFolder,
    to: Annotated[Format, typer.Option(help="What for.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the export.")],
    quantization: Quantization = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a model in the form of another program, and check that it writes the same there.

    CTranslate2 takes Transformers with encoder and decoder; ONNX takes every model that writes text, and its folder
    carries a runner that needs no torch (python FOLDER/runner.pyz < input.txt).
    """
    if to is Format.onnx and quantization is not None:
        raise ConfigError("--quantization goes with --to ctranslate2; ONNX graphs are in float32")
    check_model(model)
    check_output(output, force=force, folder=True)
    import regard

    system = regard.load(model, device="cpu")
    with writing(output):
        report = regard.export(system, output, to=to.value, quantization=quantization, force=force)
    if as_json:
        report_json({"format": to.value, **asdict(report)})
    else:
        say(str(report))
