"""Text as words, each by its characters, so that no word is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from regard.data.lines import BLANKS
from regard.data.modality import Modality
from regard.data.side import Field, Item
from regard.data.tokens import clean
from regard.registry import register
from regard.section import SideSettings
from regard.stem_settings import CharacterStemSettings, StemSettings

if TYPE_CHECKING:
    from regard.ragged import Ragged

# Bytes that no text in UTF-8 holds: after the end of a word, and around words and sentences.
PADDING, WORD, END_OF_WORD, SENTENCE, END_OF_SENTENCE = 0xFF, 0xF8, 0xF9, 0xFA, 0xFB
FRAME = ("<s>", "</s>")


class WordsSettings(SideSettings):
    """A text as words, each by its characters."""

    stem = "characters"
    text = True
    spelled = True

    max_length: int = Setting(256, ge=1, le=10**6, description="maximum length of a training text, in words")


@register("words")
class Words(Modality):
    """A text as words, what stands between spaces: each is so many bytes of UTF-8, between two that mark its ends, and
    one more word stands before and after a sentence (Peters et al. 2018)."""

    Settings = WordsSettings
    dtype = "uint8"

    def __init__(self, settings: SideSettings, stem: StemSettings | None = None) -> None:
        super().__init__(settings, stem or CharacterStemSettings())
        self.shape = (self.stem.characters,)

    def find_fault(self, field: str) -> tuple[str, str] | None:
        return None if self.of_target or field.strip(BLANKS) else ("blank", "has an empty source")

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[NDArray[np.uint8]]:
        return [self._spelled([word.encode() for word in clean(field).split()]) for field in fields]

    def _spelled(self, words: Sequence[bytes]) -> NDArray[np.uint8]:
        """`(words, characters)`."""
        found, room = np.full((len(words), *self.shape), PADDING, np.uint8), self.shape[0] - 2
        for row, word in zip(found, words, strict=True):
            row[: len(word[:room]) + 2] = [WORD, *word[:room], END_OF_WORD]
        return found

    def pack(self, items: Sequence[Item]) -> Ragged:
        before, after = self._spelled([bytes([SENTENCE])]), self._spelled([bytes([END_OF_SENTENCE])])
        return super().pack([np.concatenate((before, item, after)) for item in items])

    def framed(self, length: int) -> int:
        return length + 2

    def problem(self, item: Item, limit: int) -> str | None:
        if not len(item):
            return "is empty"
        if len(item) > limit:
            return f"has {len(item)} words, more than search.max_source={limit}; split it"
        return None

    def places(self, item: Item) -> int:
        return self.framed(len(item))

    def most_places(self, limit: int) -> int:
        return self.framed(limit)

    def pieces(self, item: Item) -> list[str]:
        shown = (bytes(row[(row < WORD)]).decode("utf-8", errors="replace") for row in np.asarray(item))
        return [FRAME[0], *shown, FRAME[1]]

    def words(self, item: Item) -> list[int]:
        return [-1, *range(len(item)), -1]

    def room(self, item: Item, ratio: float) -> int:
        return int(self.places(item) * ratio) + 10

    def made_up(self, draw: np.random.Generator, count: int, longest: int) -> list[Any]:
        lengths = draw.integers(1, min(24, longest) + 1, size=count)
        return [self._spelled([b"abcd"] * int(length)) for length in lengths]
