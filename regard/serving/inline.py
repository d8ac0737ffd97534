"""Inline tags of a sentence put around the words of its translation that the words inside them were aligned to.

An element covers the target words that its source words are linked to: from the first to the last of them, or, where
words of another element lie between, the most that stand side by side. Elements nest in the output as in the input, and
each appears once. Without links an element is put around the whole sentence.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from regard.serving.documents import Links, Unit

MANY = 50  # elements of a sentence that are put around words; more of them stay around the sentence
WORD = re.compile(r"[^ \t\r\n\f\v]+")  # what an alignment counts as one

Span = tuple[int, int]


@dataclass(frozen=True)
class Tag:
    """An element in a sentence, the outer before those in it; or what has no text, such as a picture (`point`); or what
    stays as it is (`verbatim`), with its text: then `opening` is all of it."""

    kind: Literal["element", "point", "verbatim"]
    start: int  # characters of the sentence that are in it, from and to
    end: int
    opening: str  # empty: opened before the sentence
    closing: str  # empty: closed after the sentence
    parent: int | None = None  # the number of the innermost element around it that is all in the sentence


@dataclass(frozen=True)
class MarkedSentence(Unit):
    """A sentence with inline tags in it."""

    text: str
    raw: str  # as it is written in the markup
    tags: Sequence[Tag] = ()
    lead: str = ""  # blanks that stand between the first tag and the first word
    tail: str = ""

    @property
    def needs_links(self) -> bool:  # type: ignore[override]
        return bool(self.tags)

    def put(self, written: str, links: Links | None = None) -> str:
        """What comes back as it was stays as it was, to the byte."""
        if written.split() == self.text.split():
            return self.raw
        if not self.tags:
            return html.escape(written, quote=False)
        placing = _Placing(self.text, written, self.tags, links) if len(self.tags) <= MANY else None
        rendered = None if placing is None else placing.render()
        return self.lead + (self._around(written) if rendered is None else rendered) + self.tail

    def _around(self, written: str) -> str:
        """All tags around the whole, nested; but what is closed after it begins behind it."""
        left_open = [tag.opening for tag in self.tags if tag.kind == "element" and tag.opening and not tag.closing]
        before = [tag.opening for tag in self.tags if tag.kind != "element" or tag.closing]
        # Those opened before the sentence are the first, so they close last.
        after = [tag.closing for tag in reversed(self.tags)]
        return "".join((*before, html.escape(written, quote=False), *after, *left_open))


class _Placing:
    """Where each tag goes in a translation."""

    def __init__(self, text: str, written: str, tags: Sequence[Tag], links: Links | None) -> None:
        self.text, self.written, self.tags = text, written, tags
        self.source, self.target = ([match.span() for match in WORD.finditer(x)] for x in (text, written))
        self.linked: list[list[int]] | None = None  # of each source word, its target words
        if links and self.source and self.target:
            self.linked = [[] for _ in self.source]
            for word, other in sorted(links):
                if word < len(self.source) and other < len(self.target):
                    self.linked[word].append(other)
        self.covered = [self._words(tag) for tag in tags]
        # Characters of the translation in each element: from -1 if it is opened before, beyond the end if closed after.
        self.spans: dict[int, Span] = {}
        self.points: dict[int, int] = {}  # where what has no text stands
        for number, tag in enumerate(tags):
            if tag.kind == "point":
                continue
            span = self._span(number)
            fitted = None if span is None else self._fitted(number, span)
            if fitted is None or (tag.kind == "verbatim" and fitted != span):
                self.points[number] = self._point(number)  # words that stay and have no place: beside the others
            else:
                self.spans[number] = fitted
        for number, tag in enumerate(tags):
            if tag.kind == "point":
                self.points[number] = self._point(number)

    # Elements

    def _words(self, tag: Tag) -> range:
        """The source words that an element covers, if only in part."""
        inside = [i for i, (start, end) in enumerate(self.source) if start < tag.end and tag.start < end]
        return range(inside[0], inside[-1] + 1) if inside else range(0)

    def _span(self, number: int) -> Span | None:
        tag, start, end = self.tags[number], 0, len(self.written)
        if tag.kind == "verbatim":
            return self._found(number)
        if self.linked is not None and len(self.covered[number]) < len(self.source):
            words = self._linked_words(number)
            start, end = self._trimmed(tag, self.target[words[0]][0], self.target[words[-1]][1])
        return start if tag.opening else -1, end if tag.closing else len(self.written) + 1

    def _found(self, number: int) -> Span | None:
        """Where text that stays stands in the translation: as it is or, if it came out otherwise, where its words
        went."""
        text = self.text[self.tags[number].start : self.tags[number].end].strip()
        taken = [span for i, span in self.spans.items() if self.tags[i].kind == "verbatim"]
        for match in re.finditer(rf"(?<!\w){re.escape(text)}(?!\w)", self.written):
            if all(match.end() <= start or end <= match.start() for start, end in taken):
                return match.span()
        if self.linked is None or not any(self.linked[word] for word in self.covered[number]):
            return None
        words = self._linked_words(number)
        if len(words) > len(self.covered[number]) or len(words) == len(self.target):  # what others became, too
            return None
        span = self._trimmed(self.tags[number], self.target[words[0]][0], self.target[words[-1]][1])
        return span if all(span[1] <= start or end <= span[0] for start, end in self.spans.values()) else None

    def _linked_words(self, number: int) -> range:
        """The target words of an element, side by side; at least one."""
        assert self.linked is not None
        mine = sorted({word for i in self.covered[number] for word in self.linked[i]})
        if not mine:
            near = self._near(self.covered[number][0] if self.covered[number] else 0)
            return range(near, near + 1)
        others = {
            word
            for other, words in enumerate(self.covered)
            if not set(words) & set(self.covered[number])
            for i in words
            for word in self.linked[i]
        }
        hull = range(mine[0], mine[-1] + 1)
        if not others & set(hull):
            return hull
        runs: list[list[int]] = []
        for word in mine:
            if runs and word == runs[-1][-1] + 1:
                runs[-1].append(word)
            else:
                runs.append([word])
        best = max(runs, key=len)
        return range(best[0], best[-1] + 1)

    def _near(self, word: int) -> int:
        """A target word near to where a source word that is linked to none would stand."""
        assert self.linked is not None
        for before in range(word - 1, -1, -1):
            if self.linked[before]:
                return min(self.linked[before][-1] + 1, len(self.target) - 1)
        return min(word, len(self.target) - 1)

    def _trimmed(self, tag: Tag, start: int, end: int) -> Span:
        """Without punctuation at the ends, where that of the source stands outside the element."""
        before, after = (self.text[part] for part in self._rest_of_words(tag))
        inner = self.written[start:end]
        if after and not re.search(r"\w", after):
            inner = re.sub(r"\W+$", "", inner)
        cut = len(inner)
        if before and not re.search(r"\w", before):
            inner = re.sub(r"^\W+", "", inner)
        return (start + cut - len(inner), start + cut) if inner else (start, end)

    def _rest_of_words(self, tag: Tag) -> tuple[slice, slice]:
        """What of its first and its last word stands outside an element."""
        words = [span for span in self.source if span[0] < tag.end and tag.start < span[1]] or [(tag.start, tag.end)]
        return slice(words[0][0], max(tag.start, words[0][0])), slice(min(tag.end, words[-1][1]), words[-1][1])

    def _fitted(self, number: int, span: Span) -> Span:
        """A span within that of the element around it, which crosses no other."""
        parent = self.tags[number].parent
        if parent is not None and parent in self.spans:
            outer = self.spans[parent]
            inner = max(span[0], outer[0]), min(span[1], outer[1])
            span = inner if inner[0] < inner[1] else outer
        for start, end in self.spans.values():
            if span[0] < start < span[1] < end:
                span = span[0], len(self.written[:start].rstrip())
            elif start < span[0] < end < span[1]:
                span = len(self.written) - len(self.written[end:].lstrip()), span[1]
        return span

    # What has no text

    def _point(self, number: int) -> int:
        tag = self.tags[number]
        at = self._position(tag.start)
        if tag.parent is not None and tag.parent in self.spans:
            outer, around = self.spans[tag.parent], self.tags[tag.parent]
            at = outer[0] if tag.start <= around.start else outer[1] if tag.start >= around.end else at
            at = min(max(at, outer[0]), outer[1])
        return at

    def _position(self, start: int) -> int:
        """Where a place between two source words lies in the translation."""
        if self.linked is None:
            return 0 if 2 * start <= len(self.text) and start < len(self.text) else len(self.written)
        after = next((i for i, span in enumerate(self.source) if span[0] >= start), len(self.source))
        joined = start > 0 and not self.text[start - 1].isspace()  # to the word before
        if after and (joined or after == len(self.source)) and self.linked[after - 1]:
            return self.target[self.linked[after - 1][-1]][1]
        if after < len(self.source):
            return self.target[self.linked[after][0] if self.linked[after] else self._near(after)][0]
        return len(self.written)

    # The output

    def render(self) -> str | None:
        """The translation with all tags in it; None if they would not nest, or something would be lost."""
        inside: dict[int | None, list[int]] = {None: []}  # elements by the one around them, in order
        around: list[int] = []
        for number in sorted(self.spans, key=lambda i: (self.spans[i][0], -self.spans[i][1], i)):
            while around and self.spans[around[-1]][1] < self.spans[number][1]:
                around.pop()
            inside.setdefault(around[-1] if around else None, []).append(number)
            around.append(number)
        self.events: list[tuple[int, bool]] = []  # tags of elements as they come, and whether each opens one
        self.texts: list[str] = []
        self.seen: list[int] = []
        found = self._rendered(None, (0, len(self.written)), inside)
        complete = len(self.seen) == len(self.tags) and "".join(self.texts) == self.written
        return found if complete and self._nests() else None

    def _nests(self) -> bool:
        """Whether each tag closes the element opened last, of those too that were opened before the sentence."""
        elements = [i for i, tag in enumerate(self.tags) if tag.kind == "element"]
        around = [i for i in elements if not self.tags[i].opening]
        for number, opens in self.events:
            if opens:
                around.append(number)
            elif not around or around.pop() != number:
                return False
        return around == [i for i in elements if not self.tags[i].closing]

    def _rendered(self, number: int | None, span: Span, inside: dict[int | None, list[int]]) -> str:
        elements = inside.get(number, [])
        items = [(max(self.spans[i][0], 0), 1, i) for i in elements]
        for point, at in self.points.items():
            if self._holder(point) != number:
                continue
            for start, end in (self.spans[i] for i in elements):
                at = end if start < at < end else at
            items.append((at, 0, point))
        found, last = [], max(span[0], 0)
        for at, is_element, i in sorted(items):
            found.append(self._text(last, at))
            last = max(last, at)
            tag = self.tags[i]
            self.seen.append(i)
            if not is_element:
                found.append(f" {tag.opening} " if tag.kind == "verbatim" else tag.opening)
                continue
            last = self.spans[i][1]
            if tag.kind == "verbatim":
                self.texts.append(self.written[slice(*self.spans[i])])
                found.append(tag.opening)
                continue
            self.events += [(i, True)] * bool(tag.opening)
            found += [tag.opening, self._rendered(i, self.spans[i], inside), tag.closing]
            self.events += [(i, False)] * bool(tag.closing)
        return "".join((*found, self._text(last, span[1])))

    def _text(self, start: int, end: int) -> str:
        self.texts.append(self.written[start:end])
        return html.escape(self.texts[-1], quote=False)

    def _holder(self, point: int) -> int | None:
        parent = self.tags[point].parent
        return parent if parent in self.spans else None
