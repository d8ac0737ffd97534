"""Relative positions, causal attention after a past, norms, gates and heads over states, against the equations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.models.transformer import TransformerState
from regard.nn.attention import Attention, MultiHeadAttention, attend, capture
from regard.nn.blocks import DecoderBlock, EncoderBlock, FeedForward, Residual, make_norm, run_blocks
from regard.nn.graphs import cloned
from regard.nn.positions import Alibi, Relative, Rotary, Shaw, T5Bias, TransformerXL, distances
from regard.nn.scores import SCORES
from regard.nn.slots import Slots
from regard.ragged import Ragged
from tests import equations as eq
from tests.equations import Array
from tests.test_equations import agree, randomised, vectors

D_MODEL, HEADS, D_HEAD = 12, 3, 4  # a number of heads that is no power of two
BUCKETS, DISTANCE, CLIP = 8, 6, 2  # small enough that a row of nine goes beyond each
LENGTHS = [3, 1, 9, 0, 4]
KINDS = ("rotary", "alibi", "t5", "shaw", "xl")
every_kind = pytest.mark.parametrize("kind", KINDS)
every_kind_and_none = pytest.mark.parametrize("kind", [*KINDS, None])
both_ways = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])


def make(kind: str | None, *, causal: bool) -> Relative | None:
    match kind:
        case "rotary":
            return Rotary(D_HEAD)
        case "alibi":
            return Alibi(HEADS)
        case "t5":
            return T5Bias(HEADS, BUCKETS, DISTANCE, bidirectional=not causal)
        case "shaw":
            return Shaw(D_HEAD, CLIP)
        case "xl":
            return TransformerXL(HEADS, D_HEAD)
    return None


def attention_with(kind: str | None, *, causal: bool) -> MultiHeadAttention:
    attention = MultiHeadAttention(D_MODEL, HEADS, causal=causal, relative=make(kind, causal=causal))
    randomised(attention)
    return attention


def decoder_block(kind: str | None, *, cross: bool) -> DecoderBlock:
    block = DecoderBlock(
        D_MODEL, HEADS, 10, norm="pre", activation="silu", dropout=0.1, normalize="rms", gated=True,
        relative=make(kind, causal=True), cross=cross,
    )  # fmt: skip
    randomised(block)
    return block


def rows(lengths: list[int], seed: int = 3) -> Ragged:
    return Ragged.from_lengths(vectors(sum(lengths), D_MODEL, seed=seed), lengths)


def lists(x: Ragged) -> list[list[Array]]:
    return [[v.numpy() for v in row] for row in x.values.split(x.lengths.tolist())]


def weights_of(module: nn.Module) -> dict[str, Array]:
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def same(a: Tensor, b: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, atol=tolerance, rtol=0)


# The four kinds, by themselves


def test_distances_count_from_the_last_slot() -> None:
    assert distances(2, 4, torch.device("cpu")).tolist() == [[-2, -1, 0, 1], [-3, -2, -1, 0]]


def test_rotary_turns_each_pair_by_its_slot() -> None:
    rotary = Rotary(6)
    published = torch.tensor([1.0, 10000 ** (-1 / 3), 10000 ** (-2 / 3)], dtype=torch.float64)
    torch.testing.assert_close(rotary.frequencies.double(), published, rtol=1e-7, atol=0)
    q, k, slot = vectors(5, 2, 6), vectors(5, 2, 6, seed=3), torch.tensor([0, 1, 2, 7, 40])
    turned = rotary.double().turn(q, k, slot)
    for x, found in zip((q, k), turned, strict=True):
        for t, head in product(range(5), range(2)):
            # the frequencies are made in float32
            agree(found[t, head], list(eq.rotate(x[t, head].numpy(), int(slot[t]))), 1e-5)
    batched = rotary.turn(q.expand(3, 5, 2, 6), k.expand(3, 5, 2, 6), slot)[0]
    same(batched[1], turned[0])


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    rotary, q, k = Rotary(6).double(), vectors(6), vectors(6, seed=3)

    def fit(i: int, j: int) -> float:
        turned_q, turned_k = rotary.turn(q.expand(2, 1, 6), k.expand(2, 1, 6), torch.tensor([i, j]))
        return float(turned_q[0, 0] @ turned_k[1, 0])

    assert fit(3, 1) == pytest.approx(fit(903, 901), abs=1e-10)
    assert fit(3, 3) == pytest.approx(float(q @ k), abs=1e-12)
    assert abs(fit(3, 1) - fit(3, 2)) > 1e-3
    assert abs(fit(3, 1) - fit(1, 3)) > 1e-3


def test_alibi_slopes_are_those_published() -> None:
    assert Alibi(8).slopes.tolist() == [2.0**-n for n in range(1, 9)]
    assert Alibi(1).slopes.tolist() == [2.0**-8]
    assert Alibi(3).slopes.tolist() == [2.0**-4, 2.0**-8, 2.0**-2]
    assert Alibi(12).slopes.tolist() == pytest.approx([2.0**-n for n in (1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5)])
    for heads in range(1, 34):
        assert Alibi(heads).slopes.tolist() == pytest.approx(eq.alibi_slopes(heads), rel=1e-6), heads


def test_alibi_falls_with_the_distance_both_ways() -> None:
    found = Alibi(2).scores(vectors(1, 2, 3, 4), distances(3, 4, torch.device("cpu")))
    assert found.shape == (1, 2, 3, 4)
    steps = [[-1, 0, -1, -2], [-2, -1, 0, -1], [-3, -2, -1, 0]]
    assert found[0].tolist() == [[[m * n for n in row] for row in steps] for m in (2.0**-4, 2.0**-8)]


def test_t5_buckets_of_a_small_table() -> None:
    """Eight buckets up to 16: 0 to 3 alone, then from 4, 4√2, 8 and 8√2 on."""
    back = T5Bias(1, 8, 16, bidirectional=False)
    n = torch.arange(18)
    expected = [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7]
    assert back.buckets(-n).tolist() == expected
    assert back.buckets(n).eq(0).all()
    # both ways, four buckets a side: 0 and 1 alone, then from 2 and 2√8 on
    both = T5Bias(1, 8, 16, bidirectional=True)
    assert both.buckets(-n).tolist() == [0, 1, 2, 2, 2, 2] + [3] * 12
    assert both.buckets(n).tolist() == [0, 5, 6, 6, 6, 6] + [7] * 12


@pytest.mark.parametrize("bidirectional", [False, True], ids=["back", "both"])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 6), (64, 512), (10, 100)])
def test_t5_buckets_are_those_published(buckets: int, longest: int, bidirectional: bool) -> None:
    bias = T5Bias(2, buckets, longest, bidirectional=bidirectional)
    span = range(-longest - 40, longest + 41)
    expected = [eq.t5_bucket(n, buckets, longest, bidirectional=bidirectional) for n in span]
    assert bias.buckets(torch.tensor(span)).tolist() == expected
    assert max(expected) == buckets - 1


# The four kinds inside attention


@every_kind
@both_ways
def test_self_attention_follows_the_equations(kind: str, causal: bool) -> None:
    attention, x = attention_with(kind, causal=causal), rows(LENGTHS)
    w = weights_of(attention)
    expected = [
        y
        for row in lists(x)
        for y in eq.relative_attention(
            kind, w, HEADS, row, causal=causal, buckets=BUCKETS, longest=DISTANCE, clip=CLIP
        )
    ]  # fmt: skip
    agree(attention(x).values, expected, 1e-6 if kind in ("rotary", "xl") else 1e-11)  # frequencies are made in float32


@every_kind
@both_ways
def test_order_matters(kind: str, causal: bool) -> None:
    """Without positions a permutation of the keys would change nothing."""
    attention, x = attention_with(kind, causal=causal), rows([5])
    other = x.like(x.values[[2, 0, 3, 1, 4]])
    assert (attention(x).values[4] - attention(other).values[4]).abs().max() > 1e-3
    attention.relative = None
    same(attention(x).values[4], attention(other).values[4])


@every_kind
@both_ways
def test_captured_weights_times_values_are_the_output(kind: str, causal: bool) -> None:
    """With `V = I` and `W_O = I` a head's part of the output is its weights times what it read."""
    attention, x = attention_with(kind, causal=causal), rows(LENGTHS)
    with torch.no_grad():
        for linear in (attention.inputs, attention.output):  # of the first, values are the last third
            linear.weight[-D_MODEL:] = torch.eye(D_MODEL)
            linear.bias[-D_MODEL:] = 0
    plain = attention(x).values
    with capture(attention) as trace:
        output = attention(x).values
    assert torch.equal(plain, output)
    for row, (values, found) in enumerate(zip(x.values.split(LENGTHS), output.split(LENGTHS), strict=True)):
        n = len(values)
        weights = trace.weights("", row).double()
        assert weights[:, n:].eq(0).all()
        assert weights[..., n:].eq(0).all()
        weights = weights[:, :n, :n]  # (heads, target, source)
        same(weights.sum(-1), torch.ones(HEADS, n, dtype=torch.float64), 1e-6)
        read = values.view(n, 1, HEADS, D_HEAD).transpose(0, 1).expand(n, n, HEADS, D_HEAD)  # (target, source, …)
        if isinstance(attention.relative, Shaw):
            read = read + attention.relative.values(distances(n, n, values.device)).unsqueeze(2)
        same(torch.einsum("hts,tshd->thd", weights, read).flatten(1), found, 1e-6)


