"""Export to CTranslate2, checked against the model it was made from.

    export(system, "runs/demo-ct2")            # float32: the outputs of Regard
    export(system, "runs/demo-int8", "int8")   # smaller and faster; what that costs is in the report
    load_engine("runs/demo-ct2").outputs(…)    # without the Regard model; see ct2_engine.py

An exported folder holds CTranslate2's own files, the tokenizers, `config.yaml`, and `export.json` with what it was made
from and how it was checked. Its tokens have the names of SentencePiece's pieces, so other programs can use it too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import regard
from regard.artifacts import new_folder, write_text
from regard.config import dump
from regard.data.marks import Frame
from regard.data.modalities.text import Text
from regard.encoder_settings import TransformerEncoderSettings
from regard.errors import ConfigError, OutputError
from regard.exchange.ct2_engine import EXPORT, CTranslate2Engine, Elsewhere, ct2, load_engine, names
from regard.exchange.parity import Report, check_rules, compare
from regard.fingerprint import content_of
from regard.loading import CONFIG, token_files
from regard.models.stems import Embedding
from regard.nn.attention import MultiHeadAttention
from regard.nn.blocks import FeedForward
from regard.nn.positions import Learned, Relative, Shaw
from regard.search.ensemble import Ensemble
from regard.system import System, load
from regard.tasks.generating import TextGeneration
from regard.training.checkpoint import WEIGHTS
from regard.transformer_settings import TransformerSettings

KIND = "CTranslate2 export"
QUANTIZATIONS = (
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16",
)  # fmt: skip
# The search that a model and its export are compared with.
COMPARED = {"beam": 5, "stop": "heuristic", "at_limit": "scored", "repetition_penalty": 1.0, "no_repeat": 0}
POSITIONS = ("sinusoidal", "sinusoidal_halves", "learned", "shaw", "t5", "rotary", "alibi")
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def export(
    system: System, folder: str | Path, quantization: str | None = None, *, lines: int = 32, force: bool = False
) -> Report:
    """Write a model in CTranslate2's format, and compare the outputs of both on some validation data.

    `quantization` is how weights are stored (float32); in float32, outputs that differ from Regard's are an error.
    `force` replaces an older export, and nothing else.
    """
    folder, quantization = Path(folder), quantization or "float32"
    if quantization not in QUANTIZATIONS:
        raise ConfigError(f"unknown quantization '{quantization}'; there are: {', '.join(QUANTIZATIONS)}")
    spec, task = specify(system), system.task
    with new_folder(folder, KIND, force=force) as new:
        spec.optimize(quantization)
        spec.save(str(new))
        task.sides.save(new)
        write_text(new / CONFIG, dump(system.config))
        facts = {"quantization": quantization, "made_from": made_from(system.folder), "regard": regard.__version__}
        write_text(new / EXPORT, json.dumps(facts, indent=1) + "\n")
        engine = load_engine(new, exact=True)
        assert isinstance(task, TextGeneration), "which has an encoder and a decoder"
        report = compare(
            task, lambda items, search, prefixes: engine.search(items, search),
            system.config.search.model_copy(update=COMPARED), lines, folder, new, quantization=quantization,
            computed_in=engine.compute_type,
        )  # fmt: skip
        write_text(new / EXPORT, json.dumps({**facts, "report": asdict(report)}, indent=1) + "\n")
    return report


def open_engine(
    folder: str | Path, quantization: str | None = None, device: str = "cpu", threads: int | None = None, *,
    exact: bool = False,
) -> CTranslate2Engine:  # fmt: skip
    """An engine for an export, or for a trained model, which is exported to `exports/` in its folder if need be."""
    folder = Path(folder) if (Path(folder) / EXPORT).exists() else exported(Path(folder), quantization)
    engine = load_engine(folder, device, threads, exact=exact)
    if quantization not in (None, engine.quantization):
        raise ConfigError(f"{folder} is stored as {engine.quantization}, not {quantization}; export the model anew")
    return engine


def exported(model: Path, quantization: str | None = None) -> Path:
    """The export of a trained model in its own folder, which is made anew whenever the model is another."""
    folder = model / "exports" / f"ctranslate2-{quantization or 'float32'}"
    try:
        if json.loads((folder / EXPORT).read_text(encoding="utf-8"))["made_from"] == made_from(model):
            return folder
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        export(load(model, device="cpu"), folder, quantization, force=True)
    except OSError as error:
        raise OutputError(f"cannot write {folder} ({error.strerror}); export to another folder first") from None
    return folder


def made_from(model: Path) -> str | None:
    """A digest of a trained model (settings, tokens, weights), and the version of the CTranslate2 that exports it."""
    if not (model / WEIGHTS).exists():
        return None
    return content_of(model / name for name in (CONFIG, WEIGHTS, *token_files(model))) + str(ct2().__version__)


# The network, part by part


def specify(system: System) -> Any:
    """The model as CTranslate2's specification, with copies of its weights."""
    one, other = _settings(system)
    model: Any = system.task.model
    specs, longest = ct2().specs.transformer_spec, system.task.longest
    encoder = specs.TransformerEncoderSpec(one.layers, one.heads, **_options(one))
    decoder = specs.TransformerDecoderSpec(other.layers, other.heads, **_options(other))
    _embed(encoder.embeddings[0], encoder, model.encoder, model.encoder.stem.embedding, longest)
    _embed(decoder.embeddings, decoder, model.decoder, model.decoder.embedding, longest)
    if model.decoder.scale is not None:
        decoder.scale_outputs = np.float32(model.decoder.scale)
    for layer, block in zip(encoder.layer, model.encoder.blocks, strict=True):
        _self_attention(layer.self_attention, block.self_attention, block.around_attention.norm, longest)
        _feed_forward(layer.ffn, block.feed_forward, block.around_feed_forward.norm)
    for layer, block in zip(decoder.layer, model.decoder.blocks, strict=True):
        _self_attention(layer.self_attention, block.self_attention, block.around_self.norm, longest)
        _cross_attention(layer.attention, block.cross_attention, block.around_cross.norm)
        _feed_forward(layer.ffn, block.feed_forward, block.around_feed_forward.norm)
    _linear(decoder.projection, model.head.linear.weight, model.head.linear.bias)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = one.norm_epsilon
    frame = _frame(system)
    spec.config.add_source_bos, spec.config.add_source_eos = bool(frame.before), bool(frame.after)
    source, target = system.task.source.tokenizer, system.task.target.tokenizer
    assert source is not None, "exported models read text"
    assert target is not None, "exported models write text"
    read, written, marks = names(source), names(target), target.marks
    begin = marks.first[0] if marks.begin is None else marks.begin
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (
        written[i] for i in (begin if marks.unknown is None else marks.unknown, begin, marks.end)
    )
    spec.config.decoder_start_token = written[system.task.first[-1]]
    spec.register_source_vocabulary(read)
    spec.register_target_vocabulary(written)
    spec.validate()
    return spec


