"""Processes that are kept running: started in sessions of their own, adopted after our own crash, ended whole.

Program     what to start, and where its output goes
Running     one live process, ours or adopted, and the moment it ends (a pidfd: no polling, no lost exit)
Supervisor  keeps one program running, with growing waits between restarts
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide_operator.settings import Restarts

from . import proc
from .files import PRIVATE, read_or_none, write_atomic

log = logging.getLogger("ebbtide.processes")
TROUBLED = 3
"""After so many short runs in a row a program is said to be in trouble."""


@dataclass(frozen=True)
class Program:
    """What to run. `digest` tells runs of different configurations apart; `mark` is where a run is recorded."""

    name: str
    argv: tuple[str, ...]
    log: Path
    mark: Path
    digest: str
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    log_limit: int = 64 << 20


class Running:
    """A live process. `ended` resolves to its exit code: None for one that we adopted, negative for a signal."""

    def __init__(self, pid: int, start: int, *, adopted: bool = False) -> None:
        self.pid, self.start, self.adopted = pid, start, adopted
        self.since = time.monotonic()
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int | None] = loop.create_future()
        self._descriptor = os.pidfd_open(pid)
        loop.add_reader(self._descriptor, self._collect)

    def _collect(self) -> None:
        self.release()
        if not self.ended.done():
            self.ended.set_result(None if self.adopted else _exit_code(self.pid))

    def release(self) -> None:
        """Stop watching; the process is left as it is."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def kill_group(self, number: signal.Signals) -> None:
        """Signal the process and everything in its process group."""
        if proc.is_alive(self.pid, self.start):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def _exit_code(pid: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def spawn(program: Program) -> Running:
    """Start a program as leader of its own session, with default signal handling, and record it. Raises OSError."""
    output = _open_log(program.log, program.log_limit)
    try:
        pid = os.posix_spawn(
            program.argv[0],
            program.argv,
            dict(program.environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
        )
    finally:
        os.close(output)
    found = proc.read(pid)
    start = found.start if found else 0
    write_atomic(program.mark, json.dumps({"pid": pid, "start": start, "digest": program.digest}).encode())
    return Running(pid, start)


def _open_log(path: Path, limit: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > limit:
            path.replace(path.with_name(f"{path.name}.1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE)


def adopt(program: Program) -> Running | None:
    """Return the process that an earlier operator left running, if it runs the same configuration."""
    found = recorded(program.mark)
    if found is None or found[2] != program.digest:
        return None
    with contextlib.suppress(ProcessLookupError):
        return Running(found[0], found[1], adopted=True)
    return None


def mark_of(home: Path, kind: str) -> Path:
    """Return the file that tells which process of a kind a member runs."""
    return home / f"{kind}.pid"


def recorded(mark: Path) -> tuple[int, int, str] | None:
    """Return the pid, the start and the digest of the process that a file tells of, if it lives."""
    try:
        told = json.loads(read_or_none(mark) or b"{}")
        pid, start, digest = int(told["pid"]), int(told["start"]), str(told["digest"])
    except (ValueError, KeyError, TypeError):
        return None
    return (pid, start, digest) if proc.is_alive(pid, start) else None


class Supervisor:
    """Keeps one program running until it is told to stop. `changed` is called when it starts and when it ends."""

    def __init__(self, program: Program, restarts: Restarts, changed: Callable[[], None]) -> None:
        self.program = program
        self.running: Running | None = None
        self.starts = 0
        self._restarts = restarts
        self._changed = changed
        self._short_runs = 0
        self._last_code: int | None = None
        self._stopping = asyncio.Event()
        self._random = random.Random()  # noqa: S311 - jitter, not a secret
        self._task: asyncio.Task[None] | None = None

    def start(self, adopted: Running | None = None) -> None:
        """Begin, with a process that runs already, if there is one."""
        self.running = adopted
        self._task = asyncio.create_task(self._run(), name=f"supervise {self.program.name}")

    @property
    def trouble(self) -> str:
        """Say that the program does not stay up, or nothing."""
        if self._short_runs < TROUBLED:
            return ""
        ended = f"ended {self._short_runs} times in a row, last with exit code {self._last_code}"
        return f"{self.program.name} {ended}; its output is in {self.program.log}."

    async def _run(self) -> None:
        while not self._stopping.is_set():
            if self.running is None:
                self._spawn()
            if self.running is not None:
                self._changed()
                self._last_code = await self._end_of(self.running)
                self.running = None
            if self._stopping.is_set():
                return
            self._changed()
            await self._pause()

    def _spawn(self) -> None:
        self.starts += 1
        try:
            self.running = spawn(self.program)
        except OSError as error:
            self._short_runs += 1
            log.error("%s cannot be started: %s", self.program.name, error)  # noqa: TRY400 - the sentence says it all

    async def _end_of(self, running: Running) -> int | None:
        stable = running.since + self._restarts.stable - time.monotonic()
        if await _ended_within(running, max(0.0, stable)):
            self._short_runs += 1
        elif self._short_runs:
            # Heard now, not at its end: a program that stays up is out of trouble.
            self._short_runs = 0
            self._changed()
        code = await asyncio.shield(running.ended)
        self._tell(time.monotonic() - running.since, code)
        return code

    def _tell(self, ran: float, code: int | None) -> None:
        if not self._stopping.is_set():
            log.warning("%s ended after %.1f s with exit code %s", self.program.name, ran, code)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), self.wait(self._short_runs))

    def wait(self, short_runs: int) -> float:
        """Return the seconds before the next start."""
        base = min(self._restarts.longest, self._restarts.first * 2.0 ** max(0, short_runs - 1))
        return base * self._random.uniform(0.5, 1.5)

    async def stop(self, grace: float) -> None:
        """End the program: SIGTERM, then SIGKILL to its process group after `grace` seconds."""
        self._stopping.set()
        running = self.running
        if running is not None:
            running.kill_group(signal.SIGTERM)
            if not await _ended_within(running, grace):
                log.warning("%s did not end within %.0f s and is killed", self.program.name, grace)
                running.kill_group(signal.SIGKILL)
                await _ended_within(running, 5.0)
        await self._join()
        self.program.mark.unlink(missing_ok=True)

    async def leave(self) -> None:
        """Stop supervising, and leave the program running for the next operator."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
        await self._join()
        if self.running is not None:
            self.running.release()

    async def _join(self) -> None:
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


async def _ended_within(running: Running, seconds: float) -> bool:
    done, _ = await asyncio.wait({running.ended}, timeout=seconds)
    return bool(done)


async def end_strays(config: str, spared: set[int], grace: float = 1.0) -> list[proc.Process]:
    """End every process of a member but the spared ones and their children; return those that could not be ended."""
    left = _strays(config, spared)
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        proc.send(left, number)
        due = time.monotonic() + patience
        while left and time.monotonic() < due:
            await asyncio.sleep(0.02)
            left = _strays(config, spared)
    return left


def _strays(config: str, spared: set[int]) -> list[proc.Process]:
    # An adopted launcher's engine is a stray to nobody.
    found = proc.of_member(config)
    kept = {process.pid for process in found if process.pid in spared}
    while more := {process.pid for process in found if process.parent in kept} - kept:
        kept |= more
    return [process for process in found if process.pid not in kept]
