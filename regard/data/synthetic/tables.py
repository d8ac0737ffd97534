"""The tables of `phrasebook.yaml`: the words of the phrasebook and their irregular forms."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import yaml


@cache
def _tables() -> dict[str, str]:
    tables: dict[str, str] = yaml.safe_load(files(__package__).joinpath("phrasebook.yaml").read_text(encoding="utf-8"))
    return tables


def rows(table: str) -> list[list[str]]:
    """The rows of a table, each as the text of its cells."""
    return [[cell.strip() for cell in line.split("|")] for line in _tables()[table].splitlines()]


def forms(table: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The rows of a table by their first cell; of each other cell the words, where - stands for an empty one."""
    return {
        name: tuple(tuple(word.strip("-") for word in cell.split()) for cell in cells) for name, *cells in rows(table)
    }
