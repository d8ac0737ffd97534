"""Tags as one sequence: the chain's sums and best sequences against all sequences written out, what schemes forbid,
and taggers that are trained, resumed, saved and loaded."""

from __future__ import annotations

import math
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.data.examples import Example
from regard.data.targets.tags import Tags, TagsSettings, keeps_to, may_follow
from regard.errors import ConfigError, DataError, ModelError
from regard.evaluation.labels import spans
from regard.nn.crf import Chain, best_paths, crf_loss, log_partition, path_score, tag_log_probs
from regard.ragged import Ragged
from regard.training.checkpoint import WEIGHTS, load_tensors
from tests.conftest import FULL
from tests.test_targets import BODIES, DECODER, ENCODER, config

TAGS = 3


def chain(tags: int = TAGS) -> Chain:
    torch.manual_seed(0)
    made = Chain(tags).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def emissions(*lengths: int, tags: int = TAGS) -> Ragged:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(sum(lengths), tags, dtype=torch.float64, generator=generator)
    return Ragged.from_lengths(values, list(lengths))


def scores(made: Chain, rows: np.ndarray[Any, Any]) -> dict[tuple[int, ...], float]:
    """Lample et al. 2016, eq. 1: the score of every sequence of tags."""
    start, end, moves = (x.detach().numpy() for x in (made.start, made.end, made.transitions))
    found = {}
    for tags in product(range(rows.shape[1]), repeat=len(rows)):
        score = start[tags[0]] + end[tags[-1]] + sum(row[tag] for row, tag in zip(rows, tags, strict=True))
        found[tags] = float(score + sum(moves[a, b] for a, b in pairwise(tags)))
    return found


@torch.no_grad()
def test_a_chain_equals_all_sequences_written_out() -> None:
    made, given = chain(), emissions(4, 1, 3)
    tables = made(given)
    tags = torch.tensor([0, 2, 1, 1, 2, 1, 0, 0])
    rows = given.values.split([4, 1, 3])
    expected = 0.0
    for row, (one, own) in enumerate(zip(rows, tags.split([4, 1, 3]), strict=True)):
        every = scores(made, one.numpy())
        total = math.log(math.fsum(math.exp(score) for score in every.values()))
        assert float(log_partition(tables)[row]) == pytest.approx(total, rel=1e-12)
        assert float(path_score(tables, tags)[row]) == pytest.approx(every[tuple(own.tolist())], rel=1e-12)
        expected += total - every[tuple(own.tolist())]
        table = tables.values.split([4, 1, 3])[row].detach()
        ranked = sorted(every, key=lambda path: -every[path])[:5]
        found = best_paths(table, 5)
        assert [tuple(path) for path, _ in found] == ranked[: len(found)]
        assert [log_p for _, log_p in found] == pytest.approx([every[path] - total for path in ranked[: len(found)]])
        each = tag_log_probs(table, own.tolist())
        assert math.fsum(each) == pytest.approx(every[tuple(own.tolist())] - total, rel=1e-12)
        begun = {t: s for t, s in every.items() if t[0] == own[0]}
        first = math.log(math.fsum(map(math.exp, begun.values()))) - total
        assert each[0] == pytest.approx(first, rel=1e-12)
    assert float(crf_loss(tables, tags)) == pytest.approx(expected, rel=1e-12)
    # a row with a tag that training never saw costs nothing
    unknown = tags.clone()
    unknown[5] = -100
    own = crf_loss(made(given), unknown)
    alone = crf_loss(made(Ragged.from_lengths(given.values[:5], [4, 1])), tags[:5])
    torch.testing.assert_close(own, alone)


def test_the_gradient_is_what_is_expected_less_what_is_right() -> None:
    made, given = chain(), emissions(3)
    given.values.requires_grad_(True)
    crf_loss(made(given), torch.tensor([0, 1, 2])).backward()
    every = scores(made, given.values.detach().numpy())
    total = math.fsum(map(math.exp, every.values()))
    for word, right in enumerate([0, 1, 2]):
        for tag in range(TAGS):
            share = math.fsum(math.exp(s) for t, s in every.items() if t[word] == tag) / total
            assert given.values.grad is not None
            assert float(given.values.grad[word, tag]) == pytest.approx(share - (tag == right), abs=1e-12)


def tagger(labels: list[str], **settings: Any) -> Tags:
    made = Tags(TagsSettings(crf=True, **settings))
    made.labels = labels
    return made


@pytest.mark.parametrize(
    ("scheme", "labels"),
    [("bio", ["O", "B-A", "I-A", "B-B", "I-B"]), ("bioes", ["O", "B-A", "I-A", "E-A", "S-A", "B-B", "E-B"])],
)
@torch.no_grad()
def test_what_a_scheme_forbids_is_never_predicted(scheme: Any, labels: list[str]) -> None:
    made, target = chain(len(labels)), tagger(labels)
    target.scheme = scheme
    given = emissions(4, 1, 3, tags=len(labels))
    for one in given.values.split([4, 1, 3]):
        table = made(Ragged.from_lengths(one, [len(one)])).values.detach().float()
        every = scores(made, one.numpy())
        valid = {path: s for path, s in every.items() if keeps_to(scheme, [labels[i] for i in path])}
        total = math.log(math.fsum(map(math.exp, valid.values())))
        found = target.predictions(table, 3)
        ranked = sorted(valid, key=lambda path: -valid[path])[:3]
        assert [tuple(x.values) for x in found] == ranked
        assert [x.log_prob for x in found] == pytest.approx([valid[path] - total for path in ranked], abs=1e-4)
        right = Ragged.of([found[0].values])
        free = target.loss(Ragged.from_lengths(table, [len(one)]), right, 0.0)
        all_ = math.log(math.fsum(map(math.exp, every.values())))
        assert float(free) == pytest.approx(all_ - valid[ranked[0]], abs=1e-4)
        strict = tagger(labels, constrain_training=True)
        strict.scheme = scheme
        held = strict.loss(Ragged.from_lengths(table, [len(one)]), right, 0.0)
        assert float(held) == pytest.approx(total - valid[ranked[0]], abs=1e-4)


