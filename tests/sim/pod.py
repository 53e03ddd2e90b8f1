"""One member's pod: what outlives its agent. The control page, the launcher, the disk, and the requests inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from ebbtide_api.state import PHASE_NUMBER, Phase
from ebbtide_runtime.agent.store import Memory
from ebbtide_runtime.native import Field, Measurement

from .engine import FATES, FULL, LIES, MIB, RESIDUAL, WEIGHTS, Engine

if TYPE_CHECKING:
    from .agent import AgentProcess
    from .world import World

RUNNING = PHASE_NUMBER[Phase.RUNNING]


class Pod:
    """The durable part of a member, and its processes."""

    def __init__(self, world: World, name: str, ranks: int, baseline: bool) -> None:
        self.world, self.name, self.ranks = world, name, ranks
        self.checks = world.checks
        self.words = [0] * len(Field)
        self.last: Measurement | None = None
        self.measured: list[tuple[float, float, int]] = []
        self.inside: set[int] = set()
        self.disk = Memory()
        self.copies: set[int] = set()
        self.engine: Engine | None = None
        self.agent: AgentProcess | None = None
        self.launcher = False
        self.host_limit = float(10 * FULL)
        self.host_changed = 0.0
        self.lies: dict[str, str] = {}
        self.fates: dict[str, str] = {}
        self.begun: Counter[str] = Counter()
        self.touched = 0
        self._baseline = baseline
        self._launch = 0

    # faults

    def lie(self, verb: str) -> str:
        """Return the lie that this call tells, once."""
        return self.lies.pop(verb, "")

    def fate(self, verb: str) -> str:
        return self.fates.pop(verb, "")

    def curse(self, verb: str) -> None:
        """Let the next call of a verb end badly, or answer what is not so."""
        chance = self.world.chance
        if chance.random() < 0.5 and verb in {"sleep", "wake", "reload", "commit", "complete"}:
            self.lies[verb] = chance.choice(LIES if verb == "sleep" else LIES[2:])
        else:
            self.fates[verb] = chance.choice(FATES)

    def bless(self) -> None:
        self.lies.clear()
        self.fates.clear()

    def knows_canary(self, version: int) -> bool:
        """Whether the agent remembers what the right answer is: a first answer is believed, whatever it is."""
        return any(key.startswith(f"{version}:") for key in self.disk.canaries)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.world.loop.call_later(seconds, what)

    # memory

    @property
    def used(self) -> float:
        """The device memory that the pod's processes hold, in truth. MiB."""
        return self.engine.used if self.engine else 0.0

    @property
    def host_used(self) -> float:
        parked = sum(m.copy.mib for m in self.engine.memories if m.copy) if self.engine else 0.0
        return parked + WEIGHTS * len(self.copies)

    @property
    def host_room(self) -> float:
        return max(0.0, self.host_limit - self.host_used)

    def measure(self) -> None:
        engine = self.engine
        processes = self.ranks + 1 if engine and engine.alive else 0
        at = self.world.loop.time()
        used = int(self.used * MIB)
        self.last = Measurement(
            self.words[Field.MEASURE_REQUEST], int(at * 1e9), used, int(self.host_used * MIB), processes
        )
        self.measured = [*self.measured[-7:], (at, self.used, engine.pid if engine and engine.alive else 0)]

    def measurement(self) -> Measurement | None:
        # The launcher measures every second; nobody sees when, so it is done when somebody looks.
        if self.launcher and (self.last is None or self.world.loop.time() * 1e9 - self.last.time_ns >= 1e9):
            self.measure()
        return self.last

    # the launcher

    def boot(self) -> None:
        """Start a launcher, which ends what an earlier one left."""
        if self.launcher:
            return
        self.launcher = True
        self._launch += 1
        if self.engine is not None:
            self._end_engine()
        self._publish(0, 0)
        self.words[Field.BASELINE] = 0
        self.words[Field.BOOT] += 1
        self.world.note(f"{self.name}: launch {self.words[Field.BOOT]}")
        self.told()

    def told(self) -> None:
        """The launcher reads the page: is it granted the device, or to be ended?"""
        launch = self._launch
        self.later(0.02, lambda: self._read(launch))

    def _read(self, launch: int) -> None:
        boot = self.words[Field.BOOT]
        if not self.launcher or launch != self._launch:
            return
        if self.words[Field.KILL] == boot:
            self._finish("ended by its agent")
        elif self.words[Field.GRANT] == boot and self.engine is None:
            self._start(launch)

    def _start(self, launch: int) -> None:
        pid = self.world.new_pid()
        self.engine = engine = Engine(self, pid, pid * 10, self.ranks)
        self.checks.engine_starts(self)
        self._publish(pid, engine.start)
        self.world.note(f"{self.name}: engine {pid} starts")
        self.later(0.5, lambda: self._loading(engine))
        self.later(1.5, lambda: self._loaded(engine))

    def _loading(self, engine: Engine) -> None:
        if engine.alive:
            self.words[Field.BASELINE] = int(RESIDUAL * MIB) if self._baseline else 0

    def _loaded(self, engine: Engine) -> None:
        if engine.alive:
            engine.load()
            self.world.memory_moved(f"{self.name} loaded")

    def _publish(self, pid: int, start: int) -> None:
        self.words[Field.ENGINE_PID], self.words[Field.ENGINE_START] = pid, start

    def engine_dies(self, engine: Engine) -> None:
        """The engine's processes end, and their memory is free."""
        if not engine.alive or self.engine is not engine:
            return
        self.world.note(f"{self.name}: engine {engine.pid} dies")
        engine.alive = False
        engine.gone.set()
        self.inside.clear()
        launch = self._launch
        self.later(0.2, lambda: self._noticed(launch, engine))

    def _noticed(self, launch: int, engine: Engine) -> None:
        if self.launcher and launch == self._launch and self.engine is engine:
            self._finish("died")

    def _end_engine(self) -> None:
        if self.engine is not None:
            self.engine.alive = False
            self.engine.gone.set()
            self.inside.clear()
        self.engine = None

    def _finish(self, why: str) -> None:
        started = self.engine is not None
        self._end_engine()
        if started:
            self.measure()
            self.words[Field.ENGINE_EXITS] += 1
        self._publish(0, 0)
        self.world.note(f"{self.name}: the launcher ends, its engine {why}")
        self.launcher_dies()

    def launcher_dies(self) -> None:
        """The launcher is gone; an engine lives on until the next one ends it."""
        self.launcher = False
        self.later(0.5, self.boot)

    # requests

    def enter(self, number: int, seconds: float) -> None:
        """A request comes to the gate."""
        if self.words[Field.ADMISSION] == 1 and self.engine is not None and self.engine.alive:
            self.checks.admitted(self, self.engine)
            self.inside.add(number)
            self.later(seconds, lambda: self.inside.discard(number))

    def abort_requests(self) -> None:
        self.later(0.05, self.inside.clear)

    def write(self, memory: Memory) -> None:
        """Make what an agent remembers durable."""
        self.checks.written(self, self.disk, memory)
        self.disk = memory


