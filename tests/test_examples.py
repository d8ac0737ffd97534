"""Reading examples: three forms, gzipped or not, of one source or several; and what is said of what cannot be read."""

from __future__ import annotations

import gzip
import io
import json
import os
import runpy
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from regard.data.examples import Example, Form, data_content, read_examples, read_files, read_sources
from regard.data.lines import BadLine
from regard.data_settings import Data
from regard.errors import DataError
from regard.evaluation.alignment import Alignment
from tests.toy import sides_of

PAIRS = [("ein Haus", "a house"), ("zwei Häuser", "two houses"), ("Größe", "size")]
AutoregressiveModel = Callable[[Path, str], str | list[str]]


def form(*columns: Any, source: str = "text", **data: Any) -> Form:
    """How pairs stand in files: the columns of source and target."""
    sides = [{"column": column} for column in columns] or [{}, {}]
    return sides_of({"kind": source, **sides[0]}, sides[1], data=data).form


def read_pairs(files: str | list[str], *columns: Any) -> list[Example]:
    return list(read_files(files, form(*columns)))


def two_files(folder: Path, ending: str) -> list[str]:
    for side in (0, 1):
        _write(folder / f"x.{side}{ending}", "".join(pair[side] + "\n" for pair in PAIRS))
    return [str(folder / f"x.{side}{ending}") for side in (0, 1)]


def tsv(folder: Path, ending: str) -> str:
    return _write(folder / f"x.tsv{ending}", "".join(f"{a}\t{b}\n" for a, b in PAIRS))


def jsonl(folder: Path, ending: str) -> str:
    return _write(folder / f"x.jsonl{ending}", "".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in PAIRS))


def _write(path: Path, text: str) -> str:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("source", "target", "written"),
    [
        ({}, {"kind": "label"}, ["1", "0"]),
        ({}, {"kind": "number"}, ["3.5", "-1"]),
        ({"column": ["source", "ends"]}, {"kind": "choice"}, ["1", "0"]),
    ],
)
def test_numbers_in_records_need_no_quotes_where_they_are_what_is_predicted(
    tmp_path: Path, source: dict[str, Any], target: dict[str, Any], written: list[str]
) -> None:
    read = sides_of(source, {**target, "column": "target"}).form
    lines = [f'{{"source": "a", "ends": ["b", "c"], "target": {number}}}\n' for number in written]
    assert [example.target for example in read_files(_write(tmp_path / "x.jsonl", "".join(lines)), read)] == written
    wrong = "true" if target["kind"] == "number" else "2.5"
    _write(tmp_path / "x.jsonl", lines[0].replace(written[0], wrong))
    with pytest.raises(DataError, match="'target' that should be text, not"):
        list(read_files(tmp_path / "x.jsonl", read))


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("writer", [two_files, tsv, jsonl])
def test_the_same_pairs_in_every_form(tmp_path: Path, writer: AutoregressiveModel, ending: str) -> None:
    examples = read_pairs(writer(tmp_path, ending))
    assert [(x.source, x.target) for x in examples] == PAIRS
    assert examples[2].place.endswith(":3")


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    table = _write(tmp_path / "x.tsv", "id\tzwei\tein\n")
    assert [(x.source, x.target) for x in read_pairs(table, 3, 2)] == [("ein", "zwei")]
    lines = _write(tmp_path / "x.jsonl", '{"en": "two", "de": "zwei"}\n')
    assert [(x.source, x.target) for x in read_pairs(lines, "de", "en")] == [("zwei", "two")]


LINKS = Alignment(sure=frozenset({(0, 1)}), possible=frozenset({(0, 1), (1, 0)}))


