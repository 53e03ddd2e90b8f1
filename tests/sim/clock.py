"""Time that passes only when nothing is left to do now: an event loop whose clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import ebbtide.client.borrowing
import ebbtide.client.gateway
import ebbtide_operator.commands
import ebbtide_operator.drive.agents
import ebbtide_operator.drive.follow
import ebbtide_operator.loop
import ebbtide_operator.operations
import ebbtide_operator.queue
import ebbtide_operator.views
import ebbtide_runtime.agent.action
import ebbtide_runtime.agent.executor
import ebbtide_runtime.agent.observer
import ebbtide_runtime.agent.probe
import ebbtide_runtime.agent.steps.drain
import ebbtide_runtime.agent.steps.sleep
import ebbtide_runtime.agent.vector

START = 1000.0
MOMENT = 1e-9
COARSE = 0.1
MOST_ROUNDS = 3000
"""Rounds of ready callbacks at one instant, after which it is said that time stands still."""

_TIMED = (
    ebbtide_operator.commands,
    ebbtide_operator.drive.agents,
    ebbtide_operator.drive.follow,
    ebbtide_operator.loop,
    ebbtide_operator.operations,
    ebbtide_operator.views,
    ebbtide_runtime.agent.action,
    ebbtide_runtime.agent.executor,
    ebbtide_runtime.agent.observer,
    ebbtide_runtime.agent.probe,
    ebbtide_runtime.agent.steps.drain,
    ebbtide_runtime.agent.steps.sleep,
    ebbtide_runtime.agent.vector,
)


class StandstillError(Exception):
    """Callbacks call each other without end, and time does not pass."""


class _Jump:
    """In place of a selector: nothing comes from outside, so waiting is jumping."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def select(self, seconds: float | None) -> list[Any]:
        if seconds is None:
            raise StandstillError("nothing will ever happen again")
        # A moment always passes: a timer of less than the clock can tell apart would else come back at once for ever.
        self._loop.at += seconds + MOMENT
        return []


class Loop(asyncio.BaseEventLoop):
    """An event loop in which every run of one program is the same run."""

    def __init__(self) -> None:
        super().__init__()
        self.at = START
        self._selector = _Jump(self)

    def time(self) -> float:
        return self.at

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def step(self) -> None:
        """Go to the next instant at which something happens, and do all that happens then."""
        self._run_once()  # type: ignore[attr-defined]
        for _ in range(MOST_ROUNDS):
            if not self._ready:  # type: ignore[attr-defined]
                return
            self._run_once()  # type: ignore[attr-defined]
        raise StandstillError(f"at {self.at} something is always ready")


class _Time:
    """In place of the module `time`, for whoever reads a clock."""

    def __init__(self, loop: Loop) -> None:
        self.monotonic: Callable[[], float] = loop.time

    def monotonic_ns(self) -> int:
        return int(self.monotonic() * 1e9)

    time_ns = monotonic_ns


async def _at_once(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    # Others run while a thread works; what the thread does is done in one piece.
    await asyncio.sleep(0)
    return work(*arguments, **named)


class _Patient:
    """In place of the module `asyncio`, for those who look every few milliseconds: here they look less often."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(COARSE, seconds) if seconds > 0 else seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


@contextlib.contextmanager
def frozen(loop: Loop, random: Any) -> Iterator[None]:
    """Let everything of ours live in the loop's time, without threads, with chances from `random`."""
    counter = iter(range(1 << 60))
    with contextlib.ExitStack() as stack:
        for module in _TIMED:
            stack.enter_context(patch.object(module, "time", _Time(loop)))
        for module in (ebbtide_runtime.agent.probe, ebbtide_runtime.agent.steps.drain):
            stack.enter_context(patch.object(module, "asyncio", _Patient()))
        stack.enter_context(patch.object(asyncio, "to_thread", _at_once))
        stack.enter_context(patch.object(ebbtide_operator.queue, "random", random))
        # It collects garbage, which takes longer than all the rest of a borrow.
        stack.enter_context(patch.object(ebbtide.client.borrowing, "let_go", lambda: None))
        for module in (ebbtide.client.gateway, ebbtide.client.borrowing):
            stack.enter_context(patch.object(module, "new_key", lambda: f"key-{next(counter)}"))
        asyncio.events._set_running_loop(loop)
        try:
            yield
        finally:
            asyncio.events._set_running_loop(None)
