"""Connections of the server: how long a client may take to say what it wants, and which go when there are too many."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serving.limits import Limits

HEADER_BYTES = 2**16  # of a request, all of them


class BoundedProtocol(H11Protocol):
    """HTTP of one connection. One that sends no whole headers in time is closed: else clients that send a byte now and
    then (Slowloris) could hold connections for good. Nor can many at once keep others out: with too many connections
    that which has waited longest between requests, or within headers, is closed for a new one."""

    limits: ClassVar[Limits]
    waiting: ClassVar[dict[BoundedProtocol, asyncio.TimerHandle | None]]  # those in no request, oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(within=True)
        while len(self.connections) > self.limits.connections and len(self.waiting) > 1:
            oldest = next(iter(self.waiting))
            oldest.close()
            self.connections.discard(oldest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def close(self) -> None:
        """Send what is still to be sent, and no more."""
        self._leave()
        self.transport.close()

    def _look(self) -> None:
        """Count time while headers are not whole; between two requests uvicorn does."""
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self._leave()
        else:
            self._wait(within=bool(self.conn.trailing_data[0]))

    def _wait(self, *, within: bool) -> None:
        """No request is whole; with `within`, one has begun."""
        if self.waiting.get(self) is None:
            timeout = self.limits.header_timeout
            self.waiting[self] = self.loop.call_later(timeout, self.close) if within else None

    def _leave(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()


def bounded_protocol(limits: Limits) -> type[BoundedProtocol]:
    """The protocol of all connections of one server."""
    return type("ServerProtocol", (BoundedProtocol,), {"limits": limits, "waiting": {}})
