"""LibreTranslate's HTTP API, so that its clients work with models of Regard: texts, HTML, files, languages."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic import BaseModel, Field

import regard
from regard.serving.bodies import is_json
from regard.serving.documents import Format, split
from regard.serving.forms import Upload, form_fields, json_object
from regard.serving.languages import AUTO, Detected, Route, detect, name_of, route, routes
from regard.serving.limits import Limits
from regard.serving.messages import Refused
from regard.serving.native import address_of, key_of
from regard.serving.office import OFFICE, repack, unpack
from regard.serving.openapi import FORM, JSON, MULTIPART, answers, schema_of, takes, with_file
from regard.serving.routes import route_class
from regard.serving.service import Service
from regard.serving.translating import Translated, Translating, check_length, translate_all

FORMATS: dict[str, Format] = {"text": "text", "html": "html"}
FILES: dict[str, tuple[Format, str]] = {  # by the ending of their names: how they are read, and of what media type
    ".txt": ("text", "text/plain"), ".md": ("markdown", "text/markdown"), ".html": ("html", "text/html"),
    ".htm": ("html", "text/html"), ".srt": ("subtitles", "application/x-subrip; charset=utf-8"),
    ".vtt": ("subtitles", "text/vtt"),
    ".docx": ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ".odt": ("odt", "application/vnd.oasis.opendocument.text"),
}  # fmt: skip
BOM = "\ufeff"
KEPT_SECONDS = 1800.0  # that a translated file can be fetched
KEPT_BYTES = 64 * 2**20  # of all of them together


@dataclass(frozen=True)
class StoredFile:
    """A translated file that waits to be fetched."""

    name: str
    media_type: str
    content: bytes
    until: float


class TranslateRequest(BaseModel):
    """Texts to translate."""

    q: str | list[str] = Field(description="the text, or several", examples=["One apple."])
    source: str = Field(description="the language of the text; auto: detect it", examples=["en"])
    target: str = Field(description="the language to translate it into", examples=["de"])
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(0, ge=0, description="number of further translations")
    api_key: str = ""


class DetectRequest(BaseModel):
    """A text whose language is asked for."""

    q: str = Field(examples=["Two pears on the table."])
    api_key: str = ""


class FileRequest(BaseModel):
    """A file to translate."""

    source: str = Field(examples=["en"])
    target: str = Field(examples=["de"])
    api_key: str = ""


class Guess(BaseModel):
    """A language, and how sure that is, out of 100."""

    confidence: float
    language: str


class TranslateAnswer(BaseModel):
    """Translations: a text, or a list of them for a list; what else was asked for, likewise."""

    translated_text: str | list[str] = Field(alias="translatedText")
    detected_language: Guess | list[Guess] | None = Field(None, alias="detectedLanguage")
    alternatives: list[str] | list[list[str]] | None = None


class LanguageAnswer(BaseModel):
    """A language, and what it can be translated into."""

    code: str
    name: str
    targets: list[str]


class FileAnswer(BaseModel):
    """Where a translated file can be fetched."""

    url: str = Field(alias="translatedFileUrl")


class ErrorAnswer(BaseModel):
    """What is wrong; said by the server itself, before a route is reached, it is an object."""

    error: str | dict[str, Any]


class Downloads:
    """Translated files, for a while: the oldest make room for new ones."""

    def __init__(self, seconds: float = KEPT_SECONDS, most: int = KEPT_BYTES) -> None:
        self.seconds, self.most = seconds, most
        self._files: OrderedDict[str, StoredFile] = OrderedDict()

    def put(self, name: str, media_type: str, content: bytes) -> str:
        """Keep a file; what it can be fetched under."""
        self._forget()
        key = f"{secrets.token_urlsafe(16)}{PurePath(name).suffix}"
        self._files[key] = StoredFile(name, media_type, content, time.monotonic() + self.seconds)
        while len(self._files) > 1 and sum(len(file.content) for file in self._files.values()) > self.most:
            self._files.popitem(last=False)
        return key

    def get(self, key: str) -> StoredFile | None:
        """The file, if it is still there."""
        self._forget()
        return self._files.get(key)

    def _forget(self) -> None:
        now = time.monotonic()
        for key in [key for key, file in self._files.items() if file.until < now]:
            del self._files[key]


def router(service: Service) -> APIRouter:
    """All of it."""
    kind = route_class(service, lambda refused: {"error": refused.message})
    paths = APIRouter(route_class=kind, tags=["LibreTranslate"], responses=answers(error=ErrorAnswer))
    downloads = Downloads()

    def known() -> list[Route]:
        return routes(service.models())

    @paths.post(
        "/translate", openapi_extra=takes(schema_of(TranslateRequest), JSON, FORM), response_model=TranslateAnswer,
        response_model_exclude_none=True,
    )  # fmt: skip
    async def translate_texts(request: Request) -> dict[str, Any]:
        """Translate `q`, a text or a list of them, from `source` (`auto`: it is detected) to `target`; `format` is
        `text` or `html`, `alternatives` how many more translations there should be."""
        given = await _fields(request)
        service.admit(_text(given, "api_key", "") or key_of(request), address_of(request))
        texts, several = _texts(given, service.limits)
        form = FORMATS.get(_text(given, "format", "text"))
        if form is None:
            raise Refused(400, "bad_request", "format is text or html")
        how = Translating(form=form, split=True, alternatives=_count(given, "alternatives", service.limits.nbest - 1))
        return await _answer(service, texts, given, how, several=several)

    @paths.get("/languages", response_model=list[LanguageAnswer])
    async def languages(request: Request) -> list[dict[str, Any]]:
        """All languages, and into which each can be translated."""
        given = {**request.query_params, **await form_fields(request)}  # its own client sends its key so, GET or not
        service.admit(_text(given, "api_key", "") or key_of(request), address_of(request))
        return _languages(known())

    @paths.post("/detect", openapi_extra=takes(schema_of(DetectRequest), JSON, FORM), response_model=list[Guess])
    async def detect_language(request: Request) -> list[dict[str, Any]]:
        """In which language `q` is written, in percent."""
        given = await _fields(request)
        service.admit(_text(given, "api_key", "") or key_of(request), address_of(request))
        texts, _ = _texts(given, service.limits)
        codes = [entry["code"] for entry in _languages(known())]
        found = await asyncio.to_thread(detect, "\n".join(texts), codes)
        return [_detected(one) for one in found if one.confidence >= 0.01] or [_detected(one) for one in found[:1]]

    @paths.post(
        "/translate_file", openapi_extra=takes(with_file(schema_of(FileRequest)), MULTIPART), response_model=FileAnswer
    )
    async def translate_file(request: Request) -> dict[str, str]:
        """Translate a file; the answer says where the translation can be fetched for half an hour."""
        given = await _fields(request)
        service.admit(_text(given, "api_key", "") or key_of(request), address_of(request))
        file = given.get("file")
        if not isinstance(file, Upload):
            raise Refused(400, "bad_request", "there is no file; send it as multipart/form-data")
        name = PurePath(file.name).name
        if PurePath(name).suffix.lower() not in FILES:
            raise Refused(400, "bad_request", f"only files of these kinds are translated: {', '.join(FILES)}")
        form, media_type = FILES[PurePath(name).suffix.lower()]
        how = Translating(form=form, split=True)
        if form in OFFICE:
            texts = await asyncio.to_thread(unpack, file.content, form)
            found = await _answer(service, list(texts.values()), given, how, several=True)
            translated = dict(zip(texts, found["translatedText"], strict=True))
            content = await asyncio.to_thread(repack, file.content, translated)
        else:
            text = _decoded(file.content)
            found = await _answer(service, [text.removeprefix(BOM)], given, how, several=False)
            content = (text[: text.startswith(BOM)] + found["translatedText"]).encode()
        key = downloads.put(name, media_type, content)
        return {"translatedFileUrl": f"{request.base_url}download_file/{key}"}

    @paths.get(
        "/download_file/{key}", responses=answers(*{kind for _, kind in FILES.values()}, error=ErrorAnswer)
    )  # fmt: skip
    async def download_file(key: str) -> Response:
        """A translated file."""
        file = downloads.get(key)
        if file is None:
            raise Refused(404, "not_found", "there is no such file, or no longer")
        stem, suffix = PurePath(file.name).stem, PurePath(file.name).suffix
        plain = "".join(x if x.isascii() and (x.isalnum() or x in "-_. ") else "_" for x in stem)[:80]
        headers = {"Content-Disposition": f'attachment; filename="{plain}_translated{suffix.lower()}"'}
        return Response(file.content, media_type=file.media_type, headers=headers)

    @paths.get("/frontend/settings")
    async def frontend_settings() -> dict[str, Any]:
        """What LibreTranslate's own page wants to know."""
        entries = _languages(known())
        first, keyed = next(iter(known()), None), service.access.keys is not None
        source, target = (first.pair.source, first.pair.target) if first else ("", "")
        return {
            "apiKeys": keyed, "keyRequired": keyed, "charLimit": service.limits.characters,
            "filesTranslation": True, "frontendTimeout": 500, "suggestions": False,
            "language": {
                "source": {"code": source, "name": name_of(source)}, "target": {"code": target, "name": name_of(target)}
            },
            "languages": [entry["code"] for entry in entries], "supportedFilesFormat": list(FILES),
        }  # fmt: skip

    @paths.get("/spec", include_in_schema=False)
    async def spec() -> dict[str, Any]:
        """This API, as OpenAPI."""
        return get_openapi(title="LibreTranslate, by Regard", version=regard.__version__, routes=paths.routes)

    return paths


