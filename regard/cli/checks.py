"""What is checked before anything heavy is imported or written."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import DataError, ModelError, OutputError

if TYPE_CHECKING:
    from regard.settings import Config


def check_model(folder: Path, *, exported: bool = False) -> None:
    """Refuse, as loading it would, a folder that holds no model; whether one holds an export only its engine knows."""
    if folder.is_file():
        raise ModelError(f"{folder} is a file; a model is a folder: the one that `run` names in its config")
    if not folder.is_dir():
        other = "export` another" if exported else "demo` makes runs/demo"
        raise ModelError(f"no model folder {folder}; `regard train` makes one, and `regard {other}")
    if not exported and not (folder / "config.yaml").exists():
        raise ModelError(f"{folder} is not a Regard model: it has no config.yaml")


def check_input(*paths: Path | None, folders: bool = False) -> None:
    """Refuse input that is not there; None is standard input. Data may be in `folders`."""
    for path in paths:
        if path is None and sys.stdin is None:
            raise DataError("standard input is closed; give a FILE")
        if path is not None and not path.exists():
            raise DataError(f"no file {path}; check the path")
        if path is not None and path.is_dir() and not folders:
            raise DataError(f"{path} is a folder; name a file in it")


def check_output(path: Path, *, force: bool, folder: bool = False, read: Sequence[Path | None] = ()) -> None:
    """Refuse a place that cannot be written, that is taken (without `force`), or that is `read` to make the output."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OutputError(f"{path} is a pipe or a device, not a file; give another name, or write to > {path}")
    if path.exists() and not force:
        raise OutputError(f"{path} exists; give another name, or --force to replace it")
    if any(other is not None and other.exists() and path.exists() and path.samefile(other) for other in read):
        raise OutputError(f"{path} is what is read; give another name to write to")
    if path.is_dir() and not folder:
        raise OutputError(f"{path} is a folder; give the name of a file")
    check_folder(path if folder else path.parent)


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not there and cannot be made, or that cannot be written to."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise OutputError(f"{folder} cannot be written to: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"{folder} cannot be written to: no permission to write in {there}")


def check_config(config: Config) -> None:
    """Refuse a training whose files are not there, or whose folder cannot be made."""
    from regard.config import missing_files

    if missing := missing_files(config):
        raise DataError("\n".join(missing))
    check_folder(Path(config.run))
