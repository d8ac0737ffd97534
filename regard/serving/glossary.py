"""Terms that have a fixed translation: found in a source, their translations become phrases that its output must hold.

That is lexically constrained decoding: the output has the target term letter by letter, in no other case or number than
it was given and as words of its own, and the model finds a place for it. A term that fits nowhere in the sentence is
written all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from regard.data.words import bounded
from regard.serving.messages import Refused

MOST_TERMS = 1000
LONGEST_TERM = 200  # characters


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
        self._pattern = bounded(longest_first) if self.terms else None

    def phrases(self, text: str) -> list[str]:
        """What the output for a text must hold. Of terms that overlap in it, the first counts, of those that begin in
        one place the longest; a term that occurs twice is asked for once."""
        if self._pattern is None:
            return []
        found = (" ".join(match[0].split()) for match in self._pattern.finditer(text))
        return list(dict.fromkeys(self.terms[term] for term in found))
