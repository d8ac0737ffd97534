"""The settings of a network: which encoder and decoder, what they share, and what may go together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny, model_validator

from regard.decoder_settings import (
    AwdLstmSettings,
    NoDecoderSettings,
    RecurrentDecoderSettings,
    TransformerDecoderSettings,
)
from regard.encoder_settings import (
    EncoderSettings,
    NoEncoderSettings,
    RecurrentEncoderSettings,
    TransformerEncoderSettings,
)
from regard.registry import BODIES, DECODERS
from regard.section import Kind, Section, Share, Size, Small
from regard.transformer_settings import TransformerSettings

Encoder = SerializeAsAny[EncoderSettings]
Decoder = RecurrentDecoderSettings | TransformerDecoderSettings | AwdLstmSettings | NoDecoderSettings


class ModelSettings(Section):
    """The network: any encoder with any decoder."""

    d_model: int = Field(256, ge=2, le=2**16, description="width of embeddings, states and blocks")
    dropout: Share = Field(0.1, description="dropout: share of activations set to zero in training")
    tie_output: bool = Field(True, description="tied embeddings: the output layer is the target embedding, transposed")
    output_bias: bool = Field(True, description="the output layer has a bias (T5, GPT-2 and Whisper have none)")
    output: Literal["full", "adaptive"] = Field(
        "full",
        description="the output layer: one softmax over all tokens (full), or adaptive softmax (Grave et al. 2017): "
        "frequent tokens at once, rare ones in clusters, which is cheaper for large vocabularies",
    )
    cutoffs: list[Size] | None = Field(
        None,
        min_length=1,
        description="adaptive softmax: how many of the most frequent tokens come before each cluster, rising "
        "(default: a tenth and a third of all)",
    )
    reduction: float = Field(
        4.0, ge=1, le=64, description="adaptive softmax: factor by which vectors are narrower from cluster to cluster"
    )
    softmaxes: Small = Field(
        1,
        description="mixture of softmaxes: how many (Yang et al. 2018, who take 15); model.dropout applies to their "
        "vectors too",
    )
    share_embeddings: bool = Field(False, description="source and target share one embedding; needs one vocabulary")
    scale_embeddings: bool = Field(
        True, description="multiply token embeddings by √d_model (Vaswani et al. 2017, 3.4); BERT, T5 and GPT-2 do not"
    )
    pooler: Literal["tanh", "relu"] = Field(
        "tanh",
        description="head over a Transformer that reads text: activation after the dense layer over its first vector "
        "(BERT: tanh; DistilBERT: relu)",
    )
    max_positions: int | None = Field(
        None,
        ge=2,
        le=2**24,
        description="maximum length of a sequence, special tokens included (default: what max_length of each side and "
        "search.max_source and max_length need when training begins; fixed from then on)",
    )
    share_layers: bool = Field(False, description="encoder and decoder share the weights of the parts that both have")
    share_encoder: bool = Field(False, description="one encoder reads several sources of the same kind")
    encoder: Annotated[Encoder | list[Encoder], Kind(BODIES, "lstm", several=True)] = Field(
        default_factory=RecurrentEncoderSettings,
        description="with several sources, each has an encoder of these settings; or a list, one for each",
    )
    ctc: bool = Field(
        False,
        description="a CTC output layer over the encoder (Graves et al. 2006): with a decoder "
        "(training.objective.ctc, search.ctc), or alone with decoder.kind none",
    )
    joint: Annotated[Encoder, Kind(BODIES, "transformer")] | None = Field(
        None, description="with several sources: a body over the concatenated vectors of all encoders (default: none)"
    )
    generator: float | None = Field(
        None,
        gt=0,
        le=1,
        description="replaced-token detection on plain text, with decoder.kind none (ELECTRA, Clark et al. 2020): "
        "size of the generator, as a share of the encoder's width, heads and d_ff (default: no generator, a masked "
        "language model)",
    )
    decoder: Annotated[Decoder, Kind(DECODERS, "lstm")] = Field(
        default_factory=RecurrentDecoderSettings,
        description="the decoder, which writes the target (none: encoder-only)",
    )

    @property
    def encoders(self) -> Sequence[EncoderSettings]:
        """The encoder, or those of several sources; one that is repeated for all stands once."""
        return self.encoder if isinstance(self.encoder, list) else [self.encoder]

    def encoder_of(self, number: int) -> EncoderSettings:
        return self.encoders[number] if isinstance(self.encoder, list) else self.encoder

    @property
    def generator_width(self) -> int:
        """The generator's `d_model`."""
        return round(self.d_model * (self.generator or 1.0))

    @property
    def generator_encoder(self) -> EncoderSettings:
        """The settings of the generator's encoder: those of the encoder, with a share of its size."""
        part, share = self.encoders[0], self.generator or 1.0
        sizes = {name: getattr(part, name, None) for name in ("heads", "d_ff")}
        smaller = {name: max(1, round(size * share)) for name, size in sizes.items() if size}
        return part.model_copy(update=smaller)

    @property
    def decoder_only(self) -> bool:
        """There is no encoder."""
        return isinstance(self.encoder, NoEncoderSettings)

    @property
    def encoder_only(self) -> bool:
        """There is no decoder."""
        return isinstance(self.decoder, NoDecoderSettings)

    @model_validator(mode="after")
    def _parts_fit(self) -> ModelSettings:
        for what in chain(self._clashes(), self._sharing_clashes() if self.share_layers else ()):
            raise ValueError(what)
        return self

    def _clashes(self) -> Iterator[str]:
        encoder, decoder = self.encoder, self.decoder
        joint = [] if self.joint is None else [("joint", self.joint)]
        for name, part in [*(("encoder", part) for part in self.encoders), *joint, ("decoder", decoder)]:
            if what := part.check(self.d_model):
                yield what.replace("heads (", f"{name}.heads (").replace("positions '", f"{name}.positions '")
        for part in self.encoders:
            if part.stem is not None and (what := part.stem.check(getattr(part, "width", None) or self.d_model)):
                yield what
            if part.stem is not None and part.stem.of_ctc and not self.ctc:
                yield f"encoder.stem.kind '{part.stem.kind}' is for CTC; set ctc: true, or take another stem"
            if getattr(part, "width", None) and (self.share_embeddings or self.encoder_only or self.share_layers):
                yield (
                    "encoder.width is for an encoder and a decoder that share neither embeddings nor layers; leave it "
                    "out"
                )
        if isinstance(encoder, list) and len(encoder) < 2:
            yield "encoder lists one for each of several sources; for one source write it without a list"
        if isinstance(encoder, list) and any(isinstance(part, NoEncoderSettings) for part in encoder):
            yield "of several encoders none can be of kind none; leave the list out for a decoder alone"
        if self.output == "adaptive" and self.tie_output:
            yield "output adaptive has matrices of its own for rare tokens; set tie_output: false"
        if self.cutoffs is not None and (self.output == "full" or sorted(set(self.cutoffs)) != self.cutoffs):
            yield f"cutoffs ({self.cutoffs}) are for output: adaptive, and rise from one to the next"
        if self.generator is not None:
            if not self.encoder_only or self.ctc:
                yield "generator is for an encoder alone that reads plain text; set decoder.kind none, and ctc: false"
            elif what := self.generator_encoder.check(self.generator_width):
                yield f"generator ({self.generator:g}) leaves a generator of width {self.generator_width}: {what}"
        if self.ctc and self.decoder_only:
            yield "ctc reads off an encoder's states, but encoder.kind is none; set it to false"
        if self.encoder_only and self.decoder_only:
            yield "decoder.kind none needs an encoder, but encoder.kind is none as well"
        if isinstance(decoder, AwdLstmSettings) and not self.decoder_only:
            yield "decoder.kind awd_lstm looks at no encoder; set encoder.kind: none, or take decoder.kind lstm"
        if not isinstance(decoder, RecurrentDecoderSettings):
            return
        if self.decoder_only:
            for name in ("context", "score", "place", "heads", "hard", "gate", "bridge"):
                if getattr(decoder, name) not in (None, False, "dense"):
                    yield f"decoder.{name} needs an encoder to look at; here encoder.kind is none"
        elif decoder.bridge == "copy":
            first, layers = self.encoders[0], getattr(self.encoders[0], "layers", 1)
            like = isinstance(first, RecurrentEncoderSettings)
            if not like or (first.kind, layers) != (decoder.kind, decoder.layers):
                yield (
                    "decoder.bridge 'copy' needs an encoder of the same kind and layers (here "
                    f"{first.kind} x {layers} to {decoder.kind} x {decoder.layers}); use bridge: dense"
                )

    def _sharing_clashes(self) -> Iterator[str]:
        """Sharing needs parts of one shape."""
        encoder, decoder = self.encoder, self.decoder
        if isinstance(encoder, TransformerEncoderSettings) and isinstance(decoder, TransformerDecoderSettings):
            for name in TransformerSettings.model_fields:
                one, other = getattr(encoder, name), getattr(decoder, name)
                if one != other:
                    yield f"share_layers needs equal parts; encoder.{name} is {one}, decoder.{name} {other}"
        elif isinstance(encoder, RecurrentEncoderSettings) and isinstance(decoder, RecurrentDecoderSettings):
            if (encoder.kind, encoder.layers, encoder.bidirectional) != (decoder.kind, decoder.layers, False):
                yield (
                    "share_layers needs an encoder that reads one way, of the decoder's kind and layers "
                    f"(here {encoder.kind} x {encoder.layers}, bidirectional {str(encoder.bidirectional).lower()}, and "
                    f"{decoder.kind} x {decoder.layers})"
                )
            if decoder.context != "last" and decoder.place != "output":
                yield "share_layers needs a decoder whose state reads tokens alone: context: last, or place: output"
        else:
            yield f"share_layers needs two of a kind, not {' and '.join(x.kind for x in [*self.encoders, decoder])}"
