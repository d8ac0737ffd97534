"""HTML as a document: tags stay, the text between them is translated.

What stands on a line of its own, such as a paragraph or a cell, is read as one text, and inline tags in it are put back
around the words that those inside them were aligned to (`inline.py`). The scanner has to give every byte back, which
parsers do not: whatever is wrong with the markup, it is kept.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from regard.serving.documents import Document, Unit, speaks
from regard.serving.inline import MarkedSentence, Tag
from regard.serving.sentences import LONGEST, Span, names, sentences

INLINE = names("""
    a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark nobr q s small span strike strong sub sup
    time tt u
""")
UNTOUCHED_INLINE = names("code kbd samp var")
UNTOUCHED = names("svg math template")
IN_LINE = names("img wbr input")  # alone, and in the midst of a sentence
VOID = names("area base br col embed hr img input link meta param source track wbr")
RAW = names("script style textarea xmp noembed noframes plaintext")  # in which "<" begins no tag
LONGEST_VERBATIM = 40  # characters of an untouched element that the model still reads with its sentence

_NAME = re.compile(r"</?([a-zA-Z][^\s/>]{0,63})")
_TAG_PART = re.compile(r"[^>\"'=]*(?:=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'>][^\s>]*)?|[\"'])?")
_ENTITY = re.compile(r"&(?:#[xX]?[0-9a-fA-F]{1,8}|[a-zA-Z][a-zA-Z0-9]{1,31});?")
_KEPT = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(?:"[^"]*|'[^']*|)\bnotranslate\b""", re.IGNORECASE)
_STOP = re.compile(r"[.!?…。！？]\s|[\r\n]")


@dataclass(frozen=True)
class MarkupToken:
    """A part of the markup as it stands: text (without a name), a tag, or what is neither and stays (named "!")."""

    raw: str
    name: str = ""
    closes: bool = False
    alone: bool = False  # it has no end tag


def scan(text: str) -> Iterator[MarkupToken]:
    """All of the markup, in order; joined, it is the text again."""
    at, last = 0, text.rfind(">")
    quotes = True  # until a tag is found whose quotes hide its end
    while at < len(text):
        start = text.find("<", at)
        if start > at or start < 0:
            yield MarkupToken(text[at : start if start > at else len(text)])
        if start < 0:
            return
        end, name = start + 1, _NAME.match(text, start)
        if other := next((x for x in _OTHERS if text.startswith(x[0], start)), None):
            end = text.find(other[1], start + len(other[0]))
            end = len(text) if end < 0 else end + len(other[1])
            token = MarkupToken(text[start:end], "!")
        elif name is None or start > last:
            token = MarkupToken("<")
        else:
            stop = _tag_end(text, name.end()) if quotes else -1
            quotes = quotes and stop >= 0
            stop = stop if stop >= 0 else text.find(">", name.end())
            if stop >= 0:
                end, lower = stop + 1, name[1].lower()
                raw = text[start:end]
                token = MarkupToken(raw, lower, raw[1] == "/", lower in VOID or raw.endswith("/>"))
            else:
                token = MarkupToken("<")
        yield token
        at = end
        if token.name in RAW and not token.closes and not token.alone:
            close = re.compile(rf"</{token.name}(?=[\s/>])", re.IGNORECASE).search(text, at)
            stop = close.start() if close else len(text)
            yield MarkupToken(text[at:stop], "!")
            at = stop


_OTHERS = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<!", ">"), ("<?", ">"))  # how they begin and end


def _tag_end(text: str, at: int) -> int:
    """Where the ">" of a tag stands that is in no quoted value; -1 if there is none."""
    while at < len(text):
        if text[at] == ">":
            return at
        part = _TAG_PART.match(text, at)
        at = max(part.end() if part else at, at + 1)
    return -1


def markup(
    text: str, *, language: str = "", longest: int = LONGEST, inline: frozenset[str] = INLINE,
    points: frozenset[str] = IN_LINE, blanks: frozenset[str] = frozenset(), untouched: frozenset[str] = UNTOUCHED,
    untouched_inline: frozenset[str] = UNTOUCHED_INLINE,
) -> Document:  # fmt: skip
    """HTML, a whole page or a part of one; or XML with other elements `inline`, others without text (`points`), others
    that are read as a blank (`blanks`), and others that stay with all that is in them (`untouched`)."""
    parts: list[str | Unit] = []
    run, preformatted = InlineRun(), 0

    def flush() -> None:
        nonlocal run
        parts.extend(run.parts(language, longest, lines=preformatted > 0))
        run = InlineRun()

    tokens = _with_untouched(scan(text), untouched | untouched_inline, inline | untouched_inline)
    for token in tokens:
        if token.name in points:
            run.point(token.raw)
        elif token.name in blanks:
            run.read_as(" " * (not token.closes), token.raw)
        elif not token.name or token.name in inline:
            run.add(token)
        elif token.name == "untouched":
            run.keep(token.raw)
        elif token.raw.startswith("<!--"):
            run.point(token.raw)
        else:
            flush()
            parts.append(token.raw)
            if token.name == "pre":
                preformatted = max(preformatted + (-1 if token.closes else 1), 0)
    flush()
    return Document(parts)


