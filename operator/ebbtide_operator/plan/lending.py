"""Lending, judged: has it failed for one member, is everything lent, has a failed lend been undone."""

from __future__ import annotations

from ebbtide_api.errors import ErrorBody, ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage, OperationStatus, Verb

from .keys import answers_to, base, scope
from .memory import lacking
from .record import GroupRecord, LeaseRecord, LendIntent
from .turn import late, named
from .world import MemberView, Outcome, World

MEMORY_DEADLINE = 15.0
"""Seconds that a device may take to become free before the operation that waits for it fails."""

TRANSIENT = frozenset(
    {
        ErrorCode.OPERATION_IN_PROGRESS,
        ErrorCode.INSTANCE_REPLACED,
        ErrorCode.STALE_EPOCH,
        ErrorCode.UNREACHABLE,
        ErrorCode.ENGINE_STARTING,
        ErrorCode.DEVICE_NOT_FREE,
        ErrorCode.INTERNAL,
    }
)
"""Answers that say nothing about the request: it is made again."""

UNDO_DEADLINE = 60.0
"""Seconds after which a failed lend is answered, even if some member is not back yet."""

HOLD_LEND_MEMORY = "memory:lend"
HOLD_UNDO = "lend:undo"
_OUT_OF_REACH = frozenset(
    {Phase.FAULTED, Phase.RECOVERING, Phase.PENDING_DEVICE, Phase.STARTING, Phase.UNKNOWN, Phase.SUSPENDING}
)


def sleep_base(world: World, member: MemberView) -> str:
    """Return the key of a member's sleep in the current intent."""
    boot = member.state.boot if member.state else 0
    return base(Verb.SLEEP, scope(world.record), boot)


def error_of(outcome: Outcome) -> ErrorBody | None:
    """Return why a call failed, or None when it succeeded."""
    if outcome.error is not None:
        return outcome.error
    operation = outcome.operation
    if operation is None or operation.status is not OperationStatus.FAILED:
        return None
    return operation.error or ErrorBody(code=ErrorCode.INTERNAL, message=f"{operation.verb} failed without a reason")


def verdict(outcome: Outcome) -> ErrorBody | None:
    """Return why a call failed for good, or None when it succeeded or is to be made again."""
    error = error_of(outcome)
    return None if error is None or error.code in TRANSIENT else error


def fenced(record: GroupRecord, member: MemberView) -> bool:
    """Say whether a member's agent knows the group's epoch: a grant that is still on its way to it has an older one."""
    return member.state is not None and member.state.epoch >= record.epoch


def slept(world: World, member: MemberView) -> bool:
    """Say whether a member holds nothing, by its state and by the answer to the call of this lend."""
    if not member.released or member.busy:
        return False
    if member.state is not None and member.state.phase is Phase.PENDING_DEVICE:
        return fenced(world.record, member)
    return any(error_of(outcome) is None for outcome in member.answers(sleep_base(world, member)))


def lend_failure(world: World, intent: LendIntent, now: float) -> ErrorBody | None:
    """Return why the lend cannot succeed any more: a member refused, the device is not free, or time is up."""
    for member in world.wanted:
        # Whatever launch of the engine it came from: one that died of its sleep has failed, though it holds nothing.
        for outcome in answers_to(member, Verb.SLEEP, scope(world.record)):
            if error := verdict(outcome):
                return named(member, error)
    waiting = [member for member in world.wanted if not slept(world, member)]
    if now - world.started.get(intent.operation, now) > intent.deadline:
        return late("the lend", intent.deadline, waiting_for(waiting) or "the device is not free")
    if not waiting and (short := shortage(world)):
        since = world.held.get(HOLD_LEND_MEMORY, now)
        return short if now - since > MEMORY_DEADLINE else None
    return None


def waiting_for(members: list[MemberView]) -> str:
    """Say where the members are that have not arrived."""
    return ", ".join(
        f"{member.name} is {member.state.phase}" if member.state else f"{member.name} does not answer"
        for member in members
    )


def shortage(world: World) -> ErrorBody | None:
    """Say why the holder cannot have what it needs yet."""
    lease = world.record.lease
    return lacking(world, lease.need_mib) if lease and lease.need_mib is not None else None


def lend_holds(world: World) -> frozenset[str]:
    """Return what a lend waits for besides its members."""
    lease = world.record.lease
    if lease is None or lease.stage is not LeaseStage.LENDING or lease.lend is None:
        return frozenset()
    if lease.lend.failure:
        return frozenset({HOLD_UNDO})
    asleep = all(slept(world, member) for member in world.wanted)
    return frozenset({HOLD_LEND_MEMORY}) if asleep and shortage(world) else frozenset()


def lent(world: World, lease: LeaseRecord) -> bool:
    """Say whether the trainer may become the owner: every member measured free, and enough for its need."""
    if not world.wanted or world.unwanted:
        # A member that is being ended holds its memory until it is gone.
        return False
    if lease.stage is LeaseStage.GRANTED:
        return _put_to_sleep_by_hand(world)
    if lease.stage is not LeaseStage.LENDING or lease.lend is None or lease.lend.failure:
        return False
    return all(slept(world, member) for member in world.wanted) and shortage(world) is None


def _put_to_sleep_by_hand(world: World) -> bool:
    """A holder that lends step by step has lent when all of it is measured asleep."""
    manual = world.record.manual
    return set(world.servers) <= manual and all(_held_by_nobody(world, member) for member in world.wanted)


def _held_by_nobody(world: World, member: MemberView) -> bool:
    if not member.released or member.busy:
        return False
    asleep = member.state is not None and member.state.phase is Phase.ASLEEP
    return asleep or fenced(world.record, member)


def lend_settled(world: World, now: float) -> bool:
    """Say whether a failed lend has been undone, as far as its members can come back now, or at all in time."""
    overdue = now - world.held.get(HOLD_UNDO, now) > UNDO_DEADLINE
    return overdue or all(_is_back(world, member) for member in world.wanted)


def _is_back(world: World, member: MemberView) -> bool:
    if member.state is None or world.is_as_asked(member):
        return True
    # A member that was restarted comes back by itself, later: nobody has to wait for a model to load.
    return not member.busy and member.state.operation is None and member.state.phase in _OUT_OF_REACH
