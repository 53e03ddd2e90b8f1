"""What holds for every route: the token, the limits, errors that are complete, and no secrets anywhere."""

from __future__ import annotations

import asyncio
import logging

import httpx2
import pytest
from ebbtide_api.errors import RULES, ErrorBody
from ebbtide_operator.gateway.app import build
from fastapi import FastAPI

from .conftest import GROUP, TOKEN, House, code

pytestmark = pytest.mark.anyio
ROUTES = [
    ("GET", "/v1/groups"),
    ("GET", "/v1/groups/actor"),
    ("POST", "/v1/groups/actor/lease"),
    ("GET", "/v1/groups/actor/lease/x"),
    ("PUT", "/v1/groups/actor/lease/x"),
    ("DELETE", "/v1/groups/actor/lease/x"),
    ("POST", "/v1/groups/actor:lend"),
    ("POST", "/v1/groups/actor:reclaim"),
    ("GET", "/v1/servers"),
    ("GET", "/v1/servers/chat/state"),
    ("GET", "/v1/servers/chat/why"),
    ("GET", "/v1/groups/actor/timeline"),
    ("POST", "/v1/servers/chat:sleep"),
    ("POST", "/v1/apply"),
    ("POST", "/v1/shutdown"),
    ("GET", "/v1/operations/x"),
    ("GET", "/openapi.json"),
    ("GET", "/nowhere"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"{TOKEN}"])
async def test_nothing_is_told_without_the_token(house: House, method: str, path: str, token: str) -> None:
    answer = await house.client.request(method, path, headers={"Authorization": token})
    assert code(answer, 401) == "UNAUTHENTICATED"
    assert house.down == []


async def test_every_route_is_in_that_list(house: House) -> None:
    app: FastAPI = house.client._transport.app._app  # type: ignore[attr-defined]
    paths = app.openapi()["paths"]
    listed = {path.split("/")[2].split(":")[0] for _, path in ROUTES if path.startswith("/v1/")}
    assert {path.split("/")[2].split(":")[0] for path in paths if path.startswith("/v1/")} == listed


async def test_health_and_metrics_are_open(house: House) -> None:
    bare = {"Authorization": ""}
    health = await house.client.get("/health", headers=bare)
    assert (health.status_code, health.json()) == (200, {"status": "ok", "servers": 1})
    await house.lent(holder="somebody")
    text = (await house.client.get("/metrics", headers=bare)).text
    assert 'ebbtide_group_epoch{group="actor"} 2.0' in text
    assert 'ebbtide_group_lent{group="actor"} 1.0' in text
    assert 'ebbtide_member_phase{member="chat-0",phase="Asleep",server="chat"} 1.0' in text
    assert "somebody" not in text
    await house.operator.stop(keep=False)
    assert (await house.client.get("/health")).status_code == 503


async def test_a_large_body_is_refused_however_it_is_sent(house: House) -> None:
    large = b'{"holder": "' + b"x" * 5000 + b'"}'
    assert code(await house.client.post(f"{GROUP}/lease", content=large), 400) == "INVALID_REQUEST"

    async def pieces():
        for _ in range(10):
            yield large[:1000]

    streamed = await house.client.post(f"{GROUP}/lease", content=pieces())
    assert code(streamed, 400) == "INVALID_REQUEST"
    assert house.record.lease is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff", b"null"])
async def test_a_body_that_is_no_object_is_refused(house: House, body: bytes) -> None:
    answer = await house.client.post(f"{GROUP}/lease", content=body, headers={"Content-Type": "application/json"})
    assert code(answer, 400) == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "headers",
    [{"Idempotency-Key": "a b"}, {"Idempotency-Key": "x" * 129}, {"Ebbtide-Epoch": "-1"}, {"Ebbtide-Deadline": "soon"}],
)
async def test_malformed_headers_are_named(house: House, headers: dict[str, str]) -> None:
    answer = await house.client.post(f"{GROUP}:lend", headers=headers)
    assert code(answer, 400) == "INVALID_REQUEST"
    assert answer.json()["details"]["field"] in headers


async def test_unknown_paths_methods_and_waits(house: House) -> None:
    assert code(await house.client.get("/nowhere"), 404) == "NOT_FOUND"
    assert code(await house.client.delete("/v1/groups"), 404) == "NOT_FOUND"
    assert code(await house.client.get("/v1/operations/unknown"), 404) == "NOT_FOUND"
    assert code(await house.client.get("/v1/operations/unknown?wait=ages"), 400) == "INVALID_REQUEST"


async def test_a_fault_of_ours_is_internal_and_tells_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_group: str) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(house.driver, "refresh", broken)
    transport = httpx2.ASGITransport(house.client._transport.app, raise_app_exceptions=False)  # type: ignore[attr-defined]
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.get("/v1/groups", headers={"Authorization": f"Bearer {TOKEN}"})
    assert code(answer, 500) == "INTERNAL"
    assert "secret detail" not in answer.text


async def test_no_token_is_ever_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    lease = await house.lent()
    await house.ended(await house.ask("reclaim", lease))
    await house.client.get("/v1/groups", headers={"Authorization": "Bearer wrong"})
    assert TOKEN not in caplog.text


async def test_a_record_that_cannot_be_written_changes_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_record: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(house.operator.records), "save", lambda _self, record: full(record))
        transport = httpx2.ASGITransport(house.client._transport.app, raise_app_exceptions=False)  # type: ignore[attr-defined]
        async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answer = await client.post(f"{GROUP}/lease", json={"holder": "a"}, headers=headers)
        assert code(answer, 500) == "INTERNAL"
        assert house.record.lease is None
    assert (await house.acquire())["stage"] == "Granted"


async def test_where_records_are_kept_elsewhere_a_failed_write_is_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AwayError(OSError):
        """What an API server that does not answer raises."""

    def away(_self: object, _record: object) -> None:
        raise AwayError("not now")

    app = build(house.operator, TOKEN, passing=(AwayError,))
    transport = httpx2.ASGITransport(app)
    headers = {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": "k"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
        with monkeypatch.context() as patch:
            patch.setattr(type(house.operator.records), "save", away)
            answer = await client.post(f"{GROUP}/lease", json={"holder": "a"})
            assert code(answer, 503) == "UNREACHABLE"
            assert house.record.lease is None
        answer = await client.post(f"{GROUP}/lease", json={"holder": "a"})
    assert answer.json()["stage"] == "Granted"


async def test_long_polls_end_when_the_operator_stops(house: House) -> None:
    lease = await house.acquire("a")
    waiting = await house.acquire("b")
    poll = asyncio.create_task(house.client.get(f"{GROUP}/lease/{waiting['id']}", params={"wait": "20s"}))
    await asyncio.sleep(0.05)
    await house.operator.operations.begin("op", "lend", "actor", "digest")
    working = asyncio.create_task(house.client.get("/v1/operations/op", params={"wait": "20s"}))
    await asyncio.sleep(0.05)
    house.operator.close()
    assert (await asyncio.wait_for(working, 2)).json()["status"] == "Running"
    answer = await asyncio.wait_for(poll, 2)
    assert answer.json()["stage"] == "Queued"
    assert (await house.client.get(f"{GROUP}/lease/{lease['id']}")).status_code == 200


def test_every_code_has_a_status_that_errors_use() -> None:
    for rule_code, rule in RULES.items():
        assert 400 <= rule.status < 600
        assert ErrorBody(code=rule_code, message="x").code is rule_code
