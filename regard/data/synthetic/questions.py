"""Questions about scenes: a picture of two to six things, a question, its answer in one word, and the boxes of both.

| kind | example | answers |
|---|---|---|
| count | how many red things are there ? | zero to four |
| where | how many circles are left of the big square ? | zero to three |
| colour | what colour is the big star ? | seven colours |
| shape | what shape is the thing above the red ring ? | six shapes |
| exists | is there a small blue cross ? | yes, no |
| relation | is the red star left of the circle ? | yes, no |

- "the big star" fits exactly one thing of the picture, and "the thing above the red ring" too.
- A thing is left of another if its centre is further left, whatever is above or below; of things that a question
  compares, centres are at least a sixteenth of the picture apart on its axis, so it is never a close call.
- First the question is drawn, then one of the answers of its kind, all of them equally likely, and only then a picture
  in which it is the answer. So a question says nothing of its answer beyond its kind: whoever does not look at the
  picture is right in 29 % of all cases at best. The picture alone does not tell what is asked.
- Where something is not there, half of the time a thing is that differs in one way.

As with `scenes`, the corpus depends on its arguments alone, splits share no layout (not even with the captioned scenes
of another split), and no layout occurs twice in a split.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from regard.data.synthetic.corpus import SPLITS, check_split, write_splits
from regard.data.synthetic.scenes import (
    BACKGROUNDS,
    COLOURS,
    KINDS,
    SHAPES,
    Box,
    Scene,
    Thing,
    check_picture,
    draw_box,
    layout,
    offset,
    png,
    scaled,
)  # fmt: skip
from regard.errors import OutputError, require

COUNTS = ("zero", "one", "two", "three", "four")
RELATIONS = ("left of", "right of", "above", "below")
ANSWERS: dict[str, tuple[str, ...]] = {
    "count": COUNTS, "where": COUNTS[:4], "colour": tuple(COLOURS), "shape": SHAPES, "exists": ("yes", "no"),
    "relation": ("yes", "no"),
}  # fmt: skip

_MOST, _MOST_BIG = 6, 2  # things in a picture, so that they have room
_GAP, _MARGIN = 2, 4  # between things, and between centres that are compared, in 64ths of the picture
_TRIES = 40  # places to try for a thing before all are drawn again

Kind = tuple[str, str, str]
Draw = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Description:
    """What is said of a thing: any of its size, colour and shape."""

    size: str | None = None
    colour: str | None = None
    shape: str | None = None

    def fits(self, kind: Kind) -> bool:
        return self.size in (None, kind[0]) and self.colour in (None, kind[1]) and self.shape in (None, kind[2])

    def covers(self, other: Description) -> bool:
        """Whether it fits all that the other does."""
        pairs = ((self.size, other.size), (self.colour, other.colour), (self.shape, other.shape))
        return all(said in (None, own) for said, own in pairs)

    def words(self, *, plural: bool = False) -> list[str]:
        """`big red star`, `red thing`, `circles`."""
        noun = self.shape or "thing"
        ending = ("es" if noun == "cross" else "s") if plural else ""
        return [*filter(None, (self.size, self.colour)), noun + ending]


@dataclass(frozen=True, slots=True)
class Question:
    """A question of some kind: its words, and which of them are about what."""

    kind: str
    words: tuple[str, ...]
    named: tuple[tuple[int, int, Description], ...]  # first and last word that describe things, and how
    relation: str | None = None  # of the first of them to the last

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a scene, its answer, and the things that the answer is about."""

    question: Question
    scene: Scene
    answer: str
    about: tuple[Thing, ...]

    @property
    def boxes(self) -> tuple[Box, ...]:
        return tuple(thing.box for thing in self.about)

    @property
    def named(self) -> tuple[tuple[int, int, Box], ...]:
        """For each thing that some of the question's words fit, the first and last of these words and its box."""
        return tuple(
            (first, last, thing.box)
            for first, last, description in self.question.named
            for thing in self.scene.things
            if description.fits(kind_of(thing))
        )


def kind_of(thing: Thing) -> Kind:
    return thing.size, thing.colour, thing.shape


def questions(size: int, *, split: str = "train", picture: int = 64, seed: int = 1) -> Iterator[Asked]:
    """Yield `size` questions, each about a picture of its own. A larger `size` continues a smaller one."""
    check_split(size, split, "the questions have", "questions")
    check_picture(picture)
    return _questions(size, split, picture, seed)


def write(
    folder: Path, *, train: int = 20000, valid: int = 500, test: int = 1000, picture: int = 64, seed: int = 1,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Path]:  # fmt: skip
    """Write `train.jsonl`, `valid.jsonl`, `test.jsonl` and their pictures into `folder`; returns where each split is.

    A line has the picture's path from `folder` as `source`, the `question`, the answer as `target`, the `kind` of
    question, `boxes` of what the answer is about as lists 0, 0, x0, y0, x1, y1 (the answer is word 0), `named` as lists
    of first word, last word of the question, x0, y0, x1, y1, and the picture's `width` and `height`. A .jsonl file
    appears when it and its pictures are complete; nothing that is there is replaced. `progress` is called now and then
    with the number of questions so far, of all splits together.
    """
    require("PIL")
    sizes = {"train": train, "valid": valid, "test": test}
    drawn = {split: questions(size, split=split, picture=picture, seed=seed) for split, size in sizes.items()}
    if (folder / "pictures").exists():
        raise OutputError(f"{folder / 'pictures'} exists; give another folder")
    lines = {split: _lines(folder, split, drawn[split]) for split in drawn}
    return write_splits(folder, "jsonl", lines, progress)