async def _answer(
    service: Service, texts: Sequence[str], given: Mapping[str, Any], how: Translating, *, several: bool
) -> dict[str, Any]:
    """Translations, each by the model for its languages."""
    known = routes(service.models())
    source, target = _text(given, "source"), _text(given, "target")
    detected = [Detected(source, 1.0)] * len(texts)
    if source.lower() == AUTO:
        check_length(texts, how.form, service.limits.characters)
        sources = list(dict.fromkeys(one.pair.source for one in known if one.pair.target.lower() == target.lower()))
        detected = await asyncio.to_thread(_languages_of, texts, how.form, sources or [AUTO])
    found: dict[int, Translated] = {}
    for language in dict.fromkeys(one.language for one in detected):
        mine = [i for i, one in enumerate(detected) if one.language == language]
        if language.lower() == target.lower():
            found |= {i: Translated(texts[i], [], []) for i in mine}
            continue
        chosen = route(known, language, target)
        own = Translating(**{**vars(how), "model": chosen.model, "pair": chosen.pair})
        found |= dict(zip(mine, await translate_all(service, [texts[i] for i in mine], own), strict=True))
    ordered = [found[i] for i in range(len(texts))]
    answer: dict[str, Any] = {"translatedText": [one.text for one in ordered]}
    if source.lower() == AUTO:
        answer["detectedLanguage"] = [_detected(one) for one in detected]
    if how.alternatives:
        answer["alternatives"] = [one.alternatives for one in ordered]
    return answer if several else {name: value[0] for name, value in answer.items()}


