"""The phrasebook's Turkish: the verb last, postpositions and case endings, relative clauses before their nouns.

Where an ending carries the meaning of an English word ("with", "my", "not", "if"), the word that bears the ending is
its sure translation. What only English grammar asks for ("the", "did", "that") is linked as possible. Subject pronouns
of the first and second person are dropped where the verb says who it is.
"""

from __future__ import annotations

from regard.data.synthetic.lexicon import Noun
from regard.data.synthetic.phrases import EURO
from regard.data.synthetic.suffixes import CASES, lower, name_form, noun_form
from regard.data.synthetic.syntax import NP, PP, WE, Clause, Complex, Fixed, Key, Keys, Sentence, Token, linearise
from regard.data.synthetic.tables import forms, rows
from regard.data.synthetic.turkish_verbs import POSTPOSED, copula_tokens, copular, verb_tokens

PRONOUNS = {word: dict(zip(CASES, cases, strict=True)) for word, (cases,) in forms("turkish_pronouns").items()}
POSSESSORS = {"my": 0, "your": 1, "his": 2, "her": 2, "our": 3, "their": 4}
DETERMINERS = dict(rows("turkish_determiners"))
COUNTED = frozenset(("number", "many", "how many"))
# Objects with these determiners are not marked, unless the verb always marks its object.
UNMARKED = frozenset(("a", "", "number", "many", "how many"))
QUESTIONS = {"where": "nerede", "when": "ne zaman", "why": "neden"}
GENITIVE_SUBJECTS = frozenset(("that", "whether", "other"))
# Forms without a personal ending, whose subject pronoun must be said.
IMPERSONAL = frozenset(("önce", "sonra", "while"))


def sentence(tree: Sentence) -> list[Token]:
    """The tokens of a sentence."""
    return linearise(tree, "tr", _complex)


def _complex(part: Complex, out: list[Token]) -> None:
    """A main clause; a subordinate one always stands before it."""
    main, other = part.main, part.subordinate
    if other is not None and part.conjunction is not None:
        form, link = part.conjunction.turkish, (other.key + Key.LINKER,)
        after = form in (*POSTPOSED, "önce", "sonra")
        out += _clause(other, form, "loc" if form == "when" else "nom", () if after else link)
        out += [(form, link, ())] if after else []
    out += _adjuncts(part.polite)
    if part.kind == "suggestion":
        out += _clause(main, "suggestion", "nom", (main.key + Key.LINKER, main.key + Key.MODAL))
    else:
        asked = part.kind == "question" and main.question == "yes"
        out += _clause(main, "command" if part.kind == "command" else "question" if asked else "main", "nom")


def _clause(clause: Clause, form: str, case: str, sure: Keys = (), possible: Keys = ()) -> list[Token]:
    """A clause whose verb takes `form`; the keys are those of words that its verb ending translates."""
    out = _adjuncts(clause.front)
    subject = clause.subject
    if subject is not None and clause.question != "subject":
        if subject.kind == "pronoun" and subject.person in (0, 1, WE) and form not in IMPERSONAL:
            sure = (*sure, subject.key)
        else:
            out += _np(subject, "gen" if form in GENITIVE_SUBJECTS else "nom")
    if clause.also is not None:
        out += _core(clause, "-ip", "nom", (clause.also.key + Key.AND,), ())
        sure, possible = (*sure, clause.key + Key.MODAL), (*possible, clause.key + Key.AUXILIARY, clause.key + Key.TO)
        clause = clause.also
    return out + _core(clause, form, case, sure, possible)


def _core(clause: Clause, form: str, case: str, sure: Keys, possible: Keys) -> list[Token]:
    """Everything but the subject: adjuncts, arguments, and the verb."""
    out = _adjuncts(clause.time, clause.frequency, clause.company, clause.place)
    if clause.agent is not None:
        out += [*_np(clause.agent, _governed(clause.agent)), ("tarafından", (clause.agent.key + Key.OF,), ())]
    if clause.recipient is not None:
        out += _np(clause.recipient, "dat", (clause.recipient.key + Key.OF,))
    late = clause.object is not None and (_unmarked(clause, clause.object) or clause.question == "object")
    thing = _object(clause)
    if not late:
        out += thing
    out += _adjuncts(clause.complement, clause.manner)
    if clause.question in QUESTIONS:
        out += [(word, (clause.key + Key.LINKER,), ()) for word in QUESTIONS[clause.question].split()]
    elif clause.question == "subject" and clause.subject is not None:
        out += _np(clause.subject, "nom")
    if late:
        out += thing
    if clause.embedded is not None:
        link = (clause.embedded.key + Key.LINKER,)
        links = (link, ()) if clause.embedding == "whether" else ((), link)
        out += _clause(clause.embedded, clause.embedding, clause.verb.turkish_case, *links)
    if not copular(clause) or form == "-ip":
        return out + verb_tokens(clause, form, case, sure, possible)
    out += _predicate(clause)
    host = out.pop()  # which takes the ending of the copula
    return out + copula_tokens(clause, host, form, case, sure, possible)


