"""The abstract trees of the phrasebook, which every language spells out in its own order.

A synchronous grammar is written here as one abstract syntax and one lineariser for each language (the design of
Ranta, "Grammatical Framework", JFP 2004). Every word with a meaning owns a *key*, an integer; a lineariser marks each
token it emits with the keys whose meaning the token carries. Two tokens that share a key are translations of each
other, so the gold alignment falls out of the derivation and needs no bookkeeping when words move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from regard.data.synthetic.lexicon import Adjective, Conjunction, Name, Noun, Preposition, Verb

# A token: its text, the keys it certainly translates, and the keys it only perhaps translates.
Keys = tuple[int, ...]
Token = tuple[str, Keys, Keys]
Link = tuple[int, int]
Tenses = tuple[str, ...]


class Key:
    """What each key of a clause stands for, counted from `Clause.key`; the last four, of a noun phrase from `NP.key`.

    `DETERMINER2` is the article of "all the dogs"; the head of a pair is its "and".
    """

    VERB, PARTICLE, NEGATION, AUXILIARY, MODAL, TO, PASSIVE, LINKER, COMMA, GOVERNED = range(10)
    THAN, MORE, PREDICATE, AND = range(10, 14)
    HEAD, DETERMINER, DETERMINER2, OF = range(4)


CLAUSE_KEYS, NP_KEYS = 14, 4

# Persons: I, you, he or she, we, they, and a plural noun, which Turkish verbs treat like a singular one.
FIRST, SECOND, THIRD, WE, THEY, PLURAL = range(6)


class Phrase:
    """Words that always go together, in every language, with keys counted from zero.

    Each text is a row of words, each with the keys it shares: `am/01` has the keys 0 and 1, `günü/?1` has key 1 as a
    possible link only, `und/` has none, and a bare word has key 0.
    """

    __slots__ = ("keys", "texts", "words")

    def __init__(self, en: str, de: str, tr: str) -> None:
        self.texts: dict[str, tuple[Token, ...]] = {"en": _tokens(en), "de": _tokens(de), "tr": _tokens(tr)}
        self.words = len(self.texts["en"])
        self.keys = 1 + max(key for token in self.texts["en"] for key in (*token[1], *token[2], 0))


@cache
def _tokens(text: str) -> tuple[Token, ...]:
    tokens = []
    for item in text.split():
        word, slash, keys = item.partition("/")
        sure, _, possible = (keys if slash else "0").partition("?")
        tokens.append((word, tuple(map(int, sure)), tuple(map(int, possible))))
    return tuple(tokens)


@dataclass(slots=True)
class Fixed:
    """An occurrence of a `Phrase`: an adverb, a date, a number."""

    key: int
    phrase: Phrase

    @property
    def words(self) -> int:
        return self.phrase.words

    def spell(self, language: str) -> list[Token]:
        key = self.key
        return [
            (text, tuple([key + k for k in sure]), tuple([key + k for k in possible]))
            for text, sure, possible in self.phrase.texts[language]
        ]


@dataclass(slots=True)
class NP:
    """A noun phrase; `words` counts its English words and `clausal` says that it ends in a clause."""

    kind: str  # noun, pronoun, name, pair, who, what
    key: int
    words: int
    person: int
    noun: Noun | None = None
    plural: bool = False
    pronoun: str = ""
    name: Name | None = None
    determiner: str = ""
    number: Fixed | None = None
    adjectives: Sequence[tuple[int, Adjective]] = ()
    of: NP | None = None
    where: PP | None = None
    relative: Clause | None = None
    pair: tuple[NP, NP] | None = None
    clausal: bool = False


@dataclass(slots=True)
class PP:
    """A preposition with its noun phrase."""

    key: int
    preposition: Preposition
    np: NP

    @property
    def words(self) -> int:
        return self.preposition.words + self.np.words


@dataclass(slots=True)
class Clause:
    """A verb with all that depends on it. Infinitives, commands and relative clauses have no subject of their own."""

    key: int
    verb: Verb
    tense: str
    person: int = THIRD
    subject: NP | None = None
    negated: bool = False
    passive: bool = False
    object: NP | None = None
    recipient: NP | None = None
    complement: PP | None = None  # where one goes, or where something is
    agent: NP | None = None
    predicate: Adjective | None = None
    than: NP | None = None
    price: Fixed | None = None
    embedded: Clause | None = None
    embedding: str = ""  # that, whether, to
    frequency: Fixed | None = None
    manner: Fixed | None = None
    company: PP | None = None
    place: PP | None = None
    time: Fixed | PP | None = None
    front: Fixed | PP | None = None  # a time or a place that stands first
    fronted: str = ""  # which of the two it is
    gap: str = ""  # what a relative clause leaves out: subject, object, recipient, place
    antecedent: NP | None = None
    question: str = ""  # yes, subject, object, where, when, why
    also: Clause | None = None  # a second verb phrase: "opens the door and laughs"

    @property
    def frame(self) -> str:
        return "passive" if self.passive else self.verb.frame


@dataclass(slots=True)
class Complex:
    """A main clause, perhaps with a subordinate one before or after it."""

    kind: str  # statement, question, command, suggestion
    main: Clause
    polite: Fixed | None = None
    conjunction: Conjunction | None = None
    subordinate: Clause | None = None
    first: bool = False


@dataclass(slots=True)
class Sentence:
    """Main clauses joined by `joiners`, then the stop."""

    parts: list[Complex]
    joiners: list[Fixed]
    stop: Fixed


def linearise(tree: Sentence, language: str, spell: Callable[[Complex, list[Token]], None]) -> list[Token]:
    """The tokens of a sentence in a language, where `spell` appends those of a main clause and what belongs to it."""
    out: list[Token] = []
    for part, after in zip(tree.parts, (*tree.joiners, tree.stop), strict=True):
        spell(part, out)
        out += after.spell(language)
    text, sure, possible = out[0]
    capital = "İ" if language == "tr" and text[0] == "i" else text[0].upper()
    out[0] = (capital + text[1:], sure, possible)
    return out


def links(source: Sequence[Token], target: Sequence[Token]) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
    """The sure links, and the possible ones that are not sure: both sorted.

    Tokens that share a key are linked, surely if both carry the key for certain.
    """
    certain: dict[int, list[int]] = {}
    doubtful: dict[int, list[int]] = {}
    for j, (_, sure, possible) in enumerate(target):
        for found, keys in ((certain, sure), (doubtful, possible)):
            for key in keys:
                found.setdefault(key, []).append(j)
    strong: set[Link] = set()
    weak: set[Link] = set()
    for i, (_, sure, possible) in enumerate(source):
        for made, keys, found in ((strong, sure, certain), (weak, sure, doubtful), (weak, possible, certain)):
            made.update([(i, j) for key in keys for j in found.get(key, ())])
    return tuple(sorted(strong)), tuple(sorted(weak - strong))
