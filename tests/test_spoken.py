"""The spoken corpus: reproducible, split apart in texts and speakers, and with words where they are heard."""

from __future__ import annotations

import json
import wave
from functools import cache
from itertools import combinations
from pathlib import Path

import espeakng_loader
import numpy as np
import pytest

from regard.data.synthetic import espeak, script, speech, spoken
from regard.data.synthetic.speech import SAMPLE_RATE, Speech, Utterance, speak
from regard.data.synthetic.spoken import Saying, sayings
from regard.errors import DataError, OutputError
from tests.conftest import FULL

GOLDEN = [
    "you will bring cheese",
    "the soldier painted a small wall yesterday",
    "will his aunt see that the dogs were fed",
    "zero one five seven four one",
    "they build the bridge",
    "the twenty ninth of april nineteen ninety three",
]


@cache
def sample() -> tuple[tuple[Saying, Speech], ...]:
    some = tuple(sayings(40))
    return tuple(zip(some, speak(saying.utterance for saying in some), strict=True))


def level(samples: speech.Samples) -> float:
    return float(np.sqrt(np.mean(samples**2)))


def test_same_arguments_same_texts_and_voices() -> None:
    first = list(sayings(6))
    assert [saying.transcript for saying in first] == GOLDEN
    assert list(sayings(12))[:6] == first
    assert [saying.transcript for saying in sayings(6, seed=2)] != GOLDEN


