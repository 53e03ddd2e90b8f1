"""The proxy, before a fake gateway: what it adds, what it takes, what it gives back."""

from __future__ import annotations

import socket
import threading
from typing import Any

import httpx2
import pytest
from ebbtide.proxy.server import Proxy
from ebbtide_api.verbs import LeaseStage

from tests.support.fake_gateway import TOKEN, FakeGateway
from tests.support.polling import eventually

from .conftest import Make

LEND = "/v1/groups/actor:lend"


def error(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_a_client_that_knows_nothing_lends(client: httpx2.Client, gateway: FakeGateway) -> None:
    assert client.post(LEND, json={}).status_code == 202
    (seen,) = gateway.seen("POST", ":lend")
    assert seen.headers["authorization"] == f"Bearer {TOKEN}"
    assert seen.headers["ebbtide-epoch"] == str(gateway.epoch)
    assert seen.headers["idempotency-key"]
    eventually(lambda: gateway.owner != "engine")


def test_looking_takes_no_lease(client: httpx2.Client, gateway: FakeGateway) -> None:
    assert client.get("/v1/groups/actor").json()["owner"] == "engine"
    assert client.get("/v1/servers").json()[0]["name"] == "chat"
    assert gateway.current is None


def test_a_client_with_a_lease_of_its_own_is_left_alone(client: httpx2.Client, gateway: FakeGateway) -> None:
    body = {"holder": "itself", "ttlSeconds": 30}
    lease = client.post("/v1/groups/actor/lease", json=body, headers={"Idempotency-Key": "k"}).json()
    assert client.post(LEND, json={}, headers={"Ebbtide-Epoch": str(lease["epoch"])}).status_code == 202
    assert len(gateway.seen("POST", "/lease")) == 1


def test_what_concerns_another_group_takes_no_lease(client: httpx2.Client, gateway: FakeGateway) -> None:
    assert error(client.post("/v1/groups/critic:lend", json={}), 404)["code"] == "NOT_FOUND"
    assert error(client.post("/v1/servers/other:sleep", json={}), 404)["code"] == "NOT_FOUND"
    assert gateway.current is None


def test_a_step_of_a_server_of_the_group_takes_the_lease(client: httpx2.Client, gateway: FakeGateway) -> None:
    client.post("/v1/servers/chat:sleep", json={})
    assert gateway.seen("POST", "/v1/servers/chat:sleep")[0].headers["ebbtide-epoch"] == str(gateway.epoch)


def test_the_clients_own_token_and_hop_headers_do_not_travel(client: httpx2.Client, gateway: FakeGateway) -> None:
    client.get("/v1/groups", headers={"Authorization": "Bearer theirs", "TE": "trailers", "X-Mine": "1"})
    seen = gateway.seen("GET", "/v1/groups")[0].headers
    assert (seen["authorization"], seen["x-mine"], "te" in seen) == (f"Bearer {TOKEN}", "1", False)


def test_the_lease_is_taken_once_and_renewed(make: Make, gateway: FakeGateway) -> None:
    proxy = make(ttl=0.6)
    with httpx2.Client(base_url=proxy.url, trust_env=False) as client:
        client.post(LEND, json={})
        eventually(lambda: len(gateway.seen("PUT", "/lease/")) >= 5)
        client.post("/v1/servers/chat:pause", json={})
    assert len(gateway.seen("POST", "/lease")) == 1
    assert gateway.current is not None


def test_many_callers_share_one_lease(client: httpx2.Client, gateway: FakeGateway) -> None:
    threads = [threading.Thread(target=client.post, args=("/v1/servers/chat:pause",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gateway.seen("POST", "/lease")) == 1
    assert len({seen.headers["ebbtide-epoch"] for seen in gateway.seen("POST", ":pause")}) == 1


def test_closing_gives_the_lease_back(make: Make, gateway: FakeGateway) -> None:
    proxy = make()
    with httpx2.Client(base_url=proxy.url, trust_env=False) as client:
        client.post(LEND, json={})
        eventually(lambda: gateway.owner != "engine")
    proxy.close()
    assert (gateway.current, gateway.owner) == (None, "engine")
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(proxy.url, trust_env=False)


def test_a_lease_that_the_client_ended_itself_is_taken_anew(client: httpx2.Client, gateway: FakeGateway) -> None:
    for turn in (1, 2):
        operation = client.post(LEND, json={}).json()
        assert client.get(f"/v1/operations/{operation['id']}?wait=5").json()["status"] == "Done"
        operation = client.post("/v1/groups/actor:reclaim", json={}).json()
        assert client.get(f"/v1/operations/{operation['id']}?wait=5").json()["status"] == "Done"
        assert len(gateway.seen("POST", "/lease")) == turn
    assert gateway.performed == ["lend", "reclaim"] * 2


def test_a_lease_that_was_lost_is_said_once(make: Make, gateway: FakeGateway) -> None:
    proxy = make(ttl=0.3)
    with httpx2.Client(base_url=proxy.url, trust_env=False) as client:
        client.post(LEND, json={})
        renewed = len(gateway.seen("PUT", "/lease/"))
        gateway.take_away()
        eventually(lambda: len(gateway.seen("PUT", "/lease/")) > renewed and proxy.holder._lost)
        assert error(client.post(LEND, json={}), 412)["code"] == "STALE_EPOCH"
        assert client.post(LEND, json={}).status_code == 202


def test_it_waits_for_its_turn(client: httpx2.Client, gateway: FakeGateway) -> None:
    other = gateway.occupy()
    answers: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: answers.append(client.post(LEND, json={})))
    thread.start()
    eventually(lambda: gateway.seen("GET", "/lease/"))
    assert answers == []
    gateway.release(other)
    thread.join(10)
    assert answers[0].status_code == 202


def test_it_waits_as_long_as_it_was_told_to(make: Make, gateway: FakeGateway) -> None:
    proxy, other = make(patience=0), gateway.occupy()
    answer = httpx2.post(f"{proxy.url}{LEND}", json={}, trust_env=False, timeout=20)
    assert error(answer, 504)["code"] == "PHASE_DEADLINE"
    gateway.release(other)
    assert gateway.current is None, "it left the queue"


def test_closing_sends_who_waits_away_and_leaves_the_queue(make: Make, gateway: FakeGateway) -> None:
    proxy, other = make(), gateway.occupy()
    answers: list[httpx2.Response] = []

    def ask() -> None:
        answers.append(httpx2.post(f"{proxy.url}{LEND}", json={}, trust_env=False, timeout=20))

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: gateway.seen("GET", "/lease/"))
    proxy.close()
    thread.join(10)
    assert error(answers[0], 503)["code"] == "UNREACHABLE"
    gateway.release(other)
    assert gateway.current is None


def test_after_its_end_no_lease_is_taken(proxy: Proxy) -> None:
    proxy.holder.close()
    with pytest.raises(Exception, match="ending"):
        proxy.holder.epoch()


def test_a_gateway_that_is_not_there_is_named(make: Make) -> None:
    proxy = make("http://127.0.0.1:9")
    body = error(httpx2.get(f"{proxy.url}/v1/groups", trust_env=False), 503)
    assert (body["code"], "http://127.0.0.1:9" in body["message"], body["retryable"]) == ("UNREACHABLE", True, True)


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Origin": "http://evil.example"}]
)
def test_a_page_in_a_browser_is_refused(client: httpx2.Client, gateway: FakeGateway, headers: dict[str, str]) -> None:
    assert error(client.post("/sleep", headers=headers), 403)["code"] == "FORBIDDEN"
    assert gateway.requests == []


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/v1/groups", "*"])
def test_our_token_goes_nowhere_else(proxy: Proxy, gateway: FakeGateway, target: str) -> None:
    assert raw_status(proxy, target) == 403
    assert gateway.requests == []


