"""Whole texts through a model that knows sentences: cut, translated together, joined.

    found = await translate(service, text, form="html", glossary={"apple": "Apfel"})
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

from regard.serving.documents import Document, Format, split, whole
from regard.serving.glossary import Glossary
from regard.serving.languages import SOURCE
from regard.serving.messages import Flag, Generation, LanguagePair, ModelInfo, Refused, Source, Written
from regard.serving.sentences import LONGEST
from regard.serving.service import Service

LONGEST_WAIT = 2.0  # seconds until the rest of a text is tried again
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
    _check_length(texts, service.limits.characters)
    documents = [await asyncio.to_thread(_document, text, info, how) for text in texts]
    units = [unit for document in documents for unit in document.units]
    asked = list(dict.fromkeys(unit.text for unit in units))  # a sentence that comes twice is translated once
    links = any(unit.needs_links for unit in units)
    found = await _outputs(service, info, asked, glossary, how, alignment=links)
    known = dict(zip(asked, found, strict=True))
    return [await asyncio.to_thread(_joined, document, known, how.alternatives) for document in documents]


async def translate_streaming(
    service: Service, text: str, how: Translating = Translating()
) -> AsyncIterator[str | Translated]:
    """A translation as it is written: parts that join to the whole, and last all of it. The first sentence comes word
    by word; the others are translated at the same time, and come together. With markup or alternatives nothing is sent
    before all is known."""
    info, glossary = service.model(how.model), Glossary(how.glossary)
    _check_length([text], service.limits.characters)
    document = await asyncio.to_thread(_document, text, info, how)
    units = document.units
    if not units or any(unit.needs_links for unit in units) or how.alternatives:
        found = await translate(service, text, how)
        yield found.text
        yield found
        return
    rest = list(dict.fromkeys(unit.text for unit in units[1:] if unit.text != units[0].text))
    first = document.parts.index(units[0])
    lead = "".join(part for part in document.parts[:first] if isinstance(part, str))
    others = asyncio.create_task(_outputs(service, info, rest, glossary, how, alignment=False))
    sent, outputs = "", list[Written]()
    request = _generation(info, [units[0].text], glossary, how, alignment=False)
    try:
        async with aclosing(service.stream(request, deadline=how.deadline)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                outputs = delta.done[:1] if delta.done is not None else outputs
                if delta.text:
                    yield delta.text if sent else lead + delta.text
                    sent += delta.text
        known = {units[0].text: outputs, **dict(zip(rest, await others, strict=True))}
    finally:
        others.cancel()
    whole_of_it = _joined(document, known, 0)
    yield whole_of_it.text.removeprefix(lead + sent if sent else "")
    yield whole_of_it


def _check_length(texts: Sequence[str], most: int) -> None:
    characters = sum(map(len, texts))
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
) -> list[list[Written]]:
    """The outputs for each text, in requests as large as the server takes. The first is refused if there is too much to
    do; others wait, so that what was done is not lost."""
    loop, found = asyncio.get_running_loop(), list[list[Written]]()
    most = service.limits.timeout
    until = loop.time() + (most if how.deadline is None else min(how.deadline, most))
    for part in _parts(texts, service.limits.inputs):
        request, answered = _generation(info, part, glossary, how, alignment=alignment), None
        while answered is None:
            try:
                answered = await service.generate(request, deadline=until - loop.time())
            except Refused as refused:
                if not found or refused.code != "overloaded" or loop.time() > until:
                    raise
                await asyncio.sleep(min(refused.retry_after or 1.0, LONGEST_WAIT))
        found += [some[: how.alternatives + 1] for some in answered]
    return found


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
