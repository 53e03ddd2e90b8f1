"""Leases over HTTP: the queue, the time to live, and who may call."""

from __future__ import annotations

import asyncio
import time

import httpx2
import pytest
from ebbtide_operator.plan import TrainerView

from .conftest import GROUP, House, by, code

pytestmark = pytest.mark.anyio


async def test_a_free_group_is_granted_at_once(house: House) -> None:
    answer = await house.client.post(f"{GROUP}/lease", json={"holder": "trainer"})
    lease = answer.json()
    assert answer.status_code == 201
    assert (lease["stage"], lease["epoch"], lease["position"]) == ("Granted", 2, 0)
    assert lease["handoff"] == "/memory/handoff/actor"
    assert 29 < lease["expiresIn"] <= 30
    assert (await house.client.get(f"{GROUP}/lease")).json()["id"] == lease["id"]


async def test_who_comes_second_waits_in_line_and_hears_at_once(house: House) -> None:
    first, second, third = [await house.acquire(name) for name in "abc"]
    assert [lease["position"] for lease in (first, second, third)] == [0, 1, 2]
    waiting = asyncio.create_task(house.client.get(f"{GROUP}/lease/{second['id']}", params={"wait": "10s"}))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    released = time.monotonic()
    await house.client.delete(f"{GROUP}/lease/{first['id']}", headers=by(first))
    granted = (await waiting).json()
    assert granted["stage"] == "Granted"
    assert granted["epoch"] == 4
    assert time.monotonic() - released < 2
    assert (await house.client.get(f"{GROUP}/lease/{third['id']}")).json()["position"] == 1


async def test_a_wait_ends_without_news(house: House) -> None:
    await house.acquire("a")
    second = await house.acquire("b")
    answer = await house.client.get(f"{GROUP}/lease/{second['id']}", params={"wait": "0.05"})
    assert (answer.status_code, answer.json()["stage"]) == (202, "Queued")


async def test_a_cancelled_request_leaves_the_queue(house: House) -> None:
    first, second, third = [await house.acquire(name) for name in "abc"]
    cancelled = await house.client.delete(f"{GROUP}/lease/{second['id']}")
    assert cancelled.json()["stage"] == "Cancelled"
    again = await house.client.delete(f"{GROUP}/lease/{second['id']}")
    assert (again.status_code, again.json()["stage"]) == (200, "Cancelled")
    await house.client.delete(f"{GROUP}/lease/{first['id']}", headers=by(first))
    await house.until(lambda: house.record.lease is not None and house.record.lease.id == third["id"])


async def test_the_same_key_is_the_same_request(house: House) -> None:
    async def ask(holder: str) -> httpx2.Response:
        headers = {"Idempotency-Key": "key-1"}
        return await house.client.post(f"{GROUP}/lease", json={"holder": holder}, headers=headers)

    first, again = await ask("a"), await ask("a")
    assert first.json()["id"] == again.json()["id"] == "key-1"
    assert house.record.queue == ()
    assert code(await ask("b"), 422) == "OPERATION_MISMATCH"


async def test_who_is_not_heard_of_loses_an_unused_lease(house: House) -> None:
    lease = await house.acquire(ttlSeconds=0.2)
    await house.until(lambda: house.record.lease is None)
    renew = await house.client.put(f"{GROUP}/lease/{lease['id']}", headers=by(lease))
    assert code(renew, 412) == "STALE_EPOCH"
    assert renew.json()["details"]["epoch"] == 3
    assert code(await house.client.get(f"{GROUP}/lease"), 404) == "NOT_FOUND"


async def test_who_renews_keeps_the_lease(house: House) -> None:
    lease = await house.acquire(ttlSeconds=1.5)
    for _ in range(5):
        await asyncio.sleep(0.4)
        renewed = await house.client.put(f"{GROUP}/lease/{lease['id']}", headers=by(lease))
        assert renewed.status_code == 200
        assert renewed.json()["expiresIn"] > 1.2
    assert house.record.lease is not None


async def test_a_renewal_may_change_the_time_to_live(house: House) -> None:
    lease, second = await house.acquire(ttlSeconds=30), await house.acquire("b", ttlSeconds=30)
    for one in (lease, second):
        path = f"{GROUP}/lease/{one['id']}"
        renewed = await house.client.put(path, json={"ttlSeconds": 90})
        assert renewed.json()["ttlSeconds"] == 90
        assert renewed.json()["expiresIn"] > 80
        assert code(await house.client.put(path, json={"ttlSeconds": -1}), 400) == "INVALID_REQUEST"
        assert code(await house.client.put(path, json={"surprise": 1}), 400) == "INVALID_REQUEST"


async def test_a_place_in_the_queue_has_no_epoch_to_be_late_with(house: House) -> None:
    first, second = await house.acquire("a"), await house.acquire("b")
    third = await house.acquire("c")
    await house.client.delete(f"{GROUP}/lease/{first['id']}", headers=by(first))
    await house.until(lambda: house.record.epoch == 4)
    assert third["epoch"] < 4
    path = f"{GROUP}/lease/{third['id']}"
    assert (await house.client.put(path, headers=by(third))).status_code == 200
    assert (await house.client.delete(path, headers=by(third))).json()["stage"] == "Cancelled"
    assert second["stage"] == "Queued"


