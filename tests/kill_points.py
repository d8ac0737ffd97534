"""Kills a job before every call that changes the file system, and runs it again: `python -m tests.kill_points JOB`.

Everything is imported once; each attempt is a fork of that process, so that hundreds of them take seconds. Before a
new file is synced, half of it is cut off in half of the kills, as if the kill had come while it was being written.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import regard
from regard import generation
from regard.compare.runner import Budget, Entry, Plan, compare
from tests.toy import toy_config, toy_settings, write_corpus

CHANGING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink"}
TIMED = {"seconds", "tokens_per_second", "decode_speed", "date", "checksum", "log"}  # `log` holds a checksum
SMALL: dict[str, Any] = {
    "model": {
        "d_model": 8, "encoder": {"kind": "rnn"},
        "decoder": {"kind": "rnn", "context": "last", "score": None, "place": None},
    },
    "training": {
        "steps": 3, "validate_every": 2, "save_every": 1, "keep_last": 2, "average": 2, "validate_sentences": 2,
        "log_every": 1, "batch_tokens": 20,
    },
    "search": {"beam": 1, "max_length": 4},
}  # fmt: skip

Job = Callable[[Path], None]


def train(folder: Path) -> None:
    regard.train(toy_config(folder, **SMALL))


def generate(folder: Path) -> None:
    generation.WINDOW = 4
    system = regard.load(folder / "run", device="cpu")
    generation.generate_lines(
        system, [folder / "run"], folder / "input.txt", folder / "output.txt", {"sample": True}, generation.Form(),
        force=False, warn=lambda text: None,
    )  # fmt: skip


def compared(folder: Path) -> None:
    config = toy_config(folder, **SMALL)
    entries = [Entry("one", "", config), Entry("two", "", toy_config(folder, **{**SMALL, "model": {"d_model": 12}}))]
    plan = Plan("", entries, Budget(tokens=120), (1,), folder / "compared", "", "")
    results = compare(plan, regard.train, lambda text: None)
    (folder / "results.json").write_text(json.dumps(results.to_json()))


JOBS: dict[str, Job] = {"train": train, "generate": generate, "compare": compared}


class Calls:
    """Counts the calls that change files under `folder`, and kills the process before call number `last`."""

    def __init__(self, folder: Path, last: int | None) -> None:
        self.folder, self.last, self.count = str(folder), last, 0
        sys.addaudithook(self.hook)
        os.fsync = self.synced  # type: ignore[assignment]  # a kill needs no real one

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.before(path)
        elif event in CHANGING:
            self.before(arguments[0])

    def synced(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        self.before(path, cut=path.suffix == ".tmp")

    def before(self, path: Any, *, cut: bool = False) -> None:
        if not isinstance(path, str | bytes | os.PathLike) or not os.fsdecode(path).startswith(self.folder):
            return
        self.count += 1
        if self.count == self.last:
            if cut and self.count % 2:
                os.truncate(path, Path(os.fsdecode(path)).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)


def forked(work: Callable[[], int]) -> tuple[int, int]:
    """The number that `work` gives in a process of its own, and the signal that ended that."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(writing, str(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    said = os.read(reading, 64)
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return 0, os.WTERMSIG(status)
    assert os.waitstatus_to_exitcode(status) == 0, "the job failed"
    return int(said), 0


def tree(folder: Path) -> dict[str, Any]:
    """All files, with what they hold apart from what a clock said."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            found[name] = None
        elif path.suffix == ".json":
            found[name] = untimed(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [untimed(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            found[name] = path.read_bytes().replace(str(folder).encode(), b"")
    return found


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: untimed(inner) for name, inner in value.items() if name not in TIMED}
    return [untimed(inner) for inner in value] if isinstance(value, list) else value


def main(name: str, every: int = 1, start: int = 1) -> None:
    """Kill before each call (or each `every`th); print how many there are, and in which the end was another."""
    torch.set_num_threads(1)
    job = JOBS[name]
    root = Path(tempfile.mkdtemp())
    try:
        clean = root / "clean"
        clean.mkdir()
        write_corpus(clean, count=30)
        (clean / "input.txt").write_text("".join(f"alpha {word}\n" for word in "abcdefghijk"))
        (clean / "config.json").write_text(json.dumps(toy_settings(**SMALL)))
        shutil.copytree(clean, root / "warm")
        train(root / "warm")  # so that a fork finds everything imported and made ready
        if name == "generate":
            train(clean)

        def attempt(folder: Path, last: int | None) -> Callable[[], int]:
            def work() -> int:
                calls = Calls(folder, last)
                job(folder)
                return calls.count

            return work

        reference = root / "a" / "work"  # each in a folder of the same name, as paths stand in config.yaml
        shutil.copytree(clean, reference)
        count, _ = forked(attempt(reference, None))
        whole, wrong = tree(reference), []
        for last in range(start, count + 1, every):
            folder = root / "b" / "work"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(clean, folder)
            _, ended = forked(attempt(folder, last))
            assert ended == signal.SIGKILL, f"call {last} of {count} did not come"
            try:
                forked(attempt(folder, None))
                found = tree(folder)
                differing = [path for path in {**whole, **found} if whole.get(path, 0) != found.get(path, 0)]
            except AssertionError as error:
                differing = [str(error)]
            if differing:
                wrong.append({"call": last, "differing": differing})
        print(json.dumps({"calls": count, "wrong": wrong}))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
