"""Prefixes, constraints, groups, ensembles, contrastive search and minimum Bayes risk, on probability tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor

from regard.errors import ConfigError
from regard.search.beam import _merge, beam_search
from regard.search.choice import Constrained
from regard.search.contrastive import contrastive_search
from regard.search.ensemble import EnsembleState, mean_step
from regard.search.limits import Hypothesis, Limits
from regard.search.rerank import minimum_bayes_risk
from regard.search.sample import line_keys, sample
from tests.chain import BOS, EOS, VOCABULARY, A, B, C, Chain, ChainState, Steps, allowed, limits, markov, random_chain

STOPS = ["early", "heuristic", "exact"]
ALL = 128  # wider than all there is to try within four tokens
Phrases = list[list[int]]


def search(chain: Chain, rules: Limits, **options: Any) -> list[list[Hypothesis]]:
    return beam_search(Steps(chain.step), chain.start(), limits=rules, **options)


def best(chain: Chain, source: int, sequences: list[list[int]], count: int) -> list[Hypothesis]:
    scored = [Hypothesis(tokens, p, p) for tokens in sequences for p in [chain.log_prob(source, tokens)]]
    return sorted(scored, key=lambda hypothesis: -hypothesis.score)[:count]


def same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [x.tokens for x in found] == [x.tokens for x in expected]
    assert [x.log_prob for x in found] == pytest.approx([x.log_prob for x in expected], abs=1e-9)
    assert [x.score for x in found] == pytest.approx([x.score for x in expected], abs=1e-9)


def alone(chain: Chain, source: int) -> Chain:
    return Chain(chain.log_probs[source : source + 1], chain.mix)


# Prefixes

PREFIXES = [[A, B], [], [C], [B, B, A, B], [A]]


@pytest.mark.parametrize(
    "rules",
    [{}, {"shortest": 3}, {"forbidden": (BOS, B)}, {"no_repeat": 1}, {"no_repeat": 2}, {"banned": ((A, A), (B, A, C))}],
    ids=str,
)
def test_a_full_beam_finds_the_best_that_start_with_the_prefix(rules: dict[str, Any]) -> None:
    """Sources leave at different times, so each has to find its own prefix again."""
    chain, made = random_chain(5, seed=1), limits([4, 2, 4, 4, 1], prefix=PREFIXES, **rules)
    for source, hypotheses in enumerate(search(chain, made, width=ALL, nbest=6)):
        sequences = allowed(made, source)
        if sequences:
            assert all(tokens[: len(PREFIXES[source])] == PREFIXES[source] for tokens in sequences)
            same(hypotheses, best(chain, source, sequences, 6))
        else:
            assert [x.score for x in hypotheses] == [-math.inf]
            assert hypotheses[0].tokens[: len(PREFIXES[source])] == PREFIXES[source]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_an_impossible_prefix_is_kept_all_the_same(width: int) -> None:
    chain = markov({BOS: {A: 1.0}, A: {EOS: 1.0}}, {BOS: {A: 1.0}, A: {B: 0.4, EOS: 0.6}, B: {EOS: 1.0}})
    rules = limits([4, 4], prefix=[[C, C], [A, B]])
    lost, other = search(chain, rules, width=width)
    assert lost == [Hypothesis([C, C], -math.inf, -math.inf)]
    same(other, [Hypothesis([A, B], math.log(0.4), math.log(0.4))])
    lost, other = sample(Steps(chain.step), chain.start(), limits=rules, keys=line_keys(1, [0, 1]), count=width)
    assert all(x.tokens[:2] == [C, C] and x.log_prob == -math.inf for x in lost)
    assert all(x.tokens == [A, B] for x in other)


def test_contrastive_search_keeps_an_impossible_prefix_too() -> None:
    chain = markov({BOS: {A: 1.0}, A: {EOS: 1.0}, C: {EOS: 1.0}})

    def advance(tokens: Tensor, state: ChainState) -> tuple[Tensor, ChainState]:
        return torch.eye(VOCABULARY)[tokens], chain.step(tokens, state)[1]

    def predict(hidden: Tensor) -> Tensor:
        return chain.log_probs[0, hidden.argmax(-1)]

    rules = limits([3], prefix=[[C, C]])
    (found,) = contrastive_search(advance, predict, chain.start(), limits=rules)
    assert found == [Hypothesis([C, C], -math.inf, -math.inf)]


def test_samples_go_on_from_the_prefix_as_the_model_says() -> None:
    chain, made, count = random_chain(3, seed=4), limits([3, 1, 2], prefix=[[B, A], [], [C]], forbidden=(BOS, B)), 4000
    found = sample(Steps(chain.step), chain.start(), limits=made, keys=line_keys(1, range(3)), count=count, top_k=4)
    for source, hypotheses in enumerate(found):
        seen = Counter(tuple(x.tokens) for x in hypotheses)
        expected = {}
        for tokens in allowed(made, source):
            p = 1.0
            start = len(made.prefix[source]) if made.prefix else 0
            steps = list(zip(chain.rows(source, tokens), [*tokens, EOS], strict=True))
            for i, (row, token) in list(enumerate(steps))[start:]:
                ways = [EOS, A, C] if i < int(made.longest[source]) else [EOS]
                p *= math.exp(row[token]) / sum(math.exp(row[way]) for way in ways)
            expected[tuple(tokens)] = count * p
        assert sum(expected.values()) == pytest.approx(count)
        assert set(seen) <= set(expected)
        freedom = len(expected) - 1
        assert sum((seen[x] - n) ** 2 / n for x, n in expected.items()) < freedom + 4 * math.sqrt(2 * freedom)
        for x in hypotheses:
            assert x.log_prob == pytest.approx(chain.log_prob(source, x.tokens), abs=1e-9)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"prefix": [[A] * 12, []]}, "a prefix of 12 tokens does not fit into max_length 10"),
        ({"prefix": [[], [A, B, C]]}, "a prefix of 3 tokens does not fit into max_length 2"),
        ({"prefix": [[A]]}, "1 prefixes for 2 sources; give one for each"),
        ({"prefix": [[A, EOS], []]}, "a prefix holds the closing mark (token 1), after which nothing can come"),
    ],
)
def test_a_prefix_that_cannot_be_is_said_so(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        limits([10, 2], **rules)
    assert str(error.value) == message


# Constraints


def times(tokens: Sequence[int], phrase: Sequence[int]) -> int:
    """How often the phrase occurs, without overlap."""
    found = i = 0
    while i <= len(tokens) - len(phrase):
        here = list(tokens[i : i + len(phrase)]) == list(phrase)
        found, i = found + here, i + (len(phrase) if here else 1)
    return found


def contains(tokens: list[int], phrases: Phrases) -> bool:
    return all(times(tokens, phrase) >= count for phrase, count in Counter(map(tuple, phrases)).items())


def owed(tokens: list[int], phrases: Phrases) -> int:
    """The tokens of all that is missing, less those there are already of one of them."""
    missing, begun = 0, [0]
    for phrase, count in Counter(map(tuple, phrases)).items():
        left = count - times(tokens, phrase)
        # Past the last occurrence, so that no token counts for two of them.
        past = next(i for i in range(len(tokens) + 1) if times(tokens[:i], phrase) == times(tokens, phrase))
        if left > 0:
            missing += left * len(phrase)
            begun += [n for n in range(len(phrase)) if tuple(tokens[past:][len(tokens) - past - n :]) == phrase[:n]]
    return missing - max(begun)


CONSTRAINTS: list[Phrases] = [
    [[B, C]],
    [[A], [C]],
    [[A, B], [A, C]],  # begin alike
    [[A, A, B]],  # in AAAB it begins over within itself
    [[B], [B], [B]],
    [[A, A], [A, A]],  # AAA is one of them, not two
    [],
    [[C, A, C, B]],
    [[A, B], [B, C]],  # ABC has both
    [[B], [A, B]],
]


@pytest.mark.parametrize("stop", ["heuristic", "exact"])
@pytest.mark.parametrize("seed", range(3))
def test_a_full_beam_finds_the_best_that_contain_the_phrases(seed: int, stop: str) -> None:
    """Out of all that never owe more than they have room for, which leaves out some where phrases overlap."""
    sources = len(CONSTRAINTS)
    chain, rules = random_chain(sources, seed), limits([4] * sources)
    found = search(chain, rules, width=ALL, nbest=5, constraints=CONSTRAINTS, stop=stop)
    for source, (hypotheses, phrases) in enumerate(zip(found, CONSTRAINTS, strict=True)):
        sequences = [tokens for tokens in allowed(rules, source) if contains(tokens, phrases)]
        able = [
            tokens for tokens in sequences if all(owed(tokens[:i], phrases) <= 4 - i for i in range(len(tokens) + 1))
        ]
        same(hypotheses, best(chain, source, able, 5))
        assert source >= sources - 2 or able == sequences


@pytest.mark.parametrize("rules", [{"shortest": 3}, {"no_repeat": 2}, {"forbidden": (BOS, C)}], ids=str)
def test_a_full_beam_keeps_rules_and_phrases(rules: dict[str, Any]) -> None:
    constraints: list[Phrases] = [[[A, B]], [], [[B]]]
    chain, made = random_chain(3, seed=3), limits([4, 3, 4], **rules)
    for source, hypotheses in enumerate(search(chain, made, width=ALL, nbest=3, constraints=constraints)):
        sequences = [tokens for tokens in allowed(made, source) if contains(tokens, constraints[source])]
        same(hypotheses, best(chain, source, sequences, 3))


def test_a_phrase_may_be_what_is_forbidden_elsewhere() -> None:
    chain, rules = random_chain(2, seed=5), limits([4, 4], forbidden=(BOS, B), no_repeat=1)
    found = search(chain, rules, width=4, constraints=[[[B, A], [B]], [[A, A, A]]])
    assert [x.tokens.count(B) for x in found[0]] == [1]  # BA has B
    assert times(found[0][0].tokens, [B, A]) == 1
    assert times(found[1][0].tokens, [A, A, A]) == 1


phrase_lists = st.lists(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=3), max_size=3)


@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 3),
    constraints=st.lists(phrase_lists, min_size=1, max_size=4),
    room=st.integers(0, 4),
    stop=st.sampled_from(STOPS),
    no_repeat=st.integers(0, 2),
)
def test_phrases_always_appear(
    seed: int, width: int, constraints: list[Phrases], room: int, stop: str, no_repeat: int
) -> None:
    """In a beam narrower than there are banks too, and where there is room for nothing else."""
    chain = random_chain(len(constraints), seed, sharpness=3.0)
    rules = limits([sum(map(len, phrases)) + room for phrases in constraints], no_repeat=no_repeat)
    found = search(
        chain, rules, width=width, nbest=width, constraints=constraints, stop=stop, penalty="average", alpha=1.0
    )
    for source, (hypotheses, phrases) in enumerate(zip(found, constraints, strict=True)):
        assert 1 <= len(hypotheses) <= width
        assert len({tuple(x.tokens) for x in hypotheses}) == len(hypotheses)
        for x in hypotheses:
            assert contains(x.tokens, phrases)
            assert len(x.tokens) <= int(rules.longest[source])
            assert x.log_prob == pytest.approx(chain.log_prob(source, x.tokens), abs=1e-9)
            assert x.score == pytest.approx(x.log_prob / (len(x.tokens) + 1), abs=1e-9)


def test_phrases_come_where_they_are_likeliest() -> None:
    """A beam of twelve over three banks: mostly the optimum, most of which have more to them than the phrase."""
    chain, rules = random_chain(40, seed=6), limits([6] * 40)
    found = search(chain, rules, width=12, constraints=[[[B, C]]] * 40)
    sequences = [tokens for tokens in allowed(rules, 0) if contains(tokens, [[B, C]])]
    optima = [best(chain, source, sequences, 1)[0].tokens for source in range(40)]
    assert sum(x.tokens != [B, C] for (x,) in found) > 20
    assert sum(x.tokens == tokens for (x,), tokens in zip(found, optima, strict=True)) >= 36


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_bank_keeps_its_slots_however_unlikely_the_phrase(width: int) -> None:
    """Ten words are likelier than C everywhere, so a beam without banks would put C off until it has to come."""
    probs = torch.full((1, 1, 13), 0.0599, dtype=torch.float64)
    probs[..., BOS], probs[..., EOS], probs[..., C] = 1e-9, 0.4, 1e-3
    chain = Chain(probs.log())
    (hypothesis, *_) = search(chain, limits([6]), width=width, constraints=[[[C]]])[0]
    same([hypothesis], [Hypothesis([C], math.log(0.4e-3), math.log(0.4e-3))])


@pytest.mark.parametrize("width", [1, 2])
def test_phrases_that_begin_alike_find_room_to_the_last_token(width: int) -> None:
    """After A, both phrases have begun, but only one of them can go on."""
    phrases = [[A, B], [A, C]]
    chain, rules = random_chain(60, seed=10, sharpness=2.0), limits([4, 5] * 30)
    for (hypothesis,) in search(chain, rules, width=width, constraints=[phrases] * 60):
        assert contains(hypothesis.tokens, phrases)
        assert hypothesis.score > -math.inf


def test_once_enough_have_closed_only_an_exact_search_waits_for_phrases() -> None:
    """What goes on without C is likelier than what has closed, but still has C to pay for."""
    chain = markov({BOS: {A: 0.9, C: 0.1}, A: {A: 0.9, C: 0.1}, C: {EOS: 1.0}})
    for stop, steps in (("heuristic", 3), ("exact", 20)):
        chain.rows_seen.clear()
        (found,) = search(chain, limits([20]), width=2, nbest=2, constraints=[[[C]]], stop=stop)
        assert [x.tokens for x in found] == [[C], [A, C]]
        assert len(chain.rows_seen) == steps


def test_sources_without_phrases_are_searched_as_ever() -> None:
    chain, rules = random_chain(6, seed=7, sharpness=2.0), limits([6, 3, 5, 6, 2, 6])
    plain = search(chain, rules, width=3, nbest=3)
    mixed = search(chain, rules, width=3, nbest=3, constraints=[[], [[A]], [], [], [], [[B, C]]])
    for source in (0, 2, 3, 4):
        same(mixed[source], plain[source])
    assert search(chain, rules, width=3, nbest=3, constraints=[[]] * 6) == plain


def test_a_prefix_meets_phrases_too() -> None:
    chain, rules = random_chain(3, seed=8), limits([4, 4, 3], prefix=[[A, B], [C, A], [B, C, A]])
    constraints: list[Phrases] = [[[A, B], [C]], [[A, B]], [[C, A], [B]]]
    for source, hypotheses in enumerate(search(chain, rules, width=ALL, nbest=3, constraints=constraints)):
        sequences = [tokens for tokens in allowed(rules, source) if contains(tokens, constraints[source])]
        same(hypotheses, best(chain, source, sequences, 3))


def test_tables_grow_with_the_tokens_of_phrases_not_with_their_longest() -> None:
    """A long phrase beside many short ones, which a request may ask for, should not take the product of both."""
    long, short = [list(range(10, 310))], [[i] for i in range(10, 310)]
    one, other = (Constrained(1, limits([700]), [some]) for some in ([*long, *short], [[A]]))
    assert one.after.shape == (1, 600, 304)
    one.join([other])
    assert one.after.shape == (2, 600, 304)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_with_constraints_a_batch_of_one_equals_a_batch_of_many(width: int) -> None:
    chain, longest = random_chain(5, seed=9, sharpness=2.0), [5, 3, 6, 4, 7]
    constraints: list[Phrases] = [[[A, B]], [], [[C], [C], [A]], [[B, B, B, A]], [[A, C], [C, B]]]
    together = search(chain, limits(longest), width=width, nbest=width, constraints=constraints)
    for source, hypotheses in enumerate(together):
        rules = limits(longest[source : source + 1])
        one = search(alone(chain, source), rules, width=width, nbest=width, constraints=[constraints[source]])
        same(one[0], hypotheses)


def shares(total: int, width: int, members: list[int]) -> list[int]:
    """Slots of the banks of a source with phrases of `total` tokens."""
    chooser = Constrained(width, limits([total]), [[[A] * total]])
    slots: list[int] = chooser._slots(torch.tensor([members]))[0].tolist()
    return slots


def test_banks_share_the_beam_and_lend_to_their_neighbours() -> None:
    assert shares(2, 6, [9, 9, 9]) == [2, 2, 2]
    assert shares(2, 7, [9, 9, 9]) == [2, 2, 3]
    assert shares(2, 6, [9, 0, 9]) == [2, 0, 4]  # of two neighbours the one that has met more
    assert shares(2, 6, [9, 0, 3]) == [3, 0, 3]
    assert shares(2, 6, [9, 9, 0]) == [2, 4, 0]
    assert shares(2, 6, [9, 3, 0]) == [3, 3, 0]
    assert shares(3, 2, [9, 9, 9, 9]) == [0, 1, 0, 1]  # fewer slots than banks
    assert shares(3, 1, [9, 9, 0, 0]) == [0, 1, 0, 0]
    assert shares(3, 8, [1, 0, 0, 1]) == [1, 0, 0, 1]


@given(members=st.lists(st.integers(0, 5), min_size=2, max_size=6), width=st.integers(1, 12))
def test_no_slot_is_left_empty_or_given_twice(members: list[int], width: int) -> None:
    slots = shares(len(members) - 1, width, members)
    assert sum(slots) == min(width, sum(members))
    assert all(min(width // len(members), n) <= slot <= n for slot, n in zip(slots, members, strict=True))


@pytest.mark.parametrize(
    ("longest", "options", "message"),
    [
        (3, {"constraints": [[[A, B], [C, C]]]}, "phrases of 4 tokens do not fit into max_length 3"),
        (9, {"constraints": [[[A, EOS]]]},
         "a constraint holds the closing mark (token 1), after which nothing can come"),
        (9, {"constraints": [[[A]], [[B]]]}, "constraints for 2 sources, but there are 1"),
        (9, {"constraints": [[[A]]], "groups": 2, "width": 4},
         "constraints cannot be combined with groups (2); set groups to 1"),
        (9, {"width": 5, "groups": 2}, "beam (5) is not divisible by groups (2); try 6"),
    ],
)  # fmt: skip
def test_options_that_clash_are_said_so(longest: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        search(random_chain(1, seed=1), limits([longest]), **options)
    assert str(error.value) == message


def test_a_prefix_can_leave_too_little_room_for_the_phrases() -> None:
    rules = limits([5], prefix=[[A, A, B]])
    assert search(random_chain(1, seed=1), rules, constraints=[[[B, C, A]]])[0][0].tokens == [A, A, B, C, A]
    with pytest.raises(ConfigError, match=r"^phrases of 3 tokens after a prefix of 3 do not fit into max_length 5$"):
        search(random_chain(1, seed=1), rules, constraints=[[[A, B], [C, C, C]]])
    with pytest.raises(ConfigError, match=r"^phrases of 2 tokens after a prefix of 2 do not fit into max_length 3$"):
        search(random_chain(1, seed=1), limits([3], prefix=[[A, B]]), constraints=[[[A, B], [A, B]]])


# Groups


def diverse(chain: Chain, rules: Limits, source: int, width: int, groups: int, diversity: float) -> list[Hypothesis]:
    """Diverse beam search as one would explain it, for one source, with lists; all that closed, best first."""
    longest, size = int(rules.longest[source]), width // groups
    beams: list[list[tuple[list[int], float]]] = [[([], 0.0)] for _ in range(groups)]
    closed: list[list[Hypothesis]] = [[] for _ in range(groups)]
    for length in range(longest + 1):
        taken: Counter[int] = Counter()
        for group, beam in enumerate(beams):
            candidates = []
            for tokens, p in beam:
                row = chain.rows(source, tokens)[-1]
                for token in [EOS, A, B, C] if length < longest else [EOS]:
                    candidates.append(([*tokens, token], p + row[token], p + row[token] - diversity * taken[token]))
            candidates = sorted(candidates, key=lambda candidate: -candidate[2])[: 2 * size]
            closed[group] += [Hypothesis(x[:-1], p, p) for x, p, _ in candidates[:size] if x[-1] == EOS]
            closed[group] = sorted(closed[group], key=lambda x: -x.score)[:size]
            beams[group] = [(x, p) for x, p, _ in candidates if x[-1] != EOS][:size]
            taken.update(x[-1] for x, _ in beams[group])
            hope = max((p for _, p in beams[group]), default=-math.inf)
            if len(closed[group]) == size and hope <= closed[group][-1].score:
                beams[group] = []
    return sorted((x for group in closed for x in group), key=lambda x: -x.score)


@pytest.mark.parametrize("diversity", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(("width", "groups"), [(2, 2), (4, 2), (6, 2), (6, 3), (3, 3)])
def test_groups_keep_what_simple_ones_keep(width: int, groups: int, diversity: float) -> None:
    chain, rules = random_chain(12, seed=width, sharpness=1.5), limits([7, 5, 2, 0] * 3)
    found = search(chain, rules, width=width, groups=groups, diversity=diversity, nbest=width)
    for source, hypotheses in enumerate(found):
        expected = {tuple(x.tokens): x for x in diverse(chain, rules, source, width, groups, diversity)}
        same(hypotheses, list(expected.values()))


def test_the_first_group_is_a_plain_beam_and_one_group_is_all_of_it() -> None:
    chain, rules = random_chain(10, seed=3, sharpness=1.5), limits([6, 4] * 5)
    plain = search(chain, rules, width=2, nbest=2)
    assert search(chain, rules, width=2, nbest=2, groups=1, diversity=9.0) == plain
    grouped = search(chain, rules, width=6, nbest=6, groups=3, diversity=2.0)
    for first, hypotheses in zip(plain, grouped, strict=True):
        for x in first:
            assert x in hypotheses


def test_groups_differ_under_strong_diversity() -> None:
    chain, rules = random_chain(10, seed=4, sharpness=2.0), limits([5] * 10, shortest=1)
    apart = search(chain, rules, width=3, nbest=3, groups=3, diversity=100.0)
    assert all(len({x.tokens[0] for x in hypotheses}) == 3 for hypotheses in apart)
    together = search(chain, rules, width=3, nbest=3, groups=3, diversity=0.0)
    assert [len(hypotheses) for hypotheses in together] == [1] * 10  # each output once


def test_the_best_of_each_group_is_among_the_nbest() -> None:
    first = [Hypothesis([A], -1.0, -1.0), Hypothesis([B], -2.0, -2.0), Hypothesis([C], -3.0, -3.0)]
    second = [Hypothesis([B], -2.0, -2.0), Hypothesis([A, A], -9.0, -9.0)]
    third = [Hypothesis([C, C], -8.0, -8.0)]
    groups = [first, second, third]
    found = {nbest: [x.tokens for x in _merge(groups, nbest)] for nbest in (1, 2, 3, 4, 9)}
    assert found == {
        1: [[A]], 2: [[A], [B]], 3: [[A], [B], [C, C]], 4: [[A], [B], [C], [C, C]],
        9: [[A], [B], [C], [C, C], [A, A]],
    }  # fmt: skip
    dead = [Hypothesis([A, B], -math.inf, -math.inf)]
    assert _merge([dead, third], 2) == third
    assert _merge([dead, dead], 2) == dead


def test_a_source_leaves_when_all_its_groups_are_done() -> None:
    """The second group has to begin with the unlikely word, which leads on for two more."""
    long = {BOS: {A: 0.9, B: 0.1}, A: {EOS: 1.0}, B: {C: 1.0}, C: {EOS: 1.0}}
    chain = markov(long, {BOS: {A: 0.9, B: 0.1}, A: {EOS: 1.0}, B: {EOS: 1.0}}, long)
    found = search(chain, limits([9] * 3), width=2, nbest=2, groups=2, diversity=9.0)
    assert [[x.tokens for x in hypotheses] for hypotheses in found] == [[[A], [B, C]], [[A], [B]], [[A], [B, C]]]
    assert chain.rows_seen == [6, 6, 4]


def test_groups_without_a_way_on_give_one_open_hypothesis() -> None:
    """As it was when its group could not go on, though the other group still could."""
    table = {BOS: {A: 0.6, B: 0.4}, A: {}, B: {B: 1.0}}
    (hypotheses,) = search(markov(table), limits([4]), width=2, nbest=2, groups=2)
    assert hypotheses == [Hypothesis([A], -math.inf, -math.inf)]


@pytest.mark.parametrize("stop", STOPS)
def test_with_groups_a_batch_of_one_equals_a_batch_of_many(stop: str) -> None:
    chain, longest, prefix = random_chain(5, seed=9, sharpness=2.0), [5, 3, 6, 0, 7], [[], [A, A], [B], [], [C]]
    options: dict[str, Any] = {"width": 4, "nbest": 4, "groups": 2, "stop": stop, "penalty": "average"}
    together = search(chain, limits(longest, prefix=prefix), **options)
    for source, hypotheses in enumerate(together):
        assert all(x.tokens[: len(prefix[source])] == prefix[source] for x in hypotheses)
        rules = limits(longest[source : source + 1], prefix=prefix[source : source + 1])
        same(search(alone(chain, source), rules, **options)[0], hypotheses)


# Ensembles


@dataclass(frozen=True)
class Spelled:
    """A state of another make: what each row has written."""

    source: Tensor  # (rows,)
    written: Tensor  # (rows, length)

    def select(self, rows: Tensor, sources: Tensor | None = None) -> Spelled:
        return Spelled(self.source[rows], self.written[rows])


def spelled(chain: Chain) -> tuple[Any, Spelled]:
    """The same chain behind another state."""

    def step(tokens: Tensor, state: Spelled) -> tuple[Tensor, Spelled]:
        written = torch.cat((state.written, tokens[:, None]), 1)
        rows = [chain.rows(int(i), row[1:].tolist())[-1] for i, row in zip(state.source, written, strict=True)]
        return torch.tensor(rows, dtype=torch.float64), Spelled(state.source, written)

    sources = torch.arange(len(chain.log_probs))
    return step, Spelled(sources, torch.zeros(len(sources), 0, dtype=torch.long))


def test_an_ensemble_of_one_is_the_model() -> None:
    chain, rules = random_chain(6, seed=1), limits([5, 3] * 3)
    step, state = partial(mean_step, [chain.step]), EnsembleState((chain.start(),))
    assert beam_search(Steps(step), state, limits=rules, width=3, nbest=3) == search(chain, rules, width=3, nbest=3)


def test_an_ensemble_finds_the_optimum_of_the_mean() -> None:
    one, other, rules = random_chain(3, seed=1), random_chain(3, seed=2), limits([3, 1, 3])
    other_step, other_state = spelled(other)
    step, state = partial(mean_step, [one.step, other_step]), EnsembleState((one.start(), other_state))
    for source, hypotheses in enumerate(beam_search(Steps(step), state, limits=rules, width=ALL, nbest=5)):
        expected = []
        for tokens in allowed(rules, source):
            rows = zip(one.rows(source, tokens), other.rows(source, tokens), [*tokens, EOS], strict=True)
            p = math.prod((math.exp(a[token]) + math.exp(b[token])) / 2 for a, b, token in rows)
            expected.append(Hypothesis(tokens, math.log(p), math.log(p)))
        same(hypotheses, sorted(expected, key=lambda x: -x.score)[:5])


def test_an_ensemble_is_searched_alike_in_any_batch() -> None:
    one, other, longest = random_chain(4, seed=3, sharpness=2.0), random_chain(4, seed=4), [5, 2, 6, 4]

    def run(first: Chain, second: Chain, longest: list[int]) -> list[list[Hypothesis]]:
        step, state = partial(mean_step, [first.step, second.step]), EnsembleState((first.start(), second.start()))
        return beam_search(Steps(step), state, limits=limits(longest), width=3, nbest=3)

    together = run(one, other, longest)
    for source, hypotheses in enumerate(together):
        same(run(alone(one, source), alone(other, source), longest[source : source + 1])[0], hypotheses)


def test_an_impossible_token_stays_impossible_and_one_model_suffices() -> None:
    one = markov({BOS: {A: 1.0}, A: {EOS: 1.0}})
    other = markov({BOS: {B: 1.0}, A: {EOS: 0.5, C: 0.5}, B: {EOS: 1.0}})
    step, state = partial(mean_step, [one.step, other.step]), EnsembleState((one.start(), other.start()))
    log_probs, after = step(torch.tensor([BOS]), state)
    assert log_probs.exp()[0].tolist() == pytest.approx([0, 0, 0.5, 0.5, 0])
    assert isinstance(after, EnsembleState)


# Contrastive search


@dataclass
class Meaning:
    """A chain whose memory is a hidden vector, from which a linear layer predicts."""

    hidden: Tensor  # (sources, memories, d_model)
    weight: Tensor  # (d_model, vocabulary)

    @property
    def chain(self) -> Chain:
        return Chain((self.hidden @ self.weight).log_softmax(-1), mix=5)

    def advance(self, tokens: Tensor, state: ChainState) -> tuple[Tensor, ChainState]:
        _, state = self.chain.step(tokens, state)
        return self.hidden[state.source, state.memory], state

    def predict(self, hidden: Tensor) -> Tensor:
        return (hidden @ self.weight).log_softmax(-1)

    def search(self, rules: Limits, **options: Any) -> list[list[Hypothesis]]:
        return contrastive_search(self.advance, self.predict, self.chain.start(), limits=rules, **options)

    def vectors(self, source: int, tokens: Sequence[int]) -> list[list[float]]:
        """The hidden vector after `bos` and after each token, as plain numbers."""
        memory, found = 0, []
        for token in [BOS, *tokens]:
            memory = (5 * memory + token) % self.hidden.shape[1]
            found.append(self.hidden[source, memory].tolist())
        return found


def meaning(sources: int, seed: int) -> Meaning:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(sources, 97, 4, generator=generator, dtype=torch.float64)
    return Meaning(hidden, torch.randn(4, VOCABULARY, generator=generator, dtype=torch.float64))


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def simple_contrastive(
    model: Meaning, source: int, longest: int, prefix: list[int], top_k: int, penalty: float
) -> list[int]:
    tokens = list(prefix)
    while True:
        row = model.chain.rows(source, tokens)[-1]
        ways = sorted([EOS, A, B, C] if len(tokens) < longest else [EOS], key=lambda token: -row[token])[:top_k]
        scores = {}
        for way in ways:
            *said, new = model.vectors(source, [*tokens, way])
            scores[way] = (1 - penalty) * math.exp(row[way]) - penalty * max(cosine(new, old) for old in said)
        chosen = max(scores, key=lambda way: scores[way])
        if chosen == EOS:
            return tokens
        tokens.append(chosen)


@pytest.mark.parametrize("penalty", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("top_k", [1, 2, 3, 9])
def test_contrastive_search_takes_what_a_simple_one_takes(top_k: int, penalty: float) -> None:
    """And the log-probability stays the model's; sources leave at different times."""
    longest, prefix = [9, 4, 7, 0, 12, 8], [[], [B], [A, A, C], [], [], [C, B]]
    model = meaning(6, seed=1)
    found = model.search(limits(longest, prefix=prefix), top_k=top_k, penalty=penalty)
    for source, (hypothesis,) in enumerate(found):
        expected = simple_contrastive(model, source, longest[source], prefix[source], top_k, penalty)
        p = model.chain.log_prob(source, expected)
        same([hypothesis], [Hypothesis(expected, p, p)])


