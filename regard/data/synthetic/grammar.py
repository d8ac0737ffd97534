"""Random sentences of a wanted length: the second half of the grammar, from clauses up.

Words are spent, not counted afterwards: each clause is told how many English words it has, pays for its verb, sets
aside what its arguments need at least, and shares the rest among adjuncts, modifiers and embedded clauses.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from regard.data.synthetic import lexicon as words
from regard.data.synthetic import phrases
from regard.data.synthetic.lexicon import BE, COST, Verb
from regard.data.synthetic.nominals import Nominals
from regard.data.synthetic.syntax import (
    NP,
    NP_KEYS,
    PLURAL,
    PP,
    SECOND,
    THIRD,
    WE,
    Clause,
    Complex,
    Fixed,
    Sentence,
)

STATEMENT = ("pres", "pres", "prog", "past", "past", "past", "perf", "fut", "fut", "can", "could", "must", "had",
             "want", "wanted", "should")  # fmt: skip
QUESTION = ("pres", "pres", "prog", "prog", "past", "past", "past", "perf", "fut", "fut", "can", "must", "want")
EMBEDDED = ("pres", "prog", "past", "past", "perf", "fut", "can", "must")
RELATIVE = ("pres", "prog", "past", "past", "perf", "can", "must")
WHETHER = ("pres", "prog", "past", "fut")
INFINITIVE = ("inf",)

# How many words each tense adds to the verb, and the tenses in which "do" appears under negation and in questions.
GROUP = {"pres": 1, "past": 1, "inf": 1, "want": 3, "wanted": 3, "had": 3}
DO_SUPPORT = frozenset(("pres", "past", "want", "wanted"))
NEGATABLE = frozenset(("pres", "prog", "past", "perf", "fut", "can", "could", "want", "wanted", "should"))
SHARED = frozenset(("pres", "prog", "past", "fut", "can", "could", "must", "had", "want", "wanted", "should"))

# The tenses of verbs that do not have them all.
BE_TENSES = frozenset(("pres", "past", "fut"))
STATIVE_TENSES = frozenset(("pres", "past", "perf", "fut"))
PASSIVE_TENSES = frozenset(("pres", "past", "perf", "fut", "can", "must", "should"))

# Frames: weight, and the fewest words they need after the subject.
FRAMES = {"plain": (3.0, 1), "object": (7.0, 2), "give": (2.0, 5), "go": (2.0, 3), "be": (3.0, 2), "cost": (0.5, 3),
          "passive": (1.6, 2), "that": (1.6, 5), "whether": (0.7, 5), "to": (1.4, 4)}  # fmt: skip
EMBEDDING = frozenset(("that", "whether", "to"))
GAP_FRAMES = {"object": ("object", "give"), "recipient": ("give",), "place": ("plain", "object")}


@cache
def _tenses(verb: Verb, passive: bool, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the wanted tenses that the verb has."""
    if verb is COST:
        allowed = frozenset(("pres",))
    elif verb is BE:
        allowed = BE_TENSES
    elif passive:
        allowed = PASSIVE_TENSES
    elif verb.stative:
        allowed = STATIVE_TENSES | {"inf"}
    else:
        return wanted
    return tuple(tense for tense in wanted if tense in allowed)


