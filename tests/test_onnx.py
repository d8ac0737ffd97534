"""Export to ONNX: what the graphs write is what the model writes, and running them needs no torch."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.config import parse
from regard.data.tokenizers.subwords import Subwords
from regard.data.tokenizers.symbols import Symbols
from regard.errors import ConfigError, MissingExtraError, ModelError, OutputError
from regard.loading import together
from regard.models.model import AutoregressiveModel
from regard.nn.recurrence import Recurrence
from regard.ragged import Ragged
from regard.search.limits import Hypothesis
from regard.system import System, load
from tests.conftest import (
    CELLS,
    D_MODEL,
    FULL,
    PAIRS,
    TARGET_VOCABULARY,
    TRANSFORMERS,
    Pair,
    batch,
    each_of,
    redrawn,
    tiny,
    whole,
)
from tests.toy import untrained

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from regard.exchange import onnx, parity
from regard.exchange.onnx_runner import RUNNER, Runner
from regard.exchange.onnx_trace import GraphRecurrence, Padded, exportable

BLOCK = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 12}
WORDS = ["a", "b", "c", "d", "e", "f", "g", "h"]
TEXTS = ["a b c", "h", "c c d a e f g", "b a"]


def system(encoder: dict[str, Any], decoder: dict[str, Any], source: str = "text", **more: Any) -> System:
    """A small model of random weights, in a folder that is not there."""
    search = {"max_length": 10, "max_source": 12, "beam": 3, "min_length": 2, **more.pop("search", {})}
    side = {"kind": source, **{"text": {"max_length": 10}, "image": {"size": 16}, "none": {}}[source]}
    tokenizer = more.pop("tokenizer", Symbols("word", WORDS))
    model = {"d_model": D_MODEL, "encoder": encoder, "decoder": decoder, **more}
    settings = {"source": side, "target": {"max_length": 10}, "tokens": {"kind": "word"}}
    task = untrained(parse({**settings, "model": model, "search": search}), tokenizer)
    redrawn(task.model).float()
    return System(task, Path("nowhere"))


def agrees(model: System, runner: Runner, **search: Any) -> None:
    """The same outputs and scores in one batch, and by itself for each text."""
    texts = TEXTS if runner.source["kind"] == "text" else ["", *TEXTS]
    given = {i: runner.read(text) for i, text in enumerate(texts)}
    ours = [found[0] for found in model.outputs(texts, **search)]
    together = runner.outputs(given, **search)
    for i, one in enumerate(ours):
        both, single = together[i][0], runner.search([given[i][0]], [given[i][1]], **search)[0][0]
        assert one.tokens == both.tokens == single.tokens
        assert both.score == pytest.approx(one.score, abs=1e-4)
        assert single.log_prob == pytest.approx(one.log_prob, abs=1e-4)
    assert runner.generate(texts, **search) == model.generate(texts, **search)


MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "lstm to rotary": (
        {"kind": "lstm"},
        {**BLOCK, "positions": "rotary", "normalize": "rms", "gated": True, "activation": "silu"},
        {"search": {"stop": "exact", "no_repeat": 2, "max_ratio": 0.1, "max_length": 12, "at_limit": "cut"}},
    ),
    "shared Transformers": (
        {**BLOCK, "positions": "shaw", "norm": "post"},
        {**BLOCK, "positions": "shaw", "norm": "post"},
        {
            "share_layers": True,
            "share_embeddings": True,
            "search": {"length_penalty": "none", "unknown": True, "stop": "early", "at_limit": "forced"},
        },
    ),
    "source before target": ({"kind": "none"}, {**BLOCK, "positions": "alibi"}, {}),
    "Transformer language model": (
        {"kind": "none"},
        {**BLOCK, "positions": "learned"},
        {"source": "none", "search": {"length_penalty": "gnmt", "alpha": 0.6}},
    ),
    "LSTM language model": ({"kind": "none"}, {"kind": "lstm"}, {"source": "none"}),
}


@whole
@pytest.mark.parametrize("name", MODELS)
def test_an_export_writes_what_the_model_writes(name: str, tmp_path: Path) -> None:
    encoder, decoder, more = MODELS[name]
    model = system(encoder, decoder, **more)
    report = onnx.export(model, tmp_path / "made", lines=8)
    assert report.made_up
    assert (report.lines, report.greedy_matches, report.beam_matches) == (8, 8, 8)
    assert report.difference < 1e-4
    runner = Runner(tmp_path / "made")
    agrees(model, runner, beam=1)
    agrees(model, runner)
    agrees(model, runner, beam=4, max_length=7, min_length=0)


@whole
def test_pictures_are_read_too(tmp_path: Path) -> None:
    from PIL import Image

    model = system({"kind": "stem", "halvings": 2, "channels": 4}, {"kind": "lstm", "context": "every"}, "image")
    assert onnx.export(model, tmp_path / "made", lines=3).beam_matches == 3
    paths = [str(tmp_path / f"{i}.png") for i in range(2)]
    for i, path in enumerate(paths):
        pixels = np.random.default_rng(i).integers(256, size=(20, 18, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(path)
    assert Runner(tmp_path / "made").generate(paths) == model.generate(paths)
    done = run_bare(tmp_path / "made" / "runner.pyz", [paths[0], "gone.png", paths[1]], "PIL", "pillow.libs")
    one, nothing, other = done.stdout.splitlines()
    assert ([one, other], nothing) == (model.generate(paths), "")
    assert done.stderr.startswith("runner: input 1 cannot be used: no picture gone.png; ")


@each_of(PAIRS if FULL else PAIRS[::2])
def test_what_is_traced_is_what_the_model_does(pair: Pair) -> None:
    """All models, in float64 and without a graph: states from padded sources, then steps of two rows a source."""
    model, (source, _) = tiny(pair), batch()
    layout = _layout(model)
    taken = torch.arange(len(source)).repeat_interleave(2)
    with torch.no_grad():
        state = model.start(source).select(taken)
    encode, step = onnx.functions(exportable(model, TorchRecurrence), layout)
    with torch.no_grad():
        given = dict(zip(layout.started, encode(source.padded(), source.lengths), strict=True))
    rows = [name for name, shape in layout.shapes.items() if shape[0] == "rows"]
    for name in rows:
        if name not in given:
            shape = [
                {"rows": len(source), "past": 0}.get(n, n) if isinstance(n, str) else n for n in layout.shapes[name]
            ]
            given[name] = torch.zeros([int(n) for n in shape], dtype=torch.float64)
        given[name] = given[name][taken]
    for turn in range(4):
        tokens = (torch.arange(len(taken)) * 3 + turn) % TARGET_VOCABULARY
        with torch.no_grad():
            want, state = model.step(tokens, state)
            got, *after = step(tokens, *(given[name] for name in layout.shapes))
        torch.testing.assert_close(got, want)
        order = torch.arange(len(taken)).view(-1, 2).flip(1).flatten()  # rows of a source change places
        given |= {name: new[order] for name, new in zip(rows, after, strict=True)}
        state = state.select(order)


def _layout(model: AutoregressiveModel) -> onnx.Layout:
    decoder: Any = model.decoder
    if hasattr(decoder, "blocks"):
        return onnx.TransformerLayout(decoder, before=False)
    return onnx.RecurrentLayout(decoder)


class TorchRecurrence(GraphRecurrence):
    """torch's kernels in the place of ONNX's, which run in a graph alone."""

    def forward(self, x: Padded, carry: Tensor) -> tuple[Padded, Tensor]:
        packed, after = self.plain(Ragged.from_padded(x.padded(), x.lengths.tolist()), carry)
        return x.unpadded(packed.padded()), after


@whole
def test_recurrence_in_a_graph_knows_where_rows_end(tmp_path: Path) -> None:
    import onnxruntime

    stacks: Any = torch.nn.ModuleList(
        redrawn(Recurrence(cell, 4, 6, 2), seed=i).float() for i, cell in enumerate(CELLS)
    )

    traced = exportable(stacks)

    def recur(x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        rows = Padded.of_rows(x.flatten(0, 1), lengths, x.shape[1])
        found = [stack(rows, stack.start(x.shape[0], x) + 0.5) for stack in traced]
        return tuple(part for states, end in found for part in (states.padded(), end))

    names = [f"{what}_{cell}" for cell in CELLS for what in ("states", "end")]
    onnx.write(
        tmp_path / "all.onnx",
        onnx.Traced(traced, recur),
        {"x": (torch.zeros(3, 5, 4), {0: "rows", 1: "longest"}), "lengths": (torch.tensor([5, 1, 2]), {0: "rows"})},
        names,
    )
    lengths = [3, 0, 6, 1]
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    rows = Ragged.from_lengths(x, lengths)
    session = onnxruntime.InferenceSession(str(tmp_path / "all.onnx"))
    found = dict(
        zip(names, session.run(names, {"x": rows.padded().numpy(), "lengths": np.array(lengths)}), strict=True)
    )
    for cell, stack in zip(CELLS, stacks, strict=True):
        with torch.no_grad():
            states, end = stack(rows, stack.start(4, x) + 0.5)
        np.testing.assert_allclose(found[f"states_{cell}"], states.padded().numpy(), atol=1e-5)
        np.testing.assert_allclose(found[f"end_{cell}"], end.numpy(), atol=1e-5)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[System, Path]:
    """A trained model's folder as a user has it, and its export."""
    folder = tmp_path_factory.mktemp("onnx")
    decoder = {"kind": "gru", "score": "dot", "place": "feeding", "hard": True}
    system({**BLOCK, "positions": "t5"}, decoder).save(folder / "model")
    model = load(folder / "model", device="cpu")
    onnx.export(model, folder / "made", lines=8)
    return model, folder / "made"


