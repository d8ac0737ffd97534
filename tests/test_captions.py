"""Images to captions, end to end, with soft attention, hard attention and none; and corpora that Regard makes."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import regard
from regard import demo
from regard.config import parse
from regard.data.examples import Example, read_files
from regard.data.synthetic import clips, questions, scenes, spoken
from regard.errors import ConfigError, DataError
from regard.registry import MODALITIES
from tests.conftest import FULL, whole
from tests.test_cli import good, refused, run
from tests.toy import sides_of

FEW = 6  # pictures that a model learns by heart
GRID = 6  # 48 pixels, halved three times
PRESETS = ("xu2015", "xu2015-hard", "vinyals2015") if FULL else ("xu2015",)


def settings(preset: str, **changes: Any) -> dict[str, Any]:
    return {
        "preset": preset,
        "run": preset,
        "data": {"train": "few.jsonl", "valid": "few.jsonl", "test": "test.jsonl"},
        "source": {"kind": "image", "size": 48},
        "tokens": {"kind": "word"},
        "model": {"d_model": 32, "dropout": 0.0, "encoder": {"stem": {"channels": 8}}},
        "training": {
            "steps": 120, "batch_tokens": 600, "learning_rate": 5e-3, "warmup": 10, "schedule": "linear",
            "validate_every": 50, "save_every": 1000, "label_smoothing": 0.0, "metric": "exact", "tensorboard": False,
            "device": "cpu", "objective": {"doubly_stochastic": 0.0}, **changes,
        },
        "search": {"beam": 2, "max_length": 20},
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("scenes")
    scenes.write(place, train=60, valid=8, test=8, picture=48)
    lines = (place / "train.jsonl").read_text().splitlines(keepends=True)
    (place / "few.jsonl").write_text("".join(lines[:FEW]))
    for preset in PRESETS:
        steps = 250 if preset == "vinyals2015" else 120  # all of a picture in one vector takes longer to tell apart
        regard.train(regard.Config.parse(settings(preset, steps=steps), place))
    return place


def examples(folder: Path, name: str = "few.jsonl") -> list[Example]:
    return list(read_files(str(folder / name), sides_of("image").form))


def report(folder: Path, preset: str, data: str) -> dict[str, Any]:
    path = folder / f"{preset}-{data}.json"
    good("evaluate", folder / preset, folder / data, "--report", path)
    scores: dict[str, Any] = json.loads(path.read_text())["scores"]
    return scores


@pytest.mark.parametrize("preset", PRESETS)
def test_pictures_in_and_captions_out(folder: Path, tmp_path: Path, preset: str) -> None:
    """What was learnt by heart is told again, whatever the order, from standard input or a file."""
    known = examples(folder)
    (tmp_path / "in.txt").write_text("".join(x.source + "\n" for x in known))
    outputs = good("generate", folder / preset, tmp_path / "in.txt").splitlines()
    right = [output == x.target for output, x in zip(outputs, known, strict=True)]
    assert sum(right) >= FEW // 2
    backwards = good("generate", folder / preset, text="".join(x.source + "\n" for x in reversed(known)))
    assert backwards.splitlines() == outputs[::-1]
    exact = report(folder, preset, "few.jsonl")["exact"]["score"]
    assert exact == pytest.approx(100 * sum(right) / FEW, abs=0.01)
    sources, targets = [x.source for x in known], [x.target for x in known]
    system = regard.load(folder / preset)
    own, others = (
        sum(x.log_prob for x in system.score(some, targets)) for some in (sources, [*sources[1:], sources[0]])
    )
    assert own > others + FEW  # it does look


@pytest.mark.parametrize("preset", ["xu2015", "xu2015-hard"] if FULL else ["xu2015"])
def test_pointing_is_told_with_what_chance_would_give(folder: Path, preset: str) -> None:
    """By hand: the share of the grid's cells that the box of a word's thing reaches into, over all such words."""
    found = report(folder, preset, "test.jsonl")["pointing"]
    shares = []
    for line in (folder / "test.jsonl").read_text().splitlines():
        record = json.loads(line)
        cells: dict[int, set[tuple[int, int]]] = {}
        for first, last, left, top, right, bottom in record["boxes"]:
            side = record["width"] / GRID
            rows, columns = (range(int(a // side), math.ceil(b / side)) for a, b in ((top, bottom), (left, right)))
            for word in range(first, last + 1):
                cells.setdefault(word, set()).update(product(rows, columns))
        shares += [len(some) / GRID**2 for some in cells.values()]
    chance = re.search(r"chance:([\d.]+)", found["signature"])
    assert chance is not None
    assert float(chance[1]) == pytest.approx(100 * float(np.mean(shares)), abs=0.06)
    assert 0 <= found["score"] <= 100
    assert "layer:decoder.attention" in found["signature"]


@whole
def test_without_attention_nothing_points(folder: Path, tmp_path: Path) -> None:
    scores = report(folder, "vinyals2015", "test.jsonl")
    assert {"bleu", "exact", "perplexity"} <= set(scores)
    assert "pointing" not in scores
    source = examples(folder)[0].source
    assert "no attention" in refused("explain", folder / "vinyals2015", source, "-o", tmp_path / "a.png")
    assert "no attention" in refused("generate", folder / "vinyals2015", "--align", text=source + "\n")


@pytest.mark.parametrize("preset", ["xu2015", "xu2015-hard"] if FULL else ["xu2015"])
def test_explain_draws_where_each_word_looked(folder: Path, tmp_path: Path, preset: str) -> None:
    sources = [x.source for x in examples(folder)[:2]]
    good("explain", folder / preset, sources[0], "-o", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    good("explain", folder / preset, *sources, "-o", tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text().count("data:image/png;base64,") == 2
    good("explain", folder / preset, sources[0], "-o", tmp_path / "a.json")
    (found,) = json.loads((tmp_path / "a.json").read_text())
    weights = np.array(found["layers"][0]["weights"])
    assert weights.shape == (1, len(found["target"]), GRID**2)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-3)
    assert (set(np.unique(weights)) == {0.0, 1.0}) == (preset == "xu2015-hard")
    assert len(found["source"]) == GRID**2
    assert "gold" not in found
    good("explain", folder / preset, "--examples", folder / "few.jsonl", "--count", "2", "-o", tmp_path / "b.json")
    both = json.loads((tmp_path / "b.json").read_text())
    source = regard.load(folder / preset).task.source
    truths = [gold for x in examples(folder)[:2] if (gold := source.gold(x))]
    assert [[tuple(link) for link in x["gold"]] for x in both] == [sorted(gold.possible) for gold in truths]
    assert "either texts to explain or --examples FILE" in refused(
        "explain", folder / preset, sources[0], "--examples", folder / "few.jsonl"
    )


def test_a_picture_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    """When generating it leaves an empty line, as any input that cannot be used; in training data it is an error."""
    known = examples(folder)[0]
    gone, broken = tmp_path / "gone.png", tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG and no more")
    (tmp_path / "in.txt").write_text(f"{gone}\n{known.source}\n{broken}\n\n")
    done = run("generate", folder / "xu2015", tmp_path / "in.txt")
    assert done.returncode == 0, done.stderr
    alone = good("generate", folder / "xu2015", text=known.source + "\n")
    assert done.stdout == f"\n{alone}\n\n"
    told = done.stderr.splitlines()
    assert len(told) == 3
    assert told[0].startswith(f"regard: {tmp_path}/in.txt:1 cannot be used: no picture {gone}; ")
    assert told[1].startswith(f"regard: {tmp_path}/in.txt:3 cannot be used: {broken} cannot be read as a picture")
    with pytest.warns(UserWarning, match="input 1 cannot be used: no picture"):
        assert regard.load(folder / "xu2015").generate([known.source, str(gone)])[1] == ""
    assert f"no picture {gone}" in refused("explain", folder / "xu2015", gone, "-o", tmp_path / "a.png")
    lines = [json.loads(line) for line in (folder / "few.jsonl").read_text().splitlines()]
    lines[2]["source"] = "pictures/gone.png"
    (folder / "gaps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = settings("xu2015")
    config["data"] |= {"train": "gaps.jsonl", "bad_lines": "error"}
    with pytest.raises(DataError, match=re.escape(f"no picture {folder / 'pictures' / 'gone.png'}")):
        regard.train(regard.Config.parse({**config, "run": "gaps"}, folder))


# Corpora that Regard makes


@pytest.fixture
def few_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (scenes, questions, clips, spoken):
        monkeypatch.setattr(module, "write", partial(module.write, valid=11, test=11))
    monkeypatch.setattr(demo, "PAIRS", {**demo.PAIRS, "scenes": 30})


@pytest.mark.usefixtures("few_scenes")
@whole
def test_the_demo_of_captions(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "captions"
    overrides = ["model.d_model=16", "model.encoder.stem.channels=4", "training.steps=4", "training.validate_every=2",
                 "search.beam=1", "search.max_length=8", "training.tensorboard=false"]  # fmt: skip
    shown = good("demo", "--captions", "--run", folder, *overrides)
    assert "30 pictures to train on" in shown
    for heading in ("1. pictures of things", "2. training", "3. scores", "4. captions", "5. what it attended to"):
        assert heading in shown
    assert "pointing" in shown
    pictures = sorted((folder / "attention").iterdir(), key=lambda path: int(path.stem))
    assert [path.name for path in pictures] == [f"{i}.png" for i in range(1, 11)]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert (folder / "attention.html").read_text().count("data:image/png;base64,") == 10
    assert (tmp_path / "runs" / "scenes" / "train.jsonl").exists()
    assert f"generate {folder} --nbest 3 --scores" in shown
    assert len(regard.load(folder).generate([str(tmp_path / "runs" / "scenes" / "pictures/test/000001.png")])) == 1


@pytest.mark.usefixtures("few_scenes")
@pytest.mark.parametrize("corpus", ["scenes", "text"])
def test_new_makes_a_corpus_and_a_config_that_train(tmp_path: Path, corpus: str) -> None:
    shown = good("new", tmp_path / "mine", "--corpus", corpus, "--pairs", "60")
    assert f"next: regard train {tmp_path / 'mine' / 'config.yaml'}" in shown
    config = yaml.safe_load((tmp_path / "mine" / "config.yaml").read_text())
    ending, source = {"scenes": ("jsonl", "image"), "text": ("txt", "none")}[corpus]
    assert config["source"]["kind"] == source
    lines = (tmp_path / "mine" / f"train.{ending}").read_text().splitlines()
    assert len(lines) == 60
    if corpus == "text":
        assert not any("\t" in line for line in lines)
        assert not list((tmp_path / "mine").glob("*.tsv"))
    overrides = ["training.steps=2", "training.validate_sentences=2", "model.d_model=16", "tokens.kind=word",
                 "search.beam=1", "search.max_length=6", "training.tensorboard=false"]  # fmt: skip
    shown = good("train", tmp_path / "mine" / "config.yaml", *overrides)
    assert f"trained: {tmp_path / 'mine' / 'run'}" in shown
    assert {"scenes": "pointing", "text": "bits"}[corpus] in shown
    given = str(tmp_path / "mine" / "pictures" / "test" / "000001.png") if corpus == "scenes" else "the"
    assert good("generate", tmp_path / "mine" / "run", text=given + "\n").count("\n") == 1


def test_a_preset_takes_the_place_of_the_whole_model_of_a_task() -> None:
    """Of one that is no preset nothing is left; one that is keeps its changes, which are of the corpus."""
    wanted, found = (
        parse(x).model for x in ({"preset": "vit-tiny"}, demo.corpus_settings("scenes", "classify", "vit-tiny"))
    )
    assert (found.encoders, found.d_model) == (wanted.encoders, wanted.d_model)
    assert parse(demo.corpus_settings("scenes", "classify")).model.encoders != wanted.encoders
    hard = demo.corpus_settings("scenes", preset="xu2015-hard")
    assert (hard["preset"], hard["model"]["d_model"]) == ("xu2015-hard", 128)


def test_presets_on_tasks_they_were_not_made_for() -> None:
    """A head predicts what moves where in a clip; speech is translated without CTC, even by a preset that has it."""
    clips_config = parse(demo.corpus_settings("scenes", "video", "video-label"))
    assert (clips_config.target.kind, clips_config.target.column, clips_config.metric) == ("label", "label", "accuracy")
    assert parse(demo.corpus_settings("scenes", "video", "yao2015")).metric == "exact"
    with pytest.raises(ConfigError, match="did you mean 'yao2015'"):
        parse(demo.corpus_settings("scenes", "video", "yao2016"))
    joint = parse(demo.corpus_settings("spoken", "translate", "watanabe2017"))
    assert (joint.model.ctc, joint.search.ctc) == (False, None)


@pytest.mark.usefixtures("few_scenes")
@pytest.mark.parametrize(
    ("corpus", "task"),
    [("scenes", "vqa"), *([("scenes", "classify"), ("scenes", "video"), ("scenes", "paint"),
                           ("spoken", "transcribe"), ("spoken", "translate")] if FULL else [])],
)  # fmt: skip
def test_new_makes_a_corpus_for_a_task(tmp_path: Path, corpus: str, task: str) -> None:
    settings = demo.corpus_settings(corpus, task)
    sources = settings["source"] if isinstance(settings["source"], list) else [settings["source"]]
    if missing := {source["kind"] for source in sources} - set(MODALITIES.kinds):
        pytest.skip(f"there is no source of kind {missing}")
    good("new", tmp_path / "mine", "--corpus", corpus, "--task", task, "--pairs", "40")
    records = [json.loads(line) for line in (tmp_path / "mine" / "train.jsonl").read_text().splitlines()]
    assert len(records) == 40
    assert (tmp_path / "mine" / records[-1]["source"]).is_file()
    if task == "classify":
        assert all(len(record["target"].split()) == 2 for record in records)
    overrides = ["training.steps=2", "training.validate_sentences=2", "training.tensorboard=false", "model.d_model=16",
                 "search.beam=1", "search.max_length=6", "tokens.kind=char"]  # fmt: skip
    overrides += ["target.steps=2"] if task == "paint" else []
    shown = good("train", tmp_path / "mine" / "config.yaml", *overrides)
    assert f"trained: {tmp_path / 'mine' / 'run'}" in shown
    note = json.loads((tmp_path / "mine" / "corpus.json").read_text())
    assert note["corpus"].get("task", "transcribe") == task  # the first task of a corpus goes without saying


def test_a_corpus_that_there_is_not(tmp_path: Path) -> None:
    said = refused("new", tmp_path / "mine", "--corpus", "novels")
    assert "unknown corpus 'novels'; there are: phrasebook, text, tags, scenes, spoken" in said
    said = refused("new", tmp_path / "mine", "--corpus", "spoken", "--task", "vqa")
    assert "the corpus spoken is not for the task 'vqa'; there are: phrasebook for translate; text for " in said
    assert "scenes for caption, classify, vqa, video, paint; spoken for transcribe, commands, translate" in said
    assert "--task 'vqa' is for a corpus" in refused("new", tmp_path / "mine", "--task", "vqa")
    said = refused("new", tmp_path / "mine", "--corpus", "scenes", "--preset", "transformer-tiny")
    assert "model.share_embeddings needs a text as source" in said
    said = refused("new", tmp_path / "mine", "--corpus", "scenes", "--preset", "gpt-mini")
    assert "model.encoder.kind none reads text, not source.kind 'image'" in said
    assert not (tmp_path / "mine").exists()
