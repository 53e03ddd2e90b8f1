"""Which outdated member is replaced next: one at a time, and never one that serves while another one does not. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ebbtide_operator.plan import MemberView


def next_to_replace(members: Iterable[MemberView], replicas: int) -> str | None:
    """Return the member to replace now, or None: nobody is outdated, or somebody is on its way.

    Members that do not work are replaced first: a new spec may be what cures them. Then the highest ordinal, as a
    StatefulSet would.
    """
    known = {member.ordinal: member for member in members}
    outdated = [member for member in known.values() if member.outdated]
    broken = [member for member in outdated if not _settled(member)]
    if broken:
        return max(broken, key=lambda member: member.ordinal).name
    complete = all(ordinal in known and _settled(known[ordinal]) for ordinal in range(replicas))
    if not outdated or not complete:
        return None
    return max(outdated, key=lambda member: member.ordinal).name


def _settled(member: MemberView) -> bool:
    return not member.busy and (member.serving or member.released)
