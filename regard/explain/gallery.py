"""Pictures side by side, each below the text that it was made from."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.data.modality import Picture
from regard.explain.drawing import columns_for, drawing, legible, style

SIDE, LINE, LETTERS = 1.4, 0.15, 24  # inches of a picture and of a line of text; letters of such a line
LINES = 4


def save_gallery(pictures: Sequence[Picture], texts: Sequence[str], path: Path) -> Path:
    """Draw a sheet of pictures with their texts."""
    lines = [textwrap.wrap(legible(text), LETTERS, max_lines=LINES, placeholder=" …") for text in texts]
    height = SIDE + LINE * (max(map(len, lines), default=0) + 1)
    across = columns_for(len(pictures), SIDE, height)
    with drawing(path, texts) as figure:
        for number, (picture, text) in enumerate(zip(pictures, lines, strict=True)):
            row, column = divmod(number, across)
            left, top = column * (SIDE + LINE), 1.0 - row * height
            box: Any = (left, top - SIDE, SIDE, SIDE)
            axes = figure.add_axes(box)
            axes.imshow(picture, interpolation="nearest")
            axes.set_axis_off()
            axes.text(0.0, 1.03, "\n".join(text), transform=axes.transAxes, va="bottom", **style(7))
    return path