def test_more_utterances_continue_fewer_and_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was said before in this process, and whether a block is whole or not."""
    monkeypatch.setattr(speech, "BLOCK", 4)
    some = [saying.utterance for saying in sayings(10)]
    whole, part = list(speak(some)), list(speak(some[:6]))
    assert [x.times for x in part] == [x.times for x in whole[:6]]
    assert all(np.array_equal(x.samples, y.samples) for x, y in zip(part, whole, strict=False))


def test_what_it_is_for_is_what_is_not_reset_in_one_process() -> None:
    """Where this fails, espeak-ng resets itself, and processes are no longer needed."""
    one = espeak.Espeak(espeakng_loader.get_library_path(), espeakng_loader.get_data_path())
    first, again = (one.say("turn the lamp off", "en-us", 160, 50)[0] for _ in range(2))
    assert first != again


def test_splits_share_neither_text_nor_speaker() -> None:
    for one, other in combinations(spoken.SPEAKERS.values(), 2):
        assert not set(one) & set(other)
    found = {split: list(sayings(200, split=split)) for split in spoken.SPLITS}
    texts = {split: {saying.transcript for saying in some} for split, some in found.items()}
    assert all(len(some) == 200 for some in texts.values())
    assert all(not texts[one] & texts[other] for one, other in combinations(texts, 2))
    for split, some in found.items():
        assert {saying.voice.partition("+")[2] for saying in some} == set(spoken.SPEAKERS[split])
        assert {saying.voice.partition("+")[0] for saying in some} == set(spoken.ACCENTS)
        kinds = [saying.kind for saying in some]
        for kind, share in (("sentence", 0.4), ("command", 0.2), ("digits", 0.2), ("date", 0.2)):
            assert kinds.count(kind) / 200 == pytest.approx(share, abs=0.08)


def test_transcripts_are_plain_words() -> None:
    for saying in sayings(200):
        words = saying.transcript.split()
        assert len(words) == len(saying.words)
        assert all(word.replace("'", "").isalpha() and word.islower() for word in words)
        assert (saying.translation is not None) == (saying.kind == "sentence")


def test_every_voice_is_there_and_no_two_words_are_said_as_one() -> None:
    """One text in every voice: an unknown one would be an error, and so would a word without a time."""
    text = "he did not have to be one of the twenty two in the garden at nine o'clock"
    words = tuple(text.split())
    voices = [f"{spoken.ACCENTS[i % 4]}+{x}" for some in spoken.SPEAKERS.values() for i, x in enumerate(some)]
    said = list(speak(Utterance(words, voice) for voice in voices))
    assert all(len(x.times) == len(words) for x in said)
    known = {path.name for path in (Path(espeakng_loader.get_data_path()) / "voices" / "!v").iterdir()}
    assert all(voice.partition("+")[2] in known for voice in voices)  # one that is not would be left out silently
    assert len({x.samples.tobytes() for x in said}) == len(voices)
    assert all(0.02 < level(x.samples) < 0.5 for x in said)


def test_words_are_where_they_are_heard() -> None:
    """A word is silent for 70 ms at most when it begins (while lips are closed), and for 10 ms when it ends."""
    for saying, said in sample():
        heard = np.abs(said.samples) > 0.005 * np.abs(said.samples).max()
        assert len(said.times) == len(saying.words)
        for (start, end), following in zip(said.times, [*(x for x, _ in said.times[1:]), 99.0], strict=True):
            assert start + 0.03 < end <= following
            first, last = round(start * SAMPLE_RATE), round(end * SAMPLE_RATE)
            assert heard[first : first + round(0.07 * SAMPLE_RATE)].any()
            assert heard[last - round(0.01 * SAMPLE_RATE) : last + 8].any()
        # From 10 ms after the last word on, nothing is heard.
        assert not heard[round((said.times[-1][1] + 0.01) * SAMPLE_RATE) :].any()


def test_marks_make_pauses_that_belong_to_no_word() -> None:
    with_mark, without = speak(
        [Utterance(("they", "dance,", "and", "we", "sing."), "en-us"), Utterance(("they", "dance", "and"), "en-us")]
    )
    pause = with_mark.times[2][0] - with_mark.times[1][1]
    assert pause > 0.08
    assert without.times[2][0] - without.times[1][1] < 0.05
    assert np.abs(with_mark.samples[round((with_mark.times[1][1] + 0.01) * SAMPLE_RATE) :][:800]).max() < 0.01


def test_what_espeak_would_read_as_several_words_is_refused() -> None:
    with pytest.raises(ValueError, match="says 3 words for 'room 22'; write what it reads as several in words"):
        list(speak([Utterance(("room", "22"), "en-us")]))
    with pytest.raises(ValueError, match="says 'the' of 'one of the' together with another word"):
        speech._starts(Utterance(("one", "of", "the"), "en-us"), [(0, 0), (4, 3000)])
    with pytest.raises(ValueError, match=r"says 'hm' of 'hm' as nothing; write it otherwise"):
        speech._starts(Utterance(("hm",), "en-us"), [])
    with pytest.raises(ValueError, match="espeak-ng has no voice 'martian'"):
        list(speak([Utterance(("hello",), "martian")]))


def test_resampling_keeps_tones_and_their_time() -> None:
    """A tone of 1 kHz that begins at a quarter of a second is the same tone at 16 kHz."""
    seconds = 0.5
    at = np.arange(int(seconds * espeak.SAMPLE_RATE)) / espeak.SAMPLE_RATE
    window = np.clip((at - 0.25) * 40, 0, 1) * np.clip((0.48 - at) * 40, 0, 1)
    found = speech._resampled(np.sin(2 * np.pi * 1000 * at) * window)
    new = np.arange(found.size) / SAMPLE_RATE
    expected = np.sin(2 * np.pi * 1000 * new) * np.clip((new - 0.25) * 40, 0, 1) * np.clip((0.48 - new) * 40, 0, 1)
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_noise_and_rooms_are_as_loud_as_said_and_shift_nothing() -> None:
    said = speech.with_silence(sample()[0][1], 0.25, 0.5)
    assert said.times[0][0] == pytest.approx(sample()[0][1].times[0][0] + 0.25)
    for slope in (0.0, 1.0, 2.0):
        noise = speech.with_noise(said, 12.0, slope, "key").samples - said.samples
        assert 20 * np.log10(level(said.samples) / level(noise)) == pytest.approx(12.0, abs=1e-6)
        power = np.abs(np.fft.rfft(noise)) ** 2
        hertz = np.fft.rfftfreq(noise.size, 1 / SAMPLE_RATE)
        low, high = (power[(hertz >= f) & (hertz < 1.2 * f)].mean() for f in (400, 4000))
        assert np.log10(low / high) == pytest.approx(slope, abs=0.25)
    click = Speech(np.eye(1, 2 * SAMPLE_RATE, SAMPLE_RATE)[0], ((1.0, 1.01),))
    room = speech.with_reverberation(click, 0.4, 6.0, "key")
    assert room.times == click.times
    assert np.abs(room.samples[:SAMPLE_RATE]).max() < 1e-9  # nothing comes before its cause
    tail = room.samples[SAMPLE_RATE + 1 :]
    assert 10 * np.log10(1 / np.sum(tail**2)) == pytest.approx(6.0, abs=1e-6)
    # Energy decays by 60 dB in 0.4 s, so by 30 dB in half of it.
    early, late = (level(tail[start : start + 800]) for start in (0, 3200))
    assert 20 * np.log10(early / late) == pytest.approx(30.0, abs=2.0)


def test_translations_are_linked_with_what_is_said() -> None:
    """By hand, in a sentence with a compound: `fifty-six` is two words of speech and one of German."""
    for saying in sayings(100, task="translate"):
        assert saying.kind == "sentence"
        assert saying.translation is not None
        length = len(saying.translation.split())
        assert all(0 <= i < len(saying.words) and 0 <= j < length for i, j in saying.links)
        linked = {saying.translation.split()[j] for _, j in saying.links}
        assert not linked & set(".,?!")
    from regard.data.synthetic.phrasebook import Pair

    pair = Pair("They see fifty-six dogs , too .", "x y z w", ((0, 0), (1, 1), (2, 2), (3, 3)), ())
    words, links = spoken._spoken(pair)
    assert words == ("They", "see", "fifty", "six", "dogs,", "too.")
    assert links == ((0, 0), (1, 1), (2, 2), (3, 2), (4, 3))


@pytest.mark.parametrize("task", ["transcribe", "translate"] if FULL else ["translate"])
def test_write(task: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        spoken.write(tmp_path / name, task=task, train=4, valid=1, test=1)
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) == 9
    assert all((tmp_path / "one" / x).read_bytes() == (tmp_path / "two" / x).read_bytes() for x in files)
    records = [json.loads(line) for line in (tmp_path / "one" / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    for record, saying in zip(records, sayings(4, task=task), strict=True):
        with wave.open(str(tmp_path / "one" / record["source"])) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
            assert file.getnframes() / 16000 == pytest.approx(record["seconds"], abs=1e-4)
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
        assert -31 < 20 * np.log10(level(samples)) < -17
        assert record["target"] == saying.transcript
        assert record["voice"] == saying.voice
        assert (record["snr"] is None) == (saying.noise is None)
        assert record.get("translation") == saying.translation
        assert all(0 < start < end < record["seconds"] for _, _, start, end in record["words"])
        words = [first for first, last, *_ in record["words"] if first == last]
        if task == "transcribe":
            assert words == list(range(len(record["target"].split())))
        else:
            assert words == [j for _, j in saying.links]
    with pytest.raises(OutputError, match="recordings exists; give another folder"):
        spoken.write(tmp_path / "one", train=1, valid=1, test=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"task": "sing"}, "unknown task 'sing'; the spoken corpus has 'transcribe' and 'commands' and 'translate'"),
        ({"split": "dev"}, "unknown split 'dev'; the spoken corpus has 'train' and 'valid' and 'test'"),
        ({"size": -1}, r"size \(-1\) of train is negative; ask for 0 recordings or more"),
    ],
)
def test_errors_say_what_would_do(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sayings(**({"size": 1} | wrong))  # type: ignore[arg-type]


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_lines_of_a_file_become_words(tmp_path: Path) -> None:
    """Marks are pauses, hyphens part words, and what is there twice or empty is left out."""
    path = written(
        tmp_path, "\u201cHello,\u201d she said \u2014 and went. Away!", "", "  The e-mail isn\u2019t naïve",
        "HELLO she said; and went: away", "at nine o'clock",
    )  # fmt: skip
    first, second, third = script.read(path)
    assert first.words == ("Hello,", "she", "said,", "and", "went,", "Away!")
    assert first.spelling == "hello she said and went away"
    assert second.words == ("The", "e", "mail", "isn't", "naïve")
    assert (second.place, third.place) == (f"{path}:3", f"{path}:5")


@pytest.mark.parametrize(
    ("line", "spelled"),
    [
        ("rubout g m a f three", [3]), ("C A T", [1]), ("a b a", [0, 2]), ("x, a, i.", [1]), ("m-a-i", [1]),
        ("fifty nine and a half", []), ("was I a fool", []), ("A dog ran", []), ("A DOG HAS A BONE", []),
        ("Go to gate A now", [3]), ("a", []),
    ],
)  # fmt: skip
def test_an_a_among_letters_is_one(line: str, spelled: list[int]) -> None:
    words, _ = script._words(line)
    assert [i for i, word in enumerate(words) if word.strip(",.") == "eh"] == spelled


def test_espeak_says_an_a_in_a_line_as_the_article_and_what_stands_for_it_as_the_letter() -> None:
    """Where the first fails, espeak-ng knows spelled letters, and needs no help. A letter's name is a long vowel."""
    for accent in spoken.ACCENTS:
        words = [("c", "a", "t"), ("C", "A", "T"), *(script._words("c a t")[:1]), ("c", "o", "t")]
        article, upper, letter, other = (
            end - start for (start, end) in (x.times[1] for x in speak(Utterance(some, accent) for some in words))
        )
        assert upper == pytest.approx(article, abs=0.005)
        assert letter > 1.6 * article
        assert letter == pytest.approx(other, rel=0.35)


