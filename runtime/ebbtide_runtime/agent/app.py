"""The agent's HTTP interface. Everything but /health and /metrics needs the member's token.

POST /v1/{verb}                        202 Operation, or 200 when it is done already
GET  /v1/operations/{id}?wait=SECONDS  200 Operation
GET  /v1/state?wait_version=N&wait=S   200 StateVector; with wait_version, once its version is above N
     /v1/weights/{version}...          streamed weights: see uploads
GET  /health                           200 while the agent watches, whatever its engine does; else 503
GET  /metrics                          Prometheus
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import OperationStatus
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from .agent import Agent
from .auth import Callers
from .http import MAX_BODY, MAX_WAIT_S, parse_call, parse_number, parse_seconds, parse_verb
from .uploads import UploadRoutes

_STATE_WAIT = "25"
_STUCK_S = 10.0


class Routes:
    """The handlers. They translate, and decide nothing."""

    def __init__(self, agent: Agent, bearer: Callers) -> None:
        self._agent = agent
        self._bearer = bearer

    async def verb(self, request: Request) -> Response:
        """Run a verb."""
        self._authorize(request)
        verb = parse_verb(request.path_params["verb"])
        call = parse_call(verb, request.headers, await _body(request))
        operation = await self._agent.executor.submit(call)
        done = operation.noop or operation.status is not OperationStatus.RUNNING
        return JSONResponse(operation.wire(), status_code=200 if done else 202)

    async def operation(self, request: Request) -> Response:
        """Return an operation, once it has ended or the wait is over."""
        self._authorize(request)
        key = request.path_params["key"]
        seconds = parse_seconds(request.query_params.get("wait", "0"), "wait", MAX_WAIT_S)
        operation = await self._agent.executor.wait(key, seconds)
        if operation is None:
            raise EbbtideError(ErrorCode.NOT_FOUND, f"no operation {key!r} is remembered")
        return JSONResponse(operation.wire())

    async def state(self, request: Request) -> Response:
        """Return the state vector."""
        self._authorize(request)
        query = request.query_params
        version = parse_number(query.get("wait_version", "0"), "wait_version")
        seconds = parse_seconds(query.get("wait", _STATE_WAIT), "wait", MAX_WAIT_S) if "wait_version" in query else 0.0
        vector = await self._agent.board.after(version, seconds)
        return JSONResponse(vector.wire())

    async def health(self, _request: Request) -> Response:
        """Say whether the agent itself works."""
        agent = self._agent
        stuck = time.monotonic() - agent.observer.beat > _STUCK_S
        body = {
            "status": "stuck" if stuck else "ok",
            "member": agent.member.config.name,
            "phase": agent.member.phase.value,
            "admission": agent.member.page.admission,
        }
        return JSONResponse(body, status_code=503 if stuck else 200)

    async def metrics(self, _request: Request) -> Response:
        """Return the metrics."""
        exposition = self._agent.metrics.render(self._agent.board.refresh())
        return PlainTextResponse(exposition, media_type="text/plain; version=0.0.4")

    async def failed(self, _request: Request, error: Exception) -> Response:
        """Answer an error with its code, and count it."""
        known = error if isinstance(error, EbbtideError) else _unknown(error)
        self._agent.metrics.refused(known.code)
        return JSONResponse(known.body().wire(), status_code=known.status)

    def _authorize(self, request: Request) -> None:
        self._bearer.check(request.headers.get("authorization"))


async def _body(request: Request) -> bytes:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            break
    return data


def _unknown(error: Exception) -> EbbtideError:
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        return EbbtideError(ErrorCode.NOT_FOUND, "there is no such path, or not with this method")
    # The server logs the traceback.
    return EbbtideError(ErrorCode.INTERNAL, f"{type(error).__name__}")


def build(agent: Agent, bearer: Callers) -> FastAPI:
    """Return the application; it starts and ends the agent's work."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with agent.working():
            yield

    routes = Routes(agent, bearer)
    app = FastAPI(lifespan=lifespan, openapi_url=None)
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])
    app.add_api_route("/v1/state", routes.state, methods=["GET"])
    app.add_api_route("/v1/operations/{key}", routes.operation, methods=["GET"])
    app.add_api_route("/v1/{verb}", routes.verb, methods=["POST"])
    UploadRoutes(agent, bearer).add_to(app)
    for kind in (EbbtideError, HTTPException, Exception):
        app.add_exception_handler(kind, routes.failed)
    return app
