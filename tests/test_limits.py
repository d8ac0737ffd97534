"""What does not fit into a model or its limits: an empty output with its reason, not the end of a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.config import merge, parse
from regard.data.batch import make_batch
from regard.data.examples import Example
from regard.data.marks import BOS, EOS, SEP
from regard.data.sides import SHARED, Sides
from regard.data.tokenizers.kinds import train_tokenizer
from regard.data.tokenizers.symbols import Symbols
from regard.errors import DataError
from regard.loading import new_task
from regard.models.model import DecoderOnly, EncoderDecoder
from regard.system import System
from regard.tasks import searching
from regard.tasks.generating import TextGeneration
from regard.training.objectives import MinimumRisk, make_objective
from regard.training_settings import ObjectiveSettings
from tests.conftest import redrawn
from tests.toy import WORDS, toy_settings

LEARNED = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 16, "positions": "learned"}
BOTH = {"model": {"encoder": LEARNED}}
ONE = {"model": {"encoder": {"kind": "none"}}}
NONE = merge(ONE, {"source": {"kind": "none"}, "data": {"train": "train.txt"}})
TWO = {"source": [{"max_length": 6}, {"max_length": 6}], **BOTH}


def system(*changes: dict[str, Any]) -> System:
    """A model of weights drawn at random, with learned positions for texts of six tokens."""
    settings = toy_settings(
        model={"d_model": 16, "decoder": LEARNED}, target={"max_length": 6},
        search={"max_source": 6, "max_length": 6, "max_ratio": 100.0},
    )  # fmt: skip
    settings["preset"] = None
    for change in changes:
        settings = merge(settings, change)
    settings.setdefault("source", {"max_length": 6})
    sides = Sides.of(parse(settings))
    sides.use({SHARED: train_tokenizer(WORDS, "word", 100)})
    made = System(new_task(sides, torch.device("cpu")), Path())
    redrawn(made.task.model).float()
    return made


def written(made: System, texts: Sequence[Any], **options: Any) -> tuple[list[int | None], list[tuple[int, str]]]:
    """How long the output of each text is, and what was said of which."""
    said: list[tuple[int, str]] = []
    found = made.outputs(texts, on_problem=lambda index, what: said.append((index, what)), **options)
    return [len(outputs[0].tokens) if outputs else None for outputs in found], said


def words(count: int) -> str:
    return " ".join(["alpha"] * count)


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"sample": True}, {"mbr": 2}, {"contrastive": 0.6}], ids=str)
def test_a_prefix_that_does_not_fit_costs_its_own_line_alone(options: dict[str, Any]) -> None:
    made, texts = system(BOTH), [words(2)] * 3
    plain = [made.outputs(texts, prefixes=[words(1), "", ""], **options)[i] for i in (0, 2)]
    said: list[tuple[int, str]] = []
    found = made.outputs(
        texts, prefixes=[words(1), words(7), ""], on_problem=lambda *told: said.append(told), **options
    )
    assert [found[0], found[2]] == plain
    assert found[1] == []
    assert said == [(1, "has a prefix of 7 tokens, more than the 6 that search.max_length=6 allows")]


def test_phrases_that_can_never_fit_cost_their_own_line_alone() -> None:
    phrases = [["alpha"], [words(4), "beta beta beta"], [], [words(7)]]
    lengths, said = written(system(BOTH), [words(2)] * 4, phrases=phrases, prefixes=["", "", "", "alpha"])
    assert [length is None for length in lengths] == [False, True, False, True]
    most = "more than the 6 that search.max_length=6 allows"
    assert said == [
        (1, f"has phrases of 7 tokens, {most}"),
        (3, f"has a prefix of 1 tokens and phrases of 6 tokens, {most}"),
    ]
    lengths, said = written(system(BOTH), [words(2)] * 2, phrases=[["beta"], ["beta"]], prefixes=[words(6), words(5)])
    assert lengths == [None, 6]


@pytest.mark.parametrize("mark", [BOS, EOS, SEP])
def test_marks_in_a_prefix_or_phrase_cost_their_own_line_alone(mark: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tokenizer of Regard's makes marks of text, but one read from elsewhere may."""
    made, encode = system(BOTH), Symbols.encode
    monkeypatch.setattr(Symbols, "encode", lambda self, text: [mark] if text == "mark" else encode(self, text))
    name = made.task.target.pieces([mark])[0]
    lengths, said = written(made, [words(2)] * 2, prefixes=["mark", "alpha"])
    assert [length is None for length in lengths] == [True, False]
    assert said == [(0, f"has a prefix that holds {name}, which no output does")]
    lengths, said = written(made, [words(2)] * 2, phrases=[["alpha"], ["mark"]])
    assert [length is None for length in lengths] == [False, True]
    assert said == [(1, f"has a phrase that holds {name}, which no output does")]