def run_bare(program: Path, lines: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    """Run a program where nothing is installed but NumPy, ONNX Runtime, SentencePiece and what else is named."""
    site = program.parent.parent / "site"
    site.mkdir(exist_ok=True)
    installed = Path(np.__file__).parent.parent
    for name in ("numpy", "numpy.libs", "onnxruntime", "sentencepiece", *more):
        if (installed / name).exists() and not (site / name).exists():
            (site / name).symlink_to(installed / name)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "PYTHONUTF8": "1"}
    bare = [sys.executable, "-S", "-s"]
    for absent in ("torch", "pydantic", "regard"):
        done = subprocess.run(
            [*bare, "-c", f"import {absent}"], env=environment, cwd=site, capture_output=True, text=True
        )
        assert f"No module named '{absent}'" in done.stderr
    return subprocess.run(
        [*bare, str(program)], env=environment, cwd=site, capture_output=True, text=True, check=True,
        input="".join(f"{line}\n" for line in lines),
    )  # fmt: skip


def test_the_folder_is_whole_and_runs_where_no_torch_is(made: tuple[System, Path], tmp_path: Path) -> None:
    model, folder = made
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    files = {"config.yaml", "encoder.onnx", "regard.json", "runner.json", "runner.pyz", "step.onnx", "tokens.json"}
    assert {path.name for path in moved.iterdir()} == files
    done = run_bare(moved / "runner.pyz", TEXTS)
    assert done.stdout.splitlines() == model.generate(TEXTS)
    assert not done.stderr


