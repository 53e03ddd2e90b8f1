"""Lend and reclaim over HTTP, and what becomes of them in a crash."""

from __future__ import annotations

import asyncio
import json

import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_operator.plan import TrainerView

from tests.support.fake_member import error

from .conftest import GROUP, House, by, code

pytestmark = pytest.mark.anyio


async def test_lend_and_reclaim_a_version(house: House) -> None:
    lease = await house.acquire()
    answer = await house.ask("lend", lease)
    assert answer.status_code == 202
    assert answer.json()["status"] == "Running"
    lent = await house.ended(answer)
    assert lent["result"]["epoch"] == lease["epoch"] == 2
    assert lent["result"]["devices"] == [{"id": "cpu0", "freedMiB": 500.0, "residualMiB": 200.0, "freeMiB": 800.0}]
    assert [part["member"] for part in lent["result"]["members"]] == ["chat-0", "chat-1"]
    assert {timing["phase"] for timing in lent["phases"]} == {"Draining"}
    group = (await house.client.get(GROUP)).json()
    assert (group["owner"], group["lease"]["stage"]) == ("trainer", "Lent")
    house.publish(7)
    back = await house.ended(await house.ask("reclaim", lease, {"version": 7}))
    assert back["result"]["weightVersion"] == 7
    assert back["result"]["epoch"] == 3
    assert back["result"]["members"][0]["result"]["canary"]["ok"] is True
    assert (await house.client.get(GROUP)).json()["owner"] == "engine"
    assert {fake.version for fake in house.driver.fakes.values()} == {7}
    assert house.driver.retired == [("actor", 7)]


async def test_an_operation_tells_how_far_it_is(house: House) -> None:
    house.driver.delays = {"sleep": 0.3}
    lease = await house.acquire()
    answer = await house.ask("lend", lease)
    await house.until(lambda: all(fake.phase == "Draining" for fake in house.driver.fakes.values()))
    await asyncio.sleep(0.05)
    seen = (await house.client.get(f"/v1/operations/{answer.json()['id']}")).json()
    assert seen["progress"] == "0 of 2 members measured asleep"
    assert seen["phase"] == "Draining"
    assert (await house.ended(answer))["progress"] == "done"


async def test_the_same_id_runs_once(house: House) -> None:
    lease = await house.acquire()
    key = {"Idempotency-Key": "lend-1"}
    first = await house.ask("lend", lease, **key)
    done = await house.ended(first)
    again = await house.ask("lend", lease, **key)
    assert again.status_code == 200
    assert again.json() == done
    assert [fake.calls.count("sleep") for fake in house.driver.fakes.values()] == [1, 1]
    other = await house.ask("lend", lease, {"level": 2}, **key)
    assert code(other, 422) == "OPERATION_MISMATCH"


async def test_the_same_id_is_answered_even_after_the_lease_ended(house: House) -> None:
    lease = await house.lent()
    key = {"Idempotency-Key": "back-1"}
    done = await house.ended(await house.ask("reclaim", lease, **key))
    again = await house.ask("reclaim", lease, **key)
    assert (again.status_code, again.json()) == (200, done)


async def test_lending_what_is_lent_changes_nothing(house: House) -> None:
    lease = await house.lent()
    again = await house.ask("lend", lease)
    assert again.status_code == 200
    assert again.json()["noop"] is True
    assert again.json()["result"]["devices"][0]["residualMiB"] == 200.0


async def test_only_the_holder_lends(house: House) -> None:
    assert code(await house.client.post(f"{GROUP}:lend"), 403) == "NOT_LEASE_HOLDER"
    lease = await house.acquire()
    assert code(await house.client.post(f"{GROUP}:lend"), 403) == "NOT_LEASE_HOLDER"
    stale = await house.client.post(f"{GROUP}:lend", headers={"Ebbtide-Epoch": "1"})
    assert code(stale, 412) == "STALE_EPOCH"
    malformed = await house.client.post(f"{GROUP}:lend", headers={"Ebbtide-Epoch": "two"})
    assert code(malformed, 400) == "INVALID_REQUEST"
    assert malformed.json()["details"]["field"] == "Ebbtide-Epoch"
    assert (await house.ask("lend", lease)).status_code == 202


async def test_a_second_operation_is_told_of_the_first(house: House) -> None:
    house.driver.delays = {"sleep": 0.2}
    lease = await house.acquire()
    first = await house.ask("lend", lease)
    second = await house.ask("lend", lease)
    assert code(second, 409) == "OPERATION_IN_PROGRESS"
    assert second.json()["details"]["operation"] == first.json()["id"]
    assert code(await house.ask("reclaim", lease), 409) == "OPERATION_IN_PROGRESS"
    assert (await house.ended(first))["status"] == "Done"


async def test_reclaim_before_lend_is_illegal(house: House) -> None:
    lease = await house.acquire()
    assert code(await house.ask("reclaim", lease), 409) == "ILLEGAL_TRANSITION"


async def test_an_older_version_is_refused_at_once(house: House) -> None:
    for version in (3, 4):
        house.publish(version)
        lease = await house.lent()
        await house.ended(await house.ask("reclaim", lease, {"version": version}))
    lease = await house.lent()
    refused = await house.ask("reclaim", lease, {"version": 4})
    assert code(refused, 409) == "VERSION_REGRESSION"
    assert refused.json()["details"] == {"version": 4, "committed": 4}
    assert house._all("Asleep")


