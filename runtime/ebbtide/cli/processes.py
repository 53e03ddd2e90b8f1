"""The processes of one home, as /proc shows them; without psutil, which the base install lacks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

PROC = Path("/proc")


def alive(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        state = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in {"Z", "X"}


def is_operator(pid: int) -> bool:
    """Whether a process is an operator: a pid alone may have been given to somebody else."""
    return alive(pid) and b"ebbtide_operator" in _read(PROC / str(pid) / "cmdline")


def of_members(home: Path) -> list[int]:
    """Return the processes of a home's members: agents and launchers by their arguments, engines by environment."""
    mark = f"{home}/members/".encode()
    return [pid for pid in _pids() if pid != os.getpid() and _belongs(pid, mark)]


def _belongs(pid: int, mark: bytes) -> bool:
    arguments = _read(PROC / str(pid) / "cmdline").split(b"\0")
    if any(before == b"--member" and after.startswith(mark) for before, after in pairwise(arguments)):
        return alive(pid)
    variables = _read(PROC / str(pid) / "environ").split(b"\0")
    return any(variable.startswith(b"EBBTIDE_MEMBER=" + mark) for variable in variables) and alive(pid)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())


def _read(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes that may be gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until(true: Callable[[], bool], seconds: float) -> bool:
    """Poll for a condition. False if it did not come true in time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
