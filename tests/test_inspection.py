"""A model laid open: tokens and what else might have stood there, forced beginnings, edits, the beam as a tree, other
sources, doubt."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.config import merge, parse
from regard.data.sides import SHARED, Sides
from regard.data.tokenizers.kinds import train_tokenizer
from regard.errors import ConfigError, DataError
from regard.inspection.counterfactual import without_each_word
from regard.inspection.doubt import Doubt, coverage_gap, repetition
from regard.inspection.inspect import Inspection, with_edits
from regard.loading import new_task, together
from regard.nn.edits import Edits, RowEdit, shifted
from regard.search.beam import beam_search
from regard.search.tree import BeamTree, TreeObserver
from regard.system import System
from regard.tasks.task import attention_kind
from tests.chain import BOS, EOS, Steps, limits, random_chain
from tests.conftest import crossed, redrawn
from tests.toy import WORDS, toy_settings

TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "d_ff": 16}
NONE = {"kind": "none"}
MODELS: dict[str, dict[str, Any]] = {
    "recurrent": {"model": {"encoder": {"kind": "gru"}, "decoder": {"kind": "lstm", "heads": 2}}},
    "transformer": {"model": {"encoder": TRANSFORMER, "decoder": TRANSFORMER}},
    "one": {"model": {"encoder": NONE, "decoder": {**TRANSFORMER, "positions": "learned"}}},
    "text": {"model": {"encoder": NONE, "decoder": TRANSFORMER}, "source": NONE, "data": {"train": "train.txt"}},
    "ctc": {"model": {"encoder": {"kind": "transformer", "heads": 2}, "decoder": TRANSFORMER, "ctc": True}},
    "picture": {"model": {"encoder": {"kind": "stem", "stem": {"kind": "convolution", "channels": 2, "halvings": 2}},
                          "decoder": {"kind": "lstm"}}, "source": {"kind": "image", "size": 16}},
    "alone": {"model": {"encoder": TRANSFORMER, "decoder": NONE, "ctc": True}},
    "two": {"model": {"encoder": [TRANSFORMER, {"kind": "gru"}], "decoder": TRANSFORMER}, "source": [{}, {}]},
    "shared": {"model": {"encoder": TRANSFORMER, "decoder": {"kind": "gru"}, "share_encoder": True},
               "source": [{}, {}]},
}  # fmt: skip
ALL = pytest.mark.parametrize("name", [name for name in MODELS if name != "shared"])
WRITTEN_FROM_TEXT = pytest.mark.parametrize("name", ["recurrent", "transformer", "one", "ctc"])


@cache
def system(name: str, **more: Any) -> System:
    """A model of weights drawn at random."""
    settings = toy_settings(model={"d_model": 16}, search={"max_length": 6, "max_ratio": 100.0, "beam": 3})
    settings["preset"] = None
    sides = Sides.of(parse(merge(merge(settings, MODELS[name]), more)))
    sides.use({SHARED: train_tokenizer([*WORDS, *map(str.upper, WORDS)], "word", 100)})
    made = System(new_task(sides, torch.device("cpu")), Path())
    redrawn(made.task.model, 5).float()
    return made


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path_factory.mktemp("pictures") / "a.png"
    image.fromarray(np.random.default_rng(1).integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(path)
    return str(path)


def source_of(name: str, picture: str) -> Any:
    if name in ("two", "shared"):
        return ("alpha beta gamma", "delta eta")
    return picture if name == "picture" else "alpha beta gamma"


def pathless(found: Inspection) -> list[tuple[str, float, float, list[int]]]:
    """Outputs as `System.outputs` has them, without the mark at the end."""
    return [(x.text, x.score, x.log_prob, [token.id for token in x.tokens[:-1]]) for x in found.outputs]


# Tokens


@ALL
def test_outputs_are_those_of_the_search_and_their_tokens_those_of_the_score(name: str, picture: str) -> None:
    made, source = system(name), source_of(name, picture)
    found = made.inspect(source, nbest=2, alternatives=4)
    expected = made.outputs([source], nbest=2)[0]
    prompt = len(made.task.target.encode(source)) if name == "text" else 0
    assert pathless(found) == [(x.text, x.score, x.log_prob, x.tokens[prompt:]) for x in expected]
    task: Any = made.task
    item, marks = task.item(source), task.target.marks
    for output, own in zip(found.outputs, expected, strict=True):
        (pair,) = task.score_items([item], [own.tokens])
        assert [token.log_prob for token in output.tokens] == pytest.approx(pair.tokens[prompt:], abs=1e-5)
        assert output.tokens[-1].id == marks.end
        for token in output.tokens:
            log_probs = [one.log_prob for one in token.alternatives]
            assert log_probs == sorted(log_probs, reverse=True)
            assert len({one.id for one in token.alternatives}) == 4
            assert math.fsum(map(math.exp, log_probs)) <= 1 + 1e-5
            assert not marks.framing - {marks.end} & {one.id for one in token.alternatives}
            assert max(log_probs) >= token.log_prob - 1e-5 or token.id in marks.framing
            assert [one.text for one in token.alternatives if one.id == token.id] in ([], [token.text])
    assert [token.text for token in found.outputs[0].tokens] == found.explanation.target
    assert found.explanation.log_probs == pytest.approx([x.log_prob for x in found.outputs[0].tokens], abs=1e-5)


@ALL
def test_an_alternative_that_is_forced_is_written_and_the_rest_after_it(name: str, picture: str) -> None:
    made, source = system(name), source_of(name, picture)
    first = made.inspect(source, min_length=2)
    tokens = [token.id for token in first.outputs[0].tokens]
    other = next(x.id for x in first.outputs[0].tokens[1].alternatives if x.id not in (tokens[1], tokens[-1]))
    found = made.inspect(source, forced=[tokens[0], other], nbest=3)
    assert found.forced == 2
    for output in found.outputs:
        assert [token.id for token in output.tokens[:2]] == [tokens[0], other]
    before, after = (x.outputs[0].tokens[0] for x in (first, found))  # nothing before the change is changed
    assert after.log_prob == pytest.approx(before.log_prob, abs=1e-5)
    assert [x.id for x in after.alternatives] == [x.id for x in before.alternatives]
    # All that is written, its end too, can be forced again.
    whole = made.inspect(source, forced=[token.id for token in found.outputs[0].tokens])
    assert pathless(whole)[0][3] == pathless(found)[0][3]
    assert whole.tree is None
    if name not in ("ctc", "text"):  # joint decoding scores with CTC too; a prompt counts in what is ranked by
        assert pathless(whole)[0][1:3] == pytest.approx(pathless(found)[0][1:3], abs=1e-5)
    ended = made.inspect(source, forced=[tokens[-1]])
    assert [token.id for token in ended.outputs[0].tokens] == [tokens[-1]]


def test_what_cannot_be_forced_is_refused() -> None:
    made = system("transformer")
    with pytest.raises(DataError, match=r"there is no token 999; there are \d+, counted from 0"):
        made.inspect("alpha", forced=[999])
    with pytest.raises(DataError, match="holds <s>, which no output does"):
        made.inspect("alpha", forced=[made.task.target.marks.first[-1]])
    with pytest.raises(DataError, match=r"a prefix of 9 tokens, more than the 6 that search.max_length=6 allows"):
        made.inspect("alpha", forced=[7] * 9)
    with pytest.raises(DataError, match="-1 alternatives of a token cannot be shown; give 0 or more"):
        made.inspect("alpha", alternatives=-1)


# Edits


@ALL
@pytest.mark.parametrize("beam", [1, 2])
def test_what_is_written_with_edits_is_what_edited_attention_makes_likeliest(
    name: str, picture: str, beam: int
) -> None:
    made, source = system(name), source_of(name, picture)
    plain = made.inspect(source)
    rows, off = [], []
    for layer in plain.explanation.layers:
        if layer.name == "ctc":
            continue
        heads, queries, keys = layer.weights.shape
        kept = np.linspace(0.0, 1.0, keys)[::-1]
        rows += [RowEdit(layer.name, heads - 1, min(at, queries - 1), tuple(kept.tolist())) for at in (0, 1)]
        off += [(layer.name, 0)] * (heads > 1)
    found = made.inspect(source, edits=Edits(tuple(off), tuple(rows)), beam=beam, ctc=0.0 if name == "ctc" else None)
    assert found.edited
    assert not plain.edited
    for token in found.outputs[0].tokens if beam == 1 else ():
        allowed = [x for x in token.alternatives if x.text != "<unk>"]
        assert token.id in (allowed[0].id, made.task.target.marks.end)  # the length may be full
    for layer in found.explanation.layers:
        if layer.name == "ctc":
            continue
        heads, queries, keys = layer.weights.shape
        assert heads == 1 or not layer.weights[0].any()
        own = np.linspace(0.0, 1.0, plain.explanation.layer(layer.name).weights.shape[2])[::-1][:keys]
        own = np.pad(own, (0, keys - len(own)))
        own = own * (np.arange(keys) <= 1) if layer.kind == "decoder" else own
        if queries > 1 and own.sum():
            np.testing.assert_allclose(layer.weights[-1, 1], own / own.sum(), atol=1e-6)
    assert made.inspect(source).outputs == plain.outputs  # the model itself is as it was


def test_edits_are_held_against_what_there_is() -> None:
    made, layer = system("transformer"), "decoder.blocks.0.cross_attention"
    with pytest.raises(ConfigError, match=r"2 weights for decoder.blocks.0.cross_attention, which looks at 4 source"):
        made.inspect("alpha beta gamma", edits=Edits(rows=(RowEdit(layer, None, 0, (1.0, 1.0)),)))
    encoder = "encoder.blocks.0.self_attention"
    with pytest.raises(ConfigError, match=r"no position 9 in encoder.blocks.0.self_attention; there are 4"):
        made.inspect("alpha beta gamma", edits=Edits(rows=(RowEdit(encoder, None, 9, (1.0,) * 4),)))
    plain = {"heads_off": [[layer, 1]], "rows": [{"layer": layer, "position": 2, "weights": [0, 1]}]}
    assert Edits.from_json(plain) == Edits(((layer, 1),), (RowEdit(layer, None, 2, (0.0, 1.0)),))
    assert not Edits.from_json({})
    wrong: list[Any] = [{"rows": [{"layer": layer}]}, {"off": []}, {"heads_off": [3]}, {"rows": [{"heads": 1}]}, [],
                        {"heads_off": [[layer, math.inf]]}]  # fmt: skip
    for data in wrong:
        with pytest.raises(ConfigError, match="these are no edits"):
            Edits.from_json(data)


def test_positions_are_those_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whisper writes after four marks, of which an explanation shows the last alone."""
    made = system("transformer")
    cross, own, encoder = (f"decoder.blocks.0.{x}_attention" for x in ("cross", "self", "self"))
    edits = Edits(rows=(RowEdit(cross, None, 1, (1.0, 2.0)), RowEdit(own, 0, 1, (1.0, 2.0))))
    moved = shifted(edits, {cross: (3, 0), own: (3, 3)})
    assert moved.rows == (RowEdit(cross, None, 4, (1.0, 2.0)), RowEdit(own, 0, 4, (0.0, 0.0, 0.0, 1.0, 2.0)))
    assert encoder == own
    monkeypatch.setattr(type(made.task), "hidden", 3)
    task = with_edits(made.task, made.task.item("alpha"), replace(edits, rows=edits.rows[:1]))
    module: Any = task.model.get_submodule(cross)
    assert [row.position for row in module.edits.rows] == [4]
    assert attention_kind(cross) == "cross"


