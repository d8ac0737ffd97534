"""The settings of a network: stems, encoders, decoders, and what may go together. See `settings.py` for all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from regard.registry import BODIES, CELLS, DECODERS, SCORES, STEMS
from regard.section import Kind, Section, Share, SideSettings, Small

Cell = Literal["rnn", "lstm", "gru"]
Place = Literal["recurrence", "output", "feeding"]
Positions = Literal["sinusoidal", "learned", "shaw", "t5", "rotary", "alibi", "xl", "none"]
Colours = Literal["centred", "imagenet"]


COLOURS = (
    "how bytes become numbers: from -1 to 1 (centred), or less the mean of ImageNet's colours and by their deviation "
    "(imagenet), as torchvision's weights want it"
)


class StemSettings(Section):
    """Settings of the first layer of an encoder, which makes vectors of a source's elements."""

    reads: ClassVar[tuple[str, ...]] = ()  # the kinds of source it can read

    kind: str

    @property
    def has_whole(self) -> bool:
        """Whether the first vector stands for the whole source, as a class token does."""
        return False

    def vectors(self, length: int) -> int:
        """How many vectors come of so many elements."""
        return length

    def problem(self, side: SideSettings) -> str | None:
        """Why it cannot read such a source, or None."""
        return None

    def check(self, d_model: int) -> str | None:
        """Why its vectors cannot have this width, or None."""
        return None

    def settled(self, side: SideSettings) -> StemSettings:
        """With what follows from the source that it is trained on; from then on that is the model's."""
        return self


class TokenStemSettings(StemSettings):
    """An embedding for each token."""

    reads = ("text",)

    kind: Literal["tokens"] = "tokens"


