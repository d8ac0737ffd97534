"""The laws that every model keeps: every body over every stem, several sources, every decoder, score and place."""

from __future__ import annotations

import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.bundle import Bundle, Source
from regard.errors import ConfigError, DataError
from regard.models.build import build
from regard.models.model import EncoderDecoder
from regard.nn.attention import Attention, MultiHeadAttention, capture
from regard.nn.graphs import cloned
from regard.ragged import Ragged
from regard.training.checkpoint import load_tensors, save_tensors, set_weights, weights
from regard.training.losses import cross_entropy
from tests.conftest import (
    AUDIO_ENCODERS,
    D_MODEL,
    DECODER_KINDS,
    DECODERS,
    ENCODERS,
    FULL,
    HARD,
    IMAGE_ENCODERS,
    LONGEST,
    MORE_PAIRS,
    PAIRS,
    READ_AS_PUBLISHED,
    RELATIVE,
    SEVERAL,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    VIT,
    WORD_ENCODERS,
    Pair,
    batch_of,
    check_rows_alone,
    check_stepping,
    draw,
    each_of,
    elements,
    every_model,
    every_model_of_texts,
    fifth,
    read_by,
    rows_of,
    same,
    settings,
    sources,
    step,
    tiny,
    whole,
)

FEW = [
    ("rnn-uni", "rnn-last"),
    ("lstm-uni-reversed", "lstm-last"),
    ("gru-uni", "gru-every"),
    ("lstm-bi", "lstm-additive-feeding"),
    ("gru-bi", "gru-mlp-recurrence"),
    ("lstm-bi", "transformer-pre-learned"),
    ("transformer-pre-sinusoidal", "rnn-scaled_dot-output"),
    ("transformer-pre-sinusoidal", "transformer-pre-sinusoidal"),
    ("transformer-post-learned", "transformer-post-learned"),
    ("lstm-bi", "gru-scaled_dot-feeding-heads2"),
    ("transformer-shaw", "transformer-t5"),
    ("transformer-rotary", "transformer-alibi"),
]
OTHERS = [
    ("stem", "transformer-pre-sinusoidal"),
    ("image-gru-bi", "lstm-additive-recurrence"),
    ("image+text", "transformer-pre-learned"),
    ("shared-transformer", "gru-mlp-output"),
    ("audio-log_mel-gru", "gru-additive-output"),
]
SLOW = [
    ("audio-subsampling-conformer", "transformer-pre-sinusoidal"),
    ("audio-pyramid-stem", "lstm-location-recurrence"),
]
a_few_models, a_few_of_texts = each_of(FEW + OTHERS + SLOW if FULL else FEW[3::2] + OTHERS), each_of(FEW)


def attentions(model: nn.Module) -> set[str]:
    return {name for name, part in model.named_modules() if isinstance(part, Attention | MultiHeadAttention)}


def looks_back(name: str) -> bool:
    """Whether this is the target's attention to itself; all other looks at the source."""
    return name.startswith("decoder") and name.endswith("self_attention")


def encoded_lengths(model: EncoderDecoder, source: Source, name: str) -> list[int]:
    """How many vectors the encoder makes of each row, or, where this is the attention of one of several sources to
    itself, those that it makes of that source; of an encoder that all share, of all of them, source by source."""
    if not isinstance(source, Bundle) or not name.startswith("encoder.encoders"):
        return model.encode(source).states.lengths.tolist()
    encoders: list[nn.Module] = list(model.encoder.encoders)  # type: ignore[arg-type]
    own = [encode(part).states.lengths.tolist() for encode, part in zip(encoders, source.parts, strict=True)]
    shared = all(encode is encoders[0] for encode in encoders)
    return [length for lengths in own for length in lengths] if shared else own[int(name.split(".")[2])]


