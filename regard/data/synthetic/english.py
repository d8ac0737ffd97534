"""The phrasebook's English: subject, verb, object, place, time; "do" in questions and under negation."""

from __future__ import annotations

from functools import cache

from regard.data.synthetic.lexicon import BE
from regard.data.synthetic.phrases import EURO
from regard.data.synthetic.syntax import FIRST, NP, PP, THIRD, Clause, Complex, Fixed, Key, Sentence, Token, linearise

OBJECT_FORMS = {"I": "me", "you": "you", "he": "him", "she": "her", "we": "us", "they": "them"}
DOUBLED = frozenset(("swim", "run", "sit", "stop", "begin", "travel"))
MODALS = frozenset(("can", "could", "must", "should"))
PERFECTS = {"perf": ("has", "have"), "pluperf": ("had", "had")}
FULL_MODALS = {"want": ("wants", "want"), "wanted": ("wanted", "wanted"), "had": ("had", "had")}


@cache
def third_person(base: str) -> str:
    """The form with -s."""
    if base.endswith(("s", "sh", "ch", "x", "o")):
        return base + "es"
    return base[:-1] + "ies" if base[-1] == "y" and base[-2] not in "aeiou" else base + "s"


@cache
def progressive(base: str) -> str:
    """The form with -ing."""
    if base in DOUBLED:
        return base + base[-1] + "ing"
    return (base[:-1] if base[-1] == "e" and base[-2] != "e" else base) + "ing"


def _be(person: int, past: bool = False) -> str:
    if past:
        return "was" if person in (FIRST, THIRD) else "were"
    return {FIRST: "am", THIRD: "is"}.get(person, "are")


def sentence(tree: Sentence) -> list[Token]:
    """The tokens of a sentence."""
    return linearise(tree, "en", _complex)


def _complex(part: Complex, out: list[Token]) -> None:
    other, main = part.subordinate, part.main
    if other is not None and part.conjunction is not None:
        link = (part.conjunction.english, (other.key + Key.LINKER,), ())
        if part.first:
            out.append(link)
            _clause(other, out)
            out.append((",", (other.key + Key.COMMA,), ()))
    _adjuncts(out, part.polite)
    if part.kind == "suggestion":
        out += [("let", (main.key + Key.LINKER,), ()), ("us", (main.key + Key.MODAL,), ())]
    _clause(main, out)
    if other is not None and part.conjunction is not None and not part.first:
        out.append(link)
        _clause(other, out)


def _adjuncts(out: list[Token], *items: Fixed | PP | None) -> None:
    """Append the tokens of those that there are."""
    for item in items:
        if isinstance(item, Fixed):
            out += item.spell("en")
        elif item is not None:
            out += [(word, (item.key,), ()) for word in item.preposition.english.split()]
            np(item.np, out)


def np(phrase: NP, out: list[Token], subject: bool = False) -> None:
    """Append a noun phrase."""
    key = phrase.key
    if phrase.pair is not None:
        np(phrase.pair[0], out, subject)
        out.append(("and", (key,), ()))
        np(phrase.pair[1], out, subject)
    elif phrase.kind == "pronoun":
        out.append((phrase.pronoun if subject else OBJECT_FORMS[phrase.pronoun], (key,), ()))
    elif phrase.name is not None:
        out.append((phrase.name.english, (key,), ()))
    elif phrase.noun is None:
        out.append((phrase.kind, (key,), ()))
    else:
        _noun_phrase(phrase, out)


def _noun_phrase(phrase: NP, out: list[Token]) -> None:
    key, noun = phrase.key, phrase.noun
    assert noun is not None
    head = noun.plural if phrase.plural else noun.singular
    if phrase.number is not None:
        out += phrase.number.spell("en")
    elif phrase.determiner == "all":
        out += [("all", (key + Key.DETERMINER,), ()), ("the", (key + Key.DETERMINER2,), ())]
    elif phrase.determiner == "a":
        following = phrase.adjectives[0][1].english if phrase.adjectives else head
        out.append(("an" if following[0] in "aeiou" else "a", (key + Key.DETERMINER,), ()))
    elif phrase.determiner:
        out += [(word, (key + Key.DETERMINER,), ()) for word in phrase.determiner.split()]
    out += [(adjective.english, (own,), ()) for own, adjective in phrase.adjectives]
    out.append((head, (key + Key.HEAD,), ()))
    if phrase.of is not None:
        out.append(("of", (phrase.of.key + Key.OF,), ()))
        np(phrase.of, out)
    elif phrase.where is not None:
        _adjuncts(out, phrase.where)
    elif phrase.relative is not None:
        _relative(phrase.relative, noun.human, out)


def _relative(clause: Clause, human: bool, out: list[Token]) -> None:
    key = clause.key
    fronted = {"recipient": "to", "place": "in"}.get(clause.gap, "")
    if clause.gap == "object":
        fronted = clause.verb.preposition
    if fronted:
        out.append((fronted, (key + Key.GOVERNED,), ()))
    person = "who" if clause.gap == "subject" else "whom"
    marker = person if human else "which" if fronted else "that"
    out.append((marker, (key + Key.LINKER,), ()))
    _clause(clause, out)


