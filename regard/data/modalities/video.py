"""Videos as frames; `clips.py` reads them."""

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
from regard.data.modalities.clips import check_clip, chosen, clip_digest, clip_size, count_frames, read_clip
from regard.data.modalities.image import CAPTIONED, AugmentSettings, reached, read_boxes
from regard.data.modality import Canvas, Extent, Modality
from regard.data.side import Field, Item
from regard.errors import DataError
from regard.evaluation.alignment import Alignment
from regard.registry import register
from regard.section import SideSettings

if TYPE_CHECKING:
    from torch import nn

    from regard.data.examples import Example


@dataclass(frozen=True, slots=True)
class FrameBox:
    """Where in one frame, counted from 0, the thing is that words `first` to `last` of the target name; edges are
    shares of the frame's width and height."""

    first: int
    last: int
    frame: int
    left: float
    top: float
    right: float
    bottom: float


class VideoSettings(SideSettings):
    """A video; the record holds its path, relative to the data file: a folder of frames, sorted by name; an .npz
    file with an array 'frames'; or a video file."""

    stem = "frames"
    scored_by = CAPTIONED

    size: int = Setting(64, ge=8, le=1024, description="frames are resized to this many pixels a side")
    frames: int = Setting(
        16, ge=1, le=1024, description="number of frames to take, evenly spaced; all of a shorter video"
    )
    augment: AugmentSettings | None = Setting(None, description="augmentation in training (default: none)")


@register("video")
class Video(Modality):
    """A sequence of at most `frames` frames. The encoder makes a vector of each, or a grid of vectors.

    Its words are the frames in their order, or the cells of all of them side by side, row by row.
    """

    Settings = VideoSettings
    dtype = "uint8"
    media = "video"

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (3 * self.settings.size**2,)

    @property
    def longest(self) -> int:
        return int(self.settings.frames)

    @property
    def grid(self) -> int:
        """Cells a side of a frame; 1 where it is one vector."""
        return math.isqrt(self._cells - self._marks)

    @property
    def _cells(self) -> int:
        """Vectors of a frame."""
        return int(self.stem.cells(self.settings.size))

    @property
    def _marks(self) -> int:
        """Of them, those that stand for no cell: class tokens."""
        return int(self.stem.pool == "none" and self.stem.picture.has_whole)

    def read(self, field: str, folder: Path) -> str:
        if not field.strip(BLANKS):
            raise ValueError("names no video")
        return str(folder / field)

    def digest(self, field: Field) -> str:
        return clip_digest(field)

    def find_fault(self, field: str) -> tuple[str, str] | None:
        what = _fault(field)
        return ("unreadable", f"names what is no video: {what}") if what else None

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[NDArray[np.uint8]]:
        return [read_clip(field, self.settings.size, self.settings.frames) for field in fields]

    def places(self, item: Item) -> int:
        return len(item) * self._cells

    def most_places(self, limit: int) -> int:
        return self.longest * self._cells

    def pieces(self, item: Item) -> list[str]:
        numbers = [str(number) for number in range(1, len(item) + 1)]
        if self._cells == 1:
            return numbers
        cells = [f"{row + 1},{column + 1}" for row, column in product(range(self.grid), repeat=2)]
        return [f"{number}: {cell}" for number in numbers for cell in [*["[class]"] * self._marks, *cells]]

    def words(self, item: Item) -> list[int]:
        found: list[int] = []
        for frame in range(len(item)):
            found += [-1] * self._marks
            found += [self._cell(len(item), frame, *cell) for cell in product(range(self.grid), repeat=2)]
        return found

    def _cell(self, frames: int, frame: int, row: int, column: int) -> int:
        """The number of a cell where so many frames stand side by side."""
        return (row * frames + frame) * self.grid + column

    def read_gold(self, record: dict[str, Any]) -> tuple[FrameBox, ...]:
        """`boxes`, if there: lists of first word, last word, frame (from 0), left, top, right, bottom in pixels of
        `width` x `height`."""
        form = "[first word, last word, frame, left, top, right, bottom]"
        return tuple(FrameBox(*numbers, *edges) for numbers, edges in read_boxes(record, form, 3))

    def gold(self, example: Example) -> Alignment | None:
        """A word belongs to the frames in which its thing has a box, and where they have cells to those that a box
        reaches into. Of a word none of whose boxes is in a frame that is taken, the nearest frames count."""
        if not example.gold:
            return None
        path = example.source if isinstance(example.source, str) else example.source[0]
        taken = chosen(_frames(path), self.settings.frames)
        exact = {word for box in example.gold if box.frame in taken for word in range(box.first, box.last + 1)}
        links = set()
        for box in example.gold:
            frame = min(range(len(taken)), key=lambda i: abs(taken[i] - box.frame))
            for word in range(box.first, box.last + 1):
                if word not in exact or taken[frame] == box.frame:
                    cells = reached(box, self.grid) if self._cells > 1 else [(0, 0)]
                    links |= {(self._cell(len(taken), frame, *cell), word) for cell in cells}
        return Alignment(frozenset(), frozenset(links))

    def canvas(self, item: Item) -> Canvas | None:
        """The frames side by side."""
        side, frames = self.settings.size, len(item)
        pixels = np.asarray(item, np.uint8).reshape(frames, side, side, 3).transpose(1, 0, 2, 3)
        return Canvas(pixels.reshape(side, frames * side, 3), self.grid, frames * self.grid, "frames")

    def extent(self, field: Field) -> Extent:
        frames, width, height, rate = clip_size(field)
        return Extent(width * height, frames * width * height, frames / rate)

    def augmentation(self) -> nn.Module | None:
        if self.settings.augment is None:
            return None
        from regard.nn.augment import PictureAugmentation

        return PictureAugmentation(self.settings.augment, self.settings.size)

    def made_up(self, draw: np.random.Generator, count: int, longest: int) -> list[NDArray[np.uint8]]:
        shape = (count, min(longest, self.longest), *self.shape)
        return list(draw.integers(256, size=shape).astype(np.uint8))


@lru_cache(maxsize=1024)  # captions of one video stand together
def _fault(path: str) -> str | None:
    try:
        check_clip(path)
    except DataError as error:
        return str(error)
    return None


@lru_cache(maxsize=1024)
def _frames(path: str) -> int:
    return count_frames(path)
