"""Images from files; `pixels.py` reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from regard.data.lines import BLANKS
from regard.data.modalities.pixels import check_picture, read_picture
from regard.data.modality import Canvas, Modality
from regard.data.readers.members import field_digest
from regard.data.side import Field, Item
from regard.errors import DataError
from regard.evaluation.alignment import WORDS, Alignment
from regard.registry import register
from regard.section import SideSettings

if TYPE_CHECKING:
    from regard.data.examples import Example


@dataclass(frozen=True, slots=True)
class Box:
    """Where in an image the thing is that some words name: words `first` to `last` of the target, and corners as
    shares of the image's width and height."""

    first: int
    last: int
    left: float
    top: float
    right: float
    bottom: float


class ImageSettings(SideSettings):
    """An image, whose path (relative to the data file) stands in the record."""

    stem = "convolution"
    scored_by = ("bleu", "chrf", "ter", "exact", "bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider")

    size: int = Setting(64, ge=8, le=4096, description="images are brought to so many pixels a side")


@register("image")
class Image(Modality):
    """An image of `size` x `size` pixels: a sequence of scanlines, of which the encoder makes a grid of vectors."""

    Settings = ImageSettings
    dtype = "uint8"
    several_references = True

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (3 * self.settings.size,)

    @property
    def fixed_length(self) -> int:  # type: ignore[override]
        return int(self.settings.size)

    @property
    def grid(self) -> int:
        """How many of the encoder's vectors lie side by side."""
        return math.isqrt(self.stem.vectors(self.settings.size))

    def read(self, field: str, folder: Path) -> str:
        if not field.strip(BLANKS):
            raise ValueError("names no picture")
        return str(folder / field)

    def digest(self, field: Field) -> str:
        return field_digest(field)

    def find_fault(self, field: str) -> tuple[str, str] | None:
        what = _fault(field)
        return ("unreadable", f"names what is no picture: {what}") if what else None

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[NDArray[np.uint8]]:
        return [read_picture(field, self.settings.size) for field in fields]

    def problem(self, item: Item, limit: int) -> str | None:
        return None

    def most_places(self, limit: int) -> int:
        return int(self.grid**2)

    def pieces(self, item: Item) -> list[str]:
        return [f"{row + 1},{column + 1}" for row, column in product(range(self.grid), repeat=2)]

    def read_gold(self, record: dict[str, Any]) -> tuple[Box, ...]:
        """`boxes`, if there: lists of first word, last word, left, top, right, bottom in pixels of `width` x
        `height`."""
        if "boxes" not in record:
            return ()
        try:
            width, height = float(record["width"]), float(record["height"])
            boxes = tuple(
                Box(int(first), int(last), x0 / width, y0 / height, x1 / width, y1 / height)
                for first, last, x0, y0, x1, y1 in record["boxes"]
            )
            sound = all(
                0 <= box.first <= box.last < WORDS
                and all(map(math.isfinite, (box.left, box.top, box.right, box.bottom)))
                for box in boxes
            )
        except (KeyError, TypeError, ValueError, ArithmeticError):
            sound = False
        if not (sound and 0 < width < math.inf and 0 < height < math.inf):
            raise ValueError(
                "has 'boxes' that should be lists [first word, last word, left, top, right, bottom] in pixels, with "
                "the picture's 'width' and 'height' beside them"
            )
        return boxes

    def gold(self, example: Example) -> Alignment | None:
        """A word belongs to every cell that its thing's box reaches into."""
        if not example.gold:
            return None
        links = {
            (row * self.grid + column, word)
            for box in example.gold
            for word in range(box.first, box.last + 1)
            for row, column in product(range(self.grid), repeat=2)
            if box.left * self.grid < column + 1 and column < box.right * self.grid
            and box.top * self.grid < row + 1 and row < box.bottom * self.grid
        }  # fmt: skip
        return Alignment(frozenset(), frozenset(links))

    def canvas(self, item: Item) -> Canvas | None:
        side = self.settings.size
        return Canvas(np.asarray(item, dtype=np.uint8).reshape(side, side, 3), self.grid, self.grid)

    def export(self) -> dict[str, Any] | None:
        return {"kind": "image", "side": self.settings.size}

    def made_up(self, draw: np.random.Generator, count: int, longest: int) -> list[NDArray[np.uint8]]:
        side = self.settings.size
        return list(draw.integers(256, size=(count, side, 3 * side)).astype(np.uint8))


@lru_cache(maxsize=1024)  # captions of one image stand together
def _fault(path: str) -> str | None:
    try:
        check_picture(path)
    except DataError as error:
        return str(error)
    return None
