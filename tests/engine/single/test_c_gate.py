"""The gate in front of the real engine: streams, aborts, closed doors, and hostile bytes on the wire."""

import json
import socket
import threading
from typing import Any

import httpx2
import pytest
from ebbtide_api.state import PHASE_NUMBER, Phase
from ebbtide_runtime.native import Field

from tests.support.engines import RealEngine
from tests.support.launching import until
from tests.support.members import SECRET

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]
# Enough tokens to be caught in the middle; too many to wait for.
SHORT, LONG = 60, 900


def request(count: int, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "the tide", "max_tokens": count, "temperature": 0, "ignore_eos": True, **more}


class Stream:
    """A streamed completion, read in a thread."""

    def __init__(self, engine: RealEngine, count: int) -> None:
        self.chunks: list[dict[str, Any]] = []
        self.status = 0
        self.done = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(engine, count))
        self._thread.start()
        until(lambda: len(self.chunks) > 2 or not self._thread.is_alive(), "the first tokens")

    def _read(self, engine: RealEngine, count: int) -> None:
        url, body = f"http://127.0.0.1:{engine.port}/v1/completions", request(count, stream=True)
        with httpx2.Client(timeout=120, trust_env=False) as client, client.stream("POST", url, json=body) as answer:
            self.status = answer.status_code
            for line in answer.iter_lines():
                if self._stop.is_set():
                    return
                if line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    self.chunks.append(json.loads(line[6:]))

    def join(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive()

    def hang_up(self) -> None:
        self._stop.set()
        self.join()

    @property
    def reason(self) -> object:
        return self.chunks[-1]["choices"][0]["finish_reason"]


def test_before_it_is_opened_it_says_that_the_engine_starts(engine: RealEngine) -> None:
    engine.page.set(Field.PHASE, PHASE_NUMBER[Phase.STARTING])
    answer = engine.client.post("/v1/completions", json=request(1))
    assert (answer.status_code, answer.json()["code"]) == (503, "ENGINE_STARTING")
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/inference/v1/generate"])
def test_closed_is_closed_for_every_way_to_the_engine(engine: RealEngine, path: str) -> None:
    engine.page.set(Field.PHASE, PHASE_NUMBER[Phase.ASLEEP])
    engine.page.set(Field.RETRY_AFTER_S, 9)
    answer = engine.client.post(path, json=request(1))
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "ENGINE_ASLEEP", "9")


def test_open_it_serves_and_counts(engine: RealEngine) -> None:
    engine.page.open_gate()
    stream = Stream(engine, SHORT)
    assert engine.page.inflight() == 1
    stream.join()
    assert (stream.status, stream.done, stream.reason) == (200, True, "length")
    until(lambda: engine.page.inflight() == 0, "the request to be counted out")


def test_a_client_that_hangs_up_is_counted_out(engine: RealEngine) -> None:
    engine.page.open_gate()
    stream = Stream(engine, LONG)
    assert engine.page.inflight() == 1
    stream.hang_up()
    until(lambda: engine.page.inflight() == 0, "the disconnect to be noticed")
    until(lambda: engine.state().unfinished == 0, "the engine to drop the request")


def test_a_stream_in_flight_outlives_the_closing(engine: RealEngine) -> None:
    """Drain by waiting: who is inside finishes, who comes is refused."""
    engine.page.open_gate()
    stream = Stream(engine, SHORT)
    engine.page.close_gate()
    engine.page.set(Field.PHASE, PHASE_NUMBER[Phase.DRAINING])
    assert engine.client.post("/v1/completions", json=request(1)).json()["code"] == "DRAINING"
    stream.join()
    assert (stream.done, stream.reason) == (True, "length")
    until(lambda: engine.page.inflight() == 0, "the drain")


def test_a_pause_waits_for_the_stream(engine: RealEngine) -> None:
    engine.page.open_gate()
    stream = Stream(engine, SHORT)
    state = engine.control("pause", mode="wait", clearCache=True)
    stream.join()
    assert (state.unfinished, state.paused, stream.reason) == (0, True, "length")
    engine.control("resume")


def test_an_abort_ends_the_stream_with_its_partial_tokens(engine: RealEngine) -> None:
    engine.page.open_gate()
    stream = Stream(engine, LONG)
    engine.page.close_gate()
    state = engine.control("pause", mode="abort", clearCache=True)
    stream.join()
    assert (state.unfinished, stream.status, stream.reason) == (0, 200, "abort")
    assert 2 < len(stream.chunks) < LONG
    until(lambda: engine.page.inflight() == 0, "the aborted request to be counted out")
    engine.control("resume")


