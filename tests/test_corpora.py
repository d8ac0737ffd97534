"""Reading pairs: three forms, gzipped or not, and what is said about what cannot be read."""

from __future__ import annotations

import gzip
import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.data.corpora import Alignment, read_pairs
from regard.errors import DataError

PAIRS = [("ein Haus", "a house"), ("zwei Häuser", "two houses"), ("Größe", "size")]
Writer = Callable[[Path, str], str | list[str]]


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


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("writer", [two_files, tsv, jsonl])
def test_the_same_pairs_in_every_form(tmp_path: Path, writer: Writer, ending: str) -> None:
    examples = list(read_pairs(writer(tmp_path, ending)))
    assert [(x.source, x.target) for x in examples] == PAIRS
    assert examples[2].place.endswith(":3")


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    table = _write(tmp_path / "x.tsv", "id\tzwei\tein\n")
    assert [(x.source, x.target) for x in read_pairs(table, [3, 2])] == [("ein", "zwei")]
    lines = _write(tmp_path / "x.jsonl", '{"en": "two", "de": "zwei"}\n')
    assert [(x.source, x.target) for x in read_pairs(lines, ["de", "en"])] == [("zwei", "two")]


def test_gold_alignments(tmp_path: Path) -> None:
    table = _write(tmp_path / "x.tsv", "a b\tc d\t0-1 1p0\n")
    (example,) = read_pairs(table)
    assert example.alignment == Alignment(sure=frozenset({(0, 1)}), possible=frozenset({(0, 1), (1, 0)}))


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes("\ufeffein\tone\r\nzwei\ttwo\r\n".encode())
    assert [(x.source, x.target) for x in read_pairs(str(path))] == [("ein", "one"), ("zwei", "two")]


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    assert len(list(read_pairs(_write(tmp_path / "x.tsv", "a\tb\nc\td")))) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", b"", "x.tsv is empty"),
        ("x.tsv", b"a\tb\nc\n", "x.tsv:2 has 1 column, so no column 2 for the target; columns are parted by tabs"),
        ("x.tsv", b"a\tb\nc\xe9\td\n", "x.tsv:2 is not UTF-8 (byte 2: 0xe9); convert the file"),
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
        list(read_pairs(str(tmp_path / name)))
    assert message in str(error.value)


@pytest.mark.parametrize("shorter", [0, 1])
def test_unequal_files_say_where_one_ends(tmp_path: Path, shorter: int) -> None:
    files = two_files(tmp_path, "")
    Path(files[shorter]).write_text("ein Haus\n")
    with pytest.raises(DataError) as error:
        list(read_pairs(files))
    assert f"{files[shorter]} ends after line 1 but {files[1 - shorter]} goes on" in str(error.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*gone\.tsv"):
        list(read_pairs(str(tmp_path / "gone.tsv")))
    (tmp_path / "x.tsv").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        list(read_pairs(str(tmp_path / "x.tsv")))
    with pytest.raises(DataError, match="two text files; got 3"):
        read_pairs(["a", "b", "c"])


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
