"""Processes as /proc shows them: who belongs to an engine, and how to end all of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """A live process. `start` is in clock ticks since boot: with the pid it names the process for good."""

    pid: int
    parent: int
    session: int
    start: int


def parse(stat: str) -> Process | None:
    """Parse /proc/PID/stat; None for a zombie. The name in it may hold spaces and brackets."""
    pid, _, rest = stat.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    if fields[0] in "ZX":
        return None
    return Process(int(pid), int(fields[1]), int(fields[3]), int(fields[19]))


def read(pid: int, proc: Path = PROC) -> Process | None:
    """Read one process; None when it is gone or a zombie."""
    try:
        # Not a Path: all of /proc is read for every measurement.
        with open(f"{proc}/{pid}/stat", errors="replace") as file:
            return parse(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def everyone(proc: Path = PROC) -> list[Process]:
    """Read every live process."""
    pids = (int(name) for name in os.listdir(proc) if name.isdigit())
    return [found for pid in pids if (found := read(pid, proc)) is not None]


def family(session: int, processes: Iterable[Process]) -> list[Process]:
    """Return the members of a session, and all that they started, also into sessions of their own."""
    processes = list(processes)
    found = {each.pid: each for each in processes if each.session == session}
    while True:
        new = {each.pid: each for each in processes if each.parent in found and each.pid not in found}
        if not new:
            return sorted(found.values(), key=lambda each: each.pid)
        found |= new


def is_alive(pid: int, start: int) -> bool:
    """Whether this very process lives: another one with its pid does not count."""
    found = read(pid) if pid else None
    return found is not None and found.start == start


def end(session: int, grace_s: float, reap: Callable[[], object] = lambda: None) -> list[Process]:
    """End a session and all that it started: SIGTERM, then SIGKILL after `grace_s`. Return who is left: nobody.

    `reap` is called while waiting, for our own child among them to be waited for.
    """
    members = family(session, everyone())
    _signal(members, signal.SIGTERM)
    members = _wait(session, members, grace_s, reap)
    _signal(members, signal.SIGKILL)
    return _wait(session, members, max(grace_s, 5.0), reap)


def _wait(session: int, members: list[Process], seconds: float, reap: Callable[[], object]) -> list[Process]:
    due = time.monotonic() + seconds
    while True:
        reap()
        live = {each.pid: each for each in members if is_alive(each.pid, each.start)}
        # Who was started since: a child's parent may be gone, its session is not.
        live |= {each.pid: each for each in family(session, everyone())}
        members = list(live.values())
        if not members or time.monotonic() >= due:
            return members
        time.sleep(_POLL_S)


def _signal(members: Iterable[Process], number: int) -> None:
    for each in members:
        # Start time again: between the look and the signal a pid may have gone to somebody else.
        if is_alive(each.pid, each.start):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, number)
