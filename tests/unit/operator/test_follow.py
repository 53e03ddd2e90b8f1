"""One followed agent, whoever runs it: what is believed of it, and calls that end, are refused, or stay unknown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Instance, Phase, StateVector
from ebbtide_api.verbs import Operation, OperationStatus, SleepRequest, Verb
from ebbtide_operator.drive import follow
from ebbtide_operator.drive.agents import Unreachable
from ebbtide_operator.drive.follow import FollowedAgent
from ebbtide_operator.plan import Call, MemberView

from tests.unit.kube.views import state

pytestmark = pytest.mark.anyio
CALL = Call("chat-0", Verb.SLEEP, SleepRequest(), "base", "key", 1, "", 5.0)


def state_of(version: int, uid: str = "u", leader: int = 0) -> StateVector:
    return state("chat-0", Phase.PENDING_DEVICE, state_version=version, instance=Instance(uid=uid), leader=leader)


@dataclass
class Client:
    """An agent's client that answers as it is told."""

    url: str = "http://agent"
    answer: Callable[[], Awaitable[StateVector]] | None = None
    begins: Callable[[], Awaitable[Operation]] | None = None
    closed: bool = False

    async def state(self, newer_than: int | None = None) -> StateVector:
        if newer_than is not None or self.answer is None:
            await asyncio.sleep(60)
        assert self.answer is not None
        return await self.answer()

    async def begin(self, call: Call) -> Operation:
        assert self.begins is not None
        return await self.begins()

    async def close(self) -> None:
        self.closed = True


