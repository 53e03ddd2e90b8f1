"""What the gate costs a request: the same app with and without it, asked in pairs from another process.

A trivial ASGI app answers a short body at once, so that whatever differs is the gate's. The share of a real request
is taken from the engine's own median, measured in the same run by `lend`.
"""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from ebbtide_runtime.engine.gate import Gate, PageDoor
from ebbtide_runtime.native import Page

from .report import Goal, Row, at_most, row

WORKLOAD = "gate"
BODY = b'{"object":"text_completion","choices":[{"index":0,"text":" ebb"}]}'
PATH = "/v1/completions"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer every request with the same body."""
    if scope["type"] == "lifespan":
        return
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": BODY})


def _serve(port: int, page: str | None) -> None:
    app: Any = Gate(answer, PageDoor(page), b"secret") if page else answer
    uvicorn.run(app, port=port, log_level="error", lifespan="off")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _server(page: str | None) -> Iterator[httpx2.Client]:
    port = _free_port()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(port, page), daemon=True)
    process.start()
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
            _await(client)
            yield client
    finally:
        process.terminate()
        process.join()


def _await(client: httpx2.Client) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            client.post(PATH, content=b"{}")
        except httpx2.TransportError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("the bench's server did not start within 30 s")


def _ask(client: httpx2.Client) -> float:
    start = time.perf_counter()
    client.post(PATH, content=b"{}")
    return (time.perf_counter() - start) * 1e6


def _pair(bare: httpx2.Client, gated: httpx2.Client, turn: int) -> tuple[float, float]:
    if turn % 2:
        return _ask(bare), _ask(gated)
    with_gate = _ask(gated)
    return _ask(bare), with_gate


def run(pairs: int) -> tuple[list[Row], list[Goal]]:
    """Ask `pairs` times with and without the gate, then as often with the gate closed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page"
        page = Page.create(path)
        page.open_gate()
        with _server(None) as bare, _server(str(path)) as gated:
            for _ in range(50):
                _ask(bare)
                _ask(gated)
            # Interleaved, and each first in turn, so that neither has the warmer cache.
            samples = [_pair(bare, gated, turn) for turn in range(pairs)]
            page.close_gate()
            refused = [_ask(gated) for _ in range(pairs)]
        page.close()
    return _summary(samples, refused)


def _summary(samples: list[tuple[float, float]], refused: list[float]) -> tuple[list[Row], list[Goal]]:
    rows = [
        row(WORKLOAD, "no gate", "request", "us", [without for without, _ in samples]),
        row(WORKLOAD, "gate open", "request", "us", [with_gate for _, with_gate in samples]),
        row(WORKLOAD, "gate open", "added", "us", [with_gate - without for without, with_gate in samples]),
        row(WORKLOAD, "gate closed", "503", "ms", [each / 1000 for each in refused]),
    ]
    goals = [
        at_most("the gate adds to a request (median)", rows[2].median, 100, "us"),
        at_most("503 while closed (p90)", rows[3].p90, 5, "ms"),
    ]
    return rows, goals
