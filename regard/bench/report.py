"""What came of a benchmark, to read and to keep: ratios first, then medians with their spread, then what it ran on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import regard
from regard.bench.measure import Case, Result, plain

PACKAGES = ("torch", "transformers", "joeynmt", "ctranslate2")


@dataclass
class Report:
    """All cases of one command."""

    title: str
    command: str
    words: str  # the workload, as far as all cases share it
    device: torch.device
    cases: list[Case] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title, "command": self.command, "workload": self.words, "hardware": hardware(self.device),
            "versions": versions(), "cases": [plain(case) for case in self.cases],
        }  # fmt: skip

    def save(self, path: Path | None) -> None:
        """Write what is there so far."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    def text(self, *, markdown: bool = False) -> str:
        """The whole report."""
        heading, mark = ("## ", "- ") if markdown else ("", "  ")
        parts = [f"{heading}{self.title}", ""]
        parts += [mark + line for case in self.cases for line in headlines(case)] or [
            mark + "Regard took no turn with a peer."
        ]
        for rows in tables(self.cases):
            parts += ["", table(rows, markdown=markdown)]
        parts += ["", self.words]
        shared: dict[str, list[str]] = {}
        for case in self.cases:
            shared.setdefault(case.words, []).append(case.name)
        parts += [f"{mark}{'; '.join(names)}: {words}" for words, names in shared.items() if words]
        parts += [f"{mark}{line}" for line in remarks(self.cases)]
        names = ", ".join(f"{name} {number}" for name, number in versions().items())
        parts += ["", f"Measured on {hardware(self.device)}, with {names}.", ""]
        parts += ["```", self.command, "```"] if markdown else [self.command]
        return "\n".join(parts) + "\n"


def headlines(case: Case) -> list[str]:
    """Regard against its best peer, and others against what they are held to."""
    best, ours = case.best_peer, case.ours
    pairs = [(ours, best, ", its best peer")] if ours and best else []
    pairs += [(mine, other, "") for mine, other in case.pairs]
    return [
        f"{case.name}: {mine.name} is {ratio.median:.2f} times as fast as {other.name}{words} "
        f"({ratio.low:.2f}–{ratio.high:.2f})"
        for mine, other, words in pairs
        if (ratio := case.ratio(other, mine))
    ]


def tables(cases: Sequence[Case]) -> list[list[list[str]]]:
    """Rows of a table for each unit, header first."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.unit, []).append(case)
    return [_rows(unit, group) for unit, group in found.items()]


def _rows(unit: str, cases: Sequence[Case]) -> list[list[str]]:
    extras = list(dict.fromkeys(name for case in cases for result in case.results for name in result.extra))
    rows = [["case", "contestant", "Regard is … times as fast", unit, "least–most", *extras]]
    for case in cases:
        for result in case.results:
            if result.values:
                rows.append([case.name, result.name, _ratio(case, result), *_spread(result)])
                rows[-1] += [number(result.extra[name]) if name in result.extra else "–" for name in extras]
        ran = {result.name for result in case.results if result.values}
        rows += [[case.name, x, "–", "not run", *["–"] * (1 + len(extras))] for x in case.absent if x not in ran]
    alone = all(row[2] == "–" for row in rows[1:])
    return [[*row[:2], *row[3:]] for row in rows] if alone else rows


def _ratio(case: Case, result: Result) -> str:
    ratio = case.ratio(result)
    if ratio is None or result is case.ours:
        return "–"
    return f"{ratio.median:.2f}"


def _spread(result: Result) -> tuple[str, str]:
    spread = result.spread
    return number(spread.median), f"{number(spread.low)}–{number(spread.high)}"


def remarks(cases: Sequence[Case]) -> list[str]:
    """What was noted of contestants and of those who are not there, each once."""
    lines = [f"{case.name}: {note}" for case in cases for note in case.notes]
    lines += [f"{result.name}: {result.note}" for case in cases for result in case.results if result.note]
    lines += [f"not run: {name}: {why}" for case in cases for name, why in case.absent.items()]
    return list(dict.fromkeys(lines))


def table(rows: Sequence[Sequence[str]], *, markdown: bool = False) -> str:
    """Columns of text, the first two set left and the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(cells: Sequence[str], gap: str) -> str:
        sides = (
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return gap.join(sides).rstrip()

    if not markdown:
        return "\n".join(line(row, "  ") for row in rows)
    rule = ["-" * w if i < 2 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join(f"| {line(row, ' | ')} |" for row in [rows[0], rule, *rows[1:]])


def number(value: float) -> str:
    """Three or four digits that matter."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def hardware(device: torch.device) -> str:
    """Processor and threads, and the GPU where one was used."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu = f"{torch.get_num_threads()} threads on {cores} cores of a CPU ({model})"
    return f"one {torch.cuda.get_device_name(device)}, {cpu}" if device.type == "cuda" else cpu


def versions() -> dict[str, str]:
    """Of Python, Regard and its peers, as far as they are installed."""
    found = {"Python": platform.python_version(), "Regard": regard.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
