"""Training without the end of sequences (Newman et al. 2020): the loss by its equation, however it is taken; runs, and
search that is told how long outputs are."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.config import parse
from regard.data.batch import IGNORED, Batch, Room, make_batch
from regard.data.layouts import Pairs
from regard.data.marks import BOS, EOS
from regard.data.tokenizers.kinds import train_tokenizer
from regard.errors import ConfigError, RegardError
from regard.ragged import Ragged
from regard.system import System
from regard.tasks.results import Encoded
from regard.training.checkpoint import WEIGHTS, load_tensors
from regard.training.objectives import make_objective
from regard.training_settings import ObjectiveSettings
from tests.conftest import TARGET_VOCABULARY, Pair, batch, tiny
from tests.toy import toy_config, untrained, write_corpus

RECURRENT, TRANSFORMER = ("lstm-bi", "lstm-additive-feeding"), ("transformer-xl", "transformer-xl")


def without_ends() -> Batch:
    source, targets = batch()
    return make_batch(source, targets.tolist(), ends=False)


def test_an_end_that_is_left_out_is_read_nowhere_and_does_not_count() -> None:
    made = make_batch(Ragged.of([[7], [8]]), [[9], [6, 6, 6]], ends=False)
    assert made.inputs.tolist() == [[BOS, 9], [BOS, 6, 6, 6]]
    assert made.outputs.tolist() == [[9, IGNORED], [6, 6, 6, IGNORED]]
    assert made.tokens == 4
    forced = make_batch(Ragged.of([[7]]), [[9, 5]], first=(BOS, 3, 4), ends=False)
    assert forced.outputs.tolist() == [[IGNORED, IGNORED, 9, 5, IGNORED]]
    assert forced.tokens == 2


@pytest.mark.parametrize(
    ("pair", "model", "settings", "smoothing"),
    [
        (RECURRENT, {}, {}, 0.0),
        (TRANSFORMER, {}, {}, 0.1),
        (TRANSFORMER, {}, {"agreement": 3.0}, 0.1),
        (RECURRENT, {}, {"kind": "scheduled_sampling", "own_tokens": 0.0}, 0.1),
        (RECURRENT, {"output": "adaptive", "tie_output": False, "cutoffs": (4, 8)}, {}, 0.0),
        (TRANSFORMER, {"softmaxes": 2}, {}, 0.0),
    ],
    ids=["plain", "smoothed", "agreement", "scheduled_sampling", "adaptive", "mixture"],
)
def test_the_loss_is_that_of_all_tokens_but_the_end(
    pair: Pair, model: dict[str, Any], settings: dict[str, Any], smoothing: float
) -> None:
    """`-Σ_{t < T} log p(y_t given y_<t, x)` of targets whose end is `y_T`, smoothed; so are its gradients. The model of
    two passes drops nothing, so they agree."""
    network, example = tiny(pair, dropout=0.0, **model), without_ends()
    if "cutoffs" in model:
        head: Any = network.head
        head.rank(torch.arange(TARGET_VOCABULARY))
    objective = make_objective(network, ObjectiveSettings(**settings), smoothing, (BOS,))
    found = objective(example, 1.0)

    logits = network(example.source, example.inputs)
    log_p = logits.values.log_softmax(-1).detach().numpy()
    targets, rows = batch()[1].tolist(), list(pairwise(example.outputs.offsets.tolist()))
    expected = 0.0
    for (begin, _), target in zip(rows, targets, strict=True):
        for place, y in enumerate(target, begin):
            expected -= (1 - smoothing) * log_p[place, y] + smoothing * log_p[place].mean()
    assert found.item() == pytest.approx(expected, rel=1e-6)
    assert example.tokens == sum(map(len, targets))

    mine = torch.autograd.grad(found, list(network.parameters()), allow_unused=True)
    kept = torch.cat([torch.arange(begin, end - 1) for begin, end in rows])
    loss = torch.nn.functional.cross_entropy(
        logits.values[kept], torch.tensor(list(chain(*targets))), label_smoothing=smoothing, reduction="sum"
    )
    theirs = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
    for ours, other in zip(mine, theirs, strict=True):
        assert (ours is None or not ours.any()) if other is None else torch.allclose(ours, other, atol=1e-7)


def test_what_fills_a_batch_up_counts_as_little_as_its_ends() -> None:
    example = without_ends()
    filled = example.filled(Room(source=64, target=64, rows=16, longest=0))
    assert filled is not None
    assert filled.tokens == example.tokens == int((filled.outputs.values != IGNORED).sum())


def test_a_run_leaves_ends_out_everywhere_and_is_resumed(tmp_path: Path) -> None:
    write_corpus(tmp_path, 40)
    model = {"d_model": 16, "encoder": "gru", "decoder": {"kind": "gru", "context": "attention"}}
    short = {
        "steps": 6,
        "batch_tokens": 100,
        "validate_every": 3,
        "save_every": 3,
        "validate_sentences": 1,
        "metric": "loss",
    }

    def config(run: str, steps: int = 6, ends: bool = False) -> regard.Config:
        training = {**short, "steps": steps, "objective": {"ends": ends}}
        return toy_config(tmp_path, run=run, model=model, training=training)

    whole, other = regard.train(config("whole")), regard.train(config("other", ends=True))
    regard.train(config("part", steps=3))
    part = regard.train(config("part"))
    one, two, three = (load_tensors(system.folder / WEIGHTS) for system in (whole, part, other))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], three[name]) for name in one)
    with pytest.raises(RegardError, match=r"training\.objective\.ends \(false before, true now\)"):
        regard.train(config("part", steps=9, ends=True))

    loaded = regard.load(tmp_path / "part", device="cpu")
    result = loaded.evaluate(tmp_path / "test.tsv", max_length=8)
    pairs = [line.split("\t")[:2] for line in (tmp_path / "test.tsv").read_text().splitlines()]
    sources, targets = map(list, zip(*pairs, strict=True))
    scores = [pair.tokens for pair in loaded.score(sources, targets)]
    assert [len(x) for x in scores] == [len(target.split()) + 1 for target in targets]  # asked for, an end has a score
    learnt = np.concatenate([x[:-1] for x in scores])
    task: Any = loaded.task
    examples = Encoded(task.source.encode_many(sources), task.target.encode_many(targets), [])
    assert task.loss(examples) == pytest.approx(-learnt.mean(), rel=1e-5)
    assert result.scores["perplexity"].value == pytest.approx(np.exp(-learnt.mean()), rel=1e-5)
    assert result.scores["perplexity"].signature.endswith("|end:left out")
    assert result.exposure is None


@pytest.mark.parametrize("encoder", ["gru", "none"])
def test_training_batches_of_a_task_are_without_ends(encoder: str) -> None:
    config = parse(
        {"tokens": {"kind": "word"}, "model": {"d_model": 16, "encoder": encoder, "decoder": "transformer"},
         "training": {"objective": {"ends": False}}}
    )  # fmt: skip
    task = untrained(config, train_tokenizer(["a b c"] * 3, "word", 300))
    layout: Any = task.layout
    assert isinstance(layout, Pairs)
    items, targets = task.source.encode_many(["a b", "c"]), task.target.encode_many(["b a", "a"])
    made = layout(items, targets, np.random.default_rng(0))
    assert [row[-1] for row in made.outputs.tolist()] == [IGNORED] * 2
    assert [row[-1] for row in task.batch(items, targets).outputs.tolist()] == [EOS] * 2


def test_where_the_length_is_told_it_does_not_matter_how_likely_the_end_is() -> None:
    """Greedily, as the recipes' `given_length.py` searches: what was never trained may be anything."""
    part = {"kind": "gru"}
    config = parse({"tokens": {"kind": "word"}, "model": {"d_model": 16, "encoder": part, "decoder": part}})
    system = System(untrained(config, train_tokenizer(["a b c d"] * 3, "word", 300)), Path())
    model: Any = system.task.model
    found = []
    for likely in (0.0, 60.0, -60.0):
        with torch.no_grad():
            model.head.linear.bias[EOS] = likely
        found.append([system.generate(["a b", "c d a"], beam=1, min_length=n, max_length=n) for n in (1, 4, 7)])
    assert found[0] == found[1] == found[2]
    assert [[len(text.split()) for text in texts] for texts in found[0]] == [[1, 1], [4, 4], [7, 7]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"source": "none", "model": {"encoder": "none"}},
            "is for outputs of a source, and source.kind is none; set it to true",
        ),
        ({"model": {"ctc": True}}, "does not go with model.ctc, which learns where outputs end all the same"),
        ({"model": {"ctc": True, "decoder": "none"}}, "does not go with model.ctc"),
        ({"target": "image"}, "outputs of target.kind 'image' have one length; set it to true"),
        ({"target": "label", "model": {"decoder": "none"}}, "is for what writes text; target.kind is 'label', so set"),
        (
            {"training": {"objective": {"kind": "minimum_risk"}}},
            "goes with kind likelihood or scheduled_sampling, not 'minimum_risk'; set it to true",
        ),
        (
            {"model": {"decoder": {"kind": "lstm", "hard": True}}},
            "does not go with decoder.hard, which is credited with",
        ),
    ],
    ids=["language model", "ctc beside", "ctc alone", "picture", "head", "risk", "hard"],
)
def test_where_ends_are_needed_leaving_them_out_is_refused(settings: dict[str, Any], message: str) -> None:
    training = settings.get("training", {"objective": {}})
    training = {"objective": {**training["objective"], "ends": False}}
    with pytest.raises(ConfigError) as error:
        regard.Config.parse({**settings, "training": training})
    assert "training.objective.ends" in str(error.value)
    assert message in str(error.value)
