"""What is measured of a group, at one moment: nothing is answered from memory of what was asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import KV, Phase, StateVector
from ebbtide_api.verbs import GroupState, ServerState

from ..client.flow import Flow
from ..client.gateway import Gateway

HOLDS_NOTHING = frozenset({Phase.ASLEEP, Phase.PENDING_DEVICE})
WEIGHTS_AWAKE = frozenset({Phase.WEIGHTS_RESIDENT, Phase.UPDATING, Phase.COMMITTED})
"""Rest places of a member whose weights have memory while its gate is shut."""
NO_ENGINE = frozenset({Phase.UNKNOWN, Phase.PENDING_DEVICE, Phase.STARTING, Phase.FAULTED, Phase.RECOVERING})


@dataclass(frozen=True)
class Sight:
    """A group and all its members, as the gateway has just measured them."""

    group: GroupState
    servers: tuple[ServerState, ...]

    @property
    def members(self) -> list[StateVector]:
        """Every member whose agent answered."""
        return [member for server in self.servers for member in server.members]

    @property
    def whole(self) -> bool:
        """Whether every member answered: of one that did not, nothing is known."""
        return bool(self.servers) and all(len(one.members) >= one.replicas for one in self.servers)

    def all_in(self, phases: Collection[Phase]) -> bool:
        """Whether every member rests in one of some phases."""
        return self.whole and all(one.phase in phases and one.operation is None for one in self.members)

    def any_in(self, phases: Collection[Phase]) -> bool:
        """Whether some member is in one of some phases."""
        return any(member.phase in phases for member in self.members)

    @property
    def admits(self) -> bool:
        """Whether some member takes requests."""
        return any(member.admission for member in self.members)

    @property
    def serves(self) -> bool:
        """Whether every server takes requests, and what does not is asleep as its spec wants it."""
        at_rest = self.all_in({Phase.RUNNING, Phase.ASLEEP})
        return at_rest and all(any(one.admission for one in server.members) for server in self.servers)

    @property
    def inflight(self) -> int:
        """Requests inside the engines, frozen ones too."""
        return sum(one.inflight.running + one.inflight.waiting + one.inflight.transfers for one in self.members)

    @property
    def empty(self) -> bool:
        """Whether no member has a KV cache that could hold anything."""
        return self.whole and all(member.kv is KV.DISCARDED for member in self.members)

    @property
    def loaded(self) -> int | None:
        """The version that every member has loaded and none committed; None if there is no such version."""
        versions = {member.pending_version for member in self.members}
        loaded = versions.pop() if len(versions) == 1 and self.all_in({Phase.UPDATING}) else None
        return loaded or None

    @property
    def version(self) -> int:
        """The version of the weights in every engine. Raises MEMBERSHIP_CHANGED when members differ."""
        loaded = {member.pending_version or member.committed_version for member in self.members}
        if not self.whole or len(loaded) != 1:
            raise self.odd(ErrorCode.MEMBERSHIP_CHANGED, "the members do not have one version of the weights")
        return loaded.pop()

    def odd(self, code: ErrorCode, message: str, action: str | None = None) -> EbbtideError:
        """Return an error that says where every member is."""
        seen = {member.name: str(member.phase) for member in self.members}
        told = ", ".join(f"{name} is {phase}" for name, phase in seen.items()) or "no member answers"
        missing = "" if self.whole else "; some members do not answer"
        return EbbtideError(code, f"{message}: {told}{missing}.", next_action=action, members=seen)

    def wire(self) -> dict[str, Any]:
        """Return it as JSON."""
        lease = self.group.lease
        return {
            "group": self.group.name,
            "owner": self.group.owner,
            "epoch": self.group.epoch,
            "lease": str(lease.stage) if lease else None,
            "serving": self.serves,
            "members": {member.name: _wire(member) for member in self.members},
        }


def _wire(member: StateVector) -> dict[str, Any]:
    return {
        "phase": str(member.phase),
        "admission": member.admission,
        "inflight": member.inflight.running + member.inflight.waiting,
        "weights": str(member.weights),
        "kv": str(member.kv),
        "level": int(member.level) if member.level else None,
        "committedVersion": member.committed_version,
        "loadedVersion": member.pending_version,
        "usedMiB": {device.id: device.used_mib for device in member.devices},
    }


def look(gateway: Gateway, group: str) -> Flow[Sight]:
    """Measure a group now."""
    # The members first: the lease that is told with them is then not older than what they were seen to do.
    servers = yield from gateway.servers()
    state = yield from gateway.group(group)
    return Sight(state, tuple(one for one in servers if one.group == group))