def _settings(system: System) -> Sequence[TransformerSettings]:
    """The settings of encoder and decoder, if they are what CTranslate2 runs."""
    config, found = system.config.model, []
    model: nn.Module = system.task.model
    if isinstance(model, Ensemble):
        raise ConfigError("CTranslate2 runs one model at a time; export each of the ensemble by itself")
    if isinstance(model, Elsewhere):
        raise ConfigError(f"{system.folder} is an export itself; export the Regard model it was made from")
    if not system.config.target.text:
        raise ConfigError(f"target.kind is '{system.config.target.kind}': CTranslate2 runs models that write text")
    if len(system.config.sources) > 1:
        raise ConfigError("CTranslate2 runs models of one source; this one has several")
    if config.ctc:
        raise ConfigError("models with model.ctc cannot be exported: Regard alone sums over the paths of CTC")
    if config.output != "full":
        raise ConfigError("models with model.output adaptive cannot be exported: its clusters are Regard's own")
    if config.softmaxes > 1:
        raise ConfigError(f"model.softmaxes is {config.softmaxes}, and CTranslate2 has one softmax; try --to onnx")
    first = system.config.sources[0]
    if system.config.denoises:
        raise ConfigError(f"{system.folder} learnt to undo noise alone; export the model of a task that begins from it")
    if first.given and (not first.text or first.spelled):
        raise ConfigError(f"source.kind is {first.kind}, and CTranslate2 runs models that read text")
    for name, part in (("encoder", config.encoders[0]), ("decoder", config.decoder)):
        if not isinstance(part, TransformerSettings):
            runs = "encoders with decoders" if part.kind == "none" else "Transformers"
            raise ConfigError(f"model.{name}.kind is {part.kind}, and CTranslate2 runs {runs} alone; try --to onnx")
        if part.positions not in POSITIONS:
            raise ConfigError(f"model.{name}.positions is {part.positions}, which CTranslate2 has not; try --to onnx")
        found.append(part)
    reads = config.encoders[0]
    if isinstance(reads, TransformerEncoderSettings) and reads.width:
        raise ConfigError(f"model.encoder.width is {reads.width}, and CTranslate2 has one width; try --to onnx")
    if segments := getattr(reads.stem, "segments", 0):
        raise ConfigError(f"model.encoder.stem.segments is {segments}: CTranslate2 has no vectors of segments here")
    if found[0].norm_epsilon != found[1].norm_epsilon:
        raise ConfigError("CTranslate2 has one norm_epsilon for encoder and decoder; here they differ; try --to onnx")
    return found


