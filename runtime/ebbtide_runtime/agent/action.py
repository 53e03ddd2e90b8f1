"""What an operation is to the verb that it runs: its record, its time, and the shape of every verb."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from ebbtide_api.base import Message, Reading
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Phase

from .lifecycle import Refusal
from .member import Member

Body = TypeVar("Body", bound=Message)


class Running:
    """The record of an operation while it runs. `deadline` is the caller's, in seconds from the start."""

    def __init__(
        self, key: str, verb: str, target: str, deadline: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.id = key
        self.verb = verb
        self.target = target
        self.noop = False
        self.progress = ""
        self.started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.started = clock()
        self._clock = clock
        self._deadline = deadline
        self._marks: list[tuple[Phase | None, float]] = []

    def entered(self, phase: Phase) -> None:
        """Note that a phase begins now."""
        if not self._marks or self._marks[-1][0] is not phase:
            self._marks.append((phase, self._clock()))

    def left(self) -> None:
        """Note that the last phase of the operation ends now."""
        self._marks.append((None, self._clock()))

    def timings(self) -> list[tuple[Phase, float]]:
        """Return the phases so far and their milliseconds; the last may still run."""
        pairs = zip(self._marks, [*self._marks[1:], (None, self._clock())], strict=False)
        return [(phase, (end - at) * 1000) for (phase, at), (_, end) in pairs if phase is not None]

    def clip(self, seconds: float) -> float:
        """Shorten a wait to what the caller's deadline leaves. Commands to the engine are never shortened."""
        return seconds if self._deadline is None else max(0.0, min(seconds, self._left()))

    def check(self) -> None:
        """Raise PHASE_DEADLINE when the caller's deadline has passed: call it before what cannot be undone."""
        if self._deadline is not None and self._left() <= 0:
            sentence = f"{self.verb} had {self._deadline} s; nothing more was begun"
            raise EbbtideError(ErrorCode.PHASE_DEADLINE, sentence, budgetSeconds=self._deadline)

    def _left(self) -> float:
        return (self._deadline or 0.0) - (self._clock() - self.started)


class Action(Generic[Body]):
    """One call of one verb. The order is: `prepare`, which touches nothing and may refuse; then `run`, or `already`."""

    def __init__(self, member: Member, body: Body) -> None:
        self.member = member
        self.body = body

    async def prepare(self) -> None:
        """Decide, and raise EbbtideError to refuse. Nothing was touched yet, and nothing may be."""

    def budget(self) -> float | None:
        """Return the seconds that the verb's first phase may take, or None for the phase's own."""
        return None

    def note(self) -> dict[str, int]:
        """Return numbers that an answer needs even if this agent does not live to give it."""
        return {}

    async def run(self, running: Running) -> Reading | None:
        """Do it. Raises EbbtideError when it failed at rest, FaultError when the engine is in no known state."""
        raise NotImplementedError

    async def already(self) -> Reading | None:
        """Answer a call whose goal is true already; raise EbbtideError when it is not quite the goal that was meant."""
        return None


def refused(refusal: Refusal) -> EbbtideError:
    """Turn a pure refusal into the error that the caller gets."""
    details: dict[str, Any] = {**refusal.details}
    return EbbtideError(refusal.code, refusal.message, **details)
