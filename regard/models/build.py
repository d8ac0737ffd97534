"""Settings to a model: the one place that puts parts together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.data.marks import NATIVE, Marks
from regard.decoder_settings import AwdLstmSettings, RecurrentDecoderSettings, TransformerDecoderSettings
from regard.encoder_settings import EncoderSettings, TransformerEncoderSettings
from regard.errors import ConfigError
from regard.model_settings import ModelSettings
from regard.models.awd_lstm import AwdLstmDecoder
from regard.models.ctc import CTCHead, CTCModel
from regard.models.electra import NarrowStem, ReplacedTokenModel
from regard.models.elmo import BidirectionalLanguageModel
from regard.models.encoders import SeveralEncoders, transformer_parts
from regard.models.mixture import MixtureHead
from regard.models.model import (
    DecoderOnly,
    EncoderDecoder,
    EncoderWithHead,
    Head,
    MaskedLanguageModel,
    Model,
    Pool,
)
from regard.models.recurrent import RecurrentDecoder
from regard.models.stems import Elements, Embedding, Stem, TokenStem, VectorStem
from regard.models.transformer import TransformerDecoder
from regard.nn.adaptive import AdaptiveHead
from regard.nn.attention import Attention
from regard.nn.blocks import DecoderBlock
from regard.nn.crf import Chain
from regard.nn.hard import HardAttention
from regard.registry import BODIES, SCORES, STEMS
from regard.section import TargetSettings
from regard.stem_settings import StemSettings, TokenStemSettings

AnyModel = Model | ReplacedTokenModel | BidirectionalLanguageModel
PIXELS = 224  # a side of the pictures for which a model is counted that is not built


def build(
    settings: ModelSettings, sources: int | Sequence[Elements], outputs: int, longest: int,
    target: TargetSettings | None = None, marks: Marks = NATIVE,
) -> AnyModel:  # fmt: skip
    """A new model with weights drawn from torch's random state. It reads `sources` (of one text, the vocabulary will
    do) and has so many `outputs`: tokens, of which some are `marks`, or classes of `target`. `longest` bounds learned
    positions."""
    given = [Elements(sources)] if isinstance(sources, int) else list(sources)
    d_model, dropout, causal = settings.d_model, settings.dropout, settings.decoder_only
    if target is not None and not target.written:
        pool: Pool = "each" if target.of_words or target.of_places else "last" if causal else "summary"
        if pool == "summary" and len(given) == 1:
            if _stem_settings(settings, 0, given[0]).has_whole:
                pool = "class"
            elif isinstance(settings.encoder, TransformerEncoderSettings) and given[0].vocabulary:
                pool = "first"
        pool = target.pool or pool
        if causal:
            read = Embedding(given[0].vocabulary, d_model, dropout, scaled=settings.scale_embeddings)
            body = build_decoder(settings, read, longest)
        else:
            body = build_encoders(settings, given, longest)
        chain = Chain(outputs) if target.chained else None
        return EncoderWithHead(
            body, d_model, outputs, dropout, pool, causal=causal, pooler=settings.pooler, bias=settings.output_bias,
            chain=chain, projected=target.projects,
        )  # fmt: skip
    if settings.encoder_only and not settings.ctc and settings.encoders[0].two_way:
        narrow = Head(settings.encoders[0].stem_width(d_model), outputs, None, bias=settings.output_bias)
        return BidirectionalLanguageModel(build_encoder(settings, 0, given[0], longest), narrow)
    embedding = Embedding(outputs, d_model, dropout, scaled=settings.scale_embeddings)
    head = build_output(settings, outputs, embedding)
    if settings.encoder_only and settings.ctc:
        return CTCModel(build_encoders(settings, given, longest), CTCHead(d_model, outputs, marks))
    if settings.encoder_only:
        read_by = Elements(outputs, embedding=embedding, separator=given[0].separator if given else None)
        encoder = build_encoder(settings, 0, read_by, longest)
        if settings.generator is None:
            return MaskedLanguageModel(encoder, d_model, head, _epsilon(settings))
        return ReplacedTokenModel(encoder, build_generator(settings, encoder.stem, head, longest), d_model)
    if causal:
        return DecoderOnly(build_decoder(settings, embedding, longest), head)
    if settings.share_embeddings:
        shared = [one.vocabulary == outputs and not one.own_tokens for one in given]
        given = [replace(one, embedding=embedding) if same else one for one, same in zip(given, shared, strict=True)]
    encoder = build_encoders(settings, given, longest)
    decoder = build_decoder(settings, embedding, longest)
    if settings.share_layers:
        share(encoder, decoder)
    return EncoderDecoder(encoder, decoder, head, CTCHead(d_model, outputs, marks) if settings.ctc else None)


def build_output(settings: ModelSettings, outputs: int, embedding: Embedding) -> Head:
    """The output layer over so many tokens."""
    tied = embedding if settings.tie_output else None
    if settings.softmaxes > 1:
        return MixtureHead(settings.d_model, outputs, tied, settings.softmaxes, settings.dropout)
    if settings.output == "full":
        return Head(settings.d_model, outputs, tied, bias=settings.output_bias)
    cutoffs = settings.cutoffs or [max(1, outputs // 10), max(2, outputs // 3)]
    if cutoffs[-1] >= outputs:
        raise ConfigError(
            f"model.cutoffs ends at {cutoffs[-1]}, and there are {outputs} tokens; each cluster needs some, so lower it"
        )
    adaptive: Any = AdaptiveHead(settings.d_model, outputs, cutoffs, settings.reduction)
    return adaptive


def build_encoders(settings: ModelSettings, sources: Sequence[Elements], longest: int) -> nn.Module:
    """The encoder of a source, or those of several, with a body over them all if there is one."""
    own = sources[:1] if settings.share_encoder else sources
    encoders = [build_encoder(settings, number, one, longest) for number, one in enumerate(own)]
    if len(sources) == 1:
        return encoders[0]
    part, joint = settings.joint, None
    if part is not None:
        stem = VectorStem(None, Elements(), settings.d_model, settings.dropout)
        joint = BODIES.get(part.kind)(part, stem, settings.d_model, settings.dropout, longest * len(sources))
    return SeveralEncoders(encoders * (len(sources) // len(encoders)), joint, settings.d_model)


def _stem_settings(settings: ModelSettings, number: int, source: Elements) -> StemSettings:
    return settings.encoder_of(number).stem or source.stem or TokenStemSettings()


def build_encoder(settings: ModelSettings, number: int, source: Elements, longest: int) -> Any:
    """The encoder of a source: a stem and a body."""
    part: EncoderSettings = settings.encoder_of(number)
    chosen, source = _stem_settings(settings, number, source), replace(source, scaled=settings.scale_embeddings)
    stem: Stem = STEMS.get(chosen.kind)(chosen, source, part.stem_width(settings.d_model), settings.dropout)
    return BODIES.get(part.kind)(part, stem, settings.d_model, settings.dropout, longest)


def build_generator(settings: ModelSettings, wide: TokenStem, head: Head, longest: int) -> MaskedLanguageModel:
    """A smaller masked language model over the embedding of another, and under its output layer."""
    part, width = settings.generator_encoder, settings.generator_width
    stem = NarrowStem(wide, settings.d_model, width)
    body = BODIES.get(part.kind)(part, stem, width, settings.dropout, longest)
    return MaskedLanguageModel(body, settings.d_model, head, _epsilon(settings), width)


def _epsilon(settings: ModelSettings) -> float:
    """What norms beside the encoder's add to the variance: as much as its own."""
    return float(getattr(settings.encoder, "norm_epsilon", 1e-5))


