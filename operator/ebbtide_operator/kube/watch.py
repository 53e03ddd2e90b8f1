"""kopf, as an informer and nothing more: the only importer of kopf.

`on.event` alone: kopf keeps no state on objects, adds no finalizer, and retries nothing. What it tells goes into caches
and queues at once; it never waits for us, so a slow reconcile delays no event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import kopf

from .kinds import LEASES, PODS, SETS, Kind
from .names import MANAGER, SERVER, Json

SERVER_TIMEOUT = 300
CLIENT_TIMEOUT = 310
CONNECT_TIMEOUT = 10
INACTIVITY_TIMEOUT = 70.0
CHUNK = 500

SELECTORS: Mapping[Kind, str] = {
    PODS: SERVER,
    SETS: SERVER,
    LEASES: f"app.kubernetes.io/managed-by={MANAGER},ebbtide.dev/lease",
}
"""Only what is ours is sent to us: the largest lever on memory."""

Seen = Callable[[Json, bool], None]
"""Called with an object, and whether it is deleted."""


@dataclass(frozen=True)
class Watches:
    """What is watched where. No namespaces: everywhere."""

    seen: Mapping[Kind, Seen]
    namespaces: Sequence[str] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def settings(self) -> kopf.OperatorSettings:
        """Return kopf's settings."""
        made = kopf.OperatorSettings()
        made.posting.enabled = False
        # For kopf's own loop: by then ours has ended, or Kubernetes ends it.
        made.process.ultimate_exiting_timeout = None
        made.peering.standalone = True
        made.scanning.disabled = True
        made.watching.server_timeout = SERVER_TIMEOUT
        made.watching.client_timeout = CLIENT_TIMEOUT
        made.watching.connect_timeout = CONNECT_TIMEOUT
        # Bookmarks come every minute: a stream that is silent for longer is dead, whatever its socket says.
        made.watching.inactivity_timeout = INACTIVITY_TIMEOUT
        made.watching.chunk_size = CHUNK
        for kind, selector in SELECTORS.items():
            made.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
        return made

    def registry(self) -> kopf.OperatorRegistry:
        """Return kopf's registry: one handler a kind."""
        made = kopf.OperatorRegistry()
        # Credentials as the official client finds them, so that watches and calls are the same user.
        kopf.on.login(id="client", registry=made)(kopf.login_via_client)
        for kind, seen in self.seen.items():
            self._register(made, kind, seen)
        return made

    def _register(self, registry: kopf.OperatorRegistry, kind: Kind, seen: Seen) -> None:
        async def handle(event: Mapping[str, Any], **_: Any) -> None:
            raw, gone = event["object"], event["type"] == "DELETED"
            self.counts[kind.plural] = self.counts.get(kind.plural, 0) + 1
            seen(slim(raw), gone)

        kopf.on.event(kind.group, kind.version, kind.plural, id=kind.plural, registry=registry)(handle)

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until told to stop, by a signal too: kopf takes those for itself. Raises what ends kopf otherwise.

        kopf's own end is for a loop that is kopf's alone: it takes every younger task for a hung one of its own, waits
        5 s for it, and cancels it. So we end kopf's tasks, and no others.
        """
        where: dict[str, Any] = {"namespaces": list(self.namespaces)} if self.namespaces else {"clusterwide": True}
        told = asyncio.create_task(stop.wait())
        tasks = await kopf.spawn_tasks(registry=self.registry(), settings=self.settings(), standalone=True, **where)
        try:
            done, _ = await asyncio.wait([told, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (told, *tasks):
                task.cancel()
            await asyncio.gather(told, *tasks, return_exceptions=True)
        for task in done:
            task.result()


def slim(raw: Mapping[str, Any]) -> Json:
    """Return an object without what nobody of us reads and everybody would have to keep."""
    metadata = {key: value for key, value in raw.get("metadata", {}).items() if key != "managedFields"}
    return {**raw, "metadata": metadata}
