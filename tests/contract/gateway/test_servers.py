"""Servers over HTTP: states, event streams, steps by hand, applying, ending."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_operator.plan import TrainerView

from .conftest import GROUP, TOKEN, House, by, code

pytestmark = pytest.mark.anyio
STATE = "/v1/servers/chat/state"


async def step(house: House, verb: str, body: Any = None, **headers: str) -> httpx2.Response:
    return await house.client.post(f"/v1/servers/chat:{verb}", json=body or {}, headers=headers)


async def test_the_state_of_a_server(house: House) -> None:
    state = (await house.client.get(STATE)).json()
    assert (state["name"], state["group"], state["model"], state["replicas"]) == ("chat", "actor", "chat", 2)
    assert (state["ready"], state["serving"], state["reason"]) == (True, True, "Serving")
    assert [member["phase"] for member in state["members"]] == ["Running", "Running"]
    assert {member["owner"] for member in state["members"]} == {"engine"}
    assert (await house.client.get("/v1/servers")).json() == [state]
    await house.lent()
    await house.until(lambda: house.operator.groups["actor"].conditions["chat"][0].reason == "Lent")
    state = (await house.client.get(STATE)).json()
    assert (state["ready"], state["serving"], state["message"]) == (
        True,
        False,
        "Asleep: the memory is lent to trainer.",
    )
    assert {member["owner"] for member in state["members"]} == {"trainer"}


async def test_unknown_servers_and_verbs_are_named(house: House) -> None:
    assert code(await house.client.get("/v1/servers/other/state"), 404) == "NOT_FOUND"
    assert code(await house.client.post("/v1/servers/other:sleep"), 404) == "NOT_FOUND"
    unknown = await step(house, "fly")
    assert code(unknown, 404) == "NOT_FOUND"
    assert "wake-kv" in unknown.json()["details"]["verbs"]
    assert code(await step(house, "grant", {"boot": 1}), 404) == "NOT_FOUND"


async def events(house: House, count: int, told: list[dict[str, Any]]) -> None:
    """Read an event stream as a client would: over a socket, since the test transport hands over whole bodies."""
    import socket

    import uvicorn
    from ebbtide_operator.gateway.app import build

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(build(house.operator, TOKEN), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    serving = asyncio.create_task(server._serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}{STATE}"
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=10) as client,
        client.stream("GET", url, params={"watch": "true"}) as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                told.append(json.loads(line.removeprefix("data: ")))
            if len(told) == count:
                break
    server.should_exit = True
    await serving


async def test_an_event_stream_tells_every_change(house: House) -> None:
    told: list[dict[str, Any]] = []
    house.driver.delays = {"sleep": 0.1}
    reading = asyncio.create_task(events(house, 3, told))
    await house.until(lambda: len(told) == 1)
    await house.lent()
    await asyncio.wait_for(reading, 10)
    phases = [state["members"][0]["phase"] for state in told]
    assert phases[0] == "Running"
    assert {"Draining", "Asleep"} & set(phases)


async def test_steps_by_hand_are_left_alone_until_resume(house: House) -> None:
    done = await house.ended(await step(house, "sleep", {"level": 1}))
    assert [part["operation"]["result"]["level"] for part in done["result"]["members"]] == [1, 1]
    await asyncio.sleep(0.1)
    assert house._all("Asleep")
    assert house.record.owner == "engine"
    for verb in ("wake-weights", "wake-kv", "resume"):
        assert (await house.ended(await step(house, verb)))["status"] == "Done"
    assert house._all("Running")
    assert house.record.manual == frozenset()


async def test_reconcile_hands_a_server_back(house: House) -> None:
    await house.ended(await step(house, "sleep"))
    assert house.record.manual == {"chat"}
    await house.ended(await step(house, "reconcile"))
    await house.serving()


async def test_a_step_is_reported_member_by_member(house: House) -> None:
    house.driver.fakes["chat-1"].script.fails = {"sleep": [ErrorCode.DRAIN_DEADLINE]}
    done = await house.ended(await step(house, "sleep"))
    assert done["status"] == "Failed"
    assert done["error"]["code"] == "DRAIN_DEADLINE"
    assert done["error"]["details"]["member"] == "chat-1"
    first, second = done["result"]["members"]
    assert first["operation"]["status"] == "Done"
    assert second["error"]["code"] == "DRAIN_DEADLINE"


async def test_a_step_needs_the_holders_epoch_while_a_lease_is_held(house: House) -> None:
    lease = await house.acquire()
    assert code(await step(house, "sleep"), 403) == "NOT_LEASE_HOLDER"
    assert code(await step(house, "sleep", **{"Ebbtide-Epoch": "1"}), 412) == "STALE_EPOCH"
    assert (await house.ended(await step(house, "sleep", **by(lease))))["status"] == "Done"
    await house.until(lambda: house.record.owner == "trainer")
    await house.client.delete(f"{GROUP}/lease/{lease['id']}", headers=by(lease))
    await house.serving()


async def test_no_step_while_the_group_is_moved(house: House) -> None:
    house.driver.delays = {"sleep": 0.2}
    lease = await house.acquire()
    lending = await house.ask("lend", lease)
    assert code(await step(house, "resume", **by(lease)), 409) == "OPERATION_IN_PROGRESS"
    await house.ended(lending)


async def test_a_wake_by_hand_needs_free_memory(house: House) -> None:
    house.driver.trainers[77] = TrainerView(77, alive=True, used_mib=700)
    lease = await house.lent(pid=77)
    refused = await step(house, "wake-weights", **by(lease))
    assert code(refused, 423) == "DEVICE_NOT_FREE"
    assert refused.json()["retryable"] is True
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["details"]["device"] == "cpu0"
    assert house._all("Asleep")


async def test_a_step_needs_every_member(house: House) -> None:
    house.driver.unreachable = {"chat-1"}
    refused = await step(house, "sleep")
    assert code(refused, 503) == "UNREACHABLE"
    assert "chat-1" in refused.json()["message"]


async def test_bodies_of_steps_are_checked(house: House) -> None:
    wrong = await step(house, "sleep", {"level": 9})
    assert code(wrong, 400) == "INVALID_REQUEST"
    assert wrong.json()["details"]["field"] == "level"
    assert code(await step(house, "wake-kv", {"surprise": 1}), 400) == "INVALID_REQUEST"
    assert code(await step(house, "begin-update", {"version": 1}), 400) == "INVALID_REQUEST"


async def test_a_step_that_ran_in_a_crash_has_an_unknown_outcome(house: House) -> None:
    house.driver.delays = {"sleep": 30}
    answer = await step(house, "sleep")
    await house.crash()
    done = await house.ended(answer)
    assert done["error"]["code"] == "UNREACHABLE"
    assert "unknown" in done["error"]["message"]


# applying


async def test_a_server_is_applied_to_a_running_operator(closed: House) -> None:
    house, roomy = closed, {"group": "actor", "devices": {"cpu": {"memory": "2000Mi"}}}
    await house.open([house.server(colocation=roomy)])
    other = house.document("other", engine={"port": 9000}, replicas=1, colocation=roomy)
    answer = await house.client.post("/v1/apply", json=[other])
    assert answer.status_code == 200, answer.text
    assert answer.json()[0]["name"] == "other"
    assert house.kept == ["other"]
    await house.until(lambda: "other-0" in house.driver.fakes and house._all("Running"))
    assert (await house.client.get(GROUP)).json()["servers"] == ["chat", "other"]


async def test_more_and_fewer_replicas(house: House) -> None:
    await house.client.post("/v1/apply", json=[house.document(replicas=1)])
    await house.until(lambda: set(house.driver.fakes) == {"chat-0"})
    await house.client.post("/v1/apply", json=[house.document(replicas=2)])
    await house.until(lambda: len(house.driver.fakes) == 2 and house._all("Running"))


async def test_power_asleep_puts_a_server_to_sleep_and_it_is_ready(house: House) -> None:
    await house.client.post("/v1/apply", json=[house.document(power="Asleep")])
    await house.until(lambda: house._all("Asleep"))
    await house.until(lambda: house.operator.groups["actor"].conditions["chat"][0].reason == "Asleep")
    state = (await house.client.get(STATE)).json()
    assert (state["ready"], state["serving"]) == (True, False)
    await house.client.post("/v1/apply", json=[house.document()])
    await house.serving()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": "2"}, "replicas"),
        ({"surprise": 1}, "surprise"),
        ({"source": "/nowhere"}, "no config.json"),
        ({"colocation": {"group": "elsewhere"}}, "colocation.group cannot be changed"),
        ({"colocation": {"group": "actor", "devices": {"cpu": {"memory": "a lot"}}}}, "memory"),
    ],
)
async def test_a_wrong_server_is_refused_and_nothing_changes(house: House, change: dict[str, Any], text: str) -> None:
    answer = await house.client.post("/v1/apply", json=[house.document("fine", replicas=1), house.document(**change)])
    assert answer.status_code == 400, answer.text
    assert text in answer.json()["message"]
    assert set(house.operator.servers) == {"chat"}
    assert house.kept == []


async def test_what_is_not_honoured_is_refused_by_name(house: House) -> None:
    answer = await house.client.post("/v1/apply", json=[house.document(weights={"handoff": "Disk"})])
    assert code(answer, 422) == "NOT_YET_SUPPORTED"
    assert answer.json()["details"]["field"] == "spec.weights.handoff"


async def test_two_servers_cannot_share_a_port(house: House) -> None:
    answer = await house.client.post("/v1/apply", json=[house.document("other", engine={"port": 8001})])
    assert code(answer, 400) == "INVALID_REQUEST"
    assert "port 8001 is chat's" in answer.json()["message"]


async def test_a_lent_group_does_not_change(house: House) -> None:
    lease = await house.lent()
    changed = house.document(replicas=1)
    assert code(await house.client.post("/v1/apply", json=[changed]), 409) == "MEMBERSHIP_CHANGED"
    assert (await house.client.post("/v1/apply", json=[house.document()])).status_code == 200
    await house.ended(await house.ask("reclaim", lease))
    assert (await house.client.post("/v1/apply", json=[changed])).status_code == 200


async def test_shutdown_is_passed_on(house: House) -> None:
    assert (await house.client.post("/v1/shutdown")).status_code == 202
    assert house.down == [True]
