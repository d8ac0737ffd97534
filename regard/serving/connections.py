"""Connections of the server: how long a client may take to send a request and to read an answer, and which connections
are closed when there are too many."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serving.limits import Limits

HEADER_BYTES = 2**16  # of a request, all of them
MOST_HELD = 2**16  # bytes that are gathered before they are sent
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: a socket that is closed sends nothing more


class Gathered:
    """A transport that sends what is written in one turn of the loop at once: the head of an answer with its body."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.transport, self.loop = transport, loop
        self.parts, self.size = list[bytes](), 0
        self.is_closing, self.get_extra_info = transport.is_closing, transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def write(self, data: bytes) -> None:
        """Send soon; at once if it is much."""
        if not self.parts:
            self.loop.call_soon(self.flush)
        self.parts.append(data)
        self.size += len(data)
        if self.size > MOST_HELD:
            self.flush()

    def flush(self) -> None:
        """Send what was written."""
        data, self.parts, self.size = b"".join(self.parts), [], 0
        self.transport.write(data)

    def close(self) -> None:
        """Send what was written, and no more."""
        self.flush()
        self.transport.close()

    def abort(self) -> None:
        """Send nothing more."""
        self.parts.clear()
        self.transport.abort()


class BoundedProtocol(H11Protocol):
    """HTTP of one connection. One that sends no whole headers in time is closed: else clients that send a byte now and
    then (Slowloris) could hold connections for good. So is one that does not read what it is sent. Nor can many at once
    keep others out: with too many connections that which has waited longest between requests, or within headers, is
    closed for a new one."""

    limits: ClassVar[Limits]
    waiting: ClassVar[dict[BoundedProtocol, asyncio.TimerHandle | None]]  # those in no request, oldest first
    unread: asyncio.TimerHandle | None = None  # until when the client has to read what was sent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Gathered(transport, self.loop))  # type: ignore[arg-type]
        transport.set_write_buffer_limits(0)  # writing pauses as soon as the kernel takes no more
        self._wait(within=True)
        while len(self.connections) > self.limits.connections and len(self.waiting) > 1:
            oldest = next(iter(self.waiting))
            oldest.close()
            self.connections.discard(oldest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._was_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread = self.loop.call_later(self.limits.send_timeout, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._was_read()

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

    def _abort(self) -> None:
        """Drop the connection, and what was to be sent; else the kernel would keep it and try on."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self.transport.abort()

    def _was_read(self) -> None:
        """Nothing waits for the client to read it."""
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None

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
