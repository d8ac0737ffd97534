"""Clips of moving shapes: captions that say what is to be seen, and boxes that follow it."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from regard.data.synthetic import clips as corpus
from regard.data.synthetic.clips import Actor, Clip, clips
from regard.data.synthetic.corpus import SPLITS
from regard.data.synthetic.scenes import BACKGROUNDS, COLOURS, SHAPES, Box, mask
from regard.errors import OutputError


@cache
def sample() -> tuple[Clip, ...]:
    return tuple(clips(300))


def drawn(clip: Clip) -> np.ndarray:
    """Which pixels are not background, (frames, height, width)."""
    return np.abs(clip.render().astype(int) - BACKGROUNDS[clip.background]).max(-1) > 3


def told(tracks: list[tuple[list[Box | None], list[str]]], shapes: list[str]) -> str:
    """A caption, made anew from where each thing is and which colour it has in each frame."""
    parts = []
    for (boxes, colours), shape in zip(tracks, shapes, strict=True):
        seen = [box for box in boxes if box is not None]
        right, down = seen[-1][0] - seen[0][0], seen[-1][1] - seen[0][1]
        if boxes[-1] is None:
            does = "vanishes"
        elif boxes[0] is None:
            does = "appears"
        elif colours[0] != colours[-1]:
            does = f"turns {colours[-1]}"
        elif right or down:
            does = f"moves {('right' if right > 0 else 'left') if right else ('down' if down > 0 else 'up')}"
        else:
            does = "stays"
        parts.append((sum(seen[0]), f"the {colours[0]} {shape} {does}"))
    return " and ".join(part for _, part in sorted(parts))


def test_the_caption_says_what_is_to_be_seen() -> None:
    for clip in sample():
        tracks = []
        for actor in reversed(clip.actors):
            boxes = [actor.box(frame, clip.frames) for frame in range(clip.frames)]
            tracks.append((boxes, [actor.colour_at(frame) for frame in range(clip.frames)]))
        assert told(tracks, [actor.shape for actor in reversed(clip.actors)]) == clip.caption
        ways = [words[4] for words in (x.split() for x in clip.caption.split(" and ")) if words[3] == "moves"]
        assert clip.label == (ways[0] if len(ways) == 1 else "both" if ways else "none")


def test_boxes_follow_things_and_their_colours() -> None:
    for clip in sample():
        pixels, shown, words = clip.render().astype(int), drawn(clip), clip.caption.split()
        for first, last, frame, (x0, y0, x1, y1) in clip.boxes:
            inside = shown[frame, y0:y1, x0:x1]
            assert inside[0].any()
            assert inside[-1].any()
            assert inside[:, 0].any()
            assert inside[:, -1].any()
            if first == last:  # the colour that a thing has turned
                seen = np.abs(pixels[frame, y0:y1, x0:x1] - COLOURS[words[first]]).max(-1) <= 3
                assert seen.sum() > 0.15 * (x1 - x0) ** 2
            else:
                assert words[first] in COLOURS
                assert words[last] in SHAPES
            shown[frame, y0:y1, x0:x1] &= False if first == last else inside
        for _, _, frame, (x0, y0, x1, y1) in clip.boxes:
            shown[frame, y0:y1, x0:x1] = False
        assert not shown.any()  # nothing else is there


def test_nothing_is_a_close_call() -> None:
    for clip in sample():
        for actor in clip.actors:
            assert min(actor.swept) >= 1
            assert max(actor.swept) <= 31
            far = max(abs(a - b) for a, b in zip(actor.first, actor.last, strict=True))
            assert far >= 8 if actor.action == "moves" else far == 0
            if actor.action in ("turns", "vanishes", "appears"):
                assert 2 <= actor.when <= clip.frames - 2
        for one, other in combinations(clip.actors, 2):
            assert abs(sum(one.first) - sum(other.first)) >= 6
            (a, b, c, d), (e, f, g, h) = one.swept, other.swept
            assert max(a - g, e - c, b - h, f - d) >= 1
            assert (one.colour, one.shape) != (other.colour, other.shape)


def test_actions_and_ways_are_balanced() -> None:
    actors = [actor for clip in sample() for actor in clip.actors]
    actions = Counter(actor.action for actor in actors)
    assert actions["moves"] / len(actors) == pytest.approx(4 / 9, abs=0.07)
    assert set(actions) == set(corpus.ACTIONS)
    ways = Counter(actor.to for actor in actors if actor.action == "moves")
    assert set(ways) == set(corpus.DIRECTIONS)
    assert min(ways.values()) > 0.15 * actions["moves"]
    assert {clip.label for clip in sample()} == {*corpus.DIRECTIONS, "none", "both"}


@pytest.mark.parametrize("size", [10, 11, 12])
def test_shapes_differ_in_many_pixels(size: int) -> None:
    for one, other in combinations([mask(shape, size) / 255 for shape in SHAPES], 2):
        assert np.abs(one - other).sum() > 0.1 * size**2


def test_same_arguments_same_clips_and_splits_apart() -> None:
    assert [clip.caption for clip in clips(3)] == [
        "the yellow ring appears",
        "the yellow triangle moves down",
        "the red star moves right",
    ]
    assert list(clips(20)) == list(clips(30))[:20]
    assert np.array_equal(sample()[0].render(), next(clips(1)).render())
    found = {split: {x.actors for seed in (1, 2) for x in clips(20, split=split, seed=seed)} for split in SPLITS}
    assert all(len(some) == 40 for some in found.values())
    assert all(not found[one] & found[other] for one, other in combinations(found, 2))


def test_a_clip_by_hand() -> None:
    ring = Actor("red", "ring", "moves", (2, 2, 12, 12), (9, 2, 19, 12), "right")
    star = Actor("blue", "star", "turns", (4, 20, 14, 30), (4, 20, 14, 30), "white", 3)
    clip = Clip((ring, star), 0, 32, 8)
    assert clip.caption == "the red ring moves right and the blue star turns white"
    assert clip.label == "right"
    assert [box for first, _, _, box in clip.boxes if first == 1] == [(2 + i, 2, 12 + i, 12) for i in range(8)]
    assert [frame for first, last, frame, _ in clip.boxes if (first, last) == (7, 8)] == list(range(8))
    assert [frame for first, last, frame, _ in clip.boxes if (first, last) == (10, 10)] == list(range(3, 8))
    back = Actor("red", "ring", "moves", (9, 2, 19, 12), (2, 2, 12, 12), "left")
    assert [back.box(frame, 8) for frame in range(8)] == [ring.box(7 - frame, 8) for frame in range(8)]


def test_write(tmp_path: Path) -> None:
    for name in ("one", "two"):
        corpus.write(tmp_path / name, train=4, valid=2, test=2)
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert all((tmp_path / "one" / x).read_bytes() == (tmp_path / "two" / x).read_bytes() for x in files)
    records = [json.loads(line) for line in (tmp_path / "one" / "train.jsonl").read_text().splitlines()]
    for record, clip in zip(records, clips(4), strict=True):
        with np.load(tmp_path / "one" / record["source"]) as file:
            assert np.array_equal(file["frames"], clip.render())
        assert (record["target"], record["label"]) == (clip.caption, clip.label)
        assert (record["width"], record["height"], record["frames"]) == (32, 32, 8)
        assert record["boxes"] == [[first, last, frame, *box] for first, last, frame, box in clip.boxes]
    with pytest.raises(OutputError, match="clips exists; give another folder"):
        corpus.write(tmp_path / "one", train=1, valid=1, test=1)
    with pytest.raises(ValueError, match=r"picture \(16\) is too small to tell shapes apart; try 32 pixels or more"):
        clips(1, picture=16)
    with pytest.raises(ValueError, match=r"frames \(3\) are too few to tell what happens; try 5 or more"):
        clips(1, frames=3)
