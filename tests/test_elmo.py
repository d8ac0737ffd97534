"""ELMo: words by their characters, two language models, a mix of their layers, and tasks that begin from them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.config import merge, parse, resolve_paths
from regard.data.layouts import BothWays
from regard.data.modalities.words import Words, WordsSettings
from regard.errors import ConfigError
from regard.model_settings import ModelSettings
from regard.models.build import build
from regard.models.elmo import BidirectionalLanguageModel, Elmo
from regard.models.encoders import Memory
from regard.models.stems import Elements
from regard.runs import Stopped
from regard.stem_settings import CharacterStemSettings
from regard.tasks.both_ways import BidirectionalLanguageModeling
from regard.training.checkpoint import checkpoints, load_tensors
from regard.training.objectives import make_objective
from regard.training_settings import ObjectiveSettings
from tests.conftest import redrawn
from tests.equations import Array, Weights, affine, sigmoid, softmax, under
from tests.test_cli import good, refused
from tests.test_training import StopAt

STEM: dict[str, Any] = {
    "kind": "characters", "characters": 9, "d_character": 4, "widths": [1, 3], "filters": [6, 10], "highways": 1,
}  # fmt: skip
BODY = {"kind": "elmo", "stem": STEM, "layers": 2}
NONE = {"kind": "none"}
VOCABULARY = 11


# Words by their characters


def side(**stem: Any) -> Words:
    return Words(WordsSettings(), CharacterStemSettings.model_validate({**STEM, **stem}))


def test_words_are_bytes_between_marks() -> None:
    words = side()
    (item,) = words.encode_many(["ab  Zürich-West"])
    assert item.tolist() == [
        [0xF8, *b"ab", 0xF9, *[0xFF] * 5], [0xF8, *"Zürich".encode(), 0xF9],
    ]  # fmt: skip
    assert words.pieces(item) == ["<s>", "ab", "Zürich", "</s>"]
    assert words.words(item) == [-1, 0, 1, -1]
    packed = words.pack([item, item[:1]])
    assert packed.lengths.tolist() == [4, 3]
    assert packed.values[0].tolist() == [0xF8, 0xFA, 0xF9, *[0xFF] * 6]
    assert packed.values[3].tolist() == [0xF8, 0xFB, 0xF9, *[0xFF] * 6]
    assert words.problem(item, 1) == "has 2 words, more than search.max_source=1; split it"


def test_marks_are_bytes_that_no_text_holds() -> None:
    text = "".join(chr(code) for code in range(0x20, 0x11000) if not 0xD800 <= code < 0xE000)
    assert not set((text + chr(0x10FFFF)).encode()) & {0xF8, 0xF9, 0xFA, 0xFB, 0xFF}


# Equations


def highway(w: Weights, x: Array) -> Array:
    """Srivastava et al. 2015, eq. 3."""
    gate = sigmoid(affine(w, "gate", x))
    return gate * np.maximum(affine(w, "linear", x), 0.0) + (1.0 - gate) * x


def word_vector(w: Weights, characters: list[int]) -> Array:
    """Kim et al. 2016, eq. 5 to 8, with rectified filters as Peters et al. 2018 have them."""
    c = w["table.weight"][characters]  # (characters, d_character)
    found = []
    for number, width in enumerate(STEM["widths"]):
        kernel, bias = w[f"convolutions.{number}.weight"], w[f"convolutions.{number}.bias"]
        each = [
            [(kernel[f].T * c[i : i + width]).sum() + bias[f] for i in range(len(c) - width + 1)]
            for f in range(len(kernel))
        ]
        found += [max(0.0, *row) for row in each]
    return affine(w, "linear", highway(under(w, "highways.0"), np.array(found)))


def projected(w: Weights, xs: list[Array], units: int, width: int) -> list[Array]:
    """An LSTM whose state is projected before it goes on and back: `h = W_p (o ⊙ tanh(c))` (Sak et al. 2014)."""
    h, c, found = np.zeros(width), np.zeros(units), []
    for x in xs:
        gates = w["weight_ih_l0"] @ x + w["bias_ih_l0"] + w["weight_hh_l0"] @ h + w["bias_hh_l0"]
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = w["weight_hr_l0"] @ (sigmoid(o) * np.tanh(c))
        found.append(h)
    return found


def one_way(w: Weights, xs: list[Array], units: int, width: int) -> list[list[Array]]:
    """Each layer's states; a residual connection goes around the second."""
    first = projected(under(w, "layers.0"), xs, units, width)
    second = projected(under(w, "layers.1"), first, units, width)
    return [first, [a + b for a, b in zip(first, second, strict=True)]]


