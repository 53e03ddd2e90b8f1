"""`ebbtide down`: end the operator, and whatever a crash left of its members."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode

from ..client.connection import OPERATOR
from . import processes
from .console import err, say

KILL_GRACE = 10.0


def down(home: Path, *, timeout: float) -> int:
    """End everything of a home. Raises PHASE_DEADLINE if the operator does not end in time."""
    record = _record(home)
    pid = int(str(record.get("pid", 0)))
    running = pid > 0 and processes.is_operator(pid)
    if running:
        with err.status("Ending the engines"):
            _end_operator(pid, timeout)
    left = _sweep(home, record)
    if not running and not left:
        say(f"Nothing runs in {home}.")
        return 0
    say("Ended." if not left else f"Ended, with {left} processes that a crash had left.")
    return 0


def _record(home: Path) -> dict[str, object]:
    try:
        found = json.loads((home / OPERATOR).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _end_operator(pid: int, timeout: float) -> None:
    processes.signal_all([pid], signal.SIGTERM)
    if not processes.wait_until(lambda: not processes.alive(pid), timeout):
        message = f"the operator (pid {pid}) did not end within {timeout:g} s."
        raise EbbtideError(ErrorCode.PHASE_DEADLINE, message, next_action="Wait longer (--timeout), or kill it.")


def _sweep(home: Path, record: dict[str, object]) -> int:
    """End members that have no operator, and free the memory that they kept."""
    strays = processes.of_members(home)
    processes.signal_all(strays, signal.SIGTERM)
    if not processes.wait_until(lambda: not processes.of_members(home), KILL_GRACE):
        processes.signal_all(processes.of_members(home), signal.SIGKILL)
        processes.wait_until(lambda: not processes.of_members(home), KILL_GRACE)
    if strays:
        (home / OPERATOR).unlink(missing_ok=True)
    memory = Path(str(record.get("memory") or ""))
    if memory.name.startswith("ebbtide-"):
        shutil.rmtree(memory, ignore_errors=True)
    return len(strays)
