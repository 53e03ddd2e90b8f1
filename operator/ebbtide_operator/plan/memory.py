"""The arithmetic of devices: who uses how much, and whether what a step needs is measured free. MiB throughout.

Members of a group share a device's budget with the trainer; where replicas are apart, each one's device has a budget.
A wake is allowed for all members that ask for it, or for none: half a group that woke would leave neither the engines
nor the trainer enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.state import KV, Phase, StateVector, Weights
from ebbtide_api.verbs import Verb

from .keys import verb_of
from .member import Do, Need
from .record import GroupRecord, Size
from .world import MemberView, TrainerView, World

SLACK_MIB = 1.0
"""Rounding of measurements: a need within it of what is free is met."""


@dataclass(frozen=True)
class Holder:
    """Somebody who uses a device. `mib` None: nobody can measure how much of it."""

    name: str
    mib: float | None

    def __str__(self) -> str:
        return f"{self.name} {'not measured' if self.mib is None else f'{self.mib:.0f} MiB'}"


@dataclass(frozen=True)
class Device:
    """One device, as measured. Budget 0 means unlimited."""

    id: str
    budget_mib: float
    holders: tuple[Holder, ...]

    @property
    def used_mib(self) -> float:
        """What all holders use, as far as it was measured."""
        return sum(holder.mib for holder in self.holders if holder.mib)

    @property
    def is_measured(self) -> bool:
        """Whether it is known what every holder uses."""
        return all(holder.mib is not None for holder in self.holders)

    @property
    def free_mib(self) -> float:
        """What nobody uses."""
        return self.budget_mib - self.used_mib if self.budget_mib else float("inf")


def devices(world: World) -> Mapping[str, Device]:
    """Return every device of the group with its holders."""
    ids = {server.device for server in world.servers.values() if not server.apart}
    ids |= {world.device_of(member) for member in _known(world)}
    return {device: _device(world, device) for device in sorted(ids)}


def _device(world: World, device: str) -> Device:
    here = {member.name: member for member in _known(world) if world.device_of(member) == device}
    names = {member.server for member in here.values()}
    shared = {server.name for server in world.servers.values() if server.device == device and not server.apart}
    servers = [server for name, server in world.servers.items() if name in names | shared]
    members = [Holder(name, mib) for name, member in here.items() if (mib := _held(world.record, member)) > 0]
    trainer = world.trainer
    if trainer and (trainer.unmeasured or trainer.used_mib):
        members.append(Holder(f"trainer ({_name(trainer)})", trainer.used_mib))
    limits = [server.budget_mib for server in servers if server.budget_mib]
    return Device(device, min(limits, default=0.0), tuple(members))


def _name(trainer: TrainerView) -> str:
    return ", ".join(f"pod {pod.name}" for pod in trainer.pods) or f"pid {trainer.pid}"


def _known(world: World) -> Iterable[MemberView]:
    """Return every member, asked for or there, of a server that is known."""
    return (member for member in (*world.wanted, *world.members) if member.server in world.servers)


def _held(record: GroupRecord, member: MemberView) -> float:
    if member.state or member.last:
        return member.used_mib
    # Never heard of since our start: it may hold all that it held before it was lent, and nobody has measured that.
    size = record.sizes.get(member.name, Size())
    return size.weights + size.kv + size.residual


def size_of(record: GroupRecord, member: MemberView) -> Size:
    """Return what a member takes of its device: as it says now, else as it said when it was lent."""
    known, state = record.sizes.get(member.name, Size()), member.state or member.last
    if state is None:
        return known
    return Size(
        weights=state.weights_mib or known.weights,
        kv=state.kv_mib or known.kv,
        residual=state.residual_mib or known.residual,
    )


def need_of(record: GroupRecord, member: MemberView, need: Need) -> float:
    """Return the MiB that a step takes from the device. What was never measured is not asked for."""
    size = size_of(record, member)
    match need:
        case Need.WEIGHTS:
            return size.weights
        case Need.KV:
            return size.kv
        case Need.ALL:
            # An engine that is not started has not even its residual.
            started = member.state is not None and member.state.phase is not Phase.PENDING_DEVICE
            return size.weights + size.kv + (0.0 if started else size.residual)
        case Need.NOTHING:
            return 0.0


def reserved(world: World, device: str) -> float:
    """Return what wakes that are in flight will take and no measurement shows yet."""
    there = (member for member in world.members if member.server in world.servers)
    return sum(_of_busy(world.record, member) for member in there if world.device_of(member) == device)


def _of_busy(record: GroupRecord, member: MemberView) -> float:
    if member.busy is None:
        return 0.0
    # Also while its agent does not answer: the wake goes on.
    return need_of(record, member, _TAKES.get(verb_of(member.busy), Need.NOTHING))


_TAKES = {Verb.WAKE_WEIGHTS.value: Need.WEIGHTS, Verb.WAKE_KV.value: Need.KV, Verb.GRANT.value: Need.ALL}


def shortages(world: World, wanted: Iterable[tuple[MemberView, Do]]) -> dict[str, ErrorBody]:
    """Return, per device that cannot take all of `wanted` at once, why not."""
    asked: dict[str, float] = {}
    for member, step in wanted:
        if member.state and step.need is not Need.NOTHING:
            device = world.device_of(member)
            asked[device] = asked.get(device, 0.0) + need_of(world.record, member, step.need)
    found = devices(world)
    return {
        device: not_free(found[device], need)
        for device, need in asked.items()
        if need > found[device].free_mib - reserved(world, device) + SLACK_MIB
    }


def not_free(device: Device, need: float) -> ErrorBody:
    """Return DEVICE_NOT_FREE with who holds the device."""
    allowed = max(0.0, device.budget_mib - need)
    holders = ", ".join(str(holder) for holder in device.holders) or "nobody"
    return EbbtideError(
        ErrorCode.DEVICE_NOT_FREE,
        f"{need:.0f} MiB of {device.id} must be free and {max(0.0, device.free_mib):.0f} are: held by {holders}.",
        device=device.id,
        usedMiB=round(device.used_mib, 1),
        allowedMiB=round(allowed, 1),
        holders=shown(device.holders),
    ).body()


def shown(holders: Iterable[Holder]) -> list[dict[str, object]]:
    """Return holders as they travel; what was not measured is absent."""
    return [
        {"name": holder.name, **({} if holder.mib is None else {"mib": round(holder.mib, 1)})} for holder in holders
    ]


def lacking(world: World, need_mib: float) -> ErrorBody | None:
    """Say why the trainer cannot have `need_mib` on every device of the group, or None when it can."""
    for device in devices(world).values():
        if need_mib > device.free_mib + SLACK_MIB:
            return not_free(device, need_mib)
    return None


def missing_need(world: World) -> dict[str, float]:
    """Return, per device, what the members will need beyond what they hold now, to serve again."""
    needs: dict[str, float] = {}
    for member in world.members:
        if member.state and member.server in world.servers:
            device = world.device_of(member)
            needs[device] = needs.get(device, 0.0) + _missing(world.record, member, member.state)
    return needs


def _missing(record: GroupRecord, member: MemberView, state: StateVector) -> float:
    if state.phase is Phase.PENDING_DEVICE:
        return need_of(record, member, Need.ALL)
    weights = 0.0 if state.weights is Weights.RESIDENT else need_of(record, member, Need.WEIGHTS)
    return weights + (0.0 if state.kv is KV.RESIDENT else need_of(record, member, Need.KV))
