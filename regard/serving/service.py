"""Models at work, in a process each: what every protocol asks. It knows nothing of HTTP, and runs no model itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from regard.serving.limits import Limits
from regard.serving.messages import Delta, Generation, ModelInfo, Scored, Source, Written


class Service:
    """Several models by name. What cannot be answered raises `Refused`; to cancel a task that awaits an answer, or to
    close an iterator, cancels the work."""

    limits: Limits

    def models(self) -> list[ModelInfo]:
        """All models, in the order in which they were given."""
        raise NotImplementedError

    def model(self, name: str | None) -> ModelInfo:
        """The model of this name, or the first; one that is not there is `Refused` (404)."""
        raise NotImplementedError

    def admit(self, key: str | None, address: str) -> None:
        """See that whoever asks may: a key that is unknown is `Refused` (401), and so are too many requests (429)."""
        raise NotImplementedError

    async def generate(self, request: Generation, *, deadline: float | None = None) -> list[list[Written]]:
        """The outputs of each input, best first. `deadline` is in seconds from now (default: the server's)."""
        raise NotImplementedError

    def stream(self, request: Generation, *, deadline: float | None = None) -> AsyncIterator[Delta]:
        """The output of one input, as it is written: texts that join to the whole, and last all of it."""
        raise NotImplementedError

    async def score(
        self, model: str | None, sources: Sequence[Source], targets: Sequence[str], *, deadline: float | None = None
    ) -> list[Scored]:
        """`log p` of each target given its source; of a language model every source is ""."""
        raise NotImplementedError

    async def explain(
        self, model: str | None, source: Source, target: str | None = None, *,
        search: Mapping[str, JsonValue] | None = None, deadline: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """What was attended to while the target (or the model's own output) was written, as a browser takes it."""
        raise NotImplementedError

    async def inspect(
        self, model: str | None, source: Source, *, forced: Sequence[int] = (), alternatives: int = 8,
        tree: bool = False, edits: Mapping[str, JsonValue] | None = None,
        search: Mapping[str, JsonValue] | None = None, deadline: float | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The search for an output laid open: alternatives at each place, the tree of hypotheses, attention."""
        raise NotImplementedError

    async def embed(
        self, model: str | None, sources: Sequence[Source], *, deadline: float | None = None
    ) -> list[list[float]]:
        """One vector for each source: what the encoder makes of the whole."""
        raise NotImplementedError