def test_which_tags_may_follow() -> None:
    assert may_follow("bio", "B-A", "I-A")
    assert not may_follow("bio", "B-A", "I-B")
    assert not may_follow("bio", None, "I-A")
    assert may_follow("bio", "B-A", None)
    assert not may_follow("bioes", "B-A", None)
    assert not may_follow("bioes", "B-A", "O")
    assert may_follow("bioes", "E-A", "S-B")
    assert keeps_to("bioes", ["S-A", "O", "B-B", "I-B", "E-B"])
    assert not keeps_to("bio", ["S-A"])


@pytest.mark.parametrize(
    ("given", "scheme"),
    [(["O B-A I-A", "B-A O"], "bio"), (["O I-A", "B-A O"], "none"), (["S-A O", "B-A E-A"], "bioes"),
     (["NN VB", "DT NN"], "none")],
)  # fmt: skip
def test_the_scheme_is_what_the_training_data_keep_to(given: list[str], scheme: str, tmp_path: Path) -> None:
    target = Tags(TagsSettings(crf=True))
    target.learn([Example("", text) for text in given])
    assert target.scheme == scheme
    target.save(tmp_path)
    again = Tags(TagsSettings(crf=True))
    again.load(tmp_path)
    assert (again.scheme, again.labels) == (target.scheme, target.labels)


def test_settings_and_data_that_do_not_fit_a_chain_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"target\.scheme is for tags that are scored together; set crf: true"):
        regard.Config.parse({"target": {"kind": "tags", "scheme": "bio"}, "model": ENCODER})
    heard: list[str] = []
    target = Tags(TagsSettings(crf=True, scheme="bio"))
    target.learn([Example("", "O I-A B-A")], say=heard.append)
    assert heard == ["some tags of the training data do not keep to target.scheme bio"]
    with pytest.raises(ConfigError, match="for up to 256 tags, and the training data hold 300"):
        target.learn([Example("", " ".join(f"T{i}" for i in range(300)))])
    target = tagger(["a", "b"])
    assert target.log_probs(torch.zeros(2, 2, 2), [0, 2]) == [0.0, -math.inf]
    with pytest.raises(DataError, match="a source of 2 words cannot have 1 tags"):
        target.log_probs(torch.zeros(2, 2, 2), [0])
    (tmp_path / "labels.json").write_text('{"kind": "tags", "labels": ["a", "b"], "scheme": "odd"}')
    with pytest.raises(ModelError, match="a scheme 'odd'"):
        target.load(tmp_path)


CRF: dict[str, Any] = {"target": {"crf": True}}


@pytest.mark.parametrize("body", ["lstm-alone", *(["transformer"] if FULL else [])])
def test_a_tagger_with_a_chain_learns_and_is_loaded_as_it_was(body: str, tmp_path: Path) -> None:
    made = config(tmp_path, "tags", BODIES[body], **CRF, training={"steps": 60, "validate_every": 60})
    system = regard.train(made)
    scores = system.test().scores
    assert scores["accuracy"].value > 90
    again = regard.load(system.folder, device="cpu")
    given = ["the film was good", "dull"]
    (first, *more), short = again.outputs(given, nbest=3)
    assert len(more) == 2
    assert first.text == system.generate(given)[0]
    assert again.score(given[:1], [first.text])[0].log_prob == pytest.approx(first.log_prob, abs=1e-4)
    assert short[0].log_prob == pytest.approx(again.outputs(["dull"])[0][0].log_prob, abs=1e-4)
    assert all(not spans(x.text.split()) or keeps_to("bio", x.text.split()) for x in (first, *more))
    found = again.explain(given[0])
    assert math.fsum(found.log_probs) == pytest.approx(first.log_prob, abs=1e-4)


def test_a_chain_resumes_exactly_in_half_precision_over_a_frozen_body(tmp_path: Path) -> None:
    more = {"precision": "bfloat16", "freeze": ["decoder"], "validate_every": 3, "save_every": 3}
    regard.train(config(tmp_path / "b", "tags", DECODER, **CRF, training={**more, "steps": 3, "schedule": "constant"}))
    part = config(tmp_path / "b", "tags", DECODER, **CRF, training={**more, "steps": 6, "schedule": "constant"})
    resumed = regard.train(part)
    straight = regard.train(
        config(tmp_path / "c", "tags", DECODER, **CRF, training={**more, "steps": 6, "schedule": "constant"})
    )
    one, other = (load_tensors(x.folder / WEIGHTS) for x in (resumed, straight))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert "chain.transitions" in one
