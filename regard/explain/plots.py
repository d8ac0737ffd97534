"""Attention as pictures for print: over a text one heat map, or all heads of a layer side by side.

`draw` is where it is decided how a layer is shown.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.evaluation.alignment import Weights
from regard.explain.canvas import GRID, INK, LABEL, LARGEST_SIDE, canvas, columns_for, shown, style
from regard.explain.sheet import head_sheet, sheet
from regard.explain.trace import Explanation, Layer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = "Blues"  # lightness falls evenly from near white: weak weights cost no ink and it survives a grey printer
MAP, GAP, BAR = 4.5, 0.22, 0.14  # inches: a comfortable map, between maps, the width of the colour bar
SIDES = {"cross": ("target", "source"), "encoder": ("source", "source"), "decoder": ("target so far", "target so far")}


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
    with canvas(path, _labels(explanation, chosen)) as figure:
        pitch = _pitch(max(weights.shape), least=0.22, limit=LARGEST_SIDE)
        axes = _map(figure, weights, pitch, left=0.0, top=0.0)
        _label_rows(axes, explanation, chosen, pitch)
        _label_columns(axes, explanation, chosen, pitch)
        axes.set_title(explanation.title(layer, head), loc="left", pad=10, **style(LABEL + 1))
        _color_bar(figure, axes, left=weights.shape[1] * pitch + GAP)


def head_grid(explanation: Explanation, path: Path, *, layer: str | None = None) -> None:
    """Draw all heads of one layer as small maps over the same rows and columns, to see which does what."""
    chosen = explanation.layer(layer)
    heads, rows, columns = chosen.weights.shape
    across = columns_for(heads, rows, columns)
    pitch = _pitch(max(rows, columns), least=0.16, limit=LARGEST_SIDE / across, comfortable=MAP / 2)
    width, height = columns * pitch + GAP, rows * pitch + 2 * GAP
    with canvas(path, _labels(explanation, chosen)) as figure:
        for head in range(heads):
            down, right = divmod(head, across)
            axes = _map(figure, chosen.weights[head], pitch, left=right * width, top=down * height)
            if right == 0:
                _label_rows(axes, explanation, chosen, pitch)
            if down == 0:
                _label_columns(axes, explanation, chosen, pitch)
            if head == 0:
                title = f"{chosen.name}, {heads} head{'s' * (heads > 1)}"
                axes.set_title(title, loc="left", pad=10, **style(LABEL + 1))
            # Below the map: above it stand the labels of the columns, in the first line of maps only.
            axes.text(0.5, -0.06 / (rows * pitch), f"head {head}", transform=axes.transAxes,
                      ha="center", va="top", fontsize=LABEL - 1, color=INK)  # fmt: skip
        _color_bar(figure, figure.axes[0], left=across * width)


def _labels(explanation: Explanation, layer: Layer) -> list[str]:
    return [shown(piece) for axis in explanation.axes(layer) for piece in axis]


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


def _ticks(pieces: list[str], pitch: float) -> tuple[list[float], list[str]]:
    """Where labels stand and what they say; every one unless the lines would overlap."""
    step = math.ceil(LABEL / 72 / pitch)
    return [i + 0.5 for i in range(0, len(pieces), step)], [shown(x) for x in pieces[::step]]


def _label_rows(axes: Axes, explanation: Explanation, layer: Layer, pitch: float) -> None:
    places, labels = _ticks(explanation.axes(layer)[0], pitch)
    axes.set_yticks(places, labels, **style())
    axes.tick_params(axis="y", length=0, pad=4)
    axes.set_ylabel(SIDES[layer.kind][0], fontsize=LABEL, color=INK, style="italic")


def _label_columns(axes: Axes, explanation: Explanation, layer: Layer, pitch: float) -> None:
    places, labels = _ticks(explanation.axes(layer)[1], pitch)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xticks(places, labels, rotation=60, rotation_mode="anchor", ha="left", va="center", **style())
    axes.tick_params(axis="x", length=0, pad=6)
    axes.set_xlabel(SIDES[layer.kind][1], fontsize=LABEL, color=INK, style="italic")


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
