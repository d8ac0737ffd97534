"""Recurrent cells, encoders and decoders against the published equations, read anew in plain NumPy (`equations.py`)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.models.encoders import Memory
from regard.models.recurrent import CONTEXT_MODES, ContextMode, RecurrentDecoder
from regard.models.stems import Embedding
from regard.nn.attention import Attention
from regard.nn.recurrence import Recurrence
from regard.nn.scores import Additive, Bilinear, Location
from regard.ragged import Ragged
from tests import equations as eq
from tests.conftest import (
    CELLS,
    D_MODEL,
    DECODERS,
    ENCODERS,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    Part,
    draw,
    redrawn,
    rows_of,
    tiny,
)
from tests.equations import Array, Weights

Carry = tuple[Array, ...]
RECURRENT_ENCODERS = [name for name, part in ENCODERS.items() if part["kind"] in CELLS]
RECURRENT_DECODERS = [name for name, part in DECODERS.items() if part["kind"] in CELLS]


def weights(model: torch.nn.Module) -> Weights:
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def agree(found: Tensor, expected: Array | list[Array]) -> None:
    np.testing.assert_allclose(found.detach().numpy(), np.array(expected), rtol=0, atol=1e-10)


def layers(w: Weights, prefix: str, count: int) -> list[Weights]:
    return [eq.under(w, f"{prefix}.{i}") for i in range(count)]


@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind: str) -> None:
    """Two layers over rows of mixed length, whole and a step at a time, from a carry that is not zero."""
    generator = torch.Generator().manual_seed(1)
    recurrence, lengths, parts = Recurrence(kind, 5, D_MODEL, 2).double(), [2, 4, 0, 1], 1 + (kind == "lstm")
    with torch.no_grad():
        for parameter in recurrence.parameters():
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    w = layers(weights(recurrence), "layers", 2)
    x = Ragged.from_lengths(torch.randn(7, 5, generator=generator, dtype=torch.float64), lengths)
    carry = torch.randn(4, 2, parts, D_MODEL, generator=generator, dtype=torch.float64)
    states, end = recurrence(x, carry)
    for row, (xs, found) in enumerate(zip(rows_of(x), rows_of(states), strict=True)):
        carries: list[Carry] = [tuple(part.numpy() for part in carry[row, i]) for i in range(2)]
        stepped = carry[row : row + 1]
        for t in range(lengths[row]):
            top, carries = eq.stack(kind, w, xs[t].numpy(), carries)
            agree(found[t], top)
            out, stepped = recurrence.step(xs[t : t + 1], stepped)
            agree(out[0], top)
        agree(end[row], np.array(carries))
        agree(stepped[0], np.array(carries))


@pytest.mark.parametrize("kind", CELLS)
def test_a_new_cell_starts_where_the_papers_say(kind: str) -> None:
    """Orthogonal recurrent matrices, biases of zero, and a forget gate that remembers (Gers et al. 2000)."""
    w = eq.under(weights(Recurrence(kind, 5, D_MODEL, 1)), "layers.0")
    for gate in np.split(w["weight_hh_l0"], len(w["weight_hh_l0"]) // D_MODEL):
        np.testing.assert_allclose(gate @ gate.T, np.eye(D_MODEL), atol=1e-5)
    bias = w["bias_ih_l0"] + w["bias_hh_l0"]
    remembers = np.zeros_like(bias)
    if kind == "lstm":
        remembers[D_MODEL : 2 * D_MODEL] = 1
    np.testing.assert_array_equal(bias, remembers)


@pytest.mark.parametrize("name", RECURRENT_ENCODERS)
def test_recurrent_encoders(name: str) -> None:
    """States, summary and carry; both ways each direction has half the width and layers read the joined states."""
    part = ENCODERS[name]
    kind, both = part["kind"], part["bidirectional"]
    encoder = tiny((name, "gru-every")).encoder
    w = weights(encoder)
    source = draw([3, 0, 5, 1], SOURCE_VOCABULARY, seed=3)
    memory: Memory = encoder(source)
    width = D_MODEL // 2 if both else D_MODEL
    assert memory.carry is not None
    for row, (tokens, found) in enumerate(zip(source.tolist(), rows_of(memory.states), strict=True)):
        xs = [math.sqrt(D_MODEL) * w["stem.embedding.table.weight"][token] for token in tokens]
        xs = xs[::-1] if part["reverse"] else xs
        for i in range(part["layers"]):
            there, end = eq.read(kind, eq.under(w, f"forwards.{i}.layers.0"), xs, width)
            if both:
                back, back_end = eq.read(kind, eq.under(w, f"backwards.{i}.layers.0"), xs[::-1], width)
                there = [np.concatenate(pair) for pair in zip(there, back[::-1], strict=True)]
                end = tuple(np.concatenate(pair) for pair in zip(end, back_end, strict=True))
            xs = there
            agree(memory.carry[row, i], np.array(end))
        agree(memory.summary[row], end[0])
        agree(found, np.array(xs[::-1] if part["reverse"] else xs).reshape(-1, D_MODEL))


def decode(part: Part, w: Weights, ys: list[Array], h: list[Array], c: Array, carries: list[Carry]) -> list[Array]:
    """Outputs for embedded tokens `ys`, by the context mode, over states `h` with summary `c`."""
    kind, mode = part["kind"], part.get("place") or part["context"]
    recurrent = layers(w, "recurrence.layers", part["layers"])
    outputs, fed, past = [], np.zeros(D_MODEL), np.zeros(len(h))

    def attend(s: Array) -> Array:
        gate = eq.sigmoid(eq.affine(w, "gate", s)) if part.get("gate") else 1.0  # Xu et al. 2015, 4.2.1
        return gate * mixture(s)

    def mixture(s: Array) -> Array:
        if part.get("heads"):
            _, c = eq.heads_over_states(
                part["score"], eq.under(w, "attention"), part["heads"], s, h, hard=part.get("hard", False)
            )
            return c
        score = eq.under(w, "attention.score")
        back = part["score"] == "location"
        places = [eq.located(score, past, j) if back else 0.0 for j in range(len(h))]
        e = [eq.score(part["score"], score, s, state, at) for state, at in zip(h, places, strict=True)]
        past[:] = alphas = eq.likeliest(e) if part.get("hard") else eq.softmax(e)
        return eq.context(alphas, h, D_MODEL)

    def output(s: Array, context: Array) -> Array:
        y: Array = np.tanh(w["join.weight"] @ np.concatenate([s, context]))
        return y

    for y in ys:
        match mode:
            case "last":  # Sutskever et al. 2014: the source is in s_0 alone
                s, carries = eq.stack(kind, recurrent, y, carries)
                outputs.append(s)
            case "every":  # Cho et al. 2014: c enters the state and the output at every step
                s, carries = eq.stack(kind, recurrent, np.concatenate([y, c]), carries)
                outputs.append(output(s, c))
            case "recurrence":  # Bahdanau et al. 2015: c_t from s_{t-1}, then s_t = f(s_{t-1}, y_{t-1}, c_t)
                c_t = attend(carries[-1][0])
                s, carries = eq.stack(kind, recurrent, np.concatenate([y, c_t]), carries)
                outputs.append(output(s, c_t))
            case "output":  # Luong et al. 2015, eq. 5: s_t, then c_t from s_t, then tanh(W [s_t; c_t])
                s, carries = eq.stack(kind, recurrent, y, carries)
                outputs.append(output(s, attend(s)))
            case "feeding":  # Luong et al. 2015, 3.3: the same, with the last output beside the input
                s, carries = eq.stack(kind, recurrent, np.concatenate([y, fed]), carries)
                fed = output(s, attend(s))
                outputs.append(fed)
    return outputs


@pytest.mark.parametrize("name", RECURRENT_DECODERS)
def test_recurrent_decoders(name: str) -> None:
    """Each cell, score and context mode; the state starts from the summary, or as the encoder's end."""
    part = DECODERS[name]
    model = tiny((f"{part['kind']}-bi", name))
    w = weights(model.decoder)  # type: ignore[arg-type]
    source, target = draw([3, 0, 5], SOURCE_VOCABULARY, seed=3), draw([4, 2, 1], TARGET_VOCABULARY, seed=4)
    memory = model.encode(source)
    found = rows_of(model.decoder(target, memory))
    assert memory.carry is not None
    for row, tokens in enumerate(target.tolist()):
        c = memory.summary[row].detach().numpy()
        if part.get("bridge") == "copy":
            start = memory.carry[row].detach().numpy()
        else:  # tanh of a dense layer, a piece for each layer and part
            start = np.tanh(eq.affine(w, "bridge", c)).reshape(part["layers"], -1, D_MODEL)
        carries: list[Carry] = [tuple(start[i]) for i in range(part["layers"])]
        h = [state.detach().numpy() for state in rows_of(memory.states)[row]]
        ys = [math.sqrt(D_MODEL) * w["embedding.table.weight"][token] for token in tokens]
        agree(found[row], decode(part, w, ys, h, c, carries))