def test_a_prompt_longer_than_a_language_model_is_left_out() -> None:
    made = system(NONE)
    assert made.task.longest == 8
    lengths, said = written(made, [words(3), words(9), "", words(6)], max_length=100)
    assert [length is None for length in lengths] == [False, True, False, False]
    assert said == [(1, "has a prompt of 9 tokens, more than the 7 that a model of 8 positions allows")]
    assert written(made, [words(7)], max_length=100) == ([7], [])


@pytest.mark.parametrize("options", [{"beam": 3}, {"sample": True, "nbest": 3}, {"contrastive": 0.6}], ids=str)
def test_source_and_target_of_one_text_share_its_positions(options: dict[str, Any]) -> None:
    """Whatever the limits are set to, and whatever stands beside it."""
    made = system(ONE)
    assert made.task.longest == 14
    texts = [words(2), words(12), words(13), words(14), words(20)]
    lengths, said = written(made, texts, max_source=15, max_length=100, min_length=100, **options)
    assert lengths == [11, 1, None, None, None]  # with <sep> as many as there are positions
    assert said == [
        (2, "has 13 tokens, after which a model of 14 positions leaves no room for an output; split it"),
        (3, "has 14 tokens, more than a model of 14 positions can read"),
        (4, "has 20 tokens, more than search.max_source=15; split it"),
    ]
    for text, length in zip(texts, lengths, strict=True):
        if length is not None:
            alone, _ = written(made, [text], max_source=15, max_length=100, min_length=100, **options)
            assert alone == [length]


@pytest.mark.parametrize("limits", [{"search": {"max_source": 1, "max_length": 1}}, {"search": {"max_source": 30}}])
def test_whatever_training_may_read_the_model_has_positions_for(limits: dict[str, Any]) -> None:
    for kind in (BOTH, ONE, NONE):
        task = system(kind, limits).task
        source = task.source.encode_many([words(6)])
        target = task.target.encode_many([words(6)])
        assert task.unfit(source[0], target[0]) is None
        (pair,) = task.score_items(source, target)
        assert len(pair.tokens) == 7


def test_pairs_beyond_the_positions_are_named_before_they_are_run() -> None:
    one, both = system(ONE).task, system(BOTH).task
    assert isinstance(one, TextGeneration)
    assert isinstance(both, TextGeneration)
    assert one.unfit([6] * 6, [6] * 7) is None
    assert (
        one.unfit([6] * 6, [6] * 8)
        == "has 6 tokens and a target of 8, together more than a model of 14 positions can read"
    )
    assert both.longest == 7
    assert both.unfit([6] * 6, [6] * 6) is None
    assert both.unfit([6] * 7, [6]) == "has 7 tokens, more than a model of 7 positions can read"
    assert both.unfit([6], [6] * 7) == "has a target of 7 tokens, more than a model of 7 positions can read"
    for task, source, target in ((one, 6, 8), (both, 7, 1), (both, 1, 7)):  # and are refused where they are run
        with pytest.raises(DataError, match=r"longer than the \d+ learned positions; shorten it"):
            task.score_items([[6] * source], [[6] * target])
        with pytest.raises(DataError, match=r"longer than the \d+ learned positions; shorten it"):
            list(task.attention([[6] * source], [[6] * target]))


def test_a_body_over_an_image_has_positions_for_its_cells() -> None:
    stem = {"kind": "convolution", "halvings": 1, "channels": 2}
    made = system({"source": {"kind": "image", "size": 16}, "model": {"encoder": {**LEARNED, "stem": stem}}})
    assert made.task.longest == 8 * 8
    image = np.random.default_rng(0).integers(256, size=(16, 48)).astype(np.uint8)
    assert made.task.unfit(image, [6] * 6) is None
    (pair,) = made.task.score_items([image], [[6] * 6])
    assert len(pair.tokens) == 7


def test_each_of_several_sources_has_all_positions_of_its_encoder() -> None:
    """However long they are together."""
    made = system(TWO)
    task = made.task
    assert task.longest == 7
    pairs = [(words(6), words(6)), (words(7), words(1)), (words(1), words(7)), (words(2), "")]
    lengths, said = written(made, pairs)
    assert [length is None for length in lengths] == [False, True, True, True]
    most = "tokens, more than search.max_source=6; split it"
    assert said == [(1, f"has a source 1 that has 7 {most}"), (2, f"has a source 2 that has 7 {most}"),
                    (3, "has a source 2 that is empty")]  # fmt: skip
    longer = made.outputs([pairs[2]], max_source=9, on_problem=lambda *told: said.append(told))
    assert longer == [[]]
    assert said[-1] == (0, "has 8 tokens, more than a model of 7 positions can read")
    assert task.unfit(([6] * 6, [6] * 6), [6] * 6) is None
    assert task.score_items([([6] * 6, [6] * 6)], [[6] * 6])[0].log_prob < 0
    for items in (([6] * 7, [6]), ([6], [6] * 7)):
        assert task.unfit(items, [6]) == "has 8 tokens, more than a model of 7 positions can read"
        with pytest.raises(DataError, match=r"longer than the 7 learned positions; shorten it"):
            task.score_items([items], [[6]])