def test_contrastive_search_without_penalty_is_greedy() -> None:
    model, rules = meaning(8, seed=2), limits([7] * 8, no_repeat=2, shortest=1)
    greedy = search(model.chain, rules, width=1)
    for found, expected in zip(model.search(rules, penalty=0.0), greedy, strict=True):
        same(found, expected)


def test_contrastive_search_shuns_repetition() -> None:
    """A is always the likeliest, but the second A means what the first did."""
    hidden = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    weight = torch.tensor(
        [[-9.0, -9.0, -9.0], [-9.0, -9.0, -9.0], [2.0, 2.0, 2.0], [1.5, 1.5, 1.5], [-9.0, -9.0, -9.0]]
    )
    model = Meaning(hidden.double().unsqueeze(0), weight.double().mT)
    chain = Chain((model.hidden @ model.weight).log_softmax(-1))

    def advance(tokens: Tensor, state: ChainState) -> tuple[Tensor, ChainState]:
        _, state = chain.step(tokens, state)
        return model.hidden[state.source, state.memory], state

    def run(penalty: float) -> list[int]:
        found = contrastive_search(advance, model.predict, chain.start(), limits=limits([2]), top_k=2, penalty=penalty)
        return found[0][0].tokens

    assert run(0.0) == [A, A]
    assert run(0.6) == [A, B]


