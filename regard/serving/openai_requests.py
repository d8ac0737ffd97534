"""Requests of OpenAI's API, as far as they mean something here.

What a request asks for is done, refused by its name, or, where it changes nothing of the answer, ignored (`IGNORED`).
A parameter that cannot be followed may have the value that it has by default (`NEUTRAL`), as many clients send it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from regard.serving.messages import Blob, Code, ModelInfo, Refused

IGNORED = frozenset(
    ["user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier", "reasoning_effort",
     "verbosity", "parallel_tool_calls"]
)  # fmt: skip
NEUTRAL: dict[str, list[Any]] = {
    "presence_penalty": [0], "frequency_penalty": [0], "logit_bias": [{}], "suffix": [""], "tools": [[]],
    "tool_choice": ["none", "auto"], "functions": [[]], "function_call": ["none", "auto"],
    "response_format": [{"type": "text"}], "modalities": [["text"]], "audio": [], "prediction": [],
    "web_search_options": [], "dimensions": [], "prompt": [""], "include": [[]], "chunking_strategy": ["auto"],
    "known_speaker_names": [[]], "known_speaker_references": [[]],
}  # fmt: skip
MOST_STOPS = 4
LEAST = 1e-6  # temperature or nucleus of our search settings: nothing but the likeliest token is drawn


class BadParameter(Refused):
    """A request that cannot be followed, because of one of its parameters."""

    def __init__(self, param: str | None, message: str, status: int = 400, code: Code = "bad_request") -> None:
        super().__init__(status, code, message)
        self.param = param


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    model: str = Field(max_length=200, examples=["demo"])


class StreamOptions(BaseModel):
    """What a stream has beside the text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    include_usage: bool = False
    include_obfuscation: bool = False  # of no use here


class Sampling(_Request):
    """How texts are written. Beside what OpenAI has: `search`, any of the model's search settings."""

    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    n: int | None = Field(None, ge=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    search: dict[str, JsonValue] | None = None

    @property
    def samples(self) -> bool:
        """Whether outputs are drawn at random: with a temperature above 0, or a nucleus that leaves something out. A
        request that says nothing of it gets the model's own search, as one with a temperature of 0 does."""
        if self.temperature is not None:
            return self.temperature > 0
        return self.top_p is not None and self.top_p < 1

    @property
    def stops(self) -> list[str]:
        """What an output ends before."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def check(self) -> None:
        """Refuse what does not go together."""
        if len(self.stops) > MOST_STOPS or not all(self.stops):
            raise BadParameter("stop", f"stop takes up to {MOST_STOPS} texts, none of them empty")
        if self.stream_options is not None and not self.stream:
            raise BadParameter("stream_options", "stream_options goes with stream: true")

    def settings(self, info: ModelInfo, most: int | None, count: int) -> dict[str, JsonValue]:
        """Changes to the model's search settings: so many outputs of at most so many tokens."""
        found: dict[str, JsonValue] = dict(self.search or {})
        if self.samples:
            found |= drawing(self.temperature or 1.0)
            found |= {"top_p": max(self.top_p, LEAST)} if self.top_p is not None else {}
        if self.seed is not None:
            found["seed"] = self.seed % 2**31
        if most is not None:
            found["max_length"] = most
        if count > 1:
            found["nbest"] = count
            beam = found.get("beam", info.search.get("beam", 1))
            if not self.samples:
                found["beam"] = max(count, beam if isinstance(beam, int) else 1)
        return found


def drawing(temperature: float) -> dict[str, JsonValue]:
    """Search settings by which outputs are drawn at random."""
    return {"sample": True, "temperature": max(temperature, LEAST)}


class CompletionRequest(Sampling):
    """Texts for prompts."""

    prompt: str | list[str] = Field(examples=["one apple"])
    best_of: int | None = Field(None, ge=1)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=5)

    @property
    def prompts(self) -> list[str]:
        """One text for each."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    def check(self) -> None:
        super().check()
        if not self.prompts:
            raise BadParameter("prompt", "prompt is empty")
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise BadParameter("best_of", f"best_of ({self.best_of}) is less than n ({self.n})")
        if self.best_of is not None and self.stream and self.best_of > (self.n or 1):
            raise BadParameter("best_of", "what is the best of several is known at the end; leave out stream")


class ChatMessage(BaseModel):
    """What somebody said; of its parts those are read that a model can read. Nothing beside its content is: an answer
    may come back as it was given, with all that it holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, JsonValue]] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: JsonValue = None
    audio: JsonValue = None
    function_call: JsonValue = None
    tool_calls: JsonValue = None
    tool_call_id: JsonValue = None


