"""One worker a key: woken by events and by time, never twice at once, patient with what fails.

add(key)               work on it soon; many adds while it works are one more round
add_after(key, delay)  and not later than in `delay` seconds
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

log = logging.getLogger("ebbtide.queue")
FIRST_RETRY = 0.2
LONGEST_RETRY = 30.0


class WorkQueue:
    """Calls `work(key)` for every key that was added. An exception is logged, and the key worked on again, later."""

    def __init__(self, work: Callable[[str], Awaitable[None]]) -> None:
        self._work = work
        self._workers: dict[str, _Worker] = {}

    def add(self, key: str) -> None:
        """Work on a key soon."""
        self._worker(key).wake()

    def add_after(self, key: str, delay: float) -> None:
        """Work on a key not later than in `delay` seconds."""
        self._worker(key).wake_in(delay)

    def _worker(self, key: str) -> _Worker:
        if key not in self._workers:
            self._workers[key] = _Worker(key, self._work)
        return self._workers[key]

    async def close(self) -> None:
        """Stop every worker. A round that has begun is cut off where it waits."""
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))
        self._workers.clear()


class _Worker:
    def __init__(self, key: str, work: Callable[[str], Awaitable[None]]) -> None:
        self._key, self._work = key, work
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._task = asyncio.create_task(self._run(), name=f"work on {key}")

    def wake(self) -> None:
        self._news.set()

    def wake_in(self, delay: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() <= loop.time() + delay:
            return
        self._forget_timer()
        self._timer = loop.call_later(delay, self._news.set)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        self._forget_timer()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            # Cleared before the round: what happens during it is another round.
            self._news.clear()
            self._forget_timer()
            await self._round()

    async def _round(self) -> None:
        try:
            await self._work(self._key)
        except Exception:
            self._failures += 1
            delay = min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** (self._failures - 1)) * random.uniform(0.5, 1.5)  # noqa: S311
            log.exception("%s failed %d times in a row; again in %.1f s", self._key, self._failures, delay)
            self.wake_in(delay)
        else:
            self._failures = 0
