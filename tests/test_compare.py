"""`regard compare`, end to end: the same data and budget for all; it resumes; costs as counted by hand."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import regard
from regard import artifacts
from regard.compare import Budget, Results, compare, runner
from regard.compare import lecture as lecture_module
from regard.compare.cost import BYTES_A_WEIGHT, count_cost
from regard.compare.lecture import MODELS, lecture
from regard.config import load, merge, parse
from regard.data.synthetic import phrasebook, scenes
from regard.errors import ConfigError, OutputError
from regard.models.recurrent import CONTEXT_MODES
from regard.runs import Stopped, prepare
from regard.settings import Config
from regard.system import System
from tests.conftest import FULL, whole
from tests.test_cli import good, refused, run
from tests.test_training import StopAt
from tests.toy import toy_config, toy_settings, write_corpus

TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 24}
SMALL = {
    "model": {"d_model": 16, "dropout": 0.0},
    "training": {"steps": 5, "validate_sentences": 4, "learning_rate": 0.02, "warmup": 5, "batch_tokens": 200},
    "search": {"beam": 2, "max_length": 12},
}
PAIR: dict[str, dict[str, Any]] = {"a": {}, "b": {"model": {"encoder": TRANSFORMER, "decoder": TRANSFORMER}}}


def write_configs(folder: Path, **changes: Any) -> list[Path]:
    paths = []
    for name, own in PAIR.items():
        paths.append(folder / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(merge(merge(merge(toy_settings(), SMALL), own), changes)))
    return paths


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    write_corpus(folder)
    write_configs(folder)
    return folder


@pytest.fixture(scope="module")
def done(corpus: Path) -> Path:
    """A finished comparison."""
    shown = good(*command(corpus, corpus / "done"))
    (corpus / "shown.txt").write_text(shown)
    return corpus / "done"


def command(corpus: Path, folder: Path, *budget: str) -> list[str | Path]:
    configs = [corpus / "a.yaml", corpus / "b.yaml"]
    return ["compare", *configs, *(budget or ("--tokens", "2500")), "--seeds", "2", "--folder", folder]


def compared(
    corpus: Path, folder: Path, *, names: Sequence[str] = tuple(PAIR), seeds: Sequence[int] = (1,),
    train: Callable[[Config], System] = regard.train, say: Callable[[str], None] = lambda text: None, **budget: Any,
) -> Results:  # fmt: skip
    """A comparison of some of the pair, from Python."""
    models = {name: load(corpus / f"{name}.yaml") for name in names}
    return compare(models, folder, Budget(**(budget or {"tokens": 2500})), seeds=seeds, train=train, say=say)


def results_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "compare" / "results.json").read_text())
    return content


def test_a_comparison_leaves_a_table_a_page_and_figures(corpus: Path, done: Path) -> None:
    shown = (corpus / "shown.txt").read_text()
    assert f"wrote {done / 'compare.md'}" in shown
    results = results_of(done)
    runs = results["runs"]
    assert [(x["model"], x["seed"]) for x in runs] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    page = (done / "compare.md").read_text()
    for text in (shown, page):
        assert "BLEU" in text
        for name in PAIR:
            assert any(line.strip(" |`").startswith(name) for line in text.splitlines())
    assert "2,500 target tokens" in page
    assert "--tokens 2500 --seeds 2" in page
    for figure in ("by-length.svg", "by-cost.svg", "learning.svg"):
        assert f"compare/{figure}" in page
        assert (done / "compare" / figure).read_text().startswith("<?xml")
    for x in runs:
        assert 2500 <= x["tokens"] < 2500 + 200
        system = regard.load(done / x["model"] / f"seed-{x['seed']}")
        assert x["parameters"] == system.parameters()
        assert x["scores"]["exact"] == pytest.approx(system.test().scores["exact"].value)
        assert [point["step"] for point in x["curve"]] == sorted({point["step"] for point in x["curve"]})
        assert 6 <= len(x["curve"]) <= 13  # a dozen, or as many as so few updates allow
        assert x["curve"][-1]["loss"] < x["curve"][0]["loss"]
    assert runs[0]["scores"] != runs[1]["scores"]  # another seed is another model
    groups = [[x["shortest"], x["longest"]] for x in runs[0]["lengths"]]
    assert [x["group"] for x in results["pairs"]] == [None, *groups]
    mean = {x: sum(run["scores"]["bleu"] for run in runs if run["model"] == x) / 2 for x in PAIR}
    for x in results["pairs"]:
        assert (x["one"], x["other"]) == ("a", "b")
        assert 0 < x["p"] <= 1
        assert x["low"] <= x["high"]
    assert results["pairs"][0]["difference"] == pytest.approx(mean["a"] - mean["b"])
    assert "paired bootstrap resampling" in page
    assert "Welch's t-test" in page


def test_what_is_done_is_not_done_again(corpus: Path, done: Path) -> None:
    before = results_of(done)
    weights = {path: path.stat().st_mtime_ns for path in done.rglob("*.safetensors")}
    again = run(*command(corpus, done))
    assert again.returncode == 0
    told = [f"{name}, seed {seed}: done before" for name in PAIR for seed in (1, 2)]
    assert again.stderr.splitlines() == told
    assert artifacts.read_mark(done) == {"kind": "comparison"}
    assert weights == {path: path.stat().st_mtime_ns for path in done.rglob("*.safetensors")}
    assert results_of(done)["runs"] == before["runs"]


def test_one_that_is_missing_is_scored_again(corpus: Path, done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "copy")
    (tmp_path / "copy" / "a" / "seed-2" / "compared.json").unlink()
    again = run(*command(corpus, tmp_path / "copy"))
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("done before") == 3
    assert "a, seed 2: " in again.stderr
    for one, other in zip(results_of(tmp_path / "copy")["runs"], results_of(done)["runs"], strict=True):
        assert one["scores"] == other["scores"]
        assert one["tokens"] == other["tokens"]


@whole
def test_cut_off_in_the_middle_it_goes_on(corpus: Path, done: Path, tmp_path: Path) -> None:
    """Between two models, and within the training of one: the same results as in one go."""
    said: list[str] = []
    watcher = StopAt(0)
    trained: list[str] = []

    def cut(config: Config) -> System:
        trained.append(config.run)
        return regard.train(config, StopAt(4) if len(trained) == 2 else watcher)

    def train(config: Config) -> System:
        trained.append(config.run)
        return regard.train(config, watcher)

    with pytest.raises(Stopped):
        compared(corpus, tmp_path / "runs", train=cut, say=said.append)
    assert [x.partition(":")[0] for x in said] == ["a", "a, seed 1", "b", "b, seed 1"]
    said.clear()
    results = compared(corpus, tmp_path / "runs", train=train, say=said.append)
    assert said[0] == "a, seed 1: done before"
    assert "resuming from update 4" in watcher.messages
    assert len(trained) == 3
    whole = {(x["model"], x["seed"]): x for x in results_of(done)["runs"]}
    for x in results.runs:
        assert x.scores == whole[x.model, x.seed]["scores"]
        assert x.steps == whole[x.model, x.seed]["steps"]


@whole
def test_a_budget_of_operations(corpus: Path, tmp_path: Path) -> None:
    """Each model trains on as many tokens as the operations allow: the dearer one on fewer."""
    budget = 6e7
    results = compared(corpus, tmp_path / "runs", flops=budget)
    for x in results.runs:
        a_batch = 200 * x.flops / x.tokens
        assert budget <= x.flops < budget + a_batch
    assert results.budget == "6.00e+07 FLOPs of training"
    tokens = {x.model: x.tokens for x in results.runs}
    per_token = {x.model: x.flops / x.tokens for x in results.runs}
    dear, cheap = sorted(tokens, key=lambda name: -per_token[name])
    assert tokens[dear] < tokens[cheap]
    least = compared(corpus, tmp_path / "one", flops=1.0)
    assert [x.steps for x in least.runs] == [1, 1]  # not for ever


@whole
def test_a_budget_of_seconds(corpus: Path, tmp_path: Path) -> None:
    results = compared(corpus, tmp_path / "runs", seconds=0.25)
    assert all(0.25 <= x.seconds < 5 and x.steps > 1 for x in results.runs)
    assert results.budget == "0.25 seconds of training"


@pytest.mark.parametrize("kind", ["label", "tags"] if FULL else ["tags"])
def test_models_that_tell_labels_are_compared_by_accuracy(kind: str, tmp_path: Path) -> None:
    """Also where one of them leaves an example out, which the other reads: the rest still go together."""
    draw = random.Random(1)
    for split in ("train", "valid", "test"):
        rows = [[draw.choice(["film", "good", "bad"]) for _ in range(draw.randint(2, 9))] for _ in range(60)]
        rows = [["film"] * 30, *rows] if split == "test" else rows
        answers = [" ".join(x[0].upper() for x in row) if kind == "tags" else f"so {row[0]}" for row in rows]
        text = "".join(f"{' '.join(row)}\t{answer}\n" for row, answer in zip(rows, answers, strict=True))
        (tmp_path / f"{split}.tsv").write_text(text)

    def model(**own: Any) -> Config:
        return Config.parse({
            "data": {x: str(tmp_path / f"{x}.tsv") for x in ("train", "valid", "test")}, "tokens": {"kind": "word"},
            "source": {"max_length": 16}, "target": {"kind": kind}, "model": {"d_model": 16, **own},
            "training": {"batch_tokens": 200, "device": "cpu", "tensorboard": False},
        })  # fmt: skip

    alone: dict[str, Any] = {"decoder": {"kind": "none"}}
    models = {"attends": model(encoder=TRANSFORMER, max_positions=20, **alone),
              "recurs": model(encoder={"kind": "lstm"}, **alone)}  # fmt: skip
    with pytest.warns(UserWarning, match="left out"):
        results = compare(models, tmp_path / "runs", Budget(tokens=900), seeds=(1,))
    assert results.metric == "accuracy"
    accuracy = {run.model: run.scores["accuracy"] for run in results.runs}
    whole, *by_length = results.pairs
    assert whole.difference == pytest.approx(accuracy["attends"] - accuracy["recurs"])
    assert [x.group for x in by_length] == results.groups
    assert all(run.score("accuracy", group) is not None for run in results.runs for group in results.groups)
    known = artifacts.read_json(tmp_path / "runs" / "attends" / "seed-1" / "compared.json")
    first, *others = known["sentences"][0]["rows"]
    assert first == [0.0, 0.0]
    assert len(others) == 60
    assert all(total >= 1 for _, total in others)


def test_pictures_have_no_length_in_words(tmp_path: Path) -> None:
    scenes.write(tmp_path, train=20, valid=4, test=4)
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "valid", "test")}
    stem = {"kind": "convolution", "channels": 4}
    config = parse({
        "preset": "xu2015", "data": files, "source": {"kind": "image", "size": 16},
        "model": {"d_model": 16, "encoder": {"stem": stem}},
        "training": {"device": "cpu", "tensorboard": False}, "search": {"beam": 1, "max_length": 4},
    })  # fmt: skip
    results = compare({"a": config}, tmp_path / "runs", Budget(tokens=9), seeds=(1,))
    assert results.groups == []
    assert results.runs[0].decode_speed > 0


# What a target token costs


@pytest.mark.parametrize("lengths", [[(3, 4)] * 3, [(5, 2)], [(1, 6), (1, 6)]])
def test_the_operations_of_a_transformer_by_hand(corpus: Path, tmp_path: Path, lengths: list[tuple[int, int]]) -> None:
    """All sentences as long as one another, so that nothing is padded. A product of (m, k) and (k, n) is 2mkn
    operations; going back, there are two more of that size to each, for embeddings learn too."""
    config = toy_config(corpus, run=str(tmp_path / "run"), **merge(SMALL, PAIR["b"]))
    task, _ = prepare(config)
    d, inner, words, rows = 16, 24, task.target.size, len(lengths)
    batch = task.batch([[6] * x for x, _ in lengths], [[7] * y for _, y in lengths])
    source, target = lengths[0][0] + 1, lengths[0][1] + 1
    encoder = rows * source * (4 * d * d + 2 * d * inner) + 2 * rows * source * source * d
    decoder = rows * target * (4 * d * d + 2 * d * d + 2 * d * inner) + rows * source * 2 * d * d
    decoder += 2 * rows * target * target * d + 2 * rows * target * source * d
    head = rows * target * d * words
    cost = count_cost(task, [batch], config.training)
    assert cost.tokens_per_batch == batch.tokens == rows * target
    assert cost.flops_per_token * batch.tokens == 3 * 2 * (encoder + decoder + head)
    assert cost.parameters == sum(x.numel() for x in task.model.parameters())


def test_two_passes_are_twice_the_operations(corpus: Path, tmp_path: Path) -> None:
    config = toy_config(corpus, run=str(tmp_path / "run"), **merge(SMALL, PAIR["b"]))
    task, _ = prepare(config)
    batch, training = task.batch([[6] * 3] * 2, [[7] * 4] * 2), config.training
    twice = training.model_copy(update={"objective": training.objective.model_copy(update={"agreement": 5.0})})
    one, both = (count_cost(task, [batch], settings) for settings in (training, twice))
    assert both.flops_per_token == 2 * one.flops_per_token


def test_the_operations_of_a_recurrent_model_by_hand(corpus: Path, tmp_path: Path) -> None:
    """Four gates from the input and four from the state; the state of zeros that it starts from learns nothing."""
    config = toy_config(
        corpus, run=str(tmp_path / "run"), preset="one-lstm", model={"d_model": 16, "decoder": {"layers": 1}}
    )
    task, _ = prepare(config)
    d, words, rows, source, target = 16, task.target.size, 3, 4, 5
    batch = task.batch([[6] * source] * rows, [[7] * (target - 1)] * rows)
    forward = rows * (source + target) * (4 * d * d + 4 * d * d) + rows * target * d * words
    cost = count_cost(task, [batch], config.training)
    assert cost.flops_per_token * batch.tokens == 2 * (3 * forward - rows * 4 * d * d)


def test_memory_is_that_of_weights_and_of_the_largest_batch(corpus: Path, tmp_path: Path) -> None:
    config = toy_config(corpus, run=str(tmp_path / "run"), **merge(SMALL, PAIR["b"]))
    task, _ = prepare(config)
    small, large = (task.batch([[6, 7]] * rows, [[7, 8, 9]] * rows) for rows in (1, 20))
    one, many, both = (count_cost(task, batches, config.training) for batches in ([small], [large], [small, large]))
    weights = BYTES_A_WEIGHT * one.parameters
    assert weights < one.memory < many.memory == both.memory
    assert many.memory - weights > 10 * (one.memory - weights)
    # Of 4 target tokens a row, at least inputs and outputs of the four sums and products of each block stay.
    assert many.memory - weights > 20 * 4 * 16 * 4 * 8
    assert both.tokens_per_batch == pytest.approx((small.tokens + large.tokens) / 2)


# What is refused


def test_configs_in_folders_of_their_own_are_on_the_same_data(corpus: Path, tmp_path: Path) -> None:
    """As `regard new` writes them; what is refused is the folder, after the data have been compared."""
    data = [f"--{split}={corpus / split}.tsv" for split in ("train", "valid")]
    for name in ("one", "two"):
        good("new", tmp_path / name, *data)
    paths = [tmp_path / name / "config.yaml" for name in ("one", "two")]
    test, folder = f"--set=data.test={corpus / 'valid.tsv'}", f"--folder={tmp_path}"
    assert "is no comparison of Regard's" in refused("compare", *paths, "--tokens=9", test, folder)


def test_what_cannot_be_compared(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = corpus / "a.yaml", corpus / "b.yaml"

    def other(name: str, **changes: Any) -> Path:
        path = corpus / f"{name}.yaml"
        path.write_text(yaml.safe_dump(merge(merge(toy_settings(), SMALL), changes)))
        return path

    short = other("short", data={"train": "valid.tsv"})
    untested = other("untested", data={"test": None})
    text = {"source": {"kind": "none"}, "target": {"column": 2}}
    alone = {"encoder": {"kind": "none"}, "decoder": {"kind": "transformer", "layers": 1, "heads": 2}}
    folder = ("--folder", tmp_path / "runs")
    for arguments, said in (
        ((a, short, "--tokens", "9"), "short and a differ in [data]; models are compared on the same data"),
        ((a, other("chars", tokens={"kind": "char"}), "--tokens", "9"), "chars and a differ in [tokens]"),
        ((untested, "--tokens", "9"), "untested names no data.test to compare on"),
        ((other("text", **text, model=alone), "--tokens", "9"), "text is measured by its loss, which"),
        ((other("loss", training={"metric": "loss"}), "--tokens", "9"), "loss, which says nothing of outputs; set"),
        ((a, a, "--tokens", "9"), "two models have the same name: a"),
        ((a, other("A"), "--tokens", "9"), "two models have the same name: a, a"),
        ((a, "--only", "Transformer", "--tokens", "9"), "--only chooses among the models of --lecture"),
        ((a, b, "--tokens", "9", "--flops", "9"), "give one budget: --tokens, --seconds or --flops"),
        ((a, b), "give one budget"),
        ((a, b, "--tokens", "-9"), "a budget has to be above 0, not -9"),
        (("--tokens", "9"), "give configs to compare, or --lecture"),
        ((a, "--lecture"), "give configs to compare, or --lecture"),
        (("--lecture", "--only", "Transformr"), "no model 'Transformr' in the lecture; there are: last state; "),
    ):
        assert said in refused("compare", *arguments, *folder)
    with pytest.raises(ConfigError, match="no models to compare"):
        compare({}, tmp_path / "runs", Budget(tokens=9))
    assert not (tmp_path / "runs").exists()
    monkeypatch.chdir(corpus)
    shutil.copy(a, corpus / "config.yaml")
    done = run("compare", "config.yaml", "--tokens", "9", "--seeds", "1", *folder)
    assert done.returncode == 0, done.stderr
    assert f"{corpus.name}, seed 1: " in done.stderr  # named for its folder, also from within


def test_another_budget_or_other_settings_are_another_comparison(corpus: Path, done: Path) -> None:
    """Else old numbers would stand under the new budget's name."""
    before = results_of(done)
    for arguments in (
        command(corpus, done, "--tokens", "99"),
        command(corpus, done, "--seconds", "9"),
        [*command(corpus, done), "--set", "training.learning_rate=0.5"],
        [*command(corpus, done), "--set", "model.dropout=0.5"],
    ):
        said = refused(*arguments)
        assert "holds a run made from something else: " in said
        assert "give another --folder" in said
    assert "something else: training.learning_rate (0.02 before, 0.5 now); give" in refused(
        *command(corpus, done), "--set", "training.learning_rate=0.5"
    )
    # What the budget takes the place of makes no difference.
    assert good(*command(corpus, done), "--set", "training.steps=7", "--set", "training.patience=3")
    before = results_of(done)
    assert results_of(done) == before
    with pytest.raises(OutputError):
        compared(corpus, done, tokens=99)
    with pytest.raises(ConfigError):
        Budget()


