"""The Turkish verb: one word for what English says with auxiliaries, pronouns and conjunctions.

A clause takes one of these forms: main, question, command, suggestion; `-ip`, the first of two verb phrases; the
participles `subject` and `other` of relative clauses; `that`, `whether` and `to` with the case the main verb asks for;
and one for each conjunction: için, halde, when, if, önce, sonra, while.
"""

from __future__ import annotations

from functools import cache

from regard.data.synthetic import phrases
from regard.data.synthetic.lexicon import BE, COST
from regard.data.synthetic.suffixes import HARMONY, aorist, attach, last_vowel, stem_of, verb_form
from regard.data.synthetic.syntax import PLURAL, THEY, THIRD, Clause, Key, Keys, Token

# Personal endings by person (I, you, he, we, they, plural noun): of most tenses, of -DI and -sA, of -DIk and -AcAk.
PERSONS = ("(y)Im", "sIn", "", "(y)Iz", "lAr", "")
PAST_PERSONS = ("m", "n", "", "k", "lAr", "")
ASKED_PERSONS = ("yIm", "sIn", "", "yIz", "", "")
NOMINAL_PERSONS = ("Im", "In", "I", "ImIz", "", "I")
NOMINAL_CASES = {"nom": ("", ""), "acc": ("I", "nI"), "dat": ("A", "nA"), "loc": ("DA", "nDA")}
ENDINGS = {"-ip": "(y)Ip", "subject": "(y)An", "önce": "mAdAn", "sonra": "DIktAn", "suggestion": "(y)AlIm"}
INFINITIVES = {"nom": "mAk", "acc": "mAyI", "dat": "mAyA"}
POSTPOSED = ("için", "halde")


def denied(clause: Clause) -> bool:
    """Whether the verb is negative, as it is after "never" too."""
    return clause.negated or (clause.frequency is not None and clause.frequency.phrase is phrases.NEVER)


def copular(clause: Clause) -> bool:
    """Whether the clause has no verb of its own but endings on its predicate: "old", "forty euros", "must"."""
    return clause.verb in (BE, COST) or clause.tense in ("must", "had")


@cache
def nominal(stem: str, future: bool, person: int, case: str) -> str:
    """The verb as a noun with its subject as possessor: "uyuduğunu", "uyuyacağımı", "uyuduklarında"."""
    base = "(y)AcA" if future else "DI"
    ending = base + ("klArI" if person == THEY else "ğ" + NOMINAL_PERSONS[person])
    third = person in (THIRD, THEY, PLURAL)
    return verb_form(stem, ending + NOMINAL_CASES[case][third])


@cache
def _finite(stem: str, tense: str, negated: bool, person: int) -> str:
    """A finite form; the aorist stands for the simple present."""
    if tense == "past":
        return verb_form(stem, "DI" + PAST_PERSONS[person])
    if tense == "fut":
        soft = person in (0, 3)
        return verb_form(stem, "(y)AcA" + ("ğ" + PERSONS[person][3:] if soft else "k" + PERSONS[person]))
    if tense == "should":
        return attach(verb_form(stem, "mAlI"), PERSONS[person])
    if tense == "prog":
        return verb_form(stem, "Iyor" + PERSONS[person].removeprefix("(y)"))
    if tense == "lasting":
        return verb_form(stem, "IyorlArDI" if person == THEY else "IyorDI" + PAST_PERSONS[person])
    if negated:
        return attach(stem, ("m", "zsIn", "z", "yIz", "zlAr", "z")[person])
    return verb_form(stem, "Ir" + PERSONS[person].removeprefix("(y)"))


@cache
def _asked(stem: str, tense: str, negated: bool, person: int) -> tuple[str, str]:
    """A finite form and the question particle, which takes the person except after -DI and -lAr."""
    if tense == "past":
        word = _finite(stem, tense, negated, person)
        return word, particle(word, "")
    if tense == "lasting":
        word = verb_form(stem, "IyorlAr" if person == THEY else "Iyor")
        return word, particle(word, "yDI" if person == THEY else "yDI" + PAST_PERSONS[person])
    word = _finite(stem, tense, negated, THEY if person == THEY else THIRD)
    return word, particle(word, ASKED_PERSONS[person])


def particle(word: str, ending: str) -> str:
    """The question particle in harmony with the word before it."""
    return attach("m" + HARMONY[last_vowel(word)][1], ending)


@cache
def _conditional(stem: str, stative: bool, negated: bool, person: int) -> str:
    base = verb_form(stem, "Iyor") if stative else stem + "z" if negated else aorist(stem)
    return attach(base, "lArsA" if person == THEY else "sA" + PAST_PERSONS[person])


