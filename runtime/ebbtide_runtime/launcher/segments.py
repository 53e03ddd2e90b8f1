"""Shared memory that a killed engine leaves in /dev/shm.

vLLM's processes talk through Python's `SharedMemory`, whose names outlive a SIGKILL: the memory would stay taken, after
every fault a little more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from .processes import PROC, Process, everyone

SHM = Path("/dev/shm")  # noqa: S108 - where the C library keeps named shared memory
# Python names its own so; files of other names are somebody's data.
_PREFIXES = ("psm_", "sem.mp-")


def mapped(members: Iterable[Process], proc: Path = PROC, shm: Path = SHM) -> set[Path]:
    """Return Python's shared memory files that the processes have mapped."""
    return {file for each in members for file in _of(each.pid, proc, shm)}


def _of(pid: int, proc: Path, shm: Path) -> set[Path]:
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    start = f"{shm}/"
    paths = (Path(line[line.index(start) :]) for line in lines if start in line)
    return {path for path in paths if path.parent == shm and path.name.startswith(_PREFIXES)}


def sweep(left: Iterable[Path]) -> list[Path]:
    """Unlink the files that nobody maps any more, and return them."""
    wanted = {file for file in left if file.exists()}
    gone = wanted - mapped(everyone()) if wanted else wanted
    for file in gone:
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
    return sorted(gone)
