"""Stands in for the operator: the ports, paths and certificate that the chart expects, and nothing behind them."""

import os
import signal
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Answer(BaseHTTPRequestHandler):
    """200 for the paths of the probes and of `helm test`."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path in {"/health", "/ready", "/metrics"} else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve 8443 with the mounted certificate, and 8080."""
    # The first process of a container ignores what it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    place = Path(os.environ["EBBTIDE_TLS_DIR"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "tls.crt", place / "tls.key")
    gateway = ThreadingHTTPServer(("", 8443), Answer)
    gateway.socket = context.wrap_socket(gateway.socket, server_side=True)
    threading.Thread(target=gateway.serve_forever, daemon=True).start()
    ThreadingHTTPServer(("", 8080), Answer).serve_forever()


if __name__ == "__main__":
    main()
