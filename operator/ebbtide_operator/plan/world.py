"""What plan() sees: the intent of one group, and what was observed of its servers, members and trainer.

All frozen. Times are seconds on the monotonic clock of whoever calls plan(); memory is in MiB.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from ebbtide_api.errors import ErrorBody
from ebbtide_api.state import Phase, StateVector, Weights
from ebbtide_api.verbs import Canary, Drain, LeaseStage, Operation

from .member import DRAIN
from .record import GroupRecord, PodRef

RELEASED_PHASES = frozenset({Phase.ASLEEP, Phase.PENDING_DEVICE})
"""Phases in which an engine holds no memory of weights or KV: measured asleep, or not started."""


@dataclass(frozen=True)
class Idle:
    """When a server that nobody asks sleeps, and what a request does to it then. Seconds."""

    after: float
    deeper: float | None = None
    wakes: bool = True
    hold: float = 0.0


@dataclass(frozen=True)
class Turns:
    """How a server shares its device with others that take turns. Seconds: a turn's least time, a request's hold."""

    minimum: float
    hold: float = 0.0


@dataclass(frozen=True)
class ServerView:
    """A server as it was asked for. `awake` of its `replicas` shall serve; `budget_mib` 0 means unlimited.

    `apart`: each replica has a device of its own, as large as `budget_mib`; else all of them share one.
    """

    name: str
    model: str = ""
    replicas: int = 1
    awake: int = 1
    level: int = 0
    drain: Drain = DRAIN
    settle: float = 0.2
    canary: Canary | None = None
    device: str = "cpu0"
    budget_mib: float = 0
    apart: bool = False
    idle: Idle | None = None
    turns: Turns | None = None

    @property
    def member_names(self) -> tuple[str, ...]:
        """The names of its members, by ordinal."""
        return tuple(f"{self.name}-{ordinal}" for ordinal in range(self.replicas))


@dataclass(frozen=True)
class Outcome:
    """An answered call: `base` is the call's key without its attempt. A call without an answer has no outcome."""

    base: str
    at: float
    operation: Operation | None = None
    error: ErrorBody | None = None


@dataclass(frozen=True)
class MemberView:
    """A member as it was observed. `state` is None while its agent does not answer; `last` is the last one heard.

    `heard`: when the state was told, on the clock of plan(); None: now.
    """

    name: str
    server: str
    ordinal: int
    managed: bool = True
    outdated: bool = False
    state: StateVector | None = None
    last: StateVector | None = None
    busy: str | None = None
    outcomes: tuple[Outcome, ...] = ()
    trouble: str = ""
    heard: float | None = None

    @property
    def released(self) -> bool:
        """Whether the member is known to hold no memory of weights or KV."""
        return self.state is not None and self.state.phase in RELEASED_PHASES

    @property
    def serving(self) -> bool:
        """Whether the member takes requests."""
        return self.state is not None and self.state.phase is Phase.RUNNING and self.state.admission

    @property
    def used_mib(self) -> float:
        """Device memory that the member uses: as last measured, and no less than its resident weights."""
        known = self.state or self.last
        if known is None:
            return 0.0
        # A wake is known at once, its measurement only when the launcher comes round.
        floor = (known.residual_mib or 0.0) + known.weights_mib if known.weights is Weights.RESIDENT else 0.0
        return max(floor, sum(device.used_mib for device in known.devices))

    def answers(self, base: str) -> tuple[Outcome, ...]:
        """Return the outcomes of one call's attempts, oldest first."""
        return tuple(outcome for outcome in self.outcomes if outcome.base == base)


@dataclass(frozen=True)
class TrainerView:
    """Who may hold the memory behind a lease. `used_mib` None: nobody can measure it, so while they live none is free.

    `pods`: on a cluster, the pods that may hold it and have not ended. `note`: why that could not be seen.
    """

    pid: int
    alive: bool
    used_mib: float | None = 0.0
    pods: tuple[PodRef, ...] = ()
    note: str = ""

    @property
    def unmeasured(self) -> bool:
        """Whether it lives and nobody can say what it holds."""
        return self.alive and self.used_mib is None


@dataclass(frozen=True)
class World:
    """One group, whole.

    renewed   lease id -> when its holder was last heard of
    started   operation id -> when we first saw it; an operation that ended is not in it
    held      what we wait for (Plan.holds) -> since when
    sources   folders of published weights that exist
    unsought  its holder was found lost after `trainer` was measured: nobody has looked for it as somebody lost
    """

    record: GroupRecord
    servers: Mapping[str, ServerView] = field(default_factory=lambda: MappingProxyType({}))
    members: tuple[MemberView, ...] = ()
    trainer: TrainerView | None = None
    renewed: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    started: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    held: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    sources: frozenset[str] = frozenset()
    unsought: bool = False

    @cached_property
    def wanted(self) -> tuple[MemberView, ...]:
        """Every member that was asked for, also those of which nothing was observed yet."""
        seen = {member.name: member for member in self.members}
        return tuple(
            seen.get(name, MemberView(name, server.name, ordinal, managed=False))
            for server in self.servers.values()
            for ordinal, name in enumerate(server.member_names)
        )

    @property
    def unwanted(self) -> tuple[MemberView, ...]:
        """Members that run though nobody asks for them."""
        names = {name for server in self.servers.values() for name in server.member_names}
        return tuple(member for member in self.members if member.name not in names)

    def members_of(self, server: str) -> tuple[MemberView, ...]:
        """Return the wanted members of a server, by ordinal."""
        return tuple(member for member in self.wanted if member.server == server)

    def server_of(self, member: MemberView) -> ServerView:
        """Return the server of a wanted member."""
        return self.servers[member.server]

    def device_of(self, member: MemberView, device: str = "") -> str:
        """Return the device of a known server's member, by its name among the group's. `device`: as its agent says."""
        server = self.server_of(member)
        plain = device or server.device
        return f"{member.name}/{plain}" if server.apart else plain

    def is_as_asked(self, member: MemberView) -> bool:
        """Say whether a member serves, or sleeps because its server asks for no more that serve."""
        awake = member.ordinal < self.server_of(member).awake
        return not member.busy and (member.serving if awake else member.released)

    def after(self, record: GroupRecord, answered: Collection[str] = ()) -> World:
        """Return the world with another intent, and without the operations that were answered."""
        waiting = {name: since for name, since in self.started.items() if name not in answered}
        after = replace(self, record=record, started=waiting)
        return replace(after, unsought=self.unsought or (after.is_lost and not self.is_lost))

    @property
    def is_lost(self) -> bool:
        """Whether who holds the lease was not heard of in time."""
        return self.record.lease is not None and self.record.lease.stage is LeaseStage.OWNER_LOST

    def is_open(self, operation: str | None) -> bool:
        """Whether somebody still waits for an operation's answer."""
        return operation is not None and operation in self.started
