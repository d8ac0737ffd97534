"""The phrasebook's English: subject, verb, object, place, time; "do" in questions and under negation."""

from __future__ import annotations

from functools import cache

from regard.data.synthetic.lexicon import BE, Adjective, Noun
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
    subordinate: list[Token] = []
    if other is not None and part.conjunction is not None:
        subordinate = [(part.conjunction.english, (other.key + Key.LINKER,), ()), *_clause(other)]
        if part.first:
            out += [*subordinate, (",", (other.key + Key.COMMA,), ())]
    out += _adjuncts(part.polite)
    if part.kind == "suggestion":
        out += [("let", (main.key + Key.LINKER,), ()), ("us", (main.key + Key.MODAL,), ())]
    out += _clause(main)
    if not part.first:
        out += subordinate


def _adjuncts(*items: Fixed | PP | None) -> list[Token]:
    """The tokens of those that there are."""
    out: list[Token] = []
    for item in items:
        if isinstance(item, Fixed):
            out += item.spell("en")
        elif item is not None:
            out += [(word, (item.key,), ()) for word in item.preposition.english.split()]
            out += _np(item.np)
    return out


def _np(phrase: NP | None, before: str = "", key: int = 0, subject: bool = False) -> list[Token]:
    """A noun phrase, if there is one; with `before`, after a word of this key."""
    if phrase is None:
        return []
    if before:
        return [(before, (key,), ()), *_np(phrase)]
    if phrase.pair is not None:
        first, second = (_np(half, subject=subject) for half in phrase.pair)
        return [*first, ("and", (phrase.key,), ()), *second]
    if phrase.noun is not None:
        return _noun_phrase(phrase, phrase.noun)
    pronoun = phrase.pronoun if subject else OBJECT_FORMS.get(phrase.pronoun, "")
    return [(phrase.name.english if phrase.name is not None else pronoun or phrase.kind, (phrase.key,), ())]


def _noun_phrase(phrase: NP, noun: Noun) -> list[Token]:
    key = phrase.key
    head = noun.plural if phrase.plural else noun.singular
    out = _adjuncts(phrase.number)
    if phrase.determiner == "all":
        out = [("all", (key + Key.DETERMINER,), ()), ("the", (key + Key.DETERMINER2,), ())]
    elif phrase.determiner == "a":
        following = phrase.adjectives[0][1].english if phrase.adjectives else head
        out = [("an" if following[0] in "aeiou" else "a", (key + Key.DETERMINER,), ())]
    elif not out:
        out = [(word, (key + Key.DETERMINER,), ()) for word in phrase.determiner.split()]
    out += [(adjective.english, (own,), ()) for own, adjective in phrase.adjectives]
    out.append((head, (key + Key.HEAD,), ()))
    if phrase.of is not None:
        return out + _np(phrase.of, "of", phrase.of.key + Key.OF)
    if phrase.where is not None:
        return out + _adjuncts(phrase.where)
    return out + _relative(phrase.relative, noun.human) if phrase.relative is not None else out


def _relative(clause: Clause, human: bool) -> list[Token]:
    key = clause.key
    fronted = {"recipient": "to", "place": "in", "object": clause.verb.preposition}.get(clause.gap, "")
    person = "who" if clause.gap == "subject" else "whom"
    marker = person if human else "which" if fronted else "that"
    before: list[Token] = [(fronted, (key + Key.GOVERNED,), ())] if fronted else []
    return [*before, (marker, (key + Key.LINKER,), ()), *_clause(clause)]


def _clause(clause: Clause) -> list[Token]:
    inverted = clause.question not in ("", "subject")
    out: list[Token] = []
    if clause.question in ("where", "when", "why"):
        out.append((clause.question, (clause.key + Key.LINKER,), ()))
    elif clause.question == "object":
        out += _np(clause.object)
    operator, rest = _group(clause, inverted)
    subject = _np(clause.subject, subject=True)
    out += [*_adjuncts(clause.front), *(operator + subject if inverted else subject + operator)]
    if clause.negated and clause.tense != "can":
        out.append(("not", (clause.key + Key.NEGATION,), ()))
    out += [*_adjuncts(clause.frequency), *rest, *_arguments(clause)]
    if clause.also is not None:
        out += [("and", (clause.also.key + Key.AND,), ()), _lexical(clause.also), *_arguments(clause.also)]
    return out


