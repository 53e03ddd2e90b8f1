"""How a group's intent moves on by itself: the ladder of a lease. Each rung returns the next record, or nothing.

    Queued -> Granted -> Lending -> Lent -> Returning -> (the engine's again, one epoch on)
                 ^          |        |
                 +-- undo --+        +-- expired --> OwnerLost --> measured free --> (the engine's again)

The owner changes on two rungs only: _lent, after every member was measured free, and GroupRecord.end_lease.
"""

from __future__ import annotations

from collections.abc import Callable

from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.state import KV, Phase, Weights
from ebbtide_api.verbs import LeaseStage

from . import lease as leases
from .actions import Finish
from .lending import lend_failure, lend_settled, lent
from .lost import unmeasured
from .memory import SLACK_MIB, devices, missing_need, size_of
from .record import ENGINE, LeaseRecord
from .returning import decided, give_up, refused, returned
from .turn import Turn
from .world import MemberView, World

_UNSETTLED = frozenset({Phase.UNKNOWN, Phase.FAULTED, Phase.RECOVERING})

Rung = Callable[[World, float], Turn | None]


def settle(world: World, now: float) -> tuple[World, list[Turn]]:
    """Climb until no rung applies; return the world with the record reached, and the turns taken."""
    turns: list[Turn] = []
    while turn := next((turn for rung in _LADDER if (turn := rung(world, now))), None):
        turns.append(turn)
        world = world.after(turn.record, {answer.operation for answer in turn.before})
    return world, turns


def expires_in(world: World, lease: LeaseRecord, now: float) -> float:
    """Return the seconds until a lease expires; a lease that we never heard of has its whole TTL."""
    return lease.ttl_seconds - (now - world.renewed.get(lease.id, now))


def expired(world: World, lease: LeaseRecord, now: float) -> bool:
    """Say whether nobody was heard of for the lease's TTL."""
    return expires_in(world, lease, now) <= 0


def _raise_epoch(world: World, now: float) -> Turn | None:
    """Agents that saw a higher epoch than ours mean that our record is not the newest: nobody's epoch holds."""
    record = world.record
    highest = max((member.state.epoch for member in world.members if member.state), default=0)
    if highest <= record.epoch:
        return None
    raised = record.model_copy(update={"epoch": highest + 1})
    if record.lease is None:
        return Turn(raised)
    if record.owner == ENGINE:
        ended = raised.retire(record.lease, LeaseStage.OWNER_LOST)
        return Turn(ended, _abandon(world, record.lease))
    return Turn(raised.with_lease(stage=LeaseStage.OWNER_LOST), _abandon(world, record.lease))


def _abandon(world: World, lease: LeaseRecord) -> tuple[Finish, ...]:
    operations = (lease.lend.operation if lease.lend else None, lease.back.operation if lease.back else None)
    error = EbbtideError(ErrorCode.STALE_EPOCH, f"the lease of {lease.holder} ended before the operation did").body()
    return tuple(Finish(operation, error=error) for operation in operations if operation and world.is_open(operation))


def _raise_version(world: World, now: float) -> Turn | None:
    """A version that a member committed was decided once, whatever the record says: versions never go back."""
    highest = max((member.state.committed_version for member in world.members if member.state), default=0)
    serve = world.record.serve
    if highest <= serve.version:
        return None
    raised = serve.model_copy(update={"version": highest, "source": "", "canary": None})
    return Turn(world.record.model_copy(update={"serve": raised}))


def _drop_from_queue(world: World, now: float) -> Turn | None:
    gone = next((lease for lease in world.record.queue if expired(world, lease, now)), None)
    return Turn(world.record.retire(gone, LeaseStage.CANCELLED)) if gone else None


def _promote(world: World, now: float) -> Turn | None:
    granted = leases.promote(world.record)
    return Turn(granted) if granted else None


def _expire(world: World, now: float) -> Turn | None:
    """A holder that was not heard of in time. What it had not got yet ends; what it has got is not free yet."""
    record, lease = world.record, world.record.lease
    if lease is None or not expired(world, lease, now):
        return None
    match lease.stage:
        case LeaseStage.GRANTED:
            return Turn(record.end_lease(LeaseStage.OWNER_LOST))
        case LeaseStage.LENDING if not lease.ending:
            return Turn(record.with_lease(ending=True))
        case LeaseStage.LENT:
            return Turn(record.with_lease(stage=LeaseStage.OWNER_LOST), _abandon(world, lease))
        case _:
            return None


def _take_over(world: World, now: float) -> Turn | None:
    """A lost owner's devices are the engine's again once its memory is measured free; a dead holder frees nothing."""
    lease = world.record.lease
    if lease is None or not world.is_lost or world.unsought or not _heard_of_all(world):
        return None
    awake = all(_is_awake(member) for member in world.wanted)
    if not awake and not (expired(world, lease, now) and _is_settled(world) and _is_free(world)):
        return None
    return Turn(world.record.end_lease(LeaseStage.OWNER_LOST))


