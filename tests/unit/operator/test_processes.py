"""Processes: kept running, adopted after a crash, ended whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ebbtide_operator.drive import proc
from ebbtide_operator.drive.processes import Program, Supervisor, adopt, end_strays, spawn
from ebbtide_operator.settings import Restarts

pytestmark = pytest.mark.anyio
QUICK = Restarts(first=0.01, longest=0.04, stable=60.0)


def program(folder: Path, code: str, *, digest: str = "d", limit: int = 1 << 20) -> Program:
    argv = (sys.executable, "-c", code)
    return Program("it", argv, folder / "it.log", folder / "it.pid", digest, log_limit=limit)


async def until(holds: Callable[[], object], seconds: float = 10.0) -> None:
    due = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < due, f"not within {seconds} s"
        await asyncio.sleep(0.005)


FOREVER = "import time; print('up', flush=True); time.sleep(600)"


async def test_a_program_leads_its_own_session_with_default_signals(tmp_path: Path) -> None:
    told = "import os, signal; print(os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    running = spawn(program(tmp_path, told))
    assert await running.ended == 0
    assert (tmp_path / "it.log").read_text().split() == ["True", "True"]
    assert (tmp_path / "it.log").stat().st_mode & 0o777 == 0o600


async def test_exit_codes_and_signals_are_told(tmp_path: Path) -> None:
    assert await spawn(program(tmp_path, "raise SystemExit(71)")).ended == 71
    killed = spawn(program(tmp_path, FOREVER))
    killed.kill_group(signal.SIGKILL)
    assert await killed.ended == -9


async def test_a_program_that_ends_is_started_again_with_growing_waits(tmp_path: Path) -> None:
    supervisor = Supervisor(program(tmp_path, "raise SystemExit(3)"), QUICK, lambda: None)
    supervisor.start()
    await until(lambda: supervisor.starts >= 4)
    assert "ended" in supervisor.trouble
    assert "exit code 3" in supervisor.trouble
    await supervisor.stop(1)
    stopped = supervisor.starts
    await asyncio.sleep(0.1)
    assert supervisor.starts == stopped


def test_waits_grow_are_bounded_and_are_spread(tmp_path: Path) -> None:
    supervisor = Supervisor(program(tmp_path, ""), Restarts(first=0.1, longest=2.0), lambda: None)
    means = [sum(supervisor.wait(runs) for _ in range(300)) / 300 for runs in (0, 1, 2, 3, 20)]
    for mean, expected in zip(means, (0.1, 0.1, 0.2, 0.4, 2.0), strict=True):
        assert expected * 0.85 < mean < expected * 1.15
    assert len({supervisor.wait(1) for _ in range(10)}) > 1
    assert max(supervisor.wait(99) for _ in range(300)) <= 3.0


async def test_a_program_that_cannot_be_started_is_in_trouble(tmp_path: Path) -> None:
    missing = Program("it", ("/nowhere/program",), tmp_path / "log", tmp_path / "pid", "d")
    supervisor = Supervisor(missing, QUICK, lambda: None)
    supervisor.start()
    await until(lambda: supervisor.trouble)
    await supervisor.stop(1)


async def test_a_program_that_ran_long_was_well(tmp_path: Path) -> None:
    supervisor = Supervisor(program(tmp_path, "pass"), Restarts(0.01, 0.02, stable=0.0), lambda: None)
    supervisor.start()
    await until(lambda: supervisor.starts >= 5)
    assert supervisor.trouble == ""
    await supervisor.stop(1)


async def test_a_program_that_stays_up_at_last_is_out_of_trouble_while_it_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    code = f"""
import time
with open({str(runs)!r}, "a+") as runs:
    runs.write("run ")
    runs.seek(0)
    time.sleep(600 * (len(runs.read().split()) > 3))