def _lines(folder: Path, split: str, questions: Iterator[Asked]) -> Iterator[str]:
    """The records of questions, whose pictures are written before."""
    (folder / "pictures" / split).mkdir(parents=True)
    for number, asked in enumerate(questions, 1):
        source = f"pictures/{split}/{number:06d}.png"
        (folder / source).write_bytes(png(asked.scene.render()))
        record: dict[str, object] = {"source": source, "question": asked.question.text, "target": asked.answer}
        record |= {"kind": asked.question.kind, "boxes": [[0, 0, *box] for box in asked.boxes]}
        record |= {"named": [[first, last, *box] for first, last, box in asked.named]}
        yield json.dumps({**record, "width": asked.scene.side, "height": asked.scene.side})


def _questions(size: int, split: str, picture: int, seed: int) -> Iterator[Asked]:
    # `random()` is the one method whose sequence Python promises not to change.
    draw = random.Random(f"questions {picture} {split} {seed}").random
    owned = SPLITS[split]
    seen: set[bytes] = set()
    while len(seen) < size:
        kind = _one_of(tuple(ANSWERS), draw)
        question, answer = _QUESTIONS[kind](draw), _one_of(ANSWERS[kind], draw)
        while True:  # another picture, never another question or answer
            asked = _picture(question, answer, draw, picture)
            if asked is not None:
                digest = hashlib.blake2b(layout(asked.scene.things).encode(), digest_size=16).digest()
                if digest[0] % 8 in owned and digest not in seen:
                    break
        seen.add(digest)
        yield asked


# Questions


def _one_of(options: Sequence[str], draw: Draw) -> str:
    return options[int(draw() * len(options))]


def _describe(parts: Sequence[str], draw: Draw) -> Description:
    """Of a thing of any kind, what some of these sets of attributes say: `colour shape` for one."""
    said = _one_of(parts, draw).split()
    kind = dict(zip(("size", "colour", "shape"), KINDS[int(draw() * len(KINDS))], strict=True))
    return Description(**{part.name: kind[part.name] for part in fields(Description) if part.name in said})


def _question(kind: str, *parts: str | Description, plural: bool = False, relation: str | None = None) -> Question:
    """Words and descriptions to a question; the first description may be in the plural."""
    words: list[str] = []
    named: list[tuple[int, int, Description]] = []
    for part in parts:
        if isinstance(part, Description):
            described = part.words(plural=plural and not named)
            named.append((len(words), len(words) + len(described) - 1, part))
            words += described
        else:
            words += part.split()
    return Question(kind, (*words, "?"), tuple(named), relation)


_UNIQUE = ("shape", "size shape", "colour shape", "colour")  # what may tell one thing from all others


def _apart(one: Description, draw: Draw, parts: Sequence[str] = _UNIQUE) -> Description:
    """A description of another thing: neither fits all that the other does."""
    while True:
        found = _describe(parts, draw)
        if not found.covers(one) and not one.covers(found):
            return found


def _count(draw: Draw) -> Question:
    counted = _describe(("colour", "shape"), draw)
    return _question("count", "how many", counted, "are there", plural=True)


def _where(draw: Draw) -> Question:
    relation, counted = _one_of(RELATIONS, draw), _describe(("colour", "shape"), draw)
    return _question(
        "where", "how many", counted, f"are {relation} the", _apart(counted, draw), plural=True, relation=relation
    )


def _colour(draw: Draw) -> Question:
    return _question("colour", "what colour is the", _describe(("shape", "size shape"), draw))


def _shape(draw: Draw) -> Question:
    if draw() < 0.5:
        return _question("shape", "what shape is the", _describe(("colour", "size colour"), draw))
    relation = _one_of(RELATIONS, draw)
    other = _describe(("size shape", "colour shape", "colour"), draw)  # its shape alone would rule out an answer
    return _question("shape", f"what shape is the thing {relation} the", other, relation=relation)


def _exists(draw: Draw) -> Question:
    return _question("exists", "is there a", _describe(("colour shape", "size shape", "size colour shape"), draw))


def _relation(draw: Draw) -> Question:
    relation, one = _one_of(RELATIONS, draw), _describe(_UNIQUE, draw)
    return _question("relation", "is the", one, f"{relation} the", _apart(one, draw), relation=relation)


_QUESTIONS: dict[str, Callable[[Draw], Question]] = {
    "count": _count, "where": _where, "colour": _colour, "shape": _shape, "exists": _exists, "relation": _relation,
}  # fmt: skip


# Pictures in which an answer is right


