"""The scenes corpus: drawn pictures of simple shapes, with their caption and the box of each thing it names.

A scene has one to three things on a plain background, each of a size, a colour and a shape, no two alike. Its caption
is a function of the picture, so that an exact match means something:

- Big things are named before small ones, and those of one size from the upper left corner on: by x + y of their
  centres, which names the left or the upper thing of any two first.
- The first thing is related to each of the others along the axis on which their centres are further apart: "left of",
  "right of", "above" or "below". Things keep a gap on that axis, and the distances on the two axes differ by an eighth
  of the picture, so neither the order nor a relation is ever a close call.
- "a big red ring"; "a big red ring below a small blue star"; "a big red ring below a small blue star and right of a
  small white cross"; and where both relations are the same, "a big red ring below both a small blue star and a small
  white cross".

That makes 23 words, captions of 4 to 17 of them, and about two million captions.

The corpus depends on its arguments alone: the same ones give the same captions, boxes and (from one version of Pillow)
pixels. Which split a scene belongs to is decided by a hash of its things and their boxes, so train, valid and test
share no layout, whatever their sizes and seeds; and no layout occurs twice in a split. Nothing else is held out: a
caption, above all a short one, may occur in several splits, with other pictures.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from regard.data.synthetic.corpus import SPLITS as SPLITS
from regard.data.synthetic.corpus import check_split, write_splits
from regard.errors import OutputError, require

Box = tuple[int, int, int, int]

# Shortest and longest side of a thing, in 64ths of the picture.
SIZES: dict[str, tuple[int, int]] = {"big": (20, 23), "small": (12, 14)}
# Far enough from 0 and 255 for the noise.
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 36, 36), "green": (24, 146, 52), "blue": (34, 74, 222), "yellow": (246, 216, 36),
    "purple": (146, 44, 168), "black": (20, 20, 20), "white": (246, 246, 246),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
BACKGROUNDS = ((150, 150, 146), (170, 158, 138), (126, 144, 160), (138, 154, 132), (162, 140, 148))

KINDS = tuple(product(SIZES, COLOURS, SHAPES))
_HOW_MANY = (1, 2, 2, 3, 3, 3)
# In 64ths of the picture: the border, the gap between things, and how much further they are apart on one axis.
_BORDER, _GAP, _MARGIN = 1, 3, 8
NOISE = 3
_SMALLEST = 48
_SUPERSAMPLING = 4


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape, and the pixels it fills: x from box[0] and y from box[1], up to but not including box[2] and box[3]."""

    size: str
    colour: str
    shape: str
    box: Box


@dataclass(frozen=True, slots=True)
class Scene:
    """Things in the order they are named, on one of `BACKGROUNDS`, in a picture of `side` by `side` pixels."""

    things: tuple[Thing, ...]
    background: int
    side: int

    @property
    def caption(self) -> str:
        return " ".join(chain.from_iterable(self._phrases()))

    @property
    def boxes(self) -> tuple[tuple[int, int, Box], ...]:
        """For each thing, the first and the last of the words that describe it (from 0) and its box."""
        found = []
        things, at = iter(self.things), 0
        for phrase in self._phrases():
            if phrase[0] == "a":
                found.append((at + 1, at + len(phrase) - 1, next(things).box))
            at += len(phrase)
        return tuple(found)

    def render(self) -> npt.NDArray[np.uint8]:
        """The picture, (height, width, 3)."""
        pixels = np.full((self.side, self.side, 3), BACKGROUNDS[self.background], dtype=np.int32)
        for thing in self.things:
            x0, y0, x1, y1 = thing.box
            patch = pixels[y0:y1, x0:x1]
            patch += ((np.array(COLOURS[thing.colour]) - patch) * mask(thing.shape, x1 - x0) + 127) // 255
        # A hash is a source of noise that stays the same in all versions of Python and NumPy.
        noise = hashlib.shake_128(f"{self.background} {layout(self.things)}".encode()).digest(self.side**2)
        pixels += np.frombuffer(noise, np.uint8).reshape(self.side, self.side, 1) % (2 * NOISE + 1)
        return (pixels - NOISE).astype(np.uint8)

    def _phrases(self) -> list[list[str]]:
        relations = [relation(self.things[0].box, thing.box).split() for thing in self.things[1:]]
        match [["a", thing.size, thing.colour, thing.shape] for thing in self.things]:
            case [only]:
                return [only]
            case [first, second]:
                return [first, relations[0], second]
            case [first, second, third] if relations[0] == relations[1]:
                return [first, relations[0], ["both"], second, ["and"], third]
            case [first, second, third]:
                return [first, relations[0], second, ["and"], relations[1], third]
            case _:
                raise ValueError(f"a scene of {len(self.things)} things has no caption; give it 1 to 3")


