"""The command line as its user meets it: what each command gives, and what is said when it cannot."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import regard
from regard.cli import main
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
        with pytest.raises(SystemExit) as left:
            main()
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
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    write_corpus(folder)
    regard.train(toy_config(folder, training={"steps": 600}))
    return folder / "run"


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without attention."""
    folder = tmp_path_factory.mktemp("blind")
    write_corpus(folder)
    last = {"decoder": {"kind": "lstm", "context": "last", "score": None, "place": None}}
    regard.train(toy_config(folder, model=last, training={"steps": 5}))
    return folder / "run"


def test_help_does_not_import_torch() -> None:
    code = "import sys, regard.cli as cli; cli.app(['--help'], standalone_mode=False); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    assert "translate" in good("generate", "--help")
    assert good("--version") == f"regard {regard.__version__}\n"


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
    for command in (("evaluate", model, "--report", out), ("explain", model, "alpha", "-o", out.with_suffix(".html"))):
        out.with_suffix(".html").touch()
        assert "exists" in refused(*command)


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
    assert f"{pairs}:3 has 1500 tokens" in done.stderr
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
    assert content["examples"] == len(outputs.read_text().splitlines()) == 60
    assert content["scores"]["bleu"]["signature"] in shown
    assert content["scores"]["bleu"]["score"] > 90
    assert content["scores"]["aer"]["score"] < 0.2
    assert "60 examples" in good("evaluate", model)  # the config's own test data


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
    assert not (tmp_path / "b.png").exists()


def test_average(model: Path, tmp_path: Path) -> None:
    good("average", model, "-o", tmp_path / "mean", "--last", "2")
    assert good("generate", tmp_path / "mean", text="alpha beta\n") == "BETA ALPHA\n"
    assert "exists" in refused("average", model, "-o", tmp_path / "mean")
    assert "no checkpoints" in refused("average", tmp_path, "-o", tmp_path / "other")


def test_models() -> None:
    rows = json.loads(good("models", "--json"))
    # Vaswani et al. 2017 count 65 million with a vocabulary of about 37,000
    rows_37k = json.loads(good("models", "--json", "--vocabulary", "37000"))
    assert {row["name"]: row["parameters"] for row in rows_37k}["transformer-base"] == pytest.approx(65e6, rel=0.05)
    assert len(rows) == len(rows_37k)
    assert "bahdanau2015" in good("models")


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


def test_training_input_that_cannot_be_used(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump(toy_settings()))
    (tmp_path / "short.txt").write_text("a\nb\n")
    (tmp_path / "long.txt").write_text("a\nb\nc\n")
    pair = f"data.train=[{tmp_path}/short.txt, {tmp_path}/long.txt]"
    assert "short.txt ends after line 2 but" in refused("train", config, pair)
    assert "no file" in refused("train", config, "data.train=gone.tsv", "run=other")
    assert "did you mean 'steps'" in refused("train", config, "training.stpes=3")
    assert "did you mean 'steps'" in refused("train", config, "--set", "training.stpes=3")
    assert "section.setting=value" in refused("train", config, "steps")
    (tmp_path / "latin.tsv").write_bytes(b"a\tb\nc\xe9\td\n")
    assert "latin.tsv:2 is not UTF-8" in refused("train", config, "data.train=latin.tsv", "run=third")
    assert "'moon' cannot be used here; try auto or cpu" in refused(
        "train", config, "training.device=moon", "run=fourth"
    )
