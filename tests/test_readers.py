"""Layouts of pictures and recordings: what is read, what is said of what cannot be, and what a digest sees."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard.data.examples import Example, data_content, read_examples, read_files
from regard.data.lines import BadLine
from regard.data.modalities.sounds import read_sound
from regard.data.readers import json_stream
from regard.data.readers.members import field_digest, open_field, read_member, split_member, split_span
from regard.data.readers.reader import FORMATS
from regard.data.scan import scan
from regard.data_settings import Data
from regard.errors import DataError
from tests.conftest import FULL
from tests.toy import sides_of

CAPTIONS = {"a.jpg": ["a cat", "one cat"], "b.jpg": ["a dog"], "c.jpg": ["two birds", "birds"]}


def picture(shade: int = 0, ending: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 2 * shade, 100)).save(file, ending)
    return file.getvalue()


def pictures(folder: Path, names: Sequence[str] = tuple(CAPTIONS)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(picture(number))


def read(files: Any, target: str = "text", source: Any = "image", **data: Any) -> tuple[list[Example], list[BadLine]]:
    bad: list[BadLine] = []
    return list(read_files(files, sides_of(source, target, data=data).form, bad.append)), bad


def pairs(found: Sequence[Example]) -> list[tuple[str, str]]:
    """The last part of each source, and the target."""
    return [(x.source.rpartition("::")[2].rpartition("/")[2], x.target) for x in found]


ALL = [(name, text) for name, texts in CAPTIONS.items() for text in texts]


# Pictures with captions


def coco(folder: Path, annotations: Any = None, **more: Any) -> Path:
    """A file of captions, of which those of one picture do not stand together."""
    images = [{"id": i, "file_name": name, "width": 8} for i, name in enumerate(CAPTIONS)]
    made = [{"image_id": i, "id": n, "caption": texts[n]} for n in (0, 1) for i, texts in enumerate(CAPTIONS.values())
            if n < len(texts)]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "captions_train2014.json"
    content = {"info": {"year": 2014}, **more, "images": images, "licenses": [], "annotations": annotations or made}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("place", ["annotations", "annotations/images", "train2014", "elsewhere"])
def test_coco_captions_and_where_their_pictures_may_be(tmp_path: Path, place: str) -> None:
    pictures(tmp_path / place)
    path = coco(tmp_path / "annotations")
    root = {"root": str(tmp_path / place)} if place == "elsewhere" else {}
    found, bad = read(str(path), **root)
    assert sorted(pairs(found)) == sorted(ALL)
    assert not bad
    assert pairs(found)[:2] == [("a.jpg", "a cat"), ("b.jpg", "a dog")]
    assert found[1].place == f"{path}:annotations[1]"
    assert all(Path(x.source).is_file() for x in found)


def test_what_is_wrong_with_coco_captions_is_named(tmp_path: Path) -> None:
    pictures(tmp_path)
    odd = [{"image_id": 0}, {"image_id": 9, "caption": "x"}, [], {"image_id": [], "caption": "x"},
           {"image_id": 1, "caption": "a\nb"}, {"image_id": 1, "caption": "\ud800"}]  # fmt: skip
    found, bad = read(str(coco(tmp_path, odd)))
    assert pairs(found) == [("b.jpg", "a b")]
    assert [x.place.rpartition(":")[2] for x in bad] == [f"annotations[{i}]" for i in (0, 1, 2, 3, 5)]
    assert "has no 'caption'" in str(bad[0])
    assert "names picture 9, which is not among 'images'" in str(bad[1])
    with pytest.raises(BadLine, match=r"annotations\[0\] has no 'caption'"):
        list(read_files(str(coco(tmp_path, odd)), sides_of("image").form))
    for name in CAPTIONS:
        (tmp_path / name).unlink()
    with pytest.raises(DataError, match=r"names pictures such as a.jpg, and they are not in .*; set data.root"):
        read(str(coco(tmp_path)))
    for text, what in (
        ("[1]", "'{' is wanted before"), ("{}", "no 'images'"), ('{"images": [', "is not JSON"),
        ('{"images": [{"id": 1, "file_name": "a.jpg"}] 3', "'}' is wanted before '3'"), ("", "'{' is wanted"),
        ('{"images": [{"id": 1, "file_name": "a.jpg"}]}', "no 'annotations'"), ("\xff", "UTF-8"),
    ):  # fmt: skip
        (tmp_path / "x.json").write_bytes(text.encode("latin1"))
        pictures(tmp_path)
        with pytest.raises(DataError, match=what):
            read(str(tmp_path / "x.json"))


@pytest.mark.parametrize("chunk", [1, 3, 10**6])
def test_a_json_list_is_read_an_element_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    value = {"a": [1, {"b": [2]}], "x": [12, -3.5e2, 'é]\\"', None, True, {"y": [1, 2]}, []], "z": 1}
    for name, indent in (("x.json", None), ("y.json.gz", 2)):
        raw = json.dumps(value, indent=indent).encode()
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
        assert list(json_stream.elements(tmp_path / name, "x")) == list(enumerate(value["x"]))  # type: ignore[arg-type]
        assert list(json_stream.elements(tmp_path / name, "no")) == []


def test_a_long_json_list_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", 2**14)
    monkeypatch.setattr(json_stream, "LONGEST", 2**16)
    with (tmp_path / "x.json").open("w") as file:
        file.write('{"x": [' + ",".join(json.dumps({"id": i, "text": "word " * 20}) for i in range(8000)) + "]}")
    tracemalloc.start()
    assert sum(1 for _ in json_stream.elements(tmp_path / "x.json", "x")) == 8000
    assert tracemalloc.get_traced_memory()[1] < 2**18 < (tmp_path / "x.json").stat().st_size / 3
    tracemalloc.stop()
    (tmp_path / "x.json").write_text('{"x": ["' + "a" * (4 * json_stream.LONGEST))
    with pytest.raises(DataError, match="no JSON, or a value of more than"):
        list(json_stream.elements(tmp_path / "x.json", "x"))


def flickr(folder: Path) -> str:
    lines = [f"{name}#{i}\t{text}\n" for name, texts in CAPTIONS.items() for i, text in enumerate(texts)]
    (folder / "x.token.txt").write_text("".join(lines))
    return str(folder / "x.token.txt")


def test_a_flickr_token_file_and_a_list_of_names(tmp_path: Path) -> None:
    pictures(tmp_path / "Flicker8k_Dataset")
    found, bad = read(flickr(tmp_path))
    assert pairs(found) == ALL
    assert not bad
    assert found[2].place == f"{tmp_path}/x.token.txt:3"
    (tmp_path / "names.txt").write_text("c.jpg\nb.jpg\nnone.jpg\n")
    some, _ = read([flickr(tmp_path), str(tmp_path / "names.txt")])
    assert pairs(some) == ALL[2:]
    with (tmp_path / "x.token.txt").open("ab") as file:
        file.write(b"no caption\n\n\xff.jpg#0\tx\nd.jpg#0\tgone\n")
    found, bad = read(str(tmp_path / "x.token.txt"))
    assert pairs(found) == [*ALL, ("d.jpg", "gone")]
    assert [(x.place.rpartition(":")[2], x.kind) for x in bad] == [
        ("6", "malformed"), ("7", "blank"), ("8", "undecodable"),
    ]  # fmt: skip
    report = scan(Data(train=str(tmp_path / "x.token.txt")), "train", sides_of("image"))
    assert report.lines == 9
    assert report.counts["unreadable"] == 1
    assert "d.jpg" in str(report.first["unreadable"][0])


def test_pictures_are_where_most_of_them_are_and_names_may_be_absolute(tmp_path: Path) -> None:
    """One picture that stands elsewhere too does not say where all are."""
    pictures(tmp_path / "Flicker8k_Dataset")
    pictures(tmp_path, ["b.jpg"])
    found, _ = read(flickr(tmp_path))
    assert {Path(x.source).parent for x in found} == {tmp_path / "Flicker8k_Dataset"}
    pictures(tmp_path / "train2014")
    found, _ = read(str(coco(tmp_path)))
    assert {Path(x.source).parent for x in found} == {tmp_path / "train2014"}
    away = str(tmp_path / "train2014" / "a.jpg")
    (tmp_path / "x.token.txt").write_text(f"{away}#0\ta cat\nb.jpg#0\ta dog\n")
    assert read(str(tmp_path / "x.token.txt"))[0][0].source == away
    path = coco(tmp_path)
    path.write_text(path.read_text().replace('"a.jpg"', json.dumps(away)))
    assert {x.source for x in read(str(path))[0]} == {str(tmp_path / "train2014" / name) for name in CAPTIONS}


# Pictures with labels, and shards


def test_one_folder_a_label(tmp_path: Path) -> None:
    for label in ("dog", "cat"):
        pictures(tmp_path / label, ["2.jpg", "1.jpg", ".hidden"])
    (tmp_path / "README").write_text("x")
    found, _ = read(str(tmp_path), "label")
    assert pairs(found) == [("1.jpg", "cat"), ("2.jpg", "cat"), ("1.jpg", "dog"), ("2.jpg", "dog")]
    assert found[0].place == f"{tmp_path}/cat/1.jpg"
    with pytest.raises(DataError, match=r"has one source, a picture or a recording, and source.kind is text"):
        read(str(tmp_path), "label", "text")
    with pytest.raises(DataError, match="holds no folders; each label needs one"):
        read(str(tmp_path / "cat"), "label", format="folders")


def test_links_that_lead_nowhere_and_names_that_are_no_text(tmp_path: Path) -> None:
    """A link to itself is no label; a name of bytes that are not UTF-8 is none either, but may be a picture's."""
    for label in ("cat", "dog", os.fsdecode(b"\xff")):
        pictures(tmp_path / label, [os.fsdecode(b"\xe9.jpg")])
    for name in ("loop", "dog/loop.jpg"):
        (tmp_path / name).symlink_to("loop" if name == "loop" else "loop.jpg")
    report = scan(Data(train=str(tmp_path)), "train", sides_of("image", "label"))
    assert (report.lines, report.bad) == (4, 2)
    assert str(report.first["undecodable"][0]).endswith("has the target '\\udcff', which is not UTF-8 text; rename it")
    assert "Too many levels of symbolic links" in str(report.first["unreadable"][0])
    form = sides_of("image", "label").form
    assert data_content(str(tmp_path), form) == data_content(str(tmp_path), form)
    (tmp_path / "none").mkdir()
    with pytest.raises(
        DataError, match=r"cannot tell how to read the folder .*none; it should hold folders, one a label"
    ):
        read(str(tmp_path / "none"), "label")


