"""The admission gate: a pure ASGI middleware, the outermost one in vLLM's API process.

Deny by default. Inference is admitted or refused by one atomic step on the control page, and counted until the last
byte was sent or the client went away. One that finds a member which sleeps by idleness wakes it, and is held for that
if the server's spec says so. Our control routes need the boot secret; so does the canary, the one request
that may pass while the gate is closed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import PHASE_NUMBER, Phase
from ebbtide_api.verbs import SECRET

from . import member, paths
from .paths import Kind

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_HEADER = SECRET.lower().encode()
_TRY_AGAIN_LATER = 1013
_LOOK_S = 0.02
_PHASES = {number: phase for phase, number in PHASE_NUMBER.items()}
_CLOSED: dict[Phase, ErrorCode] = {
    Phase.RUNNING: ErrorCode.DRAINING,
    Phase.PAUSED: ErrorCode.DRAINING,
    Phase.DRAINING: ErrorCode.DRAINING,
    Phase.SUSPENDING: ErrorCode.ENGINE_ASLEEP,
    Phase.ASLEEP: ErrorCode.ENGINE_ASLEEP,
    Phase.WAKING_WEIGHTS: ErrorCode.ENGINE_ASLEEP,
    Phase.WEIGHTS_RESIDENT: ErrorCode.ENGINE_ASLEEP,
    Phase.UPDATING: ErrorCode.UPDATING,
    Phase.COMMITTED: ErrorCode.UPDATING,
    Phase.WAKING_KV: ErrorCode.ENGINE_ASLEEP,
    Phase.VERIFYING: ErrorCode.ENGINE_ASLEEP,
}


class Door(Protocol):
    """The part of the control page that the gate uses."""

    def enter(self) -> bool:
        """Count a request in, if admission is open."""

    def leave(self) -> None:
        """Count it out."""

    def phase(self) -> int:
        """Return the member's phase, a `PHASE_NUMBER`."""

    def retry_after(self) -> int:
        """Return when to try again, in seconds."""

    def hold(self) -> float:
        """Return how long a request may wait for the gate, in seconds; 0: it wakes nobody, or shall not wait."""

    def knock(self) -> bool:
        """Say that somebody waits, if that wakes the member; return whether the gate is open by now."""


class PageDoor:
    """The door on the real control page, with this process's own slot."""

    def __init__(self, path: str) -> None:
        from ..native import Field, Page

        self._page = Page.open(path)
        self._gate = self._page.register_gate()
        self.enter = self._gate.enter
        self.leave = self._gate.leave
        self._field = Field

    def phase(self) -> int:
        """Return the member's phase, a `PHASE_NUMBER`."""
        return self._page.get(self._field.PHASE)

    def retry_after(self) -> int:
        """Return when to try again, in seconds."""
        return self._page.get(self._field.RETRY_AFTER_S)

    def hold(self) -> float:
        """Return how long a request may wait for the gate, in seconds."""
        return self._page.get(self._field.HOLD_MS) / 1000

    def knock(self) -> bool:
        """Say that somebody waits, if that wakes the member; return whether the gate is open by now."""
        if self._page.admission:
            return True
        if self._page.get(self._field.WAKES):
            self._page.set(self._field.KNOCK, 1)
        return False


def refusal(phase: int) -> ErrorCode:
    """Return the code of a request refused in a phase; a number that is no phase counts as starting."""
    return _CLOSED.get(_PHASES.get(phase, Phase.UNKNOWN), ErrorCode.ENGINE_STARTING)


