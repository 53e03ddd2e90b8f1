"""Calls to the engine's control routes. What comes back is a value: a state, or a failure that says what is known.

No call here has a timeout: executor replies carry no id, so a collective call that is given up poisons the next one
(vLLM 0.32). A deadline that passes means that the engine is Faulted and restarted, which the keeper sees to.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
from ebbtide_api.errors import ErrorBody, ErrorCode
from ebbtide_api.state import EngineState
from ebbtide_api.verbs import SECRET, Canary, DrainMode
from pydantic import ValidationError

_PREFIX = "/ebbtide/v1"
# The engine is in the same pod and speaks plain HTTP. Reading the machine's root certificates, as a client does
# otherwise, would cost more time than all of its calls; without any, no TLS peer is believed.
_NO_ROOTS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_CONNECT_S = 5.0
_PAUSE_MODES = {DrainMode.WAIT: "wait", DrainMode.ABORT: "abort", DrainMode.KEEP: "keep"}


@dataclass(frozen=True)
class Refused:
    """Nothing listens: the call did not reach the engine."""

    message: str


@dataclass(frozen=True)
class Lost:
    """The connection ended before the answer: what the engine did is unknown."""

    message: str


@dataclass(frozen=True)
class Failed:
    """The engine answered, and it was not what was asked for."""

    status: int
    body: ErrorBody

    @property
    def message(self) -> str:
        """What the engine said."""
        return f"{self.status} {self.body.code}: {self.body.message}"


Failure = Refused | Lost | Failed


@dataclass(frozen=True)
class Completion:
    """A greedy completion."""

    tokens: list[int]
    text: str


class EngineClient:
    """One engine's control routes, reached with the member's boot secret."""

    def __init__(self, url: str, secret: str, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        # A fresh connection for every call: an idle one just closed by the server would leave the outcome unknown.
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers={SECRET: secret},
            limits=httpx2.Limits(max_keepalive_connections=0),
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            trust_env=False,
            verify=_NO_ROOTS,
            transport=transport,
        )

    async def close(self) -> None:
        """Close what is open."""
        await self._http.aclose()

    async def state(self) -> EngineState | Failure:
        """Ask every rank for its state."""
        return await self._state("GET", "/engine")

    async def pause(self, mode: DrainMode, *, clear_cache: bool) -> Failure | None:
        """Stop scheduling. Returns when the engine has no requests, or has frozen them (`Keep`)."""
        return await self._done("/pause", {"mode": _PAUSE_MODES[mode], "clearCache": clear_cache})

    async def resume(self) -> Failure | None:
        """Schedule again."""
        return await self._done("/resume", {})

    async def sleep(self, level: int) -> EngineState | Failure:
        """Release weights and KV."""
        return await self._state("POST", "/sleep", {"level": level})

    async def wake_weights(self) -> EngineState | Failure:
        """Give the weights memory again, from their parked copy where there is one."""
        return await self._state("POST", "/wake", {"tag": "weights"})

    async def wake_kv(self) -> EngineState | Failure:
        """Give the KV cache memory again. The engine schedules by itself afterwards; the gate stays shut."""
        return await self._state("POST", "/wake", {"tag": "kv_cache"})

    async def reload(self, path: str, version: int) -> EngineState | Failure:
        """Load weights from a folder of safetensors, as the pending version."""
        failure = await self._done("/reload", {"path": path, "version": version})
        return failure if failure is not None else await self.state()

    async def commit(self, version: int) -> EngineState | Failure:
        """Make the loaded version the engine's, and reset its caches."""
        return await self._state("POST", "/commit", {"version": version})

    async def park(self) -> Failure | None:
        """Start making the parked copy; serving goes on."""
        return await self._done("/park", {})

    async def complete(self, model: str, canary: Canary) -> Completion | Failure:
        """Ask for a greedy completion, past the closed gate."""
        body = {"model": model, "prompt": canary.prompt, "max_tokens": canary.tokens}
        answer = await self._call("POST", "/v1/completions", {**body, "temperature": 0, "return_token_ids": True})
        return _completion(answer) if isinstance(answer, httpx2.Response) else answer

    async def _done(self, path: str, body: Mapping[str, Any]) -> Failure | None:
        answer = await self._call("POST", _PREFIX + path, body)
        return None if isinstance(answer, httpx2.Response) else answer

    async def _state(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> EngineState | Failure:
        answer = await self._call(method, _PREFIX + path, body)
        if not isinstance(answer, httpx2.Response):
            return answer
        try:
            return EngineState.model_validate_json(answer.content)
        except ValidationError:
            return _unreadable(answer, "not a state")

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx2.Response | Failure:
        try:
            answer = await self._http.request(method, path, json=body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return Refused(f"{method} {path}: {error}")
        except httpx2.HTTPError as error:
            return Lost(f"{method} {path}: {type(error).__name__}")
        return answer if answer.is_success else _failed(answer)


def _failed(answer: httpx2.Response) -> Failed:
    try:
        return Failed(answer.status_code, ErrorBody.model_validate_json(answer.content))
    except ValidationError:
        return _unreadable(answer, "an error without a code")


def _unreadable(answer: httpx2.Response, what: str) -> Failed:
    return Failed(answer.status_code, ErrorBody(code=ErrorCode.INTERNAL, message=f"the engine answered with {what}"))


def _completion(answer: httpx2.Response) -> Completion | Failed:
    try:
        choice = answer.json()["choices"][0]
        return Completion([int(token) for token in choice["token_ids"]], str(choice.get("text", "")))
    except (ValueError, KeyError, IndexError, TypeError):
        return _unreadable(answer, "a completion without token ids")
