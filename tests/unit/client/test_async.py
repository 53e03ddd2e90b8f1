"""The asynchronous client: the same flows, so only what is different is tested."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from ebbtide import AsyncGroup, AsyncLoan, Connection, EbbtideError, ErrorCode
from ebbtide_api.errors import ErrorBody

from tests.support.fake_gateway import FakeGateway, Fault
from tests.support.polling import eventually

WEIGHTS = {"w": np.arange(8, dtype=np.float32)}


def run(connection: Connection, body: Callable[[AsyncGroup], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncGroup("actor", connection=connection) as group:
            await body(group)

    asyncio.run(main())


def test_the_whole_way(connection: Connection, gateway: FakeGateway) -> None:
    async def body(group: AsyncGroup) -> None:
        assert [server.name for server in await group.servers()] == ["chat"]
        async with group.borrow() as loan:
            assert loan.freed_mib == 1200.5
            await loan.publish(WEIGHTS, version=7, dtype="float16")
        assert loan.reclaimed is not None
        assert (await group.state()).owner == "engine"

    run(connection, body)
    assert gateway.version == 7
    assert gateway.performed == ["lend", "reclaim"]


def test_a_path_is_published(connection: Connection, gateway: FakeGateway) -> None:
    async def body(group: AsyncGroup) -> None:
        async with group.borrow() as loan:
            first = await loan.publish(WEIGHTS, version=1)
            await loan.publish_path(first.path / "model-00001.safetensors", version=2)

    run(connection, body)
    assert gateway.version == 2


def test_a_blocked_event_loop_keeps_its_lease(connection: Connection, gateway: FakeGateway) -> None:
    async def body(group: AsyncGroup) -> None:
        async with group.borrow(ttl=0.3):
            # A training step in an async function does just this.
            eventually(lambda: len(gateway.seen("PUT", "/lease/")) >= 4, 20)

    gateway.ttl_counts = False
    run(connection, body)
    assert gateway.performed == ["lend", "reclaim"]


def test_a_cancelled_task_gives_back_the_old_weights(connection: Connection, gateway: FakeGateway) -> None:
    async def trainer(group: AsyncGroup, borrowed: asyncio.Event) -> None:
        async with group.borrow() as loan:
            await loan.publish(WEIGHTS, version=5)
            borrowed.set()
            await asyncio.sleep(60)

    async def body(group: AsyncGroup) -> None:
        borrowed = asyncio.Event()
        task = asyncio.create_task(trainer(group, borrowed))
        await borrowed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(connection, body)
    assert gateway.version == 0
    assert gateway.performed == ["lend", "reclaim"]
    assert gateway.current is None


def test_a_task_cancelled_while_it_waits_for_the_lend_gives_up_the_lease(
    connection: Connection, gateway: FakeGateway
) -> None:
    async def trainer(group: AsyncGroup) -> None:
        async with group.borrow():
            pytest.fail("never entered")

    async def body(group: AsyncGroup) -> None:
        gateway.hold("lend")
        task = asyncio.create_task(trainer(group))
        await asyncio.to_thread(eventually, lambda: gateway.performed)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(connection, body)
    assert gateway.seen("DELETE", "/lease/")


async def _raise(loan: AsyncLoan) -> None:
    raise ZeroDivisionError


def test_exceptions_go_on(connection: Connection, gateway: FakeGateway) -> None:
    async def body(group: AsyncGroup) -> None:
        gateway.fail("reclaim", ErrorBody(code=ErrorCode.DEVICE_NOT_FREE, message="cpu0 is not free."))
        with pytest.raises(ZeroDivisionError) as caught:
            async with group.borrow() as loan:
                await _raise(loan)
        assert "DEVICE_NOT_FREE" in caught.value.__notes__[0]

        gateway.fail("reclaim", ErrorBody(code=ErrorCode.MANIFEST_INVALID, message="torn."))
        with pytest.raises(EbbtideError, match="torn"):
            async with group.borrow():
                pass

    run(connection, body)


def test_a_connection_that_drops_is_tried_again(connection: Connection, gateway: FakeGateway) -> None:
    async def body(group: AsyncGroup) -> None:
        for path in ("/lease", ":lend", ":reclaim"):
            gateway.fault("POST", path, Fault.drop_before(), Fault.drop_after(), Fault.answer(503))
        async with group.borrow():
            pass

    run(connection, body)
    assert gateway.performed == ["lend", "reclaim"]


def test_a_gateway_that_hangs_is_not_waited_for(connection: Connection, gateway: FakeGateway) -> None:
    async def body(group: AsyncGroup) -> None:
        gateway.fault("GET", "/v1/groups/actor", Fault.delay(3))
        with pytest.raises(EbbtideError) as caught:
            await group._runner.run(_impatient(group))
        assert caught.value.code is ErrorCode.UNREACHABLE

    run(connection, body)


def _impatient(group: AsyncGroup):  # type: ignore[no-untyped-def]
    from ebbtide.client.gateway import Call

    return group._gateway.answer(Call("GET", "/v1/groups/actor", patience=0.2))
