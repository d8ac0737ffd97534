"""The phrasebook's Turkish: the verb last, postpositions and case endings, relative clauses before their nouns.

Where an ending carries the meaning of an English word ("with", "my", "not", "if"), the word that bears the ending is
its sure translation. What only English grammar asks for ("the", "did", "that") is linked as possible. Subject pronouns
of the first and second person are dropped where the verb says who it is.
"""

from __future__ import annotations

from regard.data.synthetic.phrases import EURO
from regard.data.synthetic.suffixes import CASES, lower, name_form, noun_form
from regard.data.synthetic.syntax import (
    NP,
    PP,
    THIRD,
    WE,
    Clause,
    Complex,
    Fixed,
    Key,
    Keys,
    Sentence,
    Token,
    linearise,
)
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
        form = part.conjunction.turkish
        link = (other.key + Key.LINKER,)
        after = form in POSTPOSED or form in ("önce", "sonra")
        _clause(other, form, "loc" if form == "when" else "nom", out, () if after else link)
        if after:
            out.append((form, link, ()))
    _adjuncts(out, part.polite)
    if part.kind == "suggestion":
        _clause(main, "suggestion", "nom", out, (main.key + Key.LINKER, main.key + Key.MODAL))
    else:
        asked = part.kind == "question" and main.question == "yes"
        _clause(main, "command" if part.kind == "command" else "question" if asked else "main", "nom", out)


def _clause(clause: Clause, form: str, case: str, out: list[Token], sure: Keys = (), possible: Keys = ()) -> None:
    """Append a clause whose verb takes `form`; the keys are those of words that its verb ending translates."""
    _adjuncts(out, clause.front)
    subject = clause.subject
    if subject is not None and clause.question != "subject":
        if subject.kind == "pronoun" and subject.person in (0, 1, WE) and form not in IMPERSONAL:
            sure = (*sure, subject.key)
        else:
            _np(subject, "gen" if form in GENITIVE_SUBJECTS else "nom", out)
    if clause.also is not None:
        _core(clause, "-ip", "nom", out, (clause.also.key + Key.AND,), ())
        sure, possible = (*sure, clause.key + Key.MODAL), (*possible, clause.key + Key.AUXILIARY, clause.key + Key.TO)
        clause = clause.also
    _core(clause, form, case, out, sure, possible)


def _core(clause: Clause, form: str, case: str, out: list[Token], sure: Keys, possible: Keys) -> None:
    """Everything but the subject: adjuncts, arguments, and the verb."""
    _adjuncts(out, clause.late_time, clause.frequency, clause.company, clause.late_place)
    if clause.agent is not None:
        _np(clause.agent, _governed(clause.agent), out)
        out.append(("tarafından", (clause.agent.key + Key.OF,), ()))
    if clause.recipient is not None:
        _np(clause.recipient, "dat", out, (clause.recipient.key + Key.OF,))
    late = clause.object is not None and (_unmarked(clause, clause.object) or clause.question == "object")
    if not late:
        _object(clause, out)
    _adjuncts(out, clause.complement, clause.manner)
    if clause.question in QUESTIONS:
        out += [(word, (clause.key + Key.LINKER,), ()) for word in QUESTIONS[clause.question].split()]
    elif clause.question == "subject" and clause.subject is not None:
        _np(clause.subject, "nom", out)
    if late:
        _object(clause, out)
    if clause.embedded is not None:
        marked, link = clause.verb.turkish_case, (clause.embedded.key + Key.LINKER,)
        meant = clause.embedding == "whether"
        _clause(clause.embedded, clause.embedding, marked, out, link if meant else (), () if meant else link)
    if copular(clause) and form != "-ip":
        host = _predicate(clause, out)
        out += copula_tokens(clause, host, form, case, sure, possible)
    else:
        out += verb_tokens(clause, form, case, sure, possible)


def _predicate(clause: Clause, out: list[Token]) -> Token:
    """Append a predicate except for its last word, which is returned: it takes the ending of the copula."""
    key = clause.key
    if clause.tense in ("must", "had"):
        out += verb_tokens(clause, "to", "nom", (), (key + Key.TO,))
        return ("zorunda", (key + Key.MODAL,), ())
    if clause.price is not None:
        out += clause.price.spell("tr")
        return (lower(EURO[2]), (key + Key.PREDICATE,), ())
    if clause.predicate is None:
        return out.pop()
    if clause.than is not None:
        _np(clause.than, "abl", out, (key + Key.THAN,))
        out.append(("daha", (key + Key.MORE,), ()))
    return (clause.predicate.turkish, (key + Key.PREDICATE,), ())


