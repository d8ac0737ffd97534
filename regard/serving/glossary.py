"""Terms that have a fixed translation: found in a source, their translations become phrases that its output must hold.

That is lexically constrained decoding: the output has the target term letter by letter, in no other case or number than
it was given and as words of its own, and the model finds a place for it. A term that fits nowhere in the sentence is
written all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from regard.data.words import word_ends
from regard.serving.messages import Refused

MOST_TERMS = 1000
LONGEST_TERM = 200  # characters
_BLANKS = re.compile(r"\s+")


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
        lengths = dict[str, set[int]]()
        for source in self.terms:
            lengths.setdefault(source[0], set()).add(len(source))
        self._lengths = {first: sorted(some, reverse=True) for first, some in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]" if lengths else "(?!)")

    def phrases(self, text: str) -> list[str]:
        """What the output for a text must hold. Of terms that overlap in it, the first counts, of those that begin in
        one place the longest; a term that occurs twice is asked for once."""
        text, ends, at, found = _BLANKS.sub(" ", text), word_ends(), 0, dict[str, None]()
        for place in self._first.finditer(text):
            start = place.start()
            if start < at or not ends.match(text, start):
                continue
            # Looked up, whatever the terms are: a pattern of them all may take minutes, in which nobody else is served.
            for end in (start + length for length in self._lengths[place[0]]):
                if text[start:end] in self.terms and ends.match(text, end):
                    found[self.terms[text[start:end]]] = None
                    at = end
                    break
        return list(found)
