"""Where words begin and end, in a text and in what single tokens add to one."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Scripts that put no blanks between words (Thai, Lao, Burmese, Khmer, Chinese, Japanese): words begin anywhere in them.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
UNSPACED_BYTES = range(0xE3, 0xEA)  # with which the UTF-8 of U+3000 to U+9FFF begins, and of nothing else
BROKEN = "\ufffd"  # stands for bytes that are no whole character
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte, as SentencePiece writes it


@cache
def letter() -> str:
    """A pattern of one character that words are made of: letters, digits, `_` and marks such as accents, but of no
    script that has no blanks."""
    marks = (chr(i) for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i))[0] == "M")
    return rf"[\w{''.join(marks)}](?<![{UNSPACED}])"


@cache
def word_ends() -> re.Pattern[str]:
    """Finds the places in a text where a word may begin or end: all but those between two letters of one."""
    return re.compile(f"(?:(?<!{letter()})|(?!{letter()}))")


class Phrase(NamedTuple):
    """What an output must hold: its tokens, and whether no token after it may go on its last word."""

    tokens: tuple[int, ...]
    ends: bool = False


@dataclass(frozen=True)
class WordEdges:
    """Which tokens of a vocabulary go on the word before them: one that `starts` within a word, after one that `ends`
    within one. Where a token alone does not tell, such as a byte of a character, it counts as within a word. The
    `separator` does neither."""

    starts: NDArray[np.bool_]
    ends: NDArray[np.bool_]
    separator: int

    @staticmethod
    def of(texts: Sequence[str], end: int) -> WordEdges | None:
        """Those of tokens that add these `texts` to an output, with their blanks; a text that is empty is unknown. The
        mark `end` goes on no word. None: no token goes on another, or nothing in the vocabulary stands between two."""
        within = re.compile(rf"{letter()}|{BROKEN}")
        starts = np.array([not text or bool(within.match(text)) for text in texts])
        ends = np.array([not text or bool(within.match(text[-1])) for text in texts])
        starts[end] = ends[end] = False
        apart = [i for i in np.flatnonzero(~starts & ~ends).tolist() if i != end and texts[i]]
        if not starts.any() or not apart:
            return None
        return WordEdges(starts, ends, next((i for i in apart if texts[i] == " "), apart[0]))

    def phrase(self, text: str, tokens: Sequence[int]) -> Phrase:
        """A phrase, which is a word, or words, of its own."""
        return Phrase(tuple(tokens), ends=bool(text) and bool(re.match(letter(), text[-1])))


def byte_text(byte: int) -> str:
    """What a byte by itself adds to a text, as far as `WordEdges` goes."""
    if byte < 0x80:
        return chr(byte)
    return "\u3000" if byte in UNSPACED_BYTES else BROKEN


def piece_text(piece: str, blank: str = "▁") -> str:
    """What a piece of SentencePiece adds to a text."""
    byte = BYTE.fullmatch(piece)
    return byte_text(int(byte[1], 16)) if byte else piece.replace(blank, " ")
