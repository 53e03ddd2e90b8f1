"""Processes as the kernel shows them: whose they are, what memory is theirs, and how to end one abruptly.

Nothing here asks Ebbtide: what a test claims about processes and memory it reads by itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from ebbtide_runtime.launcher.processes import Process, everyone, family, is_alive

from tests.support.launching import until

PROC = Path("/proc")
MIB = 1 << 20
API, CORE, WORKER = "API server", "EngineCore", "worker"
_TITLES = {"VLLM::EngineCor": CORE, "VLLM::Worker": WORKER}


def _read(pid: int, name: str) -> bytes:
    try:
        return (PROC / str(pid) / name).read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def of_home(home: Path) -> list[Process]:
    """Return every live process that names an operator's home, in its command line or environment, with its family."""
    # The test itself names the home too, where its own command line says where to put folders.
    word, all_of_us = os.fsencode(home), [each for each in everyone() if each.pid != os.getpid()]
    named = [each for each in all_of_us if word in _read(each.pid, "cmdline") or word in _read(each.pid, "environ")]
    # Processes of an engine write over both, and are known by their parents and their session alone.
    found = {each.pid: each for each in named}
    for each in named:
        found |= {member.pid: member for member in family(each.pid, all_of_us)}
    return [found[pid] for pid in sorted(found)]


def running(home: Path, module: str) -> list[Process]:
    """Return the processes of a home that run a module, `ebbtide_runtime.agent` say."""
    word = b"\0" + module.encode() + b"\0"
    return [each for each in of_home(home) if word in _read(each.pid, "cmdline")]


def role(process: Process) -> str:
    """Return what a process is to its engine; empty for helpers of Python's own."""
    if b"\0ebbtide_runtime.engine.main\0" in _read(process.pid, "cmdline"):
        return API
    return _TITLES.get(_read(process.pid, "comm").decode().strip(), "")


class Engines:
    """Every engine that was ever seen of a home: its processes are remembered, so that orphans are seen too."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._seen: dict[int, Process] = {}

    def look(self) -> list[Process]:
        """Return the live processes of the home's engines."""
        sessions = {each.session for each in of_home(self._home) if role(each) == API}
        sessions |= {each.session for each in self._seen.values()}
        all_of_us = everyone()
        for session in sessions:
            self._seen |= {each.pid: each for each in family(session, all_of_us)}
        self._seen = {pid: each for pid, each in self._seen.items() if is_alive(pid, each.start)}
        return [self._seen[pid] for pid in sorted(self._seen)]

    def part(self, name: str) -> Process:
        """Return the process of a role, of the one engine that there is."""
        found = [each for each in self.look() if role(each) == name]
        assert len(found) == 1, f"{len(found)} processes are the {name} of {self._home}"
        return found[0]


def anonymous_mib(processes: Iterable[Process]) -> float:
    """Return the memory that is the processes' alone or their share of, not backed by files: Pss_Anon, in MiB."""
    lines = (line for each in processes for line in _read(each.pid, "smaps_rollup").decode().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:")) / 1024


def same(processes: Iterable[Process]) -> list[tuple[int, int]]:
    """Return what names processes for good; a parent may die."""
    return [(each.pid, each.start) for each in processes]


def kill(process: Process, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process that must be alive; after SIGKILL, wait until it is gone."""
    assert is_alive(process.pid, process.start), f"process {process.pid} is gone already"
    os.kill(process.pid, number)
    if number is signal.SIGKILL:
        until(lambda: not is_alive(process.pid, process.start), f"the end of process {process.pid}")


def sweep(processes: Callable[[], list[Process]]) -> None:
    """End whatever still lives, so that a failed test leaves nothing to the next."""
    for each in processes():
        if is_alive(each.pid, each.start):
            os.kill(each.pid, signal.SIGKILL)
    until(lambda: not processes(), "the end of all processes")
