"""Stems for pictures: patches and residual networks against their equations, statistics that are saved, sizes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image as Picture
from torch import Tensor, nn

import regard
from regard.config import parse
from regard.data.batch import Batch
from regard.data.modalities.image import Image, ImageSettings
from regard.data.sides import Sides
from regard.data.targets.label import Label
from regard.errors import ConfigError, ModelError
from regard.loading import new_task
from regard.model_settings import ModelSettings
from regard.models.build import build, count_parameters
from regard.models.decoding import for_decoding
from regard.models.published import LAYOUTS, clash
from regard.models.stems import Elements
from regard.models.vision import DEVIATIONS, MEANS, resampled
from regard.nn.linear import Quantised
from regard.nn.lora import Adapted
from regard.nn.statistics import BatchNorm, statistics
from regard.ragged import Ragged, Slices
from regard.registry import STEMS
from regard.system import System
from regard.training.checkpoint import average, load_tensors, save_tensors, set_weights, weights
from regard.training.objectives import Objective, make_objective
from regard.training.update import Updater, takes_even
from regard.training_settings import Training
from tests import equations as eq
from tests.conftest import IMAGE_ENCODERS, compiles, gpu, images, redrawn, tiny
from tests.test_cli import good, refused, run
from tests.test_equations_recurrent import agree
from tests.test_equations_recurrent import weights as arrays
from tests.toy import sides_of

SIDE = 8


def stem(d_model: int = 8, side: int = SIDE, **settings: Any) -> Any:
    chosen = STEMS.settings(settings["kind"])(**settings)
    made = STEMS.get(settings["kind"])(chosen, Elements(shape=(3 * side,)), d_model, 0.0)
    return redrawn(made, seed=5)


def pictures(source: Ragged) -> eq.Array:
    return source.values.numpy().reshape(len(source), source.longest, -1, 3).astype(np.float64)


# Patches


def sine2d(grid: int, d_model: int) -> eq.Array:
    """Half of the width says the row and half the column, each as in Vaswani et al. 2017, 3.5."""

    def one(t: int) -> list[float]:
        half = d_model // 2
        return [f(t / 10000 ** (2 * (i // 2) / half)) for i, f in zip(range(half), [math.sin, math.cos] * half)]  # noqa: B905

    return np.array([one(row) + one(column) for row in range(grid) for column in range(grid)])


@pytest.mark.parametrize(
    ("class_token", "positions", "colours"),
    [
        (True, "learned", "centred"),
        (False, "sine2d", "imagenet"),
        (True, "sine2d", "centred"),
        (True, "none", "centred"),
    ],
)
def test_patches_are_those_of_the_equation(class_token: bool, positions: str, colours: str) -> None:
    """Dosovitskiy et al. 2021, eq. 1, one patch and one pixel at a time."""
    size, d_model = 4, 8
    made = stem(kind="patches", size=size, class_token=class_token, positions=positions, colours=colours)
    source, w = images(3), arrays(made)
    found = made(source)
    means, deviations = (MEANS, DEVIATIONS) if colours == "imagenet" else ((0.5,) * 3, (0.5,) * 3)
    grid = SIDE // size
    first = int(class_token)
    where = np.zeros((grid**2 + first, d_model))
    if positions == "learned":
        where = w["table.weight"]
    elif positions == "sine2d":
        where[first:] = sine2d(grid, d_model)
    assert found.lengths.tolist() == [grid**2 + first] * 3
    for picture, rows in zip(pictures(source), found.values.split(grid**2 + first), strict=True):
        expected = [w["class_token"] + where[0]] if class_token else []
        for row in range(grid):
            for column in range(grid):
                patch = picture[row * size : (row + 1) * size, column * size : (column + 1) * size]
                x = ((patch / 255.0 - means) / deviations).reshape(-1)
                expected.append(eq.affine(w, "patches", x) + where[first + row * grid + column])
        np.testing.assert_allclose(rows.detach().numpy(), np.array(expected), rtol=0, atol=1e-6)  # of float32 constants


@pytest.mark.parametrize("colours", ["imagenet", "centred"])
def test_patches_whose_layer_is_replaced_are_embedded_by_that(colours: str) -> None:
    """By one with an adapter, which learns too, and by one in whole numbers."""
    made, source = stem(kind="patches", size=4, class_token=True, positions="learned", colours=colours), images(3)
    plain, linear = made(source).values, made.patches
    made.patches = Adapted(linear, rank=2, alpha=3.0, dropout=0.0)
    nn.init.ones_(made.patches.up)
    made(source).values.sum().backward()
    assert made.patches.down.grad.abs().min() > 0
    adapted = made(source).values
    made.patches = made.patches.plain()
    torch.testing.assert_close(adapted, made(source).values, rtol=0, atol=1e-6)
    assert not torch.allclose(adapted, plain, atol=1e-2)
    made.patches = Quantised(linear)
    torch.testing.assert_close(made(source).values, plain, rtol=0, atol=0.03 * plain.abs().max().item())


def test_a_vision_transformer_is_pre_norm_blocks_over_patches() -> None:
    """Dosovitskiy et al. 2021, eq. 2 to 4, with the 1e-5 under the root that `equations.py` has."""
    part = {**IMAGE_ENCODERS["image-patches-transformer"], "norm_epsilon": 1e-5}
    settings = ModelSettings.model_validate({"d_model": 8, "encoder": part, "decoder": "gru"})
    encoder: Any = redrawn(build(settings, [Elements(shape=(3 * SIDE,))], 5, 8)).encoder
    source, w = images(2), arrays(encoder)
    memory = encoder(source)
    assert encoder.positions is None
    for row, found in zip(encoder.stem(source).values.split(17), memory.states.values.split(17), strict=True):
        xs = list(row.detach().numpy())
        for i in range(2):
            xs = eq.encoder_block(eq.under(w, f"blocks.{i}"), xs, heads=2, norm="pre", activation="gelu")
        agree(found, [eq.layer_norm(eq.under(w, "final"), x) for x in xs])


def test_norms_have_the_epsilon_that_is_set() -> None:
    model = tiny(("image-patches-transformer", "gru-every"))
    found = {module.eps for module in model.encoder.modules() if isinstance(module, nn.LayerNorm)}
    assert found == {1e-6}


def test_positions_of_another_grid_are_interpolated_between_the_learnt_ones() -> None:
    """A table that rises by one from row to row rises evenly; the class token's own stays; a stem reads any size."""
    rising = torch.arange(8.0, dtype=torch.float64).repeat_interleave(8)[:, None].expand(-1, 8)
    larger = resampled(rising, 16).view(16, 16, 8)
    assert torch.equal(resampled(rising, 8), rising)
    np.testing.assert_allclose(larger[4:-4, 0, 0].diff(), 0.5, atol=1e-6)
    assert torch.allclose(larger, larger[:, :1, :1].expand_as(larger))
    made = stem(kind="patches", size=1)
    with torch.no_grad():
        made.patches.weight.zero_()
        made.patches.bias.zero_()
        made.table.weight[1:] = rising
    found = made(images(1, side=16)).values
    assert torch.equal(found[0], made.class_token + made.table.weight[0])
    assert torch.allclose(found[1:], larger.flatten(0, 1))