def test_gold_alignments(tmp_path: Path) -> None:
    """In column 3 or under `alignment`, if the columns are the usual ones; elsewhere if the settings say so."""
    table = _write(tmp_path / "x.tsv", "a b\tc d\t0-1 1p0\n")
    assert [x.alignment for x in read_pairs(table)] == [LINKS]
    assert [x.alignment for x in read_pairs(table, 1, 2)] == [None]  # columns that are chosen have none by themselves
    records = _write(
        tmp_path / "x.jsonl", '{"source": "a b", "target": "c d", "alignment": "0-1 1p0", "links": "0-0"}\n'
    )
    assert [x.alignment for x in read_pairs(records)] == [LINKS]
    assert [x.alignment for x in read_pairs(records, "source", "target")] == [LINKS]


@pytest.mark.parametrize("alignment", [None, True, False])
def test_gold_alignments_can_be_left_out(tmp_path: Path, alignment: bool | None) -> None:
    table = _write(tmp_path / "x.tsv", "a b\tc d\t0-1 1p0\n")
    records = _write(tmp_path / "x.jsonl", '{"source": "a b", "target": "c d", "alignment": "0-1 1p0"}\n')
    for file in (table, records):
        (example,) = read_files(file, form(alignment=alignment))
        assert example.alignment == (None if alignment is False else LINKS)


@pytest.mark.parametrize(
    ("line", "columns", "alignment"),
    [
        ("0-1 1p0\ta b\tc d\n", (2, 3), 1),
        ("a b\tc d\tmore\t0-1 1p0\n", (), 4),
        ("de\tlinks\ten\na b\t0-1 1p0\tc d\n", ("de", "en"), "links"),
        ("de\tlinks\ten\na b\t0-1 1p0\tc d\n", (1, "en"), 2),
    ],
)
def test_gold_alignments_stand_where_the_settings_say(
    tmp_path: Path, line: str, columns: tuple[Any, ...], alignment: int | str
) -> None:
    (example,) = read_files(_write(tmp_path / "x.tsv", line), form(*columns, alignment=alignment))
    assert (example.source, example.target, example.alignment) == ("a b", "c d", LINKS)
    record = json.dumps({"source": "a b", "target": "c d", str(alignment): "0-1 1p0", "alignment": "9-9"}) + "\n"
    (example,) = read_files(_write(tmp_path / "x.jsonl", record), form(alignment=alignment))
    assert example.alignment == LINKS


