"""Hostile files and settings: whatever is read, an error is one of Regard's own.

Two thousand cases run with the tests; `python -m tests.test_fuzz 100000` runs as many as you like, from a seed that
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

from regard.config import dump, load, missing_files, override_settings, parse, resolve_paths
from regard.data.examples import read_files, read_sources
from regard.data.lines import BadLine
from regard.data.modalities.pixels import check_picture, read_picture
from regard.data.scan import scan
from regard.data.sides import Sides
from regard.data.target import Target
from regard.data.tokenizers.kinds import load_tokenizer, train_tokenizer
from regard.data_settings import Data
from regard.errors import RegardError
from regard.presets import PRESETS
from tests.toy import sides_of

CASES = 2000
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
    1, 2, 3, 4, 0, -1, 10**9, [1, 2], [1], [2, 1], [], "00", "1", "a", "source", "target", "text", "alignment", "²",
    "٣", "9" * 5000, "", ["source", "target"], ["source", 2], [0], "source2",
]  # fmt: skip
ALIGNMENTS: list[Any] = [None, None, True, False, 0, 1, 3, 4, -1, "alignment", "3", "", "²", "a"]
SOURCES: list[Any] = ["text", "text", "none", "image", ["text", "text"], ["image", "text"], ["text", "image", "text"]]
KINDS = ["text", "label", "tags", "number"]


def _sides(draw: Random, target: str = "text") -> Sides:
    """One source or several, none or an image, in the usual columns or in any."""
    usual = draw.random() < 0.5

    def column(several: bool) -> Any:
        if usual or draw.random() < 0.3:
            return None
        return draw.choice([x for x in COLUMNS if several or not isinstance(x, list)])

    chosen = draw.choice(SOURCES)
    kinds = chosen if isinstance(chosen, list) else [chosen]
    several = [{"kind": kind, "column": column(kind == "text")} for kind in kinds]
    given: Any = several if len(several) > 1 else several[0]
    wanted = {"kind": target, "column": column(draw.random() < 0.05)}
    return sides_of(given, wanted, data={"alignment": draw.choice(ALIGNMENTS)})


def _line(draw: Random, name: str) -> bytes:
    if draw.random() < 0.1:
        return draw.randbytes(draw.randrange(40))
    if "jsonl" in name:
        keys = draw.choices(
            ["source", "target", "text", "alignment", "boxes", "width", "height", "a", "", "source2"], k=4
        )
        if draw.random() < 0.7:
            keys += ["source", "target", "source2"]
        sound = draw.random() < 0.4
        pairs = [f"{json.dumps(key)}: {draw.choice(VALUES[:1] if sound else VALUES)}" for key in keys]
        line = "{" + ", ".join(pairs) + "}" if draw.random() < 0.95 else draw.choice(VALUES)
    else:
        line = "\t".join(draw.choices(TEXTS, k=draw.randrange(6)))
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
        [draw.choice(NAMES)] if draw.random() < 0.7 else draw.choices(["x", "y", "x.gz", "gone"], k=draw.randrange(5))
    )
    for name in {*names} - {"gone"}:
        (folder / name).write_bytes(_content(draw, name))
    files = [str(folder / name) for name in names]
    sides = _sides(draw, draw.choice(KINDS) if draw.random() < 0.3 else "text")
    data = Data(
        train=files[0] if len(files) == 1 and draw.random() < 0.95 else files, bad_limit=draw.random()
    )  # fmt: skip
    told: list[BadLine] = []
    found = list(
        _until_error(lambda: list(read_files(data.split("train")[0].files, sides.form, told.append)), lambda: [])
    )
    for bad in told:
        assert str(bad).startswith(bad.place)
        assert bad.kind in ("blank", "malformed", "undecodable")
    for example in found:
        _check_source(example.source, sides)
        example.target.encode()
    report = scan(data, "train", sides)
    assert (report.describe() is None) == (not report.bad)
    report.check(data)


def _check_source(field: Any, sides: Sides) -> None:
    """A text or, of several sources, one for each."""
    several = len(sides.source.parts) > 1
    assert isinstance(field, tuple) == several
    assert not several or len(field) == len(sides.source.parts)
    "".join(field).encode()


def _until_error(first: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    try:
        return first()
    except RegardError:
        return otherwise()


def strict_readers(draw: Random, folder: Path) -> None:
    """What is read without a policy is read to the end or to the first bad line."""
    name = draw.choice(NAMES)
    (folder / name).write_bytes(_content(draw, name))
    form = _sides(draw).form
    told: list[BadLine] = []
    handed = _until_error(lambda: list(read_files(str(folder / name), form, told.append)), lambda: None)
    raised = list(read_files(str(folder / name), form))
    assert not told
    assert raised == handed


def inputs(draw: Random, folder: Path) -> None:
    """Every line of an input is yielded, and a bad one has no text."""
    name = draw.choice(NAMES)
    (folder / name).write_bytes(_content(draw, name))
    sides = _sides(draw)
    lines = list(read_sources(folder / name, sides.form))
    assert [line.number for line in lines] == list(range(lines[0].number, lines[-1].number + 1) if lines else [])
    for line in lines:
        _check_source(line.field, sides)
        assert not line.bad or "".join(line.field) == ""


SETTINGS = [
    "preset", "run", "data", "train", "valid", "alignment", "source", "target", "column", "model", "d_model", "encoder",
    "decoder", "stem", "kind", "layers", "heads", "training", "steps", "betas", "objective", "search", "beam", "seed",
    "tokens", "size", "start", "freeze", "learning_rate", "halvings", "channels", "metrics", "metric", "batch_tokens",
    "columns", "picture", "head", "max_length", "shared", "blanks", "score",
]  # fmt: skip
PLAIN: list[Any] = [
    None, True, 0, 1, -1, 3, 10**18, 10**30, 10**4000, 0.5, float("nan"), float("inf"), -1e308, "", "lstm", "none",
    "picture", "image", "transformer", "convolution", "stem", "label", "a\0b", "\ud800", "text", "x" * 500, [], {},
    [1, 2], ["a", ["b"]], [[[]]], {"kind": "gru"}, {"kind": []}, {1: 2}, {None: 1}, b"bytes",
    {"kind": "transformer", "heads": 3}, "gpt-mini", "luong2015", (1, 2), ["text", "text"],
    ["text", {"kind": "image", "size": 8}], [{"kind": "none"}, "text"],
    [{"kind": "lstm"}, "gru"], [None, 3], {"kind": "convolution", "channels": 2},
]  # fmt: skip


def _tree(draw: Random, depth: int) -> Any:
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(PLAIN)
    return {draw.choice(SETTINGS): _tree(draw, depth - 1) for _ in range(draw.randrange(4))}


def settings(draw: Random, folder: Path) -> None:
    """Settings as a program may give them: a tree of anything, or sound ones with a few changed; in today's form, or in
    that of an earlier Regard."""
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
    "model", "data", "source", "training", "steps", "column", ":", ": ", "\n", "\n  ", "\n    ", "- ", "{", "}", "[",
    "]", ",",
    "&a", "*a", "&b", "*b", "<<: *a", "<<", "? ", "| ", "> ", "!!timestamp ", "!!binary ", "!!set ",
    "!!python/object:os.system ", "!x ", "!!int ", "!!float ", "!!null ", "!!map ", "!!seq ", "2020-13-45",
    "2020-01-01", "0b_", "0x_", "0x" + "f" * 5000, "9" * 5000, "1:" * 90 + "1.", "1:1:1", "-", "=", "~", "null",
    "yes", ".inf", ".nan", "1_000", "1e5", "'",

    '"', '"\\ud800"', '"\\0"', "#", "%YAML 1.1\n", "---\n", "...\n", "\t", "\ufeff", "\x00", "[" * 400,
    "- " * 300, "{a: " * 60, "²", "preset: gpt-mini\n", "run: x\n", "a: 1\na: 2\n", "1: 2\n", "null: 3\n", "[a]: 1\n",
    "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "a: &a {b: *a}\n", "5", "{}", "[]", "[1, 2]", "a", "gru",
]  # fmt: skip
SOUND = [
    ("training", "steps"), ("data", "train"), ("source", "column"), ("model", "encoder"), ("tokens", "size"),
    ("start", "model"), ("training", "betas"), ("search", "beam"), ("model", "<<"), ("run", "x"), ("target", "kind"),
    ("data", "columns"), ("source", "tokens"),
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
        learnt: Target = sides_of("text", draw.choice(KINDS[1:])).target
        learnt.load(folder)
        learnt.decode([0] if learnt.size else [])
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
