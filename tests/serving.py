"""A real server in a thread of the tests: its workers are threads too, so that no process has to import torch anew."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from regard.serving import supervisor, worker
from regard.serving.app import create_app
from regard.serving.messages import ModelInfo
from regard.serving.service import Service
from regard.serving.settings import ServerSettings
from regard.serving.wire import LARGEST, TELL, Ready, Start, frame, read_frame


def _serve(line: socket.socket) -> None:
    with line:
        worker.serve(line)


class ThreadWorker(supervisor.Worker):
    """A worker that is a thread."""

    async def start(self) -> ModelInfo:
        ours, theirs = socket.socketpair()
        self._folder = tempfile.mkdtemp(prefix="regard-")
        self.thread = threading.Thread(target=_serve, args=(theirs,))
        self.thread.start()
        reader, self.writer = await asyncio.open_connection(sock=ours, limit=LARGEST)
        start = Start(served=self.served, limits=self.limits, folder=self._folder, modules=self.modules)
        self.writer.write(frame(start.model_dump_json().encode()))
        first = TELL.validate_json(await read_frame(reader))
        assert isinstance(first, Ready), first
        self._tasks = [asyncio.create_task(self._read(reader))]
        return first.info

    async def end(self) -> None:
        await super().end()
        await asyncio.to_thread(self.thread.join)


class ThreadKeeper(supervisor.Keeper):
    async def _started(self) -> tuple[supervisor.Worker, ModelInfo]:
        new = ThreadWorker(self.served, self.limits, self.modules)
        return new, await new.start()


class ThreadService(Service):
    """The service, with workers in this process."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self._keepers = {x.name: ThreadKeeper(x, settings.limits, [], self.note) for x in settings.models}


@contextmanager
def served(models: Sequence[dict[str, Any]], **settings: Any) -> Iterator[str]:
    """A server of some models; where it listens."""
    own = ServerSettings.model_validate({"models": list(models), "log": "none", "port": 0, **settings})
    ready, address, stop = threading.Event(), list[str](), list[Any]()
    failures: list[BaseException] = []

    async def run() -> None:
        service = ThreadService(own)
        await service.start()
        with socket.socket() as line:
            line.bind(("127.0.0.1", 0))
            server = uvicorn.Server(
                uvicorn.Config(create_app(service), log_config=None, lifespan="off", ws="none", access_log=False)
            )
            address.append(f"http://127.0.0.1:{line.getsockname()[1]}")
            stop.append(server)
            line.listen()
            ready.set()
            await server.serve([line])
        await service.end()

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    if failures:
        raise failures[0]
    try:
        yield address[0]
    finally:
        stop[0].should_exit = True
        thread.join(30)
        if failures:
            raise failures[0]
