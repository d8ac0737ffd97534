"""What the tests share: every encoder and decoder as settings, tiny models in float64, small batches."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from itertools import product
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import settings as hypothesis_settings
from torch import Tensor, nn

from regard.model_settings import ModelSettings
from regard.models.build import build
from regard.models.model import EncoderDecoder
from regard.nn.scores import SCORES
from regard.ragged import Ragged

torch.set_num_threads(1)
hypothesis_settings.register_profile("regard", deadline=None, max_examples=40, derandomize=True, database=None)
hypothesis_settings.load_profile("regard")

if find_spec("triton") is not None and not torch.cuda.is_available():
    # Triton decides when it is imported how kernels run, and parts of torch import it. The variable is not left to
    # other tests and their processes, for which the kernels are then not there.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        from regard.nn import triton_decoding, triton_fused, triton_kernels, triton_steps  # noqa: F401
        from regard.search import triton_beam  # noqa: F401

FULL = bool(os.environ.get("REGARD_TEST_ALL"))  # all of what is otherwise tested in part: `make test-all`

Part = dict[str, Any]  # settings of an encoder or a decoder
Pair = tuple[str, str]  # the names of an encoder and a decoder
M = TypeVar("M", bound=nn.Module)

SOURCE_VOCABULARY, TARGET_VOCABULARY, LONGEST, D_MODEL = 11, 13, 8, 8
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
    )
}  # fmt: skip
ALL_TRANSFORMERS = TRANSFORMERS | RELATIVE

ENCODERS: dict[str, Part] = {
    f"{cell}-{'bi' if both else 'uni'}{'-reversed' if reverse else ''}": {
        "kind": cell, "layers": 1 if reverse else 2, "bidirectional": both, "reverse": reverse,
    }
    for cell, both, reverse in product(CELLS, (False, True), (False, True))
} | ALL_TRANSFORMERS  # fmt: skip

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
    "transformer": ALL_TRANSFORMERS,
    "copy": {f"{cell}-copy": {"kind": cell, "layers": 2, "context": "every", "bridge": "copy"} for cell in CELLS},
    "heads": {
        f"{cell}-{score}-{place}-heads{heads}": {
            "kind": cell, "layers": 1, "score": score, "place": place, "heads": heads,
        }
        for cell, score, place, heads in (
            ("lstm", "additive", "recurrence", 2), ("gru", "scaled_dot", "feeding", 2), ("rnn", "mlp", "output", 1),
        )
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


PAIRS = _pairs()
every_model = pytest.mark.parametrize("pair", PAIRS, ids=[f"{encoder}_{decoder}" for encoder, decoder in PAIRS])


def settings(pair: Pair, **model: Any) -> ModelSettings:
    """The settings of a small model."""
    plain = {"d_model": D_MODEL, "encoder": ENCODERS[pair[0]], "decoder": DECODERS[pair[1]], **model}
    return ModelSettings.model_validate(plain)


@cache
def tiny(pair: Pair, seed: int = 1, **model: Any) -> EncoderDecoder:
    """A model in float64, not training. Every weight is drawn anew, so that no bias is 0 and no norm is 1.

    The same arguments give the same object: a test that changes it should ask for a seed of its own.
    """
    made = build(settings(pair, **model), SOURCE_VOCABULARY, TARGET_VOCABULARY, LONGEST)
    assert isinstance(made, EncoderDecoder)
    return redrawn(made, seed)


def redrawn(module: M, seed: int = 1) -> M:
    """The module itself in float64, not training, with every weight drawn anew."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module.eval()


def draw(lengths: list[int], vocabulary: int, seed: int) -> Ragged:
    """Random tokens in rows of these lengths."""
    tokens = torch.randint(vocabulary, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    return Ragged.from_lengths(tokens, lengths)


def batch() -> tuple[Ragged, Ragged]:
    """Sources and targets of mixed lengths; one source is empty."""
    return draw([3, 1, 0, 6, 4], SOURCE_VOCABULARY, seed=2), draw([4, 2, 3, 1, 5], TARGET_VOCABULARY, seed=3)


def rows_of(x: Ragged) -> list[Tensor]:
    """The values of each row."""
    return list(x.values.split(x.lengths.tolist()))


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
