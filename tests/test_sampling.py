"""Sampling on probability tables: what is drawn, how often, and under which limits."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from regard.search.beam import beam_search
from regard.search.limits import Hypothesis, Limits
from regard.search.sample import choose, filter_epsilon, filter_top, filter_typical, line_keys, sample, uniforms
from tests.chain import BOS, EOS, A, B, C, Chain, Steps, allowed, limits, markov, random_chain


def draw(chain: Chain, rules: Limits, seed: int = 1, **options: Any) -> list[list[Hypothesis]]:
    keys = line_keys(seed, range(len(rules.longest)))
    return sample(Steps(chain.step), chain.start(), limits=rules, keys=keys, **options)


def probability(chain: Chain, rules: Limits, source: int, tokens: list[int], temperature: float = 1.0) -> float:
    """Of drawing these tokens: at each step the model's probabilities, over what is allowed there."""
    p = 1.0
    for i, (row, token) in enumerate(zip(chain.rows(source, tokens), [*tokens, EOS], strict=True)):
        ways = [EOS] if i >= rules.shortest else []
        ways += [t for t in (A, B, C) if t not in rules.forbidden] if i < int(rules.longest[source]) else []
        p *= math.exp(row[token] / temperature) / sum(math.exp(row[way] / temperature) for way in ways)
    return p


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
@pytest.mark.parametrize("rules", [{}, {"shortest": 1, "forbidden": (BOS, B)}], ids=["free", "limited"])
def test_sequences_come_as_often_as_the_model_says(rules: dict[str, Any], temperature: float) -> None:
    chain, made, count = random_chain(2, seed=4), limits([2, 1], **rules), 4000
    for source, hypotheses in enumerate(draw(chain, made, count=count, temperature=temperature)):
        seen = Counter(tuple(x.tokens) for x in hypotheses)
        expected = {tuple(x): count * probability(chain, made, source, x, temperature) for x in allowed(made, source)}
        assert sum(expected.values()) == pytest.approx(count)
        assert set(seen) <= set(expected)
        chi_square = sum((seen[x] - n) ** 2 / n for x, n in expected.items())
        freedom = len(expected) - 1
        assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_samples_carry_the_models_own_log_probability_best_first() -> None:
    """Whatever the temperature and the limits did to the draw."""
    chain = random_chain(3, seed=5)
    rules = limits([4, 0, 2], shortest=1, no_repeat=2)
    for source, hypotheses in enumerate(draw(chain, rules, count=20, temperature=1.7, top_k=3, top_p=0.9)):
        assert len(hypotheses) == 20
        for x in hypotheses:
            assert x.log_prob == pytest.approx(chain.log_prob(source, x.tokens), abs=1e-9)
            assert x.score == x.log_prob
        assert [x.score for x in hypotheses] == sorted((x.score for x in hypotheses), reverse=True)


@pytest.mark.parametrize(
    "rules",
    [
        {"shortest": 2},
        {"no_repeat": 1},
        {"no_repeat": 2, "shortest": 2},
        {"forbidden": (BOS, A), "shortest": 1},
        {"banned": ((A, A), (B, C, A))},
    ],
    ids=str,
)
def test_samples_keep_the_limits_and_reach_all_they_allow(rules: dict[str, Any]) -> None:
    chain, made = random_chain(2, seed=6, sharpness=0.3), limits([3, 2], **rules)
    for source, hypotheses in enumerate(draw(chain, made, count=2000)):
        assert {tuple(x.tokens) for x in hypotheses} == {tuple(x) for x in allowed(made, source)}


def test_limits_that_leave_no_way_on_close() -> None:
    chain = random_chain(3, seed=7)
    found = draw(chain, limits([2, 0, 1], shortest=5), count=3)
    assert [[len(x.tokens) for x in hypotheses] for hypotheses in found] == [[2] * 3, [0] * 3, [1] * 3]
    found = draw(chain, limits([9, 9, 9], shortest=5, no_repeat=1), count=3)
    assert all(sorted(x.tokens) == [A, B, C] for hypotheses in found for x in hypotheses)