def test_an_abort_overtakes_a_pause_that_waits(engine: RealEngine) -> None:
    engine.page.open_gate()
    stream = Stream(engine, LONG)
    engine.page.close_gate()
    answers: list[int] = []

    def wait() -> None:
        url = f"http://127.0.0.1:{engine.port}/ebbtide/v1/pause"
        with httpx2.Client(timeout=120, trust_env=False) as client:
            body = {"mode": "wait", "clearCache": True}
            answers.append(client.post(url, json=body, headers={"Ebbtide-Secret": SECRET}).status_code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: engine.state().paused, "the pause")
    engine.control("pause", mode="abort", clearCache=True)
    waiting.join(60)
    stream.join()
    assert (answers, stream.reason) == ([200], "abort")
    engine.control("resume")


def test_frozen_requests_go_on(engine: RealEngine) -> None:
    engine.page.open_gate()
    stream = Stream(engine, SHORT)
    assert engine.control("pause", mode="keep", clearCache=False).unfinished == 1
    engine.control("resume")
    stream.join()
    assert stream.reason == "length"


def wire(engine: RealEngine, target: str, method: str = "GET", headers: str = "") -> int:
    """Send raw bytes, as no HTTP client would, and return the status; 0 when the server just hung up."""
    with socket.create_connection(("127.0.0.1", engine.port), timeout=30) as connection:
        head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: 0\r\n\r\n"
        connection.sendall(head.encode())
        answer = connection.recv(65536).decode(errors="replace")
    return int(answer.split()[1]) if answer.startswith("HTTP/") else 0


@pytest.mark.parametrize(
    "target",
    [
        "/sleep",
        "/wake_up",
        "/collective_rpc",
        "/is_sleeping",
        "/scale_elastic_ep",
        "/inference/v1/abort_requests",
        "/invocations",
        "/docs",
        "//v1/completions",
        "/v1/completions/",
        "/v1//completions",
        "/v1/../v1/completions",
        "/v1/%2e%2e/collective_rpc",
        "/%2e/v1/completions",
        "/v1%2Fcompletions/",
        "/V1/completions",
        "/v1/completions%00",
        "/v1/completions%0a",
        "/v1/completions;a",
        "http://evil/collective_rpc",
        "/metrics/",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nothing_else_exists(engine: RealEngine, target: str, method: str) -> None:
    engine.page.open_gate()
    assert wire(engine, target, method) in {400, 404}


@pytest.mark.parametrize("target", ["/ebbtide/v1/engine", "/%65bbtide/v1/engine", "http://x/ebbtide/v1/engine"])
@pytest.mark.parametrize(
    "headers", ["", "Ebbtide-Secret: guess\r\n", "Ebbtide-Secret:\r\n", f"Ebbtide_Secret: {SECRET}\r\n"]
)
def test_our_routes_are_closed_on_every_spelling(engine: RealEngine, target: str, headers: str) -> None:
    assert wire(engine, target, headers=headers) == 401


def test_two_secrets_are_none(engine: RealEngine) -> None:
    twice = f"Ebbtide-Secret: {SECRET}\r\nEbbtide-Secret: {SECRET}\r\n"
    assert wire(engine, "/ebbtide/v1/engine", headers=twice) == 401
    assert wire(engine, "/ebbtide/v1/engine", headers=f"Ebbtide-Secret: {SECRET}\r\n") == 200


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"])
def test_other_methods_are_refused(engine: RealEngine, method: str) -> None:
    engine.page.open_gate()
    assert wire(engine, "/v1/completions", method) in {400, 405}


def test_what_needs_no_device_answers_with_the_gate_shut(engine: RealEngine) -> None:
    assert engine.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert engine.client.get("/health").status_code == 200
    assert "vllm:" in engine.client.get("/metrics").text
    assert engine.client.post("/tokenize", json={"model": "tiny", "prompt": "ebb"}).json()["count"] > 0


def test_the_secret_is_in_no_log(engine: RealEngine) -> None:
    engine.tokens()
    wire(engine, "/ebbtide/v1/nonsense", headers=f"Ebbtide-Secret: {SECRET}\r\n")
    assert SECRET not in engine.launch.log.read_text(errors="replace")
