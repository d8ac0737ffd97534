"""CTC against brute force over all paths: its loss, its prefixes, step by step, alone and beside a decoder."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.config import parse
from regard.data.marks import BOS, EOS, MASK, PAD, SEP, UNK
from regard.errors import ConfigError
from regard.models.build import build
from regard.models.ctc import CTCHead, CTCModel, JointStepper, occupancy
from regard.models.model import EncoderDecoder
from regard.models.stems import Elements, SplitStem
from regard.nn.attention import capture
from regard.ragged import Ragged
from regard.search.beam import beam_search
from regard.search.limits import Limits
from regard.stem_settings import SplitStemSettings
from tests.conftest import HOP, draw, recordings, redrawn, settings

MARKS = 1 + max(PAD, UNK, BOS, EOS, SEP, MASK)
A, B, C = MARKS, MARKS + 1, MARKS + 2
WORDS = MARKS + 3  # three tokens beside the marks
WIDTH = 4
NOWHERE = (BOS, EOS, SEP, MASK)  # marks that no path names


def head(seed: int = 1, size: int = WORDS) -> CTCHead:
    return redrawn(CTCHead(WIDTH, size), seed)


def states(lengths: list[int], seed: int = 2) -> Ragged:
    values = torch.randn(sum(lengths), WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Ragged.from_lengths(3 * values, lengths)


def log_probs(ctc: CTCHead, vectors: Tensor) -> np.ndarray[Any, Any]:
    """`log softmax(W h + b)` at each time, over what a path may name; in plain NumPy."""
    scores = vectors.numpy() @ ctc.linear.weight.detach().numpy().T + ctc.linear.bias.detach().numpy()
    scores[:, list(NOWHERE)] = -math.inf
    return np.asarray(scores - np.log(np.exp(scores).sum(1, keepdims=True)))


def read(path: tuple[int, ...]) -> tuple[int, ...]:
    """Graves et al. 2006, 3.1: tokens that stand side by side and are alike are one, then blanks are left out."""
    kept = [token for i, token in enumerate(path) if i == 0 or token != path[i - 1]]
    return tuple(token for token in kept if token != PAD)


def all_texts(found: np.ndarray[Any, Any]) -> dict[tuple[int, ...], float]:
    """`p(y given x)` of every text, summed over every path."""
    totals: dict[tuple[int, ...], float] = {}
    named = [token for token in range(found.shape[1]) if token not in NOWHERE]
    for path in product(named, repeat=len(found)):
        p = math.exp(sum(found[t, token] for t, token in enumerate(path)))
        totals[read(path)] = totals.get(read(path), 0.0) + p
    return totals


def close(found: Tensor | float, right: float, tolerance: float = 2e-6) -> None:
    value = found.item() if isinstance(found, Tensor) else found
    assert value == pytest.approx(right, abs=tolerance)  # log p is handed over in float32


def test_what_a_path_names_is_a_distribution_without_marks() -> None:
    ctc, x = head(), states([3, 2])
    found = ctc(x).values
    np.testing.assert_allclose(found.exp().sum(1).detach().numpy(), 1.0, atol=1e-6)
    assert (found[:, list(NOWHERE)].exp() == 0).all()
    right = log_probs(ctc, x.values)
    named = [token for token in range(WORDS) if token not in NOWHERE]
    np.testing.assert_allclose(found.detach().numpy()[:, named], right[:, named], atol=1e-5)


def test_the_loss_is_that_of_all_paths() -> None:
    ctc, lengths = head(), [4, 1, 3, 4, 2, 5]
    x = states(lengths)
    targets = [[A, B], [], [B, B], [A, A], [C], [A, B, A]]
    outputs = Ragged.of([[*target, EOS] for target in targets])
    total = 0.0
    for vectors, target in zip(x.values.split(lengths), targets, strict=True):
        right = -math.log(all_texts(log_probs(ctc, vectors))[tuple(target)])
        own = ctc.loss(Ragged.from_lengths(vectors, [len(vectors)]), Ragged.of([[*target, EOS]]))
        close(own, right, 1e-4)
        total += right
    close(ctc.loss(x, outputs), total, 5e-4)


def test_a_target_that_is_too_long_for_its_source_costs_nothing_and_breaks_nothing() -> None:
    """Of two alike side by side a path needs three times."""
    ctc, x = head(), states([2, 0, 1, 3])
    outputs = Ragged.of([[A, A, EOS], [A, EOS], [A, B, EOS], [A, B, EOS]])
    loss = ctc.loss(x, outputs)
    alone = ctc.loss(Ragged.from_lengths(x.values[3:], [3]), Ragged.of([[A, B, EOS]]))
    close(loss, alone.item(), 1e-4)
    gradients = torch.autograd.grad(loss, list(ctc.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert max(float(gradient.abs().max()) for gradient in gradients) > 1e-6


def places(path: tuple[int, ...]) -> list[int | None]:
    """Which token of what a path reads is named at each time, from 0; None: a blank."""
    found: list[int | None] = []
    number = -1
    for i, token in enumerate(path):
        number += token != PAD and (i == 0 or token != path[i - 1])
        found.append(None if token == PAD else number)
    return found


def test_when_tokens_are_named_is_the_mean_of_all_paths() -> None:
    """In one batch of texts and sources of several lengths; what no path reads is named nowhere."""
    ctc, lengths = head(seed=5), [4, 1, 3, 5, 2, 4]
    x = states(lengths)
    targets = [[A, B], [], [B, B], [A, B, A], [C, C], [A]]
    inputs = Ragged.of([[BOS, *target] for target in targets])
    with capture(ctc) as trace:
        ctc.align(x, inputs)
    for row, (vectors, target) in enumerate(zip(x.values.split(lengths), targets, strict=True)):
        right, named = np.zeros((len(target), len(vectors))), log_probs(ctc, vectors)
        for path in product({PAD, *target}, repeat=len(vectors)):
            if read(path) == tuple(target):
                for t, number in enumerate(places(path)):
                    if number is not None:
                        right[number, t] += math.exp(sum(named[i, token] for i, token in enumerate(path)))
        total = right.sum(1, keepdims=True)
        assert (total > 0).all() == (target != [C, C])  # which two times are too few for
        found = trace.weights("", row)
        assert found.shape == (1, 4, 5)
        np.testing.assert_allclose(
            found[0, : len(target), : len(vectors)], right / np.where(total, total, 1), atol=1e-6
        )
        assert (found[0, len(target) :] == 0).all()  # the end, and what fills up the batch
        assert (found[0, :, len(vectors) :] == 0).all()


def test_when_tokens_of_long_texts_are_named() -> None:
    """A hundred tokens in three hundred times, named without a doubt: two times each, and a blank."""
    vocabulary, length = MARKS + 100, 100
    wanted = torch.tensor([token for i in range(length) for token in (MARKS + i % 50, MARKS + i % 50, PAD)])
    scores = torch.full((1, 3 * length, vocabulary), -30.0, dtype=torch.float64)
    scores[0, torch.arange(3 * length), wanted] = 0.0
    tokens = MARKS + torch.arange(length)[None] % 50
    found = occupancy(scores.log_softmax(-1), torch.tensor([3 * length]), tokens, torch.tensor([length]), PAD)
    right = (torch.arange(3 * length) // 3 == torch.arange(length)[:, None]) & (torch.arange(3 * length) % 3 < 2)
    np.testing.assert_allclose(found[0], right.double(), atol=1e-9)


def test_the_loss_of_an_empty_batch_is_nothing() -> None:
    assert head().loss(states([]), Ragged.of([])).item() == 0.0


@pytest.mark.parametrize("times", [0, 1, 2, 4])
def test_prefixes_sum_over_all_texts_that_begin_so(times: int) -> None:
    """`p(next given those before)` is the share of what goes on so among all that begins so; the shares sum to 1."""
    ctc, x = head(seed=3), states([times], seed=4)
    texts = all_texts(log_probs(ctc, x.values))
    seen = 0
    for length in range(times + 1):
        for prefix in product([UNK, A, B, C] if length < 3 else [A, B], repeat=length):
            begun = sum(p for text, p in texts.items() if text[:length] == prefix)
            if begun == 0.0:
                continue
            state, found = ctc.start(x), torch.zeros(0)
            for token in (BOS, *prefix):
                found, state = ctc.step(torch.tensor([token]), state)
            close(found[0].double().exp().sum(), 1.0)
            close(state.prefix[0], math.log(begun))
            close(found[0, EOS], math.log(texts[prefix] / begun) if prefix in texts else -math.inf, 1e-4)
            for token in (UNK, A, B, C):
                more = sum(p for text, p in texts.items() if text[: length + 1] == (*prefix, token))
                if more > 0:
                    close(found[0, token], math.log(more / begun), 1e-4)
                    seen += 1
                else:
                    assert found[0, token] < -1e20
            assert (found[0, [PAD, BOS, SEP, MASK]] < -1e20).all()
    assert seen > 0 or times == 0


def stepped(ctc: CTCHead, x: Ragged, rows: list[list[int]]) -> list[Tensor]:
    """All steps of rows, the same number of them for each source."""
    state = ctc.start(x)
    each = len(rows) // len(x)
    index = torch.arange(len(x)).repeat_interleave(each)
    state, found = state.select(index), []
    for tokens in zip(*rows, strict=True):
        step, state = ctc.step(torch.tensor(tokens), state)
        found.append(step)
    return found


def test_a_batch_of_one_equals_a_batch_of_many_and_rows_of_one_source_are_apart() -> None:
    """Several rows a source, the times of sources unlike, one of them with none."""
    ctc, lengths = head(seed=5), [5, 0, 2, 7]
    x = states(lengths, seed=6)
    texts = [[A, A, B], [A, B, B], [B, C, A]]
    rows = [[BOS, *text] for _ in lengths for text in texts]
    together = stepped(ctc, x, rows)
    for source, vectors in enumerate(x.values.split(lengths)):
        one = Ragged.from_lengths(vectors, [len(vectors)])
        for row, text in enumerate(texts):
            alone = stepped(ctc, one, [[BOS, *text]])
            for t in range(4):
                found, right = together[t][3 * source + row], alone[t][0]
                possible = right > -1e20
                assert torch.equal(found > -1e20, possible)
                torch.testing.assert_close(found[possible], right[possible], atol=1e-6, rtol=1e-6)
                assert found.isfinite().all()


def test_rows_and_sources_are_selected() -> None:
    ctc, x = head(seed=5), states([5, 3, 7], seed=6)
    state = ctc.start(x).select(torch.tensor([0, 0, 1, 1, 2, 2]))
    for tokens in ([BOS] * 6, [A, B, B, A, C, A]):
        _, state = ctc.step(torch.tensor(tokens), state)
    # The second source is done; rows of the others change places, and one is there twice.
    chosen = state.select(torch.tensor([1, 1, 5, 4]), torch.tensor([0, 2]))
    found, _ = ctc.step(torch.tensor([A, C, A, B]), chosen)
    for row, (source, text) in enumerate([(0, [B, A]), (0, [B, C]), (2, [A, A]), (2, [C, B])]):
        vectors = x.values.split([5, 3, 7])[source]
        right = stepped(ctc, Ragged.from_lengths(vectors, [len(vectors)]), [[BOS, *text]])[-1][0]
        torch.testing.assert_close(found[row].clamp(min=-1e20), right.clamp(min=-1e20), atol=1e-6, rtol=1e-6)


def test_long_recordings_keep_their_digits() -> None:
    """Over 3,000 times the shares of what comes next still sum to 1, for a text of 60 tokens."""
    ctc, x = head(seed=7), states([3000], seed=8)
    state = ctc.start(x)
    draws = torch.Generator().manual_seed(1)
    found = torch.zeros(0)
    for token in [BOS, *(A + torch.randint(3, (60,), generator=draws)).tolist()]:
        found, state = ctc.step(torch.tensor([token]), state)
        close(found.double().exp().sum(), 1.0, 1e-5)


def test_what_no_path_reads_has_nothing_after_it_but_its_end() -> None:
    """Whatever else is in the batch; and of nothing, nothing can be read."""
    ctc, x = head(), states([2, 0, 9])
    state = ctc.start(x)
    for tokens in ([BOS] * 3, [A, A, A], [A, B, C], [B, B, A], [EOS, A, B]):
        found, state = ctc.step(torch.tensor(tokens), state)
        close(found.double().exp().sum(), 3.0, 1e-5)  # each row is a distribution, always
        assert (found <= 0).all()
    assert found[:2].exp().nonzero()[:, 1].tolist() == [EOS, EOS]
    first, _ = ctc.step(torch.tensor([BOS]), ctc.start(states([0])))
    assert first.exp().nonzero()[:, 1].tolist() == [EOS]


class Alone:
    """A head over given states, as search wants it."""

    graphs = None
    logits = None

    def __init__(self, ctc: CTCHead) -> None:
        self.ctc = ctc

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.ctc.step(tokens, state)


def limits(count: int, longest: int) -> Limits:
    return Limits(torch.full((count,), longest), BOS, EOS, forbidden=(PAD, BOS, SEP, MASK))


def test_beam_search_finds_the_best_text() -> None:
    ctc = head(seed=9)
    lengths = [4, 3, 1, 5]
    x = states(lengths, seed=10)
    found = beam_search(Alone(ctc), ctc.start(x), limits=limits(4, 6), width=40, nbest=3)
    for hypotheses, vectors in zip(found, x.values.split(lengths), strict=True):
        texts = all_texts(log_probs(ctc, vectors))
        best = sorted(texts, key=lambda text: -texts[text])[:3]
        for hypothesis, text in zip(hypotheses, best, strict=False):
            assert tuple(hypothesis.tokens) == text
            close(hypothesis.log_prob, math.log(texts[text]), 1e-4)


# Whole models


def ctc_model(encoder: str = "audio-subsampling-lstm", seed: int = 1, **model: Any) -> Any:
    given = settings((encoder, "gru-every"), ctc=True, **model)
    return redrawn(build(given, [Elements(shape=(HOP,))], WORDS, 50), seed)


def alone(encoder: str = "audio-subsampling-lstm", seed: int = 1) -> CTCModel:
    made = ctc_model(encoder, seed, decoder={"kind": "none"})
    assert isinstance(made, CTCModel)
    return made


def test_a_whole_pass_equals_one_step_after_another() -> None:
    model, source = alone(), recordings([9, 4, 0, 12])
    inputs = Ragged.of([[BOS, A, B], [BOS], [BOS, A], [BOS, B, B, A]])
    full = model(source, inputs)
    state, found = model.start(source), []
    for tokens in inputs.padded(PAD).unbind(1):
        step, state = model.step(tokens, state)
        found.append(step)
    right = inputs.unpadded(torch.stack(found, 1)).values
    assert torch.equal(full.values, right)
    logits, _ = model.logits(inputs.padded(PAD)[:, 0], model.start(source))
    assert torch.equal(logits, found[0])
    for row, text in enumerate(inputs.tolist()):
        one = Ragged.from_lengths(source.values.split([9, 4, 0, 12])[row], [[9, 4, 0, 12][row]])
        own = model(one, Ragged.of([text])).values
        both = (full.values.split([3, 1, 2, 4])[row].clamp(min=-1e20), own.clamp(min=-1e20))
        torch.testing.assert_close(*both, atol=1e-5, rtol=1e-5)


def test_the_log_probability_of_a_text_is_its_ctc_loss() -> None:
    """Stepped through to the end, and by torch's own loss: one number."""
    model, source = alone(), recordings([24, 16])
    inputs, outputs = Ragged.of([[BOS, A, B, B], [BOS, C]]), Ragged.of([[A, B, B, EOS], [C, EOS]])
    found = model(source, inputs).values.gather(1, outputs.values[:, None]).sum()
    close(-found, model.ctc.loss(model.encode(source).states, outputs).item(), 1e-3)