def _languages_of(texts: Sequence[str], form: Format, candidates: Sequence[str]) -> list[Detected]:
    """In which language each text is written; parts of one document in one language."""
    plain = ["\n".join(split(text, form).sentences) for text in texts]
    if form in OFFICE:
        return [detect("\n".join(plain), candidates)[0]] * len(texts)
    return [detect(text, candidates)[0] for text in plain]


def _languages(known: Sequence[Route]) -> list[dict[str, Any]]:
    """Every language, with those that it can be translated into and itself, as LibreTranslate lists them."""
    codes = dict.fromkeys(code for one in known for code in (one.pair.source, one.pair.target))
    targets = {code: [code, *(x.pair.target for x in known if x.pair.source == code)] for code in codes}
    return [
        {"code": code, "name": name_of(code), "targets": list(dict.fromkeys(targets[code]))} for code in sorted(codes)
    ]


def _detected(one: Detected) -> dict[str, Any]:
    return {"confidence": round(100 * one.confidence, 1), "language": one.language}


# What requests bring


def _decoded(content: bytes) -> str:
    """The text of a file."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(400, "bad_request", "the file is not UTF-8 text") from None


async def _fields(request: Request) -> dict[str, Any]:
    """The fields of a request: JSON, a form, or in the address."""
    return {**request.query_params, **(await json_object(request) if is_json(request) else await form_fields(request))}


def _texts(given: Mapping[str, Any], limits: Limits) -> tuple[list[str], bool]:
    """The texts of a request, and whether they are a list."""
    texts = given.get("q")
    if texts is None:
        raise Refused(400, "bad_request", "Invalid request: missing q parameter")
    several = isinstance(texts, list)
    found = texts if isinstance(texts, list) else [texts]
    limits.check_inputs(len(found))
    if not all(isinstance(text, str) for text in found):
        raise Refused(400, "bad_request", "q is a text, or a list of texts")
    return found, several


def _text(given: Mapping[str, Any], name: str, usual: str | None = None) -> str:
    value = given.get(name, usual)
    if value is None and name in given:
        value = usual
    if value is None:
        raise Refused(400, "bad_request", f"Invalid request: missing {name} parameter")
    if not isinstance(value, str):
        raise Refused(400, "bad_request", f"{name} is a text")
    return value


def _count(given: Mapping[str, Any], name: str, most: int) -> int:
    value = given.get(name) or 0
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):  # the last: of 1e999
        raise Refused(400, "bad_request", f"{name} is a whole number") from None
    if not 0 <= number <= most:
        raise Refused(400, "bad_request", f"{name} is {number}; 0 to {most} will do")
    return number
