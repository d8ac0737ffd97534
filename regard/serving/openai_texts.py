"""Texts as OpenAI's API gives them: without the prompt, up to where they should stop, with tokens that spell them, at
once or as they are written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import JsonValue

from regard.data.tokens import clean
from regard.serving.messages import Generation, ModelInfo, Source, TokenInfo, Written
from regard.serving.openai_requests import CompletionRequest, Sampling
from regard.serving.service import Service
from regard.serving.translating import Translated, Translating, translate_streaming

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class SpelledToken:
    """A token as it stands in a text, and what is known of it; the one that ends a text has none."""

    text: str
    start: int
    info: TokenInfo
    alternatives: list[str]  # texts of those of its info, as they would stand there


@dataclass(frozen=True)
class WrittenText:
    """A text that was written."""

    text: str
    finish: Finish
    tokens: list[SpelledToken] | None = None


@dataclass(frozen=True)
class TokenUsage:
    """How many tokens were read and written."""

    prompt: int = 0
    completion: int = 0

    def to_json(self) -> dict[str, int]:
        """As OpenAI names them."""
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(self.prompt + other.prompt, self.completion + other.completion)


@dataclass(frozen=True)
class TextDelta:
    """What is new of a text; the last of each has why it ends there."""

    index: int
    text: str = ""
    tokens: list[SpelledToken] | None = None
    finish: Finish | None = None


class Ending:
    """Where a text ends that should stop before certain strings, while it grows. What might be the beginning of one of
    them is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.text, self.sent, self.stopped = stops, "", 0, False

    def add(self, text: str) -> str:
        """What may be sent when this has been written."""
        if self.stopped:
            return ""
        self.text += text
        end = first_stop(self.text, self.stops)
        self.stopped = end is not None
        if end is None:
            end = len(self.text) - max((_overlap(self.text, stop) for stop in self.stops), default=0)
        new, self.sent = self.text[self.sent : end], max(self.sent, end)
        return new

    def rest(self) -> str:
        """What may be sent when nothing more comes."""
        return "" if self.stopped else self.text[self.sent :]


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first of some strings stands in a text."""
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)


def _overlap(text: str, stop: str) -> int:
    """How much of a string a text ends with the beginning of."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


def spelled(infos: Sequence[TokenInfo], text: str) -> list[SpelledToken]:
    """Tokens as parts of the text that they make. They are given as they should be shown: a piece that goes on a word
    begins with a dot, and a blank may be shown as ▁. One that makes no text by itself, such as a byte, is empty."""
    found, at = list[SpelledToken](), 0
    for info in infos:
        shown = info.text.replace("▁", " ")
        forms = (f" {shown.lstrip()}", shown, shown.removeprefix("·"), "")
        part = next(form for form in forms if text.startswith(form, at))
        spaced = at > 0 and (shown.startswith("·") or (part == forms[0] and bool(shown.strip())))
        others = [part if x.id == info.id else _alternative(x.text, spaced=spaced) for x in info.alternatives]
        found.append(SpelledToken(part, at, info, others))
        at += len(part)
    return found


def _alternative(piece: str, *, spaced: bool) -> str:
    """A token that might have stood there; `spaced`: a blank stands before what begins a word."""
    shown = piece.replace("▁", " ")
    return f" {shown.lstrip()}" if spaced and not shown.startswith("·") else shown.removeprefix("·")


@dataclass(frozen=True)
class Prompt:
    """What a language model goes on: its text as an output begins with it, and how many tokens that is. One with words
    that the model does not know reads otherwise in the output: its text is None."""

    text: str | None = ""
    tokens: int = 0


def written_text(one: Written, prompt: Prompt, stops: Sequence[str], *, infos: bool) -> WrittenText:
    """An output without the prompt that it begins with, up to the first stop; `infos`: with its tokens."""
    whole = spelled(one.tokens or [], one.text)
    cut = (
        len(prompt.text) if prompt.text is not None else next((x.start for x in whole[prompt.tokens :]), len(one.text))
    )
    text = one.text[cut:]
    end = first_stop(text, stops)
    finish: Finish = "length" if "truncated" in one.flags and end is None else "stop"
    last = cut + (len(text) if end is None else end)
    tokens = [replace(x, start=x.start - cut) for x in whole if cut <= x.start < last]
    return WrittenText(text if end is None else text[:end], finish, tokens if infos else None)


async def read_prompts(service: Service, info: ModelInfo, prompts: Sequence[str]) -> list[Prompt]:
    """The prompts of a language model."""
    cleaned = [clean(prompt) for prompt in prompts]
    some = [text for text in cleaned if text]
    scores = iter(await service.score(info.name, [""] * len(some), some) if some else [])
    found = []
    for text in cleaned:
        infos = next(scores).tokens[:-1] if text else []
        known = "".join(token.text for token in spelled(infos, text)) == text
        found.append(Prompt(text if known else None, len(infos)))
    return found


@dataclass(frozen=True)
class TextJob:
    """Texts that are wanted: `count` for each source, of which the best `keep` are given."""

    info: ModelInfo
    sources: list[Source]
    request: Sampling
    most: int | None  # tokens
    count: int = 1
    keep: int = 1
    infos: bool = False
    alternatives: int = 0

    def generation(self, sources: list[Source], prompts: Sequence[Prompt], limit: int) -> Generation:
        """What is asked of the service: outputs for sources whose prompts have as many tokens as each other. A server
        that allows no more than `limit` tokens writes so many."""
        most = None if self.most is None else min(self.most + (prompts[0].tokens if prompts else 0), limit)
        search: dict[str, JsonValue] = self.request.settings(self.info, most, self.count)
        tokens = self.infos or any(prompt.text is None for prompt in prompts)
        return Generation(
            model=self.info.name, inputs=sources, search=search, tokens=tokens, alternatives=self.alternatives
        )