class Grammar(Nominals):
    """Draws sentences, whose words it decides but whose spelling it leaves to the linearisers."""

    def sentence(self, size: int) -> Sentence:
        """A sentence of about `size` English words, not counting punctuation."""
        self._next_key = 0
        kind = "statement"
        if size < 25:
            kind = self.weighted((("statement", 0.74), ("question", 0.15), ("command", 0.07), ("suggestion", 0.04)))
        parts: list[Complex] = []
        joiners: list[Fixed] = []
        left = size
        for count in range(self._parts(size) if kind == "statement" else 1, 0, -1):
            if parts:
                joiners.append(self.fixed(self.pick(phrases.JOINERS)))
                left -= 1
            share = left if count == 1 else max(5, round(left / count * (0.7 + 0.6 * self._draw())))
            after_so = bool(joiners) and joiners[-1].phrase is phrases.SO
            part, used = self._complex(share, kind, front=not after_so)
            parts.append(part)
            left -= used
        return Sentence(parts, joiners, self.fixed(phrases.STOPS[kind]))

    def _parts(self, size: int) -> int:
        """How many main clauses: long sentences are chains of them, since deep nesting is hard to read."""
        fewest = 1 + (size - 1) // 19
        return fewest + 1 if size // (fewest + 1) > 5 and self.chance(0.25) else fewest

    def _complex(self, size: int, kind: str, front: bool) -> tuple[Complex, int]:
        polite = self.fixed(phrases.PLEASE) if kind == "command" and self.chance(0.3) else None
        size -= polite is not None
        if kind == "suggestion":
            size -= 2
        if size < 8 or not self.chance(0.4):
            main, used = self._main(size, kind, None, open_end=False, front=front)
            extra = (polite is not None) + 2 * (kind == "suggestion")
            return Complex(kind, main, polite), used + extra
        conjunction = self.pick(words.CONJUNCTIONS[:2] if kind == "statement" and self.chance(0.3) else
                                words.CONJUNCTIONS[2:4] if kind in ("command", "suggestion") else
                                words.CONJUNCTIONS[2:])  # fmt: skip
        main_tenses, tenses = self.pick(conjunction.tenses)
        first = (front and kind == "statement" or kind == "command") and polite is None and self.chance(0.5)
        if kind == "question":
            main_tenses = tuple(tense for tense in main_tenses if tense in QUESTION)
            first = False
        share = max(3, round((size - 1) * (0.35 + 0.3 * self._draw())))
        if first or kind != "statement":
            main, used = self._main(size - 1 - share, kind, main_tenses, open_end=not first, front=False)
            other, more = self.clause(size - 1 - used, tenses, role=conjunction.turkish, depth=1)
        else:
            other, more = self.clause(share, tenses, role=conjunction.turkish, depth=1)
            main, used = self._main(size - 1 - more, kind, main_tenses, open_end=True, front=front)
        extra = (polite is not None) + 2 * (kind == "suggestion")
        return Complex(kind, main, polite, conjunction, other, first), used + 1 + more + extra

    def _main(
        self, size: int, kind: str, tenses: tuple[str, ...] | None, *, open_end: bool, front: bool
    ) -> tuple[Clause, int]:
        if kind in ("command", "suggestion"):
            return self.clause(size, INFINITIVE, role=kind, person=SECOND if kind == "command" else WE,
                               open_end=open_end)  # fmt: skip
        if kind == "question":
            return self._question(size, tenses or QUESTION, open_end)
        return self.clause(size, tenses or STATEMENT, open_end=open_end, front=front)

    def _question(self, size: int, tenses: tuple[str, ...], open_end: bool) -> tuple[Clause, int]:
        asked = self.weighted((("yes", 4.0), ("subject", 1.5), ("object", 2.0), ("where", 1.0), ("when", 1.0),
                               ("why", 1.0)))  # fmt: skip
        return self.clause(size, tenses, role="question", question=asked, open_end=open_end)

    def relative(self, antecedent: NP, budget: int, depth: int) -> tuple[Clause, int] | None:
        noun = antecedent.noun
        if noun is None or noun.mass:
            return None
        options = [("subject", 3.0)]
        if budget > 2 and words.verbs("object", "", noun.classes):
            options.append(("object", 2.0))
        if budget > 5 and noun.human:
            options.append(("recipient", 0.6))
        if budget > 3 and "L" in noun.classes:
            options.append(("place", 2.0))
        gap = self.weighted(options)
        marker = 2 if gap in ("recipient", "place") else 1
        clause, used = self.clause(
            budget - marker, RELATIVE, role="relative", depth=depth, gap=gap, antecedent=antecedent, open_end=depth < 1
        )
        if gap == "object" and clause.verb.preposition:
            marker = 2
        return clause, used + marker

    def clause(
        self,
        budget: int,
        tenses: tuple[str, ...],
        *,
        role: str = "main",
        depth: int = 2,
        gap: str = "",
        antecedent: NP | None = None,
        person: int = THIRD,
        question: str = "",
        open_end: bool = False,
        front: bool = False,
    ) -> tuple[Clause, int]:
        """A clause of about `budget` words, and how many it has.

        With `open_end` it may not end in a clause of its own, because what follows would seem to belong to that one.
        Infinitives, commands and second verb phrases get their `person` from outside; the rest choose a subject.
        """
        own_subject = role not in ("infinitive", "command", "suggestion", "second") and gap != "subject"
        asked = question in ("subject", "object")
        verb, passive, tense = self._verb(
            budget - own_subject, tenses, role, gap, antecedent, question, allow=not open_end and depth > 0
        )
        clause = Clause(self.clause_keys(), verb, tense, person, passive=passive, gap=gap, antecedent=antecedent)
        clause.question = question
        negatable = tense in NEGATABLE or (tense == "inf" and role == "command")
        clause.negated = negatable and role not in ("önce", "sonra", "while", "question", "second") and self.chance(0.14)
        if gap == "subject" and antecedent is not None:
            clause.person = antecedent.person
        spare = budget - self._group_words(clause, role) - _arguments(clause)
        classes = verb.objects if passive else verb.subjects
        lowest = 0
        if own_subject:
            lowest = 1 if "P" in classes or question == "subject" else 2
            spare -= lowest
        if question in ("where", "when", "why"):
            spare -= 1
        heavy = not open_end and depth > 0 and spare > 3 and clause.verb.frame != "plain" and self.chance(0.55)
        second = not heavy and self._second_share(clause, role, spare, asked)
        if second:
            spare -= second + 1
        else:
            spare -= self._adjuncts(clause, role, spare, heavy, front)
        if own_subject:
            subject = self._subject(clause, classes, lowest, spare, depth, heavy, question, gap)
            clause.subject, clause.person = subject, subject.person
            spare -= subject.words - lowest
            if subject.clausal and clause.frequency is not None:
                clause.frequency = None
                spare += 1
        end = depth if not open_end and (heavy or not (second or _trailing(clause))) else 0
        spare = self._complete(clause, spare, end, role, question)
        if second:
            clause.also, used = self.clause(second + max(0, spare), (tense,), role="second", person=clause.person,
                                            depth=depth, open_end=open_end)  # fmt: skip
            spare -= used - second
        elif spare > 0 and not heavy:
            spare -= self._fill(clause, role, spare, end, front)
        return clause, budget - spare

    def _verb(
        self,
        room: int,
        tenses: tuple[str, ...],
        role: str,
        gap: str,
        antecedent: NP | None,
        question: str,
        allow: bool,
    ) -> tuple[Verb, bool, str]:
        """A verb that suits its place, whether it is passive, and its tense."""
        noun = antecedent.noun.classes if antecedent is not None and antecedent.noun is not None else ""
        subjects = noun if gap == "subject" else "P" if question == "subject" or role in ROLES_OF_PEOPLE else ""
        objects = noun if gap == "object" else "PATCXMED" if question == "object" else ""
        names = GAP_FRAMES.get(gap) or (("object",) if question == "object" else _frames(role, question))
        options = []
        for name in names:
            weight, least = FRAMES[name]
            if name in EMBEDDING:
                weight *= 1 + room / 6
            if room >= least and (allow or name not in EMBEDDING):
                options.append((name, weight))
        while options:
            name = self.weighted(options)
            passive = name == "passive"
            found: tuple[Verb, ...]
            if name in ("be", "cost"):
                found = (BE if name == "be" else COST,)
                if subjects and not any(letter in found[0].subjects for letter in subjects):
                    found = ()
            elif passive:
                found = tuple(verb for verb in words.verbs("object", "", subjects) if verb.passive)
            else:
                found = words.verbs(name, subjects, objects)
            if question:
                found = tuple(verb for verb in found if not verb.preposition)
            if found:
                verb = self.pick(found)
                allowed = _tenses(verb, passive, tenses)
                if allowed:
                    return verb, passive, self.pick(allowed)
            options = [option for option in options if option[0] != name]
        fallback = tuple(verb for verb in words.verbs("plain", subjects or "P") if not verb.stative)
        return self.pick(fallback), False, self.pick(tenses)