@every_kind
@both_ways
def test_a_batch_of_one_equals_a_batch_of_many(kind: str, causal: bool) -> None:
    attention, x = attention_with(kind, causal=causal), rows(LENGTHS)
    together = attention(x).values.split(LENGTHS)
    for values, expected in zip(x.values.split(LENGTHS), together, strict=True):
        alone = Ragged.from_lengths(values, [len(values)])
        same(attention(alone, alone).values, expected)


@every_kind
@both_ways
@pytest.mark.parametrize("lengths", [[0, 3], [0, 0]], ids=["one-empty", "all-empty"])
def test_empty_rows_leave_outputs_and_gradients_finite(kind: str, causal: bool, lengths: list[int]) -> None:
    attention, x = attention_with(kind, causal=causal), rows(lengths)
    output = attention(x).values
    assert output.shape == (sum(lengths), D_MODEL)
    assert output.isfinite().all()
    for gradient in torch.autograd.grad(output.sum(), list(attention.parameters()), allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


@every_kind_and_none
@both_ways
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_on_a_cpu_is_computed_in_full(kind: str | None, causal: bool, autocast: bool) -> None:
    relative = make(kind, causal=causal)
    q, k, v = (
        Ragged.from_lengths(vectors(7, HEADS, D_HEAD, seed=seed).to(torch.bfloat16), [3, 4]) for seed in (3, 4, 5)
    )
    expected = attend(*(x.like(x.values.float()) for x in (q, k, v)), causal=causal, relative=relative).values
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = attend(q, k, v, causal=causal, relative=relative).values
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected.to(torch.bfloat16))