def test_other_data_under_the_same_name_are_another_comparison(corpus: Path, done: Path, tmp_path: Path) -> None:
    """Else old scores would stand for new data. Data that were only moved are the same."""
    for name in ("a.yaml", "b.yaml", "train.tsv", "valid.tsv", "test.tsv"):
        shutil.copy(corpus / name, tmp_path / name)
    shutil.copytree(done, tmp_path / "done")
    before = results_of(done)["runs"]
    good(*command(tmp_path, tmp_path / "done"))
    assert results_of(tmp_path / "done")["runs"] == before
    for name in ("train", "valid", "test"):
        kept = (tmp_path / f"{name}.tsv").read_bytes()
        (tmp_path / f"{name}.tsv").write_bytes(kept + b"alpha\tALPHA\t0-0\n")
        said = refused(*command(tmp_path, tmp_path / "done"))
        assert f"something else: the content of data.{name}; give another --folder" in said
        (tmp_path / f"{name}.tsv").write_bytes(kept)
    assert results_of(tmp_path / "done")["runs"] == before


def test_other_pictures_under_the_same_names_are_other_data(tmp_path: Path) -> None:
    scenes.write(tmp_path, train=3, valid=2, test=2)
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "valid", "test")}
    config = parse({"preset": "xu2015", "data": files, "source": {"kind": "image"}})
    before = runner._contents(config, None)
    assert len(before) == 3
    shutil.copy(tmp_path / "pictures" / "train" / "000001.png", tmp_path / "pictures" / "valid" / "000002.png")
    after = runner._contents(config, None)
    assert [name for name in before if before[name] != after[name]] == ["content of data.valid"]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"made_from": 3}'])