def _picture(question: Question, answer: str, draw: Draw, side: int) -> Asked | None:
    """A scene in which this is the answer, or None if the draw gave no such scene."""
    things = _things(_kinds(question, answer, draw), draw, side)
    if things is None:
        return None
    scene = Scene(things, int(draw() * len(BACKGROUNDS)), side)
    found = answer_of(question, scene)
    return Asked(question, scene, *found) if found is not None and found[0] == answer else None


def _kinds(question: Question, answer: str, draw: Draw) -> list[Kind]:
    """Kinds of things among which the answer may be right: it depends on their places too where it is a relation."""
    descriptions = [description for *_, description in question.named]
    first, last = descriptions[0], descriptions[-1]
    kinds: list[Kind] = []
    # What has to be there comes first, while there is room for big things.
    if question.kind in ("where", "relation", "shape", "colour") or (question.kind, answer) == ("exists", "yes"):
        told = question.relation is None and question.kind in ("shape", "colour")  # the answer is what it is
        kinds += _some(
            1, draw, lambda kind: last.fits(kind) and (last is first or not first.fits(kind))
            and (not told or answer in kind),
        )  # fmt: skip
    if question.kind in ("count", "where"):
        number = COUNTS.index(answer) + (int(draw() * 3) if question.kind == "where" else 0)
        kinds += _some(number, draw, lambda kind: first.fits(kind) and (last is first or not last.fits(kind)), kinds)
    elif question.kind == "relation":
        kinds += _some(1, draw, lambda kind: first.fits(kind) and not last.fits(kind), kinds)
    elif (question.kind, answer) == ("exists", "no") and draw() < 0.5:
        kinds += _some(1, draw, lambda kind: sum(map(str.__eq__, kind, _filled(first, kind))) == 2)
    total = max(2, len(kinds)) + int(draw() * (_MOST - max(2, len(kinds)) + 1))
    others = _some(
        total - len(kinds), draw, lambda kind: not any(described.fits(kind) for described in descriptions), kinds
    )
    return [*kinds, *others]


def _filled(description: Description, kind: Kind) -> Kind:
    """What a description says, with what it leaves open as it is of this kind."""
    return (description.size or kind[0], description.colour or kind[1], description.shape or kind[2])


def _some(count: int, draw: Draw, wanted: Callable[[Kind], bool], others: Sequence[Kind] = ()) -> list[Kind]:
    """So many different kinds, none of them among the others, and with these not too many of them big."""
    found: list[Kind] = []
    while len(found) < count:
        kind = KINDS[int(draw() * len(KINDS))]
        big = sum(other[0] == "big" for other in (*found, *others))
        if wanted(kind) and kind not in found and kind not in others and (kind[0] != "big" or big < _MOST_BIG):
            found.append(kind)
    return found


def _things(kinds: Sequence[Kind], draw: Draw, side: int) -> tuple[Thing, ...] | None:
    """Things of these kinds that do not touch, or None if no room was found."""
    boxes: list[Box] = []
    kinds, gap = sorted(kinds), scaled(_GAP, side)  # big ones first, which need most room
    for size, *_ in kinds:
        for _ in range(_TRIES):
            box = draw_box(draw, size, side)
            if all(_gap(box, other) >= gap for other in boxes):
                boxes.append(box)
                break
        else:
            return None
    things = [Thing(*kind, box) for kind, box in zip(kinds, boxes, strict=True)]
    return tuple(sorted(things, key=lambda thing: (thing.size != "big", sum(thing.box), thing.box)))


def _gap(one: Box, other: Box) -> int:
    return max(one[0] - other[2], other[0] - one[2], one[1] - other[3], other[1] - one[3])


def answer_of(question: Question, scene: Scene) -> tuple[str, tuple[Thing, ...]] | None:
    """The answer and the things it is about; None if the question makes no sense here, or is a close call."""
    fitting = [
        [thing for thing in scene.things if description.fits(kind_of(thing))] for *_, description in question.named
    ]
    one, other = fitting[0], fitting[-1]
    if question.kind in ("count", "exists"):
        answers = COUNTS if question.kind == "count" else ("no", *["yes"] * _MOST)
        return (answers[len(one)], tuple(one)) if len(one) < len(answers) else None
    if len(other) != 1:
        return None
    if question.relation is None:
        return getattr(other[0], question.kind), tuple(other)
    compared = [thing for thing in (scene.things if one is other else one) if thing != other[0]]
    found = []
    for thing in compared:
        distance = _ahead(question.relation, thing.box, other[0].box)
        if abs(distance) < 2 * scaled(_MARGIN, scene.side):
            return None
        found += [thing] if distance > 0 else []
    match question.kind:
        case "where":
            return (COUNTS[len(found)], tuple(found)) if len(found) < len(COUNTS) else None
        case "shape":
            return (found[0].shape, tuple(found)) if len(found) == 1 else None
        case _:
            return ("yes" if found else "no", (*one, *other)) if len(one) == 1 else None


def _ahead(relation: str, one: Box, other: Box) -> int:
    """How far one is to the left (right, …) of the other, in half pixels."""
    right, down = offset(one, other)
    return {"left of": right, "right of": -right, "above": down, "below": -down}[relation]
