"""Routes of servers: their state, their steps, and applying them; and of operations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from ebbtide_api.base import Message
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.explain import faults
from ebbtide_api.server import InferenceServer
from ebbtide_api.verbs import (
    BeginUpdateRequest,
    CommitUpdateRequest,
    Nothing,
    PauseRequest,
    ResumeRequest,
    SleepRequest,
    Verb,
)
from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response, StreamingResponse

from ebbtide_operator import steps, views
from ebbtide_operator.loop import Operator

from .errors import invalid
from .groups import operation_response, operator_of
from .headers import AskedHeaders, Waited

router = APIRouter(prefix="/v1")
HEARTBEAT = 15.0
"""Seconds after which a silent event stream says that it lives."""
BODIES: dict[Verb, type[Message]] = {
    Verb.SLEEP: SleepRequest,
    Verb.WAKE_WEIGHTS: Nothing,
    Verb.BEGIN_UPDATE: BeginUpdateRequest,
    Verb.COMMIT_UPDATE: CommitUpdateRequest,
    Verb.ABORT_UPDATE: Nothing,
    Verb.RELOAD: Nothing,
    Verb.WAKE_KV: Nothing,
    Verb.RESUME: ResumeRequest,
    Verb.PAUSE: PauseRequest,
    Verb.RELEASE_KV: Nothing,
    Verb.RECONCILE: Nothing,
}
"""The steps that callers may take. A grant is the operator's alone: it says who owns the device."""


def server_named(operator: Operator, name: str) -> InferenceServer:
    """Return a server. Raises NOT_FOUND."""
    if name not in operator.servers:
        known = ", ".join(sorted(operator.servers)) or "none"
        raise EbbtideError(ErrorCode.NOT_FOUND, f"there is no server {name}; there are: {known}", server=name)
    return operator.servers[name]


@router.get("/servers")
async def list_servers(request: Request) -> JSONResponse:
    """Return every server, its members measured now."""
    operator = operator_of(request)
    await asyncio.gather(*(operator.driver.refresh(group) for group in operator.groups))
    return JSONResponse(
        [views.server_view(operator, operator.servers[name]).wire() for name in sorted(operator.servers)]
    )


@router.get("/servers/{server}/state")
async def get_state(request: Request, server: str, watch: bool = False) -> Response:
    """Return a server; with ?watch=true an event stream of its state, whenever it changes."""
    operator = operator_of(request)
    spec = server_named(operator, server)
    if watch:
        return StreamingResponse(_events(operator, server), media_type="text/event-stream", headers=_UNBUFFERED)
    await operator.driver.refresh(spec.group)
    return JSONResponse(views.server_view(operator, spec).wire())


_UNBUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def _events(operator: Operator, name: str) -> AsyncIterator[str]:
    told = ""

    def shown() -> str:
        server = operator.servers.get(name)
        return views.server_view(operator, server).model_dump_json(by_alias=True, exclude_none=True) if server else ""

    def news() -> bool:
        return operator.stopping.is_set() or shown() != told

    while not operator.stopping.is_set():
        changed = await operator.bell.wait_for(news, HEARTBEAT)
        told = shown()
        if changed and not told:
            return
        yield f"event: state\ndata: {told}\n\n" if changed else ": still here\n\n"


@router.get("/servers/{server}/why")
async def get_why(request: Request, server: str) -> JSONResponse:
    """Return what is wanted of a server, what is in the way, since when, and what to do."""
    operator = operator_of(request)
    found = operator.find(server) or server_named(operator, server)
    return JSONResponse(views.why_view(operator, found).wire())


@router.post("/servers/{server}:{verb}")
async def step(request: Request, server: str, verb: str, asked: AskedHeaders) -> JSONResponse:
    """Take one step with every member of a server."""
    operator = operator_of(request)
    server_named(operator, server)
    known = next((one for one in BODIES if one.value == verb), None)
    if known is None:
        verbs = [one.value for one in BODIES]
        raise EbbtideError(ErrorCode.NOT_FOUND, f"there is no verb {verb}; there are: {', '.join(verbs)}", verbs=verbs)
    body = _parse(BODIES[known], await request.body())
    return operation_response(await steps.step(operator, server, known, body, asked))


def _parse(model: type[Message], data: bytes) -> Message:
    try:
        return model.model_validate_json(data or b"{}")
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False)) from None


@router.post("/apply")
async def apply(request: Request, body: list[dict[str, Any]]) -> JSONResponse:
    """Run these servers too, or as they are now. All of them are taken, or none."""
    operator = operator_of(request)
    servers = operator.accept([_server(index, document) for index, document in enumerate(body)])
    await asyncio.to_thread(_remember, request, servers)
    return JSONResponse([views.server_view(operator, server).wire() for server in servers])


def _remember(request: Request, servers: list[InferenceServer]) -> None:
    for server in servers:
        request.app.state.remember(server)


def _server(index: int, document: dict[str, Any]) -> InferenceServer:
    try:
        # As strict as with a file: in JSON, "2" is no number.
        return InferenceServer.model_validate_json(json.dumps(document), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = [{"loc": (index, *path), "msg": why} for path, _, why in faults(error, InferenceServer)]
        raise invalid(wrong) from None


@router.get("/operations/{operation}")
async def get_operation(request: Request, operation: str, wait: Waited) -> JSONResponse:
    """Return an operation, as soon as it ends."""
    found = await operator_of(request).operations.wait(operation, wait)
    if found is None:
        raise EbbtideError(ErrorCode.NOT_FOUND, f"no operation {operation} is remembered", operation=operation)
    return operation_response(found)


@router.post("/shutdown")
async def shutdown(request: Request) -> JSONResponse:
    """End the operator and everything that it runs."""
    request.app.state.shutdown()
    return JSONResponse({"stopping": True}, status_code=202)
