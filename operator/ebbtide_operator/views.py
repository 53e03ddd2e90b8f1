"""Groups, leases and servers as callers see them."""

from __future__ import annotations

import time

from ebbtide_api.conditions import Condition, ConditionStatus, ConditionType
from ebbtide_api.server import InferenceServer
from ebbtide_api.state import StateVector
from ebbtide_api.verbs import GroupState, Lease, LeaseStage, MemberAim, ServerState, ServerWhy

from .handoffs import is_open
from .loop import Group, Operator
from .plan import LeaseRecord, MemberView, TrainerView
from .plan.memory import Device, devices, shown


def lease_view(operator: Operator, group: Group, lease_id: str) -> Lease | None:
    """Return a lease by its id, or None."""
    lease = group.record.find(lease_id)
    return _lease(operator, group, lease) if lease else None


def _lease(operator: Operator, group: Group, lease: LeaseRecord) -> Lease:
    ids = [waiting.id for waiting in group.record.queue]
    alive = lease not in group.record.past
    heard = group.renewed.get(lease.id)
    takes = is_open(operator.ways_of(group.record.group))
    left = None if heard is None or not alive else max(0.0, lease.ttl_seconds - (time.monotonic() - heard))
    return Lease(
        id=lease.id,
        group=group.record.group,
        holder=lease.holder,
        epoch=lease.epoch or group.record.epoch,
        stage=lease.stage,
        position=ids.index(lease.id) + 1 if lease.stage is LeaseStage.QUEUED else 0,
        ttl_seconds=lease.ttl_seconds,
        expires_in=left,
        handoff=operator.driver.handoff(group.record.group) if takes else "",
        streams=takes and operator.driver.streams(group.record.group),
    )


def group_view(operator: Operator, group: Group, trainer: TrainerView | None) -> GroupState:
    """Return who owns a group's devices, who waits, and what is used of them."""
    record = group.record
    used = devices(operator.world(group, trainer))
    return GroupState(
        name=record.group,
        owner=record.owner,
        epoch=record.epoch,
        servers=[server.name for server in operator.servers_of(record.group)],
        lease=_lease(operator, group, record.lease) if record.lease else None,
        queue=[_lease(operator, group, waiting) for waiting in record.queue],
        devices=[_device(device) for device in used.values()],
    )


def _device(device: Device) -> dict[str, object]:
    told: dict[str, object] = {
        "id": device.id,
        "usedMiB": round(device.used_mib, 1),
        "holders": shown(device.holders),
    }
    if device.budget_mib:
        told["budgetMiB"] = round(device.budget_mib, 1)
    if device.budget_mib and device.is_measured:
        told["freeMiB"] = round(max(0.0, device.free_mib), 1)
    return told


def server_view(operator: Operator, server: InferenceServer) -> ServerState:
    """Return a server, its condition in a sentence, and the state of every member."""
    conditions = {one.type: one for one in operator.groups[server.group].conditions.get(server.name, ())}
    ready, serving = conditions.get(ConditionType.READY), conditions.get(ConditionType.SERVING)
    members = [member for member in operator.driver.members(server.group) if member.server == server.name]
    return ServerState(
        name=server.name,
        group=server.group,
        model=server.served_name,
        replicas=server.spec.replicas,
        ready=_holds(ready),
        serving=_holds(serving),
        reason=ready.reason if ready else "Unknown",
        message=ready.message if ready else "Nothing was observed yet.",
        members=[state for member in members if (state := _state(operator, member))],
    )


def why_view(operator: Operator, server: InferenceServer) -> ServerWhy:
    """Return why a server is as it is: what was planned last, and the phases as they are now."""
    group = operator.groups.get(server.group)
    known = group.why.get(server.name) if group else None
    refusal = operator.refusal(server.name)
    why = known or ServerWhy(name=server.name, group="", settled=False, wants="Nothing was planned for it yet.")
    members = operator.driver.members(server.group)
    states = {member.name: member.state for member in members if member.server == server.name}
    return why.model_copy(
        update={
            "group": server.group,
            "settled": why.settled and refusal is None,
            "obstacles": [*([refusal] if refusal else []), *why.obstacles],
            "members": [_placed(aim, states.get(aim.name)) for aim in why.members],
        }
    )


def _placed(aim: MemberAim, state: StateVector | None) -> MemberAim:
    return aim.model_copy(update={"phase": state.phase, "since": state.since}) if state else aim


def _holds(condition: Condition | None) -> bool:
    return condition is not None and condition.status is ConditionStatus.TRUE


def _state(operator: Operator, member: MemberView) -> StateVector | None:
    """Return a member's state, with what only the operator knows: who owns its device."""
    if member.state is None:
        return None
    group = operator.groups.get(member.state.group)
    return member.state.model_copy(update={"owner": group.record.owner}) if group else member.state