def test_every_line_is_said_once_before_any_is_said_again(tmp_path: Path) -> None:
    names = [f"{a} {b} and so on" for a in "bcdefghk" for b in "pqrst"]
    lines = script.read(written(tmp_path, *names))
    parts = script.split(lines, seed=1)
    assert {split: len(some) for split, some in parts.items()} == {"train": 30, "valid": 5, "test": 5}
    assert sorted(line.spelling for some in parts.values() for line in some) == sorted(names)
    assert script.split(lines, seed=1) == parts != script.split(lines, seed=2)
    said = list(spoken.script_sayings(parts["train"], 70))
    assert said[:20] == list(spoken.script_sayings(parts["train"], 20))
    for start in (0, 30):
        assert len({saying.transcript for saying in said[start : start + 30]}) == 30
    assert len({(x.transcript, x.voice, x.rate, x.pitch) for x in said}) == 70
    for split, some in parts.items():
        speakers = {x.voice.partition("+")[2] for x in spoken.script_sayings(some, 40, split=split)}
        assert speakers <= set(spoken.SPEAKERS[split])


def test_valid_and_test_take_no_more_lines_than_are_said(tmp_path: Path) -> None:
    many = [script.Line(str(i), ("x",), str(i)) for i in range(8000)]
    assert [len(some) for some in script.split(many, seed=1).values()] == [7200, 300, 500]