async def test_waiting_in_line_is_a_sign_of_life(house: House) -> None:
    await house.acquire("a", ttlSeconds=3600)
    second = await house.acquire("b", ttlSeconds=1.0)
    for _ in range(4):
        await house.client.get(f"{GROUP}/lease/{second['id']}", params={"wait": "0.4"})
    assert [lease.id for lease in house.record.queue] == [second["id"]]
    await house.until(lambda: house.record.queue == ())


async def test_a_lost_holder_is_followed_by_the_engine_when_its_memory_is_free(house: House) -> None:
    house.driver.trainers[77] = TrainerView(77, alive=True, used_mib=700)
    lease = await house.lent(pid=77, ttlSeconds=1.5)
    await house.until(lambda: house.record.lease.stage == "OwnerLost")
    await asyncio.sleep(0.2)
    assert house.record.owner == "trainer"
    state = (await house.client.get("/v1/servers/chat/state")).json()
    assert (state["ready"], state["reason"]) == (False, "OwnerLost")
    house.driver.trainers[77] = TrainerView(77, alive=False)
    await house.serving()
    assert (house.record.owner, house.record.epoch) == ("engine", 3)
    assert code(await house.ask("reclaim", lease, {"version": 1}), 412) == "STALE_EPOCH"
    late = await house.client.delete(f"{GROUP}/lease/{lease['id']}", headers=by(lease))
    assert code(late, 412) == "STALE_EPOCH"


async def test_a_lost_holder_who_comes_back_in_time_goes_on(house: House) -> None:
    house.driver.trainers[77] = TrainerView(77, alive=True, used_mib=700)
    lease = await house.lent(pid=77, ttlSeconds=1.5)
    await house.until(lambda: house.record.lease.stage == "OwnerLost")
    renewed = await house.client.put(f"{GROUP}/lease/{lease['id']}", headers=by(lease))
    assert renewed.json()["stage"] == "Lent"
    house.driver.trainers[77] = TrainerView(77, alive=True)
    done = await house.ended(await house.ask("reclaim", lease))
    assert done["status"] == "Done"


async def test_a_restart_gives_every_lease_one_fresh_time_to_live(house: House) -> None:
    lease = await house.lent(ttlSeconds=2.0)
    await asyncio.sleep(1.2)
    await house.crash()
    seen = (await house.client.get(f"{GROUP}/lease/{lease['id']}")).json()
    assert seen["expiresIn"] > 1.2
    await asyncio.sleep(1.0)
    assert house.record.lease.stage == "Lent"
    await house.serving()


async def test_giving_back_without_reclaim_brings_the_old_weights(house: House) -> None:
    lease = await house.lent()
    answer = await house.client.delete(f"{GROUP}/lease/{lease['id']}", headers=by(lease))
    assert (answer.status_code, answer.json()["stage"]) == (202, "Returning")
    ended = await house.client.get(f"{GROUP}/lease/{lease['id']}", params={"wait": "10s"})
    assert ended.json()["stage"] == "Released"
    assert house._all("Running")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "holder"),
        ({"holder": ""}, "holder"),
        ({"holder": "a", "ttlSeconds": 0}, "ttlSeconds"),
        ({"holder": "a", "ttlSeconds": "soon"}, "ttlSeconds"),
        ({"holder": "a", "surprise": 1}, "surprise"),
        ({"holder": "engine"}, "holder"),
        ({"holder": "a", "pid": 123456789}, "pid"),
    ],
)
async def test_a_malformed_request_names_its_field(house: House, body: dict[str, object], field: str) -> None:
    answer = await house.client.post(f"{GROUP}/lease", json=body)
    assert code(answer, 400) == "INVALID_REQUEST"
    assert answer.json()["details"]["field"] == field


async def test_a_need_that_nobody_can_measure_is_refused_before_anything_sleeps(closed: House) -> None:
    """The size of a GPU is not known: its members compared a need with 0 MiB, slept, and could only fail."""
    gpus = {"group": "actor", "devices": {"env": "CUDA_VISIBLE_DEVICES"}}
    await closed.open([closed.server(colocation=gpus)])
    answer = await closed.client.post(f"{GROUP}/lease", json={"holder": "a", "needMiB": 1})
    assert code(answer, 422) == "NOT_YET_SUPPORTED"
    assert answer.json()["details"]["field"] == "needMiB"
    assert "gpu:CUDA_VISIBLE_DEVICES" in answer.json()["message"]
    assert (await closed.acquire())["stage"] == "Granted"


async def test_unknown_names_are_not_found(house: House) -> None:
    other = await house.client.post("/v1/groups/other/lease", json={"holder": "a"})
    assert code(other, 404) == "NOT_FOUND"
    assert "actor" in other.json()["message"]
    for method in (house.client.get, house.client.put, house.client.delete):
        assert code(await method(f"{GROUP}/lease/unknown"), 404) == "NOT_FOUND"
