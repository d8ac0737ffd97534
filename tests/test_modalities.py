"""What is given: texts, images, nothing or several of these, from files to numbers; and texts with masked tokens."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
import zlib
from collections import Counter
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image as Picture

from regard.data.batches import Batches, Position
from regard.data.examples import Example, read_files
from regard.data.layouts import Masked, Pairs
from regard.data.marks import BOS, EOS, MARKS, MASK, SEP, Frame
from regard.data.modalities.image import Box, Image
from regard.data.modalities.none import Nothing
from regard.data.modalities.pixels import check_picture
from regard.data.modalities.several import Several
from regard.data.modalities.text import Text, TextSettings
from regard.data.scan import Report
from regard.data.sides import Sides
from regard.data.store import ExampleStore, Store, write_examples
from regard.data.tokenizers.kinds import train_tokenizer
from regard.data.tokenizers.symbols import Bytes, Symbols
from regard.data.tokens import Tokenizer
from regard.data_settings import Data
from regard.errors import ConfigError, DataError
from regard.fingerprint import Fingerprint
from regard.tasks.generating import TextGeneration
from tests.toy import sides_of

BYTES = Bytes()
SIDE, GRID = 16, 4


def pixels(seed: int, side: int = SIDE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(256, size=(side, side, 3), dtype=np.uint8)


def painted(folder: Path, seed: int, side: int = SIDE, name: str = "") -> Path:
    path = folder / (name or f"{seed}.png")
    Picture.fromarray(pixels(seed, side)).save(path)
    return path


def images(size: int = SIDE, halvings: int = 2) -> Image:
    """Images of which a stem makes a grid; of 16 pixels, halved twice, one of 4 x 4."""
    encoder = {"kind": "stem", "stem": {"kind": "convolution", "halvings": halvings}}
    made = sides_of({"kind": "image", "size": size}, model={"encoder": encoder}).source
    assert isinstance(made, Image)
    return made


def words(text: str) -> Tokenizer:
    return train_tokenizer([text], "word", 20)


def text_source(tokenizer: Tokenizer, **framing: Any) -> Text:
    source = Text(TextSettings())
    source.tokenizer = tokenizer
    for name, value in framing.items():
        setattr(source, name, value)
    return source


# Texts and nothing


def test_a_text_is_packed_with_its_end() -> None:
    tokenizer = words("ein Haus am See")
    source, open_ = text_source(tokenizer), text_source(tokenizer, ends=False)
    items = source.encode_many(["ein Haus", "See", ""])
    assert source.pack(items).tolist() == [[*items[0], EOS], [*items[1], EOS], [EOS]]
    assert open_.pack(items).tolist() == [items[0], items[1], []]
    assert source.pieces(items[0]) == ["ein", "Haus", "</s>"]
    assert open_.pieces(items[0]) == ["ein", "Haus"]
    assert source.words(items[0]) == [0, 1, -1]
    assert open_.words(items[0]) == [0, 1]
    assert (source.room(items[0], 2.0), open_.room(items[0], 2.0)) == (16, 14)
    assert (source.places(items[0]), open_.places(items[0])) == (3, 2)
    assert (source.most_places(9), open_.most_places(9)) == (10, 9)
    assert (source.vocabulary, source.dtype, source.shape, source.sampled) == (tokenizer.size, "uint16", (), 0.0)
    assert source.problem([], 3) == "is empty"
    assert source.problem([7, 7, 7], 3) is None
    assert "has 4 tokens, more than search.max_source=3" in str(source.problem([7] * 4, 3))
    assert source.prompt("how it begins") == ""
    assert source.canvas(items[0]) is None
    assert (source.find_fault("a"), source.find_fault(" \t")) == (None, ("blank", "has an empty source"))


def test_texts_that_are_read_as_one_have_marks_between() -> None:
    """Where several are wanted; elsewhere a tab is a blank, and `<sep>` is text."""
    tokenizer = Symbols("char", list(" abcd<sep>"))
    source = text_source(tokenizer, begins=True, several=True)
    a, tabbed, marked, end = source.encode_many(["ab c", "a\tb c", "a <sep> b c", "a\t"])
    assert tabbed == marked == [tokenizer.ids["a"], SEP, *tokenizer.encode("b c")]
    assert end == [tokenizer.ids["a"], SEP]
    assert source.pack([a, tabbed]).tolist() == [[BOS, *a, EOS], [BOS, *tabbed, EOS]]
    assert source.words(tabbed) == [-1, 0, -1, 1, 2, 2, -1]
    assert source.words(end) == [-1, 0, -1, -1]
    assert source.places(tabbed) == len(source.pieces(tabbed)) == len(source.words(tabbed)) == 7
    assert source.pieces(tabbed)[2] == "<sep>"
    plain = text_source(tokenizer)
    assert SEP not in [token for row in plain.encode_many(["a\tb c", "a <sep> b"]) for token in row]


def test_marks_around_a_text_are_those_of_its_model() -> None:
    framed = {
        (True, True, True): sides_of("text", "label"),
        (False, True, False): sides_of("text"),
        (False, False, False): sides_of("text", model={"encoder": {"kind": "none"}}),
        (False, True, True): sides_of({"column": [1, 2]}),
    }
    for (begins, ends, several), sides in framed.items():
        assert isinstance(sides.source, Text)
        assert (sides.source.begins, sides.source.ends, sides.source.several) == (begins, ends, several)
        sides.source.tokenizer = BYTES
        assert sides.source.frame == Frame((BOS,) * begins, (SEP,), (EOS,) * ends)


def test_nothing_leaves_all_to_the_prompt() -> None:
    source = sides_of("none").source
    assert isinstance(source, Nothing)
    items = source.encode_many(["how it begins", ""])
    assert items == [[], []]
    assert source.pack(items).tolist() == [[], []]
    assert source.problem([], 0) is None
    assert (source.pieces([]), source.words([]), source.gold(Example("", "a"))) == ([], [], None)
    assert (source.places([]), source.most_places(9)) == (0, 0)
    assert source.prompt("how it begins") == "how it begins"
    assert source.room([], 1.0) == sys.maxsize


# Images


def test_pictures_are_scanlines_and_come_back_as_they_were(tmp_path: Path) -> None:
    source = images()
    items = source.encode_many([str(painted(tmp_path, seed)) for seed in (1, 2)])
    for item, seed in zip(items, (1, 2), strict=True):
        assert item.shape == (SIDE, 3 * SIDE)
        assert item.dtype == np.uint8
        canvas = source.canvas(item)
        assert canvas is not None
        np.testing.assert_array_equal(canvas.pixels, pixels(seed))
    packed = source.pack(items)
    assert (packed.values.shape, packed.values.dtype) == ((2 * SIDE, 3 * SIDE), torch.uint8)
    assert (packed.lengths.tolist(), packed.longest) == ([SIDE, SIDE], SIDE)
    np.testing.assert_array_equal(packed.values.numpy().reshape(2, SIDE, SIDE, 3)[1], pixels(2))
    assert len(source.pack([])) == 0
    assert (source.shape, source.dtype, source.sampled, source.tokenizer) == ((3 * SIDE,), "uint8", 0.0, None)
    assert source.problem(items[0], 1) is None
    assert (source.places(items[0]), source.most_places(1000)) == (GRID**2, GRID**2)


def test_a_picture_has_a_piece_and_a_word_for_each_cell_row_by_row() -> None:
    source, item = images(12), pixels(1, 12).reshape(12, -1)
    assert source.pieces(item) == ["1,1", "1,2", "1,3", "2,1", "2,2", "2,3", "3,1", "3,2", "3,3"]
    assert source.words(item) == list(range(9))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK", "I;16"])
def test_pictures_of_other_kinds_and_sizes_are_brought_to_one(tmp_path: Path, mode: str) -> None:
    grey = np.full((40, 24), 128, np.uint8)
    if mode == "I;16":
        image = Picture.fromarray(grey.astype(np.uint16) * 257)
    else:
        image = Picture.fromarray(np.repeat(grey[..., None], 3, 2)).convert(mode)
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    image.save(path)
    (item,) = images().encode_many([str(path)])
    assert item.shape == (SIDE, 3 * SIDE)
    assert item.mean() == pytest.approx(128, abs=12)  # of one bit, half of them are white


def test_resizing_keeps_what_is_where(tmp_path: Path) -> None:
    """Twice as large, black but for the top right: the same of the size wanted, but for where they meet."""
    image = np.zeros((2 * SIDE, 2 * SIDE, 3), np.uint8)
    image[:SIDE, SIDE:] = 255
    Picture.fromarray(image).save(tmp_path / "x.png")
    (item,) = images().encode_many([str(tmp_path / "x.png")])
    top, bottom = np.split(item.reshape(SIDE, SIDE, 3).astype(int), 2)
    half = SIDE // 2
    for part, white in ((top[:-3, : half - 3], 0), (top[:-3, half + 3 :], 255), (bottom[3:], 0)):
        assert abs(part - white).max() <= 2


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    source = images()
    with pytest.raises(DataError, match=r"no picture .*gone\.png; in a data file its path is relative to that file"):
        source.encode_many([str(tmp_path / "gone.png")])
    (tmp_path / "x.png").write_text("no picture")
    whole = painted(tmp_path, 1).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    header = whole[12:16] + struct.pack(">II", 60_000, 60_000) + whole[24:29]  # IHDR, of an enormous picture
    (tmp_path / "huge.png").write_bytes(whole[:12] + header + struct.pack(">I", zlib.crc32(header)) + whole[33:])
    header = whole[12:16] + struct.pack(">II", 11_000, 10_000) + whole[24:29]  # what Pillow itself would only warn of
    (tmp_path / "large.png").write_bytes(whole[:12] + header + struct.pack(">I", zlib.crc32(header)) + whole[33:])
    (tmp_path / "x.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    Picture.fromarray(pixels(1)).save(tmp_path / "x.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "x.jpg").read_bytes()[:-40])
    os.mkfifo(tmp_path / "pipe.png")
    names = ("x.png", "cut.png", "huge.png", "large.png", "x.eps", "cut.jpg", "pipe.png", ".", "a\0b", "x" * 300)
    for name in names:
        with pytest.raises(DataError, match="cannot be read as a picture") as error:
            source.encode_many([str(tmp_path / name)])
        assert str(tmp_path / name) in str(error.value)
        with pytest.raises(DataError, match="cannot be read as a picture"):
            check_picture(tmp_path / name)
    with pytest.raises(DataError, match="a picture of 11,000 x 10,000 pixels: that is more than 100,000,000; make it"):
        check_picture(tmp_path / "large.png")


@pytest.mark.parametrize("kind", ["png", "jpg", "tiff", "webp"])
def test_pictures_are_turned_as_their_camera_was_held(tmp_path: Path, kind: str) -> None:
    """Black but for the top right; told to be turned by a right angle, that is the bottom right."""
    image = np.zeros((SIDE, SIDE, 3), np.uint8)
    image[: SIDE // 2, SIDE // 2 :] = 255
    exif = Picture.Exif()
    exif[0x0112] = 6
    Picture.fromarray(image).save(tmp_path / f"x.{kind}", exif=exif)
    (item,) = images().encode_many([str(tmp_path / f"x.{kind}")])
    quarters = item.reshape(2, SIDE // 2, 2, SIDE // 2, 3).mean((1, 3, 4))
    np.testing.assert_allclose(quarters, [[0, 0], [0, 255]], atol=12)


def test_pictures_with_odd_additions_are_read_all_the_same(tmp_path: Path) -> None:
    """EXIF data that are none, colours that are see-through, 16 bits: no warning, and the picture."""
    Picture.fromarray(pixels(1)).save(tmp_path / "exif.png", exif=b"Exif\0\0MM\0*\0\0\0\xff")
    grey = Picture.fromarray(np.full((SIDE, SIDE), 128, np.uint8))
    grey.convert("P").save(tmp_path / "seen.png", transparency=bytes(range(256)))
    grey.save(tmp_path / "one.png", transparency=128)
    Picture.fromarray(np.full((SIDE, SIDE), 128 * 257, np.uint16)).save(tmp_path / "deep.tiff")
    (tmp_path / "deep.pgm").write_bytes(b"P5 16 16 65535\n" + struct.pack(">H", 128 * 257) * SIDE**2)
    source = images()
    np.testing.assert_array_equal(source.encode_many([str(tmp_path / "exif.png")])[0].reshape(SIDE, SIDE, 3), pixels(1))
    for name in ("seen.png", "one.png", "deep.tiff", "deep.pgm"):
        check_picture(tmp_path / name)
        assert (source.encode_many([str(tmp_path / name)])[0] == 128).all(), name


def test_an_exported_model_reads_pictures_as_training_does(tmp_path: Path) -> None:
    from regard.exchange import onnx_runner

    Picture.fromarray(np.full((40, 24), 200 * 257, np.uint16)).save(tmp_path / "x.png")
    runner = object.__new__(onnx_runner.Runner)
    runner.source = images().export()
    item, _ = runner.read(str(tmp_path / "x.png"))
    np.testing.assert_array_equal(np.asarray(item), images().encode_many([str(tmp_path / "x.png")])[0])
    code = (
        "import sys, regard.exchange.onnx_runner, regard.data.scan; print('torch' in sys.modules, 'PIL' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def cells(source: Image, *boxes: Box) -> set[tuple[int, int]]:
    gold = source.gold(Example("p", "a red ball", gold=boxes))
    assert gold is not None
    assert gold.sure == frozenset()
    return set(gold.possible)


def test_boxes_become_the_cells_they_reach_into() -> None:
    source = images()
    assert source.gold(Example("p", "a red ball")) is None
    # the second and third cell of the first row, for words 1 and 2
    assert cells(source, Box(1, 2, 0.3, 0.0, 0.6, 0.2)) == set(product((1, 2), (1, 2)))
    # exactly one cell: edges belong to no neighbour
    assert cells(source, Box(0, 0, 0.25, 0.5, 0.5, 0.75)) == {(9, 0)}
    # all of it, and beyond
    assert cells(source, Box(2, 2, 0.0, 0.0, 1.0, 1.0)) == {(cell, 2) for cell in range(16)}
    assert cells(source, Box(2, 2, -0.5, 0.8, 1.5, 1.5)) == {(cell, 2) for cell in range(12, 16)}
    # several boxes of one word and of others
    both = cells(source, Box(0, 0, 0.0, 0.0, 0.1, 0.1), Box(0, 1, 0.9, 0.9, 1.0, 1.0))
    assert both == {(0, 0), (15, 0), (15, 1)}


def test_boxes_are_read_in_pixels_and_pictures_beside_their_file(tmp_path: Path) -> None:
    record = {
        "source": "in/1.png", "target": "a red ball", "width": 64, "height": 32, "boxes": [[1, 2, 16, 8, 32, 32]],
    }  # fmt: skip
    (tmp_path / "x.jsonl").write_text(json.dumps(record) + "\n")
    (example,) = read_files(str(tmp_path / "x.jsonl"), sides_of("image").form)
    assert example.source == str(tmp_path / "in" / "1.png")
    assert example.gold == (Box(1, 2, 0.25, 0.25, 0.5, 1.0),)
    (tmp_path / "x.tsv").write_text("1.png\ta ball\n")
    (example,) = read_files(str(tmp_path / "x.tsv"), sides_of("image").form)
    assert (example.source, example.target, example.gold) == (str(tmp_path / "1.png"), "a ball", None)
    (tmp_path / "x.jsonl").write_text('{"source": "a", "target": "b"}\n')
    (example,) = read_files(str(tmp_path / "x.jsonl"), sides_of("text").form)
    assert example.source == "a"


@pytest.mark.parametrize(
    "change",
    [
        {"width": None}, {"height": 0}, {"boxes": [[1, 2, 3]]}, {"boxes": 3}, {"boxes": None},
        {"boxes": [[1, 2, "a", 1, 2, 3]]}, {"width": "wide"}, {"boxes": [[0, 0, float("nan"), 1, 2, 2]]},
        {"boxes": [[0, 0, float("inf"), 1, 2, 2]]}, {"width": float("nan")}, {"width": float("inf")}, {"width": -3},
        {"boxes": [[0, 10**9, 1, 1, 2, 2]]}, {"boxes": [[-1, 0, 1, 1, 2, 2]]}, {"boxes": [[2, 1, 1, 1, 2, 2]]},
        {"boxes": [[0, 0, 10**400, 1, 2, 2]]}, {"boxes": [[float("inf"), 0, 1, 1, 2, 2]]},
    ],
)  # fmt: skip
def test_bad_boxes_are_named(tmp_path: Path, change: dict[str, object]) -> None:
    record = {"source": "1.png", "target": "a", "width": 64, "height": 32, "boxes": [[0, 0, 1, 1, 2, 2]], **change}
    record = {key: value for key, value in record.items() if value is not None or key == "boxes"}
    (tmp_path / "x.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError, match=r"x\.jsonl:1 has 'boxes' that should be lists \[first word, last word, left"):
        list(read_files(str(tmp_path / "x.jsonl"), sides_of("image").form))


def stored(folder: Path, examples: list[Example], sides: Sides) -> ExampleStore:
    return write_examples(
        folder, examples, sides, data=Data(bad_lines="error"), report=Report("files"), made_from=Fingerprint({})
    )


def image_sides(size: int = SIDE) -> Sides:
    sides = sides_of({"kind": "image", "size": size})
    sides.use({"tokens": BYTES})
    return sides


def test_images_go_through_store_and_batches(tmp_path: Path) -> None:
    sides = image_sides()
    examples = [Example(str(painted(tmp_path, seed)), "a" * (1 + seed), f"f:{seed}") for seed in range(5)]
    store = stored(tmp_path / "store", examples, sides)
    sources = store.stores[0]
    assert len(store) == 5
    assert sources[3].shape == (SIDE, 3 * SIDE)
    np.testing.assert_array_equal(sources[3].reshape(SIDE, SIDE, 3), pixels(3))
    assert sources.some(np.arange(5)).lengths.tolist() == [SIDE] * 5
    seen = set()
    budgets = [2 * (SIDE + 1)] * 2
    for batch, position in Batches(store, sides, Pairs(sides.source), budgets, seed=1).since(Position()):
        if position.epoch:
            break
        assert len(batch.source) <= 2
        for row, outputs in enumerate(batch.outputs.tolist()):
            number = len(outputs) - 2
            found = batch.source.select(torch.tensor([row])).values.numpy()
            np.testing.assert_array_equal(found.reshape(SIDE, SIDE, 3), pixels(number))
            seen.add(number)
    assert seen == set(range(5))


def test_a_store_holds_elements_of_any_shape(tmp_path: Path) -> None:
    np.arange(24, dtype=np.uint8).tofile(tmp_path / "x.values")
    np.array([0, 1, 1, 4], dtype=np.int64).tofile(tmp_path / "x.offsets")
    store = Store(tmp_path / "x", "uint8", (3, 2))
    assert [store[i].shape for i in range(len(store))] == [(1, 3, 2), (0, 3, 2), (3, 3, 2)]
    assert store[2][0].tolist() == [[6, 7], [8, 9], [10, 11]]
    flat = Store(tmp_path / "x", "uint8")
    assert flat[2].tolist() == [1, 2, 3]
    (tmp_path / "x.values").write_bytes(b"")
    np.array([0, 0], dtype=np.int64).tofile(tmp_path / "x.offsets")
    assert Store(tmp_path / "x", "uint8", (3, 2))[0].shape == (0, 3, 2)


# Plain texts


def write(path: Path, text: str) -> str:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def read_texts(files: str | list[str], column: int | str | None = None) -> list[Example]:
    return list(read_files(files, sides_of("none", {"column": column}).form))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_texts_in_every_form(tmp_path: Path, ending: str) -> None:
    lines = ["eine Zeile", "", "noch eine"]
    plain = write(tmp_path / f"x.txt{ending}", "".join(f"{line}\n" for line in lines))
    named = write(tmp_path / f"plain{ending}", "".join(f"{line}\n" for line in lines))
    table = write(tmp_path / f"x.tsv{ending}", "".join(f"{line}\tother\n" for line in lines))
    records = write(tmp_path / f"x.jsonl{ending}", "".join(json.dumps({"text": line}) + "\n" for line in lines))
    for path in (plain, named, table, records):
        found = list(read_files(path, sides_of("none").form))
        assert [(x.source, x.target) for x in found] == [("", line) for line in lines]
        assert found[2].place == f"{path}:3"


def test_fields_of_texts_can_be_chosen(tmp_path: Path) -> None:
    table = write(tmp_path / "x.tsv", "a\tb\n")
    records = write(tmp_path / "x.jsonl", '{"text": "a", "more": "b"}\n')
    assert [x.target for x in read_texts(table, 2)] == ["b"]
    assert [x.target for x in read_texts(records, "more")] == ["b"]


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("x.tsv", "a\tb\n", 3, "x.tsv:1 has 2 columns, so no column 3 for the target"),
        ("x.tsv", "a\tb\n", "text", "x.tsv:1 names no column 'text'; it names: a, b"),
        ("x.tsv", "a\tb\n", 0, "should be numbers from 1, or names that its first line holds; not [0]"),
        ("x.jsonl", '{"line": "a"}\n', None, "x.jsonl:1 has no 'text' (it has: line)"),
        ("x.jsonl", "[]\n", None, 'x.jsonl:1 should be an object such as {"text": …}, not list'),
        ("x.txt", "", None, "x.txt is empty"),
    ],
)
def test_texts_that_cannot_be_read_are_named(
    tmp_path: Path, name: str, content: str, column: int | str | None, message: str
) -> None:
    with pytest.raises(DataError) as error:
        read_texts(write(tmp_path / name, content), column)
    assert message in str(error.value)


def test_texts_are_one_file() -> None:
    with pytest.raises(DataError, match=r"data needs one \.tsv or \.jsonl file, or one text file; got 2: \['a', 'b'\]"):
        read_texts(["a", "b"])


# Several sources


def image_and_text(**target: Any) -> Sides:
    """An image and a question, each with an encoder of its own."""
    encoders = [{"kind": "stem", "stem": {"kind": "convolution", "halvings": 2}}, {"kind": "gru"}]
    return sides_of(
        [{"kind": "image", "size": SIDE}, {"kind": "text", "tokens": {"kind": "word"}}], target,
        model={"encoder": encoders},
    )  # fmt: skip


def test_several_sources_stand_end_to_end(tmp_path: Path) -> None:
    sides = image_and_text()
    tokenizer = words("wie viele Bälle ?")
    sides.use({"source2": tokenizer, "tokens": BYTES})
    source = sides.source
    assert isinstance(source, Several)
    assert [type(part) for part in source.parts] == [Image, Text]
    fields = [(str(painted(tmp_path, seed)), text) for seed, text in ((1, "wie viele"), (2, "Bälle ?"), (3, ""))]
    items = source.encode_many(fields)
    for item, (seed, text) in zip(items, ((1, "wie viele"), (2, "Bälle ?"), (3, "")), strict=True):
        np.testing.assert_array_equal(item[0].reshape(SIDE, SIDE, 3), pixels(seed))
        assert item[1] == tokenizer.encode(text)
    packed = source.pack(items)
    assert len(packed) == 3
    assert packed.parts[0].values.shape == (3 * SIDE, 3 * SIDE)
    assert packed.parts[1].tolist() == [[*item[1], EOS] for item in items]
    assert packed.lengths.tolist() == [SIDE + 3, SIDE + 3, SIDE + 1]
    assert packed.longest == SIDE
    some = packed.select(torch.tensor([2, 0]))
    assert some.parts[1].tolist() == [[EOS], [*items[0][1], EOS]]
    np.testing.assert_array_equal(some.parts[0].values[:SIDE].numpy().reshape(SIDE, SIDE, 3), pixels(3))
    assert source.length(items[0]) == SIDE + 2
    assert source.places(items[0]) == GRID**2 + 3
    assert source.pieces(items[0]) == [*(f"{i},{j}" for i, j in product("1234", repeat=2)), "wie", "viele", "</s>"]
    assert source.words(items[0]) == [*range(GRID**2), GRID**2, GRID**2 + 1, -1]
    assert source.most_places(9) == GRID**2  # of any of them
    assert source.most_places(100) == 101
    assert source.room(items[0], 2.0) == sys.maxsize  # an image sets no limit
    assert source.problem(items[0], 9) is None
    assert source.problem(items[2], 9) == "has a source 2 that is empty"
    assert str(source.problem(items[0], 1)).startswith(
        "has a source 2 that has 2 tokens, more than search.max_source=1"
    )


def test_words_of_two_texts_are_counted_on() -> None:
    sides = sides_of(["text", "text"])
    sides.use({"tokens": words("a b c")})
    (item,) = sides.source.encode_many([("a b", "c a b")])
    assert sides.source.words(item) == [0, 1, -1, 2, 3, 4, -1]
    assert sides.source.pieces(item) == ["a", "b", "</s>", "c", "a", "b", "</s>"]
    assert sides.source.room(item, 2.0) == 18  # that of the longer
    assert sides.source.digest(("a", "b")) == ""  # they name no files


def test_gold_of_several_is_that_of_the_first(tmp_path: Path) -> None:
    record = {
        "source": "1.png", "source2": "where ?", "target": "a ball", "width": SIDE, "height": SIDE,
        "boxes": [[1, 1, 0, 0, 4, 4]],
    }  # fmt: skip
    (tmp_path / "x.jsonl").write_text(json.dumps(record) + "\n")
    sides = image_and_text()
    (example,) = read_files(str(tmp_path / "x.jsonl"), sides.form)
    assert example.source == (str(tmp_path / "1.png"), "where ?")
    gold = sides.source.gold(example)
    assert gold is not None
    assert gold.possible == {(0, 1)}


def test_what_is_wrong_with_one_of_several_is_told_by_it(tmp_path: Path) -> None:
    sides, good = image_and_text(), str(painted(tmp_path, 1))
    faults = {
        (good, "how many ?"): None,
        (good, " "): "blank",
        (str(tmp_path / "gone.png"), "how many ?"): "unreadable",
    }
    for source, kind in faults.items():
        fault = sides.find_fault(Example(source, "two"))
        assert (fault and fault[0]) == kind
    assert sides.find_fault(Example((good, "how many ?"), " ")) == ("blank", "has an empty target")


# Tokens of each side


def test_each_side_may_have_its_own_tokens(tmp_path: Path) -> None:
    own = {"kind": "char"}
    sides = sides_of([{"tokens": own}, {}], {"tokens": {"kind": "word", "size": 9}}, tokens={"kind": "byte"})
    assert sides.vocabularies == {"source": ["source"], "tokens": ["source2"], "target": ["target"]}
    examples = [Example(("ab", "cd"), "x y"), Example(("ba", "dc"), "y x x")]
    said: list[str] = []
    sides.learn(lambda: iter(examples), {}, said.append)
    assert said == [
        "learning tokens (char of the source)", "learning tokens (byte)", "learning tokens (word of the target)"
    ]  # fmt: skip
    first, second = sides.source.parts
    assert isinstance(first.tokenizer, Symbols)
    assert set(first.tokenizer.ids) >= {"a", "b"}
    assert not {"c", "d", "x"} & set(first.tokenizer.ids)
    assert isinstance(second.tokenizer, Bytes)
    assert isinstance(sides.target.tokenizer, Symbols)
    assert [word for word in sides.target.tokenizer.ids if word not in MARKS] == ["x", "y"]
    sides.save(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {"source", "tokens", "target"}
    again = sides_of([{"tokens": own}, {}], {"tokens": {"kind": "word", "size": 9}}, tokens={"kind": "byte"})
    again.load(tmp_path)
    assert again.source.encode_many([("ab", "cd")]) == sides.source.encode_many([("ab", "cd")])
    assert again.target.encode("x y") == sides.target.encode("x y")


def test_one_vocabulary_is_learnt_from_all_text_without_its_own() -> None:
    examples = [Example(("ein Haus", "a house"), "uma casa")]
    shared = sides_of(["text", "text"], tokens={"kind": "word"})
    shared.learn(lambda: iter(examples), {}, lambda text: None)
    assert shared.vocabularies == {"tokens": ["source", "source2", "target"]}
    (tokenizer,) = shared.tokenizers.values()
    assert isinstance(tokenizer, Symbols)
    assert {"ein", "Haus", "a", "house", "uma", "casa"} <= set(tokenizer.ids)
    apart = sides_of(["text", {"tokens": {"kind": "word"}}], tokens={"kind": "word"})
    apart.learn(lambda: iter(examples), {}, lambda text: None)
    common, own = apart.tokenizers["tokens"], apart.tokenizers["source2"]
    assert isinstance(common, Symbols)
    assert isinstance(own, Symbols)
    assert {"ein", "Haus", "uma", "casa"} <= set(common.ids)
    assert not {"a", "house"} & set(common.ids)
    assert set(own.ids) - set(MARKS) == {"a", "house"}


def test_tokens_that_are_given_are_not_learnt() -> None:
    sides = sides_of({"tokens": {"kind": "char"}}, tokens={"kind": "word"})
    said: list[str] = []
    sides.learn(lambda: iter([Example("a b", "c d")]), {"source": BYTES}, said.append)
    assert said == ["learning tokens (word)"]
    assert sides.source.tokenizer is BYTES


def test_sampling_is_that_of_the_side() -> None:
    sides = sides_of({"tokens": {"kind": "bpe", "sampling": 0.1}}, tokens={"kind": "unigram", "sampling": 0.3})
    sides.use({"source": BYTES, "tokens": BYTES})
    assert (sides.source.sampled, sides.target.sampled) == (0.1, 0.3)
    with pytest.raises(ConfigError, match=r"tokens\.sampling needs kind unigram or bpe, not word"):
        sides_of({"tokens": {"kind": "word", "sampling": 0.1}})


# Masked tokens


def test_masked_tokens_point_at_what_they_ask_for() -> None:
    layout, draw = Masked(0.3, 100), np.random.default_rng(1)
    targets = [[10 + i for i in range(n)] for n in (1, 2, 3, 10, 40)]
    batch = layout([[] for _ in targets], targets, draw)
    for target, text, places, answers in zip(
        targets, batch.source.tolist(), batch.inputs.tolist(), batch.outputs.tolist(), strict=True
    ):
        assert (text[0], text[-1], len(text)) == (BOS, EOS, len(target) + 2)
        assert len(places) == max(1, round(0.3 * len(target)))
        assert places == sorted(set(places))
        assert answers == [target[place - 1] for place in places]
        rest = [i for i in range(len(target)) if i + 1 not in places]
        assert [text[i + 1] for i in rest] == [target[i] for i in rest]
    assert batch.tokens == sum(max(1, round(0.3 * len(target))) for target in targets)


def test_masked_tokens_are_drawn_as_published_and_never_marks() -> None:
    """80 % masked, 10 % another token (which may be the same one), 10 % left; every place alike."""
    layout, draw = Masked(0.15, 56), np.random.default_rng(2)
    target = [30] * 100
    fates: Counter[str] = Counter()
    places: Counter[int] = Counter()
    others: Counter[int] = Counter()
    for _ in range(20):
        batch = layout([[]] * 100, [target] * 100, draw)
        for text, where in zip(batch.source.tolist(), batch.inputs.tolist(), strict=True):
            places.update(where)
            for place in where:
                fates["mask" if text[place] == MASK else "same" if text[place] == 30 else "other"] += 1
                if text[place] not in (MASK, 30):
                    others[text[place]] += 1
    total = sum(fates.values())
    assert total == 20 * 100 * 15
    assert fates["mask"] / total == pytest.approx(0.8, abs=0.01)
    assert fates["other"] / total == pytest.approx(0.1 * 49 / 50, abs=0.008)
    assert fates["same"] / total == pytest.approx(0.1 + 0.1 / 50, abs=0.008)
    assert set(others) == set(range(len(MARKS), 56)) - {30}
    assert set(places) == set(range(1, 101))
    assert max(places.values()) < 1.35 * min(places.values())
    # of one token that is no mark, it is the only one that can come
    batch = Masked(0.5, len(MARKS) + 1)([[]], [[30] * 4000], draw)
    counts = Counter(batch.source.tolist()[0][1:-1])
    assert set(counts) == {MASK, 30, len(MARKS)}
    assert counts[MASK] / 2000 == pytest.approx(0.8, abs=0.035)


@pytest.mark.parametrize(
    ("source", "taken", "window"),
    [("text", 0, 4096), ("none", 0, 4096), ({"kind": "image", "size": 64}, 64 * 64 * 3, 4096),
     ({"kind": "image", "size": 400}, 400 * 400 * 3, 2**27 // (400 * 400 * 3)),
     (["text", {"kind": "image", "size": 4096}, {"kind": "image", "size": 4096}], 2 * 3 * 2**24, 1)],
)  # fmt: skip
def test_fewer_examples_are_worked_on_together_where_they_are_large(source: Any, taken: int, window: int) -> None:
    sides = sides_of(source)
    sides.use(dict.fromkeys(sides.vocabularies, BYTES))
    assert sides.source.most_bytes == taken
    assert TextGeneration(sides, torch.nn.Identity(), torch.device("cpu")).window == window  # type: ignore[arg-type]


def test_masked_tokens_come_again_from_the_same_generator() -> None:
    layout, targets = Masked(0.15, 100), [list(range(10, 60)), list(range(20, 50))]

    def drawn(seed: int) -> list[list[list[int]]]:
        batch = layout([[], []], targets, np.random.default_rng(seed))
        return [batch.source.tolist(), batch.inputs.tolist(), batch.outputs.tolist()]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_masked_tokens_in_batches_differ_by_epoch_and_can_be_reached_again(tmp_path: Path) -> None:
    examples = [Example("", "abcdefghij" * (1 + i % 3), f"f:{i}") for i in range(12)]
    sides = sides_of("none")
    sides.use({"tokens": BYTES})
    store = stored(tmp_path, examples, sides)
    batches = Batches(store, sides, Masked(0.2, BYTES.size), [60, 60], seed=1)
    found = list(islice(batches.since(Position()), 24))
    assert found[-1][1].epoch >= 1
    for batch, _ in found:
        assert ((batch.source.lengths - 2) % 10 == 0).all()  # whole texts between their marks
    again = next(batches.since(found[4][1]))
    assert again[0].source.tolist() == found[5][0].source.tolist()
    assert again[0].inputs.tolist() == found[5][0].inputs.tolist()
    epochs = [[b.source.tolist() for b, _ in islice(batches.since(Position(epoch)), 5)] for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
