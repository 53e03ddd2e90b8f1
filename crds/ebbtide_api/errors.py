"""Every error Ebbtide answers with, on any interface.

    EbbtideError                one class; `code` says which
      .code                     a stable ErrorCode, below with its HTTP status
      .message                  what, where, and why, in a sentence
      .retryable                whether the same call can succeed later
      .next_action              what to do about it
      .details                  numbers and names, JSON-ready

Codes are part of the interface: they are added, never renamed. Source: docs/errors.md is generated from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import Field

from .base import Reading


class ErrorCode(StrEnum):
    """The stable name of an error."""

    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_TAG = "INVALID_TAG"
    INVALID_MODE = "INVALID_MODE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    NOT_LEASE_HOLDER = "NOT_LEASE_HOLDER"
    NOT_FOUND = "NOT_FOUND"
    ILLEGAL_TRANSITION = "ILLEGAL_TRANSITION"
    OPERATION_IN_PROGRESS = "OPERATION_IN_PROGRESS"
    WEIGHTS_NOT_COMMITTED = "WEIGHTS_NOT_COMMITTED"
    VERSION_REGRESSION = "VERSION_REGRESSION"
    MEMBERSHIP_CHANGED = "MEMBERSHIP_CHANGED"
    INSTANCE_REPLACED = "INSTANCE_REPLACED"
    STALE_EPOCH = "STALE_EPOCH"
    OPERATION_MISMATCH = "OPERATION_MISMATCH"
    LEVEL_UNSUPPORTED = "LEVEL_UNSUPPORTED"
    TRANSPORT_IMPOSSIBLE = "TRANSPORT_IMPOSSIBLE"
    MANIFEST_INVALID = "MANIFEST_INVALID"
    NOT_YET_SUPPORTED = "NOT_YET_SUPPORTED"
    DEVICE_NOT_FREE = "DEVICE_NOT_FREE"
    ENGINE_ASLEEP = "ENGINE_ASLEEP"
    DRAINING = "DRAINING"
    UPDATING = "UPDATING"
    ENGINE_STARTING = "ENGINE_STARTING"
    UNREACHABLE = "UNREACHABLE"
    DRAIN_DEADLINE = "DRAIN_DEADLINE"
    PHASE_DEADLINE = "PHASE_DEADLINE"
    HOST_MEMORY_INSUFFICIENT = "HOST_MEMORY_INSUFFICIENT"
    ENGINE_FAULTED = "ENGINE_FAULTED"
    RANK_DISAGREEMENT = "RANK_DISAGREEMENT"
    RELEASE_INCOMPLETE = "RELEASE_INCOMPLETE"
    CANARY_FAILED = "CANARY_FAILED"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True)
class Rule:
    """What a code means on the wire: its HTTP status, whether to retry, and the default next step."""

    status: int
    retryable: bool
    next_action: str


RULES: dict[ErrorCode, Rule] = {
    ErrorCode.INVALID_REQUEST: Rule(400, False, "Correct the request; details names the field."),
    ErrorCode.INVALID_TAG: Rule(400, False, "Use the tags weights and kv_cache."),
    ErrorCode.INVALID_MODE: Rule(400, False, "Use one of the modes in details."),
    ErrorCode.UNAUTHENTICATED: Rule(401, False, "Send the token that `ebbtide up` wrote, or set EBBTIDE_TOKEN."),
    ErrorCode.NOT_LEASE_HOLDER: Rule(403, False, "Take the group's lease first."),
    ErrorCode.NOT_FOUND: Rule(404, False, "Check the name; `ebbtide status` lists what exists."),
    ErrorCode.ILLEGAL_TRANSITION: Rule(409, False, "Read the state, then call a verb that it allows."),
    ErrorCode.OPERATION_IN_PROGRESS: Rule(409, True, "Wait for the operation in details, then call again."),
    ErrorCode.WEIGHTS_NOT_COMMITTED: Rule(409, False, "Commit or reload weights before resuming."),
    ErrorCode.VERSION_REGRESSION: Rule(409, False, "Publish a version above the committed one."),
    ErrorCode.MEMBERSHIP_CHANGED: Rule(409, True, "Read the group's state and start again."),
    ErrorCode.INSTANCE_REPLACED: Rule(410, False, "The engine restarted: read its state and start again."),
    ErrorCode.STALE_EPOCH: Rule(412, False, "Stop: another holder owns the group. Take a new lease."),
    ErrorCode.OPERATION_MISMATCH: Rule(422, False, "Use a new Idempotency-Key for a different body."),
    ErrorCode.LEVEL_UNSUPPORTED: Rule(422, False, "Use the level in details, or Auto."),
    ErrorCode.TRANSPORT_IMPOSSIBLE: Rule(422, False, "Choose a hand-off that reaches every member."),
    ErrorCode.MANIFEST_INVALID: Rule(422, False, "Publish the weights again; the old ones serve on."),
    ErrorCode.NOT_YET_SUPPORTED: Rule(422, False, "Remove the field named in details."),
    ErrorCode.DEVICE_NOT_FREE: Rule(423, True, "Free memory on the device; details names who holds it."),
    ErrorCode.ENGINE_ASLEEP: Rule(503, True, "Send the request again after Retry-After."),
    ErrorCode.DRAINING: Rule(503, True, "Send the request again after Retry-After."),
    ErrorCode.UPDATING: Rule(503, True, "Send the request again after Retry-After."),
    ErrorCode.ENGINE_STARTING: Rule(503, True, "Send the request again after Retry-After."),
    ErrorCode.UNREACHABLE: Rule(503, True, "Check that `ebbtide up` runs; then read the state again."),
    ErrorCode.DRAIN_DEADLINE: Rule(504, True, "Allow a longer drain, or mode Abort."),
    ErrorCode.PHASE_DEADLINE: Rule(504, True, "Read the state: the outcome of an expired call is unknown."),
    ErrorCode.HOST_MEMORY_INSUFFICIENT: Rule(507, False, "Raise colocation.hostMemoryLimit or allow level 2."),
    ErrorCode.ENGINE_FAULTED: Rule(500, True, "The engine restarts by itself; `ebbtide logs` says why."),
    ErrorCode.RANK_DISAGREEMENT: Rule(500, True, "The replica restarts by itself."),
    ErrorCode.RELEASE_INCOMPLETE: Rule(500, True, "The device was not handed over; details has the bytes still held."),
    ErrorCode.CANARY_FAILED: Rule(500, False, "Check the published weights; details has both answers."),
    ErrorCode.INTERNAL: Rule(500, True, "A fault of Ebbtide: report it with `ebbtide logs`."),
}


class ErrorBody(Reading):
    """An error as it travels."""

    code: ErrorCode
    message: str
    retryable: bool = False
    next_action: str = ""
    details: dict[str, Any] = Field(default_factory=dict)


class EbbtideError(Exception):
    """An error with a stable code. Raised at the edges; inside, outcomes are values."""

    def __init__(self, code: ErrorCode, message: str, *, next_action: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.rule = RULES[code]
        self.retryable = self.rule.retryable
        self.next_action = next_action or self.rule.next_action
        self.details = details

    def __str__(self) -> str:
        return f"{self.code}: {self.message} {self.next_action}"

    @property
    def status(self) -> int:
        """The HTTP status of this code."""
        return self.rule.status

    def body(self) -> ErrorBody:
        """Return the error as it travels."""
        return ErrorBody(
            code=self.code,
            message=self.message,
            retryable=self.retryable,
            next_action=self.next_action,
            details=self.details,
        )

    @classmethod
    def of(cls, body: ErrorBody) -> EbbtideError:
        """Rebuild an error from its body."""
        return cls(body.code, body.message, next_action=body.next_action or None, **body.details)