def test_a_ctc_model_says_what_it_has_not() -> None:
    model = alone()
    with pytest.raises(ConfigError, match="contrastive search compares states of the target, and a CTC model has none"):
        model.advance(torch.tensor([BOS]), None)
    with pytest.raises(ConfigError, match="a CTC model reads no targets"):
        model.states(recordings([3]), Ragged.of([[BOS]]))


@pytest.mark.parametrize("decoder", ["lstm-location-recurrence", "transformer-pre-sinusoidal", "gru-every"])
def test_joint_decoding_weighs_both(decoder: str) -> None:
    given = settings(("audio-subsampling-lstm", decoder), ctc=True)
    model = redrawn(build(given, [Elements(shape=(HOP,))], WORDS, 50), 1)
    assert isinstance(model, EncoderDecoder)
    source = recordings([9, 12])
    for weight in (0.3, 1.0):
        joint = JointStepper(model, weight)
        state, decoded, named = joint.start(source), model.start(source), model.ctc.start(model.encode(source).states)
        rows = torch.tensor([0, 0, 1, 1])
        state, decoded, named = state.select(rows), decoded.select(rows), named.select(rows)
        for tokens in ([BOS] * 4, [A, B, B, A], [A, A, C, B]):
            found, state = joint.step(torch.tensor(tokens), state)
            ours, decoded = model.step(torch.tensor(tokens), decoded)
            theirs, named = model.ctc.step(torch.tensor(tokens), named)
            possible = theirs > -1e20
            right = (1 - weight) * ours + weight * theirs
            torch.testing.assert_close(found[possible], right[possible])
            assert (found[~possible] < -1e19).all()
            assert not found.isnan().any()


