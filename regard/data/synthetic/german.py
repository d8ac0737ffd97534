"""The phrasebook's German: verb second in main clauses, verb last in subordinate ones, and agreement throughout."""

from __future__ import annotations

from typing import NamedTuple

from regard.data.synthetic import german_forms as forms
from regard.data.synthetic.german_forms import DATIVE, GENITIVE, NOMINATIVE
from regard.data.synthetic.lexicon import Noun
from regard.data.synthetic.phrases import EURO
from regard.data.synthetic.syntax import NP, PP, Clause, Complex, Fixed, Key, Keys, Sentence, Token, linearise

SIMPLE = frozenset(("pres", "prog", "past"))
MODALS = {"can": ("können", False), "could": ("können", True), "must": ("müssen", False), "had": ("müssen", True),
          "want": ("wollen", False), "wanted": ("wollen", True), "should": ("sollen", True)}  # fmt: skip
DEFINITE = frozenset(("the", "this", "these", "my", "your", "his", "her", "our", "their"))
QUESTIONS = {"where": "wo", "when": "wann", "why": "warum"}
BARE_COMMA: Token = (",", (), ())


class Fields(NamedTuple):
    """A clause without its subject, in the terms of German grammar: what the topological fields hold."""

    finite: Token
    middle: list[Token]
    end: list[Token]
    after: list[Token]


def sentence(tree: Sentence) -> list[Token]:
    """The tokens of a sentence. Commas that meet are one: it closes a clause and opens the next."""
    out: list[Token] = []
    for token in linearise(tree, "de", _complex):
        if token[0] == "," and out and out[-1][0] == ",":
            out[-1] = (",", out[-1][1] + token[1], ())
        else:
            out.append(token)
    if out[-2][0] == ",":
        del out[-2]
    return out


def _complex(part: Complex, out: list[Token]) -> None:
    main, other = part.main, part.subordinate
    inverted = bool(out) and out[-1][0] == "deshalb"
    subordinate: list[Token] = []
    if other is not None and part.conjunction is not None:
        then = part.conjunction.turkish == "when" and other.tense == "past"
        word = "als" if then else part.conjunction.german
        subordinate = [(word, (other.key + Key.LINKER,), ()), *_verb_last(other)]
        if part.first:
            out += [*subordinate, (",", (other.key + Key.COMMA,), ())]
            inverted = True
    out += _adjuncts(part.polite)
    if part.kind == "command":
        fields = _fields(main, last=False)
        out += [fields.finite, *fields.middle, *fields.end, *fields.after]
    elif part.kind == "suggestion":
        fields = _fields(main, last=True)
        out += [("lass", (main.key + Key.LINKER,), ()), ("uns", (main.key + Key.MODAL,), ())]
        out += [*fields.middle, fields.finite, *fields.after]
    else:
        out += _verb_second(main, inverted)
    if subordinate and not part.first:
        out += [BARE_COMMA, *subordinate]


def _verb_second(clause: Clause, inverted: bool) -> list[Token]:
    """A main clause or a question; `inverted` says that the place before the verb is taken."""
    fields = _fields(clause, last=False)
    first: list[Token] = []
    if clause.question in QUESTIONS:
        first = [(QUESTIONS[clause.question], (clause.key + Key.LINKER,), ())]
    elif clause.question == "object":
        first = _np(clause.object, clause.verb.german_case)
    elif not inverted:
        first = _adjuncts(clause.front)
    subject = _np(clause.subject, NOMINATIVE)
    after_verb = bool(first) or inverted or clause.question == "yes"
    out = [*first, fields.finite, *subject] if after_verb else [*subject, fields.finite]
    out += [*fields.middle, *fields.end, *fields.after]
    if clause.also is not None:
        other = _fields(clause.also, last=False)
        out += [("und", (clause.also.key + Key.AND,), ()), *([other.finite] if clause.tense in SIMPLE else [])]
        out += [*other.middle, *other.end, *other.after]
    return out


def _verb_last(clause: Clause) -> list[Token]:
    """A subordinate clause after its conjunction or relative pronoun."""
    fields = _fields(clause, last=True)
    out = [*_np(clause.subject, NOMINATIVE), *fields.middle, *fields.end]
    if clause.also is None:
        return [*out, fields.finite, *fields.after]
    other = _fields(clause.also, last=True)
    joined = [("und", (clause.also.key + Key.AND,), ()), *other.middle, *other.end]
    if clause.tense in SIMPLE:
        return [*out, fields.finite, *joined, other.finite, *other.after]
    return [*out, *joined, fields.finite, *other.after]


def _fields(clause: Clause, last: bool) -> Fields:
    """Everything but the subject; with `last` the finite verb keeps its separable prefix."""
    finite, end = _verb(clause, last)
    after: list[Token] = []
    embedded = clause.embedded
    if embedded is not None and clause.embedding == "to":
        after = [BARE_COMMA, *_infinitive(embedded), BARE_COMMA]
    elif embedded is not None:
        linker = "dass" if clause.embedding == "that" else "ob"
        after = [BARE_COMMA, (linker, (embedded.key + Key.LINKER,), ()), *_verb_last(embedded), BARE_COMMA]
    return Fields(finite, _middle(clause), end, after)


