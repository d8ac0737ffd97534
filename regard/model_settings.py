"""The settings of a network: encoders, decoders, and what may go together. Those of stems are in `stem_settings.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from regard.registry import BODIES, CELLS, DECODERS, SCORES, STEMS
from regard.section import Kind, Section, Share, Size, Small
from regard.stem_settings import CharacterStemSettings, StemSettings

Cell = Literal["rnn", "lstm", "gru"]
Place = Literal["recurrence", "output", "feeding"]
Positions = Literal["sinusoidal", "sinusoidal_halves", "learned", "shaw", "t5", "rotary", "alibi", "xl", "none"]


class EncoderSettings(Section):
    """What every encoder has: a stem, which makes vectors of the source's elements."""

    two_way: ClassVar[bool] = False  # two language models, of which neither sees what the other has read

    kind: str
    stem: Annotated[SerializeAsAny[StemSettings], Kind(STEMS, "tokens")] | None = Field(
        None, description="how elements become vectors (default: as usual for the source)"
    )

    def check(self, d_model: int) -> str | None:
        """Why it cannot have this width, or None."""
        return None

    def stem_width(self, d_model: int) -> int:
        """The width of its stem's vectors."""
        return d_model


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
        description="how order is encoded: sinusoidal (or sinusoidal_halves: all sines, then all cosines, as Marian) "
        "or learned vectors beside the tokens; or inside attention: shaw "
        "(Shaw et al. 2018), t5 (Raffel et al. 2020), rotary (Su et al. 2021), alibi (Press et al. 2022), xl "
        "(Dai et al. 2019); or none, where a stem says where its vectors stand",
    )
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = Field(
        "relu", description="inside the feed-forward part; gelu_tanh is GELU by way of tanh, as GPT-2 has it"
    )
    gated: bool = Field(False, description="a gate inside the feed-forward part (Shazeer 2020)")
    norm_epsilon: float = Field(
        1e-5, gt=0, le=0.1, description="added to the variance in norms; published ViT weights want 1e-6 or 1e-12"
    )
    embedding_norm: bool = Field(
        False, description="a norm over tokens and positions, before the first block (BERT, BART)"
    )
    first_position: int = Field(
        0, ge=0, le=1000, description="row of the table of learned positions for the first token (BART, RoBERTa: 2)"
    )
    biases: bool = Field(True, description="biases in attention and feed-forward parts (T5 has none)")
    d_head: int | None = Field(None, ge=1, le=4096, description="width of an attention head (default: d_model / heads)")
    scale_scores: bool = Field(True, description="divide attention scores by √d_head (T5 does not)")
    buckets: int = Field(
        32, ge=4, le=4096, description="of positions t5: ranges of distances with a number of their own"
    )
    bucket_distance: int = Field(
        128, ge=2, le=2**16, description="of positions t5: from here on distances are one range"
    )

    def check(self, d_model: int) -> str | None:
        if self.first_position and self.positions != "learned":
            return (
                f"first_position is {self.first_position}, for learned positions; with '{self.positions}' leave it out"
            )
        if self.positions == "t5" and self.bucket_distance <= self.buckets // 2:
            return f"bucket_distance ({self.bucket_distance}) should be more than half of buckets ({self.buckets})"
        return _attention_clash(d_model, self.heads, self.positions, self.d_head)


