"""The benchmarks: what they count, how they take turns, and that each runs. Nothing here is timed."""

from __future__ import annotations

import json
import math
import runpy
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.bench import peers
from regard.bench.command import main
from regard.bench.measure import Case, Entry, NotThereError, Race, Result, Spread, Work
from regard.bench.operations import floor_seconds, operations
from regard.bench.regard_side import liven, make_decode, make_task, named_weights
from regard.bench.report import Report, headlines, number, table, tables
from regard.bench.workload import LONGEST, SHAPES, Window, draw_lengths, pad, sentences
from regard.data.tokens import BOS, EOS, PAD
from regard.errors import ConfigError
from regard.runs import train
from tests.toy import toy_config, write_corpus

CPU = torch.device("cpu")


def has(name: str) -> bool:
    return find_spec(name) is not None


# Statistics


def some_case(*, more: bool = True) -> Case:
    results = [
        Result("Regard", "ours", [20.0, 30.0, 40.0]),
        Result("slow", "peer", [10.0, 10.0, 10.0]),
        Result("quick", "peer", [20.0, 20.0, 50.0]),
        Result("other", "beside", [100.0, 100.0, 100.0]),
    ]
    return Case("base", "tokens/s", "a workload", more, results, {"gone": "not installed; pip install gone"})


def test_a_spread_is_the_median_with_the_least_and_the_greatest() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([4.0, 1.0]) == Spread(2.5, 1.0, 4.0)


def test_ratios_are_taken_within_a_round() -> None:
    case = some_case()
    assert case.best_peer is case.results[2]
    assert case.ratio(case.results[1]) == Spread(3.0, 2.0, 4.0)
    assert case.ratio(case.results[2]) == Spread(1.0, 0.8, 1.5)


def test_where_less_is_better_a_ratio_above_one_still_speaks_for_regard() -> None:
    case = some_case(more=False)
    assert case.best_peer is case.results[1]
    assert case.ratio(case.results[1]) == Spread(1 / 3, 0.25, 0.5)


def test_the_table_has_ratios_before_medians_and_names_who_is_not_there() -> None:
    (rows,) = tables([some_case()])
    assert rows[0] == ["case", "contestant", "Regard is … times as fast", "tokens/s", "least–most"]
    assert rows[2] == ["base", "slow", "3.00", "10", "10–10"]
    assert rows[-1] == ["base", "gone", "–", "not run", "–"]
    assert headlines(some_case()) == ["base: Regard is 1.00 times as fast as quick, its best peer (0.80–1.50)"]
    lines = table(rows, markdown=True).splitlines()
    assert set(lines[1]) == set("| -:")
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)


def test_a_contestant_can_be_held_against_another_than_regards_peers() -> None:
    case = some_case()
    case.results += [Result("through", "beside", [8.0, 9.0, 11.0], beside="slow"), Result("x", "beside", beside="slow")]
    assert [(mine.name, other.name) for mine, other in case.pairs] == [("through", "slow")]
    assert case.ratio(case.results[1], case.results[4]) == Spread(0.9, 0.8, 1.1)
    assert headlines(case)[1:] == ["base: through is 0.90 times as fast as slow (0.80–1.10)"]
    kept = Report("Decoding", "regard bench decode-cpu", "words", CPU, [case]).to_json()
    assert kept["cases"][0]["ratios"] == {"through": {"to": "slow", "median": 0.9, "low": 0.8, "high": 1.1}}


def test_numbers_have_the_digits_that_matter() -> None:
    assert [number(x) for x in (0.01234, 1.5, 123.4, 12345.6)] == ["0.0123", "1.5", "123", "12,346"]


