"""The README is true: each command and each line of Python in it runs."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest

from regard.data.synthetic import phrasebook
from tests.conftest import FULL
from tests.test_cli import good

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICK = ["training.steps=6", "training.validate_every=3", "training.save_every=3", "training.validate_sentences=4",
         "model.d_model=16", "training.batch_tokens=200", "search.max_length=20"]  # fmt: skip


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def serves(arguments: list[str]) -> None:
    """See that the server starts, shows its page, and ends when it is told to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    command = [sys.executable, "-m", "regard", *arguments, "--port", address.rpartition(":")[2]]
    log = Path("server.log")
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        assert address in process.stdout.readline(), log.read_text()
        assert "explore" in httpx.get(address).text.lower()
        process.terminate()
    assert process.returncode == 0


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in a folder that holds a user's four files; only the corpus and the training are made small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(phrasebook, "write", partial(phrasebook.write, valid=40, test=40))
    for split in ("train", "valid"):
        Path(f"{split}.en").write_text("We found her .\nShe knew that .\n" * 40)
        Path(f"{split}.de").write_text("Wir fanden sie .\nSie wusste das .\n" * 40)
    ran = set()
    for line in "".join(blocks("sh")).splitlines():
        command, *arguments = shlex.split(line, comments=True)
        if command == "make":
            assert re.search(rf"^{arguments[0]}: setup\n", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
            continue
        if command != "regard":
            subprocess.run(line, shell=True, check=True)
            continue
        ran.add(arguments[0])
        match arguments[0]:
            case "new" if "--corpus" in arguments:
                arguments += ["--pairs", "200", "--words", "5-8"]
            case "export" if not FULL:
                continue
            case "serve":
                serves(arguments)
                continue
            case "train":
                given = [x for x in arguments if not x.startswith("training.steps")]
                shallow = ["model.encoder.layers=1", "model.decoder.layers=1"]
                arguments = [*given, *QUICK, *(shallow if "first/config.yaml" in given else [])]
        good(*arguments)
    assert ran >= {
        "new",
        "train",
        "translate",
        "generate",
        "score",
        "evaluate",
        "explain",
        "space",
        "average",
        "models",
    }
    assert len(Path("output.txt").read_text().splitlines()) == 3
    assert len(Path("output.de").read_text().splitlines()) == 80
    assert Path("page.html").read_text().startswith("<!")
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), {})
    assert Path("small/model.safetensors").exists()


def test_own_data_take_five_commands() -> None:
    section = README[README.index("## Your own data, in five commands") :]
    assert [line.split()[:2] for line in section.split("```")[1].splitlines()[1:]] == [
        ["regard", command] for command in ("new", "train", "evaluate", "translate", "explain")
    ]
    assert README.index("## ") == README.index(section[:10])  # the second section, after the title's


def test_the_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert pictures[0] == "docs/explorer.png"
    for picture in pictures:
        assert 0 < (ROOT / picture).stat().st_size <= 200_000


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, with hardly any training; the second time it starts from what is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.demo.PAIRS", {"phrasebook": 400})
    monkeypatch.setattr(phrasebook, "write", partial(phrasebook.write, valid=40, test=40))
    from tests.test_cli import run

    first = run("demo", *QUICK)
    assert first.returncode == 0, first.stderr
    for part in (
        "BLEU",
        "chrF",
        "nrefs:1",
        "AER",
        "reference",
        "attention.html",
        " translate runs/demo --nbest 3",
        " serve runs/demo ",
    ):
        assert part in first.stdout
    assert "update 6" in first.stderr
    assert len(list(Path("runs/demo/attention").glob("*.png"))) == 10
    assert Path("runs/demo/attention.html").read_text().startswith("<!")
    if not FULL:
        return
    again = run("demo", *QUICK)
    assert again.returncode == 0
    assert "update 6" not in again.stderr
    assert "BLEU" in again.stdout
