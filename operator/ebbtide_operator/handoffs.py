"""How new weights come into a group: in one way for all of its servers, or not at all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.server import Handoff

Ways = Mapping[str, Handoff]
"""The hand-off of every server of a group, by the server's name."""


def differ(ways: Ways) -> str:
    """Say which two servers take weights in different ways; empty if all agree. None agrees with everybody."""
    taking = sorted((way.value, name) for name, way in ways.items() if way is not Handoff.NONE)
    for (first, one), (second, other) in pairwise(taking):
        if first != second:
            return f"{one} takes new weights by {first} and {other} by {second}"
    return ""


def require_one(group: str, ways: Ways) -> None:
    """Refuse new weights that some member of a group would not get. Raises TRANSPORT_IMPOSSIBLE.

    All members serve a version or none does, so one server that takes no weights closes the group for them.
    """
    field = "spec.weights.handoff"
    if closed := sorted(name for name, way in ways.items() if way is Handoff.NONE):
        message = f"group {group} takes no new weights: {field} is None for {', '.join(closed)}"
        action = f"Give the memory back without a version, or set {field} to Stream or SharedMemory."
        raise EbbtideError(ErrorCode.TRANSPORT_IMPOSSIBLE, message, next_action=action, field=field, servers=closed)
    if why := differ(ways):
        message = f"group {group} takes no new weights: {why}"
        action = f"Set {field} to the same for all servers of the group."
        raise EbbtideError(ErrorCode.TRANSPORT_IMPOSSIBLE, message, next_action=action, field=field)


def is_open(ways: Ways) -> bool:
    """Say whether a group takes new weights."""
    return Handoff.NONE not in ways.values() and not differ(ways)
