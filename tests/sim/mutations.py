"""Faults that were put in on purpose: each breaks one invariant, and the simulation must find it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from ebbtide_api.errors import ErrorBody
from ebbtide_api.state import PHASE_NUMBER, Level, Phase
from ebbtide_api.verbs import CanaryResult, LeaseStage
from ebbtide_operator.plan import GroupRecord, MemberView, Serve, World, lending, returning, stages
from ebbtide_operator.plan import lease as leases
from ebbtide_operator.plan.record import ReturnIntent
from ebbtide_runtime.agent import executor, member, probe, settings
from ebbtide_runtime.agent.steps import drain, resume, sleep, update
from ebbtide_runtime.native import Field

from .world import Faults

CALM = Faults(kinds=())
ROUGH = Faults(kinds=("agent", "engine", "operator", "curse"), every=1.0)


@dataclass(frozen=True)
class Mutation:
    """What is replaced, and which invariants may be the first that does not hold."""

    name: str
    invariants: set[int]
    replaced: list[tuple[Any, str, Any]]
    faults: Faults = field(default_factory=lambda: CALM)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, name, value in self.replaced:
                stack.enter_context(patch.object(owner, name, value))
            yield


def _promote(record: GroupRecord) -> GroupRecord | None:
    if record.lease is not None or not record.queue:
        return None
    head, *rest = record.queue
    granted = head.model_copy(update={"stage": LeaseStage.GRANTED, "epoch": record.epoch})
    return record.model_copy(update={"lease": granted, "queue": tuple(rest)})


async def _fence(self: Any, epoch: int, leader: int) -> None:
    if epoch > self._member.store.memory.epoch:
        await self._member.store.save(epoch=epoch)


async def _not_waited(*_: Any) -> int:
    return 0


async def _no_canary(*_: Any) -> CanaryResult:
    return CanaryResult(ok=True, tokens=[])


async def _nothing(*_: Any) -> None:
    pass


async def _measured_once(self: Any, target: int, *, settle: float, within: float, engine: Any) -> Any:
    return probe.Free(await self.fresh())


_released = probe.Probe.released


async def _no_settle(self: Any, target: int, *, settle: float, within: float, engine: Any) -> Any:
    return await _released(self, target, settle=0.0, within=within, engine=engine)


def _only_weights(self: Any, version: int) -> None:
    self.page.set(Field.WEIGHT_VERSION, version)


def _one_decides(world: World, back: ReturnIntent) -> Serve | None:
    version = world.record.loading
    if version is None or not any(returning._has_loaded(one, version) for one in world.wanted):
        return None
    return Serve(version=version, source=back.source or "", canary=back.canary)


def _one_sleeps(world: World, lease: Any) -> bool:
    return lease.stage is LeaseStage.LENDING and any(lending.slept(world, one) for one in world.wanted)


def _for_ever(phase: Phase, known: Any) -> float | None:
    return None if phase in {Phase.SUSPENDING, Phase.WAKING_KV} else settings.budget(phase, known)


_noop = executor.Executor._noop


async def _busy_noop(self: Any, action: Any, slot: Any) -> Any:
    self._member.kill() if self._member.phase is Phase.ASLEEP else None
    return await _noop(self, action, slot)


_enter = member.Member._enter


def _told_first(self: Any, phase: Phase, seconds: float | None = None) -> None:
    self.page.set(Field.PHASE, PHASE_NUMBER[phase])
    _enter(self, phase, seconds)


def _unnamed(_member: MemberView, error: ErrorBody) -> ErrorBody:
    return error


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


MUTATIONS = [
    Mutation("a lease is granted at the old epoch", {1}, [(leases, "promote", _promote)]),
    Mutation(
        "an agent takes calls of an older epoch",
        {1, 12},
        [(executor.Executor, "fence", _fence)],
        Faults(kinds=("operator", "jump"), every=1.0, repeats=0.5, slow=0.3),
    ),
    Mutation(
        "the gate opens before the canary", {2}, [(member, "ADMITTING", frozenset({Phase.RUNNING, Phase.VERIFYING}))]
    ),
    Mutation("a drain does not wait", {2}, [(drain, "_wait", _not_waited)]),
    Mutation("no canary is asked", {3}, [(resume, "_verify", _no_canary)]),
    Mutation("one measurement is enough, whatever it says", {4, 7}, [(probe.Probe, "released", _measured_once)], ROUGH),
    Mutation("the two measurements are one", {4}, [(probe.Probe, "released", _no_settle)]),
    Mutation(
        "older weights are loaded again",
        {5},
        [(update, "source", _always(("/model", 0)))],
        Faults(kinds=("engine",), every=3.0),
    ),
    Mutation(
        "caches of older weights are kept",
        {6},
        [(member.Member, "set_versions", _only_weights), (resume, "require_committed", _always(None))],
    ),
    Mutation("one member that has loaded decides for all", {7}, [(stages, "decided", _one_decides)], ROUGH),
    Mutation("one member that sleeps is a group that sleeps", {4, 7}, [(stages, "lent", _one_sleeps)]),
    Mutation(
        "who could not is not named",
        {7},
        [(lending, "named", _unnamed), (returning, "named", _unnamed)],
        Faults(kinds=("curse", "engine"), every=0.5, torn=0.5),
    ),
    Mutation("phases have no deadline", {8}, [(member, "budget", _for_ever)]),
    Mutation(
        "a no-op ends the engine",
        {9},
        [(executor.Executor, "_noop", _busy_noop)],
        Faults(kinds=(), repeats=0.5, loss=0.1),
    ),
    Mutation("the phase is told before the gate is closed", {10}, [(member.Member, "_enter", _told_first)]),
    Mutation("weights are discarded though they are parked", {11}, [(sleep, "choose_level", _always(Level.DISCARDED))]),
    Mutation(
        "weights are parked where there is no room",
        {11},
        [(sleep, "choose_level", _always(Level.PARKED)), (resume, "should_park", _always(False))],
        Faults(kinds=("host",), every=1.0),
    ),
    Mutation(
        "a lost holder's memory is taken to be free",
        {13, 12},
        [(stages, "_is_free", _always(True))],
        Faults(kinds=("stop",), every=1.0),
    ),
    Mutation(
        "what a lost holder has and nobody measured is taken to be free",
        {13, 12},
        [(stages, "_is_unknown", _always(False))],
        Faults(kinds=("stop",), every=1.0, unmeasured=True),
    ),
    Mutation(
        "an id runs again",
        {14},
        [(executor.Executor, "_same", _nothing)],
        Faults(kinds=("operator",), every=1.0, repeats=0.5, slow=0.2),
    ),
    Mutation(
        "a lend that failed is never undone",
        {0},
        [(stages, "lend_settled", _always(False))],
        Faults(kinds=("curse", "trainer"), every=0.5),
    ),
]