def bilm(**changes: Any) -> tuple[BidirectionalLanguageModel, dict[str, Array]]:
    settings = {"d_model": 8, "encoder": {**BODY, "units": 5, **changes}, "decoder": NONE}
    model = redrawn(build(ModelSettings.model_validate(settings), [Elements(shape=(9,))], VOCABULARY, 12))
    assert isinstance(model, BidirectionalLanguageModel)
    return model, {name: x.detach().numpy() for name, x in model.named_parameters()}


TEXTS = ["der hund", "läuft", "über die donau"]
IDS = [[6, 7], [8], [9, 10, 6]]


def layers_of(w: Weights, text: str) -> tuple[list[Array], list[list[Array]], list[list[Array]]]:
    words = side()
    rows = words.pack(words.encode_many([text])).values.tolist()
    xs = [word_vector(under(w, "encoder.stem"), row) for row in rows]
    back = one_way(under(w, "encoder.lm.1"), xs[::-1], 5, 4)
    return xs, one_way(under(w, "encoder.lm.0"), xs, 5, 4), [layer[::-1] for layer in back]


def test_the_loss_is_that_of_peters_et_al() -> None:
    """`-Σ_k log p(t_k given t_<k) + log p(t_k given t_>k)`, one softmax for both."""
    model, w = bilm()
    words, expected = side(), 0.0
    for text, ids in zip(TEXTS, IDS, strict=True):
        framed = [2, *ids, 3]
        _, on, back = layers_of(w, text)
        for k, token in enumerate(framed):
            if k:
                expected -= np.log(softmax(affine(w, "head.linear", on[-1][k - 1]).tolist())[token])
            if k < len(framed) - 1:
                expected -= np.log(softmax(affine(w, "head.linear", back[-1][k + 1]).tolist())[token])
    batch = BothWays(words)(words.encode_many(TEXTS), IDS, np.random.default_rng(0))
    loss = make_objective(model, ObjectiveSettings(), 0.0, None)(batch, 0.0)
    assert batch.tokens == 2 * (3 + 2 + 4)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mix", [True, False])
def test_the_vectors_are_a_mix_of_all_layers(mix: bool) -> None:
    """Peters et al. 2018, eq. 1: `γ Σ_k softmax(s)_k h_k`, where the first layer is `[x; x]`."""
    settings = {"d_model": 8, "encoder": {**BODY, "units": 5, "mix": mix}, "decoder": {"kind": "gru"}}
    model = redrawn(build(ModelSettings.model_validate(settings), [Elements(shape=(9,))], VOCABULARY, 12))
    w = {name: x.detach().numpy() for name, x in model.named_parameters()}
    words, encoder = side(), model.get_submodule("encoder")
    memory = encoder(words.pack(words.encode_many(TEXTS)))
    assert isinstance(memory, Memory)
    for row, text in enumerate(TEXTS):
        xs, on, back = layers_of(w, text)
        layers = [[np.concatenate((x, x)) for x in xs]]
        layers += [[np.concatenate(pair) for pair in zip(a, b, strict=True)] for a, b in zip(on, back, strict=True)]
        shares = softmax(w["encoder.mix.scores"].tolist()) if mix else [0.0, 0.0, 1.0]
        scale = float(w["encoder.mix.scale"]) if mix else 1.0
        mixed = [scale * sum(s * h for s, h in zip(shares, each, strict=True)) for each in zip(*layers, strict=True)]
        own = memory.states.padded()[row, : len(mixed)].detach().numpy()
        assert np.allclose(own, mixed, rtol=1e-12, atol=1e-12)
        ends = np.concatenate((mixed[-1][:4], mixed[0][4:]))
        assert np.allclose(memory.summary[row].detach().numpy(), ends, rtol=1e-12, atol=1e-12)


def test_neither_direction_sees_what_it_predicts() -> None:
    model, _ = bilm()
    words = side()
    for k in range(3):
        texts = [["der", "alte", "hund", "läuft"] for _ in range(2)]
        texts[1][k] = "donau"
        batches = [
            BothWays(words)(words.encode_many([" ".join(text)]), [[6, 7, 8, 9]], np.random.default_rng(0))
            for text in texts
        ]
        pair = [model(batch.source, batch.inputs).values for batch in batches]
        same = [bool(torch.equal(a, b)) for a, b in zip(*pair, strict=True)]
        assert same[: k + 1] == [True] * (k + 1)  # on: what comes before word k, and word k itself
        assert not any(same[k + 1 : 5])
        assert same[5 + k + 1 :] == [True] * (5 - k - 1)  # back: word k itself, and what comes after it
        assert not any(same[5 : 5 + k + 1])


