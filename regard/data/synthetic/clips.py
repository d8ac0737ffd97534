"""Clips of moving shapes: eight frames of one or two things, a caption that says what each of them does, and where each
is in every frame.

"the red circle moves left and the blue square stays": a thing moves (left, right, up or down, by a quarter of the
picture or more), stays, turns another colour, vanishes or appears. The caption is a function of the clip:

- Things differ in colour or shape. The one nearer to the upper left corner is named first (by x + y of its centre when
  it is first seen), which is never a close call.
- A thing that moves does so from the first frame to the last, at one speed; a change comes at once, neither in the
  first nor in the last two frames. Things never touch.

The `label` of a clip is the direction of the one thing that moves: left, right, up or down; none if nothing moves, both
if two things do.

As with `scenes`, the corpus depends on its arguments alone, which split a clip belongs to is decided by a hash of what
it shows, so splits share no clip, and no clip occurs twice in a split.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.synthetic.corpus import SPLITS, check_split, write_splits
from regard.data.synthetic.scenes import BACKGROUNDS, COLOURS, NOISE, SHAPES, Box, mask, offset
from regard.errors import OutputError, require

DIRECTIONS: dict[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
ACTIONS = ("moves", "stays", "turns", "vanishes", "appears")

# In 32nds of the picture: sides of things, how far they move, the border, the gap between things, and how much nearer
# to the corner the one is that is named first.
_SIDES, _TRAVEL, _BORDER, _GAP, _MARGIN = (10, 12), (8, 14), 1, 1, 3
_HOW_MANY = (1, 2, 2)
_ACTIONS = ("moves", "moves", "moves", "moves", "stays", "stays", "turns", "vanishes", "appears")
_SMALLEST, _FEWEST = 32, 5
_AFRESH = 0.2

Draw = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Actor:
    """A thing and what it does."""

    colour: str
    shape: str
    action: str
    first: Box  # where it is in the first frame
    last: Box  # and in the last
    to: str = ""  # a direction, or another colour
    when: int = 0  # the frame of a change, from 0

    @property
    def swept(self) -> Box:
        """What it covers in all frames together."""
        return (
            min(self.first[0], self.last[0]), min(self.first[1], self.last[1]),
            max(self.first[2], self.last[2]), max(self.first[3], self.last[3]),
        )  # fmt: skip

    def box(self, frame: int, frames: int) -> Box | None:
        """Where it is; None while it is not there."""
        if (self.action == "vanishes" and frame >= self.when) or (self.action == "appears" and frame < self.when):
            return None
        right, down = self.last[0] - self.first[0], self.last[1] - self.first[1]
        x, y = ((2 * way * frame + frames - 1) // (2 * (frames - 1)) for way in (right, down))  # rounded
        return self.first[0] + x, self.first[1] + y, self.first[2] + x, self.first[3] + y

    def colour_at(self, frame: int) -> str:
        return self.to if self.action == "turns" and frame >= self.when else self.colour

    @property
    def words(self) -> list[str]:
        return ["the", self.colour, self.shape, self.action, *([self.to] if self.to else [])]


@dataclass(frozen=True, slots=True)
class Clip:
    """Actors in the order they are named, on one of `BACKGROUNDS`, in `frames` of `side` by `side` pixels."""

    actors: tuple[Actor, ...]
    background: int
    side: int
    frames: int

    @property
    def caption(self) -> str:
        return " and ".join(" ".join(actor.words) for actor in self.actors)

    @property
    def label(self) -> str:
        """Which way the one thing goes that moves; `none` or `both` where it is not one."""
        moving = [actor.to for actor in self.actors if actor.action == "moves"]
        return moving[0] if len(moving) == 1 else "both" if moving else "none"

    @property
    def boxes(self) -> tuple[tuple[int, int, int, Box], ...]:
        """For each thing and each frame in which it is seen: the first and the last of the words that describe it (from
        0), the frame (from 0) and its box. The colour that a thing turns describes it from then on."""
        found, at = [], 0
        for actor in self.actors:
            for frame in range(self.frames):
                if (box := actor.box(frame, self.frames)) is not None:
                    found.append((at + 1, at + 2, frame, box))
                    if actor.colour_at(frame) != actor.colour:
                        found.append((at + 4, at + 4, frame, box))
            at += len(actor.words) + 1
        return tuple(found)

    def render(self) -> NDArray[np.uint8]:
        """The frames, (frames, height, width, 3)."""
        pixels = np.full((self.frames, self.side, self.side, 3), BACKGROUNDS[self.background], dtype=np.int32)
        for frame, actor in ((frame, actor) for frame in range(self.frames) for actor in self.actors):
            if (box := actor.box(frame, self.frames)) is not None:
                x0, y0, x1, y1 = box
                patch = pixels[frame, y0:y1, x0:x1]
                patch += ((np.array(COLOURS[actor.colour_at(frame)]) - patch) * mask(actor.shape, x1 - x0) + 127) // 255
        # A hash is a source of noise that stays the same in all versions of Python and NumPy.
        size = self.frames * self.side**2
        noise = hashlib.shake_128(f"{self.background} {_layout(self.actors)}".encode()).digest(size)
        pixels += np.frombuffer(noise, np.uint8).reshape(*pixels.shape[:3], 1) % (2 * NOISE + 1)
        return (pixels - NOISE).astype(np.uint8)


def clips(size: int, *, split: str = "train", picture: int = 32, frames: int = 8, seed: int = 1) -> Iterator[Clip]:
    """Yield `size` clips of so many `frames` of `picture` by `picture` pixels. A larger `size` continues a smaller one.

    A third of them have one thing, the others two; four of nine things move.
    """
    check_split(size, split, "the clips have", "clips")
    if picture < _SMALLEST:
        raise ValueError(f"picture ({picture}) is too small to tell shapes apart; try {_SMALLEST} pixels or more")
    if frames < _FEWEST:
        raise ValueError(f"frames ({frames}) are too few to tell what happens; try {_FEWEST} or more")
    return _clips(size, split, picture, frames, seed)


def write(
    folder: Path, *, train: int = 12000, valid: int = 300, test: int = 500, picture: int = 32, frames: int = 8,
    seed: int = 1, progress: Callable[[int], None] | None = None,
) -> dict[str, Path]:  # fmt: skip
    """Write `train.jsonl`, `valid.jsonl`, `test.jsonl` and their clips into `folder`; returns where each split is.

    A line has the clip's path from `folder` as `source`, the caption as `target`, the `label`, `boxes` as lists of
    first word, last word, frame, x0, y0, x1, y1, and the `width`, the `height` and the number of `frames`. A clip is an
    .npz file with an array `frames` of bytes, (frames, height, width, 3). A .jsonl file appears when it and its clips
    are complete; nothing that is there is replaced. `progress` is called now and then with the number of clips so far,
    of all splits together.
    """
    require("PIL")
    sizes = {"train": train, "valid": valid, "test": test}
    drawn = {
        split: clips(size, split=split, picture=picture, frames=frames, seed=seed) for split, size in sizes.items()
    }
    if (folder / "clips").exists():
        raise OutputError(f"{folder / 'clips'} exists; give another folder")
    return write_splits(folder, "jsonl", {split: _lines(folder, split, drawn[split]) for split in drawn}, progress)


def _lines(folder: Path, split: str, clips: Iterator[Clip]) -> Iterator[str]:
    """The records of clips, whose frames are written before."""
    (folder / "clips" / split).mkdir(parents=True)
    for number, clip in enumerate(clips, 1):
        source = f"clips/{split}/{number:06d}.npz"
        np.savez_compressed(folder / source, frames=clip.render())
        boxes = [[first, last, frame, *box] for first, last, frame, box in clip.boxes]
        size = {"width": clip.side, "height": clip.side, "frames": clip.frames}
        yield json.dumps({"source": source, "target": clip.caption, "label": clip.label, "boxes": boxes, **size})


def _clips(size: int, split: str, picture: int, frames: int, seed: int) -> Iterator[Clip]:
    # `random()` is the one method whose sequence Python promises not to change.
    draw = random.Random(f"clips {picture} {frames} {seed}").random
    owned = SPLITS[split]
    seen: set[bytes] = set()
    while len(seen) < size:
        background = int(draw() * len(BACKGROUNDS))
        actors = _actors(draw, picture, frames)
        digest = hashlib.blake2b(_layout(actors).encode(), digest_size=16).digest()
        if digest[0] % 8 in owned and digest not in seen:
            seen.add(digest)
            yield Clip(actors, background, picture, frames)


def _actors(draw: Draw, picture: int, frames: int) -> tuple[Actor, ...]:
    """Things that differ, whose ways do not cross, in the order they are named."""
    count = _HOW_MANY[int(draw() * len(_HOW_MANY))]
    roles: list[tuple[str, str, str, str, int]] = []
    while len(roles) < count:
        role = _role(draw, frames)
        if all(role[:2] != other[:2] for other in roles):
            roles.append(role)
    # Only the places are drawn again, or things that move, which need room, would become rare.
    actors: list[Actor] = []
    while len(actors) < count:
        actor = _placed(roles[len(actors)], draw, picture)
        if all(_clear(actor, other, picture) for other in actors):
            actors.append(actor)
        elif draw() < _AFRESH:  # where the first one is, there may be no room for the second
            actors.clear()
    return tuple(sorted(actors, key=lambda actor: sum(actor.first)))


def _role(draw: Draw, frames: int) -> tuple[str, str, str, str, int]:
    """Colour, shape, action, direction or new colour, and the frame of a change."""
    colours, ways = tuple(COLOURS), tuple(DIRECTIONS)
    colour, shape = colours[int(draw() * len(colours))], SHAPES[int(draw() * len(SHAPES))]
    action, to, when = _ACTIONS[int(draw() * len(_ACTIONS))], "", 0
    if action == "moves":
        to = ways[int(draw() * len(ways))]
    elif action == "turns":
        others = [other for other in colours if other != colour]
        to = others[int(draw() * len(others))]
    if action in ("turns", "vanishes", "appears"):
        when = 2 + int(draw() * (frames - 3))
    return colour, shape, action, to, when


def _placed(role: tuple[str, str, str, str, int], draw: Draw, picture: int) -> Actor:
    """A thing somewhere in the picture, its way all in it."""
    colour, shape, action, to, when = role
    border, side = _scaled(_BORDER, picture), _between(_SIDES, draw, picture)
    right, down = DIRECTIONS[to] if action == "moves" else (0, 0)
    travel = _between(_TRAVEL, draw, picture)
    # The corner of what it sweeps, and from there its first and its last place.
    width, height = side + abs(right) * travel, side + abs(down) * travel
    x, y = (border + int(draw() * (picture - 2 * border - extent + 1)) for extent in (width, height))
    x0, y0 = x + travel * (right < 0), y + travel * (down < 0)
    x1, y1 = x0 + right * travel, y0 + down * travel
    return Actor(colour, shape, action, (x0, y0, x0 + side, y0 + side), (x1, y1, x1 + side, y1 + side), to, when)


def _clear(one: Actor, other: Actor, picture: int) -> bool:
    """Whether their ways are apart, and it is plain which of them is named first."""
    (a0, b0, a1, b1), (c0, d0, c1, d1) = one.swept, other.swept
    apart = max(a0 - c1, c0 - a1, b0 - d1, d0 - b1) >= _scaled(_GAP, picture)
    return apart and abs(sum(offset(one.first, other.first))) >= 2 * _scaled(_MARGIN, picture)


def _between(limits: tuple[int, int], draw: Draw, picture: int) -> int:
    low, high = (_scaled(limit, picture) for limit in limits)
    return low + int(draw() * (high - low + 1))


@lru_cache(maxsize=128)
def _scaled(parts: int, picture: int) -> int:
    """32nds of a picture's side in pixels."""
    return round(parts * picture / 32)


def _layout(actors: tuple[Actor, ...]) -> str:
    return "; ".join(map(str, actors))
