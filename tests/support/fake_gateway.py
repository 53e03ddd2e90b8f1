"""A gateway that can lie: the HTTP API of groups, servers and operations, with scripted faults.

gateway.fault("POST", ":lend", Fault.drop_after())     # carried out, but the answer never arrives
gateway.fail("reclaim", ErrorBody(...))                # the next such operation fails
gateway.hold("lend"); ...; gateway.let_go("lend")      # an operation that runs until told
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.state import Instance, Phase, PhaseTiming, StateVector
from ebbtide_api.verbs import (
    CanaryResult,
    DeviceRelease,
    GroupState,
    Lease,
    LeaseRequest,
    LeaseStage,
    LendRequest,
    LendResult,
    MemberRelease,
    MemberReturn,
    Operation,
    OperationStatus,
    ReclaimRequest,
    ReclaimResult,
    ResumeResult,
    ServerState,
    SleepResult,
)

from .gateway_http import Seen, serving

__all__ = ["TOKEN", "FakeGateway", "Fault", "Seen", "serving"]

TOKEN = "fake-token"


@dataclass(frozen=True)
class Fault:
    """What happens to one request: dropped before or after it is carried out, delayed, or answered with `status`."""

    kind: str
    status: int = 0
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def drop_before(cls) -> "Fault":
        return cls("drop_before")

    @classmethod
    def drop_after(cls) -> "Fault":
        return cls("drop_after")

    @classmethod
    def answer(cls, status: int, body: Any = None, **headers: str) -> "Fault":
        return cls("answer", status, body, headers)

    @classmethod
    def delay(cls, seconds: float) -> "Fault":
        return cls("delay", seconds=seconds)


@dataclass
class _Kept:
    lease: Lease
    renewed: float


class FakeGateway:
    """One group `actor` with one server `chat` of one member. Thread-safe; times are real."""

    def __init__(self, handoff: Path, group: str = "actor") -> None:
        self.group, self.handoff, self.takes = group, handoff, True
        self.epoch, self.version, self.owner = 1, 0, "engine"
        self.requests: list[Seen] = []
        self.operations: dict[str, Operation] = {}
        self.performed: list[str] = []
        self.unreadable_operations: set[str] = set()
        self.ttl_counts = True
        self._by_key: dict[str, tuple[str, int, Any]] = {}
        self._faults: list[tuple[str, str, Fault]] = []
        self._failures: dict[str, ErrorBody] = {}
        self._held: dict[str, threading.Event] = {}
        self._queue: list[_Kept] = []
        self._past: dict[str, Lease] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()

    # Scripts

    def fault(self, method: str, path: str, *faults: Fault) -> None:
        """Let the next requests whose path holds `path` suffer these faults, one each."""
        with self._lock:
            self._faults.extend((method, path, fault) for fault in faults)

    def fail(self, verb: str, error: ErrorBody) -> None:
        """Let the next operation of this verb fail."""
        self._failures[verb] = error

    def hold(self, verb: str) -> None:
        """Let operations of this verb run until `let_go`."""
        self._held[verb] = threading.Event()

    def let_go(self, verb: str) -> None:
        """End what `hold` began."""
        self._held.pop(verb).set()

    def close(self) -> None:
        """End every operation that is held, so that no thread outlives a test."""
        for verb in list(self._held):
            self.let_go(verb)
        for thread in self._threads:
            thread.join()

    def take_away(self) -> None:
        """Give the group to somebody else: the holder's calls are late from now on."""
        with self._lock:
            for kept in self._queue:
                self._past[kept.lease.id] = kept.lease.model_copy(update={"stage": LeaseStage.OWNER_LOST})
            self._queue.clear()
            self.owner, self.epoch = "engine", self.epoch + 1

    def occupy(self, holder: str = "somebody") -> str:
        """Put another holder at the head of the queue, and return its lease's id."""
        return self._enqueue(LeaseRequest(holder=holder, ttl_seconds=3600), f"{holder}'s").id

    def seen(self, method: str, path: str) -> list[Seen]:
        """Return the requests whose path holds `path`."""
        with self._lock:
            return [each for each in self.requests if each.method == method and path in each.path]

    @property
    def current(self) -> Lease | None:
        """The lease at the head of the queue."""
        with self._lock:
            self._expire()
            return self._queue[0].lease if self._queue else None

    # Serving

    def handle(self, seen: Seen, reply: Callable[[int, Any, dict[str, str]], None], drop: Callable[[], None]) -> None:
        with self._lock:
            self.requests.append(seen)
            fault = self._pop_fault(seen)
        if fault and fault.kind == "delay":
            time.sleep(fault.seconds)
        elif fault and fault.kind == "answer":
            return reply(fault.status, fault.body, fault.headers)
        elif fault and fault.kind == "drop_before":
            return drop()
        status, body = self._answer(seen)
        if fault and fault.kind == "drop_after":
            return drop()
        return reply(status, body, {})

    def _pop_fault(self, seen: Seen) -> Fault | None:
        for at, (method, path, fault) in enumerate(self._faults):
            if method == seen.method and path in seen.path:
                del self._faults[at]
                return fault
        return None

    def _answer(self, seen: Seen) -> tuple[int, Any]:
        if seen.headers.get("authorization") != f"Bearer {TOKEN}":
            return _error(EbbtideError(ErrorCode.UNAUTHENTICATED, "no token, or another one."))
        key = seen.headers.get("idempotency-key")
        try:
            with self._lock:
                if key in self._by_key:
                    return self._again(key, seen)
            status, body = self._route(seen)
        except EbbtideError as error:
            return _error(error)
        if key:
            self._by_key[key] = (_print(seen), status, body)
        return status, body

    def _again(self, key: str, seen: Seen) -> tuple[int, Any]:
        fingerprint, status, body = self._by_key[key]
        if fingerprint != _print(seen):
            raise EbbtideError(ErrorCode.OPERATION_MISMATCH, "the key was used with another body.")
        if isinstance(body, dict) and body.get("id") in self.operations:
            return status, self.operations[body["id"]].wire()
        return status, body

    def _route(self, seen: Seen) -> tuple[int, Any]:
        url = urlsplit(seen.path)
        for method, pattern, handler in self._routes():
            if method == seen.method and (match := re.fullmatch(pattern, url.path)):
                wait = float(parse_qs(url.query).get("wait", ["0"])[0])
                return handler(seen, wait, **match.groupdict())
        raise EbbtideError(ErrorCode.NOT_FOUND, f"{url.path} does not exist.")

    def _routes(self) -> Iterator[tuple[str, str, Callable[..., tuple[int, Any]]]]:
        group = f"/v1/groups/{self.group}"
        yield "GET", "/v1/groups", lambda seen, wait: (200, [self._group_state().wire()])
        yield "GET", group, lambda seen, wait: (200, self._group_state().wire())
        yield "GET", "/v1/servers", lambda seen, wait: (200, [self._server_state().wire()])
        yield "POST", f"{group}/lease", self._ask
        yield "GET", f"{group}/lease/(?P<lease>[^/]+)", self._read
        yield "PUT", f"{group}/lease/(?P<lease>[^/]+)", self._renew
        yield "DELETE", f"{group}/lease/(?P<lease>[^/]+)", self._release
        yield "POST", f"{group}:(?P<verb>lend|reclaim)", self._perform
        yield "GET", "/v1/operations/(?P<operation>[^/]+)", self._look

    # Leases

    def _ask(self, seen: Seen, wait: float) -> tuple[int, Any]:
        return 201, self._enqueue(LeaseRequest.model_validate(seen.body), seen.headers["idempotency-key"]).wire()

    def _enqueue(self, request: LeaseRequest, key: str) -> Lease:
        with self._lock:
            lease = Lease(
                id=key,
                group=self.group,
                holder=request.holder,
                epoch=self.epoch,
                stage=LeaseStage.QUEUED,
                position=len(self._queue),
                ttl_seconds=request.ttl_seconds,
                handoff=str(self.handoff) if self.takes else "",
            )
            self._queue.append(_Kept(lease, time.monotonic()))
            self._promote()
            return next(kept.lease for kept in self._queue if kept.lease.id == lease.id)

    def _promote(self) -> None:
        for position, kept in enumerate(self._queue):
            kept.lease = kept.lease.model_copy(update={"position": position})
        if self._queue and self._queue[0].lease.stage is LeaseStage.QUEUED:
            self.epoch += 1
            self._stage(LeaseStage.GRANTED, epoch=self.epoch)

    def _stage(self, stage: LeaseStage, **more: Any) -> None:
        self._queue[0].lease = self._queue[0].lease.model_copy(update={"stage": stage, **more})

    def _expire(self) -> None:
        now = time.monotonic()
        if self.ttl_counts and any(now - kept.renewed > kept.lease.ttl_seconds for kept in self._queue):
            self.take_away()

    def _find(self, lease: str) -> _Kept:
        self._expire()
        for kept in self._queue:
            if kept.lease.id == lease:
                return kept
        if lease in self._past:
            raise EbbtideError(ErrorCode.STALE_EPOCH, f"lease {lease} has ended.", epoch=self.epoch)
        raise EbbtideError(ErrorCode.NOT_FOUND, f"lease {lease} is not known.")

    def _read(self, seen: Seen, wait: float, lease: str) -> tuple[int, Any]:
        deadline = time.monotonic() + wait
        while True:
            with self._lock:
                found = self._find(lease).lease
            if found.stage is not LeaseStage.QUEUED or time.monotonic() > deadline:
                return 200, found.wire()
            time.sleep(0.005)

    def _renew(self, seen: Seen, wait: float, lease: str) -> tuple[int, Any]:
        with self._lock:
            kept = self._find(lease)
            kept.renewed = time.monotonic()
            return 200, kept.lease.wire()

    def _release(self, seen: Seen, wait: float, lease: str) -> tuple[int, Any]:
        self.release(lease)
        return 200, None

    def release(self, lease: str) -> None:
        """End a lease as its holder would; what sleeps comes back."""
        with self._lock:
            if lease in self._past:
                return
            kept = self._find(lease)
            self._past[lease] = kept.lease.model_copy(update={"stage": LeaseStage.RELEASED})
            if kept is self._queue[0] and self.owner != "engine":
                self.owner, self.epoch = "engine", self.epoch + 1
            self._queue.remove(kept)
            self._promote()

    # Operations

    def _perform(self, seen: Seen, wait: float, verb: str) -> tuple[int, Any]:
        with self._lock:
            epoch = int(seen.headers.get("ebbtide-epoch", "0"))
            self._expire()
            if epoch != self.epoch or not self._queue:
                raise EbbtideError(ErrorCode.STALE_EPOCH, f"epoch {epoch} is over.", epoch=self.epoch)
            running = next((op for op in self.operations.values() if op.status is OperationStatus.RUNNING), None)
            if running:
                raise EbbtideError(ErrorCode.OPERATION_IN_PROGRESS, f"{running.id} runs.", operation=running.id)
            operation = self._accept(verb)
        thread = threading.Thread(target=self._carry_out, args=(operation, seen.body or {}))
        self._threads.append(thread)
        thread.start()
        return 202, operation.wire()

    def _accept(self, verb: str) -> Operation:
        name = f"op-{len(self.operations)}"
        phase = Phase.DRAINING if verb == "lend" else Phase.WAKING_WEIGHTS
        operation = Operation(id=name, verb=verb, target=self.group, status=OperationStatus.RUNNING, phase=phase)
        self.operations[name] = operation
        self.performed.append(verb)
        return operation

    def _carry_out(self, operation: Operation, body: dict[str, Any]) -> None:
        if event := self._held.get(operation.verb):
            event.wait()
        with self._lock:
            ended = None if self._queue else ErrorBody(code=ErrorCode.STALE_EPOCH, message="the lease has ended.")
            error = self._failures.pop(operation.verb, ended)
            result = None if error else self._effect(operation.verb, body)
            status = OperationStatus.FAILED if error else OperationStatus.DONE
            ended = {"status": status, "error": error, "result": result}
            self.operations[operation.id] = operation.model_copy(update=ended)

    def _effect(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        if verb == "lend":
            LendRequest.model_validate(body)
            self.owner = self._queue[0].lease.holder
            self._stage(LeaseStage.LENT)
            return self._lend_result().wire()
        self.version = ReclaimRequest.model_validate(body).version or self.version
        result = self._reclaim_result().wire()
        self.release(self._queue[0].lease.id)
        return result

    def _look(self, seen: Seen, wait: float, operation: str) -> tuple[int, Any]:
        deadline = time.monotonic() + min(wait, 5)
        while True:
            with self._lock:
                if operation in self.unreadable_operations or operation not in self.operations:
                    self.unreadable_operations.discard(operation)
                    raise EbbtideError(ErrorCode.NOT_FOUND, f"operation {operation} is not known.")
                found = self.operations[operation]
            if found.status is not OperationStatus.RUNNING or time.monotonic() > deadline:
                return 200, found.wire()
            time.sleep(0.005)

    # What is said

    def _lend_result(self) -> LendResult:
        device = DeviceRelease(id="cpu0", freed_mib=1200.5, residual_mib=600.0, free_mib=3000.0)
        phases = [PhaseTiming(phase=Phase.DRAINING, ms=3.0), PhaseTiming(phase=Phase.SUSPENDING, ms=41.0)]
        member = MemberRelease(member="chat-0", result=SleepResult(level=1, devices=[device]))
        return LendResult(epoch=self.epoch, devices=[device], members=[member], phases=phases)

    def _reclaim_result(self) -> ReclaimResult:
        canary = CanaryResult(ok=True, tokens=[1, 2, 3, 4])
        resumed = ResumeResult(weight_version=self.version, cache_epoch=self.version, canary=canary)
        phases = [PhaseTiming(phase=Phase.WAKING_WEIGHTS, ms=30.0), PhaseTiming(phase=Phase.VERIFYING, ms=20.0)]
        back = [MemberReturn(member="chat-0", result=resumed)]
        return ReclaimResult(epoch=self.epoch + 1, weight_version=self.version, members=back, phases=phases)

    def _group_state(self) -> GroupState:
        lease, *queue = [kept.lease for kept in self._queue] or [None]
        return GroupState(
            name=self.group, owner=self.owner, epoch=self.epoch, servers=["chat"], lease=lease, queue=queue
        )

    def _server_state(self) -> ServerState:
        awake = self.owner == "engine"
        member = StateVector(
            name="chat-0",
            server="chat",
            group=self.group,
            phase=Phase.RUNNING if awake else Phase.ASLEEP,
            admission=awake,
            instance=Instance(uid="uid-0", pid=1, start_time=1),
            weight_version=self.version,
            committed_version=self.version,
            owner=self.owner,
            epoch=self.epoch,
            url="http://127.0.0.1:8000",
        )
        return ServerState(
            name="chat", group=self.group, model="tiny", replicas=1, ready=True, serving=awake, members=[member]
        )


def _print(seen: Seen) -> str:
    return json.dumps([seen.method, seen.path, seen.body], sort_keys=True)


def _error(error: EbbtideError) -> tuple[int, Any]:
    return error.status, error.body().wire()
