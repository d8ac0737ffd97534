"""Random sentences of a wanted length: the last part of the grammar, from main clauses up."""

from __future__ import annotations

from regard.data.synthetic import lexicon as words
from regard.data.synthetic import phrases
from regard.data.synthetic.clauses import Clauses, Site
from regard.data.synthetic.syntax import SECOND, WE, Clause, Complex, Fixed, Sentence, Tenses

STATEMENT = (
    *("pres", "pres", "pres", "pres", "prog", "past", "past", "past", "past", "perf", "fut", "fut"),
    *("can", "could", "must", "had", "want", "wanted", "should"),
)
QUESTION = ("pres", "pres", "pres", "prog", "past", "past", "past", "perf", "fut", "fut", "can", "must", "want")
KINDS = (("statement", 0.74), ("question", 0.15), ("command", 0.07), ("suggestion", 0.04))
ASKED = (("yes", 4.0), ("subject", 1.5), ("object", 2.0), ("where", 1.0), ("when", 1.0), ("why", 1.0))
LONGEST_QUESTION = 24


class Grammar(Clauses):
    """Draws sentences: it decides their structure and words and leaves the spelling to the linearisers."""

    def sentence(self, size: int) -> Sentence:
        """A sentence of about `size` English words, not counting punctuation."""
        self._next_key = 0
        kind = self.weighted(KINDS) if size <= LONGEST_QUESTION else "statement"
        parts: list[Complex] = []
        joiners: list[Fixed] = []
        left = size
        for count in range(self._parts(size) if kind == "statement" else 1, 0, -1):
            front = True
            if parts:
                joiner = self.fixed(self.pick(phrases.JOINERS))
                joiners.append(joiner)
                front = joiner.phrase is not phrases.SO
                left -= 1
            share = left if count == 1 else max(5, round(left / count * (0.7 + 0.6 * self._draw())))
            part, used = self._complex(share, kind, front)
            parts.append(part)
            left -= used
        return Sentence(parts, joiners, self.fixed(phrases.STOPS[kind]))

    def _parts(self, size: int) -> int:
        """How many main clauses: long sentences are chains of them, since deep nesting is hard to read."""
        fewest = 1 + (size - 1) // 19
        return fewest + 1 if size // (fewest + 1) > 4 and self.chance(0.25) else fewest

    def _complex(self, size: int, kind: str, front: bool) -> tuple[Complex, int]:
        """A main clause and perhaps a subordinate one; `front` allows something before the subject."""
        polite = self.fixed(phrases.PLEASE) if kind == "command" and size > 3 and self.chance(0.3) else None
        opening = (polite is not None) + 2 * (kind == "suggestion")
        size -= opening
        if size < 8 or not self.chance(0.4):
            main, used = self._main(size, kind, (), open_end=False, front=front)
            return Complex(kind, main, polite), opening + used
        conjunction = self.pick(words.CONJUNCTIONS)
        if kind != "statement":
            conjunction = self.pick(words.TIMES if kind == "question" else words.WHEN_OR_IF)
        main_tenses, tenses = self.pick(conjunction.tenses)
        first = front and kind in ("statement", "command") and polite is None and self.chance(0.5)
        share = max(3, round((size - 1) * (0.35 + 0.3 * self._draw())))
        if kind in ("command", "suggestion"):
            tenses = ("pres",)
        site = Site(conjunction.turkish, 1)
        other, more = self.clause(share, tenses, site)
        main, used = self._main(size - 1 - more, kind, main_tenses, open_end=not first, front=front and not first)
        return Complex(kind, main, polite, conjunction, other, first), opening + 1 + more + used

    def _main(self, size: int, kind: str, tenses: Tenses, *, open_end: bool, front: bool) -> tuple[Clause, int]:
        if kind in ("command", "suggestion"):
            person = SECOND if kind == "command" else WE
            return self.clause(size, ("imp",), Site(kind, person=person, open_end=open_end))
        if kind == "statement":
            return self.clause(size, tenses or STATEMENT, Site(open_end=open_end, front=front))
        allowed = tuple(tense for tense in tenses if tense in QUESTION)
        asked = self.weighted(ASKED[:3] if tenses else ASKED)
        site = Site("question", question=asked, open_end=open_end)
        return self.clause(size, allowed or QUESTION, site)
