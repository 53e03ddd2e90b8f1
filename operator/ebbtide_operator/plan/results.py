"""The answers of lend and reclaim, put together from what the members measured."""

from __future__ import annotations

from collections.abc import Iterable

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Phase, PhaseTiming
from ebbtide_api.verbs import (
    DeviceRelease,
    LeaseStage,
    LendResult,
    MemberRelease,
    MemberReturn,
    Operation,
    ReclaimResult,
    ResumeResult,
    SleepResult,
    Verb,
)
from pydantic import ValidationError

from .actions import Finish
from .keys import answers_to, base, scope
from .lending import sleep_base
from .memory import devices
from .record import LeaseRecord
from .world import MemberView, World


def finishes(world: World) -> tuple[Finish, ...]:
    """Return the answers that the record allows: a lend is told only once its new owner is on disk.

    An operation that the record does not know of was accepted just before a crash: it never began.
    """
    lease = world.record.lease
    waiting = lease.lend.operation if lease and lease.lend and not _tellable(world, lease) else None
    going = lease.back.operation if lease and lease.back else None
    ended = sorted(set(world.started) - {waiting, going})
    return tuple(_lend_answer(world, lease, name) or Finish(name, error=_NEVER_BEGAN) for name in ended)


def _tellable(world: World, lease: LeaseRecord) -> bool:
    # After a restart of ours what is free is not known before every member was heard of again.
    return lease.stage is not LeaseStage.LENDING and all(member.state is not None for member in world.wanted)


def _lend_answer(world: World, lease: LeaseRecord | None, operation: str) -> Finish | None:
    if lease is None or lease.lend is None or lease.lend.operation != operation:
        return None
    if lease.stage not in {LeaseStage.LENT, LeaseStage.RETURNING}:
        return None
    return Finish(operation, result=lend_result(world))


_NEVER_BEGAN = EbbtideError(
    ErrorCode.UNREACHABLE,
    "The operator was restarted before the operation began; nothing was done.",
    next_action="Call again with a new Idempotency-Key.",
).body()


def lend_result(world: World) -> LendResult:
    """Return what every member released, and the sums per device."""
    members = [MemberRelease(member=member.name, result=_release(world, member)) for member in world.wanted]
    return LendResult(
        epoch=world.record.epoch,
        devices=_sums(world, members),
        members=members,
        aborted_requests=sum(release.result.aborted_requests for release in members),
        phases=phases(_done_in(world, member, (Verb.SLEEP,)) for member in world.wanted),
    )


def _release(world: World, member: MemberView) -> SleepResult:
    operation = _operation(member, sleep_base(world, member))
    if operation is not None and operation.result:
        try:
            return SleepResult.model_validate(operation.result)
        except ValidationError:
            pass  # another version's result: say what the state says
    return _released_already(member)


def _released_already(member: MemberView) -> SleepResult:
    state = member.state
    held = [
        DeviceRelease(
            id=device.id,
            freed_mib=0,
            residual_mib=device.used_mib,
            free_mib=device.free_mib if device.total_mib else None,
        )
        for device in (state.devices if state else [])
    ]
    level = int(state.level) if state and state.level else 0
    return SleepResult(level=level, devices=held)


def _sums(world: World, members: Iterable[MemberRelease]) -> list[DeviceRelease]:
    at = {member.name: member for member in world.wanted}
    parts = [
        device.model_copy(update={"id": world.device_of(at[member.member], device.id)})
        for member in members
        for device in member.result.devices
    ]
    known = devices(world)
    return [
        DeviceRelease(
            id=name,
            freed_mib=sum(part.freed_mib for part in parts if part.id == name),
            residual_mib=sum(part.residual_mib for part in parts if part.id == name),
            free_mib=max(0.0, device.free_mib) if device.budget_mib and device.is_measured else None,
        )
        for name, device in known.items()
    ]


# Not the grant: it answers when the launch is allowed, so its time is not that of a start.
_WAY_BACK = (
    Verb.WAKE_WEIGHTS,
    Verb.BEGIN_UPDATE,
    Verb.ABORT_UPDATE,
    Verb.RELOAD,
    Verb.COMMIT_UPDATE,
    Verb.WAKE_KV,
    Verb.RESUME,
)


def reclaim_result(world: World, epoch: int) -> ReclaimResult:
    """Return the version that serves on every member."""
    members = [MemberReturn(member=member.name, result=_resumed(world, member)) for member in world.wanted]
    return ReclaimResult(
        epoch=epoch,
        weight_version=min((member.result.weight_version for member in members), default=0),
        members=members,
        phases=phases(_done_in(world, member, _WAY_BACK) for member in world.wanted),
    )


def _resumed(world: World, member: MemberView) -> ResumeResult:
    version = member.state.committed_version if member.state else 0
    boot = member.state.boot if member.state else 0
    operation = _operation(member, base(Verb.RESUME, scope(world.record), boot, version))
    if operation is not None and operation.result:
        try:
            return ResumeResult.model_validate(operation.result)
        except ValidationError:
            pass  # another version's result: say what the state says
    state = member.state
    return ResumeResult(weight_version=version, cache_epoch=state.cache_epoch if state else 0)


def _operation(member: MemberView, call_base: str) -> Operation | None:
    answered = [outcome.operation for outcome in member.answers(call_base) if outcome.operation and not outcome.error]
    return answered[-1] if answered else None


def phases(members: Iterable[Iterable[Operation]]) -> list[PhaseTiming]:
    """Return the time of each phase: of the slowest member, since members move at the same time."""
    slowest: dict[Phase, float] = {}
    for operations in members:
        for phase, ms in _times(operations).items():
            slowest[phase] = max(slowest.get(phase, 0.0), ms)
    return [PhaseTiming(phase=phase, ms=ms) for phase, ms in slowest.items()]


def _times(operations: Iterable[Operation]) -> dict[Phase, float]:
    times: dict[Phase, float] = {}
    for operation in operations:
        for timing in operation.phases:
            times[timing.phase] = times.get(timing.phase, 0.0) + timing.ms
    return times


def _done_in(world: World, member: MemberView, verbs: Iterable[Verb]) -> list[Operation]:
    intent = scope(world.record)
    return [one.operation for verb in verbs for one in answers_to(member, verb, intent) if one.operation]
