"""The operator's process: what has no end of its own ends when it is told to, and soon."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import ClassVar

import kopf
import pytest
from ebbtide_operator.kube.app import GRACE_S, App, server_of, unless
from ebbtide_operator.kube.kinds import LEASES, PODS, SERVERS, SETS
from ebbtide_operator.kube.lock import NAME as LEASE
from ebbtide_operator.kube.lock import LostError
from ebbtide_operator.kube.names import Json
from ebbtide_operator.kube.settings import KubeSettings
from ebbtide_operator.kube.watch import Watches
from starlette.types import Receive, Scope, Send

from .fake_api import FakeApi
from .fake_watch import Watched, served
from .test_driver import until


async def forever(told: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        told.append("ended")


async def lose() -> None:
    raise LostError("somebody else leads")


def test_endless_work_ends_when_told_to() -> None:
    async def scene() -> list[str]:
        stop, told = asyncio.Event(), list[str]()
        task = asyncio.create_task(unless(stop, forever(told)))
        await asyncio.sleep(0)
        assert not task.done()
        stop.set()
        await asyncio.wait_for(task, 5)
        return told

    assert asyncio.run(scene()) == ["ended"]


def test_what_fails_is_told() -> None:
    with pytest.raises(LostError, match="somebody else"):
        asyncio.run(unless(asyncio.Event(), lose()))


def test_who_is_cancelled_takes_the_work_along() -> None:
    async def scene() -> list[str]:
        told = list[str]()
        task = asyncio.create_task(unless(asyncio.Event(), forever(told)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return told

    assert asyncio.run(scene()) == ["ended"]


# How long an end takes

SOON = 2.5
"""Seconds. Where something waits for what nobody does, it is 5."""


async def timed(end: Awaitable[object]) -> float:
    began = time.monotonic()
    await end
    return time.monotonic() - began


@pytest.mark.parametrize("how", ["flag", "signal"])
def test_the_watches_end_soon_and_end_nobody_elses_work(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        api, heard, stop = Watched((SERVERS, PODS)), list[str](), asyncio.Event()

        def hear(raw: Json, _gone: bool) -> None:
            heard.append(str(raw["kind"]))

        async with served(api) as url:
            monkeypatch.setattr(kopf, "login_via_client", lambda **_: kopf.ConnectionInfo(server=url))
            watching = asyncio.create_task(Watches({SERVERS: hear, PODS: hear}, ("models",)).run(stop))
            await until(lambda: api.streams == 2 and len(heard) == 2, 20)
            younger = asyncio.create_task(asyncio.sleep(60))
            if how == "flag":
                stop.set()
            else:
                os.kill(os.getpid(), signal.SIGTERM)
            assert await timed(watching) < SOON
            assert sorted(heard) == ["InferenceServer", "Pod"]
            assert not younger.done()
            await until(lambda: api.streams == 0)
            younger.cancel()

    asyncio.run(scene())


def test_the_end_of_the_watches_tells_why() -> None:
    async def scene() -> None:
        async def fails() -> None:
            raise LostError("the watch broke")

        with pytest.MonkeyPatch.context() as patch:

            async def spawn(**_: object) -> list[asyncio.Task[None]]:
                return [asyncio.create_task(fails()), asyncio.create_task(asyncio.sleep(60))]

            patch.setattr(kopf, "spawn_tasks", spawn)
            with pytest.raises(LostError, match="broke"):
                await asyncio.wait_for(Watches({}).run(asyncio.Event()), 5)

    asyncio.run(scene())


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=x"]
    files = ["-keyout", str(tmp_path / "tls.key"), "-out", str(tmp_path / "tls.crt")]
    subprocess.run(["openssl", "req", "-x509", *made, *files], check=True, capture_output=True)
    return tmp_path


async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def ask(port: int, path: bytes = b"/") -> socket.socket:
    """Ask once, and keep the connection for later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    made = context.wrap_socket(socket.create_connection(("127.0.0.1", port)))
    made.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert made.recv(1000).startswith(b"HTTP/1.1 ")
    return made


def test_an_idle_client_does_not_hold_up_the_end(keys: Path) -> None:
    async def scene() -> None:
        server = server_of(hello, 0, keys, "127.0.0.1")
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        client = await asyncio.to_thread(ask, server.servers[0].sockets[0].getsockname()[1])
        server.should_exit = True
        assert await timed(serving) < SOON < GRACE_S
        client.close()

    asyncio.run(scene())


class Counted(FakeApi):
    asked: ClassVar[Counter[tuple[str, str]]] = Counter()
    writes = 0


def test_a_signal_ends_the_whole_operator_soon_and_gives_up_its_lease(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (keys / "ca.crt").write_text("the root")
    settings = KubeSettings(
        "op-0", "u", "models", "image", ("models",), tls=keys, gateway_port=0, health_port=0, scratch=keys
    )
    lease = ("leases", "models", LEASE)

    async def scene() -> tuple[float, int, str]:
        api, watched = Counted(), Watched((SERVERS, PODS, SETS, LEASES))
        async with served(watched) as url:
            monkeypatch.setattr(kopf, "login_via_client", lambda **_: kopf.ConnectionInfo(server=url))
            app = App(api, settings)  # type: ignore[arg-type]
            running = asyncio.create_task(app.run())
            await until(lambda: watched.streams == 4 and [one.started for one in app._servers] == [True, True], 20)
            assert api.objects[lease]["spec"]["holderIdentity"] == "op-0_u"
            clients = [await asyncio.to_thread(ask, app._servers[1].servers[0].sockets[0].getsockname()[1], b"/health")]
            os.kill(os.getpid(), signal.SIGTERM)
            seconds = await timed(running)
            clients[0].close()
            return seconds, running.result(), api.objects[lease]["spec"]["holderIdentity"]

    seconds, status, holder = asyncio.run(scene())
    assert (status, holder) == (0, "")
    assert seconds < SOON
