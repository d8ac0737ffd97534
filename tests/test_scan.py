"""What of the data can be used: counted, shown and, where it is too little, refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.data.lines import BadLine
from regard.data.scan import Report, scan, usable_examples
from regard.data_settings import Data
from regard.errors import ConfigError, DataError
from tests.toy import sides_of

TEXT = sides_of("text")


def data_of(path: Path, content: bytes | str, **settings: Any) -> Data:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Data(train=str(path), **settings)


def test_a_clean_split_has_nothing_to_tell(tmp_path: Path) -> None:
    data = data_of(tmp_path / "x.tsv", "a\tA\nb\tB\n", bad_lines="error", bad_limit=0.0)
    report = scan(data, "train", TEXT)
    assert (report.lines, report.bad, report.describe()) == (2, 0, None)
    report.check(data)


def test_what_is_left_out_is_counted_and_the_first_of_each_kind_are_shown(tmp_path: Path) -> None:
    content = b"a\tA\n" * 1190 + b"\n \tB\nb\t\nc\t \n" + b"d\n" * 3 + b"\xff\te\n"
    data = data_of(tmp_path / "x.tsv", content)
    report = scan(data, "train", TEXT)
    assert (report.lines, report.bad) == (1198, 8)
    name = tmp_path / "x.tsv"
    told = str(report.describe()).splitlines()
    assert told[0] == (
        f"{name}: left out 8 of 1,198 lines: 4 blank, 3 malformed, 1 not UTF-8; data.bad_lines=error stops instead"
    )
    assert told[1:4] == [
        f"  {name}:1191 is blank; leave the line out",
        f"  {name}:1192 has an empty source",
        f"  {name}:1193 has an empty target",
    ]
    assert len(told) == 1 + 3 + 3 + 1
    report.check(data)
    kept = list(usable_examples(data, "train", TEXT, lambda bad: None))
    assert len(kept) == 1190


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ("a\tA\n\n", {"bad_lines": "error"}, "x.tsv: 1 of 2 lines cannot be used: 1 blank; mend or remove them"),
        ("a\tA\nb\n\n", {}, "x.tsv: 2 of 3 lines cannot be used, more than data.bad_limit=0.25 of them: 1 malf"),
        ("a\tA\nb\n", {"bad_limit": 0.4}, "x.tsv: 1 of 2 lines cannot be used, more than data.bad_limit=0.4"),
        ("\n\n", {"bad_limit": 1.0}, "x.tsv has no line that can be used: 2 blank"),
    ],
)  # fmt: skip
def test_too_much_that_is_bad_stops(tmp_path: Path, content: str, settings: dict[str, Any], message: str) -> None:
    data = data_of(tmp_path / "x.tsv", content, **settings)
    with pytest.raises(DataError) as error:
        scan(data, "train", TEXT).check(data)
    assert message in str(error.value)
    assert f"\n  {tmp_path / 'x.tsv'}:" in str(error.value)  # the first few are there too
    lenient = data.model_copy(update={"bad_lines": "skip", "bad_limit": 1.0})
    if "no line" not in message:
        scan(lenient, "train", TEXT).check(lenient)


def test_targets_of_a_number_are_numbers(tmp_path: Path) -> None:
    data = data_of(tmp_path / "x.tsv", "a\t1\nb\t-2.5e3\nc\tmany\nd\tnan\ne\t\n", bad_limit=1.0)
    report = scan(data, "train", sides_of("text", "number"))
    assert dict(report.counts) == {"malformed": 2, "blank": 1}
    assert "x.tsv:3 has a target that is no number: it should be a number, but 'many' is none" in str(report.describe())
    assert scan(data, "train", sides_of("text", "label")).bad == 1


def test_plain_text_has_no_source_to_be_blank(tmp_path: Path) -> None:
    data = data_of(tmp_path / "x.txt", "a\n\nb\n")
    assert dict(scan(data, "train", sides_of("none")).counts) == {"blank": 1}


def test_pictures_are_opened(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(256, size=(64, 64, 3), dtype=np.uint8)
    for name in ("good.png", "good.jpg", "good.gif"):
        Image.fromarray(pixels).save(tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name.replace("good", "cut")).write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no picture")
    names = ["good.png", "good.jpg", "good.gif", "cut.png", "cut.jpg", "cut.gif", "text.png", "gone.png", "cut.png", ""]
    lines = "".join(json.dumps({"source": name, "target": "a thing"}) + "\n" for name in names)
    data = data_of(tmp_path / "x.jsonl", lines, bad_limit=1.0)
    images = sides_of("image")
    report = scan(data, "train", images)
    assert dict(report.counts) == {"unreadable": 6, "blank": 1}
    assert "10 lines: 6 with a file that cannot be read, 1 blank" in str(report.describe())
    assert [x.source for x in usable_examples(data, "train", images, lambda bad: None)] == [
        str(tmp_path / name) for name in names[:3]
    ]
    assert f"x.jsonl:4 names what is no picture: {tmp_path / 'cut.png'} cannot be read" in str(report.describe())


def test_each_of_several_sources_is_looked_at(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "good.png")
    rows = ["good.png\ta", "good.png\t ", "gone.png\ta", "\ta", "good.png"]
    data = data_of(tmp_path / "x.tsv", "".join(f"{row}\tb\n" for row in rows), bad_limit=1.0)
    report = scan(data, "train", sides_of(["image", "text"]))
    assert (report.lines, dict(report.counts)) == (5, {"blank": 2, "unreadable": 1, "malformed": 1})
    told = str(report.describe())
    assert "x.tsv:2 has an empty source" in told
    assert "x.tsv:3 names what is no picture: no picture" in told
    assert "x.tsv:5 has 2 columns, so no column 3 for the target" in told


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("long", "raise max_length of source and target, or data.bad_limit"),
        ("malformed", "check source.column and target.column, or raise data.bad_limit"),
    ],
)
def test_what_would_help_against_most_of_them_is_said(kind: Any, advice: str) -> None:
    report = Report("x.tsv", 10)
    for number in range(5):
        report.add(BadLine(f"x.tsv:{number}", kind, "is bad"))
    with pytest.raises(DataError) as error:
        report.check(Data())
    assert advice in str(error.value)


def test_a_report_takes_what_is_found_later(tmp_path: Path) -> None:
    report = Report("x.tsv", 10)
    for number in range(5):
        report.add(BadLine(f"x.tsv:{number}", "long", "has a target of 900 tokens"))
    assert str(report.describe()).splitlines()[0].startswith("x.tsv: left out 5 of 10 lines: 5 too long;")
    assert len(str(report.describe()).splitlines()) == 4
    with pytest.raises(DataError, match="5 of 10 lines cannot be used, more than"):
        report.check(Data())


def test_what_concerns_all_of_a_split_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the config names no data\.test"):
        scan(Data(), "test", TEXT)
    with pytest.raises(DataError, match="no file"):
        scan(Data(train=str(tmp_path / "gone.tsv")), "train", TEXT)
    (tmp_path / "x").write_text("a\nb\n")
    (tmp_path / "y").write_text("a\n")
    with pytest.raises(DataError, match="ends after line 1 but"):
        scan(Data(train=[str(tmp_path / "x"), str(tmp_path / "y")]), "train", TEXT)


@pytest.mark.parametrize("heavy", ["torch", "PIL", "sentencepiece"])
def test_scanning_text_is_light(heavy: str) -> None:
    code = f"import regard.data.scan, sys; print('{heavy}' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_picture_is_looked_at_again_when_it_has_changed(tmp_path: Path) -> None:
    """Both where it has just been written and where it has lain there for a while."""
    images, path = sides_of("image"), tmp_path / "a.png"
    data = data_of(tmp_path / "x.jsonl", json.dumps({"source": "a.png", "target": "a thing"}) + "\n", bad_limit=1.0)

    def bad() -> int:
        return scan(data, "train", images).bad

    assert bad() == 1
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    whole = path.read_bytes()
    assert bad() == 0
    for age in (0, 100):
        for content, expected in ((whole[:-20], 1), (whole, 0)):
            path.write_bytes(content)
            os.utime(path, (path.stat().st_mtime - age,) * 2)
            assert [bad(), bad()] == [expected, expected]
