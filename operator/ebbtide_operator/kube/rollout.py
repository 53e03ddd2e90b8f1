"""Which outdated member is replaced next: one at a time, and never one that serves while another one does not. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ebbtide_api.state import Phase

from ebbtide_operator.plan import MemberView


def next_to_replace(
    members: Iterable[MemberView], replicas: int, awake: int, ready: Collection[str] = ()
) -> str | None:
    """Return the member to replace now, or None: nobody is outdated, or somebody is on its way.

    The first `awake` of the `replicas` shall serve. Members that do not work are replaced first: a new spec may be what
    cures them. Then the highest ordinal, as a StatefulSet would. `ready` are those that the kubelet sends clients to:
    they serve, though their agent be silent.
    """
    known = {member.ordinal: member for member in members}
    outdated = [member for member in known.values() if member.outdated]
    broken = [member for member in outdated if not _settled(member, awake, ready)]
    if broken:
        return max(broken, key=lambda member: member.ordinal).name
    if not outdated:
        return None
    chosen = max(outdated, key=lambda member: member.ordinal)
    others = (known.get(ordinal) for ordinal in range(replicas) if ordinal != chosen.ordinal)
    if all(other is not None and _settled(other, awake, ready) and _reached(other, ready) for other in others):
        return chosen.name
    return None


def _reached(member: MemberView, ready: Collection[str]) -> bool:
    # The kubelet looks every few seconds: until it has seen that a member serves, no client is sent to it.
    return member.name in ready or not member.serving


def _settled(member: MemberView, awake: int, ready: Collection[str]) -> bool:
    if member.state is None:
        return member.name in ready
    if member.state.phase is Phase.PENDING_DEVICE and member.ordinal < awake:
        return False  # nobody hears a request for it, as one would for a sleeper: it must start first
    return not member.busy and (member.serving or member.released)
