"""What commands share: the program they belong to, options of the same meaning, and how they talk."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
Quantization = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="How CTranslate2 stores weights: float32, bfloat16, int8, … (float32)."),
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


def train_shown(config: Config) -> System:
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


def files_of(paths: list[Path]) -> str | list[str]:
    return str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]


def search_settings(settings: list[str] | None) -> dict[str, Any]:
    from regard.config import override_settings

    return override_settings(settings or [])


def word_range(words: str) -> tuple[int, int]:
    from regard.errors import ConfigError

    low, dash, high = words.partition("-")
    if not (dash and low.isdigit() and high.isdigit()):
        raise ConfigError(f"cannot read --words '{words}'; write shortest-longest, such as 5-20")
    return int(low), int(high)


def warn(text: str) -> None:
    typer.echo(f"regard: {text}", err=True)
