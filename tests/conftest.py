"""What the tests share: every encoder and decoder as settings, tiny models in float64, small batches."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import pytest
import torch
from hypothesis import settings as hypothesis_settings
from torch import Tensor, nn

import regard
from regard.bundle import Bundle, Source
from regard.model_settings import ModelSettings
from regard.models.build import build
from regard.models.model import AutoregressiveModel, EncoderDecoder, State
from regard.models.stems import Elements
from regard.nn.scores import SCORES
from regard.nn.statistics import statistics
from regard.ragged import Ragged
from tests.toy import toy_config, write_corpus

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # in processes that tests start
os.fsync = os.fstat  # type: ignore[assignment]  # files outlive the processes that tests kill, and no test cuts the power
hypothesis_settings.register_profile("regard", deadline=None, max_examples=40, derandomize=True, database=None)
hypothesis_settings.load_profile("regard")

if find_spec("triton") is not None and not torch.cuda.is_available():
    # Triton decides when it is imported how kernels run, and parts of torch import it. The variable is not left to
    # other tests and their processes, for which the kernels are then not there.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        from regard.nn import (  # noqa: F401
            triton_ctc,
            triton_decoding,
            triton_depthwise,
            triton_fused,
            triton_kernels,
            triton_steps,
        )
        from regard.search import triton_beam  # noqa: F401

gpu = pytest.mark.gpu  # what needs one, and is skipped where there is none: `make test-gpu`
# Under nohup, or behind an & in a script, signals are ignored, and so they would be by what the tests start and stop.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

FULL = bool(os.environ.get("REGARD_TEST_ALL"))  # all of what is otherwise tested in part: `make test-all`
whole = pytest.mark.skipif(not FULL, reason="takes long; make test-all")
compiles = pytest.mark.filterwarnings(  # what torch's compiler says of itself
    "ignore:TensorFloat32 tensor cores",
    "ignore:.*torch.jit.script_method",
    "ignore:The .grad attribute of a Tensor that is not a leaf",
)


def crossed(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All combinations with `FULL` or on a GPU; else each value in one of a few."""
    if FULL or torch.cuda.is_available():
        return list(product(*values))
    return [tuple(some[i % len(some)] for some in values) for i in range(max(map(len, values)))]


Part = dict[str, Any]  # settings of a stem, an encoder or a decoder
Pair = tuple[str, str]  # the names of an encoder and a decoder
M = TypeVar("M", bound=nn.Module)
F = TypeVar("F", bound=Callable[..., None])

SOURCE_VOCABULARY, TARGET_VOCABULARY, LONGEST, D_MODEL = 11, 13, 8, 8
SIDE = 8  # pixels of an image
CELLS = ("rnn", "lstm", "gru")
PLACES = ("recurrence", "output", "feeding")
TRANSFORMERS: dict[str, Part] = {
    f"transformer-{norm}-{positions}": {
        "kind": "transformer", "layers": 2, "heads": 2, "d_ff": 12, "norm": norm, "positions": positions,
        "activation": "relu" if norm == "post" else "gelu",
    }
    for norm, positions in product(("pre", "post"), ("sinusoidal", "learned"))
}  # fmt: skip
# Positions inside attention, with the other options spread over them.
RELATIVE: dict[str, Part] = {
    f"transformer-{positions}": {
        "kind": "transformer", "layers": 2, "heads": 2, "d_ff": 12, "positions": positions, **options,
    }
    for positions, options in (
        ("shaw", {"norm": "post", "activation": "silu"}),
        ("t5", {"norm": "pre", "normalize": "rms", "activation": "relu"}),
        ("rotary", {"norm": "pre", "normalize": "rms", "activation": "silu", "gated": True}),
        ("alibi", {"norm": "post", "normalize": "rms", "activation": "gelu", "gated": True}),
        ("xl", {"norm": "pre", "activation": "silu"}),
    )
}  # fmt: skip
# What published models have besides.
PUBLISHED: dict[str, Part] = {
    "transformer-as-bart": {
        "kind": "transformer", "layers": 2, "heads": 2, "d_ff": 12, "norm": "post", "positions": "learned",
        "first_position": 2, "embedding_norm": True, "activation": "gelu_tanh",
    },
    "transformer-as-flan": {
        "kind": "transformer", "layers": 2, "heads": 2, "d_ff": 12, "d_head": 3, "positions": "t5", "normalize": "rms",
        "buckets": 8, "bucket_distance": 12, "biases": False, "scale_scores": False, "activation": "gelu_tanh",
        "gated": True,
    },
}  # fmt: skip
ALL_TRANSFORMERS = TRANSFORMERS | RELATIVE

