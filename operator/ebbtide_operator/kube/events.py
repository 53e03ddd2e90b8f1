"""Events of a server: what its conditions became, for `kubectl describe`. One object for each reason, not a flood.

transitions(before, after)   pure: which conditions are news
Events.tell(server, ...)     applies them; the same reason again raises the count of the same Event
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from ebbtide_api.conditions import Condition, ConditionStatus, ConditionType
from ebbtide_api.resource import API_VERSION
from ebbtide_api.server import InferenceServer
from ebbtide_api.server_status import ServerStatus

from .apply import MANAGER
from .kinds import EVENTS, Api, ApiError
from .names import Json

log = logging.getLogger("ebbtide.kube")
COMPONENT = "ebbtide-operator"
MESSAGE_LIMIT = 1024
"""What the API server takes."""
KEPT = 4096


def transitions(before: ServerStatus | None, after: ServerStatus) -> list[Condition]:
    """Return the conditions that are news: a server that stalls, that is ready, or that is ready no more."""
    known = {condition.type: _said(condition) for condition in before.conditions} if before else {}
    return [one for one in after.conditions if _tells(one) and known.get(one.type) != _said(one)]


def _said(condition: Condition) -> tuple[ConditionStatus, str]:
    return condition.status, condition.reason


def _tells(condition: Condition) -> bool:
    # While it stalls, `Ready: False` says the same once more; while it moves, it is the ordinary way of things.
    holds = condition.status is ConditionStatus.TRUE
    return holds and condition.type in (ConditionType.STALLED, ConditionType.READY)


@dataclass
class _Seen:
    first: str
    count: int


class Events:
    """The Events of one namespace's servers. What was told is remembered to count it, nothing more."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._seen: dict[str, _Seen] = {}

    async def tell(self, server: InferenceServer, news: Iterable[Condition], now: str) -> None:
        """Apply an Event for each condition. One that cannot be written is not worth failing for."""
        for condition in news:
            body = self._event(server, condition, now)
            try:
                await asyncio.to_thread(self._api.apply, EVENTS, body, MANAGER)
            except ApiError as error:
                log.warning("no Event for %s/%s: %s", server.metadata.namespace, server.name, error)

    def _event(self, server: InferenceServer, condition: Condition, now: str) -> Json:
        name = event_name(server, condition)
        seen = self._seen.setdefault(name, _Seen(now, 0))
        seen.count += 1
        while len(self._seen) > KEPT:
            del self._seen[next(iter(self._seen))]
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": server.metadata.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": server.kind,
                "namespace": server.metadata.namespace,
                "name": server.name,
                "uid": server.metadata.uid,
            },
            "type": "Warning" if condition.type == ConditionType.STALLED else "Normal",
            "reason": condition.reason,
            "message": condition.message[:MESSAGE_LIMIT],
            "firstTimestamp": seen.first,
            "lastTimestamp": now,
            "count": seen.count,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
        }


def event_name(server: InferenceServer, condition: Condition) -> str:
    """Return the name of the one Event that tells this of this very server."""
    told = f"{server.metadata.uid}/{condition.type}/{condition.reason}"
    return f"{server.name}.{hashlib.sha256(told.encode()).hexdigest()[:16]}"
