"""Emptying a member: the gate is closed already, and what is in flight finishes, is ended, or is frozen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import EngineState, Inflight, Phase
from ebbtide_api.verbs import Drain, DrainMode, OnDeadline

from ..action import Running
from ..engine_client import Failure
from ..lifecycle import Event
from ..member import FaultError, Member

_POLL_S = 0.005
_REPEAT_S = 0.5


@dataclass(frozen=True)
class Drained:
    """How a drain ended: the engine is paused and holds no request."""

    aborted: int = 0
    ms: float = 0


def drain_budget(member: Member, timeout: float) -> float:
    """Return the time that a drain may take, in seconds."""
    return timeout + member.settings.drain_abort_s + 2 * member.settings.pause_s


async def drain(member: Member, running: Running, how: Drain, origin: Phase) -> Drained:
    """Empty the member, and pause its engine. Raises DRAIN_DEADLINE after going back to where it came from."""
    began = time.monotonic()
    if how.mode is DrainMode.WAIT and origin is Phase.PAUSED and member.page.inflight():
        # Requests that a pause froze can finish only where they are scheduled.
        await must(member.engine.resume(), "resume")
    remaining = 0 if how.mode is DrainMode.ABORT else await _wait(member, running, running.clip(how.timeout))
    if remaining and how.on_deadline is OnDeadline.FAIL:
        raise await _given_up(member, origin, remaining)
    if remaining or how.mode is DrainMode.ABORT:
        aborted = await _abort(member, running)
        return Drained(aborted, _ms(began))
    await _pause(member, origin)
    return Drained(0, _ms(began))


async def _wait(member: Member, running: Running, seconds: float) -> int:
    due = time.monotonic() + seconds
    while (remaining := member.page.inflight()) and time.monotonic() < due:
        running.progress = f"{remaining} requests in flight"
        await asyncio.sleep(_POLL_S)
    return remaining


async def _abort(member: Member, running: Running) -> int:
    aborted = member.page.inflight()
    due = time.monotonic() + member.settings.drain_abort_s
    while True:
        # Again and again: a request that was still on its way into the engine is queued there by a pause.
        await must(member.engine.pause(DrainMode.ABORT, clear_cache=True), "pause")
        if not await _wait(member, running, _REPEAT_S):
            return aborted
        if time.monotonic() >= due:
            left = member.page.inflight()
            raise FaultError(ErrorCode.ENGINE_FAULTED, f"{left} requests did not end when aborted", remaining=left)


async def _pause(member: Member, origin: Phase) -> None:
    failure = await member.engine.pause(DrainMode.WAIT, clear_cache=True)
    if failure is None:
        return
    state = await member.engine.state()
    if isinstance(state, EngineState) and state.paused and not state.unfinished:
        return
    # Nothing was released yet, so there is a way back.
    await _back(member, origin)
    raise EbbtideError(ErrorCode.ENGINE_FAULTED, f"the engine did not pause: {failure.message}")


async def _given_up(member: Member, origin: Phase, remaining: int) -> EbbtideError:
    await _back(member, origin)
    left = Inflight(running=remaining).wire()
    return EbbtideError(ErrorCode.DRAIN_DEADLINE, f"{remaining} requests were still in flight", remaining=left)


async def _back(member: Member, origin: Phase) -> None:
    if origin is Phase.RUNNING:
        await must(member.engine.resume(), "resume")
        member.apply(Event.DRAIN_ENDED)
    else:
        await must(member.engine.pause(DrainMode.KEEP, clear_cache=False), "pause")
        member.apply(Event.QUIET)


async def must(call: Awaitable[Failure | None], what: str) -> None:
    """Await a call without which there is no way on. Raises FaultError."""
    failure = await call
    if failure is not None:
        raise FaultError(ErrorCode.ENGINE_FAULTED, f"{what} failed: {failure.message}")


def _ms(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)
