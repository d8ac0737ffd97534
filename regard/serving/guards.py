"""What every request passes before it reaches a protocol, as ASGI middleware: an id and a line in the log, headers that
protect a browser, names the server answers to, and bodies that are read whole before anything is done with them."""

from __future__ import annotations

import asyncio
import json
import math
import re
import secrets
import sys
import time
import traceback
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serving.messages import Refused
from regard.serving.service import Service
from regard.serving.settings import LOOPBACK, ServerSettings

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
OPEN = ("/health", "/ready", "/metrics")  # answered while the server goes down
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; style-src 'self' "
        "'unsafe-inline'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "geolocation=(), payment=()",
}
PROTECTION = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def note(event: str, **what: Any) -> None:
    """A line of the log: JSON, without anything that users wrote."""
    content = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **what}
    print(json.dumps(content, ensure_ascii=True), file=sys.stderr, flush=True)


def refusal(refused: Refused, request_id: str = "") -> JSONResponse:
    """What a request gets that is not answered."""
    message = refused.message.encode("utf-8", "replace").decode()  # it may quote half a character
    content = {"code": refused.code, "message": message, "type": _kind(refused.status)}
    return refusing(refused, {"error": content | ({"request_id": request_id} if request_id else {})}, refused.status)


def refusing(refused: Refused, content: dict[str, Any], status: int) -> JSONResponse:
    """What a request gets that is not answered, in the form of any protocol."""
    response = JSONResponse(content, status)
    if refused.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(refused.retry_after)))
    if refused.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _kind(status: int) -> str:
    return "server_error" if status >= 500 else "invalid_request_error"


class Guard:
    """The outermost: gives each request an id, counts and logs it, and adds headers to its answer."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self.running = 0  # requests that are being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        wanted = Headers(scope=scope).get("x-request-id", "")
        request_id = wanted if REQUEST_ID.fullmatch(wanted) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        begun, status, whole = time.monotonic(), 0, False
        self.running += 1

        async def answer(message: Message) -> None:
            nonlocal status, whole
            whole = message["type"] == "http.response.body" and not message.get("more_body", False)
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name for name, _ in message["headers"]}
                more = [pair for pair in PROTECTION if pair[0] not in given]
                more.append((b"x-request-id", request_id.encode()))
                if self.service.draining and b"connection" not in given:
                    more.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            await self.app(scope, receive, answer)
        except ClientDisconnect:  # while the answer was sent
            pass
        except Exception as error:
            self._note("bug", request_id=request_id, error=type(error).__name__, at=places(error))
            if not whole:
                raise
        finally:
            self.running -= 1
            self.service.metrics.requests.labels(str(status or 499)).inc()
            self._note(
                "request", request_id=request_id, method=scope["method"], path=_shown(scope["path"]),
                status=status or 499, seconds=round(time.monotonic() - begun, 4), client=_address(scope),
            )  # fmt: skip

    def _note(self, event: str, **what: Any) -> None:
        if self.service.settings.log == "json":
            note(event, **what)


def places(error: BaseException) -> list[str]:
    """Where in the code an error was met; what it says may quote a user."""
    return [f"{x.filename}:{x.lineno} {x.name}" for x in traceback.extract_tb(error.__traceback__)[-4:]]


def _shown(path: str) -> str:
    return path[:200]


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


class Names:
    """Answers only to names that the server is known by, so that a page cannot reach a server on its reader's machine
    under a name of its own (DNS rebinding)."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        local = [*LOOPBACK, settings.host] if settings.is_local else None
        names = settings.hosts if settings.hosts is not None else local
        self.names = None if names is None else {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.names is not None:
            host = Headers(scope=scope).get("host", "")
            name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
            if name.lower() not in self.names:
                refused = Refused(421, "bad_request", "the server does not answer to this name; see the setting hosts")
                await refusal(refused)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class Bodies:
    """Reads the body of a request, as far as it may go and in the time it may take, before anything is done; and stops
    the work on a request whose client is gone."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self.held = 0  # bytes of all bodies that are here

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = bytearray()
        try:
            await self._pass(body, scope, receive, send)
        finally:
            self.held -= len(body)

    async def _pass(self, body: bytearray, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self.service.draining and scope["path"] not in OPEN:
                raise Refused(503, "draining", "the server is going down and takes no more requests", 5.0)
            await self._read(body, Headers(scope=scope), receive)
        except Refused as refused:
            self.service.metrics.refused.labels(refused.code).inc()
            response = refusal(refused, scope["state"]["request_id"])
            response.headers["Connection"] = "close"  # what is left of the body is not read
            await response(scope, receive, send)
            return
        except ConnectionError:
            return
        await self._answered(bytes(body), scope, receive, send)

    async def _read(self, body: bytearray, headers: Headers, receive: Receive) -> None:
        limits = self.service.limits
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "unsupported_media_type", "a body that is compressed is not read; send it as it is")
        most, length = limits.body_bytes, headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 18:
            raise Refused(400, "bad_request", "Content-Length is no length")
        if int(length) > most:
            raise Refused(413, "too_large", f"a body of {int(length):,} bytes is more than {most:,}, the limit here")
        try:
            async with asyncio.timeout(limits.body_timeout):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionError
                    part, more = message.get("body", b""), message.get("more_body", False)
                    self.held += len(part)
                    body += part
                    if len(body) > most:
                        raise Refused(413, "too_large", f"a body of more than {most:,} bytes, the limit here")
                    if self.held > limits.all_bytes:
                        raise Refused(429, "overloaded", "there are too many large requests at once", 1.0)
        except TimeoutError:
            raise Refused(408, "timeout", f"the body took longer than {limits.body_timeout:g} seconds") from None

    async def _answered(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app on a body that is here, for as long as somebody waits for the answer."""
        gone, given = asyncio.Event(), False

        async def replay() -> Message:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        work = asyncio.current_task()
        assert work is not None, "a server runs it"

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()
            work.cancel()

        watcher = asyncio.create_task(watch())
        try:
            await self.app(scope, replay, send)
        except asyncio.CancelledError:
            if not gone.is_set():  # the server itself is ending
                raise
        finally:
            watcher.cancel()