def build_decoder(settings: ModelSettings, embedding: Embedding, longest: int) -> nn.Module:
    """The decoder, which attends to an encoder if there is one."""
    d_model, dropout, alone = settings.d_model, settings.dropout, settings.decoder_only
    match settings.decoder:
        case RecurrentDecoderSettings() as part:
            mode: str = "none" if alone else part.context or "attention"
            attention = None
            if mode == "attention":
                score = SCORES.get(part.score or "additive")(d_model // (part.heads or 1))
                attention = (HardAttention if part.hard else Attention)(score, part.heads, d_model)
                mode = part.place or "feeding"
            return RecurrentDecoder(
                embedding, part.kind, d_model, part.layers, mode=mode, attention=attention, bridge=part.bridge,
                dropout=dropout, gate=part.gate,
            )  # fmt: skip
        case AwdLstmSettings() as part:
            return AwdLstmDecoder(embedding, part, d_model)
        case TransformerDecoderSettings() as part:
            block = partial(DecoderBlock, cross=not alone)
            parts = transformer_parts(part, d_model, dropout, longest, block, True)
            return TransformerDecoder(embedding, parts, d_model**-0.5 if part.scale_output else None)
    raise AssertionError("no decoder to build")


def share(encoder: nn.Module, decoder: nn.Module) -> None:
    """Let the decoder use the encoder's own weights wherever both have a part of the same name and shape.

    Raffel et al. 2020, 3.2.2, tried it for Transformers: blocks share self-attention and feed-forward, and only the
    decoder attends to the source. Recurrent parts share their stack.
    """
    own = {_twin(name): parameter for name, parameter in encoder.named_parameters()}
    for name, parameter in list(decoder.named_parameters()):
        other = own.get(name)
        if other is not None and other.shape == parameter.shape and not name.startswith("embedding."):
            where, _, last = name.rpartition(".")
            if not where.endswith("relative.table"):  # of T5: a row is another distance where it looks both ways
                setattr(decoder.get_submodule(where), last, other)


def _twin(name: str) -> str:
    """What the decoder calls the same part."""
    name = name.replace("around_attention.", "around_self.")
    match = re.fullmatch(r"forwards\.(\d+)\.layers\.0\.(.*)", name)
    return f"recurrence.layers.{match[1]}.{match[2]}" if match else name


FILLING = {nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_}


class _Unfilled(TorchFunctionMode):
    """Leaves new weights as they are: on the meta device there is nothing to fill, and to draw from a normal
    distribution there imports torch's compiler, which takes two seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FILLING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def count_parameters(
    settings: ModelSettings, vocabulary: int, target: TargetSettings | None = None,
    sources: Sequence[Elements] | None = None,
) -> int:  # fmt: skip
    """How many numbers such a model learns, without making it: of `sources`, or of a text of this vocabulary; a head
    over a body has two labels."""
    written = target is None or target.written
    with torch.device("meta"), _Unfilled():
        given = sources or [Elements(vocabulary, (3 * PIXELS,))]
        model = build(settings, given, vocabulary if written else 2, 1024, target)
    return sum(parameter.numel() for parameter in model.parameters())
