"""Attention as pictures for print: over a text one heat map, or all heads of a layer side by side.

`draw` is where it is decided how a layer is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from regard.evaluation.alignment import Weights
from regard.explain.canvas import (
    GRID,
    INK,
    LABEL,
    LARGEST_SIDE,
    QUIET,
    canvas,
    columns_for,
    legible,
    shorten,
    shown,
    style,
)
from regard.explain.sheet import head_sheet, sheet
from regard.explain.trace import Explanation, Layer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = "Blues"  # lightness falls evenly from near white: weak weights cost no ink and it survives a grey printer
MAP, GAP, BAR = 4.5, 0.22, 0.14  # inches: a comfortable map, between maps, the width of the colour bar
NOTES, NOTE = 4, 70  # lines of what is predicted, above a map, and characters in each


def draw(
    explanation: Explanation, path: Path, *, layer: str | None = None, head: int | None = None, grid: bool = False
) -> None:
    """Draw one layer: one head of it, the mean of its heads, or with `grid` each head beside the others."""
    whole, by_head = (sheet, head_sheet) if explanation.sees(explanation.layer(layer)) else (heat_map, head_grid)
    if grid:
        by_head(explanation, path, layer=layer)
    else:
        whole(explanation, path, layer=layer, head=head)


def heat_map(explanation: Explanation, path: Path, *, layer: str | None = None, head: int | None = None) -> None:
    """Draw who looked at whom in one layer: rows attend, columns are attended to.

    `layer` is the best one over the source unless named, `head` (from 0) the mean of all unless given. The ending of
    `path` is .png, .svg or .pdf.
    """
    chosen = explanation.layer(layer)
    weights = explanation.weights(layer, head)
    sides = _sides(explanation, chosen)
    title = _title(explanation, explanation.title(layer, head))
    with canvas(path, [title, *sides.rows, *sides.columns]) as figure:
        pitch = _pitch(max(weights.shape), least=0.22, limit=LARGEST_SIDE)
        axes = _map(figure, weights, pitch, left=0.0, top=0.0)
        _part(axes, sides)
        _label_axis(axes, sides, pitch, "y")
        _label_axis(axes, sides, pitch, "x")
        axes.set_title(title, loc="left", pad=10, **style(LABEL + 1))
        _color_bar(figure, axes, left=weights.shape[1] * pitch + GAP)


def head_grid(explanation: Explanation, path: Path, *, layer: str | None = None) -> None:
    """Draw all heads of one layer as small maps over the same rows and columns, to see which does what."""
    chosen = explanation.layer(layer)
    heads, rows, columns = chosen.weights.shape
    across = columns_for(heads, rows, columns)
    pitch = _pitch(max(rows, columns), least=0.16, limit=LARGEST_SIDE / across, comfortable=MAP / 2)
    width, height = columns * pitch + GAP, rows * pitch + 2 * GAP
    sides = _sides(explanation, chosen)
    title = _title(explanation, f"{chosen.name}, {heads} head{'s' * (heads > 1)}")
    with canvas(path, [title, *sides.rows, *sides.columns]) as figure:
        for head in range(heads):
            down, right = divmod(head, across)
            axes = _map(figure, chosen.weights[head], pitch, left=right * width, top=down * height)
            _part(axes, sides)
            if right == 0:
                _label_axis(axes, sides, pitch, "y")
            if down == 0:
                _label_axis(axes, sides, pitch, "x")
            if head == 0:
                axes.set_title(title, loc="left", pad=10, **style(LABEL + 1))
            # Below the map: above it stand the labels of the columns, in the first line of maps only.
            axes.text(0.5, -0.06 / (rows * pitch), f"head {head}", transform=axes.transAxes,
                      ha="center", va="top", fontsize=LABEL - 1, color=INK)  # fmt: skip
        _color_bar(figure, figure.axes[0], left=across * width)


@dataclass(frozen=True)
class _Sides:
    """What is written beside a map: names of its sides, labels of its rows and columns, of which the first `given` were
    given and the others written; 0 where they are not told apart."""

    names: tuple[str, str]
    rows: list[str]
    columns: list[str]
    given: int


def _sides(explanation: Explanation, layer: Layer) -> _Sides:
    pieces, columns = explanation.axes(layer)
    predicted = {} if layer.kind == "cross" else explanation.predicted
    rows = [shown(piece) + (f" → {shown(predicted[i])}" if i in predicted else "") for i, piece in enumerate(pieces)]
    given = explanation.given if layer.kind == "decoder" and 1 < explanation.given < len(pieces) else 0
    match layer.kind:
        case "cross":
            names = "target", "source"
        case "encoder":
            names = ("text" if explanation.places else "source",) * 2
        case "decoder" if given:
            names = ("text so far (grey: given)",) * 2
        case "decoder":
            names = ("text so far" if explanation.given or explanation.places else "target so far",) * 2
    return _Sides(names, rows, [shown(piece) for piece in columns], given)


def _title(explanation: Explanation, title: str) -> str:
    """What the map is of, and under it what was predicted, briefly."""
    notes = [shorten(legible(note), NOTE) for note in explanation.notes()]
    return "\n".join([title, *(notes if len(notes) <= NOTES else [*notes[: NOTES - 1], "…"])])


def _part(axes: Axes, sides: _Sides) -> None:
    """Lines between what was given and what was written."""
    if sides.given:
        axes.axhline(sides.given, color=INK, linewidth=1.2)
        axes.axvline(sides.given, color=INK, linewidth=1.2)


def _pitch(longest: int, *, least: float, limit: float, comfortable: float = MAP) -> float:
    """Inches from one row to the next: few tokens get large cells, many get just room for a label, within `limit`."""
    return min(max(comfortable / max(longest, 1), least), 2 * least, limit / max(longest, 1))


def _map(figure: Figure, weights: Weights, pitch: float, *, left: float, top: float) -> Axes:
    """Cells of `pitch` inches, the upper left one at (`left`, `top`) inches; no labels yet."""
    from matplotlib.collections import PolyCollection

    rows, columns = weights.shape
    axes = figure.add_axes((left, 1 - top - rows * pitch, columns * pitch, rows * pitch))
    # Shapes, not an image, for viewers blur a small image when they enlarge it; and only cells that differ from the
    # background, for in most heads they are few and the file stays small.
    queries, keys = np.nonzero(weights >= 1 / 512)
    corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])
    cells = PolyCollection(
        np.stack([keys, queries], axis=-1)[:, None] + corners, array=weights[queries, keys], cmap=COLORS, clim=(0, 1)
    )
    axes.add_collection(cells, autolim=False)
    axes.set_facecolor(cells.to_rgba(np.zeros(1))[0])
    axes.hlines(range(1, rows), 0, columns, colors=GRID, linewidth=0.4)
    axes.vlines(range(1, columns), 0, rows, colors=GRID, linewidth=0.4)
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    axes.spines[:].set_color(GRID)
    return axes


def _label_axis(axes: Axes, sides: _Sides, pitch: float, axis: Literal["x", "y"]) -> None:
    """Name the rows (y) or the columns (x): each of them, unless the lines would overlap; what was given in grey."""
    pieces, name = (sides.rows, sides.names[0]) if axis == "y" else (sides.columns, sides.names[1])
    step = math.ceil(LABEL / 72 / pitch)
    places, side = np.arange(0, len(pieces), step) + 0.5, axes.yaxis if axis == "y" else axes.xaxis
    turned = {"rotation": 60, "rotation_mode": "anchor", "ha": "left", "va": "center"} if axis == "x" else {}
    if axis == "x":
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
    side.set_ticks(places, pieces[::step], **turned, **style())
    for tick, place in zip(side.get_ticklabels(), places, strict=True):
        if place < sides.given:
            tick.set_color(QUIET)
    axes.tick_params(axis=axis, length=0, pad=4 if axis == "y" else 6)
    side.set_label_text(name, fontsize=LABEL, color=INK, style="italic")


def _color_bar(figure: Figure, axes: Axes, *, left: float) -> None:
    """A scale from 0 to 1, beside the top of the first map."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    box = axes.get_position()  # of a figure of one inch: inches
    height = min(box.height, 2.5)
    bar = figure.add_axes((left, box.y1 - height, BAR, height))
    scale = figure.colorbar(ScalarMappable(Normalize(0, 1), COLORS), cax=bar)
    scale.set_ticks([0.0, 0.5, 1.0] if height > 1 else [0.0, 1.0])
    scale.outline.set_edgecolor(GRID)
    bar.tick_params(length=2, labelsize=LABEL - 1, labelcolor=INK, color=GRID)
