"""Whole texts through a model that knows sentences: cut, translated together, joined.

    found = await translate(service, text, Translating(form="html", glossary={"apple": "Apfel"}))
    found.text, [sentence.confidence for sentence in found.sentences]

All sentences of a request go to the model at once and are batched with each other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from pydantic import JsonValue

from regard.serving.documents import Document, Format, Unit, split, whole
from regard.serving.glossary import Glossary
from regard.serving.languages import SOURCE
from regard.serving.messages import Flag, Generation, LanguagePair, ModelInfo, Refused, Source, Written
from regard.serving.office import OFFICE, shown
from regard.serving.sentences import LONGEST
from regard.serving.service import Service

LONGEST_WAIT = 2.0  # seconds until the rest of a text is tried again
MARKUP = 50  # characters of a word processor's XML for each character of text, at most
SHORTEST = 40  # characters that a sentence may have, however little a model reads


@dataclass(frozen=True)
class Translating:
    """How texts are translated."""

    model: str | None = None
    pair: LanguagePair | None = None  # from which language to which (default: the model's first)
    form: Format = "text"
    split: bool | None = None  # into sentences (None: where the model's languages are known, so that it is known to
    # translate; whatever else it does, such as to summarise, it may need all of a text for)
    glossary: Mapping[str, str] = field(default_factory=dict)
    search: Mapping[str, JsonValue] = field(default_factory=dict)
    alternatives: int = 0  # how many more translations of each text
    deadline: float | None = None  # seconds


@dataclass(frozen=True)
class TranslatedSentence:
    """A sentence and its translation; `confidence` is the geometric mean of the probabilities of its tokens."""

    source: str
    text: str
    confidence: float
    flags: list[Flag]
    outputs: list[Written]


@dataclass(frozen=True)
class Translated:
    """A text that was translated; an alternative takes the next best output for each of its sentences."""

    text: str
    alternatives: list[str]
    sentences: list[TranslatedSentence]
    source_tokens: int = 0
    output_tokens: int = 0


async def translate(service: Service, text: str, how: Translating = Translating()) -> Translated:
    """The translation of a text."""
    return (await translate_all(service, [text], how))[0]


async def translate_all(service: Service, texts: Sequence[str], how: Translating = Translating()) -> list[Translated]:
    """The translations of several texts, worked on together."""
    info, glossary = service.model(how.model), Glossary(how.glossary)
    documents = await _documents(service, texts, info, how)
    units = [unit for document in documents for unit in document.units]
    asked = list(dict.fromkeys(unit.text for unit in units))  # a sentence that comes twice is translated once
    links = any(unit.needs_links for unit in units)
    known = {text: found async for text, found in _outputs(service, info, asked, glossary, how, alignment=links)}
    return [await asyncio.to_thread(_joined, document, known, how.alternatives) for document in documents]


async def translate_streaming(
    service: Service, text: str, how: Translating = Translating()
) -> AsyncIterator[str | Translated]:
    """A translation as it is written: parts that join to the whole, and last all of it. The first sentence comes word
    by word, unless it has tags that go with its words; any other as soon as it and all before it are there."""
    info, glossary = service.model(how.model), Glossary(how.glossary)
    (document,) = await _documents(service, [text], info, how)
    texts = list(dict.fromkeys(document.sentences))
    known, results = dict[str, list[Written]](), asyncio.Queue[tuple[str, list[Written]] | Exception]()
    by_word, held = bool(texts) and document.units[0].grows, ""  # held: what stands before the next text

    async def translate_rest() -> None:
        links = any(unit.needs_links for unit in document.units)
        try:
            async for found in _outputs(service, info, texts[1:] if by_word else texts, glossary, how, alignment=links):
                results.put_nowait(found)
        except Exception as error:
            results.put_nowait(error)

    rest = asyncio.create_task(translate_rest())
    try:
        for part in document.parts:
            if isinstance(part, str):
                held += part
                continue
            sent = ""
            if by_word:
                by_word, request = False, _generation(info, [part.text], glossary, how, alignment=False)
                async with aclosing(service.stream(request, deadline=how.deadline)) as deltas:  # type: ignore[type-var]
                    async for delta in deltas:
                        if delta.done is not None:
                            known[part.text] = delta.done[:1]
                        if delta.text:
                            yield held + delta.text
                            sent, held = sent + delta.text, ""
            while part.text not in known:
                if isinstance(result := await results.get(), Exception):
                    raise result
                known[result[0]] = result[1]
            if new := held + _put(part, known[part.text]).removeprefix(sent):
                yield new
            held = ""
        if held:
            yield held
    finally:
        rest.cancel()
    yield _joined(document, known, 0)


async def _documents(service: Service, texts: Sequence[str], info: ModelInfo, how: Translating) -> list[Document]:
    check_length(texts, how.form, service.limits.characters)
    return [await asyncio.to_thread(_document, text, info, how) for text in texts]


def check_length(texts: Sequence[str], form: Format, most: int) -> None:
    """Refuse texts of more characters, before anything is made of them."""
    if form in OFFICE:
        _check(sum(map(len, texts)), MARKUP * most)
        _check(sum(len(part) for text in texts for part in shown(text)), most)
    else:
        _check(sum(map(len, texts)), most)


def _check(characters: int, most: int) -> None:
    if characters > most:
        raise Refused(413, "too_large", f"{characters:,} characters are more than {most:,}, the limit here")


def pair_of(info: ModelInfo, how: Translating) -> LanguagePair:
    """From which language to which a text is translated."""
    return how.pair or (info.languages[0] if info.languages else LanguagePair())


def _document(text: str, info: ModelInfo, how: Translating) -> Document:
    pair = pair_of(info, how)
    cut = how.split if how.split is not None else pair.source != SOURCE
    if not cut and how.form == "text":
        return whole(text)
    # A character takes three tokens at most, where tokens are bytes.
    most = int(str(info.search.get("max_source", 3 * LONGEST))) // 3
    return split(text, how.form, language=pair.source, longest=max(min(most, LONGEST), SHORTEST))


async def _outputs(
    service: Service, info: ModelInfo, texts: Sequence[str], glossary: Glossary, how: Translating, *, alignment: bool
) -> AsyncIterator[tuple[str, list[Written]]]:
    """Each text with its outputs, as soon as they are there, in requests as large as the server takes. The first is
    refused if there is too much to do; others wait, so that what was done is not lost."""
    loop, most = asyncio.get_running_loop(), service.limits.timeout
    until = loop.time() + (most if how.deadline is None else min(how.deadline, most))
    for number, part in enumerate(_parts(texts, service.limits.inputs)):
        request, answered = _generation(info, part, glossary, how, alignment=alignment), False
        while not answered:
            try:
                async with aclosing(service.finished(request, deadline=until - loop.time())) as found:  # type: ignore[type-var]
                    async for index, outputs in found:
                        yield part[index], outputs[: how.alternatives + 1]
                answered = True
            except Refused as refused:
                if not number or refused.code != "overloaded" or loop.time() > until:
                    raise
                await asyncio.sleep(min(refused.retry_after or 1.0, LONGEST_WAIT))


def _parts(texts: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), most):
        yield texts[start : start + most]


def _generation(
    info: ModelInfo, texts: Sequence[str], glossary: Glossary, how: Translating, *, alignment: bool
) -> Generation:
    search, prefix, count = dict(how.search), pair_of(info, how).prefix, how.alternatives + 1
    phrases = [glossary.phrases(text) for text in texts]
    if count > 1:
        search |= {"nbest": count, "beam": max(count, _beam(info, search))}
    inputs: list[Source] = [f"{prefix} {text}" if prefix else text for text in texts]
    return Generation(
        model=info.name, inputs=inputs, phrases=phrases if any(phrases) else None, search=search, alignment=alignment
    )


def _beam(info: ModelInfo, search: Mapping[str, JsonValue]) -> int:
    beam = search.get("beam", info.search.get("beam", 1))
    return beam if isinstance(beam, int) else 1


def _joined(document: Document, known: Mapping[str, list[Written]], alternatives: int) -> Translated:
    outputs = [known[text] for text in document.sentences]
    texts = [_join(document, outputs, number) for number in range(alternatives + 1)]
    sentences = [_sentence(text, some) for text, some in zip(document.sentences, outputs, strict=True)]
    return Translated(
        texts[0], _different(texts[1:], texts[0]), sentences, sum(x[0].source_tokens for x in outputs if x),
        sum(one.output_tokens for some in outputs for one in some),
    )  # fmt: skip


def _join(document: Document, outputs: Sequence[Sequence[Written]], number: int) -> str:
    """The document with output number so many of each sentence, or the last it has."""
    chosen = [some[min(number, len(some) - 1)] if some else None for some in outputs]
    return document.join(
        [one.text if one else "" for one in chosen], [one.alignment if one else None for one in chosen]
    )


def _put(unit: Unit, outputs: Sequence[Written]) -> str:
    """What stands in a document for a sentence with these outputs."""
    return unit.put(outputs[0].text, outputs[0].alignment) if outputs else unit.put("")


def _different(texts: Iterable[str], best: str) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text != best]


def _sentence(source: str, outputs: list[Written]) -> TranslatedSentence:
    if not outputs:
        return TranslatedSentence(source, "", 0.0, [], [])
    best = outputs[0]
    return TranslatedSentence(source, best.text, confidence(best), best.flags, outputs)


def confidence(written: Written) -> float:
    """The geometric mean of the probabilities of an output's tokens, the end included."""
    return math.exp(min(written.log_prob, 0.0) / (written.output_tokens + 1))
