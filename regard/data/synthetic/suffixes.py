"""Turkish endings: vowel harmony, consonant assimilation, and the stems of nouns and verbs.

An ending is written with archiphonemes, as grammars do (Göksel and Kerslake, "Turkish: A Comprehensive Grammar", 2005,
chapters 2, 3 and 6): `A` is a or e, `I` is ı, i, u or ü, `D` is d or t. A letter in brackets stands only where it keeps
two vowels, or two consonants, apart: `(y)A`, `(I)m`.
"""

from __future__ import annotations

from functools import cache

VOWELS = "aıoueiöüâ"
HARMONY = {"a": "aı", "ı": "aı", "o": "au", "u": "au", "e": "ei", "i": "ei", "ö": "eü", "ü": "eü", "â": "aı"}
VOICELESS = "fstkçşhp"

CASES = {"nom": "", "acc": "(y)I", "dat": "(y)A", "loc": "DA", "abl": "DAn", "gen": "(n)In", "ins": "(y)lA"}
AFTER_POSSESSIVE = {"nom": "", "acc": "nI", "dat": "nA", "loc": "nDA", "abl": "nDAn", "gen": "nIn", "ins": "ylA"}
# Possessors I, you, he or she, we, they; a noun in a genitive construction is possessed by the third person.
POSSESSIVES = ("(I)m", "(I)n", "(s)I", "(I)mIz", "(s)I")
THIRD = 2

# Monosyllabic verbs whose aorist is -Ir although others of their shape have -Ar.
AORIST_IR = frozenset(["al", "bil", "bul", "dur", "gel", "gör", "kal", "öl", "ol", "san", "var", "ver", "vur", "yen"])
SOFT = {"et": "ed", "git": "gid", "kaybet": "kaybed", "ye": "yiy"}


@cache
def attach(word: str, ending: str, soft: str = "") -> str:
    """`word` with `ending`; `soft` is the form of the word before a vowel, where it differs ("kitab" of "kitap")."""
    if not ending:
        return word
    if ending[0] == "(":
        if soft and word[-1] in VOWELS:
            word, soft = soft, ""
        buffer, ending = ending[1], ending[3:]
        if (word[-1] in VOWELS) != (buffer in "AI"):
            ending = buffer + ending
    if soft and ending[0] in "AI":
        word = soft
    vowel = last_vowel(word)
    text = word
    for letter in ending:
        if letter == "A":
            letter = HARMONY[vowel][0]
        elif letter == "I":
            letter = HARMONY[vowel][1]
        elif letter == "D":
            letter = "t" if text[-1] in VOICELESS else "d"
        if letter in VOWELS:
            vowel = letter
        text += letter
    return text


def last_vowel(word: str) -> str:
    """The vowel that the endings of a word agree with."""
    return next((letter for letter in reversed(lower(word)) if letter in VOWELS), "e")


def lower(word: str) -> str:
    """Lower case as Turkish has it: I and İ are two letters."""
    return word.replace("I", "ı").replace("İ", "i").lower()


@cache
def noun_form(stem: str, soft: str, plural: bool, possessor: int, case: str) -> str:
    """A noun in a case; `possessor` is -1 for none, else an index of `POSSESSIVES`."""
    word, soft = (attach(stem, "lAr"), "") if plural else (stem, soft)
    if possessor < 0:
        return attach(word, CASES[case], soft)
    owned = attach(word, POSSESSIVES[possessor], soft)
    return attach(owned, (AFTER_POSSESSIVE if POSSESSIVES[possessor] == "(s)I" else CASES)[case])


@cache
def name_form(name: str, case: str) -> str:
    """A proper name in a case; an apostrophe keeps the name apart from its ending."""
    form = attach(name, CASES[case])
    return name + "'" + form[len(name) :] if case != "nom" else name


@cache
def stem_of(verb: str, passive: bool, able: bool, negated: bool) -> str:
    """The stem with voice, ability and negation: "aç", "açıl", "açılabil", "açılama"."""
    soft = SOFT.get(verb, "")
    if passive:
        ending = "n" if verb[-1] in VOWELS else "In" if verb[-1] == "l" else "Il"
        verb, soft = attach(verb, ending, "" if verb == "ye" else soft), ""
    if able:
        verb, soft = attach(verb, "(y)AmA" if negated else "(y)Abil", soft), ""
    elif negated:
        verb = attach(verb, "mA")
    return verb


@cache
def verb_form(stem: str, ending: str) -> str:
    """A verb stem with an ending; -iyor and the aorist, which change the stem, are written `Iyor` and `Ir`."""
    if ending.startswith("Iyor") and stem[-1] in VOWELS:
        cut = stem[:-1]
        vowel = last_vowel(cut) if any(letter in VOWELS for letter in cut) else stem[-1]
        return attach(cut + HARMONY[vowel][1], ending[1:])
    if ending.startswith("Ir"):
        return attach(aorist(stem), ending[2:])
    return attach(stem, ending, SOFT.get(stem, ""))


@cache
def aorist(stem: str) -> str:
    """The aorist of a stem that is not negated: "uyur", "gelir", "yazar", "gider"."""
    if stem[-1] in VOWELS:
        return stem + "r"
    soft = SOFT.get(stem, "")
    monosyllable = sum(letter in VOWELS for letter in stem) == 1
    return attach(stem, "Ar" if soft or (monosyllable and stem not in AORIST_IR) else "Ir", soft)
