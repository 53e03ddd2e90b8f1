"""`ebbtide status`: everything as measured, once or again and again."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ebbtide_api.errors import EbbtideError
from ebbtide_api.verbs import GroupState, ServerState, ServerWhy, Timeline
from rich.live import Live
from rich.text import Text

from ..client.connection import Connection, find, from_home
from ..client.gateway import Gateway
from ..client.runners import Runner
from .console import err, out
from .tables import overview


def status(home: Path | None, *, watch: bool, as_json: bool) -> int:
    """Show the state. Watching outlives a gateway that restarts."""
    gateway = Source(connection_of(home))
    try:
        if as_json:
            out.print_json(json.dumps(gateway.wire()))
        elif watch:
            _watch(gateway)
        else:
            out.print(overview(*gateway.read()))
    finally:
        gateway.close()
    return 0


def connection_of(home: Path | None) -> Connection:
    """Return the gateway of a named home, or the one that the environment names."""
    return from_home(home.absolute()) if home else find()


class Source:
    """Reads groups and servers."""

    def __init__(self, connection: Connection) -> None:
        self._gateway = Gateway(connection.url)
        self._runner = Runner(connection)

    def read(self) -> tuple[list[GroupState], list[ServerState]]:
        """Return groups and servers, measured now."""
        return self._runner.run(self._gateway.groups()), self.servers()

    def servers(self) -> list[ServerState]:
        """Return servers, measured now."""
        return self._runner.run(self._gateway.servers())

    def why(self, server: str) -> ServerWhy:
        """Return why a server is as it is."""
        return self._runner.run(self._gateway.why(server))

    def timeline(self, group: str) -> Timeline:
        """Return what was observed of a group over time."""
        return self._runner.run(self._gateway.timeline(group))

    def wire(self) -> dict[str, object]:
        """Return both as JSON."""
        groups, servers = self.read()
        return {"groups": [group.wire() for group in groups], "servers": [server.wire() for server in servers]}

    def close(self) -> None:
        """Close the connection."""
        self._runner.close()


def _watch(source: Source) -> None:
    try:
        with Live(console=out, auto_refresh=False) as live:
            while True:
                try:
                    live.update(overview(*source.read()), refresh=True)
                except EbbtideError as error:
                    live.update(Text(str(error), style="red"), refresh=True)
                time.sleep(1)
    except KeyboardInterrupt:
        # The way to end it, not a failure.
        err.print()
