"""Files in, files out: generation and scoring a line at a time, in order, however long the input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from regard.data.corpora import Files, decode, raw_lines, read_pairs
from regard.data.tokens import clean
from regard.display import counting
from regard.errors import DataError
from regard.evaluation.alignment import pharaoh
from regard.output import LineFile
from regard.system import System, load
from regard.tasks import Output, Warn
from regard.training.checkpoint import WEIGHTS

WINDOW = 1024  # lines that are sorted by length and worked on together
T = TypeVar("T")
Write = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Form:
    """What a line of output holds."""

    scores: bool = False
    align: bool = False
    json: bool = False

    def line(self, outputs: Sequence[Output], links: Sequence[str]) -> str:
        """One line for one input: its outputs, parted by tabs. Blanks in an output are single spaces, so tabs and
        line ends part fields and lines only."""
        texts = [clean(output.text) for output in outputs]
        if self.json:
            records = [
                {
                    "text": text,
                    "score": output.score,
                    "log_prob": output.log_prob,
                    **({"alignment": link} if link else {}),
                }
                for text, output, link in zip(texts, outputs, links, strict=True)
            ]
            return json.dumps({"outputs": records}, ensure_ascii=False)
        cells = []
        for text, output, link in zip(texts, outputs, links, strict=True):
            cells += [text, *([f"{output.score:.4f}"] if self.scores else []), *([link] if self.align else [])]
        return "\t".join(cells)


def generate_lines(
    folder: Path, file: Path | None, output: Path | None, search: dict[str, Any], form: Form, *,
    device: str, force: bool, warn: Warn,
) -> None:  # fmt: skip
    """Outputs of all lines of a file or of standard input, to a file or to standard output."""
    system = load(folder, device=device)
    settings = system.search(**search).model_dump()
    name = str(file or "standard input")
    made_from = {
        "input": _identity(file),
        "model": _identity(folder / WEIGHTS),
        "search": settings,
        "form": asdict(form),
    }
    with ExitStack() as stack:
        done, write = _sink(stack, output, made_from, force=force)
        live = file is None and sys.stdin.isatty()
        progress = stack.enter_context(counting("generating", _count(file)))
        lines = islice(enumerate(raw_lines(file) if file else sys.stdin.buffer, 1), done, None)
        progress.advance(progress.task_ids[0], done)
        empty = not done
        for window in _windows(lines, 1 if live else WINDOW):
            write(_window(system, window, name, settings, form, warn))
            progress.advance(progress.task_ids[0], len(window))
            empty = False
        if empty and file is not None:
            raise DataError(f"{file} is empty; it should hold a text a line")


def _window(
    system: System, window: list[tuple[int, bytes]], name: str, search: dict[str, Any], form: Form, warn: Warn
) -> list[str]:
    """The output lines for some input lines."""
    texts, unreadable = [], set()
    for number, raw in window:
        try:
            texts.append(decode(raw, f"{name}:{number}"))
        except DataError as error:
            texts.append("")
            unreadable.add(len(texts) - 1)
            warn(f"{error}; its line of output is empty")

    def problem(index: int, what: str) -> None:
        if index not in unreadable:
            warn(f"{name}:{window[index][0]} {what}; its line of output is empty")

    search = {**search, "seed": search["seed"] + window[0][0]}  # so that windows are not drawn alike
    found = system.outputs(texts, on_problem=problem, **search)
    links: list[list[str]] = [["" for _ in outputs] for outputs in found]
    if form.align:
        sources = [system.task.source.encode(text) for text, outputs in zip(texts, found, strict=True) for _ in outputs]
        targets = [output.tokens for outputs in found for output in outputs]
        flat = iter(system.task.align(sources, targets))
        links = [[pharaoh(next(flat)) for _ in outputs] for outputs in found]
    return [form.line(outputs, aligned) for outputs, aligned in zip(found, links, strict=True)]


def score_lines(
    folder: Path, files: Files, output: Path | None, *, tokens: bool, device: str, force: bool, warn: Warn
) -> None:
    """`log p` of all pairs of a file, to a file or to standard output."""
    system = load(folder, device=device)
    paths = [files] if isinstance(files, str) else list(files)
    made_from = {"input": [_identity(Path(p)) for p in paths], "model": _identity(folder / WEIGHTS), "tokens": tokens}
    with ExitStack() as stack:
        done, write = _sink(stack, output, made_from, force=force)
        progress = stack.enter_context(counting("scoring", _count(Path(paths[0]))))
        examples = islice(read_pairs(files, system.config.data.columns), done, None)
        progress.advance(progress.task_ids[0], done)
        for window in _windows(examples, WINDOW):
            fitting = []
            for example in window:
                length = max(
                    len(system.task.source.encode(example.source)), len(system.task.target.encode(example.target))
                )
                if length < system.task.longest:
                    fitting.append(example)
                else:
                    most = f"more than the model's {system.task.longest - 1}"
                    warn(f"{example.place} has {length} tokens, {most}; its line of output is empty")
            scored = iter(system.score([x.source for x in fitting], [x.target for x in fitting]))
            known = {id(example): next(scored) for example in fitting}
            lines = []
            for example in window:
                cells = []
                if pair := known.get(id(example)):
                    cells = [f"{pair.log_prob:.4f}", *([" ".join(f"{x:.4f}" for x in pair.tokens)] if tokens else [])]
                lines.append("\t".join(cells))
            write(lines)
            progress.advance(progress.task_ids[0], len(window))


def _sink(stack: ExitStack, output: Path | None, made_from: dict[str, Any], *, force: bool) -> tuple[int, Write]:
    """How many lines are there already, and how to write more."""
    if output is None:
        return 0, _to_stdout
    file = stack.enter_context(LineFile(output, made_from, force=force))
    return file.written, file.write


def _to_stdout(lines: Sequence[str]) -> None:
    sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode())
    sys.stdout.buffer.flush()


def _windows(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while window := list(islice(items, size)):
        yield window


def _count(file: Path | None) -> int | None:
    """Lines in a plain file, for a bar."""
    if file is None or file.suffix == ".gz" or not file.is_file():
        return None
    with file.open("rb") as opened:
        return sum(block.count(b"\n") for block in iter(lambda: opened.read(1 << 20), b""))


def _identity(path: Path | None) -> list[str | int]:
    if path is None or not path.exists():
        return [str(path)]
    return [str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns]
