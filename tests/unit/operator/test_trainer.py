"""The memory behind a lease, measured on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ebbtide_operator.drive import memory
from ebbtide_operator.drive.memory import Trainer, exists, start_of

HOLD = """
import signal, sys
held = bytearray(int(sys.argv[1]) << 20)
held[::4096] = b"x" * len(held[::4096])
print("held", flush=True)
signal.pause()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], "64"], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.readline()
"""


@contextmanager
def running(*argv: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def trainer_of(process: subprocess.Popen[str]) -> Trainer:
    start = start_of(process.pid)
    assert start is not None
    return Trainer(process.pid, start)


@pytest.fixture(autouse=True)
def _look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LOOK_EVERY", -1.0)


def test_a_trainer_is_measured_and_a_dead_one_holds_nothing() -> None:
    with running(HOLD, "64") as process:
        assert process.stdout is not None
        process.stdout.readline()
        trainer = trainer_of(process)
        seen = trainer.measure()
        assert seen.alive
        assert 64 < seen.used_mib < 120
        process.kill()
        process.wait()
        seen = trainer.measure()
        assert (seen.alive, seen.used_mib) == (False, 0)


def test_children_count_and_outlive_their_parent() -> None:
    with running(PARENT, HOLD) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        trainer = trainer_of(process)
        assert trainer.measure().used_mib > 64
        process.kill()
        process.wait()
        left = trainer.measure()
        assert left.alive
        assert left.used_mib > 64
        subprocess.run(["kill", "-9", str(child)], check=True)
        due = time.monotonic() + 10
        while trainer.measure().alive:  # a killed process lives on while the kernel takes it down
            assert time.monotonic() < due


def test_our_own_process_is_not_the_trainers_though_the_trainer_started_it() -> None:
    parent = os.getppid()
    start = start_of(parent)
    assert start is not None
    with running(HOLD, "64") as process:
        assert process.stdout is not None
        process.stdout.readline()
        trainer = Trainer(parent, start)
        trainer.measure()
        assert not {os.getpid(), process.pid} & set(trainer._known)


def test_another_process_of_the_same_pid_is_nobody() -> None:
    with running(HOLD, "8") as process:
        start = start_of(process.pid)
        assert start is not None
        assert not Trainer(process.pid, start - 1).measure().alive


def test_a_process_that_may_not_be_measured_is_no_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(HOLD, "8") as process:
        assert process.stdout is not None
        process.stdout.readline()
        trainer = trainer_of(process)

        def refused(*_: object) -> int:
            raise PermissionError

        with monkeypatch.context() as patch:
            patch.setattr(memory, "may_measure", lambda _pid: False)
            assert start_of(process.pid) is None
        monkeypatch.setattr(memory.AnonymousMemory, "used", refused)
        seen = trainer.measure()
        assert (seen.alive, seen.used_mib) == (True, 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_users_process_may_not_be_measured() -> None:
    assert memory.may_measure(os.getpid())
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        os._exit(memory.may_measure(os.getppid()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_exists(tmp_path: Path) -> None:
    assert exists(str(tmp_path))
    assert not exists(str(tmp_path / "v1"))
    assert not exists("")
    assert start_of(2**22 + 1) is None
