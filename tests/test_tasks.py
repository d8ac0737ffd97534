"""Pairs of texts, end to end: a decoder alone with a separator, ways to steer the search, ensembles,
models to start from, objectives, budgets, hard attention, shared layers."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import regard
from regard.artifacts import read_json, write_json
from regard.config import merge
from regard.errors import ConfigError
from regard.runs import Stopped
from regard.training.checkpoint import checkpoints, load_tensors
from tests.conftest import FULL, crossed, whole
from tests.test_cli import good, refused, run
from tests.test_training import StopAt, final
from tests.toy import WORDS, toy_config, toy_pairs, toy_settings, write_corpus

TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 64}
ONE: dict[str, Any] = {"kind": "none"}
HARD = {"kind": "lstm", "score": "additive", "place": "output", "hard": True}

MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"training": {"steps": 200}},
    "transformer": {"model": {"encoder": TRANSFORMER, "decoder": TRANSFORMER}, "training": {"steps": 200}},
    "one-lstm": {"preset": "one-lstm", "model": {"decoder": {"layers": 1}}, "training": {"steps": 200}},
    "one-transformer": {
        "preset": "one-transformer",
        "model": {"decoder": {**TRANSFORMER, "layers": 2, "positions": "learned"}},
        "training": {"steps": 300 if FULL else 20},  # what it has learnt is only tested with all
    },
    "hard": {"model": {"decoder": HARD}, "training": {"steps": 250}},
    "shared": {
        "model": {"encoder": TRANSFORMER, "decoder": TRANSFORMER, "share_layers": True},
        "training": {"steps": 200},
    },
    "characters": {"tokens": {"kind": "char"}, "training": {"steps": 1}},
    "text": {
        "preset": "gpt-mini",
        "data": {"train": "text.txt", "valid": "text.txt", "test": None},
        "model": {"decoder": TRANSFORMER},
        "training": {"steps": 20},
    },
}


def settings(name: str, **changes: Any) -> dict[str, Any]:
    quiet = {"model": {"dropout": 0.0}, "training": {"validate_every": 1000, "save_every": 1000}, "run": name}
    return merge(merge(merge(toy_settings(), quiet), MODELS[name]), changes)


class Trained:
    """Models on the toy pairs, each trained when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_corpus(folder)
        pairs = [(x.source, x.target) for x in toy_pairs(folder / "train.tsv")]
        (folder / "text.txt").write_text("".join(f"{source}\n{target}\n" for source, target in pairs[:200]))

    def __getitem__(self, name: str) -> Path:
        place = self.folder / name
        if not place.exists():
            regard.train(regard.Config.parse(settings(name), self.folder))
        return place


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_corpus(tmp_path)
    return tmp_path


def report(model: Path, *arguments: str | Path) -> dict[str, Any]:
    """What `regard evaluate` reports."""
    path = model.parent / f"{model.name}-report.json"
    good("evaluate", model, "--report", path, "--force", *arguments)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def exact(model: Path) -> float:
    return float(report(model)["scores"]["exact"]["score"])