@dataclass
class Scene:
    """A followed agent, and what was told of it."""

    client: Client = field(default_factory=Client)
    changes: int = 0
    news: list[tuple[int, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agent = FollowedAgent("chat-0", self._changed, self._believe, self._heard)

    def _changed(self) -> None:
        self.changes += 1

    def _heard(self, state: StateVector) -> None:
        assert self.view().state != state, "news come before the change"
        self.news.append((state.leader, self.agent.called))

    @staticmethod
    def _believe(state: StateVector) -> StateVector | None:
        return state.model_copy(update={"url": "ours"}) if state.instance.uid == "u" else None

    def view(self) -> MemberView:
        return self.agent.show(MemberView("chat-0", "chat", 0, trouble="kept"))

    async def up(self, **how: Any) -> None:
        """Follow the client, and be at version 1."""
        for name, value in how.items():
            setattr(self.client, name, value)
        client: Any = self.client
        self.agent.follow(client)
        self.agent.hear(state_of(1))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def answers(value: Any) -> Any:
    return value


async def fails(error: Exception) -> Any:
    raise error


def done() -> Awaitable[Operation]:
    return answers(
        Operation(
            id="o", verb=Verb.SLEEP, target="chat-0", status=OperationStatus.DONE, started_at="2026-01-01T00:00:00.000Z"
        )
    )


async def test_a_view_shows_what_is_believed_and_keeps_the_rest() -> None:
    scene = Scene()
    assert scene.view() == MemberView("chat-0", "chat", 0, trouble="kept")
    began = time.monotonic()
    scene.agent.hear(state_of(1))
    view = scene.view()
    assert view.state is not None
    assert (view.state.url, view.last, view.trouble) == ("ours", view.state, "kept")
    assert view.heard is not None
    assert view.heard >= began
    scene.agent.hear(None)
    assert (scene.view().state, scene.view().last) == (None, view.state)
    assert scene.changes == 2


async def test_old_answers_and_strangers_are_no_news() -> None:
    scene = Scene()
    scene.agent.hear(state_of(5, leader=1))
    scene.agent.hear(state_of(5, leader=1))
    scene.agent.hear(state_of(4, leader=1))
    assert (scene.changes, scene.news) == (1, [(1, False)])
    scene.agent.hear(state_of(9, uid="stranger"))
    assert scene.view().state is None
    assert scene.view().last is not None
    assert scene.view().last.state_version == 5  # type: ignore[union-attr]
    assert (scene.changes, len(scene.news)) == (2, 1)


async def test_who_gets_the_client_may_call_and_nobody_does_while_it_is_silent() -> None:
    scene = Scene()
    assert not scene.agent.followed
    await scene.up()
    scene.agent.hear(None)
    assert scene.agent.followed
    assert scene.agent.client() is None
    scene.agent.hear(state_of(2, leader=1))
    assert scene.agent.client() is scene.client  # type: ignore[comparison-overlap]
    scene.agent.hear(state_of(3, leader=2))
    assert scene.news[-2:] == [(1, False), (2, True)]
    await scene.agent.close()
    assert scene.client.closed
    assert not scene.agent.followed
    assert scene.agent.client() is None
    await scene.agent.close()


async def test_a_call_makes_it_busy_and_another_one_is_refused_meanwhile() -> None:
    scene, gate = Scene(), asyncio.Event()

    async def begins() -> Operation:
        await gate.wait()
        return await done()

    await scene.up(begins=begins, answer=lambda: answers(state_of(2)))
    calling = asyncio.create_task(scene.agent.call(CALL))
    await asyncio.sleep(0)
    assert scene.view().busy == "base"
    refused = await scene.agent.call(CALL)
    assert refused is not None
    assert refused.error is not None
    assert refused.error.code is ErrorCode.OPERATION_IN_PROGRESS
    gate.set()
    outcome = await calling
    assert scene.view().busy is None
    assert scene.view().outcomes == (outcome,)
    assert scene.view().state.state_version == 2  # type: ignore[union-attr]
    assert scene.agent.called
    scene.agent.forget()
    assert scene.view().outcomes == ()
    await scene.agent.close()


async def test_a_call_to_nobody_has_no_outcome_and_makes_nothing_known() -> None:
    scene = Scene()
    assert await scene.agent.call(CALL) is None
    assert not scene.agent.called


async def test_after_an_unknown_outcome_it_stays_busy_for_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "UNKNOWN_PAUSE", 0.05)
    scene = Scene()
    await scene.up(begins=lambda: fails(Unreachable("lost")), answer=lambda: answers(state_of(2)))
    began = time.monotonic()
    assert await scene.agent.call(CALL) is None
    assert time.monotonic() - began >= 0.05
    assert (scene.view().busy, scene.view().outcomes) == (None, ())
    await scene.agent.close()


async def test_a_refusal_is_an_outcome_and_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "OUTCOMES_KEPT", 2)
    scene = Scene()
    stale = EbbtideError(ErrorCode.STALE_EPOCH, "old")
    await scene.up(begins=lambda: fails(stale), answer=lambda: answers(state_of(2)))
    made = [await scene.agent.call(CALL) for _ in range(3)]
    assert scene.view().outcomes == tuple(made[1:])
    await scene.agent.close()


@pytest.mark.parametrize("error", [Unreachable("gone"), EbbtideError(ErrorCode.UNAUTHENTICATED, "who?")])
async def test_who_does_not_answer_is_not_there(error: Exception) -> None:
    scene = Scene()
    await scene.agent.refresh()  # nobody to ask
    await scene.up(answer=lambda: fails(error))
    await scene.agent.refresh()
    assert scene.view().state is None
    await scene.agent.refresh()  # it is not asked again: its watch tells
    await scene.agent.close()


async def test_who_takes_its_time_is_believed_as_it_was() -> None:
    scene = Scene()
    await scene.up()
    await scene.agent.refresh(0.01)
    assert scene.view().state is not None
    await scene.agent.close()


async def test_a_start_is_told_to_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr("ebbtide_operator.drive.agents.AgentWatch.again", lambda _watch: told.append(True))
    scene = Scene()
    scene.agent.again()
    assert told == [], "nobody watches"
    await scene.up()
    scene.agent.again()
    assert told == [True]
    await scene.agent.close()
