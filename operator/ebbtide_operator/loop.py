"""The loop: one reconcile at a time for every group, woken by callers, by agents, by processes and by time.

A reconcile observes, plans and carries out; it waits for nothing but the disk. Calls to agents run beside it, and
their ends wake it again. The record of a group changes only under the group's lock: here, and by commands.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ebbtide_api.conditions import Condition, merge
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.server import Handoff, InferenceServer
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage, Obstacle, ServerWhy

from .bell import Bell
from .drive.base import Driver, Records
from .history import History
from .operations import Operations, now
from .plan import (
    Action,
    Call,
    EndMember,
    EnsureMember,
    Finding,
    Finish,
    GroupRecord,
    MemberView,
    Plan,
    Retire,
    Save,
    Serve,
    ServerView,
    TrainerView,
    World,
    plan,
)
from .queue import WorkQueue
from .settings import Settings
from .specs import check, check_changes, view
from .telling import told

log = logging.getLogger("ebbtide.loop")
GROUP_VERBS = ("lend", "reclaim")
_MEASURED = frozenset({LeaseStage.LENDING, LeaseStage.LENT, LeaseStage.RETURNING, LeaseStage.OWNER_LOST})


_PASSING = frozenset({LeaseStage.LENDING, LeaseStage.RETURNING})
_WAITING = frozenset({Phase.ASLEEP, Phase.PENDING_DEVICE, Phase.WEIGHTS_RESIDENT, Phase.COMMITTED})


def _at_rest(member: MemberView) -> bool:
    """Say whether a member's next step may depend on memory."""
    return member.busy is None and member.state is not None and member.state.phase in _WAITING


@dataclass
class Group:
    """A group as the operator remembers it. Only `record` survives; the rest is observed again after a restart."""

    record: GroupRecord
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    renewed: dict[str, float] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    conditions: dict[str, tuple[Condition, ...]] = field(default_factory=dict)
    why: dict[str, ServerWhy] = field(default_factory=dict)
    history: History = field(default_factory=History)

    def hear(self) -> None:
        """Give every lease that was never heard of one fresh time to live, and forget the ended ones."""
        lease = self.record.lease
        known = {one.id for one in (*self.record.queue, *((lease,) if lease else ()))}
        moment = time.monotonic()
        self.renewed = {name: self.renewed.get(name, moment) for name in known}

    def remember(self, made: Plan) -> None:
        """Keep what the next plan must know: since when we wait, and the conditions' times."""
        moment, stamp = time.monotonic(), now()
        self.held = {hold: self.held.get(hold, moment) for hold in made.holds}
        self.conditions = {
            name: merge(self.conditions.get(name, ()), [_condition(finding, stamp) for finding in findings])
            for name, findings in made.conditions.items()
        }
        self.why = {name: told(self.why.get(name), name, one, stamp) for name, one in made.why.items()}


def _condition(finding: Finding, stamp: str) -> Condition:
    return Condition(
        type=finding.type,
        status=finding.status,
        reason=finding.reason,
        message=finding.message,
        last_transition_time=stamp,
    )


