"""Speech: stems that make vectors of a recording, and the Conformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.encoder_settings import ConformerSettings
from regard.models.encoders import Body, Memory, make_positions
from regard.models.stems import Elements, Stem
from regard.nn.attention import MultiHeadAttention
from regard.nn.blocks import Block, FeedForward
from regard.nn.depthwise import depthwise
from regard.nn.dropout import Dropout
from regard.nn.fused import add_and_norm, add_dropout, norm
from regard.nn.kernels import Spans, usable
from regard.nn.positions import Relative
from regard.nn.recurrence import Recurrence
from regard.nn.spectrogram import AlteredSound, GlobalNorm, LogMel, UtteranceNorm, WhisperLogMel
from regard.nn.statistics import BatchNorm
from regard.nn.track import ReluApart, Track, convolved
from regard.ragged import Ragged, gathered
from regard.registry import register
from regard.stem_settings import LogMelSettings, PyramidSettings, SubsamplingSettings, WhisperStemSettings


@register("log_mel")
class LogMelStem(Stem):
    """A vector for each log-mel frame of 10 ms. Other stems for sound make fewer vectors of the same frames."""

    fills = 100

    def __init__(self, settings: LogMelSettings, elements: Elements, d_model: int, dropout: float) -> None:
        super().__init__(settings, elements, d_model, dropout)
        self.log_mel = LogMel(100 * elements.shape[0], settings.mels)
        self.normalize: nn.Module = UtteranceNorm() if settings.normalize == "utterance" else nn.Identity()
        self.normalize = GlobalNorm(settings.mels) if settings.normalize == "global" else self.normalize
        self.make(settings, d_model)

    def make(self, settings: Any, d_model: int) -> None:
        """The layers from frames to vectors."""
        self.output = nn.Linear(settings.mels, d_model)

    def vectors(self, source: Ragged) -> Ragged:
        frames = self.normalize(self.log_mel(source))
        if self.training and isinstance(self.augmentation, AlteredSound):
            frames = self.augmentation.masked(frames, centred=not isinstance(self.normalize, nn.Identity))
        kind = next((parameter.dtype for parameter in self.parameters()), frames.values.dtype)
        return self.reduced(frames.like(frames.values.to(kind)))  # which are in full precision until here

    def reduced(self, frames: Ragged) -> Ragged:
        """Frames `(total, mels)` to vectors `(total', d_model)`."""
        return frames.like(self.output(frames.values))


@register("subsampling")
class SubsamplingStem(LogMelStem):
    """Convolutions of stride 2 over time and frequency, then a dense layer (Dong et al. 2018; Gulati et al. 2020)."""

    def make(self, settings: SubsamplingSettings, d_model: int) -> None:
        times, bands = settings.halvings, settings.mels
        widths = [1, *[settings.channels] * times]
        layers = [nn.Conv2d(before, settings.channels, 3, stride=2, padding=1) for before in widths[:-1]]
        self.convolutions: Sequence[nn.Conv2d] = nn.ModuleList(layers)  # type: ignore[assignment]
        for _ in range(times):
            bands = -(-bands // 2)
        self.output = nn.Linear(settings.channels * bands, d_model)

    def reduced(self, frames: Ragged) -> Ragged:
        if frames.spare:
            return self._on_a_track(frames)
        x, lengths, known = frames.padded().unsqueeze(1), frames.lengths, frames.known
        for convolution in self.convolutions:
            lengths, known = (lengths + 1) // 2, (known + 1) // 2
            x = F.relu(convolution(x))  # (rows, channels, time, bands)
            # Beyond the end of a row is nothing, whatever stands beside it in the batch.
            beyond = torch.arange(x.shape[2], device=x.device) >= lengths[:, None]
            x = x.masked_fill(beyond[:, None, :, None], 0.0)
        made = _layout(frames, lengths, known)
        return made.like(self.output(made.unpadded(x.transpose(1, 2).flatten(2)).values))

    def _on_a_track(self, frames: Ragged) -> Ragged:
        """What `reduced` computes, without padding: recordings lie one behind the other on a track, whose length
        follows from shapes alone, with zeros between them as there are around one that is padded."""
        times = len(self.convolutions)
        track = Track.of(frames, 2**times)
        x = frames.values.index_select(0, track.frame).masked_fill(track.empty[:, None], 0.0)
        x = x.view(1, *x.shape, 1)  # (1, time, bands, channels)
        for number, convolution in enumerate(self.convolutions, 1):
            x = convolved(x, convolution)
            if number < times:
                x = ReluApart.apply(x, track.around(2**number))
        flat = F.relu(x).squeeze(0).transpose(1, 2).flatten(1)  # (time, channels · bands)
        return track.made.like(self.output(gathered(flat, track.slot, track.place, track.none)))


def _layout(like: Ragged, lengths: Tensor, known: Tensor) -> Ragged:
    """Rows of these lengths, which are also known on the CPU, with no values yet."""
    offsets = F.pad(lengths.cumsum(0), (1, 0)).to(like.offsets.dtype)
    total, longest = int(known.sum()), int(known.max()) if len(known) else 0
    made = Ragged(like.values.new_empty((total, 0)), offsets, longest)
    made.__dict__["known"] = known
    return made


@register("pyramid")
class PyramidStem(LogMelStem):
    """The listener of Listen, Attend and Spell (Chan et al. 2016, 3.1): an LSTM that reads both ways, and more on top
    of it, each of which reads two states of the one below at a time: `h^j_i = BLSTM(h^j_{i-1}, [h^{j-1}_{2i};
    h^{j-1}_{2i+1}])`. Of an odd number of states the last has zeros beside it."""

    fills = 0

    def make(self, settings: PyramidSettings, d_model: int) -> None:
        widths = [settings.mels, *[2 * d_model] * settings.halvings]
        stacks = [[Recurrence("lstm", width, d_model // 2, 1) for width in widths] for _ in range(2)]
        self.forwards: Sequence[Recurrence] = nn.ModuleList(stacks[0])  # type: ignore[assignment]
        self.backwards: Sequence[Recurrence] = nn.ModuleList(stacks[1])  # type: ignore[assignment]

    def reduced(self, frames: Ragged) -> Ragged:
        x = frames
        for i, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            x = paired(x.like(self.dropout(x.values))) if i else x
            start = forwards.start(len(x), x.values)
            ahead, back = forwards(x, start)[0], backwards(x.reversed(), start)[0].reversed()
            x = x.like(torch.cat((ahead.values, back.values), dim=-1))
        return x


def paired(x: Ragged) -> Ragged:
    """Two vectors at a time, joined; zeros beside the last of an odd number."""
    padded = x.padded()
    padded = F.pad(padded, (0, 0, 0, padded.shape[1] % 2))
    made = _layout(x, (x.lengths + 1) // 2, (x.known + 1) // 2)
    return made.unpadded(padded.unflatten(1, (-1, 2)).flatten(2))


@register("whisper")
class WhisperStem(Stem):
    """The input of Whisper's encoder (Radford et al. 2023, 2.2): `gelu(conv₂(gelu(conv₁(frames)))) + P`, two
    convolutions of width 3, the second of stride 2, and a table `P` of positions.

    Every recording is filled up with silence to as many frames as the table is for (30 seconds), and all of these
    vectors are attended to: so the encoder was trained, and so long does it take, however short a recording is.
    """

    def __init__(self, settings: WhisperStemSettings, elements: Elements, d_model: int, dropout: float) -> None:
        super().__init__(settings, elements, d_model, dropout)
        self.frames, self.log_mel = settings.frames, WhisperLogMel(100 * elements.shape[0], settings.mels)
        self.conv1 = nn.Conv1d(settings.mels, d_model, 3, padding=1)
        self.conv2 = nn.Conv1d(d_model, d_model, 3, stride=2, padding=1)
        self.table = nn.Embedding((settings.frames + 1) // 2, d_model)
        nn.init.normal_(self.table.weight, std=0.02)

    def vectors(self, source: Ragged) -> Ragged:
        hops = source.padded()[:, : self.frames]  # (rows, hops, hop)
        hops = hops if hops.is_floating_point() else hops.to(self.log_mel.filters.dtype) / 32768
        samples = F.pad(hops, (0, 0, 0, self.frames - hops.shape[1])).flatten(1)
        frames = self.log_mel(samples)  # (rows, mels, frames)
        if self.training and isinstance(self.augmentation, AlteredSound):
            packed = source.even(frames.mT.flatten(0, 1), self.frames)
            frames = self.augmentation.masked(packed, centred=False).values.view_as(frames.mT).mT
        x = F.gelu(self.conv2(F.gelu(self.conv1(frames.to(self.conv1.weight.dtype))))).mT + self.table.weight
        return source.even(x.flatten(0, 1), x.shape[1])


class ConvolutionModule(nn.Module):
    """Gulati et al. 2020, fig. 2: a gated pointwise convolution, a depthwise one over time, a norm, swish, and another
    pointwise one."""

    def __init__(self, d_model: int, kernel: int, normalize: str, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.gated, self.output = nn.Linear(d_model, 2 * d_model), nn.Linear(d_model, d_model)
        self.depthwise = nn.Conv1d(d_model, d_model, kernel, padding=kernel // 2, groups=d_model)
        self.gap = kernel // 2
        self.after = BatchNorm(d_model) if normalize == "batch" else nn.LayerNorm(d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Ragged) -> Tensor:
        """`(total, d_model)`; a row sees nothing of its neighbours."""
        gated = x.like(F.glu(self.gated(self.norm(x.values)), dim=-1))
        return self.dropout(self.output(F.silu(self.after(self.over_time(gated)))))

    def over_time(self, x: Ragged) -> Tensor:
        """The depthwise convolution; on a GPU a kernel of packed rows."""
        if not usable(x.values):
            return x.along(self.depthwise, self.gap).values
        assert self.depthwise.bias is not None, "the convolution has a bias"
        return depthwise(x.values, self.depthwise.weight.squeeze(1), self.depthwise.bias, x.row)


class ConformerBlock(Block):
    """Gulati et al. 2020, eq. 1: `x̃ = x + ½ FFN(x)`, `x' = x̃ + MHSA(x̃)`, `x'' = x' + Conv(x')`,
    `y = LayerNorm(x'' + ½ FFN(x''))`."""

    def __init__(
        self, d_model: int, heads: int, d_ff: int, *, kernel: int, normalize: str, dropout: float,
        relative: Relative | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, heads, relative=relative)
        self.feed_forwards = nn.ModuleList(FeedForward(d_model, d_ff, "silu", dropout) for _ in range(2))
        self.convolution = ConvolutionModule(d_model, kernel, normalize, dropout)
        norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(4))
        self.norms: Sequence[nn.LayerNorm] = norms  # type: ignore[assignment]
        self.dropout = Dropout(dropout)

    def run(self, x: Ragged, seen: Spans | None = None) -> Ragged:
        """`seen` is what `self_attention.spans` gave for the rows."""
        values = x.values
        fed = self.feed_forwards[0](norm(values, self.norms[0]))
        values, normed = add_and_norm(values, fed, self.norms[1], self.dropout, 0.5)
        values = add_dropout(values, self.self_attention(x.like(normed), seen=seen).values, self.dropout)
        values = values + self.convolution(x.like(values))
        values = add_dropout(values, self.feed_forwards[1](norm(values, self.norms[2])), self.dropout, 0.5)
        return x.like(self.norms[3](values))


@register("conformer")
class ConformerEncoder(Body):
    """Blocks of feed-forward, attention, convolution and feed-forward (Gulati et al. 2020). The summary is the mean of
    the states."""

    def __init__(self, settings: ConformerSettings, stem: Stem, d_model: int, dropout: float, longest: int) -> None:
        super().__init__(settings, stem, d_model, dropout, longest)
        heads = settings.heads
        self.positions, each = make_positions(settings.positions, d_model, heads, settings.layers, longest)
        blocks = [
            ConformerBlock(
                d_model, heads, settings.d_ff, kernel=settings.kernel, normalize=settings.normalize_convolution,
                dropout=dropout, relative=relative,
            )
            for relative in each
        ]  # fmt: skip
        self.blocks: Sequence[ConformerBlock] = nn.ModuleList(blocks)  # type: ignore[assignment]
        # What fills up a batch would count in the statistics of batch norm.
        self.packed = stem.fills > 0 and settings.normalize_convolution == "layer"

    def forward(self, source: Ragged) -> Memory:
        x = self.stem(source, self.positions).indexed()
        seen = self.blocks[0].self_attention.spans(x)
        for block in self.blocks:
            x = block(x, seen)
        return Memory(x)
