"""Pictures altered in training: each operation against Pillow or by hand, mixtures and their loss, exact resumption."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image as Picture
from PIL import ImageEnhance, ImageOps
from torch import Tensor

import regard
from regard.data.modalities.image import AugmentSettings
from regard.errors import ConfigError
from regard.models.stems import Elements
from regard.models.vision import PatchStem
from regard.nn import augment
from regard.nn.augment import OPERATIONS, Mixing, PictureAugmentation
from regard.ragged import Ragged
from regard.registry import STEMS
from regard.runs import Stopped
from regard.training.checkpoint import load_tensors
from regard.training.objectives import HeadLoss
from tests.conftest import images
from tests.test_training import StopAt

SIDE, ROWS = 16, 40


def altered(source: Ragged, seed: int = 1, **settings: Any) -> Tensor:
    """`(rows, height, width, 3)`."""
    torch.manual_seed(seed)
    made = PictureAugmentation(AugmentSettings(**settings), SIDE)
    found = made(source)
    assert found.values.shape == source.values.shape
    assert found.offsets is source.offsets
    return found.values.view(-1, SIDE, SIDE, 3)


def given(source: Ragged) -> Tensor:
    return source.values.view(-1, SIDE, SIDE, 3).float()


def test_nothing_asked_for_leaves_pictures_as_they_are() -> None:
    source = images(3, SIDE)
    assert torch.equal(altered(source), given(source))


def test_a_crop_is_a_shift_within_a_grey_margin() -> None:
    source, found = images(ROWS, SIDE), altered(images(ROWS, SIDE), crop=3)
    seen = set()
    for before, after in zip(given(source), found, strict=True):
        padded = torch.nn.functional.pad(before, (0, 0, 3, 3, 3, 3), value=127.5)
        places = [(i, j) for i in range(7) for j in range(7)
                  if torch.allclose(padded[i : i + SIDE, j : j + SIDE], after, atol=0.02)]  # fmt: skip
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) > 15


def test_half_of_the_pictures_are_mirrored() -> None:
    source = images(ROWS, SIDE)
    before, after = given(source), altered(source, flip=True)
    same = [torch.allclose(a, b, atol=0.02) for a, b in zip(before, after, strict=True)]
    mirrored = [torch.allclose(a.flip(1), b, atol=0.02) for a, b in zip(before, after, strict=True)]
    assert all(one != other for one, other in zip(same, mirrored, strict=True))
    assert ROWS // 4 < sum(mirrored) < 3 * ROWS // 4


def test_a_resized_crop_shows_a_part_of_at_least_that_share() -> None:
    """Of a picture whose colours say where a pixel is, the corners say what was cut out."""
    place = torch.linspace(0.0, 255.0, SIDE)
    one = torch.stack((place.expand(SIDE, -1), place[:, None].expand(-1, SIDE), place.expand(SIDE, -1)), dim=-1)
    source = Ragged.from_lengths(one.repeat(ROWS, 1, 1).reshape(-1, 3 * SIDE), [SIDE] * ROWS)
    found = altered(source, resize=0.3)
    inner = found[:, 1:-1, 1:-1]  # at the edge half of a pixel may be grey
    width = (inner[:, 5, -1, 0] - inner[:, 5, 0, 0]) / (place[-2] - place[1])
    height = (inner[:, -1, 5, 1] - inner[:, 0, 5, 1]) / (place[-2] - place[1])
    area = width * height
    assert area.min() > 0.28
    assert area.max() < 1.01
    assert area.max() - area.min() > 0.4
    assert (width / height).min() > 0.7
    assert (width / height).max() < 1.4


def as_pillow(x: Tensor) -> list[Picture.Image]:
    return [Picture.fromarray(one.to(torch.uint8).numpy()) for one in x]


def as_array(pictures: list[Picture.Image]) -> NDArray[np.float64]:
    return np.stack([np.asarray(one, dtype=np.float64) for one in pictures])


def run(name: str, x: Tensor, strength: float) -> NDArray[np.float64]:
    alter = dict(OPERATIONS)[name]
    assert alter is not None
    found = alter(x.permute(0, 3, 1, 2), torch.full((len(x),), strength))
    return found.permute(0, 2, 3, 1).double().numpy()


@pytest.mark.parametrize("strength", [-0.5, 0.7])
@pytest.mark.parametrize(
    ("name", "pillow"),
    [
        ("brightness", lambda x, s: ImageEnhance.Brightness(x).enhance(1 + 0.9 * s)),
        ("contrast", lambda x, s: ImageEnhance.Contrast(x).enhance(1 + 0.9 * s)),
        ("colour", lambda x, s: ImageEnhance.Color(x).enhance(1 + 0.9 * s)),
        ("sharpness", lambda x, s: ImageEnhance.Sharpness(x).enhance(1 + 0.9 * s)),
        ("solarize", lambda x, s: ImageOps.solarize(x, round(255 * (1 - abs(s)) + 0.5))),
        ("posterize", lambda x, s: ImageOps.posterize(x, 8 - round(4 * abs(s)))),
        ("autocontrast", lambda x, s: ImageOps.autocontrast(x)),
        ("equalize", lambda x, s: ImageOps.equalize(x)),
    ],
)
def test_colour_operations_are_those_of_pillow(name: str, pillow: Any, strength: float) -> None:
    x = (given(images(4, SIDE)) ** 0.8 + 20).floor()  # not every brightness
    expected = as_array([pillow(one, strength) for one in as_pillow(x)])
    found = run(name, x, strength)
    inner = np.s_[:, 1:-1, 1:-1] if name == "sharpness" else np.s_[:]  # Pillow does not smooth the edge
    np.testing.assert_allclose(found[inner], expected[inner], atol=2.0)  # which rounds to bytes at every step


@pytest.mark.parametrize(("name", "degrees"), [("rotate", 15.0), ("rotate", -15.0)])
def test_a_turn_is_that_of_pillow(name: str, degrees: float) -> None:
    number = [one for one, _ in OPERATIONS].index(name)
    where = augment._turns(torch.tensor([number]), torch.tensor([degrees / 30.0]))
    x = given(images(1, SIDE))
    found = augment.transformed(x.permute(0, 3, 1, 2), where)[0].permute(1, 2, 0).numpy()
    expected = np.asarray(as_pillow(x)[0].rotate(degrees, Picture.Resampling.BILINEAR), np.float64)
    middle = np.s_[4:-4, 4:-4]
    np.testing.assert_allclose(found[middle], expected[middle], atol=2.0)


def test_shears_and_shifts_move_places_as_far_as_they_should() -> None:
    names = [name for name, _ in OPERATIONS]
    chosen = torch.tensor(
        [names.index(name) for name in ("shear_x", "shear_y", "translate_x", "translate_y", "equalize")]
    )
    found = augment._turns(chosen, torch.full((5,), 0.5))
    expected = np.tile(np.eye(3), (5, 1, 1))
    expected[0, 0, 1] = expected[1, 1, 0] = 0.15
    expected[2, 0, 2] = expected[3, 1, 2] = 0.45
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_randaugment_draws_for_each_picture() -> None:
    """Of one picture many times over: all operations come, some are the identity, and the seed tells them."""
    one = images(1, SIDE)
    source = Ragged.from_lengths(one.values.repeat(200, 1), [SIDE] * 200)
    found = altered(source, randaugment=1, magnitude=15.0)
    kinds = {tuple(picture.flatten()[:200].round().tolist()) for picture in found}
    assert len(OPERATIONS) == 14
    assert 20 <= len(kinds) <= 26  # 9 operations have two signs, of which solarize and posterize are alike; 3 have none
    assert torch.equal(found, altered(source, randaugment=1, magnitude=15.0))
    assert not torch.equal(found, altered(source, seed=2, randaugment=1, magnitude=15.0))
    assert torch.allclose(altered(source, randaugment=2, magnitude=0.0).median(0).values, given(one)[0], atol=0.02)


def test_randaugment_is_applied_as_often_as_asked() -> None:
    """Of two operations drawn, one of which in fourteen is the identity, this many pictures keep as they are; and where
    both are one of the five that move pictures, there and back again."""
    one = images(1, SIDE)
    source = Ragged.from_lengths(one.values.repeat(4000, 1), [SIDE] * 4000)
    for probability in (0.0, 0.5, 1.0):
        found = altered(source, randaugment=2, magnitude=12.0, probability=probability)
        same = torch.isclose(found, given(one), atol=0.02).flatten(1).all(1).float().mean()
        expected = (1.0 - probability * 13 / 14) ** 2 + 5 * (probability / 14) ** 2 / 2
        assert float(same) == pytest.approx(expected, abs=3.0 * math.sqrt(expected * (1.0 - expected) / 4000) + 1e-6)


def test_frames_go_together_beside_a_video_without_any() -> None:
    """There are then as many frames as videos."""
    frames = images(1, SIDE).values.flatten().repeat(3, 1)
    for lengths in ([3, 0, 0], [0, 3, 0]):
        found = altered(Ragged.from_lengths(frames, lengths), crop=4, flip=True, colour=0.5, randaugment=2, erase=1.0)
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


def test_colours_vary_as_much_as_they_may() -> None:
    source = Ragged.from_lengths(torch.full((ROWS * SIDE, 3 * SIDE), 100, dtype=torch.uint8), [SIDE] * ROWS)
    found = altered(source, colour=0.4)  # of a grey picture only the brightness can
    assert found.flatten(1).std(1).max() < 1e-3
    levels = found[:, 0, 0, 0]
    assert levels.min() >= 59.9
    assert levels.max() <= 140.1
    assert levels.max() - levels.min() > 50


def test_a_share_of_the_pictures_has_a_grey_rectangle() -> None:
    source = images(200, SIDE)
    found = altered(source, erase=0.5)
    changed = (found != given(source)).any(-1)
    assert (found[changed] == 127.5).all()
    whole = changed.flatten(1).any(1)
    assert 60 < int(whole.sum()) < 130
    for mask in changed[whole]:
        rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
        box = mask[int(rows.min()) : int(rows.max()) + 1, int(columns.min()) : int(columns.max()) + 1]
        assert box.all()


def test_frames_of_a_video_are_altered_alike() -> None:
    """Two videos of three and two frames, each the same picture over and over."""
    one, other = images(1, SIDE, seed=1).values, images(1, SIDE, seed=2).values
    frames = torch.stack([one.flatten()] * 3 + [other.flatten()] * 2)
    found = altered(Ragged.from_lengths(frames, [3, 2]), crop=4, flip=True, colour=0.5, randaugment=2, erase=1.0)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[3], found[4])
    assert not torch.equal(found[0], given(images(1, SIDE, seed=1))[0])


def test_pictures_are_altered_in_training_alone() -> None:
    settings = STEMS.settings("patches")(size=4, class_token=False, positions="none")
    made = PictureAugmentation(AugmentSettings(crop=4), SIDE)
    stem = PatchStem(settings, Elements(shape=(3 * SIDE,), augmentation=made), 8, 0.0)
    source = images(3, SIDE)
    plain = stem.vectors(source).values
    assert torch.equal(stem.eval()(source).values, plain)
    assert not torch.equal(stem.train()(source).values, plain)
    taken = stem.take_augmentation()
    assert taken is made
    assert torch.equal(stem(source).values, plain)


# Mixtures


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0.0), (0.0, 1.0), (0.5, 0.5)])
def test_pictures_are_mixed_as_the_papers_say(mixup: float, cutmix: float) -> None:
    """Zhang et al. 2018, eq. 1: `λ x_i + (1 - λ) x_j`; Yun et al. 2019, eq. 1: a rectangle, `1 - λ` of the picture."""
    source = images(ROWS, SIDE)
    torch.manual_seed(3)
    mixed, share = Mixing(None, mixup, cutmix)(source)
    own, found = given(source), mixed.values.view(-1, SIDE, SIDE, 3)
    kinds = []
    for i in range(ROWS):
        x, other, weight = own[i], own[i - 1], float(share[i])
        blended = torch.allclose(found[i], weight * x + (1 - weight) * other, atol=0.01)
        of_other = (found[i] == other).all(-1) & (other != x).any(-1)
        pasted = torch.equal(torch.where(of_other[..., None], other, x), found[i])
        assert blended or pasted
        if pasted:
            assert weight == pytest.approx(1.0 - float(of_other.float().mean()), abs=0.02)
        kinds.append("up" if blended and not pasted else "cut")
    assert ("up" in kinds) == (mixup > 0)
    assert ("cut" in kinds) == (cutmix > 0)
    assert 0.1 < float(share.mean()) < 0.9


def config(folder: Path, run: str, **changes: Any) -> regard.Config:
    training = {
        "steps": 6, "batch_tokens": 102, "validate_every": 6, "save_every": 3, "tensorboard": False, "device": "cpu",
        "label_smoothing": 0.1, "objective": {"mixup": 0.4, "cutmix": 1.0},
    }  # fmt: skip
    settings = {
        "run": run, "data": {"train": "train.tsv", "valid": "train.tsv"}, "target": "label",
        "source": {
            "kind": "image", "size": SIDE,
            "augment": {"crop": 2, "resize": 0.5, "flip": True, "colour": 0.2, "randaugment": 2, "erase": 0.3},
        },
        "training": training,
        "model": {
            "d_model": 8, "decoder": "none",
            "encoder": {
                "kind": "transformer", "layers": 1, "heads": 2, "d_ff": 8, "positions": "none",
                "stem": {"kind": "patches", "size": 8},
            },
        },
        **changes,
    }  # fmt: skip
    return regard.Config.parse(settings, folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(12):
        values = np.random.default_rng(i).integers(256, size=(SIDE, SIDE, 3), dtype=np.uint8)
        Picture.fromarray(values).save(tmp_path / f"{i}.png")
    (tmp_path / "train.tsv").write_text("".join(f"{i}.png\t{'abc'[i % 3]}\n" for i in range(12)))
    return tmp_path


def test_training_on_altered_and_mixed_pictures_resumes_to_the_bit(folder: Path) -> None:
    regard.train(config(folder, "run"))
    last = "checkpoints/00000006/model.safetensors"
    whole = load_tensors(folder / "run" / last)
    regard.train(config(folder, "plain", source={"kind": "image", "size": SIDE}))
    assert not torch.equal(load_tensors(folder / "plain" / last)["head.linear.weight"], whole["head.linear.weight"])
    shutil.rmtree(folder / "run")
    with pytest.raises(Stopped):
        regard.train(config(folder, "run"), StopAt(3))
    regard.train(config(folder, "run"))
    cut = load_tensors(folder / "run" / last)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_the_loss_of_a_mixture_is_the_mixture_of_losses(folder: Path) -> None:
    """Written out for each picture, from the pictures and shares that the same draws give."""
    from regard.data.batch import Batch
    from regard.data.targets.label import Label, LabelSettings

    system = regard.train(config(folder, "run"))
    model: Any = system.task.model.eval()
    target = Label(LabelSettings())
    target.labels = ["a", "b", "c"]
    labels = torch.tensor([0, 2, 1, 1])
    source = images(4, SIDE)
    batch = Batch(source, Ragged.of([[0]] * 4), Ragged.from_lengths(labels, [1] * 4))
    objective = HeadLoss(model, config(folder, "run").training.objective, 0.1, target)
    assert objective.mixing is not None
    torch.manual_seed(5)
    loss = objective(batch, 0.0)
    torch.manual_seed(5)
    mixed, share = objective.mixing(source)
    log_p = model(mixed, batch.inputs).values.detach().log_softmax(-1)
    expected = 0.0
    for i in range(4):
        for label, weight in ((labels[i], share[i]), (labels[i - 1], 1 - share[i])):
            smooth = 0.9 * log_p[i, label] + 0.1 * log_p[i].mean()
            expected -= float(weight * smooth)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_mixing_ends_when_asked(folder: Path) -> None:
    """The last part of training is on pictures as they are: the loss is that of the head alone."""
    from regard.data.batch import Batch
    from regard.data.targets.label import Label, LabelSettings

    plain = {"kind": "image", "size": SIDE}
    system = regard.train(config(folder, "run", source=plain))
    target = Label(LabelSettings())
    target.labels = ["a", "b", "c"]
    model: Any = system.task.model.eval()
    batch = Batch(images(3, SIDE), Ragged.of([[0]] * 3), Ragged.from_lengths(torch.tensor([0, 2, 1]), [1] * 3))
    training = {"steps": 1, "objective": {"mixup": 0.4, "cutmix": 1.0, "mixed": 0.6}}
    settings = config(folder, "run", source=plain, training=training).training.objective
    mixing = HeadLoss(model, settings, 0.1, target)
    unmixed = HeadLoss(model, settings.model_copy(update={"mixup": 0.0, "cutmix": 0.0}), 0.1, target)
    own = unmixed(batch, 0.0).item()
    for done, same in ((0.0, False), (0.59, False), (0.6, True), (0.99, True), (0.2, False)):
        mixing.at(done)
        assert (mixing(batch, done).item() == pytest.approx(own, rel=1e-5)) == same


def test_settings_of_augmentation_are_checked(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'crp' in \[source.augment\]; did you mean 'crop'"):
        config(folder, "run", source={"kind": "image", "augment": {"crp": 2}})
    with pytest.raises(ConfigError, match=r"'magnitude' in .*is 31"):
        config(folder, "run", source={"kind": "image", "augment": {"magnitude": 31}})