@pytest.mark.parametrize("kind", [BOTH, ONE])
def test_evaluation_leaves_out_of_perplexity_what_does_not_fit(kind: dict[str, Any]) -> None:
    made, heard = system(kind), list[str]()
    lengths = [(2, 2), (6, 20), (6, 6)]
    examples = [Example(words(x), words(y), f"file:{i}") for i, (x, y) in enumerate(lengths)]
    result = made.task.evaluate(examples, made.search_settings(), heard.append)
    assert len(result.outputs) == 3
    (said,) = heard
    assert said.startswith("file:1 has ")
    assert said.endswith(
        f"more than a model of {made.task.longest} positions can read; left out of perplexity and attention"
    )


@pytest.mark.parametrize(("kind", "first"), [(BOTH, BOS), (ONE, SEP)])
def test_risk_draws_no_more_than_there_are_positions_for(kind: dict[str, Any], first: int) -> None:
    """Twice a target and five more would be more."""
    task = system(kind).task
    assert isinstance(task.model, EncoderDecoder | DecoderOnly)
    settings = ObjectiveSettings(kind="minimum_risk", samples=20)
    objective = make_objective(task.model, settings, 0.0, (first,), task.longest)
    assert isinstance(objective, MinimumRisk)
    sources = [[6] * 5, [7] * 2, [6]]
    targets = [[6] * 6, [7] * 5, [8]]
    batch = make_batch(task.source.pack(sources), targets, first=(first,))
    torch.manual_seed(1)
    drawn = objective._draw(batch, targets)
    before = [len(x) if first == SEP else 0 for x in sources]
    room = [min(2 * len(y) + 5, task.longest - 1 - x) for x, y in zip(before, targets, strict=True)]
    assert [max(map(len, some)) for some in drawn] == room  # reached, and no more
    assert objective(batch, 0.0).item() > 0
    unbounded = make_objective(task.model, settings, 0.0, (first,))
    with pytest.raises(DataError, match="learned positions"):
        unbounded(batch, 0.0)


def test_samples_of_a_line_do_not_depend_on_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, so that sums in another order do not tell."""
    made = system(BOTH, {"search": {"max_source": 8, "max_length": 8}})
    made.task.model.double()
    monkeypatch.setattr(searching, "for_decoding", lambda model, precision: model)  # of which there is none in float64
    texts = [words(1 + i % 4) for i in range(6)]
    for options in ({"sample": True, "nbest": 2, "top_p": 0.9}, {"mbr": 4, "nbest": 2}):
        settings: dict[str, Any] = {"temperature": 1.5, **options}
        together = [[x.tokens for x in outputs] for outputs in made.outputs(texts, **settings)]
        for batch_tokens in (1, 20):
            found = made.outputs(texts, batch_tokens=batch_tokens, **settings)
            assert [[x.tokens for x in outputs] for outputs in found] == together
        for cut in (1, 4):  # as a job that is resumed
            rest = made.outputs(texts[cut:], first_line=cut, **settings)
            assert [[x.tokens for x in outputs] for outputs in rest] == together[cut:]
        assert [[x.tokens for x in some] for some in made.outputs(texts, seed=2, **settings)] != together
        assert [[x.tokens for x in some] for some in made.outputs(texts, first_line=1, **settings)] != together
    assert made.generate(texts[4:], sample=True, first_line=4) == made.generate(texts, sample=True)[4:]


def test_minimum_bayes_risk_cuts_its_draws_and_sampling_does_not() -> None:
    made = system(BOTH)
    search = made.search_settings
    assert [search(**options).least for options in ({"sample": True}, {"mbr": 8}, {})] == [0.0, 0.02, 0.0]
    assert [search(epsilon=0.1, **options).least for options in ({"sample": True}, {"mbr": 8})] == [0.1, 0.1]
    assert search(mbr=8, epsilon=0).least == 0.0
    texts = [words(3)] * 20
    usual, cut, whole = (made.outputs(texts, mbr=8, epsilon=epsilon) for epsilon in (None, 0.02, 0.0))
    assert usual == cut
    assert usual != whole
