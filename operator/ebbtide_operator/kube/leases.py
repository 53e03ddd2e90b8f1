"""The records of one namespace's groups, as Leases: compare-and-swap on resourceVersion.

What we wrote is ours; anything else that happens to a Lease is somebody else's doing, and is told by `see`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ebbtide_operator.plan import GroupRecord

from .cache import version_number
from .kinds import LEASES, Api, ApiError
from .leasing import GROUP_LEASE, KIND_LABEL, Spoiled, first_record, lease_name, lease_of, micro_time, record_of
from .leasing import reconciled as _reconciled
from .names import GROUP, Json
from .objects import items, text

Known = Callable[[str], tuple[int, str]]
"""Return the highest epoch, and the owner, that the statuses of a group's servers tell."""


Owners = Callable[[str], list[Json]]
"""Return the references to a group's servers."""


class LeaseMovedError(OSError):
    """The Lease is not the one that we knew: read it again."""


@dataclass(frozen=True)
class _Held:
    record: GroupRecord | Spoiled
    version: str
    owners: frozenset[str]


class LeaseRecords:
    """See drive.base.Records. `save` blocks and may run in a thread; the rest is called by the loop's thread."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        known: Known = lambda _group: (0, ""),
        owners: Owners = lambda _group: [],
    ) -> None:
        self._api, self._namespace, self._known, self._owners = api, namespace, known, owners
        self._held: dict[str, _Held] = {}
        self._saving: dict[str, GroupRecord] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Read every Lease of the namespace. Blocks; raises ApiError."""
        found, _ = self._api.list(LEASES, self._namespace, f"{KIND_LABEL}={GROUP_LEASE}")
        self._held = {text(one, "metadata", "labels", GROUP): _read(one) for one in found}

    def load(self, group: str) -> GroupRecord:
        """Return a group's record: its Lease's, or one above everything that was seen of it."""
        held = self._held.get(group)
        epoch, owner = self._known(group)
        if held is None:
            return first_record(group, epoch, owner)
        if isinstance(held.record, Spoiled):
            return first_record(group, max(epoch, held.record.epoch, 1), "unknown")
        return held.record

    def is_kept(self, record: GroupRecord) -> bool:
        """Say whether a record is in its Lease, and the Lease goes when the group's servers do."""
        held = self._held.get(record.group)
        uids = frozenset(text(owner, "uid") for owner in self._owners(record.group))
        return held is not None and held.record == record and held.owners == uids

    def save(self, record: GroupRecord) -> None:
        """Make a record durable. Raises LeaseMovedError when somebody else wrote, ApiError when nobody answered."""
        with self._lock:
            self._saving[record.group] = record
            try:
                self._held[record.group] = _read(self._write(record))
            except ApiError as error:
                if error.conflict or error.missing:
                    raise LeaseMovedError(f"the Lease of group {record.group} was changed: {error}") from error
                raise
            finally:
                self._saving.pop(record.group, None)

    def _write(self, record: GroupRecord) -> Json:
        held = self._held.get(record.group)
        owners = self._owners(record.group)
        lease = lease_of(record, self._namespace, micro_time(), held.version if held else "", owners)
        if held is None:
            return self._api.create(LEASES, self._namespace, lease)
        return self._api.replace(LEASES, self._namespace, lease_name(record.group), lease)

    def see(self, lease: Mapping[str, object], *, deleted: bool = False) -> str | None:
        """Hear of a Lease. Return the group's name if somebody else changed it, and its record must be read again."""
        group = text(lease, "metadata", "labels", GROUP)
        seen, held = _read(lease), self._held.get(group)
        if held is None:
            return group if group and not deleted and seen.record != self._saving.get(group) else None
        if version_number(seen.version) <= version_number(held.version):
            return None
        if not deleted and seen.record in (held.record, self._saving.get(group)):
            if group not in self._saving:
                self._held[group] = seen  # labels or the like: nothing that we go by
            return None
        return group

    def missing(self, names: Collection[str], version: int) -> list[str]:
        """Return the groups whose Lease we knew and that is not on a list as it was at `version`."""
        return [
            group
            for group, held in self._held.items()
            if lease_name(group) not in names and version_number(held.version) <= version
        ]

    def renounce(self, known: GroupRecord) -> GroupRecord:
        """Read a group's Lease again, and return the record to go on with; it is not saved yet. Raises ApiError."""
        try:
            found: Json | None = self._api.get(LEASES, self._namespace, lease_name(known.group))
        except ApiError as error:
            if not error.missing:
                raise
            found = None
        with self._lock:
            if found is None:
                self._held.pop(known.group, None)
            else:
                self._held[known.group] = _read(found)
        return _reconciled(known, found)


def _read(lease: Mapping[str, object]) -> _Held:
    owners = frozenset(text(owner, "uid") for owner in items(lease, "metadata", "ownerReferences"))
    return _Held(record_of(lease), text(lease, "metadata", "resourceVersion"), owners)