def _predicate(clause: Clause) -> list[Token]:
    """What is said by an adjective, a price, or "zorunda"; nothing where a place is said."""
    key = clause.key
    if clause.tense in ("must", "had"):
        return [*verb_tokens(clause, "to", "nom", (), (key + Key.TO,)), ("zorunda", (key + Key.MODAL,), ())]
    if clause.price is not None:
        return [*clause.price.spell("tr"), (lower(EURO[2]), (key + Key.PREDICATE,), ())]
    if clause.predicate is None:
        return []
    adjective: Token = (clause.predicate.turkish, (key + Key.PREDICATE,), ())
    if clause.than is None:
        return [adjective]
    return [*_np(clause.than, "abl", (key + Key.THAN,)), ("daha", (key + Key.MORE,), ()), adjective]


def _unmarked(clause: Clause, phrase: NP) -> bool:
    """Whether an object stands without a case ending, right before the verb."""
    verb = clause.verb
    if verb.turkish_case != "acc" or verb.strong:
        return False
    if phrase.pair is not None:
        return all(_unmarked(clause, half) for half in phrase.pair)
    return phrase.kind == "what" or (phrase.kind == "noun" and phrase.determiner in UNMARKED and phrase.of is None)


def _object(clause: Clause) -> list[Token]:
    phrase, case, governed = clause.object, clause.verb.turkish_case, (clause.key + Key.GOVERNED,)
    about: list[Token] = [("hakkında", governed, ())] if case == "about" else []
    if phrase is None:
        return about if clause.gap == "object" else []
    if about:
        return _np(phrase, _governed(phrase)) + about
    if case == "ins":
        return _np(phrase, case, governed if clause.verb.preposition else ())
    return _np(phrase, "nom" if _unmarked(clause, phrase) else case)


def _governed(phrase: NP) -> str:
    """The case before a postposition like "için": pronouns are in the genitive."""
    return "gen" if phrase.kind == "pronoun" else "nom"


def _adjuncts(*items: Fixed | PP | None) -> list[Token]:
    """The tokens of those that there are."""
    out: list[Token] = []
    for item in items:
        out += _postpositional(item) if isinstance(item, PP) else item.spell("tr") if item is not None else []
    return out


def _postpositional(item: PP) -> list[Token]:
    """A case ending, or a postposition after the case it governs."""
    word, case, phrase = item.preposition.turkish, item.preposition.turkish_case, item.np
    postposition: list[Token] = [(word, (item.key,), ())] if word else []
    if case == "between" and phrase.pair is not None:
        left, right = (_np(half, "nom") for half in phrase.pair)
        return [*left, ("ile", (phrase.key,), ()), *right, *postposition]
    return _np(phrase, _governed(phrase) if case == "for" else case, () if word else (item.key,)) + postposition


def _np(phrase: NP, case: str, sure: Keys = ()) -> list[Token]:
    """A noun phrase; `sure` are the keys of the words that its case ending translates."""
    key = phrase.key
    if case == "gen":
        sure = (*sure, key + Key.OF)
    if phrase.pair is not None:
        left, right = (_np(half, case, sure) for half in phrase.pair)
        return [*left, ("ve", (key,), ()), *right]
    if phrase.noun is not None:
        return _noun_phrase(phrase, phrase.noun, case, sure)
    name = phrase.name
    word = PRONOUNS[phrase.pronoun or phrase.kind][case] if name is None else name_form(name.turkish, case)
    return [(word, (key, *sure), ())]


def _noun_phrase(phrase: NP, noun: Noun, case: str, sure: Keys) -> list[Token]:
    key, determiner = phrase.key, phrase.determiner
    possessor = POSSESSORS.get(determiner, -1)
    possible: Keys = ()
    out: list[Token] = []
    if phrase.of is not None:
        possessor = POSSESSORS["his"]
        out += _np(phrase.of, "gen")
    elif determiner in ("his", "her", "their"):
        out.append(("onların" if determiner == "their" else "onun", (key + Key.DETERMINER,), ()))
    if phrase.where is not None:
        *before, (text, own, perhaps) = _postpositional(phrase.where)
        out += [*before, (text + "ki", own, perhaps)]
    elif phrase.relative is not None:
        clause = phrase.relative
        form = "subject" if clause.gap == "subject" else "other"
        out += _clause(clause, form, "nom", (), (clause.key + Key.LINKER, clause.key + Key.GOVERNED))
    out += _adjuncts(phrase.number)
    if determiner in DETERMINERS:
        out.append((DETERMINERS[determiner], (key + Key.DETERMINER,), ()))
    elif determiner in ("my", "your", "our"):
        sure = (*sure, key + Key.DETERMINER)
    elif determiner == "the":
        possible = (key + Key.DETERMINER,)
    if determiner == "all":
        possible = (key + Key.DETERMINER2,)
    out += [(adjective.turkish, (own,), ()) for own, adjective in phrase.adjectives]
    if determiner == "a":
        out.append(("bir", (key + Key.DETERMINER,), ()))
    plural = phrase.plural and determiner not in COUNTED
    out.append((noun_form(noun.turkish, noun.soft, plural, possessor, case), (key, *sure), possible))
    return out
