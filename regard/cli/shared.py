"""What commands share: the program they belong to, and how they talk."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.settings import Config
    from regard.system import System

app = typer.Typer(
    rich_markup_mode=None,  # markup would take the name of a section, such as [search], for a tag, and drop it
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]},
    help="Train, use and explain sequence-to-sequence models, language models and classifiers.",
)


@dataclass
class Talk:
    """How much a command says, beside what it was asked for."""

    quiet: bool = False


talk = Talk()
brought_in: list[str] = []  # modules of the user's that were imported, for processes that we start


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import", metavar="MODULE", help="Import your own module that registers parts (see docs/extending.md)."
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, only results, warnings and errors.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show a traceback with errors.")] = False,
) -> None:
    talk.quiet = quiet
    for module in modules or []:
        bring_in(module)
    if version:
        import regard

        typer.echo(f"regard {regard.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def brought_forward(arguments: Sequence[str]) -> list[str]:
    """Arguments with the options of the program itself, which may stand anywhere, before the command."""
    first, rest = list[str](), list[str]()
    given = iter(arguments)
    for word in given:
        if word == "--":
            rest += [word, *given]
        elif word == "--import":
            first += [word, *([value] if (value := next(given, None)) is not None else [])]
        else:
            own = word in ("-q", "--quiet", "-v", "--verbose") or word.startswith("--import=")
            (first if own else rest).append(word)
    return [*first, *rest]


def say(text: str) -> None:
    """A line that tells what was done; not a result."""
    if not talk.quiet:
        typer.echo(text)


def report_json(content: Any) -> None:
    typer.echo(json.dumps(content, ensure_ascii=False, indent=1))


def dash(path: Path | None) -> Path | None:
    """`-` is standard input, or standard output."""
    return None if path is not None and str(path) == "-" else path


def bring_in(module: str) -> None:
    """Import a user's module, which may lie where the user stands."""
    if module.endswith(".py") or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"--import '{module}': give the name of a module, such as my_parts")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        import_module(module)
        brought_in.append(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"--import {module}: there is no such module here or among those installed") from None


def train_shown(config: Config) -> System:
    """Train with a display; a request to stop leaves with how to resume."""
    from regard.display import TrainingDisplay
    from regard.runs import Stopped
    from regard.runs import train as train_model

    try:
        with writing(Path(config.run)), TrainingDisplay(quiet=talk.quiet) as display:
            return train_model(config, display)
    except Stopped as stopped:
        typer.echo(f"regard: {stopped}; the same command resumes", err=True)
        raise typer.Exit(128 + getattr(stopped, "signal", signal.SIGINT)) from None


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Of an error of the system that names no file, such as a full disk, say that it was met in writing this."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(place)
        raise


def files_of(paths: list[Path]) -> str | list[str]:
    return str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]


def source_settings(settings: list[str] | None) -> tuple[list[str], dict[str, Any]]:
    """The settings that are not of [source], and those of it, to read a source otherwise than in training."""
    from regard.config import override_settings

    given = settings or []
    own = [one for one in given if one.startswith("source.")]
    return [one for one in given if one not in own], override_settings(own)


def search_settings(settings: list[str] | None) -> dict[str, Any]:
    """Settings of [search], with or without its name before them."""
    from regard.config import override_settings

    found = override_settings(settings or [])
    search = found.pop("search", {})
    if other := next((name for name, value in found.items() if isinstance(value, dict)), None):
        raise ConfigError(f"--set here takes settings of [search], such as search.beam=1; [{other}] is set in training")
    return {**found, **search}


def word_range(words: str) -> tuple[int, int]:
    low, dash, high = words.partition("-")
    if not (dash and low.isdigit() and high.isdigit()):
        raise ConfigError(f"cannot read --words '{words}'; write shortest-longest, such as 5-20")
    return int(low), int(high)


def warn(text: str) -> None:
    typer.echo(f"regard: {text}", err=True)
