"""What callers may do to a group's lease: pure functions of the record and the request.

Each returns the new record, or says why not. Whether time passed is the business of stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import LeaseStage, LendRequest, ReclaimRequest

from .record import ENGINE, GroupRecord, LeaseRecord, LendIntent, ReturnIntent

ENDED = frozenset({LeaseStage.RELEASED, LeaseStage.CANCELLED})
HOLDS = frozenset(LeaseStage) - ENDED - {LeaseStage.QUEUED}


@dataclass(frozen=True)
class Refusal:
    """Why a call changes nothing."""

    code: ErrorCode
    message: str
    details: dict[str, Any] = field(default_factory=dict)

    def error(self) -> EbbtideError:
        """Return the refusal as an error for the edge to raise."""
        return EbbtideError(self.code, self.message, **self.details)


@dataclass(frozen=True)
class Already:
    """The call's goal is true: nothing changes."""


def enqueue(record: GroupRecord, asked: LeaseRecord) -> GroupRecord | Already | Refusal:
    """Put a request at the end of the queue. The same id with the same body is the same request."""
    known = record.find(asked.id)
    if known is not None:
        if known.fingerprint == asked.fingerprint:
            return Already()
        return Refusal(ErrorCode.OPERATION_MISMATCH, f"lease {asked.id} was asked for with another body")
    if asked.holder == ENGINE:
        return Refusal(ErrorCode.INVALID_REQUEST, f"a holder cannot be called {ENGINE!r}", {"field": "holder"})
    return record.model_copy(update={"queue": (*record.queue, asked)})


def promote(record: GroupRecord) -> GroupRecord | None:
    """Grant the lease to the head of the queue, one epoch on. None while somebody holds it or nobody waits."""
    if record.lease is not None or not record.queue:
        return None
    head, *rest = record.queue
    epoch = record.epoch + 1
    granted = head.model_copy(update={"stage": LeaseStage.GRANTED, "epoch": epoch})
    return record.model_copy(update={"epoch": epoch, "lease": granted, "queue": tuple(rest)})


def check_epoch(record: GroupRecord, epoch: int | None) -> Refusal | None:
    """Refuse a caller who does not hold the lease now."""
    if epoch is not None and epoch != record.epoch:
        return stale(record, epoch)
    if epoch is None or record.lease is None:
        holder = record.lease.holder if record.lease else "nobody"
        return Refusal(ErrorCode.NOT_LEASE_HOLDER, f"group {record.group} is held by {holder}", {"group": record.group})
    return None


def stale(record: GroupRecord, epoch: int) -> Refusal:
    """Refuse an epoch that is not the group's."""
    message = f"epoch {epoch} is not group {record.group}'s epoch, which is {record.epoch}"
    return Refusal(ErrorCode.STALE_EPOCH, message, {"group": record.group, "epoch": record.epoch})


def renew(record: GroupRecord, lease_id: str, epoch: int | None) -> GroupRecord | Already | Refusal:
    """Hear of a holder. A lost owner whose devices nobody took yet is found again."""
    lease = record.find(lease_id)
    if lease is None:
        return _unknown(record, lease_id)
    if lease in record.past or (lease.stage in HOLDS and (epoch or lease.epoch) != record.epoch):
        return stale(record, epoch or lease.epoch)
    if lease.stage is LeaseStage.OWNER_LOST:
        return record.with_lease(stage=LeaseStage.LENT)
    return Already()


def with_ttl(record: GroupRecord, lease_id: str, ttl: float) -> GroupRecord:
    """Return the record with another time to live for a lease that is held or waits."""

    def changed(lease: LeaseRecord) -> LeaseRecord:
        return lease.model_copy(update={"ttl_seconds": ttl}) if lease.id == lease_id else lease

    lease, queue = record.lease, tuple(changed(waiting) for waiting in record.queue)
    return record.model_copy(update={"lease": changed(lease) if lease else None, "queue": queue})


def _unknown(record: GroupRecord, lease_id: str) -> Refusal:
    return Refusal(ErrorCode.NOT_FOUND, f"group {record.group} knows no lease {lease_id}", {"lease": lease_id})


