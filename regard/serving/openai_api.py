"""OpenAI's HTTP API, so that its clients work with models of Regard: completions, chat, transcriptions, embeddings."""

from __future__ import annotations

import base64
import math
import re
import sys
import zlib
from array import array
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from regard.serving.bodies import strict_json
from regard.serving.events import DONE, EVENTS, event, streamed
from regard.serving.forms import Upload, form_fields, json_object
from regard.serving.languages import SOURCE, name_of
from regard.serving.messages import Blob, Generation, ModelInfo, Refused, Written
from regard.serving.native import address_of, key_of
from regard.serving.openai_answers import Chat, Completion, form_events, problem
from regard.serving.openai_requests import (
    BadParameter,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    TranscriptionRequest,
    drawing,
    message_source,
    parsed,
)
from regard.serving.openai_texts import (
    TextJob,
    TokenUsage,
    WrittenText,
    completion_job,
    first_stop,
    stream,
    stream_translation,
    translation_finish,
    write,
)
from regard.serving.openapi import JSON, MULTIPART, answers, schema_of, takes, with_file
from regard.serving.routes import route_class
from regard.serving.service import Service
from regard.serving.transcripts import duration_of, segments, subrip, timed_words, webvtt
from regard.serving.translating import Translating, translate


class OpenAIProblem(BaseModel):
    """What is wrong, and with which parameter."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    request_id: str | None = None


class OpenAIError(BaseModel):
    """An error."""

    error: OpenAIProblem


def router(service: Service) -> APIRouter:
    """All of it, save the list of models, which is Regard's own too."""
    kind = route_class(service, lambda refused: {"error": problem(refused)})
    paths = APIRouter(prefix="/v1", route_class=kind, tags=["OpenAI"], responses=answers(error=OpenAIError))
    with_events = answers(EVENTS, error=OpenAIError)

    def admit(request: Request) -> None:
        service.admit(key_of(request), address_of(request))

    @paths.get("/models/{name}")
    async def model(name: str, request: Request) -> dict[str, Any]:
        """A model by its name."""
        admit(request)
        info = service.model(name)
        return {**info.model_dump(mode="json"), "id": info.name, "object": "model", "owned_by": "regard"}

    @paths.post("/completions", openapi_extra=takes(schema_of(CompletionRequest), JSON), responses=with_events)
    async def completions(request: Request) -> Response:
        """What a language model writes after a prompt, or any other model for a text."""
        admit(request)
        body = parsed(CompletionRequest, await json_object(request))
        info = service.model(body.model)
        if info.sources not in ([], ["text"]):
            raise BadParameter("model", f"{info.name} reads {' and '.join(info.sources)}, which is no prompt")
        if body.echo and body.logprobs is not None:
            raise BadParameter("echo", "log-probabilities are known of what was written; leave out echo or logprobs")
        job, form = completion_job(info, body), Completion(info.name, body)
        if body.stream:
            return await streamed(form_events(form, stream(service, job), usage=body.with_usage))
        texts, usage = await write(service, job)
        return JSONResponse(form.whole([x for some in texts for x in some], usage))

    @paths.post("/chat/completions", openapi_extra=takes(schema_of(ChatRequest), JSON), responses=with_events)
    async def chat(request: Request) -> Response:
        """An answer to the last message, which is all that the model reads: its translation, its caption, its
        transcript, its continuation. Other messages, those of the system too, are not read."""
        admit(request)
        body = parsed(ChatRequest, await json_object(request))
        info = service.model(body.model)
        source, most = message_source(body.messages[-1], info), body.max_completion_tokens or body.max_tokens
        most = None if most is None else min(most, service.limits.max_length)
        form, n = Chat(info.name, body.n or 1), body.n or 1
        plain = n == 1 and not body.logprobs and info.sources == ["text"] and isinstance(source, str)
        if not plain and (body.split or body.glossary or body.format != "text"):
            raise BadParameter("split", "split, format and glossary go with one answer, without logprobs, to a text")
        how = Translating(
            info.name, form=body.format, split=body.split, glossary=body.glossary or {},
            search=body.settings(info, most, 1),
        )  # fmt: skip
        job = TextJob(info, [source], body, most, n, n, bool(body.logprobs), body.top_logprobs or 0)
        if body.stream:
            deltas = (
                stream_translation(service, source, how, body)
                if plain and isinstance(source, str)
                else stream(service, job)
            )
            return await streamed(form_events(form, deltas, usage=body.with_usage))
        if plain and isinstance(source, str):
            found = await translate(service, source, how)
            end = first_stop(found.text, body.stops)
            text = WrittenText(found.text[:end], "stop" if end is not None else translation_finish(found))
            return JSONResponse(form.whole([text], TokenUsage(found.source_tokens, found.output_tokens)))
        texts, usage = await write(service, job)
        return JSONResponse(form.whole(texts[0], usage))

    @paths.post("/embeddings", openapi_extra=takes(schema_of(EmbeddingRequest), JSON))
    async def embeddings(request: Request) -> Response:
        """One vector for each text. Tokens are not counted."""
        admit(request)
        body = parsed(EmbeddingRequest, await json_object(request))
        inputs = [body.input] if isinstance(body.input, str) else body.input
        if not inputs:
            raise BadParameter("input", "input is empty")
        vectors = await service.embed(service.model(body.model).name, list(inputs))
        data = [
            {"object": "embedding", "index": i, "embedding": _packed(x) if body.encoding_format == "base64" else x}
            for i, x in enumerate(vectors)
        ]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return JSONResponse({"object": "list", "data": data, "model": body.model, "usage": usage})

    @paths.post(
        "/audio/transcriptions", openapi_extra=takes(with_file(schema_of(TranscriptionRequest)), MULTIPART),
        responses=answers(EVENTS, "text/plain", error=OpenAIError),
    )  # fmt: skip
    async def transcriptions(request: Request) -> Response:
        """The text of a recording, with the times of its words where they are asked for."""
        admit(request)
        body, blob = _transcription(await form_fields(request))
        info = service.model(body.model)
        if info.sources != ["audio"]:
            raise BadParameter("model", f"{info.name} reads no recordings")
        timed = body.response_format not in ("json", "text")
        asked = Generation(model=info.name, inputs=[blob], search=_search_for(body), trace=timed)
        if body.stream and not timed:
            return await streamed(_transcript_events(service, asked))
        ((best, *_),) = await service.generate(asked)
        return _transcript(body, info, best)

    return paths


