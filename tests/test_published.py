"""Published ResNet and ViT weights: what is computed with them here is what their networks compute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image as Picture
from safetensors.torch import save_file
from torch import Tensor

import regard
from regard.errors import ConfigError, ModelError
from regard.models.vision import resampled
from regard.training.watcher import Watcher
from tests.conftest import images

D, HEADS, LAYERS, FF, PATCH, SIDE = 16, 2, 2, 24, 4, 16
CELLS = (SIDE // PATCH) ** 2
Weights = dict[str, Tensor]
VIT: dict[str, Any] = {
    "kind": "transformer", "layers": LAYERS, "heads": HEADS, "d_ff": FF, "positions": "none", "activation": "gelu",
    "norm_epsilon": 1e-6, "stem": {"kind": "patches", "size": PATCH},
}  # fmt: skip


def drawn(shapes: dict[str, tuple[int, ...]], seed: int = 1) -> Weights:
    draw = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def timm() -> Weights:
    """A small ViT under the names of timm."""
    shapes = {
        "cls_token": (1, 1, D), "pos_embed": (1, CELLS + 1, D), "patch_embed.proj.weight": (D, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (D,), "norm.weight": (D,), "norm.bias": (D,), "head.weight": (7, D), "head.bias": (7,),
    }  # fmt: skip
    for i in range(LAYERS):
        inside = {"attn.qkv": (3 * D, D), "attn.proj": (D, D), "mlp.fc1": (FF, D), "mlp.fc2": (D, FF)}
        for name, shape in inside.items():
            shapes |= {f"blocks.{i}.{name}.weight": shape, f"blocks.{i}.{name}.bias": shape[:1]}
        for name in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{name}.weight": (D,), f"blocks.{i}.{name}.bias": (D,)}
    return drawn(shapes)


def renamed(w: Weights, outside: dict[str, str], inside: dict[str, str], block: str) -> Weights:
    """The same weights under other names: of what stands outside of blocks, what stands inside them, and a block."""
    found = {}
    for name, tensor in w.items():
        for old, new in ({} if name.startswith("blocks") else outside).items():
            name = re.sub(f"^{re.escape(old)}", new, name)
        for old, new in inside.items():
            name = name.replace(old, new)
        found[re.sub(r"^blocks\.(\d+)", block, name)] = tensor
    return found


def torchvision(w: Weights) -> Weights:
    """The same weights under the names of torchvision."""
    outside = {
        "cls_token": "class_token", "pos_embed": "encoder.pos_embedding", "patch_embed.proj.": "conv_proj.",
        "head.": "heads.head.", "norm.": "encoder.ln.",
    }  # fmt: skip
    inside = {
        "norm1": "ln_1", "norm2": "ln_2", "attn.qkv.": "self_attention.in_proj_",
        "attn.proj": "self_attention.out_proj", "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.3",
    }  # fmt: skip
    return renamed(w, outside, inside, r"encoder.layers.encoder_layer_\1")


def hugging_face(w: Weights) -> Weights:
    """The same weights under the names of Hugging Face, where queries, keys and values lie apart."""
    outside = {
        "cls_token": "vit.embeddings.cls_token", "pos_embed": "vit.embeddings.position_embeddings",
        "patch_embed.proj.": "vit.embeddings.patch_embeddings.projection.", "head.": "classifier.",
        "norm.": "vit.layernorm.",
    }  # fmt: skip
    inside = {
        "norm1": "layernorm_before", "norm2": "layernorm_after", "attn.proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense",
    }  # fmt: skip
    found = {}
    for name, tensor in renamed(w, outside, inside, r"vit.encoder.layer.\1").items():
        if "attn.qkv" in name:
            for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                found[name.replace("attn.qkv", f"attention.attention.{part}")] = third.clone()
        else:
            found[name] = tensor
    return found


def vision_transformer(w: Weights, pixels: Tensor, epsilon: float) -> Tensor:
    """ViT as timm computes it, `(rows, 3, height, width)` to `(rows, 1 + cells, d)`."""
    x = F.conv2d(pixels, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=PATCH).flatten(2).mT
    x = torch.cat((w["cls_token"].expand(len(x), -1, -1), x), 1) + w["pos_embed"]

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (D,), w[f"{name}.weight"], w[f"{name}.bias"], epsilon)

    for i in range(LAYERS):
        y = linear(f"blocks.{i}.attn.qkv", norm(f"blocks.{i}.norm1", x))
        q, k, v = y.view(*y.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / (D // HEADS) ** 0.5).softmax(-1)
        x = x + linear(f"blocks.{i}.attn.proj", (weights @ v).transpose(1, 2).flatten(2))
        y = linear(f"blocks.{i}.mlp.fc1", norm(f"blocks.{i}.norm2", x))
        x = x + linear(f"blocks.{i}.mlp.fc2", F.gelu(y))
    return norm("norm", x)


def resnet(channels: int = 4) -> Weights:
    """A ResNet-18 of few channels under the names of torchvision."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (channels, 3, 7, 7), "fc.weight": (7, 8 * channels)}

    def norm(name: str, width: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (width,)

    norm("bn1", channels)
    before = channels
    for layer in range(4):
        width = channels * 2**layer
        for block in range(2):
            begin = f"layer{layer + 1}.{block}"
            shapes |= {f"{begin}.conv1.weight": (width, before, 3, 3), f"{begin}.conv2.weight": (width, width, 3, 3)}
            norm(f"{begin}.bn1", width)
            norm(f"{begin}.bn2", width)
            if before != width:
                shapes[f"{begin}.downsample.0.weight"] = (width, before, 1, 1)
                norm(f"{begin}.downsample.1", width)
            before = width
    found = drawn(shapes)
    counts = {name.replace("running_mean", "num_batches_tracked"): torch.tensor(9) for name in found if "mean" in name}
    return {name: x.abs() + 0.5 if "var" in name else x for name, x in found.items()} | counts


def residual_network(w: Weights, x: Tensor) -> Tensor:
    """ResNet-18 as torchvision computes it, without its head: `(rows, channels, height, width)`."""

    def norm(name: str, x: Tensor) -> Tensor:
        mean, variance, scale, shift = (w[f"{name}.{x}"] for x in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, mean, variance, scale, shift)

    x = F.max_pool2d(F.relu(norm("bn1", F.conv2d(x, w["conv1.weight"], stride=2, padding=3))), 3, 2, 1)
    for layer in range(1, 5):
        for block in range(2):
            begin, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            y = F.relu(norm(f"{begin}.bn1", F.conv2d(x, w[f"{begin}.conv1.weight"], stride=stride, padding=1)))
            y = norm(f"{begin}.bn2", F.conv2d(y, w[f"{begin}.conv2.weight"], padding=1))
            if stride == 2:
                x = norm(f"{begin}.downsample.1", F.conv2d(x, w[f"{begin}.downsample.0.weight"], stride=2))
            x = F.relu(x + y)
    return x


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(4):
        Picture.fromarray(np.full((SIDE, SIDE, 3), 60 * i, np.uint8)).save(tmp_path / f"{i}.png")
    (tmp_path / "train.tsv").write_text("".join(f"{i}.png\t{'ab'[i % 2]}\n" for i in range(4)))
    return tmp_path


class Listening(Watcher):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


def begun(folder: Path, file: Path, encoder: dict[str, Any], size: int = SIDE, watcher: Watcher | None = None) -> Any:
    """The encoder of a model that began with a file of weights, after an update that changes nothing."""
    training = {"steps": 1, "learning_rate": 1e-30, "weight_decay": 0, "validate_every": 1, "tensorboard": False,
                "device": "cpu", "freeze": ["encoder"]}  # fmt: skip
    config = {
        "run": f"run-{file.stem}", "data": {"train": "train.tsv", "valid": "train.tsv"},
        "start": {"weights": file.name},
        "source": {"kind": "image", "size": size}, "target": "label", "training": training,
        "model": {"d_model": D, "decoder": "none", "encoder": encoder},
    }  # fmt: skip
    system = regard.train(regard.Config.parse(config, folder), watcher)
    return system.task.model.encoder.eval()  # type: ignore[union-attr]


def written(folder: Path, name: str, weights: Weights, wrapped: bool = False) -> Path:
    path = folder / name
    if path.suffix == ".safetensors":
        save_file({key: tensor.contiguous() for key, tensor in weights.items()}, path)
    else:
        torch.save({"model": weights} if wrapped else weights, path)
    return path


def pixels(rows: int, colours: str = "centred", side: int = SIDE) -> tuple[Any, Tensor]:
    source = images(rows, side)
    x = source.values.view(rows, side, side, 3).permute(0, 3, 1, 2).float() / 255
    means, deviations = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if colours == "imagenet" else ((0.5,) * 3,) * 2
    return source, (x - torch.tensor(means)[:, None, None]) / torch.tensor(deviations)[:, None, None]


@pytest.mark.parametrize(
    ("name", "rename", "epsilon", "colours"),
    [
        ("timm.safetensors", dict, 1e-6, "centred"),
        ("torchvision.pth", torchvision, 1e-6, "imagenet"),
        ("hf.bin", hugging_face, 1e-12, "centred"),
    ],
)
def test_a_vision_transformer_computes_what_it_did_elsewhere(
    folder: Path, name: str, rename: Any, epsilon: float, colours: str
) -> None:
    w = timm()
    encoder = {**VIT, "norm_epsilon": epsilon, "stem": {**VIT["stem"], "colours": colours}}
    watcher = Listening()
    model = begun(folder, written(folder, name, rename(w), wrapped=name.endswith("bin")), encoder, watcher=watcher)
    source, x = pixels(3, colours)
    found = model(source).states.values.view(3, CELLS + 1, D)
    torch.testing.assert_close(found, vision_transformer(w, x, epsilon), rtol=0, atol=2e-5)
    said = next(text for text in watcher.said if text.startswith("start.weights"))
    assert re.search(r"start.weights: 30 tensors of .* ViT from .*; 2 begin anew", said), said


def test_positions_of_published_weights_are_interpolated_for_pictures_of_another_size(folder: Path) -> None:
    w = timm()
    model = begun(folder, written(folder, "a.safetensors", w), VIT, size=2 * SIDE)
    table = w["pos_embed"][0]
    assert torch.equal(model.stem.table.weight[0], table[0])
    torch.testing.assert_close(model.stem.table.weight[1:], resampled(table[1:], 8))


def test_a_residual_network_computes_what_it_did_elsewhere(folder: Path) -> None:
    w = resnet()
    encoder = {"kind": "stem", "stem": {"kind": "resnet", "channels": 4}}
    model = begun(folder, written(folder, "resnet.pth", w), encoder)
    source, x = pixels(2, "imagenet", 64)
    grid = residual_network(w, x)  # (2, 32, 2, 2)
    found = model(source).states.values
    expected = model.stem.norm(model.stem.project(grid).flatten(2).mT.flatten(0, 1))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_epsilon": 1e-5}, "weights of timm's ViT need model.encoder.norm_epsilon: 1e-06 (here 1e-05)"),
        ({"activation": "relu"}, "need model.encoder.activation: gelu (here relu)"),
        ({"norm": "post"}, "need model.encoder.norm: pre (here post)"),
        ({"positions": "sinusoidal"}, "need model.encoder.positions: none (here sinusoidal)"),
        ({"stem": {"kind": "patches", "size": 4, "class_token": False}}, "stem.class_token: true (here false)"),
        ({"stem": {"kind": "resnet"}}, "need model.encoder.stem.kind: patches (here resnet)"),
        ({"layers": 1}, "which has no encoder.blocks.1."),
        ({"d_ff": 20}, "encoder.blocks.0.feed_forward.inner.bias is (24,), here (20,)"),
        ({"layers": 3}, "it has no encoder.blocks.2."),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(folder: Path, change: dict[str, Any], message: str) -> None:
    path = written(folder, "a.safetensors", timm())
    with pytest.raises(ConfigError, match=re.escape(message)):
        begun(folder, path, {**VIT, **change})


def test_files_that_are_no_weights_are_named(folder: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (folder / "ran",))

    torch.save({"a": Evil()}, folder / "evil.pth")
    with pytest.raises(ModelError, match=r"evil\.pth cannot be read as weights"):
        begun(folder, folder / "evil.pth", VIT)
    assert not (folder / "ran").exists()
    (folder / "text.safetensors").write_text("no weights")
    with pytest.raises(ModelError, match=r"text\.safetensors cannot be read as weights"):
        begun(folder, folder / "text.safetensors", VIT)
    with pytest.raises(ModelError, match=r"no file of weights .*gone\.pth; check start\.weights"):
        begun(folder, folder / "gone.pth", VIT)
    with pytest.raises(ModelError, match="holds weights that are not known here"):
        begun(folder, written(folder, "other.pth", {"encoder.weight": torch.ones(2)}), VIT)
    torch.save([1, 2], folder / "list.pth")
    with pytest.raises(ModelError, match="holds no tensors by name"):
        begun(folder, folder / "list.pth", VIT)
    foreign = {**timm(), "blocks.0.ls1.gamma": torch.ones(D)}
    with pytest.raises(ModelError, match=r"has blocks\.0\.ls1\.gamma, which timm's ViT has not"):
        begun(folder, written(folder, "foreign.pth", foreign), VIT)
