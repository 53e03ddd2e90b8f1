"""Whether this process works, and its numbers: /health and /metrics, over HTTP, open."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from .hub import Hub
from .lock import Leadership


@dataclass(frozen=True)
class Health:
    """What is told. `silence` is how long (s) our own renewals may go unheard; `asked` are calls by verb."""

    hub: Hub
    leader: Leadership
    events: Mapping[str, int]
    silence: float
    writes: Callable[[], int]
    asked: Mapping[tuple[str, str], int]

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[Route("/health", self._health), Route("/ready", self._ready), Route("/metrics", self._metrics)]
        )

    def is_deaf(self) -> bool:
        """Say whether the watch is dead: then nothing that happens would be acted on."""
        return time.monotonic() - self.leader.echo > self.silence

    async def _health(self, _request: Request) -> Response:
        if self.is_deaf():
            why = f"no renewal of our own Lease was heard through the watch for {self.silence:g} s"
            return JSONResponse({"status": "deaf", "message": why}, status_code=503)
        return JSONResponse({"status": "ok", "namespaces": len(self.hub.spaces)})

    async def _ready(self, _request: Request) -> Response:
        """One that waits for its turn is ready too: a rollout ends the other one only when this one is."""
        return JSONResponse({"status": "leading" if self.leader.epoch else "waiting"})

    async def _metrics(self, _request: Request) -> Response:
        return PlainTextResponse(self.exposition(), media_type="text/plain; version=0.0.4")

    def exposition(self) -> str:
        """Return the numbers as Prometheus reads them."""
        servers = sum(len(space.asked) for space in self.hub.spaces.values())
        lines = [
            *_family("ebbtide_servers", "gauge", "InferenceServers that are watched", servers),
            *_family("ebbtide_leader_epoch", "gauge", "The epoch of the operator's own Lease", self.leader.epoch),
            *_family(
                "ebbtide_watch_echo_seconds",
                "gauge",
                "Seconds since our own renewal was last heard through the watch",
                round(time.monotonic() - self.leader.echo, 3),
            ),
            *_family("ebbtide_api_writes_total", "counter", "Calls that change something", self.writes()),
            "# HELP ebbtide_watch_events_total Events that the watch told, by kind",
            "# TYPE ebbtide_watch_events_total counter",
            *(f'ebbtide_watch_events_total{{kind="{kind}"}} {count}' for kind, count in sorted(self.events.items())),
            "# HELP ebbtide_api_requests_total Calls of the API server, by verb and resource",
            "# TYPE ebbtide_api_requests_total counter",
            *(
                f'ebbtide_api_requests_total{{verb="{verb}",resource="{resource}"}} {count}'
                for (verb, resource), count in sorted(dict(self.asked).items())
            ),
        ]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, value: float) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
