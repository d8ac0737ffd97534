"""Adverbs, numbers, dates and times in three languages.

Numbers are spelt by num2words, the names of days and months come from CLDR by way of Babel. Numbers above 99 and
dates are open-ended, so that a model must compose what it has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from regard.data.synthetic.suffixes import attach, lower
from regard.data.synthetic.syntax import Phrase  # which needs Babel
from regard.errors import require

num2words = require("num2words").num2words

FREQUENCY = (
    Phrase("often", "oft", "sık sık"),
    Phrase("always", "immer", "her zaman"),
    Phrase("sometimes", "manchmal", "bazen"),
    Phrase("rarely", "selten", "nadiren"),
    Phrase("usually", "meistens", "genellikle"),
)
NEVER = Phrase("never", "nie", "hiçbir zaman")
MANNER = (
    Phrase("quickly", "schnell", "hızla"),
    Phrase("slowly", "langsam", "yavaşça"),
    Phrase("carefully", "vorsichtig", "dikkatle"),
    Phrase("quietly", "leise", "sessizce"),
    Phrase("happily", "fröhlich", "neşeyle"),
    Phrase("patiently", "geduldig", "sabırla"),
    Phrase("alone", "allein", "tek başına"),
)
CALM = MANNER[3:]
PLEASE = Phrase("please", "bitte", "lütfen")
JOINERS = (
    Phrase(",/0 and/1", ",/0 und/1", "ve/1"),
    Phrase(",/0 but/1", ",/0 aber/1", ",/0 ama/1"),
    Phrase(",/0 so/1", ",/0 deshalb/1", ",/0 bu/1 yüzden/1"),
)
SO = JOINERS[2]
STOPS = {
    "statement": Phrase(".", ".", "."),
    "question": Phrase("?", "?", "?"),
    "command": Phrase("!", "!", "!"),
    "suggestion": Phrase("!", "!", "!"),
}

SOFT_NUMBERS = {"dört": "dörd"}
EURO = ("euros", "Euro", "Euro")

_TODAY = Phrase("today", "heute", "bugün")
_UNITS = (
    ("days", "Tagen", "Tage", "gün"),
    ("weeks", "Wochen", "Wochen", "hafta"),
    ("months", "Monaten", "Monate", "ay"),
    ("years", "Jahren", "Jahre", "yıl"),
)


@cache
def number(value: int) -> Phrase:
    """A cardinal number from 2 to 999: `two hundred and forty-two`, `zweihundertzweiundvierzig`, `iki yüz kırk iki`."""
    return Phrase(*_spelt(value))


@cache
def _spelt(value: int) -> tuple[str, str, str]:
    hundreds, rest = divmod(value, 100)
    german = num2words(value, lang="de")
    if not hundreds:
        return f"{num2words(value)}/0", f"{german}/0", _turkish(value, 0)
    english = f"{num2words(hundreds)}/0 hundred/1" + (f" and/2 {num2words(rest)}/3" if rest else "")
    hundred = f"{num2words(hundreds, lang='tr')}/0 yüz/1" if hundreds > 1 else "yüz/1?0"
    return english, f"{german}/013?2" if rest else f"{german}/01", f"{hundred} {_turkish(rest, 3)}".strip()


def _turkish(value: int, key: int, ending: str = "", more: str = "") -> str:
    """A number from 0 to 99 in Turkish, ten and unit apart (num2words joins them); the last word takes the ending."""
    parts = [num2words(part, lang="tr") for part in (value // 10 * 10, value % 10) if part]
    if ending:
        parts[-1] = attach(parts[-1], ending, SOFT_NUMBERS.get(parts[-1], ""))
    spelt = [f"{part}/{key}" for part in parts]
    if more:
        spelt[-1] += more
    return " ".join(spelt)


def _counted(count: int, english: str, german: str, turkish: str) -> Phrase:
    numbers = _spelt(count)
    frames = (english, german, turkish)
    return Phrase(*(frame.replace("#", spelt) for frame, spelt in zip(frames, numbers, strict=True)))


def _days() -> list[tuple[str, str, str]]:
    from babel.dates import get_day_names

    names = [get_day_names("wide", "stand-alone", locale) for locale in ("en", "de", "tr")]
    return [(names[0][day], names[1][day], lower(names[2][day])) for day in range(7)]


def _months() -> list[tuple[str, str, str]]:
    from babel.dates import get_month_names

    names = [get_month_names("wide", "stand-alone", locale) for locale in ("en", "de", "tr")]
    return [(names[0][month], names[1][month], names[2][month]) for month in range(1, 13)]


def _before() -> Iterable[Phrase]:
    yield Phrase("yesterday", "gestern", "dün")
    yield Phrase("last/0 week/1", "letzte/0 Woche/1", "geçen/0 hafta/1")
    yield Phrase("last/0 month/1", "letzten/0 Monat/1", "geçen/0 ay/1")
    yield Phrase("last/0 year/1", "letztes/0 Jahr/1", "geçen/0 yıl/1")


def _ago() -> Iterable[Phrase]:
    for english, dative, _, turkish in _UNITS:
        for count in range(2, 20):
            yield _counted(count, f"# {english}/4 ago/5", f"vor/5 # {dative}/4", f"# {turkish}/4 önce/5")


def _years() -> Iterable[Phrase]:
    for year in range(1911, 2000):
        century, rest = num2words(year, to="year").split(" ")
        german = num2words(year, lang="de", to="year")
        turkish = f"bin/1 dokuz/1 yüz/1 {_turkish(year % 100, 2, 'DA', '0')}"
        yield Phrase(f"in/0 {century}/1 {rest}/2", f"im/0 Jahr/?0 {german}/12", turkish)


def _after() -> Iterable[Phrase]:
    yield Phrase("tomorrow", "morgen", "yarın")
    yield Phrase("next/0 week/1", "nächste/0 Woche/1", "gelecek/0 hafta/1")
    yield Phrase("next/0 month/1", "nächsten/0 Monat/1", "gelecek/0 ay/1")
    yield Phrase("next/0 year/1", "nächstes/0 Jahr/1", "gelecek/0 yıl/1")


def _from_now() -> Iterable[Phrase]:
    for english, dative, _, turkish in _UNITS:
        for count in range(2, 20):
            yield _counted(count, f"in/5 # {english}/4", f"in/5 # {dative}/4", f"# {turkish}/4 sonra/5")


def _lasting() -> Iterable[Phrase]:
    for english, _, plural, turkish in _UNITS:
        for count in range(2, 20):
            yield _counted(count, f"for/5 # {english}/4", f"# {plural}/4 lang/5", f"# {turkish}/4 boyunca/5")


def _habits() -> Iterable[Phrase]:
    yield Phrase("every/0 day/1", "jeden/0 Tag/1", "her/0 gün/1")
    yield Phrase("every/0 week/1", "jede/0 Woche/1", "her/0 hafta/1")
    yield Phrase("every/0 evening/1", "jeden/0 Abend/1", "her/0 akşam/1")
    for english, german, turkish in _days():
        yield Phrase(f"every/0 {english}/1", f"jeden/0 {german}/1", f"her/0 {turkish}/1")


def _day_times() -> Iterable[Phrase]:
    yield _TODAY
    yield Phrase("in/0 the/1 morning/2", "am/01 Morgen/2", "sabah/2?01")
    yield Phrase("in/0 the/1 afternoon/2", "am/01 Nachmittag/2", "öğleden/2 sonra/2?0")
    yield Phrase("in/0 the/1 evening/2", "am/01 Abend/2", "akşam/2?01")
    yield Phrase("at/0 night/1", "in/0 der/?0 Nacht/1", "gece/1?0")


def _weekdays() -> Iterable[Phrase]:
    for english, german, turkish in _days():
        yield Phrase(f"on/0 {english}/1", f"am/0 {german}/1", f"{turkish}/1 günü/?01")
    for english, german, turkish in _months():
        yield Phrase(f"in/0 {english}/1", f"im/0 {german}/1", f"{attach(lower(turkish), 'DA')}/10")


def _dates() -> Iterable[Phrase]:
    for (english, german, turkish), days in zip(_months(), (31, 28, 31, 30, 31, 30) * 2, strict=True):
        located = attach(turkish, "DA")
        for day in range(1, days + 1):
            yield Phrase(
                f"on/0 the/1 {num2words(day, to='ordinal')}/2 of/3 {english}/4",
                f"am/01 {num2words(day, to='ordinal', lang='de')}n/2 {german}/4?3",
                f"{_turkish(day, 2)} {turkish}'{located[len(turkish) :]}/40?3",
            )


def _clock() -> Iterable[Phrase]:
    for hour in range(1, 13):
        english = num2words(hour)
        full = {1: "ein"}.get(hour, num2words(hour, lang="de"))
        german, later = num2words(hour, lang="de"), num2words(hour % 12 + 1, lang="de")
        yield Phrase(f"at/0 {english}/1 o'clock/2", f"um/0 {full}/1 Uhr/2", f"saat/2 {_turkish(hour, 1, 'DA', '0')}")
        yield Phrase(
            f"at/0 half/1 past/2 {english}/3",
            f"um/0 halb/1?2 {later}/3",
            f"saat/?0 {_turkish(hour, 3)} buçukta/10?2",
        )
        yield Phrase(
            f"at/0 a/?1 quarter/1 past/2 {english}/3",
            f"um/0 Viertel/1 nach/2 {german}/3",
            f"saat/?0 {_turkish(hour, 3, '(y)I')} çeyrek/1 geçe/2?0",
        )


@cache
def times(tense: str) -> tuple[tuple[Phrase, ...], ...]:
    """The phrases that say when, for a tense: groups of like ones, each group as likely as another."""
    groups: list[Iterable[Phrase]] = [_day_times(), _weekdays(), _dates(), _clock()]
    if tense in ("past", "could", "wanted", "had"):
        groups += [_before(), _ago(), _years(), _lasting()]
    elif tense == "fut":
        groups += [_after(), _from_now(), _lasting()]
    elif tense == "pres":
        groups = [_habits(), _habits(), _weekdays(), _clock()]
    elif tense == "prog":
        groups = [(_TODAY,), (Phrase("now", "jetzt", "şimdi"),)]
    elif tense == "perf":
        groups = [(_TODAY,)]
    elif tense == "pluperf":
        groups = [(_TODAY,), _lasting()]
    return tuple(tuple(group) for group in groups)
