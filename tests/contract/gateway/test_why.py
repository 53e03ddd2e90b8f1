"""Why, and since when: over HTTP, as the command line asks."""

from __future__ import annotations

from typing import Any

import pytest
from ebbtide_api.verbs import ServerWhy, Timeline

from .conftest import GROUP, House, code

pytestmark = pytest.mark.anyio
WHY = "/v1/servers/chat/why"


async def why(house: House) -> Any:
    answer = await house.client.get(WHY)
    assert answer.status_code == 200, answer.text
    ServerWhy.model_validate(answer.json())
    return answer.json()


async def test_a_healthy_server_needs_one_sentence(house: House) -> None:
    await house.until(lambda: house.operator.groups["actor"].why["chat"].settled)
    found = await why(house)
    assert (found["name"], found["group"], found["settled"]) == ("chat", "actor", True)
    assert (found["wants"], found["obstacles"]) == ("2 of 2 replicas serve.", [])
    assert found["since"]
    assert [(one["name"], one["phase"], one["next"]) for one in found["members"]] == [
        ("chat-0", "Running", "nothing"),
        ("chat-1", "Running", "nothing"),
    ]


async def test_what_is_in_the_way_has_a_time_and_a_next_step(house: House) -> None:
    house.driver.unreachable = {"chat-1"}
    house.operator.changed("actor")
    await house.until(lambda: bool(house.operator.groups["actor"].why["chat"].obstacles))
    first = await why(house)
    (obstacle,) = first["obstacles"]
    assert (first["settled"], obstacle["reason"], obstacle["subject"]) == (False, "AgentUnreachable", "chat")
    assert "chat-1" in obstacle["message"]
    assert "phase" not in first["members"][1]
    house.operator.changed("actor")
    await house.serving()
    assert (await why(house))["obstacles"][0]["since"] == obstacle["since"]


async def test_a_server_that_is_not_there_is_named(house: House) -> None:
    assert code(await house.client.get("/v1/servers/other/why"), 404) == "NOT_FOUND"
    assert code(await house.client.get("/v1/groups/other/timeline"), 404) == "NOT_FOUND"


async def test_nothing_is_said_of_a_server_before_it_was_planned_for(closed: House) -> None:
    await closed.open()
    closed.operator.groups["actor"].why.clear()
    assert (await why(closed))["wants"] == "Nothing was planned for it yet."


async def test_the_timeline_of_a_lend_and_its_return(house: House) -> None:
    lease = await house.lent()
    await house.ended(await house.ask("reclaim", lease))
    await house.client.delete(f"{GROUP}/lease/{lease['id']}", headers={"Ebbtide-Epoch": str(lease["epoch"])})
    await house.serving()
    found = Timeline.model_validate((await house.client.get(f"{GROUP}/timeline")).json())
    owners = [(one.owner, one.stage) for one in found.ownership]
    assert owners.index(("trainer", "Lent")) > owners.index(("engine", "Lending"))
    assert found.ownership[0].owner == found.ownership[-1].owner == "engine"
    assert found.ownership[-1].epoch > found.ownership[0].epoch
    seen = [one.phase for one in found.members if one.member == "chat-0"]
    way = ["Running", "Draining", "Asleep", "WakingWeights", "WeightsResident", "WakingKV", "Verifying", "Running"]
    assert seen[-len(way) :] == way, "every phase of the way was seen, in order"
    assert found.now >= found.members[-1].at
