"""Several corpora in one training: how often each is drawn from, what stands before its sources, what is said of it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.config import missing_files
from regard.data.batches import Batches, Position, apportion
from regard.data.examples import Example, read_examples
from regard.data.layouts import Pairs
from regard.data.scan import Report, scan_each
from regard.data.sides import Sides
from regard.data.store import ExampleStore, write_examples
from regard.data.tokenizers.kinds import load_tokenizer, train_tokenizer
from regard.data.tokenizers.prefixed import Prefixed
from regard.data.tokenizers.symbols import Bytes
from regard.errors import ConfigError, DataError
from regard.fingerprint import Fingerprint
from regard.runs import Stopped
from regard.settings import Config
from tests.conftest import whole
from tests.test_batches import epoch
from tests.test_training import StopAt, final, records
from tests.toy import toy_config

NONE = {"train": None, "valid": None, "test": None}


def corpora(*sizes: int, **data: Any) -> Config:
    """Settings of as many corpora, of which number `i` has the files `i.tsv`."""
    each = [{"train": f"{i}.tsv", "valid": "v.tsv"} for i in range(len(sizes))]
    return Config.parse({"data": {"corpora": each, **data}})


# How they are mixed


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=9), st.integers(0, 10**9))
def test_shares_of_an_epoch_are_whole_and_nearest(shares: list[float], total: int) -> None:
    shares = [share / sum(shares) for share in shares]
    found = apportion(shares, total)
    assert sum(found) == total
    assert all(abs(count - share * total) < 1 + 1e-6 for count, share in zip(found, shares, strict=True))


def test_temperature_and_weights_are_those_of_the_paper() -> None:
    """Arivazhagan et al. 2019: `p ∝ n^(1/T)`, and here times a weight."""
    sizes = [900, 100]
    assert corpora(*sizes).data.shares(sizes) == pytest.approx([0.9, 0.1])
    assert corpora(*sizes, temperature=2).data.shares(sizes) == pytest.approx([0.75, 0.25])
    weighted = {"corpora": [{"train": "a", "valid": "v"}, {"train": "b", "weight": 3}], "temperature": 2}
    assert Config.parse({"data": weighted}).data.shares(sizes) == pytest.approx([0.5, 0.5])
    assert corpora(*sizes, temperature=10**6).data.shares(sizes) == pytest.approx([0.5, 0.5], abs=1e-5)
    assert corpora(*sizes, temperature=0.001).data.shares(sizes) == [1.0, 0.0]


def stored(folder: Path, sizes: list[int], config: Config) -> tuple[ExampleStore, Sides]:
    sides = Sides.of(config)
    sides.use({"tokens": Bytes()})
    texts = [(f"{chr(97 + c)}{i}", "b" * (1 + i % 7), c) for c, size in enumerate(sizes) for i in range(size)]
    examples = [Example(source, target, corpus=c if config.data.corpora else 0) for source, target, c in texts]
    report, made_from = Report("files"), Fingerprint({"sizes": str(sizes)})
    return write_examples(folder, examples, sides, data=config.data, report=report, made_from=made_from), sides


def batches_of(folder: Path, sizes: list[int], config: Config, window: int = 64) -> Batches:
    store, sides = stored(folder, sizes, config)
    return Batches(store, sides, Pairs(sides.source), [100, 100], 3, window)


def drawn(batches: Batches, number: int) -> Counter[str]:
    """How often each source is in an epoch."""
    found = Counter[str]()
    for batch, _ in epoch(batches, number):
        found.update(Bytes().decode(row) for row in batch.source.tolist())
    return found


def test_corpora_in_their_own_proportion_are_the_same_batches_as_one_file_of_all(tmp_path: Path) -> None:
    sizes = [70, 11, 30]
    one = batches_of(tmp_path / "one", sizes, Config())
    several = batches_of(tmp_path / "several", sizes, corpora(*sizes))
    for number in range(3):
        pairs = zip(epoch(one, number), epoch(several, number), strict=True)
        for (a, place), (b, other) in pairs:
            assert (a.source.tolist(), a.outputs.tolist(), place) == (b.source.tolist(), b.outputs.tolist(), other)


def test_each_corpus_is_gone_through_evenly_over_epochs(tmp_path: Path) -> None:
    """An epoch has as many examples as there are; of each corpus as many as its share, and none much oftener than
    another."""
    sizes = [150, 40, 10]
    batches = batches_of(tmp_path, sizes, corpora(*sizes, temperature=100))
    assert batches.quotas == (67, 67, 66)
    together = Counter[str]()
    for number in range(5):
        found = drawn(batches, number)
        together += found
        assert found.total() == 200
        for letter, quota, size in zip("abc", batches.quotas, sizes, strict=True):
            own = [count for source, count in found.items() if source[0] == letter]
            assert sum(own) == quota
            assert max(own) <= -(-quota // size) + (quota < size)
    for letter, quota, size in zip("abc", batches.quotas, sizes, strict=True):
        counts = {count for source, count in together.items() if source[0] == letter}
        assert counts == {5 * quota // size, -(-5 * quota // size)}
    first = drawn(batches, 0)
    assert {source for source in first if source[0] == "a"} != {f"a{i}" for i in range(67)}  # no stretch of the file


def test_any_position_is_reached_again(tmp_path: Path) -> None:
    batches = batches_of(tmp_path, [150, 40, 10], corpora(1, 1, 1, temperature=5), window=50)
    walked = [pair for number in range(3) for pair in epoch(batches, number)]
    for (_, before), (batch, after) in list(pairwise(walked))[::7]:
        again, place = next(batches.since(before))
        assert (again.source.tolist(), place) == (batch.source.tolist(), after)
    assert next(batches.since(Position()))[1] == walked[0][1]


# What stands before a source


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word", "byte"])
def test_a_prefix_is_one_token_in_every_kind_of_vocabulary(kind: str, tmp_path: Path) -> None:
    inner = train_tokenizer(["ein Haus am See", "a house by the lake"] * 5, kind, 300)
    tokenizer = Prefixed(inner, ["<2de>", "<2en>"])
    assert tokenizer.size == inner.size + 2
    text = "a house"
    for given_text in ("<2en> a house", "  <2en>   a  house"):
        ids = tokenizer.encode(given_text)
        assert ids == [inner.size + 1, *inner.encode(text)] == tokenizer.encode_many([given_text])[0]
    assert tokenizer.decode(ids) == inner.decode(inner.encode(text)) == text
    assert tokenizer.pieces(ids) == ["<2en>", *inner.pieces(inner.encode(text))]
    assert tokenizer.words(ids) == [-1, *inner.words(inner.encode(text))]
    assert tokenizer.encode("a <2en> house") == inner.encode("a <2en> house")  # only at the beginning
    assert tokenizer.encode("<2en>") == [inner.size + 1]
    assert tokenizer.encode("") == []
    tokenizer.save(tmp_path, "tokens")
    loaded = load_tokenizer(tmp_path, "tokens")
    assert isinstance(loaded, Prefixed)
    assert (loaded.encode("<2de> Haus"), loaded.size) == (tokenizer.encode("<2de> Haus"), tokenizer.size)


def test_a_mark_is_no_prefix() -> None:
    with pytest.raises(ConfigError, match="the prefix <sep> is a mark that every vocabulary has"):
        Prefixed(Bytes(), ["<sep>"])


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"train": "x.tsv", "corpora": [{"train": "a", "valid": "b"}]}}, r"train and corpora clash: name its"),
        ({"data": {"corpora": [{"train": "a"}]}}, "valid is missing from any of the corpora"),
        ({"data": {"train": None}}, "train is missing from data; name a file"),
        ({"data": {"temperature": 5}}, "temperature is of several corpora, and there are none"),
        ({"data": {"corpora": [{"train": "x/a.tsv", "valid": "b"}, {"train": "y/a.tsv"}]}},
         "corpora has two that are called 'a'; give each a name"),
        ({"data": {"corpora": [{"train": "a", "valid": "b", "prefix": "<2 de>"}]}}, "'prefix' in .* is '<2 de>'"),
        ({"data": {"corpora": [{"train": "a", "valid": "b", "wieght": 2}]}}, "unknown setting 'wieght' in .*'weight'"),
        ({"data": {"corpora": [{"train": "a", "valid": "b", "prefix": "<a>"}]}, "source": "image",
          "model": {"encoder": {"kind": "stem"}, "decoder": {"kind": "gru"}}}, r"a prefix \(<a>\), which"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_corpora_is_said(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.parse(settings)


def test_paths_of_corpora_are_relative_to_the_config(tmp_path: Path) -> None:
    config = Config.parse({"data": {"corpora": [{"train": "a.tsv", "valid": ["b", "c"], "weight": 2}]}}, tmp_path)
    assert config.data.corpora is not None
    assert config.data.corpora[0].train == str(tmp_path / "a.tsv")
    assert config.data.corpora[0].valid == [str(tmp_path / "b"), str(tmp_path / "c")]
    assert config.data.split("valid")[0].name == "a"
    assert any("check data.corpora[0].train" in line for line in missing_files(config))
    assert Config.parse(json.loads(config.model_dump_json())) == config  # as a saved model has it


# Training


def write(folder: Path) -> None:
    """Two tasks on one alphabet: words as they are, and words in capitals."""
    draw = np.random.default_rng(0)
    for name, count, change in (("copy", 400, str), ("upper", 60, str.upper)):
        for split, size in (("train", count), ("valid", 12), ("test", 12)):
            rows = [" ".join(draw.choice(["alpha", "beta", "gamma"], size=3)) for _ in range(size)]
            (folder / f"{name}.{split}.tsv").write_text("".join(f"{row}\t{change(row)}\n" for row in rows))


def two_tasks(folder: Path, **changes: Any) -> Config:
    named = [{split: f"{name}.{split}.tsv" for split in NONE} | {"prefix": f"<{name}>"} for name in ("copy", "upper")]
    training = {"steps": 80, "validate_every": 40, "save_every": 40}
    data = {**NONE, "corpora": named, "temperature": 5}
    return toy_config(folder, data=data, training={**training, **changes}, model={"d_model": 32})


@whole
def test_two_tasks_in_one_model(tmp_path: Path) -> None:
    write(tmp_path)
    watcher = StopAt(-1)
    system = regard.train(two_tasks(tmp_path), watcher)
    assert system.generate(["<copy> beta alpha beta", "<upper> beta alpha beta"]) == [
        "beta alpha beta",
        "BETA ALPHA BETA",
    ]
    assert "an epoch draws 273 of copy (400 examples), 187 of upper (60 examples)" in watcher.messages
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    last = next(x for x in reversed(log) if "valid_loss" in x)
    assert last["valid_bleu"] == pytest.approx((last["valid_bleu/copy"] + last["valid_bleu/upper"]) / 2)
    assert min(last["valid_loss/copy"], last["valid_loss/upper"]) <= last["valid_loss"]
    result = system.test()
    assert set(result.corpora) == {"copy", "upper"}
    assert len(result.outputs) == 24
    exact = [scores["exact"].value for scores in result.corpora.values()]
    assert result.scores["exact"].value == pytest.approx(sum(exact) / 2)
    kept = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert set(kept["test of each"]) == {"copy", "upper"}
    loaded = regard.load(tmp_path / "run", device="cpu")
    assert loaded.generate(["<upper> alpha"]) == system.generate(["<upper> alpha"])
    whole, log_text = final(tmp_path), (tmp_path / "run" / "log.jsonl").read_text()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(Stopped):
        regard.train(two_tasks(tmp_path), StopAt(23))
    regard.train(two_tasks(tmp_path))
    assert all(torch.equal(whole[name], tensor) for name, tensor in final(tmp_path).items())
    assert records((tmp_path / "run" / "log.jsonl").read_text()) == records(log_text)


def test_a_file_without_prefixes_is_told(tmp_path: Path) -> None:
    write(tmp_path)
    system, told = regard.train(two_tasks(tmp_path, steps=1, validate_every=1, save_every=1)), list[str]()
    with pytest.warns(UserWarning, match=r"no source begins with a prefix .* \(<copy>, <upper>\).* write it before"):
        system.evaluate(tmp_path / "copy.test.tsv")
    rows = (tmp_path / "copy.test.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "prefixed.tsv").write_text("".join(f"<copy> {row}" for row in rows))
    system.evaluate(tmp_path / "prefixed.tsv", warn=told.append)
    system.evaluate(warn=told.append)  # which adds them
    assert not told


def test_bad_lines_are_told_by_the_file_of_their_corpus(tmp_path: Path) -> None:
    write(tmp_path)
    with (tmp_path / "upper.train.tsv").open("a") as file:
        file.write("alpha\n \tALPHA\n" * 20)
    config = two_tasks(tmp_path)
    reports = list(scan_each(config.data, "train", Sides.of(config)))
    assert [report.bad for report in reports] == [0, 40]
    with pytest.raises(DataError, match=r"upper\.train\.tsv: 40 of 100 lines cannot be used, more than data.bad_limit"):
        regard.train(config)
    sources = [x.source for x in read_examples(config.data, "train", Sides.of(config).form, lambda bad: None)]
    assert sources[0].startswith("<copy> ")
    assert sources[-1].strip() == ""  # what is blank stays so


def test_language_models_are_scored_by_corpus_too(tmp_path: Path) -> None:
    """Perplexity of each is that of its file alone; a corpus without validation data is trained on alone."""
    for name, words in (("greek", "alpha beta gamma"), ("latin", "a b c"), ("more", "x y z")):
        (tmp_path / f"{name}.txt").write_text(f"{words}\n" * 20)
    data = {**NONE, "corpora": [
        {"train": "greek.txt", "valid": "greek.txt"}, {"train": "more.txt", "weight": 0.1},
        {"train": "latin.txt", "valid": "latin.txt"},
    ]}  # fmt: skip
    body = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 32}
    settings = {
        "run": "run", "source": "none", "data": data, "tokens": {"kind": "word"},
        "model": {"d_model": 16, "encoder": "none", "decoder": body},
        "training": {"steps": 6, "validate_every": 6, "batch_tokens": 60, "tensorboard": False, "device": "cpu"},
    }  # fmt: skip
    system = regard.train(Config.parse(settings, tmp_path))
    result = system.evaluate()
    assert set(result.corpora) == {"greek", "latin"}
    for name, scores in result.corpora.items():
        alone = system.evaluate(str(tmp_path / f"{name}.txt"))
        assert scores["perplexity"].value == pytest.approx(alone.scores["perplexity"].value)
        assert not alone.corpora
    kept = json.loads((tmp_path / "run" / "scores.json").read_text())["valid"]
    assert kept["loss"] == pytest.approx((kept["loss/greek"] + kept["loss/latin"]) / 2)  # as many tokens each
    assert kept["perplexity"] == pytest.approx(np.exp(kept["loss"]))


def test_the_loss_over_corpora_is_a_mean_over_all_that_is_predicted(tmp_path: Path) -> None:
    """Tags have no end after them, which would count too."""
    (tmp_path / "one.tsv").write_text("a\tX\n")
    (tmp_path / "four.tsv").write_text("a b a b\tX Y X Y\n")
    each = [{"train": f"{name}.tsv", "valid": f"{name}.tsv"} for name in ("one", "four")]
    given = {
        "run": "run", "data": {"corpora": each}, "target": "tags", "tokens": {"kind": "word"},
        "model": {"d_model": 8, "encoder": "gru", "decoder": "none"},
        "training": {"steps": 1, "tensorboard": False, "device": "cpu"},
    }  # fmt: skip
    regard.train(Config.parse(given, tmp_path))
    kept = json.loads((tmp_path / "run" / "scores.json").read_text())["valid"]
    assert kept["loss"] == pytest.approx((kept["loss/one"] + 4 * kept["loss/four"]) / 5, rel=1e-6)
