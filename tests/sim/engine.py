"""The engine of one pod: the real ranks over pretended memory, and control calls that are lost, hang, die and lie."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import KV, EngineState, ParkedCopy, Weights
from ebbtide_api.verbs import Canary, DrainMode
from ebbtide_runtime.agent.engine_client import Completion, Failed, Failure, Lost, Refused
from ebbtide_runtime.engine.rank import Rank

if TYPE_CHECKING:
    from .agent import AgentProcess
    from .pod import Pod

T = TypeVar("T")
MIB = 1 << 20
RESIDUAL, WEIGHTS, KV_CACHE = 100.0, 200.0, 50.0
FULL = RESIDUAL + WEIGHTS + KV_CACHE
SECONDS = {"state": 0.01, "pause": 0.05, "sleep": 0.3, "reload": 0.5, "wake": 0.2, "commit": 0.1, "complete": 0.1}
LIES = ("frees nothing", "frees late", "one rank", "says done")
FATES = ("lost before", "lost after", "dies before", "dies after", "hangs", "fails")


class SimMemory:
    """One rank's memory. `held` is the truth in MiB, whatever the rank believes."""

    def __init__(self, pod: Pod, ranks: int) -> None:
        self.pod, self.share = pod, 1.0 / ranks
        self.weights = self.kv = True
        self.stuck = 0.0
        self.copy: ParkedCopy | None = None

    @property
    def held(self) -> float:
        return self.share * (WEIGHTS * self.weights + KV_CACHE * self.kv) + self.stuck

    def prepare(self, version: int) -> int:
        if self.copy is not None and self.copy.version == version:
            return 0
        if self.pod.host_room < WEIGHTS * self.share:
            raise MemoryError("no host memory for a parked copy")
        self.copy = ParkedCopy(version=version, mib=WEIGHTS * self.share, valid=True)
        return int(WEIGHTS * self.share) * MIB

    def release_weights(self, keep_copy: bool) -> None:
        self._keep(WEIGHTS * self.share * self.weights)
        self.weights = False
        if not keep_copy:
            self.copy = None

    def release_kv(self) -> None:
        self._keep(KV_CACHE * self.share * self.kv)
        self.kv = False

    def _keep(self, mib: float) -> None:
        lie = self.pod.lie("sleep")
        if lie in {"frees nothing", "frees late"}:
            self.stuck += mib
            self.pod.later(1.0 if lie == "frees late" else 60.0, self._unstick)

    def _unstick(self) -> None:
        self.stuck = 0.0

    def restore_weights(self, from_copy: bool) -> None:
        self.weights, self.stuck = True, 0.0

    def restore_kv(self) -> None:
        self.kv, self.stuck = True, 0.0

    def start_parking(self, version: int) -> None:
        self.prepare(version)

    def forget_copy(self) -> None:
        self.copy = None

    def sizes(self) -> tuple[int, int, int]:
        whole = (int(WEIGHTS * self.share * MIB), int(KV_CACHE * self.share * MIB))
        return *whole, int(self.held * MIB)

    def parked(self) -> tuple[ParkedCopy | None, bool, str]:
        return self.copy, False, ""


class Engine:
    """An engine process and its workers. What it does it does whole, whoever waits for the answer."""

    def __init__(self, pod: Pod, pid: int, start: int, ranks: int) -> None:
        self.pod, self.pid, self.start = pod, pid, start
        self.memories = [SimMemory(pod, ranks) for _ in range(ranks)]
        self.ranks = [Rank(number, memory) for number, memory in enumerate(self.memories)]
        self.alive, self.loaded, self.paused = True, False, False
        self.gone = asyncio.Event()
        self.verified = False
        self.cache_version = 0
        for memory in self.memories:
            memory.weights = memory.kv = False

    def load(self) -> None:
        """The model is loaded, and the API answers from now on."""
        for memory, rank in zip(self.memories, self.ranks, strict=True):
            memory.weights = memory.kv = True
            rank.loaded()
            rank.kv_ready()
        self.loaded = True

    @property
    def used(self) -> float:
        return (RESIDUAL + sum(memory.held for memory in self.memories)) if self.alive else 0.0

    @property
    def version(self) -> int:
        return min(rank.version for rank in self.ranks)

    @property
    def whole(self) -> bool:
        """Whether every rank has committed weights and KV, all of one version."""
        views = {(rank.weights, rank.kv, rank.version, rank.pending) for rank in self.ranks}
        return views == {(Weights.RESIDENT, KV.RESIDENT, self.version, None)} and all(
            memory.weights and memory.kv for memory in self.memories
        )

    def state(self) -> EngineState:
        states = [rank.state() for rank in self.ranks]
        return EngineState(ranks=states, paused=self.paused, weight_version=self.version, kv_blocks=10)

    def each(self, step: Callable[[Rank], None], *, lying: str = "") -> EngineState | Failed:
        """Let every rank take a step; a lie lets only the first, or none."""
        ranks = {"one rank": self.ranks[:1], "says done": []}.get(lying, self.ranks)
        for rank in ranks:
            step(rank)
        if failure := next((rank.error for rank in ranks if rank.error), ""):
            return failed(ErrorCode.ENGINE_FAULTED, failure)
        return self.state()


