"""The gate: who gets in, who is counted, and what a closed gate says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ebbtide_api.errors import ErrorBody, ErrorCode
from ebbtide_api.state import PHASE_NUMBER, Phase
from ebbtide_runtime.engine.gate import Gate, refusal
from hypothesis import given
from hypothesis import strategies as st

from tests.support.asgi import Answer, ask, call, http

SECRET = "correct horse battery staple"


class FakeDoor:
    """A door with a switch."""

    def __init__(self, *, opened: bool = True, phase: Phase = Phase.RUNNING, retry: int = 0) -> None:
        self.opened = opened
        self.inside = 0
        self.entered = 0
        self.now = phase
        self.retry = retry
        self.held = 0.0
        self.knocks = 0
        self.on_knock: Callable[[], None] = lambda: None

    def enter(self) -> bool:
        if self.opened:
            self.inside += 1
            self.entered += 1
        return self.opened

    def leave(self) -> None:
        self.inside -= 1

    def phase(self) -> int:
        return PHASE_NUMBER[self.now]

    def retry_after(self) -> int:
        return self.retry

    def hold(self) -> float:
        return self.held

    def knock(self) -> bool:
        if not self.opened:
            self.knocks += 1
            self.on_knock()
        return self.opened


class Inner:
    """vLLM's application: notes the scopes that reach it, then answers."""

    def __init__(self, during: Callable[[Any], Awaitable[None]] | None = None) -> None:
        self.scopes: list[Any] = []
        self.during = during

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if self.during is not None:
            await self.during(send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def make(door: FakeDoor | None = None, inner: Inner | None = None) -> tuple[Gate, FakeDoor, Inner]:
    door, inner = door or FakeDoor(), inner or Inner()
    return Gate(inner, door, SECRET.encode()), door, inner


def test_an_open_gate_admits_and_counts() -> None:
    gate, door, inner = make()
    assert ask(gate, http()).status == 200
    assert (door.entered, door.inside, len(inner.scopes)) == (1, 0, 1)


def test_a_request_is_inside_until_its_last_byte() -> None:
    door = FakeDoor()
    seen: list[int] = []

    async def stream(send: Any) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(door.inside)

    gate, _, _ = make(door, Inner(stream))
    ask(gate, http())
    assert seen == [1, 1, 1]
    assert door.inside == 0


@pytest.mark.parametrize("problem", [RuntimeError("boom"), asyncio.CancelledError(), ConnectionResetError()])
def test_a_request_that_fails_or_goes_away_is_counted_out(problem: BaseException) -> None:
    async def fail(send: Any) -> None:
        raise problem

    gate, door, _ = make(inner=Inner(fail))
    with pytest.raises(type(problem)):
        ask(gate, http())
    assert (door.entered, door.inside) == (1, 0)


def test_a_disconnect_counts_out() -> None:
    """The server cancels nothing: the application returns when it hears of the disconnect."""

    async def main() -> None:
        gate, door, _ = make(inner=Inner(lambda send: gone.wait()))  # type: ignore[arg-type,return-value]
        task = asyncio.create_task(call(gate, http()))
        await asyncio.sleep(0)
        assert door.inside == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert door.inside == 0

    gone = asyncio.Event()
    asyncio.run(main())


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        (Phase.ASLEEP, "ENGINE_ASLEEP"),
        (Phase.WAKING_KV, "ENGINE_ASLEEP"),
        (Phase.DRAINING, "DRAINING"),
        (Phase.PAUSED, "DRAINING"),
        (Phase.UPDATING, "UPDATING"),
        (Phase.COMMITTED, "UPDATING"),
        (Phase.STARTING, "ENGINE_STARTING"),
        (Phase.PENDING_DEVICE, "ENGINE_STARTING"),
        (Phase.FAULTED, "ENGINE_STARTING"),
        (Phase.UNKNOWN, "ENGINE_STARTING"),
    ],
)
def test_a_closed_gate_answers_503_with_its_reason(phase: Phase, code: str) -> None:
    gate, _, inner = make(FakeDoor(opened=False, phase=phase, retry=7))
    answer = ask(gate, http())
    body = ErrorBody.model_validate(answer.body)
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert (body.code, body.retryable, body.details) == (code, True, {"retryAfterSeconds": 7})
    assert inner.scopes == []


def test_retry_after_is_never_zero() -> None:
    gate, _, _ = make(FakeDoor(opened=False, phase=Phase.ASLEEP))
    assert ask(gate, http()).headers["retry-after"] == "1"


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_a_503(phase: Phase) -> None:
    assert refusal(PHASE_NUMBER[phase]) in {
        ErrorCode.ENGINE_ASLEEP,
        ErrorCode.DRAINING,
        ErrorCode.UPDATING,
        ErrorCode.ENGINE_STARTING,
    }