class TransformerEncoderSettings(TransformerSettings, EncoderSettings):
    """Blocks of self-attention over the source (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"
    width: int | None = Field(
        None,
        ge=2,
        le=2**16,
        description="the width of this encoder, where it is not d_model; a dense layer makes vectors of d_model of it",
    )

    def check(self, d_model: int) -> str | None:
        return super().check(self.width or d_model)

    def stem_width(self, d_model: int) -> int:
        return self.width or d_model


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


class ElmoSettings(EncoderSettings):
    """Two language models over words by their characters, one each way, and a mix of their layers (ELMo, Peters et al.
    2018)."""

    two_way = True

    kind: Literal["elmo"] = "elmo"
    stem: Annotated[SerializeAsAny[StemSettings], Kind(STEMS, "characters")] | None = Field(
        default_factory=CharacterStemSettings, description="how words become vectors, of half of d_model"
    )
    layers: Small = Field(2, description="how many LSTMs each way, on top of one another")
    units: int | None = Field(
        None, ge=1, le=2**20, description="cells of each LSTM, whose states are projected to half of d_model (default: "
        "as many as that, and no projection)"
    )  # fmt: skip
    mix: bool = Field(
        False, description="the vectors are a learnt mix of all layers, γ Σ_k softmax(s)_k h_k; else the top layer's"
    )
    over: Annotated[SerializeAsAny[EncoderSettings], Kind(BODIES, "lstm")] | None = Field(
        None, description="a body of the task's own that reads these vectors (default: none)"
    )
    beside: CharacterStemSettings | None = Field(
        None, description="a vector of each word that is the task's own, joined to these (default: none)"
    )

    def check(self, d_model: int) -> str | None:
        if d_model % 2:
            return f"encoder.kind elmo has two directions, each with half of d_model; {d_model} is odd"
        if self.units is not None and self.units <= d_model // 2:
            return (
                f"encoder.units ({self.units}) are projected to half of d_model ({d_model // 2}), so there have to be "
                "more; or leave it out"
            )
        if self.over is not None and self.over.kind in ("none", "elmo"):
            return f"encoder.over reads vectors; its kind cannot be '{self.over.kind}', but lstm or transformer, say"
        return None if self.over is None else self.over.check(d_model)

    def stem_width(self, d_model: int) -> int:
        return d_model // 2


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

    scale_output: bool = Field(
        False, description="divide what goes to the output layer by √d_model, as T5 does where that is tied"
    )


class AwdLstmSettings(Section):
    """A language model alone: LSTMs with the dropout of Merity et al. 2018 (AWD-LSTM), also as a Mogrifier (Melis et
    al. 2020). It has the dropout named here in place of model.dropout."""

    kind: Literal["awd_lstm"] = "awd_lstm"
    layers: Small = Field(3, description="how many on top of one another")
    hidden: int | None = Field(
        None, ge=1, le=2**16, description="width of the layers; the last one is d_model wide (default: d_model)"
    )
    project: bool = Field(
        False, description="the last layer is as wide as the others, and a linear layer brings it to d_model"
    )
    rounds: int = Field(
        0, ge=0, le=100, description="before a step, input and state gate one another so many times (Mogrifier; try 5)"
    )
    rank: int = Field(0, ge=0, le=2**16, description="of the matrices of these gates, as products of two (0: full)")
    weight_dropout: Share = Field(0.5, description="share of the weights from state to state that are 0")
    input_dropout: Share = Field(0.65, description="of embeddings, with one mask for all positions, as in all below")
    layer_dropout: Share = Field(0.2, description="of what goes from layer to layer")
    output_dropout: Share = Field(0.4, description="of what goes to the output layer")
    word_dropout: Share = Field(0.1, description="share of the words that have no embedding in a batch")

    def check(self, d_model: int) -> str | None:
        if self.rank and not self.rounds:
            return f"decoder.rank ({self.rank}) is of the gates that decoder.rounds asks for; set both, or neither"
        return None


class NoDecoderSettings(Section):
    """None: the encoder alone, as a masked language model (Devlin et al. 2019), or under another head."""

    kind: Literal["none"] = "none"

    def check(self, d_model: int) -> str | None:
        return None


BODIES.describe(CELLS, RecurrentEncoderSettings)
BODIES.describe(["transformer"], TransformerEncoderSettings)
BODIES.describe(["conformer"], ConformerSettings)
BODIES.describe(["elmo"], ElmoSettings)
BODIES.describe(["stem"], StemEncoderSettings)
BODIES.describe(["none"], NoEncoderSettings)
DECODERS.describe(CELLS, RecurrentDecoderSettings)
DECODERS.describe(["transformer"], TransformerDecoderSettings)
DECODERS.describe(["awd_lstm"], AwdLstmSettings)
DECODERS.describe(["none"], NoDecoderSettings)
Encoder = SerializeAsAny[EncoderSettings]
Decoder = RecurrentDecoderSettings | TransformerDecoderSettings | AwdLstmSettings | NoDecoderSettings


class ModelSettings(Section):
    """The network: any encoder with any decoder."""

    d_model: int = Field(256, ge=2, le=2**16, description="the one width: embeddings, states, blocks")
    dropout: Share = Field(0.1, description="share of activations set to zero in training")
    tie_output: bool = Field(True, description="the output layer is the target embedding, transposed")
    output_bias: bool = Field(True, description="the output layer has a bias (T5, GPT-2 and Whisper have none)")
    output: Literal["full", "adaptive"] = Field(
        "full",
        description="the output layer of what is written: one softmax over all tokens, or adaptive (Grave et al. "
        "2017): frequent tokens at once, rare ones in clusters, which costs less where there are many",
    )
    cutoffs: list[Size] | None = Field(
        None,
        min_length=1,
        description="output adaptive: how many of the most frequent tokens stand before each cluster, rising (default: "
        "a tenth and a third of all)",
    )
    reduction: float = Field(
        4.0, ge=1, le=64, description="output adaptive: by how much vectors are narrower from cluster to cluster"
    )
    softmaxes: Small = Field(
        1,
        description="the output is a mixture of so many softmaxes (Yang et al. 2018, who take 15); model.dropout is "
        "that of their vectors too",
    )
    share_embeddings: bool = Field(False, description="source and target use one embedding; needs one vocabulary")
    scale_embeddings: bool = Field(
        True, description="multiply token vectors by √d_model (Vaswani et al. 2017, 3.4); BERT, T5 and GPT-2 do not"
    )
    pooler: Literal["tanh", "relu"] = Field(
        "tanh",
        description="of a head over a Transformer that reads text: what follows the dense layer over its first vector "
        "(BERT: tanh; DistilBERT: relu)",
    )
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
    generator: float | None = Field(
        None,
        gt=0,
        le=1,
        description="replaced-token detection over plain text, with decoder.kind none (ELECTRA, Clark et al. 2020): "
        "what a generator has of the encoder's width, heads and d_ff (default: no generator, a masked language model)",
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


def _attention_clash(d_model: int, heads: int, positions: str, d_head: int | None = None) -> str | None:
    """Why self-attention cannot have this width, or None."""
    if d_model % heads and d_head is None:
        return _heads(d_model, heads)
    if positions in ("sinusoidal", "sinusoidal_halves") and d_model % 2:
        return f"sinusoidal positions need an even d_model, not {d_model}"
    if positions == "xl" and (heads * d_head if d_head else d_model) % 2:
        return (
            f"positions 'xl' need an even d_model, not {d_model}"
            if d_head is None
            else (f"positions 'xl' need an even width of all heads; heads ({heads}) times d_head ({d_head}) is odd")
        )
    if positions == "rotary" and d_head is not None and d_head % 2:
        return f"positions 'rotary' turns pairs of numbers, so d_head must be even, not {d_head}"
    if positions == "rotary" and d_head is None and d_model // heads % 2:
        return (
            f"positions 'rotary' turns pairs of numbers, so a head must be of even width; d_model ({d_model}) / "
            f"heads ({heads}) is {d_model // heads}"
        )
    return None


def _heads(d_model: int, heads: int) -> str:
    fitting = [h for h in (1, 2, 4, 8, 16, 32) if d_model % h == 0]
    nearest = min(fitting, key=lambda other: abs(other - heads))
    return f"d_model ({d_model}) is not divisible by heads ({heads}); try {nearest}"