def test_an_installed_regard_runs_a_folder_that_is_named(made: tuple[System, Path], tmp_path: Path) -> None:
    model, folder = made
    command = [sys.executable, "-m", "regard.exchange.onnx_runner"]
    for given, said in ((["gone"], "runner: gone is no ONNX export: it has no runner.json"), ([], "usage: ")):
        done = subprocess.run([*command, *given], input="", capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith(said)
    done = subprocess.run([*command, str(folder)], input=f"{TEXTS[0]}\n\n", capture_output=True, text=True, check=True)
    assert done.stdout == f"{model.generate(TEXTS[:1])[0]}\n\n"
    assert done.stderr == "runner: input 1 is empty; its output is empty\n"


def test_subwords_a_prompt_that_is_too_long_and_search_that_the_runner_lacks(tmp_path: Path) -> None:
    lines = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(8)]
    subwords = Subwords.train(lines, "unigram", 300)
    model = system({"kind": "none"}, {"kind": "lstm"}, "none", tokenizer=subwords, search={"beam": 3, "groups": 3})
    report = onnx.export(model, tmp_path / "made", lines=2)
    assert report.left_out == ["search.groups"]
    assert str(report).endswith("; the runner does without search.groups")
    prompts = ["a b", " ".join(WORDS * 3), "h"]
    long = len(model.task.target.encode(prompts[1]))
    what = (
        f"input 1 has a prompt of {long} tokens, more than the 10 that search.max_length=10 allows; its output is empty"
    )
    with pytest.warns(UserWarning, match=what):
        wanted = model.generate(prompts, groups=1)
    assert wanted[1] == ""
    done = run_bare(tmp_path / "made" / "runner.pyz", prompts)
    assert done.stdout.splitlines() == wanted
    assert done.stderr == f"runner: {what}\n"


