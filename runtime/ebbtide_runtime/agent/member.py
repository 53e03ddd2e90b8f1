"""One member as its agent knows it: its phase, what was last observed, and the moves between phases.

All of it belongs to the event loop's thread, but for `_expire`, which the keeper of deadlines calls from its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.member import MemberConfig
from ebbtide_api.state import PHASE_NUMBER, EngineState, Phase

from ..native import Field, Page
from .engine_client import EngineClient, Failed, Failure, Lost, Refused
from .keeper import Keeper
from .lifecycle import (
    ADMITTING,
    NOTHING_KNOWN,
    Derive,
    Event,
    Facts,
    Go,
    Impossible,
    Meet,
    Observation,
    TargetQuestion,
    decide,
    meet,
    release_target,
)
from .probe import Identity, Probe
from .settings import Settings, budget
from .store import Store

log = logging.getLogger("ebbtide.agent")


class FaultError(Exception):
    """What was learned leaves the engine in no known state: it must be restarted."""

    def __init__(self, code: ErrorCode, message: str, **details: Any) -> None:
        super().__init__(message)
        self.error = EbbtideError(code, message, **details)


class Member:
    """The mutable heart of the agent. `interrupt` is called with the reason when a running operation must end."""

    def __init__(
        self, config: MemberConfig, settings: Settings, page: Page, store: Store, engine: EngineClient, keeper: Keeper
    ) -> None:
        self.config = config
        self.settings = settings
        self.page = page
        self.store = store
        self.engine = engine
        self.keeper = keeper
        self.probe = Probe(page, answer_s=settings.measure_s, poll_s=settings.settle_poll_s)
        self.interrupt: Callable[[EbbtideError], None] = lambda _error: None
        self.entered: Callable[[Phase], None] = lambda _phase: None
        self.changed: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self.phase = Phase.UNKNOWN
        self.since = ""
        self.entered_ns = time.monotonic_ns()
        """When the phase was entered, on CLOCK_MONOTONIC. Memory does not move in a phase in which verbs begin."""
        self.last_error: ErrorBody | None = None
        self.observed: EngineState | None = None
        self.ranks: Meet = NOTHING_KNOWN
        self.identity = Identity.of(page)
        self.exits = page.get(Field.ENGINE_EXITS)
        self.stale_engine: tuple[int, int] | None = None
        self._stage: object | None = None
        self._begin_unknown()

    def _begin_unknown(self) -> None:
        # What serves goes on serving while its agent restarts: only a gate that was left open wrongly is closed.
        if self.page.get(Field.PHASE) != PHASE_NUMBER[Phase.RUNNING]:
            self.page.close_gate()
        self.since = _now()
        self._arm(Phase.UNKNOWN, None)

    # Moves

    def begin(self, phase: Phase, seconds: float | None = None) -> None:
        """Enter the first phase of an operation, which may be where the member rests: its deadline starts anew."""
        if phase is self.phase:
            self._arm(phase, seconds)
        else:
            self._enter(phase, seconds)

    def apply(self, event: Event, seconds: float | None = None, *, derived: Phase | None = None) -> None:
        """Let an event happen. `seconds` overrides the budget of the phase that it leads to. Raises INTERNAL."""
        decision = decide(self.phase, event)
        if isinstance(decision, Impossible):
            raise EbbtideError(ErrorCode.INTERNAL, f"{event} cannot happen in {self.phase}")
        if isinstance(decision, Go):
            self._enter(decision.phase, seconds)
        elif isinstance(decision, Derive) and derived is not None:
            self._enter(derived, seconds)

    def _enter(self, phase: Phase, seconds: float | None = None) -> None:
        # The gate is closed before the phase changes and opened after: open means Running at every instant.
        if phase not in ADMITTING:
            if self.page.admission:
                # One that was late for an earlier sleep would end the next one as it begins.
                self.page.set(Field.KNOCK, 0)
            self.page.close_gate()
        self.page.set(Field.RETRY_AFTER_S, max(1, round(self.settings.retry_after_s)))
        self.page.set(Field.PHASE, PHASE_NUMBER[phase])
        self.phase = phase
        self.since, self.entered_ns = _now(), time.monotonic_ns()
        self._arm(phase, seconds)
        if phase in ADMITTING:
            # A member that just began to serve is not idle yet, however long ago its last request was.
            self.page.set(Field.LAST_REQUEST, time.monotonic_ns())
            self.doze(wakes=False, hold=0)
            self.page.open_gate()
        log.info("phase %s", phase)
        self.entered(phase)
        self.changed()

    def doze(self, *, wakes: bool, hold: float) -> None:
        """Say whether a request that finds the gate closed wakes the member, and how many seconds it is held."""
        self.page.set(Field.HOLD_MS, round(hold * 1000) if wakes else 0)
        self.page.set(Field.WAKES, int(wakes))

    # Deadlines

    def _arm(self, phase: Phase, seconds: float | None) -> None:
        allowed = budget(phase, self.settings)
        if allowed is None:
            self.keeper.disarm("phase")
            return
        allowed = seconds if seconds is not None else allowed
        sentence = f"{phase} took longer than {allowed:.1f} s; what the engine did is unknown"
        error = EbbtideError(ErrorCode.PHASE_DEADLINE, sentence, phase=phase.value, budgetSeconds=round(allowed, 3))
        self.keeper.arm("phase", allowed, lambda: self._end_engine(error))

    def _end_engine(self, error: EbbtideError) -> None:
        # In the keeper's thread: the engine is ended even while the event loop is stuck.
        self.page.close_gate()
        boot = self.identity.boot
        self.kill()
        self._loop.call_soon_threadsafe(self._expired, error, boot)

    def _expired(self, error: EbbtideError, boot: int) -> None:
        if boot != self.identity.boot:
            return  # the launch that was too late is over
        # The phase may have moved on since the keeper killed the engine; the engine is gone all the same.
        late = not isinstance(decide(self.phase, Event.DEADLINE), Go)
        self.fault(error, Event.FAULT if late else Event.DEADLINE)

    @contextmanager
    def stage(self, seconds: float, error: EbbtideError, *, fatal: bool = False) -> Iterator[None]:
        """Bound a part of an operation. `error` interrupts it; `fatal`, where the engine is commanded, faults it."""
        token = self._stage = object()

        def late() -> None:
            self._loop.call_soon_threadsafe(self._late, token, error)

        self.keeper.arm("stage", seconds, (lambda: self._end_engine(error)) if fatal else late)
        try:
            yield
        finally:
            self.keeper.disarm("stage")
            self._stage = None

    def _late(self, token: object, error: EbbtideError) -> None:
        # Not after its part ended: what runs then may be a command, which nobody may cut short.
        if self._stage is token:
            self.interrupt(error)

    # Faults

    def kill(self) -> None:
        """Ask the launcher to end the engine of the launch that is known here; a newer one is left alone."""
        self.page.set(Field.KILL, self.identity.boot)

    def fault(self, error: EbbtideError, event: Event = Event.FAULT) -> None:
        """Give the engine up, unless it was already: it is ended, and comes back by a new launch."""
        self.apply(event)
        if self.phase is not Phase.FAULTED:
            return
        self.last_error = error.body()
        log.error("fault: %s", error)
        self.interrupt(error)
        self.kill()
        self.apply(Event.KILLED)

    def booted(self, identity: Identity) -> None:
        """Accept a new launch: it holds nothing until it is granted the device."""
        exits, last = self.page.get(Field.ENGINE_EXITS), self.page.get(Field.LAST_EXIT)
        error = EbbtideError(ErrorCode.INSTANCE_REPLACED, "the engine was launched anew", boot=identity.boot)
        if exits != self.exits:
            error = EbbtideError(ErrorCode.ENGINE_FAULTED, f"the engine ended; its launcher says {last}", lastExit=last)
        if self.phase not in (Phase.RECOVERING, Phase.PENDING_DEVICE):
            self.last_error = error.body()
        self.identity = identity
        self.forget_engine()
        self.apply(Event.BOOTED)
        self.interrupt(error)

    def forget_engine(self) -> None:
        """Drop what was observed of an engine that is gone."""
        self.observed = None
        self.ranks = NOTHING_KNOWN
        self.exits = self.page.get(Field.ENGINE_EXITS)
        stale = Identity.of(self.page)
        self.stale_engine = (stale.pid, stale.start)

    # Observation

    def see(self, state: EngineState) -> None:
        """Take in a state of the engine. Raises FaultError RANK_DISAGREEMENT."""
        self.observed = state
        self.ranks = meet(state.ranks, self.ranks_expected)
        self.changed()
        if not self.ranks.agree:
            views = [f"{rank.rank}: {rank.weights}, {rank.kv}, version {rank.version}" for rank in state.ranks]
            sentence = f"the ranks disagree, of which there should be {self.ranks_expected}"
            raise FaultError(ErrorCode.RANK_DISAGREEMENT, sentence, ranks=views)

    async def command(
        self, what: str, call: Awaitable[EngineState | Failure], goal: Callable[[Meet], bool]
    ) -> EngineState:
        """Await a call that changes the engine. After a failure its outcome is unknown: the state decides."""
        state = await self.outcome(what, await call, goal)
        if not goal(self.ranks):
            sentence = f"{what} was answered, and the weights are {self.ranks.weights}, the KV {self.ranks.kv}"
            raise FaultError(ErrorCode.ENGINE_FAULTED, sentence, version=self.ranks.version)
        return state

    async def outcome(self, what: str, answer: EngineState | Failure, goal: Callable[[Meet], bool]) -> EngineState:
        """Take in the answer of a call that changes the engine; read the state again where there was none."""
        if not isinstance(answer, EngineState):
            log.warning("%s: %s", what, answer.message)
            failure, answer = answer, await self.engine.state()
            if not isinstance(answer, EngineState) or not goal(meet(answer.ranks, self.ranks_expected)):
                raise FaultError(ErrorCode.ENGINE_FAULTED, f"{what} failed: {failure.message}", **_numbers(failure))
        self.see(answer)
        return answer

    @property
    def ranks_expected(self) -> int:
        """How many ranks the engine has."""
        return self.config.tensor_parallel * self.config.pipeline_parallel

    @property
    def granted(self) -> bool:
        """Whether this launch was told that its engine owns the device."""
        boot = self.page.get(Field.BOOT)
        return boot > 0 and self.page.get(Field.GRANT) == boot

    def started(self, identity: Identity) -> bool:
        """Whether an identity read from the page is this launch's engine, rather than none, or an earlier one's."""
        return identity.pid > 0 and (identity.pid, identity.start) != self.stale_engine

    def engine_alive(self) -> bool:
        """Whether the published engine process lives."""
        return Identity.of(self.page).alive

    def facts(self) -> Facts:
        """Return what the goals of verbs are compared with."""
        return Facts(self.phase, self.ranks, self.store.memory.committed.version)

    def observation(self, engine: EngineState | None, used: int | None = None) -> Observation:
        """Return what a phase is derived from."""
        # Read once: words that are read apart may be of two engines.
        identity = Identity.of(self.page)
        return Observation(
            boot=identity.boot,
            grant=self.page.get(Field.GRANT),
            kill=self.page.get(Field.KILL),
            engine_alive=identity.alive,
            engine_started=self.started(identity),
            engine=engine,
            ranks=self.ranks_expected,
            admission=self.page.admission,
            committed=self.store.memory.committed.version,
            used=used,
            target=self.expected_target(),
        )

    def arena_bytes(self) -> int:
        """Bytes of weights and KV that the ranks hold while awake."""
        ranks = self.observed.ranks if self.observed else []
        return int(sum(rank.weights_mib + rank.kv_mib for rank in ranks) * (1 << 20))

    def target(self, used_before: int, need: int | None) -> int:
        """Return the most bytes that the member may use once it is released."""
        question = TargetQuestion(
            residual=self.store.memory.residual,
            baseline=self.page.get(Field.BASELINE),
            used_before=used_before,
            arena=self.arena_bytes(),
            budget=self.config.device_budget,
            need=need,
        )
        return release_target(question)

    def instance_name(self) -> str:
        """Return what callers name this engine by: uid, pid and start time."""
        return f"{self.config.uid}:{self.page.get(Field.ENGINE_PID)}:{self.page.get(Field.ENGINE_START)}"

    def publish_epoch(self) -> None:
        """Show the highest epoch on the page."""
        self.page.set(Field.EPOCH, self.store.memory.epoch)

    def expected_target(self) -> int | None:
        """Return the target of a release that was asked for before this agent lived, if one was ever learned."""
        known = self.store.memory.residual or self.page.get(Field.BASELINE)
        return self.target(0, None) if known else None

    def set_versions(self, version: int) -> None:
        """Publish the version that the engine holds, and that its caches were reset for."""
        self.page.set(Field.WEIGHT_VERSION, version)
        self.page.set(Field.CACHE_EPOCH, version)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _numbers(failure: Failure) -> dict[str, object]:
    match failure:
        case Failed(status, body):
            return {"status": status, "engine": body.wire()}
        case Lost() | Refused():
            return {"outcome": type(failure).__name__.lower()}
