"""The settings of encoders. Those of their stems are in `stem_settings.py`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny

from regard.registry import BODIES, CELLS, STEMS
from regard.section import Kind, Section, Small
from regard.stem_settings import CharacterStemSettings, StemSettings
from regard.transformer_settings import Positions, TransformerSettings, attention_clash

Cell = Literal["rnn", "lstm", "gru"]


class EncoderSettings(Section):
    """What every encoder has: a stem, which turns the source's elements into vectors."""

    two_way: ClassVar[bool] = False  # two language models, of which neither sees what the other has read

    kind: str
    stem: Annotated[SerializeAsAny[StemSettings], Kind(STEMS, "tokens")] | None = Field(
        None, description="the stem, which turns the source's elements into vectors (default: as usual for the source)"
    )

    def check(self, d_model: int) -> str | None:
        """Why it cannot have this width, or None."""
        return None

    def stem_width(self, d_model: int) -> int:
        """The width of its stem's vectors."""
        return d_model

    @property
    def is_bounded(self) -> bool:
        """Whether it has `max_positions` at most; False where positions are the stem's own (ViT, Whisper)."""
        return True


class RecurrentEncoderSettings(EncoderSettings):
    """A stack of recurrent layers over the source."""

    kind: Cell = Field("lstm", description="rnn, lstm or gru")
    layers: Small = Field(1, description="number of stacked layers")
    bidirectional: bool = Field(True, description="read in both directions, each with half of d_model, and concatenate")
    reverse: bool = Field(False, description="read the source backwards (Sutskever et al. 2014)")

    def check(self, d_model: int) -> str | None:
        if self.bidirectional and d_model % 2:
            return f"a bidirectional encoder needs an even d_model, not {d_model}"
        return None


class TransformerEncoderSettings(TransformerSettings, EncoderSettings):
    """Blocks of self-attention over the source (Vaswani et al. 2017)."""

    kind: Literal["transformer"] = "transformer"
    width: int | None = Field(
        None,
        ge=2,
        le=2**16,
        description="width of this encoder, if it is not d_model; a dense layer then maps its vectors to d_model",
    )

    def check(self, d_model: int) -> str | None:
        return super().check(self.width or d_model)

    def stem_width(self, d_model: int) -> int:
        return self.width or d_model

    @property
    def is_bounded(self) -> bool:
        return self.positions != "none"


class ConformerSettings(EncoderSettings):
    """Blocks of attention and convolution over the source (Gulati et al. 2020)."""

    kind: Literal["conformer"] = "conformer"
    layers: Small = Field(12, description="number of blocks")
    heads: int = Field(4, ge=1, le=4096, description="attention heads; must divide d_model")
    d_ff: int = Field(1024, ge=1, le=2**20, description="width of the feed-forward layers")
    kernel: int = Field(31, ge=1, le=1023, description="kernel size of the convolution over time; an odd number")
    normalize_convolution: Literal["batch", "layer"] = Field(
        "batch", description="the norm inside the convolution: batch norm as published, or layer norm"
    )
    positions: Positions = Field("rotary", description="position encoding, as for a Transformer")

    def check(self, d_model: int) -> str | None:
        if self.kernel % 2 == 0:
            return f"kernel ({self.kernel}) should be odd, so that it looks as far back as ahead; try {self.kernel + 1}"
        return attention_clash(d_model, self.heads, self.positions)


class ElmoSettings(EncoderSettings):
    """Two language models over words by their characters, one per direction, and a mix of their layers (ELMo, Peters
    et al. 2018)."""

    two_way = True

    kind: Literal["elmo"] = "elmo"
    stem: Annotated[SerializeAsAny[StemSettings], Kind(STEMS, "characters")] | None = Field(
        default_factory=CharacterStemSettings, description="how words become vectors, of half of d_model"
    )
    layers: Small = Field(2, description="number of stacked LSTMs in each direction")
    units: int | None = Field(
        None, ge=1, le=2**20, description="cells of each LSTM, whose states are projected to half of d_model "
        "(default: half of d_model, no projection)"
    )  # fmt: skip
    mix: bool = Field(
        False, description="output a learnt mix of all layers, γ Σ_k softmax(s)_k h_k, instead of the top layer"
    )
    over: Annotated[SerializeAsAny[EncoderSettings], Kind(BODIES, "lstm")] | None = Field(
        None, description="a task-specific body that reads these vectors (default: none)"
    )
    beside: CharacterStemSettings | None = Field(
        None, description="a task-specific vector for each word, joined to these (default: none)"
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
    """The stem alone: the decoder gets its vectors."""

    kind: Literal["stem"] = "stem"


class NoEncoderSettings(EncoderSettings):
    """No encoder: a decoder-only model, as a language model, over source, <sep> and target as one text, or under
    another head."""

    kind: Literal["none"] = "none"


BODIES.describe(CELLS, RecurrentEncoderSettings)
BODIES.describe(["transformer"], TransformerEncoderSettings)
BODIES.describe(["conformer"], ConformerSettings)
BODIES.describe(["elmo"], ElmoSettings)
BODIES.describe(["stem"], StemEncoderSettings)
BODIES.describe(["none"], NoEncoderSettings)
