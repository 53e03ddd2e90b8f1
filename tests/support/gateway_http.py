"""Serves a fake over HTTP, and can hang up in the middle."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


Respond = Callable[[int, Any, dict[str, str]], None]
Handler = Callable[[Seen, Respond, Callable[[], None]], None]


class Served(Protocol):
    """What is served: it answers by `reply`, or hangs up by `drop`."""

    def handle(self, seen: Seen, reply: Respond, drop: Callable[[], None]) -> None: ...


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: two of them would wait for a delayed acknowledgement
    handle_seen: Handler

    def _serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        type(self).handle_seen(Seen(self.command, self.path, headers, body), self._reply, self._drop)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _reply(self, status: int, body: Any, headers: dict[str, str]) -> None:
        text = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(text))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(text)

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: Any) -> None:
        """Tests need no access log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is what tests do."""


@contextmanager
def serving(gateway: Served, port: int = 0) -> Iterator[str]:
    """Serve a fake gateway on this machine, and yield its URL."""
    handler = type("Handler", (_Handler,), {"handle_seen": staticmethod(gateway.handle)})
    server = _Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
