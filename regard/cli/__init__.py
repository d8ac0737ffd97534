"""The command line; `regard.__main__` starts it. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from typer.main import get_command

from regard.cli import making, using
from regard.cli.shared import app, brought_forward
from regard.errors import OutputError

__all__ = ["app", "making", "run", "using"]


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
