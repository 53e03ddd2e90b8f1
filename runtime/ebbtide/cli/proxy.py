"""`ebbtide proxy`: run the proxy until it is told to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode

from ..client.borrowing import Terms
from ..proxy.holder import Holder
from ..proxy.server import HOST, Proxy
from .console import out, say
from .status import connection_of


def proxy(terms: Terms, port: int, home: Path | None) -> int:
    """Serve until Ctrl-C or SIGTERM; then give the lease back. Returns the exit code."""
    connection = connection_of(home)
    with _told_to_end() as ended:
        holder = Holder(connection, terms)
        made = _listen(Proxy, connection, holder, port)
        try:
            out.print(f"{made.url} is group {terms.group} at {connection.url}", soft_wrap=True, highlight=False)
            say("[bold]Ctrl-C[/] gives the lease back and ends it.")
            ended.wait()
        finally:
            say("Giving back." if holder.held else "Nothing is held.")
            made.close()
    return 0


def _listen(kind: type[Proxy], *how: object) -> Proxy:
    try:
        return kind(*how)  # type: ignore[arg-type]
    except OSError as problem:
        message = f"the proxy cannot listen on {HOST}:{how[-1]}: {problem.strerror}."
        action = "Choose another --port; 0 takes a free one."
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action=action, field="port") from problem


@contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """Turn Ctrl-C and SIGTERM into an event. A second one does not cut the giving back short: it takes seconds."""
    ended = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in numbers}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
