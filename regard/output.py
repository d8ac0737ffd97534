"""Lines written to a file so that a cut-off job goes on where it was, and nothing that exists is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from regard.errors import OutputError


class LineFile:
    """Collects lines in `PATH.partial` and moves it to `PATH` when all are there.

    Beside it stands `PATH.partial.json`, which says what the lines are made from: the same job takes up the lines that
    are whole, another job is refused. `written` counts the lines that were there already.
    """

    def __init__(self, path: Path, made_from: dict[str, Any], *, force: bool = False) -> None:
        self.path, self.partial = path, path.with_name(path.name + ".partial")
        self.facts = path.with_name(path.name + ".partial.json")
        if path.exists() and not force:
            raise OutputError(f"{path} exists; give another name, or --force to replace it")
        if path.is_dir():
            raise OutputError(f"{path} is a folder; give the name of a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.written = 0
        if self.partial.exists() and self.facts.exists():
            if json.loads(self.facts.read_text()) == made_from:
                self.written = self._keep_whole_lines()
            elif not force:
                raise OutputError(f"{self.partial} is from another job; remove it, or --force to start anew")
        if not self.written:
            self.partial.unlink(missing_ok=True)
        self.facts.write_text(json.dumps(made_from))
        self.file: TextIO = self.partial.open("a", encoding="utf-8", newline="\n")

    def _keep_whole_lines(self) -> int:
        content = self.partial.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self.partial.open("r+b") as file:
                file.truncate(len(whole))
        return whole.count(b"\n")

    def write(self, lines: Sequence[str]) -> None:
        """Add lines, and hand them to the system at once."""
        self.file.write("".join(line + "\n" for line in lines))
        self.file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        self.file.close()
        if error is None:
            self.partial.replace(self.path)
            self.facts.unlink()