def npz(path: Path, names: Sequence[str] = tuple(CAPTIONS), **arrays: Any) -> str:
    files = [picture(i) for i in range(len(CAPTIONS))]
    offsets = np.cumsum([0, *map(len, files)])
    named: dict[str, Any] = {"names": np.array(names)} if names else {}
    np.savez(path, data=np.frombuffer(b"".join(files), np.uint8), offsets=offsets, **named, **arrays)
    return str(path)


def test_shards_of_encoded_pictures(tmp_path: Path) -> None:
    rows = np.array([["a cat", "one cat"], ["a dog", ""], ["two birds", "birds"]])
    found, _ = read(npz(tmp_path / "x.npz", captions=rows))
    assert pairs(found) == ALL
    assert found[0].source == f"{tmp_path}/x.npz::a.jpg"
    assert found[0].place == f"{tmp_path}/x.npz:a.jpg"
    assert read_member(tmp_path / "x.npz", "c.jpg") == picture(2)
    shards = [npz(tmp_path / f"{i}.npz", names=(), labels=np.array(x)) for i, x in enumerate(([1, 0, 1], [b"u"] * 3))]
    found, _ = read(shards, "label")
    assert pairs(found) == [("0", "1"), ("1", "0"), ("2", "1"), ("0", "u"), ("1", "u"), ("2", "u")]
    assert read_member(tmp_path / "0.npz", "1") == picture(1)
    classes, _ = read(npz(tmp_path / "0.npz", labels=np.array([1, 0, 1]), classes=np.array(["no", "yes"])), "label")
    assert pairs(classes) == [("a.jpg", "yes"), ("b.jpg", "no"), ("c.jpg", "yes")]
    # Pictures of captions that stand elsewhere.
    found, _ = read(flickr(tmp_path), root=npz(tmp_path / "x.npz"))
    assert pairs(found) == ALL
    sides = sides_of({"kind": "image", "size": 8}, data={"root": str(tmp_path / "x.npz")})
    (pixels,) = sides.source.encode_many([found[-1].source])
    assert pixels.reshape(8, 8, 3)[0, 0].tolist() == pytest.approx([2, 4, 100], abs=3)


