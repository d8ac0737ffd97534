"""Decoders alone, masked language models, images, shared layers, presets, and what settings refuse."""

from __future__ import annotations

import math
import random
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.bundle import Bundle
from regard.config import parse
from regard.data.sides import Sides
from regard.errors import ConfigError, DataError
from regard.loading import elements
from regard.model_settings import ModelSettings
from regard.models.build import build, count_parameters
from regard.models.electra import ReplacedTokenModel
from regard.models.encoders import StemEncoder
from regard.models.model import (
    DecoderOnly,
    EncoderDecoder,
    EncoderWithHead,
    MaskedLanguageModel,
)
from regard.models.stems import ConvolutionStem
from regard.nn.attention import capture
from regard.presets import PRESETS
from regard.ragged import Ragged
from regard.training.checkpoint import load_tensors, save_tensors, set_weights, weights
from tests import equations as eq
from tests.conftest import (
    ALL_TRANSFORMERS,
    AUDIO_ENCODERS,
    CELLS,
    CONVOLUTION,
    D_MODEL,
    DECODER_KINDS,
    ENCODERS,
    SEVERAL,
    VIT,
    Part,
    check_rows_alone,
    check_stepping,
    draw,
    images,
    redrawn,
    rows_of,
    same,
    settings,
    step,
)
from tests.conftest import elements as elements_of
from tests.equations import Array, Weights
from tests.test_equations import agree
from tests.test_laws import attentions

VOCABULARY, ROOM = 13, 24
AWD_LSTMS: dict[str, Part] = {
    "awd-lstm": {"kind": "awd_lstm", "layers": 3, "hidden": 10},
    "awd-lstm-mogrified": {"kind": "awd_lstm", "layers": 2, "hidden": 10, "project": True, "rounds": 5, "rank": 3},
    "awd-lstm-mogrified-full": {"kind": "awd_lstm", "layers": 1, "rounds": 2},
}
NETWORKS: dict[str, Part] = (
    {cell: {"kind": cell, "layers": 2} for cell in CELLS} | AWD_LSTMS | ALL_TRANSFORMERS
)  # fmt: skip
every_network = pytest.mark.parametrize("name", NETWORKS)


def made(seed: int = 1, **model: Any) -> nn.Module:
    """A small model in float64 with these settings."""
    plain = ModelSettings.model_validate({"d_model": D_MODEL, **model})
    return redrawn(build(plain, VOCABULARY, VOCABULARY, ROOM), seed)


@cache
def network(name: str) -> DecoderOnly:
    """A decoder alone."""
    model = made(encoder={"kind": "none"}, decoder=NETWORKS[name])
    assert isinstance(model, DecoderOnly)
    return model


def texts() -> tuple[Ragged, Ragged]:
    """Sources of mixed lengths, one of them empty, and targets."""
    return draw([3, 1, 0, 6, 4], VOCABULARY, seed=2), draw([4, 2, 3, 1, 5], VOCABULARY, seed=3)


def nothing(rows: int) -> Ragged:
    return Ragged.of([[] for _ in range(rows)])


def arrays(module: nn.Module) -> Weights:
    """Weights by name; what several blocks share has a name in each."""
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters(remove_duplicate=False)}


# A decoder alone


@every_network
def test_a_network_steps_as_it_reads_the_whole(name: str) -> None:
    check_stepping(network(name), *texts())


@every_network
def test_a_network_treats_each_row_alone(name: str) -> None:
    check_rows_alone(network(name), *texts())


@every_network
def test_source_and_target_are_one_text(name: str) -> None:
    """What is said of the target is what a language model says of it after the source; without one, of it alone."""
    model, (source, target) = network(name), texts()
    found = rows_of(model(source, target))
    joined = [x + y for x, y in zip(source.tolist(), target.tolist(), strict=True)]
    whole = rows_of(model(nothing(len(joined)), Ragged.of(joined)))
    for row, x in enumerate(source.tolist()):
        same(found[row], whole[row][len(x) :])
    alone = model(nothing(len(target)), target)
    assert torch.equal(alone.values, model.head(model.decoder(target, None).values))
    same(rows_of(alone)[2], found[2])  # its source is empty
    assert (rows_of(alone)[0] - found[0]).abs().max() > 1e-3


