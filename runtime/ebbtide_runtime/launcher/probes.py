"""What the kubelet asks a launcher in a pod.

/startup   it began its work
/live      it goes on with it. Not whether the engine serves: who sleeps, or waits for the device, is not restarted
/ready     the member is Running, or sleeps until a request wakes it, and is not about to end
"""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

SILENCE_S = 30.0
"""A launcher that did nothing for so long is stuck: one turn takes milliseconds, and ending an engine ten seconds."""


class Vitals(Protocol):
    """What is asked about. `beat` is when the last turn began, by the monotonic clock."""

    beat: float

    @property
    def serving(self) -> bool:
        """Whether clients may be sent here."""


def answer(path: str, vitals: Vitals, now: float) -> int:
    """Return the HTTP status for a path."""
    alive = now - vitals.beat < SILENCE_S
    known = {"/startup": alive, "/live": alive, "/ready": alive and vitals.serving}
    if path not in known:
        return 404
    return 200 if known[path] else 503


def serve(port: int, vitals: Vitals, host: str = "") -> ThreadingHTTPServer:
    """Answer from now on, in threads of its own. Raises OSError when the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5  # a connection that asks nothing keeps no thread

        def do_GET(self) -> None:
            self.send_response(answer(self.path, vitals, time.monotonic()))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing: this is asked every second."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server
