"""Events: what a server became is told once for each reason, and counted when it comes again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.conditions import Condition, ConditionStatus
from ebbtide_api.server_status import ServerStatus
from ebbtide_operator.kube.events import MESSAGE_LIMIT, Events, event_name, transitions
from ebbtide_operator.kube.kinds import EVENTS, ApiError

from .fake_api import FakeApi
from .given import server
from .test_driver import until
from .test_space import NS, Stage, play

NOW, LATER = "2026-11-01T10:00:00.000Z", "2026-11-01T10:05:00.000Z"


def said(kind: str, status: str, reason: str, message: str = "Why.") -> Condition:
    return Condition(
        type=kind, status=ConditionStatus(status), reason=reason, message=message, last_transition_time=NOW
    )


def status(*conditions: Condition) -> ServerStatus:
    return ServerStatus(conditions=conditions)


MOVING = status(said("Ready", "False", "Moving"), said("Reconciling", "True", "Moving"), said("Stalled", "False", "No"))
SERVING = status(said("Ready", "True", "Serving"), said("Reconciling", "False", "Settled"))
STALLED = status(said("Ready", "False", "DeviceNotFree"), said("Stalled", "True", "DeviceNotFree"))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, MOVING, []),
        (None, SERVING, ["Serving"]),
        (MOVING, SERVING, ["Serving"]),
        (SERVING, SERVING, []),
        (SERVING, MOVING, []),
        (SERVING, STALLED, ["DeviceNotFree"]),
        (STALLED, STALLED, []),
        (STALLED, status(said("Stalled", "True", "ProcessTrouble")), ["ProcessTrouble"]),
        (SERVING, status(said("Ready", "True", "Lent")), ["Lent"]),
        (SERVING, status(said("Ready", "True", "Serving", "In other words.")), []),
    ],
)
def test_only_news_is_told(before: ServerStatus | None, after: ServerStatus, told: list[str]) -> None:
    assert [condition.reason for condition in transitions(before, after)] == told


def tell(api: FakeApi, *told: tuple[Condition, str]) -> None:
    async def run() -> None:
        events = Events(api)
        for condition, when in told:
            await events.tell(server(), [condition], when)

    asyncio.run(run())


def events_in(api: FakeApi) -> list[Any]:
    return [one for (plural, _, _), one in api.objects.items() if plural == EVENTS.plural]


def test_an_event_names_its_object_and_its_weight() -> None:
    api = FakeApi()
    tell(api, (said("Stalled", "True", "DeviceNotFree", "x" * 3000), NOW), (said("Ready", "True", "Serving"), NOW))
    stalled, ready = events_in(api)
    assert (stalled["type"], ready["type"]) == ("Warning", "Normal")
    assert stalled["involvedObject"]["uid"] == server().metadata.uid
    assert stalled["metadata"]["namespace"] == stalled["involvedObject"]["namespace"] == NS
    assert len(stalled["message"]) == MESSAGE_LIMIT


def test_the_same_again_is_counted_in_the_same_event() -> None:
    api = FakeApi()
    serving = said("Ready", "True", "Serving")
    tell(api, (serving, NOW), (serving, LATER))
    (event,) = events_in(api)
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (2, NOW, LATER)


def test_a_server_of_the_same_name_has_events_of_its_own() -> None:
    serving = said("Ready", "True", "Serving")
    assert event_name(server(), serving) == event_name(server(), serving)
    assert event_name(server(), serving) != event_name(server(uid="another"), serving)
    assert len(event_name(server("n" * 52), serving)) < 253


def test_an_event_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApi()
    apply = api.apply

    def refuse(kind: Any, body: Any, *arguments: Any, **more: Any) -> Any:
        if kind == EVENTS:
            raise ApiError(403, "Forbidden", "no events for you")
        return apply(kind, body, *arguments, **more)

    monkeypatch.setattr(api, "apply", refuse)

    async def scene(stage: Stage) -> None:
        stage.put(server(engine={"image": "", "port": 8000}))
        await until(lambda: "no Event" in caplog.text)
        assert stage.status()["conditions"]

    play(tmp_path, scene, api)


def test_a_refused_server_says_so_in_one_event(tmp_path: Path) -> None:
    api = FakeApi()

    async def scene(stage: Stage) -> None:
        wrong = server(engine={"image": "", "port": 8000})
        for _ in range(3):
            stage.put(wrong)
            await until(lambda: events_in(api))
            stage.space.statuses.add("tiny")
            await until(lambda: stage.status().get("conditions"))

    play(tmp_path, scene, api)
    (event,) = events_in(api)
    assert (event["type"], event["count"]) == ("Warning", 1)
