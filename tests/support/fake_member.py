"""A member that behaves as the contract says, without an engine: a tiny lifecycle, and lies that a test may script.

Calls come in two halves, accept and complete, so that a test decides how long an operation runs. Memory is pretended:
a member uses RESIDUAL asleep, and WEIGHTS and KV on top of it while they are resident.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.state import KV, DeviceMemory, Inflight, Instance, Level, Phase, PhaseTiming, StateVector, Weights
from ebbtide_api.verbs import (
    CanaryResult,
    DeviceRelease,
    Operation,
    OperationStatus,
    ResumeResult,
    SleepResult,
    Verb,
)

RESIDUAL, WEIGHTS, KV_CACHE, BUDGET = 100.0, 200.0, 50.0, 1000.0


@dataclass
class Script:
    """What a member does wrong: per verb, the codes its next operations fail with (None: succeed)."""

    fails: dict[str, list[ErrorCode | None]] = field(default_factory=dict)
    frees_nothing: bool = False
    says_done_does_nothing: set[str] = field(default_factory=set)
    dies_in: set[str] = field(default_factory=set)

    def next_failure(self, verb: str) -> ErrorCode | None:
        queue = self.fails.get(verb)
        return queue.pop(0) if queue else None


def error(code: ErrorCode, message: str = "scripted", **details: Any) -> ErrorBody:
    return EbbtideError(code, message, **details).body()


_STARTS: dict[Verb, dict[Phase, Phase]] = {
    Verb.GRANT: {Phase.PENDING_DEVICE: Phase.STARTING},
    Verb.SLEEP: {
        Phase.RUNNING: Phase.DRAINING,
        Phase.PAUSED: Phase.DRAINING,
        Phase.VERIFYING: Phase.DRAINING,
        Phase.SUSPENDING: Phase.SUSPENDING,
        Phase.WEIGHTS_RESIDENT: Phase.SUSPENDING,
        Phase.COMMITTED: Phase.SUSPENDING,
    },
    Verb.WAKE_WEIGHTS: {Phase.ASLEEP: Phase.WAKING_WEIGHTS, Phase.SUSPENDING: Phase.WAKING_WEIGHTS},
    Verb.BEGIN_UPDATE: dict.fromkeys(
        (Phase.WEIGHTS_RESIDENT, Phase.COMMITTED, Phase.VERIFYING, Phase.PAUSED), Phase.UPDATING
    ),
    Verb.COMMIT_UPDATE: {Phase.UPDATING: Phase.UPDATING},
    Verb.ABORT_UPDATE: {Phase.UPDATING: Phase.UPDATING},
    Verb.RELOAD: dict.fromkeys((Phase.WEIGHTS_RESIDENT, Phase.COMMITTED, Phase.VERIFYING), Phase.UPDATING),
    Verb.WAKE_KV: {Phase.WEIGHTS_RESIDENT: Phase.WAKING_KV, Phase.COMMITTED: Phase.WAKING_KV},
    Verb.RESUME: {Phase.VERIFYING: Phase.VERIFYING, Phase.PAUSED: Phase.VERIFYING},
    Verb.PAUSE: {Phase.RUNNING: Phase.DRAINING},
    Verb.RELEASE_KV: {Phase.RUNNING: Phase.DRAINING},
    Verb.RECONCILE: {Phase.FAULTED: Phase.FAULTED, Phase.SUSPENDING: Phase.FAULTED, Phase.UNKNOWN: Phase.UNKNOWN},
}
_NOOPS: dict[Verb, set[Phase]] = {
    Verb.GRANT: {Phase.STARTING, Phase.RUNNING},
    Verb.SLEEP: {Phase.ASLEEP, Phase.PENDING_DEVICE},
    Verb.WAKE_WEIGHTS: {Phase.WEIGHTS_RESIDENT, Phase.COMMITTED, Phase.RUNNING},
    Verb.WAKE_KV: {Phase.VERIFYING, Phase.RUNNING},
    Verb.RESUME: {Phase.RUNNING},
    Verb.PAUSE: {Phase.PAUSED},
    Verb.ABORT_UPDATE: set(Phase) - {Phase.UPDATING},
    Verb.RECONCILE: set(Phase),
}


@dataclass
class FakeMember:
    """One member. `published` says why a version at a path is refused, or None when it is good."""

    name: str = "chat-0"
    server: str = "chat"
    group: str = "actor"
    uid: str = "uid"
    boot: int = 1
    phase: Phase = Phase.PENDING_DEVICE
    weights: Weights = Weights.UNKNOWN
    kv: KV = KV.UNKNOWN
    version: int = 0
    pending: int | None = None
    epoch: int = 0
    cycle: int = 0
    level: Level | None = None
    engine_pid: int = 0
    script: Script = field(default_factory=Script)
    published: Callable[[str, int], ErrorBody | None] = lambda path, version: None
    operations: dict[str, tuple[str, Operation]] = field(default_factory=dict)
    current: tuple[str, Verb, dict[str, Any]] | None = None
    calls: list[str] = field(default_factory=list)
    state_version: int = 1
    url: str = ""
    forget_sizes: bool = False
    idle: float | None = None
    wakes: bool = False
    hold: float = 0.0
    requested: bool = False

    @property
    def used(self) -> float:
        if self.phase in {Phase.PENDING_DEVICE, Phase.RECOVERING, Phase.FAULTED}:
            return 0.0
        held = WEIGHTS * (self.weights is Weights.RESIDENT) + KV_CACHE * (self.kv is KV.RESIDENT)
        return RESIDUAL + held

    def vector(self) -> StateVector:
        return StateVector(
            name=self.name,
            server=self.server,
            group=self.group,
            phase=self.phase,
            admission=self.phase is Phase.RUNNING,
            inflight=Inflight(),
            idle_seconds=self.idle,
            wakes=self.wakes,
            hold_seconds=self.hold,
            requested=self.requested,
            weights=self.weights,
            kv=self.kv,
            weight_version=self.version,
            pending_version=self.pending,
            committed_version=self.version,
            cache_epoch=self.version,
            level=self.level,
            epoch=self.epoch,
            instance=Instance(uid=self.uid, pid=self.engine_pid, start_time=self.boot),
            boot=self.boot,
            operation=self.current[0] if self.current else None,
            devices=[DeviceMemory(id="cpu0", used_mib=self.used, free_mib=BUDGET - self.used, total_mib=BUDGET)],
            residual_mib=RESIDUAL,
            weights_mib=0 if self.forget_sizes and not self.engine_pid else WEIGHTS,
            kv_mib=0 if self.forget_sizes and not self.engine_pid else KV_CACHE,
            cycle=self.cycle,
            state_version=self.state_version,
            url=self.url,
        )

    def accept(
        self, verb: Verb, body: dict[str, Any], key: str, epoch: int, instance: str = ""
    ) -> Operation | ErrorBody:
        """Take a call: an operation that runs or has ended, or why not."""
        if epoch < self.epoch:
            return error(ErrorCode.STALE_EPOCH, f"epoch {epoch} is below {self.epoch}", epoch=self.epoch)
        known = self.operations.get(key)
        if known is not None:
            return known[1] if known[0] == f"{verb} {body}" else error(ErrorCode.OPERATION_MISMATCH)
        vector = self.vector().instance
        if instance and instance != f"{vector.uid}:{vector.pid}:{vector.start_time}":
            return error(ErrorCode.INSTANCE_REPLACED)
        self.epoch = max(self.epoch, epoch)
        return self._decide(verb, body, key)

    def _decide(self, verb: Verb, body: dict[str, Any], key: str) -> Operation | ErrorBody:
        if self.current is not None:
            return error(ErrorCode.OPERATION_IN_PROGRESS, operation=self.current[0])
        if verb is Verb.SLEEP and self.phase is not Phase.PENDING_DEVICE:
            self.wakes, self.hold = body["wakes"], body["hold"]
        begins = _STARTS[verb].get(self.phase)
        if begins is None and self.phase in _NOOPS.get(verb, set()):
            return self._record(
                key, verb, body, Operation(id=key, verb=verb, target=self.name, status="Done", noop=True)
            )
        if begins is None:
            return error(ErrorCode.ILLEGAL_TRANSITION, f"{verb} in {self.phase}")
        if refusal := self._refuses(verb, body):
            return refusal
        self.calls.append(verb)
        self.current = (key, verb, body)
        self._move(begins if verb is not Verb.BEGIN_UPDATE else self.phase)
        running = Operation(id=key, verb=verb, target=self.name, status=OperationStatus.RUNNING, phase=self.phase)
        return self._record(key, verb, body, running)

    def _refuses(self, verb: Verb, body: dict[str, Any]) -> ErrorBody | None:
        if verb is Verb.BEGIN_UPDATE and body["version"] <= self.version:
            return error(ErrorCode.VERSION_REGRESSION)
        if verb is Verb.GRANT and body["boot"] != self.boot:
            return error(ErrorCode.INSTANCE_REPLACED)
        lost = self.weights is not Weights.RESIDENT
        return error(ErrorCode.WEIGHTS_NOT_COMMITTED) if verb in {Verb.WAKE_KV, Verb.RESUME} and lost else None

    def _record(self, key: str, verb: Verb, body: dict[str, Any], operation: Operation) -> Operation:
        self.operations[key] = (f"{verb} {body}", operation)
        return operation

    def _move(self, phase: Phase) -> None:
        if phase is Phase.RUNNING:
            self.idle, self.wakes, self.hold, self.requested = 0.0, False, 0.0, False
        self.phase = phase
        self.state_version += 1

    def complete(self) -> Operation | None:
        """End the running operation, as it should or as the script says."""
        if self.current is None:
            return None
        key, verb, body = self.current
        self.current = None
        self.state_version += 1
        if verb in self.script.dies_in:
            self.script.dies_in.discard(verb)
            self.kill_engine()
            return self._end(key, error(ErrorCode.ENGINE_FAULTED))
        if code := self.script.next_failure(verb):
            return self._end(key, self._fail(verb, code))
        if verb in self.script.says_done_does_nothing:
            self._undo(verb)
            return self._end(key, None)
        return self._end(key, *self._effect(verb, body))

    def _end(self, key: str, failure: ErrorBody | None, result: dict[str, Any] | None = None) -> Operation:
        signature, operation = self.operations[key]
        timings = [PhaseTiming(phase=operation.phase or self.phase, ms=1.0)]
        status = OperationStatus.FAILED if failure else OperationStatus.DONE
        ended = operation.model_copy(update={"status": status, "error": failure, "result": result, "phases": timings})
        self.operations[key] = (signature, ended)
        return ended

    def _fail(self, verb: Verb, code: ErrorCode) -> ErrorBody:
        if verb is Verb.SLEEP and code is ErrorCode.RELEASE_INCOMPLETE:
            self._move(Phase.SUSPENDING)
        elif code is ErrorCode.ENGINE_FAULTED:
            self.kill_engine()
        else:
            self._undo(verb)
        return error(code)

    def _undo(self, verb: Verb) -> None:
        back = {
            Verb.GRANT: Phase.PENDING_DEVICE,
            Verb.SLEEP: Phase.RUNNING if self.kv is KV.RESIDENT else Phase.WEIGHTS_RESIDENT,
            Verb.WAKE_WEIGHTS: Phase.ASLEEP,
            Verb.RELOAD: Phase.WEIGHTS_RESIDENT,
            Verb.WAKE_KV: Phase.COMMITTED if self.version else Phase.WEIGHTS_RESIDENT,
            Verb.PAUSE: Phase.RUNNING,
            Verb.RELEASE_KV: Phase.RUNNING,
        }
        self._move(back.get(verb, self.phase))

    def _effect(self, verb: Verb, body: dict[str, Any]) -> tuple[ErrorBody | None, dict[str, Any] | None]:
        match verb:
            case Verb.GRANT:
                self._started()
            case Verb.SLEEP:
                return self._sleep(body)
            case Verb.WAKE_WEIGHTS:
                self.weights = Weights.DISCARDED if self.level is Level.DISCARDED else Weights.RESIDENT
                self._move(Phase.WEIGHTS_RESIDENT)
            case Verb.BEGIN_UPDATE:
                return self._begin(body), None
            case Verb.COMMIT_UPDATE:
                self._committed(body["version"])
            case Verb.ABORT_UPDATE:
                self.pending, self.weights = None, Weights.DISCARDED
                self._move(Phase.WEIGHTS_RESIDENT)
            case Verb.RELOAD:
                self.pending, self.weights = None, Weights.RESIDENT
                self._move(Phase.COMMITTED)
            case Verb.WAKE_KV:
                self.kv = KV.RESIDENT
                self._move(Phase.VERIFYING)
            case Verb.RESUME:
                return None, self._resume()
            case Verb.PAUSE:
                self._move(Phase.PAUSED)
            case Verb.RELEASE_KV:
                self.kv = KV.DISCARDED
                self._move(Phase.COMMITTED)
            case Verb.RECONCILE:
                self.kill_engine() if self.phase is Phase.FAULTED else self.rederive()
        return None, None

    def _started(self) -> None:
        self.engine_pid = self.engine_pid or 1000 + self.boot
        self.weights, self.kv, self.level = Weights.RESIDENT, KV.RESIDENT, None
        self._move(Phase.RUNNING)

    def _sleep(self, body: dict[str, Any]) -> tuple[ErrorBody | None, dict[str, Any] | None]:
        if self.script.frees_nothing:
            self._move(Phase.SUSPENDING)
            return error(ErrorCode.RELEASE_INCOMPLETE, "nothing was freed", usedMiB=self.used), None
        before = self.used
        self.level = Level(body.get("level") or 1)
        self.weights = Weights.PARKED if self.level is Level.PARKED else Weights.DISCARDED
        self.kv, self.cycle = KV.DISCARDED, self.cycle + 1
        self._move(Phase.ASLEEP)
        part = DeviceRelease(
            id="cpu0", freed_mib=before - self.used, residual_mib=self.used, free_mib=BUDGET - self.used
        )
        return None, SleepResult(level=self.level, devices=[part], suspend_ms=1.0).wire()

    def _begin(self, body: dict[str, Any]) -> ErrorBody | None:
        if refusal := self.published(body["source"]["path"], body["version"]):
            return refusal
        self.pending, self.weights = body["version"], Weights.RESIDENT
        self._move(Phase.UPDATING)
        return None

    def _committed(self, version: int) -> None:
        self.pending, self.version = None, version
        self._move(Phase.COMMITTED)

    def _resume(self) -> dict[str, Any]:
        self._move(Phase.RUNNING)
        canary = CanaryResult(ok=True, tokens=[1, 2, 3])
        return ResumeResult(weight_version=self.version, cache_epoch=self.version, canary=canary).wire()

    def kill_engine(self) -> None:
        """The engine dies: Faulted, then Recovering until its launcher starts again."""
        if self.current is not None:
            key, self.current = self.current[0], None
            self._end(key, error(ErrorCode.ENGINE_FAULTED))
        if self.phase is not Phase.PENDING_DEVICE:
            self._move(Phase.RECOVERING)

    def relaunch(self) -> None:
        """The launcher starts again: another boot, nothing resident, nothing granted."""
        self.boot += 1
        self.engine_pid, self.pending, self.level = 0, None, None
        self.weights, self.kv = Weights.UNKNOWN, KV.UNKNOWN
        self._move(Phase.PENDING_DEVICE)

    def request(self) -> bool:
        """A request comes: served at once, or refused, which is a knock if that wakes the member."""
        if self.phase is Phase.RUNNING:
            self.idle = 0.0
            return True
        self.requested = self.requested or self.wakes
        self.state_version += 1
        return False

    def rederive(self) -> None:
        """The agent restarted: where is the member, by what can be observed?"""
        if self.current is not None:
            key, verb, _ = self.current
            self.current = None
            self._end(key, error(ErrorCode.PHASE_DEADLINE, "the agent restarted"))
            self._undo(verb)
        if self.phase is Phase.UNKNOWN:
            self._move(self._derived())

    def _derived(self) -> Phase:
        if self.weights is Weights.UNKNOWN:
            return Phase.PENDING_DEVICE
        if self.pending is not None:
            return Phase.UPDATING
        if self.weights is not Weights.RESIDENT:
            return Phase.ASLEEP
        return Phase.VERIFYING if self.kv is KV.RESIDENT else Phase.WEIGHTS_RESIDENT
