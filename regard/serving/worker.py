"""A process that runs one model: it takes requests from the server over a socket and answers there, as JSON.

`python -m regard.serving.worker NUMBER` is started by `supervisor.py`; the number is that of the socket.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from regard.errors import ConfigError, DataError, MissingExtraError, RegardError
from regard.inspection.attribution import METHODS
from regard.memory import freeze_objects
from regard.serving.details import Finding, describe
from regard.serving.engine import Engine, new_engine
from regard.serving.jobs import Job, Jobs
from regard.serving.messages import LanguagePair, ModelInfo, Refused, Written
from regard.serving.stable import StableText
from regard.serving.uploads import Uploads, remove
from regard.serving.wire import (
    ASK,
    Answer,
    Cancel,
    Channel,
    Failed,
    Found,
    Generate,
    Load,
    Ready,
    Reply,
    Start,
    Started,
    Unable,
    Wrote,
    dumped,
)
from regard.serving.work import Work, checked
from regard.system import System, load
from regard.tasks.generating import TextGeneration
from regard.training.checkpoint import WEIGHTS

if TYPE_CHECKING:
    from regard.data.side import Field, Item
    from regard.search_settings import Search
    from regard.tasks.results import Output

TOLD = 0.1  # seconds between two reports of the load
PACE = 0.02  # seconds between two pieces of a streamed text: a GPU writes faster than anyone reads
SEARCHES = 256  # settings of requests that are remembered
LANGUAGE = "<2"  # how the token begins that says which language is wanted (`data.corpora.prefix`)


@dataclass(eq=False)
class Input:
    """An input that is searched for; the engine tells it how that goes."""

    worker: Worker
    ask: Generate
    index: int
    field: Field
    search: Search
    files: list[Path]
    asked: float
    item: Item | None = None  # the source as numbers, if the task writes a token at a time
    ticket: int | None = None
    text: StableText = field(default_factory=StableText)
    told: float = -math.inf  # when new text was last sent

    def begun(self) -> None:
        self.worker.waiting.discard(self)
        self.worker.say(Started(id=self.ask.id, waited=time.monotonic() - self.asked))

    def wants(self, now: float) -> bool:
        return now - self.told >= PACE

    def wrote(self, tokens: Sequence[int]) -> None:
        task = self.worker.system.task
        if not self.ask.stream or not isinstance(task, TextGeneration) or not task.grows:
            return
        if new := self.text.settled(task.target.decode(tokens)):
            self.worker.say(Wrote(id=self.ask.id, text=new))
            self.told = time.monotonic()

    def done(self, outputs: list[Output]) -> None:
        self.worker.finished.append((self, outputs))

    def failed(self, error: RegardError) -> None:
        self.worker.forget(self.ask.id)
        self.worker.fail(self.ask.id, self.named(error))

    def named(self, error: RegardError) -> RegardError:
        """An error that says of which of several inputs it is."""
        if len(self.ask.request.inputs) == 1:
            return error
        kind = ConfigError if isinstance(error, ConfigError) else DataError
        return kind(f"input {self.index}: {error}")


def bug(error: Exception) -> Refused:
    """Say on standard error where a bug is, and nothing that a user wrote."""
    lines = traceback.format_tb(error.__traceback__)
    print("".join(["regard: a bug in a worker:\n", *lines, type(error).__name__]), file=sys.stderr, flush=True)
    return Refused(500, "internal", "something went wrong here; the log says where")


class Worker:
    """A model at work."""

    def __init__(self, system: System, channel: Channel, start: Start, engine: Engine) -> None:
        self.system, self.channel, self.engine = system, channel, engine
        self.own_search = start.served.search
        self.searches: dict[str, Search] = {}  # by what a request changes, as JSON
        self.uploads = Uploads(system.task.source, start.limits, Path(start.folder))
        self.inputs: dict[int, list[Input]] = {}  # by the id of their request
        self.work, self.jobs = Jobs(system, self.uploads, self.search), dict[int, Job]()
        self.waiting = set[Input]()  # inputs that the engine has not begun with
        self.finished: list[tuple[Input, list[Output]]] = []
        self.outbox: list[Reply | Load] = []
        self.told, self.told_at = Load(waiting=0, running=0, rows=0), 0.0

    def run(self) -> NoReturn:
        """Work until the server is gone."""
        busy = False
        while True:
            for content in self.channel.receive(wait=not busy):
                self.take(content)
            busy = self.engine.turn()
            self._describe()
            busy = self._work_on_jobs() or busy
            self._flush()

    def say(self, *messages: Reply) -> None:
        """What is sent after this turn."""
        self.outbox += messages

    def fail(self, number: int, error: RegardError | Refused) -> None:
        """Say why there is no answer."""
        if isinstance(error, Refused):
            self.say(Failed(id=number, status=error.status, code=error.code, message=error.message))
            return
        theirs = isinstance(error, DataError | ConfigError | MissingExtraError)
        message = self.uploads.described(error)
        if theirs:
            self.say(Failed(id=number, status=422, code="unprocessable", message=message))
        else:
            self.say(Failed(id=number, status=500, code="internal", message=message))

    # Taking requests

    def take(self, content: bytes) -> None:
        """Begin with a request, or forget one."""
        ask = ASK.validate_json(content)
        if isinstance(ask, Cancel):
            self.forget(ask.id)
            return
        try:
            if isinstance(ask, Generate):
                self._submit(ask)
            else:
                self.jobs[ask.id] = self.work.job(ask)
        except (RegardError, Refused) as error:
            self.forget(ask.id)
            self.fail(ask.id, error)
        except Exception as error:  # a bug, of which others should not suffer
            self.forget(ask.id)
            self.fail(ask.id, bug(error))

    def _submit(self, ask: Generate) -> None:
        asked, search, task = ask.request, self.search(ask.request.search), self.system.task
        self._check_pixels(len(asked.inputs) * search.nbest)
        for text in (*(asked.prefixes or ()), *chain.from_iterable(asked.phrases or ())):
            task.target.check_output(text)
        mine = self.inputs[ask.id] = []
        for index, source in enumerate(asked.inputs):
            given, files = self.uploads.field(source)
            one = Input(self, ask, index, given, search, files, time.monotonic())
            mine.append(one)
            work = Work(
                given, search, prefix=asked.prefixes[index] if asked.prefixes else "",
                phrases=tuple(asked.phrases[index]) if asked.phrases else (), number=index, stream=ask.stream,
            )  # fmt: skip
            try:
                if isinstance(task, TextGeneration):
                    request = checked(task, work)
                    work, one.item = replace(work, request=request), request.item
                one.ticket = self.engine.submit(work, one)
            except RegardError as error:
                raise one.named(error) from None
            self.waiting.add(one)

    def _check_pixels(self, outputs: int) -> None:
        """Refuse an answer of more pictures than one may have."""
        each, most = self.system.task.target.pixels, self.uploads.limits.pixels
        if outputs * each > most:
            message = f"{outputs} pictures of {each:,} pixels have more than {most:,}, the limit here"
            raise Refused(413, "too_large", message)

    def search(self, changes: dict[str, Any]) -> Search:
        """The model's own search settings, with those of the server and of a request. Most requests ask for the same,
        and to check them takes longer than a step of a small model."""
        key = json.dumps(changes, sort_keys=True)
        if key not in self.searches:
            if len(self.searches) >= SEARCHES:
                del self.searches[next(iter(self.searches))]
            self.searches[key] = self.system.search_settings(**{**self.own_search, **changes})
        return self.searches[key]

    def forget(self, number: int) -> None:
        """Stop work on a request, and remove what it brought."""
        for one in self.inputs.pop(number, ()):
            if one.ticket is not None:
                self.engine.cancel(one.ticket)
            remove(one.files)
            self.waiting.discard(one)
        if job := self.jobs.pop(number, None):
            job.close()

    # What the engine gave

    def _describe(self) -> None:
        """Send the outputs that this turn has finished."""
        done = [(one, outputs) for one, outputs in self.finished if one.ask.id in self.inputs]
        self.finished = []
        try:
            written = self._described(done)
        except Exception:  # of which input it is shows when each is by itself
            for one, outputs in done:
                self._describe_one(one, outputs)
            return
        for (one, _), described in zip(done, written, strict=True):
            self._send(one, described)

    def _describe_one(self, one: Input, outputs: list[Output]) -> None:
        number = one.ask.id
        if number not in self.inputs:  # another input of its request has failed
            return
        try:
            (written,) = self._described([(one, outputs)])
        except Exception as error:
            self.forget(number)
            self.fail(number, one.named(error) if isinstance(error, RegardError) else bug(error))
        else:
            self._send(one, written)

    def _described(self, done: Sequence[tuple[Input, list[Output]]]) -> list[list[Written]]:
        """Outputs with all that their requests ask for."""
        task = self.system.task
        encode = task.source.encode_many
        items = [encode([one.field])[0] if one.item is None else one.item for one, _ in done]
        findings = [
            Finding(one.field, item, one.search, one.ask.request, outputs)
            for (one, outputs), item in zip(done, items, strict=True)
        ]
        written = describe(task, findings)
        return [self._traced(one, outputs) for (one, _), outputs in zip(done, written, strict=True)]

    def _traced(self, one: Input, outputs: list[Written]) -> list[Written]:
        if not one.ask.request.trace or not outputs:
            return outputs
        trace = self.work.explained(one.field, outputs[0].text, one.search)
        return [outputs[0].model_copy(update={"trace": json.loads(dumped(trace))}), *outputs[1:]]

    def _send(self, one: Input, outputs: list[Written]) -> None:
        number = one.ask.id
        if one.ask.stream and outputs and (rest := one.text.rest(outputs[0].text)):
            self.say(Wrote(id=number, text=rest))
        self.say(Found(id=number, index=one.index, outputs=outputs))
        remove(one.files)
        mine = self.inputs[number]
        mine.remove(one)
        if not mine:
            del self.inputs[number]

    def _flush(self) -> None:
        load = Load(waiting=len(self.waiting), running=self.engine.running, rows=self.engine.rows)
        now = time.monotonic()
        if load != self.told and (not load.running or now - self.told_at > TOLD):
            self.outbox.append(load)
            self.told, self.told_at = load, now
        if self.outbox:
            self.channel.send(*self.outbox)
            self.outbox = []

    # Jobs, a slice of one between two turns

    def _work_on_jobs(self) -> bool:
        """Go on with the oldest job; whether there are more."""
        for number, job in list(self.jobs.items())[:1]:
            try:
                next(job)
                self.jobs[number] = self.jobs.pop(number)  # others have their turn before the rest of it
            except StopIteration as done:
                self.jobs.pop(number, None)
                self.say(Answer(id=number, content=dumped(done.value)))
            except (RegardError, Refused) as error:
                self.jobs.pop(number, None)
                self.fail(number, error)
            except Exception as error:  # a bug, of which others should not suffer
                self.jobs.pop(number, None)
                self.fail(number, bug(error))
        return bool(self.jobs)


def open_system(start: Start) -> System:
    """The model, in the engine that is asked for."""
    served, folder = start.served, Path(start.served.folder)
    if served.engine == "regard":
        return load(folder, device=served.device)
    from regard.exchange.ctranslate2 import open_engine

    place = "cuda" if served.device.startswith("cuda") else "cpu"
    return System(open_engine(folder, served.quantization, place, served.threads), folder)


def describe_model(system: System, start: Start) -> ModelInfo:
    """What there is to know of a model."""
    task, served, config = system.task, start.served, system.config
    if not task.generates:
        raise ConfigError(f"{served.folder} writes and predicts nothing for an input, so there is nothing to serve")
    prefixes = [prefix for prefix in config.data.prefixes if prefix.startswith(LANGUAGE)]
    guessed = [LanguagePair(target=prefix.strip("<2>"), prefix=prefix) for prefix in prefixes]
    own, writes = served.engine == "regard", isinstance(task, TextGeneration)
    texts = [part.media for part in task.source.parts] == ["text"] and config.target.text
    weights = system.folder / WEIGHTS
    return ModelInfo(
        name=served.name, ready=True, target=config.target.kind,
        sources=[part.media for part in task.source.parts] if config.sources[0].given else [],
        writes=writes, aligns=task.best_layer is not None, embeds=own,
        methods=list(METHODS) if writes and own and config.sources[0].given else [],
        languages=served.pairs or guessed or ([LanguagePair()] if texts and config.sources[0].given else []),
        parameters=system.parameters(), device=str(task.device), engine=served.engine,
        created=int(weights.stat().st_mtime if weights.exists() else time.time()),
        search=system.search_settings(**served.search).model_dump(mode="json"),
        limits=start.limits.model_dump(mode="json"),
    )  # fmt: skip


def serve(line: socket.socket, loaded: Callable[[], None] = lambda: None) -> int:
    """Load the model that the server names, and work. `loaded` is called in between."""
    channel = Channel(line)
    try:
        start = Start.model_validate_json(channel.receive(wait=True)[0])
        try:
            for module in start.modules:
                import_module(module)
            import torch

            if start.served.threads is not None:
                torch.set_num_threads(start.served.threads)
            system = open_system(start)
            search = dict(start.served.search)
            if start.served.precision is not None:
                search["precision"] = start.served.precision
            start = start.model_copy(update={"served": start.served.model_copy(update={"search": search})})
            info = describe_model(system, start)
            settings = system.search_settings(**search)
            budget = start.served.batch_tokens or settings.batch_tokens
            engine = new_engine(system.task, budget=budget, precision=settings.precision)
        except (RegardError, OSError, MemoryError, RuntimeError) as error:
            channel.send(Unable(message=str(error) or type(error).__name__))
            return 2
        loaded()
        channel.send(Ready(info=info))
        try:
            Worker(system, channel, start, engine).run()
        except EOFError:
            raise
        except Exception as error:
            bug(error)
            return 1
        finally:
            shutil.rmtree(start.folder, ignore_errors=True)  # the server may be gone
    except EOFError:  # the server is gone, or has no more work
        return 0


def main() -> None:
    """Run as a process of its own; signals are the server's to hear, and it ends when the server does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as line:
        sys.exit(serve(line, freeze_objects))


if __name__ == "__main__":
    main()
