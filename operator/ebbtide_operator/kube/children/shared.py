"""Whether a trainer can share a volume with every engine of a server, as far as the spec alone says: pure.

What a volume claim allows is for the scheduler; where pods and trainer really are, only they know.
"""

from __future__ import annotations

from collections.abc import Iterable

from ebbtide_api.server import Handoff, InferenceServer

from ..names import HANDOFF_VOLUME
from .member import handoff_of
from .pod import patch

OWN = frozenset({"emptyDir", "ephemeral", "configMap", "secret", "projected", "downwardAPI", "image"})
"""Kinds of volumes that every pod has for itself."""
_NODE = "kubernetes.io/hostname"


def out_of_reach(server: InferenceServer) -> str:
    """Return why no trainer can write into the hand-off volume of all engines; empty if one can."""
    if handoff_of(server) not in (Handoff.SHARED_MEMORY, Handoff.DISK):
        return ""
    volume = next((each for each in _list(patch(server), "spec", "volumes") if each.get("name") == HANDOFF_VOLUME), {})
    if own := sorted(OWN & set(volume)):
        return f"the volume {HANDOFF_VOLUME} is an {own[0]}, which every pod has for itself"
    if handoff_of(server) is Handoff.DISK or server.spec.replicas == 1 or "hostPath" not in volume:
        return ""
    if any(term.get("topologyKey") == _NODE for term in _kept_apart(server)):
        return (
            f"the volume {HANDOFF_VOLUME} is a hostPath, and podAntiAffinity keeps the {server.spec.replicas} engines"
            " on nodes of their own: a trainer can be on one of them only"
        )
    return ""


def _kept_apart(server: InferenceServer) -> Iterable[dict[str, object]]:
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    return _list(patch(server), "spec", "affinity", "podAntiAffinity", rule)


def _list(found: object, *path: str) -> list[dict[str, object]]:
    """Return the objects of a list in a template, which may have any shape."""
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