def relation(one: Box, other: Box) -> str:
    """Where `one` is as seen from `other`."""
    right, down = offset(one, other)
    if abs(right) > abs(down):
        return "left of" if right > 0 else "right of"
    return "above" if down > 0 else "below"


def scenes(size: int, *, split: str = "train", picture: int = 64, seed: int = 1) -> Iterator[Scene]:
    """Yield `size` scenes of `picture` by `picture` pixels. A larger `size` continues a smaller one.

    A sixth of them have one thing, a third two and half of them three.
    """
    check_split(size, split, "the scenes have", "scenes")
    check_picture(picture)
    return _scenes(size, split, picture, seed)


def labelled(size: int, *, split: str = "train", picture: int = 64, seed: int = 1) -> Iterator[Scene]:
    """Yield `size` scenes with one big thing, which is named first, and any number of small ones."""
    check_split(size, split, "the scenes have", "scenes")
    check_picture(picture)
    found = _scenes(sys.maxsize, split, picture, seed)
    return islice((scene for scene in found if [thing.size for thing in scene.things].count("big") == 1), size)


def check_picture(picture: int) -> None:
    """A ValueError if pictures of so many pixels a side are too small."""
    if picture < _SMALLEST:
        raise ValueError(f"picture ({picture}) is too small to tell shapes apart; try {_SMALLEST} pixels or more")


def write(
    folder: Path, *, train: int = 6000, valid: int = 300, test: int = 300, picture: int = 64, seed: int = 1,
    labels: bool = False, progress: Callable[[int], None] | None = None,
) -> dict[str, Path]:  # fmt: skip
    """Write `train.jsonl`, `valid.jsonl`, `test.jsonl` and their pictures into `folder`; returns where each split is.

    A line has the picture's path from `folder` as `source`, the caption as `target`, `boxes` as lists of first word,
    last word, x0, y0, x1, y1, and the picture's `width` and `height`. With `labels` every scene has one big thing, and
    the target is its colour and shape. A .jsonl file appears when it and its pictures are complete; nothing that is
    there is replaced. `progress` is called now and then with the number of scenes so far, of all splits together.
    """
    require("PIL")
    sizes, draw = {"train": train, "valid": valid, "test": test}, labelled if labels else scenes
    drawn = {split: draw(size, split=split, picture=picture, seed=seed) for split, size in sizes.items()}
    if (folder / "pictures").exists():
        raise OutputError(f"{folder / 'pictures'} exists; give another folder")
    lines = {split: _lines(folder, split, drawn[split], labels=labels) for split in drawn}
    return write_splits(folder, "jsonl", lines, progress)


def _lines(folder: Path, split: str, scenes: Iterator[Scene], *, labels: bool) -> Iterator[str]:
    """The records of scenes, whose pictures are written before."""
    (folder / "pictures" / split).mkdir(parents=True)
    for number, scene in enumerate(scenes, 1):
        source = f"pictures/{split}/{number:06d}.png"
        (folder / source).write_bytes(png(scene.render()))
        target, boxes = scene.caption, [[first, last, *box] for first, last, box in scene.boxes]
        if labels:
            big = scene.things[0]
            target, boxes = f"{big.colour} {big.shape}", [[0, 1, *big.box]]
        size = {"width": scene.side, "height": scene.side}
        yield json.dumps({"source": source, "target": target, "boxes": boxes, **size})


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """`(height, width, 3)` as the content of a PNG file, as simple as can be (RFC 2083): Pillow tries five filters on
    each row, and takes twice as long."""
    height, width, colours = pixels.shape
    rows = np.zeros((height, 1 + width * colours), np.uint8)  # of which each begins with its filter, none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits of red, green and blue
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def _scenes(size: int, split: str, picture: int, seed: int) -> Iterator[Scene]:
    # `random()` is the one method whose sequence Python promises not to change.
    draw = random.Random(f"scenes {picture} {seed}").random
    owned = SPLITS[split]
    seen: set[bytes] = set()
    while len(seen) < size:
        background = int(draw() * len(BACKGROUNDS))
        things = _things(draw, picture)
        digest = hashlib.blake2b(layout(things).encode(), digest_size=16).digest()
        if digest[0] % 8 in owned and digest not in seen:
            seen.add(digest)
            yield Scene(things, background, picture)


