"""What is made of a comparison: means and spreads, the table, the figures, and a page that says no more than it may."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from regard.compare import findings, page, plots
from regard.compare.results import (
    Length,
    Measure,
    Point,
    Results,
    Run,
    beaten_by,
    cells,
    frontier,
    load,
    markdown,
    p_value,
    ranked,
    save,
    table,
)
from regard.errors import ConfigError, DataError

GROUPS = ((1, 4), (5, 8), (9, 12), (13, 20))


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
        model, seed, tokens=1000, steps=100, scores=scores, **facts,
        lengths=tuple(Length(*group, 10, {"bleu": x}) for group, x in zip(GROUPS, lengths, strict=False)),
        curve=tuple(
            Point(i, 1000 * i // len(curve), facts["flops"] * i / len(curve), 1.0 * i, 5.0 - i, x)
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


def told(sentences: Any) -> str:
    return " ".join(sentences)


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
    assert one.apart(two) is None
    assert two.apart(one) is None


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
    assert a.apart(b) is b.apart(a) is apart


def test_a_mean_is_above_a_value_only_beyond_noise() -> None:
    assert Measure(0.6, 0.01, 3).above(0.5) is True
    assert Measure(0.4, 0.01, 3).above(0.5) is False
    assert Measure(0.6, 0.2, 3).above(0.5) is None
    assert Measure(0.6, None, 1).above(0.5) is None
    assert Measure(0.5, 0.0, 3).above(0.5) is None


def test_models_keep_the_order_of_first_appearance() -> None:
    found = results(run("z", 1, 1.0), run("a", 1, 2.0), run("z", 2, 3.0))
    assert found.models == ["z", "a"]
    assert [x.seed for x in found.of("z")] == [1, 2]


def test_a_change_between_lengths_is_taken_within_a_run() -> None:
    found = results(run("a", 1, 0.0, lengths=(50, 40)), run("a", 2, 0.0, lengths=(70, 60)))
    change = found.change("a", (1, 4), (5, 8))
    assert change == Measure(-10.0, 0.0, 2)  # though the runs themselves lie 20 apart


def test_a_group_without_sentences_is_no_measurement() -> None:
    empty = replace(run("a", 1, 1.0), lengths=(Length(1, 4, 0, {"bleu": 0.0}), Length(5, 8, 3, {"bleu": 7.0})))
    assert results(empty).groups == [(5, 8)]
    assert results(empty).measure("a", group=(1, 4)) is None


def test_learning_curves_of_seeds_are_brought_to_the_same_tokens() -> None:
    def curve(*points: tuple[int, float]) -> tuple[Point, ...]:
        return tuple(Point(0, tokens, 0.0, 0.0, None, quality) for tokens, quality in points)

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
    assert [x for x, _ in ranked(found, "bleu")] == ["b", "c", "a"]
    assert [x for x, _ in ranked(found, "aer")] == ["a", "b"]


def test_a_model_is_beaten_by_one_that_is_better_and_costs_no_more() -> None:
    found = results(
        run("cheap", 1, 50.0, flops=1e15), run("poor", 1, 40.0, flops=2e15), run("good", 1, 70.0, flops=3e15),
        run("same", 1, 60.0, flops=2.99e15),
    )  # fmt: skip
    assert frontier(found) == ["cheap", "good"]
    assert beaten_by(found, "poor") == "cheap"
    assert beaten_by(found, "same") == "good"  # which costs one percent more, and so as much


# On disk


def test_results_come_back_from_json(tmp_path: Path) -> None:
    whole = replace(full(), gpu=True)
    assert Results.from_json(json.loads(json.dumps(whole.to_json()))) == whole
    bare = results(run("a", 1, 1.0), trained=None)
    save(bare, tmp_path / "r.json")
    assert load(tmp_path / "r.json") == bare
    assert Run.from_json(whole.runs[0].to_json()) == whole.runs[0]


def test_json_holds_nothing_that_is_no_number() -> None:
    broken = run("a", 1, 1.0, scores={"perplexity": float("inf")}, curve=(float("nan"),))
    raw = results(broken).to_json()
    json.dumps(raw, allow_nan=False)
    again = Results.from_json(raw).runs[0]
    assert again.scores == {"bleu": 1.0}
    assert again.curve[0].quality is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.pop("format"), "not the results of `regard compare`"),
        (lambda raw: raw.pop("budget"), "budget of the comparison is missing"),
        (lambda raw: raw.update(trained=[1]), "trained of the comparison should be two numbers"),
        (lambda raw: raw.update(trained=[1, "x"]), "expected a whole number, not 'x'"),
        (lambda raw: raw.update(gpu="no"), "gpu of the comparison should be true or false, not 'no'"),
        (lambda raw: raw["runs"].append(3), "a run should be a table of names and values, not int"),
        (lambda raw: raw["runs"][0].update(seed=True), "seed of a run should be a whole number, not 'True'"),
        (lambda raw: raw["runs"][0].update(flops="many"), "flops of a run should be a number, not 'many'"),
        (lambda raw: raw["runs"][0]["scores"].update(bleu="good"), "bleu of scores of a run should be a number"),
        (lambda raw: raw["runs"][0]["lengths"][0].pop("longest"), "longest of a length group is missing"),
        (lambda raw: raw["runs"][0]["curve"][0].update(loss="low"), "loss of a point of a curve should be a number"),
    ],
)
def test_a_foreign_file_is_refused_in_a_line(
    change: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path
) -> None:
    raw = full().to_json()
    change(raw)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(DataError) as caught:
        load(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


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


# What the page says


def test_a_winner_beyond_noise_is_called_one() -> None:
    said = told(findings.quality(results(*seeds("a", [80, 81, 82]), *seeds("b", [60, 61, 62]))))
    assert said == (
        "By BLEU, `a` is best with 81.0 ± 1.0, 20.0 ahead of `b` (61.0 ± 1.0), and is told from all others beyond "
        "noise."
    )


def test_none_is_called_best_within_noise() -> None:
    found = results(*seeds("a", [80, 81, 82]), *seeds("b", [79, 80, 81]), *seeds("c", [70, 79, 88]),
                    *seeds("d", [20, 21, 22]))  # fmt: skip
    said = told(findings.quality(found))
    assert said == (
        "By BLEU, `a` has the highest mean, 81.0 ± 1.0, but is not told from `b` (80.0 ± 1.0) and `c` (79.0 ± 9.0) "
        "beyond noise; from the others it is. By their means: `a` ≈ `b` ≈ `c` > `d` (> stands where two neighbours "
        "differ beyond noise, ≈ where they do not)."
    )
    assert claims(said) == set()


def test_the_first_is_not_best_if_a_later_one_is_too_noisy_to_tell() -> None:
    found = results(*seeds("a", [80, 81, 82]), *seeds("b", [60, 61, 62]), *seeds("c", [0, 59, 110]))
    said = told(findings.quality(found))
    assert "`a` has the highest mean, 81.0 ± 1.0, but is not told from `c` (56.3 ± 55.0) beyond noise; from the" in said
    assert claims(said) == set()


CLAIMS = {"best", "better", "worse", "most", "least", "cheaper", "ahead", "beats", "beaten", "fastest"}


def claims(said: str) -> set[str]:
    return CLAIMS & set(re.findall(r"\w+", said.lower()))


def every_finding(found: Results) -> str:
    parts = (findings.quality, findings.by_length, findings.by_cost, findings.learning, findings.alignment)
    return told(sentence for part in parts for sentence in part(found))


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
    assert "not told from" in said
    assert "differ beyond noise." in said
    assert claims(said.replace("No model is beaten", "")) == set()
    assert ">" not in said


def test_one_seed_gives_no_claim_anywhere() -> None:
    said = every_finding(replace(full(), runs=tuple(x for x in full().runs if x.seed == 1)))
    assert said.count("with one seed for each model") >= 6
    assert (
        claims(said.replace("who is better", "").replace("who is ahead", "").replace("one beats another", ""))
        - {
            "beats"  # `which no other model beats in both by its mean`
        }
        == set()
    )
    assert ">" not in said


def test_those_who_did_not_score_are_not_ranked() -> None:
    zero = [run(x, seed, 0.0, lengths=(0, 0, 0, 0), curve=(0, 0, 0), flops=1e15 * (1 + (x == "b")))
            for x in "abc" for seed in (1, 2)]  # fmt: skip
    said = every_finding(results(*zero))
    assert "By BLEU, no model scored: all are at 0.0." in said
    assert "longer than any in training, no model scored" in said
    assert "nothing changes: no model scored in either." in said
    assert "No model scored, so none got anything for it." in said
    assert "No model has any validation BLEU at the end." in said
    assert claims(said) == set()
    assert ">" not in said
    one = told(findings.quality(results(run("a", 1, 0.0), run("b", 1, 0.04))))
    assert one == "By BLEU, no model scored: all are at 0.0."


def test_those_who_are_level_are_called_that() -> None:
    said = told(findings.quality(results(*seeds("a", [80, 82]), *seeds("b", [81, 81]))))
    assert said == "By BLEU, all models are level at 81.0."


def test_a_difference_is_that_of_the_numbers_shown() -> None:
    said = told(findings.quality(results(*seeds("a", [58.74] * 2), *seeds("b", [53.36] * 2))))
    assert "58.7 ± 0.0, 5.3 ahead of `b` (53.4 ± 0.0)" in said


def test_one_seed_says_that_nothing_can_be_told() -> None:
    said = told(findings.quality(results(run("a", 1, 80.0), run("b", 1, 60.0), run("c", 1, 50.0))))
    assert said == (
        "By BLEU, models have 50.0 to 80.0, which says nothing of who is better: with one seed for each model there is "
        "no noise to hold differences against."
    )
    assert "n = 1" in told(page.caveats(results(run("a", 1, 80.0))))


def test_one_model_has_none_beside_it() -> None:
    assert "there is no other to compare it with" in told(findings.quality(results(run("a", 1, 80.0))))


def test_a_model_without_the_metric_is_named() -> None:
    said = told(findings.quality(results(run("a", 1, 80.0), run("b", 1, float("nan")))))
    assert said.endswith("`b` has no BLEU.")


def test_who_collapses_beyond_the_lengths_of_training() -> None:
    said = told(findings.by_length(full()))
    assert "From 1–4 to 9–12 words, both of lengths seen in training, BLEU changes by −25.0 ± 0.0 (`b`) to −4.0" in said
    assert "Among sentences of 13–20 words, longer than any in training, `a` is best with 72.0 ± 1.0, 32.0 " in said
    assert "From 9–12 to 13–20 words, BLEU changes by −56.0 ± 1.0 (`b`) to −10.0 ± 0.0 (`c`); these two differ" in said
    assert "Beyond noise, `b` (7%) keeps less than half of its BLEU there." in said
    assert "Beyond noise, `a` (84%) and `c` (80%) keep more than half of their BLEU there." in said


def test_who_loses_least_because_there_was_little_to_lose() -> None:
    found = results(
        *(run("a", i, 0.0, lengths=(90, 90, 90 + i, 70)) for i in (1, 2)),
        *(run("b", i, 0.0, lengths=(10, 9, 8 + i / 10, 6)) for i in (1, 2)),
    )
    said = told(findings.by_length(found))
    assert "`b` had little to lose, though: it starts from 8.1, where the highest is 91.5." in said


def test_several_who_collapse_are_plural_and_gains_are_not_losses() -> None:
    found = results(*(run("a", i, 0.0, lengths=(80, 82, 84, 20)) for i in (1, 2)),
                    *(run("b", i, 0.0, lengths=(70, 70, 60, 10)) for i in (1, 2)))  # fmt: skip
    said = told(findings.by_length(found))
    assert "BLEU changes by −10.0 ± 0.0 (`b`) to +4.0 ± 0.0 (`a`); these two differ beyond noise." in said
    assert "`a` (24%) and `b` (17%) keep less than half of their BLEU there." in said


def test_lengths_where_those_of_training_are_not_known() -> None:
    found = replace(full(), trained=None)
    said = told(findings.by_length(found))
    assert findings.landmarks(found) == ((1, 4), (13, 20), None)
    assert "in training" not in said
    assert "not known" in said


def test_a_group_that_straddles_the_limit_is_neither_within_nor_beyond() -> None:
    assert findings.landmarks(replace(full(), trained=(1, 15))) == ((1, 4), (9, 12), None)
    assert "No group of test sentences is wholly longer" in told(findings.by_length(replace(full(), trained=(1, 15))))
    assert findings.landmarks(replace(full(), trained=(1, 4))) == (None, (1, 4), (13, 20))


def test_cost_tells_who_is_beaten_in_both() -> None:
    said = told(findings.by_cost(full()))
    assert "from 1.0e15 FLOPs (`b`) to 3.1e15 (`a`), 3.1 times as many" in said
    assert "Per 1e15 FLOPs, BLEU is 26.0 ± 0.5 (`c`) to 62.0 ± 1.0 (`b`); these two differ beyond noise." in said
    assert "join `b` and `a`, which no other model beats in both by its mean. Beaten in both cost and quality, " in said
    assert said.endswith("beyond noise: `c` by `b`.")


def test_cost_says_where_noise_forbids_a_verdict() -> None:
    found = results(*seeds("a", [80, 82], flops=1e15), *seeds("b", [79, 81], flops=2e15))
    assert told(findings.by_cost(found)).endswith(
        "No model is beaten by another in both cost and quality beyond noise."
    )


def test_equal_costs_tell_nobody_apart() -> None:
    found = results(run("a", 1, 80.0, flops=1e15), run("b", 1, 70.0, flops=1.004e15))
    assert "to within one percent, so cost does not tell them apart" in told(findings.by_cost(found))


def test_learning_tells_who_leads_early_and_late() -> None:
    said = told(findings.learning(full()))
    assert "After a quarter of the tokens (250), by validation BLEU, `b` is best with 30.0 ± 0.0, 10.0 ahead of" in said
    assert "At the end, `a` is best with 82.0 ± 1.0, 22.0 ahead of `b`" in said
    assert "`b` and `c` do not reach 73.8 with every seed." in said
    assert "validation BLEU changes by +10.0 ± 0.0 (`b`) to +22.0 ± 1.0 (`a`); these two differ beyond noise." in said


def test_alignment_against_quality() -> None:
    said = told(findings.alignment(full()))
    assert "By alignment error rate, `a` is best with 0.200 ± 0.000, 0.100 below `b` (0.300 ± 0.000), and is" in said
    assert "`c` has no attention that was scored so." in said
    assert "Of 1 pair of models 1 differ beyond noise both in AER and in BLEU; the one with the lower AER has" in said
    worse = results(run("a", 1, 10.0, scores={"aer": 0.1}), run("b", 1, 20.0, scores={"aer": 0.2}))
    assert "Whether BLEU goes with it cannot be told" in told(findings.alignment(worse))


def test_caveats_name_what_is_not_shown() -> None:
    said = told(page.caveats(full()))
    assert "This is one corpus and one budget (1,000 target tokens)." in said
    assert "The models have 1.2 M parameters" in said
    assert "n = 3" in said
    assert "one synthetic corpus" in told(page.caveats(replace(full(), data="A synthetic corpus.")))
    uneven = results(*seeds("a", [1, 2, 3]), run("b", 1, 1.0, parameters=5000))
    assert "n = 1 to 3" in told(page.caveats(uneven))
    assert "5.0 k to 1.2 M parameters" in told(page.caveats(uneven))


# The page


def test_the_page_its_figures_and_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "the lecture.md"
    page.write_page(full(), path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# A comparison\n\n3 models were trained on the same data under the same budget")
    assert "from 3 seeds each:" in text
    for part in (
        "- `a`: the first idea\n- `b`\n",
        "A made-up corpus.\n",
        "on 2026-01-01 on a CPU",
        "\nregard compare\n",
    ):
        assert part in text
    assert markdown(*cells(full())) in text
    links = re.findall(r"!\[.+\]\((.+)\)", text)
    assert links == [f"the%20lecture/{x}.svg" for x in ("by-length", "by-cost", "learning")]
    for link in links:
        assert (path.parent / link.replace("%20", " ")).read_text(encoding="utf-8").startswith("<?xml")
    assert load(tmp_path / "docs" / "the lecture" / "results.json") == full()
    assert "://" not in text
    assert "Welch's t-test over their seeds gives p < 0.05" in text.replace("\n", " ")
    prose = [line for line in text.splitlines() if not line.startswith(("|", "!", "-"))]
    assert max(map(len, prose)) <= findings.WIDTH
    assert all(line.count("`") % 2 == 0 for line in prose if not line.startswith("```"))


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
    assert "No alignment error rate was measured." in text
    assert "±" not in text
    assert "AER" not in text
    assert sorted(x.name for x in (tmp_path / "b").iterdir()) == ["results.json"]


def test_one_seed_writes_a_whole_page(tmp_path: Path) -> None:
    found = full()
    one = replace(found, runs=tuple(x for x in found.runs if x.seed == 1))
    assert len(headings(one, tmp_path / "a.md")) == 6
    text = (tmp_path / "a.md").read_text(encoding="utf-8").replace("\n", " ")
    assert "±" not in text
    assert "beyond noise" not in text
    assert "nan" not in text


def test_a_single_model_is_singular(tmp_path: Path) -> None:
    found = full()
    page.write_page(replace(found, runs=found.of("b")), tmp_path / "a.md")
    text = (tmp_path / "a.md").read_text(encoding="utf-8").replace("\n", " ")
    assert "1 model was trained on the same data" in text
    assert "from 3 seeds:" in text
    assert "Beyond noise, `b` (7%) keeps less than half of its BLEU there." in text


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


def drawn(draw: Callable[[Results], Figure], found: Results) -> Figure:
    with matplotlib.rc_context(plots.SETTINGS):
        figure = draw(found)
        figure.draw_without_rendering()
        return figure


def lines(figure: Figure, panel: int = 0) -> Mapping[str, Any]:
    """Those that stand for a model, by its name; what else is drawn has a label that starts with an underscore."""
    return {str(x.get_label()): x for x in figure.axes[panel].get_lines() if not str(x.get_label()).startswith("_")}


DRAWINGS = [plots.length_figure, plots.cost_figure, plots.learning_figure]


@pytest.mark.parametrize("draw", DRAWINGS)
def test_every_model_has_one_line_one_name_and_the_same_look(draw: Callable[[Results], Figure]) -> None:
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
def test_names_do_not_overlap_and_stay_on_the_paper(draw: Callable[[Results], Figure]) -> None:
    found = many(12)
    figure = drawn(draw, found)
    for axes in figure.axes:
        boxes = [x.get_window_extent() for x in axes.texts if x.get_text() in found.models]
        assert len(boxes) == 12
        for i, box in enumerate(boxes):
            assert figure.bbox.x0 <= box.x0
            assert box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0
            assert box.y1 <= figure.bbox.y1
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
def test_bands_are_drawn_only_where_there_is_a_spread(draw: Callable[[Results], Figure]) -> None:
    from matplotlib.collections import FillBetweenPolyCollection

    def bands(found: Results) -> int:
        return sum(isinstance(x, FillBetweenPolyCollection) for x in drawn(draw, found).axes[0].collections)

    assert bands(full()) >= 1
    assert bands(replace(full(), runs=tuple(x for x in full().runs if x.seed == 1))) == 0


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
def test_what_was_not_measured_cannot_be_drawn(draw: Callable[[Results], Figure], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw(results(run("a", 1, 1.0, flops=0.0)))


def test_one_run_and_equal_costs_can_be_drawn(tmp_path: Path) -> None:
    plots.quality_by_cost(results(run("a", 1, 50.0), run("b", 1, 50.0)), tmp_path / "a.png")
    plots.quality_by_length(results(run("a", 1, 50.0, lengths=(7.0,))), tmp_path / "b.png")
    plots.learning_curves(results(run("a", 1, 50.0, curve=(7.0,))), tmp_path / "c.png")
    assert all((tmp_path / f"{x}.png").read_bytes().startswith(b"\x89PNG") for x in "abc")


def test_the_same_results_give_the_same_file_and_other_endings_are_refused(tmp_path: Path) -> None:
    plots.quality_by_cost(full(), tmp_path / "a.svg")
    plots.quality_by_cost(full(), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    with pytest.raises(ConfigError, match=r"cannot draw '\.gif'"):
        plots.quality_by_cost(full(), tmp_path / "a.gif")


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
