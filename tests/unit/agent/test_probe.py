"""Released means: measured, twice, of the same living engine."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ebbtide_runtime.agent.probe import Free, Held, Identity, Probe, Replaced, Unmeasured
from ebbtide_runtime.native import Field, Measurement, Page, process_start


class Launcher:
    """Answers every request with what `used` says at that time."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.used: Callable[[int], int | None] = lambda _count: 100
        self.processes = 1
        self.count = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        answered = 0
        while not self._ends.wait(0.001):
            request = self.page.get(Field.MEASURE_REQUEST)
            if request > answered and (used := self.used(self.count)) is not None:
                self.page.publish(Measurement(request, time.monotonic_ns(), used, 0, self.processes))
                answered = request
                self.count += 1

    def close(self) -> None:
        self._ends.set()
        self._thread.join()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    page = Page.create(tmp_path / "page")
    page.set(Field.BOOT, 1)
    page.set(Field.ENGINE_PID, os.getpid())
    page.set(Field.ENGINE_START, process_start(os.getpid()) or 0)
    yield page
    page.close()


@pytest.fixture
def launcher(page: Page) -> Iterator[Launcher]:
    launcher = Launcher(page)
    yield launcher
    launcher.close()


def released(page: Page, target: int, *, settle: float = 0.0, within: float = 0.05) -> object:
    probe = Probe(page, answer_s=0.2, poll_s=0.001)
    return asyncio.run(probe.released(target, settle=settle, within=within, engine=Identity.of(page)))


def test_a_fresh_measurement_answers_its_own_request(page: Page, launcher: Launcher) -> None:
    probe = Probe(page, answer_s=1, poll_s=0.01)
    first, second = asyncio.run(probe.fresh()), asyncio.run(probe.fresh())
    assert first is not None
    assert second is not None
    assert first.answered == 1
    assert second.answered == 2
    assert probe.latest() == second


def test_an_old_measurement_is_no_answer(page: Page) -> None:
    page.publish(Measurement(5, 1, 0, 0, 1))
    page.set(Field.MEASURE_REQUEST, 5)
    probe = Probe(page, answer_s=0.05, poll_s=0.01)
    assert asyncio.run(probe.fresh()) is None
    assert probe.latest() is not None


def test_free_is_measured_twice(page: Page, launcher: Launcher) -> None:
    outcome = released(page, 100)
    assert isinstance(outcome, Free)
    assert outcome.measured.used_bytes == 100
    assert launcher.count == 2


def test_the_two_are_a_settle_time_apart(page: Page, launcher: Launcher) -> None:
    began = time.monotonic()
    assert isinstance(released(page, 100, settle=0.05), Free)
    assert time.monotonic() - began >= 0.05


def test_memory_that_comes_back_is_not_free(page: Page, launcher: Launcher) -> None:
    launcher.used = lambda count: 100 if count % 2 == 0 else 500
    outcome = released(page, 100)
    assert isinstance(outcome, Held)
    assert outcome.measured.used_bytes == 500


def test_memory_that_settles_is_waited_for(page: Page, launcher: Launcher) -> None:
    launcher.used = lambda count: 500 if count < 3 else 100
    assert isinstance(released(page, 100, within=2), Free)
    assert launcher.count == 5


def test_memory_that_stays_is_held(page: Page, launcher: Launcher) -> None:
    assert isinstance(released(page, 99), Held)


def test_without_a_wait_there_is_one_look(page: Page, launcher: Launcher) -> None:
    assert isinstance(released(page, 99, within=0), Held)
    assert launcher.count == 1


def test_no_process_is_no_sleeper(page: Page, launcher: Launcher) -> None:
    """An engine that died uses nothing; that is not a release."""
    launcher.processes = 0
    assert isinstance(released(page, 100), Held)


def test_a_launcher_that_is_silent_measures_nothing(page: Page, launcher: Launcher) -> None:
    launcher.used = lambda _count: None
    assert isinstance(released(page, 100), Unmeasured)


@pytest.mark.parametrize("field", [Field.BOOT, Field.ENGINE_PID, Field.ENGINE_START])
def test_another_engine_is_another_engine(page: Page, launcher: Launcher, field: Field) -> None:
    def replace(count: int) -> int:
        if count == 1:
            page.add(field, 1)
        return 100

    launcher.used = replace
    assert isinstance(released(page, 100), Replaced)


def test_a_dead_engine_is_no_engine(page: Page, launcher: Launcher) -> None:
    page.set(Field.ENGINE_START, 1)
    assert not Identity.of(page).alive
    assert isinstance(released(page, 100), Replaced)


def test_an_engine_that_was_never_there_does_not_live() -> None:
    assert not Identity(1, 0, 0).alive


def test_a_recent_measurement_is_taken_as_it_is_and_an_old_one_is_not(page: Page) -> None:
    probe = Probe(page, answer_s=0.0, poll_s=0.0)
    assert probe.recent(60, 0) is None, "nothing was measured yet"
    taken = Measurement(0, time.monotonic_ns() - 5 * 10**9, 7, 0, 1)
    page.publish(taken)
    assert probe.recent(60, 0) == taken
    assert probe.recent(4.9, 0) is None
    assert probe.recent(60, taken.time_ns) == taken
    assert probe.recent(60, taken.time_ns + 1) is None, "it began before what it shall speak of"
    page.publish(Measurement(0, time.monotonic_ns(), 0, 0, 0))
    assert probe.recent(60, 0) is None, "no engine was there to be measured"


def test_the_settle_time_counts_from_the_first_measurements_beginning(page: Page, launcher: Launcher) -> None:
    began: list[float] = []

    def slow(_count: int) -> int:
        began.append(time.monotonic())
        time.sleep(0.15)
        return 100

    launcher.used = slow
    assert isinstance(released(page, 100, settle=0.2), Free)
    assert 0.19 < began[1] - began[0] < 0.34, "a slow measurement is part of the settle time, not on top of it"
