"""Attention over a sound: its spectrogram, and below it, on the same axis of time, a lane for each word of the target.

Chorowski et al. 2015 ("Attention-Based Models for Speech Recognition", figure 2) and Chan et al. 2016 ("Listen, Attend
and Spell", figure 2) show it so. Where it is known when a word is spoken, its borders are drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.data.modality import Canvas
from regard.evaluation.alignment import median_place
from regard.explain.drawing import GRID, INK, LABEL, LARGEST_SIDE, QUIET, drawing, style
from regard.explain.looks import Look, gold_words, head_looks, heading, looks
from regard.explain.trace import Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST, MOST, INCHES = 5.0, 14.0, 1.8  # inches that a sound is wide, at least and at most, and a second of it
SOUND, LANE, ROW, GAP = 1.2, 0.34, 0.2, 0.08  # inches: the spectrogram, a lane, a row of a map, between them
WAVE, BAND, TRUTH = "#1c6fb8", "#ffe0a3", "#e08600"  # attention; when a word is spoken, and from when to when
COLORS = "Blues"


def lanes(explanation: Explanation, path: Path, *, layer: str | None = None, head: int | None = None) -> None:
    """Draw when one layer listened for each word of the target: one head (from 0), or the mean of all."""
    canvas, shown = _canvas(explanation), looks(explanation, layer, head)
    width = _width(canvas)
    lane = min(LANE, LARGEST_SIDE / len(shown) - GAP)
    with drawing(path, [look.label for look in shown]) as figure:
        words = shown if explanation.layer(layer).kind == "cross" else gold_words(explanation)
        room = _spectrogram(figure, canvas, words, width)
        edges = np.linspace(0.0, _end(canvas), canvas.columns + 1)
        for i, look in enumerate(shown):
            axes = _axes(figure, canvas, width, lane, top=SOUND + GAP + i * (lane + GAP), last=i == len(shown) - 1)
            if span := spoken(canvas, look):
                axes.axvspan(*span, color=BAND, linewidth=0)
            most = float(look.cells.max(initial=0))
            axes.stairs(look.share, edges, fill=True, color=WAVE, linewidth=0)
            axes.set_ylim(0, 1.08)
            axes.set_ylabel(look.label, rotation=0, ha="right", va="center", labelpad=6, **style())
            axes.text(1.005, 0.5, f"{most:.0%}", transform=axes.transAxes, va="center", **style(LABEL - 3, QUIET))
        note = "Height: attention, on a scale of its own for each lane; beside it, the most of it in one moment."
        _heading(figure, explanation, heading(explanation, layer, head), note, room)


def head_lanes(explanation: Explanation, path: Path, *, layer: str | None = None) -> None:
    """Draw when each head of a layer listened: a map for each, with a row for each word of the target."""
    canvas, heads = _canvas(explanation), head_looks(explanation, layer)
    width, rows = _width(canvas), len(heads[0])
    row = min(ROW, (LARGEST_SIDE / len(heads) - 3 * GAP) / rows)
    edges = np.linspace(0.0, _end(canvas), canvas.columns + 1)
    with drawing(path, [look.label for look in heads[0] if look]) as figure:
        words = gold_words(explanation)
        if explanation.layer(layer).kind == "cross":
            words = [look for look in heads[0] if look]
        room = _spectrogram(figure, canvas, words, width)
        for i, some in enumerate(heads):
            top = SOUND + GAP + i * (rows * row + 3 * GAP)
            axes = _axes(figure, canvas, width, rows * row, top=top, last=i == len(heads) - 1)
            weights = np.stack([np.zeros(canvas.columns) if look is None else look.cells for look in some])
            axes.pcolormesh(edges, np.arange(len(some) + 1), weights, cmap=COLORS, vmin=0.0,
                            vmax=max(float(weights.max()), 1e-9), rasterized=True)  # fmt: skip
            axes.set_ylim(rows, 0)
            labels = [look.label if look else "" for look in some]
            axes.set_yticks(np.arange(len(some)) + 0.5, labels, **style(LABEL - 2))
            axes.tick_params(axis="y", length=0)
            for number, look in enumerate(some):
                for edge in (look and spoken(canvas, look)) or ():
                    axes.plot([edge, edge], [number, number + 1], color=TRUTH, linewidth=1.0)
            axes.text(1.005, 0.5, f"head {i}", transform=axes.transAxes, va="center", **style(LABEL - 1))
        note = "Dark: attention, on a scale of its own for each head."
        _heading(figure, explanation, heading(explanation, layer, None, heads=len(heads)), note, room)


def spoken(canvas: Canvas, look: Look) -> tuple[float, float] | None:
    """From when to when a word is spoken, on the canvas's axis of time; None where that is not known."""
    if not look.gold:
        return None
    length = _end(canvas) / canvas.columns
    return min(look.gold) * length, (max(look.gold) + 1) * length


def _canvas(explanation: Explanation) -> Canvas:
    assert explanation.canvas is not None, "without one, attention is drawn as a heat map"
    return explanation.canvas


def _end(canvas: Canvas) -> float:
    """Where the axis of time ends: in seconds, or where they are not known in moments."""
    return canvas.seconds or float(canvas.columns)


def _width(canvas: Canvas) -> float:
    return min(max(canvas.seconds * INCHES, LEAST), MOST)


def _axes(figure: Figure, canvas: Canvas, width: float, height: float, *, top: float, last: bool = False) -> Axes:
    """A box over the axis of time, which is written below the last of them."""
    axes = figure.add_axes((0.0, 1 - top - height, width, height))
    axes.set_xlim(0, _end(canvas))
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(
        axis="x", labelbottom=last, length=3 if last else 0, labelsize=LABEL - 2, labelcolor=INK, color=GRID
    )
    if last:
        axes.set_xlabel("seconds" if canvas.seconds else "moments", **style(LABEL - 1))
    return axes


def _spectrogram(figure: Figure, canvas: Canvas, words: list[Look], width: float) -> float:
    """The sound, and above it each word where it is spoken or, where that is not known, where it was listened for; how
    many inches these take."""
    axes = _axes(figure, canvas, width, SOUND, top=0.0)
    axes.imshow(canvas.pixels, aspect="auto", extent=(0.0, _end(canvas), 0.0, 1.0), interpolation="nearest")
    known = any(look.gold for look in words)
    for look in words:
        span, attended = spoken(canvas, look), median_place(look.cells)
        if span is not None:
            for edge in span:
                axes.axvline(edge, color="#ffffff", linewidth=0.8, linestyle=(0, (3, 2)))
            place = sum(span) / 2
        elif known or attended is None:  # a mark such as </s>, which is not spoken
            continue
        else:
            place = attended * _end(canvas) / canvas.columns
        axes.text(place, 1.04, look.label, rotation=35, rotation_mode="anchor", ha="left", va="bottom",
                  **style(LABEL - 1, INK if span else QUIET))  # fmt: skip
    axes.set(xlim=(0, _end(canvas)), ylim=(0, 1))
    return 0.2 + 0.055 * max((len(look.label) for look in words), default=0)


def _heading(figure: Figure, explanation: Explanation, title: str, note: str, room: float) -> None:
    """Above the words that stand above the spectrogram."""
    title = "; ".join([*explanation.notes()[:1], title])
    if explanation.gold:
        note += "\nDashed lines and bands: when a word is spoken."
    figure.text(0, 1 + room + 0.3 + 0.16 * note.count("\n"), title, ha="left", va="bottom", **style(LABEL + 1))
    figure.text(0, 1 + room + 0.1, note, ha="left", va="bottom", **style(LABEL - 2, QUIET))
