"""A group's record as a coordination.k8s.io Lease, and what becomes of a record whose Lease was lost or changed: pure.

    spec.holderIdentity     who holds the lease, for people and for other tools
    spec.leaseTransitions   the epoch
    annotation record       the whole intent, with a checksum of itself

The annotation is the truth; the spec must agree with it. A Lease that does not agree was edited by hand: its group's
owner is unknown, the epoch moves above everything seen, so that whoever held it is refused, and nobody gets the devices
before their memory was measured free.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ebbtide_api.verbs import LeaseStage
from pydantic import ValidationError

from ebbtide_operator.drive.store import decode, encode, lost_record
from ebbtide_operator.plan import ENGINE, GroupRecord

from .kinds import LEASES
from .names import GROUP, MANAGER, Json
from .objects import number, text

RECORD = "ebbtide.dev/record"
KIND_LABEL = "ebbtide.dev/lease"
GROUP_LEASE, LEADER_LEASE = "group", "leader"
_LONGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Spoiled:
    """A Lease that says nothing we may rely on, but how high its epoch is."""

    group: str
    epoch: int
    why: str


def lease_name(group: str) -> str:
    """Return the name of a group's Lease. No group's can be the operator's own, which has no such prefix."""
    return f"ebbtide-group-{group}"


def lease_of(record: GroupRecord, namespace: str, now: str, version: str = "", owners: Sequence[Json] = ()) -> Json:
    """Return the Lease that holds a record. `version` is what it replaces; empty makes a new one.

    Its owners are the group's servers: when the last one is gone, so is the Lease.
    """
    metadata: Json = {
        "name": lease_name(record.group),
        "namespace": namespace,
        "labels": {"app.kubernetes.io/managed-by": MANAGER, KIND_LABEL: GROUP_LEASE, GROUP: record.group},
        "annotations": {RECORD: encode(record).decode()},
        **({"resourceVersion": version} if version else {}),
        **({"ownerReferences": list(owners)} if owners else {}),
    }
    held = record.lease
    spec: Json = {"leaseTransitions": min(record.epoch, _LONGEST)}
    if held:
        seconds = max(1, math.ceil(held.ttl_seconds))
        spec |= {"holderIdentity": held.holder, "leaseDurationSeconds": seconds, "renewTime": now}
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}


def record_of(lease: Mapping[str, object]) -> GroupRecord | Spoiled:
    """Return the record that a Lease holds, or why it holds none."""
    group, epoch = text(lease, "metadata", "labels", GROUP), number(lease, "spec", "leaseTransitions")
    try:
        record = decode(text(lease, "metadata", "annotations", RECORD).encode())
    except (ValueError, ValidationError) as error:
        return Spoiled(group, epoch, f"its record cannot be used: {error}")
    said = (text(lease, "spec", "holderIdentity"), epoch, text(lease, "metadata", "name"))
    meant = (record.lease.holder if record.lease else "", min(record.epoch, _LONGEST), lease_name(record.group))
    if said != meant:
        return Spoiled(group, max(epoch, record.epoch), f"it says {said}, its record {meant}")
    return record


def first_record(group: str, epoch: int, owner: str) -> GroupRecord:
    """Return the record of a group without a Lease, of which a status says how high its epoch was and who owned it."""
    if epoch == 0:
        return GroupRecord(group=group)
    fresh = GroupRecord(group=group) if owner in ("", ENGINE) else lost_record(group)
    return fresh.model_copy(update={"epoch": epoch + 1})


def recovered(record: GroupRecord, epoch: int) -> GroupRecord:
    """Return the record of a group whose Lease was lost or spoiled while we knew what it said.

    Nobody's epoch holds any more. Who has the devices keeps them until they are measured free.
    """
    raised = record.model_copy(update={"epoch": max(record.epoch, epoch) + 1})
    if record.lease is None:
        return raised
    if record.owner == ENGINE:
        return raised.retire(record.lease, LeaseStage.OWNER_LOST)
    return raised.with_lease(stage=LeaseStage.OWNER_LOST)


def reconciled(known: GroupRecord, found: Mapping[str, object] | None) -> GroupRecord:
    """Return what to go on with when a group's Lease is not what we last wrote; None where it is no more.

    A record of an operator that took over from us is taken as it is. Anything else makes the owner a lost one.
    """
    if found is None:
        return recovered(known, known.epoch)
    record = record_of(found)
    if isinstance(record, Spoiled):
        return recovered(known, record.epoch)
    if record.epoch < known.epoch:
        return recovered(known, known.epoch)
    return record


def micro_time() -> str:
    """Return the time as Leases carry it."""
    seconds, fraction = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction // 1000:06d}Z"