# Causal attention after a past


def left_padded(x: Ragged) -> tuple[Tensor, Tensor]:
    """Rows that end together, `(rows, longest, d_model)`, with noise before them, and where they are real."""
    padded = 9 * vectors(len(x), x.longest, D_MODEL, seed=8)
    mask = torch.arange(x.longest) >= x.longest - x.lengths[:, None]
    padded[mask] = x.values
    return padded, mask


CHUNKS = [[9], [1] * 9, [4, 1, 4], [2, 7]]


def empty_state(rows: int, *, fixed: int = 0) -> TransformerState:
    """Of one block, in float64; with `fixed`, of so many slots."""
    state = TransformerState((torch.zeros(rows, 0, 2, HEADS, D_HEAD, dtype=torch.float64),), (), None, 0)
    return cloned(state.fixed(fixed)) if fixed else state


def in_chunks(look: Callable[[Tensor, Tensor, Slots], Tensor], chunks: list[Tensor], masks: list[Tensor | None],
              state: TransformerState) -> Tensor:  # fmt: skip
    """What `look` makes of chunks one after the other, with the cache that each leaves to the next."""
    outputs = []
    with torch.no_grad():
        for chunk, real in zip(chunks, masks, strict=True):
            state, slots = state.ready(chunk.shape[1], real)
            outputs.append(look(chunk, state.caches[0], slots))
            state = replace(state, at=state.at + chunk.shape[1])
    return torch.cat(outputs, dim=1)


@every_kind_and_none
@pytest.mark.parametrize("fixed", [0, 9, 12])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_attention_in_chunks_equals_the_whole_with_padding_on_the_left(
    kind: str | None, chunks: list[int], fixed: int
) -> None:
    attention, x = attention_with(kind, causal=True), rows(LENGTHS)
    padded, mask = left_padded(x)
    masks: list[Tensor | None] = list(mask.split(chunks, dim=1))
    whole = in_chunks(
        attention.cached_self_attention, list(padded.split(chunks, dim=1)), masks, empty_state(len(x), fixed=fixed)
    )
    same(whole[mask], attention(x).values)
    assert whole[~mask].shape[0] > 0
    same(whole[~mask], attention.output.bias.expand_as(whole[~mask]))  # padding attends nowhere, to zeros


