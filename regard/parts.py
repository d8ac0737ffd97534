"""The settings of a network: each encoder, each decoder, and what may go together. See `settings.py` for all others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Cell = Literal["rnn", "lstm", "gru"]
ScoreKind = Literal["dot", "bilinear", "additive", "mlp", "scaled_dot"]
Place = Literal["recurrence", "output", "feeding"]
Positions = Literal["sinusoidal", "learned", "shaw", "t5", "rotary", "alibi"]
HeadKind = Literal["text", "label", "tags", "number"]


class Section(BaseModel):
    """A group of settings; a name it does not know is an error."""

    model_config = ConfigDict(extra="forbid", validate_default=True, frozen=True, allow_inf_nan=False)


class RecurrentEncoder(Section):
    """A stack of recurrent layers over the source."""

    kind: Cell = Field("lstm", description="rnn, lstm or gru")
    layers: int = Field(1, ge=1, le=1000, description="how many on top of one another")
    bidirectional: bool = Field(True, description="read both ways, each with half of d_model, and join")
    reverse: bool = Field(False, description="read the source back to front (Sutskever et al. 2014)")


class TransformerSettings(Section):
    """What Transformer encoders and decoders share."""

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(3, ge=1, le=1000, description="how many blocks")
    heads: int = Field(4, ge=1, le=4096, description="attention heads; must divide d_model")
    d_ff: int = Field(1024, ge=1, le=2**20, description="width inside the feed-forward part")
    norm: Literal["pre", "post"] = Field("pre", description="a norm before each part, or after as published")
    normalize: Literal["layer", "rms"] = Field("layer", description="layer norm, or RMSNorm (Zhang and Sennrich 2019)")
    positions: Positions = Field(
        "sinusoidal",
        description="how order is told: sinusoidal or learned vectors beside the tokens; or inside attention: shaw "
        "(Shaw et al. 2018), t5 (Raffel et al. 2020), rotary (Su et al. 2021), alibi (Press et al. 2022)",
    )
    activation: Literal["relu", "gelu", "silu"] = Field("relu", description="inside the feed-forward part")
    gated: bool = Field(False, description="a gate inside the feed-forward part (Shazeer 2020)")


class TransformerEncoder(TransformerSettings):
    """Blocks of self-attention over the source (Vaswani et al. 2017)."""


class ConvolutionEncoder(Section):
    """Convolutions over a picture, to a grid of vectors."""

    kind: Literal["convolution"] = "convolution"
    halvings: int = Field(
        3, ge=1, le=12, description="how often the sides are halved: 3 make a grid of 8 x 8 of 64 pixels"
    )
    channels: int = Field(32, ge=1, le=2**16, description="after the first convolution; doubled with each halving")
    coordinates: bool = Field(True, description="tell each pixel where it is (Liu et al. 2018)")

    @model_validator(mode="after")
    def _channels_bearable(self) -> ConvolutionEncoder:
        if (last := self.channels * 2 ** (self.halvings - 1)) > 2**16:
            raise ValueError(
                f"channels ({self.channels}), doubled with each of {self.halvings} halvings, come to {last:,}; at most "
                f"{2**16:,} will do"
            )
        return self


class NoEncoder(Section):
    """None: the decoder alone, as a language model, of source, <sep> and target as one text, or under another head."""

    kind: Literal["none"] = "none"


class RecurrentDecoder(Section):
    """A recurrent language model of the target that looks at the source in one of three ways."""

    kind: Cell = Field("lstm", description="rnn, lstm or gru")
    layers: int = Field(1, ge=1, le=1000, description="how many on top of one another")
    context: Literal["last", "every", "attention"] | None = Field(
        None,
        description="last: the encoding only starts the state; every: it enters at every step; attention: a new "
        "mixture of encoder states at every step (default attention, where there is an encoder)",
    )
    score: ScoreKind | None = Field(
        None, description="how attention compares: dot, bilinear, additive, mlp or scaled_dot (default additive)"
    )
    place: Place | None = Field(
        None,
        description="where the mixture goes: recurrence (into the state), output (before the output layer) or feeding "
        "(before the output layer, and back in at the next step) (default feeding)",
    )
    heads: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="project queries, keys and values, with so many heads (default: attend to the states themselves)",
    )
    hard: bool = Field(
        False, description="attend to one place, drawn at random in training (Xu et al. 2015), the likeliest in use"
    )
    bridge: Literal["dense", "copy"] = Field(
        "dense", description="how the state starts: from a dense layer over the encoding, or as a copy of it"
    )

    @model_validator(mode="after")
    def _attention_settings_need_attention(self) -> RecurrentDecoder:
        for name in ("score", "place", "heads", "hard"):
            if self.context not in ("attention", None) and getattr(self, name):
                raise ValueError(f"'{name}' needs context: attention; here context is '{self.context}'")
        return self


class TransformerDecoder(TransformerSettings):
    """Blocks of causal self-attention and attention over the source (Vaswani et al. 2017)."""


class NoDecoder(Section):
    """None: the encoder alone, trained to fill in blanks (Devlin et al. 2019), or under another head."""

    kind: Literal["none"] = "none"


EncoderSettings = Annotated[
    RecurrentEncoder | TransformerEncoder | ConvolutionEncoder | NoEncoder, Field(discriminator="kind")
]
DecoderSettings = Annotated[RecurrentDecoder | TransformerDecoder | NoDecoder, Field(discriminator="kind")]
_cells = ("rnn", "lstm", "gru")
ENCODERS: dict[str, type[Section]] = {
    **dict.fromkeys(_cells, RecurrentEncoder), "transformer": TransformerEncoder, "convolution": ConvolutionEncoder,
    "none": NoEncoder,
}  # fmt: skip
DECODERS: dict[str, type[Section]] = {
    **dict.fromkeys(_cells, RecurrentDecoder), "transformer": TransformerDecoder, "none": NoDecoder,
}  # fmt: skip


class Model(Section):
    """The network: any encoder with any decoder."""

    d_model: int = Field(256, ge=2, le=2**16, description="the one width: embeddings, states, blocks")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of activations set to zero in training")
    tie_output: bool = Field(True, description="the output layer is the target embedding, transposed")
    share_embeddings: bool = Field(False, description="source and target use one embedding; needs tokens.shared")
    max_positions: int | None = Field(
        None,
        ge=2,
        le=2**24,
        description="the longest sequence there is room for, marks counted (default: what data.max_length and "
        "search.max_source and max_length need when training begins; from then on it is the model's)",
    )
    share_layers: bool = Field(
        False, description="encoder and decoder use the same weights wherever both have the same part"
    )
    head: HeadKind = Field(
        "text",
        description="what comes out: text; a label of the whole source; tags, one for each of its words; or a number. "
        "All but text stand on one body: an encoder (decoder.kind none), or a decoder alone (encoder.kind none)",
    )
    encoder: EncoderSettings = Field(default_factory=RecurrentEncoder)
    decoder: DecoderSettings = Field(default_factory=RecurrentDecoder)

    @model_validator(mode="before")
    @classmethod
    def _kinds_default_to_lstm(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        parts = {name: settings[name] for name in ("encoder", "decoder") if isinstance(settings.get(name), dict)}
        return {**settings, **{name: {"kind": "lstm", **part} for name, part in parts.items()}}

    @model_validator(mode="after")
    def _widths_fit(self) -> Model:
        for name, part in (("encoder", self.encoder), ("decoder", self.decoder)):
            if isinstance(part, RecurrentDecoder) and part.heads and self.d_model % part.heads:
                raise ValueError(_heads(name, self.d_model, part.heads))
            if isinstance(part, TransformerSettings):
                if self.d_model % part.heads:
                    raise ValueError(_heads(name, self.d_model, part.heads))
                if part.positions == "sinusoidal" and self.d_model % 2:
                    raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
                if part.positions == "rotary" and self.d_model // part.heads % 2:
                    raise ValueError(
                        f"{name}.positions 'rotary' turns pairs of numbers, so a head must be of even width; d_model "
                        f"({self.d_model}) / heads ({part.heads}) is {self.d_model // part.heads}"
                    )
        if isinstance(self.encoder, RecurrentEncoder) and self.encoder.bidirectional and self.d_model % 2:
            raise ValueError(f"a bidirectional encoder needs an even d_model, not {self.d_model}")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Model:
        encoder, decoder = self.encoder, self.decoder
        if self.head != "text":
            self._head_fits()
        elif isinstance(decoder, NoDecoder) and not isinstance(encoder, TransformerEncoder | RecurrentEncoder):
            raise ValueError(f"decoder.kind none needs an encoder of text, not '{encoder.kind}'")
        elif isinstance(decoder, NoDecoder) and isinstance(encoder, RecurrentEncoder) and not encoder.bidirectional:
            raise ValueError("decoder.kind none fills in blanks from both sides; set encoder.bidirectional: true")
        if isinstance(decoder, RecurrentDecoder):
            if isinstance(encoder, NoEncoder):
                for name in ("context", "score", "place", "heads", "hard", "bridge"):
                    if getattr(decoder, name) not in (None, False, "dense"):
                        raise ValueError(f"decoder.{name} needs an encoder to look at; here encoder.kind is none")
            elif decoder.bridge == "copy":
                same = isinstance(encoder, RecurrentEncoder) and (encoder.kind, encoder.layers) == (
                    decoder.kind,
                    decoder.layers,
                )
                if not same:
                    layers = getattr(encoder, "layers", 1)
                    raise ValueError(
                        "decoder.bridge 'copy' needs an encoder of the same kind and layers "
                        f"(here {encoder.kind} x {layers} to {decoder.kind} x {decoder.layers}); use bridge: dense"
                    )
        if self.share_layers:
            self._sharing_fits()
        return self

    def _head_fits(self) -> None:
        """A head stands on one body."""
        if isinstance(self.encoder, NoEncoder) == isinstance(self.decoder, NoDecoder):
            raise ValueError(
                f"head '{self.head}' stands on one body; set decoder.kind none (an encoder reads) or encoder.kind none "
                "(a decoder reads)"
            )
        if self.head == "tags" and isinstance(self.encoder, ConvolutionEncoder):
            raise ValueError("head 'tags' tells something of each word, and a picture has none; use label or number")

    def _sharing_fits(self) -> None:
        """Sharing needs parts of one shape."""
        encoder, decoder = self.encoder, self.decoder
        if isinstance(encoder, TransformerEncoder) and isinstance(decoder, TransformerDecoder):
            for name in TransformerSettings.model_fields:
                one, other = getattr(encoder, name), getattr(decoder, name)
                if one != other:
                    raise ValueError(f"share_layers needs equal parts; encoder.{name} is {one}, decoder.{name} {other}")
        elif isinstance(encoder, RecurrentEncoder) and isinstance(decoder, RecurrentDecoder):
            if (encoder.kind, encoder.layers, encoder.bidirectional) != (decoder.kind, decoder.layers, False):
                raise ValueError(
                    "share_layers needs an encoder that reads one way, of the decoder's kind and layers "
                    f"(here {encoder.kind} x {encoder.layers}, bidirectional {str(encoder.bidirectional).lower()}, and "
                    f"{decoder.kind} x {decoder.layers})"
                )
            if decoder.context != "last" and decoder.place != "output":
                raise ValueError(
                    "share_layers needs a decoder whose state reads tokens alone: context: last, or place: output"
                )
        else:
            raise ValueError(f"share_layers needs two of a kind, not {encoder.kind} and {decoder.kind}")


def _heads(name: str, d_model: int, heads: int) -> str:
    fitting = [h for h in (1, 2, 4, 8, 16, 32) if d_model % h == 0]
    nearest = min(fitting, key=lambda other: abs(other - heads))
    return f"d_model ({d_model}) is not divisible by {name}.heads ({heads}); try {nearest}"
