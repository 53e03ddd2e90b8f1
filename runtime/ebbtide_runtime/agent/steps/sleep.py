"""Sleep, and release of the KV alone: decide, drain, tell the engine, and believe only the measurement."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from ebbtide_api.base import Message
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.member import Parking
from ebbtide_api.state import KV, EngineState, Level, Phase, Weights
from ebbtide_api.verbs import DeviceRelease, Drain, DrainMode, Nothing, SleepRequest, SleepResult

from ...native import Measurement
from ..action import Action, Running, refused
from ..engine_client import Failed
from ..lifecycle import MIB, Event, LevelQuestion, Refusal, asleep, choose_level, derive
from ..member import FaultError, Member
from ..probe import Free, Held, Identity, Replaced, Unmeasured
from ..vector import mib
from .common import fresh_measurement, fresh_state, parking_room, recent_measurement, source, weights_bytes
from .drain import Drained, drain, drain_budget, must
from .wake import wake_weights

Body = TypeVar("Body", bound=Message)
# The note of a sleep: what was in use before it, in bytes.
USED_BEFORE = "usedBefore"
_FORCE_PARKED = ("--enable-lora", "--lora-modules", "--speculative-config", "--spec")


class _Release(Action[Body]):
    """The part that sleep and release-kv share. `prepare` measures and decides; nothing is touched before it agreed."""

    level: Level
    before: Measurement
    identity: Identity
    origin: Phase

    def note(self) -> dict[str, int]:
        """Remember what was measured before, for an answer after a restart."""
        return {USED_BEFORE: self.before.used_bytes}

    async def decide(self, asked: int) -> None:
        """Measure, and choose the level. Raises HOST_MEMORY_INSUFFICIENT, LEVEL_UNSUPPORTED, UNREACHABLE."""
        member = self.member
        state = await fresh_state(member)
        self.before = await recent_measurement(member)
        self.identity = Identity.of(member.page)
        self.origin = member.phase
        level = choose_level(_question(member, state, asked, self.before.host_bytes))
        if isinstance(level, Refusal):
            raise refused(level)
        self.level = level

    async def drained(self, running: Running, how: Drain) -> Drained:
        """Drain, unless nothing can be in flight where the member was."""
        if self.member.phase is not Phase.DRAINING:
            return Drained()
        drained = await drain(self.member, running, how, self.origin)
        self.member.apply(Event.DRAINED)
        return drained

    async def suspend(self) -> float:
        """Tell the engine to sleep. Returns the milliseconds it took."""
        began = time.monotonic()
        answer = await self.member.engine.sleep(self.level)
        if isinstance(answer, Failed) and answer.body.code is ErrorCode.HOST_MEMORY_INSUFFICIENT:
            await self._way_back()
            raise EbbtideError.of(answer.body)
        await self.member.outcome("sleep", answer, asleep)
        return round((time.monotonic() - began) * 1000, 3)

    async def _way_back(self) -> None:
        """The engine refused before it touched anything: serve again, if that is where the member was."""
        member = self.member
        state = await fresh_state(member)
        member.apply(Event.SLEEP_REFUSED, derived=derive(member.observation(state)))
        if self.origin is Phase.RUNNING and member.phase is Phase.PAUSED:
            await must(member.engine.resume(), "resume")
            member.begin(Phase.VERIFYING)
            member.apply(Event.VERIFIED)

    async def measure(self, running: Running, need: int | None, settle: float) -> Measurement:
        """Wait until memory is measured free, twice, of the same living engine. Raises RELEASE_INCOMPLETE."""
        member = self.member
        running.progress = "measuring"
        target = member.target(self.before.used_bytes, need)
        # An engine that says itself that it is awake gets one look, not the whole wait.
        within = running.clip(member.settings.settle_s) if asleep(member.ranks) else 0.0
        release = await member.probe.released(target, settle=settle, within=within, engine=self.identity)
        match release:
            case Free(measured) if asleep(member.ranks):
                return measured
            case Free(measured) | Held(measured):
                raise self._incomplete(target, usedMiB=mib(measured.used_bytes))
            case Unmeasured():
                raise self._incomplete(target, measured=False)
            case Replaced(now):
                raise FaultError(ErrorCode.INSTANCE_REPLACED, "the engine ended while it was measured", now=now.pid)

    def _incomplete(self, target: int, **found: float) -> EbbtideError:
        member = self.member
        # It rests here until somebody wakes it or tries again.
        member.begin(member.phase, member.settings.suspended_s)
        seen = f"{found['usedMiB']:g} MiB are in use" if "usedMiB" in found else "nothing was measured in time"
        sentence = f"memory was not measured free: {seen}, {mib(max(0, target)):g} MiB are allowed"
        details: dict[str, Any] = {"device": member.config.device_id, "allowedMiB": mib(max(0, target)), **found}
        return EbbtideError(ErrorCode.RELEASE_INCOMPLETE, sentence, **details)

    def result(self, drained: Drained, suspend_ms: float, after: Measurement) -> SleepResult:
        """Return what was released, by the measurements before and after."""
        member = self.member
        ranks = member.observed.ranks if member.observed else []
        return SleepResult(
            level=self.level,
            devices=[_released(member, self.before.used_bytes, after.used_bytes)],
            aborted_requests=drained.aborted,
            drained_ms=drained.ms,
            suspend_ms=suspend_ms,
            copied_bytes=sum(rank.copied_bytes for rank in ranks),
        )


class Sleep(_Release[SleepRequest]):
    """Put the member to sleep, measured."""

    async def prepare(self) -> None:
        """Refuse what cannot be done before anything is touched."""
        if self.body.drain.mode is DrainMode.KEEP:
            modes = [DrainMode.WAIT.value, DrainMode.ABORT.value]
            raise EbbtideError(ErrorCode.INVALID_MODE, "memory of frozen requests cannot be released", modes=modes)
        await self.decide(self.body.level)
        # Before the gate is closed: the first request that it refuses must know.
        self.member.doze(wakes=self.body.wakes, hold=self.body.hold)

    def budget(self) -> float | None:
        """Return the drain's own time, where the verb begins with one."""
        waits = self.origin in (Phase.RUNNING, Phase.PAUSED, Phase.VERIFYING)
        return drain_budget(self.member, self.body.drain.timeout) if waits else None

    async def run(self, running: Running) -> SleepResult:
        """Drain, suspend, measure, remember."""
        drained = await self.drained(running, self.body.drain)
        suspend_ms = await self.suspend()
        after = await self.measure(running, _need(self.body), self.body.settle)
        store = self.member.store
        await store.save(residual=store.memory.residual or after.used_bytes, cycle=store.memory.cycle + 1)
        self.member.apply(Event.RELEASED)
        return self.result(drained, suspend_ms, after)

    async def already(self) -> SleepResult:
        """Answer a member that sleeps: as measured now. Raises LEVEL_UNSUPPORTED, RELEASE_INCOMPLETE."""
        member, level = self.member, _level(self.member)
        if self.body.level and level and self.body.level > level:
            raise EbbtideError(ErrorCode.LEVEL_UNSUPPORTED, f"it sleeps at level {level}", level=int(level))
        now = await fresh_measurement(member)
        need, free = _need(self.body), member.config.device_budget - now.used_bytes
        if need is not None and free < need:
            sentence = f"{mib(free)} MiB are free, {mib(need)} are needed"
            raise EbbtideError(ErrorCode.RELEASE_INCOMPLETE, sentence, usedMiB=mib(now.used_bytes), needMiB=mib(need))
        member.doze(wakes=self.body.wakes, hold=self.body.hold)
        member.changed()
        return SleepResult(level=int(level or 0), devices=[_released(member, now.used_bytes, now.used_bytes)])


