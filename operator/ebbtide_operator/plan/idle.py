"""Servers that nobody asks: whether one rests now, how deep, and when to look again. Derived each time, like all else.

A server rests when the last request of every member that shall serve ended long enough ago, and no request waits. So a
request that waits at one member wakes them all, and a member that was just woken is not idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage, Verb

from .keys import verb_of
from .lending import error_of
from .world import MemberView, ServerView, World

_RESTING = frozenset(
    {Phase.RUNNING, Phase.DRAINING, Phase.SUSPENDING, Phase.ASLEEP, Phase.WAKING_WEIGHTS, Phase.WEIGHTS_RESIDENT}
)
"""Where a member may be that falls asleep, sleeps, or sleeps deeper. An engine that must start again comes up first:
nobody would hear a request for it."""


@dataclass(frozen=True)
class Rest:
    """How a server rests: `deeper`, without parked weights; or because it is the `turn` of another one."""

    deeper: bool = False
    turn: str = ""


def rest_of(world: World, server: ServerView, now: float) -> Rest | None:
    """Return how a server rests now, or None when it shall serve."""
    if server.idle is None or not _may_rest(world, server):
        return None
    members = _serving(world, server)
    times = [idle for member in members if (idle := _idle(member, now)) is not None]
    if len(times) < len(members) or min(times) < server.idle.after:
        return None
    deeper = server.idle.deeper is not None and min(times) >= server.idle.deeper
    return Rest(deeper and not any(_refuses_to_discard(member) for member in members))


def _may_rest(world: World, server: ServerView) -> bool:
    lease = world.record.lease
    return (
        server.awake > 0
        and server.name not in world.record.manual
        and (lease is None or lease.stage is LeaseStage.GRANTED)
    )


def _serving(world: World, server: ServerView) -> list[MemberView]:
    return [member for member in world.members_of(server.name) if member.ordinal < server.awake]


def _idle(member: MemberView, now: float) -> float | None:
    """Return how long nobody has asked a member, as far as is known; None when somebody waits, or it must start."""
    state = member.state
    if state is None or state.idle_seconds is None or state.requested or state.phase not in _RESTING:
        return None
    return state.idle_seconds + (max(0.0, now - member.heard) if member.heard is not None else 0.0)


def _refuses_to_discard(member: MemberView) -> bool:
    errors = [error_of(outcome) for outcome in member.outcomes if verb_of(outcome.base) == Verb.SLEEP]
    return any(error.code is ErrorCode.LEVEL_UNSUPPORTED for error in errors if error)


def rest_in(world: World, now: float) -> list[float]:
    """Return the seconds until each server that may rest would, or would rest deeper, if nobody asks."""
    waits = []
    for server in world.servers.values():
        times = [_idle(member, now) for member in _serving(world, server)]
        known = [idle for idle in times if idle is not None]
        if server.idle and known and len(known) == len(times) and _may_rest(world, server):
            marks = (server.idle.after, server.idle.deeper)
            waits += [mark - min(known) for mark in marks if mark is not None and mark > min(known)]
    return waits
