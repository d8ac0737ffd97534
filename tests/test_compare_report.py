"""What is made of a comparison: means and spreads, tests, tables, figures, and a page that says no more than it may."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from regard.artifacts import write_json
from regard.compare import page, plots
from regard.compare.results import (
    Length,
    Measure,
    Pair,
    Point,
    Record,
    Results,
    Run,
    load,
    p_value,
    paired_tests,
    save,
)
from regard.compare.tables import cells, code, escaped, markdown, table
from regard.errors import ConfigError, DataError
from regard.evaluation import bootstrap
from regard.evaluation.labels import label_scores
from regard.evaluation.metrics import Bleu, Chrf, Exact, Score, Ter
from regard.explain import drawing
from regard.registry import METRICS

GROUPS = ((1, 4), (5, 8), (9, 12), (13, 20))
T = TypeVar("T", bound=Record)


def replace(record: T, **changes: Any) -> T:
    """A copy with other values, which are checked as all are."""
    return type(record).model_validate({**dict(record), **changes})


def length(group: tuple[int, int], bleu: float, sentences: int = 10) -> Length:
    return Length(shortest=group[0], longest=group[1], sentences=sentences, scores={"bleu": bleu})


def point(tokens: int, quality: float, *, step: int = 0, flops: float = 0.0, loss: float | None = None) -> Point:
    return Point(step=step, tokens=tokens, flops=flops, seconds=1.0 * step, loss=loss, quality=quality)


def run(
    model: str, seed: int, bleu: float, *, lengths: Sequence[float] = (), curve: Sequence[float] = (), **other: Any
) -> Run:
    """A run of a hundred steps; `lengths` is BLEU in each of `GROUPS`, `curve` validation BLEU as training goes on."""
    scores = {"bleu": bleu, **other.pop("scores", {})}
    facts: dict[str, Any] = {
        "parameters": 1_200_000,
        "seconds": 100.0,
        "flops": 3.1e15,
        "memory": 300 * 2**20,
        "decode_speed": 50.0,
    }
    facts |= other
    return Run(
        model=model, seed=seed, tokens=1000, steps=100, scores=scores, **facts,
        lengths=tuple(length(group, x) for group, x in zip(GROUPS, lengths, strict=False)),
        curve=tuple(
            point(1000 * i // len(curve), x, step=i, flops=facts["flops"] * i / len(curve), loss=5.0 - i)
            for i, x in enumerate(curve, 1)
        ),
    )  # fmt: skip


def results(*runs: Run, **changes: Any) -> Results:
    made = Results(
        title="A comparison", budget="1,000 target tokens", data="A made-up corpus", hardware="a CPU",
        versions="regard 0", command="regard compare", date="2026-01-01", trained=(1, 12), metric="bleu",
        ideas={"a": "the first idea"}, runs=runs,
    )  # fmt: skip
    return replace(made, **changes)


def seeds(model: str, scores: Sequence[float], **other: Any) -> list[Run]:
    return [run(model, seed, score, **other) for seed, score in enumerate(scores, 1)]


def full() -> Results:
    """Everything there: `a` wins, `b` collapses beyond the lengths of training, `c` has no attention."""
    return results(
        *(run("a", i, 80.0 + i, lengths=(90, 88, 86, 70 + i), curve=(20, 40, 60, 80.0 + i), scores={"aer": 0.2})
          for i in (1, 2, 3)),
        *(run("b", i, 60.0 + i, lengths=(85, 80, 60, 2 + i), curve=(30, 35, 50, 60), flops=1e15, scores={"aer": 0.3})
          for i in (1, 2, 3)),
        *(run("c", i, 50.0 + i, lengths=(70, 60, 50, 40), curve=(10, 20, 30, 50), flops=2e15) for i in (1, 2, 3)),
    )  # fmt: skip


# Numbers


def test_mean_and_spread_are_numpys() -> None:
    values = [61.5, 63.25, 60.0, 64.5]
    measure = Measure.of(values)
    assert measure is not None
    assert measure.mean == pytest.approx(np.mean(values))
    assert measure.spread == pytest.approx(np.std(values, ddof=1))
    assert measure.seeds == 4


def test_one_seed_has_no_spread_and_nothing_is_judged_by_it() -> None:
    one, two = Measure.of([60.0]), Measure.of([10.0, 11.0])
    assert one is not None
    assert two is not None
    assert one.spread is None
    assert one.differs(two) is None
    assert two.differs(one) is None


def test_what_is_no_number_does_not_count() -> None:
    assert Measure.of([None, float("nan"), float("inf")]) is None
    assert Measure.of([None, 4.0, float("inf")]) == Measure(4.0, None, 1)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [
        (12.706, 1, 0.05),
        (4.303, 2, 0.05),
        (2.776, 4, 0.05),
        (2.447, 6, 0.05),
        (1.984, 100, 0.05),
        (9.925, 2, 0.01),
        (0.0, 3, 1.0),
    ],
)
def test_chance_is_as_in_the_tables_of_students_t(t: float, freedom: float, p: float) -> None:
    assert p_value(t, freedom) == p_value(-t, freedom) == pytest.approx(p, rel=2e-3)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ([80.0, 81.0, 82.0], [60.0, 61.0, 62.0], True),
        ([80.0, 81.0, 82.0], [78.5, 78.5, 78.5], True),  # t = 4.33 of 2 degrees: just beyond 4.303
        ([80.0, 81.0], [77.0, 78.0], False),  # three spreads apart each, but of two seeds: t = 4.24 of 2 degrees
        ([80.0, 81.0, 82.0], [81.0, 81.0, 81.0], False),
        ([5.0, 5.0], [4.0, 4.0], True),
        ([0.0, 0.0], [0.0, 0.0], False),
    ],
)
def test_a_difference_is_one_by_welchs_test(one: list[float], other: list[float], apart: bool) -> None:
    a, b = Measure.of(one), Measure.of(other)
    assert a is not None
    assert b is not None
    assert a.differs(b) is b.differs(a) is apart


def test_models_keep_the_order_of_first_appearance() -> None:
    found = results(run("z", 1, 1.0), run("a", 1, 2.0), run("z", 2, 3.0))
    assert found.models == ["z", "a"]
    assert [x.seed for x in found.of("z")] == [1, 2]


def test_a_group_without_sentences_is_no_measurement() -> None:
    empty = replace(run("a", 1, 1.0), lengths=(length((1, 4), 0.0, 0), length((5, 8), 7.0, 3)))
    assert results(empty).groups == [(5, 8)]
    assert results(empty).measure("a", group=(1, 4)) is None


def test_learning_curves_of_seeds_are_brought_to_the_same_tokens() -> None:
    def curve(*points: tuple[int, float]) -> tuple[Point, ...]:
        return tuple(point(tokens, quality) for tokens, quality in points)

    first = replace(run("a", 1, 0.0), curve=curve((100, 10.0), (200, 20.0), (300, 30.0)))
    second = replace(run("a", 2, 0.0), curve=curve((50, 7.0), (150, 17.0), (250, 27.0)))
    path = results(first, second).trajectory("a", "tokens", "quality")
    assert path is not None
    assert path.x.tolist() == [100, 200, 250]
    assert path.mean.tolist() == [11, 21, 26]
    assert path.spread == pytest.approx([np.sqrt(2)] * 3)
    assert results(first).trajectory("a", "tokens", "loss") is None
    assert results(first).trajectory("a", "flops", "quality") is None  # all at no FLOPs: nothing was counted


def test_order_follows_the_direction_of_the_metric() -> None:
    found = results(run("a", 1, 10.0, scores={"aer": 0.1}), run("b", 1, 20.0, scores={"aer": 0.2}), run("c", 1, 15.0))
    assert list(found.ranking().measures) == ["b", "c", "a"]
    assert list(found.ranking("aer").measures) == ["a", "b"]


def test_a_model_is_beaten_by_one_that_is_better_and_costs_no_more() -> None:
    found = results(
        run("cheap", 1, 50.0, flops=1e15), run("poor", 1, 40.0, flops=2e15), run("good", 1, 70.0, flops=3e15),
        run("same", 1, 60.0, flops=2.99e15),
    )  # fmt: skip
    assert found.frontier() == ["cheap", "good"]
    assert found.beaten_by("poor") == "cheap"
    assert found.beaten_by("same") == "good"  # which costs one percent more, and so as much
    assert found.beaten_by("poor", significantly=True) is None  # for nothing was tested


# On disk


def test_results_come_back_from_json(tmp_path: Path) -> None:
    whole = replace(full(), gpu=True, pairs=(pair("a", "b"), pair("a", "b", group=(1, 4))), resamples=1000)
    for found in (whole, results(run("a", 1, 1.0), trained=None)):
        save(found, tmp_path / "r.json")
        assert load(tmp_path / "r.json") == found


def test_json_holds_nothing_that_is_no_number(tmp_path: Path) -> None:
    broken = run("a", 1, 1.0, scores={"perplexity": float("inf")}, curve=(float("nan"),))
    save(results(broken), tmp_path / "r.json")
    json.loads((tmp_path / "r.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    again = load(tmp_path / "r.json").runs[0]
    assert again.scores == {"bleu": 1.0}
    assert again.curve[0].quality is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.pop("kind"), "not the results of `regard compare`"),
        (lambda raw: raw.pop("budget"), "budget: Field required"),
        (lambda raw: raw.update(trained=[1]), "trained.1: Field required"),
        (lambda raw: raw.update(trained=[1, "x"]), "trained.1: Input should be a valid integer"),
        (lambda raw: raw["runs"].append(3), "runs.9: Input should be a valid dictionary"),
        (lambda raw: raw["runs"][0].update(flops="many"), "runs.0.flops: Input should be a valid number"),
        (lambda raw: raw["runs"][0].update(speed=3), "runs.0.speed: Extra inputs are not permitted"),
        (lambda raw: raw["runs"][0]["lengths"][0].pop("longest"), "runs.0.lengths.0.longest: Field required"),
        (lambda raw: raw["runs"][0]["curve"][0].update(loss="low"), "runs.0.curve.0.loss: Input should be a valid num"),
    ],
)
def test_a_foreign_file_is_refused_in_a_line(
    change: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path
) -> None:
    raw = {"kind": "comparison", **full().model_dump(mode="json")}
    change(raw)
    path = tmp_path / "r.json"
    write_json(path, raw)
    with pytest.raises(DataError) as caught:
        load(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_number_that_was_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    save(full(), path)
    path.write_text(path.read_text().replace('"bleu": 81.0', '"bleu": 91.0', 1))
    with pytest.raises(DataError, match="its checksum differs"):
        load(path)


@pytest.mark.parametrize("content", [b"[1, 2]", b"{", b"\xff\xfe"])
def test_what_is_not_results_at_all_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"r\.json: not "):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"r\.json: there is no such file"):
        load(tmp_path / "r.json")


# The table


def small() -> Results:
    return results(
        run("a", 1, 60.0, scores={"exact": 30.0, "aer": 0.25}, seconds=90.0, decode_speed=200.0),
        run("a", 2, 62.0, scores={"exact": 32.0, "aer": 0.27}, seconds=110.0, decode_speed=200.0),
        run("b", 1, 70.0, scores={"exact": 40.0}, seconds=240.0, decode_speed=10.0, memory=3 * 2**29, parameters=812),
    )


def test_cells_are_means_spreads_sizes_and_ratios_to_the_first_model() -> None:
    header, rows = cells(small())
    assert header == [
        "model", "BLEU", "exact match", "AER", "parameters", "training FLOPs", "training time", "decoding speed",
        "memory",
    ]  # fmt: skip
    assert rows == [
        ["a", "61.0 ± 1.4", "31.0 ± 1.4", "0.260 ± 0.014", "1.2 M", "3.1e15", "1.0x", "1.0x", "300 MiB"],
        ["b", "70.0", "40.0", "–", "812", "3.1e15", "2.4x", "0.05x", "1.5 GiB"],
    ]


def test_times_are_told_in_seconds_on_a_gpu() -> None:
    _, rows = cells(replace(small(), gpu=True))
    assert [row[-3:-1] for row in rows] == [["1.7 min", "200 tokens/s"], ["4.0 min", "10 tokens/s"]]


def test_a_column_that_nobody_has_is_left_out_and_one_that_some_seeds_lack_says_so() -> None:
    header, _ = cells(results(run("a", 1, 60.0)))
    assert "AER" not in header
    _, rows = cells(results(*seeds("a", [60.0, 62.0]), run("a", 3, float("nan"))))
    assert rows[0][1] == "61.0 ± 1.4 (2 of 3)"


def test_what_was_not_measured_is_a_dash() -> None:
    _, rows = cells(results(run("a", 1, 60.0, flops=0.0, seconds=0.0, memory=0, decode_speed=0.0)))
    assert rows[0][-4:] == ["–"] * 4


def test_terminal_and_page_show_the_same_cells() -> None:
    header, rows = cells(small())
    out = io.StringIO()
    Console(file=out, width=200).print(table(small()))
    lines = markdown(header, rows).splitlines()
    assert len(lines) == 2 + len(rows)
    for row, line in zip(rows, lines[2:], strict=True):
        assert [x.strip() for x in line.strip("|").split("|")] == row
        assert all(cell in out.getvalue() for cell in row)


def test_a_narrow_terminal_loses_nothing() -> None:
    out = io.StringIO()
    Console(file=out, width=60).print(table(small()))
    assert "…" not in out.getvalue()


def test_a_bar_in_a_name_does_not_break_the_table() -> None:
    assert markdown(["m"], [["a|b"]]).splitlines()[-1] == "| a\\|b |"


def test_a_name_is_no_markup() -> None:
    name = "[bold]<b>*a*_x_`y`|z~$&"
    out = io.StringIO()
    Console(file=out, width=200).print(table(results(run(name, 1, 1.0), title="[red]title")))
    assert name in out.getvalue()
    assert "[red]title" in out.getvalue()
    assert escaped(name) == r"\[bold\]&#60;b&#62;\*a\*\_x\_\`y\`\|z&#126;&#36;&#38;"
    assert code("a") == "`a`"
    assert code("a\n``b`") == "``` a ``b` ```"


# What the page says


def test_a_significant_winner_is_called_best() -> None:
    said = page.quality(results(*seeds("a", [80, 81, 82]), *seeds("b", [60, 61, 62])))
    assert said.strip() == (
        "By BLEU, `a` has 81.0 ± 1.0 and is best, 20.0 ahead of `b` (61.0 ± 1.0); it differs significantly from all "
        "others."
    )


def test_none_is_called_best_within_noise() -> None:
    found = results(*seeds("a", [80, 81, 82]), *seeds("b", [79, 80, 81]), *seeds("c", [70, 79, 88]),
                    *seeds("d", [20, 21, 22]))  # fmt: skip
    said = page.quality(found)
    assert said.strip() == (
        "By BLEU, `a` has 81.0 ± 1.0 and comes first, but does not differ significantly from `b` (80.0 ± 1.0) and `c` "
        "(79.0 ± 9.0); from the others it does. By their means: `a` ≈ `b` ≈ `c` > `d` (> stands where two neighbours "
        "differ significantly, ≈ elsewhere)."
    )
    assert claims(said) == set()


def test_the_first_is_not_best_if_a_later_one_is_too_noisy_to_tell() -> None:
    found = results(*seeds("a", [80, 81, 82]), *seeds("b", [60, 61, 62]), *seeds("c", [0, 59, 110]))
    said = page.quality(found)
    assert "comes first, but does not differ significantly from `c` (56.3 ± 55.0); from the others it does." in said
    assert claims(said) == set()


CLAIMS = {"best", "better", "worse", "most", "least", "cheaper", "ahead", "beats", "beaten", "fastest"}


def claims(said: str) -> set[str]:
    """Words that claim a difference, apart from sentences that say there is none."""
    for harmless in ("says nothing of who is better", "Beaten significantly at no more cost: none."):
        said = said.replace(harmless, "")
    return CLAIMS & set(re.findall(r"\w+", said.lower()))


def every_finding(found: Results) -> str:
    parts = (page.quality, page.by_length, page.by_cost, page.learning, page.alignment)
    return " ".join(part(found) for part in parts)


def test_noise_alone_gives_no_claim_anywhere() -> None:
    """Four models that are one: what differs is drawn, a little, from seed to seed."""
    draw = np.random.default_rng(3)
    runs = [
        run(f"m{i}", seed, 60 + draw.normal(), lengths=[*(70 + draw.normal(size=4))],
            curve=(20, 40, 60 + draw.normal()), flops=1e15 * (1 + i / 100 + seed / 1e4),
            scores={"aer": 0.3 + draw.normal() / 100})
        for i in range(4) for seed in (1, 2, 3)
    ]  # fmt: skip
    said = every_finding(results(*runs))
    assert said.count("does not differ significantly from") == 4
    assert "in both AER and BLEU: 0 of 6" in said
    assert claims(said) == set()
    assert ">" not in said


def test_one_seed_gives_no_claim_anywhere_without_a_test() -> None:
    said = every_finding(replace(full(), runs=[x for x in full().runs if x.seed == 1]))
    assert said.count("with one seed for each model") == 5
    assert "significantly" not in said
    assert claims(said) == set()
    assert ">" not in said


def test_those_who_are_level_are_called_that() -> None:
    said = page.quality(results(*seeds("a", [80, 82]), *seeds("b", [81, 81])))
    assert said.strip() == "By BLEU, all models are level at 81.0."
    zero = [run(x, seed, 0.0, lengths=(0, 0, 0, 0), curve=(0, 0, 0), flops=1e15 * (1 + (x == "b")))
            for x in "abc" for seed in (1, 2)]  # fmt: skip
    said = every_finding(results(*zero))
    assert said.count("all models are level at 0.0") == 3
    assert claims(said) == set()
    assert ">" not in said


def test_a_difference_is_that_of_the_numbers_shown() -> None:
    said = page.quality(results(*seeds("a", [58.74] * 2), *seeds("b", [53.36] * 2)))
    assert "58.7 ± 0.0 and is best, 5.3 ahead of `b` (53.4 ± 0.0)" in said


def test_one_seed_says_that_nothing_can_be_told() -> None:
    said = page.quality(results(run("a", 1, 80.0), run("b", 1, 60.0), run("c", 1, 50.0)))
    assert said.strip() == (
        "By BLEU, models have 50.0 to 80.0, which says nothing of who is better: with one seed for each model there is "
        "no spread to hold differences against."
    )


def test_one_model_has_none_beside_it() -> None:
    assert "there is no other to compare it with" in page.quality(results(run("a", 1, 80.0)))


def test_who_leads_beyond_the_lengths_of_training_and_what_is_left_there() -> None:
    said = page.by_length(full())
    assert said.startswith(
        "Among sentences of 13–20 words, longer than any in training, `a` has 72.0 ± 1.0 and is best"
    )
    header, _, *rows = page.length_table(full()).splitlines()
    assert header == "| BLEU by source words | 1–4 | 5–8 | 9–12 | 13–20 | left of 9–12 at 13–20 |"
    assert rows[1] == "| b | 85.0 ± 0.0 | 80.0 ± 0.0 | 60.0 ± 0.0 | 4.0 ± 1.0 | 7% |"
    assert [row.split("|")[-2].strip() for row in rows] == ["84%", "7%", "80%"]


def test_lengths_where_those_of_training_are_not_known() -> None:
    found = replace(full(), trained=None)
    assert page.landmarks(found) == ((13, 20), None)
    assert "No group of test sentences is known to be" in page.by_length(found)
    assert page.length_table(found).splitlines()[0] == "| BLEU by source words | 1–4 | 5–8 | 9–12 | 13–20 |"


def test_a_group_that_straddles_the_limit_is_neither_within_nor_beyond() -> None:
    assert page.landmarks(replace(full(), trained=(1, 15))) == ((9, 12), None)
    assert page.landmarks(replace(full(), trained=(1, 4))) == ((1, 4), (13, 20))
    assert page.landmarks(replace(full(), trained=(30, 40))) == (None, None)


def test_cost_tells_who_is_beaten_in_both() -> None:
    assert page.by_cost(full()) == (
        "By their means these are `b` and `a`. Beaten significantly at no more cost: `c` by `b`."
    )


def test_cost_says_where_noise_forbids_a_verdict() -> None:
    found = results(*seeds("a", [80, 82], flops=1e15), *seeds("b", [79, 81], flops=2e15))
    assert page.by_cost(found).endswith("Beaten significantly at no more cost: none.")


def test_learning_tells_who_leads_early_and_late() -> None:
    said = page.learning(full())
    assert "After a quarter (250 tokens), in validation, `b` has 30.0 ± 0.0 and is best, 10.0 ahead of `a`" in said
    assert "At the end (1,000 tokens), in validation, `a` has 82.0 ± 1.0 and is best, 22.0 ahead of `b`" in said
    late = results(*(run(x, 1, 0.0, curve=(50.0,)) for x in "ab"))
    assert "After a quarter" not in page.learning(late)
    silent = [replace(x, curve=[replace(p, quality=None) for p in x.curve]) for x in full().runs]
    assert page.learning(replace(full(), runs=silent)).startswith("Only the loss was followed")


def test_alignment_against_quality() -> None:
    said = page.alignment(full())
    assert "By alignment error rate, `a` has 0.200 ± 0.000 and is best, 0.100 below `b` (0.300 ± 0.000)" in said
    assert "in both AER and BLEU: 1 of 1; the lower AER goes with the higher BLEU in 1 of them." in said


# Paired bootstrap resampling


SENTENCES = ["the cat sat on the mat", "a dog ran home", "we saw three ships today", "it is late now", "rain again"] * 8
GOOD = [x.replace("cat", "dog") if i % 3 else x for i, x in enumerate(SENTENCES)]
BAD = [" ".join(reversed(x.split())) if i % 4 else x for i, x in enumerate(SENTENCES)]


def accuracy(outputs: Sequence[str], references: Sequence[str]) -> Score:
    return label_scores([x.split() for x in outputs], [x.split() for x in references], per="word")["accuracy"]


CASES: dict[str, Callable[[list[str], list[str]], Score]] = {
    "bleu": Bleu(), "chrf": Chrf(), "exact": Exact(), "accuracy": accuracy,
    **{name: METRICS.get(name)() for name in bootstrap.ADDITIVE},
}  # fmt: skip


@pytest.mark.parametrize("metric", bootstrap.BOOTSTRAPPED)
def test_statistics_of_sentences_add_up_to_the_score_of_the_corpus(metric: str) -> None:
    rows = bootstrap.statistics(metric, BAD, [SENTENCES])
    assert len(rows) == len(SENTENCES)
    assert bootstrap.scorer(metric)(rows.sum(0)) == pytest.approx(CASES[metric](BAD, SENTENCES).value)
    some = [3, 3, 0, 11, 25]
    expected = CASES[metric]([BAD[i] for i in some], [SENTENCES[i] for i in some]).value
    assert bootstrap.scorer(metric)(rows[some].sum(0)) == pytest.approx(expected)


@pytest.mark.parametrize("metric", [Bleu, Chrf, Ter])
def test_scores_of_some_sentences_at_a_time_are_those_of_all(
    metric: type[Bleu], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.evaluation.metrics.HELD", 7)
    for references in ([SENTENCES], [SENTENCES, [f"{x} again" for x in SENTENCES]]):
        made = metric().make()
        expected = made.corpus_score(BAD, references).score
        found = metric()(BAD, *references)
        assert (found.value, found.signature) == (expected, str(made.get_signature()))


def test_resamples_are_those_of_sacrebleu() -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import estimate_ci

    scores = bootstrap.resampled("bleu", [bootstrap.statistics("bleu", x, [SENTENCES]) for x in (GOOD, BAD)])
    assert scores.shape == (1 + bootstrap.RESAMPLES, 2)
    for column, outputs in zip(scores.T, (GOOD, BAD), strict=True):
        theirs = BLEU(force=True).corpus_score(outputs, [SENTENCES], n_bootstrap=bootstrap.RESAMPLES)
        assert column[0] == pytest.approx(theirs.score)
        assert estimate_ci(column[1:]) == pytest.approx((theirs._mean, theirs._ci), abs=1e-3)


def paired(**systems: Sequence[Sequence[str]]) -> dict[frozenset[str], Pair]:
    """Each system is one output of the test sentences for each of its seeds."""
    found = {x: [bootstrap.statistics("bleu", outputs, [SENTENCES]) for outputs in systems[x]] for x in systems}
    return {frozenset((x.one, x.other)): x for x in paired_tests("bleu", found, None)}


def test_a_paired_test_finds_what_differs_and_only_that() -> None:
    swapped = [*GOOD[:-5], *SENTENCES[-5:]]  # a little other than GOOD, in few sentences
    pairs = paired(good=[GOOD], bad=[BAD], swapped=[swapped], same=[GOOD])
    clear, close, same = (pairs[frozenset(x)] for x in (("good", "bad"), ("good", "swapped"), ("good", "same")))
    assert clear.difference == pytest.approx(Bleu()(GOOD, SENTENCES).value -
                                             Bleu()(BAD, SENTENCES).value)  # fmt: skip
    assert clear.p < 0.05
    assert 0 < clear.low < clear.difference < clear.high
    assert (same.p, same.difference, same.low, same.high) == (1.0, 0.0, 0.0, 0.0)
    assert close.p > 0.05


def test_seeds_are_averaged_on_each_resample() -> None:
    one, both = paired(a=[GOOD], b=[BAD]), paired(a=[GOOD, GOOD], b=[BAD, GOOD])
    (single,), (double,) = one.values(), both.values()
    assert double.difference == pytest.approx(single.difference / 2)
    assert (double.low, double.high) == pytest.approx((single.low / 2, single.high / 2))
    assert double.p == single.p


def pair(one: str, other: str, p: float = 0.01, group: tuple[int, int] | None = None, **values: float) -> Pair:
    return Pair(one=one, other=other, group=group, p=p, **{"difference": 20.0, "low": 18.0, "high": 22.0, **values})


def test_both_tests_must_agree_where_there_are_two() -> None:
    """A difference that other sentences, or other seeds, would not show is not claimed."""
    clear, noisy = (
        [*seeds("a", [80, 81, 82]), *seeds("b", [60, 61, 62])],
        [*seeds("a", [60, 80, 100]), *seeds("b", [60])],
    )
    for runs, p, differ in ((clear, 0.01, True), (clear, 0.2, False), (noisy, 0.01, True), (noisy, 0.2, False)):
        found = results(*runs, pairs=(pair("b", "a", p),))
        assert found.ranking().differ("a", "b") is found.ranking().differ("b", "a") is differ
        assert found.ranking("aer").pairs == {}
    wide = results(*seeds("a", [60, 80, 100]), *seeds("b", [50, 60, 70]), pairs=(pair("a", "b"),))
    assert wide.ranking().differ("a", "b") is False


def test_a_group_of_lengths_has_its_own_test() -> None:
    runs = [run(x, 1, 50.0, lengths=(90, 80, 70, 60.0 + (x == "b"))) for x in "ab"]
    found = results(
        *runs, pairs=(pair("a", "b", 0.5), pair("b", "a", 0.01, (13, 20), difference=1.0, low=0.2, high=1.9))
    )
    assert found.ranking().differ("a", "b") is False
    assert found.ranking(group=(13, 20)).differ("a", "b") is True
    assert found.ranking(group=(9, 12)).differ("a", "b") is None
    assert "`b` has 61.0 and is best, 1.0 ahead of `a` (60.0; 95 % interval of the difference 0.2 to 1.9); it" in (
        page.by_length(found)
    )


def test_one_seed_with_a_paired_test_speaks_of_these_models_alone(tmp_path: Path) -> None:
    less = pair("b", "a", difference=-20.0, low=-22.0, high=-18.0)
    found = results(run("a", 1, 80.0), run("b", 1, 60.0), pairs=(less,), resamples=1000)
    page.write_page(found, tmp_path / "a.md")
    text = (tmp_path / "a.md").read_text(encoding="utf-8").replace("\n", " ")
    assert "`a` has 80.0 and is best, 20.0 ahead of `b` (60.0; 95 % interval of the difference 18.0 to 22.0)" in text
    assert "There is one seed for each model, so this is said of these trained models alone" in text
    assert "where the test gives p < 0.05" in text
    assert "with 1,000 resamples of the test sentences" in text
    assert "Welch" not in text


# The page


def test_the_page_its_figures_and_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "the lecture.md"
    page.write_page(full(), path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# A comparison\n\n3 models were trained on the same data under the same budget")
    assert "from 3 seeds each:" in text
    for part in (
        "- `a`: the first idea\n- `b`\n",
        "\nData: A made-up corpus\n",
        "on 2026-01-01 on a CPU",
        "\n\n    regard compare\n\n",
    ):
        assert part in text
    assert markdown(*cells(full())) in text
    links = re.findall(r"!\[.+\]\((.+)\)", text)
    assert links == [f"the%20lecture/{x}.svg" for x in ("by-length", "by-cost", "learning")]
    for link in links:
        assert (path.parent / link.replace("%20", " ")).read_text(encoding="utf-8").startswith("<?xml")
    assert load(tmp_path / "docs" / "the lecture" / "results.json") == full()
    assert "://" not in text
    assert "Welch's t-test on 3 seeds" in text
    assert "differ significantly where the test gives p < 0.05" in text
    assert "paired bootstrap" not in text  # these runs have no statistics of sentences
    assert "one corpus and one budget (1,000 target tokens). The models have 1.2 M parameters" in text
    assert "(n = 3)" in text
    assert "$" not in text


def test_what_the_page_is_given_is_escaped(tmp_path: Path) -> None:
    evil = "<script>x</script> `a` *b* [c](http://d) | # ~~e~~ $title"
    found = results(run(evil, 1, 1.0), run("b", 1, 2.0), title=evil, data=evil, hardware=evil, versions=evil,
                    budget=evil, command="regard\n```\n<script>", ideas={evil: evil})  # fmt: skip
    page.write_page(found, tmp_path / "a.md")
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert "    regard\n    ```\n    <script>\n" in text
    outside = re.sub(r"(`+)(.+?)(?<!`)\1(?!`)", "", re.sub(r"(?m)^    .*$", "", text.replace("\\`", "")))
    assert "<script>" not in outside
    assert "[c](" not in outside
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_a_block_with_an_empty_value_and_a_heading_without_blocks_are_left_out() -> None:
    template = "# $a\n\n## One\n\n$b and $a\n\n$c\n\n## Two\n\ntext\n\n## Three\n\n$c"
    assert page.render(template, {"a": "A", "b": "B", "c": ""}) == "# A\n\n## One\n\nB and A\n\n## Two\n\ntext\n"
    assert page.render("# $a\n\n$b", {"a": "$b", "b": "B"}) == "# $b\n\nB\n"


def headings(found: Results, path: Path) -> list[str]:
    page.write_page(found, path)
    return [line[3:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]


def test_a_section_is_there_only_with_its_measurements(tmp_path: Path) -> None:
    everything = ["Results", "Quality by length", "Quality by cost", "Learning", "Attention as alignment"]
    assert headings(full(), tmp_path / "a.md") == [*everything, "What this does not show"]
    bare = results(run("a", 1, 60.0, flops=0.0), run("b", 1, 50.0, flops=0.0), trained=None)
    assert headings(bare, tmp_path / "b.md") == ["Results", "What this does not show"]
    text = (tmp_path / "b.md").read_text(encoding="utf-8").replace("\n", " ")
    assert "from 1 seed each" in text
    assert "There is one seed for each model, so no difference between models is claimed below." in text
    assert "±" not in text
    assert "AER" not in text
    assert sorted(x.name for x in (tmp_path / "b").iterdir()) == ["results.json"]


def test_one_seed_writes_a_whole_page(tmp_path: Path) -> None:
    found = full()
    one = replace(found, runs=[x for x in found.runs if x.seed == 1])
    assert len(headings(one, tmp_path / "a.md")) == 6
    text = (tmp_path / "a.md").read_text(encoding="utf-8").replace("\n", " ")
    assert "±" not in text
    assert "significantly" not in text
    assert "nan" not in text


def test_a_single_model_is_singular(tmp_path: Path) -> None:
    found = full()
    page.write_page(replace(found, runs=found.of("b")), tmp_path / "a.md")
    text = (tmp_path / "a.md").read_text(encoding="utf-8").replace("\n", " ")
    assert "1 model was trained on the same data" in text
    assert "from 3 seeds:" in text
    assert "`b` has 62.0 ± 1.0; there is no other to compare it with." in text
    assert (tmp_path / "a" / "by-cost.svg").exists()


def test_what_cannot_be_a_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"should end in \.md"):
        page.write_page(full(), tmp_path / "page")
    with pytest.raises(DataError, match="no runs"):
        page.write_page(results(), tmp_path / "page.md")
    assert not list(tmp_path.iterdir())


# Figures


def many(models: int = 9, count: int = 3) -> Results:
    """Models that end close to one another, which is hard to label."""
    return results(
        *(run(f"model number {i}", seed, 80.0 + i % 3 + seed / 5, flops=1e15 * (1 + i / 20), curve=(20, 50, 80 + i / 9),
              lengths=(90, 88, 86 - i / 5, 80 - i / 5))
          for i in range(models) for seed in range(count))
    )  # fmt: skip


Draw = Callable[[Figure, Results], None]


def drawn(draw: Draw, found: Results) -> Figure:
    with matplotlib.rc_context({**drawing.SETTINGS, **plots.SETTINGS}):
        figure = Figure(figsize=(1, 1), dpi=drawing.DPI)
        FigureCanvasAgg(figure)
        draw(figure, found)
        figure.draw_without_rendering()
        return figure


def lines(figure: Figure, panel: int = 0) -> Mapping[str, Any]:
    """Those that stand for a model, by its name; what else is drawn has a label that starts with an underscore."""
    return {str(x.get_label()): x for x in figure.axes[panel].get_lines() if not str(x.get_label()).startswith("_")}


DRAWINGS = [plots.length_figure, plots.cost_figure, plots.learning_figure]


@pytest.mark.parametrize("draw", DRAWINGS)
def test_every_model_has_one_line_one_name_and_the_same_look(draw: Draw) -> None:
    found = many()
    figure = drawn(draw, found)
    reference = lines(drawn(plots.length_figure, found))
    for panel, axes in enumerate(figure.axes):
        here = lines(figure, panel)
        assert list(here) == found.models
        assert sorted(x.get_text() for x in axes.texts if x.get_text() in found.models) == found.models
        for model, line in here.items():
            assert line.get_color() == reference[model].get_color()
            assert line.get_marker() == reference[model].get_marker()
    assert len({x.get_color() for x in reference.values()}) == len(found.models)
    assert len({x.get_marker() for x in reference.values()}) == len(found.models)


@pytest.mark.parametrize("draw", DRAWINGS)
def test_names_do_not_overlap_and_stay_on_the_paper(draw: Draw) -> None:
    found = many(12)
    figure = drawn(draw, found)
    paper = figure.get_tightbbox().transformed(figure.dpi_scale_trans).padded(0.5)  # what a file is cut to
    for axes in figure.axes:
        boxes = [x.get_window_extent() for x in axes.texts if x.get_text() in found.models]
        assert len(boxes) == 12
        for i, box in enumerate(boxes):
            assert paper.x0 <= box.x0
            assert box.x1 <= paper.x1
            assert paper.y0 <= box.y0
            assert box.y1 <= paper.y1
            assert not any(box.overlaps(other) for other in boxes[:i])


def test_quality_stands_over_the_middle_of_each_length_group() -> None:
    figure = drawn(plots.length_figure, full())
    axes = figure.axes[0]
    line = lines(figure)["b"]
    assert line.get_xdata().tolist() == [2.5, 6.5, 10.5, 16.5]
    assert line.get_ydata().tolist() == [85, 80, 60, 4]
    assert [x.get_text() for x in axes.get_xticklabels()] == ["1–4", "5–8", "9–12", "13–20"]


def test_what_is_longer_than_training_is_marked() -> None:
    figure = drawn(plots.length_figure, full())
    edges = [x for x in figure.axes[0].get_lines() if x.get_label() == "_edge of training"]
    assert [np.asarray(x.get_xdata())[0] for x in edges] == [12.5]
    assert "longer than any in training" in [x.get_text().replace("\n", " ") for x in figure.axes[0].texts]
    for trained in (None, (1, 20)):
        plain = drawn(plots.length_figure, replace(full(), trained=trained))
        assert not [x for x in plain.axes[0].texts if "training" in x.get_text()]


@pytest.mark.parametrize("draw", [plots.length_figure, plots.learning_figure])
def test_bands_are_drawn_only_where_there_is_a_spread(draw: Draw) -> None:
    from matplotlib.collections import FillBetweenPolyCollection

    def bands(found: Results) -> int:
        return sum(isinstance(x, FillBetweenPolyCollection) for x in drawn(draw, found).axes[0].collections)

    assert bands(full()) >= 1
    assert bands(replace(full(), runs=[x for x in full().runs if x.seed == 1])) == 0


def test_cost_shows_every_run_and_the_frontier() -> None:
    figure = drawn(plots.cost_figure, full())
    marks = {str(x.get_label()): np.asarray(x.get_xydata()).tolist() for x in figure.axes[0].get_lines()}
    assert marks["_runs a"] == [[3.1e15, 81], [3.1e15, 82], [3.1e15, 83]]
    assert marks["a"] == [[3.1e15, 82]]
    assert marks["_frontier"] == [[1e15, 62], [3.1e15, 82]]
    assert marks["_path c"] == [[0.5e15, 10], [1e15, 20], [1.5e15, 30], [2e15, 50]]
    assert figure.axes[0].get_xscale() == "log"
    low, high = figure.axes[0].get_xlim()
    assert low < 1e15 < 3.1e15 < high


def test_loss_has_a_panel_of_its_own_if_there_is_one() -> None:
    both = drawn(plots.learning_figure, full())
    assert [x.get_ylabel() for x in both.axes] == ["validation BLEU", "validation loss"]
    silent = tuple(replace(x, curve=tuple(replace(p, loss=None) for p in x.curve)) for x in full().runs)
    assert [x.get_ylabel() for x in drawn(plots.learning_figure, replace(full(), runs=silent)).axes] == [
        "validation BLEU"
    ]


@pytest.mark.parametrize(
    ("draw", "message"),
    [(plots.length_figure, "by length"), (plots.cost_figure, "by cost"), (plots.learning_figure, "learning curve")],
)
def test_what_was_not_measured_cannot_be_drawn(draw: Draw, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drawn(draw, results(run("a", 1, 1.0, flops=0.0)))


def test_one_run_and_equal_costs_can_be_drawn(tmp_path: Path) -> None:
    plots.write_figure(plots.cost_figure, results(run("a", 1, 50.0), run("b", 1, 50.0)), tmp_path / "a.png")
    plots.write_figure(plots.length_figure, results(run("a", 1, 50.0, lengths=(7.0,))), tmp_path / "b.png")
    plots.write_figure(plots.learning_figure, results(run("a", 1, 50.0, curve=(7.0,))), tmp_path / "c.png")
    assert all((tmp_path / f"{x}.png").read_bytes().startswith(b"\x89PNG") for x in "abc")


def test_the_same_results_give_the_same_file_and_other_endings_are_refused(tmp_path: Path) -> None:
    plots.write_figure(plots.cost_figure, full(), tmp_path / "a.svg")
    plots.write_figure(plots.cost_figure, full(), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    with pytest.raises(ConfigError, match=r"cannot draw '\.gif'"):
        plots.write_figure(plots.cost_figure, full(), tmp_path / "a.gif")


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([0.1, 0.5, 0.9], [0.1, 0.5, 0.9]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.0, 0.0, 0.0], [0.0, 0.1, 0.2]),
        ([0.98, 1.0], [0.9, 1.0]),
    ],
)
def test_labels_move_apart_no_farther_than_they_must(wanted: list[float], places: list[float]) -> None:
    assert plots.spaced(np.array(wanted), 0.1, 0.0, 1.0) == pytest.approx(places)


# What it needs


def test_reports_need_neither_torch_nor_matplotlib_to_be_imported() -> None:
    code = "import regard.compare.page, sys; print([x for x in ('torch', 'matplotlib') if x in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
