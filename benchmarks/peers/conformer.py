"""A Conformer with CTC to train: Regard's, and one of torch's own modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.peers.base import Step, stepper
from benchmarks.race import Role
from benchmarks.workload import spaced
from regard.config import parse
from regard.data.batch import Room
from regard.data.batches import Index, pack
from regard.data.marks import MARKS, PAD
from regard.data.modalities.sounds import mel_filters, window_of
from regard.data.sides import SHARED, Sides
from regard.data.tokenizers.symbols import Symbols
from regard.loading import new_task
from regard.nn.positions import Sinusoidal
from regard.nn.spectrogram import FLOOR
from regard.training.objectives import make_objective
from regard.training.update import Updater

RATE, SECONDS, PER_SECOND, STRETCH = 16_000, (2.0, 15.0), 4.0, 0.15  # tokens a second, and how much that varies
HOP = RATE // 100


@dataclass(frozen=True)
class Conformer:
    """How large a Conformer is."""

    name: str
    layers: int
    d_model: int
    d_ff: int
    heads: int
    kernel: int = 31
    mels: int = 80
    vocabulary: int = 1000

    def __str__(self) -> str:
        sizes = f"{self.layers} layers, d_model {self.d_model}, d_ff {self.d_ff}, {self.heads} heads"
        return f"Conformer, {sizes}, kernel {self.kernel}, {self.mels} mels, CTC over {self.vocabulary:,} tokens"

    def settings(self, dropout: float) -> dict[str, Any]:
        """Regard's [model] section: with layer norm in the convolution, and positions that are added."""
        encoder = {
            "kind": "conformer", "layers": self.layers, "heads": self.heads, "d_ff": self.d_ff, "kernel": self.kernel,
            "normalize_convolution": "layer", "positions": "sinusoidal",
            "stem": {"kind": "subsampling", "mels": self.mels, "channels": self.d_model},
        }  # fmt: skip
        both = {"d_model": self.d_model, "dropout": dropout, "ctc": True}
        return {**both, "encoder": encoder, "decoder": {"kind": "none"}}


@dataclass(frozen=True)
class SpeechLoad:
    """What is trained on what: batches of recordings, in hops of 10 ms."""

    shape: Conformer
    device: torch.device
    precision: str
    dropout: float
    budget: int  # hops in a batch
    count: int  # batches
    recordings: int  # that batches are cut from
    seed: int
    seconds: tuple[float, float] = SECONDS

    @cached_property
    def lengths(self) -> tuple[Index, Index]:
        """Of each recording in hops, drawn evenly, and of its text in tokens, so many a second."""
        draw = np.random.default_rng((self.seed, 5))
        seconds = draw.uniform(*self.seconds, self.recordings)
        tokens = np.rint(PER_SECOND * seconds * draw.lognormal(0.0, STRETCH, self.recordings))
        return np.rint(100 * seconds).astype(np.int64), np.maximum(tokens, 1).astype(np.int64)

    def packs(self, *, by_duration: bool = False) -> list[Index]:
        """`count` batches at even distances, sorted by text and then by duration, as Regard does, or by that alone."""
        hops, tokens = self.lengths
        costs = [hops] if by_duration else [hops, tokens + 1]
        return spaced(pack(costs, [self.budget] * len(costs)), self.count)

    def recording(self, number: int) -> tuple[NDArray[np.int16], list[int]]:
        """Hops `(hops, samples)` of noise and random tokens, the same every time."""
        draw, (hops, tokens) = np.random.default_rng((self.seed, 6, number)), self.lengths
        samples = draw.integers(-3000, 3000, (int(hops[number]), HOP), dtype=np.int16)
        return samples, draw.integers(len(MARKS), self.shape.vocabulary, int(tokens[number])).tolist()


@dataclass(frozen=True)
class SpeechPeer(ABC):
    """A program that is measured; `training` gives a batch of these recordings, a step, and its weights."""

    title: str
    note: str = ""
    role: Role = "peer"
    by_duration: bool = False  # recordings are sorted by duration alone, which pads least

    @abstractmethod
    def training(self, load: SpeechLoad) -> tuple[Callable[[Index], Any], Step, nn.Module]:
        """A batch of what is measured, a step on it, and its weights."""