@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_write_a_script(task: str, tmp_path: Path) -> None:
    lines = ["c a t", "nine and a half", "p q r"]
    texts = [f"{line}\t{line.upper()} ." for line in lines] if task == "translate" else lines
    parts = script.split(script.read(written(tmp_path, *texts), translated=task == "translate"), seed=3)
    spoken.write(tmp_path / "made", task=task, train=2, valid=1, test=1, script=parts, seed=3)
    found: list[str] = []
    for split in spoken.SPLITS:
        for line in (tmp_path / "made" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            assert record["kind"] == "text"
            assert (tmp_path / "made" / record["source"]).is_file()
            found.append(record["target"])
            if task == "translate":
                assert (record["translation"], record["words"]) == (f"{record['target'].upper()} .", [])
            else:
                assert [first for first, *_ in record["words"]] == list(range(len(record["target"].split())))
                assert all(start < end < record["seconds"] for *_, start, end in record["words"])
    assert sorted(set(found)) == lines
    assert len(found) == 4


def test_lines_that_cannot_be_said_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "room 22", "well", "say \u65e5\u672c", "...", "me@home")
    with pytest.raises(DataError) as error:
        script.read(path)
    for place, what in (
        (1, " cannot be said: espeak-ng says 3 words for 'room 22'; write what it reads as several in words"),
        (3, " has '\u65e5' in '\u65e5\u672c', which English voices do not read; write it otherwise"),
        (4, " has nothing to say: '...'"),
        (5, " cannot be said: espeak-ng says 3 words for 'me@home'"),
    ):
        assert f"{path}:{place}{what}" in str(error.value)
    assert len(str(error.value).splitlines()) == 4
    with pytest.raises(
        DataError, match=r"lines.txt has too few different lines \(2\); give 3 or more: train, valid and test"
    ):
        script.read(written(tmp_path, "one", "two", "One!"))
    with pytest.raises(DataError, match=r"lines.txt:2 should be the text to say, a tab, and its translation"):
        script.read(written(tmp_path, "one\teins", "two", "three\tdrei"), translated=True)
    with pytest.raises(DataError, match=r"lines.txt:1 has a tab, .* if that is a translation, give --task translate"):
        script.read(written(tmp_path, "one\teins", "two\t", "three"))
    with pytest.raises(DataError, match="and 2 lines more"):
        script.read(written(tmp_path, *(f"{i},5" for i in range(12))))
