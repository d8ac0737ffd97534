"""The processes that run models, as the server sees them: started, asked, started again when they die, exchanged for
others when a model is reloaded."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from regard.errors import ModelError
from regard.serving.limits import Limits
from regard.serving.messages import ModelInfo, Refused
from regard.serving.settings import Served
from regard.serving.wire import (
    CHUNK,
    LARGEST,
    TELL,
    Answer,
    Ask,
    Cancel,
    Failed,
    Found,
    Frames,
    Load,
    Ready,
    Reply,
    Start,
    Started,
    Unable,
    Wrote,
    frame,
    read_frame,
)

LONGEST_PAUSE = 30.0  # seconds before a worker that dies again and again is started once more
HEALTHY = 60.0  # seconds; one that lived so long is started again at once
# Threads of a worker that wait for each other sleep: those that spin take the cores from the server and its clients,
# and where these are busy, each step of the network takes many times as long.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}
GRACE = 10.0  # seconds in which a worker that has no more work ends by itself

Note = Callable[..., None]  # what the log is told: an event, and what there is to say of it


class Call:
    """A question that a worker works on. `started` hears how long each of its inputs waited."""

    def __init__(self, worker: Worker, number: int, started: Callable[[float], None]) -> None:
        self.worker, self.number, self.started = worker, number, started
        self.replies = deque[Wrote | Found | Answer | Failed | None]()  # None: the worker is gone
        self.answered = False  # all of it
        self._news: asyncio.Future[None] | None = None  # what `next` waits for

    def put(self, reply: Reply | None) -> None:
        """Take in what the worker says."""
        if isinstance(reply, Started):
            self.started(reply.waited)
            return
        self.replies.append(reply)
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def next(self, until: float) -> Wrote | Found | Answer:
        """What it says next; `Refused` where it fails, dies, or says nothing until then (in the loop's time)."""
        if not self.replies:
            loop = asyncio.get_running_loop()
            self._news, timer = loop.create_future(), loop.call_at(until, self._wake)
            try:
                await self._news
            finally:
                timer.cancel()
        if not self.replies:
            raise Refused(504, "deadline", "the answer took too long, and the work on it was stopped")
        reply = self.replies.popleft()
        if reply is None:
            raise Refused(503, "worker_died", "the process of the model ended before it answered", 1.0)
        if isinstance(reply, Failed):
            raise Refused(reply.status, reply.code, reply.message)
        return reply

    def close(self) -> None:
        """No more of it is wanted."""
        self.worker.drop(self)


class Worker:
    """One process, and the line to it."""

    def __init__(self, served: Served, limits: Limits, modules: list[str]) -> None:
        self.served, self.limits, self.modules = served, limits, modules
        self.calls: dict[int, Call] = {}
        self.numbers = count(1)
        self.load = Load(waiting=0, running=0, rows=0)
        self.gone = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.process: asyncio.subprocess.Process | None = None
        self._folder = ""
        self._tasks: list[asyncio.Task[Any]] = []
        self._outbox = list[bytes]()  # what is sent when all that has just come from clients is read

    async def start(self) -> ModelInfo:
        """Start the process and wait until the model is loaded; a `ModelError` if it cannot be."""
        ours, theirs = socket.socketpair()
        self._folder = tempfile.mkdtemp(prefix="regard-")  # which only we may read
        try:
            with theirs:
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "regard.serving.worker", str(theirs.fileno()), pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL, start_new_session=True, env={**PATIENT, **os.environ},
                )  # fmt: skip
            reader, self.writer = await asyncio.open_connection(sock=ours, limit=LARGEST)
            start = Start(served=self.served, limits=self.limits, folder=self._folder, modules=self.modules)
            self.writer.write(frame(start.model_dump_json().encode()))
            try:
                first = TELL.validate_json(await read_frame(reader))
            except (asyncio.IncompleteReadError, ConnectionError):
                raise ModelError(f"the process of {self.served.name} died while it loaded the model") from None
            if isinstance(first, Unable):
                raise ModelError(first.message)
            assert isinstance(first, Ready), first
        except BaseException:
            await self.end()
            raise
        self._tasks = [asyncio.create_task(self._read(reader))]
        return first.info

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand out what it says, until it is gone."""
        frames = Frames()
        try:
            while data := await reader.read(CHUNK):
                for content in frames.take(data):
                    said = TELL.validate_json(content)
                    if isinstance(said, Load):
                        self.load = said
                    elif not isinstance(said, Ready | Unable) and (call := self.calls.get(said.id)):
                        call.put(said)
        except ConnectionError:
            pass
        finally:
            self.gone.set()
            for call in self.calls.values():
                call.put(None)

    def ask(self, make: Callable[[int], Ask], started: Callable[[float], None] = lambda waited: None) -> Call:
        """Ask something, under a number of its own."""
        number = next(self.numbers)
        try:
            content = make(number).model_dump_json().encode()
        except (ValueError, UnicodeError):
            raise Refused(422, "unprocessable", "a text holds half a character (a lone surrogate)") from None
        call = self.calls[number] = Call(self, number, started)
        self.idle.clear()
        self._send(content)
        if self.gone.is_set():
            call.put(None)
        return call

    def drop(self, call: Call) -> None:
        """Forget a question; work on it stops, if it is not done."""
        if self.calls.pop(call.number, None) is not None and not call.answered:
            self._send(Cancel(id=call.number).model_dump_json().encode())
        if not self.calls:
            self.idle.set()

    def _send(self, content: bytes) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(frame(content))

    def _flush(self) -> None:
        content, self._outbox = b"".join(self._outbox), []
        if not self.gone.is_set() and not self.writer.is_closing():
            self.writer.write(content)

    async def retire(self) -> None:
        """End it when it has answered all that it was asked."""
        idle, gone = asyncio.create_task(self.idle.wait()), asyncio.create_task(self.gone.wait())
        await asyncio.wait([idle, gone], return_when=asyncio.FIRST_COMPLETED)
        for task in (idle, gone):
            task.cancel()
        await self.end()

    async def end(self) -> None:
        """End it now: it leaves when its line is closed, or is killed."""
        if hasattr(self, "writer"):
            self.writer.close()
        if self.process is not None:
            try:
                await asyncio.wait_for(self.process.wait(), GRACE)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self.gone.set()


class Keeper:
    """A model by name, whatever process runs it at the moment."""

    def __init__(self, served: Served, limits: Limits, modules: list[str], note: Note) -> None:
        self.served, self.limits, self.modules, self.note = served, limits, modules, note
        self.info = ModelInfo(name=served.name, ready=False)
        self.worker: Worker | None = None
        self.restarts = 0
        self._reloading = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Load the model; from then on it is kept running."""
        self.worker, self.info = await self._started()
        self._keeping = asyncio.create_task(self._keep())

    async def _started(self) -> tuple[Worker, ModelInfo]:
        if self.served.engine == "regard" and not (Path(self.served.folder) / "config.yaml").is_file():
            raise ModelError(f"{self.served.folder} is not a Regard model: it has no config.yaml")
        begun, worker = time.monotonic(), Worker(self.served, self.limits, self.modules)
        info = await worker.start()
        self.note("loaded", model=self.served.name, pid=_pid(worker), seconds=round(time.monotonic() - begun, 3))
        return worker, info

    async def _keep(self) -> None:
        """Start the process again whenever it dies, later and later if it keeps dying."""
        pause = 0.0
        while True:
            worker = self.worker
            if worker is not None:
                begun = time.monotonic()
                await worker.gone.wait()
                self.worker, self.info = None, self.info.model_copy(update={"ready": False})
                self.restarts += 1
                pause = 0.0 if time.monotonic() - begun > HEALTHY else min(LONGEST_PAUSE, 2 * pause + 0.25)
                await worker.end()
                code = worker.process.returncode if worker.process else None
                self.note("worker_died", model=self.served.name, status=code, again_in=pause)
            await asyncio.sleep(pause)
            try:
                self.worker, self.info = await self._started()
            except (ModelError, OSError) as error:
                self.note("not_loaded", model=self.served.name, error=str(error))
                pause = min(LONGEST_PAUSE, 2 * pause + 0.25)

    async def reload(self) -> ModelInfo:
        """Read the folder anew in a second process, and let the first finish what it has; requests are taken all the
        while. A `ModelError` if the folder cannot be read; the model then stays what it is."""
        async with self._reloading:
            worker, info = await self._started()
            old, self.worker, self.info = self.worker, worker, info
            if self._keeping is not None:
                self._keeping.cancel()
            self._keeping = asyncio.create_task(self._keep())
            if old is not None:
                task = asyncio.create_task(self._retire(old))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
        return info

    async def _retire(self, worker: Worker) -> None:
        await worker.retire()
        self.note("retired", model=self.served.name, pid=_pid(worker))

    async def end(self) -> None:
        """End its processes."""
        tasks = [*self._retiring, *([self._keeping] if self._keeping else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.worker is not None:
            await self.worker.end()
        self.worker = None


def _pid(worker: Worker) -> int | None:
    return worker.process.pid if worker.process else None
