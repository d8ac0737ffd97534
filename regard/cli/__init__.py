"""The command line. What is heavy is imported inside the command that needs it, so that `--help` is quick."""

from __future__ import annotations

import os
import sys

import typer

from regard.cli import making, shipping, using
from regard.cli.shared import app
from regard.errors import RegardError

__all__ = ["app", "main", "making", "shipping", "using"]


def main() -> None:
    """The entry point: runs a command, and says what went wrong in a line."""
    try:
        app()
    except RegardError as error:
        for line in str(error).splitlines():
            typer.echo(f"regard: {line}", err=True)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has left; nothing more to say to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