def failed(code: ErrorCode, message: str) -> Failed:
    error = EbbtideError(code, message)
    return Failed(error.status, error.body())


class Line:
    """An agent's connection to its engine: every method of EngineClient."""

    def __init__(self, pod: Pod, agent: AgentProcess) -> None:
        self._pod, self._agent = pod, agent

    async def _call(self, verb: str, effect: Callable[[Engine], T]) -> T | Failure:
        # The engine finishes what it began, though the agent that asked is gone.
        return await asyncio.shield(self._pod.world.spawn(self._carried_out(verb, effect)))

    async def _carried_out(self, verb: str, effect: Callable[[Engine], T]) -> T | Failure:
        pod, engine = self._pod, self._pod.engine
        if engine is None or not engine.alive or not engine.loaded:
            return Refused(f"{verb}: nobody listens")
        fate = pod.fate(verb)
        await pod.world.wait(SECONDS.get(verb, 0.02))
        if fate == "hangs":
            await engine.gone.wait()
        if fate in {"dies before", "lost before", "fails"} or not engine.alive:
            return self._without_effect(engine, verb, fate)
        answer = effect(engine)
        if fate in {"dies after", "lost after"}:
            if fate == "dies after":
                engine.pod.engine_dies(engine)
            return Lost(f"{verb}: {fate}")
        return answer

    def _without_effect(self, engine: Engine, verb: str, fate: str) -> Failure:
        if fate == "dies before":
            engine.pod.engine_dies(engine)
        if fate == "fails" and engine.alive:
            return failed(ErrorCode.INTERNAL, f"{verb} fails")
        return Lost(f"{verb}: {fate or 'the engine died'}")

    # the calls

    async def state(self) -> EngineState | Failure:
        return await self._call("state", Engine.state)

    async def pause(self, mode: DrainMode, *, clear_cache: bool) -> Failure | None:
        def pause(engine: Engine) -> None:
            engine.paused = True
            if mode is DrainMode.ABORT:
                self._pod.abort_requests()

        return await self._call("pause", pause)

    async def resume(self) -> Failure | None:
        def resume(engine: Engine) -> Failure | None:
            if not engine.whole:
                return failed(ErrorCode.WEIGHTS_NOT_COMMITTED, "not whole")
            engine.paused = False
            return None

        return await self._call("resume", resume)

    async def sleep(self, level: int) -> EngineState | Failure:
        def sleep(engine: Engine) -> EngineState | Failure:
            self._pod.checks.sleep(self._pod, engine, level)
            for rank in engine.ranks:
                rank.prepare(level)
                if rank.error:
                    self._pod.checks.refused_to_sleep(self._pod, level)
                    return failed(ErrorCode.HOST_MEMORY_INSUFFICIENT, rank.error)
            engine.paused, engine.verified = True, False
            return engine.each(lambda rank: rank.sleep(level), lying=self._pod.lie("sleep"))

        return await self._call("sleep", sleep)

    async def wake_weights(self) -> EngineState | Failure:
        return await self._wake("weights")

    async def wake_kv(self) -> EngineState | Failure:
        return await self._wake("kv_cache")

    async def _wake(self, tag: str) -> EngineState | Failure:
        def wake(engine: Engine) -> EngineState | Failure:
            self._pod.checks.wake(self._pod, engine, tag)
            engine.verified = False
            if tag == "kv_cache":
                engine.paused = False
            return engine.each(lambda rank: rank.wake([tag]), lying=self._pod.lie("wake"))

        return await self._call("wake", wake)

    async def reload(self, path: str, version: int) -> EngineState | Failure:
        def reload(engine: Engine) -> EngineState | Failure:
            self._pod.checks.reload(self._pod, version)
            engine.verified = False
            there = version == 0 or version in self._pod.copies

            def load() -> None:
                if not there:
                    raise FileNotFoundError(path)

            return engine.each(lambda rank: rank.reload(version, load), lying=self._pod.lie("reload"))

        return await self._call("reload", reload)

    async def commit(self, version: int) -> EngineState | Failure:
        def commit(engine: Engine) -> EngineState | Failure:
            loaded = [rank.version if rank.pending is None else rank.pending for rank in engine.ranks]
            if {*loaded} != {version} or any(rank.weights is not Weights.RESIDENT for rank in engine.ranks):
                return failed(ErrorCode.WEIGHTS_NOT_COMMITTED, f"{version} is not loaded")
            self._pod.checks.commit(self._pod, version)
            engine.verified, engine.cache_version = False, version
            return engine.each(lambda rank: rank.commit(version), lying=self._pod.lie("commit"))

        return await self._call("commit", commit)

    async def park(self) -> Failure | None:
        def park(engine: Engine) -> None:
            for rank in engine.ranks:
                rank.park()

        return await self._call("park", park)

    async def complete(self, model: str, canary: Canary) -> Completion | Failure:
        def complete(engine: Engine) -> Completion:
            right = engine.whole and not engine.paused
            if right and self._pod.knows_canary(engine.version) and self._pod.lie("complete"):
                right = False
            engine.verified = right
            return Completion([engine.version, 7] if right else [666], "")

        return await self._call("complete", complete)