@dataclass(frozen=True)
class RegardConformer(SpeechPeer):
    """Regard's update, as its trainer makes it."""

    title: str = "Regard"
    role: Role = "ours"

    def training(self, load: SpeechLoad) -> tuple[Callable[[Index], Any], Step, nn.Module]:
        fixed = {"learning_rate": 1e-4, "warmup": 0, "schedule": "constant", "label_smoothing": 0.0, "clip": 1.0}
        training = {**fixed, "device": load.device.type, "precision": load.precision, "tensorboard": False}
        settings: dict[str, Any] = {
            "source": {"kind": "audio", "rate": RATE, "batch_tokens": load.budget}, "training": training,
            "tokens": {"kind": "word", "size": load.shape.vocabulary}, "model": load.shape.settings(load.dropout),
        }  # fmt: skip
        sides = Sides.of(parse(settings, "the benchmark's settings"))
        sides.use({SHARED: Symbols("word", [f"w{i}" for i in range(len(MARKS), load.shape.vocabulary)])})
        task = new_task(sides, load.device)
        model, chosen = task.model, task.config.training
        tokens = chosen.batch_tokens
        room = Room(load.budget, tokens, tokens, int(load.lengths[1].max()) + 1)
        objective = make_objective(model, chosen.objective, 0.0, task.first)
        updater = Updater(model, objective, chosen, load.device, room)

        def batch(index: Index) -> Any:
            sources, targets = zip(*map(load.recording, index.tolist()), strict=True)
            return updater.prepare(task.batch(sources, targets))

        return batch, lambda batch: updater([batch], step=1, done=0.0).loss / batch.tokens, model


class Spoken(NamedTuple):
    """A padded batch of recordings."""

    samples: Tensor  # (rows, samples) of 16 bits
    hops: Tensor  # (rows,), on the CPU
    targets: Tensor  # (rows, tokens)
    tokens: Tensor  # (rows,), on the CPU

    @staticmethod
    def of(recordings: Sequence[tuple[NDArray[np.int16], list[int]]]) -> Spoken:
        """Recordings and texts, padded."""
        pad = nn.utils.rnn.pad_sequence
        samples = pad([torch.from_numpy(x.reshape(-1)) for x, _ in recordings], batch_first=True)
        targets = pad([torch.tensor(y) for _, y in recordings], batch_first=True, padding_value=PAD)
        hops, tokens = (torch.tensor([len(one[i]) for one in recordings]) for i in range(2))
        return Spoken(samples, hops, targets, tokens)


