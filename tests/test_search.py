"""Beam search on probability tables, where the optimum is known by enumeration. No network here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.search.beam import beam_search
from regard.search.limits import Hypothesis, Limits
from tests.chain import BOS, EOS, VOCABULARY, A, B, C, Chain, Steps, allowed, limits, markov, random_chain

ALL = 64  # wider than all there is to try within three tokens
STOPS = ["early", "heuristic", "exact"]
PENALTIES = [("none", 1.0), ("gnmt", 0.6), ("gnmt", 2.0), ("average", 1.0), ("average", 0.5)]


def penalised(kind: str, alpha: float, tokens: list[int], log_prob: float) -> float:
    length = len(tokens) + 1
    return log_prob / {"none": 1.0, "gnmt": ((5 + length) / 6) ** alpha, "average": length**alpha}[kind]


def search(chain: Chain, rules: Limits, **options: Any) -> list[list[Hypothesis]]:
    return beam_search(Steps(chain.step), chain.start(), limits=rules, **options)


def best(
    chain: Chain, rules: Limits, source: int, count: int, penalty: str = "none", alpha: float = 1.0
) -> list[Hypothesis]:
    """The best among all allowed sequences, by enumeration."""
    found = [(tokens, chain.log_prob(source, tokens)) for tokens in allowed(rules, source)]
    scored = [Hypothesis(tokens, p, penalised(penalty, alpha, tokens, p)) for tokens, p in found if p > -math.inf]
    return sorted(scored, key=lambda hypothesis: -hypothesis.score)[:count]


def same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [x.tokens for x in found] == [x.tokens for x in expected]
    assert [x.log_prob for x in found] == pytest.approx([x.log_prob for x in expected], abs=1e-9)
    assert [x.score for x in found] == pytest.approx([x.score for x in expected], abs=1e-9)


@pytest.mark.parametrize(("penalty", "alpha"), PENALTIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_full_beam_finds_the_nbest_of_an_enumeration(penalty: str, alpha: float, seed: int) -> None:
    """Each source within its own `longest`."""
    chain, rules = random_chain(5, seed), limits([3, 1, 0, 2, 3])
    found = search(chain, rules, width=ALL, nbest=10, penalty=penalty, alpha=alpha, stop="exact")
    assert [len(x) for x in found] == [10, 4, 1, 10, 10]
    for source, hypotheses in enumerate(found):
        same(hypotheses, best(chain, rules, source, 10, penalty, alpha))


@pytest.mark.parametrize(
    "rules",
    [
        {"shortest": 2},
        {"shortest": 3},
        {"forbidden": (BOS, B)},
        {"forbidden": (BOS, A, C)},
        {"no_repeat": 1},
        {"no_repeat": 2},
        {"no_repeat": 3},
        {"banned": ((A, B), (C, A, C), (B, EOS))},
        {"banned": ((A, B), (C, A, C)), "prefix": [[A], [C, A], []]},
        {"no_repeat": 1, "shortest": 2, "forbidden": (BOS, C)},
    ],
    ids=str,
)
def test_a_full_beam_finds_the_best_that_the_rules_allow(rules: dict[str, Any]) -> None:
    chain = random_chain(3, seed=7)
    made = limits([4, 3, 4], **rules)
    for source, hypotheses in enumerate(search(chain, made, width=128, nbest=6)):
        same(hypotheses, best(chain, made, source, 6))


def line(continues: list[float]) -> Chain:
    """One word that may end at any length: after `i` tokens it goes on with probability `continues[i]`.

    Two hypotheses a step at most, so a beam of two drops nothing, and only the rule for stopping can be wrong.
    """
    probs = torch.zeros(1, A * (len(continues) + 1), VOCABULARY, dtype=torch.float64)
    for i, p in enumerate([*continues, 0.0]):
        probs[0, A * i, EOS], probs[0, A * i, A] = 1 - p, p  # with mix=1 each A counts the memory up by A
    return Chain(probs.log(), mix=1)


@pytest.mark.parametrize(("penalty", "alpha"), PENALTIES)
@given(continues=st.lists(st.floats(0.05, 0.95), min_size=1, max_size=7))
def test_an_exact_search_stops_only_when_nothing_better_can_come(
    penalty: str, alpha: float, continues: list[float]
) -> None:
    chain, most = line(continues), len(continues)
    expected = sorted(
        (penalised(penalty, alpha, [A] * n, chain.log_prob(0, [A] * n)) for n in range(most + 1)), reverse=True
    )
    found = search(chain, limits([most]), width=2, nbest=2, penalty=penalty, alpha=alpha, stop="exact")[0]
    assert [x.score for x in found] == pytest.approx(expected[:2], abs=1e-9)


def test_a_search_that_is_not_exact_stops_when_nothing_better_is_there_now() -> None:
    chain = line([0.4, 1 - 1e-9, 1 - 1e-9, 1 - 1e-9])
    hasty = search(chain, limits([4]), width=1, penalty="average")[0][0]
    exact = search(chain, limits([4]), width=1, penalty="average", stop="exact")[0][0]
    assert (hasty.tokens, exact.tokens) == ([], [A] * 4)
    assert chain.rows_seen == [1] + [1] * 5


def test_a_beam_of_one_takes_the_likeliest_token_at_each_step() -> None:
    chain, rules = random_chain(20, seed=3, sharpness=2.0), limits([6] * 20)
    for source, (hypothesis,) in enumerate(search(chain, rules, width=1)):
        tokens: list[int] = []
        while True:
            row = chain.rows(source, tokens)[-1]
            token = max((EOS, A, B, C) if len(tokens) < 6 else (EOS,), key=lambda token: row[token])
            if token == EOS:
                break
            tokens.append(token)
        assert hypothesis.tokens == tokens
        assert hypothesis.log_prob == pytest.approx(chain.log_prob(source, tokens), abs=1e-9)


def test_a_beam_finds_what_greed_misses() -> None:
    """The likelier first word leads nowhere good: 0.6 * 0.4 < 0.4 * 0.9."""
    chain = markov({BOS: {A: 0.6, B: 0.4}, A: {EOS: 0.4, C: 0.35, B: 0.25}, B: {EOS: 0.9, C: 0.1}, C: {EOS: 1.0}})
    greedy, beam = (search(chain, limits([3]), width=width)[0][0] for width in (1, 2))
    assert (greedy.tokens, beam.tokens) == ([A], [B])
    assert math.exp(greedy.log_prob) == pytest.approx(0.24)
    assert math.exp(beam.log_prob) == pytest.approx(0.36)


def test_sources_that_are_done_leave_the_batch_and_results_stay_in_order() -> None:
    """Four chains that surely end after 3, 0, 1 and 3 words."""
    three = {BOS: {A: 1.0}, A: {B: 1.0}, B: {C: 1.0}, C: {EOS: 1.0}}
    chain = markov(three, {BOS: {EOS: 1.0}}, {BOS: {C: 1.0}, C: {EOS: 1.0}}, three)
    found = search(chain, limits([9] * 4), width=1)
    assert [x[0].tokens for x in found] == [[A, B, C], [], [C], [A, B, C]]
    assert chain.rows_seen == [4, 3, 2, 2]
    chain.rows_seen.clear()
    assert [x[0].tokens for x in search(chain, limits([9] * 4), width=2)] == [[A, B, C], [], [C], [A, B, C]]
    assert chain.rows_seen == [4, 6, 4, 4]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("penalty", "alpha"), PENALTIES)
@pytest.mark.parametrize("width", [1, 3])
def test_a_batch_of_one_equals_a_batch_of_many(width: int, penalty: str, alpha: float, stop: str) -> None:
    chain, longest = random_chain(6, seed=9, sharpness=2.0), [5, 3, 6, 0, 2, 5]
    options: dict[str, Any] = {"width": width, "nbest": width, "penalty": penalty, "alpha": alpha, "stop": stop}
    together = search(chain, limits(longest), **options)
    for source, hypotheses in enumerate(together):
        alone = Chain(chain.log_probs[source : source + 1], chain.mix)
        same(search(alone, limits(longest[source : source + 1]), **options)[0], hypotheses)


def test_no_sources_give_no_results() -> None:
    assert search(random_chain(0, seed=1), limits([])) == []


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize(
    ("longest", "rules", "expected"),
    [
        (3, {"shortest": 5}, [B, A, A]),
        (0, {"shortest": 1}, []),
        (4, {"shortest": 4, "no_repeat": 1, "forbidden": (BOS, C)}, [B, A]),
        (4, {"forbidden": (BOS, A, B, C), "shortest": 1}, []),
    ],
    ids=["too-short", "no-room", "nothing-unsaid", "all-forbidden"],
)
def test_limits_that_leave_no_way_on_give_the_best_open_hypothesis(
    width: int, longest: int, rules: dict[str, Any], expected: list[int]
) -> None:
    table = {BOS: {B: 0.6, A: 0.2, C: 0.1, EOS: 0.1}, B: {A: 0.7, B: 0.1, C: 0.1, EOS: 0.1}}
    table |= {A: {A: 0.6, B: 0.2, C: 0.1, EOS: 0.1}, C: {A: 0.6, B: 0.2, C: 0.1, EOS: 0.1}}
    found = search(markov(table, table), limits([longest, longest], **rules), width=width, nbest=width)
    assert [x.tokens for hypotheses in found for x in hypotheses] == [expected, expected]
    assert [x.score for hypotheses in found for x in hypotheses] == [-math.inf, -math.inf]


def test_one_source_without_a_way_on_does_not_stop_another() -> None:
    table = {BOS: {A: 0.6, EOS: 0.4}, A: {A: 0.3, EOS: 0.7}}
    found = search(markov(table, table), limits([1, 3], shortest=2), width=2)
    assert [x.tokens for x in found[0]] == [[A]]
    assert [x.tokens for x in found[1]] == [[A, A]]


@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 7),
    longest=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    shortest=st.integers(0, 2),
    no_repeat=st.integers(0, 3),
    forbidden=st.sampled_from([(BOS,), (BOS, A), (BOS, B, C)]),
    penalty=st.sampled_from(PENALTIES),
    stop=st.sampled_from(STOPS),
)
def test_every_hypothesis_is_what_it_says(
    seed: int, width: int, longest: list[int], shortest: int, no_repeat: int, forbidden: tuple[int, ...],
    penalty: tuple[str, float], stop: str,
) -> None:  # fmt: skip
    """At any width: within the rules, scored as the model scores it, different from the others, best first."""
    chain = random_chain(len(longest), seed)
    rules = limits(longest, shortest=shortest, no_repeat=no_repeat, forbidden=forbidden)
    kind, alpha = penalty
    found = search(chain, rules, width=width, nbest=width, penalty=kind, alpha=alpha, stop=stop)
    for source, hypotheses in enumerate(found):
        assert 1 <= len(hypotheses) <= width
        if hypotheses[0].score == -math.inf:
            continue
        within = allowed(rules, source)
        for x in hypotheses:
            assert x.tokens in within
            assert x.log_prob == pytest.approx(chain.log_prob(source, x.tokens), abs=1e-9)
            assert x.score == pytest.approx(penalised(kind, alpha, x.tokens, x.log_prob), abs=1e-9)
        assert len({tuple(x.tokens) for x in hypotheses}) == len(hypotheses)
        assert [x.score for x in hypotheses] == sorted((x.score for x in hypotheses), reverse=True)
        assert hypotheses[0].score <= best(chain, rules, source, 1, kind, alpha)[0].score + 1e-9