def test_what_is_wrong_with_a_shard_is_named(tmp_path: Path) -> None:
    path, bytes_ = tmp_path / "x.npz", np.zeros(10, np.uint8)

    def refused(what: str, target: str = "label", **arrays: Any) -> None:
        np.savez(path, **arrays)
        with pytest.raises(DataError, match=what) as caught:
            read(str(path), target)
        assert str(path) in str(caught.value)

    whole: dict[str, Any] = {"data": bytes_, "offsets": np.array([0, 4, 10])}
    refused("has the arrays x; a shard needs 'data'", x=bytes_)
    refused("neither 'labels' nor 'captions'", **whole)
    refused("has 3 labels or captions for 2 files", **whole, labels=np.zeros(3, int))
    refused("labels from 0 to 1, and 1 classes", **whole, labels=np.array([0, 1]), classes=np.array(["a"]))
    refused("labels from -1 to 0, and 1 classes", **whole, labels=np.array([0, -1]), classes=np.array(["a"]))
    refused(r"'classes' \(1, 1\); a row of names", **whole, labels=np.array([0, 0]), classes=np.array([["a"]]))
    refused(r"'labels' \(\) of <U1; a text or number a file", **whole, labels=np.array("a"))
    refused(r"'labels' \(2, 1, 1\) of int64; a text or", **whole, labels=np.zeros((2, 1, 1), int))
    refused(r"'labels' \(2,\) of datetime64", **whole, labels=np.zeros(2, "datetime64[D]"))
    refused("1 names for 2 files", **whole, labels=np.zeros(2, int), names=np.array(["a"]))
    refused("should rise from 0 to 10", data=bytes_, offsets=np.array([0, 11]), labels=np.zeros(1, int))
    refused("should rise from 0 to 10", data=bytes_, offsets=np.array([4, 0, 10]), labels=np.zeros(2, int))
    refused("should be whole numbers", data=bytes_, offsets=np.array([0.0, 1.0]), labels=np.zeros(1, int))
    refused(r"should be bytes in a row \(uint8\)", data=bytes_.astype(int), offsets=np.array([0]), labels=bytes_)
    refused("as Python objects, which are not read", **whole, labels=np.array([[1], "a"], dtype=object))
    np.savez_compressed(path, **whole, labels=np.zeros(2, int))
    with pytest.raises(DataError, match=r"is compressed, so that no file in it can be found; write it with np.savez"):
        read(str(path), "label")
    path.write_bytes(b"no zip file")
    with pytest.raises(DataError, match="cannot be read"):
        read(str(path), "label")
    _, bad = read(npz(path, labels=np.array(["\ud800", "b", "c"])), "label")
    assert [str(x) for x in bad] == [f"{path}:a.jpg has the target '\\ud800', which is not UTF-8 text; rename it"]
    with pytest.raises(DataError, match=r"holds no 'z.jpg'; it has 3 members"):
        read_member(Path(npz(path)), "z.jpg")


