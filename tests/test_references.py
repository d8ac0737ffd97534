"""Several references of one source, from a shard to scores; labels in folders, answers of several people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.artifacts import read_json
from regard.data.examples import Example, read_files
from regard.data.target import Scoring, measure
from regard.errors import DataError, OutputError
from regard.evaluation.metrics import perplexity
from regard.system import System
from regard.tasks.results import Inputs, columns
from tests.test_cli import good, refused
from tests.test_readers import picture, pictures, tar

CAPTIONS = [["a cat", "one cat sits"], ["a dog"], ["two birds", "birds", "some birds fly"]]
IMAGE = {"kind": "image", "size": 8}
SMALL = {"d_model": 8, "encoder": {"kind": "stem", "stem": {"kind": "convolution", "channels": 2, "halvings": 1}}}
SHORT = {"steps": 2, "batch_tokens": 256, "tensorboard": False, "device": "cpu"}


def config(folder: Path, **changes: Any) -> regard.Config:
    settings = {
        "preset": "xu2015", "run": "run", "data": {"train": "x.tar", "valid": "x.tar"}, "source": IMAGE,
        "tokens": {"kind": "word"}, "model": SMALL, "training": SHORT, "search": {"max_length": 5},
    }  # fmt: skip
    return regard.Config.parse({**settings, **changes}, folder)


def interleaved(path: Path) -> str:
    """Captions of a picture apart from each other, in a file of records that names members of a shard."""
    members = [(f"{i}.jpg", picture(40 * i)) for i in range(len(CAPTIONS))]
    shard = tar(path / "p.tar", members)
    rows = [(f"{shard}::{i}.jpg", texts[n]) for n in range(3) for i, texts in enumerate(CAPTIONS) if n < len(texts)]
    records = (json.dumps({"source": source, "target": text}) + "\n" for source, text in rows)
    (path / "x.jsonl").write_text("".join(records))
    return str(path / "x.jsonl")


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> System:
    folder = tmp_path_factory.mktemp("shard")
    tar(folder / "x.tar", [x for i, texts in enumerate(CAPTIONS) for n, text in enumerate(texts)
                           for x in ((f"{i}-{n}.jpg", picture(40 * i)), (f"{i}-{n}.txt", text.encode()))])  # fmt: skip
    return regard.train(config(folder))


@pytest.mark.parametrize("window", [1, 2, 4096])
def test_captions_of_one_picture_are_references_of_one_output(
    captioner: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr("regard.tasks.task.WINDOW", window)
    path = interleaved(tmp_path)
    examples = list(read_files(path, captioner.task.sides.form))
    assert len(examples) == 6
    result = captioner.evaluate(path)
    assert result.references == CAPTIONS
    assert [x.place for x in result.examples] == [f"{path}:{i}" for i in (1, 2, 3)]
    assert result.outputs == captioner.generate([x.source for x in result.examples])
    first, more = columns(CAPTIONS)
    for name in ("bleu", "chrf", "exact", "bleu1", "rouge_l", "cider"):
        wanted = measure(name, result.outputs, first, Scoring(references=more))
        assert (result.scores[name].value, result.scores[name].signature) == (wanted.value, wanted.signature)
    # The loss is of every caption.
    pairs = captioner.score([x.source for x in examples], [x.target for x in examples])
    loss = -sum(x.log_prob for x in pairs) / sum(len(x.tokens) for x in pairs)
    assert result.scores["perplexity"].value == pytest.approx(perplexity(loss), rel=1e-4)
    assert result.exposure is not None
    assert sum(x.tokens for x in result.exposure.stretches) == sum(len(row[0].split()) + 1 for row in CAPTIONS)


def test_a_picture_that_cannot_be_read_has_an_empty_output_and_counts_once(captioner: System, tmp_path: Path) -> None:
    path = Path(interleaved(tmp_path))
    gone = "".join(json.dumps({"source": "gone.jpg", "target": x}) + "\n" for x in ("a", "b"))
    path.write_text(gone[: len(gone) // 2] + path.read_text() + gone[len(gone) // 2 :])
    said: list[str] = []
    result = captioner.evaluate(path, warn=said.append)
    assert result.outputs[0] == ""
    assert result.references == [["a", "b"], *CAPTIONS]
    (line,) = said
    assert line.startswith(f"{path}:1 cannot be used: no picture")


def test_further_references_join_those_of_their_example(captioner: System, tmp_path: Path) -> None:
    path = interleaved(tmp_path)
    further = Scoring(references=[[f"r{i}" for i in range(6)]])
    assert captioner.evaluate(path, scoring=further).references == [
        ["a cat", "one cat sits", "r0", "r3"],
        ["a dog", "r1"],
        ["two birds", "birds", "some birds fly", "r2", "r4", "r5"],
    ]
    with pytest.raises(DataError, match="2 further references for 6 examples; each needs its own"):
        captioner.evaluate(path, scoring=Scoring(references=[["a", "b"]]))


def test_texts_are_never_taken_together() -> None:
    pairs = [Example("a", "x"), Example("b", "y"), Example("a", "z")]
    assert Inputs(pairs, together=False).references == [["x"], ["y"], ["z"]]
    together = Inputs(together=True)
    assert together.add(pairs[:1]) + together.add(pairs[1:]) == [0, 1, 0]
    assert together.references == [["x", "z"], ["y"]]
    assert together.examples == pairs[:2]


def test_a_run_on_a_shard_resumes_as_long_as_it_is_the_same(captioner: System) -> None:
    folder = captioner.folder.parent
    assert regard.train(config(folder)).folder == captioner.folder
    before = (folder / "x.tar").read_bytes()
    (folder / "x.tar").write_bytes(before.replace(b"one cat sits", b"one dog sits"))
    with pytest.raises(OutputError, match=r"content of data\.train"):
        regard.train(config(folder))
    (folder / "x.tar").write_bytes(before)


def test_labels_in_folders_on_the_command_line(tmp_path: Path) -> None:
    for i, label in enumerate("abcdefg"):
        pictures(tmp_path / "data" / label, [f"{label}{i}.jpg"])
    good("new", tmp_path, "--train", tmp_path / "data", "--valid", tmp_path / "data")
    changes = {"source": IMAGE, "target": "label", "model": {**SMALL, "decoder": {"kind": "none"}}, "preset": None}
    data = {"train": "data", "valid": "data", "test": "data"}
    system = regard.train(config(tmp_path, **changes, data=data))
    shown = good("evaluate", tmp_path / "run", tmp_path / "data")
    assert "top-5 accuracy" in shown
    result = system.evaluate(str(tmp_path / "data"))
    places = [system.outputs([x.source], nbest=7, beam=7)[0] for x in result.examples]
    right = [x.target in [y.text for y in best[:5]] for x, best in zip(result.examples, places, strict=True)]
    assert result.scores["top5"].value == pytest.approx(100 * np.mean(right))
    assert sum(right) > 0
    assert "is a folder" in refused("generate", tmp_path / "run", tmp_path / "data")
    assert read_json(tmp_path / "run" / "scores.json").get("test") is None


def test_answers_of_several_people(tmp_path: Path) -> None:
    """A picture and a question, as two sources: the same picture with another question is another input."""
    pictures(tmp_path, ["a.jpg", "b.jpg"])
    asked = [("a.jpg", "what?", "cat"), ("a.jpg", "how many?", "two"), ("a.jpg", "what?", "dog"),
             ("b.jpg", "what?", "dog"), ("a.jpg", "what?", "dog")]  # fmt: skip
    (tmp_path / "x.tsv").write_text("".join("\t".join(row) + "\n" for row in asked))
    model = {"d_model": 8, "encoder": [SMALL["encoder"], {"kind": "stem"}], "decoder": {"kind": "none"}}
    made = config(tmp_path, source=[IMAGE, "text"], target="label", model=model, preset=None,
                  data={"train": "x.tsv", "valid": "x.tsv"})  # fmt: skip
    result = regard.train(made).evaluate(str(tmp_path / "x.tsv"))
    assert result.references == [["dog", "dog", "cat"], ["two"], ["dog"]]  # what most say first
    assert [x.target for x in result.examples] == ["dog", "two", "dog"]
    said = zip(result.outputs, result.references, strict=True)
    wanted = [min(row.count(output) / min(len(row), 3), 1) for output, row in said]
    assert result.scores["vqa"].value == pytest.approx(100 * np.mean(wanted))
    hits = [output == row[0] for output, row in zip(result.outputs, result.references, strict=True)]
    assert result.scores["accuracy"].value == pytest.approx(100 * np.mean(hits))


@pytest.mark.parametrize("order", [1, -1])
def test_a_written_answer_is_scored_by_what_several_people_said(tmp_path: Path, order: int) -> None:
    """Whichever source comes first."""
    pictures(tmp_path, ["a.jpg", "b.jpg"])
    asked = [("a.jpg", "what?", "a cat"), ("b.jpg", "what?", "a dog"), ("a.jpg", "what?", "a dog")]
    (tmp_path / "x.tsv").write_text("".join("\t".join([*row[:2][::order], row[2]]) + "\n" for row in asked))
    model = {"d_model": 8, "encoder": [SMALL["encoder"], {"kind": "stem"}][::order],
             "decoder": {"kind": "lstm", "context": "last", "score": None, "place": None}}  # fmt: skip
    made = config(tmp_path, source=[IMAGE, "text"][::order], target="text", model=model, preset=None,
                  data={"train": "x.tsv", "valid": "x.tsv"})  # fmt: skip
    result = regard.train(made).evaluate(str(tmp_path / "x.tsv"))
    assert list(result.scores)[:5] == ["bleu", "chrf", "ter", "exact", "vqa"]
    said = zip(result.outputs, result.references, strict=True)
    wanted = [row.count(output) / len(row) for output, row in said]
    assert result.scores["vqa"].value == pytest.approx(100 * np.mean(wanted))