def _heard_of_all(world: World) -> bool:
    return all(member.state is not None for member in world.wanted)


def _is_awake(member: MemberView) -> bool:
    """Say whether a member holds all its memory, so that nobody else can have got it."""
    state = member.state
    whole = state is not None and state.weights is Weights.RESIDENT and state.kv is KV.RESIDENT
    return whole and state is not None and state.phase not in _UNSETTLED


def _is_settled(world: World) -> bool:
    """Say whether what the members hold is known, and stays: it is what the holder's memory is compared with."""
    return all(member.state is not None and member.state.phase not in _UNSETTLED for member in world.wanted)


def _is_free(world: World) -> bool:
    used = world.trainer.used_mib or 0.0 if world.trainer else 0.0
    if world.trainer and not world.trainer.alive and used <= SLACK_MIB:
        return True
    if _is_unknown(world):
        return False
    found = devices(world)
    if used > SLACK_MIB and _in_the_dark(world):
        return False
    return all(need <= found[device].free_mib + SLACK_MIB for device, need in missing_need(world).items())


def _is_unknown(world: World) -> bool:
    """Say whether somebody lives who may hold the memory, and nobody can measure it."""
    return unmeasured(world) is not None


def _in_the_dark(world: World) -> bool:
    """Say whether an engine was never seen awake: what a holder leaves may be enough for it, or not."""
    unknown = [member for member in world.wanted if member.released and not size_of(world.record, member).weights]
    return any(world.server_of(member).budget_mib for member in unknown)


def _fail_lend(world: World, now: float) -> Turn | None:
    lease = world.record.lease
    if lease is None or lease.lend is None or lease.lend.failure or lease.stage is not LeaseStage.LENDING:
        return None
    failure = _stopped(lease) if lease.ending else lend_failure(world, lease.lend, now)
    if failure is None:
        return None
    return Turn(world.record.with_lease(lend=lease.lend.model_copy(update={"failure": failure})))


def _stopped(lease: LeaseRecord) -> ErrorBody:
    message = f"{lease.holder} gave the lease back, or was not heard of, before the memory was lent"
    return EbbtideError(ErrorCode.NOT_LEASE_HOLDER, message).body()


def _undo_lend(world: World, now: float) -> Turn | None:
    """A lend that failed is over when the other members are back. The owner never changed."""
    record, lease = world.record, world.record.lease
    if lease is None or lease.stage is not LeaseStage.LENDING or lease.lend is None or not lease.lend.failure:
        return None
    if not lend_settled(world, now):
        return None
    answer = Finish(lease.lend.operation, error=lease.lend.failure)
    before = (answer,) if world.is_open(lease.lend.operation) else ()
    if lease.ending:
        return Turn(record.end_lease(LeaseStage.RELEASED), before)
    return Turn(record.with_lease(stage=LeaseStage.GRANTED, lend=None), before)


def _lent(world: World, now: float) -> Turn | None:
    """The one rung on which a trainer becomes the owner: every member measured free, none failed."""
    record, lease = world.record, world.record.lease
    if lease is None or lease.ending or not lent(world, lease):
        return None
    sizes = {member.name: size_of(record, member) for member in world.wanted}
    changed = record.with_lease(stage=LeaseStage.LENT)
    return Turn(changed.model_copy(update={"owner": lease.holder, "sizes": sizes}))


def _refuse_update(world: World, now: float) -> Turn | None:
    """A version that one member refuses serves on none: the old weights come back."""
    lease = world.record.lease
    if lease is None or lease.back is None or not (failure := refused(world)):
        return None
    return Turn(world.record.with_lease(back=lease.back.model_copy(update={"failure": failure})))


def _decide(world: World, now: float) -> Turn | None:
    """Every member has loaded the version: it is decided before the first one commits, so a crash rolls forward."""
    lease = world.record.lease
    if lease is None or lease.back is None or not (serve := decided(world, lease.back)):
        return None
    return Turn(world.record.model_copy(update={"serve": serve}))


def _give_up(world: World, now: float) -> Turn | None:
    lease = world.record.lease
    if lease is None or lease.stage is not LeaseStage.RETURNING or lease.back is None:
        return None
    return give_up(world, lease.back, now)


def _return(world: World, now: float) -> Turn | None:
    lease = world.record.lease
    if lease is None or lease.stage is not LeaseStage.RETURNING or lease.back is None:
        return None
    return returned(world, lease.back)


_LADDER: tuple[Rung, ...] = (
    _raise_epoch,
    _raise_version,
    _drop_from_queue,
    _expire,
    _take_over,
    _fail_lend,
    _undo_lend,
    _lent,
    _refuse_update,
    _decide,
    _return,
    _give_up,
    _promote,
)
