"""A kind of source, as one class that says all there is to know of it. Subclasses are in `modalities/`, or a user's
own."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.side import Field, Item, Side
from regard.evaluation.alignment import Alignment
from regard.registry import MODALITIES, Family
from regard.section import SideSettings
from regard.stem_settings import StemSettings, TokenStemSettings

if TYPE_CHECKING:
    from torch import nn

    from regard.data.examples import Example
    from regard.data.tokens import Tokenizer
    from regard.ragged import Ragged

Picture = NDArray[np.uint8]  # (height, width, 3)


@dataclass(frozen=True)
class Canvas:
    """What attention over a source is drawn on: an image, and a grid of cells over it, numbered row by row. Word `i` of
    the source (`Modality.words`) is cell `i`, so that vectors may stand in any order, and one of no word in no cell.

    A picture has cells side by side and below each other; a spectrogram has a row of moments; a strip of frames has a
    row of them or, where each frame has cells of its own, as many rows as a frame.
    """

    pixels: Picture
    rows: int
    columns: int
    kind: Literal["picture", "sound", "frames"] = "picture"
    seconds: float = 0.0  # how long a sound, or a strip of frames, lasts; 0: it has no time
    sound: bytes | None = None  # a WAV file, to be played
    frames: int = 0  # how many lie side by side in a strip; 0: each has as many columns as rows

    @property
    def cells(self) -> int:
        """How many there are."""
        return self.rows * self.columns


@dataclass(frozen=True)
class Extent:
    """How large what a file holds is: pixels of a picture or a frame, those of all frames, and how long it lasts."""

    pixels: int = 0
    pixels_of_all: int = 0
    seconds: float = 0.0


class Modality(Side):
    """A kind of source: a sequence of elements, of which an encoder makes vectors.

    A subclass has to say how a field of a record becomes numbers (`encode_many`), and may say more: what its vectors
    stand for, which of them belong to which target words, what attention is drawn over, what is wrong with a bad one.
    """

    family: ClassVar[Family] = MODALITIES
    vocabulary = 0  # how many token ids there are, where elements are tokens
    tokenizer: Tokenizer | None = None
    fixed_length: int | None = None  # of all items, where they are of one length
    of_target = False  # there is no source, and it is made of what is wanted
    several_references = False  # examples of one source are one input with several references, when they are evaluated
    seconds_per_place: float = 0.0  # where words are moments, one after the other: how long each lasts; 0: they are not

    def __init__(self, settings: SideSettings, stem: StemSettings | None = None) -> None:
        super().__init__(settings)
        self.stem: Any = stem or TokenStemSettings()

    @property
    def media(self) -> Literal["text", "image", "audio", "video", "file"]:
        """What a field is: a text, or the path of a file, and of which media."""
        return "text" if self.settings.text or not self.settings.given else "file"

    @property
    def has_tokens(self) -> bool:
        """Whether its elements are tokens of a vocabulary, which may have yet to be learnt."""
        return bool(self.settings.text and not self.settings.spelled)

    # Reading

    def read_gold(self, record: dict[str, Any]) -> Any:
        """What a .jsonl record says of which target words belong where; bad ones are a ValueError."""
        return None

    # Numbers

    @property
    def parts(self) -> Sequence[Modality]:
        """This one; of several sources, each of them."""
        return [self]

    def length(self, item: Item) -> int:
        """How many elements an item has."""
        return len(item)

    def framed(self, length: int) -> int:
        """How many elements a model reads of an item of so many: with the marks around it."""
        return length

    @property
    def most_bytes(self) -> int:
        """How much memory an item takes at most, where it may be much; 0 for token ids."""
        if self.vocabulary:
            return 0
        return (self.fixed_length or self.longest or 0) * math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def pack(self, items: Sequence[Item]) -> Ragged:
        """Items laid end to end for an encoder."""
        import torch

        from regard.ragged import Ragged, Slices

        if isinstance(items, Slices):  # of what is stored as it is read
            flat, lengths = items.joined(), items.lengths.tolist()
        else:
            arrays = [np.asarray(item, self.dtype).reshape(-1, *self.shape) for item in items]
            flat, lengths = np.concatenate([*arrays, np.zeros((0, *self.shape), self.dtype)]), list(map(len, arrays))
        packed = Ragged.from_lengths(torch.from_numpy(flat), lengths)
        return packed if self.fixed_length is None or not lengths else replace(packed, uniform=True)

    def problem(self, item: Item, limit: int) -> str | None:
        """Why an item cannot be used, or None; a text has at most `limit` tokens."""
        if not len(item):
            return "is empty"
        if self.longest is not None and len(item) > self.longest:
            return f"has {len(item)} elements, more than source.max_length={self.longest}; split it"
        return None

    # What the encoder's vectors stand for

    def places(self, item: Item) -> int:
        """How many vectors an encoder makes of an item."""
        return int(self.stem.vectors(len(item)))

    def positions_needed(self, item: Item) -> int:
        """How many positions its encoder needs to read an item; of several sources, the encoder that needs most."""
        return self.places(item)

    def most_places(self, limit: int) -> int:
        """The most vectors there may be, where a text has at most `limit` tokens."""
        return int(self.stem.vectors(self.longest)) if self.longest is not None else limit

    def pieces(self, item: Item) -> list[str]:
        """What each of the encoder's vectors stands for, to be shown."""
        return [str(place) for place in range(1, self.places(item) + 1)]

    def words(self, item: Item) -> list[int]:
        """The number of the word (or cell, or moment) that each vector belongs to; -1 for marks."""
        return list(range(self.places(item)))

    def gold(self, example: Example) -> Alignment | None:
        """Which of those words belong to which words of the target, where the data say so."""
        return example.alignment

    def canvas(self, item: Item) -> Canvas | None:
        """What attention is drawn on; None: on its pieces alone."""
        return None

    def augmentation(self) -> nn.Module | None:
        """What alters packed sources while a model trains, on the model's device, by draws from torch's generator,
        whose state is saved with the run; None: nothing does."""
        return None

    # In use

    def extent(self, field: Field) -> Extent:
        """How large the file that a field names is once it is decoded, by its header alone; a DataError if it is none
        that can be read."""
        return Extent()

    def room(self, item: Item, ratio: float) -> int:
        """The most tokens of an output for this item, if there is a limit."""
        return sys.maxsize

    def prompt(self, field: Field) -> str:
        """What of an input is not a source but the beginning of the output."""
        return ""

    def export(self) -> dict[str, Any] | None:
        """What a runtime without torch has to know to read it; None: models that read it are not exported."""
        return None

    def made_up(self, draw: np.random.Generator, count: int, longest: int) -> Sequence[Item]:
        """Random items to try an export on, where there are no data."""
        return [draw.standard_normal((longest, *self.shape)).astype(self.dtype) for _ in range(count)]