CONFORMER: Part = {"kind": "conformer", "layers": 1, "heads": 2, "d_ff": 12, "kernel": 3}
ENCODERS: dict[str, Part] = {
    f"{cell}-{'bi' if both else 'uni'}{'-reversed' if reverse else ''}": {
        "kind": cell, "layers": 1 if reverse else 2, "bidirectional": both, "reverse": reverse,
    }
    for cell, both, reverse in product(CELLS, (False, True), (False, True))
} | ALL_TRANSFORMERS | {"conformer": CONFORMER, "stem": {"kind": "stem"}}  # fmt: skip
READ_AS_PUBLISHED: dict[str, Part] = {
    "transformer-as-bert": {**PUBLISHED["transformer-as-bart"], "stem": {"kind": "tokens", "segments": 2}},
    "transformer-wide": {**PUBLISHED["transformer-as-flan"], "width": 6},
}
# Every body over an image, and several sources, of which each has its encoder, or all have one.
CONVOLUTION: Part = {"kind": "convolution", "halvings": 2, "channels": 2}
VIT: dict[str, Part] = {
    "image-patches-transformer": {
        "kind": "transformer", "layers": 2, "heads": 2, "d_ff": 12, "activation": "gelu", "positions": "none",
        "norm_epsilon": 1e-6, "stem": {"kind": "patches", "size": 2},
    },
    "image-patches-lstm": {
        "kind": "lstm", "stem": {"kind": "patches", "size": 4, "class_token": False, "positions": "sine2d"},
    },
    "image-resnet": {"kind": "stem", "stem": {"kind": "resnet", "small": True, "channels": 2}},
}  # fmt: skip
IMAGE_ENCODERS = {f"image-{name}": {**part, "stem": CONVOLUTION} for name, part in ENCODERS.items()} | VIT
# Each stem over a recording under some of the bodies.
HOP = 20  # samples in 10 ms
LOG_MEL: Part = {"kind": "log_mel", "mels": 6}
SUBSAMPLING: Part = {"kind": "subsampling", "mels": 6, "channels": 3}
PYRAMID: Part = {"kind": "pyramid", "mels": 6, "halvings": 1}
AUDIO_ENCODERS: dict[str, Part] = {
    "audio-log_mel-stem": {"kind": "stem", "stem": LOG_MEL},
    "audio-log_mel-gru": {**ENCODERS["gru-bi"], "stem": {**LOG_MEL, "normalize": "global"}},
    "audio-log_mel-conformer": {**CONFORMER, "positions": "shaw", "stem": {**LOG_MEL, "normalize": "none"}},
    "audio-subsampling-lstm": {**ENCODERS["lstm-bi"], "stem": {**SUBSAMPLING, "halvings": 1}},
    "audio-subsampling-transformer": {**RELATIVE["transformer-rotary"], "stem": SUBSAMPLING},
    "audio-subsampling-conformer": {**CONFORMER, "layers": 2, "kernel": 5, "stem": SUBSAMPLING},
    "audio-pyramid-stem": {"kind": "stem", "stem": PYRAMID},
    "audio-whisper-stem": {"kind": "stem", "stem": {"kind": "whisper", "mels": 6, "frames": 12}},
    "audio-pyramid-conformer": {**CONFORMER, "normalize_convolution": "layer", "stem": {**PYRAMID, "halvings": 2}},
}
# Words by their characters.
CHARACTERS: Part = {"kind": "characters", "characters": 6, "d_character": 3, "widths": [1, 3], "filters": [2, 4]}
WORD_ENCODERS: dict[str, Part] = {
    "words-elmo": {"kind": "elmo", "stem": CHARACTERS, "layers": 2, "units": 5, "mix": True},
    "words-elmo-over": {
        "kind": "elmo", "stem": CHARACTERS, "layers": 1, "mix": True, "over": ENCODERS["gru-bi"], "beside": CHARACTERS,
    },
    "words-transformer": {**RELATIVE["transformer-rotary"], "stem": CHARACTERS},
}  # fmt: skip
SEVERAL: dict[str, tuple[str, ...]] = {
    "audio+text": ("audio-subsampling-lstm", "transformer-pre-learned"),
    "text+text": ("lstm-bi", "transformer-pre-learned"),
    "image+text": ("image-stem", "gru-uni"),
    "text+image+text": ("stem", "image-transformer-rotary", "rnn-bi-reversed"),
    "shared-lstm": ("lstm-bi", "lstm-bi"),
    "shared-transformer": ("transformer-shaw", "transformer-shaw", "transformer-shaw"),
    "joint-image+text": ("image-stem", "lstm-bi"),
    "joint-text+text": ("stem", "stem"),
    "shared-image": ("image-transformer-pre-sinusoidal", "image-transformer-pre-sinusoidal"),
}

