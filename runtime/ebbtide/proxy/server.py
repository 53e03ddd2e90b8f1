"""The proxy's HTTP: what comes in goes to the gateway with a token and, where it moves the group, with our epoch.

It listens on 127.0.0.1 alone: whoever reaches it is let in with our token. Bodies are streamed both ways.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import httpx2
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import EPOCH, IDEMPOTENCY_KEY

from ..client.connection import Connection
from ..client.gateway import new_key
from ..client.runners import options
from .asked import Asked, invalid
from .desk import Desk
from .engines import Engines, is_for_engines
from .holder import Holder
from .mover import Mover
from .shims import shim_of, takes_body
from .updates import Updates

HOST = "127.0.0.1"
BLOCK = 1 << 20
LARGEST_BODY = 1 << 20
HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host", "expect"}
)
_GROUP = re.compile(r"^(?:/namespaces/[^/]+)?/v1/groups/(?P<name>[^/:]+)(?P<rest>[:/].*)$")
_SERVER = re.compile(r"^(?:/namespaces/[^/]+)?/v1/servers/(?P<name>[^/:]+):")
_NO_BODY = frozenset({204, 304})


class Forwarder:
    """Knows what a request lacks, and passes it on."""

    def __init__(self, connection: Connection, holder: Holder) -> None:
        self.holder, self._connection = holder, connection
        # Reads have no deadline: long polls and event streams take as long as they take.
        self.client = httpx2.Client(**options(connection), timeout=httpx2.Timeout(None, connect=5))

    def moves_us(self, method: str, path: str) -> bool:
        """Say whether a call needs the lease: one that changes the group, one of its servers, or its weights."""
        if method in ("GET", "HEAD"):
            return False
        if group := _GROUP.match(path):
            return group["name"] == self.holder.terms.group and not group["rest"].startswith("/lease")
        server = _SERVER.match(path)
        return server is not None and server["name"] in self._servers()

    def _servers(self) -> list[str]:
        return self.holder.run(self.holder.gateway.group(self.holder.terms.group)).servers

    def headers(self, method: str, path: str, given: dict[str, str]) -> dict[str, str]:
        """Return the headers to send. Who brings an epoch holds a lease of their own. Raises EbbtideError."""
        kept = {name: value for name, value in given.items() if name not in HOP and name != "authorization"}
        if EPOCH.lower() in kept or not self.moves_us(method, path):
            return kept
        kept[EPOCH.lower()] = str(self.holder.epoch())
        if method == "POST":
            kept.setdefault(IDEMPOTENCY_KEY.lower(), new_key())
        return kept

    def send(self, method: str, target: str, headers: dict[str, str], body: Iterator[bytes] | None) -> httpx2.Response:
        """Send a request, and return its answer unread. Raises UNREACHABLE."""
        request = self.client.build_request(method, target, headers=headers, content=body)
        try:
            return self.client.send(request, stream=True)
        except httpx2.HTTPError as problem:
            message = f"the gateway at {self._connection.url} did not answer ({type(problem).__name__}: {problem})."
            action = "Check that the gateway runs, and that its URL is right."
            raise EbbtideError(ErrorCode.UNREACHABLE, message, next_action=action) from problem


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    forwarder: ClassVar[Forwarder]
    desk: ClassVar[Desk]
    _started = False

    def _serve(self) -> None:
        self._started = False
        url = urlsplit(self.path)
        try:
            self._require_own()
            if shim := shim_of(self.command, url.path):
                answer = shim(self.desk, Asked(url.path, parse_qs(url.query), self._object(url.path)))
                self._json(answer.status, answer.body)
            else:
                self._forward(url.path)
        except EbbtideError as error:
            self._refuse(error)
        except httpx2.HTTPError as problem:
            message = f"the gateway broke its answer off ({type(problem).__name__})."
            self._refuse(EbbtideError(ErrorCode.UNREACHABLE, message))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve  # noqa: N815

    def _require_own(self) -> None:
        """Refuse what would carry our token elsewhere, and what a page in somebody's browser sends."""
        host = (self.headers.get("host") or "").rpartition(":")[0] or self.headers.get("host") or HOST
        if not re.match(r"^/(?!/)", self.path) or host not in (HOST, "localhost") or "origin" in self.headers:
            message = f"this proxy takes requests for http://{HOST} from programs of this machine alone."
            raise EbbtideError(ErrorCode.FORBIDDEN, message, next_action="Call it by that address.")

    def _forward(self, path: str) -> None:
        given = {name.lower(): value for name, value in self.headers.items()}
        body = self._body() if "content-length" in given or "transfer-encoding" in given else None
        if is_for_engines(path):
            kept = {name: value for name, value in given.items() if name not in HOP}
            answer = self.desk.engines.send(self.command, self.path, kept, body)
        else:
            headers = self.forwarder.headers(self.command, path, given)
            answer = self.forwarder.send(self.command, self.path, headers, body)
        try:
            self._pass(answer)
        finally:
            answer.close()

    # What comes in

    def _body(self) -> Iterator[bytes]:
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            yield from self._chunks()
            return
        left = int(self.headers.get("content-length") or 0)
        while left > 0 and (data := self.rfile.read(min(left, BLOCK))):
            left -= len(data)
            yield data

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def _object(self, path: str) -> Mapping[str, Any]:
        """Return a shim's body, which is a JSON object or nothing. Raises INVALID_REQUEST."""
        keeps, data = takes_body(path), b""
        for part in self._body():
            data += part if keeps else b""
            if len(data) > LARGEST_BODY:
                raise invalid("body", f"more than {LARGEST_BODY} bytes")
        try:
            body = json.loads(data or b"null") or {}
        except ValueError as problem:
            raise invalid("body", f"it is not JSON ({problem})") from None
        if not isinstance(body, dict):
            raise invalid("body", "it is no JSON object")
        return body

    # What goes out

    def _pass(self, answer: httpx2.Response) -> None:
        self._started = True
        self.send_response_only(answer.status_code)
        for name, value in answer.headers.multi_items():
            if name.lower() not in HOP:
                self.send_header(name, value)
        bare = self.command == "HEAD" or answer.status_code in _NO_BODY
        chunked = not bare and "content-length" not in answer.headers
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for data in () if bare else answer.iter_raw():
            # Each at once: whoever reads an event stream waits for every event.
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n" if chunked else b"")

    def _json(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response_only(status)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, error: EbbtideError) -> None:
        # What was not read of the request would be taken for the next one; half an answer cannot become an error.
        self.close_connection = True
        if not self._started:
            self._json(error.status, error.body().wire())

    def log_message(self, *args: Any) -> None:
        """Say nothing of requests."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news."""


class Proxy:
    """A proxy that serves from the beginning to `close`. Raises OSError when the port is taken."""

    def __init__(self, connection: Connection, holder: Holder, port: int) -> None:
        self.holder = holder
        self._forwarder, mover = Forwarder(connection, holder), Mover(holder)
        self._desk = Desk(mover, Updates(mover), Engines(connection, holder))
        handler = type("Handler", (_Handler,), {"forwarder": self._forwarder, "desk": self._desk})
        self._server = _Server((HOST, port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://{HOST}:{self._server.server_address[1]}"

    def close(self) -> None:
        """Take no more requests, and give the lease back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.holder.close()
        self._desk.engines.close()
        self._forwarder.client.close()
