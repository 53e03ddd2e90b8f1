"""What plans say of servers, with the times that plans do not know: since when each of it was so."""

from __future__ import annotations

from ebbtide_api.verbs import MemberAim, Obstacle, ServerWhy

from .plan import Explanation
from .plan import Obstacle as Found

BY_ITSELF = "Nothing: it goes on by itself."


def told(before: ServerWhy | None, server: str, now_found: Explanation, stamp: str) -> ServerWhy:
    """Return why a server is as it is. What was so before keeps its time."""
    same = before is not None and (before.settled, before.wants) == (now_found.settled, now_found.wants)
    return ServerWhy(
        name=server,
        group="",
        settled=now_found.settled,
        wants=now_found.wants,
        since=before.since if same and before else stamp,
        obstacles=[_obstacle(before, found, stamp) for found in now_found.obstacles],
        members=[
            MemberAim(name=aim.member, wants=aim.wants, next=aim.next, next_action=aim.advice) for aim in now_found.aims
        ],
    )


def _obstacle(before: ServerWhy | None, found: Found, stamp: str) -> Obstacle:
    known = before.obstacles if before else []
    same = next((one for one in known if (one.subject, one.reason) == (found.subject, found.reason)), None)
    return Obstacle(
        subject=found.subject,
        reason=found.reason,
        message=found.sentence,
        next_action=found.advice or BY_ITSELF,
        since=same.since if same else stamp,
    )
