"""What `regard compare` does with what it is given."""

from __future__ import annotations

from pathlib import Path

import typer

from regard.compare.page import check_place, write_page
from regard.compare.results import table
from regard.compare.runner import Budget, Entry, Plan, Train, compare, folder_name
from regard.config import load
from regard.display import show
from regard.errors import ConfigError, require


def make_plan(
    configs: list[Path], *, standing: bool, only: list[str], budget: Budget | None, seeds: int, folder: Path,
    settings: list[str], command: str,
) -> Plan:  # fmt: skip
    """The standing experiment, or a comparison of these configs."""
    if standing == bool(configs):
        raise ConfigError("give configs to compare, or --lecture")
    if only and not standing:
        raise ConfigError("--only chooses among the models of --lecture; of configs, give those you want")
    numbers = tuple(range(1, seeds + 1))
    if standing:
        from regard.compare.lecture import lecture  # whose corpus is an extra

        return lecture(folder, budget, numbers, command, settings, only)
    entries = [Entry(_name(path), str(path), load(path, settings)) for path in configs]
    data = f"Trained on {entries[0].config.data.train}."
    return Plan("A comparison", entries, budget or Budget(), numbers, folder, command, data)


def run_plan(plan: Plan, page: Path, train: Train) -> None:
    """Compare, show the table, write the page."""
    for entry in plan.entries:
        if plan.folder.absolute() / folder_name(entry.name) == page.with_suffix("").absolute():
            raise ConfigError(
                f"runs of the model '{entry.name}' go where figures should; give it, or --page, another name"
            )
    check_place(page)  # before the work
    require("matplotlib")
    results = compare(plan, train, lambda text: typer.echo(text, err=True))
    show(table(results))
    write_page(results, page)
    typer.echo(f"wrote {page}, with figures and results.json in {page.with_suffix('')}")


def _name(path: Path) -> str:
    return path.absolute().parent.name if path.stem == "config" else path.stem
