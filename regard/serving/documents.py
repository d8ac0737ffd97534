"""Long inputs: cut into sentences for a model, and joined again with all that stood around them.

    document = plain("One. Two.\\n\\nThree.")
    document.join([translate(sentence) for sentence in document.sentences])

Joining the sentences as they were gives the input again, to the byte (of a Word document, the same text in the same
formats). HTML is in `markup.py`, documents of word processors in `office.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from regard.serving.sentences import LONGEST, sentences

Format = Literal["text", "html", "markdown", "subtitles", "docx", "odt"]
Links = Sequence[tuple[int, int]]  # (source word, target word)


class Unit(ABC):
    """A part of a document that a model is given."""

    text: str
    needs_links = False  # to know where something in it goes
    grows = False  # what stands in the document is its translation as it is, and can be sent while it is written

    @abstractmethod
    def put(self, written: str, links: Links | None = None) -> str:
        """What stands in the document where its translation is `written`; `links` say which words belong together."""


@dataclass(frozen=True)
class PlainSentence(Unit):
    """One that has nothing but its text."""

    text: str
    grows = True

    def put(self, written: str, links: Links | None = None) -> str:
        return written


@dataclass(frozen=True)
class Document:
    """Sentences, and what stands between them and is left as it is."""

    parts: Sequence[str | Unit]

    @property
    def units(self) -> list[Unit]:
        """What a model is given, in order."""
        return [part for part in self.parts if isinstance(part, Unit)]

    @property
    def sentences(self) -> list[str]:
        """The texts that a model is given, in order."""
        return [unit.text for unit in self.units]

    def join(self, written: Sequence[str], links: Sequence[Links | None] | None = None) -> str:
        """The document with this text in place of each sentence, and where there is markup with words' links."""
        texts = iter(zip(written, links or [None] * len(written), strict=True))
        parts = [part if isinstance(part, str) else part.put(*next(texts)) for part in self.parts]
        if next(texts, None) is not None:
            raise ValueError(f"{len(written)} texts for {len(self.units)} sentences")
        return "".join(parts)


def split(text: str, form: Format, *, language: str = "", longest: int = LONGEST) -> Document:
    """A document of some form; see `sentences` for what the others are."""
    from regard.serving.markup import markup
    from regard.serving.office import docx, odt

    makers: dict[Format, Callable[..., Document]] = {
        "text": plain, "html": markup, "markdown": markdown, "subtitles": subtitles, "docx": docx, "odt": odt,
    }  # fmt: skip
    return makers[form](text, language=language, longest=longest)


def plain(text: str, *, language: str = "", longest: int = LONGEST) -> Document:
    """A text without markup: a line break ends a sentence, and blanks, line breaks and paragraphs stay."""
    return Document(list(_with_gaps(text, 0, len(text), language, longest)))


def whole(text: str) -> Document:
    """A text that is one sentence, whatever it holds; white space around it stays."""
    inner = text.strip()
    if not inner:
        return Document([text])
    start = text.index(inner)
    return Document([text[:start], PlainSentence(inner), text[start + len(inner) :]])


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LEAD = re.compile(r"\s*(?:(?:[#>*+\-]+|\d{1,9}[.)]|\[[ xX]\]|\|)\s+)*\|?")


def markdown(text: str, *, language: str = "", longest: int = LONGEST) -> Document:
    """Markdown, line by line: code blocks and what a line begins with (`#`, `-`, `>`, `1.`) stay. Emphasis, links and
    code inside a sentence are text to the model."""
    parts: list[str | Unit] = []
    fence = ""
    for start, end in _lines(text):
        line = text[start:end]
        mark = _FENCE.match(line)
        if fence or mark or line.startswith(("    ", "\t")):
            parts.append(line)
            if mark and (not fence or (mark[1].startswith(fence) and not line[mark.end() :].strip())):
                fence = "" if fence else mark[1]
            continue
        lead = _LEAD.match(line)
        assert lead is not None, "it matches nothing too"
        parts += [lead[0], *_with_gaps(text, start + lead.end(), end, language, longest)]
    return Document(parts)


_TIMES = re.compile(r"\s*(?:\d+:)?\d+:\d+[.,]\d+\s*-->")
_NO_CUE = re.compile(r"\ufeff?(?:WEBVTT|NOTE|STYLE|REGION)(?=\s|$)")  # how a block of WebVTT begins that nobody sees


def subtitles(text: str, *, language: str = "", longest: int = LONGEST) -> Document:
    """SubRip or WebVTT: numbers and times stay, and of WebVTT the header, notes and styles, which end at an empty line.
    Each line is translated by itself."""
    parts: list[str | Unit] = []
    lines, kept = [text[start:end] for start, end in _lines(text)], False
    webvtt = text.removeprefix("\ufeff").startswith("WEBVTT")
    for before, line, following in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        if not before.strip():
            kept = webvtt and _NO_CUE.match(line) is not None
        times = _TIMES.match(line) or _TIMES.match(following)
        kept = kept and not _TIMES.match(line)
        parts += [line] if kept or times else _with_gaps(line, 0, len(line), language, longest)
    return Document(parts)


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Where lines begin and end, with their ends."""
    at = 0
    for line in text.splitlines(keepends=True):
        yield at, at + len(line)
        at += len(line)


def _with_gaps(text: str, start: int, end: int, language: str, longest: int) -> Iterator[str | Unit]:
    """The sentences of a part of a text, and what stands between them; one without a letter or digit stays too."""
    part, at = text[start:end], 0
    for first, last in sentences(part, language=language, longest=longest):
        if not speaks(part[first:last]):
            continue
        if at < first:
            yield part[at:first]
        yield PlainSentence(part[first:last])
        at = last
    if at < len(part):
        yield part[at:]


def speaks(text: str) -> bool:
    """Whether there is anything in a text to translate: a letter or a digit."""
    return any(character.isalnum() for character in text)
