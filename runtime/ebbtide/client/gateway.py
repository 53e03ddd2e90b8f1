"""The gateway's calls as flows: what is retried, for how long, and how an answer becomes a result or an error.

Every mutating call carries an Idempotency-Key and is repeated with the same key, so a repetition cannot act twice.
An answer that never came is unknown, not failed: the call is repeated, or the operation is read, until its deadline.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from ebbtide_api.base import Message
from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.verbs import (
    DEADLINE,
    EPOCH,
    IDEMPOTENCY_KEY,
    GroupState,
    Lease,
    LeaseRequest,
    Operation,
    OperationStatus,
    ServerState,
    ServerWhy,
    Timeline,
)
from pydantic import BaseModel, TypeAdapter, ValidationError

from .flow import Answer, Clock, Flow, Pause, Reply, Send, send

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
OnOperation = Callable[[Operation], None]

PATIENCE = 30.0  # seconds for a call that is answered at once
TRY = 10.0  # seconds for one try of it
POLL = 1.0  # seconds that the gateway holds the question how an operation stands
GRACE = 5.0  # seconds after a deadline in which the other side may still tell
TRANSIENT = frozenset({425, 502, 503})


@dataclass(frozen=True)
class Call:
    """One call and all its repetitions. `patience` is the deadline for an answer, `limit` that of a try, in seconds."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    epoch: int | None = None
    key: str | None = None
    deadline: float | None = None
    patience: float = PATIENCE
    limit: float = TRY
    content: bytes | None = field(default=None, repr=False)
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that make a repetition harmless and a late call void."""
        headers = dict(self.extra)
        if self.key:
            headers[IDEMPOTENCY_KEY] = self.key
        if self.epoch is not None:
            headers[EPOCH] = str(self.epoch)
        if self.deadline is not None:
            headers[DEADLINE] = f"{self.deadline:g}"
        return headers


def new_key() -> str:
    """Return a fresh Idempotency-Key."""
    return uuid.uuid4().hex


class Gateway:
    """All calls. Nothing is done until a runner runs the flow that a method returns."""

    def __init__(self, url: str, clock: Clock = time.monotonic, jitter: Callable[[], float] = random.random) -> None:
        self.url = url
        self.clock = clock
        self._jitter = jitter

    # Reading

    def groups(self) -> Flow[list[GroupState]]:
        """Return all groups."""
        return self._many(Call("GET", "/v1/groups"), GroupState)

    def group(self, name: str) -> Flow[GroupState]:
        """Return one group. Raises NOT_FOUND."""
        return self._one(Call("GET", group_path(name)), GroupState)

    def servers(self) -> Flow[list[ServerState]]:
        """Return all servers with their members."""
        return self._many(Call("GET", "/v1/servers"), ServerState)

    def why(self, server: str) -> Flow[ServerWhy]:
        """Return why a server is as it is. Raises NOT_FOUND."""
        return self._one(Call("GET", f"/v1/servers/{quote(server, safe='')}/why"), ServerWhy)

    def timeline(self, group: str) -> Flow[Timeline]:
        """Return what was observed of a group over time. Raises NOT_FOUND."""
        return self._one(Call("GET", f"{group_path(group)}/timeline"), Timeline)

    # Leases

    def ask(self, group: str, request: LeaseRequest, key: str) -> Flow[Lease]:
        """Join the group's queue."""
        return self._one(Call("POST", f"{group_path(group)}/lease", request.wire(), key=key), Lease)

    def lease(self, lease: Lease) -> Flow[Lease]:
        """Read a lease: at once when its turn has come, else after `POLL` seconds."""
        return self._one(Call("GET", f"{lease_path(lease)}?wait={POLL:g}"), Lease)

    def release(self, lease: Lease, patience: float = PATIENCE) -> Flow[None]:
        """Give a lease back. One that has ended already is given back."""
        answer = yield from self.answer(Call("DELETE", lease_path(lease), key=new_key(), patience=patience))
        if not answer.ok and answer.status not in {404, 410, 412}:
            raise self.error_in(answer, f"DELETE {lease_path(lease)}")

    # Operations

    def perform(
        self, path: str, body: Message, *, epoch: int | None, timeout: float, watch: OnOperation
    ) -> Flow[Operation]:
        """Start an operation and see it through. Raises its error; PHASE_DEADLINE if it outlives `timeout`."""
        # The gateway keeps the same deadline, and says better than we could what it was waiting for: let it speak.
        deadline = self.clock() + timeout + GRACE
        call = Call("POST", path, body.wire(), epoch, new_key(), timeout)
        operation = yield from self._start(call, deadline)
        while operation.status is OperationStatus.RUNNING:
            watch(operation)
            if self.clock() > deadline:
                raise _unfinished(operation, timeout)
            operation = yield from self._look(operation, call, deadline)
        watch(operation)
        return _succeeded(operation)

    def _start(self, call: Call, deadline: float) -> Flow[Operation]:
        """Start, and wait while another operation is in the way."""
        while True:
            try:
                return (yield from self._one(call, Operation))
            except EbbtideError as error:
                if error.code is not ErrorCode.OPERATION_IN_PROGRESS or self.clock() > deadline:
                    raise
            yield Pause(0.2)

    def _look(self, operation: Operation, call: Call, deadline: float) -> Flow[Operation]:
        path = f"/v1/operations/{operation.id}?wait={POLL:g}"
        # Also past the deadline a last look is worth some seconds: what is done is then known to be done.
        reading = Call("GET", path, patience=max(GRACE, deadline - self.clock()))
        try:
            return (yield from self._one(reading, Operation))
        except EbbtideError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
        # A restarted gateway may have lost it: the same key starts it again, or finds its goal reached.
        yield Pause(0.2)
        return (yield from self._start(call, deadline))

    # One call

    def _one(self, call: Call, model: type[M]) -> Flow[M]:
        answer = yield from self.answer(call)
        return self.parse(answer, model.model_validate, f"{call.method} {call.path}")

    def _many(self, call: Call, model: type[M]) -> Flow[list[M]]:
        answer = yield from self.answer(call)
        adapter: TypeAdapter[list[M]] = TypeAdapter(list[model])  # type: ignore[valid-type]
        return self.parse(answer, adapter.validate_python, f"{call.method} {call.path}")

    def answer(self, call: Call) -> Flow[Reply]:
        """Send until there is an answer that repeating would not change. Raises UNREACHABLE after the patience."""
        deadline = self.clock() + call.patience
        attempt = 0
        while True:
            limit = max(0.1, min(call.limit, deadline - self.clock()))
            answer = yield from send(Send(call.method, call.path, limit, call.body, call.headers, call.content))
            if isinstance(answer, Reply) and answer.status not in TRANSIENT:
                return answer
            delay = self._delay(attempt, answer)
            if self.clock() + delay > deadline:
                raise self._gave_up(answer, call)
            yield Pause(delay)
            attempt += 1

    def _delay(self, attempt: int, answer: Answer) -> float:
        told = answer.headers.get("Retry-After", "") if isinstance(answer, Reply) else ""
        if told.isdecimal():
            return float(told)
        # Exponential with jitter, so that many trainers do not come back at once.
        return float(min(2.0, 0.05 * 2**attempt) * (0.5 + self._jitter()))

    def _gave_up(self, answer: Answer, call: Call) -> EbbtideError:
        if isinstance(answer, Reply):
            return self.error_in(answer, f"{call.method} {call.path}")
        message = f"{self.url} did not answer {call.method} {call.path} within {call.patience:g} s ({answer.why})."
        return EbbtideError(ErrorCode.UNREACHABLE, message)

    def parse(self, reply: Reply, validate: Callable[[Any], T], what: str) -> T:
        """Return the result in an answer, or raise the error in it."""
        if not reply.ok:
            raise self.error_in(reply, what)
        try:
            return validate(reply.body)
        except ValidationError as problem:
            raise self._strange(reply, what) from problem

    def error_in(self, reply: Reply, what: str) -> EbbtideError:
        """Return the error that an answer carries."""
        try:
            return error_of(ErrorBody.model_validate(reply.body))
        except ValidationError:
            return self._strange(reply, what)

    def _strange(self, reply: Reply, what: str) -> EbbtideError:
        message = f"{self.url} answered {what} with {reply.status} and {str(reply.body)[:200]!r}."
        return EbbtideError(ErrorCode.INTERNAL, message, next_action="Check that the URL is that of Ebbtide's gateway.")


def group_path(group: str) -> str:
    """Return the path of a group."""
    return f"/v1/groups/{quote(group, safe='')}"


def lease_path(lease: Lease) -> str:
    """Return the path of a lease."""
    return f"{group_path(lease.group)}/lease/{quote(lease.id, safe='')}"


def error_of(body: ErrorBody) -> EbbtideError:
    """Rebuild an error, whatever its details are called."""
    error = EbbtideError(body.code, body.message, next_action=body.next_action or None)
    error.details = dict(body.details)
    return error


def _succeeded(operation: Operation) -> Operation:
    if operation.status is OperationStatus.FAILED:
        body = operation.error or ErrorBody(code=ErrorCode.INTERNAL, message=f"{operation.verb} failed, unexplained.")
        error = error_of(body)
        error.details.setdefault("operation", operation.id)
        raise error
    return operation


def _unfinished(operation: Operation, timeout: float) -> EbbtideError:
    where = f" (in phase {operation.phase})" if operation.phase else ""
    message = f"{operation.verb} of {operation.target} is not done after {timeout:g} s{where}."
    return EbbtideError(ErrorCode.PHASE_DEADLINE, message, operation=operation.id)