def _arguments(clause: Clause) -> list[Token]:
    """All that follows the verb."""
    key, verb = clause.key, clause.verb
    out: list[Token] = [(verb.particle, (key + Key.PARTICLE,), (key + Key.VERB,))] if verb.particle else []
    if clause.question != "object":
        out += _np(clause.object, verb.preposition, key + Key.GOVERNED)
    if clause.recipient is not None:
        out += _np(clause.recipient, "to", clause.recipient.key + Key.OF)
    out += _adjuncts(clause.complement)
    if clause.predicate is not None:
        out += _predicate(clause, clause.predicate)
    if clause.price is not None:
        out += [*clause.price.spell("en"), (EURO[0], (key + Key.PREDICATE,), ())]
    if clause.agent is not None:
        out += _np(clause.agent, "by", clause.agent.key + Key.OF)
    out += _adjuncts(clause.manner, clause.company, clause.place, clause.time)
    if clause.embedded is not None:
        out += [(clause.embedding, (clause.embedded.key + Key.LINKER,), ()), *_clause(clause.embedded)]
    return out


def _predicate(clause: Clause, adjective: Adjective) -> list[Token]:
    key = clause.key
    plain: Token = (adjective.english, (key + Key.PREDICATE,), ())
    if clause.than is None:
        return [plain]
    more: list[Token] = [("more", (key + Key.MORE,), ()), plain]
    if " " not in adjective.comparative:
        more = [(adjective.comparative, (key + Key.PREDICATE, key + Key.MORE), ())]
    return more + _np(clause.than, "than", key + Key.THAN)


def _group(clause: Clause, inverted: bool) -> tuple[list[Token], list[Token]]:
    """The operator, if any, which stands before the subject of a question, and the rest of the verb."""
    key, tense, person = clause.key, clause.tense, clause.person
    third = person == THIRD
    auxiliary, main = (key + Key.AUXILIARY,), _lexical(clause)
    passive = "been" if tense in PERFECTS else "be"
    rest: list[Token] = [(passive, (key + Key.PASSIVE,), ()), main] if clause.passive else [main]
    if tense == "can" and clause.negated:
        return [("cannot", (key + Key.MODAL, key + Key.NEGATION), ())], rest
    if tense in MODALS:
        return [(tense, (key + Key.MODAL,), ())], rest
    if tense == "fut":
        return [("will", auxiliary, ())], rest
    if tense in PERFECTS:
        return [(PERFECTS[tense][not third], auxiliary, ())], rest
    if tense == "prog":
        return [(_be(person), auxiliary, ())], [main]
    if clause.verb is BE:
        return [(_be(person, tense == "past"), (key + Key.VERB,), ())], []
    if clause.passive:
        return [(_be(person, tense == "past"), (key + Key.PASSIVE,), ())], [main]
    ask = inverted or clause.negated
    did = "did" if tense in ("past", "wanted") else "does" if third and tense != "imp" else "do"
    operator: list[Token] = [(did, auxiliary, ())] if ask else []
    if tense in FULL_MODALS:
        form = "want" if ask else FULL_MODALS[tense][not third]
        return operator, [(form, (key + Key.MODAL,), ()), ("to", (key + Key.TO,), ()), main]
    return operator, [(clause.verb.english[0], main[1], main[2])] if ask else [main]


def _lexical(clause: Clause) -> Token:
    """The verb itself in the form its tense asks for; a second verb phrase has nothing else."""
    key, tense = clause.key, clause.tense
    base, past, participle = clause.verb.english
    forms = {"prog": progressive(base), "past": past, "pres": third_person(base) if clause.person == THIRD else base}
    form = participle if clause.passive or tense in PERFECTS else forms.get(tense, base)
    possible = (key + Key.PARTICLE,) if clause.verb.particle else ()
    sure = (key + Key.VERB,) if clause.verb.particle else (key + Key.VERB, key + Key.PARTICLE)
    return (form, sure, possible)