class ReleaseKV(_Release[Nothing]):
    """Give the KV's memory back and keep the weights: sleep, measured, and the weights come back."""

    async def prepare(self) -> None:
        """Refuse without host memory for the weights meanwhile."""
        await self.decide(Level.PARKED)

    def budget(self) -> float | None:
        """Return the time of a drain with its usual timeout."""
        return drain_budget(self.member, Drain().timeout)

    async def run(self, running: Running) -> SleepResult:
        """Drain, suspend, measure, wake the weights."""
        drained = await self.drained(running, Drain())
        suspend_ms = await self.suspend()
        await self.measure(running, None, SleepRequest().settle)
        self.member.apply(Event.KV_RELEASED)
        await wake_weights(self.member)
        self.member.apply(Event.WEIGHTS_AWAKE)
        return self.result(drained, suspend_ms, await fresh_measurement(self.member))

    async def already(self) -> None:
        """Refuse where a sleep that released nothing left the KV resident: then the goal is not true."""
        if self.member.ranks.kv is KV.RESIDENT:
            raise EbbtideError(ErrorCode.ILLEGAL_TRANSITION, "the KV is resident: wake it, or sleep again")


def _question(member: Member, state: EngineState, asked: int, host_bytes: int) -> LevelQuestion:
    ranks = state.ranks
    return LevelQuestion(
        asked=asked,
        configured=member.config.level,
        may_park=member.config.parking is not Parking.OFF,
        parked_valid=all(r.parked is not None and r.parked.valid and r.parked.version == r.version for r in ranks),
        weights_bytes=weights_bytes(state),
        host_room=parking_room(member, host_bytes),
        has_source=source(member) is not None,
        forces_parked=any(argument.startswith(_FORCE_PARKED) for argument in member.config.extra_args),
    )


def _need(body: SleepRequest) -> int | None:
    return None if body.need_mib is None else int(body.need_mib * MIB)


def _level(member: Member) -> Level | None:
    if member.phase is not Phase.ASLEEP:
        return None
    return Level.PARKED if member.ranks.weights is Weights.PARKED else Level.DISCARDED


def _released(member: Member, before: int, after: int) -> DeviceRelease:
    budget = member.config.device_budget
    return DeviceRelease(
        id=member.config.device_id,
        freed_mib=mib(max(0, before - after)),
        residual_mib=mib(after),
        free_mib=mib(max(0, budget - after)) if budget else None,
    )


def measured_asleep(member: Member, before: int | None) -> SleepResult:
    """Return the result of a sleep whose operation was lost: what is measured now, and was before it."""
    measured = member.probe.latest()
    used = measured.used_bytes if measured else 0
    released = _released(member, used if before is None else before, used)
    return SleepResult(level=int(_level(member) or 0), devices=[released])
