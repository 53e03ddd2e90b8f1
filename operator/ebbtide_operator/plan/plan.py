"""plan(): from what is asked and what was observed to what to do now. Pure, and complete in itself each time.

Nothing is remembered between two calls: the record is the intent, the rest was observed. When the world is as it was
asked for, the plan has no actions; a plan that is carried out twice does nothing the second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage

from .actions import Action, EndMember, EnsureMember, Plan, Progress, Save
from .conditions import Situation, conditions
from .group import Moves, moves
from .idle import rest_in
from .lending import HOLD_LEND_MEMORY, HOLD_UNDO, UNDO_DEADLINE, lend_holds, slept
from .lost import unmeasured
from .member import Done
from .record import GroupRecord
from .results import finishes
from .returning import return_hold, return_holds
from .sharing import turn_ends_in, turn_holds
from .stages import expires_in, settle
from .turn import Turn
from .why import explain
from .world import World

MEMORY_POLL = 0.1
"""Seconds between two looks at memory that somebody shall free: nothing tells us when it does."""
LIFE_POLL = 1.0
"""Seconds between two looks at a lost holder whose end alone frees its memory: that may take hours."""

_FROZEN = frozenset({LeaseStage.LENDING, LeaseStage.LENT, LeaseStage.RETURNING, LeaseStage.OWNER_LOST})


def plan(world: World, now: float) -> Plan:
    """Return what to do now for one group, what to say of its servers, and when to look again."""
    before = world.record
    world, turns = settle(world, now)
    moved = moves(world, now)
    situations = {name: Situation(world, server, moved, now) for name, server in world.servers.items()}
    return Plan(
        actions=(*_intent(before, world, turns), *finishes(world), *_processes(world), *moved.calls),
        conditions=MappingProxyType({name: conditions(at) for name, at in situations.items()}),
        progress=MappingProxyType(_progress(world, moved)),
        holds=lend_holds(world) | return_holds(world) | turn_holds(world) | frozenset(moved.blocked),
        why=MappingProxyType({name: explain(at) for name, at in situations.items()}),
        rests=frozenset(moved.rests),
        requeue_after=_requeue(world, moved, now),
    )


def _intent(before: GroupRecord, world: World, turns: list[Turn]) -> Iterable[Action]:
    answers = [answer for turn in turns for answer in turn.before]
    save = [Save(world.record)] if world.record != before else []
    return [*answers, *save, *(retire for turn in turns for retire in turn.after)]


def _processes(world: World) -> Iterable[Action]:
    ensure = [
        EnsureMember(member.name, member.server, member.ordinal)
        for member in world.wanted
        if not member.managed or (member.outdated and not _frozen(world))
    ]
    return [*(EndMember(member.name) for member in world.unwanted), *ensure]


def _frozen(world: World) -> bool:
    """A change of spec restarts engines: not while their memory is somebody else's, or on its way."""
    return world.record.lease is not None and world.record.lease.stage in _FROZEN


def _progress(world: World, moved: Moves) -> dict[str, Progress]:
    lease = world.record.lease
    if lease is None:
        return {}
    if lease.stage is LeaseStage.LENDING and lease.lend and world.is_open(lease.lend.operation):
        return {lease.lend.operation: _lend_progress(world)}
    if lease.back and lease.back.operation and world.is_open(lease.back.operation):
        return {lease.back.operation: _return_progress(world, moved)}
    return {}


def _lend_progress(world: World) -> Progress:
    done = sum(slept(world, member) for member in world.wanted)
    return Progress(f"{done} of {len(world.wanted)} members measured asleep", _slowest(world))


def _return_progress(world: World, moved: Moves) -> Progress:
    done = sum(isinstance(step, Done) for step in moved.steps.values())
    text = f"{done} of {len(world.wanted)} members ready"
    if waits := next((error.message for error in moved.blocked.values()), ""):
        text += f"; waiting for memory: {waits}"
    return Progress(text, _slowest(world))


def _slowest(world: World) -> Phase | None:
    known = [member.state.phase for member in world.wanted if member.state]
    return next((phase for phase in known if phase is not Phase.RUNNING), known[0] if known else None)


def _requeue(world: World, moved: Moves, now: float) -> float | None:
    record = world.record
    leases = [*([record.lease] if record.lease else []), *record.queue]
    waits = [wait for lease in leases if (wait := expires_in(world, lease, now)) > 0]
    if moved.retry_in is not None:
        waits.append(moved.retry_in)
    if _polls_memory(world, moved):
        waits.append(LIFE_POLL if unmeasured(world) and not moved.blocked else MEMORY_POLL)
    waits += [*_deadlines(world, now), *rest_in(world, now), *turn_ends_in(world, now)]
    return min(waits, default=None)


def _polls_memory(world: World, moved: Moves) -> bool:
    lost = world.record.lease is not None and world.record.lease.stage is LeaseStage.OWNER_LOST
    return bool(moved.blocked or HOLD_LEND_MEMORY in lend_holds(world) or lost)


def _deadlines(world: World, now: float) -> list[float]:
    lease = world.record.lease
    if lease and lease.stage is LeaseStage.LENDING and lease.lend and lease.lend.failure:
        since, allowed = world.held.get(HOLD_UNDO, now), UNDO_DEADLINE
    elif lease and lease.stage is LeaseStage.LENDING and lease.lend:
        since, allowed = world.started.get(lease.lend.operation, now), lease.lend.deadline
    elif lease and lease.stage is LeaseStage.RETURNING and lease.back:
        since, allowed = world.held.get(return_hold(lease.back), now), lease.back.deadline
    else:
        return []
    return [max(0.05, since + allowed - now)]