def test_a_path_that_looks_like_a_host_is_a_path(proxy: Proxy, gateway: FakeGateway) -> None:
    assert raw_status(proxy, "//127.0.0.1:1/v1/groups") == 404
    assert [seen.path for seen in gateway.requests] == ["/127.0.0.1:1/v1/groups"]


def raw_status(proxy: Proxy, target: str) -> int:
    host, port = proxy.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        raw.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return int(raw.recv(100).split()[1])


# vLLM's own paths


def test_sleep_and_wake_up_as_vllm_has_them(client: httpx2.Client, gateway: FakeGateway) -> None:
    assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    assert client.post("/sleep?level=2&mode=abort").status_code == 200
    assert gateway.current is not None
    assert gateway.current.stage is LeaseStage.LENT
    body = gateway.seen("POST", ":lend")[0].body
    assert (body["level"], body["drain"]["mode"]) == (2, "Abort")
    assert client.get("/is_sleeping").json() == {"is_sleeping": True}
    assert client.post("/sleep").status_code == 200
    assert client.post("/wake_up?tags=weights&tags=kv_cache").status_code == 200
    assert (gateway.current, gateway.performed[-1]) == (None, "reclaim")
    assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    assert client.post("/wake_up").status_code == 200
    assert gateway.performed.count("reclaim") == 1


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/sleep?level=3", 422, "LEVEL_UNSUPPORTED"),
        ("/sleep?mode=soon", 400, "INVALID_MODE"),
        ("/wake_up?tags=lora", 400, "INVALID_TAG"),
        ("/sleep?tags=weights", 501, "NOT_IMPLEMENTED"),
    ],
)
def test_what_vllm_would_misread_is_refused(
    client: httpx2.Client, gateway: FakeGateway, path: str, status: int, code: str
) -> None:
    body = error(client.post(path), status)
    assert (body["code"], bool(body["nextAction"])) == (code, True)
    assert gateway.current is None


def test_a_sleep_that_fails_says_why(client: httpx2.Client, gateway: FakeGateway) -> None:
    from ebbtide_api.errors import ErrorBody, ErrorCode

    gateway.fail("lend", ErrorBody(code=ErrorCode.RELEASE_INCOMPLETE, message="12 MiB are held"))
    assert error(client.post("/sleep"), 500)["code"] == "RELEASE_INCOMPLETE"
