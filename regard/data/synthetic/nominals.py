"""Random noun phrases and prepositional phrases of a wanted length: the first part of the grammar.

What may stand where is chosen so that English alone determines the translation, although Turkish puts "the dog in the
garden" and "sees the dog / in the garden" differently: a relative clause belongs to the noun just before it, and a
place after a verb belongs to the verb.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from regard.data.synthetic import lexicon as words
from regard.data.synthetic import phrases
from regard.data.synthetic.lexicon import Name, Noun, Preposition
from regard.data.synthetic.syntax import FIRST, NP, NP_KEYS, PLURAL, PP, SECOND, THEY, THIRD, WE, Clause, Fixed, Phrase

T = TypeVar("T")

PRONOUNS = (("I", FIRST), ("you", SECOND), ("he", THIRD), ("she", THIRD), ("we", WE), ("they", THEY))
POSSESSIVES = ("my", "your", "his", "her", "our", "their")
# Determiners with their weights, for the singular and the plural; the definite ones come first.
SINGULAR = (("the", 9), ("this", 2), ("possessive", 4), ("a", 6), ("every", 1))
PLURALS = (("the", 8), ("these", 2), ("possessive", 3), ("number", 8), ("some", 2), ("many", 2), ("all", 1))
DEFINITE, NEGATABLE = 3, 4


class Nominals(ABC):
    """Draws noun phrases; `draw` returns a float in [0, 1) and is the only source of chance."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._next_key = 0

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._draw() * len(items))]

    def chance(self, probability: float) -> bool:
        return self._draw() < probability

    def weighted(self, items: Sequence[tuple[T, float]]) -> T:
        point = self._draw() * sum([weight for _, weight in items])
        for item, weight in items:
            point -= weight
            if point < 0:
                return item
        return items[-1][0]

    def keys(self, count: int) -> int:
        key = self._next_key
        self._next_key = key + count
        return key

    def fixed(self, phrase: Phrase) -> Fixed:
        return Fixed(self.keys(phrase.keys), phrase)

    @abstractmethod
    def relative(self, antecedent: NP, budget: int, depth: int) -> tuple[Clause, int] | None:
        """A relative clause and its words, or None where none fits."""

    def np(
        self, budget: int, classes: str, *, depth: int = 0, where: bool = False, definite: bool = False,
        negated: bool = False, avoid: int = -1, pronoun: bool = True, bare: bool = False, genitive: bool = False,
    ) -> NP:  # fmt: skip
        """A noun phrase of up to `budget` words (at least one, or two if no person is among `classes`).

        `depth` bounds the relative clauses inside one another, `where` allows "the dog in the garden", `avoid` is a
        person whose pronoun is not wanted, `bare` allows "milk", and `genitive` keeps to what German declines well.
        """
        human = "P" in classes
        if human and (budget < 2 or self.chance(0.3 if budget < 4 else 0.06)):
            if pronoun and (budget < 2 or self.chance(0.6)):
                chosen = self._pronoun(avoid)
                if chosen is not None:
                    return chosen
            if not genitive or budget < 2:
                return self._name(words.PEOPLE)
        if budget > 4 and not (negated or genitive) and self.chance(0.1) and words.broad(classes):
            return self._pair(budget, self.pick(words.broad(classes)), definite)
        noun = self.pick(words.nouns(classes))
        phrase = self._head(noun, budget, definite, negated, bare, genitive)
        self._modify(phrase, noun, budget - phrase.words, depth, where)
        return phrase

    def _pronoun(self, avoid: int) -> NP | None:
        pronoun, person = self.pick(PRONOUNS)
        same = person == avoid or {person, avoid} == {FIRST, WE}
        if same and person not in (THIRD, THEY):
            return None
        return NP("pronoun", self.keys(NP_KEYS), 1, person, pronoun=pronoun)

    def _pair(self, budget: int, classes: str, definite: bool) -> NP:
        """Two of a kind."""
        left = self.np(min(3, budget - 3), classes, definite=definite, pronoun=False)
        right = left
        while right.kind == "pair" or (right.noun is left.noun and right.name is left.name):
            right = self.np(min(4, budget - 1 - left.words), classes, definite=definite, pronoun=False)
        return self._joined(left, right)

    def _joined(self, left: NP, right: NP) -> NP:
        size = left.words + 1 + right.words
        return NP("pair", self.keys(NP_KEYS), size, PLURAL, pair=(left, right), plural=True)

    def _head(self, noun: Noun, budget: int, definite: bool, negated: bool, bare: bool, genitive: bool) -> NP:
        key = self.keys(NP_KEYS)
        if noun.mass:
            if bare and ("G" in noun.classes or budget < 2 or self.chance(0.6)):
                return NP("noun", key, 1, THIRD, noun=noun)
            determiner = self.pick(POSSESSIVES) if self.chance(0.3) else "the"
            return NP("noun", key, 2, THIRD, noun=noun, determiner=determiner)
        plural = self.chance(0.36)
        options: Sequence[tuple[str, float]] = PLURALS if plural else SINGULAR
        if definite or (plural and (negated or genitive)):
            options = options[:DEFINITE]
        elif negated or genitive:
            options = options[:NEGATABLE]
        determiner = self.weighted(options)
        number, size = None, 2
        if determiner == "possessive":
            determiner = self.pick(POSSESSIVES)
        elif determiner == "all":
            size = 3
        elif determiner == "number":
            number = self.fixed(self._number(budget - 1))
            size = 1 + number.words
        if size > budget:
            determiner, number, size = "the", None, 2
        return NP("noun", key, size, PLURAL if plural else THIRD, noun=noun, plural=plural, determiner=determiner,
                  number=number)  # fmt: skip

    def _number(self, budget: int) -> Phrase:
        """A number: small ones are common, and those of several words need room."""
        if budget > 3 and self.chance(0.25):
            return phrases.number(100 + int(self._draw() * 900))
        if self.chance(0.35):
            return phrases.number(13 + int(self._draw() * 87))
        return phrases.number(2 + int(self._draw() * 11))

    def _modify(self, phrase: NP, noun: Noun, spare: int, depth: int, where: bool) -> None:
        """Fill `spare` words with adjectives and at most one of: a possessor, a place, a relative clause."""
        if spare < 1 or "G" in noun.classes:
            return
        adjectives = words.adjectives(noun)
        room = min(2, spare) if spare < 3 else 1
        limit = room if self.chance(0.75 if spare < 3 else 0.35) else 0
        for _ in range(limit if adjectives else 0):
            adjective = self.pick(adjectives)
            if all(adjective.opposite != other.opposite for _, other in phrase.adjectives):
                phrase.adjectives = (*phrase.adjectives, (self.keys(1), adjective))
                phrase.words += 1
                spare -= 1
        if phrase.determiner in ("his", "her", "their"):
            return  # "onun" and what would stand between it and its noun are hard to tell apart in Turkish
        if spare > 1 and depth > 0 and self.chance(0.7):
            found = self.relative(phrase, spare, depth - 1)
            if found is not None:
                phrase.relative, size = found
                phrase.words += size
                phrase.clausal = True
        elif spare > 2 and where and self.chance(0.6) and any(letter in "PATCMXEJ" for letter in noun.classes):
            inside = "J" in noun.classes
            phrase.where = self._at(self.pick(words.BESIDE), spare, depth, "B") if inside else self.place(spare, depth)
            phrase.words += phrase.where.words
            phrase.clausal = phrase.where.np.clausal
        elif spare > 2 and phrase.determiner == "the" and not noun.mass:
            phrase.of = self.np(spare - 1, "P", depth=depth, where=where, genitive=True, pronoun=False)
            phrase.words += 1 + phrase.of.words
            phrase.clausal = phrase.of.clausal

    def place(self, budget: int, depth: int) -> PP:
        """Where something is, in at least two words."""
        if budget < 3 or self.chance(0.08):
            return PP(self.keys(1), words.IN, self._name(words.COUNTRIES))
        if budget > 5 and self.chance(0.1):
            left, right = (self.np(size, words.BETWEEN.objects, definite=True) for size in (2, budget - 4))
            if right.kind == "noun" and left.kind == "noun":
                return PP(self.keys(1), words.BETWEEN, self._joined(left, right))
        return self._at(words.IN if self.chance(0.5) else self.pick(words.PLACES), budget, depth)

    def _at(self, preposition: Preposition, budget: int, depth: int, classes: str = "") -> PP:
        if preposition.words + 2 > budget:
            preposition = words.IN
        phrase = self._in_place(budget, preposition, classes or preposition.objects, depth)
        return PP(self.keys(1), preposition, phrase)

    def goal(self, budget: int, depth: int) -> PP:
        """Where someone goes, in at least two words."""
        if budget < 3 or self.chance(0.2):
            return PP(self.keys(1), words.TO_COUNTRY, self._name(words.COUNTRIES))
        phrase = self._in_place(budget, words.TO, words.TO.objects, depth)
        into = phrase.noun is not None and phrase.noun.to == "in"
        return PP(self.keys(1), words.INTO if into else words.TO, phrase)

    def _in_place(self, budget: int, preposition: Preposition, classes: str, depth: int) -> NP:
        noun = self.pick(words.nouns(classes))
        room = budget - preposition.words
        phrase = self._head(noun, room, definite=self.chance(0.8), negated=True, bare=False, genitive=False)
        self._modify(phrase, noun, room - phrase.words, depth, self.chance(0.5))
        return phrase

    def _name(self, names: Sequence[Name]) -> NP:
        return NP("name", self.keys(NP_KEYS), 1, THIRD, name=self.pick(names))
