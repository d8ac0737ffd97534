"""The phrasebook's German: verb second in main clauses, verb last in subordinate ones, and agreement throughout."""

from __future__ import annotations

from typing import NamedTuple

from regard.data.synthetic import german_forms as forms
from regard.data.synthetic.german_forms import DATIVE, GENITIVE, NOMINATIVE
from regard.data.synthetic.lexicon import Preposition
from regard.data.synthetic.phrases import EURO
from regard.data.synthetic.syntax import NP, PP, Clause, Complex, Fixed, Key, Keys, Sentence, Token, linearise

SIMPLE = frozenset(("pres", "prog", "past"))
MODALS = {"can": ("können", False), "could": ("können", True), "must": ("müssen", False), "had": ("müssen", True),
          "want": ("wollen", False), "wanted": ("wollen", True), "should": ("sollen", True)}  # fmt: skip
DEFINITE = frozenset(("the", "this", "these", "my", "your", "his", "her", "our", "their"))
QUESTIONS = {"where": "wo", "when": "wann", "why": "warum"}
VON = Preposition("", "von", DATIVE, "", "")
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
        word = part.conjunction.german
        if part.conjunction.turkish == "when" and other.tense == "past":
            word = "als"
        subordinate.append((word, (other.key + Key.LINKER,), ()))
        _verb_last(other, subordinate)
        if part.first:
            out += subordinate
            out.append((",", (other.key + Key.COMMA,), ()))
            inverted = True
    _adjuncts(out, part.polite)
    if part.kind == "command":
        _verb_first(main, out)
    elif part.kind == "suggestion":
        out += [("lass", (main.key + Key.LINKER,), ()), ("uns", (main.key + Key.MODAL,), ())]
        fields = _fields(main, last=True)
        out += [*fields.middle, fields.finite, *fields.after]
    else:
        _verb_second(main, inverted, out)
    if subordinate and not part.first:
        out += [BARE_COMMA, *subordinate]


def _verb_first(clause: Clause, out: list[Token]) -> None:
    fields = _fields(clause, last=False)
    out += [fields.finite, *fields.middle, *fields.end, *fields.after]


def _verb_second(clause: Clause, inverted: bool, out: list[Token]) -> None:
    """A main clause or a question; `inverted` says that the place before the verb is taken."""
    fields = _fields(clause, last=False)
    first: list[Token] = []
    if clause.question in QUESTIONS:
        first = [(QUESTIONS[clause.question], (clause.key + Key.LINKER,), ())]
    elif clause.question == "object" and clause.object is not None:
        _np(clause.object, clause.verb.german_case, first)
    elif clause.front is not None and not inverted:
        _adjuncts(first, clause.front)
    subject: list[Token] = []
    assert clause.subject is not None
    _np(clause.subject, NOMINATIVE, subject)
    if first or inverted or clause.question == "yes":
        out += [*first, fields.finite, *subject]
    else:
        out += [*subject, fields.finite]
    out += [*fields.middle, *fields.end, *fields.after]
    if clause.also is not None:
        other = _fields(clause.also, last=False)
        out.append(("und", (clause.also.key + Key.AND,), ()))
        if clause.tense in SIMPLE:
            out.append(other.finite)
        out += [*other.middle, *other.end, *other.after]


def _verb_last(clause: Clause, out: list[Token]) -> None:
    """A subordinate clause after its conjunction or relative pronoun."""
    if clause.subject is not None:
        _np(clause.subject, NOMINATIVE, out)
    fields = _fields(clause, last=True)
    out += [*fields.middle, *fields.end]
    if clause.also is None:
        out += [fields.finite, *fields.after]
        return
    other = _fields(clause.also, last=True)
    if clause.tense in SIMPLE:
        out.append(fields.finite)
    out += [("und", (clause.also.key + Key.AND,), ()), *other.middle, *other.end]
    out.append(other.finite if clause.tense in SIMPLE else fields.finite)
    out += other.after


def _fields(clause: Clause, last: bool) -> Fields:
    """Everything but the subject; with `last` the finite verb keeps its separable prefix."""
    finite, end = _verb(clause, last)
    after: list[Token] = []
    embedded = clause.embedded
    if embedded is not None:
        after.append(BARE_COMMA)
        if clause.embedding == "to":
            _infinitive(embedded, after)
        else:
            after.append(("dass" if clause.embedding == "that" else "ob", (embedded.key + Key.LINKER,), ()))
            _verb_last(embedded, after)
        after.append(BARE_COMMA)
    return Fields(finite, _middle(clause), end, after)


