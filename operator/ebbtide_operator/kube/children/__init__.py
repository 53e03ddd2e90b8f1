"""From an InferenceServer to the objects that run it: pure, deterministic, and no names that are made up on the way."""

from __future__ import annotations

import hashlib
import json

from ebbtide_api.server import InferenceServer

from ..names import DIGEST, Json
from .member import config_map
from .network import client_service, headless_service, network_policy
from .problems import Problem, first_problem, pods_refused
from .site import Site
from .workload import disruption_budget, stateful_set

__all__ = ["Problem", "Site", "children", "digest", "first_problem", "pods_refused"]


def children(server: InferenceServer, site: Site, replicas: int | None = None) -> tuple[Json, ...]:
    """Return every child, in the order in which they are applied: what pods read is there before the pods.

    `replicas` is how many pods shall be there, where that is not what the spec says.
    """
    made = (
        config_map(server, site),
        network_policy(server, site),
        headless_service(server),
        client_service(server),
        disruption_budget(server),
        stateful_set(server, site, server.spec.replicas if replicas is None else replicas),
    )
    return tuple(_marked(child) for child in made)


def digest(child: Json) -> str:
    """Return the digest that a child carries of itself."""
    return hashlib.sha256(json.dumps(child, sort_keys=True).encode()).hexdigest()[:32]


def _marked(child: Json) -> Json:
    metadata = child["metadata"]
    assert isinstance(metadata, dict)  # noqa: S101 - ours
    return {**child, "metadata": {**metadata, "annotations": {DIGEST: digest(child)}}}
