"""Talking to a member's agent: a watch that hears of every change at once, and calls with deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
from ebbtide_api.base import Reading
from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.state import StateVector
from ebbtide_api.upload import CRC32C, PublishRequest, Upload, UploadRequest
from ebbtide_api.verbs import EPOCH, IDEMPOTENCY_KEY, INSTANCE, Operation, OperationStatus
from pydantic import ValidationError

from ebbtide_operator.plan import Call, Outcome

log = logging.getLogger("ebbtide.agents")
M = TypeVar("M", bound=Reading)

POLL = 20.0
"""Seconds that one long poll may last."""
CONNECT = 2.0
ANSWER = 10.0
"""Seconds for an agent to answer what needs no waiting."""
SEND = 30.0
"""Seconds without a sign of life while bytes are sent."""


@dataclass(frozen=True)
class Piece:
    """Bytes of a file, from an offset, with their CRC32C."""

    file: str
    offset: int
    data: bytes
    crc: int


class Unreachable(Exception):  # noqa: N818 - what it is, not what went wrong
    """The agent gave no answer that can be used: what became of the call is unknown."""


class AgentClient:
    """The agent's interface. Raises Unreachable when there is no usable answer, EbbtideError when it says no."""

    def __init__(self, url: str, token: str, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self.url = url
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(ANSWER, connect=CONNECT),
            transport=transport,
            # Plain HTTP on this machine: no certificates are loaded, and no TLS peer would be trusted.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def state(self, newer_than: int | None = None) -> StateVector:
        """Return the member's state; with `newer_than`, as soon as it changed, or after a while the same again."""
        wait = {} if newer_than is None else {"wait_version": newer_than, "wait": POLL}
        body = await self._ask("GET", "/v1/state", params=wait, timeout=ANSWER if newer_than is None else ANSWER + POLL)
        return _read(StateVector, body)

    async def begin(self, call: Call) -> Operation:
        """Ask for a verb; the operation may have ended already."""
        headers = {IDEMPOTENCY_KEY: call.key, EPOCH: str(call.epoch)}
        if call.instance:
            headers[INSTANCE] = call.instance
        return _read(Operation, await self._ask("POST", f"/v1/{call.verb}", headers=headers, json=call.body.wire()))

    async def operation(self, name: str) -> Operation:
        """Return an operation as soon as it ends, or after a while as it is."""
        body = await self._ask("GET", f"/v1/operations/{name}", params={"wait": POLL}, timeout=ANSWER + POLL)
        return _read(Operation, body)

    # Streamed weights: see ebbtide_api.upload.

    async def open_upload(self, version: int, asked: UploadRequest, epoch: int) -> Upload:
        """Let the member expect a version."""
        body = await self._upload("POST", f"{version}", epoch, json=asked.wire())
        return _read(Upload, body)

    async def send_piece(self, version: int, piece: Piece, epoch: int) -> Upload:
        """Send bytes of a file."""
        how: dict[str, Any] = {"params": {"offset": piece.offset}, "content": piece.data, "timeout": SEND}
        return _read(Upload, await self._upload("PUT", f"{version}/{piece.file}", epoch, piece.crc, **how))

    async def publish_upload(self, version: int, asked: PublishRequest, epoch: int) -> Upload:
        """Let the version have its name."""
        body = await self._upload("POST", f"{version}/publish", epoch, json=asked.wire(), timeout=SEND)
        return _read(Upload, body)

    async def drop_upload(self, version: int, epoch: int | None = None, *, through: bool = False) -> None:
        """Let the member forget a version, with `through` all the earlier ones too."""
        await self._upload("DELETE", f"{version}", epoch, params={"through": str(through).lower()})

    async def _upload(self, method: str, path: str, epoch: int | None, crc: int | None = None, **how: Any) -> bytes:
        headers = {EPOCH: str(epoch)} if epoch is not None else {}
        if crc is not None:
            headers[CRC32C] = str(crc)
        return await self._ask(method, f"/v1/weights/{path}", headers=headers, **how)

    async def _ask(self, method: str, path: str, **how: Any) -> bytes:
        try:
            answer = await self._http.request(method, path, **how)
        except (httpx2.HTTPError, OSError) as error:
            raise Unreachable(f"{self.url}: {type(error).__name__} {error}") from error
        if answer.is_success:
            return answer.content
        raise EbbtideError.of(_error(answer))


def _error(answer: httpx2.Response) -> ErrorBody:
    try:
        return ErrorBody.model_validate_json(answer.content)
    except ValidationError as error:
        raise Unreachable(f"{answer.request.url.path} answered {answer.status_code} without an error body") from error


def _read(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise Unreachable(f"an answer that is no {model.__name__}") from error


class AgentWatch:
    """Follows one member's state. `heard` gets every new state, and None when the agent no longer answers."""

    def __init__(self, client: AgentClient, heard: Callable[[StateVector | None], None]) -> None:
        self.client = client
        self._heard = heard
        self._reset = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._run(), name=f"watch {self.client.url}")

    async def stop(self) -> None:
        """End following."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def again(self) -> None:
        """Ask again at once: the agent was just started."""
        self._reset.set()

    async def _run(self) -> None:
        version: int | None = None
        failures = 0
        while True:
            try:
                state = await self.client.state(version)
            except (Unreachable, EbbtideError) as error:
                failures, version = failures + 1, None
                self._lost(failures, error)
                await self._pause(failures)
                continue
            failures, version = 0, state.state_version
            self._heard(state)

    def _lost(self, failures: int, error: Exception) -> None:
        # Starting up, an agent does not answer for a while: that is no news.
        log.log(logging.WARNING if failures == 20 else logging.DEBUG, "no answer: %s", error)
        self._heard(None)

    async def _pause(self, failures: int) -> None:
        """Wait a little, longer when nobody answered for long; not at all when the agent was just started."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reset.wait(), min(1.0, 0.05 * 1.3 ** min(failures, 20)))
        self._reset.clear()


async def carry_out(client: AgentClient, call: Call) -> Outcome | None:
    """Make a call and follow it to its end. None when its outcome is unknown: the same key may be used again."""
    try:
        async with asyncio.timeout(call.deadline):
            operation = await client.begin(call)
            while operation.status is OperationStatus.RUNNING:
                operation = await client.operation(operation.id)
    except EbbtideError as error:
        return _refused(call, error)
    except Unreachable as error:
        log.warning("%s of %s: no answer: %s", call.verb, call.member, error)
        return None
    except TimeoutError:
        late = EbbtideError(ErrorCode.PHASE_DEADLINE, f"{call.verb} did not end within {call.deadline:g} s")
        return _refused(call, late)
    return Outcome(call.base, time.monotonic(), operation=operation)


def _refused(call: Call, error: EbbtideError) -> Outcome | None:
    # The agent restarted and forgot the operation: whether it had its effect, its state will say.
    if error.code is ErrorCode.NOT_FOUND:
        return None
    return Outcome(call.base, time.monotonic(), error=error.body())