def _infinitive(clause: Clause) -> list[Token]:
    key, verb = clause.key, clause.verb
    own = (key + Key.VERB, key + Key.PARTICLE)
    verbs: list[Token] = [("zu", (key + Key.LINKER,), ()), (verb.german[0], own, ())]
    if verb.prefix:
        verbs = [(f"{verb.prefix}zu{verb.german[0]}", own, (key + Key.LINKER,))]
    fields = _fields(clause, last=True)
    return [*fields.middle, *verbs, *fields.after]


def _verb(clause: Clause, last: bool) -> tuple[Token, list[Token]]:
    """The finite verb and what stands at the end of the clause."""
    key, verb, tense, person = clause.key, clause.verb, clause.tense, clause.person
    both: Keys = (key + Key.VERB, key + Key.PARTICLE)
    if verb.preposition and not verb.german_preposition:
        both = (*both, key + Key.GOVERNED)
    infinitive, _, _, participle = verb.german
    passive = (key + Key.PASSIVE,)
    if tense in ("inf", "imp") and not last:
        return _separated(clause, forms.imperative(verb))
    if tense in ("inf", "imp"):
        return (verb.prefix + infinitive, both, ()), []
    past = tense == "past"
    if clause.passive:
        done: Token = (verb.prefix + participle, both, ())
        if tense in ("pres", "past"):
            return (forms.auxiliary("werden", person, past), passive, ()), [done]
        if tense == "perf":
            return (forms.auxiliary("sein", person), (key + Key.AUXILIARY,), ()), [done, ("worden", passive, ())]
        return _helper(clause), [done, ("werden", passive, ())]
    if tense in ("perf", "pluperf"):
        helper = forms.auxiliary(verb.perfect, person, tense == "pluperf")
        return (helper, (key + Key.AUXILIARY,), ()), [(verb.prefix + participle, both, ())]
    if tense not in SIMPLE:
        possible = (key + Key.TO,) if tense in ("want", "wanted", "had") else ()
        return _helper(clause), [(verb.prefix + infinitive, both, possible)]
    form = forms.finite(verb, person, past)
    if last:
        return (verb.prefix + form, both, (key + Key.AUXILIARY,)), []
    return _separated(clause, form)


def _separated(clause: Clause, form: str) -> tuple[Token, list[Token]]:
    """A finite verb and its prefix, far from each other."""
    key = clause.key
    if not clause.verb.prefix:
        return (form, (key + Key.VERB, key + Key.PARTICLE), (key + Key.AUXILIARY,)), []
    prefix: Token = (clause.verb.prefix, (key + Key.PARTICLE,), (key + Key.VERB,))
    return (form, (key + Key.VERB,), (key + Key.AUXILIARY, key + Key.PARTICLE)), [prefix]


def _helper(clause: Clause) -> Token:
    """The finite auxiliary of the future, or the modal verb."""
    if clause.tense == "fut":
        return (forms.auxiliary("werden", clause.person), (clause.key + Key.AUXILIARY,), ())
    modal, past = MODALS[clause.tense]
    return (forms.auxiliary(modal, clause.person, past), (clause.key + Key.MODAL,), (clause.key + Key.AUXILIARY,))


def _middle(clause: Clause) -> list[Token]:
    """The middle field: pronouns, time, what is known, how often, what is new, negation, manner, place."""
    key, verb = clause.key, clause.verb
    thing = clause.object if clause.question != "object" else None
    negated = clause.negated
    pronouns: list[Token] = []
    known: list[Token] = []
    new: list[Token] = []
    if clause.recipient is not None:
        early = pronouns if clause.recipient.kind == "pronoun" else known if _definite(clause.recipient) else new
        early += _np(clause.recipient, DATIVE, to=True)
    if thing is not None and not verb.german_preposition:
        denied = negated and thing.kind == "noun" and thing.determiner in ("a", "")
        early = pronouns if thing.kind == "pronoun" else known if _definite(thing) and not new else new
        early += _np(thing, verb.german_case, negation=key + Key.NEGATION if denied else -1)
        negated = negated and not denied
    out = [*pronouns, *_adjuncts(clause.time), *known, *_adjuncts(clause.frequency), *new]
    if negated:
        out.append(("nicht", (key + Key.NEGATION,), ()))
    out += _adjuncts(clause.manner, clause.company)
    if clause.agent is not None:
        out += _prepositional("von", DATIVE, clause.agent.key + Key.OF, clause.agent)
    out += _adjuncts(clause.place)
    if thing is not None and verb.german_preposition:
        out += _prepositional(verb.german_preposition, verb.german_case, key + Key.GOVERNED, thing)
    out += _adjuncts(clause.complement)
    if clause.predicate is not None and clause.than is not None:
        more = (clause.predicate.german_comparative, (key + Key.PREDICATE, key + Key.MORE), ())
        out += [more, ("als", (key + Key.THAN,), ()), *_np(clause.than, NOMINATIVE)]
    elif clause.predicate is not None:
        out.append((clause.predicate.german, (key + Key.PREDICATE,), ()))
    if clause.price is not None:
        out += [*clause.price.spell("de"), (EURO[1], (key + Key.PREDICATE,), ())]
    return out


