"""Moves the whole group for clients that know of one engine, one call at a time.

Every call looks first: a goal that is measured true changes nothing, so a repeated call, or the same call of every rank
of a trainer, makes one transition. Every call looks again before it answers: what is not measured done raises.

    Running --lend--> Asleep --wake_weights--> weights resident --(update)--> loaded --give_back--> Running
    Running --pause--> Paused --(update)--> Committed --resume--> Running
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ebbtide_api.base import Message
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import (
    Drain,
    DrainMode,
    Lease,
    LeaseStage,
    LendRequest,
    Nothing,
    Operation,
    PauseRequest,
    ReclaimRequest,
    SleepRequest,
    Verb,
    WeightsSource,
)

from ..client.gateway import group_path
from .holder import Holder
from .sight import HOLDS_NOTHING, NO_ENGINE, WEIGHTS_AWAKE, Sight, look

_AWAY = frozenset({LeaseStage.LENDING, LeaseStage.LENT, LeaseStage.RETURNING, LeaseStage.OWNER_LOST})
_AGAIN = 0.1
"""Seconds between two looks at a group that is brought back."""
STOPPED = frozenset({Phase.PAUSED, Phase.COMMITTED, Phase.VERIFYING})
"""Rest places of a member whose gate is shut and which has all its memory."""


@dataclass(frozen=True)
class Done:
    """A goal that is measured true. `result` is what the gateway's operation measured on the way."""

    sight: Sight
    noop: bool = False
    result: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def wire(self) -> dict[str, Any]:
        """Return what was measured, as JSON."""
        told = {"noop": self.noop, **({"note": self.note} if self.note else {})}
        return {**self.result, **told, **self.sight.wire()}


