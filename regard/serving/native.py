"""Regard's own HTTP API: all that its models can say, as JSON or as a stream of events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import Field, JsonValue, TypeAdapter

from regard.errors import ModelError
from regard.serving.bodies import StrictRoute
from regard.serving.messages import Blob, Generation, Message, ModelInfo, Refused, Scored, Source, Written
from regard.serving.service import Service

OUTPUTS = TypeAdapter(list[list[Written]])
EVENTS = "text/event-stream"


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
    search: dict[str, JsonValue] = Field(
        default_factory=dict, description="changes to the model's own search settings", examples=[{"beam": 4}]
    )
    tokens: bool = Field(False, description="log p of each token, and how sure the model was of each word")
    alternatives: int = Field(0, ge=0, description="so many likeliest tokens in each place; needs tokens")
    alignment: bool = Field(False, description="word links, and how much of the source was attended to")
    trace: bool = Field(False, description="all that was attended to while the best output was written")
    stream: bool = Field(False, description="send text as it is written, as server-sent events")


class GenerateResponse(Message):
    """The outputs of each input, best first."""

    id: str
    model: str
    outputs: list[list[Written]]
    usage: Usage


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


def key_of(request: Request) -> str | None:
    """The API key that a request brings."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key else request.headers.get("x-api-key")


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else ""


def router(service: Service) -> APIRouter:
    """Regard's own API."""

    def admitted(request: Request) -> None:
        service.admit(key_of(request), address_of(request))

    routes = APIRouter(prefix="/v1", route_class=StrictRoute, dependencies=[Depends(admitted)], responses=ERRORS)

    @routes.get("/models", response_model=ModelList)
    async def models() -> ModelList:
        """All models, and what they read and write."""
        return ModelList(data=[ModelEntry(**info.model_dump(), id=info.name) for info in service.models()])

    @routes.post("/generate", response_model=GenerateResponse)
    async def generate(body: GenerateRequest, request: Request) -> Response:
        """Write outputs: translations, captions, transcripts, continuations, labels."""
        asked, name, request_id = _generation(body), service.model(body.model).name, request.state.request_id
        if body.stream:
            events = _events(service, asked, body.timeout)
            first = await anext(events)  # what is refused at once is refused with its status
            return StreamingResponse(_after(first, events), media_type=EVENTS, headers={"Cache-Control": "no-store"})
        outputs = await service.generate(asked, deadline=body.timeout)
        content = GenerateResponse(id=request_id, model=name, outputs=outputs, usage=usage(outputs))
        return Response(content.model_dump_json(), media_type="application/json")

    @routes.post("/score", response_model=ScoreResponse)
    async def score(body: ScoreRequest) -> Response:
        """How probable a target is given its source, and each of its tokens."""
        sources, targets = [pair.source for pair in body.pairs], [pair.target for pair in body.pairs]
        scores = await service.score(body.model, sources, targets, deadline=body.timeout)
        return Response(ScoreResponse(scores=scores).model_dump_json(), media_type="application/json")

    @routes.post("/explain", response_model=dict[str, Any])
    async def explain(body: ExplainRequest) -> Response:
        """All that a model attends to while it writes an output."""
        found = await service.explain(body.model, body.input, body.target, search=body.search, deadline=body.timeout)
        return Response(found, media_type="application/json")

    @routes.post("/inspect", response_model=dict[str, Any])
    async def inspect(body: InspectRequest) -> Response:
        """The search for an output: what might have stood in each place, and what became of each hypothesis."""
        found = await service.inspect(
            body.model, body.input, forced=body.forced, alternatives=body.alternatives, tree=body.tree,
            edits=body.edits, search=body.search, deadline=body.timeout,
        )  # fmt: skip
        return Response(found, media_type="application/json")

    @routes.post("/embed", response_model=EmbedResponse)
    async def embed(body: EmbedRequest) -> EmbedResponse:
        """One vector for each input: what the encoder makes of the whole."""
        inputs = body.input if isinstance(body.input, list) else [body.input]
        vectors = await service.embed(body.model, inputs, deadline=body.timeout)
        return EmbedResponse(model=service.model(body.model).name, embeddings=vectors)

    @routes.post("/models/{name}/reload", response_model=ModelInfo)
    async def reload(name: str, request: Request) -> ModelInfo:
        """Read a model's folder anew, without dropping requests; takes an admin key."""
        service.access.admit_admin(key_of(request))
        try:
            return await service.reload(name)
        except ModelError as error:
            raise Refused(422, "unprocessable", f"{name} cannot be reloaded, and stays what it is: {error}") from None

    return routes


def status_router(service: Service) -> APIRouter:
    """How the server fares: for those who watch over it, without a key."""
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> dict[str, str]:
        """The process is up."""
        return {"status": "ok"}

    @routes.get("/ready", responses={503: {"description": "not yet, or no longer"}})
    async def ready() -> JSONResponse:
        """All models are loaded, and requests are taken."""
        models = {info.name: info.ready for info in service.models()}
        return JSONResponse({"ready": service.ready, "models": models}, 200 if service.ready else 503)

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counts and times, for Prometheus."""
        return Response(service.measured(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def usage(outputs: Sequence[Sequence[Written]]) -> Usage:
    """Tokens of the sources, each counted once, and of all outputs."""
    return Usage(
        source_tokens=sum(some[0].source_tokens for some in outputs if some),
        output_tokens=sum(one.output_tokens for some in outputs for one in some),
    )


def _generation(body: GenerateRequest) -> Generation:
    inputs = body.input if isinstance(body.input, list) else [body.input]
    count, prefix, phrases = len(inputs), body.prefix, body.phrases
    each: Any = phrases
    if phrases is not None and not (phrases and isinstance(phrases[0], list)):
        each = [phrases] * count
    return Generation(
        model=body.model, inputs=inputs, prefixes=[prefix] * count if isinstance(prefix, str) else prefix,
        phrases=each, search=body.search, tokens=body.tokens, alternatives=body.alternatives,
        alignment=body.alignment, trace=body.trace,
    )  # fmt: skip


async def _events(service: Service, asked: Generation, deadline: float | None) -> AsyncIterator[str]:
    """New text as it is written; last the outputs, or what went wrong."""
    so_far, begun = "", False
    try:
        async with aclosing(service.stream(asked, deadline=deadline)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                begun = True
                so_far += delta.text
                if delta.done is None:
                    yield _event({"index": delta.index, "delta": delta.text, "text": so_far})
                else:
                    outputs = OUTPUTS.dump_python([delta.done], mode="json")
                    yield _event({"outputs": outputs, "usage": usage([delta.done]).model_dump()})
    except Refused as refused:
        if not begun:
            raise
        yield _event({"error": {"code": refused.code, "message": refused.message}})
    yield "data: [DONE]\n\n"


async def _after(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    async with aclosing(rest):  # type: ignore[type-var]
        yield first
        async for event in rest:
            yield event


def _event(content: Any) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
