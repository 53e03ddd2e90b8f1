"""Idle servers under the loop: asleep by themselves, woken by a request, never put to sleep on old news."""

from __future__ import annotations

import pytest
from ebbtide_api.state import Phase

from .conftest import House, by

pytestmark = pytest.mark.anyio
SLEEP = {"idle": {"after": "1s", "deeperAfter": "8760h"}, "holdFor": "2s"}


async def drowsy(closed: House, **sleep: object) -> House:
    await closed.open([closed.server(sleep={**SLEEP, **sleep})])
    await closed.serving()
    return closed


def grow_idle(house: House, seconds: float = 1.0) -> None:
    for fake in house.driver.fakes.values():
        fake.idle = seconds
    house.operator.changed("actor")


async def asleep(house: House) -> None:
    grow_idle(house)
    await house.until(lambda: house._all("Asleep"))
    await house.until(lambda: house.operator.groups["actor"].conditions["chat"][0].reason == "Idle")


async def test_it_sleeps_and_a_request_wakes_it(closed: House) -> None:
    house = await drowsy(closed)
    await asleep(house)
    state = (await house.client.get("/v1/servers/chat/state")).json()
    assert (state["ready"], state["serving"], state["reason"]) == (True, False, "Idle")
    assert [(member["wakes"], member["holdSeconds"]) for member in state["members"]] == [(True, 2.0)] * 2
    for _ in range(20):
        house.driver.fakes["chat-1"].request()
        house.operator.changed("actor")
    await house.serving()
    for fake in house.driver.fakes.values():
        assert fake.calls[-4:] == ["sleep", "wake-weights", "wake-kv", "resume"]
        assert fake.calls.count("wake-weights") == 1


async def test_old_news_puts_nobody_to_sleep(closed: House) -> None:
    """Requests are no news: before it acts on idleness, the operator asks again."""
    house = await drowsy(closed)
    asked: list[str] = []

    async def refresh(group: str) -> None:
        asked.append(group)
        for fake in house.driver.fakes.values():
            fake.idle = 0.0

    house.driver.refresh = refresh  # type: ignore[method-assign]
    grow_idle(house, 100.0)
    await house.until(lambda: len(asked) > 0)
    await house.until(lambda: all(fake.idle == 0.0 for fake in house.driver.fakes.values()))
    house.operator.changed("actor")
    assert house._all("Running")
    assert all("sleep" not in fake.calls for fake in house.driver.fakes.values())


async def test_a_lend_takes_an_idle_sleeper_and_its_requests_wait_for_the_trainer(closed: House) -> None:
    house = await drowsy(closed)
    await asleep(house)
    lease = await house.lent()
    for fake in house.driver.fakes.values():
        fake.request()
        assert (fake.phase, fake.wakes, fake.requested) == (Phase.ASLEEP, False, False)
    done = await house.ended(await house.ask("reclaim", lease))
    assert done["status"] == "Done"
    assert house._all("Running")


async def test_without_wake_on_request_it_sleeps_until_it_is_asked_for(closed: House) -> None:
    house = await drowsy(closed, wakeOnRequest=False, holdFor="0s")
    await asleep(house)
    why = (await house.client.get("/v1/servers/chat/why")).json()
    assert (why["settled"], why["wants"]) == (True, "Asleep, because nobody asked for 1 s; no request wakes it.")
    lease = await house.acquire()
    await house.client.delete(f"/v1/groups/actor/lease/{lease['id']}", headers=by(lease))
    assert house._all("Asleep")


async def test_a_restarted_operator_lets_it_sleep(closed: House) -> None:
    house = await drowsy(closed)
    await asleep(house)
    before = {name: list(fake.calls) for name, fake in house.driver.fakes.items()}
    await house.crash()
    await house.until(lambda: house.operator.groups["actor"].conditions.get("chat", ()) != ())
    assert house.operator.groups["actor"].conditions["chat"][0].reason == "Idle"
    assert {name: fake.calls for name, fake in house.driver.fakes.items()} == before
