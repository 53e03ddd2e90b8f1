"""The operator's process: what has no end of its own ends when it is told to."""

import asyncio

import pytest
from ebbtide_operator.kube.app import unless
from ebbtide_operator.kube.lock import LostError


async def forever(told: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        told.append("ended")


async def lose() -> None:
    raise LostError("somebody else leads")


def test_endless_work_ends_when_told_to() -> None:
    async def scene() -> list[str]:
        stop, told = asyncio.Event(), list[str]()
        task = asyncio.create_task(unless(stop, forever(told)))
        await asyncio.sleep(0)
        assert not task.done()
        stop.set()
        await asyncio.wait_for(task, 5)
        return told

    assert asyncio.run(scene()) == ["ended"]


def test_what_fails_is_told() -> None:
    with pytest.raises(LostError, match="somebody else"):
        asyncio.run(unless(asyncio.Event(), lose()))


def test_who_is_cancelled_takes_the_work_along() -> None:
    async def scene() -> list[str]:
        told = list[str]()
        task = asyncio.create_task(unless(asyncio.Event(), forever(told)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return told

    assert asyncio.run(scene()) == ["ended"]
