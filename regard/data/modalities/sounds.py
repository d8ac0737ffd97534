"""Recordings from files, without torch: read, brought to one rate, and seen as a spectrogram."""

from __future__ import annotations

import io
import math
import re
import stat
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from regard.data.modalities.ogg import ogg_fault
from regard.data.readers.members import open_field, split_span
from regard.errors import DataError, require

Samples = NDArray[np.int16]
LARGEST = 2**28  # samples of all channels, or at the rate that is wanted; more are refused before they are decoded
RATES = (1000, 768_000)  # samples a second; a header that says otherwise is damaged
_UNKNOWN = 0x7FFF0000  # the least size of a WAV file that stands for none: it was written to a pipe
_ENDLESS = 2**62  # samples of a FLAC file whose header says none; as many bytes stand for none elsewhere
_TAPS = 16  # zero crossings of the resampling filter on either side


def read_sound(path: str | Path, rate: int) -> Samples:
    """A recording as 16-bit samples, so many a second, its channels mixed into one."""
    samples, before = decoded(path, rate)
    one = samples[:, 0] if samples.shape[1] == 1 else samples.mean(1, dtype=np.float32).round().astype(np.int16)
    return one if before == rate else resampled(one, before, rate)


def decoded(path: str | Path, rate: int) -> tuple[Samples, int]:
    """The samples of a recording that will be used at this rate, `(samples, channels)`, and the rate they are at."""
    require("soundfile")
    import soundfile

    header = check_sound(path, rate)
    start, stop = _frames(path, header)
    real = header.subtype in ("FLOAT", "DOUBLE")  # which soundfile would round to whole numbers, most of them to 0
    kind = "float32" if real else "int16"
    try:
        opened = open_field(split_span(str(path))[0])
        found = soundfile.read(opened, stop - start, start, dtype=kind, always_2d=True)[0]
    except Exception as error:
        raise _unreadable(path, error) from None
    if len(found) < stop - start:
        raise DataError(f"{path} is cut off: it has {len(found):,} of {stop - start:,} samples")
    return _from_real(path, found) if real else found, header.samplerate


def _from_real(path: str | Path, found: NDArray[np.float32]) -> Samples:
    """Numbers from -1 to 1 as 16-bit samples."""
    if not np.isfinite(found).all():
        raise DataError(f"{path} cannot be read as a recording (it holds numbers that are not finite); write it anew")
    np.rint(np.multiply(found, 32768, out=found), out=found)
    return np.clip(found, -32768, 32767, out=found).astype(np.int16)


def check_sound(path: str | Path, rate: int = 16000) -> Any:
    """The header of a recording (`frames`, `samplerate`, `channels`); an error if it cannot be one that is used at this
    rate."""
    require("soundfile")
    import soundfile

    try:
        opened = open_field(split_span(str(path))[0])
        if isinstance(opened, Path) and not stat.S_ISREG(opened.stat().st_mode):
            raise DataError(f"{path} cannot be read as a recording (it is no file); WAV, FLAC and OGG will do")
        missing = _missing(opened)
        header = soundfile.info(opened)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(
            f"no recording {path}; in a data file its path is relative to that file, elsewhere to where you are"
        ) from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise _unreadable(path, error) from None
    least, most = RATES
    if not least <= header.samplerate <= most:
        raise DataError(
            f"{path} cannot be read as a recording (its header says {header.samplerate:,} samples a second); from "
            f"{least:,} to {most:,} will do"
        )
    if header.frames >= _ENDLESS:
        raise DataError(
            f"{path} cannot be read as a recording (its header does not say how long it is, as if written to a pipe); "
            "write it anew, such as with ffmpeg -i OLD NEW.flac"
        )
    start, stop = _frames(path, header)
    if (stop - start) * max(header.channels, rate / header.samplerate) > LARGEST:
        raise DataError(
            f"{path} cannot be read as a recording of {(stop - start) / header.samplerate:,.0f} seconds and "
            f"{header.channels} channels: that is more than {LARGEST:,} samples; split it"
        )
    if missing:
        raise DataError(f"{path} {missing}")
    return header


def _frames(path: str | Path, header: Any) -> tuple[int, int]:
    """The first sample that a field names, and the one after its last."""
    _, start, end = split_span(str(path))
    first = round(start * header.samplerate)
    last = header.frames if end is None else min(round(end * header.samplerate), header.frames)
    if first >= last and end is not None:
        whole = header.frames / header.samplerate
        raise DataError(f"{path} cannot be read: the recording lasts {whole:g} seconds, and that span is not in it")
    return first, last


def _missing(opened: Path | IO[bytes]) -> str | None:
    """What is missing of a file, which its reader does not mind, or None."""
    if isinstance(opened, Path):
        facts = opened.stat()
        return _missing_of_file(opened, facts.st_ino, facts.st_size, facts.st_mtime_ns)
    start, size = opened.read(40), opened.seek(0, io.SEEK_END)
    opened.seek(0)
    fault = ogg_fault(opened) if start[:4] == b"OggS" else None
    opened.seek(0)
    if (said := _said(start)) > size + 1:  # some leave a last byte out that only fills up
        return f"is cut off: it has {size:,} of {said:,} bytes"
    return fault and f"{fault}; make or download it again"


@lru_cache(maxsize=256)
def _missing_of_file(path: Path, *changes: int) -> str | None:
    """It is found once, for as long as the file stays the same: many fields may name spans of it."""
    with path.open("rb") as file:
        return _missing(file)