def test_the_models_under_test_are_all_there() -> None:
    assert {encoder for encoder, _ in PAIRS} == set(ENCODERS)
    assert {decoder for _, decoder in PAIRS} == set(DECODERS)
    assert len(ENCODERS) == 12 + 4 + 5 + 1 + 1
    assert len(DECODERS) == 6 + 54 + 9 + 2 + 3 + 5 + 3
    kind = {name: (part.get("place") or part.get("context") or "transformer") for name, part in DECODERS.items()}
    met = {(encoder, kind[decoder]) for encoder, decoder in PAIRS}
    assert met == {(encoder, k) for encoder in ENCODERS for k in set(kind.values())}
    more_encoders = {*IMAGE_ENCODERS, *AUDIO_ENCODERS, *WORD_ENCODERS, *SEVERAL, *READ_AS_PUBLISHED}
    assert {encoder for encoder, _ in MORE_PAIRS} == more_encoders
    assert len(IMAGE_ENCODERS) == len(ENCODERS) + len(VIT)
    for more in (IMAGE_ENCODERS, AUDIO_ENCODERS, SEVERAL):
        assert {kind[decoder] for encoder, decoder in MORE_PAIRS if encoder in more} == set(kind.values())
    fifths = [fifth(number) for number in range(5)]
    assert sorted(pair for pairs in fifths for pair in pairs) == sorted(PAIRS + MORE_PAIRS)
    for pairs in fifths:
        assert {encoder for encoder, _ in pairs} >= set(ENCODERS)
        assert len({encoder for encoder, _ in pairs} & set(SEVERAL)) >= 4
        assert {kind[decoder] for _, decoder in pairs} == set(kind.values())


@every_model
def test_stepping_equals_the_full_pass(pair: Pair) -> None:
    check_stepping(tiny(pair), *batch_of(pair[0]))


@every_model
@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
def test_stepping_equals_the_full_pass_in_a_beam(pair: Pair, fixed: bool) -> None:
    """Rows split, swap, die out and leave with their source; each stays what its own history makes it."""
    model, (source, _) = tiny(pair), batch_of(pair[0])
    generator, coin = torch.Generator().manual_seed(4), random.Random(6)
    state, numbers = model.start(source), list(range(len(source)))
    written: list[list[list[int]]] = [[[]] for _ in numbers]  # for each source still here, its rows
    state = cloned(state.fixed(5)) if fixed else state
    for length, width in enumerate([1, 3, 3, 2, 3]):
        leaving = length > 2
        stay = sorted(coin.sample(range(len(numbers)), len(numbers) - leaving))
        picked = [[coin.randrange(len(written[i])) for _ in range(width)] for i in stay]
        rows = [i * len(written[i]) + j for i, group in zip(stay, picked, strict=True) for j in group]
        written = [[written[i][j] for j in group] for i, group in zip(stay, picked, strict=True)]
        numbers = [numbers[i] for i in stay]
        state = state.select(torch.tensor(rows), torch.tensor(stay) if leaving else None)

        tokens = torch.randint(TARGET_VOCABULARY, (len(rows),), generator=generator)
        logits, state = step(model, tokens, state)
        new = iter(tokens.tolist())
        written = [[[*row, next(new)] for row in group] for group in written]
        histories = Ragged.of([row for group in written for row in group])
        full = model(source.select(torch.tensor(numbers).repeat_interleave(width)), histories)
        same(logits, full.last())
    assert numbers != list(range(len(numbers)))


@every_model
def test_a_batch_of_one_equals_a_batch_of_many(pair: Pair) -> None:
    check_rows_alone(tiny(pair), *batch_of(pair[0]))


@every_model
def test_permuting_the_rows_permutes_the_outputs(pair: Pair) -> None:
    model, (source, target) = tiny(pair), batch_of(pair[0])
    expected = rows_of(model(source, target))
    order = [3, 0, 4, 2, 1]
    permuted = model(source.select(torch.tensor(order)), target.select(torch.tensor(order)))
    for i, row in zip(order, rows_of(permuted), strict=True):
        same(row, expected[i])


@every_model
def test_capture_changes_no_output_and_finds_proper_weights(pair: Pair) -> None:
    model, (source, target) = tiny(pair), batch_of(pair[0])
    plain = model(source, target)
    with capture(model) as trace:
        captured = model(source, target)
    assert torch.equal(plain.values, captured.values)
    assert torch.equal(plain.values, model(source, target).values)
    assert set(trace.found) == attentions(model)
    target_lengths = target.lengths.tolist()
    for name, found in trace.found.items():
        source_lengths = encoded_lengths(model, source, name)
        queries = source_lengths if name.startswith("encoder") else target_lengths
        keys = target_lengths if looks_back(name) else source_lengths
        assert sorted(found) == list(range(len(queries)))
        for row, (wide, long) in enumerate(zip(queries, keys, strict=True)):
            matrix = trace.weights(name, row)[:, :wide]  # (heads, target, source)
            assert matrix.shape[1] == wide
            assert matrix.ge(0).all()
            assert matrix.le(1).all()
            assert matrix[..., long:].eq(0).all()
            same(matrix.sum(-1), torch.full(matrix.shape[:-1], float(long > 0)), 1e-6)
            if pair[1] in HARD and name == "decoder.attention":
                assert matrix.eq(0).logical_or(matrix.eq(1)).all()  # all of it on one place
            if looks_back(name):
                assert matrix.triu(1).eq(0).all()
            elif long > 1 and wide > 0:
                assert (
                    matrix.max() - matrix[..., :long].min() > 1e-5
                )  # it does choose: uniform weights differ by roundings alone, about 1e-8


