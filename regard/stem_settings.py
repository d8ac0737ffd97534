"""The settings of stems, the first layers of encoders: which sources each reads, and how many vectors come of one."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from regard.registry import STEMS
from regard.section import Kind, Section, SideSettings

Colours = Literal["centred", "imagenet"]
COLOURS = (
    "normalisation of pixels: to -1 ... 1 (centred), or by the mean and deviation of ImageNet's colours (imagenet), "
    "as torchvision's weights need it"
)


class StemSettings(Section):
    """Settings of the first layer of an encoder, which turns a source's elements into vectors."""

    reads: ClassVar[tuple[str, ...]] = ()  # the kinds of source it can read
    of_ctc: ClassVar[bool] = False  # only CTC has a use for it

    kind: str

    @property
    def has_whole(self) -> bool:
        """Whether the first vector stands for the whole source, as a class token does."""
        return False

    def vectors(self, length: int) -> int:
        """How many vectors come of so many elements."""
        return length

    @property
    def filled(self) -> int:
        """So many elements are read of every source: a shorter one is filled up with nothing."""
        return 0

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
    segments: int = Field(
        0,
        ge=0,
        le=100,
        description="segment embeddings, added to those of the tokens: how many texts of a source have their own "
        "(BERT: 2); a text ends at each separator (default 0: none)",
    )


class SplitStemSettings(StemSettings):
    """Several vectors for each token."""

    reads = ("text",)
    of_ctc = True

    kind: Literal["split"] = "split"
    times: int = Field(
        2, ge=1, le=64, description="vectors for each token, so that CTC can write more tokens than it reads"
    )

    def vectors(self, length: int) -> int:
        return length * self.times


class CharacterStemSettings(StemSettings):
    """Convolutions over the characters of each word (Kim et al. 2016; Peters et al. 2018)."""

    reads = ("words",)

    kind: Literal["characters"] = "characters"
    characters: int = Field(
        50,
        ge=4,
        le=1000,
        description="maximum length of a word in UTF-8 bytes, including one mark before and one "
        "after it; longer ones are truncated",
    )
    d_character: int = Field(16, ge=1, le=4096, description="width of character embeddings")
    widths: list[int] = Field(
        [1, 2, 3, 4, 5, 6, 7], description="widths of the filters in characters, one for each group of filters"
    )
    filters: list[int] = Field([32, 32, 64, 128, 256, 512, 1024], description="number of filters in each group")
    highways: int = Field(2, ge=0, le=100, description="highway layers over them (Srivastava et al. 2015)")

    @model_validator(mode="after")
    def _filters_fit(self) -> CharacterStemSettings:
        if len(self.widths) != len(self.filters) or not self.widths:
            raise ValueError(
                f"widths and filters name one number each for every group of filters, here {len(self.widths)} and "
                f"{len(self.filters)}"
            )
        if min(*self.widths, *self.filters) < 1 or max(self.widths) > self.characters or max(self.filters) > 10**5:
            raise ValueError(
                f"widths are from 1 to characters ({self.characters}), filters from 1 to 100000 in a group; here "
                f"widths {self.widths}, filters {self.filters}"
            )
        return self


class ConvolutionStemSettings(StemSettings):
    """Convolutions over an image, which give a grid of vectors."""

    reads = ("image",)

    kind: Literal["convolution"] = "convolution"
    halvings: int = Field(
        3, ge=1, le=12, description="how often the sides are halved: 3 turn 64 pixels into 8 x 8 cells"
    )
    channels: int = Field(
        32, ge=1, le=2**16, description="channels of the first convolution; doubled with each halving"
    )
    coordinates: bool = Field(True, description="add the coordinates of each pixel (CoordConv, Liu et al. 2018)")
    pooled: bool = Field(
        False,
        description="halve by 3 x 3 max pooling after a convolution (Hassani et al. 2021), not by convolutions of "
        "stride 2: slower, better on small images",
    )

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
        "utterance", description="normalise each band over the recording (utterance) or over all training data (global)"
    )


class SubsamplingSettings(LogMelSettings):
    """Convolutions over log-mel frames, each of which halves time and bands."""

    kind: Literal["subsampling"] = "subsampling"  # type: ignore[assignment]
    halvings: int = Field(2, ge=1, le=6, description="how often time is halved: 2 give one vector per 40 ms")
    channels: int = Field(64, ge=1, le=4096, description="channels of each convolution")

    def vectors(self, length: int) -> int:
        for _ in range(self.halvings):
            length = (length + 1) // 2
        return length