async def write(service: Service, job: TextJob) -> tuple[list[list[WrittenText]], TokenUsage]:
    """The texts for each source, and how much that was."""
    prompts, limit = await _prompts(service, job), service.limits.max_length
    if job.most is None or len({prompt.tokens for prompt in prompts}) <= 1:
        outputs = await service.generate(job.generation(job.sources, prompts, limit))
    else:  # prompts count among the tokens of an output, and each has others
        asked = [job.generation([one], [prompt], limit) for one, prompt in zip(job.sources, prompts, strict=True)]
        outputs = [found for some in await asyncio.gather(*map(service.generate, asked)) for found in some]
    texts, usage = list[list[WrittenText]](), TokenUsage()
    for prompt, some in zip(prompts, outputs, strict=True):
        usage += _usage(prompt, some)
        best = sorted(some, key=lambda x: -x.log_prob / (x.output_tokens + 1)) if job.count > job.keep else some
        texts.append([written_text(x, prompt, job.request.stops, infos=job.infos) for x in best[: job.keep]])
    return texts, usage


async def _prompts(service: Service, job: TextJob) -> list[Prompt]:
    """What each output begins with that was given."""
    if job.info.sources:
        return [Prompt()] * len(job.sources)
    return await read_prompts(service, job.info, [source for source in job.sources if isinstance(source, str)])


def _usage(prompt: Prompt, outputs: Sequence[Written]) -> TokenUsage:
    read = prompt.tokens or (outputs[0].source_tokens if outputs else 0)
    return TokenUsage(read, sum(x.output_tokens - prompt.tokens for x in outputs))


async def stream(service: Service, job: TextJob) -> AsyncIterator[TextDelta | TokenUsage]:
    """Texts as they are written, if it is one text of one source; else when all is written. Last comes the usage: if it
    is wanted, also what comes after a stop is written, as it is without a stream."""
    prompts = await _prompts(service, job)
    if len(prompts) > 1 or job.count > 1 or job.infos or prompts[0].text is None:
        texts, usage = await write(service, job)
        for index, text in enumerate(x for some in texts for x in some):
            for delta in _deltas(index, text):
                yield delta
        yield usage
        return
    given, ending = prompts[0].text, Ending(job.request.stops)
    whole, finish, usage = "", "stop", TokenUsage(prompts[0].tokens)
    request = job.generation(job.sources, prompts, service.limits.max_length)
    async with aclosing(service.stream(request)) as news:  # type: ignore[type-var]
        async for new in news:
            if new.done:
                finish = written_text(new.done[0], prompts[0], job.request.stops, infos=False).finish
                usage = _usage(prompts[0], new.done)
            before, whole = whole, whole + new.text
            if added := ending.add(whole[max(len(before), len(given)) :]):
                yield TextDelta(0, added)
            if ending.stopped and not job.request.with_usage:
                break
    if rest := ending.rest():
        yield TextDelta(0, rest)
    yield TextDelta(0, finish="length" if finish == "length" and not ending.stopped else "stop")
    yield usage


def _deltas(index: int, text: WrittenText) -> list[TextDelta]:
    """A text that is all there, a token at a time where tokens are known; of the last, what stands before a stop."""
    if not text.tokens:
        return [TextDelta(index, text.text), TextDelta(index, finish=text.finish)]
    parts = (TextDelta(index, text.text[x.start : x.start + len(x.text)], [x]) for x in text.tokens)
    return [*parts, TextDelta(index, finish=text.finish)]


async def stream_translation(
    service: Service, text: str, how: Translating, request: Sampling
) -> AsyncIterator[TextDelta | TokenUsage]:
    """A translation as it is written."""
    ending, done = Ending(request.stops), Translated("", [], [])
    async with aclosing(translate_streaming(service, text, how)) as parts:  # type: ignore[type-var]
        async for part in parts:
            if isinstance(part, Translated):
                done = part
            elif new := ending.add(part):
                yield TextDelta(0, new)
            if ending.stopped and not request.with_usage:
                break
    if rest := ending.rest():
        yield TextDelta(0, rest)
    yield TextDelta(0, finish="stop" if ending.stopped else translation_finish(done))
    yield TokenUsage(done.source_tokens, done.output_tokens)


def translation_finish(found: Translated) -> Finish:
    """Why a translation ends: a sentence was cut off, or all of it is there."""
    return "length" if any("truncated" in sentence.flags for sentence in found.sentences) else "stop"


def completion_job(info: ModelInfo, request: CompletionRequest) -> TextJob:
    """What a request for completions asks for."""
    n, best_of, settings = request.n or 1, request.best_of or request.n or 1, request
    if not request.samples and best_of > n:  # a wider beam
        beam = {"beam": max(best_of, int(str(info.search.get("beam", 1))))}
        settings, best_of = request.model_copy(update={"search": {**(request.search or {}), **beam}}), n
    infos, sources = request.logprobs is not None, list[Source](request.prompts)
    return TextJob(info, sources, settings, request.max_tokens, best_of, n, infos, request.logprobs or 0)
