"""When a search stops, what happens at the greatest length, and the repetition penalty, on probability tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.search.beam import beam_search
from regard.search.limits import Hypothesis, Limits
from regard.search.sample import line_keys, sample
from regard.search.stepper import Step
from regard.search_settings import Search
from tests.chain import BOS, EOS, A, B, C, Chain, Steps, allowed, limits, markov, random_chain
from tests.conftest import FULL
from tests.test_search import ALL, PENALTIES, same, search

STOPS = ["early", "heuristic", "exact"]
ENDS = ["scored", "forced", "cut"]


def score(rules: Limits, source: int, kind: str, alpha: float, tokens: list[int], log_prob: float) -> float:
    """`log p` over the penalty of a length in which an end that is left out does not count."""
    cut = rules.at_limit == "cut" and len(tokens) == int(rules.longest[source])
    length = len(tokens) + (not cut)
    return log_prob / {"none": 1.0, "gnmt": ((5 + length) / 6) ** alpha, "average": length**alpha}[kind]


def discouraged(rules: Limits, tokens: list[int], row: list[float]) -> list[float]:
    """Scores of the token after these, those that were read before divided by the penalty, or multiplied below 0."""
    theta, found = rules.repetition, list(row)
    for token in {rules.bos, *rules.before, *tokens}:
        found[token] = row[token] * theta if row[token] < 0 else row[token] / theta
    return found


def total(chain: Chain, rules: Limits, source: int, tokens: list[int]) -> float:
    """What a search adds up for an output, from the model's own numbers."""
    added = 0.0
    for i, token in enumerate([*tokens, EOS]):
        if i == int(rules.longest[source]) and rules.at_limit != "scored":
            continue
        added += discouraged(rules, tokens[:i], chain.rows(source, tokens[:i])[-1])[token]
    return added


def best(chain: Chain, rules: Limits, source: int, count: int, kind: str, alpha: float) -> list[Hypothesis]:
    """The best of all sequences that are allowed, by enumeration."""
    found = [(tokens, total(chain, rules, source, tokens)) for tokens in allowed(rules, source)]
    found = [(tokens, p) for tokens, p in found if ([*tokens, EOS])[0] not in rules.opening and p > -math.inf]
    scored = [Hypothesis(tokens, p, score(rules, source, kind, alpha, tokens, p)) for tokens, p in found]
    return sorted(scored, key=lambda hypothesis: -hypothesis.score)[:count]


@pytest.mark.parametrize(("penalty", "alpha"), PENALTIES)
@pytest.mark.parametrize(
    "rules",
    [
        {"at_limit": "forced"},
        {"at_limit": "cut"},
        {"repetition": 1.7},
        {"repetition": 0.6, "before": (EOS, A)},
        {"opening": (EOS, B)},
        {"repetition": 1.3, "opening": (A,), "at_limit": "cut", "shortest": 1, "no_repeat": 2},
    ],
    ids=str,
)
def test_a_full_beam_finds_the_best_of_all_that_the_rules_allow(
    rules: dict[str, Any], penalty: str, alpha: float
) -> None:
    chain, made = random_chain(3, seed=3), limits([3, 1, 2], **rules)
    found = search(chain, made, width=ALL, nbest=4, penalty=penalty, alpha=alpha, stop="exact")
    for source, hypotheses in enumerate(found):
        same(hypotheses, best(chain, made, source, 4, penalty, alpha))


