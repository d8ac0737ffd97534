"""Images from files; `pixels.py` reads them."""

from __future__ import annotations

import math
import time
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
from regard.data.modalities.pixels import Filter, check_picture, picture_size, read_picture
from regard.data.modality import Canvas, Extent, Modality
from regard.data.readers.members import RACY, field_digest
from regard.data.side import Field, Item
from regard.errors import DataError
from regard.evaluation.alignment import WORDS, Alignment
from regard.registry import register
from regard.section import Fraction, Section, Share, SideSettings

if TYPE_CHECKING:
    from torch import nn

    from regard.data.examples import Example

CLASS = "[class]"  # what a class token is shown as


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


class AugmentSettings(Section):
    """Augmentation of images, or of all frames of a video alike, drawn anew each time."""

    crop: int = Setting(
        0, ge=0, le=512, description="random crop: shift by up to this many pixels each way (4 for CIFAR)"
    )
    resize: float = Setting(
        1.0,
        gt=0,
        le=1,
        description="random resized crop: keep at least this share of the image (0.08 for ImageNet; 1: all of it)",
    )
    flip: bool = Setting(False, description="mirror half of the images; not if targets tell left from right")
    colour: Share = Setting(
        0.0, description="colour jitter: how much brightness, contrast and saturation vary (try 0.3)"
    )
    randaugment: int = Setting(
        0, ge=0, le=14, description="RandAugment: operations drawn for each image (Cubuk et al. 2020; try 2)"
    )
    magnitude: float = Setting(9.0, ge=0, le=30, description="RandAugment: magnitude of the operations, up to 30")
    probability: Fraction = Setting(
        1.0, description="RandAugment: probability that an operation drawn is applied (Hassani et al. 2021 take 0.5)"
    )
    erase: Fraction = Setting(
        0.0, description="random erasing: share of images in which a rectangle is made grey (Zhong et al. 2020)"
    )


# What captions are scored by, of pictures and of videos.
CAPTIONED = ("bleu", "chrf", "ter", "exact", "bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider")


class ImageSettings(SideSettings):
    """An image; the record holds its path, relative to the data file."""

    stem = "convolution"
    scored_by = CAPTIONED

    size: int = Setting(64, ge=8, le=4096, description="images are resized to this many pixels a side")
    resample: Filter = Setting("lanczos", description="the filter for resizing (ViT: bilinear)")
    augment: AugmentSettings | None = Setting(None, description="augmentation in training (default: none)")