def test_the_class_token_is_a_piece_and_no_word() -> None:
    encoder = {"kind": "stem", "stem": {"kind": "patches", "size": 8}}
    source = sides_of({"kind": "image", "size": 16}, model={"encoder": encoder}).source
    assert isinstance(source, Image)
    item = np.zeros((16, 48), np.uint8)
    assert source.pieces(item) == ["[class]", "1,1", "1,2", "2,1", "2,2"]
    assert source.words(item) == [-1, 0, 1, 2, 3]
    assert (source.grid, source.places(item), source.most_places(9)) == (2, 5, 5)
    canvas = source.canvas(item)
    assert canvas is not None
    assert (canvas.rows, canvas.columns, canvas.kind) == (2, 2, "picture")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": {"kind": "image", "size": 30}, "model": {"encoder": {"kind": "stem", "stem": "patches"}}},
         r"source.size \(30\) is not divisible by model.encoder.stem.size \(16\); try a source.size of 32, or"),
        ({"model": {"d_model": 6, "encoder": {"stem": {"kind": "patches", "positions": "sine2d"}}}},
         "positions 'sine2d' needs a d_model that 4 divides, not 6"),
        ({"source": "image", "model": {"encoder": {"stem": {"kind": "resnet", "depth": 19}}}}, "'depth' in"),
        ({"source": "text", "model": {"encoder": {"stem": "resnet"}}}, "that stem reads image"),
        ({"source": "video", "model": {"encoder": {"stem": {"kind": "frames", "picture": "tokens"}}}},
         "picture.kind 'tokens' reads no pictures; use convolution, patches or resnet"),
        ({"source": "video", "model": {"encoder": {"stem": {"kind": "frames", "pool": "class"}}}},
         "pool 'class' needs a class token, which picture.kind 'convolution' has not"),
        ({"source": {"kind": "video", "size": 30},
          "model": {"encoder": {"stem": {"kind": "frames", "picture": "patches"}}}}, "is not divisible by"),
        ({"model": {"decoder": {"kind": "lstm", "context": "last", "gate": True}}}, "'gate' needs context: attention"),
        ({"start": {"model": "a", "weights": "b.pth"}}, "weights are the encoder's, which model and encoder bring"),
        ({"training": {"objective": {"mixup": 0.2}}}, "mixup and cutmix are for one source of kind image and a target"),
        ({"source": "image", "target": "number", "training": {"objective": {"cutmix": 1}},
          "model": {"encoder": "stem", "decoder": "none"}}, "mixup and cutmix are for one source of kind image"),
        ({"source": "image", "training": {"objective": {"doubly_stochastic": 1}},
          "model": {"encoder": "stem", "decoder": "transformer"}}, "doubly_stochastic needs soft attention"),
        ({"training": {"objective": {"doubly_stochastic": 1}}, "model": {"decoder": {"hard": True}}}, "hard false"),
        ({"training": {"objective": {"doubly_stochastic": 1, "agreement": 1}}}, "agreement 0"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(settings)


def test_presets_of_pictures_are_what_their_papers_have() -> None:
    """Xu et al. 2015: a gate and the penalty, for soft attention alone; ViT-B/16 as published weights want it."""
    soft, hard, base = (parse({"preset": name}) for name in ("xu2015", "xu2015-hard", "vit-base"))
    assert soft.training.objective.doubly_stochastic == 1.0
    assert soft.model.decoder.gate is True  # type: ignore[union-attr]
    assert hard.training.objective.doubly_stochastic == 0.0
    layout = next(layout for layout in LAYOUTS if layout.name == "timm's ViT")
    assert clash(layout, base.model.encoder) is None
    assert count_parameters(base.model, 1, base.target) / 1e6 == pytest.approx(85.8, abs=0.05)


# Residual networks


def batch_norm(w: eq.Weights, name: str, x: eq.Array) -> eq.Array:
    """Ioffe and Szegedy 2015, algorithm 2: with the moving means. `(channels, height, width)`."""
    mean, variance, scale, shift = (
        w[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + shift


def convolved(kernel: eq.Array, x: eq.Array, stride: int) -> eq.Array:
    """A cross-correlation, padded so that stride 1 keeps the size, one place of the kernel at a time."""
    pad = kernel.shape[-1] // 2
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    height, width = (-(-n // stride) for n in x.shape[1:])
    found = np.zeros((len(kernel), height, width))
    for i in range(kernel.shape[2]):
        for j in range(kernel.shape[3]):
            seen = padded[:, i : i + stride * height : stride, j : j + stride * width : stride]
            found += np.einsum("oc,chw->ohw", kernel[:, :, i, j], seen)
    return found


def residual(w: eq.Weights, x: eq.Array, stride: int, steps: int) -> eq.Array:
    """He et al. 2016, eq. 1 and 2, figure 5."""
    y = x
    strides = (stride, 1) if steps == 2 else (1, stride, 1)
    for i, step in enumerate(strides, 1):
        y = batch_norm(w, f"bn{i}", convolved(w[f"conv{i}.weight"], y, step))
        y = np.maximum(y, 0) if i < steps else y
    if "downsample.0.weight" in w:
        x = batch_norm(w, "downsample.1", convolved(w["downsample.0.weight"], x, stride))
    return np.maximum(y + x, 0)


@pytest.mark.parametrize(("depth", "small"), [(18, True), (50, False)])
def test_a_residual_network_is_that_of_the_paper(depth: int, small: bool) -> None:
    made = stem(d_model=4, kind="resnet", depth=depth, small=small, channels=4)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in (*made.named_parameters(), *statistics(made)):
            tensor.copy_(torch.randn(tensor.shape, generator=draw) * 0.1 + (0.3 if tensor.dim() == 1 else 0.0))
            if name.endswith("running_var"):
                tensor.abs_().add_(0.1)
    w = {name: tensor.detach().numpy() for name, tensor in weights(made).items()}
    source = images(2, side=32 if not small else SIDE)
    found = made(source)
    counts = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[depth]
    for row, picture in enumerate(pictures(source)):
        x = ((picture / 255.0 - MEANS) / DEVIATIONS).transpose(2, 0, 1)
        x = np.maximum(batch_norm(w, "bn1", convolved(w["conv1.weight"], x, 1 if small else 2)), 0)
        if not small:
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
            shifted = [padded[:, i : i + 15 : 2, j : j + 15 : 2] for i in range(3) for j in range(3)]
            x = np.max(np.stack(shifted), 0)
        for layer, count in enumerate(counts, 1):
            for block in range(count):
                stride = 2 if layer > 1 and block == 0 else 1
                x = residual(eq.under(w, f"layer{layer}.{block}"), x, stride, 3 if depth == 50 else 2)
        cells = x.reshape(len(x), -1).T
        projected = cells @ w["project.weight"][:, :, 0, 0].T + w["project.bias"]
        expected = np.array([eq.layer_norm(eq.under(w, "norm"), one) for one in projected])
        np.testing.assert_allclose(found.values.split(1)[row].detach().numpy(), expected, atol=2e-5)
    assert found.lengths.tolist() == [STEMS.settings("resnet")(depth=depth, small=small).vectors(source.longest)] * 2


def test_batch_norm_is_torchs_and_counts_only_while_it_learns() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, 4, 4, generator=draw, dtype=torch.float64) * 2 + 1
    own, theirs = BatchNorm(3).double(), nn.BatchNorm2d(3).double()
    for module in (own, theirs):
        module.train()
        for _ in range(3):
            found = module(x)
        assert torch.allclose(found, theirs(x))
    theirs(x)
    own(x)
    own.eval()
    theirs.eval()
    expected = nn.functional.batch_norm(x, own.running_mean, own.running_var, own.weight, own.bias)
    assert torch.allclose(own(x), expected)
    own.train()
    for parameter in own.parameters():
        parameter.requires_grad_(False)
    before = own.running_mean.clone()
    assert torch.allclose(own(x), expected)
    assert torch.equal(own.running_mean, before)
    one = BatchNorm(3).train()
    assert torch.isfinite(one(torch.randn(1, 3, 1, 1))).all()  # a single number has no variance


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of one colour, which is their label."""
    place = tmp_path_factory.mktemp("colours")
    draw = np.random.default_rng(1)
    lines = []
    for i in range(24):
        colour = i % 2
        pixels = draw.integers(80, size=(16, 16, 3), dtype=np.uint8)
        pixels[..., 0 if colour else 2] += 120
        Picture.fromarray(pixels).save(place / f"{i}.png")
        lines.append(f"{i}.png\t{'red' if colour else 'blue'}\n")
    (place / "train.tsv").write_text("".join(lines))
    (place / "valid.tsv").write_text("".join(lines[:8]))
    return place


def labels(folder: Path, run: str, encoder: dict[str, Any], **more: Any) -> regard.Config:
    training = {
        "steps": 6, "batch_tokens": 136, "validate_every": 6, "save_every": 6, "tensorboard": False, "device": "cpu",
        "learning_rate": 0.003, "warmup": 2, **more.pop("training", {}),
    }  # fmt: skip
    settings = {
        "run": run, "data": {"train": "train.tsv", "valid": "valid.tsv"}, "source": {"kind": "image", "size": 16},
        "target": "label", "training": training, **more,
        "model": {"d_model": 16, "decoder": "none", "encoder": encoder},
    }  # fmt: skip
    return regard.Config.parse(settings, folder)


VIT: dict[str, Any] = {
    "kind": "transformer", "layers": 1, "heads": 2, "d_ff": 32, "positions": "none", "activation": "gelu",
    "stem": {"kind": "patches", "size": 4},
}  # fmt: skip
RESNET: dict[str, Any] = {"kind": "stem", "stem": {"kind": "resnet", "small": True, "channels": 4}}


def test_statistics_are_saved_loaded_averaged_and_decoded_with(folder: Path, tmp_path: Path) -> None:
    system = regard.train(labels(folder, "resnet", RESNET))
    model = system.task.model
    gathered = dict(statistics(model))
    assert len(gathered) == 2 * 20
    assert all(
        tensor.abs().sum() > 0 and not torch.equal(tensor, torch.ones_like(tensor)) for tensor in gathered.values()
    )
    loaded = regard.load(folder / "resnet", device="cpu")
    for name, tensor in statistics(loaded.task.model):
        assert torch.equal(tensor, gathered[name])
    moved = regard.load(system.save(tmp_path / "saved"), device="cpu")
    sources = [str(folder / f"{i}.png") for i in range(3)]
    assert [one[0] for one in moved.outputs(sources)] == [one[0] for one in system.outputs(sources)]
    copied = dict(statistics(for_decoding(model, "bfloat16")))
    assert all(torch.equal(copied[name], gathered[name]) for name in gathered)
    name = "encoder.stem.bn1.running_mean"
    tensors = weights(model)
    save_tensors(tmp_path / "a.safetensors", tensors)
    save_tensors(tmp_path / "b.safetensors", {**tensors, name: tensors[name] + 2.0})
    mean = average([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    assert torch.allclose(mean[name], tensors[name] + 1.0)
    with pytest.raises(ModelError, match=f"lacks {name}"):
        set_weights(model, {key: tensor for key, tensor in tensors.items() if key != name}, tmp_path)


def test_an_update_that_is_skipped_leaves_statistics_as_they_were() -> None:
    class Broken(Objective):
        """A loss that is sometimes no number."""

        def __call__(self, batch: Batch, done: float) -> Tensor:
            loss = self.model(batch.source.values).sum()
            return loss * (math.nan if done else 1.0)

    model = nn.Sequential(nn.Linear(3, 3), BatchNorm(3))
    objective = Broken(model, None)
    updater = Updater(model, objective, Training(device="cpu"), torch.device("cpu"))
    values = Ragged.from_lengths(torch.randn(6, 3), [6])
    batch = Batch(values, values, values)
    updater([batch], 1, 0.0)
    before = {name: tensor.clone() for name, tensor in weights(model).items()}
    assert float(updater([batch], 2, 0.5).skipped) == 1.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(model).items())
    assert float(updater([batch], 3, 0.0).skipped) == 0.0
    assert not torch.equal(weights(model)["1.running_mean"], before["1.running_mean"])


def updates_on_pictures(
    encoder: dict[str, Any], augment: dict[str, Any], training: dict[str, Any]
) -> tuple[Updater, list[float]]:
    """Sixteen updates on the GPU, every fourth on fewer pictures, and the loss of each."""
    device = torch.device("cuda")
    settings = {
        "source": {"kind": "image", "size": 16, "augment": augment}, "target": {"kind": "label"},
        "model": {"d_model": 16, "dropout": 0.0, "encoder": encoder, "decoder": {"kind": "none"}},
        "training": {"device": "cuda", "warmup": 0, "schedule": "constant", **training},
    }  # fmt: skip
    sides = Sides.of(parse(settings, "a test"))
    assert isinstance(sides.target, Label)
    sides.target.labels = ["a", "b", "c"]
    torch.manual_seed(2)
    task = new_task(sides, device)
    objective = make_objective(task.model, task.config.training.objective, 0.0, None, target=sides.target)
    updater, draw = Updater(task.model, objective, task.config.training, device), np.random.default_rng(3)
    batches = [
        task.batch(list(draw.integers(0, 256, (rows, 16, 48), dtype=np.uint8)), [[i % 3] for i in range(rows)])
        for rows in (6, 6, 6, 4)
    ]
    losses = [
        updater([updater.prepare(x)], i, (i - 1) / 16).loss.item() / x.tokens for i, x in enumerate(4 * batches, 1)
    ]
    return updater, losses


@pytest.mark.parametrize(
    ("target", "encoder", "training", "expected"),
    [
        ("label", VIT, {}, True),
        ("label", RESNET, {}, True),
        ("label", {"kind": "transformer", "layers": 1, "heads": 2, "stem": {"kind": "convolution"}}, {}, True),
        ("number", VIT, {}, True),
        ("label", {"kind": "lstm", "stem": {"kind": "patches", "size": 4}}, {}, False),
        ("label", VIT, {"accumulate": 2}, False),
        ("label", VIT, {"compile": False}, False),
    ],
)
def test_which_updates_on_pictures_may_be_recorded(
    target: str, encoder: dict[str, Any], training: dict[str, Any], expected: bool
) -> None:
    settings = {
        "source": {"kind": "image", "size": 16}, "target": {"kind": target}, "training": training,
        "model": {"d_model": 16, "encoder": encoder, "decoder": {"kind": "none"}},
    }  # fmt: skip
    sides = Sides.of(parse(settings, "a test"))
    if isinstance(sides.target, Label):
        sides.target.labels = ["a", "b"]
    task = new_task(sides, torch.device("cpu"))
    own = task.config.training
    objective = make_objective(task.model, own.objective, 0.0, None, target=sides.target)
    assert takes_even(task.model, objective, own, torch.device("cuda")) is expected
    assert takes_even(task.model, objective, own, torch.device("cpu")) is False


def test_pictures_that_are_slices_of_one_array_are_packed_alike() -> None:
    side, pixels = Image(ImageSettings(size=8)), np.random.default_rng(1).integers(0, 256, (40, 24), dtype=np.uint8)
    starts = np.array([16, 0, 32])
    found = side.pack(Slices(pixels, starts, starts + 8))
    expected = side.pack([pixels[start : start + 8] for start in starts])
    assert torch.equal(found.values, expected.values)
    assert found.uniform
    assert expected.uniform
    assert found.known.tolist() == [8, 8, 8]


@gpu
@compiles
@pytest.mark.parametrize("encoder", [VIT, RESNET])
def test_updates_on_pictures_are_recorded(encoder: dict[str, Any]) -> None:
    """As many pictures make one recording; fewer, at the end of an epoch, are updated by as they were."""
    losses = []
    for compiled in (False, True):
        updater, found = updates_on_pictures(encoder, {"crop": 0, "flip": False}, {"compile": compiled})
        assert (updater.recording is not None) == compiled
        losses.append(found)
    assert losses[0][-1] < losses[0][3]
    assert losses[1] == pytest.approx(losses[0], rel=0.02, abs=0.01)


@gpu
@compiles
def test_augmentation_and_mixing_are_recorded() -> None:
    """Each replay draws anew: a model that does not learn finds other losses on the same pictures."""
    everything = {"resize": 0.5, "crop": 2, "flip": True, "colour": 0.3, "randaugment": 2, "erase": 0.5}
    still = {"learning_rate": 1e-12, "objective": {"mixup": 0.8, "cutmix": 1.0}}
    updater, losses = updates_on_pictures(VIT, everything, still)
    assert updater.recording is not None
    assert all(map(math.isfinite, losses))
    assert len({round(loss, 5) for loss in losses[::4]}) == 4


@gpu
@compiles
def test_a_recorded_update_stops_mixing() -> None:
    still = {"learning_rate": 1e-12, "objective": {"mixup": 0.8, "cutmix": 1.0, "mixed": 0.5}}
    updater, losses = updates_on_pictures(VIT, {}, still)
    assert updater.recording is not None
    own = losses[8:12]
    assert losses[12:] == pytest.approx(own, abs=1e-4)
    assert all(loss != pytest.approx(of_own, abs=1e-4) for loss, of_own in zip(losses[4:8], own, strict=True))


# Sizes


@pytest.fixture(scope="module")
def vit(folder: Path) -> System:
    return regard.train(labels(folder, "vit", VIT))


def test_a_trained_model_reads_pictures_of_another_size(folder: Path, vit: System) -> None:
    saved = yaml.safe_load((folder / "vit" / "config.yaml").read_text())
    assert saved["model"]["encoder"]["stem"]["grid"] == 4
    source = str(folder / "0.png")
    assert regard.load(folder / "vit", device="cpu").outputs([source]) == vit.outputs([source])
    larger = regard.load(folder / "vit", device="cpu", settings={"source": {"size": 24}})
    assert larger.token_embeddings([source])[0].shape == (37, 16)
    assert larger.generate([source])[0] in ("red", "blue")
    report = folder / "report.json"
    good("evaluate", folder / "vit", folder / "valid.tsv", "--set", "source.size=24", "--report", report)
    content = json.loads(report.read_text())
    assert content["source"] == {"size": 24}
    assert content["scores"]["accuracy"]["score"] == pytest.approx(
        100
        * np.mean([larger.generate([str(folder / f"{i}.png")])[0] == ("red" if i % 2 else "blue") for i in range(8)])
    )
    read_as = ("--set", "source.size=24")
    assert good("generate", folder / "vit", *read_as, text=f"{source}\n") == larger.generate([source])[0] + "\n"
    scored = good("score", folder / "vit", folder / "valid.tsv", *read_as).splitlines()
    sources = [str(folder / f"{i}.png") for i in range(8)]
    found = larger.score(sources, ["blue", "red"] * 4)
    assert [float(x) for x in scored] == pytest.approx([x.log_prob for x in found], abs=1e-3)
    good("explain", folder / "vit", source, *read_as, "-o", folder / "larger.json")
    assert len(json.loads((folder / "larger.json").read_text())[0]["source"]) == 37
    out = folder / "out.txt"
    good("generate", folder / "vit", *read_as, "-o", out, text=f"{source}\n")
    assert "score takes settings of [source]" in refused("score", folder / "vit", out, "--set", "beam=1")
    said = refused("evaluate", folder / "vit", folder / "valid.tsv", "--set", "source.size=25")
    assert "source.size (25) is not divisible by model.encoder.stem.size (4); try a source.size of 24" in said
    with pytest.raises(ConfigError, match=r"\[model\] is set in training; of a trained model \[source\] alone"):
        regard.load(folder / "vit", settings={"model": {"d_model": 8}})


def test_what_cannot_be_explained_of_a_classifier_says_what_can(folder: Path, vit: System, tmp_path: Path) -> None:
    plain = regard.train(labels(folder, "plain", RESNET))
    found = plain.explain(str(folder / "0.png"))
    found.save(tmp_path / "a.html")
    with pytest.raises(ConfigError, match=r"train one with a Transformer encoder, or write a page \(\.html\), which"):
        found.save(tmp_path / "a.png")
    with pytest.raises(ConfigError, match=r"gradient and erasure, which say what each written .* explain by attention"):
        vit.explain(str(folder / "0.png"), methods=["gradient"])
    vit.explain(str(folder / "0.png")).save(tmp_path / "a.png")


@pytest.mark.usefixtures("vit")
def test_examples_that_cannot_be_explained_are_named_and_left_out(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.tsv"
    file.write_text(f"gone.png\tred\nno tab\n{folder}/0.png\tblue\n{folder}/1.png\tred\n")
    done = run("explain", folder / "vit", "--examples", file, "-o", tmp_path / "a.json")
    assert done.returncode == 0
    assert len(json.loads((tmp_path / "a.json").read_text())) == 1
    one, other = done.stderr.splitlines()
    assert one.startswith(f"regard: {file}:1: no picture {tmp_path}/gone.png")
    assert one.endswith("; it is left out")
    assert other.startswith(f"regard: {file}:2 ")
    file.write_text("gone.png\tred\n")
    said = refused("explain", folder / "vit", "--examples", file, "-o", tmp_path / "b.json")
    assert f"{file} has no example that can be explained" in said


@pytest.mark.usefixtures("vit")
def test_a_head_over_patches_reads_the_class_token(folder: Path) -> None:
    model: Any = regard.load(folder / "vit", device="cpu").task.model.eval()
    assert model.pool == "class"
    source = images(2, side=16)
    found = model(source, Ragged.of([[0], [0]])).values
    states = model.encode(source).states.values.view(2, 17, -1)[:, 0]
    assert torch.allclose(found, model.head(states))


def test_a_resumed_run_of_a_vision_transformer_keeps_its_positions(folder: Path) -> None:
    """What a stem takes from its source is no change of settings."""
    config = labels(folder, "again", VIT, training={"steps": 4, "validate_every": 2, "save_every": 2})
    regard.train(config)
    longer = labels(folder, "again", VIT, training={"steps": 6, "validate_every": 2, "save_every": 2})
    regard.train(longer)
    assert load_tensors(folder / "again" / "checkpoints" / "00000006" / "model.safetensors").keys()
