"""Random clauses of a wanted length: the second part of the grammar.

Words are spent, not counted afterwards: a clause is told how many English words it has, pays for its verb, sets aside
what its arguments need at least, and shares the rest among adjuncts, modifiers and embedded clauses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from regard.data.synthetic import lexicon as words
from regard.data.synthetic import phrases
from regard.data.synthetic.lexicon import BE, COST, Verb
from regard.data.synthetic.nominals import Nominals
from regard.data.synthetic.syntax import CLAUSE_KEYS, NP, NP_KEYS, PLURAL, PP, THIRD, Clause, Fixed, Tenses

PAST = ("past", "could", "had")
EMBEDDED = ("pres", "pres", "prog", "past", "past", "perf", "fut", "can", "must")
RELATIVE = ("pres", "pres", "prog", "past", "past", "perf", "can", "must")
WHETHER = ("pres", "prog", "past", "fut")

# How many words a tense takes where it is not two, and where "do" appears under negation and in questions.
GROUP = {"pres": 1, "past": 1, "inf": 1, "imp": 1, "want": 3, "wanted": 3, "had": 3}
DO_SUPPORT = frozenset(("pres", "past", "want", "wanted", "imp"))
NEGATABLE = frozenset(("pres", "prog", "past", "perf", "fut", "can", "could", "want", "wanted", "should"))
# Second verb phrases need no auxiliary of their own in German: the perfect would, with haben and sein.
SHARED = frozenset(("pres", "prog", "past", "fut", "can", "could", "must", "had", "want", "wanted", "should"))
# The tenses of verbs that do not have them all.
BE_TENSES = frozenset(("pres", "past", "fut"))
STATIVE_TENSES = frozenset(("pres", "past", "perf", "fut", "inf"))
PASSIVE_TENSES = frozenset(("pres", "past", "perf", "fut", "can", "must", "should"))

# Frames: their weight, and the fewest words they need for their verb and arguments.
FRAMES = {
    "plain": (3.0, 1), "object": (7.0, 2), "give": (2.0, 5), "go": (2.0, 3), "be": (4.0, 2), "cost": (0.5, 3),
    "passive": (1.6, 2), "that": (1.6, 4), "whether": (0.7, 4), "to": (1.0, 3),
}  # fmt: skip
EMBEDDING = frozenset(("that", "whether", "to"))
ACTIONS = ("plain", "object", "give", "go")
# The roles of clauses without be, cost, passive and embedded statements: what Turkish says there would be awkward.
ACTION_ROLES = frozenset(("command", "suggestion", "önce", "sonra", "while"))
SUBJECTLESS = frozenset(("infinitive", "command", "suggestion", "second"))
# The roles whose Turkish form has no room for negation.
POSITIVE_ROLES = frozenset(("önce", "sonra", "while", "question", "second", "whether", "suggestion", "infinitive"))
GAP_FRAMES = {"object": ("object", "give"), "recipient": ("give",), "place": ("plain", "object")}
QUANTIFIERS = frozenset(("every", "all", "some", "many", "number"))
ADJUNCTS = (("time", 0.3), ("place", 0.28), ("manner", 0.12), ("company", 0.12))


@dataclass(frozen=True, slots=True)
class Site:
    """Where a clause stands, which decides what it may contain."""

    role: str = "main"  # or question, command, suggestion, relative, that, whether, infinitive, second, a conjunction
    depth: int = 2  # how many clauses may stand inside one another
    gap: str = ""
    antecedent: NP | None = None
    person: int = THIRD  # of the subject, where it stands outside the clause
    question: str = ""
    open_end: bool = False  # no clause at the end, since what follows would seem to belong to that one
    front: bool = False  # time or place may stand first


@cache
def _tenses(verb: Verb, passive: bool, wanted: Tenses) -> Tenses:
    """Those of the wanted tenses that the verb has."""
    if verb is COST:
        return tuple(tense for tense in wanted if tense == "pres")
    allowed = BE_TENSES if verb is BE else PASSIVE_TENSES if passive else STATIVE_TENSES if verb.stative else None
    return wanted if allowed is None else tuple(tense for tense in wanted if tense in allowed)


@cache
def _candidates(frame: str, subjects: str, objects: str, question: bool) -> tuple[Verb, ...]:
    """The verbs for a frame; a question puts no preposition first."""
    if frame in ("be", "cost"):
        verb = BE if frame == "be" else COST
        return (verb,) if not subjects or any(letter in verb.subjects for letter in subjects) else ()
    if frame == "passive":
        return tuple(verb for verb in words.verbs("object", "", subjects) if verb.passive)
    return tuple(verb for verb in words.verbs(frame, subjects, objects) if not (question and verb.preposition))


@cache
def _frames(role: str, gap: str, question: str) -> tuple[str, ...]:
    if gap in GAP_FRAMES:
        return GAP_FRAMES[gap]
    if question in ("object", "where"):
        return ("object",) if question == "object" else ("plain", "object")
    if role == "infinitive":
        return ACTIONS
    if role == "second":
        return (*ACTIONS, "that", "to")
    return (*ACTIONS, "to") if role in ACTION_ROLES else tuple(FRAMES)


def _group(clause: Clause, role: str) -> int:
    """The words of the verb with its auxiliaries, particle and preposition."""
    verb, tense = clause.verb, clause.tense
    if role == "second":
        return 1 + bool(verb.particle) + bool(verb.preposition)
    size = GROUP.get(tense, 2) + clause.passive + (clause.negated and tense != "can") + bool(verb.particle)
    size += bool(verb.preposition) and clause.gap != "object"
    inverted = clause.question not in ("", "subject")
    if (clause.negated or inverted) and tense in DO_SUPPORT and verb is not BE and not clause.passive:
        size += 1
    return size


def _deliberate(clause: Clause) -> bool:
    """Whether one does it, so that it can be done quickly, or with a friend: trains only arrive."""
    verb = clause.verb
    return verb.frame in ACTIONS and not (clause.passive or verb.stative or verb.subjects.strip("PA"))


def _least(clause: Clause) -> int:
    """The fewest words the arguments need."""
    frame = clause.frame
    if frame == "object":
        return 0 if clause.gap == "object" else 1 if "P" in clause.verb.objects else 2
    if frame == "give":
        return 4 - 2 * (clause.gap in ("object", "recipient"))
    return {"plain": 0, "passive": 0, "be": 1}.get(frame, 3 if frame in ("that", "whether") else 2)


class Clauses(Nominals):
    """Draws clauses."""

    def clause(self, budget: int, tenses: Tenses, site: Site) -> tuple[Clause, int]:
        """A clause of about `budget` words, and how many it has."""
        subject_inside = site.role not in SUBJECTLESS and site.gap != "subject"
        verb, passive, tense = self._verb(budget - subject_inside, tenses, site)
        clause = Clause(self.keys(CLAUSE_KEYS), verb, tense, site.person, passive=passive, gap=site.gap)
        clause.antecedent, clause.question = site.antecedent, site.question
        if site.question == "object" and verb.frame != "object":
            clause.question = "yes"
        if site.gap == "subject" and site.antecedent is not None:
            clause.person = site.antecedent.person
        if tense in NEGATABLE or site.role == "command":
            clause.negated = site.role not in POSITIVE_ROLES and self.chance(0.14)
        frame = clause.frame
        spare = budget - _group(clause, site.role) - _least(clause)
        classes = verb.objects if passive else verb.subjects
        least = 0 if not subject_inside else 1 if "P" in classes or site.question == "subject" else 2
        spare -= least + (site.question in ("where", "when", "why"))
        if least == 1 and spare > 0 and self.chance(0.6):
            least, spare = 2, spare - 1
        heavy = not site.open_end and site.depth > 0 and spare > 2 and frame != "plain" and self.chance(0.6)
        heavy = heavy or frame in EMBEDDING
        share = 0  # of the words, for a second verb phrase: "opens the door and laughs"
        plain = not (clause.negated or site.question or site.gap) and frame in ACTIONS and "P" in verb.subjects
        may_share = plain and subject_inside and tense in SHARED
        if not heavy and spare > 2 and may_share and self.chance(0.25):
            share = 2 + int(self._draw() * (spare - 2))
            spare -= share + 1
        elif spare > 0 and frame not in ("be", "cost"):
            for slot, probability in ADJUNCTS:
                if self.chance(probability):
                    spare -= self._adjoin(clause, site, slot, spare, heavy)
        if subject_inside:
            clause.subject = self._subject(clause, site, classes, least, spare)
            clause.person = clause.subject.person
            spare -= clause.subject.words - least
        subject = clause.subject
        human = subject is not None and subject.pair is None and (subject.noun is None or subject.noun.human)
        if share and not human:
            spare += share + 1
            share = 0
        trailing = any(x is not None for x in (clause.time, clause.place, clause.manner, clause.company))
        ending = 0 if site.open_end or share or trailing else site.depth
        if frame in ACTIONS and not share and self.chance(0.1):
            spare -= self._frequency(clause, site, spare)
        closed, spare = self._complete(clause, site, spare, ending)
        if share:
            inner = Site("second", site.depth, person=clause.person, open_end=site.open_end)
            clause.also, used = self.clause(share + max(0, spare), (tense,), inner)
            spare += share - used
        slots = [] if share else ["time", "place", "manner", "company", "frequency"]
        while slots and spare > 0:
            slot = self.pick(slots)
            slots.remove(slot)
            spare -= self._adjoin(clause, site, slot, spare, closed)
        return clause, budget - spare

    def _verb(self, room: int, tenses: Tenses, site: Site) -> tuple[Verb, bool, str]:
        """A verb that suits its place, whether it is passive, and its tense."""
        noun = site.antecedent.noun if site.antecedent is not None else None
        classes = noun.classes if noun is not None else ""
        people = site.role in SUBJECTLESS or site.question == "subject"
        subjects = classes if site.gap == "subject" else "P" if people else ""
        objects = classes if site.gap == "object" else ""
        embed = not site.open_end and site.depth > 0
        frames = _frames(site.role, site.gap, site.question)
        missing = {"object": 1, "recipient": 2}.get(site.gap, 0)
        options = []
        for frame in frames:
            weight, least = FRAMES[frame]
            if frame in EMBEDDING:
                weight = weight * (1 + room / 6) if embed else 0.0
            if room >= least - missing and weight:
                options.append((frame, weight))
        while options:
            frame = self.weighted(options)
            found = _candidates(frame, subjects, objects, bool(site.question))
            if found:
                verb, passive = self.pick(found), frame == "passive"
                allowed = _tenses(verb, passive, tenses)
                if allowed:
                    return verb, passive, self.pick(allowed)
            options = [option for option in options if option[0] != frame]
        found = _candidates(frames[0], subjects or "P", objects, False)
        verb = self.pick([verb for verb in found if _tenses(verb, False, tenses)])
        return verb, False, self.pick(_tenses(verb, False, tenses))

    def _subject(self, clause: Clause, site: Site, classes: str, least: int, spare: int) -> NP:
        if site.question == "subject":
            return self._asked(classes, least + spare, subject=True)
        room = spare if clause.frame in ("plain", "be", "cost", "passive") else int(spare * self._draw())
        if self.chance(0.5):
            room = int(room * self._draw())
        definite = clause.negated or site.gap != "" or site.role == "question"
        depth = max(0, site.depth - 1) if site.role != "relative" else 0
        # In "is the dog in the garden ..." nothing would tell the subject from what is said of it.
        adrift = clause.frame == "be" and site.role == "question"
        return self.np(least + max(0, room), classes, depth=0 if adrift else depth, where=not adrift, definite=definite)

    def _asked(self, classes: str, budget: int, subject: bool) -> NP:
        """What a question asks for: who, what, which dog, how many dogs."""
        key = self.keys(NP_KEYS)
        if budget > 1 and classes != "G" and self.chance(0.5):
            noun = self.pick(words.nouns("P" if subject else classes))
            if budget > 2 and not noun.mass and self.chance(0.5):
                return NP("noun", key, 3, PLURAL, noun=noun, plural=True, determiner="how many")
            return NP("noun", key, 2, THIRD, noun=noun, determiner="which")
        human = subject or "P" in classes
        return NP("who" if human else "what", key, 1, THIRD)

    def _complete(self, clause: Clause, site: Site, spare: int, depth: int) -> tuple[bool, int]:
        """Add the arguments; says whether the clause now ends in another one, and the words still unspent."""
        frame, least = clause.frame, _least(clause)
        room, used = least + max(0, spare), 0
        last: NP | None = None
        if frame == "object" and clause.gap != "object":
            last = clause.object = self._object(clause, room, depth)
            used = last.words
        elif frame == "give":
            if clause.gap != "object":
                clause.object = self._object(clause, room - 2 * (clause.gap == ""), 0)
                used = clause.object.words
            if clause.gap != "recipient":
                size = room - used - 1
                last = clause.recipient = self.np(size, "P", depth=depth, definite=clause.negated, avoid=clause.person)
                used += 1 + last.words
        elif frame == "go":
            clause.complement = self.goal(2 if "Y" in clause.verb.objects else room, depth)
            last, used = clause.complement.np, clause.complement.words
        elif frame == "be":
            last, used = self._predicate(clause, room, depth)
        elif frame == "cost":
            clause.price = self.fixed(self._number(room - 1))
            used = clause.price.words + 1
        elif frame == "passive" and room > 2 and self.chance(0.6):
            last = clause.agent = self.np(room - 1, clause.verb.subjects, depth=depth, avoid=clause.person)
            used = 1 + last.words
        elif frame in EMBEDDING:
            clause.embedded, used = self._embed(clause, site, room - 1)
            used += 1
        return clause.embedded is not None or (last is not None and last.clausal), spare - used + least

    def _object(self, clause: Clause, room: int, depth: int) -> NP:
        verb = clause.verb
        if clause.question == "object":
            return self._asked(verb.objects, room, subject=False)
        limit = room if verb.frame == "object" else max(2, 2 + int((room - 2) * self._draw()))
        return self.np(limit, verb.objects, depth=depth, negated=clause.negated, avoid=clause.person, bare=True,
                       pronoun=not verb.particle and verb.frame == "object")  # fmt: skip

    def _predicate(self, clause: Clause, room: int, depth: int) -> tuple[NP | None, int]:
        """Say of the subject that it is old, older than another, or somewhere; the last noun phrase, and the words."""
        about = clause.subject if clause.gap != "subject" else clause.antecedent
        noun = about.noun if about is not None else None
        classes = "P" if noun is None else noun.classes
        adjectives = words.adjectives_of("P") if noun is None else words.adjectives(noun)
        if about is not None:
            if about.pair is not None:
                first, second = (half.noun.classes if half.noun is not None else "P" for half in about.pair)
                adjectives = tuple(a for a in words.adjectives_of(first) if a in words.adjectives_of(second))
            said = [adjective.opposite for _, adjective in about.adjectives]
            if about.relative is not None and about.relative.predicate is not None:
                said.append(about.relative.predicate.opposite)
            adjectives = tuple(adjective for adjective in adjectives if adjective.opposite not in said)
        movable = any(letter in "PATCMXVE" for letter in classes)
        if room > 1 and movable and (not adjectives or self.chance(0.35)):
            clause.complement = self.place(room, depth)
            return clause.complement.np, clause.complement.words
        clause.predicate = adjective = self.pick(adjectives or words.adjectives_of("P"))
        size = 1 + adjective.comparative.count(" ")
        if adjective.comparative and room > size + 2 and about is not None and about.pair is None and self.chance(0.7):
            same = next((letter for letter in classes if letter in adjective.classes), "P")
            clause.than = self.np(room - size - 1, same, depth=depth, definite=clause.negated, pronoun=False)
            return clause.than, size + 1 + clause.than.words
        return None, 1

    def _embed(self, clause: Clause, site: Site, room: int) -> tuple[Clause, int]:
        clause.embedding = clause.verb.frame
        if clause.embedding == "to":
            return self.clause(room, ("inf",), Site("infinitive", site.depth - 1, person=clause.person))
        tenses: Tenses = WHETHER if clause.embedding == "whether" else EMBEDDED
        if clause.tense in ("past", "perf"):
            tenses = ("past",) if clause.embedding == "whether" else PAST
        return self.clause(room, tenses, Site(clause.embedding, site.depth - 1))

    def _adjoin(self, clause: Clause, site: Site, slot: str, spare: int, closed: bool) -> int:
        """Add an adjunct if there is room and it would not seem to belong elsewhere; returns its words.

        When the clause is (or will be) closed by another one, nothing can follow; time and place can still come first.
        """
        if clause.predicate is not None and not clause.predicate.passing:
            return 0
        front = site.front and not clause.fronted and (closed or self.chance(0.45))
        if slot == "frequency":
            return self._frequency(clause, site, spare)
        taken = getattr(clause, slot) is not None or clause.fronted == slot
        if taken or (closed and (slot in ("manner", "company") or not front)):
            return 0
        somewhere = clause.frame in ("object", "passive") or (clause.frame == "plain" and "P" in clause.verb.subjects)
        item: Fixed | PP | None = None
        if slot == "time" and site.role != "infinitive" and site.question != "when":
            item = self._time(clause.tense, spare)
        elif slot == "place" and spare > 1 and somewhere and clause.gap != "place" and clause.question != "where":
            item = self.place(min(spare, 2 + int(self._draw() * spare)), 0)
        elif slot == "manner" and _deliberate(clause) and site.question != "object":
            item = self.fixed(self.pick(phrases.CALM if clause.verb.calm else phrases.MANNER))
        elif slot == "company" and spare > 1 and _deliberate(clause) and not clause.verb.preposition:
            useful = clause.frame == "object" and "P" not in clause.verb.objects
            kind = words.FOR if useful and self.chance(0.3) else words.WITH
            kind = words.WITHOUT if self.chance(0.2) else kind
            item = PP(self.keys(1), kind, self.np(min(3, spare - 1), kind.objects, definite=True, avoid=clause.person))
        if item is None:
            return 0
        if front and slot in ("time", "place"):
            clause.front, clause.fronted = item, slot
        else:
            setattr(clause, slot, item)
        return item.words

    def _frequency(self, clause: Clause, site: Site, spare: int) -> int:
        """Often, always, never; not after a subject that ends in a clause, which the adverb would seem to end."""
        unfit = clause.negated or clause.tense in ("prog", "inf", "imp", "pluperf") or clause.frequency is not None
        subject = clause.subject
        hanging = subject is not None and subject.clausal
        every_day = clause.tense == "pres" and (clause.time is not None or clause.fronted == "time")
        if spare < 1 or unfit or hanging or every_day or clause.verb is COST or site.role == "second":
            return 0
        # "Every man never" is no good Turkish.
        counted = subject is not None and (subject.pair is not None or subject.determiner in QUANTIFIERS)
        never = clause.tense in NEGATABLE and site.role not in POSITIVE_ROLES and not counted
        choice = phrases.NEVER if never and self.chance(0.2) else self.pick(phrases.FREQUENCY)
        clause.frequency = self.fixed(choice)
        return 1

    def _time(self, tense: str, spare: int) -> Fixed | PP | None:
        if spare > 2 and tense != "prog" and self.chance(0.2):
            occasion = self.pick(words.OCCASIONS)
            if occasion.words + 2 <= spare:
                size = min(3, spare - occasion.words)
                return PP(self.keys(1), occasion, self.np(size, occasion.objects, genitive=True, definite=True))
        for _ in range(3):
            phrase = self.pick(self.pick(phrases.times(tense)))
            if phrase.words <= spare:
                return self.fixed(phrase)
        return None

    def relative(self, antecedent: NP, budget: int, depth: int) -> tuple[Clause, int] | None:
        noun = antecedent.noun
        if noun is None or noun.mass:
            return None
        options = [("subject", 3.0)]
        if budget > 2 and _candidates("object", "", noun.classes, False):
            options.append(("object", 2.0))
        if budget > 5 and noun.human:
            options.append(("recipient", 0.6))
        if budget > 3 and "L" in noun.classes:
            options.append(("place", 2.0))
        gap = self.weighted(options)
        if gap == "subject" and not _candidates("plain", noun.classes, "", False) and budget < 3:
            return None
        marker = 2 if gap in ("recipient", "place") else 1
        site = Site("relative", depth, gap, antecedent, open_end=depth < 1)
        clause, used = self.clause(budget - marker, RELATIVE, site)
        if gap == "object" and clause.verb.preposition:
            marker = 2
        return clause, used + marker
