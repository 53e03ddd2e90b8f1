"""The gateway on a cluster: who calls, whether they may, and which namespace is meant; then the same routes as locally.

/v1/...                     in the namespace of the caller's ServiceAccount
/namespaces/NS/v1/...       in another one
POST /v1/enrol              an agent gives its certificate, with a token that is bound to its pod
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ebbtide_api.errors import EbbtideError, ErrorCode
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide_operator.gateway.app import build
from ebbtide_operator.gateway.guard import error_response
from ebbtide_operator.gateway.headers import POD
from ebbtide_operator.plan import PodRef

from .auth import Authenticator, Caller
from .kinds import ApiError
from .leases import LeaseMovedError
from .names import ENGINE_ACCOUNT
from .observe import Enrolled
from .space import Space

PASSING = (ApiError, LeaseMovedError)
"""The API server did not answer, or somebody else wrote first and is read by now: a repeated call decides anew."""
LARGEST_CERTIFICATE = 16 << 10
_PLACED = re.compile(r"^/namespaces/([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)(/v1/.*)$")
_GROUP = re.compile(r"^/v1/groups/([^/:]+)([/:]|$)")
_SERVER = re.compile(r"^/v1/servers/([^/:]+)([/:]|$)")
_LOCAL_ONLY = ("/v1/apply", "/v1/shutdown")


@dataclass(frozen=True)
class Target:
    """What a request is about: a namespace, and the path that the routes know."""

    namespace: str
    path: str


def target_of(path: str, caller: Caller) -> Target:
    """Return what a path means to a caller. Raises EbbtideError when it names no namespace and the caller has none."""
    if placed := _PLACED.match(path):
        return Target(placed[1], placed[3])
    if not caller.namespace:
        message = f"{caller.name} has no namespace: ask for /namespaces/NAMESPACE{path}"
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, field="path")
    return Target(caller.namespace, path)


def concerned(path: str, space: Space) -> list[str]:
    """Return the servers that a mutating call concerns: all of a group, or one."""
    if group := _GROUP.match(path):
        return [server.name for server in space.servers_of(group[1])]
    server = _SERVER.match(path)
    return [server[1]] if server else []


def pod_of(caller: Caller) -> PodRef | None:
    """Return the pod that a caller's token is bound to: a pod's token is of an account in the pod's own namespace."""
    name, uid = caller.pod
    return PodRef(namespace=caller.namespace, name=name, uid=uid) if caller.namespace and name and uid else None


class Gateway:
    """An ASGI application over every namespace's own."""

    def __init__(
        self,
        spaces: Callable[[str], Space | None],
        authenticator: Authenticator,
        enrolled: Enrolled,
        engine_account: str = ENGINE_ACCOUNT,
    ) -> None:
        self._spaces, self._authenticator, self._enrolled = spaces, authenticator, enrolled
        self._engine_account = engine_account
        # The inner applications hear of nobody but us.
        self._token = secrets.token_urlsafe(32)
        self._apps: dict[int, tuple[Space, ASGIApp]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            answer = await self._route(scope, receive)
        except EbbtideError as error:
            answer = error_response(error)
        await answer(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive) -> ASGIApp:
        path = scope["path"]
        if path == "/health":
            return JSONResponse({"status": "ok"})
        caller = await self._authenticator.caller(_header(scope, b"authorization"))
        if path == "/v1/enrol" and scope["method"] == "POST":
            return await self._enrol(caller, Request(scope, receive))
        target = target_of(path, caller)
        space = self._space(target)
        if target.path.startswith(_LOCAL_ONLY):
            raise EbbtideError(ErrorCode.NOT_FOUND, f"on a cluster there is no {target.path}: use kubectl")
        await self._require(scope["method"], target, space, caller)
        return self._inner(space, target.path, caller)

    async def _require(self, method: str, target: Target, space: Space, caller: Caller) -> None:
        if method in ("GET", "HEAD"):
            await self._authenticator.require(caller, target.namespace, "get", (), "")
        else:
            names = concerned(target.path, space)
            await self._authenticator.require(caller, target.namespace, "create", names, "lend")

    def _space(self, target: Target) -> Space:
        space = self._spaces(target.namespace)
        if space is None:
            message = f"no InferenceServer is watched in namespace {target.namespace}"
            raise EbbtideError(ErrorCode.NOT_FOUND, message, namespace=target.namespace)
        return space

    async def _enrol(self, caller: Caller, request: Request) -> JSONResponse:
        if not caller.is_engine(self._engine_account):
            raise EbbtideError(ErrorCode.FORBIDDEN, f"{caller.name} is no engine pod of ours")
        pem = await _certificate(request)
        try:
            digest = self._enrolled.add(caller.pod[1], pem)
        except ValueError as error:
            raise EbbtideError(ErrorCode.INVALID_REQUEST, f"certificate: {error}", field="certificate") from None
        return JSONResponse({"sha256": digest})

    def _inner(self, space: Space, path: str, caller: Caller) -> ASGIApp:
        known = self._apps.get(id(space))
        if known is None or known[0] is not space:
            known = self._apps[id(space)] = (space, build(space, self._token, passing=PASSING))
        app = known[1]

        async def inner(scope: Scope, receive: Receive, send: Send) -> None:
            headers = [pair for pair in scope["headers"] if pair[0] != b"authorization"]
            headers.append((b"authorization", f"Bearer {self._token}".encode()))
            changed = {"path": path, "raw_path": path.encode(), "headers": headers, POD: pod_of(caller)}
            await app({**scope, **changed}, receive, send)

        return inner


async def _certificate(request: Request) -> str:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > LARGEST_CERTIFICATE:
            raise EbbtideError(ErrorCode.INVALID_REQUEST, "the certificate is too large", limit=LARGEST_CERTIFICATE)
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    pem = body.get("certificate") if isinstance(body, Mapping) else None
    if not isinstance(pem, str):
        raise EbbtideError(ErrorCode.INVALID_REQUEST, "the body is {certificate: PEM}", field="certificate")
    return pem


def _header(scope: Scope, name: bytes) -> str | None:
    found = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1") if found else None
