"""What a call to the engine comes back as: a state, or a failure that says what is known."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import KV, EngineState, RankState, Weights
from ebbtide_api.verbs import Canary, DrainMode
from ebbtide_runtime.agent.engine_client import Completion, EngineClient, Failed, Lost, Refused

STATE = EngineState(
    ranks=[RankState(rank=0, pid=1, weights=Weights.RESIDENT, kv=KV.RESIDENT)],
    paused=False,
    weight_version=3,
    kv_blocks=9,
)
Handler = Callable[[httpx2.Request], httpx2.Response]


def answer(body: Any, status: int = 200) -> Handler:
    return lambda _request: httpx2.Response(status, json=body)


def call(handler: Handler, verb: Callable[[EngineClient], Any]) -> tuple[Any, list[httpx2.Request]]:
    seen: list[httpx2.Request] = []

    def record(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return handler(request)

    async def run() -> Any:
        client = EngineClient("http://engine", "s3cret", httpx2.MockTransport(record))
        try:
            return await verb(client)
        finally:
            await client.close()

    return asyncio.run(run()), seen


VERBS: list[tuple[Callable[[EngineClient], Any], str, str, dict[str, Any] | None]] = [
    (lambda c: c.state(), "GET", "/ebbtide/v1/engine", None),
    (
        lambda c: c.pause(DrainMode.WAIT, clear_cache=True),
        "POST",
        "/ebbtide/v1/pause",
        {"mode": "wait", "clearCache": True},
    ),
    (
        lambda c: c.pause(DrainMode.ABORT, clear_cache=True),
        "POST",
        "/ebbtide/v1/pause",
        {"mode": "abort", "clearCache": True},
    ),
    (
        lambda c: c.pause(DrainMode.KEEP, clear_cache=False),
        "POST",
        "/ebbtide/v1/pause",
        {"mode": "keep", "clearCache": False},
    ),
    (lambda c: c.resume(), "POST", "/ebbtide/v1/resume", {}),
    (lambda c: c.sleep(2), "POST", "/ebbtide/v1/sleep", {"level": 2}),
    (lambda c: c.wake_weights(), "POST", "/ebbtide/v1/wake", {"tag": "weights"}),
    (lambda c: c.wake_kv(), "POST", "/ebbtide/v1/wake", {"tag": "kv_cache"}),
    (lambda c: c.reload("/w/v3", 3), "POST", "/ebbtide/v1/reload", {"path": "/w/v3", "version": 3}),
    (lambda c: c.commit(3), "POST", "/ebbtide/v1/commit", {"version": 3}),
    (lambda c: c.park(), "POST", "/ebbtide/v1/park", {}),
]


@pytest.mark.parametrize(("verb", "method", "path", "body"), VERBS)
def test_each_verb_is_one_route(verb: Any, method: str, path: str, body: dict[str, Any] | None) -> None:
    result, (first, *_) = call(answer(STATE.wire()), verb)
    assert (first.method, first.url.path) == (method, path)
    assert (json.loads(first.content) if first.content else None) == body
    assert first.headers["ebbtide-secret"] == "s3cret"
    assert result in (STATE, None)


@pytest.mark.parametrize(("verb", "method", "path", "body"), VERBS)
def test_no_call_has_a_timeout(verb: Any, method: str, path: str, body: dict[str, Any] | None) -> None:
    """A collective call that is given up poisons the next one: the deadline is the keeper's."""
    _, (first, *_) = call(answer(STATE.wire()), verb)
    timeout = first.extensions["timeout"]
    assert (timeout["read"], timeout["write"], timeout["pool"]) == (None, None, None)
    assert timeout["connect"]


def test_a_reload_is_followed_by_a_look() -> None:
    result, seen = call(answer(STATE.wire()), lambda c: c.reload("/w", 3))
    assert result == STATE
    assert [request.url.path for request in seen] == ["/ebbtide/v1/reload", "/ebbtide/v1/engine"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx2.ConnectError("refused"), Refused),
        (httpx2.ConnectTimeout("late"), Refused),
        (httpx2.ReadError("reset"), Lost),
        (httpx2.RemoteProtocolError("ended"), Lost),
        (httpx2.WriteError("broken"), Lost),
    ],
)
def test_a_connection_that_fails(error: Exception, kind: type[Any]) -> None:
    def fail(_request: httpx2.Request) -> httpx2.Response:
        raise error

    for verb, _, path, _ in VERBS:
        result, _ = call(fail, verb)
        assert isinstance(result, kind)
        assert path in result.message


def test_an_error_keeps_its_code() -> None:
    body = EbbtideError(ErrorCode.HOST_MEMORY_INSUFFICIENT, "no room", needMiB=5).body()
    result, _ = call(answer(body.wire(), 507), lambda c: c.sleep(1))
    assert isinstance(result, Failed)
    assert (result.status, result.body.code, result.body.details) == (
        507,
        ErrorCode.HOST_MEMORY_INSUFFICIENT,
        {"needMiB": 5},
    )
    assert "507" in result.message


@pytest.mark.parametrize("body", ["not json", {}, {"ranks": 3}, [], None])
@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_is_none(body: Any, status: int) -> None:
    result, _ = call(answer(body, status), lambda c: c.state())
    assert isinstance(result, Failed)
    assert result.body.code is ErrorCode.INTERNAL


def test_the_secret_is_in_no_message() -> None:
    result, _ = call(answer({}, 500), lambda c: c.sleep(1))
    assert "s3cret" not in str(result)


def test_a_canary_is_a_greedy_completion() -> None:
    body = {"choices": [{"text": " a b", "token_ids": [5, 6]}]}
    result, (request,) = call(answer(body), lambda c: c.complete("tiny", Canary(prompt="hello", tokens=2)))
    assert result == Completion([5, 6], " a b")
    sent = json.loads(request.content)
    assert request.url.path == "/v1/completions"
    assert (sent["model"], sent["prompt"], sent["max_tokens"]) == ("tiny", "hello", 2)
    assert (sent["temperature"], sent["return_token_ids"]) == (0, True)


@pytest.mark.parametrize(
    "body", [{}, {"choices": []}, {"choices": [{"text": "x"}]}, {"choices": [{"token_ids": ["x"]}]}, []]
)
def test_a_completion_without_tokens_is_no_completion(body: Any) -> None:
    result, _ = call(answer(body), lambda c: c.complete("tiny", Canary()))
    assert isinstance(result, Failed)