def test_a_damaged_report_is_named_and_made_anew(corpus: Path, done: Path, tmp_path: Path, content: bytes) -> None:
    shutil.copytree(done / "a" / "seed-1", tmp_path / "runs" / "a" / "seed-1")
    artifacts.mark(tmp_path / "runs", "comparison")
    report = tmp_path / "runs" / "a" / "seed-1" / "compared.json"
    whole = artifacts.read_json(report)
    report.write_bytes(content)
    said: list[str] = []
    compared(corpus, tmp_path / "runs", names="a", say=said.append)
    assert said[0] == f"{report} is damaged, and is made anew"
    again = artifacts.read_json(report)
    assert again["made_from"] == whole["made_from"]
    for volatile in ("decode_speed", "seconds"):
        again["run"].pop(volatile), whole["run"].pop(volatile)
    assert again["run"] == whole["run"]


@whole
def test_what_is_overridden_is_announced(corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    config = load(corpus / "a.yaml", ["training.patience=5", "training.validate_every=1000"])
    compare({"a": config}, tmp_path / "runs", Budget(tokens=2500), seeds=(1, 2), say=said.append)
    (line,) = [x for x in said if x.startswith("a: ")]
    assert line == (
        "a: training ends after 2,500 target tokens; of its config these do not hold: training.steps=5, "
        "training.patience=5, training.validate_every=1000 (here 2), training.save_every=25 (here 2)"
    )


def test_a_folder_of_others_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    (tmp_path / "model").mkdir()
    artifacts.mark(tmp_path / "model", "model")
    (tmp_path / "file").touch()
    for name, said in (
        ("mine", "is not empty and is no comparison of Regard's; give another --folder"),
        ("model", "is a model and no comparison; give another --folder"),
        ("file", "is not a folder"),
    ):
        assert said in refused(*command(corpus, tmp_path / name))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["diary.txt"]


def test_a_page_of_others_is_refused_before_the_work(corpus: Path, tmp_path: Path) -> None:
    page = tmp_path / "notes.md"
    page.write_text("my notes")
    said = refused(*command(corpus, tmp_path / "runs"), "--page", page)
    assert f"{page} exists and was not made by `regard compare`" in said
    assert page.read_text() == "my notes"
    assert not (tmp_path / "runs").exists()
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "results.json").write_text("[1, 2]")
    assert "figures exists and was not" in refused(*command(corpus, tmp_path / "x"), "--page", tmp_path / "figures.md")
    assert (tmp_path / "figures" / "results.json").read_text() == "[1, 2]"
    assert "go where figures should" in refused(*command(corpus, tmp_path / "x"), "--page", tmp_path / "x" / "a.md")


