"""Regard's own HTTP API: all that its models can say, as JSON or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import TypeAdapter

from regard.errors import ModelError
from regard.serving.bodies import StrictRoute
from regard.serving.events import DONE, event, streamed
from regard.serving.glossary import Glossary
from regard.serving.limits import Limits
from regard.serving.messages import Blob, Generation, ModelInfo, Refused, Source, Written
from regard.serving.schemas import (
    ERRORS,
    EmbedRequest,
    EmbedResponse,
    ExplainRequest,
    GenerateRequest,
    GenerateResponse,
    InspectRequest,
    ModelEntry,
    ModelList,
    ScoreRequest,
    ScoreResponse,
    Sentence,
    Usage,
)
from regard.serving.service import Service
from regard.serving.translating import Translated, Translating, translate_all, translate_streaming

OUTPUTS = TypeAdapter(list[list[Written]])
WHOLE = TypeAdapter(dict[str, Any])


def key_of(request: Request) -> str | None:
    """The API key that a request brings."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key else request.headers.get("x-api-key")


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else ""


def router(service: Service) -> APIRouter:
    """Regard's own API."""

    async def admitted(request: Request) -> None:
        service.admit(key_of(request), address_of(request))

    routes = APIRouter(prefix="/v1", route_class=StrictRoute, dependencies=[Depends(admitted)], responses=ERRORS)

    @routes.get("/models", response_model=ModelList)
    async def models() -> ModelList:
        """All models, and what they read and write."""
        return ModelList(data=[ModelEntry(**info.model_dump(), id=info.name) for info in service.models()])

    @routes.post("/generate", response_model=GenerateResponse)
    async def generate(body: GenerateRequest, request: Request) -> Response:
        """Write outputs: translations, captions, transcripts, continuations, labels."""
        name, request_id = service.model(body.model).name, request.state.request_id
        cut = body.split or body.format == "html"
        if body.stream:
            return await streamed(_text_events(service, body) if cut else _events(service, body))
        if cut:
            parts = _whole(await translate_all(service, _texts(body, service.limits), _translating(body)))
        else:
            outputs = await service.generate(_generation(body, service.limits), deadline=body.timeout)
            parts = {"outputs": outputs, "usage": usage(outputs)}
        content = GenerateResponse(id=request_id, model=name, **parts)
        return Response(content.model_dump_json(), media_type="application/json")

    @routes.post("/score", response_model=ScoreResponse)
    async def score(body: ScoreRequest, request: Request) -> Response:
        """How probable a target is given its source, and each of its tokens."""
        sources, targets = [pair.source for pair in body.pairs], [pair.target for pair in body.pairs]
        scores = await service.score(body.model, sources, targets, deadline=body.timeout)
        return Response(ScoreResponse(scores=scores).model_dump_json(), media_type="application/json")

    @routes.post("/explain", response_model=dict[str, Any])
    async def explain(body: ExplainRequest, request: Request) -> Response:
        """All that a model attends to while it writes an output."""
        found = await service.explain(
            body.model, body.input, body.target, method=body.method, edits=body.edits, search=body.search,
            deadline=body.timeout,
        )  # fmt: skip
        return Response(found, media_type="application/json")

    @routes.post("/inspect", response_model=dict[str, Any])
    async def inspect(body: InspectRequest, request: Request) -> Response:
        """The search for an output: what might have stood in each place, and what became of each hypothesis."""
        found = await service.inspect(
            body.model, body.input, forced=body.forced, alternatives=body.alternatives, tree=body.tree,
            edits=body.edits, search=body.search, deadline=body.timeout,
        )  # fmt: skip
        return Response(found, media_type="application/json")

    @routes.post("/embed", response_model=EmbedResponse)
    async def embed(body: EmbedRequest, request: Request) -> Response:
        """One vector for each input: what the encoder makes of the whole."""
        inputs = body.input if isinstance(body.input, list) else [body.input]
        vectors = await service.embed(body.model, inputs, deadline=body.timeout)
        content = EmbedResponse(model=service.model(body.model).name, embeddings=vectors)
        return Response(content.model_dump_json(), media_type="application/json")

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


