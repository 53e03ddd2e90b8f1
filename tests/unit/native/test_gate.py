"""The admission gate: counting in one process, and what several processes can never see."""

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from ebbtide_runtime.native import Measurement, NativeError, Page, Status, process_start

from .children import child, says, shared, until

SLOTS = 64


def test_a_closed_gate_admits_nobody_and_counts_nothing(page: Page) -> None:
    gate = page.register_gate()
    assert not gate.enter()
    assert page.inflight() == 0


def test_an_open_gate_counts_in_and_out(page: Page) -> None:
    gate = page.register_gate()
    page.open_gate()
    assert gate.enter()
    assert gate.enter()
    assert page.inflight() == 2
    gate.leave()
    assert page.inflight() == 1


def test_closing_keeps_those_who_are_inside(page: Page) -> None:
    gate = page.register_gate()
    page.open_gate()
    assert gate.enter()
    page.close_gate()
    assert not gate.enter()
    assert page.inflight() == 1
    gate.leave()
    assert page.inflight() == 0


def test_leaving_an_empty_gate_is_refused(page: Page) -> None:
    gate = page.register_gate()
    with pytest.raises(NativeError) as caught:
        gate.leave()
    assert caught.value.status is Status.INVALID_STATE
    assert page.inflight() == 0


def test_closing_a_gate_drops_its_count(page: Page) -> None:
    gate = page.register_gate()
    page.open_gate()
    gate.enter()
    gate.close()
    assert page.inflight() == 0


def test_all_slots_and_no_more(page: Page) -> None:
    gates = [page.register_gate() for _ in range(SLOTS)]
    with pytest.raises(NativeError) as caught:
        page.register_gate()
    assert caught.value.status is Status.FULL
    gates[17].close()
    page.register_gate().close()


def test_a_reused_slot_starts_at_zero(page: Page) -> None:
    page.open_gate()
    first = page.register_gate()
    first.enter()
    first.close()
    page.register_gate()
    assert page.inflight() == 0


def test_a_forked_child_cannot_use_its_parents_slot(page: Page) -> None:
    gate = page.register_gate()
    page.open_gate()
    pid = os.fork()
    if pid == 0:
        try:
            gate.enter()
        except NativeError as problem:
            os._exit(0 if problem.status is Status.INVALID_STATE else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert page.inflight() == 0
    assert gate.enter()


def test_a_killed_process_is_not_counted(page: Page, shm: Path) -> None:
    page.open_gate()
    with child("hold", shm / "page", 3) as process:
        says(process, "inside")
        assert page.inflight() == 3
        process.kill()
        # Not waited for: it is a zombie, and that is dead.
        until(lambda: page.inflight() == 0)


def test_a_stopped_process_is_still_counted(page: Page, shm: Path) -> None:
    page.open_gate()
    with child("hold", shm / "page", 1) as process:
        says(process, "inside")
        process.send_signal(19)
        until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
        assert page.inflight() == 1


def test_slots_of_killed_processes_are_used_again(page: Page, shm: Path) -> None:
    page.open_gate()
    mine = [page.register_gate() for _ in range(SLOTS - 2)]
    for _ in range(2):
        with ExitStack() as stack:
            for _ in range(2):
                says(stack.enter_context(child("hold", shm / "page", 1)), "inside")
            with pytest.raises(NativeError):
                page.register_gate()
    page.register_gate().close()
    assert page.inflight() == 0
    assert len(mine) == SLOTS - 2


def test_after_close_and_zero_nobody_is_inside(page: Page, shm: Path) -> None:
    """Dekker: either an entering request sees the closed gate, or the closer sees the request."""
    processes, rounds = 4, 150
    (shm / "witness").write_bytes(b"\0" * 4096)
    witness = shared(str(shm / "witness"))
    counters = memoryview(witness)[64:].cast("Q")
    admitted = 0
    with ExitStack() as stack:
        for index in range(processes):
            says(stack.enter_context(child("hammer", shm / "page", shm / "witness", index)), "ready")
        for _ in range(rounds):
            before = sum(counters[:processes])
            page.open_gate()
            until(lambda: sum(counters[:processes]) > before)  # noqa: B023 (called at once)
            page.close_gate()
            until(lambda: page.inflight() == 0)
            inside, count = bytes(witness[:processes]), sum(counters[:processes])
            assert inside == b"\0" * processes
            for _ in range(100):
                page.inflight()
            assert sum(counters[:processes]) == count
            admitted += count - before
    assert admitted >= rounds
    counters.release()


def test_a_reader_never_sees_a_torn_measurement(page: Page, shm: Path) -> None:
    seen = [0]

    def reads_whole() -> bool:
        found = page.measurement()
        if found is not None and found.answered != seen[-1]:
            assert found == Measurement(*[found.answered] * 5)
            assert found.answered > seen[-1]
            seen.append(found.answered)
        return len(seen) > 200

    with child("publish", shm / "page") as writer:
        says(writer, "ready")
        until(reads_whole)


def test_a_killed_writer_leaves_a_whole_measurement(page: Page, shm: Path) -> None:
    for _ in range(5):
        with child("publish", shm / "page") as writer:
            says(writer, "ready")
            until(lambda: page.measurement() is not None)
            writer.kill()
            writer.wait()
        found = page.measurement()
        assert found is not None
        assert found == Measurement(*[found.answered] * 5)


def test_the_start_time_is_the_kernels() -> None:
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    assert process_start(os.getpid()) == int(fields[22 - 3])


def test_the_dead_have_no_start_time() -> None:
    with subprocess.Popen(["true"]) as process:
        until(lambda: process_start(process.pid) is None)
    assert process_start(process.pid) is None
    assert process_start(0) is None
