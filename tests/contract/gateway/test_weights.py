"""Streamed weights at the gateway: who may send, and that a member that cannot be reached is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.upload import CHUNK, CRC32C, PublishRequest, Upload, UploadRequest
from ebbtide_operator.drive.agents import Piece, Unreachable
from ebbtide_operator.gateway.weights import limit_of
from ebbtide_operator.uploads import named, together
from ebbtide_runtime.native import crc32c

from tests.contract.gateway.conftest import GROUP, House, by, code

pytestmark = pytest.mark.anyio
BEGIN = {"files": [{"name": "a", "length": 10}]}


class Agent:
    """Answers as an agent would; `fails` with this."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, Any]] = []
        self.fails: Exception | None = None

    def _called(self, what: str, epoch: int, detail: Any) -> Upload:
        self.calls.append((what, epoch, detail))
        if self.fails:
            raise self.fails
        return Upload(version=2, received={"a": 4})

    async def open_upload(self, version: int, asked: UploadRequest, epoch: int) -> Upload:
        return self._called("open", epoch, asked.keep)

    async def send_piece(self, version: int, piece: Piece, epoch: int) -> Upload:
        return self._called("piece", epoch, piece)

    async def publish_upload(self, version: int, asked: PublishRequest, epoch: int) -> Upload:
        return self._called("publish", epoch, asked)

    async def drop_upload(self, version: int, epoch: int | None = None, *, through: bool = False) -> None:
        self._called("drop", epoch or 0, through)


@pytest.fixture
async def agents(closed: House) -> dict[str, Agent]:
    await closed.open([closed.server(weights={"handoff": "Stream"})])
    await closed.serving()
    made = {name: Agent() for name in ("chat-0", "chat-1")}
    closed.driver.reached = made  # type: ignore[assignment]
    return made


async def ask(house: House, method: str, path: str, lease: dict[str, Any] | None, **how: Any) -> httpx2.Response:
    headers = {**(by(lease) if lease else {}), **how.pop("headers", {})}
    return await house.client.request(method, f"{GROUP}/weights/{path}", headers=headers, **how)


async def put(house: House, lease: dict[str, Any] | None, data: bytes, path: str = "2/a?offset=0") -> httpx2.Response:
    return await ask(house, "PUT", path, lease, content=data, headers={CRC32C: str(crc32c(data))})


async def test_every_member_gets_every_call(closed: House, agents: dict[str, Agent]) -> None:
    lease = await closed.lent()
    assert lease["streams"]
    assert (await ask(closed, "POST", "2", lease, json=BEGIN)).json()["received"] == {"a": 4}
    assert (await put(closed, lease, b"1234")).status_code == 200
    body = {"length": 1, "crc32c": 1}
    assert (await ask(closed, "POST", "2/publish", lease, json=body)).status_code == 200
    assert (await ask(closed, "DELETE", "2", lease)).status_code == 200
    for agent in agents.values():
        assert [call[0] for call in agent.calls] == ["open", "piece", "publish", "drop"]
        assert {call[1] for call in agent.calls} == {lease["epoch"]}
        assert agent.calls[1][2] == Piece("a", 0, b"1234", crc32c(b"1234"))


async def test_the_served_version_is_told_to_be_kept(closed: House, agents: dict[str, Agent]) -> None:
    lease = await closed.lent()
    group = closed.operator.groups["actor"]
    serve = group.record.serve.model_copy(update={"version": 1})
    group.record = group.record.model_copy(update={"serve": serve})
    await ask(closed, "POST", "2", lease, json={**BEGIN, "keep": 77})
    assert agents["chat-0"].calls[0] == ("open", lease["epoch"], 1)
    assert code(await ask(closed, "POST", "1", lease, json=BEGIN), 409) == "VERSION_REGRESSION"
    assert code(await ask(closed, "DELETE", "1", lease), 409) == "VERSION_REGRESSION"


async def test_a_member_that_cannot_be_reached_is_named_and_nobody_gets_a_byte(
    closed: House, agents: dict[str, Agent]
) -> None:
    lease = await closed.lent()
    del closed.driver.reached["chat-1"]
    answer = await ask(closed, "POST", "2", lease, json=BEGIN)
    assert code(answer, 503) == "UNREACHABLE"
    assert (answer.json()["details"]["members"], "chat-1" in answer.json()["message"]) == (["chat-1"], True)
    assert agents["chat-0"].calls == []


async def test_a_member_that_falls_silent_is_named_and_the_call_may_be_repeated(
    closed: House, agents: dict[str, Agent]
) -> None:
    lease = await closed.lent()
    agents["chat-1"].fails = Unreachable("gone")
    answer = await put(closed, lease, b"1234")
    assert (code(answer, 503), answer.json()["details"]["member"]) == ("UNREACHABLE", "chat-1")
    agents["chat-1"].fails = None
    assert (await put(closed, lease, b"1234")).status_code == 200


async def test_when_one_has_no_room_the_others_forget_it_too(closed: House, agents: dict[str, Agent]) -> None:
    lease = await closed.lent()
    agents["chat-1"].fails = EbbtideError(ErrorCode.HOST_MEMORY_INSUFFICIENT, "no room", needMiB=10, availableMiB=1)
    answer = await ask(closed, "POST", "2", lease, json=BEGIN)
    details = answer.json()["details"]
    assert code(answer, 507) == "HOST_MEMORY_INSUFFICIENT"
    assert (details["member"], details["needMiB"], details["availableMiB"]) == ("chat-1", 10, 1)
    assert [call[0] for call in agents["chat-0"].calls] == ["open", "drop"]