def _frame(system: System) -> Frame:
    """The marks around a source, if CTranslate2 has them."""
    task, source = system.task, system.task.source
    assert isinstance(source, Text), "exported models read text"
    check_rules(task)
    begin, frame, marks = task.target.marks.begin, source.frame, source.tokenizer.marks
    begins, ends = (() if begin is None else (begin,)), (marks.end,)
    if frame.before not in ((), begins) or frame.after not in ((), ends):
        names = " ".join(marks.names[i] for i in (*frame.before, *frame.after))
        raise ConfigError(f"the marks around a source ({names}) are more than CTranslate2 has")
    return frame


def _options(part: TransformerSettings) -> dict[str, Any]:
    return {
        "pre_norm": part.norm == "pre",
        "activation": ct2().specs.common_spec.Activation[ACTIVATIONS[part.activation]],
        "ffn_glu": part.gated,
        "rms_norm": part.normalize == "rms",
        "relative_position": part.positions == "shaw",
        "relative_attention_bias": part.positions in ("t5", "alibi"),
        "rotary_dim": 0 if part.positions == "rotary" else None,  # 0: all; pairs stand side by side, as here
        "layernorm_embedding": part.embedding_norm,
        "head_dim": part.d_head,
    }


def _copy(tensor: Tensor) -> Tensor:
    """CTranslate2 quantises in place, so it never gets a model's own weights."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous()


def _embed(embeddings: Any, spec: Any, part: Any, embedding: Embedding, longest: int) -> None:
    """Embeddings, which are scaled by `√d_model` there too if they are here; positions, of which the built-in ones
    begin at 1; the first norm and the last."""
    embeddings.weight = _copy(embedding.table.weight)
    spec.scale_embeddings = embedding.scale != 1.0
    if part.embedding_norm is not None:
        _norm(spec.layernorm_embedding, part.embedding_norm)
    if isinstance(part.positions, Learned):
        spec.position_encodings.encodings = _copy(part.positions.table.weight[part.positions.first :])
    elif part.positions is not None:
        device = embedding.table.weight.device
        spec.position_encodings.encodings = _copy(part.positions(torch.arange(longest, device=device)))
    if not isinstance(part.final, nn.Identity):
        _norm(spec.layer_norm, part.final)


def _self_attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module, longest: int) -> None:
    _norm(spec.layer_norm, norm)
    _linear(spec.linear[0], attention.inputs.weight, attention.inputs.bias)
    _linear(spec.linear[1], attention.output.weight, attention.output.bias)
    _scale(spec, attention)
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
    queries = torch.zeros(1, attention.heads, 1, attention.d_head, device=device)
    sides = [behind] if attention.causal else [behind, -behind]
    return torch.cat([_copy(relative.scores(queries, side[None])[0, :, 0].mT) for side in sides])


def _cross_attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module) -> None:
    width, weight = attention.width, attention.inputs.weight
    bias: Tensor | None = attention.inputs.bias
    _norm(spec.layer_norm, norm)
    _linear(spec.linear[0], weight[:width], None if bias is None else bias[:width])
    _linear(spec.linear[1], weight[width:], None if bias is None else bias[width:])
    _linear(spec.linear[2], attention.output.weight, attention.output.bias)
    _scale(spec, attention)


def _scale(spec: Any, attention: MultiHeadAttention) -> None:
    """What queries are multiplied by, where it is not `1 / √d_head`."""
    if attention.stretch is not None:
        spec.queries_scale = np.float32(1.0)


def _feed_forward(spec: Any, part: FeedForward, norm: nn.Module) -> None:
    _norm(spec.layer_norm, norm)
    for inner, layer in ((spec.linear_0, part.inner), (spec.linear_1, part.outer)):
        _linear(inner, layer.weight, layer.bias)
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