def test_a_report_can_be_kept(tmp_path: Path) -> None:
    report = Report("Training", "regard bench train-cpu", "words", CPU, [some_case()])
    report.save(tmp_path / "new" / "report.json")
    kept = json.loads((tmp_path / "new" / "report.json").read_text())
    assert kept["cases"][0]["best_peer"] == "quick"
    assert kept["cases"][0]["results"][1]["regard_is_times"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert kept["cases"][0]["absent"] == {"gone": "not installed; pip install gone"}
    assert {"Python", "Regard", "torch"} <= set(kept["versions"])
    assert "not run: gone: not installed; pip install gone" in report.text()


# Turns


def taking_turns(*names: str) -> tuple[list[str], list[Entry]]:
    """Contestants that write down when they are called."""
    heard: list[str] = []

    def work(name: str) -> Work:
        def turn() -> float:
            heard.append(name)
            return 1.0

        return Work(turn, lambda: heard.append(f"warm {name}"))

    return heard, [Entry(name, "peer" if i else "ours", lambda n=name: work(n)) for i, name in enumerate(names)]  # type: ignore[misc]


def test_contestants_take_turns_and_the_first_turn_goes_round() -> None:
    heard, entries = taking_turns("a", "b", "c")
    case = Race(CPU, 2, lambda text: None).run(Case("x", "y"), entries)
    assert heard == ["warm a", "warm b", "warm c", "a", "b", "c", "b", "c", "a"]
    assert [len(result.values) for result in case.results] == [2, 2, 2]


def test_the_time_limit_ends_after_a_whole_round(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, entries = taking_turns("a", "b")
    monkeypatch.setattr("regard.bench.measure.time.monotonic", lambda: float(len(heard)))
    race = Race(CPU, 5, lambda text: None, deadline=3.0)  # which the second turn, after two to warm up, goes past
    case = race.run(Case("x", "y"), entries)
    assert heard[2:] == ["a", "b"]
    assert case.notes == ["the time limit ended it after 1 of 5 rounds"]
    assert race.run(Case("z", "y"), entries).notes == ["not begun: the time limit was reached before"]


def test_a_peer_that_breaks_is_named_and_the_others_go_on() -> None:
    heard, entries = taking_turns("a", "b")

    def missing() -> Work:
        raise NotThereError("not installed; pip install it")

    def breaks() -> float:
        raise ValueError("no\nway")

    entries += [Entry("c", "peer", missing), Entry("d", "peer", lambda: Work(breaks, lambda: None))]
    case = Race(CPU, 2, lambda text: None).run(Case("x", "y"), entries)
    assert case.absent == {"c": "not installed; pip install it", "d": "failed with ValueError: no"}
    assert heard[2:] == ["a", "b", "b", "a"]


def test_regard_itself_may_not_break() -> None:
    def breaks() -> Work:
        raise ValueError("no way")

    with pytest.raises(ValueError, match="no way"):
        Race(CPU, 1, lambda text: None).run(Case("x", "y"), [Entry("Regard", "ours", breaks)])


# What is counted


@pytest.mark.parametrize("name", ["tiny", "tiny-lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_operations_are_those_that_torch_counts(name: str, layers: int) -> None:
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
    assert operations(shape, *lengths, square=True) == 3 * counter.get_total_flops()
    assert operations(shape, *lengths) <= operations(shape, *lengths, square=True)


def test_the_floor_is_below_nothing_that_the_peak_or_the_bandwidth_forbids() -> None:
    shape, (source, target) = SHAPES["base"], draw_lengths(100, 1)
    count = operations(shape, source, target)
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
    packed, padded, unsorted = window.packed(1024, 8), window.padded(1024, 8), window.unsorted(1024, 8)
    assert len(packed) == len(padded) == len(unsorted) == 8
    for index in packed:
        assert max((window.source[index] + 1).sum(), (window.target[index] + 1).sum()) <= 1024
    for index in (*padded, *unsorted):
        assert len(index) * (max(window.source[index].max(), window.target[index].max()) + 1) <= 1024
    assert np.mean([len(x) for x in packed]) >= np.mean([len(x) for x in padded])
    assert np.mean([len(x) for x in padded]) > np.mean([len(x) for x in unsorted])
    assert sorted(np.concatenate(window.padded(1024, 10**9)).tolist()) == list(range(5_000))
    assert np.concatenate(window.unsorted(1024, 10**9)).tolist() == list(range(5_000))


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


# The commands


COMMANDS = {
    "train-gpu": ["--device", "cpu", "--beside", "bfloat16"],
    "train-cpu": ["--models", "tiny-lstm"],
    "decode-gpu": ["--device", "cpu"],
    "decode-cpu": ["--beside", "bfloat16", "int8"],
    "start-up": ["--rounds", "1"],
    "grow": ["--device", "cpu", "--markdown"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_benchmark_runs(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = [] if command == "grow" else ["--peers", "none"]
    path = tmp_path / "report.json"
    report = main([command, "--quick", *alone, *COMMANDS[command], "--json", str(path)])
    assert all(case.ours is not None for case in report.cases)
    assert all(math.isfinite(value) and value > 0 for case in report.cases for x in case.results for value in x.values)
    shown = capsys.readouterr()
    assert report.title in shown.out
    assert "round 1 of" in shown.err
    kept = json.loads(path.read_text())
    assert [case["name"] for case in kept["cases"]] == [case.name for case in report.cases]
    assert not any(case.absent for case in report.cases)


def test_peers_that_are_not_installed_are_named_with_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name.partition(".")[0])

    monkeypatch.setattr(peers, "import_module", absent)
    report = main(["train-cpu", "--quick", "--models", "tiny", "--rounds", "1"])
    assert report.cases[0].absent == {
        "HF Marian": "not installed; pip install transformers",
        "JoeyNMT": f"not installed; {peers.INSTALL['joeynmt']}",
    }
    assert "not run: HF Marian: not installed; pip install transformers" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_benchmark_of_a_gpu_says_what_to_do_without_one() -> None:
    with pytest.raises(ConfigError, match="train-gpu needs a GPU that torch can use; run train-cpu, or give --device"):
        main(["train-gpu", "--quick"])


# Peers, where they are installed


@pytest.mark.skipif(not has("transformers"), reason="transformers is not installed")
def test_marian_with_regards_weights_is_the_same_model() -> None:
    from regard.bench.marian import give_weights, make_marian, marian_decode

    shape = SHAPES["tiny"].like(layers=2)
    task = make_task(shape, CPU, 1, dropout=0.0)
    liven(task, shape)
    with warnings.catch_warnings(action="ignore"):
        model = make_marian(shape, dropout=0.0)
        give_weights(task, model, shape)
        model.eval()
        window = Window.draw(shape.vocabulary, 1, 5)
        sources, targets = window.pairs(np.arange(5))
        rows = pad(sources, targets)
        theirs = model(input_ids=rows.source, attention_mask=rows.source_mask, decoder_input_ids=rows.inputs).logits
        with task.inference():
            batch = task.batch(sources, targets)
            ours = task.model(batch.source, batch.inputs).padded()
        torch.testing.assert_close(ours, theirs * (rows.outputs != PAD).unsqueeze(-1), rtol=1e-4, atol=1e-4)
        some = sentences(4, 6, shape.vocabulary, 1)
        for beam in (1, 3):
            mine = make_decode(task, "float32", beam=beam, length=5)(some)
            assert mine == marian_decode(model, CPU, beam=beam, length=5)(some)
            assert {len(x) for x in mine} == {5}


def test_weights_by_name_hold_queries_keys_and_values_apart() -> None:
    weights = named_weights(make_task(SHAPES["tiny"], CPU, 1))
    for word in ("query", "key", "value", "output"):
        assert weights[f"decoder.blocks.0.cross_attention.{word}.weight"].shape == (32, 32)


def test_a_livened_model_writes_what_depends_on_the_source() -> None:
    shape = SHAPES["tiny"].like(layers=2)
    task = make_task(shape, CPU, 1, dropout=0.0)
    liven(task, shape)
    found = make_decode(task, "float32", beam=1, length=6)(sentences(8, 6, shape.vocabulary, 1))
    assert len({tuple(x) for x in found}) > 4
    assert max(len(set(x)) for x in found) > 1


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("transformers", ["train-cpu", "--models", "tiny", "--peers", "marian", "marian-unsorted", "torch"]),
        ("joeynmt", ["train-cpu", "--models", "tiny", "tiny-lstm", "--peers", "joeynmt", "torch"]),
        ("transformers", ["decode-cpu", "--peers", "marian"]),
        ("ctranslate2", ["decode-cpu", "--peers", "ctranslate2"]),
    ],
)
def test_peers_that_are_installed_take_part(package: str, command: list[str]) -> None:
    if not has(package):
        pytest.skip(f"{package} is not installed")
    with warnings.catch_warnings(action="ignore"):
        report = main([*command, "--quick", "--rounds", "1"])
    assert [case.absent for case in report.cases] == [{} for _ in report.cases]


@pytest.mark.skipif(not has("ctranslate2"), reason="ctranslate2 is not installed")
def test_regard_through_ctranslate2_is_held_against_ctranslate2() -> None:
    with warnings.catch_warnings(action="ignore"):
        report = main(["decode-cpu", "--quick", "--peers", "engine", "--beside", "int8", "--rounds", "1"])
    through = "Regard through CTranslate2"
    for case in report.cases:
        assert {mine.name: other.name for mine, other in case.pairs} == {
            f"{through} float32, same": "CTranslate2 float32",
            f"{through} float32, fastest": "CTranslate2 float32",
            f"{through} int8, fastest": "CTranslate2 int8",
        }
        same = next(x for x in case.results if x.name == f"{through} float32, same")
        assert same.extra["% same"] == 100
    assert f"{through} float32, fastest is" in report.text()


def test_precision_says_what_fewer_bits_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(tmp_path)
    part = {"kind": "transformer", "layers": 1, "heads": 2, "d_ff": 32}
    changes = {"d_model": 16, "encoder": part, "decoder": part}
    train(toy_config(tmp_path, preset=None, model=changes, training={"steps": 5, "validate_every": 5}))
    script = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "precision.py"))
    with warnings.catch_warnings(action="ignore"):
        script["main"]([str(tmp_path / "run"), "--lines", "10", "--rounds", "1", "--beam", "2"])
    shown = capsys.readouterr().out
    cells = [line.strip("| ").split(" | ") for line in shown.splitlines() if line.startswith("| ")]
    rows = {name: rest for name, *rest in cells}
    assert rows["Regard float32"][:3] == ["1.00", "1.00–1.00", "1.000"]
    assert rows["Regard float32"][5:7] == ["100.0", "+0.0000"]
    assert {"Regard bfloat16", "Regard int8"} <= set(rows)
    assert f"10 lines of {tmp_path / 'test.tsv'}, beam 2" in shown
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in shown
    if has("ctranslate2"):
        assert {"CTranslate2 float32", "Regard through CTranslate2 int8, fastest"} <= set(rows)
    else:
        assert "not run: CTranslate2 float32: not installed; pip install ctranslate2" in shown


def test_scripts_call_the_commands() -> None:
    folder = Path(__file__).parent.parent / "benchmarks"
    for name in COMMANDS:
        assert f'script("{name}")' in (folder / f"{name.replace('-', '_')}.py").read_text()
