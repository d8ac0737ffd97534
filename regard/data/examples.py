"""Files to examples, a line at a time: .tsv, .jsonl, or text files side by side; other layouts are in `readers/`.

Which columns hold what, and what each of them is, the config's sides say (`Form`).
"""

from __future__ import annotations

import hashlib
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.lines import (
    BLANKS,
    BadKind,
    BadLine,
    OnBad,
    decode,
    each_line,
    from_standard_input,
    named,
    numbered,
    tell,
)
from regard.data.modality import Modality
from regard.data.records import Name, ending, read_alignment, record_reader
from regard.data.side import Field, Side
from regard.data_settings import CorpusFiles, Data
from regard.errors import ConfigError, DataError
from regard.evaluation.alignment import Alignment
from regard.fingerprint import content_of

if TYPE_CHECKING:
    from regard.data.readers.reader import Reader

BEGINNING = 4096  # bytes of a file that tell whether it is text
Files = str | Sequence[str]
Paths = Files | PathLike[str] | Sequence[PathLike[str]]


@dataclass(frozen=True, slots=True)
class Example:
    """A source and its target, and where they stood. A source is a text or the path of a file; where there are several,
    a tuple of such; where there is none, empty. `gold` is what its modality made of the record."""

    source: Field
    target: str
    place: str = ""  # file:line
    alignment: Alignment | None = None
    gold: Any = None
    corpus: int = 0  # which of several it is of


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of input: its number, its bytes as they stood, and its source, which is empty where the line is bad."""

    number: int
    raw: bytes
    field: Field
    bad: BadLine | None = None


@dataclass(frozen=True)
class Form:
    """How examples stand in files: the columns of each source and of the target, and of gold alignments."""

    source: Modality
    columns: tuple[tuple[Name, ...] | None, ...]  # of each source; None: the usual one
    target: Name | tuple[Name, ...] | None  # several: read as one, with <sep> between
    alignment: int | str | bool | None
    written: bool = True  # the target is a text, and no label
    format: str | None = None  # a layout of `readers/`; None: it is recognised
    root: Path | None = None  # where files are that data name, if not beside them
    wanted: Side | None = None  # the target, which may name files too
    answered: bool = True  # False: files have no target
    bare: tuple[type, ...] = ()  # the numbers that a target may be in .jsonl, without quotes
    keys: tuple[tuple[str, ...], str] | None = None  # usual ones of a source's texts and of the target in .jsonl

    @staticmethod
    def of(source: Modality, target: Side, data: Data) -> Form:
        """As the sides' settings say."""
        named = [part.settings.column for part in source.parts]
        columns = (None if x is None else tuple(x) if isinstance(x, list) else (x,) for x in named)
        root = None if data.root is None else Path(data.root)
        settings = target.settings
        wanted = tuple(settings.column) if isinstance(settings.column, list) else settings.column
        return Form(
            source, tuple(columns), wanted, data.alignment, settings.written, data.format, root, target,
            answered=settings.wanted, keys=settings.keys, bare=settings.bare,
        )  # fmt: skip

    @property
    def given(self) -> list[Modality]:
        """The sources there are."""
        return [part for part in self.source.parts if part.settings.given]

    @property
    def empty(self) -> Field:
        """A source, or several, with nothing in it."""
        return ("",) * len(self.given) if len(self.given) > 1 else ""

    def line(self, line: str, place: str) -> Field:
        """A source as a user writes it: a line as it is; of several sources, separated by tabs."""
        if len(self.given) < 2:
            return line
        cells = line.split("\t")
        if len(cells) != len(self.given):
            raise BadLine(
                place, "malformed", f"has {len(cells)} of {len(self.given)} sources; they are separated by tabs"
            )
        return self.fields(cells, Path(), place)

    def layout(self, ending: str) -> tuple[list[list[Name]], list[Name], Name | None]:
        """The columns of each source, of the target, and of the alignment."""
        table, count = ending == "tsv", len(self.given)
        sources = [
            list(own or [i if table else "source" if i == 1 else f"source{i}"])
            for i, own in enumerate(self.columns[:count], 1)
        ]
        target = self.target if self.target is not None else count + 1 if table else "target" if count else "text"
        if self.keys is not None:
            texts, answer = self.keys
            sources = [list(self.columns[0] or (range(1, len(texts) + 1) if table else texts))]
            target = self.target if self.target is not None else len(texts) + 1 if table else answer
        wanted: list[Name] = list(target) if isinstance(target, tuple) else [target]
        if self.alignment is False or not count or not self.answered or self.keys is not None:
            return sources, wanted, None
        if self.alignment is not None and self.alignment is not True:  # column 1 equals True
            return sources, wanted, self.alignment
        plain = not any(self.columns) and self.target is None
        return sources, wanted, "alignment" if not table else count + 2 if plain else None

    def fields(self, texts: Sequence[str], folder: Path, place: str) -> Field:
        """The sources as they stand in a record, brought to what their modality reads."""
        found = [_read(part, text, folder, place) for part, text in zip(self.given, texts, strict=True)]
        return tuple(found) if len(found) > 1 else found[0] if found else ""

    def answer(self, text: str, folder: Path, place: str) -> str:
        """The target as it stands in a record, brought to what its kind reads."""
        return text if self.wanted is None or not self.answered else _read(self.wanted, text, folder, place)

    def digest(self, example: Example) -> str:
        """What tells the content apart of files that an example names; empty if it names none."""
        return self.source.digest(example.source) + ("" if self.wanted is None else self.wanted.digest(example.target))


