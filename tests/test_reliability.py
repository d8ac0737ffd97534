"""Nothing lost, nothing false: kills, damage, full disks and second processes, as docs/reliability.md promises."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.artifacts import FORMAT, discard, locked, mark, new_folder, read_json, read_mark, write_json, write_text
from regard.errors import DamagedError, OutputError, RegardError
from regard.fingerprint import Fingerprint
from regard.output import LineFile
from regard.runs import Stopped
from regard.settings import Config
from regard.training.watcher import Update, Watcher
from tests.conftest import FULL
from tests.kill_points import SMALL, tree
from tests.toy import toy_config, write_corpus

ROOT = Path(__file__).parent.parent


# Kills


@pytest.mark.parametrize("job", ["train", "generate", "compare"] if FULL else ["train"])
def test_a_kill_before_any_call_that_changes_files_loses_nothing(job: str) -> None:
    """The job is run again after each kill: the same bits, the same log, the same lines, and nothing left over. A file
    takes three calls, so that every sixteenth call comes to each of them; with `FULL` all are tried."""
    command = [sys.executable, "-m", "tests.kill_points", job, "1" if FULL else "16"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] > 5
    assert found["wrong"] == []


# Damage


def flip(content: bytes, draw: random.Random) -> bytes:
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped": flip,
    "cut": lambda content, draw: content[: draw.randrange(len(content))],
    "emptied": lambda content, draw: b"",
    "overwritten": lambda content, draw: draw.randbytes(len(content)),
}


class Heard(Watcher):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def small(folder: Path) -> Config:
    return toy_config(folder, **{**SMALL, "training": {**SMALL["training"], "steps": 6}})


class StopAt3(Watcher):
    """Asks the process to stop, as Ctrl-C does."""

    def update(self, update: Update) -> None:
        if update.step == 3:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that was stopped after three updates of six, and what it is in the end."""
    folder, whole = (tmp_path_factory.mktemp(name) / "work" for name in ("begun", "whole"))
    folder.mkdir()
    write_corpus(folder, count=30)
    shutil.copytree(folder, whole)
    with pytest.raises(Stopped):
        regard.train(small(folder), StopAt3())
    regard.train(small(whole))
    return folder, tree(whole)


@pytest.mark.parametrize("kind", DAMAGES if FULL else ["flipped"])
def test_damage_to_any_file_of_a_run_is_mended_or_named(
    begun: tuple[Path, dict[str, Any]], kind: str, tmp_path: Path
) -> None:
    """Whatever is damaged, resuming ends with the same bits, or with a line that names the file."""
    origin, whole = begun
    draw = random.Random(kind)
    files = sorted(str(path.relative_to(origin)) for path in (origin / "run").rglob("*") if path.is_file())
    assert len(files) >= 15
    for number, name in enumerate(files):
        folder = tmp_path / str(number) / "work"
        shutil.copytree(origin, folder)
        content = (folder / name).read_bytes()
        if not content:
            continue
        damaged = DAMAGES[kind](content, draw)
        (folder / name).write_bytes(damaged)
        heard = Heard()
        refused = None
        try:
            regard.train(small(folder), heard)
        except RegardError as error:
            refused = str(error)
        if refused is not None:
            assert Path(name).name in refused, name
            continue
        found = tree(folder)
        differing = [path for path in whole if found.get(path, 0) != whole[path]]
        if name == "run/model.safetensors":
            assert any("the best model so far is lost" in text for text in heard.messages)
        elif name == "run/log.jsonl":
            between_lines = not damaged or (content.startswith(damaged) and damaged.endswith(b"\n"))
            assert between_lines or any("log.jsonl is damaged" in text for text in heard.messages)
            assert differing in ([], [name])
        else:
            assert differing == [], f"{name}: {heard.messages}"