def test_a_line_without_its_alignment_has_none(tmp_path: Path) -> None:
    table = _write(tmp_path / "x.tsv", "a\tb\t0-0\nc\td\ne\tf\t\n")
    assert [x.alignment is None for x in read_pairs(table)] == [False, True, True]
    with pytest.raises(DataError, match="should be numbers from 1, or names that its first line holds"):
        list(read_files(table, form(alignment=0)))
    with pytest.raises(DataError, match="names no column 'links'; it names: a, b, 0-0"):
        list(read_files(table, form(alignment="links")))
    odd = _write(tmp_path / "odd.tsv", "a\tb\tnotes\n")
    with pytest.raises(BadLine, match=r"odd\.tsv:1 has an odd alignment: .*data\.alignment=false"):
        read_pairs(odd)
    assert len(list(read_files(odd, form(alignment=False)))) == 1


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes("\ufeffein\tone\r\nzwei\ttwo\r\n".encode())
    assert [(x.source, x.target) for x in read_pairs(str(path))] == [("ein", "one"), ("zwei", "two")]


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    assert len(read_pairs(_write(tmp_path / "x.tsv", "a\tb\nc\td"))) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", b"", "x.tsv is empty"),
        ("x.tsv", b"a\tb\nc\n", "x.tsv:2 has 1 column, so no column 2 for the target; columns are separated by tabs"),
        ("x.tsv", b"a\tb\nc\xe9\td\n", "x.tsv:2 is not UTF-8 (byte 2: 0xe9); convert the file"),
        ("x.tsv", b"a\tb\n\n", "x.tsv:2 is blank; leave the line out"),
        ("x.tsv", b"a\tb\t9999999999-0\n", "x.tsv:1 has an odd alignment: '9999999999-0' is no link"),
        ("x.jsonl", b'{"source": "a", "target": "b"}\n \n', "x.jsonl:2 is blank; leave the line out"),
        (
            "x.jsonl",
            b'{"source": "a", "target": "\\ud800"}\n',
            "x.jsonl:1 has 'target' with \\ud800, which is half",
        ),
        (
            "x.jsonl",
            b'{"source": "a", "target": 2.5}\n',
            'should be text, not float; write it in quotes: "2.5"',
        ),
        ("x.jsonl", b'{"source": "a", "target": true}\n', "'target' that should be text, not bool"),
        ("x.jsonl", b"[" * 100_000, "x.jsonl:1 is nested too deeply to be read"),
        ("x.jsonl", b"9" * 5000, "x.jsonl:1 cannot be read as JSON (Exceeds the limit"),
        (
            "x.jsonl",
            b'{"source": "a", "target": "b", "alignment": [[0, 0]]}',
            "an alignment should be text such as",
        ),
        ("x.tsv", b"a\tb\t0-x\n", "x.tsv:1 has an odd alignment: '0-x' is no link"),
        ("x.jsonl", b'{"source": "a", "target": "b"}\n{"source": "a"}\n', "x.jsonl:2 has no 'target' (it has: source)"),
        (
            "x.jsonl",
            b'{"source": 1, "target": "b"}\n',
            "x.jsonl:1 has 'source' that should be text, not int; write it in quotes: \"1\"",
        ),
        ("x.jsonl", b"[1]\n", "x.jsonl:1 should be an object"),
        ("x.jsonl", b"{oops}\n", "x.jsonl:1 is not JSON"),
        ("x.csv", b"a,b\n", "cannot tell how to read"),
        ("x.tsv.gz", b"not gzip", "is not a whole gzip file"),
        ("x.tsv.gz", gzip.compress(b"a\tb\n" * 9000, mtime=0)[:-30], "is not a whole gzip file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        read_pairs(str(tmp_path / name))
    assert message in str(error.value)


@pytest.mark.parametrize("shorter", [0, 1])
def test_unequal_files_say_where_one_ends(tmp_path: Path, shorter: int) -> None:
    files = two_files(tmp_path, "")
    Path(files[shorter]).write_text("ein Haus\n")
    with pytest.raises(DataError) as error:
        read_pairs(files)
    assert f"{files[shorter]} ends after line 1 but {files[1 - shorter]} goes on" in str(error.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*gone\.tsv"):
        read_pairs(str(tmp_path / "gone.tsv"))
    (tmp_path / "x.tsv").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        read_pairs(str(tmp_path / "x.tsv"))
    with pytest.raises(DataError, match=r"or 2 text files, one a side; got 3: \['a', 'b', 'c'\]"):
        read_pairs(["a", "b", "c"])


LINES: dict[str, tuple[bytes, list[tuple[int, str]]]] = {
    "x.tsv": (
        b"a\tA\n\nb\nc\tC\nd\xff\tD\ne\tE\n",
        [(2, "blank"), (3, "malformed"), (5, "undecodable")],
    ),
    "x.jsonl": (
        b'{"source": "a", "target": "A"}\n \n{"source": "b"}\n{"source": "c", "target": "C"}\n"\xff"\n'
        b'{"source": "e", "target": "E"}\n',
        [(2, "blank"), (3, "malformed"), (5, "undecodable")],
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_bad_lines_are_handed_over_and_the_next_is_read(tmp_path: Path, name: str) -> None:
    content, expected = LINES[name]
    (tmp_path / name).write_bytes(content)
    told: list[BadLine] = []
    found = list(read_files(str(tmp_path / name), form(), told.append))
    assert [(x.source, x.target) for x in found] == [("a", "A"), ("c", "C"), ("e", "E")]
    assert [(bad.place, bad.kind) for bad in told] == [(f"{tmp_path / name}:{n}", kind) for n, kind in expected]
    for bad in told:
        assert str(bad) == f"{bad.place} {bad.what}"
    with pytest.raises(BadLine) as error:
        list(read_files(str(tmp_path / name), form()))
    assert str(error.value) == str(told[0])


def test_pairs_stay_pairs_where_a_line_of_either_file_is_bad(tmp_path: Path) -> None:
    (tmp_path / "x.de").write_bytes(b"a\n\xff\nc\nd\n")
    (tmp_path / "x.en").write_bytes(b"A\nB\n\xff\nD\n")
    told: list[BadLine] = []
    found = read_files([str(tmp_path / "x.de"), str(tmp_path / "x.en")], form(), told.append)
    assert [(x.source, x.target) for x in found] == [("a", "A"), ("d", "D")]
    assert [bad.place for bad in told] == [f"{tmp_path / 'x.de'}:2", f"{tmp_path / 'x.en'}:3"]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("x.tsv.gz", gzip.compress(b"a\tb\n" * 9000, mtime=0)[:-30], None, "is not a whole gzip file"),
        ("x.tsv", b"", None, "is empty"),
        ("x.tsv", b"a\tb\n", ["a", "c"], "x.tsv:1 names no column 'c'; it names: a, b"),
        ("x.tsv", b"a\tb\n", ["²", "b"], "x.tsv:1 names no column '²'; it names: a, b"),
        ("x.tsv", b"a\tb\n", ["00", 2], "should be numbers from 1, or names that its first line holds; not ['00', 2]"),
        ("x.tsv", b"a\tb\n", [1, 0], "should be numbers from 1, or names that its first line holds; not [1, 0]"),
        ("x.tsv", b"a\tb\n", [1, -1], "x.tsv:1 names no column '-1'"),
        ("x.tsv", b"a\tb\n", ["9" * 5000, 2], "names no column '999"),
        ("x.tsv", b"\xff\tb\n", ["a", "b"], "x.tsv:1 is not UTF-8"),
        ("x.tsv", "a\tb\n".encode("utf-16"), None, "x.tsv is UTF-16; convert the file, e.g. iconv -f utf-16 -t utf-8"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_whole_file_is_always_raised(
    tmp_path: Path, name: str, content: bytes, columns: list[Any] | None, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        list(read_files(str(tmp_path / name), form(*columns or ()), lambda bad: None))
    assert message in str(error.value)


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.lines.LONGEST", 2**20)
    with pytest.raises(DataError, match=r"/dev/zero:1 goes on after 1 MiB; is it a file of lines\?"):
        list(read_sources(Path("/dev/zero"), form()))
    (tmp_path / "x.tsv.gz").write_bytes(gzip.compress(b"a\tb\n" + bytes(2**21)))
    with pytest.raises(DataError, match=r"x\.tsv\.gz:2 goes on after 1 MiB"):
        list(read_files(str(tmp_path / "x.tsv.gz"), form(), lambda bad: None))


def test_training_data_are_files_that_can_be_read_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tsv")
    for file in (str(tmp_path / "pipe.tsv"), "/dev/null"):
        with pytest.raises(DataError, match=r"is a pipe or a device, and data\.train is read more than once"):
            read_examples(Data(train=file), "train", form())
    with pytest.raises(DataError, match="is a folder"):
        list(read_examples(Data(train=[str(tmp_path)] * 2), "train", form()))
    (tmp_path / "loop.tsv").symlink_to("loop.tsv")
    for name in ("loop.tsv", "x" * 300 + ".tsv", "a\0.tsv", "\ud800.tsv"):
        for read in (lambda data: read_examples(data, "train", form()), lambda data: read_files(data.train, form())):
            with pytest.raises(DataError, match="cannot be read: "):
                list(read(Data(train=str(tmp_path / name))))


# Input to generate from


def sources(path: Path, how: Form | None = None) -> list[tuple[int, Any, str | None]]:
    return [(x.number, x.field, x.bad.kind if x.bad else None) for x in read_sources(path, how or form())]


def test_inputs_are_read_as_training_data_are(tmp_path: Path) -> None:
    table = Path(_write(tmp_path / "x.tsv", "de\ten\nein Haus\ta house\nzwei\n"))
    none = sides_of("none").form
    assert sources(table) == [(1, "de", None), (2, "ein Haus", None), (3, "zwei", None)]
    assert sources(table, form(2, 1)) == [(1, "en", None), (2, "a house", None), (3, "", "malformed")]
    assert sources(table, form("en", "de")) == [(2, "a house", None), (3, "", "malformed")]
    assert sources(table, form([1, 2], 3))[1] == (2, "ein Haus <sep> a house", None)
    assert sources(table, sides_of("none", {"column": 2}).form)[1] == (2, "a house", None)
    assert sources(table, form(source="image"))[1] == (2, str(tmp_path / "ein Haus"), None)
    lines = '{"source": "a", "text": "b", "de": "c"}\n\n{"source": ""}\n{"source": 3}\n'
    records = Path(_write(tmp_path / "x.jsonl.gz", lines))
    assert sources(records) == [(1, "a", None), (2, "", "blank"), (3, "", None), (4, "", "malformed")]
    assert sources(records, form("de", "en"))[0] == (1, "c", None)
    assert sources(records, none)[0] == (1, "b", None)
    assert sources(records, form(source="image"))[:3] == [
        (1, str(tmp_path / "a"), None),
        (2, "", "blank"),
        (3, "", "blank"),
    ]
    with pytest.raises(DataError, match="names no column 'fr'"):
        sources(table, form("fr", "en"))


def test_other_inputs_are_lines_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"ein\tHaus\n\n\xff\nzwei"
    (tmp_path / "x.txt").write_bytes(content)
    expected = [(1, "ein\tHaus", None), (2, "", None), (3, "", "undecodable"), (4, "zwei", None)]
    assert sources(tmp_path / "x.txt") == sources(tmp_path / "x.txt", form("a", "b", source="image")) == expected
    assert [x.raw for x in read_sources(tmp_path / "x.txt", form())] == content.splitlines(keepends=True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    found = list(read_sources(None, form()))
    assert [(x.number, x.field, x.bad.kind if x.bad else None) for x in found] == expected
    assert found[2].bad
    assert str(found[2].bad).startswith("standard input:3 is not UTF-8")


def test_inputs_may_come_through_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = Thread(target=(tmp_path / "pipe").write_bytes, args=(b"a\nb\n",))
    writer.start()
    assert sources(tmp_path / "pipe") == [(1, "a", None), (2, "b", None)]
    writer.join()


# Several sources


TWO = [("ein Haus", "une maison", "a house"), ("Größe", "taille", "size")]
TEXTS = sides_of(["text", "text"]).form


def three_files(folder: Path, ending: str) -> list[str]:
    names = [f"x.{side}{ending}" for side in ("de", "fr", "en")]
    return [
        _write(folder / name, "".join(row[side] + "\n" for row in TWO)) for side, name in enumerate(names)
    ]  # fmt: skip


def wide_tsv(folder: Path, ending: str) -> str:
    return _write(folder / f"x.tsv{ending}", "".join("\t".join(row) + "\n" for row in TWO))


def wide_jsonl(folder: Path, ending: str) -> str:
    keys = ("source", "source2", "target")
    rows = [json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in TWO]
    return _write(folder / f"x.jsonl{ending}", "".join(rows))


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("writer", [three_files, wide_tsv, wide_jsonl])
def test_several_sources_in_every_form(tmp_path: Path, writer: AutoregressiveModel, ending: str) -> None:
    found = list(read_files(writer(tmp_path, ending), TEXTS))
    assert [(*x.source, x.target) for x in found] == TWO
    assert found[1].place.endswith(":2")


def test_columns_of_several_sources_can_be_chosen(tmp_path: Path) -> None:
    table = _write(tmp_path / "x.tsv", "en\tde\tfr\tlinks\tmore\nsize\tGröße\ttaille\t0-0\tvery\n")
    chosen = sides_of([{"column": "de"}, {"column": ["fr", 5]}], {"column": 1}, data={"alignment": "links"}).form
    (example,) = read_files(table, chosen)
    assert (example.source, example.target) == (("Größe", "taille <sep> very"), "size")
    assert example.alignment == Alignment(frozenset({(0, 0)}), frozenset({(0, 0)}))
    records = _write(tmp_path / "x.jsonl", '{"en": "size", "source": "Größe", "fr": "taille", "5": "very"}\n')
    (example,) = read_files(records, sides_of([{}, {"column": ["fr", 5]}], {"column": "en"}).form)
    assert (example.source, example.target) == (("Größe", "taille <sep> very"), "size")
    (example,) = read_files(_write(tmp_path / "y.tsv", "a\tb\tc\t0-0\n"), TEXTS)  # the fourth is that of the alignment
    assert example.alignment == Alignment(frozenset({(0, 0)}), frozenset({(0, 0)}))


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("x.tsv", "a\n", "x.tsv:1 has 1 column, so no column 2 for the source 2; columns are separated by tabs"),
        ("x.tsv", "a\tb\n", "x.tsv:1 has 2 columns, so no column 3 for the target; columns are separated by tabs"),
        ("x.jsonl", '{"source": "a", "target": "b"}\n', "x.jsonl:1 has no 'source2' (it has: source, target); set"),
        ("x.jsonl", '{"source2": "a", "target": "b"}\n', "x.jsonl:1 has no 'source' (it has: source2, target); set"),
    ],
)  # fmt: skip
def test_what_of_several_sources_is_missing_is_named(tmp_path: Path, name: str, line: str, message: str) -> None:
    with pytest.raises(BadLine) as error:
        list(read_files(_write(tmp_path / name, line), TEXTS))
    assert message in str(error.value)


def test_several_sources_need_as_many_files(tmp_path: Path) -> None:
    files = three_files(tmp_path, "")
    with pytest.raises(DataError, match="or 3 text files, one a side; got 2"):
        read_files(files[:2], TEXTS)
    with pytest.raises(DataError, match=r"cannot tell how to read .*; it should end in \.tsv or \.jsonl"):
        read_files(files[0], TEXTS)
    Path(files[1]).write_text("une maison\n")
    with pytest.raises(DataError) as error:
        list(read_files(files, TEXTS))
    assert f"{files[1]} ends after line 1 but {files[0]} goes on" in str(error.value)
    (tmp_path / "x.fr").write_bytes(b"une maison\n\xff\n")
    told: list[BadLine] = []
    assert [x.target for x in read_files(files, TEXTS, told.append)] == ["a house"]
    assert [bad.place for bad in told] == [f"{tmp_path / 'x.fr'}:2"]


def test_inputs_of_several_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns and keys as in training data; else separated by tabs, and all of them there."""
    expected: list[tuple[int, Any, str | None]]
    expected = [(1, ("ein Haus", "une maison"), None), (2, ("Größe", "taille"), None)]
    assert sources(Path(wide_tsv(tmp_path, "")), TEXTS) == expected
    assert sources(Path(wide_jsonl(tmp_path, ".gz")), TEXTS) == expected
    content = b"ein Haus\tune maison\nzwei\na\tb\tc\n\n\xff\n\tb\n"
    (tmp_path / "x.txt").write_bytes(content)
    none = ("", "")
    expected = [(1, ("ein Haus", "une maison"), None), (2, none, "malformed"), (3, none, "malformed"),
                (4, none, "malformed"), (5, none, "undecodable"), (6, ("", "b"), None)]  # fmt: skip
    assert sources(tmp_path / "x.txt", TEXTS) == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    found = list(read_sources(None, TEXTS))
    assert [(x.number, x.field, x.bad.kind if x.bad else None) for x in found] == expected
    assert str(found[1].bad) == "standard input:2 has 1 of 2 sources; they are separated by tabs"
    assert str(found[2].bad) == "standard input:3 has 3 of 2 sources; they are separated by tabs"


def test_an_image_and_a_text_are_read_each_in_its_way(tmp_path: Path) -> None:
    both = sides_of(["image", "text"]).form
    (tmp_path / "in").mkdir()
    expected = (str(tmp_path / "in" / "1.png"), "how many ?")
    table = _write(tmp_path / "x.tsv", "in/1.png\thow many ?\ttwo\n\thow many ?\ttwo\n")
    told: list[BadLine] = []
    assert [x.source for x in read_files(table, both, told.append)] == [expected]
    assert [(bad.place, bad.kind, bad.what) for bad in told] == [(f"{table}:2", "blank", "names no picture")]
    records = _write(tmp_path / "x.jsonl", '{"source": "in/1.png", "source2": "how many ?", "target": "two"}\n')
    assert [x.source for x in read_files(records, both)] == [expected]
    files = [_write(tmp_path / name, f"{line}\n")
             for name, line in (("a", "in/1.png"), ("b", "how many ?"), ("c", "two"))]  # fmt: skip
    assert [x.source for x in read_files(files, both)] == [expected]
    assert sources(Path(table), both) == [(1, expected, None), (2, ("", ""), "blank")]
    lines = Path(_write(tmp_path / "x.txt", "in/1.png\thow many ?\n\thow many ?\n"))
    # a path that a user writes is relative to where the user stands
    assert sources(lines, both) == [(1, ("in/1.png", "how many ?"), None), (2, ("", ""), "blank")]


# What data hold


def test_a_digest_of_data_is_one_of_their_content(tmp_path: Path) -> None:
    pairs = form()
    one, other = _write(tmp_path / "x.tsv", "a\tb\n"), _write(tmp_path / "y.tsv", "a\tb\n")
    assert data_content(one, pairs) == data_content(other, pairs)
    _write(tmp_path / "y.tsv", "a\tc\n")
    assert data_content(one, pairs) != data_content(other, pairs)
    with pytest.raises(DataError, match=r"no file .*gone\.tsv; check the paths in \[data\]"):
        data_content(str(tmp_path / "gone.tsv"), pairs)


@pytest.mark.parametrize("several", [False, True])
def test_a_digest_of_data_holds_the_files_that_they_name(tmp_path: Path, several: bool) -> None:
    """Of all lines, also where the first one names a file that is not there."""
    how = sides_of(["text", "image"] if several else "image").form
    rows = ["gone.png", "1.png", "2.png"]
    table = _write(tmp_path / "x.tsv", "".join("text\t" * several + f"{row}\ta\n" for row in rows))
    for number in (1, 2):
        (tmp_path / f"{number}.png").write_bytes(b"one")
    digests = [data_content(table, how)]
    (tmp_path / "2.png").write_bytes(b"two")
    digests.append(data_content(table, how))
    (tmp_path / "gone.png").write_bytes(b"there")
    digests.append(data_content(table, how))
    assert len(set(digests)) == 3
    (tmp_path / "gone.png").unlink()
    (tmp_path / "2.png").write_bytes(b"one")
    assert data_content(table, how) == digests[0]


def test_the_split_of_tatoeba_keeps_related_sentences_together() -> None:
    path = Path(__file__).parent.parent / "recipes" / "tatoeba.py"
    split = runpy.run_path(str(path))["split"]
    alone = [(f"This is {i} .", f"Das ist {i} .") for i in range(20)]
    related = [("I see you .", "Ich sehe dich ."), ("I see you .", "Ich sehe euch ."), ("I see .", "Ich sehe euch .")]
    parts = split([*alone[:9], *related, *alone[9:], ("Go .", "Geh .")], dev=5, test=4)
    assert [len(parts[name]) for name in ("dev", "test", "train")] == [5, 4, 15]
    assert set(alone).issuperset(parts["dev"] + parts["test"])
    place = parts["train"].index(related[0])
    assert parts["train"][place : place + 3] == related
    assert parts == split([*related, *reversed(alone), ("Go .", "Geh ."), alone[0]], dev=5, test=4)


def test_what_is_no_file_of_pairs_is_named(tmp_path: Path) -> None:
    read = runpy.run_path(str(Path(__file__).parent.parent / "recipes" / "tatoeba.py"))["read"]
    file = tmp_path / "deu.txt"
    with pytest.raises(SystemExit, match=r"cannot read .*deu\.txt"):
        read(file)
    file.write_text("Go .\tGeh .\twho wrote it\n\nalone\n")
    with pytest.raises(SystemExit, match=r"deu\.txt, line 3: no tab"):
        read(file)
    file.write_text("Go .\tGeh .\twho wrote it\n\n")
    assert read(file) == [("Go .", "Geh .")]


def test_lines_of_multi30k_find_their_photographs(tmp_path: Path) -> None:
    made = runpy.run_path(str(Path(__file__).parent.parent / "recipes" / "multi30k_photos.py"))
    for name, lines in (("en", "one\ntwo\nthree"), ("de", "eins\nzwei\ndrei"), ("txt", "12.jpg\n345.jpg\n6.jpg")):
        (tmp_path / f"val.{name}").write_text(lines + "\n")
    with pytest.raises(SystemExit, match="no photographs; give the folder"):
        made["photographs"](tmp_path)
    for name in ("6_ab1.jpg", "12_0c.jpg", "1234_5.jpg"):
        (tmp_path / name).write_bytes(b"")
    known = made["photographs"](tmp_path)
    assert made["joined"](tmp_path, "val", known) == [
        f"{tmp_path / '12_0c.jpg'}\tone\teins", f"{tmp_path / '6_ab1.jpg'}\tthree\tdrei"
    ]  # fmt: skip
    np.savez(tmp_path / "all.npz", names=np.array(["345_x.jpg"]))
    known = made["photographs"](tmp_path / "all.npz")
    assert made["joined"](tmp_path, "val", known) == [f"{tmp_path / 'all.npz'}::345_x.jpg\ttwo\tzwei"]
    (tmp_path / "val.de").write_text("eins\n")
    with pytest.raises(SystemExit, match="val has 3 photographs, 3 and 1 lines; as many will do"):
        made["joined"](tmp_path, "val", known)


def test_lines_like_those_of_an4_are_made_of_its_words(tmp_path: Path) -> None:
    made = runpy.run_path(str(Path(__file__).parent.parent / "recipes" / "an4.py"))
    with pytest.raises(SystemExit, match=r"cannot read .*train\.tsv"):
        made["recordings"](tmp_path, "train")
    (tmp_path / "train.tsv").write_text("utt\tseconds\ttext\nan1\t0.7\tGO\nan2\t2.1\tERASE C Q\n")
    found = made["recordings"](tmp_path, "train")
    assert found == [(str(tmp_path / f"flac/train/{n}.flac"), t) for n, t in (("an1", "go"), ("an2", "erase c q"))]
    texts = [text for _, text in found]
    lines = made["similar"](texts, 40)
    assert len(lines) == len(set(lines)) == 40
    assert set(texts) < set(lines)
    assert {word for line in lines for word in line.split()} == {"go", "erase", "c", "q"}
    follows = Counter(pair for line in lines for pair in pairwise(line.split()))
    assert follows["erase", "c"] > follows["erase", "q"]  # as in the transcripts
    assert made["similar"](texts, 40) == lines


def test_a_picture_itself_is_no_list_of_pictures(tmp_path: Path) -> None:
    path = tmp_path / "a b.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    with pytest.raises(DataError, match=r"is not a text file .*: echo '.*a b\.png' \| regard generate MODEL"):
        next(read_sources(path, sides_of("image").form))
    assert next(read_sources(path, sides_of("text").form)).bad is not None