# The beam


def check_tree(tree: BeamTree, width: int, end: int) -> None:
    for number, node in enumerate(tree.nodes):
        assert node.id == number
        assert (node.parent is None) == (number == 0)
        if node.parent is not None:
            parent = tree.nodes[node.parent]
            assert (parent.id < number, parent.step) == (True, node.step - 1)
            assert parent.state in ("open", "best")
            assert node.log_prob <= parent.log_prob + 1e-5
    assert len({(node.parent, node.token) for node in tree.nodes}) == len(tree.nodes)
    for step in range(1, tree.steps + 1):
        kept = [x for x in tree.nodes if x.step == step and x.state in ("open", "best") and x.token != end]
        fallen = [x for x in tree.nodes if x.step == step and x.state == "pruned"]
        assert len(kept) <= width
        assert len(fallen) <= width
        worst = min((x.log_prob for x in kept), default=math.inf)
        assert all(x.log_prob <= worst + 1e-6 for x in fallen if x.token != end) or not kept


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("width", [1, 2, 64])
def test_a_tree_has_what_a_search_on_a_table_weighed_up(seed: int, width: int) -> None:
    chain, rules = random_chain(1, seed), limits([3])
    plain = beam_search(Steps(chain.step), chain.start(), limits=rules, width=width, nbest=width)
    observer = TreeObserver(BOS, EOS, width, torch.ones_like)
    found = beam_search(
        Steps(chain.step), chain.start(), limits=rules, width=width, nbest=width, observe=observer.watch
    )
    assert found == plain
    tree = observer.tree(found[0][0].tokens)
    paths: list[list[int]] = [[]]
    for node in tree.nodes[1:]:
        paths.append([*paths[node.parent or 0], node.token])
        ended = node.token == EOS
        if ended:
            assert node.log_prob == pytest.approx(chain.log_prob(0, paths[-1][:-1]), abs=1e-6)
    closed = {
        tuple(path[:-1]): x.score
        for path, x in zip(paths, tree.nodes, strict=True)
        if path[-1:] == [EOS] and x.state != "pruned"
    }
    for hypothesis in found[0]:
        assert closed[tuple(hypothesis.tokens)] == pytest.approx(hypothesis.score, abs=1e-6)
    best = [node.token for node in tree.nodes if node.state == "best"]
    assert best == [BOS, *found[0][0].tokens, EOS]
    if width < 64:
        check_tree(tree, width, EOS)
    else:
        assert not [node for node in tree.nodes if node.state == "pruned" and node.token != EOS]