def _said(start: bytes) -> int:
    """How many bytes a file has by its header: WAV, AIFF, AU, RF64 or Wave64; else 0."""
    little, big, after = int.from_bytes(start[4:8], "little"), int.from_bytes(start[4:8], "big"), start[8:12]
    match start[:4]:
        case b"RIFF" if after == b"WAVE":
            return little + 8 if little < _UNKNOWN else 0
        case b"FORM":
            return big + 8 if big < _UNKNOWN else 0
        case b".snd":
            samples = int.from_bytes(after, "big")
            return big + samples if samples < _UNKNOWN else 0
        case b"RF64" if start[12:16] == b"ds64":
            said = int.from_bytes(start[20:28], "little") + 8
        case b"riff":
            said = int.from_bytes(start[16:24], "little")
        case _:
            return 0
    return said if said < _ENDLESS else 0


def _unreadable(path: str | Path, error: Exception) -> DataError:
    what = re.sub("^Error opening .*?: ", "", str(error)).rstrip(".") or type(error).__name__
    return DataError(f"{path} cannot be read as a recording ({what}); WAV, FLAC and OGG will do")


def resampled(samples: Samples, before: int, after: int) -> Samples:
    """At another rate, through a sinc filter under a Kaiser window, which passes what both rates can hold.

    Output `n` lies at `n · before / after` of the input; all that lie at the same fraction have the same taps.
    """
    shared = math.gcd(before, after)
    up, down = after // shared, before // shared
    count, reach = -(-len(samples) * up // down), math.ceil(_TAPS * max(1.0, down / up))
    padded = np.pad(samples.astype(np.float32), (reach, reach + down))
    windows = sliding_window_view(padded, 2 * reach + 1)
    found, at_once = (
        np.empty(count, np.float32),
        max(1, 2**22 // (2 * reach + 1)),
    )  # windows are copied to be multiplied
    for phase in range(min(up, count)):
        first, fraction = divmod(phase * down, up)
        taps, many = _filter(fraction / up, reach, min(1.0, up / down)), len(range(phase, count, up))
        for begin in range(0, many, at_once):
            numbers = np.arange(begin, min(begin + at_once, many))
            found[phase + up * numbers] = windows[first + down * numbers] @ taps
    return found.round().clip(-32768, 32767).astype(np.int16)


@lru_cache(maxsize=2048)
def _filter(fraction: float, reach: int, cutoff: float) -> NDArray[np.float32]:
    """Taps of a filter at a place between two samples."""
    away = np.arange(-reach, reach + 1) - fraction
    window = np.i0(8.0 * np.sqrt(np.clip(1 - (away / reach) ** 2, 0, None))) / np.i0(8.0)
    taps = np.sinc(cutoff * 0.97 * away) * window
    return np.asarray(taps / taps.sum(), np.float32)


@lru_cache(maxsize=16)
def mel_filters(rate: int, size: int, mels: int) -> NDArray[np.float32]:
    """`(mels, size // 2 + 1)`: triangles over the bins of a Fourier transform of `size`, of equal area and even on
    Slaney's mel scale (linear up to 1 kHz, logarithmic above), as librosa has them."""

    def to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(mel < 15, mel * 200 / 3, 1000.0 * np.exp((mel - 15) * np.log(6.4) / 27))

    top = rate / 2
    highest = 15 + 27 * math.log(top / 1000) / math.log(6.4) if top > 1000 else top * 3 / 200
    edges = to_hertz(np.linspace(0.0, highest, mels + 2))
    bins = np.linspace(0.0, top, size // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    area = 2.0 / (edges[2:] - edges[:-2])
    return np.asarray(np.clip(np.minimum(rising, falling), 0, None) * area[:, None], np.float32)


def window_of(rate: int) -> tuple[int, int, int]:
    """Samples between two frames (10 ms), in a frame's window (25 ms), and in its Fourier transform."""
    hop = rate // 100
    window = hop * 5 // 2
    return hop, window, 2 ** (window - 1).bit_length()


def spectrogram(hops: NDArray[np.int16], rate: int, mels: int = 64) -> NDArray[np.uint8]:
    """A picture of a recording in hops `(frames, hop)`: time to the right, pitch upwards, `(height, width, 3)`."""
    if not len(hops):
        return np.zeros((mels, 0, 3), np.uint8)
    hop, window, size = window_of(rate)
    side = (window - hop) // 2
    padded = np.pad(hops.reshape(-1).astype(np.float32) / 32768, (side, window - hop - side))
    frames = sliding_window_view(padded, window)[::hop] * np.hanning(window + 1)[:-1].astype(np.float32)
    power = np.abs(np.fft.rfft(frames, size)) ** 2
    level = np.log(power @ mel_filters(rate, size, mels).T + 1e-6)  # (frames, mels)
    low, high = np.percentile(level, 5), level.max()
    share = np.clip((level - low) / max(high - low, 1e-6), 0, 1).T[::-1]
    dark, bright = np.array([24, 22, 48]), np.array([255, 236, 170])
    picture = dark + (bright - dark) * share[..., None] ** 1.5
    return np.asarray(picture.round(), np.uint8)


def wav(samples: Samples, rate: int) -> bytes:
    """A recording as a WAV file."""
    import wave

    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(np.ascontiguousarray(samples, "<i2").tobytes())
    return file.getvalue()