def _generation(body: GenerateRequest, limits: Limits) -> Generation:
    inputs: list[Source] = list(body.input) if isinstance(body.input, list) else [body.input]
    count, prefix, phrases = len(inputs), body.prefix, body.phrases
    each: Any = phrases
    if phrases is not None and not (phrases and isinstance(phrases[0], list)):
        each = [phrases] * count
    if body.glossary and (each is None or len(each) == count):
        limits.check_sources(inputs)  # before terms are looked for in them
        glossary = Glossary(body.glossary)
        parts = ([one for one in some if isinstance(one, str)] for some in map(_parts, inputs))
        terms = [[phrase for text in texts for phrase in glossary.phrases(text)] for texts in parts]
        each = [[*some, *own] for some, own in zip(each or [[]] * count, terms, strict=True)]
    return Generation(
        model=body.model, inputs=inputs, prefixes=[prefix] * count if isinstance(prefix, str) else prefix,
        phrases=each, search=body.search, tokens=body.tokens, alternatives=body.alternatives,
        alignment=body.alignment, trace=body.trace,
    )  # fmt: skip


def _parts(source: Source) -> list[str | Blob]:
    return source if isinstance(source, list) else [source]


def _texts(body: GenerateRequest, limits: Limits) -> list[str]:
    """The inputs of a request that wants them cut into sentences."""
    inputs = body.input if isinstance(body.input, list) else [body.input]
    limits.check_inputs(len(inputs))
    texts = [one for one in inputs if isinstance(one, str)]
    if len(texts) < len(inputs):
        raise Refused(422, "unprocessable", "split and format are for texts")
    if body.stream and len(texts) != 1:
        raise Refused(422, "unprocessable", f"one input is streamed at a time, not {len(texts)}")
    for name in ("prefix", "phrases", "tokens", "alignment", "trace"):
        if getattr(body, name):
            raise Refused(422, "unprocessable", f"{name} does not go with split or format html")
    return texts


def _translating(body: GenerateRequest) -> Translating:
    return Translating(
        body.model, form=body.format, split=body.split, glossary=body.glossary, search=body.search,
        deadline=body.timeout,
    )  # fmt: skip


def _whole(found: Sequence[Translated]) -> dict[str, Any]:
    """Texts that were cut, and what was written for each of their sentences, as parts of an answer."""
    outputs, sentences = [], []
    for text in found:
        best = [sentence.outputs[0] for sentence in text.sentences if sentence.outputs]
        log_prob, flags = sum(one.log_prob for one in best), dict.fromkeys(flag for one in best for flag in one.flags)
        whole = Written(
            text=text.text, score=log_prob, log_prob=log_prob, flags=list(flags), source_tokens=text.source_tokens,
            output_tokens=text.output_tokens,
        )  # fmt: skip
        outputs.append([whole])
        sentences.append([Sentence(source=one.source, outputs=one.outputs) for one in text.sentences])
    return {"outputs": outputs, "usage": usage(outputs), "sentences": sentences}


async def _events(service: Service, body: GenerateRequest) -> AsyncIterator[str]:
    """New text as it is written; last the outputs, or what went wrong."""
    asked, so_far, begun = _generation(body, service.limits), "", False
    try:
        async with aclosing(service.stream(asked, deadline=body.timeout)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                begun = True
                so_far += delta.text
                if delta.done is None:
                    yield event({"index": delta.index, "delta": delta.text, "text": so_far})
                else:
                    outputs = OUTPUTS.dump_python([delta.done], mode="json")
                    yield event({"outputs": outputs, "usage": usage([delta.done]).model_dump()})
    except Refused as refused:
        if not begun:
            raise
        yield event({"error": {"code": refused.code, "message": refused.message}})
    yield DONE


async def _text_events(service: Service, body: GenerateRequest) -> AsyncIterator[str]:
    """A text that is cut, as it is written; last the outputs, or what went wrong."""
    (text,), so_far = _texts(body, service.limits), ""
    try:
        async with aclosing(translate_streaming(service, text, _translating(body))) as parts:  # type: ignore[type-var]
            async for part in parts:
                if isinstance(part, str):
                    so_far += part
                    yield event({"index": 0, "delta": part, "text": so_far})
                else:
                    yield event(WHOLE.dump_python(_whole([part]), mode="json"))
    except Refused as refused:
        if not so_far:
            raise
        yield event({"error": {"code": refused.code, "message": refused.message}})
    yield DONE