def test_joint_beam_search_finds_the_best_of_both() -> None:
    """Of all texts of up to two tokens, by brute force: CTC over all paths, the decoder forced."""
    given = settings(("audio-subsampling-lstm", "gru-additive-output"), ctc=True)
    model: Any = redrawn(build(given, [Elements(shape=(HOP,))], WORDS, 50), 4)
    source = recordings([7])
    memory = model.encode(source).states
    texts = all_texts(log_probs(model.ctc, memory.values.detach()))
    every = [text for length in range(4) for text in product([UNK, A, B, C], repeat=length) if text in texts]
    inputs, outputs = Ragged.of([[BOS, *text] for text in every]), Ragged.of([[*text, EOS] for text in every])
    logits = model(source.select(torch.zeros(len(every), dtype=torch.long)), inputs).values.log_softmax(-1)
    decoded = logits.gather(1, outputs.values[:, None]).squeeze(1).split([len(text) + 1 for text in every])
    best = max(
        (0.6 * own.sum().item() + 0.4 * math.log(texts[text]), text) for own, text in zip(decoded, every, strict=True)
    )
    joint = JointStepper(model, 0.4)
    found = beam_search(joint, joint.start(source), limits=limits(1, 4), width=60, nbest=1)[0][0]
    assert tuple(found.tokens) == best[1]
    close(found.log_prob, best[0], 1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_the_loss_of_both_is_weighed(weight: float) -> None:
    from regard.data.batch import Batch
    from regard.training.objectives import Likelihood

    given = settings(("audio-subsampling-lstm", "gru-additive-output"), ctc=True)
    model: Any = redrawn(build(given, [Elements(shape=(HOP,))], WORDS, 50), 1)
    source, inputs = recordings([24, 16]), Ragged.of([[BOS, A, B], [BOS, C]])
    outputs = Ragged.of([[A, B, EOS], [C, EOS]])
    objective = parse({"training": {"objective": {"ctc": weight}}}).training.objective
    found = Likelihood(model, objective, 0.0)(Batch(source, inputs, outputs), 0.0)
    logits = model(source, inputs).values.log_softmax(-1)
    decoded = -logits.gather(1, outputs.values[:, None]).sum()
    ctc = model.ctc.loss(model.encode(source).states, outputs)
    close(found, ((1 - weight) * decoded + weight * ctc).item(), 1e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize(
    "encoder", ["audio-subsampling-conformer", "audio-pyramid-stem", "audio-log_mel-stem", "audio-log_mel-gru"]
)
def test_models_of_sound_decode_in_other_precisions(encoder: str, precision: str) -> None:
    from regard.models.decoding import for_decoding
    from regard.tasks.task import inference

    model = deepcopy(alone(encoder)).float()
    source = recordings([12, 0, 7])
    with inference(model):
        right, _ = model.step(torch.full((3,), BOS), model.start(source))
        copied = for_decoding(model, precision)
        found, _ = copied.step(torch.full((3,), BOS), copied.start(source))
    possible = right > -1e20
    assert torch.equal(found > -1e20, possible)
    apart = (found[possible].exp() - right[possible].exp()).abs().max()
    assert 0 < apart < 0.08


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (
            {
                "source": {"kind": "none"},
                "model": {"ctc": True, "encoder": {"kind": "transformer"}, "decoder": {"kind": "none"}},
            },
            "model.ctc reads text off a source, but source.kind is none",
        ),
        (
            {"source": {"kind": "audio"}, "model": {"ctc": True}, "training": {"objective": {"agreement": 1}}},
            "training.objective.agreement does not go with model.ctc; set it to 0",
        ),
        (
            {"source": {"kind": "audio"}, "search": {"ctc": 0.3}},
            "search.ctc needs a model with model.ctc; leave it out",
        ),
        ({"source": {"kind": "audio"}, "model": {"ctc": True}, "search": {"ctc": 1.5}}, "ctc"),
        (
            {
                "source": {"kind": "audio"},
                "model": {"ctc": True, "decoder": {"kind": "none"}},
                "training": {"objective": {"kind": "minimum_risk"}},
            },
            "needs a decoder",
        ),
        (
            {
                "source": {"kind": "audio"},
                "target": {"kind": "label"},
                "model": {"ctc": True, "decoder": {"kind": "none"}},
            },
            "model.ctc reads text off an encoder, but target.kind is 'label'; set it to false",
        ),
        (
            {"source": {"kind": "audio"}, "model": {"ctc": True, "decoder": {"kind": "lstm", "hard": True}}},
            "model.ctc does not go with decoder.hard",
        ),
        (
            {
                "source": {"kind": "audio"},
                "model": {"ctc": True},
                "training": {"objective": {"kind": "minimum_risk", "likelihood": 0}},
            },
            "set training.objective.likelihood above 0",
        ),
    ],
)
def test_settings_that_do_not_go_with_ctc_are_named(config: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(config)
    assert what in str(error.value)


def test_several_sources_are_read_as_one_long_one() -> None:
    """A recording and a text beside it: CTC goes over the vectors of both, end to end."""
    given = settings(("audio+text", "gru-every"), ctc=True, decoder={"kind": "none"})
    model: Any = redrawn(build(given, [Elements(shape=(HOP,)), Elements(11)], WORDS, 50), 1)
    from regard.bundle import Bundle

    source = Bundle((recordings([8, 3]), draw([2, 4], 11, 3)))
    found, _ = model.step(torch.full((2,), BOS), model.start(source))
    assert model.encode(source).states.lengths.tolist() == [4 + 2, 2 + 4]
    np.testing.assert_allclose(found.detach().double().exp().sum(1).numpy(), 1.0, atol=1e-6)


def test_a_token_is_split_into_several_vectors() -> None:
    """Libovický and Helcl 2018: parts of `W x + b`, where `x` is the token's embedding times `√d_model`."""
    stem = redrawn(SplitStem(SplitStemSettings(times=3), Elements(WORDS), WIDTH, 0.0).double(), 1)
    found = stem(Ragged.of([[A, B], [], [C]]))
    weight, bias = stem.linear.weight.detach().numpy(), stem.linear.bias.detach().numpy()
    table = stem.embedding.table.weight.detach().numpy()
    right = [weight @ (table[token] * math.sqrt(WIDTH)) + bias for token in (A, B, C)]
    assert found.lengths.tolist() == found.known.tolist() == [6, 0, 3]
    assert found.longest == 6
    np.testing.assert_allclose(found.values.detach().numpy(), np.reshape(right, (9, WIDTH)), atol=1e-12)


def test_a_text_is_read_as_more_tokens_than_it_has(tmp_path: Path) -> None:
    """Each letter becomes two: more than a path over letters could name."""
    words = ["ab", "ba", "aab", "bb", "a", "b", "abab", "bab"]
    (tmp_path / "pairs.tsv").write_text(
        "".join(f"{word}\t{' '.join(f'{letter}1 {letter}2' for letter in word)}\n" for word in words), encoding="utf-8"
    )
    given = {
        "run": str(tmp_path / "run"),
        "data": dict.fromkeys(("train", "valid", "test"), str(tmp_path / "pairs.tsv")),
        "source": {"tokens": {"kind": "char"}},
        "target": {"tokens": {"kind": "word"}},
        "model": {
            "d_model": 16, "dropout": 0, "ctc": True, "decoder": {"kind": "none"},
            "encoder": {"kind": "lstm", "stem": {"kind": "split", "times": 3}},
        },
        "training": {"steps": 40, "warmup": 5, "learning_rate": 0.05, "schedule": "constant", "validate_every": 40},
    }  # fmt: skip
    system = regard.train(parse(given))
    assert system.generate(["abba", "ab"]) == ["a1 a2 b1 b2 b1 b2 a1 a2", "a1 a2 b1 b2"]
    explanation = system.explain("ab")
    assert len(explanation.source) == 3 * len(["a", "b", "</s>"])
    assert regard.load(tmp_path / "run").generate(["ba"]) == ["b1 b2 a1 a2"]


def test_a_split_stem_is_for_ctc() -> None:
    with pytest.raises(ConfigError, match=r"encoder\.stem\.kind 'split' is for CTC; set ctc: true, or take another"):
        parse({"model": {"encoder": {"kind": "transformer", "stem": "split"}}})