def test_sources_whose_samples_have_ended_leave_the_batch() -> None:
    three = {BOS: {A: 1.0}, A: {B: 1.0}, B: {C: 1.0}, C: {EOS: 1.0}}
    chain = markov(three, {BOS: {EOS: 1.0}}, {BOS: {C: 1.0}, C: {EOS: 1.0}}, three)
    for count in (1, 3):
        chain.rows_seen.clear()
        found = draw(chain, limits([9] * 4), count=count)
        assert [[x.tokens for x in hypotheses] for hypotheses in found] == [
            [tokens] * count for tokens in ([A, B, C], [], [C], [A, B, C])
        ]
        assert chain.rows_seen == [4, 3 * count, 2 * count, 2 * count]


def test_a_sample_that_has_ended_waits_for_the_others_unchanged() -> None:
    """Short and long samples of one source side by side."""
    chain = markov({BOS: {EOS: 0.5, A: 0.5}, A: {A: 0.8, EOS: 0.2}})
    (hypotheses,) = draw(chain, limits([8]), count=50)
    assert len({len(x.tokens) for x in hypotheses}) > 4
    assert all(set(x.tokens) <= {A} for x in hypotheses)
    for x in hypotheses:
        assert x.log_prob == pytest.approx(chain.log_prob(0, x.tokens), abs=1e-9)


def test_a_seed_gives_the_same_samples_again() -> None:
    chain, rules = random_chain(3, seed=8), limits([5] * 3)
    first, again, other = (draw(chain, rules, seed=seed, count=5) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_as_the_temperature_falls_sampling_becomes_greedy() -> None:
    chain, rules = random_chain(8, seed=9), limits([5] * 8)
    greedy = beam_search(Steps(chain.step), chain.start(), limits=rules, width=1)
    cold = draw(chain, rules, count=4, temperature=1e-4)
    assert [{tuple(x.tokens) for x in found} for found in cold] == [{tuple(x[0].tokens)} for x in greedy]
    top = draw(chain, rules, count=4, top_k=1)
    assert [{tuple(x.tokens) for x in found} for found in top] == [{tuple(x[0].tokens)} for x in greedy]


PROBS = [0.05, 0.4, 0.1, 0.3, 0.15]  # from the likeliest: 1, 3, 4, 2, 0


def kept(top_k: int, top_p: float, probs: list[float] = PROBS) -> set[int]:
    found = filter_top(torch.tensor(probs, dtype=torch.float64).log().view(1, 1, -1), top_k, top_p)[0, 0]
    for token, value in enumerate(found.tolist()):  # what is kept is left as it was
        assert value == -math.inf or value == pytest.approx(math.log(probs[token]))
    return set(found.isfinite().nonzero().flatten().tolist())


def test_top_k_keeps_the_likeliest_and_top_p_the_fewest_that_hold_the_share() -> None:
    assert [kept(k, 1.0) for k in (1, 2, 3, 4)] == [{1}, {1, 3}, {1, 3, 4}, {1, 3, 4, 2}]
    assert [kept(k, 1.0) for k in (0, 5, 9)] == [{0, 1, 2, 3, 4}] * 3
    assert [kept(0, p) for p in (1e-9, 0.39, 0.41, 0.69, 0.71, 0.86, 0.96)] == [
        {1}, {1}, {1, 3}, {1, 3}, {1, 3, 4}, {1, 3, 4, 2}, {0, 1, 2, 3, 4},
    ]  # fmt: skip
    assert kept(2, 0.56) == {1}  # 0.4 is 0.57 of what top_k left
    assert kept(2, 0.58) == {1, 3}
    assert kept(4, 0.99) == {1, 3, 4, 2}


@given(
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=12, unique=True),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.01, 1.0),
)
def test_top_k_and_top_p_keep_exactly_their_set(weights: list[int], top_k: int, top_p: float) -> None:
    ranked = sorted(range(len(weights)), key=lambda token: -weights[token])[: top_k or len(weights)]
    expected, held, total = set(), 0.0, sum(weights[token] for token in ranked)
    for token in ranked:
        assume(abs(held / total - top_p) > 1e-9)
        if held / total < top_p:
            expected.add(token)
        held += weights[token]
    assert kept(top_k, top_p, [w / sum(weights) for w in weights]) == expected