def test_hard_attention_looks_at_the_same_places(made: tuple[System, Path]) -> None:
    agrees(made[0], Runner(made[1]))


def test_a_folder_says_what_is_whose(made: tuple[System, Path]) -> None:
    facts = json.loads((made[1] / RUNNER).read_text())
    assert facts["source"] == {"kind": "text", "tokens": "tokens", "end": [3]}
    assert facts["marks"]["first"] == 2
    assert facts["positions"] == made[0].task.longest
    assert facts["search"]["beam"] == 3
    runner = Runner(made[1])
    assert {entry.name: entry.shape for entry in runner.step.get_inputs()} == {
        "tokens": ["rows"], "carry": ["rows", 1, 1, D_MODEL], "fed": ["rows", D_MODEL],
        "values": ["sources", 1, "source", D_MODEL], "keys": ["sources", 1, "source", D_MODEL],
        "mask": ["sources", "source"],
    }  # fmt: skip
    assert [output.name for output in runner.step.get_outputs()] == ["log_probs", "next_carry", "next_fed"]
    decoder: Any = tiny(("rnn-uni", "transformer-t5")).decoder
    growing = onnx.TransformerLayout(decoder, before=False)
    assert {name: shape[:2] for name, shape in growing.shapes.items()} == {
        "past_0": ("rows", "past"), "past_1": ("rows", "past"), "source_0": ("sources", "source"),
        "source_1": ("sources", "source"), "mask": ("sources", "source"),
    }  # fmt: skip
    assert growing.started == ["source_0", "source_1", "mask"]


def test_an_empty_row_is_a_row(made: tuple[System, Path]) -> None:
    """A source without a token is not given to a search, but a graph takes it."""
    model, folder = made
    runner = Runner(folder)
    runner.source["end"] = []
    state = runner.start([[7, 8], [], [9]])
    with model.task.inference():
        want: Any = model.task.model.start(Ragged.of([[7, 8], [], [9]]))  # type: ignore[operator]
    np.testing.assert_allclose(state["carry"], want.carry.numpy(), atol=1e-5)
    log_probs, _ = runner.advance(np.full(3, 2), state)
    with model.task.inference():
        expected, _ = model.task.model.step(torch.full((3,), 2), want)  # type: ignore[operator]
    np.testing.assert_allclose(log_probs, expected.numpy(), atol=1e-5)


def test_what_cannot_be_used_gets_no_output(made: tuple[System, Path]) -> None:
    model, folder = made
    runner = Runner(folder)
    for text, what in (
        ("", "input 1 is empty; its output is empty"),
        ("a " * 13, r"input 1 has 13 tokens, more than search.max_source=12; split it; its output is empty"),
    ):
        for one in (model, runner):
            with pytest.warns(UserWarning, match=what):
                assert one.generate(["a b", text])[1] == ""
    assert runner.generate([]) == []
    with pytest.raises(ConfigError, match="this runner knows no search setting 'top_k'; there are: beam, "):
        runner.generate(["a"], top_k=3)
    with pytest.raises(ConfigError, match=r"source 1 has a prefix of 3 tokens, more than the 2 that search.max_length"):
        runner.search([[7], [8]], [[9], [9, 9, 9]], max_length=2)
    with pytest.raises(ModelError, match=r"is no ONNX export: it has no runner.json; `regard export` makes one"):
        Runner(folder.parent)