MODES = {
    "output-fed-queried-before": ContextMode("output", "previous", "joined"),
    "output-fed-with-summary": ContextMode("output", "summary", "joined"),
    "summary-joined": ContextMode(None, "summary", "joined"),
    "summary-entering": ContextMode("context", "summary", "state"),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("name", MODES)
def test_full_pass_loop_and_steps_follow_from_the_context_mode(
    name: str, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For modes that no setting names; steps are taken by two rows of each source."""
    mode = MODES[name]
    monkeypatch.setitem(CONTEXT_MODES, name, mode)
    attention = None if mode.context == "summary" else Attention(Bilinear(D_MODEL))
    embedding = Embedding(TARGET_VOCABULARY, D_MODEL, 0.0)
    decoder = redrawn(
        RecurrentDecoder(embedding, cell, D_MODEL, 2, mode=name, attention=attention, bridge="dense", dropout=0.0)
    )
    source, target = draw([3, 0, 5], SOURCE_VOCABULARY, seed=3), draw([4, 2, 1], TARGET_VOCABULARY, seed=4)
    memory = tiny((f"{cell}-bi", f"{cell}-last")).encode(source)
    whole = decoder(target, memory)
    twice = torch.arange(len(source)).repeat_interleave(2)
    state, outputs = decoder.start(memory).select(twice), []
    for tokens in target.padded().unbind(1):
        output, state = decoder.step(tokens[twice], state)
        outputs.append(output)
    for row in (slice(0, None, 2), slice(1, None, 2)):
        torch.testing.assert_close(target.unpadded(torch.stack(outputs, 1)[row]).values, whole.values)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_output_is_a_softmax_over_a_dense_layer(tied: bool) -> None:
    model = tiny(("lstm-bi", "lstm-last"), tie_output=tied)
    source, target = draw([2], SOURCE_VOCABULARY, seed=5), draw([3], TARGET_VOCABULARY, seed=6)
    w, states = weights(model.head), model.decoder(target, model.encode(source)).values
    logits = [eq.affine(w, "linear", s.detach().numpy()) for s in states]
    agree(model(source, target).values, logits)
    log_probs, _ = model.step(target.values[:1], model.start(source))
    expected = np.log(eq.softmax(list(logits[0])))
    np.testing.assert_allclose(log_probs[0].detach().numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("kind", [Additive, Location])
def test_gradients_of_scores_by_tanh(kind: type[Additive]) -> None:
    """A CPU trains on another form of `vᵀ tanh(W s + V h + …)`: it and its gradients, of several queries and heads, are
    those that autograd finds for the equation, also where tanh is all but 1."""
    torch.manual_seed(1)
    score = kind(D_MODEL).double()
    queries, states = torch.randn(2, 3, 4, D_MODEL).double(), 8.0 * torch.randn(2, 3, 5, D_MODEL).double()
    past = torch.rand(2, 3, 4, 5).double() if isinstance(score, Location) else None
    given = [x.requires_grad_() for x in (queries, states)]
    given += score.parameters()
    found = score(queries, score.keys(states), past)
    added = score.located(past) if isinstance(score, Location) and past is not None else 0.0
    x = score.from_query(queries).unsqueeze(-2) + score.from_state(states).unsqueeze(-3) + added
    expected = (torch.tanh(x) * score.v.weight[0]).sum(-1)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-13)
    by = torch.randn_like(found)
    for one, other in zip(torch.autograd.grad(found, given, by), torch.autograd.grad(expected, given, by), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