def test_contrastive_search_keeps_the_limits_and_closes_where_there_is_no_way_on() -> None:
    model = meaning(3, seed=3)
    found = model.search(limits([9, 9, 2], shortest=5, no_repeat=1), top_k=2)
    assert [sorted(x.tokens) for (x,) in found[:2]] == [[A, B, C]] * 2
    assert [len(x.tokens) for (x,) in found] == [3, 3, 2]
    for source, (x,) in enumerate(found):
        assert x.log_prob == pytest.approx(model.chain.log_prob(source, x.tokens), abs=1e-9)
    assert model.search(limits([5, 5, 5]), top_k=3) == model.search(limits([5, 5, 5]), top_k=3)
    assert meaning(0, seed=1).search(limits([])) == []


def test_contrastive_search_reads_no_more_than_fits() -> None:
    """A model of learned positions has none for a closing mark after the longest output, and what is as long as can be
    leaves."""
    model, lengths = meaning(3, seed=5), []

    def advance(tokens: Tensor, state: ChainState) -> tuple[Tensor, ChainState]:
        lengths.append(len(tokens))
        return model.advance(tokens, state)

    rules = limits([2, 4, 0], shortest=4, forbidden=(BOS,))
    found = contrastive_search(advance, model.predict, model.chain.start(), limits=rules, top_k=2)
    assert [len(x.tokens) for (x,) in found] == [2, 4, 0]
    assert lengths == [3, 4, 4, 2, 2]  # bos, and four tokens