class AgentPage:
    """The page as one agent process has it mapped: once the process is dead, nothing of it gets there."""

    def __init__(self, pod: Pod, agent: AgentProcess) -> None:
        self._pod, self._agent = pod, agent

    def get(self, field: Field) -> int:
        return self._pod.words[field]

    def set(self, field: Field, value: int) -> None:
        if self._agent.dead:
            return
        pod = self._pod
        pod.words[field] = value
        if field is Field.PHASE:
            pod.checks.phase_told(pod)
        elif field is Field.GRANT:
            pod.told()
        elif field is Field.KILL:
            pod.touched += 1
            pod.told()

    def add(self, field: Field, delta: int) -> int:
        pod = self._pod
        if not self._agent.dead:
            pod.words[field] += delta
            if field is Field.MEASURE_REQUEST and pod.launcher:
                pod.measure()
        return pod.words[field]

    def open_gate(self) -> None:
        if not self._agent.dead:
            self._pod.words[Field.ADMISSION] = 1
            self._pod.touched += 1
            self._pod.checks.opened(self._pod)

    def close_gate(self) -> None:
        if not self._agent.dead:
            self._pod.touched += self._pod.words[Field.ADMISSION]
            self._pod.words[Field.ADMISSION] = 0

    @property
    def admission(self) -> bool:
        return self._pod.words[Field.ADMISSION] == 1

    def inflight(self) -> int:
        return len(self._pod.inside)

    def measurement(self) -> Measurement | None:
        return self._pod.measurement()
