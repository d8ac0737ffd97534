"""Text alone, end to end: language models write, score and read on and on; masked ones fill in masks."""

from __future__ import annotations

import json
import math
import random
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

import regard
from regard.config import merge, parse, resolve_paths
from regard.data.examples import Example
from regard.data.marks import BOS, EOS, MARKS, MASK
from regard.errors import ConfigError, DataError
from regard.nn.attention import capture
from regard.ragged import Ragged
from regard.search_settings import Search
from regard.system import System
from regard.tasks.language_model import LanguageModeling
from regard.tasks.masked import MaskedLanguageModeling
from regard.tasks.results import Encoded
from tests.test_cli import good, refused, run

LETTERS = "abcdefgh"
SHORTEST, LONGEST_LINE = 3, 8
POSITIONS = 26  # of max_length 24, and two marks
WRITERS = ("lstm", "gpt")

MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"model": {"encoder": {"kind": "none"}, "decoder": {"kind": "lstm"}}},
    "gpt": {"preset": "gpt-mini", "model": {"decoder": {"layers": 1, "heads": 2, "d_ff": 64}}},
    "bert": {
        "preset": "bert-mini",
        "model": {"encoder": {"layers": 1, "heads": 2, "d_ff": 64}},
        "training": {"steps": 300, "objective": {"masked": 0.3}},
    },
}


def write_cycles(folder: Path) -> None:
    """Letters go round; where a line begins and how long it is are drawn, and nothing else."""
    draw = random.Random(0)
    for split, count in (("train", 600), ("valid", 60), ("test", 60)):
        lines = []
        for _ in range(count):
            first, length = draw.randrange(len(LETTERS)), draw.randint(SHORTEST, LONGEST_LINE)
            lines.append(" ".join(LETTERS[(first + i) % len(LETTERS)] for i in range(length)) + "\n")
        (folder / f"{split}.txt").write_text("".join(lines))


