"""The launcher as a process, with a scripted engine: grants, kills, deaths, orphans and measurements."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ebbtide_runtime.launcher import processes
from ebbtide_runtime.native import Field

from tests.support.launching import MIB, Launch, until
from tests.support.members import write_member

# Two processes that hold 40 MiB each, and say so.
ENGINE = """
import os, subprocess, sys, time
held = bytearray(b"x") * (40 << 20)
if sys.argv[1:] != ["child"]:
    subprocess.Popen([sys.executable, __file__, "child"])
    print("engine", os.environ["EBBTIDE_MEMBER"], os.environ["VLLM_SERVER_DEV_MODE"], flush=True)
time.sleep(120)
"""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    made: list[Launch] = []

    def begin(code: str = ENGINE, **member: object) -> Launch:
        script = tmp_path / "engine.py"
        script.write_text(code)
        made.append(Launch(write_member(tmp_path, **member), [sys.executable, str(script)]))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def test_until_it_is_granted_nothing_of_the_engine_runs(launch: Callable[..., Launch]) -> None:
    begun = launch()
    measured = begun.measure()
    assert (measured.used_bytes, measured.processes) == (0, 0)
    assert (begun.get(Field.ENGINE_PID), begun.get(Field.BOOT)) == (0, 1)
    assert begun.get(Field.LAUNCHER_PID) == begun.process.pid
    assert processes.is_alive(begun.process.pid, begun.get(Field.LAUNCHER_START))
    begun.process.terminate()
    assert begun.wait() == 0
    assert begun.get(Field.ENGINE_EXITS) == 0


def test_a_grant_for_an_earlier_launch_starts_nothing(launch: Callable[..., Launch]) -> None:
    first = launch()
    first.grant()
    first.started()
    first.kill()
    assert first.wait() == 70
    second = launch()
    assert second.get(Field.BOOT) == 2
    assert (second.measure().processes, second.get(Field.ENGINE_PID)) == (0, 0)
    second.grant()
    assert second.started()
    # Nor does the old KILL end the new launch.
    assert second.measure().processes >= 1


def test_a_granted_engine_runs_in_its_own_session_and_is_measured(launch: Callable[..., Launch]) -> None:
    begun = launch()
    begun.grant()
    pid = begun.started()
    engine = processes.read(pid)
    assert engine is not None
    assert (engine.session, engine.start) == (pid, begun.get(Field.ENGINE_START))
    until(lambda: begun.measure().used_bytes > 80 * MIB, "both processes' memory")
    assert begun.measure().processes == 2
    assert begun.log.read_text().split()[:3] == ["engine", str(Path(begun.member.home) / "member.json"), "0"]


def test_a_measurement_is_newer_than_its_request(launch: Callable[..., Launch]) -> None:
    begun = launch()
    begun.grant()
    begun.started()
    for _ in range(5):
        asked = time.monotonic_ns()
        assert begun.measure().time_ns >= asked


def test_it_measures_and_beats_unasked(launch: Callable[..., Launch]) -> None:
    begun = launch()
    first = begun.measure()
    beat = begun.get(Field.LAUNCHER_BEAT)
    until(lambda: begun.page.measurement() != first, "another measurement")
    until(lambda: begun.get(Field.LAUNCHER_BEAT) > beat, "another beat")


def test_parked_and_published_bytes_are_host_bytes(launch: Callable[..., Launch]) -> None:
    begun = launch()
    for folder in (begun.member.park_dir, begun.member.weights_dir + "/v3"):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "file").write_bytes(b"x" * MIB)
    assert begun.measure().host_bytes == pytest.approx(2 * MIB, abs=64 << 10)


def test_sigterm_ends_all_of_it(launch: Callable[..., Launch]) -> None:
    begun = launch()
    begun.grant()
    pid = begun.started()
    until(lambda: begun.measure().processes == 2, "the child")
    begun.process.terminate()
    assert begun.wait() == 0
    assert processes.family(pid, processes.everyone()) == []
    assert (begun.get(Field.ENGINE_PID), begun.get(Field.LAST_EXIT), begun.get(Field.ENGINE_EXITS)) == (0, 0, 1)
    assert begun.last_line() == "ebbtide: the engine ended as asked"


def test_the_agents_kill_ends_all_of_it(launch: Callable[..., Launch]) -> None:
    begun = launch()
    begun.grant()
    pid = begun.started()
    begun.kill()
    assert begun.wait() == 70
    assert processes.family(pid, processes.everyone()) == []
    assert begun.get(Field.LAST_EXIT) == 70
    assert begun.last_line() == "ebbtide: the engine ended by its agent"


def test_a_kill_before_the_grant_ends_the_launch(launch: Callable[..., Launch]) -> None:
    begun = launch()
    begun.kill()
    assert begun.wait() == 70


def test_what_the_last_measurement_says_is_that_nothing_is_left(launch: Callable[..., Launch]) -> None:
    begun = launch()
    begun.grant()
    begun.started()
    until(lambda: begun.measure().used_bytes > 80 * MIB, "memory")
    begun.kill()
    begun.wait()
    measured = begun.page.measurement()
    assert measured is not None
    assert (measured.used_bytes, measured.processes) == (0, 0)


def test_an_engine_that_dies_takes_its_children_along(launch: Callable[..., Launch]) -> None:
    begun = launch()
    begun.grant()
    pid = begun.started()
    until(lambda: begun.measure().processes == 2, "the child")
    subprocess.run(["kill", "-KILL", str(pid)], check=True)
    assert begun.wait() == 71
    assert processes.family(pid, processes.everyone()) == []
    assert (begun.get(Field.LAST_EXIT), begun.get(Field.ENGINE_EXITS)) == (71, 1)
    assert begun.last_line() == "ebbtide: the engine died with status -9"


def test_an_engine_that_ignores_sigterm_is_killed(launch: Callable[..., Launch]) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"
    )
    begun = launch(code)
    begun.grant()
    pid = begun.started()
    until(lambda: begun.last_line() == "up", "the engine to ignore SIGTERM")
    begun.process.terminate()
    assert begun.wait() == 0
    assert processes.family(pid, processes.everyone()) == []


def test_a_refusal_is_the_last_line(launch: Callable[..., Launch]) -> None:
    begun = launch("import sys; print('ebbtide: engine.extraArgs may not set --port', file=sys.stderr); sys.exit(64)")
    begun.grant()
    assert begun.wait() == 64
    assert begun.get(Field.LAST_EXIT) == 64
    assert begun.last_line() == "ebbtide: engine.extraArgs may not set --port"


def test_a_wrong_environment_is_refused_before_the_engine_starts(launch: Callable[..., Launch]) -> None:
    begun = launch(env={"VLLM_SERVER_DEV_MODE": "1"})
    begun.grant()
    assert begun.wait() == 64
    assert (begun.get(Field.LAST_EXIT), begun.get(Field.ENGINE_PID)) == (64, 0)
    assert begun.last_line().startswith("ebbtide: engine.env may not set VLLM_SERVER_DEV_MODE=1 (dev mode")


def test_an_orphan_of_a_killed_launcher_is_ended_first(launch: Callable[..., Launch]) -> None:
    first = launch()
    first.grant()
    pid = first.started()
    until(lambda: first.measure().processes == 2, "the child")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    assert len(processes.family(pid, processes.everyone())) == 2
    second = launch()
    assert processes.family(pid, processes.everyone()) == []
    assert (second.get(Field.ENGINE_PID), second.measure().processes) == (0, 0)


def test_a_stranger_with_the_orphans_pid_is_left_alone(launch: Callable[..., Launch], tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        first = launch()
        first.page.set(Field.ENGINE_START, 1)
        first.page.set(Field.ENGINE_PID, stranger.pid)
        first.process.kill()
        first.process.wait()
        second = launch()
        assert second.get(Field.ENGINE_PID) == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_two_launchers_never_run_at_once(launch: Callable[..., Launch]) -> None:
    first = launch()
    second = launch()
    assert second.wait() == 69
    assert f"another launcher, process {first.process.pid}, runs" in second.last_line()
    assert (first.get(Field.BOOT), first.get(Field.LAUNCHER_PID)) == (1, first.process.pid)


@pytest.mark.parametrize("text", ["", "{", '{"name": "x"}'])
def test_a_member_that_cannot_be_read_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "member.json"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "ebbtide_runtime.launch", "--member", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 64
    assert done.stderr.startswith(f"ebbtide: {path}: ")


def test_the_launcher_is_small(launch: Callable[..., Launch]) -> None:
    """It waits beside every engine, for hours."""
    begun = launch()
    begun.measure()
    status = Path(f"/proc/{begun.process.pid}/status").read_text()
    rss = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert rss < 64 * 1024


SHARING = """
import time
from multiprocessing import shared_memory
made = shared_memory.SharedMemory(create=True, size=1 << 20)
print(made.name, flush=True)
time.sleep(120)
"""


def test_shared_memory_of_a_killed_engine_is_given_back(launch: Callable[..., Launch]) -> None:
    begun = launch(SHARING)
    begun.grant()
    pid = begun.started()
    until(lambda: begun.last_line().startswith("psm_"), "the segment")
    file = Path("/dev/shm") / begun.last_line()
    family = processes.family(pid, processes.everyone())
    # The look comes with a measurement, after it is published: with the second one, the first look is over.
    assert begun.measure().processes == begun.measure().processes
    for each in family:
        subprocess.run(["kill", "-KILL", str(each.pid)], check=False)
    assert begun.wait() == 71
    assert not file.exists()
