"""Which outdated member is replaced next: one at a time, and never one that serves while another one does not. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ebbtide_operator.plan import MemberView


def next_to_replace(members: Iterable[MemberView], replicas: int, ready: Collection[str] = ()) -> str | None:
    """Return the member to replace now, or None: nobody is outdated, or somebody is on its way.

    Members that do not work are replaced first: a new spec may be what cures them. Then the highest ordinal, as a
    StatefulSet would. `ready` are those that the kubelet sends clients to: they serve, though their agent be silent.
    """
    known = {member.ordinal: member for member in members}
    outdated = [member for member in known.values() if member.outdated]
    broken = [member for member in outdated if not _settled(member, ready)]
    if broken:
        return max(broken, key=lambda member: member.ordinal).name
    complete = all(ordinal in known and _settled(known[ordinal], ready) for ordinal in range(replicas))
    if not outdated or not complete:
        return None
    return max(outdated, key=lambda member: member.ordinal).name


def _settled(member: MemberView, ready: Collection[str]) -> bool:
    if member.state is None:
        return member.name in ready
    return not member.busy and (member.serving or member.released)
