"""What an operator can be told, with its defaults. Times are in seconds."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

PORT = 7411


def default_home() -> Path:
    """Return $EBBTIDE_HOME, else ./.ebbtide."""
    return Path(os.environ.get("EBBTIDE_HOME") or ".ebbtide").absolute()


@dataclass(frozen=True)
class Commands:
    """How a member's two processes are started; `--member FILE` is appended."""

    agent: tuple[str, ...] = (sys.executable, "-m", "ebbtide_runtime.agent")
    """The agent: control, in front of nothing."""
    launcher: tuple[str, ...] = (sys.executable, "-m", "ebbtide_runtime.launch")
    """The launcher: measures, and starts the engine when it is granted the device."""


@dataclass(frozen=True)
class Restarts:
    """How processes that ended are started again: after `first`, then twice as long each time, at most `longest`."""

    first: float = 0.1
    """The wait before the first restart; every wait is spread by half of it, so that members do not move in step."""
    longest: float = 30.0
    """The longest wait."""
    stable: float = 30.0
    """A process that ran this long was well: the next restart counts as the first again."""


@dataclass(frozen=True)
class Settings:
    """One operator."""

    home: Path = field(default_factory=default_home)
    """The folder that survives: leases, operations, members, logs, the token."""
    port: int = PORT
    """The gateway's port on 127.0.0.1; 0 takes a free one."""
    shared_memory: Path = Path("/dev/shm")  # noqa: S108 - the memory-backed file system, by intent
    """Where the memory folder is made: control pages, parked weights, handed-off weights."""
    commands: Commands = Commands()
    """How members are started."""
    restarts: Restarts = Restarts()
    """How they are started again."""
    stop_grace: float = 20.0
    """Time for a launcher to end its engine, or an agent itself, before they are killed."""
    agent_ports: tuple[int, int] = (18000, 28000)
    """Where free ports for agents are looked for: below the range that the system gives to clients."""
    lend_deadline: float = 300.0
    """Time for a lend, besides its drain, unless the caller says otherwise (Ebbtide-Deadline)."""
    reclaim_deadline: float = 900.0
    """Time for a whole way back, unless the caller says otherwise."""
    longest_wait: float = 60.0
    """The longest that one request may wait for a change (?wait=)."""
    body_limit: int = 1 << 20
    """The largest request that the gateway reads, in bytes."""
    operations_kept: int = 256
    """How many operations are remembered."""
    log_limit: int = 64 << 20
    """A member's log beyond this size is moved aside when its process starts, in bytes."""