async def test_a_refused_manifest_names_the_member_and_the_old_weights_serve(house: House) -> None:
    lease = await house.lent()
    house.publish(1)
    bad = house.driver.fakes["chat-1"]
    bad.published = lambda path, version: error(ErrorCode.MANIFEST_INVALID, reason="TORN")
    done = await house.ended(await house.ask("reclaim", lease, {"version": 1}))
    assert done["status"] == "Failed"
    assert done["error"]["code"] == "MANIFEST_INVALID"
    assert done["error"]["details"] == {"reason": "TORN", "member": "chat-1"}
    assert done["result"]["weightVersion"] == 0
    assert house.driver.retired == [("actor", 1)], "its files are of no use to anybody"
    assert house._all("Running")
    assert house.record.owner == "engine"


async def test_one_member_that_cannot_sleep_brings_the_others_back(house: House) -> None:
    house.driver.fakes["chat-1"].script.fails = {"sleep": [ErrorCode.RELEASE_INCOMPLETE]}
    lease = await house.acquire()
    done = await house.ended(await house.ask("lend", lease))
    assert done["error"]["code"] == "RELEASE_INCOMPLETE"
    assert done["error"]["details"]["member"] == "chat-1"
    assert house._all("Running")
    group = (await house.client.get(GROUP)).json()
    assert (group["owner"], group["epoch"], group["lease"]["stage"]) == ("engine", 2, "Granted")


async def test_a_drain_and_a_level_reach_the_members(house: House) -> None:
    lease = await house.acquire(needMiB=500)
    body = {"level": 2, "drain": {"mode": "Abort", "timeout": 5, "onDeadline": "Fail"}}
    await house.ended(await house.ask("lend", lease, body))
    assert all(fake.level == 2 for fake in house.driver.fakes.values())
    asked = [json.loads(each) for each in sent(house, "sleep")]
    assert {(body["level"], body["need_mib"], body["drain"]["mode"]) for body in asked} == {(2, 500.0, "Abort")}


def sent(house: House, verb: str) -> list[str]:
    """The bodies that the members were sent."""
    told = [each for fake in house.driver.fakes.values() for each, _ in fake.operations.values()]
    bodies = [each.removeprefix(f"{verb} ") for each in told if each.startswith(f"{verb} ")]
    return [
        body.replace("'", '"').replace("None", "null").replace("True", "true").replace("False", "false")
        for body in bodies
    ]


async def test_memory_that_is_kept_fails_the_way_back_by_name(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide_operator.plan.returning.MEMORY_DEADLINE", 0.3)
    house.driver.trainers[77] = TrainerView(77, alive=True, used_mib=700)
    lease = await house.lent(pid=77)
    done = await house.ended(await house.ask("reclaim", lease))
    assert done["error"]["code"] == "DEVICE_NOT_FREE"
    assert done["error"]["details"]["holders"][-1] == {"name": "trainer (pid 77)", "mib": 700.0}
    assert house._all("Asleep")
    assert house.record.lease.stage == "Lent"
    house.driver.trainers[77] = TrainerView(77, alive=True, used_mib=5)
    assert (await house.ended(await house.ask("reclaim", lease)))["status"] == "Done"


async def test_a_lend_goes_on_after_a_crash_of_the_operator(house: House) -> None:
    house.driver.delays = {"sleep": 0.3}
    lease = await house.acquire()
    answer = await house.ask("lend", lease)
    await house.until(lambda: all(fake.phase == "Draining" for fake in house.driver.fakes.values()))
    running = dict(house.driver.fakes)
    await house.crash()
    for fake in running.values():
        fake.complete()
        house.driver.settle(fake)
    done = await house.ended(answer)
    assert done["status"] == "Done"
    assert [fake.calls.count("sleep") for fake in running.values()] == [1, 1]
    assert house.record.owner == "trainer"
    assert (await house.ended(await house.ask("reclaim", lease)))["status"] == "Done"


async def test_a_way_back_goes_on_after_a_crash_of_the_operator(house: House) -> None:
    lease = await house.lent()
    house.publish(5)
    house.driver.delays = {"commit-update": 0.2}
    answer = await house.ask("reclaim", lease, {"version": 5})
    await house.until(lambda: house.record.serve.version == 5)
    await house.crash()
    for fake in house.driver.fakes.values():
        fake.complete()
        house.driver.settle(fake)
    done = await house.ended(answer)
    assert (done["status"], done["result"]["weightVersion"]) == ("Done", 5)


async def test_an_operation_accepted_just_before_a_crash_is_answered(house: House) -> None:
    await house.acquire()
    await house.operator.operations.begin("lost", "lend", "actor", "digest")
    await house.crash()
    done = await house.client.get("/v1/operations/lost", params={"wait": "10s"})
    assert done.json()["error"]["code"] == "UNREACHABLE"


async def test_a_deadline_of_the_caller_is_kept(house: House) -> None:
    house.driver.delays = {"sleep": 30}
    lease = await house.acquire()
    answer = await house.client.post(f"{GROUP}:lend", headers={**by(lease), "Ebbtide-Deadline": "0.2"})
    await house.until(lambda: house.record.lease.lend is None or house.record.lease.lend.failure is not None)
    assert house.record.lease.lend.failure.code == "PHASE_DEADLINE"
    assert "Draining" in house.record.lease.lend.failure.message
    assert answer.status_code == 202
    assert house.record.owner == "engine"