def plain_tense(clause: Clause) -> str:
    """The Turkish tense: past, lasting (its like for states), fut, should, prog or pres (the aorist)."""
    tense = clause.tense
    if clause.verb.lasting and tense in ("past", "perf"):
        return "lasting"
    if tense in ("past", "perf", "could", "wanted"):
        return "past"
    if tense == "want" or (tense == "pres" and clause.verb.stative and not clause.passive):
        return "prog"
    return "pres" if tense == "can" else tense


def _spelt(stem: str, form: str, tense: str, negated: bool, person: int, case: str) -> tuple[str, ...]:
    """A verb in the form of its clause: one word, or two in questions and after "whether"."""
    if form == "main":
        return (_finite(stem, tense, negated, person),)
    if form == "question":
        return _asked(stem, tense, negated, person)
    if form == "if":
        return (_conditional(stem, tense == "prog", negated, person),)
    if form == "while":
        return (aorist(stem) + "ken",)
    if form == "whether":
        return verb_form(stem, "(y)Ip"), nominal(stem_of(stem, False, False, True), tense == "fut", person, case)
    if form in ("that", "other", "when", *POSTPOSED):
        return (nominal(stem, tense == "fut", person, case),)
    return (verb_form(stem, INFINITIVES[case] if form == "to" else ENDINGS.get(form, "")),)


def verb_tokens(clause: Clause, form: str, case: str, sure: Keys, possible: Keys) -> list[Token]:
    """The verb with its light noun; `sure` and `possible` are keys that its endings translate besides its own."""
    key, verb = clause.key, clause.verb
    own: Keys = (key + Key.VERB, key + Key.PARTICLE)
    out: list[Token] = [(word, own, ()) for word in verb.light.split()]
    negative = denied(clause)
    governed = (key + Key.GOVERNED,) if verb.preposition and verb.turkish_case not in ("ins", "about") else ()
    able = clause.tense in ("can", "could")
    if clause.tense in ("want", "wanted") and form != "-ip":
        infinitive = verb_form(stem_of(verb.turkish, clause.passive, False, False), "mAk")
        out.append((infinitive, own, (key + Key.TO, *governed)))
        governed = ()
        stem, own = stem_of("iste", False, False, negative), (key + Key.MODAL,)
    else:
        stem = stem_of(verb.turkish, clause.passive, able and form != "-ip", negative)
    modal = (key + Key.MODAL,) if able or clause.tense == "should" else ()
    no = (key + Key.NEGATION,) if clause.negated else ()
    never = (clause.frequency.key,) if negative and clause.frequency is not None else ()
    sure = (*own, *modal, *no, *sure)
    possible = (*possible, *never, *governed, key + Key.AUXILIARY, key + Key.PASSIVE)
    words = _spelt(stem, form, plain_tense(clause), negative, clause.person, case)
    if form == "question":
        return [*out, (words[0], sure, possible), (words[1], (), (key + Key.AUXILIARY,))]
    return out + [(word, sure, possible) for word in words]


def copula_tokens(clause: Clause, host: Token, form: str, case: str, sure: Keys, possible: Keys) -> list[Token]:
    """A predicate with the endings, or the forms of ol-, that make a clause of it."""
    key, person, past = clause.key, clause.person, clause.tense in ("past", "had")
    negative = denied(clause)
    no = (key + Key.NEGATION,) if clause.negated else ()
    if clause.frequency is not None and negative:
        possible = (*possible, clause.frequency.key)
    be = (*possible, key + Key.VERB, key + Key.AUXILIARY) if clause.verb in (BE, COST) else possible
    if form in ("main", "question", "if") and clause.tense != "fut":
        return _endings(host, form, person, past, negative, (sure, no, be))
    words = _spelt(stem_of("ol", False, False, negative), form, clause.tense, negative, person, case)
    own = (*sure, *no, key + Key.VERB) if clause.verb in (BE, COST) else (*sure, *no)
    possible = (*possible, key + Key.AUXILIARY)
    return [host, *((word, own, possible) for word in words)]


def _endings(host: Token, form: str, person: int, past: bool, negative: bool, keys: tuple[Keys, ...]) -> list[Token]:
    """The copula as an ending: on the predicate, on "değil", or on the question particle."""
    text, host_sure, host_possible = host
    sure, no, possible = keys
    tail = PERSONS[person]
    if form == "if" or past:
        tail = ("(y)sA" if form == "if" else "(y)DI") + PAST_PERSONS[person]
    if form == "question":
        if person == THEY and not past:
            text = attach(text, "lAr")
        ending = "y" + tail[3:] if past else ASKED_PERSONS[person]
        return [(text, (*host_sure, *sure), (*host_possible, *possible)), (particle(text, ending), (), possible)]
    if negative:
        return [host, (attach("değil", tail), (*no, *sure), possible)]
    return [(attach(text, tail), (*host_sure, *sure), (*host_possible, *possible))]
