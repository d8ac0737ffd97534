"""What requests to Regard's own API hold, and what its answers do."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from regard.serving.messages import Blob, Message, ModelInfo, Scored, Source, Written


class Usage(Message):
    """How much was read and written."""

    source_tokens: int
    output_tokens: int


class Asked(Message):
    """What all requests have."""

    model: str | None = Field(None, max_length=200, description="its name (default: the first)", examples=["demo"])
    timeout: float | None = Field(None, gt=0, description="seconds after which the work is stopped", examples=[30])


class GenerateRequest(Asked):
    """Outputs for an input, or for several."""

    input: str | Blob | list[str | Blob | list[str | Blob]] = Field(
        description='a text, {"data": base64} of a picture or a recording, or a list of inputs, each of them '
        "itself a list where a model has several sources",
        examples=["forty-two apples"],
    )
    prefix: str | list[str] | None = Field(None, description="how the output begins; for each input, or for all")
    phrases: list[str] | list[list[str]] | None = Field(
        None, description="what the output must hold; for each input, or for all"
    )
    glossary: dict[str, str] = Field(
        default_factory=dict,
        description="source terms with the target terms that the output must hold for them",
        examples=[{"apple": "Apfel"}],
    )
    split: bool = Field(False, description="cut texts into sentences, and join what is written for each")
    format: Literal["text", "html"] = Field("text", description="html: tags stay around the words that they are around")
    search: dict[str, JsonValue] = Field(
        default_factory=dict, description="changes to the model's own search settings", examples=[{"beam": 4}]
    )
    tokens: bool = Field(False, description="log p of each token, and how sure the model was of each word")
    alternatives: int = Field(0, ge=0, description="so many likeliest tokens in each place; needs tokens")
    alignment: bool = Field(False, description="word links, and how much of the source was attended to")
    trace: bool = Field(False, description="all that was attended to while the best output was written")
    stream: bool = Field(False, description="send text as it is written, as server-sent events")


class Sentence(Message):
    """A sentence of a text, and the outputs for it, best first."""

    source: str
    outputs: list[Written]


class GenerateResponse(Message):
    """The outputs of each input, best first; and the sentences of each, where they were cut."""

    id: str
    model: str
    outputs: list[list[Written]]
    usage: Usage
    sentences: list[list[Sentence]] | None = None


class Pair(Message):
    """A source, and a target of it."""

    source: Source = Field("", examples=["one apple"])
    target: str = Field(examples=["ein Apfel"])


class ScoreRequest(Asked):
    """How probable targets are given their sources."""

    pairs: list[Pair]


class ScoreResponse(Message):
    """One score for each pair."""

    scores: list[Scored]


class ExplainRequest(Asked):
    """What a model attends to."""

    input: Source = Field(examples=["one apple"])
    target: str | None = Field(None, description="the output to explain (default: the model's own)")
    method: str = Field("attention", description="or one that the model's methods name", max_length=100)
    search: dict[str, JsonValue] = Field(default_factory=dict)


class InspectRequest(Asked):
    """A search laid open."""

    input: Source = Field(examples=["one apple"])
    forced: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(
        default_factory=list, description="ids of tokens that the output begins with"
    )
    alternatives: int = Field(8, ge=0, description="so many likeliest tokens in each place")
    tree: bool = Field(False, description="all hypotheses of the search")
    edits: dict[str, JsonValue] | None = Field(None, description="what to change inside: heads_off, rows")
    search: dict[str, JsonValue] = Field(default_factory=dict)


class EmbedRequest(Asked):
    """Vectors of sources."""

    input: str | Blob | list[str | Blob | list[str | Blob]] = Field(examples=[["one apple", "two apples"]])


class EmbedResponse(Message):
    """One vector for each input."""

    model: str
    embeddings: list[list[float]]


class ModelEntry(ModelInfo):
    """A model, also as clients of OpenAI's API read it."""

    id: str
    object: Literal["model"] = "model"
    owned_by: str = "regard"


class ModelList(Message):
    """All models; the first is asked where a request names none."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class Problem(Message):
    """Why a request is not answered."""

    code: str
    message: str
    type: str
    request_id: str | None = None


class ProblemResponse(Message):
    """An error."""

    error: Problem


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemResponse, "description": what}
    for status, what in {
        400: "not JSON", 401: "no such key", 403: "not with this key", 404: "no such model", 408: "too slow",
        413: "too large", 415: "not JSON, or compressed", 421: "not our name", 422: "nothing that can be done",
        429: "too many requests; Retry-After says when to come again",
        503: "going down, or being loaded", 504: "took too long",
    }.items()
}  # fmt: skip
