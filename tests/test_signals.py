"""Ctrl-C, SIGTERM, SIGHUP and a pipe without a reader: how a command ends, or goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from regard.display import TrainingDisplay
from regard.training.watcher import Update
from tests.conftest import FULL, whole
from tests.test_cli import ENV, Done, run
from tests.toy import toy_settings, write_corpus

# `regard` with something that happens just when torch is about to be imported.
PROGRAM = """if True:
    import os, signal, sys
    class Hook:
        def find_spec(self, name, path=None, target=None):
            if name == "torch":
                {happens}
    sys.meta_path.insert(0, Hook())
    {before}
    from regard.__main__ import main
    main()
    """


def interrupted(folder: Path, *arguments: str, happens: str, before: str = "") -> Done:
    code = PROGRAM.format(happens=happens, before=before)
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_corpus(tmp_path)
    for split in ("train", "valid", "test"):
        path = tmp_path / f"{split}.tsv"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:200:10]))
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(toy_settings(training={"steps": 10})))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.yaml").touch()
    return tmp_path


SIGNALS = [
    ("SIGINT", "train c.yaml", "Ctrl-C; the same command resumes"),
    ("SIGHUP", "score model test.tsv --output=out.txt", "SIGHUP; the same command resumes"),
    ("SIGTERM", "translate model test.tsv", "SIGTERM"),
    ("SIGTERM", "generate model test.tsv -o out.txt", "SIGTERM; the same command resumes"),
    ("SIGTERM", "compare c.yaml", "SIGTERM; the same command resumes"),
    ("SIGHUP", "models", "SIGHUP"),
]


@pytest.mark.parametrize(("name", "line", "said"), SIGNALS if FULL else SIGNALS[:3])
def test_a_signal_while_torch_is_imported(name: str, line: str, said: str, folder: Path) -> None:
    number = getattr(signal, name)
    done = interrupted(folder, *line.split(), happens=f"os.kill(os.getpid(), {number:d})")
    assert done == Done(128 + number, "", f"regard: stopped by {said}\n")


def test_a_signal_that_an_import_turned_into_another_error(folder: Path) -> None:
    happens = """
                try:
                    os.kill(os.getpid(), signal.SIGTERM)
                except KeyboardInterrupt:
                    raise ImportError("an extension could not be loaded")
                """
    assert interrupted(folder, "models", happens=happens) == Done(143, "", "regard: stopped by SIGTERM\n")


def test_an_error_that_no_signal_made_keeps_its_traceback(folder: Path) -> None:
    done = interrupted(folder, "models", happens="raise ImportError('an extension could not be loaded')")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ImportError: an extension could not be loaded\n")


def test_a_signal_that_was_ignored_stays_ignored(folder: Path) -> None:
    """As under nohup."""
    happens = "os.kill(os.getpid(), signal.SIGHUP); os.write(1, b'still here'); os._exit(7)"
    done = interrupted(
        folder, "models", happens=happens, before="signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    )  # fmt: skip
    assert done == Done(7, "still here", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_training(number: signal.Signals, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def update(self: TrainingDisplay, update: Update) -> None:
        if update.step == 3:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(TrainingDisplay, "update", update)
    done = run("train", folder / "c.yaml")
    assert done.returncode == 128 + number
    assert done.stderr.splitlines()[-1] == "regard: stopped at update 3; the same command resumes"
    monkeypatch.undo()
    again = run("train", folder / "c.yaml")
    assert again.returncode == 0
    assert "from update 3" in again.stderr


@whole
def test_training_goes_on_when_nobody_reads_what_it_says(folder: Path) -> None:
    """`regard train … 2>&1 | head -1`, of which the pipe is closed after the first line."""
    command = [sys.executable, "-m", "regard", "train", "c.yaml"]
    process = subprocess.Popen(command, cwd=folder, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"learning tokens")
    process.stdout.close()
    assert process.wait() == 141  # what it says at its end goes to the same pipe
    assert (folder / "run" / "model.safetensors").exists()
    assert '"test"' in (folder / "run" / "scores.json").read_text()
