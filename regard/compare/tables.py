"""Numbers as they are shown, and tables of them: for the terminal and, escaped, for a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from regard.compare.results import Measure, Results

NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "exact": "exact match", "aer": "AER"}
DIGITS = {"aer": 3, "perplexity": 2}  # after the point; one for scores in percent
DASH = "–"
# For `scaled`: 812, 81.2 k, 8.1 M; 64 MiB, 1.5 GiB; 42 s, 1.7 min, 2.0 h.
COUNTS = ((9.995e8, 1e9, "{:.1f} G"), (9.995e5, 1e6, "{:.1f} M"), (999.5, 1e3, "{:.1f} k"), (0, 1, "{:.0f}"))
BYTES = ((2**30, 2**30, "{:.1f} GiB"), (1, 2**20, "{:.0f} MiB"))
TIMES = ((5400, 3600, "{:.1f} h"), (90, 60, "{:.1f} min"), (1e-9, 1, "{:.0f} s"))
# What means something to Markdown or HTML within a line.
ESCAPES = {ord(c): f"\\{c}" for c in "\\`*_[]|"} | {ord(c): f"&#{ord(c)};" for c in "<>&~$"}


def cells(results: Results) -> tuple[list[str], list[list[str]]]:
    """The header and a row for each model."""
    header = ["model", *(metric_name(x) for x in results.metrics)]
    header += ["parameters", "training FLOPs", "training time", "decoding speed", "memory"]
    first = results.models[0] if results.runs else ""
    rows = []
    for model in results.models:
        runs = results.of(model)
        seconds, speed = results.mean(model, "seconds"), results.mean(model, "decode_speed")
        if results.gpu:
            times = [scaled(seconds, TIMES), f"{speed:,.0f} tokens/s" if speed else DASH]
        else:
            times = [ratio(seconds, results.mean(first, "seconds")), ratio(speed, results.mean(first, "decode_speed"))]
        scores = [shown(results.measure(model, x), x, runs=len(runs)) for x in results.metrics]
        sizes = [scaled(results.mean(model, "parameters"), COUNTS), flops(results.mean(model, "flops"))]
        rows.append([model, *scores, *sizes, *times, scaled(max(run.memory for run in runs), BYTES)])
    return header, rows


def table(results: Results) -> Table:
    """The results for the terminal."""
    header, rows = cells(results)
    drawn = Table(title=Text(results.title), title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(header):
        drawn.add_column(name, justify="right" if i else "left", no_wrap=not i, overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))  # a name is no markup, whatever is in it
    return drawn


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for the page."""
    lines = [[escaped(cell) for cell in line] for line in (header, *rows)]
    lines.insert(1, ["---", *["---:"] * (len(header) - 1)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """Text as it is, in Markdown."""
    return " ".join(text.split()).translate(ESCAPES)


def code(text: str) -> str:
    """Text as code, in Markdown."""
    text = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if fence[1:] else f"`{text}`"


def metric_name(metric: str) -> str:
    return NAMES.get(metric, metric)


def number(value: float, metric: str) -> str:
    """A number with as many digits as the metric deserves."""
    text = f"{value:.{DIGITS.get(metric, 1)}f}"
    return text.lstrip("-") if not float(text) else text.replace("-", "−")


def shown(measure: Measure | None, metric: str, *, runs: int = 0) -> str:
    """`62.1 ± 0.4`; with `runs`, it is said if some of these have no such score."""
    if measure is None:
        return DASH
    spread = "" if measure.spread is None else f" ± {number(measure.spread, metric)}"
    missing = f" ({measure.seeds} of {runs})" if measure.seeds < runs else ""
    return number(measure.mean, metric) + spread + missing


def flops(value: float) -> str:
    """`3.1e15`."""
    return f"{value:.1e}".replace("e+", "e").replace("e0", "e") if value else DASH


def ratio(value: float, to: float) -> str:
    return f"{value / to:.{2 if value / to < 0.095 else 1}f}x" if value and to else DASH


def scaled(value: float, units: Sequence[tuple[float, float, str]]) -> str:
    """A value in the first of the units (from which value on, size, form) that it is large enough for."""
    return next((form.format(value / size) for least, size, form in units if value >= least), DASH)


def span(group: tuple[int, int]) -> str:
    """`5–8`."""
    return f"{group[0]}–{group[1]}" if group[0] < group[1] else f"{group[0]}"


def listed(given: Iterable[str]) -> str:
    """`a, b and c`."""
    words = list(given)
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
