"""Attention held against when words are spoken: a kind of source whose words are moments, made up here, from its
records to its score, its figures and its page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import regard
from regard.config import parse
from regard.data.examples import Example, read_files
from regard.data.modality import Canvas
from regard.data.side import Field, Item
from regard.data.sides import Sides
from regard.data.targets.label import Label
from regard.data.tokenizers.kinds import train_tokenizer
from regard.evaluation.alignment import Alignment, TimeErrors, median_place
from regard.loading import new_task
from regard.ragged import Ragged
from regard.registry import MODALITIES, STEMS, register
from regard.system import System
from tests import equations
from tests.conftest import redrawn
from tests.toy import WORDS

SECONDS = 0.04
TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "d_ff": 16}


class Tones(regard.Modality):
    """Samples as numbers with blanks between them; two make a moment of 40 ms."""

    class Settings(regard.SideSettings):
        """Tones."""

        stem = "pairs"
        max_length: int = 100

    dtype = "float32"
    seconds_per_place = SECONDS

    def encode_many(
        self, fields: Sequence[Field], *, sampling: float = 0.0, seed: int = 0
    ) -> list[NDArray[np.float32]]:
        return [np.array(field.split(), np.float32) for field in fields]

    def words(self, item: Item) -> list[int]:
        marks = [-1] * self.stem.has_whole
        return [*marks, *range(self.places(item) - len(marks))]

    def canvas(self, item: Item) -> Canvas:
        moments = max(self.words(item)) + 1
        pixels = np.repeat(np.abs(np.asarray(item))[None, :, None], 3, axis=2).clip(0, 255).astype(np.uint8)
        return Canvas(pixels, 1, moments, "sound", moments * SECONDS, b"RIFF")


class Pairs(regard.Stem):
    """Two samples to a vector; with a class token, a learnt vector before them all."""

    class Settings(regard.StemSettings):
        """Pairs of samples."""

        reads = ("tones",)
        class_token: bool = False

        @property
        def has_whole(self) -> bool:
            return self.class_token

        def vectors(self, length: int) -> int:
            return math.ceil(length / 2) + self.class_token

    def __init__(self, settings: Any, elements: Any, d_model: int, dropout: float) -> None:
        super().__init__(settings, elements, d_model, dropout)
        self.linear = nn.Linear(2, d_model)
        self.whole = nn.Parameter(torch.zeros(d_model)) if settings.class_token else None

    def vectors(self, source: Ragged) -> Ragged:
        rows = []
        for one in source.values.split(source.lengths.tolist()):
            padded = nn.functional.pad(one, (0, len(one) % 2)).view(-1, 2)
            x = self.linear(padded.to(self.linear.weight.dtype))
            rows.append(x if self.whole is None else torch.cat((self.whole[None], x)))
        return Ragged.from_lengths(torch.cat(rows), [len(row) for row in rows])


@pytest.fixture(autouse=True)
def _parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parts, for as long as a test lasts."""
    for family in (MODALITIES, STEMS):
        monkeypatch.setattr(family, "_classes", dict(family._classes))
    register("tones", Tones)
    register("pairs", Pairs)


def untrained(target: str = "text", *, class_token: bool = False) -> System:
    stem = {"kind": "pairs", "class_token": class_token}
    decoder: dict[str, Any] = TRANSFORMER if target == "text" else {"kind": "none"}
    settings = {
        "source": "tones", "target": target, "tokens": {"kind": "word"},
        "model": {"d_model": 8, "encoder": {**TRANSFORMER, "stem": stem}, "decoder": decoder},
    }  # fmt: skip
    sides = Sides.of(parse(settings))
    if target == "text":
        sides.use({name: train_tokenizer(WORDS, "word", 100) for name in sides.vocabularies})
    else:
        assert isinstance(sides.target, Label)
        sides.target.labels = ["low", "high"]
    made = System(new_task(sides, torch.device("cpu")), Path())
    redrawn(made.model).float()
    return made


def corpus(folder: Path) -> Path:
    """Three recordings; the moments of two of them are known to belong to words."""
    noise = np.random.default_rng(0).normal(0, 40, size=60).round(1)
    texts = [" ".join(map(str, noise[: 2 * n])) for n in (9, 12, 7)]
    lines = [
        f"{texts[0]}\talpha beta\t1-0 2-0 5-1 6-1 7-1", f"{texts[1]}\tgamma eta zeta\t0-0 4p1 5p1 9-2 10-2",
        f"{texts[2]}\ttheta\t",
    ]  # fmt: skip
    (folder / "test.tsv").write_text("\n".join(lines) + "\n")
    return folder / "test.tsv"


