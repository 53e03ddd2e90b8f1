"""How much memory a process's control group leaves it. Version 2; of any other nothing is known.

The node may have plenty where the container has none left, and its kernel ends whoever takes the page too many. Files
in a memory-backed folder are charged to the container that writes them: the engine's worker writes parked weights, the
agent its copies of published ones.
"""

from __future__ import annotations

from pathlib import Path

_MOUNT = Path("root/sys/fs/cgroup")
_CLEAN = ("inactive_file", "active_file")


def room(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return the bytes that a process and all beside it may still take; None where no limit is known."""
    rooms = [left for folder in _groups(proc / str(pid)) if (left := _left(folder)) is not None]
    return min(rooms, default=None)


def _groups(process: Path) -> list[Path]:
    """Return the process's own group and those above it, as far as the process can see them."""
    steps = _path(process).strip("/").split("/")
    # From a container, another one's group lies beside ours, out of sight; but it is the root of what that one sees.
    below = [] if ".." in steps else [step for step in steps if step]
    return [process / _MOUNT / Path(*below[:depth]) for depth in range(len(below) + 1)]


def _path(process: Path) -> str:
    lines = _read(process / "cgroup").splitlines()
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")


def _left(group: Path) -> int | None:
    limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if not (limit.isdecimal() and used.isdecimal()):
        return None  # "max", or a root, which has neither
    counts = dict(line.split(maxsplit=1) for line in _read(group / "memory.stat").splitlines() if " " in line)
    # What was read from disk is charged too, and given up for whoever needs the memory.
    clean = sum(int(counts.get(name, 0)) for name in _CLEAN)
    return max(0, int(limit) - max(0, int(used) - clean))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""  # gone, or somebody else's: then it tells nothing
