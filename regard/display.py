"""What the command line shows: progress on stderr, live in a terminal and in lines elsewhere; results on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self

from rich import progress
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from regard.evaluation.exposure import Exposure
from regard.evaluation.labels import ClassScore
from regard.evaluation.metrics import Score
from regard.training.watcher import Update, Watcher

QUIET_SECONDS = 10.0  # between plain lines, where there is no terminal to draw a live one in

console = Console(stderr=True, highlight=False)


class TrainingDisplay(Watcher):
    """Loss, tokens per second and time left, as training goes on."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live = Progress(
            TextColumn("training"), BarColumn(), progress.TaskProgressColumn(), TextColumn("{task.fields[facts]}"),
            progress.TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=console, disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self.task: TaskID | None = None
        self.loss, self.began, self.first, self.spoke = "", time.monotonic(), 0.0, time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def update(self, update: Update) -> None:
        if update.loss is not None:
            self.loss = f"loss {update.loss:.3f}  "
        facts = f"update {update.step}  {self.loss}{update.tokens_per_second:,.0f} tokens/s"
        if self.task is None:
            self.began, self.first = time.monotonic(), update.done
            self.task = self.live.add_task("training", total=1.0, facts=facts)
            self.live.start()
        self.live.update(self.task, completed=update.done, facts=facts)
        now = time.monotonic()
        plain = not self.quiet and not console.is_terminal
        if plain and now - self.spoke >= QUIET_SECONDS and update.done > self.first:
            left = (now - self.began) / (update.done - self.first) * (1.0 - update.done)
            console.print(f"{update.done:.0%}  {facts}  {timedelta(seconds=int(left))} left")
            self.spoke = now

    def message(self, text: str) -> None:
        if not self.quiet:
            console.print(text, markup=False, soft_wrap=True)


@contextmanager
def counting(what: str, total: int | None, *, quiet: bool = False) -> Iterator[Progress]:
    """A bar for other long work; `progress.advance(progress.task_ids[0])` moves it. Silent without a terminal."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        bar.add_task(what, total=total)
        yield bar


def show(what: RenderableType) -> None:
    """Print a result to standard output. A pipe has no width, so lines stay whole there."""
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(what)


def _table(texts: Sequence[str], numbers: Sequence[str], title: str | None = None) -> Table:
    """A table with columns of texts, which may fold, and right-aligned ones of numbers."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in texts:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def score_table(scores: dict[str, Score], title: str) -> Table:
    """Scores with their signatures."""
    table = _table(["score"], ["value"], title)
    table.add_column("signature", overflow="fold", style="dim")
    for score in scores.values():
        digits = 3 if score.name == "AER" else 2
        spread = "" if score.interval is None else f" ({score.interval[0]:.{digits}f}–{score.interval[1]:.{digits}f})"
        table.add_row(score.name, f"{score.value:.{digits}f}{spread}", score.signature)
    return table


def class_table(classes: Sequence[ClassScore]) -> Table:
    """Precision, recall and F1 of each label, in percent, and how often it is right."""
    table = _table(["label"], ["precision", "recall", "F1", "support"])
    for row in classes:
        shares = (f"{share:.2f}" for share in (row.precision, row.recall, row.f1))
        table.add_row(Text(row.label), *shares, f"{row.support:,}")  # a label is no markup, whatever is in it
    return table


def model_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Models by name, with idea, paper and parameters."""
    table = _table(["name", "idea", "paper"], ["parameters"])
    for row in rows:
        table.add_row(row["name"], row["idea"], row["paper"], f"{row['parameters']:,}")
    return table


def exposure_table(exposure: Exposure) -> RenderableType:
    """Quality after true prefixes and in free running, by position in the reference."""
    title = f"after true prefixes {exposure.teacher_forced:.1f} %, in free running {exposure.free_running:.1f} %"
    table = _table([], ["position", "tokens", "true prefixes", "free running", "gap"])
    for stretch in exposure.stretches:
        shares = stretch.teacher_forced, stretch.free_running, stretch.teacher_forced - stretch.free_running
        place = f"{stretch.first}-{stretch.last}"
        table.add_row(place, f"{stretch.tokens:,}", *(f"{share:.1f}" for share in shares))
    return Group(f"{title}: gap {exposure.gap:.1f}", table)


def side_by_side(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Source, output and reference of some examples, one under the other."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("what", style="dim")
    table.add_column("text", overflow="fold")
    for source, output, reference in rows:
        same = "bold green" if output == reference else "bold yellow"
        table.add_row("source", source)
        table.add_row("output", output, style=same)
        table.add_row("reference", reference, end_section=True)
        table.add_row("", "")
    return table
