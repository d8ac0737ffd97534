"""Bodies of requests as JSON, and nothing but JSON: whatever else comes is refused with what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from email.message import Message
from functools import lru_cache
from typing import Any, NoReturn

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from regard.serving.messages import Refused

MOST = 20  # problems that are named
DEEPEST = 64  # levels of lists and objects; what passes a request on to a model would stumble over 200


class StrictRequest(Request):
    """A request whose body is JSON by the letter: no NaN, no half characters, nothing nested beyond reason."""

    async def json(self) -> Any:
        return strict_json(await self.body())


def strict_json(body: bytes) -> Any:
    """What a body holds; an `HTTPException` if it is not JSON by the letter."""
    try:
        content = json.loads(body, parse_constant=_no_number)
        too_deep = body.count(b"[") + body.count(b"{") > DEEPEST and _is_deeper(content, DEEPEST)
    except RecursionError:
        too_deep = True
    except ValueError as error:  # also of what is no UTF-8, and of numbers with thousands of digits
        raise HTTPException(400, f"the body is not JSON: {_first_line(error)}") from None
    if too_deep:
        raise HTTPException(400, f"the body is nested deeper than {DEEPEST} levels")
    if b"\\ud" in body.lower() and not _is_unicode(content):
        raise HTTPException(422, "a text holds half a character (a lone surrogate)")
    return content


class StrictRoute(APIRoute):
    """A route that takes JSON alone. One with a body is run here, and FastAPI only documents it: to have it solve
    dependencies takes much of the time of a short request. Its endpoint takes `body` and `request` and returns a
    response; its dependencies take the request."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        super().__init__(path, endpoint, **more)
        if self.body_field is not None:
            self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = StrictRequest(scope, receive)
        if not is_json(request):
            raise Refused(415, "unsupported_media_type", "a body here is JSON, with Content-Type: application/json")
        is_empty = not await request.body()
        content = None if is_empty else await request.json()
        for dependency in self.dependencies:
            if dependency.dependency is not None:
                await dependency.dependency(request)
        if is_empty:
            raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": "Field required"}])
        assert self.body_field is not None, "only routes with a body come here"
        body, problems = self.body_field.validate(content, {}, loc=("body",))
        if problems:
            raise RequestValidationError(problems)
        response = await self.endpoint(body=body, request=request)
        await response(scope, receive, send)


def is_json(request: Request) -> bool:
    """Whether a body says that it is JSON."""
    return _is_json(request.headers.get("content-type", ""))


@lru_cache
def _is_json(content_type: str) -> bool:
    message = Message()
    message["content-type"] = content_type
    return message.get_content_type() == "application/json"


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(one, levels - 1) for one in inner)


def _is_unicode(content: Any) -> bool:
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def described(problems: Sequence[Any]) -> str:
    """What is wrong with a request, in a line that repeats nothing of its texts."""
    lines = [f"{'.'.join(str(part)[:40] for part in x['loc'])}: {x['msg']}" for x in problems[:MOST]]
    more = [f"and {len(problems) - MOST} more"] if len(problems) > MOST else []
    return "; ".join([*lines, *more])[:2000]
