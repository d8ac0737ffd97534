"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing output.")]
Language = Annotated[Literal["de", "tr"], typer.Option(help="Target language of the corpus.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings to change, such as training.steps=500.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Output file (-: standard output); rerun the command to resume.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting of [search], such as search.no_repeat=3, or of [source], such as source.size=96.",
    ),
]
Others = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="MODEL", help="Add this model to an ensemble; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Report as JSON on standard output.")]
Quantization = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="How CTranslate2 stores weights: float32, bfloat16, int8, … (float32)."),
]
Beam = Annotated[int | None, typer.Option(help="Hypotheses kept at each step (1: greedy).")]
