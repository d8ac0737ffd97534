"""Pictures altered while a model trains, a batch at a time on the model's device, by draws from torch's generator.

Of each picture, or of each video, whose frames are altered alike: a crop, a flip and the geometric part of RandAugment
are one affine map and one bilinear resampling; then colours; then what is erased. What lies outside becomes grey.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.ragged import Ragged

GREY = 127.5
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R 601), as Pillow has it
HARDEST = 30.0  # magnitude of RandAugment
Alter = Callable[[Tensor, Tensor], Tensor]  # pictures `(n, 3, side, side)` from 0 to 255, and a strength of each


class PictureAugmentation(nn.Module):
    """Packed pictures, or frames of videos, of `size` pixels a side, to pictures of the same layout, as numbers from 0
    to 255. `settings` are those of `source.augment`."""

    def __init__(self, settings: Any, size: int) -> None:
        super().__init__()
        self.settings, self.size = settings, size

    def forward(self, source: Ragged) -> Ragged:
        side, rows, device = self.size, source.rows, source.values.device
        x = source.values.reshape(-1, side, side, 3).permute(0, 3, 1, 2).float()
        frames = source.values.shape[1] == 3 * side * side  # of videos, those of one of which go together
        which = source.row if frames else torch.arange(rows, device=device)
        settings, count = self.settings, self.settings.randaugment
        drawn = torch.randint(len(OPERATIONS), (count, rows), device=device)
        if settings.probability < 1.0:
            drawn *= torch.rand(count, rows, device=device) < settings.probability  # the first leaves it as it is
        sign = torch.randint(2, (count, rows), device=device) * 2.0 - 1.0
        if settings.crop or settings.flip or settings.resize < 1.0 or count:
            x = transformed(x, self._map(rows, device, drawn, sign)[which])
        if settings.colour:
            for jitter in (brightened, contrasted, coloured):
                x = jitter(x, (1.0 + settings.colour * (2.0 * torch.rand(rows, device=device) - 1.0))[which])
        for chosen, way in zip(drawn, sign, strict=True):
            strength = settings.magnitude / HARDEST * way
            for number, (_, alter) in enumerate(OPERATIONS):
                if alter is not None:
                    taken = (chosen == number)[which, None, None, None]
                    x = torch.where(taken, alter(x, strength[which]), x)
        if settings.erase:
            x = erased(x, _box(rows, device, settings.erase, side)[which])
        return source.like(x.permute(0, 2, 3, 1).reshape(source.values.shape))

    def _map(self, rows: int, device: torch.device, drawn: Tensor, sign: Tensor) -> Tensor:
        """`(rows, 3, 3)`: where in the given picture each place of the altered one is taken from."""
        settings = self.settings
        found = torch.eye(3, device=device).repeat(rows, 1, 1)
        if settings.resize < 1.0:  # Szegedy et al. 2015: a part of the picture, of some area and aspect
            area = settings.resize + (1.0 - settings.resize) * torch.rand(rows, device=device)
            aspect = torch.exp((2.0 * torch.rand(rows, device=device) - 1.0) * math.log(4.0 / 3.0))
            width, height = (area * aspect).sqrt().clamp(max=1.0), (area / aspect).sqrt().clamp(max=1.0)
            found[:, 0, 0], found[:, 1, 1] = width, height
            found[:, 0, 2] = (1.0 - width) * (2.0 * torch.rand(rows, device=device) - 1.0)
            found[:, 1, 2] = (1.0 - height) * (2.0 * torch.rand(rows, device=device) - 1.0)
        if settings.crop:  # He et al. 2016, 4.2: a crop of the padded picture is the picture, shifted
            shift = torch.randint(-settings.crop, settings.crop + 1, (rows, 2), device=device)
            found[:, :2, 2] += 2.0 * shift / self.size
        if settings.flip:
            found[:, :, 0] *= 1.0 - 2.0 * torch.randint(2, (rows, 1), device=device)
        for chosen, way in zip(drawn, sign, strict=True):
            found = found @ _turns(chosen, settings.magnitude / HARDEST * way)
        return found


def transformed(x: Tensor, where: Tensor) -> Tensor:
    """Pictures whose every place is taken from the place that a map `(n, 3, 3)` sends it to, from -1 to 1 a side."""
    grid = F.affine_grid(where[:, :2], list(x.shape), align_corners=False)
    return F.grid_sample(x - GREY, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + GREY


def _turns(chosen: Tensor, strength: Tensor) -> Tensor:
    """The maps of RandAugment's geometric operations, `(rows, 3, 3)`; the identity where another one was drawn."""
    amounts = dict[str, Tensor]()
    for number, (name, _) in enumerate(OPERATIONS):
        amounts[name] = strength * (chosen == number)
    angle = amounts["rotate"] * math.radians(30.0)
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    cos, sin = angle.cos(), angle.sin()
    rows = (
        (cos, -sin + 0.3 * amounts["shear_x"], 0.9 * amounts["translate_x"]),
        (sin + 0.3 * amounts["shear_y"], cos, 0.9 * amounts["translate_y"]),
        (zero, zero, one),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


# Colours. A strength of RandAugment lies between -1 and 1; a factor of 1 leaves a picture as it is.


def _each(factor: Tensor) -> Tensor:
    return factor[:, None, None, None]


def _mixed(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (other + _each(factor) * (x - other)).clamp(0.0, 255.0)


def _grey(x: Tensor) -> Tensor:
    red, green, blue = x.split(1, dim=1)
    return LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue


def brightened(x: Tensor, factor: Tensor) -> Tensor:
    """Nearer to black, or further from it."""
    return _mixed(x, torch.zeros_like(x), factor)


def contrasted(x: Tensor, factor: Tensor) -> Tensor:
    """Nearer to the picture's mean grey, or further from it."""
    return _mixed(x, _grey(x).mean((2, 3), keepdim=True), factor)


def coloured(x: Tensor, factor: Tensor) -> Tensor:
    """Nearer to its own grey, or further from it."""
    return _mixed(x, _grey(x), factor)


def sharpened(x: Tensor, factor: Tensor) -> Tensor:
    """Nearer to the picture smoothed by 3 x 3 weights of 1, in the middle of 5, or further from it."""
    around = 9.0 * F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return _mixed(x, (around + 4.0 * x) / 13.0, factor)


def solarized(x: Tensor, strength: Tensor) -> Tensor:
    """What is brighter than a limit is turned round."""
    return torch.where(x > _each(255.0 * (1.0 - strength.abs())), 255.0 - x, x)


def posterized(x: Tensor, strength: Tensor) -> Tensor:
    """Fewer bits of each colour: 8 down to 4."""
    step = 2.0 ** _each((4.0 * strength.abs()).round())
    return (x / step).floor() * step


def stretched(x: Tensor, strength: Tensor) -> Tensor:
    """The darkest of each colour to 0 and the brightest to 255 (autocontrast)."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) * (255.0 / (high - low).clamp(min=1e-3)), x)


def equalized(x: Tensor, strength: Tensor) -> Tensor:
    """Every brightness of each colour as frequent as any other, as Pillow has it: the share of pixels that are darker
    takes the place of the brightness."""
    level = x.round().long().clamp(0, 255).flatten(2)  # (n, 3, pixels)
    counts = torch.zeros(*level.shape[:2], 256, device=x.device).scatter_add_(2, level, torch.ones_like(level).float())
    last = counts.gather(2, level.amax(2, keepdim=True))  # how many pixels are of the brightest level
    step = ((level.shape[2] - last) / 255.0).floor()
    darker = counts.cumsum(2) - counts
    table = ((darker + (step / 2.0).floor()) / step.clamp(min=1.0)).floor().clamp(0.0, 255.0)
    return torch.where(step[..., None] > 0, table.gather(2, level).view_as(x), x)


# RandAugment (Cubuk et al. 2020), its 14 operations; those without a function are part of the affine map.
OPERATIONS: tuple[tuple[str, Alter | None], ...] = (
    ("identity", None),
    ("rotate", None),
    ("shear_x", None),
    ("shear_y", None),
    ("translate_x", None),
    ("translate_y", None),
    ("autocontrast", stretched),
    ("equalize", equalized),
    ("solarize", solarized),
    ("posterize", posterized),
    ("contrast", lambda x, strength: contrasted(x, 1.0 + 0.9 * strength)),
    ("colour", lambda x, strength: coloured(x, 1.0 + 0.9 * strength)),
    ("brightness", lambda x, strength: brightened(x, 1.0 + 0.9 * strength)),
    ("sharpness", lambda x, strength: sharpened(x, 1.0 + 0.9 * strength)),
)


# Parts of pictures


def _box(rows: int, device: torch.device, share: float, side: int) -> Tensor:
    """For a `share` of the rows a rectangle of 2 to 33 % of the picture, of an aspect from 0.3 to 3.3 (Zhong et al.
    2020), for others an empty one: left, top, right, bottom in pixels, `(rows, 4)`."""
    area = (0.02 + 0.31 * torch.rand(rows, device=device)) * (torch.rand(rows, device=device) < share)
    aspect = torch.exp((2.0 * torch.rand(rows, device=device) - 1.0) * math.log(1.0 / 0.3))
    return _placed((area * aspect).sqrt(), (area / aspect).sqrt(), side)


def _placed(width: Tensor, height: Tensor, side: int) -> Tensor:
    """A rectangle of each of these shares of the sides, around a centre that may be anywhere, cut off at the edges."""
    size = torch.stack((width, height), dim=-1) * side
    centre = torch.rand(*size.shape, device=size.device) * side
    return torch.cat((centre - size / 2.0, centre + size / 2.0), dim=-1).round().clamp(0, side)


def inside(box: Tensor, side: int) -> Tensor:
    """`(n, 1, side, side)`: True inside the rectangle of each picture."""
    place = torch.arange(side, device=box.device)
    left, top, right, bottom = (edge[:, None] for edge in box.unbind(-1))
    across, down = (place >= left) & (place < right), (place >= top) & (place < bottom)
    return (down[:, :, None] & across[:, None, :]).unsqueeze(1)


def erased(x: Tensor, box: Tensor) -> Tensor:
    """Grey inside the rectangle."""
    return x.masked_fill(inside(box, x.shape[-1]), GREY)


class Mixing(nn.Module):
    """Pictures mixed with the next one of the batch, after they are augmented: `x̃ = λ x_i + (1 - λ) x_j`, `λ ~
    Beta(α, α)` (mixup, Zhang et al. 2018, eq. 1), or `x_i` with a rectangle of `x_j` in it, of which `1 - λ` is the
    share (cutmix, Yun et al. 2019, eq. 1 and 2). With both, half of the pictures each."""

    def __init__(self, augmentation: nn.Module | None, mixup: float, cutmix: float) -> None:
        super().__init__()
        self.augmentation, self.mixup, self.cutmix = augmentation, mixup, cutmix
        self.register_buffer("on", torch.ones((), dtype=torch.bool), persistent=False)  # which a recorded update reads

    on: Tensor  # False: pictures are no longer mixed

    def forward(self, source: Ragged) -> tuple[Ragged, Tensor]:
        """The pictures, and `λ` of each row; row `i` is mixed with row `i - 1`, the first with the last."""
        source = source if self.augmentation is None else self.augmentation(source)
        rows, side, device = source.rows, source.longest, source.values.device
        x = source.values.view(rows, side, side, 3).float()
        other, kept = x.roll(1, 0), torch.ones(rows, device=device)
        cut = torch.rand(rows, device=device) < (0.5 if self.mixup and self.cutmix else float(self.cutmix > 0))
        if self.mixup:
            kept = torch.where(cut, kept, _beta(self.mixup, rows, device))
        weight = _each(kept)
        if self.cutmix:
            edge = (1.0 - _beta(self.cutmix, rows, device)).sqrt()
            taken = inside(_placed(edge, edge, side), side)[:, 0, :, :, None] & _each(cut)
            kept = torch.where(cut, 1.0 - taken.float().mean((1, 2, 3)), kept)
            weight = weight * ~taken
        kept, weight = torch.where(self.on, kept, 1.0), torch.where(self.on, weight, 1.0)
        return source.like((weight * x + (1.0 - weight) * other).view(source.values.shape)), kept


def _beta(alpha: float, rows: int, device: torch.device) -> Tensor:
    both = torch.full((rows,), alpha, device=device)
    found: Tensor = torch.distributions.Beta(both, both, validate_args=False).sample()  # checking waits for the device
    return found