def test_a_number_that_is_no_phase_counts_as_starting() -> None:
    assert refusal(2**64 - 1) is ErrorCode.ENGINE_STARTING


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/version"])
def test_open_paths_pass_a_closed_gate_uncounted(path: str) -> None:
    gate, door, _ = make(FakeDoor(opened=False))
    assert ask(gate, http("GET", path)).status == 200
    assert door.entered == 0


@pytest.mark.parametrize("path", ["/sleep", "/wake_up", "/collective_rpc", "//v1/completions", "/v1/completions/", "/"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD"])
def test_what_is_not_allowed_does_not_exist(method: str, path: str) -> None:
    gate, _, inner = make()
    answer = ask(gate, http(method, path, [("Ebbtide-Secret", SECRET)]))
    assert (answer.status, answer.body["code"]) == (404, "NOT_FOUND")
    assert inner.scopes == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"])
def test_another_method_is_refused_with_the_right_one(method: str) -> None:
    gate, _, inner = make()
    answer = ask(gate, http(method, "/v1/completions"))
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert inner.scopes == []


def test_a_preflight_passes_and_is_not_counted() -> None:
    gate, door, inner = make(FakeDoor(opened=False))
    headers = [("Origin", "http://a"), ("Access-Control-Request-Method", "POST")]
    assert ask(gate, http("OPTIONS", "/v1/completions", headers)).status == 200
    assert (len(inner.scopes), door.entered) == (1, 0)


def test_a_preflight_opens_nothing_else() -> None:
    headers = [("Origin", "http://a"), ("Access-Control-Request-Method", "POST")]
    gate, _, inner = make()
    assert ask(gate, http("OPTIONS", "/collective_rpc", headers)).status == 404
    assert ask(gate, http("OPTIONS", "/ebbtide/v1/sleep", headers)).status == 401
    assert ask(gate, http("POST", "/health", headers)).status == 405
    assert inner.scopes == []


def test_the_canary_passes_a_closed_gate_with_the_secret() -> None:
    gate, door, inner = make(FakeDoor(opened=False, phase=Phase.VERIFYING))
    assert ask(gate, http(headers=[("Ebbtide-Secret", SECRET)])).status == 200
    assert (door.entered, len(inner.scopes)) == (0, 1)


def test_the_secret_goes_no_further_than_the_gate() -> None:
    gate, _, inner = make()
    ask(gate, http(headers=[("Ebbtide-Secret", SECRET), ("X-Other", "kept")]))
    ask(gate, http("GET", "/health", [("ebbtide-secret", SECRET)]))
    ask(gate, http(headers=[("Ebbtide-Secret", "a guess")]))
    assert [scope["headers"] for scope in inner.scopes] == [[(b"x-other", b"kept")], [], []]


GUESSES = ["", " ", SECRET[:-1], SECRET + "x", SECRET.upper(), f" {SECRET}", f"{SECRET} ", f"{SECRET}, x", "é" * 9]


@pytest.mark.parametrize("guess", GUESSES)
def test_a_wrong_secret_is_no_secret(guess: str) -> None:
    gate, _, inner = make(FakeDoor(opened=False, phase=Phase.ASLEEP))
    assert ask(gate, http(headers=[("Ebbtide-Secret", guess)])).status == 503
    control = ask(gate, http("GET", "/ebbtide/v1/engine", [("Ebbtide-Secret", guess)]))
    assert (control.status, control.body["code"]) == (401, "UNAUTHENTICATED")
    assert inner.scopes == []


def test_two_secrets_are_no_secret() -> None:
    gate, _, inner = make(FakeDoor(opened=False, phase=Phase.ASLEEP))
    assert ask(gate, http(headers=[("Ebbtide-Secret", "x"), ("Ebbtide-Secret", SECRET)])).status == 503
    assert inner.scopes == []


@pytest.mark.parametrize("path", ["/ebbtide/v1/engine", "/ebbtide", "/ebbtide/", "/ebbtide/v1/nonsense"])
def test_our_prefix_is_closed_without_the_secret(path: str) -> None:
    gate, _, inner = make()
    assert ask(gate, http("GET", path)).status == 401
    assert inner.scopes == []


def test_with_the_secret_only_our_verbs_exist() -> None:
    gate, _, inner = make()
    known = [("Ebbtide-Secret", SECRET)]
    assert ask(gate, http("GET", "/ebbtide/v1/engine", known)).status == 200
    assert ask(gate, http("POST", "/ebbtide/v1/sleep", known)).status == 200
    assert ask(gate, http("GET", "/ebbtide/v1/sleep", known)).headers["allow"] == "POST"
    assert ask(gate, http("POST", "/ebbtide/v1/nonsense", known)).status == 404
    assert len(inner.scopes) == 2


@given(st.binary(max_size=64))
def test_no_guess_ever_opens_the_control_routes(guess: bytes) -> None:
    gate, _, inner = make()
    scope = {**http("GET", "/ebbtide/v1/engine"), "headers": [(b"ebbtide-secret", guess)]}
    assert ask(gate, scope).status == (200 if guess == SECRET.encode() else 401)
    assert len(inner.scopes) == (guess == SECRET.encode())


def websocket(path: str) -> dict[str, Any]:
    return {"type": "websocket", "path": path, "headers": []}


def test_a_websocket_is_counted_while_it_is_open() -> None:
    gate, door, inner = make()
    ask(gate, websocket("/v1/realtime"))
    assert (door.entered, door.inside, len(inner.scopes)) == (1, 0, 1)


def test_a_websocket_is_told_to_come_back() -> None:
    gate, _, inner = make(FakeDoor(opened=False, phase=Phase.ASLEEP))
    answer: Answer = ask(gate, websocket("/v1/realtime"))
    close = {"type": "websocket.close", "code": 1013, "reason": "ENGINE_ASLEEP"}
    assert answer.messages == [{"type": "websocket.accept"}, close]
    assert inner.scopes == []


@pytest.mark.parametrize("path", ["/v1/completions", "/ebbtide/v1/engine", "/", "/v1/realtime/"])
def test_no_other_websocket_is_accepted(path: str) -> None:
    gate, _, inner = make()
    assert ask(gate, websocket(path)).messages == [{"type": "websocket.close", "code": 1008}]
    assert inner.scopes == []


def test_lifespan_passes_and_other_scopes_are_dropped() -> None:
    gate, _, inner = make()
    ask(gate, {"type": "lifespan"})
    ask(gate, {"type": "something"})
    assert [scope["type"] for scope in inner.scopes] == ["lifespan"]


def test_the_path_behind_a_mount_point_is_judged() -> None:
    gate, door, _ = make()
    assert ask(gate, http(path="/base/v1/completions", root_path="/base")).status == 200
    assert ask(gate, http(path="/base/collective_rpc", root_path="/base")).status == 404
    assert door.entered == 1


def test_the_gate_logs_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    gate, _, _ = make(FakeDoor(opened=False))
    answers = [ask(gate, http(headers=[("Ebbtide-Secret", secret)])) for secret in (SECRET, "a wrong secret")]
    assert SECRET not in caplog.text + repr([answer.messages for answer in answers]) + repr(gate)


# Held


def test_a_refused_request_knocks_once_and_is_not_held() -> None:
    gate, door, inner = make(FakeDoor(opened=False, phase=Phase.ASLEEP))
    assert ask(gate, http()).status == 503
    assert (door.knocks, inner.scopes) == (1, [])


def test_an_open_gate_hears_no_knock() -> None:
    gate, door, _ = make()
    assert ask(gate, http()).status == 200
    assert door.knocks == 0


def test_many_held_requests_are_served_when_the_gate_opens() -> None:
    door = FakeDoor(opened=False, phase=Phase.ASLEEP)
    door.held = 20

    def wake() -> None:
        # The first look after all of them knocked.
        door.opened = door.knocks > 100

    door.on_knock = wake
    gate, _, inner = make(door)

    async def main() -> list[Answer]:
        return list(await asyncio.gather(*(call(gate, http()) for _ in range(100))))

    assert [answer.status for answer in asyncio.run(main())] == [200] * 100
    assert (door.entered, door.inside, len(inner.scopes)) == (100, 0, 100)
    assert door.knocks == 101, "those who wait share one look at the door"


def test_a_request_that_was_held_in_vain_gets_a_503() -> None:
    door = FakeDoor(opened=False, phase=Phase.WAKING_KV, retry=3)
    door.held = 0.05
    gate, _, inner = make(door)
    answer = ask(gate, http())
    assert (answer.status, answer.headers["retry-after"], answer.body["code"]) == (503, "3", "ENGINE_ASLEEP")
    assert inner.scopes == []


def test_what_is_lent_meanwhile_holds_nobody() -> None:
    door = FakeDoor(opened=False, phase=Phase.ASLEEP)
    door.held = 3600

    def lend() -> None:
        door.held = 0.0 if door.knocks > 2 else 3600

    door.on_knock = lend
    gate, _, _ = make(door)
    assert ask(gate, http()).status == 503


def test_a_gate_that_closed_again_is_knocked_at_again() -> None:
    door = FakeDoor(opened=False, phase=Phase.ASLEEP)
    door.held = 20
    closed_again = iter([False, True])

    def enter() -> bool:
        # The first time that it looks open, it is closed again before anybody is in.
        door.opened = door.opened and next(closed_again)
        return FakeDoor.enter(door)

    def wake() -> None:
        door.opened = door.knocks >= 3

    door.enter, door.on_knock = enter, wake  # type: ignore[method-assign]
    gate, _, _ = make(door)
    assert ask(gate, http()).status == 200
    assert door.knocks > 3


def test_a_websocket_knocks_too() -> None:
    gate, door, _ = make(FakeDoor(opened=False, phase=Phase.ASLEEP))
    asyncio.run(call(gate, {"type": "websocket", "path": "/v1/realtime", "headers": []}))
    assert door.knocks == 1
