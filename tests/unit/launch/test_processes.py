"""Processes: who belongs to an engine, and that nobody of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from ebbtide_runtime.launcher import processes
from ebbtide_runtime.launcher.processes import Process, end, family, is_alive, parse, read


@contextmanager
def session(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python code in a session of its own; it must print a line when it is ready."""
    made = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    assert made.stdout is not None
    assert made.stdout.readline()
    try:
        yield made
    finally:
        for each in family(made.pid, processes.everyone()):
            os.kill(each.pid, signal.SIGKILL)
        made.wait()
        made.stdout.close()


READY = "print('ready', flush=True); time.sleep(60)"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
CHILDREN = "[subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']) for _ in range(3)]"
IMPORTS = "import os, signal, subprocess, sys, time"


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    due = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < due
        time.sleep(0.01)


def test_a_stat_line_is_parsed() -> None:
    rest = " ".join(str(number) for number in range(7, 53))
    assert parse(f"12 (a (b) c) S 1 3 4 {rest}") == Process(pid=12, parent=1, session=4, start=22)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_dead_process_is_none(state: str) -> None:
    assert parse(f"12 (python) {state} 1 3 4 " + " ".join(["0"] * 47)) is None


def test_ourselves() -> None:
    me = read(os.getpid())
    assert me is not None
    assert (me.parent, me.session) == (os.getppid(), os.getsid(0))
    assert is_alive(me.pid, me.start)
    assert not is_alive(me.pid, me.start + 1)


def test_nobody_is_not_alive() -> None:
    assert not is_alive(0, 0)
    assert read(2**22 + 1) is None


def made(pid: int, parent: int, in_session: int) -> Process:
    return Process(pid, parent, in_session, pid)


def test_a_family_is_the_session_and_all_it_started() -> None:
    engine, worker = made(10, 1, 10), made(11, 10, 10)
    runaway, its_child = made(12, 11, 12), made(13, 12, 12)
    orphan = made(14, 1, 10)
    stranger = made(20, 1, 20)
    everyone = [stranger, its_child, runaway, orphan, worker, engine]
    assert family(10, everyone) == [engine, worker, runaway, its_child, orphan]
    assert family(99, everyone) == []


def test_a_session_ends_with_its_children() -> None:
    with session(f"{IMPORTS}; {CHILDREN}; {READY}") as engine:
        until(lambda: len(family(engine.pid, processes.everyone())) == 4)
        assert end(engine.pid, 5, engine.poll) == []
        assert family(engine.pid, processes.everyone()) == []
        assert engine.returncode == -signal.SIGTERM


def test_a_session_whose_leader_was_killed_ends_too() -> None:
    """SIGKILL on vLLM's API server leaves the engine's core and workers alive, holding memory."""
    with session(f"{IMPORTS}; {CHILDREN}; {READY}") as engine:
        until(lambda: len(family(engine.pid, processes.everyone())) == 4)
        engine.kill()
        engine.wait()
        assert len(family(engine.pid, processes.everyone())) == 3
        assert end(engine.pid, 5) == []
        assert family(engine.pid, processes.everyone()) == []


def test_who_ignores_sigterm_is_killed() -> None:
    with session(f"{IMPORTS}; {STUBBORN}; {READY}") as engine:
        began = time.monotonic()
        assert end(engine.pid, 0.3, engine.poll) == []
        assert time.monotonic() - began >= 0.3
        assert engine.returncode == -signal.SIGKILL


def test_a_child_in_its_own_session_ends_too() -> None:
    runaway = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"
    with session(f"{IMPORTS}; child = {runaway}; print(child.pid, flush=True); time.sleep(60)") as engine:
        until(lambda: len(family(engine.pid, processes.everyone())) == 2)
        child = next(each for each in family(engine.pid, processes.everyone()) if each.pid != engine.pid)
        assert end(engine.pid, 5, engine.poll) == []
        assert not is_alive(child.pid, child.start)


def test_an_empty_session_is_ended_at_once() -> None:
    began = time.monotonic()
    assert end(2**22 + 1, 5) == []
    assert time.monotonic() - began < 1


def test_a_pid_that_went_to_another_is_left_alone() -> None:
    with session(f"{IMPORTS}; {READY}") as stranger:
        mine = read(stranger.pid)
        assert mine is not None
        processes._signal([Process(mine.pid, mine.parent, mine.session, mine.start + 1)], signal.SIGKILL)
        assert is_alive(mine.pid, mine.start)