@pytest.mark.parametrize(
    ("name", "more"),
    crossed(
        [name for name in MODELS if name != "shared"],
        [
            {},
            {"beam": 1},
            {"beam": 4, "groups": 2, "nbest": 4},
            {"length_penalty": "gnmt"},
            {"length_penalty": "average", "at_limit": "cut", "prefix_scored": False, "repetition_penalty": 1.2},
        ],
    ),
    ids=str,
)
def test_the_tree_of_a_search_leads_to_its_outputs(name: str, more: dict[str, Any], picture: str) -> None:
    made, source = system(name), source_of(name, picture)
    plain, found = made.inspect(source, **more), made.inspect(source, tree=True, **more)
    assert found.outputs == plain.outputs
    assert plain.tree is None
    tree = found.tree
    assert tree is not None
    best = [node for node in tree.nodes if node.state == "best"]
    prompt = len(made.task.target.encode(source)) if name == "text" else 0
    assert [x.text for x in best[1 + prompt :]] == [token.text for token in found.outputs[0].tokens]
    assert best[-1].log_prob == pytest.approx(found.outputs[0].log_prob, abs=1e-5)
    assert best[-1].score == pytest.approx(found.outputs[0].score, abs=1e-5)
    assert {node.state for node in tree.nodes} <= {"open", "pruned", "closed", "best"}
    if "groups" not in more:
        check_tree(tree, tree.width, made.task.target.marks.end)
    forced = made.inspect(source, forced=[7, 8], tree=True, **more).tree
    assert forced is not None
    assert [node.token for node in forced.nodes if node.state == "best"][prompt + 1 : prompt + 3] == [7, 8]


