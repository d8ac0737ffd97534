"""Attention and the Transformer against the published equations, read anew in plain NumPy (`equations.py`)."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.models.stems import Embedding
from regard.nn.attention import Attention, MultiHeadAttention, attention_weights, capture
from regard.nn.blocks import DecoderBlock, EncoderBlock, FeedForward, Residual, run_blocks
from regard.nn.positions import Learned, Sinusoidal
from regard.nn.scores import SCORES, Location
from regard.ragged import Ragged
from regard.search.limits import length_penalty
from regard.search.rerank import coverage_penalty
from regard.training.losses import cross_entropy
from tests import equations as eq
from tests.conftest import D_MODEL, LONGEST, Pair, draw, tiny
from tests.equations import Array, Weights

HEADS = 2
NORMS = ("pre", "post")


def randomised(module: nn.Module, seed: int = 1) -> Weights:
    """Draw every weight of a module in float64, and read them out."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.double().eval().parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def vectors(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ragged(lengths: list[int], seed: int) -> tuple[Ragged, list[list[Array]]]:
    """Vectors in rows of these lengths, and the same as lists of arrays."""
    x = Ragged.from_lengths(vectors(sum(lengths), D_MODEL, seed=seed), lengths)
    return x, [[row.numpy() for row in rows] for rows in x.values.split(lengths)]