def simple_beam(
    chain: Chain, rules: Limits, source: int, width: int, penalty: str, alpha: float, stop: str
) -> list[Hypothesis]:
    """Beam search as one would explain it, for one source, with lists."""
    beam: list[tuple[list[int], float]] = [([], 0.0)]
    closed: list[Hypothesis] = []
    longest = int(rules.longest[source])
    for length in range(longest + 1):
        candidates = []
        for tokens, p in beam:
            row = discouraged(rules, tokens, chain.rows(source, tokens)[-1])
            if length == longest and rules.at_limit == "forced":
                row[EOS] = 0.0
            onward = [EOS, A, B, C] if length < longest else [EOS]
            candidates += [([*tokens, token], p + row[token]) for token in onward]
        candidates = sorted(candidates, key=lambda candidate: -candidate[1])[: 2 * width]
        cuts = rules.at_limit == "cut" and length + 1 == longest
        for written, p in candidates[:width]:
            if written[-1] == EOS or cuts:
                tokens = written[:-1] if written[-1] == EOS else written
                closed.append(Hypothesis(tokens, p, score(rules, source, penalty, alpha, tokens, p)))
        closed = sorted(closed, key=lambda hypothesis: -hypothesis.score)[:width]
        beam = [candidate for candidate in candidates if candidate[0][-1] != EOS][:width]
        if cuts or not beam:
            break
        written, p = beam[0]
        hope = score(rules, source, penalty, alpha, [A] * longest if stop == "exact" else [*written[:-1]], p)
        if len(closed) == width and (stop == "early" or hope <= closed[-1].score):
            break
    return closed


@pytest.mark.parametrize(
    ("width", "stop", "at_limit"),
    [
        (width, stop, at_limit)
        for i, width in enumerate([1, 2, 3, 5])
        for j, stop in enumerate(STOPS)
        for k, at_limit in enumerate(ENDS)
        if FULL or (i + j + k) % 3 == 0
    ],
)
def test_a_narrow_beam_keeps_what_a_simple_one_keeps(width: int, stop: str, at_limit: str) -> None:
    chain = random_chain(12, seed=width, sharpness=1.5)
    for (penalty, alpha), repetition in product(PENALTIES, (1.0, 1.3)):
        rules = limits([7, 5, 2, 6] * 3, at_limit=at_limit, repetition=repetition)
        found = search(chain, rules, width=width, nbest=width, penalty=penalty, alpha=alpha, stop=stop)
        for source, hypotheses in enumerate(found):
            same(hypotheses, simple_beam(chain, rules, source, width, penalty, alpha, stop))


def test_an_early_stop_misses_what_is_better_and_still_open() -> None:
    """[] has 0.3 and [A] 0.28 when [A, B] with 0.42 is still to end."""
    chain = markov({BOS: {A: 0.7, EOS: 0.3}, A: {B: 0.6, EOS: 0.4}, B: {EOS: 1.0}})
    early, heuristic, exact = (search(chain, limits([9]), width=2, nbest=2, stop=stop)[0] for stop in STOPS)
    assert [x.tokens for x in early] == [[], [A]]
    assert [x.tokens for x in heuristic] == [x.tokens for x in exact] == [[A, B], []]
    assert chain.rows_seen == [1, 2, *[1, 2, 2] * 2]


@dataclass(frozen=True)
class Logits(Steps):
    """A table of logits as a `Stepper`."""

    logits: Step  # type: ignore[assignment]


def table(rows: Tensor) -> tuple[Logits, Any]:
    """A Markov chain of logits `(tokens, tokens)`, and where it begins."""
    chain = Chain(rows[None])
    return Logits(lambda tokens, state: _normal(chain.step(tokens, state)), chain.step), chain.start()


