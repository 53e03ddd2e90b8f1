"""The names of calls: the same intent gives the same key, so that a call repeated after a crash runs once."""

from __future__ import annotations

import hashlib

from ebbtide_api.state import StateVector
from ebbtide_api.verbs import Verb

from .record import GroupRecord
from .world import MemberView, Outcome


def scope(record: GroupRecord) -> str:
    """Return the name of the current intent: the operation that asked for it, or the epoch."""
    lease = record.lease
    if lease and lease.back:
        return f"{lease.back.operation or lease.id}/{'undo' if lease.back.failure else 'back'}"
    if lease and lease.lend:
        return f"{lease.lend.operation}/{'undo' if lease.lend.failure else 'lend'}"
    return f"epoch/{record.epoch}"


def base(verb: Verb, intent: str, boot: int, version: int = 0) -> str:
    """Return a call's key without its attempt. Another launch of the engine is another call."""
    return f"{_stem(verb, intent)}{boot}-v{version}"


def _stem(verb: Verb, intent: str) -> str:
    return f"{verb}-{hashlib.sha256(intent.encode()).hexdigest()[:16]}-b"


def answers_to(member: MemberView, verb: Verb, intent: str, version: int | None = None) -> tuple[Outcome, ...]:
    """Return the outcomes of a verb in one intent, whatever launch of the engine they came from."""
    stem, end = _stem(verb, intent), "" if version is None else f"-v{version}"
    return tuple(one for one in member.outcomes if one.base.startswith(stem) and one.base.endswith(end))


def verb_of(call_base: str) -> str:
    """Return the verb of a call's key."""
    return call_base.rsplit("-", 3)[0]


def attempt_key(call_base: str, member: MemberView) -> str:
    """Return the key of the next attempt: attempts that were never answered are repeated, not counted."""
    return f"{call_base}-{len(member.answers(call_base))}"


def instance(state: StateVector) -> str:
    """Return the engine that a call is meant for, as the header carries it."""
    return f"{state.instance.uid}:{state.instance.pid}:{state.instance.start_time}"
