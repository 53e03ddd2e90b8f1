"""The memory of a trainer: its process and all that it started, measured as engines are (runtime's measure)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from ebbtide_runtime.measure import AnonymousMemory

from ebbtide_operator.plan import TrainerView

from .proc import Process, everyone, is_alive, read

MIB = 1 << 20
LOOK_EVERY = 2.0
"""Seconds between two looks for children that a trainer started."""


class Trainer:
    """The processes behind a lease. Children are remembered: when their parent dies they still hold memory."""

    def __init__(self, pid: int, start: int) -> None:
        self.pid = pid
        self._known: dict[int, int] = {pid: start}
        self._memory = AnonymousMemory()
        self._looked = float("-inf")

    def measure(self) -> TrainerView:
        """Measure now: some milliseconds a GiB. New children are looked for now and then: that reads all of /proc."""
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._known |= {found.pid: found.start for found in _descendants(self._known, everyone())}
            self._looked = time.monotonic()
        self._known = {pid: start for pid, start in self._known.items() if is_alive(pid, start)}
        used = sum(self._one(pid) for pid in sorted(self._known))
        return TrainerView(self.pid, alive=bool(self._known), used_mib=used / MIB)

    def _one(self, pid: int) -> int:
        # A child of another user cannot be measured: what it holds is not on our device's account.
        with contextlib.suppress(PermissionError):
            return self._memory.used([pid])
        return 0


def _descendants(known: dict[int, int], processes: Iterable[Process]) -> list[Process]:
    # An operator that the trainer started is not the trainer: its engines are measured as engines.
    processes = [each for each in processes if each.pid != os.getpid()]
    # A pid that was given to somebody else is nobody's parent of ours.
    found = {each.pid for each in processes if known.get(each.pid) == each.start}
    family: list[Process] = []
    while new := [each for each in processes if each.parent in found and each.pid not in found]:
        family += new
        found |= {each.pid for each in new}
    return family


def start_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when there is none that can be measured."""
    found = read(pid)
    return found.start if found and may_measure(pid) else None


def may_measure(pid: int) -> bool:
    """Say whether the kernel lets us measure a process. The file's mode lets everybody; opening it tells."""
    try:
        Path(f"/proc/{pid}/smaps_rollup").open("rb").close()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return True


def exists(path: str) -> bool:
    """Say whether a folder of published weights is there."""
    return bool(path) and (Path(path) / os.curdir).is_dir()