def test_damage_to_any_file_of_a_model_is_named(begun: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    regard.load(begun[0] / "run", device="cpu").save(tmp_path / "model")
    expected = regard.load(tmp_path / "model", device="cpu").outputs(["alpha beta"])
    for path in sorted((tmp_path / "model").iterdir()):
        good = path.read_bytes()
        for kind, damage in DAMAGES.items():
            path.write_bytes(damage(good, random.Random(f"{path.name} {kind}")))
            refused, found = "", expected
            try:
                found = regard.load(tmp_path / "model", device="cpu").outputs(["alpha beta"])
            except RegardError as error:
                refused = str(error)
            if path.name != "config.yaml":  # which is the user's to edit: what can be read there counts
                assert path.name in refused, kind
                assert found == expected
        path.write_bytes(good)


def test_the_checkpoint_before_a_damaged_one_is_used(begun: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "work"
    shutil.copytree(begun[0], folder)
    last = folder / "run" / "checkpoints" / "00000003" / "optimizer.safetensors"
    last.write_bytes(flip(last.read_bytes(), random.Random(1)))
    heard = Heard()
    regard.train(small(folder), heard)
    assert any("optimizer.safetensors" in text and "checkpoint before it" in text for text in heard.messages)
    assert "resuming from update 2" in heard.messages
    assert tree(folder) == begun[1]


# A full disk


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes, which fails as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 300, 4000, 6000])
def test_a_disk_that_is_full_loses_nothing(begun: tuple[Path, dict[str, Any]], size: int, tmp_path: Path) -> None:
    """Wherever it strikes, an error says so, and the same command ends with the same bits when there is room."""
    folder = tmp_path / "work"
    shutil.copytree(begun[0], folder)
    with at_most(size), pytest.raises((OSError, RegardError)) as failed:
        regard.train(small(folder))
    assert "run" in str(failed.value) or getattr(failed.value, "filename", None) or "large" in str(failed.value)
    regard.train(small(folder))
    assert tree(folder) == begun[1]


# Two processes


