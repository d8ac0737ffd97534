"""Sound to log-mel frames, and what alters either while a model trains."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.modalities.sounds import mel_filters, window_of
from regard.ragged import Ragged

FLOOR = 1e-10  # added to the energy of a band, below which there is silence


class LogMel(nn.Module):
    """`log(M |F(w ⊙ x_t)|² + ε)`: the energy in bands `M`, even on the mel scale, of windows `w` of 25 ms every 10 ms.

    A window lies around the middle of its hop of 10 ms, so that packed hops need nothing but their neighbours; beyond
    both ends of a recording there is silence.
    """

    window: Tensor
    filters: Tensor

    def __init__(self, rate: int, mels: int) -> None:
        super().__init__()
        self.hop, width, self.size = window_of(rate)
        self.before = (width - self.hop) // 2
        self.after = width - self.hop - self.before
        self.register_buffer("window", torch.hann_window(width, device="cpu"), persistent=False)
        self.register_buffer("filters", torch.from_numpy(mel_filters(rate, self.size, mels).T.copy()), persistent=False)

    def forward(self, hops: Ragged) -> Ragged:
        """`(total, hop)` samples to `(total, mels)`, in full precision."""
        x = hops.values
        x = x.to(self.filters.dtype) / 32768 if not x.is_floating_point() else x
        if not len(x):  # of which there is no Fourier transform
            return hops.like(self.filters.new_zeros((0, self.filters.shape[1])))
        first = (hops.position == 0)[:, None]
        last = (hops.position + 1 == hops.spread(hops.lengths.clamp(min=1)))[:, None]
        earlier = torch.roll(x, 1, 0).masked_fill(first, 0.0)[:, self.hop - self.before :]
        later = torch.roll(x, -1, 0).masked_fill(last, 0.0)[:, : self.after]
        with torch.autocast(x.device.type, enabled=False):
            frames = torch.cat((earlier, x, later), 1) * self.window
            power = torch.fft.rfft(frames, self.size).abs().square()
            return hops.like(torch.log(power @ self.filters + FLOOR))


class WhisperLogMel(nn.Module):
    """Radford et al. 2023, 2.2, as their code has it: with `s = log₁₀ max(M |F(w ⊙ x_t)|², 10⁻¹⁰)` of windows of 25 ms
    around every 10 ms, frames are `(max(s, max s - 8) + 4) / 4`, where `max s` is over the whole recording. Both ends
    are mirrored, and no Fourier transform is longer than its window."""

    window: Tensor
    filters: Tensor

    def __init__(self, rate: int, mels: int) -> None:
        super().__init__()
        self.hop, self.size, _ = window_of(rate)
        self.register_buffer("window", torch.hann_window(self.size, device="cpu"), persistent=False)
        filters = torch.from_numpy(mel_filters(rate, self.size, mels).copy())
        self.register_buffer("filters", filters, persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """`(rows, samples)` between -1 and 1 to `(rows, mels, frames)`, in full precision."""
        with torch.autocast(samples.device.type, enabled=False):
            samples = samples.to(self.filters.dtype)
            spectrum = torch.stft(samples, self.size, self.hop, window=self.window, return_complex=True)
            power = spectrum[..., :-1].abs().square()  # the last window lies beyond the end
            level = (self.filters @ power).clamp(min=FLOOR).log10()
            return (level.maximum(level.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


class UtteranceNorm(nn.Module):
    """Each band less its mean over the recording, and divided by its spread there."""

    def forward(self, x: Ragged) -> Ragged:
        centred = x.values - x.spread(x.mean())
        spread = x.like(centred.square()).mean().sqrt()
        return x.like(centred / x.spread(spread + 1e-3))


class GlobalNorm(nn.Module):
    """Each band less its mean over all that was trained on, and divided by its spread there.

    Both are moving means over the batches of the first `batches` updates, and stay as they are from then on.
    """

    mean: Tensor
    square: Tensor
    seen: Tensor

    def __init__(self, bands: int, batches: int = 1000) -> None:
        super().__init__()
        self.batches = batches
        self.register_buffer("mean", torch.zeros(bands))
        self.register_buffer("square", torch.ones(bands))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Ragged) -> Ragged:
        if self.training:
            with torch.no_grad():
                share = torch.where(self.seen < self.batches, 1 / (self.seen + 1), 0.0)
                own = (x.row < x.rows)[:, None]
                for kept, values in ((self.mean, x.values), (self.square, x.values.square())):
                    kept.lerp_(values.masked_fill(~own, 0.0).sum(0) / own.sum().clamp(min=1), share)
                self.seen.add_(1).clamp_(max=self.batches)
        spread = (self.square - self.mean.square()).clamp(min=0).sqrt()
        return x.like((x.values - self.mean) / (spread + 1e-3))


class AlteredSound(nn.Module):
    """Recordings at another speed or with noise, and frames with bands and stretches of time hidden.

    What is drawn comes from torch's generators, whose state is saved with a run.
    """

    speeds: Tensor

    def __init__(self, settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self.register_buffer("speeds", torch.tensor(settings.speed or [1.0]), persistent=False)

    def forward(self, hops: Ragged) -> Ragged:
        """Packed hops of 16-bit samples, to such in floating point between -1 and 1."""
        if not hops.longest:
            return hops
        x = hops.like(hops.values.float() / 32768)
        x = self._speeds(x) if self.settings.speed else x
        return self._noise(x) if self.settings.noise else x

    def _speeds(self, x: Ragged) -> Ragged:
        """Ko et al. 2015: each recording at one of some speeds, its pitch along with it, by linear interpolation."""
        hop, device = x.values.shape[1], x.values.device
        # On the CPU, so that shapes wait for no device; or, where they follow from no lengths, on the device.
        known, speeds = (x.lengths, self.speeds) if x.spare else (x.known, torch.tensor(self.settings.speed))
        speed = speeds[torch.randint(len(speeds), (x.rows,), device=known.device)]
        lengths = (known / speed).ceil().long().clamp(min=1).where(known > 0, 0)
        if x.spare:
            made = _room(x, lengths, min(self.settings.speed))
        else:
            made = Ragged.from_lengths(x.values.new_zeros(int(lengths.sum()), hop), lengths.tolist())
        speed = speed.double().to(device)  # single precision cannot count samples
        samples = torch.arange(hop, device=device)
        place = (made.position[:, None] * hop + samples) * made.spread(speed)[:, None]  # in its recording
        last = made.spread(x.lengths * hop - 1)[:, None]
        start = made.spread(x.offsets[:-1].long() * hop)[:, None]
        before = place.floor().long()
        share, flat = (place - before).float(), x.values.flatten()
        here, there = (flat[start + index.minimum(last).clamp(min=0)] for index in (before, before + 1))
        return made.like((here + share * (there - here)).masked_fill(before > last, 0.0))

    def _noise(self, x: Ragged) -> Ragged:
        rows, device = len(x), x.values.device
        low, high = self.settings.snr
        decibels = low + (high - low) * torch.rand(rows, device=device)
        power = x.like(x.values.square().mean(1)).mean()
        level = (power * 10 ** (-decibels / 10)).sqrt() * (torch.rand(rows, device=device) < self.settings.noise)
        return x.like(x.values + x.spread(level)[:, None] * torch.randn_like(x.values))

    def masked(self, x: Ragged, *, centred: bool = True) -> Ragged:
        """SpecAugment (Park et al. 2019): frames `(total, mels)` with their mean where they are hidden: 0, if they are
        centred, else that of each band over its recording."""
        settings, rows, device, bands = self.settings, len(x), x.values.device, x.values.shape[1]
        hidden = torch.zeros((rows, bands), dtype=torch.bool, device=device)
        band = torch.arange(bands, device=device)
        for _ in range(settings.frequency_masks):
            width = torch.rand(rows, device=device) * (min(settings.frequency_width, bands) + 1)
            start = torch.rand(rows, device=device) * (bands - width.floor())
            hidden |= (band >= start.floor()[:, None]) & (band < (start.floor() + width.floor())[:, None])
        hidden = x.spread(hidden)
        for _ in range(settings.time_masks):
            width = (torch.rand(rows, device=device) * (settings.time_share * x.lengths + 1)).floor()
            start = (torch.rand(rows, device=device) * (x.lengths - width + 1)).floor()
            hidden |= ((x.position >= x.spread(start)) & (x.position < x.spread(start + width)))[:, None]
        return x.like(
            x.values.masked_fill(hidden, 0.0) if centred else torch.where(hidden, x.spread(x.mean()), x.values)
        )


def _room(x: Ragged, lengths: Tensor, slowest: float) -> Ragged:
    """Room for sequences of these lengths, which only the device knows: as much as the slowest speed would take."""
    total, longest = (math.ceil(number / slowest) for number in (x.values.shape[0], x.longest))
    offsets = F.pad(lengths.cumsum(0), (1, 0)).to(x.offsets.dtype)
    return Ragged(x.values.new_zeros(total + x.rows, x.values.shape[1]), offsets, longest, spare=True)
