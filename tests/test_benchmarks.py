"""The benchmarks: what they count, how they take turns, and that each runs. Nothing here is timed."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import regard
from benchmarks import experiments
from benchmarks.__main__ import OTHERS, RACES, main
from benchmarks.flops import floor_seconds, step_flop
from benchmarks.peers import DECODING, base
from benchmarks.peers.conformer import SPEECH, RegardConformer, SpeechLoad
from benchmarks.peers.ours import Regard, fixed_search, liven, make_task
from benchmarks.peers.pretraining import PRETRAINING, RegardText, TextLoad
from benchmarks.peers.vit import VISION, RegardViT, VisionLoad
from benchmarks.pretrain import SHAPES as TEXTS
from benchmarks.race import Case, Contender, Race, Role, Spread, UnavailableError, Work
from benchmarks.report import Report, headlines, number, rows, table
from benchmarks.speech import SHAPES as CONFORMERS
from benchmarks.vision import SHAPES as VITS
from benchmarks.workload import LONGEST, SHAPES, Window, draw_lengths, pad, sentences
from regard.config import parse
from regard.data.batch import Room
from regard.data.marks import BOS, EOS, PAD
from regard.errors import ConfigError
from regard.exchange.huggingface import read_network
from regard.runs import train
from regard.training.checkpoint import set_weights
from tests.conftest import FULL, whole
from tests.toy import toy_config, write_corpus

CPU = torch.device("cpu")


def has(name: str) -> bool:
    return find_spec(name) is not None


def report_of(*arguments: str) -> Report:
    with warnings.catch_warnings(action="ignore"):
        return cast(Report, main(arguments))


def missing(case: Case) -> dict[str, str]:
    return {x.name: x.missing for x in case.contenders if x.missing}


# Statistics


def ran(name: str, role: Role, values: list[float], against: str = "") -> Contender:
    return Contender(name, role, lambda: Work(lambda: 1.0, lambda: None), against, values)


def some_case(*, more: bool = True) -> Case:
    contenders = [
        ran("Regard", "ours", [20.0, 30.0, 40.0]),
        ran("slow", "peer", [10.0, 10.0, 10.0]),
        ran("quick", "peer", [20.0, 20.0, 50.0]),
        ran("other", "beside", [100.0, 100.0, 100.0]),
        ran("gone", "peer", []),
    ]
    contenders[-1].missing = "not installed; pip install gone"
    return Case("base", "tokens/s", contenders, "a workload", more)


def test_a_spread_is_the_median_with_the_least_and_the_greatest() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([4.0, 1.0]) == Spread(2.5, 1.0, 4.0)


def test_ratios_are_taken_within_a_round() -> None:
    case = some_case()
    assert case.best_peer is case.contenders[2]
    assert case.ratio(case.contenders[1]) == Spread(3.0, 2.0, 4.0)
    assert case.ratio(case.contenders[2]) == Spread(1.0, 0.8, 1.5)
    assert case.ratio(case.contenders[4]) is None


def test_where_less_is_better_a_ratio_above_one_still_speaks_for_regard() -> None:
    case = some_case(more=False)
    assert case.best_peer is case.contenders[1]
    assert case.ratio(case.contenders[1]) == Spread(1 / 3, 0.25, 0.5)


def test_the_table_has_ratios_before_medians_and_names_who_is_not_there() -> None:
    found = rows([some_case()])
    assert found[0] == ["case", "system", "Regard is … times as fast", "tokens/s"]
    assert found[1] == ["base", "Regard", "–", "30 (20–40)"]
    assert found[2] == ["base", "slow", "3.00 (2.00–4.00)", "10 (10–10)"]
    assert found[-1] == ["base", "gone", "–", "not run"]
    assert headlines(some_case()) == ["base: Regard is 1.00 times as fast as quick, its best peer (0.80–1.50)"]
    lines = table(found).splitlines()
    assert set(lines[1]) == set("| -:")
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)


def test_of_a_cpu_throughput_is_shown_as_ratios_but_time_as_it_is() -> None:
    case = some_case()
    case.contenders[0].extra = {"ms/step": 3.0, "% of peak": 40.0}
    found = rows([case], absolute=False)
    assert found[0] == ["case", "system", "Regard is … times as fast", "% of peak"]
    assert found[1:3] == [["base", "Regard", "–", "40"], ["base", "slow", "3.00 (2.00–4.00)", "–"]]
    assert found[-1] == ["base", "gone", "not run", "–"]
    assert rows([some_case(more=False)], absolute=False)[2][2:] == ["0.33 (0.25–0.50)", "10 (10–10)"]
    alone = Case("x", "tokens/s", [ran("Regard", "ours", [2.0])])
    assert rows([alone], absolute=False) == [["case", "system", "tokens/s"], ["x", "Regard", "2 (2–2)"]]


def test_a_contender_can_be_compared_with_another_than_regards_peers() -> None:
    case = some_case()
    case.contenders += [ran("via", "beside", [8.0, 9.0, 11.0], "slow"), ran("x", "beside", [], "slow")]
    assert [(mine.name, other.name) for mine, other in case.pairs] == [("via", "slow")]
    assert case.ratio(case.contenders[1], case.contenders[5]) == Spread(0.9, 0.8, 1.1)
    assert headlines(case)[1:] == ["base: via is 0.90 times as fast as slow (0.80–1.10)"]


def test_numbers_have_the_digits_that_matter() -> None:
    assert [number(x) for x in (0.012341, 1.5, 123.4, 12345.6)] == ["0.01234", "1.5", "123.4", "12,346"]


def test_a_report_can_be_kept(tmp_path: Path) -> None:
    report = Report("Training", "python -m benchmarks train-cpu", "words", CPU, [some_case()])
    report.save(tmp_path / "new" / "report.json")
    kept = json.loads((tmp_path / "new" / "report.json").read_text())
    (case,) = kept["cases"]
    assert case["headlines"] == headlines(some_case())
    assert [(x["name"], x["values"]) for x in case["contenders"][:2]] == [("Regard", [20, 30, 40]), ("slow", [10] * 3)]
    assert case["contenders"][-1]["missing"] == "not installed; pip install gone"
    assert {"Python", "Regard", "torch"} <= set(kept["versions"])
    assert "not run: gone: not installed; pip install gone" in report.text()
    assert "only ratios are shown" in report.text()


# Turns


def taking_turns(*names: str) -> tuple[list[str], Case]:
    """Contenders that write down when they are called."""
    heard: list[str] = []

    def work(name: str) -> Work:
        def turn() -> float:
            heard.append(name)
            return 1.0

        return Work(turn, lambda: heard.append(f"warm {name}"), warm_again=name == "again")

    made = [Contender(name, "peer" if i else "ours", lambda n=name: work(n)) for i, name in enumerate(names)]  # type: ignore[misc]
    return heard, Case("x", "y", made)


def test_contenders_take_turns_and_the_first_turn_goes_round() -> None:
    heard, case = taking_turns("a", "b", "c")
    Race(CPU, 2, lambda text: None).run(case)
    assert heard == ["warm a", "warm b", "warm c", "a", "b", "c", "b", "c", "a"]
    assert [len(contender.values) for contender in case.contenders] == [2, 2, 2]


def test_on_a_cpu_a_turn_comes_after_an_untimed_one() -> None:
    heard, case = taking_turns("again")
    Race(CPU, 2, lambda text: None).run(case)
    assert heard == ["warm again", "warm again", "again", "warm again", "again"]


def test_the_time_limit_ends_after_a_whole_round(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, case = taking_turns("a", "b")
    monkeypatch.setattr("benchmarks.race.time.monotonic", lambda: float(len(heard)))
    race = Race(CPU, 5, lambda text: None, deadline=3.0)  # which the second turn, after two to warm up, goes past
    race.run(case)
    assert heard[2:] == ["a", "b"]
    assert case.notes == ["the time limit ended it after 1 of 5 rounds"]
    assert race.run(Case("z", "y", case.contenders)).notes == ["not begun: the time limit was reached before"]


@whole
def test_a_peer_that_breaks_is_named_and_the_others_go_on() -> None:
    heard, case = taking_turns("a", "b")

    def gone() -> Work:
        raise UnavailableError("not installed; pip install it")

    def breaks() -> float:
        raise ValueError("no\nway")

    case.contenders += [Contender("c", "peer", gone), Contender("d", "peer", lambda: Work(breaks, lambda: None))]
    Race(CPU, 2, lambda text: None).run(case)
    assert missing(case) == {"c": "not installed; pip install it", "d": "failed with ValueError: no"}
    assert heard[2:] == ["a", "b", "b", "a"]
    assert case.best_peer is case.contenders[1]


def test_regard_itself_may_not_break() -> None:
    def breaks() -> Work:
        raise ValueError("no way")

    with pytest.raises(ValueError, match="no way"):
        Race(CPU, 1, lambda text: None).run(Case("x", "y", [Contender("Regard", "ours", breaks)]))


# What is counted


@pytest.mark.parametrize("name", ["tiny", "tiny-lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_flop_are_those_that_torch_counts(name: str, layers: int) -> None:
    shape = SHAPES[name].like(layers=layers)
    task = make_task(shape, CPU, 1)
    window = Window.even(shape.vocabulary, 1, 3, 7)  # one length: torch counts padding and what is ahead too
    batch = task.batch(*window.pairs(np.arange(3)))
    # oneDNN's recurrent kernel and fused attention tell the counter nothing; turning oneDNN off warns of TF32.
    with (
        warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter,
    ):  # fmt: skip
        task.model(batch.source, batch.inputs)
    lengths = (window.source + 1, window.target + 1)
    assert step_flop(shape, *lengths, square=True) == 3 * counter.get_total_flops()
    assert step_flop(shape, *lengths) <= step_flop(shape, *lengths, square=True)


def test_the_floor_is_below_nothing_that_the_peak_or_the_bandwidth_forbids() -> None:
    shape, (source, target) = SHAPES["base"], draw_lengths(100, 1)
    count = step_flop(shape, source, target)
    assert floor_seconds(shape, source, target, 0, 1e12, 1e30) == pytest.approx(count / 1e12)
    assert floor_seconds(shape, source, target, 1000, 1e30, 1.0) > 1000 * 32


# The workload


def test_lengths_are_those_of_a_translation_corpus() -> None:
    source, target = draw_lengths(100_000, 1)
    assert source.mean() == pytest.approx(24, abs=0.3)
    assert target.mean() == pytest.approx(24, abs=0.5)
    assert min(source.min(), target.min()) >= 1
    assert max(source.max(), target.max()) <= LONGEST
    assert np.corrcoef(source, target)[0, 1] > 0.9
    assert np.log(source).std() == pytest.approx(0.6, abs=0.02)


def test_the_workload_comes_from_its_seed() -> None:
    one, same, other = (Window.draw(500, seed, 200) for seed in (1, 1, 2))
    some = np.array([3, 5])
    assert one.pairs(some) == same.pairs(some)
    assert one.pairs(some) != other.pairs(some)
    assert one.pairs(some[1:])[0] == one.pairs(some)[0][1:]
    assert sentences(3, 4, 500, 1) == sentences(3, 4, 500, 1)


def test_batches_keep_to_their_budget_as_each_side_counts() -> None:
    window = Window.draw(500, 1, 5_000)
    packed, padded, unsorted = window.packed(1024, 8), window.padded(1024, 8), window.padded(1024, 8, by_length=False)
    assert len(packed) == len(padded) == len(unsorted) == 8
    for index in packed:
        assert max((window.source[index] + 1).sum(), (window.target[index] + 1).sum()) <= 1024
    for index in (*padded, *unsorted):
        assert len(index) * (max(window.source[index].max(), window.target[index].max()) + 1) <= 1024
    assert np.mean([len(x) for x in packed]) >= np.mean([len(x) for x in padded])
    assert np.mean([len(x) for x in padded]) > np.mean([len(x) for x in unsorted])
    assert sorted(np.concatenate(window.padded(1024, 10**9)).tolist()) == list(range(5_000))
    assert np.concatenate(window.padded(1024, 10**9, by_length=False)).tolist() == list(range(5_000))


def test_tokens_are_words_and_marks_stand_where_they_should() -> None:
    window = Window.draw(50, 1, 100)
    sources, targets = window.pairs(np.arange(100))
    assert {len(x) for x in sources} == set(window.source.tolist())
    assert min(min(x) for x in sources + targets) >= 6
    assert max(max(x) for x in sources + targets) < 50
    batch = pad([[7, 8], [9]], [[10], [11, 12]])
    assert batch.source.tolist() == [[7, 8, EOS], [9, EOS, PAD]]
    assert batch.source_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.inputs.tolist() == [[BOS, 10, PAD], [BOS, 11, 12]]
    assert batch.outputs.tolist() == [[10, EOS, PAD], [11, 12, EOS]]
    assert batch.tokens == 5


# Pictures and recordings


def vision_load(**changes: Any) -> VisionLoad:
    return replace(VisionLoad(VITS["toy"], CPU, "float32", 0.0, 3, 2, 1), **changes)


def speech_load(**changes: Any) -> SpeechLoad:
    load = SpeechLoad(CONFORMERS["toy"], CPU, "float32", 0.0, 400, 3, 60, 1, (0.2, 1.5))
    return replace(load, **changes)


@pytest.mark.parametrize("name", ["vit-tiny", "vit-small", "vit-base"])
def test_vision_transformers_are_those_of_the_presets(name: str) -> None:
    ours, preset = parse(VITS[name].settings(0.1)), parse({"preset": name})
    assert ours.model == preset.model
    assert ours.sources == preset.sources


def test_both_sides_of_the_picture_benchmark_have_as_many_weights_and_the_same_pictures() -> None:
    (mine, _, model), (theirs, _, other) = (x.training(vision_load()) for x in (RegardViT(), VISION["torch"]))
    assert count(model) == count(other)
    for batch, (pixels, labels) in zip(mine, theirs, strict=True):
        scanlines = pixels.permute(0, 2, 3, 1).reshape(-1, 3 * VITS["toy"].size)
        assert torch.equal(batch.source.values, scanlines)
        assert batch.outputs.values.tolist() == labels.tolist()


def test_a_vision_transformer_of_torch_computes_what_regards_does() -> None:
    """The same weights give the same loss: what is compared is the same model."""
    (mine, step, model), (theirs, other_step, other) = (
        x.training(vision_load()) for x in (RegardViT(), VISION["torch"])
    )
    own, d = model.state_dict(), VITS["toy"].d_model
    given = {
        "patches.weight": own["encoder.stem.patches.weight"].view(d, 8, 8, 3).permute(0, 3, 1, 2),
        "patches.bias": own["encoder.stem.patches.bias"],
        "class_token": own["encoder.stem.class_token"].view(1, 1, d),
        "positions": own["encoder.stem.table.weight"][None],
        "encoder.norm.weight": own["encoder.final.weight"], "encoder.norm.bias": own["encoder.final.bias"],
        "head.weight": own["head.linear.weight"], "head.bias": own["head.linear.bias"],
    }  # fmt: skip
    names = {
        "self_attn.in_proj_": "self_attention.inputs.", "self_attn.out_proj.": "self_attention.output.",
        "linear1.": "feed_forward.inner.", "linear2.": "feed_forward.outer.",
        "norm1.": "around_attention.norm.", "norm2.": "around_feed_forward.norm.",
    }  # fmt: skip
    for layer, (theirs_, ours), kind in product(range(VITS["toy"].layers), names.items(), ("weight", "bias")):
        given[f"encoder.layers.{layer}.{theirs_}{kind}"] = own[f"encoder.blocks.{layer}.{ours}{kind}"]
    other.load_state_dict(given)
    for batch, pair in zip(mine, theirs, strict=True):  # the second after an update on the first
        assert float(step(batch)) == pytest.approx(float(other_step(pair)), abs=2e-4)


def test_flop_of_a_vision_transformer_are_those_that_torch_counts() -> None:
    (batch, *_), _, model = VISION["torch"].training(vision_load())
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(batch[0])
    assert VITS["toy"].flop() * 3 == 3 * counter.get_total_flops()


@pytest.mark.skipif(not FULL, reason="REGARD_TEST_ALL=1 imports transformers")
@pytest.mark.parametrize("mean", [None, 14.0])
@pytest.mark.parametrize("name", ["toy-bert", "toy-gpt2"])
def test_both_sides_of_the_pretraining_benchmark_learn_the_same_from_the_same_texts(
    name: str, mean: float | None, tmp_path: Path
) -> None:
    load = TextLoad(TEXTS[name], CPU, "float32", 0.0, 128, 2, 1, mean)
    (mine, step, model), (theirs, other_step, other) = (x.training(load) for x in (RegardText(), PRETRAINING["hf"]))
    assert count(model) == count(other)
    cast(Any, other).save_pretrained(tmp_path)
    set_weights(model, read_network(tmp_path).imported(), tmp_path)
    assert [len(x.source.values) or len(x.inputs.values) + len(x.inputs) for x in mine] == [
        sum(map(len, texts)) for texts in load.texts()
    ]
    for batch, padded in zip(mine, theirs, strict=True):  # the second after an update on the first
        assert float(step(batch)) == pytest.approx(float(other_step(padded)), abs=2e-4)


@pytest.mark.parametrize("mean", [None, 14.0])
@pytest.mark.parametrize("name", ["toy-bert", "toy-gpt2"])
def test_texts_of_the_pretraining_benchmark_can_be_filled_up(name: str, mean: float | None) -> None:
    load, ours = TextLoad(TEXTS[name], CPU, "float32", 0.0, 256, 6, 1, mean), RegardText()
    room = ours.room(load, ours.task(load).layout)
    for texts in load.texts():
        batch = ours.batch(load, texts)
        filled = batch.filled(room)
        assert filled is not None
        assert filled.tokens == batch.tokens
        if mean is None:
            assert room == Room(
                len(batch.source.values), len(batch.inputs.values), 8, batch.inputs.longest, room.sources
            )


def test_both_sides_of_the_speech_benchmark_have_as_many_weights_and_the_same_recordings() -> None:
    load = speech_load()
    (mine, _, model), (theirs, _, other) = (x.training(load) for x in (RegardConformer(), SPEECH["torch"]))
    assert count(model) == count(other)
    for index in load.packs():
        ours, padded = mine(index), theirs(index)
        assert ours.source.lengths.tolist() == padded.hops.tolist() == load.lengths[0][index].tolist()
        for row, (hops, samples) in enumerate(zip(padded.hops.tolist(), padded.samples, strict=True)):
            start = int(ours.source.offsets[row])
            assert torch.equal(ours.source.values[start : start + hops].flatten(), samples[: 160 * hops])
        texts = [y[:n].tolist() for y, n in zip(padded.targets, padded.tokens.tolist(), strict=True)]
        assert ours.outputs.tolist() == [[*text, EOS] for text in texts]


def test_recordings_are_cut_into_batches_as_regard_does_or_by_duration() -> None:
    load = speech_load(recordings=500, count=10**9)
    hops, tokens = load.lengths
    assert (hops.min() >= 20, hops.max() <= 150) == (True, True)
    both, alone = load.packs(), load.packs(by_duration=True)
    assert sorted(np.concatenate(both).tolist()) == sorted(np.concatenate(alone).tolist()) == list(range(500))
    assert all(hops[x].sum() <= 400 for x in (*both, *alone))
    assert (np.diff(tokens[np.concatenate(both)]) >= 0).all()
    assert (np.diff(hops[np.concatenate(alone)]) >= 0).all()


def count(model: torch.nn.Module) -> int:
    return sum(x.numel() for x in model.parameters())


# The commands


COMMANDS = {
    "train-gpu": ["--device", "cpu", "--precisions", "float32", "bfloat16"],
    **({"vision-gpu": ["--device", "cpu", "--peers", "torch", "regard-sdpa"]} if FULL else {}),
    **({"train-cpu": ["--models", "tiny-lstm"], "decode-gpu": ["--device", "cpu"]} if FULL else {}),
    **({"decode-cpu": ["--precisions", "float32", "bfloat16", "int8"]} if FULL else {}),
    **({"pretrain-gpu": ["--device", "cpu", "--peers", "hf", "--mean", "0", "12"]} if FULL else {}),
    **({"speech-gpu": ["--device", "cpu", "--peers", "torch"]} if FULL else {}),
    **({"start-up": ["--rounds", "1"], "grow": ["--device", "cpu"]} if FULL else {}),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_benchmark_runs(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = [] if command == "grow" or "--peers" in COMMANDS[command] else ["--peers", "none"]
    path = tmp_path / "report.json"
    report = report_of(command, "--quick", *alone, *COMMANDS[command], "--json", str(path))
    assert all(case.ours is not None for case in report.cases)
    assert all(math.isfinite(x) and x > 0 for case in report.cases for one in case.contenders for x in one.values)
    shown = capsys.readouterr()
    assert report.title in shown.out
    assert "round 1 of" in shown.err
    kept = json.loads(path.read_text())
    assert [case["name"] for case in kept["cases"]] == [case.name for case in report.cases]
    assert not any(missing(case) for case in report.cases)


@pytest.mark.parametrize("command", [*RACES, *OTHERS])
def test_each_benchmark_tells_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"usage: python -m benchmarks {command}" in capsys.readouterr().out


@whole
def test_servers_are_raced_and_overloaded() -> None:
    report = report_of("serve-cpu", "--quick", "--rounds", "1", "--clients", "3")
    (case,) = report.cases
    assert not missing(case)
    assert {x.role for x in case.contenders} == {"ours", "beside", "peer"}
    assert all(x.extra["p50 s"] <= x.extra["p99 s"] for x in case.contenders)
    found = cast(dict[str, Any], main(["overload", "--model", "tiny", "--minutes", "0.05", "--clients", "4"]))
    assert set(found["statuses"]) <= {200, 429}
    assert not found["429 without Retry-After"]
    assert found["memory MiB"][0] > 0


def test_what_grows_can_be_chosen() -> None:
    report = report_of("grow", "--quick", "--rounds", "1", "--lengths", "9", "--budgets", "--vocabularies", "--sizes")
    assert [case.name for case in report.cases] == ["length 9"]


def test_peers_that_are_not_installed_are_named_with_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name.partition(".")[0])

    monkeypatch.setattr(base, "import_module", absent)
    report = report_of("train-cpu", "--quick", "--models", "tiny", "--rounds", "1")
    assert missing(report.cases[0]) == {
        "HF Marian": "not installed; pip install transformers",
        "JoeyNMT": f"not installed; {base.INSTALL['joeynmt']}",
    }
    assert "not run: HF Marian: not installed; pip install transformers" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_benchmark_of_a_gpu_says_what_to_do_without_one() -> None:
    with pytest.raises(ConfigError, match="train-gpu needs a GPU that torch can use; run train-cpu, or give --device"):
        main(["train-gpu", "--quick"])
    with pytest.raises(ConfigError, match="there is no GPU here"):
        main(["kernels"])


@whole
def test_benchmarks_need_neither_typer_nor_rich() -> None:
    """As on a GPU machine where they are not installed."""
    command = ["train-cpu", "--quick", "--models", "tiny", "--peers", "none", "--rounds", "1"]
    code = f"import sys; sys.modules.update(typer=None, rich=None); import benchmarks.__main__ as b; b.main({command})"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_package_imports_nothing_from_the_benchmarks() -> None:
    imports = re.compile(r"^ *(import|from) benchmarks\b", re.MULTILINE)
    assert imports.search(Path(__file__).read_text(encoding="utf-8"))
    for path in Path(regard.__file__).parent.rglob("*.py"):
        assert not imports.search(path.read_text(encoding="utf-8")), path


# Peers, where they are installed


@whole
@pytest.mark.skipif(not has("transformers"), reason="transformers is not installed")
def test_marian_with_regards_weights_is_the_same_model(tmp_path: Path) -> None:
    from benchmarks.peers.marian import give_weights, make_marian

    shape = SHAPES["tiny"].like(layers=2)
    task = make_task(shape, CPU, 1, dropout=0.0)
    liven(task, shape)
    with warnings.catch_warnings(action="ignore"):
        model = make_marian(shape, dropout=0.0)
        give_weights(task, model, shape)
        model.eval()
        window = Window.draw(shape.vocabulary, 1, 5)
        sources, targets = window.pairs(np.arange(5))
        padded = pad(sources, targets)
        theirs = model(
            input_ids=padded.source, attention_mask=padded.source_mask, decoder_input_ids=padded.inputs
        ).logits
        with task.inference():
            batch = task.batch(sources, targets)
            ours = task.model(batch.source, batch.inputs).padded()
        torch.testing.assert_close(ours, theirs * (padded.outputs != PAD).unsqueeze(-1), rtol=1e-4, atol=1e-4)
        some = sentences(4, 6, shape.vocabulary, 1)
        for beam in (1, 3):
            job = base.Job(task, fixed_search(beam, 5, "float32"), some, tmp_path, shape, at_once=True)
            mine, other = (peer.decoding(job)[0](some) for peer in (Regard(), DECODING["marian"]))
            assert [x.tokens for x in mine] == [x.tokens for x in other]
            assert {len(x.tokens) for x in mine} == {5}


def test_a_livened_model_writes_what_depends_on_the_source(tmp_path: Path) -> None:
    shape = SHAPES["tiny"].like(layers=2)
    task = make_task(shape, CPU, 1, dropout=0.0)
    liven(task, shape)
    some = sentences(8, 6, shape.vocabulary, 1)
    job = base.Job(task, fixed_search(1, 6, "float32"), some, tmp_path, shape, at_once=True)
    found = [x.tokens for x in Regard().decoding(job)[0](some)]
    assert len({tuple(x) for x in found}) > 4
    assert max(len(set(x)) for x in found) > 1


def test_batches_of_a_search_change_neither_outputs_nor_their_order(tmp_path: Path) -> None:
    task = make_task(SHAPES["tiny"], CPU, 1, dropout=0.0)
    liven(task, SHAPES["tiny"])
    some = [x[: 2 + i % 4] for i, x in enumerate(sentences(9, 6, 200, 1))]
    search = fixed_search(2, 4, "float32").model_copy(update={"batch_tokens": 20})
    one, several = (base.Job(task, search, some, tmp_path, at_once=at_once) for at_once in (True, False))
    expected, found = (Regard().decoding(job)[0](some) for job in (one, several))
    assert [x.tokens for x in found] == [x.tokens for x in expected]


@whole
@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("transformers", ["train-cpu", "--models", "tiny", "--peers", "marian", "marian-unsorted", "torch"]),
        ("joeynmt", ["train-cpu", "--models", "tiny", "tiny-lstm", "--peers", "joeynmt", "torch"]),
        ("transformers", ["decode-cpu", "--peers", "marian", "marian-static"]),
        ("ctranslate2", ["decode-cpu", "--peers", "ctranslate2"]),
    ],
)
def test_peers_that_are_installed_take_part(package: str, command: list[str]) -> None:
    if not has(package):
        pytest.skip(f"{package} is not installed")
    report = report_of(*command, "--quick", "--rounds", "1")
    assert [missing(case) for case in report.cases] == [{} for _ in report.cases]
    assert all(case.best_peer is not None for case in report.cases)


@whole
def test_the_loop_in_plain_torch_trains() -> None:
    report = report_of("train-cpu", "--quick", "--models", "tiny-lstm", "--rounds", "1", "--peers", "torch", "marian")
    assert report.cases[0].best_peer is not None
    assert missing(report.cases[0]) == {"HF Marian": "Marian is a Transformer"}


@pytest.mark.skipif(not has("ctranslate2"), reason="ctranslate2 is not installed")
@whole
def test_regard_through_ctranslate2_is_compared_with_ctranslate2() -> None:
    peers = ["ctranslate2", "engine", "engine-exact"]
    report = report_of("decode-cpu", "--quick", "--peers", *peers, "--precisions", "float32", "int8", "--rounds", "1")
    via = "Regard via CTranslate2"
    for case in report.cases:
        assert {mine.name: other.name for mine, other in case.pairs} == {
            f"{via}, exact float32": "CTranslate2 float32",
            f"{via} float32": "CTranslate2 float32",
            f"{via} int8": "CTranslate2 int8",
        }
        exact = next(x for x in case.contenders if x.name == f"{via}, exact float32")
        assert exact.extra["% exact match"] == 100
        assert [x.name for x in case.contenders if x.role == "peer"] == ["CTranslate2 float32"]
    assert f"{via} float32 is" in report.text()


# Trained models


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    write_corpus(folder)
    part = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 32}
    model = {"d_model": 16, "encoder": part, "decoder": part}
    train(toy_config(folder, preset=None, model=model, training={"steps": 5, "validate_every": 5}))
    return folder


@whole
def test_precision_says_what_fewer_bits_do(trained: Path) -> None:
    report = report_of("precision", str(trained / "run"), "--lines", "10", "--rounds", "1", "--beam", "2")
    (case,) = report.cases
    found = {x.name: x.extra for x in case.contenders}
    assert found["Regard float32"]["tokens"] == 1
    assert found["Regard float32"]["% exact match"] == 100
    assert found["Regard float32"]["log p"] == 0
    assert found["Regard float32"]["rounding"] < 1e-5 < found["Regard bfloat16"]["rounding"]
    assert {"Regard bfloat16", "Regard int8"} <= {x.name for x in case.ran}
    assert f"10 lines of {trained / 'test.tsv'}, beam 2" in report.text()
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in report.text()
    if has("ctranslate2"):
        assert {"CTranslate2 float32", "Regard via CTranslate2 int8"} <= {x.name for x in case.ran}
        assert "rounding" not in found["CTranslate2 float32"]
    else:
        assert "not run: CTranslate2 float32: not installed; pip install ctranslate2" in report.text()


@whole
def test_sampling_has_a_seed_for_each_round(trained: Path) -> None:
    data = str(trained / "valid.tsv")
    report = report_of("sampling", str(trained / "run"), "--data", data, "--lines", "2", "--rounds", "2")
    (case,) = report.cases
    found = {x.name: x.extra for x in case.contenders}
    assert len(case.ran) == len(case.contenders) == 9
    assert "chrF low" not in found["beam (5)"]
    assert found["sampling"]["chrF low"] < found["sampling"]["chrF"] < found["sampling"]["chrF high"]
    assert "beam (5) is … times as fast" in report.text()


def test_what_an_experiment_has_done_is_not_done_again(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> dict[str, float]:
        made.append(1)
        return {"bleu": 1.5}

    assert [experiments.once(tmp_path / "run" / "done", make) for _ in range(2)] == [{"bleu": 1.5}, {"bleu": 1.5}]
    assert made == [1]