def test_several_models_are_inspected_as_one() -> None:
    one = system("transformer")
    both = System(together([one.task, replace(one.task, model=deepcopy(one.task.model))]), Path())
    plain, found = one.inspect("alpha beta", tree=True), both.inspect("alpha beta", tree=True)
    assert [token.id for token in found.outputs[0].tokens] == [token.id for token in plain.outputs[0].tokens]
    assert found.outputs[0].log_prob == pytest.approx(plain.outputs[0].log_prob, abs=1e-4)
    off = Edits((("models.1.decoder.blocks.0.cross_attention", 0),))
    layers = {x.name: x.weights for x in both.inspect("alpha beta", edits=off).explanation.layers}
    assert not layers["models.1.decoder.blocks.0.cross_attention"][0].any()
    assert layers["models.0.decoder.blocks.0.cross_attention"][0].any()
    with pytest.raises(ConfigError, match="explain one of its models"):
        both.explain("alpha beta", methods=("erasure",))


def test_what_is_drawn_has_no_tree() -> None:
    made = system("recurrent")
    for how in ({"sample": True}, {"mbr": 3}, {"contrastive": 0.6}):
        assert made.inspect("alpha beta", tree=True, **how).tree is None


@ALL
def test_an_inspection_is_plain_data(name: str, picture: str) -> None:
    found = system(name).inspect(source_of(name, picture), tree=True, alternatives=2)
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert set(plain) == {"source", "source_word", "outputs", "forced", "tree", "explanation", "edited"}
    assert set(plain["outputs"][0]) == {"text", "score", "log_prob", "tokens"}
    assert set(plain["outputs"][0]["tokens"][0]) == {"text", "id", "log_prob", "alternatives"}
    assert set(plain["tree"]) == {"nodes", "width", "steps"}
    named = {"id", "parent", "step", "token", "text", "log_prob", "score", "state"}
    assert set(plain["tree"]["nodes"][0]) == named
    assert plain["source"] == plain["explanation"]["source"]


# Other sources


@WRITTEN_FROM_TEXT
def test_variants_of_a_source_are_held_against_what_was_written_for_it(name: str) -> None:
    made, source = system(name), "alpha beta gamma"
    original = made.outputs([source])[0][0].text
    variants = [source, "beta gamma", "delta"]
    found = made.counterfactual(source, variants)
    assert [x.field for x in found] == variants
    assert [x.text for x in found] == made.generate(variants)
    scores = [x.log_prob for x in made.score(variants, [original] * 3)]
    assert [x.log_prob_of_original for x in found] == pytest.approx(scores, abs=1e-4)
    assert found[0].change == 0.0
    assert found[1].change == pytest.approx(scores[1] - scores[0], abs=1e-4)
    assert [x.field for x in made.counterfactual(source)] == without_each_word(source)
    alone = made.counterfactual("alpha")
    assert [(x.field, x.text, x.problem) for x in alone] == [("", "", "is empty")]
    assert json.loads(json.dumps(alone[0].to_json(), allow_nan=False))["score"] is None


