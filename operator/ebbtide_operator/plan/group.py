"""From a lease's stage to the goal of every member, and from goals to the steps that may be taken now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ebbtide_api.errors import ErrorBody, ErrorCode
from ebbtide_api.state import Level, Phase
from ebbtide_api.verbs import Drain, DrainMode, LeaseStage, OnDeadline, SleepRequest, Verb

from .actions import Call
from .idle import Rest, rest_of
from .keys import answers_to, attempt_key, base, instance, scope, verb_of
from .lending import TRANSIENT, error_of, fenced
from .member import Asleep, Do, Goal, Leave, Loaded, Need, Serving, Step, Wait, next_step
from .memory import shortages
from .record import GroupRecord, LeaseRecord
from .sharing import who_waits
from .world import Idle, MemberView, Outcome, ServerView, World

HOLD_WEIGHTS = "memory:weights"
HOLD_KV = "memory:kv"
CALL_DEADLINE = 900.0
"""Seconds after which the outcome of a call is unknown; agents keep shorter deadlines for every phase themselves."""


def goal_of(
    record: GroupRecord, server: ServerView, member: MemberView, sources: frozenset[str], rest: Rest | None = None
) -> Goal:
    """Return what a member is to reach, by the stage of its group's lease, and while nobody asks its server."""
    if server.name in record.manual:
        return Leave("driven step by step")
    lease = record.lease
    if lease and lease.stage is LeaseStage.OWNER_LOST:
        return Leave("the owner of its device was lost")
    if lease and lease.stage is LeaseStage.LENT:
        return _asleep(server, lease)
    if lease and lease.stage is LeaseStage.LENDING and lease.lend and not lease.lend.failure:
        # After a restart of ours a member may sleep whose answer was never heard: the same call gives the same answer.
        return replace(_asleep(server, lease), confirmed=_confirmed(record, member))
    if lease and lease.back and (version := record.loading):
        return Loaded(version, lease.back.source or "", Asleep(server.level, server.drain, server.settle))
    serving = _serving(record, server, sources)
    if _must_catch_up(member, serving):
        return serving
    if member.ordinal < server.awake:
        return _resting(server, serving, rest) if rest else serving
    return serving.sleep


def _confirmed(record: GroupRecord, member: MemberView) -> bool:
    if member.state and member.state.phase is Phase.PENDING_DEVICE:
        # It is asked to sleep for its agent to hear of the epoch.
        return fenced(record, member)
    return any(error_of(answer) is None for answer in answers_to(member, Verb.SLEEP, scope(record)))


def _resting(server: ServerView, serving: Serving, rest: Rest) -> Goal:
    if rest.turn and server.turns:
        return replace(serving.sleep, wakes=True, hold=server.turns.hold)
    return _idle(serving.sleep, server.idle, rest) if server.idle else serving


def _idle(sleep: Asleep, idle: Idle, rest: Rest) -> Asleep:
    # A request that came at the last moment is worth more than the sleep: it is never aborted for it.
    drain = Drain(mode=DrainMode.WAIT, timeout=sleep.drain.timeout, on_deadline=OnDeadline.FAIL)
    level = int(Level.DISCARDED) if rest.deeper else sleep.level
    return replace(
        sleep, level=level, drain=drain, wakes=idle.wakes, hold=idle.hold if idle.wakes else 0.0, deeper=rest.deeper
    )


def _must_catch_up(member: MemberView, serving: Serving) -> bool:
    """A member that shall sleep takes a published version first, while its files are there."""
    return bool(member.state and serving.source and member.state.committed_version < serving.version)


def _asleep(server: ServerView, lease: LeaseRecord) -> Asleep:
    drain, level = server.drain, server.level
    if lease.lend:
        drain, level = lease.lend.drain or drain, lease.lend.level or level
    return Asleep(level, drain, server.settle, lease.need_mib)


def _serving(record: GroupRecord, server: ServerView, sources: frozenset[str]) -> Serving:
    serve = record.serve
    back = record.lease.back if record.lease else None
    canary = (back.canary if back and not back.failure else None) or serve.canary or server.canary
    source = serve.source if serve.source in sources else ""
    return Serving(serve.version, source, canary, Asleep(server.level, server.drain, server.settle))


def steps_of(world: World, rests: Mapping[str, Rest]) -> Mapping[str, Step]:
    """Return the next step of every wanted member; a member whose agent does not answer waits."""
    return {member.name: _step_of(world, member, rests.get(member.server)) for member in world.wanted}


