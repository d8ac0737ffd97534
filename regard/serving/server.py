"""The process that listens: models loaded, then a socket opened, and on a signal a way out that drops nothing."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import uvicorn

from regard.errors import OutputError
from regard.memory import freeze_objects
from regard.serving.app import create_app
from regard.serving.connections import HEADER_BYTES, bounded_protocol
from regard.serving.guards import Guard, note, places
from regard.serving.service import Service
from regard.serving.settings import ServerSettings


class Server(uvicorn.Server):
    """A server that leaves its signals to us."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def listen(settings: ServerSettings) -> socket.socket:
    """A socket at the address, before anything heavy is loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # By its protocol asyncio knows TCP, and sends what is written at once: else every answer would wait for 40 ms.
    line = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        line.bind((settings.host, settings.port))
    except OSError as error:
        line.close()
        raise OutputError(
            f"cannot listen at {settings.host}:{settings.port} ({error.strerror or error}); try another --port"
        ) from None
    return line


def run(settings: ServerSettings, *, modules: Sequence[str], say: Callable[[str], None]) -> None:
    """Serve until a signal comes; what was asked before is answered."""
    with listen(settings) as line:
        asyncio.run(_run(settings, line, modules, say))


class Log(logging.Handler):
    """What libraries log, as lines of our own log: what is wrong and where, and nothing that it quotes."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        found = {} if error is None else {"error": type(error).__name__, "at": places(error)}
        note("library", name=record.name, message=record.getMessage()[:200], **found)


def _log(settings: ServerSettings) -> None:
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [Log(logging.WARNING)] if settings.log == "json" else [logging.NullHandler()]
        logger.propagate = False


async def _run(
    settings: ServerSettings, line: socket.socket, modules: Sequence[str], say: Callable[[str], None]
) -> None:
    _log(settings)
    service = Service(settings, modules, note if settings.log == "json" else _silent)
    leave, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave.set)
    loading = asyncio.create_task(service.start())
    leaving = asyncio.create_task(leave.wait())
    await asyncio.wait([loading, leaving], return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        return
    loading.result()
    app = create_app(service)
    freeze_objects()
    server = Server(_config(app, settings))
    serving = asyncio.create_task(server.serve([line]))
    reloads = set[asyncio.Task[None]]()

    def reload() -> None:
        task = asyncio.create_task(service.reload_all())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        say(_greeting(service, line))
        await asyncio.wait([serving, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await _drained(service, app, leave)
            if app.running:  # a second signal: what is left is answered with an error
                await service.end()
            server.should_exit = True
        await serving
    finally:
        await service.end()


async def _drained(service: Service, app: Guard, leave: asyncio.Event) -> None:
    """Wait until all that was asked is answered; a second signal ends that."""
    leave.clear()
    service.drain()
    service.note("draining", requests=app.running)
    while app.running and not leave.is_set():
        await asyncio.sleep(0.02)


def _config(app: Guard, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none",
        proxy_headers=bool(settings.proxies), forwarded_allow_ips=settings.proxies or None, timeout_keep_alive=15,
        http=bounded_protocol(settings.limits), limit_concurrency=settings.limits.connections + 1,
        timeout_graceful_shutdown=5, h11_max_incomplete_event_size=HEADER_BYTES,
    )  # fmt: skip


def _greeting(service: Service, line: socket.socket) -> str:
    host, port = line.getsockname()[:2]
    at = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    names = ", ".join(info.name for info in service.models())
    return f"serving {names} at {at} (API: {at}/openapi.json, metrics: {at}/metrics); Ctrl-C ends it"


def _silent(event: str, **what: object) -> None:
    """Nothing is logged."""
