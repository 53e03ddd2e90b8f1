"""Talking to agents: watched without polling, called once, and never believed when they do not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase, StateVector
from ebbtide_api.verbs import Nothing, OperationStatus, SleepRequest, Verb
from ebbtide_operator.drive.agents import AgentClient, AgentWatch, Unreachable, carry_out
from ebbtide_operator.plan import Call

from tests.support.fake_agent import FakeAgent
from tests.support.fake_member import FakeMember
from tests.unit.plan.sim import put

pytestmark = pytest.mark.anyio


@dataclass
class Lossy(httpx2.AsyncBaseTransport):
    """Hands requests to an agent in this process, and loses some: `before` it hears them, or `after` it acted."""

    agent: FakeAgent
    before: int = 0
    after: int = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.before > 0:
            self.before -= 1
            raise httpx2.ConnectError("refused", request=request)
        answer = await httpx2.ASGITransport(self.agent).handle_async_request(request)
        if self.after > 0:
            self.after -= 1
            await answer.aclose()
            raise httpx2.ReadError("cut", request=request)
        return answer


@dataclass
class Pair:
    member: FakeMember
    agent: FakeAgent
    transport: Lossy
    client: AgentClient


@pytest.fixture
async def pair(anyio_backend: str) -> AsyncIterator[Pair]:
    member = put(FakeMember(), Phase.RUNNING)
    agent = FakeAgent(member, token="secret")
    transport = Lossy(agent)
    client = AgentClient("http://agent", "secret", transport)
    yield Pair(member, agent, transport, client)
    await client.close()


def call(verb: Verb = Verb.SLEEP, key: str = "k", **fields: Any) -> Call:
    made = Call("chat-0", verb, SleepRequest() if verb is Verb.SLEEP else Nothing(), "base", key, 1, "", 5.0)
    return replace(made, **fields)


async def test_a_call_is_followed_to_its_end(pair: Pair) -> None:
    pair.agent.delays = {"sleep": 0.05}
    outcome = await carry_out(pair.client, call())
    assert outcome is not None
    assert outcome.operation is not None
    assert outcome.operation.status is OperationStatus.DONE
    assert outcome.base == "base"
    assert pair.member.phase is Phase.ASLEEP
    assert (await pair.client.state()).phase is Phase.ASLEEP


async def test_a_refusal_is_an_outcome(pair: Pair) -> None:
    pair.member.epoch = 5
    stale = await carry_out(pair.client, call(key="stale"))
    illegal = await carry_out(pair.client, call(Verb.COMMIT_UPDATE, epoch=5))
    codes = [outcome.error.code for outcome in (stale, illegal) if outcome and outcome.error]
    assert codes == [ErrorCode.STALE_EPOCH, ErrorCode.ILLEGAL_TRANSITION]


async def test_an_instance_that_is_gone_is_refused(pair: Pair) -> None:
    outcome = await carry_out(pair.client, call(instance="uid:1:1"))
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.INSTANCE_REPLACED
    assert pair.member.phase is Phase.RUNNING


async def test_a_call_that_was_never_heard_has_no_outcome_and_may_be_repeated(pair: Pair) -> None:
    pair.transport.before = 1
    assert await carry_out(pair.client, call()) is None
    assert pair.member.phase is Phase.RUNNING
    assert await carry_out(pair.client, call()) is not None
    assert pair.member.calls == ["sleep"]


async def test_a_call_whose_answer_was_lost_runs_once(pair: Pair) -> None:
    pair.transport.after = 1
    assert await carry_out(pair.client, call()) is None
    outcome = await carry_out(pair.client, call())
    assert outcome is not None
    assert outcome.operation is not None
    assert pair.member.calls == ["sleep"]


async def test_an_agent_that_forgot_the_operation_leaves_it_unknown(pair: Pair) -> None:
    pair.agent.delays = {"sleep": 0.2}
    running = asyncio.create_task(carry_out(pair.client, call()))
    await asyncio.sleep(0.05)
    pair.member.operations.clear()
    pair.agent.ring()
    assert await running is None


async def test_a_call_that_does_not_end_is_unknown_by_name(pair: Pair) -> None:
    pair.agent.delays = {"sleep": 30}
    outcome = await carry_out(pair.client, call(deadline=0.1))
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.PHASE_DEADLINE


async def test_an_answer_that_is_none_is_no_answer(pair: Pair) -> None:
    async def nonsense(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    client = AgentClient("http://agent", "secret", httpx2.ASGITransport(nonsense))
    with pytest.raises(Unreachable):
        await client.state()
    assert await carry_out(client, call()) is None
    await client.close()


async def test_a_wrong_token_is_told(pair: Pair) -> None:
    client = AgentClient("http://agent", "wrong", pair.transport)
    outcome = await carry_out(client, call())
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.UNAUTHENTICATED
    await client.close()


async def heard_of(pair: Pair, states: list[StateVector | None]) -> AgentWatch:
    watch = AgentWatch(pair.client, states.append)
    watch.start()
    await wait(lambda: bool(states))
    return watch


async def wait(holds: Any, seconds: float = 5.0) -> None:
    due = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < due
        await asyncio.sleep(0.002)


async def test_a_watch_hears_of_changes_at_once_and_asks_once_for_each(pair: Pair) -> None:
    states: list[StateVector | None] = []
    watch = await heard_of(pair, states)
    asked = len(pair.agent.requests)
    await asyncio.sleep(0.1)
    assert len(pair.agent.requests) <= asked + 1
    began = time.monotonic()
    pair.member._move(Phase.PAUSED)
    pair.agent.ring()
    await wait(lambda: states[-1] is not None and states[-1].phase is Phase.PAUSED)
    assert time.monotonic() - began < 1
    await watch.stop()


async def test_a_watch_survives_silence(pair: Pair) -> None:
    states: list[StateVector | None] = []
    pair.transport.before = 3
    watch = await heard_of(pair, states)
    assert states[0] is None
    await wait(lambda: states[-1] is not None)
    await watch.stop()


async def test_a_watch_asks_at_once_when_the_agent_was_started(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[StateVector | None] = []
    pair.transport.before = 30
    watch = await heard_of(pair, states)
    await wait(lambda: len(states) >= 8)
    pair.transport.before = 0
    watch.again()
    await wait(lambda: states[-1] is not None)
    await watch.stop()
