"""The world: pods, an operator, trainers and clients of the model, a network between them, and bad luck.

Everything follows from a seed: what there is, which kinds of bad luck there are, and when they strike.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ebbtide.client.flow import Answer
from ebbtide_api.state import Phase
from ebbtide_operator.operations import Entry
from ebbtide_operator.plan import ENGINE, GroupRecord, TrainerView

from .agent import AgentProcess, simulated
from .checks import Checks
from .clock import Loop, frozen
from .engine import FULL
from .gateway import Request, handle
from .network import GATEWAY, Network
from .operator import GROUP, OperatorProcess, server_of
from .pod import Pod
from .trainer import Trainer

STEPS = 500
CALM = 6000
"""Steps in which a world without bad luck must come to rest."""
UNMEASURED = 5
"""In one of so many worlds nobody can measure what a trainer holds, as on GPUs and of pods."""
KINDS = (
    "agent",
    "engine",
    "launcher",
    "operator",
    "trainer",
    "stop",
    "jump",
    "cut",
    "curse",
    "host",
    "replay",
)


@dataclass
class Faults:
    """Which kinds of bad luck there are, and how likely the steady ones are."""

    kinds: tuple[str, ...] = KINDS
    every: float = 3.0
    loss: float = 0.0
    repeats: float = 0.0
    slow: float = 0.0
    torn: float = 0.0
    forgets: float = 0.0
    dies_in_plan: float = 0.0
    unmeasured: bool = False

    @classmethod
    def draw(cls, chance: Random) -> Faults:
        """Draw some kinds: a world with all of them at once hardly ever gets anywhere."""

        def some(most: float) -> float:
            return chance.choice([0.0, 0.0, most / 3, most])

        return cls(
            kinds=tuple(sorted(chance.sample(KINDS, chance.randint(0, 5)))),
            every=chance.choice([1.0, 3.0, 10.0]),
            loss=some(0.1),
            repeats=some(0.3),
            slow=some(0.1),
            torn=some(0.4),
            forgets=some(0.3),
            dies_in_plan=some(0.05),
        )

    def end(self) -> None:
        self.loss = self.repeats = self.slow = self.torn = self.forgets = self.dies_in_plan = 0.0


@dataclass
class Violation(AssertionError):  # noqa: N818
    """An invariant that does not hold; 0 is liveness."""

    invariant: int
    text: str
    seed: int = 0
    step: int = 0
    trace: list[str] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        replay = f"python -m tests.sim --seed {self.seed}"
        lines = "\n".join(self.trace[-40:])
        return f"invariant {self.invariant}, step {self.step}: {self.text}\nreplay: {replay}\n{lines}"


class World:
    """One run. `step` raises Violation."""

    def __init__(self, seed: int, told: Callable[[str], None] | None = None, faults: Faults | None = None) -> None:
        self.seed, self.chance, self.loop = seed, Random(seed), Loop()
        self.trace: deque[str] = deque(maxlen=200)
        self._told, self._faults = told, faults
        self.violations: list[Violation] = []
        self.steps, self.busy = 0, True
        self._pids, self._version = 100, 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.loop.set_exception_handler(self._escaped)
        # durable
        self.record = GroupRecord(group=GROUP)
        self.entries: dict[str, Entry] = {}
        self.handoff: dict[str, str] = {}
        self.checks = Checks(self)

    def build(self) -> None:
        """Make what there is, by the seed."""
        chance = self.chance
        drawn = Faults.draw(chance)
        self.faults = replace(self._faults) if self._faults else drawn
        # By the seed and not by a draw: a draw more would make every world another one.
        self.measured = self.seed % UNMEASURED != 0 and not self.faults.unmeasured
        self.network = Network(self)
        self.replicas = chance.choice([1, 1, 2, 2, 3])
        awake = chance.choice([self.replicas, self.replicas, chance.randint(0, self.replicas)])
        self.level = chance.choice([0, 0, 0, 2])
        self.server = server_of(self.replicas, awake)
        self.awake, self.budget = awake, self.replicas * FULL + 40
        ranks, baseline = chance.choice([1, 1, 2]), chance.random() < 0.5
        self.pods = {f"chat-{n}": Pod(self, f"chat-{n}", ranks, baseline) for n in range(self.replicas)}
        self.note(f"seed {self.seed}: {self.replicas} replicas of {ranks} ranks, {awake} awake; {self.faults}")
        for pod in self.pods.values():
            pod.boot()
            pod.agent = AgentProcess(pod, self.level)
        self.operator = OperatorProcess(self)
        self.trainers = [Trainer(self, f"trainer-{n}") for n in range(chance.choice([1, 2, 2, 3]))]
        self.spawn(self._devil())
        self.spawn(self._public())

    # time and tasks

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it hears of it

    def _escaped(self, _loop: Any, context: dict[str, Any]) -> None:
        self.note(f"escaped: {context.get('message')} {context.get('exception')!r}")

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def step(self) -> None:
        """Do everything that happens at the next instant, and check every invariant."""
        self.steps += 1
        self.loop.step()
        self.checks.always()
        if self.violations:
            raise self.violations[0]

    def close(self) -> None:
        self._told = None
        self.operator.dead = True
        for pod in self.pods.values():
            if pod.agent is not None:
                pod.agent.dead = True
        # What a task does when it is cancelled may begin others.
        for _ in range(20):
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.step()
        self.loop._ready.clear()  # type: ignore[attr-defined]
        self.loop.close()

    # what is told

    def note(self, text: str) -> None:
        line = f"{self.steps:5} {self.loop.at:9.3f} {text}"
        self.trace.append(line)
        if self._told:
            self._told(line)

    def violate(self, invariant: int, text: str) -> None:
        """Say that an invariant does not hold. It is raised at the end of the step: not in code that catches it."""
        self.note(f"VIOLATION of {invariant}: {text}")
        self.violations.append(Violation(invariant, text, self.seed, self.steps, list(self.trace)))

    def describe(self) -> str:
        phases = {
            name: str(pod.agent.member.phase) if pod.agent and not pod.agent.dead else "no agent"
            for name, pod in self.pods.items()
        }
        lease = self.record.lease
        known = f"{lease.stage} of {lease.holder}" if lease else "no lease"
        queue = [waiting.holder for waiting in self.record.queue]
        open_operations = [name for name, entry in self.entries.items() if entry.open]
        holders = {trainer.name: (trainer.state, trainer.held) for trainer in self.trainers}
        return f"{phases}, {known}, queue {queue}, open {open_operations}, {holders}, serve {self.record.serve}"

    # names

    def new_pid(self) -> int:
        self._pids += 1
        return self._pids

    def next_version(self) -> int:
        self._version += 1
        return self._version

    def process_start(self, pid: int) -> int | None:
        for pod in self.pods.values():
            if pod.engine and pod.engine.pid == pid and pod.engine.alive:
                return pod.engine.start
        return None

    # what is durable

    def save(self, record: GroupRecord) -> None:
        self.checks.saved(self.record, record)
        lease = record.lease
        self.note(f"record: epoch {record.epoch}, {record.owner}, {lease.stage if lease else 'no lease'}")
        self.record = record

    # the operator

    async def to_gateway(self, request: Request) -> Answer:
        return await self.network.carry(  # type: ignore[no-any-return]
            GATEWAY, lambda: self._at_gateway(request), ConnectionError, repeat=request.method != "GET"
        )

    async def _at_gateway(self, request: Request) -> Answer:
        operator = self.operator
        return await operator.handle(lambda: handle(operator, request))  # type: ignore[no-any-return]

    def operator_died(self) -> None:
        self.loop.call_later(self.chance.uniform(0.1, 3.0), self._new_operator)

    def _new_operator(self) -> None:
        self.note("operator starts")
        self.operator = OperatorProcess(self)

    # trainers and clients

    def trainer_view(self, pid: int | None) -> TrainerView | None:
        """Measure a trainer's process, as the kernel knows it. A dead one's memory may take a while to be freed."""
        trainer = next((one for one in self.trainers if one.pid == pid), None)
        if trainer is None:
            return None
        alive = not trainer.dead or (trainer.held > 0 and not self.measured)
        return TrainerView(trainer.pid, alive, trainer.held if self.measured else None)

    def memory_moved(self, what: str) -> None:
        self.checks.memory(what)

    async def _public(self) -> None:
        """The clients of the model."""
        number = 0
        while self.busy:
            await asyncio.sleep(self.chance.uniform(0.2, 1.5))
            number += 1
            self.pods[self.chance.choice(sorted(self.pods))].enter(number, self.chance.choice([0.1, 0.5, 3.0]))

    # bad luck

    async def _devil(self) -> None:
        from .luck import strike

        while self.busy and self.faults.kinds:
            await asyncio.sleep(self.chance.expovariate(1 / self.faults.every))
            if self.busy:
                strike(self, self.chance.choice(self.faults.kinds))

    def calm(self) -> None:
        """No bad luck from now on; whoever can go on goes on, and nobody begins anything new."""
        self.note("calm")
        self.busy = False
        self.faults.end()
        self.network.heal()
        for pod in self.pods.values():
            pod.bless()
            pod.host_limit = float(10 * FULL)
        for trainer in self.trainers:
            trainer.go_on()

    @property
    def at_rest(self) -> bool:
        """Whether everything is as it was asked for, and nobody waits."""
        record = self.record
        if record.lease or record.queue or record.owner != ENGINE or any(e.open for e in self.entries.values()):
            return False
        return all(self._as_asked(number, pod) for number, pod in enumerate(self.pods.values()))

    def _as_asked(self, number: int, pod: Pod) -> bool:
        agent = pod.agent
        if agent is None or agent.dead or not agent.executor.idle:
            return False
        if number < self.awake:
            return agent.member.phase is Phase.RUNNING and agent.member.page.admission
        return agent.member.phase in {Phase.ASLEEP, Phase.PENDING_DEVICE}


@contextlib.contextmanager
def world_of(seed: int, told: Callable[[str], None] | None = None, faults: Faults | None = None) -> Iterator[World]:
    """Make a world and let it live, until the block ends."""
    world = World(seed, told, faults)
    gc.disable()
    with frozen(world.loop, world.chance), simulated(world):
        world.build()
        try:
            yield world
        finally:
            world.close()
            gc.enable()


def run(
    seed: int, steps: int = STEPS, told: Callable[[str], None] | None = None, faults: Faults | None = None
) -> World:
    """Run a world through bad luck, then to its rest. Raises Violation."""
    with world_of(seed, told, faults) as world:
        for _ in range(steps):
            world.step()
        world.calm()
        for _ in range(CALM):
            if world.at_rest:
                return world
            world.step()
        world.violate(0, f"not at rest {CALM} steps after the last bad luck: {world.describe()}")
        raise world.violations[0]