@pytest.mark.parametrize("share", [1e-320, 1e-45, 1e-30])
def test_however_small_the_share_the_first_is_kept(share: float) -> None:
    """One that is 0 in the precision of the probabilities, too."""
    log_probs = torch.tensor([0.2, 0.5, 0.3]).log()
    for found in (filter_top(log_probs, 0, share), filter_typical(log_probs, share)):
        assert torch.isfinite(found).sum() == 1
    assert filter_top(log_probs, 0, share).argmax() == 1


def test_sampling_draws_from_the_top_alone() -> None:
    chain = markov({BOS: {A: 0.5, B: 0.3, C: 0.15, EOS: 0.05}, A: {EOS: 1.0}, B: {EOS: 1.0}, C: {EOS: 1.0}})
    for options, expected in (({"top_k": 2}, {A, B}), ({"top_p": 0.85}, {A, B, C}), ({"top_p": 0.4}, {A})):
        (hypotheses,) = draw(chain, limits([2]), count=300, **options)
        assert {x.tokens[0] for x in hypotheses} == expected
    # The temperature comes first: at 0.5 the shares are 0.685, 0.247, 0.062 and 0.007.
    (hypotheses,) = draw(chain, limits([2]), count=300, top_p=0.9, temperature=0.5)
    assert {x.tokens[0] for x in hypotheses} == {A, B}


# What a draw depends on


def some(chain: Chain, rules: Limits, sources: list[int], seed: int = 1, **options: Any) -> list[list[Hypothesis]]:
    """Samples of some sources, in this order, each under the number that it has among all."""
    part = Chain(chain.log_probs[sources], chain.mix)
    keys = line_keys(seed, sources)
    return sample(Steps(part.step), part.start(), limits=rules.keep(torch.tensor(sources)), keys=keys, **options)


def test_a_line_is_drawn_alike_alone_and_in_any_batch() -> None:
    chain, rules = random_chain(7, seed=3), limits([5, 9, 2, 7, 0, 4, 8])
    ways: list[dict[str, Any]] = [{}, {"top_p": 0.8, "temperature": 0.7}, {"epsilon": 0.1, "top_k": 3}]
    for options in ways:
        together = some(chain, rules, [*range(7)], count=4, **options)
        for order in ([6, 2, 0, 4, 1, 5, 3], [3, 1], [5], [0], [6, 5, 4]):
            assert some(chain, rules, order, count=4, **options) == [together[i] for i in order]


def test_more_samples_begin_with_the_fewer() -> None:
    chain, rules = random_chain(2, seed=3), limits([6, 6])
    for few, many in zip(some(chain, rules, [0, 1], count=3), some(chain, rules, [0, 1], count=9), strict=True):
        assert not Counter(tuple(x.tokens) for x in few) - Counter(tuple(x.tokens) for x in many)


def test_seeds_lines_samples_and_steps_draw_differently() -> None:
    """Also seeds beyond 64 bits, of lines far into a file."""
    seen = [
        float(uniforms(line_keys(seed, [line]), torch.tensor([which]), step))
        for seed in (0, 1, 2, 2**64 - 1, 2**70 + 5)
        for line in (0, 1, 2, 2**40)
        for which in (0, 1, 2)
        for step in (0, 1, 2)
    ]
    assert len(set(seen)) == len(seen) == 180
    chain = Chain(random_chain(1, seed=1).log_probs.expand(4, -1, -1), 5)  # one and the same source on four lines
    found = draw(chain, limits([9] * 4), count=20)
    assert len({tuple(tuple(x.tokens) for x in hypotheses) for hypotheses in found}) == 4