def _read(side: Side, text: str, folder: Path, place: str) -> str:
    try:
        return side.read(text, folder)
    except ValueError as error:
        kind: BadKind = "malformed" if text.strip(BLANKS) else "blank"
        raise BadLine(place, kind, str(error)) from None


def read_examples(data: Data, split: str, form: Form, on_bad: OnBad | None = None) -> Iterator[Example]:
    """The examples of one split, of one corpus after the other. The first bad line is raised; with `on_bad` it is
    handed over, as are all others."""
    corpora = data.split(split)
    if not corpora:
        raise ConfigError(f"the config names no data.{split}")
    for corpus in corpora:
        for path in [corpus.files] if isinstance(corpus.files, str) else corpus.files:
            with named(Path(path)):
                mode = Path(path).stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise DataError(
                    f"{path} is a pipe or a device, and data.{split} is read more than once; write it to a file first"
                )
    return chain.from_iterable([read_corpus(corpus, form, on_bad) for corpus in corpora])


def read_corpus(corpus: CorpusFiles, form: Form, on_bad: OnBad | None = None) -> Iterator[Example]:
    """The examples of one split of one corpus, with its prefix token before each source that is not blank."""
    examples = read_files(corpus.files, form, on_bad)
    if corpus.number == 0 and corpus.prefix is None:
        return examples
    return (replace(x, source=_prefixed(x.source, corpus.prefix), corpus=corpus.number) for x in examples)


def _prefixed(field: Field, prefix: str | None) -> Field:
    """A source with a token before it; of several sources, before the first."""
    if isinstance(field, tuple):
        return (_prefixed(field[0], prefix), *field[1:])
    return field if prefix is None or not field.strip(BLANKS) else f"{prefix} {field}"


def read_files(files: Paths, form: Form, on_bad: OnBad | None = None) -> Iterator[Example]:
    """The examples of some files: one .tsv or .jsonl file, or a text file a side, any of which may be gzipped; or
    another layout that pictures and recordings come in (`readers/`)."""
    if (reader := _layout(files, form)) is not None:
        return reader.examples(on_bad)
    sides = len(form.given) + form.answered
    if not isinstance(files, str | PathLike):
        if len(files) != sides:
            what = f"or {sides} text files, one a side" if sides > 1 else "or one text file"
            hint = "; give the one file without a list" if len(files) == 1 else ""
            raise DataError(f"data needs one .tsv or .jsonl file, {what}; got {len(files)}: {[*map(str, files)]}{hint}")
        return _read_aligned([Path(file) for file in files], form, on_bad)
    path = Path(files)
    if ending(path) in ("tsv", "jsonl"):
        lines = numbered(path)
        return each_line(path, lines, _parser(path, lines, form), on_bad)
    if sides == 1:

        def alone(line: str, place: str) -> Example:
            return (
                Example("", line, place)
                if form.answered
                else Example(form.fields([line], path.parent, place), "", place)
            )

        return each_line(path, numbered(path), alone, on_bad)
    if path.is_dir():
        raise DataError(
            f"cannot tell how to read the folder {path}; it should hold folders, one a label, or wav.scp and text, "
            "LibriSpeech's transcripts, .npz shards or .tar files; or name a file"
        )
    raise DataError(
        f"cannot tell how to read {path}; it should end in .tsv or .jsonl (or .gz after that), be two text files in a "
        "list: [source.txt, target.txt], or have a layout that data.format names"
    )


def read_sources(path: Path | None, form: Form) -> Iterator[SourceLine]:
    """The inputs in a file, or in standard input: the sources of a .tsv or .jsonl file as in training data, the lines
    of any other (of several sources, separated by tabs). Every line yields one, a bad one too; but not the line that
    names a table's columns."""
    if path is not None and any(not part.settings.text for part in form.given):
        _check_lines(path)
    lines = numbered(path) if path else from_standard_input()
    name = path or Path("standard input")
    parse = _source_parser(name, lines, form)
    for number, raw in lines:
        place = f"{name}:{number}"
        try:
            field, bad = parse(decode(raw, place), place), None
        except BadLine as error:
            field, bad = form.empty, error
        yield SourceLine(number, raw, field, bad)


