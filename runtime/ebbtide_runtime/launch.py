"""The engine's launcher: `python -m ebbtide_runtime.launch --member FILE`.

It waits until the agent grants the device, starts vLLM in a session of its own, measures it, and ends all of it. The
engine's output is the launcher's own; the last line says why a launch ended. Exit status: 0 asked to end (SIGTERM),
64 the engine's arguments were refused, 69 another launcher runs, 70 the agent wanted it ended, 71 the engine died.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

from ebbtide_api.member import Engine, MemberConfig, load_member

from . import measure
from .launcher import environment, pod, probes, processes, segments
from .launcher.page import Board, open_or_create

TICK_S = 0.01
BEAT_S = 0.1
MEASURE_S = 1.0
LOOK_S = 5.0
GRACE_S = 5.0


class Exit(IntEnum):
    """The launcher's exit statuses."""

    ASKED = 0
    REFUSED = 64
    BUSY = 69
    KILLED = 70
    DIED = 71


class Launcher:
    """One launch of one member's engine."""

    def __init__(
        self,
        member: MemberConfig,
        path: str,
        board: Board,
        command: list[str],
        reader: measure.Reader,
        drain_s: float = 0,
    ) -> None:
        self._member = member
        self._path = path
        self._board = board
        self._command = command
        self._reader = reader
        self._engine: subprocess.Popen[bytes] | None = None
        self._drain_s = drain_s
        self._stopping = False
        self._drain_due = math.inf
        self.beat = -math.inf
        self._next_beat = 0.0
        self._next_measure = 0.0
        self._answered = -1
        self._next_look = 0.0
        self._segments: set[Path] = set()

    def stop(self, *_: Any) -> None:
        """End at the next tick. A signal handler."""
        self._stopping = True

    @property
    def serving(self) -> bool:
        """Whether clients may be sent here: the engine runs, or wakes for them, and nobody asked for its end."""
        return self._board.serving and not self._stopping

    def run(self) -> Exit:
        """Launch, and return how it ended. Nothing of the engine is left then."""
        pid, start = self._board.launcher
        if pid != os.getpid() and processes.is_alive(pid, start):
            return _say(Exit.BUSY, f"another launcher, process {pid}, runs for {self._member.name}")
        self._end_orphans()
        me = processes.read(os.getpid())
        self._board.announce(me.start if me else 0)
        status = self._wait_for_grant()
        if status is None:
            status = self._refuse() or self._serve()
        return status

    def _end_orphans(self) -> None:
        """End the engine of an earlier launcher that was killed: it holds memory that it was not granted."""
        pid, start = self._board.engine
        found = processes.read(pid) if pid else None
        # A live process with that pid and another start is somebody else's, and so is its session.
        if pid and (found is None or found.start == start):
            self._segments = segments.mapped(processes.family(pid, processes.everyone()))
            processes.end(pid, GRACE_S)
            segments.sweep(self._segments)
        self._board.engine = (0, 0)

    def _wait_for_grant(self) -> Exit | None:
        while not self._board.granted:
            if status := self._tick():
                return status
            if self._stopping:
                return Exit.ASKED
        return None

    def _refuse(self) -> Exit | None:
        wrong = environment.problems(self._member)
        if not wrong:
            return None
        self._board.exited(Exit.REFUSED)
        return _say(Exit.REFUSED, f"engine.env may not set {'; '.join(wrong)}")

    def _serve(self) -> Exit:
        self._start()
        status: Exit | None = None
        while status is None:
            status = self._tick() or (self._drained() if self._stopping else self._died())
        return self._finish(status)

    def _drained(self) -> Exit | None:
        """Asked to end: let nobody in, and say whether those inside are through, or were waited for long enough."""
        now = time.monotonic()
        self._drain_due = min(self._drain_due, now + self._drain_s)
        # Each time: an agent that was about to open the gate does not know that we end.
        self._board.page.close_gate()
        return Exit.ASKED if now >= self._drain_due or not self._board.page.inflight() else None

    def _start(self) -> None:
        env = environment.build(
            self._member, self._path, os.environ, environment.installed_plugins(), environment.processors()
        )
        self._engine = subprocess.Popen(self._command, env=env, start_new_session=True, stdin=subprocess.DEVNULL)
        found = processes.read(self._engine.pid)
        self._board.engine = (self._engine.pid, found.start if found else 0)

    def _tick(self) -> Exit | None:
        """Do what is due, wait a little, and say whether the agent ended this launch."""
        now = self.beat = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            self._board.beat()
        if now >= self._next_measure or self._board.requested() > self._answered:
            self._next_measure = now + MEASURE_S
            self._measure()
        time.sleep(TICK_S)
        return Exit.KILLED if self._board.killed else None

    def _measure(self) -> None:
        # Read before measuring: a request made meanwhile needs a later measurement.
        request, began = self._board.requested(), time.monotonic_ns()
        family = self._family()
        pids = [each.pid for each in family]
        member = self._member
        host = measure.folder(member.park_dir, member.weights_dir, member.received_dir)
        self._board.publish(request, began, self._reader.used(pids) if pids else 0, host, len(pids))
        self._answered = request
        if time.monotonic() >= self._next_look:
            # Ahead of time: processes that were killed show nothing any more.
            self._next_look = time.monotonic() + LOOK_S
            self._segments |= segments.mapped(family)

    def _family(self) -> list[processes.Process]:
        return processes.family(self._engine.pid, processes.everyone()) if self._engine else []

    def _died(self) -> Exit | None:
        assert self._engine is not None  # noqa: S101
        code = self._engine.poll()
        if code is None:
            return None
        return Exit.REFUSED if code == Exit.REFUSED else Exit.DIED

    def _finish(self, status: Exit) -> Exit:
        """End all of the engine, then say so on the page: whoever sees no engine may count on its memory."""
        engine = self._engine
        assert engine is not None  # noqa: S101
        left = processes.end(engine.pid, GRACE_S, engine.poll)
        segments.sweep(self._segments)
        self._measure()
        self._board.exited(status)
        if left:
            return _say(status, f"processes {[each.pid for each in left]} of the engine could not be ended")
        self._board.engine = (0, 0)
        # A refusal was explained by the engine's own last line.
        return status if status is Exit.REFUSED else _say(status, _ending(status, engine.returncode))


