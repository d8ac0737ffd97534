"""Kills a job before every call that changes the file system, and runs it again: `python -m tests.kill_points JOB`, or
before every fourth, `python -m tests.kill_points JOB 4`.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import regard
from regard import generation
from regard.artifacts import write_text
from regard.compare import Budget, compare
from tests.toy import toy_config, toy_settings, write_corpus

CHANGING = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink"}
TIMED = {"seconds", "tokens_per_second", "decode_speed", "date", "checksum", "log"}  # `log` holds a checksum
SMALL: dict[str, Any] = {
    "model": {
        "d_model": 8, "encoder": {"kind": "rnn"},
        "decoder": {"kind": "rnn", "context": "last", "score": None, "place": None},
    },
    "training": {
        "steps": 3, "validate_every": 3, "save_every": 1, "keep_last": 2, "average": 2, "validate_sentences": 2,
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
    results = compare({"one": toy_config(folder, **SMALL)}, folder / "compared", Budget(tokens=40), seeds=(1,))
    write_text(folder / "results.json", results.model_dump_json())


JOBS: dict[str, Job] = {"train": train, "generate": generate, "compare": compared}


class Calls:
    """Lists the calls that change files under `folder`, and kills the process before call number `last`."""

    def __init__(self, folder: Path, last: int | None) -> None:
        self.folder, self.last = str(folder), last
        self.paths: list[str] = []
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
        self.paths.append(os.fsdecode(path))
        if len(self.paths) == self.last:
            if cut and self.last % 2:
                os.truncate(path, Path(os.fsdecode(path)).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)


def forked(work: Callable[[], Sequence[str]]) -> tuple[list[str], int]:
    """What `work` gives in a process of its own, and the signal that ended that."""
    with tempfile.TemporaryFile("w+") as said:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                said.write("\n".join(work()))
                said.flush()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            return [], os.WTERMSIG(status)
        assert os.waitstatus_to_exitcode(status) == 0, "the job failed"
        said.seek(0)
        return said.read().splitlines(), 0


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


def chosen(name: str, paths: Sequence[str]) -> list[int]:
    """The calls to kill before: all. Of a comparison all of its own and some of its trainings', which are killed by
    themselves as `train`."""
    numbers = range(1, len(paths) + 1)
    own = {"compared.json", ".compared.json.tmp"}
    return [
        number
        for number, path in zip(numbers, paths, strict=True)
        if name != "compare" or "/seed-1/" not in path or Path(path).name in own or number % 30 == 0
    ]


def main(name: str, every: int = 1) -> None:
    """Kill before each call, or before one of `every` so many; print how many calls there are, before how many the job
    was killed, and where the end was another one."""
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

        def attempt(folder: Path, last: int | None) -> Callable[[], Sequence[str]]:
            def work() -> Sequence[str]:
                calls = Calls(folder, last)
                job(folder)
                return calls.paths

            return work

        reference = root / "a" / "work"  # each in a folder of the same name, as paths stand in config.yaml
        shutil.copytree(clean, reference)
        calls, _ = forked(attempt(reference, None))
        whole, wrong, kills = tree(reference), [], chosen(name, calls)[::every]
        for last in kills:
            folder = root / "b" / "work"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(clean, folder)
            _, ended = forked(attempt(folder, last))
            assert ended == signal.SIGKILL, f"call {last} of {len(calls)} did not come"
            try:
                forked(attempt(folder, None))
                found = tree(folder)
                differing = [path for path in {**whole, **found} if whole.get(path, 0) != found.get(path, 0)]
            except AssertionError as error:
                differing = [str(error)]
            if differing:
                wrong.append({"call": last, "path": calls[last - 1], "differing": differing})
        print(json.dumps({"calls": len(calls), "kills": len(kills), "wrong": wrong}))
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
