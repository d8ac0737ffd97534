"""Attention over a picture, word by word (Xu et al. 2015, "Show, Attend and Tell", figure 3).

First the picture, then for each word of the target the picture again, dark but for where the model looked.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard.errors import require
from regard.evaluation.alignment import Weights, merge_words
from regard.explain.canvas import INK, LABEL, LARGEST_SIDE, QUIET, canvas, columns_for, shorten, style
from regard.explain.trace import Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL, SMALL, GAP, TITLE = 1.45, 0.8, 0.14, 0.26  # inches: a picture, one of many, between them, a line above them
PIXELS = 256  # a picture's longer side, about: what is smooth should look so, whatever the picture is made of
DARK, GLOW = 0.26, 0.3  # what is left of the picture where no one looked; how much white is added where one did


def sheet(explanation: Explanation, path: Path, *, layer: str | None = None, head: int | None = None) -> None:
    """Draw where one layer looked at each word of the target: one head (from 0), or the mean of all.

    First comes the picture, then a panel for each word, from left to right and line by line.
    """
    words, looks = _looks(explanation, explanation.weights(layer, head))
    height, width = size = _size(explanation, PANEL)
    across = columns_for(len(words) + 1, width, height)
    panels = [("", _plain(explanation)), *zip(words, _lit(explanation, looks), strict=True)]
    with canvas(path, words) as figure:
        for i, (word, pixels) in enumerate(panels):
            down, right = divmod(i, across)
            axes = _panel(figure, pixels, size, left=right * (width + GAP), top=down * (height + GAP + TITLE))
            _caption(axes, word, width)
            if (
                i
            ):  # Each panel has its own scale, or all but the surest would be black: say what the brightest cell has.
                axes.text(1, -0.04, f"{looks[i - 1].max(initial=0):.0%}", transform=axes.transAxes, ha="right",
                          va="top", **style(LABEL - 3, QUIET))  # fmt: skip
        note = "Bright: where the model looked. Below: the weight of the brightest cell."
        _heading(figure, explanation.title(layer, head), note)


def head_sheet(explanation: Explanation, path: Path, *, layer: str | None = None) -> None:
    """Draw where each head of a layer looked: the picture in the upper left, a row for each head, a column for each
    word."""
    chosen = explanation.layer(layer)
    heads = [_looks(explanation, weights) for weights in chosen.weights]
    words = heads[0][0]
    room = LARGEST_SIDE / (max(len(words), len(heads)) + 2) - GAP / 2
    height, width = size = _size(explanation, min(SMALL, room))
    with canvas(path, words) as figure:
        whole = _panel(figure, _plain(explanation), _size(explanation, PANEL), left=0.0, top=0.0)
        start = whole.get_position().width + 0.6  # of a figure of one inch: inches
        for row, (_, looks) in enumerate(heads):
            for column, pixels in enumerate(_lit(explanation, looks)):
                left, top = start + column * (width + GAP / 2), row * (height + GAP / 2)
                axes = _panel(figure, pixels, size, left=left, top=top)
                if row == 0:
                    _caption(axes, words[column], width)
                if column == 0:
                    axes.set_ylabel(f"head {row}", rotation=0, ha="right", va="center", labelpad=4, **style(LABEL - 1))
        title = f"{chosen.name}, {len(heads)} head{'s' * (len(heads) > 1)}"
        _heading(figure, title, "Bright: where each head looked, on a scale of its own for each panel.")


def light(picture: NDArray[np.uint8], look: Weights) -> NDArray[np.uint8]:
    """The picture, bright where `look` (rows, columns) is greatest, and the darker the less it is."""
    require("PIL")
    from PIL import Image

    height, width, _ = picture.shape
    spot = np.asarray(Image.fromarray(look.astype(np.float32)).resize((width, height), Image.Resampling.BICUBIC))
    # A cubic curve rises above a peak, most of all in a corner, and dips below zero beside it: neither is a weight.
    spot = (spot / max(float(look.max()), 1e-9)).clip(0, 1)[..., None]
    shaded = picture * (DARK + (1 - DARK) * spot)
    # Some white, or a black thing would look the same whether it was looked at or not.
    return (shaded + (255 - shaded) * GLOW * spot).round().astype(np.uint8)


def _looks(explanation: Explanation, weights: Weights) -> tuple[list[str], Weights]:
    """The words of the target and where each looked, `(words, cells)`."""
    words, numbers = explanation.steps()
    return [shorten(word) for word in words], merge_words(np.nan_to_num(weights), numbers, explanation.source_word)


def _lit(explanation: Explanation, looks: Weights) -> list[NDArray[np.uint8]]:
    picture, side = _plain(explanation), explanation.side
    return [light(picture, look.reshape(side, side)) for look in looks]


def _plain(explanation: Explanation) -> NDArray[np.uint8]:
    """The picture, each pixel enlarged to a square of them where there are few."""
    assert explanation.picture is not None
    times = max(1, round(PIXELS / max(explanation.picture.shape)))
    return explanation.picture.repeat(times, axis=0).repeat(times, axis=1)


def _size(explanation: Explanation, longest: float) -> tuple[float, float]:
    """Height and width in inches."""
    assert explanation.picture is not None
    height, width, _ = explanation.picture.shape
    return longest * height / max(height, width), longest * width / max(height, width)


def _panel(figure: Figure, pixels: NDArray[np.uint8], size: tuple[float, float], *, left: float, top: float) -> Axes:
    height, width = size
    axes = figure.add_axes((left, 1 - top - height, width, height))
    axes.imshow(pixels, aspect="auto")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return axes


def _heading(figure: Figure, title: str, note: str) -> None:
    figure.text(0, 1 + 2 * TITLE + 0.1, title, ha="left", va="bottom", **style(LABEL + 1))
    figure.text(0, 1 + TITLE + 0.1, note, ha="left", va="bottom", **style(LABEL - 2, QUIET))


def _caption(axes: Axes, word: str, width: float) -> None:
    """A word above its panel; a long one in smaller letters."""
    letters = 11 * width  # of usual width, in the usual size
    size = max(LABEL - 4, min(LABEL, int(LABEL * letters / max(len(word), 1))))
    axes.set_title(word, pad=4, **style(size, INK))