def lend(record: GroupRecord, request: LendRequest, operation: str, deadline: float) -> GroupRecord | Already | Refusal:
    """Ask for every server of the group to sleep."""
    lease = record.lease
    if lease is None:
        return check_epoch(record, None) or Already()
    match lease.stage:
        case LeaseStage.GRANTED if not lease.ending:
            intent = LendIntent(operation=operation, drain=request.drain, level=request.level, deadline=deadline)
            changed = record.with_lease(stage=LeaseStage.LENDING, lend=intent)
            return changed.model_copy(update={"manual": frozenset()})
        case LeaseStage.LENT:
            return Already()
        case LeaseStage.LENDING:
            return _in_progress(record, lease.lend.operation if lease.lend else "")
        case _:
            return _illegal(record, "lend", lease)


def reclaim(record: GroupRecord, request: ReclaimRequest, intent: ReturnIntent) -> GroupRecord | Refusal:
    """Ask for every server of the group to serve again."""
    lease = record.lease
    if lease is None:
        return check_epoch(record, None) or _unknown(record, "")
    if refusal := _refuse_version(record, request):
        return refusal
    match lease.stage:
        case LeaseStage.LENT | LeaseStage.OWNER_LOST:
            changed = record.with_lease(stage=LeaseStage.RETURNING, back=intent)
            return changed.model_copy(update={"manual": frozenset()})
        case LeaseStage.RETURNING if lease.back and lease.back.operation is None and not lease.back.failure:
            return _join(record, lease.back, intent)
        case LeaseStage.LENDING:
            return _in_progress(record, lease.lend.operation if lease.lend else "")
        case LeaseStage.RETURNING if lease.back and lease.back.operation:
            return _in_progress(record, lease.back.operation)
        case _:
            return _illegal(record, "reclaim", lease)


def _join(record: GroupRecord, back: ReturnIntent, intent: ReturnIntent) -> GroupRecord | Refusal:
    if intent.version not in (None, back.version):
        message = f"group {record.group} is on its way back with version {back.version or record.serve.version}"
        return Refusal(ErrorCode.ILLEGAL_TRANSITION, message, {"group": record.group})
    return record.with_lease(back=back.model_copy(update={"operation": intent.operation, "deadline": intent.deadline}))


def _refuse_version(record: GroupRecord, request: ReclaimRequest) -> Refusal | None:
    if request.source is not None and request.version is None:
        return Refusal(ErrorCode.INVALID_REQUEST, "source needs a version", {"field": "version"})
    served = record.serve.version
    if request.version is None or request.version > served:
        return None
    numbers = {"version": request.version, "committed": served}
    return Refusal(ErrorCode.VERSION_REGRESSION, f"version {request.version} is not above {served}", numbers)


def _in_progress(record: GroupRecord, operation: str) -> Refusal:
    message = f"group {record.group} is busy with operation {operation}"
    return Refusal(ErrorCode.OPERATION_IN_PROGRESS, message, {"operation": operation})


def _illegal(record: GroupRecord, verb: str, lease: LeaseRecord) -> Refusal:
    message = f"cannot {verb} group {record.group} while its lease is {lease.stage}"
    return Refusal(ErrorCode.ILLEGAL_TRANSITION, message, {"from": lease.stage.value, "group": record.group})


def release(record: GroupRecord, lease_id: str, deadline: float) -> GroupRecord | Already | Refusal:
    """Give back: leave the queue, end an unused lease, stop a lend, or bring everything back with the old weights."""
    lease = record.find(lease_id)
    if lease is None:
        return _unknown(record, lease_id)
    if lease in record.queue:
        return record.retire(lease, LeaseStage.CANCELLED)
    if lease in record.past:
        return Already() if lease.stage in ENDED else stale(record, lease.epoch)
    return _release_current(record, lease, deadline)


def _release_current(record: GroupRecord, lease: LeaseRecord, deadline: float) -> GroupRecord | Already | Refusal:
    match lease.stage:
        case LeaseStage.GRANTED:
            return record.end_lease(LeaseStage.RELEASED)
        case LeaseStage.LENDING:
            return record.with_lease(ending=True)
        case LeaseStage.LENT | LeaseStage.OWNER_LOST if lease.epoch == record.epoch:
            changed = record.with_lease(stage=LeaseStage.RETURNING, back=ReturnIntent(deadline=deadline))
            return changed.model_copy(update={"manual": frozenset()})
        case LeaseStage.RETURNING:
            return Already()
        case _:
            return stale(record, lease.epoch)
