"""Shared memory that killed processes leave behind, and what must never be taken for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_runtime.launcher import processes, segments

MAKE = """
import sys, time
from multiprocessing import resource_tracker, shared_memory
made = shared_memory.SharedMemory(create=True, size=1 << 20)
resource_tracker.unregister(made._name, "shared_memory")  # as when the tracker is killed too
print(made.name, flush=True)
time.sleep(60)
"""


@pytest.fixture
def maker() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    made = subprocess.Popen([sys.executable, "-c", MAKE], stdout=subprocess.PIPE)
    assert made.stdout is not None
    file = segments.SHM / made.stdout.readline().decode().strip()
    yield made, file
    made.kill()
    made.wait()
    made.stdout.close()
    file.unlink(missing_ok=True)


def process(pid: int) -> processes.Process:
    found = processes.read(pid)
    assert found is not None
    return found


def test_a_killed_processs_segments_are_removed(maker: tuple[subprocess.Popen[bytes], Path]) -> None:
    made, file = maker
    found = segments.mapped([process(made.pid)])
    assert found == {file}
    made.kill()
    made.wait()
    assert file.exists()
    assert segments.sweep(found) == [file]
    assert not file.exists()


def test_what_somebody_still_maps_stays(maker: tuple[subprocess.Popen[bytes], Path]) -> None:
    made, file = maker
    assert segments.sweep(segments.mapped([process(made.pid)])) == []
    assert file.exists()


def test_what_is_gone_already_is_fine() -> None:
    assert segments.sweep([segments.SHM / "psm_ebbtide_not_there"]) == []
    assert segments.sweep([]) == []


def test_only_pythons_own_names_count(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    names = ["psm_1", "sem.mp-2", "page", "park/rank0of1.park", "psm_3 (deleted)"]
    lines = [f"7f00-7f01 rw-s 00000000 00:19 12    {tmp_path}/{name}" for name in names]
    (tmp_path / "7/maps").write_text(
        "\n".join([*lines, "7f02-7f03 rw-p 0 00:00 0", "7f04-7f05 r-xp 0 08:01 3 /lib/x.so"])
    )
    found = segments.mapped([processes.Process(7, 1, 7, 1)], tmp_path, tmp_path)
    assert {file.name for file in found} == {"psm_1", "sem.mp-2", "psm_3 (deleted)"}


def test_a_process_that_ended_maps_nothing(tmp_path: Path) -> None:
    assert segments.mapped([processes.Process(7, 1, 7, 1)], tmp_path, tmp_path) == set()
    assert segments.mapped([process(os.getpid())]) == set()
