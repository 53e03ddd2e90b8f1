"""What callers may ask of a group: leases, lend, reclaim. Each answers at once; what takes time is an operation."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ebbtide_api.base import Reading
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import Lease, LeaseRequest, LeaseStage, LendRequest, Operation, ReclaimRequest

from . import handoffs
from .loop import GROUP_VERBS, Group, Operator
from .operations import fingerprint
from .plan import GroupRecord, LeaseRecord, PodRef, ReturnIntent
from .plan import lease as leases
from .plan.lease import Already, Refusal
from .plan.results import lend_result
from .views import lease_view

_UNSETTLED = frozenset({LeaseStage.QUEUED, LeaseStage.LENDING, LeaseStage.RETURNING})
_HEARD = 5.0
"""Seconds between two signs of life that a waiting request gives for its place in the queue."""


@dataclass(frozen=True)
class Asked:
    """The headers of a mutating call. Absent key: every call is another operation."""

    key: str | None = None
    epoch: int | None = None
    deadline: float | None = None
    pod: PodRef | None = None
    """The pod that the caller's token is bound to, as the API server says. Only a cluster's gateway knows."""


def group_named(operator: Operator, name: str) -> Group:
    """Return a group. Raises NOT_FOUND."""
    try:
        return operator.groups[name]
    except KeyError:
        known = ", ".join(sorted(operator.groups)) or "none"
        message = f"there is no group {name}; there are: {known}"
        raise EbbtideError(ErrorCode.NOT_FOUND, message, groups=sorted(operator.groups)) from None


# leases


async def request_lease(operator: Operator, name: str, request: LeaseRequest, asked: Asked) -> Lease:
    """Ask for a group's lease: it is granted at once, or queued."""
    group = group_named(operator, name)
    _refuse_where_turns_are_taken(operator, name)
    _refuse_more_than_there_is(operator, name, request)
    lease = LeaseRecord(
        id=asked.key or uuid.uuid4().hex,
        holder=request.holder,
        ttl_seconds=request.ttl_seconds,
        pid=request.pid,
        pid_start=_start_of(operator, request.pid),
        pod=asked.pod,
        need_mib=request.need_mib,
        fingerprint=fingerprint("lease", name, request),
    )
    async with group.lock:
        record = _changed(leases.enqueue(group.record, lease), group)
        # Granted here, not by the next plan: a caller who waits for nobody hears so at once.
        await _save(operator, group, leases.promote(record) or record)
        group.renewed.setdefault(lease.id, time.monotonic())
    return view_of(operator, group, lease.id)


def _refuse_where_turns_are_taken(operator: Operator, name: str) -> None:
    takers = [server.name for server in operator.servers_of(name) if operator.views[server.name].turns]
    if takers:
        message = f"{' and '.join(takers)} of group {name} take turns on its devices, and lend them to nobody"
        action = "Take colocation.turns out of them, or borrow from another group."
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action=action, group=name)


def _refuse_more_than_there_is(operator: Operator, name: str, request: LeaseRequest) -> None:
    """What no sleep can free, or nobody can measure, is refused before any engine is put to sleep for it."""
    views = [operator.views[server.name] for server in operator.servers_of(name)]
    if request.need_mib is None:
        return
    if unknown := next((view.device for view in views if not view.budget_mib), ""):
        message = f"needMiB: the size of {unknown} is not known, so nobody can measure that this much of it is free"
        action = "Ask without needMiB: what the engines release is measured all the same."
        raise EbbtideError(ErrorCode.NOT_YET_SUPPORTED, message, next_action=action, field="needMiB")
    budgets = [view.budget_mib for view in views]
    if budgets and request.need_mib > min(budgets):
        message = f"needMiB: {request.need_mib:g} MiB are more than the device's budget of {min(budgets):g} MiB"
        action = "Ask for less, or raise colocation.devices.cpu.memory."
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action=action, field="needMiB")


def _start_of(operator: Operator, pid: int | None) -> int:
    if pid is None:
        return 0
    start = operator.driver.started_at(pid)
    if start is None:
        raise EbbtideError(
            ErrorCode.INVALID_REQUEST, f"pid: there is no process {pid} that this operator may measure", field="pid"
        )
    return start


def view_of(operator: Operator, group: Group, lease_id: str) -> Lease:
    """Return a lease as callers see it. Raises NOT_FOUND."""
    found = lease_view(operator, group, lease_id)
    if found is None:
        message = f"group {group.record.group} knows no lease {lease_id}"
        raise EbbtideError(ErrorCode.NOT_FOUND, message, lease=lease_id)
    return found


async def wait_for_lease(operator: Operator, name: str, lease_id: str, seconds: float) -> Lease:
    """Return a lease when it is granted, lent or ended, or as it is after `seconds`. Waiting keeps a place alive."""
    group = group_named(operator, name)
    due = time.monotonic() + seconds

    def settled() -> bool:
        lease = group.record.find(lease_id)
        return lease is None or lease.stage not in _UNSETTLED or operator.stopping.is_set()

    while True:
        _hear_of(group, lease_id)
        left = due - time.monotonic()
        if left <= 0 or await operator.bell.wait_for(settled, min(left, _HEARD)):
            return view_of(operator, group, lease_id)