def _check_lines(path: Path) -> None:
    """Refuse a file that is no list of sources but one of them: no line of text holds a zero byte."""
    if path.suffix == ".gz" or not path.is_file():  # a pipe can be read but once
        return
    with named(path), path.open("rb") as file:
        if b"\0" in file.read(BEGINNING):
            raise DataError(
                f"{path} is not a text file that names a source a line; for the file itself, write: echo "
                f"{shlex.quote(str(path))} | regard generate MODEL (of an archive, its name, :: and a member's)"
            )


def data_content(files: Files, form: Form) -> str:
    """A digest of what data hold, the files they name included: another file of the same content has the same.

    Everything is read once, folders and archives too: times and sizes of files would be quicker, and would take a copy
    for other data, and other data for the same where a copy keeps its time.
    """
    paths = [files] if isinstance(files, str) else list(files)
    for path in paths:
        if not Path(path).exists():
            raise DataError(f"no file {path}; check the paths in [data]")
    if (reader := _layout(files, form)) is not None:
        found = hashlib.sha256(content_of(reader.files).encode())
        for example in reader.examples(lambda bad: None):
            found.update(f"{form.source.digest(example.source)}\0{example.target}\0".encode())
        return found.hexdigest()
    whole = content_of(paths)
    first = next(read_files(files, form, lambda bad: None), None)
    if first is None or not form.digest(first):
        return whole
    found = hashlib.sha256(whole.encode())
    for example in read_files(files, form, lambda bad: None):
        found.update(form.digest(example).encode())
    return found.hexdigest()


def _layout(files: Paths, form: Form) -> Reader | None:
    """What reads these files, if they are neither tables nor records nor texts."""
    from regard.data.readers.reader import find_reader

    paths = [Path(files)] if isinstance(files, str | PathLike) else [Path(file) for file in files]
    return find_reader(paths, form) if form.given and paths else None


def _read_aligned(paths: Sequence[Path], form: Form, on_bad: OnBad | None) -> Iterator[Example]:
    """Line `i` of every file makes example `i`."""
    number = 0
    for rows in zip_longest(*(numbered(path) for path in paths)):
        if None in rows:
            short, long = paths[rows.index(None)], next(p for p, row in zip(paths, rows, strict=True) if row)
            raise DataError(
                f"{short} ends after line {number} but {long} goes on; line i of one must be the pair of line i of the "
                "other, so find where they part"
            )
        number = rows[0][0]
        place = f"{paths[0]}:{number}"
        try:
            texts = [decode(row[1], f"{path}:{number}") for path, row in zip(paths, rows, strict=True)]
            *sources, target = texts if form.answered else [*texts, ""]
            folder = form.root or paths[0].parent
            example = Example(form.fields(sources, folder, place), form.answer(target, folder, place), place)
        except BadLine as bad:
            tell(bad, on_bad)
        else:
            yield example


def _parser(path: Path, lines: Iterator[tuple[int, bytes]], form: Form) -> Callable[[str, str], Example]:
    """What makes an example of a line of a table or of records."""
    sources, target, gold = form.layout(ending(path))
    groups, sides = [*sources, target][: len(sources) + form.answered], [*_side_names(sources), "target"]
    read = record_reader(path, lines, groups, sides[: len(groups)], gold, form.bare)

    def parse(line: str, place: str) -> Example:
        given, links, record = read(line, place)
        *texts, text = given if form.answered else [*given, ""]
        found = None
        try:
            for part in form.given if record else ():
                found = found or part.read_gold(record)
        except ValueError as error:
            raise BadLine(place, "malformed", str(error)) from None
        folder = form.root or path.parent
        source, answer = form.fields(texts, folder, place), form.answer(text, folder, place)
        return Example(source, answer, place, read_alignment(links, place), found)

    return parse


def _source_parser(path: Path, lines: Iterator[tuple[int, bytes]], form: Form) -> Callable[[str, str], Field]:
    """What makes a source (or, where there is none, a prompt) of a line."""
    if ending(path) not in ("tsv", "jsonl"):
        return form.line
    sources, target, _ = form.layout(ending(path))
    sources = sources or [target]
    read = record_reader(path, lines, sources, _side_names(sources))

    def parse(line: str, place: str) -> Field:
        texts, *_ = read(line, place)
        return form.fields(texts, form.root or path.parent, place) if form.given else texts[0]

    return parse


def _side_names(sources: Sequence[Any]) -> list[str]:
    return ["source"] if len(sources) == 1 else [f"source {i + 1}" for i in range(len(sources))]
