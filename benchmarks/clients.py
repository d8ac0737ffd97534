"""Clients of a server, in a process of their own: HTTP/1.1 over connections that stay open, by the standard library
alone, so that what they cost is small beside the server.

`python -m benchmarks.clients PORT` reads tasks from standard input, a line of JSON each, and answers each with a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """What some clients are to ask: each sends a request, waits for its answer and sends the next."""

    clients: int
    path: str
    bodies: list[Any]  # as JSON has them


class Answer(NamedTuple):
    """What came of a request."""

    number: int
    status: int
    seconds: float
    first: float  # seconds until the first event of a stream
    text: str


async def ask(port: int, asked: Asked) -> list[Answer]:
    """All answers, in the order in which they came."""
    rest, found = iter(enumerate(asked.bodies)), list[Answer]()
    await asyncio.gather(*(_client(port, asked.path, rest, found) for _ in range(asked.clients)))
    return found


async def _client(port: int, path: str, rest: Iterator[tuple[int, Any]], found: list[Answer]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    for number, body in rest:
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        began = time.perf_counter()
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        status, first, text = await _read(reader)
        found.append(Answer(number, status, time.perf_counter() - began, max(first - began, 0.0), text))
    writer.close()


async def _read(reader: asyncio.StreamReader) -> tuple[int, float, str]:
    """Status, when the first event of a stream came (0: it is none), and the body, of a stream its last events."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    status, first = int(lines[0].split()[1]), 0.0
    if "content-length" in headers:
        content = await reader.readexactly(int(headers["content-length"]))
        return status, first, content.decode()
    chunks = list[bytes]()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunks.append((await reader.readexactly(size + 2))[:-2])
        first = first or time.perf_counter()
    await reader.readuntil(b"\r\n")
    events = [event for event in b"".join(chunks).decode().split("\n\n") if event]
    return status, first, "\n".join(events[-2:])


def main(arguments: Sequence[str]) -> None:
    """Work on one task after the other, until there are no more."""
    for line in sys.stdin:
        found = asyncio.run(ask(int(arguments[0]), Asked(*json.loads(line))))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
