"""The spoken corpus: English speech from espeak-ng in many voices, what is said, and when each word is said.

Commands ("set the kitchen lamp to forty percent"), strings of digits, dates and sentences of the phrasebook, the last
with their translation. Voices differ in accent, speaker, rate and pitch; half of the recordings have noise, a third
reverberation. Recordings are WAV files of 16 kHz, one channel, 16 bits.

- A transcript is in lower case, with numbers in words and no marks save the apostrophe of "o'clock": what was said,
  word for word. espeak-ng gives an event when a word begins; words are handed to it so that each has exactly one
  (numbers are written out, and no two words are said as one, as it otherwise does with "of the" or "did not").
- A word ends where it falls silent before the next one begins. Reverberation goes on after that, and shifts nothing.
- Speakers of train, valid and test are not the same, and their accents are: what is measured on valid and test is how
  well voices are understood that were never heard.

The corpus depends on its arguments alone: the same ones give the same texts and voices, and with the same versions of
espeak-ng and NumPy the same samples and times. Which split a text belongs to is decided by a hash of it, so train,
valid and test share no text, whatever their sizes and seeds; and no text occurs twice in a split.

Instead of texts of its own the corpus can say the lines of a user's file (`script.py`), again and again in other voices
where there are more recordings than lines.
"""

from __future__ import annotations

import hashlib
import json
import random
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from regard.data.synthetic.corpus import SPLITS as SPLITS
from regard.data.synthetic.corpus import check_split, write_splits
from regard.errors import OutputError, require

if TYPE_CHECKING:
    from regard.data.synthetic.phrasebook import Pair
    from regard.data.synthetic.script import Line
    from regard.data.synthetic.speech import Speech, Utterance

ACCENTS = ("en-us", "en", "en-gb-x-rp", "en-gb-scotland")
SPEAKERS: dict[str, tuple[str, ...]] = {
    "train": (
        "m1", "m2", "m4", "m6", "m7", "f1", "f2", "f4", "Alex", "Andy", "Annie", "Denis", "Lee", "Michael", "Mike",
        "adam", "belinda", "benjamin", "boris", "david", "edward", "grandma", "john", "linda", "max", "norbert", "paul",
        "quincy", "rob", "sandro", "steph",
    ),
    "valid": ("m3", "f5", "Mario", "aunty"),
    "test": ("m5", "m8", "f3", "robert", "victor", "shelby"),
}  # fmt: skip
KINDS = ("command", "digits", "date", "sentence")
TASKS: dict[str, tuple[str, ...]] = {
    "transcribe": ("command", "digits", "date", "sentence", "sentence"),  # two fifths of them sentences
    "commands": ("command", "digits", "date"),  # some hundred words
    "translate": ("sentence",),
}

_RATES, _PITCHES = (130, 200), (30, 70)  # words a minute; 0 to 99
_NOISY, _REVERBERANT = 1 / 2, 1 / 3
_RATIOS = (10.0, 30.0)  # of speech to noise, in dB
_ROOMS = (0.15, 0.5)  # seconds in which reverberation decays by 60 dB
_DISTANCES = (3.0, 12.0)  # of direct sound to reverberation, in dB
_SILENCES = (0.05, 0.3)  # seconds, before and after
_LEVELS = (18.0, 30.0)  # dB below full scale
_PATIENCE = 3000  # so many texts in a row that were there already mean that hardly any is left

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_FIRST_DAY, _SOME_DAYS = date(1950, 1, 1), 36525  # a hundred years
_PLACES = (
    "left", "right", "upper", "lower", "front", "back", "first", "second", "third", "kitchen", "bedroom", "garden",
)  # fmt: skip
_DEVICES = ("lamp", "heater", "fan", "radio", "screen", "camera", "printer", "door", "window")