SOURCES = ["alpha beta gamma", "theta eta", "delta delta epsilon zeta", "beta"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sources") / "in.txt"
    path.write_text("".join(line + "\n" for line in SOURCES))
    return path


# One network for source and target


@whole
def test_one_network_learns_pairs_with_a_separator(trained: Trained, tmp_path: Path) -> None:
    assert exact(trained["one-transformer"]) > 60
    assert good("generate", trained["one-transformer"], text="alpha beta\ngamma eta\n") == "BETA ALPHA\nETA GAMMA\n"
    good("explain", trained["one-transformer"], "alpha beta", "-o", tmp_path / "a.json")
    (found,) = json.loads((tmp_path / "a.json").read_text())
    assert found["inputs"] == ["alpha", "beta", "<sep>", "BETA", "ALPHA"]
    assert found["given"] == 3
    assert len(found["log_probs"]) == len(found["target"]) == 3  # of what was written, its end counted
    weights = np.array(found["layers"][0]["weights"])
    assert weights.shape == (2, 5, 5)
    assert not np.triu(weights, 1).any()


@whole
def test_one_recurrent_network_learns_too(trained: Trained) -> None:
    """Through one vector, so less well; but far better than it could guess."""
    records = [json.loads(line) for line in (trained["one-lstm"] / "log.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < 0.5 * losses[0]
    assert report(trained["one-lstm"])["scores"]["perplexity"]["score"] < 3 < len(WORDS)
    assert good("generate", trained["one-lstm"], text="alpha beta\n") == "BETA ALPHA\n"


# Steering the search


@pytest.mark.parametrize(
    ("options", "model"),
    crossed([(), ("--beam", "1"), ("--sample",), ("--set", "contrastive=0.3")], ["lstm", "one-transformer"]),
)
def test_outputs_begin_with_their_prefixes(
    trained: Trained, sources: Path, tmp_path: Path, model: str, options: tuple[str, ...]
) -> None:
    prefixes = ["ZETA", "", "THETA THETA GAMMA", "ALPHA BETA"]
    (tmp_path / "prefixes.txt").write_text("".join(line + "\n" for line in prefixes))
    outputs = good("generate", trained[model], sources, "--prefixes", tmp_path / "prefixes.txt", *options).splitlines()
    assert len(outputs) == 4
    for prefix, output in zip(prefixes, outputs, strict=True):
        assert f"{output} ".startswith(f"{prefix} " if prefix else "")
    if not options:
        assert outputs[1] == "ETA THETA"  # what has no prefix is as ever
        api = regard.load(trained[model]).generate(SOURCES, prefixes=prefixes)
        assert api == outputs


@pytest.mark.parametrize("model", ["lstm", "transformer"] if FULL else ["lstm"])
def test_outputs_hold_their_phrases(trained: Trained, sources: Path, tmp_path: Path, model: str) -> None:
    phrases = [["ZETA", "THETA ALPHA"], [], ["GAMMA GAMMA"], ["BETA", "ALPHA", "BETA"]]
    (tmp_path / "phrases.txt").write_text("".join("\t".join(some) + "\n" for some in phrases))
    plain = good("generate", trained[model], sources).splitlines()
    outputs = good("generate", trained[model], sources, "--phrases", tmp_path / "phrases.txt").splitlines()
    assert len(outputs) == 4
    for some, output in zip(phrases, outputs, strict=True):
        assert all(f" {phrase} " in f" {output} " for phrase in some)
    assert outputs[3].split().count("BETA") >= 2  # asked for twice
    assert outputs[1] == plain[1]
    assert "need beam search" in refused(
        "generate", trained[model], sources, "--phrases", tmp_path / "phrases.txt", "--sample"
    )


def test_what_goes_beside_the_input_has_to_fit_it(trained: Trained, sources: Path, tmp_path: Path) -> None:
    model, beside = trained["lstm"], tmp_path / "beside.txt"
    beside.write_text("ALPHA\nBETA\n")
    for option in ("--prefixes", "--phrases"):
        said = refused("generate", model, sources, option, beside)
        assert (
            said == f"regard: {beside} ends before the input does; it needs as many lines, of which some may be empty\n"
        )
        assert "no file" in refused("generate", model, sources, option, tmp_path / "gone.txt")
    beside.write_text("ALPHA BETA GAMMA\tZETA ETA\n\n\n\n")
    plain = good("generate", model, sources, "--set", "max_length=3").splitlines()
    most = "more than the 3 that search.max_length=3 allows; its line of output is empty"
    done = run("generate", model, sources, "--phrases", beside, "--set", "max_length=3")
    assert done.stdout.splitlines() == ["", *plain[1:]]  # what cannot be costs its own line alone
    assert f"{sources}:1 has phrases of 5 tokens, {most}" in done.stderr
    beside.write_text("ALPHA BETA GAMMA DELTA\n\n\n\n")
    done = run("generate", model, sources, "--prefixes", beside, "--set", "max_length=3")
    assert done.stdout.splitlines() == ["", *plain[1:]]
    assert f"{sources}:1 has a prefix of 4 tokens, {most}" in done.stderr
    assert "more lines" not in done.stderr
    beside.write_text("\n\n\n\nOMEGA\n")
    done = run("generate", model, sources, "--prefixes", beside, "--set", "max_length=3")
    assert done.stdout.splitlines() == plain
    assert f"{beside} has more lines than the input; what is behind was not used" in done.stderr


def test_groups_of_a_beam_are_pushed_apart(trained: Trained) -> None:
    four = ("--beam", "4", "--nbest", "4")
    pushed = ("--set", "groups=2", "--set", "diversity=20.0")
    plain, diverse = (
        good("generate", trained["lstm"], *four, *more, text="alpha beta gamma delta\n").rstrip("\n").split("\t")
        for more in ((), pushed)
    )
    assert plain[0] == diverse[0] == "DELTA GAMMA BETA ALPHA"
    one, more = (len({text.split()[0] for text in texts}) for texts in (plain, diverse))
    assert one == 1 < more  # each group begins in its own way
    assert len(set(diverse)) == 4
    milder = good("generate", trained["lstm"], *four, *pushed[:2], "--set", "diversity=2.0", text="alpha beta\n")
    assert len(set(milder.rstrip("\n").split("\t"))) > 1
    assert "beam (3) is not divisible by groups (2)" in refused(
        "generate", trained["lstm"], "--beam", "3", *pushed, text="alpha\n"
    )


def test_minimum_bayes_risk(trained: Trained) -> None:
    assert good("generate", trained["lstm"], "--set", "mbr=8", text="alpha beta gamma\n") == "GAMMA BETA ALPHA\n"
    found = regard.load(trained["lstm"]).outputs(["alpha beta gamma"], mbr=16, nbest=3, temperature=2.0)[0]
    assert 1 < len(found) == len({x.text for x in found}) <= 3
    assert [x.score for x in found] == sorted((x.score for x in found), reverse=True)


# Ensembles


def test_an_ensemble_is_the_mean_of_probabilities(trained: Trained) -> None:
    """Token by token; so it is never worse than its members are on average, and mostly better than the worse one."""
    one, other = trained["lstm"], trained["transformer"]
    pairs = [(x.source, x.target) for x in toy_pairs(trained.folder / "test.tsv")]
    left, right = [list(side) for side in zip(*pairs, strict=True)]
    a, b, both = (x.score(left, right) for x in (regard.load(one), regard.load(other), regard.load(one, other)))
    for first, second, together in zip(a, b, both, strict=True):
        mean = [math.log((math.exp(x) + math.exp(y)) / 2) for x, y in zip(first.tokens, second.tokens, strict=True)]
        assert together.tokens == pytest.approx(mean, abs=1e-4)
        assert together.log_prob >= (first.log_prob + second.log_prob) / 2 - 1e-4
        assert together.log_prob == pytest.approx(sum(mean), abs=1e-3)
    totals = [sum(x.log_prob for x in scored) for scored in (a, b, both)]
    assert totals[2] > min(totals[:2])
    (output,) = regard.load(one, other).outputs(["alpha beta gamma"])[0]
    assert output.text == "GAMMA BETA ALPHA"
    (scored,) = regard.load(one, other).score(["alpha beta gamma"], [output.text])
    assert output.log_prob == pytest.approx(scored.log_prob, abs=1e-4)  # a step at a time, the same


@whole
def test_an_ensemble_writes_and_says_what_it_cannot_do(trained: Trained, sources: Path) -> None:
    one, other = trained["lstm"], trained["transformer"]
    assert good("generate", one, sources, "--with", other).splitlines()[1] == "ETA THETA"
    assert good("generate", one, sources, "--with", one) == good("generate", one, sources)
    test = trained.folder / "test.tsv"
    alone = json.loads(good("evaluate", one, test, "--json"))
    both = json.loads(good("evaluate", one, test, "--json", "--with", other))
    assert both["with"] == [str(other)]
    assert both["scores"]["perplexity"] != alone["scores"]["perplexity"]
    shown = good("generate", one, sources, "--with", other, "--align").splitlines()[1]
    assert shown == "ETA THETA\t0-1 1-0"
    for others, said in (
        (trained["characters"], "an ensemble needs models of one vocabulary; that of"),
        (trained["one-lstm"], "an ensemble needs models that read the same and write"),
        (trained.folder / "gone", "no model folder"),
    ):
        lines = refused("generate", one, sources, "--with", others).splitlines()
        assert len(lines) == 1
        assert said in lines[0]
    assert "states of one model" in refused("generate", one, sources, "--with", other, "--set", "contrastive=0.5")


# Models to start from

FROZEN = {"steps": 1, "learning_rate": 1e-12, "weight_decay": 0.0, "validate_sentences": 1}


def started(trained: Trained, tmp_path: Path, name: str, **changes: Any) -> regard.System:
    """A model that begins from others and learns as good as nothing."""
    config = settings(name, run=str(tmp_path / "run"), training=FROZEN, **changes)
    return regard.train(regard.Config.parse(config, trained.folder))


def taken(system: regard.System, source: Path) -> set[str]:
    """Names of the tensors that are those of another model."""
    own, other = load_tensors(system.folder / "model.safetensors"), load_tensors(source / "model.safetensors")
    close = {x for x in own.keys() & other.keys() if own[x].shape == other[x].shape}
    return {name for name in close if torch.allclose(own[name], other[name], rtol=0, atol=1e-9)}


def test_a_model_starts_from_another(trained: Trained, tmp_path: Path) -> None:
    source = trained["transformer"]
    system = started(trained, tmp_path, "transformer", start={"model": "transformer"}, tokens={"kind": "char"})
    assert taken(system, source) == set(load_tensors(source / "model.safetensors"))
    assert (system.folder / "tokens.json").read_bytes() == (source / "tokens.json").read_bytes()  # not characters
    assert system.score(["alpha beta"], ["BETA ALPHA"])[0].log_prob == pytest.approx(
        regard.load(source).score(["alpha beta"], ["BETA ALPHA"])[0].log_prob, abs=1e-4
    )


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_a_part_starts_from_that_of_another_model(trained: Trained, tmp_path: Path, part: str) -> None:
    """What is taken is that part and no more; the rest is new."""
    source = trained["transformer"]
    watcher = StopAt(-1)
    config = settings(
        "transformer", run=str(tmp_path / "run"), training={**FROZEN, "seed": 7}, start={part: source.name}
    )
    system = regard.train(regard.Config.parse(config, trained.folder), watcher)
    other = load_tensors(source / "model.safetensors")
    assert {x for x in other if x.startswith(f"{part}.")} <= taken(system, source)
    assert not {x for x in taken(system, source) if x.endswith("query.weight") and not x.startswith(f"{part}.")}
    assert any(message.startswith(f"start.{part}: ") for message in watcher.messages)
    assert any(message.startswith("tokens are those of") for message in watcher.messages)


@pytest.mark.parametrize("share", [False, True])
def test_a_decoder_starts_from_a_language_model(trained: Trained, tmp_path: Path, share: bool) -> None:
    """Its blocks and its embedding; what looks at the source begins anew. An embedding that encoder and decoder share
    is the decoder's, too."""
    source = trained["text"]
    model = {"share_embeddings": share, "decoder": {"positions": "learned", "activation": "gelu"}}
    system = started(trained, tmp_path, "transformer", start={"decoder": "text"}, model=model)
    own, other = (dict(x.task.model.named_parameters(remove_duplicate=False)) for x in (system, regard.load(source)))
    names = {name for name in other if name.startswith("decoder.")}
    assert {"decoder.embedding.table.weight", "decoder.blocks.0.self_attention.inputs.weight"} <= names
    for name in names:  # there are more positions here: of these, those that the language model had
        torch.testing.assert_close(own[name][: len(other[name])], other[name], rtol=0, atol=1e-9)
    assert len(own["decoder.positions.table.weight"]) > len(other["decoder.positions.table.weight"])
    assert any("cross_attention" in name and name not in other for name in own)
    assert (system.folder / "tokens.json").read_bytes() == (source / "tokens.json").read_bytes()


def test_what_one_cannot_start_from(trained: Trained, tmp_path: Path) -> None:
    def said(name: str, **changes: Any) -> str:
        path = trained.folder / "start.yaml"
        path.write_text(yaml.safe_dump(settings(name, run=str(tmp_path / "run"), **changes)))
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        lines = refused("train", path).splitlines()
        return lines[-1]

    for name in ("transformer", "lstm", "characters"):
        assert trained[name].exists()
    wide = said("transformer", start={"model": "transformer"}, model={"d_model": 32})
    assert "start.model:" in wide
    assert "embedding.table.weight is (22, 48), here (22, 32)" in wide
    deep = said("transformer", start={"model": "transformer"}, model={"decoder": {"layers": 2}})
    assert "does not fit this config's [model]: it has no decoder.blocks.1." in deep
    assert "it has no encoder.blocks.0." in said("transformer", start={"encoder": "lstm"})
    # Of the same shapes, but something else would come of the weights.
    for change, message in (
        ({"encoder": {"heads": 1}}, "encoder.heads is 2, here 1"),
        ({"decoder": {"activation": "silu"}}, "decoder.activation is relu, here silu"),
        ({"scale_embeddings": False}, "scale_embeddings is True, here False"),
    ):
        assert f"[model]: {message}" in said("transformer", start={"model": "transformer"}, model=change), message
    assert "have different vocabularies" in said("lstm", start={"encoder": "lstm", "decoder": "characters"})
    own = {"tokens": {"kind": "word"}}
    apart = said("lstm", start={"encoder": "lstm"}, source=own, target=own)
    assert "has one vocabulary, this config a vocabulary for each side; set source.tokens and target.tokens" in apart
    assert "no model folder" in said("lstm", start={"model": "gone"})
    with pytest.raises(ConfigError, match="model already brings both parts"):
        regard.Config.parse(settings("lstm", start={"model": "lstm", "encoder": "lstm"}))


# Objectives and budgets

OBJECTIVES: dict[str, dict[str, Any]] = {
    "scheduled_sampling": {"training": {"objective": {"kind": "scheduled_sampling", "own_tokens": 0.8, "passes": 2}}},
    "minimum_risk": {
        "training": {"objective": {"kind": "minimum_risk", "samples": 3, "sharpness": 0.5, "likelihood": 0.5}},
    },
    "hard": {"model": {"decoder": HARD}, "training": {"objective": {"soft": 0.2}}},
}


@pytest.mark.parametrize("name", OBJECTIVES if FULL else ["scheduled_sampling", "hard"])
def test_other_objectives_resume_exactly(folder: Path, name: str) -> None:
    """Also what they draw, and what they keep from batch to batch."""
    changes = OBJECTIVES[name]
    training = {"steps": 14, "validate_every": 7, "save_every": 5, "validate_sentences": 5, **changes["training"]}
    config = toy_config(folder, model=changes.get("model", {}), training=training)
    regard.train(config)
    whole = final(folder)
    shutil.rmtree(folder / "run")
    for step in (3, 9):
        with pytest.raises(Stopped):
            regard.train(config, StopAt(step))
    shutil.copytree(folder / "run", folder / "kept")
    regard.train(config)
    assert all(torch.equal(whole[x], tensor) for x, tensor in final(folder).items())
    if name == "hard":  # and without its memory it would not have
        shutil.rmtree(folder / "run")
        shutil.copytree(folder / "kept", folder / "run")
        path = checkpoints(folder / "run" / "checkpoints")[-1] / "progress.json"
        progress = read_json(path)
        assert set(progress["memory"]) == {"baseline", "spread"}
        write_json(path, {**progress, "memory": {}})
        regard.train(config)
        assert not all(torch.equal(whole[x], tensor) for x, tensor in final(folder).items())


@whole
def test_risk_falls(trained: Trained, tmp_path: Path) -> None:
    """From a model that is half trained, minimum risk alone raises quality."""
    early = regard.train(regard.Config.parse(settings("lstm", run="early", training={"steps": 60}), trained.folder))
    objective = {"kind": "minimum_risk", "samples": 6, "sharpness": 0.2}
    changes = {"steps": 60, "learning_rate": 0.003, "objective": objective, "batch_tokens": 150}
    config = settings("lstm", run=str(tmp_path / "run"), start={"model": "early"}, training=changes)
    later = regard.train(regard.Config.parse(config, trained.folder))
    before, after = (x.test().scores["bleu"].value for x in (early, later))
    assert after > before + 3


def progress_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((checkpoints(run / "checkpoints")[-1] / "progress.json").read_text())
    return content


def test_training_ends_where_its_tokens_do(folder: Path) -> None:
    budget = {"steps": 10**6, "tokens": 3000, "log_every": 1, "warmup": 2, "validate_sentences": 2}
    regard.train(toy_config(folder, training=budget))
    progress = progress_of(folder / "run")
    records = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    updates = [record for record in records if "loss" in record]
    assert progress["finished"]
    assert updates[-2]["tokens"] < 3000 <= progress["tokens"] == updates[-1]["tokens"]
    assert updates[-1]["learning_rate"] < 0.15 * max(record["learning_rate"] for record in updates)
    assert "valid_loss" in records[-1]
    regard.train(toy_config(folder, training=budget))  # nothing is left of it
    assert progress_of(folder / "run")["step"] == progress["step"]
    regard.train(toy_config(folder, run="few", training={**budget, "steps": 3}))
    assert progress_of(folder / "few")["step"] == 3  # whichever comes first


def test_training_ends_where_its_seconds_do(folder: Path) -> None:
    budget = {
        "steps": 10**6,
        "seconds": 0.4,
        "log_every": 1,
        "warmup": 2,
        "validate_every": 10,
        "validate_sentences": 9,
    }
    regard.train(toy_config(folder, training=budget))
    progress = progress_of(folder / "run")
    records = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    updates = [record for record in records if "loss" in record]
    assert progress["finished"]
    assert updates[-2]["seconds"] < 0.4 <= progress["seconds"]
    assert progress["step"] == updates[-1]["step"] > 1


# Evaluation, attention, pictures


def test_evaluate_takes_paths_and_strings(trained: Trained) -> None:
    system, path = regard.load(trained["lstm"], device="cpu"), trained.folder / "test.tsv"
    scores = system.evaluate(str(path)).scores
    assert system.evaluate(path).scores == scores
    for i, side in enumerate(("source", "target")):
        lines = [line.split("\t")[i] for line in path.read_text().splitlines()]
        (trained.folder / f"{side}.txt").write_text("\n".join(lines) + "\n")
    assert (
        system.evaluate([trained.folder / "source.txt", trained.folder / "target.txt"]).scores["bleu"] == scores["bleu"]
    )


def test_evaluate_tells_of_exposure(trained: Trained) -> None:
    path = trained.folder / "exposure.json"
    shown = good("evaluate", trained["lstm"], "--report", path)
    found = json.loads(path.read_text())["exposure"]
    title = f"after true prefixes {found['teacher_forced']:.1f} %, in free running {found['free_running']:.1f} %: gap"
    assert title in " ".join(shown.split())
    assert found["gap"] == pytest.approx(found["teacher_forced"] - found["free_running"])
    assert [(x["first"], x["last"]) for x in found["positions"]] == [(1, 5), (6, 7)]  # six words and the end
    tokens = sum(len(x.target.split()) + 1 for x in toy_pairs(trained.folder / "test.tsv"))
    assert sum(x["tokens"] for x in found["positions"]) == tokens
    assert found["teacher_forced"] > 90
    assert all(f"{x['first']}-{x['last']}" in shown for x in found["positions"])


@whole
def test_hard_attention_learns_to_look_at_one_place(trained: Trained, tmp_path: Path) -> None:
    scores = report(trained["hard"])["scores"]
    assert scores["exact"]["score"] > 60
    assert scores["pointing"]["score"] > 60
    good("explain", trained["hard"], "alpha beta gamma", "-o", tmp_path / "a.json")
    (found,) = json.loads((tmp_path / "a.json").read_text())
    weights = np.array(found["layers"][0]["weights"])
    assert set(np.unique(weights)) == {0.0, 1.0}
    assert (weights.sum(-1) == 1).all()
    pairs = [(x.source, x.target) for x in toy_pairs(trained.folder / "test.tsv")]
    sources, targets = [list(side) for side in zip(*pairs, strict=True)]
    system = regard.load(trained["hard"])
    assert system.score(sources, targets) == system.score(sources, targets)  # in use nothing is drawn
    assert progress_of(trained["hard"])["memory"]["baseline"] > -0.5  # the moving mean of log p


@whole
def test_shared_layers_train(trained: Trained) -> None:
    assert exact(trained["shared"]) > 30
    system = regard.load(trained["shared"])
    own = dict(system.task.model.named_parameters(remove_duplicate=False))
    name = "blocks.0.feed_forward.inner.weight"
    assert own[f"encoder.{name}"] is own[f"decoder.{name}"]
    assert system.parameters() < regard.load(trained["transformer"]).parameters()


def test_space_draws_sentences(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("alpha beta\tgreek\nalpha beta gamma\tgreek\nzeta\tshort\n\neta\tshort\n")
    good("space", trained["lstm"], tmp_path / "in.txt", "-o", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "exists" in refused("space", trained["lstm"], tmp_path / "in.txt", "-o", tmp_path / "a.png")
    good("space", trained["transformer"], tmp_path / "in.txt", "-o", tmp_path / "a.json")
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["groups"] == ["greek", "greek", "short", "short"]
    assert len(np.unique(np.array(found["points"]), axis=0)) == 4