# Decoders by kind. Within a kind each model differs in cell, score, depth or norm.
DECODER_KINDS: dict[str, dict[str, Part]] = {
    **{
        context: {f"{cell}-{context}": {"kind": cell, "layers": 2, "context": context} for cell in CELLS}
        for context in ("last", "every")
    },
    **{
        place: {
            f"{cell}-{score}-{place}": {
                "kind": cell, "layers": 1 + i % 2, "context": "attention", "score": score, "place": place,
            }
            for i, (score, cell) in enumerate(product(SCORES, CELLS))
        }
        for place in PLACES
    },
    "transformer": ALL_TRANSFORMERS | PUBLISHED,
    "copy": {f"{cell}-copy": {"kind": cell, "layers": 2, "context": "every", "bridge": "copy"} for cell in CELLS},
    "heads": {
        f"{cell}-{score}-{place}-heads{heads}": {
            "kind": cell, "layers": 1, "score": score, "place": place, "heads": heads,
        }
        for cell, score, place, heads in (
            ("lstm", "additive", "recurrence", 2), ("gru", "scaled_dot", "feeding", 2), ("rnn", "mlp", "output", 1),
        )
    } | {
        "lstm-additive-recurrence-gate": {
            "kind": "lstm", "layers": 1, "score": "additive", "place": "recurrence", "gate": True,
        },
        "gru-dot-output-gate": {"kind": "gru", "layers": 2, "score": "dot", "place": "output", "gate": True},
    },
    "hard": {
        f"{cell}-{score}-{place}-hard": {
            "kind": cell, "layers": 1, "score": score, "place": place, "hard": True, "heads": heads,
        }
        for cell, score, place, heads in (
            ("gru", "bilinear", "output", None), ("lstm", "additive", "feeding", 2), ("rnn", "dot", "recurrence", None),
        )
    },
}  # fmt: skip
DECODERS: dict[str, Part] = {name: part for group in DECODER_KINDS.values() for name, part in group.items()}
HARD = set(DECODER_KINDS["hard"])


