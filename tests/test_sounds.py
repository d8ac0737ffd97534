"""Recordings from files, log-mel frames of them, and what alters either while a model trains."""

from __future__ import annotations

import io
import math
import struct
import tracemalloc
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.modalities.audio import Audio, AudioSettings, SoundAugmentation
from regard.data.modalities.ogg import ogg_fault
from regard.data.modalities.sounds import (
    LARGEST,
    check_sound,
    mel_filters,
    read_sound,
    resampled,
    spectrogram,
    wav,
    window_of,
)
from regard.errors import ConfigError, DataError
from regard.nn.spectrogram import FLOOR, AlteredSound, GlobalNorm, LogMel, UtteranceNorm
from regard.ragged import Ragged
from tests.conftest import rows_of, whole

RATE = 8000
Array = NDArray[np.float64]


def sine(hertz: float, rate: int, seconds: float = 0.25, phase: float = 0.3) -> Array:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate + phase)


def samples(x: Array) -> NDArray[np.int16]:
    return np.asarray(np.round(x * 32768), np.int16)


def middle(x: Array, share: float = 0.2) -> Array:
    """Without both ends, where a filter has seen silence."""
    edge = int(len(x) * share)
    return x[edge : len(x) - edge]


# Reading


@pytest.mark.parametrize(
    ("subtype", "apart"),
    [("PCM_U8", 256), ("PCM_16", 1), ("PCM_24", 1), ("PCM_32", 1), ("FLOAT", 0.51), ("DOUBLE", 0.51)],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_a_wav_file_of_any_depth_is_read_as_16_bits(tmp_path: Path, subtype: str, apart: float, channels: int) -> None:
    x = sine(440, RATE)
    sides = [x] if channels == 1 else [x + 0.2, x - 0.2]  # which are mixed again
    soundfile.write(tmp_path / "a.wav", np.stack(sides, 1), RATE, subtype=subtype)
    found = read_sound(tmp_path / "a.wav", RATE)
    assert found.dtype == np.int16
    assert found.shape == x.shape
    assert np.abs(found - x * 32768).max() <= apart + 0.5 * (channels - 1)


@pytest.mark.parametrize(
    ("name", "subtype", "apart"),
    [("a.flac", "PCM_16", 1), ("a.flac", "PCM_24", 1), ("a.ogg", "VORBIS", 1500), ("a.aiff", "FLOAT", 0.51)],
)
def test_flac_ogg_and_others_are_read(tmp_path: Path, name: str, subtype: str, apart: float) -> None:
    x = sine(440, RATE)
    soundfile.write(tmp_path / name, x, RATE, subtype=subtype)
    found = read_sound(tmp_path / name, RATE)
    assert len(found) == len(x)
    assert np.abs(found - x * 32768).max() <= apart


def test_what_is_louder_than_a_file_of_floats_may_be_is_clipped(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([0.0, 3.0, -3.0, 1.0]), RATE, subtype="FLOAT")
    assert read_sound(tmp_path / "a.wav", RATE).tolist() == [0, 32767, -32768, 32767]


@pytest.mark.parametrize("before", [8000, 22050, 44100, 48000, 16000])
@pytest.mark.parametrize("after", [16000, 8000])
def test_a_resampled_sine_is_that_sine_sampled_at_the_new_rate(tmp_path: Path, before: int, after: int) -> None:
    for hertz in (200.0, 1000.0, 3300.0):
        soundfile.write(tmp_path / "a.wav", sine(hertz, before), before)
        found = read_sound(tmp_path / "a.wav", after)
        assert len(found) == math.ceil(round(before * 0.25) * after / before)
        right = sine(hertz, after, len(found) / after)
        assert np.abs(middle(found / 32768) - middle(right)).max() < 2e-3, hertz


@pytest.mark.parametrize(("before", "after"), [(48000, 16000), (44100, 16000), (22050, 8000), (16000, 8000)])
def test_nothing_above_the_new_nyquist_frequency_is_left(before: int, after: int) -> None:
    for times in (1.15, 1.3):
        hertz = after / 2 * times
        assert hertz < before / 2
        found = resampled(samples(sine(hertz, before)), before, after)
        assert np.abs(middle(found / 32768)).max() < 5e-4, hertz  # 60 dB below


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_a_few_samples_are_resampled_too(length: int) -> None:
    for before, after in ((44100, 16000), (8000, 16000), (48000, 8000)):
        found = resampled(np.full(length, 100, np.int16), before, after)
        assert len(found) == math.ceil(length * after / before)


@pytest.mark.parametrize("before", [44100, 48000])  # at 48 kHz all samples have the same taps
def test_a_minute_is_resampled_in_little_memory(before: int) -> None:
    minute = np.zeros(60 * before, np.int16)
    tracemalloc.start()
    assert len(resampled(minute, before, 16000)) == 60 * 16000
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 12 * minute.nbytes


def changed(path: Path, at: int, value: int) -> None:
    """Another number in a header."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack("<I", value))


def stretched(path: Path, count: int, rate: int) -> None:
    """A file with a hole in it, of which the disk holds a few bytes, as a recording of so many samples."""
    soundfile.write(path, sine(440, RATE), rate)
    changed(path, 4, 2 * count + 36)
    changed(path, 40, 2 * count)
    with path.open("r+b") as file:
        file.truncate(2 * count + 44)


def test_what_is_no_recording_is_named_with_its_path(tmp_path: Path) -> None:
    good = tmp_path / "good.wav"
    soundfile.write(good, sine(440, RATE), RATE)
    data = good.read_bytes()
    soundfile.write(tmp_path / "whole.flac", np.random.default_rng(1).normal(0, 0.1, 20000), RATE)
    flac = (tmp_path / "whole.flac").read_bytes()
    soundfile.write(tmp_path / "nan.wav", np.array([0.1, math.nan, 0.2]), RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "infinite.wav", np.array([0.1, math.inf, 0.2]), RATE, subtype="DOUBLE")
    (tmp_path / "folder.wav").mkdir()
    for name, content in {
        "half.wav": data[: len(data) // 2], "header.wav": data[:20], "nothing.wav": b"", "foreign.wav": b"\x89PNG" * 99,
        "half.flac": flac[: len(flac) // 2],
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
    for rate in (1, 2**31 - 1):
        (tmp_path / f"rate{rate}.wav").write_bytes(data)
        changed(tmp_path / f"rate{rate}.wav", 24, rate)
    for name, what in {
        "half.wav": f"is cut off: it has {len(data) // 2:,} of {len(data):,} bytes",
        "header.wav": "cannot be read as a recording (",
        "nothing.wav": "cannot be read as a recording (Format not recognised); WAV, FLAC and OGG will do",
        "foreign.wav": "cannot be read as a recording (Format not recognised); WAV, FLAC and OGG will do",
        "half.flac": "cannot be read as a recording (",
        "folder.wav": "cannot be read as a recording (it is no file)",
        "nan.wav": "cannot be read as a recording (it holds numbers that are not finite)",
        "infinite.wav": "cannot be read as a recording (it holds numbers that are not finite)",
        "rate1.wav": "(its header says 1 samples a second); from 1,000 to 768,000 will do",
        "rate2147483647.wav": "(its header says 2,147,483,647 samples a second)",
        "a\0b.wav": "embedded null ",  # as Python words it
    }.items():
        with pytest.raises(DataError) as error:
            read_sound(tmp_path / name, RATE)
        assert str(error.value).startswith(str(tmp_path / name)), name
        assert what in str(error.value), name
        fault = Audio(AudioSettings(rate=RATE)).find_fault(str(tmp_path / name))  # whatever `bad_lines` says of it
        assert fault == ("unreadable", f"names what is no recording: {error.value}"), name
    with pytest.raises(DataError, match=r"no recording .*none\.wav; in a data file its path is relative to that file"):
        read_sound(tmp_path / "none.wav", RATE)
    assert Audio(AudioSettings(rate=RATE)).find_fault(str(good)) is None


@pytest.mark.parametrize("name", ["a.wav", "a.aiff", "a.au", "a.rf64", "a.w64", "a.ogg", "a.opus", "a.flac"])
def test_a_recording_that_is_cut_off_is_not_read_short(tmp_path: Path, name: str) -> None:
    kind = {"a.opus": {"format": "OGG", "subtype": "OPUS"}}.get(name, {})
    soundfile.write(tmp_path / name, np.random.default_rng(1).normal(0, 0.1, 40000), RATE, **kind)
    whole = (tmp_path / name).read_bytes()
    assert len(read_sound(tmp_path / name, RATE)) == 40000
    for share in (0.98, 0.8, 0.5):
        (tmp_path / name).write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(DataError, match=name):
            read_sound(tmp_path / name, RATE)


def test_pages_of_an_ogg_file_that_are_damaged_or_missing_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.ogg"
    soundfile.write(path, np.random.default_rng(1).normal(0, 0.1, 60000), RATE)
    whole = path.read_bytes()
    starts = [i for i in range(len(whole)) if whole.startswith(b"OggS", i)]
    assert len(starts) > 4
    at, after, last = starts[3], starts[4], starts[-1]
    for content, what in {
        whole[: at + 200] + b"\xff\0" + whole[at + 202 :]: f"a.ogg is damaged at byte {at:,}",
        whole[:at] + b"xxxx" + whole[at + 4 :]: f"a.ogg is damaged at byte {at:,}",
        whole[:at] + whole[after:]: f"a.ogg has a page missing at byte {at:,}",
        whole[:last]: "a.ogg is cut off: its last page is not marked as one",
        whole[: last + 20]: f"a.ogg is cut off in the page at byte {last:,}",
    }.items():
        path.write_bytes(content)
        with pytest.raises(DataError, match=what):
            read_sound(path, RATE)
    path.write_bytes(whole + b"TAG and whatever else follows")
    assert len(read_sound(path, RATE)) == 60000
    assert ogg_fault(io.BytesIO(whole + whole)) is None  # one after the other, as RFC 3533 has it
    assert ogg_fault(io.BytesIO(whole + whole[:at])) == "is cut off: its last page is not marked as one"


def test_a_header_that_was_written_to_a_pipe_says_no_length_and_what_is_there_is_read(tmp_path: Path) -> None:
    path = tmp_path / "piped.wav"
    soundfile.write(path, sine(440, RATE), RATE)
    changed(path, 4, 0xFFFFFFFF)
    changed(path, 40, 0xFFFFFFFF)
    assert len(read_sound(path, RATE)) == len(sine(440, RATE))


def test_a_flac_file_whose_header_says_no_length_is_named(tmp_path: Path) -> None:
    path = tmp_path / "piped.flac"
    soundfile.write(path, sine(440, RATE), RATE)
    content = bytearray(path.read_bytes())
    content[21:26] = bytes([content[21] & 0xF0, 0, 0, 0, 0])  # samples in all, 36 bits
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=r"piped\.flac .* does not say how long it is, as if written to a pipe\); write"
    ):
        read_sound(path, RATE)


def test_a_recording_that_would_fill_the_memory_is_refused_by_its_header(tmp_path: Path) -> None:
    """By what is there, or by what it would be at the rate that is wanted."""
    stretched(tmp_path / "long.wav", LARGEST + 1, RATE)
    with pytest.raises(DataError, match=rf"long.wav cannot .* 33,554 seconds and 1 channels: .* {LARGEST:,} samples"):
        read_sound(tmp_path / "long.wav", RATE)
    stretched(tmp_path / "slow.wav", LARGEST // 100, 1000)
    assert check_sound(tmp_path / "slow.wav", 16000).frames == LARGEST // 100
    with pytest.raises(DataError, match=r"slow\.wav cannot .* split it"):
        read_sound(tmp_path / "slow.wav", 192_000)


def test_a_wav_file_of_samples_is_read_back() -> None:
    x = samples(sine(440, RATE))
    with wave.open(io.BytesIO(wav(x, RATE))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        assert np.array_equal(np.frombuffer(file.readframes(10**6), "<i2"), x)


def test_items_are_hops_of_10_ms_the_last_one_filled_with_silence(tmp_path: Path) -> None:
    audio = Audio(AudioSettings(rate=RATE))
    soundfile.write(tmp_path / "a.wav", np.full(201, 0.5), RATE)
    soundfile.write(tmp_path / "b.wav", np.zeros(0), RATE)
    first, second = audio.encode_many([str(tmp_path / "a.wav"), str(tmp_path / "b.wav")])
    assert first.shape == (3, 80)
    assert (first.reshape(-1)[:201] == 16384).all()
    assert (first.reshape(-1)[201:] == 0).all()
    assert second.shape == (0, 80)
    assert audio.problem(second, 100) == "is empty"
    assert audio.problem(first, 1) is None
    long = Audio(AudioSettings(rate=RATE, max_length=2)).problem(first, 100)
    assert long == "takes 0.03 seconds, more than source.max_length=2 hops of 10 ms; split it"


# Log-mel frames


def to_mel(hertz: float) -> float:
    """Slaney's scale: 3 mels in 200 Hz up to 1 kHz, which is 15, and 27 in a factor of 6.4 above."""
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def to_hertz(mel: float) -> float:
    return 200 * mel / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)