def test_the_variants_of_a_prompt_are_judged_by_what_comes_after_them() -> None:
    made = system("text")
    original = made.outputs(["alpha beta"])[0][0].tokens[2:]
    (found,) = made.counterfactual("alpha beta", ["gamma"])
    (pair,) = made.task.score_items([made.task.item("")], [[*made.task.target.encode("gamma"), *original]])
    assert found.log_prob_of_original == pytest.approx(math.fsum(pair.tokens[1:]), abs=1e-4)
    assert [x.field for x in made.counterfactual("alpha beta")] == ["beta", "alpha"]
    with pytest.raises(ConfigError, match="say which variants"):
        system("picture").counterfactual("a.png")


# Doubt


def test_doubt_is_the_formula_and_each_sign_alone_can_make_it_whole() -> None:
    sure = Doubt("a b", 0.0, "a", 0.0, 0.0, [], 0.0)
    assert sure.doubt == 0.0
    some = Doubt("a b", math.log(0.8), "a", math.log(0.25), 0.5, [0], 0.1)
    assert some.doubt == pytest.approx(1 - 0.8 * 0.5 * 0.5 * 0.9)
    worst: list[dict[str, Any]] = [
        {"mean_log_prob": -math.inf}, {"least_log_prob": -math.inf}, {"gap": 1.0}, {"repetition": 1.0},
    ]  # fmt: skip
    for change in worst:
        assert replace(sure, **change).doubt == 1.0
    assert some.to_json()["doubt"] == 0.82


def test_the_coverage_gap_is_what_nothing_was_attended_to_of() -> None:
    even, words = np.full((3, 3), 1 / 3, np.float32), [0, 1, 2]
    assert coverage_gap(even, words, words)[0] == pytest.approx(0.0, abs=1e-6)
    assert coverage_gap(even, words, words)[1] == []
    first = np.zeros((3, 3), np.float32)
    first[:, 0] = 1.0
    assert coverage_gap(first, words, words)[0] == pytest.approx(2 / 3)
    assert coverage_gap(first, words, words)[1] == [1, 2]
    # A short output cannot attend to all of a long source, but it can to all alike.
    assert coverage_gap(np.full((1, 4), 0.25, np.float32), [0], [0, 1, 2, 3])[0] == pytest.approx(0.0)
    assert coverage_gap(np.ones((1, 1), np.float32), [-1], [-1]) == (0.0, [])
    assert repetition("the cat saw the cat") == 0.25
    assert repetition("la la la la") == pytest.approx(2 / 3)
    assert repetition("one") == repetition("") == 0.0


@ALL
def test_doubts_of_a_document_are_those_of_its_sentences(name: str, picture: str) -> None:
    made = system(name)
    sources = ["alpha beta", "gamma alpha beta delta", "eta"]
    if name in ("picture", "two"):
        sources = [source_of(name, picture)] * 2
    together, alone = made.doubts(sources), [made.doubts([source])[0] for source in sources]
    for found, one, source in zip(together, alone, sources, strict=True):
        assert found is not None
        assert one is not None
        assert found.doubt == pytest.approx(one.doubt, abs=1e-4)
        tokens = made.inspect(source).outputs[0].tokens
        assert found.mean_log_prob == pytest.approx(math.fsum(x.log_prob for x in tokens) / len(tokens), abs=1e-4)
        assert found.least_log_prob == pytest.approx(min([x.log_prob for x in tokens[:-1]], default=0.0), abs=1e-4)
        assert 0.0 <= found.doubt <= 1.0
        assert not found.gap or name not in ("picture", "one", "text", "two")
        assert json.dumps(found.to_json(), allow_nan=False)


def test_given_targets_are_judged_and_what_cannot_be_used_is_told() -> None:
    made, heard = system("transformer"), list[int]()
    (own,) = made.doubts(["alpha beta"])
    assert own is not None
    assert made.doubts(["alpha beta"], [own.text]) == [own]
    found = made.doubts(["alpha", ""], on_problem=lambda i, what: heard.append(i))
    assert [x is None for x in found] == [False, True]
    assert heard == [1]
    with pytest.raises(DataError, match="1 sources but 2 targets"):
        made.doubts(["alpha"], ["a", "b"])
