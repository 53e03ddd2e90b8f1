"""The gateway's application: routes, errors, guard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ebbtide_api.server import InferenceServer
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp

from ebbtide_operator.loop import Operator

from . import groups, servers, weights
from .errors import answer_errors
from .guard import Guard
from .metrics import Metrics


def build(
    operator: Operator,
    token: str,
    *,
    shutdown: Callable[[], None] = lambda: None,
    remember: Callable[[InferenceServer], None] = lambda _server: None,
    passing: Iterable[type[Exception]] = (),
) -> ASGIApp:
    """Return the application of an operator. `remember` keeps an applied server; `shutdown` ends everything.

    `passing` are errors that pass by themselves: callers are told to ask again.
    """
    app = FastAPI(title="Ebbtide", docs_url=None, redoc_url=None)
    app.state.operator, app.state.shutdown, app.state.remember = operator, shutdown, remember
    app.state.pieces = asyncio.Semaphore(weights.AT_ONCE)
    metrics = Metrics(operator)

    @app.get("/health")
    async def health() -> JSONResponse:
        """Say that the operator works."""
        stopping = operator.stopping.is_set()
        body = {"status": "stopping" if stopping else "ok", "servers": len(operator.servers)}
        return JSONResponse(body, status_code=503 if stopping else 200)

    @app.get("/metrics")
    async def exposition(_request: Request) -> PlainTextResponse:
        """Return the metrics."""
        return PlainTextResponse(metrics.render(), media_type="text/plain; version=0.0.4")

    app.include_router(groups.router)
    app.include_router(servers.router)
    app.include_router(weights.router)
    answer_errors(app, passing)
    return Guard(app, token, operator.settings.body_limit, weights.limit_of)
