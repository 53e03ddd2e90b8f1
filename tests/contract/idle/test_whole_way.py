"""An idle server, whole: a real operator, real agents, the real gate; the engines are scripted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ebbtide_runtime.engine.gate import Gate, PageDoor

from tests.support.asgi import Answer, call, http
from tests.support.polling import eventually
from tests.support.streaming import StreamHouse, weights

SLEEP = {"idle": {"after": "1s", "deeperAfter": "8s"}, "holdFor": "30s", "settle": "10ms"}
MEMBERS = ("chat-0", "chat-1")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamHouse]:
    made = StreamHouse(tmp_path_factory.mktemp("house"), weights(1), sleep=SLEEP, engine={"port": 21200})
    made.start()
    yield made
    made.close()


@pytest.fixture
def gates(house: StreamHouse) -> Iterator[list[Gate]]:
    """The gates of both members, before an application that answers."""
    eventually(lambda: phases(house) != [], 60)
    doors = [PageDoor(str(house.layout.member_memory(member) / "page")) for member in MEMBERS]
    yield [Gate(_answer, door, b"a secret") for door in doors]
    for door in doors:
        door._gate.close()
        door._page.close()


async def _answer(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def members(house: StreamHouse) -> list[Any]:
    return list(house.server()["members"])


def phases(house: StreamHouse) -> list[str]:
    return [member["phase"] for member in members(house)]


def levels(house: StreamHouse) -> list[int | None]:
    return [member.get("level") for member in members(house)]


def cycles(house: StreamHouse) -> list[int]:
    return [member["cycle"] for member in members(house)]


def reason(house: StreamHouse) -> str:
    return str(house.server()["reason"])


def ask(gates: list[Gate], count: int) -> list[Answer]:
    async def main() -> list[Answer]:
        return list(await asyncio.gather(*(call(gate, http()) for gate in gates for _ in range(count))))

    return asyncio.run(main())


def test_it_sleeps_by_itself_then_deeper_and_a_held_request_is_served(house: StreamHouse, gates: list[Gate]) -> None:
    eventually(lambda: phases(house) == ["Asleep"] * 2 and reason(house) == "Idle", 60)
    assert levels(house) == [1, 1]
    assert house.server()["ready"]
    eventually(lambda: phases(house) == ["Asleep"] * 2 and levels(house) == [2, 2], 30)
    before = cycles(house)
    began = time.monotonic()
    answers = ask(gates[:1], 50)
    assert [answer.status for answer in answers] == [200] * 50
    assert time.monotonic() - began < 30
    eventually(lambda: "Running" in phases(house) or cycles(house) > before, 30)
    # It woke once for all of them: before its next sleep no cycle was counted.
    assert all(now - then <= 1 for now, then in zip(cycles(house), before, strict=True))


def test_a_lend_takes_it_and_requests_wait_for_the_trainer(house: StreamHouse, gates: list[Gate]) -> None:
    eventually(lambda: reason(house) == "Idle" and phases(house) == ["Asleep"] * 2, 60)
    with house.group as group, group.borrow():
        began = time.monotonic()
        answers = ask(gates, 5)
        assert [answer.status for answer in answers] == [503] * 10
        assert time.monotonic() - began < 10, "nobody is held for a trainer"
        assert phases(house) == ["Asleep"] * 2
    eventually(lambda: reason(house) == "Idle" and phases(house) == ["Asleep"] * 2, 60)


def test_requests_keep_it_awake(house: StreamHouse, gates: list[Gate]) -> None:
    assert [answer.status for answer in ask(gates, 1)] == [200, 200]
    before, due = cycles(house), time.monotonic() + 3
    while time.monotonic() < due:
        assert [answer.status for answer in ask(gates, 1)] == [200, 200]
    assert cycles(house) == before
    assert phases(house) == ["Running"] * 2


def test_a_killed_operator_is_missed_by_nobody_who_waits(house: StreamHouse, gates: list[Gate], tmp_path: Path) -> None:
    eventually(lambda: reason(house) == "Idle" and phases(house) == ["Asleep"] * 2, 60)
    house.kill()

    async def main() -> Answer:
        held = asyncio.create_task(call(gates[0], http()))
        await asyncio.to_thread(house.start)
        return await held

    assert asyncio.run(main()).status == 200