# End to end

LINES = """\
the cat sat on the mat
a dog ran over the hill
my friend reads old books
we saw seven white birds
""".splitlines()


def settings(name: str, **changes: Any) -> dict[str, Any]:
    base = {
        "run": name,
        "data": {"train": "text.txt", "valid": "text.txt", "test": "text.txt"},
        "source": {"kind": "none"},
        "tokens": {"kind": "word"},
        "model": {"d_model": 24, "dropout": 0.0, "encoder": BODY, "decoder": NONE},
        "training": {
            "steps": 110, "batch_tokens": 100, "learning_rate": 0.02, "warmup": 5, "schedule": "linear",
            "validate_every": 110, "save_every": 110, "label_smoothing": 0.0, "tensorboard": False, "device": "cpu",
        },
    }  # fmt: skip
    return merge(base, changes)


def config(folder: Path, name: str, **changes: Any) -> regard.Config:
    return resolve_paths(parse(settings(name, **changes)), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("elmo")
    (place / "text.txt").write_text("\n".join(LINES) + "\n")
    tags = "".join(f"{line}\t{' '.join('short' if len(x) < 4 else 'long' for x in line.split())}\n" for line in LINES)
    (place / "tags.tsv").write_text(tags)
    (place / "pairs.tsv").write_text("".join(f"{line}\t{line.upper()}\n" for line in LINES))
    regard.train(config(place, "elmo"))
    return place


def test_both_language_models_learn(folder: Path) -> None:
    shown = good("evaluate", folder / "elmo")
    assert "backward perplexity" in shown
    system = regard.load(folder / "elmo", device="cpu")
    assert isinstance(system.task, BidirectionalLanguageModeling)
    scores = system.evaluate(folder / "text.txt").scores
    # Which of four lines it is, is all there is to guess, in five or six words and an end.
    for name in ("perplexity", "backward_perplexity"):
        assert 1.2 < scores[name].value < 1.8
        assert scores[name].signature.startswith("per:word|end:counted|direction:")
    pairs = system.score([*LINES, "the cat sat on a hill"])
    assert all(len(pair.tokens) == len(line.split()) + 1 for pair, line in zip(pairs, LINES, strict=False))
    assert pairs[-1].log_prob < min(pair.log_prob for pair in pairs[:-1]) - 2
    assert system.token_embeddings(["the cat"])[0].shape == (4, 24)
    for said in (
        refused("generate", folder / "elmo", text="the cat\n"),
        refused("explain", folder / "elmo", "the cat", "-o", folder / "x.html"),
    ):
        assert "write nothing; `score` and `evaluate` take them" in said


def test_words_that_no_text_had_have_vectors_of_their_own(folder: Path) -> None:
    system = regard.load(folder / "elmo", device="cpu")
    assert system.tokenizers["tokens"].encode("cats catz") == [1, 1]
    one, other = (system.token_embeddings([f"the {word} sat"])[0] for word in ("cats", "catz"))
    assert not np.allclose(one[2], other[2])


def test_a_stopped_run_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "text.txt", tmp_path)
    made = config(tmp_path, "run", model={"dropout": 0.1}, training={"steps": 8, "validate_every": 4, "save_every": 3})

    def final() -> dict[str, Tensor]:
        return load_tensors(checkpoints(tmp_path / "run" / "checkpoints")[-1] / "model.safetensors")

    regard.train(made)
    whole = final()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(Stopped):
        regard.train(made, StopAt(5))
    regard.train(made)
    assert all(torch.equal(whole[x], tensor) for x, tensor in final().items())


