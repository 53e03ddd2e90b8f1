"""Two models that take turns on one device, behind the gateway: no more than one is ever awake."""

from __future__ import annotations

import httpx2
import pytest
from ebbtide_api.state import Phase

from .conftest import GROUP, House, code

pytestmark = pytest.mark.anyio


def serving(house: House) -> list[str]:
    return sorted(name for name, fake in house.driver.fakes.items() if fake.phase is Phase.RUNNING)


@pytest.fixture
async def turns(closed: House) -> House:
    """Two servers that take turns; `code` came up last, and has the device."""
    share = {"group": "actor", "devices": {"cpu": {"memory": "1000Mi"}}, "turns": {"minimum": "50ms"}}
    ports = {"chat": 9100, "code": 9200}
    servers = [closed.server(name, replicas=1, colocation=share, engine={"port": port}) for name, port in ports.items()]
    await closed.open(servers)
    await closed.until(lambda: {fake.phase for fake in closed.driver.fakes.values()} == {Phase.RUNNING, Phase.ASLEEP})
    return closed


async def state(house: House, name: str) -> tuple[bool, bool, str]:
    found = (await house.client.get(f"/v1/servers/{name}/state")).json()
    return found["ready"], found["serving"], found["reason"]


async def test_a_request_gets_its_server_the_turn(turns: House) -> None:
    (before,) = serving(turns)
    (other,) = {"chat-0", "code-0"} - {before}
    for name, asked in ((other, before), (before, other)):
        assert not turns.driver.fakes[name].request()
        turns.operator.changed("actor")
        await turns.until(lambda name=name: serving(turns) == [name])
        assert turns.driver.fakes[asked].phase is Phase.ASLEEP
        assert await state(turns, name[:4]) == (True, True, "Serving")
        assert await state(turns, asked[:4]) == (True, False, "OthersTurn")


async def test_they_lend_to_nobody(turns: House) -> None:
    answer: httpx2.Response = await turns.client.post(f"{GROUP}/lease", json={"holder": "trainer", "ttlSeconds": 30})
    assert code(answer, 400) == "INVALID_REQUEST"
    assert "chat and code of group actor take turns" in answer.json()["message"]
    assert (await turns.client.get(GROUP)).json().get("lease") is None
