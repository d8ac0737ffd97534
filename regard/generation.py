"""Files in, files out: generation and scoring a line at a time, in order, however long the input."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from regard.artifacts import is_empty, mark, read_mark, replacing
from regard.data.ahead import arriving
from regard.data.examples import Example, Files, SourceLine, read_files, read_sources
from regard.data.lines import read_lines
from regard.data.modality import Modality
from regard.data.tokens import clean
from regard.display import counting
from regard.errors import DataError, OutputError, require
from regard.evaluation.alignment import pharaoh
from regard.fingerprint import CONTENT, Fingerprint, content_of, defaults_of, settings_of
from regard.loading import CONFIG, token_files
from regard.output import LineFile, Sink
from regard.system import System, load
from regard.tasks.results import Output, PairScore, Warn, few_warnings
from regard.training.checkpoint import WEIGHTS

WINDOW = 1024  # lines that are sorted by length and worked on together
PICTURES = "pictures"  # the kind of folder
SHEET = 48  # most pictures of a sheet
T = TypeVar("T")


@dataclass(frozen=True)
class Form:
    """What a line of output holds."""

    scores: bool = False
    align: bool = False
    json: bool = False

    def line(self, outputs: Sequence[Output], links: Sequence[str], pictures: Sequence[str]) -> str:
        """One line for one input: its outputs, separated by tabs, which no output contains. One of which there is a
        picture is named by that."""
        texts = [clean(output.text) for output in outputs]
        if self.json:
            records = [
                {"text": text, "score": output.score, "log_prob": output.log_prob}
                | ({"alignment": link} if link else {})
                | ({"picture": picture} if picture else {})
                for text, output, link, picture in zip(texts, outputs, links, pictures, strict=True)
            ]
            return json.dumps({"outputs": records}, ensure_ascii=False)
        cells = []
        for text, output, link, picture in zip(texts, outputs, links, pictures, strict=True):
            cells += [
                picture or text,
                *([f"{output.score:.4f}"] if self.scores else []),
                *([link] if self.align else []),
            ]
        return "\t".join(cells)


def generate_lines(
    system: System, folders: Sequence[Path], file: Path | None, output: Path | None, search: dict[str, Any],
    form: Form, *, prefixes: Path | None = None, phrases: Path | None = None, pictures: Path | None = None,
    read_as: Mapping[str, Any] | None = None, force: bool, warn: Warn, quiet: bool = False,
) -> None:  # fmt: skip
    """Outputs of all lines of a file or of standard input, to a file or to standard output, by the models of `folders`.

    Line `i` of `prefixes` is how output `i` begins; line `i` of `phrases` holds what it must hold, separated by tabs.
    Where outputs are pictures, these are drawn in the folder `pictures`. `read_as` is how the models were told to read
    a source otherwise than in training, as `regard.load` takes it.
    """
    settings = system.search_settings(**search)
    name = str(file or "standard input")
    made_from = Fingerprint(
        _models(folders) | settings_of(settings) | asdict(form)
        | {"engine": type(system.task).__name__, "prefixes": prefixes is not None, "phrases": phrases is not None}
        | ({} if pictures is None else {"pictures": str(pictures)}) | dict(read_as or {}),
        defaults_of(settings),
    )  # fmt: skip
    album = None
    if pictures is not None:
        resumed = output is not None and output.with_name(f"{output.name}.partial").exists()
        album = Album(pictures, system, made_from, resumed=resumed, force=force)
    beside = _beside(read_sources(file, system.task.sides.judged_form), prefixes, phrases, warn=warn)
    lines = (Line(*both, reads=system.task.source) for both in beside)

    live = file is None and output is None  # somebody may be typing
    with nullcontext(warn) if live else few_warnings(warn) as tell:

        def work(window: list[Line]) -> list[str]:
            return _window(system, window, name, settings.model_dump(), form, tell, album)

        _run(
            "generating", file, output, made_from, lines, lambda line: line.content, work,
            window=min(WINDOW, system.task.window), force=force, quiet=quiet, live=live,
        )  # fmt: skip
    if album is not None:
        album.close()


@dataclass(frozen=True)
class Line:
    """A line of input, and what goes with it."""

    source: SourceLine
    prefix: str
    phrases: str
    reads: Modality

    @property
    def content(self) -> bytes:
        """All that its output is made from."""
        seen = "" if self.source.bad is not None else self.reads.digest(self.source.field)
        return b"\0".join((self.source.raw, self.prefix.encode(), self.phrases.encode(), seen.encode()))


def _beside(
    sources: Iterable[SourceLine], prefixes: Path | None, phrases: Path | None, *, warn: Warn
) -> Iterator[tuple[SourceLine, str, str]]:
    """Each input with its lines of the files beside it, or empty ones where there is no such file."""
    starts, wanted = _column(prefixes), _column(phrases)
    for source in sources:
        yield source, _next(prefixes, starts), _next(phrases, wanted)
    for path, column in ((prefixes, starts), (phrases, wanted)):
        if path is not None and any(line.strip() for line in column):
            warn(f"{path} has more lines than the input; what is behind was not used")


def _column(path: Path | None) -> Iterator[str]:
    return repeat("") if path is None else (line for _, line in read_lines(path))


def _next(path: Path | None, column: Iterator[str]) -> str:
    if (line := next(column, None)) is None:
        raise DataError(f"{path} ends before the input does; it needs as many lines, of which some may be empty")
    return line


def _window(
    system: System, window: list[Line], name: str, search: dict[str, Any], form: Form, warn: Warn, album: Album | None
) -> list[str]:
    """The output lines for some input lines."""
    texts = [line.source.field for line in window]
    problems = {index: str(line.source.bad) for index, line in enumerate(window) if line.source.bad is not None}
    bad = list(problems)

    def problem(index: int, what: str) -> None:
        problems.setdefault(index, f"{name}:{window[index].source.number} {what}")

    prefixes = [line.prefix for line in window]
    phrases = [[phrase for phrase in line.phrases.split("\t") if phrase.strip()] for line in window]
    found = system.outputs(
        texts, on_problem=problem, prefixes=prefixes if any(prefixes) else None,
        phrases=phrases if any(phrases) else None, first_line=window[0].source.number, **search,
    )  # fmt: skip
    for index in bad:  # which may have been an empty prompt, from which a language model writes
        found[index] = []
    for _, what in sorted(problems.items()):
        warn(f"{what}; its line of output is empty")
    links: list[list[str]] = [["" for _ in outputs] for outputs in found]
    if form.align:
        sources = [text for text, outputs in zip(texts, found, strict=True) for _ in outputs]
        targets = [output.text for outputs in found for output in outputs]
        flat = iter(system.align(sources, targets))
        links = [[pharaoh(next(flat)) for _ in outputs] for outputs in found]
    drawn = [["" for _ in outputs] for outputs in found]
    if album is not None:
        drawn = [album.add(line.source, outputs) for line, outputs in zip(window, found, strict=True)]
    return [form.line(*row) for row in zip(found, links, drawn, strict=True)]


class Album:
    """A folder of pictures, by the number of their line: `000001.png`, of several outputs `000001-2.png`; and of the
    first of them a sheet with their texts, `index.png`. A job that is `resumed` goes on with the one that it began."""

    def __init__(self, folder: Path, system: System, made_from: Fingerprint, *, resumed: bool, force: bool) -> None:
        self.target, self.folder, self.first = system.task.target, folder, list[tuple[str, Path]]()
        self.target.pictures([])  # an error, if outputs are no pictures
        require("PIL")
        if folder.exists() and not (folder.is_dir() and is_empty(folder)):
            known = read_mark(folder) if folder.is_dir() else None
            if known is None or known["kind"] != PICTURES:
                raise OutputError(f"{folder} exists and holds no pictures that Regard made; give another name")
            begun = resumed and known.get("made_from") == made_from.digest
            if not begun and not force:
                raise OutputError(f"{folder} exists; give another name, or --force to replace its pictures")
            for path in () if begun else folder.glob("*.png"):
                if re.fullmatch(r"[0-9]{6,}(-[0-9]+)?|index", path.stem):
                    path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        mark(folder, PICTURES, made_from=made_from.digest)

    def add(self, line: SourceLine, outputs: Sequence[Output]) -> list[str]:
        """Draw the outputs of a line; returns the path of each."""
        from PIL import Image

        paths = []
        for number, picture in enumerate(self.target.pictures([output.text for output in outputs]), 1):
            path = self.folder / f"{line.number:06d}{f'-{number}' * (number > 1)}.png"
            with replacing(path) as temporary:
                Image.fromarray(picture).save(temporary, "PNG")
            paths.append(str(path))
            if len(self.first) < SHEET:
                self.first.append((str(line.field), path))
        return paths

    def close(self) -> None:
        """Draw the sheet, if there is what draws it."""
        if not self.first or find_spec("matplotlib") is None:
            return
        from regard.data.modalities.pixels import read_picture
        from regard.explain.gallery import save_gallery

        side = self.target.settings.size
        pictures = [read_picture(path, side).reshape(side, side, 3) for _, path in self.first]
        save_gallery(pictures, [text for text, _ in self.first], self.folder / "index.png")


def score_lines(
    folder: Path, files: Files, output: Path | None, *, tokens: bool, perplexity: bool,
    read_as: Mapping[str, Any], device: str, force: bool, warn: Warn, quiet: bool = False,
) -> None:  # fmt: skip
    """`log p` of all examples of a file, to a file or to standard output; `read_as` as in `generate_lines`."""
    system = load(folder, device=device, settings=read_as)
    task, path = system.task, Path(files if isinstance(files, str) else files[0])
    made_from = Fingerprint({**_models([folder]), "tokens": tokens, "perplexity": perplexity, **read_as})

    def content(example: Example) -> bytes:
        return f"{example.source}\0{example.target}".encode("utf-8", "surrogatepass")

    examples = task.checked(read_files(files, task.sides.judged_form))
    with few_warnings(warn) as tell:

        def work(window: list[Example]) -> list[str]:
            fitting = []
            unfit = task.unfit_pairs([x.source for x in window], [x.target for x in window])
            for i, (example, what) in enumerate(zip(window, unfit, strict=True)):
                if what:
                    tell(f"{example.place} {what}; its line of output is empty")
                else:
                    fitting.append(i)
            scored = system.score([window[i].source for i in fitting], [window[i].target for i in fitting])
            found = {i: _scored(pair, tokens, perplexity) for i, pair in zip(fitting, scored, strict=True)}
            return [found.get(i, "") for i in range(len(window))]

        _run(
            "scoring", path, output, made_from, examples, content, work,
            window=min(WINDOW, task.window), force=force, quiet=quiet,
        )  # fmt: skip


def stream_lines(
    folder: Path, file: Path | None, output: Path | None, *, tokens: bool, perplexity: bool, device: str, force: bool,
    quiet: bool = False,
) -> None:  # fmt: skip
    """`log p` of each line of one long text, each given all that stands before it."""
    system = load(folder, device=device)
    made_from = Fingerprint({**_models([folder]), "stream": True, "tokens": tokens, "perplexity": perplexity})
    given = deque[bytes]()

    def texts() -> Iterator[str]:
        for line in read_sources(file, system.task.sides.judged_form):
            if line.bad is not None:
                raise line.bad
            given.append(line.raw)
            yield line.field

    def work(window: list[tuple[bytes, list[float]]]) -> list[str]:
        return [_scored(PairScore(math.fsum(found), found), tokens, perplexity) for _, found in window]

    # The state is not kept with the lines, so an interrupted text is read again from its beginning.
    scored = ((given.popleft(), log_probs) for log_probs in system.stream(texts()))
    _run("scoring", file, output, made_from, scored, itemgetter(0), work, window=1, force=force, quiet=quiet)


def _scored(pair: PairScore, tokens: bool, perplexity: bool) -> str:
    cells = [f"{pair.log_prob:.4f}", *([f"{pair.perplexity:.4f}"] if perplexity else [])]
    return "\t".join([*cells, *([" ".join(f"{x:.4f}" for x in pair.tokens)] if tokens else [])])


def _run(
    job: str, file: Path | None, output: Path | None, made_from: Fingerprint, items: Iterator[T],
    content: Callable[[T], bytes], work: Callable[[list[T]], list[str]], *, window: int, force: bool, quiet: bool,
    live: bool = False,
) -> None:  # fmt: skip
    """Write a line for each item, to a file or to standard output: `work` makes those of a `window` of items. `content`
    is all that a line is made from. If it is `live`, an item gets its line as soon as no other has come."""
    sink = Sink() if output is None else LineFile(output, made_from, window=window, force=force)
    with sink, counting(job, _count(file), quiet=quiet) as progress:
        rest = sink.take_up(items, content, str(file or "standard input"))
        progress.advance(progress.task_ids[0], sink.written)
        for some in arriving(rest, window) if live else iter(lambda: list(islice(rest, window)), []):
            sink.write(work(some), [content(item) for item in some])
            progress.advance(progress.task_ids[0], len(some))


def _models(folders: Sequence[Path]) -> dict[str, str]:
    """What models hold: weights, or those of an export, and tokenizers."""
    found = {}
    for number, folder in enumerate(folders, 1):
        files = [folder / name for name in (WEIGHTS, "model.bin", CONFIG, *token_files(folder))]
        found[f"{CONTENT}model {number}"] = content_of(path for path in files if path.is_file())
    return found


def _count(file: Path | None) -> int | None:
    """Lines in a plain file, for a bar."""
    if file is None or file.suffix in (".gz", ".tar", ".npz", ".json") or not file.is_file():
        return None
    with file.open("rb") as opened:
        return sum(block.count(b"\n") for block in iter(lambda: opened.read(1 << 20), b""))