def tar(path: Path, members: Sequence[tuple[str, bytes]]) -> str:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return str(path)


def test_webdataset_shards(tmp_path: Path) -> None:
    one = [("./0001.jpg", picture(1)), ("./0001.txt", b"a cat\n"), ("./0001.cls", b"3"), ("./0002.png", b"x"),
           ("./0002.json", b'{"label": 4, "caption": "a dog", "source2": "what?"}'), ("./__meta__", b"")]  # fmt: skip
    path = tar(tmp_path / "0.tar", one)
    found, bad = read(path)
    assert pairs(found) == [("0001.jpg", "a cat"), ("0002.png", "a dog")]
    assert not bad
    assert found[0].source == f"{tmp_path}/0.tar::0001.jpg"
    assert found[1].place == f"{tmp_path}/0.tar:0002"
    assert read_member(tmp_path / "0.tar", "0001.jpg") == read_member(tmp_path / "0.tar", "./0001.jpg") == picture(1)
    assert [x.target for x in read(path, "label")[0]] == ["3", "a dog"]
    two = tar(tmp_path / "1.tar", [("0001.jpg", b""), ("0001.json", b'{"label": 4}')])
    assert [x.target for x in read(str(tmp_path), "label")[0]] == ["3", "a dog", "4"]
    assert [x.target for x in read([two, path])[0]] == ["4", "a cat", "a dog"]
    # Columns are endings of members, or keys of the JSON.
    form = sides_of(["image", {"kind": "text", "column": "source2"}], {"kind": "text", "column": "label"}).form
    heard: list[BadLine] = []
    (only,) = read_files(path, form, heard.append)
    assert (only.source, only.target) == ((f"{tmp_path}/0.tar::0002.png", "what?"), "4")
    assert "has no .source2; it has: jpg, txt, cls" in str(heard[0])


