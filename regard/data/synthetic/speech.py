"""Speech from espeak-ng at 16 kHz with the time of each word, and what a room and its noises do to it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from regard.data.synthetic import espeak
from regard.errors import require

SAMPLE_RATE = 16000  # of what is given; espeak-ng has its own
_UP, _DOWN = 320, 441  # 16000 / 22050
BLOCK = 50  # utterances that one process speaks
PROCESSES = 2
# A word ends at the last sample before the next word that is this loud, in shares of the loudest of the utterance.
_AUDIBLE = 0.01
# espeak-ng says some pairs of words ("of the") as one, with one event, unless another space stands between them.
_NO_BREAK_SPACE = "\u00a0"

Samples = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Utterance:
    """Words, which may end in a mark (`,` or `.`) that makes a pause, and how they are said."""

    words: tuple[str, ...]
    voice: str  # such as en-us+f3: an accent and a speaker
    rate: int = 160  # words a minute
    pitch: int = 50  # 0 to 99


@dataclass(frozen=True, slots=True)
class Speech:
    """Samples from -1 to 1, `SAMPLE_RATE` a second, and when each word begins and ends, in seconds."""

    samples: Samples
    times: tuple[tuple[float, float], ...]


def speak(utterances: Iterable[Utterance]) -> Iterator[Speech]:
    """Say utterances, in order. What is said depends on the utterances before it in its block of `BLOCK`, and on
    nothing else: so it is the same every time, and more utterances continue fewer."""
    require("espeakng_loader")
    return map(_whole, _speak(iter(utterances)))


def faults(utterances: Iterable[Utterance]) -> Iterator[str]:
    """What is wrong with each utterance as espeak-ng says it; nothing: an empty string."""
    require("espeakng_loader")
    return (str(said) if isinstance(said, ValueError) else "" for said in _speak(iter(utterances)))


def _whole(said: Speech | ValueError) -> Speech:
    if isinstance(said, ValueError):
        raise said
    return said


def _speak(utterances: Iterator[Utterance]) -> Iterator[Speech | ValueError]:
    waiting: deque[Future[list[Speech | ValueError]]] = deque()
    with ThreadPoolExecutor(PROCESSES) as pool:
        while True:
            while len(waiting) <= PROCESSES and (block := list(islice(utterances, BLOCK))):
                waiting.append(pool.submit(_speak_block, block))
            if not waiting:
                return
            yield from waiting.popleft().result()


def _speak_block(block: Sequence[Utterance]) -> list[Speech | ValueError]:
    """What a new process of espeak-ng says, or what is wrong with it."""
    loader = require("espeakng_loader")
    texts = [_NO_BREAK_SPACE.join(utterance.words) for utterance in block]
    lines = [json.dumps([text, x.voice, x.rate, x.pitch]) for text, x in zip(texts, block, strict=True)]
    command = [sys.executable, "-I", "-S", espeak.__file__, loader.get_library_path(), loader.get_data_path()]
    done = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.decode(errors="replace").strip() or f"espeak-ng ended with {done.returncode}")
    found, at = list[Speech | ValueError](), 0
    for utterance in block:
        end = done.stdout.index(b"\n", at)
        count, events = json.loads(done.stdout[at:end])
        samples = np.frombuffer(done.stdout, np.int16, count, end + 1) / 32768
        at = end + 1 + samples.size * 2
        try:
            starts = _starts(utterance, events)
        except ValueError as error:
            found.append(error)
        else:
            found.append(Speech(_resampled(samples), _times(samples, starts)))
    return found


def _starts(utterance: Utterance, events: Sequence[tuple[int, int]]) -> list[int]:
    """The sample at which each word begins, of events: places in the text, and samples."""
    starts, at, text = [], 0, " ".join(utterance.words)
    samples = dict(events)
    for word in utterance.words:
        if at not in samples:
            how = "together with another word" if events else "as nothing"
            raise ValueError(f"espeak-ng says {word[:60]!r} of {text[:200]!r} {how}; write it otherwise")
        starts.append(samples[at])
        at += len(word) + 1
    if len(events) != len(starts):
        what = f"espeak-ng says {len(events)} words for {text[:200]!r}"
        raise ValueError(f"{what}; write what it reads as several in words")
    return starts


def _times(samples: Samples, starts: Sequence[int]) -> tuple[tuple[float, float], ...]:
    loud = np.flatnonzero(np.abs(samples) > _AUDIBLE * np.abs(samples).max())
    times = []
    for start, following in zip(starts, [*starts[1:], len(samples)], strict=True):
        before = int(np.searchsorted(loud, following))  # the loud ones before the next word
        end = int(loud[before - 1]) + 1 if before and loud[before - 1] >= start else following
        times.append((start / espeak.SAMPLE_RATE, end / espeak.SAMPLE_RATE))
    return tuple(times)


def _resampled(samples: Samples) -> Samples:
    """At 16 kHz: the spectrum up to 8 kHz, so that nothing is shifted in time."""
    units = -(-samples.size // _DOWN)
    spectrum = np.fft.rfft(samples, units * _DOWN)[: units * _UP // 2 + 1]
    return np.fft.irfft(spectrum, units * _UP) * (_UP / _DOWN)


def with_silence(speech: Speech, before: float, after: float) -> Speech:
    """Speech with seconds of silence around it."""
    lead, tail = (round(seconds * SAMPLE_RATE) for seconds in (before, after))
    shift = lead / SAMPLE_RATE
    return Speech(np.pad(speech.samples, (lead, tail)), tuple((a + shift, b + shift) for a, b in speech.times))


def with_reverberation(speech: Speech, seconds: float, ratio: float, key: str) -> Speech:
    """Speech in a room: the direct sound, which comes first and so leaves word times as they are, and after it noise
    that decays exponentially, by 60 dB in so many `seconds` (Moorer 1979), with `ratio` dB less energy than the direct
    sound. Reverberation past the end is cut off; `key` is what the noise is drawn from."""
    count = round(seconds * SAMPLE_RATE)
    tail = _white(count, key) * 10.0 ** (-3.0 * np.arange(count) / count)
    tail *= np.sqrt(10.0 ** (-ratio / 10) / np.sum(tail**2))
    response = np.concatenate(([1.0], tail))
    size = speech.samples.size
    length = _round_length(size + response.size)
    product = np.fft.rfft(speech.samples, length) * np.fft.rfft(response, length)
    return Speech(np.fft.irfft(product, length)[:size], speech.times)


def with_noise(speech: Speech, ratio: float, slope: float, key: str) -> Speech:
    """Speech in noise, `ratio` dB below its mean energy, whose power falls with frequency to the `slope` (0: white, 1:
    pink, 2: brown), drawn from `key`."""
    size = speech.samples.size
    length = _round_length(size)
    spectrum = np.fft.rfft(_white(length, key))
    frequency = np.fft.rfftfreq(length, 1 / SAMPLE_RATE)
    noise = np.fft.irfft(spectrum * np.maximum(frequency, 50.0) ** (-slope / 2), length)[:size]
    noise *= np.sqrt(10.0 ** (-ratio / 10) * np.mean(speech.samples**2) / np.mean(noise**2))
    return Speech(speech.samples + noise, speech.times)


def to_integers(samples: Samples, level: float) -> NDArray[np.int16]:
    """16-bit samples, `level` dB of mean energy below full scale, or less where they would not fit."""
    gain = 10.0 ** (-level / 20) / max(float(np.sqrt(np.mean(samples**2))), 1e-9)
    gain = min(gain, 0.99 / max(float(np.abs(samples).max()), 1e-9))
    return np.round(samples * (gain * 32767)).astype("<i2")


def _white(count: int, key: str) -> Samples:
    """White noise. A hash is a source of it that stays the same in all versions of Python and NumPy."""
    return np.frombuffer(hashlib.shake_128(key.encode()).digest(2 * count), "<i2") / 32768


def _round_length(length: int) -> int:
    """A length at least as great whose Fourier transform is fast: few bits before zeros."""
    unit = 1 << max(length.bit_length() - 4, 0)
    return -(-length // unit) * unit
