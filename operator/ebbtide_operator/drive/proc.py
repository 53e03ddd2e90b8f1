"""Processes as /proc shows them. A pid and a start time together name a process for good."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A live process. `start` is in clock ticks since boot."""

    pid: int
    parent: int
    group: int
    start: int


def parse(stat: str) -> Process | None:
    """Parse /proc/PID/stat; None for a zombie. The name in it may hold spaces and brackets."""
    pid, _, rest = stat.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    if fields[0] in "ZX":
        return None
    return Process(int(pid), int(fields[1]), int(fields[2]), int(fields[19]))


def read(pid: int) -> Process | None:
    """Read one process; None when it is gone, or a zombie."""
    try:
        # Not a Path: all of /proc is read while a group waits for its memory.
        with open(f"{PROC}/{pid}/stat", errors="replace") as file:
            return parse(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def everyone() -> list[Process]:
    """Read every live process."""
    return [found for name in os.listdir(PROC) if name.isdigit() and (found := read(int(name)))]


def is_alive(pid: int, start: int) -> bool:
    """Whether this very process lives: another one with its pid does not count."""
    found = read(pid)
    return found is not None and found.start == start


def of_member(config: str) -> list[Process]:
    """Return every process that belongs to a member: its agent, its launcher, its engine and what that started.

    The first two carry the configuration's path in their arguments, the engine in its environment.
    """
    variable = f"EBBTIDE_MEMBER={config}".encode()
    return [
        process
        for process in everyone()
        if process.pid != os.getpid()
        and (_names(process.pid, config.encode()) or variable in _words(process.pid, "environ"))
    ]


def _names(pid: int, config: bytes) -> bool:
    # Not the path alone: somebody may just be reading the file.
    words = _words(pid, "cmdline")
    return any(pair == (b"--member", config) for pair in pairwise(words))


def _words(pid: int, name: str) -> list[bytes]:
    try:
        return (PROC / str(pid) / name).read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    """Signal processes that are still the ones that were seen."""
    for process in processes:
        # Start time again: between the look and the signal a pid may have gone to somebody else.
        if is_alive(process.pid, process.start):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
