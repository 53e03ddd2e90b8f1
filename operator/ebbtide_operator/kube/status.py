"""From what was observed to the status of an InferenceServer: pure; and whether it is worth a write.

Measurements never stand still. A status that differs from the written one in nothing but small numbers is the same
status: it is written again when something happens, or when a measurement moved by more than the slack of a release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ebbtide_api.conditions import Condition, ConditionStatus, ConditionType, merge
from ebbtide_api.errors import ErrorBody
from ebbtide_api.resource import API_VERSION
from ebbtide_api.server import InferenceServer
from ebbtide_api.server_status import MemberDevice, MemberError, MemberStatus, ServerStatus

from ebbtide_operator.plan import GroupRecord, MemberView

from .children import Problem
from .names import Json, selector

SLACK = 0.05
SLACK_MIB = 16
MESSAGE_LIMIT = 4096
_NUMBER = re.compile(r"[0-9]+([.][0-9]+)?")


@dataclass(frozen=True)
class Observed:
    """What is known of one server. `uids` are the pods' UIDs by member; `now` is the time, RFC 3339."""

    record: GroupRecord
    members: tuple[MemberView, ...]
    conditions: tuple[Condition, ...]
    now: str
    uids: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = None


def status_of(server: InferenceServer, seen: Observed) -> ServerStatus:
    """Return the status of a server. Conditions keep the transition times of the status that it has."""
    members = tuple(_member(member, seen.uids.get(member.name, "")) for member in _by_ordinal(seen.members))
    committed = [member.state.committed_version for member in seen.members if member.state]
    conditions = _conditions(server, seen)
    return ServerStatus(
        observed_generation=server.metadata.generation,
        conditions=conditions,
        replicas=len(members),
        awake_replicas=sum(member.state is not None and not member.released for member in seen.members),
        selector=",".join(f"{name}={value}" for name, value in sorted(selector(server.name).items())),
        weight_version=min(committed, default=seen.record.serve.version),
        owner=seen.record.owner,
        epoch=seen.record.epoch,
        phase=_word(conditions),
        members=members,
    )


def _by_ordinal(members: Iterable[MemberView]) -> list[MemberView]:
    return sorted(members, key=lambda member: member.ordinal)[:256]


def _conditions(server: InferenceServer, seen: Observed) -> tuple[Condition, ...]:
    told = _with_problem(seen.conditions, seen.problem, seen.now)
    fresh = [
        condition.model_copy(update={"observed_generation": server.metadata.generation, "message": _cut(condition)})
        for condition in told
    ]
    return merge(server.status.conditions if server.status else (), fresh)


def _cut(condition: Condition) -> str:
    return (
        condition.message if len(condition.message) <= MESSAGE_LIMIT else f"{condition.message[: MESSAGE_LIMIT - 3]}..."
    )


def _with_problem(conditions: Iterable[Condition], problem: Problem | None, now: str) -> Iterable[Condition]:
    """A spec that cannot be carried out stalls the server, whatever its members do meanwhile."""
    if problem is None:
        return conditions
    holds = {ConditionType.READY: False, ConditionType.RECONCILING: False, ConditionType.STALLED: True}
    said = [
        Condition(
            type=kind,
            status=ConditionStatus.TRUE if true else ConditionStatus.FALSE,
            reason=problem.reason,
            message=problem.message,
            last_transition_time=now,
        )
        for kind, true in holds.items()
    ]
    return merge(conditions, said)


def _word(conditions: Iterable[Condition]) -> str:
    """Return the state in a word: what stalls or moves the server, else how it is ready."""
    found = {condition.type: condition for condition in conditions}
    for kind in (ConditionType.STALLED, ConditionType.RECONCILING, ConditionType.READY):
        condition = found.get(kind)
        if condition and condition.status is ConditionStatus.TRUE:
            return condition.reason[:63]
    return "Unknown"


def _member(member: MemberView, uid: str) -> MemberStatus:
    state = member.state
    if state is None:
        return MemberStatus(name=member.name, uid=uid, last_error=None)
    return MemberStatus(
        name=member.name,
        uid=uid or state.instance.uid,
        phase=state.phase,
        weights=state.weights,
        kv=state.kv,
        weight_version=state.committed_version,
        device=tuple(
            MemberDevice(id=device.id, used_mib=round(device.used_mib), free_mib=max(0, round(device.free_mib)))
            for device in state.devices[:64]
        ),
        since=state.since[:40],
        last_error=_error(state.last_error),
    )


def _error(error: ErrorBody | None) -> MemberError | None:
    return MemberError(code=error.code, message=error.message[:MESSAGE_LIMIT]) if error else None


# What is written


def worth_writing(old: ServerStatus | None, new: ServerStatus) -> bool:
    """Say whether `new` tells more than `old`."""
    if old is None:
        return True
    return _quiet(old) != _quiet(new) or any(
        _moved(before, after) for before, after in zip(old.members, new.members, strict=True)
    )


def _quiet(status: ServerStatus) -> ServerStatus:
    conditions = [one.model_copy(update={"message": _NUMBER.sub("#", one.message)}) for one in status.conditions]
    members = [
        member.model_copy(update={"device": tuple(device.id for device in member.device)}) for member in status.members
    ]
    return status.model_copy(update={"conditions": tuple(conditions), "members": tuple(members)})


def _moved(before: MemberStatus, after: MemberStatus) -> bool:
    return any(
        _differs(old.used_mib, new.used_mib) or _differs(old.free_mib, new.free_mib)
        for old, new in zip(before.device, after.device, strict=True)
    )


def _differs(old: int, new: int) -> bool:
    return abs(old - new) > SLACK_MIB + SLACK * max(old, new)


def status_patch(server: InferenceServer, status: ServerStatus) -> Json:
    """Return what is applied to the status subresource. The UID makes it fail on another server of the same name."""
    return {
        "apiVersion": API_VERSION,
        "kind": server.kind,
        "metadata": {
            "name": server.name,
            "namespace": server.metadata.namespace,
            "uid": server.metadata.uid,
        },
        "status": status.wire(),
    }