def _things(draw: Callable[[], float], picture: int) -> tuple[Thing, ...]:
    """Things that differ, in places that leave no doubt about their caption, in the order they are named."""
    count = _HOW_MANY[int(draw() * len(_HOW_MANY))]
    kinds: list[tuple[str, str, str]] = []
    while len(kinds) < count:
        kind = KINDS[int(draw() * len(KINDS))]
        if kind not in kinds:
            kinds.append(kind)
    # Only the places are drawn again, or big things, which fit less often, would become rare.
    boxes: list[Box] = []
    while len(boxes) < count:
        box = draw_box(draw, kinds[len(boxes)][0], picture)
        if all(_clear(box, other, picture) for other in boxes):
            boxes.append(box)
        else:
            boxes.clear()
    things = [Thing(*kind, box) for kind, box in zip(kinds, boxes, strict=True)]
    return tuple(sorted(things, key=lambda thing: (thing.size != "big", sum(thing.box))))


def draw_box(draw: Callable[[], float], size: str, picture: int) -> Box:
    """A place for a thing of this size in a picture of so many pixels a side."""
    low, high = (scaled(sixtyfourths, picture) for sixtyfourths in SIZES[size])
    side = low + int(draw() * (high - low + 1))
    border = scaled(_BORDER, picture)
    x, y = (border + int(draw() * (picture - 2 * border - side + 1)) for _ in range(2))
    return x, y, x + side, y + side


def _clear(one: Box, other: Box, picture: int) -> bool:
    """Whether the two are well apart on one axis, and it is plain on which."""
    right, down = map(abs, offset(one, other))
    reach = one[2] - one[0] + other[2] - other[0]
    return max(right, down) >= reach + 2 * scaled(_GAP, picture) and abs(right - down) >= 2 * scaled(_MARGIN, picture)


def offset(one: Box, other: Box) -> tuple[int, int]:
    """From the centre of `one` to that of `other`, right and down, in half pixels."""
    return other[0] + other[2] - one[0] - one[2], other[1] + other[3] - one[1] - one[3]


@lru_cache(maxsize=128)
def scaled(sixtyfourths: int, picture: int) -> int:
    """64ths of a picture's side in pixels."""
    return round(sixtyfourths * picture / 64)


def layout(things: tuple[Thing, ...]) -> str:
    """All that a picture shows but its background, as a text: what splits are told apart by."""
    return "; ".join(f"{thing.size} {thing.colour} {thing.shape} {thing.box}" for thing in things)


@lru_cache(maxsize=128)
def mask(shape: str, side: int) -> npt.NDArray[np.int32]:
    """How much of each pixel the shape covers, 0 to 255, (side, side, 1). Every shape reaches all four edges."""
    require("PIL")
    from PIL import Image, ImageDraw

    last = side * _SUPERSAMPLING - 1
    image = Image.new("L", (last + 1, last + 1))
    pen = ImageDraw.Draw(image)
    match shape:
        case "circle" | "ring":
            pen.ellipse((0, 0, last, last), fill=255)
            rim = round(0.25 * last)
            if shape == "ring":
                pen.ellipse((rim, rim, last - rim, last - rim), fill=0)
        case "square":
            pen.rectangle((0, 0, last, last), fill=255)
        case "cross":
            near, far = round(0.33 * last), last - round(0.33 * last)
            pen.rectangle((near, 0, far, last), fill=255)
            pen.rectangle((0, near, last, far), fill=255)
        case "triangle":
            pen.polygon([(last / 2, 0), (last, last), (0, last)], fill=255)
        case "star":
            pen.polygon([(last * x, last * y) for x, y in _star()], fill=255)
        case _:
            raise ValueError(f"unknown shape {shape!r}; there are {', '.join(SHAPES)}")
    return np.asarray(image.reduce(_SUPERSAMPLING), dtype=np.int32)[:, :, None]


def _star(inner: float = 0.45) -> list[tuple[float, float]]:
    """The corners of a five-pointed star that fills the unit square."""
    corners = []
    for i in range(10):
        angle, radius = math.pi * i / 5, inner if i % 2 else 1.0
        corners.append((radius * math.sin(angle), -radius * math.cos(angle)))
    width, top, bottom = 2 * math.sin(2 * math.pi / 5), -1.0, math.cos(math.pi / 5)
    return [(x / width + 0.5, (y - top) / (bottom - top)) for x, y in corners]
