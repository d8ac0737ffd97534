"""Recordings from files; `sounds.py` reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting
from pydantic import field_validator

from regard.data.lines import BLANKS
from regard.data.modalities.sounds import check_sound, decoded, read_sound, spectrogram, wav, window_of
from regard.data.modality import Canvas, Extent, Modality
from regard.data.readers.members import field_digest
from regard.data.side import Field, Item
from regard.errors import DataError
from regard.evaluation.alignment import WORDS, Alignment
from regard.registry import register
from regard.section import Fraction, Section, SideSettings

if TYPE_CHECKING:
    from torch import nn

    from regard.data.examples import Example


class SoundAugmentation(Section):
    """How recordings are altered while a model trains."""

    speed: list[float] = Setting(
        default_factory=list,
        description="speed perturbation: play each recording at one of these speeds, such as [0.9, 1.0, 1.1] (Ko et "
        "al. 2015; default: unchanged)",
    )
    noise: Fraction = Setting(0.0, description="share of recordings to which white noise is added")
    snr: tuple[float, float] = Setting(
        (10.0, 40.0), description="lowest and highest signal-to-noise ratio of that noise, in decibels"
    )
    frequency_masks: int = Setting(
        0, ge=0, le=100, description="SpecAugment: number of frequency masks (Park et al. 2019)"
    )
    frequency_width: int = Setting(
        27, ge=1, le=1000, description="SpecAugment: maximum width of a frequency mask, in mel bands"
    )
    time_masks: int = Setting(0, ge=0, le=100, description="SpecAugment: number of time masks")
    time_share: Fraction = Setting(0.05, description="SpecAugment: maximum share of a recording that a time mask hides")

    @field_validator("speed")
    @classmethod
    def _speeds_bearable(cls, speed: list[float]) -> list[float]:
        for value in speed:
            if not 0.5 <= value <= 2.0:
                raise ValueError(f"{value:g} is too far from 1; speeds from 0.5 to 2 will do")
        return speed

    @field_validator("snr")
    @classmethod
    def _snr_in_order(cls, snr: tuple[float, float]) -> tuple[float, float]:
        if snr[0] > snr[1]:
            raise ValueError(f"the least ({snr[0]:g}) comes first, then the most ({snr[1]:g})")
        return snr


class AudioSettings(SideSettings):
    """A recording; the record holds its path, relative to the data file. Its elements are hops of 10 ms."""

    stem = "subsampling"
    scored_by = ("wer", "cer")

    rate: int = Setting(16000, ge=1000, le=192_000, description="samples a second; recordings are resampled to it")
    max_length: int = Setting(
        3000, ge=1, le=10**7, description="maximum length of a training recording, in hops of 10 ms"
    )
    batch_tokens: int | None = Setting(
        16000, ge=1, le=10**8, description="maximum hops of 10 ms in a batch (null: training.batch_tokens)"
    )
    augment: SoundAugmentation = Setting(default_factory=SoundAugmentation)

    @field_validator("rate")
    @classmethod
    def _rate_in_hops(cls, rate: int) -> int:
        if rate % 100:
            raise ValueError(f"{rate} samples a second are no whole number in 10 ms; try {round(rate, -2)}")
        return rate


@register("audio")
class Audio(Modality):
    """A recording: a sequence of hops of 10 ms, of 16-bit samples each, of which the stem makes log-mel frames."""

    Settings = AudioSettings
    dtype = "int16"
    media = "audio"

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (window_of(self.settings.rate)[0],)

    def read(self, field: str, folder: Path) -> str:
        if not field.strip(BLANKS):
            raise ValueError("names no recording")
        return str(folder / field)

    def digest(self, field: Field) -> str:
        return field_digest(field)

    def find_fault(self, field: str) -> tuple[str, str] | None:
        try:
            decoded(field, self.settings.rate)  # all of it: a header says nothing of damage behind it
        except DataError as error:
            return "unreadable", f"names what is no recording: {error}"
        return None

    def encode_many(self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0) -> list[NDArray[np.int16]]:
        hop = self.shape[0]
        found = []
        for field in fields:
            samples = read_sound(field, self.settings.rate)
            found.append(np.pad(samples, (0, -len(samples) % hop)).reshape(-1, hop))
        return found

    def problem(self, item: Item, limit: int) -> str | None:
        if not len(item):
            return "is empty"
        if self.longest is not None and len(item) > self.longest:
            seconds = f"{len(item) / 100:g} seconds"
            return f"takes {seconds}, more than source.max_length={self.longest} hops of 10 ms; split it"
        return None

    def most_places(self, limit: int) -> int:
        slowest = min([1.0, *self.settings.augment.speed])
        return int(self.stem.vectors(math.ceil(self.settings.max_length / slowest)))

    # What the encoder's vectors stand for

    @property
    def seconds_per_place(self) -> float:  # type: ignore[override]
        """How far apart the encoder's vectors lie in time."""
        long = 2**20
        return 0.01 * long / int(self.stem.vectors(long))

    def pieces(self, item: Item) -> list[str]:
        return [f"{place * self.seconds_per_place:.2f}" for place in range(self.places(item))]

    def read_gold(self, record: dict[str, Any]) -> tuple[tuple[int, int, float, float], ...]:
        """`words`, if there: lists of first word, last word, begin and end in seconds."""
        if "words" not in record:
            return ()
        try:
            found = tuple((int(a), int(b), float(start), float(end)) for a, b, start, end in record["words"])
            sound = all(
                0 <= a <= b < WORDS and 0 <= start <= end < math.inf for a, b, start, end in found
            )  # of a number that is none, no comparison is true
        except (TypeError, ValueError, ArithmeticError):
            sound = False
        if not sound:
            raise ValueError("has 'words' that should be lists [first word, last word, begin, end] in seconds")
        return found

    def gold(self, example: Example) -> Alignment | None:
        """A word belongs to every vector whose time reaches into its own, if a recording can be as long as that."""
        if not example.gold:
            return None
        step, most = self.seconds_per_place, self.most_places(0)
        links = {
            (place, word)
            for first, last, start, end in example.gold
            for word in range(first, last + 1)
            for place in range(int(start / step), min(max(math.ceil(end / step), int(start / step) + 1), most))
        }
        return Alignment(frozenset(), frozenset(links))

    def canvas(self, item: Item) -> Canvas | None:
        hops = np.asarray(item, np.int16).reshape(-1, *self.shape)
        hops = np.pad(hops, ((0, max(0, self.stem.filled - len(hops))), (0, 0)))  # vectors stand for silence too
        sound = wav(hops.reshape(-1), self.settings.rate)
        seconds = len(hops) / 100
        return Canvas(spectrogram(hops, self.settings.rate), 1, self.places(item), "sound", seconds, sound)

    def extent(self, field: Field) -> Extent:
        header = check_sound(field, self.settings.rate)
        return Extent(seconds=header.frames / header.samplerate)

    def augmentation(self) -> nn.Module | None:
        settings = self.settings.augment
        if settings == SoundAugmentation():
            return None
        from regard.nn.spectrogram import AlteredSound

        return AlteredSound(settings)

    def made_up(self, draw: np.random.Generator, count: int, longest: int) -> list[NDArray[np.int16]]:
        return [draw.integers(-3000, 3000, (longest, *self.shape)).astype(np.int16) for _ in range(count)]
