"""What the kubelet hears from a launcher."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from ebbtide_runtime.launcher import probes
from ebbtide_runtime.launcher.probes import SILENCE_S, answer

from tests.support.launching import ask


@dataclass
class Fake:
    beat: float = float("-inf")
    serving: bool = False


@pytest.mark.parametrize(
    ("vitals", "startup", "live", "ready"),
    [
        (Fake(), 503, 503, 503),
        # A sleeper, or one that waits for its device: alive, and no place for clients.
        (Fake(beat=100), 200, 200, 503),
        (Fake(beat=100, serving=True), 200, 200, 200),
        (Fake(beat=101 - SILENCE_S, serving=True), 200, 200, 200),
        (Fake(beat=100 - SILENCE_S, serving=True), 503, 503, 503),
    ],
)
def test_who_lives_is_alive_and_only_who_serves_is_ready(vitals: Fake, startup: int, live: int, ready: int) -> None:
    found = [answer(path, vitals, 100) for path in ("/startup", "/live", "/ready")]
    assert found == [startup, live, ready]


def test_other_paths_are_unknown() -> None:
    assert answer("/", Fake(100, True), 100) == 404


@pytest.fixture
def served() -> Iterator[tuple[Fake, int]]:
    vitals = Fake(time.monotonic())
    server = probes.serve(0, vitals, "127.0.0.1")
    yield vitals, server.server_port
    server.shutdown()
    server.server_close()


def test_it_answers_over_http_as_things_are_now(served: tuple[Fake, int]) -> None:
    vitals, port = served
    assert [ask(port, "/live"), ask(port, "/ready")] == [200, 503]
    vitals.serving = True
    assert ask(port, "/ready") == 200


def test_a_taken_port_is_said(served: tuple[Fake, int]) -> None:
    with pytest.raises(OSError, match="in use"):
        probes.serve(served[1], Fake(), "127.0.0.1")