def test_a_name_that_recurs_in_an_archive_is_refused(tmp_path: Path) -> None:
    """It does not say which file is meant, and the last would be read for all."""
    path = npz(tmp_path / "x.npz", ["a", "b", "./a"], labels=np.array([1, 2, 3]))
    twice = [("1.jpg", picture(1)), ("1.cls", b"1"), ("1.jpg", picture(2)), ("1.cls", b"2"), ("2.jpg", picture(3)),
             ("2.cls", b"3"), ("3.jpg", picture(1)), ("3.cls", b"1"), ("3.cls", b"2")]  # fmt: skip
    for files, good, name in ((path, 1, "a"), (tar(tmp_path / "x.tar", twice), 2, "1.jpg")):
        report = scan(Data(train=files), "train", sides_of("image", "label"))
        assert (report.lines - report.bad, report.counts["unreadable"]) == (good, 2)
        assert f"several files in it are called '{name}', so that the name" in str(report.first["unreadable"][0])
    assert "no file that could be a source; it has: cls" in str(report.first["malformed"][0])


def test_a_label_that_is_no_number_is_named(tmp_path: Path) -> None:
    found, bad = read(npz(tmp_path / "x.npz", labels=np.array([1.5, np.nan, -np.inf])), "label")
    assert pairs(found) == [("a.jpg", "1.5")]
    assert [str(x).rpartition("/")[2] for x in bad] == [
        "x.npz:b.jpg has the label nan, which is no number", "x.npz:c.jpg has the label -inf, which is no number",
    ]  # fmt: skip


