"""Edited attention: heads that are off, rows of weights that are given, in every model, at once and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.bundle import Source
from regard.errors import ConfigError
from regard.model_settings import ModelSettings
from regard.models.build import build
from regard.models.decoding import for_decoding
from regard.models.model import AutoregressiveModel, DecoderOnly, EncoderDecoder
from regard.nn.attention import MultiHeadAttention, capture
from regard.nn.edits import Edits, RowEdit, editable, edited
from regard.nn.rows import Grouping
from regard.ragged import Ragged
from tests.conftest import (
    ALL_TRANSFORMERS,
    D_MODEL,
    LONGEST,
    TARGET_VOCABULARY,
    Pair,
    batch_of,
    draw,
    each_of,
    every_model,
    redrawn,
    rows_of,
    tiny,
)

FEW = [
    ("lstm-bi", "lstm-additive-feeding"),
    ("gru-bi", "gru-location-recurrence"),
    ("lstm-bi", "rnn-mlp-output-heads1"),
    ("stem", "lstm-additive-recurrence-heads2"),
    ("gru-bi", "lstm-additive-feeding-hard"),
    ("transformer-shaw", "transformer-t5"),
    ("transformer-rotary", "transformer-shaw"),
    ("image+text", "transformer-xl"),
    ("audio-subsampling-conformer", "transformer-pre-learned"),
]  # fmt: skip
POSITION = 1
GIVEN = (0.5, 0.0, 2.0, 1.0, 0.0, 3.0)


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


def some_edits(model: Any, part: str = "") -> Edits:
    """In every attention whose name begins so: a row for its last head alone, one for all of them, and of several heads
    the first off."""
    names = {name: module.head_count for name, module in editable(model) if name.startswith(part)}
    rows = [RowEdit(name, heads - 1, POSITION, GIVEN) for name, heads in names.items()]
    rows += [RowEdit(name, None, POSITION + 1, GIVEN[::-1]) for name in names]
    return Edits(tuple((name, 0) for name, heads in names.items() if heads > 1), tuple(rows))


def stepped(model: AutoregressiveModel, source: Source, target: Ragged) -> list[list[Tensor]]:
    """Logits of each token of each row, a step at a time."""
    state = model.start(source)
    found: list[list[Tensor]] = [[] for _ in range(len(target))]
    for tokens in target.padded().T:
        output, state = model.decoder.step(tokens, state)
        for row, logits in zip(found, model.head(output), strict=True):
            row.append(logits)
    return found


def agree(steps: Sequence[Sequence[Tensor]], full: Ragged) -> None:
    for row, expected in zip(steps, rows_of(full), strict=True):
        same(torch.stack(list(row[: len(expected)])), expected)


@every_model
def test_without_edits_a_model_computes_the_same_bits(pair: Pair) -> None:
    model, (source, target) = tiny(pair), batch_of(pair[0])
    other = edited(model, Edits())
    assert other is not model
    assert torch.equal(other(source, target).values, model(source, target).values)
    for row, expected in zip(stepped(other, source, target), stepped(model, source, target), strict=True):
        assert torch.equal(torch.stack(row), torch.stack(expected))


@every_model
def test_stepping_equals_the_full_pass_with_edits(pair: Pair) -> None:
    model, (source, target) = tiny(pair), batch_of(pair[0])
    if not (edits := some_edits(model)):
        return
    other = edited(model, edits)
    full = other(source, target)
    agree(stepped(other, source, target), full)
    assert not torch.allclose(full.values, model(source, target).values)


@each_of(FEW)
def test_steps_in_a_beam_go_by_the_position_of_their_row(pair: Pair) -> None:
    """Rows swap and leave with their source; shapes may be fixed."""
    model, (source, _) = tiny(pair), batch_of(pair[0])
    other = edited(model, some_edits(model))
    sources = torch.tensor([0, 3, 4])
    state = other.start(source).fixed(6)
    state = state.select(torch.tensor([0, 0, 3, 3, 4, 4]), sources)
    written: list[list[int]] = [[] for _ in range(6)]
    order = [1, 0, 3, 3, 4, 5]
    for step in range(4):
        tokens = torch.arange(6) + step
        output, state = other.decoder.step(tokens, state)
        written = [[*row, token] for row, token in zip(written, tokens.tolist(), strict=True)]
        full = other(source.select(sources.repeat_interleave(2)), Ragged.of(written))
        same(other.head(output), full.last())
        state, written = state.select(torch.tensor(order)), [list(written[i]) for i in order]


@each_of(FEW)
@pytest.mark.parametrize("late", [1, 2], ids=["grouped", "alike"])
def test_searches_that_are_joined_keep_their_positions(pair: Pair, late: int) -> None:
    """One has written two tokens in two rows when the other, of one row or two, begins."""
    model, (source, _) = tiny(pair), batch_of(pair[0])
    other, sources = edited(model, some_edits(model)), torch.tensor([3, 4])
    state: Any = other.start(source.select(sources[:1])).select(torch.tensor([0, 0]))
    written = [[1, 2], [3, 4]]
    for both in zip(*written, strict=True):
        _, state = other.decoder.step(torch.tensor(both), state)
    second = other.start(source.select(sources[1:])).select(torch.tensor([0] * late))
    state = state.join([second], torch.arange(2 + late), torch.arange(2))
    state = state.grouped(Grouping.of([2, late], torch.device("cpu")))
    written += [[] for _ in range(late)]
    for step in range(3):
        tokens = torch.arange(2 + late) + step
        output, state = other.decoder.step(tokens, state)
        written = [[*row, token] for row, token in zip(written, tokens.tolist(), strict=True)]
        full = other(source.select(sources.repeat_interleave(torch.tensor([2, late]))), Ragged.of(written))
        same(other.head(output), full.last())


@each_of(FEW)
def test_a_row_of_the_decoder_changes_only_what_comes_then_and_after(pair: Pair) -> None:
    model, (source, target) = tiny(pair), batch_of(pair[0])
    other = edited(model, replace(some_edits(model, "decoder"), heads_off=()))
    before = rows_of(model(source, target))
    for row, (found, expected) in enumerate(zip(rows_of(other(source, target)), before, strict=True)):
        same(found[:POSITION], expected[:POSITION])
        if len(found) > POSITION and len(rows_of(model.encode(source).states)[row]) > 2:
            assert not torch.allclose(found[POSITION], expected[POSITION])


@each_of(FEW)
def test_capture_finds_the_weights_as_they_are_edited(pair: Pair) -> None:
    model, (source, target) = tiny(pair), batch_of(pair[0])
    source, target = (x.select(torch.tensor([4])) for x in (source, target))
    other = edited(model, some_edits(model))
    with capture(other) as trace:
        other(source, target)
    for name, module in editable(other):
        weights = trace.weights(name, 0)
        assert module.head_count == 1 or not weights[0].any()
        wanted = torch.tensor((*GIVEN, *[0.0] * weights.shape[-1])[: weights.shape[-1]])
        if getattr(module, "causal", False):
            wanted[POSITION + 1 :] = 0.0
        torch.testing.assert_close(weights[-1, POSITION], wanted / wanted.sum())


@each_of(FEW)
def test_weights_that_are_the_models_own_change_nothing(pair: Pair) -> None:
    model, (source, target) = tiny(pair), batch_of(pair[0])
    one = torch.tensor([4])
    source, target = source.select(one), target.select(one)
    with capture(model) as trace:
        expected = model(source, target).values
    rows = []
    for name, module in editable(model):
        for head in range(module.head_count):
            weights = trace.weights(name, 0)[head]
            rows += [RowEdit(name, head, at, tuple(row.tolist())) for at, row in enumerate(weights) if row.sum()]
    torch.testing.assert_close(
        edited(model, Edits(rows=tuple(rows)))(source, target).values, expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("positions", ["transformer-pre-learned", "transformer-shaw", "transformer-rotary"])
def test_with_all_heads_off_a_sublayer_adds_its_bias_alone(positions: str) -> None:
    model, (source, target) = tiny((positions, positions)), batch_of(positions)
    name = "decoder.blocks.1.cross_attention"
    other = edited(model, Edits(tuple((name, head) for head in range(2))))
    found: list[Tensor] = []
    attention = other.get_submodule(name)
    assert isinstance(attention, MultiHeadAttention)
    attention.register_forward_hook(lambda module, given, output: found.append(output.values))
    other(source, target)
    assert torch.equal(found[0], attention.output.bias.expand_as(found[0]))
    state: Any = other.start(source)
    _, slots = state.ready(1)
    x = torch.ones(len(source), 1, D_MODEL, dtype=torch.float64)
    stepped = attention.cached_cross_attention(x, state.source[1], state.mask, slots)
    assert torch.equal(stepped, attention.output.bias.expand_as(stepped))


@pytest.mark.parametrize("name", ALL_TRANSFORMERS)
def test_a_decoder_alone_goes_by_the_positions_of_each_row(name: str) -> None:
    """Sources of different lengths stand flush right in one cache."""
    parts = {"d_model": D_MODEL, "encoder": {"kind": "none"}, "decoder": ALL_TRANSFORMERS[name]}
    made = build(ModelSettings.model_validate(parts), TARGET_VOCABULARY, TARGET_VOCABULARY, 3 * LONGEST)
    assert isinstance(made, DecoderOnly)
    model = redrawn(made)
    source, target = draw([3, 1, 0, 4], TARGET_VOCABULARY, 2), draw([3, 4, 4, 2], TARGET_VOCABULARY, 3)
    other = edited(model, some_edits(model))
    full = other(source, target)
    agree(stepped(other, source, target), full)
    assert not torch.allclose(full.values, model(source, target).values)


def test_weights_are_shared_and_the_model_stays_as_it_is() -> None:
    model: EncoderDecoder = deepcopy(tiny(FEW[0]))
    other = edited(model, some_edits(model))
    assert [x.data_ptr() for x in other.parameters()] == [x.data_ptr() for x in model.parameters()]
    assert all(module.edits is None for _, module in editable(model))
    with torch.no_grad():
        model.head.linear.bias.add_(1.0)
    source, target = batch_of(FEW[0][0])
    assert torch.equal(edited(model, some_edits(model))(source, target).values, other(source, target).values)
    again = edited(other, Edits())
    assert all((module.edits is not None) == (name == "decoder.attention") for name, module in editable(again))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_what_decodes_is_shared_by_all_that_are_edited(precision: str) -> None:
    model = deepcopy(tiny(("transformer-shaw", "transformer-pre-learned"), d_model=32)).float()
    copied, other = for_decoding(model, precision), edited(model, some_edits(model))
    decodes = for_decoding(other, precision)
    tensors = [{x.data_ptr() for x in (*each.parameters(), *each.buffers())} for each in (copied, decodes)]
    assert tensors[0] == tensors[1]
    assert for_decoding(model, precision) is copied
    assert all(module.edits is None for _, module in editable(copied))
    assert all(module.edits is not None for _, module in editable(decodes))
    source, target = batch_of("transformer-shaw")
    close = 1e-5 if precision == "float32" else 0.3
    for made, from_ in ((copied, model), (decodes, other)):
        steps = torch.stack([row[0] for row in stepped(made, source, target)]).float()
        expected = torch.stack([row[0] for row in rows_of(from_(source, target))])
        torch.testing.assert_close(steps, expected, atol=close, rtol=close)


def test_errors_name_what_there_is() -> None:
    model, name = tiny(("lstm-bi", "transformer-pre-learned")), "decoder.blocks.0.cross_attention"
    with pytest.raises(ConfigError, match=r"no attention 'decoder.x' to edit in this model; there are: decoder.blocks"):
        edited(model, Edits((("decoder.x", 0),)))
    with pytest.raises(ConfigError, match="it has no attention"):
        edited(tiny(("rnn-uni", "rnn-last")), Edits((("decoder.x", 0),)))
    with pytest.raises(ConfigError, match=rf"no head 2 in {name}; there are 2, counted from 0"):
        edited(model, Edits(((name, 2),)))
    with pytest.raises(ConfigError, match="no head 5"):
        edited(model, Edits(rows=(RowEdit(name, 5, 0, (1.0,)),)))
    for weights, said in (((0.0, 0.0), "all 0"), ((-1.0,), "0 or more"), ((float("nan"),), "0 or more"), ((), "all 0")):
        with pytest.raises(ConfigError, match=said):
            RowEdit(name, None, 3, weights)
    for position in (-1, 2**40):
        with pytest.raises(ConfigError, match=f"no position {position}"):
            RowEdit(name, None, position, (1.0,))


def test_weights_of_any_size_are_shares() -> None:
    model, (source, target) = tiny(("lstm-bi", "transformer-pre-learned")), batch_of("lstm-bi")
    name = "decoder.blocks.0.cross_attention"
    found = []
    for size in (1.0, 1e300, 1e-300):
        with capture(made := edited(model, Edits(rows=(RowEdit(name, None, 0, (size, 3 * size)),)))) as trace:
            made(source, target)
        found.append(trace.weights(name, 3)[:, 0, :2])
    for weights in found:
        torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75]] * 2))
