"""The command line as its user meets it: what each command gives, and what is said when it cannot."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from typer.core import TyperGroup
from typer.main import get_command

import regard
from regard.__main__ import main
from regard.cli import app, say_what
from regard.demo import TASKS
from regard.errors import ConfigError, DataError
from tests.conftest import whole
from tests.toy import toy_config, toy_settings, write_corpus

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str | Path, text: str | None = None) -> Done:
    """A command in this process: starting torch anew for each would take minutes."""
    streams = [io.TextIOWrapper(io.BytesIO((text or "").encode()), encoding="utf-8")]
    streams += [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        patch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        with pytest.raises(SystemExit) as left:
            main()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    output, errors = (stream.buffer.getvalue().decode() for stream in streams[1:])
    return Done(int(left.value.code or 0), output, errors)


def good(*arguments: str | Path, text: str | None = None) -> str:
    done = run(*arguments, text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: str | Path, text: str | None = None) -> str:
    """What is said on the way out: lines for people, and no traceback."""
    done = run(*arguments, text=text)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("regard: ")
    return done.stderr


@pytest.fixture(scope="module")
def model(learnt: Path) -> Path:
    return learnt


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without attention."""
    folder = tmp_path_factory.mktemp("blind")
    write_corpus(folder)
    last = {"decoder": {"kind": "lstm", "context": "last", "score": None, "place": None}}
    regard.train(toy_config(folder, model=last, training={"steps": 5}))
    return folder / "run"


def test_help_does_not_import_torch() -> None:
    code = "import sys, regard.cli as cli; cli.run(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    assert "translate" in good("generate", "--help")
    assert good("--version") == f"regard {regard.__version__}\n"


def test_help_keeps_what_stands_in_brackets() -> None:
    """As rich's markup does not, which takes [search] for a tag."""
    commands = cast(TyperGroup, get_command(app)).commands
    told = {name: " ".join(good(name, "--help").split()) for name in commands}
    for name, text in told.items():
        for parameter in commands[name].params:
            assert " ".join((getattr(parameter, "help", None) or "").split()) in text
    for name in ("generate", "evaluate", "explain"):
        assert "Any other setting of [search], such as search.no_repeat=3, or of [source]" in told[name]
    assert "of a .tsv or .jsonl file, its source column" in told["generate"]
    for corpus in ("scenes", "spoken"):
        for task in TASKS[corpus]:
            assert re.search(rf"{corpus} for [^;(]*\b{task}\b", told["new"])
    for name, usage in {
        "generate": "{MODEL} [FILE]",
        "evaluate": "{MODEL} [DATA]...",
        "train": "{CONFIG} [NAME=VALUE]...",
        "compare": "[CONFIG]...",
        "demo": "[NAME=VALUE]...",
        "explain": "{MODEL} [TEXT]...",
    }.items():
        assert f"Usage: regard {name} [OPTIONS] {usage} " in told[name]
    assert good() == good("--help")


def test_corpora_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert "greater than or equal to 1" in refused("new", tmp_path / "x", "--corpus", "scenes", "--pairs", "0")
    assert "--words 3-4 chooses among sentences" in refused(
        "new", tmp_path / "x", "--corpus", "scenes", "--words", "3-4"
    )
    assert not (tmp_path / "x").exists()


def test_what_is_mistyped_is_said_in_a_line() -> None:
    assert refused("trian") == "regard: No such command 'trian'. Did you mean 'train'? (see `regard --help`)\n"
    assert refused("train") == "regard: Missing argument 'CONFIG' (see `regard train --help`)\n"
    assert "Invalid value for '--language': 'fr' is not one of 'de', 'tr' (see" in refused("new", "x", "--language=fr")
    assert "--import 'a.py': give the name of a module, such as my_parts" in refused("--import", "a.py", "train", "x")


def test_generate_keeps_lines_and_their_order(model: Path, tmp_path: Path) -> None:
    """Also of lines that cannot be used: each is told of, and leaves an empty line."""
    lines = [b"alpha beta", b"", b"bad \xff byte", b"gamma", b"alpha " * 2000, b"theta eta zeta"]
    (tmp_path / "in.txt").write_bytes(b"\n".join(lines))
    done = run("generate", model, tmp_path / "in.txt", "--set", "max_source=100")
    assert done.returncode == 0
    assert done.stdout.split("\n") == ["BETA ALPHA", "", "", "GAMMA", "", "ZETA ETA THETA", ""]
    told = done.stderr.splitlines()
    assert f"regard: {tmp_path}/in.txt:2 is empty; its line of output is empty" in told
    assert any("in.txt:3 is not UTF-8 (byte 5: 0xff)" in line for line in told)
    assert any("in.txt:5 has 2000 tokens, more than search.max_source=100" in line for line in told)
    assert len(told) == 3


