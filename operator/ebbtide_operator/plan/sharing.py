"""Servers of a group that take turns: one of them is awake at most. Derived each time, like all else.

Whoever holds memory has the turn. A request at the gate of another one is a demand; so is an engine that must start,
since nobody hears a request for it. Whoever has waited longest is next, once the turn has lasted its minimum.
"""

from __future__ import annotations

from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage

from .world import RELEASED_PHASES, MemberView, ServerView, World


def has_turn(server: ServerView) -> str:
    """Return what a server's turn is held as: it lasts for as long as the server takes requests."""
    return f"turn:{server.name}"


def awaits_turn(server: ServerView) -> str:
    """Return what a server's demand is held as."""
    return f"demand:{server.name}"


def who_waits(world: World, now: float) -> dict[str, str]:
    """Return the servers that sleep because of others that take turns with them, each with who it waits for.

    Between two turns all of them sleep: the next one wakes when the last one was measured asleep.
    """
    servers = _sharing(world)
    if len(servers) < 2:
        return {}
    current = _current(world, servers)
    following = _next(world, servers, current, now)
    if current is None:
        turn = following or servers[0]
        return {server.name: turn.name for server in servers if server != turn}
    waits = {server.name: current.name for server in servers if server != current}
    return waits | {current.name: following.name} if following and turn_left(world, current, now) <= 0 else waits


def _sharing(world: World) -> list[ServerView]:
    lease = world.record.lease
    if lease is not None and lease.stage is not LeaseStage.GRANTED:
        return []
    servers = (server for _, server in sorted(world.servers.items()))
    return [one for one in servers if one.turns and one.awake > 0 and one.name not in world.record.manual]


def _current(world: World, servers: list[ServerView]) -> ServerView | None:
    """Return who holds memory: of several, which is no state to stay in, the one that has served longest."""
    holders = [server for server in servers if any(_holds(member) for member in world.members_of(server.name))]
    return min(holders, key=lambda server: world.held.get(has_turn(server), float("inf")), default=None)


def _next(world: World, servers: list[ServerView], current: ServerView | None, now: float) -> ServerView | None:
    waiting = [server for server in servers if server != current and _demands(world, server)]
    return min(waiting, key=lambda server: _since_demand(world, server, now), default=None)


def _holds(member: MemberView) -> bool:
    known = member.state or member.last
    return known is not None and known.phase not in RELEASED_PHASES


def _demands(world: World, server: ServerView) -> bool:
    states = [member.state for member in world.members_of(server.name) if member.state]
    return any(state.requested or state.phase is Phase.PENDING_DEVICE for state in states)


def _since_demand(world: World, server: ServerView, now: float) -> tuple[bool, float]:
    # People come before an engine that starts for nobody yet.
    asked = any(member.state and member.state.requested for member in world.members_of(server.name))
    return (not asked, world.held.get(awaits_turn(server), now))


def turn_left(world: World, server: ServerView, now: float) -> float:
    """Return the seconds that a turn lasts yet, whoever waits. A turn begins when the server takes requests."""
    if server.turns is None or not _serves(world, server):
        return float("inf")
    return server.turns.minimum - (now - world.held.get(has_turn(server), now))


def _serves(world: World, server: ServerView) -> bool:
    return any(member.serving for member in world.members_of(server.name))


def turn_holds(world: World) -> frozenset[str]:
    """Return the turns and demands that last: since when is asked of them again."""
    servers = _sharing(world)
    turns = {has_turn(server) for server in servers if _serves(world, server)}
    return frozenset(turns | {awaits_turn(server) for server in servers if _demands(world, server)})


def turn_ends_in(world: World, now: float) -> list[float]:
    """Return when to look again: somebody waits, and the turn has not lasted its minimum."""
    servers = _sharing(world)
    current = _current(world, servers)
    left = turn_left(world, current, now) if current and _next(world, servers, current, now) else 0.0
    return [left] if 0 < left < float("inf") else []
