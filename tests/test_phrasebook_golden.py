"""Sentences of the phrasebook whose translations and alignments were written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regard.data.synthetic import english, german, lexicon, phrases, turkish
from regard.data.synthetic.phrasebook import Pair
from regard.data.synthetic.syntax import (
    CLAUSE_KEYS,
    FIRST,
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
    Phrase,
    Sentence,
    Token,
    links,
)


class Book:
    """Builds trees by hand, so that what a sentence should be in German and Turkish can be written next to it."""

    def __init__(self) -> None:
        self.key = 0

    def keys(self, count: int) -> int:
        self.key += count
        return self.key - count

    def fixed(self, phrase: Phrase) -> Fixed:
        return Fixed(self.keys(phrase.keys), phrase)

    def time(self, tense: str, text: str) -> Fixed:
        known = [phrase for group in phrases.times(tense) for phrase in group]
        return self.fixed(next(p for p in known if " ".join(token[0] for token in p.texts["en"]) == text))

    def pronoun(self, word: str, person: int) -> NP:
        return NP("pronoun", self.keys(NP_KEYS), 1, person, pronoun=word)

    def np(self, determiner: str, word: str, *adjectives: str, number: int = 0, plural: bool = False) -> NP:
        noun = next(noun for noun in lexicon.NOUN_LIST if word in (noun.singular, noun.plural))
        said = [adjective for name in adjectives for adjective in lexicon.ADJECTIVE_LIST if adjective.english == name]
        phrase = NP("noun", self.keys(NP_KEYS), 2, PLURAL if plural else THIRD, noun, plural, determiner=determiner)
        phrase.adjectives = [(self.keys(1), adjective) for adjective in said]
        phrase.number = self.fixed(phrases.number(number)) if number else None
        return phrase

    def clause(self, verb: str, tense: str, subject: NP | None = None, **parts: object) -> Clause:
        name, _, rest = verb.partition(" ")
        frame = str(parts.pop("frame", ""))
        known = [lexicon.BE, lexicon.COST, *lexicon.VERB_LIST]
        found = next(
            v for v in known
            if v.english[0] == name and rest in (v.particle, v.preposition) and frame in ("", v.frame)
        )  # fmt: skip
        clause = Clause(self.keys(CLAUSE_KEYS), found, tense, subject.person if subject else THIRD, subject)
        for part, value in parts.items():
            setattr(clause, part, value)
        return clause

    def relative(self, phrase: NP, gap: str, clause: Clause) -> NP:
        clause.gap, clause.antecedent = gap, phrase
        if gap == "subject":
            clause.person = phrase.person
        phrase.relative = clause
        return phrase

    def sentence(self, main: Clause, kind: str = "statement") -> Sentence:
        return Sentence([Complex(kind, main)], [], self.fixed(phrases.STOPS[kind]))

    def subordinate(self, conjunction: str, other: Clause, main: Clause, first: bool) -> Sentence:
        found = next(c for c in lexicon.CONJUNCTIONS if c.english == conjunction)
        part = Complex("statement", main, None, found, other, first)
        return Sentence([part], [], self.fixed(phrases.STOPS["statement"]))


def wakes_up(book: Book) -> Sentence:
    subject = book.np("the", "girl", "young")
    return book.sentence(book.clause("wake up", "pres", subject, front=book.time("pres", "every day")))


def numbers(book: Book) -> Sentence:
    apples = book.np("number", "apple", "fresh", number=42, plural=True)
    return book.sentence(book.clause("buy", "perf", book.pronoun("I", FIRST), object=apples))


def hundreds(book: Book) -> Sentence:
    subject = book.np("this", "coat")
    return book.sentence(book.clause("cost", "pres", subject, price=book.fixed(phrases.number(242))))


def object_relative(book: Book) -> Sentence:
    student = book.np("the", "student")
    book.relative(student, "object", book.clause("help", "past", book.np("the", "doctors", plural=True)))
    return book.sentence(book.clause("laugh", "prog", student, frame="plain"))


def waited_for(book: Book) -> Sentence:
    bus = book.np("the", "bus")
    book.relative(bus, "object", book.clause("wait for", "pres", book.pronoun("you", SECOND)))
    return book.sentence(book.clause("see", "pres", book.np("my", "friend"), object=bus, frame="object"))


def knows_that(book: Book) -> Sentence:
    inner = book.clause("open", "past", book.np("the", "boy"), object=book.np("the", "window"), negated=True)
    outer = book.clause("know", "pres", book.pronoun("I", FIRST), frame="that", embedded=inner, embedding="that")
    return book.sentence(outer)


def whether(book: Book) -> Sentence:
    inner = book.clause("come back", "fut", book.np("her", "aunt"))
    outer = book.clause("ask", "past", book.np("a", "guest"), embedded=inner, embedding="whether")
    return book.sentence(outer)


def because(book: Book) -> Sentence:
    other = book.clause("fall asleep", "perf", book.pronoun("she", THIRD))
    main = book.clause("turn off", "fut", book.np("the", "man", "old"), object=book.np("the", "lamp"))
    return book.subordinate("because", other, main, first=True)


def if_clause(book: Book) -> Sentence:
    other = book.clause("drink", "pres", book.np("the", "horse"), object=book.np("", "water", "cold"))
    main = book.clause("sleep", "can", book.pronoun("you", SECOND))
    return book.subordinate("if", other, main, first=False)


def denied(book: Book) -> Sentence:
    car = book.np("a", "car", "expensive")
    return book.sentence(book.clause("sell", "want", book.np("our", "neighbour"), object=car, negated=True))


def tries(book: Book) -> Sentence:
    inner = book.clause("throw away", "inf", object=book.np("the", "knives", plural=True))
    return book.sentence(book.clause("try", "must", book.pronoun("we", WE), embedded=inner, embedding="to"))


def gives(book: Book) -> Sentence:
    letter, queen = book.np("a", "letter", "long"), book.np("the", "queen")
    company = PP(book.keys(1), lexicon.WITH, book.np("my", "friend"))
    return book.sentence(
        book.clause("give", "past", book.np("the", "farmer"), object=letter, recipient=queen, company=company)
    )


def passive(book: Book) -> Sentence:
    clause = book.clause("find", "past", book.np("the", "keys", plural=True), passive=True, frame="object")
    clause.agent = book.np("the", "teacher")
    clause.place = PP(book.keys(1), lexicon.IN, book.np("the", "garden"))
    return book.sentence(clause)


def older(book: Book) -> Sentence:
    castle = book.np("the", "house")
    castle.of = book.np("the", "king")
    adjective = next(a for a in lexicon.ADJECTIVE_LIST if a.english == "small")
    return book.sentence(
        book.clause("be", "past", castle, predicate=adjective, than=book.np("these", "trees", plural=True))
    )


def asks(book: Book) -> Sentence:
    film = book.np("which", "film")
    clause = book.clause("watch", "past", book.np("the", "children", plural=True), object=film, question="object")
    clause.time = book.time("past", "at half past seven")
    return book.sentence(clause, "question")


GOLDEN = [
    (wakes_up, "Every day the young girl wakes up .",
     "Jeden Tag wacht das junge Mädchen auf .", "0-0 1-1 2-3 3-4 4-5 5-2 5p6 6p2 6-6 7-7",
     "Her gün genç kız uyanır .", "0-0 1-1 2p3 3-2 4-3 5-4 6-4 7-5"),
    (numbers, "I have bought forty-two fresh apples .",
     "Ich habe zweiundvierzig frische Äpfel gekauft .", "0-0 1-1 2-5 3-2 4-3 5-4 6-6",
     "Kırk iki taze elma satın aldım .", "0-5 1p5 2-4 2-5 3-0 3-1 4-2 5-3 6-6"),
    (hundreds, "This coat costs two hundred and forty-two euros .",
     "Dieser Mantel kostet zweihundertzweiundvierzig Euro .", "0-0 1-1 2-2 3-3 4-3 5p3 6-3 7-4 8-5",
     "Bu palto iki yüz kırk iki euro .", "0-0 1-1 2p6 3-2 4-3 6-4 6-5 7-6 8-7"),
    (object_relative, "The student whom the doctors helped is laughing .",
     "Der Student , dem die Ärzte halfen , lacht .", "0-0 1-1 2-3 3-4 4-5 5-6 6p8 7-8 8-9",
     "Doktorların yardım ettiği öğrenci gülüyor .", "0p3 1-3 2p2 3p0 4-0 5-1 5-2 6p4 7-4 8-5"),
    (waited_for, "My friend sees the bus for which you wait .",
     "Mein Freund sieht den Bus , auf den du wartest .", "0-0 1-1 2-2 3-3 4-4 5-6 6-7 7-8 8-9 9-10",
     "Arkadaşım beklediğin otobüsü görüyor .", "0-0 1-0 2-3 3p2 4-2 5p1 6p1 7-1 8-1 9-4"),
    (knows_that, "I know that the boy did not open the window .",
     "Ich weiß , dass der Junge das Fenster nicht aufmachte .",
     "0-0 1-1 2-3 3-4 4-5 5p9 6-8 7-9 8-6 9-7 10-10",
     "Oğlanın pencereyi açmadığını biliyorum .", "0-3 1-3 2p2 3p0 4-0 5p2 6-2 7-2 8p1 9-1 10-4"),
    (whether, "A guest asked whether her aunt will come back .",
     "Ein Gast fragte , ob ihre Tante zurückkommen wird .", "0-0 1-1 2-2 3-4 4-5 5-6 6-8 7-7 8-7 9-9",
     "Bir misafir onun teyzesinin geri gelip gelmeyeceğini sordu .",
     "0-0 1-1 2-7 3-5 3-6 4-2 5-3 6p5 6p6 7-4 7-5 7-6 8-4 8-5 8-6 9-8"),
    (because, "Because she has fallen asleep , the old man will turn off the lamp .",
     "Weil sie eingeschlafen ist , wird der alte Mann die Lampe ausschalten .",
     "0-0 1-1 2-3 3-2 4-2 5-4 6-6 7-7 8-8 9-5 10-11 11-11 12-9 13-10 14-12",
     "O uyuyakaldığı için yaşlı adam lambayı kapatacak .",
     "0-2 1-0 2p1 3-1 4-1 6p4 7-3 8-4 9p6 10-6 11-6 12p5 13-5 14-7"),
    (if_clause, "You can sleep if the horse drinks cold water .",
     "Du kannst schlafen , wenn das Pferd kaltes Wasser trinkt .", "0-0 1-1 2-2 3-4 4-5 5-6 6-9 7-7 8-8 9-10",
     "At soğuk su içerse uyuyabilirsin .", "0-4 1-4 2-4 3-3 4p0 5-0 6-3 7-1 8-2 9-5"),
    (denied, "Our neighbour does not want to sell an expensive car .",
     "Unser Nachbar will kein teures Auto verkaufen .", "0-0 1-1 2p2 3-3 4-2 5p6 6-6 7p3 8-4 9-5 10-7",
     "Komşumuz pahalı bir araba satmak istemiyor .", "0-0 1-0 2p5 3-5 4-5 5p4 6-4 7-2 8-1 9-3 10-6"),
    (tries, "We must try to throw away the knives .",
     "Wir müssen versuchen , die Messer wegzuwerfen .", "0-0 1-1 2-2 3p6 4-6 5-6 6-4 7-5 8-7",
     "Bıçakları atmaya çalışmak zorundayız .", "0-3 1-3 2-2 3p1 4-1 5-1 6p0 7-0 8-4"),
    (gives, "The farmer gave a long letter to the queen with my friend .",
     "Der Bauer gab der Königin einen langen Brief mit meinem Freund .",
     "0-0 1-1 2-2 3-5 4-6 5-7 6p3 7-3 8-4 9-8 10-9 11-10 12-11",
     "Çiftçi arkadaşımla kraliçeye uzun bir mektup verdi .",
     "0p0 1-0 2-6 3-4 4-3 5-5 6-2 7p2 8-2 9-1 10-1 11-1 12-7"),
    (passive, "The keys were found by the teacher in the garden .",
     "Die Schlüssel wurden vom Lehrer im Garten gefunden .", "0-0 1-1 2-2 3-7 4-3 5-3 6-4 7-5 8-5 9-6 10-8",
     "Anahtarlar bahçede öğretmen tarafından bulundu .", "0p0 1-0 2p4 3-4 4-3 5p2 6-2 7-1 8p1 9-1 10-5"),
    (older, "The house of the king was smaller than these trees .",
     "Das Haus des Königs war kleiner als diese Bäume .", "0-0 1-1 2p2 3-2 4-3 5-4 6-5 7-6 8-7 9-8 10-9",
     "Kralın evi bu ağaçlardan daha küçüktü .", "0p1 1-1 2-0 3p0 4-0 5p5 6-4 6-5 7-3 8-2 9-3 10-6"),
    (asks, "Which film did the children watch at half past seven ?",
     "Welchen Film schauten die Kinder um halb acht an ?", "0-0 1-1 2p2 3-3 4-4 5-2 5-8 6-5 7-6 8p6 9-7 10-9",
     "Çocuklar saat yedi buçukta hangi filmi izledi ?", "0-4 1-5 2p6 3p0 4-0 5-6 6p1 6-3 7-3 8p3 9-2 10-7"),
]  # fmt: skip


@pytest.mark.parametrize("row", GOLDEN, ids=[row[0].__name__ for row in GOLDEN])
def test_translations_and_alignments(row: tuple[Callable[[Book], Sentence], str, str, str, str, str]) -> None:
    build, source, *targets = row
    tree = build(Book())
    spelt = english.sentence(tree)
    assert _text(spelt) == source
    for spell, (target, alignment) in zip((german.sentence, turkish.sentence), (targets[:2], targets[2:]), strict=True):
        tokens = spell(tree)
        assert _text(tokens) == target
        assert Pair("", "", *links(spelt, tokens)).alignment == alignment


def _text(tokens: list[Token]) -> str:
    return " ".join(token[0] for token in tokens)
