"""A borrow from its first call to its last, as flows: queue, lend, and the whole way back."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import (
    Canary,
    Drain,
    Lease,
    LeaseRequest,
    LeaseStage,
    LendRequest,
    LendResult,
    Operation,
    ReclaimRequest,
    ReclaimResult,
    WeightsSource,
)
from pydantic import ValidationError

from ..progress import OnProgress, Progress, Stage, silent
from ..weights import Published
from .flow import Flow
from .gateway import Gateway, OnOperation, group_path, new_key
from .keeper import OnLost

FAREWELL = 5.0  # seconds for giving a lease back, which the TTL does too


@dataclass(frozen=True)
class Terms:
    """What is borrowed and how. Times are in seconds; `pid` is the process whose tree's memory is the trainer's."""

    group: str
    holder: str = ""
    pid: int | None = None
    ttl: float = 30.0
    need_mib: float | None = None
    drain: Drain | None = None
    level: int = 0
    patience: float = 3600.0
    timeout: float = 300.0
    canary: Canary | None = None
    on_progress: OnProgress = silent
    on_lost: OnLost | None = None

    def request(self) -> LeaseRequest:
        """Return the lease to ask for. Raises INVALID_REQUEST."""
        try:
            return LeaseRequest(
                holder=self.holder or default_holder(),
                ttl_seconds=self.ttl,
                pid=self.pid,
                need_mib=self.need_mib,
            )
        except ValidationError as problem:
            first = problem.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise EbbtideError(ErrorCode.INVALID_REQUEST, f"{name}: {first['msg']}.", field=name) from problem


def default_holder() -> str:
    """Return a name that people recognize: host and process."""
    return f"{socket.gethostname()}/{os.getpid()}"


Stop = Callable[[], None]
Keep = Callable[[Lease, OnLost], Stop]
Alone = Callable[[Flow[Published]], Published]
"""Carries a flow out in the calling thread, whatever runs the others."""


@dataclass
class Borrowing:
    """One borrow's state, and the flows that move it. `keep` starts renewing a lease and returns how to stop."""

    gateway: Gateway
    terms: Terms
    keep: Keep
    alone: Alone
    lease: Lease | None = None
    lend: LendResult | None = None
    lost: EbbtideError | None = None
    published: Published | None = None
    reclaimed: ReclaimResult | None = None
    _stop: Stop | None = field(default=None, repr=False)
    _returning: bool = False

    def take(self) -> Flow[LendResult]:
        """Wait for the group's turn, put its engines to sleep, and return what was measured free."""
        if self.lease is not None:
            raise EbbtideError(ErrorCode.INVALID_REQUEST, "a loan is used once.", next_action="Call borrow() again.")
        try:
            lease = yield from self._queue()
            request = LendRequest(drain=self.terms.drain, level=self.terms.level)
            path = f"{group_path(self.terms.group)}:lend"
            watch = self._watch(Stage.LEND)
            timeout = self.terms.timeout + (self.terms.drain.timeout if self.terms.drain else 0)
            operation = yield from self.gateway.perform(path, request, epoch=lease.epoch, timeout=timeout, watch=watch)
        except BaseException:
            # Whatever it was, Ctrl-C included: leave the queue, or bring back what sleeps already.
            yield from self._farewell()
            raise
        self.lend = LendResult.model_validate(operation.result)
        return self.lend

    def _queue(self) -> Flow[Lease]:
        began = self.gateway.clock()
        request, key = self.terms.request(), new_key()
        # Known before it is asked for: if the answer is lost, the place in the queue can still be given up.
        self.lease = hoped_for(self.terms, key)
        self.lease = lease = yield from self.gateway.ask(self.terms.group, request, key)
        self._stop = self.keep(lease, self._on_lost)
        while lease.stage is LeaseStage.QUEUED:
            waited = self.gateway.clock() - began
            if waited > self.terms.patience:
                raise _impatient(lease, waited)
            self._report(Stage.QUEUE, f"{lease.position} before us in the queue of group {lease.group}", waited)
            self.lease = lease = yield from self.gateway.lease(lease)
        if lease.stage is not LeaseStage.GRANTED:
            message = f"the lease of group {lease.group} is {lease.stage} before it was used."
            raise EbbtideError(ErrorCode.STALE_EPOCH, message, group=lease.group)
        return lease

    def give_back(self, *, keep_new: bool) -> Flow[ReclaimResult]:
        """Bring the engines back, with what was published or, without `keep_new`, with their old weights.

        Raises the reclaim's error; the gateway then brings the old weights back by itself.
        """
        self._returning = True
        try:
            self.check()
            let_go()
            operation = yield from self._reclaim(self.published if keep_new else None)
        finally:
            yield from self._farewell()
        self.reclaimed = ReclaimResult.model_validate(operation.result)
        return self.reclaimed

    def _reclaim(self, published: Published | None) -> Flow[Operation]:
        request = ReclaimRequest(canary=self.terms.canary)
        if published is not None:
            source = WeightsSource(path=str(published.path))
            request = ReclaimRequest(version=published.version, source=source, canary=self.terms.canary)
        return self.gateway.perform(
            f"{group_path(self.terms.group)}:reclaim",
            request,
            epoch=self.lease.epoch if self.lease else None,
            timeout=self.terms.timeout,
            watch=self._watch(Stage.RETURN),
        )

    def check(self) -> None:
        """Raise if the lease was lost."""
        if self.lost is not None:
            raise self.lost

    def held(self) -> Lease:
        """Return the lease of memory that is lent now. Raises NOT_LEASE_HOLDER, and what `check` raises."""
        self.check()
        if self.lease is None or self.lend is None or self._returning:
            message = f"group {self.terms.group} is not borrowed now."
            raise EbbtideError(ErrorCode.NOT_LEASE_HOLDER, message, next_action="Publish inside the with block.")
        return self.lease

    def handoff(self) -> Path:
        """Return the folder where versions are published. Raises what `held` raises."""
        lease = self.held()
        folder = Path(lease.handoff)
        if not lease.handoff:
            message = f"group {self.terms.group} takes no new weights: see spec.weights.handoff of its servers."
            action = "Give the memory back without publishing, or set it to Stream or SharedMemory for all of them."
            raise EbbtideError(ErrorCode.TRANSPORT_IMPOSSIBLE, message, next_action=action)
        if not folder.is_dir():
            message = f"group {self.terms.group} has no hand-off folder that this process can reach ({folder})."
            raise EbbtideError(ErrorCode.TRANSPORT_IMPOSSIBLE, message)
        return folder

    def _farewell(self) -> Flow[None]:
        self._returning = True
        self._halt()
        if self.lease is None:
            return
        try:
            yield from self.gateway.release(self.lease, patience=FAREWELL)
        except EbbtideError:
            # A reclaim that succeeded has ended the lease already; else the error on its way up says more.
            return

    def _halt(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()

    def _on_lost(self, lost: EbbtideError) -> None:
        if self._returning:
            return
        self.lost = lost
        if self.terms.on_lost is not None:
            self.terms.on_lost(lost)

    def _report(self, stage: Stage, text: str, seconds: float) -> None:
        self.terms.on_progress(Progress(stage, text, seconds=seconds))

    def _watch(self, stage: Stage) -> OnOperation:
        began = self.gateway.clock()

        def watch(operation: Operation) -> None:
            text = operation.progress or str(operation.phase or operation.status)
            seconds = self.gateway.clock() - began
            self.terms.on_progress(Progress(stage, text, phase=operation.phase, seconds=seconds))

        return watch


def hoped_for(terms: Terms, key: str) -> Lease:
    """Return the lease as it will be known: the gateway names it by the key of the call that asked for it."""
    return Lease(
        id=key, group=terms.group, holder=terms.holder, epoch=0, stage=LeaseStage.QUEUED, ttl_seconds=terms.ttl
    )


def _impatient(lease: Lease, waited: float) -> EbbtideError:
    message = f"group {lease.group} was not free within {waited:.0f} s; {lease.position} are still before us."
    return EbbtideError(ErrorCode.PHASE_DEADLINE, message, next_action="Wait longer (patience=), or ask later.")


def let_go() -> None:
    """Free what Python and torch only keep for later, so that the device can be measured free."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