class FeedForward(nn.Sequential):
    """Norm, two dense layers with swish between, dropout after both."""

    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        dense = (nn.Linear(d_model, d_ff), nn.SiLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        super().__init__(nn.LayerNorm(d_model), *dense, nn.Dropout(dropout))


class TorchBlock(nn.Module):
    """A Conformer block on padded rows."""

    def __init__(self, shape: Conformer, dropout: float) -> None:
        super().__init__()
        d = shape.d_model
        self.first, self.last = (FeedForward(d, shape.d_ff, dropout) for _ in range(2))
        self.attention = nn.MultiheadAttention(d, shape.heads, batch_first=True)
        self.before_attention, self.before_convolution, self.inside, self.final = (nn.LayerNorm(d) for _ in range(4))
        self.gated, self.output = nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.depthwise = nn.Conv1d(d, d, shape.kernel, padding=shape.kernel // 2, groups=d)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, beyond: Tensor) -> Tensor:
        """`(rows, time, d_model)`; `beyond` `(rows, time)` is True behind the end of a row."""
        x = x + 0.5 * self.first(x)
        y = self.before_attention(x)
        x = x + self.dropout(self.attention(y, y, y, key_padding_mask=beyond, need_weights=False)[0])
        y = F.glu(self.gated(self.before_convolution(x)), dim=-1).masked_fill(beyond[..., None], 0.0)
        y = F.silu(self.inside(self.over_time(y)))
        x = x + self.dropout(self.output(y))
        return self.final(x + 0.5 * self.last(x))

    @torch.compiler.disable  # type: ignore[untyped-decorator,unused-ignore]
    def over_time(self, y: Tensor) -> Tensor:
        """The depthwise convolution, which is not compiled: torch 2.13 would do that anew for every length."""
        return self.depthwise(y.mT).mT


class TorchConformer(nn.Module):
    """`torch.stft`, `nn.Conv2d`, blocks of `nn.MultiheadAttention` and `nn.Conv1d`, and a linear layer."""

    window: Tensor
    filters: Tensor
    positions: Tensor

    def __init__(self, shape: Conformer, dropout: float, longest: int = 4096) -> None:
        super().__init__()
        d = shape.d_model
        _, self.width, self.size = window_of(RATE)
        self.convolutions = nn.ModuleList(nn.Conv2d(before, d, 3, stride=2, padding=1) for before in (1, d))
        self.reduced = nn.Linear(d * ((shape.mels + 3) // 4), d)
        self.blocks = nn.ModuleList(TorchBlock(shape, dropout) for _ in range(shape.layers))
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(d, shape.vocabulary)
        filters = torch.from_numpy(mel_filters(RATE, self.size, shape.mels).T.copy())
        self.register_buffer("window", torch.hann_window(self.width), persistent=False)
        self.register_buffer("filters", filters, persistent=False)
        self.register_buffer("positions", Sinusoidal(d)(torch.arange(longest)), persistent=False)

    def forward(self, samples: Tensor, hops: Tensor) -> Tensor:
        """`log p` `(time, rows, vocabulary)` at every fourth hop; `hops` `(rows,)` are on the device."""
        x = self.stem(self.frames(samples, hops))
        beyond = torch.arange(x.shape[1], device=x.device) >= ((hops + 3) // 4)[:, None]
        for block in self.blocks:
            x = block(x, beyond)
        return self.head(x).float().log_softmax(-1).transpose(0, 1)

    def frames(self, samples: Tensor, hops: Tensor) -> Tensor:
        """Log-mel frames `(rows, hops, mels)`, each band centred and scaled over its recording."""
        with torch.autocast(samples.device.type, enabled=False):
            found = torch.stft(
                samples.float() / 32768, self.size, HOP, self.width, self.window, pad_mode="constant",
                return_complex=True,
            )  # fmt: skip
            x = torch.log(found[..., :-1].abs().square().mT @ self.filters + FLOOR)
            beyond = (torch.arange(x.shape[1], device=x.device) >= hops[:, None])[..., None]
            count = hops[:, None, None]
            x = (x - x.masked_fill(beyond, 0.0).sum(1, keepdim=True) / count).masked_fill(beyond, 0.0)
            return x / ((x.square().sum(1, keepdim=True) / count).sqrt() + 1e-3)

    def stem(self, frames: Tensor) -> Tensor:
        """Frames to vectors `(rows, time, d_model)`, a quarter as many."""
        x = frames.unsqueeze(1)
        for convolution in self.convolutions:
            x = F.relu(convolution(x))  # (rows, channels, time, bands)
        x = self.reduced(x.transpose(1, 2).flatten(2))
        return self.dropout(x + self.positions[: x.shape[1]])


@dataclass(frozen=True)
class TorchSpeech(SpeechPeer):
    """`TorchConformer`, as it is or under `torch.compile`."""

    compiled: bool = False

    def training(self, load: SpeechLoad) -> tuple[Callable[[Index], Any], Step, nn.Module]:
        model, gpu = TorchConformer(load.shape, load.dropout).to(load.device), load.device.type == "cuda"
        for block in model.blocks if self.compiled else ():
            block.compile(dynamic=True)  # blocks share what was compiled; the stem is what torch 2.13 fails to compile

        def batch(index: Index) -> Spoken:
            made = Spoken.of([load.recording(i) for i in index.tolist()])
            return Spoken(*(x.pin_memory() for x in made)) if gpu else made

        def loss(batch: Spoken) -> Tensor:
            samples, hops, targets = (
                x.to(load.device, non_blocking=True) for x in (batch.samples, batch.hops, batch.targets)
            )
            ends = ((batch.hops + 3) // 4, batch.tokens)  # on the CPU, so that nothing waits for the device
            found = F.ctc_loss(model(samples, hops), targets, *ends, PAD, reduction="sum", zero_infinity=True)
            return found / (batch.tokens + 1).sum()

        return batch, stepper(model, loss, load), model


_PARTS = "nn.MultiheadAttention with key_padding_mask"
_COMPILED = f"{_PARTS}; blocks, but for their depthwise convolution, under torch.compile(dynamic=True)"
SPEECH: dict[str, SpeechPeer] = {
    "torch": TorchSpeech("plain torch", _PARTS),
    "torch-compiled": TorchSpeech("plain torch, compiled", _COMPILED, compiled=True),
    "torch-compiled-sorted": TorchSpeech(
        "plain torch, compiled, by duration", f"{_COMPILED}; batches sorted by duration alone", by_duration=True,
        compiled=True,
    ),
}  # fmt: skip
