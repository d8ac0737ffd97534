"""Export to CTranslate2, held against the model it was made from.

    export(system, "runs/demo-ct2")            # float32: writes what Regard writes
    export(system, "runs/demo-int8", "int8")   # smaller and faster; what that costs is in the report
    load_engine("runs/demo-ct2").outputs(…)    # without the Regard model; see ct2_engine.py

An exported folder is whole: CTranslate2's own files, the tokenizers, `config.yaml`, and `export.json` with what it was
made from and how it was checked. Its tokens have the names of SentencePiece's pieces, so other programs can use it too;
the mark that ends a source is added by CTranslate2.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import regard
from regard.artifacts import new_folder, write_text
from regard.config import dump
from regard.data.examples import Example, read_examples
from regard.data.sources import Item
from regard.data.tokens import BOS, EOS, MARKS, UNK, Tokenizer, clean
from regard.errors import ConfigError, DataError, ModelError, OutputError
from regard.evaluation.metrics import bleu_score, chrf_score
from regard.exchange.ct2_engine import EXPORT, CTranslate2Engine, ct2, load_engine, names
from regard.models.model import EncoderDecoder, FillIn, OneNetwork, Reader
from regard.nn.attention import MultiHeadAttention
from regard.nn.blocks import FeedForward
from regard.nn.positions import Learned, Relative, Shaw
from regard.parts import TransformerSettings
from regard.search.ensemble import Ensemble
from regard.system import CONFIG, System, load, save_tokenizers
from regard.tasks.task import Task
from regard.training.checkpoint import weights

KIND = "CTranslate2 export"
QUANTIZATIONS = (
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16",
)  # fmt: skip
BEAM = 5  # to compare with
TOLERANCE = 1e-3  # of `log p` of a token, in float32
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}


@dataclass(frozen=True)
class Report:
    """How an export compares with the model it was made from, on some lines. Both search alike (`same`)."""

    folder: str
    quantization: str
    computed_in: str  # here; not every machine computes in what is stored
    bytes: int
    lines: int
    made_up: bool  # the lines: no validation data were found
    difference: float  # the largest, of `log p` of a token
    greedy_same: int
    beam: int
    beam_same: int
    chrf: float  # of the export's outputs against Regard's, from beam search
    bleu: tuple[float, float] | None  # of Regard's outputs and the export's, where there are references

    def __str__(self) -> str:
        computed = "" if self.computed_in == self.quantization else f" (computed in {self.computed_in} here)"
        against = f"; BLEU {self.bleu[0]:.2f} before, {self.bleu[1]:.2f} after" if self.bleu else ""
        return (
            f"{self.folder}: {self.quantization}{computed}, {self.bytes / 2**20:.1f} MiB; of {self.lines} "
            f"{'made-up lines' if self.made_up else 'lines'} {self.greedy_same} are written the same greedily and "
            f"{self.beam_same} with beam {self.beam} (chrF {self.chrf:.1f}); log p of a token differs by at most "
            f"{self.difference:.1e}{against}"
        )


def export(
    system: System, folder: str | Path, quantization: str | None = None, *, lines: int = 32, force: bool = False
) -> Report:
    """Write a model as CTranslate2 reads it, and compare the two on some lines of the validation data.

    `quantization` is how weights are stored, float32 if not given, with which a folder that writes something else than
    Regard is an error. `force` replaces an older export, and nothing else.
    """
    folder, quantization = Path(folder), quantization or "float32"
    if quantization not in QUANTIZATIONS:
        raise ConfigError(f"unknown quantization '{quantization}'; there are: {', '.join(QUANTIZATIONS)}")
    spec = specify(system)
    with new_folder(folder, KIND, force=force) as new:
        spec.optimize(quantization)
        spec.save(str(new))
        save_tokenizers(new, system.task.source.tokenizer, system.task.target)
        write_text(new / CONFIG, dump(system.config))
        facts = {
            "quantization": quantization,
            "made_from": digest(system),
            "regard": regard.__version__,
            "ctranslate2": ct2().__version__,
        }
        write_text(new / EXPORT, json.dumps(facts, indent=1) + "\n")
        report = compare(system, load_engine(new, same=True), folder, quantization, max(1, lines))
        write_text(new / EXPORT, json.dumps({**facts, "report": asdict(report)}, indent=1) + "\n")
    return report


def engine_for(
    system: System, quantization: str | None = None, device: str = "cpu", threads: int | None = None, *,
    same: bool = False,
) -> CTranslate2Engine:  # fmt: skip
    """An engine for a trained model: exported to `exports/` in its folder, anew whenever the model is another."""
    folder = system.folder / "exports" / f"ctranslate2-{quantization or 'float32'}"
    try:
        known = json.loads((folder / EXPORT).read_text(encoding="utf-8"))
        fresh = known["made_from"] == digest(system) and known["ctranslate2"] == ct2().__version__
    except (OSError, ValueError, KeyError, TypeError):
        fresh = False
    if not fresh:
        try:
            export(system, folder, quantization, force=True)
        except OSError as error:
            raise OutputError(f"cannot write {folder} ({error.strerror}); export to another folder first") from None
    return load_engine(folder, device, threads, same=same)


def open_engine(
    folder: str | Path, quantization: str | None = None, device: str = "cpu", threads: int | None = None, *,
    same: bool = False,
) -> CTranslate2Engine:  # fmt: skip
    """An engine for a folder of either kind: an export, or a trained model, which is exported if need be."""
    folder = Path(folder)
    if not (folder / EXPORT).exists():
        return engine_for(load(folder, device="cpu"), quantization, device, threads, same=same)
    engine = load_engine(folder, device, threads, same=same)
    stored = json.loads((folder / EXPORT).read_text(encoding="utf-8"))["quantization"]
    if quantization not in (None, stored):
        raise ConfigError(f"{folder} is stored as {stored}, not {quantization}; export the model anew")
    return engine


def digest(system: System) -> str:
    """What tells a model from others: its settings (but not where its data are), tokens and weights."""
    config = system.config
    parts = [config.data.source, config.data.max_length, config.tokens, config.model, config.search]
    found = hashlib.sha256(repr(parts).encode())
    for tokenizer in (system.task.source.tokenizer, system.task.target):
        found.update(json.dumps(names(tokenizer) if tokenizer else None).encode())
    for name, tensor in sorted(weights(system.task.model).items()):
        found.update(f"{name} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


# The network, part by part


def specify(system: System) -> Any:
    """The model as CTranslate2's specification, with copies of its weights."""
    one, other = _blocks(system)
    model: Any = system.task.model
    specs = ct2().specs.transformer_spec
    encoder = specs.TransformerEncoderSpec(one.layers, one.heads, **_options(one))
    decoder = specs.TransformerDecoderSpec(other.layers, other.heads, **_options(other))
    longest = system.task.longest
    _embed(encoder.embeddings[0], encoder, model.encoder, longest)
    _embed(decoder.embeddings, decoder, model.decoder, longest)
    for layer, block in zip(encoder.layer, model.encoder.blocks, strict=True):
        _self_attention(layer.self_attention, block.self_attention, block.around_attention.norm, longest)
        _feed_forward(layer.ffn, block.feed_forward, block.around_feed_forward.norm)
    for layer, block in zip(decoder.layer, model.decoder.blocks, strict=True):
        _self_attention(layer.self_attention, block.self_attention, block.around_self.norm, longest)
        _cross_attention(layer.attention, block.cross_attention, block.around_cross.norm)
        _feed_forward(layer.ffn, block.feed_forward, block.around_feed_forward.norm)
    _linear(decoder.projection, model.head.linear.weight, model.head.linear.bias)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = 1e-5
    spec.config.add_source_eos = True
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = MARKS[UNK], MARKS[BOS], MARKS[EOS]
    spec.config.decoder_start_token = MARKS[system.task.first]
    spec.register_source_vocabulary(names(_reads(system)))
    spec.register_target_vocabulary(names(system.task.target))
    spec.validate()
    return spec


