"""Server-sent events: an answer that comes in parts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse

EVENTS = "text/event-stream"
DONE = "data: [DONE]\n\n"  # how a stream ends


def event(content: Any) -> str:
    """One event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


async def streamed(events: AsyncIterator[str]) -> StreamingResponse:
    """An answer as events. What is refused before the first of them is refused with its status."""
    first = await anext(events)
    return StreamingResponse(_from(first, events), media_type=EVENTS, headers={"Cache-Control": "no-store"})


async def _from(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    async with aclosing(rest):  # type: ignore[type-var]
        yield first
        async for one in rest:
            yield one