"""
    heard: list[str] = []
    supervisor = Supervisor(
        program(tmp_path, code), Restarts(0.01, 0.02, stable=1.0), lambda: heard.append(supervisor.trouble)
    )
    supervisor.start()
    await until(lambda: supervisor.trouble)
    await until(lambda: not supervisor.trouble)
    assert (supervisor.starts, supervisor.running is not None) == (4, True)
    assert heard[-1] == "", "nobody was told that it is well again"
    await supervisor.stop(1)


async def test_who_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    code = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""
    supervisor = Supervisor(program(tmp_path, code), QUICK, lambda: None)
    supervisor.start()
    await until(lambda: (tmp_path / "it.log").exists() and (tmp_path / "it.log").read_text().strip())
    child = int((tmp_path / "it.log").read_text())
    await supervisor.stop(0.1)
    await until(lambda: proc.read(child) is None)
    assert not (tmp_path / "it.pid").exists()


async def test_a_running_program_is_adopted_and_its_end_is_heard(tmp_path: Path) -> None:
    wanted = program(tmp_path, FOREVER)
    running = spawn(wanted)
    running.release()
    adopted = adopt(wanted)
    assert adopted is not None
    assert (adopted.pid, adopted.adopted) == (running.pid, True)
    supervisor = Supervisor(wanted, QUICK, lambda: None)
    supervisor.start(adopted)
    os.kill(running.pid, signal.SIGKILL)
    await until(lambda: supervisor.starts == 1)
    await until(lambda: proc.read(running.pid) is None)
    await supervisor.stop(1)


async def test_only_the_same_configuration_and_the_same_process_are_adopted(tmp_path: Path) -> None:
    wanted = program(tmp_path, FOREVER)
    assert adopt(wanted) is None
    running = spawn(wanted)
    assert adopt(program(tmp_path, FOREVER, digest="other")) is None
    mark = json.loads(wanted.mark.read_text())
    wanted.mark.write_text(json.dumps({**mark, "start": mark["start"] + 1}))
    assert adopt(wanted) is None
    wanted.mark.write_text("{torn")
    assert adopt(wanted) is None
    running.kill_group(signal.SIGKILL)
    await running.ended


async def test_leaving_lets_the_program_run(tmp_path: Path) -> None:
    supervisor = Supervisor(program(tmp_path, FOREVER), QUICK, lambda: None)
    supervisor.start()
    await until(lambda: supervisor.running is not None)
    assert supervisor.running is not None
    pid = supervisor.running.pid
    await supervisor.leave()
    assert proc.read(pid) is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: proc.read(pid) is None)


async def test_a_large_log_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / "it.log").write_bytes(b"x" * 100)
    await spawn(program(tmp_path, "print('new')", limit=50)).ended
    assert (tmp_path / "it.log").read_text() == "new\n"
    assert (tmp_path / "it.log.1").stat().st_size == 100


def sleeper(*argv: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "import time; time.sleep(600)", *argv]
    return subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True)


async def test_strays_are_a_members_processes_and_nobody_elses(tmp_path: Path) -> None:
    config = str(tmp_path / "member.json")
    agent, engine = sleeper("--member", config), sleeper(EBBTIDE_MEMBER=config)
    reader, other = sleeper(config), sleeper("--member", f"{config}.bak")
    try:
        await until(lambda: {p.pid for p in proc.of_member(config)} == {agent.pid, engine.pid})
        assert await end_strays(config, {agent.pid}) == []
        assert (engine.wait(5), agent.poll()) == (-15, None)
        assert await end_strays(config, set()) == []
        assert agent.wait(5) == -15
        assert (reader.poll(), other.poll()) == (None, None)
    finally:
        for process in (agent, engine, reader, other):
            process.kill()
            process.wait()


def test_names_with_spaces_and_brackets_and_zombies_are_read() -> None:
    stat = "42 (a) b) S 7 42 40 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 12345 0"
    assert proc.parse(stat) == proc.Process(42, 7, 42, 12345)
    assert proc.parse(stat.replace(" S ", " Z ")) is None
    assert proc.read(2**22 + 5) is None
    own = proc.read(os.getpid())
    assert own is not None
    assert proc.is_alive(own.pid, own.start)
    assert not proc.is_alive(own.pid, own.start + 1)
