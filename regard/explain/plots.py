"""Attention as figures for print: over a text one heat map, or all heads of a layer side by side.

`draw` is where it is decided how a layer is shown.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.evaluation.alignment import Weights
from regard.explain.drawing import GRID, INK, LABEL, LARGEST_SIDE, QUIET, columns_for, drawing, shorten, shown, style
from regard.explain.lanes import head_lanes, lanes
from regard.explain.sheet import head_sheet, sheet
from regard.explain.trace import Explanation, Layer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

COLORS = "Blues"  # lightness falls evenly from near white: weak weights cost no ink and it survives a grey printer
MAP, GAP, BAR = 4.5, 0.22, 0.14  # inches: a comfortable map, between maps, the width of the colour bar
TRUTH = "#e08600"  # boxes of gold links
NOTES, NOTE = 4, 70  # lines of what is predicted, above a map, and characters in each


def draw(
    explanation: Explanation, path: Path, *, layer: str | None = None, head: int | None = None, grid: bool = False
) -> None:
    """Draw one layer: one head of it, the mean of its heads, or with `grid` each head beside the others."""
    whole, by_head = heat_map, head_grid
    if explanation.canvas is not None and explanation.sees(explanation.layer(layer)):
        whole, by_head = (lanes, head_lanes) if explanation.canvas.kind == "sound" else (sheet, head_sheet)
    if grid:
        by_head(explanation, path, layer=layer)
    else:
        whole(explanation, path, layer=layer, head=head)


def heat_map(explanation: Explanation, path: Path, *, layer: str | None = None, head: int | None = None) -> None:
    """Draw the weights of one layer: rows attend, columns are attended to.

    `layer` is the best one over the source unless named, `head` (from 0) the mean of all unless given. The ending of
    `path` is .png, .svg or .pdf.
    """
    weights = explanation.weights(layer, head)[None]
    _maps(explanation, path, explanation.layer(layer), weights, explanation.title(layer, head), MAP, 0.22)


def head_grid(explanation: Explanation, path: Path, *, layer: str | None = None) -> None:
    """Draw all heads of one layer as small maps over the same rows and columns, to see which does what."""
    chosen = explanation.layer(layer)
    heads = len(chosen.weights)
    title = f"{chosen.name}, {heads} head{'s' * (heads > 1)}"
    _maps(explanation, path, chosen, chosen.weights, title, MAP / 2, 0.16, numbered=True)


def _maps(
    explanation: Explanation, path: Path, layer: Layer, maps: Weights, title: str, size: float, least: float, *,
    numbered: bool = False,
) -> None:  # fmt: skip
    """Draw `(maps, rows, columns)` of one layer side by side, of about `size` inches, but labels `least` inches apart;
    above them the title and, briefly, what was predicted."""
    count, rows, columns = maps.shape
    across, longest = columns_for(count, columns, rows), max(rows, columns, 1)
    pitch = min(max(size / longest, least), 2 * least, LARGEST_SIDE / across / longest)  # inches from row to row
    width, height = columns * pitch + GAP, rows * pitch + 2 * GAP
    (rows_name, columns_name), row_labels, column_labels, given = _labels(explanation, layer)
    notes = [shorten(note, NOTE) for note in explanation.notes()]
    title = "\n".join([title, *(notes if len(notes) <= NOTES else [*notes[: NOTES - 1], "…"])])
    with drawing(path, [title, *row_labels, *column_labels]) as figure:
        for i, weights in enumerate(maps):
            down, right = divmod(i, across)
            axes = _map(figure, weights, pitch, left=right * width, top=down * height)
            if layer.kind == "cross":
                _outline(axes, explanation)
            if given:  # lines between what was given and what was written
                axes.axhline(given, color=INK, linewidth=1.2)
                axes.axvline(given, color=INK, linewidth=1.2)
            if right == 0:
                _label_axis(axes.yaxis, row_labels, rows_name, pitch, given, pad=4)
            if down == 0:
                axes.xaxis.tick_top()
                axes.xaxis.set_label_position("top")
                turned = {"rotation": 60, "rotation_mode": "anchor", "ha": "left", "va": "center"}
                _label_axis(axes.xaxis, column_labels, columns_name, pitch, given, pad=6, **turned)
            if i == 0:
                axes.set_title(title, loc="left", pad=10, **style(LABEL + 1))
            if numbered:  # below the map: above it stand the labels of the columns, in the first line of maps only
                axes.text(0.5, -0.06 / (rows * pitch), f"head {i}", transform=axes.transAxes, ha="center", va="top",
                          fontsize=LABEL - 1, color=INK)  # fmt: skip
        _color_bar(figure, figure.axes[0], left=across * width)


def _labels(explanation: Explanation, layer: Layer) -> tuple[tuple[str, str], list[str], list[str], int]:
    """Names of both sides of a map, labels of its rows and columns, and how many of these were given rather than
    written; 0 where that makes no difference."""
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
    return names, rows, [shown(piece) for piece in columns], given


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


def _outline(axes: Axes, explanation: Explanation) -> None:
    """Boxes around cells of words that belong together, where that is known."""
    from matplotlib.patches import Rectangle

    links = set(explanation.gold)
    for row, target in enumerate(explanation.target_word):
        for column, source in enumerate(explanation.source_word):
            if (source, target) in links:
                axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=TRUTH, linewidth=1.2, zorder=3))


def _label_axis(
    axis: XAxis | YAxis, labels: list[str], name: str, pitch: float, given: int, *, pad: int, **turned: Any
) -> None:
    """Name an axis and its rows or columns: each, unless the lines would overlap; what was given is grey."""
    step = math.ceil(LABEL / 72 / pitch)
    places = np.arange(0, len(labels), step) + 0.5
    axis.set_ticks(places, labels[::step], **turned, **style())
    for tick, place in zip(axis.get_ticklabels(), places, strict=True):
        if place < given:
            tick.set_color(QUIET)
    axis.set_tick_params(length=0, pad=pad)
    axis.set_label_text(name, fontsize=LABEL, color=INK, style="italic")


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