def _unmarked(clause: Clause, phrase: NP) -> bool:
    """Whether an object stands without a case ending, right before the verb."""
    verb = clause.verb
    if verb.turkish_case != "acc" or verb.strong:
        return False
    if phrase.pair is not None:
        return all(_unmarked(clause, half) for half in phrase.pair)
    return phrase.kind == "what" or (phrase.kind == "noun" and phrase.determiner in UNMARKED and phrase.of is None)


def _object(clause: Clause, out: list[Token]) -> None:
    phrase, case, key = clause.object, clause.verb.turkish_case, clause.key
    if case == "about" and (phrase is not None or clause.gap == "object"):
        if phrase is not None:
            _np(phrase, _governed(phrase), out)
        out.append(("hakkında", (key + Key.GOVERNED,), ()))
    elif phrase is None:
        return
    elif case == "ins":
        _np(phrase, case, out, (key + Key.GOVERNED,) if clause.verb.preposition else ())
    else:
        _np(phrase, "nom" if _unmarked(clause, phrase) else case, out)


def _governed(phrase: NP) -> str:
    """The case before a postposition like "için": pronouns are in the genitive."""
    return "gen" if phrase.kind == "pronoun" else "nom"


def _adjuncts(out: list[Token], *items: Fixed | PP | None) -> None:
    """Append the tokens of those that there are."""
    for item in items:
        if isinstance(item, Fixed):
            out += item.spell("tr")
        elif item is not None:
            _postpositional(item, out)


def _postpositional(item: PP, out: list[Token]) -> None:
    """A case ending, or a postposition after the case it governs."""
    word, case, phrase = item.preposition.turkish, item.preposition.turkish_case, item.np
    if case == "between" and phrase.pair is not None:
        _np(phrase.pair[0], "nom", out)
        out.append(("ile", (phrase.key,), ()))
        _np(phrase.pair[1], "nom", out)
    else:
        _np(phrase, _governed(phrase) if case == "for" else case, out, () if word else (item.key,))
    if word:
        out.append((word, (item.key,), ()))


def _np(phrase: NP, case: str, out: list[Token], sure: Keys = ()) -> None:
    """Append a noun phrase; `sure` are the keys of the words that its case ending translates."""
    key = phrase.key
    if case == "gen":
        sure = (*sure, key + Key.OF)
    if phrase.pair is not None:
        _np(phrase.pair[0], case, out, sure)
        out.append(("ve", (key,), ()))
        _np(phrase.pair[1], case, out, sure)
    elif phrase.name is not None:
        out.append((name_form(phrase.name.turkish, case), (key, *sure), ()))
    elif phrase.noun is None:
        word = PRONOUNS[phrase.pronoun or phrase.kind][case]
        out.append((word, (key, *sure), ()))
    else:
        _noun_phrase(phrase, case, out, sure)


def _noun_phrase(phrase: NP, case: str, out: list[Token], sure: Keys) -> None:
    noun, key, determiner = phrase.noun, phrase.key, phrase.determiner
    assert noun is not None
    possessor = POSSESSORS.get(determiner, -1)
    possible: Keys = ()
    if phrase.of is not None:
        possessor = THIRD
        _np(phrase.of, "gen", out)
    elif determiner in ("his", "her", "their"):
        out.append(("onların" if determiner == "their" else "onun", (key + Key.DETERMINER,), ()))
    if phrase.where is not None:
        _postpositional(phrase.where, out)
        text, own, perhaps = out[-1]
        out[-1] = (text + "ki", own, perhaps)
    elif phrase.relative is not None:
        clause = phrase.relative
        form = "subject" if clause.gap == "subject" else "other"
        _clause(clause, form, "nom", out, (), (clause.key + Key.LINKER, clause.key + Key.GOVERNED))
    if phrase.number is not None:
        out += phrase.number.spell("tr")
    elif determiner in DETERMINERS:
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