@pytest.fixture(scope="module")
def many() -> torch.Tensor:
    """Numbers by line, sample and step."""
    keys, which = line_keys(1, range(64))[:, None], torch.arange(64)
    return torch.stack([uniforms(keys, which, step) for step in range(64)], dim=-1)


def test_uniforms_are_uniform(many: torch.Tensor) -> None:
    count = many.numel()
    assert 0.0 <= float(many.min()) < float(many.max()) < 1.0
    assert abs(float(many.mean()) - 0.5) < 5 / math.sqrt(12 * count)
    assert abs(float(many.square().mean()) - 1 / 3) < 5 * math.sqrt(4 / 45 / count)
    for bins in ((many * 256).long(), (many * 2**30).long() % 256, (many * 2**53).long() % 256):  # the last bits too
        seen = torch.bincount(bins.flatten(), minlength=256).double()
        chi_square = float(((seen - count / 256) ** 2).sum() / (count / 256))
        assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)


def test_neighbouring_uniforms_do_not_go_together(many: torch.Tensor) -> None:
    """In line, sample, step, and across any two of them."""
    centred = (many - 0.5) * math.sqrt(12)
    for by in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, -1, 0), (0, 1, -1), (1, 0, -1)]:
        product = centred * centred.roll(by, (0, 1, 2))
        assert abs(float(product.mean())) < 5 / math.sqrt(product.numel())


