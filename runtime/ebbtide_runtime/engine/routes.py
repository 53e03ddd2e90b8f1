"""The control routes, as vLLM's endpoint plugin. Only requests with the secret get here, and it is checked again."""

from __future__ import annotations

import hmac
from argparse import Namespace
from typing import Any, TypeVar

from ebbtide_api.base import Message
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import EngineState
from ebbtide_api.verbs import SECRET
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import Field, ValidationError

from . import compat, member
from .control import Control
from .paths import CONTROL

Body = TypeVar("Body", bound=Message)


class PauseBody(Message):
    """How to stop: `wait`, `abort` or `keep`."""

    mode: str
    clear_cache: bool = True


class SleepBody(Message):
    """How deep."""

    level: int


class WakeBody(Message):
    """What: `weights` or `kv_cache`."""

    tag: str


class ReloadBody(Message):
    """From where, and as which version."""

    path: str = Field(min_length=1)
    version: int = Field(ge=0)


class CommitBody(Message):
    """Which version."""

    version: int = Field(ge=0)


class Empty(Message):
    """No arguments."""


class ControlRoutes:
    """vLLM's `EndpointPlugin`. Without our launcher's environment it adds nothing."""

    name = "ebbtide"
    required_tasks = None

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret
        self._control: Control | None = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes to vLLM's app."""
        if self._secret is None:
            if not member.active():
                return
            self._secret = member.secret(member.current())
        app.add_api_route(f"{CONTROL}/engine", self._get, methods=["GET"], include_in_schema=False)
        app.add_api_route(f"{CONTROL}/{{verb}}", self._post, methods=["POST"], include_in_schema=False)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Take vLLM's client."""
        if engine_client is not None:
            self._control = Control(engine_client, compat)

    async def _get(self, request: Request) -> JSONResponse:
        return await self._answer(request, "")

    async def _post(self, request: Request, verb: str) -> JSONResponse:
        return await self._answer(request, verb)

    async def _answer(self, request: Request, verb: str) -> JSONResponse:
        try:
            self._authenticate(request)
            return JSONResponse((await self._do(verb, await request.body() or b"{}")).wire())
        except EbbtideError as error:
            return JSONResponse(error.body().wire(), status_code=error.status)

    def _authenticate(self, request: Request) -> None:
        sent = request.headers.getlist(SECRET)
        wanted = self._secret or b""
        if not (wanted and len(sent) == 1 and hmac.compare_digest(sent[0].encode(), wanted)):
            raise EbbtideError(ErrorCode.UNAUTHENTICATED, "The engine's control routes are for its agent alone.")

    async def _do(self, verb: str, body: bytes) -> EngineState:
        control = self._control
        if control is None:
            raise EbbtideError(ErrorCode.ENGINE_STARTING, "The engine is not there yet.")
        match verb:
            case "":
                return await control.state()
            case "pause":
                pause = _parse(PauseBody, body)
                return await control.pause(pause.mode, pause.clear_cache)
            case "sleep":
                return await control.sleep(_parse(SleepBody, body).level)
            case "wake":
                return await control.wake(_parse(WakeBody, body).tag)
            case "reload":
                load = _parse(ReloadBody, body)
                return await control.reload(load.path, load.version)
            case "commit":
                return await control.commit(_parse(CommitBody, body).version)
            case "resume" | "park":
                _parse(Empty, body)
                return await (control.resume() if verb == "resume" else control.park())
        raise EbbtideError(ErrorCode.NOT_FOUND, f"There is no control verb {verb!r}.")


def _parse(kind: type[Body], body: bytes) -> Body:
    try:
        return kind.model_validate_json(body)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise EbbtideError(ErrorCode.INVALID_REQUEST, f"{field}: {first['msg']}", field=field) from problem
