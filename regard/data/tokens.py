"""Text to numbers and back: what every tokenizer does. The kinds of them are in `tokenizers/`.

Regard's own share one way to clean a line (composed Unicode, single spaces), so that "word" means the same everywhere:
what stands between spaces. Which ids are marks, and how a text stands among them, every tokenizer says itself
(`Tokenizer.marks`).
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from regard.data.marks import NATIVE, Marks
from regard.data.words import Phrase, WordEdges

BLANKS = re.compile(r"[ \t\r\n\f\v]+")
UNEVEN = re.compile(r"  |[\t\r\n\f\v]")  # found in few texts, and faster than they are rewritten


def clean(text: str, *, compose: bool = True) -> str:
    """Composed Unicode, with runs of blanks as one space and none at the ends."""
    text = unicodedata.normalize("NFC", text) if compose else text
    return (BLANKS.sub(" ", text) if UNEVEN.search(text) else text).strip(" ")


class Tokenizer(ABC):
    """Text to token ids and back."""

    size: int
    marks: Marks = NATIVE  # of Regard's own, which never come from text, save `<unk>`
    composes = True  # Unicode, where it cleans what it encodes (see `forms.py`)

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Ids of a line, without marks at the ends."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; marks other than `<unk>` leave nothing."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token as it should be shown."""

    @abstractmethod
    def words(self, ids: Sequence[int]) -> list[int]:
        """The number of the word that each token belongs to; -1 for marks."""

    @abstractmethod
    def save(self, folder: Path, name: str) -> None:
        """Write what `load` reads."""

    def adds(self, token: int) -> str:
        """What a token adds to the text of an output, with the blanks that stand around it; nothing where a token by
        itself does not tell."""
        return ""

    @cached_property
    def edges(self) -> WordEdges | None:
        """Which tokens go on a word; None: none does, or tokens do not tell."""
        return WordEdges.of([self.adds(token) for token in range(self.size)], self.marks.end)

    def phrases(self, texts: Sequence[str]) -> list[Phrase]:
        """Texts as they stand within another, as words of their own where tokens tell words."""
        ids = self.encode_within(texts)
        if self.edges is None:
            return [Phrase(tuple(own)) for own in ids]
        return [self.edges.phrase(clean(text), own) for text, own in zip(texts, ids, strict=True)]

    def encode_within(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts as they stand after a blank."""
        return self.encode_many(texts)

    @property
    def for_target(self) -> Tokenizer:
        """That of what is written, where the two sides of one vocabulary are cut differently."""
        return self

    @property
    def dtype(self) -> str:
        """The smallest whole numbers that hold every id."""
        return "uint16" if self.size <= 2**16 else "uint32"

    def encode_many(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        """Ids of many lines; with `sampling`, subwords are drawn, the same ones for the same seed."""
        return [self.encode(text) for text in texts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters of a clean line that each of its tokens stands for, from one to before another; those of its
        word, where tokens do not say it more closely."""
        words = [match.span() for match in re.finditer("[^ ]+", text)]
        numbers = self.words(self.encode_words([text])[0])
        return [words[min(word, len(words) - 1)] if word >= 0 else (0, 0) for word in numbers]

    def encode_words(self, texts: Sequence[str], *, sampling: float = 0.0, seed: int = 0) -> list[list[int]]:
        """Like `encode_many`, so that `words` tells each word from the next by the ids alone: where a vocabulary does
        not say of a token that it goes on a word, `size` is added to its id."""
        return self.encode_many(texts, sampling=sampling, seed=seed)