@whole
def test_two_processes_share_a_folder_but_not_a_run(corpus: Path, tmp_path: Path) -> None:
    """While one works on `a`, another is refused `a` by its pid, and does `b` meanwhile."""
    runs = tmp_path / "runs"
    met: list[str] = []

    def train(config: Config) -> System:
        with pytest.raises(OutputError, match=rf"seed-1 is in use by process {os.getpid()} "):
            compared(corpus, runs, names="a", say=met.append)
        compared(corpus, runs, names="b", say=met.append)
        return regard.train(config)

    compared(corpus, runs, names="a", train=train, say=met.append)
    assert [x.partition(":")[0] for x in met if "seed" in x] == ["a, seed 1", "b, seed 1"]
    assert len(compared(corpus, runs).runs) == 2


# The lecture


@pytest.fixture
def small_lecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lecture_module, "PAIRS", 200)
    monkeypatch.setattr(lecture_module, "SENTENCES", 4)
    write = phrasebook.write

    def few(*arguments: Any, **named: Any) -> Any:
        return write(*arguments, **named, valid=20, test=20)

    monkeypatch.setattr(phrasebook, "write", few)


@pytest.mark.usefixtures("small_lecture")
def test_every_model_of_the_lecture_can_be_built(tmp_path: Path) -> None:
    given = ["model.d_model=16", "tokens.kind=word"]
    made = lecture(tmp_path, given, [])
    models: dict[str, Config] = made["models"]
    assert list(models) == list(made["ideas"]) == list(MODELS)
    modes = []
    for name, config in models.items():
        assert config.data == models["last state"].data
        task, _ = prepare(config.model_copy(update={"run": str(tmp_path / name)}))
        modes.append(getattr(task.model.decoder, "mode", None))
    last, every, attends = (CONTEXT_MODES[x] for x in ("last", "every", "output"))
    assert modes == [last, last, every, *[attends] * 5, None, None]
    lengths = [
        len(line.split("\t")[0].split()) for line in (tmp_path / "corpus" / "lengths.tsv").read_text().splitlines()
    ]
    assert len(lengths) == 4 * len(lecture_module.GROUPS)
    assert max(lengths) > 25 > 10 > min(lengths)


@whole
@pytest.mark.usefixtures("small_lecture")
def test_a_very_small_lecture(tmp_path: Path) -> None:
    shown = good(
        "compare", "--lecture", "--only", "attention, dot", "--tokens", "3000", "--seeds", "1",
        "--folder", tmp_path / "lecture", "--page", tmp_path / "docs" / "lecture.md",
        "--set", "model.d_model=16", "--set", "search.max_length=10", "--set", "search.beam=1",
    )  # fmt: skip
    page = (tmp_path / "docs" / "lecture.md").read_text()
    assert "From the last state to the Transformer" in page
    assert "attention, dot" in shown
    (one,) = json.loads((tmp_path / "docs" / "lecture" / "results.json").read_text())["runs"]
    assert [(x["shortest"], x["longest"], x["sentences"]) for x in one["lengths"]] == [
        (low, high, 4) for low, high in lecture_module.GROUPS
    ]
    assert one["tokens"] >= 3000
    assert {"bleu", "aer", "pointing"} <= set(one["scores"])