def test_contrastive_search_is_alike_in_any_batch() -> None:
    model, longest, prefix = meaning(5, seed=4), [9, 1, 6, 0, 12], [[C, C], [], [], [], [A]]
    together = model.search(limits(longest, prefix=prefix))
    assert len({len(x.tokens) for (x,) in together}) > 2
    for source, hypotheses in enumerate(together):
        one = Meaning(model.hidden[source : source + 1], model.weight)
        same(one.search(limits(longest[source : source + 1], prefix=prefix[source : source + 1]))[0], hypotheses)


# Minimum Bayes risk

TEXTS = [
    "the cat sat on the mat .",
    "the cat sat on a mat .",
    "a dog ran",
    "the cat sat on the mat .",
    "",
    "mat",
    "ab  c",
]
METRICS = {
    "chrf": lambda output, reference: CHRF().sentence_score(output, [reference]).score,
    "bleu": lambda output, reference: BLEU(effective_order=True).sentence_score(output, [reference]).score,
    "exact": lambda output, reference: 100.0 * (output == reference),
}


@pytest.mark.parametrize("utility", METRICS)
@given(texts=st.lists(st.one_of(st.sampled_from(TEXTS), st.text("ab .,é", max_size=12)), min_size=2, max_size=7))
def test_expected_utilities_are_those_of_all_pairs(utility: str, texts: list[str]) -> None:
    """With sacrebleu's own sentence scores, pair by pair."""
    expected = [
        sum(METRICS[utility](text, other) for j, other in enumerate(texts) if j != i) / (len(texts) - 1)
        for i, text in enumerate(texts)
    ]
    assert minimum_bayes_risk(texts, utility) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
@given(output=st.text("aab  c.é", max_size=20), reference=st.text("aab  c.é", max_size=20))
def test_sentence_scores_are_sacrebleus(utility: str, output: str, reference: str) -> None:
    """Of two samples, each is scored against the other."""
    expected = METRICS[utility](output, reference), METRICS[utility](reference, output)
    assert minimum_bayes_risk([output, reference], utility) == pytest.approx(expected, abs=1e-6)


def test_the_least_risk_is_what_the_samples_agree_on() -> None:
    samples = ["a red house", "a red house", "the red house", "a red horse", "green cheese"]
    risks = minimum_bayes_risk(samples)
    assert risks[0] == risks[1] == max(risks)
    assert risks[4] == min(risks)
    assert minimum_bayes_risk(samples, "exact") == [25.0, 25.0, 0.0, 0.0, 0.0]
    assert minimum_bayes_risk(["alone"]) == [100.0]
    assert minimum_bayes_risk([]) == []


def test_an_unknown_utility_is_said_so() -> None:
    with pytest.raises(ConfigError, match=r"^unknown utility 'blue'; use one of chrf, bleu, exact$"):
        minimum_bayes_risk(["a"], "blue")
