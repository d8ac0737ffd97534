"""What is the user's stays: corpora, averages and pages go only where nothing is, or what Regard itself made."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import regard
from regard import artifacts, demo
from regard.data.synthetic import corpus as corpora
from regard.data.synthetic import phrasebook, scenes, tagged
from regard.errors import OutputError
from tests.conftest import whole
from tests.test_cli import good, refused
from tests.toy import toy_config, write_corpus

FEW = ("--pairs", "30", "--words", "3-6")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (phrasebook, scenes):
        monkeypatch.setattr(module, "write", partial(module.write, valid=3, test=3))


# Corpora


@pytest.mark.parametrize(
    ("corpus", "mine"),
    [("phrasebook", "train.tsv"), ("tags", "test.tsv"), ("text", "valid.txt"), ("scenes", "train.jsonl"),
     ("scenes", "pictures/mine.png"), ("text", "corpus.json")],
)  # fmt: skip
def test_a_users_file_is_never_replaced(corpus: str, mine: str, tmp_path: Path) -> None:
    path = tmp_path / "own" / mine
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    for force in ((), ("--force",)):
        said = refused("new", tmp_path / "own", "--corpus", corpus, *(FEW[:2] if corpus == "scenes" else FEW), *force)
        name = tmp_path / "own" / mine.split("/")[0]
        assert f"{name} " in said
        assert "give another folder" in said
        assert "not made by Regard" in said or "is not Regard's" in said
        assert contents(tmp_path / "own") == {mine: b"mine"}


def test_files_of_other_endings_are_left_alone(tmp_path: Path) -> None:
    """A text corpus was once made by way of .tsv files, which then went."""
    (tmp_path / "own").mkdir()
    for split in phrasebook.SPLITS:
        (tmp_path / "own" / f"{split}.tsv").write_text("mine")
    good("new", tmp_path / "own", "--corpus", "text", *FEW)
    assert {path.read_text() for path in (tmp_path / "own").glob("*.tsv")} == {"mine"}
    names = {path.name for path in (tmp_path / "own").iterdir()}
    assert names == {f"{x}.{end}" for x in phrasebook.SPLITS for end in ("tsv", "txt")} | {"config.yaml", "corpus.json"}
    for corpus, line in (("text", "{}"), ("tags", "{}\t{}")):
        good("new", tmp_path / corpus, "--corpus", corpus, *FEW)
        (found,) = (tmp_path / corpus).glob("train.*")
        pairs = phrasebook.pairs(30, words=(3, 6))
        assert found.read_text().splitlines() == [line.format(x.source, " ".join(tagged.tags(x.source))) for x in pairs]


def test_force_replaces_an_earlier_corpus_and_nothing_that_was_changed(tmp_path: Path) -> None:
    own = tmp_path / "own"
    good("new", own, "--corpus", "phrasebook", *FEW)
    before = contents(own)
    assert "exists; give another folder, or --force" in refused("new", own, "--corpus", "phrasebook", *FEW)
    (own / "config.yaml").unlink()
    said = refused("new", own, "--corpus", "phrasebook", *FEW, "--seed", "2")
    assert "holds another corpus that Regard made: seed (1 before, 2 now); give another folder, or --force" in said
    good("new", own, "--corpus", "phrasebook", *FEW, "--seed", "2", "--force")
    assert (own / "train.tsv").read_bytes() != before["train.tsv"]
    good("new", own, "--corpus", "text", *FEW, "--force")
    assert not list(own.glob("*.tsv"))  # of an earlier corpus nothing is left to be mistaken for this one
    good("new", own, "--corpus", "phrasebook", *FEW, "--force")
    assert contents(own) == before
    (own / "valid.tsv").write_text("edited")
    said = refused("new", own, "--corpus", "phrasebook", *FEW, "--force")
    assert f"{own / 'valid.tsv'} was changed since Regard made it; give another folder" in said
    said = refused("new", own, "--corpus", "phrasebook", *FEW, "--force", "--seed", "2")
    assert f"{own / 'valid.tsv'} exists and was not made by Regard; give another folder" in said
    assert contents(own) == {**before, "valid.tsv": b"edited"}


def test_the_record_holds_the_facts_and_digests(tmp_path: Path) -> None:
    demo.make_corpus("scenes", tmp_path, "de", 5, (3, 6), 4)
    note = artifacts.read_json(tmp_path / "corpus.json")
    assert note["corpus"] == {"corpus": "scenes", "language": "de", "train": 5, "words": [3, 6], "seed": 4}
    assert note["finished"]
    assert set(note["files"]) == {"train.jsonl", "valid.jsonl", "test.jsonl", "pictures"}
    assert note["files"]["train.jsonl"] == digest(tmp_path / "train.jsonl")


def test_a_corpus_is_made_once_and_again_if_a_part_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> None:
        demo.make_corpus("scenes", tmp_path, "de", 5, (3, 6), 4)

    make()
    before = contents(tmp_path)
    for gone in ("valid.jsonl", "pictures"):
        shutil.rmtree(tmp_path / gone) if gone == "pictures" else (tmp_path / gone).unlink()
        make()
        assert contents(tmp_path) == before
    monkeypatch.setattr(scenes, "write", lambda *_, **__: pytest.fail("it is there already"))
    hashed: list[Path] = []

    def hashing(path: Path) -> str:
        hashed.append(path)
        return artifacts.file_digest(path)

    monkeypatch.setattr(corpora, "file_digest", hashing)
    make()
    assert {path.suffix for path in hashed} == {".jsonl"}  # thousands of pictures are not read at every start


def test_pictures_that_the_user_added_or_changed_stay(tmp_path: Path) -> None:
    demo.make_corpus("scenes", tmp_path, "de", 5, (3, 6), 4)
    for change in ("pictures/mine.png", "pictures/train/000001.png"):
        kept = (tmp_path / change).read_bytes() if (tmp_path / change).exists() else None
        (tmp_path / change).write_text("mine")
        before = contents(tmp_path)
        with pytest.raises(OutputError, match="pictures exists and was not made by Regard"):
            demo.make_corpus("scenes", tmp_path, "de", 5, (3, 6), 5, force=True)
        assert contents(tmp_path) == before
        (tmp_path / change).write_bytes(kept) if kept else (tmp_path / change).unlink()
    demo.make_corpus("scenes", tmp_path, "de", 5, (3, 6), 5, force=True)
    assert contents(tmp_path)["pictures/train/000001.png"] != before["pictures/train/000002.png"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"corpus": 3}', b"\xff", b"[]"])
def test_a_damaged_record_is_told_of(content: bytes, tmp_path: Path) -> None:
    demo.make_corpus("text", tmp_path, "de", 5, (3, 6), 1)
    (tmp_path / "corpus.json").write_bytes(content)
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=r"corpus\.json is damaged, or is not Regard's"):
        demo.make_corpus("text", tmp_path, "de", 5, (3, 6), 1)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("corpus", "over"), [("phrasebook", (False, True)), ("scenes", (True,))])
def test_cut_off_at_any_step_it_is_made_whole_by_the_next_call(
    corpus: str, over: tuple[bool, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each file operation in turn, over an earlier corpus and over none; and never are two mixed."""

    def make(folder: Path, seed: int) -> None:
        demo.make_corpus(corpus, folder, "de", 2, (3, 6), seed, force=True)

    for seed in (1, 2):
        make(tmp_path / f"whole-{seed}", seed)
    old, new = (contents(tmp_path / f"whole-{seed}") for seed in (1, 2))

    class Cut(BaseException):
        pass

    cuts = 0
    for begun in over:
        for step in range(100):
            folder = tmp_path / f"{begun}-{step}"
            if begun:
                make(folder, 1)
            left = step

            def counted(operation: Any) -> Any:
                def cut(*arguments: Any, **named: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        raise Cut
                    return operation(*arguments, **named)

                return cut

            with monkeypatch.context() as patch:
                for name in ("rename", "replace", "mkdir", "write_bytes"):
                    patch.setattr(Path, name, counted(getattr(Path, name)))
                patch.setattr(corpora, "discard", lambda folder: None)  # a kill tidies nothing up
                try:
                    make(folder, 2)
                except Cut:
                    pass
                else:
                    break
            cuts += 1
            here = {name: content for name, content in contents(folder).items() if not name.startswith(".")}
            here.pop("corpus.json", None)
            assert here.items() <= old.items() or here.items() <= new.items()
            make(folder, 2)
            assert contents(folder) == new
            shutil.rmtree(folder)
    assert cuts > 15


@whole
def test_a_killed_process_leaves_what_the_next_one_makes_whole(tmp_path: Path) -> None:
    code = (
        "import os, signal, pathlib; from regard import demo; from regard.data.synthetic import phrasebook\n"
        "def killed(new, **_): (new / 'train.tsv').write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
        "phrasebook.write = killed\n"
        "demo.make_corpus('phrasebook', pathlib.Path('own'), 'de', 5, (3, 6), 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "own" / ".corpus.new" / "train.tsv").exists()
    demo.make_corpus("phrasebook", tmp_path / "own", "de", 5, (3, 6), 1)
    assert sorted(contents(tmp_path / "own")) == ["corpus.json", "test.tsv", "train.tsv", "valid.tsv"]
    assert len((tmp_path / "own" / "train.tsv").read_text().splitlines()) == 5


def test_links_are_not_followed_nor_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.tsv").write_text("mine")
    for name, target in (("whole", tmp_path / "mine.tsv"), ("dangling", tmp_path / "nowhere.tsv")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.tsv").symlink_to(target)
        with pytest.raises(OutputError, match=r"train\.tsv exists and was not made by Regard"):
            demo.make_corpus("phrasebook", tmp_path / name, "de", 5, (3, 6), 1, force=True)
    assert (tmp_path / "mine.tsv").read_text() == "mine"
    assert not (tmp_path / "nowhere.tsv").exists()


# Averages


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("average")
    write_corpus(folder)
    regard.train(toy_config(folder, training={"steps": 4, "save_every": 2, "validate_sentences": 2}))
    return folder / "run"


def test_an_average_replaces_only_a_model(model: Path, tmp_path: Path) -> None:
    mean = tmp_path / "mean"
    good("average", model, "-o", mean)
    assert (artifacts.read_mark(mean) or {})["kind"] == "model"
    assert "exists" in refused("average", model, "-o", mean)
    (mean / "notes.txt").touch()
    assert "notes.txt was not put there by Regard" in refused("average", model, "-o", mean, "--force")
    (mean / "notes.txt").unlink()
    good("average", model, "-o", mean, "--force")
    regard.load(mean)
    for name, kind in (("mine", None), ("export", "ONNX export")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("mine")
        if kind:
            artifacts.mark(tmp_path / name, kind)
        before = contents(tmp_path / name)
        said = refused("average", model, "-o", tmp_path / name, "--force")
        assert f"{tmp_path / name} is no model that Regard has marked as its own, so it is not replaced" in said
        assert contents(tmp_path / name) == before