def _hear_of(group: Group, lease_id: str) -> None:
    if any(waiting.id == lease_id for waiting in group.record.queue):
        group.renewed[lease_id] = time.monotonic()


async def renew_lease(operator: Operator, name: str, lease_id: str, asked: Asked, ttl: float | None = None) -> Lease:
    """Hear of a holder, who may want another time to live. Raises STALE_EPOCH when the lease is over."""
    group = group_named(operator, name)
    async with group.lock:
        _refuse_older(group.record, lease_id, asked)
        record = _changed(leases.renew(group.record, lease_id, asked.epoch), group)
        record = leases.with_ttl(record, lease_id, ttl) if ttl else record
        group.renewed[lease_id] = time.monotonic()
        await _save(operator, group, record)
    operator.queue.add(name)
    return view_of(operator, group, lease_id)


async def release_lease(operator: Operator, name: str, lease_id: str, asked: Asked) -> Lease:
    """Give a lease back, or leave the queue."""
    group = group_named(operator, name)
    async with group.lock:
        _refuse_older(group.record, lease_id, asked)
        answer = leases.release(group.record, lease_id, operator.settings.reclaim_deadline)
        await _save(operator, group, _changed(answer, group))
    return view_of(operator, group, lease_id)


def _refuse_older(record: GroupRecord, lease_id: str, asked: Asked) -> None:
    """Refuse a holder of old, also one of whom nothing is known any more. A place in the queue has no epoch yet."""
    lease = record.find(lease_id)
    over = lease is not None and (lease in record.queue or lease.stage in leases.ENDED)
    if not over and asked.epoch is not None and asked.epoch < record.epoch:
        raise leases.stale(record, asked.epoch).error()


# lend and reclaim


async def lend(operator: Operator, name: str, request: LendRequest, asked: Asked) -> Operation:
    """Put every server of a group to sleep, measured."""
    drain = request.drain.timeout if request.drain else 0.0
    servers = [server.spec.sleep.drain.timeout.seconds for server in operator.servers_of(name)]
    deadline = asked.deadline or operator.settings.lend_deadline + max([drain, *servers])

    def change(record: GroupRecord, operation: str) -> GroupRecord | Already | Refusal:
        return leases.lend(record, request, operation, deadline)

    async def already(group: Group) -> Reading:
        return lend_result(operator.world(group, await operator.trainer(group)))

    return await _operate(operator, name, Work("lend", request, asked, change, already))


async def reclaim(operator: Operator, name: str, request: ReclaimRequest, asked: Asked) -> Operation:
    """Bring every server of a group back, with a published version or with the old weights."""
    default = f"{operator.driver.handoff(name)}/v{request.version}" if request.version else None
    intent = ReturnIntent(
        version=request.version,
        source=request.source.path if request.source else default,
        canary=request.canary,
        deadline=asked.deadline or operator.settings.reclaim_deadline,
    )

    def change(record: GroupRecord, operation: str) -> GroupRecord | Already | Refusal:
        if request.version is not None:
            handoffs.require_one(name, operator.ways_of(name))
        return leases.reclaim(record, request, intent.model_copy(update={"operation": operation}))

    return await _operate(operator, name, Work("reclaim", request, asked, change, _nothing))


async def _nothing(_group: Group) -> Reading | None:
    return None


@dataclass(frozen=True)
class Work:
    """An operation on a group: how it changes the record, and what is answered when nothing is to be done."""

    verb: str
    request: LendRequest | ReclaimRequest
    asked: Asked
    change: Callable[[GroupRecord, str], GroupRecord | Already | Refusal]
    already: Callable[[Group], Awaitable[Reading | None]]


async def _operate(operator: Operator, name: str, work: Work) -> Operation:
    """Accept an operation once. The operation is durable before the intent: a crash between leaves one to answer."""
    group = group_named(operator, name)
    digest = fingerprint(work.verb, name, work.request)
    async with group.lock:
        if work.asked.key and (same := operator.operations.repeated(work.asked.key, digest)):
            return same
        if refusal := leases.check_epoch(group.record, work.asked.epoch):
            raise refusal.error()
        identity = work.asked.key or uuid.uuid4().hex
        answer = work.change(group.record, identity)
        if isinstance(answer, Refusal):
            raise answer.error()
        operation = await operator.operations.begin(identity, work.verb, name, digest)
        if isinstance(answer, Already):
            await operator.operations.finish(identity, await work.already(group), noop=True)
        else:
            await _save(operator, group, answer)
    return operator.operations.find(identity) or operation


def _changed(answer: GroupRecord | Already | Refusal, group: Group) -> GroupRecord:
    if isinstance(answer, Refusal):
        raise answer.error()
    return group.record if isinstance(answer, Already) else answer


async def _save(operator: Operator, group: Group, record: GroupRecord) -> None:
    if record != group.record:
        await operator.save(group, record)
        operator.changed(record.group)


__all__ = ["GROUP_VERBS", "Asked", "lend", "reclaim", "release_lease", "renew_lease", "request_lease", "wait_for_lease"]
