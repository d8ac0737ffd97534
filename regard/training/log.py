"""The log of a training run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.artifacts import checksum, write_bytes
from regard.errors import MissingExtraError, require
from regard.training.checkpoint import Progress
from regard.training.watcher import Watcher


class TrainingLog:
    """`log.jsonl`, a record a line, and TensorBoard events beside it. What lies past a checkpoint is written again."""

    def __init__(self, folder: Path, progress: Progress, tensorboard: bool, watcher: Watcher) -> None:
        path = folder / "log.jsonl"
        self.size, self.checksum = progress.log
        path.touch()
        if checksum([path.read_bytes()[: self.size]]) != self.checksum or path.stat().st_size < self.size:
            watcher.message(f"{path} is damaged: what can be read of it is kept")
            readable = "".join(line + "\n" for line in _readable(path, progress.step)).encode()
            write_bytes(path, readable)
            self.size, self.checksum = len(readable), checksum([readable])
        os.truncate(path, self.size)
        self.file = path.open("ab")
        self.events: Any = None
        if tensorboard:
            try:
                require("tensorboard")
            except MissingExtraError as error:
                watcher.message(f"{error}; training goes on without them")
                return
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(folder / "tensorboard"), purge_step=progress.step + 1)

    def write(self, step: int, **values: float | None) -> None:
        known = {name: value for name, value in values.items() if value is not None}
        line = json.dumps({"step": step, **known}).encode() + b"\n"
        self.file.write(line)
        self.file.flush()
        self.size, self.checksum = self.size + len(line), checksum([line], self.checksum)
        if self.events is not None:
            for name, value in known.items():
                self.events.add_scalar(name, value, step)

    def sync(self) -> tuple[int, str]:
        """Have all lines on disk; how many bytes they are, and their checksum."""
        os.fsync(self.file.fileno())
        return self.size, self.checksum

    def close(self) -> None:
        self.file.close()
        if self.events is not None:
            self.events.close()


def _readable(path: Path, step: int) -> Iterator[str]:
    """The lines of a damaged log that are still records, up to an update."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                yield line
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
