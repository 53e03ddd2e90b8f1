"""In front of every route: the bearer token, and a limit on what is read. Nothing of a request is logged."""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest

from ebbtide_api.errors import EbbtideError, ErrorCode
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = frozenset({"/health", "/metrics"})
_SCHEME = b"bearer "
_LATER = frozenset({423, 503})
LimitOf = Callable[[str, str, int], int]
"""Returns the most bytes of a request by its method and path, where the usual limit is the last argument."""


class TooLargeError(EbbtideError):
    """The request is larger than the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, f"the request is larger than {limit} bytes", limit=limit)


class Guard:
    """Lets through who knows the token. Only /health and /metrics are open: they tell no names of holders."""

    def __init__(self, app: ASGIApp, token: str, limit: int, limit_of: LimitOf = lambda _m, _p, usual: usual) -> None:
        if not token:
            raise ValueError("an empty token would let everybody in")
        self._app, self._token, self._limit, self._limit_of = app, token.encode(), limit, limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit_of(scope["method"], scope["path"], self._limit)
        if refusal := self._refuses(scope, limit):
            await error_response(refusal)(scope, receive, send)
        else:
            await self._app(scope, _limited(receive, limit), send)

    def _refuses(self, scope: Scope, limit: int) -> EbbtideError | None:
        headers = dict(scope["headers"])
        if scope["path"] not in OPEN and not self._knows_token(headers.get(b"authorization", b"")):
            return EbbtideError(ErrorCode.UNAUTHENTICATED, "the gateway wants `Authorization: Bearer` with its token")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limit:
            return TooLargeError(limit)
        return None

    def _knows_token(self, authorization: bytes) -> bool:
        is_bearer = authorization[: len(_SCHEME)].lower() == _SCHEME
        return compare_digest(authorization[len(_SCHEME) :].strip(), self._token) and is_bearer


def _limited(receive: Receive, limit: int) -> Receive:
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > limit:
            raise TooLargeError(limit)
        return message

    return limited


def error_response(error: EbbtideError) -> JSONResponse:
    """Return an error as it travels."""
    headers: dict[str, str] = {}
    if error.code is ErrorCode.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in _LATER:
        headers["Retry-After"] = "1"
    return JSONResponse(error.body().wire(), status_code=error.status, headers=headers)
