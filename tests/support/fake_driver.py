"""A driver without processes: its members are fake members, and a call ends when its delay is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from ebbtide_api.errors import ErrorBody
from ebbtide_api.server import Handoff, InferenceServer
from ebbtide_api.state import Phase
from ebbtide_api.verbs import OperationStatus
from ebbtide_operator.drive.agents import AgentClient
from ebbtide_operator.plan import Call, GroupRecord, MemberView, Outcome, TrainerView

from tests.support.fake_member import FakeMember


class FakeDriver:
    """Runs fake members. `delays` are seconds a verb; a test may change members while calls run."""

    def __init__(self) -> None:
        self.fakes: dict[str, FakeMember] = {}
        self.delays: dict[str, float] = {}
        self.trainers: dict[int, TrainerView] = {}
        self.unreachable: set[str] = set()
        self.published: set[str] = set()
        self.retired: list[tuple[str, int]] = []
        self.stopped: bool | None = None
        self.reached: dict[str, AgentClient] = {}
        self._busy: dict[str, str] = {}
        self._outcomes: dict[str, list[Outcome]] = {}
        self._servers: Mapping[str, InferenceServer] = {}
        self._changed: Callable[[str], None] = lambda _group: None
        self._tasks: set[asyncio.Task[Outcome | None]] = set()

    def listen(self, changed: Callable[[str], None]) -> None:
        self._changed = changed

    def want(self, servers: Mapping[str, InferenceServer]) -> None:
        self._servers = servers

    def members(self, group: str) -> tuple[MemberView, ...]:
        return tuple(self._view(fake) for fake in self.fakes.values() if fake.group == group)

    def _view(self, fake: FakeMember) -> MemberView:
        state = None if fake.name in self.unreachable else fake.vector()
        return MemberView(
            fake.name,
            fake.server,
            int(fake.name.rsplit("-", 1)[1]),
            state=state,
            last=fake.vector(),
            busy=self._busy.get(fake.name),
            outcomes=tuple(self._outcomes.get(fake.name, [])),
        )

    async def refresh(self, group: str) -> None:
        await asyncio.sleep(0)

    async def trainer(self, record: GroupRecord) -> TrainerView | None:
        lease = record.lease
        return self.trainers.get(lease.pid) if lease and lease.pid else None

    def started_at(self, pid: int) -> int | None:
        return 1 if pid in self.trainers else None

    def sources(self, record: GroupRecord) -> frozenset[str]:
        return frozenset(self.published)

    def handoff(self, group: str) -> str:
        return f"/memory/handoff/{group}"

    def streams(self, group: str) -> bool:
        return any(server.spec.weights.handoff is Handoff.STREAM for server in self._servers.values())

    def agents(self, group: str) -> Mapping[str, AgentClient | None]:
        return {name: self.reached.get(name) for name, fake in self.fakes.items() if fake.group == group}

    def ensure(self, name: str, server: str, ordinal: int) -> None:
        group = self._servers[server].group
        self.fakes.setdefault(name, FakeMember(name=name, server=server, group=group))
        self._changed(group)

    def end(self, name: str) -> None:
        self._changed(self.fakes.pop(name).group)

    def call(self, call: Call) -> None:
        task = asyncio.create_task(self.ask(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ask(self, call: Call) -> Outcome | None:
        fake = self.fakes[call.member]
        self._busy[call.member] = call.base
        try:
            outcome = await self._outcome(fake, call)
            self._outcomes.setdefault(call.member, []).append(outcome)
            return outcome
        finally:
            self._busy.pop(call.member, None)
            self.settle(fake)

    async def _outcome(self, fake: FakeMember, call: Call) -> Outcome:
        answer = fake.accept(call.verb, call.body.model_dump(mode="json"), call.key, call.epoch, call.instance)
        if isinstance(answer, ErrorBody):
            return Outcome(call.base, time.monotonic(), error=answer)
        self._changed(fake.group)
        if answer.status is OperationStatus.RUNNING:
            await asyncio.sleep(self.delays.get(call.verb, 0.0))
            answer = fake.complete() or fake.operations[call.key][1]
        return Outcome(call.base, time.monotonic(), operation=answer)

    def settle(self, fake: FakeMember) -> None:
        """Let a broken engine be launched again, and tell the operator."""
        if fake.phase in {Phase.FAULTED, Phase.RECOVERING}:
            fake.relaunch()
        self._changed(fake.group)

    def retire(self, group: str, version: int) -> None:
        self.retired.append((group, version))

    async def stop(self, *, keep: bool) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.stopped = keep