def triangles(rate: int, size: int, mels: int) -> Array:
    """One number at a time."""
    edges = [to_hertz(to_mel(rate / 2) * i / (mels + 1)) for i in range(mels + 2)]
    found = np.zeros((mels, size // 2 + 1))
    for band in range(mels):
        low, peak, high = edges[band : band + 3]
        for k in range(size // 2 + 1):
            hertz = k * rate / size
            if low <= hertz <= peak:
                found[band, k] = (hertz - low) / (peak - low) * 2 / (high - low)
            elif peak < hertz <= high:
                found[band, k] = (high - hertz) / (high - peak) * 2 / (high - low)
    return found


@pytest.mark.parametrize(
    ("rate", "size", "mels"), [(16000, 512, 80), (8000, 256, 23), (1000, 32, 5), (44100, 2048, 64)]
)
def test_mel_filters_are_slaneys(rate: int, size: int, mels: int) -> None:
    np.testing.assert_allclose(mel_filters(rate, size, mels), triangles(rate, size, mels), rtol=2e-6, atol=1e-9)


def recordings(lengths: list[int], rate: int = RATE, seed: int = 1) -> Ragged:
    """Noise of 16 bits in hops."""
    hop = rate // 100
    values = np.random.default_rng(seed).integers(-20000, 20000, (sum(lengths), hop)).astype(np.int16)
    return Ragged.from_lengths(torch.from_numpy(values), lengths)


@pytest.mark.parametrize(("rate", "mels"), [(8000, 12), (16000, 20), (1100, 4), (11000, 9)])
def test_log_mel_frames(rate: int, mels: int) -> None:
    """`log(M |F(w ⊙ x_t)|² + ε)`, frame by frame, a Fourier transform term by term."""
    hop, width, size = window_of(rate)
    assert (hop, width) == (rate // 100, rate // 100 * 5 // 2)
    assert size >= width > size // 2
    hops = recordings([4, 1, 0, 2], rate)
    found = rows_of(LogMel(rate, mels).double()(hops))
    window = [0.5 - 0.5 * math.cos(2 * math.pi * n / width) for n in range(width)]
    fourier = np.exp(-2j * np.pi * np.outer(np.arange(size // 2 + 1), np.arange(width)) / size)
    for row, given in zip(found, rows_of(hops), strict=True):
        x = given.flatten().double().numpy() / 32768
        assert len(row) == len(given)
        for t in range(len(row)):
            begin = t * hop - (width - hop) // 2  # so that it lies around its hop
            frame = [x[i] if 0 <= i < len(x) else 0.0 for i in range(begin, begin + width)]
            power = np.abs(fourier @ (np.array(frame) * window)) ** 2
            right = np.log(triangles(rate, size, mels) @ power + FLOOR)
            np.testing.assert_allclose(row[t].numpy(), right, rtol=0, atol=2e-6)  # its buffers were made in float32


@whole
def test_log_mel_frames_are_those_of_torchs_transform() -> None:
    hop, width, size = window_of(RATE)
    hops, log_mel = recordings([9]), LogMel(RATE, 12).double()
    x = hops.values.flatten().double() / 32768
    side, inside = (width - hop) // 2, (size - width) // 2  # torch sets the window in the middle of the transform
    padded = torch.nn.functional.pad(x, (side + inside, size))
    window = torch.hann_window(width, dtype=torch.float64)
    found = torch.stft(padded, size, hop, width, window, center=False, return_complex=True).abs().square()[:, :9]
    right = torch.log(found.mT @ torch.from_numpy(triangles(RATE, size, 12)).mT + FLOOR)
    torch.testing.assert_close(log_mel(hops).values, right, rtol=0, atol=2e-6)


def test_silence_is_the_floor_and_floats_are_read_as_they_are() -> None:
    log_mel, hops = LogMel(RATE, 12).double(), recordings([3, 2])
    torch.testing.assert_close(
        log_mel(hops.like(torch.zeros_like(hops.values))).values, torch.full((5, 12), math.log(FLOOR)).double()
    )
    floats = hops.like(hops.values.double() / 32768)
    assert torch.equal(log_mel(floats).values, log_mel(hops).values)


@pytest.mark.parametrize("normalize", [UtteranceNorm(), None], ids=["utterance", "none"])
def test_packed_recordings_are_read_like_one_at_a_time(normalize: UtteranceNorm | None) -> None:
    log_mel, hops = LogMel(RATE, 12).double(), recordings([3, 0, 1, 7, 0])

    def read(x: Ragged) -> Tensor:
        return (log_mel(x) if normalize is None else normalize(log_mel(x))).values

    alone = [read(Ragged.from_lengths(row, [len(row)])) for row in rows_of(hops)]
    torch.testing.assert_close(read(hops), torch.cat(alone), rtol=1e-12, atol=1e-12)
    assert read(recordings([])).shape == (0, 12)
    assert read(recordings([0, 0])).shape == (0, 12)


def test_the_norm_of_an_utterance() -> None:
    x = Ragged.from_lengths(torch.randn(9, 3, dtype=torch.float64) * 4 + 2, [5, 0, 4])
    for row, given in zip(rows_of(UtteranceNorm()(x)), rows_of(x), strict=True):
        numbers = given.numpy()
        if len(numbers):
            right = (numbers - numbers.mean(0)) / (numbers.std(0) + 1e-3)
            np.testing.assert_allclose(row.numpy(), right, atol=1e-12)


def test_the_global_norm_is_a_mean_over_batches_which_then_stays() -> None:
    norm, draw = GlobalNorm(3, batches=4).double(), torch.Generator().manual_seed(1)
    batches = [torch.randn(5 + i, 3, generator=draw, dtype=torch.float64) * (i + 1) + i for i in range(6)]
    for i, batch in enumerate(batches):
        found = norm(Ragged.from_lengths(batch, [len(batch)])).values
        known = batches[: min(i + 1, 4)]
        mean, square = (torch.stack([f(x).mean(0) for x in known]).mean(0) for f in (torch.clone, torch.square))
        spread = (square - mean**2).sqrt()
        torch.testing.assert_close(found, (batch - mean) / (spread + 1e-3), rtol=1e-10, atol=1e-10)
    frozen = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    norm.eval()
    in_use = norm(Ragged.from_lengths(batches[0], [2, 3])).values
    torch.testing.assert_close(in_use, (batches[0] - mean) / (spread + 1e-3), rtol=1e-10, atol=1e-10)
    assert all(torch.equal(buffer, frozen[name]) for name, buffer in norm.named_buffers())
    assert set(norm.state_dict()) == {"mean", "square", "seen"}


# Augmentation


def altered(**settings: Any) -> AlteredSound:
    return AlteredSound(SoundAugmentation.model_validate(settings))


def test_speed_is_linear_interpolation_at_other_moments() -> None:
    hops, seen = recordings([5, 0, 1, 12, 7, 3, 6]), set()
    torch.manual_seed(3)
    made = altered(speed=[0.5, 0.9, 1.0, 1.25, 2.0])(hops)
    assert made.values.dtype == torch.float32
    for new, old in zip(rows_of(made), rows_of(hops), strict=True):
        x, place = old.flatten().double().numpy() / 32768, None
        for speed in (0.5, 0.9, 1.0, 1.25, 2.0):
            if len(new) == math.ceil(len(old) / speed):
                place = np.arange(new.numel()) * speed
                right = np.where(place < len(x), np.interp(place, np.arange(len(x)), x), 0.0) if len(x) else place
                if np.abs(new.flatten().numpy() - right).max(initial=0) < 1e-4:
                    seen.add(speed)
                    break
        else:
            raise AssertionError(f"{len(old)} hops became {len(new)}")
    assert len(seen) > 2
    assert len(rows_of(made)[1]) == 0  # of nothing there is nothing


def test_a_faster_sine_is_a_higher_and_shorter_one() -> None:
    hops = torch.from_numpy(samples(sine(400, RATE)).reshape(-1, 80))
    made = altered(speed=[1.1])(Ragged.from_lengths(hops, [len(hops)]))
    assert made.lengths.tolist() == [math.ceil(25 / 1.1)]
    right = sine(440, RATE)[: made.values.numel()]
    apart = np.abs(made.values.flatten().numpy() - right)[: int(2000 / 1.1) - 1]
    assert apart.max() < 0.03  # what a line between two samples leaves out
    assert (made.values.flatten()[int(2000 / 1.1) + 1 :] == 0).all()


def test_noise_is_as_loud_as_it_was_told() -> None:
    hops = recordings([200, 300, 0, 100])
    hops.values[200:500] //= 10  # one is quiet
    for wanted in (0.0, 20.0):
        torch.manual_seed(1)
        made = altered(noise=1.0, snr=(wanted, wanted))(hops)
        for noisy, clean in zip(rows_of(made), rows_of(hops), strict=True):
            if len(clean):
                signal = clean.float() / 32768
                noise = noisy - signal
                found = 10 * math.log10(float(signal.square().mean() / noise.square().mean()))
                assert found == pytest.approx(wanted, abs=0.2)
                assert abs(float(noise.mean())) < 0.02 * float(noise.std())
    torch.manual_seed(2)
    hops = recordings([2] * 400)
    half = altered(noise=0.5, snr=(10, 30))(hops).values == hops.values.float() / 32768
    untouched = half.view(400, -1).all(1).sum()
    assert 160 < untouched < 240


def test_noise_lies_between_both_levels() -> None:
    torch.manual_seed(1)
    hops = recordings([30] * 60)
    made = altered(noise=1.0, snr=(5, 25))(hops)
    clean = hops.values.float() / 32768
    power, noise = (hops.like(x.square().mean(1)).mean() for x in (clean, made.values - clean))
    levels = 10 * torch.log10(power / noise)
    assert levels.min() > 4.5
    assert levels.max() < 25.5
    assert levels.max() - levels.min() > 15


def test_what_specaugment_hides() -> None:
    """Whole bands of a recording, none wider than may be, and whole stretches of it, none longer."""
    lengths, bands = [40, 0, 1, 100, 60] * 20, 20
    frames = Ragged.from_lengths(torch.ones(sum(lengths), bands), lengths)
    torch.manual_seed(1)
    found = rows_of(altered(frequency_masks=1, frequency_width=6).masked(frames))
    widths = set()
    for row in found:
        if len(row):
            assert (row == row[0]).all()  # the whole time
            hidden = (row[0] == 0).nonzero().flatten().tolist()
            assert hidden == list(range(hidden[0], hidden[0] + len(hidden))) if hidden else True
            widths.add(len(hidden))
    assert widths == set(range(7))
    torch.manual_seed(1)
    shares = set()
    for row in rows_of(altered(time_masks=1, time_share=0.1).masked(frames)):
        if len(row):
            assert (row == row[:, :1]).all()  # all bands
            gone = (row[:, 0] == 0).nonzero().flatten().tolist()
            assert gone == list(range(gone[0], gone[0] + len(gone))) if gone else True
            assert len(gone) <= 0.1 * len(row)
            shares.add(len(gone))
    assert {0, 1, 10} < shares
    torch.manual_seed(1)
    several = altered(frequency_masks=3, frequency_width=2, time_masks=4, time_share=0.05).masked(frames)
    assert 0.05 < (several.values == 0).float().mean() < 0.4
    assert (frames.values == 1).all()  # in place of nothing
    everywhere = altered(frequency_masks=1, frequency_width=1000, time_masks=1, time_share=1.0)
    assert everywhere.masked(frames).values.shape == frames.values.shape


def test_what_is_hidden_of_frames_that_are_not_centred() -> None:
    """The mean of its band over its recording stands there."""
    lengths, draw = [12, 7], torch.Generator().manual_seed(2)
    frames = Ragged.from_lengths(5.0 + torch.rand(sum(lengths), 4, generator=draw, dtype=torch.float64), lengths)
    torch.manual_seed(1)
    made = altered(time_masks=2, time_share=0.5).masked(frames, centred=False)
    changed = made.values != frames.values
    assert changed.any()
    for values, found, gone in zip(rows_of(frames), rows_of(made), rows_of(frames.like(changed)), strict=True):
        assert torch.allclose(found[gone], values.mean(0).expand_as(found)[gone])


def test_the_places_that_are_hidden_are_all_equally_likely_to_begin() -> None:
    torch.manual_seed(1)
    frames = Ragged.from_lengths(torch.ones(3000 * 4, 3), [4] * 3000)
    made = altered(time_masks=1, time_share=0.25, frequency_masks=0).masked(frames)
    hidden = (made.padded()[:, :, 0] == 0).float().mean(0)  # of four places, each in an eighth of all
    assert hidden.sub(1 / 8).abs().max() < 0.02


def test_draws_come_from_the_seed() -> None:
    everything = altered(speed=[0.9, 1.1], noise=1.0, frequency_masks=2, time_masks=2)

    def drawn(seed: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        sound = everything(recordings([5, 9, 3]))
        frames = Ragged.from_lengths(torch.ones(90, 20), [50, 40])
        return sound.values, everything.masked(frames).values

    assert all(torch.equal(a, b) for a, b in zip(drawn(1), drawn(1), strict=True))
    assert not any(a.shape == b.shape and torch.equal(a, b) for a, b in zip(drawn(1), drawn(2), strict=True))
    nothing = recordings([0, 0])
    assert everything(nothing).lengths.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"rate": 16050}, "16050 samples a second are no whole number in 10 ms; try 16000"),
        ({"rate": 22049}, "try 22000"),
        ({"augment": {"speed": [0.9, 0.1]}}, "0.1 is too far from 1; speeds from 0.5 to 2 will do"),
        ({"augment": {"speed": [math.nan]}}, "'speed[0]' in [source.augment] is nan"),
        ({"augment": {"snr": [30, 10]}}, "the least (30) comes first, then the most (10)"),
        ({"augment": {"snr": [math.nan, 10]}}, "snr"),
        ({"augment": {"snr": [-math.inf, 10]}}, "snr"),
        ({"augment": {"noise": 2}}, "noise"),
        ({"augment": {"time_share": -1}}, "time_share"),
        ({"augment": {"sped": [1.0]}}, "did you mean 'speed'?"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], what: str) -> None:
    from regard.config import parse

    with pytest.raises(ConfigError) as error:
        parse({"source": {"kind": "audio", **settings}})
    assert what in str(error.value)


# What attention is drawn on


def test_a_spectrogram_shows_a_tone_where_it_sounds() -> None:
    silence, tone = np.zeros((20, 80), np.int16), samples(sine(1000, RATE, 0.2)).reshape(-1, 80)
    picture = spectrogram(np.concatenate((silence, tone)), RATE, mels=32)
    assert picture.shape == (32, 40, 3)
    assert picture.dtype == np.uint8
    brightness = picture.astype(int).sum(2)
    top = int(brightness[:, 30].argmax())
    edges = [to_hertz(to_mel(RATE / 2) * i / 33) for i in range(34)]
    band = 31 - top  # pitch goes upwards
    assert edges[band] < 1000 < edges[band + 2]
    assert (brightness[top, 22:38] > brightness[top, :18].max() + 200).all()


@pytest.mark.parametrize("length", [0, 1])
def test_a_spectrogram_of_next_to_nothing(length: int) -> None:
    assert spectrogram(np.zeros((length, 80), np.int16), RATE).shape == (64, length, 3)