class ConvolutionStemSettings(StemSettings):
    """Convolutions over an image, to a grid of vectors."""

    reads = ("image",)

    kind: Literal["convolution"] = "convolution"
    halvings: int = Field(3, ge=1, le=12, description="how often sides are halved: 3 make 8 x 8 cells of 64 pixels")
    channels: int = Field(32, ge=1, le=2**16, description="after the first convolution; doubled with each halving")
    coordinates: bool = Field(True, description="tell each pixel where it is (Liu et al. 2018)")

    @model_validator(mode="after")
    def _channels_bearable(self) -> ConvolutionStemSettings:
        if (last := self.channels * 2 ** (self.halvings - 1)) > 2**16:
            raise ValueError(
                f"channels ({self.channels}), doubled with each of {self.halvings} halvings, come to {last:,}; at most "
                f"{2**16:,} will do"
            )
        return self

    def vectors(self, length: int) -> int:
        """The cells of the grid that a square image of so many scanlines becomes."""
        return (-(-length // 2**self.halvings)) ** 2

    def problem(self, side: SideSettings) -> str | None:
        size: int = getattr(side, "size", 0)
        if size >= 2**self.halvings:
            return None
        return (
            f"model.encoder.stem.halvings ({self.halvings}) leaves nothing of images of {size} pixels a side "
            f"(source.size); use at most {size.bit_length() - 1}"
        )


class LogMelSettings(StemSettings):
    """A vector for each log-mel frame of 10 ms of a recording."""

    reads = ("audio",)

    kind: Literal["log_mel"] = "log_mel"
    mels: int = Field(80, ge=1, le=1024, description="bands of frequency, even on the mel scale")
    normalize: Literal["utterance", "global", "none"] = Field(
        "utterance", description="centre and scale each band over the recording, or over all that was trained on"
    )


class SubsamplingSettings(LogMelSettings):
    """Convolutions over log-mel frames, each of which halves time and bands."""

    kind: Literal["subsampling"] = "subsampling"  # type: ignore[assignment]
    halvings: int = Field(2, ge=1, le=6, description="how often time is halved: 2 make a vector of 40 ms")
    channels: int = Field(64, ge=1, le=4096, description="of each convolution")

    def vectors(self, length: int) -> int:
        for _ in range(self.halvings):
            length = (length + 1) // 2
        return length


class PyramidSettings(LogMelSettings):
    """LSTMs over log-mel frames, both ways, each of which but the first halves time (Chan et al. 2016)."""

    kind: Literal["pyramid"] = "pyramid"  # type: ignore[assignment]
    halvings: int = Field(2, ge=1, le=6, description="how many of them halve time: 3 make a vector of 80 ms")

    def check(self, d_model: int) -> str | None:
        return f"a pyramid reads both ways and so needs an even d_model, not {d_model}" if d_model % 2 else None

    def vectors(self, length: int) -> int:
        for _ in range(self.halvings):
            length = (length + 1) // 2
        return length


class PatchStemSettings(StemSettings):
    """Patches of an image, each mapped to a vector (ViT, Dosovitskiy et al. 2021)."""

    reads = ("image",)

    kind: Literal["patches"] = "patches"
    size: int = Field(16, ge=1, le=1024, description="pixels a side of a patch; must divide source.size")
    class_token: bool = Field(True, description="a learnt vector before the patches, which stands for the whole")
    positions: Literal["learned", "sine2d", "none"] = Field(
        "learned",
        description="where a patch is: a learnt vector for each cell, or sines of its row and column; a Transformer "
        "over them then needs positions: none",
    )
    grid: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="cells a side of the table of learned positions, which is interpolated for any other number "
        "(default: what source.size has when training begins; from then on it is the model's)",
    )
    colours: Colours = Field("centred", description=COLOURS)

    @property
    def has_whole(self) -> bool:
        return self.class_token

    def vectors(self, length: int) -> int:
        return (length // self.size) ** 2 + self.class_token

    def problem(self, side: SideSettings) -> str | None:
        size: int = getattr(side, "size", 0)
        if size % self.size == 0:
            return None
        fitting = [n for n in range(1, size + 1) if size % n == 0]
        nearest = min(fitting, key=lambda n: abs(n - self.size))
        return f"source.size ({size}) is not divisible by model.encoder.stem.size ({self.size}); try {nearest}"

    def check(self, d_model: int) -> str | None:
        if self.positions == "sine2d" and d_model % 4:
            return f"encoder.stem.positions 'sine2d' needs a d_model that 4 divides, not {d_model}"
        return None

    def settled(self, side: SideSettings) -> StemSettings:
        size: int = getattr(side, "size", 0)
        return self.model_copy(update={"grid": self.grid or size // self.size})


class ResNetStemSettings(StemSettings):
    """A residual network of convolutions over an image, to a grid of vectors (He et al. 2016)."""

    reads = ("image",)

    kind: Literal["resnet"] = "resnet"
    depth: Literal[18, 34, 50] = Field(18, description="layers: 18 and 34 of basic blocks, 50 of bottlenecks")
    small: bool = Field(
        False, description="begin with a 3 x 3 convolution of stride 1: 8 pixels a side make a cell, else 32"
    )
    channels: int = Field(
        64, ge=1, le=1024, description="after the first convolution, as published; doubled three times"
    )
    colours: Colours = Field("imagenet", description=COLOURS)

    def vectors(self, length: int) -> int:
        return (-(-length // (8 if self.small else 32))) ** 2


class FrameStemSettings(StemSettings):
    """A stem for pictures over each frame of a video."""

    reads = ("video",)

    kind: Literal["frames"] = "frames"
    picture: Annotated[SerializeAsAny[StemSettings], Kind(STEMS, "convolution")] = Field(
        {},  # type: ignore[assignment]  # validated, as all defaults are
        description="what reads a frame",
    )
    pool: Literal["mean", "class", "none"] = Field(
        "mean", description="a vector for each frame: the mean of its cells, or its class token; or all cells (none)"
    )

    @model_validator(mode="after")
    def _reads_pictures(self) -> FrameStemSettings:
        if "image" not in self.picture.reads:
            raise ValueError(
                f"picture.kind '{self.picture.kind}' reads no pictures; use convolution, patches or resnet"
            )
        if self.pool == "class" and not self.picture.has_whole:
            raise ValueError(f"pool 'class' needs a class token, which picture.kind '{self.picture.kind}' has not here")
        return self

    def cells(self, size: int) -> int:
        """How many vectors come of a frame of so many pixels a side."""
        return self.picture.vectors(size) if self.pool == "none" else 1

    def problem(self, side: SideSettings) -> str | None:
        return self.picture.problem(side)

    def check(self, d_model: int) -> str | None:
        return self.picture.check(d_model)

    def settled(self, side: SideSettings) -> StemSettings:
        return self.model_copy(update={"picture": self.picture.settled(side)})


class EncoderSettings(Section):
    """What every encoder has: a stem, which makes vectors of the source's elements."""

    kind: str
    stem: Annotated[SerializeAsAny[StemSettings], Kind(STEMS, "tokens")] | None = Field(
        None, description="how elements become vectors (default: as usual for the source)"
    )

    def check(self, d_model: int) -> str | None:
        """Why it cannot have this width, or None."""
        return None


class RecurrentEncoderSettings(EncoderSettings):
    """A stack of recurrent layers over the source."""

    kind: Cell = Field("lstm", description="rnn, lstm or gru")
    layers: Small = Field(1, description="how many on top of one another")
    bidirectional: bool = Field(True, description="read both ways, each with half of d_model, and join")
    reverse: bool = Field(False, description="read the source back to front (Sutskever et al. 2014)")

    def check(self, d_model: int) -> str | None:
        if self.bidirectional and d_model % 2:
            return f"a bidirectional encoder needs an even d_model, not {d_model}"
        return None


class TransformerSettings(Section):
    """What Transformer encoders and decoders share."""

    kind: Literal["transformer"] = "transformer"
    layers: Small = Field(3, description="how many blocks")
    heads: int = Field(4, ge=1, le=4096, description="attention heads; must divide d_model")
    d_ff: int = Field(1024, ge=1, le=2**20, description="width inside the feed-forward part")
    norm: Literal["pre", "post"] = Field("pre", description="a norm before each part, or after as published")
    normalize: Literal["layer", "rms"] = Field("layer", description="layer norm, or RMSNorm (Zhang and Sennrich 2019)")
    positions: Positions = Field(
        "sinusoidal",
        description="how order is encoded: sinusoidal or learned vectors beside the tokens; or inside attention: shaw "
        "(Shaw et al. 2018), t5 (Raffel et al. 2020), rotary (Su et al. 2021), alibi (Press et al. 2022), xl "
        "(Dai et al. 2019); or none, where a stem says where its vectors stand",
    )
    activation: Literal["relu", "gelu", "silu"] = Field("relu", description="inside the feed-forward part")
    gated: bool = Field(False, description="a gate inside the feed-forward part (Shazeer 2020)")
    norm_epsilon: float = Field(
        1e-5, gt=0, le=0.1, description="added to the variance in norms; published ViT weights want 1e-6 or 1e-12"
    )

    def check(self, d_model: int) -> str | None:
        return _attention_clash(d_model, self.heads, self.positions)


class TransformerEncoderSettings(TransformerSettings, EncoderSettings):
    """Blocks of self-attention over the source (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"


class ConformerSettings(EncoderSettings):
    """Blocks of attention and convolution over the source (Gulati et al. 2020)."""

    kind: Literal["conformer"] = "conformer"
    layers: Small = Field(12, description="how many blocks")
    heads: int = Field(4, ge=1, le=4096, description="attention heads; must divide d_model")
    d_ff: int = Field(1024, ge=1, le=2**20, description="width inside the feed-forward parts")
    kernel: int = Field(31, ge=1, le=1023, description="vectors that the convolution over time sees; an odd number")
    normalize_convolution: Literal["batch", "layer"] = Field(
        "batch", description="the norm inside the convolution: batch norm as published, or layer norm"
    )
    positions: Positions = Field("rotary", description="how order is encoded, as for a Transformer")

    def check(self, d_model: int) -> str | None:
        if self.kernel % 2 == 0:
            return f"kernel ({self.kernel}) should be odd, so that it looks as far back as ahead; try {self.kernel + 1}"
        return _attention_clash(d_model, self.heads, self.positions)


class StemEncoderSettings(EncoderSettings):
    """The stem alone: its vectors are what the decoder gets."""

    kind: Literal["stem"] = "stem"


class NoEncoderSettings(EncoderSettings):
    """None: the decoder alone, as a language model, of source, <sep> and target as one text, or under another head."""

    kind: Literal["none"] = "none"


class RecurrentDecoderSettings(Section):
    """A recurrent language model of the target that looks at the source in one of three ways."""

    kind: Cell = Field("lstm", description="rnn, lstm or gru")
    layers: Small = Field(1, description="how many on top of one another")
    context: Literal["last", "every", "attention"] | None = Field(
        None,
        description="last: the encoding only starts the state; every: it enters at every step; attention: a new "
        "mixture of encoder states at every step (default attention, where there is an encoder)",
    )
    score: str | None = Field(
        None,
        description="how attention compares: dot, bilinear, additive, mlp, scaled_dot, or location, which also sees "
        "where it looked before (Chorowski et al. 2015) (default additive)",
    )
    place: Place | None = Field(
        None,
        description="where the mixture goes: recurrence (into the state), output (before the output layer) or feeding "
        "(before the output layer, and back in at the next step) (default feeding)",
    )
    heads: int | None = Field(
        None, ge=1, le=4096, description="project queries, keys and values, with so many heads (default: no projection)"
    )
    hard: bool = Field(
        False, description="attend to one place, drawn at random in training (Xu et al. 2015), the likeliest in use"
    )
    gate: bool = Field(False, description="scale the mixture by a gate of the state (Xu et al. 2015, 4.2.1)")
    bridge: Literal["dense", "copy"] = Field(
        "dense", description="how the state starts: from a dense layer over the encoding, or as a copy of it"
    )

    @field_validator("score")
    @classmethod
    def _score_known(cls, score: str | None) -> str | None:
        if score is not None and score not in SCORES.kinds:
            raise ValueError(SCORES.unknown(score))
        return score

    @model_validator(mode="after")
    def _attention_settings_need_attention(self) -> RecurrentDecoderSettings:
        for name in ("score", "place", "heads", "hard", "gate"):
            if self.context not in ("attention", None) and getattr(self, name):
                raise ValueError(f"'{name}' needs context: attention; here context is '{self.context}'")
        return self

    def check(self, d_model: int) -> str | None:
        return _heads(d_model, self.heads) if self.heads and d_model % self.heads else None


class TransformerDecoderSettings(TransformerSettings):
    """Blocks of causal self-attention and attention over the source (Vaswani et al. 2017)."""


class NoDecoderSettings(Section):
    """None: the encoder alone, as a masked language model (Devlin et al. 2019), or under another head."""

    kind: Literal["none"] = "none"

    def check(self, d_model: int) -> str | None:
        return None


BODIES.describe(CELLS, RecurrentEncoderSettings)
BODIES.describe(["transformer"], TransformerEncoderSettings)
BODIES.describe(["conformer"], ConformerSettings)
BODIES.describe(["stem"], StemEncoderSettings)
BODIES.describe(["none"], NoEncoderSettings)
DECODERS.describe(CELLS, RecurrentDecoderSettings)
DECODERS.describe(["transformer"], TransformerDecoderSettings)
DECODERS.describe(["none"], NoDecoderSettings)
STEMS.describe(["tokens"], TokenStemSettings)
STEMS.describe(["convolution"], ConvolutionStemSettings)
STEMS.describe(["log_mel"], LogMelSettings)
STEMS.describe(["subsampling"], SubsamplingSettings)
STEMS.describe(["pyramid"], PyramidSettings)
STEMS.describe(["patches"], PatchStemSettings)
STEMS.describe(["resnet"], ResNetStemSettings)
STEMS.describe(["frames"], FrameStemSettings)
Encoder = SerializeAsAny[EncoderSettings]
Decoder = RecurrentDecoderSettings | TransformerDecoderSettings | NoDecoderSettings


class ModelSettings(Section):
    """The network: any encoder with any decoder."""

    d_model: int = Field(256, ge=2, le=2**16, description="the one width: embeddings, states, blocks")
    dropout: Share = Field(0.1, description="share of activations set to zero in training")
    tie_output: bool = Field(True, description="the output layer is the target embedding, transposed")
    share_embeddings: bool = Field(False, description="source and target use one embedding; needs one vocabulary")
    max_positions: int | None = Field(
        None,
        ge=2,
        le=2**24,
        description="the longest sequence there is room for, marks counted (default: what max_length of each side and "
        "search.max_source and max_length need when training begins; from then on it is the model's)",
    )
    share_layers: bool = Field(False, description="encoder and decoder share weights where both have the same part")
    share_encoder: bool = Field(False, description="several sources of one kind are read by one encoder")
    encoder: Annotated[Encoder | list[Encoder], Kind(BODIES, "lstm", several=True)] = Field(
        default_factory=RecurrentEncoderSettings,
        description="of several sources, each has an encoder of these settings; or a list, one for each",
    )
    ctc: bool = Field(
        False,
        description="an output layer over the encoder's states, trained by CTC (Graves et al. 2006): beside a decoder "
        "(training.objective.ctc, search.ctc), or with decoder.kind none alone",
    )
    joint: Annotated[Encoder, Kind(BODIES, "transformer")] | None = Field(
        None, description="of several sources: a body over the vectors of all encoders, end to end (default: none)"
    )
    decoder: Annotated[Decoder, Kind(DECODERS, "lstm")] = Field(
        default_factory=RecurrentDecoderSettings, description="what writes the target (none: an encoder alone)"
    )

    @property
    def encoders(self) -> Sequence[EncoderSettings]:
        """The encoder, or those of several sources; one that is repeated for all stands once."""
        return self.encoder if isinstance(self.encoder, list) else [self.encoder]

    def encoder_of(self, number: int) -> EncoderSettings:
        return self.encoders[number] if isinstance(self.encoder, list) else self.encoder

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
        for stem in [part.stem for part in self.encoders if part.stem is not None]:
            if what := stem.check(self.d_model):
                yield what
        if isinstance(encoder, list) and len(encoder) < 2:
            yield "encoder lists one for each of several sources; for one source write it without a list"
        if isinstance(encoder, list) and any(isinstance(part, NoEncoderSettings) for part in encoder):
            yield "of several encoders none can be of kind none; leave the list out for a decoder alone"
        if self.ctc and self.decoder_only:
            yield "ctc reads off an encoder's states, but encoder.kind is none; set it to false"
        if self.encoder_only and self.decoder_only:
            yield "decoder.kind none needs an encoder, but encoder.kind is none as well"
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


def _attention_clash(d_model: int, heads: int, positions: str) -> str | None:
    """Why self-attention cannot have this width, or None."""
    if d_model % heads:
        return _heads(d_model, heads)
    if positions in ("sinusoidal", "xl") and d_model % 2:
        return f"sinusoidal positions need an even d_model, not {d_model}"
    if positions == "rotary" and d_model // heads % 2:
        return (
            f"positions 'rotary' turns pairs of numbers, so a head must be of even width; d_model ({d_model}) / "
            f"heads ({heads}) is {d_model // heads}"
        )
    return None


def _heads(d_model: int, heads: int) -> str:
    fitting = [h for h in (1, 2, 4, 8, 16, 32) if d_model % h == 0]
    nearest = min(fitting, key=lambda other: abs(other - heads))
    return f"d_model ({d_model}) is not divisible by heads ({heads}); try {nearest}"
