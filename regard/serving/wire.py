"""What the server and its workers say to each other: JSON in frames, each led by its length in four bytes."""

from __future__ import annotations

import asyncio
import json
import math
import select
import socket
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, TypeAdapter

from regard.serving.limits import Limits
from regard.serving.messages import Code, Generation, Message, ModelInfo, Source, Written
from regard.serving.settings import Served

HEAD = 4
LARGEST = 2**31  # bytes of a frame
CHUNK = 2**18

# To a worker


class Start(Message):
    """What a worker is told first: which model it serves, and in which folder of its own it may write."""

    served: Served
    limits: Limits
    folder: str
    modules: list[str]  # of the user's, which register parts


class Generate(Message):
    """Write outputs."""

    do: Literal["generate"] = "generate"
    id: int
    request: Generation
    stream: bool


class Score(Message):
    """Score pairs."""

    do: Literal["score"] = "score"
    id: int
    sources: list[Source]
    targets: list[str]


class Explain(Message):
    """Show what was attended to."""

    do: Literal["explain"] = "explain"
    id: int
    source: Source
    target: str | None
    method: str  # attention, or one that the model's `methods` name
    edits: dict[str, JsonValue] | None = None
    search: dict[str, JsonValue]


class Inspect(Message):
    """Lay a search open."""

    do: Literal["inspect"] = "inspect"
    id: int
    source: Source
    forced: list[int]
    alternatives: int
    tree: bool
    edits: dict[str, JsonValue] | None
    search: dict[str, JsonValue]


class Embed(Message):
    """Embed sources."""

    do: Literal["embed"] = "embed"
    id: int
    sources: list[Source]


class Cancel(Message):
    """Forget what was asked under this id."""

    do: Literal["cancel"] = "cancel"
    id: int


Ask = Generate | Score | Explain | Inspect | Embed
ASK: TypeAdapter[Ask | Cancel] = TypeAdapter(Annotated[Ask | Cancel, Field(discriminator="do")])


# From a worker


class Ready(Message):
    """The model is loaded."""

    say: Literal["ready"] = "ready"
    info: ModelInfo


class Unable(Message):
    """The model cannot be loaded."""

    say: Literal["unable"] = "unable"
    message: str


class Started(Message):
    """The search for an input has begun, so many seconds after it was asked for."""

    say: Literal["started"] = "started"
    id: int
    waited: float


class Wrote(Message):
    """New text of an output, that will not change."""

    say: Literal["wrote"] = "wrote"
    id: int
    text: str


class Found(Message):
    """All outputs of an input."""

    say: Literal["found"] = "found"
    id: int
    index: int
    outputs: list[Written]


class Answer(Message):
    """What a job gave, as JSON, which only whoever asked takes apart."""

    say: Literal["answer"] = "answer"
    id: int
    content: str


class Failed(Message):
    """Why there is no answer."""

    say: Literal["failed"] = "failed"
    id: int
    status: int
    code: Code
    message: str


class Load(Message):
    """How much there is to do."""

    say: Literal["load"] = "load"
    waiting: int
    running: int
    rows: int


Reply = Started | Wrote | Found | Answer | Failed
Tell = Ready | Unable | Reply | Load
TELL: TypeAdapter[Tell] = TypeAdapter(Annotated[Tell, Field(discriminator="say")])


def frame(content: bytes) -> bytes:
    """Content as it travels."""
    return len(content).to_bytes(HEAD, "big") + content


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next content; `IncompleteReadError` at the end."""
    size = int.from_bytes(await reader.readexactly(HEAD), "big")
    return await reader.readexactly(size)


class Frames:
    """Frames as they come, in pieces of any size."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """The contents that are whole with this piece."""
        self.buffer += data
        found, start = [], 0
        while len(self.buffer) >= start + HEAD:
            end = start + HEAD + int.from_bytes(self.buffer[start : start + HEAD], "big")
            if len(self.buffer) < end:
                break
            found.append(bytes(self.buffer[start + HEAD : end]))
            start = end
        del self.buffer[:start]
        return found


class Channel:
    """The worker's end of the line: it waits, or looks whether something has come."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.frames = line, Frames()
        self.poll = select.poll()
        self.poll.register(line, select.POLLIN)

    def receive(self, *, wait: bool) -> list[bytes]:
        """All that has come; with `wait`, at least one. An `EOFError` when the other end is gone."""
        found = list[bytes]()
        while (wait and not found) or self.poll.poll(0):
            data = self.line.recv(CHUNK)
            if not data:
                raise EOFError
            found += self.frames.take(data)
        return found

    def send(self, *messages: Tell) -> None:
        """Say something; an `EOFError` when the other end is gone."""
        try:
            self.line.sendall(b"".join(frame(message.model_dump_json().encode()) for message in messages))
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None


def _finite(value: Any) -> Any:
    """With None for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def dumped(value: Any) -> str:
    """As JSON, with None for numbers that are none."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)