def _pairs() -> list[Pair]:
    """Every encoder with every kind of decoder, every decoder at least once; heads and hard ones with a few."""
    pairs = []
    for kind, group in DECODER_KINDS.items():
        if kind == "copy":  # this one fits only an encoder of its own cell and depth
            pairs += [(f"{cell}-{way}", f"{cell}-copy") for cell in CELLS for way in ("uni", "bi")]
            continue
        encoders, decoders = list(ENCODERS), list(group)
        encoders = encoders[::3] if kind in ("heads", "hard") else encoders
        count = max(len(encoders), len(decoders))
        pairs += [(encoders[i % len(encoders)], decoders[(i + i // 4) % len(decoders)]) for i in range(count)]
        pairs += [(encoders[0], name) for name in decoders if all(name != other for _, other in pairs)]
    return pairs


def _more_pairs() -> list[Pair]:
    """Every body over an image or a recording with one kind of decoder after another; several sources with every other
    kind, and with `FULL` with all."""
    kinds = [kind for kind in DECODER_KINDS if kind != "copy"]
    names = [*IMAGE_ENCODERS, *AUDIO_ENCODERS, *([*SEVERAL] * (len(kinds) if FULL else 3))]
    decoders = [list(DECODER_KINDS[kinds[i % len(kinds)]]) for i in range(len(names))]
    pairs = [(name, group[i % len(group)]) for i, (name, group) in enumerate(zip(names, decoders, strict=True))]
    copies = [(name, "lstm-copy") for name in ("image-lstm-bi", "text+text", "shared-lstm")]
    words = zip(WORD_ENCODERS, ("transformer-pre-learned", "gru-mlp-output", "lstm-last"), strict=True)
    return [*pairs, *copies, *words, *zip(READ_AS_PUBLISHED, PUBLISHED, strict=True)]


PAIRS, MORE_PAIRS = _pairs(), _more_pairs()


def each_of(pairs: list[Pair]) -> pytest.MarkDecorator:
    """A test of each of these models."""
    return pytest.mark.parametrize("pair", pairs, ids=[f"{encoder}_{decoder}" for encoder, decoder in pairs])


def read_by(encoder: str) -> tuple[str, ...]:
    """The encoder of each source."""
    return SEVERAL.get(encoder, (encoder,))


def reads_images(encoder: str) -> bool:
    return any(name in IMAGE_ENCODERS for name in read_by(encoder))


def fifth(number: int) -> list[Pair]:
    """A fifth of all models: every encoder that reads a text, some of several sources, and every kind of decoder."""
    pairs: list[Pair] = []
    for i, encoder in enumerate(ENCODERS):
        pairs += [pair for pair in PAIRS if pair[0] == encoder][(number - i) % 5 :: 5]
    return pairs + MORE_PAIRS[number::5]


def every_model(test: F) -> F:
    """A test of a fifth of the models, of another fifth in the next test; with `FULL` of all."""
    return each_of(PAIRS + MORE_PAIRS if FULL else fifth(crc32(test.__name__.encode()) % 5))(test)


def every_model_of_texts(test: F) -> F:
    pairs = PAIRS + MORE_PAIRS if FULL else fifth(crc32(test.__name__.encode()) % 5)
    return each_of([pair for pair in pairs if not reads_images(pair[0])])(test)


def settings(pair: Pair, **model: Any) -> ModelSettings:
    """The settings of a small model."""
    known = {**ENCODERS, **READ_AS_PUBLISHED, **IMAGE_ENCODERS, **AUDIO_ENCODERS, **WORD_ENCODERS}
    parts = [known[name] for name in read_by(pair[0])]
    shared = pair[0].startswith("shared")
    encoder = {"encoder": parts[0] if shared or len(parts) == 1 else parts, "share_encoder": shared}
    if pair[0].startswith("joint"):
        encoder["joint"] = TRANSFORMERS["transformer-pre-sinusoidal"]
    return ModelSettings.model_validate({"d_model": D_MODEL, **encoder, "decoder": DECODERS[pair[1]], **model})


def elements(encoder: str, vocabulary: int = SOURCE_VOCABULARY) -> list[Elements]:
    """What the sources are made of: tokens, scanlines, hops of 10 ms or words."""
    shapes = dict.fromkeys(IMAGE_ENCODERS, (3 * SIDE,)) | dict.fromkeys(AUDIO_ENCODERS, (HOP,))
    shapes |= dict.fromkeys(WORD_ENCODERS, (CHARACTERS["characters"],))
    return [
        Elements(shape=shapes[name]) if name in shapes else Elements(vocabulary, separator=3)
        for name in read_by(encoder)
    ]


@cache
def tiny(pair: Pair, seed: int = 1, **model: Any) -> EncoderDecoder:
    """A model in float64, not training. Every weight is drawn anew, so that no bias is 0 and no norm is 1.

    The same arguments give the same object: a test that changes it should ask for a seed of its own.
    """
    made = build(settings(pair, **model), elements(pair[0]), TARGET_VOCABULARY, LONGEST)
    assert isinstance(made, EncoderDecoder)
    return redrawn(made, seed)


def redrawn(module: M, seed: int = 1) -> M:
    """The module itself in float64, not training, with every weight drawn anew, and the statistics of norms too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        for name, buffer in statistics(module):
            drawn = 0.5 * torch.rand(buffer.shape, generator=generator, dtype=torch.float64)
            buffer.copy_(drawn + float(name.endswith(("var", "square"))))  # a spread is more than its mean
    return module.eval()


def draw(lengths: list[int], vocabulary: int, seed: int) -> Ragged:
    """Random tokens in rows of these lengths."""
    tokens = torch.randint(vocabulary, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    return Ragged.from_lengths(tokens, lengths)


def images(rows: int, side: int = SIDE, seed: int = 1) -> Ragged:
    """Random images."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (rows * side, 3 * side), generator=generator, dtype=torch.uint8)
    return Ragged.from_lengths(pixels, [side] * rows)


def recordings(lengths: list[int], seed: int = 1) -> Ragged:
    """Noise of so many hops of 10 ms."""
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randint(-9999, 9999, (sum(lengths), HOP), generator=generator, dtype=torch.int16)
    return Ragged.from_lengths(samples, lengths)


def spelled(lengths: list[int], seed: int = 1) -> Ragged:
    """Words of random bytes."""
    shape, generator = (sum(lengths), CHARACTERS["characters"]), torch.Generator().manual_seed(seed)
    return Ragged.from_lengths(torch.randint(256, shape, generator=generator, dtype=torch.uint8), lengths)


def sources(encoder: str, lengths: list[int], seed: int) -> Source:
    """Sources that an encoder reads: texts of these lengths, recordings of twice as many hops, or images. Of several,
    texts that are not empty differ in length from source to source."""
    parts = []
    for i, name in enumerate(read_by(encoder)):
        if name in IMAGE_ENCODERS:
            parts.append(images(len(lengths), seed=seed + i))
        elif name in AUDIO_ENCODERS:
            parts.append(recordings([2 * length for length in lengths], seed + i))
        elif name in WORD_ENCODERS:
            parts.append(spelled(lengths, seed + i))
        else:
            parts.append(draw([length * (i + 1) % 7 for length in lengths], SOURCE_VOCABULARY, seed + i))
    return parts[0] if len(parts) == 1 else Bundle(tuple(parts))


def batch() -> tuple[Ragged, Ragged]:
    """Sources and targets of mixed lengths; one source is empty."""
    return draw([3, 1, 0, 6, 4], SOURCE_VOCABULARY, seed=2), draw([4, 2, 3, 1, 5], TARGET_VOCABULARY, seed=3)


def batch_of(encoder: str) -> tuple[Source, Ragged]:
    """Like `batch`, of what an encoder reads."""
    return sources(encoder, [3, 1, 0, 6, 4], seed=2), batch()[1]


def rows_of(x: Ragged) -> list[Tensor]:
    """The values of each row."""
    return list(x.values.split(x.lengths.tolist()))


def same(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def step(model: AutoregressiveModel, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    """Logits of one step in float64; `model.step` itself gives log-probabilities in float32."""
    output, after = model.advance(tokens, state)
    return model.head(output), after


def check_stepping(model: AutoregressiveModel, source: Source, target: Ragged) -> None:
    """Stepping equals the full pass."""
    full = rows_of(model(source, target))
    state = state32 = model.start(source)
    for t, tokens in enumerate(target.padded().T):
        logits, state = step(model, tokens, state)
        log_probs, state32 = model.step(tokens, state32)
        for row, expected in enumerate(full):
            if t < len(expected):
                same(logits[row], expected[t])
                same(log_probs[row], expected[t].log_softmax(-1).float(), 1e-5)


def check_rows_alone(model: nn.Module, source: Source, target: Ragged) -> None:
    """A batch of one equals a batch of many."""
    for row, expected in enumerate(rows_of(model(source, target))):
        one = torch.tensor([row])
        same(model(source.select(one), target.select(one)).values, expected)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a GPU are skipped without one; with one, those of kernels run there, and are marked too. In the
    interpreter, without `FULL`, kernels meet every sixth case of a test."""
    cases: Counter[str] = Counter()
    for item in items:
        kernels = "kernel" in getattr(item, "fixturenames", ())
        if torch.cuda.is_available():
            if kernels:
                item.add_marker("gpu")
        elif item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
        elif kernels and not FULL:
            test = item.nodeid.partition("[")[0]
            if cases[test] % 6:
                item.add_marker(pytest.mark.skip(reason="takes long; make test-all"))
            cases[test] += 1


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Modules and cases stay to the end: the garbage collector need not look through them, now or during a test."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has learnt the toy pairs, beside its corpus; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("learnt")
    write_corpus(folder, 1200)
    regard.train(toy_config(folder, training={"steps": 250, "validate_every": 125}))
    return folder / "run"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels run: compiled on a GPU, elsewhere in the interpreter, of which two faults are put right."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        return
    import triton.language as tl
    from triton.runtime import interpreter

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    patch_tensor, create_dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patched(tensor: Any, scope: Any) -> None:  # a scalar is an array of one there, which NumPy 2.4 takes for none
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def dot(
        self: Any, a: Any, b: Any, *rest: Any
    ) -> Any:  # it multiplies the bits of bfloat16 as if they were integers
        if a.dtype == tl.bfloat16:
            a, b = (interpreter.TensorHandle(self.cast_impl(x, tl.float32).data.reshape(x.data.shape), tl.float32)
                    for x in (a, b))  # fmt: skip
        return create_dot(self, a, b, *rest)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
