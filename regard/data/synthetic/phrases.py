"""Adverbs, numbers, dates and times in three languages.

Numbers are spelt by num2words, the names of days and months come from CLDR by way of Babel. Numbers above 99 and
dates are open-ended, so that a model must compose what it has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from regard.data.synthetic.lexicon import Locale
from regard.data.synthetic.suffixes import attach, lower
from regard.data.synthetic.syntax import Phrase
from regard.data.synthetic.tables import rows
from regard.errors import require

num2words = require("num2words").num2words


def _table(name: str) -> tuple[Phrase, ...]:
    return tuple(Phrase(*row) for row in rows(name))


FREQUENCY, MANNER, JOINERS = _table("frequency"), _table("manner"), _table("joiners")
NEVER = Phrase("never", "nie", "hiçbir zaman")
CALM = MANNER[3:]
PLEASE = Phrase("please", "bitte", "lütfen")
SO = JOINERS[2]
STOPS = {
    kind: Phrase(stop, stop, stop)
    for kind, stop in (("statement", "."), ("question", "?"), ("command", "!"), ("suggestion", "!"))
}
SOFT_NUMBERS = {"dört": "dörd"}
EURO = ("euros", "Euro", "Euro")


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
    return " ".join(f"{part}/{key}" for part in parts) + more


def _calendar(names: str) -> list[tuple[str, str, str]]:
    """The days or months in English, German and Turkish."""
    english, german, turkish = (getattr(Locale(code), names)["stand-alone"]["wide"] for code in ("en", "de", "tr"))
    return [(english[number], german[number], turkish[number]) for number in sorted(english)]


def _spans(table: str) -> Iterable[Phrase]:
    """Numbers of days, weeks, months and years."""
    (frames,) = rows(table)
    for unit in rows("units"):
        for count in range(2, 20):
            counted = zip(frames, _spelt(count), strict=True)
            yield Phrase(*(frame.format(*unit).replace("#", spelt) for frame, spelt in counted))


def _years() -> Iterable[Phrase]:
    for year in range(1911, 2000):
        century, rest = num2words(year, to="year").split(" ")
        german = num2words(year, lang="de", to="year")
        turkish = f"bin/1 dokuz/1 yüz/1 {_turkish(year % 100, 2, 'DA', '0')}"
        yield Phrase(f"in/0 {century}/1 {rest}/2", f"im/0 Jahr/?0 {german}/12", turkish)


def _habits() -> Iterable[Phrase]:
    yield from _table("habits")
    for english, german, turkish in _calendar("days"):
        yield Phrase(f"every/0 {english}/1", f"jeden/0 {german}/1", f"her/0 {lower(turkish)}/1")


def _weekdays() -> Iterable[Phrase]:
    for english, german, turkish in _calendar("days"):
        yield Phrase(f"on/0 {english}/1", f"am/0 {german}/1", f"{lower(turkish)}/1 günü/?01")
    for english, german, turkish in _calendar("months"):
        yield Phrase(f"in/0 {english}/1", f"im/0 {german}/1", f"{attach(lower(turkish), 'DA')}/10")


def _dates() -> Iterable[Phrase]:
    for (english, german, turkish), days in zip(_calendar("months"), (31, 28, 31, 30, 31, 30) * 2, strict=True):
        located = attach(turkish, "DA")
        for day in range(1, days + 1):
            yield Phrase(
                f"on/0 the/1 {num2words(day, to='ordinal')}/2 of/3 {english}/4",
                f"am/01 {num2words(day, to='ordinal', lang='de')}n/2 {german}/4?3",
                f"{_turkish(day, 2)} {turkish}'{located[len(turkish) :]}/40?3",
            )


def _clock() -> Iterable[Phrase]:
    for hour in range(1, 13):
        german, later = (num2words(n, lang="de") for n in (hour, hour % 12 + 1))
        words = {"en": num2words(hour), "de": german, "full": "ein" if hour == 1 else german, "later": later}
        words |= {"tr": _turkish(hour, 3), "at": _turkish(hour, 1, "DA", "0"), "past": _turkish(hour, 3, "(y)I")}
        for frames in rows("clock"):
            yield Phrase(*(frame.format(**words) for frame in frames))


@cache
def times(tense: str) -> tuple[tuple[Phrase, ...], ...]:
    """The phrases that say when, for a tense: groups of like ones, each group as likely as another."""
    day_times = _table("day_times")
    today = day_times[:1]
    groups: list[Iterable[Phrase]] = [day_times, _weekdays(), _dates(), _clock()]
    if tense in ("past", "could", "wanted", "had"):
        groups += [_table("before"), _spans("ago"), _years(), _spans("lasting")]
    elif tense == "fut":
        groups += [_table("after"), _spans("from_now"), _spans("lasting")]
    elif tense == "pres":
        groups = [_habits(), _habits(), _weekdays(), _clock()]
    elif tense == "prog":
        groups = [today, (Phrase("now", "jetzt", "şimdi"),)]
    elif tense == "perf":
        groups = [today]
    elif tense == "pluperf":
        groups = [today, _spans("lasting")]
    return tuple(tuple(group) for group in groups)
