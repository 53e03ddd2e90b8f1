"""Which pods may hold the memory of a lost lease. What a pod uses of a device cannot be measured from outside of it.

    the pod that asked for the lease     by its UID, wherever it is and whatever its labels say
    every pod labelled for the group     more of the same trainer, or of one whose token is bound to no pod

A pod holds what it held until it has ended: one that is being deleted still runs. Whether one of them only waits for
its turn is for the plan to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ebbtide_operator.plan import GroupRecord, PodRef, TrainerView

from .kinds import PODS, Api, ApiError
from .names import BORROWS
from .objects import text

_ENDED = ("Succeeded", "Failed")


def holders_of(api: Api, namespace: str, record: GroupRecord) -> TrainerView:
    """Look at the API server for who may hold a group's lease. Blocks; raises ApiError."""
    own = record.lease.pod if record.lease else None
    labelled, _ = api.list(PODS, namespace, f"{BORROWS}={record.group}")
    found, note = _running(labelled), ""
    if own is not None and own.uid not in {pod.uid for pod in found}:
        try:
            found = [*_find(api, own), *found]
        except ApiError as error:
            if not error.refused:
                raise
            found, note = [own, *found], f"The operator may not look for it: {error}"
    return TrainerView(pid=0, alive=bool(found), used_mib=None if found else 0.0, pods=tuple(found), note=note)


def _find(api: Api, pod: PodRef) -> list[PodRef]:
    # A list, since the operator has the right to list pods and needs no other.
    found, _ = api.list(PODS, pod.namespace, fields=f"metadata.name={pod.name}")
    return [one for one in _running(found) if one.uid == pod.uid]


def _running(found: Iterable[Mapping[str, object]]) -> list[PodRef]:
    return [_ref(raw) for raw in found if text(raw, "status", "phase") not in _ENDED]


def _ref(raw: Mapping[str, object]) -> PodRef:
    return PodRef(
        namespace=text(raw, "metadata", "namespace"),
        name=text(raw, "metadata", "name"),
        uid=text(raw, "metadata", "uid"),
    )