@every_kind_and_none
@pytest.mark.parametrize("fixed", [0, 9, 12])
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_attention_in_chunks_needs_no_mask_where_all_is_real(kind: str | None, chunks: list[int], fixed: int) -> None:
    attention, x = attention_with(kind, causal=True), rows([9, 9])
    found = in_chunks(
        attention.cached_self_attention,
        list(x.padded().split(chunks, dim=1)),
        [None] * len(chunks),
        empty_state(2, fixed=fixed),
    )
    same(found.flatten(0, 1), attention(x).values)


@every_kind_and_none
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_a_decoder_alone_in_chunks_equals_the_whole(kind: str | None, chunks: list[int]) -> None:
    block, x = decoder_block(kind, cross=False), rows(LENGTHS)
    assert not hasattr(block, "cross_attention")
    assert not hasattr(block, "around_cross")
    padded, mask = left_padded(x)
    masks: list[Tensor | None] = list(mask.split(chunks, dim=1))
    found = in_chunks(
        lambda chunk, cache, slots: block.step(chunk, cache, slots, None, None), list(padded.split(chunks, dim=1)),
        masks, empty_state(len(x)),
    )  # fmt: skip
    same(found[mask], run_blocks([block], x, None).values, 1e-10)


@every_kind_and_none
def test_a_decoder_block_steps_over_a_source_as_it_reads_the_whole(kind: str | None) -> None:
    """Two rows a source; the relative positions are the target's alone."""
    block, x, memory = decoder_block(kind, cross=True), rows([4, 4, 4, 4]), rows([2, 5], seed=4)
    assert block.cross_attention.relative is None
    twice = Ragged.from_lengths(
        torch.cat([row for row in memory.values.split([2, 5]) for _ in range(2)]), [2, 2, 5, 5]
    )  # fmt: skip
    source = memory.like(block.cross_attention.keys_values(memory.values)).padded()
    found = in_chunks(
        lambda chunk, cache, slots: block.step(chunk, cache, slots, source, memory.mask[:, None, None, :]),
        list(x.padded().split(1, dim=1)), [None] * 4, empty_state(4),
    )  # fmt: skip
    same(found.flatten(0, 1), run_blocks([block], x, twice).values, 1e-10)


# Blocks


@every_kind
def test_blocks_with_a_relative_position_a_gate_and_root_mean_square_norms(kind: str) -> None:
    def expected(w: dict[str, Array], xs: list[Array], first: str, *, causal: bool) -> list[Array]:
        n1, n2 = eq.under(w, f"{first}.norm"), eq.under(w, "around_feed_forward.norm")
        normed = [eq.rms_norm(n1, x) for x in xs]
        looks = eq.relative_attention(
            kind, eq.under(w, "self_attention"), HEADS, normed, causal=causal, buckets=BUCKETS, longest=DISTANCE,
            clip=CLIP,
        )  # fmt: skip
        xs = [x + y for x, y in zip(xs, looks, strict=True)]
        return [x + eq.gated_feed_forward(eq.under(w, "feed_forward"), eq.rms_norm(n2, x), "silu") for x in xs]

    encoder = EncoderBlock(
        D_MODEL, HEADS, 10, norm="pre", activation="silu", dropout=0.1, normalize="rms", gated=True,
        relative=make(kind, causal=False),
    )  # fmt: skip
    w, decoder, x = randomised(encoder), decoder_block(kind, cross=False), rows(LENGTHS)
    tolerance = 1e-5 if kind in ("rotary", "xl") else 1e-10
    read = [y for row in lists(x) for y in expected(dict(w), row, "around_attention", causal=False)]
    agree(run_blocks([encoder], x).values, read, tolerance)
    written = [y for row in lists(x) for y in expected(weights_of(decoder), row, "around_self", causal=True)]
    agree(run_blocks([decoder], x, None).values, written, tolerance)


@every_kind
@both_ways
def test_a_gradient_reaches_every_parameter_of_a_stack(kind: str, causal: bool) -> None:
    shared = make(kind, causal=causal)
    blocks: list[EncoderBlock | DecoderBlock] = []
    for _ in range(2):
        relative = shared if kind == "t5" else make(kind, causal=causal)
        if causal:
            blocks.append(
                DecoderBlock(
                    D_MODEL, HEADS, 10, norm="post", activation="gelu", dropout=0.0, relative=relative, cross=False
                )
            )
        else:
            blocks.append(
                EncoderBlock(D_MODEL, HEADS, 10, norm="post", activation="gelu", dropout=0.0, relative=relative)
            )
    stack = nn.ModuleList(blocks)
    randomised(stack)
    x = run_blocks(blocks, rows(LENGTHS), *([None] if causal else []))
    parameters = dict(stack.named_parameters())
    learned = {"rotary": 0, "alibi": 0, "t5": 1, "shaw": 4, "xl": 6}[kind]
    assert sum("relative" in name for name in parameters) == learned
    gradients = torch.autograd.grad(x.values.pow(3).sum(), list(parameters.values()))
    for name, gradient in zip(parameters, gradients, strict=True):
        # a constant added to all keys moves no weight, unless it is turned
        assert gradient.abs().max() > 1e-9 or name.endswith("key.bias"), name


