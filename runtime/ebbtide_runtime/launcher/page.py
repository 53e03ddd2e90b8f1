"""What the launcher keeps on the control page."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ebbtide_api.state import PHASE_NUMBER, Phase

from ..native import Field, Measurement, NativeError, Page, Status


def open_or_create(path: str) -> Page:
    """Open the member's control page, made if nobody has yet. Raises NativeError."""
    try:
        return Page.open(path)
    except NativeError as problem:
        if problem.status is not Status.NOT_FOUND:
            raise
    Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return Page.create(path)
    except NativeError as taken:
        if taken.status is not Status.EXISTS:
            raise
    return Page.open(path)


_BETWEEN = frozenset(
    PHASE_NUMBER[phase]
    for phase in (
        Phase.DRAINING,
        Phase.SUSPENDING,
        Phase.ASLEEP,
        Phase.WAKING_WEIGHTS,
        Phase.WEIGHTS_RESIDENT,
        Phase.UPDATING,
        Phase.COMMITTED,
        Phase.WAKING_KV,
        Phase.VERIFYING,
    )
)
"""From one Running to the next: the engine's API is there, and hears requests."""


class Board:
    """The launcher's fields. `boot` is this launch."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.boot = 0

    def announce(self, start: int) -> None:
        """Say that a launch begins: it waits for a GRANT of the number it gets."""
        self.page.set(Field.LAUNCHER_PID, os.getpid())
        self.page.set(Field.LAUNCHER_START, start)
        self.page.set(Field.BASELINE, 0)
        # A launch that died asleep was waited for; this one has yet to start.
        self.page.set(Field.WAKES, 0)
        self.page.set(Field.HOLD_MS, 0)
        self.boot = self.page.add(Field.BOOT, 1)

    @property
    def granted(self) -> bool:
        """Whether the agent said that this launch's engine owns the device."""
        return self.page.get(Field.GRANT) == self.boot

    @property
    def serving(self) -> bool:
        """Whether this launch's engine runs, or a request would wake it: without an endpoint none would ever come.

        The phase alone may be the one before, until the agent looks again.
        """
        phase = self.page.get(Field.PHASE)
        wakes = phase in _BETWEEN and self.page.get(Field.WAKES) == 1
        return self.granted and (wakes or phase == PHASE_NUMBER[Phase.RUNNING])

    @property
    def killed(self) -> bool:
        """Whether the agent wants this launch's engine ended."""
        return self.page.get(Field.KILL) == self.boot

    @property
    def engine(self) -> tuple[int, int]:
        """The engine's pid and start time; zeros without one."""
        return self.page.get(Field.ENGINE_PID), self.page.get(Field.ENGINE_START)

    @engine.setter
    def engine(self, engine: tuple[int, int]) -> None:
        # The start time first: nobody may take an old start for the new pid.
        self.page.set(Field.ENGINE_START, engine[1])
        self.page.set(Field.ENGINE_PID, engine[0])

    @property
    def launcher(self) -> tuple[int, int]:
        """The last launcher's pid and start time."""
        return self.page.get(Field.LAUNCHER_PID), self.page.get(Field.LAUNCHER_START)

    def beat(self) -> None:
        """Show that we live."""
        self.page.set(Field.LAUNCHER_BEAT, time.monotonic_ns())

    def requested(self) -> int:
        """Return the number of the last measurement that was asked for."""
        return self.page.get(Field.MEASURE_REQUEST)

    def publish(self, answered: int, began_ns: int, used: int, host: int, processes: int) -> None:
        """Publish a measurement that began at `began_ns` (CLOCK_MONOTONIC), after request `answered` was seen."""
        self.page.publish(Measurement(answered, began_ns, used, host, processes))

    def exited(self, status: int) -> None:
        """Note how the engine's launch ended."""
        self.page.add(Field.ENGINE_EXITS, 1)
        self.page.set(Field.LAST_EXIT, status)
