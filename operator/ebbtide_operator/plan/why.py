"""Why a server is as it is: what is wanted of it, everything that is in the way, and what each member does next.

Conditions name the first reason, for programs. This names them all, for people, by the same checks.
"""

from __future__ import annotations

from collections.abc import Iterator

from ebbtide_api.verbs import LeaseStage

from .conditions import RECONCILING, STALLED, Situation, as_asked, device_not_free, is_as_asked, lease_moves, moving
from .explanation import Aim, Explanation, Obstacle
from .group import goal_of, retry_wait, step_base
from .keys import verb_of
from .lending import HOLD_LEND_MEMORY, HOLD_UNDO, error_of, lend_holds, shortage
from .member import Asleep, Do, Done, Goal, Leave, Loaded, Serving, Wait
from .world import MemberView

_BY_ITSELF = frozenset({lease_moves, moving})
"""Checks that tell of the way there, not of something in it."""


def explain(at: Situation) -> Explanation:
    """Return why a server is as it is."""
    aims = tuple(_aim(at, member) for member in at.members)
    if is_as_asked(at):
        return Explanation(True, as_asked(at).what, (), aims)
    return Explanation(False, _wants(at), tuple(_obstacles(at)), aims)


def _wants(at: Situation) -> str:
    lease, group = at.world.record.lease, at.world.record.group
    if at.stage is LeaseStage.OWNER_LOST:
        return f"The engine shall have the devices of group {group} again, once the memory of {at.holder} is free."
    if lease and at.stage is LeaseStage.LENDING and lease.lend and lease.lend.failure:
        return f"The lend to {at.holder} failed: every member of group {group} shall serve again."
    if at.stage is LeaseStage.LENDING:
        return f"Every member of group {group} shall sleep, measured, so that {at.holder} can have the memory."
    if at.stage is LeaseStage.LENT:
        return f"The members shall stay asleep: {at.holder} has the memory."
    if at.server.awake == 0 and at.stage is not LeaseStage.RETURNING:
        return "Every member shall sleep: `power: Asleep` asks for it."
    version = at.world.record.loading or at.world.record.serve.version
    return f"{at.server.awake} of {at.server.replicas} members shall serve{_of_version(version)}."


def _of_version(version: int) -> str:
    return f" version {version} of the weights" if version else ""


# What is in the way


def _obstacles(at: Situation) -> Iterator[Obstacle]:
    stalled = {check: reason for check in (*STALLED, *RECONCILING) if check not in _BY_ITSELF and (reason := check(at))}
    for reason in stalled.values():
        yield Obstacle(reason.about or at.server.name, reason.word, reason.what, reason.advice)
    # What has become a reason to stall is not told twice.
    if device_not_free not in stalled:
        yield from _memory(at)
    yield from _lend(at)
    told = {reason.about for reason in stalled.values()}
    yield from (failed for failed in _failed(at) if failed.subject not in told)


def _memory(at: Situation) -> Iterator[Obstacle]:
    """A device that is not free yet: it stalls the server only after a while, and is in the way at once."""
    for error in at.moves.blocked.values():
        yield Obstacle(at.world.record.group, "WaitsForMemory", error.message, error.next_action)


def _lend(at: Situation) -> Iterator[Obstacle]:
    lease = at.world.record.lease
    holds = lend_holds(at.world)
    if HOLD_LEND_MEMORY in holds and (error := shortage(at.world)):
        yield Obstacle(at.holder, "WaitsForMemory", error.message, error.next_action)
    if HOLD_UNDO in holds and lease and lease.lend and lease.lend.failure:
        failure = lease.lend.failure
        yield Obstacle(at.holder, "LendFailed", failure.message, failure.next_action)


def _failed(at: Situation) -> Iterator[Obstacle]:
    for member in at.members:
        step = at.moves.steps.get(member.name, Done())
        answers = member.answers(step_base(at.world, member, step)) if isinstance(step, Do) else ()
        error = error_of(answers[-1]) if answers else None
        if isinstance(step, Do) and error:
            tries = f"{len(answers)} time{'s' if len(answers) > 1 else ''}"
            sentence = f"{step.verb} of {member.name} was answered {error.code} {tries}: {error.message}"
            yield Obstacle(member.name, "StepFailed", sentence, error.next_action)


# What each member does


def _aim(at: Situation, member: MemberView) -> Aim:
    goal = goal_of(at.world.record, at.server, member, at.world.sources, at.rest)
    return Aim(member.name, _words(goal, at), *_next(at, member))


def _words(goal: Goal, at: Situation) -> str:
    match goal:
        case Asleep():
            return "sleep"
        case Loaded(version):
            return f"load version {version}"
        case Serving(version):
            return f"serve{f' version {version}' if version else ''}"
        case Leave(why):
            return f"be left alone: {why}"


def _next(at: Situation, member: MemberView) -> tuple[str, str]:
    step = at.moves.steps.get(member.name, Done())
    if member.state is None:
        return "nothing before its agent answers", f"See `ebbtide logs {member.name} --agent`."
    if member.busy:
        return f"{verb_of(member.busy)} is under way", ""
    match step:
        case Do(verb):
            wait = retry_wait(at.world, member, step, at.now)
            return (f"{verb}, again in {wait:.0f} s" if wait > 0 else str(verb)), ""
        case Wait(why):
            return f"wait: {why}", ""
        case Done():
            return "nothing", ""