def test_of_many_bad_lines_the_first_are_named_and_the_rest_counted(model: Path, tmp_path: Path) -> None:
    pairs = [("alpha beta", "BETA ALPHA"), *[("alpha " * 5, "ALPHA " * 5)] * 14]
    (tmp_path / "in.txt").write_text("".join(f"{source}\n" for source, _ in pairs))
    (tmp_path / "in.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    for command, file, what in (
        ("generate", "in.txt", "its line of output is empty"), ("evaluate", "in.tsv", "scored as empty"),
    ):  # fmt: skip
        told = run(command, model, tmp_path / file, "--set", "max_source=3").stderr.splitlines()
        named = [line for line in told if line.endswith(what)]
        assert len(named) == 11
        assert named[0].startswith(f"regard: {tmp_path / file}:2 has 5 tokens")
        assert named[9].startswith(f"regard: {tmp_path / file}:11 has 5 tokens")
        assert named[10] == f"regard: 4 more inputs cannot be used; {what}"


def test_standard_input_and_gzip(model: Path, tmp_path: Path) -> None:
    assert good("translate", model, text="alpha beta\ngamma") == "BETA ALPHA\nGAMMA\n"
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress(b"alpha beta\n"))
    assert good("generate", model, tmp_path / "in.txt.gz", "--beam", "1") == "BETA ALPHA\n"
    assert good("generate", model, text="") == ""


def test_nbest_scores_and_alignments(model: Path) -> None:
    text, score, links, *others = good(
        "generate", model, "--nbest", "2", "--beam", "3", "--scores", "--align", text="alpha beta\n"
    ).rstrip("\n").split("\t")  # fmt: skip
    assert (text, links) == ("BETA ALPHA", "0-1 1-0")
    assert len(others) == 3
    assert float(score) > float(others[1])
    record = json.loads(
        good("generate", model, "--nbest", "2", "--beam", "3", "--json", "--align", text="alpha beta\n")
    )
    assert [list(output) for output in record["outputs"]] == [["text", "score", "log_prob", "alignment"]] * 2


def test_sampling_is_repeatable(model: Path) -> None:
    options = ("generate", model, "--sample", "--temperature", "3", "--nbest", "5")
    first, again, other = (good(*options, "--seed", seed, text="alpha beta gamma\n") for seed in ("1", "1", "2"))
    assert first == again != other
    assert len(first.split("\t")) == 5
    alone = regard.load(model).generate(["alpha beta gamma"] * 20, sample=True, temperature=3.0, batch_tokens=1)
    assert len(set(alone)) > 1  # batches of one sentence are not drawn alike