def _packed(vector: list[float]) -> str:
    """Numbers as base64 of 32-bit floats, little endian."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


# Transcripts


def _transcription(fields: Mapping[str, Any]) -> tuple[TranscriptionRequest, Blob]:
    """What is asked, and the recording."""
    given = {name.removesuffix("[]"): value for name, value in fields.items()}
    file = given.pop("file", None)
    if not isinstance(file, Upload):
        raise BadParameter("file", "there is no file; send it as multipart/form-data")
    kinds = given.get("timestamp_granularities", [])
    given["timestamp_granularities"] = kinds if isinstance(kinds, list) else [kinds]
    if (search := _search_of(given)) is not None:
        given["search"] = search
    body = parsed(TranscriptionRequest, given)
    if "word" in body.timestamp_granularities and body.response_format != "verbose_json":
        raise BadParameter("timestamp_granularities", "times of words go with response_format: verbose_json")
    if body.stream and body.response_format not in ("json", "text"):
        raise BadParameter("stream", "what has times is known at the end; leave out stream")
    return body, Blob(data=file.content)


def _search_of(given: dict[str, Any]) -> Any:
    """The search settings of a form: one object, or a field `search[beam]` for each, as OpenAI's client sends them."""
    each = {name: given.pop(name) for name in list(given) if re.fullmatch(r"search\[\w+\]", name)}
    return {name[7:-1]: _read(value) for name, value in each.items()} or _read(given.get("search"))


def _read(value: Any) -> Any:
    """A value of a form: what it says in JSON, or else the text that it is."""
    try:
        return strict_json(value.encode()) if isinstance(value, str) else value
    except HTTPException:
        return value


def _search_for(body: TranscriptionRequest) -> dict[str, Any]:
    return {**(body.search or {}), **(drawing(body.temperature) if body.temperature else {})}


def _transcript(body: TranscriptionRequest, info: ModelInfo, best: Written) -> Response:
    if body.response_format == "json":
        return JSONResponse({"text": best.text})
    if body.response_format == "text":
        return PlainTextResponse(f"{best.text}\n")
    trace: Mapping[str, Any] = best.trace or {}
    duration, words = duration_of(trace), timed_words(trace, best.text)
    parts = segments(words, best.text, duration)
    if body.response_format != "verbose_json":
        return PlainTextResponse(subrip(parts) if body.response_format == "srt" else webvtt(parts))
    language = info.languages[0].source if info.languages else SOURCE
    found: dict[str, Any] = {
        "task": "transcribe", "language": name_of(language).lower() if language != SOURCE else body.language or "",
        "duration": duration, "text": best.text, "usage": {"type": "duration", "seconds": math.ceil(duration)},
    }  # fmt: skip
    kinds = body.timestamp_granularities or ["segment"]
    if "word" in kinds:
        if words is None:
            raise BadParameter(
                "timestamp_granularities", f"{info.name} attends to nothing that says when words were spoken"
            )
        found["words"] = [{"word": x.text, "start": x.start, "end": x.end} for x in words]
    if "segment" in kinds:
        mean, text = best.log_prob / (best.output_tokens + 1), best.text.encode()
        found["segments"] = [
            {
                "id": i, "seek": 0, "start": x.start, "end": x.end, "text": x.text, "tokens": [], "avg_logprob": mean,
                "temperature": body.temperature or 0.0, "no_speech_prob": 0.0,
                "compression_ratio": len(text) / max(len(zlib.compress(text)), 1),
            }
            for i, x in enumerate(parts)
        ]  # fmt: skip
    return JSONResponse(found)


async def _transcript_events(service: Service, asked: Generation) -> AsyncIterator[str]:
    """A transcript as it is written."""
    text = ""
    try:
        async with aclosing(service.stream(asked)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                if delta.text:
                    yield event({"type": "transcript.text.delta", "delta": delta.text})
                text += delta.text
    except Refused as refused:
        if not text:
            raise
        yield event({"error": problem(refused)})
        return
    yield event({"type": "transcript.text.done", "text": text})
    yield DONE
