"""A text cut into sentences by rules: small, and for many scripts. What stands between two sentences is white space.

A full stop ends a sentence where white space follows and then something that can begin one; abbreviations, initials,
ordinals and what goes on in lower case are let through. In doubt a sentence goes on: two that are translated as one
lose less than one that is torn apart.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

LONGEST = 600  # characters of a sentence; a longer one is cut
ACCENTS = 30  # that a letter may have

Span = tuple[int, int]


def names(text: str) -> frozenset[str]:
    """Words between blanks, as a set."""
    return frozenset(text.split())


# Marks after which white space must come: without it they stand in numbers, addresses and names.
_SPACED = ".!?…‼⁇⁈⁉‽"
# Marks that end a sentence wherever they stand: CJK and full width, Arabic and Urdu, Devanagari, Armenian, Ethiopic,
# Khmer, Burmese.
_ALONE = "。！？｡︒﹒．؟۔।॥։።፧។៕။"
_CLOSING = "\"'”’»›)]}」』】）》〉〕］｝"
_OPENING = "\"'“‘«‹([{「『【（《〈〔［｛„‚¿¡"
_END = re.compile(f"[{_SPACED}{_ALONE}]+[{re.escape(_CLOSING)}]*(?:[ \u00a0\u202f]»(?=\\s|$))?")
_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")  # what `str.splitlines` leaves whole
_CLAUSE = re.compile(r"[;:,—–،؛](?=\s)|[、，；：]")
_BLANK = re.compile(r"\s+")

# Before a name, never at an end: titles and the like in English, German, French, Spanish, Portuguese, Italian, Dutch,
# Polish, Czech, Swedish and Russian.
_BEFORE = names("""
    mr mrs ms messrs dr prof st rev hon gen col capt lt sgt gov sen rep pres vs al cf viz approx ca hr hrn fr sr srta
    sra dra ud uds dña mme mlle mm fa abb bzw bspw evtl ggf inkl exkl zzgl vgl sog ehem geb gest gegr dipl phil jan feb
    apr aug sept okt oct nov dez dec sig sigg dott avv egr drs mw dhr mej resp inż mgr ks św tzw tj tzn np mudr judr
    phdr проф акад тов гр им ул рис стр см св напр bl.a t.ex s.k z.b d.h u.a m.e e.g i.e
""")
# Before a number.
_NUMBERED = names("no nos nr n° núm nº č fig figs eq sec chap ch vol ed p pp art tab kap bd str tel pag")
# These may stand at an end too, which a capital letter after them tells.
_EITHER = names("""
    etc inc ltd co corp jr bros esq usw ff a.m p.m ph.d m.d b.c a.d ibid ecc enz osv m.m atd itd itp др пр т.д т.п
""")
# Languages that write ordinals with a stop: "am 3. Oktober".
_ORDINALS = names("bs cs da de et fi fo hr hu is lb lv nb nn no pl sk sl sr tr")


def sentences(text: str, *, language: str = "", longest: int = LONGEST, lines: bool = True) -> list[Span]:
    """Where the sentences of a text begin and end, without white space at their ends.

    With `lines` a line break ends a sentence; else it is a blank as any other. A sentence of more than `longest`
    characters is cut after a comma or the like, else between words, else where it must be.
    """
    found: list[Span] = []
    whole = _LINE.finditer(text) if lines else [re.compile(r".+", re.DOTALL).match(text)]
    for line in whole:
        if line is None:  # an empty text
            continue
        start = line.start()
        for end in [*_ends(text, *line.span(), language), line.end()]:
            found += _fitting(text, start, end, max(longest, 1))
            start = end
    return found


def _ends(text: str, first: int, last: int, language: str) -> Iterator[int]:
    """Where sentences of a line end, save the last of them."""
    begin = first
    for mark in _END.finditer(text, first, last):
        end = mark.end()
        if end < last and _is_end(text, begin, mark, last, language):
            yield end
            begin = end


def _is_end(text: str, begin: int, mark: re.Match[str], last: int, language: str) -> bool:
    """Whether a sentence that begins at `begin` ends with a mark, behind which the line goes on."""
    marks = mark[0].rstrip(_CLOSING + " \u00a0\u202f")
    blank = _BLANK.match(text, mark.end(), last)
    if any(one in _ALONE for one in marks):
        return True
    if blank is None or blank.end() == last:
        return False
    after = text[blank.end() : min(blank.end() + 16, last)].lstrip(_OPENING)
    if not after or not _begins(after[0]):
        return False
    if after[0].islower() and (marks[-1] in ".…" or len(marks) < len(mark[0])):  # "Wait!" he said.
        return False
    if marks != ".":
        return True
    # Of a long word only the end matters; without a bound a text of one word would be read again for each stop.
    word = re.split(r"\s", text[max(begin, mark.start() - 40) : mark.start()])[-1].lstrip(_OPENING + "-–—")
    return not _goes_on(word, after, language, first=text[begin : mark.start()].strip() == word)


def _begins(character: str) -> bool:
    """Whether a sentence can begin with a character, quotes and brackets aside."""
    return character.isalnum() or unicodedata.category(character) in ("Pd", "Sc", "So") or character in "•*#@§…"


def _goes_on(word: str, after: str, language: str, *, first: bool) -> bool:
    """Whether a full stop behind a word belongs to the word."""
    if word.isdigit():  # the number of a line or a heading, or an ordinal
        return len(word) <= 3 and (first or (language.split("-")[0] in _ORDINALS and len(word) <= 2))
    lower = word.lower()
    if lower in _EITHER:
        return not after[0].isupper()
    if lower in _NUMBERED and after[0].isdigit():
        return True
    if len(word) == 1 and word.isalpha() and not _uncased(word):  # an initial
        return True
    return lower in _BEFORE or re.fullmatch(r"(?:[^\W\d_]\.)+[^\W\d_]", word) is not None


def _uncased(letter: str) -> bool:
    return letter.lower() == letter.upper()


def _fitting(text: str, start: int, end: int, longest: int) -> Iterator[Span]:
    """Parts of a sentence, none longer than `longest`, without white space at their ends."""
    while True:
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        if start == end:
            return
        if end - start <= longest:
            yield start, end
            return
        cut = _cut(text, start, start + longest)
        stop = cut
        while text[stop - 1].isspace():
            stop -= 1
        yield start, stop
        start = cut


def _cut(text: str, start: int, most: int) -> int:
    """Where to cut a sentence that goes on beyond `most`: in its second half, if there is anything to cut at."""
    middle = (start + most) // 2
    for pattern in (_CLAUSE, _BLANK):
        places = [match.end() for match in pattern.finditer(text, middle, most)]
        if places := [place for place in places if place <= most]:
            return places[-1]
    first = max(start, most - ACCENTS)  # a letter and its accents stay together
    return next((cut for cut in range(most, first, -1) if not unicodedata.combining(text[cut])), most)