def test_a_tagger_begins_from_the_language_models(folder: Path) -> None:
    """Frozen, and mixed by what the task learns; its own LSTM and word vectors begin anew."""
    mixed = {**BODY, "mix": True, "over": {"kind": "lstm"}, "beside": STEM}
    system = regard.train(
        config(
            folder, "tags", source={"kind": "words"}, target={"kind": "tags"}, start={"encoder": "elmo"},
            data={"train": "tags.tsv", "valid": "tags.tsv", "test": None}, model={"encoder": mixed},
            training={"freeze": ["encoder.stem", "encoder.lm"], "steps": 40},
        )
    )  # fmt: skip
    assert system.evaluate(folder / "tags.tsv").scores["accuracy"].value > 90
    assert system.generate(["a catfish ran"]) != [""]
    encoder, other = system.task.model.encoder, regard.load(folder / "elmo", device="cpu").task.model.encoder
    assert isinstance(encoder, Elmo)
    assert isinstance(other, Elmo)
    for part in ("stem", "lm"):
        for one, two in zip(getattr(encoder, part).parameters(), getattr(other, part).parameters(), strict=True):
            assert torch.equal(one, two)
    assert encoder.mix is not None
    assert not torch.equal(encoder.mix.scores, torch.zeros(3))
    shown = system.explain("the cat sat")
    assert shown.source == ["<s>", "the", "cat", "sat", "</s>"]


def test_a_decoder_reads_elmo_and_has_tokens_of_its_own(folder: Path) -> None:
    system = regard.train(
        config(
            folder, "pairs", source={"kind": "words"}, start={"encoder": "elmo"}, tokens={"kind": "char"},
            data={"train": "pairs.tsv", "valid": "pairs.tsv", "test": None},
            model={"encoder": {**BODY, "mix": True}, "decoder": {"kind": "gru"}}, training={"steps": 2},
        )
    )  # fmt: skip
    assert system.tokenizers["tokens"].decode(system.tokenizers["tokens"].encode("THE CAT")) == "THE CAT"
    assert len(system.generate(["the catfish"])) == 1
    saved = system.save(folder / "saved")
    assert regard.load(saved, device="cpu").score(["the cat"], ["THE"]) == system.score(["the cat"], ["THE"])


def test_an_encoder_that_lacks_a_part_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="does not fit this config's"):
        regard.train(
            config(
                folder, "deep", source={"kind": "words"}, target={"kind": "label"}, start={"encoder": "elmo"},
                data={"train": "tags.tsv", "valid": "tags.tsv", "test": None}, model={"encoder": {**BODY, "layers": 3}},
            )
        )  # fmt: skip


PLAIN: dict[str, Any] = {"source": NONE, "tokens": {"kind": "word"}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**PLAIN, "tokens": {"kind": "char"}, "model": {"encoder": BODY, "decoder": NONE}}, "set tokens.kind word"),
        (
            {**PLAIN, "model": {"encoder": {**BODY, "mix": True}, "decoder": NONE}},
            "model.encoder.mix belongs to a task that uses the language models (start.encoder)",
        ),
        (
            {**PLAIN, "model": {"encoder": {**BODY, "stem": {"kind": "tokens"}}, "decoder": NONE}},
            "reads words by their characters; set model.encoder.stem.kind characters",
        ),
        (
            {**PLAIN, "model": {"encoder": {"kind": "lstm", "stem": STEM}, "decoder": NONE}},
            "reads plain text (source.kind none) under model.encoder.kind elmo alone",
        ),
        (
            {"source": {"kind": "text"}, "model": {"encoder": BODY}},
            "source.kind 'text' and model.encoder.stem.kind 'characters' clash: that stem reads words",
        ),
        ({"model": {"d_model": 9, "encoder": BODY}}, "each with half of d_model; 9 is odd"),
        (
            {"source": {"kind": "words"}, "model": {"d_model": 12, "encoder": {**BODY, "units": 6}}},
            "encoder.units (6) are projected to half of d_model (6), so there have to be more; or leave it out",
        ),
        (
            {"source": {"kind": "words"}, "model": {"encoder": {"kind": "none"}}},
            "model.encoder.kind none reads text, not source.kind 'words'",
        ),
        (
            {"source": {"kind": "words"}, "model": {"encoder": {**BODY, "stem": {**STEM, "filters": [3]}}}},
            "widths and filters name one number each for every group of filters, here 2 and 1",
        ),
        (
            {"source": {"kind": "words"}, "model": {"encoder": {**BODY, "stem": {**STEM, "widths": [1, 99]}}}},
            "widths are from 1 to characters (9)",
        ),
        (
            {"source": {"kind": "words"}, "model": {"encoder": {**BODY, "over": {"kind": "none"}}}},
            "encoder.over reads vectors; its kind cannot be 'none'",
        ),
        (
            {"source": {"kind": "words"}, "model": {"share_embeddings": True}},
            "model.share_embeddings needs a text as source",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(settings)
    assert message in str(error.value)
