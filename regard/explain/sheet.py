"""Attention over a picture or a strip of frames, word by word (Xu et al. 2015, "Show, Attend and Tell", figure 3), or
layer by layer.

First the picture, then for each word of the target the picture again, dark but for where the model looked; where it
is known in which cells the thing is that a word names, these are outlined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard.data.modality import Canvas
from regard.errors import require
from regard.evaluation.alignment import Weights
from regard.explain.drawing import INK, LABEL, LARGEST_SIDE, QUIET, columns_for, drawing, style
from regard.explain.looks import Look, head_looks, heading, looks
from regard.explain.trace import Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL, SMALL, GAP, TITLE = 1.45, 0.8, 0.14, 0.26  # inches: a picture, one of many, between them, a line above them
STRIP, SMALL_STRIP = 7.0, 2.4  # inches: a strip of frames, one of many
PIXELS = 256  # a picture's longer side, about: what is smooth should look so, whatever the picture is made of
DARK, GLOW = 0.26, 0.3  # what is left of the picture where no one looked; how much white is added where one did
GOLD = "#ffb000"  # an outline that is seen on dark and on bright


def sheet(explanation: Explanation, path: Path, *, layer: str | None = None, head: int | None = None) -> None:
    """Draw where one layer looked at each word of the target: one head (from 0), or the mean of all.

    First comes the picture, then a panel for each word, from left to right and line by line; under a label, a panel for
    each layer.
    """
    canvas, shown = _canvas(explanation), looks(explanation, layer, head)
    height, width = size = _size(canvas, STRIP if canvas.kind == "frames" else PANEL)
    across = columns_for(len(shown) + 1, width, height)
    with drawing(path, [look.label for look in shown]) as figure:
        for i, look in enumerate([None, *shown]):
            down, right = divmod(i, across)
            pixels = _enlarged(canvas) if look is None else lit(canvas, look.share)
            axes = _panel(figure, canvas, pixels, size, left=right * (width + GAP), top=down * (height + GAP + TITLE))
            if look is None:
                continue
            _caption(axes, look.label, width)
            _outline(axes, canvas, look)
            # Each panel has its own scale, or all but the surest would be black: say what the brightest cell has.
            axes.text(1, -0.04, f"{look.cells.max(initial=0):.0%}", transform=axes.transAxes, ha="right", va="top",
                      **style(LABEL - 3, QUIET))  # fmt: skip
        note = "Bright: where the model looked. Below: the weight of the brightest cell."
        _heading(figure, explanation, heading(explanation, layer, head), note + _more(explanation, shown))


def head_sheet(explanation: Explanation, path: Path, *, layer: str | None = None) -> None:
    """Draw where each head of a layer looked: the picture in the upper left, a row for each head, a column for each
    word; under a label, for each layer."""
    canvas, rows = _canvas(explanation), head_looks(explanation, layer)
    labels = [look.label if look else "" for look in rows[0]]
    room = LARGEST_SIDE / (max(len(labels), len(rows)) + 2) - GAP / 2
    strip = canvas.kind == "frames"
    height, width = size = _size(canvas, min(SMALL_STRIP if strip else SMALL, room))
    with drawing(path, labels) as figure:
        whole = _panel(
            figure, canvas, _enlarged(canvas), _size(canvas, SMALL_STRIP if strip else PANEL), left=0.0, top=0.0
        )
        start = whole.get_position().width + 0.6  # of a figure of one inch: inches
        for row, some in enumerate(rows):
            for column, look in enumerate(some):
                if look is None:
                    continue
                left, top = start + column * (width + GAP / 2), row * (height + GAP / 2)
                axes = _panel(figure, canvas, lit(canvas, look.share), size, left=left, top=top)
                _outline(axes, canvas, look)
                if row == 0:
                    _caption(axes, look.label, width)
                if column == 0:
                    axes.set_ylabel(f"head {row}", rotation=0, ha="right", va="center", labelpad=4, **style(LABEL - 1))
        note = "Bright: where each head looked, on a scale of its own for each panel."
        title = heading(explanation, layer, None, heads=len(rows))
        _heading(figure, explanation, title, note + _more(explanation, rows[0]))


def light(picture: NDArray[np.uint8], look: Weights) -> NDArray[np.uint8]:
    """The picture, bright where `look` (rows, columns) is 1, and the darker the less it is."""
    require("PIL")
    from PIL import Image

    height, width, _ = picture.shape
    spot = np.asarray(Image.fromarray(look.astype(np.float32)).resize((width, height), Image.Resampling.BICUBIC))
    # A cubic curve rises above a peak, most of all in a corner, and dips below zero beside it: neither is a weight.
    spot = spot.clip(0, 1)[..., None]
    shaded = picture * (DARK + (1 - DARK) * spot)
    # Some white, or a black thing would look the same whether it was looked at or not.
    return (shaded + (255 - shaded) * GLOW * spot).round().astype(np.uint8)


def lit(canvas: Canvas, share: Weights) -> NDArray[np.uint8]:
    """The canvas, each cell as bright as its share; in a strip each frame by itself: no light falls on the next."""
    grid, frames = share.reshape(canvas.rows, canvas.columns), _frames(canvas)
    pieces = zip(np.array_split(_enlarged(canvas), frames, axis=1), np.array_split(grid, frames, axis=1), strict=True)
    return np.concatenate([light(frame, look) for frame, look in pieces], axis=1)


def _frames(canvas: Canvas) -> int:
    return (canvas.frames or canvas.columns // canvas.rows) if canvas.kind == "frames" else 1


def _canvas(explanation: Explanation) -> Canvas:
    assert explanation.canvas is not None, "without one, attention is drawn as a heat map"
    return explanation.canvas


def _enlarged(canvas: Canvas) -> NDArray[np.uint8]:
    """The picture, each pixel enlarged to a square of them where there are few."""
    height, width, _ = canvas.pixels.shape
    times = max(1, round(PIXELS / max(height, width // _frames(canvas))))
    return canvas.pixels.repeat(times, axis=0).repeat(times, axis=1)


def _size(canvas: Canvas, longest: float) -> tuple[float, float]:
    """Height and width in inches."""
    height, width, _ = canvas.pixels.shape
    return longest * height / max(height, width), longest * width / max(height, width)


def _outline(axes: Axes, canvas: Canvas, look: Look) -> None:
    """A line around the cells that are right."""
    if lines := list(_edges(canvas, look.gold)):
        height, width = np.asarray(axes.get_images()[0].get_array()).shape[:2]
        across, down = width / canvas.columns, height / canvas.rows
        for (x0, y0), (x1, y1) in lines:
            axes.plot([x0 * across - 0.5, x1 * across - 0.5], [y0 * down - 0.5, y1 * down - 0.5], color=GOLD,
                      linewidth=1.1, solid_capstyle="projecting", clip_on=False)  # fmt: skip
        axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))


def _edges(canvas: Canvas, cells: frozenset[int]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Sides of cells, from corner to corner (column, row), that have none of the others beyond them."""
    inside = {divmod(cell, canvas.columns) for cell in cells}
    for row, column in sorted(inside):
        for beyond, start, end in (
            ((row - 1, column), (0, 0), (1, 0)), ((row + 1, column), (0, 1), (1, 1)),
            ((row, column - 1), (0, 0), (0, 1)), ((row, column + 1), (1, 0), (1, 1)),
        ):  # fmt: skip
            if beyond not in inside:
                yield (column + start[0], row + start[1]), (column + end[0], row + end[1])