def _blocks(system: System) -> tuple[TransformerSettings, TransformerSettings]:
    """The settings of encoder and decoder, if they are what CTranslate2 runs."""
    encoder, decoder = system.config.model.encoder, system.config.model.decoder
    model: nn.Module = system.task.model
    match model:
        case EncoderDecoder():
            pass
        case Reader():
            raise ConfigError(f"model.head is '{system.config.model.head}': CTranslate2 runs models that write text")
        case OneNetwork() | FillIn():
            missing = "encoder" if encoder.kind == "none" else "decoder"
            raise _refusal(f"model.{missing}.kind is none", "encoders with decoders")
        case Ensemble():
            raise ConfigError("CTranslate2 runs one model at a time; export each of the ensemble by itself")
        case _:
            raise ConfigError(f"{system.folder} is an export itself; export the Regard model it was made from")
    if not isinstance(encoder, TransformerSettings):
        raise _refusal(f"model.encoder.kind is {encoder.kind}", "Transformers")
    if not isinstance(decoder, TransformerSettings):
        raise _refusal(f"model.decoder.kind is {decoder.kind}", "Transformers")
    return encoder, decoder


def _reads(system: System) -> Tokenizer:
    assert system.task.source.tokenizer is not None, "a Transformer reads text"
    return system.task.source.tokenizer


