"""Settings to a model: the one place that knows which setting names which class."""

from __future__ import annotations

import torch
from torch import nn

from regard import config
from regard.models.decoders import RecurrentDecoder, TransformerDecoder
from regard.models.encoders import Embedding, RecurrentEncoder, TransformerEncoder
from regard.models.model import EncoderDecoder, Head
from regard.nn.attention import Attention
from regard.nn.blocks import DecoderBlock, EncoderBlock
from regard.nn.positions import Learned, Sinusoidal
from regard.nn.scores import SCORES


def build(settings: config.Model, source_vocabulary: int, target_vocabulary: int, longest: int) -> EncoderDecoder:
    """A new model with weights drawn from torch's random state. `longest` bounds learned positions."""
    d_model, dropout = settings.d_model, settings.dropout
    target = Embedding(target_vocabulary, d_model, dropout)
    source = target if settings.share_embeddings else Embedding(source_vocabulary, d_model, dropout)
    encoder = build_encoder(settings, source, longest)
    decoder = build_decoder(settings, target, longest)
    return EncoderDecoder(encoder, decoder, Head(d_model, target_vocabulary, target if settings.tie_output else None))


def build_encoder(settings: config.Model, embedding: Embedding, longest: int) -> nn.Module:
    d_model, dropout = settings.d_model, settings.dropout
    match settings.encoder:
        case config.RecurrentEncoder() as part:
            return RecurrentEncoder(
                embedding, part.kind, d_model, part.layers, bidirectional=part.bidirectional, reverse=part.reverse,
                dropout=dropout,
            )  # fmt: skip
        case config.TransformerEncoder() as part:
            shape: dict[str, str] = {"norm": part.norm, "activation": part.activation}
            blocks = [
                EncoderBlock(d_model, part.heads, part.d_ff, dropout=dropout, **shape) for _ in range(part.layers)
            ]
            return TransformerEncoder(embedding, _positions(part, d_model, longest), blocks, _final(part, d_model))


def build_decoder(settings: config.Model, embedding: Embedding, longest: int) -> nn.Module:
    d_model, dropout = settings.d_model, settings.dropout
    match settings.decoder:
        case config.RecurrentDecoder() as part:
            attends = part.context == "attention"
            return RecurrentDecoder(
                embedding, part.kind, d_model, part.layers, way=(part.place or "feeding") if attends else part.context,
                attention=Attention(SCORES[part.score or "additive"](d_model)) if attends else None,
                bridge=part.bridge, dropout=dropout,
            )  # fmt: skip
        case config.TransformerDecoder() as part:
            shape: dict[str, str] = {"norm": part.norm, "activation": part.activation}
            blocks = [
                DecoderBlock(d_model, part.heads, part.d_ff, dropout=dropout, **shape) for _ in range(part.layers)
            ]
            return TransformerDecoder(embedding, _positions(part, d_model, longest), blocks, _final(part, d_model))


def _positions(part: config.TransformerSettings, d_model: int, longest: int) -> nn.Module:
    return Sinusoidal(d_model) if part.positions == "sinusoidal" else Learned(d_model, longest)


def _final(part: config.TransformerSettings, d_model: int) -> nn.Module:
    """Pre-norm leaves the residual stream unnormed, so a last norm follows the blocks."""
    return nn.LayerNorm(d_model) if part.norm == "pre" else nn.Identity()


def count_parameters(settings: config.Model, vocabulary: int) -> int:
    """How many numbers such a model learns, without making it."""
    with torch.device("meta"):
        model = build(settings, vocabulary, vocabulary, longest=1024)
    return sum(parameter.numel() for parameter in model.parameters())