@contextmanager
def holding(path: Path) -> Iterator[int]:
    """Another process that holds a lock; gives its pid."""
    code = (
        "import sys, time; from pathlib import Path; from regard.artifacts import locked\n"
        "with locked(Path(sys.argv[1]), 'x'):\n print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_second_process_is_refused_and_a_dead_one_is_not_waited_for(
    begun: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    shutil.copytree(begun[0], folder)
    with (
        holding(folder / "run" / ".lock") as pid,
        pytest.raises(OutputError, match=rf"run is in use by process {pid} on .*; wait until that has ended"),
    ):
        regard.train(small(folder))
    assert (folder / "run" / ".lock").exists(), "the owner was killed"
    regard.train(small(folder))
    assert tree(folder) == begun[1]
    made_from = Fingerprint({})
    with holding(tmp_path / ".out.txt.lock") as pid, pytest.raises(OutputError, match=rf"in use by process {pid}"):
        LineFile(tmp_path / "out.txt", made_from).__enter__()
    with LineFile(tmp_path / "out.txt", made_from) as file:
        file.write(["a"], [b"a"])
        with pytest.raises(OutputError, match=rf"in use by process {os.getpid()}"):
            LineFile(tmp_path / "out.txt", made_from).__enter__()
    assert {path.name for path in tmp_path.iterdir()} == {"out.txt", "work"}


# What Regard owns


def test_only_what_is_marked_is_replaced_or_removed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    with pytest.raises(OutputError, match="exists; give another name, or --force"), new_folder(mine, "model"):
        pass
    with pytest.raises(OutputError, match="is no model that Regard has marked"), new_folder(mine, "model", force=True):
        pass
    with pytest.raises(OutputError, match="not made by Regard, so it is not removed"):
        discard(mine)
    assert (mine / "thesis.txt").read_text() == "precious"
    with new_folder(tmp_path / "a", "model") as new:
        (new / "old").touch()
    with (
        pytest.raises(OutputError, match="is no export that Regard has marked"),
        new_folder(tmp_path / "a", "export", force=True),
    ):
        pass
    with pytest.raises(FileNotFoundError), new_folder(tmp_path / "a", "model", force=True) as new:
        (new / "not there" / "half").touch()
    assert (tmp_path / "a" / "old").exists()
    with new_folder(tmp_path / "a", "model", force=True) as new:
        (new / "fresh").touch()
        assert (tmp_path / "a" / "old").exists(), "the old one stays until the new one is whole"
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"fresh", "regard.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"a", "mine"}


def test_what_others_put_beside_unfinished_lines_or_into_a_checkpoint_stays(
    begun: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, made_from = tmp_path / "out.txt", Fingerprint({})
    with LineFile(out, made_from) as file:
        file.write(["a"], [b"a"])
        (tmp_path / "out.txt.partial" / "notes.txt").write_text("mine")
    assert out.read_text() == "a\n"
    assert (tmp_path / "out.txt.partial" / "notes.txt").read_text() == "mine"
    folder = tmp_path / "work"
    shutil.copytree(begun[0], folder)
    (folder / "run" / "checkpoints" / "00000002" / "notes.txt").write_text("mine")
    regard.train(small(folder))
    assert (folder / "run" / "checkpoints" / "kept-00000002" / "notes.txt").read_text() == "mine"


def interrupted(file: LineFile, inputs: list[bytes]) -> tuple[int, list[bytes]]:
    """How many lines a job found and what it had left to do, before it was interrupted two lines further on."""
    try:
        with file:
            rest = list(file.take_up(iter(inputs), bytes, "in.txt"))
            found = file.written
            file.write([x.decode() for x in rest[:2]], rest[:2])
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        return found, rest


def test_by_force_lines_of_another_input_begin_anew(tmp_path: Path) -> None:
    out, made_from = tmp_path / "out.txt", Fingerprint({})
    ours, others = [b"a", b"b", b"c", b"d"], [b"a", b"x"]
    assert interrupted(LineFile(out, made_from), ours) == (0, ours)
    assert interrupted(LineFile(out, made_from, force=True), ours) == (2, ours[2:])
    with pytest.raises(OutputError, match=r"in\.txt:2 is not the line that .*out\.txt\.partial was made from"):
        interrupted(LineFile(out, made_from), others)
    assert interrupted(LineFile(out, made_from, force=True), others) == (0, others)
    assert interrupted(LineFile(out, made_from), others) == (2, [])


def test_a_run_can_be_moved(begun: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "work"
    shutil.copytree(begun[0], folder)
    (folder / "run").rename(tmp_path / "moved")
    heard = Heard()
    assert regard.train(tmp_path / "moved" / "config.yaml", heard).folder == tmp_path / "moved"
    assert "resuming from update 3" in heard.messages
    assert not (folder / "run").exists()


def test_files_are_of_a_format(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": 1})
    assert read_json(tmp_path / "x.json") == {"a": 1}
    mark(tmp_path, "run")
    assert read_mark(tmp_path) == {"kind": "run"}
    text = (tmp_path / "x.json").read_text()
    write_text(tmp_path / "x.json", text.replace('"a": 1', '"a": 2'))
    with pytest.raises(DamagedError, match=r"x\.json is damaged: its checksum differs"):
        read_json(tmp_path / "x.json")
    import regard.artifacts as artifacts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "FORMAT", FORMAT + 1)
        mark(tmp_path, "run")
    with pytest.raises(
        OutputError, match=rf"written by a later Regard \(format {FORMAT + 1}; this one reads {FORMAT}\)"
    ):
        read_mark(tmp_path)


def test_a_lock_is_free_once_its_owner_is_gone(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "lock", "it"),
        pytest.raises(OutputError, match="it is in use by process"),
        locked(tmp_path / "lock", "it"),
    ):
        pass
    with locked(tmp_path / "lock", "it"):
        pass
    assert not list(tmp_path.iterdir())