def _definite(phrase: NP) -> bool:
    if phrase.pair is not None:
        return all(_definite(half) for half in phrase.pair)
    return phrase.noun is None or phrase.determiner in DEFINITE


def _adjuncts(*items: Fixed | PP | None) -> list[Token]:
    """The tokens of those that there are."""
    out: list[Token] = []
    for item in items:
        if isinstance(item, Fixed):
            out += item.spell("de")
        elif item is not None:
            out += _prepositional(item.preposition.german, item.preposition.german_case, item.key, item.np)
    return out


def _prepositional(preposition: str, case: int, key: int, phrase: NP) -> list[Token]:
    """A preposition and its noun phrase; "in dem" is "im" unless a relative clause stresses the article."""
    first, *rest = _np(phrase, case)
    contracted = forms.CONTRACTIONS.get(f"{preposition} {first[0]}")
    if contracted is not None and phrase.determiner == "the" and phrase.relative is None:
        return [(contracted, (key, *first[1]), first[2]), *rest]
    return [(preposition, (key,), ()), first, *rest]


def _np(phrase: NP | None, case: int, *, to: bool = False, negation: int = -1) -> list[Token]:
    """A noun phrase, if there is one; `to` marks a recipient, whose dative perhaps translates "to"."""
    if phrase is None:
        return []
    possible = (phrase.key + Key.OF,) if to or case == GENITIVE else ()
    if phrase.pair is not None:
        return [*_np(phrase.pair[0], case, to=to), ("und", (phrase.key,), ()), *_np(phrase.pair[1], case)]
    if phrase.noun is not None:
        return _noun_phrase(phrase, phrase.noun, case, possible, negation)
    word = phrase.name.german if phrase.name is not None else forms.PRONOUNS[phrase.pronoun or phrase.kind][case]
    return [(word, (phrase.key,), possible)]


def _noun_phrase(phrase: NP, noun: Noun, case: int, possible: Keys, negation: int) -> list[Token]:
    key, determiner = phrase.key, phrase.determiner
    gender = forms.PLURAL if phrase.plural else noun.gender
    endings = forms.STRONG_ADJECTIVE
    out = _adjuncts(phrase.number)
    if phrase.number is not None:
        determiner = ""
    elif negation >= 0:
        stem, table, endings = forms.DETERMINERS["not a"]
        out.append((stem + table[case][gender], (negation,), (key + Key.DETERMINER, *possible)))
    elif determiner == "the":
        endings = forms.WEAK_ADJECTIVE
        out.append((forms.DEFINITE[case][gender], (key + Key.DETERMINER,), possible))
    elif determiner:
        stem, table, endings = forms.DETERMINERS[determiner]
        if determiner == "how many":
            out.append(("wie", (key + Key.DETERMINER,), ()))
        second = (key + Key.DETERMINER2, *possible) if determiner == "all" else possible
        out.append((stem + table[case][gender], (key + Key.DETERMINER,), second))
    articled = bool(determiner) or negation >= 0
    out += [(adjective.stem + endings[case][gender], (own,), ()) for own, adjective in phrase.adjectives]
    out.append((noun.german[case + 4 * phrase.plural], (key,), () if articled else possible))
    if phrase.of is not None and phrase.of.name is not None:
        return out + _prepositional("von", DATIVE, phrase.of.key + Key.OF, phrase.of)
    if phrase.of is not None:
        return out + _np(phrase.of, GENITIVE)
    if phrase.where is not None:
        return out + _adjuncts(phrase.where)
    return out + _relative(phrase.relative, gender) if phrase.relative is not None else out


def _relative(clause: Clause, gender: int) -> list[Token]:
    key, verb = clause.key, clause.verb
    case, before = {
        "object": (verb.german_case, verb.german_preposition), "recipient": (DATIVE, ""), "place": (DATIVE, "in"),
    }.get(clause.gap, (NOMINATIVE, ""))  # fmt: skip
    governed = (key + Key.GOVERNED,)
    preposition: list[Token] = [(before, governed, ())] if before else []
    word = "denen" if case == DATIVE and gender == forms.PLURAL else forms.DEFINITE[case][gender]
    pronoun = (word, (key + Key.LINKER,), () if before else governed)
    return [BARE_COMMA, *preposition, pronoun, *_verb_last(clause), BARE_COMMA]
