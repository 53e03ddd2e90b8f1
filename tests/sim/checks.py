"""The invariants of DESIGN 5.2, compared with the truth: what processes hold, not what anybody says of them.

`always` runs after every step; everything else where the thing happens that it is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ebbtide.client.flow import Reply
from ebbtide_api.base import Reading
from ebbtide_api.errors import ErrorBody, ErrorCode
from ebbtide_api.state import PHASE_NUMBER, Phase, Weights
from ebbtide_api.verbs import EPOCH, LeaseStage, Operation, OperationStatus, Verb
from ebbtide_operator.plan import ENGINE, Call, GroupRecord
from ebbtide_runtime.agent.lifecycle import TERMINAL
from ebbtide_runtime.agent.store import Memory
from ebbtide_runtime.native import Field

from .engine import FULL, RESIDUAL, WEIGHTS, Engine

if TYPE_CHECKING:
    from .agent import AgentProcess
    from .gateway import Request
    from .operator import OperatorProcess
    from .pod import Pod
    from .world import World

RELEASED = RESIDUAL * 1.05 + 16 + 1
"""What a member may hold that was measured free. MiB."""
SETTLE = 0.2
RUNNING = PHASE_NUMBER[Phase.RUNNING]
# What a member's refusal of a lend or of a version says: then its name is in the answer.
OF_A_MEMBER = frozenset(
    {
        ErrorCode.RELEASE_INCOMPLETE,
        ErrorCode.DRAIN_DEADLINE,
        ErrorCode.HOST_MEMORY_INSUFFICIENT,
        ErrorCode.LEVEL_UNSUPPORTED,
        ErrorCode.ENGINE_FAULTED,
        ErrorCode.RANK_DISAGREEMENT,
        ErrorCode.CANARY_FAILED,
        ErrorCode.MANIFEST_INVALID,
    }
)
OWNING = frozenset({LeaseStage.LENT, LeaseStage.RETURNING, LeaseStage.OWNER_LOST})


class Checks:
    """Every check of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last_owner = 0
        self._answers: dict[tuple[str, str], tuple[OperationStatus, ErrorCode | None]] = {}

    def _violate(self, invariant: int, text: str) -> None:
        self._world.violate(invariant, text)

    # after every step

    def always(self) -> None:
        world = self._world
        self.memory("time passed")
        for pod in world.pods.values():
            if pod.words[Field.ADMISSION]:
                self._open(pod)
            agent = pod.agent
            if agent is not None and not agent.dead:
                self._deadline(pod, agent)

    def _open(self, pod: Pod) -> None:
        if pod.words[Field.PHASE] != RUNNING:
            self._violate(2, f"{pod.name} admits requests in phase {pod.words[Field.PHASE]}")
        engine = pod.engine
        if engine is not None and engine.alive and engine.loaded and not engine.whole:
            self._violate(5, f"{pod.name} admits requests with weights {[rank.weights for rank in engine.ranks]}")

    def _deadline(self, pod: Pod, agent: AgentProcess) -> None:
        phase = agent.member.phase
        if phase not in TERMINAL and "phase" not in agent.keeper.armed():
            self._violate(8, f"{pod.name} may stay in {phase} for ever")

    def memory(self, what: str) -> None:
        """1 and 13: whoever uses the device, there is no more used than there is."""
        world = self._world
        holders = {trainer.name: trainer.held for trainer in world.trainers if trainer.held}
        used = sum(pod.used for pod in world.pods.values()) + sum(holders.values())
        if used > world.budget + 1:
            members = {pod.name: pod.used for pod in world.pods.values()}
            invariant = 1 if world.record.owner in holders else 13
            self._violate(invariant, f"{what}: {used:.0f} MiB of {world.budget:.0f}: {members}, {holders}")

    # the page

    def phase_told(self, pod: Pod) -> None:
        if pod.words[Field.ADMISSION] and pod.words[Field.PHASE] != RUNNING:
            self._violate(10, f"{pod.name} told phase {pod.words[Field.PHASE]} before it closed its gate")

    def opened(self, pod: Pod) -> None:
        if pod.words[Field.PHASE] != RUNNING:
            self._violate(2, f"{pod.name} opens its gate in phase {pod.words[Field.PHASE]}")
        engine, committed = pod.engine, pod.disk.committed.version
        if engine is None or not engine.alive:
            return
        if not engine.whole or engine.version != committed:
            weights = [(rank.weights, rank.kv, rank.version, rank.pending) for rank in engine.ranks]
            self._violate(5, f"{pod.name} opens with {weights}; {committed} is committed")
        if not engine.version == engine.cache_version == pod.words[Field.CACHE_EPOCH]:
            caches = (engine.cache_version, pod.words[Field.CACHE_EPOCH])
            self._violate(6, f"{pod.name} opens with weights {engine.version} and caches of {caches}")
        if not engine.verified:
            self._violate(3, f"{pod.name} opens without a canary that was answered right")

    def admitted(self, pod: Pod, engine: Engine) -> None:
        if not engine.whole or engine.version != engine.cache_version:
            self._violate(5, f"{pod.name} takes a request with version {engine.version} of {engine.ranks[0].weights}")

    # the engine

    def engine_starts(self, pod: Pod) -> None:
        record = self._world.record
        stage = record.lease.stage if record.lease else None
        if pod.words[Field.GRANT] != pod.words[Field.BOOT]:
            self._violate(12, f"{pod.name} starts an engine that was not granted the device")
        if record.owner != ENGINE and stage is not LeaseStage.RETURNING:
            self._violate(12, f"{pod.name} starts an engine on the device of {record.owner} ({stage})")

    def sleep(self, pod: Pod, engine: Engine, level: int) -> None:
        if pod.inside:
            self._violate(2, f"{pod.name} is put to sleep under {len(pod.inside)} requests")
        committed = pod.disk.committed.version
        if level == 2 and committed and committed not in pod.copies:
            self._violate(11, f"{pod.name} discards weights of version {committed} that nothing holds")
        copies = [memory.copy for memory in engine.memories]
        parked = all(copy is not None and copy.version == engine.version for copy in copies)
        if level == 2 and parked and self._world.level == 0:
            self._violate(11, f"{pod.name} discards weights that are parked")

    def refused_to_sleep(self, pod: Pod, level: int) -> None:
        if self._world.loop.time() - pod.host_changed > 2.0:
            self._violate(11, f"{pod.name} was to sleep at level {level} with {pod.host_room:.0f} MiB for its weights")

    def wake(self, pod: Pod, engine: Engine, tag: str) -> None:
        weights = [rank.weights for rank in engine.ranks]
        if tag == "kv_cache" and any(one is not Weights.RESIDENT for one in weights):
            self._violate(3, f"{pod.name} wakes its KV with weights {weights}")

    def reload(self, pod: Pod, version: int) -> None:
        if version < pod.disk.committed.version:
            self._violate(5, f"{pod.name} loads version {version} after {pod.disk.committed.version}")

    def commit(self, pod: Pod, version: int) -> None:
        if version > max(self._world.record.serve.version, pod.disk.committed.version):
            self._violate(7, f"{pod.name} commits version {version}, which was not decided")

    # the agent

    def written(self, pod: Pod, before: Memory, after: Memory) -> None:
        if after.epoch < before.epoch:
            self._violate(1, f"{pod.name} remembers epoch {after.epoch} after {before.epoch}")
        if after.committed.version < before.committed.version:
            self._violate(5, f"{pod.name} remembers version {after.committed.version} after {before.committed.version}")
        if after.finished and after.finished[-1] not in before.finished[-1:]:
            self._finished(pod, after.finished[-1].operation)

    def _finished(self, pod: Pod, operation: Operation) -> None:
        if operation.verb == Verb.SLEEP and operation.status is OperationStatus.DONE and not operation.noop:
            self._measured_twice(pod)

    def _measured_twice(self, pod: Pod) -> None:
        engine = pod.engine
        if engine is None or not engine.alive:
            return
        pid, last = engine.pid, pod.measured[-1]
        free: list[float] = []
        for at, used, of in reversed(pod.measured):
            if used > RELEASED or of != pid:
                break
            free.append(at)
        if not free or last[0] - free[-1] < SETTLE - 1e-6:
            self._violate(4, f"{pod.name} says that it released its memory: measured {pod.measured[-3:]}")

    def accepted(
        self, pod: Pod, agent: AgentProcess, call: Any, operation: Operation, before: tuple[int, int, Phase]
    ) -> None:
        """A call that was not refused. `before`: the epoch that was known, what was touched, and the phase."""
        epoch, touched, phase = before
        if call.epoch < epoch:
            self._violate(1, f"{pod.name} accepts {call.verb} of epoch {call.epoch} after {epoch}")
        if operation.noop and pod.touched != touched and agent.member.phase is phase and not agent.dead:
            self._violate(9, f"{pod.name}: {call.verb} in {phase} is called a no-op, and was none")
        if pod.begun[call.key] > 1:
            self._violate(14, f"{pod.name} ran {call.key} {pod.begun[call.key]} times")
        self._same_answer(pod.name, operation)

    def _same_answer(self, where: str, operation: Operation) -> None:
        if operation.status is OperationStatus.RUNNING:
            return
        answer = (operation.status, operation.error.code if operation.error else None)
        if self._answers.setdefault((where, operation.id), answer) != answer:
            told = self._answers[where, operation.id]
            self._violate(14, f"{where} answers {operation.id} with {answer}, and said {told} before")

    # the operator

    def called(self, process: OperatorProcess, call: Call) -> None:
        if not process.dead and call.epoch != self._world.record.epoch:
            self._violate(1, f"{call.verb} of {call.member} is called with epoch {call.epoch}")

    def saved(self, before: GroupRecord, after: GroupRecord) -> None:
        if after.epoch < before.epoch:
            self._violate(1, f"the epoch goes from {before.epoch} to {after.epoch}")
        if after.serve.version < before.serve.version:
            self._violate(5, f"version {after.serve.version} is to be served after {before.serve.version}")
        if after.serve.version > before.serve.version and after.serve.source:
            self._decided(after.serve.version)
        if after.lease and before.lease and after.lease.id != before.lease.id and after.epoch == before.epoch:
            self._violate(1, f"two leases have epoch {after.epoch}")
        if after.owner != before.owner:
            self._owner(before, after)
        if after.owner != ENGINE and not (after.lease and after.lease.stage in OWNING):
            self._violate(1, f"{after.owner} owns the device without a lease of it")

    def _decided(self, version: int) -> None:
        for pod in self._world.pods.values():
            engine = pod.engine
            if engine is None or not engine.alive or not engine.loaded:
                continue
            if engine.version < version and {rank.pending for rank in engine.ranks} != {version}:
                self._violate(7, f"version {version} is decided, and {pod.name} has not loaded it")

    def _owner(self, before: GroupRecord, after: GroupRecord) -> None:
        if after.owner == ENGINE:
            self._back(before, after)
            return
        # One for the engine that it came back to, and one for the lease.
        if after.epoch < self._last_owner + 2:
            self._violate(1, f"{after.owner} owns the device in epoch {after.epoch}, as the engine did before it")
        self._last_owner = after.epoch
        if before.owner != ENGINE:
            self._violate(1, f"the device goes from {before.owner} to {after.owner}")
        held = {pod.name: pod.used for pod in self._world.pods.values() if pod.used > RELEASED}
        if held:
            some = len(held) < len(self._world.pods)
            self._violate(7 if some else 4, f"the device goes to {after.owner} while members hold {held}")

    def _back(self, before: GroupRecord, after: GroupRecord) -> None:
        if after.epoch <= before.epoch:
            self._violate(1, f"the device comes back from {before.owner} at epoch {after.epoch}")
        if not (before.lease and before.lease.stage is LeaseStage.OWNER_LOST):
            return
        world = self._world
        used = sum(pod.used for pod in world.pods.values()) + sum(trainer.held for trainer in world.trainers)
        asleep = [pod for pod in world.pods.values() if pod.engine and 0 < pod.used <= RELEASED]
        if used + len(asleep) * (FULL - RESIDUAL) > world.budget + 1:
            self._violate(13, f"the device of {before.owner}, which was lost, is taken with {used:.0f} MiB in use")

    def answered(self, operation: Operation, result: Reading | None, error: ErrorBody | None) -> None:
        if operation.verb == "lend" and error is None and result is not None and self._world.record.owner == ENGINE:
            self._violate(4, f"{operation.id} is told to be lent before it is")
        if error is not None and error.code in OF_A_MEMBER and "member" not in error.details:
            self._violate(7, f"{operation.verb} failed with {error.code}, and nobody is named: {error.message}")

    # the gateway

    def granted(self, request: Request, before: GroupRecord, known: bool, answer: Any) -> None:
        """A request that was not refused."""
        epoch = request.headers.get(EPOCH)
        if epoch is not None and int(epoch) < before.epoch and not known:
            self._violate(13, f"{request.path} of epoch {epoch} is accepted after {before.epoch}")
        if isinstance(answer, Operation):
            self._same_answer("gateway", answer)

    def replayed(self, request: Request, answer: Reply, mismatched: bool) -> None:
        if mismatched and answer.ok:
            self._violate(14, f"{request.path}: another body under an old name is answered {answer.status}")


__all__ = ["WEIGHTS", "Checks"]
