"""Parts from outside the package: what docs/extending.md says is run, as a user would."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.data.modality import Modality
from regard.errors import ConfigError
from regard.evaluation.metrics import Metric
from regard.registry import METRICS, register
from tests.conftest import whole

DOCS = Path(__file__).parents[1] / "docs/extending.md"
DRIVER = """
import sys
from regard.cli import run
for line in sys.stdin:
    words = line.rstrip("\\n").split("\\t")
    sys.exit(1) if run(words) else None
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


def commands() -> list[list[str]]:
    """The commands of the page, without what a shell does for them."""
    found = []
    for line in blocks("sh")[-1].splitlines():
        line = line.replace('"$(head -1 signals/test.tsv | cut -f1)"', "SIGNAL")
        words = shlex.split(line.rpartition("|")[2])
        assert words[:3] == ["regard", "--import", "my_parts"], line
        found.append(words[1:])
    return found


def run_page(folder: Path) -> str:
    """Do all that the page says, in a folder, and train once more on a bad line; what that says of it."""
    (folder / "my_parts.py").write_text("\n\n".join(blocks("python")))
    (folder / "signals").mkdir()
    (folder / "signals/config.yaml").write_text(blocks("yaml")[0])
    code = "import pathlib, my_parts; my_parts.write_corpus(pathlib.Path('signals'))"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    data = (folder / "signals/train.tsv").read_text()
    (folder / "signals/bad.tsv").write_text("1 two 3\tlow\n" + data)
    sources = [line.split("\t")[0] for line in (folder / "signals/test.tsv").read_text().splitlines()]
    (folder / "sources.txt").write_text("\n".join(sources) + "\n")
    lines = []
    for words in commands():
        words = [sources[0] if word == "SIGNAL" else word for word in words]
        more = {"generate": ["sources.txt", "-o", "out.txt"], "evaluate": ["--report", "report.json"]}
        lines.append("\t".join([*words, *more.get(words[2], [])]))
    bad = "data.train=signals/bad.tsv run=other data.bad_lines=error"
    lines.append("\t".join(["--import", "my_parts", "train", "signals/config.yaml", *bad.split()]))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], cwd=folder, input="\n".join(lines), text=True, capture_output=True
    )
    return done.stderr


@whole
def test_a_model_of_ones_own_parts(tmp_path: Path) -> None:
    """It learns, decodes, is scored and explained; a bad line is named; and its folder imports nothing."""
    assert "bad.tsv:1 has a signal that is not numbers" in run_page(tmp_path)
    scores = json.loads((tmp_path / "report.json").read_text())["scores"]
    assert list(scores)[:2] == ["word-accuracy", "exact"], "the metrics that the config names, in its order"
    assert scores["word-accuracy"]["score"] > 80
    assert scores["pointing"]["score"] > 40, "attention points at frames, of which gold alignments say which"
    outputs = (tmp_path / "out.txt").read_text().splitlines()
    wanted = [line.split("\t")[1] for line in (tmp_path / "signals/test.tsv").read_text().splitlines()]
    assert len(outputs) == 100
    assert sum(a == b for a, b in zip(outputs, wanted, strict=True)) > 60
    assert re.search(r'"source": ?\["0", ?"8"', (tmp_path / "attention.html").read_text()), "pieces are moments"
    config = (tmp_path / "signals/run/config.yaml").read_text()
    for text in ("kind: signal", "kind: windows", "width: 8", "score: cosine", "focus: 1.0", "metric: word-accuracy"):
        assert text in config
    with pytest.raises(ConfigError, match=r"no source of kind 'signal'.*--import"):
        regard.load(tmp_path / "signals/run")


def test_what_can_be_registered() -> None:
    class Other(Metric):
        def __call__(self, outputs: object, references: object, *more: object) -> regard.Score:
            raise NotImplementedError

    with pytest.raises(ConfigError, match="'bleu' is built in; choose another name"):
        register("bleu", Other)
    with pytest.raises(ConfigError, match="small letters"):
        register("My Metric", Other)
    with pytest.raises(TypeError, match="derived from Modality"):
        register("other", dict)
    assert "other" not in METRICS.kinds
    assert Modality.family.kinds[:2] == ["text", "none"]