class Gate:
    """The middleware. vLLM makes it with the app alone; tests pass a door and a secret."""

    def __init__(self, app: App, door: Door | None = None, secret: bytes | None = None) -> None:
        self.app = app
        self._door = door
        self._secret = secret
        self._lookout: asyncio.Task[None] | None = None

    @property
    def door(self) -> Door:
        """The control page, opened when the server starts: vLLM makes the middleware well before that."""
        if self._door is None:
            self._door = PageDoor(member.current().page_path)
        return self._door

    @property
    def secret(self) -> bytes:
        """The boot secret."""
        if self._secret is None:
            self._secret = member.secret(member.current())
        return self._secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope; kinds of scope that are not known are dropped."""
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)
        elif kind == "lifespan":
            # Opened now, so that a page that cannot be opened stops the start, not the first request.
            _ = (self.door, self.secret)
            await self.app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = paths.route_path(scope)
        kind = paths.classify(scope["method"], path)
        if kind is Kind.INFERENCE:
            await self._inference(scope, receive, send)
        elif kind is Kind.OPEN:
            await self.app(self._without_secret(scope), receive, send)
        elif kind is Kind.CONTROL:
            await self._control(scope, path, receive, send)
        elif kind is Kind.METHOD and _is_preflight(scope):
            await self.app(self._without_secret(scope), receive, send)
        else:
            await _deny(send, kind, path)

    async def _inference(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._knows_secret(scope):
            await self.app(self._without_secret(scope), receive, send)
        elif self.door.enter() or await self._held():
            try:
                await self.app(self._without_secret(scope), receive, send)
            finally:
                self.door.leave()
        else:
            await self._closed(send)

    async def _held(self) -> bool:
        """Knock, and wait as long as requests are held here. Returns whether the request was counted in."""
        door = self.door
        door.knock()
        due = time.monotonic() + door.hold()
        while (left := due - time.monotonic()) > 0 and door.hold() > 0:
            await asyncio.wait({self._watching()}, timeout=left)
            if door.enter():
                return True
        return False

    def _watching(self) -> asyncio.Task[None]:
        """Return the one look at the door that all who are held share: a thousand of them cost what one does."""
        if self._lookout is None or self._lookout.done():
            self._lookout = asyncio.create_task(self._watch(), name="gate")
        return self._lookout

    async def _watch(self) -> None:
        # Again and again: a gate that was opened and closed in between has forgotten who knocked.
        while not self.door.knock() and self.door.hold() > 0:  # noqa: ASYNC110 - what is polled is in shared memory
            await asyncio.sleep(_LOOK_S)

    async def _control(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        _, method = paths.rule(path)
        if not self._knows_secret(scope):
            error = EbbtideError(ErrorCode.UNAUTHENTICATED, "The engine's control routes are for its agent alone.")
            await _answer(send, error)
        elif method != scope["method"]:
            await _deny(send, Kind.METHOD if method else Kind.DENIED, path, method)
        else:
            await self.app(scope, receive, send)

    async def _closed(self, send: Send) -> None:
        code = refusal(self.door.phase())
        wait = max(1, self.door.retry_after())
        error = EbbtideError(code, f"The engine takes no requests now; try again in {wait} s.", retryAfterSeconds=wait)
        await _answer(send, error, (b"retry-after", str(wait).encode()))

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if paths.route_path(scope) not in paths.WEBSOCKETS:
            await send({"type": "websocket.close", "code": 1008})
        elif self.door.enter():
            try:
                await self.app(self._without_secret(scope), receive, send)
            finally:
                self.door.leave()
        else:
            self.door.knock()
            # Accepted first: a close before it reaches the client as a bare 403, without the code.
            await send({"type": "websocket.accept"})
            reason = str(refusal(self.door.phase()))
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": reason})

    def _knows_secret(self, scope: Scope) -> bool:
        # More than one header is nobody's honest request.
        sent = [value for name, value in scope["headers"] if name == _HEADER]
        return len(sent) == 1 and hmac.compare_digest(sent[0], self.secret)

    def _without_secret(self, scope: Scope) -> Scope:
        """Return the scope without our header: nothing inside may log it."""
        headers = scope["headers"]
        if not any(name == _HEADER for name, _ in headers):
            return scope
        return {**scope, "headers": [pair for pair in headers if pair[0] != _HEADER]}


def _is_preflight(scope: Scope) -> bool:
    """Whether a browser asks for leave to call: answered by vLLM's CORS rules, never by the engine."""
    names = {name for name, _ in scope["headers"]}
    return scope["method"] == "OPTIONS" and {b"origin", b"access-control-request-method"} <= names


async def _deny(send: Send, kind: Kind, path: str, method: str = "") -> None:
    if kind is Kind.METHOD:
        allowed = method or paths.rule(path)[1]
        error = EbbtideError(ErrorCode.INVALID_REQUEST, f"This path takes {allowed} only.", allowed=allowed)
        await _answer(send, error, (b"allow", allowed.encode()), status=405)
    else:
        await _answer(send, EbbtideError(ErrorCode.NOT_FOUND, "The engine serves no such path."))


async def _answer(send: Send, error: EbbtideError, *headers: tuple[bytes, bytes], status: int | None = None) -> None:
    body = json.dumps(error.body().wire()).encode()
    sent = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status or error.status, "headers": sent})
    await send({"type": "http.response.body", "body": body})
