"""Settings to a model: the one place that knows which setting names which class."""

from __future__ import annotations

import re

import torch
from torch import nn

from regard import parts as config
from regard.models.encoders import ConvolutionEncoder, Embedding, RecurrentEncoder, TransformerEncoder
from regard.models.model import EncoderDecoder, FillIn, Head, Model, OneNetwork, Pool, Reader
from regard.models.recurrent import RecurrentDecoder
from regard.models.transformer import TransformerDecoder
from regard.nn.attention import Attention
from regard.nn.blocks import DecoderBlock, EncoderBlock, make_norm
from regard.nn.hard import HardAttention
from regard.nn.positions import Alibi, Learned, Relative, Rotary, Shaw, Sinusoidal, T5Bias
from regard.nn.scores import SCORES


def build(settings: config.Model, source_vocabulary: int, target_vocabulary: int, longest: int) -> Model:
    """A new model with weights drawn from torch's random state. `longest` bounds learned positions."""
    d_model, dropout = settings.d_model, settings.dropout
    if settings.head != "text":
        return build_reader(settings, source_vocabulary, target_vocabulary, longest)
    target = Embedding(target_vocabulary, d_model, dropout)
    head = Head(d_model, target_vocabulary, target if settings.tie_output else None)
    match settings.encoder, settings.decoder:
        case _, config.NoDecoder():
            return FillIn(build_encoder(settings, target, longest), d_model, head)
        case config.NoEncoder(), _:
            return OneNetwork(build_decoder(settings, target, longest), head)
        case config.ConvolutionEncoder(), _:
            source = None
        case _:
            source = target if settings.share_embeddings else Embedding(source_vocabulary, d_model, dropout)
    encoder = build_encoder(settings, source, longest)
    decoder = build_decoder(settings, target, longest)
    if settings.share_layers:
        share(encoder, decoder)
    return EncoderDecoder(encoder, decoder, head)


def build_reader(settings: config.Model, source_vocabulary: int, target_vocabulary: int, longest: int) -> Reader:
    """A body and a head, which tells one of the `target_vocabulary` labels, or a number."""
    d_model, dropout, alone = settings.d_model, settings.dropout, isinstance(settings.encoder, config.NoEncoder)
    embedding = Embedding(source_vocabulary, d_model, dropout) if source_vocabulary else None
    pool: Pool = "each" if settings.head == "tags" else "last" if alone else "summary"
    if pool == "summary" and isinstance(settings.encoder, config.TransformerEncoder):
        pool = "first"
    if alone:
        assert embedding is not None, "a decoder reads text"
        body = build_decoder(settings, embedding, longest)
    else:
        body = build_encoder(settings, embedding, longest)
    outputs = 1 if settings.head == "number" else target_vocabulary
    return Reader(body, d_model, outputs, dropout, pool, alone=alone)


def build_encoder(settings: config.Model, embedding: Embedding | None, longest: int) -> nn.Module:
    d_model, dropout = settings.d_model, settings.dropout
    match settings.encoder:
        case config.ConvolutionEncoder() as part:
            return ConvolutionEncoder(
                d_model, part.halvings, part.channels, coordinates=part.coordinates, dropout=dropout
            )
        case config.RecurrentEncoder() as part if embedding is not None:
            return RecurrentEncoder(
                embedding, part.kind, d_model, part.layers, bidirectional=part.bidirectional, reverse=part.reverse,
                dropout=dropout,
            )  # fmt: skip
        case config.TransformerEncoder() as part if embedding is not None:
            blocks = [
                EncoderBlock(
                    d_model, part.heads, part.d_ff, norm=part.norm, normalize=part.normalize, gated=part.gated,
                    activation=part.activation, dropout=dropout, relative=relative,
                )
                for relative in _relative(part, d_model, causal=False)
            ]  # fmt: skip
            return TransformerEncoder(embedding, _positions(part, d_model, longest), blocks, _final(part, d_model))
    raise AssertionError("no encoder to build")


def build_decoder(settings: config.Model, embedding: Embedding, longest: int) -> nn.Module:
    d_model, dropout = settings.d_model, settings.dropout
    alone = isinstance(settings.encoder, config.NoEncoder)
    match settings.decoder:
        case config.RecurrentDecoder() as part:
            context = "none" if alone else part.context or "attention"
            attends = context == "attention"
            return RecurrentDecoder(
                embedding, part.kind, d_model, part.layers, mode=(part.place or "feeding") if attends else context,
                attention=_attention(part, d_model) if attends else None, bridge=part.bridge, dropout=dropout,
            )  # fmt: skip
        case config.TransformerDecoder() as part:
            blocks = [
                DecoderBlock(
                    d_model, part.heads, part.d_ff, norm=part.norm, normalize=part.normalize, gated=part.gated,
                    activation=part.activation, dropout=dropout, relative=relative, cross=not alone,
                )
                for relative in _relative(part, d_model, causal=True)
            ]  # fmt: skip
            return TransformerDecoder(embedding, _positions(part, d_model, longest), blocks, _final(part, d_model))
    raise AssertionError("no decoder to build")


def _attention(part: config.RecurrentDecoder, d_model: int) -> Attention:
    score = SCORES[part.score or "additive"](d_model // (part.heads or 1))
    kind = HardAttention if part.hard else Attention
    return kind(score, part.heads, d_model)


def _positions(part: config.TransformerSettings, d_model: int, longest: int) -> nn.Module | None:
    match part.positions:
        case "sinusoidal":
            return Sinusoidal(d_model)
        case "learned":
            return Learned(d_model, longest)
        case _:
            return None  # order is told inside attention


def _relative(part: config.TransformerSettings, d_model: int, *, causal: bool) -> list[Relative | None]:
    """What tells order inside attention, for each block; one that is shared by all is one object."""
    match part.positions:
        case "rotary":
            return [Rotary(d_model // part.heads)] * part.layers
        case "alibi":
            return [Alibi(part.heads)] * part.layers
        case "t5":
            return [T5Bias(part.heads, bidirectional=not causal)] * part.layers
        case "shaw":
            return [Shaw(d_model // part.heads) for _ in range(part.layers)]
        case _:
            return [None] * part.layers


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


def _final(part: config.TransformerSettings, d_model: int) -> nn.Module:
    """Pre-norm leaves the residual stream unnormed, so a last norm follows the blocks."""
    return make_norm(part.normalize, d_model) if part.norm == "pre" else nn.Identity()


def count_parameters(settings: config.Model, vocabulary: int) -> int:
    """How many numbers such a model learns, without making it; a head over a body has two labels."""
    with torch.device("meta"):
        model = build(settings, vocabulary, vocabulary if settings.head == "text" else 2, longest=1024)
    return sum(parameter.numel() for parameter in model.parameters())
