"""Files in, files out: generation and scoring a line at a time, in order, however long the input."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import Any, TypeVar

from regard.data.corpora import Example, Files, decode, raw_lines, read_files, read_lines
from regard.data.tokens import clean
from regard.display import counting
from regard.errors import DataError
from regard.evaluation.alignment import pharaoh
from regard.output import LineFile
from regard.system import System, load
from regard.tasks.task import Output, PairScore, Warn
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
    system: System, folders: Sequence[Path], file: Path | None, output: Path | None, search: dict[str, Any],
    form: Form, *, prefixes: Path | None = None, phrases: Path | None = None, force: bool, warn: Warn,
) -> None:  # fmt: skip
    """Outputs of all lines of a file or of standard input, to a file or to standard output, by what was loaded from
    `folders`.

    Line `i` of `prefixes` is how output `i` begins; line `i` of `phrases` holds what it must hold, parted by tabs.
    """
    settings = system.search(**search).model_dump()
    name = str(file or "standard input")
    made_from = {
        "input": _identity(file),
        "models": [_identity(folder / name) for folder in folders for name in (WEIGHTS, "model.bin")],
        "engine": type(system.task).__name__,
        "given": [_identity(prefixes), _identity(phrases)],
        "search": settings,
        "form": asdict(form),
    }
    with ExitStack() as stack:
        done, write = _sink(stack, output, made_from, force=force)
        live = file is None and sys.stdin.isatty()
        progress = stack.enter_context(counting("generating", _count(file)))
        columns = [enumerate(raw_lines(file) if file else sys.stdin.buffer, 1), _column(prefixes), _column(phrases)]
        lines = (Line(*both[0], *both[1:]) for both in islice(zip(*columns, strict=False), done, None))
        progress.advance(progress.task_ids[0], done)
        empty = not done
        for window in _windows(lines, 1 if live else WINDOW):
            write(_window(system, window, name, settings, form, warn))
            progress.advance(progress.task_ids[0], len(window))
            empty = False
        if empty and file is not None:
            raise DataError(f"{file} is empty; it should hold a text a line")


@dataclass(frozen=True)
class Line:
    """A line of input, its number, and what goes with it."""

    number: int
    raw: bytes
    prefix: str
    phrases: str


def _column(path: Path | None) -> Iterator[str]:
    """The lines of a file that goes beside the input, or empty ones."""
    if path is None:
        yield from repeat("")
        return
    yield from (line for _, line in read_lines(path))
    raise DataError(f"{path} ends before the input does; it needs as many lines, of which some may be empty")


def _window(system: System, window: list[Line], name: str, search: dict[str, Any], form: Form, warn: Warn) -> list[str]:
    """The output lines for some input lines."""
    texts, unreadable = [], set()
    for line in window:
        try:
            texts.append(decode(line.raw, f"{name}:{line.number}"))
        except DataError as error:
            texts.append("")
            unreadable.add(len(texts) - 1)
            warn(f"{error}; its line of output is empty")

    def problem(index: int, what: str) -> None:
        if index not in unreadable:
            warn(f"{name}:{window[index].number} {what}; its line of output is empty")

    search = {**search, "seed": search["seed"] + window[0].number}  # so that windows are not drawn alike
    prefixes = [line.prefix for line in window]
    phrases = [[phrase for phrase in line.phrases.split("\t") if phrase.strip()] for line in window]
    found = system.outputs(
        texts, on_problem=problem, prefixes=prefixes if any(prefixes) else None,
        phrases=phrases if any(phrases) else None, **search,
    )  # fmt: skip
    links: list[list[str]] = [["" for _ in outputs] for outputs in found]
    if form.align:
        sources = [text for text, outputs in zip(texts, found, strict=True) for _ in outputs]
        targets = [output.text for outputs in found for output in outputs]
        flat = iter(system.align(sources, targets))
        links = [[pharaoh(next(flat)) for _ in outputs] for outputs in found]
    return [form.line(outputs, aligned) for outputs, aligned in zip(found, links, strict=True)]


def score_lines(
    folder: Path, files: Files, output: Path | None, *, tokens: bool, perplexity: bool, device: str, force: bool,
    warn: Warn,
) -> None:  # fmt: skip
    """`log p` of all examples of a file, to a file or to standard output."""
    system = load(folder, device=device)
    paths = [files] if isinstance(files, str) else list(files)
    made_from = {
        "input": [_identity(Path(p)) for p in paths], "model": _identity(folder / WEIGHTS), "tokens": tokens,
        "perplexity": perplexity,
    }  # fmt: skip
    with ExitStack() as stack:
        done, write = _sink(stack, output, made_from, force=force)
        progress = stack.enter_context(counting("scoring", _count(Path(paths[0]))))
        examples = islice(system.task.checked(read_files(files, system.config.data)), done, None)
        progress.advance(progress.task_ids[0], done)
        for window in _windows(examples, WINDOW):
            write([_scored(pair, tokens, perplexity) for pair in _score_window(system, window, warn)])
            progress.advance(progress.task_ids[0], len(window))


def stream_lines(
    folder: Path, file: Path | None, output: Path | None, *, tokens: bool, perplexity: bool, device: str, force: bool
) -> None:
    """`log p` of each line of one long text, each given all that stands before it."""
    system = load(folder, device=device)
    made_from = {
        "input": _identity(file), "model": _identity(folder / WEIGHTS), "stream": True, "tokens": tokens,
        "perplexity": perplexity,
    }  # fmt: skip
    with ExitStack() as stack:
        # The state is not kept with the lines, so a text that was cut off is read from its beginning.
        done, write = _sink(stack, output, made_from, force=force)
        progress = stack.enter_context(counting("scoring", _count(file)))
        name = str(file or "standard input")
        texts = (decode(raw, f"{name}:{i}") for i, raw in enumerate(raw_lines(file) if file else sys.stdin.buffer, 1))
        for number, found in enumerate(system.stream(texts)):
            if number >= done:
                write([_scored(PairScore(math.fsum(found), found), tokens, perplexity)])
            progress.advance(progress.task_ids[0])


def _score_window(system: System, window: list[Example], warn: Warn) -> list[PairScore | None]:
    task, fitting = system.task, []
    items = task.source.encode_many([x.source for x in window])
    for i, (example, item, target) in enumerate(
        zip(window, items, task.target.encode_many([x.target for x in window]), strict=True)
    ):
        length = max(len(target), len(item) if task.source.tokenizer else 0)
        if length < task.longest - 1:
            fitting.append(i)
        else:
            most = f"more than the model's {task.longest - 2}"
            warn(f"{example.place} has {length} tokens, {most}; its line of output is empty")
    found: list[PairScore | None] = [None] * len(window)
    scored = system.score([window[i].source for i in fitting], [window[i].target for i in fitting])
    for i, pair in zip(fitting, scored, strict=True):
        found[i] = pair
    return found


def _scored(pair: PairScore | None, tokens: bool, perplexity: bool) -> str:
    if pair is None:
        return ""
    cells = [f"{pair.log_prob:.4f}", *([f"{pair.perplexity:.4f}"] if perplexity else [])]
    return "\t".join([*cells, *([" ".join(f"{x:.4f}" for x in pair.tokens)] if tokens else [])])


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
