"""One change of a group's intent, with the answers that go with it."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode

from .actions import Finish, Retire
from .record import GroupRecord
from .world import MemberView


@dataclass(frozen=True)
class Turn:
    """A new record. `before` is answered first: after a crash in between, the old record leads here again.

    What must not be told before the record is durable is derived from the record instead (results.finishes).
    """

    record: GroupRecord
    before: tuple[Finish, ...] = ()
    after: tuple[Retire, ...] = ()


def named(member: MemberView, error: ErrorBody) -> ErrorBody:
    """Return a member's error with the member's name in it."""
    return error.model_copy(
        update={"message": f"{member.name}: {error.message}", "details": {**error.details, "member": member.name}}
    )


def late(what: str, seconds: float, waiting: str) -> ErrorBody:
    """Return the error of an operation that took too long."""
    message = f"{what} did not end within {seconds:g} s: {waiting}"
    return EbbtideError(ErrorCode.PHASE_DEADLINE, message, seconds=seconds).body()