def _more(explanation: Explanation, shown: Sequence[Look | None]) -> str:
    """What else is to be said of what is shown."""
    rolled = "\nRollout: dark is the least that comes of any cell." if any(x and x.least for x in shown) else ""
    return rolled + ("\nOutlined: where the thing is that the word names." if explanation.gold else "")


def _panel(
    figure: Figure, canvas: Canvas, pixels: NDArray[np.uint8], size: tuple[float, float], *, left: float, top: float
) -> Axes:
    """The canvas as `pixels`, with a line between frames."""
    height, width = size
    axes = figure.add_axes((left, 1 - top - height, width, height))
    axes.imshow(pixels, aspect="auto")
    each = pixels.shape[1] / _frames(canvas)
    axes.vlines(
        [i * each - 0.5 for i in range(1, _frames(canvas))], -0.5, pixels.shape[0] - 0.5, "white", linewidth=0.8
    )
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return axes


def _heading(figure: Figure, explanation: Explanation, title: str, note: str) -> None:
    title = "; ".join([*explanation.notes()[:1], title])
    lines = 2 + note.count("\n")
    figure.text(0, 1 + lines * TITLE + 0.1, title, ha="left", va="bottom", **style(LABEL + 1))
    figure.text(0, 1 + TITLE + 0.1, note, ha="left", va="bottom", **style(LABEL - 2, QUIET))


def _caption(axes: Axes, word: str, width: float) -> None:
    """A word above its panel; a long one in smaller letters."""
    letters = 11 * width  # of usual width, in the usual size
    size = max(LABEL - 4, min(LABEL, int(LABEL * letters / max(len(word), 1))))
    axes.set_title(word, pad=4, **style(size, INK))
