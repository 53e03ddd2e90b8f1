"""One operator process: the real loop, commands and operations, over simulated agents and a simulated disk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide_api.base import Reading
from ebbtide_api.errors import EbbtideError, ErrorBody
from ebbtide_api.server import InferenceServer
from ebbtide_operator.drive.agents import AgentClient
from ebbtide_operator.drive.member import LocalMember
from ebbtide_operator.loop import Group, Operator
from ebbtide_operator.operations import Entry, Operations
from ebbtide_operator.plan import Action, Call, GroupRecord, MemberView, Outcome, TrainerView
from ebbtide_operator.settings import Settings

from .agent import Wire
from .engine import FULL

if TYPE_CHECKING:
    from .world import World

GROUP = "actor"
HANDOFF = "/handoff/actor"
SETTINGS = Settings(home=Path("/sim"), lend_deadline=40.0, reclaim_deadline=60.0, operations_kept=32)


@cache
def server_of(replicas: int, awake: int) -> InferenceServer:
    budget = int(replicas * FULL) + 40
    spec = {
        "model": {"source": "/model"},
        "replicas": replicas,
        "awakeReplicas": awake,
        "sleep": {"drain": {"timeout": "2s"}},
        "colocation": {"group": GROUP, "devices": {"cpu": {"memory": f"{budget}Mi"}}},
    }
    return InferenceServer.model_validate(
        {"apiVersion": "ebbtide.dev/v1alpha1", "kind": "InferenceServer", "metadata": {"name": "chat"}, "spec": spec}
    )


class Member(LocalMember):
    """The real member of the local driver, without processes."""

    def connect(self, world: World) -> None:
        client: Any = Wire(world.pods[self.name])
        self.agent.follow(client)
        assert self.agent._watch is not None
        self.task = self.agent._watch._task


class Driver:
    """What the operator sees and does. A dead operator's driver does nothing."""

    def __init__(self, process: OperatorProcess) -> None:
        self.process, self.world = process, process.world
        self.known: dict[str, Member] = {}
        self.servers: Mapping[str, InferenceServer] = {}
        self._changed: Any = lambda _group: None

    def listen(self, changed: Any) -> None:
        self._changed = changed

    def want(self, servers: Mapping[str, InferenceServer]) -> None:
        self.servers = servers

    def members(self, group: str) -> tuple[MemberView, ...]:
        return tuple(member.view() for member in self.known.values())

    async def refresh(self, group: str) -> None:
        await asyncio.sleep(0)

    async def trainer(self, record: GroupRecord) -> TrainerView | None:
        pid = record.lease.pid if record.lease else None
        await asyncio.sleep(0)
        return self.world.trainer_view(pid)

    def sources(self, record: GroupRecord) -> frozenset[str]:
        back = record.lease.back if record.lease else None
        named = {record.serve.source, (back.source or "") if back else ""}
        return frozenset(path for path in named if path in self.world.handoff)

    def handoff(self, group: str) -> str:
        return HANDOFF

    def streams(self, group: str) -> bool:
        return False

    def agents(self, group: str) -> Mapping[str, AgentClient | None]:
        return {}

    def ensure(self, name: str, server: str, ordinal: int) -> None:
        if name in self.known:
            return
        settings: Any = SETTINGS
        layout: Any = None
        member = Member(name, self.servers[server], ordinal, layout, settings, lambda: self._changed(GROUP))
        self.known[name] = member
        member.connect(self.world)
        self.process.tasks.append(member.task)
        self._changed(GROUP)

    def end(self, name: str) -> None:
        raise AssertionError(f"nobody asked for {name} to be ended")

    def call(self, call: Call) -> None:
        self.world.checks.called(self.process, call)
        self.process.spawn(self.known[call.member].agent.call(call))

    async def ask(self, call: Call) -> Outcome | None:
        return await self.known[call.member].agent.call(call)

    def started_at(self, pid: int) -> int | None:
        return 1

    def retire(self, group: str, version: int) -> None:
        for path in [path for path in self.world.handoff if int(path.rsplit("v", 1)[1]) <= version]:
            del self.world.handoff[path]

    async def stop(self, *, keep: bool) -> None:
        await asyncio.sleep(0)


class Records:
    """Durable records. A dead operator writes none."""

    def __init__(self, process: OperatorProcess) -> None:
        self._process = process

    def load(self, group: str) -> GroupRecord:
        return self._process.world.record

    def save(self, record: GroupRecord) -> None:
        if not self._process.dead:
            self._process.world.save(record)


class Remembered(Operations):
    """The real operations, on a simulated disk."""

    def __init__(self, process: OperatorProcess) -> None:
        super().__init__(Path("/sim/operations"), SETTINGS.operations_kept)
        self._process = process

    def load(self) -> None:
        world = self._process.world
        self._entries = dict(world.entries)
        self._started = {name: world.loop.time() for name, entry in self._entries.items() if entry.open}

    async def _save(self) -> None:
        entries: dict[str, Entry] = {**self._entries, **self._ended}
        await asyncio.sleep(0)
        if not self._process.dead:
            self._process.world.entries = entries

    async def write_end(
        self, name: str, result: Reading | None = None, error: ErrorBody | None = None, *, noop: bool = False
    ) -> None:
        if not self._process.dead:
            self._process.world.checks.answered(self._entries[name].operation, result, error)
        await super().write_end(name, result, error, noop=noop)


class Loop(Operator):
    """The real loop. Whatever it raises is a fault of ours: no world is so broken that it may."""

    process: OperatorProcess

    async def reconcile(self, name: str) -> None:
        try:
            await super().reconcile(name)
        except Exception as error:
            if not self.process.dead:
                self.process.world.violate(0, f"reconcile raised {type(error).__name__}: {error}")
            raise

    async def _do(self, group: Group, action: Action) -> None:
        # Killed in the middle of a plan: what comes after is not done.
        if self.process.world.chance.random() < self.process.world.faults.dies_in_plan:
            self.process.kill()
        if self.process.dead:
            await asyncio.sleep(1e9)
        await super()._do(group, action)


class OperatorProcess:
    """An operator, from its start to its death."""

    def __init__(self, world: World) -> None:
        self.world, self.dead = world, False
        self.tasks: list[Any] = []
        self.driver = Driver(self)
        driver: Any = self.driver
        records: Any = Records(self)
        self.operator = Loop(driver, records, Remembered(self), SETTINGS)
        self.operator.process = self
        self.spawn(self._start())

    async def _start(self) -> None:
        await self.operator.start([self.world.server])
        self.tasks += [worker._task for worker in self.operator.queue._workers.values()]

    def spawn(self, work: Any) -> None:
        self.tasks = [task for task in self.tasks if not task.done()]
        self.tasks.append(self.world.spawn(work))

    async def handle(self, ask: Any) -> Any:
        """Let the gateway handle a request. Raises ConnectionError when the operator is dead, or dies of it."""
        if self.dead:
            raise ConnectionError("nobody listens")
        handler = self.world.spawn(ask())
        self.tasks.append(handler)
        await asyncio.wait({handler})
        if self.dead or handler.cancelled():
            raise ConnectionError("it died meanwhile")
        return handler.result()

    def kill(self) -> None:
        if self.dead:
            return
        self.dead = True
        self.world.note("operator dies")
        for task in self.tasks:
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self.world.operator_died()


__all__ = ["GROUP", "HANDOFF", "EbbtideError", "OperatorProcess", "server_of"]
