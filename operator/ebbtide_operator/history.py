"""What was observed of a group, in order, with times: a ring. It is told to people, and never decided by.

Of what falls off the ring, the last of each subject is kept, so that a member which has not moved for long still has a
beginning. Nothing here survives the operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ebbtide_api.verbs import Ownership, Sighting, Timeline

from .plan import GroupRecord, MemberView

LENGTH = 4096
NO_ANSWER, GONE = "NoAnswer", "Gone"
_GROUP = ""
"""The subject of ownership; no member has this name."""

Entry = Ownership | Sighting


def _subject(entry: Entry) -> str:
    return entry.member if isinstance(entry, Sighting) else _GROUP


class History:
    """The ring of one group."""

    def __init__(self, length: int = LENGTH) -> None:
        self._length = length
        self._ring: deque[Entry] = deque()
        self._fallen: dict[str, Entry] = {}
        self._last: dict[str, Entry] = {}

    def observe(self, record: GroupRecord, members: Iterable[MemberView], at: str) -> None:
        """Take in what is seen now; what is as it was is no entry."""
        self._add(_ownership(record, at))
        seen = {member.name: _sighting(member, at) for member in members}
        for sighting in seen.values():
            self._add(sighting)
        for name in [name for name in self._last if name != _GROUP and name not in seen]:
            self._add(Sighting(at=at, member=name, phase=GONE))

    def _add(self, entry: Entry) -> None:
        before = self._last.get(_subject(entry))
        if before is not None and before.model_copy(update={"at": entry.at}) == entry:
            return
        self._last[_subject(entry)] = entry
        self._ring.append(entry)
        if len(self._ring) > self._length:
            self._fall(self._ring.popleft())

    def _fall(self, entry: Entry) -> None:
        subject = _subject(entry)
        self._fallen[subject] = entry
        if isinstance(entry, Sighting) and entry.phase == GONE and self._last.get(subject) == entry:
            # Servers come and go under new names: what is over must not be kept for ever.
            del self._fallen[subject], self._last[subject]

    def timeline(self, group: str, now: str) -> Timeline:
        """Return everything that is remembered, oldest first."""
        entries = [*sorted(self._fallen.values(), key=lambda entry: entry.at), *self._ring]
        return Timeline(
            group=group,
            now=now,
            ownership=[entry for entry in entries if isinstance(entry, Ownership)],
            members=[entry for entry in entries if isinstance(entry, Sighting)],
        )


def _ownership(record: GroupRecord, at: str) -> Ownership:
    lease = record.lease
    if lease is None:
        return Ownership(at=at, owner=record.owner, epoch=record.epoch)
    return Ownership(at=at, owner=record.owner, epoch=record.epoch, stage=lease.stage, holder=lease.holder)


def _sighting(member: MemberView, at: str) -> Sighting:
    if member.state is None:
        return Sighting(at=at, member=member.name, phase=NO_ANSWER)
    return Sighting(at=at, member=member.name, phase=member.state.phase.value, version=member.state.weight_version)
