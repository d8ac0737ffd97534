"""Stems for pictures and videos: the patches of a Vision Transformer, a residual network, and either over frames."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.stems import Elements, Stem
from regard.nn.deferred import autocast_dtype
from regard.nn.positions import Sinusoidal
from regard.nn.statistics import BatchNorm
from regard.ragged import Ragged
from regard.registry import STEMS, register

# Of ImageNet's pixels, each colour from 0 to 1, as torchvision's weights were trained with.
MEANS, DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MIDDLE = 128  # of a byte


class Colours(nn.Module):
    """Bytes, or numbers from 0 to 255, whose last axis is red, green and blue, to what a network reads."""

    scale: Tensor
    shift: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        means, deviations = (MEANS, DEVIATIONS) if kind == "imagenet" else ((0.5,) * 3, (0.5,) * 3)
        scale = [1.0 / (255.0 * deviation) for deviation in deviations]
        shift = [-mean / deviation for mean, deviation in zip(means, deviations, strict=True)]
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32), persistent=False)
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float32), persistent=False)

    def forward(self, pixels: Tensor, dtype: torch.dtype) -> Tensor:
        return pixels.to(dtype) * self.scale.to(dtype) + self.shift.to(dtype)


def resampled(cells: Tensor, grid: int) -> Tensor:
    """A square table of vectors, `(cells, d_model)` row by row, for a grid of another side: bicubic interpolation, as
    ViT reads pictures of other sizes than it was trained on (Dosovitskiy et al. 2021, 3.2)."""
    side = math.isqrt(cells.shape[0])
    if side == grid:
        return cells
    square = cells.float().view(1, side, side, -1).permute(0, 3, 1, 2)  # (1, d_model, row, column)
    found = F.interpolate(square, (grid, grid), mode="bicubic", align_corners=False, antialias=True)
    return found.flatten(2).squeeze(0).mT.to(cells.dtype)


@register("patches")
class PatchStem(Stem):
    """The input of a Vision Transformer (Dosovitskiy et al. 2021, eq. 1): `z_0 = [x_class; x_1 E; …; x_N E] + E_pos`,
    where `x_i` is a patch of `size` x `size` pixels, row by row, laid out as one vector.

    A source is a sequence of scanlines `(height, 3 width)` of bytes. `E_pos` is a learnt table, interpolated for a
    grid of another side than it was made for, or sines and cosines, half of the width of the row and half of the column
    (as Beyer et al. 2022 take them). The class token comes first.
    """

    steady = True

    def __init__(self, settings: Any, elements: Elements, d_model: int, dropout: float) -> None:
        super().__init__(settings, elements, d_model, dropout)
        self.size, self.colours = settings.size, Colours(settings.colours)
        self.patches = nn.Linear(3 * self.size**2, d_model)
        nn.init.xavier_uniform_(self.patches.weight)
        nn.init.zeros_(self.patches.bias)
        self.class_token = nn.Parameter(torch.empty(d_model).normal_().mul_(0.02)) if settings.class_token else None
        self.table: nn.Embedding | None = None
        self.sines: Sinusoidal | None = None
        if settings.positions == "learned":
            grid = settings.grid or elements.shape[0] // 3 // self.size
            self.table = nn.Embedding(grid**2 + settings.class_token, d_model)
            nn.init.normal_(self.table.weight, std=0.02)
        elif settings.positions == "sine2d":
            self.sines = Sinusoidal(d_model // 2)

    def vectors(self, source: Ragged) -> Ragged:
        side, size = source.longest, self.size
        grid = side // size
        # (pictures, row, pixel row, column, pixel column and colour), then both of a patch side by side
        bytes_ = source.values.view(-1, grid, size, grid, 3 * size).transpose(2, 3)
        x = self._embedded(bytes_.reshape(-1, grid**2, 3 * size**2))  # (pictures, cells, d_model)
        first: Tensor | None = self.class_token
        if (where := self._positions(grid, x.device)) is not None:
            first, where = (None, where) if first is None else (first + where[0], where[1:])
            x = x + where
        if first is not None:
            x = torch.cat((first.expand(x.shape[0], 1, -1), x), dim=1)
        return source.even(x.flatten(0, 1), x.shape[1])

    def _embedded(self, pixels: Tensor) -> Tensor:
        """`E` times the colours of each patch, of its bytes."""
        if type(self.patches) is not nn.Linear:  # one that is adapted, or laid out to decode with
            kind = self.patches.bias.dtype
            return self.patches(self.colours(pixels.unflatten(-1, (-1, 3)), kind).flatten(-2))
        weight, bias = self._of_bytes()
        return F.linear(pixels.to(autocast_dtype(weight)) - MIDDLE, weight, bias)

    def _of_bytes(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of patches whose bytes, less `MIDDLE`, are as they come: half precision holds such exactly,
        and nothing goes over all pixels to scale them."""
        linear, each = self.patches, self.size**2
        scale, shift = (part.repeat(each) for part in (self.colours.scale, self.colours.shift))
        middle = (shift + MIDDLE * scale).to(linear.weight.dtype)  # nearly 0, and so not of rounded numbers
        return linear.weight * scale.to(linear.weight.dtype), linear.bias + linear.weight @ middle

    def _positions(self, grid: int, device: torch.device) -> Tensor | None:
        """`(cells, d_model)`, that of the class token first, if there is one."""
        first = 0 if self.class_token is None else 1
        if self.table is not None:
            table = self.table.weight
            if table.shape[0] == grid**2 + first:
                return table
            return torch.cat((table[:first], resampled(table[first:], grid)))
        if self.sines is None:
            return None
        each = self.sines(torch.arange(grid, device=device))  # (grid, d_model / 2)
        rows, columns = each[:, None].expand(-1, grid, -1), each.expand(grid, -1, -1)
        return F.pad(torch.cat((rows, columns), dim=-1).flatten(0, 1), (0, 0, first, 0))