def test_the_median_of_attention_lies_within_a_moment() -> None:
    def place(*weights: float) -> float | None:
        return median_place(np.array(weights, dtype=np.float32))

    assert place(0, 1, 0, 0) == 1.5
    assert place(0.25, 0.25, 0.25, 0.25) == 2.0
    assert place(0.5, 0, 0, 0.5) == 1.0, "half of it is over, and nothing follows for a while"
    assert place(0.2, 0.6, 0.2) == pytest.approx(1.5)
    assert place(0.1, 0.1, 0.2) == pytest.approx(2.0), "it need not sum to one"
    assert place(0.0, 0.0) is None
    assert place() is None


def test_the_distance_in_time_by_hand() -> None:
    """Of a word that is spoken in moments 2 to 4, the middle is at 3.5; one that attends nowhere is a recording off."""
    words = np.zeros((3, 6), dtype=np.float32)
    words[0, 5], words[1, 0:2] = 1.0, 0.5
    errors = TimeErrors()
    gold = Alignment(frozenset(), frozenset({(2, 0), (3, 0), (4, 0), (0, 1), (1, 1), (3, 2)}))
    errors.add(words, gold, 0.1)
    assert errors.milliseconds == pytest.approx([200.0, 0.0, 600.0])
    errors.add(words[:1], Alignment(frozenset(), frozenset({(5, 0), (1, 1)})), 0.1)  # the second was not written
    assert errors.milliseconds == pytest.approx([200.0, 0.0, 600.0, 0.0, 600.0])
    found = errors.scores("layer:x", 0.1)["word_time"]
    assert found.value == pytest.approx(200.0)
    assert not found.higher_is_better
    assert found.signature == "layer:x|milliseconds|attended:median|spoken:middle|words:median|moment:100"
    assert TimeErrors().scores("layer:x", 0.1) == {}


@pytest.mark.parametrize("class_token", [False, True])
def test_evaluate_says_how_far_in_time_attention_is_from_the_words(class_token: bool, tmp_path: Path) -> None:
    made = untrained(class_token=class_token)
    path = corpus(tmp_path)
    scores = made.evaluate(str(path), beam=1, max_length=4).scores
    distances = []
    examples = list(read_files(str(path), made.task.sides.form))
    for example in examples[:2]:
        explained = made.explain(example, example.target)
        assert example.alignment is not None
        assert explained.gold == sorted(example.alignment.possible)
        weights = explained.weights()[:, class_token:]  # a class token is no moment
        for word in range(len(example.target.split())):
            moments = [moment for moment, other in explained.gold if other == word]
            mass, before = weights[word] / weights[word].sum(), 0.0
            attended = 0.0
            for moment, share in enumerate(mass):
                if before <= 0.5 < before + share:
                    attended = moment + (0.5 - before) / share
                before += share
            distances.append(1000 * SECONDS * abs(attended - (moments[0] + moments[-1] + 1) / 2))
    assert len(distances) == 5
    assert scores["word_time"].value == pytest.approx(np.median(distances), rel=1e-4)
    assert scores["word_time"].signature == (
        "layer:decoder.blocks.1.cross_attention|heads:mean|forced:reference|milliseconds|attended:median|spoken:middle|"
        "words:median|moment:40"
    )
    assert {"pointing", "aer"} <= scores.keys()
    made.task.source.seconds_per_place = 0.0
    assert "word_time" not in made.evaluate(str(path), beam=1, max_length=4).scores


def test_gold_goes_with_the_target_of_its_example(tmp_path: Path) -> None:
    made = untrained()
    example, *_, bare = read_files(str(corpus(tmp_path)), made.task.sides.form)
    assert made.explain(example, "alpha beta").gold == [(1, 0), (2, 0), (5, 1), (6, 1), (7, 1)]
    assert made.explain(example, "beta alpha").gold == []
    assert made.explain(example.source, "alpha beta").gold == []
    assert made.explain(bare, bare.target).gold == []
    with pytest.raises(TypeError, match="source should be one string"):
        made.explain(Example(("a", "b"), "alpha"))


@pytest.mark.parametrize("class_token", [False, True])
def test_a_label_of_a_sound_is_explained_by_rollout(class_token: bool, tmp_path: Path) -> None:
    made = untrained("label", class_token=class_token)
    one = made.explain("1 2 3 4 5 6 7")
    assert one.canvas is not None
    assert one.canvas.columns == 4
    assert one.canvas.seconds == pytest.approx(4 * SECONDS)
    assert [layer.name for layer in one.encoder_layers] == [f"encoder.blocks.{i}.self_attention" for i in range(2)]
    layers = [layer.weights.astype(np.float64) for layer in one.encoder_layers]
    np.testing.assert_allclose(one.rollout(), equations.rollout(layers), rtol=1e-5)
    one.save(tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    place = "the class token" if class_token else "the mean of all cells"
    assert f"2 layers, mean of heads, from {place}" in drawn
    assert f"predicted: {one.target[0]}" in drawn
    one.save(tmp_path / "a.html")
