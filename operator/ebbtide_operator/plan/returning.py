"""Returning, judged: is the version refused, decided, served; may the way back be given up.

A version is taken in two phases. Until every member has loaded it, one refusal brings the old weights back on all.
Once it is decided (Serve names it) nothing goes back: a member that fails is restarted and loads it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from ebbtide_api.errors import ErrorBody, ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage, Verb

from .actions import Finish, Retire
from .group import HOLD_WEIGHTS, moves
from .keys import answers_to, scope
from .lending import MEMORY_DEADLINE, verdict, waiting_for
from .record import ReturnIntent, Serve
from .results import reclaim_result
from .turn import Turn, late, named
from .world import MemberView, World

HOLD_RETURN = "return"
HOLD_UNDO = "return:old weights"


def return_hold(back: ReturnIntent) -> str:
    """Return what a way back is waited for as: bringing the old weights back has its own time."""
    return HOLD_UNDO if back.failure else HOLD_RETURN


def refused(world: World) -> ErrorBody | None:
    """Return why the published version is not taken: the first refusal of a member, by name."""
    version = world.record.loading
    if version is None:
        return None
    for member in world.wanted:
        # A refusal counts whatever launch of the engine it came from: a version that broke one is refused.
        for outcome in answers_to(member, Verb.BEGIN_UPDATE, scope(world.record), version):
            if error := verdict(outcome):
                return named(member, error)
    return None


def decided(world: World, back: ReturnIntent) -> Serve | None:
    """Return what must serve from now on, once every member has loaded it."""
    version = world.record.loading
    if version is None or not world.wanted or not all(_has_loaded(member, version) for member in world.wanted):
        return None
    return Serve(version=version, source=back.source or "", canary=back.canary)


def _has_loaded(member: MemberView, version: int) -> bool:
    state = member.state
    if state is None or member.busy or state.operation is not None:
        return False
    return state.committed_version >= version or (state.phase is Phase.UPDATING and state.pending_version == version)


def give_up(world: World, back: ReturnIntent, now: float) -> Turn | None:
    """Answer an operation that cannot end well in time. The way back goes on, or has not begun."""
    blocked = moves(world, now).blocked
    if overdue := _overdue(world, back, blocked, now):
        return _not_free(world, back, overdue, blocked[overdue])
    elapsed = now - world.held.get(return_hold(back), now)
    if blocked or elapsed <= back.deadline:
        return None
    error = late("the way back", back.deadline, waiting_for(_absent(world)) or "a member waits for the others")
    if world.record.loading is not None:
        return Turn(world.record.with_lease(back=back.model_copy(update={"failure": error})))
    # Nobody waits for memory: the trainer has given all of it back, and the members come back by themselves.
    return _end(world, back, back.failure or error)


def _overdue(world: World, back: ReturnIntent, blocked: Iterable[str], now: float) -> str | None:
    if not world.is_open(back.operation):
        return None
    asked = world.started.get(back.operation or "", now)
    return next((hold for hold in blocked if now - max(asked, world.held.get(hold, now)) > MEMORY_DEADLINE), None)


def _not_free(world: World, back: ReturnIntent, hold: str, error: ErrorBody) -> Turn:
    if hold == HOLD_WEIGHTS and all(member.released for member in world.wanted):
        # Nothing was touched: the trainer still owns the devices, and may try again.
        return Turn(world.record.with_lease(stage=LeaseStage.LENT, back=None), _answer(world, back, error))
    detached = back.model_copy(update={"operation": None})
    return Turn(world.record.with_lease(back=detached), _answer(world, back, error))


def returned(world: World, back: ReturnIntent) -> Turn | None:
    """End the lease when every member serves what was decided, or when a canary says that it must not."""
    if error := _canary_failure(world):
        return _end(world, back, error)
    if world.record.loading is not None or _absent(world):
        return None
    return _end(world, back, back.failure)


def _canary_failure(world: World) -> ErrorBody | None:
    for member in world.wanted:
        for outcome in answers_to(member, Verb.RESUME, scope(world.record)):
            error = verdict(outcome)
            if error and error.code is ErrorCode.CANARY_FAILED:
                return named(member, error)
    return None


def _absent(world: World) -> list[MemberView]:
    return [member for member in world.wanted if not _is_back(world, member)]


def _is_back(world: World, member: MemberView) -> bool:
    state, serve = member.state, world.record.serve
    if state is None or member.busy or state.operation is not None:
        return False
    if serve.source in world.sources and state.committed_version < serve.version:
        return False
    return world.is_as_asked(member)


def _end(world: World, back: ReturnIntent, error: ErrorBody | None) -> Turn:
    record = world.record
    if back.canary and not back.failure:
        # A canary that failed must go on to fail: the gate does not open because the lease has ended.
        record = record.model_copy(update={"serve": record.serve.model_copy(update={"canary": back.canary})})
    everywhere = all(member.state and member.state.committed_version >= record.serve.version for member in world.wanted)
    # A version that was refused is published again or never: its files only fill the memory.
    published = max(record.serve.version, back.version or 0)
    retire = (Retire(published),) if everywhere and published else ()
    return Turn(record.end_lease(LeaseStage.RELEASED), _answer(world, back, error), retire)


def _answer(world: World, back: ReturnIntent, error: ErrorBody | None) -> tuple[Finish, ...]:
    if back.operation is None or not world.is_open(back.operation):
        return ()
    untouched = error is not None and error.code is ErrorCode.DEVICE_NOT_FREE
    result = None if untouched else reclaim_result(world, world.record.epoch + 1)
    return (Finish(back.operation, result=result, error=error),)


def return_holds(world: World) -> frozenset[str]:
    """Return what a way back waits for besides memory."""
    lease = world.record.lease
    waits = lease is not None and lease.stage is LeaseStage.RETURNING and lease.back is not None
    return frozenset({return_hold(lease.back)}) if waits and lease and lease.back else frozenset()
