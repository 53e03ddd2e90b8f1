"""Generation through the proxy, and what becomes of it when a framework pauses, updates and sleeps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.shims.house import MEMBERS, ShimHouse, checkpoint, together
from tests.shims.sequences import asleep, serves, stopped
from tests.shims.test_truth import error, ok
from tests.support.polling import eventually


def generate(client: httpx2.Client, tokens: int = 2) -> httpx2.Response:
    return client.post("/v1/completions", json={"model": "chat", "prompt": "x", "max_tokens": tokens})


class Stream:
    """A long completion through the proxy, read by a thread."""

    def __init__(self, url: str, tokens: int) -> None:
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(url, tokens))
        self._thread.start()
        eventually(lambda: len(self.lines) > 3, 20)

    def _read(self, url: str, tokens: int) -> None:
        body = {"prompt": "x", "max_tokens": tokens}
        with (
            httpx2.Client(trust_env=False, timeout=60) as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as answer,
        ):
            for line in answer.iter_lines():
                self.lines.append(line)

    def end(self) -> str:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.lines[-1]


def test_requests_go_to_every_member_that_serves(house: ShimHouse, client: httpx2.Client) -> None:
    answers = [generate(client) for _ in range(4)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.text.split()[0] for answer in answers} == set(MEMBERS)


def test_as_many_requests_as_a_trainer_likes_are_inside_at_once(house: ShimHouse) -> None:
    limits = httpx2.Limits(max_connections=None)
    client = httpx2.Client(base_url=house.url, trust_env=False, timeout=60, limits=limits)
    answers: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: answers.extend(together(130, lambda: generate(client, 20_000))))
    thread.start()
    eventually(lambda: sum(house.page(member).inflight() for member in MEMBERS) == 130, 30)
    ok(client.post("/abort_request", json={"abort_all": True}))
    thread.join(60)
    client.close()
    assert [answer.status_code for answer in answers] == [200] * 130
    assert {answer.text.splitlines()[-1] for answer in answers} == {"end abort"}


def test_a_generation_is_health_and_a_sleep_is_not_sickness(house: ShimHouse, client: httpx2.Client) -> None:
    assert ok(client.get("/health_generate"))["ebbtide"]["serving"] is True
    ok(client.post("/sleep"))
    body = error(client.get("/health_generate"), 503, "ENGINE_ASLEEP")
    assert body["details"]["members"] == dict.fromkeys(MEMBERS, "Asleep")
    assert ok(client.get("/health"))["status"] == "ok"


def test_who_asks_a_sleeping_group_is_told_when_to_come_again(house: ShimHouse, client: httpx2.Client) -> None:
    ok(client.post("/sleep"))
    eventually(lambda: generate(client).json().get("details", {}).get("members"), 10)
    answer = generate(client)
    error(answer, 503, "ENGINE_ASLEEP")
    assert answer.headers["retry-after"] == "1"
    asleep(house)


def test_frozen_requests_go_on_and_take_no_new_weights(house: ShimHouse, client: httpx2.Client, tmp_path: Path) -> None:
    """prime-rl's pause(keep) with requests in flight: they are frozen truly, and an update of them is refused."""
    before = house.engine_versions()
    stream = Stream(house.url, 400)
    ok(client.post("/pause?mode=keep&clear_cache=false"))
    stopped(house)
    weights = {"weight_dir": str(checkpoint(tmp_path / "w", 6))}
    body = error(client.post("/update_weights", json=weights), 409, "ILLEGAL_TRANSITION")
    assert "mode abort or wait" in body["nextAction"]
    assert ok(client.post("/reset_prefix_cache"))["success"] is False, "as vLLM says it while blocks are held"
    error(client.post("/flush_cache"), 409, "OPERATION_IN_PROGRESS")
    ok(client.post("/resume"))
    assert stream.end() == "end length"
    assert house.engine_versions() == before


@pytest.mark.parametrize(
    ("path", "body"),
    [("/pause?mode=abort", None), ("/abort_request", {"abort_all": True}), ("/abort_requests", {})],
)
def test_requests_are_ended_with_what_they_have(house: ShimHouse, client: httpx2.Client, path: str, body: Any) -> None:
    stream = Stream(house.url, 20_000)
    ok(client.post(path, json=body))
    assert stream.end() == "end abort"
    assert all(house.page(member).inflight() == 0 for member in MEMBERS)
    if path.startswith("/pause"):
        stopped(house)
    else:
        serves(house)


def test_an_abort_after_a_keep_ends_what_was_frozen(house: ShimHouse, client: httpx2.Client) -> None:
    stream = Stream(house.url, 20_000)
    ok(client.post("/pause?mode=keep"))
    ok(client.post("/pause?mode=abort"))
    assert stream.end() == "end abort"
    stopped(house)


def test_an_update_while_serving_says_which_requests_had_which_version(
    house: ShimHouse, client: httpx2.Client, tmp_path: Path
) -> None:
    before = house.engine_versions()[0][0]
    assert generate(client).text.splitlines()[0].split()[1] == str(before)
    body = ok(client.post("/update_weights_from_disk", json={"model_path": str(checkpoint(tmp_path / "w", 5))}))
    serves(house)
    version = body["ebbtide"]["version"]
    assert version > before
    assert {generate(client).text.splitlines()[0].split()[1] for _ in range(2)} == {str(version)}


def test_a_pause_that_one_member_cannot_keep_is_undone_on_the_other(house: ShimHouse, client: httpx2.Client) -> None:
    house.lie("chat-1", pause="DIES")
    assert client.post("/pause?mode=abort").status_code >= 500
    eventually(lambda: house.admits("chat-0"), 30)
    eventually(lambda: house.phases() == ["Running"] * 2, 60)


def test_what_cannot_be_asked_for_is_named(house: ShimHouse, client: httpx2.Client) -> None:
    error(client.post("/abort_request", json={"rid": "one"}), 501, "NOT_IMPLEMENTED")
    error(client.post("/generate", json={"text": "x"}), 501, "NOT_IMPLEMENTED")
    error(client.post("/pause_generation", json={"mode": "retract"}), 400, "INVALID_MODE")
    error(client.post("/update_weights_from_disk", json={"model_path": "relative"}), 400, "INVALID_REQUEST")
    error(client.post("/update_weights_from_disk", json={"model_path": 1.5}), 400, "INVALID_REQUEST")
    error(client.post("/collective_rpc", json={}), 400, "INVALID_REQUEST")
    error(client.post("/collective_rpc", content=b"{"), 400, "INVALID_REQUEST")
    error(client.post("/resume_memory_occupation", json={"tags": ["lora"]}), 400, "INVALID_TAG")
    serves(house)
