"""The command line; `regard.__main__` starts it. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import typer
from typer.main import get_command

# isort: off
# Commands are listed in the order of these imports.
from regard.cli import making, using, explaining, exchanging, choosing, serving

# isort: on
from regard.cli.shared import app, brought_forward
from regard.errors import OutputError, RegardError

__all__ = ["app", "choosing", "exchanging", "explaining", "making", "run", "say_what", "serving", "using"]


def run(arguments: Sequence[str]) -> int:
    """Run a command and give its exit code; what goes wrong in it is raised, as typer's own `main` would not."""
    if sys.stdout is None:
        raise OutputError("standard output is closed; point it at a file, or at /dev/null")
    command = get_command(app)
    if "_REGARD_COMPLETE" in os.environ:  # a shell asks how a word might go on
        command.main(list(arguments), prog_name="regard")
    code = 0
    try:
        with command.make_context("regard", brought_forward(arguments)) as context:
            command.invoke(context)
    except typer.Exit as left:
        code = left.exit_code
    sys.stdout.flush()
    return code


def say_what(error: BaseException, *, verbose: bool = False) -> int | None:
    """Say in a line what went wrong, or with `verbose` all of it, and give the exit code; None for a bug."""
    if isinstance(error, BrokenPipeError):  # who read our output has left, so there is nobody to tell
        _drop_output()
        return 141  # 128 + SIGPIPE
    lines = _lines(error)
    if lines is None:
        return None
    if sys.stdout is not None:
        _drop_output()
    if verbose:
        traceback.print_exception(error)
    for line in lines:
        typer.echo(f"regard: {line}", err=True)
    return 2


def _lines(error: BaseException) -> list[str] | None:
    match error:
        case RegardError():
            return str(error).splitlines()
        case typer.TyperException():
            context = getattr(error, "ctx", None)
            where = "regard" if context is None else context.command_path
            what = error.format_message().replace("Value error, ", "").rstrip(".")  # as pydantic begins it
            return [f"{what} (see `{where} --help`)"]
        case _ if _out_of_memory(error):
            return [
                "out of memory; lower training.batch_tokens (a training), --beam or --set batch_tokens=… (a search), "
                "or take a smaller model"
            ]
        case OSError():
            return [_file_and_problem(error)]
        case _:
            return None


def _out_of_memory(error: BaseException) -> bool:
    """Also as torch says it: with an error of its own on a GPU, with a plain one on a CPU."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _file_and_problem(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    place = error.filename2 if error.filename2 is not None else error.filename
    return f"{os.fsdecode(place)}: {what[:1].lower()}{what[1:]}" if isinstance(place, str | bytes) else what


def _drop_output() -> None:
    """What cannot be written to standard output the interpreter would try to write once more when it leaves."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
