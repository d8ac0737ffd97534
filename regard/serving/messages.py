"""What is asked of a model and what it answers, whatever protocol brought the question: the messages between protocols,
`Service` and the workers. They travel as JSON."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, PlainSerializer, WithJsonSchema

Flag = Literal["repetition", "untranslated", "truncated", "unused_input"]
Media = Literal["text", "image", "audio", "video", "file"]
Code = Literal[
    "bad_request", "unauthorized", "forbidden", "not_found", "unknown_model", "method_not_allowed", "timeout",
    "too_large", "unsupported_media_type", "unprocessable", "overloaded", "rate_limited", "draining", "loading",
    "worker_died", "deadline", "internal",
]  # fmt: skip


class Refused(Exception):  # noqa: N818 - not an error of ours: whoever asks is told
    """A request that is not answered, and why: the HTTP status that says so, a word for programs, a line for people."""

    def __init__(self, status: int, code: Code, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.retry_after = retry_after  # seconds after which it may be tried again


class Message(BaseModel):
    """A group of values; a name it does not know is an error, and so is a number that is none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _from_base64(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):  # also of what is no ASCII
        raise ValueError("is not base64") from None


Base64 = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    PlainSerializer(lambda data: base64.b64encode(data).decode(), str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


class Blob(Message):
    """The content of a file: an image, a recording or a video."""

    data: Base64 = Field(description="the file, in base64")


Source = str | Blob | list[str | Blob]  # a list, where a model has several sources


class Generation(Message):
    """Inputs that outputs are wanted for, and how."""

    model: str | None = None  # None: the only one, or the first
    inputs: list[Source]
    prefixes: list[str] | None = None  # of each input, how its output begins
    phrases: list[list[str]] | None = None  # of each input, what its output must hold
    search: dict[str, JsonValue] = {}  # changes to the model's own search settings
    tokens: bool = False  # also log p of each token, and words with their confidence
    alternatives: int = 0  # so many likeliest tokens at each place, with their log p; needs `tokens`
    alignment: bool = False  # also word links, and how much of the source was attended to
    trace: bool = False  # also what was attended to while the best output was written (`Explanation.to_json`)


class Alternative(Message):
    """A token that might have stood in a place."""

    text: str
    id: int
    log_prob: float | None  # None: minus infinity


class TokenInfo(Message):
    """A token of an output; the last is the mark that ends it, if it ended by itself."""

    text: str
    id: int
    log_prob: float | None
    alternatives: list[Alternative] = []


class Word(Message):
    """A word of an output, and `exp` of the mean `log p` of its tokens."""

    text: str
    confidence: float


class DoubtSigns(Message):
    """How doubtful an output is (`regard.inspection.doubt`), and signs of that."""

    value: float  # in [0, 1], of which 1 is most
    unattended: int  # source words that hardly anything was attended to of
    repetition: float  # the share of bigrams that stood before, less that of the source


class Written(Message):
    """An output."""

    text: str
    picture: Base64 | None = Field(None, description="the output as a PNG in base64, if the model writes pictures")
    score: float  # what it was ranked by
    log_prob: float
    tokens: list[TokenInfo] | None = None
    words: list[Word] | None = None
    alignment: list[tuple[int, int]] | None = None  # (source word, target word)
    coverage: list[float] | None = None  # of each source word, the attention it received in all
    doubt: DoubtSigns | None = None  # with both tokens and alignment
    flags: list[Flag] = []  # what a reader should look at
    trace: dict[str, JsonValue] | None = None
    source_tokens: int = 0
    output_tokens: int = 0


class Delta(Message):
    """What is new of an output that is being written; the last of them has `done`."""

    index: int = 0
    text: str = ""  # new text, which comes after all that came before and will not change
    done: list[Written] | None = None  # the outputs, best first, when all is written


class Scored(Message):
    """How probable a target is given its source."""

    log_prob: float | None  # None: minus infinity
    perplexity: float | None  # None: infinity
    tokens: list[TokenInfo]  # the last is the mark that ends it


class LanguagePair(Message):
    """From which language to which a model translates; `prefix` is what its source begins with to say so."""

    source: str = "source"
    target: str = "target"
    prefix: str = ""


class ModelInfo(Message):
    """What there is to know of a model that is served."""

    name: str
    ready: bool  # False: it is being loaded, or started again
    sources: list[Media] = []  # what each of its sources is; of anything but text a request brings a file. Empty: none
    target: str = "text"  # its kind, as in a config: text, labels, image, …
    writes: bool = True  # a token at a time, by a search, so that `stream` shows how it goes on
    aligns: bool = False  # its outputs can be aligned with their source by attention
    methods: list[str] = []  # beside attention, by which `explain` tells what an output depends on
    embeds: bool = False  # it has an encoder, whose sentence embeddings `embed` gives
    languages: list[LanguagePair] = []
    parameters: int = 0
    device: str = ""
    engine: str = "regard"
    created: int = 0  # when its weights were written, in seconds since 1970
    search: dict[str, JsonValue] = {}  # its own search settings, which requests change
    limits: dict[str, JsonValue] = {}  # what the server allows a request