def test_output_is_not_overwritten(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("alpha beta\n")
    out = tmp_path / "out.txt"
    out.write_text("precious\n")
    assert f"{out} exists; give another name, or --force" in refused("generate", model, tmp_path / "in.txt", "-o", out)
    assert out.read_text() == "precious\n"
    good("generate", model, tmp_path / "in.txt", "-o", out, "--force")
    assert out.read_text() == "BETA ALPHA\n"
    assert f"{out} is what is read" in refused("generate", model, out, "-o", out, "--force")
    for command in (("evaluate", model, "--report", out), ("explain", model, "alpha", "-o", out.with_suffix(".html"))):
        out.with_suffix(".html").touch()
        assert "exists" in refused(*command)


def test_text_that_is_no_text_is_refused(model: Path, tmp_path: Path) -> None:
    assert "the source is not UTF-8 text (character 7" in refused(
        "explain", model, "alpha \udcff", "-o", tmp_path / "a.html"
    )
    with pytest.raises(DataError, match=r"texts: number 1 is not UTF-8 text \(character 2"):
        regard.load(model).generate(["alpha", "a\ud800b"])


@whole
def test_a_killed_job_goes_on_where_it_was(model: Path, tmp_path: Path) -> None:
    """SIGKILL while lines are being written: the same command adds the rest, and the file is the whole."""
    sentences = ["alpha beta gamma", "delta", "epsilon zeta", "eta theta alpha beta"] * 5000
    source, out, partial = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "out.txt.partial" / "lines"
    source.write_text("".join(line + "\n" for line in sentences))
    command = [sys.executable, "-m", "regard", "generate", str(model), str(source), "-o", str(out), "--beam", "2"]
    process = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while (not partial.exists() or not partial.stat().st_size) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = partial.read_bytes()
    assert kept
    assert not out.exists()
    partial.write_bytes(kept + b"half a li")
    assert "is of another job (beam (2 before, 1 now))" in refused("generate", model, source, "-o", out, "--beam", "1")
    changed = tmp_path / "changed.txt"
    changed.write_text(source.read_text().replace("delta", "DELTA"))
    assert "changed.txt:2 is not the line that" in refused("generate", model, changed, "-o", out, "--beam", "2")
    changed.unlink()
    good("generate", model, source, "-o", out, "--beam", "2")
    assert out.read_bytes().startswith(kept)
    unique = dict(
        zip(
            sentences[:4],
            good("generate", model, "--beam", "2", text="\n".join(sentences[:4])).splitlines(),
            strict=True,
        )
    )
    assert out.read_text().splitlines() == [unique[line] for line in sentences]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_score(model: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "p.tsv"
    long = "alpha " * 1500
    pairs.write_text(f"alpha beta\tBETA ALPHA\nalpha beta\tALPHA BETA\nalpha\t{long}\n")
    done = run("score", model, pairs, "--tokens")
    right, wrong, empty = done.stdout.split("\n")[:3]
    assert empty == ""
    assert f"{pairs}:3 has a target of 1500 tokens" in done.stderr
    assert float(right.split("\t")[0]) > float(wrong.split("\t")[0])
    total, tokens = right.split("\t")
    assert sum(map(float, tokens.split())) == pytest.approx(float(total), abs=1e-3)
    (api,) = regard.load(model).score(["alpha beta"], ["BETA ALPHA"])
    assert api.log_prob == pytest.approx(float(total), abs=1e-3)


def test_evaluate_and_its_report(model: Path, tmp_path: Path) -> None:
    report, outputs = tmp_path / "report.json", tmp_path / "outputs.txt"
    shown = good("evaluate", model, model.parent / "test.tsv", "--report", report, "-o", outputs)
    content = json.loads(report.read_text())
    assert set(content["scores"]) == {"bleu", "chrf", "ter", "exact", "perplexity", "aer", "pointing"}
    assert content["examples"] == len(outputs.read_text().splitlines()) == 120
    assert content["scores"]["bleu"]["signature"] in shown
    assert content["scores"]["bleu"]["score"] > 90
    assert content["scores"]["aer"]["score"] < 0.2
    assert "120 examples" in good("evaluate", model)  # the config's own test data


def test_a_tokenizer_of_bleu_that_cannot_be_used_is_told(model: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("alpha\tALPHA\n")
    assert "no BLEU tokenizer 'nope'; there are: none, zh, 13a" in refused("evaluate", model, pairs, "--tokenize=nope")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ipadic", None)
        patch.setitem(sys.modules, "MeCab", None)
        told = refused("evaluate", model, pairs, "--tokenize=ja-mecab")
    assert "the BLEU tokenizer 'ja-mecab' cannot be used: Japanese tokenization requires" in told
    assert "device 'moon' cannot be used here; try auto or cpu (training.device, or --device)" in refused(
        "generate", model, pairs, "--device=moon"
    )


def test_explain(model: Path, tmp_path: Path) -> None:
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!"), ("a.json", b"[{")):
        good("explain", model, "alpha beta gamma", "-o", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    good("explain", model, "alpha beta", "gamma", "-o", tmp_path / "two.html")
    assert "a picture shows one sentence, not 2" in refused("explain", model, "alpha", "beta", "-o", tmp_path / "b.png")
    assert "there are: decoder.attention" in refused(
        "explain", model, "alpha", "--layer", "x", "-o", tmp_path / "b.png"
    )
    assert "the source is empty" in refused("explain", model, " ", "-o", tmp_path / "b.png")
    assert "either texts to explain or --examples FILE" in refused("explain", model)
    assert "no source 2 in this explanation; it has 1" in refused(
        "explain", model, "alpha", "--source", "2", "-o", tmp_path / "b.png"
    )
    assert "'decoder.attention' is no head; write LAYER:HEAD" in refused(
        "explain", model, "alpha", "--off", "decoder.attention", "-o", tmp_path / "b.png"
    )
    assert "no method 'x'; there are: gradient, erasure" in refused(
        "explain", model, "alpha", "--method", "x", "-o", tmp_path / "b.png"
    )
    assert not (tmp_path / "b.png").exists()


def test_explain_by_other_means_and_without_a_head(model: Path, tmp_path: Path) -> None:
    how = ("--method", "erasure", "--off", "decoder.attention:0", "-o", tmp_path / "a.json")
    shown = good("explain", model, "alpha beta gamma", *how)
    (found,) = json.loads((tmp_path / "a.json").read_text())
    assert [layer["name"] for layer in found["layers"]] == ["decoder.attention", "erasure"]
    assert found["best"] == "erasure"
    assert not any(any(row) for row in found["layers"][0]["weights"][0])
    assert set(found["faithfulness"]) == {"decoder.attention", "erasure", "random"}
    assert "faithfulness: " in shown


def test_average(model: Path, tmp_path: Path) -> None:
    good("average", model, "-o", tmp_path / "mean", "--last", "2")
    assert good("generate", tmp_path / "mean", text="alpha beta\n") == "BETA ALPHA\n"
    assert "exists" in refused("average", model, "-o", tmp_path / "mean")
    assert "no checkpoints" in refused("average", tmp_path / "mean", "-o", tmp_path / "other")
    assert "is not a Regard model" in refused("average", tmp_path, "-o", tmp_path / "other")


def test_models() -> None:
    # Vaswani et al. 2017 count 65 million with a vocabulary of about 37,000
    rows = json.loads(good("models", "--json", "--vocabulary", "37000"))
    assert {row["name"]: row["parameters"] for row in rows}["transformer-base"] == pytest.approx(65e6, rel=0.05)
    shown = good("models")
    assert all(row["name"] in shown for row in rows)


def test_new_writes_a_config_that_trains(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    good("new", tmp_path, "--preset", "transformer-tiny")
    settings = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert settings["model"]["encoder"]["kind"] == "transformer"
    assert "exists" in refused("new", tmp_path)
    overrides = ["training.steps=2", "training.validate_sentences=2", "tokens.kind=char", "model.d_model=16"]
    assert "trained" in good("train", tmp_path / "config.yaml", *overrides)
    assert "did you mean 'transformer-tiny'" in refused("new", tmp_path / "x", "--preset", "transformer-tny")
    assert not (tmp_path / "x").exists()


def test_models_that_are_none(model: Path, blind: Path, tmp_path: Path) -> None:
    assert "no model folder" in refused("generate", tmp_path / "gone", text="a\n")
    assert "is not a Regard model: it has no config.yaml" in refused("generate", tmp_path, text="a\n")
    (tmp_path / "config.yaml").write_text("architectures: [MarianMTModel]\n")
    assert "unknown setting 'architectures'" in refused("generate", tmp_path, text="a\n")
    (tmp_path / "config.yaml").write_text((model / "config.yaml").read_text())
    assert "has no tokenizer" in refused("generate", tmp_path, text="a\n")
    assert "config.yaml is a file; a model is a folder: the one that `run`" in refused(
        "generate", model / "config.yaml"
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(toy_settings()))
    assert f"{tmp_path} holds a config and no model; its model is the folder that `run` names, " in (
        refused("generate", tmp_path, text="a\n")
    )
    assert "no attention" in refused("generate", blind, "--align", text="alpha\n")
    assert "search.coverage needs a model with attention" in refused(
        "generate", blind, "--set", "coverage=1", text="alpha\n"
    )
    assert "no attention" in refused("explain", blind, "alpha", "-o", tmp_path / "a.png")
    assert "'beam' in [search] is 0" in refused("generate", model, "--beam", "0", text="a\n")
    assert "unknown setting 'bem'" in refused("generate", model, "--set", "bem=2", text="a\n")
    (tmp_path / "empty.txt").touch()
    assert "empty.txt is empty" in refused("generate", model, tmp_path / "empty.txt")
    assert "no file" in refused("generate", model, tmp_path / "gone.txt")


def test_new_takes_data_from_where_its_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.en", "a.de", "b.tsv"):
        Path(name).write_text("one\ttwo\n")
    assert "set data.valid in it, then regard train" in good("new", "other/here", "--train", "b.tsv")
    assert "next: regard train mine/config.yaml" in good(
        "new", "mine", "--train", "a.en", "--train", "a.de", "--valid", tmp_path / "b.tsv"
    )
    data = regard.Config.load(tmp_path / "mine" / "config.yaml").data
    assert [Path(file).resolve() for file in data.train or ()] == [tmp_path / "a.en", tmp_path / "a.de"]
    assert isinstance(data.valid, str)
    assert Path(data.valid).resolve() == tmp_path / "b.tsv"
    assert "no file gone.tsv" in refused("new", "third", "--train", "gone.tsv")
    assert "give one or the other" in refused("new", "third", "--train", "b.tsv", "--corpus", "text")
    refusal = "--text gives what the corpus 'spoken' says, and"
    assert f"{refusal} there is no --corpus; give --corpus spoken" in refused("new", "third", "--text", "b.tsv")
    assert f"{refusal} --corpus text has texts of its own" in refused("new", "third", "--corpus=text", "--text=b.tsv")
    spoken = ("new", "third", "--corpus=spoken")
    assert "no file gone.txt" in refused(*spoken, "--text=gone.txt")
    assert "--words 3-5 chooses among sentences" in refused(*spoken, "--text=b.tsv", "--words=3-5")
    assert "b.tsv:1 has a tab, and all of a line is said" in refused(*spoken, "--text=b.tsv")
    Path("c.txt").write_text("one\n")
    assert "c.txt has too few different lines (1); give 3 or more" in refused(*spoken, "--text=c.txt")
    assert not Path("third").exists()


def test_what_is_missing_is_said_before_torch_is_imported_or_anything_written(tmp_path: Path) -> None:
    """All in one process, which could not have missed it if torch had been imported."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.yaml").touch()
    (tmp_path / "in.txt").write_text("a\n")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(toy_settings(start={"encoder": "no-body"})))
    (tmp_path / "there.html").touch()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    wanted = {
        "train gone.yaml": ["no config file gone.yaml"],
        "train c.yaml data.test=null": [
            "train.tsv; check data.train (paths in",
            "valid.tsv; check data.valid",
            "no-body",
        ],
        "compare c.yaml": ["check data.train", "check data.valid", "check data.test", "no-body; check start.encoder"],
        "generate gone in.txt": ["no model folder gone"],
        "generate . in.txt": [". is not a Regard model"],
        "generate model gone.txt": ["no file gone.txt"],
        "generate model model": ["model is a folder; name a file in it"],
        "generate model in.txt --prefixes gone.txt": ["no file gone.txt"],
        "generate model in.txt --with gone": ["no model folder gone"],
        "generate gone in.txt --engine ctranslate2": ["no model folder gone"],
        "generate model in.txt -o in.txt": ["in.txt exists; give another name, or --force to replace it"],
        "generate model in.txt -o pipe": ["pipe is a pipe or a device, not a file"],
        "generate model in.txt -o pipe --force": ["pipe is a pipe or a device, not a file"],
        "generate model in.txt -o model --force": ["model is a folder; give the name of a file"],
        "score model gone.tsv": ["no file gone.tsv"],
        "score model in.txt -o in.txt": ["in.txt exists"],
        "evaluate gone": ["no model folder gone"],
        "evaluate model in.txt --report in.txt": ["in.txt exists"],
        "explain gone text": ["no model folder gone"],
        "explain model text -o there.html": ["there.html exists"],
        "explain model text -o in.txt/new/page.html": ["in.txt/new cannot be written to: ", "in.txt is not a folder"],
        "space model gone.txt": ["no file gone.txt"],
        "export gone --to onnx -o new": ["no model folder gone"],
        "export model --to onnx -o model": ["model exists"],
        "average gone -o new": ["no model folder gone"],
        "new in.txt/new": ["in.txt/new cannot be written to: ", "in.txt is not a folder"],
        f"generate model in.txt -o {'n' * 300}": ["nnn", ": file name too long"],
    }
    code = """if True:
        import json, sys
        from regard.__main__ import main
        for line in json.loads(sys.argv[1]):
            sys.argv = ["regard", *line.split()]
            try:
                main()
            except SystemExit as left:
                print(left.code, "torch" in sys.modules, file=sys.stderr)
        """
    given = [sys.executable, "-c", code, json.dumps(list(wanted))]
    done = subprocess.run(given, cwd=tmp_path, env=ENV, capture_output=True, text=True, check=True)
    *told, last = done.stderr.split("2 False\n")
    assert last == ""
    for (command, parts), text in zip(wanted.items(), told, strict=True):
        assert all(line.startswith("regard: ") for line in text.splitlines()), (command, text)
        for part in parts:
            assert part in text, (command, text)
    assert sorted(tmp_path.rglob("*")) == before


def shell(line: str, folder: Path, **environment: str) -> Done:
    """A line of a shell in which `regard` is a command, with nothing but this in its environment."""
    program = f'regard() {{ "{sys.executable}" -m regard "$@"; }}; '
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(regard.__file__).parent.parent), **environment}
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # under a limit on the size of files Python would leave half a module
    done = subprocess.run(["bash", "-c", program + line], cwd=folder, env=env, capture_output=True, check=False)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("regard --help > /dev/full", "standard output: no space left on device"),
        ("regard --version >&-", "standard output is closed; point it at a file, or at /dev/null"),
        ("regard generate model <&-", "standard input is closed; give a FILE"),
        ("ulimit -f 1; regard new mine", "mine: file too large"),
    ],
)
def test_streams_and_disks_that_fail(line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.yaml").touch()
    assert shell(line, tmp_path) == Done(2, "", f"regard: {told}\n")


def test_standard_output_may_lose_its_reader(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "regard", "--help"]
    done = subprocess.run(command, env=ENV, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_poor_environments(tmp_path: Path) -> None:
    """No HOME, no width, no terminal, and no letters but ASCII's."""
    poor = {"COLUMNS": "1", "TERM": "dumb", "LC_ALL": "C"}
    assert shell("regard new größe", tmp_path, **poor).stdout.startswith("wrote größe/config.yaml\n")
    poorer = {**poor, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell("regard new größe --force", tmp_path, **poorer)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("wrote gr")
    assert shell("regard new größe 2>&-", tmp_path, **poorer) == Done(
        2, "", ""
    )  # it exists, but there is no way to say so
    assert "Usage: regard generate" in shell("regard generate --help", tmp_path, **poor).stdout


def test_too_little_memory_is_said_and_a_bug_is_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError) as torchs:
        torch.empty(1 << 50, dtype=torch.uint8)
    for error in (MemoryError(), torchs.value, torch.OutOfMemoryError(), OSError(errno.ENOMEM, "")):
        assert say_what(error) == 2
        assert "regard: out of memory; lower training.batch_tokens" in capsys.readouterr().err
    for bug in (RecursionError(), RuntimeError("other"), KeyError("x")):
        assert say_what(bug) is None
    assert say_what(OSError("a library's own words")) == 2
    assert capsys.readouterr().err == "regard: a library's own words\n"


def test_what_python_shows_of_a_model(model: Path) -> None:
    assert dir(regard) == [
        "AttentionScore", "Body", "Config", "Edits", "EncoderSettings", "HeadTarget", "Metric", "Modality", "Objective",
        "ObjectiveSettings", "RegardError", "RowEdit", "Score", "SideSettings", "Stem", "StemSettings", "System",
        "Target", "TargetSettings", "Tokenizer", "Watcher", "__version__", "capture", "export", "import_model", "load",
        "register", "train",
    ]  # fmt: skip
    assert all(getattr(regard, name) for name in dir(regard))
    system = regard.load(model, device="cpu")
    size = f"{system.parameters():,} parameters on cpu"
    assert repr(system) == f"System('{model}': text to text, encoder lstm, decoder lstm, {size})"
    shown = repr(system.explain("alpha beta"))
    assert shown == (
        "Explanation(source='alpha beta </s>', target='BETA ALPHA </s>', layers=['decoder.attention'])"
    )  # fmt: skip
    assert "\n" not in repr(system.explain("alpha " * 40))
    with regard.capture(system) as trace:
        scored = system.score(["alpha beta"], ["BETA ALPHA"])
    assert scored == system.score(["alpha beta"], ["BETA ALPHA"])
    assert trace.weights("decoder.attention", 0).shape == (1, 3, 3)


def test_texts_come_from_any_iterable_and_nothing_else(model: Path) -> None:
    system, texts = regard.load(model, device="cpu"), ["alpha beta", "gamma"]
    assert system.generate(text for text in texts) == system.generate(texts) == ["BETA ALPHA", "GAMMA"]
    assert len(system.outputs(iter(texts), prefixes=iter(["BETA", ""]), phrases=iter([[], ["GAMMA"]]))) == 2
    assert system.score(iter(texts), iter(["BETA ALPHA", "GAMMA"])) == system.score(texts, ["BETA ALPHA", "GAMMA"])
    assert system.align(iter(texts), iter(["BETA ALPHA", "GAMMA"]))[1] == [(0, 0)]
    assert system.sentence_embeddings(iter(texts)).shape[0] == len(system.token_embeddings(iter(texts))) == 2
    wrong: list[tuple[Callable[[Any], object], Any, str]] = [
        (system.generate, "text", "texts should be a list of strings, not 'text' (str); for one text write [text]"),
        (system.generate, b"text", "texts should be a list of strings, not b'text' (bytes)"),
        (system.generate, None, "texts should be a list of strings, not None (NoneType)"),
        (system.outputs, [1, 2], "texts should be strings, but number 0 is 1 (int)"),
        (system.sentence_embeddings, "text", "texts should be a list"),
        (system.token_embeddings, 3, "texts should be a list of strings, not 3 (int)"),
        (system.explain, texts, "source should be one string, not ['alpha beta', 'gamma'] (list)"),
        (lambda given: system.explain("alpha", given), texts, "target should be one string, not ["),
        (lambda given: system.score(texts, given), "GAMMA", "targets should be a list of strings, not 'GAMMA' (str)"),
        (lambda given: system.align(given, texts), ["a", b"b"], "sources should be strings, but number 1 is b'b' (b"),
        (lambda given: system.generate(texts, phrases=given), ["a", "b"], "phrases[0] should be a list of strings"),
        (lambda given: system.generate(texts, phrases=given), 5, "phrases should be a list of lists, not 5 (int)"),
        (system.choose, "alpha", "questions should be a list of pairs, not 'alpha' (str)"),
        (system.choose, ["alpha"], "questions: number 0 should be a pair (context, candidates), not 'alpha' (str)"),
        (system.choose, [("a", ["b"], "c")], "questions: number 0 should be a pair (context, candidates), not ('a',"),
        (system.choose, [("a", "bc")], "questions: number 0, candidates should be a list of strings, not 'bc' (str)"),
        (system.choose, [("a", [None])], "questions: number 0, candidates should be strings, but number 0 is None"),
    ]
    for call, given, told in wrong:
        with pytest.raises(TypeError, match=re.escape(told)):
            call(given)
    with pytest.raises(TypeError, match="source should be one string, not 5"):
        system.explain(5)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="2 sources but 1 targets; each source needs its target"):
        system.align(texts, ["GAMMA"])
    with pytest.raises(DataError, match=r"got 1: \['pairs.tsv'\]; give the one file without a list"):
        system.evaluate(["pairs.tsv"])
    with pytest.raises(ConfigError, match="no export to 'onxx'; there are: onnx, ctranslate2, huggingface"):
        regard.export(system, model.parent / "exported", to="onxx")  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        regard.lod  # type: ignore[attr-defined]  # noqa: B018


def test_training_input_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)  # to which paths on the command line are relative
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump(toy_settings()))
    (tmp_path / "short.txt").write_text("a\nb\n")
    (tmp_path / "long.txt").write_text("a\nb\nc\n")
    assert "short.txt ends after line 2 but" in refused("train", config, "data.train=[short.txt, long.txt]")
    assert "no file" in refused("train", config, "data.train=gone.tsv", "run=other")
    assert "did you mean 'steps'" in refused("train", config, "training.stpes=3")
    assert "did you mean 'steps'" in refused("train", config, "--set", "training.stpes=3")
    assert "section.setting=value" in refused("train", config, "steps")
    (tmp_path / "latin.tsv").write_bytes(b"a\tb\nc\xe9\td\n")
    assert "latin.tsv:2 is not UTF-8" in refused("train", config, "data.train=latin.tsv", "run=third")
    assert "'moon' cannot be used here; try auto or cpu" in refused(
        "train", config, "training.device=moon", "run=fourth"
    )
