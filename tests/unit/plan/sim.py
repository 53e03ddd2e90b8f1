"""A world for plan(): fake members, a clock that jumps, and an executor that does what plans say. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ebbtide_api.errors import ErrorBody
from ebbtide_api.state import KV, Level, Phase, Weights
from ebbtide_api.verbs import LeaseStage, LendRequest, Operation, OperationStatus, ReclaimRequest, WeightsSource
from ebbtide_operator.plan import (
    ENGINE,
    Call,
    EndMember,
    EnsureMember,
    Finish,
    GroupRecord,
    LeaseRecord,
    MemberView,
    Outcome,
    Plan,
    ReturnIntent,
    Save,
    ServerView,
    TrainerView,
    World,
    plan,
)
from ebbtide_operator.plan import lease as leases

from tests.support.fake_member import BUDGET, FakeMember

SETTLED = {Phase.RUNNING, Phase.ASLEEP, Phase.PENDING_DEVICE}


def put(member: FakeMember, phase: Phase, *, version: int = 0, epoch: int = 0) -> FakeMember:
    """Place a member in a phase with the residency that goes with it."""
    if phase in {Phase.PENDING_DEVICE, Phase.RECOVERING, Phase.FAULTED, Phase.STARTING}:
        weights, kv = Weights.UNKNOWN, KV.UNKNOWN
    elif phase is Phase.ASLEEP:
        weights, kv = Weights.PARKED, KV.DISCARDED
    elif phase in {Phase.WEIGHTS_RESIDENT, Phase.UPDATING, Phase.COMMITTED}:
        weights, kv = Weights.RESIDENT, KV.DISCARDED
    else:
        weights, kv = Weights.RESIDENT, KV.RESIDENT
    member.phase, member.weights, member.kv, member.version, member.epoch = phase, weights, kv, version, epoch
    member.pending = version + 1 if phase is Phase.UPDATING else None
    member.level = Level.PARKED if phase is Phase.ASLEEP else None
    return member


@dataclass
class Sim:
    """One group, simulated. `saves` holds every record that was made durable, oldest first."""

    record: GroupRecord = field(default_factory=lambda: GroupRecord(group="actor"))
    servers: dict[str, ServerView] = field(
        default_factory=lambda: {"chat": ServerView("chat", replicas=2, awake=2, budget_mib=BUDGET)}
    )
    members: dict[str, FakeMember] = field(default_factory=dict)
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    busy: dict[str, tuple[str, str]] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    trainer: TrainerView | None = None
    now: float = 1000.0
    longest: float = 1.0
    renewed: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)
    finished: dict[str, Finish] = field(default_factory=dict)
    saves: list[GroupRecord] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    @classmethod
    def running(cls, replicas: int = 2, **changes: object) -> Sim:
        """A group whose members all serve."""
        sim = cls(**changes)  # type: ignore[arg-type]
        sim.servers["chat"] = replace(sim.servers["chat"], replicas=replicas, awake=replicas)
        for name in sim.servers["chat"].member_names:
            sim.members[name] = put(FakeMember(name=name), Phase.RUNNING)
        return sim

    # what plan() sees

    def world(self) -> World:
        return World(
            record=self.record,
            servers=dict(self.servers),
            members=tuple(self._view(member) for member in self.members.values()),
            trainer=self.trainer,
            renewed=dict(self.renewed),
            started=dict(self.started),
            held=dict(self.held),
            sources=frozenset(self.sources),
        )

    def _view(self, member: FakeMember) -> MemberView:
        heard = member.name not in self.unreachable
        return MemberView(
            name=member.name,
            server=member.server,
            ordinal=int(member.name.rsplit("-", 1)[1]),
            state=member.vector() if heard else None,
            last=member.vector(),
            busy=self.busy[member.name][0] if member.name in self.busy else None,
            outcomes=tuple(self.outcomes.get(member.name, [])),
        )

    # what plans do

    def step(self) -> Plan:
        """Plan once, carry it out, let calls and restarts end, and let time pass."""
        made = self.act()
        self.pass_time(0.05 if made.actions else min(self.longest, max(0.05, made.requeue_after or 0.05)))
        return made

    def act(self) -> Plan:
        made = plan(self.world(), self.now)
        self.held = {hold: self.held.get(hold, self.now) for hold in made.holds}
        for action in made.actions:
            self._do(action)
        return made

    def _do(self, action: object) -> None:
        self.log.append(type(action).__name__ if not isinstance(action, Call) else f"{action.member}:{action.verb}")
        match action:
            case Save(record):
                self._save(record)
            case Finish(operation):
                assert operation in self.started, "an operation was answered twice"
                del self.started[operation]
                self.finished[operation] = action
            case Call():
                self._call(action)
            case EnsureMember(name, server):
                self.members.setdefault(name, FakeMember(name=name, server=server))
            case EndMember(name):
                del self.members[name]

    def _save(self, record: GroupRecord) -> None:
        before = self.record
        assert record.epoch >= before.epoch, "the epoch went back"
        if record.owner != before.owner:
            self._owner_changed(before, record)
        if record.owner != ENGINE:
            assert record.lease is not None
            assert record.lease.holder == record.owner, "the owner holds no lease"
        self.record = record
        self.saves.append(record)

    def _owner_changed(self, before: GroupRecord, record: GroupRecord) -> None:
        if record.owner == ENGINE:
            assert record.epoch > before.epoch, "the engine came back at an old epoch"
            return
        assert before.owner == ENGINE, "from one trainer to another without the engine between"
        held = {name: member.phase for name, member in self.members.items() if member.phase not in SETTLED}
        assert not held, f"the owner changed while {held}"
        assert all(member.used <= 100 for member in self.members.values()), "the owner changed before the release"

    def _call(self, call: Call) -> None:
        assert call.member not in self.busy, "two calls at once to one member"
        assert call.epoch == self.record.epoch
        member = self.members[call.member]
        answer = member.accept(call.verb, call.body.model_dump(mode="json"), call.key, call.epoch, call.instance)
        if isinstance(answer, ErrorBody):
            self._answer(call.member, Outcome(call.base, self.now, error=answer))
        elif answer.status is OperationStatus.RUNNING:
            self.busy[call.member] = (call.base, call.key)
        else:
            self._answer(call.member, Outcome(call.base, self.now, operation=answer))

    def _answer(self, name: str, outcome: Outcome) -> None:
        self.outcomes.setdefault(name, []).append(outcome)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for member in self.members.values():
            member.idle = None if member.idle is None else member.idle + seconds
            member.complete()
            if member.phase is Phase.FAULTED:
                member.kill_engine()
            elif member.phase is Phase.RECOVERING:
                member.relaunch()
            elif member.phase is Phase.UNKNOWN:
                member.rederive()
            elif member.phase is Phase.STARTING and member.current is None:
                member._started()
        for name, (call_base, key) in list(self.busy.items()):
            self._collect(name, call_base, key)

    def _collect(self, name: str, call_base: str, key: str) -> None:
        operation: Operation | None = self.members[name].operations.get(key, ("", None))[1]
        if operation is not None and operation.status is not OperationStatus.RUNNING:
            del self.busy[name]
            self._answer(name, Outcome(call_base, self.now, operation=operation))

    def settle(self, steps: int = 200) -> int:
        """Step until plan() has nothing to do and nothing is under way; fail if that takes too many steps."""
        for count in range(steps):
            made = self.step()
            quiet = not made.actions and not self.busy and made.requeue_after is None
            if quiet and all(member.phase in SETTLED for member in self.members.values()):
                return count
        raise AssertionError(f"no fixed point after {steps} steps: {self.describe()}")

    def until(self, done: object, steps: int = 200) -> None:
        """Step until `done()` is true."""
        assert callable(done)
        for _ in range(steps):
            if done():
                return
            self.step()
        raise AssertionError(f"not after {steps} steps: {self.describe()}")

    def describe(self) -> str:
        phases = {name: str(member.phase) for name, member in self.members.items()}
        return f"{phases} {self.record.lease} serve={self.record.serve} {self.log[-20:]}"

    # what callers do

    def acquire(self, lease: str = "l1", holder: str = "trainer", ttl: float = 1e6, **fields: object) -> None:
        asked = LeaseRecord(id=lease, holder=holder, ttl_seconds=ttl, **fields)  # type: ignore[arg-type]
        self.command(leases.enqueue(self.record, asked))
        self.renewed[lease] = self.now

    def lend(self, operation: str = "lend-1", deadline: float = 300.0) -> None:
        self.started[operation] = self.now
        self.command(leases.lend(self.record, LendRequest(), operation, deadline))

    def reclaim(
        self, operation: str = "back-1", version: int | None = None, source: str = "/w/v1", deadline: float = 600.0
    ) -> None:
        path = WeightsSource(path=source) if version else None
        request = ReclaimRequest(version=version, source=path)
        self.started[operation] = self.now
        if version:
            self.sources.add(source)
        intent = ReturnIntent(
            operation=operation, version=version, source=source if version else None, deadline=deadline
        )
        self.command(leases.reclaim(self.record, request, intent))

    def release(self, lease: str = "l1") -> None:
        self.command(leases.release(self.record, lease, 600.0))

    def command(self, answer: object) -> None:
        assert isinstance(answer, GroupRecord), answer
        self._save(answer)

    @property
    def stage(self) -> LeaseStage | None:
        return self.record.lease.stage if self.record.lease else None

    @property
    def phases(self) -> set[Phase]:
        return {member.phase for member in self.members.values()}
