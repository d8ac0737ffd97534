"""A Vision Transformer to train: Regard's, and one of torch's own modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.peers.base import Step, stepper
from benchmarks.race import Role
from regard.config import parse
from regard.data.sides import Sides
from regard.data.targets.label import Label
from regard.loading import new_task
from regard.models.model import EncoderWithHead
from regard.nn.attention import MultiHeadAttention
from regard.training.objectives import make_objective
from regard.training.update import Updater


@dataclass(frozen=True)
class ViT:
    """How large a Vision Transformer is."""

    name: str
    layers: int
    d_model: int
    d_ff: int
    heads: int
    size: int = 224  # pixels a side
    patch: int = 16
    classes: int = 1000

    def __str__(self) -> str:
        sizes = f"{self.layers} layers, d_model {self.d_model}, d_ff {self.d_ff}, {self.heads} heads, pre-norm"
        return f"Vision Transformer, {sizes}, patches of {self.patch} of {self.size} pixels, {self.classes:,} labels"

    def settings(self, dropout: float) -> dict[str, Any]:
        """Regard's sections for source, target and model."""
        encoder = {
            "kind": "transformer", "layers": self.layers, "heads": self.heads, "d_ff": self.d_ff, "activation": "gelu",
            "positions": "none", "norm_epsilon": 1e-6, "stem": {"kind": "patches", "size": self.patch},
        }  # fmt: skip
        model = {"d_model": self.d_model, "dropout": dropout, "decoder": {"kind": "none"}, "encoder": encoder}
        return {"source": {"kind": "image", "size": self.size}, "target": {"kind": "label"}, "model": model}

    def flop(self) -> float:
        """Of all matrix products of a picture in a training step: three times those of the forward pass."""
        n, d, cells = self.layers, self.d_model, (self.size // self.patch) ** 2
        s = cells + 1  # with the class token
        each = 4 * s * d * d + 2 * s * d * self.d_ff + 2 * s * s * d  # projections, feed-forward, scores and contexts
        return 3 * 2.0 * (cells * 3 * self.patch**2 * d + n * each + d * self.classes)


@dataclass(frozen=True)
class VisionLoad:
    """What is trained on what."""

    shape: ViT
    device: torch.device
    precision: str
    dropout: float
    rows: int  # pictures in a batch
    count: int  # batches
    seed: int

    def pictures(self) -> list[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Batches of random pixels `(rows, size, size, 3)` and labels, which come from the seed."""
        draw, side = np.random.default_rng((self.seed, 4)), self.shape.size
        return [
            (
                draw.integers(0, 256, (self.rows, side, side, 3), dtype=np.uint8),
                draw.integers(0, self.shape.classes, self.rows),
            )
            for _ in range(self.count)
        ]


@dataclass(frozen=True)
class VisionPeer(ABC):
    """A program that is measured; `training` gives its batches, which are on the device, a step, and its weights."""

    title: str
    note: str = ""
    role: Role = "peer"

    @abstractmethod
    def training(self, load: VisionLoad) -> tuple[list[Any], Step, nn.Module]:
        """A batch of what is measured, a step on it, and its weights."""


@dataclass(frozen=True)
class RegardViT(VisionPeer):
    """Regard's update, as its trainer makes it."""

    title: str = "Regard"
    role: Role = "ours"
    padded: bool = False  # whether attention goes by `scaled_dot_product_attention`, as rows have one length

    def training(self, load: VisionLoad) -> tuple[list[Any], Step, nn.Module]:
        fixed = {"learning_rate": 1e-4, "warmup": 0, "schedule": "constant", "label_smoothing": 0.0, "clip": 1.0}
        training = {**fixed, "device": load.device.type, "precision": load.precision, "tensorboard": False}
        sides = Sides.of(parse({**load.shape.settings(load.dropout), "training": training}, "the benchmark's settings"))
        assert isinstance(sides.target, Label), "the benchmark predicts labels"
        sides.target.labels = [f"label {i}" for i in range(load.shape.classes)]
        task = new_task(sides, load.device)
        model, settings = task.model, task.config.training
        assert isinstance(model, EncoderWithHead), "the benchmark trains a head"
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                module.pads_uniform = self.padded
        objective = make_objective(model, settings.objective, settings.label_smoothing, None, target=sides.target)
        updater = Updater(model, objective, settings, load.device)
        batches = [
            task.batch([x.reshape(load.shape.size, -1) for x in pixels], labels[:, None].tolist()).to(load.device)
            for pixels, labels in load.pictures()
        ]
        return batches, lambda batch: updater([batch], step=1, done=0.0).loss / batch.tokens, model


class TorchViT(nn.Module):
    """`nn.Conv2d`, a class token, learnt positions, `nn.TransformerEncoder`, a norm and a linear layer."""

    scale: Tensor
    shift: Tensor

    def __init__(self, shape: ViT, dropout: float) -> None:
        super().__init__()
        d = shape.d_model
        self.patches = nn.Conv2d(3, d, shape.patch, shape.patch)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, d))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (shape.size // shape.patch) ** 2 + 1, d))
        layer = nn.TransformerEncoderLayer(
            d, shape.heads, shape.d_ff, dropout, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
        )
        layer.self_attn.dropout = 0.0  # Regard has no dropout in attention, and it would cost time
        norm = nn.LayerNorm(d, eps=1e-6)
        self.encoder = nn.TransformerEncoder(layer, shape.layers, norm, enable_nested_tensor=False)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(d, shape.classes)
        self.register_buffer("scale", torch.full((1, 3, 1, 1), 1 / 127.5), persistent=False)
        self.register_buffer("shift", torch.full((1, 3, 1, 1), -1.0), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Bytes `(rows, 3, size, size)` to logits `(rows, classes)`."""
        x = self.patches(pixels.float() * self.scale + self.shift).flatten(2).mT  # (rows, cells, d_model)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1)
        x = self.encoder(self.dropout(x + self.positions))
        return self.head(self.dropout(x[:, 0]))


@dataclass(frozen=True)
class TorchVision(VisionPeer):
    """`TorchViT`, as it is or under `torch.compile`."""

    compiled: bool = False

    def training(self, load: VisionLoad) -> tuple[list[Any], Step, nn.Module]:
        model = TorchViT(load.shape, load.dropout).to(load.device)

        def plain(pixels: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(model(pixels).float(), labels)

        loss: Callable[[Tensor, Tensor], Tensor] = torch.compile(plain) if self.compiled else plain
        batches = [
            (
                torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(load.device),
                torch.from_numpy(labels).to(load.device),
            )
            for pixels, labels in load.pictures()
        ]
        return batches, stepper(model, lambda batch: loss(*batch), load), model


_WHOLE = "nn.TransformerEncoder; model and loss under torch.compile as one"
VISION: dict[str, VisionPeer] = {
    "torch": TorchVision("plain torch", "nn.TransformerEncoder"),
    "torch-compiled": TorchVision("plain torch, compiled", _WHOLE, compiled=True),
    "regard-sdpa": replace(
        RegardViT(padded=True), title="Regard, SDPA", note="attention by scaled_dot_product_attention", role="beside"
    ),
}