@register("image")
class Image(Modality):
    """An image of `size` x `size` pixels: a sequence of scanlines, of which the encoder makes a grid of vectors."""

    Settings = ImageSettings
    dtype = "uint8"
    several_references = True
    media = "image"

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (3 * self.settings.size,)

    @property
    def fixed_length(self) -> int:  # type: ignore[override]
        return int(self.settings.size)

    @property
    def grid(self) -> int:
        """How many of the encoder's vectors lie side by side, the class token not counted."""
        return math.isqrt(self.stem.vectors(self.settings.size) - self.stem.has_whole)

    def read(self, field: str, folder: Path) -> str:
        if not field.strip(BLANKS):
            raise ValueError("names no picture")
        return str(folder / field)

    def digest(self, field: Field) -> str:
        return field_digest(field)

    def find_fault(self, field: str) -> tuple[str, str] | None:
        what = picture_fault(field)
        return ("unreadable", f"names what is no picture: {what}") if what else None

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[NDArray[np.uint8]]:
        return [read_picture(field, self.settings.size, self.settings.resample) for field in fields]

    def problem(self, item: Item, limit: int) -> str | None:
        return None

    def most_places(self, limit: int) -> int:
        return int(self.stem.vectors(self.settings.size))

    def pieces(self, item: Item) -> list[str]:
        cells = [f"{row + 1},{column + 1}" for row, column in product(range(self.grid), repeat=2)]
        return [CLASS, *cells] if self.stem.has_whole else cells

    def words(self, item: Item) -> list[int]:
        return [*([-1] if self.stem.has_whole else []), *range(self.grid**2)]

    def read_gold(self, record: dict[str, Any]) -> tuple[Box, ...]:
        """`boxes`, if there: lists of first word, last word, left, top, right, bottom in pixels of `width` x
        `height`."""
        form = "[first word, last word, left, top, right, bottom]"
        return tuple(Box(*numbers, *edges) for numbers, edges in read_boxes(record, form, 2))

    def gold(self, example: Example) -> Alignment | None:
        """A word belongs to every cell that its thing's box reaches into."""
        if not example.gold:
            return None
        links = {
            (row * self.grid + column, word)
            for box in example.gold
            for word in range(box.first, box.last + 1)
            for row, column in reached(box, self.grid)
        }
        return Alignment(frozenset(), frozenset(links))

    def canvas(self, item: Item) -> Canvas | None:
        side = self.settings.size
        return Canvas(np.asarray(item, dtype=np.uint8).reshape(side, side, 3), self.grid, self.grid)

    def augmentation(self) -> nn.Module | None:
        if self.settings.augment is None:
            return None
        from regard.nn.augment import PictureAugmentation

        return PictureAugmentation(self.settings.augment, self.settings.size)

    def extent(self, field: Field) -> Extent:
        width, height = picture_size(field)
        pixels = max(width, self.settings.size) * height  # rows are scaled first, so a narrow picture grows meanwhile
        return Extent(pixels, pixels)

    def export(self) -> dict[str, Any] | None:
        return {"kind": "image", "side": self.settings.size, "resample": self.settings.resample}

    def made_up(self, draw: np.random.Generator, count: int, longest: int) -> list[NDArray[np.uint8]]:
        side = self.settings.size
        return list(draw.integers(256, size=(count, side, 3 * side)).astype(np.uint8))


def read_boxes(record: dict[str, Any], form: str, whole: int) -> list[tuple[list[int], list[float]]]:
    """The `boxes` of a record, if there are any: so many whole numbers of each, first word and last word before others;
    and its edges, as shares of the picture's `width` and `height`. `form` says how they should be."""
    if "boxes" not in record:
        return []
    try:
        width, height = float(record["width"]), float(record["height"])
        boxes = []
        for box in record["boxes"]:
            left, top, right, bottom = box[whole:]
            edges = [left / width, top / height, right / width, bottom / height]
            boxes.append(([int(number) for number in box[:whole]], edges))
        sound = all(
            0 <= numbers[0] <= numbers[1] < WORDS and min(numbers) >= 0 and all(map(math.isfinite, edges))
            for numbers, edges in boxes
        )
    except (KeyError, TypeError, ValueError, ArithmeticError):
        sound = False
    if not (sound and 0 < width < math.inf and 0 < height < math.inf):
        raise ValueError(
            f"has 'boxes' that should be lists {form} in pixels, with the picture's 'width' and 'height' beside them"
        )
    return boxes


def reached(box: Any, grid: int) -> list[tuple[int, int]]:
    """The cells of a grid, row and column, that a box reaches into; edges belong to no neighbour."""
    return [
        (row, column)
        for row, column in product(range(grid), repeat=2)
        if box.left * grid < column + 1 and column < box.right * grid
        and box.top * grid < row + 1 and row < box.bottom * grid
    ]  # fmt: skip


def picture_fault(path: str) -> str | None:
    """What is wrong with the file of a picture; None if nothing is. A file that stays the same is read once."""
    try:
        facts = Path(path).stat()
    except (OSError, ValueError):  # it is in an archive, or not there
        return _known_fault(path)
    if time.time() - facts.st_mtime < RACY:
        return _fault(path)
    return _known_fault(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)


def _fault(path: str) -> str | None:
    try:
        check_picture(path)
    except DataError as error:
        return str(error)
    return None


@lru_cache(maxsize=2**20)  # data are gone through several times before training begins, and in order
def _known_fault(path: str, *changes: int) -> str | None:
    return _fault(path)
