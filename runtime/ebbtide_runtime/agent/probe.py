"""Measured memory: asks the launcher through the control page, and believes nothing else."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from ..native import Field, Measurement, Page, process_start


@dataclass(frozen=True)
class Identity:
    """Which engine a measurement speaks of. Another process, or another launch, is another engine."""

    boot: int
    pid: int
    start: int

    @classmethod
    def of(cls, page: Page) -> Identity:
        """Read the identity from the page."""
        return cls(page.get(Field.BOOT), page.get(Field.ENGINE_PID), page.get(Field.ENGINE_START))

    @property
    def alive(self) -> bool:
        """Whether this very process lives; a zombie does not."""
        return self.pid > 0 and process_start(self.pid) == self.start


@dataclass(frozen=True)
class Free:
    """Memory was at or under the target twice, a settle time apart, of the same living engine."""

    measured: Measurement


@dataclass(frozen=True)
class Held:
    """Memory stayed over the target until the deadline; `measured` is the last measurement."""

    measured: Measurement


@dataclass(frozen=True)
class Replaced:
    """The engine is not the one that was asked to sleep, or it is dead."""

    now: Identity


@dataclass(frozen=True)
class Unmeasured:
    """The launcher did not answer."""


Release = Free | Held | Replaced | Unmeasured


class Probe:
    """Reads measurements of one page. Times in seconds."""

    def __init__(self, page: Page, *, answer_s: float, poll_s: float) -> None:
        self._page = page
        self._answer_s = answer_s
        self._poll_s = poll_s

    def latest(self) -> Measurement | None:
        """Return the last published measurement, however old."""
        return self._page.measurement()

    def recent(self, seconds: float, since_ns: int) -> Measurement | None:
        """Return the last measurement of an engine, unless it began before `since_ns` or is older than `seconds`."""
        measured = self._page.measurement()
        if measured is None or not measured.processes:
            return None
        oldest = max(since_ns, time.monotonic_ns() - round(seconds * 1e9))
        return measured if measured.time_ns >= oldest else None

    async def fresh(self) -> Measurement | None:
        """Ask for a measurement and wait for it; None when the launcher does not answer in time."""
        request = self._page.add(Field.MEASURE_REQUEST, 1)
        due = time.monotonic() + self._answer_s
        while time.monotonic() < due:
            measured = self._page.measurement()
            if measured is not None and measured.answered >= request:
                return measured
            await asyncio.sleep(0.005)
        return None

    async def released(self, target: int, *, settle: float, within: float, engine: Identity) -> Release:
        """Wait until used bytes are at or under `target` twice, for at most `within` seconds.

        The second measurement begins `settle` after the first began: the kernel takes tens of milliseconds for one.
        """
        due = time.monotonic() + within
        free_before = False
        while True:
            began = time.monotonic()
            measured = await self.fresh()
            now = Identity.of(self._page)
            if now != engine or not engine.alive:
                return Replaced(now)
            if measured is None:
                return Unmeasured()
            free = measured.used_bytes <= target and measured.processes > 0
            if free and free_before:
                return Free(measured)
            if not free and time.monotonic() >= due:
                return Held(measured)
            free_before = free
            await asyncio.sleep(max(0.0, began + settle - time.monotonic()) if free else self._poll_s)