class Block(nn.Module):
    """He et al. 2016, eq. 1 and 2: `y = relu(F(x) + x)`, `x` projected where the shape changes. `F` is two convolutions
    of 3 x 3, or, in a bottleneck, one of 3 x 3 between two of 1 x 1 that narrow and widen (figure 5).

    In a bottleneck the 3 x 3 convolution has the stride, as in torchvision and unlike in the paper. Names are those of
    torchvision.
    """

    def __init__(self, before: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        after = width * (4 if bottleneck else 1)
        steps = [(before, width, 1, 1), (width, width, 3, stride), (width, after, 1, 1)]
        steps = steps if bottleneck else [(before, width, 3, stride), (width, width, 3, 1)]
        self.steps = len(steps)
        for number, step in enumerate(steps, 1):
            setattr(self, f"conv{number}", convolution(*step))
            setattr(self, f"bn{number}", BatchNorm(step[1]))
        same = stride == 1 and before == after
        self.downsample = None if same else nn.Sequential(convolution(before, after, 1, stride), BatchNorm(after))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number in range(1, self.steps + 1):
            y = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(y))
            y = F.relu(y) if number < self.steps else y
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def convolution(before: int, after: int, size: int, stride: int) -> nn.Conv2d:
    """Without a bias, which the norm behind it has; weights are drawn as in He et al. 2015."""
    made = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return made


BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


@register("resnet")
class ResNetStem(Stem):
    """A residual network (He et al. 2016, table 1) without its pooling and classifier: the cells of its last grid, row
    by row, each projected to `d_model` and normed."""

    steady = True

    def __init__(self, settings: Any, elements: Elements, d_model: int, dropout: float) -> None:
        super().__init__(settings, elements, d_model, dropout)
        self.small, self.colours = settings.small, Colours(settings.colours)
        width, bottleneck = settings.channels, settings.depth == 50
        self.conv1 = convolution(3, width, 3, 1) if self.small else convolution(3, width, 7, 2)
        self.bn1 = BatchNorm(width)
        before = width
        for number, count in enumerate(BLOCKS[settings.depth]):
            own, blocks = width * 2**number, []
            for i in range(count):
                blocks.append(Block(before, own, 2 if number and i == 0 else 1, bottleneck=bottleneck))
                before = own * (4 if bottleneck else 1)
            setattr(self, f"layer{number + 1}", nn.Sequential(*blocks))
        self.project = nn.Conv2d(before, d_model, 1)
        self.norm = nn.LayerNorm(d_model)

    def vectors(self, source: Ragged) -> Ragged:
        pixels = source.values.view(source.rows, source.longest, -1, 3)
        x = self.colours(pixels, self.conv1.weight.dtype).permute(0, 3, 1, 2)  # (rows, colours, height, width)
        # A GPU convolves fastest with colours side by side, as they come. On a CPU torch 2.13 then writes past the end
        # of what it has for 4 channels, when it goes back.
        x = x if x.is_cuda else x.contiguous()
        x = F.relu(self.bn1(self.conv1(x)))
        x = x if self.small else F.max_pool2d(x, 3, stride=2, padding=1)
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        grid = self.project(x).flatten(2).mT  # (rows, cells, d_model)
        return source.even(self.norm(grid.flatten(0, 1)), grid.shape[1])


@register("frames")
class FrameStem(Stem):
    """A stem for pictures over each frame of a video, whose cells stay or become one vector (their mean, as Venugopalan
    et al. 2015 take it over frames, or their class token). The body above relates frames in time.

    A source is a sequence of frames `(frames, 3 height width)` of bytes.
    """

    def __init__(self, settings: Any, elements: Elements, d_model: int, dropout: float) -> None:
        super().__init__(settings, elements, d_model, dropout)
        self.side, self.pool = math.isqrt(elements.shape[0] // 3), settings.pool
        inner = settings.picture
        self.first = int(inner.has_whole)
        self.picture: Stem = STEMS.get(inner.kind)(inner, Elements(shape=(3 * self.side,)), d_model, 0.0)

    def vectors(self, source: Ragged) -> Ragged:
        total, side = source.values.shape[0], self.side
        offsets = side * torch.arange(total + 1, dtype=torch.int32, device=source.offsets.device)
        x = self.picture.vectors(Ragged(source.values.view(total * side, 3 * side), offsets, side))
        cells = x.values.view(total, x.longest, -1)
        if self.pool == "none":
            return Ragged(x.values, source.offsets * x.longest, source.longest * x.longest)
        return source.like(cells[:, 0] if self.pool == "class" else cells[:, self.first :].mean(1))
