"""Every error Ebbtide answers with, on any interface.

    EbbtideError                one class; `code` says which
      .code                     a stable ErrorCode, below with its HTTP status
      .message                  what, where, and why, in a sentence
      .retryable                whether the same call can succeed later
      .next_action              what to do about it
      .details                  numbers and names, JSON-ready

Codes are part of the interface: they are added, never renamed. docs/errors.md is generated from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import Field, model_validator

from .base import Reading


class ErrorCode(StrEnum):
    """The stable name of an error."""

    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_TAG = "INVALID_TAG"
    INVALID_MODE = "INVALID_MODE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
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
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"


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
    ErrorCode.FORBIDDEN: Rule(403, False, "Ask for a role that allows what details names."),
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
    ErrorCode.NOT_IMPLEMENTED: Rule(501, False, "Use the way that nextAction names instead."),
}

# What happened, in a sentence (docs/errors.md).
MEANINGS: dict[ErrorCode, str] = {
    ErrorCode.INVALID_REQUEST: "The request or the file is malformed, or a value is not allowed.",
    ErrorCode.INVALID_TAG: "A memory tag that no engine has.",
    ErrorCode.INVALID_MODE: "A mode that the verb does not take.",
    ErrorCode.UNAUTHENTICATED: "The token is missing or wrong.",
    ErrorCode.FORBIDDEN: "The caller is known, and not allowed to do this.",
    ErrorCode.NOT_LEASE_HOLDER: "Only the holder of the group's lease may do this.",
    ErrorCode.NOT_FOUND: "No server, group, lease or operation has that name.",
    ErrorCode.ILLEGAL_TRANSITION: "The verb does not fit the member's phase.",
    ErrorCode.OPERATION_IN_PROGRESS: "The member runs another operation; it runs one at a time.",
    ErrorCode.WEIGHTS_NOT_COMMITTED: "The weights are discarded, partial or unknown, and such weights never serve.",
    ErrorCode.VERSION_REGRESSION: "The version is not above the committed one.",
    ErrorCode.MEMBERSHIP_CHANGED: "A member joined, left or was replaced during the call.",
    ErrorCode.INSTANCE_REPLACED: "The call was meant for an engine that has restarted since.",
    ErrorCode.STALE_EPOCH: "The epoch is below the highest seen: the devices have another owner now.",
    ErrorCode.OPERATION_MISMATCH: "The Idempotency-Key was used before with another body.",
    ErrorCode.LEVEL_UNSUPPORTED: "The engine cannot sleep at that level.",
    ErrorCode.TRANSPORT_IMPOSSIBLE: "The weights or blocks cannot travel that way between these places.",
    ErrorCode.MANIFEST_INVALID: "The published weights failed a check; details has the reason and the tensor.",
    ErrorCode.NOT_YET_SUPPORTED: "The spec asks for something that this version does not honour.",
    ErrorCode.DEVICE_NOT_FREE: "The device was measured, and holds more than it may.",
    ErrorCode.ENGINE_ASLEEP: "The server sleeps and takes no requests.",
    ErrorCode.DRAINING: "The server is about to sleep and takes no new requests.",
    ErrorCode.UPDATING: "The server takes new weights, and no requests meanwhile.",
    ErrorCode.ENGINE_STARTING: "The engine is not up yet.",
    ErrorCode.UNREACHABLE: "The gateway, an agent or an engine did not answer.",
    ErrorCode.DRAIN_DEADLINE: "Requests were still in flight when the drain's timeout ended; the server serves on.",
    ErrorCode.PHASE_DEADLINE: "A phase took longer than it may.",
    ErrorCode.HOST_MEMORY_INSUFFICIENT: "There is not enough host memory for the copy; nothing was touched.",
    ErrorCode.ENGINE_FAULTED: "The engine died or is in a state that it cannot leave.",
    ErrorCode.RANK_DISAGREEMENT: "The ranks of a replica report different states.",
    ErrorCode.RELEASE_INCOMPLETE: "The engine said that it sleeps, but its memory was not measured free.",
    ErrorCode.CANARY_FAILED: "The canary's tokens were not the expected ones; the gate stays shut.",
    ErrorCode.INTERNAL: "Something failed that should not have.",
    ErrorCode.NOT_IMPLEMENTED: "A path of another engine that `ebbtide proxy` knows and cannot do truthfully.",
}


class ErrorBody(Reading):
    """An error as it travels. A code that a newer peer added is read as INTERNAL, with its name in details."""

    code: ErrorCode
    message: str
    retryable: bool = False
    next_action: str = ""
    details: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _read_newer_code(cls, raw: object) -> object:
        if not isinstance(raw, dict) or not isinstance(code := raw.get("code"), str) or code in set(ErrorCode):
            return raw
        details = raw.get("details")
        known = details if isinstance(details, dict) else {}
        return {**raw, "code": ErrorCode.INTERNAL, "details": {**known, "newerCode": code}}


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
        error = cls(body.code, body.message, next_action=body.next_action or None)
        error.retryable = body.retryable
        error.details = dict(body.details)
        return error