def _refusal(what: str, runs: str) -> ConfigError:
    return ConfigError(f"{what}, and CTranslate2 runs {runs} alone; try --to onnx")


def _options(part: TransformerSettings) -> dict[str, Any]:
    return {
        "pre_norm": part.norm == "pre",
        "activation": ct2().specs.common_spec.Activation[ACTIVATIONS[part.activation]],
        "ffn_glu": part.gated,
        "rms_norm": part.normalize == "rms",
        "relative_position": part.positions == "shaw",
        "relative_attention_bias": part.positions in ("t5", "alibi"),
        "rotary_dim": 0 if part.positions == "rotary" else None,  # 0: all; pairs stand side by side, as here
    }


def _copy(tensor: Tensor) -> Tensor:
    """CTranslate2 quantises in place, so it never gets a model's own weights."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous()


def _embed(embeddings: Any, spec: Any, part: Any, longest: int) -> None:
    """Embeddings, which are scaled by `√d_model` there too; positions, of which the built-in ones begin at 1; the last
    norm."""
    embeddings.weight = _copy(part.embedding.table.weight)
    if isinstance(part.positions, Learned):
        spec.position_encodings.encodings = _copy(part.positions.table.weight)
    elif part.positions is not None:
        device = part.embedding.table.weight.device
        spec.position_encodings.encodings = _copy(part.positions(torch.arange(longest, device=device)))
    if not isinstance(part.final, nn.Identity):
        _norm(spec.layer_norm, part.final)


def _self_attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module, longest: int) -> None:
    _norm(spec.layer_norm, norm)
    _linear(spec.linear[0], attention.inputs.weight, attention.inputs.bias)
    _linear(spec.linear[1], attention.output.weight, attention.output.bias)
    if isinstance(attention.relative, Shaw):
        spec.relative_position_keys = _copy(attention.relative.key_table.weight)
        spec.relative_position_values = _copy(attention.relative.value_table.weight)
    elif attention.relative is not None and attention.relative.adds:
        spec.relative_attention_bias = _bias(attention, attention.relative, longest)
        spec.relative_attention_max_distance = np.int32(2 * longest)


def _bias(attention: MultiHeadAttention, relative: Relative, longest: int) -> Tensor:
    """What is added to the scores at each distance, `(rows, heads)`, laid out as T5's table.

    CTranslate2 has a row for each distance up to half of those for one direction, and wider ones beyond: with twice as
    many rows as there are distances, only single ones. So ALiBi fits in both directions, and T5's wide rows are written
    out, which leaves no logarithm to round.
    """
    device = attention.output.weight.device
    behind = -torch.arange(2 * longest, device=device).clamp(max=longest - 1)
    queries = torch.zeros(1, attention.heads, 1, attention.d_model // attention.heads, device=device)
    sides = [behind] if attention.causal else [behind, -behind]
    return torch.cat([_copy(relative.scores(queries, side[None])[0, :, 0].mT) for side in sides])


def _cross_attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module) -> None:
    width, inputs = attention.d_model, attention.inputs
    _norm(spec.layer_norm, norm)
    _linear(spec.linear[0], inputs.weight[:width], inputs.bias[:width])
    _linear(spec.linear[1], inputs.weight[width:], inputs.bias[width:])
    _linear(spec.linear[2], attention.output.weight, attention.output.bias)


def _feed_forward(spec: Any, part: FeedForward, norm: nn.Module) -> None:
    _norm(spec.layer_norm, norm)
    _linear(spec.linear_0, part.inner.weight, part.inner.bias)
    _linear(spec.linear_1, part.outer.weight, part.outer.bias)
    if part.gate is not None:
        _linear(spec.linear_0_noact, part.gate.weight, part.gate.bias)


def _linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _copy(weight)
    if bias is not None:
        spec.bias = _copy(bias)


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = _copy(norm.weight)
    if isinstance(norm, nn.LayerNorm):  # RMSNorm has no other weight
        spec.beta = _copy(norm.bias)


# Held against each other


def compare(system: System, engine: CTranslate2Engine, folder: Path, quantization: str, count: int) -> Report:
    """Decode and score some lines with both. In float32 a difference beyond rounding is an error."""
    examples, made_up = _examples(system, count)
    texts, task = [x.source for x in examples], system.task
    items = task.source.encode_many(texts)
    greedy, beam = (_both(system, engine, texts, width) for width in (1, BEAM))
    pairs = [(x, y) for ours, _ in (greedy, beam) for x, y in zip(items, ours, strict=True) if y]
    scored = [one.score_items([x for x, _ in pairs], [y for _, y in pairs]) for one in (task, engine)]
    difference = max(
        (abs(a - b) for x, y in zip(*scored, strict=True) for a, b in zip(x.tokens, y.tokens, strict=True)), default=0.0
    )
    before, after = ([clean(task.target.decode(tokens)) for tokens in side] for side in beam)
    references = [clean(x.target) for x in examples]
    report = Report(
        folder=str(folder),
        quantization=quantization,
        computed_in=engine.compute_type,
        bytes=(engine.folder / "model.bin").stat().st_size,
        lines=len(texts),
        made_up=made_up,
        difference=difference,
        greedy_same=len(texts) - len(_apart(*greedy)),
        beam=BEAM,
        beam_same=len(texts) - len(_apart(*beam)),
        chrf=chrf_score(after, before).value,
        bleu=None if made_up else (bleu_score(before, references).value, bleu_score(after, references).value),
    )
    if quantization == "float32":
        wrong = any(not _tie(task, items[i], greedy[0][i], greedy[1][i]) for i in _apart(*greedy))
        # Beams may part at any near tie, also at one that neither output shows.
        if difference > TOLERANCE or wrong or len(_apart(*beam)) > max(1, len(texts) // 10):
            raise ModelError(f"the export does not write what the model writes, and is thrown away: {report}")
    return report


def _both(system: System, engine: CTranslate2Engine, texts: Sequence[str], beam: int) -> list[list[list[int]]]:
    """The best outputs of both, under the model's own settings of search but for what an engine does not have."""
    plain = {"nbest": 1, "sample": False, "mbr": 0, "contrastive": 0.0, "groups": 1, "coverage": 0.0, "exact": False}
    search = system.search(**{**plain, "beam": beam, "no_repeat": 0})
    found = (one.outputs(texts, search, lambda *_: None) for one in (system.task, engine))
    return [[some[0].tokens if some else [] for some in outputs] for outputs in found]


def _apart(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> list[int]:
    return [i for i, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]


def _tie(task: Task, source: Item, one: list[int], other: list[int]) -> bool:
    """Whether two outputs part where either token was as likely."""
    parting = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    scores = [pair.tokens[parting] for pair in task.score_items([source] * 2, [one, other])]
    return abs(scores[0] - scores[1]) < TOLERANCE


def _examples(system: System, count: int) -> tuple[list[Example], bool]:
    """Some validation data; where the files are not there, lines of tokens drawn from a seed, and True."""
    try:
        found = list(read_examples(system.config.data, "valid"))
        count = min(count, len(found))
        return [found[i * len(found) // count] for i in range(count)], False
    except (DataError, OSError):
        draw, tokenizer = random.Random(1), _reads(system)
        lengths = [draw.randint(1, min(24, system.config.search.max_source)) for _ in range(count)]
        tokens = [[draw.randrange(len(MARKS), tokenizer.size) for _ in range(length)] for length in lengths]
        return [Example(tokenizer.decode(line), "") for line in tokens], True
