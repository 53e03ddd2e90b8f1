"""One operator process: the loop, the local driver and the gateway, from start to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.server import InferenceServer

from .drive.files import keep_secret, private_folder, write_atomic
from .drive.layout import Layout
from .drive.local import LocalDriver
from .drive.store import GroupStore, ServerStore
from .gateway.app import build
from .lock import HomeLock
from .loop import Operator
from .operations import Operations
from .settings import Settings
from .specs import check

log = logging.getLogger("ebbtide.app")
HOST = "127.0.0.1"
Ready = Callable[[str], None]


def run(
    servers: Sequence[InferenceServer] | None,
    settings: Settings,
    *,
    keep: bool = False,
    ready: Ready = lambda _url: None,
) -> None:
    """Run an operator until SIGINT, SIGTERM or POST /v1/shutdown; then end its members and free their memory.

    `servers` are exactly those to run; None means those that were applied before. `keep` leaves the members running
    for the next operator. `ready` hears the gateway's URL. Raises EbbtideError when the home is in use, when a server
    cannot run here, or when the port is taken.
    """
    asyncio.run(serve(servers, settings, keep=keep, ready=ready))


async def serve(
    servers: Sequence[InferenceServer] | None,
    settings: Settings,
    *,
    keep: bool = False,
    ready: Ready = lambda _url: None,
) -> None:
    """Run an operator in the running event loop."""
    layout = Layout.of(settings.home, settings.shared_memory)
    with HomeLock(layout.lock) as lock, _listen(settings.port) as listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        lock.say(url)
        with _signals() as stop:
            parts = await _assemble(servers, settings, layout)
            try:
                await _serve(parts, listener, stop, lambda: _announce(layout, url, ready))
            finally:
                layout.operator.unlink(missing_ok=True)
                await parts.operator.stop(keep=keep)


@dataclass(frozen=True)
class Parts:
    """What an operator process is made of."""

    operator: Operator
    store: ServerStore
    token: str


async def _assemble(servers: Sequence[InferenceServer] | None, settings: Settings, layout: Layout) -> Parts:
    store = ServerStore(private_folder(layout.servers))
    wanted = list(store.load() if servers is None else servers)
    check({server.name: server for server in wanted}, wanted)
    if servers is not None:
        _replace(store, layout, wanted)
    driver = LocalDriver(settings, layout)
    driver.want({server.name: server for server in wanted})
    fresh = await driver.open()
    operations = Operations(layout.operations, settings.operations_kept)
    operator = Operator(driver, GroupStore(private_folder(layout.groups)), operations, settings)
    await operator.start(wanted, fresh=fresh)
    return Parts(operator, store, keep_secret(layout.token))


def _replace(store: ServerStore, layout: Layout, wanted: Sequence[InferenceServer]) -> None:
    for path in layout.servers.glob("*.yaml"):
        if path.stem not in {server.name for server in wanted}:
            store.remove(path.stem)
    for server in wanted:
        store.save(server)


def _listen(port: int) -> socket.socket:
    # The protocol is named because asyncio sends small answers at once (TCP_NODELAY) only where it sees TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        message = f"the gateway cannot listen on {HOST}:{port}: {error.strerror}"
        raise EbbtideError(
            ErrorCode.INVALID_REQUEST, message, next_action="Choose another --port; 0 takes a free one.", field="port"
        ) from error
    return listener


class _Server(uvicorn.Server):  # type: ignore[misc]
    """uvicorn, without its signal handlers: the operator has its own, and ends in its own order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def _serve(parts: Parts, listener: socket.socket, stop: asyncio.Event, announce: Callable[[], None]) -> None:
    app = build(parts.operator, parts.token, shutdown=stop.set, remember=parts.store.save)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2, server_header=False
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="gateway")
    stopped = asyncio.create_task(stop.wait())
    announce()
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping")
    # Long polls and event streams end by themselves when they see this, before the gateway is closed under them.
    parts.operator.close()
    server.should_exit = True
    stopped.cancel()
    await serving


def _announce(layout: Layout, url: str, ready: Ready) -> None:
    facts = {"url": url, "pid": os.getpid(), "tokenPath": str(layout.token), "memory": str(layout.memory)}
    write_atomic(layout.operator, json.dumps(facts, indent=1).encode())
    log.info("the gateway is %s", url)
    ready(url)


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """Turn SIGINT and SIGTERM into an event. A second one does not cut the end short: members would be left behind."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
