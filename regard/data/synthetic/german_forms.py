"""German inflection: articles, adjectives, pronouns and verbs."""

from __future__ import annotations

from functools import cache

from regard.data.synthetic.lexicon import Verb
from regard.data.synthetic.syntax import FIRST, SECOND, THIRD
from regard.data.synthetic.tables import forms, rows

NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)
PLURAL = 3  # the gender of plurals, after masculine, feminine and neuter

ENDINGS = forms("german_endings")  # by case, then gender
DEFINITE, STRONG_ADJECTIVE, WEAK_ADJECTIVE = (ENDINGS[k] for k in ("definite", "strong_adjective", "weak_adjective"))
# Stem, its endings, and the endings of the adjectives after it.
DETERMINERS = {
    name: (stem, ENDINGS[own], ENDINGS[adjectives])
    for name, ((stem, own, adjectives),) in forms("german_determiners").items()
}
PRONOUNS = {word: cases for word, (cases,) in forms("german_pronouns").items()}
CONTRACTIONS = dict(rows("german_contractions"))
IRREGULAR = forms("german_irregular")  # present and past: I, you, he, and the plural


def auxiliary(infinitive: str, person: int, past: bool = False) -> str:
    """A form of an auxiliary or modal verb."""
    return IRREGULAR[infinitive][past][min(person, 3)]


@cache
def finite(verb: Verb, person: int, past: bool) -> str:
    """The present or the preterite, without a separable prefix."""
    infinitive, third, preterite, _ = verb.german
    if infinitive in IRREGULAR:
        return auxiliary(infinitive, person, past)
    if past and person in (FIRST, THIRD):
        return preterite
    if past and person == SECOND:
        return preterite + ("est" if preterite[-1] in "dtsß" else "st")
    if past:
        return preterite + ("n" if preterite[-1] == "e" else "en")
    if person == FIRST:
        return _e_form(infinitive)
    if person == SECOND:
        base = third[:-1]
        return base + ("t" if base[-1] in "sßz" else "st")
    return third if person == THIRD else infinitive


def _e_form(infinitive: str) -> str:
    """The stem with -e: "sehe", "lächle"."""
    if infinitive.endswith("eln"):
        return infinitive[:-3] + "le"
    return infinitive[:-1] if infinitive.endswith("en") else infinitive[:-1] + "e"


@cache
def imperative(verb: Verb) -> str:
    """The familiar imperative: "sieh", "warte", "komm"."""
    infinitive, third, *_ = verb.german
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    if "i" in third and "i" not in stem:
        return third[:-1]
    return _e_form(infinitive) if stem[-1] in "dt" or third.endswith("et") or infinitive[-2] in "lr" else stem
