"""The work queue and the bell: no round is lost, none runs twice at once, nothing polls."""

from __future__ import annotations

import asyncio
import time

import pytest
from ebbtide_operator import queue as queues
from ebbtide_operator.bell import Bell
from ebbtide_operator.queue import WorkQueue

pytestmark = pytest.mark.anyio


async def wait(holds: object, seconds: float = 5.0) -> None:
    assert callable(holds)
    due = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < due
        await asyncio.sleep(0.002)


async def test_a_key_is_worked_on_once_for_many_adds() -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)

    queue = WorkQueue(work)
    for _ in range(10):
        queue.add("a")
    queue.add("b")
    await wait(lambda: len(done) == 2)
    await asyncio.sleep(0.02)
    assert sorted(done) == ["a", "b"]
    await queue.close()


async def test_an_add_during_a_round_is_another_round_and_never_two_at_once() -> None:
    running, most, rounds = 0, 0, 0

    async def work(_key: str) -> None:
        nonlocal running, most, rounds
        running, rounds = running + 1, rounds + 1
        most = max(most, running)
        if rounds < 5:
            queue.add("a")
        await asyncio.sleep(0.005)
        running -= 1

    queue = WorkQueue(work)
    queue.add("a")
    await wait(lambda: rounds == 5)
    await asyncio.sleep(0.02)
    assert (most, rounds) == (1, 5)
    await queue.close()


async def test_a_slow_key_does_not_hold_up_another() -> None:
    done: list[str] = []
    never = asyncio.Event()

    async def work(key: str) -> None:
        if key == "slow":
            await never.wait()
        done.append(key)

    queue = WorkQueue(work)
    queue.add("slow")
    queue.add("quick")
    await wait(lambda: done == ["quick"])
    await queue.close()
    assert done == ["quick"]


async def test_the_earliest_time_counts() -> None:
    at: list[float] = []

    async def work(_key: str) -> None:
        at.append(time.monotonic())

    queue = WorkQueue(work)
    began = time.monotonic()
    queue.add_after("a", 5)
    queue.add_after("a", 0.05)
    queue.add_after("a", 3)
    await wait(lambda: len(at) == 1)
    assert 0.04 <= at[0] - began < 1
    await asyncio.sleep(0.05)
    assert len(at) == 1
    await queue.close()


async def test_what_fails_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queues, "FIRST_RETRY", 0.01)
    tries = 0

    async def work(_key: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RuntimeError("not yet")

    queue = WorkQueue(work)
    queue.add("a")
    await wait(lambda: tries == 3)
    assert "failed 2 times in a row" in caplog.text
    await queue.close()


async def test_the_bell_wakes_everybody_and_only_for_what_holds() -> None:
    bell, value = Bell(), 0
    waiters = [asyncio.create_task(bell.wait_for(lambda: value == 2, 5)) for _ in range(3)]
    await asyncio.sleep(0)
    value = 1
    bell.ring()
    await asyncio.sleep(0.01)
    assert not any(waiter.done() for waiter in waiters)
    value = 2
    bell.ring()
    assert await asyncio.gather(*waiters) == [True, True, True]
    assert await bell.wait_for(lambda: False, 0.01) is False
