"""What is given, as numbers: a text, a picture, or nothing. The one room that knows which.

Whatever it is, a source is a sequence of elements (token ids; the scanlines of a picture), so it is stored, packed and
carried as `Ragged` like any other, and an encoder makes a sequence of vectors of it. Each kind says what its vectors
stand for: pieces to show, words to align.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.corpora import Alignment, Example
from regard.data.pictures import read_picture
from regard.data.tokens import BOS, EOS, MARKS, SEP, Tokenizer
from regard.ragged import Ragged

Item = Sequence[int] | NDArray[np.uint8]  # one source: token ids, or scanlines (height, 3 width)
Picture = NDArray[np.uint8]  # (height, width, 3)


class Source(ABC):
    """How sources become numbers, and what those numbers are."""

    size = 0  # of the vocabulary, where there is one
    shape: tuple[int, ...] = ()  # of one element
    drawn = False  # tokens may be drawn anew each time
    tokenizer: Tokenizer | None = None

    @property
    def dtype(self) -> str:
        """Of an element on disk."""
        return "uint8"

    @abstractmethod
    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> Sequence[Item]:
        """The elements of each source; `sampling` is for `drawn` ones."""

    @abstractmethod
    def pack(self, items: Sequence[Item]) -> Ragged:
        """Sources as an encoder wants them, marks added."""

    @abstractmethod
    def problem(self, item: Item, limit: int) -> str | None:
        """Why a source cannot be used, or None."""

    @abstractmethod
    def pieces(self, item: Item) -> list[str]:
        """What each of the encoder's vectors stands for."""

    @abstractmethod
    def words(self, item: Item) -> list[int]:
        """The number of the word (or place) that each of the encoder's vectors belongs to; -1 for marks."""

    @abstractmethod
    def gold(self, example: Example) -> Alignment | None:
        """Which of those words belong to which words of the target, where the data say so."""

    def room(self, item: Item, ratio: float) -> int:
        """The most tokens of an output for this source."""
        return sys.maxsize

    def prompt(self, text: str) -> str:
        """What of an input is not a source but the beginning of the output."""
        return ""

    def picture(self, item: Item) -> Picture | None:
        """The source as something to look at, where it is one; its words are then cells of a square grid."""
        return None


class Text(Source):
    """A text, in tokens; `end` adds `</s>`."""

    drawn = True

    def __init__(self, tokenizer: Tokenizer, *, end: bool = True) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self.size = tokenizer.size
        self.mark = EOS if end else None

    @property
    def dtype(self) -> str:
        return self.tokenizer.dtype

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        return self.tokenizer.encode_many(texts, sampling=sampling, seed=seed)

    def pack(self, items: Sequence[Item]) -> Ragged:
        return Ragged.of(items, after=self.mark)

    def problem(self, item: Item, limit: int) -> str | None:
        if not len(item):
            return "is empty"
        if len(item) > limit:
            return f"has {len(item)} tokens, more than search.max_source={limit}; split it"
        return None

    def room(self, item: Item, ratio: float) -> int:
        return int((len(item) + (self.mark is not None)) * ratio) + 10

    def pieces(self, item: Item) -> list[str]:
        return self.tokenizer.pieces([*item, *self._end])

    def words(self, item: Item) -> list[int]:
        return [*self.tokenizer.words([*item]), *(-1 for _ in self._end)]

    @property
    def _end(self) -> list[int]:
        return [] if self.mark is None else [self.mark]

    def gold(self, example: Example) -> Alignment | None:
        return example.alignment


class Parts(Text):
    """A text, or several with `<sep>` (or a tab) between, to tell something of: `<s> a <sep> b </s>`."""

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        parts = [text.replace("\t", MARKS[SEP]).split(MARKS[SEP]) for text in texts]
        flat = iter(self.tokenizer.encode_many([part for row in parts for part in row], sampling=sampling, seed=seed))
        found = []
        for row in parts:
            ids = next(flat)
            for _ in row[1:]:
                ids = [*ids, SEP, *next(flat)]
            found.append(ids)
        return found

    def pack(self, items: Sequence[Item]) -> Ragged:
        return Ragged.of(items, before=BOS, after=EOS)

    def pieces(self, item: Item) -> list[str]:
        return self.tokenizer.pieces([BOS, *item, EOS])

    def words(self, item: Item) -> list[int]:
        numbers, ids, before = [-1], [*item], 0
        while ids:
            end = ids.index(SEP) if SEP in ids else len(ids)
            own = self.tokenizer.words(ids[:end])
            numbers += [before + word if word >= 0 else -1 for word in own] + [-1] * (end < len(ids))
            before, ids = before + max(own, default=-1) + 1, ids[end + 1 :]
        return [*numbers, -1]


class Nothing(Source):
    """No source: what a user gives is how the output begins."""

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        return [[] for _ in texts]

    def pack(self, items: Sequence[Item]) -> Ragged:
        return Ragged.of([[] for _ in items])

    def problem(self, item: Item, limit: int) -> str | None:
        return None

    def pieces(self, item: Item) -> list[str]:
        return []

    def words(self, item: Item) -> list[int]:
        return []

    def gold(self, example: Example) -> Alignment | None:
        return None

    def prompt(self, text: str) -> str:
        return text


class Pictures(Source):
    """A picture of `side` x `side` pixels: a sequence of scanlines, of which the encoder makes a grid of vectors."""

    def __init__(self, side: int, grid: int) -> None:
        self.side, self.grid, self.shape = side, grid, (3 * side,)

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[NDArray[np.uint8]]:
        return [read_picture(text, self.side) for text in texts]

    def pack(self, items: Sequence[Item]) -> Ragged:
        pixels = np.concatenate([np.asarray(item) for item in items]) if items else np.zeros((0, *self.shape), np.uint8)
        return Ragged.from_lengths(torch.from_numpy(pixels), [self.side] * len(items))

    def problem(self, item: Item, limit: int) -> str | None:
        return None

    def pieces(self, item: Item) -> list[str]:
        return [f"{row + 1},{column + 1}" for row, column in product(range(self.grid), repeat=2)]

    def words(self, item: Item) -> list[int]:
        return list(range(self.grid**2))

    def gold(self, example: Example) -> Alignment | None:
        """A word belongs to every cell that its thing's box reaches into."""
        if not example.boxes:
            return None
        links = {
            (row * self.grid + column, word)
            for box in example.boxes
            for word in range(box.first, box.last + 1)
            for row, column in product(range(self.grid), repeat=2)
            if box.left * self.grid < column + 1 and column < box.right * self.grid
            and box.top * self.grid < row + 1 and row < box.bottom * self.grid
        }  # fmt: skip
        return Alignment(frozenset(), frozenset(links))

    def picture(self, item: Item) -> Picture | None:
        return np.asarray(item, dtype=np.uint8).reshape(self.side, self.side, 3)