def _clause(clause: Clause, out: list[Token]) -> None:
    inverted = clause.question not in ("", "subject")
    if clause.question in ("where", "when", "why"):
        out.append((clause.question, (clause.key + Key.LINKER,), ()))
    elif clause.question == "object" and clause.object is not None:
        np(clause.object, out)
    _adjuncts(out, clause.front)
    operator, rest = _group(clause, inverted)
    if inverted and operator is not None:
        out.append(operator)
        operator = None
    if clause.subject is not None:
        np(clause.subject, out, subject=True)
    if operator is not None:
        out.append(operator)
    if clause.negated and clause.tense != "can":
        out.append(("not", (clause.key + Key.NEGATION,), ()))
    _adjuncts(out, clause.frequency)
    out += rest
    _arguments(clause, out)
    if clause.also is not None:
        out.append(("and", (clause.also.key + Key.AND,), ()))
        out.append(_lexical(clause.also))
        _arguments(clause.also, out)


def _arguments(clause: Clause, out: list[Token]) -> None:
    """All that follows the verb."""
    key, verb = clause.key, clause.verb
    if verb.particle:
        out.append((verb.particle, (key + Key.PARTICLE,), (key + Key.VERB,)))
    if clause.object is not None and clause.question != "object":
        if verb.preposition:
            out.append((verb.preposition, (key + Key.GOVERNED,), ()))
        np(clause.object, out)
    if clause.recipient is not None:
        out.append(("to", (clause.recipient.key + Key.OF,), ()))
        np(clause.recipient, out)
    _adjuncts(out, clause.complement)
    if clause.predicate is not None:
        _predicate(clause, out)
    if clause.price is not None:
        out += clause.price.spell("en")
        out.append((EURO[0], (key + Key.PREDICATE,), ()))
    if clause.agent is not None:
        out.append(("by", (clause.agent.key + Key.OF,), ()))
        np(clause.agent, out)
    _adjuncts(out, clause.manner, clause.company, clause.late_place, clause.late_time)
    if clause.embedded is not None:
        out.append((clause.embedding, (clause.embedded.key + Key.LINKER,), ()))
        _clause(clause.embedded, out)


def _predicate(clause: Clause, out: list[Token]) -> None:
    adjective, key = clause.predicate, clause.key
    assert adjective is not None
    if clause.than is None:
        out.append((adjective.english, (key + Key.PREDICATE,), ()))
        return
    if " " in adjective.comparative:
        out += [("more", (key + Key.MORE,), ()), (adjective.english, (key + Key.PREDICATE,), ())]
    else:
        out.append((adjective.comparative, (key + Key.PREDICATE, key + Key.MORE), ()))
    out.append(("than", (key + Key.THAN,), ()))
    np(clause.than, out)


def _group(clause: Clause, inverted: bool) -> tuple[Token | None, list[Token]]:
    """The operator, which stands before the subject of a question, and the rest of the verb."""
    key, tense, person = clause.key, clause.tense, clause.person
    third = person == THIRD
    auxiliary, main = (key + Key.AUXILIARY,), _lexical(clause)
    if tense == "can" and clause.negated:
        return ("cannot", (key + Key.MODAL, key + Key.NEGATION), ()), [*_passive(clause, "be"), main]
    if tense in MODALS:
        return (tense, (key + Key.MODAL,), ()), [*_passive(clause, "be"), main]
    if tense == "fut":
        return ("will", auxiliary, ()), [*_passive(clause, "be"), main]
    if tense in PERFECTS:
        return (PERFECTS[tense][not third], auxiliary, ()), [*_passive(clause, "been"), main]
    if tense == "prog":
        return (_be(person), auxiliary, ()), [main]
    if clause.verb is BE:
        return (_be(person, tense == "past"), (key + Key.VERB,), ()), []
    if clause.passive:
        return (_be(person, tense == "past"), (key + Key.PASSIVE,), ()), [main]
    ask = inverted or clause.negated
    if tense in FULL_MODALS:
        form = "want" if ask else FULL_MODALS[tense][not third]
        rest = [(form, (key + Key.MODAL,), ()), ("to", (key + Key.TO,), ()), main]
        return (_do(clause), rest) if ask else (None, rest)
    if ask:
        return _do(clause), [(clause.verb.english[0], main[1], main[2])]
    return None, [main]


def _do(clause: Clause) -> Token:
    word = "did" if clause.tense in ("past", "wanted") else "does" if clause.person == THIRD else "do"
    return ("do" if clause.tense == "imp" else word, (clause.key + Key.AUXILIARY,), ())


def _passive(clause: Clause, form: str) -> list[Token]:
    return [(form, (clause.key + Key.PASSIVE,), ())] if clause.passive else []


def _lexical(clause: Clause) -> Token:
    """The verb itself in the form its tense asks for; a second verb phrase has nothing else."""
    key, tense = clause.key, clause.tense
    base, past, participle = clause.verb.english
    if clause.passive or tense in PERFECTS:
        form = participle
    elif tense == "prog":
        form = progressive(base)
    elif tense == "past":
        form = past
    elif tense == "pres" and clause.person == THIRD:
        form = third_person(base)
    else:
        form = base
    possible = (key + Key.PARTICLE,) if clause.verb.particle else ()
    sure = (key + Key.VERB,) if clause.verb.particle else (key + Key.VERB, key + Key.PARTICLE)
    return (form, sure, possible)