def _normal(given: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    return given[0].log_softmax(-1), given[1]


ROWS = torch.tensor([
    [0.0, -9.0, 3.0, 2.9, -1.0],
    [0.0] * 5,
    [0.0, -1.0, 3.0, 1.6, -1.0],  # after A
    [0.0, -0.9, 2.0, 1.8, -1.0],  # after B
    [0.0] * 5,
])  # fmt: skip


def test_greedy_search_discourages_by_logits() -> None:
    """After A, A has 3.0 / θ and B 1.6: at 1.5 A still leads, at 2 no more. After A and B both are divided."""
    for theta, expected in ((1.0, [A, A, A]), (1.5, [A, A, A]), (2.0, [A, B, A]), (9.0, [A, B, A])):
        model, state = table(ROWS)
        (found,) = beam_search(model, state, limits=limits([3], repetition=theta), width=1)
        assert found[0].tokens == expected, theta
    # After A and B all are below 0, and those two and, if it was read before, the end are multiplied.
    lower = ROWS.clone()
    lower[B] = torch.tensor([-8.0, -0.5, -0.1, -0.2, -8.0])
    for before, expected in (((), [A, B]), ((EOS,), [A, B, A])):
        model, state = table(lower)
        rules = limits([3], repetition=9.0, before=before)
        assert beam_search(model, state, limits=rules, width=1)[0][0].tokens == expected


def test_beams_of_one_that_share_a_width_discourage_by_log_probabilities() -> None:
    """Like a beam of that width, and unlike greedy search."""
    log_probs = ROWS.log_softmax(-1)
    rules, theta = limits([2], repetition=1.1, at_limit="cut", shortest=2), 1.1
    model, state = table(ROWS)
    (found,) = beam_search(model, state, limits=rules, width=2, nbest=2, groups=2, diversity=0.0)
    one = log_probs[BOS, A] + max(log_probs[A, A] * theta, log_probs[A, B])
    assert [h.log_prob for h in found] == [pytest.approx(one.item(), abs=1e-5)]


def test_samples_are_drawn_from_logits_that_are_discouraged() -> None:
    model, state = table(ROWS)
    count, theta = 20_000, 1.5
    rules = limits([2], repetition=theta, prefix=[[A]], at_limit="cut")
    found = sample(model, state, limits=rules, keys=line_keys(3, [0]), count=count, temperature=0.8)[0]
    second = torch.tensor([h.tokens[1] if len(h.tokens) > 1 else EOS for h in found]).bincount(minlength=5) / count
    odds = ROWS[A].clone()
    odds[[BOS, A]] /= theta
    odds[BOS] = -math.inf
    wanted = (odds / 0.8).softmax(-1)
    assert torch.allclose(second, wanted, atol=4 * 0.5 / math.sqrt(count))
    plain = ROWS[A].log_softmax(-1)
    first = ROWS[BOS].log_softmax(-1)[A]
    ended = next(h for h in found if len(h.tokens) == 1)
    assert ended.log_prob == pytest.approx(float(first + plain[EOS]), abs=1e-5)  # the model's own


def test_a_prefix_keeps_its_score_and_counts_as_written() -> None:
    chain = random_chain(1, seed=5)
    plain, theta = limits([3], prefix=[[A, A]]), 1.4
    rules = limits([3], prefix=[[A, A]], repetition=theta)
    found = search(chain, rules, width=8, nbest=4)[0]
    for h in found:
        expected = chain.log_prob(0, [A, A]) - chain.rows(0, [A, A])[-1][EOS]
        for i in range(2, len(h.tokens) + 1):
            row = discouraged(rules, h.tokens[:i], chain.rows(0, h.tokens[:i])[-1])
            expected += row[[*h.tokens, EOS][i]]
        assert h.log_prob == pytest.approx(expected, abs=1e-9)
        alone = h.log_prob - chain.log_prob(0, [A, A]) + chain.rows(0, [A, A])[-1][EOS]
        bare = limits([3], prefix=[[A, A]], repetition=theta, prefix_scored=False)
        others = search(chain, bare, width=8, nbest=4, penalty="average")[0]
        other = next(x for x in others if x.tokens == h.tokens)
        assert other.log_prob == pytest.approx(alone, abs=1e-9)
        assert other.score == pytest.approx(alone / (len(h.tokens) - 1), abs=1e-9)
    assert {tuple(h.tokens) for h in found} == {tuple(h.tokens) for h in search(chain, plain, width=8, nbest=4)[0]}


def test_what_may_not_come_first_may_come_later_and_first_is_after_a_prefix() -> None:
    table = {token: {A: 0.6, B: 0.3, EOS: 0.1} for token in (BOS, A, B)}
    for prefix, expected in (([], [B, A, A]), ([A], [A, B, A])):
        found = search(markov(table), limits([3], opening=(A,), prefix=[prefix]), width=1)[0][0]
        assert found.tokens == expected


def test_contrastive_search_has_a_penalty_of_its_own() -> None:
    with pytest.raises(ValueError, match="leave repetition_penalty at 1"):
        Search(contrastive=0.5, repetition_penalty=1.2)
