"""Carries flows out with httpx2: one runner blocks, the other awaits. No decision is made here."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import TypedDict, TypeVar

import httpx2
from ebbtide_api.errors import EbbtideError, ErrorCode

from .connection import CA_FILE, Connection
from .flow import Answer, Flow, Pause, Reply, Send, Silence

T = TypeVar("T")
Step = Callable[[], Send | Pause]


class Runner:
    """Runs flows and blocks. `sleep` may be replaced by one that can be interrupted."""

    def __init__(self, connection: Connection, sleep: Callable[[float], object] = time.sleep) -> None:
        self._client = httpx2.Client(**options(connection))
        self._sleep = sleep

    def run(self, flow: Flow[T]) -> T:
        """Carry a flow out and return its result."""
        step: Step = partial(next, flow)
        while True:
            try:
                effect = step()
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                answer = self._do(effect)
            except BaseException as problem:  # also Ctrl-C: the flow decides what must still be done
                step = partial(flow.throw, problem)
            else:
                step = partial(flow.send, answer)

    def _do(self, effect: Send | Pause) -> Answer | None:
        if isinstance(effect, Pause):
            self._sleep(effect.seconds)
            return None
        try:
            return _reply(self._client.send(_request(self._client, effect)))
        except httpx2.HTTPError as problem:
            return _silence(problem)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class AsyncRunner:
    """Runs flows and awaits."""

    def __init__(self, connection: Connection) -> None:
        self._client = httpx2.AsyncClient(**options(connection))

    async def run(self, flow: Flow[T]) -> T:
        """Carry a flow out and return its result."""
        step: Step = partial(next, flow)
        while True:
            try:
                effect = step()
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                answer = await self._do(effect)
            except BaseException as problem:  # also a cancelled task
                step = partial(flow.throw, problem)
            else:
                step = partial(flow.send, answer)

    async def _do(self, effect: Send | Pause) -> Answer | None:
        if isinstance(effect, Pause):
            await asyncio.sleep(effect.seconds)
            return None
        try:
            # httpx2's own timeout starts anew with every byte; a deadline does not.
            async with asyncio.timeout(effect.timeout + 1):
                return _reply(await self._client.send(_request(self._client, effect)))
        except (httpx2.HTTPError, TimeoutError) as problem:
            return _silence(problem)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class _Options(TypedDict):
    base_url: str
    auth: Callable[[httpx2.Request], httpx2.Request]
    trust_env: bool
    verify: ssl.SSLContext


def options(connection: Connection) -> _Options:
    """Return how a client of httpx2 reaches the gateway."""

    def sign(request: httpx2.Request) -> httpx2.Request:
        # With every request: the kubelet replaces a pod's token within the hour.
        request.headers.update(connection.headers)
        return request

    return _Options(base_url=connection.url, auth=sign, trust_env=not connection.local, verify=_roots(connection))


def _roots(connection: Connection) -> ssl.SSLContext:
    if connection.ca:
        try:
            return ssl.create_default_context(cafile=connection.ca)
        except OSError as problem:
            message = f"the root certificates in {connection.ca} cannot be used ({problem.strerror or problem})."
            action = f"Let {CA_FILE} name the gateway's ca.crt."
            raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action=action) from problem
    if connection.url.startswith("https:"):
        return ssl.create_default_context()
    # Loading the machine's certificates takes longer than a whole lend: only for https.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _request(client: httpx2.Client | httpx2.AsyncClient, send: Send) -> httpx2.Request:
    timeout = httpx2.Timeout(send.timeout, connect=min(send.timeout, 5))
    headers = dict(send.headers)
    return client.build_request(
        send.method, send.path, json=send.body, content=send.content, headers=headers, timeout=timeout
    )


def _reply(response: httpx2.Response) -> Reply:
    try:
        body = response.json() if response.content else None
    except ValueError:
        body = response.text
    return Reply(response.status_code, body, response.headers)


def _silence(problem: Exception) -> Silence:
    return Silence(f"{type(problem).__name__}: {problem}".rstrip(": "))