def test_a_limit_that_leaves_no_way_on_gives_what_is_open(made: tuple[System, Path]) -> None:
    model, folder = made
    limits: dict[str, Any] = {"beam": 2, "max_length": 2, "min_length": 3}
    found = Runner(folder).search([[7, 8], [9]], **limits)
    search = model.config.search.model_copy(update=limits)
    ours = model.task.search([[7, 8], [9]], search)  # type: ignore[attr-defined]
    assert [best[0].tokens for best in found] == [best[0].tokens for best in ours]
    assert found[0][0].score == -np.inf


def test_what_cannot_be_exported_is_refused(made: tuple[System, Path], tmp_path: Path) -> None:
    model, folder = made
    alone = system({**TRANSFORMERS["transformer-pre-learned"]}, {"kind": "none"}, "none")
    with pytest.raises(ConfigError, match=r"model\.decoder\.kind is none: an encoder alone writes nothing"):
        onnx.export(alone, tmp_path / "made")
    with pytest.raises(ConfigError, match="an ensemble is several models, which ONNX runs one at a time"):
        onnx.export(System(together([model.task, model.task]), folder), tmp_path / "made")
    with patch.dict(sys.modules, {"onnxscript": None}), pytest.raises(MissingExtraError, match=r"need onnxscript; pip"):
        onnx.export(model, tmp_path / "made")
    with pytest.raises(OutputError, match="exists; give another name, or --force"):
        onnx.export(model, folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(OutputError, match="is no ONNX export that Regard has marked as its own, so it is not replaced"):
        onnx.export(model, tmp_path / "other", force=True)
    shutil.copy(folder / "runner.json", tmp_path / "other")  # a file of that name makes no export of it
    with pytest.raises(OutputError, match="is no ONNX export that Regard has marked as its own, so it is not replaced"):
        onnx.export(model, tmp_path / "other", force=True)
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["file", "runner.json"]
    before = (tmp_path / "made.tmp", tmp_path / "made.tmp" / "mine.txt")
    before[0].mkdir()
    before[1].write_text("dear diary")
    with patch.object(onnx, "trace", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        onnx.export(model, tmp_path / "made")
    assert before[1].read_text() == "dear diary"  # also where a folder has a name that one might write under
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.tmp", "other"]


def test_an_export_that_writes_something_else_is_thrown_away(made: tuple[System, Path], tmp_path: Path) -> None:
    model, folder = made
    other = System(copy.deepcopy(model.task), folder)
    with torch.no_grad():
        other.task.model.head.linear.bias[7] += 0.5

    def graphs(task: Any, to: Path) -> None:
        for name in (onnx.ENCODER, onnx.STEP):
            (to / name).write_bytes((folder / name).read_bytes())

    with patch.object(onnx, "trace", graphs), pytest.raises(ModelError, match="does not write what the model writes"):
        onnx.export(other, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def agree(task: Any, ours: list[int], theirs: list[int], apart: float = 1.0) -> bool:
    return parity.agree(task, [7, 8], Hypothesis(ours, -5.0, -5.0), Hypothesis(theirs, -5.0 - apart, -5.0))


def test_places_as_good_as_each_other_are_a_tie() -> None:
    decoder = {"kind": "gru", "score": "dot", "place": "output", "hard": True}
    task: Any = system({"kind": "rnn"}, decoder).task
    assert agree(task, [9, 10], [9, 10], apart=1e-3)
    assert not agree(task, [9, 10], [9, 10])
    with torch.no_grad():
        task.model.encoder.stem.embedding.table.weight.zero_()
        for weight in task.model.encoder.parameters():
            weight.zero_()
    assert agree(task, [9, 10], [9, 10])


def test_tokens_as_likely_as_each_other_are_a_tie() -> None:
    task: Any = system({"kind": "rnn"}, {"kind": "gru"}).task
    assert not agree(task, [9, 10], [9, 11], apart=0.0)
    assert not agree(task, [9], [9, 11], apart=0.0)
    with torch.no_grad():
        for parameter in (task.model.head.linear.weight, task.model.head.linear.bias):
            parameter[11] = parameter[10]
            parameter[12] = parameter[3]
    assert agree(task, [9, 10], [9, 11])
    assert agree(task, [9], [9, 12])
    assert not agree(task, [9, 10], [9, 13])