def _step_of(world: World, member: MemberView, rest: Rest | None) -> Step:
    if not member.managed or member.state is None:
        return Wait(member.trouble or "its agent does not answer")
    if member.busy:
        return Wait(f"{member.state.phase}: {verb_of(member.busy)} is under way")
    return next_step(member.state, goal_of(world.record, world.server_of(member), member, world.sources, rest))


@dataclass(frozen=True)
class Moves:
    """The calls that may be made now, what was held back, and when to look again. `rests`: servers that nobody asks."""

    calls: tuple[Call, ...] = ()
    steps: Mapping[str, Step] = field(default_factory=dict)
    blocked: Mapping[str, ErrorBody] = field(default_factory=dict)
    retry_in: float | None = None
    rests: Mapping[str, Rest] = field(default_factory=dict)


def moves(world: World, now: float) -> Moves:
    """Return what every member may do now: its step, when memory is there for it and its last failure is past."""
    rests = _rests(world, now)
    steps = steps_of(world, rests)
    ready = {name: step for name, step in steps.items() if isinstance(step, Do)}
    blocked = blocked_by_memory(world, ready)
    calls, retries = [], []
    for member in world.wanted:
        step = ready.get(member.name)
        if step is None or _hold(step) in blocked:
            continue
        wait = retry_wait(world, member, step, now)
        if wait > 0:
            retries.append(wait)
        else:
            calls.append(_call(world, member, step))
    return Moves(tuple(calls), steps, blocked, min(retries, default=None), rests)


def _rests(world: World, now: float) -> dict[str, Rest]:
    idle = {name: rest for name, server in world.servers.items() if (rest := rest_of(world, server, now))}
    return idle | {name: Rest(turn=turn) for name, turn in who_waits(world, now).items()}


def _hold(step: Do) -> str | None:
    return {Need.WEIGHTS: HOLD_WEIGHTS, Need.ALL: HOLD_WEIGHTS, Need.KV: HOLD_KV}.get(step.need)


def blocked_by_memory(world: World, ready: Mapping[str, Do]) -> dict[str, ErrorBody]:
    """Return which kinds of wake find too little memory free, and why: all members of a kind wake, or none."""
    blocked: dict[str, ErrorBody] = {}
    for hold in (HOLD_WEIGHTS, HOLD_KV):
        asking = [(m, step) for m in world.wanted if (step := ready.get(m.name)) and _hold(step) == hold]
        if found := shortages(world, asking):
            blocked[hold] = next(iter(found.values()))
    return blocked


def step_base(world: World, member: MemberView, step: Do) -> str:
    """Return the key, without its attempt, of a member's step in the current intent."""
    intent, state, lease = scope(world.record), member.state, world.record.lease
    if lease is None or not (lease.lend or lease.back):
        # Between two leases a member may sleep and wake many times: each time is another call.
        intent = f"{intent}/cycle/{state.cycle if state else 0}"
    return base(step.verb, intent, state.boot if state else 0, step.version)


def retry_wait(world: World, member: MemberView, step: Do, now: float) -> float:
    """Return the seconds until a step may be tried again: an answer without effect is not asked for again at once."""
    answers = member.answers(step_base(world, member, step))
    return max(0.0, answers[-1].at + backoff(answers) - now) if answers else 0.0


def backoff(answers: tuple[Outcome, ...]) -> float:
    """Return the seconds between the last answer and the next attempt, growing with the number of answers."""
    error = error_of(answers[-1])
    if error is None or error.code in TRANSIENT:
        return float(min(5.0, 0.1 * 2 ** (len(answers) - 1)))
    if error.code is ErrorCode.CANARY_FAILED:
        return 60.0
    return float(min(60.0, 2.0 ** len(answers)))


def _call(world: World, member: MemberView, step: Do) -> Call:
    call_base = step_base(world, member, step)
    state = member.state
    if state is None:
        raise ValueError(f"{member.name} has no state to call it in")
    return Call(
        member=member.name,
        verb=step.verb,
        body=step.body,
        base=call_base,
        key=attempt_key(call_base, member),
        epoch=world.record.epoch,
        # A grant is for a launch, not for an engine: there is none yet.
        instance="" if state.phase is Phase.PENDING_DEVICE else instance(state),
        deadline=CALL_DEADLINE + (step.body.drain.timeout if isinstance(step.body, SleepRequest) else 0),
    )