def test_root_mean_square_norm() -> None:
    x = 3 + 5 * vectors(5, D_MODEL)
    norm, around = make_norm("rms", D_MODEL), Residual(D_MODEL, "post", dropout=0.1, normalize="rms")
    w = randomised(norm)
    agree(norm(x), [eq.rms_norm(w, row) for row in x.numpy()])
    agree(norm(x / 1000), [eq.rms_norm(w, row / 1000) for row in x.numpy()])  # where 1e-5 counts
    w = eq.under(randomised(around), "norm")
    agree(around(x, torch.tanh), [eq.rms_norm(w, row + np.tanh(row)) for row in x.numpy()])
    w = randomised(plain := make_norm("layer", D_MODEL))
    agree(plain(x), [eq.layer_norm(w, row) for row in x.numpy()])


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_gated_feed_forward(activation: str) -> None:
    layer = FeedForward(D_MODEL, 10, activation, dropout=0.1, gated=True)
    w, x = randomised(layer), vectors(5, D_MODEL)
    assert set(w) == {"inner.weight", "outer.weight", "gate.weight"}
    agree(layer(x), [eq.gated_feed_forward(w, row, activation) for row in x.numpy()])


# Heads over the states of a recurrent encoder


@pytest.mark.parametrize("score", [kind for kind in SCORES if not SCORES[kind].looks_back])
@pytest.mark.parametrize("heads", [1, 3])
def test_heads_over_states(score: str, heads: int) -> None:
    attention = Attention(SCORES[score](D_MODEL // heads), heads, D_MODEL)
    w = randomised(attention)
    queries, states = vectors(3, 2, D_MODEL), vectors(3, 4, D_MODEL, seed=3)
    lengths = [4, 2, 0]
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    values = attention.values(states)
    assert values.shape == (3, heads, 4, D_MODEL // heads)
    with capture(attention) as trace:
        contexts, _ = attention(queries, attention.keys(states), values, mask, torch.tensor([5, 7, 9]))
    for row, target in product(range(3), range(2)):
        seen = [h.numpy() for h in states[row, : lengths[row]]]
        alphas, joined = eq.heads_over_states(score, w, heads, queries[row, target].numpy(), seen)
        agree(contexts[row, target], list(joined))
        for head in range(heads):
            found = trace.weights("", [5, 7, 9][row])[head, target]
            agree(found, [np.array(a) for a in [*alphas[head], *[0.0] * (4 - lengths[row])]], 1e-6)
    gradients = torch.autograd.grad(contexts.square().sum(), list(attention.parameters()), allow_unused=True)
    for (name, _), gradient in zip(attention.named_parameters(), gradients, strict=True):
        assert gradient is not None, name
        assert gradient.abs().max() > 1e-9, name


def test_without_heads_the_states_are_the_values() -> None:
    attention = Attention(SCORES["additive"](D_MODEL))
    states = vectors(3, 4, D_MODEL, seed=3)
    assert torch.equal(attention.values(states), states.unsqueeze(1))
    assert [name for name, _ in attention.named_parameters() if not name.startswith("score")] == []


def test_one_head_differs_from_none_and_d_model_is_needed() -> None:
    queries, states = vectors(3, 2, D_MODEL), vectors(3, 4, D_MODEL, seed=3)
    mask, number = torch.ones(3, 4, dtype=torch.bool), torch.arange(3)
    none, one = Attention(SCORES["dot"](D_MODEL)), Attention(SCORES["dot"](D_MODEL), 1, D_MODEL)
    randomised(one)
    found = [a(queries, a.keys(states), a.values(states), mask, number)[0] for a in (none, one)]
    assert (found[0] - found[1]).abs().max() > 1e-3
    with pytest.raises(AssertionError, match="heads need a d_model"):
        Attention(SCORES["dot"](D_MODEL), 2)
    with pytest.raises(AssertionError, match=r"d_model \(12\) is not divisible by heads \(5\)"):
        Attention(SCORES["dot"](2), 5, D_MODEL)
