"""One agent process: the real executor, member, observer and verbs, over a simulated page, disk and engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.member import MemberConfig
from ebbtide_api.state import StateVector
from ebbtide_api.verbs import Operation
from ebbtide_operator.drive.agents import POLL, Unreachable
from ebbtide_operator.plan import Call
from ebbtide_runtime.agent import executor, probe
from ebbtide_runtime.agent.checkpoint import Expected
from ebbtide_runtime.agent.ingest import Ingest, Ingested
from ebbtide_runtime.agent.lifecycle import host_refusal
from ebbtide_runtime.agent.manifest_check import Bad, Reason
from ebbtide_runtime.agent.member import Member
from ebbtide_runtime.agent.observer import Observer
from ebbtide_runtime.agent.settings import Settings
from ebbtide_runtime.agent.steps import ACTIONS, common, start, update
from ebbtide_runtime.agent.store import Store
from ebbtide_runtime.agent.vector import Board

from .engine import FULL, MIB, WEIGHTS, Line
from .pod import AgentPage, Pod

if TYPE_CHECKING:
    from .world import World

SETTINGS = Settings(
    tick_s=1.0,
    observe_s=0.5,
    rest_observe_s=5.0,
    silence_s=10.0,
    unknown_s=20.0,
    start_s=40.0,
    drain_abort_s=3.0,
    pause_s=5.0,
    suspend_s=10.0,
    settle_s=3.0,
    measure_s=2.0,
    suspended_s=20.0,
    wake_weights_s=10.0,
    wake_kv_s=10.0,
    ingest_s=10.0,
    reload_s=10.0,
    commit_s=10.0,
    canary_s=5.0,
    rest_s=60.0,
    recover_s=10.0,
)


class Keeper:
    """Deadlines in simulated time. Like the real one it belongs to no operation, and dies with its process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._timers = loop, dict[str, asyncio.TimerHandle]()

    def arm(self, name: str, seconds: float, expire: Callable[[], None]) -> None:
        self.disarm(name)

        def fire() -> None:
            del self._timers[name]
            expire()

        self._timers[name] = self._loop.call_later(seconds, fire)

    def disarm(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()

    def armed(self) -> list[str]:
        return sorted(self._timers)

    def close(self) -> None:
        for name in list(self._timers):
            self.disarm(name)


class Disk(Store):
    """The agent's memory on the pod's disk. A write takes a moment, in which the process may die."""

    def __init__(self, pod: Pod, agent: AgentProcess) -> None:
        self._pod, self._agent = pod, agent
        self.memory = pod.disk

    async def save(self, **changes: object) -> None:
        self.memory = self.memory.model_copy(update=changes)
        await asyncio.sleep(0)
        if not self._agent.dead:
            self._pod.write(self.memory)


class _Uncounted:
    def ended(self, operation: Operation, seconds: float) -> None:
        pass

    def refused(self, code: ErrorCode) -> None:
        pass


class Counted(executor.Executor):
    """The real executor; what it begins is counted, by the operation's name."""

    pod: Pod

    async def _run(self, slot: Any, work: Any) -> None:
        if slot.digest:
            self.pod.begun[slot.running.id] += 1
            self.pod.world.note(f"{self.pod.name}: {slot.running.id} runs")
        await super()._run(slot, work)


class Told(Board):
    """The real board; it is put together anew only when something of what it tells has changed."""

    _known: tuple[Any, ...] = ()
    _vector: StateVector

    def refresh(self) -> StateVector:
        member = self._member
        page: Any = member.page
        pod = page._pod
        seen = (member.observed, member.store.memory, member.last_error, page.measurement())
        known = (*map(id, seen), member.phase, member.since, self._operation(), len(pod.inside), *pod.words)
        if known != self._known:
            # Kept, so that nothing new can have the identity of what it was made from.
            self._seen, self._known, self._vector = seen, known, super().refresh()
        return self._vector


def config_of(name: str, ranks: int, level: int) -> MemberConfig:
    server, ordinal = name.rsplit("-", 1)
    return MemberConfig(
        name=name,
        uid=f"uid-{name}",
        server=server,
        group="actor",
        ordinal=int(ordinal),
        home=f"/home/{name}",
        memory=f"/memory/{name}",
        handoff="/handoff/actor",
        data_port=1,
        agent_port=2,
        model="/model",
        served_name="chat",
        tensor_parallel=ranks,
        device_budget=int(10 * FULL) * MIB,
        level=level,
    )


class AgentProcess:
    """An agent, from its start to its death."""

    def __init__(self, pod: Pod, level: int) -> None:
        world, loop = pod.world, pod.world.loop
        self.pod, self.dead = pod, False
        self.handlers: set[asyncio.Task[Any]] = set()
        self.keeper = Keeper(loop)
        page: Any = AgentPage(pod, self)
        engine: Any = Line(pod, self)
        keeper: Any = self.keeper
        self.store = Disk(pod, self)
        self.member = Member(config_of(pod.name, pod.ranks, level), SETTINGS, page, self.store, engine, keeper)
        self.member.publish_epoch()
        metrics: Any = _Uncounted()
        self.executor = Counted(self.member, ACTIONS.__getitem__, metrics)
        self.executor.pod = pod
        self.board = Told(self.member, lambda: self.executor.current)
        self.member.changed = self._tell
        self.observer = Observer(self.member, self.executor, self.board)
        self.watching = world.spawn(self.observer.run())

    def _tell(self) -> None:
        if not self.dead:
            self.board.refresh()

    def kill(self) -> None:
        """Die at once: nothing that it was doing goes on, and nothing of it is written any more."""
        self.dead = True
        self.pod.world.note(f"{self.pod.name}: agent dies in {self.member.phase}")
        self.keeper.close()
        slot, observer = self.executor._slot, self.observer
        tasks = [self.watching, slot.task if slot else None, observer._question, observer._adoption]
        tasks += sorted(self.handlers, key=lambda task: task.get_name())
        for task in tasks:
            if task is not None:
                task.cancel()


class Wire:
    """The operator's client of one agent, over a network that loses, delays and repeats."""

    def __init__(self, pod: Pod) -> None:
        self.pod, self.url = pod, f"sim://{pod.name}"

    async def close(self) -> None:
        pass

    async def _ask(self, ask: Callable[[AgentProcess], Any], *, repeatable: bool = False) -> Any:
        return await self.pod.world.network.carry(
            self.pod.name, lambda: self._at_agent(ask), Unreachable, repeat=repeatable
        )

    async def _at_agent(self, ask: Callable[[AgentProcess], Any]) -> Any:
        agent = self.pod.agent
        if agent is None or agent.dead:
            raise Unreachable("nobody listens")
        handler = self.pod.world.spawn(ask(agent))
        agent.handlers.add(handler)
        handler.add_done_callback(agent.handlers.discard)
        # Who asked may go away; what was asked is still done.
        await asyncio.wait({handler})
        if agent.dead or handler.cancelled():
            raise Unreachable("it died meanwhile")
        return handler.result()

    async def state(self, newer_than: int | None = None) -> StateVector:
        if newer_than is None:
            return await self._ask(lambda agent: agent.board.after(0, 0.0))  # type: ignore[no-any-return]
        return await self._ask(lambda agent: agent.board.after(newer_than, POLL))  # type: ignore[no-any-return]

    async def begin(self, call: Call) -> Operation:
        made = executor.Call(call.verb, call.key, call.epoch, call.body, call.instance or None)
        return await self._ask(lambda agent: self._submitted(agent, made), repeatable=True)  # type: ignore[no-any-return]

    async def _submitted(self, agent: AgentProcess, call: executor.Call) -> Operation:
        checks, before = self.pod.checks, (self.pod.disk.epoch, self.pod.touched, agent.member.phase)
        operation = await agent.executor.submit(call)
        checks.accepted(self.pod, agent, call, operation, before)
        return operation

    async def operation(self, name: str) -> Operation:
        found = await self._ask(lambda agent: agent.executor.wait(name, POLL))
        if found is None:
            raise EbbtideError(ErrorCode.NOT_FOUND, f"no operation {name!r} is remembered")
        return found  # type: ignore[no-any-return]


class _Place(PurePosixPath):
    """A folder of a simulated disk."""

    world: World

    def is_dir(self) -> bool:
        name, version = self.parts[2], self.name
        return version.startswith("v") and int(version[1:]) in self.world.pods[name].copies


def _take_in(world: World) -> Callable[[Ingest], Any]:
    def run(job: Ingest) -> Any:
        pod = world.pods[PurePosixPath(job.weights_dir).parts[2]]
        how = world.handoff.get(str(job.source))
        if how != "whole":
            return Bad(Reason.UNREADABLE, f"{job.source} is {how or 'not there'}")
        if job.room < WEIGHTS * MIB:
            return host_refusal("the copy", int(WEIGHTS) * MIB, job.room)
        pod.copies.add(job.version)
        return Ingested(job.version, job.weights_dir / f"v{job.version}", int(WEIGHTS) * MIB)

    return run


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """Let agents see simulated processes, host memory and folders."""

    def available(folder: PurePosixPath, _writer: int) -> int:
        return int(world.pods[folder.parts[2]].host_room * MIB)

    def discard(folder: PurePosixPath, keep: frozenset[int]) -> None:
        world.pods[folder.parts[2]].copies.intersection_update(keep)

    place = type("Place", (_Place,), {"world": world})
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(probe, "process_start", world.process_start))
        stack.enter_context(patch.object(common, "available", available))
        stack.enter_context(patch.object(update.ingest, "run", _take_in(world)))
        stack.enter_context(patch.object(update.ingest, "discard", discard))
        stack.enter_context(patch.object(update, "read_expected", lambda _model: Expected({})))
        for module in (common, start, update):
            stack.enter_context(patch.object(module, "Path", place))
        yield
