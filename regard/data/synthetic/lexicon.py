"""The words of the phrasebook in English, German and Turkish, from `phrasebook.yaml`, and the classes that hold them.

A capital letter is a semantic class, so that people sleep and tables do not: P person, A animal, T portable thing,
C clothing, M machine, X text, W what is watched, F furniture, O what opens, V vehicle, E food, K what is cooked,
R what is sweet, D drink, L place one is in, J part of a building, B building, Q other structure, Z event, N what is
told, G language; and S, U, H: one can be on, under, or behind and beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from regard.data.synthetic.tables import rows
from regard.errors import require

Locale = require("babel").Locale

GENDERS = {"m": 0, "w": 0, "f": 1, "n": 2}


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun; `german` holds nominative, accusative, dative, genitive, first of the singular, then of the plural."""

    classes: str
    singular: str
    plural: str
    mass: bool
    gender: int
    german: tuple[str, ...]
    to: str  # the German preposition of "to this place"
    turkish: str
    soft: str  # the Turkish stem before a vowel, where it differs

    @property
    def human(self) -> bool:
        return "P" in self.classes


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A proper name: a person or a country."""

    english: str
    german: str
    turkish: str


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective with its comparative; `stem` is what German endings are added to."""

    classes: str
    english: str
    comparative: str  # empty where one hardly compares: colours, illness
    german: str
    stem: str
    german_comparative: str
    turkish: str
    passing: bool  # true of someone today, not always
    opposite: str  # the same for adjectives that exclude each other


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb in one of its frames: which arguments it takes, and how each language marks them."""

    frame: str
    subjects: str
    objects: str
    english: tuple[str, str, str]  # base, past, participle
    german: tuple[str, str, str, str]  # infinitive, third person singular, past, participle
    turkish: str
    particle: str = ""
    preposition: str = ""
    perfect: str = "haben"
    prefix: str = ""
    german_case: int = 1  # 1 accusative, 2 dative
    german_preposition: str = ""
    light: str = ""  # the noun of a Turkish light verb: "yardım" of "yardım et-"
    turkish_case: str = "acc"
    stative: bool = True  # no progressive; Turkish uses -iyor for its simple present
    lasting: bool = False  # and -iyordu for its past: "knew" is "biliyordu"
    strong: bool = False  # Turkish marks even indefinite objects with the accusative
    passive: bool = False
    calm: bool = False  # hardly done quickly


@dataclass(frozen=True, slots=True, eq=False)
class Preposition:
    """A preposition; in Turkish a case ending or a postposition that governs the case before it."""

    english: str
    german: str
    german_case: int
    turkish_case: str
    turkish: str
    objects: str = ""

    @property
    def words(self) -> int:
        return 1 + self.english.count(" ")


@dataclass(frozen=True, slots=True, eq=False)
class Conjunction:
    """A subordinating conjunction and the tenses it joins: pairs of (main, subordinate)."""

    english: str
    german: str
    turkish: str
    tenses: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


def _noun(english: str, german: str, turkish: str) -> Noun:
    classes, one, *many = english.split()
    kind, singular, genitive, plural, *to = german.split()
    genitive = singular if genitive == "-" else genitive
    oblique = genitive if kind == "w" else singular
    dative = plural if plural[-1] in "ns" else plural + "n"
    forms = (singular, oblique, oblique, genitive, plural, plural, dative, plural)
    stem, *soft = turkish.split()
    many = many or [one + "s"]
    return Noun(classes, one, many[0], many == ["-"], GENDERS[kind], forms, "".join(to), stem, "".join(soft) or stem)


def _adjective(english: str, german: str, turkish: str) -> Adjective:
    classes, word, comparative = english.split()
    base, *stem, more = german.split()
    opposite = next((row for (row,) in rows("opposites") if word in row.split()), word)
    comparative = comparative.replace("_", " ").strip("-")
    return Adjective(classes, word, comparative, base, "".join(stem) or base, more, turkish, "t" in classes, opposite)


def _verb(english: str, german: str, turkish: str, frame: str, flags: str) -> Verb:
    base, past, participle, *rest = english.split()
    infinitive, third, preterite, german_participle, perfect, *governed = german.split()
    prefix, _, bare = infinitive.rpartition("-")
    turkish, _, turkish_case = turkish.partition(" =")
    light, _, stem = turkish.rpartition(" ")
    kind, subjects, *objects = frame.split(":")
    return Verb(
        kind,
        subjects,
        "".join(objects),
        (base, past, participle),
        (bare, third, preterite, german_participle),
        stem,
        particle="".join(word[1:] for word in rest if word[0] == "+"),
        preposition="".join(word[1:] for word in rest if word[0] == "~"),
        perfect={"h": "haben", "s": "sein"}[perfect],
        prefix=prefix,
        german_case=2 if "dat" in governed else 1,
        german_preposition="".join(word for word in governed if word not in ("dat", "acc")),
        light=light,
        turkish_case=turkish_case or "acc",
        stative="s" in flags,
        lasting="k" in flags,
        strong="S" in flags,
        passive="p" in flags and kind == "object",
        calm="c" in flags,
    )


def _preposition(english: str, german: str, turkish: str, objects: str) -> Preposition:
    word, case = german.split()
    turkish_case, *postposition = turkish.split()
    return Preposition(english, word, int(case), turkish_case, "".join(postposition), objects)


def _cldr(names: str, code: str) -> list[str]:
    """What CLDR calls a language or a territory in English, German and Turkish."""
    return [getattr(Locale(locale), names)[code] for locale in ("en", "de", "tr")]


_LANGUAGES = (_cldr("languages", code) for (code,) in rows("languages"))
NOUN_LIST = (
    *(_noun(*row) for row in rows("nouns")),
    *(Noun("G", en, en, True, GENDERS["n"], (de,) * 8, "", tr, tr) for en, de, tr in _LANGUAGES),
)
ADJECTIVE_LIST = tuple(_adjective(*row) for row in rows("adjectives"))
VERB_LIST = tuple(
    _verb(english, german, turkish, frame, flags)
    for english, german, turkish, frames, flags in rows("verbs")
    for frame in frames.split()
)
PEOPLE = tuple(Name(name, name, name) for (name,) in rows("names"))
COUNTRIES = tuple(Name(*_cldr("territories", code)) for (code,) in rows("territories"))

BE = Verb("be", "PATCMXVFOLEWUQZD", "", ("be", "was", "been"), ("sein", "ist", "war", "gewesen"), "ol")
COST = Verb("cost", "TCMXFVE", "", ("cost", "cost", "cost"), ("kosten", "kostet", "kostete", "gekostet"), "ol")

PLACES = tuple(_preposition(*row) for row in rows("places"))
OCCASIONS = tuple(_preposition(*row) for row in rows("occasions"))
BETWEEN, TO, INTO, TO_COUNTRY, WITH, WITHOUT, FOR = (_preposition(*row) for row in rows("prepositions"))
IN, BESIDE = PLACES[0], (PLACES[0], *PLACES[3:])

PAST, NOW, LATER = ("past", "could", "wanted", "had"), ("pres", "prog", "can", "must", "want", "perf"), ("fut",)
REASONS = ((PAST, PAST), (NOW, ("pres", "prog", "perf", "past", "can")), (LATER, ("fut", "pres", "prog", "want")))
CONJUNCTIONS = (
    Conjunction("because", "weil", "için", REASONS),
    Conjunction("although", "obwohl", "halde", REASONS),
    Conjunction("when", "wenn", "when", ((PAST, ("past",)), (LATER, ("pres",)), (("pres",), ("pres",)))),
    Conjunction("if", "wenn", "if", ((("fut", "can", "must", "should", "pres"), ("pres",)),)),
    Conjunction("before", "bevor", "önce", ((PAST, ("past",)), (LATER, ("pres",)))),
    Conjunction("after", "nachdem", "sonra", ((PAST, ("pluperf",)),)),
    Conjunction("while", "während", "while", ((PAST, ("past",)), (("prog",), ("prog",)))),
)
TIMES, WHEN_OR_IF = CONJUNCTIONS[2:], CONJUNCTIONS[2:4]


@cache
def nouns(classes: str) -> tuple[Noun, ...]:
    """The nouns in any of these classes."""
    return tuple(noun for noun in NOUN_LIST if any(letter in noun.classes for letter in classes))


@cache
def broad(classes: str) -> tuple[str, ...]:
    """Those of these classes that hold several nouns."""
    return tuple(letter for letter in classes if len(nouns(letter)) > 1)


@cache
def adjectives(noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that can be said of a noun; what cannot be counted is neither big nor small."""
    return tuple(adj for adj in adjectives_of(noun.classes) if not (noun.mass and "c" in adj.classes))


@cache
def adjectives_of(classes: str) -> tuple[Adjective, ...]:
    """The adjectives for any of these classes."""
    return tuple(adjective for adjective in ADJECTIVE_LIST if any(c in adjective.classes for c in classes))


@cache
def verbs(frame: str, subjects: str = "", objects: str = "") -> tuple[Verb, ...]:
    """The verbs with this frame that can be said of some of `subjects` and of some of `objects` (empty: any)."""

    def fit(wanted: str, classes: str) -> bool:
        return not wanted or any(letter in classes for letter in wanted)

    found = (verb for verb in VERB_LIST if verb.frame == frame and fit(subjects, verb.subjects))
    return tuple(verb for verb in found if fit(objects, verb.objects))
