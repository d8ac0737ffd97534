"""Commands that take a model elsewhere, and that measure: export, bench."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.shared import Force, ModelFolder, Quantization, app, check_model, check_output, writing
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
        if to is Format.onnx:
            from regard.exchange import onnx

            report = str(onnx.export(system, output, force=force))
        else:
            from regard.exchange import ctranslate2

            report = str(ctranslate2.export(system, output, quantization, force=force))
    typer.echo(report)


@app.command(
    add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="BENCHMARK [OPTIONS]", short_help="Measure Regard and its peers side by side.",
)  # fmt: skip
def bench(context: typer.Context) -> None:
    """Measure Regard and its peers side by side: train-gpu, train-cpu, decode-gpu, decode-cpu, start-up, grow.

    `regard bench BENCHMARK --help` lists the options of each.
    """
    from regard.bench.command import main

    main(context.args)
