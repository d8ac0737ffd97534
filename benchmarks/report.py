"""What came of a benchmark, to read and to keep: ratios first, then medians with their range, then what it ran on."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.race import Case, Spread
from regard.compare.runner import hardware

PACKAGES = ("torch", "transformers", "joeynmt", "ctranslate2")
ABSOLUTE = ("ms/step", "TFLOP/s")  # of a CPU they say most of how busy its machine was


@dataclass
class Report:
    """All cases of one command."""

    title: str
    command: str
    workload: str  # as far as all cases share it
    device: torch.device
    cases: list[Case] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Every number."""
        return {
            "title": self.title, "command": self.command, "workload": self.workload,
            "hardware": hardware(self.device), "versions": versions(), "cases": [_case(case) for case in self.cases],
        }  # fmt: skip

    def save(self, path: Path | None) -> None:
        """Write what is there so far."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    def text(self) -> str:
        """The whole report as Markdown."""
        found = rows(self.cases, absolute=self.device.type == "cuda")
        parts = [f"## {self.title}", "", *(f"- {line}" for case in self.cases for line in headlines(case)), ""]
        parts += [table(found), "", self.workload]
        if self.cases[0].unit not in found[0]:
            parts.append("Throughput of a CPU varies by the hour, so only ratios are shown; --json keeps both.")
        shared: dict[str, list[str]] = {}
        for case in self.cases:
            shared.setdefault(case.workload, []).append(case.name)
        parts += [f"- {'; '.join(names)}: {workload}" for workload, names in shared.items() if workload]
        parts += [f"- {line}" for line in remarks(self.cases)]
        parts += ["", measured_on(self.device), "", "```", self.command, "```"]
        return "\n".join(parts) + "\n"


def _case(case: Case) -> dict[str, Any]:
    """A case as JSON has it; ratios follow from the values, which are in rounds."""
    results = [{name: value for name, value in vars(x).items() if name != "make"} for x in case.contenders]
    return {**vars(case), "contenders": results, "headlines": headlines(case)}


def headlines(case: Case) -> list[str]:
    """Regard against its best peer, and others against what they are compared with."""
    best, ours = case.best_peer, case.ours
    pairs = [(ours, best, ", its best peer")] if ours and best else []
    pairs += [(mine, other, "") for mine, other in case.pairs]
    return [
        f"{case.name}: {mine.name} is {ratio.median:.2f} times as fast as {other.name}{words} "
        f"({ratio.low:.2f}–{ratio.high:.2f})"
        for mine, other, words in pairs
        if (ratio := case.ratio(other, mine))
    ]


def rows(cases: Sequence[Case], *, absolute: bool = True) -> list[list[str]]:
    """A table, header first. Without `absolute`, throughput is shown as ratios alone, where there are any."""
    ratios = {(case.name, x.name): case.ratio(x) for case in cases for x in case.ran if x is not case.ours}
    compared = any(ratios.values())
    absolute = absolute or not compared or not cases[0].more
    extras = list(dict.fromkeys(name for case in cases for x in case.ran for name in x.extra))
    extras = [name for name in extras if absolute or name not in ABSOLUTE]
    ours = next((case.ours.name for case in cases if case.ours is not None), "Regard")
    first = "Regard" if ours.startswith("Regard") else ours
    found = [["case", "system", f"{first} is … times as fast", cases[0].unit, *extras]]
    for case in cases:
        for x in case.contenders:
            values = shown(Spread.of(x.values), number) if x.values else "not run"
            ratio = shown(ratios.get((case.name, x.name)), "{:.2f}".format)
            extra = [number(x.extra[name]) if name in x.extra else "–" for name in extras]
            found.append([case.name, x.name, ratio if absolute or x.values else "not run", values, *extra])
    hidden = 2 if not compared else None if absolute else 3
    return [[cell for i, cell in enumerate(row) if i != hidden] for row in found]


def shown(spread: Spread | None, show: Callable[[float], str]) -> str:
    """A median and its range."""
    return "–" if spread is None else f"{show(spread.median)} ({show(spread.low)}–{show(spread.high)})"


def remarks(cases: Sequence[Case]) -> list[str]:
    """What was noted of contenders, and why some did not run, each once."""
    lines = [f"{case.name}: {note}" for case in cases for note in case.notes]
    lines += [f"{x.name}: {x.note}" for case in cases for x in case.contenders if x.note]
    lines += [f"not run: {x.name}: {x.missing}" for case in cases for x in case.contenders if x.missing]
    return list(dict.fromkeys(lines))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown, the header first; columns after the first are right-aligned unless they hold words."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    left = [i == 0 or not any(row[i].lstrip("-")[:1].isdigit() for row in rows[1:]) for i in range(len(widths))]
    rule = ["-" * w if at_left else "-" * (w - 1) + ":" for w, at_left in zip(widths, left, strict=True)]
    lines = []
    for row in (rows[0], rule, *rows[1:]):
        cells = zip(row, widths, left, strict=True)
        lines.append(" | ".join(cell.ljust(w) if at_left else cell.rjust(w) for cell, w, at_left in cells))
    return "\n".join(f"| {line} |" for line in lines)


def number(value: float) -> str:
    """Four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def mean(values: Sequence[float], digits: int, deviation: Callable[[Sequence[float]], float] = statistics.stdev) -> str:
    """Mean and standard deviation over seeds."""
    spread = f" ± {deviation(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def measured_on(device: torch.device) -> str:
    """Hardware and versions as a sentence."""
    return f"Measured on {hardware(device)}, with {', '.join(f'{x} {y}' for x, y in versions().items())}."


def versions() -> dict[str, str]:
    """Of Python, Regard and its peers, as far as they are installed."""
    found = {"Python": platform.python_version(), "Regard": regard.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
