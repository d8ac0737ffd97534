"""Answers of OpenAI's API in their form: completions and chat completions, whole and as streams of events."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

from regard.serving.events import DONE, event
from regard.serving.messages import Refused
from regard.serving.openai_requests import CompletionRequest
from regard.serving.openai_texts import SpelledToken, TextDelta, TokenUsage, WrittenText

LEAST = -9999.0  # what stands for a log-probability of minus infinity
NAMED = {"unauthorized": "invalid_api_key", "unknown_model": "model_not_found", "rate_limited": "rate_limit_exceeded"}


def problem(refused: Refused) -> dict[str, Any]:
    """Why a request is not answered."""
    kind = "server_error" if refused.status >= 500 else "invalid_request_error"
    return {
        "message": refused.message, "type": "rate_limit_error" if refused.status == 429 else kind,
        "param": getattr(refused, "param", None), "code": NAMED.get(refused.code, refused.code),
    }  # fmt: skip


class StreamForm(Protocol):
    """The parts of a stream."""

    @property
    def head(self) -> dict[str, Any]: ...

    def opening(self) -> list[dict[str, Any]]: ...

    def part(self, delta: TextDelta) -> dict[str, Any]: ...


class Completion:
    """The form of completions."""

    def __init__(self, model: str, request: CompletionRequest) -> None:
        self.head = {
            "id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()),
            "model": model,
        }  # fmt: skip
        self.request, self.n = request, request.n or 1
        self.count = self.n * len(request.prompts)

    def whole(self, texts: list[WrittenText], usage: TokenUsage) -> dict[str, Any]:
        """The answer."""
        choices = [self._choice(i, self._echoed(i) + x.text, x.tokens, x.finish) for i, x in enumerate(texts)]
        return {**self.head, "choices": choices, "usage": usage.to_json()}

    def _echoed(self, index: int) -> str:
        return self.request.prompts[index // self.n] if self.request.echo else ""

    def _choice(self, index: int, text: str, tokens: list[SpelledToken] | None, finish: str | None) -> dict[str, Any]:
        logprobs = None if tokens is None else _completion_logprobs(tokens)
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish}

    def opening(self) -> list[dict[str, Any]]:
        """The first parts of a stream: what is echoed."""
        echoed = [self._choice(i, self._echoed(i), None, None) for i in range(self.count)]
        return [{**self.head, "choices": [choice]} for choice in echoed if choice["text"]]

    def part(self, delta: TextDelta) -> dict[str, Any]:
        """A part of a stream."""
        return {**self.head, "choices": [self._choice(delta.index, delta.text, delta.tokens, delta.finish)]}


class Chat:
    """The form of chat completions."""

    def __init__(self, model: str, count: int) -> None:
        self.id, self.created, self.model = f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), model
        self.count = count

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    @property
    def head(self) -> dict[str, Any]:
        """What every part of a stream begins with."""
        return self._head("chat.completion.chunk")

    def whole(self, texts: list[WrittenText], usage: TokenUsage) -> dict[str, Any]:
        """The answer."""
        choices = [
            {
                "index": i, "message": {"role": "assistant", "content": x.text, "refusal": None},
                "logprobs": _chat_logprobs(x.tokens), "finish_reason": x.finish,
            }
            for i, x in enumerate(texts)
        ]  # fmt: skip
        return {**self._head("chat.completion"), "choices": choices, "usage": usage.to_json()}

    def opening(self) -> list[dict[str, Any]]:
        """The first parts of a stream: who speaks."""
        return [self._part(i, {"role": "assistant", "content": ""}) for i in range(self.count)]

    def part(self, delta: TextDelta) -> dict[str, Any]:
        """A part of a stream."""
        content = {"content": delta.text} if delta.text or delta.finish is None else {}
        return self._part(delta.index, content, delta.tokens, delta.finish)

    def _part(
        self, index: int, content: dict[str, Any], tokens: list[SpelledToken] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": content, "logprobs": _chat_logprobs(tokens), "finish_reason": finish}
        return {**self.head, "choices": [choice]}


async def form_events(
    form: StreamForm, deltas: AsyncIterator[TextDelta | TokenUsage], *, usage: bool
) -> AsyncIterator[str]:
    """An answer as events."""
    opened = False
    try:
        async with aclosing(deltas):  # type: ignore[type-var]
            async for delta in deltas:
                for part in () if opened else form.opening():
                    yield event(part)
                opened = True
                if isinstance(delta, TextDelta):
                    yield event(form.part(delta))
                elif usage:
                    yield event({**form.head, "choices": [], "usage": delta.to_json()})
    except Refused as refused:
        if not opened:
            raise
        yield event({"error": problem(refused)})
        return
    yield DONE


# Log-probabilities


def _completion_logprobs(tokens: list[SpelledToken]) -> dict[str, Any]:
    own = [x for x in tokens if x.text]
    return {
        "tokens": [x.text for x in own],
        "token_logprobs": [_number(x.info.log_prob) for x in own],
        "top_logprobs": [_by_text(_alternatives(x)) for x in own],
        "text_offset": [x.start for x in own],
    }


def _chat_logprobs(tokens: list[SpelledToken] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    return {"content": [_chat_token(x) for x in tokens if x.text], "refusal": None}


def _chat_token(token: SpelledToken) -> dict[str, Any]:
    others = [_entry(text, log_prob) for text, log_prob in _alternatives(token)]
    return {**_entry(token.text, _number(token.info.log_prob)), "top_logprobs": others}


def _alternatives(token: SpelledToken) -> list[tuple[str, float]]:
    log_probs = [_number(x.log_prob) for x in token.info.alternatives]
    return list(zip(token.alternatives, log_probs, strict=True))


def _by_text(likeliest_first: list[tuple[str, float]]) -> dict[str, float]:
    """Of tokens that read the same, such as `·a` and `a` at the beginning of a text, the likeliest."""
    found = dict[str, float]()
    for text, log_prob in likeliest_first:
        found.setdefault(text, log_prob)
    return found


def _entry(text: str, log_prob: float) -> dict[str, Any]:
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}


def _number(log_prob: float | None) -> float:
    return LEAST if log_prob is None or not math.isfinite(log_prob) else log_prob
