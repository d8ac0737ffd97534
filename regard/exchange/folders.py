"""Folders that exports are written to."""

from __future__ import annotations

from pathlib import Path

from regard.errors import OutputError


def make_way(folder: Path, mark: str, kind: str, *, force: bool) -> None:
    """Refuse a folder that may not be replaced: one that is there, and by force one without the file `mark` in it."""
    if folder.exists() and not force:
        raise OutputError(f"{folder} exists; give another name, or --force to replace it")
    if folder.exists() and not (folder / mark).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} exists and is no {kind}, so it is not replaced; give another name")