Draw = Callable[[], float]
_Span = tuple[float, float]
_Manner = tuple[str, int, int, _Span, _Span | None, _Span | None, float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Saying:
    """What is said, how, and where: everything that a recording follows from."""

    kind: str
    words: tuple[str, ...]  # as espeak-ng gets them, with marks that make pauses
    voice: str
    rate: int
    pitch: int
    silences: tuple[float, float]  # seconds before and after
    reverberation: tuple[float, float] | None  # seconds, and dB of the direct sound above it
    noise: tuple[float, float] | None  # dB of the speech above it, and the slope of its spectrum
    level: float  # dB below full scale
    translation: str | None = None
    links: tuple[tuple[int, int], ...] = ()  # which words, as said, are which of the translation's
    spelling: str | None = None  # the transcript, where these words are not how it is written
    place: str | None = None  # file and line, of a user's text

    @property
    def transcript(self) -> str:
        if self.spelling is not None:
            return self.spelling
        return " ".join(word.rstrip(".,?!") for word in self.words).lower()

    @property
    def utterance(self) -> Utterance:
        from regard.data.synthetic.speech import Utterance

        return Utterance(self.words, self.voice, self.rate, self.pitch)


def sayings(
    size: int, *, task: str = "transcribe", language: str = "de", split: str = "train",
    words: tuple[int, int] = (3, 10), seed: int = 1,
) -> Iterator[Saying]:  # fmt: skip
    """Yield `size` sayings, none with the text of another. A larger `size` continues a smaller one.

    For the task `translate` all are sentences of the phrasebook, with a translation into `language`; for `transcribe`,
    two fifths. `words` are the shortest and the longest of these sentences.
    """
    from regard.data.synthetic import phrasebook

    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; the spoken corpus has {' and '.join(map(repr, TASKS))}")
    check_split(size, split, "the spoken corpus has", "recordings")
    # More than are needed, should two of them differ in their marks alone.
    pairs = phrasebook.pairs(2 * size, language=language, split=split, words=words, seed=seed)
    return _sayings(size, task, pairs, split, seed)


def script_sayings(lines: Sequence[Line], size: int, *, split: str = "train", seed: int = 1) -> Iterator[Saying]:
    """Yield `size` sayings of a user's lines: each once, then each once more, and so on. A larger `size` continues a
    smaller one."""
    from regard.data.synthetic.script import rounds

    check_split(size, split, "the spoken corpus has", "recordings")
    draw = random.Random(f"spoken script {split} {seed}").random
    for line in islice(rounds(lines, f"{split} {seed}"), size):
        yield Saying("text", line.words, *_manner(split, draw), line.translation, (), line.spelling, line.place)


def record(saying: Saying, speech: Speech) -> Speech:
    """Speech as it is recorded: in its room, with its noise. The noise is drawn from the words and the voice."""
    from regard.data.synthetic import speech as sounds

    key = f"{saying.voice} {saying.rate} {saying.transcript}"
    found = sounds.with_silence(speech, *saying.silences)
    if saying.reverberation is not None:
        found = sounds.with_reverberation(found, *saying.reverberation, f"room {key}")
    if saying.noise is not None:
        found = sounds.with_noise(found, *saying.noise, f"noise {key}")
    return found


def write(
    folder: Path, *, task: str = "transcribe", language: str = "de", train: int = 5000, valid: int = 300,
    test: int = 500, words: tuple[int, int] = (3, 10), seed: int = 1,
    script: Mapping[str, Sequence[Line]] | None = None, progress: Callable[[int], None] | None = None,
) -> dict[str, Path]:  # fmt: skip
    """Write `train.jsonl`, `valid.jsonl`, `test.jsonl` and their recordings into `folder`; returns where each split is.

    A line has the recording's path from `folder` as `source`, the transcript as `target`, `words` as lists of first
    word, last word, start and end in seconds, one for each word of the transcript; the length of the recording in
    `seconds`; its `kind`, `voice`, `snr` (dB of the speech above the noise) and `reverberation` (seconds), null where
    there is none; and of a sentence its `translation`. For the task `translate`, `words` are those of the translation:
    a list for each spoken word that a word of it is linked with. A .jsonl file appears when it and its recordings are
    complete; nothing that is there is replaced. `progress` is called now and then with the number of recordings so
    far, of all splits together. With a `script`, its lines are said (`kind` is "text"), those of each split, whatever
    `task`, `language` and `words` are; for `translate`, no word is then linked with another.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    if script is None:
        require("espeakng_loader", "num2words", "babel")
        drawn = {
            split: sayings(size, task=task, language=language, split=split, words=words, seed=seed)
            for split, size in sizes.items()
        }
    else:
        require("espeakng_loader")
        drawn = {split: script_sayings(script[split], size, split=split, seed=seed) for split, size in sizes.items()}
    if (folder / "recordings").exists():
        raise OutputError(f"{folder / 'recordings'} exists; give another folder")
    lines = {split: _lines(folder, task, split, drawn[split]) for split in drawn}
    return write_splits(folder, "jsonl", lines, progress)


def _lines(folder: Path, task: str, split: str, sayings: Iterable[Saying]) -> Iterator[str]:
    """The records of sayings, whose recordings are written before."""
    from regard.data.synthetic.speech import SAMPLE_RATE, speak, to_integers

    (folder / "recordings" / split).mkdir(parents=True)
    sayings, spoken = tee(sayings)
    said = speak(x.utterance for x in spoken)
    for number, saying in enumerate(sayings, 1):
        try:
            speech = next(said)
        except ValueError as error:
            raise ValueError(f"{saying.place} cannot be said: {error}" if saying.place else str(error)) from None
        source = f"recordings/{split}/{number:06d}.wav"
        recorded = record(saying, speech)
        with wave.open(str(folder / source), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(SAMPLE_RATE)
            file.writeframes(to_integers(recorded.samples, saying.level).tobytes())
        pairs = saying.links if task == "translate" else [(i, i) for i in range(len(saying.words))]
        times = [(word, word, *(round(time, 4) for time in recorded.times[i])) for i, word in pairs]
        found: dict[str, object] = {"source": source, "target": saying.transcript, "words": times}
        found |= {"seconds": round(recorded.samples.size / SAMPLE_RATE, 4), "kind": saying.kind, "voice": saying.voice}
        found |= {"snr": saying.noise[0] if saying.noise else None}
        found |= {"reverberation": saying.reverberation[0] if saying.reverberation else None}
        found |= {} if saying.translation is None else {"translation": saying.translation}
        yield json.dumps(found, ensure_ascii=False)


def _sayings(size: int, task: str, pairs: Iterator[Pair], split: str, seed: int) -> Iterator[Saying]:
    # `random()` is the one method whose sequence Python promises not to change.
    draw = random.Random(f"spoken {task} {split} {seed}").random
    seen: set[bytes] = set()
    while len(seen) < size:
        kind = _one_of(TASKS[task], draw)
        pair, links = None, tuple[tuple[int, int], ...]()
        for _ in range(_PATIENCE):
            if kind == "sentence":  # of the phrasebook's own splits
                pair = next(pairs)
                said, links = _spoken(pair)
            else:
                said = tuple(_TEXTS[kind](draw))
            digest = hashlib.blake2b(" ".join(said).lower().encode(), digest_size=16).digest()
            if (pair is not None or digest[0] % 8 in SPLITS[split]) and digest not in seen:
                break
        else:
            raise ValueError(
                f"size ({size}) of {split} is too large: after {len(seen)} recordings there is hardly another {kind} "
                "to say; try a smaller size"
            )
        seen.add(digest)
        yield Saying(kind, said, *_manner(split, draw), None if pair is None else pair.target, links)


def _manner(split: str, draw: Draw) -> _Manner:
    """How something is said: the fields of a `Saying` from `voice` to `level`."""
    return (
        f"{_one_of(ACCENTS, draw)}+{_one_of(SPEAKERS[split], draw)}",
        round(_between(_RATES, draw)), round(_between(_PITCHES, draw)),
        (_between(_SILENCES, draw), _between(_SILENCES, draw)),
        (_between(_ROOMS, draw), _between(_DISTANCES, draw)) if draw() < _REVERBERANT else None,
        (_between(_RATIOS, draw), float(_one_of((0, 1, 2), draw))) if draw() < _NOISY else None,
        _between(_LEVELS, draw),
    )  # fmt: skip


def _spoken(pair: Pair) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """The words of a sentence, marks joined to the word before and compounds apart, and which of the translation's
    words they are linked with: in the order of these."""
    words: list[str] = []
    places: list[range] = []  # the words that each token became
    for token in pair.source.split():
        if token in ".,?!":
            words[-1] += token
            places.append(range(0))
        else:
            parts = token.split("-")
            places.append(range(len(words), len(words) + len(parts)))
            words += parts
    links = [(word, other) for i, other in pair.sure for word in places[i]]
    return tuple(words), tuple(sorted(links, key=lambda link: link[::-1]))


def _one_of(options: Sequence[T], draw: Draw) -> T:
    return options[int(draw() * len(options))]


def _between(limits: tuple[float, float], draw: Draw) -> float:
    return round(limits[0] + (limits[1] - limits[0]) * draw(), 3)


def _number(value: int, to: str = "cardinal") -> list[str]:
    """A number in words, as it is said: `two hundred and forty two`."""
    text: str = require("num2words").num2words(value, to=to)
    return text.replace("-", " ").replace(",", "").split()


def _digits(draw: Draw) -> list[str]:
    return [_one_of(_DIGITS, draw) for _ in range(3 + int(draw() * 6))]


def _date(draw: Draw) -> list[str]:
    day = _FIRST_DAY + timedelta(int(draw() * _SOME_DAYS))
    ordinal, month, year = _number(day.day, "ordinal"), _MONTHS[day.month - 1], _number(day.year, "year")
    forms = (
        [_DAYS[day.weekday()], "the", *ordinal, "of", month, *year],
        ["the", *ordinal, "of", month, *year],
        [month, "the", *ordinal, *year],
    )
    return _one_of(forms, draw)


def _command(draw: Draw) -> list[str]:
    place, device, side = _one_of(_PLACES, draw), _one_of(_DEVICES, draw), _one_of(("left", "right"), draw)
    percent, count, large = (_number(1 + int(draw() * most)) for most in (100, 99, 999))
    hour, minute = (_number(1 + int(draw() * most)) for most in (12, 59))
    forms = (
        ["turn", "the", place, device, _one_of(("on", "off"), draw)],
        ["set", "the", place, device, "to", *percent, "percent"],
        ["set", "a", "timer", "for", *count, _one_of(("seconds", "minutes", "hours", "days"), draw)],
        ["wake", "me", "at", *hour, *minute, "in", "the", _one_of(("morning", "evening"), draw)],
        ["go", *count, "steps", "to", "the", side, "and", _one_of(("stop", "wait", "turn", "sit"), draw)],
        ["play", "song", "number", *large],
        ["call", "room", *large, "about", "the", place, device],
        ["add", *count, "to", *large],
    )
    return _one_of(forms, draw)


_TEXTS: dict[str, Callable[[Draw], list[str]]] = {"command": _command, "digits": _digits, "date": _date}
