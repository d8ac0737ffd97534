"""Terms that have a fixed translation: found in a source, their translations become phrases that its output must hold.

That is lexically constrained decoding: the output has the target term letter by letter, in no other case or number than
it was given, and the model finds a place for it. A term that fits nowhere in the sentence is written all the same. Of
the beam's outputs one is taken that has it as words of its own, if there is one (`holds`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from regard.serving.messages import Refused

MOST_TERMS = 1000
LONGEST_TERM = 200  # characters
# Scripts that put no blanks between words: there a term may begin and end anywhere.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_LETTER = rf"[^\W{_UNSPACED}]"


class Glossary:
    """Source terms with their target terms."""

    def __init__(self, terms: Mapping[str, str]) -> None:
        if len(terms) > MOST_TERMS:
            raise Refused(422, "unprocessable", f"the glossary has {len(terms)} terms, more than {MOST_TERMS}")
        self.terms = {" ".join(source.split()): " ".join(target.split()) for source, target in terms.items()}
        for source, target in self.terms.items():
            if not source or not target:
                raise Refused(422, "unprocessable", "a term of the glossary is empty")
            if max(len(source), len(target)) > LONGEST_TERM:
                raise Refused(
                    422, "unprocessable", f"the term '{source[:40]}…' has more than {LONGEST_TERM} characters"
                )
        longest_first = sorted(self.terms, key=lambda term: (-len(term), term))
        self._pattern = re.compile("|".join(map(_bounded, longest_first))) if self.terms else None

    def phrases(self, text: str) -> list[str]:
        """What the output for a text must hold. Of terms that overlap in it, the first counts, of those that begin in
        one place the longest; a term that occurs twice is asked for once."""
        if self._pattern is None:
            return []
        found = (" ".join(match[0].split()) for match in self._pattern.finditer(text))
        return list(dict.fromkeys(self.terms[term] for term in found))


def holds(text: str, phrases: Sequence[str]) -> bool:
    """Whether a text has every phrase as words of its own: a search that writes pieces of words may go on the last."""
    return all(re.search(_bounded(phrase), text) for phrase in phrases)


def _bounded(term: str) -> str:
    """What finds a term, as it is written, between the ends of words."""
    inner = r"\s+".join(map(re.escape, term.split()))
    first, last = (bool(re.match(_LETTER, character)) for character in (term[0], term[-1]))
    return (f"(?<!{_LETTER})" if first else "") + inner + (f"(?!{_LETTER})" if last else "")