def _infinitive(clause: Clause, out: list[Token]) -> None:
    key, verb = clause.key, clause.verb
    fields = _fields(clause, last=True)
    out += fields.middle
    if verb.prefix:
        out.append((f"{verb.prefix}zu{verb.german[0]}", (key + Key.VERB, key + Key.PARTICLE), (key + Key.LINKER,)))
    else:
        out += [("zu", (key + Key.LINKER,), ()), (verb.german[0], (key + Key.VERB, key + Key.PARTICLE), ())]
    out += fields.after


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
    out: list[Token] = []
    key, verb = clause.key, clause.verb
    thing = clause.object if clause.question != "object" else None
    negated = clause.negated
    governed = bool(verb.german_preposition)
    known: list[Token] = []
    new: list[Token] = []
    if clause.recipient is not None:
        early = known if _definite(clause.recipient) else new
        _np(clause.recipient, DATIVE, out if clause.recipient.kind == "pronoun" else early, to=True)
    if thing is not None and not governed:
        denied = negated and thing.kind == "noun" and thing.determiner in ("a", "")
        negation = key + Key.NEGATION if denied else -1
        early = known if _definite(thing) and not new else new
        _np(thing, verb.german_case, out if thing.kind == "pronoun" else early, negation=negation)
        negated = negated and not denied
    _adjuncts(out, clause.late_time)
    out += known
    _adjuncts(out, clause.frequency)
    out += new
    if negated:
        out.append(("nicht", (key + Key.NEGATION,), ()))
    _adjuncts(out, clause.manner, clause.company)
    if clause.agent is not None:
        _prepositional(VON, clause.agent.key + Key.OF, clause.agent, out)
    _adjuncts(out, clause.late_place)
    if thing is not None and governed:
        preposition = Preposition("", verb.german_preposition, verb.german_case, "", "")
        _prepositional(preposition, key + Key.GOVERNED, thing, out)
    _adjuncts(out, clause.complement)
    if clause.predicate is not None:
        _predicate(clause, out)
    if clause.price is not None:
        out += clause.price.spell("de")
        out.append((EURO[1], (key + Key.PREDICATE,), ()))
    return out


def _definite(phrase: NP) -> bool:
    if phrase.pair is not None:
        return all(_definite(half) for half in phrase.pair)
    return phrase.noun is None or phrase.determiner in DEFINITE


def _predicate(clause: Clause, out: list[Token]) -> None:
    adjective, key = clause.predicate, clause.key
    assert adjective is not None
    if clause.than is None:
        out.append((adjective.german, (key + Key.PREDICATE,), ()))
        return
    out.append((adjective.german_comparative, (key + Key.PREDICATE, key + Key.MORE), ()))
    out.append(("als", (key + Key.THAN,), ()))
    _np(clause.than, NOMINATIVE, out)


def _adjuncts(out: list[Token], *items: Fixed | PP | None) -> None:
    """Append the tokens of those that there are."""
    for item in items:
        if isinstance(item, Fixed):
            out += item.spell("de")
        elif item is not None:
            _prepositional(item.preposition, item.key, item.np, out)


def _prepositional(preposition: Preposition, key: int, phrase: NP, out: list[Token]) -> None:
    """A preposition and its noun phrase; "in dem" is "im" unless a relative clause stresses the article."""
    start = len(out)
    out.append((preposition.german, (key,), ()))
    _np(phrase, preposition.german_case, out)
    if phrase.determiner == "the" and phrase.relative is None:
        article = out[start + 1]
        contracted = forms.CONTRACTIONS.get(f"{preposition.german} {article[0]}")
        if contracted is not None:
            out[start : start + 2] = [(contracted, (key, *article[1]), article[2])]


def _np(phrase: NP, case: int, out: list[Token], *, to: bool = False, negation: int = -1) -> None:
    """Append a noun phrase; `to` marks a recipient, whose dative perhaps translates "to"."""
    possible = (phrase.key + Key.OF,) if to or case == GENITIVE else ()
    if phrase.pair is not None:
        _np(phrase.pair[0], case, out, to=to)
        out.append(("und", (phrase.key,), ()))
        _np(phrase.pair[1], case, out)
    elif phrase.name is not None:
        out.append((phrase.name.german, (phrase.key,), possible))
    elif phrase.noun is None:
        word = phrase.pronoun or phrase.kind
        out.append((forms.PRONOUNS[word][case], (phrase.key,), possible))
    else:
        _noun_phrase(phrase, case, out, possible, negation)


def _noun_phrase(phrase: NP, case: int, out: list[Token], possible: Keys, negation: int) -> None:
    noun, key = phrase.noun, phrase.key
    assert noun is not None
    gender = forms.PLURAL if phrase.plural else noun.gender
    determiner = phrase.determiner
    endings = forms.STRONG_ADJECTIVE
    start = len(out)
    if phrase.number is not None:
        out += phrase.number.spell("de")
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
    unarticled = len(out) == start or phrase.number is not None
    ending = endings[case][gender]
    out += [(adjective.stem + ending, (own,), ()) for own, adjective in phrase.adjectives]
    out.append((noun.german[case + 4 * phrase.plural], (key,), possible if unarticled else ()))
    if phrase.of is not None:
        if phrase.of.name is not None:
            _prepositional(VON, phrase.of.key + Key.OF, phrase.of, out)
        else:
            _np(phrase.of, GENITIVE, out)
    elif phrase.where is not None:
        _adjuncts(out, phrase.where)
    elif phrase.relative is not None:
        _relative(phrase.relative, gender, out)


def _relative(clause: Clause, gender: int, out: list[Token]) -> None:
    key, verb = clause.key, clause.verb
    out.append(BARE_COMMA)
    case, before = NOMINATIVE, ""
    if clause.gap == "object":
        case, before = verb.german_case, verb.german_preposition
    elif clause.gap == "recipient":
        case = DATIVE
    elif clause.gap == "place":
        case, before = DATIVE, "in"
    if before:
        out.append((before, (key + Key.GOVERNED,), ()))
    possible = () if before else (key + Key.GOVERNED,)
    out.append((forms.relative_pronoun(case, gender), (key + Key.LINKER,), possible))
    _verb_last(clause, out)
    out.append(BARE_COMMA)
