"""A framework's HTTP sequence as data, and its run: each call, what it is answered, and what must be true by then.

`$path` and `$version` in a body stand for where the trainer wrote its weights, and for what it calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from ebbtide_api.state import Phase

from tests.shims.house import ALL, ASLEEP, WEIGHTS, ShimHouse

STOPPED = {Phase.PAUSED, Phase.COMMITTED}
AWAKE = {Phase.WEIGHTS_RESIDENT, Phase.UPDATING}


def serves(house: ShimHouse) -> None:
    house.all({Phase.RUNNING}, ALL, admits=True)


def stopped(house: ShimHouse) -> None:
    house.all(STOPPED, ALL, admits=False)


def asleep(house: ShimHouse) -> None:
    house.all({Phase.ASLEEP}, ASLEEP, admits=False)


def weights_awake(house: ShimHouse) -> None:
    house.all(AWAKE, WEIGHTS, admits=False)


def loaded(house: ShimHouse) -> None:
    weights_awake(house)
    versions = house.engine_versions()
    assert versions[0] == versions[1]
    assert versions[0][1] is not None, "no engine has loaded anything"
    assert versions[0][1] > versions[0][0]


def committed(house: ShimHouse) -> None:
    stopped(house)
    assert {pending for _, pending in house.engine_versions()} == {None}
    assert {house.phase(name) for name in ("chat-0", "chat-1")} == {Phase.COMMITTED}


Truth = Callable[[ShimHouse], None]


@dataclass(frozen=True)
class Call:
    """One request. `then` is what must be true when it is answered; without it nothing may have changed.

    `source` names the framework's function that sends it.
    """

    method: str
    path: str
    source: str
    then: Truth | None = None
    body: Mapping[str, Any] | None = None
    status: int = 200
    has: Mapping[str, Any] = field(default_factory=dict)
    """What the answer must hold: what the framework reads of it."""


def post(path: str, source: str, then: Truth | None = None, **more: Any) -> Call:
    return Call("POST", path, source, then, **more)


def get(path: str, source: str, then: Truth | None = None, **more: Any) -> Call:
    return Call("GET", path, source, then, **more)


def impossible(path: str, source: str, then: Truth, body: Mapping[str, Any] | None = None) -> Call:
    """A call that is refused by name, and changes nothing."""
    return Call("POST", path, source, then, body or {}, 501, {"code": "NOT_IMPLEMENTED", "retryable": False})


def run(house: ShimHouse, client: httpx2.Client, calls: list[Call], path: Path, version: str) -> list[dict[str, Any]]:
    """Make the calls one after the other, and check each at the moment of its answer."""
    answers = []
    for call in calls:
        filled = _filled(call.body, {"$path": str(path), "$version": version})
        answer = client.request(call.method, call.path, **({} if filled is None else {"json": filled}))
        assert answer.status_code == call.status, f"{call.source}: {call.method} {call.path}: {answer.text}"
        if call.then is not None:
            call.then(house)
        body = answer.json()
        expected = _filled(call.has, {"$path": str(path), "$version": version})
        assert {key: body.get(key) for key in expected} == expected, f"{call.source}: {body}"
        answers.append(body)
    return answers


def _filled(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value
