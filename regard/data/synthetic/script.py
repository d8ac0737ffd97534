"""A user's text as a script: what the spoken corpus says instead of sentences of its own, line by line.

A line becomes words as espeak-ng is to say them, each with one time. Marks at the ends of words are left out, but for
the pause that they make; a hyphen makes two words. What remains has to be in Latin letters, and numbers of more than
one word have to be written out, since a word that is said as several has no time of its own.

In a line, espeak-ng says "a" as the article, in upper case too; every other letter by its name. As the letter it is
said where letters are spelled, which is beside another single letter ("c a t", and neither "was i a fool" nor "and a
half"), and where it stands in upper case behind the first word of a line that is not all in upper case ("go to gate A
now").
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from regard.data.lines import read_lines
from regard.data.synthetic.corpus import SPLITS
from regard.data.synthetic.speech import Utterance, faults
from regard.errors import DataError

LARGEST = {"valid": 300, "test": 500}  # so many lines at most, so that all are said: as many as there are recordings
_NAMED = 10  # lines that an error names
_LETTER_A = "eh"  # how espeak-ng is told to say the name of the letter: in all accents as it says "a" alone
_VOICE, _RATE = "en-us", 450  # which lines are tried in: all accents have the same dictionary
_SPOKEN_MARKS = "%&@#*/\\"  # these are said, and so are no marks
_HYPHENS = re.compile("[-\u2010-\u2015]+")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the script: where it stands, its words as espeak-ng gets them, and as they are written."""

    place: str
    words: tuple[str, ...]
    spelling: str
    translation: str | None = None


def read(path: Path, *, translated: bool = False) -> list[Line]:
    """The lines of a UTF-8 file that are neither empty nor there already. With `translated`, a line has two columns
    with a tab between them: what is said, and its translation. Lines that cannot be used are named, all in one error.
    """
    found: dict[str, Line] = {}
    wrong: list[str] = []
    for number, text in read_lines(path):
        if not text.strip():
            continue
        place, columns = f"{path}:{number}", text.split("\t")
        try:
            if translated and (len(columns) != 2 or not columns[1].strip()):
                raise ValueError("should be the text to say, a tab, and its translation")
            if not translated and "\t" in text.strip():
                raise ValueError(
                    "has a tab, and all of a line is said; leave out what follows or, if that is a translation, give "
                    "--task translate"
                )
            translation = columns[1].strip() if translated else None
            line = Line(place, *_words(columns[0] if translated else text), translation)
        except ValueError as error:
            wrong.append(f"{place} {error}")
        else:
            found.setdefault(line.spelling, line)
    lines = list(found.values())
    said = faults(Utterance(line.words, _VOICE, _RATE) for line in lines)
    wrong += [f"{line.place} cannot be said: {fault}" for line, fault in zip(lines, said, strict=True) if fault]
    if wrong:
        more = f"\nand {len(wrong) - _NAMED} lines more" if len(wrong) > _NAMED else ""
        raise DataError("\n".join(wrong[:_NAMED]) + more)
    if len(lines) < len(SPLITS):
        raise DataError(
            f"{path} has too few different lines ({len(lines)}); give {len(SPLITS)} or more: train, valid and test "
            "share none"
        )
    return lines


def split(lines: Sequence[Line], seed: int) -> dict[str, list[Line]]:
    """Lines in an order drawn from the seed: an eighth of them for valid, another for test (each at least one, and at
    most as many as are said of it), and the rest for train."""
    order = _shuffled(lines, random.Random(f"script {seed}"))
    found, at = dict[str, list[Line]](), 0
    for name, most in LARGEST.items():
        count = max(1, min(len(lines) // 8, most))
        found[name] = order[at : at + count]
        at += count
    return {"train": order[at:], **found}


def rounds(lines: Sequence[Line], key: str) -> Iterator[Line]:
    """Every line, then every line in another order, and so on without end."""
    draw = random.Random(f"script {key}")
    while True:
        yield from _shuffled(lines, draw)


def _shuffled(lines: Sequence[Line], draw: random.Random) -> list[Line]:
    # `random()` is the one method whose sequence Python promises not to change.
    numbers = [draw.random() for _ in lines]
    return [lines[i] for i in sorted(range(len(lines)), key=numbers.__getitem__)]


def _words(text: str) -> tuple[tuple[str, ...], str]:
    """The words of a line for espeak-ng, and as they are written; a ValueError if there is one that it cannot say."""
    cores: list[str] = []
    pauses: set[int] = set()  # words with a mark behind them
    for token in unicodedata.normalize("NFC", text).replace("\u2019", "'").split():
        for part in _HYPHENS.split(token):
            core = part.strip("".join(filter(_is_mark, part)))
            if not core:  # a mark or a dash by itself
                pauses.add(len(cores) - 1)
                continue
            if strange := next((x for x in core if not _is_readable(x)), None):
                raise ValueError(f"has {strange!r} in {core!r}, which English voices do not read; write it otherwise")
            cores.append(core)
            if _is_mark(part[-1]) and part[-1] not in "'\"":
                pauses.add(len(cores) - 1)
    if not cores:
        raise ValueError(f"has nothing to say: {text.strip()!r}")
    letters = _spelled(cores)
    last = len(cores) - 1
    end = text.rstrip()[-1]
    marks = ["," if i in pauses and i < last else end if i == last and end in ".?!" else "" for i in range(len(cores))]
    said = (_LETTER_A if i in letters else core for i, core in enumerate(cores))
    return tuple(word + mark for word, mark in zip(said, marks, strict=True)), " ".join(cores).lower()


def _spelled(words: Sequence[str]) -> set[int]:
    """Which words are the letter A: see above."""
    found: set[int] = set()
    marked = any(character.islower() for word in words for character in word)  # so that upper case means something
    for single, group in groupby(range(len(words)), key=lambda i: len(words[i]) == 1 and words[i].isalpha()):
        run = list(group)
        spelled = single and bool({words[i].lower() for i in run} - {"a", "i"})
        found |= {i for i in run if words[i] in "aA" and (spelled or (marked and i > 0 and words[i] == "A"))}
    return found


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("P") and character not in _SPOKEN_MARKS


def _is_readable(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    return character.isalpha() and unicodedata.name(character, "").startswith("LATIN")