@every_network
def test_a_network_follows_the_equations(name: str) -> None:
    """Source and target end to end, through the cells or blocks, to the output layer."""
    model, part, (source, target) = network(name), NETWORKS[name], texts()
    w = arrays(model)
    table = w["decoder.embedding.table.weight"]
    expected: list[Array] = []
    for x, y in zip(source.tolist(), target.tolist(), strict=True):
        xs = [math.sqrt(D_MODEL) * table[token] for token in [*x, *y]]
        if part["kind"] == "awd_lstm":
            xs = eq.awd_lstm(eq.under(w, "decoder"), [table[token] for token in [*x, *y]], part["layers"])
        elif part["kind"] in CELLS:
            for i in range(part["layers"]):
                xs, _ = eq.read(part["kind"], eq.under(w, f"decoder.recurrence.layers.{i}"), xs, D_MODEL)
        else:
            xs = transformer_alone(w, part, xs)
        expected += [table @ v + w["head.linear.bias"] for v in xs[len(x) :]]
    # frequencies are made in float32
    tolerance = 1e-5 if part.get("positions") in ("sinusoidal", "rotary", "xl") else 1e-10
    agree(model(source, target).values, expected, tolerance)


def transformer_alone(w: Weights, part: Part, xs: list[Array]) -> list[Array]:
    match part["positions"]:
        case "learned":
            xs = [x + w["decoder.positions.table.weight"][t] for t, x in enumerate(xs)]
        case "sinusoidal":
            angles = [[t / 10000 ** (2 * i / D_MODEL) for i in range(D_MODEL // 2)] for t in range(len(xs))]
            waves = [np.array([wave(a) for a in angle for wave in (math.sin, math.cos)]) for angle in angles]
            xs = [x + wave for x, wave in zip(xs, waves, strict=True)]
    options = {key: value for key, value in part.items() if key not in ("kind", "layers", "d_ff")}
    for i in range(part["layers"]):
        xs = eq.block_alone(eq.under(w, f"decoder.blocks.{i}"), xs, **options)
    norm = eq.rms_norm if part.get("normalize") == "rms" else eq.layer_norm
    return [norm(eq.under(w, "decoder.final"), x) for x in xs] if part["norm"] == "pre" else xs


@every_network
@pytest.mark.parametrize("cuts", [[2], [0, 1, 3], [1, 2, 3, 4]], ids=str)
def test_reading_in_parts_equals_reading_at_once(name: str, cuts: list[int]) -> None:
    """Rows end in different parts, and some have nothing of a part; then all go on a step at a time."""
    model, (source, target) = network(name), texts()
    lists = source.tolist()
    whole, end = model.read(source, model.decoder.alone(len(lists)))
    assert torch.equal(model.encode(source).states.values, model.decoder(source, None).values)
    same(model.encode(source).states.values, whole.values)
    same(model.encode(source).summary, whole.last())
    state = model.decoder.alone(len(lists))
    parts: list[list[Tensor]] = []
    for start, stop in zip([0, *cuts], [*cuts, 99], strict=True):
        outputs, state = model.read(Ragged.of([row[start:stop] for row in lists]), state)
        parts.append(rows_of(outputs))
    for row, expected in enumerate(rows_of(whole)):
        same(torch.cat([part[row] for part in parts]), expected)
    for tokens in target.padded().T[:3]:
        found, state = step(model, tokens, state)
        logits, end = step(model, tokens, end)
        same(found, logits)


@every_network
def test_reading_on_after_steps_equals_the_full_pass(name: str) -> None:
    """A prompt, two steps, more text of different lengths, a step."""
    model, (source, target) = network(name), texts()
    state, written = model.start(source), source.tolist()
    for tokens in (torch.tensor([1, 2, 3, 4, 5]), torch.tensor([6, 7, 8, 9, 0])):
        _, state = step(model, tokens, state)
        written = [[*row, token] for row, token in zip(written, tokens.tolist(), strict=True)]
    outputs, state = model.read(target, state)
    written = [row + more for row, more in zip(written, target.tolist(), strict=True)]
    logits, _ = step(model, torch.tensor([3, 1, 4, 1, 5]), state)
    full = rows_of(model.decoder(Ragged.of([[*row, n] for row, n in zip(written, (3, 1, 4, 1, 5), strict=True)]), None))
    for row, values in enumerate(rows_of(outputs)):
        same(values, full[row][-1 - len(values) : -1])
        same(logits[row], model.head(full[row][-1]))


@every_network
def test_selected_rows_keep_their_own_history(name: str) -> None:
    """As in a beam: rows split, swap, die out and leave with their source."""
    model, (source, _) = network(name), texts()
    coin = random.Random(5)
    state, written = model.start(source), source.tolist()
    for rows, sources in (([0, 0, 1, 1, 2, 2, 3, 3, 4, 4], None), ([1, 0, 2, 2, 9, 8], [0, 1, 4]), ([5, 4], [2])):
        state = state.select(torch.tensor(rows), None if sources is None else torch.tensor(sources))
        tokens = [coin.randrange(VOCABULARY) for _ in rows]
        logits, state = step(model, torch.tensor(tokens), state)
        written = [[*written[row], token] for row, token in zip(rows, tokens, strict=True)]
        same(logits, model.head(model.decoder(Ragged.of(written), None).last()))


@every_network
def test_a_network_does_not_look_ahead(name: str) -> None:
    model, source = network(name), draw([3, 5], VOCABULARY, seed=8)
    lists = draw([6, 4], VOCABULARY, seed=9).tolist()
    before = rows_of(model(source, Ragged.of(lists)))
    for t in (0, 2, 5):
        other = [list(lists[0]), lists[1]]
        other[0][t] = (other[0][t] + 1) % VOCABULARY
        after = rows_of(model(source, Ragged.of(other)))
        same(after[0][:t], before[0][:t], 1e-12)
        same(after[1], before[1], 1e-12)
        assert (after[0][t] - before[0][t]).abs().max() > 1e-6
    for place in range(3):  # all of the source is seen
        changed = source.tolist()
        changed[0][place] = (changed[0][place] + 1) % VOCABULARY
        after = rows_of(model(Ragged.of(changed), Ragged.of(lists)))
        assert (after[0][0] - before[0][0]).abs().max() > 1e-6
        same(after[1], before[1], 1e-12)


@every_network
def test_capture_changes_nothing_in_a_network_and_gradients_reach_all_of_it(name: str) -> None:
    model, (source, target) = network(name), texts()
    plain = model(source, target)
    with capture(model) as trace:
        captured = model(source, target)
    assert torch.equal(plain.values, captured.values)
    assert set(trace.found) == attentions(model)
    for found in trace.found:
        for row, long in enumerate((source.lengths + target.lengths).tolist()):
            matrix = trace.weights(found, row)[:, :long]  # of the whole text to itself
            assert matrix[..., long:].eq(0).all()
            assert matrix.triu(1).eq(0).all()
            same(matrix.sum(-1), torch.ones(matrix.shape[:-1]), 1e-6)
    parameters = dict(model.named_parameters())
    assert not [parameter for parameter in parameters if "cross" in parameter or "bridge" in parameter]
    gradients = torch.autograd.grad(plain.values.square().sum(), list(parameters.values()))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert gradient.abs().max() > 1e-9 or parameter.endswith("key.bias"), parameter


def test_learned_positions_end_for_source_and_target_together() -> None:
    model = network("transformer-pre-learned")
    fits, long = draw([ROOM - 2], VOCABULARY, seed=1), draw([ROOM - 1], VOCABULARY, seed=1)
    assert model(fits, Ragged.of([[1, 2]])).values.isfinite().all()
    with pytest.raises(DataError, match=f"a sequence of {ROOM + 1} tokens is longer than the {ROOM} learned"):
        model(long, Ragged.of([[1, 2]]))  # a step cannot tell: where rows are, only the device knows


# An encoder alone

TWO_SIDED = ["rnn-bi", "lstm-bi", "gru-bi-reversed", *ALL_TRANSFORMERS]


@cache
def fill_in(name: str) -> MaskedLanguageModel:
    model = made(encoder=ENCODERS[name], decoder={"kind": "none"})
    assert isinstance(model, MaskedLanguageModel)
    return model


@pytest.mark.parametrize("name", TWO_SIDED)
def test_masked_tokens_are_predicted_from_the_states_at_their_places(name: str) -> None:
    """`softmax(E norm(gelu(W h_t)) + b)`, `E` the embedding; places in any order, some twice, none in one row."""
    model, source = fill_in(name), draw([3, 1, 5, 4], VOCABULARY, seed=2)
    places = [[2, 0], [0], [4, 1, 1], []]
    w = arrays(model)
    table = w["encoder.stem.embedding.table.weight"]
    assert model.head.linear.weight is model.encoder.stem.embedding.table.weight  # type: ignore[union-attr]
    states = rows_of(model.encode(source).states)
    expected = []
    for row, where in enumerate(places):
        for place in where:
            h = states[row][place].detach().numpy()
            inner = eq.layer_norm(eq.under(w, "norm"), eq.activate("gelu", eq.affine(w, "transform", h)))
            expected.append(table @ inner + w["head.linear.bias"])
    found = model(source, Ragged.of(places))
    agree(found.values, expected, 1e-10)
    assert found.lengths.tolist() == [2, 1, 3, 0]
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(found.values.square().sum(), list(parameters.values()))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert gradient.abs().max() > 1e-9 or parameter.endswith("key.bias"), parameter


@pytest.mark.parametrize("name", TWO_SIDED)
def test_a_masked_token_is_predicted_from_both_sides(name: str) -> None:
    model, tokens = fill_in(name), [[1, 2, 3, 4, 5], [6, 7, 8]]
    places = Ragged.of([[2], [1]])
    before = model(Ragged.of(tokens), places).values
    for t in (0, 1, 2, 3, 4):
        other = [list(tokens[0]), tokens[1]]
        other[0][t] = 9
        after = model(Ragged.of(other), places).values
        assert (after[0] - before[0]).abs().max() > 1e-6, t
        same(after[1], before[1], 1e-12)
    same(model(Ragged.of(tokens[1:]), Ragged.of([[1]])).values[0], before[1])


# Images


def eye(**options: Any) -> StemEncoder:
    """Convolutions alone, under no body."""
    model = made(encoder={"kind": "stem", "stem": {**CONVOLUTION, **options}}, decoder={"kind": "gru"})
    assert isinstance(model, EncoderDecoder)
    assert isinstance(model.encoder, StemEncoder)
    assert isinstance(model.encoder.stem, ConvolutionStem)
    return model.encoder


@pytest.mark.parametrize(
    ("coordinates", "pooled"), [(False, False), (True, False), (False, True)], ids=["plain", "coordinates", "pooled"]
)
def test_convolutions_follow_their_definition(coordinates: bool, pooled: bool) -> None:
    encoder, source = eye(coordinates=coordinates, pooled=pooled), images(2, 8)
    w = arrays(encoder.stem)
    memory = encoder(source)
    assert memory.states.lengths.tolist() == [4, 4]
    assert memory.carry is None
    for row, picture in enumerate(source.values.numpy().reshape(2, 8, 8, 3)):
        x = np.moveaxis(picture / 127.5 - 1.0, -1, 0)
        if coordinates:
            line = np.array([-1 + 2 * i / 7 for i in range(8)])
            down, across = np.repeat(line[:, None], 8, 1), np.repeat(line[None], 8, 0)
            x = np.concatenate([x, down[None], across[None]])
        size = 4 if pooled else 3
        for i in (0, size):
            x = eq.convolve(eq.under(w, f"layers.{i}"), x, stride=1 if pooled else 2)
            x = np.maximum(eq.group_norm(eq.under(w, f"layers.{i + 1}"), x), 0.0)
            x = eq.pool(x) if pooled else x
        x = eq.convolve(eq.under(w, f"layers.{2 * size}"), x, stride=1)
        assert x.shape == (D_MODEL, 2, 2)
        cells = [eq.layer_norm(eq.under(w, "norm"), x[:, i, j]) for i in range(2) for j in range(2)]  # row by row
        agree(rows_of(memory.states)[row], cells, 1e-10)
        agree(memory.summary[row], [sum(cell[i] for cell in cells) / 4 for i in range(D_MODEL)], 1e-10)


@pytest.mark.parametrize(
    ("place", "cells"),
    [((0, 0), (0, 1, 8, 9)), ((0, 31), (6, 7, 14, 15)), ((31, 0), (48, 49, 56, 57)), ((31, 31), (54, 55, 62, 63))],
    ids=str,
)
def test_a_cell_sees_its_own_part_of_the_image(place: tuple[int, int], cells: tuple[int, ...]) -> None:
    """A pixel `p` reaches cell `i` of a side if `4 i - 7 <= p <= 4 i + 7`; norms over all of it are set aside."""
    encoder, source = deepcopy(eye()), images(1, 32)
    for i in (1, 4):
        encoder.stem.layers[i] = nn.Identity()  # type: ignore[operator, assignment]
    other = source.values.clone().view(32, 32, 3)
    other[place] = 255 - other[place]
    change = (encoder(source.like(other.view(32, -1))).states.values - encoder(source).states.values).abs().amax(1)
    found = set(change.nonzero().flatten().tolist())
    assert found <= set(cells)
    assert len(found) >= 2  # a rectifier may hide it from some
    assert min(found, key=lambda cell: -change[cell]) in cells


def test_images_are_seen_one_by_one_and_all_of_the_encoder_learns() -> None:
    encoder, source = eye(), images(3, 16)
    together = rows_of(encoder(source).states)
    for row in range(3):
        one = encoder(source.select(torch.tensor([row])))
        same(one.states.values, together[row])
    assert (together[0] - together[1]).abs().max() > 1e-3
    gradients = torch.autograd.grad(encoder(source).states.values.pow(3).sum(), list(encoder.parameters()))
    assert all(gradient.abs().max() > 1e-9 for gradient in gradients)


@pytest.mark.parametrize("kind", [kind for kind in DECODER_KINDS if kind != "copy"])
def test_any_decoder_attends_to_an_image(kind: str) -> None:
    part = list(DECODER_KINDS[kind].values())[-1]
    model = made(encoder={"kind": "stem", "stem": CONVOLUTION}, decoder=part)
    assert isinstance(model, EncoderDecoder)
    source, target = images(3, 8), draw([4, 2, 3], VOCABULARY, seed=3)
    with capture(model) as trace:
        full = rows_of(model(source, target))
    state = model.start(source)
    for t, tokens in enumerate(target.padded().T):
        logits, state = step(model, tokens, state)
        for row, expected in enumerate(full):
            if t < len(expected):
                same(logits[row], expected[t])
    for name in trace.found:
        if "self" not in name:
            assert trace.weights(name, 0).shape[-1] == 4
    before = torch.cat(full)
    assert (model(images(3, 8, seed=2), target).values - before).abs().max() > 1e-6


# Encoder and decoder of the same layers

SHARED: dict[str, tuple[Part, Part]] = {
    **{name: (part, part) for name, part in ALL_TRANSFORMERS.items()},
    **{
        f"{cell}-{way}": (
            {"kind": cell, "layers": 2, "bidirectional": False, "reverse": way == "last"},
            {"kind": cell, "layers": 2, **({"context": "last"} if way == "last" else {"place": "output"})},
        )
        for cell, way in zip(CELLS, ("last", "output", "last"), strict=True)
    },
}
every_shared = pytest.mark.parametrize("name", SHARED)


def sharing(name: str, *, share: bool = True, seed: int = 1) -> EncoderDecoder:
    model = made(seed, encoder=SHARED[name][0], decoder=SHARED[name][1], share_layers=share)
    assert isinstance(model, EncoderDecoder)
    return model


@every_shared
def test_shared_layers_are_the_same_tensors(name: str) -> None:
    model, apart = sharing(name), sharing(name, share=False)
    own = dict(model.encoder.named_parameters())
    # T5's table has rows of its own for what is ahead, so a row means another distance on either side.
    stays = [n for n in own if n.startswith("stem.") or n.endswith("relative.table.weight")]
    shared = {id(parameter) for n, parameter in own.items() if n not in stays}
    twins = {id(parameter) for parameter in model.decoder.parameters()}  # type: ignore[attr-defined]
    assert shared <= twins
    assert not {id(own[n]) for n in stays} & twins
    saved = sum(own[n].numel() for n in own if n not in stays)
    counts = [sum(parameter.numel() for parameter in m.parameters()) for m in (model, apart)]
    assert counts[1] - counts[0] == saved > 0


@every_shared
def test_shared_layers_compute_what_equal_ones_do_and_learn_from_both_uses(name: str) -> None:
    model, apart = sharing(name), deepcopy(sharing(name, share=False))
    apart.load_state_dict(model.state_dict())  # which has a shared tensor under both its names
    source, target = texts()
    found, expected = model(source, target).values, apart(source, target).values
    assert torch.equal(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    names: dict[int, list[str]] = {}
    for n, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(n)
    others = dict(apart.named_parameters(remove_duplicate=False))
    both = 0
    for n, parameter in model.named_parameters():
        assert parameter.grad is not None
        uses = {id(others[other]): others[other].grad for other in names[id(parameter)]}
        both += len(uses) > 1
        total = sum(gradient for gradient in uses.values() if gradient is not None)
        assert isinstance(total, Tensor)
        same(parameter.grad, total, 1e-9)
        assert len(uses) == 1 or all(g is not None and g.abs().max() > 1e-9 for g in uses.values()) or "key.bias" in n
    assert both >= 8


@every_shared
def test_shared_layers_survive_saving_copying_and_a_step(name: str, tmp_path: Path) -> None:
    source, target = texts()
    model, other = sharing(name), sharing(name, seed=20)
    expected = model(source, target).values
    assert not torch.equal(other(source, target).values, expected)
    save_tensors(tmp_path / "model.safetensors", weights(model))
    set_weights(other, load_tensors(tmp_path / "model.safetensors"), tmp_path)
    assert torch.equal(other(source, target).values, expected)
    copied = deepcopy(model)
    copied(source, target).values.square().sum().backward()
    torch.optim.SGD(copied.parameters(), lr=0.1).step()
    shared = [n for n, p in model.named_parameters(remove_duplicate=False) if n not in dict(model.named_parameters())]
    before, after = (dict(m.named_parameters(remove_duplicate=False)) for m in (model, copied))
    assert len({id(p) for p in before.values()}) == len({id(p) for p in after.values()}) < len(before)
    assert all((before[n] - after[n]).abs().max() > 0 for n in shared if "key.bias" not in n)
    state = copied.start(source)  # stepping reads the same weights
    logits, _ = step(copied, target.padded()[:, 0], state)
    same(logits, torch.stack([row[0] for row in rows_of(copied(source, target))]))


# What settings refuse

NO_ENCODER = {"encoder": {"kind": "none"}}
NO_SOURCE = {"source": {"kind": "none"}}
IMAGE = {"source": {"kind": "image"}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model": {"d_model": 12, "decoder": {"kind": "transformer", "positions": "rotary", "heads": 4}}},
            "decoder.positions 'rotary' turns pairs of numbers, so a head must be of even width; d_model (12) / "
            "decoder.heads (4) is 3",
        ),
        (
            {"model": {"d_model": 12, "encoder": {"kind": "transformer", "positions": "rotary", "heads": 4}}},
            "encoder.positions 'rotary' turns pairs",
        ),
        ({"model": {"d_model": 64, "decoder": {"heads": 3}}}, "d_model (64) is not divisible by decoder.heads (3)"),
        ({"model": {"decoder": {"context": "last", "heads": 2}}}, "'heads' needs context: attention"),
        ({"model": {"decoder": {"context": "every", "hard": True}}}, "'hard' needs context: attention"),
        *(
            ({"model": {**NO_ENCODER, "decoder": {name: value}}}, f"decoder.{name} needs an encoder to look at")
            for name, value in (
                ("context", "last"), ("score", "dot"), ("place", "output"), ("heads", 2), ("hard", True),
                ("bridge", "copy"),
            )
        ),
        (
            {**NO_SOURCE, "model": {"decoder": {"kind": "none"}, **NO_ENCODER}},
            "decoder.kind none needs an encoder, but encoder.kind is none as well",
        ),
        (
            {**NO_SOURCE, "model": {"decoder": {"kind": "none"}, "encoder": {"kind": "stem", "stem": CONVOLUTION}}},
            "source.kind 'text' and model.encoder.stem.kind 'convolution' clash: that stem reads image",
        ),
        (
            {**IMAGE, "model": {"encoder": {"kind": "stem"}, "decoder": {"kind": "lstm", "bridge": "copy"}}},
            "decoder.bridge 'copy' needs an encoder of the same kind and layers (here stem x 1 to lstm x 1)",
        ),
        (
            {"model": {"share_layers": True, "encoder": {"kind": "transformer"}, "decoder": {"kind": "gru"}}},
            "share_layers needs two of a kind, not transformer and gru",
        ),
        (
            {"model": {"share_layers": True, **NO_ENCODER}},
            "share_layers needs two of a kind, not none and lstm",
        ),
        (
            {**NO_SOURCE, "model": {"share_layers": True, "decoder": {"kind": "none"}}},
            "share_layers needs two of a kind, not lstm and none",
        ),
        (
            {"preset": "shared2019", "model": {"decoder": {"layers": 2}}},
            "share_layers needs equal parts; encoder.layers is 6, decoder.layers 2",
        ),
        (
            {"preset": "shared2019", "model": {"encoder": {"positions": "alibi"}}},
            "share_layers needs equal parts; encoder.positions is alibi, decoder.positions sinusoidal",
        ),
        (
            {"model": {"share_layers": True, "decoder": {"context": "last"}}},
            "share_layers needs an encoder that reads one way, of the decoder's kind and layers (here lstm x 1, "
            "bidirectional true, and lstm x 1)",
        ),
        (
            {"model": {"share_layers": True, "encoder": {"bidirectional": False}}},
            "share_layers needs a decoder whose state reads tokens alone: context: last, or place: output",
        ),
        (
            {**IMAGE, "model": {"encoder": {"stem": "tokens"}}},
            "source.kind 'image' and model.encoder.stem.kind 'tokens' clash: that stem reads text",
        ),
        (
            {"model": {"encoder": {"stem": "convolution"}}},
            "source.kind 'text' and model.encoder.stem.kind 'convolution' clash: that stem reads image",
        ),
        (
            {"source": {"kind": "image", "size": 16}, "model": {"encoder": {"stem": {**CONVOLUTION, "halvings": 5}}}},
            "model.encoder.stem.halvings (5) leaves nothing of images of 16 pixels a side (source.size); use at most 4",
        ),
        ({**IMAGE, "model": NO_ENCODER}, "model.encoder.kind none reads text, not source.kind 'image'"),
        (NO_SOURCE, "source.kind none leaves the encoder nothing to read; set model.encoder.kind none"),
        ({"model": {"decoder": {"kind": "none"}}}, "model.decoder.kind none needs source.kind none (lines of text)"),
        (
            {**NO_SOURCE, "model": {"decoder": {"kind": "none"}}, "training": {"objective": {"kind": "minimum_risk"}}},
            "training.objective.kind 'minimum_risk' needs a decoder",
        ),
        (
            {"model": NO_ENCODER, "source": {"tokens": {"kind": "char"}}},
            "model.encoder.kind none reads source and target as one text, so both need one vocabulary",
        ),
        (
            {**NO_SOURCE, "model": {**NO_ENCODER, "share_embeddings": True}},
            "model.share_embeddings needs a text as source and as target, and one vocabulary for both",
        ),
        (
            {"model": {"share_embeddings": True}, "target": {"tokens": {"kind": "char"}}},
            "model.share_embeddings needs a text as source and as target, and one vocabulary for both",
        ),
        (
            {**NO_SOURCE, "model": NO_ENCODER, "training": {"metric": "bleu"}},
            "training.metric 'bleu' needs a source; where there is none, use loss",
        ),
        ({"source": []}, "source is an empty list; for none write source: {kind: none}"),
        (
            {"source": ["text", "none"]},
            "of several sources none can be of kind none; leave it out",
        ),
        *(
            (
                {"source": ["text", "image"], **change},
                "several sources need an encoder (model.encoder.kind), and a target of the whole, not of words",
            )
            for change in (
                {"model": NO_ENCODER}, {"target": {"kind": "tags"}, "model": {"decoder": {"kind": "none"}}},
            )
        ),
        (
            {"source": ["text", "text"], "model": {"encoder": ["lstm", "none"]}},
            "of several encoders none can be of kind none; leave the list out for a decoder alone",
        ),
        (
            {"source": ["text", "text"], "model": {"encoder": ["lstm", "gru", "rnn"]}},
            "model.encoder lists 3 encoders for 2 sources; give one each",
        ),
        ({"model": {"encoder": ["lstm", "gru"]}}, "model.encoder lists 2 encoders for 1 sources; give one each"),
        *(
            (
                {"source": sources, "model": {"share_encoder": True, "encoder": encoder}},
                "model.share_encoder is for several sources and one encoder; set it to false",
            )
            for sources, encoder in (("text", "lstm"), (["text", "text"], ["lstm", "lstm"]))
        ),
        (
            {"source": ["text", "image"], "model": {"share_encoder": True}},
            "model.share_encoder needs sources of the same settings; set it to false",
        ),
        (
            {"source": ["text", "image"], "model": {"encoder": ["lstm", {"kind": "stem", "stem": "tokens"}]}},
            "source.kind 'image' and model.encoder.stem.kind 'tokens' clash: that stem reads text",
        ),
        ({"start": {"model": "a", "decoder": "b"}}, "model already brings both parts"),
        ({"search": {"mbr": 3, "nbest": 4}}, "nbest (4) is more than mbr (3); raise mbr"),
        ({"search": {"sample": True, "mbr": 3}}, "sample and mbr are ways to search that exclude each other"),
        ({"search": {"contrastive": 0.6, "groups": 5}}, "contrastive and groups are ways to search that exclude"),
        ({"search": {"beam": 4, "groups": 3}}, "beam (4) is not divisible by groups (3)"),
        ({"search": {"contrastive": 0.6, "nbest": 2}}, "contrastive search gives one output; leave nbest at 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(settings)
    assert message in str(error.value)


# Presets


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_and_runs(name: str) -> None:
    """At its own depth, but narrow."""
    settings = parse({"preset": name, "model": {"d_model": 48}})
    torch.manual_seed(1)
    sides = Sides.of(settings)
    outputs = 1 if settings.target.kind == "number" else VOCABULARY
    model = build(settings.model, elements(sides, VOCABULARY), outputs, ROOM, settings.target).eval()
    target = Ragged.of([[2, 7], [2]])
    side = sides.source.settings
    source: Any = Ragged.of([[6, 7, 3], [8, 3]]) if sides.source.has_tokens else nothing(2)
    if isinstance(model, MaskedLanguageModel | ReplacedTokenModel):
        source, target = Ragged.of([[2, 6, 5, 3], [2, 5, 3]]), Ragged.of([[1, 2], [1]])
    if isinstance(model, EncoderWithHead):
        source, target = Ragged.of([[2, 6, 3], [2, 5, 7, 3], [2, 3]]), Ragged.of([[1], [2], [0]])
    if len(sides.source.parts) > 1:
        draw, rows = np.random.default_rng(1), len(target)
        drawn = [part.pack([[6, 7, 3]] * rows if part.has_tokens else part.made_up(draw, rows, 24))
                 for part in sides.source.parts]  # fmt: skip
        source = Bundle(tuple(drawn))
    elif not sides.source.has_tokens and (side.given or sides.source.of_target):
        source = sides.source.pack(sides.source.made_up(np.random.default_rng(1), len(target), 24))
    logits = model(source, target).values
    assert logits.shape == (3, *[outputs] * (1 + settings.target.chained))
    assert logits.isfinite().all()


SIZES = {  # layers (encoder, decoder), heads, d_model, d_ff, as the papers give them
    "gpt": ((None, 12), 12, 768, 3072),
    "bert": ((12, None), 12, 768, 3072),
    "transformer-base": ((6, 6), 8, 512, 2048),
    "transformer-big": ((6, 6), 16, 1024, 4096),
    "shaw2018": ((6, 6), 8, 512, 2048),
    "t5": ((6, 6), 8, 512, 2048),
    "kasai2021": ((12, 1), 8, 512, 2048),
    "sutskever2014": ((4, 4), None, 1000, None),
    "bahdanau2015": ((1, 1), None, 1000, None),
    "luong2015": ((4, 4), None, 1000, None),
    "lstm-lm": ((None, 2), None, 650, None),
}


@pytest.mark.parametrize("name", SIZES)
def test_presets_have_the_published_sizes(name: str) -> None:
    layers, heads, d_model, d_ff = SIZES[name]
    model = parse({"preset": name}).model
    parts = (model.encoders[0], model.decoder)
    assert tuple(getattr(part, "layers", None) for part in parts) == layers
    assert model.d_model == d_model
    for part in parts:
        if part.kind != "none":
            assert (getattr(part, "heads", None), getattr(part, "d_ff", None)) == (heads, d_ff)


@pytest.mark.parametrize(
    ("name", "vocabulary", "millions"),
    [
        ("transformer-base", 37000, 65),  # Vaswani et al. 2017, table 3
        ("transformer-big", 37000, 213),
        ("bert", 30522, 110),  # Devlin et al. 2019, 3
        ("gpt", 40478, 117),  # as released
        ("t5", 32128, 60),  # Raffel et al. 2020, 3.7
        ("awd-lstm", 33278, 33),  # Merity et al. 2018, table 2
    ],
)
def test_presets_have_about_the_published_number_of_parameters(name: str, vocabulary: int, millions: int) -> None:
    """Exactly, they would be of the published vocabulary and positions."""
    assert count_parameters(parse({"preset": name}).model, vocabulary) / 1e6 == pytest.approx(millions, rel=0.04)


@pytest.mark.parametrize("encoder", [*ENCODERS, *VIT, *AUDIO_ENCODERS, *SEVERAL])
def test_parameters_are_counted_without_drawing_any(encoder: str) -> None:
    """As many as a model has that is made; what is drawn next is what it would have been."""
    wanted, sources = settings((encoder, "transformer-rotary")), elements_of(encoder)
    made = build(wanted, sources, VOCABULARY, 1024)
    before = torch.get_rng_state()
    counted = count_parameters(wanted, VOCABULARY, None, sources)
    assert counted == sum(parameter.numel() for parameter in made.parameters()) > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_sutskevers_384_million() -> None:
    """3.4: 160,000 source words, 80,000 target words, 1000 cells in 4 layers: 384 M, of which 64 M recurrent."""
    with torch.device("meta"):
        model = build(parse({"preset": "sutskever2014"}).model, 160_000, 80_000, 100)
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(384, abs=0.5)
    recurrent = sum(p.numel() for name, p in model.named_parameters() if "_l0" in name)
    assert recurrent / 1e6 == pytest.approx(64, abs=0.5)
