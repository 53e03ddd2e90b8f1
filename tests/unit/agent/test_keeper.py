"""Deadlines fire from their own thread, once, and never after they were disarmed."""

import threading
import time
from collections.abc import Iterator

import pytest
from ebbtide_runtime.agent.keeper import Keeper


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.close()


def test_a_deadline_fires_in_another_thread(keeper: Keeper) -> None:
    fired = threading.Event()
    names: list[str] = []

    def expire() -> None:
        names.append(threading.current_thread().name)
        fired.set()

    began = time.monotonic()
    keeper.arm("phase", 0.02, expire)
    assert fired.wait(2)
    assert time.monotonic() - began >= 0.02
    assert names == ["ebbtide-deadlines"]
    assert keeper.armed() == []


def test_arming_again_replaces(keeper: Keeper) -> None:
    fired: list[str] = []
    done = threading.Event()
    keeper.arm("phase", 0.01, lambda: fired.append("old"))
    keeper.arm("phase", 30, lambda: fired.append("new"))
    keeper.arm("stage", 0.05, done.set)
    assert done.wait(2)
    assert fired == []
    assert keeper.armed() == ["phase"]


def test_a_disarmed_deadline_never_fires(keeper: Keeper) -> None:
    fired: list[str] = []
    done = threading.Event()
    keeper.arm("phase", 0.01, lambda: fired.append("late"))
    keeper.disarm("phase")
    keeper.disarm("never armed")
    keeper.arm("stage", 0.05, done.set)
    assert done.wait(2)
    assert fired == []


def test_the_earliest_comes_first(keeper: Keeper) -> None:
    order: list[str] = []
    done = threading.Event()

    def last() -> None:
        order.append("late")
        done.set()

    keeper.arm("late", 0.06, last)
    keeper.arm("early", 0.01, lambda: order.append("early"))
    assert done.wait(2)
    assert order == ["early", "late"]


def test_nothing_fires_after_close() -> None:
    keeper = Keeper()
    fired: list[int] = []
    keeper.arm("phase", 0.01, lambda: fired.append(1))
    keeper.close()
    assert not keeper._thread.is_alive()
    before = len(fired)
    time.sleep(0.02)
    assert len(fired) == before


def test_disarm_waits_for_a_deadline_that_is_firing(keeper: Keeper) -> None:
    """After `disarm` returns, the deadline has fired whole or never will."""
    began, end = threading.Event(), threading.Event()
    done: list[bool] = []

    def slow() -> None:
        began.set()
        end.wait(2)
        done.append(True)

    keeper.arm("phase", 0.0, slow)
    assert began.wait(2)
    threading.Timer(0.03, end.set).start()
    keeper.disarm("phase")
    assert done == [True]
