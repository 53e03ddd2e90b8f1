"""The StatefulSet of a server, and how much of it may be disrupted.

OnDelete: we replace pods, one at a time and never while the group is lent. Parallel: members wait for their device by
themselves, so none waits for another's readiness, which would deadlock a server that sleeps.
"""

from __future__ import annotations

from ebbtide_api.server import InferenceServer

from ..names import Json, members_service, selector
from .metadata import metadata
from .pod import template
from .site import Site


def stateful_set(server: InferenceServer, site: Site, replicas: int) -> Json:
    """Return the StatefulSet."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(server, server.name),
        "spec": {
            "replicas": replicas,
            "serviceName": members_service(server.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector(server.name)},
            "template": template(server, site),
        },
    }


def disruption_budget(server: InferenceServer) -> Json:
    """Return the PodDisruptionBudget. A sleeper is not ready, and must not block the drain of its node."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(server, server.name),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(server.name)},
        },
    }
