"""The whole operator of a cluster: lead, read everything, then watch, plan and answer, until told to stop.

Whatever ends before it was told to, ends everything: a process that does half of its work is worse than none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from .api import ApiServer
from .auth import Authenticator
from .gateway import Gateway
from .health import Health
from .hub import Hub
from .kinds import LEASES, ApiError
from .lock import Leadership, LostError
from .settings import KubeSettings
from .watch import Watches

log = logging.getLogger("ebbtide.kube")
ANYWHERE = "0.0.0.0"  # noqa: S104 - in a pod
GRACE_S = 5
FAREWELL_S = 0.3


class Brief(AutoHTTPProtocol):  # type: ignore[misc]
    """A connection that ends with us. A client that keeps one for later does not hear our farewell before then."""

    def shutdown(self) -> None:
        """Say farewell, and wait only a moment for the client's: TLS alone would wait as long as for a request."""
        super().shutdown()
        if self.transport.is_closing():
            asyncio.get_running_loop().call_later(FAREWELL_S, self.transport.abort)


class QuietServer(uvicorn.Server):  # type: ignore[misc]
    """A server that leaves signals to us: there are two of them in one process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def server_of(app: ASGIApp, port: int, tls: Path | None, host: str = ANYWHERE) -> QuietServer:
    """Return a server, of HTTPS where there is a folder of keys."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=Brief,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=str(tls / "tls.crt") if tls else None,
        ssl_keyfile=str(tls / "tls.key") if tls else None,
    )
    return QuietServer(config)


async def unless(stop: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Do work that has no end of its own until `stop` is set. Raises what the work raises."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended, _ = await asyncio.gather(*tasks, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended


class App:
    """One operator process."""

    def __init__(self, api: ApiServer, settings: KubeSettings) -> None:
        self.leader = Leadership(api, settings.namespace, settings.identity, owner=settings.owner)
        self.hub = Hub(api, settings.site(), self.leader, settings.watched, settings.scratch)
        self._api, self._settings = api, settings
        self._stop = asyncio.Event()
        self._servers: list[QuietServer] = []
        self.watches = Watches(self.hub.seen, settings.watched)
        # Where our own namespace holds no servers, nothing of it is watched but our own Lease.
        self._home = Watches({LEASES: self.hub.see_lease}, (settings.namespace,), self.watches.counts)
        self._health = Health(
            self.hub, self.leader, self.watches.counts, settings.silence, lambda: api.writes, api.asked
        )

    async def run(self) -> int:
        """Run until a signal, or until something fails. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        health = self._serve(self._health.app(), self._settings.health_port, tls=False)
        first = asyncio.create_task(self._lead())
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(health), first, asyncio.create_task(self._stop.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if first in done and not self._stop.is_set():
                first.result()
                work = [asyncio.create_task(one) for one in self._work()]
                tasks += work
                log.info("ready: %d namespaces", len(self.hub.spaces))
                done, _ = await asyncio.wait([tasks[0], tasks[2], *work], return_when=asyncio.FIRST_COMPLETED)
            return self._status(done)
        except (ApiError, LostError) as error:
            log.error("%s", error)  # noqa: TRY400 - said in a sentence
            return 1
        finally:
            await self._end(tasks)

    async def _lead(self) -> None:
        await self.leader.acquire()
        await self.hub.load()

    def _work(self) -> list[Coroutine[None, None, None]]:
        gateway = Gateway(
            self.hub.spaces.get,
            Authenticator(self._api, self._settings.audiences),
            self.hub.enrolled,
            self._settings.engine_account,
        )
        return [
            unless(self._stop, self.leader.keep()),
            self._watch(),
            unless(self._stop, self._resync()),
            self._serve(gateway, self._settings.gateway_port, tls=True),
        ]

    async def _watch(self) -> None:
        # kopf takes the signals for itself, and its end is without an error then: so that is our end too.
        watched = self._settings.watched
        apart = bool(watched) and self._settings.namespace not in watched
        all_of_them = [self.watches, self._home] if apart else [self.watches]
        tasks = [asyncio.create_task(one.run(self._stop)) for one in all_of_them]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            self._stop.set()
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync)
            try:
                await self.hub.resync()
            except ApiError as error:
                log.warning("the lists could not be read: %s", error)

    async def _serve(self, app: ASGIApp, port: int, *, tls: bool) -> None:
        server = server_of(app, port, self._settings.tls if tls else None)
        self._servers.append(server)
        await server.serve()

    def _status(self, done: set[asyncio.Task[Any]]) -> int:
        if self._stop.is_set():
            return 0
        for task in done:
            task.result()
        log.error("a part of the operator ended by itself")
        return 1

    async def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        self._stop.set()
        for server in self._servers:
            server.should_exit = True
        await self.hub.stop()
        await asyncio.wait(tasks, timeout=GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.leader.release()