def agree(found: Tensor, expected: list[Array], tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(found.detach().numpy(), np.array(expected), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", SCORES)
def test_scores_and_contexts(kind: str) -> None:
    attention = Attention(SCORES[kind](D_MODEL))
    w = eq.under(randomised(attention), "score")
    queries, states = vectors(3, 2, D_MODEL), vectors(3, 4, D_MODEL, seed=3)
    lengths = [4, 2, 0]
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]

    scores = attention.score(queries.unsqueeze(1), attention.keys(states))
    assert scores.shape == (3, 1, 2, 4)
    with capture(attention) as trace:
        numbers = torch.tensor([5, 7, 9])
        contexts, _ = attention(queries, attention.keys(states), attention.values(states), mask, numbers)
    for row, target in product(range(3), range(2)):
        expected = [eq.score(kind, w, queries[row, target].numpy(), states[row, j].numpy()) for j in range(4)]
        agree(scores[row, 0, target], [np.array(e) for e in expected])
        alphas = eq.softmax(expected[: lengths[row]])
        values = [states[row, j].numpy() for j in range(lengths[row])]
        agree(contexts[row, target], list(eq.context(alphas, values, D_MODEL)))
        found = trace.weights("", [5, 7, 9][row])[0, target]  # under the numbers it was told
        agree(found, [np.array(a) for a in [*alphas, *[0.0] * (4 - lengths[row])]], 1e-7)


def test_location_aware_scores_see_where_attention_was() -> None:
    """Chorowski et al. 2015, eq. 8 and 9; with no past it is the additive score."""
    score = Location(D_MODEL, filters=3, width=5)
    w = randomised(score)
    queries, states, past = vectors(2, 1, 3, D_MODEL), vectors(2, 1, 6, D_MODEL, seed=3), vectors(2, 1, 3, 6, seed=4)
    found = score(queries, score.keys(states), past.abs())
    for row, target, j in product(range(2), range(3), range(6)):
        before = past.abs()[row, 0, target].numpy()
        located = eq.located(w, before, j)
        s, h = queries[row, 0, target].numpy(), states[row, 0, j].numpy()
        agree(found[row, 0, target, j : j + 1], [np.array(eq.score("location", w, s, h, located))])


def test_attention_weights_are_a_softmax_over_what_may_be_seen() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0], [400.0, -400.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    found = attention_weights(scores, mask)
    sigmoid = 1 / (1 + math.e)
    agree(found, [np.array([sigmoid, 1 - sigmoid, 0]), np.array([1.0, 0, 0]), np.zeros(3)])
    assert found[0, 2] == 0
    assert found[2].eq(0).all()


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_multi_head_attention(causal: bool) -> None:
    attention = MultiHeadAttention(D_MODEL, HEADS, causal=causal)
    w = randomised(attention)
    x, xs = ragged([3, 1, 4], seed=3)
    memory, memories = (x, xs) if causal else ragged([2, 5, 1], seed=4)
    expected = [
        y for row, mem in zip(xs, memories, strict=True) for y in eq.multi_head(w, HEADS, row, mem, causal=causal)
    ]
    agree(attention(x, memory).values, expected)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_captured_weights_are_the_ones_the_heads_used(causal: bool) -> None:
    """With `V = I` and `W_O = I` a head's part of the output is its weights times the memory."""
    attention = MultiHeadAttention(D_MODEL, HEADS, causal=causal)
    randomised(attention)
    with torch.no_grad():
        for linear in (attention.inputs, attention.output):  # of the first, values are the last third
            linear.weight[-D_MODEL:] = torch.eye(D_MODEL)
            linear.bias[-D_MODEL:] = 0
    x, _ = ragged([3, 1, 4], seed=3)
    memory = x if causal else ragged([2, 5, 1], seed=4)[0]
    with capture(attention) as trace:
        output = attention(x, memory).values.split([3, 1, 4])
    for row, values in enumerate(memory.values.split(memory.lengths.tolist())):
        weights = trace.weights("", row).double()[:, : len(output[row]), : len(values)]  # (heads, target, source)
        parts = weights @ values.view(len(values), HEADS, -1).transpose(0, 1)
        torch.testing.assert_close(parts.transpose(0, 1).flatten(1), output[row], atol=1e-6, rtol=0)


def test_an_attention_over_nothing_yields_the_output_bias() -> None:
    attention = MultiHeadAttention(D_MODEL, HEADS)
    w = randomised(attention)
    x, _ = ragged([2, 1], seed=3)
    memory, _ = ragged([0, 3], seed=4)
    agree(attention(x, memory).values[:2], [w["output.bias"]] * 2)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_feed_forward(activation: str) -> None:
    layer = FeedForward(D_MODEL, 12, activation, dropout=0.1)
    w, x = randomised(layer), vectors(5, D_MODEL)
    agree(layer(x), [eq.feed_forward(w, row, activation) for row in x.numpy()])


@pytest.mark.parametrize("norm", NORMS)
def test_residual_and_layer_norm(norm: str) -> None:
    around = Residual(D_MODEL, norm, dropout=0.1)
    w = eq.under(randomised(around), "norm")
    x = 3 + 5 * vectors(5, D_MODEL)
    agree(around.norm(x), [eq.layer_norm(w, row) for row in x.numpy()])
    if norm == "pre":
        expected = [row + np.tanh(eq.layer_norm(w, row)) for row in x.numpy()]
    else:
        expected = [eq.layer_norm(w, row + np.tanh(row)) for row in x.numpy()]
    agree(around(x, torch.tanh), expected)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_blocks(norm: str, activation: str) -> None:
    encoder = EncoderBlock(D_MODEL, HEADS, 12, norm=norm, activation=activation, dropout=0.1)
    decoder = DecoderBlock(D_MODEL, HEADS, 12, norm=norm, activation=activation, dropout=0.1)
    w_encoder, w_decoder = randomised(encoder), randomised(decoder, seed=5)
    x, xs = ragged([3, 1, 4], seed=3)
    memory, memories = ragged([2, 5, 1], seed=4)
    expected = [
        y for row in xs for y in eq.encoder_block(w_encoder, row, heads=HEADS, norm=norm, activation=activation)
    ]
    agree(run_blocks([encoder], x).values, expected, 1e-10)
    expected = [
        y
        for row, mem in zip(xs, memories, strict=True)
        for y in eq.decoder_block(w_decoder, row, mem, heads=HEADS, norm=norm, activation=activation)
    ]
    agree(run_blocks([decoder], x, memory).values, expected, 1e-10)


def test_sinusoidal_positions() -> None:
    """In float32, as they are made; the module's own frequencies leave no error beyond that."""
    positions = Sinusoidal(D_MODEL)
    found = positions(torch.arange(50))
    for t, i in product(range(50), range(D_MODEL // 2)):
        angle = t / 10000 ** (2 * i / D_MODEL)
        assert found[t, 2 * i] == pytest.approx(math.sin(angle), abs=1e-5)
        assert found[t, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-5)
    published = torch.tensor([10000 ** (-2 * i / D_MODEL) for i in range(D_MODEL // 2)], dtype=torch.float64)
    torch.testing.assert_close(positions.frequencies.double(), published, rtol=1e-7, atol=0)


@pytest.mark.parametrize("shift", [1, 7, -3])
def test_a_shift_of_sinusoidal_positions_is_linear(shift: int) -> None:
    """`P_{t+τ} = M_τ P_t`: a rotation by `τ ω` in each pair of dimensions, the same for every `t`."""
    positions = Sinusoidal(D_MODEL).double()
    m = np.zeros((D_MODEL, D_MODEL))
    for i, frequency in enumerate(positions.frequencies.tolist()):
        sin, cos = math.sin(shift * frequency), math.cos(shift * frequency)
        m[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cos, sin], [-sin, cos]]
    t = torch.arange(3, 40)
    agree(positions(t + shift), [m @ p for p in positions(t).numpy()], 1e-12)


def test_embeddings_are_scaled_and_positions_added() -> None:
    embedding, positions = Embedding(9, D_MODEL, dropout=0.1), Learned(D_MODEL, LONGEST)
    table, places = randomised(embedding)["table.weight"], randomised(positions, seed=4)["table.weight"]
    tokens, t = torch.tensor([3, 0, 8]), torch.tensor([0, 1, 5])
    agree(embedding(tokens), [math.sqrt(D_MODEL) * table[i] for i in (3, 0, 8)])
    expected = [math.sqrt(D_MODEL) * table[i] + places[j] for i, j in ((3, 0), (0, 1), (8, 5))]
    agree(embedding(tokens, positions, t, 6), expected)


@pytest.mark.parametrize("norm", NORMS)
def test_a_whole_transformer(norm: str) -> None:
    """Embeddings, positions, blocks, last norm and output layer, from tokens to logits."""
    name = f"transformer-{norm}-learned"
    pair: Pair = (name, name)
    model = tiny(pair, tie_output=False)
    w: Weights = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    activation = "relu" if norm == "post" else "gelu"

    def embedded(side: str, tokens: list[int]) -> list[Array]:
        stem = "stem." if side == "encoder" else ""
        table, places = w[f"{side}.{stem}embedding.table.weight"], w[f"{side}.positions.table.weight"]
        return [math.sqrt(D_MODEL) * table[token] + places[t] for t, token in enumerate(tokens)]

    def last(side: str, xs: list[Array]) -> list[Array]:
        return [eq.layer_norm(eq.under(w, f"{side}.final"), x) for x in xs] if norm == "pre" else xs

    source, target = draw([3, 2], 11, seed=5), draw([2, 4], 13, seed=6)
    expected = []
    for source_tokens, target_tokens in zip(source.tolist(), target.tolist(), strict=True):
        h, y = embedded("encoder", source_tokens), embedded("decoder", target_tokens)
        for i in range(2):
            block = eq.under(w, f"encoder.blocks.{i}")
            h = eq.encoder_block(block, h, heads=HEADS, norm=norm, activation=activation)
        h = last("encoder", h)
        for i in range(2):
            block = eq.under(w, f"decoder.blocks.{i}")
            y = eq.decoder_block(block, y, h, heads=HEADS, norm=norm, activation=activation)
        expected += [eq.affine(w, "head.linear", x) for x in last("decoder", y)]
    agree(model(source, target).values, expected, 1e-10)


def test_a_transformer_sums_its_source_up_as_a_mean() -> None:
    memory = tiny(("transformer-pre-learned", "gru-every")).encode(draw([3, 0, 2], 11, seed=7))
    states = [rows.detach().numpy() for rows in memory.states.values.split([3, 0, 2])]
    agree(memory.summary, [states[0].sum(0) / 3, np.zeros(D_MODEL), states[2].sum(0) / 2])


# What training makes small, and what search divides by


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_cross_entropy_with_label_smoothing(smoothing: float) -> None:
    """Szegedy et al. 2016, 7: `Σ_t -Σ_k q_k log p_k` with `q_k = (1 - ε) [k = y] + ε / K`. The loss is in float32."""
    logits, targets = vectors(4, 6, seed=8), [2, 0, 5, 2]
    expected = 0.0
    for row, y in zip(logits.tolist(), targets, strict=True):
        p = eq.softmax(row)
        q = [(1 - smoothing) * (k == y) + smoothing / 6 for k in range(6)]
        expected -= sum(q[k] * math.log(p[k]) for k in range(6))
    found = cross_entropy(logits, torch.tensor(targets), smoothing)
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("length", [1, 2, 17])
def test_length_penalties(alpha: float, length: int) -> None:
    """Wu et al. 2016, eq. 14: `lp(Y) = (5 + |Y|)^α / (5 + 1)^α`."""
    tokens = torch.tensor([length], dtype=torch.float64)
    assert length_penalty("gnmt", alpha, tokens).item() == pytest.approx((5 + length) ** alpha / 6**alpha, rel=1e-12)
    assert length_penalty("average", alpha, tokens).item() == pytest.approx(length**alpha, rel=1e-12)
    assert length_penalty("none", alpha, tokens).item() == 1


def test_coverage_penalty() -> None:
    """Wu et al. 2016, eq. 14: `cp(X; Y) = β Σ_j log(min(Σ_i p_ij, 1))`."""
    weights = [[0.7, 0.2, 0.1], [0.6, 0.1, 0.3]]
    expected = 0.2 * sum(math.log(min(sum(row[j] for row in weights), 1.0)) for j in range(3))
    assert coverage_penalty(torch.tensor(weights, dtype=torch.float64), 0.2) == pytest.approx(expected, abs=1e-12)
    assert expected < 0
    assert coverage_penalty(torch.ones(2, 3), 0.2) == 0
    assert math.isfinite(coverage_penalty(torch.tensor([[1.0, 0.0]]), 0.2))
