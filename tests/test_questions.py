"""Questions about scenes: answers that are right, never a close call, and not to be guessed from the question."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.synthetic import questions as corpus
from regard.data.synthetic.corpus import SPLITS
from regard.data.synthetic.questions import ANSWERS, COUNTS, Asked, Description, questions
from regard.data.synthetic.scenes import SHAPES, Box, Scene, Thing

NOUNS = {**{shape: shape for shape in SHAPES}, **{f"{shape}s": shape for shape in SHAPES}, "crosses": "cross"}


@cache
def many() -> tuple[Asked, ...]:
    return tuple(questions(1200))


def sample() -> tuple[Asked, ...]:
    return many()[:400]


def centre(thing: Thing) -> tuple[float, float]:
    return (thing.box[0] + thing.box[2]) / 2, (thing.box[1] + thing.box[3]) / 2


def fitting(words: Iterable[str], things: Iterable[Thing]) -> list[Thing]:
    """Things that all of the words fit, which may be plurals, or `thing`."""
    wanted = {NOUNS.get(word, word) for word in words} - {"thing", "things"}
    return [thing for thing in things if wanted <= {thing.size, thing.colour, thing.shape}]


def placed(relation: str, thing: Thing, other: Thing) -> bool:
    (x, y), (u, v) = centre(thing), centre(other)
    return {"left": x < u, "right": x > u, "above": y < v, "below": y > v}[relation]


def answered(text: str, things: tuple[Thing, ...]) -> str:
    """The answer, found anew from the words of the question."""
    words = text.removesuffix(" ?").split()
    at = next((i for i, word in enumerate(words) if word in ("left", "right", "above", "below")), None)
    if at is not None:
        (other,) = fitting(words[words.index("the", at) + 1 :], things)
        relation = words[at]
    match words:
        case ["how", "many", *_] if at is None:
            return COUNTS[len(fitting(words[2 : words.index("are")], things))]
        case ["how", "many", *_]:
            counted = fitting(words[2 : words.index("are")], things)
            return COUNTS[sum(placed(relation, thing, other) for thing in counted)]
        case ["what", "shape", "is", "the", "thing", _, *_] if at is not None:
            (found,) = [thing for thing in things if thing != other and placed(relation, thing, other)]
            return found.shape
        case ["what", asked, "is", "the", *described]:
            (found,) = fitting(described, things)
            return str(getattr(found, asked))
        case ["is", "there", "a", *described]:
            return "yes" if fitting(described, things) else "no"
        case ["is", "the", *_]:
            (found,) = fitting(words[2:at], things)
            return "yes" if placed(relation, found, other) else "no"
    raise AssertionError(text)


def test_answers_are_right() -> None:
    for asked in sample():
        assert answered(asked.question.text, asked.scene.things) == asked.answer


def test_kinds_and_answers_are_equally_common() -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for asked in many():
        counts[asked.question.kind][asked.answer] += 1
    assert set(counts) == set(ANSWERS)
    for kind, found in counts.items():
        assert set(found) == set(ANSWERS[kind])
        total = sum(found.values())
        assert total / 1200 == pytest.approx(1 / 6, abs=0.04)
        assert max(found.values()) / total < 1 / len(found) + 0.09


def test_who_does_not_look_is_rarely_right() -> None:
    """The best that can be done with the question alone, learnt from as many again: a table of answers by question, and
    of words by answer (naive Bayes)."""
    learnt, tested = many()[:800], many()[800:]
    by_text: dict[str, Counter[str]] = defaultdict(Counter)
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for asked in learnt:
        by_text[asked.question.text][asked.answer] += 1
        for word in asked.question.words:
            by_word[asked.answer][word] += 1

    def likelihood(answer: str, words: tuple[str, ...]) -> float:
        seen = by_word[answer]
        return sum(np.log((seen[word] + 0.5) / (seen["?"] + 1)) for word in words) + np.log(seen["?"])

    def bayes(asked: Asked) -> str:
        return max(ANSWERS[asked.question.kind], key=lambda answer: likelihood(answer, asked.question.words))

    table = [by_text[x.question.text].most_common(1)[0][0] if x.question.text in by_text else bayes(x) for x in tested]
    chance = float(np.mean([1 / len(answers) for answers in ANSWERS.values()]))
    assert chance == pytest.approx(0.29, abs=0.005)
    for guesses in (table, [bayes(asked) for asked in tested]):
        assert np.mean([guess == x.answer for guess, x in zip(guesses, tested, strict=True)]) < chance + 0.07


def test_nothing_is_a_close_call() -> None:
    def gap(one: Box, other: Box) -> int:
        return max(one[0] - other[2], other[0] - one[2], one[1] - other[3], other[1] - one[3])

    for asked in sample():
        things = asked.scene.things
        assert 2 <= len(things) <= 6
        assert len({(thing.size, thing.colour, thing.shape) for thing in things}) == len(things)
        assert all(gap(one.box, other.box) >= 2 for one, other in combinations(things, 2))
        assert all(min(thing.box) >= 1 and max(thing.box) <= 63 for thing in things)
        if asked.question.relation is not None:
            axis = 0 if asked.question.relation in ("left of", "right of") else 1
            *_, last = asked.question.words[:-1], asked.question.named[-1]
            (other,) = [thing for thing in things if last[2].fits(corpus.kind_of(thing))]
            assert all(abs(centre(thing)[axis] - centre(other)[axis]) >= 4 for thing in asked.about if thing != other)


def test_half_of_what_is_not_there_differs_in_one_way() -> None:
    near = []
    for asked in (asked for asked in many() if (asked.question.kind, asked.answer) == ("exists", "no")):
        said = set(asked.question.words[3:-1])
        near.append(any(len(said - {thing.size, thing.colour, thing.shape}) == 1 for thing in asked.scene.things))
    assert np.mean(near) >= 0.5


def test_boxes_are_of_what_is_named_and_of_what_is_answered() -> None:
    for asked in sample():
        words, things = asked.question.words, {thing.box: thing for thing in asked.scene.things}
        spans = {(first, last) for first, last, _ in asked.question.named}
        for first, last in spans:
            boxes = [box for a, b, box in asked.named if (a, b) == (first, last)]
            assert boxes == [thing.box for thing in fitting(words[first : last + 1], asked.scene.things)]
        if asked.question.kind in ("count", "where"):
            assert len(asked.boxes) == COUNTS.index(asked.answer)
        elif asked.question.kind in ("colour", "shape"):
            assert [getattr(things[box], asked.question.kind) for box in asked.boxes] == [asked.answer]
        elif asked.question.kind == "relation":
            assert len(asked.boxes) == 2


def test_same_arguments_same_questions_and_splits_apart() -> None:
    first = list(questions(40))
    assert first == list(questions(60))[:40]
    assert [asked.question.text for asked in first[:3]] == [
        "what shape is the thing above the yellow ring ?",
        "what colour is the cross ?",
        "is the small triangle left of the green triangle ?",
    ]
    found = {s: {x.scene.things for seed in (1, 2) for x in questions(15, split=s, seed=seed)} for s in SPLITS}
    assert all(len(some) == 30 for some in found.values())
    assert all(not found[one] & found[other] for one, other in combinations(found, 2))


def test_answers_by_hand() -> None:
    ring = Thing("big", "red", "ring", (22, 30, 44, 52))
    star = Thing("small", "blue", "star", (26, 4, 38, 16))
    cross = Thing("small", "red", "cross", (4, 36, 16, 48))
    scene = Scene((ring, star, cross), 0, 64)

    def ask(*parts: str | Description, **named: str) -> tuple[str, tuple[Thing, ...]] | None:
        return corpus.answer_of(corpus._question("where", *parts, plural=True, **named), scene)

    red, blue = Description(colour="red"), Description(colour="blue")
    assert ask("how many", red, "are below the", blue, relation="below") == ("two", (ring, cross))
    assert ask("how many", red, "are above the", blue, relation="above") == ("zero", ())
    assert ask("how many", blue, "are above the", red, relation="above") is None  # two things are red
    assert ask("how many", red, "are left of the", blue, relation="left of") is None  # the ring: a close call


def test_write(tmp_path: Path) -> None:
    for name in ("one", "two"):
        corpus.write(tmp_path / name, train=5, valid=2, test=2)
    lines = (tmp_path / "one" / "train.jsonl").read_text().splitlines()
    assert lines == (tmp_path / "two" / "train.jsonl").read_text().splitlines()
    for line, asked in zip(lines, questions(5), strict=True):
        record = json.loads(line)
        assert (record["question"], record["target"], record["kind"]) == (
            asked.question.text, asked.answer, asked.question.kind,
        )  # fmt: skip
        assert record["boxes"] == [[0, 0, *box] for box in asked.boxes]
        assert record["named"] == [[first, last, *box] for first, last, box in asked.named]
        with Image.open(tmp_path / "one" / record["source"]) as image:
            assert np.array_equal(np.asarray(image), asked.scene.render())
    with pytest.raises(ValueError, match="unknown split 'dev'; the questions have"):
        questions(1, split="dev")