def _ending(status: Exit, code: int | None) -> str:
    reasons = {Exit.ASKED: "ended as asked", Exit.KILLED: "ended by its agent"}
    return f"the engine {reasons.get(status, f'died with status {code}')}"


def _say(status: Exit, message: str) -> Exit:
    print(f"ebbtide: {message}", file=sys.stderr, flush=True)
    return status


def reader(member: MemberConfig, env: Mapping[str, str] = os.environ) -> measure.Reader:
    """Return what measures the member's device. Raises ImportError without NVML's bindings where they are needed."""
    if member.engine is Engine.CPU:
        return measure.AnonymousMemory()
    return measure.CudaMemory(measure.nvml(), {**env, **member.env}.get("CUDA_VISIBLE_DEVICES"))


def command(path: str) -> list[str]:
    """Return what starts the engine. `-P`: a file `vllm.py` in the current folder must not be the engine."""
    return [sys.executable, "-P", "-m", "ebbtide_runtime.engine.main", "--member", path]


def main(argv: list[str] | None = None, command_of: Callable[[str], list[str]] = command) -> int:
    """Run one launch. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="ebbtide_runtime.launch", description="Launch one member's engine.")
    parser.add_argument("--member", required=True, help="the member's member.json")
    path = os.path.abspath(parser.parse_args(argv).member)
    try:
        member, told = load_member(path), pod.Told.of(os.environ)
        path = pod.settle(member, path, told)
    except (OSError, ValueError) as problem:
        return _say(Exit.REFUSED, f"{path}: {problem}")
    board = Board(open_or_create(member.page_path))
    launcher = Launcher(member, path, board, command_of(path), reader(member), told.drain_s)
    signal.signal(signal.SIGTERM, launcher.stop)
    signal.signal(signal.SIGINT, launcher.stop)
    if told.probe_port is not None:
        probes.serve(told.probe_port, launcher)
    return launcher.run()


if __name__ == "__main__":
    sys.exit(main())
