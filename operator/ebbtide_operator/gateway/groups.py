"""Routes of groups: leases, lend, reclaim."""

from __future__ import annotations

from typing import Annotated

from ebbtide_api.base import Message
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import Lease, LeaseRequest, LeaseStage, LendRequest, Operation, OperationStatus, ReclaimRequest
from fastapi import APIRouter, Body, Request
from pydantic import Field
from starlette.responses import JSONResponse

from ebbtide_operator import commands, views
from ebbtide_operator.loop import Operator
from ebbtide_operator.operations import now

from .headers import AskedHeaders, Waited

router = APIRouter(prefix="/v1/groups")
_MOVING = frozenset({LeaseStage.QUEUED, LeaseStage.LENDING, LeaseStage.RETURNING})


def operator_of(request: Request) -> Operator:
    """Return the operator behind the gateway."""
    operator = request.app.state.operator
    if not isinstance(operator, Operator):
        raise TypeError("the gateway has no operator")
    return operator


def lease_response(lease: Lease, status: int = 200) -> JSONResponse:
    """Return a lease; 202 while it is on its way."""
    return JSONResponse(lease.wire(), status_code=202 if lease.stage in _MOVING else status)


def operation_response(operation: Operation) -> JSONResponse:
    """Return an operation; 202 while it runs."""
    running = operation.status is OperationStatus.RUNNING
    return JSONResponse(operation.wire(), status_code=202 if running else 200)


@router.get("")
async def list_groups(request: Request) -> JSONResponse:
    """Return every group: who owns its devices, and who waits."""
    operator = operator_of(request)
    return JSONResponse([await _group(operator, name) for name in sorted(operator.groups)])


@router.get("/{group}")
async def get_group(request: Request, group: str) -> JSONResponse:
    """Return one group, its memory measured now."""
    return JSONResponse(await _group(operator_of(request), group))


@router.get("/{group}/timeline")
async def get_timeline(request: Request, group: str) -> JSONResponse:
    """Return who owned the group's devices, and where its members were, as far as it is remembered."""
    known = commands.group_named(operator_of(request), group)
    return JSONResponse(known.history.timeline(group, now()).wire())


async def _group(operator: Operator, name: str) -> dict[str, object]:
    group = commands.group_named(operator, name)
    await operator.driver.refresh(name)
    return views.group_view(operator, group, await operator.trainer(group)).wire()


@router.post("/{group}/lease")
async def request_lease(request: Request, group: str, body: LeaseRequest, asked: AskedHeaders) -> JSONResponse:
    """Ask for a group's lease: 201 when it is granted, 202 when it is queued."""
    return lease_response(await commands.request_lease(operator_of(request), group, body, asked), 201)


@router.get("/{group}/lease")
async def current_lease(request: Request, group: str) -> JSONResponse:
    """Return the lease that is held now."""
    operator = operator_of(request)
    lease = commands.group_named(operator, group).record.lease
    if lease is None:
        raise EbbtideError(ErrorCode.NOT_FOUND, f"nobody holds the lease of group {group}", group=group)
    return lease_response(commands.view_of(operator, operator.groups[group], lease.id))


@router.get("/{group}/lease/{lease}")
async def get_lease(request: Request, group: str, lease: str, wait: Waited) -> JSONResponse:
    """Return a lease, as soon as it is granted, lent or ended."""
    return lease_response(await commands.wait_for_lease(operator_of(request), group, lease, wait))


class Renewal(Message):
    """A sign of life, and perhaps another time to live."""

    ttl_seconds: float | None = Field(None, gt=0, le=86400)


@router.put("/{group}/lease/{lease}")
async def renew_lease(
    request: Request, group: str, lease: str, asked: AskedHeaders, body: Annotated[Renewal | None, Body()] = None
) -> JSONResponse:
    """Say that the holder lives."""
    ttl = body.ttl_seconds if body else None
    return JSONResponse((await commands.renew_lease(operator_of(request), group, lease, asked, ttl)).wire())


@router.delete("/{group}/lease/{lease}")
async def release_lease(request: Request, group: str, lease: str, asked: AskedHeaders) -> JSONResponse:
    """Give back, or leave the queue: 202 while the memory is on its way."""
    return lease_response(await commands.release_lease(operator_of(request), group, lease, asked))


@router.post("/{group}:lend")
async def lend(
    request: Request, group: str, asked: AskedHeaders, body: Annotated[LendRequest | None, Body()] = None
) -> JSONResponse:
    """Put every server of the group to sleep, measured."""
    return operation_response(await commands.lend(operator_of(request), group, body or LendRequest(), asked))


@router.post("/{group}:reclaim")
async def reclaim(
    request: Request, group: str, asked: AskedHeaders, body: Annotated[ReclaimRequest | None, Body()] = None
) -> JSONResponse:
    """Bring every server of the group back."""
    return operation_response(await commands.reclaim(operator_of(request), group, body or ReclaimRequest(), asked))
