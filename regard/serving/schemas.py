"""What requests to Regard's own API hold, and what its answers do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from regard.serving.messages import Blob, Message, ModelInfo, Scored, Source, Written
from regard.serving.openapi import answers


class Usage(Message):
    """How much was read and written."""

    source_tokens: int
    output_tokens: int


class Asked(Message):
    """What all requests have."""

    model: str | None = Field(
        None, max_length=200, description="name of the model (default: the first)", examples=["demo"]
    )
    timeout: float | None = Field(None, gt=0, description="seconds after which the work is stopped", examples=[30])


class GenerateRequest(Asked):
    """Outputs for an input, or for several."""

    input: str | Blob | list[str | Blob | list[str | Blob]] = Field(
        description='a text, {"data": base64} of an image or a recording, or a list of inputs; with several sources '
        "each input is a list",
        examples=["forty-two apples"],
    )
    prefix: str | list[str] | None = Field(
        None, description="forced beginning of the output; for each input, or for all"
    )
    phrases: list[str] | list[list[str]] | None = Field(
        None, description="phrases that the output must contain; for each input, or for all"
    )
    glossary: dict[str, str] = Field(
        default_factory=dict,
        description="source terms with their required translations",
        examples=[{"apple": "Apfel"}],
    )
    split: bool = Field(False, description="split texts into sentences, and join their outputs")
    format: Literal["text", "html"] = Field(
        "text", description="html: tags are kept around the words that they enclose"
    )
    search: dict[str, JsonValue] = Field(
        default_factory=dict, description="changes to the model's own search settings", examples=[{"beam": 4}]
    )
    tokens: bool = Field(False, description="log p of each token, and the confidence of each word")
    alternatives: int = Field(0, ge=0, description="this many likeliest tokens in each place; needs tokens")
    alignment: bool = Field(False, description="word alignments, and how much attention each source word got")
    trace: bool = Field(False, description="all attention of the best output")
    stream: bool = Field(False, description="stream the text as server-sent events")


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

    pairs: list[Pair] = Field(examples=[[{"source": "one apple", "target": "ein Apfel"}]])


class ScoreResponse(Message):
    """One score for each pair."""

    scores: list[Scored]


class ExplainRequest(Asked):
    """What a model attends to."""

    input: Source = Field(examples=["one apple"])
    target: str | None = Field(None, description="the output to explain (default: the model's own)")
    method: str = Field("attention", description="or one that the model's methods name", max_length=100)
    edits: dict[str, JsonValue] | None = Field(None, description="what to change inside: heads_off, rows")
    search: dict[str, JsonValue] = Field(default_factory=dict)


class InspectRequest(Asked):
    """A search laid open."""

    input: Source = Field(examples=["one apple"])
    forced: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(
        default_factory=list, description="token ids that the output is forced to begin with"
    )
    alternatives: int = Field(8, ge=0, description="this many likeliest tokens in each place")
    tree: bool = Field(False, description="all hypotheses of the search, as a tree")
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


ERRORS = answers(error=ProblemResponse, also={403: "not with this key", 422: "nothing that can be done"})
