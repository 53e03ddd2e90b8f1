"""The gateway without HTTP: a client's requests to the real commands, and their answers as replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from ebbtide.client.flow import Reply, Send
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import (
    DEADLINE,
    EPOCH,
    IDEMPOTENCY_KEY,
    Lease,
    LeaseRequest,
    LeaseStage,
    LendRequest,
    Operation,
    OperationStatus,
    ReclaimRequest,
)
from ebbtide_operator import commands
from ebbtide_operator.commands import Asked
from ebbtide_operator.loop import Operator

from .operator import GROUP

if TYPE_CHECKING:
    from .operator import OperatorProcess

_MOVING = frozenset({LeaseStage.QUEUED, LeaseStage.LENDING, LeaseStage.RETURNING})


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, send: Send) -> Request:
        return cls(send.method, send.path, send.body, dict(send.headers))

    @property
    def asked(self) -> Asked:
        epoch, deadline = self.headers.get(EPOCH), self.headers.get(DEADLINE)
        return Asked(
            key=self.headers.get(IDEMPOTENCY_KEY),
            epoch=int(epoch) if epoch else None,
            deadline=float(deadline) if deadline else None,
        )


async def handle(process: OperatorProcess, request: Request) -> Reply:
    """Answer a request, as the gateway does."""
    world = process.world
    before = world.record
    known = request.asked.key in world.entries if request.asked.key else False
    try:
        answer = await _route(process.operator, request)
    except EbbtideError as error:
        return Reply(error.status, error.body().wire())
    if not process.dead:
        world.checks.granted(request, before, known, answer)
    if isinstance(answer, Operation):
        return Reply(202 if answer.status is OperationStatus.RUNNING else 200, answer.wire())
    return Reply(202 if answer.stage in _MOVING else 200, answer.wire())


async def _route(operator: Operator, request: Request) -> Lease | Operation:
    parts = urlsplit(request.path)
    wait = float(parse_qs(parts.query).get("wait", ["0"])[0].rstrip("s"))
    path = parts.path.split("/")
    if path[2] == "operations":
        found = await operator.operations.wait(path[3], wait)
        if found is None:
            raise EbbtideError(ErrorCode.NOT_FOUND, f"no operation {path[3]}")
        return found
    asked, body = request.asked, request.body or {}
    match request.method, path[3].partition(":")[2], len(path):
        case "POST", "lend", _:
            return await commands.lend(operator, GROUP, LendRequest.model_validate(body), asked)
        case "POST", "reclaim", _:
            return await commands.reclaim(operator, GROUP, ReclaimRequest.model_validate(body), asked)
        case "POST", _, 5:
            return await commands.request_lease(operator, GROUP, LeaseRequest.model_validate(body), asked)
        case "GET", _, 6:
            return await commands.wait_for_lease(operator, GROUP, path[5], wait)
        case "PUT", _, 6:
            return await commands.renew_lease(operator, GROUP, path[5], asked, body.get("ttlSeconds"))
        case "DELETE", _, 6:
            return await commands.release_lease(operator, GROUP, path[5], asked)
    raise AssertionError(f"the simulated gateway has no {request.method} {request.path}")