class ChatRequest(Sampling):
    """An answer to the last message. Beside what OpenAI has, of what a translation takes: `format`, `split` and
    `glossary`."""

    messages: list[ChatMessage] = Field(min_length=1, examples=[[{"role": "user", "content": "One apple."}]])
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    format: Literal["text", "html", "markdown"] = "text"
    split: bool | None = None
    glossary: dict[str, str] | None = None

    def check(self) -> None:
        super().check()
        if self.messages[-1].role != "user":
            raise BadParameter("messages", "the last message is what is answered; its role should be user")
        if self.top_logprobs and not self.logprobs:
            raise BadParameter("top_logprobs", "top_logprobs goes with logprobs: true")


class EmbeddingRequest(_Request):
    """Vectors of texts."""

    input: str | list[str] = Field(examples=[["one apple", "two apples"]])
    encoding_format: Literal["float", "base64"] | None = None


class TranscriptionRequest(_Request):
    """The text of a recording."""

    model: str = Field(max_length=200, examples=["speech"])
    language: str | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: float | None = Field(None, ge=0, le=1)
    timestamp_granularities: list[Literal["word", "segment"]] = Field(default_factory=list)
    stream: bool | None = None
    search: dict[str, JsonValue] | None = None


R = TypeVar("R", bound=BaseModel)


def parsed(kind: type[R], given: Mapping[str, Any]) -> R:
    """A request, of which everything is understood; else an error that names the parameter."""
    wanted = {}
    for name, value in given.items():
        if name in kind.model_fields:
            wanted[name] = value
        elif name in NEUTRAL:
            if value is not None and value not in NEUTRAL[name]:
                raise BadParameter(name, f"{name} is not supported here; leave it out")
        elif name not in IGNORED:
            raise BadParameter(name[:100], f"unknown parameter: {name[:100]}")
    try:
        found = kind.model_validate(wanted)
    except ValidationError as error:
        first = error.errors()[0]
        places = (str(part) for part in first["loc"])  # a union adds the kinds that it tried
        param = ".".join(part for part in places if not re.match(r"(str|list|dict)(\W|$)", part))[:100]
        raise BadParameter(param, f"{param}: {first['msg']}") from None
    if isinstance(found, Sampling):
        found.check()
    return found


# What a message brings


def message_source(message: ChatMessage, info: ModelInfo) -> str | Blob:
    """What a model reads of a message: its text, or its picture or recording."""
    parts = message.content or ""
    if isinstance(parts, str):
        parts = [{"type": "text", "text": parts}]
    wanted = info.sources[0] if info.sources else "text"
    texts = [str(part.get("text", "")) for part in parts if part.get("type") == "text"]
    files = [_file(part) for part in parts if part.get("type") != "text"]
    if len(info.sources) > 1:
        raise BadParameter(
            "model", f"{info.name} reads several sources, which a message cannot bring; see /v1/generate"
        )
    if wanted == "text":
        if files:
            raise BadParameter("messages", f"{info.name} reads text; leave out the {files[0][0]}")
        return "\n".join(texts)
    mine = [blob for kind, blob in files if kind == wanted]
    if len(files) != 1 or len(mine) != 1:
        raise BadParameter("messages", f"{info.name} reads one {wanted} in a message, and no other file")
    return mine[0]  # what is written beside it is no question to such a model


def _file(part: Mapping[str, Any]) -> tuple[str, Blob]:
    """A picture or a recording of a message, and which it is."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            data = re.fullmatch(r"data:image/[\w.+-]+;base64,(.*)", url, re.DOTALL)
            if data is None:
                raise BadParameter(
                    "messages", "a picture is sent as data:image/…;base64,…; nothing is fetched from a URL"
                )
            return "image", _decoded(data[1])
        case {"type": "input_audio", "input_audio": {"data": str(content)}}:
            return "audio", _decoded(content)
        case _:
            raise BadParameter("messages", f"a part of a message of type {str(part.get('type'))[:40]} is not read here")


def _decoded(content: str) -> Blob:
    try:
        return Blob(data=base64.b64decode(content, validate=True))
    except (binascii.Error, ValueError):
        raise BadParameter("messages", "a file in a message is not base64") from None
