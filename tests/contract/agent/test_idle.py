"""Idleness at one member: what its agent tells, what a request at a closed gate does, and what holds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ebbtide_api.state import Phase, StateVector
from ebbtide_api.verbs import Verb
from ebbtide_runtime.engine.gate import Gate, PageDoor
from ebbtide_runtime.native import Field

from tests.support.agents import SECRET_TEXT, Caller
from tests.support.asgi import Answer, call, http
from tests.support.fake_engine import until
from tests.support.rig import SLEEP, Member, Stream, back, sleep, to_asleep

Pair = tuple[Member, Caller]
DOZE = {"wakes": True, "hold": 20.0}


async def answer(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def gate(member: Member) -> Iterator[Gate]:
    """The real gate on the member's page, before an application that answers."""
    door = PageDoor(member.config.page_path)
    yield Gate(answer, door, SECRET_TEXT.encode())
    door._gate.close()
    door._page.close()


def requests(gate: Gate, count: int = 1) -> list[Answer]:
    async def main() -> list[Answer]:
        return list(await asyncio.gather(*(call(gate, http()) for _ in range(count))))

    return asyncio.run(main())


def wake(caller: Caller) -> None:
    caller.do(Verb.WAKE_WEIGHTS)
    back(caller)


def idle(caller: Caller) -> float:
    seconds = caller.state().idle_seconds
    assert seconds is not None
    return seconds


def test_a_member_is_idle_since_it_began_to_serve_or_its_last_request_left(running: Pair) -> None:
    member, caller = running
    until(lambda: idle(caller) > 0.02)
    stream = Stream(member, 100_000)
    until(lambda: idle(caller) == 0.0, what="somebody is inside")
    time.sleep(0.05)
    assert idle(caller) == 0.0
    member.engine.end_requests()
    stream.end()
    left = time.monotonic()
    until(lambda: 0.0 < idle(caller) <= time.monotonic() - left + 0.1)


def test_a_member_that_never_served_is_not_idle(member: Member) -> None:
    caller = member.start()
    assert caller.until(Phase.PENDING_DEVICE).idle_seconds is None


def test_idleness_goes_on_while_it_sleeps_and_ends_when_it_serves(running: Pair) -> None:
    _, caller = running
    until(lambda: idle(caller) > 0.05)
    to_asleep(caller)
    assert idle(caller) > 0.05
    before = idle(caller)
    until(lambda: idle(caller) > before)
    wake(caller)
    assert idle(caller) < before


def test_idleness_alone_is_no_news(running: Pair) -> None:
    _, caller = running
    version = caller.state().state_version
    until(lambda: idle(caller) > 0.05)
    assert caller.state().state_version == version


def test_a_request_at_a_sleeper_that_wakes_is_news_once(running: Pair, gate: Gate) -> None:
    _, caller = running
    sleep(caller, wakes=True)
    asleep = caller.state()
    assert (asleep.wakes, asleep.hold_seconds, asleep.requested) == (True, 0.0, False)
    (refused,) = requests(gate)
    assert (refused.status, refused.body["code"]) == (503, "ENGINE_ASLEEP")
    assert int(refused.headers["retry-after"]) >= 1
    told = caller.state(wait_version=asleep.state_version, wait=5)
    assert told.requested
    assert told.state_version > asleep.state_version
    requests(gate, 50)
    assert caller.state().state_version == told.state_version
    wake(caller)
    woken = caller.state()
    assert (woken.requested, woken.wakes) == (False, False)


def test_a_request_at_any_other_sleeper_is_refused_and_no_news(running: Pair, gate: Gate) -> None:
    _, caller = running
    to_asleep(caller)
    version = caller.state().state_version
    assert requests(gate)[0].status == 503
    state = caller.state()
    assert (state.requested, state.wakes, state.state_version) == (False, False, version)


def test_held_requests_are_served_when_the_member_is_awake(running: Pair, gate: Gate) -> None:
    member, caller = running
    sleep(caller, **DOZE)

    async def main() -> list[Answer]:
        held = [asyncio.create_task(call(gate, http())) for _ in range(30)]
        await asyncio.to_thread(until, lambda: caller.state().requested)
        assert not any(task.done() for task in held)
        await asyncio.to_thread(wake, caller)
        return list(await asyncio.gather(*held))

    assert [one.status for one in asyncio.run(main())] == [200] * 30
    assert member.page.inflight() == 0


def test_a_held_request_is_refused_when_its_time_is_over(running: Pair, gate: Gate) -> None:
    _, caller = running
    sleep(caller, wakes=True, hold=0.1)
    began = time.monotonic()
    assert requests(gate)[0].status == 503
    assert time.monotonic() - began >= 0.1


def test_who_falls_asleep_for_another_reason_meanwhile_lets_go(running: Pair, gate: Gate) -> None:
    """A lend says it again, without the waking: the same verb, to a member that sleeps."""
    _, caller = running
    sleep(caller, wakes=True, hold=600)

    async def main() -> Answer:
        held = asyncio.create_task(call(gate, http()))
        await asyncio.to_thread(until, lambda: caller.state().requested)
        again = await asyncio.to_thread(caller.do, Verb.SLEEP, SLEEP)
        assert again.noop
        return await held

    assert asyncio.run(main()).status == 503
    state = caller.state()
    assert (state.wakes, state.hold_seconds, state.phase) == (False, 0.0, Phase.ASLEEP)


def test_a_knock_that_was_late_does_not_end_the_next_sleep(running: Pair) -> None:
    member, caller = running
    member.page.set(Field.KNOCK, 1)
    assert not caller.state().requested, "the gate is open"
    sleep(caller, **DOZE)
    assert not caller.state().requested


def test_a_request_while_it_falls_asleep_is_heard(running: Pair, gate: Gate) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    operation = caller.post(Verb.SLEEP, {**SLEEP, "wakes": True, "drain": {"mode": "Wait", "timeout": 30}})
    until(lambda: caller.state().phase is Phase.DRAINING)
    assert requests(gate)[0].status == 503
    until(lambda: caller.state().requested)
    member.engine.end_requests()
    stream.end()
    caller.wait(operation.id)
    assert caller.until(Phase.ASLEEP).requested


def test_a_restarted_agent_knows_who_knocked(running: Pair, gate: Gate) -> None:
    member, caller = running
    sleep(caller, **DOZE)
    requested = asyncio.run(_knock(gate, caller))
    assert requested.requested
    member.kill()
    again = member.start()
    state = again.until(Phase.ASLEEP)
    assert (state.requested, state.wakes, state.hold_seconds) == (True, True, 20.0)
    assert state.idle_seconds is not None


async def _knock(gate: Gate, caller: Caller) -> StateVector:
    held = asyncio.create_task(call(gate, http()))
    await asyncio.to_thread(until, lambda: caller.state().requested)
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    return caller.state()


def test_a_drain_that_is_given_up_serves_on_and_holds_nobody(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    drain = {"mode": "Wait", "timeout": 0.05, "onDeadline": "Fail"}
    assert caller.fail(Verb.SLEEP, {**SLEEP, **DOZE, "drain": drain}).code == "DRAIN_DEADLINE"
    state = caller.until(Phase.RUNNING)
    assert (state.wakes, state.hold_seconds, state.admission) == (False, 0.0, True)
    member.engine.end_requests()
    stream.end()