class PyramidSettings(LogMelSettings):
    """Bidirectional LSTMs over log-mel frames, each of which but the first halves time (Chan et al. 2016)."""

    kind: Literal["pyramid"] = "pyramid"  # type: ignore[assignment]
    halvings: int = Field(2, ge=1, le=6, description="how many LSTMs halve time: 3 give one vector per 80 ms")

    def check(self, d_model: int) -> str | None:
        return f"a pyramid reads both ways and so needs an even d_model, not {d_model}" if d_model % 2 else None

    def vectors(self, length: int) -> int:
        for _ in range(self.halvings):
            length = (length + 1) // 2
        return length


class WhisperStemSettings(StemSettings):
    """Two convolutions over log-mel frames of a recording that is padded to 30 seconds (Radford et al. 2023)."""

    reads = ("audio",)

    kind: Literal["whisper"] = "whisper"
    mels: int = Field(80, ge=1, le=1024, description="bands of frequency, even on the mel scale (128 in large-v3)")
    frames: int = Field(
        3000, ge=2, le=10**6, description="hops of 10 ms that every recording is padded to; two make a vector"
    )

    @property
    def filled(self) -> int:
        return self.frames

    def vectors(self, length: int) -> int:
        return (max(length, self.frames) + 1) // 2

    def problem(self, side: SideSettings) -> str | None:
        longest: int = getattr(side, "max_length", 0)
        if longest > self.frames:
            return (
                f"source.max_length ({longest}) is more than the {self.frames} hops that model.encoder.stem.kind "
                f"'whisper' reads; use {self.frames}"
            )
        return None


class PatchStemSettings(StemSettings):
    """Patches of an image, each mapped to a vector (ViT, Dosovitskiy et al. 2021)."""

    reads = ("image",)

    kind: Literal["patches"] = "patches"
    size: int = Field(16, ge=1, le=1024, description="side of a patch, in pixels; must divide source.size")
    class_token: bool = Field(True, description="a learnt vector before the patches, which stands for the whole image")
    positions: Literal["learned", "sine2d", "none"] = Field(
        "learned",
        description="position of a patch: a learnt vector for each cell, or sinusoids of row and column (sine2d); a "
        "Transformer over them then needs positions: none",
    )
    grid: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="cells per side of the table of learned positions, which is interpolated to other sizes (default: "
        "those of source.size when training begins; fixed from then on)",
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
        whole = self.size * max(1, round(size / self.size))
        return (
            f"source.size ({size}) is not divisible by model.encoder.stem.size ({self.size}); try a source.size of "
            f"{whole}, or, in a new model, patches of {nearest}"
        )

    def check(self, d_model: int) -> str | None:
        if self.positions == "sine2d" and d_model % 4:
            return f"encoder.stem.positions 'sine2d' needs a d_model that 4 divides, not {d_model}"
        return None

    def settled(self, side: SideSettings) -> StemSettings:
        size: int = getattr(side, "size", 0)
        return self.model_copy(update={"grid": self.grid or size // self.size})


class ResNetStemSettings(StemSettings):
    """A residual network over an image, which gives a grid of vectors (He et al. 2016)."""

    reads = ("image",)

    kind: Literal["resnet"] = "resnet"
    depth: Literal[18, 34, 50] = Field(18, description="layers: 18 and 34 of basic blocks, 50 of bottlenecks")
    small: bool = Field(
        False,
        description="for small images: start with a 3 x 3 convolution of stride 1, so that a cell has 8 pixels "
        "a side, not 32",
    )
    channels: int = Field(
        64, ge=1, le=1024, description="channels of the first convolution, as published; doubled three times"
    )
    colours: Colours = Field("imagenet", description=COLOURS)

    def vectors(self, length: int) -> int:
        return (-(-length // (8 if self.small else 32))) ** 2


class FrameStemSettings(StemSettings):
    """An image stem over each frame of a video."""

    reads = ("video",)

    kind: Literal["frames"] = "frames"
    picture: Annotated[SerializeAsAny[StemSettings], Kind(STEMS, "convolution")] = Field(
        {},  # type: ignore[assignment]  # validated, as all defaults are
        description="the image stem that reads a frame",
    )
    pool: Literal["mean", "class", "none"] = Field(
        "mean", description="one vector per frame, the mean of its cells or its class token; or all cells (none)"
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


STEMS.describe(["tokens"], TokenStemSettings)
STEMS.describe(["split"], SplitStemSettings)
STEMS.describe(["characters"], CharacterStemSettings)
STEMS.describe(["convolution"], ConvolutionStemSettings)
STEMS.describe(["log_mel"], LogMelSettings)
STEMS.describe(["subsampling"], SubsamplingSettings)
STEMS.describe(["pyramid"], PyramidSettings)
STEMS.describe(["whisper"], WhisperStemSettings)
STEMS.describe(["patches"], PatchStemSettings)
STEMS.describe(["resnet"], ResNetStemSettings)
STEMS.describe(["frames"], FrameStemSettings)
