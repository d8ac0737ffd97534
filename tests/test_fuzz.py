"""Hostile files and settings: whatever is read, an error is one of Regard's own.

A few thousand cases run with the tests; `python -m tests.test_fuzz 100000` runs as many as you like, from a seed that
may follow.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image
from regard.data.corpora import BadLine, read_files, read_sources
from regard.data.labels import load_labels
from regard.data.pictures import check_picture, read_picture

from regard.config import dump, load, missing_files, override_settings, parse, resolve_paths
from regard.data.scan import scan
from regard.data.tokens import load_tokenizer, train_tokenizer
from regard.errors import RegardError
from regard.presets import PRESETS
from regard.settings import Data

CASES = 3200
Case = Callable[[Random, Path], None]

TEXTS = [
    "a", "zwei Häuser", "", " ", "\t", "\r", "\x00", "\ufeff", "\u2028", "\x0b", "\x1c", "🙂", "²", "٣", "0", "-1",
    "1e400", "nan", "inf", "0-0", "0-0 1p2", "9" * 12 + "-0", "3-", "<sep>", "</s>", "x.png", "../..", "/", "~",
    "x" * 300, "9" * 4400, "target", "source",
]  # fmt: skip
VALUES: list[str] = [
    '"a"', '""', '"\\ud800"', '"\\udc00x"', '"\\u0000"', '"a\\nb"', "1", "-0", "1.5", "1e999", "NaN", "-Infinity",
    "true", "null", "[]", "{}", '"0-0 1-1"', "[[0,0]]", "[" * 2000 + "]" * 2000, '{"a":' * 900 + "1" + "}" * 900,
    "9" * 5000, '"' + "x" * 500 + '"', "[[0,0,1,1,2,2]]", "[[0,0,NaN,1,2,2]]", "[[0,999999999,1,1,2,2]]",
    "[[1,0,1,1,2,2]]", '["012345"]', "[[0,0,1e999,1,2,2]]", "[[0.5,0,1,1,2,2]]", '{"a":1}', "[[0,0,1,1,2]]", "64",
    "0", "-3", "[[" + "9" * 400 + ",0,1,1,2,2]]", "[[0,0," + "9" * 400 + ",1,2,2]]", "oops", "'a'", "\"a",
]  # fmt: skip
NAMES = ["x.tsv", "x.jsonl", "x.txt", "x", "x.tsv.gz", "x.jsonl.gz", "x.gz", "x.csv"]
COLUMNS: list[Any] = [
    None, [], [1], [1, 2], [2, 1], [1, 2, 3], [[1, 2], 3], [[1], 2], [[]], [[], 1], [1, [2]], [0], [0, 1], ["00", 1],
    [-1, 2], ["a", "target"], ["source", "target"], ["source", "target", "alignment"],
    [["source", "target"], "target"], ["²", "٣"], ["9" * 5000, 1], [10**9, 1], ["", ""], ["text"],
]  # fmt: skip


def _line(draw: Random, name: str) -> bytes:
    if draw.random() < 0.1:
        return draw.randbytes(draw.randrange(40))
    if "jsonl" in name:
        keys = draw.choices(["source", "target", "text", "alignment", "boxes", "width", "height", "a", ""], k=4)
        if draw.random() < 0.7:
            keys += ["source", "target"]
        sound = draw.random() < 0.4
        pairs = [f"{json.dumps(key)}: {draw.choice(VALUES[:1] if sound else VALUES)}" for key in keys]
        line = "{" + ", ".join(pairs) + "}" if draw.random() < 0.95 else draw.choice(VALUES)
    else:
        line = "\t".join(draw.choices(TEXTS, k=draw.randrange(5)))
    return line.encode("utf-8", "replace")


def _content(draw: Random, name: str) -> bytes:
    lines = [_line(draw, name) for _ in range(draw.choice([0, 1, 2, 3, 8]))]
    content = draw.choice([b"\n", b"\n", b"\r\n"]).join(lines) + draw.choice([b"", b"\n"])
    if name.endswith(".gz"):
        content = _damaged(draw, gzip.compress(content, 1, mtime=0), 0.5)
    return content


def _damaged(draw: Random, content: bytes, share: float) -> bytes:
    """Some bytes changed, cut off or put in, in this share of all cases."""
    if draw.random() >= share or not content:
        return content
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at = draw.randrange(len(changed)) if changed else 0
        match draw.randrange(4):
            case 0:
                changed[at : at + 1] = draw.randbytes(1)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = draw.randbytes(draw.randrange(1, 5))
            case _:
                changed[at : at + draw.randrange(8)] = b"\xff" * draw.randrange(8)
    return bytes(changed)


def readers(draw: Random, folder: Path) -> None:
    """Files of every form under every setting of columns, raised and handed over."""
    names = (
        [draw.choice(NAMES)] if draw.random() < 0.7 else draw.choices(["x", "y", "x.gz", "gone"], k=draw.randrange(4))
    )
    for name in {*names} - {"gone"}:
        (folder / name).write_bytes(_content(draw, name))
    files = [str(folder / name) for name in names]
    data = Data(
        train=files[0] if len(files) == 1 and draw.random() < 0.95 else files, columns=draw.choice(COLUMNS),
        source=draw.choice(["text", "text", "none", "picture"]), bad_limit=draw.random(),
    )  # fmt: skip
    told: list[BadLine] = []
    found = list(_until_error(lambda: list(read_files(data.train, data, told.append)), lambda: []))
    for bad in told:
        assert str(bad).startswith(bad.place)
        assert bad.kind in ("blank", "malformed", "undecodable")
    for example in found:
        (example.source + example.target).encode()
    report = scan(data, "train", draw.choice(["text", "label", "tags", "number"]))
    assert (report.describe() is None) == (not report.bad)
    report.check(data)


def _until_error(first: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    try:
        return first()
    except RegardError:
        return otherwise()


def strict_readers(draw: Random, folder: Path) -> None:
    """What is read without a policy is read to the end or to the first bad line."""
    name = draw.choice(NAMES)
    (folder / name).write_bytes(_content(draw, name))
    data = Data(columns=draw.choice(COLUMNS), source=draw.choice(["text", "none", "picture"]))
    told: list[BadLine] = []
    handed = _until_error(lambda: list(read_files(str(folder / name), data, told.append)), lambda: None)
    raised = list(read_files(str(folder / name), data))
    assert not told
    assert raised == handed


def inputs(draw: Random, folder: Path) -> None:
    """Every line of an input is yielded, and a bad one has no text."""
    name = draw.choice(NAMES)
    (folder / name).write_bytes(_content(draw, name))
    data = Data(columns=draw.choice(COLUMNS), source=draw.choice(["text", "none", "picture"]))
    lines = list(read_sources(folder / name, data))
    assert [line.number for line in lines] == list(range(lines[0].number, lines[-1].number + 1) if lines else [])
    assert all(line.text == "" for line in lines if line.bad)


SETTINGS = [
    "preset", "run", "data", "train", "valid", "columns", "source", "picture", "model", "d_model", "encoder",
    "decoder", "kind", "layers", "heads", "training", "steps", "betas", "objective", "search", "beam", "seed",
    "tokens", "size", "start", "freeze", "learning_rate", "halvings", "channels", "head",
]  # fmt: skip
PLAIN: list[Any] = [
    None, True, 0, 1, -1, 3, 10**18, 10**30, 10**4000, 0.5, float("nan"), float("inf"), -1e308, "", "lstm", "none",
    "picture", "transformer", "convolution", "a\0b", "\ud800", "text", "x" * 500, [], {}, [1, 2], ["a", ["b"]],
    [[[]]], {"kind": "gru"}, {"kind": []}, {1: 2}, {None: 1}, b"bytes", {"kind": "transformer", "heads": 3},
    "gpt-mini", "luong2015", (1, 2),
]  # fmt: skip


def _tree(draw: Random, depth: int) -> Any:
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(PLAIN)
    return {draw.choice(SETTINGS): _tree(draw, depth - 1) for _ in range(draw.randrange(4))}


def settings(draw: Random, folder: Path) -> None:
    """Settings as a program may give them: a tree of anything, or sound ones with a few changed."""
    if draw.random() < 0.4:
        tree = {name: _tree(draw, 3) for name in draw.choices(SETTINGS, k=3)}
    else:
        tree = parse({"preset": draw.choice(list(PRESETS))}).model_dump()
        for _ in range(draw.choice([1, 1, 2])):
            section = tree
            while isinstance(inner := section[name := draw.choice(list(section))], dict) and inner:
                section = inner
            section[name] = draw.choice(PLAIN)
    config = resolve_paths(parse(tree), folder)
    missing_files(config)
    dump(config)


YAML = [
    "model", "data", "training", "steps", "columns", ":", ": ", "\n", "\n  ", "\n    ", "- ", "{", "}", "[", "]", ",",
    "&a", "*a", "&b", "*b", "<<: *a", "<<", "? ", "| ", "> ", "!!timestamp ", "!!binary ", "!!set ",
    "!!python/object:os.system ", "!x ", "!!int ", "!!float ", "!!null ", "!!map ", "!!seq ", "2020-13-45",
    "2020-01-01", "0b_", "0x_", "0x" + "f" * 5000, "9" * 5000, "1:" * 90 + "1.", "1:1:1", "-", "=", "~", "null",
    "yes", ".inf", ".nan", "1_000", "1e5", "'",

    '"', '"\\ud800"', '"\\0"', "#", "%YAML 1.1\n", "---\n", "...\n", "\t", "\ufeff", "\x00", "[" * 400,
    "- " * 300, "{a: " * 60, "²", "preset: gpt-mini\n", "run: x\n", "a: 1\na: 2\n", "1: 2\n", "null: 3\n", "[a]: 1\n",
    "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "a: &a {b: *a}\n", "5", "{}", "[]", "[1, 2]", "a", "gru",
]  # fmt: skip
SOUND = [
    ("training", "steps"), ("data", "train"), ("data", "columns"), ("model", "encoder"), ("tokens", "size"),
    ("start", "model"), ("training", "betas"), ("search", "beam"), ("model", "<<"), ("run", "x"),
]  # fmt: skip
BOMB = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]" for i in range(9))
MERGED = "\n".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9 if i else [])}], k{i}: 1}}" for i in range(9))


def config_files(draw: Random, folder: Path) -> None:
    """Config files and overrides made of what YAML has to offer."""
    path = folder / "c.yaml"
    match draw.randrange(10):
        case 0:
            text = draw.choice([BOMB, MERGED, BOMB.replace("[", "{k: ").replace("]", "}")])
        case 1:
            opening = draw.choice(["[", "- ", "{a: ", "? ", "!!seq [", "&a ", "a: "])
            text = draw.choice(["x: ", ""]) + opening * draw.choice([60, 400])
        case 2 | 3 | 4:
            text = "".join(draw.choices(YAML, k=draw.randrange(1, 12)))
        case _:
            text = ""
            for section, name in draw.sample(SOUND, k=2):
                value = draw.choice(["5", "a", "[0.5, 0.9]", "{}", "[1, 2]"] if draw.random() < 0.6 else YAML)
                text += f"{section}: {{{name}: {value}}}\n"
    content = text.encode("utf-8", "replace")
    path.write_bytes(_damaged(draw, content, 0.2))
    missing_files(load(path, _overrides(draw) if draw.random() < 0.3 else []))


def _overrides(draw: Random) -> list[str]:
    odd = ["", "a..b", ".", "a.", ".".join("a" * 2000), "x y", "model.kind", "\ud800", "²", "model.encoder.layers.x"]
    name = draw.choice(odd) if draw.random() < 0.3 else ".".join(draw.choice(SOUND[:5]))
    value = draw.choice(YAML) if draw.random() < 0.6 else "".join(draw.choices(YAML, k=draw.randrange(4)))
    return [name + draw.choice(["=", "=", "=", "", "=="]) + value]


def overrides(draw: Random, folder: Path) -> None:
    parse(override_settings([*_overrides(draw), *_overrides(draw)][draw.randrange(2) :]))


@cache
def _model() -> bytes:
    tokenizer = train_tokenizer([f"the dog sees {n} birds" for n in range(50)], "bpe", 300)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder), "x")
        return (Path(folder) / "x.model").read_bytes()


def token_files(draw: Random, folder: Path) -> None:
    """Files of tokenizers and labels that were changed."""
    lists = [
        "[]",
        '["a", "b"]',
        '["a", "a"]',
        '"abc"',
        '["\\ud800"]',
        '[""]',
        "[1]",
        '[["a"]]',
        "null",
        "[" * 5000,
        '{"a": 1}',
    ]
    kinds = ["char", "word", "byte", "label", "tags", "number", "", "x"]
    numbers = ["0", "1.5", "NaN", "1e999", '"2"', "null", "-1", "9" * 400, "9" * 5000, "[]"]
    numbers = numbers[:2] if draw.random() < 0.4 else numbers
    kind = json.dumps(draw.choice(kinds)) if draw.random() < 0.9 else draw.choice(["1", "[]", "null"])
    text = (
        f'{{"kind": {kind}, "symbols": {draw.choice(lists)}, '
        f'"labels": {draw.choice(lists)}, "mean": {draw.choice(numbers)}, "spread": {draw.choice(numbers)}}}'
    )
    content = _damaged(draw, draw.choice([text, text, text, draw.choice(lists), ""]).encode(), 0.2)
    if draw.random() < 0.5:
        (folder / "labels.json").write_bytes(content)
        told = load_labels(folder)
        told.decode([0] if told.size else [])
        return
    (folder / "tokens.json").write_bytes(content)
    if draw.random() < 0.2:
        model = _model()
        (folder / "tokens.model").write_bytes(draw.choice([b"", b"x", model[: draw.randrange(len(model))]]))
    tokenizer = load_tokenizer(folder, "tokens")
    tokenizer.decode(tokenizer.encode("a b ² 🙂"))


@cache
def _pictures() -> dict[str, bytes]:
    pixels = np.random.default_rng(1).integers(256, size=(9, 7, 3), dtype=np.uint8)
    made = {}
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA"):
        for mode in ("RGB", "L", "P", "I;16"):
            image = (
                Image.fromarray(pixels[..., 0].astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(pixels)
            )
            image = image if mode in ("RGB", "I;16") else image.convert(mode)
            written, exif = io.BytesIO(), Image.Exif()
            exif[0x0112] = 6
            try:
                image.save(written, kind, **({"exif": exif} if kind in ("PNG", "JPEG", "TIFF", "WEBP") else {}))
            except (OSError, KeyError):  # not every kind has every mode
                continue
            made[f"{kind} {mode}"] = written.getvalue()
    return made


def pictures(draw: Random, folder: Path) -> None:
    """Pictures with changed bytes."""
    path = folder / "x.png"
    path.write_bytes(_damaged(draw, draw.choice([*_pictures().values()]), 0.95))
    try:
        check_picture(path)
    finally:
        assert read_picture(path, 8).shape == (8, 24)


TARGETS: list[Case] = [
    readers, strict_readers, inputs, settings, config_files, overrides, token_files, pictures,
]  # fmt: skip


def run(cases: int, seed: int) -> tuple[int, list[str]]:
    """How many cases ended in an error of Regard's own, and what else happened."""
    refused, failures = 0, []
    for number in range(cases):
        target = TARGETS[number % len(TARGETS)]
        with tempfile.TemporaryDirectory() as folder:
            try:
                target(Random(f"{seed} {number}"), Path(folder))
            except RegardError as error:
                str(error)
                refused += 1
            except Exception:
                failures.append(f"{target.__name__}, case {number} of seed {seed}:\n{traceback.format_exc()}")
    return refused, failures


def test_hostile_input_ends_in_an_error_of_regards_own() -> None:
    refused, failures = run(CASES, seed=1)
    assert not failures, failures[0]
    assert CASES // 4 < refused < CASES  # neither refuses all nor accepts all


if __name__ == "__main__":
    count, begin = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    refusals, others = run(count, begin)
    print(*others[:5], f"{count:,} cases: {refusals:,} refused, {len(others):,} failures", sep="\n")
    sys.exit(bool(others))