def settings(name: str, **changes: Any) -> dict[str, Any]:
    base = {
        "run": name,
        "data": {"train": "train.txt", "valid": "valid.txt", "test": "test.txt"},
        "source": {"kind": "none"},
        "target": {"max_length": 24},
        "tokens": {"kind": "word"},
        "model": {"d_model": 32, "dropout": 0.0},
        "training": {
            "steps": 150, "batch_tokens": 300, "learning_rate": 0.01, "warmup": 20, "schedule": "linear",
            "validate_every": 75, "save_every": 75, "label_smoothing": 0.0, "tensorboard": False, "device": "cpu",
        },
        "search": {"max_length": 20},
    }  # fmt: skip
    return merge(merge(base, MODELS[name]), changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and each model trained on it."""
    place = tmp_path_factory.mktemp("text")
    write_cycles(place)
    for name in MODELS:
        regard.train(resolve_paths(parse(settings(name)), place))
    return place


def writer(folder: Path, name: str) -> LanguageModeling:
    task = regard.load(folder / name, device="cpu").task
    assert isinstance(task, LanguageModeling)
    return task


def log_probs(task: LanguageModeling, contexts: list[list[int]], answers: list[int]) -> list[float]:
    """`log p` of an answer after each context, of its own forward pass."""
    with task.inference():
        states = task.model.decoder(Ragged.of(contexts), None)
        logits: Tensor = task.model.head(states.last())
    return logits.log_softmax(-1)[torch.arange(len(answers)), torch.tensor(answers)].tolist()


def one_pass(task: LanguageModeling, stream: list[int]) -> list[float]:
    """`log p` of each token of a text that is read at once."""
    with task.inference():
        states = task.model.decoder(Ragged.of([[BOS, *stream[:-1]]]), None)
        found = task.model.head(states.values).log_softmax(-1)
    return found[torch.arange(len(stream)), torch.tensor(stream)].tolist()


def tokens_of(task: LanguageModeling, lines: list[str]) -> list[int]:
    return [token for line in lines for token in [*task.target.encode(line), EOS]]


def is_cycle(text: str) -> bool:
    letters = text.split()
    return all(LETTERS[(LETTERS.index(a) + 1) % len(LETTERS)] == b for a, b in pairwise(letters))


# Language models


@pytest.mark.parametrize("name", WRITERS)
def test_perplexity_comes_near_the_entropy_of_the_language(folder: Path, name: str) -> None:
    """The first letter and the length are all there is to guess, so the best there can be is known."""
    lengths = range(SHORTEST, LONGEST_LINE + 1)
    best = math.exp((math.log(len(LETTERS)) + math.log(len(lengths))) / (sum(lengths) / len(lengths) + 1))
    uniform = len(LETTERS) + len(MARKS)
    shown = good("evaluate", folder / name, "--report", folder / f"{name}.json")
    scores = json.loads((folder / f"{name}.json").read_text())["scores"]
    value = scores["perplexity"]["score"]
    assert 0.93 * best < value < 1.15 * best < 0.2 * uniform
    for label in ("perplexity", "word perplexity", "bits", "60 examples"):
        assert label in shown
    # A token is a word here; a line of n letters is n + 1 tokens, and 2n characters with its end.
    assert scores["word_perplexity"]["score"] == pytest.approx(value, rel=1e-3)
    lines = (folder / "test.txt").read_text().splitlines()
    tokens, characters = sum(len(x.split()) + 1 for x in lines), sum(len(x) + 1 for x in lines)
    assert scores["bits"]["score"] == pytest.approx(math.log2(value) * tokens / characters, rel=1e-3)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    "options",
    [("--beam", "1"), ("--beam", "3"), ("--sample", "--temperature", "0.3"), ("--set", "contrastive=0.4"),
     ("--set", "mbr=6"), ("--beam", "4", "--set", "groups=2")],
    ids=lambda options: "".join(options),
)  # fmt: skip
def test_generate_goes_on_from_a_prompt_or_from_nothing(folder: Path, name: str, options: tuple[str, ...]) -> None:
    """Every way to search, with prompts of several lengths in a batch."""
    prompts = ["b c d", "", "h", "g h a b"]
    outputs = good("generate", folder / name, *options, text="".join(x + "\n" for x in prompts)).splitlines()
    assert len(outputs) == len(prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert (output + " ").startswith(prompt + " " if prompt else "")
        assert len(output.split()) > max(len(prompt.split()), 2)
        assert is_cycle(output)


def test_samples_differ_and_probable_tokens_are_all_that_top_k_leaves(folder: Path) -> None:
    system = regard.load(folder / "lstm", device="cpu")
    drawn = {output.text for output in system.outputs([""], sample=True, nbest=20)[0]}
    assert len({text.split()[0] for text in drawn}) > 2
    assert len({output.text for output in system.outputs(["a"], sample=True, nbest=20, top_k=1)[0]}) == 1


def test_a_prompt_is_the_prefix(folder: Path) -> None:
    system = regard.load(folder / "lstm", device="cpu")
    with pytest.raises(DataError, match="2 prefixes for 1 inputs; give one for each"):
        system.outputs(["a"], prefixes=["a", "b"])
    with pytest.raises(ConfigError, match="is how its output begins; leave out the prefixes"):
        system.outputs(["a"], prefixes=["a"])


@pytest.mark.parametrize("name", WRITERS)
def test_score_agrees_with_itself(folder: Path, name: str) -> None:
    test = folder / "test.txt"
    plain = good("score", folder / name, test).splitlines()
    full = [line.split("\t") for line in good("score", folder / name, test, "--perplexity", "--tokens").splitlines()]
    lines = test.read_text().splitlines()
    api = regard.load(folder / name).score(lines)
    task = writer(folder, name)
    assert len(plain) == len(full) == len(lines) == 60
    for line, total, (again, perplexity, tokens), pair in zip(lines, plain, full, api, strict=True):
        parts = [float(x) for x in tokens.split()]
        assert total == again
        assert sum(parts) == pytest.approx(float(total), abs=1e-3)
        assert pair.log_prob == pytest.approx(float(total), abs=1e-4)
        assert pair.tokens == pytest.approx(parts, abs=1e-4)
        assert float(perplexity) == pytest.approx(math.exp(-pair.log_prob / len(parts)), rel=1e-3)
        assert parts == pytest.approx(one_pass(task, tokens_of(task, [line])), abs=1e-3)
    mean = sum(pair.log_prob for pair in api) / sum(len(pair.tokens) for pair in api)
    result = regard.load(folder / name).evaluate(str(test))
    assert result.scores["perplexity"].value == pytest.approx(math.exp(-mean))


@pytest.mark.parametrize("name", [*WRITERS, "bert"])
def test_a_loss_too_large_for_a_float_has_an_infinite_perplexity(folder: Path, name: str) -> None:
    task = regard.load(folder / name, device="cpu").task
    with torch.no_grad():
        for parameter in task.model.head.parameters():
            parameter.mul_(1e5)  # as sure as can be of what is wrong
    examples = [Example("", "a a a d a"), Example("", "h b b b")]
    values = task.evaluate(examples, Search(), warn=pytest.fail).scores
    assert {score.value for key, score in values.items() if "perplexity" in key} == {math.inf}
    assert task.score([""], ["a a a d a"])[0].perplexity == math.inf
    encoded = Encoded([[], []], task.target.encode_many([x.target for x in examples]), examples[:1])
    validated = task.validate(encoded)
    assert validated["loss"] > 710
    assert validated.get("perplexity", math.inf) == math.inf


# A long text


def test_a_recurrent_model_carries_its_state_through_a_whole_text(folder: Path) -> None:
    """Over lines, and over chunks of any size: the numbers of one pass over all of it."""
    test, task = folder / "test.txt", writer(folder, "lstm")
    lines = test.read_text().splitlines()
    whole = one_pass(task, tokens_of(task, lines))
    for chunk in (1, 7, 256, 10_000):
        found = list(task.stream(iter(lines), chunk=chunk))
        assert [len(line) for line in found] == [len(line.split()) + 1 for line in lines]
        assert list(chain(*found)) == pytest.approx(whole, abs=2e-4)
    shown = [line.split("\t") for line in good("score", folder / "lstm", test, "--stream", "--tokens").splitlines()]
    assert [float(x) for _, tokens in shown for x in tokens.split()] == pytest.approx(whole, abs=1e-3)
    assert sum(float(total) for total, _ in shown) == pytest.approx(sum(whole), abs=0.01)
    alone = [float(line) for line in good("score", folder / "lstm", test).splitlines()]
    streamed = [float(total) for total, _ in shown]
    assert alone[0] == pytest.approx(streamed[0], abs=1e-3)  # nothing stands before the first line
    assert sum(abs(a - b) > 0.1 for a, b in zip(alone[1:], streamed[1:], strict=True)) > 40


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_a_transformer_reads_on_past_its_positions(folder: Path, tmp_path: Path, positions: str) -> None:
    """Until they are full, as in one pass; then each token is told from its latest predecessors, at least half of
    the positions."""
    if positions == "learned":
        task = writer(folder, "gpt")
    else:
        changed = settings("gpt", model={"decoder": {"positions": positions}}, training={"steps": 2}, run="other")
        made = regard.train(resolve_paths(parse(merge(changed, {"run": str(tmp_path / "run")})), folder)).task
        assert isinstance(made, LanguageModeling)
        task = made
    assert task.longest == POSITIONS
    lines = (folder / "test.txt").read_text().splitlines()[:12]
    lines[4] = " ".join([*LETTERS, *LETTERS, *LETTERS, *LETTERS])  # alone longer than there are positions
    stream = tokens_of(task, lines)
    assert len(stream) > 3 * POSITIONS
    for chunk in (5, 256):
        found = list(chain(*task.stream(lines, chunk=chunk)))
        assert len(found) == len(stream)
        full = POSITIONS // 2
        assert found[:full] == pytest.approx(one_pass(task, stream[:full]), abs=1e-3)
        for place in range(full, len(stream)):
            before = [BOS, *stream[:place]]
            contexts = [before[-k:] for k in range(min(full, len(before)), min(POSITIONS, len(before)) + 1)]
            told = log_probs(task, contexts, [stream[place]] * len(contexts))
            assert min(abs(x - found[place]) for x in told) < 1e-3, place
    short = lines[:2]
    assert len(tokens_of(task, short)) < POSITIONS
    assert list(chain(*task.stream(short))) == pytest.approx(one_pass(task, tokens_of(task, short)), abs=1e-3)


def test_a_stream_to_a_file_and_what_cannot_be_streamed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    good("score", folder / "gpt", folder / "test.txt", "--stream", "-o", out)
    assert out.read_text() == good("score", folder / "gpt", folder / "test.txt", "--stream")
    assert all(math.isfinite(float(line)) for line in out.read_text().splitlines())
    assert "only a language model" in refused("score", folder / "bert", folder / "test.txt", "--stream")
    assert "no file" in refused("score", folder / "gpt", tmp_path / "gone.txt", "--stream")
    assert "one long text, not 2 files" in refused("score", folder / "gpt", out, out, "--stream")
    with pytest.raises(TypeError, match=r"lines should be lines of a text, not 'a b' \(str\); give text"):
        regard.load(folder / "gpt", device="cpu").stream("a b")


def test_explain_draws_what_the_decoder_looks_back_at(folder: Path, tmp_path: Path) -> None:
    good("explain", folder / "gpt", "a b c", "-o", tmp_path / "a.json")
    (found,) = json.loads((tmp_path / "a.json").read_text())
    (layer,) = found["layers"]
    assert (layer["name"], layer["kind"]) == ("decoder.blocks.0.self_attention", "decoder")
    weights = np.array(layer["weights"])
    assert found["inputs"][:4] == ["<s>", "a", "b", "c"]
    assert weights.shape == (2, len(found["inputs"]), len(found["inputs"]))
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-3)
    assert not np.triu(weights, 1).any()  # nothing of what comes later
    # What was given is the source, and only what was written after it has a probability.
    system = regard.load(folder / "gpt")
    assert (found["source"], found["given"]) == (["<s>", "a", "b", "c"], 4)
    assert found["inputs"] == [*found["source"], *found["target"][:-1]]
    text = system.generate(["a b c"])[0]
    assert text == " ".join(["a b c", *found["target"][:-1]])
    assert found["log_probs"] == pytest.approx(system.score([text])[0].tokens[3:], abs=1e-3)
    forced = system.explain("a b", "a b c e")
    assert (forced.given, forced.target) == (3, ["c", "e", "</s>"])
    assert forced.log_probs == pytest.approx(system.score(["a b c e"])[0].tokens[2:], abs=1e-3)
    assert system.explain("", "a b").given == 1
    with pytest.raises(DataError, match="should begin with the prompt 'b'"):
        system.explain("b", "a b c")
    for name, start in (("a.png", b"\x89PNG"), ("a.html", b"<!")):
        good("explain", folder / "gpt", "a b c", "-o", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    assert "no attention" in refused("explain", folder / "lstm", "a b", "-o", tmp_path / "b.png")


def test_space_places_texts_by_what_they_say(folder: Path, tmp_path: Path) -> None:
    """A language model puts texts near one another that it would go on with alike."""
    (tmp_path / "in.txt").write_text("a b c\nh a b c\ng h a b c\ne f g\nd e f g\n")
    for name in MODELS:
        good("space", folder / name, tmp_path / "in.txt", "-o", tmp_path / f"{name}.json")
        points = np.array(json.loads((tmp_path / f"{name}.json").read_text())["points"])
        assert len(np.unique(points.round(3), axis=0)) == 5
    vectors = regard.load(folder / "lstm").sentence_embeddings(["a b c", "h a b c", "e f g", "d e f g"])
    apart = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)
    assert max(apart[0, 1], apart[2, 3]) < apart[:2, 2:].min()


# Filling in masks


def masked(folder: Path) -> tuple[System, MaskedLanguageModeling]:
    system = regard.load(folder / "bert", device="cpu")
    assert isinstance(system.task, MaskedLanguageModeling)
    return system, system.task


def test_a_masked_language_model_fills_in_masks(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a b <mask> d e\na b\nf <mask> h a <mask> c\n")
    done = run("generate", folder / "bert", tmp_path / "in.txt")
    assert done.returncode == 0
    assert done.stdout == "a b c d e\n\nf g h a b c\n"
    said = f"regard: {tmp_path}/in.txt:2 has no mask to fill in; write <mask> where one is; its line of output is empty"
    assert done.stderr.splitlines() == [said]
    assert "takes no prefixes" in refused(
        "generate", folder / "bert", tmp_path / "in.txt", "--prefixes", tmp_path / "in.txt"
    )
    (tmp_path / "long.txt").write_text("a <mask> " + "c " * 30 + "\n")
    done = run("generate", folder / "bert", tmp_path / "long.txt")
    assert done.stdout == "\n"
    assert "in.txt" not in done.stderr
    assert "has 32 tokens, more than 24; split it" in done.stderr


def test_a_masked_language_model_beats_chance(folder: Path) -> None:
    shown = good("evaluate", folder / "bert", "--report", folder / "bert.json")
    scores = json.loads((folder / "bert.json").read_text())["scores"]
    assert scores["accuracy"]["score"] > 70 > 5 * 100 / len(LETTERS)
    assert "masked:0.3" in shown
    assert "pseudo-perplexity" in shown
    api = regard.load(folder / "bert").score((folder / "test.txt").read_text().splitlines())
    mean = sum(x.log_prob for x in api) / sum(len(x.tokens) for x in api)
    assert scores["pseudo_perplexity"]["score"] == pytest.approx(math.exp(-mean), rel=1e-3)
    assert math.exp(-mean) < 2


def test_the_score_of_a_masked_language_model_masks_each_token_in_turn(folder: Path, tmp_path: Path) -> None:
    """Pseudo-log-likelihood, by hand."""
    system, task = masked(folder)
    lines = ["a b c d", "h a", "c e b"]
    for line, pair in zip(lines, system.score(lines), strict=True):
        ids = task.target.encode(line)
        for place, token in enumerate(ids):
            text = [BOS, *ids, EOS]
            text[place + 1] = MASK
            with task.inference():
                logits = task.model(Ragged.of([text]), Ragged.of([[place + 1]])).values
            assert pair.tokens[place] == pytest.approx(float(logits.log_softmax(-1)[0, token]), abs=1e-4)
        assert pair.log_prob == pytest.approx(sum(pair.tokens))
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in [*lines, ""]))
    shown = good("score", folder / "bert", tmp_path / "in.txt", "--perplexity").splitlines()
    for line, pair in zip(shown, system.score(lines), strict=False):
        assert [float(x) for x in line.split("\t")] == pytest.approx([pair.log_prob, pair.perplexity], rel=1e-3)
    assert shown[3] == "0.0000\t1.0000"  # nothing to guess


def test_explain_shows_a_masked_language_model_looking_both_ways(folder: Path, tmp_path: Path) -> None:
    good("explain", folder / "bert", "a <mask> c", "-o", tmp_path / "a.json")
    (found,) = json.loads((tmp_path / "a.json").read_text())
    assert found["source"] == ["<s>", "a", "<mask>", "c", "</s>"]
    assert [layer["kind"] for layer in found["layers"]] == ["encoder"]
    assert np.triu(np.array(found["layers"][0]["weights"]), 1).any()
    assert (found["target"], found["places"]) == (["b"], [2])
    (candidates,) = found["candidates"]
    assert len(candidates) == 5
    assert candidates[0][0] == "b"
    assert candidates == sorted(candidates, key=lambda pair: -pair[1])
    assert math.exp(found["log_probs"][0]) == pytest.approx(candidates[0][1], abs=1e-4)
    good("explain", folder / "bert", "a <mask> c", "-o", tmp_path / "a.html")


def test_a_mask_is_explained_with_the_mask_in_place(folder: Path) -> None:
    """Attention is that of the text with `<mask>`, and candidates are what its vector tells, by hand."""
    system, task = masked(folder)
    found = system.explain("a <mask> c d <mask> f")
    ids = [BOS, *task.target.encode("a b c d e f"), EOS]
    ids[2] = ids[5] = MASK
    with task.inference(), capture(task.model) as trace:
        logits = task.model(Ragged.of([ids]), Ragged.of([[2, 5]])).values
    np.testing.assert_allclose(found.layers[0].weights, trace.weights(found.layers[0].name, 0).numpy(), atol=1e-6)
    filled = system.explain("a b c d <mask> f").layers[0].weights
    assert np.abs(found.layers[0].weights[:, 2] - filled[:, 2]).max() > 1e-3  # `b` in its place looks elsewhere
    shares = logits[:, [MARKS.index("<unk>"), *range(len(MARKS), task.target.size)]].exp()
    shares = shares / shares.sum(-1, keepdim=True)
    for row, candidates in zip(shares, found.candidates, strict=True):
        assert [share for _, share in candidates] == pytest.approx(row.sort(descending=True).values[:5].tolist())
    assert found.target == [candidates[0][0] for candidates in found.candidates] == ["b", "e"]
    assert found.predicted == {2: "b", 5: "e"}
    assert found.notes()[1].startswith("<mask> 2: e ")
    with pytest.raises(DataError, match="has no mask to fill in; write <mask> where one is"):
        system.explain("a b c")
    with pytest.raises(ConfigError, match="fills in the masks of a text itself; leave out the target"):
        system.explain("a <mask> c", "a b c")


# What cannot be used


def test_training_text_that_cannot_be_used(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "c.yaml"
    write_cycles(tmp_path)
    monkeypatch.chdir(tmp_path)  # to which paths on the command line are relative

    def said(*overrides: str) -> str:
        config.write_text(yaml.safe_dump(settings("lstm", training={"steps": 2})))
        monkeypatch.chdir(tmp_path)  # paths on the command line are relative to where one stands
        return refused("train", config, *overrides)

    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "bad.jsonl").write_text('{"words": "a b"}\n')
    (tmp_path / "one.tsv").write_text("a b\n")
    assert "empty.txt is empty; it should hold a sentence a line" in said("data.train=empty.txt", "run=r1")
    assert "blank.txt" in said("data.train=blank.txt", "run=r2")
    assert "data needs one .tsv or .jsonl file, or one text file; got 2" in said(
        "data.train=[train.txt, valid.txt]", "run=r3"
    )
    assert "has no 'text' (it has: words)" in said("data.train=bad.jsonl", "run=r4")
    assert "has 1 column, so no column 3" in said("data.train=one.tsv", "target.column=3", "run=r5")
    assert "no file" in said("data.train=gone.txt", "run=r6")
    assert "cannot tell how to read" in said("source.kind=text", "model.encoder.kind=lstm", "run=r7")
    assert "data needs one .tsv or .jsonl file, or one text file; got 2" in refused(
        "score", folder / "lstm", folder / "test.txt", folder / "test.txt"
    )


def test_settings_that_clash_with_text_alone() -> None:
    recurrent = {"model": {"encoder": {"kind": "lstm"}}}
    for changes, said in (
        (recurrent, "source.kind none leaves the encoder nothing to read"),
        ({"training": {"metric": "bleu"}}, "training.metric 'bleu' needs a source; where there is none, use loss"),
        ({"model": {"share_embeddings": True}}, "model.share_embeddings needs a text as source and as target"),
        ({"model": {"decoder": {"context": "attention"}}}, "decoder.context needs an encoder to look at"),
    ):
        with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
            parse(settings("lstm", **changes))
    with pytest.raises(ConfigError, match=r"training\.objective\.kind 'minimum_risk' needs a decoder"):
        parse(settings("bert", training={"objective": {"kind": "minimum_risk"}}))