def _with_untouched(
    tokens: Iterator[MarkupToken], untouched: frozenset[str], in_line: frozenset[str]
) -> Iterator[MarkupToken]:
    """Tokens of markup, in which an element that is not to be translated becomes one: named "untouched" if it stands in
    a line, and "!" if it does not."""
    for token in tokens:
        opens = bool(token.name) and token.name != "!" and not token.closes and not token.alone
        if not opens or not (token.name in untouched or _KEPT.search(token.raw)):
            yield token
            continue
        raws, depth = [token.raw], 1
        while depth and (inner := next(tokens, None)) is not None:
            raws.append(inner.raw)
            if inner.name == token.name and not inner.alone:
                depth += -1 if inner.closes else 1
        yield MarkupToken("".join(raws), "untouched" if token.name in in_line else "!")


@dataclass
class Element:
    """An inline element, or what has no text, or what stays with its text; see `Tag`."""

    kind: Literal["element", "point", "verbatim"]
    name: str
    start: int  # characters of the line's text in it
    parent: Element | None
    opens: int | None  # where on the tape its tags stand; None: not on this line
    closes: int | None = None
    end: int = 0


@dataclass
class InlineRun:
    """What stands on one line: text with inline elements. The tape has all of it as it is written."""

    text: list[str] = field(default_factory=list)  # characters, as they are read
    places: list[int] = field(default_factory=list)  # where each of them stands on the tape
    tape: list[str] = field(default_factory=list)
    elements: list[Element] = field(default_factory=list)  # an outer one before those in it
    stack: list[Element] = field(default_factory=list)  # those that are open
    open: Counter[str] = field(default_factory=Counter)  # how many of each name are
    solid: int = 0  # where the last character ends that is no blank

    def add(self, token: MarkupToken) -> None:
        """Take in text or an inline tag."""
        if not token.name:
            at = 0
            for entity in _ENTITY.finditer(token.raw):
                self._read(token.raw[at : entity.start()])
                self.read_as(html.unescape(entity[0]), entity[0])
                at = entity.end()
            self._read(token.raw[at:])
        elif token.alone:
            self.point(token.raw)
        elif token.closes:
            self._close(token)
        else:
            self.stack.append(self._element("element", token.raw, token.name))
            self.open[token.name] += 1

    def point(self, raw: str) -> None:
        """Take in what has no text."""
        self._element("point", raw)

    def read_as(self, text: str, raw: str) -> None:
        """Take in what is read as this text."""
        self._take(text, [len(self.tape)] * len(text))
        self.tape.append(raw)

    def keep(self, raw: str) -> None:
        """Take in an element that is not to be translated. If it is short, the model reads it in its sentence, so that
        it knows what is spoken of, and what it made of it is replaced."""
        inner = re.fullmatch(r"<[^>]*>([^<>]+)</[^>]*>", raw)
        text = html.unescape(inner[1]) if inner else ""
        if not text.strip() or len(text) > LONGEST_VERBATIM or _STOP.search(text):
            self.point(raw)
            return
        element = self._element("verbatim", raw)
        self._take(text, [len(self.tape) - 1] * len(text))
        element.end = len(self.text)

    def _element(self, kind: Literal["element", "point", "verbatim"], raw: str, name: str = "") -> Element:
        here = len(self.text)
        element = Element(kind, name, here, self.stack[-1] if self.stack else None, len(self.tape), end=here)
        self.elements.append(element)
        self.tape.append(raw)
        return element

    def _read(self, text: str) -> None:
        self._take(text, range(len(self.tape), len(self.tape) + len(text)))
        self.tape += text

    def _take(self, text: str, places: Sequence[int]) -> None:
        if inner := text.rstrip():
            self.solid = len(self.text) + len(inner)
        self.text += text
        self.places += places

    def _close(self, token: MarkupToken) -> None:
        if self.stack and not self.open[token.name]:  # it closes nothing
            self.point(token.raw)
            return
        here = len(self.tape)
        self.tape.append(token.raw)
        if not self.stack:  # what it closes was opened before this line
            self.elements.insert(0, Element("element", token.name, 0, None, None, here, len(self.text)))
            return
        while (element := self.stack.pop()).name != token.name:  # what is closed by an outer end tag
            element.kind = "point"
            self.open[element.name] -= 1
        self.open[token.name] -= 1
        element.end, element.closes = len(self.text), here
        if self.solid <= element.start:
            self._collapse(element)

    def _collapse(self, element: Element) -> None:
        """An element with nothing but blanks in it is one point."""
        assert element.opens is not None
        self.tape[element.opens :] = ["".join(self.tape[element.opens :])]
        self.places[element.start :] = [element.opens] * (len(self.text) - element.start)
        number = next(i for i in range(len(self.elements) - 1, -1, -1) if self.elements[i] is element)
        del self.elements[number + 1 :]
        element.kind, element.end, element.closes = "point", element.start, None

    # Sentences

    def parts(self, language: str, longest: int, *, lines: bool) -> Iterator[str | Unit]:
        """Sentences, and what stands between them."""
        for element in self.stack:  # closed after this line, if at all
            element.end = len(self.text)
        text, at, end_of = "".join(self.text), 0, len(self.text)
        spans = self._spans(text, sentences(text, language=language, longest=longest, lines=lines))
        owners: dict[int, Element] = {x.opens: x for x in self.elements if x.opens is not None}
        owners |= {x.closes: x for x in self.elements if x.closes is not None}
        for number, (start, end) in enumerate(spans):
            between = spans[number - 1][1] if number else 0, spans[number + 1][0] if number + 1 < len(spans) else end_of
            first, last = self._bounds((start, end), between, owners)
            yield "".join(self.tape[at:first])
            yield self._sentence(text, (start, end), (first, last), owners)
            at = last
        yield "".join(self.tape[at:])

    def _spans(self, text: str, spans: list[Span]) -> list[Span]:
        """Sentences that have something to translate, none of which ends inside what stays."""
        verbatim = [(x.start, x.end) for x in self.elements if x.kind == "verbatim"]
        characters, ends = list(text), {at for start, end in verbatim for at in range(start + 1, end)}
        for start, end in verbatim:
            characters[start:end] = " " * (end - start)
        joined: list[Span] = []
        for start, end in spans:
            torn = joined and (start in ends or joined[-1][1] in ends)
            joined.append((joined.pop()[0] if torn else start, end))
        return [(start, end) for start, end in joined if speaks("".join(characters[start:end]))]

    def _bounds(self, span: Span, between: Span, owners: Mapping[int, Element]) -> Span:
        """From where to where a sentence reaches on the tape: with both tags of every element that has a tag in the
        midst of it, and words of no other sentence."""
        first, last = seen = self.places[span[0]], self.places[span[1] - 1] + 1
        new = range(first, last)
        while new:
            for place in new:
                x = owners.get(place)
                if x is None or x.kind != "element" or x.opens is None or x.closes is None:
                    continue
                if between[0] <= x.start and x.end <= between[1]:
                    first, last = min(first, x.opens), max(last, x.closes + 1)
            new = range(first, seen[0]) or range(seen[1], last)
            seen = (first, seen[1]) if first < seen[0] else (first, last)
        return first, last

    def _sentence(self, text: str, span: Span, bounds: Span, owners: Mapping[int, Element]) -> MarkedSentence:
        (start, end), (first, last) = span, bounds

        def here(at: int | None) -> bool:
            return at is not None and first <= at < last

        # An outer one before those in it: first those opened before the sentence, the one closed last foremost.
        found = {id(x): x for x in (owners.get(place) for place in range(first, last)) if x is not None}
        order = sorted(found.values(), key=lambda x: (x.opens, 0) if here(x.opens) else (-1, -(x.closes or 0)))
        numbers = {id(x): i for i, x in enumerate(order) if here(x.opens) and here(x.closes)}
        tags: list[Tag] = []
        for x in order:
            parent = x.parent
            while parent is not None and id(parent) not in numbers:
                parent = parent.parent if here(parent.opens) else None
            opening = self.tape[x.opens] if x.opens is not None and here(x.opens) else ""
            closing = self.tape[x.closes] if x.closes is not None and here(x.closes) else ""
            inner = [min(max(at - start, 0), end - start) for at in (x.start, x.end)]
            number = numbers[id(parent)] if parent is not None else None
            tags.append(Tag(x.kind, inner[0], inner[1], opening, closing, number))
        blanks = [
            "".join(self.tape[place] for place in range(*part) if place not in owners)
            for part in ((first, self.places[start]), (self.places[end - 1] + 1, last))
        ]
        return MarkedSentence(text[start:end], "".join(self.tape[first:last]), tags, blanks[0], blanks[1])
