"""What training makes small: score functions of hard attention, mixed prefixes, the expected risk."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.data.batch import IGNORED, Batch, make_batch
from regard.data.marks import BOS, EOS, MASK, PAD, SEP, UNK
from regard.models.model import EncoderDecoder, Head
from regard.nn.attention import attention_weights, capture
from regard.nn.hard import HardAttention, choices
from regard.ragged import Ragged
from regard.search.limits import Limits
from regard.search.sample import sample
from regard.training.losses import cross_entropy
from regard.training.objectives import (
    BASELINE,
    Likelihood,
    MinimumRisk,
    ScheduledSampling,
    _from_here_on,
    make_objective,
    sentence_bleu,
)
from regard.training_settings import ObjectiveSettings as Settings
from tests.conftest import TARGET_VOCABULARY, batch, draw, same, tiny

CPU = torch.device("cpu")
TRANSFORMER = ("transformer-pre-sinusoidal", "transformer-pre-sinusoidal")
OUTPUT, FEEDING = ("gru-bi", "gru-bilinear-output-hard"), ("lstm-bi", "lstm-additive-feeding-hard")


def hard(pair: tuple[str, str] = OUTPUT) -> EncoderDecoder:
    """Hard attention in training, where it draws; nothing is dropped."""
    return deepcopy(tiny(pair, seed=3, dropout=0.0)).train()


def examples() -> Batch:
    source, targets = batch()
    return make_batch(source, targets.tolist())


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {name: g for name, g in zip(parameters, found, strict=True) if g is not None}


def looks(model: EncoderDecoder, source: Ragged, inputs: Ragged) -> tuple[Tensor, Tensor, Tensor]:
    """Of a decoder with its context at the output: its states, what it could look at, and how likely, all padded."""
    decoder: Any = model.decoder
    memory = model.encode(source)
    y = inputs.like(decoder.embedding(inputs.values))
    states, _ = decoder.recurrence(y, decoder.start(memory).carry)
    queries, keys = states.padded(), memory.states.padded()
    scores = decoder.attention.score(queries.unsqueeze(1), decoder.attention.keys(keys))
    return queries, keys, attention_weights(scores, memory.states.mask[:, None, None, :]).squeeze(1)


# Two passes that should agree


def test_without_dropout_two_passes_agree_and_cost_what_one_does() -> None:
    model = deepcopy(tiny(TRANSFORMER, seed=3, dropout=0.0)).train()
    plain, twice = (Likelihood(model, Settings(agreement=weight), 0.1)(examples(), 0.0) for weight in (0.0, 5.0))
    assert twice.item() == pytest.approx(plain.item())


def test_what_is_apart_is_the_divergence_both_ways_of_the_tokens_that_count() -> None:
    """Liang et al. 2021, eq. 2 and 4, of two passes drawn again, without the tokens that only fill up."""
    model, example = deepcopy(tiny(TRANSFORMER, seed=3, dropout=0.4)).train(), examples()
    y = example.outputs.values.clone()
    y[2:5] = IGNORED
    example = Batch(example.source, example.inputs, example.outputs.like(y), 3)
    torch.manual_seed(1)
    found = Likelihood(model, Settings(agreement=3.0), 0.1)(example, 0.0)
    torch.manual_seed(1)
    one, other = model(example.source.twice(), example.inputs.twice()).values.chunk(2)
    assert not torch.equal(one, other)
    p, q = one[y != IGNORED].softmax(-1), other[y != IGNORED].softmax(-1)
    divergence = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
    expected = (cross_entropy(one, y, 0.1) + cross_entropy(other, y, 0.1) + 3.0 * divergence) / 2
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    ours, theirs = gradients(found, model), gradients(expected, model)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        same(ours[name], gradient, 1e-5)


# Hard attention


def test_the_score_function_estimates_the_gradient_of_the_expected_log_p() -> None:
    """`E = Σ_t Σ_j α_tj log p(y_t given h_j)`, with every place enumerated, against the mean of many draws.

    What is credited is divided by its spread, so the estimate is that of `E` over it.
    """
    model, copies = hard(), 4000
    example = make_batch(draw([4, 3], 11, seed=2), draw([2, 1], TARGET_VOCABULARY, seed=3).tolist())
    decoder: Any = model.decoder
    score = decoder.attention.score.weight.weight

    queries, keys, alphas = looks(model, example.source, example.inputs)
    pairs = torch.cat(
        (
            queries.unsqueeze(2).expand(-1, -1, keys.shape[1], -1),
            keys.unsqueeze(1).expand(-1, queries.shape[1], -1, -1),
        ),
        dim=-1,
    )  # (rows, target, source, 2 d_model)
    log_p = model.head(torch.tanh(decoder.join(pairs))).log_softmax(-1)
    answers = example.outputs.padded()[:, :, None, None].expand(-1, -1, keys.shape[1], 1)
    rewards = log_p.gather(-1, answers).squeeze(-1).detach()
    expected = ((alphas * rewards).sum(-1) * example.outputs.mask).sum()
    (true,) = torch.autograd.grad(expected, score)

    rows = torch.arange(2).repeat(copies)
    many = Batch(example.source.select(rows), example.inputs.select(rows), example.outputs.select(rows))
    objective = Likelihood(model, Settings(soft=0.0, entropy=0.0), 0.0)
    torch.manual_seed(1)
    found = gradients(objective(many, 1.0), model)["decoder.attention.score.weight.weight"]
    estimate = -found / copies * max(objective.memory["spread"], 1.0)
    cosine = torch.cosine_similarity(estimate.flatten(), true.flatten(), dim=0)
    assert cosine > 0.98
    assert estimate.norm() / true.norm() == pytest.approx(1.0, abs=0.15)
    # without what is credited there is nothing to learn where to look from
    silent = gradients(Likelihood(model, Settings(soft=0.0, entropy=0.0, reward=0.0), 0.0)(example, 1.0), model)
    assert silent["decoder.attention.score.weight.weight"].eq(0).all()


def test_the_places_drawn_are_as_likely_as_their_weights() -> None:
    model, copies = hard(), 3000
    source, inputs = draw([4], 11, seed=2), Ragged.of([[1, 2]])
    _, _, alphas = looks(model, source, inputs)
    rows = torch.zeros(copies, dtype=torch.long)
    torch.manual_seed(2)
    with capture(model) as trace:
        model(source.select(rows), inputs.select(rows))
    drawn = torch.stack([trace.weights("decoder.attention", row)[0] for row in range(copies)])
    assert drawn.sum(-1).eq(1).all()
    same(drawn.mean(0).double(), alphas[0], 5 * 0.5 / math.sqrt(copies))


def test_entropy_is_raised() -> None:
    """`-weight * H(α)`, summed over steps, whatever was drawn."""
    model, examples_ = hard(), examples()
    torch.manual_seed(1)
    plain = Likelihood(model, Settings(soft=0.0, entropy=0.0, reward=0.0), 0.0)(examples_, 1.0)
    torch.manual_seed(1)
    with_entropy = Likelihood(model, Settings(soft=0.0, entropy=0.7, reward=0.0), 0.0)(examples_, 1.0)
    _, _, alphas = looks(model, examples_.source, examples_.inputs)
    entropy = -(alphas * alphas.clamp(min=1e-300).log()).sum(-1)[examples_.inputs.mask].sum()
    assert entropy > 1
    assert (plain - with_entropy).item() == pytest.approx(0.7 * entropy.item(), rel=1e-5)
    name = "decoder.attention.score.weight.weight"
    same(gradients(with_entropy, model)[name], -0.7 * gradients(entropy, model)[name], 1e-9)


@pytest.mark.parametrize("pair", [OUTPUT, FEEDING], ids=["output", "feeding"])
def test_where_all_attend_softly_it_is_soft_attention(pair: tuple[str, str]) -> None:
    model, examples_ = hard(pair), examples()
    found = Likelihood(model, Settings(soft=1.0, entropy=0.0), 0.1)(examples_, 1.0)
    soft = deepcopy(model)
    attention = soft.decoder.attention  # type: ignore[attr-defined]
    attention.choose = lambda weights, rows: weights
    logits = soft(examples_.source, examples_.inputs).values
    expected = cross_entropy(logits, examples_.outputs.values, 0.1)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    one, other = gradients(found, model), gradients(expected, soft)
    assert any("score" in name for name in one)
    for name, gradient in other.items():
        same(one[name], gradient, 1e-6)


@pytest.mark.parametrize("pair", [OUTPUT, FEEDING], ids=["output", "feeding"])
def test_in_use_the_likeliest_place_is_taken(pair: tuple[str, str]) -> None:
    model, examples_ = hard(pair), examples()
    torch.manual_seed(1)
    drawn = [model(examples_.source, examples_.inputs).values for _ in range(2)]
    assert not torch.equal(*drawn)
    model.eval()
    with capture(model) as trace:
        first = model(examples_.source, examples_.inputs).values
    assert torch.equal(first, model(examples_.source, examples_.inputs).values)
    if pair == OUTPUT:
        _, _, alphas = looks(model, examples_.source, examples_.inputs)
        for row, (length, size) in enumerate(
            zip(examples_.inputs.lengths.tolist(), examples_.source.lengths.tolist(), strict=True)
        ):
            found = trace.weights("decoder.attention", row)[0, :length]
            assert found.sum(-1).eq(float(size > 0)).all()
            if size:
                assert torch.equal(found.argmax(-1), alphas[row, :length].argmax(-1))


@pytest.mark.parametrize("pair", [OUTPUT, FEEDING], ids=["output", "feeding"])
def test_what_was_drawn_is_laid_out_in_the_order_of_the_targets(pair: tuple[str, str]) -> None:
    """Softly, so that `capture` has the weights whose entropy is recorded: whole, or step by step as rows end."""
    model, examples_ = hard(pair), examples()
    with choices(model, len(examples_.inputs), 1.0, CPU) as made, capture(model) as trace:
        model(examples_.source, examples_.inputs)
    log_alpha, entropy = made.laid_out(examples_.outputs)
    assert len(made.drawn) == (1 if pair == OUTPUT else examples_.inputs.longest)
    assert log_alpha.eq(0).all()  # a sentence that attends softly has drawn nothing
    expected = []
    for row, length in enumerate(examples_.inputs.lengths.tolist()):
        weights = trace.weights("decoder.attention", row)[:, :length].double()
        expected.append(-(weights * weights.clamp(min=1e-30).log()).sum((0, 2)))
    assert len({round(float(e), 6) for e in torch.cat(expected)}) > 10
    same(entropy, torch.cat(expected), 1e-5)


def test_log_probabilities_are_those_of_the_places_drawn() -> None:
    model, examples_ = hard(), examples()
    torch.manual_seed(4)
    with choices(model, len(examples_.inputs), 0.4, CPU) as made, capture(model) as trace:
        model(examples_.source, examples_.inputs)
    log_alpha, _ = made.laid_out(examples_.outputs)
    _, _, alphas = looks(model, examples_.source, examples_.inputs)
    softly = made.soft.tolist()
    assert True in softly
    assert False in softly
    expected = []
    for row, length in enumerate(examples_.inputs.lengths.tolist()):
        drawn = trace.weights("decoder.attention", row)[0, :length].argmax(-1)
        chosen = alphas[row, torch.arange(length), drawn].log()
        none = softly[row] or not int(examples_.source.lengths[row])
        expected.append(torch.zeros(length, dtype=torch.float64) if none else chosen)
    same(log_alpha, torch.cat(expected), 1e-9)
    log_alpha.sum().backward()
    weight = model.decoder.attention.score.weight.weight  # type: ignore[attr-defined]
    assert weight.grad.isfinite().all()


def test_the_baseline_moves_and_is_kept() -> None:
    objective = Likelihood(hard(), Settings(), 0.0)
    rewards = [torch.tensor([-1.0, -3.0, -8.0]), torch.tensor([-2.0, -2.0, -5.0]), torch.tensor([-4.0])]
    mean, spread = -4.0, float(rewards[0].std())
    same(objective._centred(rewards[0]), (rewards[0] + 4.0) / spread, 1e-6)
    assert objective.memory == pytest.approx({"baseline": mean, "spread": spread})
    mean, spread = 0.9 * mean + 0.1 * -3.0, 0.9 * spread + 0.1 * float(rewards[1].std())
    same(objective._centred(rewards[1]), (rewards[1] - mean) / spread, 1e-6)
    assert objective.memory == pytest.approx({"baseline": mean, "spread": spread})
    assert BASELINE == 0.9
    resumed = Likelihood(hard(), Settings(), 0.0)
    resumed.memory.update(objective.memory)  # as from a checkpoint
    assert torch.equal(resumed._centred(rewards[2]), objective._centred(rewards[2]))
    small = Likelihood(hard(), Settings(), 0.0)
    same(
        small._centred(torch.tensor([0.1, 0.2])), torch.tensor([-0.05, 0.05]), 1e-6
    )  # a spread below 1 magnifies nothing


def test_a_loss_that_is_no_number_leaves_the_baseline_alone() -> None:
    objective = Likelihood(hard(), Settings(), 0.0)
    reward = torch.tensor([1.0, 2.0, 4.0])
    objective._centred(torch.tensor([1.0, float("nan")]))
    assert objective.memory == {}
    objective._centred(reward)
    before = dict(objective.memory)
    objective._centred(torch.tensor([1.0, float("inf")]))
    assert objective.memory == before


def test_from_here_on_is_the_mean_of_the_rest() -> None:
    like = Ragged.of([[0] * 3, [], [0] * 2, [0]])
    found = _from_here_on(like, torch.tensor([1.0, 2.0, 6.0, 5.0, 7.0, 4.0]))
    assert found.tolist() == pytest.approx([3.0, 4.0, 6.0, 6.0, 7.0, 4.0])


@pytest.mark.parametrize(("pair", "late"), [(OUTPUT, False), (FEEDING, True)], ids=["output", "feeding"])
def test_a_place_is_credited_with_what_it_bears_on(pair: tuple[str, str], late: bool) -> None:
    """The whole loss by hand, from what was drawn."""
    model, examples_ = hard(pair), examples()
    settings = Settings(soft=0.3, reward=0.8, entropy=0.05)
    objective = Likelihood(model, settings, 0.1)
    torch.manual_seed(5)
    found = objective(examples_, 1.0)
    torch.manual_seed(5)
    with choices(model, len(examples_.inputs), settings.soft, CPU) as made:
        logits = model(examples_.source, examples_.inputs).values
    log_alpha, entropy = made.laid_out(examples_.outputs)
    rewards = logits.log_softmax(-1).gather(1, examples_.outputs.values[:, None]).squeeze(1).tolist()
    bounds = examples_.outputs.offsets.tolist()
    if late:
        ends = {i: end for start, end in pairwise(bounds) for i in range(start, end)}
        rewards = [sum(rewards[i : ends[i]]) / (ends[i] - i) for i in range(len(rewards))]
    mean, spread = sum(rewards) / len(rewards), float(torch.tensor(rewards).std())
    expected = cross_entropy(logits, examples_.outputs.values, 0.1).item()
    for reward, log, h in zip(rewards, log_alpha.tolist(), entropy.tolist(), strict=True):
        expected -= 0.8 * (reward - mean) / max(spread, 1.0) * log + 0.05 * h
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_likelihood_is_the_cross_entropy() -> None:
    model, examples_ = tiny(("lstm-bi", "lstm-additive-feeding")), examples()
    found = make_objective(model, Settings(), 0.1, (BOS,))(examples_, 0.5)
    logits = model(examples_.source, examples_.inputs).values
    assert found.item() == pytest.approx(cross_entropy(logits, examples_.outputs.values, 0.1).item(), rel=1e-6)
    assert isinstance(make_objective(model, Settings(), 0.1, (BOS,)), Likelihood)


# Mixed prefixes


class Known(nn.Module):
    """Says after each token what `after` says, with certainty, and remembers what it was asked."""

    def __init__(self, after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.after, self.asked = after, []  # type: Callable[[Tensor], Tensor], list[Ragged]
        self.head = Head(50, 50, None)
        with torch.no_grad():
            self.head.linear.weight.copy_(200.0 * torch.eye(50))

    def forward(self, source: Ragged, inputs: Ragged) -> Ragged:
        return inputs.like(self.head(self.states(source, inputs).values))

    def states(self, source: Ragged, inputs: Ragged) -> Ragged:
        self.asked.append(inputs)
        return inputs.like(nn.functional.one_hot(self.after(inputs.values), 50).float())


def mixed(known: Known, examples_: Batch, done: float, **settings: float) -> list[list[int]]:
    """The inputs that were learnt from at last."""
    objective = ScheduledSampling(known, Settings(kind="scheduled_sampling", **settings), 0.0)
    objective(examples_, done)
    return known.asked[-1].tolist()


def test_at_the_end_every_token_but_the_first_is_the_models_own() -> None:
    """It writes `n + 10` after `n`; after one round that follows true tokens, after two its own."""
    examples_ = make_batch(Ragged.of([[], []]), [[20, 30, 35], [7]])
    known = Known(lambda tokens: (tokens + 10) % 50)
    assert mixed(known, examples_, 1.0, own_tokens=1.0) == [[BOS, BOS + 10, 30, 40], [BOS, BOS + 10]]
    assert len(known.asked) == 2
    assert known.asked[0].tolist() == examples_.inputs.tolist()
    twice = mixed(known, examples_, 1.0, own_tokens=1.0, passes=2)
    assert twice == [[BOS, BOS + 10, BOS + 20, 40], [BOS, BOS + 10]]
    assert mixed(known, examples_, 0.0, own_tokens=1.0) == examples_.inputs.tolist()
    assert mixed(known, examples_, 1.0, own_tokens=0.0) == examples_.inputs.tolist()


def test_the_share_of_own_tokens_rises_to_what_was_set() -> None:
    examples_ = make_batch(Ragged.of([[]] * 50), [[7] * 100] * 50)
    known = Known(lambda tokens: torch.full_like(tokens, 40))
    for done in (0.25, 1.0):
        rows = mixed(known, examples_, done, own_tokens=0.4)
        assert all(row[0] == BOS for row in rows)
        counts = Counter(token for row in rows for token in row[1:])
        assert set(counts) == {7, 40}
        assert counts[40] / 5000 == pytest.approx(0.4 * done, abs=4 * 0.5 / math.sqrt(5000))


@pytest.mark.parametrize("pair", [("lstm-bi", "lstm-additive-feeding"), ("transformer-t5", "transformer-rotary")])
def test_without_own_tokens_it_is_the_likelihood(pair: tuple[str, str]) -> None:
    model, examples_ = tiny(pair), examples()
    likelihood = Likelihood(model, Settings(), 0.1)(examples_, 1.0)
    scheduled = make_objective(model, Settings(kind="scheduled_sampling", own_tokens=0.0), 0.1, (BOS,))(examples_, 1.0)
    assert scheduled.item() == likelihood.item()
    one, other = gradients(likelihood, model), gradients(scheduled, model)
    assert all(torch.equal(one[name], other[name]) for name in one)
    torch.manual_seed(1)
    own = make_objective(model, Settings(kind="scheduled_sampling", own_tokens=1.0), 0.1, (BOS,))(examples_, 1.0)
    assert own.item() != likelihood.item()


# The expected risk


@pytest.mark.parametrize("likelihood", [0.0, 0.3])
def test_risk_is_the_formula_over_what_was_drawn(likelihood: float) -> None:
    """`Σ_y Q(y) (1 - BLEU(y))`, `Q(y) ∝ p(y)^α` over the different outputs, the reference one of them."""
    model, examples_ = deepcopy(tiny(("lstm-bi", "lstm-additive-feeding"), dropout=0.3)), examples()
    model.train()
    settings = Settings(kind="minimum_risk", samples=6, sharpness=0.2, likelihood=likelihood)
    objective = make_objective(model, settings, 0.1, (BOS,))
    assert isinstance(objective, MinimumRisk)
    targets = [row[:-1] for row in examples_.outputs.tolist()]

    torch.manual_seed(7)
    keys = torch.randint(2**62, (len(targets),))
    limits = Limits(torch.tensor([2 * len(y) + 5 for y in targets]), BOS, EOS, (PAD, UNK, BOS, SEP, MASK))
    model.eval()
    with torch.no_grad():
        found = sample(model, model.start(examples_.source), limits=limits, count=6, keys=keys)
    expected = 0.0
    for row, (x, y) in enumerate(zip(examples_.source.tolist(), targets, strict=True)):
        tried = {tuple(y), *(tuple(hypothesis.tokens) for hypothesis in found[row])}
        assert len(tried) > 2
        assert not any({PAD, UNK, BOS, SEP, MASK} & set(output) for output in tried - {tuple(y)})
        odds, risks = [], []
        for output in tried:
            one = make_batch(Ragged.of([x]), [output])
            log_p = model(one.source, one.inputs).values.log_softmax(-1).detach()
            odds.append(math.exp(0.2 * sum(float(log_p[t, token]) for t, token in enumerate([*output, EOS]))))
            risks.append(1.0 - sentence_bleu(output, y))
        expected += (len(y) + 1) * sum(q * r for q, r in zip(odds, risks, strict=True)) / sum(odds)
    if likelihood:
        logits = model(examples_.source, examples_.inputs).values
        expected += likelihood * cross_entropy(logits, examples_.outputs.values, 0.1).item()

    torch.manual_seed(7)  # in use nothing is dropped, so that the probabilities can be worked out again
    assert objective(examples_, 0.0).item() == pytest.approx(expected, rel=1e-5)
    assert not model.training
    model.train()
    objective(examples_, 0.0)
    assert model.training  # as it was before it drew


def test_descent_lowers_the_risk() -> None:
    model = deepcopy(tiny(("gru-bi", "gru-every"), seed=5))
    examples_ = make_batch(draw([3, 2], 11, seed=2), [[7, 8, 9], [9, 10]])
    objective = make_objective(model, Settings(kind="minimum_risk", samples=8, sharpness=1.0), 0.0, first=(BOS,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)

    many = make_objective(model, Settings(kind="minimum_risk", samples=100), 0.0, (BOS,))

    def mean_risk() -> float:
        torch.manual_seed(2)
        targets = [row[:-1] for row in examples_.outputs.tolist()]
        assert isinstance(many, MinimumRisk)
        drawn = many._draw(examples_, targets)
        risks = [1.0 - sentence_bleu(y, target) for group, target in zip(drawn, targets, strict=True) for y in group]
        return sum(risks) / len(risks)

    before = mean_risk()
    for _ in range(30):
        optimizer.zero_grad()
        objective(examples_, 0.0).backward()
        optimizer.step()
    assert before > 0.75
    assert mean_risk() < before - 0.3


def test_a_model_that_writes_nothing_is_all_wrong() -> None:
    """The reference is tried as well, but as good as never written."""
    model = deepcopy(tiny(("gru-bi", "gru-every"), seed=5))
    with torch.no_grad():
        model.head.linear.weight.zero_()
        model.head.linear.bias.zero_()
        model.head.linear.bias[EOS] = 100.0
    examples_ = make_batch(draw([3, 2], 11, seed=2), [[7, 8, 9], [9, 10]])
    objective = MinimumRisk(model, Settings(kind="minimum_risk", sharpness=1.0), 0.0, first=(BOS,))
    assert objective._draw(examples_, [[7, 8, 9], [9, 10]]) == [[[]] * 8, [[]] * 8]
    assert objective(examples_, 0.0).item() == pytest.approx(4 + 3, rel=1e-5)  # each weighs as many tokens as it has


sentences = st.lists(st.integers(0, 3), min_size=1, max_size=9)


@given(sentences, sentences)
def test_sentence_bleu_is_sacrebleus_with_one_added(output: list[int], reference: list[int]) -> None:
    """But for its ends: the mark at the end counts as a token where an output is too short."""
    theirs = sacrebleu.sentence_bleu(
        " ".join(map(str, output)), [" ".join(map(str, reference))], smooth_method="add-k", smooth_value=1,
        tokenize="none", use_effective_order=False,
    ).score / 100  # fmt: skip
    if len(output) < len(reference):
        theirs *= math.exp(len(reference) / len(output) - (len(reference) + 1) / (len(output) + 1))
    assert sentence_bleu(output, reference) == pytest.approx(theirs, rel=1e-6, abs=1e-9)


def test_sentence_bleu_at_its_edges() -> None:
    assert sentence_bleu([7, 8, 9], [7, 8, 9]) == pytest.approx(1.0)
    assert sentence_bleu([7], [7]) == pytest.approx(1.0)
    assert sentence_bleu([7, 8], [9, 10]) == 0.0
    assert sentence_bleu([], [9, 10]) == 0.0
    assert sentence_bleu([7] * 4, [7]) == pytest.approx((1 / 4 * 1 / 4 * 1 / 3 * 1 / 2) ** 0.25)
    whole, half = sentence_bleu([7, 8, 9, 10], [7, 8, 9, 10]), sentence_bleu([7, 8], [7, 8, 9, 10])
    assert half == pytest.approx(whole * math.exp(1 - 5 / 3))


def test_only_hard_attention_is_treated_so() -> None:
    assert sum(isinstance(module, HardAttention) for module in hard().modules()) == 1
    assert Likelihood(hard(), Settings(), 0.0).hard
    assert not Likelihood(tiny(("gru-bi", "gru-every")), Settings(), 0.0).hard


def test_the_share_that_attends_softly_falls_from_all_to_the_setting() -> None:
    """At the start every sentence attends softly, so nothing is drawn and the loss does not depend on the draw."""
    examples_, model = examples(), hard()
    objective = Likelihood(model, Settings(soft=0.0, entropy=0.0), 0.0)

    def losses(done: float) -> set[float]:
        return {float(objective(examples_, done).detach()) for _ in range(6)}

    assert len(losses(0.0)) == 1
    assert len(losses(1.0)) > 1
