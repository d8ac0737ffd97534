"""Models at work, in a process each: what every protocol asks. It knows nothing of HTTP, and runs no model itself."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import JsonValue, TypeAdapter

from regard.serving.access import Access, read_keys
from regard.serving.limits import Limits
from regard.serving.messages import Delta, Generation, ModelInfo, Refused, Scored, Source, Written
from regard.serving.metrics import Metrics
from regard.serving.settings import ServerSettings
from regard.serving.supervisor import Call, Keeper, Note
from regard.serving.uploads import check_source
from regard.serving.wire import Answer, Ask, Embed, Explain, Found, Generate, Inspect, Score, Wrote

SCORED = TypeAdapter(list[Scored])
VECTORS = TypeAdapter(list[list[float]])
MEASURED = 64  # inputs whose pace is that of a model
LONGEST_WAIT = 300.0  # seconds that a caller is told to wait at most


class Pace:
    """How many inputs a model answers a second, of late."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=MEASURED)

    def tick(self) -> None:
        """One was answered."""
        self._ends.append(time.monotonic())

    def wait(self, inputs: int) -> float:
        """Seconds until so many are answered."""
        if len(self._ends) < 2:
            return 1.0
        rate = (len(self._ends) - 1) / max(time.monotonic() - self._ends[0], 1e-3)
        return min(max(inputs / rate, 1.0), LONGEST_WAIT)


