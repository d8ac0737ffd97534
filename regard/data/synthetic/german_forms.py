"""German inflection: articles, adjectives, pronouns and verbs."""

from __future__ import annotations

from functools import cache

from regard.data.synthetic.lexicon import Verb
from regard.data.synthetic.syntax import FIRST, SECOND, THIRD

NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)
PLURAL = 3  # the gender of plurals, after masculine, feminine and neuter

# Endings by case, then gender.
DEFINITE = (("der", "die", "das", "die"), ("den", "die", "das", "die"),
            ("dem", "der", "dem", "den"), ("des", "der", "des", "der"))  # fmt: skip
STRONG = (("er", "e", "es", "e"), ("en", "e", "es", "e"), ("em", "er", "em", "en"), ("es", "er", "es", "er"))
INDEFINITE = (("", "e", "", "e"), ("en", "e", "", "e"), ("em", "er", "em", "en"), ("es", "er", "es", "er"))
WEAK_ADJECTIVE = (("e", "e", "e", "en"), ("en", "e", "e", "en"), ("en",) * 4, ("en",) * 4)
MIXED_ADJECTIVE = (("er", "e", "es", "en"), ("en", "e", "es", "en"), ("en",) * 4, ("en",) * 4)
STRONG_ADJECTIVE = (*STRONG[:3], ("en", "er", "en", "er"))

# Determiners: stem, endings, and the endings of the adjectives after them.
DETERMINERS = {
    "this": ("dies", STRONG, WEAK_ADJECTIVE),
    "these": ("dies", STRONG, WEAK_ADJECTIVE),
    "every": ("jed", STRONG, WEAK_ADJECTIVE),
    "all": ("all", STRONG, WEAK_ADJECTIVE),
    "which": ("welch", STRONG, WEAK_ADJECTIVE),
    "some": ("einig", STRONG, STRONG_ADJECTIVE),
    "many": ("viel", STRONG, STRONG_ADJECTIVE),
    "how many": ("viel", STRONG, STRONG_ADJECTIVE),
    "a": ("ein", INDEFINITE, MIXED_ADJECTIVE),
    "not a": ("kein", INDEFINITE, MIXED_ADJECTIVE),
    "my": ("mein", INDEFINITE, MIXED_ADJECTIVE),
    "your": ("dein", INDEFINITE, MIXED_ADJECTIVE),
    "his": ("sein", INDEFINITE, MIXED_ADJECTIVE),
    "her": ("ihr", INDEFINITE, MIXED_ADJECTIVE),
    "our": ("unser", INDEFINITE, MIXED_ADJECTIVE),
    "their": ("ihr", INDEFINITE, MIXED_ADJECTIVE),
}
PRONOUNS = {
    "I": ("ich", "mich", "mir"),
    "you": ("du", "dich", "dir"),
    "he": ("er", "ihn", "ihm"),
    "she": ("sie", "sie", "ihr"),
    "we": ("wir", "uns", "uns"),
    "they": ("sie", "sie", "ihnen"),
    "who": ("wer", "wen", "wem"),
    "what": ("was", "was", "was"),
}
CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins", ("an", "das"): "ans", ("zu", "dem"): "zum",
                ("zu", "der"): "zur", ("von", "dem"): "vom"}  # fmt: skip

# Present and past of the verbs that have forms of their own: I, you, he, and the plural.
IRREGULAR = {
    "sein": (("bin", "bist", "ist", "sind"), ("war", "warst", "war", "waren")),
    "haben": (("habe", "hast", "hat", "haben"), ("hatte", "hattest", "hatte", "hatten")),
    "werden": (("werde", "wirst", "wird", "werden"), ("wurde", "wurdest", "wurde", "wurden")),
    "können": (("kann", "kannst", "kann", "können"), ("konnte", "konntest", "konnte", "konnten")),
    "müssen": (("muss", "musst", "muss", "müssen"), ("musste", "musstest", "musste", "mussten")),
    "wollen": (("will", "willst", "will", "wollen"), ("wollte", "wolltest", "wollte", "wollten")),
    "sollen": (("soll", "sollst", "soll", "sollen"), ("sollte", "solltest", "sollte", "sollten")),
    "mögen": (("mag", "magst", "mag", "mögen"), ("mochte", "mochtest", "mochte", "mochten")),
    "wissen": (("weiß", "weißt", "weiß", "wissen"), ("wusste", "wusstest", "wusste", "wussten")),
    "halten": (("halte", "hältst", "hält", "halten"), ("hielt", "hieltst", "hielt", "hielten")),
}


def relative_pronoun(case: int, gender: int) -> str:
    """The relative pronoun: the article, except in the dative plural."""
    return "denen" if case == DATIVE and gender == PLURAL else DEFINITE[case][gender]


def auxiliary(infinitive: str, person: int, past: bool = False) -> str:
    """A form of an auxiliary or modal verb."""
    return IRREGULAR[infinitive][past][min(person, 3)]


@cache
def finite(verb: Verb, person: int, past: bool) -> str:
    """The present or the preterite, without a separable prefix."""
    infinitive, third, preterite, _ = verb.german
    if infinitive in IRREGULAR:
        return auxiliary(infinitive, person, past)
    if past:
        return _preterite(preterite, person)
    if person == FIRST:
        return _e_form(infinitive)
    if person == SECOND:
        base = third[:-1]
        return base + ("t" if base[-1] in "sßz" else "st")
    return third if person == THIRD else infinitive


def _preterite(form: str, person: int) -> str:
    if person == SECOND:
        return form + ("est" if form[-1] in "dtsß" else "st")
    if person in (FIRST, THIRD):
        return form
    return form + ("n" if form[-1] == "e" else "en")


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