@pytest.mark.parametrize("how", ["begin", "piece", "publish", "drop"])
async def test_only_the_holder_of_lent_memory_sends(closed: House, agents: dict[str, Agent], how: str) -> None:
    async def asked(lease: dict[str, Any] | None) -> httpx2.Response:
        match how:
            case "begin":
                return await ask(closed, "POST", "2", lease, json=BEGIN)
            case "piece":
                return await put(closed, lease, b"1234")
            case "publish":
                return await ask(closed, "POST", "2/publish", lease, json={"length": 1, "crc32c": 1})
        return await ask(closed, "DELETE", "2", lease)

    assert code(await asked(None), 403) == "NOT_LEASE_HOLDER"
    lease = await closed.lent()
    assert code(await asked({**lease, "epoch": lease["epoch"] - 1}), 412) == "STALE_EPOCH"
    assert (await asked(lease)).status_code == 200
    closed.driver.delays = {"wake-weights": 1.0}
    await ask_back(closed, lease)
    assert code(await asked(lease), 409) == "ILLEGAL_TRANSITION"


async def ask_back(house: House, lease: dict[str, Any]) -> None:
    answer = await house.ask("reclaim", lease)
    assert answer.status_code == 202, answer.text
    assert house.record.lease.stage == "Returning"


async def test_a_group_that_shares_memory_takes_no_stream(house: House) -> None:
    lease = await house.lent()
    assert not lease["streams"]
    answer = await ask(house, "POST", "2", lease, json=BEGIN)
    assert (code(answer, 422), "Stream" in answer.json()["nextAction"]) == ("TRANSPORT_IMPOSSIBLE", True)


@pytest.mark.parametrize(
    ("path", "headers", "field"),
    [
        ("2/a?offset=0", {}, CRC32C),
        ("2/a?offset=0", {CRC32C: "4294967296"}, CRC32C),
        ("2/a?offset=0", {CRC32C: "-1"}, CRC32C),
        ("2/a?offset=-1", {CRC32C: "1"}, "offset"),
        ("2/a", {CRC32C: "1"}, "offset"),
        ("2/.a?offset=0", {CRC32C: "1"}, "file"),
        ("0/a?offset=0", {CRC32C: "1"}, "version"),
        ("x/a?offset=0", {CRC32C: "1"}, "version"),
    ],
)
async def test_what_is_malformed_is_named(
    closed: House, agents: dict[str, Agent], path: str, headers: dict[str, str], field: str
) -> None:
    lease = await closed.lent()
    answer = await ask(closed, "PUT", path, lease, content=b"x", headers=headers)
    assert (code(answer, 400), answer.json()["details"]["field"]) == ("INVALID_REQUEST", field)
    assert agents["chat-0"].calls == []


async def test_a_piece_may_be_larger_than_any_other_request_and_has_its_own_limit(
    closed: House, agents: dict[str, Agent]
) -> None:
    lease = await closed.lent()
    assert (await put(closed, lease, bytes(closed.settings.body_limit + 1))).status_code == 200
    assert code(await put(closed, lease, bytes(CHUNK + 1)), 400) == "INVALID_REQUEST"
    assert code(await ask(closed, "POST", "2", lease, content=bytes(5000)), 400) == "INVALID_REQUEST"


def test_limits() -> None:
    assert limit_of("PUT", "/v1/groups/actor/weights/7/model.safetensors", 5) == CHUNK
    assert limit_of("POST", "/v1/groups/actor/weights/7/publish", 5) == 5
    assert limit_of("PUT", "/v1/groups/actor/lease/7", 5) == 5
    assert limit_of("PUT", "/v1/groups/actor/weights/7/a/b", 5) == 5


# What several answers are together


def test_all_are_as_far_as_the_last() -> None:
    ahead, behind = Upload(version=1, received={"a": 9, "b": 3}), Upload(version=1, received={"a": 4})
    whole = Upload(version=1, published=True, received={"a": 10})
    assert together(1, [ahead, behind, whole]).received == {"a": 4, "b": 0}
    assert together(1, [whole, whole]).published
    assert not together(1, [whole, ahead]).published


@pytest.mark.parametrize("turn", [list, lambda pairs: list(reversed(pairs))])
def test_a_refusal_says_more_than_silence(turn: Callable[[Any], Any]) -> None:
    failed = dict(turn([("x", Unreachable("gone")), ("y", EbbtideError(ErrorCode.STALE_EPOCH, "over"))]))
    error = named(failed)
    assert (error.code, error.message, error.details["members"]) == (ErrorCode.STALE_EPOCH, "y: over", ["x", "y"])


def test_what_is_no_answer_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        raise named({"x": ZeroDivisionError()})


@pytest.mark.parametrize("ways", [("None", "Stream"), ("Stream", "None"), ("None", None)])
async def test_a_group_that_takes_no_weights_says_so_at_every_door(closed: House, ways: tuple[str, str | None]) -> None:
    servers = zip(("chat", "tiny"), ways, strict=True)
    await closed.open([closed.server(name, replicas=1, weights={"handoff": way}) for name, way in servers])
    await closed.serving()
    lease = await closed.lent()
    assert (lease["streams"], lease["handoff"]) == (False, "")
    begun = await ask(closed, "POST", "2", lease, json=BEGIN)
    published = await ask(closed, "POST", "2/publish", lease, json={"length": 1, "crc32c": 1})
    back = await closed.ask("reclaim", lease, {"version": 2, "source": {"path": "/weights/v2"}})
    closed_one = "chat" if ways[0] == "None" else "tiny"
    for answer in (begun, published, back):
        assert code(answer, 422) == "TRANSPORT_IMPOSSIBLE"
        assert f"spec.weights.handoff is None for {closed_one}" in answer.json()["message"]
        assert "Give the memory back without a version" in answer.json()["nextAction"]
    done = await closed.ended(await closed.ask("reclaim", lease))
    assert done["status"] == "Done", done