def test_odd_and_hostile_tar_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names lead nowhere: what a field names is looked up in the archive, and nothing is unpacked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.txt").write_text("secret")
    names = ["../../evil.jpg", "/etc/passwd.jpg", "a/../../b.jpg", "x::y.jpg", "z\n1.jpg"]
    members = [x for name in names for x in ((name, picture()), (name.replace(".jpg", ".txt"), b"text"))]
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for kind, name in ((tarfile.SYMTYPE, "link.txt"), (tarfile.LNKTYPE, "hard.txt")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, str(tmp_path / "secret.txt")
            archive.addfile(info)
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    before = sorted(tmp_path.rglob("*"))
    found, bad = read(str(tmp_path / "x.tar"))
    assert [x.target for x in found] == ["text"] * len(names)
    assert not bad
    for example in found:
        inside = split_member(example.source)
        assert inside is not None
        assert read_member(*inside) == picture()
    for name in ("link.txt", "hard.txt", "secret.txt", str(tmp_path / "secret.txt")):
        with pytest.raises(DataError, match="holds no"):
            read_member(tmp_path / "x.tar", name)
    assert sorted(tmp_path.rglob("*")) == before
    short = [("1.txt", b"x"), ("2.jpg", b""), ("3.jpg", b""), ("3.json", b"["), ("4.jpg", b""), ("4.txt", b"\xff"),
             ("5.jpg", b""), ("5.json", b"[1]"), ("6.jpg", b""), ("6.txt", b"a" * (2**20 + 1))]  # fmt: skip
    found, bad = read(tar(tmp_path / "x.tar", short))
    assert not found
    wanted = ["no file that could be a source; it has: txt", "has no .txt, .cls or .json; it has: jpg", ".json that is",
              "is not UTF-8", "should be an object", "more than 1,048,576 bytes"]  # fmt: skip
    assert [x.place for x in bad] == [f"{tmp_path}/x.tar:{i}" for i in range(1, 7)]
    for what, one in zip(wanted, bad, strict=True):
        assert what in str(one)


def test_cut_off_damaged_and_compressed_tar_files_stop(tmp_path: Path) -> None:
    path = Path(tar(tmp_path / "x.tar", [x for i in "12345" for x in ((f"{i}.jpg", picture()), (f"{i}.txt", b"text"))]))
    whole = path.read_bytes()
    for content, what in (
        (whole[:5000], r"x.tar cannot be read \(unexpected end of data\); make or download it again \(after 1\)"),
        (whole[:4096] + b"\xff" * 512 + whole[4608:], r"x.tar is damaged at byte 4,096"),
        (b"nonsense" * 1000, "cannot be read as a tar file"),
        (gzip.compress(whole), "is compressed; gunzip it first"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=what):
            read(str(path))


def test_a_member_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.tar"
    info = tarfile.TarInfo("1.jpg")
    info.size = 2**40
    path.write_bytes(info.tobuf())
    with pytest.raises(DataError, match="cannot be read"):
        read_member(path, "1.jpg")
    tar(path, [("1.jpg", b"12345")])
    monkeypatch.setattr("regard.data.readers.members.LARGEST", 4)
    with pytest.raises(DataError, match=r"x.tar::1.jpg has 5 bytes, more than 4"):
        read_member(path, "1.jpg")
    with pytest.raises(DataError, match="no archive"):
        read_member(tmp_path / "y.tar", "1.jpg")
    assert open_field("a/b.jpg") == Path("a/b.jpg")


# Recordings


def kaldi(folder: Path, **files: str) -> str:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return str(folder)


def test_a_kaldi_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    found, bad = read(kaldi(tmp_path, wav_scp="u1 a.wav\nu2  /x/b c.wav\n", text="u1 HELLO  YOU\nu2 BYE\nu3 WHO\n\n"))
    assert [(x.source, x.target) for x in found] == [(f"{tmp_path}/a.wav", "HELLO  YOU"), ("/x/b c.wav", "BYE")]
    assert found[1].place == f"{tmp_path}/text:2"
    assert [x.kind for x in bad] == ["malformed", "blank"]
    assert "text:3 is of 'u3', which wav.scp does not name" in str(bad[0])
    found, _ = read(str(tmp_path), root=str(tmp_path / "other"))
    assert found[0].source == f"{tmp_path}/other/a.wav"
    spans = "s1 u1 0.5 2.25\ns2 u1 3 2\ns3 u9 0 1\n"
    found, bad = read(kaldi(tmp_path, segments=spans, text="s1 ONE\ns2 TWO\ns3 THREE\ns4 FOUR\n"))
    (only,) = found
    assert split_span(only.source) == (f"{tmp_path}/a.wav", 0.5, 2.25)
    assert "segments should say recording, start and end in seconds, not 'u1 3 2'" in str(bad[0])
    assert "'u9', which wav.scp does not name" in str(bad[1])
    assert "not ''" in str(bad[2])


def test_commands_of_wav_scp_are_not_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    found, bad = read(
        kaldi(tmp_path, wav_scp=f"u1 touch {made} |\nu2 cat {made}|\nu3 a.wav\n", text="u1 A\nu2 B\nu3 C\n")
    )
    assert [x.target for x in found] == ["C"]
    assert not made.exists()
    for one in bad:
        assert "of wav.scp, and commands in data are not run; write its output to a file and name that" in str(one)
    assert f"needs the command 'touch {made}"[:60] in str(bad[0])


@pytest.mark.parametrize("above", ["", "dev-clean"])
def test_librispeech(tmp_path: Path, above: str) -> None:
    for speaker, chapter in (("84", "121123"), ("9", "7")):
        folder = tmp_path / above / speaker / chapter
        folder.mkdir(parents=True)
        name = f"{speaker}-{chapter}"
        (folder / f"{name}.trans.txt").write_text(f"{name}-0000 GO DO\n{name}-0001 BYE\n" + "\n" * (speaker == "9"))
        (folder / f"{name}-0000.flac").touch()
    found, bad = read(str(tmp_path))
    assert pairs(found)[:3] == [
        ("84-121123-0000.flac", "GO DO"),
        ("84-121123-0001.flac", "BYE"),
        ("9-7-0000.flac", "GO DO"),
    ]
    assert found[0].place.endswith("84/121123/84-121123.trans.txt:1")
    assert [x.kind for x in bad] == ["blank"]
    with pytest.raises(DataError, match=r"empty holds no .trans.txt files, as LibriSpeech does"):
        read(_empty(tmp_path), format="librispeech")


def _empty(folder: Path) -> str:
    (folder / "empty").mkdir()
    return str(folder / "empty")


def test_spans_and_members_are_heard(tmp_path: Path) -> None:
    """A part of a recording is those samples of it, and a recording in a tar file is the recording."""
    samples = np.random.default_rng(0).integers(-9000, 9000, 16000).astype(np.int16)
    soundfile.write(tmp_path / "a.flac", samples, 8000)
    tar(tmp_path / "x.tar", [("u.flac", (tmp_path / "a.flac").read_bytes()), ("u.txt", b"HELLO")])
    whole = str(tmp_path / "a.flac")
    np.testing.assert_array_equal(read_sound(f"{whole}#t=0.25,1.5", 8000), samples[2000:12000])
    np.testing.assert_array_equal(read_sound(f"{whole}#t=1.5,9", 8000), samples[12000:])
    (example,) = read(str(tmp_path / "x.tar"), source="audio")[0]
    np.testing.assert_array_equal(read_sound(example.source, 8000), samples)
    np.testing.assert_array_equal(read_sound(f"{example.source}#t=1,2", 8000), samples[8000:])
    with pytest.raises(DataError, match="the recording lasts 2 seconds, and that span is not in it"):
        read_sound(f"{whole}#t=3,4", 8000)
    kaldi(tmp_path, wav_scp="r a.flac\n", segments="s r 0.5 1\n", text="s YES\n")
    (example,) = read(str(tmp_path), source="audio", format="kaldi")[0]
    np.testing.assert_array_equal(read_sound(example.source, 8000), samples[4000:8000])


# What all of them share


def test_formats_are_named_in_the_settings() -> None:
    names = get_args(get_args(Data.model_fields["format"].annotation)[0])
    assert sorted(names) == sorted(FORMATS)


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    """A folder of labels one of which is called like Kaldi's list."""
    pictures(tmp_path / "cat", ["1.jpg"])
    (tmp_path / "wav.scp").write_text("u a.wav\n")
    (tmp_path / "text").write_text("u A\n")
    assert pairs(read(str(tmp_path), "label")[0]) == [("a.wav", "A")]
    assert pairs(read(str(tmp_path), "label", format="folders")[0]) == [("1.jpg", "cat")]
    with pytest.raises(DataError, match="'folders' is read from one path, not 2"):
        read([str(tmp_path), str(tmp_path)], "label", format="folders")
    with pytest.raises(DataError, match=r"is a folder|cannot tell how to read"):
        read(_empty(tmp_path / "cat"), "label")
    sources: Any = ["image", "text"]
    with pytest.raises(DataError, match=r"source.kind is image and text; set source.kind .*, or write a .jsonl file"):
        read(str(tmp_path), "label", sources)


def test_tables_find_their_files_under_a_root(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a.jpg\ta cat\n")
    assert read(str(tmp_path / "x.tsv"))[0][0].source == str(tmp_path / "a.jpg")
    assert read(str(tmp_path / "x.tsv"), root="/pictures")[0][0].source == "/pictures/a.jpg"
    (tmp_path / "y.tsv").write_text("x.npz::b.jpg\ta dog\n")
    npz(tmp_path / "x.npz")
    (example,) = read(str(tmp_path / "y.tsv"))[0]
    assert sides_of("image").find_fault(example) is None
    (tmp_path / "y.tsv").write_text("x.npz::z.jpg\ta dog\n")
    (example,) = read(str(tmp_path / "y.tsv"))[0]
    assert "x.npz holds no 'z.jpg'" in str(sides_of("image").find_fault(example))


def labelled(folder: Path) -> str:
    for label in "ab":
        pictures(folder / label)
    return str(folder)


LAYOUTS: dict[str, Callable[[Path], str]] = {
    "coco": lambda folder: str(coco(folder)),
    "flickr": flickr,
    "folders": labelled,
    "npz": lambda folder: npz(folder / "x.npz", labels=np.array([1, 2, 3])),
    "tar": lambda folder: tar(folder / "x.tar", [("a.jpg", picture(1)), ("a.txt", b"3")]),
    "kaldi": lambda folder: kaldi(folder, wav_scp="a a.jpg\nb b.jpg\n", text="a A\nb B\n"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_digest_follows_the_content(tmp_path: Path, layout: str) -> None:
    """It is the same in another place and at another time, and another where a picture, a target or their order is."""

    def digest(folder: Path) -> str:
        form = sides_of("image", data={"root": str(folder)} if layout in ("coco", "flickr") else {}).form
        return data_content(paths[folder], form)

    paths = {}
    for name in ("x", "y"):
        pictures(tmp_path / name) if layout != "folders" else None
        (tmp_path / name).mkdir(exist_ok=True)
        paths[tmp_path / name] = LAYOUTS[layout](tmp_path / name)
        for file in (tmp_path / name).rglob("*"):
            os.utime(file, (10**9, 10**9 + (name == "y")))
    first = digest(tmp_path / "x")
    assert digest(tmp_path / "y") == first
    changed = {"npz": "x.npz", "tar": "x.tar", "folders": "a/a.jpg"}.get(layout, "a.jpg")
    content = bytearray((tmp_path / "y" / changed).read_bytes())
    if layout == "npz":
        npz(tmp_path / "y" / changed, labels=np.array([1, 2, 4]))
    elif layout == "tar":
        tar(tmp_path / "y" / changed, [("a.jpg", picture(1)), ("a.txt", b"4")])
    else:
        content[-10] ^= 255  # of the same size
        (tmp_path / "y" / changed).write_bytes(content)
    assert digest(tmp_path / "y") != first
    if layout == "folders":
        (tmp_path / "x" / "a").rename(tmp_path / "x" / "c")
        assert digest(tmp_path / "x") != first


def test_what_a_field_names_is_told_apart(tmp_path: Path) -> None:
    pictures(tmp_path / "clip")
    assert field_digest(str(tmp_path / "clip" / "a.jpg")) not in (field_digest(f"{tmp_path}/clip/b.jpg"), "missing")
    npz(tmp_path / "x.npz")
    digests = {field_digest(f"{tmp_path}/x.npz::{name}") for name in CAPTIONS}
    assert len(digests) == 3
    sound = str(tmp_path / "clip" / "b.jpg")
    assert len({field_digest(sound), field_digest(f"{sound}#t=0,1"), field_digest(f"{sound}#t=0,2")}) == 3
    os.mkfifo(tmp_path / "pipe")
    for gone in ("none.jpg", "none.tar::a", "none.wav#t=0,1", "x\0", "pipe", "clip"):  # a folder may be anything's
        assert field_digest(str(tmp_path / gone)) == "missing"


def test_read_examples_takes_folders(tmp_path: Path) -> None:
    pictures(tmp_path / "data" / "cat", ["1.jpg"])
    data = Data(train=str(tmp_path / "data"))
    assert pairs(list(read_examples(data, "train", sides_of("image", "label").form))) == [("1.jpg", "cat")]


@pytest.mark.parametrize("name", ["captions_train2014.json", "x.token.txt", "x.npz", "x.tar"])
def test_damaged_files_are_read_or_named(tmp_path: Path, name: str) -> None:
    """Bytes changed, left out or put in at random."""
    pictures(tmp_path)
    coco(tmp_path)
    flickr(tmp_path)
    npz(tmp_path / "x.npz", captions=np.array([["a", "b"], ["c", ""], ["d", "e"]]))
    tar(tmp_path / "x.tar", [x for i in "123" for x in ((f"{i}.jpg", picture()), (f"{i}.txt", b"text"))])
    whole, form, draw = (tmp_path / name).read_bytes(), sides_of("image").form, np.random.default_rng(0)
    said = list[str]()
    for _ in range(1000 if FULL else 60):
        content = bytearray(whole)
        for _ in range(draw.integers(1, 4)):
            low = max(len(content) - 2000, 0) if name == "x.npz" else 0  # the pictures come first
            place = int(draw.integers(low, len(content)))
            content[place : place + int(draw.integers(3))] = draw.bytes(int(draw.integers(3)))
        (tmp_path / name).write_bytes(content)
        try:
            for example in read_files(str(tmp_path / name), form, lambda bad: None):
                form.source.find_fault(example.source)
        except DataError as error:
            said.append(str(error))
    assert all(name in what for what in said)
    assert said or name == "x.token.txt"
