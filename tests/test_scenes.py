"""The scenes corpus: reproducible, split apart, clear to the eye, and captioned by one rule."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from regard.data.synthetic import scenes as corpus
from regard.data.synthetic.scenes import Box, Scene, Thing, relation, scenes
from regard.errors import OutputError

DESCRIBING = frozenset((*corpus.SIZES, *corpus.COLOURS, *corpus.SHAPES))
FUNCTION_WORDS = frozenset(("a", "left", "right", "of", "above", "below", "and", "both"))
GOLDEN = [
    "a big black ring left of both a big white circle and a big blue star",
    "a small green circle",
    "a big yellow square above both a big green circle and a small red triangle",
    "a big green square left of both a big red triangle and a small black circle",
    "a big blue circle left of a small green ring and above a small black circle",
    "a big black circle right of a small red ring and above a small red triangle",
]


@cache
def sample() -> tuple[Scene, ...]:
    return tuple(scenes(1500))


def centre(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def side(box: Box) -> int:
    return box[2] - box[0]


def near(picture: npt.NDArray[np.uint8], colour: str) -> npt.NDArray[np.bool_]:
    """The pixels that are of this colour but for the noise."""
    return np.asarray(np.abs(picture.astype(int) - corpus.COLOURS[colour]).max(-1) <= 3)


def differs(picture: npt.NDArray[np.uint8], background: int) -> npt.NDArray[np.bool_]:
    return np.asarray(np.abs(picture.astype(int) - corpus.BACKGROUNDS[background]).max(-1) > 3)


def spelt(named: list[tuple[str, Box]]) -> str:
    """The caption, made anew from what each thing is and its box, whatever their order."""

    def where(one: Box, other: Box) -> str:
        (x, y), (u, v) = centre(one), centre(other)
        horizontal, vertical = ("left of" if x < u else "right of"), ("above" if y < v else "below")
        return horizontal if abs(x - u) > abs(y - v) else vertical

    def before(one: tuple[str, Box], other: tuple[str, Box]) -> bool:
        if one[0].split()[0] != other[0].split()[0]:
            return one[0].startswith("big")
        return where(one[1], other[1]) in ("left of", "above")

    ranks = {thing: sum(before(other, thing) for other in named if other != thing) for thing in named}
    assert sorted(ranks.values()) == list(range(len(named)))
    (first, box), *others = sorted(named, key=ranks.__getitem__)
    relations = [where(box, other) for _, other in others]
    if not others:
        return f"a {first}"
    if len(others) == 1:
        return f"a {first} {relations[0]} a {others[0][0]}"
    if relations[0] == relations[1]:
        return f"a {first} {relations[0]} both a {others[0][0]} and a {others[1][0]}"
    return f"a {first} {relations[0]} a {others[0][0]} and {relations[1]} a {others[1][0]}"


def test_same_arguments_same_captions_and_boxes() -> None:
    assert [scene.caption for scene in scenes(6)] == GOLDEN
    digest = hashlib.sha256()
    for split in corpus.SPLITS:
        for scene in scenes(100, split=split):
            digest.update(f"{scene.caption} {scene.boxes} {scene.background}\n".encode())
    # A change here means that every corpus made before is another one: say so in the changelog.
    assert digest.hexdigest() == "a180cf54c545ac5c53835bd4fb0bab03a40c134838039f3a8088cede021218be"


def test_same_arguments_same_pixels() -> None:
    pictures = [scene.render() for scene in scenes(20, split="valid")]
    again = [scene.render() for scene in scenes(20, split="valid")]
    assert all(np.array_equal(one, other) for one, other in zip(pictures, again, strict=True))
    assert len({picture.tobytes() for picture in pictures}) == 20
    assert all(picture.shape == (64, 64, 3) and picture.dtype == np.uint8 for picture in pictures)


def test_a_larger_corpus_continues_a_smaller_one_and_seeds_differ() -> None:
    first = list(scenes(30))
    assert first == list(scenes(60))[:30]
    assert first != list(scenes(30, seed=2))


def test_splits_share_no_layout_whatever_the_seed() -> None:
    found = {
        split: {scene.things for seed in (1, 2) for scene in scenes(200, split=split, seed=seed)}
        for split in corpus.SPLITS
    }
    assert all(not found[one] & found[other] for one, other in combinations(found, 2))
    assert len({scene.things for scene in sample()}) == len(sample())


def test_which_split_depends_on_the_things_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # So few layouts that without the hash the splits would have some in common.
    def few(draw: Callable[[], float], picture: int) -> tuple[Thing, ...]:
        x = int(draw() * 16)
        return (Thing("big", "red", "ring", (x, 0, x + 20, 20)),)

    monkeypatch.setattr(corpus, "_things", few)
    found = [{s.things for seed in range(9) for s in scenes(1, split=split, seed=seed)} for split in corpus.SPLITS]
    assert all(not one & other for one, other in combinations(found, 2))


def test_the_caption_is_a_function_of_the_scene() -> None:
    for scene in sample():
        words = scene.caption.split()
        named = [(" ".join(words[first : last + 1]), box) for first, last, box in scene.boxes]
        assert spelt(named[::-1]) == scene.caption
        assert named == [(f"{thing.size} {thing.colour} {thing.shape}", thing.box) for thing in scene.things]


def test_words_have_a_box_if_and_only_if_they_describe_a_thing() -> None:
    for scene in sample():
        described = [at for first, last, _ in scene.boxes for at in range(first, last + 1)]
        assert described == [at for at, word in enumerate(scene.caption.split()) if word in DESCRIBING]


def test_words_and_lengths() -> None:
    words = Counter(word for scene in sample() for word in scene.caption.split())
    assert set(words) == DESCRIBING | FUNCTION_WORDS
    assert len(words) == 23
    assert min(words.values()) > 150
    lengths = {count: {len(s.caption.split()) for s in sample() if len(s.things) == count} for count in (1, 2, 3)}
    assert lengths[1] == {4}
    assert lengths[2] == {9, 10}
    assert {15, 16} <= lengths[3] <= {15, 16, 17}
    shares = Counter(len(scene.things) for scene in sample())
    assert [shares[count] / len(sample()) for count in (1, 2, 3)] == pytest.approx([1 / 6, 1 / 3, 1 / 2], abs=0.05)


def test_all_kinds_are_equally_common_in_crowded_scenes_too() -> None:
    crowded = [thing for scene in sample() if len(scene.things) == 3 for thing in scene.things]
    for attribute, names in (("size", corpus.SIZES), ("colour", corpus.COLOURS), ("shape", corpus.SHAPES)):
        counts = Counter(getattr(thing, attribute) for thing in crowded)
        fair = len(crowded) / len(names)
        assert all(0.8 * fair < counts[name] < 1.2 * fair for name in names)


@pytest.mark.parametrize("picture", [48, 64, 100])
def test_things_are_inside_apart_and_clearly_placed(picture: int) -> None:
    unit = picture / 64
    for scene in scenes(300, picture=picture):
        for thing in scene.things:
            low, high = (12, 14) if thing.size == "small" else (20, 23)
            assert low * unit - 0.5 <= side(thing.box) <= high * unit + 0.5
            assert side(thing.box) == thing.box[3] - thing.box[1]
            assert min(thing.box) >= 1
            assert max(thing.box) <= picture - 1
        for one, other in combinations(scene.things, 2):
            (x, y), (u, v) = centre(one.box), centre(other.box)
            assert abs(abs(x - u) - abs(y - v)) >= round(8 * unit)
            gap = max(abs(x - u), abs(y - v)) - (side(one.box) + side(other.box)) / 2
            assert gap >= round(3 * unit)
            assert (one.size, one.colour, one.shape) != (other.size, other.colour, other.shape)


@pytest.mark.parametrize("picture", [48, 64, 100])
def test_boxes_are_tight(picture: int) -> None:
    for scene in scenes(200, picture=picture):
        pixels = scene.render()
        drawn = differs(pixels, scene.background)
        outside = np.ones_like(drawn)
        for thing in scene.things:
            x0, y0, x1, y1 = thing.box
            outside[y0:y1, x0:x1] = False
            inside = drawn[y0:y1, x0:x1]
            assert inside[0].any()
            assert inside[-1].any()
            assert inside[:, 0].any()
            assert inside[:, -1].any()
        assert not drawn[outside].any()


def test_a_colour_is_found_in_its_box_and_nowhere_else() -> None:
    for scene in sample()[:300]:
        pixels = scene.render()
        colours = [thing.colour for thing in scene.things]
        for thing in scene.things:
            x0, y0, x1, y1 = thing.box
            found = near(pixels, thing.colour)
            assert found[y0:y1, x0:x1].sum() > 0.2 * side(thing.box) ** 2
            if colours.count(thing.colour) == 1:
                assert found.sum() == found[y0:y1, x0:x1].sum()


def test_colours_stay_apart_under_the_noise() -> None:
    every = np.array([*corpus.COLOURS.values(), *corpus.BACKGROUNDS])
    assert every.min() >= 3
    assert every.max() <= 252
    for one, other in combinations((*corpus.COLOURS.values(), corpus.BACKGROUNDS[0]), 2):
        assert np.abs(np.subtract(one, other)).sum() > 100


@pytest.mark.parametrize("size", [12, 13, 14, 20, 21, 22, 23])
def test_shapes_differ_in_many_pixels(size: int) -> None:
    masks = [corpus.mask(shape, size) / 255 for shape in corpus.SHAPES]
    for one, other in combinations(masks, 2):
        assert np.abs(one - other).sum() > 0.1 * size**2


@pytest.mark.parametrize(
    ("other", "where"),
    [
        ((30, 4, 42, 16), "left of"),
        ((4, 30, 16, 42), "above"),
        ((30, 18, 42, 30), "left of"),
        ((18, 30, 30, 42), "above"),
    ],
)
def test_relations_are_along_the_longer_axis(other: Box, where: str) -> None:
    assert relation((2, 2, 14, 14), other) == where
    assert relation(other, (2, 2, 14, 14)) == {"left of": "right of", "above": "below"}[where]


def test_captions_by_hand() -> None:
    ring = Thing("big", "red", "ring", (22, 30, 44, 52))
    star = Thing("small", "blue", "star", (26, 4, 38, 16))
    cross = Thing("small", "white", "cross", (4, 36, 16, 48))
    dot = Thing("small", "black", "circle", (36, 8, 48, 20))
    assert Scene((ring,), 0, 64).caption == "a big red ring"
    assert Scene((ring, star), 0, 64).caption == "a big red ring below a small blue star"
    both = Scene((ring, star, cross), 0, 64)
    assert both.caption == "a big red ring below a small blue star and right of a small white cross"
    assert both.boxes == ((1, 3, ring.box), (6, 8, star.box), (13, 15, cross.box))
    same = Scene((ring, star, dot), 0, 64)
    assert same.caption == "a big red ring below both a small blue star and a small black circle"
    assert same.boxes == ((1, 3, ring.box), (7, 9, star.box), (12, 14, dot.box))


def test_write(tmp_path: Path) -> None:
    told: list[int] = []
    folder = tmp_path / "made"
    paths = corpus.write(folder, train=490, valid=20, test=10, progress=told.append)
    assert paths == {split: folder / f"{split}.jsonl" for split in corpus.SPLITS}
    assert sorted(path.name for path in folder.iterdir()) == ["pictures", "test.jsonl", "train.jsonl", "valid.jsonl"]
    assert told == [500, 520]
    assert len(list((folder / "pictures" / "train").iterdir())) == 490
    lines = paths["test"].read_text(encoding="utf-8").splitlines()
    for number, (line, scene) in enumerate(zip(lines, scenes(10, split="test"), strict=True), 1):
        record = json.loads(line)
        boxes = [[first, last, *box] for first, last, box in scene.boxes]
        assert record == {
            "source": f"pictures/test/{number:06d}.png",
            "target": scene.caption,
            "boxes": boxes,
            "width": 64,
            "height": 64,
        }
        with Image.open(folder / record["source"]) as image:
            assert np.array_equal(np.asarray(image), scene.render())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_writing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        corpus.write(tmp_path / name, train=6, valid=2, test=2, picture=80)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("name", ["train.jsonl", "test.jsonl", "pictures/mine.png"])
def test_nothing_that_is_there_is_replaced(name: str, tmp_path: Path) -> None:
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(OutputError, match="exists; give another folder"):
        corpus.write(tmp_path, train=2, valid=1, test=1)
    assert contents(tmp_path) == {name: b"mine"}


def test_a_list_is_never_there_without_its_pictures(tmp_path: Path) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corpus.write(tmp_path, train=400, valid=100, test=1, progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pictures", "train.jsonl"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"split": "dev"}, "unknown split 'dev'; the scenes have 'train' and 'valid' and 'test'"),
        ({"size": -1}, r"size \(-1\) of train is negative; ask for 0 scenes or more"),
        ({"picture": 32}, r"picture \(32\) is too small to tell shapes apart; try 48 pixels or more"),
    ],
)
def test_errors_say_what_would_do(wrong: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"size": 1} | wrong
    with pytest.raises(ValueError, match=message):
        scenes(**arguments)  # type: ignore[arg-type]


def test_nothing_is_written_where_an_argument_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"size \(-3\) of test is negative"):
        corpus.write(tmp_path / "made", test=-3)
    assert not (tmp_path / "made").exists()


def test_things_and_shapes_beyond_the_rule() -> None:
    four = tuple(Thing("small", "red", "ring", (x, 2, x + 12, 14)) for x in (2, 17, 32, 47))
    with pytest.raises(ValueError, match="a scene of 4 things has no caption; give it 1 to 3"):
        _ = Scene(four, 0, 64).caption
    with pytest.raises(ValueError, match="a scene of 0 things has no caption"):
        _ = Scene((), 0, 64).caption
    with pytest.raises(ValueError, match="unknown shape 'heart'; there are circle, square, triangle, star, cross, rin"):
        Scene((Thing("small", "red", "heart", (2, 2, 14, 14)),), 0, 64).render()