class Operator:
    """Everything of one home but its gateway."""

    default_handoff = Handoff.SHARED_MEMORY

    def __init__(self, driver: Driver, records: Records, operations: Operations, settings: Settings) -> None:
        self.driver, self.records, self.operations, self.settings = driver, records, operations, settings
        self.servers: dict[str, InferenceServer] = {}
        self.views: dict[str, ServerView] = {}
        self.groups: dict[str, Group] = {}
        self.bell = Bell()
        self.stopping = asyncio.Event()
        self.queue = WorkQueue(self.reconcile)
        self.tasks: set[asyncio.Task[None]] = set()
        driver.listen(self.changed)

    # beginning and end

    async def start(self, servers: Iterable[InferenceServer], *, fresh: bool = False) -> None:
        """Begin with these servers. `fresh`: the memory folder is new, so every published version is gone."""
        self.operations.load()
        self.want(servers)
        for group in self.groups.values():
            if fresh:
                group.record = group.record.model_copy(update={"serve": Serve()})
        await self._answer_orphans()

    async def _answer_orphans(self) -> None:
        """Answer operations that nobody carries on: steps of a server, and groups that are no more."""
        error = EbbtideError(
            ErrorCode.UNREACHABLE,
            "The operator was restarted while the operation ran; its outcome is unknown.",
            next_action="Read the state; then call again with a new Idempotency-Key.",
        ).body()
        for operation in self.operations.open_verbs():
            if operation.verb not in GROUP_VERBS or operation.target not in self.groups:
                await self.operations.finish(operation.id, error=error)

    def close(self) -> None:
        """Begin nothing any more, and let nobody wait any longer."""
        self.stopping.set()
        self.bell.ring()
        self.operations.close()

    async def stop(self, *, keep: bool) -> None:
        """End the loop, then the members, or leave those for the next operator."""
        self.close()
        await self.queue.close()
        for task in tuple(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.driver.stop(keep=keep)

    # servers

    def want(self, servers: Iterable[InferenceServer]) -> None:
        """Take the servers that are wanted from now on."""
        self.servers = {server.name: server for server in servers}
        self.views = {server.name: view(server) for server in self.servers.values()}
        self.driver.want(self.servers)
        for server in self.servers.values():
            if server.group not in self.groups:
                self.groups[server.group] = Group(self.records.load(server.group))
        for name in self.groups:
            self.queue.add(name)

    def accept(self, servers: Iterable[InferenceServer]) -> list[InferenceServer]:
        """Check new or changed servers, then want them too. Raises EbbtideError; then nothing is changed."""
        new = list(servers)
        together = {**self.servers, **{server.name: server for server in new}}
        check_changes(self.servers, new)
        check(together, new)
        for server in new:
            self._refuse_while_lent(server)
        self.want(together.values())
        return new

    def _refuse_while_lent(self, server: InferenceServer) -> None:
        group, same = self.groups.get(server.group), self.servers.get(server.name)
        lease = group.record.lease if group else None
        if lease is None or lease.stage not in _MEASURED or (same and same.spec == server.spec):
            return
        message = f"group {server.group} is with {lease.holder} ({lease.stage}); its servers do not change meanwhile"
        raise EbbtideError(ErrorCode.MEMBERSHIP_CHANGED, message, group=server.group, server=server.name)

    def find(self, name: str) -> InferenceServer | None:
        """Return a server by its name, carried out or not."""
        return self.servers.get(name)

    def refusal(self, name: str) -> Obstacle | None:
        """Return why what was asked of a server is not carried out; here it is refused before it is taken."""
        return None

    # the loop

    def changed(self, group: str) -> None:
        """Hear that something of a group changed."""
        self.bell.ring()
        if group in self.groups and not self.stopping.is_set():
            # Here and not in the round that follows: a phase may be over by then.
            self.see(self.groups[group])
            self.queue.add(group)

    def see(self, group: Group) -> None:
        """Write down what is observed of a group now."""
        group.history.observe(group.record, self.driver.members(group.record.group), now())

    async def reconcile(self, name: str) -> None:
        """Observe, plan, carry out."""
        group = self.groups[name]
        lease = group.record.lease
        trainer = await self.trainer(group)
        await self._look_at_idle(group, trainer)
        async with group.lock:
            if group.record.lease != lease:
                self.queue.add(name)  # measured for another lease than the one that is held now
                return
            made = plan(self.world(group, trainer), time.monotonic())
            group.remember(made)
            for operation, progress in made.progress.items():
                self.operations.progress(operation, progress)
            for action in made.actions:
                await self._do(group, action)
            # Shown only now: who hears that an operation has ended finds the record that belongs to it.
            self.operations.reveal([action.operation for action in made.actions if isinstance(action, Finish)])
        self.bell.ring()
        if made.requeue_after is not None:
            self.queue.add_after(name, made.requeue_after)

    async def _look_at_idle(self, group: Group, trainer: TrainerView | None) -> None:
        """Ask again before a server is put to sleep because nobody asks it: a request alone is no news of an agent."""
        name = group.record.group
        if not any(self.views[server.name].idle for server in self.servers_of(name)):
            return
        rests = plan(self.world(group, trainer), time.monotonic()).rests
        if any(member.serving and not member.busy and member.server in rests for member in self.driver.members(name)):
            await self.driver.refresh(name)

    async def trainer(self, group: Group) -> TrainerView | None:
        """Measure the processes that may use the group's devices now, if something depends on it."""
        lease = group.record.lease
        if lease is None or lease.stage not in _MEASURED:
            return None
        if lease.stage in _PASSING and not any(_at_rest(member) for member in self.driver.members(group.record.group)):
            return None
        return await self.driver.trainer(group.record)

    def world(self, group: Group, trainer: TrainerView | None) -> World:
        """Return what plan() sees of a group."""
        group.hear()
        record = group.record
        return World(
            record=record,
            servers={server.name: self.views[server.name] for server in self.servers_of(record.group)},
            members=self.driver.members(record.group),
            trainer=trainer,
            renewed=dict(group.renewed),
            started=self.operations.started(record.group, GROUP_VERBS),
            held=dict(group.held),
            sources=self.driver.sources(record),
        )

    def servers_of(self, group: str) -> list[InferenceServer]:
        """Return a group's servers, by name."""
        return [server for _, server in sorted(self.servers.items()) if server.group == group]

    def ways_of(self, group: str) -> dict[str, Handoff]:
        """Return how new weights come into each of a group's servers."""
        return {server.name: server.spec.weights.handoff or self.default_handoff for server in self.servers_of(group)}

    async def _do(self, group: Group, action: Action) -> None:
        match action:
            case Save(record):
                await self.save(group, record)
            case Finish(operation, result, error):
                log.info("%s ended: %s", operation, error.message if error else "done")
                await self.operations.write_end(operation, result, error)
            case Call():
                log.info("%s: %s (epoch %d)", action.member, action.verb, action.epoch)
                self.driver.call(action)
            case EnsureMember(name, server, ordinal):
                self.driver.ensure(name, server, ordinal)
            case EndMember(name):
                self.driver.end(name)
            case Retire(version):
                self.driver.retire(group.record.group, version)

    async def save(self, group: Group, record: GroupRecord) -> None:
        """Make a record durable, then the group's. The caller holds the lock. Raises OSError: then nothing changed."""
        await asyncio.to_thread(self.records.save, record)
        _tell(group.record, record)
        group.record = record
        self.see(group)


def _tell(before: GroupRecord, after: GroupRecord) -> None:
    stage = after.lease.stage if after.lease else "no lease"
    if (before.owner, before.epoch) != (after.owner, after.epoch):
        log.info("group %s: owner %s, epoch %d (%s)", after.group, after.owner, after.epoch, stage)
    elif before.lease != after.lease:
        log.info("group %s: %s", after.group, stage)