class Mover:
    """The verbs of a group. `turn` is held by whoever moves it."""

    def __init__(self, holder: Holder) -> None:
        self.holder, self.turn = holder, threading.RLock()
        self.sources: dict[int, str] = {}
        """Where the versions lie that were loaded through us."""
        self._clean = False
        """Whether the pause that holds now has emptied the caches."""

    def look(self) -> Sight:
        """Measure the group now."""
        return self.holder.run(look(self.holder.gateway, self.holder.terms.group))

    # Memory

    def lend(self, level: int = 0, drain: Drain | None = None) -> Done:
        """Put every engine to sleep; done when the memory is measured free."""
        with self.turn:
            epoch, seen = self.holder.epoch(), self.look()
            if self._stage(seen) is LeaseStage.LENT and not seen.all_in(HOLDS_NOTHING):
                self._sleep_again(seen, epoch, level, drain)
                return Done(self._require(HOLDS_NOTHING, "the memory is not free"))
            operation = self._group("lend", LendRequest(level=level, drain=drain), epoch)
            seen = self._require(HOLDS_NOTHING, "the memory was released, and is not free any more")
            return Done(seen, operation.noop, operation.result or {})

    def _sleep_again(self, seen: Sight, epoch: int, level: int, drain: Drain | None) -> None:
        if seen.any_in({Phase.UPDATING}):
            message = "a version is loaded and not committed, and would be lost"
            raise seen.odd(ErrorCode.ILLEGAL_TRANSITION, message, "Wake kv_cache first: that commits it.")
        need = self.holder.terms.need_mib
        self.step(Verb.SLEEP, SleepRequest(level=level, drain=drain or Drain(), need_mib=need), epoch)

    def wake_weights(self) -> Done:
        """Give every engine's weights their memory; done when they have it. The memory of the KV stays lent."""
        with self.turn:
            lease, seen = self.holder.current(), self.look()
            if lease is None:
                return self._serving_already(seen)
            if lease.stage is not LeaseStage.LENT or seen.all_in(WEIGHTS_AWAKE):
                return Done(seen, noop=True)
            if seen.any_in(NO_ENGINE):
                action = "Wake everything, without tags: that starts it. Then update while it serves."
                raise seen.odd(ErrorCode.ILLEGAL_TRANSITION, "an engine has ended while its memory was lent", action)
            self.step(Verb.WAKE_WEIGHTS, Nothing(), lease.epoch)
            return Done(self._require(WEIGHTS_AWAKE, "the weights are not awake"))

    def give_back(self, *, whole: bool) -> Done:
        """End the loan: what was loaded is committed, the KV woken, the canary asked; done when every engine serves.

        Not `whole`: the weights must be awake, so that nothing but the KV takes memory.
        """
        with self.turn:
            lease, seen = self.holder.current(), self.look()
            if lease is None:
                return self._serving_already(seen)
            if lease.stage not in _AWAY:
                return self.resume()
            if not whole and seen.any_in(HOLDS_NOTHING):
                raise seen.odd(ErrorCode.ILLEGAL_TRANSITION, "the weights sleep", "Wake the tag weights first.")
            operation = self._group("reclaim", self._reclaim(lease, seen), lease.epoch)
            self.holder.forget()
            return Done(self._serving_soon("the memory was given back"), operation.noop, operation.result or {})

    def _reclaim(self, lease: Lease, seen: Sight) -> ReclaimRequest:
        version = seen.loaded
        if version is None:
            return ReclaimRequest(canary=self.holder.terms.canary)
        source = WeightsSource(path=self.sources.get(version, f"{lease.handoff}/v{version}"))
        return ReclaimRequest(version=version, source=source, canary=self.holder.terms.canary)

    def release_kv(self) -> Done:
        """Give the KV's memory back and keep the weights; done when it is measured free."""
        with self.turn:
            epoch, seen = self.holder.epoch(), self.look()
            if seen.all_in({Phase.WEIGHTS_RESIDENT, Phase.ASLEEP}):
                return Done(seen, noop=True)
            operation = self.step(Verb.RELEASE_KV, Nothing(), epoch)
            return Done(self._require({Phase.WEIGHTS_RESIDENT}, "the KV is not released"), operation.noop)

    # Requests

    def pause(self, mode: DrainMode) -> Done:
        """Shut every gate and stop what is in flight; done when no engine admits or schedules a request."""
        with self.turn:
            epoch, seen = self.holder.epoch(), self.look()
            if self._stage(seen) in _AWAY:
                return Done(seen, noop=True, note="The engines are lent: no gate is open, and nothing is in flight.")
            frozen = seen.inflight and mode is not DrainMode.KEEP
            if seen.all_in(STOPPED) and not frozen:
                return Done(seen, noop=True)
            if seen.any_in(STOPPED) and frozen:
                # What a pause froze ends only where it is scheduled.
                self._open(epoch)
            self._shut(mode, epoch)
            return Done(self._require(STOPPED, "requests are not paused"))

    def _shut(self, mode: DrainMode, epoch: int) -> None:
        try:
            self.step(Verb.PAUSE, PauseRequest(mode=mode, timeout=self.holder.terms.timeout), epoch)
        except EbbtideError:
            # All or none: without the lease the members that did pause are opened again.
            self.holder.give_back()
            raise
        self._clean = mode is not DrainMode.KEEP

    def resume(self) -> Done:
        """Open every gate; done when every engine serves. While the memory is lent there is nothing to open."""
        with self.turn:
            lease, seen = self.holder.current(), self.look()
            if lease is None:
                return self._serving_already(seen)
            if lease.stage in _AWAY:
                return Done(seen, noop=True, note="The engines are lent: they serve when kv_cache is given back.")
            try:
                if any(seen.all_in({phase}) for phase in (*STOPPED, Phase.WEIGHTS_RESIDENT)):
                    self._open(lease.epoch)
            finally:
                # Members that are not all at one place, and those that could not, are brought back by the operator.
                self.holder.give_back()
            return Done(self._serving_soon("requests were resumed"))

    def _open(self, epoch: int) -> None:
        self._clean = False
        if self.look().any_in(WEIGHTS_AWAKE):
            self.step(Verb.WAKE_KV, Nothing(), epoch)
        self.step(Verb.RESUME, Nothing(), epoch)

    def abort(self) -> Done:
        """End every request in flight, with the tokens it has; gates that were open are open again."""
        with self.turn:
            seen = self.look()
            if not seen.inflight and seen.whole:
                return Done(seen, noop=True)
            was_open = seen.admits
            self.pause(DrainMode.ABORT)
            return self.resume() if was_open else Done(self.look())

    def flush(self) -> Done:
        """Empty every prefix cache. Raises OPERATION_IN_PROGRESS while requests hold blocks."""
        with self.turn:
            seen = self.look()
            if seen.empty or (self._clean and seen.all_in(STOPPED)):
                return Done(seen, noop=True)
            if seen.inflight:
                message = f"{seen.inflight} requests hold blocks of the cache"
                raise seen.odd(ErrorCode.OPERATION_IN_PROGRESS, message, "Let them end, or abort them; then ask again.")
            was_open = seen.admits
            if not was_open and self.holder.current():
                self._open(self.holder.epoch())
            done = self.pause(DrainMode.WAIT)
            return self.resume() if was_open else done

    # One call of the gateway

    def _group(self, verb: str, body: Message, epoch: int) -> Operation:
        return self._perform(f"{group_path(self.holder.terms.group)}:{verb}", body, epoch)

    def step(self, verb: Verb, body: Message, epoch: int) -> Operation:
        """Take a step with every server of the group. Raises what the first one answers that cannot."""
        names = self.holder.run(self.holder.gateway.group(self.holder.terms.group)).servers
        return [self._perform(f"/v1/servers/{name}:{verb.value}", body, epoch) for name in names][-1]

    def _perform(self, path: str, body: Message, epoch: int) -> Operation:
        timeout = self.holder.terms.timeout
        flow = self.holder.gateway.perform(path, body, epoch=epoch, timeout=timeout, watch=lambda _operation: None)
        return self.holder.run(flow)

    # What was measured

    def _stage(self, seen: Sight) -> LeaseStage | None:
        return seen.group.lease.stage if seen.group.lease else None

    def _require(self, phases: Collection[Phase], problem: str) -> Sight:
        seen = self.look()
        if not seen.all_in(phases):
            raise seen.odd(ErrorCode.ENGINE_FAULTED, problem, "Read the state and call again; `ebbtide why` says more.")
        return seen

    def _serving_soon(self, what: str) -> Sight:
        due = time.monotonic() + self.holder.terms.timeout
        while not (seen := self.look()).serves:
            if time.monotonic() > due:
                raise seen.odd(ErrorCode.ENGINE_FAULTED, f"{what}, and not every server takes requests")
            time.sleep(_AGAIN)
        return seen

    def _serving_already(self, seen: Sight) -> Done:
        if seen.serves:
            return Done(seen, noop=True)
        lease = seen.group.lease
        if lease is not None:
            message = f"group {seen.group.name} is held by {lease.holder}, and not by this proxy"
            raise seen.odd(ErrorCode.NOT_LEASE_HOLDER, message, "Wait until it is given back.")
        raise seen.odd(ErrorCode.ILLEGAL_TRANSITION, "nobody holds the group, and it does not serve")