def test_the_generator_is_splitmix() -> None:
    """Held against Python's own whole numbers, and the first outputs of the reference implementation for seed 0."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    golden = 0x9E3779B97F4A7C15
    assert [mix(golden * i % 2**64) for i in (1, 2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    for seed, line, which, step in ((1, 0, 0, 0), (7, 123456, 63, 300), (2**63 + 1, 5, 2, 1)):
        key = mix((mix(seed) + line * golden) % 2**64)
        bits = mix((mix((key + (which + 1) * golden) % 2**64) + (step + 1) * golden) % 2**64)
        assert float(uniforms(line_keys(seed, [line]), torch.tensor([which]), step)) == (bits >> 11) / 2**53


def test_tokens_are_drawn_as_often_as_they_are_probable() -> None:
    probs = torch.tensor([0.0, 0.5, 0.25, 0.0, 0.2, 0.05 - 1e-4, 1e-4, 0.0], dtype=torch.float64)
    drawn = choose(probs.expand(200_000, -1), uniforms(line_keys(1, range(200_000)), torch.tensor(0), 0))
    seen = torch.bincount(drawn, minlength=8)
    spread = (probs * (1 - probs) * 200_000).sqrt()
    assert ((seen - 200_000 * probs).abs() <= 5 * spread).all()


def test_the_ends_of_what_is_probable_are_reached_and_nothing_beyond() -> None:
    probs = torch.tensor([0.0, 0.3, 0.0, 0.7, 1e-12, 0.0, 0.0], dtype=torch.float64)
    ends = torch.tensor([0.0, 0.3 - 1e-9, 0.3 + 1e-9, 1 - 1e-9, 1 - 2.0**-53], dtype=torch.float64)
    assert choose(probs.expand(5, -1), ends).tolist() == [1, 1, 3, 3, 4]
    assert choose(torch.eye(3, dtype=torch.float64), torch.full((3,), 1 - 2.0**-53, dtype=torch.float64)).tolist() == [
        0, 1, 2,
    ]  # fmt: skip


# Epsilon sampling


@given(
    weights=st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True).filter(any),
    epsilon=st.floats(0.0, 0.99),
)
def test_epsilon_keeps_what_is_probable_enough_and_the_likeliest(weights: list[int], epsilon: float) -> None:
    """Hewitt et al. 2022: `{x : p(x) >= epsilon}`, or the likeliest alone where that is empty."""
    probs = [weight / sum(weights) for weight in weights]
    assume(all(abs(p - epsilon) > 1e-9 for p in probs))
    found = filter_epsilon(torch.tensor(probs, dtype=torch.float64).log(), epsilon)
    expected = {i for i, p in enumerate(probs) if p >= epsilon and p > 0} or {probs.index(max(probs))}
    assert set(found.isfinite().nonzero().flatten().tolist()) == expected
    for token in expected:  # what is kept is left as it was
        assert float(found[token]) == pytest.approx(math.log(probs[token]))


@given(
    weights=st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True).filter(any),
    share=st.floats(0.01, 1.0),
)
def test_typical_p_keeps_what_is_nearest_to_the_entropy(weights: list[int], share: float) -> None:
    """Meister et al. 2023, equation 11."""
    probs = [weight / sum(weights) for weight in weights]
    entropy = -sum(p * math.log(p) for p in probs if p)
    far = {i: abs(-math.log(p) - entropy) for i, p in enumerate(probs) if p}
    assume(all(abs(far[i] - far[j]) > 1e-9 for i in far for j in far if i != j))
    expected, held = set(), 0.0
    for token in sorted(far, key=lambda i: far[i]):
        assume(abs(held - share) > 1e-9)
        if held < share:
            expected.add(token)
        held += probs[token]
    found = filter_typical(torch.tensor(probs, dtype=torch.float64).log(), share)
    assert set(found.isfinite().nonzero().flatten().tolist()) == expected
    for token in expected:  # what is kept is left as it was
        assert float(found[token]) == pytest.approx(math.log(probs[token]))


def test_typical_p_may_leave_out_the_likeliest_and_comes_after_top_p() -> None:
    chain = markov({BOS: {A: 0.6, B: 0.2, C: 0.15, EOS: 0.05}, A: {EOS: 1.0}, B: {EOS: 1.0}, C: {EOS: 1.0}})
    # -log p is 0.511, 1.609, 1.897 and 2.996, and H is 1.063. Of A and B alone it is 0.288 and 1.386, and H is 0.562.
    ways: list[tuple[dict[str, Any], set[int]]] = [
        ({"typical_p": 0.19}, {B}),
        ({"typical_p": 0.7}, {A, B}),
        ({"typical_p": 0.7, "top_p": 0.7}, {A}),
    ]
    for options, expected in ways:
        (hypotheses,) = draw(chain, limits([2]), count=300, **options)
        assert {x.tokens[0] if x.tokens else EOS for x in hypotheses} == expected, options


def test_limits_that_leave_no_way_on_close_under_every_filter() -> None:
    chain = random_chain(1, seed=7)
    rules = limits([2], shortest=5, forbidden=(BOS, A, B, C))
    (found,) = draw(chain, rules, count=3, typical_p=0.5, top_p=0.9, top_k=2)
    assert [x.tokens for x in found] == [[]] * 3


def test_epsilon_comes_last() -> None:
    first = {A: 0.5, B: 0.3, C: 0.15, EOS: 0.05}
    chain = markov({BOS: first, A: {EOS: 1.0}, B: {EOS: 1.0}, C: {EOS: 1.0}})
    ways: list[tuple[dict[str, Any], set[int]]] = [
        ({"epsilon": 0.1}, {A, B, C}),
        ({"epsilon": 0.2}, {A, B}),
        ({"epsilon": 0.9}, {A}),
        ({"epsilon": 0.2, "temperature": 0.5}, {A, B}),  # 0.685, 0.247, 0.062, 0.007
        ({"epsilon": 0.1, "temperature": 0.5}, {A, B}),
        ({"epsilon": 0.1, "temperature": 2.0}, {A, B, C, EOS}),  # 0.378, 0.293, 0.207, 0.120
        ({"epsilon": 0.2, "top_p": 0.61}, {A, B}),
        ({"epsilon": 0.36, "top_p": 0.61}, {A, B}),  # of what is left B holds 0.375; of all 0.3
    ]
    for options, expected in ways:
        (hypotheses,) = draw(chain, limits([2]), count=300, **options)
        assert {x.tokens[0] if x.tokens else EOS for x in hypotheses} == expected, options
