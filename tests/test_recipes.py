"""What prepares the corpora of recipes, and what trains one of them in many ways."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

import regard
from regard.config import load, parse
from regard.data.tokenizers.kinds import train_tokenizer
from regard.system import System
from tests.toy import untrained

RECIPES = Path(__file__).parent.parent / "recipes"
GRIDS = sorted((RECIPES / "grids").glob("*.yaml"))


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    return runpy.run_path(str(RECIPES / "tasks.py"))


@pytest.fixture(scope="module")
def grid() -> dict[str, Any]:
    return runpy.run_path(str(RECIPES / "grid.py"))


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def test_commands_and_actions_of_scan_are_told_apart(tasks: dict[str, Any], tmp_path: Path) -> None:
    one = "IN: jump twice OUT: I_JUMP I_JUMP\n"
    (tmp_path / "tasks_train_simple.txt").write_text(one * 19 + "IN: run OUT: I_RUN\n")
    (tmp_path / "tasks_test_simple.txt").write_text("IN: walk left OUT: I_TURN_LEFT I_WALK\n")
    lengths = {"shorter": 24, "longer": 25, "longest": 48}
    of_length = {name: [name, " ".join(["I_RUN"] * count)] for name, count in lengths.items()}
    (tmp_path / "tasks.txt").write_text("".join(f"IN: {name} OUT: {said}\n" for name, said in of_length.values()))
    tasks["scan"](tmp_path, tmp_path / "made")
    assert rows(tmp_path / "made" / "length_24-train.tsv") == [of_length["shorter"]]
    assert rows(tmp_path / "made" / "length_24-test.tsv") == [of_length["longer"], of_length["longest"]]
    assert rows(tmp_path / "made" / "length_26-test.tsv") == [of_length["longest"]]
    assert rows(tmp_path / "made" / "simple-train.tsv") == [["jump twice", "I_JUMP I_JUMP"]] * 19
    assert rows(tmp_path / "made" / "simple-valid.tsv") == [["run", "I_RUN"]]
    assert rows(tmp_path / "made" / "simple-test.tsv") == [["walk left", "I_TURN_LEFT I_WALK"]]
    (tmp_path / "tasks_test_simple.txt").write_text("IN: walk OUT: I_WALK\nwalk left\n")
    with pytest.raises(SystemExit, match=r"tasks_test_simple\.txt, line 2: should be IN: … OUT: …"):
        tasks["scan"](tmp_path, tmp_path / "made")


def test_every_way_to_pronounce_a_word_is_right(tasks: dict[str, Any], tmp_path: Path) -> None:
    for name in ("train-dev-20-21", "train-dev-1-21"):
        (tmp_path / f"cmudict-0.7b.{name}").write_text("GO  G OW\n")
    (tmp_path / "cmudict-0.7b.test").write_text("A  AH\nA(1)  EY\n'EM  AH M\n")
    tasks["cmudict"](tmp_path, tmp_path / "made")
    assert rows(tmp_path / "made" / "test.tsv") == [["a", "AH"], ["'em", "AH M"]]
    assert rows(tmp_path / "made" / "test.also-1.txt") == [["EY"], ["AH M"]]
    assert not (tmp_path / "made" / "valid.also-1.txt").exists()


def test_what_a_person_wrote_of_a_question_comes_first(tasks: dict[str, Any], tmp_path: Path) -> None:
    record = {"intent": "How to sort?", "rewritten_intent": "sort list `x`", "snippet": "x.sort()"}
    for part in ("train", "test"):
        found = [record, {**record, "rewritten_intent": None}]
        (tmp_path / f"conala-{part}.json").write_text(json.dumps(found))
    tasks["conala"](tmp_path, tmp_path / "made")
    lines = (tmp_path / "made" / "test.jsonl").read_text().splitlines()
    assert [json.loads(line)["intent"] for line in lines] == ["sort list `x`", "How to sort?"]


def test_a_reply_follows_the_turns_before_it(tasks: dict[str, Any]) -> None:
    line = " A ? __eou__ B . __eou__ C __eou__ D __eou__ E __eou__\t1\t2 2 1 1"
    assert list(tasks["replies"]([line, "", "alone"])) == [
        ("A ?", "B ."), ("A ? __eou__ B .", "C"), ("A ? __eou__ B . __eou__ C", "D"), ("B . __eou__ C __eou__ D", "E")
    ]  # fmt: skip


def test_words_and_tags_are_read_from_columns(tasks: dict[str, Any], tmp_path: Path) -> None:
    table = tmp_path / "a.conllu"
    table.write_text("# text = It's\n1-2\tIt's\t_\t_\n1\tIt\tit\tPRON\n2\t's\tbe\tAUX\n2.1\tx\tx\tX\n\n1\t#\t#\tSYM\n")
    assert tasks["sentences"](table) == [("It 's", "PRON AUX"), ("#", "SYM")]
    table = tmp_path / "a.conll"
    table.write_text("in\tO\nNew\tB-location\nYork\tI-location\n\t\n\n#\tO\n")
    assert tasks["sentences"](table) == [("in New York", "O B-location I-location"), ("#", "O")]


def test_of_claims_every_tenth_is_held_out(tasks: dict[str, Any], tmp_path: Path) -> None:
    for part, count in (("train", 21), ("valid", 2)):
        (tmp_path / f"{part}.tsv").write_text("".join(f"{i}.json\ttrue\t{part} {i}\n" for i in range(count)))
    tasks["liar"](tmp_path, tmp_path / "made")
    found = {
        part: (tmp_path / "made" / f"{part}.tsv").read_text().split("\n")[:-1] for part in ("train", "valid", "test")
    }
    assert {part: len(rows) for part, rows in found.items()} == {"train": 19, "valid": 2, "test": 2}
    assert found["valid"] == ["9.json\ttrue\ttrain 9", "19.json\ttrue\ttrain 19"]
    assert found["test"][0] == "0.json\ttrue\tvalid 0"


def test_questions_are_split_by_paragraph(tasks: dict[str, Any], tmp_path: Path) -> None:
    articles = [{"paragraphs": [{"context": f"{i}{j}", "qas": [{}] * j} for j in range(5)]} for i in range(2)]
    (tmp_path / "xquad.en.json").write_text(json.dumps({"data": articles}))
    tasks["xquad"](tmp_path, tmp_path / "made")
    found = {
        part: json.loads((tmp_path / "made" / f"{part}.en.json").read_text()) for part in ("train", "valid", "test")
    }
    contexts = {part: [one["context"] for one in given["data"][0]["paragraphs"]] for part, given in found.items()}
    assert contexts == {"train": ["00", "01", "02", "13", "10", "11", "12"], "valid": ["03"], "test": ["04", "14"]}


def test_a_corpus_that_is_not_there_is_named(tasks: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"cannot read .*en_dev\.txt .*; see the head of tasks\.py"):
        tasks["dialogue"](tmp_path, tmp_path / "made")


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_grids_are_of_configs(path: Path, grid: dict[str, Any], tmp_path: Path) -> None:
    """Every row and every column, each in one of the runs."""
    made = grid["Grid"](path, tmp_path)
    first, runs = made.commands()
    assert len(runs) == len(made.cells) * len(made.seeds)
    columns, step = len(made.given["columns"]), len(made.seeds)
    some = {*range(0, columns * step, step), *range(0, len(runs), columns * step)}
    for command in [*first, *(runs[i] for i in some)]:
        config = load(command[0], command[1:])
        assert config.run == command[-1].removeprefix("run=")
        assert config.data.split("train" if command in first else "test")
    assert {made.score(column) for column in made.given["columns"]}


def test_a_grid_trains_what_is_missing_and_lays_out_scores(
    grid: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pairs.tsv").write_text("a b\tx y\nb a\ty x\n" * 4)
    small = {"d_model": 8, "encoder": "gru", "decoder": "gru"}
    data = dict.fromkeys(("train", "valid", "test"), "pairs.tsv")
    given = {"data": data, "tokens": {"kind": "word"}, "model": small, "training": {"steps": 2, "warmup": 1}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(given))
    table = {
        "config": "one.yaml", "seeds": [1, 2], "score": "exact", "together": True, "columns": {"pairs": []},
        "first": {"before": {"config": "one.yaml"}}, "rows": {"as it is": [], "later": ["start.model={before}"]},
    }  # fmt: skip
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
    done = {("as it is", 1): 10.0, ("as it is", 2): 20.0, ("later", 1): 50.0}
    for (row, seed), score in done.items():
        run = tmp_path / "runs" / row / "pairs" / str(seed)
        run.mkdir(parents=True)
        (run / "scores.json").write_text(json.dumps({"test": {"exact": {"score": score}}}))
    made = grid["Grid"](tmp_path / "grid.yaml", tmp_path / "runs", ["training.seed=5"])
    (tmp_path / "runs" / "together.json").write_text(json.dumps({"as it is/pairs": 25.0}))
    first, runs = made.commands()
    assert [command[1:] for command in first] == [
        ["training.seed=5", "data.test=null", f"run={tmp_path / 'runs/first/before'}"]
    ]
    assert runs[-1][1] == f"start.model={tmp_path / 'runs/first/before'}"
    assert [grid["train"](command) for command in runs[:3]] == [None] * 3  # they are there already
    before = tmp_path / "runs" / "first" / "before"
    before.mkdir(parents=True)
    (before / "scores.json").write_text(json.dumps({"valid": {"exact": 1.0}}))  # interrupted after a validation
    assert "holds no run" in grid["train"](first[0])
    (before / "regard.json").write_text(json.dumps({"ended": True}))
    assert grid["train"](first[0]) is None
    made.write()
    assert (tmp_path / "runs" / "table.md").read_text().splitlines() == [
        "| | pairs (exact) |", "|---|---|", "| as it is | 15.00 ± 7.07 |", "| as it is, ensemble | 25.00 |",
        "| later | 50.00 |",
    ]  # fmt: skip
    problem = grid["train"]([*runs[3][:-1], "training.steps=none", runs[3][-1]])
    assert "'steps' in [training] is 'none'" in problem
    with pytest.raises(SystemExit, match="Train one recipe in many ways"):
        grid["main"](["grid.yaml"])
    table["together"], broken = False, tmp_path / "broken"
    for some in ({}, table["first"]):  # which the others would start from
        changed = {**table, "seeds": [1], "rows": {"one": []}, "first": some}
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(changed))
        with pytest.raises(SystemExit, match="1 of the runs failed; the same command tries them again"):
            grid["main"]([str(tmp_path / "grid.yaml"), str(broken), "training.steps=none"])
    (tmp_path / "grid.yaml").write_text("config: one.yaml\n")
    with pytest.raises(SystemExit, match="rows and score, and may have seeds, together, given_length and first"):
        grid["Grid"](tmp_path / "grid.yaml", tmp_path)


def test_a_grid_joins_the_rows_of_a_column(grid: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a b\tx y\nb a\ty x\n" * 4)
    data = dict.fromkeys(("train", "valid", "test"), "pairs.tsv")
    given = {
        "data": data, "tokens": {"kind": "word"}, "model": {"d_model": 8, "encoder": "gru", "decoder": "gru"},
        "training": {"steps": 2, "warmup": 1, "tensorboard": False},
    }  # fmt: skip
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(given))
    table = {
        "config": "one.yaml", "score": "perplexity", "together": "all", "columns": {"pairs": [], "more": []},
        "rows": {"plain": [], "wide": ["model.d_model=16"]},
    }  # fmt: skip
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
    made = grid["Grid"](tmp_path / "grid.yaml", tmp_path / "runs")
    first, last = (command for command in made.commands()[1] if "/pairs/" in command[-1])
    regard.train(load(first[0], first[1:])).test()
    made.join()
    assert not (tmp_path / "runs" / "together.json").exists()  # a model of the column is missing
    regard.train(load(last[0], last[1:])).test()
    made.join()
    made.write()
    both = regard.load(made.run("plain", "pairs", 1), made.run("wide", "pairs", 1))
    score = both.evaluate().scores["perplexity"].value
    assert json.loads((tmp_path / "runs" / "together.json").read_text()) == {"pairs": score}
    assert (tmp_path / "runs" / "table.md").read_text().splitlines()[-1] == f"| all, ensemble | {score:.2f} |  |  |"


def test_with_lengths_given_an_output_is_as_long_as_its_reference(
    grid: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    part, pairs = {"kind": "gru"}, str(tmp_path / "pairs.tsv")
    given = {
        "data": {"test": pairs},
        "tokens": {"kind": "word"},
        "model": {"d_model": 16, "encoder": part, "decoder": part},
    }
    system = System(untrained(parse(given), train_tokenizer(["a b c d"] * 3, "word", 300)), Path())
    (tmp_path / "plain" / "pairs").mkdir(parents=True)
    run = system.save(tmp_path / "plain" / "pairs" / "1")
    texts = ["a b", "c d a", "d"]
    outputs = [system.generate([text], beam=1, min_length=n, max_length=n)[0] for n, text in enumerate(texts, 2)]
    assert [len(output.split()) for output in outputs] == [2, 3, 4]
    lines = [f"{text}\t{output}\n" for text, output in zip(texts, [*outputs[:2], "a b c d"], strict=True)]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    main = runpy.run_path(str(RECIPES / "given_length.py"))["main"]
    right = 2 + (outputs[2] == "a b c d")
    for arguments in ((str(run), pairs), (str(run),)):
        main(*arguments)
        assert capsys.readouterr().out.splitlines()[-1] == f"exact match {100 * right / 3:.2f}"

    monkeypatch.syspath_prepend(RECIPES)
    table = {
        "config": "one.yaml",
        "score": "exact",
        "given_length": True,
        "columns": {"pairs": []},
        "rows": {"plain": []},
    }
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(table))
    (run / "scores.json").write_text(json.dumps({"test": {"exact": {"score": 25.0}}}))
    made = grid["Grid"](tmp_path / "grid.yaml", tmp_path)
    made.tell()
    made.write()
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[2:] == ["| plain | 25.00 |", f"| plain, lengths given | {100 * right / 3:.2f} |"]
