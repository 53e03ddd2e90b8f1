"""Bodies through the proxy: as they come, in both directions, and broken ones."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest

from .conftest import Make


class Upstream(BaseHTTPRequestHandler):
    """Answers as its path says."""

    protocol_version = "HTTP/1.1"
    go_on = threading.Event()

    def do_GET(self) -> None:
        getattr(self, f"_{self.path.strip('/')}")()

    def do_PUT(self) -> None:
        digest, size = hashlib.sha256(), 0
        for data in self._body():
            digest.update(data)
            size += len(data)
        self._reply(f"{size} {digest.hexdigest()} {self.headers.get('transfer-encoding', 'whole')}".encode())

    do_HEAD = do_GET  # noqa: N815

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            yield self.rfile.read(int(self.headers["content-length"]))

    def _reply(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Set-Cookie", "a=1")
        self.send_header("Set-Cookie", "b=2")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _whole(self) -> None:
        self._reply(b"x" * 3_000_000)

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in (b"first", b"second"):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            type(self).go_on.wait(10)
        self.wfile.write(b"0\r\n\r\n")

    def _nothing(self) -> None:
        self.send_response(204)
        self.end_headers()

    def _cut(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"half")
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def upstream() -> Iterator[str]:
    Upstream.go_on = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        Upstream.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def through(make: Make) -> Iterator[httpx2.Client]:
    with upstream() as url, httpx2.Client(base_url=make(url).url, trust_env=False, timeout=20) as client:
        yield client


def test_events_come_one_by_one(through: httpx2.Client) -> None:
    with through.stream("GET", "/events") as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"first"
        assert not Upstream.go_on.is_set()
        Upstream.go_on.set()
        assert b"".join(pieces) == b"second"
        assert answer.headers["content-type"] == "text/event-stream"


def test_answers_of_known_length_keep_it(through: httpx2.Client) -> None:
    answer = through.get("/whole")
    assert (len(answer.content), answer.headers["content-length"]) == (3_000_000, "3000000")
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert through.head("/whole").headers["content-length"] == "3000000"
    assert through.get("/nothing").status_code == 204
    assert through.get("/whole").status_code == 200, "the connection is still in step"


def test_a_large_body_arrives_as_it_was_sent(through: httpx2.Client) -> None:
    data = bytes(range(256)) * 40_000
    expected = f"{len(data)} {hashlib.sha256(data).hexdigest()}"
    assert through.put("/", content=data).text == f"{expected} whole"
    pieces = (data[at : at + 70_000] for at in range(0, len(data), 70_000))
    assert through.put("/", content=pieces).text == f"{expected} chunked"
    assert through.put("/", content=b"").text.startswith("0 ")


def test_half_an_answer_is_no_answer(through: httpx2.Client) -> None:
    with pytest.raises(httpx2.RemoteProtocolError):
        through.get("/cut")
