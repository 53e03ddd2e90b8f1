"""Errors as answers: a code, its status, and the field at fault."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorCode
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from .guard import error_response

log = logging.getLogger("ebbtide.gateway")


def invalid(wrong: Iterable[Mapping[str, Any]]) -> EbbtideError:
    """Return INVALID_REQUEST that names every field at fault."""
    faults = [{"field": ".".join(str(part) for part in one["loc"]), "message": str(one["msg"])} for one in wrong]
    listed = "; ".join(f"{fault['field'] or 'the body'}: {fault['message']}" for fault in faults)
    first = faults[0]["field"] if faults else ""
    return EbbtideError(ErrorCode.INVALID_REQUEST, listed or "the request is malformed", field=first, errors=faults)


async def _known(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, EbbtideError):
        return await _unknown(_request, error)
    return error_response(error)


async def _validation(_request: Request, error: Exception) -> JSONResponse:
    wrong = error.errors() if isinstance(error, RequestValidationError) else []
    # The first part of a place says where in the request it is: body, query, path.
    return error_response(invalid({"loc": one["loc"][1:], "msg": one["msg"]} for one in wrong))


async def _http(request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status in {404, 405}:
        message = f"there is no {request.method} {request.url.path}"
        action = "Check method and path; docs/architecture.md says what the gateway offers."
        return error_response(EbbtideError(ErrorCode.NOT_FOUND, message, next_action=action))
    return error_response(EbbtideError(ErrorCode.INVALID_REQUEST, str(error)))


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(EbbtideError(ErrorCode.INTERNAL, f"the gateway failed: {type(error).__name__}"))


async def _passing(request: Request, error: Exception) -> JSONResponse:
    log.warning("%s %s: %s", request.method, request.url.path, error)
    message = "what the call decides could not be kept, so nothing was changed"
    again = "Send the call again with the same Idempotency-Key."
    return error_response(EbbtideError(ErrorCode.UNREACHABLE, message, next_action=again))


def answer_errors(app: FastAPI, passing: Iterable[type[Exception]] = ()) -> None:
    """Answer every error with its code. `passing` are those that pass by themselves."""
    for kind in passing:
        app.add_exception_handler(kind, _passing)
    app.add_exception_handler(EbbtideError, _known)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)