class Service:
    """Several models by name. What cannot be answered raises `Refused`; to cancel a task that awaits an answer, or to
    close an iterator, cancels the work."""

    def __init__(self, settings: ServerSettings, modules: Sequence[str] = (), note: Note = lambda event, **what: None):
        self.settings, self.limits, self.note = settings, settings.limits, note
        self.access = Access(None if settings.keys is None else read_keys(Path(settings.keys)), settings.limits)
        self.metrics = Metrics()
        self.draining = False
        self._keepers = {x.name: Keeper(x, settings.limits, list(modules), note) for x in settings.models}
        self._open = dict.fromkeys(self._keepers, 0)  # inputs of each model that wait or are worked on
        self._pace = {name: Pace() for name in self._keepers}

    async def start(self) -> None:
        """Load all models; a `ModelError` if one cannot be."""
        try:
            await asyncio.gather(*(keeper.start() for keeper in self._keepers.values()))
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        """End all processes, whatever they do."""
        await asyncio.gather(*(keeper.end() for keeper in self._keepers.values()), return_exceptions=True)

    def drain(self) -> None:
        """Say that no more requests are taken, which those who take them heed; what was asked is still answered."""
        self.draining = True

    @property
    def ready(self) -> bool:
        """Whether every model is loaded, and requests are taken."""
        return not self.draining and all(keeper.info.ready for keeper in self._keepers.values())

    def models(self) -> list[ModelInfo]:
        """All models, in the order in which they were given."""
        return [keeper.info for keeper in self._keepers.values()]

    def model(self, name: str | None) -> ModelInfo:
        """The model of this name, or the first; one that is not there is `Refused` (404)."""
        return self._keeper(name).info

    def _keeper(self, name: str | None) -> Keeper:
        if name is None:
            return next(iter(self._keepers.values()))
        if name not in self._keepers:
            raise Refused(404, "unknown_model", f"no model '{name[:100]}'; there are: {', '.join(self._keepers)}")
        return self._keepers[name]

    def admit(self, key: str | None, address: str) -> None:
        """See that whoever asks may: a key that is unknown is `Refused` (401), and so are too many requests (429)."""
        self.access.admit(key, address)

    async def reload(self, name: str) -> ModelInfo:
        """Read a model's folder anew, while requests go on; a `ModelError` if it cannot be read."""
        return await self._keeper(name).reload()

    async def reload_all(self) -> None:
        """Read all folders anew; what cannot be read stays as it is."""
        found = await asyncio.gather(*(x.reload() for x in self._keepers.values()), return_exceptions=True)
        for name, result in zip(self._keepers, found, strict=True):
            if isinstance(result, Exception):
                self.note("not_reloaded", model=name, error=str(result))

    def measured(self) -> bytes:
        """All metrics, as Prometheus reads them."""
        for name, keeper in self._keepers.items():
            load, metrics = keeper.worker.load if keeper.worker else None, self.metrics
            metrics.queue.labels(name).set(max(self._open[name] - (load.running if load else 0), 0))
            metrics.running.labels(name).set(load.running if load else 0)
            metrics.batch.labels(name).set(load.rows if load else 0)
            metrics.ready.labels(name).set(keeper.info.ready)
            metrics.restarts.labels(name).set(keeper.restarts)
        return self.metrics.text()

    # Questions

    async def generate(self, request: Generation, *, deadline: float | None = None) -> list[list[Written]]:
        """The outputs of each input, best first. `deadline` is in seconds from now (default: the server's)."""
        found: list[list[Written]] = [[] for _ in request.inputs]
        async for index, outputs in self.finished(request, deadline=deadline):
            found[index] = outputs
        return found

    async def finished(
        self, request: Generation, *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, list[Written]]]:
        """The number of each input and its outputs, as soon as they are there."""
        async for reply in self._generate(request, deadline, stream=False):
            if isinstance(reply, Found):
                yield reply.index, reply.outputs

    async def stream(self, request: Generation, *, deadline: float | None = None) -> AsyncIterator[Delta]:
        """The output of one input, as it is written: texts that join to the whole, and last all of it."""
        if len(request.inputs) != 1:
            raise Refused(422, "unprocessable", f"one input is streamed at a time, not {len(request.inputs)}")
        async for reply in self._generate(request, deadline, stream=True):
            if isinstance(reply, Wrote):
                yield Delta(text=reply.text)
            elif isinstance(reply, Found):
                yield Delta(done=reply.outputs)

    async def _generate(
        self, request: Generation, deadline: float | None, *, stream: bool
    ) -> AsyncIterator[Wrote | Found]:
        keeper, until = self._keeper(request.model), self._until(deadline)
        self._check(keeper, request.inputs, request.search)
        _check_generation(request, self.limits)
        if not request.inputs:
            return
        name, begun, left, first = keeper.served.name, time.monotonic(), len(request.inputs), True
        own = request.model_copy(update={"model": name})
        waited = self.metrics.waited.labels(name).observe
        with self._asked(keeper, lambda i: Generate(id=i, request=own, stream=stream), left, waited) as call:
            while left:
                reply = await call.next(until)
                if isinstance(reply, Wrote | Found):
                    if stream and first:
                        self.metrics.first.labels(name).observe(time.monotonic() - begun)
                        first = False
                    if isinstance(reply, Found):
                        left -= 1
                        self._count(name, reply.outputs)
                    call.answered = not left
                    yield reply
        self.metrics.duration.labels(name).observe(time.monotonic() - begun)

    def _count(self, name: str, outputs: Sequence[Written]) -> None:
        self._pace[name].tick()
        self.metrics.inputs.labels(name).inc()
        self.metrics.prompt.labels(name).inc(outputs[0].source_tokens if outputs else 0)
        self.metrics.generated.labels(name).inc(sum(one.output_tokens for one in outputs))

    async def score(
        self, model: str | None, sources: Sequence[Source], targets: Sequence[str], *, deadline: float | None = None
    ) -> list[Scored]:
        """`log p` of each target given its source; of a language model every source is ""."""
        if len(sources) != len(targets):
            raise Refused(422, "unprocessable", f"{len(sources)} sources but {len(targets)} targets")
        keeper = self._keeper(model)
        self._check(keeper, sources, {}, sum(map(len, targets)))
        given, wanted = list(sources), list(targets)
        answer = await self._answer(
            keeper, lambda i: Score(id=i, sources=given, targets=wanted), len(given), self._until(deadline)
        )
        return SCORED.validate_json(answer)

    async def explain(
        self, model: str | None, source: Source, target: str | None = None, *, method: str = "attention",
        edits: Mapping[str, JsonValue] | None = None, search: Mapping[str, JsonValue] | None = None,
        deadline: float | None = None,
    ) -> str:  # fmt: skip
        """What was attended to while the target (or the model's own output) was written, as JSON for a browser; by
        another method, also what each token depends on."""
        keeper, changes, changed = self._keeper(model), dict(search or {}), None if edits is None else dict(edits)
        self._check(keeper, [source], changes, len(target or ""))

        def ask(i: int) -> Ask:
            return Explain(id=i, source=source, target=target, method=method, edits=changed, search=changes)

        return await self._answer(keeper, ask, 1, self._until(deadline))

    async def inspect(
        self, model: str | None, source: Source, *, forced: Sequence[int] = (), alternatives: int = 8,
        tree: bool = False, edits: Mapping[str, JsonValue] | None = None,
        search: Mapping[str, JsonValue] | None = None, deadline: float | None = None,
    ) -> str:  # fmt: skip
        """The search for an output laid open, as JSON: alternatives of tokens, the tree of hypotheses, attention."""
        keeper, changes, changed = self._keeper(model), dict(search or {}), None if edits is None else dict(edits)
        self._check(keeper, [source], changes)
        _check_most("alternatives", alternatives, self.limits.alternatives)
        _check_most("forced", len(forced), self.limits.max_length)

        def ask(i: int) -> Ask:
            return Inspect(
                id=i, source=source, forced=list(forced), alternatives=alternatives, tree=tree, edits=changed,
                search=changes,
            )  # fmt: skip

        return await self._answer(keeper, ask, 1, self._until(deadline))

    async def embed(
        self, model: str | None, sources: Sequence[Source], *, deadline: float | None = None
    ) -> list[list[float]]:
        """One vector for each source: what the encoder makes of the whole."""
        keeper, given = self._keeper(model), list(sources)
        if keeper.info.ready and not keeper.info.embeds:
            raise Refused(422, "unprocessable", f"{keeper.served.name} gives no embeddings")
        self._check(keeper, given, {})
        answer = await self._answer(
            keeper, lambda i: Embed(id=i, sources=given), len(given), self._until(deadline)
        )  # fmt: skip
        return VECTORS.validate_json(answer)

    async def _answer(self, keeper: Keeper, make: Any, inputs: int, until: float) -> str:
        """What a job gives, as JSON."""
        begun = time.monotonic()
        with self._asked(keeper, make, inputs) as call:
            reply = await call.next(until)
            call.answered = True
        assert isinstance(reply, Answer), reply
        self.metrics.duration.labels(keeper.served.name).observe(time.monotonic() - begun)
        return reply.content

    def _until(self, deadline: float | None) -> float:
        """When an answer is given up, in the loop's time."""
        most = self.limits.timeout
        return asyncio.get_running_loop().time() + (most if deadline is None else min(deadline, most))

    @contextmanager
    def _asked(
        self, keeper: Keeper, make: Any, inputs: int, started: Callable[[float], None] = lambda waited: None
    ) -> Iterator[Call]:
        """A question that was taken on; work on it ends with the block."""
        name = keeper.served.name
        if keeper.worker is None:
            raise Refused(503, "loading", f"{name} is being loaded", 1.0)
        if self._open[name] + inputs > self.limits.queue:
            wait = math.ceil(self._pace[name].wait(self._open[name]))
            message = f"{name} has {self._open[name]} inputs before yours, and {self.limits.queue} are the most"
            raise Refused(429, "overloaded", message, wait)
        call = keeper.worker.ask(make, started)
        self._open[name] += inputs
        try:
            yield call
        finally:
            self._open[name] -= inputs
            call.close()

    def _check(
        self, keeper: Keeper, sources: Sequence[Source], search: Mapping[str, JsonValue], characters: int = 0
    ) -> None:
        """Refuse what a model does not read, or more than the limits allow."""
        self.limits.check_sources(sources, characters)
        self.limits.check_search(search, contrastive=bool(keeper.info.search.get("contrastive")))
        if keeper.info.ready:
            for source in sources:
                check_source(source, keeper.info.sources)


def _check_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise Refused(422, "unprocessable", f"{name} is {value}, more than {most}, the limit here")


def _check_generation(request: Generation, limits: Limits) -> None:
    """Refuse what does not go together."""
    beside = {"prefixes": request.prefixes, "phrases": request.phrases}
    for name, given in beside.items():
        if given is not None and len(given) != len(request.inputs):
            raise Refused(
                422, "unprocessable", f"{len(given)} {name} for {len(request.inputs)} inputs; give one for each"
            )
    texts = [*(request.prefixes or ()), *(phrase for some in request.phrases or () for phrase in some)]
    if (characters := sum(map(len, texts))) > limits.characters:
        raise Refused(413, "too_large", f"prefixes and phrases have {characters:,} characters, too many")
    _check_most("alternatives", request.alternatives, limits.alternatives)
    if request.alternatives and not request.tokens:
        raise Refused(422, "unprocessable", "alternatives go with tokens: true")