@every_model
def test_capture_of_some_layers_changes_no_output_and_finds_the_same_weights_in_them_alone(pair: Pair) -> None:
    model, (source, target) = tiny(pair), batch_of(pair[0])
    plain = model(source, target)
    with capture(model) as whole:
        model(source, target)
    for wanted in ([], sorted(whole.found)[::2], sorted(whole.found)[-1:]):
        with capture(model, layers=wanted) as trace:
            captured = model(source, target)
        assert torch.equal(plain.values, captured.values)
        assert sorted(trace.found) == sorted(wanted)
        for name, found in trace.found.items():
            assert sorted(found) == sorted(whole.found[name])
            assert all(torch.equal(trace.weights(name, row), whole.weights(name, row)) for row in found)


def test_capture_of_a_layer_that_is_not_there_lists_those_that_are() -> None:
    model = tiny(PAIRS[-1])
    with capture(model) as whole:
        model(*batch_of(PAIRS[-1][0]))
    with pytest.raises(ConfigError) as error, capture(model, layers=["decoder.atention"]):
        pass
    assert str(error.value).startswith("no attention 'decoder.atention' in this model; there are: ")
    assert all(name in str(error.value) for name in whole.found)


@every_model_of_texts
@pytest.mark.parametrize("lengths", [[0, 3], [0, 0]], ids=["one-empty", "all-empty"])
def test_an_empty_source_yields_finite_outputs_weights_of_zero_and_finite_gradients(
    pair: Pair, lengths: list[int]
) -> None:
    model = tiny(pair)
    source, target = sources(pair[0], lengths, seed=6), draw([3, 4], TARGET_VOCABULARY, seed=7)
    with capture(model) as trace:
        logits = model(source, target).values
    assert logits.isfinite().all()
    for name in trace.found:
        if not looks_back(name):
            assert trace.weights(name, 0).eq(0).all()
    parameters = dict(model.named_parameters())
    for gradient in torch.autograd.grad(logits.square().sum(), list(parameters.values()), allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


@every_model
def test_a_target_token_changes_no_output_before_it(pair: Pair) -> None:
    model, source = tiny(pair), sources(pair[0], [3, 5], seed=8)
    lists = draw([6, 4], TARGET_VOCABULARY, seed=9).tolist()
    before = rows_of(model(source, Ragged.of(lists)))
    for t in (0, 2, 5):
        other = [list(lists[0]), lists[1]]
        other[0][t] = (other[0][t] + 1) % TARGET_VOCABULARY
        after = rows_of(model(source, Ragged.of(other)))
        same(after[0][:t], before[0][:t], 1e-12)
        same(after[1], before[1], 1e-12)
        assert (after[0][t] - before[0][t]).abs().max() > 1e-6


@every_model
def test_every_element_of_every_source_matters(pair: Pair) -> None:
    """Every token, every scanline of an image, every hop of a recording."""
    model, target = tiny(pair), draw([3], TARGET_VOCABULARY, seed=10)
    source = sources(pair[0], [3], seed=17)
    before = model(source, target).values
    parts = source.parts if isinstance(source, Bundle) else (source,)
    for number, part in enumerate(parts):
        assert len(part.values)
        for place in range(len(part.values)):
            values = part.values.clone()
            values[place] = 255 - values[place] if values.dim() > 1 else (values[place] + 1) % SOURCE_VOCABULARY
            other = (*parts[:number], part.like(values), *parts[number + 1 :])
            after = model(Bundle(other) if isinstance(source, Bundle) else other[0], target).values
            assert (after - before).abs().max() > 1e-6, (number, place)


@each_of(PAIRS if FULL else [pair for pair in fifth(1) if pair in PAIRS])
def test_the_order_and_number_of_source_tokens_matter(pair: Pair) -> None:
    model, target = tiny(pair), draw([3], TARGET_VOCABULARY, seed=10)
    before = model(Ragged.of([[1, 2, 3, 4]]), target).values
    # No mirror image: alibi counts distances alike both ways, so only the mark at the end tells it the direction.
    for other in ([4, 2, 3, 1], [1, 2, 3]):
        change = (model(Ragged.of([other]), target).values - before).abs().max()
        if pair[0] == "stem" and len(other) == 4:
            assert change < 1e-9  # vectors that nothing has read stand side by side in no order
        else:
            assert change > 1e-6, other


@pytest.mark.parametrize("name", [name for name in SEVERAL if name.startswith("joint")])
def test_a_joint_body_reads_the_vectors_of_all_sources(name: str) -> None:
    """Each with a vector for its source added; memory and summary are the body's own."""
    model, (source, _) = tiny((name, "gru-every")), batch_of(name)
    assert isinstance(source, Bundle)
    several: Any = model.encoder
    own = [encode(part).states for encode, part in zip(several.encoders, source.parts, strict=True)]
    rows = [
        torch.cat([rows_of(each)[row] + several.source_vectors[i] for i, each in enumerate(own)])
        for row in range(len(source))
    ]
    joined = Ragged.from_lengths(torch.cat(rows), [len(row) for row in rows])
    same(model.encode(source).states.values, several.joint(joined).states.values)
    same(model.encode(source).summary, several.joint(joined).summary)
    assert model.encode(source).carry is None


@pytest.mark.parametrize("name", [name for name in SEVERAL if not name.startswith("joint")])
def test_what_encoders_make_of_several_sources_stands_end_to_end(name: str) -> None:
    """In the order of the sources, row by row; the summary is the mean of theirs, the carry the first's."""
    model, (source, _) = tiny((name, "gru-every")), batch_of(name)
    assert isinstance(source, Bundle)
    encoders: list[nn.Module] = list(model.encoder.encoders)  # type: ignore[arg-type]
    assert len({id(encode) for encode in encoders}) == (1 if name.startswith("shared") else len(encoders))
    memory = model.encode(source)
    own = [encode(part) for encode, part in zip(encoders, source.parts, strict=True)]
    assert memory.states.longest == max(sum(lengths) for lengths in zip(*(x.states.lengths for x in own), strict=True))
    for row, states in enumerate(rows_of(memory.states)):
        same(states, torch.cat([rows_of(each.states)[row] for each in own]))
    same(memory.summary, sum(each.summary for each in own) / len(own))
    assert (memory.carry is None) == (own[0].carry is None)
    if memory.carry is not None:
        same(memory.carry, own[0].carry)
    if name.startswith("shared"):
        assert not [parameter for parameter, _ in model.named_parameters() if ".encoders.1." in parameter]


@every_model
def test_a_gradient_reaches_every_parameter(pair: Pair) -> None:
    model, (source, target) = tiny(pair), batch_of(pair[0])
    logits = model(source, target)
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(logits.values.square().sum(), list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, gradients, strict=True):
        if pair[1] in HARD and name.startswith("decoder.attention") and "value" not in name:
            assert gradient is None or gradient.eq(0).all(), name  # which place is likeliest does not move a little
            continue
        assert gradient is not None, name
        # A constant added to all keys moves no weight: softmax sees differences alone.
        assert gradient.abs().max() > 1e-9 or name.endswith("key.bias"), name


@every_model
def test_dropout_acts_on_both_sides_and_in_training_alone(pair: Pair) -> None:
    model, (source, target) = deepcopy(tiny(pair, dropout=0.5)), batch_of(pair[0])
    memory = model.encode(source)
    assert torch.equal(memory.states.values, model.encode(source).states.values)
    assert torch.equal(model.decoder(target, memory).values, model.decoder(target, memory).values)
    torch.manual_seed(1)
    model.train()
    assert not torch.equal(model.encode(source).states.values, model.encode(source).states.values)
    assert not torch.equal(model.encode(source).summary, model.encode(source).summary)
    assert not torch.equal(model.decoder(target, memory).values, model.decoder(target, memory).values)


def test_learned_positions_have_an_end_and_say_so() -> None:
    model = tiny(("lstm-uni", "transformer-pre-learned"))
    source, fits, long = (draw([n], SOURCE_VOCABULARY, seed=14) for n in (2, LONGEST, LONGEST + 1))
    assert model(source, fits).values.isfinite().all()
    with pytest.raises(DataError, match=f"a sequence of {LONGEST + 1} tokens is longer than the {LONGEST} learned"):
        model(source, long)
    assert tiny(("lstm-uni", "transformer-pre-sinusoidal"))(source, long).values.isfinite().all()


@a_few_models
def test_it_overfits_eight_examples(pair: Pair) -> None:
    torch.manual_seed(1)
    model = build(settings(pair, d_model=24, dropout=0.0), elements(pair[0]), TARGET_VOCABULARY, 8)
    source, target = sources(pair[0], [3, 4] * 4, seed=11), draw([4, 3] * 4, TARGET_VOCABULARY, seed=12)
    inputs = Ragged.of([[0, *tokens[:-1]] for tokens in target.tolist()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(120):
        loss = cross_entropy(model(source, inputs).values, target.values)
        if loss.item() / len(target.values) < 0.01:  # before another step, which may go too far
            break
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert loss.item() / len(target.values) < 0.05
    model.eval()
    assert torch.equal(model(source, inputs).values.argmax(-1), target.values)


@a_few_models
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_saved_and_loaded_weights_give_the_same_numbers(pair: Pair, tied: bool, tmp_path: Path) -> None:
    source, target = batch_of(pair[0])
    model, other = tiny(pair, tie_output=tied), deepcopy(tiny(pair, seed=20, tie_output=tied))
    expected = model(source, target).values
    assert not torch.equal(other(source, target).values, expected)
    save_tensors(tmp_path / "model.safetensors", weights(model))
    set_weights(other, load_tensors(tmp_path / "model.safetensors"), tmp_path)
    assert torch.equal(other(source, target).values, expected)


@a_few_of_texts
def test_tied_and_shared_embeddings_are_one_tensor(pair: Pair) -> None:
    size = 17  # no other weight has this shape
    for tied, shared in [(True, True), (True, False), (False, True), (False, False)]:
        model = build(settings(pair, tie_output=tied, share_embeddings=shared), size, size, 8)
        source, target = model.encoder.stem.embedding.table.weight, model.decoder.embedding.table.weight  # type: ignore[union-attr]
        assert isinstance(source, Tensor)
        assert isinstance(target, Tensor)
        assert (source is target) == shared
        assert (model.head.linear.weight is target) == tied
        tables = [name for name, weight in weights(model).items() if weight.shape == (size, D_MODEL)]
        assert len(tables) == 3 - tied - shared


@pytest.mark.parametrize("name", ["text+text", "text+image+text", "shared-lstm"])
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_several_sources_share_their_embedding_with_the_target_where_they_are_text(name: str, shared: bool) -> None:
    size = 17
    model = build(settings((name, "gru-every"), share_embeddings=shared), elements(name, size), size, 8)
    tables = [tensor for tensor in weights(model).values() if tensor.shape == (size, D_MODEL)]
    read = {n: module for n, module in model.named_modules() if n.startswith("encoder") and n.endswith("embedding")}
    texts = 1 if name.startswith("shared") else sum(encoder not in IMAGE_ENCODERS for encoder in read_by(name))
    assert len(tables) == (1 if shared else 1 + texts)
    assert all((module is model.decoder.embedding) == shared for module in read.values())  # type: ignore[union-attr]
    assert shared or len(read) == texts


def test_a_tied_table_learns_from_both_its_uses() -> None:
    """One step of descent on a tied model changes what is read and what is written alike."""
    torch.manual_seed(1)
    model = build(settings(FEW[3], tie_output=True, share_embeddings=True), 12, 12, 8)
    logits = model(draw([3], 12, seed=13), Ragged.of([[1, 2, 3]])).values
    F.cross_entropy(logits, torch.tensor([4, 5, 6])).backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    assert torch.equal(model.head.linear.weight, model.encoder.stem.embedding.table.weight)  # type: ignore[union-attr, arg-type]


@whole
@pytest.mark.parametrize("encoder", [name for name in ENCODERS if name not in RELATIVE])
def test_the_four_laws_hold_with_every_decoder_and_score(encoder: str) -> None:
    """The product beyond `PAIRS`. A copied state fits only an encoder of its own cell and depth.

    Positions inside attention, heads over states and hard attention change a part alone, and are left to `PAIRS`.
    """
    shape = ENCODERS[encoder]["kind"], ENCODERS[encoder].get("layers")
    for name, part in DECODERS.items():
        if part.get("bridge") == "copy" and shape != (part["kind"], part["layers"]):
            continue
        if name in {**RELATIVE, **DECODER_KINDS["heads"], **DECODER_KINDS["hard"]}:
            continue
        test_stepping_equals_the_full_pass((encoder, name))
        test_a_batch_of_one_equals_a_batch_of_many((encoder, name))
        test_capture_changes_no_output_and_finds_proper_weights((encoder, name))
        test_an_empty_source_yields_finite_outputs_weights_of_zero_and_finite_gradients((encoder, name), [0, 3])
